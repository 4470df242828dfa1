"""Long reductions to few results: in parts, for any extent and any size of a later call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import bolide
from bolide.inductor.ir.definitions import volume
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.ir.verify import verify
from bolide.inductor.lowering import lower
from bolide.inductor.machine import HOPPER, host_machine
from bolide.inductor.schedule import pipeline
from bolide.inductor.schedule.inline import inline
from bolide.inductor.schedule.split import split_reductions
from tests.schedule_tools import compiled, graph_of

FULL = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": lambda x: (1 + x.double() / 1e3).prod(),
    "amax": torch.amax,
    "amin": torch.amin,
    "any": lambda x: (x > 3.9).any(),
    "all": lambda x: (x > -9).all(),
    "count": lambda x: (x > 0).sum(),
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "norm": torch.linalg.vector_norm,
    "var": torch.var,
    "logsumexp": lambda x: torch.logsumexp(x.flatten(), 0),
}
SHAPES = [(1 << 17,), (131_101,), (3, 5, 7, 1301), (257, 521), (2, 80_021), (80_021, 2)]


def close(mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FULL)
def test_full_reductions(name, shape):
    x = torch.randn(shape)
    (result,) = compiled(FULL[name], (x,))([x])
    close(result, FULL[name](x))


@pytest.mark.parametrize("name", FULL)
def test_the_pass_keeps_the_meaning(name):
    x = torch.randn(131_101)
    program = lower(graph_of(FULL[name], [x])[0])
    after = split_reductions(program, host_machine())
    assert len(after.definitions) > len(program.definitions)
    for mine, theirs in zip(evaluate(after, [x]), evaluate(program, [x])):
        close(mine, theirs)


@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("shape", [(8192, 16), (4096, 256), (4096, 1024), (4099, 300)], ids=str)
def test_a_gpu_reduces_columns_on_many_threads(shape, op):
    """Whatever the reduction is; and its parts are few beside what is reduced."""
    x = torch.randint(0, 3, shape).to(torch.bool if op in ("any", "all") else torch.float32)
    program = lower(graph_of(lambda x: getattr(torch, op)(x, 0), [x])[0])
    after = split_reductions(program, HOPPER)
    parts = [volume(d.shape).value for d in after.definitions if d.name.endswith("_parts")]
    assert all(HOPPER.few_threads <= points <= x.numel() // 4 for points in parts) and parts
    close(evaluate(after, [x])[0], getattr(torch, op)(x, 0))


@pytest.mark.parametrize("rows", [(24,), (23,), (3, 7)], ids=str)
def test_sums_of_columns_are_in_parts_of_the_rows_that_are_reduced(rows):
    """And nothing else is; the oracle, and kernels on the CPU of what is in such parts, give the same."""

    def both(x, y):
        reduced = tuple(range(len(rows)))
        return x.sum(-1), (x * y).sum(reduced), y.sum(reduced), x.amax(reduced)

    x, y = torch.randn(2, *rows, 20)
    machine = replace(HOPPER, most_row_parts=5, part_rows=2, part_columns=(16, 32))
    program = inline(lower(graph_of(both, [x, y])[0]), machine)
    after = split_reductions(program, machine)
    parts = [d for d in after.definitions if d.run is not None]
    assert [d.shape[0].value for d in parts] == [6] and parts[0].run == 4
    check_program(after)
    for mine, theirs in zip(evaluate(after, [x, y]), both(x, y), strict=True):
        close(mine, theirs)
    scheduled = pipeline.schedule_program(program, tuple(g.name for g in program.inputs), (), machine)
    (summed,) = [k for k in scheduled.plan.kernels if k.locals]
    assert len(summed.params) == 4  # two tensors, the sums of rows, the parts
    verify(summed)


def split_for_a_gpu(program, shape, dynamic, monkeypatch):
    """The program as lowered, and as split for a GPU, of which the CPU runs its own."""
    programs = []

    def split(program, machine):
        programs.append(program)
        return split_reductions(program, machine)

    monkeypatch.setattr(pipeline, "split_reductions", split)
    bolide.compile(program, dynamic=dynamic)(torch.randn(shape))
    (lowered,) = programs
    return lowered, split_reductions(lowered, HOPPER)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(4000, 4096), (1021, 5000), (16_381, 96), (5003, 768)], ids=str)
@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_a_gpu_reduces_columns_of_any_length_on_many_threads(op, shape, dynamic, monkeypatch):
    """Also of prime ones, and of those that are known when the program runs."""
    _, after = split_for_a_gpu(lambda x: getattr(x, op)(0), shape, dynamic, monkeypatch)
    parts = [volume(d.shape).subs(after.size_vars).value for d in after.definitions if d.name.endswith("_parts")]
    assert parts and min(parts) >= min(HOPPER.few_threads, shape[1] * 64)
    if not dynamic:
        x = torch.randint(0, 9, shape).float()
        close(evaluate(after, [x])[0], getattr(x, op)(0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (0, 0), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("op", [torch.sum, lambda x: x.sum(0), lambda x: x.float().mean(-1), lambda x: (x > 0).all(0)])
def test_nothing_is_reduced_on_a_gpu(op, shape, dynamic, monkeypatch):
    lowered, after = split_for_a_gpu(op, shape, dynamic, monkeypatch)
    assert len(after.definitions) == len(lowered.definitions)
    if not dynamic:
        close(evaluate(after, [torch.randn(shape)])[0], op(torch.randn(shape)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(64, 200_000), (128, 1 << 18)], ids=str)
def test_a_gpu_reduces_few_rows_that_are_very_long_in_parts(shape, dynamic, monkeypatch):
    """So few teams as there are rows would leave half of it idle."""
    lowered, after = split_for_a_gpu(lambda x: x.sum(1), shape, dynamic, monkeypatch)
    assert len(after.definitions) > len(lowered.definitions)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(64, 50_257), (2, 90_001), (100, 150_000)], ids=str)
def test_a_gpu_reduces_a_row_in_one_step_where_more_would_take_longer(shape, dynamic, monkeypatch):
    """One team takes a row of a vocabulary about as fast as memory gives it; a launch takes as long as half of it."""
    lowered, after = split_for_a_gpu(lambda x: x.sum(1), shape, dynamic, monkeypatch)
    assert len(after.definitions) == len(lowered.definitions)


@pytest.mark.parametrize("length", [1 << 17, 131_101])
@pytest.mark.parametrize("op", [torch.argmax, torch.argmin])
def test_places_of_equal_values_and_of_nan(op, length):
    x = torch.zeros(length)
    assert compiled(op, (x,))([x])[0] == 0
    sign = 1 if op is torch.argmax else -1
    for places in ([5], [length - 1], [length - 1, 70], [40_000, 50_000], [2049, 2048, 2047]):
        for value in (sign * 1.0, sign * torch.inf, torch.nan):
            x = torch.zeros(length)
            x[places] = value
            assert compiled(op, (x,))([x])[0] == op(x) == min(places)
    x = torch.full((length,), -sign * torch.inf)
    assert compiled(op, (x,))([x])[0] == 0
    x[length - 1] = x[7] = torch.nan
    assert compiled(op, (x,))([x])[0] == 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.int8])
def test_types(dtype):
    x = (torch.randn(131_101) * 20).to(dtype)
    for fn in (
        torch.argmax,
        torch.argmin,
        torch.amax,
        lambda x: x.sum(dtype=torch.float64 if dtype.is_floating_point else None),
    ):
        (result,) = compiled(fn, (x,))([x])
        torch.testing.assert_close(result, fn(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FULL)
def test_sizes_of_later_calls(name):
    fast = bolide.compile(FULL[name], dynamic=True, fullgraph=True)
    for length in (140_000, 131_101, 1 << 17, 2, 63, 64, 65, 4_097, 200_003):
        x = torch.randn(length)
        close(fast(x), FULL[name](x))


@pytest.mark.parametrize("op", [lambda x: x.sum(0), lambda x: x.argmax(0), lambda x: x.amin(0), lambda x: x.sum(-1)])
def test_columns_and_rows_of_symbolic_sizes(op):
    fast = bolide.compile(op, dynamic=True, fullgraph=True)
    for shape in ((50_000, 7), (49_999, 6), (3, 2), (2, 90_001), (65, 33)):
        x = torch.randn(shape)  # terms of a sum may leave little but rounding
        exact = op(x.double())
        torch.testing.assert_close(fast(x), exact.float() if exact.is_floating_point() else exact, rtol=1e-4, atol=1e-3)


def test_gradients_and_strides():
    x = torch.randn(509, 521).t().requires_grad_()

    def program(x):
        return (x * x).sum() + x.exp().amax()

    fast = bolide.compile(program, dynamic=True)
    close(fast(x), program(x))
    (mine,), (theirs,) = torch.autograd.grad(fast(x), x), torch.autograd.grad(program(x), x)
    close(mine, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(8, 300, 128), (3, 100_000), (4, 90_001), (262_147,)], ids=str)
def test_a_gpu_is_given_many_parts(shape, dynamic, monkeypatch):
    """Whichever axis allows them; and these are of many elements."""
    x = torch.randn(shape)
    _, after = split_for_a_gpu(torch.sum, shape, dynamic, monkeypatch)
    parts = next(d for d in after.definitions if d.name.endswith("_parts"))
    many = volume(parts.shape).subs(after.size_vars)
    assert 100 < many.value <= min(HOPPER.most_parts, x.numel() // 32)
    if not dynamic:
        close(evaluate(after, [x])[0], x.sum())


def test_results_do_not_depend_on_the_number_of_threads():
    x, before = torch.randn(1_000_003), torch.get_num_threads()
    graph = compiled(torch.sum, (x,))
    results = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.add(graph([x])[0].item())
    finally:
        torch.set_num_threads(before)
    assert len(results) == 1


def test_sums_of_what_is_stored_as_well_have_more_parts():
    """A thread does more for each element then."""
    numbers = []
    for function in (lambda x: (x.tanh().sum(0),), lambda x: (y := x.tanh().exp(), y.sum(0))):
        lowered = lower(graph_of(function, (torch.empty(1 << 13, 1 << 10),))[0], machine=HOPPER)
        after = split_reductions(inline(lowered, HOPPER), HOPPER)
        (parts,) = (d for d in after.definitions if d.name.endswith("_parts"))
        numbers.append(parts.shape[0].value)
    assert numbers == [HOPPER.enough_parts >> 10, HOPPER.parts_with_stores >> 10]
