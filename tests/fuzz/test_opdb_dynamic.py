"""torch's own samples of operations and modules, compiled with symbolic sizes and integers: eager's results, gradients,
dtypes and strides; and other sizes are no reason to compile again, unless bolide names one.

By hand, each operation in a process of its own (a crash or a timeout is a finding as well):
`python tests/fuzz/test_opdb_dynamic.py --backend inductor --jobs 8 [--ops NAME,NAME] [--shard 0/4] [--static]
[--layouts] [--twice] [--dtypes all|NAME,NAME] [--seed N] [--most N] [--report FILE]`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a forked process cannot use what its parent has begun to
sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from opdb_calls import DTYPES, REFUSALS, UNCHECKED, Arguments, Subject, by_name, cloned, own, series, subjects
from opdb_tools import rearranged
from told import Told, strides
from torch.utils import _pytree as pytree

import bolide
from bolide.dynamo.config import config
from bolide.functorch.aot_autograd import aot_function, aot_module
from bolide.functorch.partitioners import default_partition, min_cut_rematerialization_partition
from bolide.inductor.lowering import registry
from bolide.support import events
from bolide.support.errors import Unsupported

COUNT = 25  # operations and modules of a run in CI
AHEAD = {"aot_default": default_partition, "aot_min_cut": min_cut_rematerialization_partition}
BACKENDS = ("eager", "aot_eager", "inductor", *AHEAD)
LIMIT = 60.0  # for a sample
OTHERS = ("int64", "int32,uint8", "bool,int8", "complex64", "bfloat16", "float16", "float64")  # in turn
UNDEFINED = ("empty", "resize_")  # what these give has no values to compare
ROWS_ONLY = ("native_group_norm",)  # eager reads a weight with gaps as if it were dense: its values are wrong there
ONCE = (  # drawn of tensors; or what has a history is written, without grad mode, with numbers that are symbols
    "nn.functional.gaussian_nll_loss.",
    "nn.functional.rrelu.",
    "normal.",
    "_batch_norm_with_update.",
)
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
#: kinds of calls that run in eager for a fault of ours
OURS = ("bug", "user_exception")
#: what is a fault; the rest ("ok", "recompiled", "broken", "eager", "refused", "undefined") is told
FAULTS = ("wrong", "raises", "crash", "timeout", "unexplained", "fallback")


@dataclass
class Finding:
    """What came of one sample on one backend. `changed`: of the call that it was found in, what differed."""

    subject: str
    backend: str
    dtype: str
    sample: int
    kind: str
    detail: str = ""
    changed: str = ""


# ---- one series of calls ---------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a call gives: its result, gradients by leaf, its tensors afterwards, and a module's.
    `random`: whether it drew random numbers."""

    random: bool
    result: Any
    grads: list[Any]
    inputs: list[torch.Tensor]
    state: list[torch.Tensor]


def outcome(function: Any, holder: Any, arguments: Arguments, seed: int, twice: bool = False) -> Outcome:
    """Call a function with copies of arguments, and derive what can be, with `twice` also the gradients. `holder`: the
    module with the state."""
    if isinstance(holder, torch.nn.Module):
        holder.zero_grad()
    args, kwargs = cloned(arguments)
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    result = function(*args, **kwargs)
    drew = not torch.equal(before, torch.get_rng_state())
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    state = [*holder.parameters(), *holder.buffers()] if isinstance(holder, torch.nn.Module) else []
    leaves = [leaf for leaf in (*inputs, *state) if leaf.requires_grad]
    roots = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    roots = [root for root in roots if root.layout is torch.strided]
    grads: list[Any] = []
    if roots and leaves:
        generator = torch.Generator().manual_seed(seed)
        given = [_random_like(root, generator) for root in roots]
        try:
            if twice:
                grads = _derived_twice(roots, leaves, given, generator)
            else:
                torch.autograd.backward(roots, given)
                grads = [leaf.grad for leaf in leaves]
        except REFUSALS as error:
            grads = [error]
    return Outcome(drew, result, grads, inputs, state)


def _derived_twice(
    roots: list[torch.Tensor], leaves: list[torch.Tensor], given: list[torch.Tensor], generator: torch.Generator
) -> list[torch.Tensor]:
    """Gradients, and those of their sum with random weights. One that is zero, eager may leave out."""
    first = torch.autograd.grad(roots, leaves, given, create_graph=True, allow_unused=True)
    weights = [_random_like(leaf, generator) for leaf in leaves]
    pairs = [(each, weight) for each, weight in zip(first, weights) if each is not None and each.requires_grad]
    if pairs:
        torch.autograd.backward(*zip(*pairs))
    found = zip((*leaves, *leaves), (*first, *[leaf.grad for leaf in leaves]), strict=True)
    return [
        torch.zeros(leaf.shape, dtype=leaf.dtype) if grad is None else grad.detach().contiguous()
        for leaf, grad in found
    ]


def _random_like(root: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    widest = torch.complex128 if root.is_complex() else torch.float64  # the same numbers for each dtype
    return torch.randn(root.shape, dtype=widest, generator=generator).to(root.dtype)


def difference(mine: Any, theirs: Any, values: bool) -> str | None:
    """How a result differs from eager's; None if it does not. `values`: whether it has values that can be compared."""
    if isinstance(theirs, BaseException) or isinstance(mine, BaseException):
        return None if type(mine) is type(theirs) else f"backward gave {mine!r}, eager {theirs!r}"[:300]
    if isinstance(theirs, torch.Tensor):
        return _of_tensors(mine, theirs, values)
    if isinstance(theirs, (list, tuple)):
        if type(mine) is not type(theirs) or len(mine) != len(theirs):
            return f"{mine!r} instead of {theirs!r}"[:300]
        pairs = enumerate(zip(mine, theirs))
        return next((f"[{n}]: {d}" for n, (a, b) in pairs if (d := difference(a, b, values)) is not None), None)
    if isinstance(theirs, float) and isinstance(mine, float):
        near = mine == theirs or mine != mine != theirs != theirs or abs(mine - theirs) < 1e-5 * (1 + abs(theirs))
        return None if near or not values else f"{mine} instead of {theirs}"
    if isinstance(theirs, (int, str, bool, torch.Size, torch.dtype)):
        same = type(mine) is type(theirs) and (mine == theirs or not values)
        return None if same else f"{mine!r} instead of {theirs!r}"
    return None if type(mine) is type(theirs) else f"{type(mine).__name__} instead of {type(theirs).__name__}"


def _of_tensors(mine: Any, theirs: torch.Tensor, values: bool) -> str | None:
    if not isinstance(mine, torch.Tensor):
        return f"{type(mine).__name__} instead of a tensor"
    for what in ("dtype", "layout", "shape", "requires_grad"):
        if getattr(mine, what) != getattr(theirs, what):
            return f"{what} {getattr(mine, what)} instead of {getattr(theirs, what)}"
    if theirs.layout is not torch.strided or theirs.is_quantized:
        return None
    if strides(mine) != strides(theirs):
        return f"strides {mine.stride()} instead of {theirs.stride()} of {tuple(theirs.shape)}"
    if not values or not theirs.numel():
        return None
    allowed = TOLERANCE.get(theirs.dtype, 1e-3)
    a, b = mine.detach().resolve_conj(), theirs.detach().resolve_conj()
    finite = b.abs().nan_to_num(0, 0, 0) if b.is_floating_point() or b.is_complex() else b.bool()
    scale = 1 + float(finite.max())
    try:
        torch.testing.assert_close(a, b, rtol=allowed, atol=allowed / 10 * scale, equal_nan=True)
    except AssertionError as error:
        return "values: " + " ".join(str(error).split())[:160]
    return None


def differing(mine: Outcome, theirs: Outcome, values: bool) -> str | None:
    """The first difference of two outcomes."""
    for part in ("result", "grads", "inputs", "state"):
        found = difference(getattr(mine, part), getattr(theirs, part), values)
        if found is not None:
            return f"{part}{found if found.startswith('[') else ': ' + found}"
    return None


def is_excused(function: Any, call: Arguments, seed: int, mine: Outcome, theirs: Outcome, twice: bool) -> bool:
    """Whether a difference tells nothing: eager reads memory that it has not written, or is as far from float64."""
    if differing(mine, theirs, False) is not None:
        return False
    for junk in (float("nan"), 1e30):
        del [torch.full((2**power,), junk) for power in range(4, 14) for _ in range(8)][:]
        if differing(outcome(own(function), None, call, seed, twice), theirs, True) is not None:
            return True
    try:
        wide = own(function).double() if isinstance(function, torch.nn.Module) else function
        exact = outcome(wide, None, *_widened(call), seed, twice)
    except Exception:
        return False  # that has no float64
    return all(
        _error(mine, exact) <= 4 * _error(theirs, exact)
        for mine, theirs, exact in zip(*map(_numbers, (mine, theirs, exact)), strict=True)
    )


def _widened(call: Arguments) -> tuple[Arguments]:
    """The same arguments in float64."""

    def widened(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        wide = leaf.detach().to(torch.complex128 if leaf.is_complex() else torch.float64)
        return wide.requires_grad_(leaf.requires_grad)

    return (pytree.tree_map(widened, call),)


def _numbers(given: Outcome) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((given.result, given.grads, given.inputs, given.state))
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.numel()]


def _error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, of numbers that the value's dtype can hold."""
    if not (value.is_floating_point() or value.is_complex()):
        return 0.0
    same = (value == exact.to(value.dtype)) | (value.isnan() & exact.isnan())
    error = (value.to(exact.dtype) - exact).abs().nan_to_num(nan=float("inf"))
    return float(torch.where(same, 0.0, error).max())


def compile_by(backend: str, function: Any, dynamic: bool) -> Any:
    """`bolide.compile`, or `aot_function` with one of the partition functions."""
    if backend not in AHEAD:
        return bolide.compile(function, backend=backend, dynamic=dynamic or None)
    compile_ahead = aot_module if isinstance(function, torch.nn.Module) else aot_function
    return compile_ahead(function, lambda graph, examples: graph, partition_fn=AHEAD[backend], dynamic=dynamic)


def check(
    subject: Subject, function: Any, first: Arguments, backend: str, dynamic: bool, seed: int, twice: bool = False
) -> Iterator[Any]:
    """(kind, detail, what changed) of each thing that is found in one series."""
    calls = series(function, first, random.Random(seed), subject.name not in UNCHECKED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome(own(function), None, calls.calls[0], seed)
    except REFUSALS:
        return  # a sample that eager refuses
    mine, theirs = own(function), own(function)
    compiled = compile_by(backend, mine, dynamic)
    told, changed = Told(), ""
    fixed: list[Any] = []
    for number, (call, what) in enumerate(zip(calls.calls, ["", *calls.changed])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = outcome(theirs, theirs, call, seed, twice)
        values = not expected.random and not any(name in subject.name for name in UNDEFINED)
        told, changed = Told(), what
        underived = twice and any(isinstance(grad, Exception) for grad in expected.grads)
        try:
            with events.subscribed(told.hear), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = outcome(compiled, mine, call, seed, twice)
        except Exception as error:
            refused = backend in AHEAD and isinstance(error, Unsupported)
            yield "refused" if refused else "raises", _described(error), changed
            return
        finally:
            fixed += told.fixed
        if underived:  # the gradient of eager's kernel has no derivative, that of a formula may have one
            found.grads = expected.grads
        wrong = differing(found, expected, values)
        if wrong is not None and is_excused(function, call, seed, found, expected, twice):
            yield "undefined", wrong, changed
        elif wrong is not None:
            yield "wrong", wrong + named(function, calls.calls[: number + 1], backend, dynamic, seed, twice), changed
            return
        for event in told.fallbacks:
            yield "fallback" if event.kind in OURS else "eager", f"{event.kind}: {event.reason}", changed
        if number == 0:
            yield from (("broken", f"{event.kind}: {event.reason}", changed) for event in told.breaks)
        elif dynamic and told.installed:
            yield from _recompiled(told, fixed, changed, subject.kind == "module")
    yield "ok", f"{len(calls.calls)} calls", ""


def named(function: Any, calls: list[Arguments], backend: str, dynamic: bool, seed: int, twice: bool) -> str:
    """What `bolide.shadow` says of calls whose last one is wrong: the first operation that differs, and its kernel."""
    if backend != "inductor":
        return ""
    again = own(function)
    with warnings.catch_warnings(), bolide.shadow() as reports:
        warnings.simplefilter("ignore")
        compiled, known = bolide.compile(again, dynamic=dynamic or None), len(reports)
        with contextlib.suppress(Exception):
            for call in calls:
                outcome(compiled, again, call, seed, twice)
        found = reports[known:]
    return f"; shadow: {found[0]}" if found else "; shadow: all graphs agree with ATen"


def _recompiled(told: Told, fixed: list[Any], changed: str, of_module: bool) -> Iterator[tuple[str, str, str]]:
    """Why other sizes led to another version: a line that needs a value, or compares sizes; or no such reason. A
    module of torch's has no line of the user's but the first."""
    newest = {event.name: event for event in told.failed}
    for made in told.installed:
        event = newest.get(made.name)
        if event is None:
            if made.index:
                yield "unexplained", f"no guard failed: {made.name}", changed
            continue  # a segment that is new, behind a break
        places = _failing(event)
        why = [f"{known.source} is {known.value}: {known.reason}" for known in fixed if known.source in places]
        if why:
            yield "recompiled", "; ".join(dict.fromkeys(why)), changed
        elif event.guard.startswith("numbers("):
            yield "recompiled", f"data that was read: {event.guard}", changed
        elif event.expected == event.guard and (of_module or _has_line(event.where)):
            yield "recompiled", f"relation {event.guard} at {event.where}", changed
        else:
            yield "unexplained", f"{event.guard}, found {event.actual}, at {event.where}", changed


def _has_line(where: Any) -> bool:
    return where is not None and not where.text.startswith("def ")


def _failing(event: Any) -> list[str]:
    """The places whose numbers a failed guard compares with others: of a tensor (`x: Tensor float32[5, 3], …`) the
    sizes that differ."""
    place, _, expected = event.guard.partition(": Tensor ")
    if not expected:
        return [event.guard.partition(" == ")[0]]
    texts = (expected, event.actual.partition(": Tensor ")[2])
    old, new = (re.findall(r"\w+\[(.*?)\](?:, stride|$)", text)[:1] or [""] for text in texts)
    pairs = enumerate(zip(old[0].split(", "), new[0].split(", ")))
    return [f"{place}.shape[{dim}]" for dim, (a, b) in pairs if a.isdigit() and a != b]


def _described(error: BaseException) -> str:
    """A fault's text and the last lines of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    last: BaseException = error
    while last.__cause__ is not None:
        last = last.__cause__
        frames += traceback.extract_tb(last.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "/bolide/" in f.filename]
    text = " ".join(str(error).split())
    inner = f" <- {type(last).__name__}: {' '.join(str(last).split())[:200]}" if last is not error else ""
    return f"{type(error).__name__}: {text[:200]}{inner} [{', '.join(ours[-3:])}]"


# ---- all samples of a subject ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What one process does. `start`: the samples before that one have been done."""

    subject: Subject
    backend: str
    start: int = 0


@dataclass(frozen=True)
class Options:
    """How a sweep is run."""

    dynamic: bool
    dtypes: tuple[torch.dtype, ...]  # () for one of each operation
    most: int
    seed: int
    layouts: bool = False
    named: bool = False
    twice: bool = False


def work(task: Task, options: Options, write: Any) -> None:
    """Check the samples of a subject; `write` takes what is found, and each sample's number before it is begun."""
    torch.set_num_threads(1)
    number = -1
    for dtype in task.subject.dtypes(options.dtypes):
        torch.manual_seed(zlib.crc32(f"{options.seed} {task.subject.name} {dtype}".encode()))
        samples = task.subject.samples(dtype)
        if options.layouts and task.subject.name not in ROWS_ONLY:
            rng = random.Random(f"{options.seed} {task.subject.name} {dtype}")
            samples = (
                (function, rearranged(arguments, rng)) for function, arguments in samples if _has_order(arguments)
            )
        if options.named and task.subject.kind == "op":
            info = task.subject.info
            calls = (
                (function, by_name(function, info.op, info.aten_name, arguments)) for function, arguments in samples
            )
            samples = ((function, arguments) for function, arguments in calls if arguments is not None)
        for function, arguments in itertools.islice(samples, options.most):
            number += 1
            if number < task.start:
                continue
            write({"begun": number, "dtype": str(dtype)})
            bolide.reset()
            with config.patch(suppress_errors=False, cache_size_limit=64):
                for kind, detail, changed in check(
                    task.subject, function, arguments, task.backend, options.dynamic, options.seed, options.twice
                ):
                    name = str(dtype).removeprefix("torch.")
                    write(asdict(Finding(task.subject.name, task.backend, name, number, kind, detail, changed)))
    write({"done": True})


def _has_order(arguments: Arguments) -> bool:
    """Whether there is a tensor with two dimensions, which may be in another order in memory."""
    leaves = pytree.tree_leaves(arguments)
    return any(isinstance(leaf, torch.Tensor) and sum(size > 1 for size in leaf.shape) > 1 for leaf in leaves)


def sweep(tasks: list[Task], options: Options, jobs: int) -> Iterator[Finding]:
    """Do tasks, each in a process of its own."""
    _warm({task.backend for task in tasks})
    waiting = list(reversed(tasks))
    running: dict[int, tuple[Task, Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while True:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                path = Path(folder) / f"{task.subject.name}-{task.backend}-{task.start}"
                running[_forked(task, options, path)] = (task, path)
            if not running:
                return
            time.sleep(0.01)
            for pid, (task, path) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                slow = not ended and path.exists() and time.time() - path.stat().st_mtime > LIMIT
                if slow:
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)
                elif not ended:
                    continue
                del running[pid]
                lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
                yield from (Finding(**line) for line in lines if "kind" in line)
                begun = [line for line in lines if "begun" in line]
                if (not lines or "done" not in lines[-1]) and (slow or ended):
                    last = begun[-1] if begun else {"begun": task.start, "dtype": ""}
                    kind, detail = ("timeout", "") if slow else ("crash", f"status {status}")
                    place = task.subject.name, task.backend, last["dtype"].removeprefix("torch."), last["begun"]
                    yield Finding(*place, kind, detail)
                    if begun:
                        waiting.append(Task(task.subject, task.backend, last["begun"] + 1))


def _warm(backends: set[str]) -> None:
    """Load what compiling loads and makes once, so that processes begin with it."""
    torch.set_num_threads(1)
    for backend in backends:
        x = torch.randn(4, 3, requires_grad=True)
        compile_by(backend, lambda x: (x @ x.mT).sin().sum(), True)(x).backward()
    bolide.reset()
    gc.collect()
    gc.freeze()  # or each process would copy the pages of all objects


def _forked(task: Task, options: Options, path: Path) -> int:
    """The process that does a task and writes what it finds to a file."""
    path.touch()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with path.open("w") as file, contextlib.redirect_stdout(sys.stderr):

            def write(line: Any) -> None:
                file.write(json.dumps(line) + "\n")
                file.flush()

            work(task, options, write)
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


# ---- by hand, and in CI ----------------------------------------------------------------------------------------------


def chosen(names: str, shard: str) -> list[Subject]:
    """The subjects that the command line asks for."""
    known = subjects()
    if names == "ops" or names == "modules":
        known = [subject for subject in known if subject.kind == names[:-1]]
    elif names != "all":
        wanted = names.split(",")
        known = [subject for subject in known if any(f"{subject.name}.".startswith(f"{name}.") for name in wanted)]
    place, _, count = shard.partition("/")
    return known[int(place) :: int(count)]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ops", default="all", help="all, ops, modules, or names with commas between")
    parser.add_argument("--backend", default="inductor", help=f"{', '.join(BACKENDS)}, or all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shard", default="0/1", help="i/n: the i-th of n parts")
    parser.add_argument("--static", action="store_true", help="default options, and the first call alone counts")
    parser.add_argument("--layouts", action="store_true", help="operands with other strides than the samples have")
    parser.add_argument(
        "--named", action="store_true", help="all arguments are given by name, where eager takes them so"
    )
    parser.add_argument("--twice", action="store_true", help="gradients are derived, too")
    parser.add_argument("--dtypes", default="main", help="main, all, or names with commas between: float64,int32")
    parser.add_argument("--samples", type=int, default=10**9, help="at most, of each dtype")
    parser.add_argument("--most", type=int, help="operations and modules, the first ones (see --shuffle)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--shuffle", action="store_true", help="in random order")
    parser.add_argument("--report", help="a file for all findings, one JSON object a line")
    return parser


def main() -> int:
    """Run a sweep, or several, one after the other, with `--and` between their options: torch's samples are imported
    once. The number of faults decides on the status."""
    groups = itertools.groupby(sys.argv[1:], lambda word: word != "--and")
    given = [parser().parse_args(list(words)) for options, words in groups if options]
    return max([swept(options) for options in given or [parser().parse_args()]])


def swept(given: argparse.Namespace) -> int:
    """The status of one sweep: 1 if it found faults."""
    print(f"torch {torch.__version__}, seed {given.seed}", flush=True)
    named = {"main": (), "all": DTYPES}.get(given.dtypes)
    dtypes = named if named is not None else tuple([getattr(torch, name) for name in given.dtypes.split(",")])
    options = Options(not given.static, dtypes, given.samples, given.seed, given.layouts, given.named, given.twice)
    backends = BACKENDS if given.backend == "all" else given.backend.split(",")
    asked = chosen(given.ops, given.shard)
    if given.twice:
        asked = [subject for subject in asked if not f"{subject.name}.".startswith(ONCE)]
    tasks = [Task(subject, backend) for subject in asked for backend in backends]
    if given.shuffle:
        random.Random(given.seed).shuffle(tasks)
    counts: Counter[str] = Counter()
    report = open(given.report, "w") if given.report else None  # noqa: SIM115
    for finding in sweep(tasks[: given.most], options, given.jobs):
        counts[finding.kind] += 1
        if report:
            report.write(json.dumps(asdict(finding)) + "\n")
            report.flush()
        if finding.kind in FAULTS:
            place = f"{finding.subject} {finding.dtype} {finding.sample} ({finding.backend}; {finding.changed})"
            print(f"{finding.kind:<11} {place}: {' '.join(finding.detail.split())[:600]}", flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items())))
    return int(any(counts[kind] for kind in FAULTS))


def test_samples_with_other_sizes() -> None:
    """Random parts of the sweep, in a process of its own, whose output says how to repeat them: values and strides of
    results and gradients. What is compiled is kept on disk, as users have it."""
    common = ["--samples", "3", "--shuffle", "--most", str(COUNT)]
    command = [sys.executable, __file__]
    others = ["--twice --samples 1", f"--dtypes {random.choice(OTHERS)} --samples 1"]
    for options in ("--backend all", *others, "--static", "--static --layouts", "--named"):
        command += ["--and", *common, *options.split(), "--seed", str(random.randrange(2**31))]
    env = {**os.environ, "BOLIDE_FORCE_DISABLE_CACHES": ""}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert not ran.returncode, f"{' '.join(command)}\n{ran.stdout}\n{ran.stderr[-3000:]}"


def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sine, cosine = torch.ops.aten.sin.default, torch.ops.aten.cos.default
    monkeypatch.setitem(registry.LOWERINGS, sine, registry.LOWERINGS[cosine])
    subject = Subject("exp of sin", "op", None)
    first: Arguments = (torch.randn(5, 3).requires_grad_(),), {}
    found = list(check(subject, lambda x: (x + 1).sin().exp(), first, "inductor", True, 1))
    bolide.reset()
    assert found[-1][0] == "wrong" and "sin" in found[-1][1].partition("shadow: ")[2]


if __name__ == "__main__":
    sys.exit(main())
