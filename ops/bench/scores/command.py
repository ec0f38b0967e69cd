"""`dppo-redis bench scores run|page`: the scores of the recipes in `ops/runs`, serial and distributed.

`run` plays what is missing and adds a line for each run to scores.jsonl; `page` makes RESULTS.md and
its figure from these lines and scores_remarks.md. A run is started from committed files only, so that its
commit says what ran.
"""

import datetime
import importlib.metadata
import itertools
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.reports import PolicyScore, RunSummary
from ops.bench.arguments import BenchmarkParser
from ops.bench.results import play_missing
from ops.bench.runs import BENCH, REPOSITORY, call, run
from ops.bench.scores import figure, page
from ops.bench.scores.records import MODES, Greedy, Mode, Record, results_in, thin
from ops.screens.curve import read_metrics

RECIPES = REPOSITORY / "ops" / "runs"
RESULTS = BENCH / "scores.jsonl"
PAGE = BENCH / "RESULTS.md"
REMARKS = BENCH / "scores_remarks.md"
FIGURE = BENCH / "figures" / "scores.png"
_EPISODES = 100
_PACKAGES = ("gymnasium", "mujoco", "box2d", "torch", "numpy")


def commit_in_use() -> str:
    """The commit of the working tree, which must be what runs.

    Raises:
        SystemExit: a tracked file differs from it, the results aside.
    """
    results = [f":!{file.relative_to(REPOSITORY)}" for file in (RESULTS, PAGE, REMARKS, FIGURE)]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *results)
    if changed:
        raise SystemExit(f"commit or stash first, or the results would name a wrong commit:\n{changed}")
    return _git("rev-parse", "--short=12", "HEAD")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a score, where they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def play(key: tuple[str, Mode, int], commit: str) -> Record:
    """Train one recipe in one mode with one seed, then evaluate what it has learnt."""
    with tempfile.TemporaryDirectory(prefix="dppo-scores-") as temporary:
        return _play(*key, Path(temporary) / "run", commit)


def _play(recipe: str, mode: Mode, seed: int, directory: Path, commit: str) -> Record:
    file = (RECIPES / f"{recipe}.toml").relative_to(REPOSITORY)
    arguments = ["train" if mode == "distributed" else "serial", "--config", str(file), "--seed", str(seed)]
    summary = run(arguments, directory)
    staleness, ledger = summary.staleness, summary.ledger  # None: of a serial run
    config = load_toml(RunFiles(directory).config)
    return Record(
        recipe=recipe,
        env_id=config.env_id,
        mode=mode,
        actors=config.actors if mode == "distributed" else 0,
        seed=seed,
        commit=commit,
        command=f"dppo-redis {' '.join(arguments)}",
        trained_steps=summary.trained_steps,
        train_return=round(summary.train_return_mean or 0.0, 2),
        best=_greedy(directory, "best"),
        # The baseline keeps no checkpoints: its own evaluation of its final weights stands instead.
        last=_greedy(directory, "last") if mode == "distributed" else _own_evaluation(summary),
        train_s=round(summary.train_s, 1),
        wall_s=round(summary.wall_s, 1),
        staleness_mean=round(staleness.mean, 2) if staleness else 0.0,
        staleness_max=staleness.max if staleness else 0,
        stale_share=round(ledger.stale / max(1, ledger.stale + ledger.trained), 4) if ledger else 0.0,
        versions=versions(),
        finished=datetime.datetime.now(datetime.UTC).date().isoformat(),
        curve=_curve(directory),
    )


def _greedy(directory: Path, checkpoint: str) -> Greedy:
    options = ["--episodes", str(_EPISODES), "--checkpoint", checkpoint]
    score = TypeAdapter(PolicyScore).validate_python(call(["evaluate", str(directory), *options]))
    return Greedy(round(score.return_mean, 2), score.episodes, score.trained_steps)


def _own_evaluation(summary: RunSummary) -> Greedy:
    return Greedy(round(summary.return_mean or 0.0, 2), summary.return_episodes, summary.trained_steps)


def _curve(directory: Path) -> tuple[tuple[int, float], ...]:
    records = read_metrics(directory)
    return thin([(r.trained_steps, r.return_mean) for r in records if r.return_mean is not None])


def make_page(results: Path, file: Path, image: Path) -> None:
    """The page and its figure, from the records and the remarks alone."""
    records = results_in(results).read()
    figure.draw(records, image)
    remarks = REMARKS.read_text(encoding="utf-8")
    file.write_text(page.build(records, image.relative_to(file.parent), remarks), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = BenchmarkParser(prog="dppo-redis bench scores", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("run", help="play what has no record yet")
    playing.add_argument("--recipes", nargs="+", default=sorted(file.stem for file in RECIPES.glob("*.toml")))
    playing.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    playing.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    commands.add_parser("page", help="make the page from the records")
    options = parser.parse_args(argv)
    if options.command == "page":
        make_page(options.results, PAGE, FIGURE)
        return ExitStatus.DONE
    plan = itertools.product(options.recipes, options.modes, options.seeds)
    results = results_in(options.results.resolve())
    for record in play_missing(plan, results, partial(play, commit=commit_in_use())):
        ran = f"{record.recipe} {record.mode} seed {record.seed}"
        print(f"{ran}: {record.train_return} in {record.wall_s:.0f} s", flush=True)
    return ExitStatus.DONE
