"""Publishing weights every 1, 2, 5 and 10 updates: "over 20 % faster" at 5 to 10?

Two networks: the default one (19 KB of weights) with the defaults of a fleet of two actors; and 16 MB of
weights with one gradient step for each update of 256 steps, which makes publications as dear as they can
be. Nothing is dropped: the staleness limit grows with the distance between publications.
"""

from collections.abc import Sequence

from ops.bench.article.findings import Finding
from ops.bench.article.runs_compared import (
    HEADER,
    common_time,
    play_all,
    rates,
    returns_at_common_time,
    rows_of,
    samples_of,
)
from ops.bench.rounds import ratios_to

REPEATS, LARGE_REPEATS = 5, 3
EVERY = (1, 2, 5, 10)
STEPS, LARGE_STEPS = 100_000, 5_120
RETURN, LARGE_RETURN = 200.0, 25.0
_LARGE = (
    *("--network.hidden", "2000", "2000", "--ppo.batch-steps", "256", "--ppo.minibatch-size", "256"),
    *("--ppo.update-epochs", "1", "--ppo.learning-rate", "1e-4"),
)


def measure_small(repeats: int) -> Finding:
    """The default network."""
    return _measure(repeats, STEPS, (), RETURN)


def measure_large(repeats: int) -> Finding:
    """A network of 16 MB."""
    return _measure(repeats, LARGE_STEPS, _LARGE, LARGE_RETURN)


def _measure(repeats: int, steps: int, more: Sequence[str], wanted: float) -> Finding:
    kinds = {
        _name(every): [
            *("train", "CartPole-v1", "--actors", "2", "--total-steps", str(steps), *more),
            *("--publish-every", str(every), "--max-staleness", str(every + 4)),
        ]
        for every in EVERY
    }
    found = play_all(kinds, repeats)
    base = _name(1)
    ratios = {f"steps/s, {k} by {base}": v for k, v in ratios_to(base, rates(found)).items()}
    at_time = returns_at_common_time(found)
    if all(min(values) > 0 for values in at_time.values()):
        ratios |= {f"return at the same time, {k} by {base}": v for k, v in ratios_to(base, at_time).items()}
    remark = f"The same time is {common_time(found):.1f} s of training, the return {wanted:g}."
    return Finding(HEADER, rows_of(found, wanted), ratios, samples_of(found, wanted), remark)


def _name(every: int) -> str:
    return "every update" if every == 1 else f"every {every} updates"
