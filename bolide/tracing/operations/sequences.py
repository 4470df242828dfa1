"""Operations on batches of sequences whose lengths are data.

`aten::_ctc_loss` answers a table beside the loss, as long as the longest target, for its backward. Recorded is
`bolide::ctc_loss`, which answers the loss alone; `bolide::ctc_loss_backward` makes the table again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bolide.symbolic import contiguous_strides
from bolide.tracing.meta import DataDependent, TensorMeta
from bolide.tracing.operations.handlers import handler
from bolide.tracing.rules.registry import rule

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
_ARGUMENTS = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity"
)


def _loss(*args: Any) -> torch.Tensor:
    loss: torch.Tensor = aten._ctc_loss.Tensor(*args)[0]
    return loss.clone()


def _gradient(grad: torch.Tensor, *args: Any) -> torch.Tensor:
    *tensors, blank, zero_infinity = args
    loss, table = aten._ctc_loss.Tensor(*args)
    gradient: torch.Tensor = aten._ctc_loss_backward.Tensor(grad, *tensors, loss, table, blank, zero_infinity)
    return gradient


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(f"ctc_loss({_ARGUMENTS}) -> Tensor")
_library.define(f"ctc_loss_backward(Tensor grad, {_ARGUMENTS}) -> Tensor")
_library.impl("ctc_loss", _loss, "CompositeExplicitAutograd")
_library.impl("ctc_loss_backward", _gradient, "CompositeExplicitAutograd")


@rule("bolide::ctc_loss")
def _loss_meta(log_probs: TensorMeta, *others: Any) -> TensorMeta:
    return _dense(log_probs, log_probs.shape[1:2] if len(log_probs.shape) == 3 else ())


@rule("bolide::ctc_loss_backward")
def _gradient_meta(grad: TensorMeta, log_probs: TensorMeta, *others: Any) -> TensorMeta:
    return _dense(log_probs, log_probs.shape)


def _dense(like: TensorMeta, shape: tuple[Any, ...]) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), 0, like.dtype, like.device)


def _lengths(trace: Trace, given: Any) -> Any:
    """Lengths as a tensor of the graph."""
    if not isinstance(given, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            given = trace.lift(torch.tensor([int(length) for length in given]), private=True)
    return trace.unwrap(given)


@handler("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """The loss, and a stand-in for the table."""
    given: list[Any] = [*args, *kwargs.values()]
    log_probs, targets, inputs, wanted, *options = given
    blank, zero_infinity = options + [0, False][len(options) :]
    nodes = [trace.unwrap(log_probs), trace.unwrap(targets), _lengths(trace, inputs), _lengths(trace, wanted)]
    loss = trace.call(torch.ops.bolide.ctc_loss.default, *nodes, blank, zero_infinity)
    return trace.wrap([loss, trace.filled(_dense(log_probs.meta, (0,)), 0)])


@handler("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    given: list[Any] = [*args, *kwargs.values()]
    grad, log_probs, targets, inputs, wanted, _, _, blank, *rest = given
    nodes = [trace.unwrap(log_probs), trace.unwrap(targets), _lengths(trace, inputs), _lengths(trace, wanted)]
    zero_infinity = rest[0] if rest else False
    gradient = torch.ops.bolide.ctc_loss_backward.default
    return trace.wrap(trace.call(gradient, trace.unwrap(grad), *nodes, blank, zero_infinity))


@handler("_pack_padded_sequence", "_pad_packed_sequence")
def _packed(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """How the elements of sequences are arranged depends on their lengths."""
    raise DataDependent(str(func), trace.where, "data_shape")
