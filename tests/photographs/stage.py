"""Runs many command lines as children of one process, so that large libraries are imported once.

`python -m tests.photographs.stage` reads a JSON list of acts from standard input and answers with a list
of endings. Each act gets a process, streams and a working directory of its own, as from a shell.
"""

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ops import cli

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    *("train", "serial", "evaluate", "enjoy", "export", "plot", "bench", "status", "acl", "quarantine"),
    *("actor", "learner", "evaluator"),
)
_AT_ONCE = 4  # several of them mostly wait
_LONGEST_S = 480
_LONGEST_ACT_S = 180  # SIGALRM ends an act that takes longer


@dataclass(frozen=True)
class Act:
    """A command line with its environment variables and directory."""

    arguments: Sequence[str]
    cwd: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The command line as a shell shows it."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*words, "dppo-redis", *self.arguments])


@dataclass(frozen=True)
class Ending:
    """The exit status and output of an act."""

    status: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """Neutral environment variables: width 100, no colours, no settings of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DPPO_", "PYTHON"))}
    kept.pop("FORCE_COLOR", None)
    own = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    return {**kept, **own}


def perform(acts: Sequence[Act]) -> list[Ending]:
    """Run all acts in this order, a few at a time."""
    stage = subprocess.run(
        [sys.executable, "-m", "tests.photographs.stage"],
        input=json.dumps([asdict(act) for act in acts]),
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    assert stage.returncode == 0, stage.stderr
    return [Ending(**values) for values in json.loads(stage.stdout)]


def _command(arguments: Sequence[str]) -> int:
    """Run a command without a guard, because each act has its own process."""
    sys.argv = ["dppo-redis", *arguments]
    try:
        return cli.main(arguments)
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
            return 1
        return ending.code or 0


def _start(act: Act, streams: Sequence[Path]) -> int:
    """Fork a child that plays an act; returns its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for number, file in enumerate(streams, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(act.environment)
        os.chdir(act.cwd)
        signal.alarm(_LONGEST_ACT_S)
        status = _command(act.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    """Import the libraries, play the acts, print the endings."""
    acts = [Act(**values) for values in json.load(sys.stdin)]
    with contextlib.redirect_stdout(io.StringIO()):
        for name in COMMANDS:
            _command([name, "--help"])
    gc.freeze()  # children copy less memory
    with tempfile.TemporaryDirectory() as place:
        streams = [
            [Path(place, f"{number}.{name}") for name in ("out", "err")] for number in range(len(acts))
        ]
        playing: dict[int, int] = {}
        statuses: dict[int, int] = {}
        for number, act in enumerate(acts):
            if len(playing) == _AT_ONCE:
                child, status = os.wait()
                statuses[playing.pop(child)] = os.waitstatus_to_exitcode(status)
            playing[_start(act, streams[number])] = number
        while playing:
            child, status = os.wait()
            statuses[playing.pop(child)] = os.waitstatus_to_exitcode(status)
        texts = [[file.read_text(encoding="utf-8") for file in files] for files in streams]
    endings = [Ending(statuses[number], out, err) for number, (out, err) in enumerate(texts)]
    json.dump([asdict(ending) for ending in endings], sys.stdout)


if __name__ == "__main__":
    main()
