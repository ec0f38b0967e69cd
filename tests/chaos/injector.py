"""Attacks a fleet with faults in a seeded order, measures how long it takes to recover, and judges the end.

python -m tests.chaos --seconds 1800 --seed 1
"""

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import redis

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.report_fields import from_fields
from dppo_redis.protocol.reports import KeeperStatus
from tests.chaos.checker import check, describe
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.fleet import PATIENCE_S, ChaosError, Fleet, wait_for

_POLL_S = 0.05


@dataclass
class Report:
    """The results of an attack."""

    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds, by fault
    hasty: int = 0  # faults that were followed by the next one at once
    seconds: float = 0.0
    best_evaluation: float = float("-inf")
    best_training: float = float("-inf")  # mean return of the last 100 episodes
    numbers: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # promises, as sentences

    @property
    def faults(self) -> int:
        return self.hasty + sum(map(len, self.recoveries.values()))


@dataclass
class Injector:
    """Injects one fault after the other, each after the fleet has recovered from the one before."""

    fleet: Fleet
    rng: random.Random
    kinds: Sequence[Fault] = FAULTS
    report: Report = field(default_factory=Report)
    say: bool = False
    haste: float = 0.0  # share of faults after which the next one comes before the fleet has recovered

    def run(self, seconds: float) -> Report:
        """Attack for `seconds`; if that is 0, inject each kind once; then judge."""
        started = time.monotonic()
        try:
            wait_for(lambda: self.fleet.update >= 3 and self.fleet.status() != {}, "the fleet trains")
            for fault in self._order(once=seconds == 0):
                self._inject(fault)
                if seconds and time.monotonic() - started > seconds:
                    break
            if self.haste:
                self._recovery_s()  # of the last fault, where nobody has waited for it
            self.fleet.bring_to_rest()
        except (ChaosError, OSError, redis.RedisError) as error:
            self.report.broken.append(f"{type(error).__name__}: {error}")
        self.report.seconds = time.monotonic() - started
        events = list(self.fleet.events())
        self.report.broken += check(events, load_toml(RunFiles(self.fleet.run_dir).config).max_staleness)
        self.report.numbers = describe(events)
        return self.report

    def _order(self, *, once: bool) -> Iterator[Fault]:
        """Every kind once in a random order, then again in another one."""
        while True:
            yield from self.rng.sample(self.kinds, len(self.kinds))
            if once:
                return

    def _inject(self, fault: Fault) -> None:
        kind = fault.__name__.replace("_", " ")
        self.fleet.event_log.write("fault", kind=kind)
        with contextlib.suppress(redis.ResponseError):  # in haste: what it is aimed at is still missing
            fault(self.fleet, self.rng)
        self.fleet.event_log.write("fault over", kind=kind)
        if self.rng.random() < self.haste:
            self.report.hasty += 1
            self._log_recovery(kind, "the next one follows at once")
        else:
            took_s = self._recovery_s()
            self.fleet.note_balance()
            self.report.recoveries[kind].append(took_s)
            self._log_recovery(kind, f"recovered after {took_s:5.2f} s")
        time.sleep(self.rng.uniform(0.2, 1.5))

    def _log_recovery(self, kind: str, how: str) -> None:
        self.fleet.event_log.write("recovered", kind=kind, how=how)
        if self.say:
            print(f"{self.report.faults:4d}  {kind:34s} {how}", flush=True)

    def _recovery_s(self) -> float:
        """Time until trained steps grow, the books balance and every planned actor pushes again.

        Raises:
            ChaosError: that never happened.
        """
        fleet, over = self.fleet, time.monotonic()
        over_at = time.time()
        lowest, before = None, fleet.reported_pushes()
        grown = False
        silent = set(before)
        while time.monotonic() - over < PATIENCE_S:
            status = fleet.status()
            self._note_returns(status)
            if steps := fleet.trained_steps:  # 0 while the weights are gone
                lowest = min(lowest or steps, steps)
                grown = grown or lowest < steps
            silent = {
                slot for slot in silent if not self._pushes(fleet.reported_pushes()[slot], before[slot])
            }
            # The report, whose time is rounded to a tenth, is of after the fault.
            keeper = from_fields(KeeperStatus, status)
            balanced = keeper.time > over_at + 0.1 and keeper.imbalance == 0
            if grown and balanced and not silent:
                return time.monotonic() - over
            time.sleep(_POLL_S)
        raise ChaosError(
            f"no recovery within {PATIENCE_S:g} s: trained steps grow: {grown}, "
            f"imbalance {status.get('imbalance')!r}, silent actors {sorted(silent)}"
        )

    @staticmethod
    def _pushes(now: tuple[int, int], before: tuple[int, int]) -> bool:
        """Whether an actor, or a new process in its slot, has pushed since."""
        return now[1] > 0 and now != before

    def _note_returns(self, status: dict[str, str]) -> None:
        evaluated = self.fleet.number(self.fleet.keys.evaluation, "return_mean")
        self.report.best_evaluation = max(self.report.best_evaluation, evaluated)
        with contextlib.suppress(ValueError):
            self.report.best_training = max(
                self.report.best_training, float(status.get("return_mean") or "nan")
            )


def to_markdown(report: Report) -> str:
    """The report as a table."""
    lines = ["| fault | times | median recovery s | longest recovery s |", "|---|---|---|---|"]
    for kind, seconds in sorted(report.recoveries.items()):
        lines.append(f"| {kind} | {len(seconds)} | {median(seconds):.1f} | {max(seconds):.1f} |")
    lines += ["", "| number | value |", "|---|---|"]
    figures = {
        "seconds": round(report.seconds),
        "faults": report.faults,
        "best evaluation": report.best_evaluation,
        "best mean of 100 training episodes": round(report.best_training, 1),
        **report.numbers,
    }
    lines += [f"| {name} | {value} |" for name, value in figures.items()]
    lines += ["", "Verdict: clean." if not report.broken else "Verdict: broken promises:"]
    return "\n".join(lines + [f"* {sentence}" for sentence in report.broken[:50]]) + "\n"
