"""`dppo-redis bench gradient`: what it prints, and what it refuses."""

import json

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.gradient import KINDS, main
from ops.bench.update_parts import PARTS

SMALL = ["--hidden", "4", "--repeats", "2"]


def test_both_kinds_are_measured_in_turn_and_the_parts_of_an_update_with_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--minibatch", "64", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"].keys() == found["samples"].keys() == found["spread"].keys() == {"64", "300"}
    for size, samples in found["samples"].items():
        assert list(samples) == list(KINDS)
        assert [len(times) for times in samples.values()] == [2, 2]
        assert found["spread"][size][0] <= found["ratio"][size] <= found["spread"][size][1]
    assert found["cores"] >= 1
    assert list(found["update_ms"]) == list(PARTS)
    assert all(ms >= 0 for ms in found["update_ms"].values())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--minibatch", "1"], "minibatch: from 2 to"),
        (["--minibatch", "64", "100000000"], "minibatch: from 2 to"),
        (["--repeats", "0"], "repeats: from 1 to"),
        (["--hidden", "0"], "network.hidden"),
        (["--hidden", *["4"] * 9], "network.hidden"),
    ],
)
def test_impossible_sizes_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        main(arguments)


def test_an_environment_with_images_has_nothing_to_compare() -> None:
    with pytest.raises(ConfigurationError, match="autograd alone"):
        main(["ops.bench.pixel_catch:PixelCatch-v0", "--minibatch", "8", "--repeats", "1"])
