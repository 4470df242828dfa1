"""Functions of `math` and powers of numbers that are symbols: where Python raises or gives a complex number, so does
the compiled function, also in a later call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide


def _caught(x: Tensor, a: Any) -> Any:
    try:
        return x * math.sqrt(a)
    except ValueError:
        return x - 1


def _complex(x: Tensor, a: Any) -> Any:
    root = a**0.5
    return x + 1 if isinstance(root, complex) else x * root


#: the function of a number, values of it that are in its domain, then some that are not, or next to the end of it
OF_NUMBERS: dict[str, tuple[Callable[[Tensor, Any], Any], list[Any]]] = {
    "sqrt": (lambda x, a: x + math.sqrt(a), [1.5, 2.5, 0.0, -1.5, math.inf]),
    "log": (lambda x, a: x + math.log(a) + math.log2(a), [1.5, 2.5, 0.0, -0.5]),
    "log to a base": (lambda x, a: x + math.log(a, 3) + math.log(3, a), [1.5, 2.5, 1.0, 0.0]),
    "log1p": (lambda x, a: x + math.log1p(a), [1.5, 2.5, -0.5, -1.0]),
    "asin": (lambda x, a: x + math.asin(a) * math.acos(a), [0.5, 0.25, -1.0, 1.5]),
    "exp": (lambda x, a: x + math.exp(a), [1.5, 2.5, -1000.0, 709.5, 1000.0]),
    "cosh": (lambda x, a: x + math.cosh(a), [1.5, 2.5, -5000.0]),
    "sin": (lambda x, a: x + math.sin(a) + math.cos(a), [1.5, 2.5, math.inf, math.nan]),
    "pow": (lambda x, a: x + math.pow(a, 0.5), [1.5, 2.5, -1.0]),
    "a root": (lambda x, a: x * a**0.5, [1.5, 2.5, 0.0, -2.0]),
    "an inverse": (lambda x, a: x * a**-1.0, [1.5, -2.5, 0.0, 1e-309]),
    "a square": (lambda x, a: x * a**2, [1.5, -2.5, 1e200]),
    "an exponent": (lambda x, a: x * 2.0**a, [1.5, 2.5, -3000.0, 5000.0]),
    "an exponent of 0": (lambda x, a: x * 0.0**a, [1.5, 2.5, 0.0, -1.0]),
    "both": (lambda x, a: x * a ** (a + 0.5), [1.5, 2.5, 0.25, -0.25, 300.0]),
    "nested": (lambda x, a: x * math.sqrt(1 - 0.5**a), [1.5, 2.5, 0.0, -1.0]),
    "caught": (_caught, [-1.0, -2.0, 4.0, -3.0, 9.0]),
    "complex": (_complex, [-1.0, 4.0, -2.0, 9.0]),
    "of an int": (lambda x, a: x + math.sqrt(a - 3), [5, 7, 3, 2]),
    "an inverse of an int": (lambda x, a: x * (a - 3) ** -1, [5, 7, 2, 3]),
}


def _found(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (ValueError, ArithmeticError) as error:
        return type(error), str(error)


def _same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    else:
        assert ours == theirs


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_pythons_errors_come_in_later_calls(name: str, dynamic: bool | None) -> None:
    function, values = OF_NUMBERS[name]
    compiled = bolide.compile(function, dynamic=dynamic)
    for value in (*values, *reversed(values)):
        _same(_found(compiled, torch.ones(2), value), _found(function, torch.ones(2), value))


OF_SIZES: dict[str, Callable[[Tensor], Any]] = {
    "sqrt": lambda x: x * math.sqrt(x.size(0) - 3),
    "log": lambda x: x + math.log(x.size(0) / 2 - 1.5),
    "root": lambda x: x.sum() * (x.size(0) - 3) ** 0.5,
    "inverse": lambda x: x * (x.size(0) - 3) ** -1,
    "exponent": lambda x: x * 2.0 ** (x.size(0) * 100),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_of_sizes(name: str) -> None:
    function = OF_SIZES[name]
    compiled = bolide.compile(function, dynamic=True)
    for size in (5, 7, 3, 2, 12):
        _same(_found(compiled, torch.ones(size)), _found(function, torch.ones(size)))


def test_numbers_in_their_domains_share_a_version() -> None:
    def function(x: Tensor, a: float, n: int) -> Tensor:
        return x * math.sqrt(a) * a**2 / math.log(x.size(0) + 1) + 0.9**n + math.exp(-a) + math.sqrt(1 - 0.9**n)

    compiled: Any = bolide.compile(function, dynamic=True)
    for a, n, size in ((1.5, 3, 5), (2.5, 7, 9), (0.25, 30, 4), (900.0, 2, 3)):
        torch.testing.assert_close(compiled(torch.ones(size), a, n), function(torch.ones(size), a, n))
    assert len(compiled._bolide.entries) == 1


INITIALISERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "gain": lambda w, a: w * nn.init.calculate_gain("leaky_relu", a),
    "bound": lambda w, a: nn.init.kaiming_uniform_(w, a).abs() <= math.sqrt(6 / 4 / (1 + a * a)),
    "constant": lambda w, a: nn.init.constant_(w, a),
    "kaiming": lambda w, a: nn.init.kaiming_normal_(w, a, "fan_out") * 0 + a,
    "xavier": lambda w, a: nn.init.xavier_uniform_(w, a) * 0 + a,
}


@pytest.mark.parametrize("name", INITIALISERS)
@pytest.mark.filterwarnings("error::bolide.BolideWarning")
def test_initialisers_take_symbols_for_the_numbers_that_they_are(name: str) -> None:
    program = INITIALISERS[name]
    compiled = bolide.compile(program, fullgraph=True)
    for number in (1.5, 2.5, 0.25, 3):
        torch.testing.assert_close(compiled(torch.ones(3, 4), number), program(torch.ones(3, 4), number))


GIVEN_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": torch.mul,
    "add": lambda a, b: torch.add(4, b),
    "alpha": lambda a, b: torch.add(a, b, alpha=a),
    "div": lambda a, b: torch.div(a, b),
    "sub": lambda a, b: torch.sub(a, 2),
    "overload": lambda a, b: torch.ops.aten.mul.Tensor(a, b),
    "full": lambda a, b: torch.full((2,), a, dtype=torch.float64) * b,
    "scalar_tensor": lambda a, b: torch.scalar_tensor(a, dtype=torch.float64) * b,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", GIVEN_NUMBERS)
def test_functions_of_tensors_that_are_given_numbers_only(name: str, dynamic: bool | None) -> None:
    program = GIVEN_NUMBERS[name]
    compiled = bolide.compile(program, dynamic=dynamic)
    for a, b in ((2.5, 1.5), (3.3, 4.7), (0.1, 9.9), (3, 2.5)):
        torch.testing.assert_close(compiled(a, b), program(a, b))
