"""Parts of a program that run or not, or several times, depending on data: graphs of their own, called by an operation.

`Part` records such a piece while a `Trace` is under way; tensors of the outer trace that it uses become its operands,
and so do sizes that are symbolic.
`bolide::branch` runs one of two graphs, `bolide::repeat` a graph as long as another one says. The gradient of a branch
is another branch, between the gradients of its ways (computed from the operands again); so there are gradients of any
order. Graphs are found by number (`graph.lookup`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Expr, same_sizes
from bolide.tracing.graph import enter, evaluated, graph_module, lookup, mapped, operator
from bolide.tracing.meta import TensorMeta, found_in
from bolide.tracing.modes import engine_pass
from bolide.tracing.operations.sequences import rnn_layer
from bolide.tracing.recording.layers import again as recurrent_again
from bolide.tracing.recording.layers import recurrent, recurrent_forward
from bolide.tracing.rules.common import is_dense, row_major
from bolide.tracing.rules.registry import rule
from bolide.tracing.tensor import AliasGroup, Listener, Recording, TracedTensor
from bolide.tracing.trace import Trace
from bolide.tracing.traits import traits_of

aten = torch.ops.aten


class Part(Trace):
    """A trace inside another one. `operands` are the outer tensors that it reads, and `symbols` the outer sizes, in the
    order of its placeholders; `slots` are those of the operands."""

    def __init__(self, outer: Trace) -> None:
        super().__init__()
        self.outer = outer
        self.shapes, self.assume = outer.shapes, outer.assume
        self.checked |= outer.checked
        self.where, self.differentiates = outer.where, outer.differentiates
        self.generators = outer.generators
        self.draws_as_eager = outer.draws_as_eager
        self.captures_numbers = outer.captures_numbers
        self.compliant_only = outer.compliant_only
        self.operands: list[TracedTensor] = []
        self.slots: list[fx.Node] = []
        self.symbols: list[Expr] = []
        self._adopted: dict[int, TracedTensor] = {}

    @property
    def listener(self) -> Listener:
        """That of the trace around, which tells nobody any more when the program is over: autograd may keep parts."""
        return self.outer.listener

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = tuple([self.adopt(arg) for arg in args])
        result = super().dispatch(func, own, {key: self.adopt(value) for key, value in kwargs.items()})
        if not func._schema.is_mutable or type(result) is not TracedTensor:
            return result
        return next((outer for outer in self.operands if self._adopted[id(outer)] is result), result)

    def adopt(self, value: Any) -> Any:
        """A value of the outer trace, as it is seen here."""
        if type(value) is TracedTensor and value._trace is not self:
            known = self._adopted.get(id(value))
            if known is None:
                if not self._is_inside(value._trace):
                    reason = "a tensor that was computed in another way of a branch is used"
                    raise Unsupported(reason, self.where, kind="control_flow")
                meta = value.meta._replace(requires_grad=False)
                node = self.slot("operand", meta, is_input=True)
                known = TracedTensor.make(self, meta, node, AliasGroup(node, source=len(self.operands)))
                known.group.inference = value.group.inference
                self._adopted[id(value)] = known
                self.operands.append(value)
                self.slots.append(node)
                for size in (*meta.shape, *meta.stride):  # gradients ask for them all
                    self.unwrap(size)
            return known
        if type(value) in (list, tuple):
            return [self.adopt(item) for item in value]
        return value

    def _is_inside(self, trace: Recording) -> bool:
        around: Recording = self.outer
        while around is not trace and isinstance(around, Part):
            around = around.outer
        return around is trace

    def size_node(self, expr: Expr) -> Any:
        for symbol in expr.variables().values():
            if symbol not in self._size_nodes:
                size_operand(self, symbol)
                self.symbols.append(symbol)
        return super().size_node(expr)

    def seed(self, device: torch.device) -> tuple[fx.Node, int]:
        """That of the trace around: what is drawn here is drawn nowhere else."""
        node, counter = self.outer.seed(device)
        known = self.outer.seeds.get(node)
        if known is None:
            known = self.outer.seeds[node] = self.outer.wrap(node)
        return self.adopt(known).node, counter

    def forget_seed(self) -> None:
        reason = "a branch that depends on data changes a generator of random numbers"
        raise Unsupported(reason, self.where, "do it before", kind="control_flow")

    def origin(self, group: AliasGroup) -> AliasGroup:
        """The storage of the outer tensor that one here stands for; itself where it was made here, or outside."""
        adopted = group.source is not None and group.source < len(self.operands)
        if adopted and self._adopted[id(self.operands[group.source])].group is group:  # type: ignore[index]
            return self.operands[group.source].group  # type: ignore[index]
        return group

    def input_of(self, group: AliasGroup) -> int | None:
        return self.outer.input_of(self.origin(group))

    def first_value(self, group: AliasGroup) -> fx.Node:
        origin = self.origin(group)
        return group.base if origin is group else self.outer.first_value(origin)

    def has_made(self, tensor: TracedTensor) -> bool:
        """Whether a tensor, and what is in its storage, was made here."""
        return tensor._trace is self and (self.origin(tensor.group) is tensor.group or tensor.group.version > 0)

    def check_writable(self, group: AliasGroup) -> None:
        """Nor where it cannot write to the outer one that a storage stands for."""
        super().check_writable(group)
        origin = self.origin(group)
        if origin is group:
            return
        super().check_writable(origin)
        if torch.is_grad_enabled() and any(outer.requires_grad for outer in self.operands if outer.group is origin):
            reason = "a branch that depends on data writes to a tensor from outside that requires grad"
            raise Unsupported(reason, self.where, kind="control_flow")

    def is_shared(self, group: AliasGroup) -> bool:
        """Whether several operands are in a storage: what is written to one is not seen through another."""
        return sum(operand.group is group for operand in self.operands) > 1

    def written(self) -> list[TracedTensor]:
        """The outer tensors that are written to here."""
        return [operand for operand in self.operands if self._adopted[id(operand)].group.version]

    def check(self, writes: bool = False) -> None:
        """Raises Unsupported where the part draws from a generator or, unless that is taken care of (`writes`), writes
        to what is outside of it."""
        if not writes and self.written():
            reason = "a branch that depends on data writes to a tensor from outside"
            raise Unsupported(reason, self.where, kind="control_flow")
        seen = [self._adopted[id(operand)] for operand in self.operands]
        if any(tensor.chain or tensor.group.source != place for place, tensor in enumerate(seen)):
            reason = "a branch that depends on data gives a tensor from outside another shape in place"
            raise Unsupported(reason, self.where, kind="control_flow")
        if self.draws():
            reason = "a branch that depends on data draws from a random generator, or changes one"
            raise Unsupported(reason, self.where, "draw before and hand the numbers to it", kind="control_flow")
        self.outer.refutable |= self.refutable


def size_operand(trace: Trace, symbol: Expr) -> torch.SymInt:
    """A placeholder for a symbol of the trace around this one, which shares its `ShapeEnv`; its size."""
    size = trace.shapes.sym_int(symbol)
    trace.bind_size(size, trace.slot("size", size))
    return size


def separated(value: Any) -> Any:
    """What an operation answers that no derivative goes through."""
    return mapped(value, lambda item: item.detach() if isinstance(item, torch.Tensor) else item)


def common_layout(metas: Sequence[TensorMeta]) -> TensorMeta:
    """The meta of a copy of any of these results: in their order if that is the same."""
    first = metas[0]
    if is_dense(first.shape, first.stride) and all(same_sizes(first.stride, meta.stride) for meta in metas):
        return first._replace(offset=0, requires_grad=False)
    return row_major(first)


@dataclass(frozen=True)
class Repetition:
    """Two graphs over the values carried along, further operands and sizes: the first gives whether the loop goes on,
    the second the new values, like `metas` in fresh memory."""

    graphs: tuple[fx.GraphModule, fx.GraphModule]
    metas: tuple[TensorMeta, ...]


@dataclass(frozen=True)
class Region:
    """A graph over operands and sizes, which gives results like `metas` in fresh memory."""

    graphs: tuple[fx.GraphModule]
    metas: tuple[TensorMeta, ...]


def _region(operands: list[torch.Tensor], sizes: list[int], table: int) -> list[torch.Tensor]:
    return list(lookup(table).graphs[0](*operands, *sizes))


def _branch(pred: torch.Tensor, operands: list[torch.Tensor], sizes: list[int], table: int) -> list[torch.Tensor]:
    return list(lookup(table).graphs[0 if pred.item() else 1](*operands, *sizes))


def _repeat(
    carried: list[torch.Tensor], operands: list[torch.Tensor], sizes: list[int], table: int
) -> list[torch.Tensor]:
    goes_on, step = lookup(table).graphs
    values = [value.clone() for value in carried]
    while goes_on(*values, *operands, *sizes)[0].item():
        values = list(step(*values, *operands, *sizes))
    return values


_REST = "Tensor[] operands, SymInt[] sizes, int table) -> Tensor[]"
branch = operator(f"branch(Tensor pred, {_REST}", _branch)
region = operator(f"region({_REST}", _region)
repeat = operator(f"repeat(Tensor[] carried, {_REST}", _repeat)


@rule("bolide::region")
def _region_metas(operands: list[TensorMeta], sizes: list[object], table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)


@rule("bolide::branch", "bolide::repeat")
def _metas(first: object, operands: list[TensorMeta], sizes: list[object], table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)


# ---- scans, which `scans.py` records and derives -------------------------------------------------------------------

Numbers = Sequence[int | torch.SymInt]
Tensors = Sequence[torch.Tensor]
Step = Callable[[list[object]], Tensors]


@dataclass(eq=False)
class Steps:
    """The graph of a step: of `carried` values, `over` slices, `operands`, and sizes, it gives as many carried values
    and then results, like `metas` in fresh memory. `reverse`: the last slice comes first. `kept`: so many results, the
    last ones, are the carried values that the step was given, for gradients. `run` is the graph, compiled.
    """

    graphs: tuple[fx.GraphModule, ...]
    carried: int
    over: int
    operands: int
    metas: tuple[TensorMeta, ...]
    reverse: bool
    kept: int = 0
    run: Step | None = None
    gradients: dict[object, Steps] = field(default_factory=dict, repr=False)

    def slots(self) -> list[TensorMeta]:
        """What the tensors among its arguments are."""
        count = self.carried + self.over + self.operands
        return [slot.meta["val"] for slot in placeholders(self.graphs[0])[:count]]

    def sizes(self) -> list[torch.SymInt]:
        """Its other arguments."""
        count = self.carried + self.over + self.operands
        return [slot.meta["val"] for slot in placeholders(self.graphs[0])[count:]]


def _scan(
    init: list[torch.Tensor], xs: list[torch.Tensor], operands: list[torch.Tensor], sizes: list[int], table: int
) -> list[torch.Tensor]:
    steps: Steps = lookup(table)
    graph = steps.graphs[0]
    return looped(steps, init, xs, [*operands, *sizes], steps.run or (lambda values: graph(*values)))


def looped(steps: Steps, init: Tensors, xs: Tensors, rest: Sequence[object], step: Step) -> list[torch.Tensor]:
    """What a scan of real tensors gives."""
    carried, slices = list(init), list(zip(*[x.unbind(0) for x in xs]))
    rows: list[Sequence[torch.Tensor]] = []
    for given in reversed(slices) if steps.reverse else slices:
        results = step([*carried, *given, *rest])
        carried = list(results[: steps.carried])
        rows.append(results[steps.carried :])
    if steps.reverse:
        rows.reverse()
    return [*carried, *map(torch.stack, map(list, zip(*rows)))]


scan = operator("scan(Tensor[] init, Tensor[] xs, Tensor[] operands, SymInt[] sizes, int table) -> Tensor[]", _scan)


@rule("bolide::scan")
def _stacked_metas(
    init: list[TensorMeta], xs: list[TensorMeta], operands: list[TensorMeta], sizes: list[object], table: int
) -> list[TensorMeta]:
    steps: Steps = lookup(table)
    length = xs[0].shape[0]
    stacked = [row_major(meta, (length, *meta.shape)) for meta in steps.metas[steps.carried :]]
    return [*steps.metas[: steps.carried], *stacked]


# ---- gradients of loops, which `loops.py` records --------------------------------------------------------------------


@dataclass(eq=False)
class Unwinding:
    """The graphs of a loop's condition, of its step, and of the gradient of that: of sums (gradients of what is carried
    along, then of operands), what the step was given, operands and sizes it gives the next sums, like `metas`.

    `needed`: the carried values and operands whose gradients are asked for. `runs`: the graphs, compiled.
    """

    graphs: tuple[fx.GraphModule, ...]
    needed: tuple[bool, ...]
    metas: tuple[TensorMeta, ...]
    runs: tuple[Step, ...] = ()


def _unwind(
    sums: list[torch.Tensor], carried: list[torch.Tensor], operands: list[torch.Tensor], sizes: list[int], table: int
) -> list[torch.Tensor]:
    loop: Unwinding = lookup(table)
    runs = loop.runs or [lambda values, graph=graph: list(graph(*values)) for graph in loop.graphs]
    goes_on, step, back = runs
    rest: list[object] = [*operands, *sizes]
    values, states = carried, []
    while goes_on([*values, *rest])[0].item():
        states.append([value.contiguous() for value in values])
        values = list(step([*values, *rest]))
    found = [value.clone() for value in sums]
    while states:
        found = list(back([*found, *states.pop(), *rest]))
    return found


unwind = operator(
    "unwind(Tensor[] sums, Tensor[] carried, Tensor[] operands, SymInt[] sizes, int table) -> Tensor[]", _unwind
)


@rule("bolide::unwind")
def _unwound_metas(sums: object, carried: object, operands: object, sizes: object, table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)


OVER_GRAPHS = (region, branch, repeat, scan, unwind)
"""The operations whose last argument is the number of a table with `graphs`."""

# ---- branches --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Branches:
    """Two graphs (if true, if false) over the same operands and sizes, which give results like `metas` in fresh memory.

    `differentiable`: the operands that gradients are asked for, `derived` the results that have one. Where it is a
    gradient, `reach` says, for each way and each tangent (its last operands), to which results that one contributes:
    what none reaches is None in eager. `always`: there it is zero; so it is for the operands at `sure`. Its other
    operands are those at `read` of what it is the gradient of."""

    graphs: tuple[fx.GraphModule, ...]
    operands: int
    metas: tuple[TensorMeta, ...]
    differentiable: tuple[int, ...]
    derived: tuple[int, ...]
    reach: tuple[tuple[tuple[bool, ...], ...], ...] = ()
    read: tuple[int, ...] = ()
    always: bool = False
    sure: tuple[int, ...] = ()
    gradient: Branches | None = field(default=None, repr=False)

    def derive(self) -> Branches:
        """The branch that computes the gradients of the operands at `differentiable`, from the operands that they
        depend on, the tangents of the results at `derived`, and the sizes."""
        if self.gradient is None:
            tangents = [self.metas[place] for place in self.derived]
            graphs, reach = zip(*[_derivative(graph, self, tangents) for graph in self.graphs])
            sure = [self.always or place in self.sure for place in self.differentiable]
            reach = tuple([tuple([_either(sure, tangent) for tangent in way]) for way in reach])
            slots = [node.meta["val"] for node in placeholders(self.graphs[0])]
            metas = tuple([row_major(slots[place]) for place in self.differentiable])
            read = _read_operands(graphs, self.operands)
            self.gradient = Branches(graphs, len(read) + len(tangents), metas, (), (), reach, read)
        return self.gradient

    def reached(self) -> list[bool]:
        """For each operand at `differentiable`, whether any way gives it a gradient."""
        tangents = [tangent for way in self.derive().reach for tangent in way]
        return [any(tangent[place] for tangent in tangents) for place in range(len(self.differentiable))]

    def decides(self) -> bool:
        """Whether it depends on the way that is taken which operands have a gradient."""
        first, second = self.derive().reach
        return first != second


def _either(first: Sequence[bool], second: Sequence[bool]) -> tuple[bool, ...]:
    return tuple([a or b for a, b in zip(first, second)])


def _read_operands(graphs: Sequence[fx.GraphModule], operands: int) -> tuple[int, ...]:
    """Which of the operands any of the graphs reads; the others are no placeholders any more."""
    slots = [nodes[:operands] for nodes in map(placeholders, graphs)]
    read = [any(node.users for node in nodes) for nodes in zip(*slots)]
    for nodes in slots:
        for node, is_read in zip(nodes, read):
            if not is_read:
                node.graph.erase_node(node)
    return tuple(itertools.compress(range(operands), read))


def placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


class Places:
    """Where operands and sizes of parts are among those of their operation: all operands, then all sizes."""

    def __init__(self, operands: Sequence[TracedTensor], parts: Sequence[Part]) -> None:
        self.operands = operands
        self.operand = {id(operand): index for index, operand in enumerate(operands)}
        symbols = dict.fromkeys(symbol for part in parts for symbol in part.symbols)
        self.symbol = {symbol: len(operands) + index for index, symbol in enumerate(symbols)}

    def sizes(self, trace: Trace) -> list[torch.SymInt]:
        """The sizes themselves."""
        return [trace.shapes.sym_int(symbol) for symbol in self.symbol]

    def graph_of(self, part: Part, results: Sequence[TracedTensor], metas: Sequence[TensorMeta]) -> fx.GraphModule:
        """A part's graph over all operands and sizes, with results in fresh memory, laid out as `metas`."""
        nodes = [fresh_copy(part, result, meta) for result, meta in zip(results, metas)]
        own = dict(zip(map(id, part.operands), part.slots))
        slots: list[tuple[fx.Node | None, object]] = []
        for operand in self.operands:
            slots.append((own.get(id(operand)), operand.meta._replace(requires_grad=False)))
        for symbol, size in zip(self.symbol, self.sizes(part)):
            slots.append((part._size_nodes.get(symbol), size))
        return part_module(part, slots, nodes)


def fresh_copy(trace: Trace, result: TracedTensor, meta: TensorMeta) -> fx.Node:
    node: fx.Node = trace.call(aten.clone.default, trace.restride(result.node, meta))
    return node


def part_module(
    trace: Trace, slots: Sequence[tuple[fx.Node | None, object]], results: Sequence[fx.Node]
) -> fx.GraphModule:
    """The graph of a trace as a function of `slots`: its placeholders (None: not read), and their values."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for place, (slot, value) in enumerate(slots):
        node = graph.placeholder(f"operand{place}")
        node.meta["val"] = value
        if slot is not None:
            copies[slot] = node
    for node in trace.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    output = graph.output(tuple([copies[node] for node in results]))
    output.meta["val"] = None
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not traits_of(node.target).impure:
            graph.erase_node(node)
    return graph_module(graph, trace.constants, "Way")


def choose(
    trace: Trace,
    pred: TracedTensor,
    ways: Sequence[tuple[Part, list[TracedTensor]]],
    again: bool = False,
    always: bool = False,
    sure: Sequence[TracedTensor] = (),
) -> list[TracedTensor]:
    """The results of the part that the data `pred` choose: the operation `bolide::branch`, with its gradient. `again`:
    it is no part of a program, but of one that is derived. `always`: as those of `torch.cond`, all results have a
    gradient if an operand does, and what a way does not use has zeros. `sure`: operands that have zeros then.

    Raises Unsupported for results that differ in more than their values, or that cannot be differentiated."""
    parts = [part for part, _ in ways]
    metas = [common_layout([first.meta, second.meta]) for first, second in zip(*[results for _, results in ways])]
    outer = list({id(operand): operand for part in parts for operand in part.operands}.values())
    place = Places(outer, parts)
    grad = torch.is_grad_enabled()
    every = always and _requires(outer)
    pairs = enumerate(zip(*[_histories(part, results) for part, results in ways]))
    derived = [at for at, pair in pairs if grad and (_requires(pair) or (every and is_continuous(pair[0])))]
    wanted = [index for index, operand in enumerate(outer) if operand.requires_grad and derived]
    graphs = tuple([place.graph_of(part, results, metas) for part, results in ways])
    zeros = tuple([index for index, operand in enumerate(outer) if any(operand is each for each in sure)])
    table = Branches(graphs, len(outer), tuple(metas), tuple(wanted), tuple(derived), always=always, sure=zeros)
    if wanted and any(_decides_inside(part) for part in parts):
        reason = "a branch in a way of another one decides which gradients there are"
        raise Unsupported(reason, trace.where, kind="control_flow")
    for part in parts:
        why = "a backward of the program's own" if part.derivation.is_own else part.functional_only
        if wanted and why is not None:
            reason = f"a branch that depends on data is differentiated: {why}"
            raise Unsupported(reason, part.where, kind="control_flow")
    if wanted:
        table.derive()
    handle, sizes = enter(table), place.sizes(trace)
    if not wanted:
        return list(_recorded(trace, pred, outer, sizes, handle))
    return list(Choice.apply(trace, handle, sizes, again, pred, *outer))  # type: ignore[no-untyped-call]


def _histories(part: Part, results: Sequence[TracedTensor]) -> list[TracedTensor]:
    """For each result of a way what has its history: an operand, if that is what is left as it was."""
    operands = {id(part.adopt(operand)): operand for operand in part.operands}
    return [operands.get(id(result), result) for result in results]


def _decides_inside(part: Part) -> bool:
    tables = [lookup(node.args[3]) for node in part.graph.nodes if node.target is branch]  # type: ignore[arg-type]
    return any(table.differentiable and table.decides() for table in tables)


def _requires(results: Sequence[TracedTensor]) -> bool:
    return any(result.requires_grad for result in results)


def is_continuous(tensor: TracedTensor | TensorMeta) -> bool:
    """Whether it may have a gradient."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def replayed(
    trace: Trace | None, pred: Any, operands: Sequence[Any], sizes: Sequence[Any], table: int
) -> tuple[Any, ...]:
    """A node `bolide::branch` once more, on traced tensors; without a trace on real ones, with eager's history."""
    branches: Branches = lookup(table)
    if trace is None:
        return tuple(run_again(None, branches.graphs[0 if pred.item() else 1], [*operands, *sizes]))
    ways = []
    for graph in branches.graphs:
        part = Part(trace)
        with part.alone():
            values = list(run_again(part, graph, [*operands, *sizes]))
        ways.append((part, [part.adopt(value) for value in values]))
    return tuple(
        choose(trace, pred, ways, again=True, always=branches.always, sure=[operands[at] for at in branches.sure])
    )


REPLAYED: dict[object, Callable[..., Sequence[torch.Tensor]]] = {
    branch: replayed,
    recurrent: recurrent_again,
    recurrent_forward: recurrent_again,
    rnn_layer: lambda trace, *args: torch.ops.aten.mkldnn_rnn_layer.default(*args),
}
"""How an operation over graphs is done again, given the trace and its arguments."""


def call_again(
    trace: Trace | None, target: Any, args: Sequence[object], kwargs: Mapping[str, object], cut: object = False
) -> object:
    """A node of a graph once more, on traced tensors or, without a trace, on real ones. No derivative goes through what
    is `cut`."""
    again = REPLAYED.get(target)
    if again is None and not cut and _loses_derivatives(target, args):
        raise Unsupported(f"the derivative of {target}, done again, is not known", kind="operator")
    value = target(*args, **kwargs) if again is None else again(trace, *args)
    return separated(value) if cut else value


def _loses_derivatives(target: object, args: Sequence[object]) -> bool:
    """Whether an operator of ours is called, whose derivative only the engine's history knew."""
    if not isinstance(target, OpOverload) or target.namespace != "bolide" or not torch.is_grad_enabled():
        return False
    return bool(target._schema.returns) and any(tensor.requires_grad for tensor in found_in(args, torch.Tensor))


def run_again(trace: Trace | None, graph: fx.GraphModule, given: Sequence[Any]) -> Iterator[Any]:
    """The results of a graph on traced values, with derivatives where it has them."""

    def call(node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return call_again(trace, node.target, args, kwargs, node.meta.get("cut"))

    values = evaluated(graph, given, call, (lambda constant: constant) if trace is None else trace.lift)
    results: Any = graph.graph.output_node().args[0]
    return (values[result] if isinstance(result, fx.Node) else result for result in results)


def again(graph: fx.GraphModule, given: Sequence[object]) -> list[object]:
    """The results of a graph. What records its caller records the graph's operations."""
    trace = next((value._trace for value in given if type(value) is TracedTensor), None)
    return list(run_again(trace, graph, given))  # type: ignore[arg-type]


def _derivative(
    graph: fx.GraphModule, branches: Branches, tangent_metas: Sequence[TensorMeta]
) -> tuple[fx.GraphModule, tuple[tuple[bool, ...], ...]]:
    """The gradients of one way, and to which of them each tangent contributes. It is run once more on new leaves: what
    the operands are made of is not its business."""
    tape = Trace()
    slots = [node.meta["val"] for node in placeholders(graph)]
    sizes = slots[branches.operands :]
    if sizes:
        tape.shapes = sizes[0].node.env
    tensors = [*slots[: branches.operands], *tangent_metas]
    nodes = [tape.slot("operand", meta) for meta in tensors]
    given_sizes = [size_operand(tape, size.node.expr) for size in sizes]
    size_nodes = [tape.size_node(size.node.expr) for size in sizes]
    with tape.alone(), torch.enable_grad(), torch._C._DisableAutocast():
        traced = [
            TracedTensor.make(tape, meta, node, requires_grad=place in branches.differentiable)
            for place, (meta, node) in enumerate(zip(tensors, nodes))
        ]
        leaves, tangents = traced[: branches.operands], traced[branches.operands :]
        tape.differentiates = True  # ways of branches in this one are derived from what is recorded here
        outputs = list(run_again(tape, graph, [*leaves, *given_sizes]))
        tape.differentiates = False
        pairs = [(outputs[place], tangent) for place, tangent in zip(branches.derived, tangents)]
        wanted_leaves = tuple([leaves[place] for place in branches.differentiable])
        alone = [engine_run([pair], wanted_leaves) for pair in pairs]
        gradients = alone[0] if len(pairs) == 1 else engine_run(pairs, wanted_leaves)
        wanted = [row_major(slots[place]) for place in branches.differentiable]
        results = [
            tape.filled(meta, 0) if gradient is None else fresh_copy(tape, gradient, meta)
            for gradient, meta in zip(gradients, wanted)
        ]
    reach = tuple([tuple([gradient is not None for gradient in part]) for part in alone])
    return part_module(tape, list(zip([*nodes, *size_nodes], [*tensors, *sizes])), results), reach


def engine_run(pairs: Sequence[tuple[Any, Any]], leaves: tuple[Any, ...]) -> Sequence[Any]:
    """The gradients of leaves, None where there is none, for these results and their tangents."""
    pairs = [pair for pair in pairs if pair[0].requires_grad]
    if not pairs:
        return [None] * len(leaves)
    with torch.no_grad():
        return engine_pass(
            tuple([output for output, _ in pairs]),
            tuple([tangent for _, tangent in pairs]),
            keep_graph=True,
            create_graph=False,
            inputs=leaves,
            allow_unreachable=True,
            accumulate_grad=False,
        )


class Choice(torch.autograd.Function):
    """The operation `bolide::branch` on traced tensors, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, trace: Trace, table: int, sizes: list[Any], again: bool, pred: TracedTensor, *operands: TracedTensor
    ) -> Any:
        ctx.again = again
        ctx.trace, ctx.table, ctx.sizes, ctx.given = trace, table, sizes, [pred, *operands]
        ctx.versions = [trace.adopt(tensor).group.version for tensor in ctx.given]
        ctx.nodes = [trace.adopt(tensor).node for tensor in ctx.given]
        results = _recorded(trace, pred, operands, sizes, table)
        derived = lookup(table).derived
        ctx.mark_non_differentiable(*[result for place, result in enumerate(results) if place not in derived])
        return results

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor) -> Any:
        branches: Branches = lookup(ctx.table)
        asked = not ctx.trace.derivation.running and not ctx.again  # by the program itself
        if asked and branches.decides():
            reason = "which gradients there are depends on data"
            raise Unsupported(reason, ctx.trace.where, kind="control_flow")
        gradient = branches.derive()
        pred, *given = map(_as_given, itertools.repeat(ctx.trace), ctx.given, ctx.versions, ctx.nodes)
        operands = [given[place] for place in gradient.read] + [tangents[place] for place in branches.derived]
        compute = replayed if torch.is_grad_enabled() else _recorded
        computed = compute(ctx.trace, pred, operands, ctx.sizes, enter(gradient))
        gradients: list[Any] = [None] * branches.operands
        for index, value, reached in zip(branches.differentiable, computed, branches.reached()):
            gradients[index] = value if reached else None
        return (None, None, None, None, None, *gradients)


def _as_given(trace: Trace, tensor: TracedTensor, version: int, node: fx.Node) -> TracedTensor:
    """An operand as it was. What was written to since, no derivative goes through: eager has not saved it."""
    return tensor if trace.adopt(tensor).group.version == version else trace.wrap(node)


def _recorded(
    trace: Trace, pred: TracedTensor, operands: Sequence[TracedTensor], sizes: Sequence[Any], table: int
) -> tuple[TracedTensor, ...]:
    slots = placeholders(lookup(table).graphs[0])
    nodes = [laid_out(trace, trace.adopt(operand).node, slot.meta["val"]) for operand, slot in zip(operands, slots)]
    results = trace.call(branch, trace.adopt(pred).node, nodes, trace.unwrap(list(sizes)), table)
    return tuple([trace.wrap(node) for node in results])


def laid_out(trace: Trace, node: fx.Node, wanted: TensorMeta) -> fx.Node:
    """An operand as the graphs expect it: tangents may come in any layout."""
    return trace.restride(node, wanted) if is_dense(wanted.shape, wanted.stride) else node
