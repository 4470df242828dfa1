"""Programs of the kinds of PyTorch's own suites of capture (functions, higher-order operators, exceptions, containers):
what is captured whole there is here as well, and eager's in values, exceptions and gradients."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bolide
from tests.everyday_tools import described, difference

NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "float": lambda x: x * float(x.sum()) + float(x[0]),
    "int": lambda x: (x * int(x.sum() * 3), int(x.sum())),
    "of the number": lambda x: x * int(x.sum().item()) * float(x.mean().item()),
    "rounded": lambda x: (x * round(x.sum().item()), math.trunc(x.sum().item())),
    "floor and ceiling": lambda x: (math.floor(x.sum()) * x, math.ceil(x.sum().item()) * x),
    "functions": lambda x: math.sqrt(x.abs().sum()) * x + math.exp(x[0]) + math.pow(x[1].abs(), 2),
    "of integers": lambda x: (float(x.argmax()) * x, math.floor(x.argmax()), math.sqrt(x.argmax())),
    "as sizes": lambda x: (torch.zeros(int(x.abs().sum()) + 1), x[: int(x[0].abs())], x[x.argmax()]),
    "each": lambda x: sum(float(item) for item in x) * x,
    "where": lambda x: torch.where(x > 0, x.clamp(max=float(x.mean())), int(x.sum())),
}


def same(eager: Any, found: Any) -> None:
    assert eager == found, difference(eager, found)


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return described(program(*args))
    except Exception as error:
        return [type(error), str(error)]


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_tensors_are_captured(name: str) -> None:
    program = NUMBERS[name]
    compiled = bolide.compile(program, fullgraph=True)
    for size in (3, 5, 4):
        x = torch.randn(size, dtype=torch.float64, requires_grad=True)
        expected, found = program(x), compiled(x)
        same(described(expected), described(found))
        for a, b in zip(*[(y if isinstance(y, tuple) else (y,)) for y in (expected, found)], strict=True):
            if isinstance(a, Tensor) and a.requires_grad:
                grads = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (a, b)]
                torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, -(2.0**63), 2.5, 3.5, -2.5])
@pytest.mark.parametrize("convert", [int, round, math.floor, math.ceil, math.trunc])
def test_integers_of_any_float(convert: Callable[[float], int], bad: float) -> None:
    def program(x: Tensor) -> Any:
        return x, convert(x.sum().item())

    compiled = bolide.compile(program)
    for value in (1.5, bad, -0.5):
        x = torch.tensor([value], dtype=torch.float64)
        same(outcome(program, x), outcome(compiled, x))


EMPTY_OR_MANY: dict[str, Callable[[Tensor], Any]] = {
    "bool": lambda x: bool(x),
    "if": lambda x: 1 if x else 2,
    "not": lambda x: not x,
    "and": lambda x: x and 1,
    "in": lambda x: x in (1, 2),
    "max": lambda x: max(x, x * 1),
    "sorted": lambda x: sorted([x, x * 1]),
    "none": lambda x: bool(x[:0]),
    "float": lambda x: float(x),
    "index": lambda x: [1, 2][x],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", EMPTY_OR_MANY)
def test_tensors_that_are_no_single_number_raise(name: str, dynamic: bool | None) -> None:
    program = EMPTY_OR_MANY[name]

    def caught(x: Tensor) -> Any:
        try:
            return program(x)
        except Exception as error:
            return type(error).__name__, str(error)

    compiled = bolide.compile(caught, fullgraph=True, dynamic=dynamic)
    for size in (3, 5, 4):
        x = torch.randn(size)
        assert compiled(x) == caught(x)


def of_largest(a: Tensor, b: Tensor) -> Any:
    return max(a, b) * 2, min([a, b * 3]).exp(), -max(a, b, key=lambda t: -t)


def test_the_largest_tensor_is_chosen_in_the_graph() -> None:
    compiled = bolide.compile(of_largest, fullgraph=True)
    for a, b in ((1.0, 2.0), (2.0, 1.0), (-1.0, -1.0), (0.0, 3.0)):
        pair = torch.tensor(a), torch.tensor(b)
        same(described(of_largest(*pair)), described(compiled(*pair)))


QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "exporters": lambda x: x + (torch.onnx.is_in_onnx_export() or torch.fx._symbolic_trace.is_fx_tracing()),
    "optional": lambda x: torch.jit._unwrap_optional(x).sin(),
    "bytes": lambda x: (x.nbytes, x.nbytes * 2 + x.itemsize),
    "identity of sizes": lambda x: (x.shape[0] is x.size(0), x.shape[0] is x.shape[1], operator.is_not(x.shape[0], 3)),
    "identity": lambda x: (operator.is_(x, x), operator.is_(x, x.T), operator.is_not(None, x)),
    "a known condition": lambda x: torch.cond(torch.tensor(x.shape[0] > 3), torch.sin, torch.cos, (x,)),
    "limits of types": lambda x: x + np.finfo(np.float32).eps + np.iinfo("int8").max,
}


@pytest.mark.filterwarnings("ignore:is_fx_tracing")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_answered_while_compiling(name: str, dynamic: bool | None) -> None:
    program = QUESTIONS[name]
    compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (3, 5, 4, 3):
        x = torch.randn(rows, 3)
        same(described(program(x)), described(compiled(x)))


def test_limits_of_types_as_arguments() -> None:
    def shifted(x: Tensor, info: Any) -> Tensor:
        return x * 0 + info.bits

    compiled = bolide.compile(shifted, fullgraph=True)
    infos = [np.finfo("float32"), np.finfo(np.float64), np.iinfo("int8"), np.iinfo(np.int8), np.iinfo("int64")]
    for size, info in enumerate(infos, 2):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, info), shifted(x, info))


def test_states_of_generators() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    def program(x: Tensor) -> Any:
        made = numbers()
        states = [inspect.getgeneratorstate(made)]
        for _ in made:
            states.append(inspect.getgeneratorstate(made))
        return x.sin(), [*states, inspect.getgeneratorstate(made)]

    compiled = bolide.compile(program, fullgraph=True)
    for size in (3, 5):
        x = torch.randn(size)
        same(described(program(x)), described(compiled(x)))


INDICES: dict[str, Callable[[Tensor], Any]] = {
    "largest": lambda x: x[x[:, 0].argmax()] * 2,
    "element": lambda x: x[x[:, 0].argmax(), 1],
    "second dimension": lambda x: x[:, x[0].argmin()],
    "new dimension": lambda x: x[None, x[:, 0].argmin()],
    "last dimension": lambda x: x[..., x[0].argmin()].exp(),
    "two": lambda x: x[x[:, 1].argmin(), x[0].argmax()],
    "beside others": lambda x: x[x[:, 1].argmin(), [0, 2]],
    "from the end": lambda x: x[-1 - x[:, 1].argmin()],
    "of an array": lambda x: x[torch.arange(2)[1]],
    "out of range": lambda x: x[x[:, 0].argmax() + 20],
    "written": lambda x: _written(x * 1, x[:, 0].argmax()),
}


def _written(x: Tensor, place: Tensor) -> Tensor:
    x[place] = 3.0
    x[place, 1] += 2
    x[0, place - place] *= 2
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", INDICES)
def test_tensors_of_one_integer_select(name: str, dynamic: bool | None) -> None:
    program = INDICES[name]
    compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (3, 5, 4, 6):
        x = torch.randn(rows, 3, requires_grad=True)
        same(outcome(program, x), outcome(compiled, x))
        if name != "out of range":
            expected, found = (torch.autograd.grad(run(x).sum(), x)[0] for run in (program, compiled))
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_searches_in_texts_of_sizes(dynamic: bool | None) -> None:
    def program(x: Tensor) -> Any:
        text = f"abc {x.shape[0]}"
        return x * text.count("a"), text.index("c"), "a3b4".count(str(x.shape[0])), ["3", "5"].count(text[-1])

    compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
    for size in (3, 5, 4):
        x = torch.randn(size)
        same(described(program(x)), described(compiled(x)))
