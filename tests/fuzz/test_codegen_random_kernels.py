"""Random kernels: machine code against the interpreter of loop IR."""

from __future__ import annotations

import os
import random
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ir"))
from kernel_tools import acc, both, const, f32, i64, load, loop, op, param, store, var

from bolide.inductor.ir.loops import Init, Kernel, Node, Stmt, Update
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.ir.rewrites import on_threads
from bolide.symbolic import Expr, as_expr

SEED = int(os.environ["BOLIDE_TEST_SEED"])
SIZES = (0, 1, 2, 7, 15, 16, 17, 33, 64, 100)
TYPES = (
    f32,
    f32,
    f32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.bool,
    torch.int32,
    i64,
    torch.int8,
    torch.uint8,
)
WORK = {torch.bfloat16: f32, torch.float16: f32, torch.bool: f32, torch.int8: torch.int32, torch.uint8: torch.int32}


_INEXACT = r"\b(sigmoid|tanh|erf|exp|log|pow|sqrt|rsqrt|sin|cos)\("


def _divisor(value: Node, dtype: torch.dtype) -> Node:
    """Neither 0 nor -1, by which the least number has no quotient."""
    return op("or", op("and", value, const(-5, dtype)), const(3, dtype))


class Maker:
    """Makes one random kernel and its buffers."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.g = torch.Generator().manual_seed(seed)
        self.params: list[tuple[str, Expr | int, torch.dtype, str]] = []
        self.numels: list[int] = []
        self.sizes: dict[str, int] = {}

    def extent(self) -> tuple[Expr, int]:
        """A size, static or a parameter, and its value."""
        value = self.r.choice(SIZES)
        if self.r.random() < 0.3:
            name = f"s{len(self.sizes)}"
            self.sizes[name] = value
            return Expr.var(name, 0), value
        return Expr.const(value), value

    def buffer(
        self, numel: Expr, value: int, role: str = "in", dtype: torch.dtype | None = None
    ) -> tuple[str, torch.dtype]:
        dtype = dtype or self.r.choice(TYPES)
        name = f"b{len(self.params)}"
        self.params.append((name, numel, dtype, role))
        self.numels.append(value)
        return name, dtype

    def leaf(self, shape: list[tuple[str, Expr, int]], work: torch.dtype) -> Node:
        """A load whose index uses some of the axes, or a constant, cast to `work`."""
        if self.r.random() < 0.15:
            return const(self.r.choice((0, 1, 2, 3)) if not work.is_floating_point else self.r.uniform(-2, 2), work)
        if self.r.random() < 0.25:
            return self.masked_leaf(self.r.choice(shape), work)
        used = [axis for axis in shape if self.r.random() < 0.75]
        self.r.shuffle(used)
        index, numel, value = Expr.const(0), Expr.const(1), 1
        for name, extent, count in used:
            index, numel, value = index + numel * var(name, extent), numel * extent, value * count
        if self.r.random() < 0.1 and used:
            index, numel, value = index * 3 + 1, numel * 3 + 1, value * 3 + 1
        name, dtype = self.buffer(numel, value)
        node = load(name, index, dtype)
        return node if dtype == work else op("cast", node, dtype=work)

    def masked_leaf(self, axis: tuple[str, Expr, int], work: torch.dtype) -> Node:
        """A load under a mask, of the same element everywhere or of one each; the mask is off where there is none."""
        name, extent, count = axis
        kept = self.r.choice((0, 0, count // 2, count))
        buffer, dtype = self.buffer(Expr.const(kept), kept)
        at = var(name, extent)
        place = Node.make("index", i64, (), at)
        if self.r.random() < 0.5:
            mask = op("lt", place, const(kept, i64), dtype=torch.bool)
            node = load(buffer, at, dtype, mask, masked=True)
        else:  # beyond the axis, where there are no iterations but perhaps lanes
            mask = op("ge", place, const(count if kept == 0 else self.r.randint(0, count), i64), dtype=torch.bool)
            node = load(buffer, max(kept - 1, 0), dtype, mask, masked=True)
        return node if dtype == work else op("cast", node, dtype=work)

    def value(
        self, shape: list[tuple[str, Expr, int]], work: torch.dtype, extra: list[Node], exact: bool = False
    ) -> Node:
        """A random expression of loads and `extra`; `exact`: of operations that all round alike."""
        nodes = [self.leaf(shape, work) for _ in range(self.r.randint(1, 3))] + extra
        for _ in range(self.r.randint(1, 6)):
            nodes.append(self.step(nodes, work, exact))
        return nodes[-1]

    def step(self, nodes: list[Node], work: torch.dtype, exact: bool) -> Node:
        a, b, c = (self.r.choice(nodes) for _ in range(3))
        kind = self.r.random()
        if kind < 0.5:
            return op(self.r.choice(("add", "sub", "mul", "min", "max")), a, b)
        if kind < 0.6:
            return op("where", op(self.r.choice(("lt", "ge", "eq", "ne")), a, b, dtype=torch.bool), b, c)
        if not work.is_floating_point:
            return (
                op(self.r.choice(("neg", "abs", "sign", "not")), a)
                if kind < 0.8
                else op(self.r.choice(("and", "or", "xor", "floordiv", "mod", "truncdiv")), a, _divisor(b, work))
            )
        if kind < 0.9:
            rounded_alike = ("neg", "abs", "sign", "floor", "round", "trunc")
            names = rounded_alike if exact else (*rounded_alike, "sigmoid", "tanh", "erf", "exp", "log")
            return op(self.r.choice(names), op("min", a, const(8.0, work)))
        return op("div", a, op("add", op("abs", b), const(1.0, work)))

    def narrowed(self, node: Node, dtype: torch.dtype) -> Node:
        if node.dtype == dtype:
            return node
        if node.dtype.is_floating_point and not dtype.is_floating_point and dtype != torch.bool:
            node = op("max", op("min", node, const(100.0, node.dtype)), const(0.0, node.dtype))
            node = op("where", op("isnan", node, dtype=torch.bool), const(0.0, node.dtype), node)
        return op("cast", node, dtype=dtype)

    def flag(self, shape: list[tuple[str, Expr, int]], work: torch.dtype) -> list[Stmt]:
        """Perhaps a store of whether something holds: anywhere, or for some place on an axis."""
        if self.r.random() < 0.6:
            return []
        name, extent, count = self.r.choice(shape)
        single = self.r.random() < 0.6
        out, _ = self.buffer(1 if single else extent, 1 if single else count, "inout", torch.bool)
        few = op(
            "gt", self.value(shape, work, [], exact=True), const(self.r.choice((4, 20, 1000)), work), dtype=torch.bool
        )
        off = op(
            "lt", Node.make("index", i64, (), var(name, extent)), const(self.r.randint(0, 20), i64), dtype=torch.bool
        )
        masked = self.r.random() < 0.5
        place = Expr.const(0) if single else var(name, extent)
        return [store(out, place, few, *([off] if masked else []), masked=masked, mode="any")]

    def work(self) -> torch.dtype:
        return self.r.choice((f32, f32, f32, torch.float64, torch.int32, i64))

    def statements(self) -> tuple[Stmt, ...]:
        form = self.r.choice(("flat", "nest", "rows", "columns", "full"))
        n, rows, cols = self.extent(), self.extent(), self.extent()
        while form == "nest" and n[1] * rows[1] * cols[1] > 10_000:  # the oracle goes step by step
            n, rows, cols = self.extent(), self.extent(), self.extent()
        work = self.work()
        i, r, c = ("i", *n), ("r", *rows), ("c", *cols)
        if form == "flat":
            out, dtype = self.buffer(n[0], n[1], "out")
            return (
                loop(
                    "vector",
                    "i",
                    n[0],
                    store(out, var("i", n[0]), self.narrowed(self.value([i], work, []), dtype)),
                    *self.flag([i], work),
                ),
            )
        if form == "nest":
            out, dtype = self.buffer(n[0] * rows[0] * cols[0], n[1] * rows[1] * cols[1], "out")
            kinds = self.r.choice(
                (("parallel", "parallel", "vector"), ("parallel", "serial", "vector"), ("serial",) * 3)
            )
            index = (var("i", n[0]) * rows[0] + var("r", rows[0])) * cols[0] + var("c", cols[0])
            body = store(out, index, self.narrowed(self.value([i, r, c], work, []), dtype))
            inside = loop(kinds[2], "c", cols[0], body, *self.flag([i, r, c], work))
            return (loop(kinds[0], "i", n[0], loop(kinds[1], "r", rows[0], inside, *self.flag([i, r], work))),)
        reduce_op = self.r.choice(
            ("sum", "max", "min", "argmax", "argmin")
            if work.is_floating_point
            else ("sum", "max", "min", "xor", "argmax")
        )
        arg = reduce_op.startswith("arg")  # the place among values that are equal but for rounding is anyone's
        result = i64 if arg else work
        if form == "rows":
            out, dtype = self.buffer(rows[0] * cols[0], rows[1] * cols[1], "out")
            one, _ = self.buffer(rows[0], rows[1], "out", result)
            value = self.value([r, c], work, [], exact=arg)
            position = Node.make("index", i64, (), var("c", cols[0])) if arg else None
            total = acc("a", result)
            extra = [total if result == work else op("cast", total, dtype=work)]
            return (
                loop(
                    "parallel",
                    "r",
                    rows[0],
                    Init("a", reduce_op, work),
                    loop("reduce_vector", "c", cols[0], Update("a", value, position), *self.flag([r, c], work)),
                    store(one, var("r", rows[0]), total),
                    loop(
                        "vector",
                        "c",
                        cols[0],
                        store(
                            out,
                            var("r", rows[0]) * cols[0] + var("c", cols[0]),
                            self.narrowed(self.value([r, c], work, [value, *extra]), dtype),
                        ),
                    ),
                ),
            )
        if form == "columns":
            one, _ = self.buffer(cols[0], cols[1], "out", result)
            value = self.value([r, c], work, [], exact=arg)
            position = Node.make("index", i64, (), var("r", rows[0])) if arg else None
            return (
                loop(
                    "vector",
                    "c",
                    cols[0],
                    Init("a", reduce_op, work),
                    loop("reduce", "r", rows[0], Update("a", value, position)),
                    store(one, var("c", cols[0]), acc("a", result)),
                ),
            )
        one, _ = self.buffer(Expr.const(1), 1, "out", result)
        value = self.value([r, c], work, [], exact=arg)
        position = Node.make("index", i64, (), var("r", rows[0]) * cols[0] + var("c", cols[0])) if arg else None
        return (
            Init("a", reduce_op, work),
            loop("reduce", "r", rows[0], loop("reduce_vector", "c", cols[0], Update("a", value, position))),
            store(one, 0, acc("a", result)),
        )

    def kernel(self) -> Kernel:
        body = self.statements()
        return Kernel("k", tuple(param(*p) for p in self.params), on_threads(body), tuple(self.sizes))

    def tensor(self, dtype: torch.dtype, numel: int) -> torch.Tensor:
        values = torch.randn(numel, generator=self.g) * 3
        if dtype.is_floating_point:
            special = torch.randint(0, 60, (numel,), generator=self.g)
            values = (
                torch.where(special == 0, float("nan"), torch.where(special == 1, float("inf"), values))
                if self.r.random() < 0.2
                else values
            )
        return (
            values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype) if dtype != torch.bool else values > 0
        )


@pytest.mark.parametrize("number", range(150))
def test_random_kernel(number: int) -> None:
    seed = SEED + number
    maker = Maker(seed)
    kernel = maker.kernel()
    buffers = {name: maker.tensor(dtype, numel) for (name, _, dtype, _), numel in zip(maker.params, maker.numels)}
    for name, mine, expected in both(kernel, buffers, maker.sizes):
        if expected.dtype.is_floating_point:
            # a cast to f64 comes from f32: constants have no mark
            rounded = any(sign in kernel_text(kernel) for sign in (" f32", "f32(", "f64("))
            double = 2e-5 if rounded else 1e-9
            tolerance = {torch.float64: double, f32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[expected.dtype]
            same = torch.isclose(mine.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            same = mine == expected
            if re.search(_INEXACT, kernel_text(kernel)) and float((~same).double().mean()) < 0.05:
                same |= (mine.double() - expected.double()).abs() == 1  # a float next to an integer, cut off
        assert bool(same.all()), f"seed {seed}, {name}\n{kernel_text(kernel)}\n{mine[~same]}\n{expected[~same]}"


@pytest.mark.parametrize("extent", [3, Expr.var("s0", 0)])
def test_lanes_behind_the_end_of_a_loop_load_nothing(extent: Expr | int) -> None:
    """The mask of the load is on there, and the buffer has no element that could be read instead."""
    at = var("i", extent)
    places = [Node.make("index", i64, (), place) for place in (at, as_expr(extent))]
    nothing = load("b2", 0, f32, op("ge", *places, dtype=torch.bool), masked=True)
    body = loop("vector", "i", extent, store("b0", at, op("add", load("b1", at), nothing)))
    sizes = () if isinstance(extent, int) else ("s0",)
    kernel = Kernel("k", (param("b0", extent, f32, "out"), param("b1", extent), param("b2", 0)), (body,), sizes)
    buffers = {"b0": torch.zeros(3), "b1": torch.randn(3), "b2": torch.zeros(0)}
    for _, mine, expected in both(kernel, buffers, {"s0": 3}):
        assert torch.equal(mine, expected)


def test_one_lane_is_left_of_short_floats() -> None:
    """Computed with 64 bits, stored with 16: nothing is written behind the last element of a row."""
    at, place, f64 = var("c", 33), var("r", 5) * 33 + var("c", 33), torch.float64
    mask = op("ge", Node.make("index", i64, (), at), const(33, i64), dtype=torch.bool)
    number = op("cast", load("b3", 0, i64, mask, masked=True), dtype=f64)
    number = op("sub", number, number)
    value = op("cast", op("div", number, op("add", op("abs", number), const(1.0, f64))), dtype=torch.bfloat16)
    wide = op("cast", load("b1", place), dtype=f64)
    found = op("gt", op("sub", wide, wide), const(1000.0, f64), dtype=torch.bool)
    body = loop("vector", "c", 33, store("b0", place, value), store("b2", 0, found, mode="any"))
    params = (param("b0", 165, torch.bfloat16, "out"), param("b1", 165), param("b2", 1, torch.bool, "inout"))
    kernel = Kernel("k", (*params, param("b3", 1, i64)), on_threads((loop("parallel", "r", 5, body),)))
    buffers = {"b0": torch.zeros(165).bfloat16(), "b1": torch.randn(165), "b2": torch.tensor([False])}
    for name, mine, expected in both(kernel, {**buffers, "b3": torch.tensor([3])}):
        assert torch.equal(mine, expected), name
