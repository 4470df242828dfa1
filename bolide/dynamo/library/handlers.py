"""How handlers of calls are written and registered.

A handler gives our own answer to calls of a function: a value, a `Call` to be interpreted, `SWITCHED` (it has pushed a
frame) or `NATIVE` (make the call as any other). There are three forms:

- `intercept(*functions)`: `handler(vm, args, kwargs)`, with the arguments as they were given (`intercept_all` for those
  that are one expression);
- `answers(*functions)`: `handler(vm, ...)`, with the function's own parameters;
- `intercept_each(functions)`, `intercept_table(table)`: `handler(function, vm, args, kwargs)`, one for many functions.

`by_polyfill` and `refuse` are for handlers that differ by data only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bolide.dynamo.machine.calls import NATIVE, Intercept, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill

Args = list[Any]
Kwargs = dict[str, Any]
Answer = TypeVar("Answer", bound=Callable[..., object])


def answers(*functions: object, recorded: bool = False) -> Callable[[Answer], Answer]:
    """Register a handler that has the parameters of `functions`. A call with arguments that do not fit is made as any
    other, and raises its own error. `recorded`: what the handler computes is recorded, as of the user's line."""

    def register(handler: Answer) -> Answer:
        def answer(vm: Machine, args: Args, kwargs: Kwargs) -> object:
            if recorded:
                vm.trace.where = vm.where()
            try:
                return handler(vm, *args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
            return NATIVE  # the handler was not entered

        intercept(*functions)(answer)
        return handler

    return register


def intercept_each(functions: Iterable[Any]) -> Callable[[Answer], Answer]:
    """Register a handler that is told which of the `functions` is called: `handler(function, vm, args, kwargs)`."""

    def register(handler: Answer) -> Answer:
        for function in functions:
            intercept(function)(functools.partial(handler, function))
        return handler

    return register


def intercept_table(table: Mapping[Any, object]) -> Callable[[Answer], Answer]:
    """As `intercept_each`, of the keys of `table` with their values: `handler(function, value, vm, args, kwargs)`."""

    def register(handler: Answer) -> Answer:
        for function, value in table.items():
            intercept(function)(functools.partial(handler, function, value))
        return handler

    return register


def intercept_all(table: Mapping[Any, Intercept]) -> None:
    """Register the handlers of the functions that are the keys of `table`."""
    for function, handler in table.items():
        intercept(function)(handler)


def by_polyfill(table: Mapping[Any, str]) -> None:
    """Calls of these functions are calls of the polyfills of these names."""

    @intercept_table(table)
    def answer(function: object, name: str, vm: Machine, args: Args, kwargs: Kwargs) -> Call:
        return Call(polyfill(name), args, kwargs)


def refuse(*functions: object, reason: str, kind: str, remedy: str | None = None, operation: str | None = None) -> None:
    """Calls of these functions are breaks."""

    @intercept(*functions)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> object:
        raise vm.unsupported(reason, kind, remedy, operation)
