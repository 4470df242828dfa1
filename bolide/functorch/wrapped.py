"""Wrapper subclasses of Tensor among the arguments and results of what is compiled ahead of time: they are taken apart
at the entry and put together at the exit, so that graphs are of plain tensors. While the function is traced there are
wrappers of traced tensors; their classes' code runs for real.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.tracing.tensor import Derivation
from bolide.tracing.wrappers import (
    Form,
    closed,
    form_of,
    given,
    handles,
    has_gradient,
    is_made_of_parts,
    numbers,
    opened,
    plain_parts,
    put_together,
    unflatten,
    with_numbers,
    without_numbers,
)

Value = Any
"""A wrapper or any other value, a result or part of one."""
Leaves = Sequence[Value]


class Apart(NamedTuple):
    """A wrapper taken apart: its place among those of the arguments (-1: of the result), what it is (`form`, without
    sizes), its sizes and strides, the plain tensors that it is made of, and tensors that take its gradient: `ends`, or,
    if it is `derived`, its parts."""

    place: int
    form: Form
    is_parameter: bool
    derived: bool
    numbers: list[Value]
    parts: list[Value]
    ends: list[Value]


class Same(NamedTuple):
    """The wrapper at this place among the arguments."""

    place: int


pytree.register_pytree_node(
    Apart,
    lambda apart: ([*apart[4:]], apart[:4]),
    lambda children, context: Apart(*context, *children),
)
pytree.register_pytree_node(Same, lambda same: ([], same.place), lambda _, place: Same(place))


def _is_shape(value: object) -> bool:
    """Whether it is a `torch.Size`, of which a tree of Python's would make a tuple."""
    return isinstance(value, torch.Size)


def _is_apart(value: object) -> bool:
    return type(value) in (Apart, Same)


def has_wrappers(spec: pytree.TreeSpec) -> bool:
    """Whether some were taken apart."""
    return spec.type is Apart or any(map(has_wrappers, spec.children()))


def taken_apart(wrapper: Value, place: int, by_handles: bool) -> Apart:
    """A wrapper from outside. Raises Unsupported where what it says of itself cannot be compared by hash."""
    form, parts, ends, derived = form_of(wrapper), plain_parts(wrapper), [], False
    try:
        hash(form)
    except TypeError:
        raise Unsupported(f"what a {form.cls.__name__} says of itself has no hash", kind="input") from None
    if wrapper.requires_grad:
        own = any(part.requires_grad for part in parts) or not all(map(has_gradient, parts))
        if by_handles or own:
            ends = [*handles(wrapper)]
        else:
            derived = True
            with torch.enable_grad():
                parts = [*opened(wrapper, form)]
    is_parameter = isinstance(wrapper, torch.nn.Parameter)
    return Apart(place, without_numbers(form), is_parameter, derived, numbers(form), parts, ends)


class Wrappers:
    """The wrappers among the arguments of a function that is being traced. `derivation` is told where gradients go
    through their classes' code: it is no derivative that could be differentiated again."""

    def __init__(self, derivation: Derivation) -> None:
        self.derivation = derivation
        self.made: dict[int, Value] = {}
        self.before: dict[int, tuple[object, ...]] = {}

    def together(self, arguments: Value) -> Value:
        """Arguments with wrappers of traced tensors in place of what outside ones were taken apart to."""
        return pytree.tree_map(self._argument, arguments, is_leaf=_is_apart)

    def _argument(self, apart: Value) -> Value:
        if type(apart) is not Apart:
            return apart
        if apart.place not in self.made:
            form = with_numbers(apart.form, iter(apart.numbers))
            parts = [part.detach() for part in apart.parts] if apart.derived else apart.parts
            wrapper = put_together(form, iter(parts), unflatten)
            if apart.derived or apart.ends:
                self.derivation.lost = True
                wrapper = given(wrapper, form, apart.parts if apart.derived else apart.ends)
            wrapper._is_param = apart.is_parameter
            self.made[apart.place] = wrapper
            self.before[apart.place] = _state(wrapper)
        return self.made[apart.place]

    def apart(self, result: Value) -> Value:
        """A result with its wrappers taken apart. Raises Unsupported for what happened to arguments that writes to
        their parts do not say."""
        for place, wrapper in self.made.items():
            if _state(wrapper) != self.before[place]:
                reason = f"an argument, a {type(wrapper).__name__}, gets a history, other parts or another shape"
                raise Unsupported(reason, kind="tensor_write")
        return pytree.tree_map(self._result, result, is_leaf=_is_shape)

    def _result(self, leaf: Value) -> Value:
        if not is_made_of_parts(leaf):
            return leaf
        place = next((place for place, wrapper in self.made.items() if wrapper is leaf), None)
        if place is not None:
            return Same(place)
        form, derived = form_of(leaf), leaf.requires_grad
        if derived and (leaf.is_leaf or not any(map(has_gradient, plain_parts(leaf)))):
            reason = f"a {form.cls.__name__} that was made inside the function and requires grad leaves it"
            raise Unsupported(reason, remedy="return what it is made of", kind="new_leaf")
        self.derivation.lost |= derived
        parts = plain_parts(leaf)
        if derived:
            parts = [new if has_gradient(old) else old for new, old in zip(opened(leaf, form), parts)]
        return Apart(-1, without_numbers(form), False, derived, numbers(form), parts, [])


def _state(wrapper: Value) -> tuple[object, ...]:
    """What of a wrapper no write to its parts changes."""
    form = form_of(wrapper)
    return (wrapper.grad_fn, wrapper.requires_grad, form, *numbers(form), *map(id, plain_parts(wrapper)))


def finished(result: Value, wrappers: Leaves) -> Value:
    """A result of real tensors with its wrappers put together; `wrappers` are those among the arguments."""
    return pytree.tree_map(
        functools.partial(_finished, wrappers), result, is_leaf=lambda part: _is_apart(part) or _is_shape(part)
    )


def _finished(wrappers: Leaves, value: Value) -> Value:
    if type(value) is Same:
        return wrappers[value.place]
    if type(value) is not Apart:
        return value
    form = with_numbers(value.form, iter(value.numbers))
    return closed(form, *value.parts) if value.derived else put_together(form, iter(value.parts), unflatten)
