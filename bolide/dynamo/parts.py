"""Recording a part of the program as a graph of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from bolide.dynamo.interpreter import Machine
from bolide.tracing.branches import Part


@contextlib.contextmanager
def part_of(vm: Machine) -> Iterator[Part]:
    """While it is active, what is interpreted is recorded in the part. Casts that autocast keeps are of one part."""
    outer, part = vm.trace, Part(vm.trace)
    vm.trace = part
    vm.world.inside += 1
    torch.clear_autocast_cache()
    try:
        with part.alone():
            yield part
    finally:
        torch.clear_autocast_cache()
        vm.world.inside -= 1
        vm.trace = outer
