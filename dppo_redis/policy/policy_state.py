"""The state of running episodes that a policy needs to act: frames and memory. Pure numpy.

The collector, the evaluator and the player keep it between two steps. It knows no environment.
"""

import numpy as np

from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.features import push_frame
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray


class PolicyState:
    """The newest observation of N running episodes, with a stack of k frames the last k, and the memory.

    An action mask is part of the observation. At the start of an episode the frames are copies of its first
    one, and the memory is zero.
    """

    def __init__(self, spec: Spec, observations: Array) -> None:
        self.newest = observations  # [N, *row]
        self.memory = np.zeros((len(observations), spec.network.state_size), np.float32)
        self._frames = np.repeat(observations[:, None], spec.frame_stack, axis=1)  # [N, k, *row]
        self._stacking = spec.frame_stack > 1
        self.remembers = self._stacking or spec.network.state_size > 0  # more than the newest observation

    @property
    def frames_before(self) -> Array:
        """[N, k - 1, *row], the frames before the newest one."""
        return self._frames[:, :-1]

    def outputs(self, policy: ActingPolicy, out: FloatArray | None = None) -> FloatArray:
        """The policy's logits and means [N, outputs] for this state; keeps the new memory.

        They are written into `out` if it is given.
        """
        rows = self._frames if self._stacking else self.newest
        outputs, self.memory = policy.step(rows, self.memory, out)
        return outputs

    def observe(self, observations: Array, begins: BoolArray | None = None) -> None:
        """Take the observations [N, *row] of a step; `begins` [N] marks those that begin an episode."""
        self.newest = observations
        if self._stacking:
            self._frames = push_frame(self._frames, observations)
        if begins is None:
            return
        if self._stacking:
            self._frames[begins] = observations[begins][:, None]
        if self.memory.shape[1]:
            self.memory = np.where(begins[:, None], np.float32(0), self.memory)

    def outputs_at(self, policy: ActingPolicy, places: Array) -> FloatArray:
        """`outputs` [P, outputs] of the episodes at these places, [P]; the others stay as they are."""
        rows = self._frames if self._stacking else self.newest
        outputs, memory = policy.step(rows[places], self.memory[places])
        if self.memory.shape[1]:
            self.memory[places] = memory
        return outputs

    def observe_at(self, places: Array, observations: Array, begins: BoolArray) -> None:
        """`observe` for the episodes at these places, [P]; observations and begins are of them alone."""
        self.newest[places] = observations
        if self._stacking:
            frames = push_frame(self._frames[places], observations)
            frames[begins] = observations[begins][:, None]
            self._frames[places] = frames
        if self.memory.shape[1]:
            self.memory[places[begins]] = 0

    def forget_nonfinite(self) -> None:
        """Zero memory values that are not finite: a broken observation then spoils only its own rollout."""
        if self.memory.shape[1]:
            self.memory = np.nan_to_num(self.memory, nan=0, posinf=0, neginf=0)

    def forget_nonfinite_at(self, place: int) -> None:
        """`forget_nonfinite` for the episode at this place."""
        if self.memory.shape[1]:
            self.memory[place] = np.nan_to_num(self.memory[place], nan=0, posinf=0, neginf=0)
