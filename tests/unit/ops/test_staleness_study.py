"""The study of the cost of old data."""

import dataclasses
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.bench.menu import BENCHMARKS, main
from ops.bench.staleness import command
from ops.bench.staleness.report import MARKER, write_report
from ops.bench.staleness.trials import AGES, CORRECTIONS, STEPS, Outcome, Trial, outcomes_in, plan


def invented(trial: Trial) -> Outcome:
    return Outcome(trial, 100.0 * trial.seed, 7.0, 1.0, 0.5, 0.25, 3.0)


def test_no_trial_is_planned_twice_and_every_age_meets_every_correction() -> None:
    trials = plan([1, 2])
    assert len(trials) == len(set(trials))
    for env_id in STEPS:
        met = {(trial.age, trial.correction) for trial in trials if trial.env_id == env_id}
        assert met >= {(age, correction) for age in AGES if age for correction in CORRECTIONS}


def test_an_interrupted_study_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a trial of one or two updates is missing."""
    short = Trial("CartPole-v1", steps=2048, seed=2, age=1)
    monkeypatch.setattr(
        command, "plan", lambda seeds: [dataclasses.replace(short, seed=seed) for seed in seeds]
    )
    results, output = tmp_path / "some" / "results.jsonl", tmp_path / "out"
    outcomes_in(results).append(invented(dataclasses.replace(short, seed=1)))
    before = results.read_text()
    arguments = ["staleness", "--seeds", "1", "2", "--results", str(results), "--output", str(output)]
    for _ in range(2):
        assert main(arguments) == ExitStatus.DONE
        assert results.read_text().startswith(before)
        assert [outcome.trial.seed for outcome in outcomes_in(results).read()] == [1, 2]
    played = outcomes_in(results).read()[1]
    assert played.trial == short
    assert played.train_return > 5
    assert 0 <= played.staleness < 1


def test_the_report_holds_means_and_keeps_text_of_a_person(tmp_path: Path) -> None:
    outcomes = [invented(trial) for trial in plan([1, 2])]
    report = write_report(outcomes[:100], tmp_path)
    report.write_text("# Mine\n\nWhat follows from it.\n\n" + MARKER + "\nobsolete")
    text = write_report(outcomes, tmp_path).read_text()
    assert text.startswith("# Mine\n\nWhat follows from it.\n\n" + MARKER)
    assert "obsolete" not in text
    assert "| V-trace | 150 [100, 200] | 150 [100, 200] |" in text
    assert "| - |" not in text
    assert (tmp_path / "figures" / "staleness.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_nothing_and_an_unknown_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no results"):
        main(["staleness", "--report", "--results", str(tmp_path / "none.jsonl")])
    with pytest.raises(ConfigurationError, match="there are: scores, staleness"):
        main(["velocity"])


def test_every_benchmark_is_listed_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitStatus.CONFIGURATION
    listed = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in listed] == list(BENCHMARKS)
    for name in BENCHMARKS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code in (0, None)
        assert f"usage: dppo-redis bench {name} " in capsys.readouterr().out
