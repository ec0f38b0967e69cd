"""The article's version: workers and a learner on Ray, written as the article describes it.

Worker and learner are classes of their own. A worker sends whole rollouts, packed as arrays. Each worker has
one pending rollout of its own, and the learner polls them. The total batch stays constant while workers grow.
Weights are broadcast every few updates, and the age of the data is measured. `variant` is "WORKERS EVERY":
the number of workers, and the updates between two broadcasts.
"""

import contextlib
import json
import os
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import ray
import torch
from gymnasium import make
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.nn.functional import log_softmax

ENVIRONMENTS = 8  # of a worker
BATCH = 2048
MINIBATCH, PASSES, LEARNING_RATE = 256, 10, 3e-4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


def make_network(outputs: int) -> torch.nn.Sequential:
    """Two tanh layers of 64."""
    first, second, last = torch.nn.Linear(4, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)
    for layer, gain in ((first, 2**0.5), (second, 2**0.5), (last, 0.01 if outputs > 1 else 1.0)):
        torch.nn.init.orthogonal_(layer.weight, gain)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last)


class Model(torch.nn.Module):
    """Policy and value networks."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = make_network(2), make_network(1)


class Worker:
    """Samples rollouts of T steps of all its environments."""

    def __init__(self, seed: int, steps: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        builders = [lambda: make("CartPole-v1")] * ENVIRONMENTS
        self.envs = SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
        self.model, self.steps = Model(), steps
        self.observations, _ = self.envs.reset(seed=seed)
        self.scores = np.zeros(ENVIRONMENTS)

    def sample(self, update: int, weights: dict[str, Any] | None) -> dict[str, Any]:
        """A rollout as arrays [T, N]; with new weights, if there are some."""
        if weights is not None:
            self.model.load_state_dict({name: torch.tensor(x) for name, x in weights.items()})
        rows = (self.steps, ENVIRONMENTS)
        rollout: dict[str, Any] = {
            "observations": np.empty((*rows, 4), np.float32),
            "actions": np.empty(rows, np.int64),
            "log_probs": np.empty(rows, np.float32),
            "rewards": np.empty(rows, np.float32),
            "ends": np.empty(rows, np.bool_),
        }
        returns: list[float] = []
        for t in range(self.steps):
            with torch.inference_mode():
                every = log_softmax(self.model.policy(torch.from_numpy(self.observations)), -1)
                actions = torch.multinomial(every.exp(), 1)
                log_probs = every.gather(-1, actions).squeeze(-1)
                actions = actions.squeeze(-1)
            rollout["observations"][t], rollout["actions"][t] = self.observations, actions.numpy()
            rollout["log_probs"][t] = log_probs.numpy()
            self.observations, rewards, terminated, truncated, info = self.envs.step(actions.numpy())
            self.scores += rewards
            for n in np.flatnonzero(terminated | truncated):
                returns.append(float(self.scores[n]))
                self.scores[n] = 0.0
                if truncated[n] and not terminated[n]:
                    with torch.inference_mode():
                        last = torch.from_numpy(np.asarray(info["final_obs"][n], np.float32))
                        rewards[n] += GAMMA * float(self.model.value(last))
            rollout["rewards"][t], rollout["ends"][t] = rewards, terminated | truncated
        return {**rollout, "last": self.observations.copy(), "returns": returns, "update": update}


class Learner:
    """PPO on batches of whole rollouts."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, eps=1e-5)

    def weights(self) -> dict[str, Any]:
        """A copy, as arrays."""
        return {name: x.numpy().copy() for name, x in self.model.state_dict().items()}

    def update(self, rollouts: list[dict[str, Any]]) -> None:
        """All passes over one batch."""
        joined = {
            name: torch.from_numpy(np.concatenate([r[name] for r in rollouts], axis=1))
            for name in ("observations", "actions", "log_probs", "rewards", "ends")
        }
        last = torch.from_numpy(np.concatenate([r["last"] for r in rollouts]))
        with torch.no_grad():
            values = self.model.value(joined["observations"]).squeeze(-1)
            following = self.model.value(last).squeeze(-1)
        advantages, running = torch.zeros_like(values), torch.zeros_like(following)
        for t in reversed(range(len(values))):
            goes_on = 1.0 - joined["ends"][t].float()
            delta = joined["rewards"][t] + GAMMA * goes_on * following - values[t]
            running = delta + GAMMA * LAMBDA * goes_on * running
            advantages[t], following = running, values[t]
        targets = (advantages + values).flatten()
        observations = joined["observations"].flatten(0, 1)
        actions, old = joined["actions"].flatten(), joined["log_probs"].flatten()
        flat = advantages.flatten()
        for _ in range(PASSES):
            for rows in torch.split(torch.randperm(len(flat)), MINIBATCH):
                self._step(observations[rows], actions[rows], old[rows], flat[rows], targets[rows])

    def _step(self, observations: Any, actions: Any, old: Any, advantages: Any, targets: Any) -> None:
        every = log_softmax(self.model.policy(observations), -1)
        ratio = (every.gather(-1, actions[:, None]).squeeze(-1) - old).exp()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP) * scaled
        value_loss = (self.model.value(observations).squeeze(-1) - targets).square().mean()
        loss = -torch.min(ratio * scaled, clipped).mean() + 0.5 * value_loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Train, and say what came of it."""
    count, every = map(int, asked["variant"].split())
    remote = ray.remote(num_cpus=1)(Worker)
    workers = [remote.remote(asked["seed"] + 1000 * n, BATCH // (count * ENVIRONMENTS)) for n in range(count)]
    learner = Learner(asked["seed"])
    published, published_at = ray.put(learner.weights()), 0
    began = time.perf_counter()
    pending = {worker.sample.remote(0, published): worker for worker in workers}
    returns: deque[float] = deque(maxlen=100)
    ages: list[int] = []
    update = steps = 0
    held: dict[Any, int] = dict.fromkeys(workers, 0)  # the update of each worker's weights
    reached = None
    while steps < asked["steps"] and reached is None:
        rollouts: list[dict[str, Any]] = []
        while sum(r["rewards"].size for r in rollouts) < BATCH:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            worker, rollout = pending.pop(done), ray.get(done)
            is_new = held[worker] < published_at
            held[worker] = published_at
            pending[worker.sample.remote(published_at, published if is_new else None)] = worker
            ages.append(update - rollout["update"])
            returns.extend(rollout["returns"])
            rollouts.append(rollout)
        learner.update(rollouts)
        update, steps = update + 1, steps + sum(r["rewards"].size for r in rollouts)
        if update % every == 0:
            published, published_at = ray.put(learner.weights()), update
        if asked["target"] is not None and len(returns) == 100 and np.mean(returns) >= asked["target"]:
            reached = time.perf_counter() - began, steps
    seconds = time.perf_counter() - began
    target_s, target_steps = reached or (None, None)
    return {
        "steps": steps,
        "seconds": seconds,
        "steps_per_s": steps / seconds,
        "return": float(np.mean(returns)),
        "target_s": target_s,
        "target_steps": target_steps,
        "staleness": float(np.mean(ages)),
    }


if __name__ == "__main__":
    # Ray's processes write to standard output. Only the result may stand there.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    ray.init(num_cpus=64, include_dashboard=False, logging_level="ERROR", _temp_dir=asked["directory"])
    try:
        found = main(asked)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
    print(json.dumps(found), file=answer, flush=True)
