"""What is true of ATen's operations, whatever they are called with: one table, which all packages read.

Costs are in units of the time to move one byte to or from memory. A fused pointwise operation reads its operands from
registers, so doing it again costs only its arithmetic: per byte of result, measured against memory traffic of float32
kernels on one AVX-512 core (a multiply is far below the cost of a byte, erf or exp near half of it, Philox above it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of one operation. Of those that are not in the table nothing is known: `Traits()`."""

    again: float = NEVER
    """What computing it once more costs, per byte of its result. `NEVER`: it must run once."""
    reduces: bool = False
    """A reduction over the operands comes before the elements: to do it again, they are read twice more."""
    loops: bool = False
    """It reads operands in loops of its own, where they may be computed, though it is not done again."""
    any_order: bool = False
    """Its kernels are good in any order of memory."""
    view: bool = False
    """The result is another way to look at the first argument: it costs nothing and is never worth saving."""
    copy: bool = False
    """It may turn out to copy a tensor to an equal one."""
    expands: bool = False
    """A view that shows one element many times, along a dimension of its own."""
    overlaps: bool = False
    """A view whose windows may lie across each other in memory."""
    laid_out_as_first: bool = False
    """The result has the strides of the first argument, even where elements of that are one in memory."""
    product: Literal["", "matrix", "vector"] = ""
    """A product of matrices, or of a vector with something, which reads operands in any layout."""
    seeded: bool = False
    """It is of a kind that draws from torch's random generator, or changes it (from torch's tags)."""
    impure: bool = False
    """It must stay, stay single and stay in order: a draw, a write, a check, a message (from the schema)."""


_CHEAP, _COSTLY, _GATHERING, _DRAWING = 0.1, 0.5, 1.0, 1.5

_TABLE: tuple[tuple[Traits, str], ...] = (
    (
        Traits(0.0, view=True),
        """
        view reshape _unsafe_view _reshape_alias permute transpose t slice select squeeze unsqueeze diagonal alias
        detach narrow split split_with_sizes unbind chunk view_as_real view_as_complex real imag movedim swapaxes
        flatten unflatten""",
    ),
    (Traits(0.0, view=True, expands=True), "expand"),
    (Traits(0.0, view=True, overlaps=True), "as_strided unfold"),
    (Traits(_CHEAP, copy=True, any_order=True), "clone _to_copy lift_fresh_copy"),
    # element by element
    (
        Traits(_CHEAP, any_order=True),
        """
        add sub mul neg abs sign sgn relu relu6 clamp clamp_min clamp_max maximum minimum fmax fmin where masked_fill
        eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor
        bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ isnan isinf isposinf isneginf signbit nan_to_num
        floor ceil round trunc frac threshold threshold_backward hardtanh hardtanh_backward leaky_relu
        leaky_relu_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardshrink
        hardshrink_backward softshrink softshrink_backward _prelu_kernel heaviside copysign square rsub addcmul addcdiv
        lerp native_dropout_backward""",
    ),
    (
        Traits(_COSTLY, any_order=True),
        """
        div reciprocal sqrt rsqrt exp expm1 exp2 log log1p log2 log10 tanh tanh_backward sigmoid sigmoid_backward erf
        erfc gelu gelu_backward silu silu_backward mish mish_backward softplus softplus_backward elu elu_backward selu
        celu log_sigmoid_forward log_sigmoid_backward logit pow sin cos tan atan asin acos sinh cosh asinh acosh atanh
        atan2 hypot sinc lgamma logaddexp xlogy special_xlog1py special_entr remainder fmod floor_divide""",
    ),
    # numbers, and elements at other places
    (
        Traits(_CHEAP, any_order=True),
        """
        fill full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor arange linspace
        eye to cat stack tril triu constant_pad_nd flip roll slice_backward select_backward embedding_renorm""",
    ),
    (
        Traits(_CHEAP),
        """
        zero empty empty_like empty_permuted empty_strided new_empty new_empty_strided copy contiguous lift lift_fresh
        view_copy alias_copy detach_copy as_strided_copy diagonal_copy expand_copy permute_copy select_copy slice_copy
        split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy
        repeat diagonal_backward pixel_shuffle pixel_unshuffle linalg_cross reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d""",
    ),
    (Traits(_COSTLY), "glu upsample_nearest1d upsample_nearest3d"),
    (Traits(_COSTLY, any_order=True), "upsample_nearest2d"),
    (Traits(_GATHERING), "embedding index _unsafe_index gather index_select"),
    (Traits(_DRAWING), "bolide::rand bolide::randn"),
    # reductions
    (
        Traits(_COSTLY, reduces=True),
        """
        _softmax _log_softmax _safe_softmax native_layer_norm _fused_rms_norm _weight_norm_interface
        var std var_mean std_mean sum nansum mean prod amax amin max min aminmax any all count_nonzero trace logsumexp
        norm linalg_vector_norm""",
    ),
    (Traits(_COSTLY, reduces=True, any_order=True), "mean.dim native_group_norm"),
    (
        Traits(loops=True),
        """
        _softmax_backward_data _log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward
        nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
        huber_loss_backward binary_cross_entropy_backward binary_cross_entropy_with_logits native_layer_norm_backward
        native_group_norm_backward native_batch_norm native_batch_norm_backward _weight_norm_interface_backward
        _fused_rms_norm_backward _prelu_kernel_backward glu_backward embedding_dense_backward
        upsample_nearest1d_backward
        upsample_nearest2d_backward upsample_nearest3d_backward argmax argmin""",
    ),
    (
        Traits(loops=True, any_order=True),
        """
        _native_batch_norm_legit_functional _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training""",
    ),
    # writes
    (
        Traits(loops=True),
        """
        copy_ index_put _unsafe_index_put index_add index_copy index_fill index_reduce scatter scatter_add
        scatter_reduce histc""",
    ),
    (Traits(loops=True, laid_out_as_first=True), "slice_scatter select_scatter diagonal_scatter"),
    (Traits(laid_out_as_first=True), "as_strided_scatter"),
    # what wants its operands in memory
    (Traits(product="matrix"), "mm addmm bmm baddbmm"),
    (Traits(product="vector"), "mv addmv dot"),
    (Traits(any_order=True), "avg_pool2d max_pool2d_with_indices"),
    (Traits(), "max_pool2d_with_indices_backward avg_pool2d_backward cumsum cumprod masked_scatter sort topk"),
    (Traits(), "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward convolution convolution_backward bolide::done"),
    (Traits(), "upsample_bilinear2d upsample_bilinear2d_backward"),
    (
        Traits(),
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
    ),
)


def _by_name() -> dict[str, Traits]:
    named: dict[str, Traits] = {}
    for traits, names in _TABLE:
        for name in names.split():
            qualified = name if "::" in name else f"aten::{name}"
            if qualified in named:
                raise ValueError(f"{qualified} is in the table of traits twice")
            named[qualified] = traits
    return named


TRAITS = _by_name()
"""By the name of the operation, or, before that, of the overload."""
_UNKNOWN = Traits()
_known: dict[object, Traits] = {}


def traits_of(target: object) -> Traits:
    """The traits of what a node calls."""
    traits = _known.get(target)
    if traits is None:
        if not isinstance(target, torch._ops.OpOverload):
            return _UNKNOWN
        schema = target._schema
        seeded = torch.Tag.nondeterministic_seeded in target.tags
        checks = not schema.returns  # what answers nothing checks something
        impure = seeded or checks or schema.is_mutable or target.namespace == "_c10d_functional"  # others wait for it
        traits = TRAITS.get(f"{schema.name}.{schema.overload_name}") or TRAITS.get(schema.name, _UNKNOWN)
        traits = _known[target] = replace(traits, seeded=seeded, impure=impure)
    return traits


def _rounds_shrinking() -> bool:
    above = torch.tensor(0.3, dtype=torch.bfloat16)  # rounded upwards
    return not torch.nn.functional.softshrink(above, 0.3)


ROUNDS_SHRINKING = _rounds_shrinking()
"""Whether eager's `softshrink` rounds its bound to the type of the tensor, as its derivative does: since torch 2.14."""
