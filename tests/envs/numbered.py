"""An environment that knows which copy it is."""

import os

from tests.envs.episodes import FixedLength


class Numbered(FixedLength):
    """Keeps the argument and the variables that it was built with."""

    def __init__(self, label: str = "", length: int = 3) -> None:
        super().__init__(length)
        self.label = label
        self.variables = "/".join(os.environ[f"DPPO_{name}"] for name in ("ROLE", "SLOT", "COPY"))
        self.described = f"{self.label} {self.variables}"
