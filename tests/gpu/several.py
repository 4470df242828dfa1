"""Several GPUs, each check in turn: what one GPU, or one that is played, cannot prove.

python tests/gpu/several.py         all of it, a line for each check; ends with 1 if one failed
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from in_turn import check, run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bolide


def alike(program: Callable[..., Any], make: Callable[[], tuple[Any, ...]], **options: Any) -> None:
    """Compares results, gradients and devices with eager, in several calls."""
    compiled = bolide.compile(program, **options)
    for _ in range(4):
        inputs = make()
        found = []
        for call in (program, compiled):
            leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
            result = call(*leaves)
            result.square().sum().backward()
            found.append([result.detach(), *(x.grad for x in leaves if isinstance(x, Tensor))])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def randn(*size: int, device: int = 1) -> Tensor:
    return torch.randn(*size, device=f"cuda:{device}")


@check
def the_second_device_while_the_first_is_current() -> None:
    alike(lambda x, w: torch.softmax(x @ w, -1).sin() * x.sum(), lambda: (randn(9, 33), randn(33, 17)))
    assert torch.cuda.current_device() == 0


@check
def the_second_device_as_the_current_one() -> None:
    def program(x: Tensor) -> Tensor:
        return x * torch.arange(5, device="cuda") + torch.rand_like(x) * 0

    compiled = bolide.compile(program)
    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            x = torch.randn(5, device="cuda")
            torch.testing.assert_close(compiled(x), x * torch.arange(5, device="cuda"))


@check
def a_program_over_both() -> None:
    def program(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x @ v).to("cuda:1", non_blocking=True)
        return (y @ w).tanh().to("cuda:0") + x.mean()

    alike(program, lambda: (randn(6, 8, device=0), randn(8, 40, device=0), randn(40, 3)))


@check
def graphs_on_the_second_device() -> None:
    compiled = bolide.compile(lambda x, w: (x @ w).sin() + 1, mode="reduce-overhead")
    w = randn(64, 64)
    for _ in range(5):
        x = randn(7, 64)
        torch.testing.assert_close(compiled(x, w), (x @ w).sin() + 1, rtol=1e-4, atol=1e-4)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()


def _rank(rank: int, failed: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    try:
        gradients = []
        for compiled in (False, True):
            module = DistributedDataParallel(_model(), device_ids=[rank])
            call = bolide.compile(module) if compiled else module
            torch.manual_seed(rank)
            for _ in range(3):
                module.zero_grad()
                call(torch.randn(8, 16, device="cuda")).square().mean().backward()
            gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    except Exception:
        failed.put(traceback.format_exc())
    finally:
        dist.destroy_process_group()


@check
def gradients_are_shared_by_two_processes() -> None:
    context = processes.get_context("spawn")
    failed = context.SimpleQueue()
    processes.spawn(_rank, (failed,), nprocs=2)
    assert failed.empty(), failed.get()


if __name__ == "__main__":
    sys.exit(run())
