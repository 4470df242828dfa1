"""One graph of a function: its results, what it writes to its arguments, and, where it is asked for, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bolide.functorch.calls import Request, Tracing, families, has_functions
from bolide.functorch.foreign import outgoing
from bolide.functorch.graphs import aten, give, output_node, placeholders, results
from bolide.functorch.joint import finish_inference, finish_joint
from bolide.functorch.passes import PASSES, run_passes
from bolide.functorch.signature import InputWrite, Result, Signature, has_new_history
from bolide.functorch.wrapped import Leaves, Value
from bolide.support.errors import FixedSizesNeeded, Unsupported
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling
from bolide.symbolic import as_expr
from bolide.tracing import TracedTensor, modes


@dataclass(frozen=True, slots=True)
class Whole:
    """A graph module with a placeholder for each leaf of the arguments (`inputs`, their names), followed by tangents.
    Its results are new values of the leaves at `writes`, `outputs` of the function, and gradients of the leaves at
    `gradients` (None of one that has no influence). `spec` and `result_spec`: how arguments and results are made of
    leaves; `aliased`: whether a result shares memory with an argument or another result."""

    module: fx.GraphModule
    inputs: tuple[str, ...]
    writes: tuple[int, ...]
    outputs: int
    gradients: tuple[int, ...]
    spec: pytree.TreeSpec
    result_spec: pytree.TreeSpec
    aliased: bool


def whole_graph(
    request: Request, args: Sequence[object], kwargs: dict[str, object], derived: Callable[[Value], int | None] | None
) -> Whole:
    """The graph of the function of a request, traced in the current grad mode.

    derived: is given what the function returns, and says which of the results, by position, has the tangent 1; None:
    all that require grad have tangents, which are placeholders. Without it nothing is differentiated.

    Raises RuntimeError for what changes shapes or storages of arguments, and what it raises; Unsupported for what no
    graph can do.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len({*map(id, tensors)}) < len(tensors):
        raise Unsupported("the same tensor is an argument, or a parameter, twice", kind="input")
    if any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        remedy = "give a tensor with numbers as sizes, and dynamic_shapes=True"
        raise Unsupported("the sizes of an argument are symbols", remedy=remedy, kind="input")
    with compiling, collector_paused(), modes.undisturbed(), modes.random_kept():
        try:
            return _Whole(request, leaves, spec, request.dynamic).finished(derived)
        except FixedSizesNeeded:
            if not request.dynamic:
                raise
        return _Whole(request, leaves, spec, False).finished(derived)


class _Whole:
    """One trace of a function and what becomes of it."""

    def __init__(self, request: Request, leaves: Leaves, spec: pytree.TreeSpec, symbolic: bool) -> None:
        self.tracing, self.spec = Tracing(request, leaves, families(leaves), symbolic), spec
        self.trace, self.leaves = self.tracing.trace, leaves

    def finished(self, derived: Callable[[Value], int | None] | None) -> Whole:
        try:
            result, _ = self.tracing.call(self.spec)
            one = None if derived is None else derived(result)
            self._check_arguments()
            return self._finished(result, derived is not None, one)
        finally:
            self.trace.release()

    def _check_arguments(self) -> None:
        tracing = self.tracing
        if len(tracing.leaves) > tracing.arguments or tracing.trace.generators:
            raise Unsupported("a graph reads a generator, or a tensor that requires grad, of outside", kind="input")
        if tracing.flags or tracing.moves_arguments():
            raise RuntimeError(
                "Found an input that received a metadata mutation: its shape, storage or requires_grad is changed in "
                "place. Change a view or a copy of it instead."
            )

    def _finished(self, result: Value, with_gradients: bool, one: int | None) -> Whole:
        trace, leaves = self.trace, self.leaves
        flat, result_spec = pytree.tree_flatten(result)
        tensors = [trace.own(leaf) for leaf in flat if isinstance(leaf, Tensor)]
        groups = [id(tensor.group) for tensor in tensors]
        aliased = len({*groups}) < len(groups) or any(tensor.group.source is not None for tensor in tensors)
        writes = trace.mutated_inputs()
        if with_gradients and any(has_new_history(trace.inputs[at], trace.leaves[at]) for at in writes):
            reason = "a graph with gradients writes to an argument that requires grad, or a value that does"
            raise Unsupported(reason, remedy="write a detached value", kind="tensor_write")
        values = self._values(flat)
        settled = self._finish(tensors, flat, writes, with_gradients, one)
        give(trace.graph, [*values, *settled])
        takes_grad = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        gradients = tuple(takes_grad) if with_gradients and settled else ()
        return self._leaving(writes, len(values), gradients, result_spec, aliased)

    def _values(self, flat: Leaves) -> list[object]:
        """The results as they are in the graph: in the layout that eager gives, or constants."""
        values: list[object] = []
        for leaf in flat:
            if isinstance(leaf, Tensor):
                tensor = self.trace.own(leaf)
                values.append(self.trace.restride(tensor.node, tensor.meta))
            else:
                values.append(self.trace.size_node(as_expr(leaf)) if isinstance(leaf, torch.SymInt) else leaf)
        return values

    def _finish(
        self,
        tensors: Sequence[TracedTensor],
        flat: Leaves,
        writes: Sequence[int],
        with_gradients: bool,
        one: int | None,
    ) -> list[object]:
        """Ends the graph with its writes; the gradients of the arguments that require grad."""
        trace = self.trace
        roots = [
            tensor
            for tensor in tensors
            if with_gradients and tensor.has_history and (one is None or tensor is flat[one])
        ]
        trace.derivation.lost |= has_functions([tensor.grad_fn for tensor in roots])
        shown = [Result(tensor.node, tensor.meta, next((r for r in roots if r is tensor), None)) for tensor in tensors]
        signature = Signature((), tuple(shown), tuple([InputWrite(at, None) for at in writes]))
        if not roots:
            finish_inference(trace, signature)
            return []
        joint = finish_joint(trace, signature)
        if joint.wrapped:
            raise Unsupported("the gradient of a plain input is a subclass of Tensor", kind="input")
        if one is not None:
            self._start_with_one(roots[0])
        gradients = zip(trace.leaves, results(trace.graph)[joint.outputs :])
        return [gradient for leaf, gradient in gradients if leaf.requires_grad]

    def _start_with_one(self, loss: TracedTensor) -> None:
        """The tangent is a constant."""
        graph = self.trace.graph
        tangent = placeholders(graph)[-1]
        with graph.inserting_after(loss.node):
            ones = graph.create_node("call_function", aten.ones_like.default, (loss.node,), name="ones_like")
        ones.meta = dict(tangent.meta)
        tangent.replace_all_uses_with(ones)
        graph.erase_node(tangent)

    def _leaving(
        self,
        writes: Sequence[int],
        outputs: int,
        gradients: tuple[int, ...],
        result_spec: pytree.TreeSpec,
        aliased: bool,
    ) -> Whole:
        trace, leaves = self.trace, self.leaves
        graph = run_passes(trace.graph, "export", PASSES)
        slots, places = placeholders(graph), [taken.at for taken in self.tracing.inputs]
        tangents = [at for at, slot in enumerate(slots) if str(slot.target).startswith("tangent")]
        prefix, first = ("primals_{}", 1) if tangents else ("arg{}_1", 0)
        names = {number: prefix.format(at + first) for number, at in enumerate(places)}
        names |= {at: f"tangents_{number}" for number, at in enumerate(tangents, 1)}
        out = outgoing(graph, trace.constants, names)
        own = dict(zip(places, placeholders(out.module.graph)))
        behind = next((node for node in out.module.graph.nodes if node not in own.values()), None)
        for at in reversed(range(len(leaves))):
            if at not in own:
                assert behind is not None
                with out.module.graph.inserting_before(behind):
                    own[at] = out.module.graph.placeholder(prefix.format(at + first))
                own[at].meta["val"] = leaves[at]
            behind = own[at]
        out.module.recompile()
        inputs = tuple([own[at].name for at in range(len(leaves))])
        written = tuple([places[at] for at in writes])
        return Whole(out.module, inputs, written, outputs, gradients, self.spec, result_spec, aliased)


def names_of_results(module: fx.GraphModule) -> list[str | None]:
    """The names of the nodes that a graph returns; None of constants."""
    values = output_node(module.graph).args[0]
    assert isinstance(values, (list, tuple))
    return [value.name if isinstance(value, fx.Node) else None for value in values]
