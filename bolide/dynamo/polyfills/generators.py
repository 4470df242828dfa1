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


def raise_in_generator(generator: Any, error: Any, given: Any) -> Any:
    """Continue a generator, or the generator of the program's own that it yields from, by raising `error`, which
    `throw` was given as the arguments `given` (primitive)."""
    return generator.throw(error)


def given_to_throw(error: Any) -> Any:
    """The arguments of `throw` that an exception was made of (primitive)."""
    return (error,)


def delegated(iterable: Any) -> Any:
    """What ``yield from iterable`` draws from, where the class of that is the program's."""
    iterator = iter(iterable)
    if not is_stepped_by_code(iterator):
        return iterator
    return delegate(iterator) if hasattr(iterator, "close") or hasattr(iterator, "throw") else step(iterator)


def is_stepped_by_code(iterator: Any) -> Any:
    """Whether the next item of an iterator comes from a method of the program's (primitive)."""
    return False


def next_of(iterator: Any, sent: Any) -> Any:
    """What an iterator answers to what the generator that delegates to it was sent."""
    return type(iterator).__next__(iterator) if sent is None else iterator.send(sent)


def step(iterator: Any) -> Any:
    """``yield from`` an iterator that is only asked for its next item."""
    sent = None
    while True:
        try:
            item = next_of(iterator, sent)
        except StopIteration as stop:
            return stop.value
        sent = yield item


def delegate(iterator: Any) -> Any:
    """``yield from`` an iterator that is told of exceptions."""
    sent = None
    while True:
        try:
            item = next_of(iterator, sent)
        except StopIteration as stop:
            return stop.value
        while True:
            try:
                sent = yield item
                break
            except GeneratorExit:
                if hasattr(iterator, "close"):
                    iterator.close()
                raise
            except BaseException as error:
                if not hasattr(iterator, "throw"):
                    raise
                try:
                    item = iterator.throw(*given_to_throw(error))
                except StopIteration as stop:
                    return stop.value


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
    given = (kind,) if value is None else (kind, value)
    if isinstance(error, GeneratorExit):
        inner = delegate_of_generator(generator)
        if inner is not None and hasattr(inner, "close"):
            try:
                inner.close()
            except BaseException as failure:
                error = failure
    return raise_in_generator(generator, error, given)


def generator_close(generator: Any) -> Any:
    try:
        generator_throw(generator, GeneratorExit)
    except GeneratorExit:
        return None
    except StopIteration as stop:
        return stop.value if CLOSE_RETURNS else None
    raise RuntimeError("generator ignored GeneratorExit")
