"""Attributes of tensors. What belongs to the value is asked of the traced tensor; what belongs to the outside world
(an input's `grad`, attributes that the user put on it) is read with its guard and written as an effect."""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.program.kinds import MISSING, is_constant
from bolide.dynamo.world.outside import Overlay, attribute_source
from bolide.support.errors import Unsupported
from bolide.symbolic import same_sizes
from bolide.tracing import Trace, TracedTensor

# Attributes that are state of the storage, of autograd or of the object rather than of the value.
_REFUSED = frozenset(["__dict__", "_cdata", "_python_dispatch", "_use_count", "_version", "data_ptr"])
_REFUSED |= {"storage", "untyped_storage", "share_memory_", "set_"}
_OURS = frozenset(vars(TracedTensor)) | frozenset(TracedTensor.__annotations__)
_OURS -= frozenset(dir(torch.nn.Parameter))  # what only traced tensors have
_SYNONYMS = {"_grad": "grad"}
# What only the real tensor knows of an input.
_OF_ORIGIN = frozenset(["_backward_hooks", "_base", "_post_accumulate_grad_hooks", "output_nr", "retains_grad"])
_OF_ORIGIN |= {"grad_dtype"}
_DATA: Any = torch.Tensor.data
# Methods with an effect outside, or an answer of their own (`torch_tensors`).
INTERCEPTED = frozenset(
    ["as_subclass", "backward", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad"]
)
INTERCEPTED |= {"item", "numpy", "__deepcopy__", "__dir__"}


def node_hook(node: Any, hook: Any) -> Any:
    """Stands for `Node.register_hook`, of which each class of nodes has its own."""
    return node.register_hook(hook)


def node_prehook(node: Any, hook: Any) -> Any:
    """Likewise for `Node.register_prehook`."""
    return node.register_prehook(hook)


NODE_METHODS = {"register_hook": node_hook, "register_prehook": node_prehook}


# Attributes in which it shows whether grad mode is on where tensors are made.
_OF_HISTORY = frozenset(["_base", "grad_fn", "is_leaf", "output_nr", "requires_grad", "requires_grad_", "retain_grad"])
_OF_HISTORY |= {"_is_view", "backward", "grad", "register_hook", "retains_grad"}


def refuse_in_reentrant(vm: Machine, what: str) -> None:
    """Raises Unsupported in a reentrant checkpoint, where eager answers otherwise: the forward runs without grad mode,
    and again, with it, on tensors without a history."""
    if vm.depth.reentrant:
        reason, remedy = f"{what} in a reentrant checkpoint", "pass use_reentrant=False"
        raise vm.unsupported(reason, "context", remedy, "torch.utils.checkpoint.checkpoint")


def load_tensor_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """`owner.name` of a traced tensor. Raises AttributeError as Python does."""
    name = _SYNONYMS.get(name, name)
    if name in _OF_HISTORY:
        refuse_in_reentrant(vm, f"Tensor.{name} is used")
    if name == "_version" and _is_made_here(vm, owner):
        return owner._version
    if name in _REFUSED:
        raise _refused(vm, name, "is used")
    if name == "__class__":
        return _class_of(owner)
    if name in INTERCEPTED:
        return types.MethodType(getattr(torch.Tensor, name), owner)
    if name == "grad" and (place := vm.world.inputs.place(owner)) is not None:
        if not vm.world.inputs.tensors[place].is_leaf:
            raise _refused(vm, "grad", "of a tensor that is no leaf is used")
        _refuse_masked(vm, owner, name)
        return outside_attributes(vm, owner).get("grad")
    if name in _OF_ORIGIN:
        return _of_origin(vm, owner, name)
    vm.trace.where = vm.where()
    vm.world.classes.rely_on(torch.Tensor, name)
    recorder = vm.recorder
    if name == "data" and recorder is not None:
        return recorder.as_one(_DATA.__get__, [owner], lambda: owner.data)
    if name not in _OURS:
        try:
            return getattr(owner, name)
        except AttributeError:
            if vm.world.inputs.place(owner) is None and owner.attributes is None:
                raise
    value = _own_attribute(vm, owner, name)
    if value is MISSING:
        raise no_attribute(_class_of(owner).__name__, name)
    return value


def _is_made_here(vm: Machine, owner: Any) -> bool:
    """Whether all that was ever written to the memory of a tensor is in this trace."""
    group = owner.group
    is_own = group.source is None and not group.frozen and id(owner) not in vm.world.inputs.masked
    return is_own and vm.world.inputs.place(owner) is None


def _class_of(owner: Any) -> Any:
    return owner.face or (torch.nn.Parameter if isinstance(owner, torch.nn.Parameter) else torch.Tensor)


def no_attribute(owner: str, name: str) -> AttributeError:
    """What CPython says of an object of this class."""
    return AttributeError(f"'{owner}' object has no attribute '{name}'")


def _own_attribute(vm: Machine, owner: Any, name: str) -> Any:
    """What the user, or the program, has put on a tensor under a name; else MISSING."""
    if vm.world.inputs.place(owner) is not None:
        return outside_attributes(vm, owner).get(name)
    return (owner.attributes or {}).get(name, MISSING)


def own_attributes(vm: Machine, owner: Any) -> dict[str, Any]:
    """All that the user, or the program, has put on a tensor."""
    place = vm.world.inputs.place(owner)
    if place is None:
        return dict(owner.attributes or {})
    overlay, (real, source) = outside_attributes(vm, owner), vm.world.inputs.given(place)
    names = list(vars(real))
    vm.world.guards.add(attribute_source(source, "__dict__"), "dict_keys", names)
    own = {name: overlay.get(name) for name in [*names, *overlay.known] if name not in _OF_BUFFERS}
    return {name: value for name, value in own.items() if value is not MISSING and not hasattr(torch.Tensor, name)}


_OF_BUFFERS = ("_is_buffer", "persistent")  # a traced one has them, too


def _of_origin(vm: Machine, owner: TracedTensor, name: str) -> object:
    """What the real tensor answers for an input, guarded, if it is a constant; a tensor made here answers itself."""
    place = vm.world.inputs.place(owner)
    if place is None:
        value = getattr(owner, name)
        viewed = vm.trace.input_of(owner.group) if name == "_base" and value is not None else None
        if viewed is not None:  # a view of a view has the base of that
            _of_origin(vm, vm.world.trace.inputs[viewed], name)
        return value
    changed = [known.tensor for known in vm.world.journal.hooks.values()]
    changed += [args[0] for function, args, _ in vm.later.calls if function is torch.Tensor.retain_grad]
    real, source = vm.world.inputs.given(place)
    with torch._C.DisableTorchFunctionSubclass():
        value = getattr(real, name)
    if not is_constant(value) or id(owner) in vm.world.inputs.masked or any(owner is tensor for tensor in changed):
        raise _refused(vm, name, "of an input is used")
    vm.world.guards.add(attribute_source(source, name), "equals", value)
    return value


def store_tensor_attribute(vm: Machine, owner: Any, name: str, value: Any) -> None:
    """`owner.name = value` of a traced tensor."""
    name = _SYNONYMS.get(name, name)
    vm.trace.where = vm.where()
    outside = vm.world.inputs.place(owner) is not None
    if name == "requires_grad":
        if outside and value is not owner.requires_grad:
            change_flag(vm, owner, value)
        else:
            owner.requires_grad = value
    elif outside and (name == "grad" or not hasattr(torch.Tensor, name)):
        _refuse_masked(vm, owner, name)
        if name == "grad":
            _check_gradient(owner, value)
        outside_attributes(vm, owner).set(name, value)
    elif name == "grad":
        if not owner.is_leaf:
            raise _refused(vm, name, "of a tensor that is no leaf is assigned")
        owner.grad = value
        vm.trace.graded.append(weakref.ref(owner))
    elif name == "data" and type(value) is TracedTensor:
        _renew(vm, owner, value)
    elif name in ("_is_param", *_OF_BUFFERS) or hasattr(torch.Tensor, name):
        raise _refused(vm, name, "is assigned")
    else:
        owner.attributes = {**(owner.attributes or {}), name: value}


def delete_tensor_attribute(vm: Machine, owner: Any, name: str) -> None:
    """`del owner.name` of a traced tensor."""
    if name == "grad":
        store_tensor_attribute(vm, owner, name, None)
    elif hasattr(torch.Tensor, name) or owner.face is not None:
        raise _refused(vm, name, "is deleted")
    elif _own_attribute(vm, owner, name) is MISSING:
        raise no_attribute(_class_of(owner).__name__, name)
    elif vm.world.inputs.place(owner) is not None:
        _refuse_masked(vm, owner, name)
        outside_attributes(vm, owner).set(name, MISSING)
    else:
        owner.attributes = {other: value for other, value in owner.attributes.items() if other != name}


def _check_gradient(owner: TracedTensor, value: object) -> None:
    """Raises what eager raises where a gradient is assigned that does not fit."""
    if value is owner:
        raise RuntimeError("can't assign Variable as its own grad")
    cls = class_of(value)
    if cls is not type(value) and not isinstance(value, torch.Tensor):
        raise TypeError(f"assigned grad expected to be a Tensor or None but got grad of type {cls.__name__}")
    like: Any = TracedTensor.make(owner._trace, owner.meta, owner.node)
    like.grad = value


def _renew(vm: Machine, owner: Any, value: TracedTensor) -> None:
    """`owner.data = value`: an effect on an input, which is then another tensor's storage."""
    old, new = owner.meta, value.meta
    alike = same_sizes(old.shape, new.shape) and same_sizes(old.stride, new.stride)
    if not alike or (old.dtype, old.device) != (new.dtype, new.device):
        raise _refused(vm, "data", "is assigned a tensor of another shape, type or layout")
    place = vm.world.inputs.place(owner)
    possible = owner.is_leaf if place is not None else not owner.requires_grad
    if not possible or type(vm.trace) is not Trace or id(owner) in vm.world.inputs.masked or owner.face is not None:
        raise _refused(vm, "data", "of a tensor with a history is assigned")
    if value.group is owner.group and value.chain == owner.chain:
        return
    vm.trace.functional_only = "Tensor.data is assigned"
    vm.trace.renew(owner, value)
    if place is not None:
        vm.world.inputs.places[id(vm.trace.inputs[place])] = place
        vm.world.identities.mirror(owner, vm.world.inputs.sources[place])
        outside_attributes(vm, owner).set("data", value.data)


def _refuse_masked(vm: Machine, owner: object, name: str) -> None:
    """The real tensor's class would be asked again when the call is made."""
    if id(owner) in vm.world.inputs.masked:
        raise _refused(vm, name, "of an input that is of a subclass of Tensor is used")


def change_flag(vm: Machine, tensor: Any, wanted: bool) -> Any:
    """Let an input require grad, or not, from here on; the real one does before the graph runs. What was computed from
    it before has no history, which only functional graphs show. One that is thawed again is as it was. Where something
    has a history that leads to it, the real one is frozen when the graph has run, as is every one changed again."""
    world, trace = vm.world, vm.trace
    place = world.inputs.place(tensor)
    assert place is not None
    source, flags = world.inputs.sources[place], world.journal.flags
    masked = id(tensor) in world.inputs.masked
    possible = type(trace) is Trace and world.inputs.tensors[place].is_leaf and not masked
    if not possible or not (tensor.is_floating_point() or tensor.is_complex()):
        raise _refused(vm, "requires_grad", "of an input is changed")
    trace.functional_only = "requires_grad of an input is changed"
    leaf = trace.leaves[place]
    if (not wanted and (tensor.group.version or leaf.node.users)) or any(leaf is frozen for frozen in trace.frozen):
        result = tensor.requires_grad_(wanted)
        trace.frozen.append(leaf)
        world.inputs.derived_by.add(place)
        outside_attributes(vm, tensor).set("requires_grad", wanted)
        return result
    if (source, not wanted) in flags:
        flags.remove((source, not wanted))
    else:
        flags.append((source, wanted))
    return tensor.requires_grad_(wanted)


def outside_attributes(vm: Machine, owner: object) -> Overlay:
    """What the outside world keeps on an input: its `grad` and the attributes that the user put there."""
    place = vm.world.inputs.place(owner)
    assert place is not None
    known = _ATTRIBUTES.of(vm).get(place)
    if known is None:
        real, source = vm.world.inputs.given(place)
        with torch._C.DisableTorchFunctionSubclass():
            with_gradient = real.is_leaf and id(owner) not in vm.world.inputs.masked
            present = {**vars(real), "grad": real.grad} if with_gradient else dict(vars(real))
        known = _ATTRIBUTES.of(vm)[place] = vm.world.overlay(present, source, attribute_source, real)
    return known


_ATTRIBUTES: Slot[dict[int, Overlay]] = Slot(dict)  # by the place of the input


def _refused(vm: Machine, name: str, what: str) -> Unsupported:
    operation = f"Tensor.{name}"
    return vm.unsupported(f"{operation} {what}", "tensor_method", "use it outside the compiled function", operation)
