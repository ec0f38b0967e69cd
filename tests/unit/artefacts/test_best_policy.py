"""The policy with the best evaluation of a run is kept."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dppo_redis.artefacts.best_policy import BestPolicy, read_best
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.reports import Evaluation
from tests.factories import make_spec, make_weights

SPEC = make_spec()
EVALUATION = Evaluation(1, 0, 0, 0, return_mean=9.0, return_std=0.0, length_mean=9.0, episodes=1)


def consider(best: BestPolicy, version: int, return_mean: float) -> bool:
    evaluation = replace(EVALUATION, version=version, return_mean=return_mean)
    return best.consider(make_weights(SPEC, version=version), evaluation)


def test_only_a_higher_return_replaces_the_policy_that_is_kept(tmp_path: Path) -> None:
    best = BestPolicy(tmp_path)
    returns = {1: -5.0, 2: -7.0, 3: 2.0, 4: 2.0, 5: 1.0}
    assert [version for version in returns if consider(best, version, returns[version])] == [1, 3]
    assert read_best(tmp_path, SPEC).version == 3
    assert json.loads((RunFiles(tmp_path).best_evaluation).read_text())["version"] == 3


def test_a_cut_evaluation_keeps_no_policy_and_replaces_none(tmp_path: Path) -> None:
    best = BestPolicy(tmp_path)
    cut = replace(EVALUATION, return_mean=99.0, planned=20, complete=False)
    assert not best.consider(make_weights(SPEC, version=1), cut)
    assert list(tmp_path.iterdir()) == []
    assert consider(best, version=2, return_mean=1.0)
    assert not best.consider(make_weights(SPEC, version=3), cut)
    assert read_best(tmp_path, SPEC).version == 2


def test_a_best_evaluation_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    consider(BestPolicy(tmp_path), version=1, return_mean=4.0)
    file = RunFiles(tmp_path).best_evaluation
    values = json.loads(file.read_text())
    file.write_text(
        json.dumps({name: values[name] for name in values if name not in ("planned", "complete")})
    )
    assert BestPolicy(tmp_path).return_mean == 4.0


def test_another_process_continues_from_the_best_policy_on_disk(tmp_path: Path) -> None:
    consider(BestPolicy(tmp_path), version=1, return_mean=4.0)
    best = BestPolicy(tmp_path)
    assert best.return_mean == 4.0
    assert not consider(best, version=2, return_mean=3.0)


def test_an_unreadable_best_evaluation_is_reported_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (RunFiles(tmp_path).best_evaluation).write_text("{")
    best = BestPolicy(tmp_path)
    assert "record of the best evaluation is unreadable" in caplog.text
    assert consider(best, version=1, return_mean=-100.0)
    assert BestPolicy(tmp_path).return_mean == -100.0


def test_a_directory_that_refuses_is_reported_and_the_comparison_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = BestPolicy(tmp_path / "gone")
    assert consider(best, version=1, return_mean=4.0)
    assert "cannot keep the best policy" in caplog.text
    assert not consider(best, version=2, return_mean=3.0)
