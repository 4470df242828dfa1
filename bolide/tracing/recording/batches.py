"""Batching rules of `torch.vmap` for operations whose rules in C++ ask for the values of sizes.

A rule is given the number of items and what the operation is given, tensors as `Item`s. It answers the results, with
the dimension of the batch in front. NotImplemented: the rule in C++ is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from bolide.symbolic import Size
from bolide.tracing.rules.common import wrap_dim
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
_functorch = torch._C._functorch
_BATCHED = DispatchKey.FuncTorchBatched


class Item:
    """A tensor of a batch: `value` has the dimension of the batch in front if `varies`."""

    def __init__(self, value: Tensor, level: int) -> None:
        value, place = _functorch._unwrap_batched(value, level)
        self.varies = place is not None
        self.value = value.movedim(place, 0) if place else value
        self.dim = value.dim() - self.varies

    def whole(self, size: Size) -> Tensor:
        """With the dimension of the batch in front, whether it varies or not."""
        return self.value if self.varies else self.value.expand(size, *self.value.shape)


def _along(size: Size, x: Item, dim: int, *others: Item) -> tuple[Tensor, int, list[Tensor]] | None:
    """Operands of an operation along a dimension; None for tensors without dimensions."""
    if not all(item.dim == x.dim for item in others) or not x.dim:
        return None
    return x.whole(size), wrap_dim(dim, x.dim) + 1, [item.whole(size) for item in others]


def _gather(size: Size, x: Item, dim: int, index: Item, *, sparse_grad: bool = False) -> object:
    operands = _along(size, x, dim, index)
    if operands is None:
        return NotImplemented
    whole, place, (places,) = operands
    return whole.gather(place, places)


def _scatter(op: OpOverload) -> Callable[..., object]:
    def rule(size: Size, x: Item, dim: int, index: Item, source: Item | float) -> object:
        others = [index, source] if isinstance(source, Item) else [index]
        operands = _along(size, x, dim, *others)
        if operands is None:
            return NotImplemented
        whole, place, (places, *values) = operands
        return op(whole, place, places, values[0] if values else source)

    return rule


def _spread(places: Tensor, dim: int, shape: torch.Size) -> Tensor:
    """The places along a dimension, of all items, for every element of a shape."""
    line = [1] * len(shape)
    line[0], line[dim] = places.shape
    sizes = [*shape]
    sizes[dim] = places.shape[1]
    return places.reshape(line).expand(sizes)


def _index_select(size: Size, x: Item, dim: int, index: Item) -> object:
    if not x.dim or index.dim != 1:
        return NotImplemented
    place = wrap_dim(dim, x.dim) + 1
    if not index.varies:
        return x.whole(size).index_select(place, index.value)
    whole = x.whole(size)
    return whole.gather(place, _spread(index.value, place, whole.shape).to(torch.int64))


def _index_add(size: Size, x: Item, dim: int, index: Item, source: Item, *, alpha: float = 1) -> object:
    if not x.dim or index.dim != 1 or source.dim != x.dim:
        return NotImplemented
    place, whole, values = wrap_dim(dim, x.dim) + 1, x.whole(size), source.whole(size)
    if not index.varies:
        return whole.index_add(place, index.value, values, alpha=alpha)
    places = _spread(index.value, place, whole.shape).to(torch.int64)
    return whole.scatter_add(place, places, values if alpha == 1 else values * alpha)


def _rows(size: Size, indices: Item, count: Size) -> Tensor:
    """Rows of a table for each item, in the table of all of them."""
    places = indices.whole(size)
    first = torch.arange(size, device=places.device).mul(count)  # type: ignore[arg-type]
    return places + first.view(-1, *[1] * indices.dim)


def _embedding(size: Size, weight: Item, indices: Item, *options: object) -> object:
    if not weight.varies:
        return aten.embedding.default(weight.value, indices.value, *options)
    if indices.varies:
        return weight.value.flatten(0, 1)[_rows(size, indices, weight.value.shape[1])]
    wide = aten.embedding.default(weight.value.movedim(0, 1).flatten(1, 2), indices.value, *options)
    return wide.unflatten(-1, (size, weight.value.shape[2])).movedim(-2, 0)  # laid out as by the rule in C++


def _embedding_backward(size: Size, grad: Item, indices: Item, count: Size, padding: int, scaled: bool) -> object:
    if not indices.varies:
        wide = grad.value.movedim(0, -2).flatten(-2)
        table = aten.embedding_dense_backward.default(wide, indices.value, count, padding, scaled)
        return table.unflatten(-1, (size, grad.value.shape[-1])).movedim(-2, 0)  # laid out as by the rule in C++
    if scaled:
        return NotImplemented
    values = grad.whole(size)
    if padding >= 0:
        values = values.masked_fill((indices.whole(size) == padding).unsqueeze(-1), 0)
    rows = _rows(size, indices, count)
    return aten.embedding_dense_backward.default(values, rows, count * size, -1, False).unflatten(0, (size, count))


def _cat(size: Size, tensors: list[Item], dim: int = 0) -> object:
    if any(item.dim != tensors[0].dim or not item.dim for item in tensors):
        return NotImplemented  # among them empty ones, that are left out
    return torch.cat([item.whole(size) for item in tensors], wrap_dim(dim, tensors[0].dim) + 1)


def _part_backward(op: OpOverload) -> Callable[..., object]:
    """The rule of the derivative of a part of a tensor along a dimension."""

    def rule(size: Size, grad: Item, sizes: list[Size], dim: int, *place: Size) -> object:
        return op(grad.whole(size), [size, *sizes], wrap_dim(dim, len(sizes)) + 1, *place)

    return rule


def _of_rows(size: Size, value: Item | None, dims: int) -> Tensor | None:
    """What a row of each item, of a tensor of so many dimensions, is multiplied with, or added to."""
    if value is None:
        return None
    whole = value.whole(size)
    return whole.view(size, *[1] * (dims - value.dim), *whole.shape[1:])


def _weighed(
    grad: Tensor, weight: Item | None, spread: Callable[[Item], Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """The gradient of what a weight of each item multiplies, and the weight that is left: one that all items share."""
    if weight is None or not weight.varies:
        return grad, None if weight is None else weight.value
    return grad * spread(weight), None  # type: ignore[operator]


def _layer_norm(size: Size, x: Item, shape: list[int], weight: Item | None, bias: Item | None, eps: float) -> object:
    if not any(item is not None and item.varies for item in (weight, bias)):
        scale, shift = (None if item is None else item.value for item in (weight, bias))
        return aten.native_layer_norm.default(x.value, shape, scale, shift, eps)
    out, mean, rstd = aten.native_layer_norm.default(x.whole(size), shape, None, None, eps)
    scale, shift = (_of_rows(size, item, x.dim) for item in (weight, bias))
    out = out if scale is None else out * scale
    return out if shift is None else out + shift, mean, rstd


def _layer_norm_backward(
    size: Size,
    grad: Item,
    x: Item,
    shape: list[int],
    mean: Item,
    rstd: Item,
    weight: Item | None,
    bias: Item | None,
    mask: list[bool],
) -> object:
    """Gradients of weights are those of each item."""
    g, value, middle, scale = (item.whole(size) for item in (grad, x, mean, rstd))
    to_x = None
    if mask[0]:
        scaled, shared = _weighed(g, weight, lambda own: _of_rows(size, own, x.dim))
        wanted = [True, False, False]
        to_x = aten.native_layer_norm_backward.default(scaled, value, shape, middle, scale, shared, None, wanted)[0]
    rows = list(range(1, value.dim() - len(shape)))

    def added(each: Tensor) -> Tensor:
        return each.sum(rows) if rows else each

    return to_x, added(g * (value - middle) * scale) if mask[1] else None, added(g) if mask[2] else None


def _of_channels(size: Size, value: Item, dims: int) -> Tensor:
    """A number for each channel of each item, which is a tensor of so many dimensions."""
    return value.whole(size).view(size, 1, -1, *[1] * (dims - 2))


def _group_norm(
    size: Size, x: Item, weight: Item | None, bias: Item | None, count: Size, channels: Size, *options: object
) -> object:
    varies = any(item is not None and item.varies for item in (weight, bias))
    shared = [None if item is None or varies else item.value for item in (weight, bias)]
    images = x.whole(size).flatten(0, 1)
    results = aten.native_group_norm.default(images, *shared, size * count, channels, *options)
    out, mean, rstd = (each.view(size, count, *each.shape[1:]) for each in results)
    if varies and weight is not None:
        out = out * _of_channels(size, weight, x.dim)
    return out + _of_channels(size, bias, x.dim) if varies and bias is not None else out, mean, rstd


def _group_norm_backward(
    size: Size,
    grad: Item,
    x: Item,
    mean: Item,
    rstd: Item,
    weight: Item | None,
    count: Size,
    channels: Size,
    length: Size,
    groups: int,
    mask: list[bool],
) -> object:
    """Gradients of weights are those of each item."""
    g, value, middle, scale = (item.whole(size) for item in (grad, x, mean, rstd))
    to_x = None
    if mask[0]:
        scaled, shared = _weighed(g, weight, lambda own: _of_channels(size, own, x.dim))
        given = [each.flatten(0, 1) for each in (scaled, value, middle, scale)]
        numbers = (size * count, channels, length, groups, [True, False, False])
        to_x = aten.native_group_norm_backward.default(*given, shared, *numbers)[0].view(value.shape)
    rest = [1, *range(3, value.dim())]
    normal = (value.reshape(*middle.shape, -1) - middle.unsqueeze(-1)) * scale.unsqueeze(-1)
    products = g * normal.reshape(value.shape)
    return to_x, products.sum(rest) if mask[1] else None, g.sum(rest) if mask[2] else None


def _folded(size: Size, x: Item) -> Tensor:
    """A batch of items of images, as images with the channels of all items."""
    return x.whole(size).movedim(0, 1).flatten(1, 2)


def _unfolded(size: Size, images: Tensor) -> Tensor:
    return images.unflatten(1, (size, -1)).movedim(1, 0)  # type: ignore[no-any-return, no-untyped-call]


def _channels(size: Size, value: Item | None) -> Tensor | None:
    """The numbers of the channels of all items."""
    return None if value is None else value.whole(size).flatten()


def _batch_norm(
    size: Size,
    x: Item,
    weight: Item | None,
    bias: Item | None,
    mean: Item | None,
    variance: Item | None,
    train: bool,
    *options: float,
) -> object:
    if x.dim < 2 or (train and (mean is not None or variance is not None)):
        return NotImplemented  # these are written
    numbers = [_channels(size, item) for item in (weight, bias, mean, variance)]
    out, *saved = aten.native_batch_norm.default(_folded(size, x), *numbers, train, *options)
    return _unfolded(size, out), *[each.view(size, -1) if each.numel() else each.new_empty(size, 0) for each in saved]


def _batch_norm_backward(
    size: Size,
    grad: Item,
    x: Item,
    weight: Item | None,
    mean: Item | None,
    variance: Item | None,
    saved_mean: Item | None,
    saved_scale: Item | None,
    train: bool,
    eps: float,
    mask: list[bool],
) -> object:
    numbers = [_channels(size, item) for item in (weight, mean, variance, saved_mean, saved_scale)]
    images = _folded(size, grad), _folded(size, x)
    to_x, *rest = aten.native_batch_norm_backward.default(*images, *numbers, train, eps, mask)
    return None if to_x is None else _unfolded(size, to_x), *[
        None if each is None else each.view(size, -1) for each in rest
    ]


def _of_images(op: OpOverload, *places: int, alone: int = 3) -> Callable[..., object]:
    """The rule of an operation on images, which are the arguments at `places`: all of them are one batch. With so many
    dimensions as `alone` an item is one image."""

    def rule(size: Size, *args: object) -> object:
        items = {place: arg for place, arg in enumerate(args) if isinstance(arg, Item)}
        if any(item.varies for place, item in items.items() if place not in places):
            return NotImplemented
        dims = {items[place].dim for place in places}
        if len(dims) > 1:
            return NotImplemented
        single = dims == {alone}
        given = [items[place].value if place in items else arg for place, arg in enumerate(args)]
        for place in places:
            whole = items[place].whole(size)
            given[place] = whole if single else whole.flatten(0, 1)
        results = op(*given)
        return results if single else tree_map_only(Tensor, lambda each: each.unflatten(0, (size, -1)), results)

    return rule


def _convolution_backward(
    size: Size,
    grad: Item,
    x: Item,
    weight: Item,
    biases: object,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    out: list[int],
    groups: int,
    mask: list[bool],
) -> object:
    """Gradients of weights are those of each item: products with what each window sees."""
    if weight.varies or grad.dim not in (3, 4) or transposed:
        return NotImplemented
    g, images, kernel = grad.whole(size).flatten(0, 1), x.whole(size).flatten(0, 1), weight.value
    options = (stride, padding, dilation, False, out, groups, [True, False, False])
    to_x = aten.convolution_backward.default(g, images, kernel, None, *options)[0] if mask[0] else None
    to_weight, to_bias = None, g.flatten(2).sum(2).view(size, -1, g.shape[1]).sum(1) if mask[2] else None
    if mask[1]:
        line = [1] * (4 - images.dim())  # of signals, which are images of one row
        seen, shape = images.view(*images.shape[:2], *line, *images.shape[2:]), [*line, *kernel.shape[2:]]
        windows = aten.im2col.default(seen, shape, [*line, *dilation], [*([0] * len(line)), *padding], [*line, *stride])
        ours, theirs = (each.unflatten(1, (groups, -1)) for each in (g.flatten(2), windows))
        products = (ours @ theirs.mT).unflatten(0, (size, -1)).sum(1)
        to_weight = products.view(size, *kernel.shape)
    return None if to_x is None else to_x.unflatten(0, (size, -1)), to_weight, to_bias


_ON_IMAGES = {
    aten.max_pool2d_with_indices.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0, 1, 7),
    aten.avg_pool2d.default: (0,),
    aten.avg_pool2d_backward.default: (0, 1),
    aten._adaptive_avg_pool2d.default: (0,),
    aten._adaptive_avg_pool2d_backward.default: (0, 1),
}
_RULES: dict[OpOverload, Callable[..., object]] = {
    aten.gather.default: _gather,
    aten.index_select.default: _index_select,
    aten.index_add.default: _index_add,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.cat.default: _cat,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.convolution.default: _of_images(aten.convolution.default, 0, alone=0),
    aten.convolution_backward.default: _convolution_backward,
    **{op: _of_images(op, *places) for op, places in _ON_IMAGES.items()},
    **{op: _part_backward(op) for op in (aten.slice_backward.default, aten.select_backward.default)},
    **{op: _scatter(op) for op in (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)},
}


def kernels() -> dict[OpOverload, Callable[..., object]]:
    """The batching rules, as kernels of the dispatcher for tensors of a batch."""
    return {op: _kernel(op, rule) for op, rule in _RULES.items()}


def _kernel(op: OpOverload, rule: Callable[..., object]) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        level = _functorch.maybe_current_level()
        assert level is not None
        items: list[Item] = []

        def item(value: object) -> object:
            if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
                return [item(each) for each in value]
            if not isinstance(value, Tensor):
                return value
            items.append(Item(value, level))
            return items[-1]

        given, named = [item(arg) for arg in args], {name: item(arg) for name, arg in kwargs.items()}
        batch = next((each.value for each in items if each.varies), None)
        if batch is None or not _is_traced(batch):
            return op._op_dk(_BATCHED, *args, **kwargs)
        result = rule(batch.shape[0], *given, **named)
        if result is NotImplemented:
            return op._op_dk(_BATCHED, *args, **kwargs)
        return tree_map_only(Tensor, lambda each: _functorch._add_batch_dim(each, 0, level), result)

    return kernel


def _is_traced(value: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return isinstance(value, TracedTensor)
