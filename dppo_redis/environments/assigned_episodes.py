"""Copies of an environment that play assigned episodes, in this process or in others."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import make_single, not_steppable_together
from dppo_redis.environments.plain import PlainEnvironment
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.spec import EnvironmentSource

NEXT_SEEDS = "next_seeds"  # name of an attribute of AssignedEpisodes


class AssignedEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A copy of an environment that plays one episode for each of its seeds, and then rests.

    After an episode the vector resets the copy without a seed. A copy that rests returns its last observation
    and does not call the environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.next_seeds: list[int] = []
        self._rests = False
        self._last: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._rests = seed is None and not self.next_seeds
        if self._rests:
            return self._last, {}
        return self.env.reset(seed=self.next_seeds.pop(0) if seed is None else seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._rests:
            return self._last, 0.0, False, False, {}
        answer = self.env.step(action)
        self._last = answer[0]
        return answer


def make_assigned(
    source: EnvironmentSource, count: int, *, in_processes: bool, masked: bool
) -> SyncVectorEnv | AsyncVectorEnv:
    """Build `count` copies, each an AssignedEpisodes.

    The processes are forked from a small process that has imported all modules that they need. So twenty of
    them start in a second; as new processes they would take ten seconds of computing time.

    Raises:
        ConfigurationError: the copies cannot be made, or cannot be stepped together.
    """
    numbers = (CopyNumber("evaluator", copy=copy) for copy in range(count))
    builders = [partial(_make_copy, source, masked, in_processes, one) for one in numbers]
    try:
        if not in_processes:
            return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
        multiprocessing.set_forkserver_preload([__name__])
        with main_module_hidden():
            return AsyncVectorEnv(builders, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # for example, the copies' spaces differ
        raise not_steppable_together(source, count, error) from error


def _make_copy(
    source: EnvironmentSource, masked: bool, alone: bool, copy: CopyNumber
) -> gymnasium.Env[Any, Any]:
    if alone and multiprocessing.parent_process() is not None:
        leave_signals_to_parent()
    return AssignedEpisodes(PlainEnvironment(make_single(source, copy), masked))


def leave_signals_to_parent() -> None:
    """Have this process, which plays an environment, do nothing for a stop signal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_to_parent)


def _leave_to_parent(_number: int, _frame: FrameType | None) -> None:
    """Do nothing on a signal to the process group: the parent handles it and then ends this process.

    SIG_IGN is not used, because programs that the environment starts would inherit it.
    """


@contextmanager
def main_module_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the program's main module, which the new processes do not need."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
