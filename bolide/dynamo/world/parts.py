"""The parts of a world that know of no other: guards, identities; and what the others ask of each other (protocols)."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bolide.dynamo.program.captured import Guard, GuardKind, Reliance, Source
from bolide.support.errors import Unsupported
from bolide.tracing import Trace, UserFrame


class RunningProgram(Protocol):
    """The program that is interpreted, as the outside world asks for it. `own_functions`: those that it has made,
    weakly, by id."""

    own_functions: dict[int, Any]

    def where(self) -> UserFrame | None:
        """The user's line that is being run."""

    def has_ended(self) -> bool:
        """Whether its outermost frame has returned."""

    def appends(self) -> bool:
        """Whether what is read now is only asked for its `append`."""

    def measures(self) -> bool:
        """Whether only the length is asked of what is being read."""

    def reads_back(self) -> int:
        """How far from its end the only item is that what is read now is asked for; 0 if it is asked for more."""

    def evaluate(self, function: object, args: list[Any]) -> Any:
        """What a call gives that is interpreted."""

    def lose(self, error: Unsupported) -> None:
        """Tells what is not supported, where nothing can be raised."""

    def answer(self, value: object) -> bool | None:
        """The truth of a value that data decides, guarded from here on; None where it cannot be known."""

    def fix_float(self, name: str, value: float) -> None:
        """A float is to be guarded as it is. Raises Unsupported where a break is better."""

    def fix_count(self, source: Source, value: object, what: str = "the number of items") -> None:
        """The same of a number of items, or of another thing that differs from call to call."""


class Guards:
    """The guards of one capture. `where` tells the user's line that is being run."""

    def __init__(self) -> None:
        self.all: list[Guard] = []
        self.reliance = Reliance()
        self.once: set[Hashable] = set()  # what has been guarded already, under keys of those who guard it
        self.where: Callable[[], UserFrame | None] = lambda: None

    def add(self, source: Source | None, kind: GuardKind, expected: object) -> None:
        """Guard something; what an object of the outside is needs none where the object itself is held."""
        if source is None or source.kind != "object" or kind not in ("type", "is"):
            self.all.append(Guard(source, kind, expected, self.where()))

    def first(self, key: Hashable) -> bool:
        """Whether nothing has been guarded under this key; from now on something has."""
        if key in self.once:
            return False
        self.once.add(key)
        return True

    def refusal(self, kind: str, reason: str, remedy: str | None = None) -> Unsupported:
        """What says that something is not supported, at the line that is being run."""
        return Unsupported(reason, self.where(), remedy, kind)


class Seen(NamedTuple):
    """An object of the outside world, what stands for it, and where it was found first."""

    real: Any
    value: Any
    source: Source


class Identities:
    """Which value stands for which object of the outside world."""

    def __init__(self) -> None:
        self.seen: dict[int, Seen] = {}  # by id of the real object
        self.mirrors: dict[int, tuple[object, Source]] = {}  # by id: what stands for the object at the source
        self.fixed: dict[int, types.FunctionType] = {}  # by id: nested ones that are known by identity at some place
        self.owners: dict[int, object] = {}  # by id of a `__dict__` that the program has asked for: whose it is

    def mirror(self, value: object, source: Source) -> Any:
        """Note that `value` stands for the outside object at `source`; it is given back."""
        self.mirrors[id(value)] = (value, source)
        return value

    def place_of(self, value: object) -> Source | None:
        """Where an object that stands for itself (an opaque one) was found; None for one that the program has made."""
        known = self.seen.get(id(value)) or self.mirrors.get(id(value))
        return None if known is None else known[-1]

    def is_outside(self, value: object) -> bool:
        """Whether an object that stands for itself was found outside."""
        return self.place_of(value) is not None

    def source_of(self, function: types.FunctionType) -> Source:
        """Where an outside function is found."""
        mirror = self.mirrors.get(id(function))
        return Source("object", None, None, function) if mirror is None else mirror[1]


@dataclass(frozen=True)
class Write:
    """A write to a place of the outside world that can be undone. `before`: what stood there; `now`: what does now."""

    place: tuple[int, Hashable]
    before: object
    now: Callable[[], object]
    put: Callable[[object], None]
    undo: Callable[[], None]


class Notes(Protocol):
    """The journal of writes (`journal.Journal`), as those who write ask for it."""

    forks: int
    touched: set[int]
    writes: list[Write]

    @property
    def streams(self) -> Sequence[Any]:
        """The iterators of outside that the program draws from."""

    def is_written(self, real: object) -> bool:
        """Whether the program has written to an outside container."""


class Lookup(Protocol):
    """What is known of classes (`classes.Classes`). `codes`: by id, whether instances ask code for attributes that they
    lack, and which names the class computes."""

    codes: dict[int, tuple[bool, dict[object, bool]]]

    def lookup(self, cls: type, name: str, after: type | None = None) -> Any:
        """The class attribute `name`, unbound, or MISSING. Guarded."""

    def rely_on(self, cls: type, name: str, after: type | None = None) -> None:
        """Guard what a class has under a name."""


class Growing(Protocol):
    """Containers (`holders.Containers`), as those who find lists ask for them."""

    def grown(self, real: object, source: Source) -> list[object] | None:
        """A list to append to in place of `real`; None if it is read for more than that."""


class Reading(Protocol):
    """The world (`world.World`), as its parts and its proxies ask for it."""

    program: RunningProgram
    guards: Guards
    identities: Identities

    @property
    def trace(self) -> Trace: ...

    @property
    def journal(self) -> Notes: ...

    @property
    def classes(self) -> Lookup: ...

    @property
    def containers(self) -> Growing: ...

    def wrap(self, real: object, source: Source) -> Any:
        """The value that stands for `real`, found at `source`."""

    def overlay(
        self, real: dict[Any, Any], source: Source, child: Callable[[Source, Any], Source], owner: object = None
    ) -> Any:
        """What a dict of the outside is for the program: one `outside.Overlay` for each dict."""

    def trust(self, real: object, source: Source) -> object:
        """As `wrap`, for what belongs to a library."""

    def real_key(self, key: object) -> object:
        """The key of an outside dict that a value stands for."""

    def shown_key(self, key: object) -> object:
        """The value that stands for a key of an outside dict whose keys are guarded."""
