"""Values that are known while recording: what is computed from constants of the program alone, how a random number
compares with one out of its range, and, where the program cannot go on without, what is computed from small inputs that
whoever records promises to be the same in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from bolide.symbolic import hint_of
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
