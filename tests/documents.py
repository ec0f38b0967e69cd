"""The documents as data: fenced blocks, links, and which commands no test runs, with the reason."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LANGUAGES = {"bash", "python", "toml", "text", ""}

NOT_RUN = {  # a command, or its beginning -> why no test runs it
    "make ": "needs a package index, or runs all tests; test_wheel.py runs the main job",
    "python3 -m venv .venv": "needs a package index; test_wheel.py installs the wheel",
    "python3 -m venv .peers": "needs a package index",
    ".peers/": "needs a package index",
    ".venv/bin/": "needs a package index; test_wheel.py installs the wheel",
    "dppo-redis bench ": "takes minutes; the benchmarks have tests of their own, and the list is run",
    "dppo-redis train --config ops/runs/hopper.toml": "needs MuJoCo and an hour",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    section: str  # the heading above it
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """A block whose first line is `# NAME.py` or `# NAME.toml` is a file of this name."""
        found = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None

    def commands(self) -> list[str]:
        """The commands of a bash block, each on one line and without its comment."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(shlex.split(line, comments=True)) for line in lines if line.split("#")[0].strip()]


def documents() -> list[Path]:
    """README, the pages of docs/, the runbook and the other pages that people read first."""
    names = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "ops/README.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path) -> Iterator[Block]:
    """All fenced blocks of a document, in order."""
    text = document.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        language, body = match[1], match[2]
        assert language in _LANGUAGES, f"{document.name}: a block of {language}"
        headings = re.findall(r"^##+ (.*)$", text[: match.start()], re.MULTILINE)
        section = headings[-1] if headings else text.partition("\n")[0].lstrip("# ")
        yield Block(str(document.relative_to(ROOT)), section, language, body)


def links(document: Path) -> Iterator[str]:
    """Targets of all links that stay within the repository, without their anchors."""
    for match in _LINK.finditer(document.read_text(encoding="utf-8")):
        if not match[1].startswith(("http://", "https://", "#")):
            yield match[1].partition("#")[0]


def reason_not_to_run(command: str) -> str | None:
    """Why no test runs this command; None if a test does."""
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)
