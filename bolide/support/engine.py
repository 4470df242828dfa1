"""LLVM IR text to machine code loaded in this process. LLVM itself is loaded (20 to 60 ms) when code is first made:
what it says of this machine is kept."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bolide.support import artifacts
from bolide.support.artifacts import Key
from bolide.support.locks import compiling
from bolide.support.symbols import SERIAL, symbol_address


@dataclass(slots=True)
class Library:
    """Loaded code and the addresses of its exported functions; `text` is the digest of the module's. The code is
    released with this object; `session`: LLVM's, if it has loaded it."""

    code: object
    session: object
    addresses: dict[str, int]
    text: str


@functools.cache
def machine(cpu: str, features: str) -> Any:
    """LLVM's target machine for code that runs in this process.

    Level 0, which leaves out all the passes that have nothing to do for vectors written out, but with a real register
    allocation: the code is as fast as that of level 1, where it defines constants in front of loops, and takes two
    thirds of the time to make.
    """
    import llvmlite.binding as llvm

    llvm.set_option("bolide", "-optimize-regalloc")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    triple = llvm.Target.from_default_triple()
    return triple.create_target_machine(cpu=cpu, features=features, opt=0, reloc="pic", codemodel="small", jit=False)


_SHARE = 32


class _Jits:
    """LLVM's sessions that code is loaded in. Each keeps some 10 KiB of every library until it goes itself, and takes
    160 KiB: so a few libraries share one, which goes with the last of them.
    """

    def __init__(self) -> None:
        self._jit: object = None
        self._room = 0

    def link(self, builder: Any) -> tuple[Any, Any]:
        """The tracker of a library that is loaded, and its session."""
        import llvmlite.binding as llvm

        if not self._room:
            # JITLink lays a module out in one piece; sections placed one by one may end up too far apart for 32-bit
            # addresses.
            self._jit, self._room = llvm.create_lljit_compiler(machine("", ""), use_jit_link=True), _SHARE
        self._room -= 1
        return builder.link(self._jit, f"bolide{self._room}"), self._jit


_jits = _Jits()


def with_stand_ins(text: str) -> str:
    """Module text in which functions that this build of torch lacks are defined, where there are serial ones."""
    for name, definition in SERIAL.items():
        if symbol_address(name) is None and f"@{name}(" in text:
            kept = [line for line in text.split("\n") if not (line.startswith("declare ") and f"@{name}(" in line)]
            text = "\n".join((*kept, definition))
    return text


class Object(NamedTuple):
    """An object file, and the names of the functions that it calls elsewhere."""

    imports: tuple[str, ...]
    image: bytes


def load(text: str, exports: Sequence[str], cpu: str, features: str) -> Library:
    """Compile a module and load it. RuntimeError if it calls a function found neither in torch nor in the process."""
    with compiling:
        code, digest = _object(text, cpu, features)
        return _linked(code, exports, digest)


def load_own(name: str, text: Callable[[], str], exports: Sequence[str]) -> Library:
    """As `load`, for a module of bolide's own, whose `text` this version makes always the same: where its code is kept,
    it is not made."""
    if not artifacts.is_on():
        return load(text(), exports, "", "")
    version = {"bolide": artifacts.sources_digest(), "torch": torch.__version__, **target_names("", "")}
    key = Key("modules", {"name": name, **version}, name)
    kept = artifacts.find(key)
    library = None if kept is None else load_known(kept.decode(), exports, "", "")
    if library is None:
        library = load(text(), exports, "", "")
        artifacts.keep(key, library.text.encode())
    return library


def emit(text: str, cpu: str, features: str) -> Object:
    """The machine code of a module as an object file, generated unless it is known."""
    with compiling:
        return _object(text, cpu, features)[0]


def _object(text: str, cpu: str, features: str) -> tuple[Object, str]:
    """The machine code of a module, and the digest of its text."""
    text = with_stand_ins(text)
    digest = artifacts.digest_of(text)
    key = object_key(digest, cpu, features)
    kept = _kept(key)
    if kept is None:
        kept = _compiled(text, cpu, features)
        artifacts.keep(key, " ".join(kept.imports).encode() + b"\n" + kept.image)
    return kept, digest


def _kept(key: Key) -> Object | None:
    payload = artifacts.find(key)
    if payload is None:
        return None
    imports, _, image = payload.partition(b"\n")
    return Object(tuple(imports.decode().split()), image)


def load_known(digest: str, exports: Sequence[str], cpu: str, features: str) -> Library | None:
    """The machine code of a module that is kept, by the digest of its text; None if it is not there, or calls what is
    not in this process."""
    with compiling:
        code = _kept(object_key(digest, cpu, features))
        try:
            return None if code is None else _linked(code, exports, digest)
        except RuntimeError:
            return None


def object_key(text: str, cpu: str, features: str) -> Key:
    """What a module's machine code is found by; `text`: the digest of its text."""
    return Key("objects", {"text": text, **target_names(cpu, features)})


@functools.cache
def target_names(cpu: str, features: str) -> Mapping[str, str]:
    """What machine code depends on besides its text."""
    return {"target": host().triple, "cpu": cpu, "features": features, "llvm": host().llvm}


class Host(NamedTuple):
    """What LLVM says of this machine, and LLVM's version."""

    cpu: str
    features: Mapping[str, bool]
    triple: str
    llvm: str


@functools.cache
def host() -> Host:
    """What is kept of it, for the same CPU and LLVM; else LLVM is asked."""
    names = _host_names() if artifacts.is_on() else None
    key = None if names is None else Key("hosts", names, "host")
    kept = None if key is None else artifacts.find(key)
    if kept is not None:
        return Host(*json.loads(kept))
    import llvmlite.binding as llvm

    version = ".".join(map(str, llvm.llvm_version_info))
    found = Host(llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features()), llvm.get_default_triple(), version)
    if key is not None:
        artifacts.keep(key, json.dumps(found).encode())
    return found


_CPU = ("vendor_id", "cpu family", "model", "stepping", "flags")


def _host_names() -> dict[str, str] | None:
    """What LLVM's answers depend on: the first CPU as Linux tells of it, and LLVM's library; None where that is not
    told."""
    try:
        with open("/proc/cpuinfo", "rb") as file:  # a large machine has megabytes of it
            first = file.read(1 << 14).partition(b"\n\n")[0].decode()
        told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
        package = importlib.util.find_spec("llvmlite")
        library = Path(package.origin or "").parent / "binding" / "libllvmlite.so" if package else Path()
        return {**{name: told[name] for name in _CPU}, "library": repr(artifacts.signature(os.stat(library)))}
    except (OSError, ValueError, KeyError):
        return None


def _compiled(text: str, cpu: str, features: str) -> Object:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    names = [function.name for function in module.functions if function.is_declaration]
    return Object(
        tuple(name for name in names if not name.startswith("llvm.")), machine(cpu, features).emit_object(module)
    )


def _linked(code: Object, exports: Sequence[str], digest: str) -> Library:
    imports: dict[str, int] = {}
    for name in code.imports:
        address = symbol_address(name)
        if address is None:
            raise RuntimeError(f"generated code calls {name}, which is not in this build of torch")
        imports[name] = address
    from bolide.support.native import loader  # when something is compiled

    with contextlib.suppress(loader.Unknown):
        loaded = loader.load_object(code.image, imports, exports)
        return Library(loaded, None, dict(loaded.addresses), digest)
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    builder.add_object_img(code.image)
    for name in exports:
        builder.export_symbol(name)
    tracker, jit = _jits.link(builder)
    return Library(tracker, jit, {name: tracker[name] for name in exports}, digest)


def assembly(text: str, cpu: str, features: str) -> str:
    """The machine code of a module, for people."""
    import llvmlite.binding as llvm

    with compiling:
        return str(machine(cpu, features).emit_assembly(llvm.parse_assembly(with_stand_ins(text))))


class Method:
    """Native code that Python functions are made of: ``PyObject *(PyObject *self, PyObject **args, Py_ssize_t count)``.
    The functions that `bind` makes keep it alive. `definition`: CPython's PyMethodDef, name, address, flags and text. A
    function reads the flags when it dies, also as part of a cycle, of which the collector clears dicts and what ctypes
    makes before: so they are in an array, which it does not clear.
    """

    FASTCALL = 0x0080

    def __init__(self, name: str, library: Library, export: str) -> None:
        self.library = library
        self.name = array("b", name.encode() + b"\0")
        words = (self.name.buffer_info()[0], library.addresses[export], self.FASTCALL, 0)
        self.definition = array("Q", words)

    def bind(self, word: int, owned: object) -> Callable[..., Any]:
        """A Python function whose native `self` is the integer `word`; `owned` is kept alive with it."""
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        # The last argument is what CPython calls the function's module: any object that is not cleared itself.
        kept = (self.definition, self.name, self, owned)
        function: Callable[..., object] = new(self.definition.buffer_info()[0], word, kept)
        return function
