"""A small task of uint8 images, for the scores: catch five balls, one after the other.

`ops.bench.pixel_catch:PixelCatch-v0`. The best return is 5; standing still catches about one in twelve.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

SIZE = 12
BALLS = 5
Image = npt.NDArray[np.uint8]


class PixelCatch(gymnasium.Env[Image, np.int64]):
    """A ball falls straight down, one row per step; the paddle on the last row moves by one column."""

    observation_space = Box(0, 255, (SIZE, SIZE, 1), np.uint8)
    action_space = Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._paddle = SIZE // 2
        self._left = BALLS
        self._drop()
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, SIZE - 1))
        self._row += 1
        reward = 0.0
        if self._row == SIZE - 1:
            reward = 1.0 if self._column == self._paddle else -1.0
            self._left -= 1
            self._drop()
        return self._image(), reward, self._left == 0, False, {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(SIZE))

    def _image(self) -> Image:
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[self._row, self._column] = 255
        image[SIZE - 1, self._paddle] = 128
        return image


gymnasium.register("PixelCatch-v0", entry_point=f"{__name__}:PixelCatch")
