"""What a collector needs of environments that step by themselves; processes and threads provide it."""

from collections.abc import Sequence
from typing import Literal, Protocol

from dppo_redis.spaces.episode_metrics import EpisodeMetrics
from workers.separate.step_page import StepPage

Kind = Literal["sync", "async", "threads", "native"]  # how environments are stepped


class SeparateEnvironments(Protocol):
    """N environments, each of which steps by itself. A `place`, 0 to N - 1, is an environment and its row."""

    count: int
    page: StepPage

    @property
    def kind(self) -> Kind:
        """How they are stepped."""
        ...

    def reset(self) -> None:
        """Begin the first episodes; their observations stand on the page.

        Raises:
            EnvironmentBrokenError: an environment raised, or its process died.
        """
        ...

    def step(self, places: Sequence[int]) -> None:
        """Let these environments take the actions that stand on the page."""
        ...

    def wait(self, limit_s: float) -> list[int]:
        """Places of environments whose calls have ended, after at most `limit_s` seconds; it may be none.

        Raises:
            EnvironmentBrokenError: an environment raised, or its process died.
        """
        ...

    def metrics(self, place: int) -> EpisodeMetrics:
        """Metrics of the episode that the last step ended, where the page says that there are some."""
        ...

    def close(self) -> None:
        """Free them; what goes wrong in it is not raised."""
        ...
