"""Describes the results and failures of a run's evaluations, for screens and summaries. Pure."""

from dppo_redis.protocol.report_fields import from_json
from dppo_redis.protocol.reports import Evaluation, EvaluatorReport


def cut_evaluation(report: EvaluatorReport) -> Evaluation | None:
    """The last evaluation if its time limit ended it early, else None."""
    try:
        return from_json(Evaluation, report.unfinished) if report.unfinished else None
    except ValueError:
        return None


def last_evaluation(report: EvaluatorReport, newest: Evaluation | None) -> Evaluation | None:
    """The result of the last evaluation: None if it failed, incomplete if its time limit ended it.

    `newest` is the newest complete evaluation.
    """
    if report.error:
        return None
    return cut_evaluation(report) or newest


def describe_evaluation_problem(report: EvaluatorReport, newest: Evaluation | None) -> str:
    """The problem of the last evaluation as a sentence; empty if it had none.

    `newest` is the newest complete evaluation.
    """
    if report.error:
        return f"the last evaluation failed: {report.error}; {_last_complete(newest)}"
    cut = cut_evaluation(report)
    if cut is not None:
        return describe_cut(cut, newest)
    if report.failures:
        return f"{report.failures} earlier evaluations failed; the last one is complete"
    return ""


def describe_all(report: EvaluatorReport, newest: Evaluation | None) -> tuple[str, ...]:
    """All problems of the evaluator: of its last evaluation, of the disk, and of Redis."""
    redis = f"the evaluator was {report.redis}" if report.redis else ""
    return tuple(text for text in (describe_evaluation_problem(report, newest), report.unkept, redis) if text)


def describe_cut(cut: Evaluation, newest: Evaluation | None) -> str:
    """Describe a cut evaluation and its consequences for the run."""
    return (
        f"the last evaluation (update {cut.update}) was cut after {cut.episodes} of {cut.planned} episodes, "
        f"return {cut.return_mean:.1f}: it meets no target, and its policy is not kept as the best "
        f"(more time: --evaluation.limit-s, at the end of a run --evaluation.end-wait-s); "
        f"{_last_complete(newest)}"
    )


def describe_missing(report: EvaluatorReport, newest: Evaluation | None, update: int) -> str:
    """The warning that a run ended at `update` without an evaluation of its last weights; "" if there was
    one."""
    if newest is not None and newest.update >= update:
        return ""
    progress = f" ({report.played} of {report.to_play} episodes had ended)" if report.playing else ""
    return f"the last weights were not evaluated in time{progress}; {_last_complete(newest)}"


def describe_wait(report: EvaluatorReport, end_wait_s: float) -> str:
    """The line that says that a run's end waits for the last evaluation."""
    progress = f": {report.played} of {report.to_play} episodes" if report.playing else ""
    return f"waiting for the last evaluation{progress}, at most {end_wait_s:g} s"


def _last_complete(newest: Evaluation | None) -> str:
    if newest is None:
        return "no evaluation of this run is complete"
    return f"the last complete one is of update {newest.update} (return {newest.return_mean:.1f})"
