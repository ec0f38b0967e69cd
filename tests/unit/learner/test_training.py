"""One training without Redis: its records, its checkpoints and its end."""

import ast
import csv
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dppo_redis.errors import CheckpointError, FencedError
from dppo_redis.protocol.ledger import Ledger, LedgerAudit
from dppo_redis.protocol.lineage import Lineage
from dppo_redis.protocol.lock_step import LockStep
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.sequence_numbers import LastSequenceNumbers
from learner.checkpoint import Checkpoints, LearnerSnapshot
from learner.clock import TrainingClock
from learner.goal import Finished
from learner.metrics import MetricsFiles
from learner.ppo.update import PpoUpdate
from learner.progress import Progress
from learner.status_report import status_of
from learner.training import Trained, Training
from tests.factories import make_config, make_model, make_ppo, make_rollout, make_spec

SPEC = make_spec()
STEPS = make_rollout(SPEC).steps
ROOT = Path(__file__).parents[3]
NEVER_S = 86_400
_NO_STALE = SimpleNamespace(mean=0.0, share=0.0)
ALARMED_INTAKE: Any = SimpleNamespace(
    alarm="the intake's", dropped_by_actor="", drops=SimpleNamespace(recent_staleness=_NO_STALE)
)
QUIET_INTAKE: Any = SimpleNamespace(
    alarm="", dropped_by_actor="", drops=SimpleNamespace(recent_staleness=_NO_STALE)
)


Make = Callable[..., Training]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes trainings in directories, and closes their files at the end."""
    files: list[MetricsFiles] = []

    def make_training(
        directory: Path,
        *,
        progress: Progress | None = None,
        lock_step: LockStep | None = None,
        keeps_checkpoints: bool = True,
        **knobs: Any,
    ) -> Training:
        config = make_config(**{"total_steps": 10**6, "checkpoint": {"interval_s": NEVER_S}, **knobs})
        ppo = make_ppo(batch_steps=8, minibatch_size=4)
        updater = PpoUpdate(make_model(SPEC), SPEC, ppo, update_epochs=2, seed=0, device=torch.device("cpu"))
        progress = progress or Progress()
        files.append(MetricsFiles(directory, progress.update))
        checkpoints = checkpoints_in(directory) if keeps_checkpoints else None
        return Training(config, updater, progress, lock_step, files[-1], checkpoints)

    yield make_training
    for file in files:
        file.close()


def checkpoints_in(directory: Path) -> Checkpoints:
    return Checkpoints(directory / "checkpoints", "run", SPEC.digest(), keep=3)


def train(training: Training, updates: int = 1, waited_s: float = 0.0) -> Trained:
    for _ in range(updates):
        rollouts = [make_rollout(SPEC, seed=seed + 10 * training.progress.update) for seed in (1, 2)]
        trained = training.train(rollouts, [0, 3], waited_s)
    return trained


def snapshot_of(training: Training) -> LearnerSnapshot:
    books = LedgerAudit(Ledger({"steps:trained": training.progress.trained_steps}))
    return LearnerSnapshot(
        training.progress, 1, training.progress.update, Lineage(), LastSequenceNumbers(), books, {}
    )


def weights_of(training: Training) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in training.ppo.model.state_dict().values()]


def names_in(directory: Path) -> set[str]:
    return {file.name for file in (directory / "checkpoints").glob("*")}


def evaluation(return_mean: float, settled_steps: int) -> Evaluation:
    return Evaluation(
        2, 1, settled_steps, settled_steps, return_mean, return_std=0.0, length_mean=9.0, episodes=1
    )


def test_a_training_and_the_serial_baseline_never_load_the_redis_client() -> None:
    modules = "learner.training, learner.checkpoint, ops.serial, ops.commands.serial"
    program = f"import sys, {modules}; print('redis' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "False"


def imported_by(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_no_program_is_imported_as_a_library() -> None:
    files = [f for room in ("dppo_redis", "workers", "learner", "ops") for f in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    assert [str(f) for f in files if any(name.endswith("__main__") for name in imported_by(f))] == []


def test_an_update_is_counted_and_its_record_says_what_it_was_made_of(make: Make, tmp_path: Path) -> None:
    training = make(tmp_path)
    before = weights_of(training)
    trained = train(training, waited_s=1.5)
    training.evaluation = evaluation(7.0, settled_steps=5)
    record = training.record(trained, settled_steps=99, version=4)
    training.metrics.close()
    assert not all(torch.equal(old, new) for old, new in zip(before, weights_of(training), strict=True))
    assert trained.steps == 2 * STEPS
    assert (training.progress.update, training.progress.trained_steps) == (1, 2 * STEPS)
    assert (record.update, record.trained_steps, record.settled_steps, record.version) == (
        1,
        2 * STEPS,
        99,
        4,
    )
    assert (record.staleness_mean, record.staleness_max, record.wait_s) == (1.5, 3, 1.5)
    assert (record.evaluation_return, record.evaluation_steps) == (7.0, 5)
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["update"], row["settled_steps"], row["version"]) for row in rows] == [("1", "99", "4")]


def test_the_share_of_waiting_rises_with_updates_that_had_to_wait(make: Make, tmp_path: Path) -> None:
    training = make(tmp_path)
    shares = []
    for _ in range(2):
        training.record(train(training, waited_s=1e9), settled_steps=0, version=1)
        shares.append(training.wait_share)
    assert shares == pytest.approx([0.05, 0.05 + 0.05 * 0.95])
    training.record(train(training, waited_s=0.0), settled_steps=0, version=1)
    assert training.wait_share == pytest.approx(0.95 * shares[1])


def test_a_training_resumed_from_a_checkpoint_has_the_same_result_bit_for_bit(
    make: Make, tmp_path: Path
) -> None:
    whole = make(tmp_path / "whole")
    train(whole, updates=4)
    first = make(tmp_path / "parts")
    train(first, updates=2)
    first.save(snapshot_of(first))
    second = make(tmp_path / "parts", progress=first.progress)
    checkpoints_in(tmp_path / "parts").restore(second.ppo)
    train(second, updates=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(second), strict=True))


@pytest.mark.parametrize(
    ("target", "on_evaluation", "finished"),
    [
        (None, None, Finished("total_steps", None)),
        (5.0, 6.0, Finished("target", 3)),
        (5.0, 4.0, Finished("total_steps", None)),
    ],
    ids=["no target", "met", "missed"],
)
def test_it_is_finished_by_its_target_else_by_its_budget(
    make: Make, tmp_path: Path, target: float | None, on_evaluation: float | None, finished: Finished
) -> None:
    training = make(tmp_path, total_steps=4 * STEPS, target_return=target)
    train(training)
    training.judge(settled_steps=2 * STEPS)
    assert training.finished is None
    if on_evaluation is not None:
        training.evaluation = evaluation(on_evaluation, settled_steps=3)
    train(training)
    training.judge(settled_steps=4 * STEPS)
    assert training.finished == finished


def test_ten_updates_in_which_nothing_is_learnt_are_an_alarm_in_the_status(
    make: Make, tmp_path: Path
) -> None:
    """The square of 1e30 is no float32: not one gradient is finite."""
    training = make(tmp_path)
    alarms = []
    for _ in range(11):
        rollout = make_rollout(SPEC)
        training.train([replace(rollout, rewards=rollout.rewards * np.float32(1e30))], [0], 0.0)
        alarms.append(status_of(training, QUIET_INTAKE).alarm)
    assert alarms[:9] == [""] * 9
    assert all(alarm.startswith("nothing is learnt") for alarm in alarms[9:])
    assert any(text.startswith("nothing is learnt") for text in status_of(training, QUIET_INTAKE).warnings)
    assert status_of(training, ALARMED_INTAKE).alarm == "the intake's"
    train(training)
    assert status_of(training, QUIET_INTAKE).alarm == ""
    assert any(text.startswith("nothing is learnt") for text in training.warnings.texts)


def due_updates(training: Training, updates: int = 4) -> list[int]:
    """The updates after which a checkpoint was due; 0 is before the first."""
    due = [0] if training.is_due_to_save() else []
    for update in range(1, updates + 1):
        train(training)
        if training.is_due_to_save():
            due.append(update)
            training.save(snapshot_of(training))
    return due


def test_in_lock_step_mode_a_checkpoint_is_due_at_the_start_of_each_segment(
    make: Make, tmp_path: Path
) -> None:
    assert due_updates(make(tmp_path, lock_step=LockStep(1, 1, segment_updates=2))) == [0, 2, 4]


def test_otherwise_it_is_due_by_the_clock(make: Make, tmp_path: Path) -> None:
    assert due_updates(make(tmp_path / "rarely"), updates=2) == []
    always = make(tmp_path / "always", checkpoint={"interval_s": 0})
    assert due_updates(always, updates=2) == [0, 1, 2]


class SlowDisk:
    """A clock that moves by an update and by a save, and checkpoints that take as long as that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, save_s: float, update_s: float = 1.0) -> None:
        self.now = 1000.0
        self.save_s, self.update_s = save_s, update_s
        self.saved: list[tuple[int, bool]] = []  # update, and whether with a milestone
        monkeypatch.setattr("learner.training.time.monotonic", lambda: self.now)
        monkeypatch.setattr("learner.training.Checkpoints.save", self.save)

    def save(self, _ppo: object, snapshot: LearnerSnapshot, _confirm: object, *, milestone: bool) -> None:
        self.now += self.save_s
        self.saved.append((snapshot.progress.update, milestone))

    def train(self, training: Training, updates: int) -> list[int]:
        """The updates at which it was saved."""
        for _ in range(updates):
            training.progress.update += 1
            training.saving.note_update(
                training.progress.trained_steps, training.progress.trained_steps + STEPS
            )
            training.progress.trained_steps += STEPS
            self.now += self.update_s
            if training.is_due_to_save():
                training.save(snapshot_of(training))
        return [update for update, _ in self.saved]


@pytest.mark.parametrize(
    ("save_s", "interval_s", "saved"),
    [
        (0.0, 3, [3, 6, 9, 12, 15, 18]),
        (0.2, 3, [3, 6, 9, 12, 15, 18]),
        (6.0, 3, [3, 57]),
        (0.5, 0, [1, 6, 11, 16]),
        (0.09, 0, list(range(1, 19))),
    ],
    ids=["no time", "quick", "twice its interval", "after each update", "quick, each update"],
)
def test_saves_are_counted_from_the_end_of_the_last_and_take_a_tenth_of_the_time_at_most(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_s: float,
    interval_s: float,
    saved: list[int],
) -> None:
    disk = SlowDisk(monkeypatch, save_s)
    training = make(tmp_path, checkpoint={"interval_s": interval_s})
    updates = 60 if save_s > 1 else 18
    assert disk.train(training, updates) == saved
    if save_s < 0.5:
        assert training.warnings.texts == ()
    else:
        (text,) = training.warnings.texts
        assert f"took {save_s:.1f} s" in text
        assert f"{9 * save_s:g} s later, not the {interval_s} s" in text


def test_quick_saves_take_a_tenth_of_the_time_at_most_unless_each_update_was_asked_for(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, save_s=0.09, update_s=0.3)
    training = make(tmp_path, checkpoint={"interval_s": 0.2})
    assert disk.train(training, updates=10) == [1, 4, 7, 10]
    assert training.warnings.texts == ()


def test_milestones_wait_until_saving_may_take_time_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, save_s=0.5)
    training = make(tmp_path, checkpoint={"interval_s": NEVER_S, "milestone_steps": 2 * STEPS})
    disk.train(training, updates=9)
    assert disk.saved == [(2, True), (7, True)]


def test_in_lock_step_mode_every_segment_is_saved_however_long_that_takes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, save_s=60.0)
    training = make(tmp_path, lock_step=LockStep(1, 1, segment_updates=2))
    assert disk.train(training, updates=6) == [2, 4, 6]
    assert training.warnings.texts == ()


def test_a_milestone_is_due_after_the_update_that_passed_it_and_kept_beside_the_checkpoint(
    make: Make,
    tmp_path: Path,
) -> None:
    milestones = {"interval_s": NEVER_S, "milestone_steps": 4 * STEPS}
    assert due_updates(make(tmp_path, checkpoint=milestones)) == [2, 4]
    assert {n for n in names_in(tmp_path) if n.startswith("milestone")} == {
        f"milestone-{4 * STEPS:012d}.pt",
        f"milestone-{8 * STEPS:012d}.pt",
    }


def test_without_checkpoints_nothing_is_due_and_nothing_is_written(make: Make, tmp_path: Path) -> None:
    training = make(tmp_path, keeps_checkpoints=False, checkpoint={"interval_s": 0})
    assert due_updates(training, updates=2) == []
    training.save(snapshot_of(training))
    assert not (tmp_path / "checkpoints").exists()


def test_a_failed_save_is_counted_and_its_milestone_is_written_by_the_next(
    make: Make, tmp_path: Path
) -> None:
    training = make(tmp_path, checkpoint={"interval_s": NEVER_S, "milestone_steps": 2 * STEPS})
    (tmp_path / "checkpoints").write_text("in the way")
    train(training)
    with pytest.raises(CheckpointError):
        training.save(snapshot_of(training))
    assert (training.saving.failures, training.saving.update) == (1, -1)
    (tmp_path / "checkpoints").unlink()
    training.save(snapshot_of(training))
    assert names_in(tmp_path) == {"checkpoint-000000001.pt", f"milestone-{2 * STEPS:012d}.pt"}
    assert (training.saving.failures, training.saving.update) == (1, 1)
    assert training.saving.time > 0


def test_a_checkpoint_gets_its_name_only_after_the_question_whether_this_process_still_leads(
    make: Make,
    tmp_path: Path,
) -> None:
    training = make(tmp_path)
    train(training)

    def refuse() -> None:
        assert names_in(tmp_path) == {"checkpoint-000000001.writing"}
        raise FencedError("another learner leads")

    with pytest.raises(FencedError):
        training.save(snapshot_of(training), refuse)
    assert not any(name.endswith(".pt") for name in names_in(tmp_path))
    training.save(snapshot_of(training), lambda: None)
    assert names_in(tmp_path) == {"checkpoint-000000001.pt"}


class TestClock:
    """Seconds of training, on a clock that the test moves."""

    @pytest.fixture
    def move(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        now = [1000.0]
        monkeypatch.setattr("learner.clock.time.monotonic", lambda: now[0])

        def move(seconds: float) -> None:
            now[0] += seconds

        return move

    def test_it_stands_still_before_the_first_rollout_and_in_pauses(
        self, move: Callable[[float], None]
    ) -> None:
        clock = TrainingClock(spent_s=100.0)
        move(5)
        assert (clock.read_s(), clock.has_begun) == (100.0, False)
        clock.begin()
        move(3)
        clock.pause()
        move(50)
        assert (clock.read_s(), clock.is_paused) == (103.0, True)
        clock.resume()
        move(2)
        clock.begin()
        assert (clock.read_s(), clock.is_paused) == (105.0, False)

    def test_a_pause_before_the_first_rollout_begins_nothing(self, move: Callable[[float], None]) -> None:
        clock = TrainingClock()
        clock.pause()
        clock.resume()
        move(9)
        assert (clock.read_s(), clock.has_begun) == (0.0, False)


class TestTheLastSave:
    @pytest.fixture(autouse=True)
    def no_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("learner.training._LAST_PAUSES_S", (0.0, 0.0))

    def test_a_failing_last_save_is_retried_and_then_logged_with_the_checkpoint_that_a_resume_loads(
        self, tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        training = make(tmp_path)
        train(training)
        training.save(snapshot_of(training))
        train(training)
        (tmp_path / "checkpoints").rename(tmp_path / "aside")
        (tmp_path / "checkpoints").write_text("a file")
        assert not training.save_last(lambda: training.save(snapshot_of(training)))
        assert (training.saving.failures, "cannot save" in training.saving.error) == (3, True)
        (text,) = (text for text in training.warnings.texts if "cannot save" in text)
        assert "that of update 1" in text
        assert "training continues" not in caplog.text
        assert status_of(training, QUIET_INTAKE).save_error == training.saving.error

    def test_a_last_save_that_succeeds_at_a_retry_leaves_no_warning(self, tmp_path: Path, make: Make) -> None:
        training = make(tmp_path)
        train(training)
        (tmp_path / "checkpoints").write_text("a file")
        tries = []

        def write() -> None:
            tries.append(1)
            if len(tries) == 2:
                (tmp_path / "checkpoints").unlink()
            training.save(snapshot_of(training))

        assert training.save_last(write)
        assert (len(tries), training.saving.error) == (2, "")
        assert "cannot save" not in " ".join(training.warnings.texts)


def test_rows_that_could_not_be_written_are_a_warning(tmp_path: Path, make: Make) -> None:
    training = make(tmp_path / "run")
    training.metrics.close()
    (tmp_path / "run" / "metrics.csv").unlink()
    training.metrics._csv = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    training.record(train(training), settled_steps=1, version=1)
    assert "No space left" in " ".join(training.warnings.texts)
