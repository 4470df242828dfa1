"""The check of an entry: whether a call fits the guards, and the values of the outside world that the entry needs.

A check is a function of the values of the entry's names (the tuple of ``*args`` and the dict of ``**kwargs`` as
themselves) that answers None, or a new list of the wanted values. There are two forms with one verdict: the readable
one, generated Python, and the native one (`native.py`), which is recorded (`pins.py`) when a call has passed the
readable one, answers at once while memory is as it was, and otherwise asks the readable one again.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence

import torch

from bolide.dynamo.config import config
from bolide.dynamo.guards import asked
from bolide.dynamo.guards import texts as guard_module
from bolide.dynamo.guards.held import Held
from bolide.dynamo.native import native, pins
from bolide.dynamo.native.layout import Layout, layout
from bolide.dynamo.native.notes import Habits
from bolide.dynamo.native.proof import proved, underway
from bolide.dynamo.program.captured import Guard, Source
from bolide.dynamo.program.sources import Namespace, Reader, count_uses
from bolide.support.errors import BolideWarning, CompileError, describe
from bolide.support.garbage import collector_paused
from bolide.tracing import modes

FIRST_CALLS = 4  # before so many the check is not generated, which takes longer than asking its guards
FIRST_RECORDING = 2  # the passing call after which a recording is made
SETTLED = 32  # after so many passes a change is an event; before, it is a habit
MOST_PROGRAMS = 64  # for so many different objects under one name
MOST_DEATHS = 2  # of objects under one name; then they are taken to be new in each call
MOST_RECORDINGS = 12  # in a row that did not settle; then the readable check stays


def readable(
    names: Sequence[str], guards: Sequence[Guard], wanted: Sequence[Source], title: str
) -> tuple[str, native.Form]:
    """The text of the check in Python, and the function."""
    namespace = Namespace(names)
    held = Held(guards)
    together = set(map(id, held.guards))
    single = [guard for guard in guards if id(guard) not in together]
    needed = [source for guard in single for source in guard_module.read_sources(guard)]
    reader = Reader(namespace, count_uses([*needed, *wanted]), guard_module.classes_of(guards))
    checks: list[str] = []
    for guard in guards:
        if id(guard) not in together:
            checks += guard_module.conditions(guard, reader)
        elif guard is held.guards[0]:
            checks.append(f"{namespace.reference(held, 'held')}()")
    checks = checks or ["True"]
    hit = namespace.fresh("hit")
    lines = [
        "try:",
        f"    {hit} = ({(chr(10) + ' ' * 16 + 'and ').join(checks)})",
        f"except {namespace.reference(Exception, 'Exception')}:",
        f"    {hit} = False",
        f"if not {hit}:",
        "    return None",
        f"return [{', '.join(map(reader.read, wanted))}]",
    ]
    body = "".join(f"    {line}\n" for line in _under_functions(guards, namespace, lines))
    source = f"def check({', '.join(names)}):\n{body}"
    exec(compile(source, f"<bolide {title} check>", "exec", dont_inherit=True), namespace.values)
    return source, namespace.values.pop("check")


def _under_functions(guards: Sequence[Guard], namespace: Namespace, lines: list[str]) -> list[str]:
    """The lines of a check behind its question for function modes, which comes first: those that are active would see
    what the others ask of tensors. (The rest of a native check has none, which is that of the others.)"""
    state = next((guard.expected for guard in guards if guard.kind == "global_state"), None)
    if state is None:
        return lines
    constant = namespace.constant
    if not state.functions:
        active = constant(torch._C._len_torch_function_stack, "function_modes")
        return [f"if {active}() and {constant(modes.functions_change, 'functions_change')}(): return None", *lines]
    count = constant(modes.count_functions, "function_modes")
    question = f"if {count}() != {state.functions}: return None"
    return [question, f"with {constant(modes.unseen, 'unseen')}():", *(f"    {line}" for line in lines)]


class Check:
    """One check in both forms. `form` is the present one; `installed(function)` is called with each new one, the first
    one at once.

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
        installed: Callable[[native.Form], None],
    ) -> None:
        self.names, self.containers, self.guards, self.wanted, self.title = names, containers, guards, wanted, title
        self.installed = installed
        self.first_calls = 0
        self.habits = Habits()
        self.records: list[pins.Record] = []
        self.passes = 0
        self.unsettled = 0
        self.deaths = 0
        is_native = config.enable_cpp_guard_manager and layout() is not None
        under = any(guard.kind == "global_state" and guard.expected.functions for guard in guards)
        self.install(self.slow if is_native and not under else self.readable)

    def install(self, form: native.Form) -> None:
        """Use another form from now on."""
        self.form = form
        self.installed(form)

    @functools.cached_property
    def _readable(self) -> tuple[str, native.Form]:
        return readable(self.names, self.guards, self.wanted, self.title)

    @functools.cached_property
    def readable(self) -> native.Form:
        """The readable form, made when it is first needed: a recording may come before."""
        return self._readable[1]

    @property
    def source(self) -> str:
        """Its text."""
        return self._readable[0]

    @functools.cached_property
    def asked(self) -> native.Form:
        """A form that asks guard by guard: slower, but there at once."""
        return asked.check(self.names, self.guards, self.wanted)

    def slow(self, *values: object) -> list[object] | None:
        """The readable check, in the first calls guard by guard, and after it has passed a recording."""
        self.first_calls += self.first_calls < FIRST_CALLS
        answer = (self.asked if self.first_calls < FIRST_CALLS else self.readable)(*values)
        if answer is not None:
            self.passes += 1
            if self.passes >= FIRST_RECORDING:
                self._try_to_record(values)
        return answer

    def _try_to_record(self, values: Sequence[object]) -> None:
        """Record; where that fails the check stays in Python."""
        try:
            with collector_paused():
                self.record(values)
        except Exception as error:
            failure = CompileError("native check", self.title, error)
            if not config.suppress_errors:
                raise failure from error
            self.install(self.readable)
            text = describe("guards are checked in Python", "bug", str(failure), None, None, None)
            warnings.warn(text, BolideWarning, stacklevel=2)

    def record(self, values: Sequence[object]) -> None:
        """Make native programs for this call and, again, for those of earlier calls that were of other objects. The
        readable check stays where the native one does not prove itself."""
        if underway():
            return
        known = proved(readable)
        if known is None:
            self.install(self.readable)
            return
        now = self._record(known, values)
        gone = [record for record in self.records if record.is_gone()]
        self.records = [record for record in self.records if not record.is_gone()]
        before = next((record for record in self.records if record.roots == now.roots), None)
        fresh = {source for record in gone for source in now.roots if source in record.roots}
        self.deaths += len(gone)
        changes = set()
        if before is not None:
            settled = before.program.passes >= SETTLED
            self.unsettled = 0 if settled else self.unsettled + 1
            changes = set() if settled else set(pins.changed(before, now))
        elif self.deaths >= MOST_DEATHS or len(self.records) >= MOST_PROGRAMS:
            changes = {("values", source) for source in fresh or now.roots}
            self.deaths, self.records = 0, []
        for kind, source in changes:
            getattr(self.habits, kind).add(source)
        if changes:
            now = self._record(known, values)
        if self.unsettled > MOST_RECORDINGS:
            self.records = []
            self.install(self.readable)
            return
        self.records = [now, *(record for record in self.records if record.roots != now.roots)][:MOST_PROGRAMS]
        programs = [record.program for record in self.records]
        self.install(native.make_check(known, len(self.names), programs, self.slow))

    def _record(self, known: Layout, values: Sequence[object]) -> pins.Record:
        return pins.record(
            known, self.names, self.containers, values, self.guards, self.wanted, self.habits, self._rest
        )

    def _rest(self, guards: Sequence[Guard], wanted: Sequence[Source]) -> native.Form:
        return readable(self.names, guards, wanted, self.title)[1]
