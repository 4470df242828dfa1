"""Convolutions of large activations run in channels_last; what leaves the function has eager's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bolide
from bolide.functorch import compile_trace, interpret
from bolide.functorch.passes import channels_last
from bolide.tracing import Trace
from bolide.tracing.libraries import POLICIES

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.Conv2d(32, 96, 1)
        self.inner, self.last = nn.Conv2d(96, 16, 3, padding=1), nn.Conv2d(16, 8, 3, stride=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(32), nn.BatchNorm2d(96)])

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.norms[0](self.stem(x)))
        pooled = F.max_pool2d(x, 3, 2, 1)
        x = self.norms[1](self.wide(x)).relu()
        inner = self.inner(x)
        padded = F.pad(torch.cat([inner, inner.sin()], 1)[:, :16], (1, 0, 1, 1))
        return inner, pooled, self.last(padded), x.mean((2, 3)), x.flatten(2).softmax(-1), inner.transpose(1, 3)


def images() -> torch.Tensor:
    return torch.randn(4, 3, 192, 192)


def graphs(fn: Callable[..., Any], x: torch.Tensor) -> dict[str, Any]:
    """The graphs compiled for fn(x), by kind."""
    found: dict[str, Any] = {}

    def compiler(module: Any, info: Any) -> Any:
        module.graph.lint()
        found[info.kind] = module.graph
        return interpret(module, info)

    trace = Trace()
    traced = trace.input(x, "x")
    with trace.recording():
        out = fn(traced)
    compile_trace(trace, [out], forward_compiler=compiler, backward_compiler=compiler)
    return found


@pytest.mark.parametrize("training", [False, True])
def test_results_and_strides_are_eagers(training: bool) -> None:
    net, x = Net().train(training), images()
    with torch.no_grad():
        expected, actual = net(x), bolide.compile(net)(x)
    for ours, eagers in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4, check_stride=True)


def test_gradients_are_eagers() -> None:
    net, x = Net(), images()
    found = []
    for run in (net, bolide.compile(net)):
        net.zero_grad()
        sum(part.square().mean() for part in run(x)).backward()
        found.append([p.grad for p in net.parameters()])
    for eagers, ours in zip(*found, strict=True):
        # An element where relu bends may count or not: against float64 eager's errors reach 1e-3 of the largest.
        near = 1e-5 + 5e-3 * float(eagers.abs().max())
        torch.testing.assert_close(ours, eagers, rtol=0, atol=near, check_stride=True)


def two_convolutions(x: torch.Tensor) -> torch.Tensor:
    first = F.conv2d(x, x[:1, :, :7, :7].repeat(32, 1, 1, 1)).relu()
    return F.conv2d(first, first[:, :, :3, :3].contiguous())


def test_only_large_convolutions_are_channels_last() -> None:
    layouts = []
    for size in (192, 32):
        graph = graphs(two_convolutions, torch.randn(4, 3, size, size))["inference"]
        convolutions = graph.find_nodes(op="call_function", target=aten.convolution.default)
        layouts.append(["last" if node.meta["val"].stride[1] == 1 else "row-major" for node in convolutions])
    assert layouts == [["last", "row-major"], ["row-major", "row-major"]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_has_all_convolutions_of_16_bits_in_channels_last(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_last, "policy_of", lambda device: POLICIES["cuda"])
    net, x = Net().eval().to(dtype), torch.randn(2, 3, 40, 40, dtype=dtype)
    with torch.no_grad():
        graph = graphs(lambda x: net(x)[2], x)["inference"]
        expected, actual = net(x), bolide.compile(net)(x)
    for ours, eagers in zip(actual, expected, strict=True):
        tolerance = 1e-4 if dtype is torch.float32 else 6e-2
        torch.testing.assert_close(ours, eagers, rtol=tolerance, atol=tolerance, check_stride=True)
    convolutions = graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert {node.meta["val"].stride[1] == 1 for node in convolutions} == {dtype is torch.bfloat16}


def test_convolutions_of_groups_keep_the_order_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "policy_of", lambda device: POLICIES["cuda"])
    shapes = (16, 3, 3, 3), (16, 1, 3, 3), (32, 4, 1, 1), (8, 32, 1, 1)
    weights = [torch.randn(*shape, dtype=torch.bfloat16) for shape in shapes]

    def program(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = F.conv2d(x, weight, groups=x.shape[1] // weight.shape[1]).relu()
        return x

    x = torch.randn(2, 3, 20, 20, dtype=torch.bfloat16)
    graph = graphs(program, x)["inference"]
    assert len(graph.find_nodes(op="call_function", target=aten.clone.default)) == 2  # at the ends
    torch.testing.assert_close(bolide.compile(program)(x), program(x), rtol=6e-2, atol=6e-2, check_stride=True)


def test_channels_last_models_stay_as_they_are() -> None:
    net = Net().eval().to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected, actual = net(x), bolide.compile(net)(x)
    for ours, eagers in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4, check_stride=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_of_each_channel_are_channels_last(dtype: torch.dtype) -> None:
    """Also with joined, resized and normalised values behind them."""
    weights = [torch.randn(48, 1, 3, 3, dtype=dtype), torch.randn(48, 1, 7, 7, dtype=dtype), torch.randn(8, 48, 1, 1)]

    def program(x: torch.Tensor) -> Any:
        first = F.conv2d(x, weights[0], padding=1, groups=48).relu()
        second = F.conv2d(first, weights[1], padding=3, stride=2, groups=48)
        joined = torch.cat([first, F.interpolate(second, scale_factor=2)], 1)
        normal = F.group_norm(joined, 8)
        return joined, normal, F.conv2d(normal[:, 48:], weights[2].to(dtype)).flatten(2), second.transpose(1, 3)

    x = torch.randn(2, 48, 32, 32, dtype=dtype)
    with torch.no_grad():
        actual, expected = bolide.compile(program)(x), program(x)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for ours, eagers in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eagers, **close, check_stride=True)
    graph = graphs(lambda x: F.conv2d(x, x[:48, :1, :3, :3].contiguous(), groups=48), torch.randn(48, 48, 8, 8))
    (convolution,) = graph["inference"].find_nodes(op="call_function", target=aten.convolution.default)
    assert convolution.meta["val"].stride[1] == 1


def test_joined_convolutions() -> None:
    weight = torch.randn(32, 3, 3, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.conv2d(x, weight), F.conv2d(x + 1, weight)], 1).relu()

    x = images()
    with torch.no_grad():
        torch.testing.assert_close(bolide.compile(program)(x), program(x), rtol=1e-4, atol=1e-4)
