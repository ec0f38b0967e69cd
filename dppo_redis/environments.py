"""Builds environments. The only user of `gymnasium.make`; refuses what is unsupported, by name."""

import ast
import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from dppo_redis.action_masks import MASK, read_mask
from dppo_redis.actions import ActionSpec, describe_actions
from dppo_redis.errors import ConfigurationError
from dppo_redis.plain_environment import PlainEnvironment, observed_space, plain_numbers
from dppo_redis.plugins import find_modules_here, first_line, import_named
from dppo_redis.spaces import ObservationSpec, describe_observations
from dppo_redis.spec import EnvironmentSource

Vectorization = Literal["auto", "sync", "async"]
_NORMALISERS = {
    NormalizeObservation: "ppo.normalise_observations",
    NormalizeReward: "ppo.normalise_returns",
}
_log = logging.getLogger("dppo")
_AnyEnv = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
_AnyEnvT = TypeVar("_AnyEnvT", bound=_AnyEnv)


@dataclass(frozen=True)
class EnvironmentSpaces:
    """What one environment of a run looks like."""

    observation: ObservationSpec
    action: ActionSpec


def make_single(source: EnvironmentSource) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers.

    Raises:
        ConfigurationError: unknown id, a missing package, wrong arguments, or the API of old Gym.
    """
    env_id = source.env_id
    if not env_id:
        raise ConfigurationError("name an environment, for example: dppo-redis train CartPole-v1")
    if ":" in env_id:
        find_modules_here()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice of gymnasium's checker is not an error
            arguments: dict[str, Any] = dict(source.env_kwargs)
            env = gymnasium.make(env_id, **arguments)
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
        cause = first_line(error).rstrip(".")
        raise ConfigurationError(
            f"environment {env_id!r} cannot be made: {cause}. Check the id, install the package "
            "that has it, or name the module that registers it as module:EnvId"
        ) from error
    except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
        raise ConfigurationError(
            f"environment {env_id!r} cannot be made: {type(error).__name__}: {first_line(error)}"
        ) from error
    for wrapper in source.wrappers:
        env = _wrap(env, wrapper)
    return env


def _wrap(env: gymnasium.Env[Any, Any], text: str) -> gymnasium.Env[Any, Any]:
    """Apply one wrapper: `Name`, `Name(key=value)` of gymnasium.wrappers, or `module:Name(...)`."""
    name, arguments = _parse_wrapper(text)
    wrapper = import_named(name if ":" in name else f"gymnasium.wrappers:{name}", "wrappers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = wrapper(env, **arguments)
        if not isinstance(wrapped, gymnasium.Env):
            raise TypeError(f"it answered a {type(wrapped).__name__}, not an environment")
    except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
        raise ConfigurationError(
            f"wrappers: {text} cannot be applied: {type(error).__name__}: {first_line(error)}"
        ) from error
    if type(wrapped) in _NORMALISERS:
        raise ConfigurationError(
            f"wrappers: {text} would keep statistics of its own in each environment, which neither other "
            f"actors nor the learner nor an evaluation have: set {_NORMALISERS[type(wrapped)]} instead"
        )
    return wrapped


def _parse_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    name, bracket, _ = text.partition("(")
    if not bracket:
        return text.strip(), {}
    try:
        call = ast.parse(f"f({text.removeprefix(name + '(')}", mode="eval").body
        named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        if not isinstance(call, ast.Call) or not named or any(k.arg is None for k in call.keywords):
            raise ValueError("arguments are given by name")
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(
            f"wrappers: {text!r} is not Name(key=value, ...) with plain values: {first_line(error)}"
        ) from error


def inspect(source: EnvironmentSource, *, use_mask: bool = True) -> EnvironmentSpaces:
    """Build one environment, try one reset and one step, and describe its spaces.

    Raises:
        ConfigurationError: it cannot be made, speaks the old Gym API, has an unsupported space, an
            observation of another shape than its space, more than one reward for a step, or an action
            mask of another form than its actions.
    """
    with closing_quietly(make_single(source)) as env:
        action = describe_actions(env.action_space)
        describe_observations(env.observation_space)
        shown = _try_out(source.env_id, env)
        for observation, _ in shown:
            _check_observation(source.env_id, env.observation_space, observation)
        masks = [info[MASK] for _, info in shown if use_mask and MASK in info]
        for mask in masks:
            read_mask(mask, action)
        return EnvironmentSpaces(describe_observations(observed_space(env, action, bool(masks))), action)


def _try_out(env_id: str, env: gymnasium.Env[Any, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """One reset and one step, which may take long: observation and info of both.

    Raises:
        ConfigurationError: it raised, or speaks the API of Gym before 0.26.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                answer: Any = env.unwrapped.reset(seed=0)
            except TypeError as error:
                if "seed" not in str(error):
                    raise
                answer = None  # reset() without the argument `seed`
            if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
                first, info = env.reset(seed=0)
                info = copy.copy(info)
                answer = _try_step(env, info)
                if len(answer) == 5:
                    plain_numbers(*answer[1:4])
                    return [(first, info), (answer[0], answer[4])]
        except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
            raise ConfigurationError(
                f"environment {env_id!r} raised in its first reset or step: {type(error).__name__}: {error}"
            ) from error
    raise ConfigurationError(
        f"environment {env_id!r} does not speak the API of gymnasium 1.x: reset must return "
        "(observation, info) and step (observation, reward, terminated, truncated, info)"
    )


def _try_step(env: gymnasium.Env[Any, Any], info: dict[str, Any]) -> tuple[Any, ...]:
    """What a step answers: five values, or the four of old Gym, on which gymnasium's wrappers raise."""
    try:
        return env.step(_sample(env.action_space, info))
    except ValueError:  # theirs, or the environment's own
        _, info = env.unwrapped.reset(seed=0)
        answer: tuple[Any, ...] = env.unwrapped.step(_sample(env.unwrapped.action_space, info))
        if len(answer) == 5:
            raise
        return answer


def _check_observation(env_id: str, space: gymnasium.Space[Any], observation: Any) -> None:
    """Refuse what a vector of such environments could not hold."""
    try:
        concatenate(space, [observation], cast(Any, create_empty_array(space, 1)))
    except Exception as error:
        found = f"{type(observation).__name__} {getattr(observation, 'shape', '')}".rstrip()
        raise ConfigurationError(
            f"environment {env_id!r} does not observe what its space {space} says, but a {found}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def _sample(space: gymnasium.Space[Any], info: dict[str, Any]) -> Any:
    """An action that the environment's mask, if it has one, allows."""
    try:
        action = describe_actions(space)
        allowed = np.split(read_mask(info[MASK], action), action.offsets[1:])
    except (KeyError, ConfigurationError):  # none, or a wrong one: that is refused where it is used
        return space.sample()
    first = np.array([[flags.argmax() for flags in allowed]])
    actions = action.to_environment(action.join(first, np.zeros((1, action.dimensions), np.float32)))
    return next(iter(iterate(batch_space(space, 1), actions)))


def make_vector(
    source: EnvironmentSource, count: int, vectorization: Vectorization, *, masked: bool = False
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build `count` environments stepped together.

    `auto` takes gymnasium's native vector environment when the id has one and it accepts the
    arguments, else steps them one after another. Where the mode of automatic reset can be chosen
    it is SAME_STEP, which wastes no step; callers read the mode from the metadata. With `masked` the
    observations are a Dict of the observation and its action mask.

    Raises:
        ConfigurationError: they cannot be made, or not side by side.
    """
    if vectorization == "auto" and not masked and not source.wrappers:
        native = _make_native(source, count)
        if native is not None:
            return native
    builders = [partial(_make_plain, source, masked)] * count
    try:
        if vectorization == "async":
            return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
        return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # each with spaces of its own, for one
        raise ConfigurationError(
            f"environment {source.env_id!r} cannot be stepped {count} at a time: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def close_quietly(env: _AnyEnv) -> None:
    """Free environments; what goes wrong in it is logged, not raised."""
    try:
        env.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 code of the user's
        _log.warning("closing %s raised %s: %s", env, type(error).__name__, first_line(error))


@contextmanager
def closing_quietly(env: _AnyEnvT) -> Iterator[_AnyEnvT]:
    """An environment, or a vector of them, that is freed in the end."""
    try:
        yield env
    finally:
        close_quietly(env)


def _make_plain(source: EnvironmentSource, masked: bool) -> gymnasium.Env[Any, Any]:
    return PlainEnvironment(make_single(source), masked)


def _make_native(source: EnvironmentSource, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
    single = make_single(source)  # turns every reason for failure into one line
    spec, spaces = single.spec, (single.observation_space, single.action_space)
    close_quietly(single)
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    if source.env_kwargs.get("max_episode_steps") == -1:
        return None  # no limit, to `gymnasium.make`; to a native one a limit that every step exceeds
    try:
        arguments: dict[str, Any] = dict(source.env_kwargs)
        native = gymnasium.make_vec(spec.id, count, vectorization_mode="vector_entry_point", **arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 it lacks an argument or a package, say
        _log.debug("no native version: %s: %s", type(error).__name__, first_line(error))
        return None
    if _can_stand_for(native, *spaces):
        return native
    close_quietly(native)  # that of the Arcade Learning Environment shows other pictures, for one
    return None


def _can_stand_for(
    native: gymnasium.vector.VectorEnv[Any, Any, Any],
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
) -> bool:
    """Whether it is like the single environments, and says how it resets them."""
    if not isinstance(native.metadata.get("autoreset_mode"), AutoresetMode):
        return False
    try:
        own = _describe(native.single_observation_space, native.single_action_space)
    except ConfigurationError:
        return False
    return own == _describe(observation, action)


def _describe(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> EnvironmentSpaces:
    return EnvironmentSpaces(describe_observations(observation), describe_actions(action))
