"""Pictures of graphs. DOT and SVG are written here; other formats need Graphviz."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import torch
from torch import fx

from bolide.support.errors import BolideError
from bolide.tracing.meta import TensorMeta

COLOURS = {
    "placeholder": "#dff0d8",
    "get_attr": "#fcf8e3",
    "call_function": "#d9edf7",
    "call_method": "#d9edf7",
    "call_module": "#e8daef",
    "output": "#f2dede",
}
WIDTH, HEIGHT, GAP = 8, 16, 24
"""Of a character, of a line, between boxes."""


def draw_graph(
    traced: fx.GraphModule,
    fname: str | os.PathLike[str],
    figname: str = "fx_graph",
    clear_meta: bool = True,
    prog: str | Sequence[str] | None = None,
    parse_stack_trace: bool = False,
    dot_graph_shape: str | None = None,
) -> None:
    """Draws a graph to the file `fname`, in the format of its suffix (none: ``.svg``).

    figname: the title; clear_meta: leave out what is known of values; prog: the Graphviz program that lays out the
    picture, with its arguments (by default ``.svg`` is laid out here, and other formats by ``dot``);
    parse_stack_trace: add the user's line of each node; dot_graph_shape: the shape of nodes in DOT.

    Raises BolideError for a format that needs Graphviz where that is not installed, and for one that it cannot write.
    """
    path = Path(fname) if Path(fname).suffix else Path(f"{os.fspath(fname)}.svg")
    labels = {node: label(node, not clear_meta, parse_stack_trace) for node in traced.graph.nodes}
    form = path.suffix[1:]
    if form == "svg" and prog is None:
        path.write_text(svg_text(traced.graph, labels, figname), encoding="utf-8")
        return
    text = dot_text(traced.graph, labels, figname, dot_graph_shape or "box")
    if form in ("dot", "raw"):
        path.write_text(text, encoding="utf-8")
    else:
        path.write_bytes(_laid_out(text, form, ["dot"] if prog is None else [prog] if isinstance(prog, str) else prog))


def _laid_out(text: str, form: str, command: Sequence[str]) -> bytes:
    """The picture that Graphviz makes of DOT text."""
    if shutil.which(command[0]) is None:
        raise BolideError(
            f"a picture in the format {form!r} needs Graphviz, whose program {command[0]!r} is not installed; "
            "files that end in .svg or .dot are written without it"
        )
    done = subprocess.run([*command, f"-T{form}"], input=text.encode(), capture_output=True)
    if done.returncode:
        raise BolideError(f"{command[0]} cannot draw the graph: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


# ---- what a box says ------------------------------------------------------------------------------------------------


def label(node: fx.Node, with_meta: bool, with_line: bool) -> tuple[str, ...]:
    """The lines of a node's box."""
    lines = [node.name]
    if node.op not in ("placeholder", "output"):
        lines.append(str(node.target) if isinstance(node.target, (str, torch._ops.OpOverload)) else _name(node.target))
    literals = [repr(value) for value in (*node.args, *node.kwargs.values()) if not _nodes_in(value)]
    if literals and node.op != "output":
        lines.append(_shortened(", ".join(literals)))
    if with_meta and "val" in node.meta:
        lines.append(_shortened(_described(node.meta["val"])))
    trace = node.meta.get("stack_trace") if with_line else None
    if trace:
        lines += [_shortened(line.strip()) for line in trace.strip().splitlines()[-2:]]
    return tuple(lines)


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target))


def _nodes_in(value: object) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((value,), found.append)  # type: ignore[arg-type, type-var]
    return found


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _described(value: object) -> str:
    if isinstance(value, (torch.Tensor, TensorMeta)):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))})"
    return str(value)


# ---- DOT ------------------------------------------------------------------------------------------------------------


def dot_text(graph: fx.Graph, labels: dict[fx.Node, tuple[str, ...]], title: str, shape: str = "box") -> str:
    """The graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(title)} {{", "  rankdir=TB;", f"  node [shape={shape}, style=filled];"]
    for node in graph.nodes:
        text = _quoted("\n".join(labels[node]))
        lines.append(f"  {_quoted(node.name)} [label={text}, fillcolor={_quoted(COLOURS[node.op])}];")
        lines += [f"  {_quoted(source.name)} -> {_quoted(node.name)};" for source in node.all_input_nodes]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ---- SVG ------------------------------------------------------------------------------------------------------------


def svg_text(graph: fx.Graph, labels: dict[fx.Node, tuple[str, ...]], title: str) -> str:
    """The graph as a picture: nodes in rows, each below all that it reads."""
    sizes = {node: ((max(map(len, lines)) + 2) * WIDTH, (len(lines) + 1) * HEIGHT) for node, lines in labels.items()}
    corners, width, height = _placed(rows_of(graph), sizes)
    shapes = [
        *(_edge(source, node, corners, sizes) for node in graph.nodes for source in node.all_input_nodes),
        *(_box(node, labels[node], corners[node], sizes[node]) for node in graph.nodes),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="12">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *shapes, "</svg>", ""])


def rows_of(graph: fx.Graph) -> list[list[fx.Node]]:
    """The nodes by rows: each below what it reads, inputs and constants just above what reads them first. In a row
    they stand in the order of what they read.
    """
    depth: dict[fx.Node, int] = {}
    for node in graph.nodes:
        depth[node] = 1 + max((depth[source] for source in node.all_input_nodes), default=0)
    for node in graph.nodes:
        if not node.all_input_nodes and node.users:
            depth[node] = min(depth[user] for user in node.users) - 1
    by_depth: defaultdict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        by_depth[depth[node]].append(node)
    rows, places = [], dict[fx.Node, float]()
    for number in sorted(by_depth):
        row = sorted(by_depth[number], key=lambda node: _mean(places[source] for source in node.all_input_nodes))
        places.update({node: (place + 0.5) / len(row) for place, node in enumerate(row)})
        rows.append(row)
    return rows


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.5


def _placed(
    rows: list[list[fx.Node]], sizes: dict[fx.Node, tuple[int, int]]
) -> tuple[dict[fx.Node, tuple[int, int]], int, int]:
    """The upper left corner of each box, and the size of the picture."""
    widths = [sum(sizes[node][0] + GAP for node in row) + GAP for row in rows]
    whole = max(widths, default=GAP)
    corners: dict[fx.Node, tuple[int, int]] = {}
    y = GAP
    for row, width in zip(rows, widths):
        x = GAP + (whole - width) // 2
        for node in row:
            corners[node] = (x, y)
            x += sizes[node][0] + GAP
        y += max(sizes[node][1] for node in row) + GAP * 2
    return corners, whole, y


def _box(node: fx.Node, lines: tuple[str, ...], corner: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (width, height) = corner, size
    texts = "".join(
        f'<text x="{x + WIDTH}" y="{y + HEIGHT * (row + 1) + 2}">{escape(line)}</text>'
        for row, line in enumerate(lines)
    )
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{COLOURS[node.op]}" stroke="#555"/>'
    return f"<g>{box}{texts}</g>"


def _edge(
    source: fx.Node,
    node: fx.Node,
    corners: dict[fx.Node, tuple[int, int]],
    sizes: dict[fx.Node, tuple[int, int]],
) -> str:
    x, y = corners[source][0] + sizes[source][0] // 2, corners[source][1] + sizes[source][1]
    to_x, to_y = corners[node][0] + sizes[node][0] // 2, corners[node][1]
    middle = (y + to_y) // 2
    line = f'<path d="M{x},{y} C{x},{middle} {to_x},{middle} {to_x},{to_y}" fill="none" stroke="#888"/>'
    tip = f'<path d="M{to_x - 4},{to_y - 6} L{to_x},{to_y} L{to_x + 4},{to_y - 6}" fill="none" stroke="#888"/>'
    return line + tip
