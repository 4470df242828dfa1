"""The native driver of a plan: one function of Python's in machine code."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import torch

from bolide.inductor.codegen.parallel import most_work
from bolide.inductor.ir.loops import CPU
from bolide.inductor.machine import Machine, host_machine
from bolide.inductor.plan import (
    Alloc,
    Block,
    Check,
    Free,
    Launch,
    Plan,
    Require,
    Reuse,
    Size,
    Step,
    View,
    Word,
)
from bolide.inductor.runtime.driver import Binding, Run, build_step, facts_of
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.runtime.native import in_process, instructions, runner, shims
from bolide.inductor.runtime.native.linking import Surroundings, unpacked
from bolide.support.caches import on_reset
from bolide.support.engine import Method, emit, load_own
from bolide.support.native.translate import translate
from bolide.support.symbols import symbol_address

if TYPE_CHECKING:
    from bolide.inductor.runtime.native.assemble import InPython

_PLAIN = (Alloc, Check, Free, Launch, Require, Reuse, Size, View, Word)
_EXTERNALS = {**runner.EXTERNALS, **in_process.EXTERNALS}


@functools.cache
def _method() -> Method:
    """The machine code of all native drivers, which lives as long as the process."""

    def text() -> str:
        sources = [inspect.getsource(module) for module in (runner, in_process)]
        return translate(sources, ("run",), _EXTERNALS, {"ops": instructions})

    return Method("run_plan", load_own("run_plan", text, ("run",)), "run")


@functools.cache
def handle_offset() -> int | None:
    """Where an object of Python's that is a tensor has the address of its TensorImpl, in bytes: that place is the
    ``at::Tensor`` that functions in C take. None where it is not found, or torch has not the functions."""
    needed = [external.symbol for external in _EXTERNALS.values()] + [shim.symbol for shim in shims.ALWAYS]
    if not all(symbol_address(symbol) for symbol in needed):
        return None
    offsets: set[int] = set()
    for example in (torch.empty(3), torch.nn.Parameter(torch.empty(2, 2)), torch.empty(2, dtype=torch.int64)[1:]):
        words = (ctypes.c_int64 * (torch.Tensor.__basicsize__ // 8)).from_address(id(example))
        offsets.add(next((8 * place for place, word in enumerate(words) if word == example._cdata), -1))
    return offsets.pop() if len(offsets) == 1 and -1 not in offsets else None


def build(plan: Plan, binding: Binding, kernels: Sequence[CompiledKernel], fallback: Run) -> Run | None:
    """The function that runs `plan` as `fallback`, its readable driver, does; None where this build of torch does not
    let it."""
    from bolide.inductor.runtime.native.assemble import assemble

    offset = handle_offset()
    if offset is None:
        return None
    addresses = [kernel.address for kernel in kernels]
    python = _in_python(binding)
    program = assemble(plan, addresses, binding.constants, python, fallback, offset, _is_short(plan, host_machine()))
    return _method().bind(program.address, (program, tuple(kernels)))


def written(plan: Plan) -> bytes | None:
    """The program of a plan for `load` in another process, which finds all machine code that it needs but the kernels';
    None where there can be none."""
    from bolide.inductor.runtime.native.assemble import write

    if handle_offset() is None:
        return None
    program, _ = write(plan, lambda block: lambda step, tensors, words: None, _is_short(plan, host_machine()))
    packed = program.packed()
    if packed is not None:
        _method()
        _keep_thunks(program.shims)
    return packed


@functools.cache
def _keep_thunks(needed: tuple[shims.Shim, ...]) -> None:
    """Another process finds their code."""
    emit(shims.thunks_text(needed), "", "")


on_reset(_keep_thunks.cache_clear)


class Planned(Protocol):
    """What a program was made of."""

    @property
    def plan(self) -> Plan: ...

    @property
    def binding(self) -> Binding: ...

    @property
    def readable(self) -> Run: ...


def load(
    data: memoryview,
    kernels: Sequence[int],
    constants: Sequence[torch.Tensor],
    planned: Callable[[], Planned],
    owned: object,
) -> Run | None:
    """The function that runs what `written` has given; None where it cannot. `kernels`: their addresses; `planned` is
    asked where a step has to be made in Python, or the whole; `owned` lives as long."""
    offset = handle_offset()
    if offset is None:
        return None

    @functools.cache
    def steps() -> Sequence[object]:
        from bolide.inductor.runtime.native.assemble import write

        found = planned()
        return write(found.plan, _in_python(found.binding), _is_short(found.plan, host_machine()))[1]

    def step(number: int) -> Callable[..., object]:
        return _Late(lambda: cast(Callable[..., object], steps()[number]))

    fallback = _Late(lambda: planned().readable)
    try:
        program = unpacked(data).linked(Surroundings(kernels, constants, step, fallback, offset))
    except RuntimeError:
        return None
    return _method().bind(program.address, (program, owned))


def _in_python(binding: Binding) -> Callable[[Block], InPython]:
    """Makes the steps of a block in Python, when they are called."""

    def in_python(block: Block) -> InPython:
        facts = facts_of(block, binding.constants)

        def made(step: Step, tensors: Sequence[str], words: Sequence[str]) -> Callable[..., object]:
            return _Late(functools.partial(build_step, block, binding, step, tensors, tuple(words), facts))

        return made

    return in_python


def _is_short(plan: Plan, machine: Machine) -> bool:
    """Whether a plan takes less than a microsecond besides its memory: little work in kernels, and no calls. A launch
    on a GPU may wait for others."""
    if not all(isinstance(step, _PLAIN) for step in plan.steps) or any(kernel.device != CPU for kernel in plan.kernels):
        return False
    works = [most_work(plan.kernels[step.kernel], machine) for step in plan.steps if isinstance(step, Launch)]
    known = [work for work in works if work is not None]
    return known == works and sum(known) < machine.grain // 16


class _Late:
    """A function that is made when it is first called: most steps are never made in Python."""

    def __init__(self, make: Callable[[], Callable[..., object]]) -> None:
        self._make = make
        self._function: Callable[..., object] | None = None

    def __call__(self, *args: object) -> object:
        if self._function is None:
            self._function = self._make()
        return self._function(*args)
