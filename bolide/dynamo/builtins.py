"""Our own answers to calls of built-in functions: those that look at classes, attributes, iteration or the
interpreter's state."""

from __future__ import annotations

import builtins
import collections
import contextvars
import copy
import functools
import logging
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo import operations
from bolide.dynamo.calls import NATIVE, SWITCHED, construct, intercept
from bolide.dynamo.frames import Generator
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.operations import class_of, polyfill
from bolide.dynamo.polyfills import generic
from bolide.dynamo.program import Source
from bolide.dynamo.values import attributes
from bolide.dynamo.values.attributes import Super, load_attribute
from bolide.dynamo.values.outside import CONSTANT_TYPES, MISSING, Outside, Overlay
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

Args = list[Any]
Kwargs = dict[str, Any]

# ---- classes and attributes ------------------------------------------------------------------------------------------


@intercept(type)
def _type(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1:
        if type(args[0]) is TracedTensor:
            return load_attribute(vm, args[0], "__class__")
        if type(args[0]) is Generator:
            return types.GeneratorType
        return class_of(args[0])
    return type(*args, **kwargs)


def _real(value: Any) -> Any:
    return value.real if type(value) is Outside else value


@intercept(isinstance)
def _isinstance(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value, cls = args
    if type(value) is Generator:
        return isinstance((_ for _ in ()), cls)
    if type(cls) is type and issubclass(class_of(value), cls):
        return True
    return isinstance(_real(value), cls)


@intercept(callable)
def _callable(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return callable(_real(args[0]))


@intercept(id)
def _id(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return id(args[0])


@intercept(hash, object.__hash__)
def _hash(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    method = operations.python_method(vm.world, class_of(args[0]), "__hash__")
    return Call(method, args) if method is not None else hash(args[0])


@intercept(super)
def _super(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if args:
        return Super(args[0], args[1])
    frame = vm.frames[-1]
    cell = frame.locals[frame.code.locals_names.index("__class__")]
    owner = frame.locals[0]
    if type(owner) is types.CellType:
        owner = vm.world.load_cell(owner, frame.code.locals_names[0])
    return Super(vm.world.load_cell(cell, "__class__"), owner)


@intercept(getattr)
def _getattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if not isinstance(args[1], str):
        raise TypeError("attribute name must be string")
    try:
        result = load_attribute(vm, args[0], args[1])
    except AttributeError:
        if len(args) == 2:
            raise
        return args[2]
    if type(result) is Call and len(args) == 3:
        return Call(polyfill("getattr_default"), args)
    return result


@intercept(hasattr)
def _hasattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    try:
        result = load_attribute(vm, args[0], args[1])
    except AttributeError:
        return False
    return Call(polyfill("has_attribute"), args) if type(result) is Call else True


@intercept(setattr)
def _setattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return attributes.store_attribute(vm, *args)


@intercept(delattr)
def _delattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return attributes.delete_attribute(vm, *args)


@intercept(object.__getattribute__)
def _object_getattribute(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return attributes.default_attribute(vm, args[0], class_of(args[0]), args[1], False)


@intercept(object.__setattr__)
def _object_setattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return attributes.default_store(vm, args[0], class_of(args[0]), args[1], args[2])


@intercept(object.__delattr__)
def _object_delattr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    owner = args[0]
    if type(owner) is Outside and owner.attrs is not None:
        owner.attrs.set(args[1], MISSING)
    else:
        object.__delattr__(owner, args[1])
    return None


@intercept(object.__init__)
def _object_init(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return None


@intercept(object.__eq__, object.__ne__)
def _object_eq(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return True if args[0] is args[1] else NotImplemented


@intercept(*[vars(object)[name] for name in ("__lt__", "__le__", "__gt__", "__ge__")])
def _object_order(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return NotImplemented


@intercept(type.__call__)
def _type_call(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    frame = vm.frames[-1]
    result = construct(vm, frame, args[0], args[1:], kwargs)
    if result is True:
        return SWITCHED
    return result if type(result) is Call else frame.stack.pop()


@intercept(vars)
def _vars(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return load_attribute(vm, args[0], "__dict__")


@intercept(builtins.globals, builtins.locals, builtins.eval, builtins.exec, builtins.open, builtins.input)
def _refused(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported("globals, locals, eval, exec, open or input", vm.where(), "do this outside the compiled function")


@intercept(builtins.__build_class__)
def _build_class(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A class statement: its body is interpreted with a namespace of its own, then the metaclass is called natively."""
    body, name, *bases = args
    resolved = tuple(types.resolve_bases(bases))
    meta, namespace, keywords = types.prepare_class(name, resolved, kwargs)
    if any(type(part) is Outside for part in [*resolved, *keywords.values()]):
        raise Unsupported("a class statement with outside objects", vm.where())
    cell = vm.evaluate_body(body, namespace)
    made = meta(name, resolved, namespace, **keywords)
    if type(cell) is types.CellType:
        cell.cell_contents = made
    return made


@intercept(print)
def _print(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported(
        "print writes to the outside world", vm.where(), "print outside the compiled function", operation="print(...)"
    )


# ---- length, iteration -----------------------------------------------------------------------------------------------


@intercept(len)
def _len(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    cls = class_of(value)
    if cls in operations.PLAIN and type(value) is not Outside:
        return len(value)
    method = operations.python_method(vm.world, cls, "__len__")
    if method is not None:
        return Call(method, [value])
    if type(value) is Outside and value.items is not None:
        return value.dict_items.length()
    return len(operations.native_view(vm, value))


@intercept(iter)
def _iter(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if len(args) == 2:
        raise Unsupported("iter(callable, sentinel)", vm.where(), "write a loop")
    if type(value) is Generator:
        return value
    method = operations.python_method(vm.world, class_of(value), "__iter__")
    if method is not None:
        return Call(method, [value])
    items = operations.native_iterable(vm, value)
    return Call(polyfill("iterate"), [value]) if items is MISSING else iter(items)


@intercept(next)
def _next(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    iterator = args[0]
    if type(iterator) is Generator:
        return _resume(vm, iterator, None, *(("default", args[1]) if len(args) == 2 else ("stop", None)))
    if operations.python_method(vm.world, class_of(iterator), "__next__") is not None:
        return Call(polyfill("next_item"), args)
    return next(*args)


def _resume(vm: Machine, generator: Generator, value: Any, then: str, then_value: Any) -> Any:
    if vm.resume(generator, value, then, then_value):
        return SWITCHED
    return vm.frames[-1].stack.pop()


@intercept(generic.generator_next)
def _generator_next(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _resume(vm, args[0], None, "stop", None)


@intercept(generic.generator_send)
def _generator_send(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _resume(vm, args[0], args[1], "stop", None)


@intercept(generic.generator_throw)
def _generator_throw(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    kind = args[1]
    value = args[2] if len(args) > 2 else None
    if isinstance(kind, type):
        kind = value if isinstance(value, BaseException) else (kind() if value is None else kind(value))
    vm.throw(args[0], kind)
    return SWITCHED


@intercept(generic.is_lazy)
def _is_lazy(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if type(value) is Generator:
        return True
    cls = class_of(value)
    return cls not in operations.PLAIN and operations.python_method(vm.world, cls, "__iter__") is not None


def _polyfilled_when_lazy(function: Any, name: str, always: bool = False) -> None:
    """Calls of `function` with an iterable (or callable) of the program's own go to the polyfill `name`."""

    @intercept(function)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        if any(_needs_program(vm, arg) for arg in args):
            return Call(polyfill(name), args, kwargs)
        return function(*[operations.native_view(vm, arg) for arg in args], **kwargs)


def _needs_program(vm: Machine, value: Any) -> bool:
    cls = type(value)
    if cls in operations.PLAIN and cls is not types.FunctionType:
        return cls in (tuple, list) and any(_needs_truth(vm, item) for item in value)
    if cls in (Generator, types.FunctionType, types.MethodType, functools.partial):
        return True
    real = class_of(value)
    return any(operations.python_method(vm.world, real, name) is not None for name in ("__iter__", "__call__"))


def _needs_truth(vm: Machine, value: Any) -> bool:
    return type(value) not in CONSTANT_TYPES and type(value) is not TracedTensor and isinstance(value, Outside)


for _function, _name in [
    (any, "any_item"),
    (all, "all_items"),
    (enumerate, "enumerate_items"),
    (zip, "zip_items"),
    (map, "map_items"),
    (filter, "filter_items"),
    (functools.reduce, "reduce_items"),
]:
    _polyfilled_when_lazy(_function, _name)


@intercept(sorted)
def _sorted(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if (
        kwargs.get("key") is None
        and type(args[0]) in (list, tuple, set, dict, range)
        and all(map(_plainly_ordered, args[0]))
    ):
        return sorted(args[0], **kwargs)
    return Call(polyfill("sorted_items"), args, kwargs)


@intercept(list.sort)
def _sort(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if kwargs.get("key") is None and all(map(_plainly_ordered, args[0])):
        return args[0].sort(**kwargs)
    return Call(polyfill("sort_list"), args, kwargs)


@intercept(generic.stable_order)
def _stable_order(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """The order of plain keys, or None when comparing them runs code of the program."""
    keys, reverse = args
    if not all(map(_plainly_ordered, keys)):
        return None
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)


def _plainly_ordered(value: Any) -> bool:
    cls = type(value)
    if cls is tuple or cls is list:
        return all(map(_plainly_ordered, value))
    return cls in CONSTANT_TYPES or cls is TracedTensor


def _extreme(function: Any, name: str) -> None:
    @intercept(function)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        items = args[0] if len(args) == 1 else args
        if (
            type(items) in (list, tuple, set, dict, range)
            and kwargs.get("key") is None
            and all(map(_plainly_ordered, items))
        ):
            vm.trace.where = vm.where()
            return function(*args, **kwargs)
        return Call(polyfill(name), [items], kwargs)


_extreme(min, "min_item")
_extreme(max, "max_item")


@intercept(sum)
def _sum(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if _needs_program(vm, args[0]) or not isinstance(args[0], (list, tuple, dict, set, range)):
        return Call(polyfill("sum_items"), args, kwargs)
    vm.trace.where = vm.where()
    return sum(*args, **kwargs)


# ---- conversions -----------------------------------------------------------------------------------------------------


@intercept(bool)
def _bool(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return operations.truth(vm, args[0]) if args else False


@intercept(str)
def _str(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return operations.format_value(vm, args[0], 1, "") if len(args) == 1 else str(*args, **kwargs)


@intercept(repr)
def _repr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return operations.format_value(vm, args[0], 2, "")


# ---- dicts of the outside world --------------------------------------------------------------------------------------


def _dict_getitem(items: Overlay, key: Any) -> Any:
    found = items.get(key)
    if found is MISSING:
        raise KeyError(key)
    return found


def _dict_get(items: Overlay, key: Any, default: Any = None) -> Any:
    found = items.get(key)
    return default if found is MISSING else found


def _dict_contains(items: Overlay, key: Any) -> Any:
    return items.get(key) is not MISSING


_LAZY_METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": _dict_getitem,
    "get": _dict_get,
    "__contains__": _dict_contains,
    "__len__": Overlay.length,
    "__setitem__": Overlay.set,
}


def _dict_method(method: Any, name: str) -> None:
    """A method of dict on an outside one: lazily where one key is concerned, else on the whole."""

    @intercept(method)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        owner = args[0]
        if type(owner) is not Outside:
            return NATIVE
        if name == "update":
            return Call(polyfill("outside_dict_update"), [owner, tuple(args[1:]), kwargs])
        lazy = _LAZY_METHODS.get(name)
        if lazy is not None:
            return lazy(owner.dict_items, *args[1:])
        return getattr(owner.dict_items.materialise(), name)(*args[1:], **kwargs)


_DICT_METHODS = (
    "__getitem__ get __contains__ __len__ __setitem__ update keys values items pop popitem setdefault clear copy "
    "__iter__ __delitem__ __reversed__ __eq__ __or__"
)
for _name in _DICT_METHODS.split():
    for _cls in (dict, collections.OrderedDict):
        if _name in vars(_cls):
            _dict_method(vars(_cls)[_name], _name)


# ---- torch -----------------------------------------------------------------------------------------------------------


@intercept(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling)
def _is_compiling(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return True


@intercept(
    torch.compiler.is_exporting,
    *[getattr(torch.jit, name) for name in ("is_scripting", "is_tracing")],
    torch._C._get_tracing_state,
)
def _is_not(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return None if args else False


@intercept(torch.nn.Parameter, torch.nn.Buffer)
def _parameter(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported("a parameter or buffer is made", vm.where(), "make modules outside the compiled function")


@intercept(
    torch.manual_seed,
    torch.seed,
    torch.initial_seed,
    torch.set_rng_state,
    torch.get_rng_state,
    torch.set_default_dtype,
    torch.set_default_device,
    torch.set_num_threads,
    torch.use_deterministic_algorithms,
    torch.save,
    torch.load,
    torch.autograd.backward,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
)
def _torch_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported("torch's global state is read or changed", vm.where(), "do this outside the compiled function")


_GLOBAL_HOOKS = [
    getattr(torch.nn.modules.module, name)
    for name in (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )
]
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


@intercept(torch.nn.Module.__call__, torch.nn.Module._call_impl)
def _module_call(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """`Module.__call__` without hooks is a call of `forward`; with hooks, torch's own code is interpreted."""
    module = args[0]
    if type(module) is Outside and not any(_GLOBAL_HOOKS):
        if "global hooks" not in vm.world.once:
            vm.world.once.add("global hooks")
            for hooks in _GLOBAL_HOOKS:
                vm.world.guard(Source("object", None, None, hooks), "length", 0)
        hooks = [module.namespace.peek(name) for name in _HOOKS]
        if not any(hook is MISSING or hook.dict_items.length() for hook in hooks):
            forward = load_attribute(vm, module, "forward")
            if type(forward) is not Call:
                return Call(forward, args[1:], kwargs)
    vm.enter(_CALL_IMPL, args, kwargs)
    return SWITCHED


_CALL_IMPL: Any = torch.nn.Module._call_impl


@intercept(warnings.warn)
def _warn(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    kwargs = {key: value for key, value in kwargs.items() if key != "stacklevel"}
    vm.deferred.append((warnings.warn, args[:2], kwargs))
    return None


def _logging(method: Any, level: int | None) -> None:
    @intercept(method)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        logger = _real(args[0])
        effective = args[1] if level is None else level
        if logger.isEnabledFor(effective):
            vm.deferred.append((getattr(logger, method.__name__), args[1:], kwargs))
        return None


for _method, _level in [
    (logging.Logger.debug, logging.DEBUG),
    (logging.Logger.info, logging.INFO),
    (logging.Logger.warning, logging.WARNING),
    (logging.Logger.error, logging.ERROR),
    (logging.Logger.critical, logging.CRITICAL),
    (logging.Logger.log, None),
]:
    _logging(_method, _level)


@intercept(contextvars.ContextVar.get)
def _context_get(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0].get(*args[1:])
    if type(value) not in CONSTANT_TYPES:
        raise Unsupported("a context variable holds an object", vm.where())
    return value


@intercept(contextvars.ContextVar.set, contextvars.ContextVar.reset)
def _context_set(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported("a context variable is set", vm.where(), "set it outside the compiled function")


@intercept(copy.copy)
def _copy(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if type(value) is not Outside:
        return copy.copy(value)
    method = operations.python_method(vm.world, value.cls, "__copy__")
    return Call(method, [value]) if method is not None else _copy_outside(vm, value, lambda part: part)


@intercept(copy.deepcopy)
def _deepcopy(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    method = operations.python_method(vm.world, class_of(args[0]), "__deepcopy__")
    if method is not None:
        return Call(method, [args[0], {}])
    return _deep(vm, args[0], {})


def _deep(vm: Machine, value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy of a value; outside objects become new instances."""
    cls = type(value)
    if cls in CONSTANT_TYPES or id(value) in memo:
        return memo.get(id(value), value)
    if cls is tuple:
        return tuple([_deep(vm, item, memo) for item in value])
    made: Any
    if cls is list:
        made = memo[id(value)] = []
        made += [_deep(vm, item, memo) for item in value]
    elif cls is dict:
        made = memo[id(value)] = {}
        made.update({_deep(vm, key, memo): _deep(vm, item, memo) for key, item in value.items()})
    elif cls is Outside:
        if operations.python_method(vm.world, value.cls, "__deepcopy__") is not None:
            raise Unsupported(f"a deep copy of an outside {value.cls.__name__}", vm.where())
        made = memo[id(value)] = _copy_outside(vm, value, lambda part: _deep(vm, part, memo))
    else:
        made = memo[id(value)] = copy.deepcopy(value, memo)
    return made


def _copy_outside(vm: Machine, value: Outside, part: Callable[[Any], Any]) -> Any:
    """A new object with the state of an outside one, each part of it through `part`."""
    if value.cls in (dict, collections.OrderedDict):
        return value.cls((part(key), part(item)) for key, item in value.dict_items.materialise().items())
    plain = all(vm.world.lookup(value.cls, name) is vars(object)[name] for name in ("__reduce__", "__reduce_ex__"))
    if value.attrs is None or value.items is not None or not plain:
        raise Unsupported(f"a copy of an outside {value.cls.__name__}", vm.where())
    made: Any = object.__new__(value.cls)
    made.__dict__.update({key: part(item) for key, item in value.attrs.materialise().items()})
    return made


@intercept(operator.getitem)
def _operator_getitem(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return operations.get_item(vm, *args)
