"""Derivatives that are Python code and cannot be recorded, because they read data or do more than compute: in the graph
they are ``bolide::derivative``, which calls that code when the backward runs, with what the forward has saved.

Such code is the backward of an `autograd.Function`, or of an operator that `torch.library` has given a derivative,
which is an `autograd.Function` as well. That it cannot be recorded is found out when the engine comes to it
(`Underivable`); then the program is captured again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.symbolic import same_sizes
from bolide.tracing.graph import enter, lookup, operator
from bolide.tracing.meta import TensorMeta, found_in
from bolide.tracing.operations.kinds import GENERATED
from bolide.tracing.rules.common import fresh, is_dense, row_major
from bolide.tracing.rules.registry import rule
from bolide.tracing.tensor import AliasGroup, TracedTensor, nodes_behind, reaches
from bolide.tracing.trace import Trace


class Underivable(Unsupported):
    """A derivative that cannot be recorded or, where that is known already, cannot be called when the backward runs.
    `key`: the `autograd.Function`, or the name of an operator's node in the history (`operations.kinds.formula_of`)."""

    def __init__(self, key: object, name: str, cause: Exception) -> None:
        reason = cause.reason if isinstance(cause, Unsupported) else f"{type(cause).__name__}: {cause}"
        super().__init__(f"the derivative of {name} cannot be recorded: {reason}", operation=name, kind="operator")
        self.key = key


# ---- Functions that are called again, to be derived twice ------------------------------------------------------------


@dataclass(eq=False)
class Application:
    """A call of an `autograd.Function`. Done again, its results are those of the nodes that its forward was recorded
    as; its backward is the program's own, called for real with what the forward has kept.

    `inputs`, `outputs`: the nodes of its arguments and results, None for what is no tensor; `single`: it gives no
    tuple; `derived`: the outputs with a history; `saved`, `attributes`: what its context holds, as `_described`;
    `materializes`: missing gradients are zeros to it. `shared`: the storages of inputs that outputs lie in, and the
    versions of these for which the nodes are right.
    """

    function: Any
    inputs: list[torch.fx.Node | None]
    outputs: list[torch.fx.Node | None]
    single: bool
    derived: tuple[int, ...]
    saved: tuple[object, ...]
    attributes: tuple[object, ...]
    materializes: bool
    shared: Sequence[tuple[AliasGroup, int]] = ()

    @property
    def operands(self) -> list[torch.fx.Node]:
        """The nodes whose values it takes."""
        return found_in((self.inputs, self.outputs, self.saved, self.attributes), torch.fx.Node)

    def again(self, known: dict[torch.fx.Node, Any]) -> None:
        """Gives its results among the `known` values of nodes the history that they have in eager."""

        def forward(ctx: FunctionCtx, *args: object) -> object:
            results = [None if node is None else known[node].detach() for node in self.outputs]
            vars(ctx).update(_held(self.attributes, args, results, known))
            ctx.save_for_backward(*_held(self.saved, args, results, known))
            ctx.set_materialize_grads(self.materializes)
            constant = [result for at, result in enumerate(results) if result is not None and at not in self.derived]
            ctx.mark_non_differentiable(*constant)
            return results[0] if self.single else tuple(results)

        base = self.function
        methods = {"forward": staticmethod(forward), "setup_context": staticmethod(Function.setup_context)}
        made = type(base)(base.__name__, (base,), {"__module__": base.__module__, **methods})
        results = made.apply(*[None if node is None else known[node] for node in self.inputs])
        for node, result in zip(self.outputs, (results,) if self.single else results):
            if node is not None:
                known[node] = result


def application(
    trace: Trace, function: object, values: Sequence[object], result: object, last: object
) -> Application | None:
    """A call of `function` that has just been recorded, behind the node `last`, with these arguments and this result;
    None if it cannot be done again."""
    outputs: list[object] = [*result] if isinstance(result, tuple) else [result]
    if any(isinstance(value, torch.Tensor) and type(value) is not TracedTensor for value in (*values, *outputs)):
        return None
    tensors = [(at, output) for at, output in enumerate(outputs) if isinstance(output, TracedTensor)]
    derived = [(at, output) for at, output in tensors if output.grad_fn is not None]
    made: set[torch.fx.Node] = set()
    node = trace.graph._root._prev
    while node is not last and node.op != "root":
        made.add(node)
        node = node._prev
    nodes = [output.node for _, output in derived]
    context: Any = derived[0][1].grad_fn
    own = all(output.grad_fn is context for _, output in derived)
    if len({*nodes}) < len(nodes) or not own or not made.issuperset(nodes):
        return None  # a result is an argument, or another result
    try:
        describe = functools.partial(_described, trace, [*values], dict(derived))
        held = {name: value for name, value in vars(context).items() if name != "apply"}
        saved, attributes = describe([*context.saved_tensors]), describe(held)
    except Unsupported:
        return None
    for node in nodes:
        node.meta.pop("cut", None)
    groups = {id(value.group) for value in values if isinstance(value, TracedTensor)}
    return Application(
        function,
        [value.node if isinstance(value, TracedTensor) else None for value in values],
        [output.node if isinstance(output, TracedTensor) else None for output in outputs],
        not isinstance(result, tuple),
        tuple([at for at, _ in derived]),
        saved,
        attributes,
        True,
        [(output.group, output.group.version) for _, output in tensors if id(output.group) in groups],
    )


def _described(
    trace: Trace, inputs: list[object], outputs: dict[int, TracedTensor], value: object
) -> tuple[object, ...]:
    """What a context holds, by its kind: an input or output with its history, the node of what has none, a size, a
    container, or a constant. Raises Unsupported for anything else."""
    describe = functools.partial(_described, trace, inputs, outputs)
    cls = type(value)
    if isinstance(value, TracedTensor):
        if not value.requires_grad:
            return "node", value.node
        kinds = [("output", at, tensor) for at, tensor in outputs.items()]
        for kind, at, tensor in (*kinds, *[("input", at, tensor) for at, tensor in enumerate(inputs)]):
            if tensor is value or (isinstance(tensor, TracedTensor) and _is_same(tensor, value)):
                return kind, at
    if isinstance(value, torch.SymInt):
        return "node", trace.unwrap(value)
    if isinstance(value, (list, tuple)) and cls in (list, tuple, torch.Size):
        return cls.__name__.lower(), *map(describe, value)
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return "dict", *[(key, describe(item)) for key, item in value.items()]
    if cls in _CONSTANTS:
        return "value", value
    raise Unsupported(f"a context holds a {cls.__name__}", kind="operator")


def _is_same(one: TracedTensor, other: TracedTensor) -> bool:
    """Whether two tensors are one to autograd: it gives back others than it has saved."""
    if one.grad_fn is None or other.grad_fn is None:
        return one.grad_fn is other.grad_fn and one.value is other.value
    return one.grad_fn is other.grad_fn and one.output_nr == other.output_nr


def _held(
    described: Any, inputs: Sequence[object], outputs: Sequence[object], known: Mapping[torch.fx.Node, object]
) -> Any:
    """What `_described` was given, of other values."""
    kind, *content = described
    if kind in ("input", "output"):
        return (inputs if kind == "input" else outputs)[content[0]]
    if kind == "node":
        value = known.get(content[0], content[0])
        return value.detach() if isinstance(value, torch.Tensor) else value
    if kind == "dict":
        return {key: _held(item, inputs, outputs, known) for key, item in content}
    if kind == "value":
        return content[0]
    return {"list": list, "tuple": tuple, "size": torch.Size}[kind](
        [_held(item, inputs, outputs, known) for item in content]
    )


# ---- while the engine runs over a trace ------------------------------------------------------------------------------


@contextlib.contextmanager
def derivatives(trace: Trace, outputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """While the engine derives `outputs`: the derivatives that are known not to be recordable (`Derivation.opaque`)
    become calls; an operator's derivative that turns out not to be raises Underivable."""
    changed, known = [], trace.derivation
    if known.formulas or known.opaque:
        history = nodes_behind(tensor.grad_fn for tensor in outputs)
        functions: list[Any] = [node for node in history if isinstance(node, BackwardCFunction)]
        for node in functions:
            name, function = type(node).__name__, node._forward_cls
            key = name if name in known.formulas else function.__base__
            if key in known.opaque:
                called = function if key is name else key
                node.apply = functools.partial(_recording, trace, node, called, key)
                changed.append(node)
            elif key is name:
                node.apply = functools.partial(_traced, node.apply, name)
                changed.append(node)
    try:
        yield
    finally:
        for node in changed:
            del node.apply


def _traced(derivative: Callable[..., Any], name: str, *tangents: object) -> Any:
    try:
        return derivative(*tangents)
    except Exception as error:
        raise Underivable(name, name.removeprefix(GENERATED), error) from error


def _recording(trace: Trace, node: Any, function: Any, key: Any, *tangents: Any) -> Any:
    """What the engine gets for the gradients of the arguments of `node`, a node of the history of `function`."""
    try:
        if not reaches(node, trace.leaves):
            raise Unsupported("only tensors that the program makes get gradients from it", kind="operator")
        gradients = iter(_recorded(trace, node, function, tangents))
    except Unsupported as error:
        raise Underivable(key, function.__name__, error) from error
    return tuple([next(gradients) if needed else None for needed in node.needs_input_grad])


def _recorded(trace: Trace, node: Any, function: Any, tangents: Sequence[Any]) -> list[TracedTensor]:
    saved = list(node.saved_tensors)
    edges = [(other, at) for other, at in node.next_functions if other is not None]
    metas = [_gradient_meta(other._input_metadata[at], saved) for other, at in edges]
    attributes = {name: value for name, value in vars(node).items() if name not in ("apply", _STRUCTURE)}
    layouts = [(tuple(meta.shape), tuple(meta.stride)) for meta in metas]
    leaves, spec = pytree.tree_flatten((saved, attributes, list(tangents), layouts))
    tensors = [place for place, leaf in enumerate(leaves) if type(leaf) in (TracedTensor, torch.Tensor)]
    of_forward = len(pytree.tree_leaves((saved, attributes)))
    kept = sum(place < of_forward for place in tensors)
    numbers = [place for place, leaf in enumerate(leaves) if type(leaf) is torch.SymInt]
    operands = [trace.unwrap(leaves[place]) for place in tensors]
    sizes = [trace.unwrap(leaves[place]) for place in numbers]
    for place in (*tensors, *numbers):
        leaves[place] = None
    unknown = [type(leaf).__name__ for leaf in leaves if type(leaf) not in _CONSTANTS]
    if unknown:
        raise Unsupported(f"its context holds a {unknown[0]}", kind="operator")
    structure = {_STRUCTURE: getattr(node, _STRUCTURE)} if hasattr(node, _STRUCTURE) else {}
    table = Derivative(function, tuple(node.needs_input_grad), leaves, spec, tensors, kept, numbers, metas, structure)
    nodes = trace.call(derivative, operands, sizes, enter(table))
    return [trace.wrap(gradient) for gradient in nodes[: len(metas)]]


_CONSTANTS = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout}
_CONSTANTS |= {torch.memory_format, torch._ops.OpOverload, torch._ops.OpOverloadPacket}
_STRUCTURE = "_pt_metadata"  # where torch's own wrapper of operators on lists notes which arguments are lists


def _gradient_meta(wanted: Any, saved: Sequence[Any]) -> TensorMeta:
    """The meta of a gradient: in the layout of the saved tensor that it seems to belong to, or row-major."""
    shape = tuple(wanted.shape)
    metas = [tensor.meta for tensor in saved if isinstance(tensor, TracedTensor)]
    like = (meta.stride for meta in metas if same_sizes(meta.shape, shape) and is_dense(shape, meta.stride))
    return fresh(shape, wanted.dtype, wanted.device, next(like, None))


# ---- when the backward runs ------------------------------------------------------------------------------------------


class DerivativeContext:
    """What the code of a derivative is given as ``ctx``."""

    def __init__(self, saved: Sequence[object], needs: tuple[bool, ...], attributes: dict[str, object]) -> None:
        vars(self).update(attributes)
        self.saved_tensors = tuple(saved)
        self.needs_input_grad = needs


@dataclass(eq=False)
class Derivative:
    """One derivative that is called: of which Function, which arguments want gradients, the saved tensors, attributes
    of the context, tangents and layouts of the gradients in flat form (a tensor, or a size, is None there), the places
    of tensors (of which the first `kept` are of the forward, and not tangents) and sizes, the metas of the gradients,
    and what torch notes of lists. `writes`: whether it has been seen to write to its arguments."""

    function: Any
    needs: tuple[bool, ...]
    leaves: list[Any]
    spec: pytree.TreeSpec
    tensors: list[int]
    kept: int
    numbers: list[int]
    metas: list[TensorMeta]
    structure: dict[str, object]
    writes: bool | None = None

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        """The gradients, zeros where there is none, and for each a truth value that says whether there is one."""
        given = [tensor.clone() for tensor in tensors] if self.writes is not False else list(tensors)
        versions = [tensor._version for tensor in given]
        leaves = [*self.leaves]
        for places, values in ((self.tensors, given), (self.numbers, numbers)):
            for place, value in zip(places, values):  # type: ignore[arg-type]
                leaves[place] = value
        saved, attributes, tangents, layouts = pytree.tree_unflatten(leaves, self.spec)
        context = DerivativeContext(saved, self.needs, attributes | self.structure)
        backward = self.function.backward if self.function.vjp is Function.vjp else self.function.vjp
        returned = backward(context, *tangents)
        self._look_for_writes(tensors, given, versions)
        wanted = self._wanted(returned if isinstance(returned, tuple) else (returned,))
        own = [tensor.untyped_storage().data_ptr() for tensor in given]
        gradients = []
        for (at, gradient), meta, (shape, stride) in zip(wanted, self.metas, layouts):
            result = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
            if gradient is None:
                result.zero_()
            else:
                fitting = self._fitting(gradient, at, result)
                if fitting.stride() == stride and fitting.untyped_storage().data_ptr() not in own:
                    result = fitting
                else:
                    result.copy_(fitting)
            own.append(result.untyped_storage().data_ptr())
            gradients.append(result)
        return [*gradients, *[torch.tensor(gradient is not None) for _, gradient in wanted]]

    def _look_for_writes(
        self, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor], versions: Sequence[int]
    ) -> None:
        """Code that writes to its arguments is given copies; the first time everything is a copy. What it has written
        to a value of the forward is written to that then: it may be an input, or a result."""
        for original, copy, version in zip(tensors[: self.kept], given, versions):
            if copy._version != version and copy is not original:
                original.data.copy_(copy)  # uncounted: the graph has saved it, and may run once more
        written = [tensor._version for tensor in given] != versions
        if written and self.writes is False:
            raise RuntimeError(
                f"{self._name()} writes to its arguments in this call, and has not done so before: "
                "what else is computed from them would be wrong.\n  remedy: let it write to clones"
            )
        self.writes = written if self.writes is None else self.writes

    def _wanted(self, returned: tuple[Any, ...]) -> list[tuple[int, Any]]:
        """The gradients that are wanted, and which they are. Raises what the engine does for too few or too many."""
        count = len(self.needs)
        if len(returned) < count or any(gradient is not None for gradient in returned[count:]):
            text = f"returned an incorrect number of gradients (expected {count}, got {len(returned)})"
            raise RuntimeError(f"function {self._name()} {text}")
        return [(at, gradient) for at, (gradient, needed) in enumerate(zip(returned, self.needs)) if needed]

    def _fitting(self, gradient: Any, at: int, wanted: torch.Tensor) -> torch.Tensor:
        """A gradient as the engine hands it on: of the shape and dtype of the argument. Raises what the engine does."""
        if not isinstance(gradient, torch.Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
        if gradient.shape != wanted.shape:
            try:
                gradient = gradient.sum_to_size(wanted.shape)
            except Unsupported:
                raise
            except RuntimeError:
                raise RuntimeError(
                    f"Function {self._name()} returned an invalid gradient at index {at} - got "
                    f"{list(gradient.shape)} but expected shape compatible with {list(wanted.shape)}"
                ) from None
        if gradient.is_complex() and not wanted.is_complex():
            gradient = gradient.real
        fitting: torch.Tensor = gradient.to(wanted.dtype).resolve_conj().resolve_neg()
        return fitting

    def _name(self) -> str:
        return f"{self.function.__name__}Backward"


derivative = operator(
    "derivative(Tensor[] tensors, SymInt[] numbers, int table) -> Tensor[]",
    lambda tensors, numbers, table: lookup(table)(tensors, numbers),
)


@rule("bolide::derivative")
def _metas(tensors: list[TensorMeta], numbers: list[object], table: int) -> list[TensorMeta]:
    metas: list[TensorMeta] = lookup(table).metas
    return [*metas, *[TensorMeta((), (), 0, torch.bool, torch.device("cpu"))] * len(metas)]


# ---- phases of eigenvectors ------------------------------------------------------------------------------------------
# They are known up to a phase. Where the data show that a result depends on it, eager refuses, in C++, which looks only
# at tensors that have data: so in the graph the tangents of eigenvectors go through a check.

_OPERATIONS = {
    "LinalgEigBackward0": torch.ops.aten.linalg_eig.default,
    "LinalgEighBackward0": torch.ops.aten._linalg_eigh.default,
}
_TOLERANCE = 1e-2


def check_phases(trace: Trace, outputs: Iterable[torch.Tensor]) -> None:
    """To be called before the engine derives `outputs`."""
    if not any(trace.graph.find_nodes(op="call_function", target=target) for target in _OPERATIONS.values()):
        return
    for node in nodes_behind(tensor.grad_fn for tensor in outputs):
        if type(node).__name__ in _OPERATIONS:
            node.register_prehook(functools.partial(_checking, node))


def _checking(node: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
    values, vectors = tangents
    known = node._saved_eigenvectors
    if vectors is None or not known.is_complex():
        return None
    name = "linalg_eigh_backward" if type(node).__name__ == "LinalgEighBackward0" else "linalg_eig_backward"
    return values, _Checked.apply(vectors, known, name)  # type: ignore[no-untyped-call]


class _Checked(torch.autograd.Function):
    """The check, which is the identity for further derivatives."""

    @staticmethod
    def forward(ctx: Any, tangent: torch.Tensor, vectors: torch.Tensor, name: str) -> Any:
        return without_phase(tangent, vectors, name)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return tangent, None, None


def _without_phase(tangent: torch.Tensor, vectors: torch.Tensor, name: str) -> torch.Tensor:
    turning = (vectors.conj() * tangent).sum(-2).imag
    if not bool((turning.abs() <= _TOLERANCE).all()):
        raise RuntimeError(
            f"{name}: The eigenvectors in the complex case are specified up to multiplication by e^{{i phi}}. The "
            "specified loss function depends on this quantity, so it is ill-defined."
        )
    return tangent.clone(memory_format=torch.contiguous_format)


without_phase = operator("without_phase(Tensor tangent, Tensor vectors, str name) -> Tensor", _without_phase)


@rule("bolide::without_phase")
def _phase_meta(tangent: TensorMeta, vectors: TensorMeta, name: str) -> TensorMeta:
    return row_major(tangent)
