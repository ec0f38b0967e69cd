"""Environments whose steps take as long as a test says, by a clock of their own: nothing sleeps."""

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from dppo_redis.environments.copy_number import LOOK
from dppo_redis.errors import EnvironmentBrokenError
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.episode_metrics import NOTHING, EpisodeMetrics
from workers.separate.one_environment import EnvironmentPlan, OneEnvironment, describe_failure
from workers.separate.separate_environments import Kind
from workers.separate.step_page import row_of, view_page

Duration = Callable[[int, int], float]  # of (place, number of the step)


class ScriptedEnvironments:
    """N environments that are played here, in the order in which their steps end."""

    kind: Kind = "threads"

    def __init__(self, spec: Spec, count: int, duration: Duration) -> None:
        self.count, self._duration = count, duration
        self.page = view_page(np.zeros(count, row_of(spec.observation, spec.action)))
        plans = EnvironmentPlan.of(spec, list(range(count)), LOOK)
        self._environments = [OneEnvironment(plan, self.page) for plan in plans]
        self._metrics: list[EpisodeMetrics] = [NOTHING] * count
        self._running: list[tuple[float, int]] = []
        self.now = 0.0

    def reset(self) -> None:
        for environment in self._environments:
            environment.reset()

    def step(self, places: Sequence[int]) -> None:
        for place in places:
            assert place not in (other for _, other in self._running), "it is stepped twice"
            ends = self.now + self._duration(place, int(self.page.steps[place]))
            heapq.heappush(self._running, (ends, place))

    def wait(self, limit_s: float) -> list[int]:
        del limit_s
        assert self._running, "the collector waits for nothing"
        self.now = self._running[0][0]
        places = []
        while self._running and self._running[0][0] == self.now:
            places.append(heapq.heappop(self._running)[1])
        for place in places:
            try:
                self._metrics[place] = self._environments[place].step()
            except Exception as error:
                raise EnvironmentBrokenError(describe_failure(error, "step")) from error
        return places

    def metrics(self, place: int) -> EpisodeMetrics:
        return self._metrics[place]

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
