"""Collectives in captured code, and modules in DistributedDataParallel: two processes, against eager."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import bolide
from bolide.dynamo.entry.capture import capture

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="torch was built without gloo"
)
PROGRAMS: list[Callable[..., torch.Tensor]] = []


def program(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    PROGRAMS.append(function)
    return function


@program
def reduce_in_place(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    distributed.all_reduce(x)
    distributed.all_reduce(x[0], op=distributed.ReduceOp.MAX)
    return x + 1


@program
def gather_into(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(distributed.get_world_size() * x.shape[0], *x.shape[1:])
    distributed.all_gather_into_tensor(whole, x * 2)
    pieces = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(pieces, x.sin())
    return whole + torch.cat(pieces)


@program
def scatter(x: torch.Tensor) -> torch.Tensor:
    mine = torch.empty_like(x)
    distributed.reduce_scatter_tensor(mine, torch.cat([x] * distributed.get_world_size()))
    return mine * distributed.get_rank()


@program
def functional_forms(x: torch.Tensor) -> torch.Tensor:
    group = distributed.group.WORLD
    x = functional.all_reduce(x * 2, "sum", group) + 1
    return functional.all_gather_tensor(x, 0, group) * 2


def check_collectives() -> None:
    for function in PROGRAMS:
        for backend in ("eager", "inductor"):
            compiled = bolide.compile(function, backend=backend, fullgraph=True)
            for _ in range(2):
                x = torch.randn(3, 4)
                torch.testing.assert_close(compiled(x), torch.as_tensor(function(x)) + 0)

    def breaks(x: torch.Tensor) -> torch.Tensor:  # what waits for an answer, and other groups' business
        x = x * 2
        distributed.broadcast(x, 0)
        work = distributed.all_reduce(x, async_op=True)
        work.wait()
        return x + 1

    x = torch.randn(3)
    torch.testing.assert_close(bolide.compile(breaks)(x), breaks(x))


def check_only_one_compiles(rank: int) -> None:
    """Capturing takes part in no collective: the other process would wait."""
    compiled = bolide.compile(reduce_in_place)
    if rank == 0:
        capture(reduce_in_place, (torch.randn(5, 4),), {}, breaks=False)
    torch.testing.assert_close(compiled(torch.ones(3, 4)), reduce_in_place(torch.ones(3, 4)))


def check_data_parallel() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    batches = [torch.randn(5, 4) for _ in range(3)]
    wrappers: list[Callable[[nn.Module], Any]] = [
        DistributedDataParallel,
        lambda m: bolide.compile(DistributedDataParallel(m)),
        lambda m: DistributedDataParallel(bolide.compile(m)),
    ]
    found = []
    for wrap in wrappers:
        module = model()
        wrapped = wrap(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for x in batches:
            optimizer.zero_grad()
            wrapped(x).pow(2).mean().backward()
            optimizer.step()
        found.append([parameter.detach() for parameter in module.parameters()])
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def run(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("BOLIDE_TEST_SEED", "0")) % 2**31 + rank)
    distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    check_collectives()
    check_only_one_compiles(rank)
    check_data_parallel()
    distributed.barrier()
    distributed.destroy_process_group()


def test_two_processes(tmp_path: Any) -> None:
    command = [sys.executable, "-W", "ignore", __file__]
    started = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = []
    for process in started:
        try:
            errors.append(process.communicate(timeout=120)[1])
        except subprocess.TimeoutExpired:
            process.kill()
            errors.append(process.communicate()[1] + "\n(timed out)")
    assert [process.returncode for process in started] == [0, 0], "\n".join(errors)


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # threads of gloo's may still be there, with which C++ does not end in peace
