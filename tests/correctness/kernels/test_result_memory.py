"""Results are in eager's memory: new, an input's, or another result's; views are views of what they are views of."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

BACKENDS = ["aot_eager", "inductor"]

COPIES = {
    "expand": lambda x: torch.expand_copy(x, (3, 4, 5)),
    "same": lambda x: torch.expand_copy(x, (4, 5)),
    "view": lambda x: torch.view_copy(x, (5, 4)),
    "unbind": torch.unbind_copy,
    "unbind of a result": lambda x: torch.unbind_copy(x * 2),
    "split": lambda x: torch.split_with_sizes_copy(x, [1, 3]),
    "select twice": lambda x: (torch.select_copy(x, 0, 1), torch.select_copy(x, 0, 1)),
    "transpose": torch.t_copy,
    "diagonal": torch.diagonal_copy,
    "slice": lambda x: torch.slice_copy(x, 0, 1),
    "as_strided": lambda x: torch.as_strided_copy(x, (2, 2), (1, 2)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_copies_are_in_memory_of_their_own(name: str, backend: str, dynamic: bool) -> None:
    compiled = bolide.compile(COPIES[name], backend=backend, dynamic=dynamic)
    for grad in (False, True):
        x = torch.randn(4, 5, requires_grad=grad)
        mine, theirs = compiled(x), COPIES[name](x)
        mine, theirs = (value if isinstance(value, tuple) else (value,) for value in (mine, theirs))
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
        places = [tensor.untyped_storage().data_ptr() for tensor in (x, *mine)]
        assert len(set(places)) == len(places)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_with_a_history_to_a_returned_view_reaches_what_it_is_a_view_of(backend: str) -> None:
    compiled = bolide.compile(lambda x: (x[1:], (y := x * 2), y.t()), backend=backend)
    x, w = torch.zeros(4, 5), torch.randn(3, 5, requires_grad=True)
    row, doubled, turned = compiled(x)
    assert row._base is x and turned._base is doubled
    row.mul_(0).add_(w)
    turned.add_(w.sum())
    (gradient,) = torch.autograd.grad(x.sum() + doubled.sum(), w)
    torch.testing.assert_close(gradient, torch.full((3, 5), 21.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_marks_of_results_are_eagers(backend: str) -> None:
    programs = (
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).conj().imag,
        torch.fft.ifft,
        lambda x: (z := torch.complex(x, x.sin()), z.conj().t()),
        lambda x: torch.complex(x, x).conj() * 2,
    )
    for program in programs:
        for grad in (False, True):
            x = torch.randn(4, 5, requires_grad=grad)
            mine, theirs = bolide.compile(program, backend=backend)(x), program(x)
            mine, theirs = (value if isinstance(value, tuple) else (value,) for value in (mine, theirs))
            for one, other in zip(mine, theirs, strict=True):
                assert (one.is_conj(), one.is_neg(), one.stride()) == (other.is_conj(), other.is_neg(), other.stride())
                torch.testing.assert_close(one.resolve_conj(), other.resolve_conj())
            if grad:
                gradients = [torch.autograd.grad([abs(r).sum() for r in results], x)[0] for results in (mine, theirs)]
                torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("most", [4, 40])
def test_transforms_lie_in_memory_as_eagers_do_whatever_their_size(most: int) -> None:
    for transform in (
        torch.fft.fft2,
        torch.fft.rfft2,
        torch.fft.irfft2,
        torch.fft.rfft,
        torch.fft.ihfft,
        torch.fft.rfftn,
    ):
        order = random.sample(range(3), 3)
        x = torch.randn(random.sample(range(most - 2, most + 2), 3)).permute(order)
        dims = random.sample(range(3), 2)
        program = functools.partial(transform, dim=dims if transform.__name__.endswith(("2", "n")) else dims[0])
        mine, theirs = bolide.compile(program)(x), program(x)
        assert mine.stride() == theirs.stride(), (transform, order, dims)
        torch.testing.assert_close(mine, theirs)


def test_arguments_have_any_name() -> None:
    def ours(inputs, _, _op1, doubt, call, start, __check2):  # type: ignore[no-untyped-def]
        return ((inputs @ _).relu()[1:] @ _op1 + doubt[1:]) * call[1:] + (start @ __check2)[1:]

    def sizes(s0, s1, i0, v0, r0, b1_mul, b1_mul_v0):  # type: ignore[no-untyped-def]
        return (s0 * i0 + s1).softmax(0) + (v0 @ r0).relu() * b1_mul.sum() @ b1_mul_v0[: s0.shape[0]]

    def rows(row0, x, x_v0, given_x, max, list):  # type: ignore[no-untyped-def]
        return (row0.softmax(0) * x).exp().sum(0) + x[:, 1:] @ x_v0[1:] @ max * given_x + list

    for f in (ours, sizes, rows):
        for dynamic in (False, True):
            compiled = bolide.compile(f, dynamic=dynamic)
            for n in (3, 5):
                given = [torch.randn(n, n, requires_grad=True) for _ in range(f.__code__.co_argcount)]
                mine, theirs = compiled(*given), f(*given)
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
                gradients = [torch.autograd.grad(result.square().sum(), given) for result in (mine, theirs)]
                torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def as_list(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def is_in_memory_of(tensor: torch.Tensor, owner: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == owner.untyped_storage().data_ptr()


STRIDES = {
    "max_pool1d": lambda x: torch.nn.functional.max_pool1d(x.mT, 2),
    "MaxPool1d": lambda x: torch.nn.MaxPool1d(2, padding=1)(x.mT).reshape(x.shape[0], -1),
    "with gaps": lambda x: x.new_empty_strided((2, 3), (7, 2)).fill_(1.0),
    "overlapping": lambda x: torch.empty_strided((2, 3), (1, 1), dtype=torch.int32) * 0,  # whatever is in memory
    "empty": lambda x: torch.empty_strided((2, 0, 3), (5, 6, 7)),
    "like an empty one": lambda x: torch.zeros_like(x.mT[:, :, :0]),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2, 1),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x.sin(), 2, 0),
    "full of an element": lambda x: [torch.full((k,), x.detach()[0, 0, 0]) for k in (3, 1, 0)],
    "ellipsis": lambda x: x[...],
    "ellipsis of a result": lambda x: (y := x.sin(), y[...]),
}


@pytest.mark.parametrize("name", STRIDES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_and_owners_are_eagers(name: str, dynamic: bool) -> None:
    program = STRIDES[name]
    for grad in (False, True):
        compiled = bolide.compile(program, dynamic=dynamic)
        for rows in (4, 6):
            x = torch.randn(2, rows, 4, requires_grad=grad)
            mine, theirs = (
                value if isinstance(value, (tuple, list)) else [value] for value in (compiled(x), program(x))
            )
            for one, other in zip(mine, theirs, strict=True):
                assert one.shape == other.shape and one.stride() == other.stride()
                assert one is not x and one.requires_grad == other.requires_grad
                shared = [
                    value.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for value in (one, other)
                ]
                assert shared[0] == shared[1]
                torch.testing.assert_close(one, other)
            assert len({id(one) for one in mine}) == len(mine)


NO_DERIVATIVE = {
    "floor_divide": lambda x, w: x // 0.3,
    "floor_divide by a tensor": lambda x, w: (x // (w.detach() + 2)) * 2,
    "reversed": lambda x, w: (3 // (x + 5)).sum() * x,
    "heaviside": lambda x, w: torch.heaviside(x, x),
    "past it": lambda x, w: x // 2 + w,
    "a formula that raises": lambda x, w: torch.special.zeta(x + 9, x + 9),
    "written": lambda x, w: (y := x.exp(), y.add_(1))[0],
}


@pytest.mark.filterwarnings("ignore::bolide.support.errors.BolideWarning")
@pytest.mark.parametrize("backend", [*BACKENDS, "eager"])
@pytest.mark.parametrize("name", NO_DERIVATIVE)
def test_the_backward_raises_where_eagers_does(name: str, backend: str) -> None:
    program = NO_DERIVATIVE[name]
    compiled = bolide.compile(program, backend=backend)

    def outcome(f: Callable[..., Any], wanted: int) -> Any:
        given = [torch.full((3,), 1.5, requires_grad=True), torch.full((3,), 2.5, requires_grad=True)]
        result = f(*given)
        try:
            return torch.autograd.grad(result.sum(), given[wanted], allow_unused=True)[0]
        except RuntimeError as error:
            return type(error), str(error).partition(":")[0]

    for wanted in (0, 1):
        mine, theirs = outcome(compiled, wanted), outcome(program, wanted)
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs)
        else:
            assert mine == theirs


@pytest.mark.parametrize("dynamic", [False, True])
def test_of_several_values_for_one_place_the_last_by_rows_is_kept(dynamic: bool) -> None:
    def write(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.clone().index_put((index,), values)

    compiled = bolide.compile(write, dynamic=dynamic)
    for rows in (40, 64):
        index, values = torch.randint(0, 7, (rows, 30)).t(), torch.randn(30, rows)
        expected = torch.zeros(7)
        for place, value in zip(index.flatten().tolist(), values.flatten().tolist()):
            expected[place] = value
        torch.testing.assert_close(compiled(torch.zeros(7), index, values), expected)
