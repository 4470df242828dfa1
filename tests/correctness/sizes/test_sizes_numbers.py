"""Functions of torch's that can do nothing with symbols, or fail for them alone: the program is compiled with numbers
in their place, and where those are too many, called for real in between."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.support import events
from bolide.support.errors import BolideWarning
from tests.ordinary_tools import check_whole, difference, picture, tensors

aten = torch.ops.aten


def weighted(x: Tensor, n: int) -> Tensor:
    return torch.cov(x, aweights=x[0].abs() + 1) * n


def kernel_size(x: Tensor, n: int) -> Any:
    y, places = torch.nn.functional.max_pool2d(x[None], n, n, return_indices=True)
    return y, aten.max_pool2d_with_indices_backward(torch.ones_like(y), x[None], n, n, 0, 1, False, places)


def selected(x: Tensor, n: int) -> Tensor:
    return torch.masked_select(x * n, torch.tensor(True))


def odd_spectrum(x: Tensor, n: int) -> Tensor:
    return torch.istft(torch.complex(x, x).t(), 2 * n + 1, center=False, window=torch.ones(2 * n + 1)) * 2


def strided_copy(x: Tensor, n: int) -> Tensor:
    return torch.as_strided_copy(x.sum()[None], (1,), (1,), n // 100).sin()


PROGRAMS: list[tuple[Callable[..., Any], Callable[[int], tuple[int, ...]]]] = [
    (weighted, lambda n: (3, n + 3)),
    (kernel_size, lambda n: (2 * n + 1, 3 * n)),
    (selected, lambda n: (n, n + 5)),
    (odd_spectrum, lambda n: (4, n + 1)),
    (strided_copy, lambda n: (n + 2, 5)),
]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("function, shape", PROGRAMS, ids=[function.__name__ for function, _ in PROGRAMS])
@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_functions_that_need_numbers(function: Any, shape: Any, backend: str) -> None:
    compiled, told = bolide.compile(function, backend=backend, dynamic=True), []
    sizes = random.sample(range(2, 9), 4)
    for n in (*sizes, *sizes):
        x = torch.randn(shape(n), requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with events.subscribed(told.append), warnings.catch_warnings():
            warnings.simplefilter("error", BolideWarning)
            mine = compiled(x, n)
        theirs = function(y, n)
        pairs = list(zip(mine, theirs)) if isinstance(theirs, tuple) else [(mine, theirs)]
        for a, b in pairs:
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        pairs[0][0].sum().backward()
        pairs[0][1].sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert not [event for event in told if type(event) is events.Fallback]
    assert len([event for event in told if type(event) is events.Installed]) <= 6, sizes


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: aten.max_pool2d_with_indices_backward(x, x, n, n, 0, 1, False, x.long()),
        lambda x, n: aten.avg_pool2d_backward(x, x, [n, n], [n, n], [0, 0], False, True, None),
        lambda x, n: aten.max_pool2d_with_indices_backward(x, x, 2, n, n, 1, False, x.long()),
    ],
)
def test_what_eager_refuses_stays_an_error(function: Callable[[Tensor, int], Tensor]) -> None:
    with pytest.raises(RuntimeError) as mine:
        bolide.compile(function, dynamic=True)(torch.randn(1, 4, 4), 0)
    with pytest.raises(RuntimeError) as theirs:
        function(torch.randn(1, 4, 4), 0)
    assert str(mine.value) == str(theirs.value)


@pytest.mark.parametrize("dynamic", [None, True])
def test_types_of_out_are_checked_for_numbers_that_are_symbols(dynamic: bool | None) -> None:
    def function(x: Tensor, n: int, out: Tensor) -> Tensor:
        return torch.multinomial(x, n, out=out)

    given = torch.rand(3), 2, torch.empty(2, dtype=torch.float64)
    with pytest.raises(RuntimeError) as theirs:
        function(*given)
    with pytest.raises(RuntimeError) as mine:
        bolide.compile(function, dynamic=dynamic)(*given)
    assert str(mine.value) == str(theirs.value)


class Window:
    def __init__(self, part: slice) -> None:
        self.part = part


def across_a_break(x: Tensor, n: int) -> Any:
    shape, rows, window = x.shape, slice(1, n), Window(slice(-n, None, 2))
    y = x * 2
    bolide.graph_break()
    return y.reshape(shape) + 1, y[rows], y[window.part].sum(), shape, (shape[:-1].numel(), rows.stop)


PARTED: dict[str, tuple[Callable[..., Any], Callable[[Tensor, int], Any]]] = {
    "across a break": (across_a_break, lambda x, n: n),
    "slice": (lambda x, part: (x[part] * 2, part), lambda x, n: slice(1, n)),
    "equal slices": (lambda x, part: x[part] * 2, lambda x, n: slice(0, 2)),
    "slices": (
        lambda x, parts: x[parts["a"]].sum() + x[parts["b"]],
        lambda x, n: {"a": (slice(n - 1), 0), "b": slice(2)},
    ),
    "in an object": (lambda x, window: x[window.part] + window.part.start, lambda x, n: Window(slice(n // 2, None))),
    "kinds of bounds": (
        lambda x, part: x[: part.start] * (2 if part.stop is True else 3) + len(part.step),
        lambda x, n: slice(n, n % 2 == 0, "step"),
    ),
    "tensors as bounds": (lambda x, part: x * part.start + part.stop, lambda x, n: slice(torch.ones(4), torch.rand(4))),
    "size": (lambda x, size: (x.reshape(size) * 2, size, size.numel() + len(size)), lambda x, n: torch.Size([4, n])),
    "sizes": (
        lambda x, sizes: [x.new_ones(size).sum() * x for size in sizes],
        lambda x, n: [x.shape, torch.Size([]), x.shape[:1], torch.Size([2, n + 3])],
    ),
}


@pytest.mark.parametrize("name", PARTED)
def test_sizes_and_slices_that_are_given_are_symbols_as_other_numbers_are(name: str) -> None:
    """Objects that are equal are one version, others soon one more."""
    program, given = PARTED[name]
    compiled = bolide.compile(program)
    told: list[object] = []
    for n in (3, 5, 4, 7, 6):
        x = torch.randn(n, 4, dtype=torch.float64)
        argument, seen = given(x, n), []
        for function in (program, compiled):
            leaf = x.clone().requires_grad_()
            with events.subscribed(told.append):
                out = function(leaf, argument)
            sum(part.sum() for part in tensors(out)).backward()
            seen.append([picture(out), picture(leaf.grad)])
        assert difference(*seen) is None, difference(*seen)
        if name in ("slice", "size"):
            assert out[1] is argument
    installed = Counter(event.name for event in told if type(event) is events.Installed)
    assert max(installed.values()) <= (3 if name == "kinds of bounds" else 2), installed
    assert not [event for event in told if type(event) is events.Fallback]


class Contractions:
    """In the place of the package `opt_einsum`: an order of contractions that follows from the sizes."""

    @staticmethod
    def contract_path(equation: str, *operands: Any, shapes: bool = False, optimize: str = "auto") -> Any:
        sizes = [tuple(operand) if shapes else operand.shape for operand in operands]
        order = sorted(range(len(sizes)), key=lambda place: math.prod(sizes[place]))
        first = sorted(order[:2])
        return [tuple(first), *[(0, 1)] * (len(sizes) - 2)], f"{equation} {optimize}"


EINSUMS: dict[str, Callable[..., Tensor]] = {
    "ellipses": lambda x, y, w: torch.einsum("...de,...nd,...n->...ne", x.mT @ y, y, x[..., 0]),
    "a list": lambda x, y, w: torch.einsum("bni,ij,bnj", [x, w, y]),
    "numbers": lambda x, y, w: torch.einsum(x, [..., 0, 1], w, [1, 27], w, [27, 3], y, [..., 0, 3], [0, ...]),
    "numbers alone": lambda x, y, w: torch.einsum(x, [30, 0, 1], w, [1, 2], y, [30, 0, 2]),
    "sizes of data": lambda x, y, w: torch.einsum("ni,ij,nj->n", x[x[..., 0] > 0], w, y[x[..., 0] > 0]),
}


@pytest.mark.parametrize("name", EINSUMS)
def test_an_order_of_contractions_that_sizes_choose_fixes_no_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = torch.backends.opt_einsum
    monkeypatch.setattr(package.m, "is_available", lambda: True)
    monkeypatch.setattr(package.m, "_opt_einsum", Contractions)
    with package.flags(enabled=True):  # type: ignore[no-untyped-call]

        def run(compile: Callable[[Any], Any]) -> Any:
            compiled, seen = compile(EINSUMS[name]), []
            for n in (3, 5, 4, 7, 6, 3):
                x, y, w = given = [torch.randn(2, n, 4), torch.randn(2, n, 4), torch.randn(4, 4)]
                out = compiled(*[each.requires_grad_() for each in given])
                out.pow(2).sum().backward()
                seen.append((out, [each.grad for each in (x, y, w)]))
            return seen

        check_whole(run)


def padded(x: Tensor, n: int) -> Any:
    parts = n / 4
    if parts.is_integer():
        return x * 2, parts
    missing = 4 - n % 4
    return torch.nn.functional.pad(x, (0, missing)).view(x.shape[0], -1, 4), (n / 3).is_integer(), float(n).is_integer()


@pytest.mark.parametrize("of_shape", [True, False])
def test_whether_a_quotient_of_a_size_is_whole_is_asked_of_the_remainder(of_shape: bool) -> None:
    def run(compile: Callable[[Any], Any]) -> Any:
        compiled, seen = compile(lambda x, n: padded(x, x.shape[1] if of_shape else n)), []
        for n in (5, 7, 9, 8, 10, 12, 15, 11, 16, 17):
            x = torch.randn(2, n, requires_grad=True)
            out = compiled(x, n)
            out[0].pow(2).sum().backward()
            seen.append((out, x.grad))
        return seen

    check_whole(run, versions=5)
