"""The article's version on Ray beside the product: same task, hyper-parameters and number of actors.

`ops/bench/peers/programs/on_ray.py` is written as the article describes it, with a plain torch learner. It
broadcasts after every update and every 5 updates. All train until the mean of the last 100 returns reaches
300. Both have two workers with 8 environments each.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median

from ops.bench.article.findings import Finding
from ops.bench.peers import product
from ops.bench.peers.environments import RAY, Outcome
from ops.bench.rounds import in_rounds, ratios_to, shown

REPEATS = 5
ACTORS = 2
STEPS = 200_000  # at most
TARGET = 300.0  # mean of the last 100 returns
EVERY = (1, 5)
_BASE = "on Ray, every update"
_REQUIRED = RAY


def how_to_install() -> str | None:
    """The command that installs Ray; None where it is installed."""
    return None if _REQUIRED.python() is not None else _REQUIRED.how_to_install()


def measure(repeats: int) -> Finding:
    """Both, in turn."""
    kinds: dict[str, Callable[[int], Outcome]] = {
        _BASE if every == 1 else f"on Ray, every {every} updates": partial(_on_ray, every) for every in EVERY
    }
    kinds |= {
        "dppo_redis" if every == 1 else f"dppo_redis, every {every} updates": partial(_ours, every)
        for every in EVERY
    }
    found = in_rounds(kinds, repeats)
    rows = [[name, *_cells(runs)] for name, runs in found.items()]
    speed = {name: [one.steps_per_s for one in runs] for name, runs in found.items()}
    ratios = {f"steps/s, {name} by Ray every update": v for name, v in ratios_to(_BASE, speed).items()}
    if all(one.target_s is not None for runs in found.values() for one in runs):
        times = {name: [one.target_s or 0.0 for one in runs] for name, runs in found.items()}
        by_time = ratios_to(_BASE, times)
        ratios |= {f"time to {TARGET:g}, {name} by Ray every update": v for name, v in by_time.items()}
    samples = {name: [asdict(one) for one in runs] for name, runs in found.items()}
    header = ["", "steps/s", f"s to {TARGET:g}", f"steps to {TARGET:g}", "reached", "staleness"]
    return Finding(header, rows, ratios, samples)


def _cells(runs: Sequence[Outcome]) -> list[str]:
    reached = [one for one in runs if one.target_s is not None]
    return [
        shown([one.steps_per_s for one in runs], 0),
        shown([one.target_s or 0.0 for one in reached], 1) if reached else "-",
        shown([float(one.target_steps or 0) for one in reached], 0) if reached else "-",
        f"{len(reached)} of {len(runs)}",
        f"{median(one.staleness or 0.0 for one in runs):.1f}",
    ]


def _on_ray(every: int, number: int) -> Outcome:
    return RAY.play(f"{ACTORS} {every}", STEPS, TARGET, seed=number + 1)


def _ours(every: int, number: int) -> Outcome:
    words = ["train", "CartPole-v1", "--actors", str(ACTORS), "--envs-per-actor", "8"]
    words += ["--publish-every", str(every), "--max-staleness", str(every + 4)]
    return product.play(words, STEPS, TARGET, seed=number + 1)
