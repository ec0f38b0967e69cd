"""Builds environments. The only user of `gymnasium.make`; refuses what is unsupported, by name."""

import ast
import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dppo_redis.actions import ActionSpec, describe_actions
from dppo_redis.errors import ConfigurationError
from dppo_redis.plugins import find_modules_here, first_line, import_named
from dppo_redis.spaces import Array, MaskSpace, ObservationSpec, describe_observations
from dppo_redis.spec import EnvironmentSource

Vectorization = Literal["auto", "sync", "async"]
MASK = "action_mask"


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
        return wrapped
    except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
        raise ConfigurationError(
            f"wrappers: {text} cannot be applied: {type(error).__name__}: {first_line(error)}"
        ) from error


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
            observation of another shape than its space, or an action mask of another than its actions.
    """
    env = make_single(source)
    try:
        action = describe_actions(env.action_space)
        describe_observations(env.observation_space)
        first, infos = _check_api(source.env_id, env)
        _check_observation(source.env_id, env.observation_space, first)
        masked = use_mask and MASK in infos
        if masked:
            _read_mask(infos[MASK], action)
        return EnvironmentSpaces(describe_observations(_observation_space(env, action, masked)), action)
    finally:
        env.close()


def _check_api(env_id: str, env: gymnasium.Env[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Refuse the API of Gym before 0.26: reset without info, step of four values. Returns reset's answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                answer: Any = env.unwrapped.reset(seed=0)
            except TypeError as error:
                if "seed" not in str(error):
                    raise
                answer = None  # reset() without the argument `seed`
            two = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
            five = two and len(env.unwrapped.step(_sample(env.unwrapped.action_space, answer[1]))) == 5
            if two and five:
                return env.reset(seed=0)
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
            raise ConfigurationError(
                f"environment {env_id!r} raised in its first reset or step: {type(error).__name__}: {error}"
            ) from error
    raise ConfigurationError(
        f"environment {env_id!r} does not speak the API of gymnasium 1.x: reset must return "
        "(observation, info) and step (observation, reward, terminated, truncated, info)"
    )


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
    if MASK not in info:
        return space.sample()
    action = describe_actions(space)
    allowed = np.split(_read_mask(info[MASK], action), action.offsets[1:])
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
    """
    if vectorization == "auto" and not masked and not source.wrappers:
        native = _make_native(source, count)
        if native is not None:
            return native
    builders = [partial(_make_plain, source, masked)] * count
    if vectorization == "async":
        return AsyncVectorEnv(builders, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)


class _Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment as our vectors want it.

    It keeps `info` from them, which they cannot stack where its types vary; copies each observation,
    as environments reuse their buffers; and puts the action mask beside the observation.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], masked: bool) -> None:
        super().__init__(env)
        self._masked = masked
        self._action = describe_actions(env.action_space)
        self.observation_space = _observation_space(env, self._action, masked)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        return self._observe(observation, info), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not isinstance(reward, float):  # an array of one number, for example
            numbers: Array = np.asarray(reward)
            if numbers.size != 1:
                raise ValueError(f"a reward of shape {numbers.shape}, where one number is needed")
            reward = numbers.item()
        return self._observe(observation, info), reward, terminated, truncated, {}

    def _observe(self, observation: Any, info: dict[str, Any]) -> Any:
        observation = copy.deepcopy(observation)
        if not self._masked:
            return observation
        return {"observation": observation, MASK: _read_mask(info.get(MASK), self._action)}


def _observation_space(
    env: gymnasium.Env[Any, Any], action: ActionSpec, masked: bool
) -> gymnasium.Space[Any]:
    if not masked:
        return env.observation_space
    return gymnasium.spaces.Dict({"observation": env.observation_space, MASK: MaskSpace(action.choices)})


def _read_mask(mask: Any, action: ActionSpec) -> Array:
    """An environment's action mask as flags [choices].

    Without a mask everything is allowed, and so is each category that has nothing allowed, as in a
    final state: something has to be drawn.

    Raises:
        ConfigurationError: it has another shape than the choices of the action space.
    """
    allowed = np.ones(action.choices, np.int8)
    if mask is not None:
        several = isinstance(mask, tuple | list)
        given = np.concatenate([np.ravel(part) for part in mask]) if several else np.ravel(mask)
        if given.shape != allowed.shape or not action.choices:
            raise ConfigurationError(
                f'info["{MASK}"] has shape {given.shape}; the action space has '
                f"{action.choices} choices, one flag for each: {list(action.categories)}"
            )
        allowed[:] = given != 0
        for first, size in zip(action.offsets, action.categories, strict=True):
            if not allowed[first : first + size].any():
                allowed[first : first + size] = 1
    return allowed


def _make_plain(source: EnvironmentSource, masked: bool) -> gymnasium.Env[Any, Any]:
    return _Plain(make_single(source), masked)


def _make_native(source: EnvironmentSource, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
    single = make_single(source)  # turns every reason for failure into one line
    spec, spaces = single.spec, (single.observation_space, single.action_space)
    single.close()
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    try:
        arguments: dict[str, Any] = dict(source.env_kwargs)
        native = gymnasium.make_vec(spec.id, count, vectorization_mode="vector_entry_point", **arguments)
    except (gymnasium.error.Error, ImportError, TypeError):
        return None  # the native version lacks an argument or a package that the single one has
    if _describe(*spaces) == _describe(native.single_observation_space, native.single_action_space):
        return native
    native.close()  # that of the Arcade Learning Environment shows other pictures, for one
    return None


def _describe(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> EnvironmentSpaces:
    return EnvironmentSpaces(describe_observations(observation), describe_actions(action))
