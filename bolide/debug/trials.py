"""Whether a graph fails when it is compiled: it raises, or gives other results than eager, where eager runs.

What is tried is a `Trial`: `Graphs` are functional graphs and a graph compiler, `Calls` are graphs of torch's
functions, a backend, and eager's autograd. Inputs are made from descriptions: a `TensorSlot` or a `Number` for each
placeholder.
"""

from __future__ import annotations

import copy
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bolide.backends import difference
from bolide.debug.reference import RandomState, doubled
from bolide.dynamo.backends import lookup_backend
from bolide.dynamo.config import config
from bolide.dynamo.state import state
from bolide.functorch import GraphInfo
from bolide.functorch.compile_utils import WRITING
from bolide.functorch.fx_minifier import fresh
from bolide.functorch.graphs import is_view, placeholders, results
from bolide.symbolic import ShapeEnv, as_expr, hint_of
from bolide.tracing import TensorMeta, modes
from bolide.tracing.graph import evaluated, mapped
from bolide.tracing.meta import meta_of
from bolide.tracing.rules import infer

aten = torch.ops.aten

# ---- inputs ----------------------------------------------------------------------------------------------------------

Sizes = Mapping[str, Any]
Values = Sequence[Any]
Run = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class TensorSlot:
    """A tensor among the inputs. Sizes and strides may be expressions of sizes, as text. Floating-point numbers are
    drawn from the normal distribution, others lie in ``low .. high``."""

    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    dtype: torch.dtype
    device: str = "cpu"
    requires_grad: bool = False
    low: int = 0
    high: int = 0

    def make(self, sizes: Sizes, generator: torch.Generator) -> Tensor:
        """Such a tensor."""
        shape, stride = _valued(self.shape, sizes), _valued(self.stride, sizes)
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = torch.complex64 if self.dtype.is_complex else torch.float32
            memory = torch.randn(reach, generator=generator, dtype=wide)
        else:
            memory = torch.randint(self.low, self.high + 1, (reach,), generator=generator)
        memory = memory.to(self.dtype).to(self.device)
        return memory.as_strided(shape, stride).detach().requires_grad_(self.requires_grad)

    def meta(self, sizes: Sizes) -> TensorMeta:
        """What is known of it; `sizes` may be symbols."""
        shape, stride = _valued(self.shape, sizes), _valued(self.stride, sizes)
        return TensorMeta(shape, stride, 0, self.dtype, torch.device(self.device))


@dataclass(frozen=True)
class Number:
    """A number among the inputs: a symbolic size, if it has a name."""

    value: int | float
    name: str = ""


Slot = TensorSlot | Number


def _valued(texts: Iterable[int | str], sizes: Sizes) -> tuple[Any, ...]:
    names = {"min": min, "max": max, **sizes}
    return tuple([eval(text, {}, names) if isinstance(text, str) else text for text in texts])


def sizes_of(slots: Iterable[Slot]) -> dict[str, int]:
    """The values of the symbolic sizes among the inputs."""
    return {slot.name: int(slot.value) for slot in slots if isinstance(slot, Number) and slot.name}


def made(slots: Sequence[Slot], seed: int) -> list[object]:
    """Inputs as described."""
    sizes, generator = sizes_of(slots), torch.Generator().manual_seed(seed)
    return [slot.value if isinstance(slot, Number) else slot.make(sizes, generator) for slot in slots]


def slots_of_graph(graph: fx.Graph) -> list[Slot]:
    """The inputs of a functional graph, by what is known of its placeholders."""
    metas = [node.meta["val"] for node in placeholders(graph)]
    names = {str(as_expr(meta)) for meta in metas if isinstance(meta, torch.SymInt)}

    def text(size: object) -> int | str:
        if not isinstance(size, torch.SymInt):
            return int(size)  # type: ignore[call-overload, no-any-return]
        known = set(re.findall(r"[A-Za-z_]\w*", str(as_expr(size)))) <= {*names, "min", "max"}
        return str(as_expr(size)) if known else hint_of(size)

    def slot(meta: Any) -> Slot:
        if isinstance(meta, TensorMeta):
            return TensorSlot(tuple(map(text, meta.shape)), tuple(map(text, meta.stride)), meta.dtype, str(meta.device))
        symbol = str(as_expr(meta)) if isinstance(meta, torch.SymInt) else ""
        return Number(hint_of(meta) if symbol else meta, symbol if symbol.isidentifier() else "")

    return [slot(meta) for meta in metas]


def slot_of(value: Any, known: Slot | None = None, sizes: Sizes | None = None) -> Slot:
    """How a value of an input is described: with the symbolic sizes of what is `known` of it, if they fit."""
    if not isinstance(value, Tensor):
        return Number(value, known.name if isinstance(known, Number) else "")
    shape: tuple[int | str, ...] = tuple(value.shape)
    stride: tuple[int | str, ...] = value.stride()
    if isinstance(known, TensorSlot) and sizes is not None and _valued(known.shape, sizes) == shape:
        shape, stride = known.shape, known.stride if _valued(known.stride, sizes) == stride else stride
    bounds = (0, 0)
    if not (value.is_floating_point() or value.is_complex()) and value.numel():
        bounds = (int(value.min()), int(value.max()))
    return TensorSlot(shape, stride, value.dtype, str(value.device), value.requires_grad, *bounds)


def slots_of(graph: fx.Graph, values: Values, known: Mapping[str, Slot]) -> list[Slot]:
    """The inputs of a part of a graph of which the inputs are `known` by name."""
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    numbers = {name: slot for name, slot in known.items() if isinstance(slot, Number)}
    sizes = {numbers[name].name: value for name, value in zip(names, values) if name in numbers and numbers[name].name}
    defined = {*sizes, "min", "max"}

    def fits(slot: Slot | None) -> Slot | None:
        texts = [*slot.shape, *slot.stride] if isinstance(slot, TensorSlot) else []
        used = {word for text in texts if isinstance(text, str) for word in re.findall(r"[A-Za-z_]\w*", text)}
        return slot if used <= defined else None

    return [slot_of(value, fits(known.get(name)), sizes) for name, value in zip(names, values)]


# ---- graphs ----------------------------------------------------------------------------------------------------------


class _Calls(TorchFunctionMode):
    """Makes nodes of calls without a tensor among the arguments."""

    def __init__(self, tracer: fx.Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        return self.tracer.create_proxy("call_function", func, args, kwargs or {})


class _Proxy(fx.Proxy):
    """A value of a graph, into which Python's operators may write."""


def _writing(function: Callable[..., object]) -> Callable[..., fx.Proxy]:
    return lambda *operands: operands[0].tracer.create_proxy("call_function", function, operands, {})


for _function in WRITING:
    setattr(_Proxy, f"__{_function.__name__}__", _writing(_function))


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        """As `fx.Tracer.proxy`."""
        return _Proxy(node, self)


def traced(module: torch.nn.Module) -> fx.GraphModule:
    """The graph of a module whose forward calls torch's functions one by one."""
    tracer = _Tracer()
    with _Calls(tracer):
        graph = tracer.trace(module)
    return fx.GraphModule(module, graph, type(module).__name__)


def annotated(gm: fx.GraphModule, slots: Sequence[Slot]) -> fx.GraphModule:
    """A functional graph that keeps the contract of graph compilers: its nodes say what is known of their values, its
    results are in memory of their own. Raises what a shape rule raises."""
    shapes = ShapeEnv()
    sizes = {name: shapes.size(value, name) for name, value in sizes_of(slots).items()}
    metas = [sizes.get(slot.name, slot.value) if isinstance(slot, Number) else slot.meta(sizes) for slot in slots]
    known = shapes if shapes.hints else None

    def call(node: fx.Node, args: Values, kwargs: dict[str, object]) -> Any:
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return target(*args, **kwargs)
        return args[0] if target._schema.is_mutable else infer(target, args, kwargs, known)

    for node, value in evaluated(gm, metas, call, meta_of).items():
        node.meta["val"] = value
    given: set[fx.Node] = set()
    returned = list(results(gm.graph))
    for place, node in enumerate(returned):
        if isinstance(node, fx.Node) and isinstance(node.meta["val"], TensorMeta):
            if node in given or node.op != "call_function" or is_view(node):
                returned[place] = _cloned(gm.graph, node, known)
            given.add(node)
    gm.graph.output_node().args = (tuple(returned),)
    return gm


def _cloned(graph: fx.Graph, node: fx.Node, shapes: ShapeEnv | None) -> fx.Node:
    options = {"memory_format": torch.contiguous_format}
    with graph.inserting_before(graph.output_node()):
        clone = graph.call_function(aten.clone.default, (node,), options)  # type: ignore[arg-type]
    clone.meta["val"] = infer(aten.clone.default, (node.meta["val"],), options, shapes)
    return clone


# ---- trials ----------------------------------------------------------------------------------------------------------


class Trial(Protocol):
    """How a graph is compiled. `accuracy`: results that differ are a failure, errors are none."""

    @property
    def accuracy(self) -> bool: ...

    @property
    def gradients(self) -> bool: ...

    def prepared(self, gm: fx.GraphModule, values: Values) -> Callable[[], Run]:
        """A function that compiles `gm`, which it may change, for inputs like `values`."""


def resolve(name: str) -> Any:
    """A compiler by its name: that of a backend, or ``module:name``."""
    return pkgutil.resolve_name(name) if ":" in name else lookup_backend(name)


@dataclass(frozen=True)
class Graphs:
    """Functional graphs, which `compiler` compiles: forward, backward or inference. `static`: names of inputs that are
    parameters; `hidden`: names of results that only the backward reads; `slots`: the inputs by name."""

    compiler: str
    kind: Literal["inference", "forward", "backward"] = "inference"
    static: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    accuracy: bool = False
    slots: Mapping[str, Slot] = field(default_factory=dict)
    gradients: bool = field(default=False, init=False)

    def prepared(self, gm: fx.GraphModule, values: Values) -> Callable[[], Run]:
        """See `Trial`."""
        annotated(gm, slots_of(gm.graph, values, self.slots))
        inputs = [node.name for node in placeholders(gm.graph)]
        outputs = [getattr(value, "name", "") for value in results(gm.graph)]
        static = frozenset(place for place, name in enumerate(inputs) if name in self.static)
        visible = frozenset(place for place, name in enumerate(outputs) if name not in self.hidden)
        info = GraphInfo(self.kind, static, visible)
        return lambda: resolve(self.compiler)(gm, info)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Calls:
    """Graphs of torch's functions, which the backend `compiler` compiles. `gradients`: whether results are derived."""

    compiler: str
    options: Mapping[str, object] = field(default_factory=dict)
    gradients: bool = True
    accuracy: bool = False

    def prepared(self, gm: fx.GraphModule, values: Values) -> Callable[[], Run]:
        """See `Trial`."""

        def compiled() -> Run:
            run = resolve(self.compiler)(gm, fresh(values), **self.options)
            return lambda inputs: run(*inputs)

        return compiled


@contextmanager
def at_run_time() -> Iterator[None]:
    """Calls are compiled, although this thread compiles already, and raise where that fails."""
    stage, state.stage = state.stage, None
    try:
        with config.patch(suppress_errors=False):
            yield
    finally:
        state.stage = stage


def failure(trial: Trial, gm: fx.GraphModule, values: Values) -> Exception | None:
    """What goes wrong when a graph is compiled and run for inputs; None if nothing does, or eager fails as well."""
    try:
        wanted = outcome(lambda inputs: gm(*inputs), values, trial.gradients)
        ready = trial.prepared(duplicate(gm), values)
    except Exception:
        return None
    try:
        with at_run_time():
            actual = outcome(lambda inputs: ready()(inputs), values, trial.gradients)
    except Exception as error:
        return None if trial.accuracy else error
    if not trial.accuracy:
        return None
    again = lambda: outcome(lambda inputs: gm(*inputs), values, trial.gradients)  # noqa: E731
    differs = different(wanted, actual, again, lambda: exactly(gm, values, trial.gradients))
    return AssertionError(differs) if differs else None


def duplicate(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module of its own, with the same attributes."""
    return fx.GraphModule(gm, copy.deepcopy(gm.graph), type(gm).__name__)


def outcome(run: Run, values: Values, gradients: bool) -> list[object]:
    """The results of a call on copies of `values`, what it makes of the inputs, and the gradients for them. Random
    numbers are the same in every call."""
    given = fresh(values)
    with modes.random_kept(), torch.set_grad_enabled(gradients):
        torch.manual_seed(0)
        found = pytree.tree_leaves(run(list(given)))
        everything = [*found, *given]
        ends = [value for value in found if isinstance(value, Tensor) and value.requires_grad]
        leaves = [value for value in given if isinstance(value, Tensor) and value.requires_grad]
        if gradients and ends and leaves:
            generator = torch.Generator().manual_seed(0)
            tangents = [torch.randn(end.shape, generator=generator).to(end) for end in ends]
            everything += torch.autograd.grad(ends, leaves, tangents, allow_unused=True)
    return everything


def different(
    wanted: Values, actual: Values, again: Callable[[], Values], exact: Callable[[], Values | None]
) -> str | None:
    """Where two outcomes differ first, and how. In question `again` gives eager's once more, as values may not be
    determined (workspaces), and `exact` that of float64 (None: there is none).
    """
    if len(wanted) != len(actual):
        return f"{len(actual)} results instead of {len(wanted)}"
    if not any(map(difference, wanted, actual)):
        return None
    repeated, true = again(), exact() if config.same_two_models_use_fp64 else None
    for place, (theirs, ours) in enumerate(zip(wanted, actual)):
        differs = difference(theirs, ours, None if true is None else true[place])
        if differs is not None and difference(theirs, repeated[place]) is None:
            return f"result {place} {differs}"
    return None


class _Doubled(fx.Interpreter):
    """Runs a graph in float64."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As `fx.Interpreter.call_function`."""
        return super().call_function(target, mapped(args, doubled), mapped(kwargs, doubled))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As `fx.Interpreter.call_method`."""
        return super().call_method(target, mapped(args, doubled), mapped(kwargs, doubled))


def exactly(gm: fx.GraphModule, values: Values, gradients: bool) -> list[object] | None:
    """The outcome in float64. None where there is none, or the graph draws random numbers: they would be others."""
    before = RandomState.now()
    try:
        with modes.random_kept():
            gm(*fresh(values))
            if not before.is_now():
                return None
        wide = copy.deepcopy(gm).double()
        given = [
            doubled(value.detach()).requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
            for value in values
        ]
        return outcome(lambda inputs: _Doubled(wide).run(*inputs), given, gradients)
    except Exception:  # an operation that has no float64, dtypes that do not go together
        return None


def alike(one: Exception | None, other: Exception) -> bool:
    """Whether two failures seem to have one reason: the same kind, and half of the words."""
    if type(one) is not type(other):
        return False
    if isinstance(one, AssertionError) and str(one).startswith("result"):
        return True
    return SequenceMatcher(None, str(one), str(other)).ratio() >= 0.5
