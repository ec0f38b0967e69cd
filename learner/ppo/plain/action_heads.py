"""Log-probabilities and entropies of actions under a policy's outputs, and their gradients. Pure numpy.

The results are those of `ActorCritic.log_probs_and_entropy`. An action space consists of categories and real
numbers. The rows are the last axis of all arrays, [..., B].
"""

from itertools import groupby
from math import log, pi

import numpy as np

from learner.ppo.plain.networks import Buffers, Floats, PlainNetworks, Seen


class ActionHeads:
    """The parts of an action; categories of one size that follow one another are computed together."""

    def __init__(self, networks: PlainNetworks) -> None:
        self.choices, self.dimensions = networks.choices, networks.dimensions
        self._groups: list[tuple[slice, slice, tuple[int, int, int]]] = []  # logits, categories, shape
        logit, category = 0, 0
        for size, run in groupby(networks.categories):
            count = len(list(run))
            logits, parts = slice(logit, logit + count * size), slice(category, category + count)
            self._groups.append((logits, parts, (count, size, -1)))
            logit, category = logits.stop, parts.stop

    def forward(self, at: Buffers, seen: Seen, log_std: Floats) -> None:
        """The log-probability of each row's action and the entropy of its policy, summed over all parts.

            categories:   log p = o - log sum exp o,   H = -sum p log p
            real numbers: z = (a - mu) / sigma,   log p = -1/2 sum(z^2 + 2 log sigma + log 2 pi),
                          H = sum(log sigma + (1 + log 2 pi) / 2)

        Writes log p and z over the outputs, and p into `heads.probabilities`.
        """
        at.log_probs[:], at.entropy[:] = 0, 0
        for logits, parts, shape in self._groups:
            o, p = at.outputs[logits].reshape(shape), at.heads.probabilities[logits].reshape(shape)
            spare, part = at.heads.spare[logits].reshape(shape), at.heads.per_category[parts]
            np.maximum.reduce(o, axis=1, keepdims=True, out=part)
            o -= part
            np.exp(o, out=p)
            np.add.reduce(p, axis=1, keepdims=True, out=part)
            p /= part
            o -= np.log(part, out=part)
            np.multiply(p, o, out=spare)
            np.add.reduce(spare, axis=1, keepdims=True, out=at.heads.negative_entropies[parts])
        if self._groups:
            np.multiply(seen.chosen, len(at.heads.columns), out=at.heads.index)
            at.heads.index += at.heads.columns
            at.outputs.reshape(-1).take(at.heads.index, out=at.heads.chosen_log_probs, mode="clip")
            np.add.reduce(at.heads.chosen_log_probs, axis=0, out=at.log_probs)
            np.subtract(at.entropy, np.add.reduce(at.heads.negative_entropies[:, 0], axis=0), out=at.entropy)
        if self.dimensions:
            z, squares = at.outputs[self.choices :], at.heads.spare[self.choices :]
            half = 0.5 * self.dimensions
            np.subtract(seen.values, z, out=z)
            z *= np.exp(-log_std)[:, None]
            np.multiply(z, z, out=squares)
            total = float(np.add.reduce(log_std))
            np.add.reduce(squares, axis=0, out=at.scratch[0])
            at.scratch[0] *= -0.5
            at.log_probs += at.scratch[0]
            at.log_probs -= total + half * log(2 * pi)
            at.entropy += total + half * (1 + log(2 * pi))

    def backward(
        self,
        at: Buffers,
        seen: Seen,
        log_std: Floats,
        by_log_prob: Floats,
        entropy_coef: float,
        to_log_std: Floats,
    ) -> None:
        """Compute the gradients of outputs and log sigma from g = dL/d log p [B] and the entropy bonus.

            dL/do  = g (onehot - p) + c_e / B  p (log p + H)      of each category, H its own entropy
            dL/dmu = g z / sigma
            dL/d log sigma = sum g (z^2 - 1) - c_e

        A forbidden logit is a constant, so its gradient is 0.
        """
        for logits, parts, shape in self._groups:
            log_p, p = at.outputs[logits].reshape(shape), at.heads.probabilities[logits].reshape(shape)
            back = at.outputs_backward[logits].reshape(shape)
            if entropy_coef:
                np.subtract(log_p, at.heads.negative_entropies[parts], out=back)
                back *= entropy_coef / len(by_log_prob)
                back -= by_log_prob
                back *= p
            else:
                np.multiply(p, -by_log_prob, out=back)
        if self._groups:
            at.outputs_backward.reshape(-1)[at.heads.index] += by_log_prob
        if seen.mask is not None:
            np.copyto(at.outputs_backward[: self.choices], 0, where=~seen.mask)
        if self.dimensions:
            means = slice(self.choices, None)
            np.multiply(at.outputs[means], by_log_prob, out=at.outputs_backward[means])
            at.outputs_backward[means] *= np.exp(-log_std)[:, None]
            np.matmul(at.heads.spare[means], by_log_prob, out=to_log_std)
            to_log_std -= np.add.reduce(by_log_prob) + entropy_coef
