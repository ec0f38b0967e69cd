"""One publication of weights: the policy's arrays, its identity and the update that made it."""

from dataclasses import dataclass

from dppo_redis.spaces.observations import FloatArray

NORMALISER_MEAN = "normaliser.mean"
NORMALISER_INVERSE_STD = "normaliser.inverse_std"
_NORMALISER = (NORMALISER_MEAN, NORMALISER_INVERSE_STD)


@dataclass(frozen=True)
class WeightsId:
    """The identity of a publication; actors fetch any publication whose identity differs from theirs."""

    epoch: int  # of the learner's lease
    version: int  # number of the publication


@dataclass(frozen=True)
class Weights:
    """One publication. It holds only the arrays that acting needs; they are read-only after decoding."""

    epoch: int
    version: int
    update: int  # updates completed when these weights were made
    trained_steps: int  # valid steps trained on until then
    settled_steps: int  # valid steps of all settled rollouts until then
    spec: str  # digest
    arrays: dict[str, FloatArray]  # by parameter name, each in any shape

    @property
    def id(self) -> WeightsId:
        return WeightsId(self.epoch, self.version)

    def network_arrays(self) -> dict[str, FloatArray]:
        """The network's parameters by name, without the normaliser; arrays of any shape."""
        return {name: x for name, x in self.arrays.items() if name not in _NORMALISER}
