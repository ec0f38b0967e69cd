"""The serial baseline tolerates the same faults as an actor: numbers that are not finite, and exceptions."""

import io
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import EnvironmentBrokenError, StoppedError, WireError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import EnvValue
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from ops.screens.tables import make_console, progress_of_first_rollouts
from ops.serial import make_serial
from ops.serial_sampling import Sampling, make_sampling
from tests.factories import describe, make_config, make_policy, spaces_of
from workers.failures import MOST_FAILURES, MOST_REFUSED, FailureCount

POLICY_STEPS = 10


def sampling_of(fault: str, at: int, **kwargs: EnvValue) -> tuple[Sampling, list[int]]:
    """A baseline on two faulty environments, and the steps of three batches of one rollout each."""
    config = make_config(
        env_id=f"tests.envs:{fault}-v0",
        env_kwargs={"at": at, "length": 4, **kwargs},
        envs_per_actor=2,
        rollout_steps=POLICY_STEPS,
        ppo={"batch_steps": 2 * POLICY_STEPS},
    )
    description = describe(config)
    sampling = make_sampling(config, description)
    policy = make_policy(description.spec)
    batches = [sampling.collect(policy, StopRequest()) for _ in range(3)]
    assert all(np.isfinite(rollout.observations).all() for batch in batches for rollout in batch)
    sampling.close()
    return sampling, [sum(rollout.steps for rollout in batch) for batch in batches]


@pytest.mark.parametrize("fault", ["NanObservation", "InfiniteReward"])
def test_a_rollout_with_a_number_that_is_not_finite_is_dropped_and_counted(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dppo"):
        sampling, steps = sampling_of(fault, at=POLICY_STEPS + 3)
    assert steps == [2 * POLICY_STEPS] * 3
    assert sampling.failure_count.refused == 1
    assert "nonfinite" in caplog.text


@pytest.mark.parametrize("category", [8, 4, -300])
def test_a_rollout_with_a_category_outside_its_space_is_dropped_and_counted(
    category: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "dppo"):
        sampling, _ = sampling_of("OutsideOnce", at=POLICY_STEPS + 3, category=category)
    assert sampling.failure_count.refused == 1
    assert "observation: observations observation outside its space" in caplog.text


def test_environments_that_raise_are_rebuilt_and_the_traceback_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "dppo"):
        sampling, steps = sampling_of("RaisesInStep", at=3 * POLICY_STEPS - 1)
    assert steps == [2 * POLICY_STEPS] * 3
    assert sampling.failure_count.failures == 0
    assert caplog.text.count("simulator lost its licence") >= 1
    assert "faults.py" in caplog.text


def test_a_run_continues_if_only_its_evaluations_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The environment fails in long episodes; evaluations reach that length and rollouts do not."""
    config = make_config(
        env_id="tests.envs:RaisesInStep-v0",
        env_kwargs={"at": 5, "length": 9},
        envs_per_actor=2,
        rollout_steps=4,
        total_steps=16,
        ppo={"batch_steps": 8, "minibatch_size": 8},
    )
    serial = make_serial(
        plan(config, spaces_of(config), serial=True), tmp_path, make_console(io.StringIO()), StopRequest()
    )
    with caplog.at_level(logging.ERROR, "dppo"):
        serial.run()
    serial.close()
    summary = serial.summary()
    assert (summary.reason, summary.updates, summary.return_mean) == ("total_steps", 2, None)
    assert summary.evaluation is None
    assert "the last evaluation failed: step raised RuntimeError" in summary.warnings[0]
    assert "the evaluation failed: step raised RuntimeError: the simulator lost its licence" in caplog.text


@pytest.mark.parametrize(
    ("lock_step", "kept"),
    [(False, ["milestone-000000000016.pt"]), (True, ["checkpoint-000000000.pt", "checkpoint-000000002.pt"])],
)
def test_a_run_writes_the_configured_checkpoints(tmp_path: Path, lock_step: bool, kept: list[str]) -> None:
    """Three updates, with a milestone after the second, or with segments of two updates."""
    config = make_config(
        env_id="tests.envs:Terminating-v0",
        envs_per_actor=2,
        actors=1,
        rollout_steps=4,
        total_steps=24,
        lock_step=lock_step,
        segment_updates=2,
        ppo={"batch_steps": 8, "minibatch_size": 8},
        checkpoint={"interval_s": 3600, "milestone_steps": None if lock_step else 16},
    )
    serial = make_serial(
        plan(config, spaces_of(config), serial=True),
        tmp_path,
        make_console(io.StringIO()),
        StopRequest(),
        run="mine",
    )
    serial.run()
    serial.close()
    files = {file.name for file in (tmp_path / "checkpoints").iterdir()}
    assert files >= set(kept)
    assert files - set(kept) <= {"checkpoint-000000002.pt"}


def test_a_stop_ends_sampling_while_every_rollout_is_refused() -> None:
    stop = StopRequest()
    stop.request()
    config = make_config(env_id="tests.envs:NanObservation-v0", env_kwargs={"at": 1})
    description = describe(config)
    sampling = make_sampling(config, description)
    with pytest.raises(StoppedError):
        sampling.collect(make_policy(description.spec), stop)


def busy_at_first(port: Path, retry_s: float) -> tuple[Sampling, ActingPolicy]:
    """An environment that could be built for its inspection and now cannot."""
    config = make_config(
        env_id="tests.envs:Busy-v0",
        env_kwargs={"port": str(port)},
        envs_per_actor=1,
        rollout_steps=8,
        ppo={"batch_steps": 8},
        env_retry_s=retry_s,
    )
    description = describe(config)
    port.touch()
    return make_sampling(config, description), make_policy(description.spec)


def test_building_that_fails_at_first_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampling, policy = busy_at_first(tmp_path / "port", retry_s=60)
    threading.Timer(0.7, (tmp_path / "port").unlink).start()
    with caplog.at_level(logging.INFO, "dppo"):
        assert sum(rollout.steps for rollout in sampling.collect(policy, StopRequest())) == 8
    assert caplog.text.count("Traceback") == 1
    assert sampling.failure_count.failures == 0, "nothing that was built has failed"
    sampling.close()


def test_building_that_always_fails_ends_after_the_limit(tmp_path: Path) -> None:
    sampling, policy = busy_at_first(tmp_path / "port", retry_s=1)
    began = time.monotonic()
    with pytest.raises(EnvironmentBrokenError, match=r"port 1234 is busy, tried again for 1 s"):
        sampling.collect(policy, StopRequest())
    assert time.monotonic() - began < 5
    assert sampling.calls.runs_s() == 0, "a watchdog has nothing to wait for"


def test_environments_that_always_fail_end_the_run_after_growing_pauses() -> None:
    failure_count, error = FailureCount(), EnvironmentBrokenError("step raised ValueError: no licence")
    pauses = []
    for _ in range(MOST_FAILURES - 1):
        failure_count.count_failure(error)
        pauses.append(failure_count.pause_s(error))
    assert pauses == sorted(set(pauses))
    failure_count.count_failure(error)
    with pytest.raises(EnvironmentBrokenError, match="5 times in a row: step raised ValueError: no licence"):
        failure_count.pause_s(error)


def test_many_unusable_rollouts_in_a_row_end_the_run_and_interrupted_ones_do_not() -> None:
    failure_count, error = FailureCount(), WireError("nonfinite", "rewards")
    for _ in range(MOST_REFUSED - 1):
        failure_count.refuse(error)
    failure_count.used()
    for _ in range(MOST_REFUSED - 1):
        failure_count.refuse(error)
    with pytest.raises(EnvironmentBrokenError, match=r"10 rollouts in a row could not be used.*rewards"):
        failure_count.refuse(error)
    assert failure_count.refused == 2 * MOST_REFUSED - 1


@pytest.mark.parametrize(("lock_step", "wanted"), [(False, 2), (True, 4)])
def test_another_thread_can_read_the_progress_of_a_batch(lock_step: bool, wanted: int) -> None:
    """Before each step the progress is read: it only rises, up to the steps of all rollouts."""
    config = make_config(
        env_id="tests.envs:Terminating-v0",
        actors=2,
        envs_per_actor=2,
        rollout_steps=5,
        lock_step=lock_step,
        ppo={"batch_steps": 40 if lock_step else 20},
    )
    description = describe(config)
    sampling = make_sampling(config, description)
    seen: list[int] = []

    class Looking(StopRequest):
        @property
        def requested(self) -> bool:
            seen.append(sampling.whole_rollouts * 5 + sampling.steps_done())
            return False

    sampling.collect(make_policy(description.spec), Looking())
    sampling.close()
    assert sampling.wanted_rollouts == wanted
    assert set(range(5 * wanted)) <= set(seen)
    assert sampling.whole_rollouts == wanted - 1


@pytest.mark.parametrize(
    ("done", "length", "seconds", "shown"),
    [
        (12, 64, 5.77, "12 of 64 steps, about 25 s left"),
        (0, 64, 3.0, "0 of 64 steps"),
        (5, 605, 1.0, "2 min 0 s"),
    ],
)
def test_progress_of_the_first_rollouts(done: int, length: int, seconds: float, shown: str) -> None:
    assert shown in progress_of_first_rollouts(done, length, seconds)
