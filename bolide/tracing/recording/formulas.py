"""Formulas for composite operations, and derivatives, whose C++ kernels ask for the values of sizes.

Each does what ATen's does (native/Correlation.cpp, LinearAlgebra.cpp, ReduceOps.cpp, Itertools.cpp, ConvolutionTBC.cpp,
FunctionsManual.cpp), operation by operation, with sizes that may be symbols.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload

from bolide.symbolic import Size
from bolide.tracing.rules.common import broadcast_shapes, wrap_dim
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def or_theirs(formula: Callable[..., object], op: OpOverload) -> Callable[..., object]:
    """A formula, or the operation's own kernel where its answer is NotImplemented: for what is rare, or refused."""

    def kernel(*args: object, **kwargs: object) -> object:
        result = formula(*args, **kwargs)
        return op._op_dk(_COMPOSITE, *args, **kwargs) if result is NotImplemented else result

    return kernel


def cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> object:
    """`torch.cov` without weights (with them: `torch_calls/sizes.py`)."""
    if fweights is not None or aweights is not None or x.dim() > 2 or x.dtype is torch.bool:
        return NotImplemented
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    count = rows.shape[1]
    if not count > correction:
        return NotImplemented  # with a warning
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return torch.true_divide(torch.mm(rows, rows.t().conj()), count - correction).squeeze()


def kron(a: Tensor, b: Tensor) -> Tensor:
    """`torch.kron`: blocks of `b`, each times an element of `a`."""
    dims = max(a.dim(), b.dim())
    outer, inner = ([1] * (dims - x.dim()) + [*x.shape] for x in (a, b))
    left = a.view([size for extent in outer for size in (extent, 1)])
    right = b.view([size for extent in inner for size in (1, extent)])
    return (left * right).view([m * n for m, n in zip(outer, inner)])


def multi_dot(tensors: Sequence[Tensor]) -> object:
    """`torch.linalg.multi_dot`: products in the order that takes the fewest multiplications, which is asked."""
    first, last = tensors[0], tensors[-1]
    fits = len(tensors) > 2 and first.dim() in (1, 2) and last.dim() in (1, 2)
    if not fits or any(x.dim() != 2 for x in tensors[1:-1]):
        return NotImplemented
    shape = [*(first.shape[:1] if first.dim() == 2 else ()), *(last.shape[1:] if last.dim() == 2 else ())]
    rows = first if first.dim() == 2 else first.unsqueeze(0)
    columns = last if last.dim() == 2 else last.unsqueeze(-1)
    chain = [rows, *tensors[1:-1], columns]
    if any(a.shape[1] != b.shape[0] for a, b in itertools.pairwise(chain)):
        return NotImplemented  # which raises
    result = _three(*chain) if len(chain) == 3 else _product(chain, _order(chain), 0, len(chain) - 1)
    return result.view(shape)


def _three(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    left = a.shape[0] * c.shape[0] * (b.shape[0] + c.shape[1])
    right = b.shape[0] * c.shape[1] * (a.shape[0] + c.shape[0])
    return a.mm(b.mm(c)) if left > right else a.mm(b).mm(c)


def _order(chain: Sequence[Tensor]) -> dict[tuple[int, int], int]:
    """Behind which tensor each part of a chain is divided (Cormen et al., Introduction to Algorithms, section 15.2)."""
    sizes: list[Size] = [chain[0].shape[0], *[x.shape[1] for x in chain]]
    cost: dict[tuple[int, int], Size] = {(at, at): 0 for at in range(len(chain))}
    order: dict[tuple[int, int], int] = {}
    for length in range(1, len(chain)):
        for begin in range(len(chain) - length):
            end = begin + length
            for cut in range(begin, end):
                work = sizes[begin] * sizes[cut + 1] * sizes[end + 1]
                total = cost[begin, cut] + cost[cut + 1, end] + work
                if cut == begin or total < cost[begin, end]:
                    cost[begin, end], order[begin, end] = total, cut
    return order


def _product(chain: Sequence[Tensor], order: dict[tuple[int, int], int], begin: int, end: int) -> Tensor:
    if begin == end:
        return chain[begin]
    cut = order[begin, end]
    return _product(chain, order, begin, cut).mm(_product(chain, order, cut + 1, end))


def gradient(
    x: Tensor,
    *,
    spacing: float | Sequence[float] | None = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> object:
    """`torch.gradient` for spacings that are numbers."""
    wanted = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [wrap_dim(each, x.dim()) for each in wanted]
    steps = spacing if isinstance(spacing, Sequence) else [1 if spacing is None else spacing] * len(dims)
    if edge_order not in (1, 2) or len(steps) != len(dims) or len({*dims}) != len(dims) or x.dtype is torch.uint8:
        return NotImplemented
    if not all(x.shape[each] > edge_order for each in dims):
        return NotImplemented
    return [_differences(x, each, step, edge_order) for each, step in zip(dims, steps)]


def _differences(x: Tensor, dim: int, step: float, edge_order: int) -> Tensor:
    size = x.shape[dim]

    def part(begin: Size, length: Size) -> Tensor:
        return x.narrow(dim, begin, length)

    center = (part(2, size - 2) - part(0, size - 2)) / step
    if edge_order == 1:
        first = (part(1, 1) - part(0, 1)) / step
        last = (part(size - 1, 1) - part(size - 2, 1)) / step
    else:
        first = (-1.5 * part(0, 1) + 2 * part(1, 1) - 0.5 * part(2, 1)) / step
        last = (0.5 * part(size - 3, 1) - 2 * part(size - 2, 1) + 1.5 * part(size - 1, 1)) / step
    return torch.cat([first, center / 2, last], dim)


def coordinate_gradient(
    x: Tensor, *, spacing: Sequence[Tensor], dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> object:
    """`torch.gradient` for spacings that are coordinates: the derivative of the parabola through three points."""
    wanted = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [wrap_dim(each, x.dim()) for each in wanted]
    if edge_order not in (1, 2) or len(spacing) != len(dims) or len({*dims}) != len(dims) or x.dtype is torch.uint8:
        return NotImplemented
    if any(places.dim() != 1 or places.shape[0] != x.shape[each] for places, each in zip(spacing, dims)):
        return NotImplemented
    if not all(x.shape[each] > edge_order for each in dims):
        return NotImplemented
    return [_slopes(x, each, places.diff(), edge_order) for each, places in zip(dims, spacing)]


def _slopes(x: Tensor, dim: int, steps: Tensor, edge_order: int) -> Tensor:
    size = x.shape[dim]
    line = [1] * x.dim()
    line[dim] = -1

    def part(begin: Size, length: Size = 1) -> Tensor:
        return x.narrow(dim, begin, length)

    near, far = steps[:-1], steps[1:]
    left, middle, right = -far / (near * (near + far)), (far - near) / (near * far), near / (far * (near + far))
    center = left.reshape(line) * part(0, size - 2)
    center = center + middle.reshape(line) * part(1, size - 2) + right.reshape(line) * part(2, size - 2)
    if edge_order == 1:
        first = (part(1) - part(0)) / steps[0]
        last = (part(size - 1) - part(size - 2)) / steps[-1]
    else:
        a, b = steps[0], steps[1]
        first = -(2.0 * a + b) / (a * (a + b)) * part(0) + (a + b) / (a * b) * part(1) - a / (b * (a + b)) * part(2)
        a, b = steps[-2], steps[-1]
        last = b / (a * (b + a)) * part(size - 3) - (b + a) / (b * a) * part(size - 2)
        last = last + (2 * b + a) / (b * (b + a)) * part(size - 1)
    return torch.cat([first, center, last], dim)


def combinations(x: TracedTensor, r: int = 2, with_replacement: bool = False) -> object:
    """`torch.combinations`: the places in a cube of `r` dimensions whose coordinates rise."""
    if x.dim() != 1 or r < 1:
        return NotImplemented
    count, trace = x.shape[0], x._trace
    if r == 1:
        return torch.stack([x], 1)
    if r == 2:
        sides = [trace.unwrap(count)] * 2
        pairs = trace.call(aten.triu_indices.default, *sides, 0 if with_replacement else 1, device=x.device)
        places = [*trace.wrap(pairs).unbind()]
    else:
        if not count >= r:
            return NotImplemented
        axes = torch.meshgrid([torch.arange(count, device=x.device)] * r, indexing="ij")  # type: ignore[arg-type]
        rising = [a <= b if with_replacement else a < b for a, b in itertools.pairwise(axes)]
        mask = torch.stack(rising).all(0)
        total = math.prod(count + i if with_replacement else count - i for i in range(r)) // math.factorial(r)
        places = [*torch.nonzero_static(mask, size=total).unbind(1)]
    return torch.stack([x[place] for place in places], 1)


# ---- derivatives -----------------------------------------------------------------------------------------------------


def cumprod_backward(grad: Tensor, x: Tensor, dim: int, output: Tensor) -> object:
    """The derivative of `torch.cumprod`. In front of the first zero of a row it is what follows, divided by the
    element; at the zero, the same of products without it; behind it, 0."""
    if x.dim() == 0 or x.is_complex():
        return NotImplemented

    def rest(values: Tensor) -> Tensor:
        return values.flip(dim).cumsum(dim).flip(dim)

    zero = x == 0
    zeros = zero.cumsum(dim)
    before, first = zeros == 0, (zeros == 1) & zero
    others = x.masked_fill(first, 1).cumprod(dim)
    at_first = rest(torch.where(zeros == 1, grad * others, 0))
    return torch.where(before, rest(grad * output) / x.masked_fill(zero, 1), torch.where(first, at_first, 0))


def masked_select_backward(grad: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """The derivative of `torch.masked_select`, of the shape that both are broadcast to."""
    return grad.new_zeros(broadcast_shapes([x.shape, mask.shape])).masked_scatter(mask, grad)


def conv_tbc_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives of `torch.conv_tbc`: those of `conv1d`, with time first."""
    images = grad.permute(1, 2, 0), x.permute(1, 2, 0), weight.permute(2, 1, 0)
    options = [weight.shape[2]], [1], [pad], [1], False, [0], 1, [True, True, True]
    to_x, to_weight, to_bias = aten.convolution_backward.default(*images, *options)
    return to_x.permute(2, 0, 1), to_weight.permute(2, 1, 0), to_bias


def convolution_double_backward(
    to_x: Tensor | None,
    to_weight: Tensor | None,
    to_bias: Tensor | None,
    grad: Tensor,
    weight: Tensor,
    x: Tensor,
    *options: object,
) -> object:
    """The derivatives of `convolution_backward`, given tangents of what it gives: those of `grad`, `x` and `weight`. A
    convolution is linear in its input, and in its weight."""
    *options, wanted = options  # type: ignore[assignment]
    if x.is_complex():
        return NotImplemented
    results = [torch.zeros_like(each) if is_wanted else None for each, is_wanted in zip((grad, x, weight), wanted)]  # type: ignore[call-overload]
    terms = []
    if to_x is not None:
        terms.append(aten.convolution.default(to_x, weight, None, *options))
        results[2] = aten.convolution_backward.default(grad, to_x, weight, None, *options, [False, True, False])[1]
    if to_weight is not None:
        terms.append(aten.convolution.default(x, to_weight, None, *options))
        results[1] = aten.convolution_backward.default(grad, x, to_weight, None, *options, [True, False, False])[0]
    if to_bias is not None:
        terms.append(to_bias.reshape(1, -1, *[1] * (grad.dim() - 2)).expand_as(grad))
    if terms:
        results[0] = sum(terms[1:], terms[0])
    return tuple(results)


FORMULAS: dict[OpOverload, Callable[..., object]] = {
    aten.cov.default: cov,
    aten.kron.default: kron,
    aten.linalg_multi_dot.default: multi_dot,
    aten.chain_matmul.default: multi_dot,
    aten.gradient.scalarint: gradient,
    aten.gradient.scalararray: gradient,
    aten.gradient.array: gradient,
    aten.gradient.scalarrayint: gradient,
    aten.gradient.scalarrayarray: gradient,
    aten.gradient.tensorarrayint: coordinate_gradient,
    aten.gradient.tensorarray: coordinate_gradient,
    aten.combinations.default: combinations,
    aten.cumprod_backward.default: cumprod_backward,
    aten.masked_select_backward.default: masked_select_backward,
    aten.conv_tbc_backward.default: conv_tbc_backward,
    aten._convolution_double_backward.default: convolution_double_backward,
}
