"""One measurement in a process of its own: `python -m benchmarks.worker NAME JSON`; prints its result as JSON.

Measurements never share a process, so that none sees another's caches, imports or memory.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import Workload, build
from benchmarks.patterns import patterns

Step = Callable[[], Any]
COMPILERS = ("eager", "bolide", "torch")

WARM_UP = 50
"""Most steps before timing begins; compilers and libraries still choose among implementations in the first ones."""
SEEDS = (0, 1, 2)
TOLERANCE = {"float32": 2e-3, "bfloat16": 6e-2, "autocast": 6e-2}
"""Largest accepted difference from eager, relative to the magnitude of the compared tensor (see `difference`).

Where eager's own rounding error is large (deep networks with BatchNorm over few values are chaotic) four times that
error is accepted instead. Now and then rounding moves an activation across the bend of a ReLU, in eager as well, and a
gradient changes by percents: so a result counts as wrong when it differs for every one of SEEDS.
"""


@contextlib.contextmanager
def noting(module: object, name: str, seconds: list[float]) -> Iterator[None]:
    """Notes the processor time of each call of a function of a module."""
    plain: Callable[..., Any] = getattr(module, name)

    def timed(*args: Any) -> Any:
        start = time.process_time()
        result = plain(*args)
        seconds.append(time.process_time() - start)
        return result

    setattr(module, name, timed)
    try:
        yield
    finally:
        setattr(module, name, plain)


def compiler(name: str, freezing: bool = False) -> Callable[[Any], Any]:
    """What turns a module or function into the thing that is measured: eager, torch or bolide, the last two also with a
    mode (``bolide:reduce-overhead``). `freezing`: parameters become constants."""
    name, _, mode = name.partition(":")
    if name == "eager":
        return lambda target: target
    options: dict[str, Any] = {"options": {"freezing": True}} if freezing else {"mode": mode} if mode else {}
    if name == "torch":
        return functools.partial(torch.compile, **options)
    import bolide

    return functools.partial(bolide.compile, **options)


@contextlib.contextmanager
def notes(into: list[str]) -> Iterator[None]:
    """Collects what bolide warned of (what it could not compile), first lines only."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = str(warning.message).strip().splitlines()
        if warning.category.__name__ == "BolideWarning" and text and text[0] not in into:
            into.append(text[0])


def stepper(workload: Workload, call: Callable[..., Any], mode: str, dtype: str, device: str = "cpu") -> Step:
    """One inference call, or one forward and backward that leaves gradients in the parameters. `device`: autocast's."""
    module, inputs, both = workload.module, workload.inputs, {**workload.inputs, **workload.targets}
    autocast = dtype == "autocast"

    def inference() -> Any:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            return call(**inputs)

    def train() -> Any:
        module.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = workload.loss(call(**both))
        loss.backward()
        return loss

    return inference if mode == "inference" else train


def prepared(spec: dict[str, Any], dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """The workload of a spec (model, scale, mode, dtype), cast and in the right mode; `dtype` replaces the spec's."""
    workload = build(spec["model"], spec["scale"], seed)
    if dtype is not None or spec["dtype"] == "bfloat16":
        workload.cast(dtype or torch.bfloat16)
    workload.module.train(spec["mode"] == "train")
    return workload


def tensors(value: Any) -> list[Tensor]:
    """The floating-point tensors in a nested result, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def observed(workload: Workload, step: Step) -> list[Tensor]:
    """What a step computes: results, gradients, buffers; detached copies in float64."""
    torch.manual_seed(1)
    result = tensors(step())
    gradients = [p.grad for p in workload.module.parameters() if p.grad is not None]
    buffers = [b for b in workload.module.buffers() if b.is_floating_point()]
    return [t.detach().double().clone() for t in [*result, *gradients, *buffers]]


def difference(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest relative difference: per tensor, max |got - want| / max |want|.

    Tensors that are zero up to rounding (a key bias's gradient, say) have no scale of their own: they are measured
    against a thousandth of the largest magnitude of all.
    """
    if len(got) != len(want):
        raise RuntimeError(f"{len(got)} tensors, eager gives {len(want)}")
    floor = 1e-3 * max((float(w.abs().max()) for w in want if w.numel()), default=0.0)
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if g.shape != w.shape:
            raise RuntimeError(f"a tensor of shape {tuple(g.shape)}, eager's is {tuple(w.shape)}")
        if not g.numel():
            continue
        if not torch.equal(g.isfinite(), w.isfinite()):
            return math.inf
        g, w = g.nan_to_num(), w.nan_to_num()
        worst = max(worst, float((g - w).abs().max()) / max(float(w.abs().max()), floor, 1e-30))
    return worst


def rounding_error(spec: dict[str, Any], eager: list[Tensor], seed: int) -> float:
    """How far eager is from the same in float64 (for bfloat16: in float32); 0 where that cannot be computed."""
    workload = prepared(spec, torch.float64 if spec["dtype"] == "float32" else torch.float32, seed)
    try:
        return difference(eager, observed(workload, stepper(workload, workload.module, spec["mode"], "float32")))
    except (RuntimeError, TypeError):  # some operations have no kernel for float64
        return 0.0


def checked(spec: dict[str, Any], name: str) -> tuple[Step, float, float]:
    """A compiler's step, its difference from eager, and eager's rounding error; RuntimeError if it differs too much."""
    worst = 0.0
    for seed in SEEDS:
        workload, same = prepared(spec, seed=seed), prepared(spec, seed=seed)
        eager = observed(same, stepper(same, same.module, spec["mode"], spec["dtype"]))
        rounding = rounding_error(spec, eager, seed)
        make = compiler(name, spec.get("freezing", False))
        step = stepper(workload, make(workload.module), spec["mode"], spec["dtype"])
        worst = difference(observed(workload, step), eager)
        if worst <= max(TOLERANCE[spec["dtype"]], 4.0 * rounding):
            return step, worst, rounding
    raise RuntimeError(f"wrong: differs from eager by {worst:.2g} of the magnitude")


def steady(spec: dict[str, Any]) -> dict[str, Any]:
    """Medians of the time of one step of each compiler, interleaved in one process, after a check of correctness."""
    warned: list[str] = []
    steps: dict[str, Step] = {}
    out: dict[str, Any] = {"difference": {}, "rounding": {}, "failed": {}, "notes": warned}
    for name in spec["compilers"]:
        try:
            with notes(warned):
                step, out["difference"][name], out["rounding"][name] = checked(spec, name)
                for _ in range(2):
                    step()
        except Exception as error:
            out["failed"][name] = f"{type(error).__name__}: {first_line(error)}"
            continue
        steps[name] = step
    out["ms"], out["rounds_ms"] = interleaved(steps, spec["rounds"], spec["seconds"])
    return out


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0][:300]


def interleaved(
    steps: dict[str, Step], rounds: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Times the steps in turn, each round in another order; gives the median per step in ms, and every round's mean."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    repeats = {}
    for name in names:
        begin = clock()
        steps[name]()
        repeats[name] = max(1, math.ceil(seconds / rounds / max(clock() - begin, 1e-9)))
        for _ in range(min(repeats[name] * 2, WARM_UP)):
            steps[name]()
    gc.collect()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            step, n = steps[name], repeats[name]
            begin = clock()
            for _ in range(n):
                step()
            times[name].append((clock() - begin) / n * 1e3)
    return {name: statistics.median(ts) for name, ts in times.items()}, times


def first(spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the first call in a fresh process.

    ``compile``: the first compiled step of the model less a warm one, after a trivial function was compiled, so without
    what a process pays once; ``once``: compiling that trivial function, with imports; ``total``: both.
    """
    workload = prepared(spec)
    eager = stepper(workload, workload.module, spec["mode"], spec["dtype"])
    for _ in range(2):
        eager()
    warned: list[str] = []
    with notes(warned):
        begin = time.perf_counter()
        make = compiler(spec["compiler"])
        x = torch.ones(8, requires_grad=spec["mode"] == "train")
        y = make(lambda t: (t * 2.0 + 1.0).sum())(x)
        if y.requires_grad:
            y.backward()
        once = time.perf_counter() - begin
        step = stepper(workload, make(workload.module), spec["mode"], spec["dtype"])
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
    compile_seconds = times[0] - min(times[1:])
    return {"compile": compile_seconds, "once": once, "total": compile_seconds + once, "calls": times, "notes": warned}


def capture(spec: dict[str, Any]) -> dict[str, Any]:
    """Processor seconds that capture adds to a first call: backend ``eager``, so no code is generated; without
    gradients unless the model needs them. The compilers take turns in one process, after a trivial function was
    compiled: ``first`` is what the process's first capture of the model took, ``again`` the median of later ones, each
    after a reset; ``breaks`` is how often one capture broke.
    """
    import torch._dynamo as dynamo

    import bolide
    from bolide.support import events

    torch.set_num_threads(1)  # threads that wait for each other take processor time
    dynamo.config.allow_rnn = True  # as here
    workload = prepared(spec)
    compilers = {"torch": torch.compile, "bolide": bolide.compile}
    resets = {"torch": torch.compiler.reset, "bolide": bolide.reset}
    chosen = [name for name in ("bolide", "torch") if name in spec["compilers"]]
    eager = stepper(workload, workload.module, spec["mode"], spec["dtype"])
    for _ in range(2):
        eager()
    for name in chosen:
        compilers[name](lambda t: t + 1, backend="eager")(torch.ones(8))
    times: dict[str, list[float]] = {name: [] for name in chosen}
    met: list[events.Break] = []
    dynamo.utils.counters.clear()
    for turn in range(spec["rounds"]):
        for name in chosen[:: 1 if turn % 2 == 0 else -1]:
            resets[name]()
            compiled = compilers[name](workload.module, backend="eager")
            step = stepper(workload, compiled, spec["mode"], spec["dtype"])
            with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
                times[name].append(added(step))
    breaks = {"torch": sum(dynamo.utils.counters["graph_break"].values()), "bolide": len(met)}
    return {
        "first": {name: found[0] for name, found in times.items()},
        "again": {name: statistics.median(found[1:] or found) for name, found in times.items()},
        "breaks": {name: breaks[name] // spec["rounds"] for name in chosen},
    }


def added(step: Step) -> float:
    """Processor seconds by which the first call is longer than the shortest of three later ones."""
    gc.collect()
    spent = []
    for _ in range(4):
        begin = time.thread_time()
        step()
        spent.append(time.thread_time() - begin)
    return spent[0] - min(spent[1:])


def resident(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def memory(spec: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of a warm training step, in bytes above what was resident before it, and what compiling left.

    The kernel's own high-water mark (VmHWM, reset through /proc/self/clear_refs) sees every allocation: torch's,
    oneDNN's and ours. `run` starts this process with fixed malloc thresholds, so that a freed tensor leaves the
    resident set at once.
    """
    workload = prepared(spec)
    eager = stepper(workload, workload.module, spec["mode"], spec["dtype"])
    for _ in range(2):
        eager()
    workload.module.zero_grad(set_to_none=True)
    gc.collect()
    before = resident("VmRSS")
    step = stepper(workload, compiler(spec["compiler"])(workload.module), spec["mode"], spec["dtype"])
    for _ in range(3):
        step()
    peaks = []
    rest = 0
    for _ in range(5):
        workload.module.zero_grad(set_to_none=True)
        gc.collect()
        rest = resident("VmRSS")
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
        step()
        peaks.append(resident("VmHWM") - rest)
    return {"step": statistics.median(peaks), "left": rest - before}


def tiny(spec: dict[str, Any]) -> dict[str, Any]:
    """Microseconds of a call of `lambda x: x + 1` on 16 elements, interleaved."""
    x = torch.ones(16)

    def step(function: Callable[[Tensor], Tensor]) -> Step:
        def run() -> None:
            for _ in range(1000):
                function(x)

        return run

    steps = {}
    for name in spec["compilers"]:
        function = compiler(name)(lambda t: t + 1)
        for _ in range(3):
            function(x)
        steps[name] = step(function)
    medians, _ = interleaved(steps, spec["rounds"], spec["seconds"])
    return {"us": medians}


def imports(spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds to import bolide once torch is imported."""
    begin = time.perf_counter()
    import bolide  # noqa: F401

    return {"seconds": time.perf_counter() - begin}


def modules(spec: dict[str, Any]) -> dict[str, Any]:
    """What of torch's own compile stack is loaded after bolide trained a model with no C compiler on PATH."""
    os.environ["PATH"] = ""
    workload = prepared(spec)
    step = stepper(workload, compiler("bolide")(workload.module), spec["mode"], spec["dtype"])
    optimizer = torch.optim.AdamW(workload.module.parameters())
    warned: list[str] = []
    with notes(warned):
        for _ in range(2):
            step()
            optimizer.step()
    return {"loaded": [m for m in ("torch._dynamo", "torch._inductor") if m in sys.modules], "notes": warned}


def fusion(spec: dict[str, Any]) -> dict[str, Any]:
    """How many kernels the patterns become: {pattern: [kernels, fewest possible]}."""
    import bolide

    return {
        "kernels": {
            name: [bolide.explain(program)(*inputs).kernel_launches, fewest]
            for name, (program, inputs, fewest) in patterns().items()
        }
    }


def kernels(spec: dict[str, Any]) -> dict[str, Any]:
    """What one step of a model runs: operations captured, kernels launched (and different ones), library calls."""
    import bolide

    workload = prepared(spec)
    inputs = {**workload.inputs, **(workload.targets if spec["mode"] == "train" else {})}
    with torch.set_grad_enabled(spec["mode"] == "train"):
        found = bolide.explain(workload.module)(**inputs)
    different = {k.llvm_ir for g in found.graphs for k in g.kernels}
    return {
        "operations": sum(g.nodes for g in found.graphs),
        "launches": found.kernel_launches,
        "kernels": len(different),
        "calls": sum(e.calls for g in found.graphs for e in g.externs),
        "breaks": len(found.breaks),
    }


MEASUREMENTS = {f.__name__: f for f in (steady, first, capture, memory, kernels, tiny, imports, modules, fusion)}


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    result = MEASUREMENTS[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
