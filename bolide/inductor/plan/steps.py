"""Steps of a Plan, and the types of what they work on.

Everything here is plain data: a step names tensors (`Ref`), integers are `Expr`s over the plan's *words* (named
integers: sizes that are given, or told while the plan runs), and what cannot be data is a number into a tuple that is
kept beside the plan (`Foreign`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, Union

import torch

from bolide.support.caches import on_reset
from bolide.support.errors import Refuted
from bolide.symbolic import Expr
from bolide.symbolic.expr import Relation


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a tensor has to be. Sizes and strides count elements."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]

    def words(self) -> frozenset[str]:
        """The words that it depends on."""
        return frozenset().union(*[expr.free_vars for expr in (*self.shape, *self.stride) if expr.terms])


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor that the plan is given: an input, or a constant."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class WordInput:
    """An integer that the plan is given."""

    name: str


Input = TensorInput | WordInput


@functools.lru_cache(1 << 14)
def of_words(expr: Expr) -> Expr:
    """The expression over the plan's words, of which nothing is assumed: so a name is one variable in a whole plan."""
    return expr.subs({name: Expr.var(name, None, None) for name in expr.free_vars})


on_reset(of_words.cache_clear)


def all_of_words(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """Several of them."""
    return tuple([of_words(expr) if expr.terms else expr for expr in exprs])


# ---- arguments of calls ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the plan."""

    name: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """The object number `index` of those that are kept beside the plan: a plan with one cannot leave the process."""

    index: int


Leaf = Union[  # noqa: UP007  (read by the codec)
    Ref, Foreign, Expr, bool, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, None
]
Value = Leaf | tuple["Value", ...]
"""An argument of a call. Integers are `Expr`s, lists are tuples, None is an optional that is not given."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the dispatcher: ``Operator("aten::add", "Tensor")``."""

    name: str
    overload: str

    def __str__(self) -> str:
        return f"{self.name.replace('::', '.')}.{self.overload or 'default'}"


@dataclass(frozen=True, slots=True)
class TensorResult:
    """A tensor that a call gives. Sizes that the tensor itself tells are words that are bound later."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class WordResult:
    """An integer that a call gives: the value of a word."""

    name: str


Result = TensorResult | WordResult | None | tuple[TensorResult | None, ...]
"""What becomes of one value that an operator returns: None if it is not used, a tuple for a list of tensors."""


# ---- steps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alloc:
    """`name` is a new tensor."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Reuse:
    """`name` is a new tensor in the memory of `base`, which has its type and is not read again."""

    name: str
    base: str


@dataclass(frozen=True, slots=True)
class View:
    """`name` is `base` seen as `type`, `offset` elements from the first element of `base`, which need not be the first
    of its storage."""

    name: str
    base: str
    type: TensorType
    offset: Expr


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs ``kernels[kernel]`` on `arguments` (tensors, in the order of its params) and `sizes` (in the order of its
    sizes), on the device of the kernel; of a batch the arguments of one set after the other, then their sizes."""

    kernel: int
    arguments: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Runs an operator. `arguments` are all that its schema names, in that order, defaults included; `results` has one
    for each value that it returns. `where`: the line of the program that asked for it, for people."""

    operator: Operator
    arguments: tuple[Value, ...]
    results: tuple[Result, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """The elements of `source` are written to graph input `target`."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Free:
    """These tensors are not used again."""

    names: tuple[str, ...]


Error = Literal["Refuted", "IndexError", "RuntimeError"]
"""What is raised. Refuted: the call is made again in eager, as it was compiled for something else."""


ERRORS: Mapping[Error, type[Exception]] = {"Refuted": Refuted, "IndexError": IndexError, "RuntimeError": RuntimeError}


@dataclass(frozen=True, slots=True)
class Check:
    """Raises an error unless `flag`, a tensor of one bool, is `expected`."""

    flag: str
    expected: bool
    error: Error
    message: str


@dataclass(frozen=True, slots=True)
class Require:
    """Raises an error unless ``expr relation 0``."""

    expr: Expr
    relation: Relation
    error: Error
    message: str


@dataclass(frozen=True, slots=True)
class Word:
    """`name` is the value of an expression."""

    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Item:
    """`name` is the value of the only element of a tensor of integers or bools."""

    name: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Size:
    """`name` is the size of dimension `dim` of a tensor."""

    name: str
    tensor: str
    dim: int


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that run or not, or several times: a plan in a plan. Its names are its own, but for those of the plan's
    constants; kernels are the plan's. It keeps its inputs, and gives tensors that it has made, each in other memory."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    results: tuple[Value, ...]

    def words(self) -> set[str]:
        """The words that are inputs."""
        return {given.name for given in self.inputs if isinstance(given, WordInput)}


@dataclass(frozen=True, slots=True)
class Branch:
    """Runs one of two blocks on `arguments`: `then` if `flag`, a tensor of one bool, is true. It gives `results`."""

    flag: str
    arguments: tuple[Ref | Expr, ...]
    then: Block
    otherwise: Block
    results: tuple[TensorResult, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`results` begin as the tensors `carried`, which nothing else uses. As long as `condition`, on them and on
    `arguments`, gives a true flag, they become what `body` makes of these."""

    carried: tuple[str, ...]
    arguments: tuple[Ref | Expr, ...]
    condition: Block
    body: Block
    results: tuple[TensorResult, ...]


Step = Alloc | Reuse | View | Launch | Call | Copy | Free | Check | Require | Word | Item | Size | Branch | Repeat


def types_of(given: Iterable[Input], steps: Iterable[Step]) -> dict[str, TensorType]:
    """The type of every tensor by name, of those that are given and of those that steps make."""
    types = {tensor.name: tensor.type for tensor in given if isinstance(tensor, TensorInput)}
    for step in steps:
        if isinstance(step, (Alloc, View)):
            types[step.name] = step.type
        elif isinstance(step, Reuse):
            types[step.name] = types[step.base]
        elif isinstance(step, Call):
            types.update({result.name: result.type for result in tensors_given(step)})
        elif isinstance(step, (Branch, Repeat)):
            types.update({result.name: result.type for result in step.results})
    return types


def blocks_of(step: Step) -> tuple[Block, ...]:
    """The blocks of a step."""
    if isinstance(step, Branch):
        return step.then, step.otherwise
    return (step.condition, step.body) if isinstance(step, Repeat) else ()


def with_blocks(step: Step, change: Callable[[Block], Block]) -> Step:
    """A step with each of its blocks changed."""
    if isinstance(step, Branch):
        return replace(step, then=change(step.then), otherwise=change(step.otherwise))
    if isinstance(step, Repeat):
        return replace(step, condition=change(step.condition), body=change(step.body))
    return step


_NAMING = ("name", "base", "target", "source", "flag", "tensor")


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """A step with other names for tensors, but in its blocks, whose names are their own."""

    def changed(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return replace(value, name=names.get(value.name, value.name)) if isinstance(value, _NAMED) else value

    changes: dict[str, object] = {}
    for part in fields(step):
        value = getattr(step, part.name)
        if part.name in _NAMING:
            changes[part.name] = names.get(value, value)
        elif part.name in ("names", "carried") or (part.name == "arguments" and isinstance(step, Launch)):
            changes[part.name] = tuple([names.get(name, name) for name in value])
        elif part.name in ("arguments", "results"):
            changes[part.name] = changed(value)
    return replace(step, **changes)  # type: ignore[arg-type]


_NAMED = (Ref, TensorResult)


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps and those of their blocks."""
    for step in steps:
        yield step
        for block in blocks_of(step):
            yield from all_steps(block.steps)


def tensors_given(call: Call) -> list[TensorResult]:
    """The tensors that a call gives and that are used."""
    return [result for result in flat_results(call) if isinstance(result, TensorResult)]


def flat_results(call: Call) -> list[TensorResult | WordResult | None]:
    """The results of a call, those in lists among the others."""
    flat: list[TensorResult | WordResult | None] = []
    for result in call.results:
        flat.extend(result) if isinstance(result, tuple) else flat.append(result)
    return flat


def refs_in(value: Value) -> list[str]:
    """The tensors anywhere in a value."""
    if isinstance(value, tuple):
        return [name for item in value for name in refs_in(item)]
    return [value.name] if isinstance(value, Ref) else []


def words_in(value: Value) -> list[Expr]:
    """The integers anywhere in a value."""
    if isinstance(value, tuple):
        return [expr for item in value for expr in words_in(item)]
    return [value] if isinstance(value, Expr) else []


def used_names(step: Step) -> list[str]:
    """The tensors a step reads, writes or looks at (a Free uses nothing; results of a step are not among them)."""
    if isinstance(step, (View, Reuse)):
        return [step.base]
    if isinstance(step, Launch):
        return list(step.arguments)
    if isinstance(step, Call):
        return refs_in(step.arguments)
    if isinstance(step, Copy):
        return [step.target, step.source]
    if isinstance(step, (Item, Size)):
        return [step.tensor]
    if isinstance(step, Branch):
        return [step.flag, *refs_in(step.arguments)]
    if isinstance(step, Repeat):
        return [*step.carried, *refs_in(step.arguments)]
    return [step.flag] if isinstance(step, Check) else []


def defined_names(step: Step) -> list[str]:
    """The tensors a step makes."""
    if isinstance(step, (Alloc, Reuse, View)):
        return [step.name]
    if isinstance(step, (Branch, Repeat)):
        return [result.name for result in step.results]
    return [result.name for result in tensors_given(step)] if isinstance(step, Call) else []


def bound_words(step: Step) -> list[str]:
    """The words that a step gives a value."""
    if isinstance(step, Call):
        return [result.name for result in step.results if isinstance(result, WordResult)]
    return [step.name] if isinstance(step, (Word, Item, Size)) else []
