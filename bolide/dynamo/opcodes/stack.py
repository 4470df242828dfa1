"""Handlers of operations on the stack, variables, containers, attributes and operators. Control flow is in
`opcodes.control`."""

from __future__ import annotations

import builtins
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.config import config
from bolide.dynamo.library.text import format_value
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import load_super, named_attribute
from bolide.dynamo.machine.interpreter import Call, Machine, opcode, polyfill
from bolide.dynamo.machine.items import delete_item, get_item, set_item
from bolide.dynamo.machine.stand_ins import class_of, concrete, real_value
from bolide.dynamo.machine.writes import delete_attribute, store_attribute
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.state import is_dynamo_compiling
from bolide.dynamo.world.frames import Frame, Generator
from bolide.dynamo.world.outside import Deferred, Outside, Torn
from bolide.dynamo.world.texts import TracedText, joined
from bolide.symbolic import is_undecided

NULL: Any = type("Null", (), {"__repr__": lambda self: "<null>", "__slots__": ()})()

# ---- stack -----------------------------------------------------------------------------------------------------------


@opcode("POP_TOP")
def _pop_top(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL")
def _push_null(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.append(NULL)


@opcode("COPY")
def _copy(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


@opcode("SWAP")
def _swap(vm: Machine, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


@opcode("LOAD_CONST")
def _load_const(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.append(arg)


# ---- variables -------------------------------------------------------------------------------------------------------


def _unbound(frame: Frame, index: int) -> Exception:
    """The error about a variable without a value."""
    name = frame.code.locals_names[index]
    free = index >= len(frame.code.locals_names) - len(frame.code.freevars)
    if VERSION == (3, 10):
        kind, scope = ("free", " in enclosing scope") if free else ("local", "")
        text = f"{kind} variable '{name}' referenced before assignment{scope}"
    elif free:
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
    else:
        text = f"cannot access local variable '{name}' where it is not associated with a value"
    return NameError(text) if free else UnboundLocalError(text)


@opcode("LOAD_FAST")
def _load_fast(vm: Machine, frame: Frame, arg: int) -> None:
    value = frame.locals[arg]
    if value is MISSING:
        raise _unbound(frame, arg)
    if type(value) in _SEEN_LATE:
        value = vm.local(frame, arg)
    frame.stack.append(value)


_SEEN_LATE = frozenset({Deferred, Torn})  # what stands in a variable until that is read


@opcode("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.locals[arg])
    frame.locals[arg] = MISSING


@opcode("STORE_FAST")
def _store_fast(vm: Machine, frame: Frame, arg: int) -> None:
    variables = frame.locals
    if type(variables[arg]) in _FROM_OUTSIDE:
        vm.world.lifetimes.refuse_drop(variables[arg])
    variables[arg] = frame.stack.pop()


_FROM_OUTSIDE = frozenset({Deferred, Outside})  # what stands in a variable for an object of the outside world


@opcode("DELETE_FAST")
def _delete_fast(vm: Machine, frame: Frame, arg: int) -> None:
    if frame.locals[arg] is MISSING:
        raise _unbound(frame, arg)
    if type(frame.locals[arg]) is Torn:
        vm.local(frame, arg)
    if type(frame.locals[arg]) in _FROM_OUTSIDE:
        vm.world.lifetimes.refuse_drop(frame.locals[arg])
    frame.locals[arg] = MISSING


@opcode("MAKE_CELL")
def _make_cell(vm: Machine, frame: Frame, arg: int) -> None:
    cell = vm.world.namespaces.new_cell()
    if frame.locals[arg] is not MISSING:
        cell.cell_contents = frame.locals[arg]
    frame.locals[arg] = cell


@opcode("COPY_FREE_VARS")
def _copy_free_vars(vm: Machine, frame: Frame, arg: int) -> None:
    function = frame.function
    if id(function) not in vm.own_functions:
        vm.world.namespaces.note_cells(function.__closure__)
    frame.locals[-arg:] = function.__closure__


@opcode("LOAD_DEREF")
def _load_deref(vm: Machine, frame: Frame, arg: int) -> None:
    value = vm.world.namespaces.load_cell(frame.locals[arg], frame.code.locals_names[arg])
    if value is MISSING:
        raise _unbound(frame, arg)
    frame.stack.append(value)


@opcode("STORE_DEREF")
def _store_deref(vm: Machine, frame: Frame, arg: int) -> None:
    vm.world.namespaces.store_cell(frame.locals[arg], frame.code.locals_names[arg], frame.stack.pop())


@opcode("DELETE_DEREF")
def _delete_deref(vm: Machine, frame: Frame, arg: int) -> None:
    name = frame.code.locals_names[arg]
    if vm.world.namespaces.load_cell(frame.locals[arg], name) is MISSING:
        raise _unbound(frame, arg)
    vm.world.namespaces.store_cell(frame.locals[arg], name, MISSING)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def _load_class_deref(vm: Machine, frame: Frame, arg: int) -> None:
    name = frame.code.locals_names[arg]
    namespace = frame.stack.pop()
    if name in namespace:
        frame.stack.append(namespace[name])
    else:
        _load_deref(vm, frame, arg)


def _undefined(name: str) -> NameError:
    return NameError(f"name '{name}' is not defined", name=name)


def _find_global(vm: Machine, frame: Frame, name: str) -> object:
    value = vm.world.namespaces.load_global(frame.globals, name)
    if value is MISSING:
        value = vm.world.namespaces.load_global(builtins.__dict__, name)
        if value is MISSING:
            raise _undefined(name)
    return value


@opcode("LOAD_GLOBAL")
def _load_global(vm: Machine, frame: Frame, arg: tuple[str, bool]) -> None:
    if arg[1]:
        frame.stack.append(NULL)
    frame.stack.append(_find_global(vm, frame, arg[0]))


@opcode("STORE_GLOBAL")
def _store_global(vm: Machine, frame: Frame, arg: str) -> None:
    vm.world.namespaces.store_global(frame.globals, arg, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def _delete_global(vm: Machine, frame: Frame, arg: str) -> None:
    if vm.world.namespaces.load_global(frame.globals, arg) is MISSING:
        raise _undefined(arg)
    vm.world.namespaces.store_global(frame.globals, arg, MISSING)


@opcode("LOAD_NAME")
def _load_name(vm: Machine, frame: Frame, arg: str) -> None:
    if frame.namespace is not None and arg in frame.namespace:
        frame.stack.append(frame.namespace[arg])
    else:
        frame.stack.append(_find_global(vm, frame, arg))


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(vm: Machine, frame: Frame, arg: str) -> None:
    namespace = frame.stack.pop()
    frame.stack.append(namespace[arg] if arg in namespace else _find_global(vm, frame, arg))


@opcode("LOAD_LOCALS")
def _load_locals(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.append(frame.namespace)


@opcode("STORE_NAME")
def _store_name(vm: Machine, frame: Frame, arg: str) -> None:
    assert frame.namespace is not None
    frame.namespace[arg] = frame.stack.pop()


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(vm: Machine, frame: Frame, arg: object) -> None:
    assert frame.namespace is not None
    if "__annotations__" not in frame.namespace:
        frame.namespace["__annotations__"] = {}


@opcode("DELETE_NAME")
def _delete_name(vm: Machine, frame: Frame, arg: str) -> None:
    assert frame.namespace is not None
    if arg not in frame.namespace:
        raise _undefined(arg)
    del frame.namespace[arg]


# ---- building containers ---------------------------------------------------------------------------------------------


def pop_many(frame: Frame, count: int) -> list[Any]:
    """The values on top of the stack, the uppermost last."""
    if not count:
        return []
    items = frame.stack[-count:]
    del frame.stack[-count:]
    return items


@opcode("BUILD_TUPLE")
def _build_tuple(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(tuple(pop_many(frame, arg)))


@opcode("BUILD_LIST")
def _build_list(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(pop_many(frame, arg))


def _put(vm: Machine, put: Callable[..., object], owner: object, key: object, *value: object) -> None:
    """Put something into a container that the program makes."""
    if operations.is_keyed_by_sizes(vm, owner, key):
        operations.with_key(vm, put, owner, key, *value)
    else:
        put(owner, concrete(vm, key) if type(key) is TracedText and value else key, *value)


@opcode("BUILD_SET")
def _build_set(vm: Machine, frame: Frame, arg: int) -> None:
    if config.inject_BUILD_SET_unimplemented_TESTING_ONLY and is_dynamo_compiling():
        raise vm.unsupported("BUILD_SET is declared unknown", "bytecode", operation="BUILD_SET")
    made: set[object] = set()
    for item in pop_many(frame, arg):
        _put(vm, set.add, made, item)
    frame.stack.append(made)


@opcode("BUILD_MAP")
def _build_map(vm: Machine, frame: Frame, arg: int) -> None:
    items = pop_many(frame, 2 * arg)
    made: dict[object, object] = {}
    for key, value in zip(items[::2], items[1::2]):
        _put(vm, operator.setitem, made, key, value)
    frame.stack.append(made)


@opcode("BUILD_CONST_KEY_MAP")
def _build_const_key_map(vm: Machine, frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, pop_many(frame, arg))))


@opcode("BUILD_STRING")
def _build_string(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(joined(pop_many(frame, arg)))


@opcode("BUILD_SLICE")
def _build_slice(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack.append(slice(*pop_many(frame, arg)))


def _adds(name: str, add: Callable[[Any, object], None]) -> None:
    @opcode(name)
    def handler(vm: Machine, frame: Frame, arg: int) -> None:
        value = frame.stack.pop()
        _put(vm, add, frame.stack[-arg], value)


_adds("LIST_APPEND", list.append)
_adds("SET_ADD", set.add)


@opcode("MAP_ADD")
def _map_add(vm: Machine, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    set_item(vm, frame.stack[-arg], key, value)


def is_iterable(vm: Machine, value: object) -> bool:
    cls = class_of(value)
    return cls is Generator or any(
        vm.world.classes.lookup(cls, name) is not MISSING for name in ("__iter__", "__getitem__")
    )


@opcode("LIST_EXTEND")
def _list_extend(vm: Machine, frame: Frame, arg: int) -> bool | None:
    value = frame.stack.pop()
    if not is_iterable(vm, value):
        raise TypeError(f"Value after * must be an iterable, not {class_of(value).__name__}")
    return vm.do(frame, Call(list.extend, [frame.stack[-arg], value]))


@opcode("SET_UPDATE")
def _set_update(vm: Machine, frame: Frame, arg: int) -> bool | None:
    value = frame.stack.pop()
    return vm.do(frame, Call(set.update, [frame.stack[-arg], value]))


@opcode("DICT_UPDATE")
def _dict_update(vm: Machine, frame: Frame, arg: int) -> bool | None:
    value = frame.stack.pop()
    target = frame.stack[-arg]
    if operations.is_stored(vm.world, class_of(value)):
        return vm.do(frame, Call(dict.update, [target, value]))
    return vm.do(frame, Call.polyfill("merge", target, value))


@opcode("DICT_MERGE")
def _dict_merge(vm: Machine, frame: Frame, arg: int) -> bool | None:
    """The keywords of a call: an update that refuses a key that is there already."""
    value = frame.stack.pop()
    target = frame.stack[-arg]
    function = frame.stack[-arg - 2]
    if function is NULL:
        function = frame.stack[-arg - 3]
    if operations.is_stored(vm.world, class_of(value)):
        value = operations.native_view(vm, value)
        repeated = next((key for key in dict.keys(value) if key in target), MISSING)
        if repeated is not MISSING:
            if VERSION < (3, 12) and vm.handled() is not None:  # CPython does not find its own error again
                raise KeyError(repeated)
            raise TypeError(f"{described(function)} got multiple values for keyword argument '{repeated}'")
        target.update(value)
        return None
    misread = VERSION >= (3, 12)
    return vm.do(frame, Call.polyfill("merge_keywords", target, value, described(function), misread))


def described(function: object) -> str:
    """A function as CPython's messages about calls name it."""
    value = real_value(function)
    name = getattr(value, "__qualname__", None)
    if name is None:
        return str(value)
    module = getattr(value, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@opcode("LIST_TO_TUPLE")
def _list_to_tuple(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.append(tuple(frame.stack.pop()))


def _items(vm: Machine, frame: Frame, value: object, count: int, and_rest: bool = False) -> Any:
    """The first `count` items of an iterable, and the rest if wanted, as a list; True when a frame was pushed that
    finds them: then the operation is to be done again on its result."""
    if type(value) is tuple or type(value) is list:
        return value
    if not is_iterable(vm, value):
        raise TypeError(f"cannot unpack non-iterable {class_of(value).__name__} object")
    items = operations.native_iterable(vm, value)
    if items is MISSING:
        frame.pc -= 1
        return vm.call(frame, polyfill("take_all" if and_rest else "take"), [value, count])
    return list(itertools.islice(items, None if and_rest else count))


@opcode("UNPACK_SEQUENCE")
def _unpack_sequence(vm: Machine, frame: Frame, arg: int) -> bool | None:
    items = _items(vm, frame, frame.stack.pop(), arg + 1)
    if items is True:
        return True
    if len(items) < arg:
        raise ValueError(f"not enough values to unpack (expected {arg}, got {len(items)})")
    if len(items) > arg:
        raise ValueError(f"too many values to unpack (expected {arg})")
    frame.stack.extend(reversed(items))
    return None


@opcode("UNPACK_EX")
def _unpack_ex(vm: Machine, frame: Frame, arg: int) -> bool | None:
    before, after = arg & 0xFF, arg >> 8
    items = _items(vm, frame, frame.stack.pop(), before, and_rest=True)
    if items is True:
        return True
    if len(items) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    middle = list(items[before : len(items) - after])
    frame.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))
    return None


# ---- attributes and items --------------------------------------------------------------------------------------------


@opcode("LOAD_ATTR")
def _load_attr(vm: Machine, frame: Frame, arg: str) -> bool | None:
    return vm.answer(frame, named_attribute(vm, frame.stack.pop(), arg))


@opcode("LOAD_METHOD")
def _load_method(vm: Machine, frame: Frame, arg: str) -> bool | None:
    owner = frame.stack.pop()
    frame.stack.append(NULL)
    return vm.answer(frame, named_attribute(vm, owner, arg))


@opcode("LOAD_SUPER_ATTR")
def _load_super_attr(vm: Machine, frame: Frame, arg: tuple[str, bool]) -> bool | None:
    owner = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack.pop()
    if arg[1]:
        frame.stack.append(NULL)
    return vm.answer(frame, load_super(vm, cls, owner, arg[0]))


@opcode("STORE_ATTR")
def _store_attr(vm: Machine, frame: Frame, arg: str) -> bool | None:
    owner = frame.stack.pop()
    return vm.do(frame, store_attribute(vm, owner, arg, frame.stack.pop()))


@opcode("DELETE_ATTR")
def _delete_attr(vm: Machine, frame: Frame, arg: str) -> bool | None:
    return vm.do(frame, delete_attribute(vm, frame.stack.pop(), arg))


@opcode("BINARY_SUBSCR")
def _binary_subscr(vm: Machine, frame: Frame, arg: object) -> bool | None:
    key = frame.stack.pop()
    return vm.answer(frame, get_item(vm, frame.stack.pop(), key))


@opcode("STORE_SUBSCR")
def _store_subscr(vm: Machine, frame: Frame, arg: object) -> bool | None:
    key = frame.stack.pop()
    owner = frame.stack.pop()
    return vm.do(frame, set_item(vm, owner, key, frame.stack.pop()))


@opcode("DELETE_SUBSCR")
def _delete_subscr(vm: Machine, frame: Frame, arg: object) -> bool | None:
    key = frame.stack.pop()
    return vm.do(frame, delete_item(vm, frame.stack.pop(), key))


# ---- operators -------------------------------------------------------------------------------------------------------


@opcode("BINARY_OP", "COMPARE_OP")
def _binary_op(vm: Machine, frame: Frame, arg: Any) -> bool | None:
    right = frame.stack.pop()
    return vm.answer(frame, operations.binary(vm, arg, frame.stack.pop(), right))


@opcode("UNARY_OP")
def _unary_op(vm: Machine, frame: Frame, arg: Any) -> bool | None:
    return vm.answer(frame, operations.unary(vm, arg, frame.stack.pop()))


@opcode("UNARY_NOT")
def _unary_not(vm: Machine, frame: Frame, arg: object) -> bool | None:
    value = frame.stack.pop()
    if is_undecided(value):
        frame.stack.append(torch.sym_not(value))  # type: ignore[no-untyped-call]
        return None
    value = operations.kept_truth(vm, value)
    if value is True or value is False:
        frame.stack.append(not value)
        return None
    frame.pc -= 1  # interpret __bool__ or __len__, then do this operation again on its result
    return vm.answer(frame, value)


@opcode("IS_OP")
def _is_op(vm: Machine, frame: Frame, arg: int) -> None:
    right, left = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(operations.is_same(vm, left, right) != bool(arg))


@opcode("CONTAINS_OP")
def _contains_op(vm: Machine, frame: Frame, arg: int) -> bool | None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    result = operations.contains(vm, container, item)
    if result is True or result is False:
        frame.stack.append(result != bool(arg))
        return None
    return vm.call(frame, polyfill("contains_not" if arg else "contains"), [container, item])


@opcode("FORMAT_VALUE")
def _format_value(vm: Machine, frame: Frame, arg: int) -> bool | None:
    spec = frame.stack.pop() if arg & 4 else ""
    return vm.answer(frame, format_value(vm, frame.stack.pop(), arg & 3, spec))


@opcode("GET_LEN")
def _get_len(vm: Machine, frame: Frame, arg: object) -> bool | None:
    return vm.call(frame, len, [frame.stack[-1]])


@opcode("MATCH_KIND")
def _match_kind(vm: Machine, frame: Frame, arg: int) -> None:
    """Whether a class takes part in patterns of sequences or mappings: `arg` is a flag of classes."""
    frame.stack.append(bool(class_of(frame.stack[-1]).__flags__ & arg))


@opcode("MATCH_KEYS")
def _match_keys(vm: Machine, frame: Frame, arg: object) -> bool | None:
    return vm.call(frame, polyfill("match_keys"), [frame.stack[-2], frame.stack[-1]])


@opcode("COPY_DICT_WITHOUT_KEYS")
def _copy_dict_without_keys(vm: Machine, frame: Frame, arg: object) -> bool | None:
    keys = frame.stack.pop()
    return vm.call(frame, polyfill("dict_without_keys"), [frame.stack[-1], keys])


@opcode("MATCH_CLASS")
def _match_class(vm: Machine, frame: Frame, arg: int) -> bool | None:
    names = frame.stack.pop()
    cls = frame.stack.pop()
    return vm.call(frame, polyfill("match_class"), [frame.stack.pop(), cls, arg, names])


# ---- functions -------------------------------------------------------------------------------------------------------


@opcode("MAKE_FUNCTION")
def _make_function(vm: Machine, frame: Frame, arg: int) -> None:
    """`arg` says what is below the code: 1 defaults, 2 keyword defaults, 4 annotations, 8 a closure; 16: the qualified
    name is above it."""
    stack = frame.stack
    qualname = stack.pop() if arg & 16 else None
    code = stack.pop()
    closure = stack.pop() if arg & 8 else None
    annotations = stack.pop() if arg & 4 else None
    keyword_defaults = operations.native_view(vm, stack.pop()) if arg & 2 else None
    defaults = stack.pop() if arg & 1 else None
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__kwdefaults__ = keyword_defaults
    if qualname is not None:
        function.__qualname__ = qualname
    if annotations:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2]))
    vm.note_function(function)
    stack.append(function)
