"""`bolide.dynamo.export`: a program as one graph module. `bolide.dynamo.optimize`: the older form of `compile`."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bolide import functorch
from bolide.compiling import call_target, compile
from bolide.dynamo import guards, sources
from bolide.dynamo.backends import CompilerFn
from bolide.dynamo.capture import capture
from bolide.dynamo.config import config
from bolide.dynamo.program import Captured, Guard
from bolide.dynamo.replay import make_entry
from bolide.dynamo.signature import Signature
from bolide.dynamo.state import state
from bolide.support.errors import Unsupported

T = TypeVar("T", bound=Callable[..., Any])


class ExportResult(NamedTuple):
    """`graph_module` takes what the exported function takes and returns what it returns; `guards` are the assumptions
    under which it does, as readable text.
    """

    graph_module: fx.GraphModule
    guards: tuple[str, ...]


def export(f: Callable[..., Any], *, aten_graph: bool = False) -> Callable[..., ExportResult]:
    """A function that captures one call of `f` and returns an `ExportResult`.

    The graph holds calls of torch's functions, or with `aten_graph` functional ATen operations (and `copy_` to written
    arguments). Sizes and Python values are those of the example call. Tensors that are not arguments (parameters,
    buffers, globals) are attributes of the graph module.

    Raises Unsupported, with the user's line, for what one graph cannot do: breaks, and effects on Python objects.
    """

    def run(*args: Any, **kwargs: Any) -> ExportResult:
        function, given = f, args
        if not isinstance(f, types.FunctionType):
            function, given = call_target, (f, *args)
        captured, checks = _capture(function, given, kwargs)
        flat = _aten_graph(captured) if aten_graph else _calls_graph(captured)
        entry_inputs, result = _rebuilt(function, given, kwargs, captured, checks, flat)
        graph_module = _with_signature(f, args, kwargs, captured, flat, entry_inputs, result)
        return ExportResult(graph_module, tuple(map(guards.text, checks)))

    return run


def _capture(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Captured, list[Guard]]:
    reason = guards.busy()
    if reason is not None:
        raise Unsupported(reason, kind="state")
    state.stage = "capture"
    try:
        surroundings = guards.global_state()
        captured = capture(function, args, kwargs, breaks=False, record_calls=True)
    finally:
        state.stage = None
    if captured.effects:
        effect = captured.effects[0]
        raise Unsupported(
            f"the program has an effect that a graph cannot have ({effect.kind})",
            effect.where,
            "return the value instead, or use bolide.compile",
            kind="attribute_write",
        )
    return captured, guards.prepare(captured.guards, surroundings)


def _calls_graph(captured: Captured) -> fx.GraphModule:
    graph: fx.GraphModule | None = captured.calls.finish(captured.outputs, config.dead_code_elimination)
    if graph is None:
        raise Unsupported(captured.calls.refusal, kind="operator", remedy="export with aten_graph=True")
    return graph


def _aten_graph(captured: Captured) -> fx.GraphModule:
    trace = captured.trace
    slots = [node for node in trace.graph.nodes if node.op == "placeholder"]
    results = tuple(tensor.node for tensor in captured.outputs)
    for position in trace.mutated_inputs():
        value = trace.inputs[position].group.base
        trace.graph.call_function(torch.ops.aten.copy_.default, (slots[position], value)).meta["val"] = slots[
            position
        ].meta["val"]
    trace.graph.output(results)
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
    (results,) = next(node for node in reversed(flat.graph.nodes) if node.op == "output").args

    def run(inputs: list[Any]) -> Any:
        seen.extend(inputs)
        return results

    def misfit(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the guards of an exported program do not hold for its own example")

    entry = make_entry(Signature.of(function.__code__), captured, checks, run, 0, lambda *_: None, misfit, misfit)
    bound = inspect.signature(function)
    bound_args = bound.bind(*args, **kwargs)
    bound_args.apply_defaults()
    return seen, entry.function(*bound_args.args, **bound_args.kwargs)


def _with_signature(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    captured: Captured,
    flat: fx.GraphModule,
    inputs: Sequence[Any],
    result: Any,
) -> fx.GraphModule:
    """The flat graph behind the signature of `f`: inputs that are leaves of the arguments become placeholders, others
    attributes.
    """
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    graph = fx.Graph()
    slots = [graph.placeholder(f"arg{position}") for position in range(len(leaves))]
    attributes: dict[str, Any] = dict(_attributes(flat))
    place = {id(leaf): slot for leaf, slot in zip(leaves, slots)}
    known: dict[fx.Node, Any] = {}
    for node, value, source in zip(flat.graph.nodes, inputs, captured.inputs):
        if id(value) not in place:
            name = _identifier(sources.text(source), attributes)
            attributes[name] = value
            place[id(value)] = graph.create_node("get_attr", name, name=name)
        place[id(value)].meta.setdefault("val", node.meta.get("val"))
        known[node] = place[id(value)]
    graph.graph_copy(flat.graph, known)
    found, out_spec = pytree.tree_flatten(result)
    graph.output([known[v] if isinstance(v, fx.Node) else place.get(id(v), v) for v in found])
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo([*_parameter_names(f, args), *kwargs], in_spec, out_spec)))
    return fx.GraphModule(attributes, graph, "Exported")


def _attributes(flat: fx.GraphModule) -> list[tuple[str, Any]]:
    return [(str(n.target), getattr(flat, str(n.target))) for n in flat.graph.nodes if n.op == "get_attr"]


def _identifier(text: str, taken: dict[str, Any]) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "tensor"
    while name in taken or name[0].isdigit():
        name = f"_{name}"
    return name


def _parameter_names(f: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Names for the positional arguments of a call."""
    names = list(inspect.signature(f.forward if isinstance(f, nn.Module) else f).parameters)
    return [names[i] if i < len(names) and names[i] != "self" else f"argument{i}" for i in range(len(args))]


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

    def __exit__(self, *raised: Any) -> None:
        pass


def optimize(
    backend: str | CompilerFn = "inductor",
    *,
    nopython: bool = False,
    disable: bool = False,
    dynamic: bool | None = None,
) -> Optimize:
    """`bolide.compile` as a decorator of older programs; `nopython` is `fullgraph`. Raises what `compile` does."""
    arguments: dict[str, Any] = {"backend": backend, "fullgraph": nopython, "disable": disable, "dynamic": dynamic}
    compile(**arguments)  # wrong arguments are refused here
    return Optimize(arguments)
