"""A checkpoint is the whole learner, and there is always one that can be loaded."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from dppo_redis.errors import CheckpointError, ConfigurationError, FencedError
from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.gymnasium_spaces import describe_observations
from learner.checkpoint import Checkpoints, LearnerSnapshot, is_milestone
from learner.ppo.update import PpoUpdate
from learner.progress import Progress
from tests.factories import CPU, box, make_batch, make_model, make_ppo, make_spec

SPEC = make_spec()
BOX = make_spec(action=box())
PICTURES = make_spec(
    observation=describe_observations(Dict({"a": Box(0, 255, (8, 9, 3), np.uint8), "b": Box(-1, 1, (2,))})),
    frame_stack=2,
    normalise_observations=True,
)
RECURRENT = make_spec(network=NetworkConfig(hidden=(4,), memory="lstm", memory_size=4))
CUSTOM = make_spec(network=NetworkConfig(custom="tests.networks:Noisy"))
SPECS = pytest.mark.parametrize(
    "spec",
    [SPEC, BOX, PICTURES, RECURRENT, CUSTOM],
    ids=["discrete", "continuous", "pictures", "recurrent", "custom"],
)


def make_trainer(spec: Spec = SPEC, seed: int = 0) -> PpoUpdate:
    ppo = make_ppo(batch_steps=8, minibatch_size=4, normalise_observations=spec.normalise_observations)
    return PpoUpdate(make_model(spec, seed), spec, ppo, update_epochs=2, seed=seed, device=CPU)


def train(trainer: PpoUpdate, spec: Spec = SPEC, updates: range = range(3)) -> None:
    for update in updates:
        trainer.update(make_batch(spec, seed=update), progress=0.0)


def make_snapshot(update: int = 3) -> LearnerSnapshot:
    progress = Progress(update=update, trained_steps=24, rollouts=3, train_s=1.25, staleness_sum=2)
    progress.returns.extend([1.0, 2.5])
    return LearnerSnapshot(
        progress=progress,
        epoch=4,
        version=17,
        lineage=Lineage(((1, 0), (4, 2))),
        last_sequence_numbers=LastSequenceNumbers({"a" * 16: 3, "b" * 16: 9}),
        ledger_audit=LedgerAudit(
            Ledger({"trained": 3, "steps:trained": 24, "lost:reset": 1}), last_entries_added=5
        ),
        actor_boots={"0": 2, "next": 1},
    )


def make_checkpoints(
    directory: Path, *, run: str = "run", spec: Spec = SPEC, keep: int = 3, segment_updates: int = 1
) -> Checkpoints:
    return Checkpoints(directory, run, spec.digest(), keep, segment_updates)


def state_of(trainer: PpoUpdate) -> dict[str, torch.Tensor]:
    """Every tensor that decides how training goes on."""
    optimizer = trainer.optimizer.state_dict()["state"]
    moments = {f"{i}.{name}": x for i, state in optimizer.items() for name, x in state.items()}
    seen = trainer.observation_moments
    rest = {
        "order": trainer.generator.get_state(),
        "mean": torch.tensor(seen.mean),
        "n": torch.tensor(seen.count),
    }
    return {**trainer.model.state_dict(), **moments, **rest, "squares": torch.tensor(seen.squares)}


def assert_bit_equal(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


class TestRoundTrip:
    @SPECS
    def test_network_optimiser_and_random_states_are_restored_bit_for_bit(
        self, tmp_path: Path, spec: Spec
    ) -> None:
        trainer, other = make_trainer(spec), make_trainer(spec, seed=1)
        train(trainer, spec)
        random_state = torch.get_rng_state()
        make_checkpoints(tmp_path, spec=spec).save(trainer, make_snapshot())
        torch.rand(5)
        make_checkpoints(tmp_path, spec=spec).restore(other)
        assert_bit_equal(state_of(other), state_of(trainer))
        assert torch.equal(torch.get_rng_state(), random_state)

    def test_everything_else_is_restored(self, tmp_path: Path) -> None:
        snapshot = make_snapshot()
        make_checkpoints(tmp_path).save(make_trainer(), snapshot)
        restored = make_checkpoints(tmp_path).restore(make_trainer())
        assert restored is not None
        assert replace(restored, last_sequence_numbers=snapshot.last_sequence_numbers) == snapshot
        assert restored.last_sequence_numbers.to_dict() == snapshot.last_sequence_numbers.to_dict()

    @SPECS
    def test_training_interrupted_by_save_and_restore_equals_training_in_one_go(
        self, tmp_path: Path, spec: Spec
    ) -> None:
        straight, first, second = make_trainer(spec), make_trainer(spec), make_trainer(spec, seed=9)
        train(straight, spec, updates=range(6))
        train(first, spec, updates=range(3))
        make_checkpoints(tmp_path, spec=spec).save(first, make_snapshot())
        make_checkpoints(tmp_path, spec=spec).restore(second)
        train(second, spec, updates=range(3, 6))
        assert_bit_equal(state_of(second), state_of(straight))

    def test_the_optimiser_follows_the_configuration_that_a_run_is_resumed_with(self, tmp_path: Path) -> None:
        make_checkpoints(tmp_path).save(make_trainer(), make_snapshot())
        changed = make_ppo(adam_epsilon=0.5, learning_rate=0.25)
        other = PpoUpdate(make_model(SPEC), SPEC, changed, update_epochs=1, seed=0, device=CPU)
        make_checkpoints(tmp_path).restore(other)
        train(other, updates=range(1))
        (group,) = other.optimizer.param_groups
        assert (group["eps"], group["lr"]) == (0.5, 0.25)

    def test_a_checkpoint_is_loaded_without_pickled_code(self, tmp_path: Path) -> None:
        file = make_checkpoints(tmp_path).save(make_trainer(), make_snapshot())
        assert torch.load(file, weights_only=True)["progress"]["update"] == 3

    def test_later_training_does_not_change_what_was_saved(self, tmp_path: Path) -> None:
        trainer, snapshot = make_trainer(), make_snapshot()
        train(trainer)
        before = {name: x.clone() for name, x in state_of(trainer).items()}
        make_checkpoints(tmp_path).save(trainer, snapshot)
        train(trainer)
        snapshot.progress.add_update(8, [0], [])
        other = make_trainer()
        restored = make_checkpoints(tmp_path).restore(other)
        assert restored is not None
        assert restored.progress.update == 3
        assert_bit_equal(state_of(other), before)

    def test_without_any_file_there_is_nothing_to_restore(self, tmp_path: Path) -> None:
        assert make_checkpoints(tmp_path / "none yet").restore(make_trainer()) is None


class TestFiles:
    def test_the_last_k_are_kept(self, tmp_path: Path) -> None:
        checkpoints = make_checkpoints(tmp_path, keep=2)
        for update in (1, 2, 30):
            checkpoints.save(make_trainer(), make_snapshot(update))
        assert names(tmp_path) == ["checkpoint-000000002.pt", "checkpoint-000000030.pt"]

    def test_nothing_half_written_is_left_after_a_save(self, tmp_path: Path) -> None:
        make_checkpoints(tmp_path).save(make_trainer(), make_snapshot())
        assert names(tmp_path) == ["checkpoint-000000003.pt"]

    def test_a_copy_under_a_name_of_the_users_own_is_left_alone(self, tmp_path: Path) -> None:
        checkpoints = make_checkpoints(tmp_path, keep=2)
        copy = tmp_path / "checkpoint-before-tuning.pt"
        copy.write_bytes(checkpoints.save(make_trainer(), make_snapshot(1)).read_bytes())
        for update in (2, 3, 4):
            checkpoints.save(make_trainer(), make_snapshot(update))
        assert names(tmp_path) == ["checkpoint-000000003.pt", "checkpoint-000000004.pt", copy.name]
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 4

    def test_the_newest_is_restored(self, tmp_path: Path) -> None:
        for update in (9, 10, 11):
            make_checkpoints(tmp_path).save(make_trainer(), make_snapshot(update))
        restored = make_checkpoints(tmp_path).restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 11

    def test_the_unfinished_file_of_a_killed_save_is_no_checkpoint(self, tmp_path: Path) -> None:
        make_checkpoints(tmp_path).save(make_trainer(), make_snapshot(1))
        (tmp_path / "checkpoint-000000002.writing").write_bytes(b"half")
        restored = make_checkpoints(tmp_path).restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 1

    # Known failure KF-OPS-07.
    def test_a_learner_killed_at_any_moment_of_saving_resumes_from_the_last_complete_save(
        self, tmp_path: Path
    ) -> None:
        program = [sys.executable, "-m", "tests.unit.dying_saver", str(tmp_path), "20"]
        result = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        assert int(result.stdout) > 3  # saves that ended
        assert len(names(tmp_path)) <= 3  # one, one more before it is cleaned up, one half written

    def test_a_learner_that_was_overtaken_while_it_saved_replaces_nothing(self, tmp_path: Path) -> None:
        checkpoints, successor = make_checkpoints(tmp_path), make_trainer(seed=1)
        checkpoints.save(successor, make_snapshot(3))
        before = (tmp_path / "checkpoint-000000003.pt").read_bytes()

        def overtaken() -> None:
            raise FencedError("epoch 5 was taken by another learner")

        with pytest.raises(FencedError):
            checkpoints.save(make_trainer(), make_snapshot(3), overtaken)
        assert (tmp_path / "checkpoint-000000003.pt").read_bytes() == before

    def test_unfinished_files_of_killed_saves_are_removed(self, tmp_path: Path) -> None:
        for update in range(10, 20):
            (tmp_path / f"checkpoint-{update:09d}.writing").write_bytes(b"half")
        make_checkpoints(tmp_path, keep=1).save(make_trainer(), make_snapshot(30))
        assert names(tmp_path) == ["checkpoint-000000030.pt"]


class TestMilestones:
    def test_a_milestone_is_a_whole_checkpoint_that_is_kept_for_ever(self, tmp_path: Path) -> None:
        checkpoints, trainer = make_checkpoints(tmp_path, keep=1), make_trainer()
        train(trainer)
        checkpoints.save(trainer, make_snapshot(3), milestone=True)
        for update in range(4, 9):
            checkpoints.save(make_trainer(seed=1), make_snapshot(update))
        milestone = tmp_path / "milestone-000000000024.pt"  # trained steps
        assert names(tmp_path) == ["checkpoint-000000008.pt", milestone.name]
        other = make_trainer(seed=2)
        restored = checkpoints.peek(other, milestone)
        assert restored is not None
        assert restored.progress.update == 3
        assert_bit_equal(state_of(other), state_of(trainer))

    def test_a_run_without_checkpoints_resumes_from_the_newest_milestone(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = make_checkpoints(tmp_path)
        for update in (3, 4):
            snapshot = make_snapshot(update)
            snapshot.progress.trained_steps = 10 * update
            checkpoints.save(make_trainer(), snapshot, milestone=True)
        for file in checkpoints.files():
            file.unlink()
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 4
        assert "segment" not in caplog.text

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [(0, 99, False), (0, 100, True), (99, 101, True), (100, 199, False), (150, 450, True)],
    )
    def test_the_first_update_that_reaches_a_multiple_of_the_steps_is_one(
        self, before: int, after: int, expected: bool
    ) -> None:
        assert is_milestone(before, after, 100) is expected
        assert not is_milestone(before, after, None)


class TestSegments:
    """Lock-step mode: a run goes on exactly from the start of a segment only."""

    def test_the_last_k_starts_are_kept_beside_the_last_checkpoint_of_all(self, tmp_path: Path) -> None:
        checkpoints = make_checkpoints(tmp_path, keep=2, segment_updates=10)
        for update in (0, 10, 17, 20, 30, 34):
            checkpoints.save(make_trainer(), make_snapshot(update))
        assert names(tmp_path) == [f"checkpoint-{update:09d}.pt" for update in (20, 30, 34)]

    def test_the_newest_start_is_restored(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        checkpoints = make_checkpoints(tmp_path, segment_updates=10)
        for update in (0, 10, 17):
            checkpoints.save(make_trainer(), make_snapshot(update))
        caplog.set_level("INFO")
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 10
        assert "training again from the start of the segment, update 10" in caplog.text

    def test_without_a_start_that_can_be_read_any_other_is_taken_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = make_checkpoints(tmp_path, segment_updates=10)
        checkpoints.save(make_trainer(), make_snapshot(10)).write_bytes(b"damaged")
        checkpoints.save(make_trainer(), make_snapshot(17))
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 17
        assert "the rest of the run is not exactly reproducible" in caplog.text


class TestDamage:
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_a_newest_file_that_lost_its_end_is_skipped_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float
    ) -> None:
        checkpoints = make_checkpoints(tmp_path)
        checkpoints.save(make_trainer(), make_snapshot(1))
        newest = checkpoints.save(make_trainer(), make_snapshot(2))
        content = newest.read_bytes()
        newest.write_bytes(content[: int(share * len(content))])
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 1
        assert newest.name in caplog.text

    def test_a_file_with_one_changed_bit_is_skipped_or_gives_the_very_same_learner(
        self, tmp_path: Path
    ) -> None:
        checkpoints, trainer = make_checkpoints(tmp_path), make_trainer()
        train(trainer)
        file = checkpoints.save(trainer, make_snapshot())
        content = file.read_bytes()
        skipped = 0
        for place in range(0, len(content), len(content) // 60):
            changed = bytearray(content)
            changed[place] ^= 4
            file.write_bytes(changed)
            other = make_trainer(seed=1)
            try:
                checkpoints.peek(other, file)
            except CheckpointError:
                skipped += 1
            else:  # padding, a date
                assert_bit_equal(state_of(other), state_of(trainer))
        assert skipped > 30

    @pytest.mark.parametrize("part", ["optimizer", "torch_rng", "marks", "ledger", "lineage", "progress"])
    def test_a_file_that_lacks_a_part_is_skipped_not_filled_with_defaults(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
    ) -> None:
        checkpoints = make_checkpoints(tmp_path)
        checkpoints.save(make_trainer(), make_snapshot(1))
        change(checkpoints.save(make_trainer(), make_snapshot(2)), lambda values: values.pop(part))
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 1
        assert "not a complete checkpoint" in caplog.text

    def test_a_file_that_lacks_a_counter_is_skipped_too(self, tmp_path: Path) -> None:
        checkpoints = make_checkpoints(tmp_path)
        checkpoints.save(make_trainer(), make_snapshot(1))
        file = checkpoints.save(make_trainer(), make_snapshot(2))
        change(file, lambda values: values["progress"].pop("trained_steps"))
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 1

    def test_the_learner_refuses_to_start_if_no_checkpoint_can_be_read(self, tmp_path: Path) -> None:
        checkpoints = make_checkpoints(tmp_path)
        checkpoints.save(make_trainer(), make_snapshot()).write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
            checkpoints.restore(make_trainer())

    def test_peeking_at_the_newest_checkpoint_names_the_damaged_ones(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = make_checkpoints(tmp_path)
        older = checkpoints.save(make_trainer(), make_snapshot(1))
        newest = checkpoints.save(make_trainer(), make_snapshot(2))
        newest.write_bytes(b"damaged")
        found = checkpoints.peek(make_trainer(), None)
        assert found is not None
        assert found.progress.update == 1
        assert f"{newest.name} is damaged" in caplog.text
        older.write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
            checkpoints.peek(make_trainer(), None)

    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_a_damaged_newest_file_never_pushes_out_the_good_ones_saved_after_it(
        self, tmp_path: Path, keep: int
    ) -> None:
        checkpoints = make_checkpoints(tmp_path, keep=keep)
        checkpoints.save(make_trainer(), make_snapshot(5))
        for update in range(90, 90 + keep):
            damaged = tmp_path / f"checkpoint-{update:09d}.pt"
            damaged.write_bytes(b"the run was killed, the disk lied")
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        checkpoints.save(make_trainer(), make_snapshot(6))
        restored = checkpoints.restore(make_trainer())
        assert restored is not None
        assert restored.progress.update == 6

    @pytest.mark.parametrize("which", ["run", "spec"])
    def test_a_file_of_another_run_or_spec_is_refused(self, tmp_path: Path, which: str) -> None:
        make_checkpoints(tmp_path).save(make_trainer(), make_snapshot())
        others = {
            "run": make_checkpoints(tmp_path, run="other"),
            "spec": make_checkpoints(tmp_path, spec=BOX),
        }
        says = {"run": "belongs to run run, this is run other", "spec": "but with another spec: action: "}
        with pytest.raises(ConfigurationError, match=says[which]):
            others[which].restore(make_trainer(BOX if which == "spec" else SPEC))


def change(file: Path, edit: Any) -> None:
    values = torch.load(file, weights_only=True)
    edit(values)
    torch.save(values, file)
