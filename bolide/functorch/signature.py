"""How a traced program's outputs are made of its graph's results: which are fresh, which are inputs, and which are
views of something.

An output that shares memory with an input or another output must do so at run time. The graph itself is functional, so
it computes only the *base* of such a family, and the views are made anew from it by the operations that made them
while tracing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx as fx

from bolide.support.errors import Unsupported
from bolide.symbolic import Expr, as_expr
from bolide.tracing import TensorMeta, Trace, TracedTensor
from bolide.tracing.graph import mapped
from bolide.tracing.meta import found_in
from bolide.tracing.numbers.data import binds
from bolide.tracing.recording.recorder import NonLeaf
from bolide.tracing.rules.common import is_dense

Chain = tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...]


MADE_WITHOUT_GRAD = torch._C._autograd.CreationMeta.NO_GRAD_MODE
ONE_OF_SEVERAL = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
_ALIAS: Chain = ((torch.ops.aten.alias.default, (), {}),)
_DETACH: Chain = ((torch.ops.aten.detach.default, (), {}),)


@dataclass(frozen=True, slots=True)
class Output:
    """One output: the object at `index` of the inputs, results or constants or of the outputs before it, or what
    `chain` (view ops, with their arguments after the tensor) makes of it. `tracked` says whether autograd records the
    views, `is_piece` whether it takes them for pieces of one operation (`split`), which may not be written in place.
    """

    kind: Literal["input", "result", "constant", "output"]
    index: int | str
    chain: Chain = ()
    tracked: bool | None = None
    is_piece: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A value that the graph computes. `tensor` carries its history and is None where it has none. One that is a view
    with a history of its own lies in the memory of what it is a view of, which `shares` describes.
    """

    node: fx.Node
    meta: TensorMeta
    tensor: TracedTensor | None
    shares: Output | None = None


@dataclass(frozen=True, slots=True)
class InputWrite:
    """An input that the program writes to. With `result`, the write is part of the history: autograd has to see it, so
    the graph only computes that result. `counted`: autograd's version counter sees it. `plain`: it does so outside
    inference mode.
    """

    input: int
    result: int | None
    counted: bool = True
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything the run-time wrappers have to know. `results` are distinct, fresh tensors without holes or
    overlaps. `numbers`: the nodes of sizes that are data and that views of results, or of inputs, are made with; their
    values are results of the graph behind the tensors.
    """

    outputs: tuple[Output, ...]
    results: tuple[Result, ...]
    writes: tuple[InputWrite, ...]
    numbers: tuple[fx.Node, ...] = ()

    @property
    def differentiable(self) -> bool:
        return any(result.tensor is not None for result in self.results)


def _portable(chain: Chain) -> Chain:
    """A recorded chain without nodes of the graph: sizes are `Expr`s."""
    portable: Chain = mapped(chain, lambda value: as_expr(value.meta["val"]) if isinstance(value, fx.Node) else value)
    return portable


def with_sizes(value: Any, sizes: Mapping[str, int]) -> Any:
    """Arguments of view ops, or strides, with numbers for symbols."""
    return mapped(value, lambda item: item.evaluate(sizes) if isinstance(item, Expr) else item)


def is_symbolic(value: object) -> bool:
    """Whether there is an `Expr` anywhere in it."""
    return bool(found_in(value, Expr))


def describe(trace: Trace, outputs: Sequence[TracedTensor]) -> Signature:
    """Sorts the outputs and the writes of a finished trace."""
    results: list[Result] = []
    writes: list[InputWrite] = []
    for index in trace.mutated_inputs():
        tensor = trace.inputs[index]
        with_history = has_new_history(tensor, trace.leaves[index])
        group, result = tensor.group, len(results) if with_history else None
        writes.append(InputWrite(index, result, group.counted, group.plainly))
        if with_history:
            results.append(Result(tensor.node, tensor.meta, tensor))
    families: dict[int, list[TracedTensor]] = {}
    for tensor in outputs:
        family = families.setdefault(id(tensor.group), [])
        if all(tensor is not member for member in family):
            family.append(tensor)
    placed: dict[int, Output] = {}
    for family in families.values():
        placed.update(_place(trace, family, results))
    first: dict[int, int] = {}
    earlier = [first.setdefault(id(tensor), position) for position, tensor in enumerate(outputs)]
    placed_outputs = tuple(
        placed[id(tensor)] if earlier[position] == position else Output("output", earlier[position])
        for position, tensor in enumerate(outputs)
    )
    return Signature(placed_outputs, tuple(results), tuple(writes), _numbers(trace, placed_outputs))


def _numbers(trace: Trace, outputs: Sequence[Output]) -> tuple[fx.Node, ...]:
    names = set().union(*(_names(output.chain) for output in outputs)) & trace.shapes.facts.names
    if not names:
        return ()
    return tuple(node for node in trace.graph.nodes if binds(node) and str(as_expr(node.meta["val"])) in names)


def _names(chain: Chain) -> set[str]:
    """The symbols in the arguments of view operations."""
    return set().union(*(expr.free_vars for expr in found_in(chain, Expr)))


def has_new_history(tensor: TracedTensor, leaf: TracedTensor) -> bool:
    """Did a write to an input become part of its history? One that is no leaf has a first step that leads to `leaf`."""
    step: Any = tensor.grad_fn
    if step is None or tensor is leaf:
        return step is not None
    return all(getattr(following, "variable", None) is not leaf for following, _ in step.next_functions)


def _place(trace: Trace, family: list[TracedTensor], results: list[Result]) -> dict[int, Output]:
    """Where each of the outputs of one storage comes from; adds the result that the graph must compute for them, if
    any.
    """
    group = family[0].group
    if group.source is not None:
        source = trace.inputs[group.source]
        return _with_own_history(trace, family, results, source, _aliases(family, "input", group.source, source))
    if group.base.op == "get_attr" and group.frozen:
        return _aliases(family, "constant", str(group.base.target), None)
    position = len(results)
    marked = any(tensor.is_conj() or tensor.is_neg() for tensor in family)
    untracked_view = family[0].requires_grad and not family[0].has_history and family[0]._is_view()
    if len(family) == 1 and not (marked or untracked_view) and is_dense(family[0].shape, family[0].stride()):
        results.append(_fresh(family[0]))
        return {id(family[0]): _whole(family[0], position)}
    owner = _owner(family)
    results.append(Result(group.base, group.base.meta["val"], None) if owner is None else _fresh(owner))
    return _with_own_history(trace, family, results, owner, _aliases(family, "result", position, owner))


def _with_own_history(
    trace: Trace,
    family: list[TracedTensor],
    results: list[Result],
    owner: TracedTensor | None,
    aliases: dict[int, Output],
) -> dict[int, Output]:
    """The outputs of a family. Those of which autograd knows more than that they are views of the owner (a Function of
    the program's lies between, or a hook) are results by themselves, in the owner's memory."""
    placed = dict(aliases)
    for tensor in family if owner is not None else ():
        alias = aliases[id(tensor)]
        asked = trace.derivation.is_own or not tensor.chain or not tensor._is_view()
        if not (asked and alias.chain and alias.tracked and _is_derived_otherwise(trace, tensor, owner)):
            continue
        shares = None if _names(alias.chain) & trace.shapes.facts.names else alias
        in_place = shares is not None or is_dense(tensor.shape, tensor.stride())
        if tensor.is_conj() or tensor.is_neg() or not in_place:
            raise Unsupported("an output is a part of another, with another history", kind="detached_alias")
        placed[id(tensor)] = _whole(tensor, len(results))
        results.append(Result(tensor.node, tensor.meta, tensor, shares))
    return placed


def _is_derived_otherwise(trace: Trace, view: TracedTensor, owner: Any) -> bool:
    """Whether there is a derivative of the program's own, or a hook, on the way from a view to its owner; or none leads
    there: it was detached, and then written."""
    step: Any = view.grad_fn
    last: object = None
    while step is not None and step is not owner.grad_fn:
        if isinstance(step, torch.autograd.function.BackwardCFunction) or step in trace.derivation.hooked:
            return not isinstance(step, NonLeaf._backward_cls)  # type: ignore[attr-defined]
        step, last = step.next_functions[0][0] if step.next_functions else None, step
    return step is None and last is not None and getattr(last, "variable", None) is not owner


def _owner(family: list[TracedTensor]) -> TracedTensor | None:
    """The tensor whose views the others are: the one with history if there is one; None if it is not at hand (without
    history nothing depends on it).
    """
    tracked = next((tensor for tensor in family if tensor.requires_grad), None)
    if tracked is None:
        return next((tensor for tensor in family if not tensor.chain), None)
    owner: Any = tracked._base if tracked.chain else tracked
    if isinstance(owner, TracedTensor) and not owner.chain:
        return owner
    raise Unsupported("outputs share memory, and the history of one begins at a detached view", kind="detached_alias")


def _aliases(
    family: list[TracedTensor],
    kind: Literal["input", "result", "constant"],
    index: int | str,
    owner: TracedTensor | None,
) -> dict[int, Output]:
    """The owner itself, and how the others are made from it: views with history, views of the detached owner, and views
    taken in no-grad mode (which say that they require grad when the owner does).
    """
    placed: dict[int, Output] = {}
    for tensor in family:
        chain, tracked = tensor.passed + tensor.chain, True if tensor.has_history else None
        creation = _creation(tensor)
        if owner is not None and tracked is None:
            if tensor is not owner and creation is not None and tensor._base is owner and not owner.requires_grad:
                # autograd sees a view without history: a write with one would reach the owner
                tracked = creation != MADE_WITHOUT_GRAD
            elif tensor is not owner and not tensor.requires_grad:
                chain = (*_DETACH, *chain)
            elif owner.requires_grad:
                tracked = False
        if tensor is not owner and owner is not None and not chain:
            chain = _ALIAS  # another object
        if chain and tracked is None and creation is None:
            chain = (*chain, *_DETACH)  # to autograd it is no view of anything
        is_piece = creation == ONE_OF_SEVERAL
        placed[id(tensor)] = Output(kind, index, _portable(chain), tracked if chain else None, is_piece and bool(chain))
    return placed


def _whole(tensor: TracedTensor, position: int) -> Output:
    """An output that is a result; a piece is a view of it, so that autograd knows it as one."""
    piece = _creation(tensor) == ONE_OF_SEVERAL
    return Output("result", position, _ALIAS if piece else (), None, piece)


def _creation(tensor: TracedTensor) -> object:
    """How autograd says that a view was made; None of what is none."""
    return torch._C._autograd._get_creation_meta(tensor) if tensor._is_view() else None


def _fresh(tensor: TracedTensor) -> Result:
    if tensor.requires_grad and tensor.grad_fn is None and tensor._base is None:
        raise Unsupported(
            "a tensor made inside the function becomes a new leaf that requires grad",
            remedy="call requires_grad_() on it outside of the compiled function",
            kind="new_leaf",
            operation="requires_grad_",
        )
    return Result(tensor.node, tensor.meta, tensor if tensor.has_history else None)


def with_views(base: torch.Tensor, chain: Chain) -> torch.Tensor:
    """Applies view ops to a real tensor."""
    for op, args, kwargs in chain:
        base = op(base, *args, **kwargs)
    return base
