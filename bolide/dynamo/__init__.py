"""Capture by interpreting bytecode: a user's call becomes a `Captured` program, and that an entry of generated
Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from bolide.dynamo.backends import (
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    register_debug_backend,
    register_experimental_backend,
    set_default_backend,
)
from bolide.dynamo.config import config
from bolide.dynamo.entry.metrics import get_compilation_metrics
from bolide.dynamo.entry.module import CompiledModule as OptimizedModule
from bolide.dynamo.guards.sizes import mark_dynamic, mark_static, mark_static_address, mark_unbacked, maybe_mark_dynamic
from bolide.dynamo.library.marks import (
    allow_in_graph,
    assume_constant_result,
    disallow_in_graph,
    forbid_in_graph,
    nonstrict_trace,
    substitute_in_graph,
)
from bolide.dynamo.state import is_compiling, is_dynamo_compiling
from bolide.dynamo.switches import (
    disable,
    error_on_graph_break,
    graph_break,
    is_dynamo_disable_recursive,
    run,
    set_stance,
)
from bolide.support.caches import reset

patch_dynamo_config = config.patch
explain: Callable[..., Any]  # these three join all stages: bolide/__init__.py sets them
export: Callable[..., Any]
optimize: Callable[..., Any]
optimize_assert: Callable[..., Any]


def __getattr__(name: str) -> ModuleType:
    """`compiled_autograd`, which most programs never need."""
    if name == "compiled_autograd":
        return importlib.import_module("bolide.dynamo.compiled_autograd")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "OptimizedModule",
    "allow_in_graph",
    "assume_constant_result",
    "config",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "explain",
    "export",
    "forbid_in_graph",
    "get_compilation_metrics",
    "get_default_backend",
    "graph_break",
    "is_compiling",
    "is_dynamo_compiling",
    "is_dynamo_disable_recursive",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nonstrict_trace",
    "optimize",
    "optimize_assert",
    "patch_dynamo_config",
    "register_backend",
    "register_debug_backend",
    "register_experimental_backend",
    "reset",
    "run",
    "set_default_backend",
    "set_stance",
    "substitute_in_graph",
]
