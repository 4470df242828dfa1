"""`python -m benchmarks.memory`: times the suite and prints its table.

All compilers run in one process, in turn, each round in another order; a ratio is the median over the rounds of the
ratio within a round. Results are compared with eager in float64 first.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory.cases import CASES, Case
from benchmarks.report import geometric_mean, number, table
from benchmarks.worker import compiler, difference, first_line

Step = Callable[[], list[Tensor]]

MOST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
"""Largest difference from float64, relative to the magnitude of the tensor, unless eager's own is half as large."""


@dataclass
class Row:
    """What was measured of a case: bytes that must be moved, ms of each compiler and of the copy by round, what
    failed."""

    case: Case
    dtype: torch.dtype
    moved: int = 0
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratio(self, over: str, name: str = "bolide") -> float | None:
        """How many times faster `name` is than `over`."""
        if not self.rounds.get(over) or not self.rounds.get(name):
            return None
        return median_ratio(self.rounds[over], self.rounds[name])


def median_ratio(over: list[float], own: list[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(over, own, strict=True))


def stepper(case: Case, function: Callable[..., Any], inputs: tuple[Tensor, ...], gradient: list[Tensor]) -> Step:
    """One call, with its backward in training: results and gradients. `gradient`: that of the result, made once."""

    def inference() -> list[Tensor]:
        with torch.no_grad():
            result = function(*inputs)
        return list(result) if isinstance(result, tuple) else [result]

    def train() -> list[Tensor]:
        result = function(*inputs)
        if not gradient:
            source = torch.Generator(result.device).manual_seed(3)
            gradient.append(torch.randn(result.shape, generator=source, device=result.device).to(result.dtype))
        wanted = [x for x in inputs if x.requires_grad]
        return [result, *torch.autograd.grad(result, wanted, gradient[0])]

    return train if case.train else inference


def arguments(case: Case, given: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Copies of the tensors in another dtype, asking for gradients where the case does."""
    copies = tuple(x.to(dtype, copy=True) if x.is_floating_point() else x for x in given)
    for x in copies[: case.written]:
        x.requires_grad_(case.train and x.is_floating_point())
    return copies


def bytes_moved(case: Case, inputs: tuple[Tensor, ...], results: list[Tensor]) -> int:
    """The bytes that must be read and written: every argument once for the forward and those that get a gradient once
    more for the backward, every result, the result's gradient, every gradient; what is written in place twice."""
    size = [x.untyped_storage().nbytes() for x in inputs]
    first = results[0].nbytes
    if case.rows:
        size[0] = first
    if not case.train:
        return sum(size) + sum(r.nbytes for r in results)
    again = sum(n for n, x in zip(size, inputs, strict=True) if x.requires_grad and not case.rows)
    kept = 2 * sum(x.nbytes for x in inputs[case.written :]) if case.written else 0
    return sum(size) + again + kept + first + sum(r.nbytes for r in results)


def check(case: Case, got: list[Tensor], eager: list[Tensor], exact: list[Tensor], dtype: torch.dtype) -> None:
    """RuntimeError where the results are wrong."""
    if case.compare == "random":
        kept = [float((r != 0).double().mean()) for r in got]
        differ = float(((got[0] != 0) != (got[1] != 0)).double().mean())  # a number that is 0 by itself
        if max(abs(share - 0.9) for share in kept) > 0.01 or differ > 1e-5:
            raise RuntimeError(f"wrong: a share of {kept} is kept")
    elif case.compare == "equal":
        if not all(torch.equal(g, e) for g, e in zip(got, eager, strict=True)):
            raise RuntimeError("wrong: not equal to eager")
    else:
        wide = [[t.detach().double() for t in some] for some in (got, eager, exact)]
        error, own = difference(wide[0], wide[2]), difference(wide[1], wide[2])
        if error > max(MOST_ERROR[dtype], 2 * own):
            raise RuntimeError(f"wrong by {error:.2g} of the magnitude, eager by {own:.2g}")


def copier(moved: int) -> Step:
    """A copy of one piece of memory to another that moves so many bytes."""
    source, target = torch.ones(moved // 8), torch.empty(moved // 8)
    return lambda: [target.copy_(source)]


def measured(case: Case, dtype: torch.dtype, compilers: list[str], rounds: int, seconds: float) -> Row:
    torch.manual_seed(0)
    row, given, steps = Row(case, dtype), case.inputs(dtype), dict[str, Step]()
    wide = stepper(case, case.function, arguments(case, given, torch.float64), [])
    exact = wide()
    eager = [r.clone() for r in stepper(case, case.function, arguments(case, given, dtype), [])()]
    for name in compilers:
        inputs = arguments(case, given, dtype)
        step = stepper(case, compiler(name)(case.function), inputs, [])
        try:
            results = step()
            check(case, results, eager, exact, dtype)
            row.moved = bytes_moved(case, inputs, results)
            step()
        except Exception as error:
            row.failed[name] = f"{type(error).__name__}: {first_line(error)}"
            continue
        steps[name] = step
    steps["copy"] = copier(row.moved)
    del exact, eager, wide
    row.rounds = interleaved(steps, rounds, seconds)
    return row


def interleaved(steps: dict[str, Step], rounds: int, seconds: float) -> dict[str, list[float]]:
    """The ms of every step, the smallest in its part of each round; a step's part takes so many seconds in all
    rounds."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    gc.collect()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            step, best, end = steps[name], float("inf"), time.perf_counter() + seconds / rounds
            step()
            while time.perf_counter() < end or best == float("inf"):
                begin = time.perf_counter()
                step()
                best = min(best, time.perf_counter() - begin)
            times[name].append(best * 1e3)
    return times


def keep_memory() -> None:
    """The C library keeps what is freed: else new pages from the kernel cost more than what is measured."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3
        library.mallopt(trim_threshold, 1 << 30)
        library.mallopt(mmap_threshold, 1 << 30)


def shown(rows: list[Row], compilers: list[str]) -> list[str]:
    """The table as Markdown."""
    others = [name for name in compilers if name != "bolide"]
    names = {"torch": "torch.compile"}
    header = ["kernel", "MB", *(f"{names.get(n, n)} ms" for n in compilers), *(f"× {names.get(n, n)}" for n in others)]
    lines = []
    for row in rows:
        ms = [number(statistics.median(row.rounds[n]) if n in row.rounds else None) for n in compilers]
        title = f"{row.case.name}, {str(row.dtype).removeprefix('torch.')}"
        share = row.ratio("copy")
        percent = "–" if share is None else f"{100 * share:.0f}"
        lines.append([title, number(row.moved / 1e6), *ms, *(number(row.ratio(n)) for n in others), percent])
    means = [number(geometric_mean([row.ratio(name) for row in rows])) for name in others]
    lines.append(["**geometric mean**", "", *("" for _ in compilers), *means, ""])
    problems = [f"- {row.case.name}, {row.dtype}: {n}: {why}" for row in rows for n, why in row.failed.items()]
    return [*table([*header, "% of copy"], lines), *problems]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases whose name contains one of these")
    parser.add_argument("--threads", type=int, help="torch's number of threads")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="one dtype; both if left out")
    parser.add_argument("--compilers", nargs="+", default=["eager", "torch", "bolide"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each compiler and case")
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_memory()
    dtypes = [getattr(torch, args.dtype)] if args.dtype else list(MOST_ERROR)
    rows = []
    for case in CASES:
        if args.only and not any(name in case.name for name in args.only):
            continue
        for dtype in dtypes:
            rows.append(measured(case, dtype, args.compilers, args.rounds, args.seconds))
            print(*shown(rows[-1:], args.compilers)[2:3], *rows[-1].failed.items(), file=sys.stderr, flush=True)
    print("\n".join(shown(rows, args.compilers)))


if __name__ == "__main__":
    main()
