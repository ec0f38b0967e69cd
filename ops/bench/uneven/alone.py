"""One environment alone, and the memory that each further environment of an actor takes.

`python -m ops.bench.uneven.alone KIND OPEN COUNT` prints the memory, in MB, of a process whose collector has
COUNT environments, the processes of the environments included.
"""

import sys
import time
from pathlib import Path

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_single
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import plan
from dppo_redis.protocol.spec import EnvironmentSource, source_of
from dppo_redis.service.descendants import descendants
from ops.bench.uneven.environment import ENV_ID, EXPECTED_S, UnevenCartPole
from workers.build import build_collector


def rate_alone(seconds: float) -> float:
    """Steps/s of one environment in a bare loop.

    The pauses of a few seconds vary by some per cent in their sum. So the mean pause is the expected one, and
    all other time is measured.
    """
    env = make_single(EnvironmentSource(ENV_ID, {}, ()))
    inner = env.unwrapped
    assert isinstance(inner, UnevenCartPole)
    env.action_space.seed(0)
    env.reset(seed=0)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        steps += 1
        if terminated or truncated:
            env.reset()
    rest_s = (time.perf_counter() - began - inner.paused_s) / steps
    env.close()
    return 1 / (EXPECTED_S + rest_s)


def memory_mb(kind: str, most_open: int, count: int) -> float:
    """Proportional set size of this process and its descendants with `count` environments."""
    config = RunConfig.model_validate(
        {"env_id": ENV_ID, "envs_per_actor": count, "vectorization": kind, "open_rollouts": most_open}
    )
    description = plan(config, inspect(source_of(config), use_mask=False), serial=False).description
    collector = build_collector(description, None, slot=0, boot=1, builds=0)
    try:
        return sum(map(_pss_mb, ["self", *map(str, descendants())]))
    finally:
        collector.close()


def _pss_mb(pid: str) -> float:
    lines = Path("/proc", pid, "smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    print(memory_mb(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
