"""A run of the tests ends with what it left out and how to have it."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.left_out import lines_of

ROOT = Path(__file__).resolve().parents[2]
_SUITE = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.skipif(True, reason="no moon: wait for the night")
def test_moon(): pass

def test_usual(): pass
"""


def test_markers_come_before_reasons_and_one_test_is_not_tests() -> None:
    assert lines_of(Counter(slow=2), Counter({"no moon: wait": 1})) == [
        "2 slow tests: `make test-all`",
        "1 skipped test, no moon: wait",
    ]


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_pytest_prints_it_last(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(_SUITE)
    (tmp_path / "conftest.py").write_text(
        "from tests.left_out import LeftOut\n"
        "def pytest_configure(config): config.pluginmanager.register(LeftOut(config))\n"
    )
    alone = ("--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", str(tmp_path), *alone, "-m", "not slow", "-ra", *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.splitlines()[-3:-1] == [
        "1 slow test: `make test-all`",
        "1 skipped test, no moon: wait for the night",
    ]


def reasons_in(file: Path) -> Iterator[str]:
    """Texts of `reason=` in skipif and importorskip, and the argument of pytest.skip."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("skipif", "importorskip"):
            yield from (ast.unparse(k.value) for k in node.keywords if k.arg == "reason")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.skip":
            yield ast.unparse(node.args[0])


def test_every_reason_to_skip_names_its_remedy() -> None:
    files = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    reasons = [reason for file in files for reason in reasons_in(file)]
    assert len(reasons) > 8
    assert [reason for reason in reasons if ": " not in reason and "why_" not in reason] == []
