"""oneDNN's recurrent layer as an operation that always keeps its workspace.

`aten::mkldnn_rnn_layer` returns the workspace that its backward needs only while grad mode is on, whatever its
argument `train` says.
Compiled code runs without grad mode, so training records `bolide::rnn_layer` in its place.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from bolide.symbolic import contiguous_strides
from bolide.tracing.meta import TensorMeta
from bolide.tracing.operations.handlers import handler
from bolide.tracing.rules.registry import by_real_kernel, rule

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

_SCHEMA = str(torch.ops.aten.mkldnn_rnn_layer.default._schema)


def _run(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_SCHEMA.replace("aten::mkldnn_rnn_layer", "rnn_layer"))
_library.impl("rnn_layer", _run, "CompositeExplicitAutograd")


@handler("mkldnn_rnn_layer")
def _rnn_layer(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    training = torch.is_grad_enabled()
    op = torch.ops.bolide.rnn_layer.default if training else func
    nodes = [trace.unwrap(arg) for arg in (*args, *kwargs.values())]
    return trace.wrap(trace.call(op, *nodes))


@rule("bolide::rnn_layer")
def _kept(*args: Any) -> Any:
    """The workspace has a size only oneDNN knows, so the layer is run on zeros."""
    return by_real_kernel(torch.ops.bolide.rnn_layer.default, args, {})


@rule("mkldnn_rnn_layer_backward")
def _gradients(x: TensorMeta, w0: TensorMeta, w1: TensorMeta, b0: TensorMeta, b1: TensorMeta, *rest: Any) -> Any:
    """Gradients of the input, the weights, the biases and the first state and cell, dense. A layer without biases is
    given zeros of the weights' shapes for them; their gradients are biases' all the same."""
    dtype = _gradient_dtype(x.dtype)
    bias = w0.shape[:1]
    shapes = (x.shape, w0.shape, w1.shape, bias, bias, *(state.shape for state in rest[:2]))
    return [TensorMeta(shape, contiguous_strides(shape), 0, dtype, x.device) for shape in shapes]


@functools.cache
def _gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Which dtype the gradients have for an input of `dtype`: that one, or float32 (torch 2.11), so it is tried."""
    x, weight, bias, state = (torch.zeros(size, dtype=dtype) for size in ((1, 1, 1), (4, 1), (4,), (1, 1)))
    layer = (x, weight, weight, bias, bias, state, state)
    *results, workspace = _run(*layer, False, [], 2, 1, 1, True, False, False, True)
    backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
    options: tuple[Any, ...] = (False, 2, 1, 1, True, True, False, [], False)
    found: torch.dtype = backward(*layer, *results, results[0], None, None, *options, workspace)[0].dtype
    return found


@rule("mkldnn_rnn_layer")
def _without_workspace(x: TensorMeta, *rest: Any) -> Any:
    """All results and the last state and cell, dense; there is no workspace while grad mode is off."""
    *states, _reverse, _batch_sizes, _mode, hidden = rest[4:10]
    shapes = ((*x.shape[:2], hidden), *(state.shape for state in states))
    return (*(TensorMeta(shape, contiguous_strides(shape), 0, x.dtype, x.device) for shape in shapes), None)
