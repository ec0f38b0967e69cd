"""Shows a running fleet: as a live panel in a terminal, as plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dppo_redis.protocol.ledger import Outcome
from dppo_redis.protocol.reports import KeeperStatus, LearnerStatus
from dppo_redis.store.run_status import RunStatus
from ops.screens.evaluation_summary import describe_all
from ops.screens.tables import (
    RunConsole,
    describe_metrics,
    duration,
    make_console,
    printable,
    progress_of_first_rollouts,
)

_LINE_PERIOD_S = 2.0
_STALE_STATUS_S = 5.0
_ACTORS_SHOWN = 12
_CELL_WIDTH = 60
_MAX_ERROR_LENGTH = 400  # in a plain line
_ERRORS_SHOWN = 3
_METRICS = "metrics"
_METRICS_ON_A_LINE = 4


def render(status: RunStatus) -> RenderableType:
    """The panel of a running fleet."""
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(status):
        is_one_line = name == _METRICS
        shown = Text(printable(value), no_wrap=is_one_line, overflow="ellipsis" if is_one_line else None)
        facts.add_row(Text(name, style="bold"), shown)
    parts: list[RenderableType] = [_progress(status), facts]
    if status.learner.alarm:
        parts.append(Text(f"! {printable(status.learner.alarm)}", style="bold red"))
    lines = (*status.keeper.missing, *status.learner.warnings)
    parts += [Text(f"! {printable(line)}", style="yellow") for line in lines]
    if status.actors:
        parts.append(_actor_table(status))
        parts += [Text(printable(line), style="yellow") for line in _last_errors(status)]
    title = Text(printable(f"dppo_redis · {status.run} · {_headline(status)}"))
    return Panel(Group(*parts), title=title, title_align="left")


def _headline(status: RunStatus) -> str:
    if status.control.state != "run":
        return f"{status.control.state} {status.control.reason}".strip()
    if status.age_s is None:
        return "waiting for the learner"
    if status.age_s > _STALE_STATUS_S:
        return f"the learner has been silent for {status.age_s:.0f} s"
    if status.learner.alarm.startswith("all "):
        return "nothing is trained on"
    return status.learner.state or "-"


def _progress(status: RunStatus) -> RenderableType:
    steps, budget = status.learner.trained_steps, max(1, status.learner.budget_steps)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=budget, completed=min(steps, budget), width=40),
        f"{steps:,} / {budget:,} steps",
    )
    return bar


def _rates(learner: LearnerStatus) -> str:
    """Steps per second in the last minute and over the whole run, and the remaining time."""
    rates = f"{learner.steps_per_s_recent:,.0f} steps/s ({learner.steps_per_s:,.0f} over the run)"
    return ", ".join(filter(None, (rates, _time_left(learner))))


def _time_left(learner: LearnerStatus) -> str:
    """The remaining time at the rate of the last minute; "" if the rate is 0 or no steps remain."""
    left = learner.budget_steps - learner.trained_steps
    if left <= 0 or learner.steps_per_s_recent <= 0:
        return ""
    return f"at most {duration(left / learner.steps_per_s_recent)} left"


def progress_before_first_update(status: RunStatus) -> str:
    """The progress of the rollouts for the first update; "" after the first update."""
    if status.learner.state not in ("waiting", "training"):
        return ""
    if status.learner.update and status.learner.state == "training":
        return ""
    sampling = [report for report in status.actors.values() if report.rollout_steps]
    if not sampling:
        return "no environment steps yet"
    slowest = min(sampling, key=lambda report: (report.rollout_steps_done or 0) / (report.rollout_steps or 1))
    done, length = slowest.rollout_steps_done or 0, slowest.rollout_steps or 1
    return progress_of_first_rollouts(done, length, slowest.rollout_s or 0.0)


def _facts(status: RunStatus) -> list[tuple[str, str]]:
    evaluation, learner, keeper = status.evaluation, status.learner, status.keeper
    played = (
        "none yet"
        if evaluation is None
        else f"{evaluation.return_mean:.1f} ± {evaluation.return_std:.1f} std over {evaluation.episodes} "
        f"greedy episodes, version {evaluation.version} ({evaluation.settled_steps:,} steps)"
    )
    drops = ", ".join(f"{name} {count}" for name, count in drops_of(status)) or "none"
    return [
        ("speed", progress_before_first_update(status) or _rates(learner)),
        ("return", f"{_shown(learner.return_mean)} over the last 100 of {learner.episodes:,} episodes"),
        *([(_METRICS, describe_metrics(learner.metrics))] if learner.metrics else []),
        ("evaluation", f"{played}; target {_shown(learner.target_return)}"),
        *(
            ("", f"! {evaluation_problem}")
            for evaluation_problem in describe_all(status.evaluator, evaluation)
        ),
        (
            "update",
            f"{learner.update:,}, weights version {keeper.version:,}, epoch {keeper.epoch}, "
            f"{learner.device or '-'}",
        ),
        (
            "staleness",
            f"mean {learner.staleness_mean:.2f} ({_two_digits(learner.staleness_recent)} last minute), "
            f"max {learner.staleness_max}, limit {learner.staleness_limit} updates; "
            f"{100 * learner.stale_share:.0f} % too old",
        ),
        ("backlog", f"{keeper.backlog} rollouts (actors wait at {keeper.backlog_high})"),
        (
            "rollouts",
            f"{keeper.entries_added:,} produced, dropped: {drops}, imbalance {keeper.imbalance}",
        ),
        (
            "actors",
            f"{len(status.actors)} alive{_planned(keeper)}, waiting "
            f"{100 * keeper.actor_wait_share:.0f} % of the time; "
            f"the learner {100 * learner.learner_wait_share:.0f} % of the last minute",
        ),
    ]


def _planned(keeper: KeeperStatus) -> str:
    """The number of planned actors as text; empty for a learner of an earlier release, which omits it."""
    return f", {keeper.planned_actors} planned" if keeper.planned_actors else ""


def drops_of(status: RunStatus) -> list[tuple[str, int]]:
    """(outcome or outcome:reason, number of rollouts) for all rollouts that were not trained on."""
    reasons = list(status.ledger.reasons())
    with_reason = {name.partition(":")[0] for name, _ in reasons}
    plain = [
        (outcome.value, status.ledger.of(outcome))
        for outcome in Outcome
        if outcome not in {Outcome.TRAINED, *with_reason} and status.ledger.of(outcome)
    ]
    return plain + reasons


def _actor_table(status: RunStatus) -> Table:
    """The table of actors. It fits into 80 columns: only long host names are cut, and no column title."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in ("actor", "host", "steps/s", "a step", "version", "pushed", "waiting", "boot"):
        table.add_column(column, no_wrap=column != "host", min_width=len(column))
    for slot, report in list(status.actors.items())[:_ACTORS_SHOWN]:
        row = (
            str(slot),
            report.host or "-",
            _shown(report.fps),
            "-" if report.step_ms is None else f"{report.step_ms:.3g} ms {report.vectorization}",
            _shown(report.version),
            _shown(report.pushes),
            f"{100 * (report.wait_share or 0.0):.0f} %",
            _shown(report.boot),
        )
        cells = (printable(cell)[:_CELL_WIDTH] for cell in row)
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    if len(status.actors) > _ACTORS_SHOWN:
        table.add_row("...", f"{len(status.actors) - _ACTORS_SHOWN} more")
    return table


def _last_errors(status: RunStatus) -> list[str]:
    """The actors' last errors, uncut, as cause and remedy are at their end. Equal errors share a line."""
    slots: dict[str, list[str]] = {}
    for slot, report in status.actors.items():
        if report.last_error:
            slots.setdefault(report.last_error, []).append(str(slot))
    lines = [
        f"actor{'s' if len(names) > 1 else ''} {', '.join(names[:_ACTORS_SHOWN])}"
        f"{' ...' if len(names) > _ACTORS_SHOWN else ''}: {text}"
        for text, names in slots.items()
    ]
    left_out = len(lines) - _ERRORS_SHOWN
    return lines[:_ERRORS_SHOWN] + ([f"and {left_out} other errors"] if left_out > 0 else [])


def plain_line(status: RunStatus) -> str:
    """One line for a log or a pipe."""
    evaluation, learner, keeper = status.evaluation, status.learner, status.keeper
    drops = ", ".join(f"{name} {count}" for name, count in drops_of(status)) or "none"
    return printable(
        f"{_headline(status)}: {learner.trained_steps}/{learner.budget_steps} steps, "
        f"{_plain_rates(status)}, update {learner.update}, "
        f"version {keeper.version}, return {_shown(learner.return_mean)}{_metrics_note(learner)}, "
        f"evaluation {f'{evaluation.return_mean:.1f}' if evaluation else '-'}, "
        f"staleness {learner.staleness_mean:.2f} (max {learner.staleness_max}, "
        f"limit {learner.staleness_limit}), backlog {keeper.backlog}, "
        f"dropped: {drops}, actors {len(status.actors)}, "
        f"the learner waits {100 * learner.learner_wait_share:.0f} %{_problem_note(status)}"
    )


def _metrics_note(learner: LearnerStatus) -> str:
    """The environment's first metrics, if it reports any."""
    return f", {describe_metrics(learner.metrics, _METRICS_ON_A_LINE)}" if learner.metrics else ""


def _plain_rates(status: RunStatus) -> str:
    """The progress of the first rollouts; later the rate of the last minute and the mean over the run."""
    learner = status.learner
    return (
        progress_before_first_update(status)
        or f"{learner.steps_per_s_recent:.0f}/s ({learner.steps_per_s:.0f}/s in all)"
    )


def _problem_note(status: RunStatus) -> str:
    """The learner's alarm, else the first missing actor, else the first actor error; empty without any."""
    if status.learner.alarm:
        return f"; {status.learner.alarm}"
    if status.keeper.missing:
        return f"; {status.keeper.missing[0][:200]}"
    for slot, report in status.actors.items():
        if report.last_error:
            return f"; actor {slot}: {report.last_error[:_MAX_ERROR_LENGTH]}"
    return ""


class Screen:
    """Prints progress: a live panel on a terminal, else a plain line every two seconds."""

    def __init__(self, stream: TextIO) -> None:
        self.console = make_console(stream, RunConsole)
        self._live = (
            Live(console=self.console, refresh_per_second=4, transient=False)
            if stream.isatty() and not self.console.is_dumb_terminal
            else None
        )
        self._next_line = 0.0
        self._last_line = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: RunStatus, *, last: bool = False) -> None:
        """Show a status. On a pipe, `last` prints the line without waiting for the two seconds."""
        if self._live is not None:
            self._live.update(render(status))
        elif last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_PERIOD_S
            line = plain_line(status)
            if line != self._last_line:
                self.print_line(line)
            self._last_line = line

    def print_line(self, line: str) -> None:
        """Print one plain line."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def print(self, renderable: RenderableType) -> None:
        """Print a table."""
        self.console.print(renderable)


def _two_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _shown(value: float | None) -> str:
    return "-" if value is None else str(value)
