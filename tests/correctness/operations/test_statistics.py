"""Statistics of long rows, which a GPU makes in one pass, and norms whose result the backward makes again."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
import gpu_emulated

import bolide
from bolide.inductor import compiled_graph
from bolide.inductor.machine import HOPPER
from tests.plan_tools import plans


@pytest.fixture
def one_pass(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU, played, that reads rows of more than 100 bytes once."""
    gpu_emulated.emulate(monkeypatch.setattr)
    monkeypatch.setattr(compiled_graph, "_machine_of", lambda gm: replace(HOPPER, long_moments=100))
    bolide.reset()
    yield
    bolide.reset()


def random_rows(rng: random.Random) -> tuple[Tensor, tuple[int, ...]]:
    """Rows with a mean far from 0, a trend, or a part that is far from the rest, and the dimensions of a row."""
    shape = (rng.randint(2, 4), rng.randint(1, 5), rng.randint(5, 12), rng.randint(5, 12))
    dims = rng.choice([(2, 3), (0, 2, 3), (0, 1, 2, 3), (1, 2, 3)])
    x = torch.randn(shape, dtype=torch.float64)
    kind = rng.choice(["plain", "far", "trend", "first", "same", "small", "large"])
    if kind == "far":
        x += 1000.0
    elif kind == "trend":
        x += torch.arange(x.numel()).reshape(shape)
    elif kind == "first":
        x[0] += 300.0
        x[:, :, 0] -= 40.0
    elif kind == "same":
        x = torch.full(shape, 3.7, dtype=torch.float64)
    elif kind == "small":
        x *= 1e-6
    elif kind == "large":
        x = (x + torch.arange(x.numel()).reshape(shape)) * 1e14
    return x, dims


def test_one_pass_is_as_exact_as_two(one_pass: None, seed: int) -> None:
    """Within 64 roundings of the true variance, and 1e-9 of the square of the largest number."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(5):
        x, dims = random_rows(rng)
        x32 = x.float()
        variance, mean = bolide.compile(lambda x, dims=dims: torch.var_mean(x, dims, correction=0))(x32)
        true, true_mean = torch.var_mean(x32.double(), dims, correction=0)
        torch.testing.assert_close(mean.double(), true_mean, rtol=1e-6, atol=1e-6 * float(x.abs().max()))
        torch.testing.assert_close(variance.double(), true, rtol=1e-5, atol=1e-9 * float(x.abs().max()) ** 2)


def test_rows_that_are_computed_are_kept_for_two_passes(one_pass: None) -> None:
    """They would have to be stored for the part that is read before."""
    x = torch.randn(3, 200)
    with plans() as found:
        torch.testing.assert_close(bolide.compile(lambda x: (x.sin() * 2).var(1))(x), (x.sin() * 2).var(1))
    assert len(found[0].plan.kernels) == 1


def test_infinities_are_as_in_eager(one_pass: None) -> None:
    x = torch.randn(3, 200)
    x[0, 150], x[1, 0] = torch.inf, torch.nan
    torch.testing.assert_close(bolide.compile(lambda x: x.var(1))(x), x.var(1), equal_nan=True)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh", "none", "kept"])
def test_batch_norms_in_training(activation: str, seed: int) -> None:
    """Outputs, gradients and running statistics, of any layout and dtype; also where the result is written to."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    functions: dict[str, Any] = {
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "tanh": torch.tanh,
        "none": lambda y: y,
        "kept": lambda y: (F.relu(y), y.sin()),
    }
    channels = rng.randint(1, 6)
    shape = rng.choice([(5, channels), (3, channels, 7), (2, channels, 5, 4)])
    last_too = rng.random() < 0.5
    wide, short = torch.float32, rng.choice([torch.bfloat16, torch.float16])
    for affine, last, dtype in ((True, False, wide), (False, False, wide), (True, True, wide), (True, last_too, short)):
        x = (torch.randn(shape) * 3 + 1).to(dtype)
        if last and len(shape) == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        norms = [torch.nn.BatchNorm1d(channels, affine=affine) for _ in range(2)]
        for norm in norms:
            norm._check_input_dim = lambda x: None  # type: ignore[method-assign]
        outcomes = []
        for norm, wrap in zip(norms, (lambda f: f, bolide.compile)):
            torch.manual_seed(seed)
            if affine:
                with torch.no_grad():
                    norm.weight.uniform_(-1, 1)
                    norm.bias.uniform_(-1, 1)

            def program(x: Tensor, norm: Any = norm) -> Any:
                return functions[activation](norm(x))

            given = x.clone().requires_grad_()
            results = wrap(program)(given)
            flat = results if isinstance(results, tuple) else (results,)
            loss = sum((y * torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(dtype)).sum() for y in flat)
            gradients = torch.autograd.grad(loss, [given, *norm.parameters()])
            outcomes.append((flat, gradients, tuple(norm.buffers())))
            assert [y.stride() for y in flat] == [y.stride() for y in outcomes[0][0]]
        error = 2e-5 if dtype is wide else 5e-2
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=error, atol=error)


def test_the_backward_of_a_batch_norm_with_relu_reads_its_input_and_the_gradient_only() -> None:
    norm, x = torch.nn.BatchNorm2d(3), torch.randn(2, 3, 16, 16, requires_grad=True)
    with plans() as found:
        result = bolide.compile(lambda x: F.relu(norm(x)))(x)
        torch.autograd.grad(result, x, torch.randn_like(result))
    large = [p for kernel in found[1].plan.kernels for p in kernel.params if p.numel.value == x.numel()]
    assert len([p for p in large if p.role == "in"]) == 2 * len([p for p in large if p.role != "in"]) == 2
