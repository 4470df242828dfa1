"""The check of an entry: whether a call fits the guards, and the values of the outside world that the entry needs.

A check is a function of the values of the entry's names (the tuple of ``*args`` and the dict of ``**kwargs`` as
themselves) that answers None, or a new list of the wanted values. There are two forms with one verdict: the readable
one, generated Python, and the native one (`native.py`), which is recorded (`pins.py`) when a call has passed the
readable one, answers at once while memory is as it was, and otherwise asks the readable one again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from bolide.dynamo import guards as guard_module
from bolide.dynamo import native, pins
from bolide.dynamo.config import config
from bolide.dynamo.layout import layout
from bolide.dynamo.program import Guard, Source
from bolide.dynamo.sources import Namespace, Reader, count_uses

FIRST_RECORDING = 2  # the passing call after which a recording is made
SETTLED = 32  # after so many passes a change is an event; before, it is a habit
MOST_PROGRAMS = 64  # for so many different objects under one name
MOST_RECORDINGS = 12  # in a row that did not settle; then the readable check stays


def readable(
    names: Sequence[str], guards: Sequence[Guard], wanted: Sequence[Source], title: str
) -> tuple[str, Callable[..., Any]]:
    """The text of the check in Python, and the function."""
    namespace = Namespace(names)
    needed = [source for guard in guards for source in guard_module.read_sources(guard)]
    reader = Reader(namespace, count_uses([*needed, *wanted]), guard_module.plain_dicts(guards))
    checks = [check for guard in guards for check in guard_module.conditions(guard, reader)] or ["True"]
    hit = namespace.fresh("hit")
    lines = [
        f"def check({', '.join(names)}):",
        "    try:",
        f"        {hit} = ({(chr(10) + ' ' * 16 + 'and ').join(checks)})",
        f"    except {namespace.reference(Exception, 'Exception')}:",
        f"        {hit} = False",
        f"    if not {hit}:",
        "        return None",
        f"    return [{', '.join(map(reader.read, wanted))}]",
    ]
    source = "\n".join(lines) + "\n"
    exec(compile(source, f"<bolide {title} check>", "exec", dont_inherit=True), namespace.values)
    return source, namespace.values.pop("check")


class Check:
    """One check in both forms. `install(function)` is called with each new form of it, the first one at once.

    names: of the values that it is called with; containers: those of them that are the tuple of ``*args`` or the dict
    of ``**kwargs``, new in each call.
    """

    def __init__(
        self,
        names: Sequence[str],
        containers: Sequence[str],
        guards: Sequence[Guard],
        wanted: Sequence[Source],
        title: str,
        install: Callable[[Callable[..., Any]], None],
    ) -> None:
        self.names, self.containers, self.guards, self.wanted, self.title = names, containers, guards, wanted, title
        self.install = install
        self.source, self.readable = readable(names, guards, wanted, title)
        self.habits = pins.Habits()
        self.records: list[tuple[pins.Record, list[weakref.ref[Any]]]] = []
        self.passes = 0
        self.unsettled = 0
        self.deaths = 0
        install(self.slow if config.enable_cpp_guard_manager and layout() is not None else self.readable)

    def slow(self, *values: Any) -> Any:
        """The readable check, and after it has passed a recording."""
        found = self.readable(*values)
        if found is not None:
            self.passes += 1
            if self.passes >= FIRST_RECORDING:
                self.record(values)
        return found

    def record(self, values: Sequence[Any]) -> None:
        """Make native programs for this call and, again, for those of earlier calls that were of other objects."""
        now = self._record(values)
        before = next((record for record, _ in self.records if record.roots == now.roots), None)
        if before is not None and before.program.passes < SETTLED:
            self.unsettled += 1
            changes = list(pins.changed(before, now))
            for kind, source in changes:
                getattr(self.habits, kind).add(source)
            now = self._record(values) if changes else now
        elif before is not None:
            self.unsettled = 0
        if self._forget_dead(now):
            now = self._record(values)
        if self.unsettled > MOST_RECORDINGS:
            self.records = []
            self.install(self.readable)
            return
        kept = [(record, roots) for record, roots in self.records if record.roots != now.roots]
        self.records = [(now, self._references(now, values)), *kept[: MOST_PROGRAMS - 1]]
        found = layout()
        assert found is not None
        programs = [record.program for record, _ in self.records]
        self.install(native.make_check(found, len(self.names), programs, self.slow))

    def _record(self, values: Sequence[Any]) -> pins.Record:
        found = layout()
        assert found is not None
        return pins.record(
            found, self.names, self.containers, values, self.guards, self.wanted, self.habits, self._rest
        )

    def _rest(self, guards: Sequence[Guard], wanted: Sequence[Source]) -> Callable[..., Any]:
        return readable(self.names, guards, wanted, self.title)[1]

    def _references(self, record: pins.Record, values: Sequence[Any]) -> list[weakref.ref[Any]]:
        """To the objects that a program is for."""
        ids = set(record.roots.values())
        return [weakref.ref(value) for value in values if id(value) in ids and _can_be_watched(value)]

    def _forget_dead(self, now: pins.Record) -> bool:
        """Drop the programs of objects that are gone. When that happens again and again, names whose objects change
        are no longer followed; True if they were until now.
        """
        alive = [(record, roots) for record, roots in self.records if all(root() is not None for root in roots)]
        self.deaths += len(self.records) - len(alive)
        crowded = len(alive) >= MOST_PROGRAMS
        if self.deaths < 3 and not crowded:
            self.records = alive
            return False
        fresh = {
            s for record, _ in self.records for s in now.roots if record.roots.get(s, now.roots[s]) != now.roots[s]
        }
        self.records, self.deaths = ([] if fresh else alive), 0
        self.habits.values |= fresh
        return bool(fresh)


def _can_be_watched(value: Any) -> bool:
    return bool(type(value).__weakrefoffset__)
