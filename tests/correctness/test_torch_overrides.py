"""`__torch_function__` and `__torch_dispatch__` in programs: objects, modes, subclasses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import bolide

BACKENDS = ["eager", "aot_eager", "inductor"]
LOG: list[str] = []


class Duck:
    """Not a tensor; holds one, and notes what is done with it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(f"{cls.__name__}.{func.__name__}{[t.__name__ for t in types]}")
        args = [arg.tensor if isinstance(arg, Duck) else arg for arg in args]
        return Duck(func(*args, **(kwargs or {})))


class Duckling(Duck):
    pass


class Stranger:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


OUTSIDE = Duck(torch.randn(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_that_answer_for_torchs_functions(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        duck, young = Duck(x), Duckling(x * 2)
        results = [
            x + duck,
            duck - x,
            x >= duck,
            duck == x,
            duck @ x,
            torch.sin(duck),
            F.relu(duck),
            torch.add(x, duck),
        ]
        results += [torch.add(duck, young), torch.mul(OUTSIDE, x), F.softmax(young, 0), x * OUTSIDE]
        x = x * 1
        x += young
        return [result.tensor for result in [*results, x]], type(x)

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3)
        LOG.clear()
        want, want_type = fn(x)
        asked = LOG[:]
        LOG.clear()
        got, got_type = compiled(x)
        assert asked == LOG and got_type is want_type
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_nobody_answers() -> None:
    def fn(x: torch.Tensor) -> str:
        try:
            torch.add(x, Stranger())
        except TypeError as error:
            return type(error).__name__
        return ""

    assert bolide.compile(fn, fullgraph=True)(torch.randn(3)) == "TypeError"


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_programs_own_modes_run_for_real_at_each_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        with Counting():
            y = x.sin() + 1
        return y * 3

    compiled = bolide.compile(fn)
    for _ in range(3):
        x = torch.randn(3)
        LOG.clear()
        torch.testing.assert_close(compiled(x), fn(x))
        assert LOG[:2] == LOG[2:] == ["aten.sin.default", "aten.add.Tensor"]


class Named(nn.Parameter):
    """A parameter with more to it: operations are those of any tensor."""

    scale = 3.0
    label: str

    def __new__(cls, data: torch.Tensor, label: str = "none", requires_grad: bool = True) -> Any:
        made = super().__new__(cls, data, requires_grad)
        made.label, made.group = label, 7
        return made

    def scaled(self) -> torch.Tensor:
        return self * self.scale

    @property
    def total(self) -> torch.Tensor:
        return self.abs().sum()

    @classmethod
    def factor(cls) -> float:
        return cls.scale

    def __repr__(self) -> str:
        return f"Named({self.label})"


class Shifted(Named):
    def scaled(self) -> torch.Tensor:
        return super().scaled() + 1


def classes_of(model: Any, x: torch.Tensor) -> Any:
    w = model.weight
    checks = [isinstance(w, cls) for cls in (Named, Shifted, nn.Parameter, torch.Tensor, (int, Named))]
    names = type(w).__name__, w.__class__.__name__, type(w * 2).__name__
    return checks, names, hasattr(w, "label"), hasattr(w, "node"), hasattr(x, "group")


def methods_of(model: Any, x: torch.Tensor) -> Any:
    w = model.weight
    return model(x) + w.scaled() * w.total + w.factor() + w.group


def attributes_of(model: Any, x: torch.Tensor) -> Any:
    model.weight.label += "!"
    model.weight.fresh = x.shape[0]
    return model(x), model.weight, model.weight.label, model.weight.detach(), model.weight.data.t()


def written(model: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        model.weight.mul_(2)
    return model(x)


def _agree(found: Any, expected: Any) -> None:
    """Equal values, tensors within the tolerance."""
    pairs = list(zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))
    for one, other in pairs:
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [Named, Shifted])
@pytest.mark.parametrize("fn", [classes_of, methods_of, attributes_of, written])
def test_subclasses_that_change_no_operation(fn: Any, cls: Any, backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    model = nn.Linear(3, 3)
    model.weight = cls(model.weight.detach().clone())
    twin = copy.deepcopy(model)
    twin.weight = cls(model.weight.detach().clone())
    for _ in range(2):
        x = torch.randn(3, 3)
        found, expected = compiled(model, x), fn(twin, x)
        _agree(found, expected)
        assert (type(model.weight), model.weight.__dict__) == (type(twin.weight), twin.weight.__dict__)
        if fn is methods_of:
            for out in (found, expected):
                out.sum().backward()
            torch.testing.assert_close(model.weight.grad, twin.weight.grad)
    model.weight = nn.Parameter(model.weight.detach().clone())
    if fn is classes_of:
        assert compiled(model, x) == fn(model, x)


class Counted(nn.Parameter):
    def sum(self) -> Any:  # type: ignore[override]
        return 3


def test_subclasses_with_operations_of_their_own_run_for_real() -> None:
    def fn(parameter: Any, x: torch.Tensor) -> Any:
        return x * 2 + parameter.sum()

    x = torch.randn(3)
    model = nn.Module()
    model.weight = Counted(torch.randn(3))
    compiled = bolide.compile(lambda model, x: fn(model.weight, x), backend="eager")
    torch.testing.assert_close(compiled(model, x), x * 2 + 3)


class Pair(torch.Tensor):
    """A tensor made of two, and what is done with it is done with both."""

    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.size(), dtype=a.dtype, device=a.device)

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(parts["a"], parts["b"])

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(str(func))
        kwargs = kwargs or {}
        if func is torch.ops.aten.add_.Tensor:
            func(args[0].a, *args[1:]), func(args[0].b, *args[1:])
            return args[0]
        firsts = [arg.a if isinstance(arg, Pair) else arg for arg in args]
        seconds = [arg.b if isinstance(arg, Pair) else arg for arg in args]
        return Pair(func(*firsts, **(kwargs or {})), func(*seconds, **(kwargs or {})))


def _pair(*shape: int) -> Any:
    return Pair(torch.randn(shape), torch.randn(shape))


class Quantised(torch.Tensor):
    """Integers and a scale, with `__torch_function__` for what is to be fast; all else is done with what they mean."""

    def __new__(cls, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=dtype)

    def __init__(self, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> None:
        self.q, self.scale = q, scale

    @classmethod
    def of(cls, weight: torch.Tensor) -> Any:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, weight.dtype)

    def meaning(self) -> torch.Tensor:
        return self.q.to(self.dtype) * self.scale

    def __tensor_flatten__(self) -> Any:
        return ["q", "scale"], {"dtype": self.dtype}

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(parts["q"], parts["scale"], context["dtype"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return (args[0] @ args[1].q.to(args[1].dtype).t()) * args[1].scale.t() + args[2]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Quantised(args[0].q, args[0].scale, args[0].dtype)
        return func(*[arg.meaning() if isinstance(arg, Quantised) else arg for arg in args], **(kwargs or {}))


def pair_inside(a: torch.Tensor, b: torch.Tensor) -> Any:
    pair = Pair(a * 2, b * 3).sin() + 1
    return pair.a * pair.b, pair, pair.shape, isinstance(pair, Pair), type(pair).__name__, len(pair)


def pair_given(pair: Any) -> Any:
    other = 1 - pair.exp()
    return (other * pair).b, pair, [pair.a, other[0]], pair.dtype, other.mean().a, pair.t()


def pair_written(pair: Any) -> Any:
    pair.add_(1)
    return pair * 2


def pair_with_plain_gradients(pair: Any, x: torch.Tensor) -> Any:
    return (pair.a * x).sin() + pair.b


def weight_called(weight: Any, x: torch.Tensor) -> Any:
    return F.linear(x, weight, x.new_ones(4)).relu()


def weight_meant(weight: Any, x: torch.Tensor) -> Any:
    return (x @ weight.t()).tanh(), weight.meaning().sum(), weight.q.dtype


WRAPPER_PROGRAMS: dict[Any, Any] = {
    pair_inside: lambda: (torch.randn(3, 2), torch.randn(3, 2)),
    pair_given: lambda: (_pair(3, 2),),
    pair_written: lambda: (_pair(3),),
    pair_with_plain_gradients: lambda: (_pair(3), torch.randn(3, requires_grad=True)),
    weight_called: lambda: (Quantised.of(torch.randn(4, 3)), torch.randn(2, 3, requires_grad=True)),
    weight_meant: lambda: (Quantised.of(torch.randn(4, 3)), torch.randn(2, 3, requires_grad=True)),
}


def _opened(value: Any) -> Any:
    """Wrappers as what they are made of."""

    def opened(one: Any) -> Any:
        if not hasattr(one, "__tensor_flatten__"):
            return one
        names, context = one.__tensor_flatten__()
        return type(one).__name__, [getattr(one, name) for name in names], context, one.shape

    return pytree.tree_map(opened, value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", WRAPPER_PROGRAMS)
def test_wrapper_subclasses(fn: Any, backend: str) -> None:
    """Results, effects of `__torch_dispatch__`, what is written, and gradients of plain tensors."""
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(3):
        ours = WRAPPER_PROGRAMS[fn]()
        theirs = pytree.tree_map_only(torch.Tensor, _copied, ours)
        found, expected = [], []
        for function, args, seen in ((compiled, ours, found), (fn, theirs, expected)):
            LOG.clear()
            result = function(*args)
            seen += [_opened(result), _opened(args), list(LOG)]
            leaves = [arg for arg in args if arg.requires_grad]
            if leaves:
                out = result[0] if isinstance(result, tuple) else result
                seen += torch.autograd.grad((out * out).sum(), leaves)
        _agree(found, expected)
    assert len(compiled._bolide.entries) == 1


def _copied(tensor: torch.Tensor) -> Any:
    if type(tensor) is torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {name: getattr(tensor, name).clone() for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]


def test_wrappers_are_guarded() -> None:
    """By their class, by the class and layout of their parts, and by what they say of themselves."""
    compiled: Any = bolide.compile(weight_meant, backend="eager", fullgraph=True)
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    for given in (Quantised.of(weight), weight, Quantised.of(weight.double()), Quantised.of(weight[:2])):
        inputs = (given, x.to(given.dtype))
        if type(given) is Quantised:
            _agree(compiled(*inputs), weight_meant(*inputs))
        else:
            with pytest.raises(AttributeError, match="no attribute 'meaning'"):
                compiled(*inputs)
    assert len(compiled._bolide.entries) >= 3


def test_wrappers_that_require_grad() -> None:
    """Without grad mode they are captured; else, and where it is switched on inside, the call runs for real."""

    def fn(pair: Any, x: torch.Tensor) -> Any:
        return (pair * x).a, pair.requires_grad

    def back_on(weight: Any, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return x @ weight.t()

    pair, x = _pair(3).requires_grad_(), torch.randn(3)
    with torch.no_grad():
        _agree(bolide.compile(fn, fullgraph=True)(pair, x), fn(pair, x))
        weight = Quantised.of(torch.randn(4, 3)).requires_grad_()
        with pytest.warns(bolide.BolideWarning, match="a gradient would go to a tensor of a subclass"):
            out = bolide.compile(back_on, backend="eager")(weight, x)
        assert out.requires_grad and weight.requires_grad
    with pytest.raises(bolide.Unsupported, match="requires grad"):
        bolide.compile(fn, fullgraph=True)(pair, x)


def test_wrappers_cross_breaks_and_are_not_given_attributes() -> None:
    def fn(pair: Any) -> Any:
        pair = pair + 1
        bolide.graph_break()
        return (pair * 2).a

    def mark(pair: Any) -> Any:
        pair.mark = 3
        return (pair * 2).a

    for function in (fn, mark):
        pair = _pair(3)
        torch.testing.assert_close(bolide.compile(function, backend="eager")(pair), function(pair))
    assert pair.mark == 3
    with pytest.raises(bolide.Unsupported, match="an attribute of Pair is assigned"):
        bolide.compile(mark, fullgraph=True)(pair)
