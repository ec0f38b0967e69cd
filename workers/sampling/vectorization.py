"""Chooses how an actor steps its environments together: as configured, or the fastest way."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from dppo_redis.environments.copy_number import LOOK, CopyNumber
from dppo_redis.environments.make import Vectorization, make_vector
from dppo_redis.environments.step_time import Choice, choose, free_cores, measure
from dppo_redis.protocol.spec import EnvironmentSource
from workers.separate.separate_environments import Kind, SeparateEnvironments

_log = logging.getLogger("dppo")
Chosen = dict[str, Choice]  # earlier choices: rebuilt environments step in the same way


def make_fastest_vector(
    source: EnvironmentSource,
    count: int,
    vectorization: Vectorization,
    *,
    masked: bool,
    number: CopyNumber = LOOK,
    chosen: Chosen | None = None,
    processes: Callable[[], SeparateEnvironments] | None = None,
) -> VectorEnv[Any, Any, Any] | SeparateEnvironments:
    """Build `count` environments; `auto`: a native vector version, or what a measured step recommends.

    The step is measured on a separate environment, which is closed before the others are built, because there
    may be licences for `count` only. The others play the same episodes as without the measurement.
    `processes` starts environments in processes; without it they are gymnasium's, which step together.

    Raises:
        ConfigurationError: as `make_vector` does.
    """
    if vectorization == "async" and processes is not None:
        return processes()
    if vectorization != "auto":
        return make_vector(source, count, vectorization, masked=masked, number=number)
    chosen = {} if chosen is None else chosen
    key = repr((source, count, masked))

    def consider(single: gymnasium.Env[Any, Any]) -> Vectorization:
        step = measure(single) if count > 1 else None
        if step is not None:
            chosen[key] = choose(step, count, free_cores())
        return chosen[key].stepping if step is not None else "sync"

    if key in chosen:
        return make_fastest_vector(
            source, count, chosen[key].stepping, masked=masked, number=number, processes=processes
        )
    vector = make_vector(
        source, count, "auto", masked=masked, number=number, choose=consider, processes=processes
    )
    kind, reason = kind_of(vector), ""
    if key in chosen:
        reason = f": {chosen[key].reason}"
        if chosen[key].stepping == "async" and kind == "sync":
            reason = ": processes would be faster, but they could not be started"
        chosen[key] = replace(chosen[key], stepping="async" if kind == "async" else "sync")
    _log.info("stepping %d environments %s%s", count, _WORDS[kind], reason)
    return vector


def kind_of(vector: VectorEnv[Any, Any, Any] | SeparateEnvironments) -> Kind:
    """`sync`: one after another, `async`: in processes, `native`: the environment's own vector version."""
    if not isinstance(vector, VectorEnv):
        return vector.kind
    inner = vector.unwrapped
    if isinstance(inner, SyncVectorEnv):
        return "sync"
    return "async" if isinstance(inner, AsyncVectorEnv) else "native"


_WORDS: dict[Kind, str] = {
    "sync": "one after another (sync)",
    "async": "in processes of their own (async)",
    "threads": "in threads of their own (threads)",
    "native": "in their own vector version (native)",
}
