"""From a Plan to one Python function: generated source with everything bound beforehand.

The function takes the list of inputs, empties it, and returns the tuple of results. Runs of launches become one foreign
call; tensors are dropped as soon as nothing needs them.
"""

from __future__ import annotations

import functools
import linecache
import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from bolide.inductor.ir.loops import CPU
from bolide.inductor.plan import (
    ERRORS,
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Item,
    Launch,
    Plan,
    Ref,
    Repeat,
    Require,
    Result,
    Reuse,
    Size,
    Step,
    TensorResult,
    Value,
    View,
    Word,
    WordResult,
    bound_words,
    defined_names,
    flat_results,
    tensors_given,
)
from bolide.inductor.plan.schemas import overload_of, shown_arguments
from bolide.inductor.runtime import externs
from bolide.inductor.runtime.results import Proofs, ResultCheck, asked_for, keeps_its_word, tied_views
from bolide.symbolic import Expr
from bolide.tracing.operations.kinds import SPARSE
from bolide.tracing.rng import draw_seed

# `torch.empty_strided` without the dispatcher, which has nothing to say here, in two fifths of the time
_empty_strided_cpu: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
# a tensor in the memory of another one, of which autograd knows nothing; its offset counts from the other's
_reinterpret_tensor: Callable[..., torch.Tensor] = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]

_LARGEST_LEARNT = (32 << 20) - (8 << 10)  # bytes: with malloc's own words, no more than glibc learns from


@functools.cache
def keep_freed_memory() -> None:
    """Has glibc's malloc keep what it keeps in the long run of a process with large tensors: it learns from the largest
    block that was freed which ones to map one by one, and how much free memory to hand back to the system. What it maps
    anew in every call costs a fault for each page. Where a user has set these limits nothing changes."""
    _empty_strided_cpu((_LARGEST_LEARNT,), (1,), torch.uint8)


Run = Callable[[list[Any]], tuple[Any, ...]]
"""Runs a graph: the list of inputs in, which is emptied, the tuple of results out."""

Bind = Callable[[Sequence[tuple[int, tuple[int, ...]]]], Callable[..., None]]
"""Gives the callable that runs kernels one after the other; each item is (kernel, position of each of its parameters
among the callable's arguments)."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What a plan is run with, besides its inputs: `bind` for its kernels, its constants by name, what its `Foreign`s
    are, and `failed`, which raises the error of a kernel that could not be launched, by its number."""

    bind: Bind
    constants: Mapping[str, torch.Tensor]
    objects: Sequence[object]
    failed: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is found out about a block once. Names that are not the plan's begin with `mark`, which no name of the block
    does: those are the user's. `tied`: see `tied_views`."""

    mark: str
    tied: frozenset[str]


def facts_of(block: Block, constants: Iterable[str]) -> Facts:
    """The facts of a block, and of the constants of its plan."""
    return Facts(_mark(block, constants), tied_views(block))


@dataclass(slots=True)
class _Driver:
    """The function being written: lines of its body and the objects it refers to."""

    block: Block
    binding: Binding
    facts: Facts
    names: dict[str, object]
    words: set[str]  # that have a value so far
    lines: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)  # sources of the functions of blocks
    known: dict[tuple[str, int], str] = field(default_factory=dict)
    proofs: Proofs = field(default_factory=Proofs)

    def constant(self, prefix: str, value: object) -> str:
        """The global name of an object."""
        name = self.known.setdefault((prefix, id(value)), f"{self.facts.mark}{prefix}{len(self.names)}")
        self.names[name] = value
        return name

    def own(self, name: str) -> str:
        """The name of a variable of the function's own."""
        return f"{self.facts.mark}{name}"


class Clock(Protocol):
    """What tells how long steps take, one after the other."""

    def start(self) -> None:
        """A step begins."""

    def stop(self, label: str) -> None:
        """It ends; what it was."""

    def times(self) -> list[tuple[str, float]]:
        """Seconds of each."""


class HostClock:
    """The host's time, for steps that are over when they return."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._times: list[tuple[str, float]] = []

    def start(self) -> None:
        """As `Clock.start`."""
        self._begin = time.perf_counter()

    def stop(self, label: str) -> None:
        """As `Clock.stop`."""
        self._times.append((label, time.perf_counter() - self._begin))

    def times(self) -> list[tuple[str, float]]:
        """As `Clock.times`."""
        return self._times


class EventClock:
    """A GPU's time, by events on its current stream. The device is kept busy before a step begins, so that the host is
    ahead of it and what a launch costs the host is not in the time."""

    AHEAD = 200_000  # cycles of the device: some 0.1 ms

    def __init__(self) -> None:
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """As `Clock.start`."""
        torch.cuda._sleep(self.AHEAD)  # type: ignore[no-untyped-call]
        self._begin = self._recorded()

    def stop(self, label: str) -> None:
        """As `Clock.stop`."""
        self._marks.append((label, self._begin, self._recorded()))

    def times(self) -> list[tuple[str, float]]:
        """As `Clock.times`; waits for the device."""
        torch.cuda.synchronize()
        return [(label, begin.elapsed_time(end) / 1e3) for label, begin, end in self._marks]

    def _recorded(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _mark(block: Block, constants: Iterable[str]) -> str:
    names = [*constants, *(given.name for given in block.inputs)]
    names += [name for step in block.steps for name in (*defined_names(step), *bound_words(step))]
    mark = "_"
    while any(name.startswith(mark) for name in names):
        mark += "_"
    return mark


def build(plan: Plan, binding: Binding, name: str, clock: Clock | None = None) -> tuple[Run, str]:
    """The function that runs `plan`, and its source. `name` is shown in tracebacks.

    With `clock`, every launch and call runs by itself and is noted there."""
    kernels = [kernel.name for kernel in plan.kernels]
    return _build(plan.block, binding, kernels, "call", f"<bolide driver {name}>", clock)


def _build(
    block: Block,
    binding: Binding,
    kernels: Sequence[str],
    name: str,
    filename: str,
    clock: Clock | None,
) -> tuple[Run, str]:
    """The function that runs a block, and its source with those of the blocks in it. `kernels`: the names of the
    plan's."""
    facts = facts_of(block, binding.constants)
    driver = _Driver(block, binding, facts, dict(binding.constants), block.words())
    lines, own = driver.lines, driver.own
    if block.inputs:
        names = [given.name for given in block.inputs]
        lines += [f"{', '.join(names)}, = {own('inputs')}", f"{own('inputs')}.clear()"]
    once = [step for step in block.steps if isinstance(step, Call) and _is_checked_once(driver, step)]
    sizes = _tuple(sorted({name for step in once for dim in _dims_expected(step) for name in dim.free_vars}))
    if once:
        lines.append(f"{own('doubt')} = {sizes} not in {driver.constant('proofs', driver.proofs)}.sizes")
    start = "" if clock is None else driver.constant("start", clock.start)
    stop = "" if clock is None else driver.constant("stop", clock.stop)
    for chunk in _chunks(block.steps, clock is not None):
        timed = clock is not None and isinstance(chunk, (list, Call))
        if timed:
            lines.append(f"{start}()")
        if isinstance(chunk, list):
            label = kernels[chunk[0].kernel]
            _launches(driver, chunk)
        elif isinstance(chunk, (Branch, Repeat)):

            def run_of(part: Block, what: str) -> str:
                inner, source = _build(part, binding, kernels, what, f"{filename[:-1]} {what}>", clock)
                driver.inner.append(source)
                return driver.constant(what, inner)

            _blocks(driver, chunk, run_of)
        else:
            label = str(chunk.operator) if isinstance(chunk, Call) else ""
            _step(driver, chunk)
        if timed:
            lines.append(f"{stop}({label!r})")
    if once:
        lines.append(f"if {own('doubt')}: {driver.constant('proofs', driver.proofs)}.add({sizes})")
    lines.append(f"return {_tuple(_value(driver, result) for result in block.results)}")
    return _function(driver, own(name), [own("inputs")], filename)


def build_step(
    block: Block, binding: Binding, step: Step, tensors: Sequence[str], words: Sequence[str], facts: Facts
) -> Callable[..., tuple[Any, ...]]:
    """One step of a block as a function of the tensors that it uses and of the words that are known; it gives the tuple
    of all that the step defines, which is checked every time. That of a launch, which has failed, raises its error."""
    driver = _Driver(block, binding, facts, dict(binding.constants), set(words))
    driver.lines.append(f"{driver.own('doubt')} = True")
    if isinstance(step, Launch):
        driver.lines.append(f"{driver.constant('failed', binding.failed)}({step.kernel})")
    else:
        _step(driver, step)
    driver.lines.append(f"return {_tuple([*defined_names(step), *bound_words(step)])}")
    return _function(driver, driver.own("step"), [*tensors, *words], "<bolide step>")[0]


def _function(driver: _Driver, name: str, parameters: Sequence[str], filename: str) -> tuple[Callable[..., Any], str]:
    """The function whose body the driver's lines are, and its source."""
    body = "".join(f"    {line}\n" for line in driver.lines)
    source = f"def {name}({', '.join(parameters)}):\n{body}"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), driver.names)
    function: Callable[..., Any] = driver.names[name]  # type: ignore[assignment]
    weakref.finalize(function, linecache.cache.pop, filename, None).atexit = False
    return function, "\n\n".join([*driver.inner, source])


def _tuple(texts: Iterable[object]) -> str:
    """Source of a tuple."""
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _dims_expected(step: Call) -> list[Expr]:
    """The symbolic sizes and strides of a call's results."""
    dims = [dim for result in tensors_given(step) for dim in (*result.type.shape, *result.type.stride)]
    return [dim for dim in dims if not dim.is_const]


def _is_checked_once(driver: _Driver, step: Call) -> bool:
    """Whether the results of a call are checked once for the same sizes: those of torch's operations, unless sizes come
    up only while the plan runs."""
    dims = _dims_expected(step)
    known = not dims or frozenset(driver.block.words()) >= frozenset().union(*(dim.free_vars for dim in dims))
    return known and bool(tensors_given(step)) and keeps_its_word(overload_of(step.operator))


def _chunks(steps: Sequence[Step], single: bool) -> list[Step | list[Launch]]:
    """Steps in order, runs of launches joined (unless `single`): an Alloc inside a run moves before it, a Free behind
    it; an Alloc after a Free ends the run."""
    chunks: list[Step | list[Launch]] = []
    run: list[Launch] = []
    frees: list[Step] = []

    def close() -> None:
        if run:
            chunks.append(list(run))
        chunks.extend(frees)
        run.clear()
        frees.clear()

    for step in steps:
        if isinstance(step, Launch):
            run.append(step)
            if single:
                close()
        elif isinstance(step, Free) and run:
            frees.append(step)
        else:
            if frees or not isinstance(step, (Alloc, Reuse)):
                close()
            chunks.append(step)
    close()
    return chunks


@functools.cache
def _empty_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """New memory on a device, of sizes, strides and a dtype."""
    if device == CPU:
        return _empty_strided_cpu

    fast, current = torch._C._dynamo.guards._empty_strided_cuda, torch._C._cuda_getDevice  # type: ignore[attr-defined]

    def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if current() == device.index:
            made: torch.Tensor = fast(size, stride, dtype)
            return made
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return empty


def _launches(driver: _Driver, run: list[Launch]) -> None:
    arguments: dict[str, int] = {}
    calls = []
    for launch in run:
        texts = [f"{argument}.data_ptr()" for argument in launch.arguments] + list(map(str, launch.sizes))
        calls.append((launch.kernel, tuple([arguments.setdefault(text, len(arguments)) for text in texts])))
    driver.lines.append(f"{driver.constant('run', driver.binding.bind(calls))}({', '.join(arguments)})")


def _step(driver: _Driver, step: Step) -> None:
    if isinstance(step, Alloc):
        empty, dtype = driver.constant("empty", _empty_on(step.type.device)), driver.constant("dtype", step.type.dtype)
        driver.lines.append(f"{step.name} = {empty}({_tuple(step.type.shape)}, {_tuple(step.type.stride)}, {dtype})")
    elif isinstance(step, Reuse):
        driver.lines.append(f"{step.name} = {step.base}")
    elif isinstance(step, View):
        seen, offset = f"{_tuple(step.type.shape)}, {_tuple(step.type.stride)}", str(step.offset)
        if step.name in driver.facts.tied:
            view, offset = driver.constant("view", torch.as_strided), f"{step.base}.storage_offset() + {offset}"
        else:
            view = driver.constant("view", _reinterpret_tensor)
        driver.lines.append(f"{step.name} = {view}({step.base}, {seen}, {offset})")
    elif isinstance(step, Call):
        _call(driver, step)
    elif isinstance(step, (Check, Require)):
        _requirement(driver, step)
    elif isinstance(step, (Word, Item, Size)):
        driver.lines.append(f"{step.name} = {_told(step)}")
        driver.words.add(step.name)
    elif isinstance(step, Copy):
        driver.lines.append(f"{step.target}.copy_({step.source})")
    elif isinstance(step, Free):
        names = [name for name in step.names if name not in driver.binding.constants]
        if names:
            driver.lines.append(f"del {', '.join(names)}")
    else:
        raise AssertionError(f"a launch outside a run: {step}")


def _blocks(driver: _Driver, step: Branch | Repeat, run_of: Callable[[Block, str], str]) -> None:
    """Calls the functions of blocks, which `run_of` makes."""
    given = "".join(f", {_value(driver, argument)}" for argument in step.arguments)
    results = _tuple(result.name for result in step.results)
    if isinstance(step, Branch):
        then, otherwise = run_of(step.then, "then"), run_of(step.otherwise, "otherwise")
        driver.lines.append(f"{results} = ({then} if {step.flag}.item() else {otherwise})([{given[2:]}])")
    else:
        goes_on, body = run_of(step.condition, "goes_on"), run_of(step.body, "body")
        driver.lines.append(f"{results} = {_tuple(step.carried)}")
        driver.lines.append(f"while {goes_on}([*{results}{given}])[0].item(): {results} = {body}([*{results}{given}])")


def _requirement(driver: _Driver, step: Check | Require) -> None:
    """Raises in a line of its own; of a flag on a GPU, as eager does: when the device gets there."""
    if isinstance(step, Check) and _is_elsewhere(driver.block, step.flag):
        good = step.flag if step.expected else f"{step.flag}.logical_not()"
        driver.lines.append(f"{driver.constant('assert_async', torch._assert_async)}({good}, {step.message!r})")
        return
    if isinstance(step, Check):
        wrong = f"{'not ' * step.expected}{step.flag}.item()"
    else:
        wrong = f"not {step.expr} {step.relation} 0"
    error = driver.constant("error", ERRORS[step.error])
    driver.lines.append(f"if {wrong}: raise {error}({step.message!r})")


def _is_elsewhere(block: Block, flag: str) -> bool:
    """Whether a flag is memory on another device than the CPU."""
    made = (step for step in block.steps if isinstance(step, Alloc) and step.name == flag)
    return any(step.type.device != CPU for step in made)


def _told(step: Word | Item | Size) -> str:
    """What a word is, which is no bool."""
    if isinstance(step, Word):
        return str(step.expr)
    return f"{step.tensor}.item() + 0" if isinstance(step, Item) else f"{step.tensor}.size({step.dim})"


def _call(driver: _Driver, step: Call) -> None:
    seed = externs.seed_of(step)
    if seed is not None and seed.type.device != CPU:
        drawn = f"{driver.constant('seed', draw_seed)}({driver.constant('device', seed.type.device)})"
        driver.lines.append(f"{seed.name} = {drawn}")
        return
    op = overload_of(step.operator)
    function = driver.constant("op", externs.function_of(op))
    positional, named = shown_arguments(op, step.arguments)
    arguments = [_value(driver, value) for value in positional]
    arguments += [f"{name}={_value(driver, value)}" for name, value in named.items()]
    call = f"{function}({', '.join(arguments)})"
    results = flat_results(step)
    if any(results):
        call = f"{_target(driver, step.results)} = {call}"
        call += f"; del {driver.own('unused')}" if None in results else ""
    driver.lines.append(call)
    driver.words.update(bound_words(step))
    once = f"if {driver.own('doubt')}: " if _is_checked_once(driver, step) else ""
    asked = asked_for(op, step.arguments)
    for place, result in enumerate(() if asked in SPARSE else results):
        if isinstance(result, TensorResult) and driver.words.issuperset(result.type.words()):
            kind = result.type
            proofs = driver.proofs
            check = driver.constant("check", ResultCheck(asked, place, step.where, kind.dtype, kind.device, proofs))
            shape, stride = _tuple(kind.shape), _tuple(kind.stride)
            driver.lines.append(f"{once}{result.name} = {check}({result.name}, {shape}, {stride})")


def _target(driver: _Driver, results: tuple[Result, ...]) -> str:
    """What the results of a call are assigned to: the value itself if there is one, a pattern of all of several."""
    if len(results) == 1:
        (result,) = results
        return _pattern(driver, result) if isinstance(result, tuple) else _name(driver, result)
    return _pattern(driver, results)


def _pattern(driver: _Driver, results: tuple[Result, ...]) -> str:
    parts = [f"({_pattern(driver, r)})" if isinstance(r, tuple) else _name(driver, r) for r in results]
    return f"{', '.join(parts)},"


def _name(driver: _Driver, result: TensorResult | WordResult | None) -> str:
    return driver.own("unused") if result is None else result.name


def _value(driver: _Driver, value: Value) -> str:
    """Python source of an argument or a result."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, tuple):
        return f"[{', '.join(_value(driver, item) for item in value)}]"
    if isinstance(value, Foreign):
        return driver.constant("foreign", driver.binding.objects[value.index])
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    plain = value is None or isinstance(value, (bool, float, str, Expr))
    return repr(value) if plain else driver.constant("const", value)
