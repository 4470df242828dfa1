"""Objects and side effects: what a program writes, grows, reorders and lets escape is there afterwards as in eager."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events
from bolide.support.errors import BolideWarning, Unsupported
from tests.object_tools import agree, describe


class Box:
    """An object of any attributes that can be copied."""

    def __init__(self: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)


X = torch.arange(6.0).view(2, 3)


def iterator_of_a_list(x: Any) -> Any:
    items = [x + 1, x + 2, x + 3]
    left = iter(items)
    next(left)
    return items, left


def lazy_pairs(x: Any) -> Any:
    return (
        enumerate(zip([x, x + 1], itertools.chain((1, 2), [3])), 5),
        reversed([x, 2]),
        iter({"a": x}.items()).__next__(),
    )


def bound_methods(x: Any) -> Any:
    items: list[Any] = []
    append: Any = items.append
    append(x + 1)
    return items, append.__self__ is items, {"a": 1}.get


def contains_itself(x: Any) -> Any:
    items: list[Any] = [x + 1]
    items.append(items)
    a: Any = Box()
    b: Any = Box()
    a.other, b.other, a.x = b, a, x * 2
    whole = (a, items)
    b.whole = whole
    return whole


def exceptions(x: Any) -> Any:
    try:
        raise RuntimeError("outer") from ValueError("inner", 3)
    except RuntimeError as error:
        return error, x + 1


def views(x: Any) -> Any:
    ordered = collections.OrderedDict(a=x + 1, b=2)
    plain = {"k": ordered}
    return plain, plain.keys(), plain.values(), ordered.items()


@pytest.mark.parametrize("program", [iterator_of_a_list, lazy_pairs, bound_methods, contains_itself, exceptions, views])
def test_new_objects_leave(program: Callable[..., Any]) -> None:
    agree(program, lambda: (X,), calls=2)


def test_a_recursive_closure_leaves() -> None:
    def program(x: Any) -> Any:
        def add(n: int) -> Any:
            return x if n == 0 else add(n - 1) + 1

        return add

    assert torch.equal(bolide.compile(program, backend="eager", fullgraph=True)(X)(3), program(X)(3))


def test_views_see_what_is_put_into_their_dict() -> None:
    plain, keys, values, _ = bolide.compile(views, backend="eager", fullgraph=True)(X)
    plain["new"] = 1
    assert list(keys) == ["k", "new"] and len(values) == 2


def draw(left: Iterator[Any], x: Any) -> Any:
    return next(left) + x, next(left)


def drain(left: Iterator[Any], x: Any) -> Any:
    for item in left:
        x = x + item
    return x


def draw_pairs(left: Iterator[Any], x: Any) -> Any:
    return [a * b for a, b in zip(left, [x, x + 1])]


@pytest.mark.parametrize("program", [draw, drain, draw_pairs])
def test_an_iterator_from_outside_is_advanced_as_far_as_in_eager(program: Callable[..., Any]) -> None:
    items = [X * i for i in range(5)]
    ours, theirs = iter(items), iter(items)
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    assert describe(compiled(ours, X)) == describe(program(theirs, X))
    assert next(ours, None) is next(theirs, None)


def test_how_far_an_iterator_is_makes_no_new_version() -> None:
    compiled: Any = bolide.compile(draw, backend="eager", fullgraph=True)
    left = iter([X * i for i in range(6)])
    results = [compiled(left, X) for _ in range(3)]
    assert torch.equal(results[2][0], X * 4 + X) and len(compiled._bolide.entries) == 1


def grow(box: Any, x: Any) -> Any:
    box.items.append(x + 1)
    box.table["new"] = x * 2
    box.seen.add(3)
    box.seen.discard(1)
    box.queue.append(x)
    box.queue.appendleft(4)
    box.lists["k"].append(x + 5)
    box.count["a"] += 2
    return len(box.items), len(box.queue)


def reorder(box: Any, x: Any) -> None:
    first = box.table.pop("a")
    box.table["a"] = first
    box.table["c"] = x
    del box.table["c"]
    box.table["c"] = x + 1
    del box.p
    box.p, box.q = 1, 2
    box.items[:] = box.items[::-1]


def escape(box: Any, x: Any) -> Any:
    new = Box(x=x + 1)
    box.new = new
    box.items.append(new)
    box.table["again"] = (new, box)
    return new


def alias(box: Any, x: Any) -> Any:
    box.table["items"] = box.items
    box.table["items"].append(x)
    return box.items[-1] is x, box.table["items"] is box.items


def call_bound(box: Any, x: Any) -> Any:
    put, get = box.items.append, box.table.get
    put(x)
    return get("a"), get("none", x)


@pytest.mark.parametrize("program", [grow, reorder, escape, alias, call_bound])
def test_outside_objects_are_changed_as_in_eager(program: Callable[..., Any]) -> None:
    def make() -> tuple[Any, ...]:
        box: Any = Box(p=0, items=[1, X], table={"a": 1, "b": X}, seen={1, 2}, queue=collections.deque([1, 2], 3))
        box.lists, box.count = collections.defaultdict(list), collections.Counter("ab")
        return box, X

    agree(program, make, calls=2)


def test_bound_methods_of_outside_containers_are_arguments() -> None:
    items, table = [X], {"a": X}

    def program(put: Any, get: Any, x: Any) -> Any:
        put(x + 1)
        return get("a") + x

    found = bolide.compile(program, backend="eager", fullgraph=True)(items.append, table.get, X)
    assert torch.equal(found, X + X) and torch.equal(items[1], X + 1)


def test_names_of_enclosing_functions_and_classes_are_written() -> None:
    count = 0

    class Holder:
        total = 0

    def program(x: Any) -> Any:
        nonlocal count
        count += 1
        Holder.total += 2
        Holder.last = x + count  # type: ignore[attr-defined]
        return x * Holder.total

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    compiled(X)
    found = compiled(X)
    assert (count, Holder.total) == (2, 4) and torch.equal(found, X * 4)
    assert torch.equal(Holder.last, X + 2)  # type: ignore[attr-defined]


def test_nothing_is_half_applied_when_the_program_raises() -> None:
    def program(box: Any, x: Any) -> Any:
        box.n += 1
        box.items.append(x)
        raise KeyError("no")

    ours, theirs = Box(n=0, items=[]), Box(n=0, items=[])
    for function, box in ((bolide.compile(program, backend="eager"), ours), (program, theirs)):
        with pytest.raises(KeyError):
            function(box, X)
    assert describe(ours) == describe(theirs)


def test_weak_references_are_made_to_outside_objects() -> None:
    box = Box(n=1)
    found = bolide.compile(lambda box, x: (weakref.ref(box), x + 1), backend="eager", fullgraph=True)(box, X)
    assert found[0]() is box


def reshaped(x: Any) -> Any:
    y = x * 2
    first = y[0]
    y.t_()
    first.add_(1)
    y.unsqueeze_(1)
    z = y.clone()
    z.squeeze_().transpose_(0, 1)
    out = torch.empty(0)
    torch.mul(z, 2, out=out)
    small = out.clone()
    small.resize_(2, 2)
    return y, z, out, small, first


def test_tensors_made_inside_change_their_shape_in_place() -> None:
    agree(reshaped, lambda: (X,))


def test_gradients_pass_through_shapes_changed_in_place() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        y.t_()
        y.unsqueeze_(0)
        return (y * torch.arange(3.0).view(3, 1)).sin()

    x = X.clone().requires_grad_()
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    (expected,) = torch.autograd.grad(program(x).sum(), x)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.equal(found, expected)


def known_data(x: Any) -> Any:
    sizes = torch.tensor([3, 2])
    table = torch.arange(6).view(2, 3)
    if sizes.max() < 4 and not torch.equal(table, table + 1):
        x = x + 1
    return x * sizes.sum().item(), table.tolist(), (table > 2).nonzero(), x[table > 2], table[table % 2 == 0]


def test_constants_of_the_program_answer_questions_about_their_data() -> None:
    agree(known_data, lambda: (X,))


HISTORY: list[Any] = []


def append_to_attribute(box: Any, x: Any) -> Any:
    box.items.append(x + 1)
    box.table["items"].append(x)
    return x * 2


def append_and_read(box: Any, x: Any) -> Any:
    box.items.append(x + 1)
    put = box.items.append
    total = sum(item.sum() for item in box.items)
    put(total)
    box.items.append(len(box.items))
    return total, box.items[-1]


def append_and_ask_the_method(box: Any, x: Any) -> Any:
    put = box.items.append
    put(x + 1)
    length = len(put.__self__)  # the list itself
    put(length)
    return length, put.__self__ is box.items


def append_under_two_names(box: Any, x: Any) -> Any:
    box.items.append(x)
    same = box.same
    box.items.append(len(same))
    return same[-2] is x, same is box.items


def append_to_a_global(box: Any, x: Any) -> Any:
    HISTORY.append(x)
    return x + 1


@pytest.mark.parametrize(
    "program",
    [append_to_attribute, append_and_read, append_and_ask_the_method, append_under_two_names, append_to_a_global],
)
def test_outside_lists_grow(program: Callable[..., Any]) -> None:
    def make() -> tuple[Any, ...]:
        items = [X, X * 2]
        return Box(items=items, same=items, table={"items": []}), X

    agree(program, make)


@pytest.mark.parametrize("program", [append_to_attribute, append_to_a_global])
def test_a_list_that_only_grows_makes_no_new_version(program: Callable[..., Any]) -> None:
    box = Box(items=[], same=[], table={"items": []})
    compiled: Any = bolide.compile(program, backend="eager", fullgraph=True)
    HISTORY.clear()
    for call in range(4):
        compiled(box, X * call)
    assert len(compiled._bolide.entries) == 1
    grown = box.items if program is append_to_attribute else HISTORY  # type: ignore[attr-defined]
    assert len(grown) == 4 and torch.equal(grown[3], X * 3 + (program is append_to_attribute))


def reads_back(box: Any, x: Any) -> Any:
    box.items.append(x.sin().sum())
    box.items.append(x + box.items[-1])
    return box.items[-1] * box.items[-2]


def reads_back_from_a_global(box: Any, x: Any) -> Any:
    HISTORY.append(x.cos())
    last = HISTORY[-1]
    HISTORY.append(last + 1)
    return last * HISTORY[-2]


def reads_back_the_best(box: Any, x: Any) -> Any:
    box.items.append(x.sum().item())
    if box.best is None or box.items[-1] > box.best:
        box.best = box.items[-1]
    return x + box.best


def reads_back_and_breaks(box: Any, x: Any) -> Any:
    box.items.append(x.sum())
    last = box.items[-1]
    print(end="")
    box.items.append(last * 2)
    return box.items[-1] + x


def reads_back_further(box: Any, x: Any) -> Any:
    """What was appended before is guarded."""
    box.items.append(x.shape[0] % 2)
    return x * box.items[-2]


@pytest.mark.parametrize(
    ("program", "most"),
    [
        (reads_back, 2),
        (reads_back_from_a_global, 2),
        (reads_back_the_best, 3),
        (reads_back_and_breaks, 8),
        (reads_back_further, 20),
    ],
)
def test_what_was_appended_is_read_back_without_a_version_for_each_length(
    program: Callable[..., Any], most: int
) -> None:
    bolide.reset()
    compiled = bolide.compile(program)
    boxes = [Box(items=[1], best=None) for _ in range(2)]
    told: list[Any] = []
    histories: list[list[Any]] = [[], []]
    with events.subscribed(told.append), warnings.catch_warnings():
        warnings.simplefilter("ignore", BolideWarning)
        for size in random.sample(range(3, 27), 24):  # no two alike, or the size is fixed until it differs
            x = torch.randn(size)
            answers = []
            for box, run, history in zip(boxes, (compiled, program), histories):
                HISTORY[:] = history
                answers.append(run(box, x))
                history[:] = HISTORY
            torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*(box.items for box in boxes), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*histories)
    assert sum(isinstance(event, events.Captured) for event in told) <= most


def test_a_list_that_grows_is_guarded_to_be_no_other() -> None:
    def program(a: Any, b: Any, x: Any) -> Any:
        a.items.append(x)
        return x * len(b.items)

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(Box(items=[]), Box(items=[1]), X), X)
    shared = [1]
    assert torch.equal(compiled(Box(items=shared), Box(items=shared), X), X * 2)


def test_a_broken_loop_that_appends_is_compiled_once() -> None:
    def program(items: Any, x: Any) -> Any:
        out = []
        for item in items:
            x = x * 2 + item
            if x.sum() > 0:
                x = x + 1
            out.append(x)
        return out

    items = [X * i for i in range(6)]
    captured: list[Any] = []
    with events.subscribed(lambda event: captured.append(event) if isinstance(event, events.Captured) else None):
        found = bolide.compile(program, backend="eager")(items, X)
    assert describe(found) == describe(program(items, X)) and len(captured) <= 4


def test_a_context_variable_is_guarded_and_stays_set() -> None:
    count: contextvars.ContextVar[int] = contextvars.ContextVar("count", default=1)

    def program(x: torch.Tensor) -> torch.Tensor:
        count.set(count.get() + 1)
        return x * count.get()

    for compiled in (
        bolide.compile(program, backend="eager", fullgraph=True),
        bolide.compile(broken(program), backend="eager"),
    ):
        before = count.get()
        for step in range(4):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), before + 1.0 + step))
            assert count.get() == before + 1 + step


def broken(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program after a break."""

    def run(x: torch.Tensor) -> Any:
        bolide.graph_break()
        return program(x)

    return run


def test_what_a_cache_of_the_users_holds_is_that_object_and_is_made_once() -> None:
    made: list[str] = []

    @functools.cache
    def settings(name: str) -> Box:
        made.append(name)
        return Box(name=name, mask=torch.arange(len(name)))

    def program(x: torch.Tensor, name: str) -> Any:
        settings(name).uses = getattr(settings(name), "uses", 0) + 1
        return x + settings(name).mask, settings(name)

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    for name in ("abc", "abc", "de", "abc"):
        total, found = compiled(torch.zeros(len(name)), name)
        assert found is settings(name)
        assert torch.equal(total, torch.arange(len(name)).float())
    assert made == ["abc", "de"]
    assert settings("abc").uses == 3


def test_a_cached_function_that_writes_breaks_and_writes_as_often_as_in_eager() -> None:
    log: list[int] = []

    @functools.cache
    def of_tensor(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x + 1

    compiled = bolide.compile(lambda x: of_tensor(x) * of_tensor(x), backend="eager")
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x), torch.full((2,), 4.0))
    assert log == [1]
    with pytest.raises(Unsupported, match="has effects"):
        bolide.compile(lambda x: of_tensor(x) + 1, backend="eager", fullgraph=True)(torch.ones(3))


class Slotted:
    __slots__ = ("raw", "size")


class Derived(Slotted):
    @property
    def raw(self) -> int:  # type: ignore[override]
        return self.size * 2


def test_a_slot_that_a_subclass_hides_is_not_written() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Derived()
        made.size = x.shape[0]
        return made, x + made.raw

    made, total = bolide.compile(program, backend="eager", fullgraph=True)(torch.zeros(3))
    assert (type(made), made.size, made.raw, total.tolist()) == (Derived, 3, 6, [6.0] * 3)


def test_lists_that_only_grow_are_not_read_where_a_dict_answers_them() -> None:
    def program(x: torch.Tensor, kept: dict[str, Any]) -> Any:
        kept.setdefault("sums", []).append(x.sum().item())
        kept.setdefault("last", x.sum())
        kept.get("rows", []).append(x.size(0))
        kept["other"] = [x.size(0)]
        return x + 1

    compiled = bolide.compile(program, fullgraph=True)
    expected: dict[str, Any] = {"rows": []}
    found: dict[str, Any] = {"rows": []}
    told: list[Any] = []
    with events.subscribed(told.append):
        for rows in (3, 5, 4, 6, 7, 8, 9):
            x = torch.arange(rows) * 1.0
            assert torch.equal(program(x, expected), compiled(x, found))
    assert found == expected and list(found) == list(expected)
    assert sum(isinstance(event, events.Captured) for event in told) <= 3


LEFT: list[Any] = []


def annotated(x: Any) -> Any:
    def documented(a: int, *, k: float = 1.0) -> str:
        "text"
        return str(x)

    wrapper = functools.wraps(documented)(lambda a: documented(a))
    wrapper.__module__ = "elsewhere"
    LEFT.extend([documented, wrapper, functools.partial(documented, 1).func])


def renamed(x: Any) -> Any:
    def changed(a: int) -> Any:
        "text"
        return x

    kept: dict[str, Any] = {"q": x}
    changed.__doc__, changed.__annotations__, changed.__kwdefaults__ = "another", kept, {"k": 3}
    changed.__name__, changed.__qualname__, changed.tag = "other", "a.other", 1  # type: ignore[attr-defined]
    bolide.graph_break()
    LEFT.append(changed)
    return changed.__annotations__ is kept


def without_text(x: Any) -> Any:
    def bare() -> Any:
        "text"
        return x

    bare.__doc__ = None
    bare.__annotations__.clear()
    LEFT.append(bare)


def cached(x: Any) -> Any:
    @functools.lru_cache(None)
    def once(a: int = 2) -> str:
        "text"
        return str(a)

    LEFT.append(once)


def steps(x: Any) -> Any:
    def generator(a: int) -> Iterator[int]:
        "steps"
        yield a

    LEFT.append(generator)


_NAMES = "name qualname doc module annotations defaults kwdefaults type_params"
_FACTS = [f"__{name}__" for name in _NAMES.split()]


@pytest.mark.parametrize("fn", [annotated, renamed, without_text, cached, steps])
def test_facts_of_functions_that_leave(fn: Any) -> None:
    def facts(call: Any, x: torch.Tensor) -> Any:
        LEFT.clear()
        return call(x), [[describe(getattr(made, fact, None)) for fact in _FACTS] for made in LEFT]

    compiled = bolide.compile(fn)
    for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
        assert facts(compiled, x) == facts(fn, x)


NAMES = ("a", "b", "c")
STEPS = ("write", "write", "delete", "pop", "read", "length", "names", "default", "constant")


def on_items(steps: list[tuple[str, str]]) -> Callable[[Any, Any], Any]:
    """A program that does these things to items of a dict."""

    def program(items: Any, x: Any) -> Any:
        seen: list[Any] = []
        for step, name in steps:
            if step == "write":
                x = x + 1
                items[name] = x * 2
            elif step == "constant":
                items[name] = len(seen)
            elif step == "delete" and name in items:
                del items[name]
            elif step == "pop":
                seen.append(items.pop(name, None))
            elif step == "read":
                seen.append(items.get(name, 0))
            elif step == "length":
                seen.append(len(items))
            elif step == "names":
                seen.append(list(items))
            elif step == "default":
                seen.append(items.setdefault(name, x))
        return seen, x

    return program


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_items_that_are_written_in_any_order_over_what_was_there(seed: int, fork: bool) -> None:
    program = on_items([(random.choice(STEPS), random.choice(NAMES)) for _ in range(random.randrange(1, 7))])

    def forked(items: Any, x: Any) -> Any:
        items["first"] = x
        if x.sum() > 0:
            items["a"] = x + 3
        return program(items, x)

    compiled: Any = bolide.compile(forked if fork else program)
    for _ in range(5):
        x = torch.randn(random.randrange(2, 5))
        names = random.sample(NAMES, random.randrange(4))
        theirs: dict[str, Any] = {name: random.choice([torch.randn(3), torch.randn(2, 2), 1, 2.5]) for name in names}
        ours = dict(theirs)
        assert describe(compiled(ours, x)) == describe((forked if fork else program)(theirs, x))
        assert describe(ours) == describe(theirs) and list(ours) == list(theirs)
