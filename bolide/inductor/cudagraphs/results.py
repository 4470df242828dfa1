"""Results of a recording: whose memory they lie in, whether they are alive, and how a replay makes them anew."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, UntypedStorage

from bolide.inductor.cudagraphs.device import Layout, Pool

Place: TypeAlias = tuple[int, int]
"""A result of a path: which recording from the root, which of its results."""


class Ref:
    """A weak reference to the storage of a result, and to the tensor that was given out. As memory is given out once
    in each run of a path, under one storage, the memory is in use as long as the storage lives."""

    __slots__ = ("address", "storage", "tensor")

    def __init__(self, tensor: Tensor, address: int) -> None:
        self.address = address
        self.storage = cast(int, tensor.untyped_storage()._weak_ref())
        self.tensor = weakref.ref(tensor)

    def __del__(self) -> None:
        UntypedStorage._free_weak_ref(self.storage)  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        return not UntypedStorage._expired(self.storage)

    def revived(self) -> UntypedStorage:
        """The storage itself, which is alive."""
        return UntypedStorage._new_with_weak_ptr(self.storage)


@dataclass(frozen=True, slots=True)
class Value:
    """A result that is the same in every replay: a number, None, or memory that is not the pool's."""

    value: object


@dataclass(frozen=True, slots=True)
class Fresh:
    """A result in memory of its own in the pool."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Shared:
    """A result in the memory of an earlier result of the same run."""

    layout: Layout
    other: int


@dataclass(frozen=True, slots=True)
class OfInput:
    """A result in the memory of an input whose address is checked."""

    layout: Layout
    place: int


Result: TypeAlias = Value | Fresh | Shared | OfInput


def describe(results: Sequence[object], inputs: Mapping[int, int], foreign: frozenset[int]) -> tuple[Result, ...]:
    """What the results of a recording are. `inputs`: the places of inputs that are not copied, by the address of their
    storage; `foreign`: addresses of the graph's constants."""
    described: list[Result] = []
    first: dict[int, int] = {}
    for at, value in enumerate(results):
        if not isinstance(value, Tensor):
            described.append(Value(value))
            continue
        layout = Layout.of(value)
        if layout.address == 0 or layout.address in foreign:
            described.append(Value(value.detach()))
        elif layout.address in inputs:
            described.append(OfInput(layout, inputs[layout.address]))
        elif layout.address in first:
            described.append(Shared(layout, first[layout.address]))
        else:
            first[layout.address] = at
            described.append(Fresh(layout))
    return tuple(described)


def made(
    pool: Pool, results: Sequence[Result], owners: Mapping[int, UntypedStorage]
) -> Iterator[tuple[object, Ref | None]]:
    """The results of a replay, and references to those that lie in memory of their own. `owners`: storages of inputs
    that results lie in. What shares memory shares a version counter."""
    given: list[object] = []
    for result in results:
        ref: Ref | None = None
        if isinstance(result, Fresh):
            tensor = pool.tensor(result.layout, pool.storage(result.layout))
            ref = Ref(tensor, result.layout.address)
            given.append(tensor)
        elif isinstance(result, Shared):
            given.append(_seen_as(given[result.other], result.layout))
        elif isinstance(result, OfInput):
            given.append(pool.tensor(result.layout, owners[result.place]))
        else:
            given.append(result.value.detach() if isinstance(result.value, Tensor) else result.value)
        yield given[-1], ref


def _seen_as(base: object, layout: Layout) -> Tensor:
    assert isinstance(base, Tensor)
    if base.dtype != layout.dtype:
        count = layout.nbytes // base.element_size()
        base = base.as_strided((count,), (1,), 0).view(layout.dtype)
    return torch.as_strided(base, layout.size, layout.stride, layout.offset)
