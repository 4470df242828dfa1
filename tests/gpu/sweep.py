"""All checks of a device in a few processes, with a time limit for each: `python tests/gpu/sweep.py --help`.

A check that ends its process, hangs, or leaves the device in error costs itself only: the next one gets a new process.
Failures are printed by message, the most frequent last; then a table of counts.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
STICKY = ("CUDA error", "illegal", "misaligned", "launch failure", "CUDA_ERROR", "cuda error")
"""What a message has in it that says that the process can use the device no more."""


@dataclass
class Outcome:
    name: str
    ok: bool
    text: str
    seconds: float
    where: str = ""


def serve(device: str, seed: int, native: bool) -> None:
    """A worker: reads names of checks, writes what came of each as a line of JSON."""
    sys.path.insert(0, str(ROOT))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print is no answer
    import warnings

    import gpu_checks
    import torch

    from bolide.inductor.config import config as inductor
    from bolide.support.errors import BolideWarning

    torch.set_num_threads(1)
    if native:
        inductor.native_after = 1
    if device in ("emulated", "native"):
        import gpu_emulated

        gpu_emulated.emulate() if device == "emulated" else gpu_emulated.emulate_native()
        device, gpu_checks.SIZES = "cpu", (5, 9, 33)
    warnings.simplefilter("error", BolideWarning)
    checks = gpu_checks.all_checks()
    print(json.dumps(list(checks)), file=out, flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        where = ""
        try:
            ok, text = True, checks[line.strip()](device, seed)
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            ok, text = False, f"{type(error).__name__}: {shown(error)}"
            where = place(error)
        answer = {"name": line.strip(), "ok": ok, "text": text, "seconds": time.perf_counter() - begin, "where": where}
        print(json.dumps(answer), file=out, flush=True)
        if not ok and any(word in text for word in STICKY):
            os._exit(3)


def shown(error: BaseException) -> str:
    """The first lines of a message, in one."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or ["(no message)"]
    return " / ".join(lines[:4])[:400]


def place(error: BaseException) -> str:
    """The innermost calls within bolide that an exception, or its first cause, passed."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/bolide/" in f.filename]
    return " < ".join(f"{f.filename.split('/bolide/')[-1]}:{f.lineno} {f.name}" for f in reversed(frames[-4:]))


class Worker:
    """A process that serves, and what it writes as errors."""

    def __init__(self, device: str, seed: int, native: bool = False) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, __file__, "--serve", "--device", device, "--seed", str(seed)]
        command += ["--native"] if native else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, cwd=ROOT
        )
        self.names: list[str] = []

    def answer(self, seconds: float) -> Any:
        """The next line's JSON; None if the process ended, or was ended after so many seconds."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.process.kill()
            self.process.wait()
            return None
        return json.loads(line)

    def ask(self, name: str, limit: float) -> Outcome:
        assert self.process.stdin is not None
        begin = time.perf_counter()
        try:
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()
            found = self.answer(limit)
        except BrokenPipeError:
            found = None
        if found is not None:
            return Outcome(**found)
        taken = time.perf_counter() - begin
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(self.errors.tell() - 400, 0))
        last = self.errors.read().decode(errors="replace").strip().replace("\n", " / ")
        return Outcome(name, False, "took too long" if taken >= limit else f"the process ended: {last[-300:]}", taken)


def work(tasks: queue.Queue[str], args: argparse.Namespace, end: float, outcomes: list[Outcome]) -> None:
    """Ask one worker after the other for the tasks that are left."""
    worker: Worker | None = None
    while time.perf_counter() < end:
        try:
            name = tasks.get_nowait()
        except queue.Empty:
            break
        if worker is None or worker.process.poll() is not None:
            worker = Worker(args.device, args.seed, args.native)
            if worker.answer(120) is None:
                outcomes.append(worker.ask(name, 1))
                return
        outcomes.append(worker.ask(name, min(args.each, max(end - time.perf_counter(), 1))))
    if worker is not None and worker.process.poll() is None:
        worker.process.kill()


def report(outcomes: list[Outcome], left: int) -> None:
    failed: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.ok:
            failed.setdefault(outcome.where or outcome.text, []).append(outcome)
    for group in sorted(failed.values(), key=len):
        print(f"--- {len(group)} × {group[0].text}")
        if group[0].where:
            print(f"    at {group[0].where}")
        print(f"    {', '.join(o.name for o in group[:12])}{' …' if len(group) > 12 else ''}")
    slow = sorted(outcomes, key=lambda o: -o.seconds)[:6]
    print("slowest: " + ", ".join(f"{o.name} {o.seconds:.1f} s" for o in slow))
    print("no kernel: " + ", ".join(o.name for o in outcomes if o.ok and o.text == "0 kernels")[:600])
    counts = Counter((o.name.startswith("model"), o.ok) for o in outcomes)
    for models in (True, False):
        kind = "models" if models else "programs"
        print(f"{kind}: {counts[models, True]} right, {counts[models, False]} failed")
    print(f"not run: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cpu, or emulated or native: played here")
    parser.add_argument("--native", action="store_true", help="graphs have native drivers from the first call on")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10000)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--each", type=float, default=60, help="seconds for a check")
    parser.add_argument("--limit", type=float, default=240, help="seconds in all")
    parser.add_argument("--only", nargs="+", default=[], help="checks whose name contains one of these")
    parser.add_argument("--without", nargs="+", default=[], help="checks whose name contains none of these")
    parser.add_argument("--count", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--report", type=Path, help="a file for all outcomes, as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.device, args.seed, args.native)
        return
    end = time.perf_counter() + args.limit
    print(f"seed {args.seed}, device {args.device}")
    first = Worker("cpu", args.seed)
    names = first.answer(120)
    first.process.kill()
    if names is None:
        sys.exit(first.ask("", 1).text)
    tasks: queue.Queue[str] = queue.Queue()
    wanted = [
        name
        for name in names
        if any(word in name for word in args.only or [""]) and not any(word in name for word in args.without)
    ]
    for name in random.Random(args.seed).sample(wanted, args.count) if args.count else wanted:
        tasks.put(name)
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=work, args=(tasks, args, end, outcomes)) for _ in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if args.report:
        args.report.write_text(json.dumps([vars(o) for o in outcomes], indent=1))
    report(outcomes, tasks.qsize())
    sys.exit(any(not outcome.ok for outcome in outcomes))


if __name__ == "__main__":
    main()
