"""Runs of the product with the hyper-parameters of its peers, reported as the peers report theirs."""

from collections.abc import Sequence

from dppo_redis.protocol.reports import RunSummary
from ops.bench.peers.environments import Outcome
from ops.bench.runs import run

_ARTICLE = ("--ppo.update-epochs", "10", "--ppo.learning-rate", "3e-4")


def play(words: Sequence[str], steps: int, target: float, seed: int) -> Outcome:
    """Run `dppo-redis WORDS` until the mean of the last 100 training returns reaches the target."""
    goal = ("--target-return", str(target), "--target-on", "train", "--total-steps", str(steps))
    return outcome_of(run([*words, *_ARTICLE, *goal, "--seed", str(seed), "--evaluation.enabled", "false"]))


def outcome_of(summary: RunSummary) -> Outcome:
    """What a run came to."""
    score = summary.train_return_mean
    return Outcome(
        steps=summary.trained_steps,
        seconds=summary.train_s,
        steps_per_s=summary.steps_per_s,
        score=float("nan") if score is None else score,
        target_s=summary.train_s if summary.reason == "target" else None,
        target_steps=summary.target_step,
        staleness=None if summary.staleness is None else summary.staleness.mean,
    )
