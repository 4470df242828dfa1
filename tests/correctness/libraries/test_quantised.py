"""Modules of `torch.ao.quantization`: trained with observers, and converted to integers, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import bolide
from tests.ordinary_tools import check_whole

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


LOW, HIGH = -8, 7
"""The range of the integers, in which a zero point must lie."""


def _parameters(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count) * 0.1 + 0.02, torch.randint(LOW, HIGH + 1, (count,), dtype=torch.int32)


def _fused(x: torch.Tensor) -> torch.Tensor:
    on, low, high = torch.ones(1, dtype=torch.int64), torch.full((1,), -1.0), torch.ones(1)
    scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    return torch.fused_moving_avg_obs_fake_quant(x, on, on, low, high, scale, zero, 0.1, 0, 255, -1)


FAKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, LOW, HIGH),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, *SCALE, LOW, HIGH),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, *SCALES, 1, LOW, HIGH),
    "observed": lambda x: torch.fake_quantize_per_tensor_affine(
        x, x.detach().abs().max() / 7, torch.zeros((), dtype=torch.int32), LOW, HIGH
    ),
    "fused": _fused,
}
SCALE, SCALES = [part[0] for part in _parameters(1)], _parameters(3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", FAKE)
def test_fake_quantisation_of_any_size(name: str, layout: torch.memory_format) -> None:
    """Two versions for all sizes, with gradients."""

    def program(compile: Any) -> Any:
        fast, seen = compile(lambda x: FAKE[name](x) * 2), []
        for batch, side in ((2, 6), (4, 7), (5, 9), (3, 8)):
            x = torch.randn(batch, 3, side, side + 3).contiguous(memory_format=layout).requires_grad_()
            y = fast(x)
            y.square().sum().backward()
            seen += [y, x.grad]
        return seen

    check_whole(program, drawn=False)
