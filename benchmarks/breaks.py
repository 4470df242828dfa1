"""What a break costs at run time, in µs of processor time: ``python -m benchmarks.breaks [backend]``.

Each program breaks once a trip of a loop. For each: what a call takes in eager, compiled by bolide and compiled by
TorchDynamo, in turn in one process, and what that is for one break: the difference to eager divided by the number of
breaks. That holds the rebuilding of live values, the guards of the next segment, and what a graph costs beyond its
operations. TorchDynamo runs a function in eager whose loop, `with` or `try` block breaks.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import bolide
from bolide.dynamo.config import config
from bolide.support import events

TRIPS = 100
Program = Callable[[Tensor], Tensor]


class Quiet:
    """A stream that `print` writes to."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def prints(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        x = x * 2 - x
        print("trip")
    return x


def reads_an_item(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        x = x * 2 - x
        if x[0].item() > 1e9:
            break
    return x


def calls_native_code(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        x = x * 2 - x
        os.getpid()
    return x


def innermost(x: Tensor) -> Tensor:
    y = x * 2
    os.getpid()
    return y - x


def inner(x: Tensor, factor: float) -> Tensor:
    y = innermost(x)
    return y * factor


def in_nested_calls(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        x = inner(x, 1.0)
    return x


def in_a_with_block(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        with torch.no_grad():
            x = x * 2 - x
            os.getpid()
    return x


def in_a_try_block(x: Tensor) -> Tensor:
    for _ in range(TRIPS):
        try:
            x = x * 2 - x
            os.getpid()
        finally:
            x = x + 0
    return x


def programs() -> list[tuple[Program, int]]:
    """The programs and the number of breaks in a call of each."""
    given: list[Program] = [prints, reads_an_item, calls_native_code, in_nested_calls, in_a_with_block, in_a_try_block]
    return [(program, TRIPS) for program in given]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(Quiet()), warnings.catch_warnings():  # type: ignore[type-var]
        warnings.simplefilter("ignore")
        yield


def measure(program: Program, backend: str, rounds: int = 15) -> tuple[dict[str, float], int]:
    """Medians of µs a call, and how many segments bolide has made."""
    bolide.reset()
    torch.compiler.reset()
    captured: list[object] = []
    ways = {
        "eager": program,
        "bolide": bolide.compile(program, backend=backend),
        "TorchDynamo": torch.compile(program, backend=backend),
    }
    x = torch.randn(8)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with quiet(), events.subscribed(captured.append):
        for _ in range(3):
            for way in ways.values():
                torch.testing.assert_close(way(x), program(x))
    with quiet():
        for _ in range(rounds):
            for name, way in ways.items():
                start = time.thread_time()
                way(x)
                taken[name].append((time.thread_time() - start) * 1e6)
    segments = sum(isinstance(event, events.Captured) for event in captured)
    return {name: statistics.median(each) for name, each in taken.items()}, segments


def main(arguments: list[str]) -> None:
    config.eager_if_faster = False  # the breaks are measured
    backend = arguments[0] if arguments else "eager"
    for program, breaks in programs():
        taken, segments = measure(program, backend)
        costs = {name: (taken[name] - taken["eager"]) / breaks for name in ("bolide", "TorchDynamo")}
        shown = ", ".join(f"{name} {value:.0f}" for name, value in taken.items())
        print(
            f"{program.__name__}: a call {shown}; a break bolide {costs['bolide']:.2f}, TorchDynamo "
            f"{costs['TorchDynamo']:.2f}; {segments} segments"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
