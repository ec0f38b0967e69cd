"""Runs all commands and snippets of the documents as written, section by section, outside the checkout.

A section is run in a directory of its own: its files are written, then its blocks are run in their order.
Quick sections are part of `make test`, the others of `make test-all`. `replaced` lists the replacements.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from ops.fleet.broker import find_server
from tests.certificates import find_tls_server, make_certificates, why_no_tls
from tests.conftest import end_with_tests
from tests.documents import NOT_RUN, ROOT, Block, blocks, documents, reason_not_to_run
from tests.e2e.support import free_port
from tests.patience import PATIENCE

_QUICK = {
    ("README.md", "Your own environment"),
    ("docs/networks-and-spaces.md", "A network of your own"),
    ("docs/networks-and-spaces.md", "Play a trained policy"),
}
_LIMIT_S = 240
_WAIT_FOR_PORT = "until (exec 3<>/dev/tcp/127.0.0.1/{}) 2>/dev/null; do sleep 0.05; done"
Section = tuple[str, str]


def all_blocks() -> list[Block]:
    found = [block for document in documents() for block in blocks(document)]
    return [block for block in found if block.language in ("bash", "python", "toml")]


def sections() -> Sequence[object]:
    """One parameter for each section with a block that is run."""
    found = []
    for (document, section), group in groupby(all_blocks(), lambda b: (b.document, b.section)):
        if any(b.language != "bash" or script_of(b, {}) for b in group):
            marks = () if (document, section) in _QUICK else (pytest.mark.slow,)
            found.append(pytest.param((document, section), id=f"{document}: {section}", marks=marks))
    return found


def replaced(directory: Path) -> dict[str, str]:
    """Texts of commands and their replacements in the test: other machines, and directories of the system."""
    plain, encrypted = free_port(), free_port()
    return {
        "machine-1": "127.0.0.1",
        "--bind 0.0.0.0 --protected-mode no": "--bind 127.0.0.1",
        "6379": str(plain),
        "6380": str(encrypted),
        "/etc/dppo": str(directory / "users"),
        # Half a million steps would take a minute, which is too long for a test of an outside actor.
        "--run shared": "--run shared --total-steps 40000",
    }


def script_of(block: Block, replacements: dict[str, str]) -> str:
    """A bash script. Servers run in the background, as does a `train` that an actor of the block joins."""
    lines = []
    for line in block.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"\s+#.*", "", line).strip()
        if not command or command.startswith("#") or reason_not_to_run(command):
            continue
        is_guest = command.startswith("dppo-redis actor")
        for old, new in replacements.items():
            command = command if is_guest and "--total-steps" in new else command.replace(old, new)
        if command.startswith("redis-server"):
            port = re.findall(r"port (\d{2,})", command)[-1]
            lines += [f"{command} --save '' &", _WAIT_FOR_PORT.format(port)]
        elif command.startswith("dppo-redis train") and "dppo-redis actor" in block.text:
            lines.append(f"{command} & train=$!")
        else:
            lines.append(command)
            lines += ["wait $train"] if is_guest else []
    return "\n".join(lines)


def run(command: list[str], directory: Path) -> None:
    """Run a process, which must succeed, in its own process group; end all processes of the group."""
    tools = directory / "tools"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DPPO_")}
    environment["PATH"] = f"{tools}:{Path(sys.executable).parent}:{environment['PATH']}"
    with (directory / "output").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_tests,
        )
        try:
            status = process.wait(_LIMIT_S * PATIENCE)
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        output.seek(0)
        assert status == 0, f"{command[-1]}\nended with {status}:\n{output.read()}"


def run_block(block: Block, directory: Path, replacements: dict[str, str]) -> None:
    if block.language == "bash":
        script = script_of(block, replacements)
        ending = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
        run(["bash", "-c", f"set -euo pipefail\n{ending}\n{script}"], directory)
    elif block.language == "python" and block.file_name is None:
        (directory / "snippet.py").write_text(block.text)
        run([sys.executable, "snippet.py"], directory)


@pytest.mark.parametrize("section", sections())
def test_the_snippets_of_a_section_run(section: Section, tmp_path: Path) -> None:
    found = [block for block in all_blocks() if (block.document, block.section) == section]
    text = "".join(block.text for block in found)
    server: str | None = find_server()
    if "tls-port" in text:
        if why_no_tls() is not None:
            pytest.skip(why_no_tls() or "")
        make_certificates(tmp_path)
        server = find_tls_server()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "redis-server").symlink_to(shutil.which(str(server)) or "")
    for block in found:
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text)
    replacements = replaced(tmp_path)
    for block in found:
        run_block(block, tmp_path, replacements)


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    commands = [command for b in all_blocks() if b.language == "bash" for command in b.commands()]
    assert [start for start in NOT_RUN if not any(c.startswith(start) for c in commands)] == []
    assert (ROOT / "ops" / "runs" / "hopper.toml").exists()
