"""Composite operations for tensors with symbolic sizes.

Their C++ kernels ask for integers, or ask many questions about sizes, each a call from C++ into Python. torch's Python
dispatcher has decompositions of some; those of `matmul` and `broadcast_tensors` import sympy, which takes as long as
compiling a model, and that of `dropout` copies where eager answers its argument. Here are ours, for traced tensors
only: they choose as ATen's do (native/LinearAlgebra.cpp, Linear.cpp, TensorShape.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from bolide.symbolic import Size, hint_of, is_data, is_undecided, product, same_size, same_sizes, times
from bolide.tracing.recording import batches, norms
from bolide.tracing.recording.formulas import FORMULAS, or_theirs
from bolide.tracing.recording.layers import layer
from bolide.tracing.rules.common import broadcast_shapes, is_contiguous, suggested_format, wrap_dim
from bolide.tracing.rules.linear import row_options
from bolide.tracing.rules.registry import remembered
from bolide.tracing.rules.views import reshaped
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_installed: list[OpOverload] = []


def install() -> None:
    """Put our kernels before torch's (once per process)."""
    if not _installed:
        ours: dict[OpOverload, Callable[..., object]] = {
            aten.broadcast_tensors.default: _of_primitives(broadcast_tensors),
            aten.contiguous.default: _of_primitives(contiguous),
            aten.dropout.default: dropout,
            aten.fake_quantize_per_channel_affine_cachemask_backward.default: channels_quantised_backward,
            aten.fill_diagonal_.default: fill_diagonal,
            aten.flatten.using_ints: _of_primitives(flatten),
            aten.linear.default: _of_primitives(linear),
            aten.matmul.default: _of_primitives(matmul),
            aten.max_pool1d.default: max_pool1d,
            aten.randn.out: _normal_into,
            aten.reshape.default: _of_primitives(reshape),
            aten.scaled_dot_product_attention.default: attention,
            aten.take_along_dim.default: take_along_dim,
        }
        for op in (aten.hardshrink.default, aten.softshrink.default, *_MARGINS):
            ours[op] = _of_primitives(op)  # torch's formula takes types that no kernel does
        for op in (aten.linear.out, aten.matmul.out):
            ours[op] = _into(op, op.py_kernels.get(_COMPOSITE))
        for name in _UPSAMPLED:
            op = getattr(aten, name).vec
            ours[op] = _of_floats(op, op.py_kernels[_COMPOSITE])
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            for op, packed in ((getattr(aten, kind).input, False), (getattr(aten, kind).data, True)):
                ours[op] = layer(kind, op.py_kernels[_COMPOSITE], packed)
        ours |= {op: or_theirs(formula, op) for op, formula in FORMULAS.items()}
        for op, kernel in ours.items():
            _installed.append(op)
            composite = op.has_kernel_for_dispatch_key(_COMPOSITE)
            for key in (_COMPOSITE, DispatchKey.Autograd):
                theirs = op.py_kernels.get(key)
                if theirs is not None or (composite and key is _COMPOSITE):  # torch.export asks which are composite
                    op.py_kernels[key] = _of_traced(kernel, op, theirs)
            op._dispatch_cache.clear()
        rules = (DispatchKey.Autograd, norms.kernels()), (DispatchKey.FuncTorchBatched, batches.kernels())
        for key, known in rules:
            for op, kernel in known.items():
                op.py_kernels[key] = kernel
                op._dispatch_cache.clear()


_MARGINS = (aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default)
_UPSAMPLED = (
    *(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")),
    *(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
)


def _of_floats(op: OpOverload, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """torch's formula for floats, laid out as by ATen; for other types, for which there may be no kernel, ATen's."""
    kernel = _of_primitives(op)

    def call(x: TracedTensor, *args: Any, **kwargs: Any) -> Any:
        if not x.is_floating_point():
            return kernel(x, *args, **kwargs)
        result = theirs(x, *args, **kwargs)
        for size in (*x.shape[2:], *result.shape[2:]):  # the formula asks nothing of them
            if not is_data(size) and not size > 0:
                before, after = list(map(hint_of, x.shape[2:])), list(map(hint_of, result.shape[2:]))
                raise RuntimeError(f"Input and output sizes should be greater than 0, but got {before} and {after}")
        return result.contiguous(memory_format=suggested_format(x.meta))

    return call


def _of_traced(
    ours: Callable[..., object], op: OpOverload, theirs: Callable[..., object] | None
) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        given = (*(args[0] if isinstance(args[0], list) else args), kwargs.get("out"))
        if any(arg.__class__ is TracedTensor for arg in given):
            return ours(*args, **kwargs)
        if theirs is not None:
            return theirs(*args, **kwargs)
        return op._op_dk(_COMPOSITE, *args, **kwargs)

    return kernel


def _into(op: OpOverload, theirs: Callable[..., object] | None) -> Callable[..., object]:
    """A product that is written to a given tensor, which ATen's kernels want to be of the operands' type."""

    def kernel(x: Tensor, *args: object, out: Tensor) -> object:
        if out.dtype is not x.dtype:
            raise RuntimeError(f"Expected out tensor to have dtype {x.dtype}, but got {out.dtype} instead")
        return op._op_dk(_COMPOSITE, x, *args, out=out) if theirs is None else theirs(x, *args, out=out)

    return kernel


def _normal_into(size: list[Size], *, out: Tensor) -> Tensor:
    """`torch.randn` into a given tensor: ATen's kernel takes no symbols."""
    return out.resize_(size).normal_()  # type: ignore[arg-type]


def _of_primitives(kernel: Callable[..., object]) -> Callable[..., object]:
    """For a kernel that calls nothing composite: the dispatcher need not ask Python about each of its calls."""

    def call(*args: object, **kwargs: object) -> object:
        with torch._C._DisablePythonDispatcher():
            return kernel(*args, **kwargs)

    return call


def _in_order(x: Any) -> bool:
    """Whether a traced tensor is known to be contiguous."""
    known: bool = remembered(x._trace.shapes, is_contiguous, x.known)
    return known


def contiguous(x: Any, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    """`Tensor.contiguous`: the tensor itself where its elements are in order already."""
    if memory_format is not torch.contiguous_format:
        return aten.contiguous.default._op_dk(_COMPOSITE, x, memory_format=memory_format)
    return x if _in_order(x) else _copied(x, x.clone(memory_format=memory_format))


def _copied(x: TracedTensor, copy: Any) -> Any:
    """A copy of a tensor, of which eager may have a view, or itself, if sizes that are data are 0 or 1."""
    trace = x._trace
    known = copy.__class__ is TracedTensor  # what a transform of torch.func has wrapped is not
    if known and trace.shapes.facts.names and any(map(is_data, (*x.shape, *copy.shape))):
        trace.listener.copied(x.group, copy.group)
    return copy


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """`torch.dropout`: the tensor itself where nothing is dropped."""
    return aten.dropout.default._op_dk(_COMPOSITE, x, p, train) if train and p else x


def channels_quantised_backward(grad: Tensor, mask: Tensor) -> Tensor:
    """That of `torch.fake_quantize_per_channel_affine`, whose checks in C++ ask how many elements it has."""
    if grad.shape != mask.shape or mask.dtype is not torch.bool:
        op = aten.fake_quantize_per_channel_affine_cachemask_backward.default
        return op._op_dk(_COMPOSITE, grad, mask)  # type: ignore[no-any-return]
    return grad * mask


def fill_diagonal(x: Tensor, value: float, wrap: bool = False) -> Tensor:
    if x.dim() != 2 or wrap:
        return aten.fill_diagonal_.default._op_dk(_COMPOSITE, x, value, wrap)  # type: ignore[no-any-return]
    x.diagonal().fill_(value)
    return x


def attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`; the fused kernel does not take empty tensors."""
    if any(is_data(size) and is_undecided(size >= 1) for tensor in (q, k, v) for size in tensor.shape):
        return aten._scaled_dot_product_attention_math(q, k, v, *rest, **options)[0]  # type: ignore[no-any-return]
    op = aten.scaled_dot_product_attention.default
    return op._op_dk(_COMPOSITE, q, k, v, *rest, **options)  # type: ignore[no-any-return]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`."""
    if _is_plain(x, weight, bias) and weight.dim() == 2 and _in_order(x):
        return _plain_linear(x, weight, bias)  # type: ignore[no-any-return]
    if bias is None:
        return matmul(x, weight.t())
    if bias.dim() != 1:  # one of its rows may be a place of `x`
        return torch.add(matmul(x, weight.t()), bias)
    if x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if x.dim() == 3 and x.__class__ is TracedTensor and _in_order(x):
        batch, length, width = x.shape
        return torch.addmm(bias, x.view(times(batch, length), width), weight.t()).view(batch, length, weight.shape[0])
    return torch.add(matmul(x, weight.t()), bias)


def _is_plain(x: Any, weight: Any, bias: Any) -> bool:
    """Whether a linear layer may be recorded as one: nobody asks for a derivative, nor sees what is in between."""
    if x.dim() < 2 or (bias is not None and (x.dim() > 3 or bias.dim() != 1)):
        return False
    tensors = (x, weight) if bias is None else (x, weight, bias)
    trace = getattr(_get_current_dispatch_mode(), "trace", None)
    if trace is None or trace.shapes.facts.names or forward_ad._current_level >= 0:
        return False
    if any(tensor.__class__ is not TracedTensor or tensor._trace is not trace for tensor in tensors):
        return False
    if any(tensor.is_neg() or tensor.is_complex() for tensor in tensors):
        return False
    return not (trace.differentiates if not torch.is_grad_enabled() else any(t.requires_grad for t in tensors))


def _plain_linear(x: Any, weight: Any, bias: Any) -> Any:
    """A linear layer of rows that lie one after the other: its nodes, and one tensor."""
    trace, node = x._trace, x.node
    *batch, width = x.shape
    if len(batch) > 1:
        node = trace.call(aten.view.default, node, [trace.unwrap(product(batch)), trace.unwrap(width)])
    turned = trace.call(aten.t.default, weight.node)
    if bias is None:
        node = trace.call(aten.mm.default, node, turned)
    else:
        node = trace.call(aten.addmm.default, bias.node, node, turned)
    if len(batch) > 1:
        node = trace.call(aten.view.default, node, [*map(trace.unwrap, batch), trace.unwrap(weight.shape[0])])
    return trace.wrap(node)


def reshape(x: Tensor, size: Sequence[Size]) -> Tensor:
    """`Tensor.reshape`: a view where the strides allow it, else a copy."""
    if x.__class__ is not TracedTensor:
        return x.reshape(size)
    shapes = x._trace.shapes
    meta, size = x.known, list(size)
    shape, is_view = remembered(shapes, reshaped, meta, size)
    if is_view:
        return x.view(shape)
    return _copied(x, aten._unsafe_view.default(x.clone(memory_format=torch.contiguous_format), shape))  # type: ignore[no-any-return]


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """`Tensor.flatten`: the tensor itself where nothing is joined."""
    if x.__class__ is not TracedTensor:
        return aten.flatten.using_ints._op_dk(_COMPOSITE, x, start_dim, end_dim)  # type: ignore[no-any-return]
    if not x.dim():
        return reshape(x, [1])
    start, end = wrap_dim(start_dim, x.dim()), wrap_dim(end_dim, x.dim())
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    sizes = list(x.shape)
    return x if start == end else reshape(x, [*sizes[:start], product(sizes[start : end + 1]), *sizes[end + 1 :]])


def max_pool1d(x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> Any:
    """`torch.max_pool1d`: that of rows."""
    options = [[*each] if isinstance(each, (list, tuple)) else [each] for each in (size, stride, padding, dilation)]
    numbers = remembered(x._trace.shapes, row_options, x.known, options, ceil)
    rows = [[other, number] for other, number in zip((1, 1, 0, 1), numbers)]
    return aten.max_pool2d_with_indices.default(x.unsqueeze(-2), *rows, ceil)[0].squeeze(-2)


def broadcast_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`torch.broadcast_tensors`: tensors that have the common shape already are answered as they are."""
    shape = broadcast_shapes([tuple(each.shape) for each in tensors])
    return [each if same_sizes(each.shape, shape) else each.expand(shape) for each in tensors]


def take_along_dim(x: Tensor, places: Tensor, dim: int | None = None) -> Tensor:
    """`torch.take_along_dim`: numbers of `x` along a dimension; all others are broadcast."""
    if places.dtype is not torch.int64 or (dim is not None and x.dim() != places.dim()):  # refused
        return aten.take_along_dim.default._op_dk(_COMPOSITE, x, places, dim)  # type: ignore[no-any-return]
    if dim is None:
        return x.reshape(-1).gather(0, places.reshape(-1))
    dim = wrap_dim(dim, x.dim())
    batch = broadcast_shapes([(*each.shape[:dim], 1, *each.shape[dim + 1 :]) for each in (x, places)])
    x, places = (each.expand(*batch[:dim], each.shape[dim], *batch[dim + 1 :]) for each in (x, places))
    return x.gather(dim, places)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul` of tensors of any sizes; raises RuntimeError for those that do not fit."""
    if a.dim() == 0 or b.dim() == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {a.dim()}D and {b.dim()}D")
    if a.dim() == 1:
        return torch.dot(a, b) if b.dim() == 1 else matmul(a[None], b).squeeze(-2)
    if b.dim() == 1:
        return torch.mv(a, b) if a.dim() == 2 else _folded(a, b) if _folds(a, b) else matmul(a, b[:, None]).squeeze(-1)
    if a.dim() == 2 and b.dim() == 2:
        return torch.mm(a, b)
    if _folds(a, b):
        return _folded(a, b) if b.dim() == 2 else _folded(b.mT, a.t()).mT.contiguous()
    return _batched(a, b)


def _folds(a: Tensor, b: Tensor) -> bool:
    """Whether the batch of the larger operand becomes rows of a plain matrix product."""
    larger, smaller = (a, b) if a.dim() >= b.dim() else (b.mT, a)
    if larger.dim() < 3 or smaller.dim() > 2:
        return False
    if smaller.requires_grad:
        return True
    if a.dim() == 2:
        return False
    shape, stride = larger.shape, larger.stride()
    steps = [(stride[i], times(stride[i + 1], shape[i + 1])) for i in range(larger.dim() - 2)]
    return all(same_size(own, wanted) or own == wanted for own, wanted in steps)


def _folded(a: Tensor, b: Tensor) -> Tensor:
    *batch, width = a.shape
    rows = reshape(a, (product(batch), width))
    if b.dim() == 1:
        return aten._unsafe_view.default(torch.mv(rows, b), batch)  # type: ignore[no-any-return]
    return aten._unsafe_view.default(torch.mm(rows, b), [*batch, b.shape[1]])  # type: ignore[no-any-return]


def _batched(a: Tensor, b: Tensor) -> Tensor:
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    count = product(batch)

    def stacked(x: Tensor) -> Tensor:
        *own, rows, columns = x.shape
        whole = x if same_sizes(own, batch) else x.expand(*batch, rows, columns)
        return reshape(whole, (count, rows, columns))

    return aten._unsafe_view.default(torch.bmm(stacked(a), stacked(b)), [*batch, a.shape[-2], b.shape[-1]])  # type: ignore[no-any-return]
