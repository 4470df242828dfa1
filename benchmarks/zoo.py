"""The sweep: architectures at tiny scale through `bolide.compile`, captured without a break and correct or not.

    python -m benchmarks.zoo [--models A,B] [--backend inductor|eager] [--only inference|training] [--breaks]
        [--numbers float32|bfloat16|autocast]

Correct means: results and gradients as close to a float64 run as eager's are (times four, plus rounding; with weights
as they are or moved by an ulp: cancellation, and a ReLU near zero, make much of one), for backend ``eager`` equal to
eager's bit for bit, where eager itself is reproducible. With ``--breaks`` graph breaks are allowed, and counted with
their reasons. ``--numbers``: models and inputs in bfloat16, or float32 ones under autocast.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks import models, zoo_build


class TookTooLong(BaseException):
    """A model has used up its time. No `except Exception` on the way (a variant that does not run, a float64 run that
    fails) takes it for a fault of its own and goes on without what it was about to compute."""


def _too_slow(*_: Any) -> None:
    raise TookTooLong("wants more than its time")


@dataclass(frozen=True)
class Verdict:
    """What came of one model: `status` is ok, break, wrong, error or unbuilt (it, or eager, does not run, or not
    in its time); `seconds` is the first call's."""

    name: str
    training: bool
    status: str
    detail: str = ""
    seconds: float = 0.0


def tensors(result: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor in a result, in a fixed order, also those inside caches."""
    seen = set() if seen is None else seen
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from tensors(value, seen)
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from tensors(value, seen)
    elif hasattr(result, "__dict__") and not isinstance(result, (type, nn.Module)) and id(result) not in seen:
        seen.add(id(result))
        for value in vars(result).values():
            yield from tensors(value, seen)


def loss_of(result: Any) -> Tensor | None:
    """The result's own loss, or a number made of all of its floating-point tensors that have a gradient."""
    loss = result.get("loss") if isinstance(result, dict) else None
    if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
        return loss
    parts = [t.double().square().mean() for t in tensors(result) if t.requires_grad]
    return torch.stack(parts).sum() if parts else None


@dataclass
class Outcome:
    """What one call computed: `values` are results, then gradients and buffers."""

    kind: type
    values: list[Tensor | None]


def run(module: Any, inputs: dict[str, Any], training: bool, seed: int = 7, autocast: bool = False) -> Outcome:
    torch.manual_seed(seed)
    module.train(training)
    module.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = module(**inputs)
    values: list[Tensor | None] = [t.detach().clone() for t in tensors(result)]
    if training:
        loss = loss_of(result)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        values += [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        values += [b.clone() for b in module.buffers()]
    return Outcome(type(result), values)


@contextlib.contextmanager
def pretending_to_compile() -> Iterator[None]:
    """Makes `torch.compiler.is_compiling()` true, so that eager runs the code that a compiler is given."""
    with mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        yield


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def difference(
    found: Outcome, eager: Outcome, exact: Outcome | None, bitwise: bool, others: Sequence[Outcome] = ()
) -> str:
    """What is wrong with an outcome, or an empty text. `others`: what eager computes with other roundings."""
    if found.kind is not eager.kind or len(found.values) != len(eager.values):
        return f"{found.kind.__name__} of {len(found.values)} tensors, not {eager.kind.__name__} of {len(eager.values)}"
    for i, (ours, theirs) in enumerate(zip(found.values, eager.values)):
        if same_bits(ours, theirs):
            continue
        if ours is None or theirs is None or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"value {i} is {_shown(ours)}, not {_shown(theirs)}"
        error = float((ours.double() - theirs.double()).norm())
        true = exact.values[i] if exact is not None else None
        true = theirs if true is None or not true.isfinite().all() else true
        rounding = max(float((o.values[i].double() - true.double()).norm()) for o in (eager, *others))
        allowed = 0.0 if bitwise else 4 * rounding + 2e-5 * (float(true.double().norm()) + 1e-2 * true.numel() ** 0.5)
        if not error <= allowed:
            return (
                f"value {i} of {len(found.values)} {_shown(theirs)} is {error:.1e} off (norm {float(true.norm()):.1e})"
            )
    return ""


def _shown(value: Tensor | None) -> str:
    return "None" if value is None else f"{str(value.dtype)[6:]}{list(value.shape)}"


Builder = Callable[[], "tuple[Any, dict[str, Any]]"]


def converted(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Inputs with floats of `dtype`."""
    return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def check(
    name: str,
    build: Builder,
    training: bool,
    backend: str,
    breaks: bool = False,
    show: bool = False,
    numbers: str = "float32",
) -> Verdict:
    """Build a model, run it in eager, in float64 and compiled (in one graph unless `breaks`), and compare."""
    import bolide
    from bolide.support import events

    call = partial(run, training=training, autocast=numbers == "autocast")
    try:
        module, inputs = build()
        if numbers == "bfloat16":
            module, inputs = module.bfloat16(), converted(inputs, torch.bfloat16)
        other, third, fourth, pristine = (copy.deepcopy(module) for _ in range(4))
        eager = call(module, copy.deepcopy(inputs))
        repeatable = not difference(call(third, copy.deepcopy(inputs), seed=8), eager, None, True)
        with pretending_to_compile():
            eager = call(fourth, copy.deepcopy(inputs))
    except (Exception, TookTooLong) as error:
        if show:
            traceback.print_exc()
        return Verdict(name, training, "unbuilt", f"{type(error).__name__}: {error}")
    exact = None
    exacter = [torch.float64] if numbers == "float32" else [torch.float64, torch.float32]
    while exacter and exact is None and backend != "eager":
        dtype = exacter.pop(0)
        with contextlib.suppress(Exception):  # a model that insists on a smaller type somewhere
            exact = run(copy.deepcopy(pristine).to(dtype), converted(copy.deepcopy(inputs), dtype), training)
    if exact is not None and len(exact.values) != len(eager.values):
        exact = None
    bolide.reset()
    compiled = bolide.compile(other, backend=backend, fullgraph=not breaks)
    met: list[events.Break] = []
    start = time.perf_counter()
    try:
        with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
            found = call(compiled, copy.deepcopy(inputs))
    except bolide.Unsupported as error:
        if show:
            traceback.print_exc()
        return Verdict(name, training, "break", f"{error.reason} | {error.operation} | {error.where}", _since(start))
    except Exception as error:
        if show:
            traceback.print_exc()
        cause = error.__cause__ or error
        at = traceback.extract_tb(cause.__traceback__)[-1]
        detail = f"{type(cause).__name__}: {cause} ({at.filename.rpartition('/')[2]}:{at.lineno})"
        return Verdict(name, training, "error", detail, _since(start))
    seconds = _since(start)
    if not compiled._bolide_call._bolide.entries:
        return Verdict(name, training, "error", "runs in eager", seconds)
    wrong = difference(found, eager, exact, backend == "eager") if repeatable else ""
    if wrong and exact is not None:
        with pretending_to_compile():
            others = [call(moved(pristine, seed), copy.deepcopy(inputs)) for seed in range(3)]
        wrong = difference(found, eager, exact, False, others)
    notes = [wrong or ("" if repeatable else "random: not compared")]
    notes += [f"broken: {event.reason} ({event.where})" for event in met]
    detail = "; ".join(filter(None, notes))
    return Verdict(name, training, "wrong" if wrong else "ok", detail, seconds)


def moved(module: Any, seed: int) -> Any:
    """A copy with each parameter's numbers moved by an ulp or not at all."""
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        steps = torch.randint(-1, 2, parameter.shape, generator=generator)
        towards = torch.where(steps == 0, parameter.data, (steps * float("inf")).to(parameter.dtype))
        parameter.data = torch.nextafter(parameter.data, towards)
    return module


def _since(start: float) -> float:
    return time.perf_counter() - start


def build(name: str, training: bool) -> tuple[Any, dict[str, Any]]:
    """A model of the public zoo (`models.BUILDERS`), or a class of transformers, at tiny scale without dropout."""
    if name not in models.BUILDERS:
        return zoo_build.build(name)
    work = models.build(name, "tiny")
    return zoo_build.without_dropout(work.module), {**work.inputs, **(work.targets if training else {})}


def sweep(
    names: list[str],
    backend: str,
    modes: list[bool],
    limit: int,
    breaks: bool = False,
    show: bool = False,
    numbers: str = "float32",
) -> Iterator[Verdict]:
    """Check each model; one that takes more than `limit` seconds is an error."""
    signal.signal(signal.SIGALRM, _too_slow)
    for name in names:
        for training in modes:
            signal.alarm(limit)
            try:
                verdict = check(name, partial(build, name, training), training, backend, breaks, show, numbers)
            except (Exception, TookTooLong) as error:
                verdict = Verdict(name, training, "error", f"{type(error).__name__}: {error}")
            finally:
                signal.alarm(0)
            yield verdict
            if verdict.status == "unbuilt" and name not in models.BUILDERS:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", help="class names of transformers or names of benchmarks.models, joined by commas (default: all)"
    )
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", choices=["inference", "training"])
    parser.add_argument("--limit", type=int, default=60, help="seconds for one model")
    parser.add_argument("--breaks", action="store_true", help="allow graph breaks")
    parser.add_argument("--numbers", choices=["float32", "bfloat16", "autocast"], default="float32")
    parser.add_argument("--show", action="store_true", help="print tracebacks")
    arguments = parser.parse_args()
    import transformers

    import bolide

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.simplefilter("ignore")
    bolide.dynamo.config.suppress_errors = False
    names = arguments.models.split(",") if arguments.models else [*models.BUILDERS, *zoo_build.class_names()]
    modes = {None: [False, True], "inference": [False], "training": [True]}[arguments.only]
    counts: dict[tuple[bool, str], int] = {}
    options = arguments.breaks, arguments.show, arguments.numbers
    for verdict in sweep(names, arguments.backend, modes, arguments.limit, *options):
        counts[verdict.training, verdict.status] = counts.get((verdict.training, verdict.status), 0) + 1
        mode = "train" if verdict.training else "infer"
        detail = " ".join(verdict.detail.split())[:400]
        print(f"{verdict.status:8s} {mode} {verdict.name:45s} {verdict.seconds:6.2f}s {detail}", flush=True)
    for training in (False, True):
        tried = sum(n for (mode, status), n in counts.items() if mode is training and status != "unbuilt")
        if tried:
            good = counts.get((training, "ok"), 0)
            word = "training" if training else "inference"
            print(f"{word}: {good} of {tried} ({good / tried:.1%}) captured whole and correct; {counts}")


if __name__ == "__main__":
    main()
