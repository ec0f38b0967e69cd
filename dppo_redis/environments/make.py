"""Builds environments, and refuses unsupported ones by name. The only user of `gymnasium.make`."""

import logging
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from dppo_redis.environments.copy_number import LOOK, CopyNumber
from dppo_redis.environments.failures import is_final
from dppo_redis.environments.normalisers import refuse_normalisers
from dppo_redis.environments.plain import PlainEnvironment, copy_innermost
from dppo_redis.environments.sync_vector import SameStepVector
from dppo_redis.environments.wrappers import wrap
from dppo_redis.errors import ConfigurationError, DppoError, EnvironmentBrokenError
from dppo_redis.protocol.spec import EnvironmentSource
from dppo_redis.service.plugins import first_line, import_module_of
from dppo_redis.service.process_state import TookTooLongError, interrupted_after, keeping_process_state
from dppo_redis.spaces.gymnasium_spaces import describe_spaces

Vectorization = Literal["auto", "sync", "async"]
_OF_GYMNASIUM = {OrderEnforcing, PassiveEnvChecker, TimeLimit}  # wrappers that `gymnasium.make` adds
CLOSE_LIMIT_S = 10.0  # for closing environments while the process continues
_log = logging.getLogger("dppo")
_AnyEnv = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
T = TypeVar("T")
SeparateT = TypeVar("SeparateT")  # environments that do not step together
_AnyEnvT = TypeVar("_AnyEnvT", bound=_AnyEnv)
Choose = Callable[[gymnasium.Env[Any, Any]], Vectorization]  # of a single environment: sync or async


def make_single(source: EnvironmentSource, number: CopyNumber = LOOK) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers.

    Raises:
        ConfigurationError: unknown id, a missing package, wrong arguments, the API of old Gym, or a wrapper
            that keeps statistics of its own.
        EnvironmentBrokenError: the constructor raised; a retry may succeed.
    """
    source = number.of(source)
    if not source.env_id:
        raise ConfigurationError("name an environment, for example: dppo-redis train CartPole-v1")
    with keeping_process_state():
        env = _make(source)
        try:
            refuse_normalisers(env, f"environment {source.env_id!r}")
            if source.wrappers or not _OF_GYMNASIUM.issuperset(_layers(env)):
                env = copy_innermost(env)
            for wrapper in source.wrappers:
                env = wrap(env, wrapper)
        except DppoError:
            close_quietly(env)
            raise
    return env


def _make(source: EnvironmentSource) -> gymnasium.Env[Any, Any]:
    env_id, arguments = source.env_id, dict[str, Any](source.env_kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice of gymnasium's checker is not an error
            import_module_of(env_id)
            return gymnasium.make(env_id, **arguments)
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
        cause = first_line(error).rstrip(".")
        raise ConfigurationError(
            f"environment {env_id!r} cannot be made: {cause}. Check the id, install the package "
            "that has it, or name the module that registers it as module:EnvId"
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"environment {env_id!r} cannot be made: {error}") from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        kind = ConfigurationError if is_final(error, arguments) else EnvironmentBrokenError
        raise kind(
            f"environment {env_id!r} cannot be made: {type(error).__name__}: {first_line(error)}"
        ) from error


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[type[Any]]:
    """The types of the wrappers around an environment, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield type(env)
        env = env.env


def make_vector(
    source: EnvironmentSource,
    count: int,
    vectorization: Vectorization,
    *,
    masked: bool = False,
    number: CopyNumber = LOOK,
    choose: Choose | None = None,
    processes: Callable[[], SeparateT] | None = None,
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | SeparateT:
    """Build `count` environments that are stepped together, or by `processes`.

    `auto` takes gymnasium's native vector environment if the id has one that accepts the arguments. If not,
    `choose` looks at a single environment and says how the others are stepped; the single one is closed
    before the others are built. Without `choose` they are stepped one after another. If `choose` says async,
    `processes`, if given, starts them.

    The mode of automatic reset is SAME_STEP, which wastes no step, unless a native version has another mode;
    callers read it from the metadata. With `masked` the observations are a Dict of the observation and its
    action mask. Copies are numbered from `number` on; a native version counts as one copy.

    Raises:
        ConfigurationError: the environments cannot be made, or cannot be stepped together.
        EnvironmentBrokenError: as `make_single` does.
    """
    is_free = vectorization == "auto"
    if is_free:
        best = _choose(source, count, masked, number, choose)
        if isinstance(best, gymnasium.vector.VectorEnv):
            return best
        vectorization = best
    numbers = (replace(number, copy=number.copy + n) for n in range(count))
    builders = [partial(make_plain, source, masked, one) for one in numbers]
    try:
        with keeping_process_state():
            if vectorization == "async" and is_free:
                parallel = (
                    _try_processes(partial(_make_processes, builders))
                    if processes is None
                    else _try_processes(processes)
                )
                if parallel is not None:
                    return parallel
                vectorization = "sync"
            return _make_side_by_side(builders, vectorization)
    except DppoError:
        raise
    except (EOFError, ConnectionError) as error:
        raise EnvironmentBrokenError("a worker process of the environments died") from error
    except (Exception, SystemExit) as error:  # for example, the copies' spaces differ
        raise not_steppable_together(source, count, error) from error


def not_steppable_together(source: EnvironmentSource, count: int, error: BaseException) -> ConfigurationError:
    """The refusal of environments of which `count` cannot be stepped together."""
    return ConfigurationError(
        f"environment {source.env_id!r} cannot be stepped {count} at a time: "
        f"{type(error).__name__}: {first_line(error)}"
    )


def _make_side_by_side(
    builders: Sequence[Callable[[], PlainEnvironment]], vectorization: Vectorization
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build environments. If one cannot be built, close the others, so that for example a licence is free."""
    if vectorization == "async":
        return _make_processes(builders)
    built: list[PlainEnvironment] = []

    def build_here(build: Callable[[], PlainEnvironment]) -> PlainEnvironment:
        built.append(build())
        return built[-1]

    try:
        return SameStepVector([partial(build_here, build) for build in builders])
    except BaseException:
        for env in built:
            close_quietly(env)
        raise


def _make_processes(builders: Sequence[Callable[[], PlainEnvironment]]) -> AsyncVectorEnv:
    return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)


def _try_processes(start: Callable[[], T]) -> T | None:
    """Start each environment in its own process; None if that fails, because `auto` chose processes."""
    others = set(multiprocessing.active_children())
    try:
        return start()
    except (Exception, SystemExit) as error:  # noqa: BLE001 for example, a limit on processes
        _log.warning("not stepping in worker processes: %s: %s", type(error).__name__, first_line(error))
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
            process.join()
        return None


def close_quietly(env: _AnyEnv) -> None:
    """Close environments; errors are logged, not raised."""
    try:
        with keeping_process_state(), interrupted_after(CLOSE_LIMIT_S):
            env.close()
    except (Exception, SystemExit, TookTooLongError) as error:  # noqa: BLE001 the user's code may raise anything
        _log.warning("closing %s raised %s: %s", env, type(error).__name__, first_line(error))


@contextmanager
def closing_quietly(env: _AnyEnvT) -> Iterator[_AnyEnvT]:
    """A context that closes an environment, or a vector of them, at its end."""
    try:
        yield env
    finally:
        close_quietly(env)


def make_plain(source: EnvironmentSource, masked: bool, number: CopyNumber = LOOK) -> PlainEnvironment:
    """Build one environment in the form that vectors need; raises as `make_single` does."""
    return PlainEnvironment(make_single(source, number), masked)


def _choose(
    source: EnvironmentSource, count: int, masked: bool, number: CopyNumber, choose: Choose | None
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | Vectorization:
    """Build the native version, or choose another vectorization; a single environment for this is closed."""
    may_be_native = not masked and not source.wrappers and _may_have_a_native_version(source.env_id)
    if not may_be_native and choose is None:
        return "sync"
    with closing_quietly(
        make_single(source, number)
    ) as single:  # turns each reason for a failure into one line
        spec, spaces = single.spec, (single.observation_space, single.action_space)
        has_native = may_be_native and _has_native(spec, source)
        if not has_native:
            return choose(single) if choose is not None else "sync"
    assert spec is not None
    native = _make_native(spec, source, count, number, *spaces)
    if native is not None:
        return native
    if choose is None:
        return "sync"
    with closing_quietly(make_single(source, number)) as single:
        return choose(single)


def _has_native(spec: EnvSpec | None, source: EnvironmentSource) -> bool:
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return False
    # For `gymnasium.make` -1 means no limit; for a native version it is a limit that every step exceeds.
    return bool(source.env_kwargs.get("max_episode_steps") != -1)


def _make_native(
    spec: EnvSpec,
    source: EnvironmentSource,
    count: int,
    number: CopyNumber,
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
    try:
        arguments: dict[str, Any] = dict(number.of(source).env_kwargs)
        with keeping_process_state():
            native = gymnasium.make_vec(spec.id, count, vectorization_mode="vector_entry_point", **arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 for example, it lacks an argument or a package
        _log.debug("no native version: %s: %s", type(error).__name__, first_line(error))
        return None
    refuse_normalisers(native, f"environment {source.env_id!r}")
    if _can_stand_for(native, observation, action):
        return native
    close_quietly(native)  # for example, that of the Arcade Learning Environment shows other images
    return None


def _may_have_a_native_version(env_id: str) -> bool:
    """Whether the id may have a native version. If not, no copy is built to find out."""
    try:
        import_module_of(env_id)
        return gymnasium.spec(env_id.rpartition(":")[2]).vector_entry_point is not None
    except (Exception, SystemExit):  # noqa: BLE001 building the environment reports the error
        return True


def _can_stand_for(
    native: gymnasium.vector.VectorEnv[Any, Any, Any],
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
) -> bool:
    """Whether a native version has the spaces of the single environment and states its mode of reset."""
    if not isinstance(native.metadata.get("autoreset_mode"), AutoresetMode):
        return False
    try:
        own = describe_spaces(native.single_observation_space, native.single_action_space)
    except ConfigurationError:
        return False
    return own == describe_spaces(observation, action)
