"""Operations that write: what eager refuses of them, and those that have no functional form (users' operators, lists).
In the graph these are ``bolide::functional``, which lets them write to copies and gives the copies as results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported, UserFrame
from bolide.tracing.graph import enter, lookup, mapped, operator
from bolide.tracing.meta import TensorMeta, found_in, meta_of
from bolide.tracing.operations.registry import handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rng import GeneratorSlot
from bolide.tracing.rules import infer, kernels
from bolide.tracing.rules.common import crosses, laid_out_like, repeats
from bolide.tracing.rules.kernels import Placed
from bolide.tracing.rules.registry import rule
from bolide.tracing.tensor import TracedTensor


def refuse_overlaps(
    where: UserFrame | None,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: Sequence[Tensor],
) -> None:
    """Raises what eager does where elements of a target are one in memory, or an operand shares some with it."""

    def placed(arg: TracedTensor) -> Placed:
        if any(arg is target for target in targets):
            return Placed(arg.meta, "repeated" if repeats(arg.meta) else "target")
        shares = (t for t in targets if isinstance(t, TracedTensor) and t.group is arg.group)
        return Placed(arg.meta, "partly" if any(crosses(t.meta, arg.meta) for t in shares) else "apart")

    known = {id(tensor): placed(tensor) for tensor in found_in((args, kwargs), TracedTensor)}
    if not any(each.place in ("partly", "repeated") for each in known.values()):
        return
    if kernels.is_chosen_by_size(func):
        reason = "a product is written to an out= argument that overlaps: only some of its kernels refuse that"
        raise Unsupported(reason, where, kind="tensor_write")

    def described(arg: object) -> object:
        return known.get(id(arg)) or Placed(meta_of(arg), "apart") if isinstance(arg, Tensor) else arg

    refused = kernels.overlap_refusal(func, mapped(args, described), mapped(kwargs, described))
    if refused is not None:
        raise type(refused)(*refused.args)


def refuse_types(
    where: UserFrame | None,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Collection[str],
    results: Sequence[torch.fx.Node],
) -> None:
    """Raises what eager does where an `out=` argument is of a type that the operation does not write."""
    given = {name: arg.dtype for name, arg in kwargs.items() if name in out}
    wanted = dict(zip(given, [result.meta["val"].dtype for result in results]))
    if given == wanted or len(given) != len(results):
        return

    def described(arg: object) -> object:
        if isinstance(arg, TracedTensor):
            return arg.node.meta["val"]
        return meta_of(arg) if isinstance(arg, Tensor) else arg

    options = {key: mapped(arg, described) for key, arg in kwargs.items() if key not in out}
    refused = kernels.out_refusal(func, mapped(args, described), options, given, wanted)
    if refused is not None:
        raise type(refused)(*refused.args)
    if not all(map(torch.can_cast, wanted.values(), given.values())):
        reason = "an out= argument of a type to which the result is not converted"
        raise Unsupported(reason, where, "give it the right type", kind="tensor_write")


# ---- on copies -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writing:
    """One call: the operation, its arguments in flat form (a tensor or a symbolic number is None there: they are
    arguments of the node), the places of the tensors and of the numbers, which of the tensors are written (as positions
    among them), and the metas of all results: the operation's own `returned` ones that are no argument, then the
    copies."""

    func: OpOverload
    leaves: list[Any]
    spec: pytree.TreeSpec
    places: list[int]
    numbers: list[int]
    written: list[int]
    returned: int
    metas: list[TensorMeta]


def call_on_copies(
    trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], op: OpOverload | None = None
) -> Any:
    """Records a call of `func` as one of `op` (`functional`, or `drawn`); the result is as the operation's. Raises
    Unsupported where it returns what it was given, unless that is the tensor it writes."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[place] for place in places]
    targets = {id(leaf) for leaf in pytree.tree_leaves(_written(func, args, kwargs)) if isinstance(leaf, Tensor)}
    written = [position for position, tensor in enumerate(tensors) if id(tensor) in targets]
    nodes = [trace.unwrap(tensor) for tensor in tensors]
    numbers = [place for place, leaf in enumerate(leaves) if type(leaf) is torch.SymInt]
    plain = [None if isinstance(leaf, (Tensor, torch.SymInt)) else trace.unwrap(leaf) for leaf in leaves]
    metas: list[TensorMeta] = []
    returns, itself = func._schema.returns, None
    if op is drawn and len(returns) == 1 and returns[0].alias_info is not None and written:
        returns, itself = [], tensors[written[0]]
    if returns:
        if any(value.alias_info is not None for value in returns):
            raise Unsupported(f"{func} returns an argument that it writes", trace.where, kind="operator")
        full = [None if isinstance(leaf, GeneratorSlot) else leaf for leaf in plain]  # no generator for the shapes
        for place, known in (*zip(places, nodes), *[(place, leaves[place]) for place in numbers]):
            full[place] = known
        node_args, node_kwargs = pytree.tree_unflatten(full, spec)
        own = infer(func, node_args, node_kwargs, trace.shapes if trace.shapes.hints else None)
        metas = [own] if isinstance(own, TensorMeta) else list(own)
    returned = len(metas)
    metas += [laid_out_like(nodes[position].meta["val"]) for position in written]
    table = enter(Writing(func, plain, spec, places, numbers, written, returned, metas))
    results = trace.call(op or functional, nodes, [trace.unwrap(leaves[place]) for place in numbers], table)
    for position, node in zip(written, results[returned:]):
        trace.write(trace.own(tensors[position]), node)
    if itself is not None:
        return itself
    answers = [trace.wrap(node) for node in results[:returned]]
    return None if not answers else answers[0] if len(func._schema.returns) == 1 else tuple(answers)


@handler("_fused_moving_avg_obs_fq_helper")
def _observed(trace: Recorder, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An observer of channels starts with statistics without elements, which its first call gives the channels' size.
    Raises Unsupported for that call."""
    statistics: Tensor = args[3]
    if statistics.numel() == 0:
        reason = "an observer resizes the statistics that it is given, at its first call"
        raise Unsupported(reason, trace.where, "call the module once before it is compiled", kind="tensor_write")
    return call_on_copies(trace, func, args, kwargs)


def _written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    arguments = func._schema.arguments
    named = {**dict(zip([argument.name for argument in arguments], args)), **kwargs}
    return [
        named[argument.name]
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in named
    ]


def _functional(tensors: Sequence[Tensor], numbers: Sequence[int], table: int) -> list[Tensor]:
    call: Writing = lookup(table)
    own = list(tensors)
    for position in call.written:
        own[position] = own[position].clone()
    leaves = [leaf.generator if isinstance(leaf, GeneratorSlot) else leaf for leaf in call.leaves]
    for place, value in (*zip(call.places, own), *zip(call.numbers, numbers)):
        leaves[place] = value
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    result = call.func(*args, **kwargs)
    returned = [] if result is None else [result] if isinstance(result, Tensor) else list(result)
    return [*returned[: call.returned], *[own[position] for position in call.written]]


_CALL = "(Tensor[] tensors, SymInt[] numbers, int table) -> Tensor[]"
functional = operator(f"functional{_CALL}", _functional)
drawn = operator(f"drawn{_CALL}", _functional, torch.Tag.nondeterministic_seeded)
"""As `functional`, of an operation that draws from a generator of the user's (see `generators`)."""


@rule("bolide::functional", "bolide::drawn")
def _metas(tensors: list[TensorMeta], numbers: list[object], table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)
