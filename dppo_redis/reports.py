"""What a run reports about itself, as values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Result of greedy episodes with one publication of weights."""

    version: int
    update: int
    trained_steps: int  # of the weights that played
    env_steps: int  # of the weights that played
    return_mean: float
    return_std: float
    length_mean: float
    episodes: int

    @staticmethod
    def from_fields(stored: Mapping[str, str]) -> "Evaluation | None":
        """Read the evaluation hash; None when there was none yet, or somebody damaged it."""
        try:
            return Evaluation(
                version=int(stored["version"]),
                update=int(stored["update"]),
                trained_steps=int(stored["trained_steps"]),
                env_steps=int(stored["env_steps"]),
                return_mean=float(stored["return_mean"]),
                return_std=float(stored["return_std"]),
                length_mean=float(stored["length_mean"]),
                episodes=int(stored["episodes"]),
            )
        except (KeyError, ValueError):
            return None
