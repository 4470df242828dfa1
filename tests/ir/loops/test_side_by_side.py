"""Axes that threads share: what iterations touch is proven to be apart, or the kernel is refused; who runs what makes
no difference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from bolide.inductor.codegen.compiler import module_text
from bolide.inductor.ir.loops import Axis, Init, Kernel, Loop, Stmt, Update
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.ir.ranges import Touched, are_apart
from bolide.inductor.ir.rewrites import on_threads
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.inductor.machine import host_machine
from bolide.symbolic import Expr
from tests.ir.kernel_tools import acc, const, f32, i64, load, loop, op, param, run, store, var
from tests.schedule_tools import check

n, w = Expr.var("n", 1), Expr.var("w", 1)


def kernel(*body: Stmt, size: Expr | int = 64, sizes: tuple[str, ...] = ()) -> Kernel:
    params = (param("x", size), param("k", size, i64), param("y", size, role="inout"))
    params += (param("flag", 1, torch.bool, "inout"),)
    return Kernel("k", params, on_threads(body), sizes)


ONE = const(1.0)
PLACE = op("min", op("max", load("k", var("i", 8), i64), const(0, i64)), const(7, i64))

APART = {
    "rows": kernel(loop("parallel", "i", 8, loop("vector", "j", 8, store("y", var("i", 8) * 8 + var("j", 8), ONE)))),
    "columns": kernel(loop("parallel", "i", 8, loop("serial", "j", 8, store("y", var("j", 8) * 8 + var("i", 8), ONE)))),
    "symbolic rows": kernel(
        loop("parallel", "i", n, loop("vector", "j", w, store("y", var("i", n) * w + var("j", w), ONE))),
        size=n * w,
        sizes=("n", "w"),
    ),
    "between others": kernel(
        loop("parallel", "i", 8, store("y", var("i", 8) * 2, ONE), store("y", var("i", 8) * 2 + 1, ONE))
    ),
    "halves": kernel(loop("parallel", "i", 8, store("y", var("i", 8), ONE), store("y", var("i", 8) + 8, ONE))),
    "heads": kernel(loop("vector", "i", 64, store("y", var("i", 64) % 8 * 8 + var("i", 64) // 8, ONE))),
    "read where written": kernel(loop("vector", "i", 8, store("y", var("i", 8), load("y", var("i", 8))))),
    "read elsewhere": kernel(loop("vector", "i", 8, store("y", var("i", 8), load("y", var("i", 8) + 8)))),
    "rows by index": kernel(
        loop("parallel", "j", 8, loop("serial", "i", 8, store("y", var("$0", 8) * 8 + var("j", 8), ONE, PLACE)))
    ),
    "atomic": kernel(loop("parallel", "i", 8, store("y", var("$0", 8), ONE, PLACE, mode="atomic_add"))),
}

FOUND = op("gt", load("x", var("i", 8)), ONE, dtype=torch.bool)
APART["flag"] = kernel(loop("parallel", "i", 8, store("flag", 0, FOUND, mode="any"), store("y", var("i", 8), ONE)))

MEET = {
    "one element": kernel(loop("parallel", "i", 8, store("y", 0, ONE))),
    "an axis that moves nothing": kernel(
        loop("parallel", "i", 8, loop("parallel", "j", 8, store("y", var("i", 8), ONE)))
    ),
    "rows overlap": kernel(
        loop("parallel", "i", 8, loop("vector", "j", 8, store("y", var("i", 8) * 7 + var("j", 8), ONE)))
    ),
    "neighbours": kernel(loop("vector", "i", 8, store("y", var("i", 8), load("y", var("i", 8) + 1)))),
    "symbolic rows overlap": kernel(
        loop("parallel", "i", n, loop("vector", "j", w + 1, store("y", var("i", n) * w + var("j", w + 1), ONE))),
        size=n * w + 1,
        sizes=("n", "w"),
    ),
    "half of a place": kernel(loop("vector", "i", 64, store("y", var("i", 64) // 8, ONE))),
    "by index": kernel(loop("parallel", "i", 8, store("y", var("$0", 8), ONE, PLACE))),
    "added by index": kernel(loop("parallel", "i", 8, store("y", var("$0", 8), ONE, PLACE, mode="add"))),
    "atomic and plain": kernel(
        loop("parallel", "i", 8, store("y", var("$0", 8), ONE, PLACE, mode="atomic_add"), store("y", var("i", 8), ONE))
    ),
}


@pytest.mark.parametrize("name", APART)
def test_apart(name: str) -> None:
    verify(APART[name])


@pytest.mark.parametrize("name", MEET)
def test_refused(name: str) -> None:
    with pytest.raises(InvalidKernel, match="side by side, and may meet in y"):
        verify(MEET[name])


def test_flags_are_set_only_and_not_read() -> None:
    """All that set a flag store the same; who reads it, or stores something else, would see it on the way."""
    read = op("and", load("flag", 0, torch.bool), FOUND)
    for found, mode in ((read, "any"), (FOUND, "set")):
        body = (store("flag", 0, FOUND, mode="any"), store("flag", 0, found, mode=mode))
        with pytest.raises(InvalidKernel, match="side by side, and may meet in flag"):
            verify(kernel(loop("parallel", "i", 8, *body)))
    with pytest.raises(InvalidKernel, match="has a bool"):
        verify(kernel(loop("parallel", "i", 8, store("y", var("i", 8), ONE, mode="any"))))


def test_sizes_of_the_call_are_enough() -> None:
    """Where nothing is known of a stride, the rows of this call decide."""
    stride = Expr.var("s", 0)
    rows = loop("parallel", "i", n, loop("vector", "j", w, store("y", var("i", n) * stride + var("j", w), ONE)))
    strided = kernel(rows, size=(n - 1) * stride + w, sizes=("n", "s", "w"))
    verify(strided, {"n": 5, "s": 9, "w": 7})
    with pytest.raises(InvalidKernel, match="may meet"):
        verify(strided, {"n": 5, "s": 6, "w": 7})


def test_places_that_data_say_are_bounded_by_sizes() -> None:
    """A diagonal of each matrix: the place is below `n`, which is at most `w` in this call."""
    whole, below = Expr.var("m", 1), Expr.var("$0", 0, n - 1)
    place = op("min", op("max", load("k", var("j", 3), i64), const(0, i64)), const(4, i64))
    body = store("y", below * (w + 1) + var("i", whole) * n * w, ONE, place)
    of_each = kernel(
        loop("parallel", "i", whole, loop("serial", "j", 3, body)), size=whole * n * w, sizes=("m", "n", "w")
    )
    verify(of_each, {"m": 5, "n": 5, "w": 6})
    with pytest.raises(InvalidKernel, match="may meet"):
        verify(of_each, {"m": 5, "n": 7, "w": 3})


def test_where_axes_may_be_bound() -> None:
    def bound(kind: str, *body: Stmt, extent: Expr | int = 8, name: str = "i") -> Loop:
        return Loop(Axis(name, Expr.const(0) + extent, kind, "threads"), body)  # type: ignore[arg-type]

    def of(*body: Stmt) -> Kernel:
        return Kernel("k", (param("y", 64, role="out"),), body)

    inner = bound("parallel", store("y", var("i", 8) * 8 + var("j", 8), ONE), name="j")
    verify(of(bound("parallel", inner)))
    for body, message in (
        (loop("serial", "h", 1, bound("vector", store("y", var("i", 8), ONE))), "not at the top"),
        (bound("parallel", inner, store("y", var("i", 8), ONE)), "not at the top"),
        (bound("serial", store("y", var("i", 8), ONE)), "serial loop i is bound"),
        (bound("parallel", bound("vector", store("y", var("j", 8), ONE), name="j")), "vector loop j is bound"),
        (bound("parallel", bound("parallel", ONE_OF_ROW, name="j", extent=var("i", 8) + 1)), "changes in the loops"),
    ):
        with pytest.raises(InvalidKernel, match=message):
            verify(of(body))


ONE_OF_ROW = store("y", var("i", 8) * 8 + var("j", 8), ONE)


def _meets(one: Touched, other: Touched, shared: Sequence[str]) -> bool:
    """Whether two accesses meet, found by trying everything."""
    seen: dict[int, set[tuple[int, ...]]] = {}

    def places(touched: Touched) -> list[tuple[int, tuple[int, ...]]]:
        names = [axis.name for axis in touched.axes]
        points = itertools.product(*[range(axis.extent.bounds()[1] or 0) for axis in touched.axes])
        found = []
        for point in points:
            env = dict(zip(names, point))
            if all(env[axis.name] < axis.extent.evaluate(env) for axis in touched.axes):
                found.append((touched.index.evaluate(env), tuple(env[name] for name in shared)))
        return found

    for index, place in places(one):
        seen.setdefault(index, set()).add(place)
    return any(seen.get(index, set()) - {place} for index, place in places(other))


def test_what_is_proven_is_so() -> None:
    """Random nests, in blocks or not, with quotients and remainders: no proof where iterations meet; and a proof for
    all that a schedule would write."""
    proven = 0
    for _ in range(400):
        sizes = [random.randint(1, 5) for _ in range(3)]
        axes = [Axis(name, Expr.const(size), "parallel") for name, size in zip("abc", sizes)]
        if random.random() < 0.4:  # c runs in blocks of b
            whole = random.randint(1, 9)
            axes[1] = Axis("b", Expr.const(-(-whole // sizes[2])), "parallel")
            axes[2] = Axis("c", Expr.min(whole - var("b", axes[1].extent) * sizes[2], sizes[2]), "vector")
        a, b, c = (var(axis.name, axis.extent.bounds()[1] or 0) for axis in axes)
        parts = [a, b, c, (a * 3 + b) // 2, (a * 3 + b) % 2, b * sizes[2] + c]
        index = Expr.const(random.randint(0, 3))
        for part in random.sample(parts, random.randint(1, 4)):
            index = index + part * random.choice((-7, -2, 1, 2, 3, 5, 8, 15, 25))
        shift = index + random.choice((0, 0, 1, 4, 12))
        shared = random.sample("abc", random.randint(1, 3))
        one, other = Touched(index, tuple(axes)), Touched(shift, tuple(axes))
        if are_apart(one, other, shared):
            proven += 1
            assert not _meets(one, other, shared), (index, shift, axes, shared)
    assert proven > 20


def test_kernels_say_what_threads_share() -> None:
    graph = check(lambda x: torch.softmax(x, 1) + x.sum(), torch.randn(30, 40))
    texts = [kernel_text(report.ir) for report in graph.kernels]
    assert any("parallel" in text and "on threads:" in text for text in texts)
    assert all("on threads" in report.schedule.text() for report in graph.kernels if report.schedule.parallel)
    for report in graph.kernels:
        loops = [line.split()[0] for line in kernel_text(report.ir).splitlines() if line.endswith("on threads:")]
        assert len(loops) == 0 or set(loops) <= {"parallel", "vector"}


def test_what_is_not_bound_runs_on_one_thread() -> None:
    long = loop("vector", "i", 1 << 22, store("y", var("i", 1 << 22), ONE))
    params = (param("y", 1 << 22, role="out"),)
    alone, shared = Kernel("k", params, (long,)), Kernel("k", params, on_threads((long,)))
    texts = [module_text(one, host_machine()) for one in (alone, shared)]
    assert ["GOMP_parallel" in text for text in texts] == [False, True]
    results = [torch.zeros(1 << 22) for _ in texts]
    for one, result in zip((alone, shared), results):
        run(one, {"y": result})
        assert bool((result == 1).all())


def test_accumulators_are_not_shared() -> None:
    body = (Init("a", "sum", f32), loop("parallel", "i", 8, Update("a", ONE)), store("y", 0, acc("a")))
    with pytest.raises(InvalidKernel, match="side by side"):
        verify(kernel(*body))
