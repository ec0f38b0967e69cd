"""Estimates the memory that rows take in a run's networks, and splits rows into pieces of limited size. Pure.

The size of a piece may change the last bits of its results, and a fleet must get the same bits as its serial
baseline. So sizes follow from shapes alone, never from the machine.
"""

import itertools
import math
from collections.abc import Sequence

from dppo_redis.spaces.image_layers import NATURE_PIXELS
from dppo_redis.spaces.observations import ObservationSpec

LEAST_ROWS = 256  # of a piece, unless there are fewer
_PROCESS_BYTES = 300 * 2**20  # of a learner without a batch; most of it is torch
_PIECE_BYTES = 128 * 2**20
_NATURE_OUTPUTS = 6  # numbers per pixel in all layers of the Nature CNN, and in their activations
_SMALL_OUTPUTS = 48  # the same for the two layers of small pictures


def network_row_bytes(
    observation: ObservationSpec, frames: int, hidden: Sequence[int], memory_size: int
) -> int:
    """Estimated bytes of one row: the numbers read, and the outputs of all layers of policy and value."""
    numbers = frames * observation.size + 4 * sum(hidden) + 8 * memory_size
    for field in observation.images:
        channels, height, width = field.image_shape
        outputs = _NATURE_OUTPUTS if min(height, width) >= NATURE_PIXELS else _SMALL_OUTPUTS
        numbers += (2 * frames * channels + outputs) * height * width  # bytes as numbers, and scaled
    return int(4 * numbers)


def pieces(rows: int, row_bytes: int) -> list[slice]:
    """Split rows into pieces of about equal size: at least LEAST_ROWS rows, else at most about 128 MiB."""
    most = max(LEAST_ROWS, _PIECE_BYTES // row_bytes)
    count = max(1, min(math.ceil(rows / most), rows // LEAST_ROWS))
    cuts = [rows * number // count for number in range(count + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]


def column_pieces(columns: int, steps: int, row_bytes: int) -> list[slice]:
    """Split whole columns of `steps` rows in the same way, for a network with a memory."""
    most = max(math.ceil(LEAST_ROWS / steps), _PIECE_BYTES // (steps * row_bytes), 1)
    count = max(1, min(math.ceil(columns / most), columns * steps // LEAST_ROWS))
    cuts = [columns * number // count for number in range(count + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]


def learner_bytes(
    observation: ObservationSpec,
    frames: int,
    hidden: Sequence[int],
    memory_size: int,
    *,
    rows: int,
    minibatch_rows: int,
    batch_bytes: int,
) -> int:
    """The estimated memory of a learner at its peak, in bytes.

    It is the sum of four parts: the process; the batch as it came (`batch_bytes`) and put together; the
    networks' inputs, with stacked frames both before and after they are put in order; and the largest piece
    or minibatch inside the networks, whose gradients take as much again.
    """
    row_bytes = network_row_bytes(observation, frames, hidden, memory_size)
    read: int = 4 * frames * observation.size
    read += sum(frames * math.prod(field.image_shape) for field in observation.images)
    copies = (2 if frames > 1 or not observation.images else 1) + (0 if observation.images else 1)
    piece: int = max(part.stop - part.start for part in pieces(rows, row_bytes))
    through = max(piece, 2 * min(minibatch_rows, rows)) * row_bytes
    return int(_PROCESS_BYTES + 2 * batch_bytes + copies * rows * read + through)
