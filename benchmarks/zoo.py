"""The sweep: architectures at tiny scale through `bolide.compile`, captured without a break and correct or not.

    python -m benchmarks.zoo [--models A,B] [--library transformers|timm|torchvision] [--backend inductor|eager]
        [--only inference|training] [--dynamic] [--batches 3] [--jobs 2] [--shard 1/3]
        [--numbers float32|bfloat16|autocast] [--out FILE]

Each model is called with several batch sizes in a row (``--batches``), with default options or ``dynamic=True``.
Correct means: results, gradients and buffers as close to a float64 run as eager's are (times four, plus rounding; with
weights as they are or moved by an ulp: cancellation, and a ReLU near zero, make much of one), for backend ``eager``
equal to eager's bit for bit, where eager itself is reproducible. If the model compiled in float64 agrees with eager in
float64, times forty will do where eager in float32 hardly gets two digits right, and one of forty runs of eager with
weights moved by an ulp that is as far off (a ReLU that goes the other way once in ten such runs).
Models that break are compared as well; breaks are counted with their reasons. ``--numbers``: models and inputs in
bfloat16, or float32 ones under autocast.
Every model runs in a process of its own, so that one that ends its process is a finding and not the end.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import multiprocessing
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks import models, zoo_build, zoo_vision


class TookTooLong(BaseException):
    """A model has used up its time. No `except Exception` on the way (a variant that does not run, a float64 run that
    fails) takes it for a fault of its own and goes on without what it was about to compute."""


def _too_slow(*_: Any) -> None:
    raise TookTooLong("wants more than its time")


@dataclass(frozen=True)
class Verdict:
    """What came of one model: `status` is ok, break (right, but broken), wrong, error, crash or unbuilt (it, or eager,
    does not run, or not in its time); `seconds` is the first call's."""

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
    found: Outcome,
    eager: Outcome,
    exact: Outcome | None,
    bitwise: bool,
    others: Sequence[Outcome] = (),
    lenient: bool = False,
) -> str:
    """What is wrong with an outcome, or an empty text. `others`: what eager computes with other roundings. With
    `lenient` ten times more is allowed of tensors of which eager itself, rounded otherwise, hardly gets two digits."""
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
        norm = float(true.double().norm())
        factor = 40 if lenient and rounding > 0.01 * norm else 4
        allowed = 0.0 if bitwise else factor * rounding + 2e-5 * (norm + 1e-2 * true.numel() ** 0.5)
        if not error <= allowed:
            return f"value {i} of {len(found.values)} {_shown(theirs)} is {error:.1e} off (norm {norm:.1e})"
    return ""


def _shown(value: Tensor | None) -> str:
    return "None" if value is None else f"{str(value.dtype)[6:]}{list(value.shape)}"


Inputs = dict[str, Any]
Builder = Callable[[], "tuple[Any, list[Inputs]]"]


@dataclass(frozen=True)
class Options:
    """How models are compiled and compared; `limit`: seconds for one model in one mode."""

    backend: str = "inductor"
    dynamic: bool | None = None
    numbers: str = "float32"
    limit: int = 60
    show: bool = False


def converted(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Inputs with floats of `dtype`."""
    return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


@dataclass
class Expected:
    """What eager computes, call by call; `repeatable`: it does not depend on the seed."""

    pristine: Any
    inputs: list[Inputs]
    eager: list[Outcome]
    repeatable: bool


def calls(module: Any, inputs: Sequence[Inputs], training: bool, numbers: str, seed: int = 7) -> list[Outcome]:
    """What a module computes for several inputs in a row."""
    return [run(module, copy.deepcopy(given), training, seed, numbers == "autocast") for given in inputs]


def expectation(build: Builder, training: bool, options: Options) -> Expected:
    """Builds a model and runs it in eager. Batches on which eager fails are left out."""
    module, batches = build()
    if options.numbers == "bfloat16":
        module, batches = module.bfloat16(), [converted(inputs, torch.bfloat16) for inputs in batches]
    pristine = copy.deepcopy(module)
    inputs = batches[:1]
    first = calls(module, inputs, training, options.numbers)
    again = calls(copy.deepcopy(pristine), inputs, training, options.numbers, seed=8)
    with pretending_to_compile():
        for batch in batches[1:]:
            with contextlib.suppress(Exception):
                calls(copy.deepcopy(pristine), [batch], training, options.numbers)
                inputs = [*inputs, batch]
        eager = calls(copy.deepcopy(pristine), inputs, training, options.numbers)
    return Expected(pristine, inputs, eager, not difference(again[0], first[0], None, True))


def exactly(expected: Expected, training: bool, options: Options) -> list[Outcome] | None:
    """What the model computes in float64 (one in bfloat16 in float32, if need be), where it runs in it."""
    if options.backend == "eager":
        return None
    for dtype in (torch.float64,) if options.numbers == "float32" else (torch.float64, torch.float32):
        with contextlib.suppress(Exception):  # a model that insists on a smaller type somewhere
            module = copy.deepcopy(expected.pristine).to(dtype)
            exact = calls(module, [converted(inputs, dtype) for inputs in expected.inputs], training, "")
            if all(len(a.values) == len(b.values) for a, b in zip(exact, expected.eager)):
                return exact
    return None


def check(name: str, build: Builder, training: bool, options: Options) -> Verdict:
    """Build a model, run it in eager, in float64 and compiled, and compare."""
    import bolide
    from bolide.support import events

    verdict = partial(Verdict, name, training)
    try:
        expected = expectation(build, training, options)
    except (Exception, TookTooLong) as error:
        if options.show:
            traceback.print_exc()
        return verdict("unbuilt", f"{type(error).__name__}: {error}")
    exact = exactly(expected, training, options)
    bolide.reset()
    compiled = bolide.compile(copy.deepcopy(expected.pristine), backend=options.backend, dynamic=options.dynamic)
    met: list[events.Break] = []
    fallbacks: list[events.Fallback] = []
    kept = {events.Break: met.append, events.Fallback: fallbacks.append}
    start, seconds, found = time.perf_counter(), 0.0, []
    try:
        with events.subscribed(lambda event: kept.get(type(event), lambda _: None)(event)):  # type: ignore[arg-type]
            for given in expected.inputs:
                found += calls(compiled, [given], training, options.numbers)
                seconds = seconds or time.perf_counter() - start
    except Exception as error:
        if options.show:
            traceback.print_exc()
        cause = error.__cause__ or error
        at = traceback.extract_tb(cause.__traceback__)[-1]
        detail = f"call {len(found)}: {type(cause).__name__}: {cause} ({at.filename.rpartition('/')[2]}:{at.lineno})"
        return verdict("error", detail, seconds)
    entries = len(compiled._bolide_call._bolide.entries)
    wrong = _wrong(expected, exact, found, training, options) if expected.repeatable else ""
    notes = [wrong or ("" if expected.repeatable else "random: not compared")]
    notes += [f"{entries} versions for {len(found)} calls"] if entries > 1 + (options.dynamic is None) else []
    notes += list(dict.fromkeys(f"broken: {event.reason} ({event.where})" for event in met))
    notes += list(dict.fromkeys(f"in eager: {event.reason} ({event.where})" for event in fallbacks))
    status = "wrong" if wrong else "break" if met else "ok" if entries else "error"
    return verdict(status, "; ".join(filter(None, notes)) or ("" if entries else "runs in eager"), seconds)


def _wrong(
    expected: Expected, exact: list[Outcome] | None, found: list[Outcome], training: bool, options: Options
) -> str:
    """The first call whose outcome is wrong, or an empty text."""
    rounded: list[list[Outcome]] = []  # what eager computes with other roundings, made when first needed
    for i, ours in enumerate(found):
        true = None if exact is None else exact[i]
        wrong = difference(ours, expected.eager[i], true, options.backend == "eager")
        if wrong and true is not None:
            rounded = rounded or list(roundings(expected, training, options, range(3)))
            others = [other[i] for other in rounded]
            wrong = difference(ours, expected.eager[i], true, False, others)
            if wrong and not _wrong_in_float64(expected, exact or [], training, options):
                wrong = difference(ours, expected.eager[i], true, False, others, lenient=True)
                more = roundings(expected, training, options, range(3, 40))
                while wrong and (other := next(more, None)):
                    others.append(other[i])
                    wrong = difference(ours, expected.eager[i], true, False, others)
        if wrong:
            return f"call {i}: {wrong}"
    return ""


def roundings(expected: Expected, training: bool, options: Options, seeds: Iterable[int]) -> Iterator[list[Outcome]]:
    """What eager computes for all calls with weights moved by an ulp, for each seed."""
    for seed in seeds:
        with pretending_to_compile():
            outcomes = calls(moved(expected.pristine, seed), expected.inputs, training, options.numbers)
        yield outcomes


def _wrong_in_float64(expected: Expected, exact: Sequence[Outcome], training: bool, options: Options) -> str:
    """What is wrong with the compiled model where everything is float64: the judge where float32 has lost all digits (a
    BatchNorm over two places: what it divides by cancels)."""
    import bolide

    module = copy.deepcopy(expected.pristine).to(torch.float64)
    compiled = bolide.compile(module, backend=options.backend, dynamic=options.dynamic)
    found = calls(compiled, [converted(inputs, torch.float64) for inputs in expected.inputs], training, "")
    return next(filter(None, (difference(a, b, None, False) for a, b in zip(found, exact))), "")


def moved(module: Any, seed: int) -> Any:
    """A copy with each parameter's numbers moved by an ulp or not at all."""
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        steps = torch.randint(-1, 2, parameter.shape, generator=generator)
        towards = torch.where(steps == 0, parameter.data, (steps * float("inf")).to(parameter.dtype))
        parameter.data = torch.nextafter(parameter.data, towards)
    return module


def batched(name: str, build: Callable[[int], tuple[Any, Inputs]], batches: int) -> tuple[Any, list[Inputs]]:
    """A model and inputs for it in batches of 2, 3 and 5: rows of inputs that were made with other seeds.
    `build` is given a seed for the inputs. Images that are given as patches of a grid come in batches of 2, 4 and 6."""
    module, first = build(0)
    made = [first, *(build(seed)[1] for seed in range(1, batches))]
    whole = any("grid" in key for key in first)
    found = []
    for count in range(1, batches + 1):
        rows = None if whole else (2, 3, 5)[count - 1]
        found.append({key: _rows([inputs[key] for inputs in made[:count]], rows) for key in first})
    return module, found


def _rows(values: list[Any], rows: int | None) -> Any:
    """Values of several batches of 2 as one; `rows`: how many are kept of it. What has no batch stays as it is."""
    first = values[0]
    if not isinstance(first, Tensor) or not first.dim() or (rows is not None and len(first) != zoo_build.BATCH):
        return first
    return torch.cat(values)[:rows]


def build(name: str, training: bool, batches: int = 1) -> tuple[Any, list[Inputs]]:
    """A model of the public zoo (`models.BUILDERS`), of timm or torchvision (`zoo_vision`), or a class of transformers,
    at tiny scale without dropout, and inputs for it."""
    if name.startswith(zoo_vision.LIBRARIES):
        return batched(name, partial(zoo_vision.build, name), batches)
    if name not in models.BUILDERS:
        return batched(name, partial(zoo_build.build, name), batches)
    work = models.build(name, "tiny")
    return zoo_build.without_dropout(work.module), [{**work.inputs, **(work.targets if training else {})}]


def every_name(library: str) -> list[str]:
    """What a library's sweep tries; the public zoo is tried with transformers."""
    if library != "transformers":
        return zoo_vision.names(library)
    return [*models.BUILDERS, *zoo_build.class_names()]


def checked(name: str, modes: Sequence[bool], batches: int, options: Options) -> Iterator[Verdict]:
    """Check a model in each mode; one that takes more than its limit is an error."""
    signal.signal(signal.SIGALRM, _too_slow)
    for training in modes:
        signal.alarm(options.limit)
        try:
            verdict = check(name, partial(build, name, training, batches), training, options)
        except (Exception, TookTooLong) as error:
            verdict = Verdict(name, training, "error", f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        yield verdict
        if verdict.status == "unbuilt" and name not in models.BUILDERS:
            break


def _child(connection: Connection, name: str, modes: Sequence[bool], batches: int, options: Options) -> None:
    for verdict in checked(name, modes, batches, options):
        connection.send(verdict)
    connection.close()


def sweep(names: Sequence[str], modes: Sequence[bool], batches: int, options: Options, jobs: int) -> Iterator[Verdict]:
    """Check each model in a forked process, `jobs` at a time."""
    context, waiting = multiprocessing.get_context("fork"), list(reversed(names))
    running: dict[Connection, tuple[Any, str, int]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(theirs, name, modes, batches, options))
            process.start()
            theirs.close()
            running[ours] = process, name, 0
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            process, name, done = running[connection]
            try:
                yield connection.recv()
                running[connection] = process, name, done + 1
            except EOFError:
                process.join()
                if process.exitcode:
                    yield Verdict(name, modes[min(done, len(modes) - 1)], "crash", f"exit status {process.exitcode}")
                del running[connection]


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", help="class names of transformers or names of benchmarks.models, joined by commas (default: all)"
    )
    parser.add_argument("--library", choices=["transformers", *zoo_vision.LIBRARIES], default="transformers")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", choices=["inference", "training"])
    parser.add_argument("--dynamic", action="store_true", help="compile with dynamic=True")
    parser.add_argument("--batches", type=int, choices=[1, 2, 3], default=3, help="how many batch sizes (3)")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (1)")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth model, from the Ith on")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one model")
    parser.add_argument("--numbers", choices=["float32", "bfloat16", "autocast"], default="float32")
    parser.add_argument("--out", help="a file for the verdicts, a JSON object a line")
    parser.add_argument("--show", action="store_true", help="print tracebacks")
    return parser.parse_args()


def main() -> None:
    arguments = _parsed()
    import transformers

    import bolide

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bolide.dynamo.config.suppress_errors = False
    names = arguments.models.split(",") if arguments.models else every_name(arguments.library)
    first, step = map(int, arguments.shard.split("/"))
    modes = {None: [False, True], "inference": [False], "training": [True]}[arguments.only]
    options = Options(arguments.backend, arguments.dynamic or None, arguments.numbers, arguments.limit, arguments.show)
    counts: Counter[tuple[bool, str]] = Counter()
    with open(arguments.out, "w") if arguments.out else contextlib.nullcontext() as out:
        for verdict in sweep(names[first::step], modes, arguments.batches, options, arguments.jobs):
            counts[verdict.training, verdict.status] += 1
            if out:
                print(json.dumps(asdict(verdict)), file=out, flush=True)
            if verdict.status != "unbuilt":
                mode = "train" if verdict.training else "infer"
                detail = " ".join(verdict.detail.split())[:400]
                print(f"{verdict.status:8s} {mode} {verdict.name:45s} {verdict.seconds:6.2f}s {detail}", flush=True)
    for training in modes:
        mine = {status: count for (mode, status), count in counts.items() if mode is training}
        tried = sum(mine.values()) - mine.get("unbuilt", 0)
        if tried:
            share = f"{mine.get('ok', 0)} of {tried} ({mine.get('ok', 0) / tried:.1%})"
            print(f"{'training' if training else 'inference'}: {share} captured whole and right; {mine}")


if __name__ == "__main__":
    main()
