"""What every side may read of a run's directory: its configuration, thus its spec, and its best policy."""

from pathlib import Path

from dppo_redis.config import RunConfig, load_toml
from dppo_redis.environments import inspect
from dppo_redis.errors import ConfigurationError, WireError
from dppo_redis.pacing import derive
from dppo_redis.spec import RunDescription, Spec, describe_run, source_of
from dppo_redis.weights import Weights
from dppo_redis.wire import decode_weights

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
USED = "used.json"  # epochs and versions
BEST_POLICY = "best_policy.msgpack"


def describe(config: RunConfig) -> RunDescription:
    """The description of a run, by its configuration and the environment that is installed here."""
    spaces = inspect(source_of(config), use_mask=config.use_action_mask)
    steps = config.rollout_steps  # a run that was started has it in its configuration
    steps = steps or derive(config, spaces.observation, spaces.action).rollout_steps
    return describe_run(config, spaces.observation, spaces.action, steps)


def describe_directory(run_dir: Path) -> RunDescription:
    """The description of the run in a directory."""
    return describe(load_toml(run_dir / CONFIG))


def read_best(run_dir: Path, spec: Spec) -> Weights:
    """The best policy of the evaluations during training.

    Raises:
        ConfigurationError: there is none, or it is damaged, or of another spec.
    """
    file = run_dir / BEST_POLICY
    try:
        weights = decode_weights(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{file}: {error.strerror}; pass --checkpoint last for the newest checkpoint"
        ) from error
    except WireError as error:
        raise ConfigurationError(f"{file} is not a policy: {error}") from error
    if weights.spec != spec.digest():
        raise ConfigurationError(
            f"{file} is of spec {weights.spec}; the run's configuration and environment give {spec.digest()}"
        )
    return weights
