"""How models run on 1, 2, 4 … threads: `python -m benchmarks.threads [options]`; prints a table for RESULTS.md.

Every model and mode is measured in a process of its own, the compilers in turn (see `worker.interleaved`), after a
check of correctness. The number of threads changes at run time, as a server's may: nothing is compiled for one number.
(torch.compile writes the number at compile time into its kernels; to be fair to it, ask for one number at a time.)
With `--jobs N` so many processes first fill caches on disk at once, as torch.compile needs minutes for a model.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import torch

from benchmarks.models import BUILDERS, ISSUE_MODELS
from benchmarks.run import environment
from benchmarks.worker import checked, first_line, interleaved

COUNTS = (1, 2, 4, 8, 16)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """The times of one step by number of threads and compiler, in ms; why a compiler failed."""
    steps, failed = {}, {}
    for name in spec["compilers"]:
        try:
            steps[name] = checked(spec, name)[0]
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {first_line(error)}"
    times = {}
    for count in spec["threads"]:
        torch.set_num_threads(count)
        for step in steps.values():
            step()
        clock = time.process_time if spec["processor"] else time.perf_counter
        times[count] = interleaved(steps, spec["rounds"], spec["seconds"], clock)[0]
    return {"ms": times, "failed": failed}


def measured(spec: dict[str, Any], limit: float, cache: str) -> dict[str, Any]:
    """`measure` in a fresh process with a folder for caches; a failure is a result with the key ``error``."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.threads", "--one", json.dumps(spec)]
    env = {**environment("threads", cache), "OMP_NUM_THREADS": str(spec["compiled_with"])}
    if not spec["threads"]:
        env |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # one of many processes
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def fill_caches(specs: dict[str, dict[str, Any]], jobs: int, limit: float, caches: str) -> None:
    """Lets every specification's compilers compile once, so many at a time; what fails fails again when measured."""
    with ThreadPoolExecutor(jobs) as pool:
        filled = {
            label: pool.submit(measured, {**spec, "threads": []}, limit, f"{caches}/{label}")
            for label, spec in specs.items()
        }
        for label, result in filled.items():
            if "error" in result.result():
                print(f"{label} is not compiled: {result.result()['error']}", file=sys.stderr, flush=True)


def row(label: str, result: dict[str, Any]) -> tuple[str, dict[str, dict[str, float]]]:
    """A line of the table, and the ratios by number of threads and compiler."""
    if "error" in result:
        return f"| {label} | {result['error']} |", {}
    cells, ratios = [], {}
    for count, times in result["ms"].items():
        if "bolide" not in times:
            continue
        ratios[count] = {name: taken / times["bolide"] for name, taken in times.items() if name != "bolide"}
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios[count].values())
        cells.append(f"{times['bolide']:.3g} ms: {shown}")
    notes = "".join(f" {name}: {why}" for name, why in result["failed"].items())
    return f"| {label} | {' | '.join(cells)} |{notes}", ratios


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


@click.command()
@click.option("--models", default=",".join(ISSUE_MODELS), help="Names of benchmarks.models, with commas, or all.")
@click.option("--modes", default="inference,train")
@click.option("--threads", default=",".join(str(n) for n in COUNTS if n <= (os.cpu_count() or 1)))
@click.option("--compilers", default="eager,bolide", help="eager, bolide, torch.")
@click.option("--scale", default="small")
@click.option("--dtype", default="float32")
@click.option("--freezing", is_flag=True, help="Parameters are constants, for both compilers; inference only.")
@click.option("--processor", is_flag=True, help="Processor time instead: for one thread beside other work.")
@click.option("--rounds", default=7)
@click.option("--seconds", default=0.7, help="For each compiler and number of threads.")
@click.option("--limit", default=300.0, help="Seconds for one model and mode.")
@click.option("--jobs", default=0, help="So many processes compile everything first.")
@click.option("--one", default="", hidden=True)
def main(one: str, models: str, modes: str, threads: str, limit: float, jobs: int, **options: Any) -> None:
    if one:
        print(json.dumps(measure(json.loads(one))))
        return
    counts = [int(n) for n in threads.split(",")]
    compilers = options.pop("compilers").split(",")
    others = ", ".join(name for name in compilers if name != "bolide")
    print(f"| model | {' | '.join(f'{n} threads: × {others}' for n in counts)} |", flush=True)
    print("| --- |" + " --- |" * len(counts))
    names = BUILDERS if models == "all" else models.split(",")
    given = {**options, "threads": counts, "compilers": compilers, "compiled_with": max(counts)}
    specs = {
        f"{model}-{mode}": {**given, "model": model, "mode": mode}
        for mode in (["inference"] if options["freezing"] else modes.split(","))
        for model in names
    }
    every: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as caches:
        fill_caches(specs if jobs else {}, max(jobs, 1), limit, caches)
        for label, spec in specs.items():
            line, ratios = row(label.replace("-", " "), measured(spec, limit, f"{caches}/{label}"))
            print(line, flush=True)
            for count, by_name in ratios.items():
                for ratio in [min(by_name.values())] if by_name else []:
                    every.setdefault(spec["mode"], {}).setdefault(count, []).append(ratio)
    for mode, by_count in every.items():
        cells = " | ".join(f"{mean(r):.2f} (least {min(r):.2f})" for r in by_count.values())
        print(f"| **the better, geometric mean, {mode}** | {cells} |")


if __name__ == "__main__":
    main()
