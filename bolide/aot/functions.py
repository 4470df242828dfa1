"""Compiled functions in a file: what the cache holds of one, for another process (docs/saved.md)."""

from __future__ import annotations

import functools
import importlib
import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import cast

from bolide.compiling import LazyKeeper, compile
from bolide.dynamo.entry.dispatch import Dispatcher
from bolide.dynamo.entry.module import CompiledModule
from bolide.inductor.codegen.compiler import modules_loaded
from bolide.inductor.machine import host_machine
from bolide.inductor.saved import places_of_plan
from bolide.saving.contents import Value
from bolide.saving.keeper import KIND, Keeper, index_of
from bolide.support import artifacts
from bolide.support.artifacts import Key, Place
from bolide.support.engine import object_key
from bolide.support.errors import BolideError, UserFrame


def save_compiled(fn: object, path: str | os.PathLike[str]) -> None:
    """Write the entries of a compiled function to a file. Raises BolideError."""
    dispatcher, keeper = _parts_of(fn)
    name = dispatcher.name
    if not artifacts.is_on():
        raise _refused(name, "the cache is off", None, "switch bolide.dynamo.config.force_disable_caches off")
    if not dispatcher.entries:
        raise _refused(name, "nothing of it is compiled yet", dispatcher.place, "call it as it will be called")
    places: dict[Place, None] = {}
    indices: dict[Place, bytes | None] = {}
    for versions in (dispatcher, *dispatcher.points.values()):
        if versions.refusals:
            reason, where = versions.refusals[0]
            raise _refused(name, reason, where or versions.place, "keep that part out of the compiled function")
        key = keeper.key(versions)
        index = [row for row in keeper.index(key) if row[0] in versions.kept]
        if len(index) < len(versions.entries):
            raise _refused(name, "not all of its entries were kept", versions.place, "call bolide.reset() and it again")
        for digest, _ in index:
            places |= dict.fromkeys(_places(digest))
        if index:
            indices[KIND, key.digest] = artifacts.pack(key, index_of(index))
        places |= dict.fromkeys(_parts_kept(key.digest))
    contents = indices | {place: artifacts.raw(place) for place in (*places, *_shared())}
    if any(contents[place] is None for place in places):
        raise _refused(name, "a part of it was taken out of the cache", dispatcher.place, "call bolide.reset() and it")
    found = [(place, data) for place, data in contents.items() if data is not None]
    whole = Path(path)
    part = whole.with_name(f".{whole.name}.{os.getpid()}")
    part.write_bytes(artifacts.packed(found))
    part.replace(whole)


def load_compiled(path: str | os.PathLike[str], model: object) -> Callable[..., object]:
    """A compiled function with the entries that are in a file. Raises FileNotFoundError, BolideError."""
    data = Path(path).read_bytes()
    try:
        entries = artifacts.unpacked(data)
    except BolideError as error:
        raise BolideError(f"{path} is not what save_compiled of this version writes: {error}") from error
    indices = [entry.key for (kind, _), entry in entries.items() if kind == KIND and _is_start(entry.key)]
    if len(indices) != 1:
        raise BolideError(f"{path} is not what save_compiled writes")
    (saved,) = indices
    settings = json.loads(saved.names["settings"])
    model = _imported(saved) if model is None else model
    compiled: Callable[..., object] = cast(Value, compile)(model, **settings)
    dispatcher, keeper = _parts_of(compiled)
    told = artifacts.difference(keeper.key(dispatcher), saved)
    if told:
        raise BolideError(
            f"{path} was saved of {saved.label} for something else: {', '.join(told)}\n"
            "  remedy: compile the function here, and save it again"
        )
    artifacts.load_cache_artifacts(data)
    keeper.given = True
    assert isinstance(dispatcher.keeper, LazyKeeper)
    dispatcher.keeper.asked = True
    return compiled


def _is_start(key: Key) -> bool:
    """Whether a key is that of the index of a function's beginning."""
    return "function" in key.names and "point" not in key.names


def _places(digest: str) -> list[Place]:
    """All that belongs to a record."""
    places: list[Place] = [(KIND, digest)]
    record = artifacts.find_place((KIND, digest))
    about = {} if record is None else json.loads(record.payload)["compiled"]
    plans = [about["key"]] if "key" in about else []
    parts = [] if record is None else _parts_kept(record.key.names["record"])
    for part in parts:
        entry = artifacts.find_place(part)
        if entry is not None and entry.key.names["part"] != "derivative":
            plans.append(json.loads(entry.payload)["key"])
    for plan in plans:
        places += [("plans", plan), *places_of_plan(plan)]
    return [*places, *parts]


def _parts_kept(record: str) -> list[Place]:
    """Those parts of a record that this process has made or found."""
    found = [(place, artifacts.find_place(place)) for place in artifacts.in_memory(KIND)]
    return [place for place, entry in found if entry is not None and entry.key.names.get("of") == record]


def _shared() -> list[Place]:
    """Machine code that all functions share: the drivers of graphs, the check of guards."""
    target = host_machine().target
    kernels = {object_key(module, target.cpu, target.features).digest for module in modules_loaded()}
    return [place for place in artifacts.in_memory("objects") if place[1] not in kernels]


def _parts_of(fn: object) -> tuple[Dispatcher, Keeper]:
    """What stands behind a compiled function. Raises BolideError."""
    call: Value = fn._bolide_call if type(fn).__mro__[1:2] == (CompiledModule,) else fn  # type: ignore[attr-defined]
    if isinstance(call, types.MethodType):
        call = call.__func__
    if type(call) is functools.partial:  # of an object that is called
        call = call.func
    dispatcher = getattr(call, "_bolide", None)
    if not isinstance(dispatcher, Dispatcher):
        raise BolideError(f"{fn!r} is not a compiled function: it is what bolide.compile gives that can be saved")
    if not isinstance(dispatcher.keeper, LazyKeeper):
        raise _refused(
            dispatcher.name, "its backend keeps no graphs", dispatcher.place, 'compile it with backend="inductor"'
        )
    return dispatcher, dispatcher.keeper.keeper()


def _imported(saved: Key) -> object:
    """The function of that name. Raises BolideError."""
    module, names = saved.names["module"], saved.names["function"].removeprefix(saved.names["module"] + ".")
    found: Value = importlib.import_module(module)
    for name in names.split("."):
        found = vars(found).get(name)
    if not isinstance(found, types.FunctionType):
        raise BolideError(
            f"{saved.label} is no function of the module {module}\n  remedy: give load_compiled what was compiled"
        )
    return found


def _refused(name: str, reason: str, where: UserFrame | None, remedy: str) -> BolideError:
    lines = [f"{name} cannot be saved: {reason}"]
    if where is not None:
        lines += [f"  at: {where}", *([f"    {where.text}"] if where.text else [])]
    return BolideError("\n".join([*lines, f"  remedy: {remedy}"]))
