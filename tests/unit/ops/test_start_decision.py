"""The start of a command: `--resume auto` starts or resumes a run, `--resume` needs a checkpoint."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.artefacts.run_files import RunFiles, checkpoint_name
from dppo_redis.errors import ConfigurationError
from dppo_redis.service.shutdown import StopRequest
from ops.fleet.run_directory import RunDirectory, check, claim, prepare, write_summary
from ops.fleet.start_decision import StartDecision, decide_start
from ops.options import SerialOptions, TrainOptions
from tests.factories import make_config, make_summary

CONFIG = make_config(env_id="CartPole-v1", total_steps=1000, rollout_steps=64, ppo={"batch_steps": 128})


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(*words: str, kind: type[Any] = TrainOptions) -> StartDecision[Any]:
    beginning = decide_start(kind, ["CartPole-v1", *words], "dppo-redis", StopRequest())
    if beginning.lock is not None:
        os.close(beginning.lock)
    return beginning


def automatically(*words: str, kind: type[Any] = TrainOptions) -> StartDecision[Any]:
    return begin("--total-steps", "1000", "--resume", "auto", *words, kind=kind)


def begun(path: Path, run: str = "CartPole-v1-s1", checkpoint: int | None = None) -> RunFiles:
    """Write the files of a killed command; `checkpoint` is the update of its last checkpoint."""
    directory = RunDirectory(run, path)
    os.close(claim(directory))
    prepare(directory, CONFIG, resume=False)
    if checkpoint is not None:
        directory.files.checkpoints.mkdir()
        (directory.files.checkpoints / checkpoint_name(checkpoint)).write_bytes(b"")
    return directory.files


class TestAutomatically:
    @pytest.mark.parametrize("exists", [False, True])
    def test_an_empty_directory_starts_a_run(self, place: Path, exists: bool) -> None:
        if exists:
            (place / "runs" / "CartPole-v1-s1").mkdir(parents=True)
        found = automatically()
        assert found.directory == RunDirectory("CartPole-v1-s1", place / "runs" / "CartPole-v1-s1")
        assert (found.options.resume, found.options.overwrite, found.summary) == ("", False, None)

    def test_the_name_is_the_same_at_each_start_and_another_for_another_seed_or_without_a_fleet(
        self,
    ) -> None:
        names = [
            automatically().directory.run,
            automatically("--seed", "2").directory.run,
            automatically(kind=SerialOptions).directory.run,
            automatically("--run", "mine").directory.run,
        ]
        assert names == ["CartPole-v1-s1", "CartPole-v1-s2", "CartPole-v1-s1-serial", "mine"]

    @pytest.mark.parametrize(
        "what", ["lock", "half a configuration", "configuration", "all but a checkpoint"]
    )
    def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
        self, place: Path, what: str
    ) -> None:
        files = begun(place / "runs" / "CartPole-v1-s1")
        if what != "all but a checkpoint":
            files.identity.unlink()
        if what in ("lock", "half a configuration"):
            files.config.unlink()
        if what == "half a configuration":
            files.config.with_name("config.toml.writing").write_text("env_")
        found = automatically()
        assert (found.options.resume, found.options.overwrite) == ("", True)
        check(found.directory, resume=False, overwrite=found.options.overwrite)

    def test_a_checkpoint_is_resumed_with_the_runs_own_configuration(self, place: Path) -> None:
        begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
        found = automatically("--ppo.learning-rate", "0.01")
        assert (found.options.resume, found.options.overwrite, found.summary) == ("last", False, None)
        assert found.options.config.ppo.batch_steps == 128  # from the run's configuration
        assert found.options.config.rollout_steps == 64
        assert found.options.config.ppo.learning_rate == 0.01  # from the command line

    def test_flags_override_a_toml_file_which_overrides_the_runs_configuration(self, place: Path) -> None:
        begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
        Path("mine.toml").write_text("total_steps = 5\n[ppo]\nlearning_rate = 0.02\ngamma = 0.5\n")
        config = automatically("--config", "mine.toml", "--ppo.gamma", "0.6").options.config
        assert (config.ppo.learning_rate, config.ppo.gamma, config.ppo.batch_steps) == (0.02, 0.6, 128)
        assert (config.total_steps, config.rollout_steps) == (1000, 64)

    def test_the_name_in_a_directory_is_kept(self, place: Path) -> None:
        begun(place / "here", run="named")
        assert automatically("--run-dir", "here").directory == RunDirectory("named", place / "here")
        with pytest.raises(ConfigurationError, match="holds run named, not other"):
            automatically("--run-dir", "here", "--run", "other")

    def test_a_finished_run_shows_its_summary_and_continues_with_a_larger_budget(self, place: Path) -> None:
        files = begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
        write_summary(files.path, make_summary(reason="total_steps", trained_steps=1010))
        assert automatically().summary == make_summary(reason="total_steps", trained_steps=1010)
        assert automatically("--total-steps", "2000").summary is None

    @pytest.mark.parametrize(
        ("target", "is_finished"), [("400", True), ("450", True), ("500", False), (None, False)]
    )
    def test_a_run_that_has_met_its_target_is_finished_for_this_target(
        self, place: Path, target: str | None, is_finished: bool
    ) -> None:
        files = begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
        write_summary(files.path, make_summary(reason="target", trained_steps=10, return_mean=450.0))
        words = () if target is None else ("--target-return", target)
        assert (automatically(*words).summary is not None) == is_finished

    @pytest.mark.parametrize("reason", ["stopped", "failed", "unsaved"])
    def test_a_run_that_ended_without_reaching_its_goal_continues(self, place: Path, reason: str) -> None:
        files = begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
        write_summary(files.path, make_summary(reason=reason, trained_steps=1010))
        assert (automatically().options.resume, automatically().summary) == ("last", None)

    def test_a_directory_with_the_users_files_is_no_killed_run(self) -> None:
        Path("config.toml").write_text('env_id = "CartPole-v1"\n')  # the user's file; there is no lock file
        found = automatically("--run-dir", ".")
        with pytest.raises(ConfigurationError, match="other files than those of a run"):
            check(found.directory, resume=False, overwrite=found.options.overwrite)


@pytest.mark.parametrize("words", [["--resume=auto"], ["--resume", "auto"]])
def test_both_forms_of_resume_work_before_and_after_the_environment(words: list[str]) -> None:
    for line in (["CartPole-v1", *words], [*words, "CartPole-v1"]):
        found = decide_start(TrainOptions, line, "dppo-redis train", StopRequest())
        assert (found.options.config.env_id, found.directory.run) == ("CartPole-v1", "CartPole-v1-s1")


def test_resume_alone_needs_a_checkpoint_at_any_position(place: Path) -> None:
    begun(place / "here")
    for line in (["--resume", "--run-dir", "here"], ["--run-dir", "here", "--resume"]):
        with pytest.raises(ConfigurationError, match="holds no checkpoint to resume from: --resume auto"):
            decide_start(TrainOptions, line, "dppo-redis train", StopRequest())
    begun(place / "there", checkpoint=1)
    found = decide_start(TrainOptions, ["--resume", "CartPole-v1", "--run-dir", "there"], "x", StopRequest())
    assert (found.options.resume, found.options.config.ppo.batch_steps) == ("last", 128)


def test_auto_and_overwrite_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="leave out --overwrite"):
        automatically("--overwrite")


def test_a_run_with_a_damaged_summary_is_not_finished(place: Path) -> None:
    files = begun(place / "runs" / "CartPole-v1-s1", checkpoint=3)
    files.summary.write_text(json.dumps({"reason": "total_steps"}))
    assert automatically().summary is None
