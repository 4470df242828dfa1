"""`python -m benchmarks.gpu [kernels] [models] [host] [first]`: bolide on a GPU, beside eager and torch.compile.

Times are by events of the device, medians over calls that follow one another, the compilers in turn in one process.
Every part stops when its share of `--limit` is over and prints what it has; a failure costs its row.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.memory import cases
from benchmarks.memory.__main__ import bytes_moved, stepper
from benchmarks.models import BUILDERS, SCALES, Workload
from benchmarks.report import geometric_mean, number, table
from benchmarks.worker import compiler, difference, first_line
from benchmarks.worker import stepper as model_stepper

Step = Callable[[], Any]
PARTS = {"kernels": 6, "models": 6, "host": 1, "first": 3}
"""The parts, and the shares of the time that they have."""
MODELS = ("bert", "gpt2", "resnet50", "vit", "llama", "t5")
DEVICE = "cuda"
MOST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 4e-2}


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def event_ms(step: Step, seconds: float) -> float:
    """The median time of a call on the device, in ms, of as many as take so many seconds. The cache of the device is
    not emptied: what a call reads is what the last one wrote, or is too large for it."""
    begin = time.perf_counter()
    step()
    synchronize()
    count = max(5, min(200, int(seconds / max(time.perf_counter() - begin, 1e-6))))
    if DEVICE == "cpu":  # to try this program out
        times = [time.perf_counter(), *((step(), time.perf_counter())[1] for _ in range(count))]
        return statistics.median(b - a for a, b in itertools.pairwise(times)) * 1e3
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def host_us(step: Step, calls: int = 300) -> float:
    """What a call costs the host, in µs: the least of several runs, none of which waits for the device."""
    best = float("inf")
    for _ in range(5):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        best = min(best, (time.perf_counter() - begin) / calls)
    synchronize()
    return best * 1e6


def in_use() -> int:
    """Bytes of the device's memory that tensors have."""
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


def peak_mb(step: Step, others: int) -> float:
    """The most memory of the device that is in use during a call, in MB, less what the `others` hold."""
    if DEVICE == "cpu":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - others) / 1e6


def in_turn(steps: dict[str, Step], seconds: float, rounds: int = 3) -> dict[str, float]:
    """The ms of every step: the median over the rounds, in each of which all are timed."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(event_ms(step, seconds / rounds))
    return {name: statistics.median(some) for name, some in times.items()}


# ---- kernels -------------------------------------------------------------------------------------------------------


@contextmanager
def scaled(megabytes: int, dtype: torch.dtype) -> Iterator[None]:
    """The suite's tensors so large that the usual one has so many MB."""
    kept = {name: getattr(cases, name) for name in cases.LEADING}
    factor = megabytes * (1 << 20) / (cases.ROWS * cases.WIDTH * dtype.itemsize)
    for name, value in kept.items():
        setattr(cases, name, max(1, int(value * factor)))
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(cases, name, value)


def arguments(case: cases.Case, given: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The tensors on the device."""
    made = tuple(x.to(DEVICE, dtype if x.is_floating_point() else x.dtype, copy=True) for x in given)
    for x in made[: case.written]:
        x.requires_grad_(case.train and x.is_floating_point())
    return made


@dataclass
class Row:
    """What was measured of a case: bytes that must be moved, ms by compiler and of the copy, what failed."""

    title: str
    moved: int = 0
    ms: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def cells(self, names: list[str]) -> list[str]:
        """The line of a table: MB, ms, shares of the copy's bandwidth in percent."""
        ms = self.ms
        shares = [f"{100 * ms['copy'] / ms[n]:.0f}" if n in ms else "–" for n in names]
        return [self.title, number(self.moved / 1e6), *(number(ms.get(n)) for n in names), *shares]


def kernel_row(case: cases.Case, dtype: torch.dtype, megabytes: int, names: list[str], seconds: float) -> Row:
    torch.manual_seed(0)
    with scaled(megabytes, dtype), torch.device(DEVICE):
        given = case.inputs(dtype)
    row = Row(f"{case.name}, {str(dtype).removeprefix('torch.')}")
    gradient: list[Tensor] = []
    steps: dict[str, Step] = {}
    eager: list[Tensor] | None = None
    for name in names:
        inputs = arguments(case, given, dtype)
        try:
            step = stepper(case, compiler(name)(case.function), inputs, gradient)
            results = step()
            row.moved = row.moved or bytes_moved(case, inputs, results)
            if eager is None:
                eager = [r.detach().clone() for r in results]
            else:
                judged(case, results, eager, dtype, given)
            del results
            step()
            synchronize()
        except Exception as error:
            row.failed.append(f"{row.title}: {name}: {type(error).__name__}: {first_line(error)[:150]}")
            stop_if_lost(error, row.failed)
            continue
        steps[name] = step
    source, target = (torch.ones(row.moved // 8, device=DEVICE) for _ in range(2))
    steps["copy"] = lambda: target.copy_(source)
    row.ms = in_turn(steps, seconds)
    return row


def judged(
    case: cases.Case, got: list[Tensor], eager: list[Tensor], dtype: torch.dtype, given: tuple[Tensor, ...]
) -> None:
    """RuntimeError where results are far from eager's, and from those of a wider type (scans of bfloat16 are rounded at
    each step in eager)."""
    if case.compare == "random" or case.written is not None:
        return
    if case.compare == "equal":
        if not all(torch.equal(g, e) for g, e in zip(got, eager, strict=True)):
            raise RuntimeError("wrong: not equal to eager")
        return
    mine = [g.detach().double() for g in got]
    error = difference(mine, [e.double() for e in eager])
    if not error <= MOST_ERROR[dtype] and dtype is torch.bfloat16 and not case.train:
        wide = case.function(*arguments(case, given, torch.float32))
        error = difference(mine, [w.double() for w in (wide if isinstance(wide, tuple) else (wide,))])
    if not error <= MOST_ERROR[dtype]:
        raise RuntimeError(f"wrong: differs from eager by {error:.2g} of the magnitude")


def kernels(args: argparse.Namespace, end: float) -> None:
    names = ["eager", *(name for name in args.compilers if name != "eager")]
    begin = time.perf_counter()
    for i, megabytes in enumerate(args.megabytes):
        until = begin + (end - begin) * (i + 1) / len(args.megabytes)
        rows: list[Row] = []
        left = 0
        for dtype in args.dtypes:
            for case in cases.CASES:
                if args.only and not any(word in case.name for word in args.only):
                    continue
                if time.perf_counter() > until:
                    left += 1
                    continue
                try:
                    rows.append(kernel_row(case, dtype, megabytes, names, args.seconds))
                    print(*rows[-1].cells(names), file=sys.stderr, flush=True)
                except Exception as error:
                    rows.append(Row(case.name, failed=[f"{case.name}, {dtype}: {type(error).__name__}: {error}"[:200]]))
                    stop_if_lost(error, shown(rows, names, megabytes))
        print("\n".join(shown(rows, names, megabytes)), f"- no time left: {left}", sep="\n", flush=True)


def shown(rows: list[Row], names: list[str], megabytes: int) -> list[str]:
    ratios = {n: [r.ms[n] / r.ms["bolide"] for r in rows if n in r.ms and "bolide" in r.ms] for n in names}
    means = ", ".join(f"{number(geometric_mean([*ratios[n]]))} × {n}" for n in names if n != "bolide")
    header = ["kernel", "MB", *(f"{n} ms" for n in names), *(f"{n} % copy" for n in names)]
    title = f"## kernels, {megabytes} MB: bolide is {means}"
    lines = table(header, [row.cells(names) for row in rows if row.ms])
    return ["", title, "", *lines, *(f"- {why}" for row in rows for why in row.failed)]


def stop_if_lost(error: Exception, shown: list[str]) -> None:
    """Print what there is and end the process where the device can be used no more."""
    if "CUDA" in str(error) and "memory. Tried" not in str(error):
        try:
            synchronize()
        except Exception:
            print("\n".join(shown), "the device is lost", flush=True)
            sys.exit(3)


# ---- models --------------------------------------------------------------------------------------------------------


def workload(model: str, scale: str, batch: int, mode: str, dtype: str) -> Workload:
    torch.manual_seed(0)
    made = BUILDERS[model](replace(SCALES[scale], batch=batch))
    if dtype == "bfloat16":
        made.cast(torch.bfloat16)
    made.to(DEVICE).module.train(mode == "train")
    return made


def outcome(work: Workload, step: Step) -> list[Tensor]:
    """The first result, or the loss, and some gradients, in float64 on the host, as memory of the device is counted."""
    result = step()
    found = [result] if isinstance(result, Tensor) else [t for t in tuple(result.values())[:2] if isinstance(t, Tensor)]
    found += [p.grad for p in list(work.module.parameters())[:8] if p.grad is not None]
    return [t.detach().cpu().double() for t in found]


@contextmanager
def not_recorded(name: str) -> Iterator[list[str]]:
    """Why graphs of a compiler with a mode are not recorded."""
    found: list[str] = []
    if not name.startswith("bolide:"):
        yield found
        return
    from bolide.support import events

    def note(event: object) -> None:
        if isinstance(event, events.NotRecorded):
            found.append(f"{event.kind} is not recorded: {event.reason}")

    with events.subscribed(note):
        yield found


class Measured(NamedTuple):
    """A step of a model, the host's ms of it, the MB of memory that it takes at most, and seconds of the first one."""

    step: Step
    host: float
    peak: float
    first: float
    notes: list[str]


def measured(name: str, model: str, mode: str, dtype: str, args: argparse.Namespace, want: list[Tensor]) -> Measured:
    """One compiler's. `want`: eager's results, which are filled in where there are none."""
    others = in_use()
    work = workload(model, args.scale, args.batch, mode, dtype)
    step = model_stepper(work, compiler(name)(work.module), mode, dtype, DEVICE)
    with not_recorded(name) as reasons:
        begin = time.perf_counter()
        got = outcome(work, step)
        synchronize()
        first = time.perf_counter() - begin
        for _ in range(2):
            step()
    want += [] if want else got
    notes = [*reasons]
    if (error := difference(got, want)) > (6e-2 if dtype != "float32" else 2e-3):
        notes.append(f"differs from eager by {error:.2g}")
    step()
    peak = peak_mb(step, others)
    return Measured(step, host_us(step, 3) / 1e3, peak, first, notes)


def models(args: argparse.Namespace, end: float) -> None:
    names = ["eager", *(name for name in args.compilers if name != "eager")]
    lines, notes, ratios = [], [], dict[str, list[float | None]]()
    for dtype in args.model_dtypes:
        for mode in args.modes:
            for model in args.models:
                if time.perf_counter() > end:
                    notes.append(f"- {model} {mode} {dtype}: no time left")
                    continue
                label, want = f"{model} {mode} {dtype}", list[Tensor]()
                found: dict[str, Measured] = {}
                for name in names:
                    gc.collect()
                    try:
                        found[name] = measured(name, model, mode, dtype, args, want)
                        notes += [f"- {label}: {name}: {why}" for why in found[name].notes]
                    except Exception as error:
                        notes.append(f"- {label}: {name}: {type(error).__name__}: {first_line(error)}")
                        stop_if_lost(error, [*map(" | ".join, lines), *notes])
                ms = in_turn({name: one.step for name, one in found.items()}, args.model_seconds)
                for name in names:
                    over = ms[name] / ms["bolide"] if name in ms and "bolide" in ms else None
                    ratios.setdefault(name, []).append(over)
                more = [
                    [number(getattr(found.get(n), part, None)) for n in names] for part in ("host", "peak", "first")
                ]
                lines.append([label, *(number(ms.get(n)) for n in names), *(cell for some in more for cell in some)])
                print(*lines[-1], file=sys.stderr, flush=True)
    means = ", ".join(f"{number(geometric_mean(ratios.get(n, [])))} × {n}" for n in names if n != "bolide")
    header = [f"{n} {what}" for what in ("ms", "host ms", "peak MB", "first s") for n in names]
    print(f"\n## models at {args.scale}, batch {args.batch}: bolide is {means}\n")
    print("\n".join([*table(["model", *header], lines), *notes]), flush=True)


# ---- what a call costs the host, and the first one -----------------------------------------------------------------


def host(args: argparse.Namespace, _: float) -> None:
    x = torch.randn(64, 64, device=DEVICE)
    w = torch.randn(64, device=DEVICE)
    functions: dict[str, Callable[..., Any]] = {
        "x * 2 + 1": lambda x, w: x * 2 + 1,
        "gelu(x + w)": lambda x, w: torch.nn.functional.gelu(x + w),
        "softmax": lambda x, w: torch.softmax(x, -1),
        "layer_norm": lambda x, w: torch.nn.functional.layer_norm(x, (64,), w),
    }
    names = ["eager", *(name for name in args.compilers if name != "eager")]
    lines = []
    for title, function in functions.items():
        cells = []
        for name in names:
            try:
                call = compiler(name)(function)
                call(x, w)
                with torch.no_grad():
                    cells.append(number(host_us(lambda call=call: call(x, w))))
            except Exception as error:
                cells.append(f"{type(error).__name__}: {first_line(error)[:60]}")
        lines.append([title, *cells])
    print("\n## µs of the host for a call\n")
    print("\n".join(table(["function", *names], lines)), flush=True)


FIRST = """
import json, sys, time
import torch
import benchmarks.gpu as gpu
model, name, scale, gpu.DEVICE = sys.argv[1:]
x = torch.randn(1000, 1000, device=gpu.DEVICE)
if model == "pointwise":
    step = lambda call=gpu.compiler(name)(lambda x: torch.softmax(x * 2 + 1, -1)): call(x)
else:
    work = gpu.workload(model, scale, 8, "inference", "bfloat16")
    step = gpu.model_stepper(work, gpu.compiler(name)(work.module), "inference", "bfloat16", gpu.DEVICE)
gpu.synchronize()
begin = time.perf_counter()
step()
gpu.synchronize()
print(json.dumps(time.perf_counter() - begin))
"""


def first(args: argparse.Namespace, end: float) -> None:
    """Seconds of the first call in a process, the caches on disk empty, and in a second process."""
    lines = []
    for model in ("pointwise", "gpt2", "bert"):
        for name in [n for n in args.compilers if n != "eager"]:
            cells = []
            folder = Path(f"/tmp/bolide_first_{model}_{name}")
            for _ in range(2):
                if time.perf_counter() > end:
                    break
                environment = {
                    "BOLIDE_CACHE_DIR": str(folder),
                    "TORCHINDUCTOR_CACHE_DIR": str(folder),
                    "PYTHONPATH": ".",
                }
                run = subprocess.run(
                    [sys.executable, "-c", FIRST, model, name, args.scale, DEVICE],
                    capture_output=True,
                    text=True,
                    env={**os.environ, **environment},
                    timeout=120,
                )
                done = run.stdout.strip().splitlines()
                cells.append(number(json.loads(done[-1])) if run.returncode == 0 else run.stderr[-100:])
            lines.append([model, name, *cells, *[""] * (2 - len(cells))])
    print("\n## seconds of the first call\n")
    print("\n".join(table(["program", "compiler", "empty caches", "second process"], lines)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--compilers", nargs="+", default=["eager", "bolide"], help="torch: torch.compile; torch:MODE, bolide:MODE"
    )
    parser.add_argument("--only", nargs="+", default=[], help="kernels whose name contains one of these")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[16, 256])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=0.05, help="for each compiler and kernel")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", default=["inference", "train"])
    parser.add_argument("--model-dtypes", nargs="+", default=["bfloat16"], help="float32, bfloat16, autocast")
    parser.add_argument("--model-seconds", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scale", default="base", choices=sorted(SCALES))
    parser.add_argument("--limit", type=float, default=240, help="seconds in all")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try this program out")
    args = parser.parse_args()
    globals()["DEVICE"] = args.device
    args.dtypes = [getattr(torch, name) for name in args.dtypes]
    begin = time.perf_counter()
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE, torch.__version__)
    for i, part in enumerate(args.parts):
        now = time.perf_counter()
        share = PARTS[part] / sum(PARTS[rest] for rest in args.parts[i:])
        end = now + (begin + args.limit - now) * share
        try:
            {"kernels": kernels, "models": models, "host": host, "first": first}[part](args, end)
        except Exception as error:
            print(f"{part}: {type(error).__name__}: {first_line(error)}", flush=True)


if __name__ == "__main__":
    main()
