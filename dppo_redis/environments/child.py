"""Inspects an environment in a child process, so that commands need not run the user's code themselves.

The environment may hang, crash or misbehave in the child, within a time limit. Errors that may pass are
retried. gymnasium is imported when an environment is inspected: a learner that finds the spaces in a file
does without.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from dppo_redis.environments.failures import until_it_passes
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import describe_started
from dppo_redis.protocol.spec import EnvironmentSource, RunDescription, source_of
from dppo_redis.service.child import ask_child
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces

_KNOB = "--env-timeout-s"
_LEAST_LIMIT_S = 60.0  # of a check of the user's code, in which the child also imports torch


def spaces_of(config: RunConfig, stop: StopRequest | None = None) -> EnvironmentSpaces:
    """The spaces of the environment of `config`, as it is installed here.

    Raises:
        ConfigurationError, EnvironmentBrokenError, StoppedError: as `inspect_in_child` does.
    """
    return inspect_in_child(
        source_of(config),
        use_mask=config.use_action_mask,
        limit_s=config.env_timeout_s,
        retry_s=config.env_retry_s,
        stop=stop,
    )


def check_evaluation(config: RunConfig, spaces: EnvironmentSpaces, stop: StopRequest) -> None:
    """Refuse evaluation wrappers that change the spaces, so that a policy for `spaces` cannot play.

    Raises:
        ConfigurationError: as `inspect.check_evaluation` does.
        EnvironmentBrokenError, StoppedError: as `inspect_in_child` does.
    """
    if config.evaluation.wrappers is not None:
        from dppo_redis.environments import inspect

        check = partial(inspect.check_evaluation, config, spaces)
        until_it_passes(
            lambda: try_in_child("the environment of the evaluation", check, config, stop),
            config.env_retry_s,
            stop,
        )


def describe(config: RunConfig, stop: StopRequest | None = None) -> RunDescription:
    """The description of a started run, with the spaces of the environment that is installed here."""
    return describe_started(config, spaces_of(config, stop))


def inspect_in_child(
    source: EnvironmentSource,
    *,
    use_mask: bool,
    limit_s: float,
    retry_s: float,
    stop: StopRequest | None = None,
) -> EnvironmentSpaces:
    """The spaces of an environment. A child process may take `limit_s` seconds to find them.

    Raises:
        ConfigurationError: the environment is refused.
        EnvironmentBrokenError: it hangs, or raises or crashes for `retry_s` seconds.
        StoppedError: a stop was requested meanwhile.
    """
    from dppo_redis.environments.inspect import inspecting  # here, so that the child inherits the modules

    subject = f"environment {source.env_id!r}"
    stop = stop or StopRequest()
    work = partial(inspecting, source, use_mask=use_mask)
    attempts = itertools.count()

    def attempt() -> EnvironmentSpaces:
        is_first = next(attempts) == 0
        return ask_child(subject, work, limit_s=limit_s, knob=_KNOB, stop=stop, traces=is_first)

    return until_it_passes(attempt, retry_s, stop)


def try_in_child(subject: str, check: Callable[[], None], config: RunConfig, stop: StopRequest) -> None:
    """Run a check of the user's own code, for example a network, in a child; messages name the `subject`.

    Raises:
        ConfigurationError: as `check` does.
        EnvironmentBrokenError: the check hangs or crashes.
        StoppedError: a stop was requested meanwhile.
    """

    def work() -> AbstractContextManager[None]:
        check()
        return nullcontext()

    ask_child(subject, work, limit_s=max(_LEAST_LIMIT_S, config.env_timeout_s), stop=stop)
