"""Differentiation: joint graphs, passes over them, partitions, and eager's calling convention at run time."""

from bolide.functorch.aot import compile_trace
from bolide.functorch.compilers import interpret, interpret_decomposed
from bolide.functorch.config import config
from bolide.functorch.graphs import GraphCompiler, GraphInfo, Runner
from bolide.functorch.passes import run_passes
from bolide.tracing.graph import graph_module

__all__ = [
    "GraphCompiler",
    "GraphInfo",
    "Runner",
    "compile_trace",
    "config",
    "graph_module",
    "interpret",
    "interpret_decomposed",
    "run_passes",
]
