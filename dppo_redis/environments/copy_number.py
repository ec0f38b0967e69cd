"""The number of a copy of an environment, for simulators that need a port or a licence for each copy.

`{role}`, `{slot}` and `{copy}` in texts of the arguments are replaced, and DPPO_ROLE, DPPO_SLOT and DPPO_COPY
are set, before each construction. The run's spec keeps the texts as they were given.
"""

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from dppo_redis.protocol.spec import EnvironmentSource

_FIELDS = re.compile(r"\{(role|slot|copy)\}")


@dataclass(frozen=True)
class CopyNumber:
    """One copy among all that a run has at a time."""

    role: str  # actor, evaluator, serial, enjoy; look: a copy that is only inspected, before the others
    slot: int = 0  # of the actor
    copy: int = 0  # within its process

    def of(self, source: EnvironmentSource) -> EnvironmentSource:
        """The source from which this copy is built; sets the variables that its constructor may read."""
        os.environ.update(DPPO_ROLE=self.role, DPPO_SLOT=str(self.slot), DPPO_COPY=str(self.copy))
        return replace(source, env_kwargs={name: self._fill(x) for name, x in source.env_kwargs.items()})

    def _fill(self, value: Any) -> Any:
        """A value with numbers filled into its texts at any depth; keys and other braces stay as they are."""
        if isinstance(value, str):
            return _FIELDS.sub(lambda found: str(getattr(self, found[1])), value)
        if isinstance(value, list | tuple):
            return type(value)(self._fill(one) for one in value)
        if isinstance(value, dict):
            return {name: self._fill(one) for name, one in value.items()}
        return value


LOOK = CopyNumber("look")
