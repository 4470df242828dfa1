"""How often a GPU's kernels read and write tensors of full size, and that what they make of these is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import gpu_emulated
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.inductor.ir.definitions import Extern
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.lowering import lower
from bolide.inductor.machine import HOPPER
from tests.schedule_tools import graph_of

ROWS, COLUMNS = 36, 96
SHAPE = (ROWS, COLUMNS)


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, (COLUMNS,), weight, bias)


def _rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x + residual, (COLUMNS,), weight, 1e-6)


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@pytest.mark.parametrize(
    "function, shapes, most, part",
    [
        (_layer_norm, (SHAPE, SHAPE, (COLUMNS,), (COLUMNS,)), 11, HOPPER.part_rows),
        (_layer_norm, (SHAPE, SHAPE, (COLUMNS,), (COLUMNS,)), 8, 2),
        (_rms_norm, (SHAPE, SHAPE, (COLUMNS,)), 10, HOPPER.part_rows),
        (_rms_norm, (SHAPE, SHAPE, (COLUMNS,)), 8, 2),
        (_bias_gelu, (SHAPE, (COLUMNS,)), 6, HOPPER.part_rows),
    ],
)
def test_training_reads_and_writes_little(
    function: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    most: int,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of columns share kernels, also with those of rows, in parts of these; and what takes little to compute is
    neither stored nor loaded."""
    machine = replace(HOPPER, most_row_parts=8, part_rows=part, part_columns=(COLUMNS, COLUMNS))
    monkeypatch.setattr(gpu_emulated, "HOPPER", machine)
    gpu_emulated.emulate(monkeypatch.setattr)
    moved: list[str] = []

    def counted(kernels: Sequence[Kernel], *more: object) -> list[object]:
        for kernel in kernels:
            moved.extend(p.name for p in kernel.params if p.numel.bounds() == (ROWS * COLUMNS, ROWS * COLUMNS))
        return compiled(kernels)

    compiled = gpu_emulated.compiled
    monkeypatch.setattr("bolide.inductor.compiled_graph.compile_kernels", counted)
    arguments = [torch.randn(shape, requires_grad=True) for shape in shapes]
    given = torch.randn(SHAPE)
    eager = torch.autograd.grad(function(*arguments), arguments, given)
    result = bolide.compile(function)(*arguments)
    torch.testing.assert_close(result, function(*arguments))
    for mine, theirs in zip(torch.autograd.grad(result, arguments, given), eager):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert len(moved) <= most, moved


def test_gradients_through_a_batch_norm_are_not_stored_in_between(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The forward reads its input twice, the backward the input and the gradient: for their sums, then for the
    input's gradient."""
    torch.manual_seed(seed)
    machine = replace(HOPPER, row_length=1 << 6, long_moments=1 << 6)
    monkeypatch.setattr(gpu_emulated, "HOPPER", machine)
    gpu_emulated.emulate(monkeypatch.setattr)
    moved: list[str] = []

    def counted(kernels: Sequence[Kernel], *more: object) -> list[object]:
        for kernel in kernels:
            moved.extend(p.name for p in kernel.params if p.numel.bounds() == (x.numel(), x.numel()))
        return compiled(kernels)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))

    compiled = gpu_emulated.compiled
    monkeypatch.setattr("bolide.inductor.compiled_graph.compile_kernels", counted)
    x, weight, bias = torch.randn(16, 4, 8, 8), torch.rand(4) + 0.5, torch.randn(4)
    arguments = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    given = torch.randn_like(x)
    eager = torch.autograd.grad(function(*arguments), arguments, given)
    result = bolide.compile(function)(*arguments)
    torch.testing.assert_close(result, function(*arguments))
    for mine, theirs in zip(torch.autograd.grad(result, arguments, given), eager):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert len(moved) <= 7, moved


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_norm_as_a_gpu_calls_it(layout: torch.memory_format, seed: int) -> None:
    """cuDNN's operator is compiled as the native one: outputs, gradients, running statistics."""
    torch.manual_seed(seed)

    def cudnn(x: Tensor, *more: Tensor, training: bool = True) -> Tensor:
        return torch.ops.aten.cudnn_batch_norm(x, *more, training, 0.1, 1e-5)[0].relu()

    def native(x: Tensor, weight: Tensor, bias: Tensor, *statistics: Tensor, training: bool = True) -> Tensor:
        return F.batch_norm(x, *statistics, weight, bias, training, 0.1, 1e-5).relu()

    x = torch.randn(3, 5, 4, 6).to(memory_format=layout)
    compiled = bolide.compile(cudnn, fullgraph=True)
    for training in (True, False):
        found = []
        statistics = torch.randn(5), torch.rand(5) + 0.5
        for function in (compiled, native):
            learned = [t.clone().requires_grad_() for t in (x, torch.arange(5.0), torch.ones(5))]
            own = [t.clone() for t in statistics]
            result = function(*learned, *own, training=training)
            assert result.is_contiguous(memory_format=layout)
            gradients = torch.autograd.grad(result, learned, x + 1)
            found.append([result.detach(), *own, *gradients])
        for mine, theirs in zip(*found):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_the_backward_of_rms_norm_as_a_gpu_calls_it(dtype: torch.dtype, mask: tuple[bool, bool], seed: int) -> None:
    torch.manual_seed(seed)
    rows, shape = int(torch.randint(1, 9, ())), tuple(torch.randint(1, 20, (int(torch.randint(1, 3, ())),)).tolist())
    x, grad, weight = torch.randn(2, rows, *shape), torch.randn(2, rows, *shape), torch.rand(shape) + 0.5
    x, grad, weight = (t.to(dtype) for t in (x, grad, weight))
    dims = [*range(2, x.dim())]
    inverse = (x.double().square().mean(dims, keepdim=True) + 1e-6).rsqrt()
    inverse = inverse.to(dtype if dtype is torch.float64 else torch.float32)

    @bolide.compile(fullgraph=True)
    def backward(grad: Tensor, x: Tensor, inverse: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        results = torch.ops.aten._fused_rms_norm_backward(grad, x, shape, inverse, weight, mask)
        return tuple(t for t, wanted in zip(results, mask) if wanted)

    exact = [t.double().requires_grad_() for t in (x, weight)]
    wanted = [t for t, is_wanted in zip(exact, mask) if is_wanted]
    expected = torch.autograd.grad(F.rms_norm(exact[0], shape, exact[1], 1e-6), wanted, grad.double())
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float64: 1e-9}[dtype]
    for mine, theirs in zip(backward(grad, x, inverse, weight), expected, strict=True):
        torch.testing.assert_close(mine, theirs.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("again", [False, True])
def test_indices_of_calls_are_not_looked_at_before(again: bool) -> None:
    """A call asserts that its indices are right; who else reads by them still does so itself."""
    x, source, index = torch.randn(6, 5), torch.randn(6, 5), torch.randint(0, 6, (6, 5))

    def reduced(x: Tensor, index: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        return x.scatter_reduce(0, index, source, "amax"), *([x.gather(0, index)] if again else [])

    program = lower(graph_of(reduced, [x, index, source])[0], machine=HOPPER)
    calls = [str(definition.op) for definition in program.definitions if isinstance(definition, Extern)]
    assert "aten.scatter_reduce.two" in calls and len(calls) == 1 + again, calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_are_no_whole_numbers_of_128_bits_are_stored_one_after_the_other(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_emulated.emulate(monkeypatch.setattr)
    rows, columns = int(torch.randint(2, 9, ())), 2 * int(torch.randint(5, 40, ())) + 1
    x, y = torch.randn(3, rows, columns).to(dtype), torch.randn(3, rows, 16).to(dtype)
    programs: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        lambda x, y: F.pad(x, (1, 1, 2, 1)),
        lambda x, y: F.pad(x, (3, 5), mode="reflect"),
        lambda x, y: torch.cat([x, y, x], -1).relu(),
        lambda x, y: x + x[0, 0],
        lambda x, y: x.flip(-1) * 2,
        lambda x, y: x * x.exp() + x.roll(1, 0) * x[:1] + x[0, 0] + x[1, 0] + x.flip(0),
        lambda x, y: F.max_pool2d(x, 2, 1),
    )
    for program in programs:
        torch.testing.assert_close(bolide.compile(program)(x, y), program(x, y))
    for program in programs[:6]:
        assert "one after the other" in str(bolide.explain(program)(x, y))
    for length in (64, 3):
        assert "one after the other" not in str(
            bolide.explain(lambda x, y: y * y[0])(x, torch.randn(6, length).to(dtype))
        )
