"""`dppo-redis bench speed`: environment steps per second, learning included, beside stable-baselines3.

The article's hyper-parameters for all (batch 2048, minibatch 256, 10 passes, learning rate 3e-4,
two 64x64 tanh networks, 8 environments), one process and one compute thread for the peer, measured
in turn in one run. Needs `pip install -r ops/bench/requirements.txt`.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence

from dppo_redis.errors import ExitStatus
from ops.bench.runs import REPOSITORY, command_of, name_of, run, table

_PEER = """
import sys, time, torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
torch.set_num_threads(1)
env = make_vec_env("CartPole-v1", n_envs=8, seed=1)
model = PPO("MlpPolicy", env, n_steps=256, batch_size=256, n_epochs=10, device="cpu", seed=1)
model.learn(4096)
started = time.perf_counter()
model.learn(int(sys.argv[1]), reset_num_timesteps=True)
print(model.num_timesteps / (time.perf_counter() - started))
"""
_ARTICLE = ["--ppo.update-epochs", "10", "--ppo.learning-rate", "3e-4", "--envs-per-actor", "8"]


def _peer(steps: int) -> float:
    command = [sys.executable, "-W", "ignore", "-c", _PEER, str(steps)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return float(finished.stdout.splitlines()[-1])


def _ours(actors: int | None, steps: int) -> float:
    arguments = [*command_of(actors, "CartPole-v1"), *_ARTICLE, "--total-steps", str(steps)]
    return run(arguments).steps_per_s


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="dppo-redis bench speed", description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args(argv)
    kinds: list[int | None] = [None, *options.actors]
    peer: list[float] = []
    ours: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        peer.append(_peer(options.steps))
        for kind in kinds:
            ours[kind].append(_ours(kind, options.steps))
    base = statistics.median(peer)
    rows = [["stable-baselines3, 8 environments, one process", f"{base:,.0f}", "1.00"]]
    for kind in kinds:
        rate = statistics.median(ours[kind])
        rows.append([f"dppo_redis, {name_of(kind)}", f"{rate:,.0f}", f"{rate / base:.2f}"])
    print(table(["", "steps/s, median", "ratio"], rows))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
