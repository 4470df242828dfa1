"""What classes, modules and functions of the outside world hold. Guards of that are many and begin at the objects
themselves: the readable check asks for all of them at once."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from bolide.dynamo.program.captured import Guard
from bolide.dynamo.program.kinds import FUNCTION_PARTS, MISSING, steering

_order = operator.attrgetter("__mro__")


class Held:
    """Called, it says whether guards hold that are about what a class or a module has under a name, or a function as
    one of its parts. It looks whether all of that is what it was when it was made, and asks each guard only where it is
    not. It runs no code of the program's. `guards`: those that are asked for; those that did not hold are not.
    """

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = [guard for guard in guards if _holds(guard)]
        self.parts: tuple[list[Any], list[str], list[Any]] = ([], [], [])
        self.orders: dict[type, tuple[type, ...]] = {}
        self.names: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id of the namespace's owner
        for guard in self.guards:
            self._note(guard)
        reads = [(at.get, name, value) for at, values in self.names.values() for name, value in values.items()]
        self.present = [read for read in reads if read[2] is not MISSING]
        self.absent = [
            (at.keys(), missing)
            for at, values in self.names.values()
            if (missing := frozenset(name for name, value in values.items() if value is MISSING))
        ]

    def _note(self, guard: Guard) -> None:
        """What the guard depends on, as it is now."""
        source: Any = guard.source
        match guard.kind, source.kind:
            case "is", "attr":
                for items, item in zip(self.parts, (source.base.obj, source.key, guard.expected)):
                    items.append(item)
            case "is", _:
                self._note_name(source.obj, source.obj, source.key[1])
            case "has_key", _:
                self._note_name(source.obj, source.obj, guard.expected[0])
            case _:
                order = self.orders[source.obj] = source.obj.__mro__
                after, name = guard.expected.after, guard.expected.name
                for base in order if after is None else order[order.index(after) + 1 :]:
                    self._note_name(base, base.__dict__, name)
                    if name in base.__dict__:
                        break

    def _note_name(self, owner: Any, namespace: Any, name: str) -> None:
        self.names.setdefault(id(owner), (namespace, {}))[1][name] = namespace.get(name, MISSING)

    def __call__(self) -> bool:
        return self._is_unchanged() or all(map(_holds, self.guards))

    def _is_unchanged(self) -> bool:
        for get, name, value in self.present:
            if get(name, MISSING) is not value:
                return False
        for keys, missing in self.absent:
            if not keys.isdisjoint(missing):
                return False
        functions, names, values = self.parts
        same = all(map(operator.is_, map(getattr, functions, names), values))
        return same and all(map(operator.eq, map(_order, self.orders), self.orders.values()))


def _holds(guard: Guard) -> bool:
    """Whether a guard is of these kinds and holds."""
    test = _TESTS.get((guard.kind, guard.source.kind)) if guard.source is not None else None
    return test is not None and test(guard.source, guard.expected)


def _module_lacks(source: Any, expected: Any) -> bool:
    key, present = expected
    return type(source.obj) is dict and type(key) is str and not present and key not in source.obj


def _function_has(source: Any, expected: Any) -> bool:
    base = source.base
    known = source.key in FUNCTION_PARTS and base.kind == "object" and type(base.obj) is types.FunctionType
    return known and getattr(base.obj, source.key) is expected


_TESTS: dict[tuple[str, str], Callable[[Any, Any], bool]] = {
    ("class_attr", "object"): lambda of, wanted: steering(of.obj, wanted.name, wanted.after) is wanted.value,
    ("is", "global"): lambda of, wanted: type(of.obj) is dict and of.obj.get(of.key[1], MISSING) is wanted,
    ("has_key", "object"): _module_lacks,
    ("is", "attr"): _function_has,
}
