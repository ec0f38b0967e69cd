"""Samples rollouts with environments that do not wait for each other.

An environment goes on as soon as its step has ended: one call of the policy serves all that are ready. One
that has filled its column of a rollout begins its column of the next, while slower ones still fill theirs. At
most K rollouts are open; each is sampled with the policy of its opening. They are finished in their order.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.random import SeedSequence

from dppo_redis.errors import StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.spec import Spec
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.episode_metrics import NOTHING, EpisodeMetrics
from dppo_redis.spaces.observations import Array
from workers.sampling.metric_names import MetricNames
from workers.sampling.open_rollout import OpenRollout, RolloutBuffers
from workers.sampling.running_episodes import RunningEpisodes
from workers.separate.separate_environments import Kind, SeparateEnvironments
from workers.separate.step_page import REPORTS

_POLL_S = 0.05  # how soon a stop is noticed
_ASK_S = 0.002  # how soon a rollout may be opened that could not be opened before


class FreeCollector:
    """Environments that step by themselves, and up to `most_open` open rollouts.

    With `together` each step waits for all environments, and one rollout is open: the rollouts are those of
    `Collector`, number for number.

    Raises:
        EnvironmentBrokenError: the environments cannot be reset.
    """

    def __init__(
        self,
        environments: SeparateEnvironments,
        spec: Spec,
        sampling: SeedSequence,
        most_open: int = 1,
        *,
        together: bool = False,
    ) -> None:
        self.environments, self.spec = environments, spec
        self._most_open, self._together = 1 if together else most_open, together
        self._generator = np.random.default_rng(sampling)
        environments.reset()
        self._state = PolicyState(spec, environments.page.observations.copy())
        self._episodes = RunningEpisodes(environments.count, spec.return_discount)
        self._metrics = MetricNames()
        self._open: deque[OpenRollout] = deque()
        self._spare: list[RolloutBuffers] = []
        self._fills: list[OpenRollout | None] = [None] * environments.count  # None: it waits for the next
        self._ready: list[int] = []  # with `together`: those that wait for the others
        self.policy: ActingPolicy | None = None  # of the last rollout
        self.wanted_steps = spec.rollout_steps  # at least 1; may be set at any time, from any thread
        self.steps_done = 0  # steps so far of the slowest environment in the oldest open rollout

    @property
    def is_open(self) -> bool:
        """Whether a rollout is open, so that the next one needs no permission."""
        return bool(self._open)

    def collect(
        self,
        policy: ActingPolicy,
        stop: StopRequest | None = None,
        next_policy: Callable[[], ActingPolicy | None] = lambda: None,
    ) -> Rollout:
        """Sample until the oldest rollout is full; returns it. `policy` then is the policy that sampled it.

        Its arrays are buffers of this collector: use or copy them before the next call.

        Args:
            policy: opens a rollout if none is open.
            stop: checked all the time.
            next_policy: the policy of another rollout, if it may be opened now. It is asked often.

        Raises:
            StoppedError: a stop was requested meanwhile; open rollouts are dropped.
            EnvironmentBrokenError: an environment raised.
        """
        if not self._open:
            self._begin(policy)
        while not self._open[0].is_full:
            if stop is not None and stop.requested:
                raise StoppedError("stopped in the middle of a rollout")
            can_open = None in self._fills and len(self._open) < self._most_open
            if can_open and (following := next_policy()) is not None:
                self._begin(following)
                can_open = False
            self._take(self.environments.wait(_ASK_S if can_open else _POLL_S))
        rollout = self._open.popleft()
        self.steps_done = rollout.length
        self._spare.append(rollout.buffers)
        self.policy = rollout.policy
        return rollout.finish(self._episodes, self._metrics.known)

    @property
    def vectorization(self) -> Kind:
        """How the environments are stepped."""
        return self.environments.kind

    @property
    def step_ms(self) -> float | None:
        """Mean time of one environment's step, in ms."""
        return self.environments.page.step_ms

    @property
    def refused_metrics(self) -> int:
        """How many numbers of ended episodes were left out because of their names, so far."""
        return self._metrics.refused

    def close(self) -> None:
        """Free the environments."""
        self.environments.close()

    def _begin(self, policy: ActingPolicy) -> None:
        """Open a rollout; environments that wait for it begin their columns."""
        buffers = self._spare.pop() if self._spare else RolloutBuffers(self.spec, self.environments.count)
        length = min(self.wanted_steps, self.spec.rollout_steps)
        noise = policy.noise(self._generator, length, self.environments.count)
        rollout = OpenRollout(buffers, policy, noise, length)
        self._open.append(rollout)
        waiting = [place for place, fills in enumerate(self._fills) if fills is None]
        for place in waiting:
            self._enter(place, rollout)
        self._act(waiting)

    def _enter(self, place: int, rollout: OpenRollout) -> None:
        rollout.enter(place, self._state)
        self._fills[place] = rollout

    def _take(self, places: list[int]) -> None:
        """Take the steps that have ended, and let these environments go on."""
        if self._together:
            self._ready += places
            if len(self._ready) < self.environments.count:
                return
            places, self._ready = sorted(self._ready), []
        if not places:
            return
        for rollout, some in self._by_rollout(places):
            rollout.take(some, self.environments.page, self._state, self._metrics_of)
        for rollout in self._open:
            if self.wanted_steps < rollout.length:
                rollout.shorten(self.wanted_steps)
        self.steps_done = int(self._open[0].rows.min())
        self._act([place for place in places if self._has_column(place)])

    def _has_column(self, place: int) -> bool:
        """Whether an environment has a row to fill; it goes on to the next open rollout if there is one."""
        rollout = self._fills[place]
        assert rollout is not None
        if rollout.rows[place] < rollout.length:
            return True
        rollout.leave(place, self._state)
        after = self._open.index(rollout) + 1
        if after == len(self._open):
            self._fills[place] = None
            return False
        self._enter(place, self._open[after])
        return True

    def _act(self, places: list[int]) -> None:
        for rollout, some in self._by_rollout(places):
            self.environments.page.actions[some] = rollout.act(some, self._state)
        self.environments.step(places)

    def _by_rollout(self, places: list[int]) -> list[tuple[OpenRollout, Array]]:
        groups = ((rollout, [p for p in places if self._fills[p] is rollout]) for rollout in self._open)
        return [(rollout, np.array(some)) for rollout, some in groups if some]

    def _metrics_of(self, place: int) -> EpisodeMetrics:
        reports = self.environments.page.flags[place] & REPORTS
        return self.environments.metrics(place) if reports else NOTHING
