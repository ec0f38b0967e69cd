"""`dppo-redis bench solve`: what it refuses, and what it measures beside a peer."""

import json
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.peers import environments
from ops.bench.solve import main

_PEER = "stable-baselines3, one process"
_ANSWER = json.dumps(
    {"steps": 99, "seconds": 0.1, "steps_per_s": 1.0, "return": 12.0, "target_s": 0.1, "target_steps": 99}
)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--actors", "0"], "actors: from 1 to 64"),
        (["--steps", "0"], "steps: from 1 to"),
        (["--target", "501"], "target: above 0, at most 500"),
        (["--target", "nan"], "target: above 0, at most 500"),
        (["--repeats", "0"], "repeats: from 1 to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_numbers_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(words)


@pytest.mark.slow
def test_each_kind_runs_until_the_target_and_is_compared_with_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    python = tmp_path / "stable-baselines3" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{_ANSWER}'\n")
    python.chmod(0o755)
    assert main(["--target", "9", "--repeats", "1", "--actors", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    names = [_PEER, "dppo_redis, serial", "dppo_redis, 1 actor"]
    assert list(found["samples"]) == names
    for name in names[1:]:
        (one,) = found["samples"][name]
        assert one["steps"] > 0
        assert 0 < one["start_s"] < one["command_s"]
        assert found["ratio"][name] > 0


@pytest.mark.slow
def test_a_missing_peer_is_named_with_the_command_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["--target", "9", "--repeats", "1", "--actors", "1"]) == 0
    shown = capfd.readouterr()
    assert "stable-baselines3 is not installed: python3 -m venv" in shown.err
    assert "| dppo_redis, serial | 1 of 1 |" in shown.out
    assert "stable-baselines3" not in shown.out
