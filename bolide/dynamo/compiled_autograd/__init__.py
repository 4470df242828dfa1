"""Compiled autograd: the backward pass that torch's engine would run, captured as one graph and compiled.

>>> with enable(bolide.compile):
...     loss.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bolide.dynamo.compiled_autograd.instance import AutogradCompilerInstance, counters
from bolide.dynamo.compiled_autograd.running import region
from bolide.dynamo.compiled_autograd.switch import always, disable, enable, reset, state

if TYPE_CHECKING:
    compiled_autograd_enabled: bool
    in_compiled_autograd_region: bool


def __getattr__(name: str) -> bool:
    """`compiled_autograd_enabled`: whether backward passes are captured; `in_compiled_autograd_region`: whether this
    thread runs one that was. Both are as of now."""
    if name == "compiled_autograd_enabled":
        return state.enabled
    if name == "in_compiled_autograd_region":
        return region.entered > 0
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AutogradCompilerInstance",
    "always",
    "compiled_autograd_enabled",
    "counters",
    "disable",
    "enable",
    "in_compiled_autograd_region",
    "reset",
]
