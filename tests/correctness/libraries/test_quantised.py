"""Modules of `torch.ao.quantization`: trained with observers, and converted to integers, as in eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import bolide

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.linear = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.conv(self.before(x))).mean((2, 3))
        return self.after(self.linear(hidden))


def prepared() -> Any:
    model = Small().train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")  # observes each channel of a weight
    return quantization.prepare_qat(model)


@pytest.mark.parametrize("called_before", [False, True])
def test_training_with_observers(called_before: bool) -> None:
    mine = prepared()
    if called_before:
        mine(torch.randn(2, 3, 6, 6))
    theirs = copy.deepcopy(mine)
    compiled = bolide.compile(mine)
    for batch, side in ((2, 6), (3, 7), (5, 6)):
        x = torch.randn(batch, 3, side, side)
        got, want = compiled(x), theirs(x)
        torch.testing.assert_close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
    for (name, a), b in zip(mine.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(a, b, msg=name)
    for a, b in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_converted_to_integers() -> None:
    model = prepared()
    model(torch.randn(2, 3, 6, 6))
    whole = quantization.convert(model.eval())
    compiled = bolide.compile(whole)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 6, 6)
        torch.testing.assert_close(compiled(x), whole(x))


def test_linear_layers_in_integers() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    whole = quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    compiled = bolide.compile(whole)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(compiled(x), whole(x))
