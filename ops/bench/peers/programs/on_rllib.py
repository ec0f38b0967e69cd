"""PPO of RLlib (new API stack): two environment runners with four environments each, the learner in here."""

import contextlib
import json
import os
import sys
import time
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def make_config(seed: int) -> Any:
    """The hyper-parameters that all peers have; the others are its defaults."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4)
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .training(
            train_batch_size_per_learner=2048,
            minibatch_size=256,
            num_epochs=10,
            lr=3e-4,
        )
        .reporting(metrics_num_episodes_for_smoothing=100, min_time_s_per_iteration=0)
        .debugging(seed=seed, log_level="ERROR")
    )


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Train, and say what came of it."""
    algorithm = make_config(asked["seed"]).build_algo()
    steps, score, reached = 0, float("nan"), None
    began = time.perf_counter()
    while steps < asked["steps"] and reached is None:
        runners = algorithm.train()["env_runners"]
        steps = int(runners["num_env_steps_sampled_lifetime"])
        score = float(runners.get("episode_return_mean", score))
        if asked["target"] is not None and score >= asked["target"]:
            reached = time.perf_counter() - began, steps
    seconds = time.perf_counter() - began
    algorithm.stop()
    target_s, target_steps = reached or (None, None)
    return {
        "steps": steps,
        "seconds": seconds,
        "steps_per_s": steps / seconds,
        "return": score,
        "target_s": target_s,
        "target_steps": target_steps,
    }


if __name__ == "__main__":
    # Ray's processes write to standard output. Only the result may stand there.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", _temp_dir=asked["directory"])
    try:
        found = main(asked)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
    print(json.dumps(found), file=answer, flush=True)
