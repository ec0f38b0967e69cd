"""Before a process joins a run: the description to wait for, the environment and the slot to check."""

import logging

from dppo_redis.environments.inspect import inspect
from dppo_redis.errors import ConfigurationError, DamagedSpecError
from dppo_redis.protocol.spec import RunDescription, Spec
from dppo_redis.service.logs import Rarely
from dppo_redis.service.renewal import Look, living_holder
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Patience
from dppo_redis.store.registry import Registry
from dppo_redis.store.run_store import RunStore
from workers.loop import BEAT_PERIOD_S

_LOOKS_AT_A_DAMAGED_SPEC = 15  # three seconds
_log = logging.getLogger("dppo")


def wait_for_description(store: RunStore, patience: Patience, stop: StopRequest) -> RunDescription | None:
    """What the run's learner published; waits until there is one, None when the run is over.

    Raises:
        ConfigurationError: the run speaks another release's wire schema, or nobody mends its spec.
    """
    rarely, damaged = Rarely(), 0
    while not stop.requested:
        try:
            description = patience.call("read the spec", store.description)
        except DamagedSpecError:
            description, damaged = None, damaged + 1
            if damaged == _LOOKS_AT_A_DAMAGED_SPEC:
                raise
        if description is not None:
            return description
        if rarely.due():
            _log.info("waiting for the learner of run %s", store.keys.run)
        stop.sleep(0.2)
    return None


def check_environment(spec: Spec) -> None:
    """Compare this machine's environment with the run's spec.

    Raises:
        ConfigurationError: they differ; the message says in what.
    """
    spaces = inspect(spec.environment, use_mask=spec.observation.masked)
    differences = spec.seen_with(spaces).differences(spec)
    if differences:
        raise ConfigurationError(
            f"{spec.environment.env_id} here is not the run's environment ({'; '.join(differences)}): "
            "install the same versions as the learner's machine"
        )


def refuse_living_holder(registry: Registry, slot: int, patience: Patience, stop: StopRequest) -> None:
    """A registration that is renewed while we look belongs to a living actor; a dead one's may be taken.

    Raises:
        ConfigurationError: naming the holder.
    """

    def look() -> Look:
        holder = patience.call("look at the slot", lambda: registry.holder(slot))
        if holder is None:
            return Look(None)
        return Look(f"{holder.host}:{holder.pid}", beat=holder, is_dead=holder.is_dead)

    living = living_holder(look, 2.5 * BEAT_PERIOD_S, stop)
    if living:
        raise ConfigurationError(
            f"slot {slot} belongs to a living actor, {living}: stop that one, or leave out --slot"
        )
