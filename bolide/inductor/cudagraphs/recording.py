"""One recording of a function: a graph of the device, what must hold for it to be replayed, and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, UntypedStorage

from bolide.inductor.cudagraphs.device import Graph, Layout, Pool
from bolide.inductor.cudagraphs.function import Function
from bolide.inductor.cudagraphs.results import Fresh, OfInput, Place, Ref, Result, describe, made

Inputs: TypeAlias = list[object]
Children: TypeAlias = "WeakKeyDictionary[Function, list[Recording]]"


@dataclass(slots=True)
class Sorted:
    """The inputs of a recording. `fixed`: the places of those that are read where they lie, at `addresses`; `managed`:
    which of these are results of the path; `copied`: the places of all other tensors; `returned`: those of the copied
    ones that the graph writes to."""

    fixed: tuple[int, ...]
    addresses: list[int]
    managed: dict[int, Place]
    copied: tuple[int, ...]
    returned: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Recording:
    """A node of a tree: what ran before it is its `path`, itself included; a function may have several.

    `refs`: the results of the latest run that lie in memory of their own; `live`: the results of the path that were
    alive when it was recorded; `died_before`, `died_within`: those that had died since the recording before, and those
    that died while it ran. Their memory may have been used again, so they must be dead whenever it is replayed.
    """

    name: str
    kind: str
    origin: int
    visible: frozenset[int]
    path: tuple[Recording, ...]
    graph: Graph
    inputs: Sorted
    targets: list[Tensor]
    refs: list[Ref | None]
    died_before: tuple[Place, ...]
    died_within: tuple[Place, ...]
    results: tuple[Result, ...] = ()
    live: tuple[Place, ...] = ()
    checkpoint: object = None
    lines: tuple[str, ...] = ()
    children: Children = field(default_factory=WeakKeyDictionary)
    step: int = 0
    answered: bool = False

    def ref(self, place: Place) -> Ref:
        """Of a result of the path."""
        ref = self.path[place[0]].refs[place[1]]
        assert ref is not None
        return ref

    def pending(self) -> bool:
        """Whether a backward pass may still come that reads what this forward has saved."""
        if self.kind != "forward":
            return False
        hidden = [ref for at, ref in enumerate(self.refs) if ref is not None and at not in self.visible]
        if hidden:
            return any(ref.alive for ref in hidden)
        return not self.answered and any(ref is not None and ref.alive for ref in self.refs)

    # ---- replay

    def takes(self, inputs: Inputs, pool: Pool) -> bool:
        """Whether it can be replayed for these inputs, as the last one of the path is its parent. If so, those that
        died while it was recorded are taken out of the list."""
        if addresses(inputs, self.inputs.fixed) != self.inputs.addresses:
            return False
        if any(self.ref(place).alive for place in self.died_before):
            return False
        return not self.died_within or self._dying(inputs, pool)

    def _dying(self, inputs: Inputs, pool: Pool) -> bool:
        places = [at for at, place in self.inputs.managed.items() if place in self.died_within]
        layouts = [Layout.of(tensor) for tensor in taken(inputs, places)]
        for at in places:
            inputs[at] = None
        if not any(self.ref(place).alive for place in self.died_within):
            return True
        for at, layout in zip(places, layouts, strict=True):  # somebody else holds one: nothing was overwritten yet
            depth, result = self.inputs.managed[at]
            inputs[at] = tensor = rebuilt(pool, layout, self.ref((depth, result)))
            self.path[depth].refs[result] = Ref(tensor, layout.address)
        return False

    def replay(self, inputs: Inputs, pool: Pool) -> list[object]:
        """Does the recorded work for these inputs, and empties the list."""
        sources = taken(inputs, self.inputs.copied)
        copy_all(self.targets, sources)
        owners = _owners(inputs, self.results)
        self.graph.replay()
        if self.inputs.returned:
            targets = dict(zip(self.inputs.copied, self.targets))
            copy_all(taken(inputs, self.inputs.returned), [targets[place] for place in self.inputs.returned])
        del sources
        inputs.clear()
        results: list[object] = []
        for at, (result, ref) in enumerate(made(pool, self.results, owners)):
            results.append(result)
            self.refs[at] = ref
        return results

    def finish(self, results: Sequence[object], addresses: dict[int, int], constants: frozenset[int]) -> None:
        """Note what the recorded run gave. `addresses`: the inputs that were not copied, by their storage's."""
        self.results = describe(results, addresses, constants)
        for value, result in zip(results, self.results, strict=True):
            if isinstance(result, Fresh) and isinstance(value, Tensor):
                self.refs.append(Ref(value, result.layout.address))
            else:
                self.refs.append(None)
        self.live = tuple(living(self.path))


def living(path: Iterable[Recording]) -> list[Place]:
    """The results of a path that are alive."""
    return [
        (depth, at)
        for depth, recording in enumerate(path)
        for at, ref in enumerate(recording.refs)
        if ref is not None and ref.alive
    ]


def addresses(inputs: Inputs, places: Iterable[int]) -> list[int]:
    """Where the tensors at these places lie."""
    return [tensor.data_ptr() for tensor in taken(inputs, places)]


def taken(inputs: Inputs, places: Iterable[int]) -> list[Tensor]:
    """The tensors at these places."""
    tensors = [inputs[place] for place in places]
    return [tensor for tensor in tensors if isinstance(tensor, Tensor)]


def rebuilt(pool: Pool, layout: Layout, ref: Ref | None) -> Tensor:
    """A tensor whose memory was not written since: in the storage that is alive, if one is."""
    return pool.tensor(layout, ref.revived() if ref is not None and ref.alive else pool.storage(layout))


def collapsed(tensor: Tensor) -> Tensor:
    """A tensor without the repetitions of its elements: one index of each dimension along which it does not move."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies tensors of the same layouts, whose elements do not overlap but for repetitions."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_([*map(collapsed, targets)], [*map(collapsed, sources)])


def _owners(inputs: Inputs, results: Sequence[Result]) -> dict[int, UntypedStorage]:
    places = {result.place for result in results if isinstance(result, OfInput)}
    return {place: tensor.untyped_storage() for place, tensor in zip(places, taken(inputs, places), strict=True)}
