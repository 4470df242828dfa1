"""Autograd inside captured code: `autograd.Function`s and hooks, whose Python code is interpreted when the engine
reaches it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.state import state
from bolide.dynamo.values.attributes import load_attribute
from bolide.support.errors import Unsupported, UserFrame

Args = list[Any]
Kwargs = dict[str, Any]

# The methods of an autograd.Function that torch calls, each as a static method.
_METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")


@intercept(vars(torch.autograd.Function)["apply"].__func__)
def _apply(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """`Function.apply`: torch's own machinery runs on a subclass whose methods are interpreted. So `forward` is
    recorded below autograd, and the engine records `backward` when it comes to it."""
    function, *values = args
    interpreted = vm.memory.get(function)
    if interpreted is None:
        interpreted = vm.memory[function] = _interpreted(vm, function)
    vm.trace.where = vm.where()
    vm.trace.functional_only = "an autograd.Function has a backward of its own"
    return interpreted.apply(*values, **kwargs)


def _interpreted(vm: Machine, function: Any) -> Any:
    methods = {}
    for name in _METHODS:
        own = getattr(function, name)
        if own is not getattr(torch.autograd.Function, name):
            text = f"{function.__name__}.{name}"
            methods[name] = staticmethod(later(vm, load_attribute(vm, function, name), text))
    return type(function)(function.__name__, (function,), {"__module__": function.__module__, **methods})


def later(vm: Machine, function: Any, name: str) -> Callable[..., Any]:
    """`function`, a function of the program, as native code may call it at any time until the program's gradients have
    been recorded: during capture, or when the engine runs over the captured program.

    By then its results and effects are fixed, so what is called then may not have effects, nor raise.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.stage != "backend":
            return vm.evaluate(function, list(args), kwargs)
        before = effects_so_far(vm)
        try:
            result = vm.evaluate(function, list(args), kwargs)
        except Unsupported as error:
            error.where = error.where or _definition(function)
            raise
        except Exception as error:
            reason = f"the backward pass raised {type(error).__name__}: {error}"
            raise Unsupported(reason, _definition(function), operation=name, kind="operator") from error
        if effects_so_far(vm) != before:
            reason = "something outside is written in the backward pass"
            raise Unsupported(
                reason, _definition(function), "return it from the forward instead", operation=name, kind="operator"
            )
        return result

    return call


def _definition(function: Any) -> UserFrame | None:
    code = getattr(function, "__code__", None)
    return UserFrame(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None


def effects_so_far(vm: Machine) -> Any:
    """What the program has done to the outside world until now, comparable by `==`."""
    world = vm.world
    written: list[Any] = [(id(layer), key, id(value)) for layer in world.overlays for key, value in layer.changes()]
    written += [(key, None, id(item)) for key, s in world.snapshots.items() if s.changed() for item in s.copy]
    written += [(key, None, id(value)) for key, (_, before, value) in world.cells.items() if value is not before]
    return written, len(vm.deferred)
