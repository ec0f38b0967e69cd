"""Builds what an actor samples with: environments and buffers. The serial baseline builds the same."""

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.protocol.spec import RunDescription
from workers.collect import Collector
from workers.envs import Environments
from workers.seeding import actor_seeds
from workers.vectorization import make_fastest_vector
from workers.watchdog import CallClock


def build_collector(
    description: RunDescription,
    envs_per_actor: int | None,
    slot: int,
    boot: int,
    builds: int,
    calls: CallClock | None = None,
) -> Collector:
    """Environments and buffers; rebuilt environments play other episodes than the broken ones."""
    spec, join = description.spec, description.join
    count = envs_per_actor or join.envs_per_actor
    seeds = actor_seeds(join.seed, slot, boot, count, builds)
    calls = calls or CallClock()
    calls.start()  # building may hang, too; the first reset stops the clock
    try:
        vector = make_fastest_vector(
            spec.environment, count, join.vectorization, masked=spec.observation.masked
        )
    except ConfigurationError as error:  # it could be made when it was looked at: this may pass
        raise EnvironmentBrokenError(str(error)) from error
    environments = Environments(vector, seeds.environments, calls)
    try:
        return Collector(environments, spec, seeds)
    except EnvironmentBrokenError:
        environments.close()
        raise
