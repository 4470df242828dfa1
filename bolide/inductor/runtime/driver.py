"""From a Plan to one Python function: generated source with everything bound beforehand.

The function takes the list of inputs, empties it, and returns the tuple of results. Runs of launches become one foreign
call; tensors are dropped as soon as nothing needs them.
"""

from __future__ import annotations

import linecache
import math
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.inductor.plan import Alloc, AsStrided, Call, Copy, Free, Launch, Plan, Ref, Reuse, Step, defined_names
from bolide.inductor.runtime import externs
from bolide.inductor.runtime.results import Proofs, ResultCheck, asked_for, keeps_its_word
from bolide.symbolic import Expr

# `torch.empty_strided` without the dispatcher, which has nothing to say here, in two fifths of the time
_empty_strided_cpu: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]

Bind = Callable[[Sequence[tuple[int, tuple[int, ...]]]], Callable[..., None]]
"""Gives the callable that runs kernels one after the other; each item is (kernel, position of each of its parameters
among the callable's arguments)."""


@dataclass(slots=True)
class _Driver:
    """The function being written: lines of its body and the objects it refers to. Names that are not the plan's begin
    with `mark`, which no name of the plan's does: those are the user's."""

    plan: Plan
    bind: Bind
    mark: str
    names: dict[str, object]
    filled: set[str]  # tensors in memory that the plan takes, from its start
    lines: list[str] = field(default_factory=list)
    known: dict[tuple[str, int], str] = field(default_factory=dict)
    proofs: Proofs = field(default_factory=Proofs)

    def constant(self, prefix: str, value: object) -> str:
        """The global name of an object."""
        name = self.known.setdefault((prefix, id(value)), f"{self.mark}{prefix}{len(self.names)}")
        self.names[name] = value
        return name

    def own(self, name: str) -> str:
        """The name of a variable of the function's own."""
        return f"{self.mark}{name}"


def _mark(plan: Plan) -> str:
    names = [*plan.inputs, *plan.constants, *(name for step in plan.steps for name in defined_names(step))]
    mark = "_"
    while any(name.startswith(mark) for name in names):
        mark += "_"
    return mark


def build(
    plan: Plan, bind: Bind, name: str, clock: list[tuple[str, float]] | None = None
) -> tuple[Callable[[list[Any]], tuple[Any, ...]], str]:
    """The function that runs `plan`, and its source. `name` is shown in tracebacks.

    With `clock`, every launch and call runs by itself and appends (what it is, seconds) to it."""
    filled = {step.name for step in plan.steps if isinstance(step, Alloc)}
    driver = _Driver(plan, bind, _mark(plan), dict(plan.constants), filled)
    lines, own = driver.lines, driver.own
    if plan.inputs:
        lines += [f"{', '.join(plan.inputs)}, = {own('inputs')}", f"{own('inputs')}.clear()"]
    once = [step for step in plan.steps if isinstance(step, Call) and _is_checked_once(driver, step)]
    sizes = _tuple(sorted({name for step in once for dim in _dims_expected(step) for name in dim.free_vars}))
    if once:
        lines.append(f"{own('doubt')} = {sizes} not in {driver.constant('proofs', driver.proofs)}.sizes")
    now = driver.constant("now", time.perf_counter)
    tick = "" if clock is None else driver.constant("tick", clock.append)
    for chunk in _chunks(plan.steps, clock is not None):
        timed = clock is not None and isinstance(chunk, (list, Call))
        if timed:
            lines.append(f"{own('start')} = {now}()")
        if isinstance(chunk, list):
            label = plan.kernels[chunk[0].kernel].name
            _launches(driver, chunk)
        else:
            label = str(chunk.op) if isinstance(chunk, Call) else ""
            _step(driver, chunk)
        if timed:
            lines.append(f"{tick}(({label!r}, {now}() - {own('start')}))")
    if once:
        lines.append(f"if {own('doubt')}: {driver.constant('proofs', driver.proofs)}.add({sizes})")
    lines.append(f"return {_tuple(_value(driver, result) for result in plan.results)}")
    source = f"def {own('call')}({own('inputs')}):\n" + "".join(f"    {line}\n" for line in lines)
    filename = f"<bolide driver {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), driver.names)
    call: Callable[[list[Any]], tuple[Any, ...]] = driver.names[own("call")]  # type: ignore[assignment]
    weakref.finalize(call, linecache.cache.pop, filename, None).atexit = False
    return call, source


def _tuple(texts: Iterable[object]) -> str:
    """Source of a tuple."""
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _dims_expected(step: Call) -> list[Expr]:
    """The symbolic sizes and strides of a call's results."""
    dims = [dim for tensor in step.expected if tensor is not None for dim in (*tensor.shape, *tensor.stride)]
    return [dim for dim in dims if isinstance(dim, Expr) and not dim.is_const]


def _is_checked_once(driver: _Driver, step: Call) -> bool:
    """Whether the results of a call are checked once for the same sizes: those of torch's operations, unless sizes come
    up only while the plan runs."""
    given = set(driver.plan.inputs)
    known = all(given.issuperset(dim.free_vars) for dim in _dims_expected(step))
    return known and any(step.expected) and keeps_its_word(step.op)


def _chunks(steps: list[Step], single: bool) -> list[Step | list[Launch]]:
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


def _launches(driver: _Driver, run: list[Launch]) -> None:
    arguments: dict[str, int] = {}
    calls = []
    for launch in run:
        texts = [f"{argument}.data_ptr()" for argument in launch.arguments] + list(map(str, launch.sizes))
        calls.append((launch.kernel, tuple([arguments.setdefault(text, len(arguments)) for text in texts])))
    driver.lines.append(f"{driver.constant('run', driver.bind(calls))}({', '.join(arguments)})")


def _step(driver: _Driver, step: Step) -> None:
    if isinstance(step, Alloc):
        empty, dtype = driver.constant("empty", _empty_strided_cpu), driver.constant("dtype", step.dtype)
        driver.lines.append(f"{step.name} = {empty}({_tuple(step.shape)}, {_tuple(step.stride)}, {dtype})")
    elif isinstance(step, Reuse):
        driver.lines.append(f"{step.name} = {step.base}")
    elif isinstance(step, AsStrided):
        view = driver.constant("view", torch.as_strided)
        offset = str(step.offset)
        if step.base not in driver.filled:  # what others have made need not begin where its storage does
            offset = f"{step.base}.storage_offset() + {offset}"
        driver.lines.append(f"{step.name} = {view}({step.base}, {_tuple(step.shape)}, {_tuple(step.stride)}, {offset})")
    elif isinstance(step, Call):
        _call(driver, step)
    elif isinstance(step, Copy):
        driver.lines.append(f"{step.target}.copy_({step.source})")
    elif isinstance(step, Free):
        names = [name for name in step.names if name not in driver.plan.constants]
        if names:
            driver.lines.append(f"del {', '.join(names)}")
    else:
        raise AssertionError(f"a launch outside a run: {step}")


def _call(driver: _Driver, step: Call) -> None:
    function = driver.constant("op", externs.function_of(step.op))
    arguments = [_value(driver, a) for a in step.args] + [f"{k}={_value(driver, v)}" for k, v in step.kwargs.items()]
    call = f"{function}({', '.join(arguments)})"
    if step.single and step.names:
        call = f"{step.names[0]} = {call}" if step.names[0] else call
    elif any(step.names):
        unused = driver.own("unused")
        call = f"{', '.join(name or unused for name in step.names)}, = {call}"
        call += f"; del {unused}" if None in step.names else ""
    driver.lines.append(call)
    once = f"if {driver.own('doubt')}: " if _is_checked_once(driver, step) else ""
    op = asked_for(step.op, step.args)
    for place, (name, expected) in enumerate(zip(step.names, step.expected)):
        if expected is not None:
            check = driver.constant("check", ResultCheck(op, place, step.where, expected.dtype, driver.proofs))
            driver.lines.append(f"{once}{name} = {check}({name}, {_tuple(expected.shape)}, {_tuple(expected.stride)})")


def _value(driver: _Driver, value: object) -> str:
    """Python source of an argument or a result."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, list):
        return "[" + ", ".join(_value(driver, v) for v in value) + "]"
    if isinstance(value, tuple):
        return _tuple(_value(driver, v) for v in value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    plain = value is None or isinstance(value, (bool, int, float, str, Expr))
    return repr(value) if plain else driver.constant("const", value)
