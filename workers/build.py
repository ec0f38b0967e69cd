"""Builds the environments and buffers that an actor, or the serial baseline, samples with."""

from functools import partial
from typing import Any

from gymnasium.vector import VectorEnv

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.errors import EnvironmentBrokenError, EnvironmentNotBuiltError
from dppo_redis.protocol.spec import RunDescription
from workers.collect import Collector
from workers.envs import Environments
from workers.sampling.free_collector import FreeCollector
from workers.sampling.rollout_collector import RolloutCollector
from workers.sampling.vectorization import Chosen, make_fastest_vector
from workers.seeding import actor_seeds
from workers.separate.call_clock import CallClock
from workers.separate.one_environment import EnvironmentPlan
from workers.separate.processes import EnvironmentProcesses
from workers.separate.separate_environments import SeparateEnvironments
from workers.separate.threads import EnvironmentThreads


def build_collector(
    description: RunDescription,
    envs_per_actor: int | None,
    slot: int,
    boot: int,
    builds: int,
    calls: CallClock | None = None,
    role: str = "actor",
    chosen: Chosen | None = None,  # filled here; pass it again when the environments are rebuilt
) -> RolloutCollector:
    """Build environments and buffers; rebuilt environments play other episodes than the broken ones.

    Environments of an actor in processes or threads of their own do not wait for each other, unless the run
    is in lock-step mode or `open_rollouts` is 0. Those of the serial baseline always step together.

    Raises:
        EnvironmentNotBuiltError: an environment could not be made or reset.
    """
    number = CopyNumber(role, slot)
    spec, join = description.spec, description.join
    count = envs_per_actor or join.envs_per_actor
    seeds = actor_seeds(join.seed, slot, boot, count, builds)
    calls = calls or CallClock()
    calls.start()  # building may hang
    is_free = role == "actor" and join.lock_step is None and join.open_rollouts > 0
    plans = EnvironmentPlan.of(spec, seeds.environments, number)
    try:
        made: VectorEnv[Any, Any, Any] | SeparateEnvironments
        if join.vectorization == "threads":
            made = EnvironmentThreads(plans, calls)
        else:
            made = make_fastest_vector(
                spec.environment,
                count,
                join.vectorization,
                masked=spec.observation.masked,
                number=number,
                chosen={} if chosen is None else chosen,
                processes=partial(EnvironmentProcesses, plans, calls) if is_free else None,
            )
    except EnvironmentBrokenError as error:
        raise EnvironmentNotBuiltError(str(error)) from (error.__cause__ or error)
    except KeyboardInterrupt as error:  # the user's code raised it: our own handlers only set a flag
        raise EnvironmentNotBuiltError("building raised KeyboardInterrupt") from error
    finally:
        calls.stop()
    environments: Environments | SeparateEnvironments = (
        Environments(made, seeds.environments, calls) if isinstance(made, VectorEnv) else made
    )
    try:
        if isinstance(environments, Environments):
            return Collector(environments, spec, seeds)
        return FreeCollector(environments, spec, seeds.sampling, join.open_rollouts, together=not is_free)
    except EnvironmentBrokenError as error:
        environments.close()
        raise EnvironmentNotBuiltError(str(error)) from (error.__cause__ or error)
