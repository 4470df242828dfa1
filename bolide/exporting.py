"""`bolide.dynamo.export`: a program as one graph module. `bolide.dynamo.optimize`: the older form of `compile`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bolide import functorch
from bolide.compiling import call_target, compile
from bolide.dynamo.backends import CompilerFn
from bolide.dynamo.config import config
from bolide.dynamo.entry.capture import capture
from bolide.dynamo.entry.replay import make_entry
from bolide.dynamo.guards import texts as guards
from bolide.dynamo.guards.filters import GuardFailed, GuardFilter
from bolide.dynamo.guards.sizes import SizeHistory, mark_dynamic, shape_guards, specialised
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Captured, Guard, Recipe
from bolide.dynamo.program.sources import Signature
from bolide.dynamo.state import state
from bolide.functorch.graphs import constants_of, placeholders, results
from bolide.support.errors import Unsupported, unknown_name
from bolide.symbolic import Expr
from bolide.tracing.described import describe

T = TypeVar("T", bound=Callable[..., Any])


class ExportResult(NamedTuple):
    """`graph_module` takes what the exported function takes and returns what it returns; `guards` are the assumptions
    under which it does, as readable text.
    """

    graph_module: fx.GraphModule
    guards: tuple[str, ...]


def export(
    f: Callable[..., object], *, aten_graph: bool = False, dynamic_shapes: object = None
) -> Callable[..., ExportResult]:
    """A function that captures one call of `f` and returns an `ExportResult`.

    The graph holds calls of torch's functions, or with `aten_graph` functional ATen operations (and `copy_` to written
    arguments). Python values, and sizes that are not named, are those of the example call. Tensors that are not
    arguments (parameters, buffers, globals) are attributes of the graph module.
    dynamic_shapes: which dimensions of which arguments may have other sizes (from 2 on), as for `torch.export`: a dict
    by name, or a sequence by position, of what the argument is made of, down to tensors; for each of these a dict
    ``{dimension: anything but None}`` or a sequence with an entry for each dimension. What has `min` and `max`
    (``torch.export.Dim``) bounds the size. Dimensions marked by `mark_dynamic` are taken as well.

    Raises Unsupported, with the user's line, for what one graph cannot do: breaks, and effects on Python objects;
    ConstraintError where the program works for one size of such a dimension only.
    """

    def run(*args: object, **kwargs: object) -> ExportResult:
        function, given = f, args
        if not isinstance(f, types.FunctionType):
            function, given = call_target, (f, *args)
        named = _bound(f, args, kwargs)
        with _marked(dynamic_shapes, named), config.patch(capture_branches=False):  # a graph of torch's own operations
            captured, checks = _capture(function, given, kwargs)
        sizes: list[Expr] = []
        captured.result = _with_sizes(captured.result, len(captured.outputs), sizes, {})
        flat = _aten_graph(captured, sizes) if aten_graph else _calls_graph(captured, sizes)
        entry_inputs, result = _rebuilt(function, given, kwargs, captured, checks, flat)
        graph_module = _with_signature(list(named), args, kwargs, captured, flat, entry_inputs, result)
        return ExportResult(graph_module, tuple(map(guards.text, checks)))

    return run


def _bound(f: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
    """The arguments of a call by name; those that a signature gathers are ``argument<position>``."""
    parameters = inspect.signature(f.forward if isinstance(f, nn.Module) else f).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [f"argument{position}" for position in range(len(names), len(args))]
    return {**dict(zip(names, args)), **kwargs}


@contextlib.contextmanager
def _marked(shapes: object, given: Mapping[str, object]) -> Iterator[None]:
    """Inside, the dimensions that `shapes` names are marked dynamic."""
    before: list[tuple[torch.Tensor, dict[str, object]]] = []
    try:
        if shapes is not None:
            _mark(dict(given) if isinstance(shapes, Mapping) else list(given.values()), shapes, before)
        yield
    finally:
        for tensor, attributes in reversed(before):
            vars(tensor).clear()
            vars(tensor).update(attributes)


def _mark(value: Any, shapes: Any, before: list[tuple[torch.Tensor, dict[str, Any]]]) -> None:
    if shapes is None:
        return
    if not isinstance(shapes, (Mapping, list, tuple)):
        raise TypeError(
            f"dynamic_shapes has {shapes!r} where a dict or a sequence by dimension or argument is expected"
        )
    parts = list(shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes))
    if not isinstance(value, torch.Tensor):
        for key, part in parts:
            if isinstance(value, Mapping) and key not in value:
                raise ValueError(unknown_name("argument or key in dynamic_shapes", key, map(str, value)))
            _mark(value[key], part, before)
        return
    before.append((value, dict(vars(value))))
    for dim, wanted in parts:
        if wanted is not None:
            lo, hi = (bound if isinstance(bound, int) else None for bound in _bounds(wanted))
            mark_dynamic(value, dim, min=lo, max=hi)


def _bounds(wanted: object) -> tuple[Any, Any]:
    hi = getattr(wanted, "max", None)
    return getattr(wanted, "min", None), None if isinstance(hi, int) and hi >= sys.maxsize - 1 else hi


def _capture(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Captured, list[Guard]]:
    reason = guards.busy()
    if reason is not None:
        raise Unsupported(reason, kind="state")
    history = SizeHistory(getattr(function, "__qualname__", ""), reads_data=False)
    state.stage, state.exporting = "capture", True
    try:
        surroundings = guards.global_state()
        captured = capture(function, args, kwargs, history, breaks=False, record_calls=True)
        while history.fix(specialised(captured)):
            captured = capture(function, args, kwargs, history, breaks=False, record_calls=True)
    finally:
        state.stage, state.exporting = None, False
    if captured.effects:
        effect = captured.effects[0]
        raise Unsupported(
            f"the program has an effect that a graph cannot have ({effect.kind})",
            effect.where,
            "return the value instead, or use bolide.compile",
            kind="attribute_write",
        )
    if captured.draws:
        reason = "the program draws random numbers from a generator of Python's or NumPy's, which a graph cannot have"
        raise Unsupported(reason, None, "draw them outside and pass them", kind="moment")
    return captured, guards.prepare([*captured.guards, *shape_guards(captured)], surroundings)


def _with_sizes(recipe: Recipe, first: int, sizes: list[Expr], replaced: dict[int, Recipe]) -> Recipe:
    """`recipe` with outputs of the graph, from number `first` on, in place of sizes, which are put in `sizes`."""
    if id(recipe) not in replaced:
        if recipe.kind == "size":
            sizes.append(recipe.value)
            replaced[id(recipe)] = Recipe("output", first + len(sizes) - 1)
        else:
            args = tuple(_with_sizes(arg, first, sizes, replaced) for arg in recipe.args)
            kwargs = tuple((key, _with_sizes(arg, first, sizes, replaced)) for key, arg in recipe.kwargs)
            same = args == recipe.args and kwargs == recipe.kwargs
            replaced[id(recipe)] = recipe if same else dataclasses.replace(recipe, args=args, kwargs=kwargs)
    return replaced[id(recipe)]


def _calls_graph(captured: Captured, sizes: list[Expr]) -> fx.GraphModule:
    graph: fx.GraphModule | None = captured.calls.finish(captured.outputs, config.dead_code_elimination, sizes)
    if graph is None:
        raise Unsupported(captured.calls.refusal, kind="operator", remedy="export with aten_graph=True")
    describe(graph.graph)
    return graph


def _aten_graph(captured: Captured, sizes: list[Expr]) -> fx.GraphModule:
    trace = captured.trace
    slots = placeholders(trace.graph)
    outputs = (*(tensor.node for tensor in captured.outputs), *map(trace.size_node, sizes))
    for position in trace.mutated_inputs():
        value = trace.inputs[position].group.base
        write = trace.graph.call_function(torch.ops.aten.copy_.default, (slots[position], value))
        write.meta["val"] = slots[position].meta["val"]
    trace.graph.output(outputs)
    describe(trace.graph)
    return functorch.graph_module(functorch.run_passes(trace.graph, captured.name), trace.constants, "Exported")


def _rebuilt(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    captured: Captured,
    checks: Sequence[Guard],
    flat: fx.GraphModule,
) -> tuple[list[Any], Any]:
    """The real inputs of the flat graph, and the function's result with nodes of the flat graph in place of tensors."""
    seen: list[Any] = []

    def run(inputs: list[Any]) -> Any:
        seen.extend(inputs)
        return results(flat.graph)

    def misfit(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the guards of an exported program do not hold for its own example")

    entry = make_entry(Signature.of(function.__code__), captured, checks, run, 0, lambda *_: None, misfit, misfit)
    bound = inspect.signature(function)
    bound_args = bound.bind(*args, **kwargs)
    bound_args.apply_defaults()
    return seen, entry.function(*bound_args.args, **bound_args.kwargs)


def _with_signature(
    names: list[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    captured: Captured,
    flat: fx.GraphModule,
    inputs: Sequence[Any],
    result: Any,
) -> fx.GraphModule:
    """The flat graph behind the signature of the function, whose arguments have `names`: inputs that are leaves of the
    arguments become placeholders, others attributes; sizes are read from them.
    """
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    graph = fx.Graph()
    slots = [graph.placeholder(f"arg{position}") for position in range(len(leaves))]
    attributes: dict[str, Any] = constants_of(flat)
    place = {id(leaf): slot for leaf, slot in zip(leaves, slots)}
    known: dict[fx.Node, Any] = {}
    for node, value, source in zip(flat.graph.nodes, inputs, captured.inputs):
        if id(value) not in place:
            name = _identifier(sources.text(source), attributes)
            attributes[name] = value
            place[id(value)] = graph.create_node("get_attr", name, name=name)
        for name in ("val", "example_value"):
            place[id(value)].meta.setdefault(name, node.meta.get(name))
        known[node] = place[id(value)]
    numbers = placeholders(flat.graph)[len(captured.inputs) :]
    for node, symbol in zip(numbers, captured.sizes):
        tensor, dim = symbol.places[0]
        slot = place[id(inputs[captured.inputs.index(tensor)])]
        known[node] = graph.call_function(torch.ops.aten.sym_size.int, (slot, dim))
        known[node].meta.update(node.meta)
    graph.graph_copy(flat.graph, known)
    leaves, out_spec = pytree.tree_flatten(result)
    graph.output([known[v] if isinstance(v, fx.Node) else place.get(id(v), v) for v in leaves])
    for node in numbers:
        if not known[node].users:
            graph.erase_node(known[node])
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(names, in_spec, out_spec)))
    return fx.GraphModule(attributes, graph, "Exported")


def _identifier(text: str, taken: dict[str, object]) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "tensor"
    while name in taken or name[0].isdigit():
        name = f"_{name}"
    return name


# ---- optimize --------------------------------------------------------------------------------------------------------


class Optimize:
    """What `optimize` returns: a decorator. As a context manager it has never done what people expect, and is refused
    while `config.raise_on_ctx_manager_usage` is on; without it, the block runs in eager.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    def __call__(self, fn: T) -> T:
        return compile(fn, **self.arguments)

    def __enter__(self) -> None:
        if config.raise_on_ctx_manager_usage:
            raise RuntimeError(
                "bolide.dynamo.optimize(...) is used as a context manager; call it on the function that is to be "
                "compiled: bolide.dynamo.optimize(backend)(fn)"
            )

    def __exit__(self, *raised: object) -> None:
        pass


def optimize(
    backend: str | CompilerFn | None = None,
    *,
    nopython: bool = False,
    disable: bool = False,
    dynamic: bool | None = None,
    guard_fail_fn: GuardFailed | None = None,
    guard_filter_fn: GuardFilter | None = None,
) -> Optimize:
    """`bolide.compile` as a decorator of older programs; `nopython` is `fullgraph`. `guard_fail_fn` is called with a
    `GuardFail` when a guard does not hold. Raises what `compile` does."""
    arguments: dict[str, Any] = {"backend": backend, "fullgraph": nopython, "disable": disable, "dynamic": dynamic}
    hooks = {"guard_fail_fn": guard_fail_fn, "guard_filter_fn": guard_filter_fn}
    arguments["options"] = {name: hook for name, hook in hooks.items() if hook is not None} or None
    compile(**arguments)  # wrong arguments are refused here
    return Optimize(arguments)
