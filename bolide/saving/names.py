"""Names for objects of the program, by which another process finds its own: written as rows, each of which may refer to
earlier ones. A name leads through modules, classes and functions, and runs no code of the program's.

| row | leads to |
|---|---|
| module, name, place | what `sys.modules` has, or what it stands for |
| globals, row | the namespace of a module |
| named, row, name | what a module or a class has in its namespace |
| part, row, name | a part of a function, or of what holds one |
| cell, row, name | the cell of a variable of a function |
| held, row | what is in a cell |
| item, row, key | what is in a dict or a tuple |
| root | the compiled function |
| frame, place | the code of a frame at the point where what was compiled begins |
| const, row, place | code that is nested in code |
| class, row | the class of what stands for a module, or of a function in C; a metaclass |
| member, row, name | a member of an enumeration |
| base, row, place | a class in the resolution order of another one |
| at, source | what is found there in the call: a class, a function, or what is compared by identity |
| computing, text | a function of ours that computes an expression |
| operator, name, overload; packet, name | an operator of PyTorch's |
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from bolide.dynamo.machine.numbers import computing, is_of_numbers, text_of
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, contents_of
from bolide.saving.contents import NAMED, CannotSave, Value, content_of, is_native, module_of, modules_called
from bolide.saving.reached import REFERENT

Row = list[Value]

PARTS = frozenset(
    ["__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__globals__"]
    + ["__func__", "fget", "fset", "fdel", "__wrapped__", "func"]
)
_HIDDEN = ("types", "_collections_abc")
"""Modules with classes of Python's own that have no names where they say."""
_HOLDERS = (
    *(types.FunctionType, functools._lru_cache_wrapper, staticmethod, classmethod, property),
    functools.cached_property,
)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_KEYS = (str, int, bool, type(None))
_FOUND = (type, types.FunctionType, types.CodeType, weakref.ReferenceType, torch.Tensor, torch.Generator)
"""What may be named by where a call has it: all else of it is guarded, or part of its content."""


def _is_unknown(step: Source) -> bool:
    """Whether only the program's run could tell what is there."""
    return step.kind == "drawn" or (step.kind == "apply" and step.obj is not REFERENT)


class Changed(Exception):
    """What is found under a name is not what was saved."""


class Namer:
    """Gives names to objects. `root`: the compiled function; `codes`: what the frames run that go on; `rows`: the names
    so far."""

    def __init__(self, root: types.FunctionType, codes: Sequence[types.CodeType] = ()) -> None:
        self.root, self.codes = root, codes
        self.places: dict[int, tuple[Source, object]] = {}  # by id: where a call finds an object, as a guard says
        self.found: Mapping[int, tuple[Source, object]] = {}  # by id: where capture has found an object of a library
        self.source: Callable[[Source], int] | None = None  # gives the row of a source
        self.rows: list[Row] = []
        self._known: dict[int, tuple[int, object]] = {}
        self._refused: dict[int, tuple[CannotSave, object]] = {}
        self._holders: dict[int, tuple[Value, Row, object]] = {}  # by id: what holds an object, and how
        self.meet(root)
        for code in codes:
            self.meet(code)

    def meet(self, value: object) -> None:
        """Note what holds objects that may have no names of their own: code, cells, what is in them."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            for kind, part, *key in _parts(value):
                if part is not None and self._note(part, value, [kind, *key]):
                    waiting.append(part)

    def _note(self, value: object, holder: object, way: Row) -> bool:
        """Whether that was not known."""
        if id(value) in self._holders:
            return False
        self._holders[id(value)] = holder, way, value
        return True

    def meet_attribute(self, value: object, cls: type, name: str, after: type | None) -> None:
        """Note what looking up a name in a class has found."""
        first = 0 if after is None else cls.__mro__.index(after) + 1
        for place, base in enumerate(cls.__mro__[first:], first):
            if name in vars(base):
                if base is not cls:
                    self._note(base, cls, ["base", place])
                if vars(base)[name] is value:
                    self._note(value, base, ["named", name])
                break
        self.meet(value)

    def meet_code(self, code: types.CodeType, qualname: str, namespace: Mapping[str, Value]) -> None:
        """Note the function of a module or a class whose code, or what is nested in it, is called that."""
        if code in self.codes or id(code) in self._holders:
            return
        at: Value = sys.modules.get(namespace.get("__name__", ""))
        for part in qualname.partition(".<locals>")[0].split("."):
            at = vars(at).get(part) if isinstance(at, (types.ModuleType, type)) else None
        self.meet(at)

    def of(self, value: object, found: Source | None = None) -> int:
        """The row of an object, which was `found` there. Raises CannotSave for one without a name."""
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        refused = self._refused.get(id(value))
        if refused is not None and found is None:
            raise refused[0]
        try:
            row = self._row(value, found)
            return self._entered(value, row)
        except CannotSave as error:
            self._refused[id(value)] = error, value
            raise

    def _entered(self, value: object, row: Row) -> int:
        self.rows.append([content_of(value), *row])
        self._known[id(value)] = len(self.rows) - 1, value
        return len(self.rows) - 1

    def _row(self, value: Value, found: Source | None) -> Row:
        row = self._own_name(value)
        if type(value) is types.CellType and id(value) not in self._holders:
            self._own_name(contents_of(value))  # what has taken its name may hold the cell
        if row is None and id(value) in self._holders:
            holder, way, _ = self._holders[id(value)]
            row = [way[0], self.of(holder), *way[1:]]
        if row is None and found is not None:
            row = self._path(found, value)
        if row is None and id(value) in self.found:
            row = self._path(self.found[id(value)][0], value)
        if row is None:
            row = self._place(value)
        if row is None:
            row = self._searched(value)
        if row is None:
            raise CannotSave(f"{_shown(value)} has no name by which another process could find it")
        return row

    def _own_name(self, value: Value) -> Row | None:
        if value is self.root:
            return ["root"]
        if type(value) is types.CodeType:
            return next((["frame", place] for place, code in enumerate(self.codes) if code is value), None)
        if isinstance(value, types.ModuleType):
            own, known = value.__name__, list(sys.modules.items())
            for place, module in enumerate(modules_called(own)):
                if module is value:
                    return ["module", own, place]
            return next((["module", name, 0] for name, module in known if module is value), None)
        if value is sys.modules:
            return ["named", self.of(sys), "modules"]
        if type(value) is dict:
            called = modules_called(value.get("__name__"))
            found = (module for module in called if vars(module) is value)
            return next((["globals", self.of(module)] for module in found), None)
        if isinstance(value, torch._ops.OpOverload):
            return ["operator", value._schema.name, value._overloadname]
        if isinstance(value, torch._ops.OpOverloadPacket):
            return ["packet", value._qualified_op_name]
        if isinstance(value, enum.Enum):
            return ["member", self.of(type(value)), value._name_]
        if (text := text_of(value)) is not None:
            return ["computing", text]
        return self._qualified(value) if isinstance(value, (type, *NAMED)) or is_native(value) else None

    def _qualified(self, value: Value) -> Row | None:
        """By the module and the names that an object says are its own, if they lead to it."""
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        name = getattr(value, "__name__", None)
        if isinstance(owner, type) and type(name) is str:
            return ["named", self.of(owner), name] if vars(owner).get(name) is value else None
        qualname, place = getattr(value, "__qualname__", None), getattr(value, "__module__", None) or "builtins"
        if type(qualname) is not str:
            return None
        path = qualname.split(".")
        for module in modules_called(place):
            if type(module) is value:
                return ["class", self.of(module)]
            if (row := self._along(path, module, value)) is not None:
                return row
        return None

    def _along(self, path: Sequence[str], at: Value, value: Value) -> Row | None:
        """By names that lead from a module to an object."""
        holders = []
        for part in path:
            if not isinstance(at, (types.ModuleType, type)):
                return None
            holders.append((at, part))
            at = vars(at).get(part, MISSING)
        if at is not value:
            self.meet(at)  # it may hold what it stands for, as decorated functions do
            return None
        return ["named", self.of(holders[-1][0]), path[-1]]

    def _path(self, found: Source, value: object) -> Row | None:
        """By the way that capture has found it, if no code of the program's is on it."""
        match found.kind:
            case "global" if type(found.key) is tuple and found.obj.get(found.key[1], MISSING) is value:
                return ["item", self.of(found.obj), found.key[1]]
            case "closure" if contents_of(found.obj) is value:
                return ["held", self.of(found.obj)]
            case "attr" if found.key in PARTS and found.base is not None:
                holder = self._reached(found.base)
                if type(holder) is types.FunctionType and getattr(holder, found.key, MISSING) is value:
                    return ["part", self.of(holder, found.base), found.key]
            case "attr" if found.base is not None and isinstance(holder := found.base.obj, type):
                bases = (base for base in holder.__mro__ if vars(base).get(found.key, MISSING) is value)
                return next((["named", self.of(base), found.key] for base in bases), None)
            case "dict_value" | "item" if found.base is not None and type(found.key) in _KEYS:
                holder = self._reached(found.base)
                if type(holder) in _MAPPINGS and holder.get(found.key, MISSING) is value:
                    return ["item", self.of(holder, found.base), found.key]
        return None

    def _place(self, value: object) -> Row | None:
        """By where the call has it."""
        source, _ = self.places.pop(id(value), (None, None))
        return None if source is None or self.source is None else ["at", self.source(source)]

    def has_place(self, value: object) -> bool:
        """Whether an object has a name by where the call has it."""
        return id(value) in self.places or id(value) in self._known

    def meet_at(self, source: Source, value: object) -> None:
        """Note where a call finds an object, or what is in a list or a tuple, as is guarded."""
        if isinstance(value, (list, tuple)):
            for place, item in enumerate(value):
                self.meet_at(Source("item", source, place), item)
        if isinstance(value, _FOUND) and not any(map(_is_unknown, source.steps())):
            self.places.setdefault(id(value), (source, value))

    def _reached(self, source: Source) -> Value:
        """What is found at a source, where that is known without a call."""
        match source.kind:
            case "object":
                return source.obj
            case "global":
                return source.obj.get(source.key[1], MISSING)
            case "closure":
                return contents_of(source.obj)
        return MISSING

    def _searched(self, value: Value) -> Row | None:
        """By the module of its class, or one that has been named."""
        modules = [getattr(type(value), "__module__", None), getattr(value, "__module__", None)]
        modules += [*_HIDDEN, *(row[2] for row in self.rows if row[1] == "module")]
        for name in dict.fromkeys(filter(None, modules)):
            module = sys.modules.get(name) if type(name) is str else None
            for key, item in list(vars(module).items()) if module is not None else ():
                if item is value:
                    return ["named", self.of(module), key]
        return None


def _is_local(cls: type) -> bool:
    """Whether no module has it under its name."""
    return "<locals>" in cls.__qualname__


def _parts(value: Value) -> Iterator[Row]:
    """What an object holds that may be asked for by itself: how, and which."""
    if isinstance(value, (staticmethod, classmethod)):
        yield ["part", value.__func__, "__func__"]
    elif isinstance(value, functools.cached_property):
        yield ["part", value.func, "func"]
    elif isinstance(value, property):
        yield from (["part", getattr(value, name), name] for name in ("fget", "fset", "fdel"))
    elif type(value) is types.FunctionType:
        yield ["part", value.__code__, "__code__"]
        if not module_of(value.__globals__):
            yield ["part", value.__globals__, "__globals__"]
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        yield from (["cell", cell, name] for name, cell in cells)
    elif is_native(value):
        yield ["class", type(value)]
    elif type(value) is functools._lru_cache_wrapper:
        yield ["part", getattr(value, "__wrapped__", None), "__wrapped__"]
    elif isinstance(value, type):
        if type(value) is not type:
            yield ["class", type(value)]
        yield from (["base", base, place] for place, base in enumerate(value.__mro__[1:], 1) if _is_local(base))
    elif type(value) is types.CellType:
        held = contents_of(value)
        if type(held) is types.FunctionType:
            yield ["held", held]
    elif type(value) is types.CodeType:
        nested = enumerate(value.co_consts)
        yield from (["const", part, place] for place, part in nested if type(part) is types.CodeType)


def find(
    rows: Iterable[Row],
    found: list[Value],
    root: types.FunctionType,
    codes: Sequence[types.CodeType],
    at: Callable[[int], Value],
) -> None:
    """This process's objects of those names, which are put into `found`. `at`: what this call has at the source of a
    row. Raises Changed where one is not there, or is another one."""
    of_call: list[Value] = []
    for content, kind, *path in rows:
        try:
            if kind == "at":
                value = at(path[0])
                of_call.append(value)
            else:
                value = _followed(kind, path, found, root, codes)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise Changed(f"{_told(kind, path)} is not there") from error
        try:
            now = content_of(value)
        except CannotSave as error:
            raise Changed(f"{_told(kind, path)} is another one") from error
        if now != content:
            raise Changed(f"{_told(kind, path)} has changed")
        found.append(value)
    if of_call:
        times = collections.Counter(map(id, found))
        if any(times[id(value)] > 1 for value in of_call):
            raise Changed("two objects of the program are one here")


def _followed(
    kind: str,
    path: Sequence[Value],
    found: Sequence[Value],
    root: types.FunctionType,
    codes: Sequence[types.CodeType],
) -> Value:
    match kind, *path:
        case "module", name, 0:
            if name.startswith("torch."):
                importlib.import_module(name)  # as the program does, which changes lists of torch
            return sys.modules[name]
        case "module", name, place:
            return modules_called(name)[place]
        case "globals", row if isinstance(found[row], types.ModuleType):
            return vars(found[row])
        case "named", row, name:
            holder = found[row]
            if not isinstance(holder, (types.ModuleType, type)):
                raise TypeError(name)
            return vars(holder)[name]
        case "part", row, name if name in PARTS:
            if not isinstance(found[row], _HOLDERS):
                raise TypeError(name)
            return getattr(found[row], name)
        case "cell", row, name:
            return found[row].__closure__[found[row].__code__.co_freevars.index(name)]
        case "held", row:
            return found[row].cell_contents
        case "member", row, name:
            return found[row]._member_map_[name]
        case "base", row, place:
            return found[row].__mro__[place]
        case "item", row, key:
            if type(found[row]) not in _MAPPINGS:
                raise TypeError(key)
            return dict.__getitem__(found[row], key)
        case ("root",):
            return root
        case "frame", place:
            return codes[place]
        case "class", row:
            return type(found[row])
        case "const", row, place:
            return found[row].co_consts[place]
        case "computing", text if is_of_numbers(text):
            return computing(text)
        case "operator", name, overload:
            return getattr(_packet(name), overload or "default")
        case "packet", name:
            return _packet(name)
    raise ValueError(kind)


def _packet(name: str) -> Value:
    namespace, _, packet = name.partition("::")
    return getattr(getattr(torch.ops, namespace), packet)


def _told(kind: str, path: Sequence[Value]) -> str:
    return " ".join(str(part) for part in path if isinstance(part, str)) or kind


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if isinstance(value, NAMED):
        return f"the function {getattr(value, '__qualname__', repr(value))}"
    return f"a {type(value).__qualname__}"
