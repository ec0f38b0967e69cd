"""All errors that this product raises, with the exit status of each.

Callers catch these types only; errors of libraries are wrapped, with their cause.
A message names the mistake, where it is, and the remedy.
"""

from enum import IntEnum

_LONGEST_DETAIL = 300


class ExitStatus(IntEnum):
    """Exit statuses of every command and service; supervisord's configuration relies on them."""

    DONE = 0
    FAILED = 1
    UNAVAILABLE = 69  # a service that an interactive command needs cannot be reached
    ENVIRONMENT_BROKEN = 70
    IO_ERROR = 74  # the last checkpoint could not be saved; the rest of the run succeeded
    FENCED = 76  # another learner took over this run
    CONFIGURATION = 78  # a person has to change something; a restart does not help
    GAVE_UP = 79  # the service failed too often; supervisord does not restart it
    INTERRUPTED = 130  # Ctrl-C, after a clean stop
    TERMINATED = 143  # SIGTERM or SIGHUP, after a clean stop


class DppoError(Exception):
    """Base of all errors of this product."""

    exit_status = ExitStatus.FAILED


class ConfigurationError(DppoError):
    """A setting, environment, password or access right that a person has to correct."""

    exit_status = ExitStatus.CONFIGURATION


class LeaseHeldError(ConfigurationError):
    """Another living learner leads the run."""


class DamagedSpecError(ConfigurationError):
    """The run's spec key holds no description. A living learner restores it within two seconds."""


class UnavailableError(DppoError):
    """Redis could not be reached within the time an interactive command waits."""

    exit_status = ExitStatus.UNAVAILABLE


class RunFailedError(DppoError):
    """A run failed: one of its services or the command ended, and a restart does not help."""


class NoPolicyError(DppoError):
    """A run has no policy to load yet."""


class ObservationError(DppoError, ValueError):
    """An observation or action mask whose form differs from those that the policy was trained on."""


class WireError(DppoError):
    """Bytes that are not a valid message of this product. `reason` names the counter that counts them."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}"[:_LONGEST_DETAIL])  # the detail may quote received bytes
        self.reason = reason


class EnvironmentBrokenError(DppoError):
    """The environment raised in all attempts; its traceback is in the log."""

    exit_status = ExitStatus.ENVIRONMENT_BROKEN


class EnvironmentNotBuiltError(EnvironmentBrokenError):
    """The environment could not be built or reset; a retry may help (a licence, a port, a slow start)."""


class EnvironmentHangsError(EnvironmentBrokenError):
    """The environment did not answer within its time limit, so the call is not repeated."""


class FencedError(DppoError):
    """Another learner took the lease of this one. Redis refuses all further writes of this learner."""

    exit_status = ExitStatus.FENCED


class CheckpointError(DppoError):
    """An unusable checkpoint: damaged, incomplete, or of another run."""


class StoppedError(DppoError):
    """A stop was requested while the process waited."""

    exit_status = ExitStatus.DONE
