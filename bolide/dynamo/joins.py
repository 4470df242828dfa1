"""Where the two ways of a branch meet again: the immediate post-dominator of the branch in the control flow."""

from __future__ import annotations

import functools
import itertools

from bolide.dynamo.bytecode import Code
from bolide.support.caches import on_reset

END = -1
"""The ways of a branch meet where the function returns."""

_SUSPENDS = frozenset({"YIELD_VALUE", "SEND", "RETURN_GENERATOR"})


def joins_of(code: Code, at: int) -> list[int]:
    """The instructions at which both ways of the branch at `at` arrive, in their order; the last one may be END, the
    function's end. What raises goes no way. Not those behind which a way leads back to the branch, or the function may
    be suspended."""
    found: list[int] = []
    for join in _joins(code).get(at, ()):
        between = _between(code, at, join)
        suspends = any(code.ops[index] in _SUSPENDS for index in between)
        if at in between or suspends or (join == END and "RETURN_GENERATOR" in code.ops):
            break
        found.append(join)
    return found


def following(code: Code, at: int) -> tuple[int, ...]:
    """The instructions that may come after one, exceptions apart."""
    name = code.ops[at]
    if name.startswith("RETURN_") and name != "RETURN_GENERATOR":
        return (END,)
    if name in ("RAISE_VARARGS", "RERAISE"):
        return ()
    if name == "JUMP":
        return (code.args[at],)
    if name in ("FOR_ITER", "SEND") or name.startswith("POP_JUMP"):
        return (code.args[at], at + 1)
    return (at + 1,)


def _between(code: Code, at: int, join: int) -> set[int]:
    """The instructions on the ways from a branch to where they meet."""
    found: set[int] = set()
    waiting = list(following(code, at))
    while waiting:
        index = waiting.pop()
        if index not in (join, END) and index not in found:
            found.add(index)
            waiting += following(code, index)
    return found


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
    found: dict[int, list[int]] = {}
    for at, name in enumerate(code.ops):
        if name.startswith("POP_JUMP") and through[at] != everything:
            places = sorted(_bits(through[at] & ~(1 << at)), key=lambda index: -through[index].bit_count())
            apart = [place for last, place in itertools.pairwise([at, *places]) if _is_split(code, last, count)]
            found[at] = [END if place == count else place for place in apart[:_MOST]]
    return found


def _is_split(code: Code, at: int, count: int) -> bool:
    """Whether there is more than one way from an instruction."""
    return at < count and len(following(code, at)) > 1


def _bits(number: int) -> list[int]:
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found


on_reset(_joins.cache_clear)
