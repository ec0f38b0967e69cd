"""Generalised advantage estimation, with the effect of episode ends on a return. Pure numpy.

Only this module knows the rule for gymnasium's two flags: termination cuts the return; truncation
bootstraps from the true final observation; both at once is a termination; the cut at a rollout's
end bootstraps from the observation after its last step.
"""

import numpy as np

from dppo_redis.spaces.observations import BoolArray, FloatArray


def successor_values(
    values: FloatArray,
    last_values: FloatArray,
    final_values: FloatArray,
    terminated: BoolArray,
    truncated: BoolArray,
) -> FloatArray:
    """V of the state after the action at (t, n), [T, N].

    Args:
        values: [T, N], V of the observation before the action.
        last_values: [N], V of the observation after the last step.
        final_values: [E], V of the true final observation of each ended row, in row order.
        terminated, truncated: [T, N].
    """
    successors = np.concatenate([values[1:], last_values[None]])
    successors[terminated | truncated] = final_values
    return np.where(terminated, np.float32(0), successors)


def gae(
    rewards: FloatArray,
    values: FloatArray,
    successors: FloatArray,
    ends: FloatArray,
    gamma: float,
    gae_lambda: float,
) -> FloatArray:
    """Advantages [T, N] (arXiv:1506.02438, equation 16).

        d_t = r_t + gamma V(s_{t+1}) - V(s_t)
        A_t = d_t + gamma lambda (1 - e_t) A_{t+1}

    The paper has one endless trajectory. Here `e_t` [T, N] is 1.0 if an episode ended at t, terminated or
    truncated, and `successors` [T, N] holds V(s_{t+1}) with the effect of such an end.
    """
    deltas = rewards + np.float32(gamma) * successors - values
    keep = np.float32(gamma * gae_lambda) * (1 - ends)
    advantages = np.empty_like(deltas)
    advantage = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        advantage = deltas[t] + keep[t] * advantage
        advantages[t] = advantage
    return advantages
