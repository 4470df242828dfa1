"""An entry of a compiled function as bytes, and back: guards, what is done at each call, and the program of its graphs.
JSON, in which nothing but what `values`, `names` and `graphs` know has a meaning: no pickle, and no code. Plans and
machine code are entries of their own (docs/caches.md), which a record names by their digests."""

from __future__ import annotations

import json
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from bolide.dynamo.program.captured import Captured, ClassAttribute, Guard, Replay, Source
from bolide.dynamo.program.kinds import MISSING, PLAIN
from bolide.dynamo.world.outside import items_in_order, items_of
from bolide.functorch.compilers import Passing
from bolide.functorch.runtime.program import Compiled, Program
from bolide.inductor.compiled_graph import CompiledGraph
from bolide.inductor.saved import lines_of
from bolide.saving import graphs
from bolide.saving.contents import CannotSave, Value
from bolide.saving.environment import files_of, places_of
from bolide.saving.names import Changed, Namer, find
from bolide.saving.operators import content_of_operator
from bolide.saving.reached import reached
from bolide.saving.sizes import pack_sizes
from bolide.saving.values import Reader, Writer, packed_tensor, unpacked_tensor
from bolide.support.errors import UserFrame

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6}")
_BY_VALUE: tuple[type, ...] = (
    *(type(None), bool, type(MISSING), type(PLAIN), type(...), type(NotImplemented)),
    *(torch.dtype, torch.layout, torch.memory_format),
)
_CONSTANTS: tuple[type, ...] = (int, float, complex, str, bytes)
"""Another process has others that are equal."""
_REPLAY = ("name", "graph", "result", "flags", "shape", "under_functions")


@dataclass(frozen=True)
class Saved:
    """An entry, read in this process. `trusted`: what it takes for granted; `met`: the sizes for which it was made;
    `graph`: the digest of its plan's key, its lines, and which constants it has; `reader`: for the `derivative`."""

    guards: list[Guard]
    trusted: list[Guard]
    replay: Replay
    program: Program
    constants: dict[str, torch.Tensor]
    graph: Mapping[str, Value]
    met: dict[Source, tuple[Value, ...]]
    reader: Reader


class Unsavable(CannotSave):
    """An entry that cannot be saved: why, and at which line of the program."""

    def __init__(self, reason: str, where: UserFrame | None = None) -> None:
        super().__init__(reason)
        self.where = where


def pack(
    root: types.FunctionType,
    captured: Captured,
    guards: Sequence[Guard],
    replay: Replay,
    met: Mapping[Source, tuple[Value, ...]],
    codes: Sequence[types.CodeType],
) -> tuple[bytes, bytes]:
    """A record of an entry, and of its backward (b"" if it has none). `codes`: of the frames at the point where it
    begins. Raises Unsavable."""
    compiled = captured.program
    if not isinstance(compiled, Compiled) or captured.reliance is None:
        raise Unsavable("its backend keeps no graphs")
    if captured.calls is not None:
        raise Unsavable("its backend is given graphs of torch's functions")
    if captured.reliance.reasons:
        raise Unsavable(*captured.reliance.reasons[0])
    namer = Namer(root, codes)
    namer.found = captured.reliance.found
    writer = Writer(namer)
    try:
        _meet(namer, guards, replay)
        rows = _guards(writer, guards)
        trusted = _trusted(writer, captured)
        constants = _Constants(compiled)
        data = {
            "guards": rows,
            "trusted": trusted,
            "inputs": [writer.source(source) for source in replay.inputs],
            **{name: writer.value(getattr(replay, name)) for name in _REPLAY},
            "effects": [writer.effect(effect) for effect in replay.effects],
            "draws": [writer.recipe(draw) for draw in replay.draws],
            "generators": [writer.recipe(generator) for generator in replay.generators],
            "program": writer.value(compiled.program),
            "compiled": _graph(compiled, constants, writer),
            "met": _met(writer, met),
            "files": files_of(captured.reliance.codes),
            "codes": places_of(captured.reliance.codes),
        }
        derivative = b""
        if compiled.derivative is not None:
            derivative = _derivative(compiled, constants, namer, data)
        data["constants"] = {name: packed_tensor(tensor) for name, tensor in constants.used.items()}
    except CannotSave as error:
        raise Unsavable(str(error), getattr(error, "where", None)) from error
    tables = {"objects": namer.rows, "sources": writer.sources, "frames": writer.frames, "recipes": writer.recipes}
    text = json.dumps(data | tables, separators=(",", ":"))
    if _ADDRESS.search(text):
        raise Unsavable("a text has the address of an object in it")
    return text.encode(), derivative


def _meet(namer: Namer, guards: Sequence[Guard], replay: Replay) -> None:
    """The functions in which code and cells are found that are named before those."""
    seen: set[Source] = set()
    for source in (*(guard.source for guard in guards), *replay.inputs):
        for step in () if source is None or source in seen else source.steps():
            if step not in seen:
                seen.add(step)
                namer.meet(step.obj)
    for guard in guards:
        if guard.kind in ("is", "type", "equals") and guard.source is not None:
            at = Source("type", guard.source, None) if guard.kind == "type" else guard.source
            namer.meet_at(at, guard.expected)
            namer.meet(guard.expected)
        elif guard.kind == "class_attr" and guard.source is not None and isinstance(guard.source.obj, type):
            found = guard.expected
            namer.meet_attribute(found.value, guard.source.obj, found.name, found.after)


def _guards(writer: Writer, guards: Sequence[Guard]) -> list[Value]:
    rows = []
    references: dict[int, Source] = {}
    for guard in _without_order(guards):
        if guard.kind == "is" and type(guard.expected) is weakref.ReferenceType:
            guard = _of_reference(guard, references)
        source = None if guard.source is None else writer.source(guard.source)
        try:
            expected = _expected(writer, guard)
        except CannotSave as error:
            raise Unsavable(str(error), guard.where) from error
        where = None if guard.where is None else writer.frame(guard.where)
        kind = "equals" if guard.kind == "is" and type(guard.expected) in _CONSTANTS else guard.kind
        rows.append([source, kind, expected, where])
    apart = tuple(references.values())
    return [*rows, *([[None, "distinct", writer.value(apart), None]] if len(apart) > 1 else ())]


def _without_order(guards: Sequence[Guard]) -> Iterator[Guard]:
    """The guards, where those of what is in a set do not ask for its order, which is another one in each process:
    nothing is kept of a program that goes through a set, but for one of numbers."""
    sets = {guard.source for guard in guards if guard.kind == "type" and guard.expected is set}
    for guard in guards:
        source, expected = guard.source, guard.expected
        if guard.kind == "equals" and source is not None and source.base in sets and source.obj is items_of:
            source = source.base
        elif guard.kind != "equals" or type(expected) is not frozenset:
            source = None
        if source is None or all(type(item) is int for item in expected):  # type: ignore[union-attr]
            yield guard
            continue
        if type(expected) is frozenset:
            yield replace(guard, kind="type", expected=frozenset)
        ordered = Source("apply", source, (), items_in_order)
        yield replace(guard, source=ordered, expected=items_in_order(expected))


def _of_reference(guard: Guard, known: dict[int, Source]) -> Guard:
    """What stands for a guard of a weak reference's identity: it is told from those that are `known`. What it refers to
    is guarded where that was asked."""
    assert guard.source is not None
    first = known.setdefault(id(guard.expected), guard.source)
    if first is not guard.source:
        return replace(guard, kind="same", expected=first)
    return replace(guard, kind="type", expected=weakref.ReferenceType)


def _expected(writer: Writer, guard: Guard) -> Value:
    expected, source = guard.expected, guard.source
    if guard.kind in ("is", "type") and type(expected) not in (*_BY_VALUE, *_CONSTANTS):
        return ["object", writer.namer.of(expected, source)]
    if guard.kind == "class_attr":
        value = expected.value
        held = writer.value(value) if type(value) in _BY_VALUE else ["object", writer.namer.of(value)]
        return [expected.name, writer.value(expected.after), held]
    return writer.value(expected, source)


def _trusted(writer: Writer, captured: Captured) -> list[Value]:
    """The constants of libraries that were read, each once."""
    assert captured.reliance is not None
    rows = {}
    for source, value in captured.reliance.constants:
        if source.kind == "object" or source in rows:
            continue
        rows[source] = [writer.source(source), *_told(writer, source, value)]
    return [*rows.values()]


def _told(writer: Writer, source: Source, value: object) -> tuple[str, Value]:
    if isinstance(value, type):
        return "is", ["object", writer.namer.of(value, source)]
    if type(value) is types.MethodWrapperType:  # made anew whenever it is read
        return "type", ["object", writer.namer.of(types.MethodWrapperType)]
    try:
        return "equals", writer.value(value, source)
    except CannotSave as error:
        raise CannotSave(f"a constant of a library was read: {error}") from error


class _Constants:
    """The constants of a program that a record has to hold, by the trace's names."""

    def __init__(self, compiled: Compiled) -> None:
        self.all = compiled.constants
        self.used: dict[str, torch.Tensor] = {}
        for output in compiled.program.outputs:
            if output.kind == "constant":
                self.use(str(output.index))

    def use(self, name: str) -> str:
        """The name, of one that is held from now on."""
        self.used[name] = self.all[name]
        return name

    def named(self, tensor: torch.Tensor) -> str:
        """The name of a tensor, which is held from now on."""
        for name, other in self.all.items():
            if other is tensor:
                return self.use(name)
        name = f"of a part {len(self.used)}"  # a branch or a loop has its own
        self.used[name] = tensor
        return name


def _graph(compiled: Compiled, constants: _Constants, writer: Writer) -> dict[str, Value]:
    graph = compiled.forward
    if isinstance(graph, Passing):
        return {"passing": [_passed(place, value, constants, writer) for place, value in graph.results]}
    if not isinstance(graph, CompiledGraph) or not graph.key:
        raise CannotSave("its graph refers to objects of this process, is frozen or recorded, or runs by ATen calls")
    kind = "inference" if compiled.derivative is None else "forward"
    return {"kind": kind, **plan_of(graph), "constants": _held(graph, constants)}


def _passed(place: int | None, value: object, constants: _Constants, writer: Writer) -> list[Value]:
    if isinstance(value, torch.Tensor):
        return ["constant", constants.named(value)]
    return ["value", writer.value(value)] if place is None else ["input", place]


def passing_of(rows: Sequence[Value], saved: Saved) -> Passing:
    """What runs a graph that calls nothing."""
    read: Mapping[str, Callable[[Value], tuple[int | None, Value]]] = {
        "constant": lambda name: (None, saved.constants[name]),
        "value": lambda value: (None, saved.reader.value(value)),
        "input": lambda place: (place, None),
    }
    return Passing([read[kind](about) for kind, about in rows])


def plan_of(graph: CompiledGraph) -> dict[str, Value]:
    """Where a graph's plan is kept, and the lines of its calls."""
    return {"key": graph.key, "lines": lines_of(graph.plan)}


def _held(graph: CompiledGraph, constants: _Constants) -> dict[str, str]:
    return {name: constants.named(tensor) for name, tensor in graph.binding.constants.items()}


def _derivative(compiled: Compiled, constants: _Constants, namer: Namer, data: dict[str, Value]) -> bytes:
    """The backward, with objects that the record names."""
    assert compiled.derivative is not None
    writer = Writer(namer)
    packed = graphs.pack_derivative(compiled.derivative, writer)
    rows = [*packed["graph"], *(packed["tape"]["rows"] if packed["tape"] else ())]
    for _, op, target, *_ in rows:
        if op == "get_attr":
            constants.use(target)
    called = [row[2] for row in rows if row[1] == "call_function"]
    data["operators"] = sorted({tuple(names) for mark, *names in called if mark == "operator"})
    sizes = None if writer.shapes is None else pack_sizes(writer.shapes, writer.value)
    whole = {"derivative": packed, "sizes": sizes, "frames": writer.frames}
    return json.dumps(whole, separators=(",", ":")).encode()


def _met(writer: Writer, met: Mapping[Source, tuple[Value, ...]]) -> list[Value]:
    """The sizes for which the entry was made, as far as they can be told."""
    rows = []
    for source, values in met.items():
        try:
            rows.append([writer.source(source), writer.value(tuple(values))])
        except CannotSave:
            continue
    return rows


def unpack(
    data: Mapping[str, Value], root: types.FunctionType, codes: Sequence[types.CodeType], call: Mapping[str, object]
) -> Saved:
    """The record in this process, for a call, whose values are by the names of its parameters. Raises Changed where it
    is not for this program."""
    for name, overload, content in data.get("operators", ()):
        if _content_now(name, overload) != content:
            raise Changed(f"the operator {name} has changed")
    objects: list[Value] = []
    reader = Reader(objects, data["frames"])

    def at(row: int) -> Value:
        reader.read_sources(data["sources"], row + 1)
        return reached(reader.sources[row], call)

    find(data["objects"], objects, root, codes, at)
    reader.read_sources(data["sources"])
    reader.read_recipes(data["recipes"])
    sources, frames, value = reader.sources, reader.frames, reader.value
    guards = []
    for source, kind, expected, where in data["guards"]:
        made = _attribute(expected, value) if kind == "class_attr" else value(expected)
        line = None if where is None else frames[where]
        guards.append(Guard(None if source is None else sources[source], kind, made, line))
    trusted = [Guard(sources[source], kind, value(expected)) for source, kind, expected in data["trusted"]]
    replay = Replay(
        inputs=tuple([sources[source] for source in data["inputs"]]),
        effects=[reader.effect(row) for row in data["effects"]],
        draws=[reader.recipes[draw] for draw in data["draws"]],
        generators=[reader.recipes[generator] for generator in data["generators"]],
        **{name: value(data[name]) for name in _REPLAY},
    )
    constants = {name: unpacked_tensor(row) for name, row in data["constants"].items()}
    met = {sources[source]: value(values) for source, values in data["met"]}
    return Saved(guards, trusted, replay, value(data["program"]), constants, data["compiled"], met, reader)


def _content_now(name: str, overload: str) -> str | None:
    try:
        return content_of_operator(graphs.operator_of(name, overload))
    except CannotSave:
        return None


def _attribute(expected: Sequence[Value], value: Value) -> Value:
    return ClassAttribute(expected[0], value(expected[1]), value(expected[2]))
