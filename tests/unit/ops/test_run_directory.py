"""The directory of a run: names, overwriting, and its files."""

import json
import os
from pathlib import Path

import pytest

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.store.keys import check_run_name
from ops.fleet.run_directory import (
    RunDirectory,
    check,
    choose,
    claim,
    default_run_name,
    prepare,
    run_in,
    write_summary,
)
from tests.factories import make_config, make_summary

CONFIGURED = make_config(
    env_id="CartPole-v1",
    env_kwargs={"sutton_barto_reward": True, "gravity": 9.8, "mode": "a", "n": 3},
    target_return=475.0,
    network={"hidden": [32, 16]},
    ppo={"batch_steps": 64, "update_epochs": 3},
)


def prepared(path: Path, run: str = "mine", *, resume: bool = False, overwrite: bool = False) -> RunDirectory:
    """Check, lock and prepare the directory as a command does."""
    directory = RunDirectory(run, path)
    check(directory, resume=resume, overwrite=overwrite)
    lock = claim(directory)
    prepare(directory, CONFIGURED, resume=resume)
    os.close(lock)
    return directory


class TestNames:
    @pytest.mark.parametrize(
        "env_id", ["CartPole-v1", "module.of.mine:Env-v0", "ALE/Pong-v5", "-odd-", "x" * 200, "ünï-v0"]
    )
    def test_names_of_all_environments_are_valid_for_keys_and_directories(self, env_id: str) -> None:
        name = default_run_name(make_config(env_id=env_id))
        assert check_run_name(name) == name

    def test_two_runs_started_in_one_second_have_different_names(self) -> None:
        assert len({default_run_name(CONFIGURED) for _ in range(20)}) == 20

    def test_an_invalid_name_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="run name"):
            choose(CONFIGURED, "a/b", tmp_path, resume=False)


class TestChoose:
    def test_the_default_directory_follows_from_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert choose(CONFIGURED, "mine", None, resume=False) == RunDirectory("mine", tmp_path / "runs/mine")

    def test_the_directory_is_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert choose(CONFIGURED, "mine", Path("here"), resume=False).path == tmp_path / "here"

    def test_nothing_is_written(self, tmp_path: Path) -> None:
        choose(CONFIGURED, "mine", tmp_path / "here", resume=False)
        assert list(tmp_path.iterdir()) == []

    def test_a_run_is_resumed_by_its_directory_or_by_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        directory = prepared(tmp_path / "runs" / "mine")
        with pytest.raises(ConfigurationError, match="no checkpoint"):
            choose(CONFIGURED, None, directory.path, resume=True)
        (directory.path / "checkpoints").mkdir()
        (directory.path / "checkpoints" / "checkpoint-mine.pt").write_bytes(b"")
        with pytest.raises(ConfigurationError, match="no checkpoint"):
            choose(CONFIGURED, None, directory.path, resume=True)
        (directory.path / "checkpoints" / "checkpoint-000000001.pt").write_bytes(b"")
        assert choose(CONFIGURED, None, directory.path, resume=True) == directory
        assert choose(CONFIGURED, "mine", None, resume=True) == directory

    def test_a_run_under_another_name_is_not_resumed(self, tmp_path: Path) -> None:
        prepared(tmp_path / "here")
        with pytest.raises(ConfigurationError, match="holds run mine, not other"):
            choose(CONFIGURED, "other", tmp_path / "here", resume=True)

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_directory_without_a_run_is_not_resumed(self, tmp_path: Path, exists: bool) -> None:
        path = tmp_path if exists else tmp_path / "missing"
        with pytest.raises(ConfigurationError, match="no run to resume"):
            choose(CONFIGURED, None, path, resume=True)

    def test_resuming_needs_a_name_or_a_directory(self) -> None:
        with pytest.raises(ConfigurationError, match="--run-dir"):
            choose(CONFIGURED, None, None, resume=True)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": 3}', '{"run": "a/b"}', "null"])
    def test_a_damaged_identity_is_named(self, tmp_path: Path, text: str) -> None:
        RunFiles(tmp_path).identity.write_text(text)
        with pytest.raises(ConfigurationError):
            run_in(tmp_path)


class TestPrepare:
    def test_the_configuration_that_is_written_is_read_back_unchanged(self, tmp_path: Path) -> None:
        prepared(tmp_path / "here")
        assert load_toml(RunFiles(tmp_path / "here").config) == CONFIGURED

    def test_the_directory_knows_its_run(self, tmp_path: Path) -> None:
        prepared(tmp_path / "here")
        assert run_in(tmp_path / "here") == "mine"

    def test_missing_parents_are_made_and_an_empty_directory_is_used(self, tmp_path: Path) -> None:
        prepared(tmp_path / "a" / "b")
        (tmp_path / "empty").mkdir()
        prepared(tmp_path / "empty")

    def test_a_run_is_overwritten_only_on_request(self, tmp_path: Path) -> None:
        directory = prepared(tmp_path / "here")
        (directory.path / "metrics.csv").write_text("old")
        with pytest.raises(ConfigurationError, match="holds run mine: pass --resume, --overwrite"):
            prepared(tmp_path / "here", run="other")
        assert (directory.path / "metrics.csv").read_text() == "old"

    def test_overwrite_removes_the_earlier_run(self, tmp_path: Path) -> None:
        directory = prepared(tmp_path / "here")
        for name in ("metrics.csv", "used.json"):
            (directory.path / name).write_text("old")
        prepared(directory.path, run="other", overwrite=True)
        assert sorted(file.name for file in directory.path.iterdir()) == [
            "config.toml",
            "run.json",
            "run.lock",
        ]
        assert run_in(directory.path) == "other"

    def test_overwrite_keeps_files_of_the_user(self, tmp_path: Path) -> None:
        directory = prepared(tmp_path / "here")
        (directory.path / "notes.txt").write_text("mine")
        (directory.path / "checkpoints").mkdir()
        prepared(directory.path, overwrite=True)
        assert (directory.path / "notes.txt").read_text() == "mine"
        assert not (directory.path / "checkpoints").exists()

    def test_other_files_than_those_of_a_run_are_never_removed(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("years of work")
        with pytest.raises(ConfigurationError, match="other files than those of a run"):
            prepared(tmp_path, overwrite=True)
        assert (tmp_path / "thesis.tex").read_text() == "years of work"

    def test_a_resumed_run_keeps_its_files(self, tmp_path: Path) -> None:
        directory = prepared(tmp_path / "here")
        (directory.path / "metrics.csv").write_text("old")
        prepared(directory.path, resume=True)
        assert (directory.path / "metrics.csv").read_text() == "old"

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_file_in_the_directorys_place_is_refused_and_kept(
        self, tmp_path: Path, overwrite: bool
    ) -> None:
        file = tmp_path / "here"
        file.write_text("a file")
        with pytest.raises(ConfigurationError, match="choose another --run-dir"):
            prepared(file, overwrite=overwrite)
        assert file.read_text() == "a file"

    @pytest.mark.parametrize(("resume", "overwrite"), [(True, False), (False, True)])
    def test_the_directory_of_a_living_run_is_refused(
        self, tmp_path: Path, resume: bool, overwrite: bool
    ) -> None:
        directory = prepared(tmp_path / "here")
        lock = claim(directory)
        with pytest.raises(ConfigurationError, match="in use by a living run"):
            prepared(directory.path, resume=resume, overwrite=overwrite)
        os.close(lock)
        prepared(directory.path, resume=resume, overwrite=overwrite)

    def test_a_path_below_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("a file")
        with pytest.raises(ConfigurationError, match="choose another --run-dir"):
            prepared(tmp_path / "file" / "here")


def test_the_summary_is_one_json_object(tmp_path: Path) -> None:
    summary = make_summary(reason="target", settled_steps=3)
    write_summary(tmp_path, summary)
    assert json.loads(RunFiles(tmp_path).summary.read_text()) == to_json(summary)
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
