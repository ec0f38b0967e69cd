"""One open rollout: its arrays, which each environment fills column by column at its own pace."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.rollout import Rollout, allocate
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.episode_metrics import EpisodeMetrics, to_arrays
from dppo_redis.spaces.observations import Array, FloatArray
from workers.sampling.running_episodes import RunningEpisodes, first_steps
from workers.separate.step_page import TERMINATED, TRUNCATED, StepPage


class RolloutBuffers:
    """The arrays of a rollout of N environments, which one rollout after another uses."""

    def __init__(self, spec: Spec, count: int) -> None:
        self.arrays = allocate(spec, count)
        self.arrays.valid[:] = True  # an automatic reset takes no step of its own
        shape = (spec.rollout_steps, count, spec.action.outputs)  # T, N, logits and means
        self.outputs = np.empty(shape, np.float32)


class OpenRollout:
    """A rollout that is being filled with one policy. Column n is the work of environment n."""

    def __init__(self, buffers: RolloutBuffers, policy: ActingPolicy, noise: FloatArray, length: int) -> None:
        self.buffers, self.policy, self.length = buffers, policy, length  # length: rows, at most T
        self._noise = noise  # [T, N, outputs]
        count = noise.shape[1]
        self.rows = np.zeros(count, np.int64)  # [N], rows done
        self.acting = np.zeros(count, np.bool_)  # [N], whether the next row's action was taken
        self._finals: dict[tuple[int, int], tuple[Array, EpisodeMetrics]] = {}  # by row and column
        arrays = buffers.arrays
        self._before = np.empty_like(arrays.frames_before), np.empty_like(arrays.memory)
        self._last = np.empty_like(arrays.last_observations)

    @property
    def is_full(self) -> bool:
        """Whether each environment has filled its column."""
        return bool(self.rows.min() >= self.length)

    def shorten(self, wanted: int) -> None:
        """End at row `wanted`, or at the first later row that no column has passed yet."""
        self.length = min(self.length, max(wanted, int((self.rows + self.acting).max())))

    def enter(self, place: int, state: PolicyState) -> None:
        """Begin the column of this environment in the state that its last one ended in."""
        state.forget_nonfinite_at(place)
        frames, memory = self._before
        frames[place] = state.frames_before[place]
        memory[place] = state.memory[place]

    def act(self, places: Array, state: PolicyState) -> Array:
        """Choose the actions [P, *row] of these environments, and note what they are based on."""
        arrays, t = self.buffers.arrays, self.rows[places]
        arrays.observations[t, places] = state.newest[places]
        outputs = state.outputs_at(self.policy, places)
        self.buffers.outputs[t, places] = outputs
        actions = self.policy.sample(outputs, self._noise[t, places])
        arrays.actions[t, places] = actions
        self.acting[places] = True
        return actions

    def take(
        self, places: Array, page: StepPage, state: PolicyState, metrics: Callable[[int], EpisodeMetrics]
    ) -> None:
        """Take what a step of these environments, [P] places, showed from the page."""
        arrays, t, flags = self.buffers.arrays, self.rows[places], page.flags[places]
        terminated, truncated = flags & TERMINATED > 0, flags & TRUNCATED > 0
        ended = terminated | truncated
        arrays.rewards[t, places] = page.rewards[places]
        arrays.terminated[t, places] = terminated
        arrays.truncated[t, places] = truncated
        for index in np.flatnonzero(ended).tolist():
            place = int(places[index])
            self._finals[int(t[index]), place] = page.finals[place].copy(), metrics(place)
        state.observe_at(places, page.observations[places], ended)
        self.rows[places] += 1
        self.acting[places] = False

    def leave(self, place: int, state: PolicyState) -> None:
        """End the column of this environment."""
        self._last[place] = state.newest[place]

    def finish(
        self,
        episodes: RunningEpisodes,
        known_metrics: Callable[[Sequence[EpisodeMetrics]], Sequence[str]],
    ) -> Rollout:
        """The whole rollout. Its arrays are the buffers."""
        rows = first_steps(self.buffers.arrays, self.length)
        ends = [end for _, end in sorted(self._finals.items(), key=lambda item: item[0])]
        metrics = [numbers for _, numbers in ends]
        frames, memory = self._before
        return replace(
            rows,
            log_probs=self.policy.log_probs(self.buffers.outputs[: self.length], rows.actions),
            final_observations=np.stack([row for row, _ in ends]) if ends else rows.final_observations,
            last_observations=self._last,
            frames_before=frames,
            memory=memory,
            **episodes.add(rows)._asdict(),
            metrics=to_arrays(metrics, known_metrics(metrics)),
        )
