"""Attributes that are assigned and deleted, by Python's protocol, on every kind of value."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.machine.attributes import (
    MEMBERS,
    OF_FUNCTIONS,
    SLOT_TYPES,
    behind_mask,
    function_attributes,
    hook_of,
    method_in_python,
    native_attribute,
    of_member,
    outside_namespace,
    refuse_copy,
    slot_value,
    with_state,
)
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.stand_ins import behind, class_of
from bolide.dynamo.machine.tensors import (
    delete_tensor_attribute,
    no_attribute,
    outside_attributes,
    store_tensor_attribute,
)
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING, is_opaque, is_property, own_protocol
from bolide.dynamo.program.sources import shown
from bolide.dynamo.world.outside import Outside
from bolide.tracing import TracedTensor, is_mask

_MODULE_DELATTR = torch.nn.Module.__delattr__
_MODULE_SETATTR = torch.nn.Module.__setattr__


def _put(vm: Machine, owner: Any, name: str, value: object) -> None:
    """Let an instance that is not `Outside` have an attribute of its own; MISSING deletes."""
    if is_mask(type(owner)):
        if owner.attributes is None:
            outside_attributes(vm, owner).set(name, value)
        elif value is MISSING:
            del owner.attributes[name]
        else:
            owner.attributes[name] = value
        if name == "_is_param" and value is not MISSING:
            object.__setattr__(owner, name, value)
    elif (member := of_member(vm, owner)) is not None:
        member.set(name, value)
    else:
        refuse_copy(vm, owner)
        if value is MISSING:
            own_protocol(type(owner), "__delattr__")(owner, name)
        else:
            own_protocol(type(owner), "__setattr__")(owner, name, value)


def store_attribute(vm: Machine, owner: Any, name: str, value: Any) -> Any:
    """`owner.name = value`; None, or the Call that does it."""
    owner = behind(vm, owner)
    cls = owner.cls if type(owner) is Outside else type(owner)
    if cls is TracedTensor:
        setter = vars(torch._C.TensorBase).get(name) if vm.modes.functions.asks else None
        if type(setter) is types.GetSetDescriptorType:
            return Call(setter.__set__, [owner, value])
        return store_tensor_attribute(vm, owner, name, value)
    if cls is types.FunctionType and id(owner) in vm.own_functions:
        setattr(owner, name, value)
        return None
    if cls is types.FunctionType and name not in OF_FUNCTIONS:
        attributes = function_attributes(vm, owner)
        if attributes is not None:
            attributes.set(name, value)
            return None
    if cls is types.ModuleType:
        vm.world.namespaces.store_global(owner.__dict__, name, value)
        return None
    if issubclass(cls, type):
        if type(vm.world.classes.lookup(type(owner), "__setattr__")) is types.FunctionType:
            raise vm.unsupported("an attribute of a class with its own __setattr__ is assigned", "attribute_write")
        vm.world.classes.store(owner, name, value)
        return None
    is_wrapper = issubclass(cls, torch.Tensor) and not is_mask(cls)
    if cls in CONSTANT_TYPES or ((is_opaque(owner) or is_wrapper) and vm.world.identities.is_outside(owner)):
        name_of_owner = cls.__name__ if issubclass(cls, torch.Tensor) else shown(owner)
        remedy = "assign it outside the compiled function"
        raise vm.unsupported(f"an attribute of {name_of_owner} is assigned", "attribute_write", remedy)
    hook = hook_of(vm, cls, "__setattr__")
    if hook is _MODULE_SETATTR and type(owner) is Outside and _plain_module_store(owner, name, value):
        return None
    return default_store(vm, owner, cls, name, value) if hook is MISSING else Call(hook, [owner, name, value])


def _plain_module_store(owner: Outside, name: str, value: object) -> bool:
    """`torch.nn.Module.__setattr__` for a buffer that is replaced, and for a value that is no parameter, module or
    buffer."""
    holders = {key: owner.namespace.peek(key) for key in MEMBERS}
    if any(type(holder) is not Outside for holder in holders.values()):
        return False
    inside = [key for key, holder in holders.items() if holder.dict_items.peek(name) is not MISSING]
    if inside == ["_buffers"] and (value is None or type(value) is TracedTensor):
        holders["_buffers"].items.set(name, value)
        return True
    is_module = isinstance(value, torch.nn.Module) or (
        type(value) is Outside and issubclass(value.cls, torch.nn.Module)
    )
    is_member = is_module or isinstance(value, (torch.nn.Parameter, torch.nn.Buffer))
    if inside or is_member or isinstance(getattr(owner.cls, name, None), property):
        return False
    owner.namespace.set(name, value)
    return True


def default_store(vm: Machine, owner: object, cls: type, name: str, value: object) -> object:
    """`object.__setattr__`."""
    attribute = vm.world.classes.lookup(cls, name)
    if is_property(attribute, "__set__"):
        if attribute.fset is None:
            attribute.__set__(owner.real if type(owner) is Outside else owner, value)  # raises
        return Call(attribute.fset, [owner, value])
    setter = method_in_python(attribute, "__set__")
    if setter is not None:
        return Call(setter, [with_state(vm, attribute, cls), owner, value])
    if type(owner) is Outside:
        if name in ("__class__", "__dict__") and type(attribute) in SLOT_TYPES:
            if name == "__dict__" and type(value) is Outside and value is outside_namespace(vm, owner):
                return None  # `thing.__dict__ |= names`
            raise vm.unsupported(f"the {name.strip('_')} of an object is replaced", "attribute_write")
        if type(attribute) in SLOT_TYPES and name != "__dict__":
            owner.slots(vm.world).set(name, value)
        elif owner.attrs is not None:
            owner.attrs.set(name, value)
        elif attribute is MISSING:
            suffix = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""
            raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'{suffix}")
        else:
            raise vm.unsupported(f"an attribute of a {cls.__name__} object is assigned", "attribute_write")
        return None
    if name == "__dict__" and type(attribute) in SLOT_TYPES and type(value) is Outside:
        raise vm.unsupported("an object is given a dict from outside as its own", "attribute_write")
    if is_mask(type(owner)) and type(attribute) in SLOT_TYPES:
        return Call(attribute.__set__, [owner, value])
    _put(vm, owner, name, value)
    return None


def delete_attribute(vm: Machine, owner: object, name: str) -> Any:
    """`del owner.name`; None, or the Call that does it."""
    owner = behind(vm, owner)
    cls = owner.cls if type(owner) is Outside else type(owner)
    if cls is TracedTensor:
        return delete_tensor_attribute(vm, owner, name)
    if cls is types.FunctionType and id(owner) not in vm.own_functions:
        native_attribute(vm, owner, name)  # raises where there is none
        return store_attribute(vm, owner, name, MISSING)
    hook = hook_of(vm, cls, "__delattr__")
    of_module = hook is _MODULE_DELATTR and type(owner) is Outside
    if hook is MISSING or of_module:
        return default_delete(vm, owner, cls, name, of_module)
    return Call(hook, [owner, name])


def default_delete(vm: Machine, owner: Any, cls: type, name: str, of_module: bool = False) -> Any:
    """`object.__delattr__`, or that of an outside module, which looks among its members first."""
    attribute = vm.world.classes.lookup(cls, name)
    if is_property(attribute, "__delete__"):
        if attribute.fdel is None:
            attribute.__delete__(owner.real if type(owner) is Outside else owner)  # raises
        return Call(attribute.fdel, [owner])
    deleter = method_in_python(attribute, "__delete__")
    if deleter is not None:
        return Call(deleter, [with_state(vm, attribute, cls), owner])
    if type(owner) is Outside:
        overlay = owner.attrs
        if type(attribute) is types.MemberDescriptorType:
            slots = owner.slots(vm.world)
            if slot_value(vm, owner, name) is MISSING:
                raise AttributeError(name)
            if slots.original[name] is MISSING:
                owner.guard_no_attribute(name)
            slots.set(name, MISSING)
            return None
        if of_module and owner.attrs is not None:
            for holder in MEMBERS:
                members = owner.namespace.peek(holder)
                if type(members) is Outside and members.dict_items.peek(name) is not MISSING:
                    overlay = members.items
        if overlay is None or overlay.peek(name) is MISSING:
            text = f"'{cls.__name__}' object has no attribute '{name}'"
            raise AttributeError(name if VERSION == (3, 10) else text)
        overlay.set(name, MISSING)
        return None
    if issubclass(cls, type):
        vm.world.classes.store(owner, name, MISSING)
        return None
    member = of_member(vm, owner)
    kept = behind_mask(vm, owner, name) if is_mask(cls) else None if member is None else member.peek(name)
    if kept is MISSING:
        raise no_attribute(class_of(owner).__name__, name)
    _put(vm, owner, name, MISSING)
    return None
