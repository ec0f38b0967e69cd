"""Publishing weights every 1, 2, 5 and 10 updates: "over 20 % faster" at 5 to 10?

Two networks: the default one (19 KB of weights) with the defaults of a fleet of two actors; and 16 MB of
weights with one gradient step for each update of 256 steps, which makes publications as dear as they can
be. Nothing is dropped: the staleness limit grows with the distance between publications.
"""

from statistics import median
from typing import Any

import torch

from dppo_redis.environments.child import spaces_of
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import plan
from ops.bench.article.findings import Finding
from ops.bench.article.runs_compared import (
    HEADER,
    common_time,
    play_all,
    rates,
    returns_at_common_time,
    rows_of,
    samples_of,
)
from ops.bench.gradient import sampled
from ops.bench.rounds import ratios_to
from ops.bench.update_parts import measure_parts

REPEATS, LARGE_REPEATS = 5, 3
EVERY = (1, 2, 5, 10)
STEPS, LARGE_STEPS = 100_000, 5_120
RETURN, LARGE_RETURN = 200.0, 25.0
_UPDATES = 5
_BASE: dict[str, Any] = {"env_id": "CartPole-v1", "actors": 2, "envs_per_actor": 8, "device": "cpu"}
_SMALL = RunConfig.model_validate(_BASE)
_LARGE = RunConfig.model_validate(
    {
        **_BASE,
        "network": {"hidden": [2000, 2000]},
        "ppo": {"batch_steps": 256, "minibatch_size": 256, "update_epochs": 1, "learning_rate": 1e-4},
    }
)


def measure_small(repeats: int) -> Finding:
    """The default network."""
    return _measure(repeats, STEPS, _SMALL, RETURN)


def measure_large(repeats: int) -> Finding:
    """A network of 16 MB."""
    return _measure(repeats, LARGE_STEPS, _LARGE, LARGE_RETURN)


def _measure(repeats: int, steps: int, config: RunConfig, wanted: float) -> Finding:
    kinds = {
        _name(every): [
            *("train", *_flags(config), "--total-steps", str(steps)),
            *("--publish-every", str(every), "--max-staleness", str(every + 4)),
        ]
        for every in EVERY
    }
    found = play_all(kinds, repeats)
    base = _name(1)
    ratios = {f"steps/s, {k} by {base}": v for k, v in ratios_to(base, rates(found)).items()}
    at_time = returns_at_common_time(found)
    if all(min(values) > 0 for values in at_time.values()):
        ratios |= {f"return at the same time, {k} by {base}": v for k, v in ratios_to(base, at_time).items()}
    remark = f"The same time is {common_time(found):.1f} s of training, the return {wanted:g}.\n"
    remark += _publication(config)
    return Finding(HEADER, rows_of(found, wanted), ratios, samples_of(found, wanted), remark)


def _flags(config: RunConfig) -> list[str]:
    ppo = config.ppo
    words: list[Any] = [config.env_id, "--actors", config.actors, "--envs-per-actor", config.envs_per_actor]
    words += ["--device", config.device, "--network.hidden", *config.network.hidden]
    words += ["--ppo.batch-steps", ppo.batch_steps, "--ppo.minibatch-size", ppo.minibatch_size]
    words += ["--ppo.learning-rate", ppo.learning_rate]
    words += ["--ppo.update-epochs", ppo.update_epochs] if ppo.update_epochs else []
    return [str(word) for word in words]


def _publication(config: RunConfig) -> str:
    """What a publication costs the learner, of its computing time."""
    torch.set_num_threads(1)
    planned = plan(config, spaces_of(config), serial=False)
    parts = measure_parts(planned, sampled(planned), _UPDATES)
    every = {name: median(times) for name, times in parts.items()}
    share = every["publish"] / sum(every.values())
    return (
        f"A publication takes {every['publish']:.1f} ms of the learner's computing time, "
        f"{share:.1%} of an update with it."
    )


def _name(every: int) -> str:
    return "every update" if every == 1 else f"every {every} updates"
