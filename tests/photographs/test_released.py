"""This release continues runs of an earlier one: resume, evaluate, plot, --init-from, export."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.photographs.camera import kinds, masked, photograph, shape
from tests.photographs.files import first_row, tags
from tests.photographs.product import outputs_of_export
from tests.photographs.stage import ROOT, Act, Ending, environment, perform

RELEASED = Path(__file__).parent / "released"
RUNS = ("serial", "fleet", "lock_step")
_ROWS = np.array([[0.01, -0.02, 0.03, 0.04], [0.5, 1.0, -0.1, -0.6], [-1.2, 0.0, 0.15, 0.9]], np.float32)
_TINY = (
    *("serial", "CartPole-v1", "--vectorization", "sync", "--envs-per-actor", "2", "--network.hidden", "8"),
    *("--ppo.batch-steps", "64", "--ppo.minibatch-size", "32", "--total-steps", "640", "--json"),
    *("--evaluation.episodes", "2", "--ppo.update-epochs", "2"),
)
_LAST = ("--episodes", "2", "--checkpoint", "last", "--json")
_NORMALISED = "--ppo.normalise-observations"
_FROM = {
    "serial": ("released/serial", _NORMALISED),
    "fleet": ("released/fleet",),
    "lock_step": ("released/lock_step/checkpoints/checkpoint-000000020.pt",),
    "export": ("released/export", _NORMALISED),
}
_OUTPUTS = [[0.01653399, -0.01855322], [0.15586911, -0.18221821], [-0.14469782, 0.17092848]]
_RETURNS = {"serial": 64.9, "fleet": 77.9, "lock_step": 113.6, "export": 56.7}


@dataclass(frozen=True)
class Played:
    """The folder with copies of the released runs, and the endings of the commands."""

    directory: Path
    endings: Mapping[str, Ending]

    def json(self, name: str) -> dict[str, Any]:
        """The object that a command printed last."""
        ending = self.endings[name]
        assert ending.status == 0, ending.err
        values: dict[str, Any] = json.loads(ending.out.splitlines()[-1])
        return values


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run all commands together."""
    directory = tmp_path_factory.mktemp("released")
    shutil.copytree(RELEASED, directory / "released")
    acts = {
        **{f"evaluate {name}": ("evaluate", f"released/{name}", "--episodes", "10", "--json")
           for name in _FROM},
        **{f"last {name}": ("evaluate", f"released/{name}", *_LAST) for name in RUNS},
        "words": ("evaluate", "released/fleet", "--episodes", "2", "--stochastic"),
        "plot": ("plot", *(f"released/{name}" for name in RUNS), "--output", "curves.png"),
        **{f"init {name}": (*_TINY, "--run-dir", f"from-{name}", "--init-from", *source)
           for name, source in _FROM.items()},
        "fresh": (*_TINY, "--run", "fresh", "--run-dir", "fresh", "--seed", "5", "--target-return", "900"),
        "export": ("export", "released/fleet", "--to", "exported", "--onnx", "yes"),
        "export serial": ("export", "released/serial", "--to", "exported-serial", "--onnx", "no"),
    }  # fmt: skip
    endings = perform([Act(arguments, str(directory)) for arguments in acts.values()])
    return Played(directory, dict(zip(acts, endings, strict=True)))


@pytest.mark.parametrize("name", _FROM)
def test_a_released_policy_plays_as_well_as_it_did(name: str, played: Played) -> None:
    found = played.json(f"evaluate {name}")
    assert found["return_mean"] == pytest.approx(_RETURNS[name], rel=0.05)


def test_the_output_of_evaluate(played: Played) -> None:
    assert played.json("last fleet")["trained_steps"] == 1280
    said = [f"{name}\n{shape(played.json(name))}" for name in ("evaluate fleet", "last serial")]
    words = re.sub(r"\d+\.\d+", "N", played.endings["words"].out)
    photograph("evaluate.txt", "\n\n".join([*said, words]))


def test_released_runs_are_drawn(played: Played) -> None:
    assert played.endings["plot"].status == 0, played.endings["plot"].err
    assert played.endings["plot"].out == "curves.png\n"
    assert (played.directory / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", _FROM)
def test_a_new_run_starts_with_the_policy_of_a_released_run(name: str, played: Played) -> None:
    assert played.json(f"init {name}")["trained_steps"] == 640
    first, fresh = (first_row(played.directory / run) for run in (f"from-{name}", "fresh"))
    # A fresh network has nearly equal probabilities; a trained one has not.
    distances = [math.log(2) - float(row["entropy"]) for row in (first, fresh)]
    assert distances[0] > 5e-4
    assert distances[1] < 5e-5


def test_a_released_export_computes_the_same_outputs() -> None:
    assert outputs_of_export(RELEASED / "export", _ROWS) == pytest.approx(np.array(_OUTPUTS), abs=1e-5)


def test_an_export_of_this_release_holds_the_same_arrays_and_the_same_words(played: Played) -> None:
    assert played.endings["export serial"].status == 0, played.endings["export serial"].err
    directory = played.directory / "exported-serial"
    old, new = (place / "policy.safetensors" for place in (RELEASED / "export", directory))
    assert new.read_bytes() == old.read_bytes()
    old, new = (place / "policy.json" for place in (RELEASED / "export", directory))
    before, after = json.loads(old.read_text()), json.loads(new.read_text())
    # Format 2 adds the layout and a first sentence about it; all else has its name, value and place.
    del after["layout"]
    del after["how_to_act"][0]
    assert list(after) == list(before)
    assert {**after, "format": 1} == before
    photograph("export.json", (directory / "policy.json").read_text())


def test_the_arrays_of_an_export(played: Played) -> None:
    said = []
    for name in ("exported", "exported-serial"):
        arrays = safetensors.numpy.load_file(played.directory / name / "policy.safetensors")
        said += [f"{name} {key} {array.dtype} {list(array.shape)}" for key, array in sorted(arrays.items())]
    photograph("safetensors.txt", "\n".join(said))


def test_the_graph_of_an_export(played: Played) -> None:
    onnx = pytest.importorskip("onnx", reason="no onnx: pip install '.[onnx]'")
    ending = played.endings["export"]
    assert ending.status == 0, ending.err
    graph = onnx.load(str(played.directory / "exported" / "policy.onnx")).graph
    said = [_port(port) for port in (*graph.input, *graph.output)]
    said += [node.op_type for node in graph.node]
    description = json.loads((played.directory / "exported" / "policy.json").read_text())
    photograph("onnx.txt", "\n".join([ending.out, *said, json.dumps(description["onnx"])]))


def _port(port: Any) -> str:
    kind = port.type.tensor_type
    sizes = [size.dim_value or "any" for size in kind.shape.dim]
    return f"{port.name} {kind.elem_type} {sizes}"


def test_the_files_and_screens_of_a_serial_run(played: Played) -> None:
    directory = played.directory / "fresh"
    summary = played.json("fresh")
    assert json.loads((directory / "summary.json").read_text()) == summary
    said = {
        "files": "\n".join(sorted(file.name for file in directory.iterdir())),
        "config.toml": (directory / "config.toml").read_text(),
        "run.json": (directory / "run.json").read_text(),
        "best_evaluation.json": shape(json.loads((directory / "best_evaluation.json").read_text())),
        "summary": shape(summary),
        "metrics.csv": (directory / "metrics.csv").read_text().splitlines()[0],
        "row": "\n".join(kinds(first_row(directory))),
        "TensorBoard": "\n".join(tags(directory / "tensorboard")),
        "first screen": played.endings["fresh"].err.split("└")[0],
    }
    photograph("serial_run.txt", "\n\n".join(f"{name}:\n{text}" for name, text in said.items()))


@pytest.mark.parametrize("name", RUNS)
def test_a_released_run_is_resumed(name: str, tmp_path: Path) -> None:
    run = tmp_path / name
    shutil.copytree(RELEASED / name, run)
    before = (run / "metrics.csv").read_text()
    found = _resume(tmp_path, name)
    assert found["reason"] == "total_steps"
    assert (found["updates"], found["trained_steps"]) == (30, 1920)
    assert found["ledger"]["imbalance"] == 0
    after = (run / "metrics.csv").read_text()
    old, new = ([*csv.DictReader(io.StringIO(text))] for text in (before, after))
    now = {name: {"env_steps": "settled_steps"}.get(name, name) for name in old[0]}
    assert [{name: row[now[name]] for name in now} for row in new[: len(old)]] == old
    assert [line.split(",")[0] for line in after.splitlines()] == ["update", *map(str, range(1, 31))]
    assert json.loads((run / "run.json").read_text())["run"] == f"released-{name}"
    assert json.loads((run / "used.json").read_text())["epoch"] >= 2
    if name == "fleet":
        places = {str(tmp_path): "DIRECTORY", str(ROOT): "ROOT", sys.executable: "PYTHON"}
        text = re.sub(r"\S*/(redis|valkey)-server\b", "SERVER", (run / "supervisord.conf").read_text())
        photograph("supervisord.conf", masked(text, places))


def _resume(directory: Path, name: str) -> dict[str, Any]:
    """Train ten more updates; returns the summary."""
    fleet = () if name == "lock_step" else ("--actors", "1")  # fixed in lock-step mode
    arguments = ("train", "--resume", "--run-dir", name, *fleet, "--total-steps", "1920", "--json")
    command = subprocess.run(
        [sys.executable, "-m", "ops", *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert command.returncode == 0, command.stderr
    summary: dict[str, Any] = json.loads(command.stdout.splitlines()[-1])
    return summary
