"""Which libraries a command imports until it answers: each costs some tenths of a second of every start."""

import json
import subprocess
import sys

import pytest

from dppo_redis.protocol.reports import ActorReport
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from tests.conftest import RedisServer
from tests.patience import PATIENCE

LARGE = ("torch", "tensorboard", "matplotlib")
ALL = (*LARGE, "gymnasium", "numpy", "pydantic")
_RUN = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from ops.cli import main

libraries, found = json.loads(sys.argv[1]), []
for command in json.loads(sys.argv[2]):
    with suppress(SystemExit), redirect_stdout(StringIO()) as text, redirect_stderr(StringIO()):
        main(command)
    found.append([text.getvalue(), [library for library in libraries if library in sys.modules]])
print(json.dumps(found))
"""


def answered(libraries: tuple[str, ...], *commands: list[str]) -> list[tuple[str, list[str]]]:
    """What each command prints, one after another in a new process, and which libraries it then has."""
    words = [sys.executable, "-c", _RUN, json.dumps(libraries), json.dumps(commands)]
    finished = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60 * PATIENCE)
    return [(text, imported) for text, imported in json.loads(finished.stdout)]


def test_status_draws_a_run_and_prints_it_as_json_without_any_of_them(
    redis_server: RedisServer, client: Client, keys: RunKeys
) -> None:
    client.hset(keys.status, mapping={"state": "training", "update": 7, "trained_steps": 14_336})
    Registry(client, keys).beat(0, ActorReport(boot=1))
    run = ["status", keys.run, "--redis", redis_server.url]
    (drawn, imported), (printed, _) = answered(ALL, run, [*run, "--json"])
    assert "14,336" in drawn
    assert json.loads(printed)["learner"]["update"] == 7
    assert imported == []


@pytest.mark.parametrize(
    ("libraries", "commands"),
    [
        (("tyro", "redis", *ALL), [[], ["--help"], ["--version"], ["bench", "--help"]]),
        (ALL, [["acl", "--help"], ["quarantine", "--help"], ["status", "--help"]]),
        (("gymnasium", "valkey", *LARGE), [["export", "--help"], ["train", "--help"], ["train", "--x"]]),
        (LARGE, [["evaluate", "--help"], ["enjoy", "--help"], ["actor", "--help"], ["evaluator", "--help"]]),
        (("torch", "tensorboard", "gymnasium"), [["plot", "--help"]]),
    ],
    ids=["command", "looking", "starting", "playing", "plot"],
)
def test_help_imports_no_library_that_the_command_needs_later(
    libraries: tuple[str, ...], commands: list[list[str]]
) -> None:
    assert [imported for _, imported in answered(libraries, *commands)] == [[]] * len(commands)


def test_a_learner_imports_no_environments() -> None:
    script = "import sys, learner.__main__; print(sorted({'gymnasium', 'matplotlib'} & {*sys.modules}))"
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 * PATIENCE)
    assert printed.stdout.strip() == "[]"
