"""A wrapper for what is watched in a window."""

from typing import Any

import gymnasium


class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its window is closed, as by a user, after the fifth step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken == 5:
            import pygame

            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return super().step(action)
