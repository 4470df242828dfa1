"""Wrapper subclasses of Tensor: tensors made of tensors, as `__tensor_flatten__` says. How one is put together, and how
gradients go through taking it apart (`opened`) and putting it together (`closed`).

Autograd sees a wrapper as one tensor; graphs know the plain tensors that it is made of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bolide.support.errors import Unsupported

Value = Any
"""A wrapper or a plain tensor, real or traced; or a Function's context."""
ClassOf = Callable[[Value], type]


@dataclass(frozen=True)
class Form:
    """How a wrapper is put together of plain tensors: what `__tensor_flatten__` says, and the forms of its parts (None:
    a plain tensor). `known` is the context as a value to compare by; `others` are parts that are no tensors. Jagged
    tensors find sizes and strides themselves."""

    cls: Value
    names: tuple[str, ...]
    context: Value = field(compare=False)
    known: object
    size: tuple[Value, ...]
    stride: tuple[Value, ...] = field(compare=False)
    parts: tuple[Form | None, ...]
    others: tuple[tuple[str, object], ...]


def is_made_of_parts(value: Value) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__")


def layout_of(value: Value) -> tuple[Sequence[Value], Sequence[Value]]:
    """Sizes and strides that are to be said where a wrapper like this one is put together."""
    return ((), ()) if value.layout is torch.jagged else (value.shape, value.stride())


def form_of(value: Value, class_of: ClassOf = type) -> Form:
    every, context = value.__tensor_flatten__()
    others = tuple([(name, getattr(value, name)) for name in every if not _is_tensor(value, name)])
    names = tuple([name for name in every if _is_tensor(value, name)])
    parts = [getattr(value, name) for name in names]
    forms = [form_of(part, class_of) if is_made_of_parts(part) else None for part in parts]
    return form_from(class_of(value), names, others, without_history(context), *layout_of(value), *forms)


def without_history(context: Value) -> Value:
    """What a wrapper says of itself, but for what autograd knows."""
    said = isinstance(context, dict) and "requires_grad" in context
    return {**context, "requires_grad": False} if said else context


def _is_tensor(value: Value, name: str) -> bool:
    return isinstance(getattr(value, name), torch.Tensor)


def form_from(
    cls: Value,
    names: tuple[str, ...],
    others: tuple[tuple[str, object], ...],
    context: object,
    size: Value,
    stride: Value,
    *parts: Form | None,
) -> Form:
    return Form(cls, names, context, comparable(context), tuple(size), tuple(stride), parts, others)


def comparable(context: object) -> object:
    """What a wrapper says of itself, with its containers as tuples."""
    if isinstance(context, dict):
        return (type(context), *((key, comparable(value)) for key, value in context.items()))
    if isinstance(context, (list, tuple)):
        return (type(context), *map(comparable, context))
    return context


def has_gradient(part: Value) -> bool:
    """Whether a plain tensor that a wrapper is made of holds anything that gradients are for."""
    return (part.is_floating_point() or part.is_complex()) and not (part.dim() > 1 and 0 in part.shape)


def _gradients(form: Form, gradient: Value, class_of: ClassOf = type) -> list[Value] | None:
    """The gradient of each plain tensor that a wrapper of this form is made of; None if that of the wrapper is no
    wrapper like it. One may have parts without gradients that the other lacks."""
    if not is_made_of_parts(gradient) or class_of(gradient) is not form.cls:
        return None
    found = form_of(gradient, class_of)
    if (found.known, found.size, found.others) != (form.known, form.size, form.others):
        return None
    plain: list[Value] = []
    for name, part in zip(form.names, form.parts):
        own = getattr(gradient, name, None)
        inner = [own] if part is None else _gradients(part, own, class_of)
        if inner is None or is_made_of_parts(own) is (part is None):
            return None
        plain += inner
    return plain


def plain_parts(value: Value) -> list[Value]:
    """The plain tensors that a wrapper is made of."""
    parts: list[Value] = []
    for name in filter(functools.partial(_is_tensor, value), value.__tensor_flatten__()[0]):
        part = getattr(value, name)
        parts += plain_parts(part) if is_made_of_parts(part) else [part]
    return parts


def put_together(form: Form, plain: Iterator[Value], make: Callable[..., Value]) -> Value:
    """The wrapper of this form; `make` calls a class's `__tensor_unflatten__`."""
    parts = {
        name: next(plain) if part is None else put_together(part, plain, make)
        for name, part in zip(form.names, form.parts)
    }
    parts.update(form.others)
    return make(form.cls, parts, form.context, torch.Size(form.size), form.stride)


def count_of_parts(form: Form) -> int:
    """How many plain tensors a wrapper of this form is made of."""
    return sum(1 if part is None else count_of_parts(part) for part in form.parts)


def unflatten(cls: Value, parts: dict[str, Value], context: object, size: Sequence[int], stride: object) -> Value:
    return cls.__tensor_unflatten__(parts, context, torch.Size(size), stride)


def numbers(form: Form) -> list[Value]:
    """The sizes and strides that a form has."""
    return [*form.size, *form.stride, *(number for part in form.parts if part is not None for number in numbers(part))]


def with_numbers(form: Form, given: Iterator[Value]) -> Form:
    """The form with these sizes and strides, in the order of `numbers`."""
    size, stride = (tuple([next(given) for _ in places]) for places in (form.size, form.stride))
    parts = tuple([None if part is None else with_numbers(part, given) for part in form.parts])
    return replace(form, size=size, stride=stride, parts=parts)


def without_numbers(form: Form) -> Form:
    """What is the same for all sizes."""
    return with_numbers(form, iter([None] * len(numbers(form))))


# ---- gradients -------------------------------------------------------------------------------------------------------


class GradientOfOtherForm(Unsupported):
    """The gradient of a wrapper is none that its parts can be told of: not a wrapper of the same form."""

    def __init__(self, form: Form, gradient: object) -> None:
        name, cls = form.cls.__name__, type(gradient).__name__
        found = "is one of another form" if is_made_of_parts(gradient) else f"is a {cls}"
        reason = f"the gradient of a {name}, a subclass of Tensor, {found}"
        super().__init__(reason, None, "call the function under no_grad", "input")


def _zero(like: Value) -> torch.Tensor:
    """A plain tensor of the size and type of another one, without memory of its own."""
    zero: torch.Tensor = like.new_zeros(()).expand(like.shape)
    return zero


def _like(part: Value) -> torch.Tensor:
    """What a wrapper's gradient has in place of a part: zeros, or, where it is none that has gradients, itself."""
    return _zero(part) if has_gradient(part) else part


def _filled(gradients: Sequence[Value], likes: Sequence[torch.Tensor]) -> list[Value]:
    """Gradients of parts, with those that did not come."""
    return [
        like if not has_gradient(like) else torch.zeros_like(like) if given is None else given
        for given, like in zip(gradients, likes)
    ]


class _Opened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Value, wrapper: Value, form: Form, make: Value) -> Value:
        ctx.form, ctx.make = form, make
        ctx.set_materialize_grads(False)
        plain = plain_parts(wrapper)
        ctx.likes = list(map(_like, plain))
        return tuple([part.detach() for part in plain])

    @staticmethod
    def backward(ctx: Value, *gradients: Value) -> Value:
        return gradient_of(ctx.form, _filled(gradients, ctx.likes), ctx.make), None, None


def opened(wrapper: Value, form: Form, make: Callable[..., Value] = unflatten) -> Sequence[Value]:
    """The plain tensors that a wrapper with a history is made of, with that history."""
    return _Opened.apply(wrapper, form, make)  # type: ignore[no-untyped-call,no-any-return]


class _Closed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Value, form: Form, *plain: Value) -> Value:
        ctx.form, ctx.derived = form, [part.requires_grad for part in plain]
        own = [part.detach() if part.requires_grad else part for part in plain]
        return put_together(form, iter(own), unflatten)

    @staticmethod
    def backward(ctx: Value, gradient: Value) -> Value:
        parts = _gradients(ctx.form, gradient)
        if parts is None:
            name = ctx.form.cls.__name__
            raise RuntimeError(
                f"bolide: the gradient of a {name} that a compiled function has returned is a "
                f"{type(gradient).__name__}, or a {name} of another form, which it was not compiled for. "
                "Remedy: compute the loss inside the compiled function."
            )
        if gradient.requires_grad:
            parts = [*opened(gradient, form_of(gradient))]
        return None, *[part if derived else None for part, derived in zip(parts, ctx.derived)]


_Closed.backward._bolide_disabled = "it puts tensors of a class of the user's together"  # type: ignore[attr-defined]


def closed(form: Form, *plain: Value) -> Value:
    """A wrapper of the results of a graph, with their history."""
    return _Closed.apply(form, *plain)  # type: ignore[no-untyped-call]


def gradient_of(form: Form, plain: Sequence[Value], make: Callable[..., Value]) -> Value:
    """A wrapper of plain gradients, with their history where they have one."""
    if any(part is not None and part.requires_grad for part in plain):
        return closed(form, *plain)
    return put_together(form, iter(plain), make)


class _Handles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Value, real: Value) -> Value:
        ctx.form, plain = form_of(real), plain_parts(real)
        ctx.set_materialize_grads(False)
        ctx.likes = list(map(_like, plain))
        ends = list(map(_zero, plain))
        ctx.mark_non_differentiable(*[end for end, part in zip(ends, plain) if not has_gradient(part)])
        if real.layout is torch.jagged:  # no plain tensor has its size
            return tuple(ends)
        whole = torch.zeros((), dtype=real.dtype, device=real.device).expand(real.shape)
        return (*ends, whole)

    @staticmethod
    def backward(ctx: Value, *gradients: Value) -> Value:
        parts, wholes = gradients[: len(ctx.likes)], gradients[len(ctx.likes) :]
        whole = wholes[0] if wholes else None
        if all(part is None for part in parts):
            return whole
        gradient = gradient_of(ctx.form, _filled(parts, ctx.likes), unflatten)
        return gradient if whole is None else gradient + whole


_Handles.backward._bolide_disabled = _Closed.backward._bolide_disabled  # type: ignore[attr-defined]


def handles(real: Value) -> tuple[torch.Tensor, ...]:
    """For each plain tensor that a wrapper is made of, and for itself, a plain tensor whose gradient is passed on."""
    with torch.enable_grad():
        ends: tuple[torch.Tensor, ...] = _Handles.apply(real)  # type: ignore[no-untyped-call]
    for end, part in zip(ends, plain_parts(real)):  # what is said of a part's sizes is true of its gradient's
        vars(end).update((name, said) for name, said in vars(part).items() if name.startswith("_dynamo_"))
    return ends


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Value, wrapper: list[Value], form: Form, class_of: Value, *ends: Value) -> Value:
        ctx.form, ctx.class_of = form, class_of
        ctx.spare = len(ends) - len(plain_parts(wrapper[0]))
        ctx.count, ctx.ends = len(ends), [end is not None for end in ends]
        return wrapper[0]

    @staticmethod
    def backward(ctx: Value, gradient: Value) -> Value:
        parts = _gradients(ctx.form, gradient, ctx.class_of)
        if parts is not None:
            own = [part if is_input else None for part, is_input in zip(parts, ctx.ends)]
            return None, None, None, *own, *[None] * ctx.spare
        if is_made_of_parts(gradient) or not ctx.spare:
            raise GradientOfOtherForm(ctx.form, gradient)
        return None, None, None, *[None] * (ctx.count - 1), gradient


def given(wrapper: Value, form: Form, ends: Sequence[Value], class_of: ClassOf = type) -> Value:
    """A wrapper whose history begins at plain tensors, one for each that it is made of and maybe one for itself."""
    with torch.enable_grad():
        return _Given.apply([wrapper], form, class_of, *ends)  # type: ignore[no-untyped-call]
