"""Graph breaks: what runs in eager is one operation, and everything around it stays compiled.

Every program is called three times with fresh inputs, compiled and in eager; results, gradients, printed text, and what
the arguments look like afterwards must agree. The number of segments says that a break costs only itself.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import functools
import gc
import inspect
import io
import itertools
import sqlite3
import threading
import traceback
import types
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bolide
from bolide.dynamo.world.rebuild import Rebuilder
from bolide.support import events
from bolide.support.errors import CompileError, Unsupported

PROGRAMS: list[tuple[Callable[..., Any], int]] = []


def program(segments: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A program to check, and how many segments three calls of it are made of."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append((fn, segments))
        return fn

    return register


def outcome(fn: Callable[..., Any], x: Tensor) -> Any:
    """Result or exception, gradient, printed text and argument of one call."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            result = fn(x)
    except Exception as error:
        return type(error), error.args, out.getvalue()
    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if leaves and x.requires_grad:
        sum(t.sin().sum() for t in leaves).backward()
    return result, x.grad, out.getvalue(), x


def same(a: Any, b: Any) -> bool:
    """Equal in structure and, tensors to rounding, in values."""
    (flat_a, tree_a), (flat_b, tree_b) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    if tree_a != tree_b:
        return False
    return all(
        isinstance(y, Tensor) and torch.allclose(x, y, rtol=1e-5, atol=1e-6) if isinstance(x, Tensor) else x == y
        for x, y in zip(flat_a, flat_b, strict=True)
    )


def check(
    fn: Callable[..., Any], compiled: Callable[..., Any], size: tuple[int, ...] = (4,), grad: bool = True
) -> None:
    for _ in range(3):
        x = torch.randn(size)
        expected = outcome(fn, x.clone().requires_grad_(grad))
        actual = outcome(compiled, x.clone().requires_grad_(grad))
        assert same(actual, expected), (actual, expected)


def segments_of(fn: Callable[..., Any], size: tuple[int, ...] = (4,)) -> int:
    """Check a program, and count its segments."""
    seen: list[Any] = []
    compiled = bolide.compile(copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn, backend="aot_eager")
    with events.subscribed(seen.append):
        check(fn, compiled, size)
    assert not [e for e in seen if isinstance(e, events.Fallback)]
    return sum(isinstance(e, events.Captured) for e in seen)


@program(3)
def two(x: Tensor) -> Tensor:
    y = x * 2
    print("a")
    z = y + 1
    print("b")
    return z.sin()


def inner(x: Tensor) -> Tensor:
    y = x.cos()
    print("inner")
    return y * 3


@program(3)
def nested(x: Tensor) -> Tensor:
    return inner(x + 1) + inner(x - 1) * 2


@program(4)
def recursive(x: Tensor, n: int = 3) -> Tensor:
    if n == 0:
        return x
    print("n", n)
    return recursive(x * 2, n - 1) + 1


@program(3)
def loop(x: Tensor, n: int = 10) -> Tensor:
    for _ in range(n):
        x = (x * 2 + 1).sin()
        print("trip")
    return x.sin()


@program(3)
def branch(x: Tensor) -> Tensor:
    x = x - x.detach().sum() * torch.tensor([1.0, -1.0, 1.0, -1.0])
    factor = "2"
    if x.detach()[0] > 1e9:
        factor = "3"
    shift = "1" if x.detach()[0] < 1e9 else "2"
    return x * int(factor) - int(shift)


@program(2)
def modes(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        print(torch.is_grad_enabled())
        z = y + 1
    return z + x


@program(2)
def caught_natively(x: Tensor) -> Tensor:
    try:
        y = x + 1
        print(int("zz"))
    except ValueError as error:
        y = x * 3
        print(error)
    return y.sin()


@program(4)
def handlers(x: Tensor) -> Tensor:
    try:
        y = x + 1
        print("try")
        raise ValueError("boom", 3)
    except ValueError as error:
        print("caught", error.args)
        y = x * 3
    finally:
        print("finally")
        x = x + 1
    return y + x


@program(4)
def generator(x: Tensor) -> Tensor:
    def rows() -> Any:
        y = x
        for i in range(3):
            y = y + i
            print("g")
            yield y

    return sum(t.sin() for t in rows())


@program(5)
def delegation(x: Tensor) -> Any:
    def low() -> Any:
        y = yield x
        print("low")
        y = yield y * 2
        return y + 1

    def high() -> Any:
        r = yield from low()
        print("high")
        yield r

    g = high()
    a = next(g)
    b = g.send(a + 1)
    print("main")
    c = g.send(b * 2)
    print(next(g, "end"))
    return a, b, c


@program(3)
def comprehension(x: Tensor) -> list[Tensor]:
    return [t * 2 for t in (x, x + 1) if t.detach().sum() > -1e9]


@program(3)
def closure(x: Tensor) -> Any:
    total, count = x * 0, 0

    def add(v: Tensor) -> None:
        nonlocal total, count
        total = total + v.sin()
        count += 1
        print("add")
        total = total * 2

    add(x)
    add(x + 1)
    return total, count


@program(2)
def fresh_function(x: Tensor) -> Tensor:
    f = lambda v: v * 2 + x  # noqa: E731
    print("l")
    return f(x) + f(x + 1)


@program(4)
def views(x: Tensor) -> Any:
    y = x.clone()
    y.add_(1)
    print("a")
    y.mul_(2)
    v = y[0]
    print("b")
    v.add_(5)
    return y, v


@program(2)
def random_numbers(x: Tensor) -> Tensor:
    a = torch.rand(3)
    print("r")
    b = torch.rand(3)
    return x * (a.sum() > 0) * (b.sum() > 0) * (a != b).all()


@program(2)
def containers(x: Tensor) -> Any:
    d = {"a": x * 2, "n": 3, "l": [x]}
    print("d")
    d["b"] = d["a"] + d["n"]
    d["l"].append(d["b"])
    return d


@program(4)
def methods(x: Tensor) -> Tensor:
    class A:
        def f(self, x: Tensor) -> Tensor:
            print("A")
            return x + 1

    class B(A):
        def f(self, x: Tensor) -> Tensor:
            y = super().f(x)
            print("B")
            return super().f(y) * 2

    return B().f(x)


@program(2)
def frame_functions(x: Tensor) -> Tensor:
    a, b = x * 2, 3
    names = sorted(locals())
    print(names, eval("b + 1"))
    return a * len(names)


@program(2)
def raises_after_effects(x: Tensor) -> Tensor:
    print("before")
    y = x * 2
    raise KeyError(y.dim())


@pytest.mark.parametrize(("fn", "segments"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_programs_agree_and_breaks_cost_only_themselves(fn: Callable[..., Any], segments: int) -> None:
    if fn is raises_after_effects:
        check(fn, bolide.compile(fn, backend="aot_eager"))
    else:
        assert segments_of(fn) == segments


def test_trip_count_does_not_matter() -> None:
    def body(x: Tensor, limit: Tensor) -> Tensor:
        for i in range(1000):
            x = x.sin() + 1
            if i > limit:
                break
        return x * 2

    seen: list[Any] = []
    compiled = bolide.compile(body, backend="aot_eager")
    counts = []
    with events.subscribed(seen.append):
        for limit in (3, 5, 4, 2, 40, 7):
            x = torch.randn(4)
            torch.testing.assert_close(compiled(x, torch.tensor(limit)), body(x, torch.tensor(limit)))
            counts.append(sum(isinstance(e, events.Captured) for e in seen))
    # four limits, then the loop for all others
    assert counts[:4] == [1, 2, 3, 4] and counts[4] == counts[-1] <= 9, counts


def test_a_list_comprehension_that_breaks_is_compiled_once() -> None:
    def body(x: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
        made = [(x * i, print(end=""))[0] for i in range(n) if i != 1]
        return made[-1], made

    seen: list[Any] = []
    compiled = bolide.compile(body, backend="aot_eager")
    counts = []
    with events.subscribed(seen.append):
        for n in (30, 12, 25):
            x = torch.randn(4)
            torch.testing.assert_close(compiled(x, n), body(x, n))
            counts.append(sum(isinstance(e, events.Captured) for e in seen))
    assert counts[0] <= 5, counts


def test_comprehensions_inside_each_other_and_among_operands() -> None:
    def body(xs: list[Tensor], ys: list[Tensor], n: int) -> Any:
        rows = [[(x + y, print(end=""))[0] for x in xs] for y in ys]
        zipped = list(zip([1], iter([2]), [(x * 2, print(end=""))[0] for x in xs]))
        return rows, zipped, max([7], [n, *[(len(rows), print(end=""))[0] for x in xs]])

    compiled = bolide.compile(body, backend="aot_eager")
    for n in (3, 5):
        xs, ys = list(torch.randn(n, 4)), list(torch.randn(2, 4))
        torch.testing.assert_close(compiled(xs, ys, n), body(xs, ys, n))


def test_a_loop_that_appends_what_breaks_is_compiled_once() -> None:
    def body(x: Tensor, n: int) -> tuple[list[Any], Tensor, int]:
        kept = [x]
        for i in range(n):
            x = x + 1
            kept.append((x[i % 4] > 3).item())
        put = kept.append
        put(x.sum().item() > 1e6)
        return kept, x, len(put.__self__)  # type: ignore[attr-defined]

    seen: list[Any] = []
    compiled = bolide.compile(body, backend="aot_eager")
    with events.subscribed(seen.append):
        for n in (12, 30):
            x = torch.randn(4)
            found, expected = compiled(x, n), body(x, n)
            assert found[0][1:] == expected[0][1:] and found[2] == expected[2] == n + 2
            assert torch.equal(found[1], expected[1])
        first = sum(isinstance(e, events.Captured) for e in seen)
    assert first <= 14, first  # True and False, some trip indices: not one for each length of the list


def test_many_trips_need_no_stack() -> None:
    def body(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = x + 1
            if x.sum() < -1e9:
                break
        return x

    x = torch.zeros(2)
    torch.testing.assert_close(bolide.compile(body, backend="aot_eager")(x, 3000), x + 3000)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).relu()
        self.seen += 1
        self.calls += 1
        print("block", self.calls)
        return self.linear(x)


def test_module_state_and_gradients() -> None:
    eager = nn.Sequential(Block(), Block(), Block())
    model = copy.deepcopy(eager)
    check(eager, bolide.compile(model, backend="aot_eager"), (2, 4))
    assert [b.calls for b in model] == [3, 3, 3]
    for name, p in eager.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, p.grad)
    for a, b in zip(eager.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_fullgraph_raises_at_the_first_break() -> None:
    compiled = bolide.compile(nested, fullgraph=True, backend="aot_eager")
    with pytest.raises(bolide.Unsupported) as info:
        compiled(torch.randn(4))
    assert info.value.where is not None and info.value.where.function == "inner"


def test_breaks_are_told_with_their_place_and_are_no_warnings() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        found = bolide.explain(nested, backend="aot_eager")(torch.randn(4))
    assert found.captures == 3 and len(found.breaks) == 2
    assert all("print" in b.reason and __file__ in b.where and b.remedy for b in found.breaks)


def test_an_exception_in_eager_code_keeps_the_users_traceback() -> None:
    def helper(x: Tensor) -> Tensor:
        y = x + 1
        print(int("no"))
        return y

    def outer(x: Tensor) -> Tensor:
        return helper(x * 2)

    with pytest.raises(ValueError, match="invalid literal") as info, contextlib.redirect_stdout(io.StringIO()):
        bolide.compile(outer, backend="aot_eager")(torch.randn(4))
    names = [entry.name for entry in traceback.extract_tb(info.value.__traceback__)]
    assert names[-2:] == ["outer", "helper"]


def test_memory_of_dead_values_is_released() -> None:
    alive: list[Any] = []

    @bolide.disable
    def watch(t: Tensor) -> None:
        alive.append(weakref.ref(t))

    @bolide.disable
    def look() -> None:
        print("released", alive[-1]() is None)

    def body(x: Tensor) -> Tensor:
        big = x * 2
        watch(big)
        y = big.sum()
        look()
        return y

    compiled = bolide.compile(body, backend="aot_eager")
    compiled(torch.randn(4))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        compiled(torch.randn(4))
    assert out.getvalue() == "released True\n"


def test_disable_breaks_around_the_call() -> None:
    @bolide.disable
    def eager_only(x: Tensor) -> Tensor:
        assert type(x) is Tensor
        return x + 1

    def body(x: Tensor) -> Tensor:
        y = eager_only(x.sin())
        with bolide.disable():
            y = y * 2
        return y.cos()

    assert segments_of(body) <= 4


def test_breaks_that_are_asked_for() -> None:
    def body(x: Tensor) -> Tensor:
        y = x.sin()
        bolide.graph_break("here")
        return y.cos()

    assert segments_of(body) == 2
    found = bolide.explain(body, backend="aot_eager")(torch.randn(4))
    assert [(b.kind, b.reason) for b in found.breaks] == [("graph_break", "here")]


def test_breaks_can_be_errors_for_a_region() -> None:
    def body(x: Tensor, strict: bool) -> Tensor:
        print("allowed")
        with bolide.error_on_graph_break(strict):
            y = x.sin()
            print("inside")
        print("allowed again")
        return y

    compiled = bolide.compile(body, backend="aot_eager")
    x = torch.randn(3)
    with contextlib.redirect_stdout(io.StringIO()):
        torch.testing.assert_close(compiled(x, False), x.sin())
        with pytest.raises(bolide.Unsupported, match="print"):
            compiled(x, True)
        with bolide.error_on_graph_break(True), pytest.raises(bolide.Unsupported, match="print"):
            bolide.compile(two, backend="aot_eager")(x)
        torch.testing.assert_close(compiled(x, False), x.sin())


def test_output_may_wait() -> None:
    def body(x: Tensor) -> Tensor:
        y = x.clone()
        print("first", 1)
        y.add_(1)
        print("second", y)
        y.mul_(0)
        return y + x

    with bolide.dynamo.config.patch(reorderable_logging_functions={print}):
        assert segments_of(lambda x: body(x.detach())) == 1


def test_a_limit_goes_on_in_eager_with_one_warning() -> None:
    def body(x: Tensor, flag: str) -> Tensor:
        y = x.sin()
        print("a")
        return y * len(flag)

    compiled = bolide.compile(body, backend="aot_eager")
    x = torch.randn(3)
    with (
        bolide.dynamo.config.patch(cache_size_limit=2),
        pytest.warns(bolide.BolideWarning, match="cache_size_limit") as seen,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        for n in range(6):
            torch.testing.assert_close(compiled(x, "z" * n), body(x, "z" * n))
    assert len(seen) == 1


def test_assertions_about_data_are_made_at_run_time() -> None:
    source = "def body(x):\n    y = x.sin()\n    assert y.sum() < 100, 'too large'\n    return y * 2\n"
    scope: dict[str, Any] = {}
    exec(source, scope)  # pytest rewrites the assertions of this file
    body = scope["body"]
    compiled = bolide.compile(body, backend="aot_eager", fullgraph=True)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), body(x))
    with pytest.raises(AssertionError, match="too large"):
        compiled(torch.full((4,), torch.nan))
    with bolide.dynamo.config.patch(rewrite_assert_with_torch_assert=False), pytest.raises(bolide.Unsupported):
        bolide.compile(body, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("manager", ["autocast", "no_grad", "inference_mode", "record_function"])
def test_torch_contexts_around_a_break(manager: str) -> None:
    linear = nn.Linear(4, 4)
    make = {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "record_function": lambda: torch.profiler.record_function("region"),
    }[manager]

    def body(x: Tensor) -> Any:
        with make():
            y = linear(x)
            print(y.dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            z = linear(y.to(x.dtype))
        return z.float().sum().item(), linear(x)

    check(body, bolide.compile(body, backend="aot_eager"), (2, 4))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_values_that_only_a_handler_or_the_end_of_a_generator_needs_stay() -> None:
    def may_fail(x: Tensor, fail: bool) -> Tensor:
        print("in")
        return x[5] if fail else x * 2

    def body(x: Tensor, fail: bool) -> Any:
        kept, last = x + 1, x - 1
        try:
            kept = may_fail(x, fail)
        except IndexError:
            return kept * 3

        def rows() -> Any:
            for i in range(2):
                print("row")
                yield x * i

        for row in rows():
            last = row + 2
        return kept, last

    for fail in (True, False):
        program = functools.partial(body, fail=fail)
        check(program, bolide.compile(program, backend="aot_eager"))


def test_a_partial_of_one_that_has_lived_across_a_break_is_merged_with_it() -> None:
    """It would not be if the first one had been asked for its attributes."""

    def body(x: Tensor, outside: Any) -> Any:
        def same(value: Any) -> Any:
            bolide.graph_break()
            return value

        inner = functools.partial(torch.add, x)
        merged = functools.partial(functools.partial(torch.add, x), same(2))
        again, beyond = functools.partial(inner, 5), functools.partial(outside, 3)
        facts = [made.func is torch.add for made in (merged, again, beyond)]
        return facts, getattr(outside, "missing", 7), merged(), again(), beyond(), len(merged.args)

    outside = functools.partial(torch.add, torch.ones(2))
    compiled = bolide.compile(body, backend="aot_eager")
    for size in (2, 2, 1):
        x = torch.randn(size)
        assert same(compiled(x, outside), body(x, outside))
    outside.missing = 8  # type: ignore[attr-defined]
    x = torch.randn(2)
    assert same(compiled(x, outside), body(x, outside))


def test_an_iterator_made_in_front_of_a_break_stands_behind_what_the_list_has_got_meanwhile() -> None:
    def body(x: Tensor) -> Any:
        items: list[int] = []
        print("made")
        items.append(1)
        items.append(2)
        rest = iter(items)
        first = next(rest)
        print("drawn", first)
        return [first, *rest], x + first

    check(body, bolide.compile(body, backend="aot_eager"))


def grown_set(x: Tensor, kept: Any) -> Any:
    numbers, seen = {1, 2}, []
    try:
        for i in numbers:
            numbers.add(i + 10)
            bolide.graph_break()
            seen.append(x * i)
    except RuntimeError as error:
        seen.append(str(error))
    return seen


def grown_dict_at_its_last_item(x: Tensor, kept: Any) -> Any:
    table, seen = {1: 2}, []
    try:
        for key, _ in table.items():
            table[key + 10] = 1
            bolide.graph_break()
            seen.append(x * key)
    except RuntimeError as error:
        seen.append(str(error))
    return seen


def grown_before_the_break(x: Tensor, kept: Any) -> Any:
    table = {1: 2}
    it = iter(table)
    table[5] = 6
    bolide.graph_break()
    x = x + 1
    try:
        return x + next(it)
    except RuntimeError as error:
        return x, str(error)


def grown_after_the_break(x: Tensor, kept: Any) -> Any:
    numbers = {1, 2}
    it = enumerate(numbers)
    x = x + next(it)[1]
    bolide.graph_break()
    x = x * 2
    numbers.add(6)
    try:
        return x + next(it)[1]
    except RuntimeError as error:
        return x, str(error)


def grown_when_the_loop_has_ended(x: Tensor, kept: Any) -> Any:
    for key in kept:
        print(key)
        x = x * kept[key]
    kept[len(kept)] = 2
    return x, list(kept)


@pytest.mark.parametrize(
    "body",
    [
        grown_set,
        grown_dict_at_its_last_item,
        grown_before_the_break,
        grown_after_the_break,
        grown_when_the_loop_has_ended,
    ],
    ids=lambda body: body.__name__,
)
def test_an_iterator_that_lives_across_a_break_notices_what_is_added_as_long_as_it_lives(
    body: Callable[..., Any],
) -> None:
    ours: dict[Any, int] = {"a": 2, "b": 3}
    theirs = dict(ours)
    with bolide.dynamo.config.patch(suppress_errors=False):
        compiled = bolide.compile(body, backend="aot_eager")
        check(lambda x: body(x, theirs), lambda x: compiled(x, ours))
    assert ours == theirs


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise KeyError("compared")

    def __call__(self, x: Tensor) -> Tensor:
        return x + 1


def test_what_is_called_is_not_compared() -> None:
    outside = Incomparable()

    def body(x: Tensor) -> Any:
        order = functools.cmp_to_key(lambda a, b: b - a)
        return outside(x), Incomparable()(x), sorted([3, 1, 2], key=order)

    x = torch.ones(2)
    assert repr(bolide.compile(body, backend="eager", fullgraph=True)(x)) == repr(body(x))


def test_a_generator_that_is_dropped_when_it_has_yielded_gives_its_item() -> None:
    def body(x: Tensor) -> Any:
        def items() -> Any:
            try:
                print("started")
                yield x + 1
            finally:
                print("closed")

        return next(items(), None), x * 2

    check(body, bolide.compile(body, backend="aot_eager"))


def test_a_loop_sees_what_its_body_adds_to_the_list_or_changes_in_the_dict() -> None:
    def body(x: Tensor) -> Any:
        queue, seen, table = [3], [], {"a": 1, "b": 2}
        for i in queue:
            print(i)
            seen.append(x * i)
            if i:
                queue.append(i - 1)
                queue.append(0)
        for key, value in table.items():
            print(key)
            table["b"] = value + 5
        return seen, queue, table

    check(body, bolide.compile(body, backend="aot_eager"))


def test_an_iterator_of_c_code_that_lives_across_a_break_is_not_taken_for_an_instance():
    def program(x):
        it = itertools.accumulate([1, 2, 3])
        first = next(it)
        bolide.graph_break()
        return x + first, list(it)

    x = torch.randn(2)
    got = bolide.compile(program)(x)
    torch.testing.assert_close(got[0], x + 1)
    assert got[1] == [3, 6]


def test_a_generator_dropped_in_front_of_a_segment_is_closed_at_once_in_the_first_call_too() -> None:
    def body(x: Tensor) -> Any:
        def items() -> Any:
            try:
                yield from range(3)
            finally:
                print("closed")

        for i in items():
            print(i)
            if i:
                break
        print("after")
        return x * 2

    check(body, bolide.compile(body, backend="aot_eager"))


def test_effects_after_a_break_on_what_a_closure_holds() -> None:
    def make() -> tuple[Any, Any]:
        held = types.SimpleNamespace(items={}, grown=[], state=collections.defaultdict(dict))

        def fn(x):
            bolide.graph_break()
            held.items["x"] = x
            held.state[1]["count"] = 3
            held.grown.append(x + 1)
            held.name = "new"
            bolide.graph_break()
            held.items["y"] = len(held.grown)
            return x * 2

        return fn, held

    x = torch.randn(3)
    (plain, expected), (fn, actual) = make(), make()
    compiled = bolide.compile(fn, backend="eager")
    items, state = actual.items, actual.state
    for _ in range(2):
        plain(x), compiled(x)
        assert repr(actual) == repr(expected)
    assert actual.items is items and actual.state is state and actual.items["x"] is x


def test_a_float_that_is_known_in_spite_of_symbolic_sizes() -> None:
    class Meter:
        count, total = 0, 0.0

    def fn(meter, x):
        meter.count += len(x)
        meter.total += 0.0 * len(x)
        bolide.graph_break()
        return x * (meter.total / meter.count)

    compiled, expected, actual = bolide.compile(fn, backend="eager"), Meter(), Meter()
    for length in (3, 4, 5, 5):
        x = torch.randn(length)
        assert torch.equal(compiled(actual, x), fn(expected, x)) and vars(actual) == vars(expected)


@pytest.mark.parametrize("after", [False, True], ids=["call", "segment"])
def test_a_fault_of_capture_costs_only_speed(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    effects = Rebuilder.effects

    def failing(self: Rebuilder) -> Any:
        if any(overlay.owner is held for overlay in self.world.journal.overlays):
            raise KeyError("a fault")
        return effects(self)

    def fn(x):
        if after:
            bolide.graph_break()
        held.count = held.count + 1
        return x + held.count

    class Held:
        count = 1

    held = Held()
    monkeypatch.setattr(Rebuilder, "effects", failing)
    x = torch.randn(3)
    compiled = bolide.compile(fn, backend="eager")
    with bolide.dynamo.config.patch(suppress_errors=True), pytest.warns(bolide.BolideWarning, match="a fault"):
        assert torch.equal(compiled(x), x + 2)
    with bolide.dynamo.config.patch(suppress_errors=False), pytest.raises(CompileError, match="a fault"):
        bolide.compile(fn, backend="eager")(x)


def test_code_in_c_that_is_not_known_to_only_compute_runs_in_every_call() -> None:
    done: list[Any] = []

    def fn(x: Tensor, number: int) -> Tensor:
        thread = threading.Thread(target=lambda: done.append(number))
        thread.start()
        thread.join()
        done.append((sqlite3.connect(":memory:").execute("select ? + 1", (number,)).fetchone(), gc.isenabled()))
        return x + zlib.crc32(b"only computes")

    x = torch.randn(3)
    compiled = bolide.compile(fn, backend="eager")
    for number in range(3):
        (gc.enable, gc.disable)[number % 2]()
        try:
            assert torch.equal(compiled(x, number), x + zlib.crc32(b"only computes"))
        finally:
            gc.enable()
    assert done == [0, ((1,), True), 1, ((2,), False), 2, ((3,), True)]


def test_bound_arguments_are_objects_that_change_across_a_break() -> None:
    def called(first: Any, *rest: Any, last: int = 4) -> None: ...

    def program(x: Any) -> Any:
        bound = inspect.signature(called).bind(x * 2, 3)
        bolide.graph_break()
        bound.apply_defaults()
        return bound.arguments["first"] + bound.arguments["last"], list(bound.arguments)

    compiled = bolide.compile(program, backend="eager")
    for step in range(3):
        result, names = compiled(torch.full((2,), float(step)))
        assert torch.equal(result, torch.full((2,), step * 2 + 4.0))
        assert names == ["first", "rest", "last"]


def test_a_new_object_in_a_weak_container_from_outside_is_a_break() -> None:
    found: weakref.WeakSet[Any] = weakref.WeakSet()

    def program(x: Any) -> Any:
        found.add(torch.nn.Identity())
        return x + len(found)

    with pytest.raises(Unsupported, match="weak container of the outside"):
        bolide.compile(program, backend="eager", fullgraph=True)(torch.ones(2))


def test_a_class_with_a_base_that_holds_a_value_of_the_call_stays_inside() -> None:
    def program(x: Tensor, count: int) -> tuple[Tensor, int]:
        class Base:
            total = count * 2

        class Derived(Base):
            pass

        bolide.graph_break()
        return x + 1, Derived.total

    compiled = bolide.compile(program, backend="eager", dynamic=True)
    for count in (3, 5, 8):
        total = compiled(torch.rand(4), count)[1]
        assert type(total) is int and total == 2 * count


def test_a_group_of_exceptions_beside_a_function_that_holds_itself() -> None:
    """The function's closure makes containers be filled after they are made; a group cannot be made empty."""
    groups = getattr(builtins, "ExceptionGroup", None) or (lambda text, errors: ValueError(text, errors))

    def program(x: Tensor) -> Any:
        def down(n: int) -> int:
            return down(n - 1) if n else len(error.args)

        error = groups("several", [KeyError(x.shape[0]), OSError(2)])
        x = x * 2
        bolide.graph_break()
        return x + down(2), type(error), str(error.args), [(str(each), each.args) for each in error.args[1]]

    compiled, x = bolide.compile(program, backend="eager"), torch.randn(3)
    for _ in range(2):
        actual, expected = compiled(x), program(x)
        assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:]
