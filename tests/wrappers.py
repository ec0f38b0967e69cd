"""Wrappers of a user's own."""

from typing import Any

import gymnasium
import numpy as np


class Scaled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations times `factor`."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 1.0) -> None:
        super().__init__(env)
        self.factor = factor

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation) * np.float32(self.factor)


class Shifted(Scaled):
    """Observations plus `factor`."""

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation) + np.float32(self.factor)


def forgetful(env: gymnasium.Env[Any, Any]) -> None:
    """Forgets to return what it made."""
    Scaled(env)
