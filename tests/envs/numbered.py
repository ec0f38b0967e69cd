"""Environments that know which copy they are, or start a simulator."""

import os
import subprocess
import sys
from pathlib import Path

from tests.envs.episodes import FixedLength


class Numbered(FixedLength):
    """Keeps the argument and the variables that it was built with."""

    def __init__(self, label: str = "", length: int = 3) -> None:
        super().__init__(length)
        self.label = label
        self.variables = "/".join(os.environ[f"DPPO_{name}"] for name in ("ROLE", "SLOT", "COPY"))
        self.described = f"{self.label} {self.variables}"


class Simulated(FixedLength):
    """Starts a simulator, which it forgets; makes the file `closed` when it is closed."""

    def __init__(self, closed: str, length: int = 3) -> None:
        super().__init__(length)
        self.closed = Path(closed)
        sleep = "import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)

    def close(self) -> None:
        self.closed.touch()
