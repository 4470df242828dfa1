"""Attributes whose names the class has too, orders of dicts whose classes have methods of their own, and what weak
containers hold of the dead: results and what is left behind are eager's, with the default backend."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D

import bolide
from tests.object_tools import describe
from tests.ordinary_tools import check_whole


def check(make: Callable[[], tuple[Callable[..., Any], Any]], calls: int = 3) -> Any:
    """A program and what it keeps, made twice: run in eager and compiled. Returns the compiled one."""
    (eager, theirs), (program, ours) = make(), make()
    compiled = bolide.compile(program)
    for rows in range(3, 3 + calls):
        x = torch.randn(rows, 2)
        found, expected = (_outcome(run, x) for run in (compiled, eager))
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])
        assert describe(ours) == describe(theirs)
    return compiled


def _outcome(run: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        seen, out = run(x)
        return describe(seen), out
    except (AttributeError, TypeError, KeyError) as error:
        return (type(error), str(error)), x


class Value:
    def __get__(self, owner: Any, cls: Any) -> Any:
        return self if owner is None else "computed"


class Kept:
    def __get__(self, owner: Any, cls: Any) -> Any:
        return self if owner is None else owner.__dict__.get("_kept", 0)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["_kept"] = value


class OnlySet:
    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["only_set"] = value * 2


class Raising:
    def __get__(self, owner: Any, cls: Any) -> Any:
        raise AttributeError("nothing here")

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["raising"] = value


class Host:
    value = Value()
    kept = Kept()
    only_set = OnlySet()
    raising = Raising()
    plain = 3

    def __init__(self) -> None:
        self.__dict__.update(value=1, kept=2, fixed=5)

    @property
    def fixed(self) -> int:
        return 7

    @property
    def counted(self) -> int:
        return self.__dict__.get("counted", -1)

    @counted.setter
    def counted(self, value: int) -> None:
        self.__dict__["counted"] = value + 1

    @functools.cached_property
    def cached(self) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls * 10

    def method(self) -> str:
        return "method"


class Slotted:
    __slots__ = ("__dict__", "a", "b")

    def __init__(self) -> None:
        self.a = 1


def _both(write: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    return lambda h: (write(h), getattr(h, name, "none"), h.__dict__.get(name), sorted(vars(h)))


NAMES = {
    "property over an item": lambda h: (h.fixed, h.__dict__["fixed"], vars(h)["fixed"]),
    "item of a property written": _both(lambda h: h.__dict__.update(fixed=9), "fixed"),
    "property without a setter": lambda h: setattr(h, "fixed", 1),
    "property without a deleter": lambda h: delattr(h, "fixed"),
    "setter": _both(lambda h: setattr(h, "counted", h.counted + 4), "counted"),
    "own attribute first": lambda h: (h.value, setattr(h, "value", 4), h.value),
    "own attribute deleted": _both(lambda h: h.__dict__.pop("value", None), "value"),
    "descriptor first": lambda h: (h.kept, h.__dict__["kept"], setattr(h, "kept", h.kept + 4), h.kept),
    "descriptor's item": _both(lambda h: h.__dict__.update(kept=h.__dict__["kept"] + 1), "kept"),
    "only set": lambda h: (setattr(h, "only_set", 4), h.only_set),
    "raises": lambda h: (setattr(h, "raising", 4), hasattr(h, "raising"), h.__dict__["raising"]),
    "past the class": lambda h: (object.__setattr__(h, "value", 3), object.__getattribute__(h, "kept")),
    "cached": lambda h: (h.cached, h.cached, h.__dict__.pop("cached"), h.cached),
    "cached and replaced": lambda h: (setattr(h, "cached", 1), h.cached, delattr(h, "cached"), h.cached),
    "method": lambda h: (setattr(h, "method", len), h.method([1]), Host.method(h)),
    "default of the class": lambda h: (h.plain, setattr(h, "plain", 8), h.plain, delattr(h, "plain"), h.plain),
    "namespace replaced": lambda h: (setattr(h, "__dict__", {"value": 42}), h.value),
    "what is not there": lambda h: delattr(h, "method"),
    "new": lambda h: vars(Host()),
}
SLOTS = {
    "slot": lambda s: (s.a, setattr(s, "b", 5), s.b, delattr(s, "b"), hasattr(s, "b")),
    "empty slot": lambda s: s.b,
    "deleted twice": lambda s: (delattr(s, "a"), delattr(s, "a")),
    "item of that name": lambda s: (s.__dict__.update(a=100), s.a, s.__dict__["a"]),
}


@pytest.mark.parametrize("name", [*NAMES, *SLOTS])
def test_attributes_under_names_of_the_class(name: str) -> None:
    def make() -> Any:
        host, use = (Host(), NAMES[name]) if name in NAMES else (Slotted(), SLOTS[name])
        return (lambda x: (use(host), x * 2)), getattr(host, "__dict__", None)

    check(make)


def test_objects_made_inside_keep_what_is_under_names_of_descriptors() -> None:
    def make() -> Any:
        return (lambda x: (Host(), x + 1)), None

    assert check(make)._bolide.entries


class Marked(collections.OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, ("set", value))


class Counting(collections.OrderedDict[str, Any]):
    def __delitem__(self, key: str) -> None:
        self.deleted = getattr(self, "deleted", 0) + 1
        super().__delitem__(key)


class Backwards(collections.OrderedDict[str, Any]):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class Upper(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.upper(), value)


WRITES: dict[str, Callable[[Any], Any]] = {
    "to the end": lambda d: d.move_to_end("a"),
    "to the front": lambda d: d.move_to_end("c", last=False),
    "first out": lambda d: d.popitem(last=False),
    "last out": lambda d: d.popitem(),
    "again": lambda d: d.__setitem__("a", d.pop("a", 5)),
    "deleted and set": lambda d: (d.pop("b", 0), d.__setitem__("b", 5)),
    "update": lambda d: d.update(b=7, y=8),
    "default": lambda d: d.setdefault("q", 4),
    "joined": lambda d: d.__ior__({"a": 3, "n": 1}),
    "over": lambda d: d.__setitem__("a", 9),
}
_KINDS = (dict, collections.OrderedDict, collections.UserDict, Marked, Counting, Backwards, Upper)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", WRITES)
def test_orders_after_writes(name: str, kind: Any) -> None:
    if name in ("to the end", "to the front", "first out") and not issubclass(kind, collections.OrderedDict):
        return

    def make() -> Any:
        kept = kind([("a", 1), ("b", 2), ("c", 3)])

        def program(x: torch.Tensor) -> Any:
            found = WRITES[name](kept)
            found = None if found is kept else found
            return (found, list(kept.items()), len(kept), list(kept), getattr(kept, "deleted", 0)), x + len(kept)

        return program, (kept, list(collections.OrderedDict.__iter__(kept)) if kind in _KINDS[3:6] else None)

    check(make)


class Node:
    pass


WEAK = {"set": weakref.WeakSet, "keys": weakref.WeakKeyDictionary, "values": weakref.WeakValueDictionary}


def _put(container: Any, node: Node, place: int) -> None:
    if isinstance(container, weakref.WeakSet):
        container.add(node)
    elif isinstance(container, weakref.WeakKeyDictionary):
        container[node] = place
    else:
        container[place] = node


@pytest.mark.parametrize("kind", WEAK)
def test_weak_containers_let_go_of_what_the_program_drops(kind: str) -> None:
    def make() -> Any:
        kept, weak = [Node() for _ in range(6)], WEAK[kind]()
        for place, node in enumerate(kept):
            _put(weak, node, place)
        del node

        def program(x: torch.Tensor) -> Any:
            before = len(weak)
            kept.pop()
            return (before, len(weak), len(list(weak)), len(kept)), x * 2

        return program, None

    check(make)


def test_weak_references_let_go_of_what_the_program_replaces() -> None:
    def make() -> Any:
        holder = Node()
        holder.child = Node()  # type: ignore[attr-defined]
        holder.to_child = weakref.ref(holder.child)  # type: ignore[attr-defined]

        def program(x: torch.Tensor) -> Any:
            there = holder.to_child() is holder.child  # type: ignore[attr-defined]
            holder.child = Node()  # type: ignore[attr-defined]
            gone = holder.to_child() is None  # type: ignore[attr-defined]
            holder.to_child = weakref.ref(holder.child)  # type: ignore[attr-defined]
            return (there, gone), x * 2

        return program, None

    check(make)


class Shared:
    """Instances that have one dict of attributes among them."""

    state: dict[str, Any] = {}

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.__dict__ = self.state if state is None else state
        if "count" not in self.__dict__:
            self.count = 3


def of_class(x: torch.Tensor, state: dict[str, Any]) -> Any:
    first, second = Shared(), Shared()
    first.count += x.shape[0]
    second.last = x * second.count
    return first.last.sum(), Shared.state["count"], first.__dict__ is second.__dict__, second


def of_argument(x: torch.Tensor, state: dict[str, Any]) -> Any:
    y = x.sin() * 2
    shared = Shared(state)
    shared.weights = y
    return (state["weights"] * shared.count).cos(), sorted(state), shared


@pytest.mark.parametrize("program", [of_class, of_argument])
def test_an_object_whose_attributes_are_a_dict_from_outside_breaks_at_that_line(program: Callable[..., Any]) -> None:
    def run(compile: Callable[[Any], Any]) -> Any:
        Shared.state = {}
        compiled, state, seen = compile(program), {"z": 1}, []
        for n in (3, 5, 4, 7):
            x = torch.randn(n, 4, requires_grad=True)
            out, *others, shared = compiled(x, state)
            out.sum().backward()
            assert vars(shared) is (Shared.state if program is of_class else state)
            seen.append((out, others, vars(shared), x.grad))
        return seen

    check_whole(run, versions=2, breaks=5)


class Documented(property):
    """A property that knows more than one."""

    unit: str = ""

    def __call__(self, getter: Callable[..., Any]) -> Documented:
        return type(self)(getter)


class Doubled(property):
    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return self if owner is None else super().__get__(owner, cls) * 2


class Clamped(property):
    def __set__(self, owner: Any, value: Any) -> None:
        super().__set__(owner, value.clamp(-1, 1))


class Kinds(type):
    @Documented
    def kind(cls) -> int:
        return len(cls.__name__)


class Measured(metaclass=Kinds):
    def __init__(self) -> None:
        self.scale = torch.ones(2)

    @Documented()
    def half(self) -> torch.Tensor:
        return self.scale / 2

    @half.setter
    def half(self, value: torch.Tensor) -> None:
        self.scale = value * 2

    @half.deleter
    def half(self) -> None:
        self.scale = -self.scale

    @Doubled
    def double(self) -> torch.Tensor:
        return self.scale

    clamped = Clamped(lambda self: self.scale, lambda self, value: setattr(self, "scale", value))


class MeasuredBelow(Measured):
    @Documented
    def half(self) -> torch.Tensor:
        return super().half + super().double


def _deleted(o: Measured, x: torch.Tensor) -> torch.Tensor:
    del o.half
    return o.scale


PROPERTIES: dict[str, Callable[[Measured, torch.Tensor], Any]] = {
    "read": lambda o, x: (o.half, o.double, o.clamped),
    "written": lambda o, x: (setattr(o, "half", x.sum(0)), o.scale, o.half),
    "written by its own method": lambda o, x: (setattr(o, "clamped", x.sum(0) * 3), o.scale),
    "deleted": _deleted,
    "without a setter": lambda o, x: setattr(o, "double", x),
    "of the class": lambda o, x: (type(o).kind, isinstance(Measured.half, property), Measured.half.unit),
}
OWN_HOOKS = ("read", "written by its own method")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("cls", [Measured, MeasuredBelow])
@pytest.mark.parametrize("name", PROPERTIES)
def test_subclasses_of_property(name: str, cls: type[Measured], inside: bool) -> None:
    def program(compile: Any) -> Any:
        owner, seen = cls(), []

        def use(x: torch.Tensor) -> Any:
            own = cls() if inside else owner
            try:
                return PROPERTIES[name](own, x), own.scale * x
            except AttributeError as error:
                return str(error), own.scale * x

        fast = compile(use)
        for rows in (3, 4, 5):
            seen.append(fast(torch.randn(rows, 2)))
        return seen, owner

    check_whole(program, breaks=9 if name in OWN_HOOKS else 0)


@pytest.mark.parametrize("validate", [False, True])
def test_supports_of_distributions_from_outside(validate: bool) -> None:
    """They are properties of a class of torch's own."""

    def program(compile: Any) -> Any:
        made = D.Independent(D.Uniform(torch.zeros(1), torch.ones(1)), 0, validate_args=validate)
        mixed = D.MixtureSameFamily(D.Categorical(torch.ones(3)), D.Normal(torch.arange(3.0), 1.0))
        fast = compile(lambda x: (made.log_prob(x), mixed.log_prob(x), made.support.check(x)))
        return [fast(torch.rand(n) * 0.9 + 0.05) for n in (5, 6, 7)]

    check_whole(program)
