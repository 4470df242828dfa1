"""Tensors of the program's own classes that say with `__torch_function__` what torch's functions do with them, or have
methods in place of torch's.

In the program they are traced tensors behind a *mask*: their class is for the time of interpretation a subclass of the
user's class and of `TracedTensor`, whose `__torch_function__` is interpreted when torch asks it. The program sees the
user's class. The input of the graph is the plain tensor that shares storage and history (`plain`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bolide.dynamo.guards.texts import is_plain_subclass
from bolide.dynamo.library.handlers import Args, answers
from bolide.dynamo.library.standard import ask
from bolide.dynamo.machine.calls import NATIVE
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.native_calls import for_real
from bolide.dynamo.machine.tensors import load_tensor_attribute, store_tensor_attribute
from bolide.dynamo.program.captured import Recipe, Source
from bolide.dynamo.torch_calls.autograd import later
from bolide.dynamo.torch_calls.subclasses import as_leaf, as_program_sees, is_wrapper, wrap_parts
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.tracing import STANDS_FOR, TracedTensor, is_mask, modes, unmasked

_native: Any = torch._C
_DISABLED = (_native._disabled_torch_function_impl, _native._disabled_torch_dispatch_impl)
_REMEDY = "do this outside the compiled function"


def is_of_torch(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "torch"


def why_not(cls: type) -> str | None:
    """Why tensors of a class are not captured; None if they are."""
    if is_of_torch(cls):
        return "is one of torch's own"
    if cls.__torch_dispatch__ is not _DISABLED[1]:  # type: ignore[attr-defined]
        return "has a __torch_dispatch__, but does not say what it is made of (__tensor_flatten__)"
    if any("__init_subclass__" in vars(base) for base in cls.__mro__ if base is not object):
        return "has an __init_subclass__"
    if any(vars(base).get("__slots__") for base in cls.__mro__):
        return "has __slots__"
    known = type(_member(cls)) in _ASKED or _member(cls) is _DISABLED[0]
    return None if known else "has a __torch_function__ of an unusual kind"


def _member(cls: type) -> object:
    """The `__torch_function__` of a class, as it stands there."""
    return next(vars(base)["__torch_function__"] for base in cls.__mro__ if "__torch_function__" in vars(base))


def _refuse(world: World, cls: type) -> None:
    refusal = why_not(cls)
    if refusal is not None:
        raise Unsupported(f"a {cls.__name__}, a subclass of Tensor, {refusal}", world.guards.where(), _REMEDY, "input")


_MASKS: Slot[dict[type, Any]] = Slot(dict)


def _mask(vm: Machine, cls: type) -> Any:
    """The class of traced tensors that stand for tensors of `cls`."""
    mask = _MASKS.of(vm).get(cls)
    if mask is None:
        _refuse(vm.world, cls)
        vm.world.classes.lookup(cls, "__torch_function__")  # guards it
        asked: Any = _member(cls)
        if asked is not _DISABLED[0]:
            asked = _ASKED[type(asked)](_asked(vm, cls, getattr(asked, "__func__", asked), type(asked)))
        namespace = {STANDS_FOR: cls, "__torch_function__": asked}
        namespace |= {name: getattr(cls, name) for name in ("__module__", "__qualname__")}
        own = [base for base in cls.__bases__ if issubclass(base, torch.Tensor) and not is_of_torch(base)]
        bases = [_mask(vm, base) for base in own] or [TracedTensor]  # torch asks subclasses before others
        mask = _MASKS.of(vm)[cls] = type(cls)(cls.__name__, (cls, *bases), namespace)
        vm.trace.functional_only = "a subclass of Tensor computes"
        recorder = vm.recorder
        if recorder is not None:
            recorder.refusal = vm.trace.functional_only
    return mask


#: what kind of method a `__torch_function__` may be, and what makes one of ours; torch warns of those of instances
_ASKED: dict[type, Callable[[Callable[..., object]], object]] = {
    classmethod: classmethod,
    staticmethod: staticmethod,
    types.FunctionType: lambda function: function,
}


def _asked(vm: Machine, cls: type, function: Any, kind: type) -> Callable[..., object]:
    """What torch calls: `function`, of the user's class, is told of the classes that the program knows. By its `kind`
    it is given its class, a tensor or neither."""
    interpreted = later(vm, function, f"{cls.__name__}.__torch_function__")

    def call(*given: Any) -> object:
        owner, given = ((), given) if kind is staticmethod else (given[:1], given[1:])
        func, classes, args, kwargs = (*given, (), None)[:4] if len(given) < 4 else given
        owner = (cls,) if kind is classmethod else owner
        return interpreted(*owner, func, classes_asked(func, classes, args), args, kwargs or {})

    return call


def classes_asked(func: object, classes: Iterable[type], args: Args) -> tuple[type, ...]:
    """The classes that torch names, as the program knows them: those of traced tensors are no subclasses for it, and
    functions in Python name the class of tensors, too."""
    seen = as_program_sees(classes)
    if type(func) is types.FunctionType and torch.Tensor not in seen:
        seen += [torch.Tensor] * _has_plain(args)
    return tuple(seen)


def _has_plain(args: Args) -> bool:
    """Whether a tensor of torch's own class, that of parameters aside, is among these."""
    for arg in args:
        if type(arg) in (list, tuple) and _has_plain(arg):
            return True
        if type(arg) is TracedTensor and not isinstance(arg, torch.nn.Parameter):
            return True
    return False


# ---- making them -----------------------------------------------------------------------------------------------------


def _rely_on_asked(vm: Machine) -> None:
    """What the program does depends on whom torch asks."""
    if vm.world.guards.first(modes.asked):
        source = Source("apply", Source("object", None, None, modes.asked), (), ask)
        vm.world.guards.add(source, "equals", vm.modes.asked)


@answers(torch._C._is_torch_function_enabled, torch._C._is_torch_function_all_disabled)
def _whom_torch_asks(vm: Machine, *_: object) -> object:
    _rely_on_asked(vm)
    return NATIVE


def _masked(vm: Machine, tensor: TracedTensor, cls: Any) -> Any:
    """`tensor` as one of class `cls`."""
    _rely_on_asked(vm)
    tensor.__class__ = mask = _mask(vm, cls)
    tensor.attributes = {}
    vm.world.inputs.masked[id(tensor)] = tensor, mask
    return tensor


def _is_traced(value: Any) -> bool:
    return type(value) is TracedTensor or is_mask(type(value))


def _aliased(tensor: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.ops.aten.alias.default(tensor)


@answers(torch.Tensor.as_subclass, recorded=True)
def _as_subclass(vm: Machine, tensor: TracedTensor, cls: object) -> object:
    if not _is_traced(tensor) or not isinstance(cls, type):
        raise vm.unsupported("as_subclass of no plain tensor", "input", _REMEDY, "a tensor subclass is made")
    alias = _aliased(tensor)
    return alias if cls is torch.Tensor else _masked(vm, alias, cls)


@answers(torch.Tensor._make_subclass, recorded=True)
def _make_subclass(
    vm: Machine, cls: type, tensor: TracedTensor, require_grad: object = False, *more: object, **others: object
) -> object:
    if not _is_traced(tensor) or more or others or cls is torch.nn.Parameter:
        reason = f"a tensor is made a {cls.__name__}, a subclass of Tensor"
        raise vm.unsupported(reason, "input", _REMEDY, "a tensor subclass is made")
    with torch._C.DisableTorchFunctionSubclass():
        alias: Any = tensor.detach().requires_grad_(bool(require_grad))
    return alias if cls is torch.Tensor else _masked(vm, alias, cls)


@answers(torch.Tensor.__new__)
def _new(vm: Machine, given_cls: type, *given: Any, **others: object) -> object:
    """`Tensor.__new__(cls, data)`: a tensor is shared, with its history; numbers are of the default type."""
    cls = vars(given_cls).get(STANDS_FOR, given_cls)
    if cls is torch.Tensor or others or len(given) > 1:
        return NATIVE
    vm.trace.where = vm.where()
    alias: Any = _aliased(given[0]) if given and _is_traced(given[0]) else torch.Tensor(*given)
    return _masked(vm, alias, cls)


# ---- what torch asks in the program ----------------------------------------------------------------------------------


def _is_at_hand(vm: Machine, descriptor: Any, owner: object) -> bool:
    """Whether an attribute is torch's own of a traced tensor, and neither its class nor a mode is to be asked."""
    if vm.modes.functions.asks or not issubclass(torch.Tensor, descriptor.__objclass__) or not _is_traced(owner):
        return False
    return not is_mask(type(owner)) or not torch._C._is_torch_function_enabled()


@answers(types.GetSetDescriptorType.__get__)
def _get(vm: Machine, descriptor: types.GetSetDescriptorType, owner: Any = None, cls: object = None) -> object:
    if not _is_at_hand(vm, descriptor, owner):
        return NATIVE
    with unmasked([owner] if is_mask(type(owner)) else []):
        return load_tensor_attribute(vm, owner, descriptor.__name__)


@answers(types.GetSetDescriptorType.__set__)
def _set(vm: Machine, descriptor: types.GetSetDescriptorType, owner: Any, value: object) -> object:
    if not _is_at_hand(vm, descriptor, owner):
        return NATIVE
    with unmasked([owner] if is_mask(type(owner)) else []):
        store_tensor_attribute(vm, owner, descriptor.__name__, value)
    return None


# ---- in and out ------------------------------------------------------------------------------------------------------


def plain(real: Any) -> torch.Tensor:
    """The plain tensor that shares storage and history with one of a subclass."""
    with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
        return real.as_subclass(torch.Tensor)  # type: ignore[no-any-return]


def facts(real: Any) -> tuple[Any, ...]:
    """What is known of such a tensor beside its layout. It is asked by torch only where torch would ask."""
    asks = torch._C._is_torch_function_enabled()
    with torch._C.DisableTorchFunctionSubclass():
        hooks = bool(real._backward_hooks) or bool(real._post_accumulate_grad_hooks)
        return real.is_leaf, isinstance(real, torch.nn.Parameter), hooks, asks


def _wrap(world: World, real: Any, source: Source) -> Any:
    """An input of the graph, behind the mask of its class."""
    cls = type(real)
    _refuse(world, cls)
    described = facts(real)
    if not described[-1]:
        raise Unsupported("DisableTorchFunctionSubclass is in force", world.guards.where(), _REMEDY, "input")
    world.guards.add(source, "type", cls)
    world.guards.add(Source("apply", source, (), facts), "equals", described)
    shared = for_real(plain, real)
    like = for_real(as_leaf, shared) if described[0] else shared
    traced = world.inputs.add(shared, Source("apply", source, (), plain), like)
    if described[1]:
        traced._is_param = True
    world.program.evaluate(_put_on, [traced, cls])
    traced.attributes = None
    world.inputs.unmasked[id(traced)] = real, source
    return world.identities.mirror(traced, source)


def _put_on(tensor: TracedTensor, cls: type) -> None:
    """Give a traced tensor the mask of a class."""


answers(_put_on)(_masked)


def wrap(world: World, real: Any, source: Source) -> Any:
    """The value for a tensor of a subclass from outside; None where it is an input like others."""
    cls: Any = type(real)
    if is_wrapper(cls):
        return wrap_parts(world, real, source)
    return None if is_plain_subclass(cls) or is_of_torch(cls) else _wrap(world, real, source)


WRAPPERS[torch.Tensor] = wrap


def _recipe(rebuilder: Rebuilder, value: TracedTensor) -> Recipe:
    """A tensor that the program has made; what it has put on it comes later, for it may lead back to the tensor."""
    cls = Recipe("constant", vars(rebuilder.world.inputs.masked[id(value)][1])[STANDS_FOR])
    make = _new_leaf if value.requires_grad and value.is_leaf else torch.Tensor.as_subclass
    recipe = Recipe("call", make, (rebuilder.plain_tensor(value), cls))
    rebuilder.unfilled.append((value, TracedTensor, recipe))
    return recipe


def _new_leaf(leaf: torch.Tensor, cls: Any) -> Any:
    """A leaf that requires grad like `leaf`, of a class."""
    return torch.Tensor._make_subclass(cls, leaf.detach(), True)  # type: ignore[attr-defined]


RECIPES[TracedTensor] = _recipe
