"""Attribute access by Python's protocol, on every kind of value."""

from __future__ import annotations

import enum
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo import policy, polyfills
from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.machine.stand_ins import OUTSIDE_NODE, PENDING, STAND_INS, behind, class_of, concrete, seen_value
from bolide.dynamo.machine.tensors import (
    NODE_METHODS,
    load_tensor_attribute,
    no_attribute,
    outside_attributes,
)
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import (
    C_METHODS,
    CONSTANT_TYPES,
    FUNCTION_APPLY,
    FUNCTION_PARTS,
    MISSING,
    NO_NAMESPACE,
    PROXIES,
    WEAK_CONTAINERS,
    attribute_hook,
    class_attribute,
    is_constant,
    is_library_class,
    is_library_namespace,
    is_opaque,
    is_property,
    name_in_c,
    own_namespace,
    own_protocol,
    viewed,
)
from bolide.dynamo.world.frames import Generator, frame_object
from bolide.dynamo.world.holders import is_state_of_class
from bolide.dynamo.world.iterators import OF_ITERATORS, Stream
from bolide.dynamo.world.outside import Outside, Overlay, attribute_source, method_of_c
from bolide.dynamo.world.parts import Seen
from bolide.dynamo.world.texts import TEXT_METHODS, TracedText
from bolide.support.leaks import fleeting
from bolide.tracing import STANDS_FOR, TracedTensor, is_mask

_CLASS = vars(object)["__class__"]
_VALUE = vars(enum.Enum)["value"]
_MODULE_GETATTR = torch.nn.Module.__getattr__
_METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType, functools._lru_cache_wrapper)
_OF_CYTHON = "cython_function_or_method"  # every extension module has a class of this name
SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)


@fleeting
class Super:
    """A bound `super(cls, owner)`."""

    __slots__ = ("cls", "owner")

    def __init__(self, cls: type, owner: object) -> None:
        self.cls, self.owner = cls, owner


def load_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """`owner.name`: the value, or the Call that computes it. Raises AttributeError as Python does."""
    cls = type(owner)
    if cls is Outside:
        if owner.cls in PROXIES:
            return load_attribute(vm, behind(vm, owner), name)
        return _instance(vm, owner, owner.cls, name)
    load = _LOADS.get(cls)
    if load is not None:
        return load(vm, owner, name)
    if cls in STAND_INS:
        return _of_stand_in(vm, owner, name)
    if is_mask(cls):
        vm.trace.where = vm.where()
        if name == "__dict__":
            reason = f"the __dict__ of a {class_of(owner).__name__}, a subclass of Tensor"
            raise vm.unsupported(reason, "tensor_method", "use its attributes")
    if issubclass(cls, type):
        return _class(vm, owner, name)
    if name in _OF_HISTORY and STANDS_FOR in vars(cls) and not is_mask(cls):
        _refuse_history(vm, owner, name)
    return _instance(vm, owner, vars(cls).get(STANDS_FOR, cls), name)


def _of_stand_in(vm: Machine, owner: object, name: str) -> object:
    """An attribute of what stands for an instance of a class in C: one that this class has, too. It is no code of the
    program's."""
    seen = STAND_INS[type(owner)].seen
    vm.trace.where = vm.where()
    if name == "__class__":
        return seen
    member = class_attribute(seen, name)
    if member is MISSING:
        raise no_attribute(name_in_c(seen), name)
    return getattr(owner, name) if hasattr(type(member), "__get__") else member


@functools.cache
def _asked_getter(name: str) -> object:
    """What reads an attribute of tensors and asks function modes about it, if something does."""
    member = inspect.getattr_static(torch.Tensor, name, None)
    if name == "__class__" or type(member) not in (types.GetSetDescriptorType, property):
        return None
    return member.fget if type(member) is property else member.__get__


def _of_tensor(vm: Machine, owner: TracedTensor, name: str) -> object:
    if vm.modes.functions.asks and (getter := _asked_getter(name)) is not None:
        return Call(getter, [owner])
    if owner.face is not None and name != "__class__" and not hasattr(torch.nn.Parameter, name):
        return _of_face(vm, owner, name)
    return load_tensor_attribute(vm, owner, name)


def _of_real_frame(vm: Machine, owner: types.FrameType, name: str) -> object:
    if name not in ("f_code", "__class__"):
        raise vm.unsupported(f"{name} of a frame object", "frame_access")
    return _instance(vm, owner, types.FrameType, name)


def named_attribute(vm: Machine, owner: object, name: str) -> object:
    """`owner.name`; an AttributeError knows the name, as where the interpreter itself looks for it."""
    try:
        return load_attribute(vm, owner, name)
    except AttributeError as error:
        if error.name is None and error.obj is None:
            error.name = name
        raise


def _of_pending(vm: Machine, owner: object, name: str) -> object:
    """An attribute of a number or text whose value is asked for no sooner than a method is called."""
    if name == "__class__":
        return PENDING[type(owner)]
    if type(owner) is TracedText and name in TEXT_METHODS:
        return types.MethodType(getattr(str, name), owner)
    member = class_attribute(PENDING[type(owner)], name)
    if type(member) in C_METHODS and member.__objclass__ is not object:
        return types.MethodType(member, owner)
    return getattr(concrete(vm, owner), name)


_OF_HISTORY = frozenset(["data", "grad", "is_leaf", "grad_fn", "_base", "retain_grad", "backward", "requires_grad_"])
_OF_HISTORY |= {"register_hook", "register_post_accumulate_grad_hook"}


def _refuse_history(vm: Machine, owner: Any, name: str) -> None:
    """What belongs to the history of a wrapper subclass is not that of the one that stands for it in the program."""
    if name == "data" or (vm.world.identities.is_outside(owner) and (owner.requires_grad or name == "requires_grad_")):
        reason = f"{name} of a {class_of(owner).__name__}, a subclass of Tensor, is used"
        remedy = "use it outside the compiled function"
        raise vm.unsupported(reason, "tensor_method", remedy, f"Tensor.{name}")


def _of_face(vm: Machine, owner: TracedTensor, name: str) -> object:
    """What an input's class, a subclass of Tensor, adds to it, or what is kept on the input."""
    face = owner.face
    assert face is not None
    own = outside_attributes(vm, owner).get(name)
    member = vm.world.classes.lookup(face, name)
    if own is not MISSING and (member is MISSING or not hasattr(type(member), "__set__")):
        return own
    if member is MISSING:
        raise no_attribute(face.__name__, name)
    return default_attribute(vm, owner, face, name, False)


def native_attribute(vm: Machine, owner: object, name: str) -> Any:
    if type(owner) is not types.FunctionType or id(owner) in vm.own_functions:
        value = getattr(owner, name)
        if name == "__self__":  # of `items.append`, to which the program has only appended so far
            vm.world.containers.built(value)
        return value
    attributes = function_attributes(vm, owner)
    if attributes is not None and name not in OF_FUNCTIONS:
        value = attributes.get(name)
        if value is MISSING:
            raise no_attribute("function", name)
        return value
    value = getattr(owner, name)
    if type(value) in (dict, list, tuple):
        return vm.world.wrap(value, attribute_source(vm.world.identities.source_of(owner), name))
    if name in FUNCTION_PARTS and attributes is not None:
        vm.world.guards.add(attribute_source(vm.world.identities.source_of(owner), name), "is", value)
    return value


def function_attributes(vm: Machine, function: types.FunctionType) -> Overlay | None:
    """The attributes that an outside function has been given; None for a library's, which are trusted."""
    if is_library_namespace(function.__globals__):
        return None
    return vm.world.overlay(function.__dict__, vm.world.identities.source_of(function), attribute_source, function)


OF_FUNCTIONS = frozenset(dir(types.FunctionType))


def _module(vm: Machine, owner: types.ModuleType, name: str) -> object:
    namespace = owner.__dict__
    trusted = is_library_namespace(namespace)
    if name not in namespace:
        try:
            value = getattr(owner, name)  # a lazy submodule, which is there from now on, or a module's `__getattr__`
        finally:
            if name not in namespace and not trusted:
                vm.world.namespaces.load_global(namespace, name)  # guards that it is not there
    if name in namespace:
        value = vm.world.namespaces.load_global(namespace, name)
        if value is MISSING:  # the program has deleted it
            raise AttributeError(f"module '{owner.__name__}' has no attribute '{name}'")
        return value
    source = attribute_source(Source("object", None, None, owner), name)
    return vm.world.trust(value, source) if trusted else vm.world.wrap(value, source)


_GENERATOR_STATE = {
    "generator": frozenset(name for name in dir(types.GeneratorType) if name.startswith("gi_")),
    "coroutine": frozenset(name for name in dir(types.CoroutineType) if name.startswith("cr_")),
}


def _generator(vm: Machine, owner: Generator, name: str) -> object:
    if name in ("__name__", "__qualname__"):
        return owner.name if name == "__qualname__" else owner.name.rpartition(".")[2]
    if name in _GENERATOR_STATE[owner.kind]:
        match name[3:]:
            case "running":
                return owner.running
            case "suspended":
                return owner.started and not (owner.running or owner.done)
            case "code":
                return owner.frame.code.code
            case "frame" if owner.done:
                return None
            case "frame" if not owner.foreign:
                return frame_object(owner.frame)
        raise vm.unsupported(f"{name} of a generator", "frame_access")
    method = polyfills.BY_NAME.get(f"generator_{name.strip('_')}")
    original = original_of(owner)
    if name == "__class__":
        seen = types.GeneratorType if owner.kind == "generator" else types.CoroutineType
        return seen if original is None else original.cls
    if original is not None and not hasattr(original.cls, name):
        raise no_attribute(name_in_c(original.cls), name)
    if method is None and hasattr(types.GeneratorType if original is None else original.cls, name):
        raise vm.unsupported(f"{name} of an iterator", "iterator")
    if method is None:
        raise no_attribute("generator", name)
    return types.MethodType(method, owner)


def _of_stream(vm: Machine, owner: Stream, name: str) -> object:
    """An attribute of an iterator from outside."""
    if name in OF_ITERATORS:
        return types.MethodType(OF_ITERATORS[name], owner)
    cls = type(owner.real)
    if not hasattr(cls, name):
        raise no_attribute(name_in_c(cls), name)
    if name == "__class__":
        return cls
    raise vm.unsupported(f"{name} of a {cls.__name__} from outside", "iterator", "draw from it only")


def _bound_method(vm: Machine, owner: types.MethodType, name: str) -> object:
    if name in ("__self__", "__func__"):
        return getattr(owner, name)
    return load_attribute(vm, owner.__func__, name)


_LOADS: dict[type, Callable[[Machine, Any, str], Any]] = {
    **dict.fromkeys((*CONSTANT_TYPES, list, dict, set, tuple, frozenset), native_attribute),
    **dict.fromkeys(PENDING, _of_pending),
    TracedTensor: _of_tensor,
    types.ModuleType: _module,
    Super: lambda vm, owner, name: load_super(vm, owner.cls, owner.owner, name),
    Generator: _generator,
    Stream: _of_stream,
    types.MethodType: _bound_method,
    types.FrameType: _of_real_frame,
}
"""How attributes are read of values that are no instances of the program's classes."""


def _class(vm: Machine, owner: type, name: str) -> object:
    of_meta = MISSING if type(owner) is type else vm.world.classes.lookup(type(owner), name)
    if is_property(of_meta):
        return Call(of_meta.fget, [owner])
    member = vm.world.classes.lookup(owner, name)
    if type(of_meta) is types.FunctionType and (member is MISSING or name in vars(object)):
        own = MISSING if member is MISSING else next(base for base in owner.__mro__ if name in base.__dict__)
        if own in (MISSING, object):
            return types.MethodType(of_meta, owner)
    if type(member) in (types.FunctionType, staticmethod):
        return getattr(member, "__func__", member)
    if type(member) is classmethod:
        return _class_method(member, owner)
    if member is FUNCTION_APPLY:
        return types.MethodType(member, owner)
    if member is MISSING and type(owner) is not type:
        value = _of_metaclass(vm, owner, name, of_meta)
        if value is not MISSING:
            return value
    if _is_written(vm, owner, name):
        if member is MISSING:
            raise AttributeError(f"type object '{owner.__name__}' has no attribute '{name}'")
        return member
    getter = method_in_python(member, "__get__")
    if getter is not None and not is_library_class(type(member)):
        return Call(getter, [with_state(vm, member, owner), None, owner])
    value = getattr(owner, name)
    if name == "__dict__":
        return class_namespace(vm, owner, value)
    return _class_value(vm, owner, name, value)


def method_in_python(descriptor: object, name: str) -> types.FunctionType | None:
    """A method of the class of a descriptor, if it is written in Python."""
    method = getattr(type(descriptor), name, None)
    return method if type(method) is types.FunctionType else None


def _class_method(method: Any, cls: type) -> Any:
    """A class method of `cls`. Before Python 3.13 what it wraps may be a descriptor, which is asked."""
    wrapped = method.__func__
    if VERSION >= (3, 13) or type(wrapped) is types.FunctionType:
        return types.MethodType(wrapped, cls)
    if type(wrapped) is classmethod:
        return _class_method(wrapped, cls)
    if type(wrapped) is staticmethod:
        return wrapped.__func__
    if is_property(wrapped) and wrapped.fget is not None:
        return Call(wrapped.fget, [cls])
    getter = method_in_python(wrapped, "__get__")
    if getter is not None:
        return Call(getter, [wrapped, cls, cls])
    return wrapped.__get__(cls, cls) if hasattr(type(wrapped), "__get__") else types.MethodType(wrapped, cls)


def _is_written(vm: Machine, cls: type, name: str) -> bool:
    """Whether the program has assigned or deleted what a class has under this name, itself or from its bases."""
    written = vm.world.classes.written
    for base in cls.__mro__ if written else ():
        if base in written and name in written[base].known:
            return True
        if name in vars(base):
            return False
    return False


def _of_metaclass(vm: Machine, owner: type, name: str, member: object) -> object:
    """What a metaclass of the user's says of an attribute that the class itself does not have: a plain value `member`,
    or what its `__getattr__` answers; else MISSING."""
    meta = type(owner)
    if is_library_class(meta):
        return MISSING
    if member is MISSING:
        hook = vm.world.classes.lookup(meta, "__getattr__")
        return Call(hook, [owner, name]) if type(hook) is types.FunctionType else MISSING
    if hasattr(type(member), "__get__"):
        return MISSING
    return member if _is_written(vm, meta, name) else _class_value(vm, meta, name, member)


def class_namespace(vm: Machine, cls: type, namespace: object) -> object:
    """The `__dict__` of a class: of one made by the program or by a library as it is, else with its parts guarded."""
    if id(cls) in vm.world.classes.own:
        return namespace
    source = attribute_source(Source("object", None, None, cls), "__dict__")
    wrap = vm.world.trust if is_library_class(cls) else vm.world.wrap
    return vm.world.identities.mirror(vm.world.classes.show(viewed(namespace), source, wrap), source)


def _class_value(vm: Machine, cls: type, name: str, value: object) -> object:
    """A plain value stored on a class."""
    if type(value) in (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType):
        return value
    if name == "__doc__" and not policy.is_python_class(cls):  # fixed, and `cls.__doc__` cuts off a signature
        return value
    if id(cls) in vm.world.classes.own:  # what it has from outside is found there
        cls = next((base for base in cls.__mro__ if name in base.__dict__), cls)
        if id(cls) in vm.world.classes.own:
            return value
    source = attribute_source(Source("object", None, None, cls), name)
    trusted = is_library_class(cls) and not is_state_of_class(cls, name)
    return vm.world.trust(value, source) if trusted else vm.world.wrap(value, source)


def _instance(vm: Machine, owner: object, cls: type, name: str) -> object:
    if cls is OUTSIDE_NODE and name not in NODE_METHODS:
        class_of(owner)  # raises
    if name == "__class__" and class_attribute(cls, name) is _CLASS:
        return cls
    if name in NODE_METHODS and isinstance(owner, torch.autograd.graph.Node):
        return types.MethodType(NODE_METHODS[name], owner)
    hook = hook_of(vm, cls, "__getattribute__")
    result = default_attribute(vm, owner, cls, name, True) if hook is MISSING else Call(hook, [owner, name])
    if type(result) is not Call:
        return result
    fallback = hook_of(vm, cls, "__getattr__")  # it is asked for what raises AttributeError, too
    if fallback is MISSING or result.function is fallback:
        return result
    return Call.polyfill("attribute_or", result.function, result.args, fallback, owner, name)


def hook_of(vm: Machine, cls: type, name: str) -> Any:
    """The special method for attributes that a class has in place of Python's own protocol, or MISSING."""
    hook = attribute_hook(vm.world.classes.lookup(cls, name), name)
    if hook is MISSING or type(hook) is types.FunctionType or type(hook) in C_METHODS:
        return hook
    if is_library_class(cls):
        return MISSING
    raise vm.unsupported(f"{name} of {cls.__name__} is no function", "outside_object")


def default_attribute(vm: Machine, owner: Any, cls: type, name: str, fallback: bool) -> Any:
    """`object.__getattribute__`, and with `fallback` then the class's `__getattr__`."""
    world = vm.world
    outside = type(owner) is Outside
    member = world.classes.lookup(cls, name)
    kind = type(member)
    if is_property(member):
        if member.fget is None:
            raise AttributeError(f"unreadable attribute {name!r}")
        return Call(member.fget, [owner])
    if kind in SLOT_TYPES or (name == "__dict__" and issubclass(cls, threading.local)):  # which has it without a slot
        if is_mask(type(owner)):
            return Call(member.__get__, [owner])
        value = slot_value(vm, owner, name)
        method = hook_of(vm, cls, "__getattr__") if value is MISSING and fallback else MISSING
        if method is not MISSING:
            return Call(method, [owner, name])
        if value is MISSING:
            raise AttributeError(name if VERSION == (3, 10) else f"'{cls.__name__}' object has no attribute '{name}'")
        return value
    for hook in ("__get__", "__set__") if member is not MISSING else ():
        world.classes.rely_on(kind, hook)
    if kind is not types.FunctionType and hasattr(kind, "__set__") and hasattr(kind, "__get__"):
        return _descriptor(vm, member, owner, cls)
    value = _own_attribute(vm, owner, name)
    if value is not MISSING:
        return value
    if member is not MISSING:
        own_first = name == "forward" or getattr(torch.nn.Module, name, None) is not member
        if outside and own_first and owner.attrs is not None and hasattr(kind, "__get__"):
            owner.attrs.rely_on_absence(name)  # an instance's own would come first
        if kind is types.FunctionType:
            return types.MethodType(member, owner)
        if kind is staticmethod:
            return member.__func__
        if kind is classmethod:
            return _class_method(member, cls)
        if kind is functools.cached_property:
            return Call.polyfill("cached_property_get", owner, member.func, member.attrname)
        if hasattr(kind, "__get__"):
            if outside and (kind in _METHOD_TYPES or kind.__name__ == _OF_CYTHON):
                return method_of_c(member, owner)
            return _descriptor(vm, member, owner, cls)
        return _default_of_class(vm, owner, cls, name, member)
    method = hook_of(vm, cls, "__getattr__") if fallback else MISSING
    if method is _MODULE_GETATTR and outside:
        return _module_member(vm, owner, cls, name)
    if outside:
        owner.rely_on_missing(name)
    if method is not MISSING:
        return Call(method, [owner, name])
    raise no_attribute(name_in_c(cls), name)


def _default_of_class(vm: Machine, owner: object, cls: type, name: str, value: object) -> object:
    """An attribute that instances inherit from their class; an outside instance may get one of its own later, so it is
    guarded there."""
    if _is_written(vm, cls, name):
        return value
    if type(owner) is not Outside:
        return _class_value(vm, cls, name, value)
    plain: Any = object.__getattribute__
    if cls.__getattribute__ is plain or owner.attrs is None:
        return vm.world.wrap(value, attribute_source(owner.source, name))
    owner.attrs.rely_on_absence(name)
    return _class_value(vm, cls, name, value)


def _own_attribute(vm: Machine, owner: object, name: str) -> object:
    """From the instance's `__dict__`, or MISSING."""
    if type(owner) is Outside:
        if name == "data" and issubclass(owner.cls, WEAK_CONTAINERS):
            vm.world.lifetimes.refuse_deaths()
        return MISSING if owner.attrs is None else owner.attrs.peek(name)
    if is_mask(type(owner)):
        return behind_mask(vm, owner, name)
    member = of_member(vm, owner)
    if member is not None:
        return member.get(name)
    value = dict.get(own_namespace(owner), name, MISSING)
    if value is not MISSING and is_opaque(owner) and vm.world.identities.is_outside(owner):
        return vm.world.wrap(value, attribute_source(Source("object", None, None, owner), name))
    place = _place_of_copy(vm, owner)
    if value is MISSING and place is not None and vm.world.guards.first((id(owner), "namespace")):
        vm.world.guards.add(Source("apply", place, (), own_namespace), "dict_keys", list(own_namespace(owner)))
    return value


def of_member(vm: Machine, owner: object) -> Overlay | None:
    """The attributes of a member of an outside enumeration, which stands for itself; None for other values."""
    if not issubclass(type(owner), enum.Enum) or id(type(owner)) in vm.world.classes.own:
        return None
    return vm.world.overlay(own_namespace(owner), Source("object", None, None, owner), attribute_source, owner)


def behind_mask(vm: Machine, owner: Any, name: str) -> Any:
    """An attribute that a tensor of a class of the program's own has been given, or MISSING."""
    if owner.attributes is not None:
        return owner.attributes.get(name, MISSING)
    given = outside_attributes(vm, owner)
    return given.get(name) if vm.world.classes.lookup(class_of(owner), name) is MISSING else given.peek(name)


def _place_of_copy(vm: Machine, owner: object) -> Source | None:
    """Where the partial, or tuple with attributes, was found of which `owner` is a copy."""
    cls = type(owner)
    copied = cls is functools.partial or (issubclass(cls, tuple) and own_namespace(owner) is not NO_NAMESPACE)
    return vm.world.identities.place_of(owner) if copied else None


def refuse_copy(vm: Machine, owner: object) -> None:
    """Raises Unsupported where attributes are written that are only a copy of those outside."""
    if _place_of_copy(vm, owner) is not None:
        reason = f"the attributes of a {type(owner).__name__} from outside are written"
        raise vm.unsupported(reason, "attribute_write", "do this outside the compiled function")


def slot_value(vm: Machine, owner: object, name: str) -> object:
    """What is in a slot, or MISSING."""
    if type(owner) is not Outside:
        try:
            value = own_protocol(type(owner), "__getattribute__")(owner, name)
        except AttributeError:
            return MISSING
        if name == "__dict__":
            member = of_member(vm, owner)
            if member is not None:
                return Outside.over(vm.world, value, member, attribute_source(member.source, name))
            refuse_copy(vm, owner)
            vm.world.identities.owners[id(value)] = owner
        return value
    if name == "__dict__":
        return outside_namespace(vm, owner)
    overlay = owner.slots(vm.world)
    value = overlay.peek(name)
    if value is MISSING:
        owner.guard_no_attribute(name)
    return value


def outside_namespace(vm: Machine, owner: Outside) -> Outside:
    """The `__dict__` of an outside object as a dict that shares its overlay."""
    key = id(owner.real.__dict__)
    known = vm.world.identities.seen.get(key)
    if known is None:
        view = Outside.namespace_of(owner)
        known = vm.world.identities.seen[key] = Seen(view.real, view, view.source)
    return known.value  # type: ignore[no-any-return]


def with_state(vm: Machine, descriptor: object, cls: type) -> object:
    """A descriptor of a class of the user's: an object that may have state, of the outside if the program has not made
    it."""
    world = vm.world
    own: list[Any] = []  # what the program has put into the classes
    for base in cls.__mro__:
        own += vars(base).values() if id(base) in world.classes.own else ()
        own += world.classes.written[base].known.values() if base in world.classes.written else ()
    kind: Any = type(descriptor)
    if is_library_class(kind) or any(descriptor is value for value in own):
        return descriptor
    return world.wrap(descriptor, Source("object", None, None, descriptor))


def _descriptor(vm: Machine, descriptor: object, owner: object, cls: type) -> object:
    if descriptor is _VALUE and (member := of_member(vm, owner)) is not None:
        value = own_namespace(owner).get("_value_", MISSING)
        return value if is_constant(value) else member.peek("_value_")
    getter = vm.world.classes.lookup(type(descriptor), "__get__")
    if type(getter) is types.FunctionType:
        return Call(getter, [with_state(vm, descriptor, cls), owner, cls])
    if type(owner) is Outside:
        raise vm.unsupported(f"a descriptor of type {type(descriptor).__name__}", "outside_object")
    return getter(descriptor, owner, cls)


MEMBERS = ("_parameters", "_buffers", "_modules")


def _module_member(vm: Machine, owner: Outside, cls: type, name: str) -> object:
    """`torch.nn.Module.__getattr__`: parameters, buffers, submodules."""
    holders = [members for key in MEMBERS if (members := owner.namespace.peek(key)) is not MISSING]
    for members in holders:
        value = members.dict_items.peek(name) if type(members) is Outside else members.get(name, MISSING)
        if value is not MISSING:
            return value
    for members in holders:
        if type(members) is Outside:
            members.dict_items.rely_on_absence(name)
    owner.rely_on_missing(name)
    raise no_attribute(cls.__name__, name)


def check_super(cls: type, owner: Any) -> None:
    """Raises what `super(cls, owner)` raises for what is neither an instance of the class nor a class below it."""
    is_below = issubclass(type(owner), type) and issubclass(owner, cls)
    if not is_below and not issubclass(class_of(owner), cls):
        super(cls, seen_value(owner))  # raises


def load_super(vm: Machine, cls: type, owner: Any, name: str) -> Any:
    """`super(cls, owner).name`."""
    check_super(cls, owner)
    if name == "__class__":
        return super
    unbound = issubclass(type(owner), type) and issubclass(owner, cls)
    start = owner if unbound else class_of(owner)
    member = vm.world.classes.lookup(start, name, cls)
    kind = type(member)
    if member is MISSING:
        raise no_attribute("super", name)
    if kind is types.FunctionType:
        return member if unbound and name == "__new__" else types.MethodType(member, owner)
    if kind is staticmethod:
        return member.__func__
    if kind is classmethod:
        return _class_method(member, start)
    if is_property(member):
        return Call(member.fget, [owner])
    if kind in (types.WrapperDescriptorType, types.MethodDescriptorType) and not unbound:
        return method_of_c(member, owner)
    if kind is types.BuiltinFunctionType:  # __new__ of built-in types
        return member
    getter = method_in_python(member, "__get__")
    if getter is not None:
        return Call(getter, [with_state(vm, member, start), None if unbound else owner, start])
    if hasattr(kind, "__get__"):
        return member.__get__(None if unbound else owner, start)
    holder = next(base for base in start.__mro__[start.__mro__.index(cls) + 1 :] if name in base.__dict__)
    return _class_value(vm, holder, name, member)
