"""What partitions save, and how long they take: `python -m benchmarks.partitions [SCALE]`; prints two tables.

The joint graph of a step of training, as `aot_function` makes it, is split by both partition functions of bolide and by
PyTorch's minimum cut: the bytes that the forward saves besides parameters and buffers. And the processor time of a
joint graph and its partition inside `bolide.compile`, for BERT of 12 and 96 layers.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

import bolide
from benchmarks.models import SCALES, Workload, build
from benchmarks.report import table
from benchmarks.worker import noting
from bolide.functorch import aot, default_partition, min_cut_rematerialization_partition
from bolide.functorch.aot_autograd import aot_function

MODELS = ("gpt2", "bert", "resnet18", "resnet50")
Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def saved_bytes(partition: Partition, joint: fx.GraphModule, inputs: Any, outputs: int, own: set[str]) -> int:
    """What a partition saves of a joint graph; not counted are the placeholders `own`, and memory twice."""
    forward, _ = partition(copy.deepcopy(joint), inputs, num_fwd_outputs=outputs)
    sizes: dict[str, int] = {}
    for node in forward.graph.output_node().args[0][outputs:]:
        while node.op == "call_function" and getattr(node.target, "is_view", False):
            node = node.args[0]
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and node.name not in own:
            sizes[node.name] = value.numel() * value.element_size()
    return sum(sizes.values())


def compared(name: str, scale: str) -> list[str]:
    """A model's row: nodes of its joint graph, megabytes saved by each partition."""
    work, found = build(name, scale), []
    theirs = importlib.import_module("torch._functorch.partitioners").min_cut_rematerialization_partition
    own = {**dict(work.module.named_parameters()), **dict(work.module.named_buffers())}
    names = {f"primals_{place}" for place, _ in enumerate(own, 1)}

    def split(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        for partition in (default_partition, min_cut_rematerialization_partition, theirs):
            found.append(saved_bytes(partition, joint, inputs, num_fwd_outputs, names))
        found.append(len(joint.graph.nodes))
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    def step(tensors: dict[str, torch.Tensor]) -> Any:
        return work.loss(torch.func.functional_call(work.module, tensors, (), {**work.inputs, **work.targets}))

    aot_function(step, lambda graph, examples: graph, partition_fn=split)(own)
    *sizes, nodes = found
    return [f"{name} {scale}", str(nodes), *(f"{size / 1e6:.1f}" for size in sizes), f"{sizes[1] / sizes[2]:.2f}"]


def deep(layers: int, rounds: int = 5) -> list[str]:
    """The least time of a BERT with so many layers."""
    scale = f"bert of {layers} layers"
    SCALES[scale] = replace(SCALES["tiny"], layers=layers)
    work: Workload = build("bert", scale)
    seconds: list[float] = []
    with noting(aot, "_differentiated", seconds):
        for _ in range(rounds):
            bolide.reset()
            compiled = bolide.compile(work.module, backend="aot_eager_decomp_partition")
            compiled(**work.inputs, **work.targets)
    return [scale, f"{min(seconds):.3f}"]


def main(scale: str = "small12") -> None:
    rows = [compared(name, scale) for name in MODELS]
    header = ["model", "nodes", "default, MB", "minimum cut, MB", "PyTorch's, MB", "× PyTorch's"]
    print("\n".join([*table(header, rows), *table(["joint graph and partition", "s"], [deep(12), deep(96)])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
