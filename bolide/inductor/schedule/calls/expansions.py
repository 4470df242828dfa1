"""One call that becomes several steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bolide.inductor.plan import Call, Step, TensorResult, TensorType, View
from bolide.inductor.plan.schemas import arguments_of, operator_of, refuse
from bolide.inductor.plan.steps import Ref
from bolide.symbolic import Expr, contiguous_strides
from bolide.tracing import libraries

aten = torch.ops.aten


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


def conv_weight_gradient(
    name: str, grad: str, x: str, lists: Sequence[Sequence[int]], where: str, known: dict[str, TensorType]
) -> list[Step]:
    """The steps that compute `externs.conv_weight_gradient` of the tensors `grad` (N, O, H', W') and `x` (N, I, H, W),
    whose types are `known`; `lists` are its size, stride, padding and dilation. The windows of x are copied to the rows
    of a matrix, in half the time of `im2col`."""
    size, stride, padding, dilation = lists
    steps = _Steps(name, where, known)
    (images, outputs, *places), (by_image, by_output, *by_place) = steps.extents(grad)
    columns, rows = math.prod(size[1:]), images * math.prod(places)
    framed = steps.padded(x, padding) if any(padding) else x
    _, (image, channel, *down) = steps.extents(framed)
    window = [step * by for step, by in zip(down, dilation)]
    moves = [step * by for step, by in zip(down, stride)]
    windows = steps.dense(framed, (*size[1:], images, *places), (channel, *window, image, *moves))
    left = steps.dense(grad, (outputs, images, *places), (by_output, by_image, *by_place))
    left, right = steps.view(left, (outputs, rows)), steps.view(windows, (columns, rows))
    if libraries.fastest(known[x].dtype, outputs, rows, columns) == "onednn":
        op = torch.ops.mkldnn._linear_pointwise.default
        product = steps.call(op, (outputs, columns), x, Ref(left), Ref(right), None, "none", [], "")
    else:
        turned = steps.view(right, (rows, columns), (1, rows))
        product = steps.call(aten.mm.default, (outputs, columns), x, Ref(left), Ref(turned))
    steps.view(product, size, name=name)
    return steps.steps
