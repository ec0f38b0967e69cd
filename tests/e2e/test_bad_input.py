"""Each command refuses bad input within seconds, with one line that names the cause, and leaves no files.

These cases start processes, look at directories or reach for Redis. For mistakes that show in the command
line or in its file see `tests/photographs/test_command_line.py`.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import Command, tree

_AT_ONCE = 3
_NOBODY = "redis://127.0.0.1:1/0"  # a port that nothing listens on
_OF_A_RUN = '{"run": "other"}\n'
_MODULE_THAT_BREAKS = "raise RuntimeError('no licence for the simulator')\n"


@dataclass(frozen=True)
class Case:
    """A command line, and the words of its error message."""

    name: str
    command: str
    says: tuple[str, ...]  # words of the message
    status: int = ExitStatus.CONFIGURATION
    traceback: bool = False  # lines of the user's code before the message
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 15.0


CASES = [
    Case("unknown environment id", "train NoSuchEnv-v7", ("NoSuchEnv",)),
    Case("unknown version", "train CartPole-v9", ("CartPole-v9",)),
    Case("unknown module", "train no_such_module:Walk-v0", ("no_such_module",)),
    Case("unknown id in a module", "train tests.envs:Nope-v0", ("Nope",)),
    Case("module that raises", "train breaks:Walk-v0", ("breaks:Walk-v0", "licence")),
    Case("wrong argument of the environment", "train CartPole-v1 --env-kwargs colour 3", ("colour",)),
    Case("no budget", "train CartPole-v1 --total-steps 0", ("total_steps", "1")),
    Case("name of another meaning", "train CartPole-v1 --batch-size 64", ("--ppo.minibatch-size",)),
    Case("budget that is not whole", "serial CartPole-v1 --total-steps 1.5e0", ("1.5e0", "whole")),
    Case("swallowed environment", "train --wrappers TimeLimit CartPole-v1", ("--wrappers", "ENV")),
    Case("key of another table", "train --config level.toml", ("learning_rate", "ppo.learning_rate")),
    Case("two environments", "train CartPole-v1 Acrobot-v1", ("unexpected", "Acrobot-v1")),
    Case("resume without a run", "train --resume", ("--run NAME", "mine")),
    Case("run of a nearly right name", "evaluate --run mime", ("mime", "mine")),
    Case(
        "Redis that cannot be reached",
        f"train CartPole-v1 --redis {_NOBODY}",
        ("127.0.0.1:1", "does not answer"),
        ExitStatus.UNAVAILABLE,
    ),
    Case(
        "status of a Redis that cannot be reached",
        f"status --redis {_NOBODY}",
        ("127.0.0.1:1", "does not answer"),
        ExitStatus.UNAVAILABLE,
    ),
    Case("missing password file", f"train CartPole-v1 --redis {_NOBODY}", ("gone.txt",),
         environment={"DPPO_REDIS_PASSWORD_FILE": "gone.txt"}),
    Case("unsupported actions", "train tests.envs:WholeActions-v0", ("Box", "int")),
    Case("unsupported observations", "train tests.envs:Spoken-v0", ("Text", "mission", "FilterObservation")),
    Case("unknown wrapper", "train CartPole-v1 --wrappers NoSuch(x=1)", ("NoSuch", "wrappers")),
    Case("mask of another shape", "train tests.envs:WronglyMasked-v0", ("action_mask", "5", "4")),
    Case("missing network", "train CartPole-v1 --network.custom gone:Net", ("gone:Net",)),
    Case("the API of old Gym", "train tests.envs:OldApi-v0", ("OldApi", "gymnasium 1.x")),
    Case("the API of older Gym", "train tests.envs:OldestApi-v0", ("OldestApi", "gymnasium 1.x")),
    Case(
        "environment that raises at once",
        "train tests.envs:RaisesInReset-v0 --env-kwargs at 1 --env-retry-s 1",
        ("RaisesInReset", "the simulator lost its licence", "tried again for 1 s"),
        ExitStatus.ENVIRONMENT_BROKEN,
        traceback=True,
    ),
    Case("normalising wrapper", "train CartPole-v1 --wrappers NormalizeReward", ("ppo.normalise_returns",)),
    Case("run directory below a file", "train CartPole-v1 --run-dir file/run", ("file/run", "--run-dir")),
    Case("directory of another run", "train CartPole-v1 --run-dir other", ("other", "--overwrite")),
    Case("foreign directory", "train CartPole-v1 --run-dir foreign", ("foreign", "--run-dir")),
    Case(
        "foreign directory to overwrite",
        "train CartPole-v1 --run-dir foreign --overwrite",
        ("foreign", "--run-dir"),
    ),
    Case("nothing to resume", "train --run-dir foreign --resume", ("foreign", "resume")),
    Case("other run to resume", "train CartPole-v1 --run mine --run-dir other --resume", ("other", "mine")),
    Case("serial: unknown environment", "serial NoSuchEnv-v7", ("NoSuchEnv",)),
    Case("serial: foreign directory", "serial CartPole-v1 --run-dir foreign --overwrite", ("foreign",)),
]  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """Exit status, output and duration of a command."""

    status: int
    took_s: float
    error_lines: list[str]
    output: str
    left: list[str]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def _furnish(directory: Path) -> Path:
    """Write the files that the cases name into a working directory."""
    for name, text in {
        "file": "not a directory\n",
        "foreign/thesis.txt": "years of work\n",
        "other/run.json": _OF_A_RUN,
        "other/config.toml": 'env_id = "CartPole-v1"\n',
        "breaks.py": _MODULE_THAT_BREAKS,
        "level.toml": "learning_rate = 1e-4\n",
        "runs/mine/run.json": '{"run": "mine"}\n',
    }.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return directory


def _run(case: Case, directory: Path) -> Ending:
    before = tree(directory)
    with Command(*case.command.split(), cwd=directory, environment=case.environment) as command:
        status = command.wait(case.seconds)
        return Ending(
            status=status,
            took_s=time.monotonic() - command.started,
            error_lines=command.error_lines,
            output=command.out,
            left=command.survivors(),
            before=before,
            after=tree(directory),
        )


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ending]:
    """Run all commands, a few at a time."""
    places = [_furnish(tmp_path_factory.mktemp("bad")) for _ in CASES]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(_run, CASES, places)
        return {case.name: ending for case, ending in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_ends_in_one_line_that_names_the_cause(case: Case, endings: Mapping[str, Ending]) -> None:
    ending = endings[case.name]
    assert ending.status == case.status
    assert ("Traceback" in "\n".join(ending.error_lines)) == case.traceback
    own = [line for line in ending.error_lines if line.startswith("dppo-redis: ")]
    if not case.command.startswith("actor"):  # a service logs its line
        assert own == ending.error_lines[-1:]
    assert all(word in ending.error_lines[-1] for word in case.says), ending.error_lines
    assert ending.output == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_leaves_no_process_and_no_file(case: Case, endings: Mapping[str, Ending]) -> None:
    ending = endings[case.name]
    assert ending.left == []
    assert ending.after == ending.before


@pytest.mark.parametrize("name", ["Redis that cannot be reached", "status of a Redis that cannot be reached"])
def test_interactive_commands_wait_five_seconds_for_a_missing_redis(
    name: str, endings: Mapping[str, Ending]
) -> None:
    assert 3.0 < endings[name].took_s < 12.0
