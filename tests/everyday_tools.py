"""Small programs of every day, run in eager and compiled by the default backend with sizes that change: results,
exceptions, what is left in the arguments and gradients must be the same."""

from __future__ import annotations

import inspect
import itertools
import random
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

import bolide

SIZES = (3, 5, 4)
Maker = Callable[[int], Any]


def matrix(size: int) -> torch.Tensor:
    """What a program is given for a parameter of which nothing else is said."""
    return torch.randn(size, 4)


@dataclass
class Table:
    """The programs of one file."""

    programs: list[Program] = field(default_factory=list)

    def program(self, *makers: Any, sizes: Any = SIZES, made: bool = False, grad: bool = True) -> Any:
        """A decorator: the function is a program, called with what `makers` give for each of `sizes`. (What is no
        function is taken as it is.) `made`: it returns the program instead, which keeps state between its calls.
        `grad`: floating tensors among the arguments require gradients in one of the runs."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            make = function if made else lambda: function
            self.programs.append(Program(function.__name__, make, makers, tuple(sizes), grad))
            return function

        return add

    def params(self) -> dict[str, Any]:
        """For `pytest.mark.parametrize`."""
        return {"argnames": "program", "argvalues": self.programs, "ids": [one.name for one in self.programs]}


@dataclass
class Program:
    name: str
    make: Callable[[], Callable[..., Any]]
    makers: tuple[Any, ...]
    sizes: tuple[Any, ...]
    grad: bool

    def check(self) -> None:
        """Eager and compiled agree, with default options and with dynamic sizes."""
        for dynamic, grad in ((None, self.grad), (True, False)):
            eager, other = self.make(), self.make()
            compiled = bolide.compile(other, dynamic=dynamic)
            makers = self.makers or (matrix,) * len(inspect.signature(eager).parameters)
            for size in self.sizes:
                seed = random.randrange(1 << 30)
                expected, found = [outcome(run, makers, size, grad, seed) for run in (eager, compiled)]
                assert found == expected, difference(expected, found)


def outcome(program: Callable[..., Any], makers: Any, size: int, grad: bool, seed: int) -> Any:
    """What a call gives, or raises, as plain data."""
    torch.manual_seed(seed)
    args = [maker(size) if isinstance(maker, types.FunctionType) else maker for maker in makers]
    leaves = [t for t in tensors(args) if grad and t.is_floating_point() and t.is_leaf]
    for leaf in leaves:
        leaf.requires_grad_()
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        result = program(*args)
    except Exception as error:
        assert not type(error).__module__.startswith("bolide"), error
        return ["raised", type(error), str(error), described(args)]
    found = described(result)
    parts = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
    if parts:
        total = sum((part * torch.linspace(1, 2, part.numel()).view(part.shape)).sum().real for part in parts)
        assert isinstance(total, torch.Tensor)
        total.backward()
    return ["returned", found, described(args), [described(leaf.grad) for leaf in leaves]]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


class Numbers:
    """The data of a tensor, equal to others up to rounding."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach().clone()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Numbers):
            return False
        pair = [one.tensor if one.tensor.is_complex() else one.tensor.double() for one in (self, other)]
        return torch.allclose(pair[0], pair[1], rtol=1e-4, atol=1e-5, equal_nan=True)

    def __repr__(self) -> str:
        return repr(self.tensor.tolist())


_ATOMS = (type(None), bool, int, str, bytes, complex, type, torch.dtype, torch.device, torch.Size)


def described(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Plain data that is equal for equal values, of the same classes, in the same order, sharing the same parts."""
    seen = {} if seen is None else seen
    if isinstance(value, float):
        return ["float", repr(value)]
    if isinstance(value, _ATOMS):
        return [type(value).__name__, value]
    if type(value) is not tuple:
        if id(value) in seen:
            return ["again", seen[id(value)][0]]
        seen[id(value)] = (len(seen), value)
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return [name, value.dtype, value.shape, value.stride(), value.requires_grad, Numbers(value)]
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return [name, value.dtype.str, value.shape, Numbers(torch.from_numpy(value.copy()))]
    if isinstance(value, numpy.generic):
        return [name, value.dtype.str, Numbers(torch.from_numpy(numpy.array(value)))]
    parts: list[Any] = []
    if isinstance(value, torch.nn.Module):
        parts = [[key, described(part, seen)] for key, part in value.state_dict(keep_vars=True).items()]
    elif isinstance(value, dict):
        parts = [[described(key, seen), described(part, seen)] for key, part in value.items()]
    elif isinstance(value, (set, frozenset)):
        parts = sorted(repr(described(part)) for part in value)
    elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        parts = [value.__name__]
    elif isinstance(value, types.MethodType):
        parts = [value.__name__, described(value.__self__, seen)]
    elif isinstance(value, BaseException):
        parts = [described(value.args, seen)]
    elif isinstance(value, (range, slice, numpy.dtype, numpy.finfo, numpy.iinfo)):
        parts = [repr(value)]
    elif isinstance(value, Iterable):
        parts = [described(part, seen) for part in itertools.islice(value, 50)]
    if not isinstance(value, (types.FunctionType, numpy.finfo, numpy.iinfo)):
        state = getattr(value, "__dict__", {}).items()
        parts += [[key, described(part, seen)] for key, part in state if not key.startswith("_") and key != "forward"]
    return [name, *parts]


def difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two descriptions differ."""
    if not isinstance(expected, (list, tuple)) or type(expected) is not type(found) or len(expected) != len(found):
        return f"{path}: eager {str(expected)[:500]}, compiled {str(found)[:500]}"
    places = (i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other)
    place = next(places)
    return difference(expected[place], found[place], f"{path}[{place}]")
