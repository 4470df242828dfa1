"""What stands for values of other classes while a program is captured, the class that the program sees of each value,
and what classes of the program's answer in the place of torch's functions (`__torch_function__`)."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.overrides import _pop_mode_temporarily, get_ignored_functions

from bolide.dynamo.machine.interpreter import Call, Machine, Slot
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import PROXIES
from bolide.dynamo.state import state
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.iterators import Stream
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import MadeId, TracedText
from bolide.support.errors import Unsupported
from bolide.tracing import STANDS_FOR, TracedFloat, TracedTensor
from bolide.tracing.recording.recorder import NonLeaf

# Types whose operators are exact on values of the interpreter: no method of theirs is written in Python.
PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), tuple, list, dict, set, frozenset, range, slice, type(Ellipsis)}
    | {torch.Size, torch.dtype, torch.device, types.FunctionType}
)

SYMBOLIC: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool, TracedFloat: float}
"""Symbolic numbers, and what the program takes them for."""

PENDING: dict[type, type] = {**SYMBOLIC, TracedText: str}
"""As `SYMBOLIC`, with texts that are known when the graph has run."""

OUTSIDE_NODE = NonLeaf._backward_cls  # type: ignore[attr-defined]  # stands for nodes of the history outside


class StandIn(NamedTuple):
    """How values of a class of ours stand for those of another one: `seen` is the class that the program takes them
    for; `number` makes a number of Python's, perhaps a symbolic one, of numbers of other libraries."""

    seen: type
    number: Callable[[Any], Any] | None = None


STAND_INS: dict[type, StandIn] = {cls: StandIn(seen) for cls, seen in {**PENDING, MadeId: int}.items()}


def is_number(value: object) -> bool:
    """Whether a value stands for a number of another library's class."""
    return type(value) in STAND_INS and STAND_INS[type(value)].number is not None


def as_number(value: object) -> object:
    """Such a value as a number of Python's; any other itself."""
    stand_in = STAND_INS.get(type(value))
    return value if stand_in is None or stand_in.number is None else stand_in.number(value)


def class_of(value: Any) -> type:
    """The class the program sees."""
    cls = type(value)
    if cls is Outside:
        return value.cls  # type: ignore[no-any-return]
    if cls is TracedTensor and value.face is not None:
        return value.face  # type: ignore[no-any-return]
    if cls is Stream:
        return type(value.real)
    if cls is Generator:
        original = original_of(value)
        return cls if original is None else original.cls
    if cls is OUTSIDE_NODE:
        raise Unsupported("a node of the history outside is looked at", None, "use the tensor", "tensor_method")
    stand_in = STAND_INS.get(cls)
    return vars(cls).get(STANDS_FOR, cls) if stand_in is None else stand_in.seen


def real_value(value: Any) -> Any:
    """The value outside that `Outside`, or the owner of a method that is one, stands for; any other itself."""
    if type(value) is Outside:
        return value.real
    if type(value) is types.MethodType:
        return types.MethodType(value.__func__, real_value(value.__self__))
    return value


def seen_value(value: Any) -> Any:
    """Something of the class that the program sees."""
    if type(value) in PENDING:
        return PENDING[type(value)]()
    return value.real if type(value) in (Outside, Stream) else value


def settled(value: Any) -> Any:
    """A symbolic number that torch has made, as the program holds it: truths are known (`export` waits until one is
    needed), floats of the graph have their operators."""
    if type(value) is torch.SymBool and value.node.has_hint():
        return value if state.exporting and not value.node.is_constant() else bool(value)
    return getattr(value.node, "owner", value)


def concrete(vm: Machine, value: object) -> Any:
    """A symbolic number as the number that it is in this call, which is guarded; a text likewise."""
    vm.trace.where = vm.where()
    return PENDING[type(value)](value)


def behind(vm: Machine, value: object) -> Any:
    """What a weak proxy from outside stands for; any other value itself."""
    if type(value) is not Outside or value.cls not in PROXIES:
        return value
    target = _referent(value.real)
    vm.world.lifetimes.refuse_deaths(target)
    return vm.world.wrap(target, Source("apply", value.source, (), _referent))


def _referent(proxy: Any) -> Any:
    return proxy.__init__.__self__


# ---- `__torch_function__` --------------------------------------------------------------------------------------------


def overrides(value: Any) -> bool:
    """Whether torch's functions ask `value`, or an element of it, what they return."""
    cls = type(value)
    if cls is list or cls is tuple:
        return any(overrides(item) for item in value if type(item) is not TracedTensor)
    if cls is TracedTensor:
        return False
    cls = value.cls if cls is Outside else cls
    return hasattr(cls, "__torch_function__") and not issubclass(cls, torch.Tensor)


class _Probe:
    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return func


@functools.cache
def asked_by(operator: Callable[[Any, Any], Any], reflected: bool) -> Any:
    """The function that `__torch_function__` is told of for an operator between a tensor and (`reflected`: in front of
    it) an object."""
    with _pop_mode_temporarily() if torch._C._len_torch_function_stack() else contextlib.nullcontext():
        tensor = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
        return operator(_Probe(), tensor) if reflected else operator(tensor, _Probe())


def is_overridable(function: object) -> bool:
    """Whether a function is one of torch's that ask their arguments."""
    if type(function) is types.FunctionType:
        return "handle_torch_function" in function.__code__.co_names
    holder = getattr(function, "__objclass__", None)
    if holder is not None:
        return issubclass(torch.Tensor, holder) and holder is not object
    return isinstance(function, types.BuiltinFunctionType) and str(function.__module__).startswith("torch")


def goes_to_class(function: object) -> bool:
    """Whether torch asks the classes of a function's arguments what it returns."""
    return is_overridable(function) and function not in get_ignored_functions()


_FUNCTIONS = "_VariableFunctionsClass."
_OF_TENSORS = {torch.Tensor.as_subclass, torch.from_numpy}  # which ask nobody


def asks_modes(function: object) -> bool:
    """Whether a function is one of torch's that ask function modes."""
    if type(function) is types.FunctionType:
        return is_overridable(function)
    holder = getattr(function, "__objclass__", None)
    if holder is not None:
        of_getters = holder in (types.GetSetDescriptorType, types.MethodWrapperType)
        return (issubclass(torch.Tensor, holder) and holder is not object and function not in _OF_TENSORS) or of_getters
    if getattr(function, "__self__", None) is torch._C._nn:
        return True
    return str(getattr(function, "__qualname__", "")).startswith(_FUNCTIONS) and function not in _OF_TENSORS


def makes_tensors(function: object) -> bool:
    """Whether a function is one that a default device is for. (Where there is one, its module has been imported.)"""
    return function in sys.modules["torch.utils._device"]._device_constructors()


def overridden(function: object, relevant: Iterable[Any], args: list[Any], kwargs: dict[str, Any]) -> Call:
    """The call of the overrides of the `relevant` arguments: each class once, subclasses first. Functions written in
    Python count plain tensors among the classes."""
    owners: list[tuple[Any, Any]] = []
    with_tensors = type(function) is types.FunctionType
    for value in relevant:
        for item in value if type(value) in (list, tuple) else (value,):
            is_tensor = type(item) is TracedTensor
            if not (with_tensors if is_tensor else overrides(item)):
                continue
            cls = torch.Tensor if is_tensor else class_of(item)
            if all(known is not cls for known, _ in owners):
                place = next((i for i, (known, _) in enumerate(owners) if issubclass(cls, known)), len(owners))
                owners.insert(place, (cls, item))
    classes = tuple([cls for cls, _ in owners])
    asked = [item for cls, item in owners if cls is not torch.Tensor]
    return Call.polyfill("torch_override", function, asked, classes, tuple(args), kwargs)


# ---- sets, and keys that are sizes -----------------------------------------------------------------------------------

Key = Any
"""A key of a dict or a member of a set; or where such may be."""

SIZED_KEYS: Slot[list[object]] = Slot(list)
"""The keys so far that are sizes, or have such in them."""

SETS = (set, frozenset)
HASHED = (dict, *SETS)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()))
_SEARCHED: tuple[type, ...] = (*HASHED, *_VIEWS, list, tuple, type({}.values()))


def settle_keys(vm: Machine, *values: object) -> None:
    """Values are given to native code that may compare keys, by their hashes: sizes in dicts and sets among them have
    to be known."""
    if SIZED_KEYS.of(vm):
        for value in values:
            _settle(vm, value, type(value) in _VIEWS)


def _settle(vm: Machine, value: Key, is_hashed: bool) -> None:
    if is_hashed and type(value) is torch.SymInt:
        concrete(vm, value)
    elif type(value) in _SEARCHED:
        for part in value:
            _settle(vm, part, is_hashed or type(value) in HASHED)
        if type(value) is dict:
            for part in value.values():
                _settle(vm, part, False)


def note_order(vm: Machine, value: object) -> None:
    """The program goes through a set, if it is one: in which order depends on the process, but for numbers."""
    if type(value) not in SETS or len(value) < 2:  # type: ignore[arg-type]
        return
    settle_keys(vm, value)
    if not all(type(item) is int for item in value):  # type: ignore[attr-defined]
        vm.world.guards.reliance.reasons.append(("it goes through a set, in an order of this process", vm.where()))
