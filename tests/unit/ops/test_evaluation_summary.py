"""Evaluations on screens and in summaries, those of the serial baseline, and runs without a complete one."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import Control, Evaluation, EvaluatorReport
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.run_status import RunStatus
from ops.commands.evaluate import main as evaluate
from ops.commands.serial import main as serial
from ops.commands.status import status_json
from ops.options import SerialOptions, TrainOptions, read_options
from ops.screens.evaluation_summary import (
    describe_evaluation_problem,
    describe_missing,
    describe_wait,
    last_evaluation,
)
from ops.screens.tables import make_console
from ops.screens.view import render
from ops.serial import Serial, make_serial
from tests.factories import make_config, spaces_of

WHOLE = Evaluation(3, 2, 128, 130, 21.5, 0.5, 21.5, 20, planned=20)
CUT = replace(WHOLE, version=9, update=8, return_mean=99.0, episodes=7, complete=False)


def report(**known: Any) -> EvaluatorReport:
    return EvaluatorReport(**known)


def cut_report() -> EvaluatorReport:
    return report(evaluations=1, unfinished=json.dumps(to_json(CUT)))


def status(evaluator: EvaluatorReport, evaluation: Evaluation | None = WHOLE) -> RunStatus:
    return RunStatus("run", {}, Control("run", "", None), Ledger(), evaluation, {}, 0.0, evaluator)


def test_the_text_about_a_cut_evaluation_names_its_limits_and_the_last_complete_one() -> None:
    text = describe_evaluation_problem(cut_report(), WHOLE)
    assert "(update 8) was cut after 7 of 20 episodes" in text
    assert "the last complete one is of update 2 (return 21.5)" in text
    assert "no evaluation of this run is complete" in describe_evaluation_problem(cut_report(), None)


def test_a_failed_last_evaluation_is_none_and_a_cut_one_is_incomplete() -> None:
    assert last_evaluation(report(evaluations=1), WHOLE) == WHOLE
    assert last_evaluation(cut_report(), WHOLE) == CUT
    assert last_evaluation(report(error="step raised"), WHOLE) is None
    assert last_evaluation(report(unfinished="{"), WHOLE) == WHOLE


def test_a_failed_evaluation_is_a_warning_and_a_complete_one_is_not() -> None:
    assert "the last evaluation failed: step raised" in describe_evaluation_problem(
        report(error="step raised"), WHOLE
    )
    assert "2 earlier evaluations failed" in describe_evaluation_problem(report(failures=2), WHOLE)
    assert describe_evaluation_problem(report(evaluations=3), WHOLE) == ""


def test_last_weights_without_an_evaluation_are_a_warning() -> None:
    assert describe_missing(report(), WHOLE, update=2) == ""
    text = describe_missing(report(playing=True, played=3, to_play=20), WHOLE, update=9)
    assert "not evaluated in time (3 of 20 episodes had ended)" in text
    assert "no evaluation of this run is complete" in describe_missing(report(), None, update=9)


def test_the_screen_says_that_the_end_waits_for_the_evaluation() -> None:
    playing = report(playing=True, played=7, to_play=20)
    assert describe_wait(playing, 10.0) == "waiting for the last evaluation: 7 of 20 episodes, at most 10 s"
    assert describe_wait(report(), 2.5) == "waiting for the last evaluation, at most 2.5 s"


def test_scripts_read_counts_and_warnings_at_the_top_of_the_status() -> None:
    shown = status_json(status(cut_report()))
    assert (shown["evaluations"], shown["evaluation"]["complete"], shown["evaluation"]["episodes"]) == (
        1,
        False,
        7,
    )
    assert any("was cut after 7 of 20" in text for text in shown["warnings"])
    assert status_json(status(report(error="no licence")))["evaluation"] is None


def test_a_disk_and_a_redis_that_refuse_the_evaluator_are_warnings_beside_a_cut_evaluation() -> None:
    refused = replace(cut_report(), unkept="cannot keep the best policy: no room", redis="waiting to report")
    shown = status_json(status(refused))["warnings"]
    assert [text.split(":")[0] for text in shown[1:]] == [
        "cannot keep the best policy",
        "the evaluator was waiting to report",
    ]
    written = io.StringIO()
    make_console(written).print(render(status(refused)))
    assert "! cannot keep the best policy: no room" in written.getvalue()


def run_serial(tmp_path: Path, env_kwargs: dict[str, Any], **evaluation: Any) -> Serial:
    config = make_config(
        env_id="tests.envs:ShortAndGood-v0",
        env_kwargs=env_kwargs,
        envs_per_actor=2,
        rollout_steps=4,
        total_steps=16,
        ppo={"batch_steps": 8, "minibatch_size": 8},
        evaluation={"episodes": 8, **evaluation},
    )
    planned = plan(config, spaces_of(config), serial=True)
    made = make_serial(planned, tmp_path, make_console(io.StringIO()), StopRequest())
    made.run()
    made.close()
    return made


def test_a_serial_run_counts_its_evaluations_and_keeps_the_best_policy(tmp_path: Path) -> None:
    summary = run_serial(tmp_path, {}).summary()
    assert summary.evaluations == 2
    assert summary.evaluation is not None
    assert (summary.evaluation.complete, summary.return_episodes, summary.warnings) == (True, 8, ())
    assert RunFiles(tmp_path).best_policy.exists()


def test_a_serial_run_whose_evaluations_are_cut_says_so_and_keeps_no_policy(tmp_path: Path) -> None:
    limits = {"limit_s": 0.5, "end_wait_s": 0.2}
    summary = run_serial(tmp_path, {"length": 10_000, "ms": 5}, **limits).summary()
    assert (summary.reason, summary.evaluations, summary.return_mean) == ("total_steps", 0, None)
    assert summary.evaluation is not None
    assert (summary.evaluation.complete, summary.evaluation.return_mean) == (False, 10)
    assert any("was cut after" in text for text in summary.warnings)
    assert not RunFiles(tmp_path).best_policy.exists()


def test_a_cut_evaluation_meets_no_target_of_a_serial_run(tmp_path: Path) -> None:
    config = {"limit_s": 0.5, "end_wait_s": 0.2}
    made = run_serial(tmp_path, {"length": 10_000, "ms": 5}, **config)
    made.training.evaluation = CUT
    made.training.goal = replace(made.training.goal, target_return=1.0)
    made.training.judge(made.training.progress.trained_steps)
    assert made.training.finished is not None
    assert made.training.finished.reason == "total_steps"


def test_without_evaluations_a_run_ends_and_its_last_checkpoint_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate` plays the best policy by default, and this run has none."""
    small = (
        "--envs-per-actor",
        "2",
        "--ppo.batch-steps",
        "32",
        "--total-steps",
        "64",
        "--network.hidden",
        "8",
    )
    arguments = ("tests.envs:Terminating-v0", *small, "--evaluation.enabled", "false", "--json")
    assert serial([*arguments, "--run-dir", str(tmp_path / "run")]) == ExitStatus.DONE
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["evaluation"], summary["evaluations"], summary["warnings"]) == (None, 0, [])
    assert evaluate([str(tmp_path / "run"), "--episodes", "3", "--json"]) == ExitStatus.DONE
    printed = capsys.readouterr()
    played = json.loads(printed.out.splitlines()[-1])
    assert (played["checkpoint"], played["episodes"]) == ("last", 3)
    assert "this run has no best policy" in printed.err


@pytest.mark.parametrize("kind", [SerialOptions, TrainOptions])
def test_flags_configure_evaluations(kind: Any) -> None:
    def evaluation_settings(*words: str) -> Any:
        return read_options(kind, ["X-v0", *words], "dppo-redis").config.evaluation

    assert evaluation_settings().enabled
    assert evaluation_settings().wrappers is None
    assert not evaluation_settings("--evaluation.enabled", "false").enabled
    assert evaluation_settings("--evaluation.enabled", "True").enabled
    assert evaluation_settings("--evaluation.wrappers").wrappers == ()
    assert evaluation_settings("--evaluation.wrappers", "A(b=1)", "m:B", "--json").wrappers == (
        "A(b=1)",
        "m:B",
    )
    assert evaluation_settings("--evaluation.environments", "3").environments == 3
    with pytest.raises(ConfigurationError, match=r"true or false"):
        evaluation_settings("--evaluation.enabled", "perhaps")


def test_a_target_on_evaluations_needs_evaluations() -> None:
    off = {"enabled": False}
    with pytest.raises(ConfigurationError, match=r"evaluation.enabled is false: .*--target-on train"):
        make_config(target_return=1.0, evaluation=off)
    make_config(target_return=1.0, target_on="train", evaluation=off)
    make_config(evaluation=off)
