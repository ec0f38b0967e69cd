"""`dppo-redis bench publication`: what it prints, and what it refuses."""

import json
import signal
from collections.abc import Iterator

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.scale.holders import ALONE, KINDS, SHARED
from ops.bench.scale.publication import main


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command installs its own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_one_fetch_for_all_sends_the_weights_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--actors", "4", "--mb", "2", "--repeats", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["samples"]["4"]) == list(KINDS)
    assert found["spread"][0] <= found["ratio"] <= found["spread"][1]
    sent = {kind: costs["sent_mb"] for kind, costs in found["medians"]["4"].items()}
    assert 8 <= sent[ALONE] < 9
    assert 2 <= sent[SHARED] < 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--actors", "0"], "actors: from 1 to"),
        (["--mb", "61"], "mb: from"),
        (["--repeats", "0"], "repeats: from"),
    ],
)
def test_impossible_sizes_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(arguments)
