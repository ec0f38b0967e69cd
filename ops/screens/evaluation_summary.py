"""How the evaluations of a run went, for screens and summaries. Pure."""

from dppo_redis.protocol.report_fields import from_json
from dppo_redis.protocol.reports import Evaluation, EvaluatorReport


def cut_evaluation(report: EvaluatorReport) -> Evaluation | None:
    """The last evaluation where it was cut; None where it was not."""
    try:
        return from_json(Evaluation, report.unfinished) if report.unfinished else None
    except ValueError:
        return None


def last_evaluation(report: EvaluatorReport, newest: Evaluation | None) -> Evaluation | None:
    """What the last evaluation came to: None where it failed, marked where it was cut.

    `newest` is the newest complete one.
    """
    if report.error:
        return None
    return cut_evaluation(report) or newest


def describe_evaluation_problem(report: EvaluatorReport, newest: Evaluation | None) -> str:
    """What went wrong with the last evaluation, in a sentence; empty where nothing did.

    `newest` is the newest complete one.
    """
    if report.error:
        return f"the last evaluation failed: {report.error}; {_instead(newest)}"
    cut = cut_evaluation(report)
    if cut is not None:
        return describe_cut(cut, newest)
    if report.failures:
        return f"{report.failures} evaluations failed on the way; the last one is complete"
    return ""


def describe_all(report: EvaluatorReport, newest: Evaluation | None) -> tuple[str, ...]:
    """The same, and what else an evaluator complains of: a disk, Redis."""
    redis = f"the evaluator was {report.redis}" if report.redis else ""
    return tuple(text for text in (describe_evaluation_problem(report, newest), report.unkept, redis) if text)


def describe_cut(cut: Evaluation, newest: Evaluation | None) -> str:
    """What a cut evaluation means."""
    return (
        f"the last evaluation (update {cut.update}) was cut after {cut.episodes} of {cut.planned} episodes, "
        f"return {cut.return_mean:.1f}: it meets no target, and its policy is not kept as the best "
        f"(more time: --evaluation.limit-s, at the end of a run --evaluation.end-wait-s); "
        f"{_instead(newest)}"
    )


def describe_missing(report: EvaluatorReport, newest: Evaluation | None, update: int) -> str:
    """That a run has ended, at `update`, before its last weights were evaluated; empty where they were."""
    if newest is not None and newest.update >= update:
        return ""
    how_far = f" ({report.played} of {report.to_play} episodes had ended)" if report.playing else ""
    return f"the last weights were not evaluated in time{how_far}; {_instead(newest)}"


def waits_for(report: EvaluatorReport, end_wait_s: float) -> str:
    """What the end of a run waits for."""
    how_far = f": {report.played} of {report.to_play} episodes" if report.playing else ""
    return f"waiting for the last evaluation{how_far}, at most {end_wait_s:g} s"


def _instead(newest: Evaluation | None) -> str:
    if newest is None:
        return "no evaluation of this run is complete"
    return f"the last complete one is of update {newest.update} (return {newest.return_mean:.1f})"
