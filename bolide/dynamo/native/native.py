"""The native check: one machine-code function, run over a program of 64-bit words that `pins.py` records.

Such a program is a list of instructions over *slots*: the values of the check's names, then what is unpacked from
them. Each instruction tests something; the first test that fails ends the program.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.dynamo.native.layout import LIST_ITEMS, SIZE, TUPLE_ITEMS, TYPE, Layout, autograd_state, required
from bolide.dynamo.native.native_text import TEXT, expanded
from bolide.support.engine import Method, load

# Instructions, with their operands. An object is given by its address. Those about the values that are passed come
# first: when one of them fails, the guards do not hold. When one of the others fails, they still may.
DONE = 0
TENSOR = 1  # slot, facts
EQUALS = 2  # slot, object of a built-in type: the same, or of the same type and equal
FIELD = 3  # slot, offset, expected word there
TUPLE = 4  # first slot to fill, slot, count: the items of a tuple of that length
LIST = 5  # first slot to fill, slot, count
DICT = 6  # first slot to fill, slot, count, keys: the values of a dict with exactly these keys in this order
ITEM = 7  # slot to fill, slot, key: a value of a dict
FIRST_OF_MEMORY = 8
IS = 8  # slot, object
WORDS = 9  # count, then (address, expected) count times
BITS = 10  # count, then (address, expected, mask) count times
TENSORS = 11  # count, then (object, facts) count times
ATTRIBUTE_IS = 12  # object, name, object
STATE = 13  # keys of autocast (all off), key of transforms (off), autograd's flags, default dtype, determinism
ATTRIBUTE = 14  # slot to fill, object, name: an attribute that is read by native code
APART = 15  # size of a table (a power of two), count, then (slot or -1, object) count times: no memory is shared
ABSENT = 16  # dict, key: it is not in the dict
DATA = 17  # slot or -1, object, bytes of an element, address of data, its bytes: what is in a dense tensor

# What a tensor has to be ("facts"): class, dim, flags, numbers of words and of sizes, then (offset, mask, expected) for
# each word of the TensorImpl, then (offset, expected) for each size and stride.
REQUIRES_GRAD, LEAF, NOT_LEAF, FAR_SIZES = 1, 2, 4, 8

# A program is: how often it has passed, number of slots, a Python function for the rest or null, number of results,
# address of the results, then instructions. A result is (slot, -), (-1, object), or (-2, position in the rest's list).
# A control block is: a Python function to be asked when no program passes, None, number of names, number of programs,
# their addresses.


@functools.cache
def method(layout: Layout) -> Method:
    """The machine code of all checks, loaded once for a process."""
    text = TEXT.format(
        **{name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)},
        type=TYPE,
        size=SIZE,
        tuple_items=TUPLE_ITEMS,
        list_items=LIST_ITEMS,
        impl=layout.impl,
        storage=layout.storage,
        storage_data=layout.storage_data,
        storage_offset=layout.storage_offset,
        dims=layout.dims,
        sizes=layout.sizes,
        metadata=layout.metadata,
        requires_grad=layout.requires_grad,
        grad_fn=layout.grad_fn,
        flags=layout.flags,
        flags_mask=layout.flags_mask,
        far=FAR_SIZES,
        requires=REQUIRES_GRAD,
        leaf=LEAF,
        not_leaf=NOT_LEAF,
    )
    return Method("check", load(expanded(text), ("check",), "", ""), "check")


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
    owned: list[Any] = field(repr=False)

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
    instructions: Sequence[int],
    results: Sequence[tuple[int, int]],
    rest: Callable[..., Any] | None,
    tables: list[array[int]],
    owned: list[Any],
) -> Program:
    """`slots`: how many there are in all; `rest`: is called with the values of all names when everything else fits,
    and answers None or a list, from which results (-2, position) come.
    """
    table = words([part for result in results for part in result])
    header = [0, slots, id(rest) if rest is not None else 0, len(results), address(table)]
    return Program(words([*header, *instructions, DONE, 0]), [*tables, table], [*owned, rest])


def make_check(
    layout: Layout, names: int, programs: Sequence[Program], readable: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of `names` values, which answers what the first program that passes collects, else `readable`'s
    answer.
    """
    control = words([id(readable), id(None), names, len(programs), *(program.address for program in programs)])
    return method(layout).bind(address(control), (control, tuple(programs), readable))
