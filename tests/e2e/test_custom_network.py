"""A custom network whose class changes before a resume, or which only the services cannot import."""

from pathlib import Path

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, assert_nothing_left, tree

_NETWORK = """
import os
import torch

class Mine(torch.nn.Module):
    def __init__(self, sizes, outputs):
        super().__init__()
        self.body = torch.nn.Linear(sizes.features, WIDTH)
        self.heads = torch.nn.Linear(WIDTH, outputs + 1)

    def policy(self, inputs):
        return self.heads(self.body(inputs.vector).tanh())[:, 1:]

    def value(self, inputs):
        return self.heads(self.body(inputs.vector).tanh())[:, 0]
"""
_MISSING = """
if "DPPO_PARENT_PID" in os.environ:
    raise ImportError("no such library where the services run")
"""
_ARGUMENTS = (
    "CartPole-v1",
    "--network.custom",
    "mine:Mine",
    "--total-steps",
    "2048",
    "--run-dir",
    "run",
    "--json",
)


def write_network(directory: Path, width: int, extra: str = "") -> None:
    (directory / "mine.py").write_text(_NETWORK.replace("WIDTH", str(width)) + extra)


def test_a_class_that_was_changed_is_refused_on_resume_before_anything_starts(tmp_path: Path) -> None:
    write_network(tmp_path, width=8)
    with Command("serial", *_ARGUMENTS, cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.DONE, command.err
    write_network(tmp_path, width=16)
    before = tree(tmp_path / "run")
    with Command("train", "--resume", "--run-dir", "run", "--total-steps", "9999", cwd=tmp_path) as command:
        assert command.wait(40) == ExitStatus.CONFIGURATION, command.err
        (line,) = command.error_lines
        assert "size mismatch for custom.body.weight" in line
        assert line.endswith("was its class changed?")
        assert_nothing_left(command)
    assert tree(tmp_path / "run") == before


def test_an_error_that_only_services_see_ends_the_command_with_78_and_the_cause(tmp_path: Path) -> None:
    write_network(tmp_path, 8, _MISSING)
    with Command("train", *_ARGUMENTS, cwd=tmp_path) as command:
        assert command.wait(60) == ExitStatus.CONFIGURATION, command.err
        assert command.summary()["reason"] == "failed"
        assert "has stopped for good (status 78)" in command.error_lines[-1]
        assert "no such library where the services run" in command.error_lines[-1]
        assert_nothing_left(command)
