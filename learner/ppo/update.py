"""Makes one PPO update from a batch: values, advantages, then all passes and minibatches.

The distributed learner and the serial baseline share it. It uses no Redis, clock or file.
"""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.config import PpoConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN
from dppo_redis.spaces.features import Normaliser, observed
from dppo_redis.spaces.normaliser import CLIP, RunningMoments, discounted_returns, hold_rewards, spread_of
from dppo_redis.spaces.observations import FloatArray
from learner.ppo.adam import Adam
from learner.ppo.batch import Batch, Rows
from learner.ppo.drift import Drift, by_staleness, drift
from learner.ppo.plain.steps import make_steps
from learner.ppo.prepare import prepare
from learner.ppo.steps import Schedule, Tally


@dataclass(frozen=True)
class UpdateReport:
    """Diagnostics of one update; losses are means over its minibatches."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    explained_variance: float
    ratio_error: float | None  # largest |ratio - 1| of rows of staleness 0 before the first step; about 0
    learning_rate: float
    gamma: float
    episode_steps: float  # valid rows of the batch per ended episode; all valid rows if none ended
    gradient_steps: int
    skipped_steps: int  # minibatches whose gradient was not finite; they change nothing
    outlier_observations: int  # rows held back from the statistics; 0 without a normaliser
    outlier_rewards: int  # rewards held back from the statistics; 0 without normalised returns
    drift: Drift  # of the whole batch
    drift_by_staleness: dict[int, Drift]


class PpoUpdate:
    """Updates a network; holds its optimiser, its normalisers and the random order of minibatches."""

    def __init__(
        self,
        model: ActorCritic,
        spec: Spec,
        ppo: PpoConfig,
        update_epochs: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.model = model.to(device).eval()
        self.spec = spec
        self.ppo = ppo
        self.update_epochs = update_epochs
        self.device = device
        self.optimizer = Adam(model.parameters(), lr=ppo.learning_rate, eps=ppo.adam_epsilon)
        self.generator = torch.Generator().manual_seed(seed)
        self._steps = make_steps(self.model, self.optimizer, spec, ppo, device)
        self.observation_moments = RunningMoments.empty(spec.observation.moments)
        self.return_moments = RunningMoments.empty(1)

    def acting_arrays(self) -> dict[str, FloatArray]:
        """The arrays of a publication by name, each in any shape: the policy, and its normaliser."""
        arrays = self.model.acting_arrays()
        if self.ppo.normalise_observations:
            mean, inverse_std = self._moments()
            arrays |= {NORMALISER_MEAN: mean, NORMALISER_INVERSE_STD: inverse_std}
        return arrays

    def _moments(self) -> Normaliser:
        moments = self.observation_moments
        return moments.mean.astype(np.float32), moments.inverse_std.astype(np.float32)

    def update(self, batch: Batch, progress: float) -> UpdateReport:
        """Train on one batch; `progress` is the share of the step budget trained so far.

        The observation normaliser is merged last. Until then the network sees the same inputs as the actors
        of the published weights, so that fresh data has ratio 1.
        """
        schedule = self._schedule(progress)
        batch, outlier_rewards = self._scale_rewards(batch)
        normaliser = self._moments() if self.ppo.normalise_observations else None
        prepared = prepare(self.model, self.spec, self.ppo, normaliser, batch, self.device)
        rows, moved, staleness = prepared.rows, prepared.log_ratios, prepared.staleness
        explained = _explained_variance(rows) if len(rows) else 0.0
        tally = self._passes(rows, schedule)
        outlier_observations = self._merge_observations(batch)
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
            gamma=self.ppo.gamma,
            episode_steps=batch.steps / max(1, int(np.count_nonzero(batch.ends))),
            gradient_steps=tally.steps,
            skipped_steps=tally.skipped,
            outlier_observations=outlier_observations,
            outlier_rewards=outlier_rewards,
            drift=drift(moved, schedule.clip_epsilon),
            drift_by_staleness=by_staleness(moved, staleness, schedule.clip_epsilon),
        )

    def _passes(self, rows: Rows, schedule: Schedule) -> Tally:
        """Make all passes, or stop after a pass whose KL divergence exceeds its target."""
        total = Tally.empty(self.device)
        for one in islice(self._steps.passes(rows, schedule, self.generator), self.update_epochs):
            total += one
            if self.ppo.target_kl is not None and one.kl > self.ppo.target_kl:
                break
        return total

    def _merge_observations(self, batch: Batch) -> int:
        """Merge a batch into the observation statistics, if any; returns how many rows had outliers."""
        if not self.ppo.normalise_observations or not batch.valid.any():
            return 0
        seen = observed(self.spec.observation, batch.observations[batch.valid])
        held, outliers = spread_of(self.observation_moments, seen).hold(seen)
        self.observation_moments = self.observation_moments.merge(held)
        return int(np.count_nonzero(outliers))

    def _scale_rewards(self, batch: Batch) -> tuple[Batch, int]:
        """The batch, its rewards scaled if the run normalises returns, and the number of outliers."""
        if not self.ppo.normalise_returns or not batch.valid.any():
            return batch, 0
        moments, valid, gamma = self.return_moments, batch.valid, self.ppo.gamma
        start, rewards, outliers = hold_rewards(
            moments, batch.discounted_returns, batch.rewards, valid, gamma
        )
        returns, _ = discounted_returns(start, rewards, batch.ends, valid, gamma)
        self.return_moments = moments.merge(returns[valid][:, None])
        scaled = batch.rewards * np.float32(self.return_moments.inverse_std[0])
        return replace(batch, rewards=np.clip(scaled, -CLIP, CLIP)), int(np.count_nonzero(outliers))

    def _schedule(self, progress: float) -> Schedule:
        """This update's schedule; also sets the learning rate, which a checkpoint may have overwritten."""
        ppo, left = self.ppo, max(0.0, 1.0 - progress)
        schedule = Schedule(
            learning_rate=ppo.learning_rate * (left if ppo.anneal_learning_rate else 1.0),
            clip_epsilon=ppo.clip_epsilon * (left if ppo.anneal_clip else 1.0),
            entropy_coef=ppo.entropy_coef * (left if ppo.anneal_entropy else 1.0),
        )
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = schedule.learning_rate, ppo.adam_epsilon
        return schedule


def _ratio_error(log_ratios: FloatArray) -> float | None:
    """The largest |ratio - 1| of actor and learner with the same weights; None without fresh rows."""
    return float(np.abs(np.expm1(log_ratios)).max()) if len(log_ratios) else None


def _explained_variance(rows: Rows) -> float:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 no better than the mean."""
    returns, values = rows.returns[rows.valid].double(), rows.values[rows.valid].double()
    variance: Tensor = returns.var(unbiased=False)
    if variance == 0 or not variance.isfinite():
        return 0.0
    return float(1 - (returns - values).var(unbiased=False) / variance)
