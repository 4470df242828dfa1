"""Random programs with branches on data: eager's results, effects and gradients (None where eager's are), whichever way
is taken, at changing sizes.

By hand: `python tests/fuzz/test_branch_programs.py COUNT [SEED] [BACKEND]`.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.dynamo.config import config as capturing
from bolide.inductor.config import config
from bolide.support import events
from bolide.support.errors import BolideWarning

PROGRAMS = 12
SHORT, LONG = 30, 80  # lines of a program, in tests and by hand: time grows with the square of its branches
WRITTEN = "modified by an inplace operation"
SEED = int(os.environ.get("BOLIDE_TEST_SEED", "0"))


class Writer:
    """Writes one program. The tensors a, b, c have x's shape; `kept` is a list, `table` a dict of such, `box` an
    object; n, m and flag are numbers, t is a tensor or a number; `state` belongs to the caller. Every second program is
    plain: in branches it only computes on with a variable or a number, so that all of them, and those in their ways,
    become parts of a graph."""

    def __init__(self, chance: random.Random, longest: int = SHORT) -> None:
        self.chance, self.longest = chance, longest
        self.plain = chance.random() < 0.5
        self.lines: list[str] = []
        self.loops = 0

    def program(self) -> str:
        self.line(0, "def program(x, w, v, state):")
        self.line(1, "a, b, c, n, m, flag = x * 1.5, x @ w, x.sin(), 2, 0.75, False")
        self.line(1, "kept, table, box = [a, b], {'p': c}, Box(x * v)")
        self.line(
            1,
            self.pick(
                "s = a.detach().sin()", "s = a.detach().clone()", "s = x.detach() + 1; s = s.view(-1).view(x.shape)"
            ),
        )
        self.line(1, self.pick("r = s[0]", "r = s.sum(0)"))
        self.line(1, self.pick("t = 0", "t = 0.0", "t = x.mean()"))
        if self.plain:
            self.branch(1, 3)
        self.block(1, 3, self.chance.randint(3, 6))
        self.line(1, "return a, b, c, n, m, flag, kept, table['p'], box.value, s, r, t")
        return "\n".join(self.lines)

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def pick(self, *texts: str) -> str:
        return self.chance.choice(texts)

    def tensor(self) -> str:
        return self.pick("a", "b", "c", "a", "b", "x", "kept[0]", "table['p']", "box.value")

    def value(self) -> str:
        one, other = self.tensor(), self.tensor()
        return self.pick(
            f"{one} * {other}", f"({one} @ w).tanh()", f"{one}.sin() + n", f"{one} * v", f"{one}.clamp(-0.5, 0.5)",
            f"{one} + {other}.mean()", f"{one}.detach() * {other}", f"torch.where({one} > 0, {one}, {other})",
            f"{one}.tanh() / 2", f"helper({one}, w)", f"{one} * 0.5", one, f"{one} * s",
            f"{one} + r", f"{one} * t", f"{one} / max({other}.mean(), 0.1)", f"apart({one}) * {other}",
            f"({one} * {other}).detach() + {one}", f"{one} * m - n / 4", f"{one} * (m if flag else n)",
        )  # fmt: skip

    def condition(self) -> str:
        one = self.tensor()
        if self.chance.random() < 0.15:
            return self.pick("flag", "n > 2", "m < 0.5", "not flag and n != 3", "m * 2 > n / 5", "n / 4 <= 0.7")
        simple = self.pick(
            f"{one}.sum() > 0", f"{one}.max() > 0.3", f"not torch.isfinite({one}).all()", f"({one} < -0.2).any()",
            f"{one}.mean().item() < 0.05", f"{one}.detach().norm() > 1",
        )  # fmt: skip
        if self.chance.random() < 0.2:
            return f"{simple} {self.pick('and', 'or')} {self.tensor()}.min() > -0.4"
        return simple

    def block(self, depth: int, deepest: int, count: int) -> None:
        for _ in range(count):
            if len(self.lines) < self.longest:
                self.statement(depth, deepest)
            else:
                self.line(depth, f"{self.pick('a', 'b', 'c')} = {self.value()}")
                break

    def statement(self, depth: int, deepest: int) -> None:
        kind = self.chance.random()
        if deepest and kind < (0.5 if self.plain and depth > 1 else 0.3):
            self.branch(depth, deepest)
        elif deepest and not self.plain and kind < 0.36:
            self.loops += 1
            self.line(depth, f"for i{self.loops} in range({self.chance.randint(1, 3)}):")
            if self.chance.random() < 0.5:
                self.line(depth + 1, f"if {self.condition()}:")
                self.line(depth + 2, self.pick("continue", "continue", "break"))
            self.block(depth + 1, deepest - 1, 2)
        elif self.plain and depth > 1:
            self.step(depth)
        elif self.plain or kind < 0.75:
            self.line(depth, f"{self.pick('a', 'b', 'c')} = {self.value()}")
        else:
            self.effect(depth)

    def step(self, depth: int) -> None:
        """No other variable gets a gradient by it."""
        if self.chance.random() < 0.2:
            self.line(depth, self.write())
            return
        if self.chance.random() < 0.3:
            self.line(depth, self.number())
            return
        if self.chance.random() < 0.3:
            self.line(depth, self.total())
            return
        one, other, made = self.pick("a", "b", "c"), self.tensor(), self.pick("d", "e")
        apart = self.pick(f"{other}.detach()", f"apart({other})", f"({other} * {one}).detach().sin()", made)
        if apart == made:
            self.line(depth, f"with torch.no_grad(): {made} = ({other} @ w).tanh()")
        self.line(depth, f"{one} = " + self.pick(f"{one} * {apart}", f"{one}.sin() + {apart}", f"{one}.tanh() / 2"))

    def number(self) -> str:
        read = f"{self.tensor()}.detach().mean().item()"
        return self.pick(
            "n = n + 1", "n = 5 - n", "flag = not flag", "m = m * 0.5", "m = 0.5", f"m = {read}", "n += 2",
            "m = n / 8", "n = int(m * 4)", f"n = ({self.tensor()} > 0.1).sum().item()", "m = m + n / (n * n + 1)",
        )  # fmt: skip

    def total(self) -> str:
        """What may be a tensor afterwards, or a number."""
        one = self.tensor()
        return self.pick(
            f"t = t + {one}.mean()", f"t += {one}.sum()", "t = 0.5", "t = t * 2", f"t = {one}.max()", "t = t / 2 + m",
            f"t = min({one}.mean(), t)", f"t = max(t, {one}.detach().max(), 0.1)", "t = sum([t, t, m])",
            "t = float(t)", "t = t * 2 if isinstance(t, torch.Tensor) else 1", f"t = helper({one}, w).mean() + t",
        )  # fmt: skip

    def write(self) -> str:
        """To a tensor that no gradient goes through."""
        other = f"{self.tensor()}.detach()"
        return self.pick(
            f"s.add_({other})", f"s[0] += {other}[1]", "s = s.mul_(0.5)", f"s[:, 1:3].sub_({other}[:, 1:3])", "s += r",
            f"s[s > 0.2] = {other}.mean()", f"s.index_add_(0, torch.tensor([1, 0]), {other}[:2])", "r.mul_(0.5)",
            f"state.best += {other}.mean()", "s.clamp_(-1, n)", "s, r = s + 1, s[1]", f"torch.sin({other}, out=s)",
            f"with torch.no_grad(): a.add_({other})",
        )  # fmt: skip

    def effect(self, depth: int) -> None:
        one, value = self.pick("a", "b", "c"), self.value()
        self.line(
            depth,
            self.pick(
                f"kept[{self.chance.randint(0, 1)}] = {value}", f"table['p'] = {value}", f"box.value = {value}",
                f"kept[0], {one} = {one}, {value}", f"{one} = ({value}, 1)[0]", f"{one} = Box({value}).value",
                f"{one} = {one} * 1; {one}.add_({self.chance.randint(1, 3)})", f"state.best = ({value}).detach().sum()",
                self.number(), self.number(), f"kept.append({value})", self.total(), self.total(), self.total(),
                "box.total = t", f"{one} = {one}.view(-1).view(x.shape)",
                f"{one} = {value} if {self.condition()} else {self.value()}", f"return {value}, {one}",
                self.write(), self.write(), "table = dict(table)", "box = Box(box.value)",
                f"with torch.no_grad(): c = ({value}).detach()",
                f"with torch.no_grad(): c = {value} * 2", f"c = {one} * c.detach()",
            ),
        )  # fmt: skip

    def branch(self, depth: int, deepest: int) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.block(depth + 1, deepest - 1, self.chance.randint(1, 3))
        if self.chance.random() < 0.5:
            self.line(depth, "else:")
            self.block(depth + 1, deepest - 1, self.chance.randint(1, 2))


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


@torch.no_grad()
def apart(a: Tensor) -> Tensor:
    return a.cos() * a if a.sum() > 0 else a * 2


def helper(a: Tensor, w: Tensor) -> Tensor:
    if a.sum() > 0:
        a = (a @ w).sin()
    return a * 2


class State:
    best: Any = None


def compiled_source(source: str, name: str) -> Callable[..., Any]:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "Box": Box, "helper": helper, "apart": apart}
    exec(compile(source, name, "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


def outcome(fn: Callable[..., Any], given: list[Tensor]) -> list[Any]:
    state = State()
    state.best = torch.zeros(())
    results = torch.utils._pytree.tree_leaves(fn(*given, state))
    tensors = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    gradients: list[Any] = []
    if tensors:
        loss = sum((r.square().mean() * (k + 1) for k, r in enumerate(tensors)), torch.zeros(()))
        gradients = list(torch.autograd.grad(loss, given, allow_unused=True))
    return [*results, state.best, *gradients]


def difference(found: list[Any], wanted: list[Any]) -> str | None:
    if len(found) != len(wanted):
        return f"{len(found)} values in place of {len(wanted)}"
    for place, (mine, theirs) in enumerate(zip(found, wanted)):
        if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
            exact = not isinstance(theirs, float) or not isinstance(mine, float)
            if type(mine) is not type(theirs) or (mine != theirs if exact else abs(mine - theirs) > 1e-9):
                return f"value {place}: {mine!r} in place of {theirs!r}"
        elif mine.requires_grad != theirs.requires_grad:
            return f"value {place}: requires_grad is {mine.requires_grad}"
        elif not torch.allclose(mine, theirs, rtol=1e-8, atol=1e-9, equal_nan=True):
            return f"value {place}: differs by {(mine - theirs).abs().max():.3g}"
    return None


def inputs(chance: random.Random, size: int) -> list[Tensor]:
    """In float64, so that rounding decides about no branch."""
    torch.manual_seed(chance.randint(0, 1 << 30))
    shift = chance.choice((-0.8, -0.1, 0.1, 0.8))
    made = [torch.randn(size, 4).double() + shift, torch.randn(4, 4).double() / 2, torch.rand(()).double()]
    grad = chance.random() < 0.7
    return [value.requires_grad_(grad) for value in made]


def refused(fn: Callable[..., Any], given: list[Tensor], backend: str) -> bool:
    """Whether a program is refused also where branches are breaks: an argument is saved that eager does not save, and
    is written before the backward."""
    bolide.reset()
    try:
        with capturing.patch(capture_branches=False, suppress_errors=False):
            outcome(bolide.compile(fn, backend=backend), given)
    except RuntimeError as error:
        return WRITTEN in str(error)
    return False


def wrong(seed: int, backend: str, dynamic: bool | None = None, longest: int = SHORT) -> str | None:
    """What differs from eager in the program of a seed, with its text."""
    chance = random.Random(seed)
    source = Writer(chance, longest).program()
    fn = compiled_source(source, f"<branches {seed}>")
    bolide.reset()
    compiled = bolide.compile(fn, backend=backend, dynamic=dynamic)
    for size in (3, 5, 3, 6, 7, 7):
        given = inputs(chance, size)
        try:
            wanted = outcome(fn, given)
        except (RuntimeError, IndexError):  # eager refuses what is written to a leaf, or saved and written since
            continue
        # a version for each way through the program
        try:
            with capturing.patch(cache_size_limit=64, suppress_errors=False):
                found = outcome(compiled, given)
        except BolideWarning as error:  # what is saved on one side of a branch may be written after the other alone
            if WRITTEN in str(error):
                return None
            raise
        except RuntimeError as error:
            if WRITTEN in str(error) and refused(fn, given, backend):
                return None
            raise
        problem = difference(found, wanted)
        if problem is not None:
            return f"seed {seed}, {backend}, size {size}: {problem}\n{source}"
    return None


def seeds(count: int, part: int) -> Iterator[int]:
    first = SEED * 1000 + part * count
    return iter(range(first, first + count))


@pytest.mark.parametrize(("backend", "native_after"), [("inductor", 0), ("inductor", 2), ("aot_eager", 0)])
def test_random_programs_with_branches(backend: str, native_after: int) -> None:
    met: list[Any] = []
    with events.subscribed(met.append), config.patch(native_after=native_after):
        for seed in seeds(PROGRAMS, native_after + (backend == "aot_eager")):
            problem = wrong(seed, backend, dynamic=random.Random(seed).choice((None, True)))
            assert problem is None, problem
    graphs = [event.graph.graph for event in met if isinstance(event, events.Graph)]
    assert any(node.target is torch.ops.bolide.branch.default for graph in graphs for node in graph.nodes)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from sweep_tools import by_hand

    named = sys.argv[3] if len(sys.argv) > 3 else "inductor"
    by_hand(lambda seed: wrong(seed, named, random.Random(seed).choice((None, True)), LONG))
