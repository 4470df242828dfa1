"""What follows from the control flow of a function: which local variables are still read after a point (the others are
neither saved nor guarded when a program is continued there), and where the two ways of a branch meet again (the
immediate post-dominator of the branch)."""

from __future__ import annotations

import functools
import itertools

from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.support.caches import on_reset

# ---- live variables --------------------------------------------------------------------------------------------------


# What may look at any variable of its caller's frame.
_FRAME_READERS = frozenset({"locals", "eval", "exec", "vars", "dir", "_getframe", "currentframe", "stack"})


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
            read = _before(code, at, live) | always
            if read != live[at]:
                live[at], changed = read, True
    return live[:count]


on_reset(live_locals.cache_clear)


def live_during_call(code: Code, pc: int, other: int | None) -> int:
    """What is live in a frame whose last instruction, in front of `pc`, is a call that has not come back: it may raise,
    and the call of a generator may end at `other`.
    """
    live = live_locals(code)
    bits = live[pc] | (0 if other is None else live[other])
    for row in code.rows_at(pc - 1):
        bits |= live[row.target]
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
    operation, arg = UNIFORM[code.ops[at]], code.args[at]
    bits = 0
    for index in following(code, at):
        bits |= live[index]  # END is the last one
    if operation.local == "writes":
        bits &= ~(1 << arg)
    elif operation.local == "reads":
        bits |= 1 << arg
    for row in code.rows_at(at):
        bits |= live[row.target]
    return bits


# ---- joins -----------------------------------------------------------------------------------------------------------


END = -1
"""The ways of a branch meet where the function returns."""


def joins_of(code: Code, at: int) -> list[int]:
    """The instructions at which both ways of the branch at `at` arrive, in their order; the last one may be END, the
    function's end. What raises goes no way. Not those behind which a way leads back to the branch, or the function may
    be suspended."""
    joins: list[int] = []
    for join in _joins(code).get(at, ()):
        between = _between(code, at, join)
        suspends = any(UNIFORM[code.ops[index]].suspends for index in between)
        if at in between or suspends or (join == END and "RETURN_GENERATOR" in code.ops):
            break
        joins.append(join)
    return joins


def following(code: Code, at: int) -> tuple[int, ...]:
    """The instructions that may come after one, exceptions apart."""
    goes = UNIFORM[code.ops[at]].goes
    if goes == "on":
        return (at + 1,)
    if goes == "raises":
        return ()
    if goes == "returns":
        return (END,)
    return (code.args[at],) if goes == "jumps" else (code.args[at], at + 1)


def _between(code: Code, at: int, join: int) -> set[int]:
    """The instructions on the ways from a branch to where they meet."""
    between: set[int] = set()
    waiting = list(following(code, at))
    while waiting:
        index = waiting.pop()
        if index not in (join, END) and index not in between:
            between.add(index)
            waiting += following(code, index)
    return between


_MOST = 4  # places where ways meet that are tried


@functools.lru_cache(1 << 10)
def _joins(code: Code) -> dict[int, list[int]]:
    """For each branch the first places that all ways from it to the function's end go through, but for those from
    which there is only one way to the next."""
    count = len(code.ops)
    everything = (1 << count + 1) - 1  # bit `count` is the end
    through = [everything] * count + [1 << count]
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            common = everything
            for index in following(code, at):
                common &= through[index]  # END is the last one
            common |= 1 << at if common != everything else 0
            if common != through[at]:
                through[at], changed = common, True
    joins: dict[int, list[int]] = {}
    for at, name in enumerate(code.ops):
        if UNIFORM[name].goes == "branches" and through[at] != everything:
            places = sorted(_bits(through[at] & ~(1 << at)), key=lambda index: -through[index].bit_count())
            apart = [place for last, place in itertools.pairwise([at, *places]) if len(following(code, last)) > 1]
            joins[at] = [END if place == count else place for place in apart[:_MOST]]
    return joins


def _bits(number: int) -> list[int]:
    bits = []
    while number:
        low = number & -number
        bits.append(low.bit_length() - 1)
        number ^= low
    return bits


on_reset(_joins.cache_clear)
