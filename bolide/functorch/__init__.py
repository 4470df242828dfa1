"""Differentiation: joint graphs, passes over them, partitions, and eager's calling convention at run time."""

import importlib
from typing import Any

from bolide.functorch.aot import compile_trace, inference_graph
from bolide.functorch.compilers import LATE, interpret
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
    "inference_graph",
    "interpret",
    "run_passes",
]

_LATE = {
    "aot_autograd": (
        *("aot_function", "aot_module", "aot_module_simplified", "aot_export_module", "aot_export_joint_simple"),
        *("compiled_function", "compiled_module", "make_boxed_compiler", "make_boxed_func"),
        *("get_aot_compilation_context", "get_aot_graph_name", "get_graph_being_compiled"),
    ),
    "compile_utils": ("fx_graph_cse", "get_aten_target", "strip_overloads"),
    "compilers": tuple(LATE),
    "foreign": ("default_partition", "min_cut_rematerialization_partition", "draw_graph", "draw_joint_graph"),
    "fx_minifier": ("minifier",),
}
"""What is loaded when it is asked for, by module."""


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _LATE.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
