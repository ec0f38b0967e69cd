"""Builds environments. The only user of `gymnasium.make`; refuses what is unsupported, by name."""

import ast
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from dppo_redis.environments.plain import PlainEnvironment
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.spec import EnvironmentSource
from dppo_redis.service.plugins import find_modules_here, first_line, import_named
from dppo_redis.spaces.environment_spaces import describe_spaces

Vectorization = Literal["auto", "sync", "async"]
_NORMALISERS = {
    NormalizeObservation: "ppo.normalise_observations",
    NormalizeReward: "ppo.normalise_returns",
}
_log = logging.getLogger("dppo")
_AnyEnv = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
_AnyEnvT = TypeVar("_AnyEnvT", bound=_AnyEnv)
Choose = Callable[[gymnasium.Env[Any, Any]], Vectorization]  # of a single environment: sync or async


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


def make_vector(
    source: EnvironmentSource,
    count: int,
    vectorization: Vectorization,
    *,
    masked: bool = False,
    choose: Choose | None = None,
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build `count` environments stepped together.

    `auto` takes gymnasium's native vector environment when the id has one and it accepts the
    arguments, else what `choose` says of a single one, which is closed before the others are built;
    without it they are stepped one after another. Where the mode of automatic reset can be chosen
    it is SAME_STEP, which wastes no step; callers read the mode from the metadata. With `masked` the
    observations are a Dict of the observation and its action mask.

    Raises:
        ConfigurationError: they cannot be made, or not side by side.
    """
    is_free = vectorization == "auto"
    if is_free:
        best = _choose(source, count, masked, choose)
        if isinstance(best, gymnasium.vector.VectorEnv):
            return best
        vectorization = best
    builders = [partial(_make_plain, source, masked)] * count
    try:
        if vectorization == "async" and is_free:
            parallel = _try_processes(builders)
            if parallel is not None:
                return parallel
        elif vectorization == "async":
            return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
        return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # each with spaces of its own, for one
        raise ConfigurationError(
            f"environment {source.env_id!r} cannot be stepped {count} at a time: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def _try_processes(builders: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> AsyncVectorEnv | None:
    """In a process each; None where that cannot be done: they were chosen here and not asked for."""
    others = set(multiprocessing.active_children())
    try:
        return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    except (Exception, SystemExit) as error:  # noqa: BLE001 too few processes or files, or a space it lacks
        _log.warning("not in processes: %s: %s", type(error).__name__, first_line(error))
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
            process.join()
        return None


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


def _choose(
    source: EnvironmentSource, count: int, masked: bool, choose: Choose | None
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | Vectorization:
    """The native version, or how else; a single environment that is looked at is closed first."""
    may_be_native = not masked and not source.wrappers
    if not may_be_native and choose is None:
        return "sync"
    with closing_quietly(make_single(source)) as single:  # turns every reason for failure into one line
        spec, spaces = single.spec, (single.observation_space, single.action_space)
        has_native = may_be_native and _has_native(spec, source)
        if not has_native:
            return choose(single) if choose is not None else "sync"
    assert spec is not None
    native = _make_native(spec, source, count, *spaces)
    if native is not None:
        return native
    if choose is None:
        return "sync"
    with closing_quietly(make_single(source)) as single:
        return choose(single)


def _has_native(spec: EnvSpec | None, source: EnvironmentSource) -> bool:
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return False
    # -1 is no limit, to `gymnasium.make`; to a native one a limit that every step exceeds
    return bool(source.env_kwargs.get("max_episode_steps") != -1)


def _make_native(
    spec: EnvSpec,
    source: EnvironmentSource,
    count: int,
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
    try:
        arguments: dict[str, Any] = dict(source.env_kwargs)
        native = gymnasium.make_vec(spec.id, count, vectorization_mode="vector_entry_point", **arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 it lacks an argument or a package, say
        _log.debug("no native version: %s: %s", type(error).__name__, first_line(error))
        return None
    if _can_stand_for(native, observation, action):
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
        own = describe_spaces(native.single_observation_space, native.single_action_space)
    except ConfigurationError:
        return False
    return own == describe_spaces(observation, action)
