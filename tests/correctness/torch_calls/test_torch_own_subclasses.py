"""Wrapper subclasses of Tensor whose code is torch's, and those that native code makes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass

import bolide
from bolide.support import events

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of", "ignore:.*is_fx_tracing")


class Own(TwoTensor):
    """A wrapper of the program's."""


@bolide.allow_in_graph
def native_two(x: torch.Tensor) -> Any:
    return TwoTensor(x + 1, x * 2)


@bolide.allow_in_graph
def native_own(x: torch.Tensor) -> Any:
    return [Own(x + 1, x * 2)]


def _opened(value: Any) -> Any:
    """Wrappers as their class and what they are made of."""

    def opened(one: Any) -> Any:
        if type(one) in (TwoTensor, Own):
            numbers = (*one.shape, *one.stride())
            return type(one).__name__, _opened([one.a, one.b]), numbers, [type(number).__name__ for number in numbers]
        return (type(one).__name__, one.get_data(), one.get_mask()) if hasattr(one, "get_mask") else one

    return pytree.tree_map(opened, value)


def _agree(found: Any, expected: Any) -> None:
    for one, other in zip(pytree.tree_leaves(_opened(found)), pytree.tree_leaves(_opened(expected)), strict=True):
        if isinstance(one, torch.Tensor):
            assert type(one) is torch.Tensor
            torch.testing.assert_close(one, other)
        else:
            assert one == other


CAPTURED: list[Callable[..., Any]] = [
    lambda x: TwoTensor(x + 1, x * 2),
    lambda x: TwoTensor(x + 1, x * 2) * 2,
    lambda x: TwoTensor(x.clone(), x.clone()).view(-1),
    lambda x: (TwoTensor(x + 1, x * 2) * x).b,
]
BROKEN: list[Callable[..., Any]] = [
    lambda x: native_two(x).view(-1),
    lambda x: native_two(x) * 2 + 1,
    lambda x: native_own(x)[0] * x,
    lambda x: masked_tensor(x, x > 0) * 2,
    lambda x: [masked_tensor(x, x > 0)],
    lambda x: masked_tensor(x, x > 0).sum().get_data() + x,
    lambda x: torch.stack([masked_tensor(x, x > 0), masked_tensor(x, x < 0)]),
]


@pytest.mark.parametrize("place", range(len(CAPTURED)))
def test_wrappers_of_torchs_are_captured(place: int) -> None:
    fn = CAPTURED[place]
    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3)
        _agree(compiled(x), fn(x))
    assert len(compiled._bolide.entries) == 1


def test_wrappers_of_torchs_are_inputs_with_gradients() -> None:
    def fn(w: Any, x: torch.Tensor) -> Any:
        return w.sin() * 2 + x

    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(3):
        given, x = (torch.randn(3), torch.randn(3)), torch.randn(3)
        found = []
        for function in (compiled, fn):
            w: Any = TwoTensor(given[0].clone(), given[1].clone()).requires_grad_()
            out = function(w, x)
            out.sum().backward()
            found.append((out.detach(), w.grad))
        _agree(*found)


NESTED: dict[str, Callable[..., Any]] = {
    "strided": lambda x, y: torch.nested.nested_tensor([x, y]).to_padded_tensor(0.5) * 2,
    "of_what_is_there": lambda x, y: torch.nested.as_nested_tensor([x, y]).to_padded_tensor(0.5) * 2,
}


@pytest.mark.parametrize("name", NESTED)
def test_what_makes_other_nested_tensors_breaks_and_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of torch's is run for the capture, so torch logs nothing."""
    fn, sizes = NESTED[name], [random.randint(2, 6) for _ in range(2)]
    given = [torch.randn(size, 3) for size in sizes]
    with pytest.raises(bolide.Unsupported, match="nested tensors are not compiled") as caught:
        bolide.compile(fn, fullgraph=True)(*given)
    assert "values()" in str(caught.value) and not caplog.records
    met: list[Any] = []
    with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
        compiled = bolide.compile(fn)
        for _ in range(3):
            _agree(compiled(*given), fn(*given))
            given = [torch.randn(random.randint(2, 6), 3) for _ in range(2)]
    assert "nested tensors are not compiled" in met[0].reason


@pytest.mark.parametrize("place", range(len(BROKEN)))
def test_wrappers_that_native_code_makes_are_made_for_real(place: int) -> None:
    fn = BROKEN[place]
    compiled = bolide.compile(fn)
    for _ in range(3):
        x = torch.randn(3)
        _agree(compiled(x), fn(x))
    with pytest.raises(bolide.Unsupported):
        bolide.compile(fn, fullgraph=True)(torch.randn(3))


@pytest.mark.parametrize("program", [lambda t: t * 2, lambda t: (t[1:], t.T + 1), lambda t: TwoTensor(t.a, t.b)])
def test_wrappers_of_changing_sizes_have_numbers_for_sizes(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program)
    for size in (4, 6, 9, 6):
        given = TwoTensor(torch.randn(4, size), torch.randn(4, size))
        _agree(compiled(given), program(given))


class Noted(TwoTensor):
    """What it says of itself is a list, which may hold objects of the program's."""

    notes: Any = ()

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], [*self.notes]

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        made = Noted(parts["a"], parts["b"])
        made.notes = context
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = next(arg for arg in args if isinstance(arg, Noted))
        if isinstance(result, TwoTensor):
            result = Noted(result.a, result.b)
            result.notes = given.notes
        return result


@dataclass(frozen=True)
class Layout:
    """What a wrapper says of itself."""

    factor: float


@pytest.mark.parametrize(
    "notes", [["rows", (1, 3)], [{"group": 4}, [2]], [Layout(2.0)]], ids=["list", "dict", "object"]
)
def test_what_wrappers_say_of_themselves_may_be_containers_and_objects(notes: Any) -> None:
    def fn(t: Any) -> Any:
        return t * (t.notes[0].factor if isinstance(t.notes[0], Layout) else len(t.notes)), t

    compiled = bolide.compile(fn, fullgraph=True)
    for said in (notes, notes, notes, [Layout(3.0)]):
        t = Noted(torch.randn(3), torch.randn(3))
        t.notes = said
        found, expected = compiled(t), fn(t)
        for one, other in zip(found, expected):
            torch.testing.assert_close((one.a, one.b), (other.a, other.b))
            assert [*one.notes] == [*other.notes] == said
    assert len(compiled._bolide.entries) == 2


def test_wrappers_of_changing_sizes_leave_with_gradients() -> None:
    def fn(t: Any, x: torch.Tensor) -> Any:
        y = (t.sin() @ x).relu()
        return y, y.T, TwoTensor(t, t).exp()

    compiled = bolide.compile(fn, fullgraph=True)
    for size in (4, 6, 9, 4):
        a, b, x = (torch.randn(size, size) for _ in range(3))
        found = []
        for function in (compiled, fn):
            t: Any = TwoTensor(a.clone(), b.clone()).requires_grad_()
            results = function(t, x)
            torch.autograd.backward([result.sum() for result in results])
            found.append([*results, t.grad])
        _agree(*found)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_sizes_of_wrappers_are_symbols(nested: bool, grad: bool) -> None:
    """Those of what they are made of: two versions serve all sizes, one more those that are equal by chance."""

    def fn(t: Any, w: torch.Tensor) -> Any:
        y = (t.sin() @ w).relu()
        return y, y.reshape(-1), y.T, y.view(y.shape[0], 2, 1)

    compiled, w = bolide.compile(fn, fullgraph=True), torch.randn(3, 2)
    for size in (4, 6, 9, 11, 5, 7, 8, 3):
        a, b = torch.randn(size, 3), torch.randn(size, 3)
        found = []
        for function in (compiled, fn):
            given: Any = TwoTensor(a.clone(), b.clone())
            given = (TwoTensor(given, a.clone()) if nested else given).requires_grad_(grad)
            results = function(given, w)
            if grad:
                torch.autograd.backward([result.sin().sum() for result in results])
            found.append([*results, given.grad])
        _agree(*found)
    assert len(compiled._bolide.entries) == 3


def test_wrappers_that_require_grad_are_made_inside() -> None:
    """They are leaves of the program's own: what is computed from them leads nowhere outside."""

    def fn(x: torch.Tensor) -> Any:
        made = TwoTensor(x.sin(), x.cos())
        gradient = torch.autograd.grad((made * made).sum(), made)[0]
        return made * 2, gradient, (made * 3).a.requires_grad

    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        found, expected = compiled(x), fn(x)
        _agree(found, expected)
        assert found[0].requires_grad and expected[0].requires_grad
    with pytest.raises(bolide.Unsupported, match="that requires grad leaves the function"):
        bolide.compile(lambda x: TwoTensor(x, x), fullgraph=True)(x)


def test_helpers_of_torchs_make_wrappers() -> None:
    def fn(t: Any) -> Any:
        doubled = transform_subclass(t, lambda _, part: part * 2)
        return doubled, is_traceable_wrapper_subclass(doubled), doubled.a + 1

    t = TwoTensor(torch.randn(3, 2), torch.randn(3, 2))
    _agree(bolide.compile(fn, fullgraph=True)(t), fn(t))


def test_gradients_that_are_accumulated_inside_come_to_the_wrapper() -> None:
    def step(w: Any, optimizer: Any, x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (x @ w).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    parts = [torch.randn(4, 4) for _ in range(2)]
    weights: list[Any] = [torch.nn.Parameter(TwoTensor(*(part.clone() for part in parts))) for _ in range(2)]
    optimizers = [torch.optim.SGD([w], 0.1) for w in weights]
    compiled = bolide.compile(step)
    for _ in range(3):
        x = torch.randn(2, 4)
        expected, actual = step(weights[0], optimizers[0], x), compiled(weights[1], optimizers[1], x)
        torch.testing.assert_close((actual.a, actual.b), (expected.a, expected.b))
        torch.testing.assert_close((weights[1].grad.a, weights[1].b), (weights[0].grad.a, weights[0].b))


class Asked(torch.Tensor):
    """A class that torch asks."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


NUMBERED: list[Callable[[Any], Any]] = [
    lambda x: x * 2 + x.shape[0],
    lambda x: x.sin() * x.size(-1),
    lambda x: x / x.shape[0] ** 2,
]


@pytest.mark.parametrize("make", [lambda x: x.as_subclass(Asked), lambda x: TwoTensor(x, x + 1)])
@pytest.mark.parametrize("place", range(len(NUMBERED)))
def test_sizes_beside_tensors_of_classes_stay_symbols(place: int, make: Callable[[torch.Tensor], Any]) -> None:
    fn = NUMBERED[place]
    compiled = bolide.compile(fn, fullgraph=True, dynamic=True)
    for size in random.sample(range(2, 20), 3):
        x = make(torch.randn(size))
        found, expected = compiled(x), fn(x)
        assert type(found) is type(expected)
        plain = [getattr(each, "b", each).as_subclass(torch.Tensor) for each in (found, expected)]
        torch.testing.assert_close(*plain)
    assert len(compiled._bolide.entries) == 1
