"""What graphs that leave bolide say of their nodes, under the names that torch's tools and other backends read:
``meta["example_value"]``, ``meta["val"]`` and ``meta["stack_trace"]``.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from bolide.support.errors import UserFrame
from bolide.symbolic import hint_of
from bolide.tracing.graph import mapped
from bolide.tracing.meta import TensorMeta, found_in

_modes: weakref.WeakValueDictionary[int, FakeTensorMode] = weakref.WeakValueDictionary()
"""By the id of their symbols' ShapeEnv, which they keep; one for all graphs with the same symbols: torch's tools refuse
values of several modes."""


def described(meta: TensorMeta, mode: FakeTensorMode) -> FakeTensor:
    """PyTorch's tensor without data that is as `meta` says; its sizes are numbers or symbols of PyTorch's."""
    with torch.inference_mode(False), torch.no_grad():
        reach = 1 + meta.offset
        for size, stride in zip(meta.shape, meta.stride):
            reach = reach + size * stride  # not (size - 1) * stride, which is negative for no elements
        like: dict[str, Any] = {"dtype": meta.dtype, "device": "meta"}
        if type(meta.offset) is int and meta.offset == 0:
            memory = torch.empty_strided(meta.shape, meta.stride, **like)
        else:
            memory = torch.empty((reach,), **like).as_strided(meta.shape, meta.stride, meta.offset)
        return FakeTensor(mode, memory.requires_grad_(meta.requires_grad), meta.device)


def _mode_of(values: list[object]) -> FakeTensorMode:
    """That of the symbols among values."""
    symbol = next(iter(found_in(values, torch.SymInt)), None)
    if symbol is None:
        return FakeTensorMode(allow_non_fake_inputs=True)
    shapes = symbol.node.shape_env
    return _modes.setdefault(id(shapes), FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes))


def describe(graph: fx.Graph, replace: bool = False) -> None:
    """Give the nodes of a graph that was recorded here these entries. Under ``val`` stands what bolide itself reads,
    unless that is to be replaced. Tensors are PyTorch's without data, symbols are PyTorch's.
    """
    known = {node: node.meta["val"] for node in graph.nodes if "val" in node.meta}
    if any(map(_symbols, known.values())):
        foreign = importlib.import_module("bolide.symbolic.foreign").foreign
        known = {node: mapped(value, lambda x: _with_sizes(foreign, x)) for node, value in known.items()}
    mode = _mode_of([*map(_symbols, known.values())])
    lines: dict[int, str] = {}  # by id of what the graph holds
    for node in graph.nodes:
        if node in known:
            value = mapped(known[node], lambda x: described(x, mode) if isinstance(x, TensorMeta) else x)
            node.meta["example_value"] = value
            if replace:
                node.meta["val"] = value
        where: UserFrame | None = node.meta.get("where")
        stack: tuple[UserFrame, ...] = node.meta.pop("stack", ()) or ((where,) if where is not None else ())
        if stack:
            for line in stack:
                if id(line) not in lines:
                    lines[id(line)] = f"  {line}\n    {line.text}\n"
            node.meta["stack_trace"] = "".join([lines[id(line)] for line in stack])


def _symbols(value: object) -> list[torch.SymInt]:
    metas = found_in(value, TensorMeta)
    return list(found_in((value, *((*meta.shape, *meta.stride, meta.offset) for meta in metas)), torch.SymInt))


def _with_sizes(foreign: Callable[[Any], Any], value: Any) -> Any:
    """A value with each size as `foreign` says."""
    if not isinstance(value, TensorMeta):
        return foreign(value)
    shape, stride = (tuple(map(foreign, sizes)) for sizes in (value.shape, value.stride))
    return value._replace(shape=shape, stride=stride, offset=foreign(value.offset))


def example(meta: object) -> Any:
    """A tensor of random numbers (of a generator of its own), or a number, as the graph expects it."""
    if not isinstance(meta, TensorMeta):
        return int(meta.node.hint) if isinstance(meta, torch.SymInt) else meta
    shape, stride = list(map(hint_of, meta.shape)), list(map(hint_of, meta.stride))
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
    memory = torch.zeros(reach, dtype=meta.dtype, device=meta.device)  # elements may share it
    if memory.device.type != "meta" and (meta.dtype.is_floating_point or meta.dtype.is_complex):
        memory.normal_(generator=torch.Generator(meta.device).manual_seed(0))
    return memory.as_strided(shape, stride)
