"""What compiled results are compared with: whether two results agree; graphs node by node, as ATen and float64 compute
them, and the first node that a compiler computes otherwise; copies of everything that a call can reach, so that it can
be made once more without a trace.
"""

from __future__ import annotations

import copy
import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bolide.functorch.graphs import constants_of, output_node, placeholders
from bolide.tracing import TensorMeta
from bolide.tracing.graph import behind, evaluated, graph_module
from bolide.tracing.traits import traits_of

ROUNDING = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def _wide(value: Tensor) -> Tensor:
    value = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def errors(actual: Tensor, expected: Tensor) -> Tensor:
    """How far each element is off, in float64; what is equal, NaN included, is not; NaN for a number is infinitely."""
    ours, theirs = _wide(actual), _wide(expected)
    off = (ours - theirs).abs().nan_to_num(nan=float("inf"))
    return off.masked_fill((ours == theirs) | (ours.isnan() & theirs.isnan()), 0.0)


def close(actual: Tensor, expected: Tensor, rounding: float) -> Tensor:
    """Which elements are as near as rounding allows, of values as large as these."""
    size = _wide(expected).abs().nan_to_num(nan=0.0, posinf=0.0)
    mean = size.mean() if size.numel() else 0.0
    return errors(actual, expected) <= rounding * (size + mean)


def disagree(
    actual: object,
    expected: object,
    exact: Callable[[], object] = lambda: None,
    rounded: Callable[[], object] = lambda: None,
) -> bool:
    """Whether `actual` is another result than `expected`. `exact` gives the result of float64 (None: nobody knows): an
    element may be nearer to it than `expected`, or off by a few times as much as `expected` is, or as what `rounded`
    gives, for which every step before it was rounded otherwise: where terms cancel, rounding is all there is."""
    if not isinstance(actual, Tensor) or not isinstance(expected, Tensor):
        return isinstance(actual, Tensor) or isinstance(expected, Tensor) or bool(actual != expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return True
    rounding = ROUNDING.get(expected.dtype, 0.0)
    near = close(actual, expected, rounding)
    if near.all():
        return False
    true = exact()
    if not isinstance(true, Tensor) or true.shape != expected.shape:
        return True
    near |= close(actual, true, rounding) | (errors(actual, true) <= 16 * _typical(errors(expected, true)))
    if near.all():
        return False
    other = rounded()
    if not isinstance(other, Tensor) or other.shape != true.shape:
        return True
    return not bool((near | (errors(actual, true) <= 16 * _typical(errors(other, true)))).all())


def _typical(error: Tensor) -> Tensor:
    """The root of the mean square."""
    return error.clamp(max=1e150).square().mean().sqrt() if error.numel() else error.sum()


def most_different(actual: object, expected: object) -> tuple[tuple[int, ...], float, Any, Any]:
    """Where two tensors differ most, by how much, and what is expected and what is there; of what cannot be compared
    so, no place, NaN, and what they are.
    """
    if not isinstance(actual, Tensor) or not isinstance(expected, Tensor) or actual.shape != expected.shape:
        return (), float("nan"), _shown(expected), _shown(actual)
    off = errors(actual, expected)
    if not off.numel():
        return (), 0.0, _shown(expected), _shown(actual)
    worst = off.argmax()
    place = tuple([int(i) for i in torch.unravel_index(worst, off.shape)])
    return place, float(off[place]), expected[place].item(), actual[place].item()


def _shown(value: object) -> Any:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else value


# ---- calls made again ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomState:
    """Where torch's and Python's generators are."""

    torch: Tensor
    python: Any

    @classmethod
    def now(cls) -> RandomState:
        """As they are."""
        return cls(torch.get_rng_state(), random.getstate())

    def is_now(self) -> bool:
        """Whether nothing was drawn since."""
        return torch.equal(self.torch, torch.get_rng_state()) and self.python == random.getstate()

    def restore(self) -> None:
        """Puts them back."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)


def copied(values: Sequence[Any]) -> list[Any]:
    """The tensors among `values` over copies of their memory: with the same strides, and shared where it was."""
    memory: dict[int, Any] = {}

    def copy_of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if type(value) not in PLAIN or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.detach().clone()
        storage = value.untyped_storage()
        if storage.data_ptr() not in memory:
            memory[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
        kept = memory[storage.data_ptr()]
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(kept, value.storage_offset(), value.shape, value.stride())

    return [copy_of(value) for value in values]


PLAIN = (Tensor, nn.Parameter)


def tensors_in(value: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that a value holds, once, in a fixed order: in containers, modules and other objects."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType, str, int, float)):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, seen)
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_in(item, seen)


def gradients(outputs: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of all inputs, for tangents that are the same in every call; nothing is accumulated. None of them
    where there is no backward (it was done, a saved value was written)."""
    ends = [output for output in outputs if output.requires_grad]
    leaves = [value for value in inputs if value.requires_grad]
    if not ends or not leaves:
        return []
    generator = torch.Generator().manual_seed(0)
    tangents = [torch.randn(end.shape, generator=generator, dtype=torch.float32).to(end.dtype) for end in ends]
    try:
        return list(torch.autograd.grad(ends, leaves, tangents, retain_graph=True, allow_unused=True))
    except RuntimeError:
        return []


@dataclass
class Twin:
    """A function and its arguments, copied with all they hold. `originals` and `copies` are their tensors."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    originals: list[Tensor]
    copies: list[Tensor]

    @classmethod
    def of(
        cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: Any = None
    ) -> Twin | None:
        """A twin of a call, its floating-point tensors in `dtype`; None where something cannot be copied."""
        inner: Any = function.__func__ if isinstance(function, types.MethodType) else function
        owner: Any = function.__self__ if isinstance(function, types.MethodType) else None
        cells, names = _surroundings(inner)
        reach = (None if isinstance(inner, types.FunctionType) else inner, owner, args, kwargs, cells, names)
        try:
            originals = list(tensors_in(reach))
            copies = [_twin_of(value, dtype) for value in originals]
            memo: dict[int, Any] = {id(value): twin for value, twin in zip(originals, copies)}
            twins: Any = copy.deepcopy(reach, memo)
        except Exception:  # something in reach cannot be copied: a lock, a generator, a file
            return None
        target, owner, args, kwargs, cells, names = twins
        if isinstance(inner, types.FunctionType):
            target = types.FunctionType(
                inner.__code__,
                {**inner.__globals__, **names},
                inner.__name__,
                inner.__defaults__,
                tuple(types.CellType(cell) for cell in cells) if inner.__closure__ is not None else None,
            )
            target.__kwdefaults__ = inner.__kwdefaults__
        return cls(types.MethodType(target, owner) if owner is not None else target, args, kwargs, originals, copies)

    def call(self) -> Any:
        """Makes the call."""
        return self.function(*self.args, **self.kwargs)

    def everything(self, before: RandomState) -> list[Any]:
        """The tensors of the result, those in reach, and the gradients, or nothing where the call fails."""
        before.restore()
        try:
            results = list(tensors_in(self.call()))
            return [*results, *self.copies, *gradients(results, self.copies)]
        except Exception:  # a program that insists on smaller numbers somewhere
            return []


def _surroundings(function: object) -> tuple[list[Any], dict[str, Any]]:
    """What a function closes over, and the globals that it names."""
    if not isinstance(function, types.FunctionType):
        return [], {}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return cells, {name: value for name, value in named.items() if not isinstance(value, types.ModuleType)}


def _twin_of(value: Tensor, dtype: Any) -> Tensor:
    twin: Tensor = copied([value])[0]
    if dtype is not None and value.is_floating_point():
        twin = twin.to(dtype)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(twin, value.requires_grad)
    return twin.requires_grad_(value.requires_grad)


# ---- graphs node by node ---------------------------------------------------------------------------------------------


Probe = Callable[[list[fx.Node]], list[Any]]
SMALLER = (torch.float32, torch.float16, torch.bfloat16)


def writes(graph: fx.GraphModule) -> list[tuple[int, fx.Node]]:
    """Which inputs the graph writes to, by position, with the nodes that do it."""
    slots = {node: place for place, node in enumerate(placeholders(graph.graph))}
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return [(slots[node.args[0]], node) for node in copies if node.args[0] in slots]


def with_results(graph: fx.GraphModule, values: Sequence[Any], keep: bool = False) -> fx.GraphModule:
    """A copy of the graph that gives `values`; without what they do not need, unless `keep`."""
    taken = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            nodes[node] = taken.node_copy(node, nodes.__getitem__)
    output = taken.output(tuple(nodes[value] if isinstance(value, fx.Node) else value for value in values))
    output.meta.update(output_node(graph.graph).meta)
    if not keep:
        taken.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return graph_module(taken, constants_of(graph), type(graph).__name__)


def operation_of(node: fx.Node) -> str:
    """The operation of a node, by name."""
    return str(node.target) if node.op == "call_function" else f"{node.op} {node.name}"


def evaluate(graph: fx.GraphModule, inputs: Sequence[object]) -> dict[fx.Node, Any]:
    """What ATen computes for every node."""
    return evaluated(graph, inputs, lambda node, args, kwargs: node.target(*args, **kwargs))  # type: ignore[operator]


def doubled(value: object) -> Any:
    """A tensor, or a dtype, of the smaller floating-point numbers as float64; anything else as it is."""
    if isinstance(value, Tensor) and value.dtype in SMALLER:
        return value.double()
    return torch.float64 if value in SMALLER else value


class Exactly:
    """What the graph computes in float64, computed when first asked for. Random numbers are those of `expected`, and
    so is what cannot be computed in float64."""

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any], expected: dict[fx.Node, Any]) -> None:
        self._graph, self._inputs, self.expected = graph, inputs, expected

    @functools.cached_property
    def _values(self) -> dict[fx.Node, Any]:
        return evaluated(self._graph, [doubled(value) for value in copied(self._inputs)], self._call)

    @functools.cached_property
    def _rounded(self) -> Mapping[fx.Node, object]:
        """The same where each number is off by as much as rounding to its own dtype may do."""
        generator = torch.Generator().manual_seed(0)

        def off(value: object, like: object) -> object:
            if isinstance(value, (tuple, list)) and isinstance(like, (tuple, list)):
                return type(value)(map(off, value, like))
            if not isinstance(value, Tensor) or not isinstance(like, Tensor) or like.dtype not in SMALLER:
                return value
            unit = torch.finfo(like.dtype).eps / 2
            share = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device)
            return value * (1 + unit * (2 * share - 1))

        def call(node: fx.Node, args: Any, kwargs: Any) -> object:
            value = self._call(node, args, kwargs)
            traits = traits_of(node.target)
            return value if traits.view or traits.impure else off(value, self.expected[node])

        inputs = [off(doubled(value), value) for value in copied(self._inputs)]
        return evaluated(self._graph, inputs, call)

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if not traits_of(node.target).seeded and torch.Tag.inplace_view not in getattr(node.target, "tags", ()):
            try:
                kwargs = {name: doubled(value) for name, value in kwargs.items()}
                return node.target(*args, **kwargs)  # type: ignore[operator]
            except Exception:  # no float64, or dtypes that do not go together: float32's value is the best there is
                pass
        value = self.expected[node]
        return type(value)(map(doubled, value)) if type(value) in (tuple, list) else doubled(value)

    def disagrees(self, node: fx.Node, actual: object) -> bool:
        """Whether a node has come out otherwise than `expected`."""
        return disagree(actual, self.expected[node], lambda: self._values[node], lambda: self._rounded[node])


def first_difference(wrong: Sequence[fx.Node], exact: Exactly, probe: Probe) -> tuple[fx.Node, Any] | None:
    """The first node that comes out otherwise when it is compiled, and what comes out. `probe` compiles a graph that
    gives some nodes: all that the `wrong` ones need at once; if they are right then, as fewer things were fused, one
    by one, by bisection.
    """
    nodes = _needed(wrong, exact.expected)
    for node, actual in zip(nodes, probe(nodes) if nodes else ()):
        if exact.disagrees(node, actual):
            return node, actual
    low, high = 0, len(nodes) - 1
    answer = None
    while low <= high:
        middle = (low + high) // 2
        (actual,) = probe([nodes[middle]])
        if exact.disagrees(nodes[middle], actual):
            answer, high = (nodes[middle], actual), middle - 1
        else:
            low = middle + 1
    return answer


def _needed(wrong: Sequence[fx.Node], expected: dict[fx.Node, Any]) -> list[fx.Node]:
    """The tensors that are computed on the way to `wrong`, in order."""
    needed = behind(wrong)
    return [
        node
        for node in expected
        if node in needed
        and node.op == "call_function"
        and node.target is not torch.ops.aten.copy_.default
        and isinstance(node.meta.get("val"), TensorMeta)
    ]
