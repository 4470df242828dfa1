"""The table of handlers.

A handler is ``f(trace, func, *args, **kwargs)``: it records the operation `func`, is given the operation's own
arguments, with traced tensors, and answers what the operation does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from bolide.support.registers import register
from bolide.tracing.rules.registry import qualified

Handler = Callable[..., Any]

NAMED: dict[str, Handler] = {}  # by the name of the overload
HANDLERS: dict[OpOverload, Handler] = {}  # by overload: filled as operations are met

handler = register(NAMED, qualified)
"""Registers a handler for overloads (``add.Tensor``; the default overload is the name alone)."""
