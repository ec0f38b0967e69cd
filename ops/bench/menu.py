"""`dppo-redis bench NAME`: finds the benchmark; each has a module of its own."""

import importlib
import sys
from collections.abc import Sequence

from dppo_redis.errors import ConfigurationError, ExitStatus

BENCHMARKS = {
    "scores": ("ops.bench.scores.command", "what the recipes in ops/runs reach, serial and distributed"),
    "staleness": (
        "ops.bench.staleness.command",
        "what stale data cost, and what helps against it",
    ),
    "cartpole": ("ops.bench.cartpole", "steps and seconds until CartPole-v1 is solved"),
    "continuous": ("ops.bench.continuous", "continuous control: InvertedPendulum-v5 with two actors"),
    "slow_environment": ("ops.bench.slow_environment", "how a fleet shares its time when a step takes 5 ms"),
    "uneven": ("ops.bench.uneven.command", "what waiting for slow steps costs, with and without lock step"),
    "speed": ("ops.bench.speed", "environment steps per second, beside stable-baselines3"),
    "solve": ("ops.bench.solve", "seconds from the command until CartPole-v1 is solved, beside a peer"),
    "peers": ("ops.bench.peers.command", "other PPO implementations beside ours: steps/s, time to 475"),
    "article": ("ops.bench.article.command", "the claims of the article behind this product, measured"),
    "gradient": ("ops.bench.gradient", "a gradient step by hand beside autograd's; an update's parts"),
    "actor": ("ops.bench.actor", "a vector step of an actor beside a bare loop over its environments"),
    "start": ("ops.bench.start", "time to the first update, and from the end to the prompt"),
    "scale": (
        "ops.bench.scale.command",
        "10 to 1,000 actors on one Redis: delivery, latency, status, ledger",
    ),
    "transport": ("ops.bench.transport.command", "what the guarantees cost: rollouts/s beside a bare loop"),
    "publication": (
        "ops.bench.scale.publication",
        "what a publication of large weights costs, by number of actors",
    ),
    "sizing": ("ops.bench.sizing", "the rate of a fleet by the formula of docs/sizing.md, and as measured"),
    "hostile": ("ops.bench.hostile", "what broken payloads cost the learner"),
    "failover": ("ops.bench.failover", "how soon training resumes when the primary Redis fails"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, BENCHMARKS))
        lines = [f"  {name:<{width}}  {text}" for name, (_, text) in BENCHMARKS.items()]
        print("usage: dppo-redis bench NAME ...\n\n" + "\n".join(lines))
        return ExitStatus.DONE if arguments else ExitStatus.CONFIGURATION
    benchmark = BENCHMARKS.get(arguments[0])
    if benchmark is None:
        raise ConfigurationError(f"no benchmark {arguments[0]!r}; there are: {', '.join(BENCHMARKS)}")
    return int(importlib.import_module(benchmark[0]).main(arguments[1:]))
