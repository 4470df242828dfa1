"""The native check as a function of Python's: `machine_code` over programs of 64-bit words that `pins` records."""

from __future__ import annotations

import ctypes
import functools
import inspect
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from bolide.dynamo.native import instructions, machine_code
from bolide.dynamo.native.layout import Layout, autograd_state, required
from bolide.support.artifacts import digest_of
from bolide.support.engine import Method, load_own
from bolide.support.native.translate import translate

Form = Callable[..., list[object] | None]
"""A form of a check: it takes the values of the check's names, and answers what the graph needs, None for a misfit."""


@functools.cache
def method(layout: Layout) -> Method:
    """The machine code of all checks, loaded once for a process."""
    name = f"check {digest_of(repr(layout))}"
    library = load_own(name, functools.partial(text, layout), ("check",))
    return Method("check", library, "check")


def text(layout: Layout) -> str:
    """The machine code of all checks in LLVM's language."""
    constants = {**vars(machine_code), "layout": layout}
    return translate((inspect.getsource(machine_code),), ("check",), machine_code.EXTERNALS, constants)


def thread_state(layout: Layout) -> tuple[int, int, int, int]:
    """What `STATE` compares after autocast's keys, as it is in this thread now."""
    transforms = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode).raw_repr()
    flags = ctypes.c_uint8.from_address(autograd_state() + layout.flags).value & layout.flags_mask
    default = ctypes.CFUNCTYPE(ctypes.c_uint16)(required("_ZN3c1017get_default_dtypeEv"))()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return transforms, flags, default, deterministic | only_warns << 1


@dataclass
class Program:
    """A recorded program in memory. `words` is the whole of it, `tables` what it points to, `owned` the objects whose
    addresses it holds and that must not die.
    """

    words: array[int]
    tables: list[array[int]]
    owned: list[object] = field(repr=False)

    @property
    def address(self) -> int:
        return self.words.buffer_info()[0]

    @property
    def passes(self) -> int:
        """How often it has passed."""
        return self.words[0]


def words(values: Sequence[int]) -> array[int]:
    """64-bit words, of signed or unsigned numbers."""
    return array("q", [value - (1 << 64) if value >= 1 << 63 else value for value in values])


def address(table: array[int]) -> int:
    return table.buffer_info()[0]


def make_program(
    slots: int,
    steps: Sequence[int],
    results: Sequence[tuple[int, int]],
    rest: Form | None,
    tables: list[array[int]],
    owned: list[object],
) -> Program:
    """`slots`: how many there are in all; `rest`: is called with the values of all names when everything else fits,
    and answers None or a list, from which results (-2, position) come.
    """
    table = words([part for result in results for part in result])
    header = [0, slots, id(rest) if rest is not None else 0, len(results), address(table)]
    return Program(words([*header, *steps, instructions.DONE, 0]), [*tables, table], [*owned, rest])


def make_check(layout: Layout, names: int, programs: Sequence[Program], readable: Form) -> Form:
    """A function of `names` values, which answers what the first program that passes collects, else `readable`'s
    answer.
    """
    control = words([id(readable), id(None), names, len(programs), *(program.address for program in programs)])
    return method(layout).bind(address(control), (control, tuple(programs), readable))
