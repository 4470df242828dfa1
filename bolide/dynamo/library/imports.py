"""Imports inside the program: eager looks each time which module is known by a name (`sys.modules`)."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

from bolide.dynamo.library.handlers import Args, Kwargs
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.native_calls import for_real
from bolide.dynamo.program.kinds import MISSING, is_library_namespace


def imported(vm: Machine, known: str, load: Callable[[], Any]) -> Any:
    """What `load` answers, which imports the module that is known by a name."""
    written = vm.world.journal.overlay_of.get(id(sys.modules))
    if written is not None and any(written.changes()):
        raise vm.unsupported("a module is imported where sys.modules is written to", "side_effect")
    try:
        return for_real(load)
    finally:
        rely_on_module(vm, known)


def rely_on_module(vm: Machine, known: str) -> None:
    """Guard which modules are known by a name and by those of its packages; also that there is none, where it cannot be
    imported. Libraries' modules are trusted to stay."""
    for name in itertools.accumulate(known.split("."), "{}.{}".format):
        module = sys.modules.get(name, MISSING)
        if not (isinstance(module, types.ModuleType) and is_library_namespace(vars(module))):
            vm.world.namespaces.load_global(sys.modules, name)


def absolute_name(namespace: dict[str, Any], name: str, level: int) -> str:
    """The name of the module that an import statement in these globals is about."""
    if not level:
        return name
    package = namespace.get("__package__")
    if package is None:
        module = str(namespace.get("__name__"))
        package = module if "__path__" in namespace else module.rpartition(".")[0]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


@intercept(builtins.__import__)
def _import(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not args or type(args[0]) is not str or any(args[4:]):
        raise vm.unsupported("a call of __import__ with a level", "native_call", "use importlib.import_module")
    names = args[3] if len(args) > 3 else ()
    return imported(vm, args[0], lambda: __import__(args[0], None, None, names))


@intercept(importlib.import_module)
def _import_module(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    name, package = [*args, *kwargs.values(), None][:2]
    if type(name) is not str or type(package) not in (str, type(None)) or "name" in kwargs:
        return NATIVE
    try:
        known = importlib.util.resolve_name(name, package)
    except (ImportError, TypeError, ValueError):
        return NATIVE  # raises its own
    return imported(vm, known, lambda: importlib.import_module(name, package))


def cannot_import(module: object, name: str) -> ImportError:
    """The exception of ``from module import name`` where there is no such thing."""
    known, path = getattr(module, "__name__", "<unknown module name>"), getattr(module, "__file__", None)
    text = f"cannot import name {name!r} from {known!r} ({path or 'unknown location'})"
    return ImportError(text, name=known, path=path)
