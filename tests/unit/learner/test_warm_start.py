"""A warm start takes over policy, critic and statistics of another run, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dppo_redis.artefacts.exports import Export, write_export
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import Weights
from learner.checkpoint import Checkpoints, LearnerSnapshot
from learner.ppo.update import PpoUpdate
from learner.progress import Progress
from learner.warm_start import warm_start
from tests.factories import CPU, make_batch, make_model, make_ppo, make_spec, source

SPEC = make_spec(normalise_observations=True)
KNOBS = {"batch_steps": 8, "minibatch_size": 4, "normalise_observations": True}


def make_trainer(spec: Spec = SPEC, seed: int = 0, **knobs: Any) -> PpoUpdate:
    ppo = make_ppo(**{**KNOBS, **knobs})
    return PpoUpdate(make_model(spec, seed), spec, ppo, update_epochs=2, seed=seed, device=CPU)


def trained(spec: Spec = SPEC, **knobs: Any) -> PpoUpdate:
    trainer = make_trainer(spec, seed=1, **knobs)
    for seed in range(3):
        trainer.update(make_batch(spec, seed=seed), progress=0.0)
    return trainer


def save(directory: Path, trainer: PpoUpdate) -> Path:
    """A checkpoint of it, of some run."""
    snapshot = LearnerSnapshot(
        progress=Progress(update=3, trained_steps=24),
        epoch=1,
        version=4,
        lineage=Lineage(((1, 0),)),
        last_sequence_numbers=LastSequenceNumbers({}),
        ledger_audit=LedgerAudit(Ledger({}), 0),
        actor_boots={},
    )
    return Checkpoints(directory, "another run", trainer.spec.digest(), keep=1).save(trainer, snapshot)


def export(directory: Path, trainer: PpoUpdate) -> Path:
    spec = trainer.spec
    weights = Weights(1, 4, 3, 24, 24, spec.digest(), trainer.acting_arrays())
    write_export(directory, Export("another run", spec, weights))
    return directory


def differing(mine: PpoUpdate, theirs: PpoUpdate) -> set[str]:
    """The networks (policy, value) that differ."""
    pairs = theirs.model.state_dict().items()
    return {name.split(".")[0] for name, x in pairs if not torch.equal(mine.model.state_dict()[name], x)}


def test_a_checkpoint_gives_both_networks_and_the_statistics_and_no_more(tmp_path: Path) -> None:
    old = trained()
    new = make_trainer()
    order = new.generator.get_state()
    warm_start(new, save(tmp_path, old))
    assert differing(new, old) == set()
    assert new.observation_moments.to_dict() == old.observation_moments.to_dict()
    assert new.optimizer.state_dict()["state"] == {}
    assert torch.equal(new.generator.get_state(), order)


def test_an_export_gives_policy_and_normaliser_and_the_critic_starts_untrained(tmp_path: Path) -> None:
    old, new, fresh = trained(), make_trainer(), make_trainer()
    warm_start(new, export(tmp_path, old))
    assert differing(new, old) == {"value"}
    assert differing(new, fresh) == {"policy"}
    assert new.observation_moments.count == 24
    for name, array in old.acting_arrays().items():
        np.testing.assert_allclose(new.acting_arrays()[name], array, rtol=1e-6, err_msg=name)


def test_a_warm_network_still_trains(tmp_path: Path) -> None:
    new = make_trainer()
    warm_start(new, save(tmp_path, trained()))
    report = new.update(make_batch(SPEC, seed=9), progress=0.0)
    assert report.gradient_steps > 0
    assert report.skipped_steps == 0


@pytest.mark.parametrize("kind", [save, export])
def test_rollout_length_and_environment_arguments_may_differ(kind: Any, tmp_path: Path) -> None:
    spec = replace(SPEC, rollout_steps=9, environment=source("tests.envs:Terminating-v0", length=3))
    new = make_trainer(spec)
    warm_start(new, kind(tmp_path, trained()))
    assert "policy" not in differing(new, trained())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (make_spec(normalise_observations=True, hidden=(9,)), r"network: .*\[9\].* != .*\[8\]"),
        (make_spec(normalise_observations=True, observation_size=3), "observation"),
        (make_spec(normalise_observations=True, frame_stack=2), "frame_stack: 2 != 1"),
        (make_spec(), "normalise_observations: False != True"),
        (
            make_spec(
                normalise_observations=True, network=NetworkConfig(hidden=(8,), memory="gru", memory_size=4)
            ),
            "'gru'.* != .*'none'",
        ),
    ],
    ids=["hidden", "observation", "frames", "normaliser", "memory"],
)
@pytest.mark.parametrize("kind", [save, export])
def test_a_source_for_another_spec_is_refused_by_what_differs_and_changes_nothing(
    kind: Any, other: Spec, named: str, tmp_path: Path
) -> None:
    knobs = {"normalise_observations": other.normalise_observations}
    new = make_trainer(other, **knobs)
    with pytest.raises(ConfigurationError, match=named):
        warm_start(new, kind(tmp_path, trained()))
    assert differing(new, make_trainer(other, **knobs)) == set()


def test_a_critic_of_returns_in_another_scale_is_left_behind(tmp_path: Path) -> None:
    scaled = replace(SPEC, return_discount=0.99)
    file = save(tmp_path, trained(scaled, normalise_returns=True))
    raw, alike = make_trainer(), make_trainer(scaled, normalise_returns=True)
    warm_start(raw, file)
    warm_start(alike, file)
    old = trained(scaled, normalise_returns=True)
    assert differing(raw, old) == {"value"}
    assert differing(alike, old) == set()
    assert alike.return_moments.to_dict() == old.return_moments.to_dict()
    assert raw.return_moments.count == 0


def test_a_path_that_is_no_source_is_refused_by_name(tmp_path: Path) -> None:
    damaged = tmp_path / "checkpoint-000000001.pt"
    damaged.write_bytes(b"nothing")
    for path, cause in (
        (tmp_path / "missing", "missing is no run"),
        (damaged, "damaged"),
        (tmp_path, "no run"),
    ):
        with pytest.raises(ConfigurationError, match=f"init_from: .*{cause}"):
            warm_start(make_trainer(), path)
