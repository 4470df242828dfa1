"""What the tests of objects share: a description of values that shows contents, classes, order and identity."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

import bolide


def describe(value: Any, seen: dict[int, tuple[int, Any]] | None = None) -> Any:
    """Plain data equal for two values of the same contents, classes, order and sharing; tensors by their bits."""
    seen = {} if seen is None else seen
    if isinstance(value, (type(None), bool, int, float, str, bytes, type, types.FunctionType, torch.dtype)):
        return value
    if id(value) in seen:
        return ("seen", seen[id(value)][0])
    seen[id(value)] = (len(seen), value)
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        grad = None if not value.is_leaf or value.grad is None else describe(value.grad)
        return (name, value.dtype, value.stride(), value.requires_grad, value.detach().tolist(), grad)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += [(describe(k, seen), describe(v, seen)) for k, v in value.items()]
    elif isinstance(value, (set, frozenset)):
        parts += sorted(map(repr, value))
    elif hasattr(value, "__iter__"):
        parts += [describe(item, seen) for item in value]
    state = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in ("forward", "_bolide")}
    parts += [(k, describe(v, seen)) for k, v in state.items()]
    if isinstance(value, types.MethodType):
        parts.append((value.__name__, describe(value.__self__, seen)))
    if isinstance(value, BaseException):
        parts += [describe(part, seen) for part in (value.args, value.__cause__, value.__suppress_context__)]
    return (name, *parts)


def agree(program: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = 1) -> None:
    """Eager and compiled (one graph, backend eager) give the same results and leave the same arguments behind, each
    starting from `make()`, which is called once and copied."""
    made = make()
    ours, theirs = copy.deepcopy(made), copy.deepcopy(made)
    compiled: Any = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(calls):
        expected, found = program(*theirs), compiled(*ours)
        assert describe((found, ours)) == describe((expected, theirs))
    assert compiled._bolide.entries, "ran in eager"
