"""Steps vector environments of gymnasium in its three modes of automatic reset; knows no policy.

A step returns the same fields in each mode. NEXT_STEP spends one dummy step on each reset and marks its row
as not valid. SAME_STEP and DISABLED have no dummy steps.
"""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from dppo_redis.environments.assigned_episodes import NEXT_SEEDS
from dppo_redis.environments.make import CLOSE_LIMIT_S
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.service.plugins import first_line
from dppo_redis.service.process_state import TookTooLongError, interrupted_after, keeping_process_state
from dppo_redis.spaces.episode_metrics import EpisodeMetrics, read_vector, reports
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray
from workers.separate.call_clock import CallClock
from workers.separate.processes import end_workers

_LEAVING = (SystemExit, KeyboardInterrupt)  # failures, too, if the user's code raises them
_NO_METRICS: tuple[EpisodeMetrics, ...] = ()
_NEXT_STEP, _SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)
_log = logging.getLogger("dppo")

# A vector step as the environments answered it: observations [N, *row], the input of the next actions;
# rewards, terminated, truncated, each [N]; infos; final observations, E of [*row], None if none ended, and in
# NEXT_STEP mode, where they are the observations. A NamedTuple would cost as much as a sum of arrays.
RawStep = tuple[Array, Array, BoolArray, BoolArray, Mapping[str, Any], Sequence[Array] | None]


class VectorStep(NamedTuple):
    """The result of one vector step; use it before the next step, which may overwrite its arrays."""

    observations: Array  # [N, *row], input of the next actions
    rewards: FloatArray  # [N]
    terminated: BoolArray  # [N]
    truncated: BoolArray  # [N]
    valid: BoolArray  # [N], False for the dummy step of an automatic reset
    final_observations: Array | None  # [E, *row] of the environments that ended; None if none did
    metrics: tuple[EpisodeMetrics, ...] = ()  # [E], metrics of the episodes that ended

    @property
    def begins(self) -> BoolArray:
        """[N], True where the observation to act on next begins an episode."""
        return self.terminated | self.truncated | ~self.valid


class Environments:
    """N environments that step together; through `calls` a watchdog sees how long each call takes."""

    def __init__(
        self, vector: VectorEnv[Any, Any, Any], seeds: list[int], calls: CallClock | None = None
    ) -> None:
        mode = vector.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ConfigurationError(
                f"{vector} does not state its autoreset_mode in its metadata, "
                "so the ends of its episodes cannot be told apart"
            )
        self.vector = vector
        self._calls = calls or CallClock()
        self._calls.processes.update(getattr(vector, "processes", ()))
        self.count = vector.num_envs
        self._shape = (vector.num_envs,)
        self.mode = mode
        self.observation = describe_observations(vector.single_observation_space)
        is_plain = self.observation.is_floats and not self.observation.fields[0].path
        # Observations of this shape are rows as they are.
        self._plain_shape = (self.count, *self.observation.row_shape) if is_plain else None
        self._seeds = seeds
        self._ended: BoolArray = np.zeros(self.count, dtype=np.bool_)
        self._resetting = False  # the next step is a dummy step of the ended environments
        self._all: BoolArray = np.ones(self.count, np.bool_)
        self._all.flags.writeable = False
        self._steps = 0
        self._stepping_s = 0.0

    @property
    def step_ms(self) -> float | None:
        """Mean time of one environment's step, in ms; for a native vector version, of all environments."""
        if not self._steps:
            return None
        at_once = self.count if isinstance(self.vector.unwrapped, SyncVectorEnv) else 1
        return 1000 * self._stepping_s / self._steps / at_once

    def reset(self) -> Array:
        """Seed and start all environments; observations [N, *row].

        Vectors of single environments take a seed for each, native ones one seed for all.

        Raises:
            EnvironmentBrokenError: the environment raised.
        """
        seed: Any = self._seeds if hasattr(self.vector, "env_fns") else self._seeds[0]
        self._ended, self._resetting = np.zeros(self.count, dtype=np.bool_), False
        self._calls.start()
        try:
            with keeping_process_state():
                observations, _ = self.vector.reset(seed=seed)
        except (Exception, *_LEAVING) as error:  # the user's code may raise anything
            raise EnvironmentBrokenError(
                f"reset raised {type(error).__name__}: {first_line(error)}"
            ) from error
        finally:
            self._calls.stop()
        return self._rows(observations)

    def begin(self, episodes: Sequence[Sequence[int]]) -> Array:
        """Start the episodes assigned to each environment, by their seeds; observations [N, *row].

        `AssignedEpisodes` starts the later episodes of each environment. A native vector chooses its own.

        Raises:
            EnvironmentBrokenError: the environment raised, or one of its processes died.
        """
        self._seeds = [seeds[0] for seeds in episodes]
        if hasattr(self.vector, "env_fns"):
            vector: Any = self.vector
            self._calls.start()
            try:
                vector.set_attr(NEXT_SEEDS, [list(seeds[1:]) for seeds in episodes])
            except (EOFError, ConnectionError) as error:
                raise EnvironmentBrokenError("a worker process of the environments died") from error
            finally:
                self._calls.stop()
        return self.reset()

    def step(self, actions: Any) -> VectorStep:
        """Step all environments with actions in the form that the environment takes.

        Raises:
            EnvironmentBrokenError: the environment raised, or one of its processes died.
        """
        observations, rewards, terminated, truncated, infos, final = self.step_raw(actions)
        rewards, valid = rewards.astype(np.float32, copy=False), self._all
        if self._resetting:
            valid = ~self._ended
            terminated, truncated = terminated & valid, truncated & valid
            rewards = np.where(valid, rewards, np.float32(0))
        self._ended = ended = terminated | truncated
        self._resetting, metrics = False, _NO_METRICS
        if np.count_nonzero(ended):  # a third of the time of any()
            if self.mode is _NEXT_STEP:
                self._resetting, final = True, list(observations[ended])
            metrics = self.metrics(infos, ended)
        finals: Array | None = None if final is None else np.stack(final)
        return VectorStep(observations, rewards, terminated, truncated, valid, finals, metrics)

    def step_raw(self, actions: Any) -> RawStep:
        """The same without marking the dummy steps of resets: `workers/sampling/step_records.py` marks them.

        Call either this or `step` between two resets. It is one function because a call costs as much as an
        operation on a small array.

        Raises:
            EnvironmentBrokenError: the environment raised, or one of its processes died.
        """
        self._calls.start()
        try:
            began = time.perf_counter()
            rows, rewards, terminated, truncated, infos = self.vector.step(actions)
            self._stepping_s += time.perf_counter() - began
            self._steps += 1
            if not (type(rows) is np.ndarray and rows.shape == self._plain_shape and rows.dtype is _FLOAT32):
                rows = self._rows(rows)
            if not (
                type(rewards) is type(terminated) is type(truncated) is np.ndarray
                and rewards.shape == terminated.shape == truncated.shape == self._shape
                and terminated.dtype is truncated.dtype is _BOOL
                and rewards.dtype.char in "fd"
            ):
                rewards = np.asarray(rewards, np.float32).reshape(self.count)
                terminated = np.asarray(terminated, np.bool_).reshape(self.count)
                truncated = np.asarray(truncated, np.bool_).reshape(self.count)
            final: Sequence[Array] | None = None
            if self.mode is not _NEXT_STEP and (np.count_nonzero(terminated) or np.count_nonzero(truncated)):
                final, rows = self._final(rows, terminated | truncated, infos)
        except (EOFError, ConnectionError) as error:
            raise EnvironmentBrokenError("a worker process of the environments died") from error
        except (Exception, *_LEAVING) as error:  # the user's code may raise anything
            raise EnvironmentBrokenError(
                f"step raised {type(error).__name__}: {first_line(error)}"
            ) from error
        finally:
            self._calls.stop()
        return rows, rewards, terminated, truncated, infos, final

    def metrics(self, infos: Mapping[str, Any], ended: BoolArray) -> tuple[EpisodeMetrics, ...]:
        """[E], what the environments that ended report about their episodes."""
        return read_vector(infos, np.flatnonzero(ended).tolist(), self.mode is _SAME_STEP)

    def reports(self, infos: Mapping[str, Any]) -> bool:
        """Whether an environment may have reported something about its episode."""
        return reports(infos, self.mode is _SAME_STEP)

    def _final(
        self, observations: Array, ended: BoolArray, infos: Mapping[str, Any]
    ) -> tuple[Sequence[Array], Array]:
        """Final observations, E of [*row], of ended environments, and the next observations [N, *row]."""
        if self.mode is _SAME_STEP:
            return [self.observation.pack(x) for x in infos["final_obs"][ended]], observations
        final = list(observations[ended])
        if self.mode is AutoresetMode.DISABLED:
            fresh, _ = self.vector.reset(options={"reset_mask": ended})
            observations = self._rows(fresh)
        return final, observations

    def _rows(self, observations: Any) -> Array:
        return self.observation.pack(observations, self._shape)

    def close(self) -> None:
        """Free the environments and their processes; errors are logged, not raised."""
        processes = getattr(self.vector, "processes", None)
        if processes is not None:
            pipes = getattr(self.vector, "parent_pipes", ())
            end_workers(processes, lambda: _ask_to_close(pipes))
            self._calls.processes.difference_update(processes)
            self.vector.closed = True
            return
        self._calls.start()  # closing may hang
        try:
            with keeping_process_state(), interrupted_after(CLOSE_LIMIT_S):
                self.vector.close()
        except (Exception, TookTooLongError, *_LEAVING) as error:  # noqa: BLE001 code of the user's
            _log.warning("closing the environments raised %s: %s", type(error).__name__, error)
        finally:
            self._calls.stop()


def _ask_to_close(pipes: Sequence[Any]) -> None:
    """Ask gymnasium's worker processes to close their environments."""
    for pipe in filter(None, pipes):  # a worker that raised has no pipe
        with contextlib.suppress(OSError, ValueError):  # the worker has ended
            pipe.send(("close", None))
