"""Functions that keep less for their backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._decomp import get_decompositions

from bolide.functorch import compilers
from bolide.functorch.aot_autograd import aot_function, aot_module, make_boxed_compiler
from bolide.functorch.foreign import min_cut_rematerialization_partition
from bolide.functorch.graph_compilers.scripted import ts_compile

aten = torch.ops.aten

default_decompositions: dict[Any, Callable[..., object]] = get_decompositions(
    [
        aten.detach,
        aten.gelu_backward,
        aten.leaky_relu_backward,
        aten.sigmoid_backward,
        aten.threshold_backward,
        aten.hardtanh_backward,
        aten.hardsigmoid_backward,
        aten.hardswish_backward,
        aten.tanh_backward,
        aten.silu_backward,
        aten.elu_backward,
        aten.cudnn_batch_norm,
        aten.cudnn_batch_norm_backward,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.elu,
        aten.leaky_relu,
        aten.hardtanh,
        aten.hardswish,
        aten.hardsigmoid,
        aten.conj_physical,
        aten.is_same_size,
    ]
)
"""Operations that are taken apart into simpler ones, so that they fuse with what is around them."""


def fuse(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    """`ts_compile` where TorchScript has a code generator for the inputs' devices. On a CPU it usually has none, and
    would run what is computed again operation by operation, slower than eager: bolide's own makes kernels of it there.
    """
    on_cpu = all(inp.device.type == "cpu" for inp in inps if isinstance(inp, torch.Tensor))
    if on_cpu and compilers.generator is not None and not torch._C._jit_can_fuse_on_cpu():
        return _generated(fx_g, inps)
    return ts_compile(fx_g, inps)


@make_boxed_compiler
def _generated(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    assert compilers.generator is not None
    return compilers.generator(fx_g, inps)


def memory_efficient_fusion(fn: Callable[..., object] | nn.Module, **kwargs: Any) -> Any:
    """A function or module that does what `fn` does, with its forward and backward compiled by `fuse`, and with
    values computed again in the backward where that costs less than keeping them.

    kwargs: arguments of `aot_function` or `aot_module` that take the place of these choices.
    """
    chosen: dict[str, Any] = {
        "fw_compiler": fuse,
        "bw_compiler": fuse,
        "partition_fn": min_cut_rematerialization_partition,
        "decompositions": default_decompositions,
    } | kwargs
    return aot_module(fn, **chosen) if isinstance(fn, nn.Module) else aot_function(fn, **chosen)
