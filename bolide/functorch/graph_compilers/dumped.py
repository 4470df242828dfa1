"""Graphs that are written to disk on their way: by a backend that keeps all of them, and for a search of the smallest
one that fails.
"""

from __future__ import annotations

import copy
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bolide.functorch.aot_autograd import aot_module_simplified
from bolide.functorch.foreign import default_partition
from bolide.functorch.graph_compilers.fused import default_decompositions
from bolide.functorch.graph_compilers.saved import save_graph, save_inputs, with_data
from bolide.functorch.graph_compilers.scripted import ts_compile
from bolide.support.errors import BolideWarning


def graph_dumper_aot(
    current_name: str, folder_name: str, dump_example_input: bool = False
) -> Callable[[fx.GraphModule, Sequence[object]], Callable[..., object]]:
    """A backend that runs graphs as they are, and writes each to a folder: the forward graph to
    ``folder_name/current_name/current_name_forward_N``, likewise ``backward`` and ``joint``, where N counts the graphs
    that the backend is given. A folder holds the graph as code, what is known of its inputs (``.input``, see
    `get_inputs`), and with `dump_example_input` the inputs (``.pt``, for `torch.load`).
    """
    numbers = itertools.count()

    def dump(gm: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        number = next(numbers)

        def keep(kind: str, graph: fx.GraphModule, inputs: Sequence[object]) -> None:
            name = f"{current_name}_{kind}_{number}"
            _keep(graph, inputs, Path(folder_name, current_name), name, dump_example_input)

        def forward(graph: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
            keep("forward", graph, inputs)
            return graph

        def backward(graph: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
            keep("backward", graph, inputs)
            return graph

        def joint(
            graph: fx.GraphModule, inputs: Sequence[object], **kwargs: int
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            keep("joint", graph, inputs)
            return default_partition(graph, inputs, **kwargs)

        compiled: Callable[..., object] = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            partition_fn=joint,
            decompositions=default_decompositions,
        )
        return compiled

    return dump


def _keep(graph: fx.GraphModule, inputs: Sequence[object], folder: Path, name: str, with_inputs: bool) -> None:
    """Writes a graph and its inputs to ``folder/name``; an empty graph is left out, with a warning."""
    if all(node.op == "output" for node in graph.graph.nodes):
        warnings.warn(f"{name}: the graph is empty, it is not written", BolideWarning, stacklevel=2)
        return
    save_graph(graph, folder / name)
    save_inputs(inputs, folder / name / f"{name}.input")
    if with_inputs:
        torch.save(with_data(inputs), folder / name / f"{name}.pt")


# ---- a graph that fails ---------------------------------------------------------------------------------------------

_SCRIPT = """
# ---- paste and run this to look for the smallest part of the graph that fails ---
import torch
import bolide
from bolide.functorch.compilers import get_inputs, graph_fails, load_graph
from bolide.functorch.fx_minifier import minifier

torch.manual_seed(0)
graph = load_graph({graph!r})
inps = get_inputs({inputs!r})
fails = graph_fails(graph, inps)
print("the compiled graph fails" if fails else "the compiled graph does what the graph does: nothing to minimise")
graph, inps = minifier(graph, inps, graph_fails) if fails else (graph, inps)
print("the smallest graph that fails:" if fails else "the graph:", graph.code, "for inputs like", inps, sep="\\n")
"""


def debug_compile(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    """As `ts_compile`. Before that the graph is saved to a new folder, and a script is printed that looks for the
    smallest part of it that TorchScript does not compile, or compiles to something else.
    """
    folder = Path(tempfile.mkdtemp(prefix="bolide_graph_"))
    save_graph(fx_g, folder / "graph")
    save_inputs(inps, folder / "graph.input")
    print(_SCRIPT.format(graph=str(folder / "graph"), inputs=str(folder / "graph.input")))
    compiled: Callable[..., object] = ts_compile(fx_g, inps)
    return compiled


def graph_fails(graph: fx.GraphModule, inps: Sequence[object]) -> bool:
    """Whether `ts_compile` raises for a graph that runs, or what it makes of it raises or gives other results."""
    try:
        expected = _run(graph, inps)
    except Exception:
        return False
    try:
        compiled = ts_compile(fx.GraphModule(graph, copy.deepcopy(graph.graph)), _copies(inps))
        actual = _run(lambda *inputs: compiled(list(inputs)), inps)
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except Exception:
        return True
    return False


def _run(f: Callable[..., object], inps: Sequence[object]) -> list[object]:
    """The results for copies of the inputs, in flat form, with the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flat = pytree.tree_leaves(f(*_copies(inps)))
    return [math.nan if value is None else value for value in flat]


def _copies(values: Sequence[object]) -> list[object]:
    return [value.clone() if isinstance(value, Tensor) else value for value in values]
