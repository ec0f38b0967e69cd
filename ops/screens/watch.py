"""Watching a running fleet: progress, services that give up, the end."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dppo_redis.errors import ConfigurationError, DppoError, ExitStatus
from dppo_redis.protocol.reports import RunStatus
from dppo_redis.service.logs import Rarely
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.causes import Recurrence
from dppo_redis.store.client import Client, TransientError, translated
from dppo_redis.store.run_status import read_status
from dppo_redis.store.run_store import STOP, RunStore
from ops.fleet.supervisor import Fleet, ProcessState, last_line
from ops.screens.view import Screen

_PERIOD_S = 0.25
_LAST_EVALUATION_S = 600.0  # the last evaluation of a slow environment is worth waiting for
_HASTY_STOP_S = 8.0  # after Ctrl-C or SIGTERM nobody wants to wait
_MOST_FIRST_STARTS = 3
_MOST_STARTS = 10
_BROKER_START_S = 15.0
_log = logging.getLogger("dppo")


class RunFailedError(DppoError):
    """A service ended in a way that supervisord will not mend."""


class Restarts:
    """Tells a service that supervisord starts again and again, to no avail, from one that was killed."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._starts: dict[str, int] = {}  # since the last update
        self._update = -1

    def is_looping(self, process: ProcessState, update: int) -> bool:
        """Whether it was started too often while the run got nowhere."""
        if update > self._update:
            self._update = update
            self._starts.clear()
        if process.pid and process.pid != self._pids.get(process.name):
            self._pids[process.name] = process.pid
            self._starts[process.name] = self._starts.get(process.name, 0) + 1
        # Before the first update nothing has ever worked; later it may be one unlucky actor.
        return self._starts.get(process.name, 0) > (_MOST_STARTS if update else _MOST_FIRST_STARTS)


@dataclass
class Watch:
    """A fleet that is running, and what was seen of it."""

    fleet: Fleet
    client: Client
    store: RunStore
    screen: Screen
    stop: StopRequest
    upkeep: Callable[[], None] = lambda: None  # of what the fleet needs on disk
    status: RunStatus | None = None
    restarts: Restarts = field(default_factory=Restarts)
    recurrence: Recurrence = field(default_factory=Recurrence)
    rarely: Rarely = field(default_factory=Rarely)

    def until_the_end(self) -> None:
        """Show progress until the run ends, a signal comes, or a service gives up.

        Raises:
            RunFailedError: a service gave up; the message holds the end of its log.
        """
        while not self.stop.requested:
            self.upkeep()
            self._look()
            if self.status is not None and self.status.control.state == STOP:
                return
            self._check(self.fleet.processes().values())
            self.stop.sleep(_PERIOD_S)

    def _look(self, *, last: bool = False) -> None:
        try:
            with translated():
                self.status = read_status(self.client, self.store.keys)
        except TransientError as error:
            line = self.recurrence.met("read the status", error)
            if self.rarely.due():
                self.screen.say(f"Redis does not answer: {line}")
            return
        self.recurrence.over()
        self.screen.show(self.status, last=last)

    def _check(self, processes: Iterable[ProcessState]) -> None:
        update = self.status.learner.update if self.status is not None else 0
        for process in processes:
            looping = self.restarts.is_looping(process, update)
            if process.gave_up or looping:
                how = "keeps ending" if looping else f"gave up (status {process.exit_status})"
                error = RunFailedError(f"{process.name} {how}: {last_line(process.log)} (log: {process.log})")
                if process.exit_status == ExitStatus.CONFIGURATION:
                    error.exit_status = ExitStatus.CONFIGURATION
                raise error

    def finish(self) -> None:
        """Ask the services to end by themselves and wait for them, the last evaluation included."""
        hasty = self.stop.requested
        told = not hasty
        deadline = time.monotonic() + (_HASTY_STOP_S if hasty else _LAST_EVALUATION_S)
        signalled = self.stop.signal
        while time.monotonic() < deadline and self.stop.signal is signalled:
            self._look()
            told = told or self._tell_to_stop()
            running = [p.name for p in self.fleet.processes().values() if p.alive and p.name != "broker"]
            if not running:
                break
            time.sleep(_PERIOD_S / 2)
        self._look(last=True)

    def _tell_to_stop(self) -> bool:
        """Whether the wish reached Redis, which may only be starting."""
        try:
            with translated():
                self.store.set_state(STOP, "stopped")
        except TransientError:
            return False
        return True


def quietly(action: Callable[[], object]) -> None:
    """Do it if Redis is there; the fleet is stopped by signals anyway."""
    try:
        with translated():
            action()
    except (TransientError, ConfigurationError) as error:
        _log.warning("%s", error)


def wait_for_broker(client: Client, fleet: Fleet, stop: StopRequest) -> None:
    deadline = time.monotonic() + _BROKER_START_S
    while not stop.requested:
        try:
            with translated():
                client.ping()
            return
        except TransientError as error:
            state = fleet.processes().get("broker")
            if time.monotonic() > deadline or (state is not None and state.gave_up):
                cause = last_line(state.log) if state is not None else str(error)
                raise RunFailedError(f"the embedded server did not start: {cause}") from error
            stop.sleep(0.05)
