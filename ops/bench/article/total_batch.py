"""A constant total batch while workers grow, against a batch that grows with them.

The product keeps `batch_steps` and lets rollouts get shorter. The alternative gives each actor the rollout
that one actor alone would have, so that the batch is 2,048 steps for each actor.
"""

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

REPEATS = 5
STEPS = 100_000
RETURN = 200.0
ACTORS = (4, 8)
BATCH = 2048


def measure(repeats: int) -> Finding:
    """One actor, and larger fleets with both batches."""
    sizes = {"1 actor": (1, BATCH)}
    for actors in ACTORS:
        sizes[f"{actors} actors, batch {BATCH}"] = actors, BATCH
        sizes[f"{actors} actors, batch {actors * BATCH}"] = actors, actors * BATCH
    kinds = {
        name: [
            *("train", "CartPole-v1", "--actors", str(actors), "--ppo.batch-steps", str(batch)),
            *("--total-steps", str(STEPS)),
        ]
        for name, (actors, batch) in sizes.items()
    }
    found = play_all(kinds, repeats)
    at_time, speed = returns_at_common_time(found), rates(found)
    ratios: dict[str, list[float]] = {}
    for actors in ACTORS:
        constant, growing = f"{actors} actors, batch {BATCH}", f"{actors} actors, batch {actors * BATCH}"
        pairs = zip(at_time[constant], at_time[growing], strict=True)
        ratios[f"return at the same time, {constant} by a growing batch"] = [
            a / max(1.0, b) for a, b in pairs
        ]
        pairs = zip(speed[constant], speed[growing], strict=True)
        ratios[f"steps/s, {constant} by a growing batch"] = [a / b for a, b in pairs]
    remark = f"The same time is {common_time(found):.1f} s of training, the return {RETURN:g}."
    return Finding(HEADER, rows_of(found, RETURN), ratios, samples_of(found, RETURN), remark)
