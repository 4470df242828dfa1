"""What graphs that leave bolide say of their nodes, under the names that torch's tools and other backends read:
``meta["example_value"]``, ``meta["val"]`` and ``meta["stack_trace"]``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from bolide.support.errors import UserFrame
from bolide.symbolic import hint_of
from bolide.tracing.graph import mapped
from bolide.tracing.meta import TensorMeta, meta_of


class Described(torch.Tensor):
    """A tensor with the shape, strides, dtype and device of a value of a graph, and no data."""

    @staticmethod
    def of(meta: TensorMeta) -> Described:
        tensor: Described = torch.Tensor._make_wrapper_subclass(
            Described,
            meta.shape,
            strides=meta.stride,
            storage_offset=meta.offset,
            dtype=meta.dtype,
            device=meta.device,
            requires_grad=meta.requires_grad,
        )
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        sizes = ", ".join(map(str, self.shape))
        return f"Described({self.dtype}[{sizes}], {self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: object = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls.of(meta_of(args[0])._replace(requires_grad=False))
        raise RuntimeError(f"{func}: the example value of a node describes a tensor; it holds no data")


def describe(graph: fx.Graph, replace: bool = False) -> None:
    """Give the nodes of a graph that was recorded here these entries. Under ``val`` stands what bolide itself reads,
    unless that is to be replaced.
    """
    lines: dict[int, str] = {}  # by id of what the graph holds
    for node in graph.nodes:
        if "val" in node.meta:
            value = node.meta["val"]
            node.meta["example_value"] = mapped(value, lambda x: Described.of(x) if isinstance(x, TensorMeta) else x)
            if replace:
                node.meta["val"] = node.meta["example_value"]
        where: UserFrame | None = node.meta.get("where")
        stack: tuple[UserFrame, ...] = node.meta.pop("stack", ()) or ((where,) if where is not None else ())
        if stack:
            for line in stack:
                if id(line) not in lines:
                    lines[id(line)] = f"  {line}\n    {line.text}\n"
            node.meta["stack_trace"] = "".join([lines[id(line)] for line in stack])


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
