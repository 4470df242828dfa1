"""Reshapes of tensors whose sizes are data: whether eager makes a view or a copy decides nothing, unless the program
writes to what may be shared, or lets both leave. Then they are breaks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.support import events

ROWS = 6
COUNTS = (4, 1, 2, 6, 3, 0, 4, 2)


def parts(x: Tensor, n: Any) -> Any:
    y = x[:n].t().reshape(n, -1)
    return y * 2, y.sum()


def blocks(x: Tensor, n: Any) -> Any:
    return x[:n].reshape(n // 2, 2, 2, 2).transpose(1, 2).flatten() ** 2


def flattened(x: Tensor, n: Any) -> Any:
    return x[:n].reshape(-1, 2, 2).transpose(1, 2).flatten(1).reshape(-1).sin()


def grid(x: Tensor, n: Any) -> Any:
    rows, columns = torch.meshgrid(torch.arange(n), torch.arange(4), indexing="ij")
    shape = n // 2, 2, 2, 2
    rows, columns = (each.reshape(shape).transpose(1, 2).flatten() for each in (rows, columns))
    return x[rows] * columns[:, None]


def dead(x: Tensor, n: Any) -> Any:
    y = (x[:n] * 2).t().reshape(-1)
    y += 1
    return y * y


def written_copy(x: Tensor, n: Any) -> Any:
    x = x * 1
    y = x[:n].t().reshape(-1)
    y += 1
    return x, y * 2


def written_base(x: Tensor, n: Any) -> Any:
    x = x * 1
    y = x[:n].t().contiguous()
    x.mul_(3)
    return x, y * 2


def both(x: Tensor, n: Any) -> Any:
    x = x * 1
    return x, x[:n].t().contiguous()


def outcome(fn: Callable[..., Any], x: Tensor, n: Tensor) -> Any:
    """Results, gradients, and the results after the first one has been written to; or the error's class."""
    leaf = x.clone().requires_grad_()
    try:
        found = fn(leaf, n)
    except RuntimeError as error:
        return type(error)
    found = found if isinstance(found, tuple) else (found,)
    sum((each * each).sum() for each in found).backward()  # type: ignore[union-attr]
    with torch.no_grad():
        results = [each.detach().clone() for each in found]
        found[0].add_(1)
    return [*results, leaf.grad, *(each.detach() for each in found)]


@pytest.mark.parametrize(
    ("program", "breaks"),
    [(f, False) for f in (parts, blocks, flattened, grid, dead)]
    + [(f, True) for f in (written_copy, written_base, both)],
)
def test_reshapes_of_sizes_that_are_data(program: Callable[..., Any], breaks: bool, seed: int) -> None:
    def fn(x: Tensor, count: Tensor) -> Any:
        return program(x, count.item())

    bolide.reset()
    compiled = bolide.compile(fn)
    met: list[events.Break] = []
    with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
        for count in COUNTS:
            x, n = torch.randn(ROWS, 4), torch.tensor(count)
            expected, found = outcome(fn, x, n), outcome(compiled, x, n)
            if isinstance(expected, type):
                assert found is expected, (count, seed)
                continue
            about = functools.partial("{}, seed {}: {}".format, count, seed)
            torch.testing.assert_close(found, expected, msg=about)
    assert bool(met) is breaks, met


@pytest.mark.parametrize(
    "squeezed", [lambda y: y.squeeze(0), lambda y: y.squeeze(), lambda y: y.T.squeeze(-1), lambda y: y.squeeze((0, 1))]
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_squeezed_size_that_is_data_may_be_one(squeezed: Callable[[Tensor], Tensor], dynamic: bool | None) -> None:
    compiled = bolide.compile(lambda x, mask: squeezed(x[mask]) * 2, dynamic=dynamic)
    for count in (5, 1, 2, 0, 1, 3):
        x, mask = torch.randn(5, 4), torch.arange(5) < count
        torch.testing.assert_close(compiled(x, mask), squeezed(x[mask]) * 2, rtol=0, atol=0)


def test_a_mask_of_one_element_may_choose_none() -> None:
    def program(x: Tensor) -> Tensor:
        return x[:1, :1][x[:1, 0] > 0].flatten() * 2

    compiled = bolide.compile(program)
    for rows in (1, 3, 1, 4, 1, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        x.data[0, 0] = rows - 2.5
        results = compiled(x), program(x)
        assert results[0].shape == results[1].shape
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x) for result in results))
