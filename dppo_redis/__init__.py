"""Distributed PPO over Redis.

    run = dppo_redis.train("CartPole-v1", actors=2, total_steps=100_000)
    run.wait()
    action = run.best_policy().act(observation)

The sub-packages hold what actors, learner and operators share: values, rules, the wire format and the Redis
keys. The names below are loaded when they are used: importing this package imports nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dppo_redis.api import Policy, Run, load, train
    from dppo_redis.errors import (
        ConfigurationError,
        DppoError,
        EnvironmentBrokenError,
        NoPolicyError,
        ObservationError,
        RunFailedError,
        UnavailableError,
    )
    from dppo_redis.protocol.config import (
        CheckpointConfig,
        EvaluationConfig,
        NetworkConfig,
        PpoConfig,
        RunConfig,
    )
    from dppo_redis.protocol.reports import RunSummary
    from dppo_redis.store.run_status import RunStatus

__version__ = "0.1.0"

__all__ = [
    "CheckpointConfig",
    "ConfigurationError",
    "DppoError",
    "EnvironmentBrokenError",
    "EvaluationConfig",
    "NetworkConfig",
    "NoPolicyError",
    "ObservationError",
    "Policy",
    "PpoConfig",
    "Run",
    "RunConfig",
    "RunFailedError",
    "RunStatus",
    "RunSummary",
    "UnavailableError",
    "__version__",
    "load",
    "train",
]

_HOMES = {
    **dict.fromkeys(("Policy", "Run", "load", "train"), "dppo_redis.api"),
    **dict.fromkeys(
        (
            "ConfigurationError",
            "DppoError",
            "EnvironmentBrokenError",
            "NoPolicyError",
            "ObservationError",
            "RunFailedError",
            "UnavailableError",
        ),
        "dppo_redis.errors",
    ),
    **dict.fromkeys(
        ("CheckpointConfig", "EvaluationConfig", "NetworkConfig", "PpoConfig", "RunConfig"),
        "dppo_redis.protocol.config",
    ),
    "RunSummary": "dppo_redis.protocol.reports",
    "RunStatus": "dppo_redis.store.run_status",
}


def __getattr__(name: str) -> Any:
    """A public name, imported from where it lives the first time that it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
