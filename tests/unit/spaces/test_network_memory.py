"""The pieces in which rows go through the networks follow from shapes alone."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo_redis.spaces.gymnasium_spaces import describe_observations
from dppo_redis.spaces.network_memory import LEAST_ROWS, column_pieces, network_row_bytes, pieces
from dppo_redis.spaces.observations import ObservationSpec

ATARI = describe_observations(gymnasium.spaces.Box(0, 255, (84, 84, 1), np.uint8))
CATCH = describe_observations(gymnasium.spaces.Box(0, 255, (12, 12, 1), np.uint8))


@given(st.integers(1, 10**6), st.integers(1, 10**8))
def test_pieces_cover_all_rows_and_none_is_a_small_tail(rows: int, row_bytes: int) -> None:
    parts = pieces(rows, row_bytes)
    assert [part.start for part in parts] == [0, *[part.stop for part in parts[:-1]]]
    assert parts[-1].stop == rows
    sizes = [part.stop - part.start for part in parts]
    assert min(sizes) >= min(rows, LEAST_ROWS)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) < 2 * LEAST_ROWS or max(sizes) * row_bytes <= 2**27


@given(st.integers(1, 5000), st.integers(1, 2000), st.integers(1, 10**7))
def test_columns_are_whole_and_their_pieces_no_small_tail(columns: int, steps: int, row_bytes: int) -> None:
    parts = column_pieces(columns, steps, row_bytes)
    sizes = [part.stop - part.start for part in parts]
    assert sum(sizes) == columns
    assert parts[-1].stop == columns
    assert max(sizes) - min(sizes) <= 1
    # The least are as many columns as hold LEAST_ROWS, rounded down by the division of the remainder.
    assert min(sizes) * steps > min(columns * steps, LEAST_ROWS) - steps


@pytest.mark.parametrize(
    ("observation", "frames", "hidden", "rows"),
    [
        (ObservationSpec.vector(4), 1, (64, 64), 2048),
        (ObservationSpec.vector(376), 4, (256, 256), 4096),
        (CATCH, 1, (64, 64), 2048),
    ],
    ids=["CartPole", "wide", "PixelCatch"],
)
def test_small_batches_go_as_a_whole(
    observation: ObservationSpec, frames: int, hidden: tuple[int, ...], rows: int
) -> None:
    assert pieces(rows, network_row_bytes(observation, frames, hidden, 0)) == [slice(0, rows)]


def test_a_batch_of_441_mb_of_frames_goes_in_pieces_of_some_hundred_rows() -> None:
    row_bytes = network_row_bytes(ATARI, 4, (64, 64), 0)
    sizes = {part.stop - part.start for part in pieces(15_625, row_bytes)}
    assert max(sizes) * row_bytes < 2**27
    assert min(sizes) > LEAST_ROWS
