"""The page on which a collector and its environments write to each other: one row for each environment.

A page may lie in memory that processes share. Either side writes a row only while the other waits.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.observations import Array, ObservationSpec

TERMINATED, TRUNCATED = 1, 2  # flags of a step
REPORTS = 4  # metrics of an episode that ended are ready
FAILED = 8  # the call raised


class StepPage(NamedTuple):
    """Views of a page's columns."""

    actions: Array  # [N, *row], as they travel
    observations: Array  # [N, *row], input of the next action
    finals: Array  # [N, *row], the last observation of the episode that this step ended
    rewards: npt.NDArray[np.float64]  # [N]
    flags: npt.NDArray[np.uint8]  # [N]
    began: npt.NDArray[np.float64]  # [N], monotonic, when the running call began; 0: none runs
    stepping_s: npt.NDArray[np.float64]  # [N], time of all steps so far
    steps: npt.NDArray[np.int64]  # [N], how many

    def oldest_call(self) -> float | None:
        """When the call that runs longest began; None if none runs."""
        running = self.began[self.began > 0]
        return float(running.min()) if running.size else None

    @property
    def step_ms(self) -> float | None:
        """Mean time of one environment's step, in ms."""
        steps = int(self.steps.sum())
        return 1000 * float(self.stepping_s.sum()) / steps if steps else None


def row_of(observation: ObservationSpec, action: ActionSpec) -> np.dtype[Any]:
    """The form of one row."""
    return np.dtype(
        [
            ("actions", action.wire_dtype, action.row_shape),
            ("observations", observation.row_dtype, observation.row_shape),
            ("finals", observation.row_dtype, observation.row_shape),
            ("rewards", np.float64),
            ("flags", np.uint8),
            ("began", np.float64),
            ("stepping_s", np.float64),
            ("steps", np.int64),
        ],
        align=True,
    )


def view_page(rows: Array) -> StepPage:
    """The columns of rows [N] of the form `row_of`."""
    return StepPage(*(rows[name] for name in StepPage._fields))
