"""Parts of statements and calls that run code of the program: unpacking, `**keywords`."""

from __future__ import annotations

from typing import Any


def take(iterable: Any, count: Any) -> Any:
    """The first `count` items, None for all."""
    items = []
    if count != 0:
        for item in iterable:
            items.append(item)
            if len(items) == count:
                break
    return items


def merge(target: Any, mapping: Any) -> Any:
    """``{**target, **mapping}``: where it raises AttributeError, that is no mapping."""
    try:
        for key in list(mapping.keys()):
            target[key] = mapping[key]
        return
    except AttributeError:
        pass
    raise TypeError(f"'{type(mapping).__name__}' object is not a mapping")


def merge_keywords(target: Any, mapping: Any, function: Any, misread: Any) -> Any:
    """``function(**target, **mapping)``. With `misread`, a KeyError of the mapping's is taken for that of a key that is
    there already."""
    message = f"{function} argument after ** must be a mapping, not {type(mapping).__name__}"
    try:
        for key in list(mapping.keys()):
            if key in target:
                raise TypeError(f"{function} got multiple values for keyword argument '{key}'")
            target[key] = mapping[key]
        return
    except AttributeError:
        pass
    except KeyError as error:
        if not misread or len(error.args) != 1:
            raise
        message = f"{function} got multiple values for keyword argument '{error.args[0]!s}'"
    raise TypeError(message)


def init_subclass(made: Any, keywords: Any) -> None:
    """What making a class does last."""
    super(made, made).__init_subclass__(**keywords)
