"""The methods of generators and coroutines. Primitives are answered by the interpreter itself (`opcodes.generators`);
their bodies are what they do in eager."""

from __future__ import annotations

import sys
from typing import Any

CLOSE_RETURNS = sys.version_info >= (3, 13)


def generator_iter(generator: Any) -> Any:
    return generator


def generator_next(generator: Any) -> Any:
    return next(generator)


def generator_send(generator: Any, value: Any) -> Any:
    return generator.send(value)


def delegate_of_generator(generator: Any) -> Any:
    """What a suspended generator yields from, or None (primitive)."""
    return generator.gi_yieldfrom


def raise_in_generator(generator: Any, error: Any) -> Any:
    """Continue a generator, or the generator of the program's own that it yields from, by raising `error`
    (primitive)."""
    return generator.throw(error)


def thrown_exception(kind: Any, value: Any) -> Any:
    """The exception that the arguments of `throw` describe."""
    if isinstance(kind, type) and issubclass(kind, BaseException):
        if isinstance(value, kind):
            return value
        if value is None:
            return kind()
        return kind(*value) if isinstance(value, tuple) else kind(value)
    if isinstance(kind, BaseException):
        if value is not None:
            raise TypeError("instance exception may not have a separate value")
        return kind
    name = type(kind).__name__
    raise TypeError(f"exceptions must be classes or instances deriving from BaseException, not {name}")


def generator_throw(generator: Any, kind: Any, value: Any = None, traceback: Any = None) -> Any:
    error = thrown_exception(kind, value)
    if isinstance(error, GeneratorExit):
        inner = delegate_of_generator(generator)
        if inner is not None and hasattr(inner, "close"):
            try:
                inner.close()
            except BaseException as failure:
                error = failure
    return raise_in_generator(generator, error)


def generator_close(generator: Any) -> Any:
    try:
        generator_throw(generator, GeneratorExit)
    except GeneratorExit:
        return None
    except StopIteration as stop:
        return stop.value if CLOSE_RETURNS else None
    raise RuntimeError("generator ignored GeneratorExit")
