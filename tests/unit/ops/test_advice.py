"""Messages advise only flags that their command has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.command_line.declared import options_of
from learner.__main__ import LearnerOptions
from ops.commands.acl import AclOptions
from ops.commands.enjoy import EnjoyOptions
from ops.commands.evaluate import EvaluateOptions
from ops.commands.export import ExportOptions
from ops.commands.plot import PlotOptions
from ops.commands.quarantine import QuarantineOptions
from ops.commands.status import StatusOptions
from ops.options import SerialOptions, TrainOptions
from workers.__main__ import ActorOptions
from workers.evaluate import EvaluatorOptions

ROOT = Path(__file__).resolve().parents[3]
TRAINING = (TrainOptions, SerialOptions)  # the advice must hold for each of these commands
PLAYING = (EvaluateOptions, EnjoyOptions, ExportOptions)
# The commands that print the messages of a file or folder; the first matching entry counts.
SPEAKERS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("ops/commands/acl.py", (AclOptions,)),
    ("ops/commands/enjoy.py", (EnjoyOptions,)),
    ("ops/commands/evaluate.py", (EvaluateOptions,)),
    ("ops/commands/export.py", (ExportOptions,)),
    ("ops/commands/plot.py", (PlotOptions,)),
    ("ops/commands/quarantine.py", (QuarantineOptions,)),
    ("ops/commands/status.py", (StatusOptions,)),
    ("ops/commands/serial.py", (SerialOptions,)),
    ("ops/commands/train.py", (TrainOptions,)),
    ("ops/policies/onnx_graph.py", (ExportOptions,)),
    ("ops/policies/video.py", (EnjoyOptions,)),
    ("ops/policies", PLAYING),
    ("dppo_redis/artefacts/best_policy.py", PLAYING),
    ("ops/fleet/shared_redis.py", (TrainOptions,)),
    ("ops/fleet/run_directory.py", TRAINING),
    ("ops/fleet/run_lock.py", TRAINING),
    ("ops/fleet/start_decision.py", TRAINING),
    ("ops/fleet/machine_limits.py", (TrainOptions,)),
    ("ops/screens", TRAINING),
    ("ops/serial", (SerialOptions,)),
    ("ops/options.py", TRAINING),
    ("learner/leadership/lease.py", (LearnerOptions,)),
    ("learner", TRAINING),
    ("dppo_redis/protocol", TRAINING),
    ("dppo_redis/environments", TRAINING),
    ("dppo_redis/store/run_store.py", (StatusOptions, QuarantineOptions)),
    ("dppo_redis/store/credentials.py", (StatusOptions, ActorOptions, EvaluatorOptions, LearnerOptions)),
    ("dppo_redis/store", (TrainOptions,)),
    ("workers/episodes.py", TRAINING),
    ("workers/evaluate.py", (EvaluatorOptions,)),
    ("workers", (ActorOptions,)),
)
# Advice for another command, which the message names.
FOR_ANOTHER = {
    ("workers/join.py", "--actors"),  # of the run's own command
    ("ops/commands/train.py", "--run"),  # `dppo-redis status --run`, which train has, too
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?:\.[a-z][a-z-]*)?")


def texts(file: Path) -> Iterator[str]:
    """The texts in a file without its docstrings."""
    tree = ast.parse(file.read_text())
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    alone = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, described)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def advice() -> list[tuple[str, str, type]]:
    """(file, flag, options of a command that prints the message)."""
    found = []
    for top in ("dppo_redis", "workers", "learner", "ops"):
        for file in sorted((ROOT / top).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            speakers = next((kinds for place, kinds in SPEAKERS if name.startswith(place)), ())
            if not speakers or not _FLAG.search(file.read_text()):
                continue
            flags = {flag for text in texts(file) for flag in _FLAG.findall(text)}
            found += [(name, flag, kind) for flag in sorted(flags) for kind in speakers]
    return found


ADVICE = [found for found in advice() if found[:2] not in FOR_ANOTHER]


def test_advice_is_found() -> None:
    assert len(ADVICE) > 60
    assert ("ops/fleet/run_directory.py", "--resume", SerialOptions) in ADVICE


@pytest.mark.parametrize(
    ("file", "flag", "kind"), ADVICE, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_command_has_the_flags_that_its_messages_advise(file: str, flag: str, kind: type) -> None:
    assert flag in {option.flag for option in options_of(kind)} | {"--help"}, f"{file} advises it"
