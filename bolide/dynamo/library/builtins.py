"""Our own answers to calls of built-in functions that look at classes and attributes, and to methods of built-in
types that may call back into the program."""

from __future__ import annotations

import abc
import builtins
import collections
import inspect
import io
import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_all, intercept_each, intercept_table, refuse
from bolide.dynamo.machine import attributes, operations
from bolide.dynamo.machine.attributes import Super, check_super, load_attribute
from bolide.dynamo.machine.breaking import can_require
from bolide.dynamo.machine.calls import INTERCEPTS, NATIVE, SWITCHED, asks_for_keys, construct, intercept, is_filled
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.items import by_index, is_converted, is_lazy_slice
from bolide.dynamo.machine.native_calls import runs_natively
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.machine.stand_ins import (
    PENDING,
    PLAIN,
    STAND_INS,
    SYMBOLIC,
    as_number,
    class_of,
    concrete,
    is_number,
    seen_value,
)
from bolide.dynamo.machine.writes import default_delete, default_store, delete_attribute, store_attribute
from bolide.dynamo.polyfills import generic
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.outside import CONTAINERS, Outside, Overlay
from bolide.dynamo.world.texts import TracedText, has_history, id_of
from bolide.symbolic import is_data
from bolide.tracing import TracedTensor
from bolide.tracing.numbers.scalars import MATH, TracedFloat, compute

# ---- classes and attributes ------------------------------------------------------------------------------------------


@intercept(type)
def _type(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1:
        if type(args[0]) is TracedTensor:
            return load_attribute(vm, args[0], "__class__")
        cls = class_of(args[0])
        return types.GeneratorType if cls is Generator else cls
    name = concrete(vm, args[0]) if type(args[0]) in PENDING else args[0]
    cls = vm.within(type)(name, *args[1:], **kwargs)
    vm.world.classes.own[id(cls)] = cls
    return cls


def _class_check(vm: Machine, cls: Any, name: str) -> Any:
    """The `__instancecheck__` or `__subclasscheck__` of a class (its metaclass has it) or object if it is written
    in Python by the program."""
    kind = class_of(cls)
    if kind in (type, abc.ABCMeta):
        return None
    method = vm.world.classes.python_method(kind, name)
    return None if method is None or runs_natively(method) else method


def _apart(vm: Machine, classes: Any, name: str) -> Sequence[Any] | None:
    """The parts of a tuple, or of a union, of classes if they have to be asked one by one: the program's code is asked
    of one of them, or one is no class. Else None."""
    if isinstance(classes, tuple):
        parts = tuple(tuple.__iter__(classes))
        plain = all(issubclass(type(part), type) for part in parts)
    elif type(classes) is types.UnionType:
        parts, plain = classes.__args__, True
    else:
        return None
    return None if plain and not any(_class_check(vm, part, name) for part in parts) else parts


def _of_any(vm: Machine, check: Any, value: Any, classes: Sequence[Any]) -> Any:
    """Whether `check`, `isinstance` or `issubclass`, holds for one of several classes: those behind the first for which
    it does are not looked at."""
    for place, cls in enumerate(classes):
        holds = INTERCEPTS[check](vm, [value, cls], {})
        if type(holds) is Call:
            return Call(polyfill("holds_for_any"), [check, value, classes[place:]])
        if holds:
            return True
    return False


@intercept(vars(types.FunctionType)["__get__"])
def _bind(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    function, owner = args[0], args[1]
    return function if owner is None else types.MethodType(function, owner)


@intercept(isinstance)
def _isinstance(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value, cls = args
    if type(value) is Generator:
        original = original_of(value)
        return isinstance((_ for _ in ()) if original is None else original.empty[0](*original.empty[1:]), cls)
    if parts := _apart(vm, cls, "__instancecheck__"):
        return _of_any(vm, isinstance, value, parts)
    seen = class_of(value)
    method = None if seen is cls else _class_check(vm, cls, "__instancecheck__")
    if method is not None:
        return Call(polyfill("composed"), [bool, method, cls, value])
    if getattr(cls, "_is_protocol", False) is True:
        return _is_of_protocol(vm, value, cls)
    holds = _is_of_class(value, seen, cls)
    vm.world.classes.rely_on_bases(seen, cls)
    return holds


def _is_of_protocol(vm: Machine, value: Any, protocol: Any) -> bool:
    """What an object itself has decides."""
    if isinstance(value, torch.Tensor):
        try:
            return issubclass(load_attribute(vm, value, "__class__"), protocol)
        except TypeError:  # there is more than methods in the protocol
            reason = "whether a tensor has the attributes of a protocol is asked"
            raise vm.unsupported(reason, "tensor_method", "use hasattr") from None
    holds = _is_of_class(value, class_of(value), protocol)
    if type(value) is Outside:
        vm.world.guards.add(Source("apply", value.source, (protocol,), isinstance), "equals", holds)
    return holds


def _is_of_class(value: Any, seen: type, cls: Any) -> bool:
    if type(cls) is type and issubclass(seen, cls):
        return True
    if type(value) in STAND_INS and type(value) not in PENDING:
        return issubclass(STAND_INS[type(value)].seen, cls)
    return isinstance(seen_value(value), cls) or (_is_faced(value) and issubclass(value.face, cls))


def _is_faced(value: Any) -> bool:
    return type(value) is TracedTensor and value.face is not None


@intercept(type.__instancecheck__)
def _instance_check(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    cls, value = args
    vm.world.classes.rely_on_bases(class_of(value), cls)
    return type.__instancecheck__(cls, seen_value(value)) or (_is_faced(value) and issubclass(value.face, cls))


@intercept(issubclass)
def _issubclass(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    cls, wanted = args
    if parts := _apart(vm, wanted, "__subclasscheck__"):
        return _of_any(vm, issubclass, cls, parts)
    method = _class_check(vm, wanted, "__subclasscheck__")
    if method is not None:
        return Call(polyfill("composed"), [bool, method, wanted, cls])
    holds = issubclass(cls, wanted)
    vm.world.classes.rely_on_bases(cls, wanted)
    return holds


@intercept(type.__subclasscheck__)
def _subclass_check(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    wanted, cls = args
    holds = type.__subclasscheck__(wanted, cls)
    vm.world.classes.rely_on_bases(cls, wanted)
    return holds


@intercept(callable)
def _callable(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.world.classes.rely_on(class_of(args[0]), "__call__")
    return callable(seen_value(args[0]))


@intercept(hash)
def _hash(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    method = vm.world.classes.python_method(class_of(args[0]), "__hash__")
    if method is not None:
        return Call(polyfill("hash_of"), args)
    if type(args[0]) not in (int, bool, float):
        vm.world.guards.reliance.reasons.append(
            ("it asks for a hash, which is another one in each process", vm.where())
        )
    return hash(args[0])


@intercept(float.is_integer)
def _is_integer(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs or type(args[0]) not in (torch.SymFloat, TracedFloat):
        return NATIVE
    vm.trace.where = vm.where()
    number = args[0]
    if type(number) is torch.SymFloat:
        return torch.SymBool(number.node.is_integer())  # type: ignore[no-untyped-call]
    return number.is_integer()


@intercept(super)
def _super(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2:
        return _super_of(*args)
    if args:
        return NATIVE
    frame = vm.frames[-1]
    if not frame.code.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    if "__class__" not in frame.code.locals_names:
        raise RuntimeError("super(): __class__ cell not found")
    cell = frame.locals[frame.code.locals_names.index("__class__")]
    owner = vm.local(frame, 0)
    if type(owner) is types.CellType:
        owner = vm.world.namespaces.load_cell(owner, frame.code.locals_names[0])
    return _super_of(vm.world.namespaces.load_cell(cell, "__class__"), owner)


def _super_of(cls: Any, owner: Any) -> Any:
    check_super(cls, owner)
    return Super(cls, owner)


@intercept(getattr)
def _getattr(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    try:
        result = load_attribute(vm, args[0], _named(args))
    except AttributeError:
        if len(args) == 2:
            raise
        return args[2]
    if type(result) is Call and len(args) == 3:
        return Call(polyfill("getattr_default"), args)
    return result


@intercept(hasattr)
def _hasattr(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    try:
        result = load_attribute(vm, args[0], _named(args))
    except AttributeError:
        return False
    return Call(polyfill("has_attribute"), args) if type(result) is Call else True


@intercept_table({setattr: store_attribute, delattr: delete_attribute})
def _change(function: object, change: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return change(vm, args[0], _named(args), *args[2:])


_BUILT_IN = (object, *CONTAINERS, tuple, dict, collections.defaultdict, int, float, str, bytes, BaseException)


@intercept(*{cls.__getattribute__ for cls in _BUILT_IN})
def _object_getattribute(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return attributes.default_attribute(vm, args[0], class_of(args[0]), _named(args), False)


@intercept_table({object.__setattr__: default_store, object.__delattr__: default_delete})
def _change_plainly(function: object, change: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return change(vm, args[0], class_of(args[0]), _named(args), *args[2:])


_ORDERS = [vars(object)[name] for name in ("__lt__", "__le__", "__gt__", "__ge__")]

intercept_all(
    {
        object.__init__: lambda vm, args, kwargs: None,
        object.__eq__: lambda vm, args, kwargs: True if args[0] is args[1] else NotImplemented,
        object.__ne__: lambda vm, args, kwargs: Call(polyfill("object_unequal"), args),
        object.__hash__: lambda vm, args, kwargs: object.__hash__(args[0]),
        **dict.fromkeys(_ORDERS, lambda vm, args, kwargs: NotImplemented),
        bool: lambda vm, args, kwargs: operations.kept_truth(vm, args[0]) if len(args) == 1 else bool(*args),
        id: lambda vm, args, kwargs: id(*args, **kwargs) if len(args) != 1 or kwargs else id_of(vm.world, *args),
        generic.is_stored: lambda vm, args, kwargs: operations.is_stored(vm.world, class_of(args[0])),
    }
)


def _asks_type(predicate: Callable[[object], bool], kind: type) -> None:
    """A predicate of `inspect` is a question about the type: it is no native code that would need a number's value."""
    answers(predicate)(lambda vm, object: Call(isinstance, [object, kind]))


_asks_type(inspect.isclass, type)
_asks_type(inspect.isfunction, types.FunctionType)
_asks_type(inspect.ismethod, types.MethodType)
_asks_type(inspect.ismodule, types.ModuleType)
_asks_type(inspect.isbuiltin, types.BuiltinFunctionType)
_asks_type(inspect.isgenerator, types.GeneratorType)


def _named(args: Args) -> str:
    if type(args[1]) is TracedText:
        args[1] = str(args[1])
    if not isinstance(args[1], str):
        raise TypeError(f"attribute name must be string, not '{class_of(args[1]).__name__}'")
    return args[1]


@intercept(type.__call__)
def _type_call(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return NATIVE
    if not isinstance(args[0], type):
        name = class_of(args[0]).__name__
        raise TypeError(f"descriptor '__call__' requires a 'type' object but received a '{name}'")
    frame = vm.frames[-1]
    result = construct(vm, frame, args[0], args[1:], kwargs)
    if result is True:
        return SWITCHED
    return result if type(result) is Call else frame.stack.pop()


refuse(
    *(builtins.open, builtins.input),
    reason="files and terminals are outside",
    kind="side_effect",
    remedy="do this outside the compiled function",
)


@intercept(print)
def _print(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    written = vm.world.namespaces.globals.get(id(sys.__dict__))
    file = kwargs.get("file")
    if file is None and written is not None:  # redirected, perhaps
        file = vm.world.namespaces.load_global(sys.__dict__, "stdout")
    if type(file) is io.StringIO:
        kwargs.pop("flush", None)
        return Call(polyfill("print_to"), args, {**kwargs, "file": file})
    if can_require(vm) and any(map(has_history, args)):
        return Call(polyfill("print_texts"), [args, kwargs])
    reason, remedy = "print writes to the outside world", "print outside the compiled function"
    raise vm.unsupported(reason, "side_effect", remedy, "print(...)")


# ---- conversions -----------------------------------------------------------------------------------------------------


def _converted(vm: Machine, function: Any, value: Any) -> Any:
    """`int`, `float` and the like of a symbolic number."""
    vm.trace.where = vm.where()
    if type(value) is torch.SymBool:
        return function(bool(value))
    is_int = SYMBOLIC[type(value)] is int
    if is_int and function in (int, operator.index):
        return value
    if function is float:
        if is_int and not value.node.is_exact():
            return value.node.in_graph()
        return torch.sym_float(value) if is_int else value  # type: ignore[no-untyped-call]
    if function is int and type(value) in (torch.SymFloat, TracedFloat):
        return math.trunc(value)
    return function(value)


def _number_of(vm: Machine, function: Any, tensor: TracedTensor) -> Any:
    """`int` and `float` of a tensor."""
    if tensor.numel() != 1 or not vm.trace.is_symbol(tensor, vm.trace.captures_numbers):
        return NATIVE
    vm.trace.where = vm.where()
    value = tensor.item()
    return _converted(vm, function, value) if type(value) in SYMBOLIC else function(value)


def _asked_first(vm: Machine, cls: type, names: tuple[str, ...]) -> str | None:
    """The first of these special methods that a class has, if it is the program's own. What is an int is not asked for
    the integer that it is."""
    for name in names:
        if name == "__index__" and issubclass(cls, int):
            return None
        method = vm.world.classes.lookup(cls, name)
        if method is not MISSING:
            return name if type(method) is types.FunctionType else None
    return None


_NUMBERS = (int, float, operator.index)
_BY_SPECIAL_METHOD: dict[Any, tuple[tuple[str, ...], type | None]] = {
    abs: (("__abs__",), None),
    round: (("__round__",), None),
    math.floor: (("__floor__",), None),
    math.ceil: (("__ceil__",), None),
    math.trunc: (("__trunc__",), None),
    int: (("__int__", "__index__"), int),
    float: (("__float__", "__index__"), float),
    complex: (("__complex__", "__float__", "__index__"), complex),
    bytes: (("__bytes__",), bytes),
    **dict.fromkeys((operator.index, bin, oct, hex), (("__index__",), int)),
}


@intercept_table(_BY_SPECIAL_METHOD)
def _by_special_method(
    function: Any, by: tuple[tuple[str, ...], type | None], vm: Machine, args: Args, kwargs: Kwargs
) -> object:
    """`function` of an object with one of these special methods is a call of it, whose result must be of this class."""
    value = args[0] if args else None
    if len(args) == 1 and type(value) in SYMBOLIC:
        return _converted(vm, function, value)
    if len(args) == 1 and is_number(value) and function in _NUMBERS:
        vm.trace.where = vm.where()
        return Call(function, [as_number(value)])
    if type(value) is TracedTensor:
        if function in _NUMBERS:
            return _number_of(vm, function, value)
        return Call(polyfill("on_floats"), [function, args]) if function in (math.floor, math.ceil) else NATIVE
    names, kind = by
    if args and type(value) not in PLAIN:
        name = _asked_first(vm, class_of(value), names)
        if name is not None:
            return Call(polyfill("via_special"), [name, function, args, kind])
    return NATIVE


def _convert(function: Any, name: str, by: str, vm: Machine, args: Args) -> object:
    """`function` converts its arguments by the special method `name`: where that is the program's, `by` does it. Of
    symbolic numbers it is computed in the graph."""
    if function in MATH and any(type(arg) in SYMBOLIC for arg in args):
        vm.trace.where = vm.where()
        form = f"math.{function.__name__}({{}})"
        if function is math.log and len(args) == 2:
            return operator.truediv(*[_of_number(function, arg, form=form) for arg in args])
        return _of_number(function, *args, form=form.format(", ".join(["{}"] * len(args))))
    tensors = name == "__float__" and any(type(arg) is TracedTensor for arg in args)
    if tensors or any(vm.world.classes.python_method(class_of(arg), name) is not None for arg in args):
        return Call(polyfill(by), [function, args])
    return Call(function, list(map(as_number, args))) if any(map(is_number, args)) else NATIVE


def _of_number(function: Any, *args: Any, form: str) -> Any:
    """A function of `MATH` of numbers."""
    if not any(type(arg) in SYMBOLIC for arg in args):
        return function(*args)
    given = [arg.node.in_graph() if type(arg) in (torch.SymInt, torch.SymFloat) else arg for arg in args]
    return compute(MATH[function], *given, known=function, form=form)


_OF_INTEGERS = (math.isqrt, math.comb, math.perm, math.factorial, math.gcd, math.lcm)


@intercept(range)
def _range(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A loop over steps of symbols needs their number only, not where they begin and end."""
    frame = vm.frames[-1]
    if len(args) != 3 or kwargs or not _are_sizes(args) or frame.code.ops[frame.pc] != "GET_ITER":
        return _convert(range, "__index__", "on_indices", vm, args)
    vm.trace.where = vm.where()
    start, stop, step = args
    if step == 0:
        return NATIVE
    return tuple([start + place * step for place in range(int(-((start - stop) // step)))])


def _are_sizes(args: Args) -> bool:
    """Whether all are integers, and some of them symbols that are not data."""
    return {int, torch.SymInt} >= set(map(type, args)) != {int} and not any(map(is_data, args))


_OF_ITERABLES = (math.prod, math.fsum, math.dist)


@intercept_each(_OF_INTEGERS)
def _of_integers(function: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return _convert(function, "__index__", "on_indices", vm, args)


@intercept_each([f for f in vars(math).values() if callable(f) and f not in INTERCEPTS and f not in _OF_ITERABLES])
def _of_floats(function: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return _convert(function, "__float__", "on_floats", vm, args)


@intercept_table({operator.is_: True, operator.is_not: False})
def _is(function: object, same: bool, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return operations.is_same(vm, *args) is same if len(args) == 2 else NATIVE


@intercept(divmod)
def _divmod(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if any(vm.world.classes.python_method(class_of(arg), "__divmod__") is not None for arg in args):
        return Call(polyfill("binary"), [*args, None, "__divmod__", "__rdivmod__", "divmod()"])
    if any(type(arg) in SYMBOLIC for arg in args):
        vm.trace.where = vm.where()
        return (args[0] // args[1], args[0] % args[1])
    return NATIVE


@intercept(pow)
def _pow(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2:
        return operations.binary(vm, operator.pow, *args)
    method = vm.world.classes.python_method(class_of(args[0]), "__pow__") if args else None
    return NATIVE if method is None else Call(method, args, kwargs)


# ---- lists of objects with an `__eq__` of their own, lazy iterables --------------------------------------------------


@intercept_table(
    {
        **dict.fromkeys((list.index, tuple.index), "list_index"),
        **dict.fromkeys((list.count, tuple.count), "list_count"),
        list.remove: "list_remove",
    }
)
def _search(method: object, name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    compares = len(args) > 1 and type(args[0]) is not Outside and operations.has_python_eq(vm, args[0], args[1])
    return Call(polyfill(name), args, kwargs) if compares else NATIVE


_ITERATING: dict[object, tuple[Any, ...]] = {
    list.extend: ("extend", list.append),
    collections.deque.extend: ("extend", collections.deque.append),
    collections.deque.extendleft: ("extend", collections.deque.appendleft),
    **dict.fromkeys((list.__iadd__, collections.deque.__iadd__), ("list_iadd",)),
    **dict.fromkeys((set.isdisjoint, frozenset.isdisjoint), ("has_items", False)),
    **dict.fromkeys((set.issuperset, frozenset.issuperset), ("has_items", True)),
}
"""Methods that go over their argument: the polyfills, and what these are told first."""


@intercept_table(_ITERATING)
def _iterate(method: object, by: tuple[Any, ...], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    name, *told = by
    lazy = len(args) == 2 and operations.native_iterable(vm, args[1]) is MISSING
    return Call(polyfill(name), [*told, *args]) if lazy else NATIVE


@intercept(list.__setitem__, bytearray.__setitem__)
def _set_slice(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 3:
        return NATIVE
    base = list if issubclass(class_of(args[0]), list) else bytearray
    if call := by_index(vm, base.__setitem__, *args):
        return call
    if is_lazy_slice(vm, args[1], args[2]):
        return Call(polyfill("assign_slice"), [base.__setitem__, *args])
    return NATIVE


_INDEXED = (list, tuple, str, bytes, bytearray, range, torch.Tensor)


@intercept_table(
    {
        **dict.fromkeys([cls.__getitem__ for cls in _INDEXED], 2),
        **dict.fromkeys((list.__delitem__, bytearray.__delitem__), 2),
        torch.Tensor.__setitem__: 3,
    }
)
def _at_an_index(method: Any, count: int, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A method of a sequence or of tensors that is given a place, called by name with `count` arguments."""
    call = by_index(vm, method, *args) if len(args) == count and not kwargs else None
    return NATIVE if call is None else call


@intercept(slice.indices)
def _slice_indices(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    converted = len(args) == 2 and any(is_converted(vm, arg) for arg in args)
    return Call(polyfill("slice_indices"), args) if converted else NATIVE


@intercept_table({cls.fromkeys: cls for cls in (dict, collections.OrderedDict, collections.defaultdict)})
def _from_keys(method: object, cls: type, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    whole = args and type(args[0]) in (dict, set, frozenset)  # their keys are not hashed again
    return NATIVE if whole and cls is dict else Call(polyfill("from_keys"), [cls, *args], kwargs)


@intercept_table({dict.__init__: "dict_update", collections.OrderedDict.__init__: "ordered_update"})
def _dict_init(method: object, name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    asks = len(args) <= 2 and is_filled(vm, args[1:], kwargs)
    return Call(polyfill(name), [args[0], tuple(args[1:]), kwargs]) if asks else NATIVE


@intercept(collections.defaultdict)
def _default_dict(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2 and (type(args[1]) is Outside or _lazy_or_mapping(vm, args[1])):
        return Call(polyfill("make_default_dict"), args, kwargs)
    return NATIVE


# ---- dicts of the outside world --------------------------------------------------------------------------------------


def _dict_setdefault(table: Overlay, key: Any, default: Any = None) -> Any:
    value = table.get(key)
    if value is MISSING:
        table.set(key, default)
    return default if value is MISSING else value


_LAZY_METHODS: dict[str, Callable[..., Any]] = {
    "get": lambda items, key, default=None: default if (item := items.get(key)) is MISSING else item,
    "__contains__": lambda items, key: items.get(key) is not MISSING,
    "__len__": Overlay.length,
    "__setitem__": Overlay.set,
    "setdefault": _dict_setdefault,
}


@intercept(dict.__getitem__)
def _dict_getitem(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 2 or kwargs:
        dict.__getitem__({}, *args[1:], **kwargs)  # raises: it has no signature to check
    owner, key = args
    if type(owner) is Outside:
        key = operations.as_key(vm, key)
        value = owner.dict_items.get(key)
    else:
        value = operations.with_key(vm, dict.get, owner, key, MISSING)
    if value is not MISSING:
        return value
    missing = vm.world.classes.python_method(class_of(owner), "__missing__")
    if missing is not None:
        return Call(missing, args)
    if issubclass(class_of(owner), collections.defaultdict):
        return Call(polyfill("default_item"), args)
    raise KeyError(key)


_KEYED = ("get", "pop", "setdefault", "__setitem__", "__delitem__", "__contains__")
_KEEPING = ("get", "pop", "setdefault", "__setitem__")  # they do not look into their third argument


def _lazy_or_mapping(vm: Machine, value: Any) -> bool:
    return asks_for_keys(vm, value) or operations.native_iterable(vm, value) is MISSING


_DICT_METHODS = (
    "get __contains__ __len__ __setitem__ update keys values items pop popitem setdefault clear copy "
    "__iter__ __delitem__ __reversed__ __eq__ __ne__ __or__ __ror__ __ior__ move_to_end"
)


@intercept_table({method: method for method in (set.add, set.remove, set.discard, set.__contains__)})
def _set_method(method: object, found: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A method of set about one member, which may be a size."""
    if len(args) == 2 and not kwargs and operations.is_keyed_by_sizes(vm, *args):
        return operations.with_key(vm, found, *args)
    return NATIVE


@intercept_table({set: True, set.update: False})
def _made_of_sizes(function: object, new: bool, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Members that are sizes are added one by one."""
    made, members = (set(), args) if new else (next(iter(args), None), args[1:])
    if kwargs or len(members) != 1 or type(members[0]) not in (list, tuple, torch.Size):
        return NATIVE
    keyed = any(operations.is_keyed_by_sizes(vm, made, member) for member in members[0])
    if not keyed or not operations.is_of_sizes(tuple(members[0])):
        return NATIVE
    for member in members[0]:
        operations.with_key(vm, set.add, made, member)
    return made if new else None


@intercept_table(
    {
        vars(cls)[name]: name
        for cls in (dict, collections.OrderedDict)
        for name in _DICT_METHODS.split()
        if name in vars(cls)
    }
)
def _dict_method(method: Any, name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A method of dict on an outside one: lazily where one key is concerned, else on the whole."""
    owner = args[0]
    ordered = method.__objclass__ is collections.OrderedDict  # it asks a subclass
    given = [*args[1:], *kwargs.values()]
    if name in ("update", "__ior__") and (type(owner) is Outside or any(_lazy_or_mapping(vm, arg) for arg in given)):
        if name == "__ior__":
            return Call(polyfill("dict_ior"), args)
        return Call(polyfill("ordered_update" if ordered else "dict_update"), [owner, tuple(args[1:]), kwargs])
    if name == "copy" and not kwargs and operations.has_mapping_code(vm.world, class_of(owner)):
        return Call(polyfill("ordered_copy"), args) if ordered else Call(dict, args)
    if type(owner) is not Outside:
        if name in _KEYED and len(args) > 1 and not kwargs and operations.is_keyed_by_sizes(vm, owner, args[1]):
            return operations.with_key(vm, method, *args)
        if name in _KEEPING and len(args) == 3 and not kwargs and type(args[2]) in PENDING:
            return method(owner, operations.as_key(vm, args[1]), args[2])
        return NATIVE
    if name == "setdefault" and ordered and vm.world.classes.python_method(owner.cls, "__setitem__") is not None:
        return Call(polyfill("ordered_setdefault"), args, kwargs)
    lazy = _LAZY_METHODS.get(name)
    if lazy is not None and not kwargs:
        keyed = [operations.as_key(vm, key) for key in args[1:2]]
        with vm.world.containers.answering():
            return lazy(owner.dict_items, *keyed, *args[2:])
    others = args[1:]
    if name in ("__or__", "__ror__", "__eq__", "__ne__"):
        others = [operations.native_view(vm, other) for other in others]
    view = owner.dict_items.materialise()
    bound = method.__get__(view) if isinstance(view, method.__objclass__) else getattr(view, name)
    return bound(*others, **kwargs)
