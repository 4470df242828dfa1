"""Tensors of which some elements are one in memory (windows of `unfold`, steps of `as_strided`): what is written to one
of them, or into a copy that lies alike, is seen in the others, as in eager, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


def scattered(y: Any, i: int) -> Any:
    v = y.unfold(0, 2, 1)
    picked = v.select_scatter(v[0] * 2, 0, i), v.slice_scatter(v[1:3] * 3, 0, 0, 2), v.select_scatter(v[..., 0], 2, 1)
    last = v[:, 0]
    return *(each * 1 for each in picked), last.diagonal_scatter(last.diagonal() * 3) * 1


def scattered_twice(y: Any, i: int) -> Any:
    v = y.unfold(0, 3, 1).unfold(0, 2, 1)
    v = v.select_scatter(v[0] * 2, 0, i)
    return v.select_scatter(v[1].cos(), 0, 0).tanh()


def expanded(y: Any, i: int) -> Any:
    v = y.expand(3, *y.shape)
    return v.select_scatter(v[0] * 2, 0, i), v.slice_scatter(v[:1] * 2, 0, 1, 2), v.diagonal_scatter(v.diagonal() * 3)


def written(y: Any, i: int) -> Any:
    base = y * 1
    v = base.as_strided((4, 2), (1, 1))
    v[0].mul_(2)
    v[i] *= 3
    return base, v * 1


def written_whole(y: Any, i: int) -> Any:
    base = y * 1
    v = base.as_strided((4, 2), (1, 1))
    v.fill_(2)
    return base, v.clone()


def windows_written(y: Any, i: int) -> Any:
    base = y * 1
    v = base.unfold(0, 2, 1)
    v[0].mul_(2)
    v[i].mul_(3)
    return base, v * 1


def written_behind_a_break(y: Any, i: int) -> Any:
    base = y * 1
    v = base.unfold(0, 2, 1)
    print(end="")
    v[0] = 7
    v[i, :1] += 1
    return base, v * 1


def loop(y: Any, i: int) -> Any:
    v = y.unfold(0, 2, 1)
    v = v.select_scatter(v[0] * 2, 0, i) * 1
    for k, count in enumerate((2, 1)):
        v[k : k + count] *= v[k : k + count].sum()
    return v.clone()


def read(y: Any, i: int) -> Any:
    v = y.unfold(0, 2, 1)
    index = torch.tensor([i])
    put = v.index_copy(0, index, v[:1] * 3), v.index_add(0, index, v[:1]), v.index_fill(0, index, 2.0)
    return *put, v.masked_fill(v > 0, 2.0), v.index_put((index,), v[0]), torch.cat([v, v]), v.flip(0), v.reshape(-1)


PROGRAMS = [
    *(scattered, scattered_twice, expanded, written, written_whole, windows_written),
    *(written_behind_a_break, loop, read),
]


def outcome(function: Callable[..., Any], y: torch.Tensor, i: int) -> list[Any]:
    y = y.clone().requires_grad_()
    results = function(y, i)
    results = results if isinstance(results, tuple) else (results,)
    weighted = [(each * torch.arange(1, each.numel() + 1).view(each.shape).cos()).sum() for each in results]
    return [*results, *torch.autograd.grad(torch.stack(weighted).sum(), y)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_elements_that_are_one_in_memory(program: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(program, backend=backend)
    for size, place in ((6, 1), (7, 2), (9, 1)):
        y = torch.randn(size, 4, dtype=torch.float64)
        for mine, theirs in zip(outcome(compiled, y, place), outcome(program, y, place), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_argument_whose_elements_are_one_is_written(backend: str) -> None:
    def program(v: Any) -> Any:
        v[0].mul_(2)
        v[1].mul_(3)
        return v * 1

    compiled = bolide.compile(program, backend=backend)
    for size in (4, 6, 9):
        y = torch.randn(size, dtype=torch.float64)
        for answers in [
            (function(own.unfold(0, 2, 1)), own) for function in (program, compiled) for own in [y.clone()]
        ]:
            wanted = y * torch.tensor([2.0, 6.0, 3.0] + [1.0] * (size - 3))
            assert torch.equal(answers[1], wanted)
            assert torch.equal(answers[0], wanted.unfold(0, 2, 1))


def test_ordinary_views_are_written_by_kernels() -> None:
    def program(x: Any, a: int) -> Any:
        x = x * 1
        x[1:, a:-1][0] += 1
        x.t()[a] = 2
        x[:, :a].select(0, -1).mul_(3)
        return x

    compiled = bolide.compile(program, dynamic=True)
    for size, a in ((6, 2), (8, 3)):
        x = torch.randn(size, 2 * size)
        torch.testing.assert_close(compiled(x, a), program(x, a))
    assert "ATen calls" not in str(bolide.explain(compiled)(torch.randn(5, 10), 3))


def windows(x: Any) -> Any:
    return x.unfold(0, 1, 2).as_strided(x.shape, x.stride())


def every_second(x: Any) -> Any:
    return x[::2].as_strided((x.shape[0], 4), (4, 1))


def past_a_part(x: Any) -> Any:
    return x[1::2].as_strided((x.shape[0] - 1, 4), (4, 1))[1:]


def of_all(x: Any) -> Any:
    return x.as_strided((2, 2), (4, 1), 1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [windows, every_second, past_a_part, of_all])
def test_no_gradient_goes_beyond_the_view_that_is_strided_anew(program: Any, dynamic: bool | None) -> None:
    """Results that are views of an argument; `as_strided` looks at memory that its operand has no part in."""
    compiled = bolide.compile(program, dynamic=dynamic)
    for size in (4, 6, 5, 3):
        x, y = torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)
        found, expected = compiled(x), program(x)
        assert found.stride() == expected.stride() and found.data_ptr() == expected.data_ptr()
        weight = torch.randn(expected.shape)
        torch.testing.assert_close(*(torch.autograd.grad((r * weight).sum(), x)[0] for r in (found, expected)))
        compiled(y).fill_(2.0)
        assert torch.equal(program(y), torch.full(expected.shape, 2.0))


def renamed(x: Any) -> Any:
    return x.view_as(x).as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("program", [windows, past_a_part, renamed])
def test_a_view_that_is_strided_anew_is_written_by_the_caller(program: Any) -> None:
    """It is a view of the argument to autograd, too: gradients follow the write, and a leaf refuses it."""
    compiled = bolide.compile(program)
    for size in (4, 6, 5):
        leaf, gradients = torch.randn(size, 4, requires_grad=True), []
        for function in (compiled, program):
            x = leaf * 2
            y = function(x)
            y.mul_(3)
            gradients.append(torch.autograd.grad((x * y.sum()).sum(), leaf)[0])
            with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
                function(leaf).mul_(3)
        torch.testing.assert_close(*gradients)
