"""Additions of many values to few elements: in parts that threads share, for any extent, with eager's values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bolide.inductor import compile_graph
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.lowering import lower
from bolide.inductor.machine import host_machine
from bolide.inductor.schedule.split import split_scatters
from tests.schedule_tools import graph_of

MANY = replace(host_machine(), threads=4, grain=64)


def places(count: int, most: int = 9) -> torch.Tensor:
    return torch.randint(0, most, (count,))


PROGRAMS = {
    "index_add": lambda x, k, v: x.index_add(0, k, v),
    "scatter_add": lambda x, k, v: x.scatter_add(0, k, v * 2),
    "index_put": lambda x, k, v: x.index_put((k,), v, accumulate=True),
    "counts": lambda x, k, v: torch.zeros(9, dtype=torch.int64).index_add(0, k, torch.ones_like(k)),
    "doubles": lambda x, k, v: x.double().index_add(0, k, v.double()),
    "used again": lambda x, k, v: (x.index_add(0, k, v) * 2, x.exp()),
    "twice": lambda x, k, v: x.index_add(0, k, v).index_add(0, k, v.sin()),
}


@pytest.mark.parametrize("count", [960, 1009])  # a prime number leaves a rest
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_dimension(name: str, count: int) -> None:
    args = [torch.randn(9), places(count), torch.randn(count)]
    gm, info = graph_of(PROGRAMS[name], args)
    graph = compile_graph(gm, info, MANY)
    wanted = PROGRAMS[name](*args)
    for mine, theirs in zip(graph([*args]), [wanted] if isinstance(wanted, torch.Tensor) else wanted):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert any("< 4 on threads" in kernel_text(report.ir) for report in graph.kernels)
    program = lower(gm)
    after = split_scatters(program, MANY)
    check_program(after)
    assert len(after.definitions) > len(program.definitions)
    for mine, theirs in zip(evaluate(after, args), evaluate(program, args)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_rows() -> None:
    """Gradients of an embedding, and rows along another dimension."""
    k, v = places(500), torch.randn(500, 24)
    programs = (
        lambda k, v: torch.ops.aten.embedding_dense_backward(v, k, 9, 3, False),
        lambda k, v: torch.zeros(24, 9).index_add(1, k, v.t()),
    )
    for program in programs:
        graph = compile_graph(*graph_of(program, [k, v]), MANY)
        torch.testing.assert_close(graph([k, v])[0], program(k, v), rtol=1e-4, atol=1e-4)
        assert any("< 4 on threads" in kernel_text(report.ir) for report in graph.kernels)


def test_signs_of_zeros_stay() -> None:
    """Of what nothing is added to."""
    x, k, v = -torch.zeros(9), places(1000, 8), torch.randn(1000)
    (result,) = compile_graph(*graph_of(PROGRAMS["index_add"], [x, k, v]), MANY)([x, k, v])
    assert torch.signbit(result[8]) and torch.signbit(x.index_add(0, k, v)[8])


def test_what_stays_whole() -> None:
    """On one thread, with little to add, with more elements than additions, and where the last value wins."""
    args = [torch.randn(9), places(1000), torch.randn(1000)]
    program = lower(graph_of(PROGRAMS["index_add"], args)[0])
    for machine in (replace(MANY, threads=1), replace(MANY, grain=1 << 20)):
        assert split_scatters(program, machine).definitions == program.definitions
    wide = [torch.randn(900), places(1000), torch.randn(1000)]
    last = lower(graph_of(lambda x, k, v: x.index_put((k,), v), args)[0])
    for one in (lower(graph_of(PROGRAMS["index_add"], wide)[0]), last):
        assert split_scatters(one, MANY).definitions == one.definitions


def test_the_same_each_time() -> None:
    args = [torch.randn(9), places(5000), torch.randn(5000)]
    graph = compile_graph(*graph_of(PROGRAMS["index_add"], args), MANY)
    first = graph([*args])[0]
    assert all(torch.equal(graph([*args])[0], first) for _ in range(20))
