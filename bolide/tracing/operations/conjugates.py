"""Conjugated and negated views.

Eager computes neither: it marks the view, and the dispatcher resolves the mark in front of operations that do not know
it. A traced view carries the mark as well, so that the dispatcher does the same; its node is the value, computed. The
chain of views keeps the marking operation, which is what a view that leaves the program is made with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bolide.tracing.operations.handlers import handler, record_view
from bolide.tracing.tensor import PHYSICAL, TracedTensor, carry_marks

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten


@handler("_conj", "_neg_view")
def _marked(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not isinstance(tensor, torch.Tensor):  # a number that became a tensor in C++
        value = tensor.conjugate() if func is aten._conj.default else -tensor
        dtype = torch.get_default_dtype()
        dtype = dtype.to_complex() if isinstance(value, complex) else dtype
        return trace.dispatch(aten.scalar_tensor.default, (value,), {"dtype": dtype})
    tensor = tensor if tensor.__class__ is TracedTensor else trace.lift(tensor)
    node = trace.call(PHYSICAL[func], tensor.node)
    view = TracedTensor.make(trace, tensor.meta, node, tensor.group, (*tensor.chain, (func, (), {})))
    carry_marks(tensor, view)
    if func is aten._conj.default:
        torch._C._set_conj(view, not tensor.is_conj())
    else:
        torch._C._set_neg(view, not tensor.is_neg())
    return view


@handler("view_as_real")
def _view_as_real(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].is_conj():
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can "
            "view it as real, use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias "
            "the original."
        )
    return record_view(trace, func, args, kwargs)
