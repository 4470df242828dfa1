"""The iterators in C that generators among the polyfills stand for: what the program sees them as, and what they are
made of when they leave it."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bolide.dynamo.polyfills import generators, generic, iteration
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.iterators import advance, restored


class Original(NamedTuple):
    """`make(*values)` gives the iterator, of the values of these variables of a suspended polyfill, and `body(*values)`
    one that is interpreted; `empty`: a function and arguments that give one which is exhausted."""

    body: Any
    cls: type
    make: Callable[..., Iterator[Any]]
    variables: tuple[str, ...]
    empty: tuple[Any, ...]


def _map(function: Any, iterators: list[Any]) -> Iterator[Any]:
    return map(function, *iterators)


def _zip(iterators: list[Any], strict: Any) -> Iterator[Any]:
    return zip(*iterators, strict=strict)


def _zip_longest(iterators: list[Any], alive: list[bool], fillvalue: object) -> Iterator[Any]:
    rest = [iterator if goes_on else () for iterator, goes_on in zip(iterators, alive)]
    return itertools.zip_longest(*rest, fillvalue=fillvalue)


def _islice(iterator: Any, skipped: int, left: int | None, step: int) -> Iterator[Any]:
    return itertools.islice(iterator, skipped if left is None else min(skipped, left), left, step)


def _accumulate(iterator: Any, function: Any, total: Any, begun: bool) -> Iterator[Any]:
    if total is iteration.NOTHING:
        return itertools.accumulate(iterator, function)
    if not begun:
        return itertools.accumulate(iterator, function, initial=total)
    iterator_in_c = itertools.accumulate(itertools.chain((total,), iterator), function)
    advance(iterator_in_c, 1)
    return iterator_in_c


def _reversed(sequence: object, index: int) -> Iterator[Any]:
    return restored(reversed, (sequence,), index)  # type: ignore[no-any-return]


def _chain(rest: object, active: object) -> Iterator[Any]:
    return restored(itertools.chain, (), (rest, active))  # type: ignore[no-any-return]


def _cycle(iterator: object, saved: list[Any], again: bool) -> Iterator[Any]:
    return restored(itertools.cycle, (iterator,), (saved, again))  # type: ignore[no-any-return]


def _itself(iterator: Any) -> Iterator[Any]:
    return iterator  # type: ignore[no-any-return]


def _nothing() -> Iterator[Any]:
    yield from ()


_UNTIL: type = type(iter(int, 1))
_OF_TWO = ("function", "iterator")
_TESTING = ("predicate", "iterator")
_FACTS: tuple[tuple[Any, type, Any, tuple[str, ...], tuple[Any, ...]], ...] = (
    (generators.step, types.GeneratorType, _itself, ("iterator",), ()),
    (generators.delegate, types.GeneratorType, _itself, ("iterator",), ()),
    (generic._map, map, _map, ("function", "iterators"), (None, ())),
    (generic._filter, filter, filter, _OF_TWO, (None, ())),
    (generic._zip, zip, _zip, ("iterators", "strict"), ()),
    (generic._enumerate, enumerate, enumerate, ("iterator", "count"), ((),)),
    (generic._reversed, reversed, _reversed, ("sequence", "index"), (range(0),)),
    (iteration._until, _UNTIL, iter, ("function", "sentinel"), (tuple, ())),
    (iteration._accumulate, itertools.accumulate, _accumulate, ("iterator", "func", "total", "begun"), ((),)),
    (iteration._chain, itertools.chain, _chain, ("rest", "active"), ()),
    (iteration._compress, itertools.compress, itertools.compress, ("data", "selectors"), ((), ())),
    (iteration._count, itertools.count, itertools.count, ("following", "step"), ()),
    (iteration._cycle, itertools.cycle, _cycle, ("iterator", "saved", "again"), ((),)),
    (iteration._dropwhile, itertools.dropwhile, itertools.dropwhile, _TESTING, (None, ())),
    (iteration._takewhile, itertools.takewhile, itertools.takewhile, _TESTING, (None, ())),
    (iteration._filterfalse, itertools.filterfalse, itertools.filterfalse, _TESTING, (None, ())),
    (iteration._islice, itertools.islice, _islice, ("iterator", "skipped", "left", "step"), ((), 0)),
    (iteration._starmap, itertools.starmap, itertools.starmap, _OF_TWO, (None, ())),
    (iteration._zip_longest, itertools.zip_longest, _zip_longest, ("iterators", "alive", "fillvalue"), ()),
)
#: What makes the exhausted ones of classes that cannot be called.
_MAKERS: dict[type, Any] = {_UNTIL: iter, types.GeneratorType: _nothing}
_ORIGINALS: dict[types.CodeType, Original] = {
    body.__code__: Original(body, cls, make, variables, (_MAKERS.get(cls, cls), *empty))
    for body, cls, make, variables, empty in _FACTS
}
_ENDED_BY_ERRORS = (generators.step, generators.delegate, generic._reversed, iteration._islice, iteration._zip_longest)

#: Code of generators that an exception leaves as they are: they begin anew with their variables as these are by then.
LASTING = frozenset(
    {*_ORIGINALS, *(body.__code__ for body in (iteration._groupby, iteration._group, iteration._branch))}
    - {body.__code__ for body in _ENDED_BY_ERRORS}
)
#: Code of suspended frames of which all variables are kept.
BODIES = LASTING | frozenset(_ORIGINALS)


def original_of(generator: Generator) -> Original | None:
    """What a generator stands for, if it is a polyfill's."""
    return _ORIGINALS.get(generator.frame.code.code)


def values_of(generator: Generator) -> list[Any]:
    """The values that a suspended polyfill stands for an iterator with."""
    original, frame = original_of(generator), generator.frame
    assert original is not None
    return [frame.locals[frame.code.locals_names.index(name)] for name in original.variables]


_NOT_BEGUN: dict[str, Any] = {
    **dict.fromkeys(("iterators", "sequence", "alive"), ()),
    **dict.fromkeys(("strict", "begun", "again"), False),
    **dict.fromkeys(("count", "skipped", "left"), 0),
    "total": iteration.NOTHING,
    "index": -1,
    "step": 1,
}
_ITERATORS = ("iterator", "rest", "active", "data", "selectors")


def begun(iterator: Iterator[object]) -> Iterator[object]:
    """What an iterator in C goes on with: it asks for an iterator, and those of the program may begin anew then."""
    method = getattr(type(iterator), "__iter__", None)
    return generic.drawn(iterator) if type(method) is types.FunctionType else iterator


def all_begun(iterators: list[Iterator[object]]) -> list[Iterator[object]]:
    """`begun`, of several."""
    return list(map(begun, iterators))


def begun_of(original: Original) -> list[Callable[..., object] | None]:
    """What is made of each variable in front of `make`, where something is."""
    made: dict[str, Callable[..., object]] = {"iterators": all_begun, **dict.fromkeys(_ITERATORS, begun)}
    return [None] if original.make is _itself else [made.get(name) for name in original.variables]


def remaking(generator: Generator) -> tuple[Any, list[Any]]:
    """A polyfill and arguments which make what stands for another iterator like that of a generator."""
    original = original_of(generator)
    assert original is not None
    if not generator.done:
        return original.body, values_of(generator)
    if original.cls is _UNTIL:
        return original.body, [tuple, ()]
    return original.body, [iter(()) if name in _ITERATORS else _ended(name) for name in original.variables]


def _ended(name: str) -> object:
    """A variable of a polyfill that gives nothing any more."""
    return [] if name == "saved" else _NOT_BEGUN.get(name)
