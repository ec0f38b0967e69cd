"""Links, commands and flags of the documents exist. `tests/e2e/test_documents.py` runs the snippets."""

import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dppo_redis.artefacts.config_file import load_toml
from ops.cli import COMMANDS, main
from tests.documents import ROOT, blocks, documents, links

_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*(?:\.[a-z][\w-]*)*(?![\w-]|\.\*)")
_CODE = re.compile(r"`([^`\n]+)`")
_OF_OTHERS = {  # flags of other programs that the documents name
    *("--port", "--bind", "--protected-mode", "--dir", "--aclfile", "--tls-port"),
    *("--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file", "--no-deps", "--strict"),
}
_MOST_LINES = {"README.md": 200, "ARCHITECTURE.md": 200}


@pytest.mark.parametrize("name", _MOST_LINES)
def test_the_pages_that_lead_are_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= _MOST_LINES[name]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert [link for link in links(document) if not (document.parent / link).exists()] == []


@cache
def flags_of(command: str) -> frozenset[str]:
    """All flags in the help of a command, or of a benchmark (`bench NAME`)."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return frozenset(_FLAG.findall(text.getvalue()))


def of_this_release() -> list[Path]:
    """All but the page that names flags of older releases."""
    return [document for document in documents() if document.name != "CHANGELOG.md"]


def commands_in(document: Path) -> Iterator[tuple[str, str]]:
    """(command, its whole line) of each `dppo-redis COMMAND ...` in a block or in code within a line.

    The command of a benchmark is `bench NAME`.
    """
    lines = [
        line for block in blocks(document) if block.language in ("bash", "text") for line in block.commands()
    ]
    for line in [*lines, *_CODE.findall(document.read_text())]:
        found = re.match(r"(?:\.venv/bin/)?dppo-redis (bench [a-z_]+|[a-z]+)\b", line)
        if found:
            yield found[1], line


@pytest.mark.parametrize("document", of_this_release(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_its_flags_exist(document: Path) -> None:
    for command, line in commands_in(document):
        assert command.split()[0] in COMMANDS, line
        assert set(_FLAG.findall(line)) <= flags_of(command) | {"--help"}, line


def test_every_configuration_in_a_document_can_be_read(tmp_path: Path) -> None:
    texts = [block.text for page in documents() for block in blocks(page) if block.language == "toml"]
    assert texts
    for text in texts:
        (tmp_path / "config.toml").write_text(text)
        assert load_toml(tmp_path / "config.toml").env_id


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [
        c for page in of_this_release() for b in blocks(page) if b.language == "bash" for c in b.commands()
    ]
    named = {command.split()[1] for command in commands if command.startswith("make ")}
    assert {"train", "test"} <= named <= targets


def test_every_flag_that_the_pages_for_users_name_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    benchmarks = {c for page in pages for c, line in commands_in(page) if c != "bench" and "bench" in c}
    commands = [c for c in COMMANDS if c != "bench"]
    known = frozenset[str]().union(*map(flags_of, [*commands, *benchmarks])) | _OF_OTHERS
    named = {(page.name, flag) for page in pages for flag in _FLAG.findall(page.read_text())}
    assert len(named) > 50
    assert sorted((page, flag) for page, flag in named if flag not in known) == []
