"""`dppo-redis bench transport`: what it measures, and what it refuses."""

import json
from dataclasses import replace

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.rollout import validate
from dppo_redis.protocol.wire import encode_rollout
from ops.bench.server import own_server
from ops.bench.transport.command import main
from ops.bench.transport.loads import LOADS, frames_per_step, make_rollout
from ops.bench.transport.parts import measure_parts


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_a_rollout_that_an_actor_may_send(name: str) -> None:
    spec = replace(LOADS[name], rollout_steps=4).planned().description.spec
    validate(make_rollout(spec), spec)


def test_pictures_are_on_the_wire_hardly_more_than_once() -> None:
    spec = LOADS["pictures"].planned().description.spec
    assert 1 < frames_per_step(encode_rollout(make_rollout(spec)), spec) <= 1.05


def test_each_part_takes_time() -> None:
    with own_server() as (client, _):
        parts = measure_parts(client, replace(LOADS["vectors"], batch=2), 1, least_s=0.002)
    assert all(us >= 0 for us in parts.values())
    parsed = parts["learner: decoding, parsed anew, dtypes and shapes"]
    assert 0 < parts["learner: decoding, known layout"] < parsed


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--repeats", "0"], "repeats: from 1 to"),
        (["sounds"], "no load 'sounds'; there are: vectors, pictures"),
    ],
)
def test_impossible_sizes_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(arguments)


@pytest.mark.slow
def test_all_kinds_are_measured_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "--repeats", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {kind: len(rates) for kind, rates in found["samples"]["vectors"].items()} == {
        "bare": 1, "same bytes": 1, "packed": 1, "queue": 1,
    }  # fmt: skip
    assert found["spread"]["vectors"] == [found["ratio"]["vectors"]] * 2
    assert found["cores"] >= 1
