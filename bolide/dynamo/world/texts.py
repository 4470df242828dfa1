"""Texts that are not known while capturing: of tensors, and of numbers of the graph. Each is a call that is made when
the graph has run, and eager's text then. And numbers that are known as late: `id()`s.
"""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from bolide.dynamo.program.captured import Recipe, Source, call_of
from bolide.dynamo.program.kinds import CONSTANT_TYPES
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.leaks import fleeting
from bolide.tracing import DataDependent, TracedFloat, TracedTensor
from bolide.tracing.recording.recorder import NonLeaf


@fleeting
class Pictured:
    """A tensor as its text shows it: its data of this moment, and `history`, None if it requires no grad, empty for a
    leaf, else the name of what it was computed by, or the tensor itself, an input, which has been computed before."""

    __slots__ = ("data", "history", "is_parameter")

    def __init__(self, tensor: TracedTensor) -> None:
        self.history: str | TracedTensor | None = None
        if tensor.requires_grad:
            cls = type(tensor.grad_fn)
            self.history = "" if tensor.grad_fn is None else tensor if cls is NonLeaf._backward_cls else cls.__name__
        self.is_parameter = isinstance(tensor, torch.nn.Parameter)
        with torch.no_grad():
            self.data = tensor.detach().clone()


def pictured(value: Any) -> Any:
    """A value as its text shows it now, whatever is written to the tensors in it later."""
    cls = type(value)
    if cls is TracedTensor:
        return Pictured(value)
    if cls in (list, tuple):
        return cls([pictured(item) for item in value])
    return {key: pictured(item) for key, item in value.items()} if cls is dict else value


def has_history(value: Any) -> bool:
    """Whether the text of a value says what a tensor was computed by."""
    if type(value) in (list, tuple):
        return any(map(has_history, value))
    if type(value) is dict:
        return any(map(has_history, value.values()))
    return type(value) is TracedTensor and value.grad_fn is not None


@fleeting
class TracedText:
    """What stands for the string `function(*args)`, in which there are tensors or numbers of the graph. `str()` of it
    is that string, if numbers alone are in it: from there on the program depends on these."""

    __slots__ = ("args", "function", "has_any")

    def __init__(self, function: Any, *args: Any, has_any: bool = True) -> None:
        self.function, self.args = function, args
        self.has_any = has_any  # characters, whatever the values are

    def __str__(self) -> str:
        text: str = self.function(*map(_settled, self.args))
        return text

    def __repr__(self) -> str:
        return repr(str(self))

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        other = str(other) if type(other) is TracedText else other
        given = self.given if type(other) is str else None
        return str(self) == other if given is None else given.answer(operator.eq, other)

    def __bool__(self) -> bool:
        return self.has_any or (bool(str(self)) if self.given is None else self.given.answer(bool))

    @property
    def given(self) -> GivenText | None:
        """What it is from outside, if it is that and nothing more."""
        (first, *_) = self.args
        return first if type(first) is GivenText and self.function is str else None

    def __getattr__(self, name: str) -> Any:
        return getattr(str(self), name)


def _as_string(name: str) -> object:
    def answer(self: TracedText, *args: object) -> object:
        return getattr(str, name)(str(self), *[str(arg) if type(arg) is TracedText else arg for arg in args])

    return answer


for _name in ("len", "iter", "getitem", "contains", "lt", "le", "gt", "ge", "mul", "rmul"):
    setattr(TracedText, f"__{_name}__", _as_string(f"__{_name}__"))


_TEXTS = (str, TracedText)
#: Methods of strings whose results are strings: of a text that is not known yet they are texts, too.
TEXT_METHODS = frozenset(
    ["upper", "lower", "title", "capitalize", "casefold", "swapcase", "strip", "lstrip", "rstrip", "ljust", "rjust"]
    + ["center", "replace", "expandtabs", "zfill", "removeprefix", "removesuffix", "__str__", "__format__"]
)
#: Methods of strings whose answers are true or false.
QUESTIONS = [str.__contains__, str.startswith, str.endswith, str.isdigit, str.isnumeric, str.isdecimal, str.isalpha]
QUESTIONS += [str.isalnum, str.isidentifier, str.islower, str.isupper, str.istitle, str.isspace, str.isascii]


def joined(parts: list[Any], between: object = "") -> object:
    """`between.join(parts)`."""
    if type(between) is str and all(type(part) is str for part in parts):
        return between.join(parts)
    for part in parts:
        if type(part) not in _TEXTS:
            return "".join(parts)  # raises
    has_any = any(part if type(part) is str else part.has_any for part in parts)
    return TracedText(str.join, between, parts, has_any=has_any)


def _settled(value: Any) -> Any:
    """A part of a text as it is in this call."""
    cls = type(value)
    if cls is Pictured:
        raise DataDependent("formatting a tensor", value.data._trace.where, "data_text")
    if cls in (list, tuple):
        return cls([_settled(item) for item in value])
    if cls is TracedText:
        return str(value)
    if cls is GivenText:
        return value.fixed()
    kind = _NUMBERS.get(cls)
    return value if kind is None else kind(value)


_NUMBERS: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool, TracedFloat: float}


@fleeting
class GivenText:
    """A text from outside that is another one from call to call. What the program asks of it is guarded."""

    __slots__ = ("real", "source", "world")

    def __init__(self, world: World, real: str, source: Source) -> None:
        self.world, self.real, self.source = world, real, source

    def fixed(self) -> str:
        """The text as it is in this call. Raises Unsupported where a break is better."""
        self.world.program.fix_count(self.source, self.real, "the value")
        self.world.guards.add(self.source, "equals", self.real)
        return self.real

    def answer(self, function: Callable[..., bool], *args: object) -> bool:
        """What is true of it, guarded."""
        answer = function(self.real, *args)
        self.world.guards.add(Source("apply", self.source, args, function), "equals", answer)
        return answer


def _wrap_text(world: World, real: str, source: Source) -> TracedText | None:
    fixed = source.kind == "global" or str(source.key).startswith("__")  # names of modules, classes and functions
    if fixed or not world.symbols.is_changing(source, real, world.lifetimes.resumed):
        return None
    world.guards.add(source, "type", str)
    return TracedText(str, GivenText(world, real, source), has_any=False)


WRAPPERS[str] = _wrap_text


@functools.cache
def _history(name: str) -> Any:
    """An operation that autograd knows by this name."""

    class Text(Function):
        @staticmethod
        def forward(ctx: object, data: torch.Tensor) -> torch.Tensor:
            return data.view_as(data)

        @staticmethod
        def backward(ctx: object, *grads: object) -> object:
            return grads[0]

    Text._backward_cls.__name__ = name  # type: ignore[attr-defined]
    return Text


def picture(data: torch.Tensor, is_parameter: bool, history: str | torch.Tensor | None) -> torch.Tensor:
    """A tensor that looks like the one that a `Pictured` was made of."""
    if is_parameter:
        return torch.nn.Parameter(data, history is not None)
    if history is None:
        return data
    with torch.inference_mode(False), torch.enable_grad():
        leaf = data.clone().requires_grad_()
        if isinstance(history, torch.Tensor):
            history = type(history.grad_fn).__name__
        return _history(history).apply(leaf) if history else leaf  # type: ignore[no-any-return]


def _recipe_of_text(rebuilder: Rebuilder, value: TracedText) -> Recipe:
    return call_of(value.function, *[_at_once(rebuilder, arg) for arg in value.args])


def _at_once(rebuilder: Rebuilder, value: Any) -> Recipe:
    """A part of a text, for which a container must not be empty first."""
    cls = type(value)
    if cls is list or cls is tuple:
        return Recipe("list" if cls is list else "tuple", None, tuple([_at_once(rebuilder, item) for item in value]))
    if cls is dict:
        return Recipe("dict", None, tuple([_at_once(rebuilder, part) for item in value.items() for part in item]))
    if rebuilder.comes_later(value):
        reason = f"the text of a {cls.__name__}, beside a value that contains itself, leaves the function"
        raise rebuilder.world.guards.refusal("escape", reason)
    return rebuilder.recipe(value)


RECIPES[TracedText] = _recipe_of_text
RECIPES[GivenText] = lambda rebuilder, value: Recipe("source", value.source)
RECIPES[Pictured] = lambda rebuilder, value: call_of(
    picture, *map(rebuilder.recipe, (value.data, value.is_parameter, value.history))
)


# ---- identities ------------------------------------------------------------------------------------------------------


@fleeting
class MadeId(int):
    """The `id` of an object that the program has made; the one that leaves has another. `owner` answers the object, or
    None when it has gone: it is kept alive only where nobody can see that.
    """

    owner: Callable[[], Any]


_NUMBER = "it asks for the id of an object, which is another one in each process"


def id_of(world: World, value: object) -> object:
    """The `id` of an object. One from outside is a number from outside, guarded like others; what the program has made
    gets one that leaves as that of the object which leaves."""
    outside = world.real_of(value) or _copied(world, value)
    if outside is not None:
        real, source = outside
        if source.kind != "object":
            return world.wrap(id(real), Source("apply", source, (), id))
        world.guards.reliance.reasons.append((_NUMBER, world.guards.where()))
        return id(real)
    if type(value) in CONSTANT_TYPES and type(value) is not types.FunctionType:
        world.guards.reliance.reasons.append((_NUMBER, world.guards.where()))
        return id(value)
    number = MadeId(id(value))
    try:
        number.owner = weakref.ref(value)
    except TypeError:
        number.owner = lambda: value
    return number


def _copied(world: World, value: object) -> tuple[object, Source] | None:
    """The outside object that a tuple, a function or a method stands for."""
    if type(value) not in _COPIED:
        return None
    return next(((real, source) for real, held, source in world.identities.seen.values() if held is value), None)


_COPIED = (tuple, types.FunctionType, types.MethodType)


def _recipe_of_id(rebuilder: Rebuilder, value: MadeId) -> Recipe:
    owner = value.owner()
    return Recipe("constant", int(value)) if owner is None else call_of(id, rebuilder.recipe(owner))


RECIPES[MadeId] = _recipe_of_id
