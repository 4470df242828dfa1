"""The cost model of partitioning: bytes of memory traffic, and what it costs to compute a value again, in the same
unit.

One unit is the time to move one byte to or from memory. A fused pointwise op reads its inputs from registers, so doing
it again costs only its arithmetic; the weights below are arithmetic per byte of result, measured against memory
traffic of float32 kernels on one AVX-512 core (a multiply is far below the cost of a byte, erf or exp near half of it,
Philox above it).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.graphs import VIEWS, is_getitem, is_tensor, is_tuple, readers_through_views

NEVER = float("inf")

_CHEAP = (
    "add sub mul neg abs sign relu clamp clamp_min clamp_max maximum minimum where masked_fill eq ne lt le gt "
    "ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan "
    "isinf floor ceil round trunc threshold threshold_backward hardtanh hardtanh_backward leaky_relu "
    "leaky_relu_backward hardsigmoid hardswish hardswish_backward hardsigmoid_backward square rsub addcmul "
    "addcdiv lerp tril triu clone _to_copy to fill full full_like zeros zeros_like ones ones_like new_zeros "
    "new_ones new_full scalar_tensor arange cat stack constant_pad_nd flip roll slice_backward select_backward "
    "lift_fresh_copy relu6 native_dropout_backward embedding_renorm linspace eye"
)
_COSTLY = (
    "div reciprocal sqrt rsqrt exp expm1 log log1p log2 log10 tanh tanh_backward sigmoid sigmoid_backward erf "
    "erfc gelu gelu_backward silu silu_backward mish softplus softplus_backward elu elu_backward pow sin cos "
    "tan atan asin acos sinh cosh atan2 logaddexp remainder fmod floor_divide exp2 selu celu "
    "log_sigmoid_forward xlogy"
)
# Results are pointwise over an input, but a reduction over it comes first: the input is read once or twice more.
_ROWWISE = (
    "_softmax _log_softmax native_layer_norm native_group_norm var_mean sum mean amax amin logsumexp var "
    "std any all prod linalg_vector_norm "
)
# Not pointwise, never done again, but they read their operands in their own loops.
_FUSED_BACKWARDS = (
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _softmax_backward_data "
    "_log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "embedding_dense_backward _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
    "mse_loss mse_loss_backward copy_ slice_scatter select_scatter index_put index_add scatter_add argmax "
)
_GATHERS = "embedding index gather index_select"


_POINTWISE = {
    name: weight for names, weight in ((_CHEAP, 0.1), (_COSTLY, 0.5), (_GATHERS, 1.0)) for name in names.split()
} | {"rand": 1.5, "randn": 1.5}
_ELEMENTWISE = frozenset(f"{_CHEAP} {_COSTLY}".split())
_REDUCES = frozenset(_ROWWISE.split())
_FUSED = frozenset(_FUSED_BACKWARDS.split())


def nbytes(value: Any) -> int:
    """Bytes of a traced value (a tensor's elements, not its storage; sizes that are symbols count by their hint); 0
    for numbers and None.
    """
    if is_tuple(value):
        return sum(map(nbytes, value))
    if not hasattr(value, "dtype"):
        return 0
    size = int(value.dtype.itemsize)
    for extent in value.shape:
        size *= hint(extent)
    return size


def hint(extent: Any) -> int:
    """A size as a number: the one seen while tracing, where it is a symbol. (What stands for data may be less than 0 in
    a difference.)"""
    return extent if isinstance(extent, int) else max(0, int(extent.node.hint))


def node_bytes(node: fx.Node) -> int:
    return nbytes(node.meta.get("val"))


def recompute(node: fx.Node) -> float:
    """What computing `node` once more costs, given its inputs, in bytes of traffic; `NEVER` for what must run once
    (matmuls, convolutions, sorts, random seeds …).
    """
    target = node.target
    if node.op == "get_attr" or target in VIEWS or is_getitem(node):
        return 0.0
    if not is_tensor(node) and not is_tuple(node.meta["val"]):
        return 0.0 if node.op == "call_function" else NEVER  # arithmetic on sizes
    name = target._opname if isinstance(target, torch._ops.OpOverload) else ""
    weight = _POINTWISE.get(name)
    if weight is not None:
        return weight * node_bytes(node)
    if name in _REDUCES:
        return 2.0 * sum(node_bytes(source) for source in node.all_input_nodes) + 0.5 * node_bytes(node)
    return NEVER


def is_pointwise(node: fx.Node) -> bool:
    """Is this op's result computed element by element, whatever the order of memory? (Gathers do not count.)"""
    return getattr(node.target, "_opname", "") in _ELEMENTWISE


def fuses(node: fx.Node) -> bool:
    """Does this op read its operands where they are computed?"""
    return recompute(node) < NEVER or getattr(node.target, "_opname", "") in _FUSED


def is_read_by_extern(node: fx.Node, readers: Container[fx.Node]) -> bool:
    """Does one of `readers` need `node` in memory, directly or through views, because it does not fuse?"""
    return any(reader in readers and not fuses(reader) for reader in readers_through_views(node))


def is_in_memory(node: fx.Node, readers: Container[fx.Node]) -> bool:
    """Will `node` be in memory for the sake of its `readers`? One that does not fuse wants it there; several are taken
    to lie apart, with a matmul or the like between them (a residual stream), so that one kernel cannot serve them all.
    """
    found = [reader for reader in readers_through_views(node) if reader in readers and not is_getitem(reader)]
    return len(set(found)) > 1 or any(not fuses(reader) for reader in found)
