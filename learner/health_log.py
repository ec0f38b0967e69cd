"""Reports unhealthy updates as warnings, as an alarm, and in the log.

The log shows each kind once in ten seconds, and a sign that follows from a setting once. A warning stays
after its sign has disappeared, because many users read the warnings only at the end of a run. It says which
updates showed the sign, and how many.
"""

import logging
from collections import defaultdict, deque
from dataclasses import dataclass

from dppo_redis.protocol.spec import Spec
from dppo_redis.service.logs import RateLimit
from learner.ppo.health import LONGEST_WINDOW, RULES, HealthRule
from learner.ppo.update import UpdateReport

_log = logging.getLogger("dppo")


@dataclass
class _Sign:
    """The updates of a training that have shown one kind of sign."""

    first: int = 0  # first update that showed it
    last: int = 0  # last update that showed it
    updates: int = 0  # number of updates that showed it

    def count(self, update: int, window: int) -> str:
        """Count the sign in the `window` updates up to `update`; returns the updates so far as text."""
        self.updates += 1 if self.last == update - 1 else window
        self.first, self.last = self.first or max(1, update - window + 1), update
        if self.updates == 1:
            return f"update {update}"
        return f"{self.updates} updates from {self.first} to {update}"


class RunWarnings:
    """The warnings of a run: the newest text of each kind, in the order in which the kinds first occurred."""

    def __init__(self) -> None:
        self._by_kind: dict[str, str] = {}

    def add(self, kind: str, text: str) -> None:
        """Add a warning; it replaces an earlier one of the same kind."""
        self._by_kind[kind] = text

    def withdraw(self, kind: str) -> None:
        """Withdraw this kind of warning: its condition has ended."""
        self._by_kind.pop(kind, None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of all warnings."""
        return tuple(self._by_kind.values())


class HealthLog:
    """Judges each update of a training by the rules of `ppo/health.py`, and reports the signs."""

    def __init__(self, spec: Spec, warnings: RunWarnings) -> None:
        self.alarm = ""  # the reason if the training cannot learn now; else empty
        self._spec = spec
        self._warnings = warnings
        self._reports: deque[UpdateReport] = deque(maxlen=LONGEST_WINDOW)
        self._signs: defaultdict[str, _Sign] = defaultdict(_Sign)
        self._rate_limit: defaultdict[str, RateLimit] = defaultdict(RateLimit)

    def consider(self, report: UpdateReport, update: int) -> None:
        """Judge the newest update, number `update`."""
        self._reports.append(report)
        reports = list(self._reports)
        self.alarm = ""
        for rule in RULES:
            text = rule.judge(reports, self._spec)
            if text is not None:
                self._report(rule, text, update)

    def _report(self, rule: HealthRule, text: str, update: int) -> None:
        is_known = rule.is_lasting and rule.kind in self._signs
        when = self._signs[rule.kind].count(update, rule.window)
        self._warnings.add(rule.kind, f"{text} ({when})")
        if rule.is_grave:
            self.alarm = text
        if not is_known and self._rate_limit[rule.kind].due():
            log = _log.error if rule.is_grave else _log.warning
            log("%s", text)
