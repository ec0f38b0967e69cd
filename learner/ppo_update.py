"""One PPO pass over a batch: values, advantages, all passes and minibatches, one optimiser.

Shared by the distributed learner and the serial baseline. Knows no Redis, clock or file.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dppo_redis.config import PpoConfig
from dppo_redis.normaliser import CLIP, RunningMoments, discounted_returns, normalise
from dppo_redis.policy import ActorCritic
from dppo_redis.spaces import FloatArray
from dppo_redis.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN
from learner.advantages import successor_values
from learner.batch import Batch, Rows, minibatches, valid_rows
from learner.corrections import Trajectories, estimate, log_ratios
from learner.drift import Drift, by_staleness, drift
from learner.ppo_loss import Loss, ppo_loss


@dataclass(frozen=True)
class UpdateReport:
    """Diagnostics of one update; losses are means over its minibatches."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    explained_variance: float
    ratio_error: float | None  # largest |ratio - 1| of rows of staleness 0 before the first step: ~0
    learning_rate: float
    gradient_steps: int
    skipped_steps: int  # minibatches whose gradient was not finite; they change nothing
    drift: Drift  # of the whole batch
    drift_by_staleness: dict[int, Drift]


@dataclass(frozen=True)
class Schedule:
    """The knobs that may be annealed linearly over the step budget, as they are in one update."""

    learning_rate: float
    clip_epsilon: float
    entropy_coef: float


class _Tally:
    """Sums of what is watched over gradient steps; stays on the device until it is read."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(5, device=device)
        self.steps = 0
        self.skipped = 0

    def add(self, loss: Loss | None) -> None:
        """Count a gradient step; None was skipped."""
        if loss is None:
            self.skipped += 1
            return
        self.steps += 1
        self._sums += torch.stack((loss.policy, loss.value, loss.entropy, loss.approx_kl, loss.clip_fraction))

    def merge(self, other: "_Tally") -> None:
        """Count another tally's steps as well."""
        self._sums += other._sums
        self.steps += other.steps
        self.skipped += other.skipped

    def means(self) -> Tensor:
        """Policy loss, value loss, entropy, KL divergence and clip fraction; zeros without a step."""
        return self._sums / max(1, self.steps)


_KL = 3  # place of the KL divergence among the means


class PpoUpdate:
    """The network, its optimiser and the order of minibatches."""

    def __init__(
        self, model: ActorCritic, ppo: PpoConfig, update_epochs: int, seed: int, device: torch.device
    ) -> None:
        self.model = model.to(device)
        self.ppo = ppo
        self.update_epochs = update_epochs
        self.device = device
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=ppo.learning_rate, eps=ppo.adam_epsilon, fused=True
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.observation_moments = RunningMoments.empty(model.observation_size)
        self.return_moments = RunningMoments.empty(1)

    def acting_arrays(self) -> dict[str, FloatArray]:
        """What a publication holds: the policy, and the normaliser it was trained with."""
        arrays = self.model.acting_arrays()
        if self.ppo.normalise_observations:
            mean, inverse_std = self._normaliser()
            arrays |= {NORMALISER_MEAN: mean, NORMALISER_INVERSE_STD: inverse_std}
        return arrays

    def _normaliser(self) -> tuple[FloatArray, FloatArray]:
        moments = self.observation_moments
        return moments.mean.astype(np.float32), moments.inverse_std.astype(np.float32)

    def update(self, batch: Batch, progress: float) -> UpdateReport:
        """Train on one batch; `progress` is the share of the step budget trained so far.

        The observation normaliser is merged last: until then the network sees what the published
        weights' own actors saw, so that fresh data has ratio 1.
        """
        schedule = self._schedule(progress)
        raw = batch
        batch = self._normalise(batch)
        proximal = self._proximal_log_probs(batch)
        rows = self._rows(batch, proximal)
        moved = log_ratios(proximal, batch.log_probs)[batch.valid]
        staleness = np.broadcast_to(batch.staleness, batch.valid.shape)[batch.valid]
        explained = _explained_variance(rows) if len(rows) else 0.0
        tally = self._passes(rows, schedule)
        if self.ppo.normalise_observations:
            self.observation_moments = self.observation_moments.merge(raw.observations[raw.valid])
        policy_loss, value_loss, entropy, approx_kl, clip_fraction = tally.means().tolist()
        return UpdateReport(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            explained_variance=explained,
            ratio_error=_ratio_error(moved[staleness == 0]),
            learning_rate=schedule.learning_rate,
            gradient_steps=tally.steps,
            skipped_steps=tally.skipped,
            drift=drift(moved, schedule.clip_epsilon),
            drift_by_staleness=by_staleness(moved, staleness, schedule.clip_epsilon),
        )

    def _passes(self, rows: Rows, schedule: Schedule) -> _Tally:
        """All passes, or those until the KL divergence of one exceeds its target."""
        total = _Tally(self.device)
        for _ in range(self.update_epochs):
            one = _Tally(self.device)
            for minibatch in minibatches(rows, self.ppo.minibatch_size, self.generator):
                one.add(self._step(minibatch, schedule))
            total.merge(one)
            if self.ppo.target_kl is not None and float(one.means()[_KL]) > self.ppo.target_kl:
                break
        return total

    def _normalise(self, batch: Batch) -> Batch:
        """Observations as the network sees them, and rewards in units of the return's spread."""
        if self.ppo.normalise_observations:
            mean, inverse_std = self._normaliser()
            batch = replace(
                batch,
                observations=normalise(batch.observations, mean, inverse_std),
                last_observations=normalise(batch.last_observations, mean, inverse_std),
                final_observations=normalise(batch.final_observations, mean, inverse_std),
            )
        if self.ppo.normalise_returns:
            returns, _ = discounted_returns(
                batch.discounted_returns, batch.rewards, batch.ends, batch.valid, self.ppo.gamma
            )
            self.return_moments = self.return_moments.merge(returns[batch.valid][:, None])
            scaled = batch.rewards * np.float32(self.return_moments.inverse_std[0])
            batch = replace(batch, rewards=np.clip(scaled, -CLIP, CLIP))
        return batch

    def _schedule(self, progress: float) -> Schedule:
        """What holds for this update; the optimiser is told its learning rate."""
        ppo, left = self.ppo, max(0.0, 1.0 - progress)
        schedule = Schedule(
            learning_rate=ppo.learning_rate * (left if ppo.anneal_learning_rate else 1.0),
            clip_epsilon=ppo.clip_epsilon * (left if ppo.anneal_clip else 1.0),
            entropy_coef=ppo.entropy_coef * (left if ppo.anneal_entropy else 1.0),
        )
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.learning_rate
        return schedule

    @torch.no_grad()
    def _values(self, observations: FloatArray) -> FloatArray:
        values: FloatArray = self.model.values(torch.from_numpy(observations).to(self.device)).cpu().numpy()
        return values

    @torch.no_grad()
    def _proximal_log_probs(self, batch: Batch) -> FloatArray:
        """[T, N], by the policy as it is before the first step; rows that are not valid keep the actor's."""
        log_probs = batch.log_probs.copy()
        observations, actions = (
            torch.from_numpy(array[batch.valid]).to(self.device)
            for array in (batch.observations, batch.actions)
        )
        log_probs[batch.valid] = self.model.log_probs_and_entropy(observations, actions)[0].cpu().numpy()
        return log_probs

    def _rows(self, batch: Batch, proximal: FloatArray) -> Rows:
        """Values by the current critic, one forward for all observations; then what is trained towards."""
        t, n = batch.rewards.shape
        flat = batch.observations.reshape(t * n, -1)
        values = self._values(np.concatenate([flat, batch.last_observations, batch.final_observations]))
        state_values = values[: t * n].reshape(t, n)
        successors = successor_values(
            state_values,
            values[t * n : t * n + n],
            values[t * n + n :],
            batch.terminated,
            batch.truncated,
        )
        ends = batch.ends.astype(np.float32)
        known = Trajectories(batch.rewards, state_values, successors, ends, batch.log_probs, proximal)
        ppo = self.ppo
        estimates = estimate(ppo.correction, known, ppo.gamma, ppo.gae_lambda, ppo.importance_cap)
        return valid_rows(batch, estimates, state_values, self.device)

    def _step(self, rows: Rows, schedule: Schedule) -> Loss | None:
        """One gradient step; None, and no step, where the gradient is not finite."""
        log_probs, entropy = self.model.log_probs_and_entropy(rows.observations, rows.actions)
        loss = ppo_loss(
            log_probs=log_probs,
            old_log_probs=rows.old_log_probs,
            weights=rows.weights,
            advantages=rows.advantages,
            values=self.model.values(rows.observations),
            old_values=rows.values,
            returns=rows.returns,
            entropy=entropy,
            clip_epsilon=schedule.clip_epsilon,
            value_coef=self.ppo.value_coef,
            entropy_coef=schedule.entropy_coef,
            dual_clip=self.ppo.dual_clip,
            value_clip=self.ppo.value_clip,
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.ppo.max_grad_norm)
        if not norm.isfinite():
            return None
        self.optimizer.step()
        return loss


def _ratio_error(log_ratios: FloatArray) -> float | None:
    """How far actor and learner disagree about the same weights; None without fresh rows."""
    return float(np.abs(np.expm1(log_ratios)).max()) if len(log_ratios) else None


def _explained_variance(rows: Rows) -> float:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 no better than the mean."""
    variance: Tensor = rows.returns.var(unbiased=False)
    if variance == 0:
        return 0.0
    return float(1 - (rows.returns - rows.values).var(unbiased=False) / variance)
