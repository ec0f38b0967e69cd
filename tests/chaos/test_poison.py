"""Each poisoned payload is refused for its own damage."""

import random

import pytest

from dppo_redis.errors import WireError
from learner.intake.decoder import RolloutDecoder
from tests.chaos import poison
from tests.chaos.poison import Entry
from tests.integration.learner_side import SPEC, make_entry

GOOD: Entry = {
    name.encode(): value if isinstance(value, bytes) else value.encode()
    for name, value in make_entry().items()
}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (poison._nested, "undecodable"),
        (poison._lying_about_size, "undecodable: rewards has 0 bytes for shape"),
        (poison._other_type, "dtype: rewards has the unknown dtype 'O'"),
        (poison._not_finite, "nonfinite: rewards"),
    ],
)
def test_a_poisoned_payload_is_refused_for_its_own_reason(kind: poison.Poison, words: str) -> None:
    decoder = RolloutDecoder(SPEC)
    decoder.decode(GOOD[b"payload"])
    with pytest.raises(WireError, match=words):
        decoder.decode(kind(GOOD, random.Random(1))[b"payload"])
