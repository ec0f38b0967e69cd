"""Decides which failures of an environment are final, and retries the others."""

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, EnvironmentHangsError, StoppedError
from dppo_redis.service.child import ChildTracebackError
from dppo_redis.service.plugins import first_line
from dppo_redis.service.shutdown import StopRequest

T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_log = logging.getLogger("dppo")


def is_final(error: BaseException, arguments: Mapping[str, Any] | None = None) -> bool:
    """Whether a retry would fail in the same way: a wrong name, import, syntax, argument or API.

    Other errors of the user's code may pass: a missing licence, a used port, a simulator that still starts.
    """
    import gymnasium  # only a process that has met an error of an environment needs it

    if isinstance(error, (ConfigurationError, gymnasium.error.Error, ImportError, SyntaxError)):
        return True
    if isinstance(error, TypeError):
        return any(_is_about_arguments(one, arguments or {}) for one in _chain(error))
    # Raised by gymnasium's checker, or because a module has no such class.
    return isinstance(error, (AssertionError, AttributeError)) and _raised_by_gymnasium(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, because gymnasium wraps a TypeError of the constructor in another one."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_about_arguments(error: BaseException, arguments: Mapping[str, Any]) -> bool:
    """Whether the call raised `error` before the user's code ran, or its text names a passed argument."""
    if error.__cause__ is None and _raised_by_gymnasium(error):
        return True
    return any(f"unexpected keyword argument '{name}'" in str(error) for name in arguments)


def _raised_by_gymnasium(error: BaseException) -> bool:
    """Whether code of gymnasium raised `error`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    name = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return name.partition(".")[0] == "gymnasium"


def until_it_passes(attempt: Callable[[], T], retry_s: float, stop: StopRequest) -> T:
    """Return what `attempt` returns; retry it after growing pauses while its error is not final.

    The first traceback is logged in full, later errors in one line.

    Raises:
        EnvironmentBrokenError: `attempt` has failed for `retry_s` seconds, or the environment hangs.
        StoppedError: a stop was requested meanwhile.
    """
    began: float | None = None  # time of the first failure
    pause_s = _FIRST_PAUSE_S
    while not stop.requested:
        try:
            return attempt()
        except EnvironmentHangsError:
            raise
        except EnvironmentBrokenError as error:
            now, line = time.monotonic(), first_line(error)
            first, began = began is None, now if began is None else began
            left_s = began + retry_s - now
            if first:
                _log.error("%s: trying again for %g s\n%s", line, retry_s, traceback_of(error))
            elif left_s > 0:
                _log.warning("%s: trying again for %.0f s more", line, left_s)
            if left_s <= 0:
                tried = f", tried again for {now - began:.0f} s, see env_retry_s" if retry_s else ""
                raise EnvironmentBrokenError(f"{line}{tried}") from error
            stop.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise StoppedError("stopped while an environment was being built")


def traceback_of(error: EnvironmentBrokenError) -> str:
    """The traceback of the user's error, in this process or in a child; "" if there is none."""
    cause = error.__cause__
    if cause is None or isinstance(cause, ChildTracebackError):
        return str(cause or "")
    return "".join(traceback.format_exception(cause))
