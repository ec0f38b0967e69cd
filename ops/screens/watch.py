"""Watches a running fleet: shows progress, detects services that fail for good, and ends the run."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dppo_redis.errors import ConfigurationError, ExitStatus, RunFailedError
from dppo_redis.protocol.reports import ActorReport, EvaluatorReport
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError, translated
from dppo_redis.store.error_causes import Recurrence
from dppo_redis.store.run_status import RunStatus, read_status
from dppo_redis.store.run_store import STOP, RunStore
from ops.fleet.last_log_line import reason_in_log
from ops.fleet.render import ACTORS, EVALUATOR, LEARNER
from ops.fleet.supervisor import Fleet, ProcessState, cause_in_log
from ops.screens.evaluation_summary import describe_wait
from ops.screens.view import Screen

_PERIOD_S = 0.25
_LAST_SAVE_S = 60.0  # longer than the longest allowed save
_REPORT_S = 1.0  # time for an evaluator to report an evaluation that its time limit ended
_HASTY_STOP_S = 8.0  # after Ctrl-C or SIGTERM
_HASTY_EVALUATION_S = 1.5
_LINE_PERIOD_S = 2.0
_MOST_FIRST_STARTS = 3
_MOST_STARTS = 10
_BROKER_START_S = 15.0
_log = logging.getLogger("dppo")


class CrashLoopDetector:
    """Detects a service that supervisord restarts again and again without progress of the run."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._starts: dict[str, int] = {}  # since the last update
        self._update = -1

    def is_looping(self, process: ProcessState, update: int) -> bool:
        """Whether the process was started too often since the last update."""
        if update > self._update:
            self._update = update
            self._starts.clear()
        if process.pid and process.pid != self._pids.get(process.name):
            self._pids[process.name] = process.pid
            self._starts[process.name] = self._starts.get(process.name, 0) + 1
        # Before the first update the setup may be wrong; later one actor may just have rare faults.
        return self._starts.get(process.name, 0) > (_MOST_STARTS if update else _MOST_FIRST_STARTS)


class FailedServices:
    """Tracks failed services and whether the run can continue: it needs broker, learner and one actor."""

    def __init__(self, *, every_actor_counts: bool = False) -> None:
        """In lock-step mode every actor counts, since each batch takes rollouts of each actor."""
        self._every_actor_counts = every_actor_counts
        self._restarts = CrashLoopDetector()
        self._given_up: set[str] = set()
        self._warnings: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The newest warning about each service, for the summary."""
        return tuple(self._warnings.values())

    def new_faults(self, actors: Mapping[int, ActorReport]) -> list[str]:
        """New warnings about actors that ended by their own fault and were restarted; one for each actor."""
        texts = []
        for slot, report in actors.items():
            name = f"{ACTORS}{slot:03d}"
            if report.deaths and name not in self._given_up:
                is_new = name not in self._warnings
                times = "once" if report.deaths == 1 else f"{report.deaths} times"
                self._warnings[name] = f"{name} ended {times} by its own fault: {report.last_death}"
                texts += [self._warnings[name]] if is_new else []
        return texts

    def check(self, processes: Sequence[ProcessState], update: int, joined: Collection[int]) -> list[str]:
        """New warnings about services that have failed for good; `joined` are the slots of living actors.

        Raises:
            RunFailedError: a service failed that the run needs.
        """
        failed = {
            process.name: error
            for process in processes
            if (error := _failure(process, self._restarts.is_looping(process, update))) is not None
        }
        for name, error in failed.items():
            if not self._is_dispensable(name, processes, failed.keys(), joined):
                raise error
        new = failed.keys() - self._given_up
        self._given_up |= new
        self._warnings |= {name: f"the run continues although {failed[name]}" for name in new}
        return [self._warnings[name] for name in sorted(new)]

    def _is_dispensable(
        self, name: str, processes: Sequence[ProcessState], failed: Collection[str], joined: Collection[int]
    ) -> bool:
        if not name.startswith(ACTORS):
            return name == "evaluator"
        planned = [process for process in processes if process.name.startswith(ACTORS)]
        others = any(process.alive and process.name not in failed for process in planned)
        outside = any(slot >= len(planned) for slot in joined)
        return (others or outside) and not self._every_actor_counts


def _failure(process: ProcessState, looping: bool) -> RunFailedError | None:
    """The error of a process that supervisord cannot keep running; None while it can."""
    if not process.gave_up and not looping:
        return None
    how = f"has stopped for good (status {process.exit_status})" if process.gave_up else "keeps ending"
    cause = reason_in_log(process.log) or cause_in_log(process.log)
    error = RunFailedError(f"{process.name} {how}: {cause} (log: {process.log})")
    if process.exit_status == ExitStatus.CONFIGURATION:
        error.exit_status = ExitStatus.CONFIGURATION
    return error


@dataclass
class Watch:
    """A running fleet, and the last status read from it."""

    fleet: Fleet
    client: Client
    store: RunStore
    screen: Screen
    stop: StopRequest
    failed_services: FailedServices = field(default_factory=FailedServices)
    upkeep: Callable[[], None] = lambda: None  # maintains the fleet's sockets
    status: RunStatus | None = None
    first_update_time: float = 0.0  # seconds since 1970 at the first update; 0 before it
    ended_at: float = 0.0  # by the monotonic clock, when this process saw the end of training; 0 before it
    recurrence: Recurrence = field(default_factory=Recurrence)
    rate_limit: RateLimit = field(default_factory=RateLimit)

    def until_the_end(self) -> None:
        """Show progress until the run ends, a stop is requested, or a needed service fails for good.

        Raises:
            RunFailedError: a needed service failed; the message holds the end of its log.
        """
        while not self.stop.requested:
            self.upkeep()
            self._read_status()
            if self.status is not None and self.status.control.state == STOP:
                return
            self._check(self.fleet.processes().values())
            self.stop.sleep(_PERIOD_S)

    def _read_status(self, *, last: bool = False) -> None:
        try:
            with translated():
                self.status = read_status(self.client, self.store.keys)
        except TransientError as error:
            line = self.recurrence.count_error("read the status", error)
            if self.rate_limit.due():
                self.screen.print_line(f"Redis does not answer: {line}")
            return
        self.recurrence.over()
        self.first_update_time = self.first_update_time or self.status.learner.first_update_time
        self.screen.show(self.status, last=last)
        self._warn(self.failed_services.new_faults(self.status.actors))

    def _check(self, processes: Iterable[ProcessState]) -> None:
        update, joined = 0, list[int]()
        if self.status is not None:
            update, joined = self.status.learner.update, list(self.status.actors)
        self._warn(self.failed_services.check(list(processes), update, joined))

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.screen.print_line(f"warning: {text}")

    def finish(self, end_wait_s: float) -> None:
        """Ask the services to end and wait for their end, at most `end_wait_s` for the last evaluation."""
        self.ended_at = time.monotonic()
        is_hasty = self.stop.requested
        if is_hasty:
            self.fleet.signal_samplers()
        is_stop_requested = not is_hasty
        began = time.monotonic()
        next_line = began + 1.0  # print no line if the evaluator ends within a second
        signalled = self.stop.signal
        while self.stop.signal is signalled:
            self._read_status()
            is_stop_requested = is_stop_requested or self._request_stop()
            now = time.monotonic()
            awaited = {
                name
                for name in self._running()
                if now < began + _longest_wait_s(name, end_wait_s, hasty=is_hasty)
            }
            if not awaited:
                break
            if not is_hasty and EVALUATOR in awaited and now >= next_line:
                next_line = now + _LINE_PERIOD_S
                report = self.status.evaluator if self.status is not None else EvaluatorReport()
                self.screen.print_line(describe_wait(report, end_wait_s))
            time.sleep(_PERIOD_S / 2)
        self._read_status(last=True)

    def _running(self) -> set[str]:
        return {p.name for p in self.fleet.processes().values() if p.alive and p.name != "broker"}

    def _request_stop(self) -> bool:
        """Request the stop in Redis; returns whether Redis answered, since it may still be starting."""
        try:
            with translated():
                self.store.set_state(STOP, "stopped")
        except TransientError:
            return False
        return True


def _longest_wait_s(service: str, end_wait_s: float, *, hasty: bool) -> float:
    """Seconds that a service may take to end by itself, before it gets a signal."""
    if service == EVALUATOR:
        return _HASTY_EVALUATION_S if hasty else end_wait_s + _REPORT_S
    return _LAST_SAVE_S if service == LEARNER and not hasty else _HASTY_STOP_S


def log_redis_errors(action: Callable[[], object]) -> None:
    """Run `action`, and log errors of Redis, because signals stop the fleet even without Redis."""
    try:
        with translated():
            action()
    except (TransientError, ConfigurationError) as error:
        _log.warning("%s", error)


def wait_for_broker(client: Client, fleet: Fleet, stop: StopRequest) -> None:
    """Wait until the embedded server answers, or a stop is requested.

    Raises:
        RunFailedError: the server did not start; the message holds the end of its log.
    """
    deadline = time.monotonic() + _BROKER_START_S
    while not stop.requested:
        try:
            with translated():
                client.ping()
            return
        except TransientError as error:
            state = fleet.processes().get("broker")
            if time.monotonic() > deadline or (state is not None and state.gave_up):
                cause = cause_in_log(state.log) if state is not None else str(error)
                raise RunFailedError(f"the embedded server did not start: {cause}") from error
            stop.sleep(0.05)
