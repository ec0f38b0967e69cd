"""`dppo-redis bench gradient`: a gradient step by hand beside autograd's, and the parts of an update.

Both make the same steps (shuffling, loss, gradient, norm, Adam) on the same rows of an environment, pass by
pass in turn, on one thread. It is computing time that is compared, which other work on the machine disturbs
less. Then one batch after another goes through all that a learner does with it.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from dppo_redis.environments.child import spaces_of
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest
from learner.build import build_ppo
from learner.ppo.adam import Adam
from learner.ppo.batch import stack
from learner.ppo.plain.steps import PlainSteps, plain_networks
from learner.ppo.prepare import prepare
from learner.ppo.steps import AutogradSteps, Schedule, Steps
from ops.bench.arguments import BenchmarkParser
from ops.bench.rounds import as_json
from ops.bench.runs import table
from ops.bench.update_parts import measure_parts
from ops.serial_sampling import make_sampling

_LARGEST = 65_536  # rows of a minibatch
_LEAST_S = 0.05  # of computing time in a sample
_MOST_REPEATS = 1000
KINDS = ("autograd", "by hand")


@dataclass(frozen=True)
class Compared:
    """Microseconds of computing time a gradient step, by kind; one after another in turn."""

    samples: dict[str, list[float]]

    @property
    def ratios(self) -> list[float]:
        """By hand to autograd, of neighbours."""
        return [mine / theirs for theirs, mine in zip(*self.samples.values(), strict=True)]


def configuration(env_id: str, hidden: Sequence[int], batch_steps: int, minibatch: int) -> RunConfig:
    """Eight environments; the rest as a run has it.

    Raises:
        ConfigurationError: a size is impossible.
    """
    values: dict[str, Any] = {
        "env_id": env_id,
        "envs_per_actor": 8,
        "device": "cpu",
        "network": {"hidden": list(hidden)},
        "ppo": {"batch_steps": batch_steps, "minibatch_size": minibatch},
    }
    return RunConfig.model_validate(values)


def sampled(planned: RunPlan) -> list[Rollout]:
    """The rollouts of one batch, played by the policy that a run begins with."""
    description = planned.description
    arrays = build_ppo(planned.config, description, 1).acting_arrays()
    weights = Weights(1, 1, 0, 0, 0, description.digest, arrays)
    sampling = make_sampling(planned.config, description)
    try:
        return sampling.collect(ActingPolicy(weights, description.spec), StopRequest())
    finally:
        sampling.close()


def compare(planned: RunPlan, rollouts: Sequence[Rollout], repeats: int) -> Compared:
    """Passes of both kinds in turn, `repeats` samples of each."""
    spec, ppo = planned.description.spec, planned.config.ppo
    passes: dict[str, Iterator[float]] = {}
    for kind in KINDS:
        update = build_ppo(planned.config, planned.description, 1)
        networks = plain_networks(update.model, spec)
        if networks is None:
            raise ConfigurationError(
                f"{spec.environment.env_id} has images: its network is trained by autograd alone, "
                "and there is nothing to compare"
            )
        optimizer = Adam(update.model.parameters(), lr=ppo.learning_rate, eps=ppo.adam_epsilon)
        steps: Steps = AutogradSteps(update.model, optimizer, ppo)
        if kind == "by hand":
            steps = PlainSteps(update.model, networks, optimizer, ppo)
        rows = prepare(update.model, spec, ppo, None, stack(rollouts), update.device).rows
        schedule = Schedule(ppo.learning_rate, ppo.clip_epsilon, ppo.entropy_coef)
        passes[kind] = _timed(steps.passes(rows, schedule, torch.Generator().manual_seed(1)))
        next(passes[kind])  # the first one allocates
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            samples[kind].append(next(passes[kind]))
    return Compared(samples)


def _timed(passes: Iterator[Any]) -> Iterator[float]:
    """Microseconds a step, of as many passes as take long enough to be measured."""
    while True:
        began, steps = time.process_time(), 0
        while (took := time.process_time() - began) < _LEAST_S or not steps:
            steps += next(passes).steps
        yield 1e6 * took / steps


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    options = _options(argv)
    torch.set_num_threads(1)
    batch_steps = max(2048, 4 * max(options.minibatch))
    found: dict[int, Compared] = {}
    for size in options.minibatch:
        config = configuration(options.env_id, options.hidden, batch_steps, size)
        if not found:
            planned = plan(config, spaces_of(config), serial=True)
            rollouts = sampled(planned)
        planned = plan(config, planned.spaces, serial=True)
        found[size] = compare(planned, rollouts, options.repeats)
    config = configuration(options.env_id, options.hidden, 2048, 256)
    planned = plan(config, planned.spaces, serial=False)
    parts = measure_parts(planned, sampled(planned), options.repeats)
    if options.json:
        print(json.dumps(_as_json(found, parts)))
    else:
        _print_tables(found, parts)
    return ExitStatus.DONE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench gradient", description=__doc__)
    parser.add_argument("env_id", nargs="?", default="CartPole-v1", help="whose observations and actions")
    parser.add_argument("--minibatch", type=int, nargs="+", default=[64, 256, 1024], metavar="ROWS")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64], metavar="WIDTH")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each kind")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    options = parser.parse_args(argv)
    for size in options.minibatch:
        if not 2 <= size <= _LARGEST:
            raise ConfigurationError(f"minibatch: from 2 to {_LARGEST} rows (got {size})")
    if not 1 <= options.repeats <= _MOST_REPEATS:
        raise ConfigurationError(f"repeats: from 1 to {_MOST_REPEATS} (got {options.repeats})")
    return options


def _as_json(found: dict[int, Compared], parts: dict[str, list[float]]) -> dict[str, Any]:
    return as_json(
        {str(size): one.ratios for size, one in found.items()},
        {str(size): one.samples for size, one in found.items()},
        unit="us of computing time a gradient step",
        update_ms={name: round(median(times), 3) for name, times in parts.items()},
    )


def _print_tables(found: dict[int, Compared], parts: dict[str, list[float]]) -> None:
    rows = []
    for size, one in found.items():
        theirs, mine = (f"{median(times):,.0f}" for times in one.samples.values())
        spread = f"{min(one.ratios):.2f} to {max(one.ratios):.2f}"
        rows.append([size, theirs, mine, f"{median(one.ratios):.2f}", spread])
    print(table(["minibatch", "autograd, us a step", "by hand", "ratio", "spread"], rows))
    total = sum(median(times) for times in parts.values())
    print("\nOne update of a learner, 2048 steps:\n")
    shares = [[name, f"{median(t):.2f}", f"{median(t) / total:.1%}"] for name, t in parts.items()]
    print(table(["part", "ms of computing time", "share"], [*shares, ["all", f"{total:.2f}", ""]]))


if __name__ == "__main__":
    sys.exit(main())
