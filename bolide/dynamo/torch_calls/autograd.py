"""Autograd inside captured code: `autograd.Function`s and hooks, whose Python code is interpreted when the engine
reaches it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from bolide.dynamo.library.handlers import answers, by_polyfill, refuse
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.kinds import FUNCTION_APPLY
from bolide.dynamo.state import CALLBACK, own_mark, state
from bolide.support.errors import Unsupported, UserFrame
from bolide.tracing import TracedTensor, modes
from bolide.tracing.called.derivatives import application
from bolide.tracing.meta import found_in
from bolide.tracing.recording.recorder import LateWrite

# The methods of an autograd.Function that torch calls, each as a static method.
_METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")


by_polyfill({torch.func.linearize: "linearize"})
refuse(
    torch_functions.refuse_history,
    reason="torch.func.linearize takes tensors that require grad for constants, which its function uses",
    kind="operator",
    remedy="detach them, or use torch.func.jvp",
    operation="linearize",
)

_INTERPRETED: Slot[dict[Any, Any]] = Slot(dict)  # by the class of the program


@answers(getattr(FUNCTION_APPLY, "__func__", FUNCTION_APPLY))
def _apply(vm: Machine, function: Any, *values: Any, **kwargs: Any) -> object:
    """`Function.apply`: torch's own machinery runs on a subclass whose methods are interpreted. So `forward` is
    recorded below autograd, and the engine records `backward` when it comes to it."""
    made_here = id(function.backward) in vm.own_functions
    key = here(vm) if made_here else function  # a class that the program makes is another one in each capture
    refuse_for_real(vm, key)
    _rely_on_flags(vm, function)
    interpreted = _INTERPRETED.of(vm).get(function)
    if interpreted is None:
        interpreted = _INTERPRETED.of(vm)[function] = _interpreted(vm, function, key)
    vm.trace.where, vm.trace.derivation.own = vm.where(), True
    apply = functools.partial(_noted, vm, function, values, functools.partial(interpreted.apply, *values, **kwargs))
    recorder = vm.recorder
    if recorder is None:
        return apply()
    before = effects_so_far(vm)
    result = recorder.as_one(_caller(function), values, apply)
    if kwargs or effects_so_far(vm) != before or id(function.forward) in vm.own_functions:
        recorder.refusal = "an autograd.Function that a graph cannot call"
    return result


_BARE: Slot[dict[int, FunctionCtx]] = Slot(dict)  # contexts, by id, to which missing gradients are None


def _noted(vm: Machine, function: Any, values: Sequence[object], apply: functools.partial[object]) -> object:
    """What a call answers; a note of how it is done again, if its gradients are derived themselves."""
    trace = vm.trace
    last = trace.graph._root._prev
    written = [(value.group, value.group.version) for value in values if isinstance(value, TracedTensor)]
    result = apply()
    histories = [output.grad_fn for output in found_in(result, TracedTensor) if output.has_history]
    wrapped = any(type(output) is not TracedTensor for output in found_in(result, torch.Tensor))  # by a transform
    if not (histories or wrapped) or state.stage == "backend":
        return result
    plain = not apply.keywords and id(function.backward) not in vm.own_functions and modes.saved_tensor_hooks() is None
    same = plain and all(group.version == version for group, version in written)
    known = application(trace, function, values, result, last) if same else None
    if known is None:
        trace.derivation.lost = True
    else:
        known.materializes = id(histories[0]) not in _BARE.of(vm)
        trace.derivation.functions.append(known)
    return result


@answers(FunctionCtx.set_materialize_grads)
def _set_materialize_grads(vm: Machine, context: FunctionCtx, value: bool) -> None:
    context.materialize_grads = value
    if value:
        _BARE.of(vm).pop(id(context), None)
    else:
        _BARE.of(vm)[id(context)] = context


_FLAGS = ("boxed_grads_call", "clear_saved_tensors_on_access")


def _rely_on_flags(vm: Machine, function: Any) -> None:
    """Guard what torch reads of the class beside its methods: flags, some of them under transforms only."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    for name in (*_FLAGS, "generate_vmap_rule") if transformed else _FLAGS:
        if hasattr(torch.autograd.Function, name):
            load_attribute(vm, function, name)


def _caller(function: Any) -> Callable[..., Any]:
    """`Function.apply` as a function with a name, which printed graphs need."""

    def apply(*args: Any) -> Any:
        return function.apply(*args)

    apply.__name__ = f"{function.__name__}_apply"
    return apply


def _interpreted(vm: Machine, function: Any, key: Any) -> Any:
    methods = {}
    for name in _METHODS:
        vm.world.classes.rely_on(function, name)
        own = getattr(function, name)
        if own is not getattr(torch.autograd.Function, name):
            text = f"{function.__name__}.{name}"
            callable_later = name in ("backward", "vjp") and key is function
            methods[name] = staticmethod(later(vm, load_attribute(vm, function, name), text, key, callable_later))
    made = type(function)(function.__name__, (function,), {"__module__": function.__module__, **methods})
    for cls in (made, made._backward_cls):
        vm.world.classes.own[id(cls)] = cls
    return made


def later(vm: Machine, function: Any, name: str, key: Any = None, callable_later: bool = False) -> Callable[..., Any]:
    """`function`, a function of the program, as native code may call it at any time until the program's gradients have
    been recorded: during capture, or when the engine runs over the captured program.

    By then its results and effects are fixed, so what is called then may not have effects, nor raise. Where it does,
    and a `key` says what has led to it, that is called for real when the program is captured again; or, if it is
    `callable_later`, the function is when the backward runs.
    """
    function = own_mark(function, CALLBACK) or function
    history = vm.world.symbols.history

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.stage != "backend":
            return vm.evaluate(function, list(args), kwargs)
        before = effects_so_far(vm), _held(function)
        try:
            with vm.world.inputs.remasked():
                result = vm.evaluate(function, list(args), kwargs)
            if (effects_so_far(vm), _held(function)) != before:
                reason = "something outside is written in the backward pass"
                remedy = "return it from the forward instead"
                raise Unsupported(reason, _definition(function), remedy, "operator", name)
            return result
        except Unsupported as error:
            error.where = error.where or _definition(function)
            failure = error
        except Exception as error:
            reason = f"the backward pass raised {type(error).__name__}: {error}"
            failure = Unsupported(reason, _definition(function), operation=name, kind="operator")
            failure.__cause__ = error
        if key is not None:
            recallable = callable_later and not isinstance(failure, LateWrite)
            known = history.opaque if recallable else history.called_for_real
            known[key] = f"{name}, called in the backward pass: {failure.reason}"
        try:
            raise failure
        finally:
            del failure  # its traceback leads to this frame

    return call


def refuse_for_real(
    vm: Machine, key: Any, kind: str = "side_effect", remedy: str = "write nothing outside in the backward pass"
) -> None:
    """Raises Unsupported for what an earlier capture has found to be called for real (see `later`)."""
    reason = vm.world.symbols.history.called_for_real.get(key)
    if reason is not None:
        raise vm.unsupported(reason, kind, remedy)


def here(vm: Machine) -> Any:
    """The instruction that is being executed, as a key for `later`."""
    return vm.frames[-1].code, vm.frames[-1].pc


def _definition(function: Any) -> UserFrame | None:
    code = getattr(function, "__code__", None)
    return UserFrame(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None


def _held(function: Any) -> list[Any]:
    """What is in the containers that a function closes over, by identity: those that the program has made may have left
    it already."""
    contents: list[Any] = []
    seen: set[int] = set()
    waiting = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != types.CellType()]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen and type(value) in (list, tuple, set, dict):
            seen.add(id(value))
            items = [*value.keys(), *value.values()] if type(value) is dict else list(value)
            contents.append((id(value), [id(item) for item in items]))
            waiting += items
    return contents


def effects_so_far(vm: Machine) -> Any:
    """What the program has done to the outside world until now, comparable by `==`."""
    return vm.world.journal.so_far(), len(vm.later.calls)
