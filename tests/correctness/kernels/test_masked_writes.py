"""Writes of differentiable values where masks are true: one graph, eager's values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from tests.ordinary_tools import difference, picture


def _set(*index: Any, value: Callable[..., Any]) -> Callable[..., Any]:
    """A program that writes at an index, in which the text "mask" stands for a mask."""

    def program(x: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y = x * 1
        key = tuple(mask if type(part) is str else part for part in index)
        y[key if len(key) > 1 else key[0]] = value(c, mask)
        return y

    return program


def _put(x: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
    y = x * 1
    y.index_put_((mask,), c[0], accumulate=True)
    torch.index_put_(y, [mask], c[mask], True)
    return y, y.index_put((mask,), c[0]), torch.index_put(y, (mask, torch.tensor(1)), c[0, 0])


WRITES = {
    "rows": _set("mask", value=lambda c, mask: c[0]),
    "rows, all": _set("mask", slice(None), value=lambda c, mask: c[0]),
    "rows, ...": _set("mask", ..., value=lambda c, mask: c[0, 0]),
    "one column": _set("mask", 1, value=lambda c, mask: c[0, 0]),
    "columns": _set("mask", slice(1, 3), value=lambda c, mask: c[0, 1:3]),
    "a new dimension": _set(None, "mask", value=lambda c, mask: c[0]),
    "rows of their own": _set("mask", value=lambda c, mask: c[mask] * 2),
    "columns of their own": _set("mask", 0, value=lambda c, mask: c[mask, 1]),
    "index_put": _put,
    "too wide": _set("mask", value=lambda c, mask: c[0, :3]),
}


def _inputs(rows: int) -> Any:
    return torch.randn(rows, 4), torch.randn(rows) > 0, torch.randn(rows, 4)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_masked_writes_are_captured_with_gradients(name: str, calls: bool) -> None:
    options: dict[str, Any] = {"backend": lambda module, inputs: module} if calls else {"fullgraph": name != "too wide"}
    compiled = bolide.compile(WRITES[name], **options)
    for rows in (3, 70, 5, 2):
        results = []
        for function in (WRITES[name], compiled):
            torch.manual_seed(rows)
            x, mask, c = _inputs(rows)
            leaves = [x.requires_grad_(), c.requires_grad_()]
            try:
                found = function(x, mask, c)
            except RuntimeError as error:
                results.append(picture(error))
                continue
            outputs = found if isinstance(found, tuple) else (found,)
            sum((out.sin() * rows).sum() for out in outputs).backward()
            results.append(picture([found, [leaf.grad for leaf in leaves]]))
        assert difference(*results) is None


def test_a_mask_at_the_last_dimensions() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[..., mask] = c.sum()
        y[0, mask] = c[0, 0]
        return y

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 5, 4):
        x, c = torch.randn(2, rows, 4), torch.randn(rows, 4)
        mask = torch.randn(rows, 4) > 0
        grads = []
        for function in (program, compiled):
            leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
            out = function(leaves[0], mask, leaves[1])
            grads.append([out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)])
        assert difference(*map(picture, grads)) is None


def _scaled(y: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
    y[mask] = (y[mask] * c[0] + c[mask]).tanh()
    y[y > 0] *= 2
    y[y < 0] = y[y < 0].exp().clamp(max=0.5) * 3
    return y.sum()


def _read_again(y: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
    part = y[mask] + 1
    y[mask] = part
    return part


def _changed_mask(y: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
    part = y[mask]
    mask = mask.roll(1)
    y[mask] = part * 2
    y[mask] = c[mask][..., :1] * 2  # one number for a row
    first = torch.ones_like(mask[:1])
    y[:1][first] = c[:1, 0][first] + 1  # one for all
    return y.sum()


def _divided(y: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
    """Division by 0 is refused, of integers."""
    whole = (c.detach() * 2).long()
    whole[whole != 0] = 12 // whole[whole != 0]
    return whole


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("change", [_scaled, _read_again, _changed_mask, _divided])
def test_what_is_written_through_a_mask_was_read_through_it(change: Callable[..., Any], training: bool) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
        y = x * 1
        return change(y, mask, c), y, x.add_(c) if not training else None

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 70, 5, 2):
        given, results = _inputs(rows), []
        for function in (program, compiled):
            x, mask, c = (each.clone() for each in given)
            leaves = [x.requires_grad_(training), c.requires_grad_(training)]
            found = function(x, mask, c)
            if training:
                (found[1].sin().sum() + found[0].sum() * rows).backward()
            results.append(picture([found, [leaf.grad for leaf in leaves]]))
        assert difference(*results) is None


@pytest.mark.parametrize("training", [False, True])
def test_masked_scatter_takes_the_next_element(training: bool) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor, c: torch.Tensor) -> Any:
        y = (x * 2).masked_scatter(x > 0, c)
        whole = torch.zeros(len(x), 4, dtype=torch.int64).masked_scatter_(x > 0, torch.arange(4 * len(x)))
        return y, y.t().masked_scatter(mask, c[: len(x) - 1].exp()), whole

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 70, 5, 2):
        x, _, c = _inputs(rows)
        mask = torch.arange(rows) % 2 == 0
        mask = torch.stack([mask, ~mask, mask, ~mask])
        results = []
        for function in (program, compiled):
            leaves = [each.clone().requires_grad_(training) for each in (x, c)]
            found = function(leaves[0], mask, leaves[1])
            if training:
                (found[0].sin().sum() + found[1].sum() * rows).backward()
            results.append(picture([found, [leaf.grad for leaf in leaves]]))
        assert difference(*results) is None


def test_masked_scatter_refuses_too_few_elements() -> None:
    compiled = bolide.compile(lambda x, y: x.masked_scatter_(x > 0, y), fullgraph=True)
    for rows, count in ((3, 9), (4, 12), (5, 4), (6, 18)):
        x, y = torch.ones(rows, 3), torch.arange(float(count))
        if count < rows * 3:
            with pytest.raises(RuntimeError, match="source"):
                compiled(x, y)
            continue
        assert torch.equal(compiled(x.clone(), y), x.masked_scatter(x > 0, y))
