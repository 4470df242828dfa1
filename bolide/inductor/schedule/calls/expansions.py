"""Calls of bolide's own operators that become calls of torch's: one, or several steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from bolide.inductor.ir.definitions import Extern
from bolide.inductor.plan import Call, Size, Step, TensorResult, TensorType, View
from bolide.inductor.plan.schemas import arguments_of, operator_of, refuse
from bolide.inductor.plan.steps import Ref
from bolide.inductor.runtime import externs
from bolide.symbolic import Expr, contiguous_strides
from bolide.tracing import libraries
from bolide.tracing.operations.sequences import ctc_loss, ctc_loss_backward
from bolide.tracing.recording.layers import recurrent
from bolide.tracing.rng import rng_seed

aten = torch.ops.aten


def torchs(extern: Extern) -> Extern:
    """The call of torch's that does what one of bolide's does; the call itself where there is none."""
    if extern.op is rng_seed:
        return replace(extern, op=externs.SEED[0], args=externs.SEED[1])  # the device stays where it is
    if extern.op is ctc_loss:
        return replace(extern, op=aten._ctc_loss.Tensor)
    if extern.op is recurrent and extern.args[-1] is None:
        kind, x, batch_sizes, state, weights, biases, layers, bidirectional, _ = extern.args
        start = state if kind == "lstm" else state[0]
        options = (start, weights, biases, layers, 0.0, False, bidirectional)  # no dropout, no training
        if batch_sizes is not None:
            return replace(extern, op=getattr(aten, kind).data, args=(x, batch_sizes, *options))
        return replace(extern, op=getattr(aten, kind).input, args=(x, *options, False))  # time first
    return extern


class _Steps:
    """The steps so far, and the types of what they make. Sizes are numbers."""

    def __init__(self, name: str, where: str, known: dict[str, TensorType]) -> None:
        self.name, self.where, self.types = name, where, known
        self.steps: list[Step] = []

    def _add(self, shape: Sequence[int], like: str, stride: Sequence[int] | None, name: str) -> tuple[str, TensorType]:
        name = name or f"{self.name}_{len(self.steps)}"
        sizes = tuple(map(Expr.const, shape))
        strides = contiguous_strides(sizes) if stride is None else tuple(map(Expr.const, stride))
        kind = self.types[name] = TensorType(self.types[like].dtype, self.types[like].device, sizes, strides)
        return name, kind

    def call(self, op: torch._ops.OpOverload, shape: Sequence[int], like: str, *args: object, name: str = "") -> str:
        """A call of `args`, in which tensors are `Ref`s, that gives a dense tensor of the dtype of `like`."""
        arguments = arguments_of(op, args, {}, refuse)
        name, kind = self._add(shape, like, None, name)
        self.steps.append(Call(operator_of(op), arguments, (TensorResult(name, kind),), self.where))
        return name

    def view(self, base: str, shape: Sequence[int], stride: Sequence[int] | None = None, name: str = "") -> str:
        """A tensor seen with these sizes; dense ones without `stride`."""
        name, kind = self._add(shape, base, stride, name)
        self.steps.append(View(name, base, kind, Expr.const(0)))
        return name

    def extents(self, base: str) -> tuple[list[int], list[int]]:
        """The sizes and strides of a tensor."""
        kind = self.types[base]
        return [size.value for size in kind.shape], [step.value for step in kind.stride]

    def dense(self, base: str, shape: Sequence[int], stride: Sequence[int]) -> str:
        """A dense tensor of the elements that a view has; `base` itself where it is seen as it is."""
        wanted = [step.value for step in contiguous_strides(tuple(map(Expr.const, shape)))]
        if all(size == 1 or a == b for size, a, b in zip(shape, stride, wanted)):
            return base
        seen = self.view(base, shape, stride)
        return self.call(aten.clone.default, shape, seen, Ref(seen), torch.contiguous_format)

    def padded(self, base: str, padding: Sequence[int]) -> str:
        """An image in a dense frame of zeros."""
        shape, stride = self.extents(base)
        inner = self.dense(base, shape, stride)  # a copy with the frame would keep channels_last
        (high, wide), (images, channels, height, width) = padding, shape
        framed = (images, channels, height + 2 * high, width + 2 * wide)
        return self.call(aten.pad.default, framed, base, Ref(inner), [wide, wide, high, high], "constant", None)


Types = dict[str, TensorType]
"""The types of tensors by name."""


def _conv_weight_gradient(
    name: str,
    where: str,
    known: Types,
    grad: Ref,
    x: Ref,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Step]:
    """The steps that compute `externs.conv_weight_gradient` of the tensors `grad` (N, O, H', W') and `x` (N, I, H, W).
    The windows of x are copied to the rows of a matrix, in half the time of `im2col`."""
    steps = _Steps(name, where, known)
    (images, outputs, *places), (by_image, by_output, *by_place) = steps.extents(grad.name)
    columns, rows = math.prod(size[1:]), images * math.prod(places)
    framed = steps.padded(x.name, padding) if any(padding) else x.name
    _, (image, channel, *down) = steps.extents(framed)
    window = [step * by for step, by in zip(down, dilation)]
    moves = [step * by for step, by in zip(down, stride)]
    windows = steps.dense(framed, (*size[1:], images, *places), (channel, *window, image, *moves))
    left = steps.dense(grad.name, (outputs, images, *places), (by_output, by_image, *by_place))
    left, right = steps.view(left, (outputs, rows)), steps.view(windows, (columns, rows))
    if libraries.fastest(known[x.name].dtype, outputs, rows, columns) == "onednn":
        op = torch.ops.mkldnn._linear_pointwise.default
        product = steps.call(op, (outputs, columns), x.name, Ref(left), Ref(right), None, "none", [], "")
    else:
        turned = steps.view(right, (rows, columns), (1, rows))
        product = steps.call(aten.mm.default, (outputs, columns), x.name, Ref(left), Ref(turned))
    steps.view(product, size, name=name)
    return steps.steps


def _ctc_loss_backward(
    name: str, where: str, known: Types, grad: Ref, x: Ref, targets: Ref, inputs: Ref, wanted: Ref, *options: int
) -> list[Step]:
    """The gradient of a CTC loss. The table that it needs, as wide as the longest target, is made again."""
    log_probs = known[x.name]
    time, batch, _ = log_probs.shape
    loss, table, width = f"{name}_loss", f"{name}_table", f"{name}_width"
    columns = Expr.var(width, None, None)
    kinds = {
        loss: replace(log_probs, shape=(batch,), stride=(Expr.const(1),)),
        table: replace(log_probs, shape=(batch, time, columns), stride=(time * columns, columns, Expr.const(1))),
        name: replace(log_probs, stride=contiguous_strides(log_probs.shape)),
    }

    def call(op: torch._ops.OpOverload, args: Sequence[object], *results: str) -> Call:
        made = tuple([TensorResult(result, kinds[result]) for result in results])
        return Call(operator_of(op), arguments_of(op, args, {}, refuse), made, where)

    tensors = (x, targets, inputs, wanted)
    return [
        call(aten._ctc_loss.Tensor, (*tensors, *options), loss, table),
        Size(width, table, 2),
        call(aten._ctc_loss_backward.Tensor, (grad, *tensors, Ref(loss), Ref(table), *options), name),
    ]


def _scatter_reduce(
    name: str, where: str, known: Types, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, **how: bool
) -> list[Step]:
    """Into a copy, which ATen would make twice."""
    copied, op = TensorResult(name, replace(known[x.name], stride=contiguous_strides(known[x.name].shape))), aten.clone
    into = externs.JOINING[aten.scatter_reduce.two]
    given = arguments_of(into, (Ref(name), dim, index, source, reduce), {**how, "out": Ref(name)}, refuse)
    clone = arguments_of(op.default, (x, torch.contiguous_format), {}, refuse)
    return [Call(operator_of(op.default), clone, (copied,), where), Call(operator_of(into), given, (None,), where)]


EXPANSIONS: dict[torch._ops.OpOverload, Callable[..., list[Step]]] = {
    externs.weight_gradient: _conv_weight_gradient,
    ctc_loss_backward: _ctc_loss_backward,
    aten.scatter_reduce.two: _scatter_reduce,
}
"""The steps of a call: of the name of its result, the line of the program that asked for it, the types of its tensors,
and its arguments, of which tensors are `Ref`s."""
