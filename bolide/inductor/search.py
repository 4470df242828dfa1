"""Looks for the fastest schedule of each kernel, and the fastest library for each product and convolution, by running
those that compute the same (option `max_autotune`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bolide.inductor.codegen import compile_kernels
from bolide.inductor.ir.definitions import Input, Program, volume
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import Machine
from bolide.inductor.plan.codec import digest
from bolide.inductor.runtime import driver
from bolide.inductor.runtime.kernels import binder, failure
from bolide.inductor.schedule import schedule_program
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.products import Way
from bolide.support import artifacts
from bolide.support.artifacts import Key
from bolide.support.log import logger

log = logger("inductor")

GAIN = 0.95
"""An alternative takes the place of the schedule that was chosen if it takes at most this share of its time."""
SECONDS = 0.05
"""For all runs of one choice together, but each runs at least `FEWEST` times."""
FEWEST = 3
MOST_BYTES = {"cpu": 1 << 30, "cuda": 1 << 32}
"""Kernels and calls that work on more memory of a device are not run."""
IN_TURN = 4
"""Runs on a GPU that are measured together."""
LIGHTEST = 16
"""Threads are not tried where an element would need more than so much work to be worth the first of them."""

NEAR = 2e-2
"""Results differ by at most this share of theirs, and of the largest: orders of additions are others."""

Run = Callable[[], object]
Clock = Callable[[Run], float]
"""Seconds of one run."""


def wall_time(run: Run) -> float:
    """Seconds of one run by the clock on the wall: threads have no other."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def device_time(run: Run) -> float:
    """Seconds of one run on the current GPU, of several in turn: what is taken for its events hardly matters then."""
    clock = driver.EventClock()
    clock.start()
    for _ in range(IN_TURN):
        run()
    clock.stop("")
    ((_, seconds),) = clock.times()
    return seconds / IN_TURN


def thread_time(run: Run) -> float:
    """Seconds of this thread's processor in one run: what else the machine does hardly matters."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


class _AsTheyAre:
    """Chooses nothing: what is measured is what was asked for."""

    def schedule(self, usual: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        return usual

    def library(self, ways: Sequence[Way], program_of: Callable[[Way], Program]) -> Way:
        return "aten"


@dataclass(frozen=True, slots=True)
class Trial:
    """What is measured, and what tells the results of one run."""

    run: Run
    results: Callable[[], Sequence[torch.Tensor]]


@dataclass(slots=True)
class Search:
    """Chooses schedules and libraries for a machine and for these `sizes`. What was found is kept with the machine code
    (`support.artifacts`), so it is not looked for again, nor in a process that is given the artifacts."""

    machine: Machine
    sizes: Mapping[str, int]
    clock: Clock
    progress: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def schedule(self, usual: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        """The fastest among a schedule and its alternatives, on as many threads as are fastest for it."""
        chosen = self._fastest_schedule([usual, *usual.alternatives(self.machine, self.sizes)], kernel_of)
        if self._elements(kernel_of(chosen)) * LIGHTEST >= self.machine.grain:
            chosen = self._fastest_schedule([chosen, *chosen.alternative_threads(self.machine)], kernel_of)
        self._advance()
        return chosen

    def library(self, ways: Sequence[Way], program_of: Callable[[Way], Program]) -> Way:
        """The fastest of the ways in which a call may be run."""
        programs = [program_of(way) for way in ways]
        inputs = programs[0].inputs
        sizes = [volume(given.shape).value * given.dtype.itemsize for given in inputs]
        place = 0
        if all(sizes) and sum(sizes) <= MOST_BYTES[inputs[0].device.type]:
            names = {"ways": artifacts.digest_of("\n".join([digest(program) for program in programs]))}
            names["mkldnn"] = str(torch.backends.mkldnn.enabled)
            place = self._remembered(names, f"{ways[0]} call", inputs[0].device, lambda: self._runs(programs))
        self._advance()
        return ways[place]

    def _advance(self) -> None:
        if self.progress is not None:
            self.progress.advance(self.task)

    def _runs(self, programs: Sequence[Program]) -> list[Callable[[], Trial]]:
        """What makes the trial of each program, on the same tensors."""
        tensors = [_tensor(given) for given in programs[0].inputs]

        def made(program: Program) -> Trial:
            names = tuple([given.name for given in program.inputs])
            scheduled = schedule_program(program, names, names, self.machine, _AsTheyAre())
            kernels = compile_kernels(scheduled.plan.kernels, self.machine, {})
            binding = driver.Binding(binder(kernels), {}, scheduled.objects, failure(kernels))
            run, _ = driver.build(scheduled.plan, binding, "max_autotune")
            on_copies = partial(_on_copies, run, tensors)
            return Trial(on_copies, on_copies)

        return [partial(made, program) for program in programs]

    def _fastest_schedule(self, candidates: Sequence[Schedule], kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        if len(candidates) == 1:
            return candidates[0]
        kernels = [kernel_of(candidate) for candidate in candidates]
        if not self._is_measured(kernels[0]):
            return candidates[0]
        sizes = [self.sizes[size] for size in kernels[0].sizes]
        names = {"kernels": artifacts.digest_of("\n".join([digest(kernel) for kernel in kernels]))}
        names["sizes"] = repr(sizes)

        def runs() -> list[Callable[[], Trial]]:
            buffers = self._buffers(kernels[0])
            return [partial(self._launched, kernel, buffers, sizes) for kernel in kernels]

        place = self._remembered(names, kernels[0].name, kernels[0].device, runs)
        chosen = candidates[place]
        return replace(chosen, why=(*chosen.why, "the fastest when measured")) if place else chosen

    def _launched(self, kernel: Kernel, buffers: Sequence[torch.Tensor], sizes: Sequence[int]) -> Trial:
        """The trial of a kernel on buffers, which are no results of it before."""
        (compiled,) = compile_kernels([kernel], self.machine, self.sizes)
        words = [*(buffer.data_ptr() for buffer in buffers), *sizes]

        def run() -> None:
            compiled.launch(*words)
            if compiled.raise_error is not None:
                compiled.raise_error()

        def results() -> list[torch.Tensor]:
            written = [buffer for buffer, param in zip(buffers, kernel.params) if param.role != "in"]
            for buffer in written:
                _fill(buffer)
            run()
            return [buffer.clone() for buffer in written]

        return Trial(run, results)

    def _elements(self, kernel: Kernel) -> int:
        """The elements that a kernel works on; 0 where a size is not known."""
        if not self.sizes.keys() >= set(kernel.sizes):
            return 0
        return sum(param.numel.evaluate(self.sizes) for param in kernel.params)

    def _is_measured(self, kernel: Kernel) -> bool:
        """Not where a size is not known, or there is no memory for the parameters, or it would be too much."""
        if not self._elements(kernel):
            return False
        sizes = [param.numel.evaluate(self.sizes) * param.dtype.itemsize for param in kernel.params]
        return sum(sizes) <= MOST_BYTES[kernel.device.type]

    def _buffers(self, kernel: Kernel) -> list[torch.Tensor]:
        """Memory for the parameters."""
        return [_numbers(param.numel.evaluate(self.sizes), param.dtype, kernel.device) for param in kernel.params]

    def _remembered(
        self,
        names: Mapping[str, str],
        label: str,
        device: torch.device,
        makers: Callable[[], Sequence[Callable[[], Trial]]],
    ) -> int:
        """The place of the fastest: as it was found before for these names, machine and threads, or found now."""
        about = {"machine": repr(self.machine), "threads": str(self.machine.threads), "torch": torch.__version__}
        if device.type == "cuda":
            about["device"] = torch.cuda.get_device_name(device)
        key = Key("choices", {**names, **about}, label)
        kept = artifacts.find(key)
        if kept is not None:
            return int(kept)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            try:
                made = makers()
            except Exception as error:  # no memory, or no random numbers of such a type
                log.warning("max_autotune: %s is not measured: %r", label, error)
                return 0
            place = self._fastest(made, label)
        artifacts.keep(key, str(place).encode())
        return place

    def _fastest(self, makers: Sequence[Callable[[], Trial]], label: str) -> int:
        """The place of the run that takes least time; they take turns. One that cannot be made, or run, or gives other
        results than the first, is none."""
        runs: dict[int, Run] = {}
        least: dict[int, float] = {}
        expected: Sequence[torch.Tensor] | None = None
        for place, maker in enumerate(makers):
            try:
                trial = maker()
                results = trial.results()  # which brings memory and code in, too
                if expected is not None and not all(map(_are_near, results, expected)):
                    raise ValueError("it gives other results")
                least[place] = self.clock(trial.run)
                expected, runs[place] = expected or results, trial.run
            except Exception as error:
                log.warning("max_autotune: candidate %d of %s is dropped: %r", place, label, error)
        end, turns = time.perf_counter() + SECONDS, 0
        while turns < FEWEST or time.perf_counter() < end:
            turns += 1
            for place, run in runs.items():
                least[place] = min(least[place], self.clock(run))
        best = min(least, key=least.__getitem__, default=0)
        return best if 0 not in least or least[best] <= GAIN * least[0] else 0


def _are_near(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether results are the same but for rounding."""
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return torch.equal(mine, theirs)
    if not theirs.numel():
        return True
    largest = float(theirs.abs().nan_to_num(posinf=0.0).max())
    return torch.allclose(mine, theirs, NEAR, NEAR * largest, equal_nan=True)


def _on_copies(run: driver.Run, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Runs a graph, which empties the list that it is given."""
    return run([*tensors])


def _tensor(given: Input) -> torch.Tensor:
    """A tensor as an input is described."""
    shape, stride = [[extent.value for extent in extents] for extents in (given.shape, given.layout.stride)]
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride))
    return _numbers(span, given.dtype, given.device).as_strided(shape, stride)


def _numbers(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """So many numbers, see `_fill`."""
    numbers = torch.empty(max(count, 1), dtype=dtype, device=device)
    _fill(numbers)
    return numbers


def _fill(numbers: torch.Tensor) -> None:
    """Elements in [0, 1) of floats, the same each time (rounded down to 0, they are indices that are in range)."""
    if numbers.is_floating_point() or numbers.is_complex():
        torch.rand(numbers.shape, generator=torch.Generator(numbers.device).manual_seed(0), out=numbers)
    else:
        numbers.zero_()


@contextmanager
def searching(name: str, machine: Machine, sizes: Mapping[str, int]) -> Iterator[Search]:
    """A search for the kernels and calls of one graph, with a progress bar where standard error is a terminal."""
    console = Console(file=sys.stderr)
    clock = device_time if machine.device == "cuda" else thread_time if machine.threads == 1 else wall_time
    if not console.is_terminal:
        yield Search(machine, sizes, clock)
        return
    columns = (TextColumn("max_autotune {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Search(machine, sizes, clock, progress, progress.add_task(name, total=None))
