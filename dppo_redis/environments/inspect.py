"""Inspects an environment with one reset and one step, and describes its spaces. Only this module does so.

The result is plain frozen values. An environment that cannot be trained on is refused, with the reason.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dppo_redis.environments.copy_number import LOOK, CopyNumber
from dppo_redis.environments.failures import is_final
from dppo_redis.environments.make import closing_quietly, make_single
from dppo_redis.environments.masks import MASK, read_mask
from dppo_redis.environments.plain import observed_space, plain_numbers
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.spec import EnvironmentSource, source_of
from dppo_redis.service.plugins import first_line
from dppo_redis.service.process_state import keeping_process_state
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations


def check_evaluation(config: RunConfig, spaces: EnvironmentSpaces) -> None:
    """Refuse evaluation wrappers that change the spaces, so that a policy for `spaces` cannot play.

    Raises:
        ConfigurationError: as `inspect` does, or the spaces differ; the message names the differences.
    """
    wrappers = config.evaluation.wrappers
    if wrappers is None or wrappers == config.wrappers or not config.evaluation.enabled:
        return
    try:
        seen = inspect(replace(source_of(config), wrappers=wrappers), use_mask=config.use_action_mask)
    except ConfigurationError as error:
        prefix = "evaluation." if str(error).startswith("wrappers:") else "evaluation.wrappers: "
        raise ConfigurationError(f"{prefix}{error}") from error
    differing = [
        f"{name} {after} where training has {before}"
        for name, before, after in (
            ("observations", spaces.observation.to_json(), seen.observation.to_json()),
            ("actions", spaces.action.to_json(), seen.action.to_json()),
        )
        if before != after
    ]
    if differing:
        raise ConfigurationError(
            f"evaluation.wrappers: with {list(wrappers)} the environment has {' and '.join(differing)}: "
            "evaluation may change rewards and episodes, but observations and actions must be the same"
        )


def inspect(
    source: EnvironmentSource, *, use_mask: bool = True, number: CopyNumber = LOOK
) -> EnvironmentSpaces:
    """The spaces of an environment; see `inspecting`.

    Raises:
        ConfigurationError, EnvironmentBrokenError: as `inspecting` does.
    """
    with inspecting(source, use_mask=use_mask, number=number) as spaces:
        return spaces


@contextmanager
def inspecting(
    source: EnvironmentSource, *, use_mask: bool = True, number: CopyNumber = LOOK
) -> Iterator[EnvironmentSpaces]:
    """Build one environment, reset it, step it once, and describe its spaces. The context's end closes it.

    Raises:
        ConfigurationError: the environment cannot be made, follows the old Gym API, has an unsupported
            space, an observation that does not fit its space, more than one reward for a step, or an
            action mask that does not fit its actions.
        EnvironmentBrokenError: it raised; a retry may succeed.
    """
    with closing_quietly(make_single(source, number)) as env:
        action = describe_actions(env.action_space)
        describe_observations(env.observation_space)
        with keeping_process_state():
            seen = _reset_and_step(source.env_id, env)
        for observation, _ in seen:
            _check_observation(source.env_id, env.observation_space, observation)
        masks = [info[MASK] for _, info in seen if use_mask and MASK in info]
        for mask in masks:
            read_mask(mask, action)
        yield EnvironmentSpaces(describe_observations(observed_space(env, action, bool(masks))), action)


def _reset_and_step(env_id: str, env: gymnasium.Env[Any, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Observation and info of one reset and one step, which may take long.

    Raises:
        ConfigurationError: the environment follows the API of Gym before 0.26, or returns several rewards.
        EnvironmentBrokenError: it raised.
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
                    _check_numbers(env_id, answer)
                    return [(first, info), (answer[0], answer[4])]
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            kind = ConfigurationError if is_final(error) else EnvironmentBrokenError
            raise kind(
                f"environment {env_id!r} raised in its first reset or step: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
    raise ConfigurationError(
        f"environment {env_id!r} does not follow the API of gymnasium 1.x: reset must return "
        "(observation, info) and step (observation, reward, terminated, truncated, info)"
    )


def _check_numbers(env_id: str, answer: tuple[Any, ...]) -> None:
    """Refuse a step that returns more than one reward, or more than one flag of a kind."""
    try:
        plain_numbers(*answer[1:4])
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"environment {env_id!r} returned from step {error}") from error


def _try_step(env: gymnasium.Env[Any, Any], info: dict[str, Any]) -> tuple[Any, ...]:
    """The answer of a step: five values, or the four of old Gym, for which gymnasium's wrappers raise."""
    try:
        return env.step(sample_action(env.action_space, info))
    except ValueError:  # of these wrappers, or of the environment itself
        _, info = env.unwrapped.reset(seed=0)
        answer: tuple[Any, ...] = env.unwrapped.step(sample_action(env.unwrapped.action_space, info))
        if len(answer) == 5:
            raise
        return answer


def _check_observation(env_id: str, space: gymnasium.Space[Any], observation: Any) -> None:
    """Refuse an observation that a vector of such environments could not hold."""
    try:
        concatenate(space, [observation], cast(Any, create_empty_array(space, 1)))
    except Exception as error:
        found = f"{type(observation).__name__} {getattr(observation, 'shape', '')}".rstrip()
        raise ConfigurationError(
            f"environment {env_id!r} returned a {found} as observation, which does not fit its "
            f"space {space}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def sample_action(space: gymnasium.Space[Any], info: dict[str, Any]) -> Any:
    """An action of `space` that the action mask in `info` allows, if there is one."""
    try:
        action = describe_actions(space)
        allowed = np.split(read_mask(info[MASK], action), action.offsets[1:])
    except (
        KeyError,
        ConfigurationError,
    ):  # there is no mask, or a wrong one, which is refused when it is used
        return space.sample()
    first = np.array([[flags.argmax() for flags in allowed]])
    actions = action.to_environment(action.join(first, np.zeros((1, action.dimensions), np.float32)))
    return next(iter(iterate(batch_space(space, 1), actions)))
