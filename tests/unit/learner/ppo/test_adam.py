"""Our Adam beside torch's own: the same steps bit for bit, and each reads the other's state."""

import copy
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from learner.ppo.adam import Adam


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False))


def _ours(parameters: Iterator[nn.Parameter]) -> Adam | torch.optim.Adam:
    return Adam(parameters, lr=1e-2, eps=1e-5)


def _torchs(parameters: Iterator[nn.Parameter]) -> Adam | torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=1e-2, eps=1e-5, fused=True)


def take_steps(model: nn.Module, optimizer: Adam | torch.optim.Adam, count: int, seed: int) -> None:
    rows = torch.randn(count, 7, 3, generator=torch.Generator().manual_seed(seed))
    for some in rows:
        optimizer.zero_grad()
        model(some).square().sum().backward()
        optimizer.step()


def assert_equal(mine: nn.Module, theirs: nn.Module) -> None:
    for own, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)


def test_it_takes_the_steps_of_torch_bit_for_bit() -> None:
    mine, theirs = network(0), network(0)
    ours = Adam(mine.parameters(), lr=1e-2, eps=1e-5)
    torchs = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-5, fused=True)
    for model, optimizer in ((mine, ours), (theirs, torchs)):
        take_steps(model, optimizer, 20, seed=1)
    assert_equal(mine, theirs)
    assert ours.state_dict()["param_groups"] == torchs.state_dict()["param_groups"]
    assert ours.state_dict()["state"].keys() == torchs.state_dict()["state"].keys()


def test_a_parameter_without_a_gradient_keeps_its_value_and_has_no_state() -> None:
    model = network(0)
    optimizer = Adam(model.parameters(), lr=1e-2, eps=1e-5)
    last = list(model.parameters())[2]
    before = last.clone()
    nn.Sequential(*list(model)[:1])(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(last, before)
    assert list(optimizer.state_dict()["state"]) == [0, 1]


@pytest.mark.parametrize("ours_first", [True, False])
def test_each_adam_continues_from_the_state_of_the_other(ours_first: bool) -> None:
    first, straight = network(0), network(0)
    kinds = (_ours, _torchs)
    before, after = kinds if ours_first else kinds[::-1]
    begun, whole = before(first.parameters()), before(straight.parameters())
    take_steps(first, begun, 5, seed=1)
    take_steps(straight, whole, 5, seed=1)
    second = network(7)
    gone_on = after(second.parameters())
    second.load_state_dict(first.state_dict())
    gone_on.load_state_dict(copy.deepcopy(begun.state_dict()))
    take_steps(second, gone_on, 5, seed=2)
    take_steps(straight, whole, 5, seed=2)
    assert_equal(second, straight)


def test_a_state_of_other_parameters_is_refused() -> None:
    model, other = network(0), nn.Linear(3, 5)
    optimizer, foreign = (Adam(each.parameters(), 1e-2, 1e-5) for each in (model, other))
    with pytest.raises(ValueError, match="2 parameters, not 3"):
        optimizer.load_state_dict(foreign.state_dict())
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    misfit = Adam(twin.parameters(), 1e-2, 1e-5)
    take_steps(twin, misfit, 1, seed=0)
    with pytest.raises(ValueError, match=r"the shape \(5, 3\)"):
        optimizer.load_state_dict(misfit.state_dict())


def test_neither_it_nor_a_step_imports_the_compiler() -> None:
    code = (
        "import sys, torch; from learner.ppo.adam import Adam; model = torch.nn.Linear(2, 1); "
        "optimizer = Adam(model.parameters(), 1e-2, 1e-5); model(torch.ones(1, 2)).sum().backward(); "
        "optimizer.step(); sys.exit('torch._dynamo' in sys.modules or 'sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
