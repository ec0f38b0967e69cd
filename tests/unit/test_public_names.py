"""`import dppo_redis` costs nothing: its names are loaded when they are used."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pytest

import dppo_redis

HEAVY = ("torch", "redis", "gymnasium", "numpy", "pydantic", "ops", "dppo_redis.api")


def loaded_after(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys, dppo_redis; {code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


def test_the_import_loads_nothing_else() -> None:
    loaded = loaded_after("dir(dppo_redis), dppo_redis.__version__")
    assert loaded.isdisjoint(HEAVY)
    assert {name for name in loaded if name.startswith("dppo_redis.")} == set()


def test_train_and_load_do_not_import_torch() -> None:
    loaded = loaded_after("dppo_redis.train, dppo_redis.load")
    assert "dppo_redis.api" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("name", dppo_redis.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert name in dir(dppo_redis)
    found = getattr(dppo_redis, name)
    assert name == "__version__" or found.__doc__


def test_the_list_of_names_is_the_list_of_what_can_be_loaded() -> None:
    assert set(dppo_redis.__all__) == {*dppo_redis._HOMES, "__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        importlib.import_module("dppo_redis").__getattr__("trian")


def typed(folder: Path) -> float:
    """Is checked by `mypy --strict` as the program of a user is; nobody calls it."""
    with dppo_redis.train("CartPole-v1", run_dir=folder, total_steps=1000) as run:
        assert_type(run, dppo_redis.Run)
        assert_type(run.status(), dppo_redis.RunStatus)
        summary = assert_type(run.wait(10.0), dppo_redis.RunSummary)
    assert_type(dppo_redis.load(run.directory), dppo_redis.Policy)
    return summary.train_s + run.status().learner.train_s
