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
    """`make(*values)` gives the iterator, of the values of these variables of a suspended polyfill; `empty` one that is
    exhausted."""

    cls: type
    make: Callable[..., Iterator[Any]]
    variables: tuple[str, ...]
    empty: tuple[Any, ...]


def _map(function: Any, iterators: list[Any]) -> Iterator[Any]:
    return map(function, *iterators)


def _zip(iterators: list[Any], strict: Any) -> Iterator[Any]:
    return zip(*iterators, strict=strict)


def _zip_longest(iterators: list[Any], alive: list[bool], fillvalue: Any) -> Iterator[Any]:
    rest = [iterator if goes_on else () for iterator, goes_on in zip(iterators, alive)]
    return itertools.zip_longest(*rest, fillvalue=fillvalue)


def _islice(iterator: Any, skipped: int, left: int | None, step: int) -> Iterator[Any]:
    return itertools.islice(iterator, skipped if left is None else min(skipped, left), left, step)


def _accumulate(iterator: Any, function: Any, total: Any, begun: bool) -> Iterator[Any]:
    if total is iteration.NOTHING:
        return itertools.accumulate(iterator, function)
    if not begun:
        return itertools.accumulate(iterator, function, initial=total)
    made = itertools.accumulate(itertools.chain((total,), iterator), function)
    advance(made, 1)
    return made


def _reversed(sequence: Any, index: int) -> Iterator[Any]:
    return restored(reversed, (sequence,), index)  # type: ignore[no-any-return]


def _chain(rest: Any, active: Any) -> Iterator[Any]:
    return restored(itertools.chain, (), (rest, active))  # type: ignore[no-any-return]


def _cycle(iterator: Any, saved: list[Any], again: bool) -> Iterator[Any]:
    return restored(itertools.cycle, (iterator,), (saved, again))  # type: ignore[no-any-return]


def _itself(iterator: Any) -> Iterator[Any]:
    return iterator  # type: ignore[no-any-return]


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
_ORIGINALS: dict[types.CodeType, Original] = {
    body.__code__: Original(cls, make, variables, empty) for body, cls, make, variables, empty in _FACTS
}


#: Code of suspended frames of which all variables are kept.
BODIES = frozenset(_ORIGINALS)


def original_of(generator: Generator) -> Original | None:
    """What a generator stands for, if it is a polyfill's."""
    return _ORIGINALS.get(generator.frame.code.code)
