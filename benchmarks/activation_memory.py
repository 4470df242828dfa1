"""What an activation-memory budget costs: `python -m benchmarks.activation_memory [MODEL [SCALE]]`; prints a table.

A step of training with each budget, and in eager, in turn, on one thread: the bytes that the forward saves besides
parameters, the processor time of a step, and the seconds that the partition has taken.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import bolide
import bolide.functorch
from benchmarks.models import Workload, build
from benchmarks.worker import noting
from bolide.functorch import aot

BUDGETS = (1.0, 0.8, 0.5, 0.2, 0.0)
ROUNDS = 9


def saved_bytes(forward: Callable[[], Tensor], module: torch.nn.Module) -> int:
    known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(size for address, size in sizes.items() if address not in known)


def training(work: Workload, budget: float | None) -> tuple[Callable[[], None], int, float]:
    """A step, the bytes that it saves, and the seconds of its partition; in eager without a budget."""
    module = copy.deepcopy(work.module)
    run = module if budget is None else bolide.compile(module)

    def forward() -> Tensor:
        return work.loss(run(**work.inputs, **work.targets))

    def step() -> None:
        forward().backward()
        module.zero_grad(set_to_none=True)

    seconds = [0.0]
    options = bolide.functorch.config.patch(activation_memory_budget=1.0 if budget is None else budget)
    with options, noting(aot, "partitioned", seconds):
        step()
    return step, saved_bytes(forward, module), seconds[-1]


def main(model: str = "gpt2", scale: str = "small12") -> None:
    torch.set_num_threads(1)
    work = build(model, scale)
    cases = {budget: training(work, budget) for budget in (None, *BUDGETS)}
    times: dict[float | None, list[float]] = {budget: [] for budget in cases}
    for _ in range(ROUNDS):
        for budget, (step, _, _) in cases.items():
            start = time.process_time()
            step()
            times[budget].append(time.process_time() - start)
    usual = statistics.median(times[1.0])
    print(f"| {model} {scale}: budget | saved, MB | step, ms | × usual | partition, s |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for budget, (_, size, seconds) in cases.items():
        median = statistics.median(times[budget])
        name = "eager" if budget is None else f"{budget}"
        print(f"| {name} | {size / 1e6:.1f} | {median * 1e3:.0f} | {median / usual:.2f} | {seconds:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
