"""Environments that disturb their process in one way each, after some steps."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from tests.envs.episodes import FixedLength, Vector

_LIFE_S = 3600


class Wild(FixedLength):
    """After `after` steps of its life, or in its constructor where that is 0, it does as `how` says."""

    def __init__(self, how: str, after: int = 0, length: int = 50) -> None:
        super().__init__(length)
        self.how = how
        self.countdown = after
        if not after:
            self.go_wild()

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.countdown -= 1
        if self.countdown == 0:
            self.go_wild()
        return super().step(action)

    def go_wild(self) -> None:
        """Once."""
        getattr(self, self.how)()

    def holds_the_lock(self) -> None:
        """A native call that never returns and lets no other thread of the interpreter run."""
        library = ctypes.PyDLL(None)
        while True:
            library.sleep(_LIFE_S)

    def crashes(self) -> None:
        """A segmentation fault."""
        ctypes.string_at(0)

    def leaves(self) -> None:
        """Exit with status 0, as if the process had finished."""
        os._exit(0)

    def forks(self) -> None:
        """Fork; both processes return from the call."""
        os.fork()

    def leaves_a_thread(self) -> None:
        """Start a thread for which the interpreter would wait."""
        threading.Thread(target=time.sleep, args=(_LIFE_S,)).start()

    def leaves_processes(self) -> None:
        """A simulator in a session of its own, and one whose parent is gone."""
        sleeper = [sys.executable, "-c", f"import time; time.sleep({_LIFE_S})"]
        subprocess.Popen(sleeper, start_new_session=True)
        starts_another = f"import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", starts_another], check=True)
