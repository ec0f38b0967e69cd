"""Measures several kinds in rounds, so that all of them meet the same disturbances."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError

MOST_REPEATS = 100
T = TypeVar("T")
Samples = Mapping[str, Sequence[float]]


def in_rounds(measures: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """`repeats` samples of each kind. In a round each kind is measured once, with the round's number."""
    samples: dict[str, list[T]] = {kind: [] for kind in measures}
    for number in range(repeats):
        for kind, measure in measures.items():
            samples[kind].append(measure(number))
    return samples


def ratios_to(base: str, samples: Samples) -> dict[str, list[float]]:
    """Each kind's samples by those of `base`, round by round."""
    return {
        kind: [own / theirs for own, theirs in zip(values, samples[base], strict=True)]
        for kind, values in samples.items()
        if kind != base
    }


def as_json(ratios: Samples, samples: Mapping[str, Any], **details: Any) -> dict[str, Any]:
    """The object that `--json` prints; ratios and samples by name, one number for each round."""
    return {
        "ratio": {name: round(median(values), 4) for name, values in ratios.items()},
        "samples": samples,
        "spread": {name: [round(min(values), 4), round(max(values), 4)] for name, values in ratios.items()},
        "cores": cores(),
        **details,
    }


def shown(values: Sequence[float], digits: int = 2) -> str:
    """The median and, in brackets, the lowest and the highest."""
    low, middle, high = (f"{number:,.{digits}f}" for number in (min(values), median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def add_common(parser: argparse.ArgumentParser, repeats: int | None, seconds: str) -> None:
    """The options of all benchmarks in rounds."""
    parser.add_argument("--repeats", type=int, default=repeats, help=f"rounds of all kinds ({seconds})")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")


def check_repeats(repeats: int | None) -> None:
    """Refuse an impossible number of rounds.

    Raises:
        ConfigurationError: it is out of range.
    """
    if repeats is not None and not 1 <= repeats <= MOST_REPEATS:
        raise ConfigurationError(f"repeats: from 1 to {MOST_REPEATS} (got {repeats})")
