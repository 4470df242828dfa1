"""`python -m benchmarks`: bolide, torch.compile and eager side by side; writes benchmarks/RESULTS.md and RESULTS.json.

Every measurement runs in a fresh process (see `worker`), so a model that fails costs one row, which says why. Each
model and mode has caches of its own, empty when its first call is measured. Results are written after each measurement.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.models import BUILDERS, ISSUE_MODELS, SCALES, build
from benchmarks.report import render
from benchmarks.worker import COMPILERS

ROOT = Path(__file__).resolve().parent.parent
Result = dict[str, Any]


def environment(measurement: str, cache: str) -> dict[str, str]:
    """The environment of a measuring process: an empty compile cache; for memory, malloc that returns what is freed.

    glibc raises its mmap threshold as large blocks are freed; set by hand it stays, and so every tensor from 64 KiB up
    is mapped and unmapped by itself: the resident set then is what is live.
    """
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "BOLIDE_CACHE_DIR": cache, "HF_HUB_OFFLINE": "1"}
    env |= {"TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    if measurement == "memory":
        env |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return env


def measure(measurement: str, spec: dict[str, Any], limit: float, cache: str) -> Result:
    """Runs one measurement in a fresh process; a failure or a time-out is a result with the key ``error``."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", measurement, json.dumps(spec)]
    env = environment(measurement, cache)
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, cwd=cache)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {limit:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return {"error": (lines[-1] if lines else f"exit status {done.returncode}")[:300]}
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "took": round(time.perf_counter() - begin, 1)}


def plan(
    names: list[str], scale: str, modes: list[str], dtypes: list[str], kinds: list[str], compilers: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The measurements to make: (name, spec). First calls come before what may find their caches."""
    tasks: list[tuple[str, dict[str, Any]]] = []
    base = {"scale": scale, "compilers": compilers}
    bolide = "bolide" in compilers
    if "overhead" in kinds:
        tasks.append(("tiny", dict(base)))
        if bolide:
            tasks += [("imports", {"scale": scale, "repeat": i}) for i in range(5)]
            tasks.append(("fusion", {"scale": scale}))
            tasks.append(("modules", {**base, "model": "mlp", "mode": "train", "dtype": "float32"}))
    for name in names:
        inference = build(name, "tiny").inference
        for mode in modes:
            if mode == "inference" and not inference:
                continue
            for dtype in dtypes:
                spec = {**base, "model": name, "mode": mode, "dtype": dtype}
                if "first" in kinds:
                    tasks += [("first", {**spec, "compiler": c}) for c in compilers if c != "eager"]
                if "capture" in kinds and (mode == "inference" or not inference):
                    tasks.append(("capture", spec))
                if "steady" in kinds:
                    tasks.append(("steady", spec))
                if "kernels" in kinds and bolide:
                    tasks.append(("kernels", spec))
                if "memory" in kinds and mode == "train":
                    tasks += [("memory", {**spec, "compiler": c, "repeat": i}) for i in range(3) for c in compilers]
    return tasks


def host() -> dict[str, Any]:
    """What the figures depend on: processor, cores, versions, commit."""
    import torch

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "cpu": model,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "commit": commit.stdout.strip(),
    }


def key(measurement: str, spec: dict[str, Any]) -> str:
    """The identity of a row: a newer result of the same row replaces the older one."""
    parts = [measurement, *(str(spec.get(k, "")) for k in ("model", "scale", "mode", "dtype", "compiler", "repeat"))]
    return "/".join(parts)


@click.command()
@click.option("--models", default=",".join(ISSUE_MODELS), help="Comma-separated names, or 'all'.", show_default=True)
@click.option("--scale", type=click.Choice(list(SCALES)), default="small", show_default=True)
@click.option("--modes", default="inference,train", show_default=True)
@click.option("--dtypes", default="float32", help="Of float32, bfloat16, autocast.", show_default=True)
@click.option("--measure", "kinds", default="overhead,steady,first,capture,kernels,memory", show_default=True)
@click.option("--compilers", default=",".join(COMPILERS), show_default=True)
@click.option("--rounds", default=15, show_default=True, help="Interleaved rounds; figures are medians over them.")
@click.option("--seconds", default=1.5, show_default=True, help="Time for the steady state of each compiler.")
@click.option("--quick", is_flag=True, help="A look: 5 rounds, 0.4 seconds, no memory of torch.compile.")
@click.option("--limit", default=900.0, show_default=True, help="Seconds after which a measurement is given up.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=ROOT / "benchmarks" / "RESULTS.md",
    show_default="benchmarks/RESULTS.md",
)
@click.option("--keep/--fresh", default=False, help="Keep the rows of an earlier run that this one does not measure.")
def main(
    models: str,
    scale: str,
    modes: str,
    dtypes: str,
    kinds: str,
    compilers: str,
    rounds: int,
    seconds: float,
    quick: bool,
    limit: float,
    output: Path,
    keep: bool,
) -> None:
    """Measure bolide, torch.compile and eager side by side."""
    names = list(BUILDERS) if models == "all" else choose(models, BUILDERS, "model")
    chosen = choose(compilers, COMPILERS, "compiler")
    tasks = plan(
        names,
        scale,
        choose(modes, ("inference", "train"), "mode"),
        choose(dtypes, ("float32", "bfloat16", "autocast"), "dtype"),
        choose(kinds, ("overhead", "steady", "first", "capture", "kernels", "memory"), "measurement"),
        chosen,
    )
    data_path = output.with_suffix(".json")
    data: dict[str, Any] = (
        json.loads(data_path.read_text()) if keep and data_path.exists() else {"rows": {}, "runs": []}
    )
    rows, runs = data["rows"], data["runs"]
    if quick:
        rounds, seconds = 5, 0.4
        tasks = [(m, spec) for m, spec in tasks if (m, spec.get("compiler")) != ("memory", "torch")]
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    runs.append({"command": command, "date": time.strftime("%Y-%m-%d"), **host()})
    with tempfile.TemporaryDirectory(prefix="bolide-benchmark-") as folder:
        caches = Path(folder)
        for i, (measurement, spec) in enumerate(tasks):
            spec = {**spec, "rounds": rounds, "seconds": seconds}
            name = key(measurement, spec)
            click.echo(f"[{i + 1}/{len(tasks)}] {name} ", nl=False)
            cache = caches / f"{spec.get('model')}-{spec.get('mode')}-{spec.get('dtype')}"
            cache.mkdir(exist_ok=True)
            result = measure(measurement, spec, limit, str(cache))
            click.echo(result.get("error") or {k: v for k, v in result.items() if k not in ("rounds_ms", "took")})
            rows[name] = {
                "measurement": measurement,
                "spec": spec,
                "result": result,
                "load": round(os.getloadavg()[0], 1),
                "run": len(runs) - 1,
            }
            data_path.write_text(json.dumps(data, indent=1) + "\n")
            output.write_text(render(data))
    click.echo(f"wrote {output} and {data_path}")


def choose(text: str, known: Any, what: str) -> list[str]:
    """The comma-separated names in `text`, each one of `known`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return names
