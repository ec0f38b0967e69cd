"""Loads a user's own network, `module:Class`, and checks at the start that it keeps the contract."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.networks import Inputs, InputSizes
from dppo_redis.service.plugins import first_line, import_named
from dppo_redis.service.process_state import keeping_process_state

_ROWS = 3


class CustomNetwork(nn.Module):
    """The methods of a user's network `Class(sizes, outputs)`; it need not inherit from this class."""

    def policy(self, inputs: Inputs) -> Tensor:
        """Logits, then means: [B, outputs] float32."""
        raise NotImplementedError

    def value(self, inputs: Inputs) -> Tensor:
        """State values: [B] float32."""
        raise NotImplementedError


def load_custom(name: str, sizes: InputSizes, outputs: int) -> CustomNetwork:
    """A user's network: `Class(sizes, outputs)` with `policy(inputs)` and `value(inputs)`.

    `policy` returns [B, outputs] (logits, then means) and `value` returns [B], both float32, for any B. A
    row's output must be the same each time and must not depend on the other rows.

    Raises:
        ConfigurationError: the network cannot be imported, built or copied, or breaks this contract.
    """
    build = import_named(name, "network.custom")
    rows = _example(sizes)
    first = rows.take(slice(0, 1))
    try:
        with keeping_process_state():
            module = build(sizes, outputs)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"a {type(module).__name__} is no torch Module: its parameters would not be found"
            )
        if not any(True for _ in module.parameters()):
            raise TypeError("it has no parameters to train")
        network = cast(CustomNetwork, module.eval())
        with torch.no_grad():
            several, again, alone = ((network.policy(x), network.value(x)) for x in (rows, rows, first))
        network = copy.deepcopy(network)  # as actors do for each publication
    except Exception as error:  # the user's code may raise anything
        raise ConfigurationError(
            f"network.custom: {name} breaks its contract, Class(sizes, outputs) with policy(inputs) and "
            f"value(inputs): {type(error).__name__}: {first_line(error)}"
        ) from error
    for answers, count in ((several, _ROWS), (alone, 1)):
        _check_shape(f"{name}.policy", answers[0], count, (count, outputs))
        _check_shape(f"{name}.value", answers[1], count, (count,))
    for method, one, two, three in zip(("policy", "value"), several, again, alone, strict=True):
        _check_alike(f"{name}.{method}", one, two, "the same rows: eval() must switch off dropout")
        _check_alike(f"{name}.{method}", one[:1], three, "a row alone and among others: it mixes rows")
    return network


def _check_shape(method: str, answer: object, count: int, shape: tuple[int, ...]) -> None:
    found = (tuple(answer.shape), answer.dtype) if isinstance(answer, Tensor) else type(answer).__name__
    if found != (shape, torch.float32):
        rows = f"{count} rows" if count > 1 else "1 row"
        raise ConfigurationError(
            f"network.custom: {method} returned {found} for {rows}, not {shape} of float32"
        )


def _check_alike(method: str, one: Tensor, other: Tensor, inputs: str) -> None:
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ConfigurationError(f"network.custom: {method} returns different outputs for {inputs}")


def _example(sizes: InputSizes) -> Inputs:
    """Random rows, all different."""
    random = torch.Generator().manual_seed(0)
    images = tuple(
        torch.randint(0, int(high) + 1, (_ROWS, *shape), dtype=torch.uint8, generator=random)
        for shape, high in zip(sizes.images, sizes.highs, strict=True)
    )
    allowed = torch.ones((_ROWS, sizes.choices), dtype=torch.bool) if sizes.choices else None
    return Inputs(torch.randn(_ROWS, sizes.features, generator=random), images, allowed)
