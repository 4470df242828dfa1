"""What `memory_efficient_fusion` saves and costs beside eager: `python -m benchmarks.fusion [ROWS COLUMNS]`; prints a
table.

Chains of pointwise operations, on one thread: the bytes that the forward keeps besides its arguments, and the
processor time of a forward with its backward, the median of rounds in which eager and the fused function take turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import bolide  # noqa: F401  (its code generator)
from bolide.functorch.compilers import memory_efficient_fusion

ROUNDS = 15
Program = Callable[[Tensor, Tensor], Tensor]

PROGRAMS: dict[str, Program] = {
    "bias, GELU": lambda x, bias: F.gelu(x + bias),
    "bias, GELU by tanh, as operations": lambda x, bias: (
        0.5 * (x + bias) * (1 + torch.tanh(0.7978845608 * ((x + bias) + 0.044715 * (x + bias) ** 3)))
    ),
    "GELU times sigmoid": lambda x, bias: F.gelu(x + bias) * torch.sigmoid(x),
    "bias, dropout, residual": lambda x, bias: x + F.dropout(x + bias, 0.1),
    "bias, GELU, dropout": lambda x, bias: F.dropout(F.gelu(x + bias), 0.1),
    "two dropouts": lambda x, bias: F.dropout(torch.tanh(F.dropout(x.sin(), 0.2) + bias), 0.5),
    "SiLU, sine, cosine": lambda x, bias: (F.silu(x) + bias).sin().cos(),
    "ReLUs": lambda x, bias: torch.relu(torch.relu(x + bias) * bias - 0.1).exp(),
    "hard swish, SiLU, ELU": lambda x, bias: F.hardswish(F.silu(x) + bias) * F.elu(x),
    "square root, logarithm, tanh": lambda x, bias: (x * x + bias * bias + 1).sqrt().log().exp().tanh(),
}


def saved_bytes(program: Program, *args: Tensor) -> int:
    """Bytes that are kept for the backward, besides the arguments."""
    known = {arg.untyped_storage().data_ptr() for arg in args}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = program(*args)
    del result
    return sum(size for address, size in sizes.items() if address not in known)


def seconds(program: Program, x: Tensor, bias: Tensor, gradient: Tensor) -> float:
    """Processor time of a forward and its backward."""
    start = time.process_time()
    torch.autograd.grad(program(x, bias), (x, bias), gradient)
    return time.process_time() - start


def main(rows: int = 1000, columns: int = 1000) -> None:
    torch.set_num_threads(1)
    gradient = torch.randn(rows, columns)
    print(f"| {rows} × {columns} elements | saved by eager, MB | saved, MB | eager, ms | ms | × eager |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, program in PROGRAMS.items():
        x, bias = torch.randn(rows, columns, requires_grad=True), torch.randn(columns, requires_grad=True)
        both = program, memory_efficient_fusion(program)
        for each in both:
            seconds(each, x, bias, gradient)
        times = [[seconds(each, x, bias, gradient) for each in both] for _ in range(ROUNDS)]
        eager, fused = (statistics.median(column) * 1e3 for column in zip(*times))
        sizes = [saved_bytes(each, x, bias) / 1e6 for each in both]
        print(
            f"| {name} | {sizes[0]:.2f} | {sizes[1]:.2f} | {eager:.1f} | {fused:.1f} | {fused / eager:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
