"""Each photograph fails on one planted change, and names its file."""

from pathlib import Path

import pytest

from tests.photographs.camera import SNAPSHOTS, difference, photograph

NAMES = sorted(str(file.relative_to(SNAPSHOTS)) for file in SNAPSHOTS.rglob("*") if file.is_file())


def test_there_are_photographs() -> None:
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_letter_a_lost_line_and_a_new_line_are_each_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PHOTOGRAPH", raising=False)
    text = (SNAPSHOTS / name).read_text(encoding="utf-8")
    photograph(name, text)
    lines = text.splitlines()
    middle = len(lines) // 2
    changed = next(index for index, line in enumerate(lines) if index >= middle and line.strip())
    planted = [
        [*lines[:changed], lines[changed][:-1] + "?", *lines[changed + 1 :]],
        [*lines[:changed], *lines[changed + 1 :]],
        [*lines, "a new line"],
    ]
    for others in planted:
        with pytest.raises(pytest.fail.Exception, match=f"snapshots/{name}"):
            photograph(name, "\n".join(others))


def test_a_missing_photograph_is_a_failure(tmp_path: Path) -> None:
    assert "a text" in difference(str(tmp_path / "none.txt"), "a text")
