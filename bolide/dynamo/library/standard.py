"""Our own answers to calls of the standard library: functools, operator, copy, weakref, random, logging, …"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import inspect
import io
import json
import logging
import operator
import os
import random
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo import policy
from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.bytecode.uniform import OPERATORS
from bolide.dynamo.library.handlers import (
    Args,
    Kwargs,
    answers,
    by_polyfill,
    intercept_all,
    intercept_each,
    intercept_table,
    refuse,
)
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.caches import Writes
from bolide.dynamo.machine.calls import NATIVE, intercept, referent
from bolide.dynamo.machine.interpreter import Call, Machine, Slot, polyfill
from bolide.dynamo.machine.items import delete_item, get_item, set_item
from bolide.dynamo.machine.native_calls import concrete_data, drawn_or_refused, refused
from bolide.dynamo.machine.operations import is_plain
from bolide.dynamo.machine.originals import original_of, remaking
from bolide.dynamo.machine.stand_ins import STAND_INS, SYMBOLIC, class_of
from bolide.dynamo.machine.tensors import own_attributes
from bolide.dynamo.polyfills import library
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES, LOCK_TYPES, MISSING, is_library_namespace, is_opaque
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.iterators import CALLING, REDUCIBLE, Stream, left_in, reduced, restored
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import pictured
from bolide.tracing import STANDS_FOR, TracedTensor

intercept_all(
    {
        typing.cast: lambda vm, args, kwargs: args[1],
        functools.partial.__call__: lambda vm, args, kwargs: Call(args[0], args[1:], kwargs),
        weakref.ref.__init__: lambda vm, args, kwargs: None,
        weakref.ref.__call__: lambda vm, args, kwargs: referent(vm, args[0]),
        logging.getLogger: lambda vm, args, kwargs: logging.getLogger(*args, **kwargs),
    }
)
by_polyfill(
    {
        functools.update_wrapper: "update_wrapper",
        functools.lru_cache: "lru_cache",
        functools.cache: "cache",
        copy.deepcopy: "copy_deep",
    }
)


# ---- operator --------------------------------------------------------------------------------------------------------


_UNARY = dict.fromkeys((operator.neg, operator.pos, operator.invert), operations.unary)


@intercept_table({**dict.fromkeys(OPERATORS, operations.binary), **_UNARY})
def _operator(function: object, operate: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return operate(vm, function, *args)


@intercept_table({operator.getitem: get_item, operator.setitem: set_item, operator.delitem: delete_item})
def _operation(function: object, operation: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return operation(vm, *args)


intercept(operator.truth)(lambda vm, args, kwargs: operations.kept_truth(vm, *args))


@intercept(operator.length_hint)
def _length_hint(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) is Stream and hasattr(type(args[0].real), "__length_hint__"):
        return _left(vm, args[0])
    return Call(polyfill("length_hint"), args)


def _left(vm: Machine, stream: Stream) -> int:
    """How much is left of an iterator from outside: it is guarded how much there was."""
    source, count = Source("apply", stream.source, (), left_in), left_in(stream.real)
    vm.world.program.fix_count(source, count)
    vm.world.guards.add(source, "equals", count)
    return max(count - stream.taken, 0)


@intercept(operator.contains)
def _contains(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    answer = operations.contains(vm, *args)
    return Call(polyfill("contains"), args) if answer is MISSING else answer


@intercept(operator.not_)
def _not(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = operations.kept_truth(vm, args[0])
    return Call(polyfill("composed"), [operator.not_, bool, *args]) if type(value) is Call else not value


# ---- functools -------------------------------------------------------------------------------------------------------


@intercept(vars(functools.partial)["__setstate__"])
def _set_partial(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if args and vm.world.identities.is_outside(args[0]):
        raise vm.unsupported("the state of a partial from outside is replaced", "attribute_write")
    return NATIVE


answers(library.writes)(Writes)
answers(library.settled)(lambda vm, before, *call: before.settled(vm, *call))


# ---- copy ------------------------------------------------------------------------------------------------------------


@intercept(copy.copy)
def _copy(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1:
        _copies_itself(vm, args[0])  # refuses what cannot be copied, in front of the call
    of_tensor = type(args[0]) is TracedTensor and args[0].face is None
    return Call(polyfill("copy_tensor_shallow" if of_tensor else "copy_shallow"), args, kwargs)


_MEMOS: Slot[list[dict[Any, Any]]] = Slot(list)
_COPIED_GROUPS: Slot[dict[int, tuple[object, list[Any]]]] = Slot(dict)  # by the id of a memo, with that


@answers(library.new_memo)
def _new_memo(vm: Machine) -> object:
    memo: dict[object, object] = {}
    _MEMOS.of(vm).append(memo)
    return memo


@answers(library.memo_key)
def _memo_key(vm: Machine, value: object, memo: object) -> object:
    if not any(memo is known for known in _MEMOS.of(vm)):
        return Call(id, [value])
    outside = vm.world.real_of(value)
    vm.trace.hashed.add(id(value))
    return id(value if outside is None else outside[0])


@intercept(torch.Tensor.__deepcopy__)
def _deepcopy_of_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.trace.where = vm.where()
    if type(args[0]) is TracedTensor and args[0].face is None:
        return Call(polyfill("copy_tensor_deep"), args)
    return args[0].__deepcopy__(*args[1:])


@answers(library.new_tensor, recorded=True)
def _new_tensor(vm: Machine, value: TracedTensor, memo: dict[int, object] | None = None) -> torch.Tensor:
    """Copies of tensors that share memory share theirs in eager: a second one of the same memory is refused."""
    copied_tensor: Any
    if memo is None:
        copied_tensor = copy.copy(value)
    else:
        copied = _COPIED_GROUPS.of(vm).setdefault(id(memo), (memo, []))[1]
        groups = vm.world.aliases.of(value.group)
        if any(known is group for known in copied for group in groups):
            raise vm.unsupported("tensors that share memory are copied together", "tensor_method", "copy one of them")
        copied.append(value.group)
        copied_tensor = value.__deepcopy__(memo)
    if isinstance(value, torch.nn.Buffer):  # type: ignore[arg-type, unused-ignore]
        copied_tensor._is_buffer, copied_tensor.persistent = True, value.persistent
    return copied_tensor  # type: ignore[no-any-return]


@answers(library.beside_tensor)
def _beside_tensor(vm: Machine, value: TracedTensor, shallow: bool = False) -> object:
    if isinstance(value, torch.nn.Parameter) and not shallow:
        return None, {}
    gradient = load_attribute(vm, value, "grad") if value.is_leaf and not shallow else None
    return gradient, own_attributes(vm, value)


@answers(library.copies_itself)
def _copies_itself(vm: Machine, value: Any) -> bool:
    if type(value) is slice or type(value) in CONSTANT_TYPES or isinstance(value, (type, enum.Enum)):
        return True
    if type(value) in SYMBOLIC or is_opaque(value):
        return True
    cls = class_of(value)
    if type(value) is Generator and original_of(value) is None and not value.frame.code.ours:
        raise TypeError(f"cannot pickle '{value.kind}' object")
    known = cls in _COPIED or type(value) in STAND_INS or _is_copied_iterator(value)
    if not known and (type(value) is Generator or not policy.is_python_class(cls)):
        raise vm.unsupported(f"a copy of a {cls.__name__}", "native_call")
    return False


def _is_copied_iterator(value: Any) -> bool:
    """Whether the copy of an iterator is made in the graph. (From 3.12 on those of itertools warn.)"""
    if type(value) is Generator:
        return original_of(value) is not None and not value.running
    return type(value) in REDUCIBLE | CALLING and (VERSION < (3, 12) or type(value).__module__ != "itertools")


@answers(library.iterator_parts)
def _iterator_parts(vm: Machine, value: Any) -> object:
    if type(value) is Generator:
        return (*remaking(value), None)
    return reduced(value) if type(value) in REDUCIBLE | CALLING else None


@answers(library.made_of_parts)
def _made_of_parts(vm: Machine, function: Any, parts: Any, state: object) -> object:
    return Call(function, list(parts)) if type(function) is types.FunctionType else restored(function, parts, state)


_COPIED = frozenset(
    {list, dict, set, tuple, frozenset, bytearray, types.SimpleNamespace, functools.partial}
    | {collections.deque, collections.OrderedDict, collections.defaultdict, torch.Tensor, TracedTensor}
)


# ---- json ------------------------------------------------------------------------------------------------------------


@intercept(json.dumps)
def _dumps(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    data = concrete_data(vm, args[0])
    return json.dumps(data, **kwargs) if is_plain([data, *kwargs.values()]) else NATIVE


# ---- files in memory -------------------------------------------------------------------------------------------------

_IN_MEMORY: tuple[Any, ...] = (io.StringIO, io.BytesIO)
_OF_FILES = "write writelines getvalue read readline readlines seek tell truncate close __enter__ __exit__ __iter__"


@intercept_each(_IN_MEMORY)
def _make_in_memory(cls: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A file in memory that the program made is a value like others."""
    if kwargs or not (len(args) < 2 and is_plain(args)):
        raise refused(vm, cls)
    return cls(*args)


_METHODS_IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType)
_methods = {getattr(cls, name) for cls in _IN_MEMORY for name in (*_OF_FILES.split(), "__next__")}


@intercept_each([method for method in _methods if type(method) in _METHODS_IN_C])
def _use_in_memory(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) not in _IN_MEMORY or not is_plain(args[1:]):
        raise refused(vm, function)
    return function(*args, **kwargs)


# ---- what is of the moment -------------------------------------------------------------------------------------------

_cached: Any = functools._lru_cache_wrapper


@intercept_each([*policy.MOMENT, _cached.cache_info, _cached.cache_clear])
def _moment(function: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    raise refused(vm, function)


@intercept_each(policy.ASKED_AGAIN)
def _asked_again(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not all(type(arg) in (str, bytes, int) for arg in args):
        raise refused(vm, function)
    source = Source("apply", Source("object", None, None, function), tuple(args), ask)
    return vm.world.wrap(function(*args), source)


def ask(function: Callable[..., object], *args: object) -> object:
    """A call, as a step of a source."""
    return function(*args)


@intercept_each((os.putenv, os.unsetenv))
def _environment(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> None:
    """Python reads `os.environ`, which is written as any dict; what C code reads is written with it."""
    vm.later.calls.append((function, args, kwargs))


@intercept(sys.getsizeof)
def _getsizeof(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) not in (int, float, complex, str, bytes):
        raise refused(vm, sys.getsizeof)
    return NATIVE


# ---- weak references -------------------------------------------------------------------------------------------------


@intercept(weakref.proxy)
def _proxy(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Only of an outside object without a callback: that is a real one."""
    if len(args) != 1 or kwargs or type(args[0]) is not Outside:
        raise vm.unsupported("a weak proxy is made", "outside_object", "use weakref.ref")
    return vm.world.wrap(weakref.proxy(args[0].real), Source("apply", args[0].source, (), weakref.proxy))


@answers(weakref.ref.__new__)
def _new_ref(vm: Machine, cls: type[weakref.ref[Any]], target: Any, callback: Any = None) -> object:
    """A reference to an outside object is a real one to the real object; a library's callback, which would tidy up
    when that dies, is left out: what this run makes does not outlive it."""
    tidies_up = type(callback) is types.FunctionType and is_library_namespace(callback.__globals__)
    if callback is not None and not tidies_up:
        raise vm.unsupported("a weak reference with a callback", "outside_object")
    if type(target) is Outside:
        return weakref.ref.__new__(cls, target.real)
    for default in (callback.__defaults__ or ()) if callback is not None else ():
        outside = type(default) is weakref.ref and id(default()) in vm.world.identities.seen
        if outside and not isinstance(target, type):
            reason = "a weak container of the outside world is given a new object, which may die before it"
            raise vm.unsupported(reason, "outside_object")
    return NATIVE


intercept(weakref.ref)(lambda vm, args, kwargs: _new_ref(vm, weakref.ref, *args))


@intercept(weakref.getweakrefcount, weakref.getweakrefs)
def _weak_references(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if any(type(arg) is Outside for arg in args):
        raise vm.unsupported("what refers weakly to an outside object is asked for", "outside_object")
    return NATIVE


# ---- random ----------------------------------------------------------------------------------------------------------


class _SeededRandom(random.Random):
    """A generator that the program made with a seed: it gives the same numbers at every call, so it runs natively."""


setattr(_SeededRandom, STANDS_FOR, random.Random)


@intercept(random.Random)
def _random(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    seeded = len(args) == 1 and type(args[0]) in (int, float, str, bytes)
    return _SeededRandom(*args) if seeded else NATIVE


_draws = [getattr(random.Random, name) for name in dir(random.Random) if name[0] != "_"]


@intercept_each(filter(callable, _draws))
def _draw(method: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) is _SeededRandom and is_plain([*args[1:], *kwargs.values()]):
        return getattr(args[0], method.__name__)(*args[1:], **kwargs)
    return drawn_or_refused(vm, method, args, kwargs)


# ---- logging ---------------------------------------------------------------------------------------------------------


@answers(logging.Logger.isEnabledFor)
def _is_enabled_for(vm: Machine, logger: Any, level: Any) -> bool:
    logger = logger.real if type(logger) is Outside else logger
    enabled: bool = logger.isEnabledFor(level)
    if vm.world.guards.first((logger, level)):
        source = Source("object", None, None, logger)
        vm.world.guards.add(Source("apply", source, (level,), logging.Logger.isEnabledFor), "equals", enabled)
    return enabled


_LEVELS = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
    logging.Logger.log: None,
}


@intercept_table(_LEVELS)
def _log(method: Callable[..., object], level: int | None, vm: Machine, args: Args, kwargs: Kwargs) -> None:
    logger = args[0].real if type(args[0]) is Outside else args[0]
    if _is_enabled_for(vm, logger, args[1] if level is None else level):
        log = vm.within(getattr(logger, method.__name__))
        vm.later.calls.append((log, list(map(pictured, args[1:])), _of_now(vm, kwargs)))


def _of_now(vm: Machine, kwargs: Kwargs) -> Kwargs:
    """The keywords of a call that waits, with the exception that is being handled now, if it asks for that."""
    asked = kwargs.get("exc_info")
    if not asked or isinstance(asked, BaseException):
        return kwargs
    handled = None if type(asked) is tuple else vm.handled()
    if handled is None:
        raise vm.unsupported("a logger is given exc_info", "side_effect")
    return {**kwargs, "exc_info": handled}


# ---- locks and frames ------------------------------------------------------------------------------------------------


HELD_LOCKS: Slot[list[Any]] = Slot(list)
"""The locks that the program has entered and not left."""


@intercept_each(
    [getattr(lock, name) for lock in LOCK_TYPES for name in ("acquire", "release", "__enter__", "__exit__")]
)
def _lock_method(method: Any, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A package's lock that is free guards against the package's own threads while it fills its tables: a ``with``
    block of such a lock is captured, its effects come together. Every other lock is held for real."""
    lock, name = args[0], method.__name__
    if not vm.world.identities.is_outside(lock):
        return NATIVE
    if name == "__enter__" and _in_package(vm) and lock.acquire(blocking=False):
        lock.release()
        HELD_LOCKS.of(vm).append(lock)
        return True
    if name == "__exit__" and lock in HELD_LOCKS.of(vm):
        HELD_LOCKS.of(vm).remove(lock)
        return None
    raise refused(vm, method)


def _in_package(vm: Machine) -> bool:
    filename = vm.frames[-1].code.code.co_filename
    return "site-packages" in filename or "dist-packages" in filename


refuse(*(sys._getframe, inspect.currentframe, inspect.stack), reason="a frame object is asked for", kind="frame_access")
