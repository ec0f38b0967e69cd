"""Every error this product raises, and the exit status each one means.

One tree: callers catch these types only; errors of libraries are wrapped with their cause.
A message says what broke, on whose side, and what to do about it.
"""

from enum import IntEnum

_LONGEST_DETAIL = 300


class ExitStatus(IntEnum):
    """Exit statuses of every command and service; supervisord's configuration relies on them."""

    DONE = 0
    FAILED = 1
    UNAVAILABLE = 69  # a service that an interactive command needs cannot be reached
    ENVIRONMENT_BROKEN = 70
    IO_ERROR = 74  # the last checkpoint could not be saved; all else went well
    FENCED = 76  # another learner took over this run
    CONFIGURATION = 78  # a human has to change something; restarting does not help
    GAVE_UP = 79  # the service failed too often; supervisord does not restart it
    INTERRUPTED = 130  # Ctrl-C, after a clean stop
    TERMINATED = 143  # SIGTERM or SIGHUP, after a clean stop


class DppoError(Exception):
    """Base of all errors of this product."""

    exit_status = ExitStatus.FAILED


class ConfigurationError(DppoError):
    """A setting, environment, password or access right that a human has to correct."""

    exit_status = ExitStatus.CONFIGURATION


class LeaseHeldError(ConfigurationError):
    """A living learner leads the run; two cannot."""


class DamagedSpecError(ConfigurationError):
    """The run's spec key holds no description; a living learner puts it back within two seconds."""


class UnavailableError(DppoError):
    """Redis could not be reached within the time an interactive command waits."""

    exit_status = ExitStatus.UNAVAILABLE


class RunFailedError(DppoError):
    """A run ended because a service of it, or the command itself, ended in a way that no restart mends."""


class NoPolicyError(DppoError):
    """A run has no policy to load yet."""


class ObservationError(DppoError, ValueError):
    """An observation, or an action mask, of another form than the policy was trained on."""


class WireError(DppoError):
    """Bytes that are not a valid message of ours. `reason` is the counter it adds to."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}"[:_LONGEST_DETAIL])  # it may quote what was received
        self.reason = reason


class EnvironmentBrokenError(DppoError):
    """The environment kept raising; its own traceback is in the log."""

    exit_status = ExitStatus.ENVIRONMENT_BROKEN


class EnvironmentNotBuiltError(EnvironmentBrokenError):
    """The environment could not be built or reset; a retry may help (a licence, a port, a slow start)."""


class EnvironmentHangsError(EnvironmentBrokenError):
    """The environment did not answer within its limit; trying again would take as long."""


class FencedError(DppoError):
    """This learner lost its lease to another one; nothing it writes is accepted any more."""

    exit_status = ExitStatus.FENCED


class CheckpointError(DppoError):
    """A checkpoint that cannot be used: damaged, incomplete, or of another run."""


class StoppedError(DppoError):
    """A stop was requested while waiting for something."""

    exit_status = ExitStatus.DONE
