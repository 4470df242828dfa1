"""Values that are known while recording: what is computed from constants of the program alone, how a random number
compares with one out of its range, which keys a mask of attention hides, and, where the program cannot go on without,
what is computed from small inputs that whoever records promises to be the same in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.fx

from bolide.symbolic import Size, hint_of, same_size, same_sizes
from bolide.tracing import rng
from bolide.tracing.graph import behind
from bolide.tracing.meta import TensorMeta
from bolide.tracing.tensor import Listener, TracedTensor
from bolide.tracing.traits import traits_of

Node = torch.fx.Node

LARGEST = 1 << 20  # elements of a value worth computing
DEEPEST = 100  # operations behind one another
_UNKNOWN: Any = object()

aten = torch.ops.aten
# Comparisons of a number in [0, 1) with one below and with one above that range: whether it is below, and what follows.
_BELOW: dict[object, tuple[Callable[[float], bool], bool]] = {
    aten.lt.Scalar: (lambda number: number <= 0, False),
    aten.ge.Scalar: (lambda number: number <= 0, True),
    aten.le.Scalar: (lambda number: number < 0, False),
    aten.gt.Scalar: (lambda number: number < 0, True),
}


Constants = Mapping[str, torch.Tensor]


def known_tensor(constants: Constants, tensor: torch.Tensor) -> torch.Tensor | None:
    """The data of a traced tensor if no later call can change them, else None. Must not be changed."""
    return known_value(constants, tensor.node) if tensor.__class__ is TracedTensor else None


def known_value(constants: Constants, node: Node) -> torch.Tensor | None:
    """As `known_tensor`, of a node."""
    value = _known(constants, node, DEEPEST)
    return None if value is _UNKNOWN else value


def read_tensor(constants: Constants, listener: Listener, tensor: torch.Tensor) -> torch.Tensor | None:
    """As `known_tensor`, or computed from inputs whose data `listener` gives and is asked to guard."""
    known = known_tensor(constants, tensor)
    if known is not None or tensor.__class__ is not TracedTensor:
        return known
    given = [(node, listener.data_of(node.meta["place"])) for node in _inputs_behind(tensor.node) or ()]
    if not given or any(data is None for _, data in given):
        return None
    for node in tensor.node.graph.nodes:
        if node.meta.get("known") is _UNKNOWN:
            del node.meta["known"]
    for node, data in given:
        assert data is not None
        node.meta["known"], rely = data
        rely()
    return known_tensor(constants, tensor)


def present_tensor(constants: Constants, tensor: TracedTensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The data of a traced tensor in the present call, whose `inputs` these are; None where it cannot be computed
    twice. Nothing is known of it from then on."""
    needed = behind([tensor.node])
    values: dict[Node, Any] = {}
    for node in filter(needed.__contains__, tensor.node.graph.nodes):
        if node.op == "placeholder" and "place" in node.meta:
            values[node] = inputs[node.meta["place"]]
        elif node.op == "placeholder" and isinstance(node.meta["val"], torch.SymInt):
            values[node] = node.meta["val"].node.hint
        elif node.op == "get_attr":
            values[node] = constants[str(node.target)]
        elif node.op == "call_function" and _is_repeatable(node.target):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad(), torch._C._DisableAutocast():
                values[node] = node.target(*args, **kwargs)
        else:
            return None
    return values[tensor.node]  # type: ignore[no-any-return]


def _inputs_behind(node: Node) -> list[Node] | None:
    """The inputs that are not known yet and that a value is computed from; None if something else is behind it."""
    inputs, seen, waiting = [], {node}, [node]
    while waiting:
        node = waiting.pop()
        known = node.meta.get("known", _UNKNOWN)
        if known is not _UNKNOWN or (node.op == "get_attr" and node.meta.get("private")):
            continue
        if node.op == "placeholder" and "place" in node.meta:
            inputs.append(node)
        elif node.op == "call_function" and _is_repeatable(node.target) and _is_small(node.meta["val"]):
            following = [other for other in node.all_input_nodes if other not in seen]
            seen.update(following)
            waiting += following
        else:
            return None
    return inputs


def _known(constants: Constants, value: Any, depth: int) -> Any:
    """The real value of an argument in the graph, or _UNKNOWN."""
    if isinstance(value, (list, tuple)):
        parts = [_known(constants, part, depth) for part in value]
        return _UNKNOWN if any(part is _UNKNOWN for part in parts) else type(value)(parts)
    if value.__class__ is not Node:
        return value
    known = value.meta.get("known")
    if known is None:
        known = value.meta["known"] = _compute(constants, value, depth)
    return known


def _compute(constants: Constants, node: Node, depth: int) -> Any:
    if node.op == "get_attr":
        return constants[str(node.target)] if node.meta.get("private") else _UNKNOWN
    if node.target in _BELOW:
        certain = _certain_of_a_draw(node)
        if certain is not None:
            return certain
    if node.op != "call_function" or not depth or not _is_repeatable(node.target) or not _is_small(node.meta["val"]):
        return _UNKNOWN
    args = _known(constants, list(node.args), depth - 1)
    kwargs = [(key, _known(constants, value, depth - 1)) for key, value in node.kwargs.items()]
    if args is _UNKNOWN or any(value is _UNKNOWN for _, value in kwargs):
        return _UNKNOWN
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._DisableTorchDispatch():
        return node.target(*args, **dict(kwargs))  # type: ignore[operator]


def _certain_of_a_draw(node: Node) -> torch.Tensor | None:
    """A comparison of uniform random numbers whose result is the same for all of them, such as ``rand([]) < 0.0``:
    layers are dropped in training with a probability that is mostly 0."""
    draw, number = node.args
    if not (isinstance(draw, Node) and _is_below_one(draw)) or not isinstance(number, (int, float)):
        return None
    is_below, of_below = _BELOW[node.target]
    if not is_below(number) and not number >= 1:
        return None
    with torch._C._DisableTorchDispatch():
        return torch.full(node.meta["val"].shape, of_below is is_below(number))


def _is_below_one(draw: Node) -> bool:
    """Whether a node draws numbers in [0, 1)."""
    return draw.target is rng.rand or (draw.target is aten.uniform.default and draw.args[1:] == (0, 1))


def _is_repeatable(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", None) == "_operator"
    return target.namespace == "aten" and not traits_of(target).seeded


def _is_small(meta: object) -> bool:
    metas = meta if isinstance(meta, (tuple, list)) else [meta]
    return all(part.is_small(LARGEST) for part in metas if isinstance(part, TensorMeta))


# ---- questions about one input ---------------------------------------------------------------------------------------

_MOST_ELEMENTS, _MOST_STEPS = 1 << 16, 40  # of a value, and behind one another; each step costs about 2 µs a call


def question(node: Node, root: Node) -> torch.fx.Graph | None:
    """How a value is computed from an input of whole numbers alone, as a graph of that input, if that is little."""
    needed = behind([node])
    dtype = root.meta["val"].dtype
    if dtype.is_floating_point or dtype.is_complex or len(needed) > _MOST_STEPS or not all(map(_is_cheap, needed)):
        return None
    asked = torch.fx.Graph()
    copies = {root: asked.placeholder("tensor")}
    dims = {extent.node.expr: dim for dim, extent in enumerate(root.meta["val"].shape) if type(extent) is torch.SymInt}
    for each in node.graph.nodes:
        if each not in needed or each in copies:
            continue
        if each.op == "placeholder":
            extent = each.meta["val"]
            if type(extent) is not torch.SymInt or extent.node.expr not in dims:
                return None
            copies[each] = asked.call_method("size", (copies[root], dims[extent.node.expr]))
        elif each.op == "call_function" and _is_repeatable(each.target):
            copies[each] = asked.create_node(
                "call_function",
                each.target,
                torch.fx.map_arg(each.args, copies.__getitem__),
                torch.fx.map_arg(each.kwargs, copies.__getitem__),
            )
        else:
            return None
    asked.output(copies[node])
    return asked


def root_of(node: Node) -> Node | None:
    """The first input that is found behind a value."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if "place" in node.meta:
            return node
        new = [other for other in node.all_input_nodes if other not in seen]
        seen.update(new)
        waiting += new
    return None


def _is_cheap(node: Node) -> bool:
    """Whether what a node gives are few numbers on the CPU."""
    value = node.meta.get("val")
    if not isinstance(value, TensorMeta):
        return isinstance(value, torch.SymInt)
    return value.device.type == "cpu" and math.prod(map(hint_of, value.shape)) <= _MOST_ELEMENTS


# ---- masks of attention ----------------------------------------------------------------------------------------------
#
# Programs that are captured write masks where eager needs none (transformers asks whether it is traced): each key may
# be seen, or each that is not behind its query. That follows from how elements are computed of their places. Without a
# mask kernels are faster, and none stores the scores.

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
