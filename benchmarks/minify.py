"""How small planted faults become in a GPT-2 of 12 layers, and how long that takes: `python -m benchmarks.minify
[FAULT ...]`; prints a table.

A training step of a GPT-2 of transformers, with random weights, is compiled with a fault planted in bolide. The script
that `repro_after` writes is minified in a process of its own, and the small script is run, with the fault and without.
"""

from __future__ import annotations

import contextlib
import io
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bolide
from benchmarks import models
from bolide.debug import repro
from bolide.functorch import aot
from bolide.functorch.partitioners import Joint, Partition
from bolide.inductor import compiled_graph
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.lowering.registry import LOWERINGS
from bolide.tracing import TensorMeta

aten = torch.ops.aten
CHILDREN = resource.RUSAGE_CHILDREN
SCALE = "tiny12"
models.SCALES[SCALE] = replace(models.SCALES["tiny"], layers=12)


@contextlib.contextmanager
def wrong_lowering() -> Iterator[None]:
    """The hyperbolic tangent is computed a little too large."""
    target = aten.tanh.default
    true = LOWERINGS[target]
    LOWERINGS[target] = lambda ctx, x: LOWERINGS[aten.mul.Scalar](ctx, true(ctx, x), 1.05)
    try:
        yield
    finally:
        LOWERINGS[target] = true


@contextlib.contextmanager
def crash_in_code_generation() -> Iterator[None]:
    """Kernels with a hyperbolic tangent are not compiled."""
    plain = compiled_graph.compile_kernels

    def crashing(kernels: Any, *args: Any, **kwargs: Any) -> Any:
        if any("tanh(" in kernel_text(kernel) for kernel in kernels):
            raise KeyError("no such instruction")
        return plain(kernels, *args, **kwargs)

    compiled_graph.compile_kernels = crashing
    try:
        yield
    finally:
        compiled_graph.compile_kernels = plain


@contextlib.contextmanager
def wrong_partition() -> Iterator[None]:
    """Two saved values of one shape are mixed up."""
    plain = aot.partitioned

    def mixed_up(joint: Joint, *more: Any) -> Partition:
        parts = plain(joint, *more)
        places: dict[object, int] = {}
        for place, node in enumerate(parts.saved):
            meta = node.meta["val"]
            if node.op != "placeholder" and isinstance(meta, TensorMeta):
                other = places.setdefault((meta.shape, meta.dtype), place)
                if other != place:
                    at = list(parts.saved_at)
                    at[place], at[other] = at[other], at[place]
                    return replace(parts, saved_at=tuple(at))
        return parts

    aot.partitioned = mixed_up
    try:
        yield
    finally:
        aot.partitioned = plain


FAULTS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[None]], dict[str, object]]] = {
    "wrong lowering": (wrong_lowering, {"repro_after": "aot", "repro_level": 4}),
    "crash in code generation": (crash_in_code_generation, {"repro_after": "aot", "repro_level": 2}),
    "wrong partition": (wrong_partition, {"repro_after": "dynamo", "repro_level": 4}),
}
"""The faults, and the options by which they are found."""


def operations(script: Path) -> list[str]:
    """What the graph of a script calls."""
    graph = repro.traced(runpy.run_path(str(script))["Repro"]()).graph
    targets = [node.target for node in graph.nodes if node.op not in ("placeholder", "output")]
    return [getattr(target, "__name__", str(target)) for target in targets]


def found(name: str, folder: Path) -> Path:
    """The script that is written of a training step with a fault."""
    fault, options = FAULTS[name]
    work = models.build("gpt2", SCALE)
    reporting = bolide.dynamo.config.patch({**options, "debug_dir_root": str(folder), "suppress_errors": False})
    with fault(), reporting, contextlib.suppress(bolide.CompileError):
        work.loss(bolide.compile(work.module)(**work.inputs, **work.targets)).backward()
    (script,) = folder.glob("*/minifier_launcher.py")
    return script


def minified(name: str, script: Path) -> None:
    """Runs a script in this process, with a fault."""
    sys.argv = [str(script)]
    with FAULTS[name][0]():
        runpy.run_path(str(script), run_name="__main__")


def fails(script: Path) -> bool:
    sys.argv = [str(script)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    except Exception:
        return True
    return False


def main(*names: str) -> None:
    torch.set_num_threads(1)
    print("| fault | operations | of which are left | with the fault | without | seconds | processor time |")
    print("| --- | ---: | --- | --- | --- | ---: | ---: |")
    for name in names or FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            script = found(name, Path(folder))
            before, start, used = len(operations(script)), time.perf_counter(), resource.getrusage(CHILDREN).ru_utime
            call = f"from benchmarks.minify import Path, minified; minified({name!r}, Path({str(script)!r}))"
            subprocess.run([sys.executable, "-c", call], check=True, stdout=subprocess.DEVNULL)
            seconds, used = time.perf_counter() - start, resource.getrusage(CHILDREN).ru_utime - used
            small = script.with_name("repro.py")
            left = ", ".join(operations(small))
            with FAULTS[name][0]():
                shown = ["no failure", "fails"][fails(small)]
            right = ["no failure", "fails"][fails(small)]
            print(f"| {name} | {before} | {left} | {shown} | {right} | {seconds:.0f} | {used:.0f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
