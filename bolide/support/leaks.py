"""Looks for leaks: what exists only while a program is captured, and is still there, or has come into the program's
hands, when the call is over.

A class whose instances stand for values of the program during a capture is marked `fleeting`. When a compilation is
over (`watched`), none of them may be alive: in what the program will get or write to, in an exception or its traceback,
or in a cache of ours, which would be memory that is never freed. What a capture makes is young for the garbage
collector, so that it is found without looking at all objects there are.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any, TypeVar

from bolide.support import log
from bolide.support.errors import BolideError, Leak
from bolide.support.garbage import collector_paused

_log = log.logger("dynamo")
C = TypeVar("C", bound=type)
_classes: set[type] = set()
_symbols: set[type] = set()
_COLLECTED = (0, 1, 1, 2)  # what is left is young, and cycles through autograd's graph go by parts
_SEARCHED = 3  # objects of one class that a holder is looked for
_LOOKED_AT = 2000  # values in a result, at most
_MET = 500  # objects between a leak and what the program knows, at most


def fleeting(cls: C) -> C:
    """Mark a class, and those derived from it: its instances live only while a program is captured."""
    _classes.add(cls)
    return cls


def symbolic(*classes: type) -> None:
    """Mark classes whose instances live on in graphs, but may never reach the program."""
    _symbols.update(classes)


def is_fleeting(cls: type) -> bool:
    """Whether instances of a class live only while a program is captured."""
    return not _classes.isdisjoint(cls.__mro__)


class _Watch:
    """Who holds the lock `compiling` is the only one to capture. `depth`: how many captures are under way in that
    thread, where a signal handler calls something compiled."""

    depth = 0


@contextlib.contextmanager
def watched(name: str) -> Iterator[None]:
    """Raises Leak when the block, a compilation of `name`, leaves fleeting objects. `compiling` is held."""
    _Watch.depth += 1
    try:
        with collector_paused():
            before = {id(value) for value in living(0)}
            try:
                yield
            finally:
                if _Watch.depth == 1:
                    _refuse_living(name, before)
    finally:
        _Watch.depth -= 1


def _refuse_living(name: str, before: set[int]) -> None:
    new = {id(value) for value in living(0)} - before
    left: list[object] = []
    for generation in _COLLECTED if new else ():
        left = []  # the last ones are held by nothing any more
        gc.collect(generation)
        left = [value for value in living(min(generation + 1, 2)) if id(value) in new]
        if not left:
            return
    way = way_to(_some(left)) if left else None  # asks the whole heap
    if way is not None:
        raise Leak(name, way)
    if left:
        _log.debug("%s: %d objects of its capture are kept by autograd's graph", name, len(left))


def _some(leaks: list[object]) -> list[Any]:
    """A few objects of each class: what leads to one leads to others as well, and looking for many takes minutes."""
    classes: dict[type, list[object]] = {}
    for value in leaks:
        classes.setdefault(type(value), []).append(value)
    return [value for values in classes.values() for value in values[:_SEARCHED]]


def living(generation: int | None = None) -> list[Any]:
    """The fleeting objects that are alive, of one generation of the garbage collector or all."""
    objects = gc.get_objects(generation)
    classes = set(filter(is_fleeting, set(map(type, objects))))
    return list(itertools.compress(objects, map(classes.__contains__, map(type, objects)))) if classes else []


# ---- what the program is given ---------------------------------------------------------------------------------------


def _is_of_torch(symbol: object) -> bool:
    """Whether a size is of torch's making: that of a ragged dimension."""
    return type(getattr(symbol, "node", None)).__module__.startswith("torch.")


def refuse_in(name: str, value: Any, what: str) -> None:
    """Raises Leak where an object, a class or a text of ours is in what a call of `name` gives or raises."""
    if isinstance(value, Leak):
        return
    waiting, seen = [(value, what)], {id(value)}
    for value, way in waiting:
        cls = type(value)
        leaks = is_fleeting(cls) or (cls in _symbols and not _is_of_torch(value))
        leaks |= cls is str and _names().search(value) is not None
        leaks |= isinstance(value, type) and (is_fleeting(value) or value in _symbols)
        if leaks:
            raise Leak(name, f"{_described(value)} is {way}")
        for part, step in _parts(value):
            if id(part) not in seen and len(waiting) < _LOOKED_AT:
                seen.add(id(part))
                waiting.append((part, f"{step} of {way}"))


def _names() -> re.Pattern[str]:
    names = "|".join(sorted(cls.__name__ for cls in _classes if cls.__name__.startswith("Traced")))
    return re.compile(rf"\b({names})\b")


def _parts(value: Any) -> Iterator[tuple[Any, str]]:
    cls = type(value)
    if cls in (list, tuple, set, frozenset):
        yield from ((item, f"item {place}") for place, item in enumerate(value))
    elif cls is dict:
        yield from ((key, "a key") for key in value)
        yield from ((item, f"item {key!r:.40}") for key, item in value.items() if type(key) in (str, int))
    elif isinstance(value, BaseException):
        yield value.args, "args"
        yield value.__dict__, "attributes"
        if not isinstance(value, BolideError):  # whose causes say what capture has met
            yield value.__cause__, "the cause"
            yield value.__context__, "the context"


# ---- what holds a leak -----------------------------------------------------------------------------------------------


def way_to(leaks: list[object]) -> str | None:
    """By what one of these objects is held: from the object to a module, or to a frame that runs. None if nothing that
    Python knows leads to them: C++ holds them in a cycle, or the way is long."""
    met = list(leaks)  # and what leads to them
    held: dict[int, int | None] = {id(value): None for value in met}  # what each holds of these; numbers hold nothing
    frontier = met
    own = {id(leaks), id(met)}
    while frontier and len(met) < _MET:
        own.add(id(frontier))
        behind: list[object] = []
        for holder in gc.get_referrers(*frontier):
            here = isinstance(holder, types.FrameType) and holder.f_code.co_filename == __file__
            if here or id(holder) in held or id(holder) in own:
                continue
            behind.append(holder)
            held[id(holder)] = next((id(part) for part in gc.get_referents(holder) if id(part) in held), None)
            if isinstance(holder, (types.ModuleType, types.FrameType)):
                return _told(holder, held, {id(value): value for value in [*met, *behind]})
        met += behind
        frontier = behind
    return None


def _told(holder: object, held: dict[int, int | None], met: dict[int, object]) -> str:
    """The way from a fleeting object to what holds it."""
    steps = []
    part = held[id(holder)]
    while part is not None:
        steps.append(f"{_place(holder, met[part])} of {_described(holder)}")
        holder, part = met[part], held[part]
    return ", ".join([_described(holder), *reversed(steps)])


def _place(holder: Any, value: Any) -> str:
    places: Any = ()
    if type(holder) in (list, tuple):
        places = enumerate(holder)
    elif type(holder) is dict:
        places = holder.items()
    elif isinstance(holder, types.FrameType):
        places = holder.f_locals.items()
    else:
        names = [name for cls in type(holder).__mro__ for name in vars(cls).get("__slots__", ())]
        places = [(name, getattr(holder, name, None)) for name in names]
    return next((f"{place!r:.60}" for place, item in places if item is value), "a part")


def _described(value: object) -> str:
    if isinstance(value, types.FrameType):
        return f"the frame {value.f_code.co_qualname} (line {value.f_lineno} of {value.f_code.co_filename})"
    if isinstance(value, (types.FunctionType, types.ModuleType, type)):
        return f"{type(value).__name__} {value.__name__}"
    if type(value) is str:
        return f"the text {value!r:.200}"
    return f"{type(value).__module__}.{type(value).__qualname__}"
