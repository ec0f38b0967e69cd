"""What somebody should know of an update, as warnings; learner and serial baseline alike. Pure."""

from collections.abc import Iterator

from learner.ppo.update import UpdateReport

RATIO_TOLERANCE = 1e-3


def warnings_of(report: UpdateReport) -> Iterator[tuple[str, str]]:
    """(kind, text) of what is wrong with an update.

    Actors and learner disagree about the same weights, or a gradient is not finite.
    """
    if report.skipped_steps:
        steps = report.skipped_steps + report.gradient_steps
        yield (
            "skipped",
            f"{report.skipped_steps} of {steps} gradient steps were skipped: not finite, "
            "or without a valid row",
        )
    error = report.ratio_error
    if error is not None and error > RATIO_TOLERANCE:
        yield (
            "ratio",
            "actors and learner disagree about the probabilities of fresh actions by a factor of "
            f"up to {1 + error:.4f}: are all machines on one release?",
        )
