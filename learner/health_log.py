"""What is wrong with updates: into the log, each kind once in ten seconds at most, into warnings and alarm.

What follows from a setting is logged once. A warning stays when its sign has gone, as the end of a run is
where many look first. It says how many updates showed it, and which.
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
    """One kind of warning, over a training."""

    first: int = 0  # update that showed it first
    last: int = 0  # and last
    updates: int = 0  # that showed it

    def count(self, update: int, window: int) -> str:
        """It held again, in the `window` updates up to this one; how often it did so far."""
        self.updates += 1 if self.last == update - 1 else window
        self.first, self.last = self.first or max(1, update - window + 1), update
        if self.updates == 1:
            return f"update {update}"
        return f"{self.updates} updates from {self.first} to {update}"


class RunWarnings:
    """The newest text of each kind, in the order in which the kinds were first seen."""

    def __init__(self) -> None:
        self._by_kind: dict[str, str] = {}

    def add(self, kind: str, text: str) -> None:
        """Say `text`; it replaces an earlier one of the same kind."""
        self._by_kind[kind] = text

    def withdraw(self, kind: str) -> None:
        """Withdraw this kind of warning: its condition has ended."""
        self._by_kind.pop(kind, None)

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._by_kind.values())


class HealthLog:
    """The signs of one training."""

    def __init__(self, spec: Spec, warnings: RunWarnings) -> None:
        self.alarm = ""  # what keeps anything from being learnt now; else empty
        self._spec = spec
        self._warnings = warnings
        self._reports: deque[UpdateReport] = deque(maxlen=LONGEST_WINDOW)
        self._signs: defaultdict[str, _Sign] = defaultdict(_Sign)
        self._rate_limit: defaultdict[str, RateLimit] = defaultdict(RateLimit)

    def consider(self, report: UpdateReport, update: int) -> None:
        """Judge the newest update, which has this number."""
        self._reports.append(report)
        reports = list(self._reports)
        self.alarm = ""
        for rule in RULES:
            text = rule.judge(reports, self._spec)
            if text is not None:
                self._tell(rule, text, update)

    def _tell(self, rule: HealthRule, text: str, update: int) -> None:
        is_known = rule.is_lasting and rule.kind in self._signs
        when = self._signs[rule.kind].count(update, rule.window)
        self._warnings.add(rule.kind, f"{text} ({when})")
        if rule.is_grave:
            self.alarm = text
        if not is_known and self._rate_limit[rule.kind].due():
            log = _log.error if rule.is_grave else _log.warning
            log("%s", text)
