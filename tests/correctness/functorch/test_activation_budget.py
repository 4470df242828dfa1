"""`config.activation_memory_budget`: what is saved for the backward stays within it, and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.functorch import config
from bolide.functorch.cost import node_bytes
from bolide.functorch.cuts import budget
from bolide.functorch.partitioners import Joint, Partition

BUDGETS = (1.0, 0.5, 0.1)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.mT, -1) @ v
        return x + self.down(nn.functional.gelu(self.up(x)))


class Drops(nn.Module):
    """Random numbers, what is written in place, several results and a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.conv = nn.Linear(width, width), nn.Conv1d(2, 2, 3, padding=1)
        self.batch = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(self.first(x).relu_(), 0.3)
        y = self.batch(self.conv(y)) * x.sort(-1).values
        return torch.cumsum(y, -1).tanh_() + y.exp().amax(-1, keepdim=True)


def kept_bytes(program: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """The bytes that a forward saves, parameters left out."""
    known, seen = {parameter.data_ptr() for parameter in parameters}, {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = program()
    del result
    return sum(size for address, size in seen.items() if address not in known)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layer", [Layer, Drops])
def test_gradients_are_eagers_and_fewer_bytes_are_saved(layer: Any, dynamic: bool | None) -> None:
    width = 16
    module = nn.Sequential(*(layer(width) for _ in range(3))).double()
    parameters, saved = list(module.parameters()), []
    x = torch.randn(3, 2, width, dtype=torch.float64, requires_grad=True)
    for share in BUDGETS:
        bolide.reset()
        compiled = bolide.compile(module, dynamic=dynamic)
        with config.patch(activation_memory_budget=share):
            for rows in (3, 5):
                y = torch.randn(rows, 2, width, dtype=torch.float64, requires_grad=True)
                found = []
                for function in (compiled, module):
                    state = {name: value.clone() for name, value in module.state_dict().items()}
                    torch.manual_seed(rows)
                    result = function(y) if layer is Layer else function(y.clone())
                    found.append((result, *torch.autograd.grad(result.sin().sum(), [y, *parameters])))
                    module.load_state_dict(state)
                if layer is Layer:  # random numbers are others than eager's
                    torch.testing.assert_close(*found)
            saved.append(kept_bytes(partial(compiled, x), parameters))
    assert saved == sorted(saved, reverse=True), saved
    assert saved[1] <= 0.6 * saved[0] and saved[-1] <= 0.3 * saved[0], saved


def test_random_numbers_are_drawn_once() -> None:
    """What was dropped in the forward is what has no gradient."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = nn.functional.dropout((x @ w).tanh(), 0.5)
        return x

    w = torch.eye(64) * 2
    for share in BUDGETS:
        bolide.reset()
        with config.patch(activation_memory_budget=share):
            x = torch.randn(8, 64, requires_grad=True)
            result = bolide.compile(program)(x, w)
            (gradient,) = torch.autograd.grad(result.sum(), x)
            assert torch.equal(gradient != 0, result != 0), share


def partitions(module: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> dict[float, list[Any]]:
    """What is saved, by budget."""
    made: dict[float, list[Any]] = {}
    plain = budget.partition_within

    def seen(joint: Joint, share: float, *args: Any) -> Partition:
        parts = plain(joint, share, *args)
        made[share] = [node for node in parts.saved if node.op != "placeholder"]
        return parts

    monkeypatch.setattr(budget, "partition_within", seen)
    for share in [place / 12 for place in range(12)]:
        bolide.reset()
        with config.patch(activation_memory_budget=share):
            bolide.compile(module)(x)
    return made


def test_a_smaller_budget_never_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(*(Layer(32) for _ in range(3)))
    made = partitions(module, torch.randn(2, 8, 32), monkeypatch)
    sizes = [sum(map(node_bytes, made[share])) for share in sorted(made)]
    assert len(sizes) == 12 and sizes == sorted(sizes) and len(set(sizes)) > 6, sizes


@pytest.mark.parametrize("share", [-0.1, 1.5, 2])
def test_a_share_is_between_0_and_1(share: float) -> None:
    x = torch.randn(4, requires_grad=True)
    with config.patch(activation_memory_budget=share), pytest.raises(Exception, match="not a share between 0 and 1"):
        bolide.compile(lambda x: (x.sin() * x).exp())(x).sum().backward()
