"""The backward of a program as data of JSON: graphs of operators, and the forward as it was recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
import torch.fx as fx

from bolide.functorch.runtime.program import Derivative
from bolide.functorch.runtime.second import Step, Tape
from bolide.inductor.saved import arithmetic_of, name_of_arithmetic
from bolide.saving.contents import CannotSave, Value
from bolide.saving.operators import content_of_operator
from bolide.saving.values import Reader, Writer, packed_tensor, unpacked_tensor
from bolide.tracing.called.branches import Branches, Repetition, Steps, Unwinding
from bolide.tracing.called.derivatives import Application
from bolide.tracing.graph import Graph, Handle, enter, graph_module, lookup
from bolide.tracing.operations.writes import ON_COPIES, operator_in


def pack_derivative(derivative: Derivative, writer: Writer) -> dict[str, Value]:
    """The backward of a program. Raises CannotSave for what needs objects of this process."""
    tape = derivative.tape
    return {
        "graph": pack_graph(derivative.graph, writer),
        "saved": derivative.saved,
        "static": sorted(derivative.static),
        "data": derivative.data,
        "tape": None if tape is None else _pack_tape(tape, writer),
    }


def unpack_derivative(data: Mapping[str, Value], reader: Reader, constants: dict[str, torch.Tensor]) -> Derivative:
    """What `pack_derivative` was given."""
    tape = None if data["tape"] is None else _unpack_tape(data["tape"], reader, constants)
    graph = unpack_graph(data["graph"], reader)
    return Derivative(graph, data["saved"], frozenset(data["static"]), tape, data["data"])


# ---- graphs ----------------------------------------------------------------------------------------------------------


def pack_graph(graph: fx.Graph, writer: Writer) -> list[Value]:
    """The nodes of a graph, in order."""
    places: dict[fx.Node, int] = {}
    rows = []
    for node in graph.nodes:
        rows.append(_pack_node(node, node.target, node.args, node.kwargs, places, writer))
        places[node] = len(places)
    return rows


def _pack_node(
    node: fx.Node, target: Value, args: Value, kwargs: Value, places: Mapping[fx.Node, int], writer: Writer
) -> list[Value]:
    op = node.op
    meta = {name: writer.value(node.meta[name]) for name in ("where", "cut") if node.meta.get(name)}
    if "val" in node.meta:
        meta["val"] = writer.value(node.meta["val"])
    given = _pack(args, places, writer), _pack(kwargs, places, writer)
    if target in ON_COPIES and args:
        _pack_target(op, operator_in(args[2]))  # which has to be known, too
    return [node.name, op, _pack_target(op, target), *given, meta]


def _pack_target(op: str, target: Value) -> Value:
    if op != "call_function":
        return str(target)
    if isinstance(target, torch._ops.OpOverload):
        return ["operator", target._schema.name, target._overloadname, content_of_operator(target)]
    name = name_of_arithmetic(target)
    if name is None:
        raise CannotSave(f"{target} is called, which may be another one in another process")
    return ["function", *name]


def _pack(value: Value, places: Mapping[fx.Node, int], writer: Writer) -> Value:
    """Arguments; nodes are their places."""
    if isinstance(value, fx.Node):
        return ["node", places[value]]
    if isinstance(value, Handle):
        return ["table", *_pack_table(lookup(value), writer)]
    if isinstance(value, (tuple, list)):
        mark = "tuple" if isinstance(value, tuple) else "list"
        return [mark, *[_pack(item, places, writer) for item in value]]
    if isinstance(value, dict):
        return ["dict", *[[key, _pack(item, places, writer)] for key, item in value.items()]]
    return writer.value(value)


def _pack_table(table: Value, writer: Writer) -> list[Value]:
    """The graphs of a branch or a loop, and what is said of them; not what was made of them."""
    cls = type(table)
    if cls.__name__ not in _TABLES:
        raise CannotSave(f"a graph refers to a {cls.__name__} of this process")
    graphs = []
    for graph in table.graphs:
        held = {str(node.target): getattr(graph, str(node.target)) for node in graph.graph.find_nodes(op="get_attr")}
        constants = {name: packed_tensor(constant) for name, constant in held.items()}
        graphs.append([pack_graph(graph.graph, writer), constants])
    parts = [part.name for part in dataclasses.fields(cls) if part.name not in ("graphs", *_MADE)]
    return [cls.__name__, graphs, *[[name, writer.value(getattr(table, name))] for name in parts]]


def _unpack_table(cls: str, graphs: list[Value], parts: list[Value], reader: Reader) -> Handle:
    made = []
    for rows, packed in graphs:
        constants = {name: unpacked_tensor(row) for name, row in packed.items()}
        made.append(graph_module(unpack_graph(rows, reader), constants, "Part"))
    return enter(_TABLES[cls](graphs=tuple(made), **{name: reader.value(value) for name, value in parts}))


_TABLES: Mapping[str, Callable[..., object]] = {cls.__name__: cls for cls in (Branches, Repetition, Steps, Unwinding)}
_MADE = ("gradient", "gradients", "run", "runs")


def unpack_graph(rows: list[Value], reader: Reader) -> fx.Graph:
    """What `pack_graph` was given."""
    graph = Graph()
    nodes: list[fx.Node] = []
    for name, op, target, args, kwargs, meta in rows:
        given = _unpack(args, nodes, reader), _unpack(kwargs, nodes, reader)
        node = graph.create_node(op, _unpack_target(op, target), *given, name=name)
        node.meta = {key: reader.value(value) for key, value in meta.items()}
        nodes.append(node)
    return graph


def _unpack_target(op: str, target: Value) -> Value:
    if op != "call_function":
        return target
    mark, *names = target
    return operator_of(*names[:2]) if mark == "operator" else arithmetic_of(*names)


def operator_of(name: str, overload: str) -> torch._ops.OpOverload:
    """The operator of that name. Raises AttributeError where there is none."""
    namespace, _, packet = name.partition("::")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


def _unpack(data: Value, nodes: list[fx.Node], reader: Reader) -> Value:
    if type(data) is not list:
        return data
    match data[0]:
        case "node":
            return nodes[data[1]]
        case "tuple":
            return tuple([_unpack(item, nodes, reader) for item in data[1:]])
        case "list":
            return [_unpack(item, nodes, reader) for item in data[1:]]
        case "table":
            return _unpack_table(data[1], data[2], data[3:], reader)
        case "dict":
            return {key: _unpack(item, nodes, reader) for key, item in data[1:]}
    return reader.value(data)


# ---- tapes -----------------------------------------------------------------------------------------------------------


def _pack_tape(tape: Tape, writer: Writer) -> dict[str, Value]:
    places: dict[fx.Node, int] = {}
    rows = []
    steps = [Step(node, node.target, node.args, node.kwargs) for node in tape.inputs]
    kept = {*tape.kept}
    for step in (*steps, *tape.steps):
        args, kwargs = ((), {}) if step.node in kept else (step.args, step.kwargs)  # that is not computed again
        rows.append(_pack_node(step.node, step.target, args, kwargs, places, writer))
        places[step.node] = len(places)
    return {
        "rows": rows,
        "inputs": len(tape.inputs),
        "wanted": _pack(list(tape.wanted), places, writer),
        "kept": [places[node] for node in tape.kept],
        "names": tape.names,
        "read": tape.read,
        "keeps": [[places[node], places[node.meta["keeps"]]] for node, *_ in tape.steps if "keeps" in node.meta],
        "functions": [_pack_application(each, places, writer) for each in tape.functions],
    }


_PARTS = ("inputs", "outputs", "single", "derived", "saved", "attributes", "materializes")


def _pack_application(called: Application, places: Mapping[fx.Node, int], writer: Writer) -> list[Value]:
    packed = [_pack(getattr(called, name), places, writer) for name in _PARTS]
    return [writer.value(called.function), *packed]


def _unpack_tape(data: Mapping[str, Value], reader: Reader, constants: dict[str, torch.Tensor]) -> Tape:
    nodes = [*unpack_graph(data["rows"], reader).nodes]
    steps = [Step(node, node.target, node.args, node.kwargs) for node in nodes[data["inputs"] :]]
    wanted = _unpack(data["wanted"], nodes, reader)
    kept = [nodes[place] for place in data["kept"]]
    for place, old in data["keeps"]:
        nodes[place].meta["keeps"] = nodes[old]
    functions = [
        Application(reader.value(function), *[_unpack(part, nodes, reader) for part in parts])
        for function, *parts in data["functions"]
    ]
    return Tape(nodes[: data["inputs"]], constants, steps, wanted, kept, data["names"], data["read"], functions)
