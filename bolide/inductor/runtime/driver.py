"""From a Plan to one Python function: generated source with everything bound beforehand.

The function takes the list of inputs, empties it, and returns the tuple of results. Runs of launches become one
foreign call; tensors are dropped as
soon as nothing needs them.
"""

from __future__ import annotations

import linecache
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.inductor.plan import Alloc, AsStrided, Call, Copy, Dim, Free, Launch, Plan, Ref, Reuse, Step, defined_names
from bolide.inductor.runtime import externs
from bolide.inductor.runtime.results import Check, Proofs, asked_for, keeps_its_word
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
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    known: dict[Any, str] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)  # tensors in memory that the plan takes, from its start
    proofs: Proofs = field(default_factory=Proofs)
    sizes: str = ""  # those that what is checked once depends on, as a tuple; "" where nothing is

    def constant(self, prefix: str, value: Any) -> str:
        """The global name of an object, the same for equal keys."""
        key = (prefix, id(value))
        name = self.known.get(key)
        if name is None:
            name = self.known[key] = f"{self.mark}{prefix}{len(self.names)}"
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

    With `clock`, every launch and call runs by itself and appends (what it is, seconds) to it.
    """
    driver = _Driver(plan, bind, _mark(plan))
    driver.names.update(plan.constants)
    driver.filled = {step.name for step in plan.steps if isinstance(step, Alloc)}
    _prologue(driver)
    now = driver.constant("now", time.perf_counter)
    tick = "" if clock is None else driver.constant("tick", clock.append)
    for chunk in _chunks(plan.steps, clock is not None):
        if clock is not None and isinstance(chunk, (list, Call)):
            label = plan.kernels[chunk[0].kernel].name if isinstance(chunk, list) else str(chunk.op)
            driver.lines.append(f"{driver.own('start')} = {now}()")
        if isinstance(chunk, list):
            _launches(driver, chunk)
        else:
            _step(driver, chunk)
        if clock is not None and isinstance(chunk, (list, Call)):
            driver.lines.append(f"{tick}(({label!r}, {now}() - {driver.own('start')}))")
    if driver.sizes:
        driver.lines.append(f"if {driver.own('doubt')}: {driver.constant('proofs', driver.proofs)}.add({driver.sizes})")
    results = "".join(f"{_value(driver, r)}, " for r in plan.results)
    driver.lines.append(f"return ({results})")
    source = f"def {driver.own('call')}({driver.own('inputs')}):\n" + "".join(f"    {line}\n" for line in driver.lines)
    filename = f"<bolide driver {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), driver.names)
    call = driver.names[driver.own("call")]
    weakref.finalize(call, linecache.cache.pop, filename, None).atexit = False
    return call, source


def _prologue(driver: _Driver) -> None:
    plan = driver.plan
    if plan.inputs:
        driver.lines.append(f"{', '.join(plan.inputs)}, = {driver.own('inputs')}")
        driver.lines.append(f"{driver.own('inputs')}.clear()")
    names: set[str] = set()
    once = [step for step in plan.steps if isinstance(step, Call) and _is_checked_once(driver, step)]
    for step in once:
        names.update(*(dim.free_vars for dim in _dims_made(step)))
    if once:
        driver.sizes = "(" + "".join(f"{name}, " for name in sorted(names)) + ")"
        proofs = driver.constant("proofs", driver.proofs)
        driver.lines.append(f"{driver.own('doubt')} = {driver.sizes} not in {proofs}.sizes")


def _dims_made(step: Call) -> list[Expr]:
    """The symbolic sizes and strides of a call's results."""
    dims = [dim for made in step.made if made is not None for dim in (*made.shape, *made.stride)]
    return [dim for dim in dims if isinstance(dim, Expr) and not dim.is_const]


def _is_checked_once(driver: _Driver, step: Call) -> bool:
    """Whether the results of a call are checked once for the same sizes: those of torch's operations, unless sizes come
    up only while the plan runs."""
    given = set(driver.plan.inputs)
    known = all(given.issuperset(dim.free_vars) for dim in _dims_made(step))
    return known and any(step.made) and keeps_its_word(step.op)


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
        elif isinstance(step, (Alloc, Reuse)) and not frees:
            chunks.append(step)
        else:
            close()
            chunks.append(step)
    close()
    return chunks


def _launches(driver: _Driver, run: list[Launch]) -> None:
    arguments: dict[str, int] = {}
    calls = []
    for launch in run:
        texts = [f"{argument}.data_ptr()" for argument in launch.arguments]
        texts += [_dim(size) for size in launch.sizes]
        calls.append((launch.kernel, tuple([arguments.setdefault(text, len(arguments)) for text in texts])))
    function = driver.bind(calls)
    driver.lines.append(f"{driver.constant('run', function)}({', '.join(arguments)})")


def _step(driver: _Driver, step: Step) -> None:
    if isinstance(step, Alloc):
        empty, dtype = driver.constant("empty", _empty_strided_cpu), driver.constant("dtype", step.dtype)
        driver.lines.append(f"{step.name} = {empty}({_dims(step.shape)}, {_dims(step.stride)}, {dtype})")
    elif isinstance(step, Reuse):
        driver.lines.append(f"{step.name} = {step.base}")
    elif isinstance(step, AsStrided):
        view = driver.constant("view", torch.as_strided)
        offset = _dim(step.offset)
        if step.base not in driver.filled:  # what others have made need not begin where its storage does
            offset = f"{step.base}.storage_offset() + {offset}"
        driver.lines.append(f"{step.name} = {view}({step.base}, {_dims(step.shape)}, {_dims(step.stride)}, {offset})")
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
    for place, (name, made) in enumerate(zip(step.names, step.made)):
        if made is not None:
            check = driver.constant("check", Check(op, place, step.where, made.dtype, driver.proofs))
            driver.lines.append(f"{once}{name} = {check}({name}, {_dims(made.shape)}, {_dims(made.stride)})")


def _dim(value: Dim) -> str:
    return value.text() if isinstance(value, Expr) else str(value)


def _dims(values: tuple[Dim, ...]) -> str:
    return "(" + "".join(f"{_dim(v)}, " for v in values) + ")"


def _value(driver: _Driver, value: Any) -> str:
    """Python source of an argument or a result."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Expr):
        return value.text()
    if isinstance(value, list):
        return "[" + ", ".join(_value(driver, v) for v in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(driver, v)}, " for v in value) + ")"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
    return driver.constant("const", value)
