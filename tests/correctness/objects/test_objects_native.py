"""Objects of classes in C, and of classes derived from those, that come from outside: what is asked of them is guarded,
or a break."""

from __future__ import annotations

import array
import collections
import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import bolide
from bolide.support.errors import BolideWarning

NO_ATTRIBUTE: Any = vars(inspect)["_sentinel"]


class Row(tuple[Any, ...]):
    pass


class Cut(tuple[Any, ...]):
    """Its own methods are asked, and only by the program."""

    asked = 0

    def __len__(self) -> int:
        Cut.asked += 1
        return 1

    def __getitem__(self, index: Any) -> Any:
        Cut.asked += 1
        return 5


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Tagged(int):
    def __init__(self, value: int) -> None:
        self.tag = "tag"


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "len": lambda x, t: x + len(t),
    "bool": lambda x, t: x + 1 if t else x - 1,
    "not": lambda x, t: x + 1 if not t else x - 1,
    "and": lambda x, t: x + 1 if t and len(t) > 1 else x - 1,
    "truth": lambda x, t: (x, operator.truth(t), bool(t), any([t]), len(list(filter(None, [t])))),
    "iteration": lambda x, t: [x + len(str(item)) for item in t],
    "in": lambda x, t: x + 1 if 2 in t else x - 1,
    "unpacked": lambda x, t: (x, *t),
    "tuple": lambda x, t: (x, tuple(t), list(t)),
}
SEQUENCES: dict[str, Callable[[Any, Any], Any]] = {
    "last": lambda x, t: x + t[-1] if tuple.__len__(t) else x,
    "slice": lambda x, t: (x, t[1:], tuple.__getitem__(t, slice(2))),
}


def check(program: Callable[[Any, Any], Any], values: list[Any], fullgraph: bool = False) -> Any:
    compiled: Any = bolide.compile(program, fullgraph=fullgraph)
    for value in values:
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, value), program(x, value), rtol=0, atol=0)
    return compiled


@pytest.mark.parametrize("question", [*QUESTIONS, *SEQUENCES])
@pytest.mark.parametrize("cls", [Row, Cut])
def test_the_length_of_a_tuple_of_a_class_of_its_own(cls: Any, question: str) -> None:
    program = (QUESTIONS | SEQUENCES)[question]
    check(program, [cls(range(size)) for size in (3, 2, 3, 0, 1, 4, 3, 2)], fullgraph=True)


def test_guards_ask_no_method_of_a_tuple() -> None:
    compiled = check(lambda x, t: x + sum(tuple.__iter__(t)), [Cut([1, 2]), Cut([1, 2]), Cut([1, 2, 3])])
    before = Cut.asked
    compiled(torch.ones(3), Cut([1, 2]))
    assert Cut.asked == before


def test_a_namedtuple_that_has_been_made_too_long() -> None:
    check(lambda x, t: x + len(t), [Pair(1, 2), tuple.__new__(Pair, [1, 2, 3]), Pair(1, 2)], fullgraph=True)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "keys": lambda d: d.keys(),
    "values": lambda d: d.values(),
    "items": lambda d: d.items(),
}


@pytest.mark.parametrize("question", [*QUESTIONS])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
def test_views_of_dicts(cls: Any, view: str, question: str) -> None:
    tables = [cls(zip(range(size), range(9))) for size in (0, 1, 0, 3, 4, 2, 3)]
    check(QUESTIONS[question], [VIEWS[view](table) for table in tables], fullgraph=True)


def test_a_view_sees_what_the_program_writes() -> None:
    def program(x: Any, table: dict[str, int], view: Any) -> Any:
        before = list(view)
        table["new"] = len(before)
        return x + len(view), before, list(view), view

    compiled = bolide.compile(program, fullgraph=True)
    for size in (1, 3, 2):
        x, mine, theirs = torch.randn(2), dict.fromkeys("abc"[:size], 1), dict.fromkeys("abc"[:size], 1)
        got, wanted = compiled(x, mine, given := mine.items()), program(x, theirs, theirs.items())
        assert torch.equal(got[0], wanted[0])
        assert got[1:3] == wanted[1:3]
        assert mine == theirs
        assert got[3] is given


def test_a_view_of_the_namespace_of_an_object() -> None:
    class Thing:
        kind = 1

    def program(x: Any, thing: Any, view: Any) -> Any:
        thing.late = 3
        return x + len(view), sorted(view), "late" in view

    compiled = bolide.compile(program)
    for _ in range(3):
        x, mine, theirs = torch.randn(2), Thing(), Thing()
        assert compiled(x, mine, vars(mine).keys())[1:] == program(x, theirs, vars(theirs).keys())[1:]


def test_a_view_of_the_namespace_of_a_class_is_not_looked_into() -> None:
    with pytest.warns(BolideWarning, match="a view of a namespace is read"):
        check(QUESTIONS["len"], [vars(type("Made", (), {})).keys(), vars(type("Made", (), {"late": 1})).keys()])


OBJECTS: dict[str, Callable[[int], Any]] = {
    "array": lambda size: array.array("i", range(size)),
    "memoryview": lambda size: memoryview(bytes(size)),
    "element": lambda size: _element(size),
    "storage": lambda size: torch.zeros(size, dtype=torch.uint8).untyped_storage(),
    "int": Tagged,
}


def _element(size: int) -> Any:
    made = ElementTree.Element("made")
    made.extend([ElementTree.Element("part") for _ in range(size)])
    return made


@pytest.mark.filterwarnings("ignore:.*truth value of an Element")
@pytest.mark.filterwarnings("ignore:Testing an element")
@pytest.mark.parametrize("question", ["bool", "not", "truth"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_the_truth_of_an_object_in_c(kind: str, question: str) -> None:
    check(QUESTIONS[question], [OBJECTS[kind](size) for size in (0, 1, 0, 2)])


class Held:
    pass


MARK, THING, OTHER = object(), Held(), Held()


def with_defaults(a: Any, mark: Any = MARK, thing: Any = THING) -> Any:
    return a


class Described:
    size = 3

    def __init__(self) -> None:
        self.own = THING

    @property
    def double(self) -> int:
        return 6


ANSWERED: dict[str, Callable[[Any, Any], Any]] = {
    "a parameter's default": lambda x, s: (x, inspect.signature(with_defaults).parameters["thing"].default is s),
    "a parameter's marker": lambda x, s: (x, inspect.signature(with_defaults).parameters["mark"].default is MARK),
    "is not": lambda x, s: (x, s is not inspect.signature(with_defaults).parameters["thing"].default),
    "equal": lambda x, s: (x, inspect.signature(with_defaults).parameters["thing"].default == s),
    "unequal": lambda x, s: (x, s != inspect.signature(with_defaults).parameters["thing"].default),
    "a default's tuple": lambda x, s: (x, inspect.getfullargspec(with_defaults).defaults[1] is s),
    "given": lambda x, s: (x, inspect.getcallargs(with_defaults, 1)["thing"] is s),
    "in a list": lambda x, s: (x, inspect.getcallargs(with_defaults, 1)["thing"] in [s]),
    "a key": lambda x, s: (x, {s: 4}.get(inspect.getcallargs(with_defaults, 1)["thing"])),
    "a branch": lambda x, s: x + 1 if inspect.getcallargs(with_defaults, 1)["mark"] is MARK else x - 1,
}


@pytest.mark.parametrize("name", ANSWERED)
def test_objects_that_native_code_answers_are_those_found_outside(name: str) -> None:
    program = ANSWERED[name]
    compiled = bolide.compile(program, fullgraph=True)
    x = torch.randn(3)
    for given in (THING, THING, OTHER):
        torch.testing.assert_close(compiled(x, given), program(x, given))


STATIC: dict[str, Callable[[Any, Any], Any]] = {
    "a property": lambda x, o: (x, inspect.getattr_static(o, "double") is Described.double),
    "of a class": lambda x, o: (x, inspect.getattr_static(type(o), "double") is Described.double),
    "a value": lambda x, o: x + inspect.getattr_static(o, "size"),
    "its own": lambda x, o: (x, inspect.getattr_static(o, "own") is THING),
    "none": lambda x, o: (x, inspect.getattr_static(o, "none", MARK) is MARK),
    "a marker": lambda x, o: (x, vars(inspect)["_shadowed_dict"](type(o)) is NO_ATTRIBUTE),
    "a marker of a metaclass": lambda x, o: (x, vars(inspect)["_shadowed_dict"](type(type(o))) is NO_ATTRIBUTE),
}


@pytest.mark.parametrize("name", STATIC)
def test_attributes_that_are_read_without_descriptors(name: str) -> None:
    program = STATIC[name]
    compiled = bolide.compile(program, fullgraph=True)
    x, thing = torch.randn(3), Described()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BolideWarning)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, thing), program(x, thing))
        thing.own = thing.size = OTHER if name == "its own" else 5
        torch.testing.assert_close(compiled(x, thing), program(x, thing))
