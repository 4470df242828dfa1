"""The inputs of the graph: tensors and numbers of the outside world, and what is known of their memory."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch

from bolide.dynamo.guards.sizes import Symbols, as_exprs
from bolide.dynamo.guards.texts import tensor_guard
from bolide.dynamo.program.captured import Guard, Relation, Source
from bolide.dynamo.program.kinds import MODULE_DICTS
from bolide.dynamo.program.sources import symbols_in
from bolide.dynamo.program.sources import text as path_of
from bolide.dynamo.world.parts import Guards, Reading
from bolide.support.errors import Unsupported
from bolide.tracing import Trace, TracedTensor, UserFrame
from bolide.tracing.numbers import data, scalars
from bolide.tracing.tensor import AliasGroup


class Inputs:
    """The inputs of one graph: the i-th of `trace.inputs` is made of `tensors[i]`, which is found at `sources[i]`."""

    def __init__(self, trace: Trace, symbols: Symbols, guards: Guards) -> None:
        self.trace, self.symbols, self.guards = trace, symbols, guards
        self.sources: list[Source] = []
        self.tensors: list[torch.Tensor] = []
        self.storages: dict[int, list[AliasGroup]] = {}  # by address
        self.places: dict[int, int] = {}  # by id of a traced tensor: which input it is
        self.placed = 0  # inputs that are in there, some of them twice (see `Trace.renew`)
        self.masked: dict[int, tuple[TracedTensor, type]] = {}  # tensors of the program's own classes, by id: and masks
        self.made: set[int] = set()  # inputs that are memory of their own: each call makes them
        self.unmasked: dict[int, tuple[torch.Tensor, Source]] = {}  # by id of a masked input: the real tensor
        self.twins: set[tuple[Source, Source]] = set()  # two places of one tensor that are two inputs
        self.derived_by: set[int] = set()  # inputs by which the program takes derivatives

    def place(self, tensor: object) -> int | None:
        """The index of the input that a traced tensor is, or None."""
        inputs = self.trace.inputs
        for place in range(self.placed, len(inputs)):
            self.places[id(inputs[place])] = place
        self.placed = len(inputs)
        return self.places.get(id(tensor))

    def given(self, place: int) -> tuple[torch.Tensor, Source]:
        """The real tensor that an input is, and where it is found."""
        return self.unmasked.get(id(self.trace.inputs[place])) or (self.tensors[place], self.sources[place])

    def add(self, real: torch.Tensor, source: Source, like: torch.Tensor) -> TracedTensor:
        """A new input of the graph; in the program it is a leaf, or not, as `like` is."""
        where = self.guards.where()
        if torch._C._functorch.is_functorch_wrapped_tensor(real):  # it has no memory that could be looked at
            raise self.guards.refusal("outside_object", "a tensor that a function of torch.func has wrapped is read")
        name = source_name(source)
        with torch._C.DisableTorchFunction():  # some twenty questions, none of them the program's
            expected = tensor_guard(real, where)  # refuses some, which are no inputs then
            self.sources.append(source)
            self.tensors.append(like)
            sizes = self.symbols.of_tensor(source, real, name)
            strides = self.symbols.strides_of(source, real, name, sizes)
            traced = self.trace.input(like, name, sizes, strides)
            self._note_storage(real, traced)
        if sizes or strides:
            shape, stride = map(as_exprs, (traced.shape, traced.stride()))
            expected = replace(expected, shape=shape, stride=stride, symbols=self.symbols.read_by((*shape, *stride)))
        self.guards.all.append(Guard(source, "tensor", expected, where))
        return traced

    def twin(self, real: torch.Tensor, source: Source, first: Source) -> TracedTensor | None:
        """A tensor of data that was found at `first` before, as an input of its own, where the two are not one at every
        call. None where they may be one, or derivatives would tell."""
        if real.requires_grad or not self.symbols.comes_apart(source, first):
            return None
        self.twins.add((source, first))
        return self.add(real, source, real)

    def is_inference(self, group: AliasGroup, place: int | None) -> bool:
        """Whether a storage, of the input at a place if there is one, is of inference mode, and counts no writes."""
        if place is not None:
            source = Source("apply", self.sources[place], (), torch.Tensor.is_inference)
            self.guards.add(source, "equals", group.inference)
        return group.inference

    def _note_storage(self, real: torch.Tensor, traced: TracedTensor) -> None:
        """Inputs that share memory may be read, not written: the trace does not know of each other."""
        if not real.numel():
            return
        groups = self.storages.setdefault(real.untyped_storage().data_ptr(), [])
        groups.append(traced.group)
        if len(groups) > 1:
            if any(group.version for group in groups):
                reason = "a tensor is read whose memory was written through another"
                raise self.guards.refusal("tensor_write", reason)
            for group in groups:
                group.shared = True

    def make(
        self,
        source: Source,
        maker: Callable[[Any], torch.Tensor],
        real: object,
        sizes: Mapping[int, torch.SymInt] | None = None,
    ) -> TracedTensor:
        """The tensor that `maker` makes of the value at `source`, of which nothing is guarded, as an input. `sizes`:
        its dimensions that are symbols at every call."""
        with torch._C._DisableTorchDispatch():  # a real tensor, not one that is recorded
            tensor = maker(real)
        self.made.add(len(self.sources))
        self.sources.append(Source("apply", source, (), maker))
        self.tensors.append(tensor)
        return self.trace.input(tensor, source_name(source), sizes)

    def unmask(self) -> None:
        """Make tensors of the program's own classes like others: nothing more is asked of the program."""
        for tensor, _ in self.masked.values():
            tensor.__class__ = TracedTensor

    @contextlib.contextmanager
    def remasked(self) -> Iterator[None]:
        """While code of the program runs after that."""
        for tensor, mask in self.masked.values():
            tensor.__class__ = mask
        try:
            yield
        finally:
            self.unmask()


class Numbers:
    """Python's numbers of the outside world: fixed by guards, symbols, or numbers of the graph."""

    def __init__(self, world: Reading, inputs: Inputs) -> None:
        self.world, self.inputs, self.symbols = world, inputs, inputs.symbols
        self.floats: dict[Source, str] = {}  # those that conditions may speak of: their names
        self.by_name: dict[str, Source] = {}
        self.derived: dict[Source, object] = {}  # numbers that are computed of sizes at each call (`machine.numbers`)

    def wrap_int(self, real: int, source: Source) -> Any:
        """An integer as it is, guarded, or a symbol."""
        value = self.symbols.of_int(source, real, source_name(source))
        if isinstance(value, int):
            self.world.guards.add(source, "equals", value)
        else:
            self.world.guards.add(source, "integer", value.node.expr.bounds())
        return value

    def wrap_float(self, real: float, source: Source) -> object:
        """A float that changes from call to call is a number of the graph, given to it as a tensor."""
        if self.symbols.changes_float(source, real):
            return self.float_of(source, real)
        self.world.guards.add(source, "equals", real)
        return real

    def float_of(self, source: Source, real: float) -> object:
        """The float at `source` as a number of the graph."""
        self.world.guards.add(source, "type", float)
        name, pin = self.name_of(source), functools.partial(self._pin, source, real)
        number = scalars.of_tensor(self.inputs.trace, self.inputs.make(source, float_tensor, real), real, (pin,), name)
        return self.world.identities.mirror(number, source)

    def wrap_flag(self, real: bool, source: Source) -> bool | torch.SymBool:
        """One of several bools that change from call to call is a truth that only the graph knows."""
        if not self.symbols.is_flag(source, real):
            self.world.guards.add(source, "is", real)
            return real
        self.world.guards.add(source, "type", bool)
        return cast(torch.SymBool, data.number(self.inputs.trace, self.inputs.make(source, bool_tensor, real)))

    def name_of(self, source: Source) -> str:
        """The name of a float from outside in conditions."""
        if source not in self.floats:
            self.floats[source] = f"f{len(self.floats)}"
            self.by_name[self.floats[source]] = source
        return self.floats[source]

    def source_of(self, name: str) -> Source | None:
        """Where a float or a size is found, by its name in conditions."""
        if name in self.by_name:
            return self.by_name[name]
        return next((symbol.source for symbol in self.symbols.all if symbol.name == name), None)

    def in_input(self, place: int) -> tuple[str, float]:
        """The number in an input of one element, for conditions: its name and its value in this call."""
        source = Source("apply", self.inputs.sources[place], (), torch.Tensor.item)
        with torch._C._DisableTorchDispatch():
            return self.name_of(source), self.inputs.tensors[place].item()

    def assume(self, condition: str, where: UserFrame | None) -> None:
        """Guard a condition over floats from outside and sizes."""
        sources = {name: self.source_of(name) for name in symbols_in(condition)}
        named = tuple([(name, source) for name, source in sources.items() if source is not None])
        assert len(named) == len(sources)
        guards = self.world.guards
        guards.all.append(Guard(None, "relation", Relation(condition, named), where or guards.where()))

    def _pin(self, source: Source, real: float) -> None:
        self.world.program.fix_float(path_of(source), real)
        self.symbols.pin(source, real, self.world.guards.where())
        self.world.guards.add(source, "equals", real)


class Alias(NamedTuple):
    """Two storages, apart in the graph, that may be one in eager, depending on data: by the instruction `place`, a
    branch or what copies."""

    first: AliasGroup
    second: AliasGroup
    place: tuple[Any, int]


class Chosen(NamedTuple):
    """The result of a branch is in eager the first tensor where `flag` is true, else the second: one of them, or both,
    were there before; what a way has made is the result itself."""

    result: TracedTensor
    flag: TracedTensor
    first: TracedTensor
    second: TracedTensor


class Aliases:
    """Which storages of the graph may be one in eager."""

    def __init__(self, guards: Guards, symbols: Symbols) -> None:
        self.guards, self.symbols = guards, symbols
        self.all: list[Alias] = []
        self.told: dict[int, Chosen] = {}  # by id of a result of a branch: which tensor it is in eager

    def add(self, first: AliasGroup, second: AliasGroup, place: tuple[Any, int]) -> None:
        """Note that two storages may be one."""
        self.all.append(Alias(first, second, place))
        first.shared = second.shared = True

    def choice(self, value: TracedTensor) -> Chosen | None:
        """Which tensors the result of a branch may be in eager, if there is one that the program had still."""
        told = self.told.get(id(value))
        if told is None or value.group.version or not any(each.first is value.group for each in self.all):
            return None
        return told

    def of(self, group: AliasGroup) -> list[AliasGroup]:
        """The storage, and all that may be one with it in eager."""
        storages: list[AliasGroup] = []
        waiting = [group]
        while waiting:
            at = waiting.pop()
            if not any(at is known for known in storages):
                storages.append(at)
                waiting += [each.second for each in self.all if each.first is at]
                waiting += [each.first for each in self.all if each.second is at]
        return storages

    def refuse(self, tensors: Iterable[TracedTensor], results: bool = False) -> None:
        """Raises Unsupported where the program can see, at its end or in what it asks of `tensors`, whether two of them
        share their memory, or one does with an input, and a branch decides about that: it is a break then. Not for the
        `results` of the program of which it is told: they are chosen when the graph has run."""
        seen = list(tensors) if self.all else []
        groups = {id(tensor.group): tensor.group for tensor in seen}
        for group in groups.values():
            for other in self.of(group):
                is_seen = id(other) in groups or other.source is not None or other.frozen
                if other is not group and is_seen and not (results and self._are_told(self.of(group), seen)):
                    raise self.apart(group)

    def _are_told(self, storages: list[AliasGroup], seen: list[TracedTensor]) -> bool:
        """Whether it is known of all that may share these storages when they do: they are results of branches, and what
        is seen of those are the results themselves."""
        own, told = set(map(id, storages)), {id(chosen.result.group) for chosen in self.told.values()}
        views = [tensor for tensor in seen if id(tensor.group) in told & own and id(tensor) not in self.told]
        return not views and all(id(each.first) in told for each in self.all if id(each.first) in own)

    def apart(self, group: AliasGroup) -> Unsupported:
        """From now on what has made the aliases of a storage (a branch, a copy) is a break."""
        own = [id(each) for each in self.of(group)]
        reason = "whether two tensors share their memory depends on data"
        self.symbols.history.learnt.apart.update({a.place: reason for a in self.all if id(a.first) in own})
        return self.guards.refusal("control_flow", reason, "clone the tensor that a branch leaves as it is")


def float_tensor(value: float) -> torch.Tensor:
    """What a float of the graph is: 0-dim and float64."""
    return torch.scalar_tensor(value, dtype=torch.float64)


def bool_tensor(value: bool) -> torch.Tensor:
    """What a bool of the graph is."""
    return torch.scalar_tensor(value, dtype=torch.bool)


def source_name(source: Source) -> str:
    """A name for a graph input: the path of its source as an identifier."""
    parts: list[str] = []
    for step in source.steps():
        key = step.key[1] if step.kind == "global" else step.key
        if step.kind not in ("object", "type", "several") and key not in MODULE_DICTS:
            parts.append(type(key).__name__ if isinstance(key, (torch.Tensor, torch.nn.Module)) else str(key))
    name = re.sub(r"\W", "_", "_".join(reversed(parts)))
    return name if name not in ("", "self") else f"{name}input"  # the graph's own function has a `self`
