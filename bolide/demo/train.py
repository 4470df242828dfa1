"""The demo's work: the same training run by several compilers, step by step in turn."""

from __future__ import annotations

import ctypes
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import nn

import bolide
from bolide.demo.model import CharGPT, Size
from bolide.demo.text import Text

COMPILERS: dict[str, Callable[[nn.Module], Callable[..., torch.Tensor]]] = {
    "eager": lambda model: model,
    "bolide": lambda model: bolide.compile(model),
    "torch.compile": torch.compile,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What to train and how long."""

    size: Size
    steps: int
    dropout: float
    device: torch.device
    dtype: torch.dtype
    seed: int
    learning_rate: float = 1e-3


@dataclass(slots=True)
class Lane:
    """One compiler's run: its own copy of the model and optimizer, the losses in nats and the seconds of every step.

    `peak` is the memory that a warm step needs at most, in bytes; None where it cannot be measured.
    """

    name: str
    call: Callable[..., torch.Tensor]
    model: CharGPT
    optimizer: torch.optim.Optimizer
    settings: Settings
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak: int | None = None

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        """One training step, timed until its loss is known."""
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(tokens, targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        value = float(loss.detach())
        self.seconds.append(time.perf_counter() - begin)
        self.losses.append(value)

    @property
    def first_call(self) -> float:
        """Seconds of the first step, which compiles."""
        return self.seconds[0]

    @property
    def step_ms(self) -> float:
        """The median of the later steps, in ms."""
        return statistics.median(self.seconds[1:] or self.seconds) * 1e3


def make_lane(name: str, settings: Settings, vocabulary: int) -> Lane:
    """A lane whose model has the weights that the seed gives."""
    torch.manual_seed(settings.seed)
    model = CharGPT(vocabulary, settings.size, settings.dropout).to(settings.device, settings.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    return Lane(name, COMPILERS[name](model), model, optimizer, settings)


def train(lanes: list[Lane], text: Text, settings: Settings) -> Iterator[tuple[int, Lane]]:
    """Trains all lanes on the same batches, in another order at each step; yields after each lane's step."""
    generator = torch.Generator().manual_seed(settings.seed)
    for i in range(settings.steps):
        tokens, targets = (
            t.to(settings.device) for t in text.batch(settings.size.batch, settings.size.context, generator)
        )
        turn = i % len(lanes)
        for lane in lanes[turn:] + lanes[:turn]:
            torch.manual_seed(settings.seed + i)
            lane.step(tokens, targets)
            yield i, lane


def measure_peaks(lanes: list[Lane], text: Text, settings: Settings, repeats: int = 3) -> None:
    """Sets each lane's `peak`: the median over some extra forward and backward passes, after the timed steps.

    What bolide keeps from call to call for its buffers is released first, so that it counts.
    """
    for lane in lanes:
        peaks = []
        for _ in range(repeats):
            for other in lanes:
                other.optimizer.zero_grad(set_to_none=True)
            peaks.append(peak_bytes(functools.partial(one_pass, lane, text), settings.device))
        known = [p for p in peaks if p is not None]
        lane.peak = int(statistics.median(known)) if known else None


def one_pass(lane: Lane, text: Text) -> None:
    """One forward and backward pass outside the training; the gradients are added to those that are there."""
    size, device = lane.settings.size, lane.settings.device
    generator = torch.Generator().manual_seed(lane.settings.seed)
    tokens, targets = (t.to(device) for t in text.batch(size.batch, size.context, generator))
    torch.autograd.backward(lane.call(tokens, targets))


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """The memory in bytes that `work` needs at most above what was held before.

    On a GPU by torch's allocator. On Linux by the kernel's high-water mark of the resident set, which sees what every
    library allocates; free memory is handed back first, so that what is used again counts again. None elsewhere.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return int(torch.cuda.max_memory_allocated(device) - before)
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        before = status("VmRSS")
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
        work()
        return max(0, status("VmHWM") - before)
    except OSError:
        return None


def status(name: str) -> int:
    """A size in /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024


def largest_difference(lane: Lane, reference: Lane) -> float:
    """The largest difference between two loss curves, in nats."""
    return max(abs(a - b) for a, b in zip(lane.losses, reference.losses, strict=True))
