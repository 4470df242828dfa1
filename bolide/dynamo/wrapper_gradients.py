"""Gradients with respect to wrapper subclasses of Tensor, and of those that leave a program.

Autograd sees a wrapper as one tensor: its gradient is another wrapper, or a plain tensor. The graph knows plain tensors
only. So each wrapper from outside that requires grad comes with *handles*, inputs of the graph without data: one for
each plain tensor that it is made of, and one for itself as a plain tensor. In the program its history begins at them
(`Given`), so what the engine finds there are gradients of plain tensors; when the call is made they are the results of
`Handles`, which puts the gradient together. A wrapper that leaves is taken apart in the program (`Opened`) and put
together for real (`Closed`) likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.support.errors import Unsupported


@dataclass(frozen=True)
class Form:
    """How a wrapper is put together of plain tensors: what `__tensor_flatten__` says, and the forms of its parts (None:
    a plain tensor)."""

    cls: Any
    names: tuple[str, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...] = field(compare=False)
    parts: tuple[Form | None, ...]


def is_made_of_parts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__")


def form_of(value: Any, class_of: Callable[[Any], Any] = type) -> Form:
    names, context = value.__tensor_flatten__()
    parts = [getattr(value, name) for name in names]
    forms = tuple(form_of(part, class_of) if is_made_of_parts(part) else None for part in parts)
    return Form(class_of(value), tuple(names), context, tuple(value.shape), value.stride(), forms)


def plain_parts(value: Any) -> list[Any]:
    """The plain tensors that a wrapper is made of."""
    found: list[Any] = []
    for name in value.__tensor_flatten__()[0]:
        part = getattr(value, name)
        found += plain_parts(part) if is_made_of_parts(part) else [part]
    return found


def put_together(form: Form, plain: Iterator[Any], make: Callable[..., Any]) -> Any:
    """The wrapper of this form; `make` calls a class's `__tensor_unflatten__`."""
    parts = {
        name: next(plain) if part is None else put_together(part, plain, make)
        for name, part in zip(form.names, form.parts)
    }
    return make(form.cls, parts, form.context, torch.Size(form.size), form.stride)


def unflatten(cls: Any, parts: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    return cls.__tensor_unflatten__(parts, context, size, stride)


def has_gradient(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _filled(gradients: Sequence[Any], like: Sequence[Any]) -> Iterator[Any]:
    return iter([torch.zeros_like(t) if given is None else given for given, t in zip(gradients, like)])


# ---- when the call is made -------------------------------------------------------------------------------------------


class _Handles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, real: Any) -> Any:
        ctx.form, plain = form_of(real), plain_parts(real)
        ctx.set_materialize_grads(False)
        return tuple([_empty(part) for part in plain] + [_empty(real)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        *parts, whole = gradients
        if all(part is None for part in parts):
            return whole
        made = put_together(ctx.form, iter(parts), unflatten)
        return made if whole is None else made + whole


def _empty(like: Any) -> torch.Tensor:
    """A plain tensor of the size and type of another one, without memory of its own."""
    return torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)


def handles(real: Any) -> tuple[torch.Tensor, ...]:
    """For each plain tensor that a wrapper is made of, and for itself, a plain tensor whose gradient is passed on."""
    with torch.enable_grad():
        found: tuple[torch.Tensor, ...] = _Handles.apply(real)  # type: ignore[no-untyped-call]
        return found


class _Closed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, *plain: Any) -> Any:
        ctx.form = form
        return put_together(form, iter([part.detach() for part in plain]), unflatten)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if form_of(gradient) != ctx.form if type(gradient) is ctx.form.cls else True:
            name = ctx.form.cls.__name__
            raise RuntimeError(
                f"bolide: the gradient of a {name} that a compiled function has returned is a "
                f"{type(gradient).__name__}, or a {name} of another form, which it was not compiled for. "
                "Remedy: compute the loss inside the compiled function."
            )
        return None, *plain_parts(gradient)


def closed(form: Form, *plain: Any) -> Any:
    """A wrapper of results of the graph, with their history."""
    return _Closed.apply(form, *plain)  # type: ignore[no-untyped-call]


# ---- in the program --------------------------------------------------------------------------------------------------


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wrapper: list[Any], form: Form, class_of: Any, *given: Any) -> Any:
        ctx.form, ctx.class_of = form, class_of
        ctx.count = len(given)
        return wrapper[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        parts = [None] * (ctx.count - 1)
        if not is_made_of_parts(gradient):
            return None, None, None, *parts, gradient
        if form_of(gradient, ctx.class_of) != ctx.form:
            reason = f"the gradient of a {ctx.form.cls.__name__}, a subclass of Tensor, is one of another form"
            raise Unsupported(reason, None, "call the function under no_grad", "input")
        return None, None, None, *plain_parts(gradient), None


def with_handles(wrapper: Any, form: Form, class_of: Callable[[Any], Any], given: Sequence[Any]) -> Any:
    """The wrapper with a history that begins at its handles."""
    with torch.enable_grad():
        return _Given.apply([wrapper], form, class_of, *given)  # type: ignore[no-untyped-call]


class _Opened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wrapper: Any, form: Form, make: Any) -> Any:
        ctx.form, ctx.make = form, make
        ctx.set_materialize_grads(False)
        ctx.plain = [part.detach() for part in plain_parts(wrapper)]
        return tuple(ctx.plain)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return put_together(ctx.form, _filled(gradients, ctx.plain), ctx.make), None, None


def opened(wrapper: Any, form: Form, make: Callable[..., Any]) -> Sequence[Any]:
    """The plain tensors that a wrapper with a history is made of, with that history."""
    found: Sequence[Any] = _Opened.apply(wrapper, form, make)  # type: ignore[no-untyped-call]
    return found
