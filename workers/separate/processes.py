"""N environments in a process each, stepped one by one through shared memory and a byte for each call.

All environments answer through one pipe. So a collector learns of all that are ready by one read.
"""

import contextlib
import ctypes
import multiprocessing
import os
import selectors
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np

from dppo_redis.environments.assigned_episodes import main_module_hidden
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.service.child import ChildTracebackError
from dppo_redis.service.descendants import descendants
from dppo_redis.service.ending import end_all
from dppo_redis.spaces.episode_metrics import EpisodeMetrics
from workers.separate import process_main
from workers.separate.call_clock import CallClock
from workers.separate.one_environment import EnvironmentPlan
from workers.separate.separate_environments import Kind
from workers.separate.step_page import FAILED, row_of, view_page

_CLOSING_S = 1.0  # time for the processes to close their environments
_DIED = "a worker process of the environments died"


class EnvironmentProcesses:
    """Environments in processes; `calls` learns of each call that runs.

    Raises:
        ConfigurationError, EnvironmentBrokenError: one of them cannot be built.
    """

    kind: Kind = "async"

    def __init__(self, plans: Sequence[EnvironmentPlan], calls: CallClock) -> None:
        self.count, self._calls = len(plans), calls
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([process_main.__name__])
        row = row_of(plans[0].observation, plans[0].action)
        memory = context.RawArray(ctypes.c_char, row.itemsize * self.count)
        self.page = view_page(np.frombuffer(cast(Any, memory), row, self.count))
        self._ready, ready = context.Pipe(duplex=False)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._oldest_call = self.page.oldest_call
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ready, selectors.EVENT_READ)
        self._calls.elsewhere.append(self._oldest_call)
        try:
            with main_module_hidden():
                for plan in plans:
                    self._start(context, (plan, memory, self.count), ready)
            ready.close()
            self._wait_for_all()
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, arguments: tuple[Any, ...], ready: Connection) -> None:
        pipe, far_end = context.Pipe()
        self._pipes.append(pipe)
        process = context.Process(target=process_main.play, args=(*arguments, far_end, ready), daemon=True)
        self.page.began[len(self._processes)] = time.monotonic()
        process.start()
        far_end.close()
        self._processes.append(process)
        self._calls.processes.add(process)
        self._selector.register(process.sentinel, selectors.EVENT_READ)

    def reset(self) -> None:
        """Begin the first episodes; their observations stand on the page.

        Raises:
            EnvironmentBrokenError: an environment raised, or its process died.
        """
        self._call(range(self.count), process_main.RESET)
        self._wait_for_all()

    def step(self, places: Sequence[int]) -> None:
        """Let these environments take the actions that stand on the page."""
        self._call(places, process_main.STEP)

    def wait(self, limit_s: float) -> list[int]:
        """Places of environments whose calls have ended, after at most `limit_s` seconds; it may be none.

        Raises:
            EnvironmentBrokenError: an environment raised, or its process died.
        """
        keys = [key.fileobj for key, _ in self._selector.select(limit_s)]
        places: list[int] = []
        if self._ready in keys:
            places = np.frombuffer(os.read(self._ready.fileno(), 2 * self.count), "<u2").tolist()
        for place in places:
            if self.page.flags[place] & FAILED:
                self._raise(place)
        if any(key is not self._ready for key in keys):
            raise EnvironmentBrokenError(_DIED)
        return places

    def metrics(self, place: int) -> EpisodeMetrics:
        """Metrics of the episode that the last step ended, where the page says that there are some.

        Raises:
            EnvironmentBrokenError: the process died.
        """
        metrics: EpisodeMetrics = self._receive(place)
        return metrics

    def close(self) -> None:
        """Ask the processes to close their environments, then end them and their descendants."""
        self._calls.elsewhere.remove(self._oldest_call)
        self._selector.close()
        end_workers(self._processes, lambda: self._send(range(len(self._processes)), process_main.CLOSE))
        self._calls.processes.difference_update(self._processes)
        for connection in (self._ready, *self._pipes):
            connection.close()

    def _call(self, places: Sequence[int], command: bytes) -> None:
        self.page.began[places] = time.monotonic()
        self._send(places, command)

    def _send(self, places: Sequence[int], command: bytes) -> None:
        for place in places:
            with contextlib.suppress(OSError):  # it has died: `wait` says so
                os.write(self._pipes[place].fileno(), command)

    def _wait_for_all(self) -> None:
        missing = set(range(self.count))
        while missing:
            missing.difference_update(self.wait(60.0))

    def _receive(self, place: int) -> Any:
        try:
            return self._pipes[place].recv()
        except (EOFError, OSError) as error:
            raise EnvironmentBrokenError(_DIED) from error

    def _raise(self, place: int) -> None:
        is_final, text, trace = self._receive(place)
        kind = ConfigurationError if is_final else EnvironmentBrokenError
        raise kind(text) from ChildTracebackError(trace)


def end_workers(processes: Sequence[BaseProcess], ask: Callable[[], None]) -> None:
    """Ask processes of environments to close these, then end them and their descendants.

    gymnasium itself would wait for ever for a worker that has ended or hangs.
    """
    started = {pid for process in processes if process.pid for pid in descendants(process.pid)}
    ask()
    deadline = time.monotonic() + _CLOSING_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    end_all(lambda: started & descendants())
