"""Recording at torch's level: the calls of torch's functions and methods as the program makes them, in an FX graph that
can be run, printed and differentiated by eager. It is made only for backends that want such a graph; the functional
graph of the trace is recorded at the same time.

What a graph of calls could not do faithfully is refused (`CallRecorder.refusal`): then the functional graphs are used.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy
import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node as GradNode
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from bolide.symbolic import Expr
from bolide.tracing import modes
from bolide.tracing.fallible import may_raise
from bolide.tracing.graph import Graph
from bolide.tracing.meta import found_in
from bolide.tracing.numbers import data, scalars
from bolide.tracing.operations import generators
from bolide.tracing.recording.recorder import NonLeaf
from bolide.tracing.tensor import TracedTensor, nodes_behind
from bolide.tracing.trace import Trace
from bolide.tracing.traits import traits_of

_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str)
_CONSTANTS = (
    type(None),
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
_OPERATORS: dict[str, Any] = {
    name: getattr(operator, name)
    for name in vars(operator)
    if name.startswith("__") and callable(getattr(operator, name)) and hasattr(torch.Tensor, name)
}
"""Python's operators by the names of their methods."""
_SAID_AS_OPERATORS: dict[str, tuple[Any, int]] = {
    **{f.__name__: (f, 2) for f in (operator.add, operator.sub, operator.mul, operator.matmul, operator.pow)},
    **{f.__name__: (f, 2) for f in (operator.ne, operator.lt, operator.le, operator.gt, operator.ge)},
    "div": (operator.truediv, 2),
    "remainder": (operator.mod, 2),
    "neg": (operator.neg, 1),
}
"""The operators that call methods of other names, which do the same, and the number of their operands."""


_METHODS = {
    value: name for cls in (torch._C.TensorBase, torch.Tensor) for name, value in vars(cls).items() if callable(value)
}
"""The names of the methods of tensors."""


_T = torch.Tensor
READS = frozenset(
    {
        *(getattr(_T, name).__get__ for name in ("device", "dtype", "is_leaf", "is_nested", "is_quantized", "layout")),
        *(getattr(_T, name).__get__ for name in ("ndim", "requires_grad", "shape")),
        *(_T.dim, _T.is_conj, _T.is_inference, _T.is_neg, _T.numel),
        *(_T.size, _T.storage_offset, _T.stride, _T.untyped_storage),
    }
)
"""What reads of a tensor without an effect, and makes none: each input is asked some twenty such questions."""


@functools.cache
def _has_effect(target: torch._ops.OpOverload) -> bool:
    """Whether an operation draws random numbers, or answers nothing: it checks something."""
    return target.namespace == "bolide" or traits_of(target).seeded or not target._schema.returns


def nowhere() -> tuple[object, object]:
    """What is around a call that nobody knows more about: no lines, no modules."""
    return (), ()


class CallRecorder(TorchFunctionMode):
    """Active while a program is captured. `refusal`: why the graph cannot be used, if it cannot; `changes_modes`:
    whether the graph changes torch's modes on its way; `has_floats`: whether it computes Python floats. `around`: the
    user's lines and the modules around a call. `modes_set`: setters that the program has called of modes
    that all threads share.
    """

    def __init__(self, trace: Trace, modes_set: Collection[object]) -> None:
        super().__init__()
        self.modes_set = modes_set
        self.around: Callable[[], tuple[object, object]] = nowhere
        self.trace = trace
        self.graph: fx.Graph = Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.refusal: str | None = None
        self.changes_modes = self.has_floats = False
        self._nodes: dict[int, tuple[object, fx.Node]] = {}
        self._numbers: dict[fx.Node, fx.Node] = {}
        self._start = self._state = modes.settings()
        self._conditions: list[Callable[[], str | None]] = []
        self.origins: dict[fx.Node, fx.Node] = {}  # the call that has recorded a node of the trace
        self._remade: set[GradNode] = set()  # autograd's nodes of user's functions that recorded calls make again

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def release(self) -> None:
        """The graph is finished: let go of the values that it stands for."""
        for known in (self._nodes, self._numbers, self._conditions, self._remade, self.origins):
            known.clear()
        if self.refusal is not None:
            self.graph, self.constants = fx.Graph(), {}  # nobody runs it; it calls what the program has made

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS:
            return func(*args, **kwargs)
        return self._record(func, args, kwargs, functools.partial(func, *args, **kwargs))

    def as_one(self, func: Any, args: Sequence[Any], compute: Callable[[], Any], **kwargs: Any) -> Any:
        """What `compute` returns, recorded as one call of `func`, whatever torch's functions are called meanwhile."""
        if _get_current_function_mode() is not self:  # type: ignore[no-untyped-call]
            self.refusal = "a torch function mode of the program's own"
            return compute()
        with _pop_mode_temporarily():
            return self._record(func, tuple(args), kwargs, compute)

    def aside(self, func: Callable[..., Any], args: Sequence[object]) -> Any:
        """What `func` returns where this recorder is not there."""
        if _get_current_function_mode() is not self:  # type: ignore[no-untyped-call]
            return func(*args)
        with _pop_mode_temporarily():
            return func(*args)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Callable[[], Any]) -> Any:
        if self.refusal is not None:
            return compute()
        if modes.saved_tensor_hooks() is not None:
            self.refusal = "saved tensors go through functions of the program"
            return compute()
        state = modes.settings()
        operands = found_in((args, kwargs), TracedTensor)
        written = [(t.group, t.group.version) for t in operands]
        before = [t.grad_fn for t in operands]
        last = next(iter(reversed(self.trace.graph.nodes)), None)
        result = compute()
        recorded = self._since(last)
        wrote = any(group.version != version for group, version in written)
        raises = any(map(may_raise, recorded))
        effect = wrote or raises or any(_has_effect(cast(Any, node.target)) for node in recorded)
        if raises and self.trace.mutated_inputs():  # the call could not be made again in eager
            self.refusal = "an operation that may raise comes after, or with, a write to an input"
        tensors = found_in(result, TracedTensor)
        if effect or tensors:
            try:
                self._enter(state)
                call = self._node(func, args, kwargs)
                self._bind(result, call, effect)
                self.origins.update(dict.fromkeys(recorded, call))
                self._remade.update(_own_nodes([t.grad_fn for t in tensors], before))
            except _Refusal as refusal:
                self.refusal = str(refusal)
        return result

    def _since(self, last: fx.Node | None) -> list[fx.Node]:
        """The operators that were recorded after node `last`."""
        new = itertools.takewhile(lambda node: node is not last, reversed(self.trace.graph.nodes))
        return [node for node in new if isinstance(node.target, torch._ops.OpOverload)]

    def check(self, condition: TracedTensor) -> None:
        """A condition that the program raises without (see `data.check_tensor`). Writes to inputs cannot be taken back
        when it fails, so none may come before it."""
        if self.refusal is None:
            try:
                if self.trace.mutated_inputs():
                    raise _Refusal("a check comes after an input has been written to")
                node = self.graph.call_function(data.require_true, (self._tensor(condition),))
                node.meta["effect"], node.meta["where"] = True, self.trace.where
                node.meta["stack"], node.meta["modules"] = self.around()
            except _Refusal as refusal:
                self.refusal = str(refusal)

    def effect(self, func: Callable[..., object], tensor: TracedTensor, refusal: Callable[[], str | None]) -> None:
        """A call of `func` for what it does to a tensor. `refusal` is asked at the end why the graph cannot have it."""
        if self.refusal is None:
            try:
                self._enter(modes.settings())
                self._node(func, (tensor,), {}).meta["effect"] = True
                self._conditions.append(refusal)
            except _Refusal as error:
                self.refusal = str(error)

    # ---- nodes

    def _node(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        if func is torch.Tensor.new and len(args) == 2 and type(args[1]) is torch.Size:
            func = torch.Tensor.new_empty  # a graph holds sizes as tuples, which `new` takes for data
        operands = tuple(self._value(arg) for arg in args)
        named = {key: self._value(arg) for key, arg in kwargs.items()}
        name = _METHODS.get(func, "")
        if getattr(func, "__name__", "") == "__get__":
            node = self.graph.call_function(getattr, (operands[0], func.__self__.__name__))
        elif getattr(func, "__name__", "") == "__set__":
            raise _Refusal(f"an attribute of a tensor is set ({func.__self__.__name__})")
        elif name in _OPERATORS and not named:
            node = self.graph.call_function(_OPERATORS[name], operands)
        elif name in _SAID_AS_OPERATORS and not named and len(operands) == _SAID_AS_OPERATORS[name][1]:
            node = self.graph.call_function(_SAID_AS_OPERATORS[name][0], operands)
        elif name:
            node = self.graph.call_method(name, operands, named)
        else:
            node = self.graph.call_function(func, operands, named)
        node.meta["where"] = self.trace.where
        node.meta["stack"], node.meta["modules"] = self.around()
        return node

    def _bind(self, result: object, node: fx.Node, effect: bool) -> None:
        """Remember which tensors a node makes."""
        node.meta["effect"] = effect
        if isinstance(result, TracedTensor):
            node.meta["val"] = result.meta
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for position, item in enumerate(result):
                if isinstance(item, (TracedTensor, tuple, list)):
                    part = self.graph.call_function(operator.getitem, (node, position))
                    part.meta.update({key: node.meta[key] for key in ("where", "stack", "modules")})
                    self._bind(item, part, False)

    def _value(self, value: Any) -> Any:
        """An argument as it stands in the graph."""
        if isinstance(value, TracedTensor):
            return self._tensor(value)
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        if isinstance(value, torch.Generator):
            token = generators.known_token(self.trace, value)
            operands = (self._value(token), str(value.device))
            return None if token is None else self.graph.call_function(generators.generator_of, operands)
        if isinstance(value, torch.SymFloat):
            return self._float(scalars.of(value))
        if isinstance(value, Expr):
            return self._number(self.trace.size_node(value))
        if isinstance(value, torch.SymInt):
            return self._number(self.trace.size_node(value.node.expr))
        if isinstance(value, numpy.generic):
            return value.item()
        for base in _PLAIN:  # enumerations and other subclasses, which generated code cannot name
            if isinstance(value, base):
                return value if type(value) in _PLAIN else base(value)
        if isinstance(value, _CONSTANTS):
            return value
        if isinstance(value, slice):
            return slice(self._value(value.start), self._value(value.stop), self._value(value.step))
        if type(value) in (tuple, torch.Size):
            return tuple(self._value(item) for item in value)
        if type(value) is list:
            return [self._value(item) for item in value]
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self._value(item) for key, item in value.items()}
        raise _Refusal(f"an argument of type {type(value).__name__}")

    def _tensor(self, tensor: TracedTensor) -> fx.Node:
        known = self._nodes.get(id(tensor))
        if known is not None:
            return known[1]
        slot = self.trace.placeholder_of(tensor)
        if slot is not None:
            return self._slot(slot)
        source = tensor.node
        if source.op == "get_attr":
            return self._constant(self.trace.constants[str(source.target)])
        if source.target is torch.ops.aten.full.default and not source.args[0]:  # a size, as a tensor
            return self.graph.call_function(torch.full, ((), self._number(source.args[1])), dict(source.kwargs))
        raise _Refusal("a tensor comes from where torch's functions were not seen")

    def _slot(self, slot: fx.Node) -> fx.Node:
        """The placeholder here for a placeholder of the trace's graph."""
        placeholder = self._numbers.get(slot)
        if placeholder is None:
            placeholder = self._numbers[slot] = self.graph.placeholder(slot.name)
            placeholder.meta["val"] = slot.meta["val"]
        return placeholder

    def _number(self, node: Any) -> Any:
        """What computes a symbolic size, as a node of the trace's graph does."""
        if not isinstance(node, fx.Node):
            return node
        if node.op == "placeholder":
            return self._slot(node)
        if node not in self._numbers:
            size = self.graph.call_function(cast(Any, node.target), tuple(self._number(arg) for arg in node.args))
            size.meta["val"] = node.meta["val"]
            self._numbers[node] = size
        return self._numbers[node]

    def _float(self, value: scalars.TracedFloat) -> fx.Node:
        """A number of the graph as the Python float that it is in eager."""
        self.has_floats = True
        if id(value) not in self._nodes:
            if value.origin is None:
                node = self.graph.call_method("item", (self._tensor(value.tensor),))
            else:
                function, operands = value.origin
                node = self.graph.call_function(function, tuple(map(self._value, operands)))
            self._nodes[id(value)] = (value, node)
        return self._nodes[id(value)][1]

    def _constant(self, real: torch.Tensor) -> fx.Node:
        if torch._C._functorch.is_functorch_wrapped_tensor(real):
            raise _Refusal("a transform of torch.func is active")
        known = self._nodes.get(id(real))
        if known is None:
            name = f"constant{len(self.constants)}"
            self.constants[name] = real
            known = self._nodes[id(real)] = (real, self.graph.create_node("get_attr", name, name=name))
        return known[1]

    def _enter(self, state: list[modes.Setting]) -> None:
        """Add what brings torch's modes from those of the last node to `state`."""
        for setter, args in modes.own(modes.changed(self._state, state), self.modes_set):
            if setter is modes.set_nesting:
                continue  # says only when autocast's cache has to be cleared
            self.graph.call_function(setter, args).meta["effect"] = True
            if setter is torch.set_autocast_enabled and not args[1]:
                self.graph.call_function(torch.clear_autocast_cache).meta["effect"] = True
            self.changes_modes = True
        self._state = state

    # ---- the end

    def finish(
        self,
        outputs: Sequence[TracedTensor],
        eliminate: bool,
        sizes: Sequence[Expr] = (),
        names: Sequence[str] = (),
        floats: bool = False,
    ) -> fx.GraphModule | None:
        """The graph module, which takes what the trace's graph takes, under `names` if they are given, and returns the
        tuple of `outputs` and `sizes`; None if it was refused. With `eliminate`, calls without effects whose results
        nothing needs are dropped. `floats`: whether the graph may read tensors as Python floats, and compute with such.
        """
        try:
            refusals = (condition() for condition in self._conditions)
            self.refusal = self.refusal or self.trace.functional_only or next(filter(None, refusals), None)
            if self.refusal is None:
                for node in _own_nodes([tensor.grad_fn for tensor in outputs], self._remade):
                    raise _Refusal(f"the history has a function of the user's own, {type(node).__name__}")
                numbers = (self._number(self.trace.size_node(size)) for size in sizes)
                results = (*(self._tensor(tensor) for tensor in outputs), *numbers)
                self._enter(self._start)
                if not floats and (self.has_floats or self.trace.reads_floats):
                    raise _Refusal("Python floats are computed")
        except _Refusal as refusal:
            self.refusal = str(refusal)
        if self.refusal is not None:
            return None
        slots = [node for node in self.trace.graph.nodes if node.op == "placeholder"]
        for slot in reversed(slots):
            self.graph._root.append(self._slot(slot))
        for slot, name in zip(slots, names):
            _rename(self._slot(slot), name)
        self.graph.output(results)
        if eliminate:
            for node in reversed(self.graph.nodes):
                if not node.users and node.op not in ("placeholder", "output") and not node.meta.get("effect"):
                    self.graph.erase_node(node)
        self.graph.lint()
        return fx.GraphModule(self.constants, self.graph, "Captured")


class _Refusal(Exception):
    """A graph of calls would not do what the program does."""


def _rename(slot: fx.Node, name: str) -> None:
    """Give a placeholder a name that no other one has."""
    others = {node.target for node in slot.graph.find_nodes(op="placeholder") if node is not slot}
    candidates = itertools.chain([name], (f"{name}{number}" for number in itertools.count(1)))
    slot.target = next(each for each in candidates if each not in others)
    slot._rename(str(slot.target).lower())


def _own_nodes(roots: Iterable[GradNode | None], known: Iterable[GradNode | None]) -> Iterator[GradNode]:
    """The nodes of `autograd.Function`s that lead to `roots`; nothing is looked for behind what is `known`."""
    for node in nodes_behind(roots, known):
        if isinstance(node, BackwardCFunction) and not isinstance(node, NonLeaf._backward_cls):
            yield node
