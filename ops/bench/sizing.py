"""`dppo-redis bench sizing`: the rate of a fleet by the formula of docs/sizing.md, and as measured.

One actor samples alone, and one learner makes updates alone. Both give the numbers of the formula: the fleet
is as fast as its actors together, its learner, or the cores that all share, whichever is least. Then fleets
train.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dppo_redis.environments.child import spaces_of
from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.descendants import descendants
from dppo_redis.service.shutdown import StopRequest
from learner.build import build_ppo
from ops.bench.arguments import BenchmarkParser
from ops.bench.processes import stoppable
from ops.bench.rounds import add_common, as_json, check_repeats, in_rounds, shown
from ops.bench.runs import run, table
from ops.bench.slow_environment import ENV_ID as SLOW
from ops.bench.update_parts import measure_parts
from ops.serial_sampling import make_sampling

ENVIRONMENTS = 8  # of an actor
_STEPS = {"CartPole-v1": 150_000, SLOW: 12_000}
_SAMPLE_S = 1.0  # of sampling, to measure one actor
_UPDATES = 5
_MOST_ACTORS = 64


@dataclass(frozen=True)
class Costs:
    """Microseconds for one environment step."""

    actor_us: float  # of time, for one actor alone
    actor_cpu_us: float  # of computing time, with its environments' processes
    learner_cpu_us: float  # of computing time

    def actor_rate(self) -> float:
        """Steps per second of one actor."""
        return 1e6 / self.actor_us

    def learner_rate(self) -> float:
        """Steps per second of a learner that never waits."""
        return 1e6 / self.learner_cpu_us

    def fleet_rate(self, actors: int, cores: int) -> float:
        """Steps per second of a fleet whose processes share `cores`."""
        shared = 1e6 * cores / (self.actor_cpu_us + self.learner_cpu_us)
        return min(actors * self.actor_rate(), self.learner_rate(), shared)

    def limit(self, actors: int, cores: int) -> str:
        """What a fleet's rate is limited by."""
        rate = self.fleet_rate(actors, cores)
        if rate == actors * self.actor_rate():
            return "actors"
        return "learner" if rate == self.learner_rate() else "cores"


def measure_costs(env_id: str) -> Costs:
    """One actor alone and one learner alone."""
    values: dict[str, Any] = {"env_id": env_id, "actors": 1, "envs_per_actor": ENVIRONMENTS, "device": "cpu"}
    config = RunConfig.model_validate(values)
    planned = plan(config, spaces_of(config), serial=False)
    description = planned.description
    arrays = build_ppo(planned.config, description, 1).acting_arrays()
    policy = ActingPolicy(Weights(1, 1, 0, 0, 0, description.digest, arrays), description.spec)
    sampling, stop = make_sampling(planned.config, description), StopRequest()
    try:
        rollouts = sampling.collect(policy, stop)  # the first one builds the environments
        began, cpu, steps = time.perf_counter(), _family_cpu_s(), 0
        while (took := time.perf_counter() - began) < _SAMPLE_S or not steps:
            rollouts = sampling.collect(policy, stop)
            steps += sum(rollout.steps for rollout in rollouts)
        cpu = _family_cpu_s() - cpu
    finally:
        sampling.close()
    return Costs(1e6 * took / steps, 1e6 * cpu / steps, _learner_us(planned, rollouts))


def _learner_us(planned: RunPlan, rollouts: Sequence[Rollout]) -> float:
    parts = measure_parts(planned, rollouts, _UPDATES)
    update_ms = sum(median(times) for times in parts.values())
    return 1e3 * update_ms / sum(rollout.steps for rollout in rollouts)


def _family_cpu_s() -> float:
    """Computing time of this process and of its descendants that live."""
    total = time.process_time()
    for pid in descendants():
        with suppress(OSError, ValueError, IndexError):
            words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = _options(argv)
    torch.set_num_threads(1)
    with stoppable():
        costs = {env_id: measure_costs(env_id) for env_id in _STEPS}
        kinds: dict[str, Callable[[int], float]] = {
            f"{env_id.rpartition(':')[2]}, {actors} actors": partial(_play, env_id, actors)
            for env_id in _STEPS
            for actors in options.actors
        }
        found = in_rounds(kinds, options.repeats)
    wanted = [(one, actors) for one in costs.values() for actors in options.actors]
    expected = {name: one.fleet_rate(n, cores()) for name, (one, n) in zip(found, wanted, strict=True)}
    ratios = {name: [rate / expected[name] for rate in rates] for name, rates in found.items()}
    if options.json:
        details = {"expected": expected, "costs_us": {name: asdict(one) for name, one in costs.items()}}
        print(json.dumps(as_json(ratios, found, unit="steps/s, measured by expected", **details)))
        return ExitStatus.DONE
    rows = [
        [name, f"{expected[name]:,.0f}", one.limit(n, cores()), shown(rates, 0), shown(ratios[name])]
        for (name, rates), (one, n) in zip(found.items(), wanted, strict=True)
    ]
    print(table(["", "steps/s by the formula", "limit", "measured", "measured by formula"], rows))
    print("\nMicroseconds for one environment step:\n")
    rows = [[name, *(f"{us:.1f}" for us in asdict(one).values())] for name, one in costs.items()]
    print(table(["", "one actor", "its computing time", "the learner's"], rows))
    print(f"\n{cores()} cores")
    return ExitStatus.DONE


def _play(env_id: str, actors: int, number: int) -> float:
    words = ["train", env_id, "--actors", str(actors), "--envs-per-actor", str(ENVIRONMENTS)]
    words += [
        "--total-steps",
        str(_STEPS[env_id]),
        "--seed",
        str(number + 1),
        "--evaluation.enabled",
        "false",
    ]
    return run(words).steps_per_s


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench sizing", description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4], help="of the fleets")
    add_common(parser, 3, "default: 3, two minutes on idle cores")
    options = parser.parse_args(argv)
    check_repeats(options.repeats)
    for actors in options.actors:
        if not 1 <= actors <= _MOST_ACTORS:
            raise ConfigurationError(f"actors: from 1 to {_MOST_ACTORS} (got {actors})")
    return options


if __name__ == "__main__":
    sys.exit(main())
