"""The code generator: an ATen graph in, fused kernels and a plan that runs them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide.inductor.compiled_graph import CompiledGraph, compile_graph
from bolide.inductor.config import config
from bolide.support.errors import unknown_name

aot_compile: Callable[..., str]  # these come from other stages: bolide/__init__.py sets them
compile: Callable[..., Any]
cudagraph_mark_step_begin: Callable[[], None]

#: The options that each mode stands for.
MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True},
}


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, object]:
    """The options that a mode stands for, as `compile(options=…)` takes them; without `mode`, those of every mode by
    name. Sizes that are `dynamic` change nothing.

    Raises ValueError for an unknown mode, with the nearest ones."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    if mode not in MODES:
        raise ValueError(unknown_name("mode", mode, MODES))
    return dict(MODES[mode])


def list_options() -> list[str]:
    """The names of `bolide.inductor.config`."""
    return list(config.shallow_copy_dict())


__all__ = [
    "CompiledGraph",
    "aot_compile",
    "compile",
    "compile_graph",
    "config",
    "cudagraph_mark_step_begin",
    "list_mode_options",
    "list_options",
]
