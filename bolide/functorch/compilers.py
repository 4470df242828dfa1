"""Graph compilers that need no code generation. Those that users name are in `graph_compilers`, and loaded when they
are asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch.fx as fx

from bolide.functorch.graphs import GraphInfo, Runner, placeholders, results


@dataclass(frozen=True)
class Passing:
    """Runs a graph that calls nothing. `results`: for each, the place of the input that it is, or None and a value."""

    results: Sequence[tuple[int | None, object]]

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        given = inputs.copy()
        inputs.clear()
        return [value if place is None else given[place] for place, value in self.results]


def interpret(module: fx.GraphModule, info: GraphInfo) -> Runner:
    """Runs the graph with ATen, node by node, and lets go of every value after its last use."""
    slots = placeholders(module.graph)
    constants = {node: getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}
    outputs = results(module.graph)
    if len(slots) + len(constants) + 1 == len(module.graph.nodes):
        places = {slot: place for place, slot in enumerate(slots)}
        known = [
            (places.get(value), constants.get(value)) if isinstance(value, fx.Node) else (None, value)
            for value in outputs
        ]
        return Passing(known)
    last_use: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            last_use[source] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for source, reader in last_use.items():
        dying.setdefault(reader, []).append(source)
    steps = [
        (node, cast(Callable[..., Any], node.target), dying.get(node, []), not node.users)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
    unused = [slot for slot in slots if not slot.users]

    def run(inputs: list[Any]) -> Sequence[Any]:
        values: dict[fx.Node, Any] = dict(zip(slots, inputs))
        inputs.clear()
        values.update(constants)
        for slot in unused:
            del values[slot]
        for node, target, dead, is_unused in steps:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            value = target(*args, **kwargs)
            del args, kwargs
            if not is_unused:
                values[node] = value
            del value
            for name in dead:
                del values[name]
        return [values[value] if isinstance(value, fx.Node) else value for value in outputs]

    return run


generator: Callable[[fx.GraphModule, Sequence[object]], Callable[..., object]] | None = None
"""bolide's code generator, as a compiler of graphs, which draws eager's random numbers. `bolide` sets it, as the code
is that of `inductor`."""


LATE = {
    "DebugInterpreter": "checked",
    "debug_compile": "dumped",
    "debug_nop": "checked",
    "default_decompositions": "fused",
    "draw_graph_compile": "plain",
    "get_inputs": "saved",
    "graph_dumper_aot": "dumped",
    "graph_fails": "dumped",
    "load_graph": "saved",
    "memory_efficient_fusion": "fused",
    "nnc_jit": "scripted",
    "nop": "plain",
    "print_compile": "plain",
    "simple_ts_compile": "scripted",
    "ts_compile": "scripted",
}
"""Where in `graph_compilers` each name is."""


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"bolide.functorch.graph_compilers.{LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
