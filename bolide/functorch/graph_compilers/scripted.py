"""TorchScript as a compiler of graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from bolide.functorch.aot_autograd import aot_function, make_boxed_compiler
from bolide.functorch.compile_utils import strip_overloads
from bolide.functorch.graph_compilers.saved import has_data

aten = torch.ops.aten

_NUMBERS = ((bool, (bool, torch.SymBool)), (int, (int, torch.SymInt)), (float, (float, torch.SymFloat)))
"""Types of TorchScript and what has them; a bool is an int too."""


@make_boxed_compiler
def ts_compile(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    """The graph as frozen TorchScript, optimised for inference and called once with `inps`, unless one of them has
    no data. The graph itself is brought into a form that TorchScript knows.

    Raises what `torch.jit.script` raises for what TorchScript cannot express.
    """
    with _scripting():
        _simplify(fx_g, inps)
        scripted = torch.jit.script(fx_g)
        torch._C._jit_pass_remove_mutation(scripted.graph)
        frozen: torch.jit.ScriptModule = torch.jit.optimize_for_inference(torch.jit.freeze(scripted.eval()))
        if has_data(inps):
            frozen(*inps)
    return frozen


@make_boxed_compiler
def simple_ts_compile(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    """The graph as frozen TorchScript."""
    with _scripting():
        _type_literals(fx_g)
        strip_overloads(fx_g)
        _type_numbers(fx_g, inps)
        frozen: torch.jit.ScriptModule = torch.jit.freeze(torch.jit.script(fx_g).eval())
    return frozen


def nnc_jit(f: Callable[..., object]) -> Callable[..., object]:
    """`f` with forward and backward as frozen TorchScript, whose tensor-expression compiler fuses what it can."""
    compiled: Callable[..., object] = aot_function(f, simple_ts_compile)
    return compiled


def _simplify(graph: fx.GraphModule, inps: Sequence[object]) -> None:
    """Brings a graph into the form that TorchScript knows: operations without overloads, devices by type, numbers
    among its inputs marked as such."""
    _type_literals(graph)
    strip_overloads(graph)
    for node in graph.graph.find_nodes(op="call_function", target=aten._to_copy):
        if len(node.args) == 1 and set(node.kwargs) == {"dtype"}:
            node.target = aten.to
    for node in graph.graph.nodes:
        node.kwargs = {
            name: value.type if isinstance(value, torch.device) else value for name, value in node.kwargs.items()
        }
    graph.graph.lint()
    _type_numbers(graph, inps)


def _type_literals(graph: fx.GraphModule) -> None:
    """Writes floats where operations take floats: integers will do for those in Python, but not in TorchScript."""
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload):
            types = {argument.name: str(argument.type) for argument in node.target._schema.arguments}
            node.args = tuple(map(_declared, node.args, types.values()))
            node.kwargs = {name: _declared(value, types[name]) for name, value in node.kwargs.items()}


def _declared(value: Argument, kind: str) -> Argument:
    """A constant as an operation declares it."""
    if isinstance(value, (list, tuple)) and kind in ("List[float]", "Optional[List[float]]"):
        return [_declared(item, "float") for item in value]
    return float(value) if type(value) is int and kind in ("float", "Optional[float]") else value


def _type_numbers(graph: fx.GraphModule, inps: Sequence[object]) -> None:
    """Says which inputs are numbers: TorchScript takes all others for tensors. It need not be told the result's type,
    and does not know the names in annotations of the program's.
    """
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), inps):
        node.type = next((kind for kind, kinds in _NUMBERS if isinstance(value, kinds)), None)
    for node in graph.graph.find_nodes(op="output"):
        node.type = None
    graph.recompile()


@contextmanager
def _scripting() -> Iterator[None]:
    """TorchScript does not add casts of its own, and does not say that it is deprecated."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._jit_set_autocast_mode(before)
