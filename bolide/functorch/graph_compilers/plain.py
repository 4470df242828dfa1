"""Compilers that leave a graph as it is, and show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from bolide.functorch.aot_autograd import make_boxed_compiler
from bolide.functorch.graph_compilers.drawing import draw_graph


@make_boxed_compiler
def nop(fx_g: fx.GraphModule, inps: Sequence[object]) -> fx.GraphModule:
    """The graph as it is."""
    return fx_g


@make_boxed_compiler
def print_compile(fx_g: fx.GraphModule, inps: Sequence[object]) -> fx.GraphModule:
    """The graph as it is; its code is printed."""
    print(fx_g.code)
    return fx_g


def draw_graph_compile(name: str) -> Callable[[fx.GraphModule, Sequence[object]], Callable[..., object]]:
    """A compiler that gives the graph as it is, prints its code and draws it to the file `name`, see `draw_graph`."""

    def draw(fx_g: fx.GraphModule, inps: Sequence[object]) -> fx.GraphModule:
        print(fx_g.code)
        draw_graph(fx_g, name)
        return fx_g

    compiler: Callable[..., Callable[..., object]] = make_boxed_compiler(draw)
    return compiler
