"""`dppo-redis bench actor`: a vector step of an actor beside a bare loop over the same environments.

The bare loop steps gymnasium's own vector of the environments with actions drawn beforehand, and does
nothing else. The actor plays the policy that a run begins with, and its rollouts are complete: with
log-probabilities, episodes and final observations, but without packing and sending them. Both run in turn
on one thread. It is computing time that is compared. The second table says where an actor's time goes.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from dppo_redis.environments.child import spaces_of
from dppo_redis.environments.make import make_single, make_vector
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.weights import Weights
from learner.build import build_ppo
from ops.bench.arguments import BenchmarkParser
from ops.bench.rounds import Samples, as_json, in_rounds, ratios_to, shown
from ops.bench.runs import table
from workers.build import build_collector
from workers.collect import Collector
from workers.sampling.vectorization import kind_of

_MOST_ENVIRONMENTS = 1024
_MOST_REPEATS = 1000
_LEAST_S = 0.05  # of computing time in a sample
_STEPS = 256  # of a rollout
NETWORK, DRAWING, STEPPING, ENDS = "network", "drawing actions", "environments", "once per rollout"
REST = "records, clocks, loop"
BARE, ACTOR = "bare loop", "actor"


@dataclass(frozen=True)
class Row:
    """One comparison: `count` environments in gymnasium's own vector version, or one after another."""

    kind: str  # native or sync
    count: int

    @property
    def name(self) -> str:
        return f"{self.count} {self.kind}"


def configuration(env_id: str, hidden: Sequence[int], row: Row) -> RunConfig:
    """The defaults of a run, with these environments.

    Raises:
        ConfigurationError: a size is impossible.
    """
    values: dict[str, Any] = {
        "env_id": env_id,
        "envs_per_actor": row.count,
        "rollout_steps": _STEPS,
        "vectorization": "sync" if row.kind == "sync" else "auto",
        "device": "cpu",
        "network": {"hidden": list(hidden)},
    }
    return RunConfig.model_validate(values)


def first_policy(config: RunConfig, description: RunDescription) -> ActingPolicy:
    """The policy that a run begins with."""
    arrays = build_ppo(config, description, 1).acting_arrays()
    return ActingPolicy(Weights(1, 1, 0, 0, 0, description.digest, arrays), description.spec)


def compare(
    env_id: str, hidden: Sequence[int], row: Row, repeats: int
) -> tuple[Samples, dict[str, float]] | None:
    """Samples in microseconds of computing time for a vector step, and the parts of the actor's.

    Returns None if the environments have no vector version of their own.

    Raises:
        ConfigurationError: the environment has an action mask, which a bare loop cannot keep.
    """
    config = configuration(env_id, hidden, row)
    planned = plan(config, spaces_of(config), serial=False)
    description = planned.description
    if description.spec.observation.masked:
        raise ConfigurationError(f"{env_id} has an action mask: a bare loop would choose forbidden actions")
    policy = first_policy(planned.config, description)
    collector = build_collector(description, None, 0, 0, 0)
    if not isinstance(collector, Collector):
        raise TypeError("environments of this benchmark are stepped together")
    bare = _bare_vector(description, row)
    try:
        if row.kind == "native" and kind_of(collector.environments.vector) != "native":
            return None
        actions = _drawn(bare)
        kinds = {BARE: lambda: _step_all(bare, actions), ACTOR: lambda: collector.collect(policy)}
        for work in kinds.values():
            _timed(work)  # the first sample allocates and warms up
        samples = in_rounds({kind: partial(_sample, work) for kind, work in kinds.items()}, repeats)
        parts = _parts(collector, policy, median(samples[ACTOR]), repeats)
    finally:
        bare.close()
        collector.close()
    return samples, parts


def _bare_vector(description: RunDescription, row: Row) -> VectorEnv[Any, Any, Any]:
    """Gymnasium's own vector, reset."""
    source = description.spec.environment
    vector: VectorEnv[Any, Any, Any]
    if row.kind == "sync":
        builders = [partial(make_single, source)] * row.count
        vector = SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
    else:
        vector = make_vector(source, row.count, "auto")
    vector.reset(seed=1)
    return vector


def _drawn(vector: VectorEnv[Any, Any, Any]) -> list[Any]:
    """Actions of a rollout's steps."""
    vector.action_space.seed(1)
    return [vector.action_space.sample() for _ in range(_STEPS)]


def _step_all(vector: VectorEnv[Any, Any, Any], actions: Sequence[Any]) -> None:
    for action in actions:
        vector.step(action)


def _timed(rollout: Callable[[], object]) -> float:
    """Microseconds of computing time a step, of as many rollouts as take long enough to be measured."""
    began, done = time.process_time(), 0
    while (took := time.process_time() - began) < _LEAST_S or not done:
        rollout()
        done += 1
    return 1e6 * took / (done * _STEPS)


def _sample(rollout: Callable[[], object], _number: int) -> float:
    return _timed(rollout)


def _parts(collector: Collector, policy: ActingPolicy, whole: float, repeats: int) -> dict[str, float]:
    """What the steps of a rollout consist of, each part alone, in microseconds a step."""
    rollout, spec = collector.collect(policy), collector.spec
    state = PolicyState(spec, rollout.observations[0])
    outputs = np.empty((*rollout.log_probs.shape, spec.action.outputs), np.float32)
    generator = np.random.default_rng(1)
    noise = policy.noise(generator, *rollout.log_probs.shape)
    vector = collector.environments.vector
    actions = [policy.action.to_environment(rows) for rows in rollout.actions.copy()]

    def network() -> None:
        for t, rows in enumerate(rollout.observations):
            state.newest = rows
            outputs[t] = state.outputs(policy)

    def drawing() -> None:
        for t, row in enumerate(outputs):
            policy.action.to_environment(policy.sample(row, noise[t]))

    def ends() -> None:
        policy.noise(generator, *rollout.log_probs.shape)
        policy.log_probs(outputs, rollout.actions)

    measures: dict[str, Callable[[], object]] = {
        STEPPING: lambda: _step_all(vector, actions),
        NETWORK: network,
        DRAWING: drawing,
        ENDS: ends,
    }
    parts = {
        name: median(_timed(measure) for _ in range(min(repeats, 5))) for name, measure in measures.items()
    }
    return {**parts, REST: whole - sum(parts.values())}


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables.

    Raises:
        ConfigurationError: a number is out of range, or the environment cannot be compared.
    """
    options = _options(argv)
    torch.set_num_threads(1)
    rows = [Row("native", count) for count in options.native] + [Row("sync", n) for n in options.sync]
    found: dict[str, Samples] = {}
    parts: dict[str, dict[str, float]] = {}
    for row in rows:
        result = compare(options.env_id, options.hidden, row, options.repeats)
        if result is None:
            print(f"{row.name}: {options.env_id} has no vector version of its own", file=sys.stderr)
        else:
            found[row.name], parts[row.name] = result
    if options.json:
        rounded = {name: {part: round(us, 2) for part, us in one.items()} for name, one in parts.items()}
        ratios = {name: ratios_to(ACTOR, samples)[BARE] for name, samples in found.items()}
        unit = "us of computing time a vector step"
        print(json.dumps(as_json(ratios, found, unit=unit, parts_us=rounded)))
    else:
        _print_tables(found, parts)
    return ExitStatus.DONE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench actor", description=__doc__)
    parser.add_argument("env_id", nargs="?", default="CartPole-v1", help="the environment to step")
    parser.add_argument("--native", type=int, nargs="*", default=[8, 64], metavar="N", help="vector versions")
    parser.add_argument("--sync", type=int, nargs="*", default=[8], metavar="N", help="one after another")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64], metavar="WIDTH")
    parser.add_argument("--repeats", type=int, default=9, help="samples of each kind")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    options = parser.parse_args(argv)
    for count in [*options.native, *options.sync]:
        if not 1 <= count <= _MOST_ENVIRONMENTS:
            raise ConfigurationError(f"environments: from 1 to {_MOST_ENVIRONMENTS} (got {count})")
    if not options.native and not options.sync:
        raise ConfigurationError("name a number of environments: --native N or --sync N")
    if not 1 <= options.repeats <= _MOST_REPEATS:
        raise ConfigurationError(f"repeats: from 1 to {_MOST_REPEATS} (got {options.repeats})")
    return options


def _print_tables(found: dict[str, Samples], parts: dict[str, dict[str, float]]) -> None:
    rows = [
        [
            name,
            *(f"{median(times):.1f}" for times in samples.values()),
            shown(ratios_to(ACTOR, samples)[BARE]),
        ]
        for name, samples in found.items()
    ]
    print(table(["environments", "bare loop, us a vector step", "actor", "ratio"], rows))
    print("\nThe actor's share, us a vector step:\n")
    names = list(next(iter(parts.values()), ()))
    shares = [[name, *(f"{one[part]:.1f}" for part in names)] for name, one in parts.items()]
    print(table(["environments", *names], shares))


if __name__ == "__main__":
    sys.exit(main())
