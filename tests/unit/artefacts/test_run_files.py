"""The names of all files of a run's directory."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.artefacts.run_files import RunFiles, _Named, checkpoint_name, event_log_file, milestone_name

ROOT = Path(__file__).parents[3]
FILES = RunFiles(Path("/runs/lander-7"))
NAMES = [name for name, value in vars(RunFiles).items() if isinstance(value, _Named)]
SPELLED = [getattr(FILES, name).name for name in NAMES] + ["supervisord.log", ".jsonl"]


def texts(file: Path) -> Iterator[str]:
    """All texts of a module but its docstrings, which may explain."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained:
            yield node.value


def spells(text: str, name: str) -> bool:
    """A name with an ending may stand anywhere in a text; a folder's name is a word of its own elsewhere."""
    return name in text if "." in name else bool(re.search(rf"(^|/){name}($|/)", text))


def test_no_other_file_spells_the_name_of_a_file_of_a_run() -> None:
    """Benchmarks have results of their own."""
    holders = {
        (file.relative_to(ROOT).as_posix(), name)
        for folder in ("dppo_redis", "workers", "learner", "ops")
        for file in (ROOT / folder).rglob("*.py")
        for text in texts(file)
        for name in SPELLED
        if spells(text, name) and not (name == ".jsonl" and "bench" in file.parts)
    }
    assert {file for file, _ in holders} == {"dppo_redis/artefacts/run_files.py"}
    assert {name for _, name in holders} == {name for name in SPELLED if name != "supervisord.log"}


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_in_the_directory_or_among_the_logs(name: str) -> None:
    assert getattr(FILES, name).parent in (FILES.path, FILES.logs)


def test_no_two_files_are_the_same() -> None:
    files = [getattr(FILES, name) for name in NAMES] + [FILES.log("learner"), FILES.log("supervisord")]
    assert len(set(files)) == len(files) >= 14


def test_the_artefacts_are_all_files_except_the_lock_and_end_with_the_identity() -> None:
    inside = {getattr(FILES, name) for name in NAMES if getattr(FILES, name).parent == FILES.path}
    assert set(FILES.artefacts) == inside - {FILES.lock}
    assert len(set(FILES.artefacts)) == len(FILES.artefacts)
    assert FILES.artefacts[-1] == FILES.identity


def test_the_names_are_those_of_every_release() -> None:
    """Runs of earlier releases are resumed, played and plotted."""
    assert {name: getattr(FILES, name).relative_to(FILES.path).as_posix() for name in NAMES} == {
        "best_evaluation": "best_evaluation.json",
        "best_policy": "best_policy.msgpack",
        "checkpoints": "checkpoints",
        "config": "config.toml",
        "curve": "curve.png",
        "fleet": "supervisord.conf",
        "fleet_errors": "logs/supervisord.stderr",
        "identity": "run.json",
        "lock": "run.lock",
        "logs": "logs",
        "metrics": "metrics.csv",
        "spaces": "spaces.json",
        "summary": "summary.json",
        "tensorboard": "tensorboard",
        "used": "used.json",
    }
    assert checkpoint_name(7) == "checkpoint-000000007.pt"
    assert milestone_name(2048) == "milestone-000000002048.pt"
    assert FILES.log("actor_000") == FILES.path / "logs" / "actor_000.log"
    assert event_log_file(Path("/events"), "learner") == Path("/events/learner.jsonl")
