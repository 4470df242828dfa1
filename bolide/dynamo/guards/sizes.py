"""Which sizes and integers of a program are symbolic, and where their values are read at run time.

A size is fixed in the first compiled version. When a later call brings another value at the same place, the next
version has a symbol there, which serves every value from then on. Places whose values were equal in every capture so
far share one symbol.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.config import config
from bolide.dynamo.guards.texts import size_source, stride_source
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Captured, Guard, Relation, Source, Symbol
from bolide.support import events, log
from bolide.support.errors import ConstraintError, Unsupported, UserFrame
from bolide.symbolic import Expr, gaps, symbolic_strides, times
from bolide.tracing import Trace, TracedTensor

_log = log.logger("dynamo")
Values = tuple[Any, ...]  # the sizes of a tensor, or an integer, a float, a container or the data of a tensor alone
Place = tuple[Source, int | None]  # a dimension of a tensor (from the end: its stride), or an integer
Bounds = tuple[int | None, int | None]
_MARKS = "_bolide_sizes"
_STRIDE = torch.Tensor.stride
_THEIR_MARKS = {
    "_dynamo_propagated_dynamic_indices": "maybe",
    "_dynamo_weak_dynamic_indices": "maybe",
    "_dynamo_dynamic_indices": "dynamic",
    "_dynamo_unbacked_indices": "unbacked",
    "_dynamo_strict_unbacked_indices": "unbacked",
    "_dynamo_static_indices": "static",
}
"""The attributes in which TorchDynamo keeps its marks."""
_NEEDED = "the program needs its value"
_SPECIAL = (
    "a size of 0 or 1 is compiled for itself, for broadcasting and layouts depend on it; with mark_unbacked one "
    "version serves all sizes"
)
_SEVERAL = 3  # bools that change are more than there are versions for
_REGISTERED = ("_parameters", "_buffers")


# ---- marks of the user's ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """What a user said of one dimension of a tensor."""

    kind: str  # "dynamic" or "unbacked" (an error if it cannot be), "maybe" (symbolic if possible) or "static"
    lo: int | None = None
    hi: int | None = None
    shape_id: object = None  # sizes of one name and value are one


_UNMARKED = Mark("")


def marks_of(tensor: torch.Tensor) -> Mapping[int, Mark]:
    """The marked dimensions of a tensor; also of one that was marked for TorchDynamo."""
    theirs = {dim: Mark(kind) for name, kind in _THEIR_MARKS.items() for dim in getattr(tensor, name, ())}
    bounds, names = getattr(tensor, "_dynamo_unbacked_bounds", {}), getattr(tensor, "_dynamo_shape_ids", {})
    for dim, mark in theirs.items():
        if mark.kind == "unbacked":
            lo, hi = bounds.get(dim, (None, None))
            theirs[dim] = Mark("unbacked", lo, hi, names.get(dim))
    for known in getattr(tensor, "_dynamo_dynamic_range", ()):
        theirs[known.dim] = Mark("dynamic", known.min, known.max)
    own: Mapping[int, Mark] = getattr(tensor, _MARKS, None) or {}
    return {**theirs, **own}


def mark(tensor: torch.Tensor, dims: Any, mark: Mark) -> None:
    """Mark these dimensions (an int, or several). Raises what `mark_dynamic` does."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(tensor).__name__}")
    marks = dict(marks_of(tensor))
    for dim in (dims,) if isinstance(dims, int) else dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions cannot be marked")
        dim %= tensor.dim()
        size = tensor.shape[dim]
        if (mark.lo is not None and size < mark.lo) or (mark.hi is not None and size > mark.hi):
            raise ValueError(f"dimension {dim} has size {size}, outside of min={mark.lo}, max={mark.hi}")
        marks[dim] = mark
    setattr(tensor, _MARKS, marks)


def mark_dynamic(
    t: torch.Tensor,
    index: object,
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: Sequence[object] | None = None,
) -> None:
    """The sizes of these dimensions (an int, or several) differ between calls, within min..max: they are symbolic from
    the first compilation on.

    A program that only works for one size of such a dimension is an error, which names the line and the reason.
    `hint_override` and `specialize_on`, which tell PyTorch's compiler what to tune kernels for, change nothing.
    Raises IndexError for a dimension that is not there, ValueError for a size outside of the bounds."""
    mark(t, index, Mark("dynamic", min, max))


def maybe_mark_dynamic(t: torch.Tensor, index: object) -> None:
    """As `mark_dynamic`, but a program that only works for one size gets that size fixed."""
    mark(t, index, Mark("maybe"))


def mark_static(t: torch.Tensor, index: object = None) -> None:
    """These dimensions (None: all) are never symbolic: each size is compiled for itself."""
    mark(t, range(t.dim()) if index is None else index, Mark("static"))


def mark_unbacked(
    t: torch.Tensor,
    index: object,
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: Sequence[object] | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """As `mark_dynamic`, and one compiled version serves all sizes, 0 and 1 as well: nothing is assumed of the size but
    what the program checks (`torch._check`), and `min` and `max`. A branch that depends on it is a ConstraintError,
    which names the line, whether `strict` or not. Sizes with the same `shape_id` are known to be equal."""
    mark(t, index, Mark("unbacked", min, max, shape_id))


def mark_static_address(t: torch.Tensor, guard: bool = True) -> None:
    """The tensor's memory stays where it is from call to call. Nothing follows from that on the CPU: compiled code
    reads the address of every tensor at every call."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(t).__name__}")


# ---- what is remembered between captures ----------------------------------------------------------------------------


Location = tuple[Code, int]
Needed = list[tuple[Symbol, int, UserFrame | None]]  # symbols, what they are now, and the line that needs to know


class NeedsNumbers(Unsupported):
    """A native function can do nothing with symbols: the program is captured again with numbers in their place."""

    def __init__(self, needed: Needed, where: UserFrame | None) -> None:
        super().__init__("a native function needs numbers where it is given symbols", where, kind="size_value")
        self.needed = needed


@dataclass
class Learnt:
    """What all points of a function know."""

    loops: set[Location] = field(default_factory=set)  # whose length differs, by where each asks for its next item
    needed: dict[Location, set[object]] = field(default_factory=dict)  # sizes and floats that instructions needed
    crowded: bool = False  # so many versions were made that none is made for one more value (`is_crowded`)
    count: object = None  # of items, that was one too many: where the program goes on, too
    data: set[Source] = field(default_factory=set)  # read of inputs' data, and other data in another capture
    recent: frozenset[object] = frozenset()  # values of symbols and texts of the last version: at the next points, too
    warned: set[object] = field(default_factory=set)  # the warnings that have been shown
    apart: dict[Location, str] = field(default_factory=dict)  # branches on data that no graph can make, and why
    raised: set[object] = field(default_factory=set)  # the lines where the program has raised exceptions
    arrays: set[Location] = field(default_factory=set)  # the calls that make arrays to which the graph writes
    joined: bool = False  # a tensor that is found at two places is one input, also where it was two tensors before

    @property
    def lessons(self) -> int:
        """How many reasons there were to capture again from the start."""
        return len(self.apart) + len(self.arrays) + self.joined


class SizeHistory:
    """The sizes and integers that one place of a program has met in its captures, and what it was told about them.

    dynamic: True: all are symbolic from the start; False: none ever; None: those that change. reads_data: whether a
    version may be made for the data of its inputs. place: of the program."""

    def __init__(
        self, name: str = "", dynamic: bool | None = None, reads_data: bool = True, place: UserFrame | None = None
    ) -> None:
        self.name, self.place = name, place
        self.dynamic = dynamic
        self.reads_data = reads_data
        self.captures: list[dict[Source, Values]] = []
        self.fixed: dict[Place, set[float]] = {}  # the values that the program needed to know
        self.many: set[Source] = set()  # containers whose number of items was one too many
        self.symbolic: set[Place] = set()  # the places that were symbols by themselves: they stay that
        self.marked: Callable[[Source], str | None] | None = None  # the kind of mark of an integer (`Mark`)
        self.told: set[tuple[Source, float, str]] = set()
        self.learnt = Learnt()
        self.reads_anew = False  # whether data that has changed is read as well
        self.left_unread = False  # whether the last capture has met such data
        self.undecided = False  # whether it has met bools that the graph is to decide by (`is_flag`)
        self.versions = 0  # how many the place has already, under the present modes
        self.data_symbols = True  # whether data may become symbols where the configuration leaves it open
        self.met_data = False  # whether it has, in the last attempt
        self.functions: dict[Source, tuple[types.CodeType, weakref.ref[types.FunctionType]]] = {}  # first found there
        self.opaque: dict[object, str] = {}  # derivatives that cannot be recorded, but called when the backward runs
        self.called_for_real: dict[object, str] = {}  # what a capture must not go into, and why

    def underivable(self, key: object, reason: str) -> None:
        """Note that the derivative at `key` cannot be recorded; or, when that is known, that it cannot be called in the
        backward either: then the operation is called for real."""
        known = self.called_for_real if key in self.opaque else self.opaque
        known[key] = reason

    def is_made_anew(self, function: types.FunctionType, source: Source) -> bool:
        """Whether an earlier capture has found another function there that was made of the same code."""
        code, first = self.functions.setdefault(source, (function.__code__, weakref.ref(function)))
        return code is function.__code__ and first() is not function

    def past(self, source: Source, rank: int) -> list[Values | None]:
        """The values met at a place, one for each earlier capture; None where it was not read or had another rank."""
        earlier = [capture.get(source) for capture in self.captures]
        return [values if values is not None and len(values) == rank else None for values in earlier]

    def changing_bools(self) -> set[Source]:
        """Where captures have met True and False. Attributes of one name that were equal in several objects at every
        capture, as `training`, are left out: they are one mode of the program, which has two versions."""
        met: dict[Source, dict[int, bool]] = {}
        for number, capture in enumerate(self.captures):
            for source, values in capture.items():
                if len(values) == 1 and type(values[0]) is bool:
                    met.setdefault(source, {})[number] = values[0]
        changing = {source: truths for source, truths in met.items() if len(set(truths.values())) > 1}
        of_name: dict[object, list[dict[int, bool]]] = {}
        for source, truths in changing.items():
            if source.kind != "item" and not _is_argument(source):
                of_name.setdefault(source.key, []).append(truths)
        modes = {name for name, each in of_name.items() if len(each) > 1 and _agree(each)}
        return {source for source in changing if _is_argument(source) or source.key not in modes}

    def is_crowded(self) -> bool:
        """Whether so many versions were made that no more are made for single values: the other half of what the limit
        allows is left to what has to be compiled for. Points behind a break for that reason make no more either."""
        self.learnt.crowded |= self.versions >= max(config.cache_size_limit // 2, 2)
        return self.learnt.crowded

    def is_fixed(self, place: Place, value: float) -> bool:
        """Whether a capture with a symbol there would be for nothing: the program has needed this very value before."""
        return value in self.fixed.get(place, ())

    def fix(self, needed: Needed) -> bool:
        """Note the symbols whose very value a program needs: they are numbers from here on. Whether there are any.

        Raises ConstraintError for a dimension that was marked dynamic."""
        for symbol, value, where in needed:
            for place in symbol.places:
                self.fixed.setdefault(place, set()).add(value)
            what = sources.text(symbol.source)
            if symbol.marked and value > 1 and not config.allow_ignore_mark_dynamic:
                raise ConstraintError(what, value, where)
            self.tell(symbol.source, value, where)
        return bool(needed)

    def fix_all(self, captured: Captured) -> bool:
        """Note that all symbols of a program have to be numbers of this call. False if there are none that can be."""
        symbols = captured.sizes
        hints = captured.trace.shapes.hints
        if not symbols or any(symbol.marked and not config.allow_ignore_mark_dynamic for symbol in symbols):
            return False
        return self.fix([(symbol, hints[symbol.name], None) for symbol in symbols])

    def tell(self, source: Source, value: float, where: UserFrame | None, why: str = _NEEDED) -> None:
        """Log, once, that a number is fixed, and why, or because of which line."""
        if (source, value, why) in self.told:
            return
        self.told.add((source, value, why))
        what, place = sources.text(source), where or self.place
        _log.info("%s: %s is fixed at %s: %s (%s)", self.name, what, value, why, place)
        if events.subscribers:
            events.emit(events.Specialised(self.name, what, str(value), why, place))


class Symbols:
    """The symbols of one capture, in the order of `Trace.sizes`."""

    def __init__(self, history: SizeHistory, trace: Trace) -> None:
        self.history, self.trace = history, trace
        self.met: dict[Source, Values] = {}
        self.all: list[Symbol] = []
        self.needed: dict[Location, set[object]] = {}
        self.fixed_because: list[tuple[Source, float, str]] = []  # what might have been symbolic, and why it is not
        self.texts: set[str] = set()  # from outside, that are not guarded as they are
        self._shared: dict[object, object] = {}
        self._changing: set[Source] | None = None  # bools that were not the same in all captures
        self._spreading: dict[Source, bool] = {}  # of containers: whether more of their numbers change than before
        self._unbacked: dict[str, object] = {}  # by the names of symbols: what their marks say of which are equal

    def done(self) -> list[Symbol]:
        """Note in the history what this capture has met and needed; its symbols."""
        learnt = self.history.learnt
        self.history.captures.append(self.met)
        self.history.symbolic.update(place for symbol in self.all if not symbol.marked for place in symbol.places)
        for place, values in self.needed.items():
            learnt.needed.setdefault(place, set()).update(values)
        for source, value, why in self.fixed_because:
            self.history.tell(source, value, None, why)
        learnt.recent = frozenset([*(self.trace.shapes.hints[symbol.name] for symbol in self.all), *self.texts])
        return self.all

    def of_tensor(self, source: Source, tensor: torch.Tensor, name: str) -> dict[int, Any]:
        """The dimensions of an input that are symbolic, with their sizes."""
        marks = marks_of(tensor)
        values = self.met[source] = tuple(tensor.shape)
        history = self.history
        past = history.past(source, len(values))
        why = self._why_fixed(tensor, source, past)
        fixed = history.dynamic is False or (not marks and why is not None)
        symbolic = {}
        for dim, value in enumerate(values):
            mark, place = marks.get(dim, _UNMARKED), size_source(source, dim)
            old = [sizes and sizes[dim] for sizes in past]
            if fixed:
                self._stays(place, value, old, why)
                continue
            if mark.kind == "static" or history.is_fixed((source, dim), value):
                self._stays(place, value, old, "it is marked static" if mark.kind else None)
                continue
            if mark is _UNMARKED and (source, dim) not in history.symbolic and not self._changes(value, old):
                continue
            bounds = max(mark.lo or 0, 0 if mark.kind == "unbacked" else 2), mark.hi
            marked = mark.kind in ("dynamic", "unbacked")
            key: object = (value, *old, marked, bounds)
            if mark.shape_id is not None:
                key = (_UNMARKED, mark.shape_id, value, bounds)
            elif mark.kind == "unbacked":
                key = (source, dim)
            called = f"{name}_size{dim}"
            size = self._symbol((source, dim), place, value, key, called, bounds, marked)
            if isinstance(size, torch.SymInt):
                symbolic[dim] = size
                if mark.kind == "unbacked":
                    self.trace.shapes.mark_unbacked(size)
                    self._unbacked[size.node.expr.text()] = mark.shape_id
            else:
                outside = f"it is outside of the bounds that were marked, {mark.lo} to {mark.hi}"
                self.fixed_because.append((place, value, _SPECIAL if value < 2 else outside))
        return symbolic

    def strides_of(
        self, source: Source, tensor: torch.Tensor, name: str, sizes: Mapping[int, torch.SymInt]
    ) -> dict[int, int | torch.SymInt]:
        """The strides of an input that are symbolic, of those that change: those of dimensions of size 1, as of the
        rows of what `nonzero` answers (no layout depends on them), and those that leave a gap, as of a part of a larger
        tensor. That there is a gap is guarded, so that the layout is the same for all values of the symbols."""
        if self.history.dynamic is False or not tensor.numel():
            return {}
        shape, stride = tuple(tensor.shape), tensor.stride()
        inside = gaps(shape, stride)
        if 1 not in shape and not inside:
            return {}
        met = Source("apply", source, (), _STRIDE)
        self.met[met] = tuple(step if dim in inside or shape[dim] == 1 else None for dim, step in enumerate(stride))
        past = self.history.past(met, len(stride))
        symbolic: dict[int, int | torch.SymInt] = {}
        for dim, step in enumerate(stride):
            old = [None if known is None else known[dim] for known in past]
            place = source, ~dim
            if self.met[met][dim] is None or self.history.is_fixed(place, step):
                continue
            if self._changes(step, old, eager=False):
                read = stride_source(source, dim)
                lo, key = (2, (_STRIDE, step, *old)) if dim in inside else (None, place)
                symbolic[dim] = self._symbol(place, read, step, key, f"{name}_stride{dim}", (lo, None))
        if symbolic:
            whole = tuple(sizes.get(dim, size) for dim, size in enumerate(shape))
            steps = symbolic_strides(whole, stride, shape, symbolic)
            for outer in symbolic.keys() & inside.keys():
                inner = inside[outer]
                if inner is not None:
                    bool(steps[outer] > times(steps[inner], whole[inner]))  # a guard
        return symbolic

    def of_int(self, source: Source, value: int, name: str) -> int | torch.SymInt:
        """An integer from outside: a symbol if it changes, else itself."""
        mark = self.history.marked and self.history.marked(source)
        if mark is not None and not self.history.is_fixed((source, None), value):
            return self.integer(source, value, name, mark == "dynamic")
        fixed_by = "specialize_int" if config.specialize_int else None
        return self.integer(source, value, name) if self._changes_number(source, value, fixed_by) else value

    def integer(self, source: Source, value: int, name: str, marked: bool = False) -> torch.SymInt:
        """The symbol for an integer of any value."""
        symbol: torch.SymInt = self._symbol((source, None), source, value, source, name, (None, None), marked)
        self.trace.shapes.numbers |= symbol.node.expr.free_vars
        return symbol

    def changes_float(self, source: Source, value: float) -> bool:
        """Whether a float from outside becomes a number of the graph."""
        return self._changes_number(source, value, "specialize_float" if config.specialize_float else None)

    def _changes_number(self, source: Source, value: float, fixed_by: str | None) -> bool:
        """Whether a number from outside is a symbol. `fixed_by`: the option that is on, by which it stays a number."""
        self.met[source] = (value,)
        old = [values and values[0] for values in self.history.past(source, 1)]
        if fixed_by is not None or self.history.dynamic is False or self.history.is_fixed((source, None), value):
            self._stays(source, value, old, f"{fixed_by} is on" if fixed_by is not None else self._why_none())
            return False
        if (source, None) in self.history.symbolic or self._changes(value, old, _is_argument(source)):
            return True
        return config.automatic_dynamic_shapes and source.kind == "item" and self._spreads(source.base)

    def _spreads(self, container: Source | None) -> bool:
        """Whether numbers change in a container, or in one around it, that had stayed when others did: then all may."""
        if container is None:
            return False
        if container not in self._spreading:
            place = Source("attr", container, None)
            met = [values for (values,) in filter(None, (*self.history.past(place, 1), self.met.get(place)))]
            changed = [{i for i, (old, new) in enumerate(zip(met[0], each)) if old != new} for each in met[1:]]
            least = next(filter(None, changed), set())
            around = container.base if container.kind == "item" else None
            self._spreading[container] = any(not each <= least for each in changed) or self._spreads(around)
        return self._spreading[container]

    def is_flag(self, source: Source, value: bool) -> bool:
        """Whether a bool from outside is one of several that change from call to call, and versions for their
        combinations are too many: the graph decides by them."""
        self.met[source] = (value,)
        history = self.history
        if history.dynamic is False or not history.is_crowded():
            return False
        if self._changing is None:
            self._changing = history.changing_bools()
        if len(self._changing) < _SEVERAL:
            return False
        changes = source in self._changing
        if _is_argument(source) or source.kind == "item":
            changes |= any((not value,) == old for old in history.past(source, 1))
        if not changes and _family(source) not in map(_family, self._changing):
            return False
        history.undecided = True
        return not history.reads_anew

    def has_stayed(self, source: Source, value: object) -> bool:
        """Whether what a program reads at a place has been the same in every capture that looked at it, or is read
        nevertheless. What is known of loops and data is shared by all points of a function."""
        self.met[source] = (value,)
        if any(old is not None and old != (value,) for old in self.history.past(source, 1)):
            self.history.learnt.data.add(source)
        changes = source in self.history.learnt.data
        self.history.left_unread |= changes
        return not changes or self.history.reads_anew

    def comes_apart(self, source: Source, first: Source) -> bool:
        """Whether the tensor at a place, found at `first` before, was another one than that in an earlier capture."""
        place = Source("apply", source, (), id)
        self.met[place] = (first,)
        captures = [] if self.history.learnt.joined else self.history.captures
        return any(source in met or met.get(place, (first,)) != (first,) for met in captures)

    def may_be_fixed(self, expr: Expr) -> bool:
        """Whether an expression is over sizes from outside, none of which has to stay symbolic by the user's will."""
        return expr.free_vars <= {symbol.name for symbol in self.all if not symbol.marked}

    def needs_another(self, place: Location, value: object) -> bool:
        """Note that an instruction needs this value; whether it has needed others in earlier captures, too many to
        compile for each."""
        self.needed.setdefault(place, set()).add(value)
        others = self.history.learnt.needed.get(place, set()) - {value}
        return bool(others) and self.history.is_crowded()

    def described(self, expr: Expr) -> str:
        """An expression over sizes as the user would write it."""
        return sources.with_symbols(expr.text(), {symbol.name: sources.text(symbol.source) for symbol in self.all})

    def is_one_of_many(self, source: Source, value: object) -> bool:
        """Whether a container, or an iterator, has had other numbers of items before and never this one, or a text was
        others, and there are too many to compile for each. Where the program goes on after that it is so as well of
        what has that many items there."""
        place = Source("apply", source, (), len)
        self.met[place] = (value,)
        past = {old[0] for old in self.history.past(place, 1) if old is not None}
        learnt, many = self.history.learnt, self.history.many
        changes = value not in past and len(past) > 1
        changes |= source in many or (not past and value == learnt.count)
        if not changes or self.history.dynamic is False or not self.history.is_crowded():
            return False
        many.add(source)
        learnt.count = value
        return True

    def is_changing(self, source: Source, text: str, early: bool) -> bool:
        """Whether a text is another one from call to call: the second other one tells, or (`early`) the first."""
        place = Source("apply", source, (), str)
        self.met[place] = (text,)
        past = {old[0] for old in self.history.past(place, 1) if old is not None}
        changes = len(past - {text}) > (not early) or (not past and text in self.history.learnt.recent)
        if not changes or self.history.dynamic is False:
            return False
        self.texts.add(text)
        return True

    def changes_as_whole(self, source: Source, items: tuple[object, ...]) -> bool:
        """Whether a container of constants has been another one in an earlier capture."""
        place = Source("attr", source, None)
        self.met[place] = (items,)
        changes = any(old is not None and old != (items,) for old in self.history.past(place, 1))
        return changes and self.history.dynamic is not False

    def pin(self, source: Source, value: float, where: UserFrame | None) -> None:
        """Note that the program needs the value of a float that is a number of the graph."""
        known = self.history.fixed.setdefault((source, None), set())
        if value not in known:
            known.add(value)
            self.history.tell(source, value, where)

    def is_settled(self, source: Source, value: Any) -> bool:
        """Whether a container of constants has been the same in every capture so far, so that it may be guarded as a
        whole. With dynamic=True the integers in an argument are symbols from the start, as those beside it; some may be
        where there are marks."""
        may_be_symbols = self.history.dynamic or self.history.marked is not None
        if self._meet_items(source, value) and may_be_symbols and _is_argument(source):
            return False
        past = self.history.past(Source("attr", source, None), 1)
        return all(old is None or old[0] == tuple(value) for old in past)

    def _meet_items(self, source: Source, value: Any) -> bool:
        """Note a container and the numbers in it; whether there are any."""
        self.met[Source("attr", source, None)] = (tuple(value),)
        met = [self._meet(Source("item", source, place), item) for place, item in enumerate(value)]
        return any(met)

    def _meet(self, source: Source, value: object) -> bool:
        if type(value) is int or type(value) is float:
            self.met[source] = (value,)
            return True
        if type(value) is slice:
            bounds = ("start", value.start), ("stop", value.stop), ("step", value.step)
            met = [self._meet(Source("attr", source, name), bound) for name, bound in bounds]
            return any(met)
        return type(value) in (tuple, torch.Size) and self._meet_items(source, value)

    def _why_none(self) -> str | None:
        """Why nothing at all is symbolic."""
        return "it is compiled with dynamic=False" if self.history.dynamic is False else None

    def _why_fixed(self, tensor: torch.Tensor, source: Source, past: Sequence[Values | None]) -> str | None:
        """Why no size of a tensor is symbolic. Those of a buffer may be once they have changed: a table may grow with
        the longest sequence."""
        if not config.automatic_dynamic_shapes and self.history.dynamic is None and config.assume_static_by_default:
            return "automatic_dynamic_shapes is off"
        if config.force_parameter_static_shapes and isinstance(tensor, torch.nn.Parameter):
            return "it is a parameter's (force_parameter_static_shapes)"
        registered = source.kind == "dict_value" and source.base is not None and source.base.key in _REGISTERED
        steady = all(old in (None, tuple(tensor.shape)) for old in past)
        if registered and config.force_nn_module_property_static_shapes and steady:
            return "a module holds the tensor (force_nn_module_property_static_shapes)"
        return self._why_none()

    def _stays(self, source: Source, value: float, past: Sequence[object], why: str | None) -> None:
        """Note why a number is fixed that has been another one before."""
        if why is not None and any(old is not None and old != value for old in past):
            self.fixed_because.append((source, value, why))

    def _changes(self, value: float, past: Sequence[object], eager: bool = True) -> bool:
        """Whether there have been other values, or this is that of a symbol in front of the first break; if asked for
        (and for what is `eager`), one is enough."""
        if eager and (self.history.dynamic or not config.assume_static_by_default):
            return True
        known = [old for old in past if old is not None]
        return config.automatic_dynamic_shapes and (
            any(old != value for old in known) or (not known and value in self.history.learnt.recent)
        )

    def _symbol(
        self, place: Place, source: Source, value: int, key: object, name: str, bounds: Bounds, marked: bool = False
    ) -> Any:
        """A new symbol, or the one with this key."""
        size = self._shared.get(key)
        if size is None:
            size = self.trace.size(value, name, *bounds)
            if isinstance(size, torch.SymInt):
                self._shared[key] = size
                self.all.append(Symbol(size.node.expr.text(), source, [], marked))
        if isinstance(size, torch.SymInt):
            known = next(other for other in self.all if other.name == size.node.expr.text())
            known.places.append(place)
        return size

    def behind(self, values: Iterable[object], where: UserFrame | None) -> Needed:
        """The symbols that numbers, and the sizes and strides of traced tensors, are made of."""
        names: set[str] = set()
        for value in values:
            facts = (*value.known.shape, *value.known.stride) if isinstance(value, TracedTensor) else (value,)
            names.update(*(fact.node.expr.free_vars for fact in facts if type(fact) is torch.SymInt))
        hints = self.trace.shapes.hints
        return [(symbol, hints[symbol.name], where) for symbol in self.all if symbol.name in names]

    def check(self) -> None:
        """Raises ConstraintError where the program asked something of a size that was marked unbacked."""
        if self.trace.shapes.violation is not None:
            name, condition, where = self.trace.shapes.violation
            source = next(symbol.source for symbol in self.all if symbol.name == name)
            what = sources.text(source)
            raise ConstraintError(what, condition.replace(name, what), where, shape_id=self._unbacked[name])

    def read_by(self, expressions: Iterable[int | Expr]) -> tuple[tuple[str, Source], ...]:
        """The symbols in these sizes and where each is read, sorted by name."""
        names = set().union(*(e.free_vars for e in expressions if isinstance(e, Expr)))
        return tuple(sorted((s.name, s.source) for s in self.all if s.name in names))


def _is_argument(source: Source) -> bool:
    """Whether a value is given to the program, directly or in a container, rather than kept by an object."""
    return source.kind == "local" or (
        source.kind in ("item", "dict_value") and source.base is not None and _is_argument(source.base)
    )


def _family(source: Source) -> object:
    """What one bool that changes says of others: that all items of its container may, or all attributes of its name."""
    if source.kind == "item":
        return source.base
    return source if _is_argument(source) else source.key


def _agree(each: list[dict[int, bool]]) -> bool:
    """Whether truths, by captures, are equal wherever several were met."""
    met: dict[int, bool] = {}
    return all(met.setdefault(number, truth) == truth for truths in each for number, truth in truths.items())


def as_exprs(sizes: Iterable[Any]) -> tuple[int | Expr, ...]:
    """Sizes of a traced tensor as data."""
    return tuple(size if type(size) is int else size.node.expr for size in sizes)


# ---- after a capture -------------------------------------------------------------------------------------------------


def shape_guards(captured: Captured) -> list[Guard]:
    """What was assumed of the symbols of a program so far, as guards."""
    shapes, guards = captured.trace.shapes, []
    for condition, where in shapes.guards.items():
        needed = tuple((s.name, s.source) for s in captured.sizes if s.name in condition.free_vars)
        guards.append(Guard(None, "relation", Relation(condition.text(), needed), where))
    for symbol in captured.sizes:
        if (room := shapes.rooms.get(symbol.name)) is not None:
            within = Relation(f"-{room} <= {symbol.name} <= {room}", ((symbol.name, symbol.source),))
            guards.append(Guard(None, "relation", within))
    return guards


def specialised(captured: Captured) -> Needed:
    """The symbols of which the program needs the very value: value, and the user's line that asked for it."""
    needed = {}
    for condition, where in captured.trace.shapes.guards.items():
        if condition.op == "==" and len(condition.free_vars) == 1:
            (name,) = condition.free_vars
            if condition.expr.coefficient(name) is not None:
                needed[name] = where
    hints = captured.trace.shapes.hints
    return [(symbol, hints[symbol.name], needed[symbol.name]) for symbol in captured.sizes if symbol.name in needed]
