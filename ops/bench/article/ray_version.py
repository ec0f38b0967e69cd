"""The article's version on Ray beside the product: same task, hyper-parameters and number of actors.

`ops/bench/peers/programs/on_ray.py` is written as the article describes it, with a plain torch learner. It
broadcasts after every update and every 5 updates. Both are given two workers with 8 environments each.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import median

from ops.bench.article.findings import Finding
from ops.bench.peers.command import ARTICLE, outcome_of
from ops.bench.peers.environments import RAY, Outcome
from ops.bench.rounds import in_rounds, ratios_to, shown
from ops.bench.runs import run

REPEATS = 5
ACTORS = 2
STEPS = 100_000
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
    rows = [
        [
            name,
            shown([one.steps_per_s for one in runs], 0),
            shown([one.score for one in runs], 0),
            f"{median(one.staleness or 0.0 for one in runs):.1f}",
        ]
        for name, runs in found.items()
    ]
    speed = {name: [one.steps_per_s for one in runs] for name, runs in found.items()}
    ratios = {f"steps/s, {name} by Ray every update": v for name, v in ratios_to(_BASE, speed).items()}
    samples = {name: [asdict(one) for one in runs] for name, runs in found.items()}
    return Finding(["", "steps/s", "last 100 returns", "staleness"], rows, ratios, samples)


def _on_ray(every: int, number: int) -> Outcome:
    return RAY.play(f"{ACTORS} {every}", STEPS, target=None, seed=number + 1)


def _ours(every: int, number: int) -> Outcome:
    words = ["train", "CartPole-v1", "--actors", str(ACTORS), "--total-steps", str(STEPS), *ARTICLE]
    words += ["--publish-every", str(every), "--max-staleness", str(every + 4)]
    return outcome_of(run([*words, "--seed", str(number + 1), "--evaluation.enabled", "false"]))
