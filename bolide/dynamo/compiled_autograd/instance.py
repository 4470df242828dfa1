"""One backward pass as a graph: what torch's engine tells, node by node, instead of computing it."""

from __future__ import annotations

import contextlib
import inspect
import operator
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.fx as fx

from bolide.dynamo.compiled_autograd import calls, engine, order
from bolide.dynamo.compiled_autograd.calls import FORMULAS, Formula, Grad, Real
from bolide.dynamo.compiled_autograd.running import Running
from bolide.support import events
from bolide.symbolic import contiguous_strides
from bolide.tracing import TensorMeta, Trace, TracedTensor
from bolide.tracing.graph import mapped
from bolide.tracing.meta import meta_of
from bolide.tracing.numbers.scalars import TracedFloat

counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
"""``counters["compiled_autograd"]["captures"]``: how many backward passes were captured in this process."""

Call = Callable[..., Sequence[Grad]]
CompilerFn = Callable[[fx.GraphModule], Call]
Grads = Sequence[Grad]
Saved = Sequence[object]  # what a node of autograd's has kept: tensors, numbers, sizes, options, and lists of those
Number = int | float | torch.SymInt | torch.SymFloat
PLACEHOLDERS = ("inputs", "sizes", "scalars", "hooks", "packed_data")
_UNKNOWN = TensorMeta((0,), (1,), 0, torch.float32, torch.device("cpu"))  # what C++ passes on and never looks at
_CALL = "call"  # in the meta of nodes: the number of the call of an autograd node that they belong to


class AutogradCompilerInstance:
    """Records one backward pass as a graph of five lists (`PLACEHOLDERS`), and gives it to `compiler_fn`.

    The engine calls its methods while it walks over autograd's graph. The values that it is given stand for nodes of
    the graph: traced tensors and symbolic sizes. Each node of autograd's becomes a call of its formula, which the graph
    makes at run time on real tensors; so nothing is assumed of sizes here, and whoever compiles the graph guards what
    it assumes itself. With `by_function` a compiled function's own backend compiles a pass that it is a part of.
    """

    def __init__(self, compiler_fn: CompilerFn, by_function: bool = False) -> None:
        engine.begun()
        self.compiler_fn, self.by_function = compiler_fn, by_function
        self.trace = Trace()
        self.graph = self.trace.graph
        self.names: list[str] = []  # of the calls so far
        self.reasons: tuple[str, ...] = ()
        self.origin = ""  # of the current call, as text
        self.sums: dict[fx.Node, list[fx.Node]] = {}  # of gradients, and what they are sums of
        self.contexts: list[int] = []  # where custom functions' are among the hooks
        self.lists: dict[str, fx.Node] = {}
        self.roots, ends = engine.ends()
        self.edges = order.edges(self.roots, ends)  # of autograd's graph
        self.recording = contextlib.ExitStack()  # zeros that C++ makes in place of missing gradients are recorded

    # ---- what comes from outside ----------------------------------------------------------------------------------

    def begin_capture(
        self,
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[int | float],
        origins: Sequence[Sequence[tuple[int, str]]],
        accumulate_grad: bool,
        check_nans: bool,
    ) -> tuple[str, list[torch.Tensor], list[Number], list[Number]]:
        """Stand-ins for the tensors and numbers of this backward pass. `origins`: the calls that they belong to."""
        self.number = counters["compiled_autograd"]["captures"]
        counters["compiled_autograd"]["captures"] += 1
        self.started = time.perf_counter()
        self.complex = [index for index, real in enumerate(inputs) if real.is_complex()]
        self.lists = {name: self.graph.placeholder(name) for name in PLACEHOLDERS}
        tensors = [
            TracedTensor.make(self.trace, _meta(real), self._item("inputs", index), requires_grad=real.requires_grad)
            for index, real in enumerate(inputs)
        ]
        self._record(calls.release, self.lists["inputs"])
        symbols = [self._symbol("sizes", index, size) for index, size in enumerate(sizes)]
        numbers = [self._symbol("scalars", index, number) for index, number in enumerate(scalars)]
        self.recording.enter_context(self.trace.recording())
        return f"!{self.number}", [*tensors], symbols, numbers

    def log_compile_reasons(self, compile_reasons: list[str]) -> None:
        """Why nothing that was captured before fits."""
        self.reasons = tuple(compile_reasons)

    def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: object) -> None:
        """The engine goes on to another node of autograd's; `pyobj`: its object in Python, of a custom function."""
        self.names.append(node_name)
        self.origin = f"{node_name} (NodeCall {nodecall_index})"

    # ---- what nodes of autograd's compute -------------------------------------------------------------------------

    def bind_function(self, fn_name: str, fn: Call, is_custom_function: bool, is_traceable: bool) -> str:
        """Keep a formula; the name under which the engine will call it."""
        return calls.bind(fn_name, fn, is_custom_function, is_traceable)

    def apply_functional(self, fn_name: str, grads: Grads, args: Saved, metadata: Sequence[object]) -> list[Grad]:
        """A node of torch's own."""
        node = self._record(_formula(fn_name), grads, *args)
        return self._items(node, len(metadata))

    def validate_outputs(self, fn_name: str, outputs: Grads, args: Saved, metadata: object) -> list[Grad]:
        """Brings gradients into the shape of what they are gradients of, as the engine does behind every node."""
        if not outputs:
            return []
        assert _formula(fn_name) is _formula("validate_outputs")
        return self._items(self._record(calls.validate_outputs, self.names[-1], outputs, *args), outputs)

    def accumulate(self, old_var: torch.Tensor, new_var: torch.Tensor) -> torch.Tensor:
        """Two gradients of one value."""
        old, new = cast(TracedTensor, old_var).node, cast(TracedTensor, new_var).node
        total = self._record(calls.accumulate, old, new)
        self.sums[total] = [*self.sums.pop(old, [old]), new]
        return self._tensor(total)

    def accumulate_grad(self, variable: torch.Tensor, *others: object) -> torch.Tensor | None:
        """A leaf's gradient is complete. Before torch 2.13 the leaf's `grad` is not among the arguments."""
        grad, has_post_hooks = others[-2:]
        self._record(calls.accumulate_grad, variable, grad, has_post_hooks)
        return self._tensor(cast(TracedTensor, variable).node) if len(others) > 2 else None

    def proxy_call_backward(
        self,
        inputs: Grads,
        output_metadatas: Sequence[object],
        saved_tensors: Sequence[torch.Tensor],
        backward_idx: int,
        ctx: object,
        maybe_backward_state_idx: int | None,
        opaque_object_indices: Sequence[int],
    ) -> tuple[Grad, ...]:
        """The backward of an `autograd.Function`, which is Python, compiled functions' among them."""
        self.contexts.append(backward_idx)
        if self.by_function:
            self.compiler_fn = getattr(cast(Real, ctx)._forward_cls, "whole", None) or self.compiler_fn
        context = self._item("hooks", backward_idx)
        node = self._record(calls.call_backward, context, [*saved_tensors], len(output_metadatas), *inputs)
        return tuple(self._items(node, output_metadatas))

    def call_copy_slices_prologue(self, inputs: Grads, *geometry: object) -> list[Grad]:
        """A view was written in place."""
        return self._items(self._record(calls.copy_slices_prologue, inputs, *geometry), 3)

    def call_copy_slices_epilogue(self, needs_input_grad: Sequence[bool], *values: object) -> list[Grad]:
        """The same behind the function that wrote."""
        node = self._record(calls.copy_slices_epilogue, needs_input_grad, *values)
        return self._items(node, len(needs_input_grad))

    # ---- hooks ----------------------------------------------------------------------------------------------------

    def unpack_hook(self, hook_id: int, data_id: int) -> torch.Tensor:
        """A saved tensor was packed by the program's hook."""
        data = self._item("packed_data", data_id)
        return self._tensor(self._record(calls.call_hook, self._item("hooks", hook_id), data))

    def tensor_pre_hook(self, inputs: list[Grad], hook_id: int, i: int) -> list[Grad]:
        """A hook on a tensor's gradient."""
        inputs[i] = self._tensor(self._record(calls.call_tensor_hook, self._item("hooks", hook_id), inputs[i]))
        return inputs

    def cpp_tensor_pre_hook(self, inputs: list[Grad], hook_id: int, i: int) -> list[Grad]:
        """The same, written in C++ (`retain_grad`)."""
        inputs[i] = self._tensor(self._record(calls.call_cpp_tensor_hook, hook_id, inputs[i]))
        return inputs

    def pre_hook(self, inputs: Grads, hook_id: int) -> list[Grad]:
        """A hook on a node, before it runs."""
        node = self._record(calls.call_hook, self._item("hooks", hook_id), tuple(inputs))
        return self._items(node, inputs)

    def post_hook(self, outputs: Grads, inputs: Grads, hook_id: int) -> list[Grad]:
        """A hook on a node, after it has run."""
        node = self._record(calls.call_hook, self._item("hooks", hook_id), tuple(outputs), tuple(inputs))
        return self._items(node, outputs)

    def post_acc_grad_hook(self, input: torch.Tensor, hook_id: int) -> list[Grad]:
        """A hook on a leaf whose gradient is complete."""
        return [self._tensor(self._record(calls.call_after_accumulation, self._item("hooks", hook_id), input))]

    # ---- the end --------------------------------------------------------------------------------------------------

    def end_capture(self, outputs: Grads) -> tuple[Running, Call]:
        """The function that runs the backward pass, and the compiled graph that it is given at each call."""
        self.recording.close()
        self.graph.output(mapped(outputs, self._node))
        self._order_as_engine()
        self._remove_dead()
        for node in self.graph.nodes:
            if node.target is calls.accumulate_grad and isinstance(grad := node.args[1], fx.Node):
                node.args = (*node.args, len(grad.users) == 1)
        for node in self.graph.nodes:  # stand-ins, which end with the capture
            node.meta.pop("val", None)
        kept = {name: self._keep_used(name) for name in ("sizes", "scalars")}
        name = f"CompiledAutograd{self.number}"
        module = fx.GraphModule({}, self.graph, name)
        if events.subscribers:
            seconds = time.perf_counter() - self.started
            events.emit(events.BackwardCaptured(name, module, seconds, self.reasons))
        running = Running(name, kept["sizes"], kept["scalars"], self.contexts, self.complex)
        return running, self._compiled(module)

    def _compiled(self, module: fx.GraphModule) -> Call:
        try:
            with contextlib.suppress(ValueError):  # functions in C have no signature
                inspect.signature(self.compiler_fn).bind(module)
        except TypeError as error:
            raise TypeError(
                "compiler_fn is called with the graph module of a backward pass, and takes other arguments "
                f"({error}).\n  remedy: with a backend, enable(functools.partial(bolide.compile, backend=…))"
            ) from None
        return self.compiler_fn(module)

    def close(self) -> None:
        """Nothing more is recorded."""
        self.recording.close()
        self.trace.release()
        self.edges.clear()
        self.roots.clear()

    def _order_as_engine(self) -> None:
        """Puts the calls, and sums of gradients, into the engine's order, if that is known."""
        place = order.positions(self.roots, self.edges, self.names)
        if place is None:
            return
        for total, parts in self.sums.items():
            first, *others = sorted(parts, key=lambda part: place.get(_call_of(part), -1))
            value = first
            for part in others:
                value = self._record(calls.accumulate, value, part)
                value.meta.update(part.meta)
            total.replace_all_uses_with(value)
            while total.target is calls.accumulate and not total.users:  # the sums that it was made of
                before = cast(fx.Node, total.args[0])
                self.graph.erase_node(total)
                total = before
        order.rearrange(self.graph, _call_of, place)

    def _remove_dead(self) -> None:
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and not node.users and not calls.has_effects(node.target):
                self.graph.erase_node(node)

    def _keep_used(self, name: str) -> tuple[int, ...]:
        """Numbers the items of a list anew; those that the graph reads."""
        items = [node for node in self.lists[name].users if node.target is operator.getitem]
        used = tuple(int(node.args[1]) for node in items)  # type: ignore[arg-type]
        for index, node in enumerate(items):
            node.args = (node.args[0], index)
        return used

    # ---- nodes ----------------------------------------------------------------------------------------------------

    def _item(self, name: str, index: int) -> fx.Node:
        """An item of one of the lists that the graph is given."""
        return self._record(operator.getitem, self.lists[name], index)

    def _symbol(self, name: str, index: int, value: float) -> Number:
        """The symbol of a number among the graph's arguments."""
        node = self._item(name, index)
        if isinstance(value, float):
            tensor = TracedTensor.make(self.trace, TensorMeta((), (), 0, torch.float64, torch.device("cpu")), node)
            return TracedFloat(self.trace, tensor, value)
        symbol = self.trace.shapes.size(value, None, None, None)
        assert isinstance(symbol, torch.SymInt)
        node.meta["val"] = symbol
        self.trace.bind_size(symbol, node)
        return symbol

    def _record(self, function: Callable[..., object], *args: object) -> fx.Node:
        node = self.graph.create_node("call_function", function, mapped(args, self._node))
        if self.names:
            node.meta[_CALL] = len(self.names) - 1
            node.meta["stack_trace"] = f'  File "{__file__}", line 1, in autograd\n    {self.origin}\n'
        return node

    def _items(self, node: fx.Node, of: int | Sequence[object]) -> list[Grad]:
        """The results of a node: as many, or those in whose place there is something."""
        present = range(of) if isinstance(of, int) else [i for i, item in enumerate(of) if item is not None]
        results: list[Grad] = [None] * (of if isinstance(of, int) else len(of))
        for index in present:
            results[index] = self._tensor(self._record(operator.getitem, node, index))
        return results

    def _tensor(self, node: fx.Node) -> TracedTensor:
        return TracedTensor.make(self.trace, _UNKNOWN, node)

    def _node(self, value: object) -> object:
        """What stands for a value in the graph. Raises NotImplementedError for a tensor of this pass alone: the graph
        would have it in later ones as well."""
        if isinstance(value, torch.SymFloat):
            return value.node.owner.tensor.node
        if isinstance(value, torch.Tensor) and not isinstance(value, TracedTensor):
            raise NotImplementedError(f"{self.origin} has made a tensor that is not an input of the backward pass")
        return self.trace.unwrap(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else value


def _call_of(node: fx.Node) -> int:
    """The call of an autograd node that a node belongs to; -1: none, it comes first."""
    return int(node.meta.get(_CALL, -1))


def _formula(name: str) -> Formula:
    """Raises RuntimeError for what another user of the engine's hook has bound: the engine binds once in a process."""
    if name not in FORMULAS:
        raise RuntimeError(
            f"the formula of {name} is bound to another compiled autograd, which this process has used before: use "
            "torch's or bolide's, not both in a process"
        )
    return FORMULAS[name]


def _meta(real: torch.Tensor) -> TensorMeta:
    if real.layout is torch.strided:
        return meta_of(real)
    return TensorMeta(tuple(real.shape), contiguous_strides(real.shape), 0, real.dtype, real.device)
