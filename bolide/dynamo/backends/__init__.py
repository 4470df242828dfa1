"""Backends: who compiles captured graphs. `register_backend` adds one."""

from bolide.dynamo.backends.registry import (
    CompilerFn,
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    register_debug_backend,
    register_experimental_backend,
    set_default_backend,
)

__all__ = [
    "CompilerFn",
    "get_default_backend",
    "list_backends",
    "lookup_backend",
    "register_backend",
    "register_debug_backend",
    "register_experimental_backend",
    "set_default_backend",
]
