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


def merge_keywords(target: Any, mapping: Any, function: Any) -> Any:
    try:
        for key in list(mapping.keys()):
            if key in target:
                raise TypeError(f"{function} got multiple values for keyword argument '{key}'")
            target[key] = mapping[key]
        return
    except AttributeError:
        pass
    raise TypeError(f"{function} argument after ** must be a mapping, not {type(mapping).__name__}")


def init_subclass(made: Any, keywords: Any) -> None:
    """What making a class does last."""
    super(made, made).__init_subclass__(**keywords)
