"""Calls of the user's `functools.lru_cache` functions.

What a cache holds cannot be read, and eager calls the function only where it holds nothing. So with arguments that are
of the outside world (constants, and at most one object) the cached function itself is called, while capturing and, as
part of the guards, at every call: what it answers is of the outside world (a cache that overflows later may so call its
function more often than in eager).

Where the program has written something by then, the function inside is interpreted first: it may have no effects. If it
answers an object, it is also called past its cache, in the world as it was: the same answer shows that nothing of what
was written matters, and the cached function is called as above.

With other arguments (sizes that are symbols), and where the cache is full, the function inside is interpreted, once for
the same arguments. A container that it answers, which eager may have from an earlier call, has to stay as it is and
inside of what is captured; instances and empty containers, which others may fill, are refused. That others write to a
container made for sizes that are symbols is not seen.
"""

from __future__ import annotations

import collections
from collections.abc import Container
from typing import Any, NamedTuple

import torch

from bolide.dynamo.machine.interpreter import Call, Machine, Slot
from bolide.dynamo.machine.native_calls import for_real
from bolide.dynamo.machine.stand_ins import SYMBOLIC, real_value
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import NO_NAMESPACE, is_constant, own_namespace, same_constant
from bolide.dynamo.world.journal import Written
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

_RESULTS: Slot[dict[Any, Any]] = Slot(dict, undone=True)
_ANSWERED: Slot[list[tuple[Any, list[tuple[Any, Any]]]]] = Slot(list)  # functions, containers and what was in those


def held(vm: Machine, function: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value that a cached function of the outside answers, or the Call that computes it."""
    refusal = vm.world.symbols.history.called_for_real.get(function)
    if refusal is not None:
        raise vm.unsupported(refusal, "side_effect")
    results = _RESULTS.of(vm)
    outside_call = _RealCall.of(function, args, kwargs)
    if outside_call is not None and outside_call.source in results:
        return results[outside_call.source]
    if outside_call is None or any(_written(vm)):
        key = (function, _named(tuple(args)), _named(tuple(kwargs.items())))
        return Call.polyfill("call_cached", function, results, key, args, kwargs)
    return outside_call.answer(vm, results)


class _RealCall(NamedTuple):
    """A call of a cached function that can be made for real; `source`: where its answer comes from."""

    function: Any
    args: list[Any]
    words: dict[str, Any]
    source: Source

    @classmethod
    def of(cls, function: object, args: list[Any], kwargs: dict[str, Any]) -> _RealCall | None:
        """None unless all arguments are of the outside world, one of them an object at most, and the answer stays in
        the cache."""
        values = [*args, *kwargs.values()]
        objects = list({id(value): value for value in values if type(value) is Outside}.values())
        if len(objects) > 1 or not all(map(_is_outside, values)) or not _keeps_more(function):
            return None
        place = objects[0] if objects else None
        given = tuple(_HOLE if value is place else value for value in args)
        words = tuple((name, _HOLE if value is place else value) for name, value in kwargs.items())
        base = Source("object", None, None, function) if place is None else place.source
        source = Source("apply", base, (function, given, words), _answer_about)
        outside_words = {name: real_value(value) for name, value in kwargs.items()}
        return cls(function, list(map(real_value, args)), outside_words, source)

    def answer(self, vm: Machine, results: dict[Any, Any]) -> Any:
        answer = for_real(self.function, *self.args, **self.words)
        results[self.source] = vm.world.wrap(answer, self.source)
        return results[self.source]


_HOLE = type("Hole", (), {"__repr__": lambda self: "_", "__slots__": ()})()


def _answer_about(value: Any, function: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """What a function answers with an object at its place among the arguments."""
    words = {name: value if word is _HOLE else word for name, word in kwargs}
    return function(*[value if arg is _HOLE else arg for arg in args], **words)


def _is_outside(value: object) -> bool:
    return type(value) is Outside or is_constant(tuple(value) if type(value) is torch.Size else value)


def _named(value: Any) -> Any:
    """Arguments as a key: a symbolic size, whose hash would be its value, by what it is computed from."""
    if type(value) in (tuple, torch.Size):
        return tuple(map(_named, value))
    return (torch.SymInt, str(value.node.expr)) if type(value) is torch.SymInt else value


def _keeps_more(function: Any) -> bool:
    """Whether an answer stays in the cache, for arguments that are told apart by `==`."""
    info = function.cache_info()
    return (info.maxsize is None or info.currsize < info.maxsize) and not function.cache_parameters()["typed"]


def _written(vm: Machine) -> tuple[Written, list[int], int]:
    """What the program has written to the outside world by now, in a form that differs after another write."""
    return (
        vm.world.journal.so_far(),
        [group.version for tensor in vm.trace.inputs if (group := tensor.group).version],
        len(vm.later.calls),
    )


class Writes:
    """What has been written before a cached function is interpreted."""

    def __init__(self, vm: Machine) -> None:
        self.before = _written(vm)

    def settled(self, vm: Machine, function: Any, args: list[Any], kwargs: dict[str, Any], answer: Any) -> Any:
        """What stands for the answer of an interpreted call. Raises Unsupported where it matters whether eager would
        have called the function; containers are looked at again at the end (`refuse_seen`)."""
        if self.before != _written(vm):
            raise _refused(vm, function, "has effects")
        if _is_value(answer):
            return answer
        outside_call = _RealCall.of(function, args, kwargs)
        if outside_call is not None:
            if _is_like(answer, for_real(function.__wrapped__, *outside_call.args, **outside_call.words)):
                return outside_call.answer(vm, _RESULTS.of(vm))
            raise _refused(vm, function, "answers an object that is made of what was written before")
        containers = _containers(answer)
        if containers is None:
            raise _refused(vm, function, "answers an object")
        _ANSWERED.of(vm).append((function, [(value, _contents(value)) for value in containers]))
        return answer


def refuse_seen(vm: Machine, leaving: Container[int]) -> None:
    """Raises Unsupported where a container that a cached function answered was written to, or leaves what is captured;
    `leaving` has the ids of all that does."""
    for function, containers in _ANSWERED.of(vm):
        for value, before in containers:
            if not _same(before, _contents(value)):
                raise _refused(vm, function, "answers an object that is written to", final=True)
            if type(value) is not TracedTensor and id(value) in leaving:
                raise _refused(vm, function, "answers an object that leaves the function", final=True)


def _refused(vm: Machine, function: Any, does: str, final: bool = False) -> Unsupported:
    reason = f"{function.__wrapped__.__qualname__}, whose results are cached, {does}"
    vm.world.symbols.history.called_for_real[function] = reason  # the break belongs in front of the call
    refusal = vm.unsupported(reason, "side_effect")
    refusal.final = final
    return refusal


def _same(first: Any, second: Any) -> bool:
    if type(first) in (list, tuple) and type(first) is type(second):
        return len(first) == len(second) and all(map(_same, first, second))
    return first is second


def _is_value(answer: object) -> bool:
    """Whether nobody can tell an answer from another one like it."""
    if type(answer) is tuple:
        return all(map(_is_value, answer))
    return type(answer) in SYMBOLIC or is_constant(answer)


def _is_like(answer: object, real: object) -> bool:
    """Whether an object of the program is made as a real one is; what cannot be looked into is not."""
    if type(answer) is Outside:
        return answer.real is real
    if type(answer) is not type(real):
        return False
    if is_constant(answer):
        return same_constant(answer, real)
    first, second = _contents(answer), _contents(real)
    if first is None or second is None or type(answer) is TracedTensor:
        spaces = own_namespace(answer), own_namespace(real)
        cls: Any = type(answer)
        if NO_NAMESPACE in spaces or cls.__new__ is not object.__new__:
            return False
        first, second = ([part for item in space.items() for part in item] for space in spaces)
    return len(first) == len(second) and all(map(_is_like, first, second))


def _containers(answer: object) -> list[Any] | None:
    """The containers and tensors that an answer consists of; None if there are other objects in it, or if it is an
    empty container."""
    if type(answer) is not tuple and _contents(answer) == []:
        return None
    waiting, containers, met = [answer], [], set()
    while waiting:
        value = waiting.pop()
        if id(value) in met or _is_value(value) or type(value) is Outside:
            continue
        contents = _contents(value)
        if contents is None:
            return None
        met.add(id(value))
        if type(value) is not tuple:
            containers.append(value)
        if type(value) is not TracedTensor:
            waiting += contents
    return containers


def _contents(value: Any) -> list[Any] | None:
    """What a container consists of; of a tensor, how often it was written to. None for other objects."""
    cls = type(value)
    if cls is TracedTensor:
        return [value.group, value.group.version]
    if cls in (list, tuple, set, frozenset, collections.deque):
        return list(value)
    return [part for item in value.items() for part in item] if cls is dict else None
