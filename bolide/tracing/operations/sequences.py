"""Operations on batches of sequences.

- Recurrent layers by oneDNN. `aten::mkldnn_rnn_layer` returns the workspace that its backward needs only while grad
  mode is on, whatever its argument `train` says. Compiled code runs without grad mode, so training records
  `bolide::rnn_layer` in its place, which always keeps it.
- CTC loss. `aten::_ctc_loss` answers a table beside the loss, as long as the longest target, for its backward. Recorded
  is `bolide::ctc_loss`, which answers the loss alone; `bolide::ctc_loss_backward` makes the table again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.fx
from torch import Tensor
from torch._ops import OpOverload

from bolide.tracing.graph import operator
from bolide.tracing.meta import DataDependent, TensorMeta
from bolide.tracing.operations.registry import handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import row_major
from bolide.tracing.rules.registry import by_real_kernel, rule

aten = torch.ops.aten
Lengths = Sequence[int] | Tensor
_ARGUMENTS = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity"
)


def _gradient(grad: Tensor, *args: Any) -> Tensor:
    *tensors, blank, zero_infinity = args
    loss, table = aten._ctc_loss.Tensor(*args)
    gradient: Tensor = aten._ctc_loss_backward.Tensor(grad, *tensors, loss, table, blank, zero_infinity)
    return gradient


ctc_loss = operator(f"ctc_loss({_ARGUMENTS}) -> Tensor", lambda *args: aten._ctc_loss.Tensor(*args)[0].clone())
ctc_loss_backward = operator(f"ctc_loss_backward(Tensor grad, {_ARGUMENTS}) -> Tensor", _gradient)


@rule("bolide::ctc_loss")
def _loss_meta(log_probs: TensorMeta, *others: object) -> TensorMeta:
    return row_major(log_probs, log_probs.shape[1:2] if len(log_probs.shape) == 3 else ())


@rule("bolide::ctc_loss_backward")
def _gradient_meta(grad: TensorMeta, log_probs: TensorMeta, *others: object) -> TensorMeta:
    return row_major(log_probs, log_probs.shape)


def _operands(trace: Recorder, tensors: Sequence[Tensor], *lengths: Lengths) -> list[torch.fx.Node]:
    """Nodes for tensors, and for lengths as tensors of the graph."""
    nodes = [trace.own(tensor).node for tensor in tensors]
    for each in lengths:
        if not isinstance(each, Tensor):
            with torch._C._DisableTorchDispatch():
                each = trace.lift(torch.tensor([int(length) for length in each]), private=True)
        nodes.append(trace.own(each).node)
    return nodes


@handler("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(
    trace: Recorder,
    func: OpOverload,
    log_probs: Tensor,
    targets: Tensor,
    inputs: Lengths,
    wanted: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """The loss, and a stand-in for the table."""
    nodes = _operands(trace, (log_probs, targets), inputs, wanted)
    loss = trace.call(ctc_loss, *nodes, blank, zero_infinity)
    return trace.wrap([loss, trace.filled(row_major(nodes[0].meta["val"], (0,)), 0)])


@handler("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(
    trace: Recorder,
    func: OpOverload,
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    inputs: Lengths,
    wanted: Lengths,
    loss: Tensor,
    table: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    nodes = _operands(trace, (grad, log_probs, targets), inputs, wanted)
    return trace.wrap(trace.call(ctc_loss_backward, *nodes, blank, zero_infinity))


@handler("_pack_padded_sequence", "_pad_packed_sequence")
def _packed(trace: Recorder, func: OpOverload, /, *args: object) -> NoReturn:
    """How the elements of sequences are arranged depends on their lengths."""
    raise DataDependent(str(func), trace.where, "data_shape")


# ---- recurrent layers ------------------------------------------------------------------------------------------------

_SCHEMA = str(torch.ops.aten.mkldnn_rnn_layer.default._schema)


def _rnn(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


rnn_layer = operator(_SCHEMA.replace("aten::mkldnn_rnn_layer", "rnn_layer"), _rnn)


@handler("mkldnn_rnn_layer")
def _rnn_layer(trace: Recorder, func: OpOverload, *args: object) -> Any:
    op = rnn_layer if torch.is_grad_enabled() else func
    return trace.wrap(trace.call(op, *map(trace.unwrap, args)))


@rule("bolide::rnn_layer")
def _rnn_metas(*args: Any) -> Any:
    """The workspace has a size only oneDNN knows, so the layer is run on zeros."""
    return by_real_kernel(rnn_layer, args, {})


@rule("mkldnn_rnn_layer_backward")
def _rnn_gradients(
    x: TensorMeta, w0: TensorMeta, w1: TensorMeta, b0: TensorMeta, b1: TensorMeta, *rest: Any
) -> list[TensorMeta]:
    """Gradients of the input, the weights, the biases and the first state and cell, dense. A layer without biases is
    given zeros of the weights' shapes for them; their gradients are biases' all the same."""
    dtype = _gradient_dtype(x.dtype)
    bias = w0.shape[:1]
    shapes = (x.shape, w0.shape, w1.shape, bias, bias, *(state.shape for state in rest[:2]))
    return [row_major(x, shape, dtype) for shape in shapes]


@functools.cache
def _gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Which dtype the gradients have for an input of `dtype`: that one, or float32 (torch 2.11), so it is tried."""
    x, weight, bias, state = (torch.zeros(size, dtype=dtype) for size in ((1, 1, 1), (4, 1), (4,), (1, 1)))
    layer = (x, weight, weight, bias, bias, state, state)
    *results, workspace = _rnn(*layer, False, [], 2, 1, 1, True, False, False, True)
    backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
    options: tuple[Any, ...] = (False, 2, 1, 1, True, True, False, [], False)
    gradient: Tensor = backward(*layer, *results, results[0], None, None, *options, workspace)[0]
    return gradient.dtype


@rule("mkldnn_rnn_layer")
def _rnn_metas_without_workspace(x: TensorMeta, *rest: Any) -> Any:
    """All results and the last state and cell, dense; there is no workspace while grad mode is off."""
    *states, _reverse, _batch_sizes, _mode, hidden = rest[4:10]
    shapes = ((*x.shape[:2], hidden), *(state.shape for state in states))
    return (*(row_major(x, shape) for shape in shapes), None)
