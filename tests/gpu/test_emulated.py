"""A few programs, drawn by the seed, compiled for a GPU that this machine plays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import gpu_emulated
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.inductor.codegen.cuda.held import held_by_threads
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import HOPPER

SWEEP = Path(__file__).with_name("sweep.py")
SLOW = ("model", "math", "1000", "5000", "5001", "768", "long", "large", "tall")


@pytest.mark.parametrize("device", ["emulated", "native"])
def test_some_programs(device: str, seed: int) -> None:
    checked(device, seed, "--count", "4", "--without", *SLOW)


@pytest.mark.parametrize("device", ["emulated", "native"])
def test_programs_of_nothing(device: str, seed: int) -> None:
    """Tensors without elements are what schedules, and what joins launches, divide by."""
    checked(device, seed, "--only", "empty")


def test_sums_of_any_length(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Threads add up several elements at a time, and the rest one by one."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)
    fast = bolide.compile(lambda x: (x.sum(0), x.argmax(0), (x * x).sum(1)), dynamic=True, fullgraph=True)
    for rows in (*range(2, 20), 31, 33):
        x = torch.randn(rows, 5)
        for mine, theirs in zip(fast(x), (x.sum(0), x.argmax(0), (x * x).sum(1)), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_rows_of_several_axes_from_either_end(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every other pass over a row begins with what the last one has read last."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)

    def normed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shifted = (x - x.amax((2, 3), keepdim=True)).exp()
        return F.silu(F.group_norm(x, 2, weight)), shifted / shifted.sum((2, 3), keepdim=True), x.var((1, 2, 3))

    for _ in range(3):
        channels, height, width = torch.randint(1, 6, ()).item() * 2, *torch.randint(2, 40, (2,)).tolist()
        x, weight = torch.randn(3, channels, height, width).transpose(2, 3), torch.rand(channels)
        for given in (x, x.contiguous()):
            for mine, theirs in zip(bolide.compile(normed, dynamic=False)(given, weight), normed(given, weight)):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_that_a_pass_over_rows_stores_as_well(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The gradient through an activation goes to a batch norm, for two sums and then its input, and past it."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)

    def residual(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(x, None, None, weight, bias, training=True) + y)

    for batch, channels, size in ((2, 256, 2), *torch.randint(2, 20, (3, 3)).tolist()):
        x, y = (torch.randn(batch, channels, size, size, requires_grad=True) for _ in range(2))
        arguments = [x, y, *(torch.rand(channels).add(0.5).requires_grad_() for _ in range(2))]
        given = torch.randn_like(x)
        result, expected = bolide.compile(residual, dynamic=False)(*arguments), residual(*arguments)
        torch.testing.assert_close(result, expected)
        theirs = torch.autograd.grad(expected, arguments, given)
        torch.testing.assert_close(torch.autograd.grad(result, arguments, given), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_columns_of_any_length_in_parts(dynamic: bool, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What is left behind parts of one length, each part takes an element of."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), (1 + x / 1e3).prod(0), x.amin(0), (x > 3.4).any(0), x.argmax(0)

    fast = bolide.compile(reduced, dynamic=dynamic, fullgraph=True)
    for rows in (4099, 4160, 5, 70) if dynamic else (4099,):
        x = torch.randn(rows, 3)
        for mine, theirs in zip(fast(x), reduced(x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_edges_and_places_that_data_say(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of rows of any length, some of which threads share evenly: padding, windows, gathers, whole rows of tables."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)

    def moved(x: Tensor, table: Tensor, index: Tensor, rows: Tensor, left: int, right: int) -> tuple[Tensor, ...]:
        padded = F.pad(x, (left, right, 1, 2))
        pooled = F.max_pool2d(x, 3, 2, 1) if x.dtype is not torch.int8 else x
        return padded, pooled, F.pad(x, (-left, right)), table.gather(1, index), table[rows], F.embedding(rows, table)

    for length in (8, 16, *torch.randint(5, 70, (3,)).tolist()):
        x, table = (torch.randn(shape).mul(9).to(dtype) for shape in ((2, 5, length), (7, length)))
        index, rows = torch.randint(length, (7, 2 * length)), torch.randint(7, (3, 4))
        left, right = torch.randint(0, 4, (2,)).tolist()
        fast = bolide.compile(moved, fullgraph=True, dynamic=False)
        arguments = (x, table, index, rows, left, right)
        for mine, theirs in zip(fast(*arguments), moved(*arguments), strict=True):
            assert torch.equal(mine, theirs)


def checked(device: str, seed: int, *which: str) -> None:
    options = ["--device", device, "--jobs", "1", "--each", "100", "--seed", str(seed % 10000), *which]
    done = subprocess.run([sys.executable, SWEEP, *options], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, (x.shape[-1],), weight, bias)


def _rms_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.rms_norm(x + residual + bias, (x.shape[-1],), weight, 1e-6)


def _times(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + bias, (x.shape[-1],), weight) * residual


@pytest.mark.parametrize("shapes", [[(24, 32), (23, 32), (90, 32)], [(3, 7, 48), (2, 5, 48)], [(37, 1100)]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [_layer_norm, _rms_norm, _times])
def test_sums_of_columns_beside_those_of_rows(
    function: Callable[..., Tensor],
    dtype: torch.dtype,
    shapes: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Parts of rows, of which the last one may be short, for sizes that change from the second call on; and arguments
    that do not start at a multiple of 16 bytes."""
    machine = replace(HOPPER, most_row_parts=5, part_rows=2, part_columns=(16, 1 << 11))
    monkeypatch.setattr(gpu_emulated, "HOPPER", machine)
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)
    made: list[Kernel] = []
    compiled = gpu_emulated.compiled

    def noted(kernels: Sequence[Kernel], *more: object) -> list[object]:
        made.extend(kernels)
        return [*compiled(kernels)]

    monkeypatch.setattr("bolide.inductor.compiled_graph.compile_kernels", noted)
    fast = bolide.compile(function, fullgraph=True)
    for shape in (*shapes, shapes[-1]):
        size = torch.Size(shape).numel()
        first = int(shape is shapes[-1])
        full = [torch.randn(size + 1).to(dtype)[first : size + first].view(shape).requires_grad_() for _ in range(2)]
        arguments = [*full, *(torch.randn(shape[-1]).to(dtype).requires_grad_() for _ in range(2))]
        given = torch.randn(shape).to(dtype)
        wide = [each.detach().double().requires_grad_() for each in arguments]
        result, expected = fast(*arguments), function(*wide)
        mine = [result, *torch.autograd.grad(result, arguments, given)]
        theirs = [expected, *torch.autograd.grad(expected, wide, given.double())]
        for one, other in zip(mine, theirs, strict=True):
            error = (one.double() - other).abs().max() / other.abs().max()
            assert error < (1e-6 if dtype is torch.float32 else 2e-2)
    assert any(held_by_threads(kernel) for kernel in made)
