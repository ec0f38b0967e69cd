"""Reports: their fields in Redis and in files, and that each is declared once."""

import ast
import json
import re
import tokenize
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dppo_redis.protocol import reports
from dppo_redis.protocol.report_fields import (
    columns,
    curves,
    from_fields,
    from_json,
    from_whole_fields,
    names,
    to_fields,
    to_json,
)
from dppo_redis.protocol.reports import (
    BOOT,
    HOLDER,
    ActorReport,
    BestEvaluation,
    Control,
    Evaluation,
    EvaluatorReport,
    KeeperStatus,
    LearnerStatus,
    LedgerSummary,
    RunSummary,
    StalenessSummary,
    UpdateRecord,
)
from tests.factories import make_summary

ROOT = Path(__file__).parents[3]
REPORTS = [
    kind
    for kind in vars(reports).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == reports.__name__
]
EVALUATION = Evaluation(3, 2, 128, 130, 21.5, 0.5, 21.5, 20)
_SINCE_LATER = ("planned", "complete", "metrics")  # fields that earlier releases did not write


def nothing(kind: type[Any]) -> Any:
    return from_fields(kind, {})


class TestFields:
    def test_the_status_hash_has_these_fields_in_this_order(self) -> None:
        fields = to_fields(nothing(LearnerStatus), nothing(KeeperStatus))
        assert " ".join(fields) == (
            "state alarm warnings dropped_by_actor update trained_steps budget_steps target_return train_s "
            "steps_per_s steps_per_s_recent return_mean episodes staleness_mean staleness_recent "
            "staleness_max stale_share staleness_limit learner_wait_share checkpoint_update "
            "checkpoint_time save_failures save_error device first_update_time metrics trained stale "
            "duplicate refused lost settled_steps env_steps epoch version learner actors planned_actors "
            "missing actor_wait_share backlog_high "
            "rollout_steps entries_added backlog imbalance stream_bytes valve_bytes time"
        )

    def test_an_actors_hash_has_these_fields_in_this_order(self) -> None:
        assert " ".join(to_fields(ActorReport())) == (
            "boot version epoch pushes last_push steps fps wait_share refused ambiguous refused_full "
            "last_error deaths killed last_death vectorization step_ms rollout_steps rollout_steps_done "
            "rollout_s refused_metrics host pid place time"
        )

    def test_metrics_csv_has_these_columns_in_this_order(self) -> None:
        assert " ".join(names(UpdateRecord)) == (
            "update trained_steps settled_steps train_s return_mean episodes evaluation_return "
            "evaluation_steps staleness_mean staleness_max version wait_s update_s policy_loss value_loss "
            "entropy approx_kl clip_fraction explained_variance ratio_error learning_rate gradient_steps "
            "skipped_steps drift_ratio drift_kl drift_clip_fraction drift_effective_share "
            "drift_by_staleness outlier_observations outlier_rewards metrics"
        )

    def test_numbers_are_rounded_where_they_are_written_and_none_is_empty_text(self) -> None:
        status = LearnerStatus(**{**vars(nothing(LearnerStatus)), "train_s": 1.23456, "steps_per_s": 9.87})
        written = to_fields(status)
        assert (written["train_s"], written["steps_per_s"], written["return_mean"]) == (1.235, 9.9, "")
        assert status.train_s == 1.23456

    def test_json_is_read_back_and_what_is_none_is_refused(self) -> None:
        assert from_json(Evaluation, json.dumps(to_json(EVALUATION))) == EVALUATION
        for text in ("[]", "{}", "no", json.dumps({**to_json(EVALUATION), "version": "three"})):
            with pytest.raises(ValueError, match=r"Evaluation|JSON|Expecting|invalid"):
                from_json(Evaluation, text)

    def test_the_best_version_stays_where_an_evaluation_is_not_the_best(self) -> None:
        assert to_fields(EVALUATION, BestEvaluation(30.0, None))["best_return_mean"] == 30.0
        assert "best_version" not in to_fields(BestEvaluation(30.0, None))
        assert to_fields(BestEvaluation(30.0, 7)) == {"best_return_mean": 30.0, "best_version": 7}

    @pytest.mark.parametrize(
        "report",
        [
            EVALUATION,
            Control("stop", "target", 12),
            ActorReport(boot=1, fps=2.5, last_error="x", host="here"),
        ],
        ids=lambda report: type(report).__name__,
    )
    def test_written_fields_are_read_back(self, report: Any) -> None:
        stored = {name: str(value) for name, value in to_fields(report).items()}
        assert from_fields(type(report), stored) == report

    def test_a_curve_has_the_tag_of_its_field_and_none_has_no_curve(self) -> None:
        record = UpdateRecord(**{**vars(nothing(UpdateRecord)), "return_mean": 7.5})
        drawn = dict(curves(record))
        assert (drawn["return/training"], drawn["time/wait_s"]) == (7.5, 0.0)
        assert "policy/ratio_error" not in drawn


class TestWhatOthersWrote:
    @pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-1e400"])
    def test_a_field_that_is_no_number_is_read_as_zero_or_none(self, text: str) -> None:
        status = from_fields(LearnerStatus, {"update": text, "train_s": text, "return_mean": text})
        assert (status.update, status.train_s, status.return_mean) == (0, 0.0, None)
        assert from_fields(ActorReport, {"pushes": text}).pushes is None

    def test_a_field_that_is_missing_is_zero_empty_or_unknown(self) -> None:
        status = nothing(LearnerStatus)
        assert (status.update, status.state, status.target_return) == (0, "", None)

    def test_a_table_of_our_own_keeps_its_infinite_numbers(self) -> None:
        assert from_fields(UpdateRecord, {"drift_kl": "inf"}, finite=False).drift_kl == float("inf")
        assert from_fields(UpdateRecord, {"update": "inf"}, finite=False).update == 0

    @pytest.mark.parametrize("name", names(Evaluation))
    def test_an_evaluation_without_a_field_or_with_a_damaged_one_is_none(self, name: str) -> None:
        stored = {name: str(value) for name, value in to_fields(EVALUATION).items()}
        assert from_whole_fields(Evaluation, stored) == EVALUATION
        assert from_whole_fields(Evaluation, {**stored, name: "good"}) is None
        stored = {kept: text for kept, text in stored.items() if kept not in (name, "env_steps")}
        if name not in _SINCE_LATER:
            assert from_whole_fields(Evaluation, stored) is None

    def test_a_field_is_read_by_the_name_that_the_release_before_gave_it_and_written_with_both(self) -> None:
        stored = {name: str(value) for name, value in to_fields(EVALUATION).items()}
        assert stored["env_steps"] == stored["settled_steps"] == str(EVALUATION.settled_steps)
        del stored["settled_steps"]
        assert from_whole_fields(Evaluation, stored) == EVALUATION
        assert from_fields(Evaluation, stored) == EVALUATION
        assert from_json(Evaluation, json.dumps(to_json(EVALUATION)).replace("settled", "env")) == EVALUATION

    def test_an_evaluation_of_an_earlier_release_is_complete(self) -> None:
        cut = replace(EVALUATION, episodes=7, planned=20, complete=False)
        stored = {name: str(value) for name, value in to_fields(cut).items()}
        assert stored["complete"] == "0"
        assert from_whole_fields(Evaluation, stored) == cut
        old = {name: value for name, value in stored.items() if name not in _SINCE_LATER}
        assert from_whole_fields(Evaluation, old) == replace(cut, planned=0, complete=True)
        values = {name: value for name, value in to_json(cut).items() if name not in _SINCE_LATER}
        assert from_json(Evaluation, json.dumps(values)) == replace(cut, planned=0, complete=True)
        assert from_json(Evaluation, json.dumps(to_json(cut))) == cut


class TestSummary:
    def test_a_serial_run_has_no_values_of_a_fleet_and_a_fleet_has_them_in_this_order(self) -> None:
        assert " ".join(to_json(make_summary(refused=0))) == (
            "reason settled_steps env_steps trained_steps wall_s train_s first_update_s end_s steps_per_s "
            "updates return_mean return_episodes evaluation evaluations target_step "
            "train_return_mean metrics learner_wait_share refused warnings run_dir"
        )
        fleet = to_json(
            make_summary(
                version=1,
                staleness=StalenessSummary(0.5, 1, 4),
                ledger=LedgerSummary(*range(8)),
                actors=2,
                actor_wait_share=0.123456,
            )
        )
        assert " ".join(fleet) == (
            "reason settled_steps env_steps trained_steps wall_s train_s first_update_s end_s steps_per_s "
            "updates version return_mean return_episodes evaluation evaluations target_step "
            "train_return_mean metrics staleness ledger actors actor_wait_share learner_wait_share "
            "warnings run_dir"
        )
        assert fleet["staleness"] == {"mean": 0.5, "max": 1, "limit": 4}
        assert (
            " ".join(fleet["ledger"])
            == "entries_added trained stale duplicate refused lost backlog imbalance"
        )
        assert (fleet["actor_wait_share"], fleet["target_step"]) == (0.1235, None)

    def test_it_is_read_back_also_where_an_earlier_release_wrote_less(self) -> None:
        summary = make_summary(
            return_mean=21.5, evaluation=EVALUATION, staleness=StalenessSummary(0.5, 1, 4), warnings=("full",)
        )
        assert from_json(RunSummary, json.dumps(to_json(summary))) == summary
        values = to_json(make_summary())
        del values["evaluation"], values["warnings"]
        assert from_json(RunSummary, json.dumps(values)) == make_summary()
        with pytest.raises(ValueError, match="RunSummary"):
            from_json(RunSummary, json.dumps({**values, "updates": None}))


# Each field is declared once


def meanings() -> dict[tuple[str, str], str]:
    """The comment beside each field of a report, by report and field."""
    with Path(reports.__file__).open("rb") as source:
        comments = {
            token.start[0]: token.string.removeprefix("# ")
            for token in tokenize.tokenize(source.readline)
            if token.type == tokenize.COMMENT
        }
    return {
        (kind.name, field.target.id): comments.get(field.lineno, "")
        for kind in ast.parse(Path(reports.__file__).read_text()).body
        if isinstance(kind, ast.ClassDef)
        for field in kind.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def test_every_field_of_a_report_has_its_meaning_beside_it() -> None:
    plain = {"LedgerSummary", "StalenessSummary", "RunStatus"}  # their docstring says it
    assert [name for name, meaning in meanings().items() if not meaning and name[0] not in plain] == []


# Fields of weights, rollouts, checkpoints and files that are called like one of a report
ALSO_ELSEWHERE = {
    *(
        "version",
        "epoch",
        "update",
        "steps",
        "boot",
        "actor",
        "run",
        "host",
        "pid",
        "fields",
        "time",
        "reason",
    ),
    *("trained", "refused", "interval", "state", "ledger", "mean", "evaluation"),
}


def read_by_name(source: str) -> set[str]:
    """Names that stand as text where a mapping is read: `x["name"]`, `x.get("name")`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keys = node.args if node.func.attr in ("get", "hget", "hmget") else []
        found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def test_no_field_of_a_report_is_read_by_its_name_as_text() -> None:
    assert read_by_name('a["update"]; b.get("alarm", 0); client.hget(key, "boot")') == {
        "update",
        "alarm",
        "boot",
    }
    declared = {column.name for kind in REPORTS for column in columns(kind)} - ALSO_ELSEWHERE
    assert {"alarm", "return_mean", "staleness_mean", "last_error", "wait_share"} < declared
    found = {
        file.relative_to(ROOT).as_posix(): names
        for folder in ("dppo_redis", "workers", "learner", "ops")
        for file in (ROOT / folder).rglob("*.py")
        if (names := read_by_name(file.read_text(encoding="utf-8")) & declared)
    }
    assert found == {}


def test_the_registry_knows_a_holder_by_fields_that_an_actor_reports() -> None:
    assert {*HOLDER, BOOT} < {field.name for field in fields(ActorReport)}


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("status", (LearnerStatus, KeeperStatus)),
        ("evaluation", (Evaluation, EvaluatorReport)),
        ("control", (Control,)),
    ],
)
def test_the_operators_page_asks_redis_only_for_fields_that_are_there(
    key: str, kinds: tuple[type[Any], ...]
) -> None:
    page = (ROOT / "ops" / "README.md").read_text(encoding="utf-8")
    asked = re.findall(rf"\$R H(?:M?GET|SET) \$K:{key} ([a-z_ ]+)", page)
    assert {name for words in asked for name in words.split()} - {"state", "pause", "stop"} <= {
        name for kind in kinds for name in names(kind)
    }
    assert key != "status" or len(asked) > 3


def described(*kinds: type[Any]) -> str:
    """Rows of a table: field, unit and meaning, from the declaration."""
    return "\n".join(
        f"| `{column.name}` | {column.unit.symbol} | {meanings()[kind.__name__, column.name]} |"
        for kind in kinds
        for column in columns(kind)
    )


def test_the_operators_page_has_every_field_of_the_status_with_its_unit_and_meaning() -> None:
    """To renew it, put what `described` returns below the table's head."""
    page = (ROOT / "ops" / "README.md").read_text(encoding="utf-8")
    assert f"| --- | --- | --- |\n{described(LearnerStatus, KeeperStatus)}\n\n" in page
