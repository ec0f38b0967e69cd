"""An observation of a wrong form is refused with a message that says the right form."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from dppo_redis.errors import ObservationError
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from dppo_redis.spaces.observation_check import check_observation

VECTOR = Box(-1, 1, (4,))
IMAGE = Box(0, 255, (8, 6, 3), np.uint8)
NAMED = Dict({"mode": Discrete(3, start=5), "arm": Tuple((VECTOR, MultiBinary(2)))})


def check(space: gymnasium.Space[Any], observation: Any) -> None:
    check_observation(describe_observations(space), observation)


@pytest.mark.parametrize(
    "space",
    [VECTOR, IMAGE, NAMED, Box(-1, 1, (2, 3), np.float64), Discrete(4, start=-2), MultiDiscrete([2, 3])],
    ids=str,
)
def test_samples_of_the_space_pass(space: gymnasium.Space[Any]) -> None:
    space.seed(1)
    for _ in range(20):
        check(space, space.sample())


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (VECTOR, [1, 2, 3], r"shape \(3,\): expected 4 numbers"),
        (VECTOR, np.zeros((2, 4)), r"shape \(2, 4\): expected 4 numbers"),
        (VECTOR, (np.zeros(4), {}), "no array"),  # all that reset returns
        (VECTOR, {"x": 1}, "no numbers, but object"),
        (VECTOR, [0, 0, np.nan, 0], "not finite"),
        (IMAGE, np.zeros((3, 8, 6), np.uint8), r"shape \(3, 8, 6\): expected an image of shape \(8, 6, 3\)"),
        (IMAGE, np.full((8, 6, 3), 0.5), "float64 that are no bytes"),
        (IMAGE, np.full((8, 6, 3), 256), "int64 that are no bytes"),
        (Discrete(3), 3, "expected 1 whole number, from 0 to 2"),
        (Discrete(3), "left", "no numbers, but <U4"),
        (MultiBinary(2), [0, 2], "expected 2 flags, each 0 or 1"),
        (NAMED, {"mode": 5}, "the observation is a dict without a part 'arm': expected arm.0, 4 numbers"),
        (NAMED, {"mode": 4, "arm": (np.zeros(4), [0, 1])}, "mode has a value .* from 5 to 7"),
        (
            NAMED,
            {"mode": 5, "arm": (np.zeros(4),)},
            "arm is a tuple without a part 1: expected arm.1, 2 flags",
        ),
        (NAMED, np.zeros(7), "is a ndarray without a part 'arm'"),
    ],
)
def test_an_observation_of_another_form_is_refused(
    space: gymnasium.Space[Any], observation: Any, words: str
) -> None:
    with pytest.raises(ObservationError, match=words) as raised:
        check(space, observation)
    assert isinstance(raised.value, ValueError)  # what callers who know nothing of us expect
