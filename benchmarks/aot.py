"""Libraries made ahead of time, beside AOTInductor's: ``python -m benchmarks.aot [--scale SCALE] [MODEL ...]``.

For each model, in a process of its own: how long bolide and AOTInductor take to make a library (caches empty, both
after a library of a trivial function, for what is paid once), how large they are without constants' data, and what a
call takes. Both libraries are called by PyTorch's runner, in turn; a time is the median of rounds. Processor time of
all threads of the process and of the compilers that it starts is shown beside the time by the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

MODELS = ("x+1", "mlp", "resnet18", "gpt2", "bert")


class Called(nn.Module):
    """A model that takes tensors one by one, and gives the tensors of its result."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        result = self.model(**dict(zip(self.names, inputs)))
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


class AddOne(nn.Module):
    """The smallest model."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x + 1]


def model_of(name: str, scale: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model and its inputs."""
    if name == "x+1":
        return AddOne(), (torch.randn(8),)
    from benchmarks import models

    workload = models.build(name, scale)
    names = [key for key, value in workload.inputs.items() if isinstance(value, Tensor)]
    return Called(workload.module.eval(), names), tuple([workload.inputs[key] for key in names])


Spent = tuple[float, float]
"""Seconds by the clock, and of the processor."""


def spent(make: Callable[[], str]) -> tuple[str, Spent]:
    """What it gives, and what it takes."""

    def processor() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    start, before = time.perf_counter(), processor()
    made = make()
    return made, (time.perf_counter() - start, processor() - before)


def by_bolide(model: nn.Module, inputs: tuple[Tensor, ...], folder: str) -> str:
    """A library."""
    import bolide

    return bolide.aot_compile(model, inputs, path=Path(folder) / "bolide.pt2")


def by_aotinductor(model: nn.Module, inputs: tuple[Tensor, ...], folder: str) -> str:
    """A library."""
    program = torch.export.export(model, inputs)
    return torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/aotinductor.pt2")  # type: ignore[no-any-return]


def measure(name: str, scale: str, rounds: int) -> None:
    """Prints what one model gives."""
    folder = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    makers = {"bolide": by_bolide, "AOTInductor": by_aotinductor}
    loaders = {}
    with torch.no_grad():
        model, inputs = model_of(name, scale)
        expected = model(*inputs)
        for who, make in makers.items():
            make(AddOne(), (torch.randn(3, 2),), folder)
            package, (clock, processor) = spent(lambda make=make: make(model, inputs, folder))  # type: ignore[misc]
            loaders[who] = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
            torch.testing.assert_close(loaders[who].run([*inputs]), expected, atol=1e-3, rtol=1e-3)
            kept = {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
            data = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
            size = os.path.getsize(package)
            print(
                f"{name:10} {who:12} made in {clock:6.2f} s (processor {processor:6.2f} s), "
                f"{size / 1024:9,.0f} KiB, of it {data / 1024:9,.0f} KiB the model's tensors",
                flush=True,
            )
        print(f"{name:10} {compared(loaders, [*inputs], rounds)}", flush=True)


def compared(loaders: dict[str, object], inputs: list[Tensor], rounds: int) -> str:
    """What a call takes, in turn."""
    runs: dict[str, Callable[[list[Tensor]], object]] = {who: loader.run for who, loader in loaders.items()}  # type: ignore[attr-defined]
    for run in runs.values():
        start = time.perf_counter()
        for _ in range(5):
            run(inputs)
    calls = max(1, int(0.02 / max((time.perf_counter() - start) / 5, 1e-7)))
    taken: dict[str, list[float]] = {who: [] for who in runs}
    for place in range(rounds):
        for who, run in [*runs.items()][:: 1 if place % 2 else -1]:
            start = time.perf_counter()
            for _ in range(calls):
                run(inputs)
            taken[who].append((time.perf_counter() - start) / calls * 1e6)
    medians = {who: statistics.median(times) for who, times in taken.items()}
    shown = ", ".join(f"{who} {value:,.2f} µs" for who, value in medians.items())
    return f"a call: {shown}; bolide takes {medians['bolide'] / medians['AOTInductor']:.2f} of AOTInductor's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    for name in given.models:
        if given.here:
            measure(name, given.scale, given.rounds)
        else:
            line = [sys.executable, "-m", "benchmarks.aot", "--here", "--scale", given.scale]
            subprocess.run([*line, "--rounds", str(given.rounds), name], check=True)


if __name__ == "__main__":
    main()
