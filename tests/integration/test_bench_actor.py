"""`dppo-redis bench actor`: what it prints, and what it refuses."""

import json

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.actor import REST, main

SMALL = ["--hidden", "4", "--repeats", "2"]


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.bench.actor._LEAST_S", 0.0)


def test_bare_loop_and_actor_are_measured_in_turn_and_the_parts_of_a_step_with_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--native", "3", "--sync", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["ratio"].keys() == found["samples"].keys() == found["spread"].keys() == {"3 native", "2 sync"}
    )
    for row, samples in found["samples"].items():
        assert {kind: len(times) for kind, times in samples.items()} == {"bare loop": 2, "actor": 2}
        assert found["spread"][row][0] <= found["ratio"][row] <= found["spread"][row][1]
        assert all(us > 0 for part, us in found["parts_us"][row].items() if part != REST)
    assert found["cores"] >= 1


def test_environments_without_a_vector_version_are_named_and_the_rest_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["Pendulum-v1", *SMALL, "--native", "2", "--sync", "1"]) == 0
    printed = capsys.readouterr()
    assert "2 native: Pendulum-v1 has no vector version of its own" in printed.err
    assert "| 1 sync |" in printed.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--native", "0"], "environments: from 1 to"),
        (["--native", "--sync"], "name a number of environments"),
        (["--repeats", "0"], "repeats: from 1 to"),
        (["--hidden", "0"], "network.hidden"),
        (["tests.envs:LaterMasked-v0", "--native"], "has an action mask"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(arguments)
