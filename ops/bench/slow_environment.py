"""`dppo-redis bench slow_environment`: how a fleet shares its time when a step takes 5 ms.

CartPole with a sleep in each step. Sampling is the bottleneck here, so actors should hardly wait.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from dppo_redis.errors import ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import run, table

STEP_MS = 5.0
ENV_ID = "ops.bench.slow_environment:SlowCartPole-v1"


class SlowCartPole(CartPoleEnv):
    """CartPole whose step takes `step_ms` longer."""

    def __init__(self, step_ms: float = STEP_MS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._step_s = step_ms / 1000

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """A step of CartPole, later."""
        time.sleep(self._step_s)
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, reward, terminated, truncated, info


gymnasium.register(ENV_ID.partition(":")[2], entry_point=SlowCartPole, max_episode_steps=500)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = BenchmarkParser(prog="dppo-redis bench slow_environment", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args(argv)
    rows = []
    for actors in options.actors:
        result = run(["train", ENV_ID, "--actors", str(actors), "--total-steps", str(options.steps)])
        assert result.staleness is not None  # of a fleet
        assert result.ledger is not None
        ceiling = actors * 1000 / STEP_MS
        rows.append(
            [
                actors,
                f"{result.steps_per_s:,.0f}",
                f"{result.steps_per_s / ceiling:.2f}",
                f"{100 * (result.actor_wait_share or 0.0):.1f} %",
                f"{result.staleness.mean:.2f}",
                f"{result.ledger.stale} of {result.ledger.entries_added}",
            ]
        )
    header = ["actors", "steps/s", "of the ceiling", "actors wait", "mean staleness", "stale rollouts"]
    print(table(header, rows))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
