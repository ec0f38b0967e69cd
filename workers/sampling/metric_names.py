"""Which of the numbers that environments report at an episode's end a run keeps."""

import logging
from collections.abc import Sequence

from dppo_redis.service.logs import RateLimit
from dppo_redis.spaces.episode_metrics import EpisodeMetrics
from dppo_redis.spaces.metric_names import MAX_NAME, MAX_NAMES

_log = logging.getLogger("dppo")


class MetricNames:
    """The first 32 names of metrics, in order of appearance; counts and logs numbers that are left out."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._rate_limit = RateLimit()
        self.refused = 0  # numbers that were left out because of their names

    def known(self, episodes: Sequence[EpisodeMetrics]) -> tuple[str, ...]:
        """The known names, extended by those of these episodes."""
        left_out: list[str] = []
        for episode in episodes:
            for name, _ in episode.numbers:
                if name in self._names or len(self._names) < MAX_NAMES:
                    self._names[name] = None
                else:
                    left_out.append(name)
            left_out += episode.refused
        self.refused += len(left_out)
        if left_out and self._rate_limit.due():
            _log.warning(
                "%d numbers of the environment are left out, the first is named %s: a name is an identifier "
                "of at most %d characters, and a run has at most %d names",
                self.refused,
                left_out[0],
                MAX_NAME,
                MAX_NAMES,
            )
        return tuple(self._names)
