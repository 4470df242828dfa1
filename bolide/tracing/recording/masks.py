"""Masks of attention that hide nothing, or what is behind each query.

Programs that are captured write masks where eager needs none (transformers asks whether it is traced): each key may be
seen, or each that is not behind its query. That follows from how elements are computed of their places. Without a mask
kernels are faster, and none stores the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from bolide.symbolic import Size, same_size, same_sizes
from bolide.tracing.meta import TensorMeta
from bolide.tracing.recording.folding import DEEPEST, Constants, Node, known_value
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Numbers(NamedTuple):
    """An element is its coordinates times the `steps`, plus something between `low` and `high`. A truth is 0 or 1."""

    steps: tuple[int, ...]
    low: float
    high: float


class Below(NamedTuple):
    """An element is true where its coordinates times the `steps`, plus `offset`, are at most 0."""

    steps: tuple[int, ...]
    offset: float


Form = Numbers | Below
_Look = Callable[[object], Form | None]
_Rule = Callable[..., Form | None]
_RULES: dict[object, _Rule] = {}
"""By operator: what is known of a node's result. Takes what says it of the arguments, the node, and these."""


def without_mask(
    constants: Constants, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of `scaled_dot_product_attention`, without a mask that hides nothing, or all behind each query."""
    given = dict(zip(_ARGUMENTS, args)) | kwargs
    query, key, mask = (given.get(name) for name in ("query", "key", "attn_mask"))
    if not (isinstance(query, TracedTensor) and isinstance(key, TracedTensor) and isinstance(mask, TracedTensor)):
        return args, kwargs
    if given.get("is_causal") or (kind := _kind_of(constants, query, key, mask)) is None:
        return args, kwargs
    return (), given | {"attn_mask": None, "is_causal": kind == "causal"}


def _kind_of(
    constants: Constants, query: TracedTensor, key: TracedTensor, mask: TracedTensor
) -> Literal["all", "causal"] | None:
    """Whether a mask lets each query see all keys, or all up to its own place; None if that is not known."""
    if mask.requires_grad or not 2 <= mask.dim() <= query.dim() == 4 or mask.dtype not in (torch.bool, query.dtype):
        return None
    whole: tuple[Size, ...] = (*query.shape[:-1], key.shape[-2])
    own = tuple(mask.shape)
    fits = [same_size(*sizes) for sizes in zip(reversed(own), reversed(whole))]
    if any(_is(0, size) for size in whole) or not all(fit or _is(1, n) for fit, n in zip(fits, reversed(own))):
        return None
    if mask.device != query.device:  # which eager refuses
        return None
    if mask.dtype is not torch.bool:
        return "all" if _is_zero(constants, mask.node) else None
    form = form_of(constants, mask.node)
    if isinstance(form, Numbers):
        return "all" if _bounds(form, own)[0] > 0 else None
    causal = form == Below((*(0,) * (len(own) - 2), -1, 1), 0) and fits[0] and fits[1] and same_size(*whole[-2:])
    return "causal" if causal else None


def _is_zero(constants: Constants, node: object) -> bool:
    """Whether all that is added to the scores is 0."""
    while isinstance(node, Node):
        if node.target is aten.full.default:
            return bool(node.args[1] == 0)
        if node.target is aten.where.self and _is_true(form_of(constants, node.args[0])):
            node = node.args[1]
        elif node.target in (aten.clone.default, aten.expand.default, aten.unsqueeze.default, aten._to_copy.default):
            node = node.args[0]
        else:
            return False
    return False


def form_of(constants: Constants, value: object, depth: int = DEEPEST) -> Form | None:
    """What is known of a number or a node of a graph."""
    if isinstance(value, int):
        return Numbers((), value, value)
    meta = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(value, Node) or not isinstance(meta, TensorMeta) or not depth:
        return None
    if meta.dtype is not torch.bool and meta.dtype is not torch.int64:  # others may overflow
        return None
    if "form" not in value.meta:
        rule, form = _RULES.get(value.target), None
        if rule is not None:
            form = rule(lambda x: form_of(constants, x, depth - 1), value, *value.args)
        value.meta["form"] = _of_data(constants, value) if form is None else _normal(form, meta.shape)
    known: Form | None = value.meta["form"]
    return known


def _of_data(constants: Constants, node: Node) -> Form | None:
    """The bounds of what is computed from constants."""
    data = known_value(constants, node)
    if data is None or not data.numel():
        return None
    with torch._C._DisableTorchDispatch():
        low, high = (int(bound) for bound in data.long().aminmax())
    return Numbers((0,) * data.dim(), low, high)


def _normal(form: Form, shape: Sequence[Size]) -> Form:
    """As many steps as dimensions, and none along those of size 1."""
    steps = (*(0,) * (len(shape) - len(form.steps)), *form.steps)
    return form._replace(steps=tuple([0 if _is(1, size) else step for step, size in zip(steps, shape)]))


def _is(number: int, size: Size) -> bool:
    return type(size) is int and size == number


def _bounds(form: Numbers, shape: Sequence[Size]) -> tuple[float, float]:
    """The least and the largest element; a symbolic size has no bound."""
    low, high = form.low, form.high
    for step, size in zip(form.steps, shape):
        last = step * (size - 1 if type(size) is int else math.inf) if step else 0
        low, high = low + min(last, 0), high + max(last, 0)
    return low, high


def _constant(node: Node, low: float, high: float) -> Numbers:
    return Numbers((0,) * node.meta["val"].ndim, low, high)


def _is_true(form: Form | None) -> bool:
    return isinstance(form, Numbers) and form.low == form.high == 1 and not any(form.steps)


def _rule(*ops: object) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


@_rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(look: _Look, node: Node, *args: object) -> Form | None:
    start, step = (0, 1) if len(args) == 1 else (args[0], (*args, 1)[2])
    return Numbers((step,), start, start) if isinstance(start, int) and isinstance(step, int) else None


@_rule(aten.full.default)
def _full(look: _Look, node: Node, shape: object, value: object) -> Form | None:
    if node.meta["val"].dtype is torch.bool:
        value = bool(value)
    return _constant(node, value, value) if isinstance(value, int) else None


@_rule(aten.clone.default, aten.detach.default, aten.alias.default, aten.expand.default)
def _same(look: _Look, node: Node, x: Node, *_: object) -> Form | None:
    return look(x)


@_rule(aten._to_copy.default)
def _converted(look: _Look, node: Node, x: Node) -> Form | None:
    """To a type that holds the same numbers."""
    return look(x) if node.meta["val"].dtype in (torch.int64, x.meta["val"].dtype) else None


@_rule(aten.unsqueeze.default)
def _unsqueezed(look: _Look, node: Node, x: Node, dim: int) -> Form | None:
    form = look(x)
    if form is None:
        return None
    at = dim % (len(form.steps) + 1)
    return form._replace(steps=(*form.steps[:at], 0, *form.steps[at:]))


@_rule(aten.add.Tensor, aten.add.Scalar)
def _added(look: _Look, node: Node, x: object, y: object) -> Form | None:
    whole = node.meta["val"].dtype is torch.int64 and not node.kwargs
    return _sum(look(x), look(y), 1) if whole else None


@_rule(aten.sub.Tensor, aten.sub.Scalar)
def _subtracted(look: _Look, node: Node, x: object, y: object) -> Form | None:
    return None if node.kwargs else _sum(look(x), look(y), -1)


def _sum(x: Form | None, y: Form | None, sign: int) -> Numbers | None:
    if not isinstance(x, Numbers) or not isinstance(y, Numbers):
        return None
    rank = max(len(x.steps), len(y.steps))
    mine, theirs = ((*(0,) * (rank - len(form.steps)), *form.steps) for form in (x, y))
    low, high = sorted((sign * y.low, sign * y.high))
    return Numbers(tuple([a + sign * b for a, b in zip(mine, theirs)]), x.low + low, x.high + high)


@_rule(aten.view.default, aten._unsafe_view.default)
def _viewed(look: _Look, node: Node, x: Node, _: object) -> Form | None:
    """Of the same sizes but for those that are 1."""
    form, before, after = look(x), x.meta["val"].shape, node.meta["val"].shape
    longer = [[size for size in shape if not _is(1, size)] for shape in (before, after)]
    if form is None or not same_sizes(*longer):
        return None
    steps = iter([step for step, size in zip(form.steps, before) if not _is(1, size)])
    return form._replace(steps=tuple([0 if _is(1, size) else next(steps) for size in after]))


@_rule(aten.index.Tensor)
def _taken(look: _Look, node: Node, x: Node, indices: Sequence[object]) -> Form | None:
    """Where places are known, what is there; else what is anywhere."""
    form = look(x)
    if not isinstance(form, Numbers):
        return None
    found: Numbers | None = Numbers((), form.low, form.high)
    for step, index in zip(form.steps, indices):
        if step or not isinstance(index, Node):
            found = _sum(found, _times(step, _place(look, index)), 1)
    known = found is not None and len(indices) == len(form.steps)
    return found if known else _constant(node, *_bounds(form, x.meta["val"].shape))


def _place(look: _Look, index: object) -> Numbers | None:
    """An index that does not count from the end."""
    form = look(index)
    if not isinstance(form, Numbers) or not isinstance(index, Node):
        return None
    return form if _bounds(form, index.meta["val"].shape)[0] >= 0 else None


def _times(factor: int, form: Numbers | None) -> Numbers | None:
    if form is None:
        return None
    low, high = sorted((factor * form.low, factor * form.high))
    return Numbers(tuple([factor * step for step in form.steps]), low, high)


@_rule(aten.bitwise_and.Tensor, aten.logical_and.default)
def _both(look: _Look, node: Node, x: object, y: object) -> Form | None:
    first, second = look(x), look(y)
    if node.meta["val"].dtype is not torch.bool or first is None or second is None:
        return None
    if _is_true(second) or _normal(first, node.meta["val"].shape) == _normal(second, node.meta["val"].shape):
        return first
    return second if _is_true(first) else None


@_rule(aten.tril.default)
def _lower(look: _Look, node: Node, x: Node, diagonal: object = 0) -> Form | None:
    if not _is_true(look(x)) or not isinstance(diagonal, int) or node.meta["val"].dtype is not torch.bool:
        return None
    return Below((*(0,) * (node.meta["val"].ndim - 2), -1, 1), -diagonal)


def _comparison(sign: int, more: int) -> _Rule:
    """One that holds where `sign` times the difference, plus `more`, is at most 0."""

    def rule(look: _Look, node: Node, x: object, y: object) -> Form | None:
        first, second = (look(x), look(y))[::sign]
        difference = _sum(first, second, -1)
        if difference is None:
            return None
        low, high = _bounds(difference, node.meta["val"].shape[node.meta["val"].ndim - len(difference.steps) :])
        if high + more <= 0 or low + more > 0:
            return _constant(node, low + more <= 0, low + more <= 0)
        return Below(difference.steps, difference.low + more) if difference.low == difference.high else None

    return rule


for _name, _sign, _more in (("le", 1, 0), ("lt", 1, 1), ("ge", -1, 0), ("gt", -1, 1)):
    _rule(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_sign, _more))


@_rule(aten.eq.Tensor, aten.eq.Scalar)
def _equal(look: _Look, node: Node, x: object, y: object) -> Form | None:
    difference = _sum(look(x), look(y), -1)
    same = difference is not None and difference.low == difference.high == 0 and not any(difference.steps)
    return _constant(node, 1, 1) if same else None
