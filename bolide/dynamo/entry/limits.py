"""Which compiled versions count against `cache_size_limit`.

The limit stops a program that would be compiled again and again. Versions of which there can only be a few do not
bring it nearer: those for fixed sizes where another one has symbols, as for sizes of 0 and 1, and those for another
state of torch's modes (training and inference).

A function with breaks has a limit for each of its points, so it may be compiled very often, and what is between the
breaks may be too little to be worth it: whether it is is measured (`Trial`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from bolide.dynamo.program.captured import ClassAttribute, GlobalState, Guard, Relation, Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES, same_constant
from bolide.symbolic import Expr, as_expr


def made_under(versions: Sequence[Sequence[Guard]], now: GlobalState) -> list[Sequence[Guard]]:
    """Those of the versions that were made under these modes."""
    return [guards for guards in versions if all(g.expected == now for g in guards if g.kind == "global_state")]


def counted(own: Sequence[Sequence[Guard]]) -> int:
    """How many of the versions, oldest first, no other one covers."""
    return sum(not any(_replaces(own, j, i) for j in range(len(own)) if j != i) for i in range(len(own)))


def _replaces(versions: Sequence[Sequence[Guard]], one: int, other: int) -> bool:
    """Whether a version counts in the place of another."""
    return covers(versions[one], versions[other]) and (one > other or not covers(versions[other], versions[one]))


def covers(guards: Sequence[Guard], others: Sequence[Guard]) -> bool:
    """Whether `others` ask for the same as `guards`, but for numbers in the place of symbols. (Relations of sizes are
    not looked at: where one differs there is one version too many.)"""
    mine, theirs = ([g for g in side if g.kind != "relation"] for side in (guards, others))
    values: dict[str, object] = {}
    return len(mine) == len(theirs) and all(_covers(a, b, values) for a, b in zip(mine, theirs))


def _covers(guard: Guard, other: Guard, values: dict[str, object]) -> bool:
    mine, theirs = guard.expected, other.expected
    if guard.source != other.source:
        return False
    if guard.kind == "integer" and other.kind == "equals":
        return type(theirs) is int
    if guard.kind != other.kind:
        return False
    if guard.kind != "tensor":
        return same_constant(mine, theirs) if guard.kind == "equals" else _same(mine, theirs)
    kinds = [(t.cls, t.dtype, t.device, t.requires_grad, t.leaf, len(t.shape)) for t in (mine, theirs)]
    if kinds[0] != kinds[1] or not all(_fits(a, b, values) for a, b in zip(mine.shape, theirs.shape)):
        return False
    special = any(isinstance(size, Expr) and value in (0, 1) for size, value in zip(mine.shape, theirs.shape))
    return special or all(_fits(a, b, values) for a, b in zip(mine.stride, theirs.stride))


def _same(mine: object, theirs: object) -> bool:
    """Whether two guards of one kind expect the same. Of what is the program's only constants are compared: comparing
    others may do or raise anything."""
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, ClassAttribute) and isinstance(theirs, ClassAttribute):
        return (mine.name, mine.after) == (theirs.name, theirs.after) and mine.value is theirs.value
    ours = isinstance(mine, (Source, GlobalState, Relation)) or type(mine) in CONSTANT_TYPES
    return mine is theirs or (ours and type(mine) is type(theirs) and bool(mine == theirs))


def _fits(size: int | Expr, value: int | Expr, values: dict[str, Any]) -> bool:
    """Whether a size can have this value (or be 0 or 1 instead), or all those of this expression; a symbol has what it
    is found with first."""
    if not isinstance(size, Expr):
        return bool(size == value)
    (lo, hi), (least, most) = (as_expr(e).bounds() for e in (size, value))
    above = lo is None or value in (0, 1) or (least is not None and least >= lo)
    if not above or (hi is not None and (most is None or most > hi)):
        return False
    for name in size.free_vars - values.keys():
        if size != size.variables()[name]:
            return False
        values[name] = value
    return size.subs(values) == as_expr(value)


_ENOUGH, _LAST = 16, 8  # calls of each sort, and those that are compared: checks are made when they are first needed
_TOO_MANY = 4, 16  # calls that compile, and how often
_MARGIN = 1.25  # times eager: nothing to notice, and more than chance
_LONG = 1e-4  # seconds for a break, which costs a tenth of that
_OTHER = 10, 1e-3  # times what calls have taken, and at least so long: other calls than those that were measured
_FIRST = 2  # calls that are looked at before any is made in eager


class Trial:
    """Calls of a function of which some, by no pattern, are made in eager, to see which are faster. Those that compile
    something are not compared; if there are too many, eager it is. `seconds`: what the others took, in eager and not.
    `misses`: how often calls have compiled something, if they have. `breaks`: those of a call, if they are the reason
    to measure."""

    def __init__(self, breaks: int = 0) -> None:
        self.breaks = breaks
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.misses: list[int] = []
        self._random = random.Random(0)  # a generator of its own: the program sees nothing of it

    def eagerly(self) -> bool:
        """Whether the next call is to be made in eager."""
        return len(self.seconds[False]) >= _FIRST and self._random.random() < 0.5

    def note(self, eagerly: bool, seconds: float, misses: int) -> None:
        """A call has come to its end, for which something was compiled so often."""
        if misses:
            self.misses.append(misses)
        else:
            self.seconds[eagerly].append(seconds)

    @property
    def is_over(self) -> bool:
        """Whether there were enough calls."""
        return self.is_endless or self.is_long or min(map(len, self.seconds.values())) >= _ENOUGH

    @property
    def is_long(self) -> bool:
        """Whether calls take so long that their breaks cost little beside that."""
        first = self.seconds[False][:_FIRST]
        return bool(self.breaks) and len(first) == _FIRST and min(first) > _LONG * self.breaks

    @property
    def is_endless(self) -> bool:
        """Whether calls go on to compile."""
        calls, misses = _TOO_MANY
        return len(self.misses) >= calls and sum(self.misses) >= misses

    @property
    def verdict(self) -> str | None:
        """Why to run in eager from now on, if that is faster."""
        if self.is_endless:
            return f"{len(self.misses)} of the last calls were compiled again, {sum(self.misses)} times"
        if self.is_long:
            return None
        eager, compiled = map(self._usual, (True, False))
        if compiled <= eager * _MARGIN:
            return None
        return f"a call takes {compiled * 1e6:.0f} us, and {eager * 1e6:.0f} us in eager"

    def _usual(self, eagerly: bool) -> float:
        """The median of the last calls."""
        return sorted(self.seconds[eagerly][-_LAST:])[_LAST // 2]

    @property
    def most(self) -> float:
        """How many seconds a call in eager may take for the verdict to hold for it."""
        times, least = _OTHER
        return math.inf if self.is_endless or not self.seconds[True] else max(self._usual(True) * times, least)


def moment() -> float:
    """The time when everything has been done that was asked for, in seconds."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


def drawn() -> tuple[list[int], ...]:
    """How far torch's own generators have been drawn from."""
    with torch._C.DisableTorchFunction():
        states = [torch.get_rng_state()]
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            states += torch.cuda.get_rng_state_all()
        return tuple([state.tolist() for state in states])


def has_derivative(result: object) -> bool:
    """Whether the result of a call is one that a backward pass starts from: what that takes belongs to the call."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in (result, *parts))
