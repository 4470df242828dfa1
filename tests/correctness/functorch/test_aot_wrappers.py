"""Wrapper subclasses of Tensor as arguments and results of functions that are compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import bolide
from bolide.functorch import aot_function, aot_module, make_boxed_func
from tests.functorch_tools import assert_same


class Quantised(torch.Tensor):
    """Integers and a scale; what is done with it is done with what they mean. What it says of itself is a list."""

    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, notes: list[Any]) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, notes: list[Any]) -> None:
        self.integers, self.scale, self.notes = data, scale, notes

    @classmethod
    def of(cls, weight: torch.Tensor) -> Any:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, ["rows", (1, weight.shape[1])])

    def __tensor_flatten__(self) -> Any:
        return ["integers", "scale"], self.notes

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(parts["integers"], parts["scale"], context)

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].integers, args[0].scale, args[0].notes)

        def meaning(value: Any) -> Any:
            return value.integers.to(value.dtype) * value.scale if isinstance(value, Quantised) else value

        return func(*pytree.tree_map(meaning, args), **pytree.tree_map(meaning, kwargs or {}))


class LowRank(torch.Tensor):
    """A weight and what is added to it, which functions read: the gradients are those of its parts."""

    def __new__(cls, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype, requires_grad=True)

    def __init__(self, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> None:
        self.weight, self.down, self.up = weight, down, up

    def __tensor_flatten__(self) -> Any:
        return ["weight", "down", "up"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(parts["weight"], parts["down"], parts["up"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, w = args[:2]
            return F.linear(x, w.weight) + x @ w.down @ w.up
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def _two(*shape: int) -> Any:
    return TwoTensor(torch.randn(shape), torch.randn(shape))


def _quantised() -> Any:
    return Quantised.of(torch.randn(4, 4))


def _low_rank() -> Any:
    down, up = torch.randn(4, 2, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    return LowRank(torch.randn(4, 4), down, up)


def _shared() -> Any:
    pair = _two(4, 4)
    return pair, TwoTensor(pair.a, pair.b)


def written(t: Any, x: torch.Tensor) -> Any:
    t.add_(x)
    t[0].mul_(2)
    return t * 2, t.view(-1), t


def written_in_parts(t: Any, x: torch.Tensor) -> Any:
    t.a.mul_(3)
    return (t + x).b, t.a


def without_grad(t: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        t.mul_(2)
    return t * x


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "computed": (lambda t, x: ((t.sin() * x).sum(), t.t(), t.a + 1), lambda: _two(4, 4)),
    "trained": (lambda t, x: (t.sin() @ x, [t.detach(), t]), lambda: _two(4, 4).requires_grad_()),
    "no leaf": (lambda t, x: t.sin() * x, lambda: _two(4, 4).requires_grad_() * 2),
    "parameter": (lambda t, x: (F.linear(x, t), isinstance(t, nn.Parameter)), lambda: nn.Parameter(_two(4, 4))),
    "nested": (lambda t, x: t.exp() * x, lambda: TwoTensor(_two(4, 4), torch.randn(4, 4)).requires_grad_()),
    "views": (lambda t, x: (t.view(-1), t[1:] * 2, t.unbind()[0]), lambda: _two(4, 4).requires_grad_()),
    "the same twice": (lambda t, x: (t, (u := t + x), u, u.T), lambda: _two(4, 4)),
    "written": (written, lambda: _two(4, 4)),
    "written in parts": (written_in_parts, lambda: _two(4, 4)),
    "written without grad": (without_grad, lambda: _two(4, 4).requires_grad_()),
    "made of plain": (lambda t, x: (TwoTensor(t, x) * 2, TwoTensor(x, x).b), lambda: torch.randn(4, 4)),
    "gradient of a view": (lambda t, x: t[0].relu() + x[0], lambda: _two(4, 4).requires_grad_()),
    "quantised": (lambda t, x: (F.linear(x, t).tanh(), t), _quantised),
    "quantised, plain gradient": (lambda t, x: F.linear(x, t).tanh(), lambda: _quantised().requires_grad_()),
    "quantised inside": (lambda t, x: (Quantised.of(t), x @ Quantised.of(t).t()), lambda: torch.randn(4, 4)),
    "low rank": (lambda t, x: F.linear(x, t).sin(), _low_rank),
    "several": (lambda ts, x: ts[0].add_(x) * ts[1], _shared),
}


def _opened(value: Any) -> Any:
    """Wrappers as their class, what they are made of, and what autograd knows of them."""
    if not hasattr(value, "__tensor_flatten__"):
        return value
    names, context = value.__tensor_flatten__()
    own = (type(value).__name__, str(context), *value.shape, *value.stride(), value.requires_grad)
    return own, [_opened(getattr(value, name)) for name in names]


def _agree(found: Any, expected: Any) -> None:
    for one, other in zip(*(pytree.tree_leaves(pytree.tree_map(_opened, value)) for value in (found, expected))):
        if isinstance(one, torch.Tensor):
            assert type(one) is type(other)
            assert_same(one, other)
        else:
            assert one == other


def _gradients(result: Any, given: Any) -> list[Any]:
    """Of the argument, and of what it is made of."""
    tracked = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn]
    parts = [getattr(given, name) for name in ("down", "up") if hasattr(given, name)]
    wanted = [leaf for leaf in [*pytree.tree_leaves(given), *parts] if leaf.requires_grad]
    total = sum([leaf.sin().sum() for leaf in tracked], torch.zeros(()))
    return [*torch.autograd.grad(total, wanted, allow_unused=True)] if tracked and wanted else []


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrappers_give_plain_graphs(name: str) -> None:
    """Results, writes and gradients are eager's, and graphs are of plain tensors."""
    fn, make = PROGRAMS[name]
    graphs: list[Any] = []

    def compiler(module: Any, inputs: list[Any]) -> Any:
        graphs.append(module)
        assert all(type(tensor) is torch.Tensor for tensor in inputs)
        return make_boxed_func(module.forward)

    compiled = aot_function(fn, compiler)
    for seed in range(2):
        x, found = torch.randn(4, 4), []
        for function in (compiled, fn):
            torch.manual_seed(seed)
            given = make()
            result = function(given, x.clone())
            assert all(
                one is given
                for one in pytree.tree_leaves(result)
                if type(one) is type(given) and one.is_leaf and one.requires_grad
            )
            found.append([result, given, _gradients(result, given)])
        _agree(*found)
    assert 1 <= len(graphs) <= 3
    for node in [node for graph in graphs for node in graph.graph.nodes if "val" in node.meta]:
        assert not hasattr(node.meta["val"], "__tensor_flatten__")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_of_plain_arguments_may_be_wrappers(nested: bool, dynamic: bool) -> None:
    def program(t: Any, x: torch.Tensor, bias: torch.Tensor) -> Any:
        return (F.linear(x.sin(), t, bias) * x, bias.cos())

    pair = TwoTensor(_two(4, 4), torch.randn(4, 4)) if nested else _two(4, 4)
    x, bias, gradients = torch.randn(4, 4), torch.randn(4), []
    compiled = aot_function(program, make_forward, dynamic=dynamic)
    for function in (program, compiled):
        leaves = [tensor.detach().requires_grad_() for tensor in (pair, x, bias)]
        result, plain = function(*leaves)
        (result.sin().sum() + plain.sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    _agree(*gradients)


def make_forward(module: Any, inputs: list[Any]) -> Any:
    return make_boxed_func(module.forward)


def test_wrappers_are_told_apart() -> None:
    """By class, by what they say of themselves, by sizes; not by data."""
    graphs: list[Any] = []

    def compiler(module: Any, inputs: list[Any]) -> Any:
        graphs.append(module)
        return make_boxed_func(module.forward)

    def fn(t: Any) -> Any:
        return (t * 2).sum() * (3 if isinstance(t, TwoTensor) else 1)

    compiled = aot_function(fn, compiler, dynamic=True)
    weight = torch.randn(4, 4)
    other = _quantised()
    other.notes[0] = "columns"
    given = [_two(4, 4), _two(4, 4), _two(5, 4), _quantised(), Quantised.of(weight), other, weight, torch.randn(6, 6)]
    for t in given:
        _agree(compiled(t), fn(t))
    assert len(graphs) == 5


def test_modules_with_wrappers_for_members() -> None:
    """A block with quantised weights, as they are trained around."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner, self.outer = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.shift = nn.Buffer(torch.randn(4))
            for layer in (self.inner, self.outer):
                layer.weight = nn.Parameter(Quantised.of(layer.weight.detach()), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert isinstance(self.shift, nn.Buffer)
            return x + self.outer(F.gelu(self.inner(self.norm(x)))) * self.shift

    block = Block()
    compiled = aot_module(block, bolide.functorch.nop)
    for rows in (2, 3):
        x, found = torch.randn(rows, 4), []
        for module in (compiled, block):
            block.zero_grad()
            out = module(x)
            out.sin().sum().backward()
            found.append([out, [parameter.grad for parameter in block.parameters()]])
        _agree(*found)


@pytest.mark.parametrize(
    "fn, make",
    [
        (lambda t: t.mul_(2), lambda: _two(3, 3).requires_grad_() * 1),
        (lambda t: setattr(t, "a", t.a + 1), lambda: _two(3, 3)),
        (lambda t: t.t_(), lambda: _two(3, 3)),
    ],
    ids=["a history", "other parts", "another shape"],
)
def test_what_no_graph_can_do_with_wrappers_says_so(fn: Callable[..., Any], make: Callable[[], Any]) -> None:
    with pytest.raises(bolide.Unsupported, match="a TwoTensor, gets a history, other parts or another shape"):
        aot_function(fn, bolide.functorch.nop)(make())


def test_tensors_without_data_are_computed_as_they_are() -> None:
    """The program itself runs: nothing is compiled."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(0)

    def compiler(module: Any, inputs: list[Any]) -> Any:
        raise AssertionError("compiled")

    mode = torch._subclasses.FakeTensorMode()
    fake = mode.from_tensor(torch.randn(3, 4))
    functional = torch._to_functional_tensor(torch.randn(3, 4))
    with mode:
        assert aot_function(fn, compiler)(fake).shape == (4,)
    assert type(aot_function(fn, compiler)(fake)) is type(fake)
    assert torch._is_functional_tensor(aot_function(fn, compiler)(functional))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class Negating(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.sin.default else result


@pytest.mark.parametrize("mode", [Doubling, Negating, lambda: FlopCounterMode(display=False)])
def test_under_modes_of_the_users_the_function_itself_runs(mode: Any) -> None:
    """They see and change what eager computes; what was compiled without them does not serve them, nor they it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ x) + 1

    compiled, x = aot_function(fn, bolide.functorch.nop), torch.randn(3, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x))
        found = []
        for function in (compiled, fn):
            with mode() as active:
                found.append(function(x))
            found.append(active.get_total_flops() if isinstance(active, FlopCounterMode) else 0)
        torch.testing.assert_close(found[0], found[2])
        assert found[1] == found[3]


class Asked(torch.Tensor):
    """Whatever is done with it comes out doubled."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) * 2


def test_tensors_that_torchs_functions_ask_are_refused() -> None:
    with pytest.raises(bolide.Unsupported, match="an argument is a Asked, which has a __torch_function__"):
        aot_function(lambda x: x.sin(), bolide.functorch.nop)(torch.randn(3).as_subclass(Asked))


@pytest.mark.parametrize("compiler", [lambda fn: aot_function(fn, bolide.functorch.nop), bolide.compile])
def test_gradients_of_gradients_of_wrappers_are_never_left_out(compiler: Callable[..., Any]) -> None:
    """The first ones have a history, and taking the second ones says why it cannot be done."""
    t = _two(3).requires_grad_()
    result = compiler(lambda t: (t.sin() * t).exp())(t)
    (first,) = torch.autograd.grad(result.sum(), t, create_graph=True)
    (expected,) = torch.autograd.grad((t.sin() * t).exp().sum(), t)
    _agree(first.detach(), expected)
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="create_graph=True and is now differentiated itself, but it cannot be"):
        torch.autograd.grad((first * first).sum(), t)


class Placed(TwoTensor):
    """Something that is no tensor is among what it is made of."""

    where: Any = None

    def __tensor_flatten__(self) -> Any:
        return ["a", "b", "where"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        made = Placed(parts["a"], parts["b"])
        made.where = parts["where"]
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = Placed(result.a, result.b)
        made.where = next(arg for arg in args if isinstance(arg, Placed)).where
        return made


@pytest.mark.parametrize("way", ["aot", "compile"])
def test_wrappers_may_be_made_of_what_is_no_tensor(way: str) -> None:
    def fn(t: Any) -> Any:
        return t.sin() * 2

    compiled = {"aot": aot_function(fn, bolide.functorch.nop), "compile": bolide.compile(fn, fullgraph=True)}[way]
    for where in ((1, 2), (1, 2), "elsewhere"):
        t = Placed(torch.randn(3), torch.randn(3))
        t.where = where
        t.requires_grad_()
        found, expected = compiled(t), t.sin() * 2
        torch.testing.assert_close((found.a, found.b), (expected.a, expected.b))
        gradients = [torch.autograd.grad(result.sum(), t)[0] for result in (found, expected)]
        torch.testing.assert_close(*[(gradient.a, gradient.b) for gradient in gradients])
        assert [one.where for one in (found, *gradients)] == [where] * 3
