"""Hooks on tensors and on nodes of autograd's graph.

One on a value that the program makes becomes part of the recorded backward: it is interpreted when the engine reaches
it. One on an input is put on the real tensor, as an effect: it runs as in eager, when gradients go on outside.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import graph
from torch.utils.hooks import BackwardHook, RemovableHandle

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table, refuse
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.native_calls import callback
from bolide.dynamo.machine.tensors import node_hook, node_prehook
from bolide.dynamo.program.captured import Effect, Recipe
from bolide.dynamo.program.kinds import CONSTANT_TYPES, Watch
from bolide.dynamo.state import state
from bolide.dynamo.torch_calls.autograd import here, later, refuse_for_real
from bolide.dynamo.world.outside import Outside, attribute_source
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.support.errors import Unsupported, UserFrame
from bolide.tracing import TracedTensor, modes
from bolide.tracing.calls import CallRecorder
from bolide.tracing.recording.recorder import NonLeaf

_native_autograd: Any = torch._C._autograd


@dataclass(eq=False)
class Registration:
    """A hook that the program has put on an input. `hooks` is the dict that its handle takes it out of."""

    handle: RemovableHandle
    method: Any
    tensor: TracedTensor
    hook: Any
    hooks: dict[int, Any]


_REGISTERED: Slot[dict[int, Registration]] = Slot(dict, undone=True)  # by the ids of their handles


@answers(torch.Tensor.register_hook)
def _register_hook(vm: Machine, tensor: Any, hook: Any) -> object:
    if vm.world.inputs.place(tensor) is not None:
        if not tensor.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        return _register(vm, torch.Tensor.register_hook, tensor, hook)
    refuse_for_real(vm, here(vm), "inner_gradient")
    vm.trace.where = vm.where()
    vm.trace.derivation.lost = True
    vm.trace.derivation.hooked.add(tensor.grad_fn)
    run = later(vm, hook, "a hook of a tensor", here(vm))
    recorder = vm.recorder
    if recorder is None or recorder.trace is not vm.trace:
        vm.trace.functional_only = "a tensor has a hook"
        return tensor.register_hook(run)
    handle = tensor.register_hook(_told(recorder, run))
    recorder.effect(_registering(hook), tensor, lambda: _refusal(vm.own_functions, hook, handle))
    return handle


def _registering(hook: Any) -> Callable[[torch.Tensor], Any]:
    """What puts a hook on a tensor, as a function with a name, which printed graphs need."""

    def register_hook(tensor: torch.Tensor) -> Any:
        return tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    return register_hook


def _told(recorder: CallRecorder, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, a hook that is interpreted: if that happens while capturing, its effects are the program's, and a graph
    that calls the real hook would have them twice."""

    def told(*args: Any) -> Any:
        if state.stage == "capture":
            recorder.refusal = "a hook runs inside"
        return run(*args)

    return told


def _refusal(own_functions: Mapping[int, Any], hook: Any, handle: RemovableHandle) -> str | None:
    """Why a graph cannot have a hook called by the engine outside; None if it can."""
    if handle.id not in (handle.hooks_dict_ref() or ()):
        return "a hook is taken away again"
    if type(hook) is not types.FunctionType:
        return "a hook that is no function"
    if id(hook) in own_functions:  # made by the program: what is captured must be there at run time, too
        cells = [cell.cell_contents for cell in hook.__closure__ or () if cell != types.CellType()]
        held = [*cells, *(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
        if any(type(value) not in CONSTANT_TYPES for value in held):
            return "a hook holds values of the program"
    return None


@answers(torch.Tensor.register_post_accumulate_grad_hook)
def _register_post_accumulate(vm: Machine, tensor: Any, hook: object) -> object:
    if not tensor.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if tensor.grad_fn is not None and not _is_leaf_outside(vm, tensor):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if vm.world.inputs.place(tensor) is None:
        reason, remedy = "a hook is put on a leaf made here", "make the leaf before the call"
        raise vm.unsupported(reason, "tensor_method", remedy, "Tensor.register_post_accumulate_grad_hook")
    return _register(vm, torch.Tensor.register_post_accumulate_grad_hook, tensor, hook)


def _is_leaf_outside(vm: Machine, tensor: Any) -> bool:
    place = vm.world.inputs.place(tensor)
    return place is not None and vm.world.inputs.tensors[place].is_leaf


def _register(vm: Machine, method: object, tensor: TracedTensor, hook: object) -> RemovableHandle:
    if tensor.group.version and not _is_leaf_outside(vm, tensor):
        why = "a hook is put on an input that has been written to"
        raise vm.unsupported(why, "tensor_method", "register it first", "Tensor.register_hook")
    hooks: dict[int, object] = collections.OrderedDict()
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    registered = _REGISTERED.of(vm)
    registered[id(handle)] = vm.world.journal.hooks[id(handle)] = Registration(handle, method, tensor, hook, hooks)
    return handle


def hooks_of(vm: Machine, place: int) -> str | None:
    """Why the engine, if the program runs it, may not stop at an input: hooks of the real tensor would not be called.
    None, with guards, if it has none."""
    tensor, real = vm.trace.inputs[place], vm.world.inputs.tensors[place]
    pending = _REGISTERED.of(vm).values()
    if any(known.tensor is tensor and known.hooks for known in pending):
        return "a hook has been put on an input"
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(real, name):
            return "a parameter has hooks"
        vm.world.guards.add(attribute_source(vm.world.inputs.sources[place], name), "is", getattr(real, name))
    return None


def hook_effects(rebuilder: Rebuilder) -> list[Effect]:
    """The registrations that the program has not taken back."""
    effects = []
    for known in rebuilder.world.journal.hooks.values():
        if known.hooks:
            if known.tensor.group.version and known.tensor.grad_fn is not None:
                raise rebuilder.world.guards.refusal("tensor_write", "an input with a hook is written to")
            kept = Recipe("call", _keep, (rebuilder.recipe(known.handle),))
            effects.append(Effect("call", None, None, kept))
    return effects


def refuse_results_in_between(outputs: Sequence[TracedTensor], where: UserFrame | None) -> None:
    """Raises Unsupported where one result was computed from another: a hook that is put on that one when the graph has
    run would not see the gradients that come from the first."""
    ends: set[Any] = {tensor.grad_fn for tensor in outputs} - {None}
    seen: set[Any] = {None}
    waiting = [before for node in ends for before, _ in node.next_functions]
    while waiting:
        node = waiting.pop()
        if node in ends:
            reason = "gradients are asked of a tensor that another result was computed from"
            raise Unsupported(reason, where, kind="inner_gradient")
        if node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]


def _keep(handle: RemovableHandle) -> None:
    """Making the handle was the effect."""


def _recipe(rebuilder: Rebuilder, handle: RemovableHandle) -> Recipe | None:
    known = rebuilder.world.journal.hooks.get(id(handle))
    if known is None:
        return None
    if not known.hooks:
        return Recipe("call", _spent)
    return Recipe("call", known.method, (rebuilder.recipe(known.tensor), rebuilder.recipe(known.hook)))


def _spent() -> RemovableHandle:
    """A handle whose hook has been removed."""
    return RemovableHandle(collections.OrderedDict())


RECIPES[RemovableHandle] = _recipe


@intercept_table({node_hook: "register_hook", node_prehook: "register_prehook"})
def _register_on_node(function: object, name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A hook on a node of the recorded history; those of the history outside are not at hand."""
    node, hook = args
    if node.name().endswith("AccumulateGrad") or isinstance(node, NonLeaf._backward_cls):
        why = "a hook is put on a node of the history outside"
        raise vm.unsupported(why, "tensor_method", "put it on the tensor", f"Node.{name}")
    vm.trace.where = vm.where()
    vm.trace.functional_only, vm.trace.derivation.lost = "a node of the history has a hook", True
    vm.trace.derivation.hooked.add(node)
    return getattr(node, name)(later(vm, hook, f"Node.{name}"))


@answers(BackwardHook, recorded=True)
def _backward_hook(vm: Machine, module: object, *hooks: list[Any]) -> BackwardHook:
    """What calls the backward hooks of a module; it puts itself on nodes of the history, natively."""
    vm.trace.functional_only, vm.trace.derivation.lost = "a module has a backward hook", True
    name = "a backward hook of a module"
    key = Watch(module.real) if type(module) is Outside else None
    return BackwardHook(module, *([later(vm, hook, name, key) for hook in called] for called in hooks))


@answers(graph.saved_tensors_hooks)
def _saved_tensors_hooks(vm: Machine, pack_hook: Any, unpack_hook: Any) -> object:
    """Functions that saved tensors go through: natively called, with the program's own behind."""
    return graph.saved_tensors_hooks(*_through(vm, pack_hook, unpack_hook))


@answers(graph.saved_tensors_hooks.__init__)
def _init_saved_tensors_hooks(vm: Machine, owner: graph.saved_tensors_hooks, pack_hook: Any, unpack_hook: Any) -> None:
    owner.pack_hook, owner.unpack_hook = _through(vm, pack_hook, unpack_hook)


@answers(_native_autograd._push_saved_tensors_default_hooks)
def _push_saved_tensors_hooks(vm: Machine, pack_hook: Any, unpack_hook: Any) -> None:
    _native_autograd._push_saved_tensors_default_hooks(*_through(vm, pack_hook, unpack_hook))


@intercept(_native_autograd._pop_saved_tensors_default_hooks)
def _pop_saved_tensors_hooks(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if modes.saved_tensor_hooks() is None:
        raise vm.unsupported("hooks of saved tensors from before are left", "context")
    return NATIVE


def _through(vm: Machine, pack_hook: Any, unpack_hook: Any) -> tuple[Any, Any]:
    return callback(vm, pack_hook), later(vm, unpack_hook, "a function that saved tensors go through")


refuse(
    graph.allow_mutation_on_saved_tensors,
    reason="tensors are copied before they are written to",
    kind="tensor_method",
    remedy="enter it outside",
    operation="allow_mutation_on_saved_tensors",
)
refuse(
    graph.register_multi_grad_hook,
    reason="a hook on several tensors counts those that get a gradient",
    kind="inner_gradient",
    remedy="put a hook on each tensor",
    operation="register_multi_grad_hook",
)
