"""Programs for the tests of saved functions, each a function of one tensor or a module: with breaks, with branches and
loops over data, and with objects that need names."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import bolide

OFFSET = 1.0


def told(*values: object) -> None:
    """Stands for `print` in a function that is called."""
    bolide.graph_break()


def printed(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")
    return y.cos() * 2 + OFFSET


def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    """Where the first print has ended, nothing can be captured in front of the second one."""
    y = x.sin()
    print(print(end="") or "", end="")
    return y + 1


def in_a_callee(x: torch.Tensor) -> torch.Tensor:
    return _callee(x, 2) + _callee(x, 3)


def _callee(x: torch.Tensor, k: int) -> torch.Tensor:
    y = x * k
    told("callee", k)
    return y.sin()


def data_as_number(x: torch.Tensor) -> torch.Tensor:
    scale = max(round(float(x.abs().sum().item())), 1)
    return x / scale


def data_as_list(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum(-1).tolist()[0]


def in_a_loop(x: torch.Tensor) -> list[torch.Tensor]:
    results = []
    for place, (a, b) in enumerate(zip([1, 2], [3, 4])):
        told(place)
        results.append(x * a + b * place)
    return results


def over_a_dict(x: torch.Tensor) -> dict[str, torch.Tensor]:
    results = {}
    for key, value in {"a": x, "b": x * 2}.items():
        told(key)
        results[key] = value + 1
    return results


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        told()
        z = y.cos()
    return z * x


class _Scope(contextlib.AbstractContextManager[Any]):
    def __enter__(self) -> _Scope:
        self.gain = 2.0
        return self

    def __exit__(self, *error: object) -> None:
        self.gain = 3.0


def in_a_scope(x: torch.Tensor) -> torch.Tensor:
    with _Scope() as scope:
        told()
        y = x * scope.gain
    return y + scope.gain


def in_a_handler(x: torch.Tensor) -> torch.Tensor:
    try:
        y = x.sin()
        told()
        raise ValueError("a", "b")
    except ValueError as error:
        y = y + len(error.args)
        told()
        return y * 2


def _parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for factor in range(4):
        yield x * factor


def over_a_generator(x: torch.Tensor) -> torch.Tensor:
    parts = _parts(x)
    first = next(parts)
    told()
    second = next(parts)
    told()
    return first + second * sum(parts)


def with_closures(x: torch.Tensor) -> torch.Tensor:
    def inner(z: torch.Tensor, *, k: int = 2) -> torch.Tensor:
        told(k)
        return z * factor * k

    factor = 3
    return inner(x) + (lambda z: (told(), inner(z, k=4))[1])(x)


@torch.no_grad()
def _decorated(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    told()
    return y + 1


def decorated(x: torch.Tensor) -> torch.Tensor:
    return _decorated(x) * x


def recursive(x: torch.Tensor, depth: int = 3) -> torch.Tensor:
    if not depth:
        return x
    told(depth)
    return recursive(x * 1.5, depth - 1) + 1


def computed_shape(x: torch.Tensor) -> torch.Tensor:
    return x[torch.nonzero(x[:, 0] > -9)[:, 0].tolist()] + 1


class _Noted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        told(tuple(x.shape))
        return x.relu()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), _Noted(), nn.LayerNorm(8), _Noted(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * OFFSET


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 0:
        y = y * torch.tensor([1.0, 2.0, 3.0, 4.0])
    else:
        y = y.cos().reshape(-1).reshape(3, 4) @ torch.eye(4)
    return y + OFFSET


def data_with_branch(x: torch.Tensor) -> torch.Tensor:
    scale = max(round(float(x.abs().sum().item())), 1)
    return x / scale if scale > 8 else x * 2


def looping(x: torch.Tensor) -> torch.Tensor:
    while x.square().sum() < 100:
        x = x * 1.5
    return x.cos()


class _Kind(enum.Enum):
    WIDE = 3.0


def by_enumeration(x: torch.Tensor, kind: _Kind = _Kind.WIDE) -> torch.Tensor:
    return x * kind.value if kind is _Kind.WIDE else x


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent * ctx.saved_tensors[0].cos() * 2


def with_own_gradient(x: torch.Tensor) -> torch.Tensor:
    return _Sine.apply(x) * x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cells = nn.BatchNorm1d(4), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(self.norm(x)[None])[0]


def batched(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: row.sin().sum())(x)


def drawing(x: torch.Tensor) -> torch.Tensor:
    random.seed(3)
    return x * random.random() + random.gauss(0, 1) * random.randint(1, 5)


def importing(x: torch.Tensor) -> torch.Tensor:
    import math

    from torch.nn import functional as library

    return library.relu(x) * math.sqrt(2)


@functools.lru_cache
def _doubled(n: int) -> int:
    return n * 2


def cached(x: torch.Tensor) -> torch.Tensor:
    return x * _doubled(3)


def _made_here() -> type[nn.Module]:
    class Base(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(x) * OFFSET

        def act(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    class Derived(Base):
        def act(self, x: torch.Tensor) -> torch.Tensor:
            return super().act(x) + 1

    return Derived


def _with_named_tuples() -> Callable[[torch.Tensor], torch.Tensor]:
    pair = collections.namedtuple("pair", "first second")

    def function(x: torch.Tensor) -> torch.Tensor:
        both = pair(x.sin(), second=x.cos())
        return both.first + both.second * len(both)

    return function


def drawing_arrays(x: torch.Tensor) -> torch.Tensor:
    np.random.seed(3)
    return x * np.random.rand() + torch.from_numpy(np.random.rand(4)).float() * np.random.randint(1, 5)


def _slope(factor: float) -> float:
    return factor * OFFSET


def _scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x.sin() * factor


scale = torch.library.custom_op("bolide_tests::scale", _scale, mutates_args=())
scale.register_fake(lambda x, factor: torch.empty_like(x))
scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.x.cos() * _slope(ctx.factor), None),
    setup_context=lambda ctx, inputs, output: ctx.__dict__.update(x=inputs[0], factor=inputs[1]),
)


def through_operator(x: torch.Tensor) -> torch.Tensor:
    return scale(x * 2, 3.0) + 1  # type: ignore[no-any-return]


class Amount:
    """Has operators that are functions of the program's."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __rmul__(self, other: torch.Tensor) -> torch.Tensor:
        return other * self.number

    def __lt__(self, other: Amount) -> bool:
        return self.number < other.number


def with_amounts(x: torch.Tensor) -> torch.Tensor:
    few, many = Amount(2), Amount(3)
    return x * few * many if few < many else x


def divergence(x: torch.Tensor) -> torch.Tensor:
    """Asks a table of a library, whose keys are tuples of classes."""
    normal = torch.distributions.Normal(x, 1.0)
    return torch.distributions.kl_divergence(normal, torch.distributions.Normal(x * 2, 3.0))


def _with_cached_property() -> Callable[[torch.Tensor], torch.Tensor]:
    class Settings:
        @functools.cached_property
        def factor(self) -> float:
            return OFFSET * 2

    settings = Settings()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * settings.factor

    return function


NAMES = {"sin", "cos", "exp", "tanh", "sigmoid"}
FROZEN = frozenset(NAMES)


def with_set(x: torch.Tensor) -> torch.Tensor:
    """Asks a set, and sorts it: its order is another one in each process."""
    for name in sorted(NAMES):
        x = getattr(x, name)()
    return x * len(NAMES) if "cos" in FROZEN else x


def _with_reference() -> Callable[[torch.Tensor], torch.Tensor]:
    class Settings:
        factor = 3.0

    settings = Settings()
    reference = weakref.ref(settings)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * reference().factor  # type: ignore[union-attr]

    function.__dict__["kept"] = settings
    return function


def warning(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("of the line that calls", FutureWarning, stacklevel=1)
    return x + 1


class Adapted(nn.Module):
    """Calls a layer with parameters of its own, of which two are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {name: value * 2 for name, value in self.layers.named_parameters()}
        return torch.func.functional_call(self.layers, given, (x,))


BODIES: dict[str, Callable[[torch.Tensor], Any] | type[nn.Module]] = {
    "print": printed,
    "one after the other": one_after_the_other,
    "callee": in_a_callee,
    "data as a number": data_as_number,
    "data as a list": data_as_list,
    "loop": in_a_loop,
    "dict": over_a_dict,
    "no_grad": without_gradients,
    "scope": in_a_scope,
    "handler": in_a_handler,
    "generator": over_a_generator,
    "closures": with_closures,
    "decorated callee": decorated,
    "recursion": recursive,
    "computed shape": computed_shape,
    "stack of modules": Stack,
    "branch over data": branching,
    "branch over a number": data_with_branch,
    "loop over data": looping,
    "enumeration": by_enumeration,
    "gradient of its own": with_own_gradient,
    "recurrent layers": Recurrent,
    "vmap": batched,
    "random numbers of Python's": drawing,
    "import inside": importing,
    "cached function": cached,
    "functional_call": Adapted,
    "local classes": _made_here(),
    "named tuple": _with_named_tuples(),
    "random numbers of NumPy's": drawing_arrays,
    "operators of a class": with_amounts,
    "table of a library": divergence,
    "cached property": _with_cached_property(),
    "warning": warning,
    "set": with_set,
    "weak reference": _with_reference(),
    "operator of the program's": through_operator,
}
