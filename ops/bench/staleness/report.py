"""STALENESS.md and its figure, from the outcomes alone.

What a person wrote above the marker in STALENESS.md stays; what is below it is written anew.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dppo_redis.protocol.run_plan import DISTRIBUTED_UPDATE_EPOCHS
from ops.bench.runs import table
from ops.bench.staleness.trials import (
    AGES,
    BESIDE_ENV_ID,
    CORRECTIONS,
    FEW_AGES,
    FEW_CORRECTIONS,
    FLEET_ACTORS,
    LEARNING_RATE,
    LOWER_LEARNING_RATE,
    PASSES,
    PUBLISH_EVERY,
    STEPS,
    Outcome,
    Trial,
)
from ops.screens.figure import Axes, Figure

REPORT = "STALENESS.md"
FIGURE = "figures/staleness.png"
MARKER = "<!-- Below this line `dppo-redis bench staleness` writes. -->"
_HEAD = "# What the age of the data costs\n"

Group = Sequence[Outcome]
STYLES = {"none": "o-", "vtrace": "s--", "decoupled": "^-.", "tis": "v:"}
ALL_PASSES = sorted((*PASSES, DISTRIBUTED_UPDATE_EPOCHS))
NAMES = {
    "none": "none (plain PPO)",
    "vtrace": "V-trace",
    "decoupled": "decoupled",
    "tis": "truncated weights",
}


class Results:
    """Outcomes by setting, over all seeds that were run."""

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
    parts += [
        f"## Passes and learning rate: {BESIDE_ENV_ID}, last 100 training returns\n",
        _steps_table(results) + "\n",
        f"## The real system: {BESIDE_ENV_ID}, {FLEET_ACTORS} actors\n",
        _fleet_table(results),
    ]
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
    def by_correction(cell: Callable[[Group], str]) -> str:
        rows = [[NAMES[c], *(cell(results.corrected(env_id, age, c)) for age in AGES)] for c in CORRECTIONS]
        return table(["correction", *(f"age {age}" for age in AGES)], rows) + "\n"

    return [
        "Last 100 training returns, which the old policies played:\n",
        by_correction(lambda group: _cell(results, group, _train_return)),
        "20 greedy episodes of the newest policy:\n",
        by_correction(lambda group: _cell(results, group, _evaluation_return)),
        "KL divergence of the learner's policy from the one that sampled, mean over all updates, and "
        "effective sample share:\n",
        by_correction(lambda group: f"{_mean(group, _kl, 3)}, {_mean(group, _effective_share, 2)}"),
    ]


def _steps_table(results: Results) -> str:
    settings: dict[str, dict[str, object]] = {
        f"{passes} passes": {"update_epochs": passes} for passes in ALL_PASSES
    }
    for correction in FEW_CORRECTIONS:
        for rate in (LEARNING_RATE, LOWER_LEARNING_RATE):
            name = f"{NAMES[correction]}, learning rate {rate:g}"
            settings[name] = {"correction": correction, "learning_rate": rate}
    rows = []
    for name, setting in settings.items():
        by_age = [setting if age else {**setting, "correction": "none"} for age in FEW_AGES]
        groups = [results.of(BESIDE_ENV_ID, age=age, **s) for age, s in zip(FEW_AGES, by_age, strict=True)]
        rows.append([name, *(_cell(results, group, _train_return) for group in groups)])
    return table(["", *(f"age {age}" for age in FEW_AGES)], rows)


def _fleet_table(results: Results) -> str:
    rows = []
    for correction in FEW_CORRECTIONS:
        for publish_every in PUBLISH_EVERY:
            group = results.of(BESIDE_ENV_ID, publish_every=publish_every, correction=correction)
            scores = [_cell(results, group, number) for number in (_train_return, _evaluation_return)]
            numbers = [_mean(group, _staleness, 2), *scores, _mean(group, _kl, 3)]
            rows.append([NAMES[correction], publish_every, *numbers])
    header = ["correction", "publish_every", "mean staleness"]
    return table([*header, "last 100 training returns", "20 greedy episodes", "KL"], rows)


def _train_return(outcome: Outcome) -> float:
    return outcome.train_return


def _evaluation_return(outcome: Outcome) -> float:
    return outcome.evaluation_return


def _staleness(outcome: Outcome) -> float:
    return outcome.staleness


def _kl(outcome: Outcome) -> float:
    return outcome.drift_kl


def _effective_share(outcome: Outcome) -> float:
    return outcome.effective_share


def _cell(results: Results, group: Group, number: Callable[[Outcome], float]) -> str:
    if not group:
        return "-"
    numbers = [number(outcome) for outcome in group]
    fewer = f" ({len(group)})" if len(group) < results.seeds else ""
    return f"{statistics.fmean(numbers):.0f} [{min(numbers):.0f}, {max(numbers):.0f}]{fewer}"


def _mean(group: Group, number: Callable[[Outcome], float], digits: int) -> str:
    return f"{statistics.fmean(map(number, group)):.{digits}f}" if group else "-"


def draw(results: Results, file: Path) -> None:
    """Above: return under each correction. Below: passes and learning rate; how far the policies drift.

    Lines are means over seeds, bands go from the lowest to the highest.
    """
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for each, (env_id, steps) in zip(axes[0], STEPS.items(), strict=True):
        each.set_title(f"{env_id}, {steps // 1000}k steps")
        for correction, style in STYLES.items():
            groups = {age: results.corrected(env_id, age, correction) for age in AGES}
            _line(each, groups, _train_return, NAMES[correction], style)
    _fleets(axes[0, 0], results)
    _beside(axes[1, 0], results)
    _drift(axes[1, 1], results)
    for each in axes.flat:
        each.set_xscale("function", functions=(np.log1p, np.expm1))
        each.set_xticks(AGES, list(map(str, AGES)))
        each.set_xlim(-0.08, AGES[-1] * 1.1)
        each.grid(alpha=0.3)
        if each.lines:
            each.legend(frameon=False, fontsize="small")
    for each in (*axes[0], axes[1, 0]):
        each.set_ylim(0, each.get_ylim()[1] * 1.05)
        each.set_ylabel("return, last 100 training episodes")
    for each in axes[1]:
        each.set_xlabel("age of the data when it is used (updates)")
    figure.savefig(file, dpi=110)


def _line(
    axes: Axes, groups: Mapping[int, Group], number: Callable[[Outcome], float], label: str, style: str
) -> None:
    ages = [age for age, group in groups.items() if group]
    if not ages:
        return
    numbers = [[number(outcome) for outcome in groups[age]] for age in ages]
    (line,) = axes.plot(ages, list(map(statistics.fmean, numbers)), style, label=label)
    axes.fill_between(
        ages, list(map(min, numbers)), list(map(max, numbers)), alpha=0.12, color=line.get_color()
    )


def _fleets(axes: Axes, results: Results) -> None:
    """The real system, at the mean age that it had."""
    below, above = (4, -14), (4, 6)
    for correction, style, place in zip(FEW_CORRECTIONS, ("k*", "gP"), (below, above), strict=True):
        label: str | None = f"{FLEET_ACTORS} actors, {NAMES[correction]}, publish_every as written"
        for publish_every in PUBLISH_EVERY:
            group = results.of(BESIDE_ENV_ID, publish_every=publish_every, correction=correction)
            if group:
                age = statistics.fmean(map(_staleness, group))
                score = statistics.fmean(map(_train_return, group))
                axes.plot(age, score, style, markersize=8, label=label)
                axes.annotate(str(publish_every), (age, score), place, textcoords="offset points")
                label = None


def _beside(axes: Axes, results: Results) -> None:
    axes.set_title(f"{BESIDE_ENV_ID}, plain PPO: passes and learning rate")
    for passes, style in zip(ALL_PASSES, ("v:", "o-", "s--"), strict=True):
        groups = {age: results.of(BESIDE_ENV_ID, age=age, update_epochs=passes) for age in AGES}
        _line(axes, groups, _train_return, f"{passes} passes", style)
    groups = {age: results.of(BESIDE_ENV_ID, age=age, learning_rate=LOWER_LEARNING_RATE) for age in AGES}
    name = f"{DISTRIBUTED_UPDATE_EPOCHS} passes, learning rate {LOWER_LEARNING_RATE:g}"
    _line(axes, groups, _train_return, name, "^-.")


def _drift(axes: Axes, results: Results) -> None:
    """From age 1 on: fresh data has none."""
    axes.set_title(f"{BESIDE_ENV_ID}: how far the learner is from the policy that sampled")
    for correction, style in STYLES.items():
        groups = {age: results.corrected(BESIDE_ENV_ID, age, correction) for age in AGES if age}
        _line(axes, groups, _kl, NAMES[correction], style)
    axes.set_yscale("log")
    axes.set_ylabel("KL divergence before the first step")
