"""N environments in a thread each: for environments that release the interpreter's lock or wait for others.

A thread cannot be ended. The watchdog ends the whole process if an environment does not answer.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import numpy as np

from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.service import user_code
from dppo_redis.service.process_state import keeping_process_state
from dppo_redis.spaces.episode_metrics import NOTHING, EpisodeMetrics
from workers.separate.call_clock import CallClock
from workers.separate.one_environment import LEAVING, EnvironmentPlan, OneEnvironment, describe_failure
from workers.separate.separate_environments import Kind
from workers.separate.step_page import FAILED, row_of, view_page

_CLOSING_S = 1.0  # time for the threads to close their environments
_log = logging.getLogger("dppo")


class EnvironmentThreads:
    """Environments in threads of this process; `calls` learns of each call that runs.

    Raises:
        ConfigurationError, EnvironmentBrokenError: one of them cannot be built.
    """

    kind: Kind = "threads"

    def __init__(self, plans: Sequence[EnvironmentPlan], calls: CallClock) -> None:
        self.count, self._calls = len(plans), calls
        row = row_of(plans[0].observation, plans[0].action)
        self.page = view_page(np.zeros(self.count, row))
        self._oldest_call = self.page.oldest_call
        self._ready: SimpleQueue[int] = SimpleQueue()
        self._environments: list[OneEnvironment | None] = [None] * self.count
        self._metrics: list[EpisodeMetrics] = [NOTHING] * self.count
        self._failures: dict[int, tuple[str, BaseException]] = {}
        self._commands: list[SimpleQueue[str]] = [SimpleQueue() for _ in plans]
        self._threads = [
            threading.Thread(target=self._play, args=(plan,), name=f"environment {plan.place}", daemon=True)
            for plan in plans
        ]
        self._calls.elsewhere.append(self._oldest_call)
        try:
            for place, thread in enumerate(self._threads):
                thread.start()
                self._call([place], "building")  # one after another: a constructor may read DPPO_COPY
                self._wait_for({place})
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        """Begin the first episodes; their observations stand on the page.

        Raises:
            EnvironmentBrokenError: an environment raised.
        """
        with keeping_process_state():
            self._call(range(self.count), "reset")
            self._wait_for(set(range(self.count)))

    def step(self, places: Sequence[int]) -> None:
        """Let these environments take the actions that stand on the page."""
        self._call(places, "step")

    def wait(self, limit_s: float) -> list[int]:
        """Places of environments whose calls have ended, after at most `limit_s` seconds; it may be none.

        Raises:
            EnvironmentBrokenError: an environment raised.
        """
        places: list[int] = []
        user_code.enter()  # the threads may hold the interpreter's lock in it
        try:
            with contextlib.suppress(Empty):
                places.append(self._ready.get(timeout=limit_s))
                while True:
                    places.append(self._ready.get_nowait())
        finally:
            user_code.leave()
        for place in places:
            if self.page.flags[place] & FAILED:
                self._raise(place)
        return places

    def metrics(self, place: int) -> EpisodeMetrics:
        """Metrics of the episode that the last step ended, where the page says that there are some."""
        return self._metrics[place]

    def close(self) -> None:
        """Ask the threads to close their environments; one that hangs is left behind."""
        self._calls.elsewhere.remove(self._oldest_call)
        deadline = time.monotonic() + _CLOSING_S
        for commands in self._commands:
            commands.put("close")
        with keeping_process_state():
            for thread in filter(threading.Thread.is_alive, self._threads):
                thread.join(max(0.0, deadline - time.monotonic()))
        left = sum(map(threading.Thread.is_alive, self._threads))
        if left:
            _log.warning("%d environments did not close within %g s", left, _CLOSING_S)

    def _play(self, plan: EnvironmentPlan) -> None:
        """The thread of one environment."""
        place, environment = plan.place, None
        while (doing := self._commands[place].get()) != "close":
            try:
                if environment is None:
                    environment = OneEnvironment(plan, self.page)
                elif doing == "reset":
                    environment.reset()
                else:
                    self._metrics[place] = environment.step()
            except (Exception, *LEAVING) as error:  # noqa: BLE001 the user's code may raise anything
                self._failures[place] = doing, error
                self.page.flags[place] = FAILED
            self.page.began[place] = 0
            self._ready.put(place)
        if environment is not None:
            with contextlib.suppress(Exception, *LEAVING):
                environment.close()

    def _call(self, places: Sequence[int], doing: str) -> None:
        self.page.began[places] = time.monotonic()
        for place in places:
            self._commands[place].put(doing)

    def _wait_for(self, missing: set[int]) -> None:
        while missing:
            missing.difference_update(self.wait(60.0))

    def _raise(self, place: int) -> None:
        doing, error = self._failures[place]
        kind = ConfigurationError if isinstance(error, ConfigurationError) else EnvironmentBrokenError
        raise kind(describe_failure(error, doing)) from error
