"""The wheel alone: built, installed into an environment of its own, and run outside the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 300 * PATIENCE


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Run a command, which must succeed, without this process' paths; returns its standard output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DPPO_"))
    }
    answer = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the files in git, because a build leaves files beside its sources."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT).split(
        "\0"
    ):
        if name and (ROOT / name).exists() and not name.startswith("tests/"):
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_bytes((ROOT / name).read_bytes())
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", target, sources], sources)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. It uses the dependencies of the tests' environment."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", place], place.parent)
    libraries = run(
        [place / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place
    )
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check", "--prefix", place)
    run([sys.executable, "-m", "pip", "install", *offline, "--ignore-installed", wheel], place)
    dependencies = "".join(f"{path}\n" for path in _libraries_of_this_environment())
    (Path(libraries.strip()) / "dependencies.pth").write_text(dependencies)
    script = place / "bin" / "dppo-redis"
    lines = script.read_text().splitlines(keepends=True)
    script.write_text("".join([f"#!{place / 'bin' / 'python'}\n", *lines[1:]]))
    return place


def _libraries_of_this_environment() -> list[str]:
    known = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return sorted(known | {path for path in sys.path if Path(path).name == "site-packages"})


def test_the_wheel_holds_the_four_packages_their_data_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        head = Parser().parsestr(archive.read(metadata).decode())
    folders = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == {"dppo_redis", "workers", "learner", "ops"}
    assert {"dppo_redis/py.typed", "dppo_redis/store/scripts/settle.lua", "ops/redis/none.conf"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (head["License-Expression"], head["Requires-Python"]) == ("MIT", ">=3.11")


def test_the_main_job_runs_from_the_wheel_outside_the_checkout(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    where = run([python, "-c", "import ops, dppo_redis; print(ops.__file__, dppo_redis.__file__)"], tmp_path)
    assert [Path(file).is_relative_to(environment) for file in where.split()] == [True, True]
    command = (environment / "bin" / "dppo-redis", "train", "CartPole-v1", "--total-steps", "4096", "--json")
    summary = json.loads(run(command, tmp_path).splitlines()[-1])
    assert (summary["reason"], summary["trained_steps"] >= 4096) == ("total_steps", True)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1
