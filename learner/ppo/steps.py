"""Makes the gradient steps of an update with autograd, and defines the tally that all kinds of steps return.

`plain/steps.py` makes the same steps for plain networks without autograd. `update.py` calls one or the other,
pass by pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dppo_redis.policy.actor_critic import ActorCritic
from dppo_redis.protocol.config import PpoConfig
from learner.ppo.adam import Adam
from learner.ppo.batch import Rows, minibatches
from learner.ppo.loss import Loss, ppo_loss

_WATCHED = 5


@dataclass(frozen=True)
class Schedule:
    """The values in one update of the settings that may be annealed linearly over the step budget."""

    learning_rate: float
    clip_epsilon: float
    entropy_coef: float


@dataclass(frozen=True)
class Tally:
    """The sums and counts of some gradient steps."""

    sums: Tensor  # [5] of policy loss, value loss, entropy, KL divergence, clip fraction; on the device
    steps: int
    skipped: int  # minibatches whose gradient was not finite; they change nothing

    @staticmethod
    def empty(device: torch.device) -> "Tally":
        """The tally of no steps."""
        return Tally(torch.zeros(_WATCHED, device=device), 0, 0)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.sums + other.sums, self.steps + other.steps, self.skipped + other.skipped)

    def means(self) -> Tensor:
        """The means of the five summed quantities, [5]; zeros without a step."""
        return self.sums / max(1, self.steps)

    @property
    def kl(self) -> float:
        """Mean KL divergence."""
        return float(self.means()[3])


class Steps(Protocol):
    """Makes the gradient steps of an update."""

    def passes(self, rows: Rows, schedule: Schedule, generator: torch.Generator) -> Iterator[Tally]:
        """Yield the tallies of passes over `rows`, without end; each pass is made when it is asked for."""
        ...


class AutogradSteps:
    """Gradient steps by autograd, for every network and device."""

    def __init__(self, model: ActorCritic, optimizer: Adam, ppo: PpoConfig) -> None:
        self._model = model
        self._optimizer = optimizer
        self._ppo = ppo

    def passes(self, rows: Rows, schedule: Schedule, generator: torch.Generator) -> Iterator[Tally]:
        """Pass after pass over `rows`, each when it is asked for."""
        while True:
            total = Tally.empty(rows.values.device)
            for minibatch in minibatches(rows, self._ppo.minibatch_size, generator):
                total += self._counted(self._step(minibatch, schedule), total.sums.device)
            yield total

    @staticmethod
    def _counted(loss: Loss | None, device: torch.device) -> Tally:
        if loss is None:
            return Tally(torch.zeros(_WATCHED, device=device), 0, 1)
        watched = (loss.policy, loss.value, loss.entropy, loss.approx_kl, loss.clip_fraction)
        return Tally(torch.stack(watched), 1, 0)

    def _step(self, rows: Rows, schedule: Schedule) -> Loss | None:
        """Make one gradient step; returns None without a step if the gradient is not finite."""
        valid: Tensor | slice = slice(None)  # all rows, unless they are whole columns
        if rows.inputs.sequences is not None:
            if not rows.valid.any():
                return None
            valid = rows.valid
        new = self._model.evaluate(rows.inputs, rows.actions)
        loss = ppo_loss(
            log_probs=new.log_probs[valid],
            old_log_probs=rows.old_log_probs[valid],
            weights=rows.weights[valid],
            advantages=rows.advantages[valid],
            values=new.values[valid],
            old_values=rows.values[valid],
            returns=rows.returns[valid],
            entropy=new.entropy[valid],
            clip_epsilon=schedule.clip_epsilon,
            value_coef=self._ppo.value_coef,
            entropy_coef=schedule.entropy_coef,
            dual_clip=self._ppo.dual_clip,
            value_clip=self._ppo.value_clip,
        )
        self._optimizer.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._ppo.max_grad_norm)
        if not norm.isfinite():
            return None
        self._optimizer.step()
        return loss
