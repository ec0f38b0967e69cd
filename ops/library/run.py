"""A run that trains in the background of a Python program."""

import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import tomli_w

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import DppoError, NoPolicyError, RunFailedError
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.store.client import Client, TransientError, connect, translated
from dppo_redis.store.credentials import Role, as_role, base_url, is_url_given
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_status import RunStatus, read_status
from ops.fleet.broker import embedded_url
from ops.fleet.render import private_directory_in
from ops.fleet.run_directory import run_in
from ops.fleet.run_lock import read_holder
from ops.library.command import STANDARD_INPUT, Command
from ops.library.policy import Policy, load_from
from ops.library.request import Request
from ops.library.run_state import status_of_beginning, status_of_end

_POLL_S = 0.05
_STOP_WAIT_S = 90.0  # at the interpreter's exit; longer than the longest allowed save
_FAILED = "failed"


class Run:
    """A run that this program has started: a fleet of processes, which ends when this program ends.

        with dppo_redis.train("CartPole-v1", total_steps=100_000) as run:
            summary = run.wait()

    Any thread may call the methods. The end of the `with` block and the interpreter's exit stop the run. If
    this process is killed, the run notices it within a second and stops.
    """

    def __init__(self, request: Request, command: Command) -> None:
        """`dppo_redis.train` creates runs."""
        self.name = request.directory.run  # the run's name in Redis and in the commands' tables
        self.directory: Path = request.directory.path  # directory of metrics, checkpoints and the best policy
        self.config = request.config  # as the caller requested it
        self._url = request.redis or (base_url(None) if is_url_given(None) else None)
        self._command = command
        self._status_lock = threading.Lock()
        self._client: tuple[str, Client] | None = None
        config = self.config
        self._last = status_of_beginning(self.name, config.total_steps, config.target_return)

    def status(self) -> RunStatus:
        """The present status of the run: the reports that `dppo-redis status` shows, as frozen values.

        Its main parts are `.learner` (state, update, trained_steps, budget_steps, steps_per_s, return_mean,
        warnings), `.keeper` (backlog, actors), `.evaluation` (the newest complete one, else None),
        `.actors` (by slot), `.ledger_summary` and `.control`. Before the first report the learner's state is
        empty. After the end it is "finished", `.control.state` is "stop", and `.control.reason` the reason.

        Raises:
            ConfigurationError: the Redis that the run uses refuses this program.
        """
        with self._status_lock:
            if self._command.exit_status is not None:
                _running.discard(self)
                return status_of_end(self._last, self._command.summary())
            with suppress(TransientError):  # Redis is starting or stopping, or the network is down
                client = self._connect()
                if client is not None:
                    with translated():
                        found = read_status(client, RunKeys(self.name))
                    self._last = found if found.fields else self._last
            return self._last

    def wait(self, timeout_s: float | None = None) -> RunSummary:
        """Wait for the end of the run; returns its summary.

        Ctrl-C, or the interrupt of a notebook, ends the waiting but not the run: call `wait` or `stop` again.

        Raises:
            TimeoutError: the run has not ended within `timeout_s` seconds; it continues.
            RunFailedError: the run failed; the message holds the exit status and the last lines of its log.
        """
        if not self._command.wait(timeout_s):
            raise TimeoutError(f"run {self.name} has not ended within {timeout_s:g} s: it continues")
        _running.discard(self)
        summary = self._command.summary()
        if summary is None or summary.reason == _FAILED:
            raise RunFailedError(
                f"run {self.name} ended with status {self._command.exit_status} "
                f"(logs: {RunFiles(self.directory).logs}):\n{self._command.last_lines()}"
            )
        return summary

    def stop(self) -> RunSummary:
        """Stop the run in order, with a last checkpoint. Returns its summary, also if it has ended before.

        Raises:
            RunFailedError: the run failed, see `wait`.
        """
        self._command.terminate()
        return self.wait()

    def best_policy(self) -> Policy:
        """Load the policy with the highest mean return of all complete evaluations so far.

        Raises:
            NoPolicyError: no evaluation is complete yet.
            ConfigurationError: the file of the policy is damaged.
        """
        if not RunFiles(self.directory).best_policy.exists():
            learner = self.status().learner
            off = "" if self.config.evaluation.enabled else ": evaluation.enabled is False"
            raise NoPolicyError(
                f"run {self.name} has no best policy: no evaluation is complete after "
                f"{learner.trained_steps:,} of {learner.budget_steps:,} trained steps{off}"
            )
        return load_from(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except RunFailedError:
            if error is None:  # otherwise the error of the block explains more
                raise

    def __repr__(self) -> str:
        try:
            status = self.status()
        except DppoError as error:
            return f"<Run {self.name}, its status is unknown: {error}>"
        learner, control = status.learner, status.control
        state = f"ended ({control.reason})" if control.state == "stop" else learner.state or "starting"
        mean = "" if learner.return_mean is None else f", return {learner.return_mean:.4g}"
        steps = f"{learner.trained_steps:,} of {learner.budget_steps:,} steps"
        return f"<Run {self.name} in {self.directory}: {state}, {steps}{mean}>"

    def _connect(self) -> Client | None:
        """A client of the run's Redis; None before the run has started its server."""
        if self._url is not None:
            url = as_role(self._url, Role.OPERATOR)
        else:
            private = private_directory_in(RunFiles(self.directory).fleet)
            if private is None:
                return None
            url = embedded_url(private)
        if self._client is None or self._client[0] != url:
            self._client = url, connect(url, "dppo-python")
        return self._client[1]


_running: set[Run] = set()  # keeps a reference, so that a run continues if the caller drops its object


def start(request: Request) -> Run:
    """Start the command for a request, and wait until its fleet runs.

    Raises:
        ConfigurationError, EnvironmentBrokenError, UnavailableError, RunFailedError: the command did not
            start the run; nothing is left running.
    """
    lock = RunFiles(request.directory.path).lock
    before = read_holder(lock)
    settings = tomli_w.dumps(dict(request.settings))
    command = Command(request.command(STANDARD_INPUT), request.redis, settings)
    try:
        while not command.wait(_POLL_S):
            holder = read_holder(lock)
            if holder is not None and holder != before and holder.fleet is not None:
                break
    except BaseException:
        command.terminate()
        command.wait()
        raise
    if command.exit_status is not None and command.summary() is None:
        raise command.refusal()
    run = Run(request, command)
    run.name = run_in(run.directory) or run.name  # a resumed run has its name in its directory
    _stop_at_exit(run)
    return run


def _stop_at_exit(run: Run) -> None:
    if not _running:
        atexit.register(_stop_all, os.getpid())
    _running.add(run)


def _stop_all(owner: int) -> None:
    """Stop all runs at once, then wait for each. In a fork of the program this does nothing."""
    if os.getpid() != owner:
        return
    runs = list(_running)
    for run in runs:
        run._command.terminate()
    for run in runs:
        run._command.wait(_STOP_WAIT_S)
