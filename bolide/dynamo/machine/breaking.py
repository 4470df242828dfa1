"""What capture does by the user's will: functions that are never captured, breaks that are errors, output that waits
until the graph has run.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

from bolide.dynamo.bytecode.flow import following, joins_of
from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import CALLS, UNIFORM
from bolide.dynamo.config import config
from bolide.dynamo.guards.sizes import Location, NeedsNumbers
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES
from bolide.dynamo.program.sources import text as path_of
from bolide.dynamo.state import own_mark, state
from bolide.dynamo.world.arrays import TracedArray, Written
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.texts import Pictured, TracedText
from bolide.support.errors import Unsupported
from bolide.symbolic import Expr
from bolide.tracing import Trace, TracedFloat, TracedTensor
from bolide.tracing.meta import found_in
from bolide.tracing.numbers import data

BREAK_IS_ERROR: Slot[Any] = Slot(lambda: state.break_is_error)
_CHECKS: Slot[dict[Location, int]] = Slot(dict)  # how often branches have been taken for checks of data


def break_is_error(vm: Machine) -> bool:
    """Whether a break where the machine stands is an error."""
    return bool(BREAK_IS_ERROR.of(vm))


def loop_over(vm: Machine) -> Location | None:
    """The ``for`` loop over what the instruction that is being run makes, or over what calls make of that (as in
    ``enumerate(zip(x, y))``): where it asks for its next item."""
    frame = vm.frames[-1]
    ops, at = frame.code.ops, frame.pc
    if ops[at - 1] != "GET_ITER":
        while ops[at] in CALLS:
            at += 1
        at += 1
    return (frame.code, at) if ops[at - 1 : at + 1] == ["GET_ITER", "FOR_ITER"] and vm.base == 1 else None


def refuse_value(vm: Machine, expr: Expr, value: int) -> None:
    """An instruction needs the value of a size. Where it has needed many others, it is not compiled for each."""
    symbols, frame = vm.world.symbols, vm.frames[-1]
    if symbols.may_be_fixed(expr) and symbols.needs_another((frame.code, frame.pc - 1), value):
        refuse_changing(vm, f"the value of {symbols.described(expr)}", loop_over(vm))


def refuse_symbols(vm: Machine, values: object, error: Exception) -> None:
    """Where a native function has failed for the symbols that it was given, and not for what they stand for, the
    program is captured again with numbers in their place (NeedsNumbers); where those are too many it breaks there."""
    if isinstance(error, Written):
        note_written(vm, error.array)
    if not vm.trace.has_symbols or isinstance(error, Unsupported):
        return
    text, symbols, frame, where = str(error), vm.world.symbols, vm.frames[-1], vm.where()
    needed = symbols.behind(found_in(values, torch.SymInt), where) if "SymInt" in text else []
    if not needed and ("SymInt" in text or "symbolic sizes" in text or _is_of_substitute(error)):
        needed = symbols.behind([*found_in(values, torch.SymInt), *found_in(values, TracedTensor)], where)
    if not needed:
        return
    place, known = (frame.code, frame.pc - 1), tuple(value for _, value, _ in needed)
    if symbols.needs_another(place, known):
        refuse_changing(vm, "the value of " + ", ".join(path_of(symbol.source) for symbol, _, _ in needed))
    symbols.history.learnt.needed.setdefault(place, set()).add(known)  # the next capture has no symbols to need
    raise NeedsNumbers(needed, where) from error


def refuse_integer(vm: Machine, expr: Expr) -> None:
    """As `refuse_value`, of an integer that no graph computes: the program is captured again with numbers."""
    symbols, shapes, where = vm.world.symbols, vm.trace.shapes, vm.where()
    value, place = shapes.value(expr), (vm.frames[-1].code, vm.frames[-1].pc - 1)
    refuse_value(vm, expr, value)
    symbols.history.learnt.needed.setdefault(place, set()).add(value)  # the next capture has no symbols to need
    raise NeedsNumbers(symbols.behind([shapes.sym_int(expr)], where), where)


_SUBSTITUTES = "torch._refs", "torch._decomp", "torch._prims"


def _is_of_substitute(error: Exception) -> bool:
    """Whether Python code has raised it that torch has in place of a kernel, for symbols alone: it may be at fault."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(_SUBSTITUTES)


def refuse_float(vm: Machine, name: str, value: float) -> None:
    """As `refuse_value`, of a float."""
    frame = vm.frames[-1]
    if vm.world.symbols.needs_another((frame.code, frame.pc - 1), value):
        refuse_changing(vm, f"the value of {name}")


def refuse_many(vm: Machine, source: Source, value: object, what: str = "the number of items") -> None:
    """A container, or an iterator, has this number of items, or a text on the stack is this one: only so many
    others are compiled for (`SizeHistory.is_crowded`)."""
    if vm.world.symbols.is_one_of_many(source, value):
        refuse_changing(vm, f"{what} of {path_of(source)}")


def refuse_changing(vm: Machine, what: str, loop: Location | None = None) -> None:
    """What the program needs here is different in each call: raises Unsupported in front of the instruction, unless a
    break is an error. Of a loop the body is captured alone: it ends wherever it asks for an item."""
    if break_is_error(vm):
        return
    frame = vm.frames[-1]
    if frame.code.ops[frame.pc - 1] == "FOR_ITER" and vm.base == 1:
        loop = frame.code, frame.pc - 1
    if loop is not None:
        vm.world.symbols.history.learnt.loops.add(loop)
    kind = "size_value" if loop is None else "size_loop"
    reason = f"{what} is needed here, which is another one in each call"
    raise vm.unsupported(reason, kind)


MADE_ARRAYS: Slot[dict[int, tuple[object, Location]]] = Slot(dict)
"""The arrays of constants that NumPy has made for the program, by id, and the calls that have made them."""


def refuse_array(vm: Machine, array: object, *values: object) -> None:
    """Raises Unsupported where a value of the graph is written to an array that NumPy has made of constants."""
    if type(array) is numpy.ndarray and any(map(_is_of_graph, values)) and note_written(vm, array):
        raise vm.unsupported("a value of the graph is written to an array of constants", "numpy_value")


def note_written(vm: Machine, array: object) -> bool:
    """Whether NumPy has made an array of constants, which is written to: when the program is captured again, it is one
    of the graph from the start."""
    base = getattr(array, "base", None)
    made = MADE_ARRAYS.of(vm).get(id(array if base is None else base))
    if made is not None:
        vm.world.symbols.history.learnt.arrays.add(made[1])
    return made is not None


def _is_of_graph(value: object) -> bool:
    if type(value) in (list, tuple):
        return any(map(_is_of_graph, value))  # type: ignore[call-overload]
    return type(value) in _OF_GRAPH or isinstance(value, TracedArray)


_OF_GRAPH = (TracedTensor, TracedFloat, torch.SymInt, torch.SymFloat, torch.SymBool)
_THEIR_BREAKS = ("graph_break", "skip_frame", "step_unsupported")


def is_disabled(function: types.FunctionType) -> str | bool:
    """Whether a function is marked never to be captured, by `disable` or by torch's: the reason, if one was given."""
    mark = own_mark(function, "_bolide_disabled")
    if mark:
        return mark  # type: ignore[no-any-return]
    if own_mark(function, "_torchdynamo_disable"):
        return own_mark(function, "_torchdynamo_disable_msg") or True
    return False


def _breaks_for_torch(vm: Machine, function: types.FunctionType) -> bool:
    """Whether this is a break that the program asks of TorchDynamo. Those that torch's own code asks for, as optimizers
    do, are for the sake of its later stages."""
    if function.__module__ != "torch._dynamo.decorators" or function.__name__ not in _THEIR_BREAKS:
        return False
    return not str(vm.frames[-1].globals.get("__name__")).startswith("torch.")


def skipped_function(function: types.FunctionType) -> object:
    """The function that ``disable(function, recursive=False)`` was made of: its frame is run for real, what it calls
    is captured. None for any other."""
    return function.__wrapped__ if own_mark(function, "_bolide_disabled_recursive") is False else None  # type: ignore[attr-defined]


def refuse_disabled(vm: Machine, function: types.FunctionType) -> None:
    """Raises Unsupported for a function that is never captured."""
    mark = is_disabled(function) or _breaks_for_torch(vm, function)
    if mark:
        name = f"{function.__qualname__}(...)"
        reason = "a function that is never compiled is called" + (f": {mark}" if isinstance(mark, str) else "")
        raise vm.unsupported(reason, "disabled", operation=name)


def waits(vm: Machine, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any] | None) -> bool:
    """Put a call for output off until the graph has run, if the user allows that and what it shows can be kept as it is
    now.
    """
    if function not in config.reorderable_logging_functions:
        return False
    try:
        kept = [_kept(arg) for arg in args]
        named = {key: _kept(value) for key, value in (kwargs or {}).items()}
    except TypeError:
        return False
    vm.later.calls.append((function, kept, named))
    return True


def _kept(value: Any) -> Any:
    """A value that later writes do not reach. Raises TypeError for an object."""
    cls = type(value)
    if cls is TracedTensor:
        return Pictured(value)
    if cls is TracedText:
        return value
    if cls in (list, tuple):
        return cls([_kept(item) for item in value])
    if cls is dict:
        return {key: _kept(item) for key, item in value.items()}
    if cls not in CONSTANT_TYPES:
        raise TypeError
    return value


def supposed(vm: Machine, condition: torch.SymBool) -> bool:
    """Whether a condition on symbols holds; one on data is checked in the graph."""
    vm.trace.where = vm.where()
    return bool(condition.node.env.suppose(condition.node.expr))


# ---- checks of data --------------------------------------------------------------------------------------------------

_LONGEST = 300  # instructions that are looked at for whether they only raise
_MOST_CHECKS = 400  # at one branch: a loop that only raising ends would be captured without an end


def only_raises(code: Code, at: int) -> bool:
    """Whether every way that the program can go from instruction `at` on ends in a ``raise`` statement, soon, or in
    ``torch._assert(False, …)``. (Where that does not raise, the call is made in eager for nothing.)"""
    seen: set[int] = set()
    waiting = [at]
    while waiting:
        at = waiting.pop()
        name = code.ops[at]
        if name == "RAISE_VARARGS" or at in seen or _denies(code, at):
            continue
        operation = UNIFORM[name]
        if operation.goes in ("returns", "raises") or operation.suspends or len(seen) > _LONGEST:
            return False
        seen.add(at)
        waiting += following(code, at)
    return True


def _denies(code: Code, at: int) -> bool:
    """Whether ``_assert(False, …)`` begins at an instruction: what torch has for ``raise`` in traced code."""
    if not code.ops[at].startswith("LOAD_") or "_assert" not in (code.args[at], _name(code.args[at])):
        return False
    at += 1
    while code.ops[at] == "PUSH_NULL":
        at += 1
    return code.ops[at] == "LOAD_CONST" and code.args[at] is False


def _name(arg: object) -> object:
    return arg[0] if type(arg) is tuple and arg else None


def checked(vm: Machine, frame: Frame, condition: object, target: int, wanted: bool) -> bool | None:
    """The truth with which the program goes on at a branch, data deciding, whose other way only raises; None if the
    branch is no such check. The graph looks at the condition. When it fails, the program is run in eager, which raises
    what the user has written, where he has.
    """
    code, at = frame.code, frame.pc
    if not config.rewrite_assert_with_torch_assert or not can_require(vm):
        return None
    checks = _CHECKS.of(vm)
    checks[code, at] = checks.get((code, at), 0) + 1
    if checks[code, at] > _MOST_CHECKS:
        return None
    if only_raises(code, at):
        truth = wanted
    elif only_raises(code, target):
        truth = not wanted
    else:
        return None
    if config.do_not_emit_runtime_asserts and code.args[at] is AssertionError:
        return truth
    if type(condition) is torch.SymBool:
        holds = condition if truth else torch.sym_not(condition)  # type: ignore[no-untyped-call]
        return truth if supposed(vm, holds) else None
    if type(condition) is not TracedTensor or condition.numel() != 1:
        return None
    require(vm, condition if truth else condition.logical_not())
    return truth


def can_require(vm: Machine) -> bool:
    """Whether the graph can look at conditions here: not in a backward pass or in one branch of `torch.cond`."""
    return state.stage != "backend" and type(vm.trace) is Trace


def require(vm: Machine, condition: Any) -> None:
    """In the graph: the call is made in eager unless the condition, one element, is true."""
    vm.trace.where = vm.where()
    data.check_tensor(vm.trace, condition)


def in_optimizer(frame: Frame) -> bool:
    """Whether one of torch's optimizers runs: they compute with step counts and norms, and do nothing else."""
    return bool(frame.globals.get("__name__", "").startswith("torch.optim."))


def compared_number(vm: Machine, frame: Frame, function: Any, args: list[Any]) -> TracedTensor | None:
    """What stands for the number that `function` would read from a tensor (`x.item()`, `int(x)`, …), if all that
    happens to it is to be compared for a check or a branch: a tensor of one element that compares as the number does.
    """
    if type(function) is types.MethodType:
        function, args = function.__func__, [function.__self__, *args]
    if len(args) != 1 or not any(function is each for each in (torch.Tensor.item, int, float, bool)):
        return None  # compared by identity: what is called may have an `==` of its own
    tensor = args[0]
    if type(tensor) is not TracedTensor or tensor.numel() != 1 or tensor.is_complex():
        return None
    if vm.trace.captures_numbers or vm.trace.known(tensor) is not None or in_optimizer(frame):
        return None
    at = _decided_by(frame.code, frame.pc)
    if at is None:
        return None
    code = frame.code
    is_check = can_require(vm) and (only_raises(code, at + 1) or only_raises(code, code.args[at]))
    if not is_check and (not can_fork(vm, code, at) or vm.trace.read(tensor) is not None):
        return None
    tensor = tensor.detach().reshape(())
    if function is bool:
        return tensor != 0  # type: ignore[return-value]
    if tensor.dtype.itemsize == 8 and not tensor.is_floating_point() and function is not float:
        if not can_require(vm):
            return None
        require(vm, (tensor < _EXACT) & (tensor > -_EXACT))
    elif tensor.is_floating_point() and function is int:
        return None
    return tensor.double()  # type: ignore[return-value]


_EXACT = 2**53  # whole numbers below are float64s, which compare with Python's numbers as they do


def can_fork(vm: Machine, code: Code, at: int) -> bool:
    """Whether the branch at an instruction may become one of the graph."""
    known = vm.world.symbols.history.learnt.apart
    return config.capture_branches and bool(joins_of(code, at)) and (code, at) not in known


def _decided_by(code: Code, at: int) -> int | None:
    """The branch that is decided by what is on top of the stack in front of instruction `at`, if that is only compared,
    with something that is loaded.
    """
    above, compared = 0, False  # how many values are above it
    while UNIFORM[code.ops[at]].goes != "branches":
        name, arg = code.ops[at], code.args[at]
        taken, given = UNIFORM[name].taken(arg), UNIFORM[name].given(arg)
        if name == "COMPARE_OP" and above == 1 and not compared:
            above, compared = 0, True
        elif name in _COMPUTING and above >= taken and not (name == "LOAD_GLOBAL" and given > 1):
            above += given - taken
        else:
            return None
        at += 1
    return None if above or UNIFORM[code.ops[at]].asks != "numbers" else at


_COMPUTING = frozenset(
    {
        *("BINARY_OP", "COMPARE_OP", "CALL", "LOAD_ATTR", "LOAD_METHOD"),
        *("LOAD_FAST", "LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "PUSH_NULL"),
    }
)
"""What may compute the value that something is compared with."""
