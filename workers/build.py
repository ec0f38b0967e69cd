"""Builds the environments and buffers that an actor, or the serial baseline, samples with."""

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.errors import EnvironmentBrokenError, EnvironmentNotBuiltError
from dppo_redis.protocol.spec import RunDescription
from workers.collect import Collector
from workers.envs import Environments
from workers.seeding import actor_seeds
from workers.vectorization import Chosen, make_fastest_vector
from workers.watchdog import CallClock


def build_collector(
    description: RunDescription,
    envs_per_actor: int | None,
    slot: int,
    boot: int,
    builds: int,
    calls: CallClock | None = None,
    role: str = "actor",
    chosen: Chosen | None = None,  # filled here; pass it again when the environments are rebuilt
) -> Collector:
    """Build environments and buffers; rebuilt environments play other episodes than the broken ones.

    Raises:
        EnvironmentNotBuiltError: an environment could not be made or reset.
    """
    number = CopyNumber(role, slot)
    spec, join = description.spec, description.join
    count = envs_per_actor or join.envs_per_actor
    seeds = actor_seeds(join.seed, slot, boot, count, builds)
    calls = calls or CallClock()
    calls.start()  # building may hang
    try:
        vector = make_fastest_vector(
            spec.environment,
            count,
            join.vectorization,
            masked=spec.observation.masked,
            number=number,
            chosen={} if chosen is None else chosen,
        )
    except EnvironmentBrokenError as error:
        raise EnvironmentNotBuiltError(str(error)) from (error.__cause__ or error)
    except KeyboardInterrupt as error:  # the user's code raised it: our own handlers only set a flag
        raise EnvironmentNotBuiltError("building raised KeyboardInterrupt") from error
    finally:
        calls.stop()
    environments = Environments(vector, seeds.environments, calls)
    try:
        return Collector(environments, spec, seeds)
    except EnvironmentBrokenError as error:
        environments.close()
        raise EnvironmentNotBuiltError(str(error)) from (error.__cause__ or error)
