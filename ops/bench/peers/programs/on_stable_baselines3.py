"""PPO of stable-baselines3. Variants: dummy (environments in this process), subproc (a process for each)."""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

_WARM_UP_STEPS = 4096


class Target(BaseCallback):  # type: ignore[misc]
    """Ends training at the target, and keeps when that was."""

    def __init__(self, target: float | None) -> None:
        super().__init__()
        self.target = target
        self.began = time.perf_counter()
        self.reached: tuple[float, int] | None = None

    def _on_step(self) -> bool:
        returns = self.model.ep_info_buffer
        if self.target is None or len(returns) < 100 or self.n_calls % 16:
            return True
        if np.mean([episode["r"] for episode in returns]) < self.target:
            return True
        self.reached = time.perf_counter() - self.began, self.num_timesteps
        return False


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Train, and say what came of it."""
    torch.set_num_threads(1)
    kind = SubprocVecEnv if asked["variant"] == "subproc" else DummyVecEnv
    env = make_vec_env("CartPole-v1", n_envs=8, seed=asked["seed"], vec_env_cls=kind)
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=256, n_epochs=10, device="cpu", seed=asked["seed"])
    if asked["target"] is None:  # a rate: the first updates allocate
        model.learn(_WARM_UP_STEPS)
    callback = Target(asked["target"])
    model.learn(asked["steps"], callback=callback, reset_num_timesteps=True)
    seconds = time.perf_counter() - callback.began
    env.close()
    target_s, target_steps = callback.reached or (None, None)
    return {
        "steps": model.num_timesteps,
        "seconds": seconds,
        "steps_per_s": model.num_timesteps / seconds,
        "return": float(np.mean([episode["r"] for episode in model.ep_info_buffer])),
        "target_s": target_s,
        "target_steps": target_steps,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
