"""Looks for the fastest schedule of each kernel by running those that compute the same (option `max_autotune`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bolide.inductor.codegen import compile_kernels
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import Machine
from bolide.inductor.plan.codec import digest
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.schedule.nest import Schedule
from bolide.support import artifacts
from bolide.support.artifacts import Key

GAIN = 0.95
"""An alternative takes the place of the schedule that was chosen if it takes at most this share of its time."""
SECONDS = 0.05
"""For the runs of one kernel's schedules together, but each runs at least `FEWEST` times."""
FEWEST = 3
MOST_BYTES = 1 << 30
"""Kernels that work on more memory are not run."""
LIGHTEST = 16
"""Threads are not tried where an element would need more than so much work to be worth the first of them."""

Clock = Callable[[CompiledKernel, Sequence[int]], float]
"""Seconds of one run of a kernel on these addresses and sizes."""


def run_time(kernel: CompiledKernel, words: Sequence[int]) -> float:
    """Runs a kernel once and tells the seconds."""
    start = time.perf_counter()
    kernel.launch(*words)
    return time.perf_counter() - start


@dataclass(slots=True)
class Search:
    """Chooses schedules for a machine and for these `sizes`. What was found is kept with the machine code
    (`support.artifacts`), so it is not looked for again, nor in a process that is given the artifacts."""

    machine: Machine
    sizes: Mapping[str, int]
    clock: Clock = run_time
    progress: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def __call__(self, schedule: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        """The fastest among `schedule` and its alternatives, on as many threads as are fastest for it."""
        chosen = self._fastest_of([schedule, *schedule.alternatives()], kernel_of)
        if self._elements(kernel_of(chosen)) * LIGHTEST >= self.machine.grain:
            chosen = self._fastest_of([chosen, *chosen.alternative_threads(self.machine)], kernel_of)
        if self.progress is not None:
            self.progress.advance(self.task)
        return chosen

    def _fastest_of(self, candidates: Sequence[Schedule], kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        if len(candidates) == 1:
            return candidates[0]
        kernels = [kernel_of(candidate) for candidate in candidates]
        words = self._buffers(kernels[0])
        if words is None:
            return candidates[0]
        sizes = [self.sizes[size] for size in kernels[0].sizes]
        described = [digest(kernel) for kernel in kernels]
        names = {"kernels": artifacts.digest_of("\n".join(described)), "machine": repr(self.machine)}
        names |= {"threads": str(self.machine.threads), "sizes": repr(sizes), "torch": torch.__version__}
        key = Key("choices", names, kernels[0].name)
        kept = artifacts.find(key)
        place = int(kept) if kept is not None else -1
        if kept is None:
            place = self._fastest(kernels, [*(buffer.data_ptr() for buffer in words), *sizes])
            artifacts.keep(key, str(place).encode())
        chosen = candidates[place]
        return replace(chosen, why=(*chosen.why, "the fastest when measured")) if place else chosen

    def _elements(self, kernel: Kernel) -> int:
        """The elements that a kernel works on; 0 where a size is not known."""
        if not self.sizes.keys() >= set(kernel.sizes):
            return 0
        return sum(param.numel.evaluate(self.sizes) for param in kernel.params)

    def _buffers(self, kernel: Kernel) -> list[torch.Tensor] | None:
        """Memory for the parameters; None where a size is not known, or there is none, or it would be too much."""
        if not self._elements(kernel):
            return None
        extents = [param.numel.evaluate(self.sizes) for param in kernel.params]
        if sum(extent * param.dtype.itemsize for extent, param in zip(extents, kernel.params)) > MOST_BYTES:
            return None
        return [_numbers(extent, param.dtype) for extent, param in zip(extents, kernel.params)]

    def _fastest(self, kernels: Sequence[Kernel], words: Sequence[int]) -> int:
        """The place of the kernel that takes least time; they take turns."""
        compiled = [compile_kernels([kernel], self.machine, self.sizes)[0] for kernel in kernels]
        least = [self.clock(kernel, words) for kernel in compiled]  # the first run also brings memory and code in
        end, turns = time.perf_counter() + SECONDS, 0
        while turns < FEWEST or time.perf_counter() < end:
            turns += 1
            for place, kernel in enumerate(compiled):
                least[place] = min(least[place], self.clock(kernel, words))
        best = min(range(len(least)), key=least.__getitem__)
        return best if least[best] <= GAIN * least[0] else 0


def _numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements in [0, 1) of floats (rounded down to 0, they are indices that are in range)."""
    count = max(count, 1)
    if dtype.is_floating_point or dtype.is_complex:
        generator = torch.Generator().manual_seed(0)
        return torch.rand(count, dtype=dtype, device="cpu", generator=generator)
    return torch.zeros(count, dtype=dtype, device="cpu")


@contextmanager
def searching(name: str, machine: Machine, sizes: Mapping[str, int]) -> Iterator[Search]:
    """A search for the kernels of one graph, with a progress bar where standard error is a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Search(machine, sizes)
        return
    columns = (TextColumn("max_autotune {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Search(machine, sizes, progress=progress, task=progress.add_task(name, total=None))
