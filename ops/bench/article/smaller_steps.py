"""A lower learning rate (3e-4 -> 1e-4) and clip range (0.2 -> 0.1) after distributing.

A fleet of four actors with 10 passes, once with fresh weights (a publication for each update) and once with
old ones (every 10 updates). The article lowers both against oscillation, so the table has the largest fall
of the return.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from ops.bench.article.findings import Finding
from ops.bench.article.runs_compared import (
    HEADER,
    Played,
    common_time,
    play_all,
    returns_at_common_time,
    rows_of,
    samples_of,
)

REPEATS = 5
STEPS = 150_000
RETURN = 200.0
EVERY = (1, 10)
STEPS_SIZES = {  # name -> learning rate and clip range
    "1e-3 and 0.2 (default)": ("1e-3", "0.2"),
    "3e-4 and 0.2": ("3e-4", "0.2"),
    "1e-4 and 0.1": ("1e-4", "0.1"),
}


def measure(repeats: int) -> Finding:
    """All step sizes, with fresh and with old weights."""
    kinds = {
        f"{name}, published every {every}": [
            *("train", "CartPole-v1", "--actors", "4", "--total-steps", str(STEPS)),
            *("--ppo.update-epochs", "10", "--ppo.learning-rate", rate, "--ppo.clip-epsilon", clip),
            *("--publish-every", str(every), "--max-staleness", str(every + 4)),
        ]
        for every in EVERY
        for name, (rate, clip) in STEPS_SIZES.items()
    }
    found = play_all(kinds, repeats)
    rows = [[*row, _fall(found, row[0])] for row in rows_of(found, RETURN)]
    remark = f"The same time is {common_time(found):.1f} s of training, the return {RETURN:g}."
    ratios = _ratios(found)
    return Finding([*HEADER, "largest fall"], rows, ratios, samples_of(found, RETURN), remark)


def _fall(found: Mapping[str, Sequence[Played]], name: object) -> str:
    return f"{median(one.largest_fall for one in found[str(name)]):.0f}"


def _ratios(found: Mapping[str, Sequence[Played]]) -> dict[str, list[float]]:
    """Returns at the same time with the lower settings, by those with the higher ones."""
    at_time = returns_at_common_time(found)
    _, higher, lower = STEPS_SIZES
    return {
        f"return at the same time, {lower} by {higher}, published every {every}": [
            own / max(1.0, theirs)
            for own, theirs in zip(
                at_time[f"{lower}, published every {every}"],
                at_time[f"{higher}, published every {every}"],
                strict=True,
            )
        ]
        for every in EVERY
    }
