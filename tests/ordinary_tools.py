"""What the tables of ordinary programs share: how a program is written down, run, and compared with eager.

A *program* takes what compiles (`bolide.compile`, or a function that does nothing) and returns all that it saw. A
*case* is a function or a module with inputs for a size; it is called with changing sizes, with gradients and without.
Compared are values, types, shapes, strides, histories and gradients, written arguments, parameters and buffers, what
was printed, errors, and the state of the random generators.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import math
import random
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import bolide
from bolide.support import events

PROGRAMS: dict[str, Callable[[Any], Any]] = {}
TOLERANCES = {
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (3e-3, 3e-3),
    torch.float64: (1e-9, 1e-10),
    torch.complex128: (1e-9, 1e-10),
}
_NUMBER = re.compile(r"\s*-?\d+\.\d*(?:e-?\d+)?")


def program(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Puts a whole program into the table, under its name."""
    assert run.__name__ not in PROGRAMS
    PROGRAMS[run.__name__] = run
    return run


def case(
    name: str,
    make: Callable[[], Any],
    inputs: Callable[[int], Any],
    sizes: tuple[int, ...] = (3, 5, 2),
    grad: bool = True,
    modes: tuple[str, ...] = ("grad", "no_grad"),
) -> None:
    """Puts a function or module into the table: `make` makes it, `inputs` its arguments for a size."""

    def run(compile: Callable[[Any], Any]) -> Any:
        function = make()
        compiled = compile(function)
        seen: list[Any] = []
        for mode in modes:
            for size in sizes if mode == modes[0] else sizes[-1:]:
                with contextlib.nullcontext() if mode == "grad" else torch.no_grad():
                    seen.append((mode, size, _called(function, compiled, inputs, size, grad and mode == "grad")))
        return seen

    run.__name__ = name
    program(run)


def fcase(name: str, function: Callable[..., Any], inputs: Callable[[int], Any], **options: Any) -> None:
    """As `case`, for a function."""
    case(name, lambda: function, inputs, **options)


def _called(function: Any, compiled: Any, inputs: Callable[[int], Any], size: int, grad: bool) -> Any:
    torch.manual_seed(size * 7 + 1)
    args = inputs(size)
    leaves = [x for x in tensors(args) if grad and x.is_leaf and (x.is_floating_point() or x.is_complex())]
    for leaf in leaves:
        leaf.requires_grad_()
    try:
        out = compiled(*args)
        seen = [picture(out)]
        parts = [_weighed(x, place) for place, x in enumerate(tensors(out)) if grad and x.requires_grad]
        if parts:
            sum(parts).backward()
    except Exception as error:
        return picture(error)
    seen += [picture(args), picture([leaf.grad for leaf in leaves])]
    if isinstance(function, nn.Module):
        seen.append(picture({name: (p, p.grad) for name, p in function.named_parameters()}))
        seen.append(picture(dict(function.named_buffers())))
        function.zero_grad()
    return seen


def _weighed(out: torch.Tensor, place: int) -> Any:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
    part = (out * weights.to(torch.float32 if out.is_complex() else out.dtype)).sum()
    return (part.real + part.imag if part.is_complex() else part).double()


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, each once."""
    found: dict[int, torch.Tensor] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), value)
        elif isinstance(value, dict):
            look(list(value.values()))
        elif isinstance(value, (list, tuple, set)):
            for item in value:
                look(item)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            look([getattr(value, field.name) for field in dataclasses.fields(value)])

    look(value)
    yield from found.values()


@dataclasses.dataclass(eq=False)
class Picture:
    """A tensor as it was: its data, and what a program can tell of it."""

    data: torch.Tensor
    kind: tuple[Any, ...]


def picture(value: Any, depth: int = 0) -> Any:
    """A value as plain data that later writes do not reach."""
    if depth > 8:
        return "..."

    def parts(items: Any) -> list[Any]:
        return [picture(item, depth + 1) for item in items]

    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        stride = tuple(step for step, n in zip(value.stride(), value.shape) if n != 1) if value.numel() else ()
        kind = (name, value.dtype, tuple(value.shape), stride, value.requires_grad, value.is_leaf)
        return Picture(value.detach().clone(), kind)
    if isinstance(value, np.ndarray):
        return (name, str(value.dtype), value.shape, value.tolist())
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, BaseException):
        return (name, str(value))
    if isinstance(value, dict):
        return (name, [tuple(parts(item)) for item in value.items()])
    if isinstance(value, (set, frozenset)):
        return (name, sorted(map(repr, value)))
    if isinstance(value, (list, tuple)):
        return (name, parts(value))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__
    if isinstance(value, nn.Module):
        return (name, picture(dict(value.state_dict()), depth + 1))
    if hasattr(value, "__dict__") and not isinstance(value, np.generic):
        return (name, parts(sorted(vars(value).items())))
    return (name, value)


def difference(expected: Any, found: Any, path: str = "result") -> str | None:
    """Where two pictures first differ, in words; None if they do not."""
    if isinstance(expected, Picture) and isinstance(found, Picture):
        if expected.kind != found.kind:
            return f"{path}: {expected.kind} in eager, {found.kind} compiled"
        return None if _close(expected.data, found.data) else f"{path}: {expected.data} in eager, {found.data} compiled"
    if type(expected) is not type(found):
        return f"{path}: {expected} in eager, {found} compiled"
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return f"{path}: {len(expected)} in eager, {len(found)} compiled"
        steps = (difference(a, b, f"{path}.{place}") for place, (a, b) in enumerate(zip(expected, found)))
        return next((step for step in steps if step), None)
    if isinstance(expected, (float, np.floating)):
        same = math.isclose(expected, found, rel_tol=2e-4, abs_tol=2e-5) or (expected != expected and found != found)
    elif isinstance(expected, str):
        same = expected == found or _same_text(expected, found)
    else:
        same = expected == found
    return None if same else f"{path}: {expected!r} in eager, {found!r} compiled"


def _close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, found)
    relative, absolute = TOLERANCES.get(expected.dtype, (2e-4, 2e-5))
    if expected.numel():
        absolute *= max(1.0, float(expected.abs().nan_to_num(0, 0, 0).max()))
    return torch.allclose(expected, found, rtol=relative, atol=absolute, equal_nan=True)


def _same_text(expected: str, found: str) -> bool:
    """Texts that differ in the last digits of numbers, or in the name of a history."""
    texts = [re.sub(r"grad_fn=<\w+>", "grad_fn", _NUMBER.sub("#", text)) for text in (expected, found)]
    numbers = [list(map(float, _NUMBER.findall(text))) for text in (expected, found)]
    return texts[0] == texts[1] and all(math.isclose(a, b, rel_tol=2e-3, abs_tol=2e-4) for a, b in zip(*numbers))


def observed(run: Callable[[Any], Any], compile: Callable[[Any], Any], seed: int = 0) -> Any:
    """All that can be seen of a run."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    out, err = io.StringIO(), io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.filterwarnings("ignore", category=UserWarning)
            result = picture(run(compile))
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    drawn = torch.get_rng_state().tolist(), random.random(), float(np.random.rand())
    return [result, out.getvalue(), err.getvalue(), drawn]


def check_whole(
    run: Callable[[Any], Any], versions: int = 2, breaks: int = 0, drawn: bool = True, **options: Any
) -> None:
    """A program whose inputs change gives what it does in eager, on fresh random inputs. At most so many `versions` are
    made of each function that it compiles, with so many `breaks`, and nothing is left to eager. `drawn`: random numbers
    are as many as in eager."""
    told: list[events.Event] = []
    made: list[Any] = []

    def compile(function: Any) -> Any:
        made.append(function)
        return bolide.compile(function, **options)

    seed = random.randrange(1 << 31)
    expected = observed(run, lambda function: function, seed)
    with events.subscribed(told.append):
        found = observed(run, compile, seed)
    different = difference(expected[: None if drawn else 3], found[: None if drawn else 3])
    assert different is None, different
    reasons = [each.reason for each in told if isinstance(each, (events.Break, events.Fallback))]
    assert len(reasons) <= breaks, reasons
    captured = sum(isinstance(each, events.Captured) for each in told)
    assert captured <= versions * len(made) * (1 + breaks), f"{captured} versions of {len(made)} functions"
