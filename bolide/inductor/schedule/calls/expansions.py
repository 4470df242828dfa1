"""One call that becomes several steps."""

from __future__ import annotations

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

    def view(self, base: str, shape: Sequence[int], stride: Sequence[int] | None = None) -> str:
        """A tensor seen with these sizes; dense ones without `stride`."""
        name, kind = self._add(shape, base, stride, "")
        self.steps.append(View(name, base, kind, Expr.const(0)))
        return name

    def flat(self, base: str, dims: Sequence[int]) -> str:
        """A matrix of the dimensions in this order: the first one by all others together."""
        kind = self.types[base]
        shape, stride = [kind.shape[dim].value for dim in dims], [kind.stride[dim].value for dim in dims]
        columns = 1
        for size in shape[1:]:
            columns *= size
        sizes = tuple(map(Expr.const, shape))
        same = all(size == 1 or a == b.value for size, a, b in zip(shape, stride, contiguous_strides(sizes)))
        if same:
            return self.view(base, (shape[0], columns))
        turned = self.view(base, shape, stride)
        copied = self.call(aten.clone.default, shape, turned, Ref(turned), torch.contiguous_format)
        return self.view(copied, (shape[0], columns))


def conv_weight_gradient(
    name: str, grad: str, x: str, lists: Sequence[Sequence[int]], where: str, known: dict[str, TensorType]
) -> list[Step]:
    """The steps that compute `externs.conv_weight_gradient` of the tensors `grad` (N, O, H', W') and `x` (N, I, H, W),
    whose types are `known`; `lists` are its size, stride, padding and dilation."""
    size, stride, padding, dilation = lists
    steps = _Steps(name, where, known)
    images, outputs, high, wide = [extent.value for extent in known[grad].shape]
    columns, places = size[1] * size[2] * size[3], high * wide
    rows = images * places
    window = (list(size[2:]), list(dilation), list(padding), list(stride))
    unfolded = steps.call(aten.im2col.default, (images, columns, places), x, Ref(x), *window)
    right = steps.flat(unfolded, (1, 0, 2))
    left = steps.flat(grad, (1, 0, 2, 3))
    if libraries.fastest(known[x].dtype, outputs, rows, columns) == "onednn":
        op = torch.ops.mkldnn._linear_pointwise.default
        product = steps.call(op, (outputs, columns), x, Ref(left), Ref(right), None, "none", [], "")
    else:
        turned = steps.view(right, (rows, columns), (1, rows))
        product = steps.call(aten.mm.default, (outputs, columns), x, Ref(left), Ref(turned))
    steps.call(aten._unsafe_view.default, size, x, Ref(product), list(size), name=name)
    return steps.steps
