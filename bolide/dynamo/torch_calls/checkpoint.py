"""Activation checkpointing: the nodes recorded inside a checkpointed call are marked, so that the partition computes
them again in the backward pass instead of saving them (``meta["region"]`` and ``meta["save"]``)."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

import torch
import torch.fx as fx
from torch.utils import checkpoint

from bolide.dynamo.library.handlers import Args, Kwargs, answers
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, Slot
from bolide.dynamo.machine.tensors import refuse_in_reentrant
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.captured import Recipe
from bolide.dynamo.torch_calls.autograd import effects_so_far, here, refuse_for_real
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.support.errors import Unsupported
from bolide.tracing import TensorMeta, TracedTensor, rng
from bolide.tracing.operations import generators, writes
from bolide.tracing.tensor import AliasGroup
from bolide.tracing.traits import traits_of


class Policy(NamedTuple):
    """A selective checkpoint's choice: a function (context, overload, arguments) -> CheckpointPolicy, or the list of
    overloads whose results are saved."""

    choice: Any


class CheckpointRegion(NamedTuple):
    """A checkpointed call that has begun: the graph's last node before it, what had been written outside, whether the
    same random numbers are drawn when it is computed again, and the storages of its arguments if it is reentrant."""

    before: fx.Node
    policy: Policy | None
    written: Any
    same_draws: bool
    given: Sequence[AliasGroup] | None


def _no_recipe(rebuilder: Rebuilder, region: CheckpointRegion) -> Recipe:
    """A segment ends in front of a checkpointed call, not in it: what follows inside would not be computed again."""
    raise Unsupported("a checkpointed call is entered before a break and left after it", None, None, "context")


RECIPES[CheckpointRegion] = _no_recipe


REMEDY = "pass use_reentrant=False"
_OPTIONS = {
    "use_reentrant": None,
    "context_fn": checkpoint.noop_context_fn,
    "preserve_rng_state": True,
    "determinism_check": "default",
    "debug": False,
    "early_stop": True,
}


@intercept(checkpoint.checkpoint)
def _checkpoint(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    given = {**_OPTIONS, **kwargs}
    reentrant, context_fn, same_draws, check, debug, _ = [given.pop(name) for name in _OPTIONS]
    own = context_fn is not checkpoint.noop_context_fn
    if reentrant is None:
        text = "torch.utils.checkpoint: use_reentrant should be passed explicitly"
        vm.later.calls.append((warnings.warn, [text], {}))
    if reentrant is False:
        fitting = check in ("default", "none") and not (debug and own)
    else:
        fitting = reentrant in (None, True) and not given and not own and debug is False
    if not args or not fitting:
        raise _refused(vm, "torch.utils.checkpoint is called with arguments that it refuses", None)
    function, *values = args
    if reentrant is not False:
        requires = any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
        if not requires or not torch.is_grad_enabled():
            return Call(torch_functions.checkpoint_without_grad, [function, tuple(values), requires])
        refuse_for_real(vm, here(vm), "context", REMEDY)
        _REENTRANT.of(vm).append(here(vm))
    policy = _policy(vm, vm.evaluate(context_fn, [])) if own else None
    vm.world.trace.functional_only = "activations are checkpointed"
    groups = None if reentrant is False else [value.group for value in values if type(value) is TracedTensor]
    before, written = vm.trace.graph._root.prev, _written(vm, groups or ())
    region = CheckpointRegion(before, policy, written, same_draws is not False, groups)
    vm.depth.reentrant += groups is not None
    return Call(torch_functions.checkpoint, [function, region, tuple(values), given])


def _refused(vm: Machine, reason: str, remedy: str | None) -> Unsupported:
    return vm.unsupported(reason, "context", remedy, "torch.utils.checkpoint.checkpoint")


@answers(checkpoint.create_selective_checkpoint_contexts)
def _selective(vm: Machine, policy_fn_or_list: object, allow_cache_entry_mutation: bool = False) -> object:
    return Policy(policy_fn_or_list), None


def _policy(vm: Machine, contexts: Any) -> Policy | None:
    """The policy that contexts stand for, if they are any that are known."""
    if type(contexts) is tuple and len(contexts) == 2:
        forward, again = contexts
        if type(forward) is Policy and again is None:
            return forward
        if type(forward) is type(again) is contextlib.nullcontext:
            return None
    raise _refused(vm, "a checkpoint with contexts of the program's own", "use selective checkpoint contexts")


_REENTRANT: Slot[list[Any]] = Slot(list)  # where reentrant checkpoints are called


def refuse_gradients(vm: Machine) -> None:
    """To be called where gradients are asked for by name, which eager refuses past a reentrant checkpoint: all of them
    are called for real then."""
    sites = _REENTRANT.of(vm)
    if sites:
        reason = "a reentrant checkpoint is left to eager: the program asks for gradients by name"
        vm.world.symbols.history.called_for_real.update(dict.fromkeys(sites, reason))
        refusal = _refused(vm, reason, REMEDY)
        refusal.final = True
        raise refusal


@intercept(torch.is_grad_enabled)
def _is_grad_enabled(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    refuse_in_reentrant(vm, "grad mode is asked for")
    return NATIVE


@answers(torch_functions.region_result)
def _result(vm: Machine, region: CheckpointRegion, result: object) -> object:
    """What a checkpointed call gives. What eager's reentrant one makes otherwise is refused: it lets no gradients
    through to what is in lists, gives new tensors, and gives a history to all of floating point."""
    if region.given is None:
        return result
    results = result if type(result) is tuple else (result,)
    tensors = [value for value in results if type(value) is TracedTensor]
    own = set(_nodes_since(region.before))
    alike = (
        all(type(value) in (TracedTensor, NoneType, bool, int, float, str) for value in results)
        and len({id(tensor.group) for tensor in tensors}) == len(tensors)
        and all(tensor.group.base in own and tensor.face is None for tensor in tensors)
        and all(tensor.requires_grad is (tensor.is_floating_point() or tensor.is_complex()) for tensor in tensors)
    )
    if not alike:
        raise _refused(vm, "a reentrant checkpoint gives something else than new tensors with a history", REMEDY)
    return result


_DRAWN = frozenset({writes.drawn, *generators.STATES})


def _written(vm: Machine, groups: Sequence[AliasGroup]) -> Any:
    written = [leaf.group.version for leaf in vm.trace.leaves if leaf.group.version]
    return effects_so_far(vm), len(vm.world.draws), written, [group.version for group in groups]


@answers(torch_functions.end_region)
def _end(vm: Machine, region: CheckpointRegion) -> None:
    vm.depth.reentrant -= region.given is not None
    nodes = list(_nodes_since(region.before))
    draws = any(node.target in _DRAWN for node in nodes)
    if torch.is_grad_enabled() and (draws or region.written != _written(vm, region.given or ())):
        reason = "a checkpointed region writes outside: eager does that again when it computes the region again"
        raise _refused(vm, reason, "keep what it writes (statistics, counters) out of the region")
    if (
        torch.is_grad_enabled()
        and not region.same_draws
        and any(traits_of(node.target).seeded or node.target in (rng.rand, rng.randn) for node in nodes)
    ):
        reason = "a checkpointed region draws other random numbers when it is computed again"
        raise _refused(vm, reason, "leave preserve_rng_state on")
    saved, mark = set(), object()  # the graph outlives the capture, which `region` belongs to
    for node in nodes:
        if node.op == "call_function":
            node.meta["region"] = mark
            source = node.args[0] if node.target is operator.getitem else node
            if source in saved or (source is node and region.policy and _is_saved(vm, region.policy, node)):
                saved.add(node)
                node.meta["save"] = True


def _nodes_since(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


_SAVED = ("MUST_SAVE", "PREFER_SAVE", "MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD")


def _is_saved(vm: Machine, policy: Policy, node: fx.Node) -> bool:
    if isinstance(policy.choice, list):
        return node.target in policy.choice
    context = checkpoint.SelectiveCheckpointContext(is_recompute=False)

    def value(source: fx.Node) -> Any:
        known = source.meta["val"]
        return vm.trace.wrap(source) if isinstance(known, TensorMeta) else known

    args, kwargs = fx.map_arg((node.args, node.kwargs), value)
    chosen = vm.evaluate(policy.choice, [context, node.target, *args], dict(kwargs))
    return chosen is True or getattr(chosen, "name", None) in _SAVED
