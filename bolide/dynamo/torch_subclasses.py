"""Wrapper subclasses of Tensor: those that say what they are made of (`__tensor_flatten__`) and have a
`__torch_dispatch__`.

One from outside is taken apart: its tensors are inputs, and it is put together again around the traced ones. In the
program such tensors are instances of a *stand-in*, a subclass of the user's class whose `__torch_dispatch__` and
`__torch_function__` are interpreted; so torch's own dispatcher calls them, and what they do is recorded. The program
sees the user's class. One that leaves is put together from its real parts.

Gradients go to such tensors, and through them (`wrapper_gradients.py`). A plain input whose gradient is one of them is
not captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.native_calls import for_real
from bolide.dynamo.operations import class_of
from bolide.dynamo.program import Recipe, Source
from bolide.dynamo.torch_autograd import later
from bolide.dynamo.values.kinds import is_constant
from bolide.dynamo.values.outside import attribute_source
from bolide.dynamo.values.rebuild import RECIPES, Rebuilder
from bolide.dynamo.values.world import World
from bolide.dynamo.wrapper_gradients import (
    Form,
    closed,
    form_of,
    handles,
    has_gradient,
    opened,
    plain_parts,
    with_handles,
)
from bolide.support.errors import Unsupported
from bolide.tracing import STANDS_FOR, TracedTensor, is_stand_in

_PROTOCOL = ("__tensor_flatten__", "__tensor_unflatten__")


def _written_in_python(cls: type, name: str) -> Any:
    """The function of a class method that a subclass of Tensor outside of torch has of its own, else None."""
    holder = next(base for base in cls.__mro__ if name in vars(base))
    found = vars(holder)[name]
    is_own = type(found) is classmethod and not holder.__module__.startswith("torch")
    return found.__func__ if is_own else None


def is_wrapper(cls: type) -> bool:
    """Whether tensors of this class are captured."""
    if not all(hasattr(cls, name) for name in _PROTOCOL) or cls.__module__.startswith("torch."):
        return False
    of_torch = (torch._C._disabled_torch_function_impl, vars(torch.Tensor)["__torch_function__"].__func__)
    asked = cls.__torch_function__  # type: ignore[attr-defined]
    own = getattr(asked, "__func__", asked) in of_torch or _written_in_python(cls, "__torch_function__") is not None
    hooks = any("__init_subclass__" in vars(base) for base in cls.__mro__ if base is not object)
    return own and not hooks and _written_in_python(cls, "__torch_dispatch__") is not None


# ---- stand-ins -------------------------------------------------------------------------------------------------------


def _stand_in(vm: Machine, cls: type) -> Any:
    made = vm.memory.get((_stand_in, cls))
    if made is None:
        namespace: dict[str, Any] = {STANDS_FOR: cls, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        for name in ("__torch_dispatch__", "__torch_function__"):
            function = _written_in_python(cls, name)
            if function is not None:
                text = f"{cls.__name__}.{name}"
                namespace[name] = classmethod(_asked(vm, cls, later(vm, function, text)))
        made = vm.memory[_stand_in, cls] = type(cls)(cls.__name__, (cls,), namespace)
    return made


def _asked(vm: Machine, cls: type, function: Callable[..., Any]) -> Callable[..., Any]:
    """What torch calls: `function`, of the user's class, is told of the classes that the program knows."""

    def call(_: Any, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: Any = args[0] if args and is_stand_in(type(args[0])) else None
        writes = isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if writes and torch.is_grad_enabled() and vm.world.is_outside(given) and given.requires_grad:
            raise _refused(vm, cls, "that requires grad is written to")
        seen = tuple(vars(each).get(STANDS_FOR, torch.Tensor if each is TracedTensor else each) for each in classes)
        return function(cls, func, seen, args, kwargs or {})

    return call


@intercept(torch.Tensor._make_wrapper_subclass)
def _make_wrapper(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    cls, *others = args
    cls = vars(cls).get(STANDS_FOR, cls)
    if not is_wrapper(cls):
        raise _refused(vm, cls, "does not say what it is made of, or inherits how it computes")
    vm.trace.where = vm.where()
    vm.world.trace.functional_only, vm.world.trace.own_gradients = "a subclass of Tensor computes", True
    made = torch.Tensor._make_wrapper_subclass(_stand_in(vm, cls), *others, **kwargs)
    if made.requires_grad and torch.is_grad_enabled():
        raise _refused(vm, cls, "is made that requires grad")
    return made


def _refused(vm: Machine, cls: Any, why: str) -> Unsupported:
    reason = f"a {getattr(cls, '__name__', cls)}, a subclass of Tensor, {why}"
    remedy = "do this outside the compiled function"
    return Unsupported(reason, vm.where(), remedy, kind="input", operation="a tensor subclass is made")


def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a leaf of autograd's graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


# ---- in and out ------------------------------------------------------------------------------------------------------


def facts(real: Any) -> tuple[Any, ...]:
    """What is known of a wrapper beside its parts."""
    names, context = real.__tensor_flatten__()
    known = tuple(context.items()) if type(context) is dict else context
    layout = (tuple(real.shape), real.stride(), real.dtype, real.device)
    hooks = bool(real._backward_hooks) or bool(real._post_accumulate_grad_hooks)
    history = (real.requires_grad, real.is_leaf, hooks)
    return (tuple(names), *layout, *history, isinstance(real, torch.nn.Parameter), known)


def wrap_parts(world: World, real: Any, source: Source) -> Any:
    """The stand-in for a wrapper from outside, around its parts, which are inputs."""
    cls: Any = type(real)
    described, where = facts(real), world.where()
    if not is_constant(described):
        raise Unsupported(f"what a {cls.__name__} says of itself is no constant", where, None, "input")
    world.guard(source, "type", cls)
    world.guard(Source("apply", source, (), facts), "equals", described)
    names, context = real.__tensor_flatten__()
    parts = {name: world.wrap(getattr(real, name), attribute_source(source, name)) for name in names}
    made = world.evaluate(cls.__tensor_unflatten__, [parts, context, real.size(), real.stride()])
    if class_of(made) is not cls:
        raise Unsupported(
            f"{cls.__name__}.__tensor_unflatten__ makes a {class_of(made).__name__}", where, None, "input"
        )
    if real.requires_grad:
        made = _with_history(world, real, source, made)
    if isinstance(real, torch.nn.Parameter):
        made._is_param = True
    return world.mirror(made, source)


def _with_history(world: World, real: Any, source: Source, made: Any) -> Any:
    """The stand-in as one that requires grad, as the real wrapper does."""
    if torch.is_inference_mode_enabled():
        return made.requires_grad_()
    root = Source("apply", source, (), handles)
    found = for_real(handles, real)
    places = [place for place, handle in enumerate(found) if handle.requires_grad]
    given: list[Any] = [None] * len(found)
    for place in places:
        leaf = for_real(as_leaf, found[place])
        given[place] = world.add_input(found[place], Source("item", root, place), leaf)
    return with_handles(made, form_of(made, class_of), class_of, given)


def _recipe(rebuilder: Rebuilder, value: Any) -> Recipe | None:
    if not is_stand_in(type(value)):
        return None
    cls = class_of(value)
    if value.requires_grad:
        return _with_history_outside(rebuilder, value)
    names, context = value.__tensor_flatten__()
    parts = rebuilder.recipe({name: getattr(value, name) for name in names})
    layout = rebuilder.constants(torch.Size(value.shape), value.stride())
    return Recipe("call", _put_together, (Recipe("constant", cls), parts, rebuilder.recipe(context), *layout))


def _with_history_outside(rebuilder: Rebuilder, value: Any) -> Recipe:
    """A wrapper that requires grad is made of results with its history."""
    world, form = rebuilder.world, form_of(value, class_of)
    if not all(map(has_gradient, plain_parts(value))) or value.is_leaf or not is_constant(_described(form)):
        reason = f"a {form.cls.__name__}, a subclass of Tensor, that requires grad leaves the function"
        raise Unsupported(reason, world.where(), "return what it is made of", "escape")

    def make(cls: Any, *given: Any) -> Any:
        return world.evaluate(cls.__tensor_unflatten__, list(given))

    parts = tuple(map(rebuilder.recipe, opened(value, form, make)))
    return Recipe("call", closed, (Recipe("constant", form), *parts))


def _described(form: Form) -> Any:
    """What a form says, as far as it may have to be a constant."""
    known = tuple(form.context.items()) if type(form.context) is dict else form.context
    return (known, form.size, form.stride, *(_described(part) for part in form.parts if part is not None))


def _put_together(cls: Any, parts: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    return cls.__tensor_unflatten__(parts, context, size, stride)


RECIPES[torch.Tensor] = _recipe
