"""What is kept of a scored run: one JSON line each, small enough to be committed.

The results page and the figure are made from these lines alone, so anyone can rebuild them.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from ops.bench.results import Results
from ops.policies.intervals import half_width

Mode = Literal["serial", "distributed"]
MODES: tuple[Mode, ...] = ("serial", "distributed")
_POINTS = 60  # of a curve; the line of a run stays near 2 kB


@dataclass(frozen=True)
class Greedy:
    """Greedy episodes with one policy."""

    return_mean: float
    episodes: int
    trained_steps: int


@dataclass(frozen=True)
class Record:
    """One run: its task and settings, its commit and versions, and its score."""

    recipe: str  # ops/runs/RECIPE.toml
    env_id: str
    mode: Mode
    actors: int
    seed: int
    commit: str
    command: str
    trained_steps: int
    train_return: float  # mean of the last 100 training episodes
    best: Greedy  # of the best of the evaluations made during training
    last: Greedy  # of the final weights
    train_s: float  # learning, from the first rollout to the last update
    wall_s: float  # of the whole command
    staleness_mean: float  # updates
    staleness_max: int
    stale_share: float  # of all rollouts settled
    versions: dict[str, str]  # of Python and the packages that decide a score
    finished: str  # date
    curve: tuple[tuple[int, float], ...]  # (environment steps, mean of the last 100 training returns)

    @property
    def key(self) -> tuple[str, Mode, int]:
        """What makes two runs the same experiment."""
        return self.recipe, self.mode, self.seed


_LINE = TypeAdapter(Record)


@dataclass(frozen=True)
class Score:
    """Mean over seeds, and the half-width of its 95 % confidence interval."""

    mean: float
    half: float | None  # None for a single seed
    seeds: int
    lowest: float

    def __str__(self) -> str:
        half = "" if self.half is None else f" ± {self.half:,.{_digits(self.mean)}f}"
        return f"{self.mean:,.{_digits(self.mean)}f}{half}"


def _digits(mean: float) -> int:
    return 0 if abs(mean) >= 1000 else 1


def score(values: Sequence[float]) -> Score:
    """Mean and 95 % interval by Student's t."""
    half = half_width(statistics.pstdev(values), len(values))
    return Score(statistics.fmean(values), half, len(values), min(values))


def relative(distributed: float, serial: float) -> float:
    """Distributed in units of serial; returns that are costs (negative) are compared as costs."""
    return distributed / serial if serial > 0 else serial / distributed


def thin(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """At most about 60 points of a curve, its ends among them, returns to two decimals."""
    places = {round(i * (len(curve) - 1) / (_POINTS - 1)) for i in range(_POINTS)} if curve else set()
    return tuple((curve[i][0], round(curve[i][1], 2)) for i in sorted(places))


def results_in(file: Path) -> Results[Record]:
    """The records in a file."""
    return Results(file, lambda record: _LINE.dump_json(record).decode(), _LINE.validate_json)


def of(records: Iterable[Record], recipe: str, mode: Mode) -> list[Record]:
    """The runs of one recipe in one mode, by seed."""
    return sorted((r for r in records if r.recipe == recipe and r.mode == mode), key=lambda r: r.seed)
