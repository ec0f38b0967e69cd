"""`dppo-redis bench peers` and `bench article`: what they refuse, and how they run other programs."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.article.command import CLAIMS
from ops.bench.article.command import main as article
from ops.bench.peers import environments
from ops.bench.peers.command import Timed, complete, wanted
from ops.bench.peers.command import main as peers
from ops.bench.peers.environments import RAY, RLLIB, SAMPLE_FACTORY, STABLE_BASELINES3, Peer
from ops.bench.processes import ProgramFailedError
from ops.bench.rounds import as_json, in_rounds, ratios_to, shown

ALL = (STABLE_BASELINES3, RLLIB, SAMPLE_FACTORY, RAY)
_ANSWER = {
    "steps": 2048,
    "seconds": 0.5,
    "steps_per_s": 4096.0,
    "return": 20.5,
    "target_s": None,
    "target_steps": None,
}


def install(directory: Path, peer: Peer, script: str) -> None:
    """An environment of the peer whose interpreter is a shell script."""
    python = directory / peer.name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


@pytest.mark.parametrize("peer", ALL, ids=lambda peer: peer.program)
def test_a_peer_has_a_program_and_exact_versions(peer: Peer) -> None:
    lines = [line for line in peer.requirements.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert (peer.requirements.parent / "programs" / peer.program).exists()
    assert Path(peer.how_to_install().split()[-1]).samefile(peer.requirements)


def test_a_peer_without_an_environment_runs_here_if_its_library_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    assert Peer("none", "none.py", "no_such_library").python() is None
    assert Peer("none", "none.py", "json").python() == Path(sys.executable)
    install(tmp_path, STABLE_BASELINES3, "true")
    assert STABLE_BASELINES3.python() == tmp_path / "stable-baselines3" / "bin" / "python"


def test_a_program_is_asked_in_json_and_its_last_line_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    install(tmp_path, RLLIB, f"echo \"$2\" > {tmp_path}/asked; echo noise; echo '{json.dumps(_ANSWER)}'")
    outcome = RLLIB.play("", 2048, 475.0, 3)
    assert outcome.score == 20.5
    assert outcome.target_s is None
    asked = json.loads((tmp_path / "asked").read_text())
    assert not Path(asked.pop("directory")).exists()  # any more
    assert asked == {"variant": "", "steps": 2048, "target": 475.0, "seed": 3}
    install(tmp_path, SAMPLE_FACTORY, "echo no cores >&2; exit 3")
    with pytest.raises(ProgramFailedError, match="ended with 3:\nno cores"):
        SAMPLE_FACTORY.play("", 2048, 475.0, 3)


def test_a_peer_that_failed_in_a_round_has_no_row() -> None:
    run = Timed(environments.outcome_of(json.dumps(_ANSWER)), 1.0)
    assert complete({"sound": [run, run], "broken": [run, None]}) == {"sound": [run, run]}


def test_other_peers_are_asked_for_by_name() -> None:
    assert {peer.name for peer, _ in wanted([]).values()} == {"stable-baselines3"}
    assert [peer.name for peer, _ in wanted(["rllib"]).values()] == ["stable-baselines3"] * 2 + ["rllib"]


def test_a_claim_whose_peer_is_missing_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    assert article(["--claim", "ray", "--json"]) == 0
    printed = capsys.readouterr()
    assert f"ray: its peer is not installed: {RAY.how_to_install()}" in printed.err
    assert json.loads(printed.out)["samples"] == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--claim", "speed"], "no claim 'speed'; there are: streams"),
        (["--repeats", "0"], "repeats: from 1 to"),
        (["--repeats", "1000"], "repeats: from 1 to"),
    ],
)
def test_impossible_claims_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        article(arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--with", "cleanrl"], "no peer 'cleanrl'; there are: rllib, sample-factory"),
        (["--steps", "10"], "steps: from 2048"),
        (["--repeats", "0"], "repeats: from 1 to"),
    ],
)
def test_impossible_peers_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        peers(arguments)


def test_kinds_take_turns_and_their_ratios_are_of_one_round() -> None:
    turns: list[str] = []

    def measure(name: str, number: int) -> float:
        turns.append(name)
        return number + 1.0

    samples = in_rounds({name: partial(measure, name) for name in "ab"}, 2)
    assert turns == ["a", "b", "a", "b"]
    assert samples == {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    assert ratios_to("a", {"a": [1.0, 2.0], "b": [3.0, 2.0]}) == {"b": [3.0, 1.0]}


def test_the_object_has_medians_and_spreads_of_each_ratio() -> None:
    found = as_json({"b": [3.0, 1.0, 2.0]}, {"b": [1.0]}, unit="s")
    assert found["ratio"] == {"b": 2.0}
    assert found["spread"] == {"b": [1.0, 3.0]}
    assert found.keys() == {"ratio", "samples", "spread", "cores", "unit"}
    assert shown([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert shown([1234.5], 0) == "1,234"


def test_every_claim_says_what_the_article_claims() -> None:
    assert list(CLAIMS) == [
        *("streams", "publishing", "publishing-16mb", "packing", "smaller-steps", "total-batch", "ray")
    ]
    assert all(claim.repeats >= 3 for claim in CLAIMS.values())
