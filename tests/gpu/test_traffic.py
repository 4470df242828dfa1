"""How often a GPU's kernels read and write tensors of full size, and that what they make of these is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gpu_emulated
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.inductor.ir.loops import Kernel

ROWS, COLUMNS = 36, 96
SHAPE = (ROWS, COLUMNS)


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, (COLUMNS,), weight, bias)


def _rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x + residual, (COLUMNS,), weight, 1e-6)


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@pytest.mark.parametrize(
    "function, shapes, most",
    [
        (_layer_norm, (SHAPE, SHAPE, (COLUMNS,), (COLUMNS,)), 11),
        (_rms_norm, (SHAPE, SHAPE, (COLUMNS,)), 10),
        (_bias_gelu, (SHAPE, (COLUMNS,)), 6),
    ],
)
def test_training_reads_and_writes_little(
    function: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of columns share kernels, and what takes little to compute is neither stored nor loaded."""
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
