"""A fleet whose primary fails by command, kill -9 or freezing: training continues, the books balance."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dppo_redis.protocol.report_fields import to_json
from ops.bench.failover import FAULTS, measure, versions_of
from ops.bench.sentinel_group import SentinelGroup
from ops.fleet.broker import find_server
from tests.e2e.support import assert_books_balance


@pytest.mark.parametrize(
    "faults", [FAULTS[1:2], pytest.param(FAULTS * 3, marks=pytest.mark.slow)], ids=["kill", "all"]
)
def test_training_continues_versions_rise_and_the_books_balance(
    faults: Sequence[str], tmp_path: Path
) -> None:
    """`measure` raises if training stops, or if one version had two sets of weights."""
    with SentinelGroup(find_server()) as group:
        found, summary = measure(group, faults, tmp_path / "run")
    assert [failover.fault for failover in found] == list(faults)
    assert all(failover.imbalance == 0 for failover in found)
    assert all(before < after for before, after in pairwise(versions_of(tmp_path / "run")))
    assert summary.ledger is not None
    assert summary.ledger.trained > 0
    assert_books_balance(to_json(summary.ledger))
