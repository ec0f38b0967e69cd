"""Building environments, and what one vector step shows in each mode of automatic reset."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import Vectorization, make_single, make_vector
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.spaces.observations import Array, ObservationSpec
from tests import factories
from tests.factories import TERMINATING, TRUNCATING, discrete, make_environments, source
from workers.envs import Environments, VectorStep

MODES = list(AutoresetMode)
ROOT = Path(__file__).parents[3]
IDLE = np.zeros(2, np.int64)


def played(environments: Environments, steps: int) -> list[VectorStep]:
    environments.reset()
    return [environments.step(IDLE) for _ in range(steps)]


def finals(step: VectorStep) -> list[list[float]]:
    assert step.final_observations is not None
    result: list[list[float]] = step.final_observations.tolist()
    return result


@pytest.mark.parametrize("mode", MODES)
def test_the_true_final_observation_is_shown_in_every_mode(mode: AutoresetMode) -> None:
    """Environments of 3 and 2 steps; an observation is [steps taken, episodes begun]."""
    steps = played(make_environments(kwargs=[{"length": 3}, {"length": 2}], mode=mode), 3)
    assert steps[0].final_observations is None
    assert finals(steps[1]) == [[2, 1]]
    assert steps[1].terminated.tolist() == [False, True]
    assert finals(steps[2]) == [[3, 1]]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_without_a_dummy_step_the_next_observation_is_the_fresh_one(mode: AutoresetMode) -> None:
    last = played(make_environments(kwargs=[{"length": 3}, {"length": 2}], mode=mode), 2)[-1]
    assert last.observations.tolist() == [[2, 1], [0, 2]]
    assert last.valid.all()


def test_the_dummy_step_of_a_reset_is_not_valid_ends_nothing_and_earns_nothing() -> None:
    steps = played(make_environments(kwargs=[{"length": 9}, {"length": 2}], mode=AutoresetMode.NEXT_STEP), 4)
    assert [step.valid.tolist() for step in steps] == [
        [True, True],
        [True, True],
        [True, False],
        [True, True],
    ]
    assert steps[2].rewards.tolist() == [3, 0]
    assert not (steps[2].terminated | steps[2].truncated).any()
    assert steps[2].observations.tolist() == [[3, 1], [0, 2]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env_id", "flags"),
    [(TERMINATING, (True, False)), (TRUNCATING, (False, True)), ("tests.envs:BothFlags-v0", (True, True))],
)
def test_both_flags_travel_as_the_environment_set_them(
    env_id: str, flags: tuple[bool, bool], mode: AutoresetMode
) -> None:
    last = played(make_environments(env_id, [{"length": 2}] * 2, mode), 2)[-1]
    assert [(bool(a), bool(b)) for a, b in zip(last.terminated, last.truncated, strict=True)] == [flags] * 2


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_of_fixed_dtypes(mode: AutoresetMode) -> None:
    environments = make_environments("tests.envs:SecretlyFloat64-v0", mode=mode)
    for step in played(environments, 5):
        arrays = {name: x for name, x in step._asdict().items() if isinstance(x, np.ndarray)}
        found = {name: str(array.dtype) for name, array in arrays.items()}
        floats = dict.fromkeys(found.keys() & {"observations", "rewards", "final_observations"}, "float32")
        assert found == {**dict.fromkeys(["terminated", "truncated", "valid"], "bool"), **floats}


def test_the_mode_is_read_from_the_metadata_and_a_vector_without_it_is_refused() -> None:
    vector = factories.make_vector(TERMINATING, [{}])
    vector.metadata = {}
    with pytest.raises(ConfigurationError, match="autoreset_mode"):
        Environments(vector, [0])


def test_a_reset_in_the_middle_forgets_the_running_episodes() -> None:
    environments = make_environments(kwargs=[{"length": 2}] * 2, mode=AutoresetMode.NEXT_STEP)
    played(environments, 2)
    environments.reset()
    assert environments.step(IDLE).valid.all()


# Known failure KF-ENV-02.
@pytest.mark.parametrize("wrapped", ["inside", "around"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_statistics_wrappers_change_nothing(wrapped: str, mode: AutoresetMode) -> None:
    vector = factories.make_vector(TERMINATING, [{"length": 3}, {"length": 2}], mode)
    plain = played(make_environments(kwargs=[{"length": 3}, {"length": 2}], mode=mode), 6)
    if wrapped == "inside":
        vector.envs = [RecordEpisodeStatistics(env) for env in vector.envs]
    outer = vector if wrapped == "inside" else RecordVectorStatistics(vector)
    for step, expected in zip(played(Environments(outer, [0, 1]), 6), plain, strict=True):
        for name, array in expected._asdict().items():
            np.testing.assert_array_equal(getattr(step, name), array)


# Known failure KF-ENV-03.
@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_raises_in_a_step_breaks_with_its_own_words(mode: AutoresetMode) -> None:
    environments = make_environments("tests.envs:RaisesInStep-v0", [{"at": 99}, {"at": 5}], mode)
    with pytest.raises(EnvironmentBrokenError, match="RuntimeError: the simulator lost") as caught:
        played(environments, 10)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_reward_of_several_numbers_breaks_with_its_shape() -> None:
    environments = make_environments("tests.envs:RewardsTwice-v0")
    with pytest.raises(EnvironmentBrokenError, match=r"a reward of shape \(2,\), where one number is needed"):
        played(environments, 3)


def test_an_error_that_cannot_say_what_it_is_breaks_the_environment_like_any_other() -> None:
    environments = make_environments("tests.envs:RaisesInStep-v0", [{"at": 9}, {"at": 2, "speechless": True}])
    with pytest.raises(EnvironmentBrokenError, match="step raised _SpeechlessError: it cannot say what"):
        played(environments, 3)


def test_an_environment_that_calls_exit_breaks_and_ends_nothing() -> None:
    environments = make_environments("tests.envs:LeavesInStep-v0")
    with pytest.raises(EnvironmentBrokenError, match="step raised SystemExit: no display"):
        played(environments, 3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [1, 2])
def test_an_environment_that_raises_in_a_reset_breaks_with_its_own_words(
    at: int, mode: AutoresetMode
) -> None:
    environments = make_environments("tests.envs:RaisesInReset-v0", [{"at": 99}, {"at": at}], mode)
    with pytest.raises(EnvironmentBrokenError, match="RuntimeError: the simulator lost") as caught:
        played(environments, 10)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
def test_an_environment_that_raises_in_its_own_process_breaks_with_its_own_words() -> None:
    environments = Environments(make_vector(source("tests.envs:RaisesInStep-v0", at=2), 2, "async"), [0, 1])
    try:
        with pytest.raises(EnvironmentBrokenError, match="RuntimeError: the simulator lost"):
            played(environments, 3)
    finally:
        environments.close()


ACTOR_WITH_A_KILLED_ENVIRONMENT = """
import multiprocessing, sys
import numpy as np
from dppo_redis.environments.make import make_vector
from dppo_redis.errors import EnvironmentBrokenError
from dppo_redis.protocol.spec import EnvironmentSource
from workers.envs import Environments

vector = make_vector(EnvironmentSource("tests.envs:Dies-v0"), 2, "async")
environments = Environments(vector, [0, 1])
environments.reset()
if sys.argv[1] == "before the step":
    vector.processes[1].kill()
    vector.processes[1].join()
try:
    environments.step(np.array([0, 1]))
except EnvironmentBrokenError:
    environments.close()
    print("closed, processes left:", len(multiprocessing.active_children()))
"""


@pytest.mark.parametrize("when", ["before the step", "in the step"])
def test_a_killed_environment_process_breaks_the_step_and_close_does_not_hang(when: str) -> None:
    """In an interpreter of its own, since a close that hangs would take this one with it."""
    command = [sys.executable, "-W", "ignore", "-c", ACTOR_WITH_A_KILLED_ENVIRONMENT, when]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, cwd=ROOT)
    assert ended.stdout == "closed, processes left: 0\n", ended.stderr


PARENT_OF_SIMULATORS = """
import os, sys
from pathlib import Path
from dppo_redis.environments.make import make_vector
from dppo_redis.protocol.spec import EnvironmentSource
from dppo_redis.service.descendants import adopt_orphans, descendants
from dppo_redis.service.ending import end_process
from workers.envs import Environments

adopt_orphans()
directory = Path(sys.argv[1])
source = EnvironmentSource("tests.envs:Simulated-v0", {"closed": str(directory / "closed-{copy}")})
environments = Environments(make_vector(source, 2, "async"), [0, 1])
environments.reset()
pids = {pid for process in environments.vector.processes for pid in descendants(process.pid)}
print("simulators:", len(pids))
environments.close()
print("left:", len(pids & descendants()), *sorted(path.name for path in directory.glob("closed-?")))
end_process(0)  # the one that gymnasium built to look at left a simulator, too
"""


def test_processes_of_environments_close_them_and_leave_no_simulator_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PARENT_OF_SIMULATORS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ended.stdout == "simulators: 2\nleft: 0 closed-0 closed-1\n", ended.stderr


# Known failure KF-ENV-05.
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_an_environment_of_a_module_is_found(vectorization: Vectorization) -> None:
    vector = make_vector(source(TERMINATING, length=2), 2, vectorization)
    assert finals(played(Environments(vector, [0, 1]), 2)[-1]) == [[2, 1], [2, 1]]


def test_an_environment_of_a_module_is_found_in_processes_of_its_own() -> None:
    vector = make_vector(source(TERMINATING, length=2), 2, "async")
    environments = Environments(vector, [0, 1])
    try:
        assert finals(played(environments, 2)[-1]) == [[2, 1], [2, 1]]
    finally:
        environments.close()


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
@pytest.mark.parametrize(
    "env_id", ["CartPoole-v1", "CartPole-v99", "tests.envs:Nothing-v0", "no.such.module:Thing-v0", "!", ""]
)
def test_an_unknown_environment_is_one_line_that_names_it(env_id: str, vectorization: Vectorization) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_vector(source(env_id), 1, vectorization)
    assert env_id in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_id_without_its_version_means_the_newest() -> None:
    assert make_vector(source("CartPole"), 1, "auto").single_observation_space.shape == (4,)


def test_an_argument_that_the_environment_does_not_take_is_one_line_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="gravitation") as caught:
        make_single(source("CartPole-v1", gravitation=9.81))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrappers", [(), ("TimeLimit(max_episode_steps=5)",)], ids=["bare", "wrapped"])
@pytest.mark.parametrize("env_id", ["OldApi", "OldestApi", "FourValues"])
def test_the_api_of_old_gym_is_refused_at_the_start(env_id: str, wrappers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"does not follow the API of gymnasium 1\.x"):
        inspect(source(f"tests.envs:{env_id}-v0", *wrappers))


def test_an_environment_is_tried_out_with_a_single_step() -> None:
    """It may take long: the second one of this takes an hour."""
    assert inspect(source("tests.envs:Slow-v0", ms=3_600_000, quick=1)).action == discrete(2)


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("tests.envs:WholeActions-v0", "action space Box.* is not supported: a Box of int32; there are Disc"),
        (
            "tests.envs:Spoken-v0",
            r"observation space Text.* \(part mission\) is not supported: there are Box",
        ),
    ],
)
def test_an_unsupported_space_is_refused_at_the_start_by_name(env_id: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        inspect(source(env_id))


def test_an_environment_that_raises_when_it_is_tried_out_is_refused_with_its_own_words() -> None:
    with pytest.raises((ConfigurationError, EnvironmentBrokenError), match="lost its licence"):
        inspect(source("tests.envs:RaisesInReset-v0", at=1))


def test_an_observation_that_is_not_of_its_space_is_refused_at_the_start_with_both() -> None:
    with pytest.raises(
        ConfigurationError, match=r"OtherShape-v0' returned a ndarray \(3,\) .* Box\(.*\(2,\).*:"
    ):
        inspect(source("tests.envs:OtherShape-v0"))


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("OtherShapeLater", r"returned a ndarray \(3,\) as observation, which does not fit its space .*:"),
        ("RewardsTwice", "a reward of"),
    ],
)
def test_faults_that_only_a_step_shows_are_refused_at_the_start(env_id: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{env_id}-v0' .*{says}"):
        inspect(source(f"tests.envs:{env_id}-v0"))


def test_an_environment_that_cannot_be_closed_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    assert inspect(source("tests.envs:CannotBeClosed-v0")).action == discrete(2)
    assert "RuntimeError: the window is gone" in caplog.text


def test_environments_that_do_not_fit_side_by_side_are_one_line() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Different-v0' cannot be stepped 3 at a time: RuntimeError: "
    ) as caught:
        make_vector(source("tests.envs:Different-v0"), 3, "sync")
    assert "\n" not in str(caught.value)


def test_inspection_describes_both_spaces() -> None:
    spaces = inspect(source("tests.envs:Int32-v0"))
    assert spaces.observation == ObservationSpec.vector(2, "int32")
    assert spaces.action == discrete(2)


def test_auto_takes_the_native_vector_version_in_the_mode_it_offers() -> None:
    vector = make_vector(source("CartPole-v1"), 3, "auto")
    assert not hasattr(vector, "env_fns")
    assert Environments(vector, [0, 1, 2]).mode is AutoresetMode.NEXT_STEP


def test_auto_steps_single_environments_where_there_is_no_native_version_of_them() -> None:
    """The single Pendulum takes `g`; gymnasium has no vector version of it."""
    vector = make_vector(source("Pendulum-v1", g=9.0), 3, "auto")
    assert Environments(vector, [0, 1, 2]).mode is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("fault", ["raises", "no mode", "space"])
def test_auto_steps_single_environments_where_the_native_version_cannot_stand_for_them(fault: str) -> None:
    assert not hasattr(make_vector(source("tests.envs:Native-v0"), 2, "auto"), "env_fns")
    vector = make_vector(source("tests.envs:Native-v0", fault=fault), 2, "auto")
    assert Environments(vector, [0, 1]).mode is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("count", [1, 3])
def test_a_native_environment_may_answer_in_columns(count: int) -> None:
    """Rewards and flags [N, 1]."""
    vectors = (
        make_vector(source("tests.envs:Native-v0", fault=fault), count, "auto") for fault in ("", "columns")
    )
    plain, columns = (played(Environments(vector, [0]), 8) for vector in vectors)
    for step, expected in zip(columns, plain, strict=True):
        for name, array in expected._asdict().items():
            np.testing.assert_array_equal(getattr(step, name), array)


def test_a_time_limit_of_minus_one_is_none() -> None:
    """As `gymnasium.make` has it; the native CartPole would end every episode in its first step."""
    environments = Environments(make_vector(source("CartPole-v1", max_episode_steps=-1), 2, "auto"), [0, 1])
    assert not any(step.truncated.any() for step in played(environments, 5))


def test_native_environments_keep_the_time_limit_of_the_id_and_of_the_arguments() -> None:
    def truncates_at(kwargs: dict[str, int | float | bool | str]) -> float:
        environments = Environments(make_vector(source("MountainCar-v0", **kwargs), 1, "sync"), [0])
        environments.reset()
        for step in range(1, 201):
            if environments.step(np.zeros(1, np.int64)).truncated.any():
                return step
        return math.inf

    assert truncates_at({}) == 200
    assert truncates_at({"max_episode_steps": 7}) == 7
    native = make_vector(source("CartPole-v1", max_episode_steps=7), 1, "auto")
    environments = Environments(native, [0])
    environments.reset()
    truncated = [environments.step(np.array([step % 2])).truncated.any() for step in range(7)]
    assert truncated == [False] * 6 + [True]


def first_observations(env_id: str, vectorization: Vectorization, seeds: list[int]) -> Array:
    return Environments(make_vector(source(env_id), len(seeds), vectorization), seeds).reset()


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_environments_start_from_their_seeds(vectorization: Vectorization) -> None:
    first = first_observations("CartPole-v1", vectorization, [1, 20, 300])
    assert len(np.unique(first, axis=0)) == 3
    np.testing.assert_array_equal(first, first_observations("CartPole-v1", vectorization, [1, 20, 300]))
    other = first_observations("CartPole-v1", vectorization, [4, 50, 600])
    assert len(np.unique(np.concatenate([first, other]), axis=0)) == 6


def test_each_of_several_single_environments_takes_its_own_seed() -> None:
    both = first_observations("CartPole-v1", "sync", [1, 20])
    np.testing.assert_array_equal(both[1:], first_observations("CartPole-v1", "sync", [20]))
