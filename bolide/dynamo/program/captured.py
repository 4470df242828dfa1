"""The data that describes one captured program: where values came from, what was assumed of them, and what has to
happen after the graph ran.

Everything here is immutable, printable and free of behaviour, so that guards can be shown, filtered and compiled, and
recipes replayed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from bolide.symbolic import Expr
from bolide.tracing import Trace, TracedTensor, UserFrame

SourceKind = Literal[
    "local",  # key: parameter name
    "global",  # key: (module dict id, name); `obj` holds the dict
    "closure",  # key: free variable name; `obj` holds the cell
    "object",  # a live Python object held by `obj`, e.g. an imported module
    "attr",  # key: name
    "item",  # key: a constant
    "type",  # type(base)
    "dict_value",  # key: a constant; reads a dict bypassing any `__getitem__` of the user's
    "apply",  # obj(base, *key): a function that changes nothing, and constants
    "member",  # key: name; an item of an instance's `__dict__`, past any `__getattribute__` of its class
    "namespace",  # that `__dict__` itself, in the same way
    "several",  # a tuple of what is at base and at the sources in `key`
    "drawn",  # key: which of `Captured.draws` makes it
]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A path from the compiled function's call to a value of the outside world. Two sources are equal when they are the
    same path: same kinds and keys, the same objects held.
    """

    kind: SourceKind
    base: Source | None
    key: Any
    obj: Any = field(default=None, repr=False)
    is_drawn: bool = field(default=False, init=False, repr=False)  # or made of what a random generator gives
    _hash: int = field(default=0, init=False, repr=False)

    def steps(self) -> Iterator[Source]:
        """The path from its end to its beginning, itself first; the paths of several values one after the other."""
        step: Source | None = self
        others: tuple[Source, ...] = ()
        while step is not None:
            yield step
            others += step.key if step.kind == "several" else ()
            step = step.base
        for other in others:
            yield from other.steps()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.base, self.key, id(self.obj))))
        parts = (self.base, *self.key) if self.kind == "several" else (self.base,)
        if self.kind == "drawn" or any(part is not None and part.is_drawn for part in parts):
            object.__setattr__(self, "is_drawn", True)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Source) or self._hash != other._hash:
            return False
        return (self.kind, self.key) == (other.kind, other.key) and self.obj is other.obj and self.base == other.base


@dataclass(frozen=True)
class TensorGuard:
    """What a captured program assumed of a tensor: its exact class, and everything that dispatch and shape rules
    depend on. Sizes and strides in elements; `symbols` says where each symbol in them is read.
    """

    cls: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    leaf: bool
    shape: tuple[int | Expr, ...]
    stride: tuple[int | Expr, ...]
    symbols: tuple[tuple[str, Source], ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic integer: its name in expressions, where it is read, and whether the user said that it must not be
    fixed. `places`: all that it stands for, dimensions of tensors or (None) integers."""

    name: str
    source: Source
    places: list[tuple[Source, int | None]]
    marked: bool = False


@dataclass(frozen=True)
class Relation:
    """A condition over symbolic sizes or over floats, as Python, and where each of its symbols is read."""

    condition: str
    symbols: tuple[tuple[str, Source], ...]


@dataclass(frozen=True)
class ClassAttribute:
    """What looking up `name` in a class finds, or, with `after`, in the classes behind that one in its resolution
    order. `value`: the very object, unbound; MISSING; PLAIN for a value that is no descriptor, whatever it is.
    """

    name: str
    after: type | None
    value: Any


@dataclass(frozen=True)
class GlobalState:
    """The part of torch's global state that decides what is recorded. `autocast`: per device type in use (type,
    dtype), then whether its cache is on; () when off. `functions`: how many function modes are active.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    default_dtype: torch.dtype
    deterministic: bool
    only_warns: bool
    functions: int = 0

    def __str__(self) -> str:
        casts = ", ".join(f"{device} {str(dtype).removeprefix('torch.')}" for device, dtype in self.autocast)
        cache = "" if self.autocast_cache else " without its cache"
        parts = [
            f"gradients {'on' if self.grad else 'off'}",
            *(["inference mode on"] if self.inference else []),
            f"autocast {casts or 'off'}{cache}",
            f"default dtype {str(self.default_dtype).removeprefix('torch.')}",
            *(["deterministic algorithms"] if self.deterministic else []),
            *(["what is not deterministic only warns"] if self.only_warns else []),
            *([f"function modes: {self.functions}"] if self.functions else []),
        ]
        return ", ".join(parts)


GuardKind = Literal[
    "type",  # type(x) is expected
    "is",  # x is expected
    "equals",  # type(x) is type(expected) and x == expected (constants; floats compare by bits)
    "tensor",  # expected: a TensorGuard
    "length",  # len(x) == expected
    "dict_keys",  # list(dict.keys(x)) == expected
    "has_key",  # dict.__contains__(x, key) is expected[1], expected = (key, bool)
    "has_attr",  # hasattr(x, key) is expected[1], expected = (name, bool)
    "class_attr",  # expected: a ClassAttribute of the class x
    "not_aliased",  # expected: sources of tensors of which no two share a storage
    "same",  # x is the object at source `expected`
    "distinct",  # expected: sources of which no two lead to the same object
    # grad mode, autocast, default dtype, deterministic algorithms (expected: a GlobalState), no mode or transform
    "global_state",
    "relation",  # expected: a Relation
    "integer",  # type(x) is int, and it is within expected: (least, largest), None for no bound
]


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption. `where` is the user's line that read the value."""

    source: Source | None
    kind: GuardKind
    expected: Any
    where: UserFrame | None = None


# ---- recipes: how to build a Python value after the graph has run ----------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """One step of rebuilding a value. Recipes form a DAG; the same Recipe object twice means the same Python object
    twice.

    kinds: ``constant`` (value), ``source`` (value: Source), ``output`` (value: index into the graph's outputs),
    ``list``/``tuple``/``set``/``dict`` (args; dict: alternating keys and values), ``call`` (value: a callable; args),
    ``size`` (value: an Expr; args: its symbols, in the order of their names).
    """

    kind: Literal["constant", "source", "output", "list", "tuple", "set", "dict", "call", "size"]
    value: Any = None
    args: tuple[Recipe, ...] = ()
    kwargs: tuple[tuple[str, Recipe], ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """One write to the outside world, replayed in order after the graph ran.

    kinds: ``setattr`` (target, key, value), ``delattr``, ``setitem`` (target, key recipe, value), ``delitem``,
    ``list_assign`` (target[:] = value), ``global`` (target: the module dict), ``cell`` (target: the cell; without a
    value it is emptied), ``call`` (value: a recipe whose evaluation is the effect).
    """

    kind: Literal["setattr", "delattr", "setitem", "delitem", "list_assign", "global", "cell", "call"]
    target: Recipe | None
    key: Any = None
    value: Recipe | None = None
    where: UserFrame | None = None


def call_of(function: Callable[..., object], *args: Recipe) -> Recipe:
    """The recipe of what a call gives."""
    return Recipe("call", function, args)


def effect_of(function: Callable[..., object], *args: Recipe) -> Effect:
    """An effect that is a call."""
    return Effect("call", None, None, Recipe("call", function, args))


@dataclass(frozen=True, slots=True)
class Break:
    """Why a segment ends before the program does: the operation that comes next is run in eager."""

    kind: str  # a name in `support.kinds`
    reason: str
    operation: str | None
    where: UserFrame | None
    remedy: str | None
    stack: tuple[UserFrame, ...]  # the user's frames, outermost first; the innermost one is `where`
    seconds: float  # that interpreting up to this point for nothing took


@dataclass
class Reliance:
    """What a capture has taken for granted, because it stays as it is while a process lives. Another process that
    wants to use its result has to ask: `constants`, plain values of libraries and where they were read; `found`,
    where their other objects were, by id; `codes`, the code that was interpreted; `reasons` why it cannot be asked."""

    constants: list[tuple[Source, object]] = field(default_factory=list)
    found: dict[int, tuple[Source, object]] = field(default_factory=dict)
    codes: set[types.CodeType] = field(default_factory=set)
    reasons: list[tuple[str, UserFrame | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What an entry knows of the graph that it runs. `empty`: there is none; `raises`: it may raise, and eager does the
    call then; `refutable`: because of what the program has checked; `final`: other processes take part; `writes`: to
    its inputs; `draws`: random numbers, which are put back where it raises."""

    empty: bool
    raises: bool
    refutable: bool
    final: bool
    writes: bool
    draws: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """What is done at each call of a segment: all that an entry is made of, but for guards and the graph's function.
    The fields are those of `Captured`; `inputs`: the sources of tensors, then of sizes."""

    name: str
    inputs: tuple[Source, ...]
    graph: GraphFacts
    result: Recipe
    effects: Sequence[Effect] = ()
    generators: Sequence[Recipe] = ()
    draws: Sequence[Recipe] = ()
    flags: Sequence[tuple[Source, bool]] = ()
    shape: object = None
    under_functions: bool = False


@dataclass
class Captured:
    """One captured segment. If it ends in a break, `shape` (a `segments.Shape`) says where, and `result` makes the
    tuple of the values that are live there."""

    name: str
    trace: Trace
    inputs: list[Source]  # where the real tensor for each of `trace.inputs` is found at call time
    outputs: list[TracedTensor]
    guards: list[Guard]
    result: Recipe
    effects: list[Effect]
    sizes: list[Symbol] = field(default_factory=list)  # the same of the integer for each of `trace.sizes`
    shape: Any = None
    ending: Break | None = None
    release: Callable[[], None] = lambda: None  # to be called when the backend is done: lets go of the call's objects
    calls: Any = None  # the `tracing.calls.CallRecorder`, where a graph of torch's functions is wanted
    generators: Sequence[Recipe] = ()  # those from outside that it may draw from
    draws: Sequence[Recipe] = ()  # made before the graph runs, in this order: random numbers, generators
    flags: Sequence[tuple[Source, bool]] = ()  # tensors whose `requires_grad` is changed before the graph runs
    examples: Sequence[torch.Tensor] = ()  # the real tensors of this call, in the order of `inputs`
    program: object = None  # the `functorch.runtime.program.Compiled` that a backend has made of the trace, if it has
    reliance: Reliance | None = None
    under_functions: bool = False  # whether function modes are active around it
