"""Operations that write: what eager refuses of them, and those that have no functional form (users' operators, lists).
In the graph these are ``bolide::functional``, which lets them write to copies and gives the copies as results."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.fx
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported, UserFrame
from bolide.tracing.graph import mapped, operator
from bolide.tracing.meta import TensorMeta, found_in, meta_of
from bolide.tracing.numbers import data, scalars
from bolide.tracing.operations.registry import handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rng import held_by
from bolide.tracing.rules import kernels
from bolide.tracing.rules.common import crosses, laid_out_like, repeats
from bolide.tracing.rules.kernels import Placed
from bolide.tracing.rules.registry import metas_of, rule
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.traits import traits_of

#: derivatives of activations, which may be in place: where their slope is, and whether they are given the result
_OF_RESULTS = {"leaky_relu_backward": (2, 3), "elu_backward": (1, 4)}


def refuse_slope(func: OpOverload, args: tuple[float | torch.SymFloat | Tensor, ...]) -> None:
    """Raise what eager does where the result of an activation in place does not tell the sign of what it was given:
    that asks for a slope that is not negative. Where the slope is data, it is checked."""
    place, is_result = _OF_RESULTS.get(getattr(func, "_opname", ""), (0, 0))
    if not is_result or not args[is_result]:
        return
    given = args[place]
    slope = scalars.of(given) if isinstance(given, torch.SymFloat) else given
    if isinstance(slope, scalars.TracedFloat) and slope.now is None:
        data.check_tensor(slope.tensor._trace, slope.tensor >= 0)
    elif not slope >= 0:
        numbers = [arg if isinstance(arg, (Tensor, bool)) else float(arg) for arg in args]
        with torch._C._DisableTorchDispatch():
            func(*[torch.ones(()) if isinstance(arg, Tensor) else arg for arg in numbers])


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


T = TypeVar("T", Tensor, TensorMeta)


@dataclass(frozen=True)
class _Place:
    """Where an argument of a call is among those of its node; its `kind` is "tensor", "number", or "generator", which
    is a token there."""

    kind: str
    index: int


@dataclass(frozen=True)
class Writing:
    """One call, as its text says it: the operation, its arguments, with a `_Place` for what are arguments of the node,
    which of the tensors are written, and whether it returns anything but those."""

    func: OpOverload
    args: list[object]
    kwargs: dict[str, object]
    written: list[int]
    returns: bool


def call_on_copies(
    trace: Recorder,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    token: Tensor | None = None,
) -> Any:
    """Records a call of `func` as one of `functional`, or of `drawn` where it draws; `token`: the argument that stands
    for a generator; the result is as the operation's. Raises Unsupported where it returns what it was given, unless
    that is the tensor it writes."""
    tensors: list[Tensor] = []
    numbers: list[torch.SymInt] = []

    def placed(arg: object) -> object:
        if isinstance(arg, Tensor):
            tensors.append(arg)
            return {"generator" if arg is token else "tensor": len(tensors) - 1}
        if type(arg) is torch.SymInt:
            numbers.append(arg)
            return {"number": len(numbers) - 1}
        return _said(trace, func, trace.unwrap(arg))

    name = func._schema.name, func._schema.overload_name
    text = json.dumps([*name, mapped(args, placed), [*mapped(kwargs, placed).items()]])
    call = _read(text)
    aliases = any(value.alias_info is not None for value in func._schema.returns)
    if aliases and (token is None or len(func._schema.returns) > 1 or not call.written):
        raise Unsupported(f"{func} returns an argument that it writes", trace.where, kind="operator")
    nodes = [trace.unwrap(tensor) for tensor in tensors]
    op = functional if token is None and not traits_of(func).seeded else drawn
    results = trace.call(op, nodes, [trace.unwrap(number) for number in numbers], text)
    returned = len(results) - len(call.written)
    for position, node in zip(call.written, results[returned:]):
        trace.write(trace.own(tensors[position]), node)
    if aliases:
        return tensors[call.written[0]]
    answers = [trace.wrap(node) for node in results[:returned]]
    return None if not answers else answers[0] if len(func._schema.returns) == 1 else tuple(answers)


_TYPES = (torch.dtype, torch.layout, torch.memory_format)
_NAMED = {str(value): value for value in vars(torch).values() if isinstance(value, _TYPES)}


def _said(trace: Recorder, func: OpOverload, value: object) -> object:
    """A plain argument as data of JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, _TYPES):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise Unsupported(f"{func}, which writes, is given a {type(value).__name__}", trace.where, kind="operator")


@functools.lru_cache(4096)
def _read(text: str) -> Writing:
    """The call that a text says."""
    name, overload, args, named = json.loads(text, object_hook=_heard)
    kwargs = dict(named)
    namespace, _, packet = name.partition("::")
    func: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    places = pytree.tree_leaves(_written(func, args, kwargs))
    written = sorted({place.index for place in places if type(place) is _Place})
    returns = all(value.alias_info is None for value in func._schema.returns)
    return Writing(func, args, kwargs, written, returns)


def _heard(said: dict[str, Any]) -> Any:
    """A place, or what `_said` was given."""
    ((kind, value),) = said.items()
    match kind:
        case "complex":
            return complex(*value)
        case "torch":
            return _NAMED[value]
        case "device":
            return torch.device(value)
    return _Place(kind, value)


def operator_in(call: str) -> OpOverload:
    """The operation that a call of `functional` or `drawn` stands for."""
    return _read(call).func


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


def _filled(
    call: Writing, tensors: Sequence[T], numbers: Sequence[object], generator: Callable[[T], object]
) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call, by position and by name. `generator` gives that of a token."""

    def at(arg: object) -> object:
        if type(arg) is not _Place:
            return arg
        if arg.kind == "number":
            return numbers[arg.index]
        return generator(tensors[arg.index]) if arg.kind == "generator" else tensors[arg.index]

    return mapped(call.args, at), mapped(call.kwargs, at)


def _functional(tensors: Sequence[Tensor], numbers: Sequence[int], call: str) -> list[Tensor]:
    said = _read(call)
    own = list(tensors)
    for position in said.written:
        own[position] = own[position].clone()
    args, kwargs = _filled(said, own, numbers, held_by)
    result = said.func(*args, **kwargs)
    returned = [] if result is None or not said.returns else [result] if isinstance(result, Tensor) else list(result)
    return [*returned, *[own[position] for position in said.written]]


_CALL = "(Tensor[] tensors, SymInt[] numbers, str call) -> Tensor[]"
functional = operator(f"functional{_CALL}", _functional)
drawn = operator(f"drawn{_CALL}", _functional, torch.Tag.nondeterministic_seeded)
"""As `functional`, of an operation that draws: from torch's generator, or one of the user's (see `generators`)."""
ON_COPIES = frozenset({functional, drawn})


@rule("bolide::functional", "bolide::drawn")
def _metas(tensors: list[TensorMeta], numbers: list[object], call: str) -> list[TensorMeta]:
    said = _read(call)
    metas: list[TensorMeta] = []
    if said.returns and said.func._schema.returns:
        args, kwargs = _filled(said, tensors, numbers, lambda token: None)  # no generator for the shapes
        own = metas_of(said.func, args, kwargs)
        metas = [own] if isinstance(own, TensorMeta) else list(own)
    return [*metas, *[laid_out_like(tensors[position]) for position in said.written]]
