"""`dppo-redis bench speed`: environment steps per second, learning included, beside stable-baselines3.

The article's hyper-parameters for all (batch 2048, minibatch 256, 10 passes, learning rate 3e-4,
two 64x64 tanh networks, 8 environments), one process and one compute thread for the peer, measured
in turn in one run. Without the peer the product is measured alone.
"""

import statistics
import sys
from collections.abc import Sequence

from dppo_redis.errors import ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.peers.environments import STABLE_BASELINES3
from ops.bench.processes import stoppable
from ops.bench.runs import command_of, name_of, run, table

_ARTICLE = ["--ppo.update-epochs", "10", "--ppo.learning-rate", "3e-4", "--envs-per-actor", "8"]


def _peer(steps: int) -> float:
    return STABLE_BASELINES3.play("dummy", steps, target=None, seed=1).steps_per_s


def _ours(actors: int | None, steps: int) -> float:
    arguments = [*command_of(actors, "CartPole-v1"), *_ARTICLE, "--total-steps", str(steps)]
    return run(arguments).steps_per_s


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = BenchmarkParser(prog="dppo-redis bench speed", description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args(argv)
    kinds: list[int | None] = [None, *options.actors]
    peer: list[float] = []
    ours: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    is_installed = STABLE_BASELINES3.python() is not None
    if not is_installed:
        name = STABLE_BASELINES3.name
        print(f"{name} is not installed: {STABLE_BASELINES3.how_to_install()}", file=sys.stderr)
    with stoppable():
        for _ in range(options.repeats):
            if is_installed:
                peer.append(_peer(options.steps))
            for kind in kinds:
                ours[kind].append(_ours(kind, options.steps))
    base = statistics.median(peer or ours[None])
    rows = []
    if is_installed:
        rows.append(["stable-baselines3, 8 environments, one process", f"{base:,.0f}", "1.00"])
    for kind in kinds:
        rate = statistics.median(ours[kind])
        rows.append([f"dppo_redis, {name_of(kind)}", f"{rate:,.0f}", f"{rate / base:.2f}"])
    print(table(["", "steps/s, median", "ratio"], rows))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
