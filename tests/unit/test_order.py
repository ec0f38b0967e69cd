"""The order in which workers take the test files."""

from pathlib import Path

from tests.order import in_turn

ROOT = Path("/tests")


def test_files_that_compute_alternate_with_files_that_wait_and_unit_tests_come_last() -> None:
    names = [
        "unit/a",
        "unit/b",
        "integration/c",
        "integration/store/d",
        "e2e/e",
        "e2e/f",
        "chaos/g",
        "photographs/h",
    ]
    expected = [
        "e2e/e",
        "integration/c",
        "e2e/f",
        "integration/store/d",
        "chaos/g",
        "photographs/h",
        "unit/a",
        "unit/b",
    ]
    assert in_turn([ROOT / name for name in names], ROOT) == [ROOT / name for name in expected]
