"""Networks that could never be published are refused before anything waits for them."""

import pytest

from dppo_redis.errors import ConfigurationError
from learner.build import check_size
from tests.unit.test_checkpoint import make_trainer


def test_a_policy_larger_than_a_publication_may_be_is_refused_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make_trainer()
    check_size(trainer)
    monkeypatch.setattr("learner.build.MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(ConfigurationError, match="MiB of weights, and a publication may have"):
        check_size(trainer)
