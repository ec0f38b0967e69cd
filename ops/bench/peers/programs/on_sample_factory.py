"""APPO of sample-factory: two rollout workers with four environments each, its asynchronous mode."""

import json
import os
import sys
import time
from typing import Any

import numpy as np
from gymnasium import make
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

_OPTIONS = (  # the hyper-parameters that all peers have, under its names
    *("--algo=APPO", "--env=CartPole-v1", "--device=cpu", "--use_rnn=False", "--recurrence=1"),
    *("--num_workers=2", "--num_envs_per_worker=4", "--worker_num_splits=2", "--rollout=128"),
    *("--batch_size=256", "--num_batches_per_epoch=8", "--num_epochs=10", "--shuffle_minibatches=True"),
    *("--learning_rate=3e-4", "--gamma=0.99", "--gae_lambda=0.95", "--ppo_clip_ratio=0.2"),
    *("--ppo_clip_value=1000", "--value_loss_coeff=0.5", "--exploration_loss_coeff=0.0"),
    *("--max_grad_norm=0.5", "--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh"),
    *("--actor_critic_share_weights=False", "--normalize_input=False", "--normalize_returns=False"),
    *("--with_vtrace=False", "--max_policy_lag=1000", "--stats_avg=100", "--train_for_seconds=100000"),
    *("--save_every_sec=100000", "--experiment_summaries_interval=100000", "--experiment=cartpole"),
    *("--set_workers_cpu_affinity=False", "--force_envs_single_thread=True"),
)


class Target(AlgoObserver):  # type: ignore[misc]
    """Keeps what training has reached, and ends it at the target. The clock starts with the first update."""

    def __init__(self, target: float | None) -> None:
        self.target = target
        self.first: tuple[float, int] | None = None  # time and steps at the first update
        self.last = (0.0, 0)
        self.score = float("nan")
        self.reached: tuple[float, int] | None = None

    def on_training_step(self, runner: Any, _iteration: int) -> None:
        """Look at the last 100 returns."""
        self.last = time.perf_counter(), sum(runner.env_steps.values())
        self.first = self.first or self.last
        returns = list(runner.policy_avg_stats.get("reward", [[]])[0])
        self.score = float(np.mean(returns)) if returns else self.score
        if self.target is None or len(returns) < 100 or self.score < self.target or self.reached:
            return
        self.reached = self.last[0] - self.first[0], self.last[1]
        runner.cfg.train_for_env_steps = 0  # it ends when it has more than this many


def make_env(name: str, *_args: Any, render_mode: str | None = None, **_options: Any) -> Any:
    """Its workers import this function."""
    return make(name, render_mode=render_mode)


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Train, and say what came of it."""
    register_env("CartPole-v1", make_env)
    options = [*_OPTIONS, f"--seed={asked['seed']}", f"--train_dir={asked['directory']}"]
    options.append(f"--train_for_env_steps={asked['steps']}")
    parser, _ = parse_sf_args(argv=options)
    _, runner = make_runner(parse_full_cfg(parser, options))
    observer = Target(asked["target"])
    runner.register_observer(observer)
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    if status != ExperimentStatus.SUCCESS or observer.first is None:
        raise SystemExit(f"sample-factory ended with {status}")
    seconds = observer.last[0] - observer.first[0]
    target_s, target_steps = observer.reached or (None, None)
    return {
        "steps": observer.last[1],
        "seconds": seconds,
        "steps_per_s": (observer.last[1] - observer.first[1]) / seconds,
        "return": observer.score,
        "target_s": target_s,
        "target_steps": target_steps,
    }


if __name__ == "__main__":
    # It writes its log to standard output. Only the result may stand there.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found = main(json.loads(sys.argv[1]))
    print(json.dumps(found), file=answer, flush=True)
