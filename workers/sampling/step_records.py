"""Records the steps of environments in the arrays of a rollout, and marks dummy steps of resets once for all.

A step costs four copies into arrays. Which rows are dummy steps, and which observations are final ones, is
worked out at the end for all T steps together: array operations on one step of a few environments would cost
as much as the environments. Knows no policy.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from dppo_redis.protocol.rollout import Rollout
from dppo_redis.spaces.episode_metrics import NOTHING, EpisodeMetrics
from dppo_redis.spaces.observations import Array, BoolArray
from workers.envs import Environments


class StepRecords:
    """The steps of one rollout after another; `begin`, then `step` for each t, then `finish`.

    In NEXT_STEP mode the step after an end is a dummy step, which resets the environment. What the
    environment reports of it is not used: its reward is 0, it ends no episode, and it is not valid.
    """

    def __init__(self, environments: Environments, buffers: Rollout) -> None:
        self._environments = environments
        self._observations = buffers.observations  # [T, N, *row], written by the collector
        self._no_finals = buffers.final_observations
        self._rewards, self._valid = buffers.rewards, buffers.valid  # [T, N]
        self._terminated, self._truncated = buffers.terminated, buffers.truncated  # [T, N]
        self._resets_next = environments.mode is AutoresetMode.NEXT_STEP
        self._ended: BoolArray = np.zeros(environments.count, np.bool_)  # by the last marked step
        self._marked = 0  # steps whose dummy rows are marked
        self._finals: list[Array] = []  # each [*row]
        self._metrics: dict[tuple[int, int], EpisodeMetrics] = {}  # of the episodes that ended at (t, n)
        self._valid[:] = True

    def begin(self) -> None:
        """Start a rollout; episodes go on."""
        self._marked = 0
        self._finals.clear()
        self._metrics.clear()

    def step(self, t: int, actions: Any) -> Array:
        """Step the environments and record all but observations; returns those to act on next, [N, *row].

        Raises:
            EnvironmentBrokenError: the environment raised.
        """
        newest, rewards, terminated, truncated, infos, final = self._environments.step_raw(actions)
        self._rewards[t] = rewards
        self._terminated[t] = terminated
        self._truncated[t] = truncated
        if final is not None:
            self._finals.extend(final)
        if infos and self._environments.reports(infos):
            self._read_metrics(t, terminated | truncated, infos)
        return newest

    def begins(self, t: int) -> BoolArray:
        """[N], True where the observation after step t, the last recorded one, begins an episode."""
        self._mark(t + 1)
        return np.asarray(self._terminated[t] | self._truncated[t] | ~self._valid[t])

    def finish(self, steps: int, newest: Array) -> tuple[Array, list[EpisodeMetrics]]:
        """Mark all rows; returns final observations [E, *row] and metrics [E] in row order.

        `newest` are the observations after the last step. Without any metrics the list is empty.
        """
        self._mark(steps)
        ended = self._terminated[:steps] | self._truncated[:steps]
        metrics: list[EpisodeMetrics] = []
        if self._metrics:
            metrics = [self._metrics.get((t, n), NOTHING) for t, n in np.argwhere(ended).tolist()]
        if not self._resets_next:
            return np.stack(self._finals) if self._finals else self._no_finals, metrics
        # The final observation of an episode is the input of the dummy step that follows.
        finals = np.concatenate([self._observations[1:steps][ended[:-1]], newest[ended[-1]]])
        return finals, metrics

    def _read_metrics(self, t: int, ended: BoolArray, infos: Mapping[str, Any]) -> None:
        if np.count_nonzero(ended):
            places = np.flatnonzero(ended).tolist()
            for place, metrics in zip(places, self._environments.metrics(infos, ended), strict=True):
                if metrics is not NOTHING:
                    self._metrics[t, place] = metrics

    def _mark(self, steps: int) -> None:
        """Mark the dummy rows of all steps before `steps`, and blank what was reported of them."""
        first, self._marked = self._marked, steps
        if not self._resets_next or first == steps:
            return
        rows = slice(first, steps)
        terminated, truncated = self._terminated[rows], self._truncated[rows]
        ended = terminated | truncated
        before = np.concatenate([self._ended[None], ended[:-1]])  # [., N], the previous step ended it
        if (before & ended).any():  # an end in a dummy row is none, so the row after it is valid
            for t in range(len(ended)):
                before[t] = self._ended if t == 0 else ended[t - 1]
                ended[t] &= ~before[t]
            terminated &= ended
            truncated &= ended
        self._valid[rows] = ~before
        self._rewards[rows][before] = 0
        self._ended = ended[-1]
