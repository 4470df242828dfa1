"""Inference with parameters as constants (`inductor.config.freezing`): BatchNorm is folded into convolutions, weights
are brought into the form in which oneDNN multiplies, and what is made of parameters alone is computed once, and anew
when one of these has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.fx as fx
from torch._ops import OpOverload

from bolide.functorch.graphs import (
    Runner,
    argument_nodes,
    aten,
    extract,
    is_getitem,
    is_impure,
    is_tensor,
    is_view,
    placeholders,
)
from bolide.functorch.passes.channels_last import lay_out, movable_convolutions
from bolide.functorch.passes.norms import Writer
from bolide.functorch.passes.simplify import remove_dead
from bolide.symbolic import ShapeEnv, hint_of
from bolide.tracing import TensorMeta, libraries
from bolide.tracing.libraries import policy_of
from bolide.tracing.rules.common import is_channels_last

mkldnn = torch.ops.mkldnn
PACKED = (torch.float32, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_NO_EPILOGUE: tuple[object, ...] = ("none", [], "")


def constant_nodes(graph: fx.Graph, positions: Collection[int]) -> set[fx.Node]:
    """The placeholders at `positions`, and the nodes that are made of these and of nothing else that changes."""
    slots = placeholders(graph)
    known = {slots[position] for position in positions}
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node.op == "call_function" and sources and not is_impure(node) and known.issuperset(sources):
            known.add(node)
    return known


def freeze(graph: fx.Graph, positions: Collection[int], shapes: ShapeEnv | None) -> fx.Graph:
    """The graph with norms folded and weights packed; the placeholders at `positions` are constants."""
    _fold_norms(graph, constant_nodes(graph, positions), shapes)
    if libraries.has_onednn():
        constant = constant_nodes(graph, positions)
        _pack_convolutions(graph, constant)
        _pack_products(graph, constant, shapes)
    return graph


def _meta(node: fx.Node) -> TensorMeta:
    meta: TensorMeta = node.meta["val"]
    return meta


# ---- BatchNorm -------------------------------------------------------------------------------------------------------


def _fold_norms(graph: fx.Graph, constant: set[fx.Node], shapes: ShapeEnv | None) -> None:
    """y = (conv(x, w) + b - mean) * s + beta with s = gamma / sqrt(var + eps), as conv(x, w * s) + (b - mean) * s +
    beta, for norms with running statistics."""
    for norm in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_no_training.default):
        convolution, gamma, beta, mean, variance, _, eps = norm.args
        (first, *others) = norm.users
        plain = not others and is_getitem(first) and first.args[1] == 0 and _is_foldable(convolution, constant)
        if not plain or not constant.issuperset(argument_nodes((gamma, beta, mean, variance))):
            continue
        x, weight, bias, *rest = convolution.args
        write, dtype = Writer(norm, shapes), _meta(weight).dtype
        wide = dtype if dtype in _WIDE else torch.float32
        filters, mean, variance = (_converted(write, value, wide) for value in (weight, mean, variance))
        gamma, beta, bias = (value and _converted(write, value, wide) for value in (gamma, beta, bias))
        scale = write(aten.rsqrt.default, write(aten.add.Tensor, variance, eps))
        scale = scale if gamma is None else write(aten.mul.Tensor, scale, gamma)
        shift = write(aten.neg.default, mean) if bias is None else write(aten.sub.Tensor, bias, mean)
        shift = write(aten.mul.Tensor, shift, scale)
        shift = shift if beta is None else write(aten.add.Tensor, shift, beta)
        filters = write(aten.mul.Tensor, filters, write.viewed(scale, [-1, *[1] * (_meta(weight).ndim - 1)]))
        folded = (_converted(write, filters, dtype), _converted(write, shift, dtype))
        result = write(aten.convolution.default, x, *folded, *rest)
        result.meta = dict(first.meta)
        first.replace_all_uses_with(result)
        for node in (first, norm, convolution):
            graph.erase_node(node)


def _is_foldable(node: fx.Node, constant: set[fx.Node]) -> bool:
    """Whether a value is that of a convolution, not transposed, that nothing else reads."""
    if node.target is not aten.convolution.default or len(node.users) != 1:
        return False
    metas = [_meta(value) for value in argument_nodes(node.args)]
    same = len({meta.dtype for meta in metas}) == 1 and metas[0].dtype.is_floating_point
    return same and not node.args[6] and constant.issuperset(argument_nodes(node.args[1:]))


def _converted(write: Writer, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    if _meta(value).dtype is dtype:
        return value
    return write(torch.ops.prims.convert_element_type.default, value, dtype)


# ---- weights ---------------------------------------------------------------------------------------------------------


def _pack_convolutions(graph: fx.Graph, constant: set[fx.Node]) -> None:
    """Convolutions with packed weights, on channels_last. Measured on AMD EPYC (Zen 5), one thread: the convolutions of
    ResNet-50 at batch 2, 128×128, take 30 ms row-major, 30 ms with packed weights, and 22 ms in channels_last, too.
    Small ones have a loop of their own in ATen; they take the order in which their input comes."""
    movable = [node for node in movable_convolutions(graph, PACKED) if libraries.takes(_meta(node).dtype)]
    large = {node for node in movable if _is_large(node) and constant.issuperset(argument_nodes(node.args[1:]))}
    if large:
        lay_out(graph, large, [node for node in movable if node not in large])
    for node in movable:
        x, weight, *_ = argument_nodes(node.args)
        if node not in large or not is_channels_last(_meta(x)) or not is_channels_last(_meta(node)):
            continue
        _, _, bias, stride, padding, dilation, *_, groups = node.args
        how = (padding, stride, dilation, groups)
        with graph.inserting_before(node):
            reorder, size = mkldnn._reorder_convolution_weight.default, list(_meta(x).shape)
            packed = _call(graph, reorder, (weight, *how, size), weight)
            args = (x, packed, _without_gaps(graph, bias), *how, *_NO_EPILOGUE)
            node.replace_all_uses_with(_call(graph, mkldnn._convolution_pointwise.default, args, node))
        graph.erase_node(node)


def _is_large(node: fx.Node) -> bool:
    """Whether a convolution takes so many multiplications that packed weights pay."""
    result, kernel = _meta(node), _meta(argument_nodes(node.args)[1])
    return bool(result.numel * prod(kernel.shape[1:]) >= policy_of(result.device).fewest_packed)


def _pack_products(graph: fx.Graph, constant: set[fx.Node], shapes: ShapeEnv | None) -> None:
    """``x @ w`` and ``bias + x @ w`` as oneDNN's linear layer with a packed weight, where that was measured to be the
    fastest."""
    found = [*graph.find_nodes(op="call_function", target=aten.mm.default)]
    found += graph.find_nodes(op="call_function", target=aten.addmm.default)
    for node in found:
        *biases, x, weight = node.args
        if weight not in constant or x in constant or node.kwargs:
            continue
        rows, (inner, columns), dtype = _meta(x).shape[0], _meta(weight).shape, _meta(weight).dtype
        static = type(inner) is int and type(columns) is int and inner > 0 and columns > 0
        if not static or dtype not in PACKED or any(tuple(_meta(bias).shape) != (columns,) for bias in biases):
            continue
        if libraries.fastest(dtype, hint_of(rows), inner, columns, packed=True) != "packed":
            continue
        filters = Writer(node, shapes)(aten.t.default, weight)
        with graph.inserting_before(node):
            packed = _call(graph, mkldnn._reorder_linear_weight.default, (filters, hint_of(rows)), filters)
            args = (x, packed, _without_gaps(graph, biases[0] if biases else None), *_NO_EPILOGUE)
            node.replace_all_uses_with(_call(graph, mkldnn._linear_pointwise.default, args, node))
        graph.erase_node(node)


def _without_gaps(graph: fx.Graph, bias: object) -> fx.Node | None:
    """A bias as oneDNN reads it: it takes any for one without gaps."""
    if not isinstance(bias, fx.Node) or _meta(bias).stride == (1,):
        return bias  # type: ignore[return-value]
    copy = graph.call_function(aten.clone.default, (bias,), {"memory_format": torch.contiguous_format})
    copy.meta = {**bias.meta, "val": _meta(bias)._replace(stride=(1,), offset=0)}
    return copy


def _call(graph: fx.Graph, op: OpOverload, args: tuple[object, ...], like: fx.Node) -> fx.Node:
    """A call whose result is described as that of another node; packed weights are opaque to all but oneDNN."""
    node = graph.call_function(op, args)  # type: ignore[arg-type]
    node.meta = dict(like.meta)
    return node


# ---- two parts ------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """A graph in two: `constants` computes what `rest` takes behind its other inputs; the positions are those of the
    inputs of the whole that each takes."""

    constants: fx.Graph
    constants_take: tuple[int, ...]
    rest: fx.Graph
    rest_takes: tuple[int, ...]


def split_constants(graph: fx.Graph, positions: Collection[int]) -> Split | None:
    """The graph without what is made of the placeholders at `positions` alone, and that; None where there is no such
    thing. Views stay where they are read: they cost nothing; so does what is larger than what it is made of."""
    known = constant_nodes(graph, positions)
    folded: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node not in known:
            for source in node.all_input_nodes:
                _fold(source, known, folded)
    if not folded:
        return None
    slots = placeholders(graph)
    constants = extract(graph, slots, folded, [])
    constants_take = _drop_unread(constants, range(len(slots)))
    place = slots[-1].next
    for node in folded:
        with graph.inserting_before(place):
            slot = graph.placeholder(node.name)
        slot.meta = dict(node.meta)
        node.replace_all_uses_with(slot)
    remove_dead(graph)
    rest_takes = _drop_unread(graph, positions, len(slots))
    return Split(constants, constants_take, graph, rest_takes)


def _fold(node: fx.Node, known: set[fx.Node], folded: dict[fx.Node, None]) -> None:
    """Adds the constants that a reader of `node`, which is no constant, needs."""
    if node not in known or node.op != "call_function":
        return
    if is_view(node) or not is_tensor(node) or _grows(node):
        for source in node.all_input_nodes:
            _fold(source, known, folded)
    else:
        folded[node] = None


def _grows(node: fx.Node) -> bool:
    """Whether a value is larger than all that it is computed from."""
    metas: list[TensorMeta] = [source.meta["val"] for source in node.all_input_nodes if is_tensor(source)]
    return bool(metas) and bool(node.meta["val"].numel > sum(meta.numel for meta in metas))


def _drop_unread(graph: fx.Graph, candidates: Collection[int], count: int | None = None) -> tuple[int, ...]:
    """Erases those of the placeholders at the positions that nothing reads; the positions, below `count`, that are
    left."""
    slots = placeholders(graph)
    dropped = {position for position in candidates if not slots[position].users}
    for position in dropped:
        graph.erase_node(slots[position])
    return tuple(position for position in range(len(slots) if count is None else count) if position not in dropped)


class _State(NamedTuple):
    """Constants, and the tensors that they were computed from, as they were: identities, versions and addresses.
    `held` keeps the memory, so that no other tensor comes to lie at these addresses."""

    tensors: list[int]
    versions: list[int]
    addresses: list[int]
    held: list[torch.Tensor]
    watched: list[weakref.ref[torch.Tensor]]
    constants: Sequence[object]


class Frozen:
    """Runs a graph in two parts. The constants are computed anew if a parameter was replaced, has other memory, or was
    written to as far as its version counter tells; they go when a parameter goes."""

    def __init__(self, split: Split, constants: Runner, rest: Runner) -> None:
        self._split, self._compute, self._rest = split, constants, rest
        self._state: _State | None = None

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        """As any runner."""
        given: list[torch.Tensor] = [inputs[position] for position in self._split.constants_take]  # type: ignore[misc]
        others = [inputs[position] for position in self._split.rest_takes]
        inputs.clear()
        state = self._state
        if (
            state is None
            or [*map(id, given)] != state.tensors
            or [tensor._version for tensor in given] != state.versions
            or [tensor.data_ptr() for tensor in given] != state.addresses
        ):
            state = self._computed(given)
        others += state.constants
        del given, state
        return self._rest(others)

    def _computed(self, given: list[torch.Tensor]) -> _State:
        """The constants for these tensors. They are not kept where a tensor was made in inference mode: it counts no
        versions."""
        with torch.no_grad(), torch._C._DisableAutocast():
            if any(tensor.is_inference() for tensor in given):
                return _State([], [], [], [], [], self._compute(list(given)))
            known = [*map(id, given)], [tensor._version for tensor in given], [tensor.data_ptr() for tensor in given]
            held = [tensor.detach() for tensor in given]
            forget = _forgetting(weakref.ref(self))
            watched = [weakref.ref(tensor, forget) for tensor in given]
            state = self._state = _State(*known, held, watched, self._compute(list(held)))
        return state


def _forgetting(frozen: weakref.ref[Frozen]) -> Callable[[object], None]:
    """What is called when a parameter is gone: its identity says nothing any more."""

    def forget(_: object) -> None:
        owner = frozen()
        if owner is not None:
            owner._state = None

    return forget
