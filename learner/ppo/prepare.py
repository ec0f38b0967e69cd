"""Computes from a batch the rows that an update trains on: network inputs, values and estimates.

This is one pass over the whole batch, without gradients, before the first step of an update. A large batch
goes through the networks in pieces. A batch of vectors is usually small enough to go as a whole.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo_redis.policy.actor_critic import Actions, ActorCritic, to_actions
from dppo_redis.policy.networks import Inputs, Sequences, to_inputs
from dppo_redis.protocol.config import PpoConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.features import Normaliser, episode_starts, push_frame, stack_frames
from dppo_redis.spaces.network_memory import column_pieces, network_row_bytes, pieces
from dppo_redis.spaces.observations import Array, BoolArray, FloatArray
from learner.ppo.advantages import successor_values
from learner.ppo.batch import Batch, Rows
from learner.ppo.corrections import Trajectories, estimate, log_ratios


@dataclass(frozen=True)
class Prepared:
    """The rows of an update, and the values for its drift."""

    rows: Rows
    log_ratios: FloatArray  # [B], of the valid rows: the learner's policy to the behaviour policy
    staleness: Array  # [B], of the valid rows, in updates


def prepare(
    model: ActorCritic,
    spec: Spec,
    ppo: PpoConfig,
    normaliser: Normaliser | None,
    batch: Batch,
    device: torch.device,
) -> Prepared:
    """Run the present networks over a batch, and estimate its advantages and targets."""

    def read(frames: Array) -> Inputs:
        rows = frames if spec.frame_stack > 1 else frames[:, 0]
        return to_inputs(spec.observation, rows, spec.frame_stack, normaliser, device)

    t, n = batch.rewards.shape
    starts = episode_starts(batch.ends, batch.valid)
    frames = stack_frames(batch.observations, batch.frames_before, starts)
    last = push_frame(frames[-1], batch.last_observations)
    final = push_frame(frames[batch.ends], batch.final_observations)
    inputs = read(frames.reshape(t * n, *frames.shape[2:]))
    if model.memory is not None:
        state = torch.tensor(batch.memory, device=device)
        inputs = inputs.with_sequences(Sequences(torch.tensor(starts, device=device), state))
    actions = to_actions(spec.action, batch.actions.reshape(t * n, *spec.action.row_shape), device)
    bootstrap = read(np.concatenate([last, final]))
    del frames, last, final  # as large as the batch
    known = _read(model, spec, batch, inputs, actions, bootstrap)
    estimates = estimate(ppo.correction, known, ppo.gamma, ppo.gae_lambda, ppo.importance_cap)

    def flat(array: Array) -> Tensor:
        return torch.tensor(array.reshape(-1), device=device)

    rows = Rows(
        inputs=inputs,
        actions=actions,
        old_log_probs=flat(estimates.old_log_probs),
        weights=flat(estimates.weights),
        advantages=flat(estimates.advantages),
        returns=flat(estimates.returns),
        values=flat(known.values),
        valid=flat(batch.valid),
    )
    return Prepared(
        rows if inputs.sequences is not None or batch.valid.all() else rows.take(rows.valid),
        log_ratios(known.proximal, known.behaviour)[batch.valid],
        np.broadcast_to(batch.staleness, batch.valid.shape)[batch.valid],
    )


@torch.no_grad()
def _read(
    model: ActorCritic, spec: Spec, batch: Batch, inputs: Inputs, actions: Actions, bootstrap: Inputs
) -> Trajectories:
    """Values and log-probabilities by the present networks; `bootstrap`: last, then final observations."""
    t, n = batch.rewards.shape
    row_bytes = network_row_bytes(
        spec.observation, spec.frame_stack, spec.network.hidden, spec.network.state_size
    )
    if inputs.sequences is None:
        parts = [
            model.evaluate(inputs.take(part), actions.take(part)) for part in pieces(len(inputs), row_bytes)
        ]
        values, log_probs = torch.cat([p.values for p in parts]), torch.cat([p.log_probs for p in parts])
    else:
        values, log_probs, states = _read_columns(model, inputs, inputs.sequences, actions, row_bytes)
        bootstrap = bootstrap.with_sequences(_after(states, batch.ends))
    beyond = np.concatenate(
        [model.values(_rows_of(bootstrap, part)).cpu().numpy() for part in pieces(len(bootstrap), row_bytes)]
    )
    known = values.cpu().numpy().reshape(t, n)
    # Dummy rows keep the actor's log-probability: the learner does not train on their actions.
    proximal = np.where(batch.valid, log_probs.cpu().numpy().reshape(t, n), batch.log_probs)
    return Trajectories(
        rewards=batch.rewards,
        values=known,
        successors=successor_values(known, beyond[:n], beyond[n:], batch.terminated, batch.truncated),
        ends=batch.ends.astype(np.float32),
        behaviour=batch.log_probs,
        proximal=proximal,
    )


def _read_columns(
    model: ActorCritic, inputs: Inputs, sequences: Sequences, actions: Actions, row_bytes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values and log-probabilities [T N] and memories after each row [T, N, S], by whole columns."""
    t, n = sequences.starts.shape
    rows = torch.arange(t * n, device=sequences.starts.device).reshape(t, n)
    parts = column_pieces(n, t, row_bytes)
    values, log_probs, states = [], [], []
    for part in parts:
        index: Tensor | slice = slice(None) if len(parts) == 1 else rows[:, part].flatten()
        here = inputs.take(index).with_sequences(Sequences(sequences.starts[:, part], sequences.state[part]))
        now = model.evaluate(here, actions.take(index))
        values.append(now.values.reshape(t, -1))
        log_probs.append(now.log_probs.reshape(t, -1))
        states.append(model.states(here))
    return torch.cat(values, 1).flatten(), torch.cat(log_probs, 1).flatten(), torch.cat(states, 1)


def _rows_of(inputs: Inputs, part: slice) -> Inputs:
    """The rows in `part`; for a network with a memory each row is its own sequence."""
    if inputs.sequences is None:
        return inputs.take(part)
    sequences = Sequences(inputs.sequences.starts[:, part], inputs.sequences.state[part])
    return inputs.take(part).with_sequences(sequences)


def _after(states: Tensor, ends: BoolArray) -> Sequences:
    """The memory after the last row of each environment [N], and after each row that ended an episode [E].

    `states` are those after every row, [T, N, S].
    """
    state = torch.cat([states[-1], states[torch.tensor(ends, device=states.device)]])
    return Sequences(torch.zeros((1, len(state)), dtype=torch.bool, device=state.device), state)
