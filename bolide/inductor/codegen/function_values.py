"""The values of one LLVM function under construction: nodes of loop IR, accumulators, and the code motion there is.

Before a loop starts, `FunctionValues.hoist` asks for the values that do not change in it. Values that depend on memory
or on accumulators are forgotten when these change.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bolide.inductor.codegen.accesses import load, prepare
from bolide.inductor.codegen.accumulators import Accumulator, Parts
from bolide.inductor.codegen.analysis import READS, Dependences
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.instructions import COMPARISONS, compare, computed, constant
from bolide.inductor.codegen.philox import philox_normal, philox_uniform
from bolide.inductor.codegen.scope import Scope, fits
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.walks import nodes_below
from bolide.symbolic import as_expr


class FunctionValues(Scope):
    """`Scope`, the values of nodes, and the accumulators in scope."""

    def __init__(self, b: Builder, dependences: Dependences) -> None:
        super().__init__(b, dependences)
        self.accumulators: dict[str, Accumulator] = {}
        self.partials: dict[tuple[str, int], Parts] = {}  # by name and lanes
        self._stateful: dict[str, set[Node]] = {}

    def forget(self, names: Iterable[str]) -> None:
        """Drop the values that depend on these accumulators and buffers."""
        for name in names:
            for node in self._stateful.pop(name, ()):
                self._cache.pop(node, None)

    def value(self, node: Node) -> Value:
        """The value of `node`: one lane if it is the same in all lanes, else `self.lanes`."""
        known = self._cache.get(node)
        if known is not None:
            return known
        for inner in nodes_below((node,), self._cache.__contains__):
            result = self._compute(inner)
            self.remember(inner, result)
            for name in self.dependences.names(inner):
                if name.startswith(("acc:", "buf:")):
                    self._stateful.setdefault(name, set()).add(inner)
        return self._cache[node]

    def _compute(self, node: Node) -> Value:
        if node.op == "const":
            return constant(self.b, node.arg, node.dtype)
        if node.op == "index":
            return self.index(node.arg)
        if node.op == "acc":
            return self.read(node.arg)
        args = tuple(self._cache[operand] for operand in node.src)
        if node.op == "load":
            return load(self, node, args)
        if node.op in ("philox", "philox_normal"):
            counter, element = node.arg
            draw = philox_uniform if node.op == "philox" else philox_normal
            return draw(args[0], counter, self.index(element))
        if node.op in COMPARISONS and all(operand.op in ("index", "const") for operand in node.src):
            narrow = self._compare_places(node)
            if narrow is not None:
                return narrow
        if any(arg.lanes > 1 for arg in args):
            args = tuple(self.wide(arg) for arg in args)
        return computed(node.op, args, node.src[-1].dtype, node.dtype)

    def _compare_places(self, node: Node) -> Value | None:
        """A comparison of index values (the edge of a padding, a causal mask) in 32 bits per lane, if that is
        enough."""
        if node.src[0].dtype != torch.int64:
            return None
        left, right = (as_expr(o.arg if o.op == "index" else int(o.arg)) for o in node.src)
        difference = left - right
        if self.varying.isdisjoint(difference.free_vars) or not fits(difference.terms, difference.offset):
            return None
        lanes = self.lane_sum(difference.terms, difference.offset, "i32")
        return compare(node.op, torch.int32, lanes, self.b.like(0, lanes))

    # ---- accumulators ----

    def partials_of(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """The keys of the partial results of accumulators in scope."""
        return [key for name in names for key in self.partials if key[0] == name]

    def read(self, name: str) -> Value:
        """The value of an accumulator now, its partial results joined."""
        accumulator = self.accumulators[name]
        total: Parts | None = None
        for key in self.partials_of((name,)):
            parts = self.partials[key]
            if key[1] != accumulator.home:
                parts = accumulator.across_lanes(parts)
            total = parts if total is None else accumulator.join(total, parts)
        assert total is not None
        return total[-1]

    # ---- code motion ----

    def hoist(self, roots: Iterable[Node], changing: frozenset[str], safe_to_read: bool) -> None:
        """Compute now what is under `roots` and does not depend on `changing`, and such parts of addresses. Unless
        `safe_to_read` (the loop may not run at all), memory is left alone."""
        forbidden = changing if safe_to_read else changing | {READS}

        def is_done(node: Node) -> bool:
            done = node in self._cache or self.dependences.names(node).isdisjoint(forbidden)
            if done:
                self.wide(self.value(node))
            return done

        for node in nodes_below(roots, is_done):
            if node.op == "load":
                prepare(self, node.arg, changing)
