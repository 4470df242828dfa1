"""Calls of the user's `functools.lru_cache` functions.

What a cache holds cannot be read, and eager calls the function only where it holds nothing. So with constants for
arguments the cached function itself is called, while capturing and, as part of the guards, at every call: what it
answers is of the outside world (a cache that overflows later may so call its function more often than in eager). With
other arguments, and where the cache is full, the function inside is interpreted, once for the same arguments; it must
then not matter whether eager would have called it: it may have no effects, and answer no objects.
"""

from __future__ import annotations

from typing import Any

from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.native_calls import for_real
from bolide.dynamo.operations import polyfill
from bolide.dynamo.program import Source
from bolide.dynamo.values.kinds import is_constant
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor


def held(vm: Machine, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value that a cached function of the outside answers, or the Call that computes it."""
    refusal = vm.world.symbols.history.called_for_real.get(function)
    if refusal is not None:
        raise Unsupported(refusal, vm.where(), kind="side_effect")
    given = (tuple(args), tuple(kwargs.items()))
    results: dict[Any, Any] = vm.memory.setdefault(held, {})  # as `polyfills.library.call_cached` knows them
    if not is_constant(given):
        return Call(polyfill("call_cached"), [function, results, args, kwargs])
    if (function, *given) not in results:
        if not _keeps_more(function) or any(_written(vm)):
            return Call(polyfill("call_cached"), [function, results, args, kwargs])
        source = Source("apply", Source("object", None, None, function), given, _answer)
        results[(function, *given)] = vm.world.wrap(for_real(function, *args, **kwargs), source)
    return results[(function, *given)]


def _keeps_more(function: Any) -> bool:
    """Whether an answer stays in the cache, for arguments that are told apart by `==`."""
    info = function.cache_info()
    return (info.maxsize is None or info.currsize < info.maxsize) and not function.cache_parameters()["typed"]


def _answer(function: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    return function(*args, **dict(kwargs))


def _written(vm: Machine) -> tuple[list[Any], ...]:
    """What the program has written to the outside world by now, in a form that differs after another write."""
    world = vm.world
    return (
        [change for overlay in world.overlays for change in overlay.changes()],
        [list(snapshot.copy) for snapshot in world.snapshots.values() if snapshot.changed()],
        [value for _, before, value in world.cells.values() if value is not before],
        [item for grown in world.lists_grown.values() for item in grown.items],
        [taken for stream in world.streams for taken in range(stream.taken)],
        [group.version for tensor in vm.trace.inputs if (group := tensor.group).version],
        list(vm.deferred),
    )


class Writes:
    """What has been written before a cached function is interpreted."""

    def __init__(self, vm: Machine) -> None:
        self.before = _written(vm)

    def refuse_others(self, vm: Machine, function: Any, answer: Any) -> None:
        """Raises Unsupported where it matters whether the function was called."""
        does = None if _same(self.before, _written(vm)) else "has effects"
        does = does if does or _is_value(answer) else "answers an object"
        if does is not None:
            reason = f"{function.__wrapped__.__qualname__}, whose results are cached, {does}"
            vm.world.symbols.history.called_for_real[function] = reason  # the break belongs in front of the call
            raise Unsupported(reason, vm.where(), kind="side_effect")


def _same(first: Any, second: Any) -> bool:
    if type(first) in (list, tuple) and type(first) is type(second):
        return len(first) == len(second) and all(map(_same, first, second))
    return first is second


def _is_value(answer: Any) -> bool:
    """Whether nobody can tell an answer from another one like it, but for the identity of tensors."""
    if type(answer) is tuple:
        return all(map(_is_value, answer))
    return type(answer) is TracedTensor or is_constant(answer)
