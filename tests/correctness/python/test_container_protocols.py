"""Containers whose classes say themselves how they are read, written, copied and iterated over, and views of containers
of the outside: results, writes and exceptions as in eager."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support.errors import BolideWarning
from tests.everyday_tools import Table, described

pytestmark = pytest.mark.filterwarnings(f"error::{BolideWarning.__module__}.{BolideWarning.__name__}")
TABLE = Table()


def caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return repr(error)


# ---- special methods for attributes that are written in C ------------------------------------------------------------


class Dotted(dict[str, Any]):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__  # type: ignore[assignment]
    __delattr__ = dict.__delitem__  # type: ignore[assignment]


class OrderedDotted(OrderedDict[str, Any]):
    __getattr__ = OrderedDict.__getitem__
    __setattr__ = OrderedDict.__setitem__  # type: ignore[assignment]
    __delattr__ = OrderedDict.__delitem__  # type: ignore[assignment]


class Bag(set[str]):
    __delattr__ = set.discard  # type: ignore[assignment]


class OnlyItems(dict[str, Any]):
    __getattribute__ = dict.get  # type: ignore[assignment]


def use(x: torch.Tensor, table: Any) -> Any:
    table.made = x + 1
    scale = table.scale
    table.scale = scale * 2
    said = [caught(getattr, table, "missing"), caught(hasattr, table, "missing")]
    del table.gone
    said += [caught(delattr, table, "gone"), caught(object.__delattr__, table, "gone"), list(table)]
    setattr(table, "later", 4)  # noqa: B010
    return x * scale, said, table.made, object.__getattribute__(table, "__dict__")


@TABLE.program(lambda n: torch.ones(3), lambda n: Dotted(scale=n // 2, gone=1))
def dotted(x: torch.Tensor, table: Any) -> Any:
    return use(x, table)


@TABLE.program(lambda n: torch.ones(3), lambda n: OrderedDotted(scale=n // 2, gone=1))
def dotted_in_order(x: torch.Tensor, table: Any) -> Any:
    return use(x, table)


@TABLE.program(lambda n: torch.ones(3))
def new_dotted(x: torch.Tensor) -> Any:
    first, second = Dotted(scale=2, gone=1), OrderedDotted(scale=3, gone=1)
    return use(x, first), use(x, second), first, second


@TABLE.program(lambda n: torch.ones(3), lambda n: Bag(["a", "b" * n, "d"]))
def bag(x: torch.Tensor, names: Any) -> Any:
    own = Bag("xy")
    del names.a, names.missing, own.x
    return x + len(names), own


@TABLE.program(lambda n: torch.ones(3), made=True)
def only_items() -> Any:
    table = OnlyItems(size=1)

    def program(x: torch.Tensor) -> Any:
        dict.__setitem__(table, "size", dict.get(table, "size", 0) + 1)
        return x + table.size, table.missing, table.__dict__, OnlyItems(new=5).new, len(table)

    return program


# ---- dicts that are copied -------------------------------------------------------------------------------------------


class OwnKeys(dict[str, Any]):
    def keys(self) -> Any:
        return (key for key in ["b"])


class OwnItems(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return 100


class OwnOrder(dict[str, Any]):
    def __iter__(self) -> Any:
        return iter(["ab"])


class AllOwn(OwnKeys, OwnItems, OwnOrder):
    pass


class OwnItemsOrdered(OrderedDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return 100


class KeysInInstance:
    def __init__(self, names: str) -> None:
        self.keys = lambda: list(names)

    def __getitem__(self, key: str) -> Any:
        return ord(key)


class KeysByGetattr:
    def __getattr__(self, name: str) -> Any:
        if name != "keys":
            raise AttributeError(name)
        return lambda: ["b", "a"]

    def __getitem__(self, key: str) -> Any:
        return ord(key)


class Copy(dict[str, Any]):
    pass


class CopyBySuper(dict[str, Any]):
    def __init__(self, source: Any) -> None:
        super().__init__(source)


class OrderedCopy(OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, [value])


def keywords(**given: Any) -> Any:
    return given


def updated(target: Any, source: Any) -> Any:
    target.update(source)
    return target


def merged(target: Any, source: Any) -> Any:
    target |= source
    return target


COPIES: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "subclass": Copy,
    "subclass with super": CopyBySuper,
    "OrderedDict": OrderedDict,
    "OrderedDict subclass": OrderedCopy,
    "display": lambda source: {"a": 0, **source},
    "keywords": lambda source: keywords(**source),
    "keywords twice": lambda source: keywords(ab=1, **source, c=2),
    "update": lambda source: updated({"b": 0}, source),
    "ordered update": lambda source: updated(OrderedDict(b=0), source),
    "or": lambda source: {"b": 0} | source,
    "ror": lambda source: source | {"b": 0},
    "ordered or": lambda source: OrderedDict(c=0) | source,
    "ior": lambda source: merged({"b": 0}, source),
    "ordered ior": lambda source: merged(OrderedDict(b=0), source),
    "copy": lambda source: source.copy(),
}
SOURCES: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"ab": 1, "b": 2},
    "keys": lambda: OwnKeys(ab=1, b=2),
    "items": lambda: OwnItems(ab=1, b=2),
    "order": lambda: OwnOrder(ab=1, b=2),
    "all": lambda: AllOwn(ab=1, b=2),
    "ordered items": lambda: OwnItemsOrdered(ab=1, b=2),
    "keys of the instance": lambda: KeysInInstance("ab"),
    "keys by getattr": KeysByGetattr,
    "no mapping": lambda: Bag(["ab"]),
    "a number": lambda: 3,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("outside", [False, True])
def test_what_copies_of_mappings_hold(source: str, outside: bool) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        return x + 1, [caught(copy, given or SOURCES[source]()) for copy in COPIES.values()]

    compiled = bolide.compile(program)
    for count in (3, 4):
        made = SOURCES[source]() if outside else None
        found, expected = (described(run(torch.ones(count), made)[1]) for run in (compiled, program))
        assert found == expected, [name for name, a, b in zip(COPIES, found[1:], expected[1:]) if a != b]


# ---- sets that are asked, keys that are hashed, bytes that are shown -------------------------------------------------


class Names(set[int]):
    pass


@TABLE.program(lambda n: torch.ones(3), lambda n: {2, 4, n})
def set_questions(x: torch.Tensor, given: Any) -> Any:
    """No more items are drawn than CPython draws."""
    said = []
    for owner in (given, {2, 4}, frozenset([2, 4]), Names([2, 4])):
        for ask in (owner.isdisjoint, owner.issuperset, owner.issubset):
            drawn: list[int] = []
            items = (drawn.append(item) or item for item in (9, 2, 7, 4))  # type: ignore[func-returns-value]
            said.append((ask(items), drawn))
            items = (drawn.append(item) or item for item in (4, 2))  # type: ignore[func-returns-value]
            said.append((ask(items), drawn))
    return x + len(given), said


class Hashed(int):
    def __init__(self, *args: Any) -> None:
        self.count = 0

    def __hash__(self) -> int:
        self.count += 1
        return int.__hash__(self)


@TABLE.program(lambda n: torch.ones(3))
def keys_are_hashed_once(x: torch.Tensor) -> Any:
    table = {Hashed(3): x}
    (key,) = table
    makers = (set, frozenset, dict.fromkeys, dict, lambda of: dict.fromkeys(set(of)), lambda of: {}.fromkeys(of, 2))
    made = [(make(table), key.count)[1] for make in makers]
    return made, key.count, list(dict.fromkeys([3, 1, 3], x)), Dotted.fromkeys("ab", 1)


class Frozen(frozenset[int]):
    def __init__(self, items: Any) -> None:
        self.given = len(items)


@TABLE.program(lambda n: torch.ones(3), lambda n: n)
def frozen_sets(x: torch.Tensor, count: int) -> Any:
    made = Frozen([count, 1, 2])
    return x + 1, made, made.given, made | {9}, {"key": made}, [made, made]


@TABLE.program(lambda n: torch.ones(3), made=True)
def namespaces_that_grow() -> Any:
    first = KeysInInstance("ab")

    def program(x: torch.Tensor) -> Any:
        second = KeysInInstance("cd")
        first.__dict__ |= {"scale": x + len(vars(first)), "names": list(vars(first))}
        second.__dict__ |= {"scale": x}
        return x + len(first.__dict__), first.scale, first.names, second.scale  # type: ignore[attr-defined]

    return program


@TABLE.program(lambda n: torch.ones(3), made=True)
def bytes_that_are_shown() -> Any:
    data = bytearray(b"ab")
    view = memoryview(data)

    def program(x: torch.Tensor) -> Any:
        data[1] += 1
        data.reverse()
        return x + data[0], bytes(data)

    return lambda x: (program(x), bytes(view))


@pytest.mark.parametrize(**TABLE.params())
def test_containers_with_methods_of_their_own(program: Any) -> None:
    program.check()


# ---- keywords from mappings of the program's -------------------------------------------------------------------------


class Raising:
    def __init__(self, error: BaseException | None, early: bool = False) -> None:
        self.error, self.early = error, early

    def keys(self) -> list[str]:
        if self.early and self.error is not None:
            raise self.error
        return ["a"]

    def __getitem__(self, key: str) -> Any:
        if self.error is not None:
            raise self.error
        return 3


class Unknown(KeyError):
    pass


def _keywords(**keywords: Any) -> Any:
    return sorted(keywords)


CALLS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda mapping: _keywords(**mapping),
    "behind one": lambda mapping: _keywords(b=1, **mapping),
    "behind the same": lambda mapping: _keywords(a=1, **mapping),
    "class in C": lambda mapping: dict(**mapping),
    "display": lambda mapping: {**mapping},
}
ERRORS: dict[str, Callable[[], BaseException | None]] = {
    "none": lambda: None,
    "of the key": lambda: KeyError("a"),
    "of a number": lambda: KeyError(3),
    "empty": lambda: KeyError(),
    "of two": lambda: KeyError("a", "b"),
    "subclass": lambda: Unknown("z"),
    "lookup": lambda: LookupError("z"),
    "attribute": lambda: AttributeError("z"),
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_errors_of_mappings_that_give_keywords(call: str, error: str, early: bool) -> None:
    """CPython takes KeyErrors for its own since 3.12."""

    def program(x: Any, mapping: Any) -> Any:
        try:
            found = CALLS[call](mapping)
        except Exception as caught:
            found = type(caught), str(caught), caught.__context__
        return x + 1, found

    compiled, x = bolide.compile(program), torch.ones(2)
    for _ in range(2):
        expected = program(x, Raising(ERRORS[error](), early))
        assert compiled(x, Raising(ERRORS[error](), early))[1] == expected[1]
