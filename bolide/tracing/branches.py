"""Parts of a program that run or not, or several times, depending on data: graphs of their own, called by an operation.

`Part` records such a piece while a `Trace` is under way; tensors of the outer trace that it uses become its operands,
and so do sizes that are symbolic.
`bolide::branch` runs one of two graphs, `bolide::branch_backward` the gradients of the one that ran (computed from the
operands again), `bolide::repeat` a graph as long as another one says. Graphs are found by number (`tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from bolide.support.errors import Unsupported
from bolide.symbolic import Expr, SymNode
from bolide.tracing.meta import TensorMeta, contiguous_strides, same_sizes
from bolide.tracing.rules.common import is_dense
from bolide.tracing.rules.registry import rule
from bolide.tracing.tables import lookup
from bolide.tracing.tensor import AliasGroup, TracedTensor
from bolide.tracing.trace import Trace

aten = torch.ops.aten
Run = Callable[[Sequence[Any]], Sequence[Any]]


class Part(Trace):
    """A trace inside another one. `operands` are the outer tensors that it reads, and `symbols` the outer sizes, in the
    order of its placeholders."""

    def __init__(self, outer: Trace) -> None:
        super().__init__()
        self.shapes, self.assume = outer.shapes, outer.assume
        self.where, self.differentiates = outer.where, outer.differentiates
        self.generators = outer.generators
        self.operands: list[TracedTensor] = []
        self.symbols: list[Expr] = []
        self._adopted: dict[int, TracedTensor] = {}

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = tuple([self.adopt(arg) for arg in args])
        return super().dispatch(func, own, {key: self.adopt(value) for key, value in kwargs.items()})

    def adopt(self, value: Any) -> Any:
        """A value of the outer trace, as it is seen here."""
        if type(value) is TracedTensor and value._trace is not self:
            known = self._adopted.get(id(value))
            if known is None:
                meta = value.meta._replace(requires_grad=False)
                behind = self._last_input
                node = self._last_input = self._placeholder("operand", meta, behind)
                if behind is self._last_placeholder:
                    self._last_placeholder = node
                known = TracedTensor.make(self, meta, node, AliasGroup(node, source=len(self.operands)))
                self._adopted[id(value)] = known
                self.operands.append(value)
                for size in (*meta.shape, *meta.stride):  # gradients ask for them all
                    self.unwrap(size)
            return known
        if type(value) in (list, tuple):
            return [self.adopt(item) for item in value]
        return value

    def size_node(self, expr: Expr) -> Any:
        for symbol in expr.variables().values():
            if symbol not in self._size_nodes:
                size_operand(self, symbol)
                self.symbols.append(symbol)
        return super().size_node(expr)

    def check(self) -> None:
        """Raises Unsupported where the part writes to what is outside of it, or draws random numbers."""
        if any(tensor.group.version for tensor in self._adopted.values()):
            raise Unsupported(
                "a branch that depends on data writes to a tensor from outside", self.where, kind="control_flow"
            )
        if self.draws():
            reason = "a branch that depends on data draws random numbers, or changes a generator"
            raise Unsupported(reason, self.where, "draw them before and hand them to it", kind="control_flow")


def size_operand(trace: Trace, symbol: Expr) -> torch.SymInt:
    """A placeholder for a symbol of the trace around this one, which shares its `ShapeEnv`; its size."""
    node = SymNode(trace.shapes, symbol, trace.shapes.value(symbol))
    size = torch.SymInt(node)  # type: ignore[no-untyped-call]
    trace._size_nodes[symbol] = trace._last_placeholder = trace._placeholder("size", size)
    return size


def as_function(trace: Trace, results: Sequence[Any], metas: Sequence[TensorMeta] | None = None) -> Run:
    """A trace as a function of one list, its placeholders' values, that gives `results` in fresh memory (None for
    None), in the layouts of `metas` or else row by row."""
    nodes = []
    for place, result in enumerate(results):
        wanted = None if result is None else metas[place] if metas else dense(result.meta)
        node = None if wanted is None else trace.restride(result.node, wanted)
        nodes.append(node if node is None else trace.call(aten.clone.default, node))
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in trace.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple([None if node is None else copies[node] for node in nodes]))
    graph.eliminate_dead_code()
    module = fx.GraphModule(trace.constants, graph)
    return lambda values: module(*values)


def gradients(part: Part, results: Sequence[TracedTensor], metas: Sequence[TensorMeta]) -> tuple[Run, list[int]]:
    """The gradients of a part with respect to those of its operands that require them (their places are given, too),
    as a function of the operands, the sizes and the tangents of `results`. The part is run once more on new leaves:
    what the operands are made of is not its business.
    """
    tape = Trace()
    tape.shapes = part.shapes
    values: dict[fx.Node, Any] = {}
    leaves: list[TracedTensor] = []
    operands = iter(part.operands)
    with tape.recording(), torch.enable_grad(), torch._C._DisableAutocast():
        for node in part.graph.nodes:
            if node.op == "placeholder" and isinstance(node.meta["val"], torch.SymInt):
                values[node] = size_operand(tape, node.meta["val"].node.expr)
            elif node.op == "placeholder":
                wanted = next(operands).requires_grad
                slot = tape._placeholder("operand", node.meta["val"])
                tape._last_placeholder = slot
                values[node] = TracedTensor.make(tape, node.meta["val"], slot, requires_grad=wanted)
                leaves.append(values[node])
            elif node.op == "get_attr":
                values[node] = tape.lift(part.constants[str(node.target)])
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.target is branch:
                    values[node] = Choice.apply(tape, args[3], args[2], args[0], *args[1])  # type: ignore[no-untyped-call]
                else:
                    values[node] = node.target(*args, **kwargs)
                if node.meta.get("cut"):
                    values[node] = separated(values[node])
        outputs = [values[result.node] for result in results]
        tangents = [tape.placeholder(meta, "tangent") for meta in metas]
        pairs = [pair for pair in zip(outputs, tangents) if pair[0].requires_grad]
        places = [place for place, leaf in enumerate(leaves) if leaf.requires_grad]
        found: Sequence[Any] = [None] * len(places)
        if pairs:
            with torch.no_grad():
                engine = torch.autograd.Variable._execution_engine
                found = engine.run_backward(
                    tuple(output for output, _ in pairs),
                    tuple(tangent for _, tangent in pairs),
                    keep_graph=False,
                    create_graph=False,
                    inputs=tuple(leaves[place] for place in places),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
        return as_function(tape, found), places


def separated(value: Any) -> Any:
    """What an operation answers that no derivative goes through."""
    if isinstance(value, (list, tuple)):
        return [separated(item) for item in value]
    return value.detach() if isinstance(value, torch.Tensor) else value


def common_layout(metas: Sequence[TensorMeta]) -> TensorMeta:
    """The meta of a copy of any of these results: in their order if that is the same."""
    first = metas[0]
    if is_dense(first.shape, first.stride) and all(same_sizes(first.stride, meta.stride) for meta in metas):
        return first._replace(offset=0, requires_grad=False)
    return dense(first)


def dense(meta: TensorMeta) -> TensorMeta:
    """The meta of a row-major copy."""
    return TensorMeta(meta.shape, contiguous_strides(meta.shape), 0, meta.dtype, meta.device)


@dataclass(frozen=True)
class Branches:
    """Two graphs over the same operands and sizes: `forward` (if true, if false) gives results like `metas`, `backward`
    the gradients of the operands at `differentiable`, from operands, sizes and the tangents of the results."""

    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    metas: tuple[TensorMeta, ...]
    differentiable: tuple[int, ...]


@dataclass(frozen=True)
class Repetition:
    """`goes_on` and `step` take the values that are carried along, further operands and sizes; `step` gives the new
    values."""

    goes_on: Run
    step: Run
    metas: tuple[TensorMeta, ...]


def _branch(pred: torch.Tensor, operands: list[torch.Tensor], sizes: list[int], table: int) -> list[torch.Tensor]:
    return list(lookup(table).forward[0 if pred.item() else 1]([*operands, *sizes]))


def _branch_backward(
    pred: torch.Tensor, operands: list[torch.Tensor], sizes: list[int], tangents: list[torch.Tensor], table: int
) -> list[torch.Tensor]:
    branches: Branches = lookup(table)
    found = branches.backward[0 if pred.item() else 1]([*operands, *sizes, *tangents])
    wanted = [operands[index] for index in branches.differentiable]
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(wanted, found)]


def _repeat(
    carried: list[torch.Tensor], operands: list[torch.Tensor], sizes: list[int], table: int
) -> list[torch.Tensor]:
    repetition: Repetition = lookup(table)
    values = [value.clone() for value in carried]
    while repetition.goes_on([*values, *operands, *sizes])[0].item():
        values = list(repetition.step([*values, *operands, *sizes]))
    return values


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
for _name, _arguments, _implementation in (
    ("branch", "Tensor pred, Tensor[] operands, SymInt[] sizes, int table", _branch),
    (
        "branch_backward",
        "Tensor pred, Tensor[] operands, SymInt[] sizes, Tensor[] tangents, int table",
        _branch_backward,
    ),
    ("repeat", "Tensor[] carried, Tensor[] operands, SymInt[] sizes, int table", _repeat),
):
    _library.define(f"{_name}({_arguments}) -> Tensor[]")
    _library.impl(_name, _implementation, "CompositeExplicitAutograd")

branch = torch.ops.bolide.branch.default
branch_backward = torch.ops.bolide.branch_backward.default
repeat = torch.ops.bolide.repeat.default


@rule("bolide::branch")
def _branch_metas(pred: TensorMeta, operands: list[TensorMeta], sizes: list[Any], table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)


@rule("bolide::branch_backward")
def _gradient_metas(
    pred: TensorMeta, operands: list[TensorMeta], sizes: list[Any], tangents: list[TensorMeta], table: int
) -> list[TensorMeta]:
    return [dense(operands[index]) for index in lookup(table).differentiable]


@rule("bolide::repeat")
def _repeat_metas(
    carried: list[TensorMeta], operands: list[TensorMeta], sizes: list[Any], table: int
) -> list[TensorMeta]:
    return list(lookup(table).metas)


class Choice(torch.autograd.Function):
    """The operation `bolide::branch` on traced tensors, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, trace: Trace, table: int, sizes: list[Any], pred: TracedTensor, *operands: TracedTensor
    ) -> Any:
        ctx.trace, ctx.table, ctx.pred = trace, table, trace.adopt(pred).node
        ctx.operands = [trace.adopt(operand).node for operand in operands]
        ctx.sizes = trace.unwrap(sizes)
        return trace.wrap(trace.call(branch, ctx.pred, ctx.operands, ctx.sizes, table))

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor) -> Any:
        trace: Trace = ctx.trace
        if torch.is_grad_enabled():
            reason = "gradients of gradients of a branch that depends on data"
            raise Unsupported(reason, trace.where, kind="control_flow")
        nodes = [trace.adopt(tangent).node for tangent in tangents]
        found = trace.call(branch_backward, ctx.pred, ctx.operands, ctx.sizes, nodes, ctx.table)
        gradients: list[Any] = [None] * len(ctx.operands)
        for index, gradient in zip(lookup(ctx.table).differentiable, found):
            gradients[index] = trace.wrap(gradient)
        return (None, None, None, None, *gradients)
