"""Compares a fleet's needs with this machine's limits: open files per process, and processes per user.

The command checks them before it writes files. supervisord's own message names no remedy, and a service that
cannot open a file or start a thread would fail later with an unrelated message.
"""

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig

# Measured with a fleet of three actors, and rounded up, without the environments' own files and tasks.
_FILES_OF_A_SERVICE = 64
_FILES_OF_THE_SERVER = 64  # used and reserved files
_CONNECTIONS_OF_AN_ACTOR = 3
_OTHER_CONNECTIONS = 16
_FILES_FOR_A_CHILD = 4  # pipes and log that supervisord opens for each child
_FILES_FOR_AN_ENVIRONMENT = 4  # pipes of an environment in its own process
_OTHER_TASKS = 24  # command, supervisord, server, learner and evaluator, with their threads
_TASKS_OF_AN_ACTOR = 3


@dataclass(frozen=True)
class FleetNeeds:
    """Open files and tasks that a fleet needs on this machine."""

    files: int  # open files of the process that opens most
    tasks: int  # processes and threads


def needs_of(config: RunConfig, *, has_server: bool) -> FleetNeeds:
    """The minimum that a run's fleet needs. `has_server`: the fleet includes the embedded server."""
    apart = config.envs_per_actor if config.vectorization in ("async", "threads") else 0
    processes = apart if config.vectorization == "async" else 0
    services = config.actors + 3
    server = _FILES_OF_THE_SERVER + _OTHER_CONNECTIONS + _CONNECTIONS_OF_AN_ACTOR * config.actors
    files = max(
        _FILES_OF_A_SERVICE + _FILES_FOR_AN_ENVIRONMENT * processes,
        _FILES_OF_A_SERVICE + _FILES_FOR_A_CHILD * services,
        server if has_server else 0,
    )
    return FleetNeeds(files, _OTHER_TASKS + config.actors * (_TASKS_OF_AN_ACTOR + processes))


def check_limits(needs: FleetNeeds) -> None:
    """Raise this process's limits to the fleet's needs, if allowed. The services inherit the limits.

    Raises:
        ConfigurationError: a limit is too low; the message has both numbers.
    """
    needed = f"this fleet needs {needs.files} open files in a process and {needs.tasks} processes and threads"
    most = _raise_limit(resource.RLIMIT_NOFILE, needs.files)
    if most is not None:
        remedy = _remedy("n", needs.files)
        raise ConfigurationError(f"{needed}, but {most} open files are allowed (ulimit -n): {remedy}")
    if os.geteuid() == 0:
        return  # the system does not count root's processes
    others = _tasks_of_this_user()
    most = _raise_limit(resource.RLIMIT_NPROC, needs.tasks + others)
    if most is not None:
        raise ConfigurationError(
            f"{needed}, but {most} are allowed (ulimit -u), and this user has {others} already: "
            + _remedy("u", needs.tasks + others)
        )


def _remedy(limit: str, needed: int) -> str:
    return (
        f"raise the limit with `sudo prlimit -p $$ -{limit}{needed}:{needed}` in this shell, "
        "or start fewer actors or environments"
    )


def _raise_limit(limit: int, needed: int) -> int | None:
    """Raise the soft limit to `needed`; returns None, or the hard limit if that is lower than `needed`."""
    soft, hard = resource.getrlimit(limit)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        return hard
    resource.setrlimit(limit, (needed, hard))
    return None


def _tasks_of_this_user() -> int:
    """Processes and threads of this user, as the limit counts them; 0 where the system does not show them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count
