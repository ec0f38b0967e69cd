"""STALENESS.md and its figure, from the outcomes of `ops.bench.staleness` alone.

What a person wrote above the marker in STALENESS.md stays; what is below it is written anew.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from dppo_redis.pacing import DISTRIBUTED_UPDATE_EPOCHS
from ops.bench.runs import table
from ops.bench.staleness import (
    AGES,
    CORRECTIONS,
    FEW_AGES,
    FLEET_ACTORS,
    FLEET_ENV_ID,
    LEARNING_RATE,
    LOWER_LEARNING_RATE,
    PASSES,
    PUBLISH_EVERY,
    STEPS,
    Outcome,
    Trial,
)

REPORT = "STALENESS.md"
FIGURE = "figures/staleness.png"
MARKER = "<!-- Below this line `dppo-redis bench staleness` writes. -->"
_HEAD = "# What the age of the data costs\n"

Group = Sequence[Outcome]
NAMES = {
    "none": "none (plain PPO)",
    "vtrace": "V-trace",
    "decoupled": "decoupled",
    "tis": "truncated weights",
}


class Results:
    """Outcomes by what was tried, over whichever seeds there are."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._groups: dict[Trial, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            self._groups[replace(outcome.trial, seed=0)].append(outcome)
        self.seeds = max(map(len, self._groups.values()))

    def of(self, env_id: str, **settings: object) -> Group:
        """Those of one cell; what is not named is at its default."""
        return self._groups.get(Trial(env_id, STEPS[env_id], 0, **settings), [])  # type: ignore[arg-type]

    def corrected(self, env_id: str, age: int, correction: str) -> Group:
        """Age 0 is that of plain PPO for all."""
        return self.of(env_id, age=age, correction=correction if age else "none")


def write_report(outcomes: Collection[Outcome], output: Path) -> Path:
    """Draw the figure and write the tables; the path of the report."""
    results = Results(outcomes)
    figure, report = output / FIGURE, output / REPORT
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw(results, figure)
    before = report.read_text(encoding="utf-8").split(MARKER)[0] if report.exists() else _HEAD + "\n"
    report.write_text(before + MARKER + "\n\n" + _tables(results), encoding="utf-8")
    return report


def _tables(results: Results) -> str:
    parts = [_setting(results), f"![return against the age of the data]({FIGURE})\n"]
    for env_id in STEPS:
        parts += [f"## {env_id}\n", *_of_environment(results, env_id)]
    parts += [f"## The real system: {FLEET_ENV_ID}, {FLEET_ACTORS} actors\n", _fleet_table(results)]
    return "\n".join(parts) + "\n"


def _setting(results: Results) -> str:
    budgets = ", ".join(f"{env_id} {steps:,} steps" for env_id, steps in STEPS.items())
    return (
        f"{budgets}; {results.seeds} seeds. Batch 2048, minibatch 256, 8 environments; learning rate "
        f"{LEARNING_RATE:g} and {DISTRIBUTED_UPDATE_EPOCHS} passes unless said. A cell is the mean over the "
        "seeds and, in brackets, the lowest and the highest; (n) where there are fewer. Plain PPO stands for "
        "all at age 0, where there is nothing to correct.\n"
    )


def _of_environment(results: Results, env_id: str) -> list[str]:
    ages = [f"age {age}" for age in AGES]

    def by_correction(number: Callable[[Outcome], float]) -> str:
        rows = [
            [NAMES[c], *(_cell(results, results.corrected(env_id, age, c), number) for age in AGES)]
            for c in CORRECTIONS
        ]
        return table(["correction", *ages], rows)

    drifts = [results.of(env_id, age=age) for age in AGES]
    return [
        "Last 100 training returns, which the old policies played:\n",
        by_correction(_train_return) + "\n",
        "20 greedy episodes of the newest policy:\n",
        by_correction(_evaluation_return) + "\n",
        "How far the learner's policy is from the one that sampled, plain PPO, mean over all updates:\n",
        table(
            ["", *ages],
            [
                ["KL", *(_mean(group, lambda o: o.drift_kl, 4) for group in drifts)],
                [
                    "effective sample share",
                    *(_mean(group, lambda o: o.effective_share, 2) for group in drifts),
                ],
            ],
        )
        + "\n",
        "Passes over each batch, plain PPO, last 100 training returns:\n",
        _passes_table(results, env_id) + "\n",
        "Learning rate, plain PPO, last 100 training returns:\n",
        _learning_rate_table(results, env_id) + "\n",
    ]


def _passes_table(results: Results, env_id: str) -> str:
    rows = [
        [
            passes,
            *(
                _cell(results, results.of(env_id, age=age, update_epochs=passes), _train_return)
                for age in FEW_AGES
            ),
        ]
        for passes in sorted((*PASSES, DISTRIBUTED_UPDATE_EPOCHS))
    ]
    return table(["passes", *(f"age {age}" for age in FEW_AGES)], rows)


def _learning_rate_table(results: Results, env_id: str) -> str:
    rows = [
        [
            f"{rate:g}",
            *(
                _cell(results, results.of(env_id, age=age, learning_rate=rate), _train_return)
                for age in FEW_AGES
            ),
        ]
        for rate in (LEARNING_RATE, LOWER_LEARNING_RATE)
    ]
    return table(["learning rate", *(f"age {age}" for age in FEW_AGES)], rows)


def _fleet_table(results: Results) -> str:
    rows = []
    for publish_every in PUBLISH_EVERY:
        group = results.of(FLEET_ENV_ID, publish_every=publish_every)
        staleness = _mean(group, lambda outcome: outcome.staleness, 2)
        rows.append(
            [
                publish_every,
                staleness,
                _cell(results, group, _train_return),
                _cell(results, group, _evaluation_return),
            ]
        )
    header = ["publish_every", "mean staleness", "last 100 training returns", "20 greedy episodes"]
    return table(header, rows)


def _train_return(outcome: Outcome) -> float:
    return outcome.train_return


def _evaluation_return(outcome: Outcome) -> float:
    return outcome.evaluation_return


def _cell(results: Results, group: Group, number: Callable[[Outcome], float]) -> str:
    if not group:
        return "-"
    numbers = [number(outcome) for outcome in group]
    fewer = f" ({len(group)})" if len(group) < results.seeds else ""
    return f"{statistics.fmean(numbers):.0f} [{min(numbers):.0f}, {max(numbers):.0f}]{fewer}"


def _mean(group: Group, number: Callable[[Outcome], float], digits: int) -> str:
    return f"{statistics.fmean(map(number, group)):.{digits}f}" if group else "-"


def draw(results: Results, file: Path) -> None:
    """Above: each correction; below: passes. Lines are means over seeds, bands lowest to highest."""
    figure, axes = plt.subplots(2, len(STEPS), figsize=(12, 8.5), sharex=True, constrained_layout=True)
    for column, (env_id, steps) in enumerate(STEPS.items()):
        above, below = axes[0, column], axes[1, column]
        above.set_title(f"{env_id}, {steps // 1000}k steps")
        for correction, style in zip(CORRECTIONS, ("o-", "s--", "^-.", "v:"), strict=True):
            groups = {age: results.corrected(env_id, age, correction) for age in AGES}
            _line(above, groups, NAMES[correction], style)
        if env_id == FLEET_ENV_ID:
            _stars(above, results)
        for passes, style in zip(
            sorted((*PASSES, DISTRIBUTED_UPDATE_EPOCHS)), ("v:", "o-", "s--"), strict=True
        ):
            groups = {age: results.of(env_id, age=age, update_epochs=passes) for age in AGES}
            _line(below, groups, f"{passes} passes, no correction", style)
        below.set_xlabel("age of the data when it is used (updates)")
        for each in (above, below):
            _dress(each)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _line(axes: Axes, groups: dict[int, Group], label: str, style: str) -> None:
    ages = [age for age, group in groups.items() if group]
    returns = [[outcome.train_return for outcome in groups[age]] for age in ages]
    (line,) = axes.plot(ages, [statistics.fmean(r) for r in returns], style, label=label)
    axes.fill_between(
        ages, list(map(min, returns)), list(map(max, returns)), alpha=0.12, color=line.get_color()
    )


def _stars(axes: Axes, results: Results) -> None:
    """The real system, at the mean age that it had."""
    for publish_every in PUBLISH_EVERY:
        group = results.of(FLEET_ENV_ID, publish_every=publish_every)
        if group:
            age = statistics.fmean(outcome.staleness for outcome in group)
            score = statistics.fmean(outcome.train_return for outcome in group)
            label = (
                f"{FLEET_ACTORS} actors, publish_every as written"
                if publish_every == PUBLISH_EVERY[0]
                else None
            )
            axes.plot(age, score, "k*", markersize=11, label=label)
            axes.annotate(str(publish_every), (age, score), (6, 5), textcoords="offset points")


def _dress(axes: Axes) -> None:
    axes.set_xscale("function", functions=(np.log1p, np.expm1))
    axes.set_xticks(AGES, list(map(str, AGES)))
    axes.set_xlim(-0.08, AGES[-1] * 1.1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("return, last 100 training episodes")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
