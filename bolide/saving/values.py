"""Values as data of JSON, and back. None, truth values, integers and texts are themselves; all else is a list that
begins with a mark. Objects are rows of `names`, sources and recipes rows of tables of their own, so that what is shared
stays shared."""

from __future__ import annotations

import base64
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence

import torch

from bolide.dynamo.breaks.segments import Shape
from bolide.dynamo.machine.callers import Caller, Within
from bolide.dynamo.program.captured import (
    ClassAttribute,
    Effect,
    GlobalState,
    GraphFacts,
    Recipe,
    Relation,
    Source,
    TensorGuard,
)
from bolide.dynamo.program.kinds import MISSING, PLAIN
from bolide.dynamo.program.sources import ABSENT
from bolide.functorch.runtime.program import Program, Training
from bolide.functorch.runtime.underived import Fault
from bolide.functorch.runtime.wrappers import Crossing
from bolide.functorch.signature import InputWrite, Output
from bolide.saving.contents import CannotSave, Value
from bolide.saving.names import Changed, Namer
from bolide.saving.points import pack_shape, unpack_shape
from bolide.support.errors import UserFrame
from bolide.symbolic import Expr, ShapeEnv
from bolide.symbolic.assumptions import Assumptions
from bolide.symbolic.expr import pack_atom, rebuild
from bolide.tracing import TensorMeta

MARKERS = {"missing": MISSING, "plain": PLAIN, "absent": ABSENT, "ellipsis": ..., "not implemented": NotImplemented}
_MARKER_OF = {id(value): name for name, value in MARKERS.items()}
RECORDS: tuple[Value, ...] = (
    *(ClassAttribute, GlobalState, GraphFacts, Relation, TensorGuard),
    *(Crossing, Fault, InputWrite, Output, Program, Training, Within),
)
_RECORD = {cls.__name__: cls for cls in RECORDS}
_CONSTANTS: dict[str, Value] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}
_SEQUENCES: Mapping[str, Callable[[list[Value]], Value]] = {
    "tuple": tuple,
    "list": list,
    "size": torch.Size,
    "set": set,
    "frozenset": frozenset,
}
_MARK_OF: dict[Value, str] = {tuple: "tuple", list: "list", torch.Size: "size", set: "set", frozenset: "frozenset"}
_PLAIN = (type(None), bool, int, str)
_MOST_BYTES = 1 << 20  # of the tensors that a record holds


def packed_tensor(tensor: torch.Tensor) -> list[Value]:
    """A constant tensor."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise CannotSave(f"a constant is a {type(tensor).__name__} on {tensor.device}")
    if tensor.numel() * tensor.itemsize > _MOST_BYTES:
        raise CannotSave(f"a constant tensor has {tensor.numel()} elements")
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.requires_grad:
        raise CannotSave("a constant is a tensor with marks or a history")
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    strides = list(tensor.stride())
    return [str(tensor.dtype), list(tensor.shape), strides, base64.b64encode(data).decode()]


def unpacked_tensor(row: Sequence[Value]) -> torch.Tensor:
    """What `packed_tensor` was given."""
    name, shape, strides, data = row
    raw = bytearray(base64.b64decode(data))
    flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    result = torch.empty_strided(shape, strides, dtype=_CONSTANTS[name])
    return result.copy_(flat.view(_CONSTANTS[name]).view(shape)) if raw else result


class Writer:
    """Writes values, and gathers the rows that they refer to."""

    def __init__(self, namer: Namer) -> None:
        self.namer = namer
        namer.source = namer.source or self.source
        self.sources: list[Value] = []
        self.recipes: list[Value] = []
        self.frames: list[Value] = []
        self.shapes: Assumptions | None = None  # of the symbolic sizes among the values
        self._sources: dict[Source, int] = {}
        self._recipes: dict[Recipe, int] = {}
        self._frames: dict[UserFrame, int] = {}

    def value(self, value: Value, found: Source | None = None) -> Value:
        """A value; of an object that was `found` there. Raises CannotSave."""
        cls = type(value)
        if cls in _PLAIN:
            return value
        if cls in _MARK_OF:
            return [_MARK_OF[cls], *[self.value(item) for item in value]]
        if cls is float:
            return ["float", value.hex()]
        if cls is Source:
            return ["source", self.source(value)]
        if cls is Recipe:
            return ["recipe", self.recipe(value)]
        if cls is UserFrame:
            return ["frame", self.frame(value)]
        if cls in RECORDS:
            return [cls.__name__, *[self.value(getattr(value, part.name)) for part in dataclasses.fields(cls)]]
        if id(value) in _MARKER_OF:
            return ["marker", _MARKER_OF[id(value)]]
        return self._other(value, cls, found)

    def _other(self, value: Value, cls: type, found: Source | None) -> Value:
        if cls is dict or cls is types.MappingProxyType:
            return ["dict", *[[self.value(key), self.value(item)] for key, item in value.items()]]
        if cls is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if cls is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if cls in (torch.dtype, torch.layout, torch.memory_format):
            return ["torch", str(value)]
        if cls is torch.device:
            return ["device", value.type, value.index]
        if cls is slice or cls is range:
            return [cls.__name__, *map(self.value, (value.start, value.stop, value.step))]
        if cls is Expr:
            terms = [[[self._atom(atom) for atom in atoms], c] for atoms, c in value.terms]
            return ["expr", terms, value.offset]
        if cls is TensorMeta:
            return ["meta", *map(self.value, value)]
        if cls is torch.SymInt:
            self.shapes = value.node.env
            return ["symbolic", self.value(value.node.expr)]
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise CannotSave("a graph has numbers that are made of sizes")
        if cls is Caller:
            return ["caller", *value[:4], self.namer.of(value.namespace)]
        if cls is Shape:
            return ["shape", *pack_shape(value, self.namer, self.value)]
        if isinstance(value, torch.Tensor) and not self.namer.has_place(value):
            raise CannotSave("a tensor is held by what was captured")
        return ["object", self.namer.of(value, found)]

    def _atom(self, atom: Value) -> Value:
        return [self.value(part) for part in pack_atom(atom)]

    def source(self, source: Source) -> int:
        """The row of a source."""
        row = self._sources.get(source)
        if row is None:
            base = None if source.base is None else self.source(source.base)
            key = source.key[1] if source.kind == "global" else source.key
            obj = None if source.obj is None else self.namer.of(source.obj, source.base)
            self.sources.append([source.kind, base, self.value(key), obj])
            row = self._sources[source] = len(self.sources) - 1
        return row

    def frame(self, frame: UserFrame) -> int:
        """The row of a line of the program."""
        row = self._frames.setdefault(frame, len(self.frames))
        if row == len(self.frames):
            self.frames.append([frame.file, frame.line, frame.function])
        return row

    def recipe(self, recipe: Recipe) -> int:
        """The row of a recipe."""
        row = self._recipes.get(recipe)
        if row is None:
            held = recipe.kind == "constant" and type(recipe.value) in (list, dict, set)  # this very one
            value = ["object", self.namer.of(recipe.value)] if held else self.value(recipe.value)
            args = [self.recipe(arg) for arg in recipe.args]
            named = [[name, self.recipe(value)] for name, value in recipe.kwargs]
            self.recipes.append([recipe.kind, value, args, named])
            row = self._recipes[recipe] = len(self.recipes) - 1
        return row

    def effect(self, effect: Effect) -> list[Value]:
        """An effect; its key is a recipe or a name."""
        parts = (effect.target, effect.key, effect.value, effect.where)
        return [effect.kind, *map(self.value, parts)]


class Reader:
    """Reads what a `Writer` has written. `objects`: those of its rows, in this process; `shapes`: of sizes."""

    def __init__(self, objects: Sequence[Value], frames: Sequence[Value]) -> None:
        self.objects = objects
        self.frames = [UserFrame(*frame) for frame in frames]
        self.sources: list[Source] = []
        self.recipes: list[Recipe] = []
        self.shapes = ShapeEnv()

    def read_sources(self, rows: Sequence[Value], end: int | None = None) -> None:
        """The sources that are not read yet, each made of earlier ones; up to the row `end`."""
        made, objects, value = self.sources, self.objects, self.value
        for kind, base, key, obj in rows[len(made) : end]:
            held = None if obj is None else objects[obj]
            if kind == "global":
                key = id(held), key
            elif type(key) is list:
                key = value(key)
            made.append(Source(kind, None if base is None else made[base], key, held))

    def read_recipes(self, rows: Sequence[Value]) -> None:
        """The recipes, each made of earlier ones."""
        made = self.recipes
        for kind, value, args, named in rows:
            parts = tuple([made[arg] for arg in args])
            made.append(Recipe(kind, self.value(value), parts, tuple([(name, made[arg]) for name, arg in named])))

    def effect(self, row: Sequence[Value]) -> Effect:
        """What `Writer.effect` was given."""
        return Effect(row[0], *map(self.value, row[1:]))

    def value(self, data: Value) -> Value:
        """What `Writer.value` was given."""
        if type(data) is not list:
            return data
        mark, *rest = data
        sequence = _SEQUENCES.get(mark)
        if sequence is not None:
            return sequence([self.value(item) for item in rest])
        record: Value = _RECORD.get(mark)
        if record is not None:
            return record(*map(self.value, rest))
        match mark:
            case "object":
                return self.objects[rest[0]]
            case "source":
                return self.sources[rest[0]]
            case "recipe":
                return self.recipes[rest[0]]
            case "frame":
                return self.frames[rest[0]]
            case "float":
                return float.fromhex(rest[0])
            case "marker":
                return MARKERS[rest[0]]
        return self._other(mark, rest)

    def _other(self, mark: str, rest: list[Value]) -> Value:
        match mark:
            case "dict":
                return {self.value(key): self.value(item) for key, item in rest}
            case "complex":
                return complex(*map(float.fromhex, rest))
            case "bytes":
                return base64.b64decode(rest[0])
            case "torch":
                return _CONSTANTS[rest[0]]
            case "device":
                return torch.device(*rest) if rest[1] is not None else torch.device(rest[0])
            case "slice":
                return slice(*map(self.value, rest))
            case "range":
                return range(*map(self.value, rest))
            case "expr":
                terms = [([tuple(map(self.value, atom)) for atom in atoms], c) for atoms, c in rest[0]]
                return rebuild(terms, rest[1])
            case "meta":
                return TensorMeta(*map(self.value, rest))
            case "symbolic":
                return self.shapes.sym_int(self.value(rest[0]))
            case "caller":
                file, name, qualname, line, namespace = rest
                return Caller(file, name, qualname, line, self.objects[namespace])
            case "shape":
                return unpack_shape(rest, self.objects, self.value)
        raise Changed(f"the mark {mark!r} is not known")
