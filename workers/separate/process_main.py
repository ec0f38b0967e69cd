"""The process of one environment, which makes one call of it for each byte that the collector sends.

It is forked from a small process that has imported this module and runs none of the user's code. Each process
imports the user's module itself.
"""

import contextlib
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from dppo_redis.environments.assigned_episodes import leave_signals_to_parent
from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.episode_metrics import NOTHING
from workers.separate.one_environment import LEAVING, EnvironmentPlan, OneEnvironment, describe_failure
from workers.separate.step_page import FAILED, row_of, view_page

RESET, STEP, CLOSE = b"r", b"s", b"c"
Failure = tuple[bool, str, str]  # whether a retry is useless, what failed, traceback
T = TypeVar("T")


def play(plan: EnvironmentPlan, memory: Any, count: int, pipe: Connection, ready: Connection) -> None:
    """Serve one environment until the pipe closes or asks for the end.

    Args:
        plan: the environment.
        memory: shared memory with the page's rows.
        count: how many rows that are.
        pipe: brings one byte for each call; metrics and failures return through it.
        ready: gets this environment's place when a call has ended; all environments share it.
    """
    leave_signals_to_parent()
    page = view_page(np.frombuffer(memory, row_of(plan.observation, plan.action), count))
    place, own = plan.place, plan.place.to_bytes(2, "little")
    commands, answers = pipe.fileno(), ready.fileno()

    def attempt(doing: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except (Exception, *LEAVING) as error:  # noqa: BLE001 the user's code may raise anything
            page.flags[place] = FAILED
            # In plain values: an exception of the user's may not be fit for another process.
            failure: Failure = (
                isinstance(error, ConfigurationError),
                describe_failure(error, doing),
                "".join(traceback.format_exception(error)),
            )
            pipe.send(failure)
            return None

    def answer() -> bytes:
        page.began[place] = 0
        os.write(answers, own)
        return os.read(commands, 1)

    with contextlib.suppress(OSError):  # the collector has ended
        environment = attempt("building", lambda: OneEnvironment(plan, page))
        while (command := answer()) in (RESET, STEP) and environment is not None:
            if command == RESET:
                attempt("reset", environment.reset)
                continue
            metrics = attempt("step", environment.step)
            if metrics is not None and metrics is not NOTHING:
                pipe.send(metrics)
        if environment is not None:
            with contextlib.suppress(Exception, *LEAVING):
                environment.close()
