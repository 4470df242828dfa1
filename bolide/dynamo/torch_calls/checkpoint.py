"""Activation checkpointing: the nodes recorded inside a checkpointed call are marked, so that the partition computes
them again in the backward pass instead of saving them (``meta["region"]`` and ``meta["save"]``)."""

from __future__ import annotations

import contextlib
import operator
import warnings
from typing import Any, NamedTuple

import torch
import torch.fx as fx
from torch.utils import checkpoint

from bolide.dynamo.machine.calls import intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.captured import Recipe
from bolide.dynamo.torch_calls.autograd import effects_so_far
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.support.errors import Unsupported
from bolide.tracing import TensorMeta, generators, rng, writing_ops

Args = list[Any]
Kwargs = dict[str, Any]


class Policy(NamedTuple):
    """A selective checkpoint's choice: a function (context, overload, arguments) -> CheckpointPolicy, or the list of
    overloads whose results are saved."""

    choice: Any


class Region(NamedTuple):
    """A checkpointed call that has begun: the graph's last node before it, what had been written outside, and whether
    the same random numbers are drawn when it is computed again."""

    before: fx.Node
    policy: Policy | None
    written: Any
    same_draws: bool


def _no_recipe(rebuilder: Rebuilder, region: Region) -> Recipe:
    """A segment ends in front of a checkpointed call, not in it: what follows inside would not be computed again."""
    raise Unsupported("a checkpointed call is entered before a break and left after it", None, None, "context")


RECIPES[Region] = _no_recipe


@intercept(checkpoint.checkpoint)
def _checkpoint(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    function, *values = args
    options = dict(kwargs)
    reentrant = options.pop("use_reentrant", None)
    context_fn = options.pop("context_fn", checkpoint.noop_context_fn)
    same_draws = options.pop("preserve_rng_state", True) is not False
    for name in ("determinism_check", "debug", "early_stop"):
        options.pop(name, None)
    if reentrant is None:
        vm.deferred.append((warnings.warn, ["torch.utils.checkpoint: use_reentrant should be passed explicitly"], {}))
    if reentrant is not False:
        if options or context_fn is not checkpoint.noop_context_fn:
            raise ValueError("Unexpected keyword arguments: " + ",".join(options))
        if torch.is_grad_enabled() and not any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            return Call(torch_functions.checkpoint_without_inputs, [function, tuple(values)])
    chosen = None if context_fn is checkpoint.noop_context_fn else context_fn
    return Call(torch_functions.checkpoint, [function, chosen, same_draws, tuple(values), options])


@intercept(checkpoint.create_selective_checkpoint_contexts)
def _selective(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return Policy(args[0]), None


@intercept(torch_functions.begin_region)
def _begin(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    contexts, same_draws = args
    policy = None
    vm.trace.functional_only = "activations are checkpointed"
    if contexts is not None:
        policy = contexts[0]
        if type(policy) is contextlib.nullcontext:
            policy = None
        elif type(policy) is not Policy:
            raise Unsupported(
                "a checkpoint with contexts of the program's own",
                vm.where(),
                "use selective checkpoint contexts",
                kind="context",
            )
    return Region(vm.trace.graph._root.prev, policy, _written(vm), same_draws)


_DRAWN = frozenset({writing_ops.drawn, *generators.STATES})


def _written(vm: Machine) -> Any:
    drawn = sum(node.target in _DRAWN for node in vm.trace.graph.nodes)
    written = [leaf.group.version for leaf in vm.trace.leaves if leaf.group.version]
    return effects_so_far(vm), drawn, len(vm.world.draws), written


@intercept(torch_functions.end_region)
def _end(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    region: Region = args[0]
    if torch.is_grad_enabled() and region.written != _written(vm):
        raise Unsupported(
            "a checkpointed region writes outside: eager does that again when it computes the region again",
            vm.where(),
            "keep what it writes (statistics, counters) out of the region",
            kind="context",
            operation="torch.utils.checkpoint.checkpoint",
        )
    if torch.is_grad_enabled() and not region.same_draws and _draws_since(region.before):
        raise Unsupported(
            "a checkpointed region draws other random numbers when it is computed again",
            vm.where(),
            "leave preserve_rng_state on",
            kind="context",
            operation="torch.utils.checkpoint.checkpoint",
        )
    node, saved = region.before.next, set()
    while node.op != "root":
        if node.op == "call_function":
            node.meta["region"] = region
            source = node.args[0] if node.target is operator.getitem else node
            if source in saved or (source is node and region.policy and _is_saved(vm, region.policy, node)):
                saved.add(node)
                node.meta["save"] = True
        node = node.next
    return None


def _draws_since(node: fx.Node) -> bool:
    while (node := node.next).op != "root":
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or node.target in (
            rng.rand,
            rng.randn,
        ):
            return True
    return False


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
