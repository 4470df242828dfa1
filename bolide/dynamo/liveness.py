"""Which local variables are still read after a point of a function: the others are neither saved nor guarded when a
program is continued there.
"""

from __future__ import annotations

import functools

from bolide.dynamo.bytecode import Code
from bolide.support.caches import on_reset

# What may look at any variable of its caller's frame.
_FRAME_READERS = frozenset({"locals", "eval", "exec", "vars", "dir", "_getframe", "currentframe", "stack"})
_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
_ENDS = frozenset({"JUMP", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPING = frozenset({"FOR_ITER", "SEND"})


@functools.lru_cache(1 << 12)
def live_locals(code: Code) -> list[int]:
    """For each instruction, the fast locals that may be read from there on, as a bit set. Cells are always among
    them, and so is everything in functions that mention `locals` and the like.
    """
    always = _always(code)
    count = len(code.ops)
    live = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            found = _before(code, at, live) | always
            if found != live[at]:
                live[at], changed = found, True
    return live[:count]


on_reset(live_locals.cache_clear)


def live_during_call(code: Code, pc: int, other: int | None) -> int:
    """What is live in a frame whose last instruction, in front of `pc`, is a call that has not come back: it may raise,
    and the call of a generator may end at `other`.
    """
    live = live_locals(code)
    bits = live[pc] | (0 if other is None else live[other])
    for entry in code.exceptions:
        if entry.start <= pc - 1 < entry.end:
            bits |= live[entry.target]
    return bits


def _always(code: Code) -> int:
    everything = (1 << len(code.locals_names)) - 1
    names = code.code.co_names
    if not _FRAME_READERS.isdisjoint(names):
        return everything
    variables = len(code.code.co_varnames)
    bits = everything >> variables << variables
    for index, name in enumerate(code.locals_names[:variables]):
        if name in code.cellvars or (index == 0 and "super" in names):
            bits |= 1 << index
    return bits


def _before(code: Code, at: int, live: list[int]) -> int:
    """What is live before instruction `at`, given what is live before the others."""
    name, arg = code.ops[at], code.args[at]
    bits = 0 if name in _ENDS else live[at + 1]
    if name == "JUMP" or name in _JUMPING or name.startswith("POP_JUMP"):
        bits |= live[arg]
    if name == "STORE_FAST":
        bits &= ~(1 << arg)
    elif name in _READS:
        bits |= 1 << arg
    for entry in code.exceptions:
        if entry.start <= at < entry.end:
            bits |= live[entry.target]
    return bits
