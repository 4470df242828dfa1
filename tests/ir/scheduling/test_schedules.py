"""A kernel follows its schedule, whichever it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import bolide
from bolide.inductor import compile_graph
from bolide.inductor.ir.loops import VECTOR_KINDS, Kernel, Loop
from bolide.inductor.ir.walks import statements
from bolide.inductor.machine import host_machine
from bolide.inductor.schedule.nest import Schedule
from tests.schedule_tools import Rescheduled, assert_same, compiled, graph_of

R = torch.randn


def add_across(x, y):
    return x.permute(2, 0, 1) + y


def normalized(x, y):
    return torch.softmax(x.sin() * 2, -1).permute(2, 0, 1) + y


def column_sums(x, y):
    return (x * x).sum(0), x.amax((0, 1))


def scattered(x, y):
    return torch.zeros(4, 33).index_add(0, torch.tensor([0, 2, 0, 3, 1]), x[:, 0])


def one_number(x, y):
    return (x * 2).sum()


def turned_parts(x, y):
    return torch.nn.functional.pad(y, (0, 0, 0, 0, 1, 1)) + x.transpose(1, 2)


def scattered_rows(x, y):
    return y.new_zeros(7, 200).index_add(0, torch.tensor([1, 0, 1, 6, 1, 3, 0]), x.expand(33, 7, 200)[0])


PROGRAMS = [add_across, normalized, column_sums, scattered, one_number]


def vectors(kernel) -> set[str]:
    loops = [statement for statement in statements(kernel.body) if isinstance(statement, Loop)]
    return {loop.axis.name for loop in loops if loop.axis.kind in VECTOR_KINDS}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("choice", range(4))
def test_every_alternative_computes_the_same(program, choice):
    inputs = (R(5, 7, 33), R(33, 5, 7))
    seen: list[Schedule] = []

    def tune(schedule: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        others = schedule.alternatives(host_machine(), {})
        seen.append(others[choice % len(others)] if others else schedule)
        return seen[-1]

    graph = compile_graph(*graph_of(program, inputs), tuner=Rescheduled(tune))
    expected = program(*inputs)
    for mine, theirs in zip(graph([*inputs]), [expected] if isinstance(expected, torch.Tensor) else expected):
        assert_same(mine, theirs, rtol=1e-4, atol=1e-4)
    assert all(report.schedule in seen for report in graph.kernels)


@pytest.mark.parametrize("program", [turned_parts, scattered_rows], ids=lambda program: program.__name__)
def test_blocks_and_splits_are_data_of_the_schedule(program):
    """Loops are cut where the schedule says so, and in no other one of those that compute the same."""
    inputs = (R(4, 40, 50), R(2, 50, 40)) if program is turned_parts else (R(1, 7, 200), R(1))
    plain = compiled(program, inputs)
    expected = program(*inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    assert any(report.schedule.blocks for report in plain.kernels)
    assert any(report.schedule.splits for report in plain.kernels) == (program is turned_parts)
    shown = {report.schedule: report.ir.body for report in plain.kernels}
    for change in ({"blocks": ()}, {"splits": ()}, {"blocks": (), "splits": ()}):

        def tune(schedule, kernel_of, change=change):
            return replace(schedule, **change)

        graph = compile_graph(*graph_of(program, inputs), tuner=Rescheduled(tune))
        for mine, theirs in zip(graph([*inputs]), expected):
            assert_same(mine, theirs)
        for report, (schedule, body) in zip(graph.kernels, shown.items()):
            assert (report.ir.body == body) == (replace(schedule, **change) == schedule)
            assert not any(name in report.schedule.text() for name in ("in blocks of", "split at")) or len(change) == 1


def test_a_schedule_is_a_value():
    (kernel,) = compiled(normalized, (R(5, 7, 33), R(33, 5, 7))).kernels
    schedule = kernel.schedule
    assert hash(schedule) == hash(compiled(normalized, (R(5, 7, 33), R(33, 5, 7))).kernels[0].schedule)
    assert schedule.vector in vectors(kernel.ir) and schedule.scratch
    other = schedule.with_vector(schedule.parallel[0].name)
    assert other.vector == schedule.parallel[0].name and other.inner[-1].kind == "reduce"
    assert other.with_vector(schedule.vector).inner == schedule.inner
    assert not schedule.with_vector(None).vector


def test_explain_shows_it():
    shown = bolide.explain(lambda x: torch.softmax(x, -1))(R(8, 40))
    (kernel,) = shown.graphs[0].kernels
    bound, *why = kernel.schedule.splitlines()
    assert bound.startswith("parallel") and "reduce_vector" in bound and "< 40" in bound
    assert any("accesses are consecutive along it" in reason for reason in why)
    assert kernel.schedule.splitlines()[0] in str(shown)


@pytest.mark.parametrize("vectors", [0, 1, 4])
def test_loops_follow_memory_whatever_small_operands_lie_like(vectors):
    """A tensor that is read and written in order is one run for each channel, also if channels are scaled."""

    def scaled(x, *scales):
        for scale in scales:
            x = (x - scale[:, None, None]) * scale[:, None, None]
        return x.relu()

    graph = compiled(scaled, (torch.randn(3, 5, 32, 64), *torch.randn(vectors, 5)))
    (kernel,) = graph.kernels
    extents = [axis.extent.value for axis in kernel.schedule.outer]
    assert extents == ([3, 5, 32 * 64] if vectors else [3 * 5 * 32 * 64])


@pytest.mark.parametrize("count", [1, 3, 8])
def test_vectors_run_along_rows_whatever_is_known_of_rows(count):
    """Statistics of rows are small, and in caches: they have no vote against the rows themselves."""

    def scaled(x, *statistics):
        for statistic in statistics:
            x = x * statistic[:, None]
        return x.relu()

    graph = compiled(scaled, (torch.randn(90, 70), *torch.randn(count, 90)))
    (kernel,) = graph.kernels
    assert [(axis.extent.value, axis.kind) for axis in kernel.schedule.outer] == [(90, "parallel"), (70, "vector")]


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "masked"])
def test_rows_that_are_looked_up_are_joined_along_their_elements(reduce):
    """They follow one another in memory, and the rows do not: a vector is a part of one row."""
    length, count = random.choice((16, 40, 64)), random.randrange(17, 60)
    table, places, mask = R(50, length), torch.randint(0, 50, (9, count)), R(9, count, 1).relu()

    def pooled(table, places, mask):
        rows = table[places] if reduce == "sum" else torch.nn.functional.embedding(places, table)
        return (rows * mask).sum(1) / mask.sum(1) if reduce == "masked" else getattr(rows, reduce)(1)

    graph = compiled(pooled, (table, places, mask))
    (found,) = graph([table, places, mask])
    assert_same(found, pooled(table, places, mask), rtol=1e-4, atol=1e-4)
    *_, kernel = [each for each in graph.kernels if each.schedule.inner and len(each.schedule.outer) > 1]
    extents = {axis.name: axis.extent.value for axis in kernel.schedule.outer}
    assert extents.get(kernel.schedule.vector) == length, kernel.schedule.text()
