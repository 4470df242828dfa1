"""What entries call to make and to fill objects, as recipes say (`Rebuilder`): no method of their classes is run."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.kinds import class_attribute, maker, own_namespace, tuple_of
from bolide.dynamo.world.outside import CONTAINERS
from bolide.tracing import TracedTensor

_MADE_EMPTY: tuple[type, ...] = (object, dict, list, set, frozenset, tuple)
_MADE_EMPTY += (collections.OrderedDict, collections.defaultdict, collections.deque)


def is_open(cls: type) -> bool:
    """Whether all that an instance holds is seen in Python: nothing is in memory that code in C keeps for itself."""
    return is_python_class(cls) and maker(cls).__self__ in _MADE_EMPTY


def bare_instance(cls: type) -> Any:
    """An empty instance, made past any `__new__` that is written in Python."""
    return maker(cls)(cls)


def dead_reference() -> object:
    """A weak reference to what is no more."""
    return weakref.ref(set())


def weak_container(cls: Any, items: list[Any]) -> Any:
    container = cls()
    for item in items:
        if cls is weakref.WeakSet:
            container.add(*item)
        else:
            container[item[0]] = item[1]
    return container


def make_instance(cls: Any, attributes: dict[str, object] | None, items: Any) -> object:
    """A new instance of `cls` with the given state; no method of the class is run. `items` are those of a dict, list,
    set, tuple or deque subclass. `attributes` are None for a dict whose items are its attributes."""
    if issubclass(cls, frozenset):
        instance: Any = frozenset.__new__(cls, items)
    else:
        instance = tuple_of(cls, items) if issubclass(cls, tuple) else bare_instance(cls)
    _complete(instance, attributes, items)
    return instance


def fill_instance(empty: object, full: object) -> None:
    """Give an instance without state that of another one of its class."""
    _complete(empty, None if own_namespace(full) is full else state_of(full), full)


def _complete(instance: object, attributes: dict[str, object] | None, items: object) -> None:
    """Give an instance its state: see `make_instance`."""
    base = next((base for base in _FILLED_BY if isinstance(instance, base)), None)
    if items is not None and base is not None:
        _FILLED_BY[base](instance, items)
    if attributes is None:
        object.__setattr__(instance, "__dict__", instance)
        return
    for name, value in attributes.items():
        _restore(instance, name, value)


def _restore(instance: object, name: str, value: object) -> None:
    """Give an instance what another one has in a slot or in its namespace, whatever else its class has of that name."""
    descriptor = class_attribute(type(instance), name)
    if type(descriptor) is types.MemberDescriptorType:
        descriptor.__set__(instance, value)
    else:
        own_namespace(instance)[name] = value


def _fill_ordered(empty: collections.OrderedDict[object, object], items: dict[object, object]) -> None:
    for key, value in items.items():
        collections.OrderedDict.__setitem__(empty, key, value)


_FILLED_BY: dict[type, Callable[[Any, Any], None]] = {
    collections.OrderedDict: _fill_ordered,
    dict: dict.update,
    set: set.update,
    list: list.extend,
    collections.deque: lambda empty, full: collections.deque.__init__(empty, full, full.maxlen),
}


def made_in_mode(tensor: torch.Tensor, inference: bool) -> torch.Tensor:
    """A tensor in the memory of another, as one that was made in inference mode, or outside."""
    with torch.inference_mode(inference):
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def make_derived(cls: Any, base: Any, value: Any, attributes: dict[str, Any]) -> Any:
    """A new instance of a subclass of int, float, str or bytes."""
    instance = base.__new__(cls, value)
    for name, item in attributes.items():
        object.__setattr__(instance, name, item)
    return instance


def with_state(cls: Any, state: object) -> object:
    """A new file in memory, or generator of random numbers."""
    instance = cls()
    instance.__setstate__(state)
    return instance


def make_exception(cls: type, args: tuple[Any, ...], attributes: dict[str, Any], links: tuple[Any, ...]) -> Any:
    """A new exception; `links` are its cause, its context, whether the context is suppressed, and its traceback."""
    exception = cls.__new__(cls, *args)
    initialise: Any = getattr(cls, "__init__")  # noqa: B009
    if type(initialise) is not types.FunctionType:
        initialise(exception, *args)  # sets what `args` alone does not hold: a StopIteration's value, an OSError's file
    exception.__dict__.update(attributes)
    exception.__cause__, exception.__context__, exception.__suppress_context__, exception.__traceback__ = links
    return exception


def refill(target: Any, items: Any) -> None:
    """Give a list, deque or bytearray new contents, whatever methods a subclass has of its own."""
    if isinstance(target, bytearray):  # with a memoryview on it, its size is fixed
        bytearray.__setitem__(target, slice(None), bytes(items))
        return
    base: Any = next(base for base in CONTAINERS if isinstance(target, base))
    base.clear(target)
    base.extend(target, items)


def exchange(target: set[object], gone: list[object], new: list[object]) -> None:
    """Take items out of a set and put others in."""
    set.difference_update(target, gone)
    set.update(target, new)


def state_of(value: object) -> dict[str, object]:
    """An instance's attributes, those in slots too (unless a subclass has something else of that name)."""
    attributes = dict(own_namespace(value))
    members = {name: member for base in reversed(type(value).__mro__) for name, member in base.__dict__.items()}
    for name, member in members.items():
        if type(member) is types.MemberDescriptorType and hasattr(value, name):
            attributes[name] = getattr(value, name)
    return attributes


def make_partial(attributes: dict[str, object], function: Any, /, *args: Any, **keywords: Any) -> object:
    """A partial with attributes of its own."""
    partial = functools.partial(function, *args, **keywords)
    if attributes:
        partial.__dict__.update(attributes)
    return partial


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    defaults: Any,
    closure: Any,
    attributes: dict[str, object],
) -> types.FunctionType:
    function = types.FunctionType(code, namespace, name, defaults, closure)
    for fact in _FACTS & attributes.keys():
        setattr(function, fact, attributes.pop(fact))
    function.__dict__.update(attributes)
    return function


_FACTS = {"__kwdefaults__", "__qualname__", "__annotations__", "__doc__", "__module__", "__type_params__"}


def facts_of(function: Any) -> dict[str, Any]:
    """What a new function is told beside its code: what it is not of itself."""
    bare = types.FunctionType(function.__code__, function.__globals__, None, None, function.__closure__)
    facts = {name: (getattr(function, name, None), getattr(bare, name, None)) for name in _FACTS}
    return {name: mine for name, (mine, its) in facts.items() if not _is_same_fact(mine, its)}


def _is_same_fact(mine: object, its: object) -> bool:
    if type(mine) is not type(its):
        return False
    return bool(mine == its) if type(mine) is str else mine is its or (not mine and not its)


# ---- what autograd has recorded behind a tensor ----------------------------------------------------------------------


def behind(tensors: Iterable[Any]) -> list[Any]:
    """The nodes of autograd's graph behind `tensors`, each after the nodes that it leads to."""
    order: list[Any] = []
    seen: set[Any] = set()
    waiting = [(tensor.grad_fn, False) for tensor in tensors]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(following, False) for following, _ in node.next_functions]
    return order


def is_spent(tensor: TracedTensor) -> bool:
    """Whether the program has already released what the tensor's gradient needs, by calling backward inside."""
    return not tensor._trace.derivation.spent.isdisjoint(behind([tensor]))


def detached(tensor: Any) -> object:
    with torch.no_grad():
        return tensor.detach()


def released(value: torch.Tensor) -> Any:
    """`value` with a history that cannot be differentiated, as eager leaves it."""
    message = "Trying to backward through the graph a second time (or directly access saved tensors after they have "
    message += "already been freed): backward was called inside the compiled function, without retain_graph=True"
    with torch.enable_grad():
        return torch._C._functions.DelayedError(message, 1)(value.requires_grad_())


def taken(flag: object, first: object, second: object) -> object:
    """What is there after a branch, of two values."""
    return first if flag else second
