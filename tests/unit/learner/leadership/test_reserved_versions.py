"""The used epochs and versions that a successor on an emptied server reads."""

from pathlib import Path

import pytest

from learner.leadership.reserved_versions import HighestReserved, ReservedVersions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "used.json"


def test_a_killed_learner_has_used_no_more_than_the_file_says(file: Path) -> None:
    reserved = ReservedVersions(file)
    for version in range(1, 251):
        reserved.cover(3, version)
        assert ReservedVersions(file).read().version >= version
        assert ReservedVersions(file).read().epoch == 3


def test_it_is_written_once_in_a_hundred_versions_and_for_each_epoch(file: Path) -> None:
    reserved = ReservedVersions(file)
    found = []
    for epoch, version in [*((1, version) for version in range(1, 251)), (2, 251)]:
        reserved.cover(epoch, version)
        found.append(ReservedVersions(file).read())
    assert list(dict.fromkeys(found)) == [
        HighestReserved(1, 100),
        HighestReserved(1, 200),
        HighestReserved(1, 300),
        HighestReserved(2, 350),
    ]


def test_a_clean_end_leaves_no_gap(file: Path) -> None:
    reserved = ReservedVersions(file)
    reserved.cover(1, 7)
    reserved.give_back(7)
    assert ReservedVersions(file).read() == HighestReserved(1, 7)


def test_a_learner_that_was_overtaken_lowers_nothing(file: Path) -> None:
    old, successor = ReservedVersions(file), ReservedVersions(file)
    old.cover(1, 7)
    successor.cover(2, 500)
    old.give_back(7)
    old.cover(1, 200)
    assert ReservedVersions(file).read() == HighestReserved(2, 599)


@pytest.mark.parametrize("content", ["", "[]", '{"epoch": 1}', '{"epoch": "x", "version": 2}', "\xff"])
def test_a_damaged_file_is_passed_over_with_a_warning(
    file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(content.encode("latin-1"))
    assert ReservedVersions(file).read() == HighestReserved()
    assert "unreadable" in caplog.text


def test_a_disk_that_refuses_is_reported_and_does_not_prevent_publishing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reserved = ReservedVersions(tmp_path / "missing" / "used.json")
    reserved.cover(1, 1)
    assert "cannot record" in caplog.text
    reserved.give_back(1)
    assert reserved.read() == HighestReserved()
