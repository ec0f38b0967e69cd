"""Users' networks: some are valid, others break the contract."""

import torch
from torch import Tensor, nn

from dppo_redis.policy.networks import Inputs, InputSizes


class Noisy(nn.Module):
    """It has layers that act differently in training: dropout and batch statistics."""

    def __init__(self, sizes: InputSizes, outputs: int) -> None:
        super().__init__()
        pixels = sum(channels * height * width for channels, height, width in sizes.images)
        self.body = nn.Sequential(
            nn.Linear(sizes.features + pixels, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(16, outputs)
        self.critic = nn.Linear(16, 1)

    def policy(self, inputs: Inputs) -> Tensor:
        outputs: Tensor = self.head(self._features(inputs))
        return outputs

    def value(self, inputs: Inputs) -> Tensor:
        values: Tensor = self.critic(self._features(inputs)).squeeze(-1)
        return values

    def _features(self, inputs: Inputs) -> Tensor:
        parts = [inputs.vector, *(image.flatten(1).float() / 255 for image in inputs.images)]
        features: Tensor = self.body(torch.cat(parts, dim=-1))
        return features


class Linear(nn.Module):
    """A minimal valid network; subclasses break one part of it each."""

    def __init__(self, sizes: InputSizes, outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(sizes.features, outputs + 1)

    def policy(self, inputs: Inputs) -> Tensor:
        outputs: Tensor = self.body(inputs.vector)[:, 1:]
        return outputs

    def value(self, inputs: Inputs) -> Tensor:
        values: Tensor = self.body(inputs.vector)[:, 0]
        return values


class Slow(Linear):
    """Counts how often it was built."""

    built = 0

    def __init__(self, sizes: InputSizes, outputs: int) -> None:
        super().__init__(sizes, outputs)
        Slow.built += 1


class ReadsMask(Linear):
    """Looks at the action mask, which is there wherever the environment has one."""

    def policy(self, inputs: Inputs) -> Tensor:
        assert inputs.mask is not None
        return super().policy(inputs) + inputs.mask.float()


class LooksAtNumbers(Linear):
    """Good enough to act and to train, but no graph can hold what depends on the numbers themselves."""

    def policy(self, inputs: Inputs) -> Tensor:
        signs = [1.0 if total >= 0 else -1.0 for total in inputs.vector.detach().sum(dim=1).tolist()]
        return torch.tensor(signs)[:, None] * super().policy(inputs)


class CannotBeCopied(Linear):
    def __deepcopy__(self, memo: object) -> "CannotBeCopied":
        raise TypeError("it holds a socket")


class TooManyOutputs(Linear):
    def policy(self, inputs: Inputs) -> Tensor:
        outputs: Tensor = self.body(inputs.vector)
        return outputs


class ColumnOfValues(Linear):
    """[B, 1] instead of [B], which would broadcast."""

    def value(self, inputs: Inputs) -> Tensor:
        return super().value(inputs).unsqueeze(-1)


class Squeezed(Linear):
    """For a single row it returns [] instead of [1]."""

    def value(self, inputs: Inputs) -> Tensor:
        return super().value(inputs).unsqueeze(-1).squeeze()


class AlwaysDropping(Linear):
    """Its dropout stays on in eval()."""

    def policy(self, inputs: Inputs) -> Tensor:
        return nn.functional.dropout(super().policy(inputs))


class Attending(Linear):
    """Treats the rows of a batch as the steps of a sequence."""

    def value(self, inputs: Inputs) -> Tensor:
        values = super().value(inputs)
        return torch.softmax(torch.outer(values, values), dim=-1) @ values


class DoubleValues(Linear):
    def value(self, inputs: Inputs) -> Tensor:
        return super().value(inputs).double()


class ArrayPolicy(Linear):
    def policy(self, inputs: Inputs) -> Tensor:
        result: Tensor = super().policy(inputs).numpy()  # type: ignore[assignment]
        return result


class NoValue(nn.Module):
    def __init__(self, sizes: InputSizes, outputs: int) -> None:
        super().__init__()
        self.policy = nn.Linear(sizes.features, outputs)


class NoArguments(nn.Module):
    pass


class Raises(Linear):
    def policy(self, inputs: Inputs) -> Tensor:
        del inputs
        raise RuntimeError("the two shapes do not fit\nsecond line")


class NoModule:
    """Its parameters would never be trained."""

    def __init__(self, sizes: InputSizes, outputs: int) -> None:
        self.body = nn.Linear(sizes.features, outputs + 1)

    policy = Linear.policy
    value = Linear.value
