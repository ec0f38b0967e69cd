"""RESULTS.md from the records: what was to reach, what was reached, and how to repeat it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ops.bench.runs import table
from ops.bench.scores.records import MODES, Mode, Record, Score, of, relative, score

LEAST_SEEDS = 5
LEAST_SHARE = 0.95  # of the own serial score, distributed


@dataclass(frozen=True)
class Row:
    """An environment of the page, and the figure beside which it stands."""

    recipe: str
    env_id: str
    steps: str
    published: str
    target: float | None  # None: nobody has published one
    counts: Literal["training", "greedy"] = "training"  # greedy: of the final weights, every seed


ROWS = (
    Row("cartpole", "CartPole-v1", "500k", "CleanRL 490.0 ± 6.1", 490, "greedy"),
    Row("acrobot", "Acrobot-v1", "500k", "CleanRL -86.4 ± 1.3; RL Zoo -73.5 ± 18 (1M, greedy)", -85),
    Row("lunar_lander", "LunarLander-v3", "1M", "RL Zoo 242 ± 32 (v2, greedy)", 240),
    Row("inverted_pendulum", "InvertedPendulum-v5", "1M", "CleanRL 963 ± 22 (v4)", 960),
    Row("hopper", "Hopper-v5", "1M", "CleanRL 2,383 ± 272 (v4)", 2300),
    Row("walker2d", "Walker2d-v5", "1M", "CleanRL 2,288 ± 572 (v4)", 2000),
    Row(
        "half_cheetah",
        "HalfCheetah-v5",
        "1M",
        "CleanRL 1,443 ± 46 (v4); Tianshou 5,784 ± 1,244 (v3, best over training)",
        2500,
    ),
    Row(
        "pixel_catch",
        "ops.bench.pixel_catch:PixelCatch-v0",
        "200k",
        "none: a task of uint8 images, compared with serial",
        None,
    ),
)

_HEAD = """\
# Scores

Made by `python -m ops.bench.scores page` from `scores.jsonl`, one line for each run; do not edit. The
recipes are in `ops/runs`; `python -m ops.bench.scores run` plays what `scores.jsonl` lacks.

*Training* is the mean of the last 100 training episodes, sampled actions and all, raw rewards, at the end
of the budget; *greedy* the mean of whole episodes with the most likely actions. Every figure is the mean
over seeds with its 95 % interval (Student's t). *Share* is distributed in units of serial (for Acrobot,
whose returns are costs, serial in units of distributed). Distributed means 4 actors through Redis with the
default staleness limit of 4. Published figures are of the versions of the environments named with them.
"""


def build(records: Sequence[Record], figure: Path, remarks: str) -> str:
    """The whole page; `figure` is its path as seen from the page, `remarks` what people found out."""
    parts = [
        _HEAD,
        "## Reached\n",
        table(_REACHED, [_reached(row, records) for row in ROWS]) + "\n",
        f"![training return of each environment against steps]({figure})\n",
        remarks,
        "## Greedy episodes\n",
        _GREEDY_NOTE,
        table(_GREEDY, [_greedy(row, records) for row in _played(records)]) + "\n",
        "## Time and staleness\n",
        _TIME_NOTE,
        table(_TIME, [line for row in _played(records) for line in _times(row, records)]) + "\n",
        "## Every run\n",
        table(_RUNS, [line for row in _played(records) for line in _runs(row, records)]) + "\n",
        "## How to repeat it\n",
        _how(records),
    ]
    return "\n".join(parts)


_REACHED = (
    "environment", "steps", "published", "to reach", "counts",
    "serial", "seeds", "distributed", "seeds", "share", "reached",
)  # fmt: skip


def _reached(row: Row, records: Sequence[Record]) -> list[object]:
    serial, distributed = (_counted(row, of(records, row.recipe, mode)) for mode in MODES)
    target = "learns" if row.target is None else f">= {row.target:,.0f}"
    counts = "greedy, every seed" if row.counts == "greedy" else "training"
    cells = [cell for x in (serial, distributed) for cell in (("not run", 0) if x is None else (x, x.seeds))]
    share = "" if serial is None or distributed is None else f"{relative(distributed.mean, serial.mean):.2f}"
    return [
        row.env_id,
        row.steps,
        row.published,
        target,
        counts,
        *cells,
        share,
        verdict(row, serial, distributed),
    ]


def _counted(row: Row, records: Sequence[Record]) -> Score | None:
    values = [r.last.return_mean if row.counts == "greedy" else r.train_return for r in records]
    return score(values) if values else None


def verdict(row: Row, serial: Score | None, distributed: Score | None) -> str:
    """Whether distributed reaches the target and keeps up with serial, on enough seeds."""
    if row.target is None or distributed is None:
        return ""
    counted = distributed.lowest if row.counts == "greedy" else distributed.mean
    words = ["yes" if counted >= row.target else "no"]
    if distributed.seeds < LEAST_SEEDS:
        words = [
            f"{'so far' if counted >= row.target else 'no'} ({distributed.seeds} of {LEAST_SEEDS} seeds)"
        ]
    if serial is not None and relative(distributed.mean, serial.mean) < LEAST_SHARE:
        words.append(f"below {LEAST_SHARE} of serial")
    return ", ".join(words)


def _played(records: Sequence[Record]) -> list[Row]:
    return [row for row in ROWS if any(record.recipe == row.recipe for record in records)]


_GREEDY_NOTE = """\
*Best* is the policy that did best in the evaluations during training, played again for 100 other episodes;
*last* that of the end. The baseline keeps no checkpoint, so its *last* is its own evaluation of 20 episodes.
"""
_GREEDY = ("environment", "serial, best", "serial, last", "distributed, best", "distributed, last")


def _greedy(row: Row, records: Sequence[Record]) -> list[object]:
    cells: list[object] = [row.env_id]
    for mode in MODES:
        played = of(records, row.recipe, mode)
        for which in ("best", "last"):
            values = [getattr(record, which).return_mean for record in played]
            cells.append(score(values) if values else "not run")
    return cells


_TIME_NOTE = """\
*Learning* is the time from the first rollout to the last update, *whole command* the wall-clock. Two cores
shared with other work, at the lowest priority: an upper bound of the time, not a benchmark.
"""
_TIME = (
    "environment", "mode", "learning s", "whole command s", "steps/s",
    "mean staleness", "largest", "stale rollouts",
)  # fmt: skip


def _times(row: Row, records: Sequence[Record]) -> list[list[object]]:
    return [
        _time(row, mode, of(records, row.recipe, mode)) for mode in MODES if of(records, row.recipe, mode)
    ]


def _time(row: Row, mode: Mode, played: Sequence[Record]) -> list[object]:
    learning = score([record.train_s for record in played])
    rate = sum(record.trained_steps for record in played) / sum(record.train_s for record in played)
    cells: list[object] = [row.env_id, mode, f"{learning.mean:.0f}"]
    cells += [f"{score([record.wall_s for record in played]).mean:.0f}", f"{rate:,.0f}"]
    if mode == "serial":
        return [*cells, "", "", ""]
    stale = score([record.stale_share for record in played]).mean
    staleness = score([record.staleness_mean for record in played]).mean
    return [*cells, f"{staleness:.2f}", max(record.staleness_max for record in played), f"{stale:.1%}"]


_RUNS = (
    "environment", "mode", "seed", "steps",
    "training", "greedy best", "greedy last", "whole command s", "commit", "finished",
)  # fmt: skip


def _runs(row: Row, records: Sequence[Record]) -> list[list[object]]:
    return [
        [
            row.env_id,
            r.mode,
            r.seed,
            f"{r.trained_steps:,}",
            f"{r.train_return:,.1f}",
            f"{r.best.return_mean:,.1f} (at {r.best.trained_steps:,})",
            f"{r.last.return_mean:,.1f}",
            f"{r.wall_s:.0f}",
            r.commit,
            r.finished,
        ]
        for mode in MODES
        for r in of(records, row.recipe, mode)
    ]


def _how(records: Sequence[Record]) -> str:
    commands = {r.command.rsplit(" ", 1)[0] + " SEED": None for r in records}  # ordered, without doubles
    versions = {", ".join(f"{name} {number}" for name, number in r.versions.items()): None for r in records}
    return "\n".join(
        [
            "```",
            "pip install -r ops/bench/requirements.txt",
            *commands,
            "dppo-redis evaluate RUN_DIR --episodes 100 --checkpoint best",
            "```",
            "",
            *(f"Versions: {some}." for some in versions),
            "",
        ]
    )
