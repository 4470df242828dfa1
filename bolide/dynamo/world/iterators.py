"""Native iterators: how one that the program made is rebuilt, and how one of the outside world is read without being
consumed while capturing."""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from bolide.dynamo.program.captured import Source
from bolide.dynamo.world.parts import Reading
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting

END: Any = type("End", (), {"__repr__": lambda self: "<end>", "__slots__": ()})()

_MADE_BY_ITER: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", "é", b"", bytearray(), {}, set())
_MADE_BY_VIEWS: tuple[Any, ...] = ({}.values(), {}.items())
_MADE_BY_REVERSED: tuple[Any, ...] = ([], {}, *_MADE_BY_VIEWS)
#: Iterators whose `__reduce__` says all of their state, and which run no code of the program.
REDUCIBLE: frozenset[type] = frozenset(
    [type(iter(example)) for example in (*_MADE_BY_ITER, *_MADE_BY_VIEWS)]
    + [type(reversed(example)) for example in _MADE_BY_REVERSED]
    + [enumerate, zip, reversed, itertools.count, itertools.cycle, itertools.repeat, itertools.islice]
    + [itertools.chain, itertools.product, itertools.permutations, itertools.combinations]
    + [itertools.combinations_with_replacement, itertools.zip_longest, itertools.compress]
)
#: The same of those that call functions.
CALLING: frozenset[type] = frozenset(
    {map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse}
    | {itertools.accumulate}
)
#: To pickle them warns in 3.12.
_DEPRECATED = frozenset(cls for cls in REDUCIBLE | CALLING if cls.__module__ == "itertools")

_FORMS = [(name, backwards) for name in ("keys", "values", "items") for backwards in (False, True)]


def _over_dict(owner: dict[object, object], name: str, backwards: bool) -> Iterator[object]:
    view = getattr(dict, name)(owner)
    return reversed(view) if backwards else iter(view)


DICT_ITERATORS: dict[type, tuple[str, bool]] = {type(_over_dict({}, *form)): form for form in _FORMS}


def dict_iterator(owner: dict[object, object], name: str, backwards: bool, drawn: int) -> Iterator[object]:
    """An iterator over a dict that has given `drawn` of its items."""
    iterator = _over_dict(owner, name, backwards)
    advance(iterator, drawn)
    return iterator


SET_ITERATOR: type = type(iter(set()))


def set_iterator(owner: set[object], rest: list[object]) -> Iterator[object]:
    """An iterator over a set that is still to give `rest`; where the set has another order, one over that list."""
    drawn = len(owner) - len(rest)
    if all(map(operator.is_, list(set.__iter__(owner))[drawn:], rest)):
        iterator = set.__iter__(owner)
        advance(iterator, drawn)
        return iterator
    return iter(rest)


def reduced(iterator: Any) -> tuple[Any, ...]:
    """(function, arguments, state or None) that make an equal iterator, which shares what it iterates over."""
    if type(iterator) in _DEPRECATED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function, args, *state = iterator.__reduce__()
    else:
        function, args, *state = iterator.__reduce__()
    return function, args, state[0] if state else None


def restored(function: Any, args: Any, state: object) -> Any:
    """The inverse of `reduced`."""
    iterator = function(*args)
    if state is not None:
        set_position(iterator, state)
    return iterator


def set_position(iterator: Any, state: Any) -> None:
    """Put an iterator where `reduced` has found another one."""
    if type(iterator) not in _DEPRECATED:
        iterator.__setstate__(state)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator.__setstate__(state)


def _drawn_from(iterator: object) -> list[Any]:
    """The iterators that an iterator draws from: not those that are among the items it gives."""
    if type(iterator) is itertools.repeat:
        return []
    _, args, state = reduced(iterator)
    parts = (*args, *state) if type(state) is tuple and type(iterator) is not itertools.zip_longest else args
    return [part for part in parts if type(part) in REDUCIBLE]


def _clone(iterator: object, clones: dict[int, Any]) -> Any:
    """A copy of an iterator and of those that it draws from; `clones` are those made so far (``zip(it, it)``)."""
    if id(iterator) not in clones:
        own = {id(part): _clone(part, clones) for part in _drawn_from(iterator)}
        function, args, state = reduced(iterator)
        if function is itertools.cycle:  # it notes in a list of its own what it has given
            state = (list(state[0]), state[1])
        args = tuple([own.get(id(part), part) for part in args])
        if type(state) is tuple:
            state = tuple([own.get(id(part), part) for part in state])
        clones[id(iterator)] = restored(function, args, state)
    return clones[id(iterator)]


_SOURCES = frozenset([type(iter(())), type(iter([]))])  # of what a chain goes over, which can be seen ahead
_ITERABLES = frozenset([list, tuple, range, str, bytes, bytearray, dict, set, frozenset, collections.deque])


def is_readable(iterator: object) -> bool:
    """Whether `peek` can read an iterator: it and those that it draws from can be copied; no code of a class is run."""
    if type(iterator) not in REDUCIBLE:
        return False
    try:
        steps = reduced(iterator)[1:]
    except RuntimeError:  # what it iterates over has changed
        return False
    parts = [part for step in steps if type(step) is tuple for part in step]
    if type(iterator) is itertools.chain and parts:
        if type(parts[0]) not in _SOURCES:
            return False
        return all(type(to_come) in _ITERABLES for to_come in _clone(parts[0], {})) and all(map(is_readable, parts))
    if type(iterator) is reversed and not all(type(part) in _ITERABLES for part in parts):
        return False
    return all(not isinstance(part, Iterator) or is_readable(part) for part in parts)


def peek(iterator: object, ahead: int) -> Any:
    """The item that the iterator will give after `ahead` others, or END; the iterator stays as it is."""
    return next(itertools.islice(_clone(iterator, {}), ahead, None), END)


def advance(iterator: Iterator[object], count: int) -> None:
    """Take `count` items, or all there are."""
    next(itertools.islice(iterator, count, count), None)


def _family(iterator: object) -> list[Any]:
    """An iterator and those that it draws from."""
    return [iterator, *(each for part in _drawn_from(iterator) for each in _family(part))]


def left_in(iterator: object) -> int:
    """How many items an iterator says it is still to give."""
    return operator.length_hint(iterator)


def _gone_over(iterator: object) -> list[Any]:
    """What an iterator goes over itself, now or, as a chain does, later."""
    parts = [part for part in gc.get_referents(iterator) if type(part) not in REDUCIBLE]
    if type(iterator) is itertools.chain:
        sources = reduced(iterator)[2] or ()
        parts += [part for source in sources[:1] for part in _clone(source, {})]
    return parts


OF_ITERATORS: dict[str, Callable[..., object]] = {"__iter__": iter, "__next__": next}
"""Methods of iterators, and what does the same."""


@fleeting
class Stream:
    """An iterator of the outside world, which the program draws from: it takes this for the real one. `taken` says how
    often it did."""

    __slots__ = ("family", "real", "source", "taken", "world")

    def __init__(self, world: Reading, real: object, source: Source) -> None:
        self.real, self.source, self.taken = real, source, 0
        self.family = _family(real)
        for other in world.journal.streams:
            if any(mine is its for mine in self.family for its in other.family):
                reason = "two iterators from before a break draw from the same one"
                raise world.guards.refusal("iterator", reason, "use one of them up")
        self.world: Reading | None = world

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> object:
        """Guards each item when it is drawn, and the end when it is found, but not how far the iterator was before."""
        world = self.world
        if world is None:
            raise StopIteration
        if any(world.journal.is_written(part) for each in self.family for part in _gone_over(each)):
            reason = "an iterator goes on over what has been written to since the break in front"
            raise world.guards.refusal("iterator", reason, "iterate over a copy")
        item = peek(self.real, self.taken)
        source = Source("apply", self.source, (self.taken,), peek)
        self.taken += 1
        if item is END:
            world.program.fix_count(self.source, self.taken)
            world.guards.add(source, "is", END)
            self.close()
            raise StopIteration
        return world.wrap(item, source)

    def close(self) -> None:
        """Nothing more is drawn. (No generator: its `close` leaves its variables alone in some versions of Python.)"""
        self.world = None

    def __repr__(self) -> str:
        raise Unsupported("the text of an iterator from outside", kind="iterator")
