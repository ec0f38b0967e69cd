"""Starts supervisord, reads its processes' states, and stops it. Uses supervisor's own RPC."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from supervisor.xmlrpc import SupervisorTransport

from dppo_redis.errors import DppoError, ExitStatus
from dppo_redis.service.shutdown import PARENT_PID_VARIABLE
from dppo_redis.store.credentials import URL_VARIABLE, VARIABLES
from ops.fleet.render import LEARNER_STOP_WAIT_S, FleetPlan, render

_START_TIMEOUT_S = 10.0
_WAKE_PERIOD_S = 0.05
_STOP_TIMEOUT_S = LEARNER_STOP_WAIT_S + 20.0
_ALIVE = ("STARTING", "RUNNING", "BACKOFF", "STOPPING")


class FleetError(DppoError):
    """supervisord did not start, or does not answer any more."""


@dataclass(frozen=True)
class ProcessState:
    """One process as supervisord sees it."""

    name: str
    state: str  # RUNNING, EXITED, FATAL, ...
    exit_status: int
    pid: int  # 0 while the process does not run
    log: Path

    @property
    def alive(self) -> bool:
        return self.state in _ALIVE

    @property
    def gave_up(self) -> bool:
        """Whether the process has ended and supervisord will not start it again."""
        final = (ExitStatus.CONFIGURATION, ExitStatus.GAVE_UP)
        return self.state == "FATAL" or (self.state == "EXITED" and self.exit_status in final)


class Fleet:
    """The services of one run under supervisord."""

    def __init__(self, plan: FleetPlan, process: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self._process = process
        self._transport = SupervisorTransport(None, None, f"unix://{plan.control_socket}")
        self._proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=self._transport)

    @property
    def pid(self) -> int:
        """The process id of supervisord."""
        return self._process.pid

    @staticmethod
    def start(plan: FleetPlan, url: str, lock: int) -> "Fleet":
        """Write the configuration, start supervisord and wait until it answers.

        supervisord keeps the run directory's `lock` (a file descriptor) open, so the lock is held while the
        fleet lives.

        Raises:
            FleetError: it does not answer; the message holds the cause from its log.
        """
        plan.files.logs.mkdir(parents=True, exist_ok=True)
        configuration = plan.files.fleet
        configuration.write_text(render(plan), encoding="utf-8")
        # Our packages come first in any working directory. The URL may hold a password, so it is no argument.
        packages = str(Path(__file__).resolve().parents[2])
        paths = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
        # The embedded server needs no password: credentials in environment variables are for another server.
        not_inherited = VARIABLES if plan.broker_command is not None else ()
        environment = {
            **{name: value for name, value in os.environ.items() if name not in not_inherited},
            URL_VARIABLE: url,
            PARENT_PID_VARIABLE: str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with plan.files.fleet_errors.open("wb") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "ops.fleet.supervised",
                    str(configuration),
                    str(plan.private_dir),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C reaches only this command, which stops the fleet in order
            )
        fleet = Fleet(plan, process)
        fleet._wait_until_it_answers()
        return fleet

    def _wait_until_it_answers(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._call("getState")
                return
            except FleetError:
                time.sleep(0.05)
        self.stop()
        raise FleetError(f"supervisord did not start: {cause_in_log(self.plan.files.fleet_errors)}")

    def processes(self) -> Mapping[str, ProcessState]:
        """The state of every process, by name.

        Raises:
            FleetError: supervisord does not answer.
        """
        infos = cast(list[dict[str, Any]], self._call("getAllProcessInfo"))
        return {
            info["name"]: ProcessState(
                info["name"], info["statename"], info["exitstatus"], info["pid"], Path(info["stdout_logfile"])
            )
            for info in infos
        }

    def restart(self, name: str) -> None:
        """End one process; supervisord starts it again.

        Raises:
            FleetError: supervisord does not answer.
        """
        process = self.processes().get(name)
        if process is not None and process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

    def restart_all(self) -> None:
        """Make supervisord create its socket again. This restarts all its processes.

        Raises:
            FleetError: supervisord does not answer afterwards.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)
        self._transport.close()
        self._wait_until_it_answers(_STOP_TIMEOUT_S)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._proxy.supervisor, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            self._transport.close()  # otherwise the transport would use the broken connection again
            log = self.plan.files.log("supervisord")
            raise FleetError(
                f"supervisord does not answer; it was probably killed ({error}; log: {log})"
            ) from error

    def stop(self) -> None:
        """Stop all services in order and wait for their end."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            self._wake()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_WAKE_PERIOD_S)
                return
        self._process.kill()
        self._process.wait()

    def _wake(self) -> None:
        """Wake supervisord's loop by a connection that closes at once.

        The loop sleeps up to a second, and does one step of the shutdown each time it wakes.
        """
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_WAKE_PERIOD_S)
            connection.connect(str(self.plan.control_socket))

    def signal_samplers(self) -> None:
        """Send SIGTERM to actors and evaluator without waiting. A process in a hanging call reacts to nothing
        else."""
        for group in ("actor", "evaluator"):
            with contextlib.suppress(FleetError):
                self._call("stopProcessGroup", group, False)


def cause_in_log(log: Path) -> str:
    """The line of a log with the cause: the last line that begins with `Error:`, else the last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})"
    errors = [line for line in lines if line.startswith("Error:")]
    return (errors or lines or ["(its log is empty)"])[-1].strip()
