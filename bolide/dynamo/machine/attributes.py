"""Attribute access by Python's protocol, on every kind of value."""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import Any

import torch

from bolide.dynamo import polyfills
from bolide.dynamo.bytecode.instructions import VERSION
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.operations import OUTSIDE_NODE, PENDING, SEEN_AS, behind, class_of, concrete
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.machine.tensors import (
    NODE_METHODS,
    delete_tensor_attribute,
    load_tensor_attribute,
    outside_attributes,
    store_tensor_attribute,
)
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import (
    C_METHODS,
    CONSTANT_TYPES,
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
    name_in_c,
    own_namespace,
    viewed,
)
from bolide.dynamo.program.sources import shown
from bolide.dynamo.world import tracebacks
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.iterators import OF_ITERATORS, Stream
from bolide.dynamo.world.outside import Outside, Overlay, attribute_source, method_of_c
from bolide.dynamo.world.texts import TEXT_METHODS, TracedText
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting
from bolide.tracing import STANDS_FOR, TracedTensor, is_mask

_CLASS = vars(object)["__class__"]
_VALUE = vars(enum.Enum)["value"]
_MODULE_GETATTR = torch.nn.Module.__getattr__
_MODULE_SETATTR = torch.nn.Module.__setattr__
_MODULE_DELATTR = torch.nn.Module.__delattr__
_METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType, functools._lru_cache_wrapper)
_SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)


@fleeting
class Super:
    """A bound `super(cls, owner)`."""

    __slots__ = ("cls", "owner")

    def __init__(self, cls: type, owner: Any) -> None:
        self.cls, self.owner = cls, owner


def load_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """`owner.name`: the value, or the Call that computes it. Raises AttributeError as Python does."""
    cls = type(owner)
    if cls is Outside:
        if owner.cls in PROXIES:
            return load_attribute(vm, behind(vm, owner), name)
        return _instance(vm, owner, owner.cls, name)
    if cls is TracedTensor:
        if owner.face is not None and name != "__class__" and not hasattr(torch.nn.Parameter, name):
            return _of_face(vm, owner, name)
        return load_tensor_attribute(vm, owner, name)
    if cls is types.ModuleType:
        return _module(vm, owner, name)
    if cls is Super:
        return load_super(vm, owner.cls, owner.owner, name)
    if cls is Generator:
        return _generator(vm, owner, name)
    if cls is Stream:
        return _of_stream(vm, owner, name)
    if cls is types.MethodType:
        return _bound_method(vm, owner, name)
    if cls is types.FrameType and name not in ("f_code", "__class__"):
        raise Unsupported(f"{name} of a frame object", vm.where(), kind="frame_access")
    if cls is TracedText and name in TEXT_METHODS:
        return types.MethodType(getattr(str, name), owner)
    if cls in PENDING:
        return PENDING[cls] if name == "__class__" else _of_number(vm, owner, name)
    if cls in SEEN_AS:  # of ours: its attributes are no code of the program's
        vm.trace.where = vm.where()
        return SEEN_AS[cls] if name == "__class__" else _of_stand_in(owner, SEEN_AS[cls], name)
    if cls in CONSTANT_TYPES or cls in (list, dict, set, tuple, frozenset):
        return _native(vm, owner, name)
    if is_mask(cls):
        vm.trace.where = vm.where()
        if name == "__dict__":
            reason = f"the __dict__ of a {class_of(owner).__name__}, a subclass of Tensor"
            raise Unsupported(reason, vm.where(), "use its attributes", kind="tensor_method")
    if issubclass(cls, type):
        return _class(vm, owner, name)
    if name in _OF_HISTORY and STANDS_FOR in vars(cls) and not is_mask(cls):
        _refuse_history(vm, owner, name)
    return _instance(vm, owner, vars(cls).get(STANDS_FOR, cls), name)


def _of_stand_in(owner: Any, seen: type, name: str) -> Any:
    """An attribute of what stands for an instance of a class in C: one that this class has, too."""
    if hasattr(seen, name):
        return getattr(owner, name)
    raise AttributeError(f"'{name_in_c(seen)}' object has no attribute '{name}'")


def named_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """`owner.name`; an AttributeError knows the name, as where the interpreter itself looks for it."""
    try:
        return load_attribute(vm, owner, name)
    except AttributeError as error:
        if error.name is None and error.obj is None:
            error.name = name
        raise


def _of_number(vm: Machine, owner: Any, name: str) -> Any:
    """An attribute of a number or text whose value is asked for no sooner than a method is called."""
    found = class_attribute(PENDING[type(owner)], name)
    if type(found) in C_METHODS and found.__objclass__ is not object:
        return types.MethodType(found, owner)
    return getattr(concrete(vm, owner), name)


_OF_HISTORY = frozenset(["data", "grad", "is_leaf", "grad_fn", "_base", "retain_grad", "backward", "requires_grad_"])
_OF_HISTORY |= {"register_hook", "register_post_accumulate_grad_hook"}


def _refuse_history(vm: Machine, owner: Any, name: str) -> None:
    """What belongs to the history of a wrapper subclass is not that of the one that stands for it in the program."""
    if name == "data" or (vm.world.is_outside(owner) and (owner.requires_grad or name == "requires_grad_")):
        reason = f"{name} of a {class_of(owner).__name__}, a subclass of Tensor, is used"
        remedy = "use it outside the compiled function"
        raise Unsupported(reason, vm.where(), remedy, "tensor_method", f"Tensor.{name}")


def _of_face(vm: Machine, owner: TracedTensor, name: str) -> Any:
    """What an input's class, a subclass of Tensor, adds to it, or what is kept on the input."""
    face = owner.face
    assert face is not None
    own = outside_attributes(vm, owner).get(name)
    found = vm.world.lookup(face, name)
    if own is not MISSING and (found is MISSING or not hasattr(type(found), "__set__")):
        return own
    if found is MISSING:
        raise AttributeError(f"'{face.__name__}' object has no attribute '{name}'")
    return default_attribute(vm, owner, face, name, False)


def _native(vm: Machine, owner: Any, name: str) -> Any:
    if type(owner) is not types.FunctionType or id(owner) in vm.own_functions:
        value = getattr(owner, name)
        if name == "__self__":  # of `items.append`, to which the program has only appended so far
            vm.world.built(value)
        return value
    attributes = function_attributes(vm, owner)
    if attributes is not None and name not in _OF_FUNCTIONS:
        value = attributes.get(name)
        if value is MISSING:
            raise AttributeError(f"'function' object has no attribute '{name}'")
        return value
    value = getattr(owner, name)
    if type(value) in (dict, list, tuple):
        return vm.world.wrap(value, attribute_source(vm.world.source_of(owner), name))
    if name in FUNCTION_PARTS and attributes is not None:
        vm.world.guard(attribute_source(vm.world.source_of(owner), name), "is", value)
    return value


def function_attributes(vm: Machine, function: types.FunctionType) -> Overlay | None:
    """The attributes that an outside function has been given; None for a library's, which are trusted."""
    if is_library_namespace(function.__globals__):
        return None
    return vm.world.overlay(function.__dict__, vm.world.source_of(function), attribute_source, function)


_OF_FUNCTIONS = frozenset(dir(types.FunctionType))


def _module(vm: Machine, owner: types.ModuleType, name: str) -> Any:
    namespace = owner.__dict__
    trusted = is_library_namespace(namespace)
    if name not in namespace:
        try:
            value = getattr(owner, name)  # a lazy submodule, which is there from now on, or a module's `__getattr__`
        finally:
            if name not in namespace and not trusted:
                vm.world.load_global(namespace, name)  # guards that it is not there
    if name in namespace:
        found = vm.world.load_global(namespace, name)
        if found is MISSING:  # the program has deleted it
            raise AttributeError(f"module '{owner.__name__}' has no attribute '{name}'")
        return found
    source = attribute_source(Source("object", None, None, owner), name)
    return vm.world.trust(value, source) if trusted else vm.world.wrap(value, source)


_GENERATOR_STATE = {
    "generator": frozenset(name for name in dir(types.GeneratorType) if name.startswith("gi_")),
    "coroutine": frozenset(name for name in dir(types.CoroutineType) if name.startswith("cr_")),
}


def _generator(vm: Machine, owner: Generator, name: str) -> Any:
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
                return tracebacks.frame_object(owner.frame)
        raise Unsupported(f"{name} of a generator", vm.where(), kind="frame_access")
    method = polyfills.BY_NAME.get(f"generator_{name.strip('_')}")
    original = original_of(owner)
    if name == "__class__":
        seen = types.GeneratorType if owner.kind == "generator" else types.CoroutineType
        return seen if original is None else original.cls
    if original is not None and not hasattr(original.cls, name):
        raise AttributeError(f"'{name_in_c(original.cls)}' object has no attribute '{name}'")
    if method is None and hasattr(types.GeneratorType if original is None else original.cls, name):
        raise Unsupported(f"{name} of an iterator", vm.where(), kind="iterator")
    if method is None:
        raise AttributeError(f"'generator' object has no attribute '{name}'")
    return types.MethodType(method, owner)


def _of_stream(vm: Machine, owner: Stream, name: str) -> Any:
    """An attribute of an iterator from outside."""
    if name in OF_ITERATORS:
        return types.MethodType(OF_ITERATORS[name], owner)
    cls = type(owner.real)
    if not hasattr(cls, name):
        raise AttributeError(f"'{name_in_c(cls)}' object has no attribute '{name}'")
    if name == "__class__":
        return cls
    raise Unsupported(f"{name} of a {cls.__name__} from outside", vm.where(), "draw from it only", "iterator")


def _bound_method(vm: Machine, owner: types.MethodType, name: str) -> Any:
    if name in ("__self__", "__func__"):
        return getattr(owner, name)
    return load_attribute(vm, owner.__func__, name)


def _class(vm: Machine, owner: type, name: str) -> Any:
    of_meta = MISSING if type(owner) is type else vm.world.lookup(type(owner), name)
    if type(of_meta) is property:
        return Call(of_meta.fget, [owner])
    found = vm.world.lookup(owner, name)
    if type(of_meta) is types.FunctionType and (found is MISSING or name in vars(object)):
        own = MISSING if found is MISSING else next(base for base in owner.__mro__ if name in base.__dict__)
        if own in (MISSING, object):
            return types.MethodType(of_meta, owner)
    if type(found) in (types.FunctionType, staticmethod):
        return getattr(found, "__func__", found)
    if type(found) is classmethod:
        return _class_method(found, owner)
    if found is MISSING and type(owner) is not type:
        value = _of_metaclass(vm, owner, name, of_meta)
        if value is not MISSING:
            return value
    if _is_written(vm, owner, name):
        if found is MISSING:
            raise AttributeError(f"type object '{owner.__name__}' has no attribute '{name}'")
        return found
    kind: Any = type(found)
    if type(getattr(kind, "__get__", None)) is types.FunctionType and not is_library_class(kind):
        return Call(kind.__get__, [_stateful(vm, found, owner), None, owner])
    value = getattr(owner, name)
    if name == "__dict__":
        return class_namespace(vm, owner, value)
    return _class_value(vm, owner, name, value)


def _class_method(method: Any, cls: type) -> Any:
    """A class method of `cls`. Before Python 3.13 what it wraps may be a descriptor, which is asked."""
    wrapped = method.__func__
    if VERSION >= (3, 13) or type(wrapped) is types.FunctionType:
        return types.MethodType(wrapped, cls)
    if type(wrapped) is classmethod:
        return _class_method(wrapped, cls)
    if type(wrapped) is staticmethod:
        return wrapped.__func__
    if type(wrapped) is property and wrapped.fget is not None:
        return Call(wrapped.fget, [cls])
    hook = getattr(type(wrapped), "__get__", None)
    if type(hook) is types.FunctionType:
        return Call(hook, [wrapped, cls, cls])
    return types.MethodType(wrapped, cls) if hook is None else wrapped.__get__(cls, cls)


def _is_written(vm: Machine, cls: type, name: str) -> bool:
    """Whether the program has assigned or deleted an attribute of a class, or of one of its bases."""
    written = vm.world.classes
    return bool(written) and any(base in written and name in written[base].known for base in cls.__mro__)


def _of_metaclass(vm: Machine, owner: type, name: str, found: Any) -> Any:
    """What a metaclass of the user's says of an attribute that the class itself does not have: a plain value `found`,
    or what its `__getattr__` answers; else MISSING."""
    meta = type(owner)
    if is_library_class(meta):
        return MISSING
    if found is MISSING:
        hook = vm.world.lookup(meta, "__getattr__")
        return Call(hook, [owner, name]) if type(hook) is types.FunctionType else MISSING
    if hasattr(type(found), "__get__"):
        return MISSING
    return found if _is_written(vm, meta, name) else _class_value(vm, meta, name, found)


def class_namespace(vm: Machine, cls: type, namespace: Any) -> Any:
    """The `__dict__` of a class: of one made by the program or by a library as it is, else with its parts guarded."""
    if id(cls) in vm.world.own_classes:
        return namespace
    source = attribute_source(Source("object", None, None, cls), "__dict__")
    wrap = vm.world.trust if is_library_class(cls) else vm.world.wrap
    return vm.world.mirror(vm.world.show_class(viewed(namespace), source, wrap), source)


def _class_value(vm: Machine, cls: type, name: str, value: Any) -> Any:
    """A plain value stored on a class."""
    if type(value) in (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType):
        return value
    if id(cls) in vm.world.own_classes:  # what it has from outside is found there
        cls = next((base for base in cls.__mro__ if name in base.__dict__), cls)
        if id(cls) in vm.world.own_classes:
            return value
    source = attribute_source(Source("object", None, None, cls), name)
    if is_library_class(cls):
        return vm.world.trust(value, source)
    return vm.world.wrap(value, source)


def _instance(vm: Machine, owner: Any, cls: type, name: str) -> Any:
    if cls is OUTSIDE_NODE and name not in NODE_METHODS:
        class_of(owner)  # raises
    if name == "__class__" and class_attribute(cls, name) is _CLASS:
        return cls
    if name in NODE_METHODS and isinstance(owner, torch.autograd.graph.Node):
        return types.MethodType(NODE_METHODS[name], owner)
    hook = _hook(vm, cls, "__getattribute__")
    found = default_attribute(vm, owner, cls, name, True) if hook is MISSING else Call(hook, [owner, name])
    if type(found) is not Call:
        return found
    fallback = _hook(vm, cls, "__getattr__")  # it is asked for what raises AttributeError, too
    if fallback is MISSING or found.function is fallback:
        return found
    return Call(polyfills.BY_NAME["attribute_or"], [found.function, found.args, fallback, owner, name])


def _hook(vm: Machine, cls: type, name: str) -> Any:
    """The special method for attributes that a class has in place of Python's own protocol, or MISSING."""
    hook = attribute_hook(vm.world.lookup(cls, name), name)
    if hook is MISSING or type(hook) is types.FunctionType or type(hook) in C_METHODS:
        return hook
    if is_library_class(cls):
        return MISSING
    raise Unsupported(f"{name} of {cls.__name__} is no function", vm.where(), None, "outside_object")


def default_attribute(vm: Machine, owner: Any, cls: type, name: str, fallback: bool) -> Any:
    """`object.__getattribute__`, and with `fallback` then the class's `__getattr__`."""
    world = vm.world
    outside = type(owner) is Outside
    found = world.lookup(cls, name)
    kind = type(found)
    if kind is property:
        if found.fget is None:
            raise AttributeError(f"unreadable attribute {name!r}")
        return Call(found.fget, [owner])
    if kind in _SLOT_TYPES:
        if is_mask(type(owner)):
            return Call(found.__get__, [owner])
        value = _slot(vm, owner, name)
        method = _hook(vm, cls, "__getattr__") if value is MISSING and fallback else MISSING
        if method is not MISSING:
            return Call(method, [owner, name])
        if value is MISSING:
            raise AttributeError(name if VERSION == (3, 10) else f"'{cls.__name__}' object has no attribute '{name}'")
        return value
    for hook in ("__get__", "__set__") if found is not MISSING else ():
        world.rely_on_class(kind, hook)
    if (
        kind is not types.FunctionType
        and found is not MISSING
        and hasattr(kind, "__set__")
        and hasattr(kind, "__get__")
    ):
        return _descriptor(vm, found, owner, cls)
    value = _own_attribute(vm, owner, name)
    if value is not MISSING:
        return value
    if found is not MISSING:
        own_first = name == "forward" or getattr(torch.nn.Module, name, None) is not found
        if outside and own_first and owner.attrs is not None and hasattr(kind, "__get__"):
            owner.attrs.rely_on_absence(name)  # an instance's own would come first
        if kind is types.FunctionType:
            return types.MethodType(found, owner)
        if kind is staticmethod:
            return found.__func__
        if kind is classmethod:
            return _class_method(found, cls)
        if kind is functools.cached_property:
            return Call(polyfills.BY_NAME["cached_property_get"], [owner, found.func, found.attrname])
        if hasattr(kind, "__get__"):
            if outside and kind in _METHOD_TYPES:
                return method_of_c(found, owner)
            return _descriptor(vm, found, owner, cls)
        return _default_of_class(vm, owner, cls, name, found)
    if fallback:
        method = _hook(vm, cls, "__getattr__")
        if method is _MODULE_GETATTR and outside:
            return _module_member(vm, owner, cls, name)
        if method is not MISSING:
            if outside:
                world.rely_on_missing(owner, name)
            return Call(method, [owner, name])
    if outside:
        world.rely_on_missing(owner, name)
    raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")


def _default_of_class(vm: Machine, owner: Any, cls: type, name: str, found: Any) -> Any:
    """An attribute that instances inherit from their class; an outside instance may get one of its own later, so it is
    guarded there."""
    if _is_written(vm, cls, name):
        return found
    if type(owner) is not Outside:
        return _class_value(vm, cls, name, found)
    plain: Any = object.__getattribute__
    if cls.__getattribute__ is plain or owner.attrs is None:
        return vm.world.wrap(found, attribute_source(owner.source, name))
    owner.attrs.rely_on_absence(name)
    return _class_value(vm, cls, name, found)


def _own_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """From the instance's `__dict__`, or MISSING."""
    if type(owner) is Outside:
        if name == "data" and issubclass(owner.cls, WEAK_CONTAINERS):
            vm.world.refuse_deaths()
        return MISSING if owner.attrs is None else owner.attrs.peek(name)
    if is_mask(type(owner)):
        return _behind_mask(vm, owner, name)
    member = _of_member(vm, owner)
    if member is not None:
        return member.get(name)
    value = dict.get(own_namespace(owner), name, MISSING)
    if value is not MISSING and is_opaque(owner) and vm.world.is_outside(owner):
        return vm.world.wrap(value, attribute_source(Source("object", None, None, owner), name))
    place = _place_of_copy(vm, owner)
    if value is MISSING and place is not None and (id(owner), "namespace") not in vm.world.once:
        vm.world.once.add((id(owner), "namespace"))
        vm.world.guard(Source("apply", place, (), own_namespace), "dict_keys", list(own_namespace(owner)))
    return value


def _of_member(vm: Machine, owner: Any) -> Overlay | None:
    """The attributes of a member of an outside enumeration, which stands for itself; None for other values."""
    if not issubclass(type(owner), enum.Enum) or id(type(owner)) in vm.world.own_classes:
        return None
    return vm.world.overlay(own_namespace(owner), Source("object", None, None, owner), attribute_source, owner)


def _behind_mask(vm: Machine, owner: Any, name: str) -> Any:
    """An attribute that a tensor of a class of the program's own has been given, or MISSING."""
    if owner.attributes is not None:
        return owner.attributes.get(name, MISSING)
    given = outside_attributes(vm, owner)
    return given.get(name) if vm.world.lookup(class_of(owner), name) is MISSING else given.peek(name)


def _store_behind_mask(vm: Machine, owner: Any, name: str, value: Any) -> None:
    """MISSING deletes."""
    if owner.attributes is None:
        outside_attributes(vm, owner).set(name, value)
    elif value is MISSING:
        del owner.attributes[name]
    else:
        owner.attributes[name] = value
    if name == "_is_param" and value is not MISSING:
        object.__setattr__(owner, name, value)


def _place_of_copy(vm: Machine, owner: Any) -> Source | None:
    """Where the partial, or tuple with attributes, was found of which `owner` is a copy."""
    cls = type(owner)
    copied = cls is functools.partial or (issubclass(cls, tuple) and own_namespace(owner) is not NO_NAMESPACE)
    return vm.world.place_of(owner) if copied else None


def _refuse_copy(vm: Machine, owner: Any) -> None:
    """Raises Unsupported where attributes are written that are only a copy of those outside."""
    if _place_of_copy(vm, owner) is not None:
        reason = f"the attributes of a {type(owner).__name__} from outside are written"
        raise Unsupported(reason, vm.where(), "do this outside the compiled function", "attribute_write")


def _slot(vm: Machine, owner: Any, name: str) -> Any:
    """What is in a slot, or MISSING."""
    if type(owner) is not Outside:
        try:
            found = object.__getattribute__(owner, name)
        except AttributeError:
            return MISSING
        if name == "__dict__":
            member = _of_member(vm, owner)
            if member is not None:
                return Outside.over(vm.world, found, member, attribute_source(member.source, name))
            _refuse_copy(vm, owner)
            vm.world.namespaces[id(found)] = owner
        return found
    if name == "__dict__":
        return outside_namespace(vm, owner)
    overlay = owner.slots(vm.world)
    value = overlay.peek(name)
    if value is MISSING:
        vm.world.guard_no_attribute(owner, name)
    return value


def outside_namespace(vm: Machine, owner: Outside) -> Outside:
    """The `__dict__` of an outside object as a dict that shares its overlay."""
    key = id(owner.real.__dict__)
    known = vm.world.seen.get(key)
    if known is None:
        view = Outside.namespace_of(owner)
        known = vm.world.seen[key] = (view.real, view, view.source)
    found: Outside = known[1]
    return found


def _stateful(vm: Machine, found: Any, cls: type) -> Any:
    """A descriptor of a class of the user's: an object that may have state, of the outside if the program has not made
    it."""
    world = vm.world
    made: list[Any] = []  # what the program has put into the classes
    for base in cls.__mro__:
        made += vars(base).values() if id(base) in world.own_classes else ()
        made += world.classes[base].known.values() if base in world.classes else ()
    kind: Any = type(found)
    if is_library_class(kind) or any(found is value for value in made):
        return found
    return world.wrap(found, Source("object", None, None, found))


def _descriptor(vm: Machine, found: Any, owner: Any, cls: type) -> Any:
    if found is _VALUE and (member := _of_member(vm, owner)) is not None:
        value = own_namespace(owner).get("_value_", MISSING)
        return value if is_constant(value) else member.peek("_value_")
    getter = vm.world.lookup(type(found), "__get__")
    if type(getter) is types.FunctionType:
        return Call(getter, [_stateful(vm, found, cls), owner, cls])
    if type(owner) is Outside:
        raise Unsupported(f"a descriptor of type {type(found).__name__}", vm.where(), kind="outside_object")
    return getter(found, owner, cls)


def _module_member(vm: Machine, owner: Outside, cls: type, name: str) -> Any:
    """`torch.nn.Module.__getattr__`: parameters, buffers, submodules."""
    for holder in ("_parameters", "_buffers", "_modules"):
        members = owner.namespace.peek(holder)
        if members is not MISSING:
            value = members.dict_items.peek(name) if type(members) is Outside else members.get(name, MISSING)
            if value is not MISSING:
                return value
    for holder in ("_parameters", "_buffers", "_modules"):
        members = owner.namespace.peek(holder)
        if type(members) is Outside:
            members.dict_items.rely_on_absence(name)
    vm.world.rely_on_missing(owner, name)
    raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")


def check_super(cls: type, owner: Any) -> None:
    """Raises what `super(cls, owner)` raises for what is neither an instance of the class nor a class below it."""
    is_below = issubclass(type(owner), type) and issubclass(owner, cls)
    if not is_below and not issubclass(class_of(owner), cls):
        super(
            cls, PENDING[type(owner)]() if type(owner) in PENDING else owner.real if type(owner) is Outside else owner
        )  # raises


def load_super(vm: Machine, cls: type, owner: Any, name: str) -> Any:
    """`super(cls, owner).name`."""
    check_super(cls, owner)
    if name == "__class__":
        return super
    unbound = issubclass(type(owner), type) and issubclass(owner, cls)
    start = owner if unbound else class_of(owner)
    found = vm.world.lookup(start, name, cls)
    kind = type(found)
    if found is MISSING:
        raise AttributeError(f"'super' object has no attribute '{name}'")
    if kind is types.FunctionType:
        return found if unbound and name == "__new__" else types.MethodType(found, owner)
    if kind is staticmethod:
        return found.__func__
    if kind is classmethod:
        return _class_method(found, start)
    if kind is property:
        return Call(found.fget, [owner])
    if kind in (types.WrapperDescriptorType, types.MethodDescriptorType) and not unbound:
        return method_of_c(found, owner)
    if kind is types.BuiltinFunctionType:  # __new__ of built-in types
        return found
    if type(getattr(kind, "__get__", None)) is types.FunctionType:
        return Call(kind.__get__, [_stateful(vm, found, start), None if unbound else owner, start])
    if hasattr(kind, "__get__"):
        return found.__get__(None if unbound else owner, start)
    holder = next(base for base in start.__mro__[start.__mro__.index(cls) + 1 :] if name in base.__dict__)
    return _class_value(vm, holder, name, found)


# ---- writing ---------------------------------------------------------------------------------------------------------


def store_attribute(vm: Machine, owner: Any, name: str, value: Any) -> Any:
    """`owner.name = value`; None, or the Call that does it."""
    owner = behind(vm, owner)
    cls = owner.cls if type(owner) is Outside else type(owner)
    if cls is TracedTensor:
        return store_tensor_attribute(vm, owner, name, value)
    if cls is types.FunctionType and id(owner) in vm.own_functions:
        setattr(owner, name, value)
        return None
    if cls is types.FunctionType and name not in _OF_FUNCTIONS:
        attributes = function_attributes(vm, owner)
        if attributes is not None:
            attributes.set(name, value)
            return None
    if cls is types.ModuleType:
        vm.world.store_global(owner.__dict__, name, value)
        return None
    if issubclass(cls, type):
        if type(vm.world.lookup(type(owner), "__setattr__")) is types.FunctionType:
            raise Unsupported(
                "an attribute of a class with its own __setattr__ is assigned", vm.where(), kind="attribute_write"
            )
        vm.world.store_class_attribute(owner, name, value)
        return None
    if cls in CONSTANT_TYPES or ((is_opaque(owner) or _is_wrapper(cls)) and vm.world.is_outside(owner)):
        raise Unsupported(
            f"an attribute of {cls.__name__ if issubclass(cls, torch.Tensor) else shown(owner)} is assigned",
            vm.where(),
            "assign it outside the compiled function",
            kind="attribute_write",
        )
    hook = _hook(vm, cls, "__setattr__")
    if hook is _MODULE_SETATTR and type(owner) is Outside and _plain_module_store(owner, name, value):
        return None
    return default_store(vm, owner, cls, name, value) if hook is MISSING else Call(hook, [owner, name, value])


def _is_wrapper(cls: type) -> bool:
    return issubclass(cls, torch.Tensor) and not is_mask(cls)


def _plain_module_store(owner: Outside, name: str, value: Any) -> bool:
    """`torch.nn.Module.__setattr__` for a buffer that is replaced, and for a value that is no parameter, module or
    buffer."""
    holders = {key: owner.namespace.peek(key) for key in ("_parameters", "_buffers", "_modules")}
    if any(type(holder) is not Outside for holder in holders.values()):
        return False
    inside = [key for key, holder in holders.items() if holder.dict_items.peek(name) is not MISSING]
    if inside == ["_buffers"] and (value is None or type(value) is TracedTensor):
        holders["_buffers"].items.set(name, value)
        return True
    is_member = isinstance(value, (torch.nn.Parameter, torch.nn.Buffer)) or (
        type(value) is Outside and issubclass(value.cls, torch.nn.Module)
    )
    if (
        inside
        or is_member
        or isinstance(value, torch.nn.Module)
        or isinstance(getattr(owner.cls, name, None), property)
    ):
        return False
    owner.namespace.set(name, value)
    return True


def default_store(vm: Machine, owner: Any, cls: type, name: str, value: Any) -> Any:
    """`object.__setattr__`."""
    found = vm.world.lookup(cls, name)
    if type(found) is property:
        if found.fset is None:
            found.__set__(owner.real if type(owner) is Outside else owner, value)  # raises
        return Call(found.fset, [owner, value])
    if found is not MISSING and type(getattr(type(found), "__set__", None)) is types.FunctionType:
        return Call(type(found).__set__, [_stateful(vm, found, cls), owner, value])
    if type(owner) is Outside:
        if name in ("__class__", "__dict__") and type(found) in _SLOT_TYPES:
            if name == "__dict__" and type(value) is Outside and value is outside_namespace(vm, owner):
                return None  # `thing.__dict__ |= names`
            raise Unsupported(f"the {name.strip('_')} of an object is replaced", vm.where(), None, "attribute_write")
        if type(found) in _SLOT_TYPES and name != "__dict__":
            owner.slots(vm.world).set(name, value)
        elif owner.attrs is not None:
            owner.attrs.set(name, value)
        elif found is MISSING:
            suffix = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""
            raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'{suffix}")
        else:
            raise Unsupported(
                f"an attribute of a {cls.__name__} object is assigned", vm.where(), kind="attribute_write"
            )
        return None
    if is_mask(type(owner)):
        if type(found) in _SLOT_TYPES:
            return Call(found.__set__, [owner, value])
        _store_behind_mask(vm, owner, name, value)
        return None
    member = _of_member(vm, owner)
    if member is not None:
        member.set(name, value)
        return None
    _refuse_copy(vm, owner)
    object.__setattr__(owner, name, value)
    return None


def delete_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """`del owner.name`; None, or the Call that does it."""
    owner = behind(vm, owner)
    cls = owner.cls if type(owner) is Outside else type(owner)
    if cls is TracedTensor:
        return delete_tensor_attribute(vm, owner, name)
    if cls is types.FunctionType and id(owner) not in vm.own_functions:
        _native(vm, owner, name)  # raises where there is none
        return store_attribute(vm, owner, name, MISSING)
    hook = _hook(vm, cls, "__delattr__")
    of_module = hook is _MODULE_DELATTR and type(owner) is Outside
    if hook is MISSING or of_module:
        return default_delete(vm, owner, cls, name, of_module)
    return Call(hook, [owner, name])


def default_delete(vm: Machine, owner: Any, cls: type, name: str, of_module: bool = False) -> Any:
    """`object.__delattr__`, or that of an outside module, which looks among its members first."""
    found = vm.world.lookup(cls, name)
    if type(found) is property:
        if found.fdel is None:
            found.__delete__(owner.real if type(owner) is Outside else owner)  # raises
        return Call(found.fdel, [owner])
    if found is not MISSING and type(getattr(type(found), "__delete__", None)) is types.FunctionType:
        return Call(type(found).__delete__, [_stateful(vm, found, cls), owner])
    if type(owner) is Outside:
        overlay = owner.attrs
        if type(found) is types.MemberDescriptorType:
            slots = owner.slots(vm.world)
            if _slot(vm, owner, name) is MISSING:
                raise AttributeError(name)
            if slots.original[name] is MISSING:
                vm.world.guard_no_attribute(owner, name)
            slots.set(name, MISSING)
            return None
        if of_module and owner.attrs is not None:
            for holder in ("_parameters", "_buffers", "_modules"):
                members = owner.namespace.peek(holder)
                if type(members) is Outside and members.dict_items.peek(name) is not MISSING:
                    overlay = members.items
        if overlay is None or overlay.peek(name) is MISSING:
            text = f"'{cls.__name__}' object has no attribute '{name}'"
            raise AttributeError(name if VERSION == (3, 10) else text)
        overlay.set(name, MISSING)
        return None
    if issubclass(cls, type):
        vm.world.store_class_attribute(owner, name, MISSING)
        return None
    if is_mask(cls):
        if _behind_mask(vm, owner, name) is MISSING:
            raise AttributeError(f"'{class_of(owner).__name__}' object has no attribute '{name}'")
        _store_behind_mask(vm, owner, name, MISSING)
        return None
    member = _of_member(vm, owner)
    if member is not None:
        if member.peek(name) is MISSING:
            raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")
        member.set(name, MISSING)
        return None
    _refuse_copy(vm, owner)
    object.__delattr__(owner, name)
    return None


__all__ = [
    "Super",
    "class_namespace",
    "default_attribute",
    "default_delete",
    "default_store",
    "delete_attribute",
    "function_attributes",
    "load_attribute",
    "load_super",
    "store_attribute",
]
