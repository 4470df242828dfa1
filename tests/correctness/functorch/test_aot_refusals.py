"""Programs that eager refuses, or in which it takes its own way: compiled ahead of time they are refused as well, do
the same, or are an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.functorch.aot_autograd import aot_function
from bolide.functorch.compilers import nop
from bolide.support.errors import Unsupported
from tests.functorch_tools import assert_same


def tried(call: Callable[..., Any], *args: torch.Tensor) -> Any:
    """What a call returns, or the class of what it raises; and what it has drawn."""
    torch.manual_seed(3)
    try:
        result = call(*args)
    except (RuntimeError, IndexError) as error:
        result = type(error)
    return result, torch.get_rng_state()


def same_tried(fn: Callable[..., Any], *args: torch.Tensor) -> None:
    (ours, our_state), (eager, eager_state) = (
        tried(call, *[arg.clone() for arg in args]) for call in (aot_function(fn, nop), fn)
    )
    assert torch.equal(our_state, eager_state)
    if isinstance(eager, torch.Tensor):
        assert_same(ours, eager)
    else:
        assert ours is eager


def handling(step: Callable[..., Any]) -> Callable[..., Any]:
    """A program that handles what a step raises, whose result it does not need."""

    def fn(*args: torch.Tensor) -> Any:
        try:
            step(*args)
        except (RuntimeError, IndexError, NotImplementedError):
            return args[0] * 2
        return args[0] * 3

    return fn


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "a product of truth values": (lambda a: a @ a.mT, lambda: (torch.randn(2, 3, 5) > 0,)),
    "a product of truth values of matrices": (lambda a: a @ a.mT, lambda: (torch.randn(4, 5) > 0,)),
    "a linear layer of truth values": (lambda a, b: F.linear(b, b), lambda: (torch.randn(3), torch.randn(4, 4) > 0)),
    "numbers drawn into one element": (
        lambda a: a.expand(5, 5).exponential_(),
        lambda: (torch.randn(1, 5, dtype=torch.bfloat16),),
    ),
    "integers drawn from a normal distribution": (lambda a: a.normal_(), lambda: (torch.arange(6),)),
    "none of them": (lambda a: a.normal_(), lambda: (torch.arange(0),)),
    "no complex trials": (lambda a: a.bernoulli_(0.5), lambda: (torch.randn(0, 3, dtype=torch.complex64),)),
    "complex trials": (lambda a: a.bernoulli_(0.5), lambda: (torch.randn(2, 3, dtype=torch.complex64),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_for_its_types_is_refused_where_nobody_needs_it(name: str) -> None:
    step, arguments = REFUSED[name]
    same_tried(handling(step), *arguments())


def test_a_slice_of_a_number_is_an_index_error() -> None:
    same_tried(lambda a: a[1:], torch.randn(()))


@pytest.mark.parametrize("sizes", [((2, 0, 5), (2, 5, 5)), ((2, 3, 0), (2, 0, 3)), ((2, 3, 4), (2, 4, 3))])
def test_products_of_two_types_without_elements(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    same_tried(torch.bmm, torch.randn(sizes[0], dtype=torch.bfloat16), torch.randn(sizes[1], dtype=torch.complex64))


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("types", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64)])
def test_losses_of_two_types_are_of_the_wider_one(loss: Any, reduction: str, types: tuple[torch.dtype, ...]) -> None:
    def fn(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(x, target, reduction=reduction)  # type: ignore[no-any-return]

    for call in (aot_function(fn, nop, dynamic=True), bolide.compile(fn)):
        for rows in (5, 4):
            grad = loss is not F.mse_loss  # whose derivative torch 2.11 refuses
            x, target = torch.randn(rows, 3, dtype=types[0], requires_grad=grad), torch.randn(rows, 3, dtype=types[1])
            ours, eager = call(x, target), fn(x, target)
            assert_same(ours, eager, rtol=1e-5, atol=1e-5)
            if grad:
                found = [torch.autograd.grad(result.sum(), x)[0] for result in (ours, eager)]
                assert_same(*found, rtol=2e-2, atol=1e-2)


PIECES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind(0)[-1],
    "split": lambda x: x.split(2, -1)[1],
    "of_memory_with_gaps": lambda x: (x * 1).as_strided((2, 2), (2, 1)).chunk(2, -1)[1],
}


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_that_is_returned_alone_is_one_to_autograd(name: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return PIECES[name](x.sin())

    leaf = torch.randn(4, 6, requires_grad=True)
    for call in (fn, aot_function(fn, nop), bolide.compile(fn)):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            call(leaf).mul_(2)
        with torch.no_grad():
            call(leaf).mul_(2)
        assert_same(call(leaf), fn(leaf))


# ---- what changes in place -------------------------------------------------------------------------------------------


def _with_a_view(x: torch.Tensor) -> Any:
    y = x * 1
    view = y[1:]
    y.t_()
    return view * 2, y


def _with_a_view_of_an_argument(x: torch.Tensor) -> Any:
    view = x.conj()[1:]
    x.t_()
    return view.exp(), x * 2


@pytest.mark.parametrize("fn", [_with_a_view, _with_a_view_of_an_argument])
def test_views_with_a_history_from_before_another_shape(fn: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match="another shape in place"):
        aot_function(fn, nop)(torch.randn(5, 5, requires_grad=True) * 1)


@pytest.mark.filterwarnings("ignore:.*BR0")
@pytest.mark.parametrize("fn", [_with_a_view, _with_a_view_of_an_argument])
def test_their_gradients_are_eagers(fn: Callable[..., Any]) -> None:
    call = bolide.compile(fn)
    for rows in (5, 4):
        leaf = torch.randn(rows, rows, requires_grad=True)
        gradients = []
        for each in (call, fn):
            outs = each(leaf * 1)
            tangents = [torch.arange(out.numel()).view(out.shape).to(out) for out in outs]
            gradients.append(torch.autograd.grad(outs, leaf, tangents))
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("inside", [False, True])
def test_a_shape_that_autograd_is_not_told_of(inside: bool) -> None:
    """Under no_grad gradients of the argument are laid out as before the call."""

    def fn(x: torch.Tensor) -> Any:
        with torch.set_grad_enabled(inside):
            y = x.masked_fill(x > 0, 0)
        x.swapaxes_(0, 1)
        return y

    found = []
    for call in (aot_function(fn, nop), fn):
        leaf = torch.arange(12.0).sub(6).view(3, 4).clone().requires_grad_()
        x = leaf * 1
        with torch.no_grad():
            y = call(x)
        assert tuple(x.shape) == (4, 3)
        grad = torch.autograd.grad(y, leaf, torch.arange(1.0, 13.0).view(3, 4))[0] if inside else None
        found.append([x.detach(), y.detach(), grad])
    torch.testing.assert_close(*found)


OVERLAPPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "windows_of_windows": lambda x: x.unfold(0, 2, 1).unfold(0, 1, 2).mul_(2),
    "every_other_window": lambda x: x.unfold(0, 2, 1)[::2].add_(1),
    "a_stride_of_one": lambda x: x.as_strided((4, 2), (1, 1))[1::2].mul_(2),
}


@pytest.mark.filterwarnings("ignore:.*BR0")
@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_part_is_written_of_a_view_whose_elements_overlap(name: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        OVERLAPPING[name](y)
        return y

    call = bolide.compile(fn)
    for count in (6, 7):
        x = torch.randn(count)
        torch.testing.assert_close(call(x), fn(x))
    with pytest.raises(Unsupported, match="elements are one in memory"):
        aot_function(fn, nop)(torch.randn(6))


def _strided_other_type(x: torch.Tensor) -> Any:
    view = x.view(torch.int32)
    view.as_strided((2, 2), (2, 1)).mul_(2)
    return view


def _integers_with_a_history(x: torch.Tensor) -> Any:
    count = torch.zeros(3, 2, dtype=torch.int64)
    count.detach()[0] = x[0]
    return count.detach(), x * 2


def _resized_view(x: torch.Tensor) -> Any:
    return torch.mul(x, 2, out=x[:0])


@pytest.mark.filterwarnings("ignore:.*BR0")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("fn", [_strided_other_type, _integers_with_a_history, _resized_view])
def test_what_no_graph_does_is_an_error_and_eagers(fn: Callable[..., Any]) -> None:
    grad = fn is _integers_with_a_history
    call = bolide.compile(fn)
    for count in (6, 7):
        found = []
        for each in (call, fn):
            x = torch.arange(1.0, count + 1).requires_grad_(grad)
            found.append([x, each(x)])
        torch.testing.assert_close(*found)
    with pytest.raises(Unsupported):
        aot_function(fn, nop)(torch.randn(6, requires_grad=grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_are_drawn_in_the_order_of_memory_that_was_written_before(dtype: torch.dtype, dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        part = y[..., 1:]
        part.zero_()
        part.normal_()
        return y

    call = aot_function(fn, nop, dynamic=dynamic)
    for rows in (5, 7):
        x = torch.randn(2, rows, 3, dtype=dtype)
        (ours, our_state), (eager, eager_state) = tried(call, x), tried(fn, x)
        torch.testing.assert_close(ours, eager)
        assert torch.equal(our_state, eager_state)


def test_a_view_made_without_gradients_is_written_without() -> None:
    def fn(x: torch.Tensor) -> Any:
        view = x.adjoint()
        x.addcmul_(x.clone(), x.clone())
        view[[0]] = 1
        return x.real, view * 2

    found = []
    for call in (aot_function(fn, nop), fn):
        x = torch.linspace(-1, 1, 12).view(3, 4).clone().requires_grad_() * 1
        with torch.no_grad():
            found.append([x.detach(), *call(x)])
    torch.testing.assert_close(*found)


CONJUGATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its_imaginary_part": lambda x: x.imag,
    "once_more": lambda x: x.conj(),
    "the_imaginary_part_of_that": lambda x: x.conj().imag,
    "a_part": lambda x: x.imag[1:],
    "written": lambda x: x.mul_(2j),
    "where_it_lies": lambda x: x.as_strided((2,), (2,)).mul_(1j),
    "both_parts": lambda x: x.real + x.imag.neg(),
}


@pytest.mark.parametrize("name", CONJUGATED)
def test_arguments_are_conjugated_views(name: str) -> None:
    fn = CONJUGATED[name]
    call, start = aot_function(fn, nop), torch.randn(4, dtype=torch.complex64)
    found = []
    for each in (call, fn):
        leaf = start.clone().requires_grad_()
        x = (leaf * 1).conj()
        out = each(x)
        grad = torch.autograd.grad(out, leaf, torch.arange(1.0, out.numel() + 1).to(out.dtype))
        found.append([out, x, grad[0], out.is_conj(), out.is_neg()])
    for ours, eager in zip(*found, strict=True):
        assert torch.equal(ours, eager) if isinstance(eager, torch.Tensor) else ours is eager
