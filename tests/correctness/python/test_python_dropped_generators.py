"""CPython runs the `finally` blocks of a suspended generator when its last reference goes; programs with breaks too."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide


def careful(log: list[Any], name: str, count: int) -> Iterator[int]:
    try:
        yield from range(count)
    finally:
        log.append(name)


def outer(log: list[Any]) -> Iterator[int]:
    for value in careful(log, "inner", 3):
        yield value + 1


@bolide.disable
def look(log: list[Any]) -> None:
    log.append("look")


def left_by_break(x: Any, log: list[Any]) -> Any:
    for _ in careful(log, "left", 3):
        look(log)
        if x.shape[0] == 4:
            break
    log.append("after")
    return x + 1


def overwritten(x: Any, log: list[Any]) -> Any:
    it = careful(log, "overwritten", 3)
    next(it)
    look(log)
    x = x * 2
    it = careful(log, "second", 3)
    log.append("between")
    next(it)
    del it
    log.append("after")
    return x


def still_referenced(x: Any, log: list[Any]) -> Any:
    it = also = careful(log, "shared", 3)
    next(it)
    look(log)
    del it
    log.append("not yet")
    x = x + next(also)
    also = None
    log.append("now")
    return x


def left_by_an_exception(x: Any, log: list[Any]) -> Any:
    try:
        for value in careful(log, "raised", 3):
            look(log)
            raise KeyError(value)
    except KeyError:
        log.append("handler")
    return x - 1


def nested(x: Any, log: list[Any]) -> Any:
    for _ in outer(log):
        look(log)
        break
    log.append("after")
    return x


def in_a_function(x: Any, log: list[Any]) -> Any:
    def first() -> int:
        it = careful(log, "local", 3)
        look(log)
        return next(it)

    x = x + first()
    log.append("after")
    return x


def in_a_cell(x: Any, log: list[Any]) -> Any:
    it: Any = careful(log, "cell", 3)

    def step() -> int:
        return next(it)

    x = x + step()
    look(log)
    log.append("before")
    it = None
    log.append("after")
    return x


class Holder:
    """Has a generator."""

    it: Any


def in_an_attribute(x: Any, log: list[Any]) -> Any:
    holder = Holder()
    holder.it = careful(log, "attribute", 3)
    x = x + next(holder.it)
    look(log)
    log.append("before")
    holder.it = None
    log.append("after")
    return x


def in_a_list(x: Any, log: list[Any]) -> Any:
    its = [careful(log, "first", 3), careful(log, "second", 2)]
    for it in its:
        x = x + next(it)
    del it
    look(log)
    log.append("before")
    its.pop()
    log.append("after")
    its[0] = None
    log.append("end")
    return x


def in_a_cell_of_its_own(x: Any, log: list[Any]) -> Any:
    def first() -> int:
        it = careful(log, "cell", 3)

        def step() -> int:
            return next(it)

        return step()

    x = x + first()
    log.append("after")
    look(log)
    return x


def generator_with_cells(x: Any, log: list[Any]) -> Any:
    def values(count: int) -> Iterator[int]:
        def shown(value: int) -> int:
            log.append((value, count))
            return value

        for value in range(count):
            yield shown(value)

    for value in values(3):
        x = x + value
    look(log)
    return x


def fails_with_a_generator(log: list[Any]) -> None:
    it = careful(log, "traceback", 3)
    raise KeyError(next(it))


def kept_by_a_traceback(x: Any, log: list[Any]) -> Any:
    try:
        fails_with_a_generator(log)
    except KeyError as error:
        log.append(str(error))
        x = x + 1
    log.append("after")
    look(log)
    return x


def kept_by_a_traceback_across_a_break(x: Any, log: list[Any]) -> Any:
    try:
        fails_with_a_generator(log)
    except KeyError as error:
        log.append(str(error))
        look(log)
        x = x + 1
        log.append("still")
    log.append("after")
    return x


def kept_by_the_caller_of_a_frame(x: Any, log: list[Any]) -> Any:
    def fails() -> None:
        raise KeyError(1)

    def catches() -> Any:
        try:
            fails()
        except KeyError as error:
            return error

    def holds() -> Any:
        it = careful(log, "caller", 3)
        next(it)
        return catches()

    error = holds()
    log.append("before")
    del error
    log.append("after")
    look(log)
    return x


def in_a_closure(x: Any, log: list[Any]) -> Any:
    def make() -> Any:
        it = careful(log, "closure", 3)

        def step() -> int:
            return next(it)

        return step

    step = make()
    x = x + step()
    log.append("before")
    del step
    log.append("after")
    look(log)
    return x


def in_a_list_that_is_not_read(x: Any, log: list[Any]) -> Any:
    its = [careful(log, "list", 3)]
    x = x + next(its[0])
    look(log)
    log.append("last")
    return x


def dropped_for_real(x: Any, log: list[Any]) -> Any:
    it = careful(log, "first", 3)
    next(it)
    for _ in range(2):
        it = careful(log, "again", 3)
        log.append(it.gi_frame is None)
        next(it)
        look(log)
    return x


@bolide.disable
def started_for_real(log: list[Any], name: str) -> Iterator[int]:
    made = careful(log, name, 3)
    next(made)
    return made


def made_for_real(x: Any, log: list[Any]) -> Any:
    it = started_for_real(log, "thrown into")

    def delegating() -> Iterator[int]:
        try:
            yield from it
        except KeyError:
            log.append("passed on")

    outer_one = delegating()
    log.append(next(outer_one))
    try:
        outer_one.throw(KeyError(1))  # type: ignore[attr-defined]
    except StopIteration:
        log.append("stopped")
    it = started_for_real(log, "deleted")
    log.append("deleting")
    del it
    log.append("after")
    it = started_for_real(log, "overwritten")
    log.append(it.gi_running)
    it = None  # type: ignore[assignment]
    log.append("after")
    kept = [started_for_real(log, "kept")]
    kept = []
    log.append("last")
    return x + len(kept)


def entries(error: BaseException) -> list[Any]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    return found


def noted(log: list[Any]) -> Iterator[int]:
    try:
        yield 1
    except KeyError as error:
        log.append(entries(error))
        raise


def thrown_into(x: Any, log: list[Any]) -> Any:
    def delegating() -> Iterator[int]:
        yield from noted(log)

    for it in (noted(log), delegating(), careful(log, "not started", 3)):
        for _ in range(2):
            try:
                log.append(it.throw(KeyError(1)))  # type: ignore[attr-defined]
            except KeyError as error:
                log.append(entries(error))
    it = delegating()
    next(it)
    try:
        it.throw(KeyError(2))  # type: ignore[attr-defined]
    except KeyError as error:
        log.append(entries(error))

    def within() -> Iterator[int]:
        with contextlib.suppress(KeyError):
            yield 1

    it = within()
    next(it)
    look(log)
    try:
        raise LookupError
    except LookupError:
        try:
            it.throw(TypeError(3))  # type: ignore[attr-defined]
        except TypeError as error:
            log.append(repr(error.__context__))
    return x


@bolide.disable
def throws() -> None:
    it: Any = careful([], "native", 3)
    next(it)
    it.throw(TypeError("thrown"))


def thrown_for_real(x: Any, log: list[Any]) -> Any:
    try:
        raise LookupError
    except LookupError:
        try:
            throws()
        except TypeError as error:
            log.append(repr(error.__context__))
    return x


PROGRAMS = (
    made_for_real,
    thrown_for_real,
    kept_by_the_caller_of_a_frame,
    in_a_closure,
    in_a_list_that_is_not_read,
    dropped_for_real,
    thrown_into,
    in_an_attribute,
    in_a_list,
    in_a_cell_of_its_own,
    generator_with_cells,
    kept_by_a_traceback,
    kept_by_a_traceback_across_a_break,
    left_by_break,
    overwritten,
    still_referenced,
    left_by_an_exception,
    nested,
    in_a_function,
    in_a_cell,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_finally_blocks_run_when_the_last_reference_goes(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program, backend="eager")
    for _ in range(3):
        x = torch.rand(4)
        expected: list[Any] = []
        actual: list[Any] = []
        wanted = program(x, expected)
        torch.testing.assert_close(compiled(x, actual), wanted, rtol=0, atol=0)
        assert actual == expected


def test_a_suspended_generator_among_the_arguments_does_not_break() -> None:
    def program(x: Any, it: Any) -> Any:
        return x + 1

    log: list[Any] = []
    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    it = careful(log, "argument", 3)
    for _ in range(2):
        next(it)
        compiled(torch.rand(4), it)
        assert log == []
    del it
    assert log == ["argument"]


def test_a_generator_in_a_reference_cycle_is_refused() -> None:
    def program(x: Any) -> Any:
        its: list[Any] = [careful([], "cycle", 3)]
        its.append(its)
        return x + next(its[0])

    x = torch.rand(4)
    with pytest.raises(bolide.Unsupported, match="reference cycle"):
        bolide.compile(program, backend="eager", fullgraph=True)(x)
    with pytest.warns(bolide.BolideWarning, match="reference cycle"):
        torch.testing.assert_close(bolide.compile(program, backend="eager")(x), x, rtol=0, atol=0)


def test_the_end_of_what_a_closure_holds_is_captured() -> None:
    def program(x: Any, log: list[Any]) -> Any:
        def make() -> Any:
            it = careful(log, "closed", 3)
            return lambda: next(it)

        step = make()
        x = x + step()
        del step
        log.append("after")
        return x

    log: list[Any] = []
    bolide.compile(program, backend="eager", fullgraph=True)(torch.rand(4), log)
    assert log == ["closed", "after"]


def kept_by_locals(x: Any, log: list[Any]) -> Any:
    it = careful(log, "first", 3)
    x = x + next(it)
    log.append("it" in dir())
    it = careful(log, "second", 3)
    log.append("after")
    return x


def locals_again(x: Any, log: list[Any]) -> Any:
    first = locals()
    here = sorted(first)
    second = locals()
    log.append((here, sorted(second), sorted(first), first is second))
    look(log)
    late = 5
    log.append((sorted(locals()), sorted(vars()), sorted(dir())))
    log.append((sorted(first), first is locals(), late))
    return x + len(first)


def locals_inside(x: Any, log: list[Any]) -> Any:
    free = 3

    class Body:
        kind = 4
        names = sorted(name for name in locals() if not name.startswith("_"))

    def inner(a: int, *rest: int, **named: int) -> dict[str, Any]:
        del a
        log.append(free)
        return locals()

    log.append((Body.names, [(name, value) for name, value in inner(1, 2, b=3).items() if name != "log"]))
    log.append([sorted(locals()) for i in range(1)])
    return x


@pytest.mark.parametrize("program", [kept_by_locals, locals_again, locals_inside], ids=lambda program: program.__name__)
def test_the_variables_of_a_frame_as_a_dict(program: Callable[..., Any]) -> None:
    test_finally_blocks_run_when_the_last_reference_goes(program)


def test_frames_of_generators() -> None:
    def program(x: Any) -> Any:
        it = careful([], "frame", 1)
        found = [it.gi_frame is None]  # type: ignore[attr-defined]
        x = x + next(it)
        found += [it.gi_frame is None, it.gi_frame.f_code.co_name]  # type: ignore[attr-defined]
        return x, found + [list(it), it.gi_frame is None]  # type: ignore[attr-defined]

    x = torch.rand(4)
    assert bolide.compile(program, backend="eager", fullgraph=True)(x)[1] == program(x)[1]
    with pytest.raises(bolide.Unsupported, match="f_locals of a frame"):
        bolide.compile(lambda x: x + len(careful([], "", x).gi_frame.f_locals), fullgraph=True)(x)  # type: ignore[attr-defined]


#: What a program does behind a loop that it has left, and where it cannot be captured as one.
BEFORE = {
    "nothing": "",
    "coroutine": """
    async def answer(p): return p
    waiting = answer(1)
    try: waiting.send(None)
    except StopIteration as stop: log.append(stop.value)""",
    "generator": """
    def numbers(p):
        yield p
        return p + 1
    log.append(list(numbers(1)))""",
    "exception": """
    try: raise KeyError(3)
    except KeyError as error: log.append(error.args)""",
    "held": """
    second = careful(log, "second", 3)
    log.append(next(second))""",
}
ENDS = {
    "while": "while x.abs().sum() > 500: x = x / 2",
    "if": "if x.sum() > 500: log.append(2)",
    "both ways": "x = x + 1 if x.sum() > 500 else x - 1",
    "print": "print(end='')",
    "item": "log.append(int(x.sum().item()))",
    "assertion": "assert x.sum() < 500",
    "raised": "raise ValueError(3)",
    "raised by data": "if x.sum() < 500: raise ValueError(3)",
    "loop": "for row in x: log.append(float(row) > 500)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", BEFORE)
def test_capture_keeps_nothing_alive(before: str, end: str) -> None:
    """The first call, in which all is captured, and others; no garbage collector helps."""
    namespace = {"careful": careful}
    body = f"    for _ in careful(log, 'left', 3):\n        break{BEFORE[before]}\n    {ENDS[end]}\n    return x + 1\n"
    exec(f"def program(x, log):\n{body}", namespace)
    program: Any = namespace["program"]
    compiled = bolide.compile(program)
    gc.collect()
    gc.disable()
    try:
        for size in (3, 4, 5):
            x = torch.ones(size, requires_grad=True)
            assert _said(compiled, x) == _said(program, x)
    finally:
        gc.enable()


def _said(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    log: list[Any] = []
    try:
        result = function(x, log)
    except ValueError as error:
        log.append(error.args)
    else:
        log.append(torch.autograd.grad(result.sum(), x)[0].tolist())
    return log
