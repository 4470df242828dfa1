"""Programs that handle what eager raises for some sizes: other sizes go the other way, with symbolic sizes as well."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.functorch.aot_autograd import aot_function

ATTEMPTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, y: x + y,
    "view": lambda x, y: x.view(4, -1),
    "reshape": lambda x, y: x.reshape(2, 3),
    "cat": lambda x, y: torch.cat([x[None], y[None]]),
    "stack": lambda x, y: torch.stack([x, y]),
    "matmul": lambda x, y: x @ y,
    "mv": lambda x, y: torch.outer(x, y) @ y[:4],
    "einsum": lambda x, y: torch.einsum("i,i->i", x, y),
    "split": lambda x, y: x.split([2, 3])[1],
    "unflatten": lambda x, y: x.unflatten(0, (2, -1)),
    "narrow": lambda x, y: x.narrow(0, 1, 4),
    "unfold": lambda x, y: x.unfold(0, 4, 1),
    "item": lambda x, y: x[5],
    "expand": lambda x, y: x.expand(6),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "glu": lambda x, y: F.glu(x, 0),
    "conv": lambda x, y: F.conv1d(x[None, None], x.new_ones(1, 1, 5)),
    "conv2d": lambda x, y: F.conv2d(torch.outer(x, y)[None, None], x.new_ones(1, 1, 3, 4), stride=2),
    "max_pool": lambda x, y: F.max_pool1d(x[None], 4),
    "avg_pool": lambda x, y: F.avg_pool2d(torch.outer(x, y)[None], 3),
    "pad": lambda x, y: F.pad(x[None], (3, 3), mode="reflect"),
    "crop": lambda x, y: F.pad(x, (-2, -2)),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,)),
    "group_norm": lambda x, y: F.group_norm(x[None, :, None].expand(-1, -1, 2), 2),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(x[:, None, None], 2),
    "mse_loss": lambda x, y: F.l1_loss(x, y.view_as(x)),
    "tensor_split": lambda x, y: torch.tensor_split(x, 3)[2].reshape(2),
    "topk": lambda x, y: x.topk(4).values,
    "movedim": lambda x, y: torch.outer(x, y).diagonal(3).reshape(-1, 2),
    "copy_": lambda x, y: x.new_zeros(4).copy_(x),
    "index_copy": lambda x, y: x.new_zeros(9).index_copy(0, torch.arange(4), x),
    "linalg": lambda x, y: torch.linalg.det(torch.outer(x, y)),
}


def handled(attempt: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    def program(x: Tensor, y: Tensor) -> Any:
        try:
            out = attempt(x.sin(), y.sin())
        except (RuntimeError, IndexError):
            out = x * 2
        return out

    return program


def run(program: Callable[..., Any], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    given = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    out = program(*given)
    return out.detach(), *torch.autograd.grad(out.square().sum(), given, allow_unused=True, materialize_grads=True)


COMPILERS: dict[str, Callable[[Any], Any]] = {
    "default": bolide.compile,
    "dynamic": lambda program: bolide.compile(program, dynamic=True),
    "aot": lambda program: aot_function(program, lambda graph, inputs: graph, dynamic=True),
}


@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", ATTEMPTS)
def test_other_sizes_go_the_other_way(name: str, compiler: str) -> None:
    program = handled(ATTEMPTS[name])
    compiled = COMPILERS[compiler](program)
    for _ in range(8):
        rows = random.randint(1, 8)
        columns = random.choice((rows, random.randint(1, 8)))
        x, y = torch.randn(rows).double(), torch.randn(columns).double()
        print(rows, columns)
        torch.testing.assert_close(run(compiled, x, y), run(program, x, y))


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "copy_": lambda x, y: x.copy_(y),
    "copy_ of another type": lambda x, y: x.copy_(y.float()),
    "copy_ into a part": lambda x, y: x[:2].copy_(y),
    "item": lambda x, y: x.__setitem__(slice(None), y),
    "add_": lambda x, y: x.add_(y),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 2),
    "masked_scatter_": lambda x, y: x.masked_scatter_(y > 0, x.sin()),
    "logical_and_": lambda x, y: x.logical_and_(y),
    "foreach": lambda x, y: torch._foreach_add_([x, x], [y, y]),
}


@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_has_to_fit(name: str, compiler: str) -> None:
    """Whatever is of size 1, and however many dimensions there are."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        out = x.clone()
        try:
            WRITES[name](out, y)
        except (RuntimeError, IndexError):
            return out * 100
        return out * 2

    compiled = COMPILERS[compiler](program)
    for _ in range(12):
        shapes = [[random.choice((1, size)) for size in (2, 5, 4, 3)[-random.randint(0, 4) or 4 :]] for _ in "xy"]
        x, y = (torch.randn(shape).double() for shape in shapes)
        print(shapes)
        torch.testing.assert_close(compiled(x, y), program(x, y))
