"""Records of calls that bolide has failed on (option `replay_record_enabled`), to be made again in another process by
`bolide replay`.

A record names the functions, classes and modules of the program, and holds the values of the call: `Writer` turns them
into tensors, numbers, texts, lists and dicts, `Reader` makes them again. The file is read by torch's unpickler of
weights, so that reading it runs no code; `replay` imports the program's modules and makes the call.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

import bolide.dynamo.backends as backends
from bolide import compiling
from bolide.debug.info import info
from bolide.debug.repro import changed_options, new_folder, with_options
from bolide.dynamo.config import config
from bolide.dynamo.entry.module import call_target
from bolide.dynamo.state import state
from bolide.support import log
from bolide.support.errors import BolideError, CompileError
from bolide.tracing import modes

FILE = "call.pt"
Data = Any
"""What torch's unpickler of weights reads."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_SEQUENCES: dict[str, Callable[[Iterable[object]], object]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
}
_MAPPINGS: dict[str, type[dict[object, object]]] = {"dict": dict, "OrderedDict": OrderedDict}


class Unrecordable(BolideError):
    """A value that a record cannot hold. `way`: where it is in the call."""

    def __init__(self, way: str, reason: str) -> None:
        super().__init__(f"{way} {reason}")


# ---- writing ---------------------------------------------------------------------------------------------------------


def record(failure: CompileError, graph: fx.GraphModule | None = None) -> None:
    """Writes what is known of a failure to a new directory below `debug_dir_root`: the traceback, the graph if that is
    what fails, and the call that is being compiled, if a record can hold it. Once for each failure."""
    if failure.recorded:
        return
    failure.recorded = True
    folder = new_folder(failure.function)
    files = {"error.txt": "".join(traceback.format_exception(failure))}
    if graph is not None:
        files["graph.py"] = graph.code
        files["values.txt"] = "".join(f"{node.name}: {node.meta.get('val')}\n" for node in graph.graph.nodes)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    logger = log.logger("dynamo")
    try:
        torch.save(call_record(failure), folder / FILE)
    except Exception as error:
        logger.warning("%s: the call is not recorded: %s", failure.function, error)
    else:
        logger.warning("%s: bolide replay %s", failure.function, folder / FILE)


def call_record(failure: CompileError) -> dict[str, object]:
    """The call that this thread compiles, as data. Raises Unrecordable."""
    if state.call is None:
        raise Unrecordable(failure.function, "fails in a backward pass, or in a later part of the program: no call")
    versions, args, kwargs = state.call
    settings = next(iter(getattr(getattr(versions, "backend", None), "args", ())), None)
    function = getattr(versions, "original", None)
    if function is None or not isinstance(settings, compiling.Settings):
        raise Unrecordable(failure.function, "goes on behind a break: the frame is in the middle of its work")
    write = Writer()
    return {
        "failure": str(failure),
        "versions": info(),
        "options": changed_options(),
        "modes": [list(values) for _, values in modes.settings()],
        "random": torch.get_rng_state(),
        "function": write(function, "the function"),
        "globals": list(_globals(function, write)),
        "args": [write(value, f"argument {place}") for place, value in enumerate(args)],
        "kwargs": {name: write(value, f"argument {name}") for name, value in kwargs.items()},
        "fullgraph": settings.wishes.fullgraph,
        "dynamic": settings.wishes.dynamic,
        "backend": _backend(settings.backend, write),
        "backend_options": [[name, write(value, f"option {name}")] for name, value in settings.options],
    }


def _globals(function: types.FunctionType, write: Writer) -> Iterator[list[object]]:
    """The file and name of a module, and the values there that the function reads, or, in a script, any function.
    Those that a record cannot hold are left as the module makes them."""
    script = sys.modules["__main__"]
    used = {function.__module__: _names(function.__code__)}
    if file := getattr(script, "__file__", None):
        used["__main__"] = _names(compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True))
    for module, names in used.items():
        held = {}
        for name, value in vars(sys.modules[module]).items():
            if name in names and not isinstance(value, (types.ModuleType, types.FunctionType, type)):
                with contextlib.suppress(Unrecordable):
                    held[name] = write(value, name)
        yield [module, getattr(sys.modules[module], "__file__", None), held]


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function reads, and those in it."""
    inner = [_names(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _backend(backend: object, write: Writer) -> object:
    name = getattr(backend, "name", getattr(backend, "__name__", None))
    known = isinstance(name, str) and name in backends.list_backends(None) and backends.lookup_backend(name) is backend
    return name if known else write(backend, "the backend")


class Writer:
    """Turns values into what torch's unpickler of weights reads. What is there twice is written once."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, object]] = {}

    def __call__(self, value: object, way: str) -> object:
        """`value` as data; `way` is what it is called in errors. Raises Unrecordable."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided:
                raise Unrecordable(way, f"is a {type(value).__name__} ({value.layout}): dense tensors can be recorded")
            return value
        if id(value) in self.seen:
            return {"kind": "again", "number": self.seen[id(value)][0]}
        named = _named(value)
        if named is not None:
            return named
        number = len(self.seen)
        self.seen[id(value)] = number, value
        return {"number": number, **self._parts(value, way)}

    def _parts(self, value: object, way: str) -> dict[str, object]:
        name = type(value).__name__
        if isinstance(value, (tuple, list, set, frozenset)) and type(value) in _SEQUENCES.values():
            return {"kind": name, "items": [self(item, f"{way}[{place}]") for place, item in enumerate(value)]}
        if isinstance(value, dict) and type(value) in _MAPPINGS.values():
            items = [[self(key, f"a key of {way}"), self(item, f"{way}[{key!r}]")] for key, item in value.items()]
            return {"kind": name, "items": items}
        if isinstance(value, types.MethodType):
            owner = self(value.__self__, f"the owner of {way}")
            return {"kind": "method", "owner": owner, "function": self(value.__func__, way)}
        if isinstance(value, types.FunctionType):
            return self._function(value, way)
        named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
        if not (named_tuple or isinstance(value, nn.Module) or _is_simple(value)):
            raise Unrecordable(way, f"is a {name}, which is more than its attributes")
        cls = _named(type(value))
        if cls is None:
            raise Unrecordable(way, f"is of a class that is found under no name, {type(value).__qualname__}")
        if isinstance(value, tuple):
            return {"kind": "named tuple", "class": cls, "items": [self(item, f"{way}[...]") for item in value]}
        return {"kind": "object", "class": cls, "state": self({**vars(value)}, way)}

    def _function(self, function: types.FunctionType, way: str) -> dict[str, object]:
        code = function.__code__
        if not Path(code.co_filename).is_file():
            raise Unrecordable(way, f"is {function.__qualname__}, which has no source file")
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return {
            "kind": "function",
            "module": function.__module__,
            "file": code.co_filename,
            "code": _described(code),
            "cells": [self(value, f"{way}: {name}") for name, value in zip(code.co_freevars, cells)],
            "defaults": self(function.__defaults__, f"the defaults of {way}"),
            "kwdefaults": self(function.__kwdefaults__, f"the defaults of {way}"),
        }


def _named(value: object) -> dict[str, object] | None:
    """How a function, a class, a module or a member of an enumeration is found; None if it is not."""
    if isinstance(value, types.ModuleType):
        return {"kind": "module", "module": value.__name__, "file": getattr(value, "__file__", None)}
    if isinstance(value, Enum):
        module, name = type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    else:
        module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if isinstance(value, torch._ops.OpOverload):
        module, name = "torch", f"ops.{value}"
    there = sys.modules.get(module) if isinstance(module, str) else None
    if there is None or not isinstance(name, str) or not name:
        return None
    found: object = there
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return None
    return {"kind": "name", "module": module, "name": name, "file": getattr(there, "__file__", None)}


def _is_simple(value: object) -> bool:
    """Whether an object is no more than its attributes."""
    more = ("__new__", "__slots__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
    own = [vars(base) for base in type(value).__mro__[:-1]]
    return hasattr(value, "__dict__") and not any(name in attributes for attributes in own for name in more)


# ---- reading ---------------------------------------------------------------------------------------------------------


def replay(found: Data) -> object:
    """Makes the call of a record (see `read`), compiled, with the options, modes and random numbers of then; its
    result. Raises what it raises, and Unrecordable where the record speaks of what is not there any more."""
    read_value = Reader()
    function: Data = read_value(found["function"])
    for name, file, values in found["globals"]:
        vars(module_of(name, file)).update({key: read_value(value) for key, value in values.items()})
    args = [read_value(value) for value in found["args"]]
    kwargs = {name: read_value(value) for name, value in found["kwargs"].items()}
    backend: Data = found["backend"] if isinstance(found["backend"], str) else read_value(found["backend"])
    options = {name: read_value(value) for name, value in found["backend_options"]}
    chosen: Data = {"fullgraph": found["fullgraph"], "dynamic": found["dynamic"], "options": options or None}
    if function is call_target:
        function, *args = args
    before = modes.settings()
    torch.set_rng_state(found["random"])
    with with_options(found["options"]), config.patch(suppress_errors=False, replay_record_enabled=False):
        try:
            modes.apply([(setter, tuple(values)) for (setter, _), values in zip(before, found["modes"])])
            return compiling.compile(function, backend=backend, **chosen)(*args, **kwargs)
        finally:
            modes.apply(before)


def read(path: Path) -> Data:
    """The data of a record, which runs no code. Raises Unrecordable for another file."""
    try:
        found = torch.load(path / FILE if path.is_dir() else path, weights_only=True)
        assert isinstance(found, dict) and {"function", "args", "kwargs", "versions"} <= {*found}
    except Exception as error:
        raise Unrecordable(str(path), f"is no record of a call: {type(error).__name__}: {error}") from error
    return found


def other_versions(found: Data) -> list[str]:
    """In what this process is not that of a record."""
    now = info()
    return [
        f"{name}: {value} then, {now.get(name)} now"
        for name, value in found["versions"].items()
        if now.get(name) != value
    ]


class Reader:
    """Makes values of the data that `Writer` has made of them."""

    def __init__(self) -> None:
        self.made: dict[int, object] = {}

    def __call__(self, data: Data) -> Data:
        """The value."""
        if not isinstance(data, dict):
            return data
        kind = data["kind"]
        if kind == "again":
            return self.made[data["number"]]
        if kind in ("module", "name"):
            return found_at(data)
        if kind == "object":
            cls = found_at(data["class"])
            made = self.made[data["number"]] = cls.__new__(cls)
            vars(made).update(self(data["state"]))
            return made
        if kind in ("list", *_MAPPINGS):
            empty: Data = [] if kind == "list" else _MAPPINGS[kind]()
            self.made[data["number"]] = empty
            for item in data["items"]:
                if kind == "list":
                    empty.append(self(item))
                else:
                    empty[self(item[0])] = self(item[1])
            return empty
        value = self.made[data["number"]] = self._whole(kind, data)
        return value

    def _whole(self, kind: str, data: Data) -> object:
        if kind == "method":
            return types.MethodType(self(data["function"]), self(data["owner"]))
        if kind == "function":
            return self._function(data)
        items = [self(item) for item in data["items"]]
        return found_at(data["class"])._make(items) if kind == "named tuple" else _SEQUENCES[kind](items)

    def _function(self, data: Data) -> types.FunctionType:
        module = module_of(data["module"], data["file"])
        source = Path(data["file"]).read_text(encoding="utf-8")
        whole = compile(source, data["file"], "exec", dont_inherit=True)
        code = next(_codes(whole, data["code"]), None)
        if code is None:
            name, line = data["code"][:2]
            raise Unrecordable(f"{data['file']}:{line}", f"has no such function {name} any more")
        cells = tuple(types.CellType(self(value)) for value in data["cells"])
        function = types.FunctionType(code, vars(module), None, self(data["defaults"]), cells)
        function.__kwdefaults__ = self(data["kwdefaults"])
        return function


def _codes(code: types.CodeType, like: Sequence[object]) -> Iterator[types.CodeType]:
    """The code of a function, inside of other code: that which is described as `like`."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if _described(inner) == like:
                yield inner
            yield from _codes(inner, like)


def _described(code: types.CodeType) -> list[object]:
    """What tells a function from the others of its file."""
    return [code.co_name, code.co_firstlineno, *code.co_varnames, *code.co_names]


def found_at(data: Data) -> Data:
    """What a record names. Raises Unrecordable where it is not there any more."""
    found: object = module_of(data["module"], data["file"])
    for part in data.get("name", "").split(".") if "name" in data else ():
        found = getattr(found, part, None)
        if found is None:
            raise Unrecordable(data["module"], f"has no {data['name']} any more")
    return found


@functools.cache
def module_of(name: str, file: str | None) -> types.ModuleType:
    """A module of the program, imported; of a script, which would run, its definitions."""
    if name == "__main__" and file is not None:
        return _definitions(Path(file))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def _definitions(script: Path) -> types.ModuleType:
    """What a script imports, its functions and classes, and what it calls by a name that is a literal: made in a module
    of another name, without running the rest."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS) or _is_literal(node)]
    module = types.ModuleType(f"definitions of {script.name}")
    module.__file__ = str(script)
    sys.path.insert(0, str(script.parent))
    try:
        exec(compile(tree, str(script), "exec", dont_inherit=True), vars(module))
    except NameError as error:
        what = f"{error}; put what the call needs into a module that the script imports"
        raise Unrecordable(str(script), f"makes its definitions from more than imports and literals: {what}") from error
    finally:
        sys.path.remove(str(script.parent))
    return module


def _is_literal(node: ast.stmt) -> bool:
    """Whether a statement gives a name to a literal."""
    try:
        ast.literal_eval(node.value)  # type: ignore[attr-defined]
    except (ValueError, AttributeError):
        return False
    return isinstance(node, (ast.Assign, ast.AnnAssign))
