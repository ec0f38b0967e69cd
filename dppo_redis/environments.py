"""Builds environments. The only user of `gymnasium.make`; refuses what is unsupported, by name."""

import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from dppo_redis.config import EnvValue
from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces import ActionSpec, ObservationSpec, describe_actions, describe_observations

Vectorization = Literal["auto", "sync", "async"]


@dataclass(frozen=True)
class EnvironmentSpaces:
    """What one environment of a run looks like."""

    observation: ObservationSpec
    action: ActionSpec


def make_single(env_id: str, env_kwargs: dict[str, EnvValue]) -> gymnasium.Env[Any, Any]:
    """Build one environment.

    Raises:
        ConfigurationError: unknown id, a missing package, wrong arguments, or the API of old Gym.
    """
    if not env_id:
        raise ConfigurationError("name an environment, for example: dppo-redis train CartPole-v1")
    if ":" in env_id and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # module:EnvId of the user's own; last, to shadow nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice of gymnasium's checker is not an error
            arguments: dict[str, Any] = dict(env_kwargs)
            return gymnasium.make(env_id, **arguments)
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"environment {env_id!r} cannot be made: {_first_line(error)} Check the id, install the package "
            "that has it, or name the module that registers it as module:EnvId"
        ) from error
    except Exception as error:  # code of the user's: anything may come out of it
        raise ConfigurationError(
            f"environment {env_id!r} cannot be made: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def inspect(env_id: str, env_kwargs: dict[str, EnvValue]) -> EnvironmentSpaces:
    """Build one environment, try one reset and one step, and describe its spaces.

    Raises:
        ConfigurationError: it cannot be made, speaks the old Gym API, or has an unsupported space.
    """
    env = make_single(env_id, env_kwargs)
    try:
        spaces = EnvironmentSpaces(
            describe_observations(env.observation_space), describe_actions(env.action_space)
        )
        _check_api(env_id, env)
        return spaces
    finally:
        env.close()


def _check_api(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    """Refuse the API of Gym before 0.26: reset without info, step of four values."""
    inner = env.unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = inner.reset(seed=0)
            two = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
            five = two and len(inner.step(env.action_space.sample())) == 5
        except TypeError as error:  # reset() without the argument `seed`
            raise ConfigurationError(
                f"environment {env_id!r} does not speak the API of gymnasium 1.x: {error}"
            ) from error
        except Exception as error:  # code of the user's: anything may come out of it
            raise ConfigurationError(
                f"environment {env_id!r} raised in its first reset or step: {type(error).__name__}: {error}"
            ) from error
    if not (two and five):
        raise ConfigurationError(
            f"environment {env_id!r} does not speak the API of gymnasium 1.x: reset must return "
            "(observation, info) and step (observation, reward, terminated, truncated, info)"
        )


def make_vector(
    env_id: str, env_kwargs: dict[str, EnvValue], count: int, vectorization: Vectorization
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build `count` environments stepped together.

    `auto` takes gymnasium's native vector environment when the id has one and it accepts the
    arguments, else steps them one after another. Where the mode of automatic reset can be chosen
    it is SAME_STEP, which wastes no step; callers read the mode from the metadata.
    """
    if vectorization == "auto":
        native = _make_native(env_id, env_kwargs, count)
        if native is not None:
            return native
    builders = [partial(_make_without_infos, env_id, env_kwargs)] * count
    if vectorization == "async":
        return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)


class _WithoutInfos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps `info` from the vector environment, which fails where its types vary; we use none of it."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, _ = self.env.reset(**arguments)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, {}


def _make_without_infos(env_id: str, env_kwargs: dict[str, EnvValue]) -> gymnasium.Env[Any, Any]:
    return _WithoutInfos(make_single(env_id, env_kwargs))


def _make_native(
    env_id: str, env_kwargs: dict[str, EnvValue], count: int
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
    single = make_single(env_id, env_kwargs)  # turns every reason for failure into one line
    spec = single.spec
    single.close()
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    try:
        arguments: dict[str, Any] = dict(env_kwargs)
        return gymnasium.make_vec(spec.id, count, vectorization_mode="vector_entry_point", **arguments)
    except (gymnasium.error.Error, ImportError, TypeError):
        return None  # the native version lacks an argument or a package that the single one has
