"""Names the tests that a run left out, and how to run them, in the last lines that pytest prints.

With pytest-xdist the workers collect, each of them all tests, and tell the process that prints.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

REMEDIES = {  # of the tests that `make test` deselects, by marker
    "fuzz": "`make test-all`, after pip install '.[fuzz]'",
    "privileged": "`make test-all`, as root",
    "slow": "`make test-all`",
}
_KEY = "left_out"  # in what a worker of xdist hands back
_PREFIX = "Skipped: "


class LeftOut:
    """A plugin of pytest: counts what is deselected by marker and what is skipped by reason."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._deselected: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Called by pytest for tests that an expression (`-m`, `-k`) leaves out."""
        chosen_by_name = self._config.getoption("keyword")
        for item in [] if chosen_by_name else items:
            marker = next((name for name in REMEDIES if item.get_closest_marker(name)), None)
            if marker is not None:
                self._deselected[marker] += 1

    def pytest_sessionfinish(self) -> None:
        """In a worker of xdist: hand the counts to the process that prints."""
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_KEY] = dict(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Called by xdist when a worker has ended. All workers collect the same tests."""
        counts = getattr(node, "workeroutput", {}).get(_KEY)
        if counts:
            self._deselected = Counter(counts)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        """Print one line for each marker and for each reason, after all else."""
        yield
        reports = terminalreporter.stats.get("skipped", [])
        lines = lines_of(self._deselected, Counter(_reason_of(report) for report in reports))
        if lines:
            terminalreporter.section("left out, and how to have it")
            for line in lines:
                terminalreporter.line(line)


def _reason_of(report: Any) -> str:
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix(_PREFIX)


def lines_of(deselected: Counter[str], skipped: Counter[str]) -> list[str]:
    """One line for each marker and each reason; a reason is written `what is missing: the remedy`."""
    marked = [f"{_tests(n, marker)}: {REMEDIES[marker]}" for marker, n in sorted(deselected.items())]
    reasons = [f"{_tests(n, 'skipped')}, {reason}" for reason, n in sorted(skipped.items())]
    return marked + reasons


def _tests(count: int, kind: str) -> str:
    return f"{count} {kind} test{'' if count == 1 else 's'}"
