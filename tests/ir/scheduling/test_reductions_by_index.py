"""Reductions of values by an index (scatter_reduce, index_reduce) and histograms: kernels with eager's values."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import bolide
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.lowering import lower
from bolide.inductor.plan import Call
from tests.ir.kernel_tools import both, i64, load, loop, op, param, store, var
from tests.schedule_tools import check, compiled, graph_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
WHOLE = (torch.int64, torch.uint8)
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.randn(shape) * 3
    return values.to(dtype) if dtype.is_floating_point else torch.randint(0, 7, shape).to(dtype)


def at_random(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape)


#: Where values go: the dimension, the base, the index and the source for so many values.
PLACES: dict[str, Callable[[torch.dtype, int], tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]] = {
    "elements": lambda t, n: (0, numbers(t, 9, 5), at_random(9, n, 5), numbers(t, n, 5)),
    "rows": lambda t, n: (0, numbers(t, 9, 20), at_random(9, n, 1).expand(n, 20), numbers(t, n, 20)),
    "along rows": lambda t, n: (-1, numbers(t, 4, 9), at_random(9, 4, n), numbers(t, 5, n + 1)),
    "one dimension": lambda t, n: (0, numbers(t, 9), at_random(9, 3 * n), numbers(t, 3 * n)),
}


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    places = random.choice([*PLACES.values()])
    dim, *_ = places(dtype, 1)

    def program(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(dim, i, y, reduce, include_self=include_self)

    function = bolide.compile(program, dynamic=True)
    for count in (5, 17, 0):
        _, *args = places(dtype, count)
        torch.testing.assert_close(function(*args), program(*args))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, i64])
def test_index_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.index_reduce(1, i, y, reduce, include_self=include_self)

    function = bolide.compile(program, dynamic=True)
    for count in (5, 17):
        args = numbers(dtype, 3, 6, 4), at_random(6, count), numbers(dtype, 3, count, 4)
        torch.testing.assert_close(function(*args), program(*args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ends", [(-2.0, 2.0, 10), (0.1, 0.7, 13), (-1e-3, 5.5, 50), (-7, 11, 18), (0, 0, 6)])
def test_histograms(ends: tuple[float, float, int], dtype: torch.dtype) -> None:
    """Values at the borders, beside them, outside, and those that are no numbers. Without borders the data say them."""
    low, high, bins = ends
    function = bolide.compile(lambda x: torch.histc(x, bins, low, high))
    edges = torch.linspace(low, high, bins + 1, dtype=dtype)
    beside = [torch.nextafter(edges, torch.full_like(edges, end)) for end in (-1e9, 1e9)]
    values = [torch.rand(3000, dtype=dtype) * (high - low) * 1.2 + low - (high - low) / 10, edges, *beside]
    if low != high:
        values.append(torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=dtype))
    x = torch.cat(values)
    for part in (x, x[:7], x.view(-1, 1)):
        assert torch.equal(function(part), torch.histc(part, bins, low, high))


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod"])
def test_what_is_atens_copies_its_base_once(reduce: str) -> None:
    x, i, y = torch.randn(20, 9).bfloat16().t(), at_random(9, 30, 20), torch.randn(30, 20).bfloat16()
    graph = check(lambda x, i, y: x.scatter_reduce(0, i, y, reduce, include_self=False), x, i, y)
    calls = [step.operator for step in graph.plan.steps if isinstance(step, Call)]
    assert [(call.name, call.overload) for call in calls] == [("aten::clone", ""), ("aten::scatter_reduce", "two_out")]


def test_they_are_kernels() -> None:
    x, i, y = torch.randn(9, 20), at_random(9, 30, 20), torch.randn(30, 20)
    for program, *args in (
        (lambda x, i, y: x.scatter_reduce(0, i, y, "amax", include_self=False), x, i, y),
        (lambda x, i, y: x.scatter_reduce(0, i, y, "mean"), x, i, y),
        (lambda x, i, y: x.index_reduce(0, i, y, "prod"), x, at_random(9, 30), y),
        (lambda y: torch.histc(y, 5, -1, 1), y),
    ):
        graph = check(program, *args)
        assert not any(isinstance(step, Call) for step in graph.plan.steps)
        gm, _ = graph_of(program, args)
        lowered = lower(gm)
        check_program(lowered)
        (result,) = evaluate(lowered, args)
        torch.testing.assert_close(result, program(*args))


def test_an_expanded_index_is_checked_once_for_each_row() -> None:
    i = at_random(9, 30, 1).expand(30, 20)
    graph = compiled(lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), (torch.randn(9, 20), i, torch.randn(30, 20)))
    checks = [report for report in graph.kernels if "check" in report.ir.name]
    assert [[axis.extent.value for axis in report.schedule.outer] for report in checks] == [[30]]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients(reduce: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin().scatter_reduce(0, i, y.exp(), reduce).square()

    function = bolide.compile(program, dynamic=True)
    for count in (7, 12):
        args = [torch.randn(9, 5), at_random(9, count, 5), torch.randn(count, 5)]
        grads = []
        for run in (function, program):
            x, y = (arg.clone().requires_grad_() for arg in (args[0], args[2]))
            run(x, args[1], y).sum().backward()
            grads.append((x.grad, y.grad))
        torch.testing.assert_close(*grads)


def test_errors_and_writes_are_eagers() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.scatter_reduce_(0, i, y, "amax")
        return x + 1

    function = bolide.compile(program)
    x, y = torch.randn(9, 4), torch.randn(6, 4)
    other = x.clone()
    for bad in (False, True, False):
        i = at_random(9, 6, 4)
        if bad:
            i[3, 2] = 9
            with pytest.raises(RuntimeError) as wanted:
                program(other, i, y)  # what comes before the bad index is written
            with pytest.raises(RuntimeError) as raised:
                function(x, i, y)
            assert str(raised.value) == str(wanted.value)
        else:
            torch.testing.assert_close(function(x, i, y), program(other, i, y))
        torch.testing.assert_close(x, other)


@pytest.mark.parametrize("mode", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, i64])
def test_machine_code_is_the_oracles(dtype: torch.dtype, mode: str) -> None:
    """Of elements that meet, in lanes and one after the other, and of those that do not."""
    place = op("min", op("max", load("k", var("i", 37), i64), load("zero", 0, i64)), load("last", 0, i64))
    met = store("y", var("$0", 11), load("x", var("i", 37), dtype), place, mode=mode)
    apart = store("z", var("j", 37), load("x", var("j", 37), dtype), mode=mode)
    params = [param("k", 37, i64), param("zero", 1, i64), param("last", 1, i64), param("x", 37, dtype)]
    params += [param("y", 11, dtype, "inout"), param("z", 37, dtype, "inout")]
    buffers = {"k": at_random(11, 37), "zero": torch.tensor([0]), "last": torch.tensor([10])}
    buffers |= {"x": numbers(dtype, 37).clamp(-2, 2), "y": numbers(dtype, 11), "z": numbers(dtype, 37)}
    for kind in ("serial", "vector"):
        body = (loop(kind, "i", 37, met), loop(kind, "j", 37, apart))
        for _, mine, expected in both(Kernel("k", tuple(params), body), buffers):
            torch.testing.assert_close(mine, expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padding", [None, 3])
def test_gradients_of_large_tables_in_16_bits(dtype: torch.dtype, padding: int | None) -> None:
    """Of few rows of a table, some of them many times: summed in float32, in order, and rounded once."""

    def program(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(tokens, weight, padding_idx=padding)

    function, width = bolide.compile(program, dynamic=True), random.choice([1, 8, 40])
    for shape in ((2, 9), (3, 1), (0, 4), (1, 30)):  # 30 of 50 rows: also where the sizes of the first call decided
        print(f"{shape} rows of {width}")
        weight = numbers(dtype, 50, width).requires_grad_()
        tokens = at_random(random.choice([5, 50]), *shape)
        result = function(weight, tokens)
        assert torch.equal(result, program(weight, tokens))
        grad = numbers(dtype, *result.shape)
        wanted = torch.zeros(50, width)
        for token, row in zip(tokens.flatten().tolist(), grad.flatten(0, -2).float()):
            wanted[token] += row if token != padding else 0
        (mine,) = torch.autograd.grad(result, weight, grad)
        assert torch.equal(mine, wanted.to(dtype))


def test_sums_of_few_rows_need_little_memory() -> None:
    """No table as large as the result, in a wider type."""
    tokens, grad = at_random(50, 20), numbers(torch.bfloat16, 20, 8)

    def backward(grad: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, tokens, 50, -1, False)

    graph = compiled(backward, (grad, tokens))
    wide = [param.numel.value for report in graph.kernels for param in report.ir.params if param.dtype is torch.float32]
    assert wide and max(wide) == grad.numel()
    program = lower(graph_of(backward, (grad, tokens))[0])
    check_program(program)
    assert torch.equal(evaluate(program, [grad, tokens])[0], graph([grad, tokens])[0])
    with pytest.raises(IndexError, match="out of range"):
        graph([grad, tokens + 49])
