"""Capture by interpreting bytecode: a user's call becomes a `Captured` program, and that an entry of generated
Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide.dynamo.backends import (
    list_backends,
    lookup_backend,
    register_backend,
    register_debug_backend,
    register_experimental_backend,
)
from bolide.dynamo.config import config
from bolide.dynamo.disabling import disable
from bolide.dynamo.metrics import get_compilation_metrics
from bolide.dynamo.sizes import mark_dynamic, mark_static, mark_static_address, mark_unbacked, maybe_mark_dynamic
from bolide.dynamo.stance import set_stance
from bolide.dynamo.state import is_compiling, is_dynamo_compiling
from bolide.support.caches import reset

explain: Callable[..., Any]  # these three join all stages: bolide/__init__.py sets them
export: Callable[..., Any]
optimize: Callable[..., Any]

__all__ = [
    "config",
    "disable",
    "explain",
    "export",
    "get_compilation_metrics",
    "is_compiling",
    "is_dynamo_compiling",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "optimize",
    "register_backend",
    "register_debug_backend",
    "register_experimental_backend",
    "reset",
    "set_stance",
]
