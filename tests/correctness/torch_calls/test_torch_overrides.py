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
    """With an operation of its own."""

    def sum(self) -> Any:  # type: ignore[override]
        return 3


class Asked(torch.Tensor):
    """Notes what it is asked; results are of its class."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(f"{cls.__name__}.{func.__name__}{[t.__name__ for t in types]}")
        return super().__torch_function__(func, types, args, kwargs)

    def twice(self) -> Any:
        return self * 2


class Unit(torch.Tensor):
    """Hands an attribute on, and has an operator of its own."""

    unit: str

    def __new__(cls, data: Any, unit: str = "m") -> Any:
        return super().__new__(cls, data)

    def __init__(self, data: Any, unit: str = "m") -> None:
        self.unit = unit

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if isinstance(out, Unit):
            out.unit = next((arg.unit for arg in args if isinstance(arg, Unit)), "?")
        return out

    def __add__(self, other: Any) -> Any:
        LOG.append("add")
        return super().__add__(other)

    @property
    def rows(self) -> int:
        return self.shape[0]


class Image(torch.Tensor):
    """Keeps its class only where that is said, as torchvision's do."""

    layout_: str

    @classmethod
    def of(cls, data: torch.Tensor, layout: str) -> Any:
        made = data.as_subclass(cls)
        made.layout_ = layout
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.requires_grad_):
            return cls.of(out, args[0].layout_)
        return out.as_subclass(torch.Tensor) if isinstance(out, cls) else out


class Kept(torch.Tensor):
    """Nothing but a class."""


class Elder(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(cls.__name__)
        if func is torch.add and cls is Elder:
            return "sum"
        return NotImplemented if Younger in types else super().__torch_function__(func, types, args, kwargs)


class Younger(Elder):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append("Younger first")
        return NotImplemented


def asked_operations(x: Any, t: torch.Tensor) -> Any:
    y = x.sin() + t
    mixed = F.mse_loss(y, t), F.softmax(t - y, 0), torch.stack([t, y]), torch.where(y > 0, t, y)
    checks = isinstance(y, Asked), type(y), type(y.data), y.shape, len(y), y.requires_grad, y.is_leaf, x.dtype
    return mixed, checks, (t + x)[0], t @ y, y.twice(), torch.max(x, 0), [row * 2 for row in x], x.detach() * t


def asked_writes(x: Any, t: torch.Tensor) -> Any:
    y = x * 1
    y.add_(t)
    y[0] = 5.0
    z = y.mul_(2)
    y.mark, y.itself, x.mark = "new", y, getattr(x, "mark", 0) + 1
    del y.itself
    return z is y, y, hasattr(y, "itself"), hasattr(x, "nothing"), y.mark, x.mark


def asked_inputs_written(x: Any, t: torch.Tensor) -> Any:
    with torch.no_grad():
        x.mul_(t)
        x[1:].zero_()
    return x


def asked_makes(x: Any, t: torch.Tensor) -> Any:
    made = t.as_subclass(Asked), torch.Tensor._make_subclass(Asked, t), Asked([1.0, 2.0]), Asked(t)
    return made, made[0].twice(), made[1].as_subclass(torch.Tensor), torch.zeros_like(made[0]), nn.Parameter(t)


def asked_silently(x: Any, t: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        y, shape = x * t, x.shape
    return type(y), y, shape, x * y


def asked_gradients(x: Any, t: torch.Tensor) -> Any:
    y = x * t
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return y.sum()


def asked_across_breaks(x: Any, t: torch.Tensor) -> Any:
    y = x * t
    y.mark = "kept"
    bolide.graph_break()
    if y.sum() > 0:
        y = y + 1
    return y.twice(), getattr(y, "mark", None)


def unit_handed_on(x: Any, t: torch.Tensor) -> Any:
    y = (x + t) * 2
    made = Unit(t * x.sum(), unit="s")
    return y, y.unit, x.rows, made, made.unit, (1 - y).unit


def image_cases(x: Any, t: torch.Tensor) -> Any:
    a, b = x.clone(), x + t
    return a, type(b), b, Image.of(b, x.layout_ + "!"), a.detach().layout_


def kept_class(x: Any, t: torch.Tensor) -> Any:
    return x * t + 1, x.sum(), type(t * x), x.mean(0)


def counted_sum(x: Any, t: torch.Tensor) -> Any:
    return t * 2 + x.sum(), x * t, type(x * t)


def two_classes(x: Any, t: torch.Tensor) -> Any:
    try:
        x + t.as_subclass(Younger)
    except TypeError:
        return torch.add(x, x), torch.add(t, x)
    return None


def _of(cls: Any) -> Any:
    return lambda grad: torch.randn(3).as_subclass(cls).requires_grad_(grad)


ASKED_PROGRAMS: dict[Any, Any] = {
    asked_operations: _of(Asked),
    asked_writes: _of(Asked),
    asked_inputs_written: lambda grad: torch.randn(3).as_subclass(Asked),
    asked_makes: _of(Asked),
    asked_silently: _of(Asked),
    asked_gradients: _of(Asked),
    asked_across_breaks: _of(Asked),
    unit_handed_on: lambda grad: Unit(torch.randn(3), unit="kg").requires_grad_(grad),
    image_cases: lambda grad: Image.of(torch.randn(3), "rgb"),
    kept_class: _of(Kept),
    counted_sum: lambda grad: Counted(torch.randn(3), grad),
    two_classes: _of(Elder),
}


def _stripped(value: Any) -> Any:
    """Tensors of subclasses as their class, what they were given, and the plain tensor."""

    def strip(one: Any) -> Any:
        given = {key: _stripped(part) for key, part in vars(one).items() if part is not one}
        history = one.requires_grad, one.is_leaf, one.stride()
        return type(one).__name__, given, history, one.detach().as_subclass(torch.Tensor)

    with torch._C.DisableTorchFunctionSubclass():
        return pytree.tree_map_only(torch.Tensor, strip, value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", ASKED_PROGRAMS)
def test_subclasses_that_torch_asks(fn: Any, grad: bool, backend: str) -> None:
    """Results with their classes and attributes, what is asked, what is written, and gradients are eager's."""
    compiled: Any = bolide.compile(fn, backend=backend, fullgraph=fn is not asked_across_breaks)
    for _ in range(2):
        x = ASKED_PROGRAMS[fn](grad)
        twin = ASKED_PROGRAMS[fn](grad)
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            twin.copy_(x)
        t, found = torch.randn(3), []
        for function, given in ((compiled, x), (fn, twin)):
            LOG.clear()
            out = function(given, t)
            asked = [] if function is compiled and len(found) else list(LOG)
            total: Any = sum(leaf.sum() for leaf in _tracked(out))
            if grad and isinstance(total, torch.Tensor):
                total.backward()
            with torch._C.DisableTorchFunctionSubclass():
                found.append((_stripped((out, given, given.grad)), asked))
        _agree(*(part[0] for part in found))
        assert found[0][1] == found[1][1]
    assert len(compiled._bolide.entries) == 1


def _tracked(value: Any) -> list[torch.Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        leaves = pytree.tree_leaves(value)
        return [leaf.as_subclass(torch.Tensor) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn]


class Layer(nn.Module):
    """With a parameter and a buffer of classes that are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3).as_subclass(Asked))
        self.bias = Counted(torch.randn(3))
        self.register_buffer("scale", torch.randn(3).as_subclass(Asked))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.9)
        return F.linear(x, self.weight, self.bias).tanh() * self.scale + self.bias.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_members_that_torch_asks_are_trained(backend: str) -> None:
    torch.manual_seed(0)
    ours = Layer()
    torch.manual_seed(0)
    theirs = Layer()
    compiled = bolide.compile(ours, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(2, 3)
        outs = compiled(x), theirs(x)
        assert type(outs[0]) is type(outs[1]) is Asked
        for out, model in zip(outs, (ours, theirs)):
            out.sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        _agree(
            _stripped([outs[0], *ours.parameters(), ours.scale]),
            _stripped([outs[1], *theirs.parameters(), theirs.scale]),
        )


def test_subclasses_that_torch_asks_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By class, by attributes that are read, by methods, and by whether torch asks at all."""

    def fn(x: Any) -> Any:
        return x * 2, getattr(x, "unit", None), x.twice() if isinstance(x, Asked) else None

    compiled: Any = bolide.compile(fn, backend="eager", fullgraph=True)
    x = torch.randn(3).as_subclass(Asked)
    for given in (x, torch.randn(3), torch.randn(3).as_subclass(Kept), x.double(), x.clone().requires_grad_()):
        _agree(_stripped(compiled(given)), _stripped(fn(given)))
    for unit in ("a", "b"):
        x.unit = unit
        _agree(_stripped(compiled(x)), _stripped(fn(x)))
    monkeypatch.setattr(Asked, "twice", lambda self: self * 5)
    _agree(_stripped(compiled(x)), _stripped(fn(x)))
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(bolide.Unsupported, match="is in force"):
        bolide.compile(fn, fullgraph=True)(x)
    compiled = bolide.compile(fn, backend="eager")
    _agree(_stripped(compiled(x)), _stripped(fn(x)))
    monkeypatch.setattr(Asked, "__torch_function__", classmethod(lambda *args: 7))
    assert compiled(x)[0] == 7


class Sealed(torch.Tensor):
    __slots__ = ("sealed",)


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]


@pytest.mark.parametrize(
    "cls, why",
    [
        (Sealed, "has __slots__"),
        (Dispatching, r"has a __torch_dispatch__, but does not say what it is made of \(__tensor_flatten__\)"),
    ],
)
def test_subclasses_that_are_not_captured_say_why(cls: Any, why: str) -> None:
    def fn(x: Any) -> Any:
        return x * 2

    x = torch.randn(3).as_subclass(cls)
    with pytest.raises(bolide.Unsupported, match=f"a {cls.__name__}, a subclass of Tensor, {why}"):
        bolide.compile(fn, fullgraph=True)(x)
    with pytest.warns(bolide.BolideWarning, match=why):
        _agree(_stripped(bolide.compile(fn)(x)), _stripped(fn(x)))


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


class Both(Pair):
    """A pair that notes nothing, with torch's own `__torch_function__`."""

    __torch_function__: Any = classmethod(vars(torch.Tensor)["__torch_function__"].__func__)

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return Both(parts["a"], parts["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs or {}))
        halves = []
        for name in ("a", "b"):
            given, words = pytree.tree_unflatten([getattr(x, name) if isinstance(x, Both) else x for x in flat], spec)
            halves.append(func(*given, **words))
        return Both(*halves) if isinstance(halves[0], torch.Tensor) else halves[0]


def _both(*shape: int) -> Any:
    return Both(torch.randn(shape), torch.randn(shape))


def both_multiplied(w: Any, x: torch.Tensor) -> Any:
    return w * x, (w @ x.t()).relu().sum(), w.requires_grad, w


def both_in_layers(w: Any, x: torch.Tensor) -> Any:
    y = F.linear(x, w).tanh()
    return F.softmax(y, -1), (w.a * x).sum()


def both_across_breaks(w: Any, x: torch.Tensor) -> Any:
    y = w * x
    bolide.graph_break()
    return (y * 2).exp()


def both_without_grad(w: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        scale = (w * w).sum()
    return w.detach() * 2, (w * scale).sum()


def quantised_trained(w: Any, x: torch.Tensor) -> Any:
    return (x @ w.t()).tanh(), w.scale.requires_grad


TRAINED: dict[Any, Any] = {
    "multiplied": (both_multiplied, lambda: _both(3, 3).requires_grad_()),
    "no leaf": (both_multiplied, lambda: _both(3, 3).requires_grad_() * 1),
    "parameter": (both_in_layers, lambda: nn.Parameter(_both(3, 3))),
    "nested": (both_multiplied, lambda: Both(_both(3, 3), _both(3, 3)).requires_grad_()),
    "across breaks": (both_across_breaks, lambda: nn.Parameter(_both(3, 3))),
    "without grad": (both_without_grad, lambda: nn.Parameter(_both(3, 3))),
    "plain gradients": (quantised_trained, lambda: Quantised.of(torch.randn(4, 3)).requires_grad_()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TRAINED)
def test_wrappers_are_trained(name: str, backend: str) -> None:
    """Gradients are eager's, of eager's classes, also where wrappers are made of wrappers and leave the function."""
    fn, make = TRAINED[name]
    compiled: Any = bolide.compile(fn, backend=backend, fullgraph=name != "across breaks")
    for seed in range(2):
        x, found = torch.randn(3, 3), []
        for function in (compiled, fn):
            torch.manual_seed(seed)
            w = make()
            if not w.is_leaf:
                w.retain_grad()
            out = function(w, x)
            tracked = [one for one in pytree.tree_leaves(out) if isinstance(one, torch.Tensor) and one.grad_fn]
            torch.autograd.backward([one.sum() for one in tracked])
            found.append(_opened([out, w.grad]))
        _agree(*found)
    assert len(compiled._bolide.entries) == 1


def test_wrappers_as_parameters_of_modules() -> None:
    def build() -> nn.Module:
        torch.manual_seed(3)
        model = nn.Linear(3, 3, bias=False)
        model.weight = nn.Parameter(_both(3, 3))
        return model

    ours, theirs = build(), build()
    compiled = bolide.compile(ours, backend="aot_eager", fullgraph=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for _ in range(3):
        x = torch.randn(2, 3)
        for model, optimizer in zip((compiled, theirs), optimizers):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        _agree(_opened([ours.weight, ours.weight.grad]), _opened([theirs.weight, theirs.weight.grad]))


def test_wrappers_that_require_grad_without_grad_mode() -> None:
    def fn(pair: Any, x: torch.Tensor) -> Any:
        return (pair * x).a, pair.requires_grad

    def back_on(weight: Any, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return x @ weight.t()

    pair, x = _pair(3).requires_grad_(), torch.randn(3)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            _agree(bolide.compile(fn, fullgraph=True)(pair, x), fn(pair, x))
    weight = Quantised.of(torch.randn(4, 3)).requires_grad_()
    gradients = []
    for function in (bolide.compile(back_on, backend="eager", fullgraph=True), back_on):
        with torch.no_grad():
            out = function(weight, x)
        gradients += torch.autograd.grad(out.sum(), [weight])
    _agree(*gradients)


def refused_gradient(w: Any, x: torch.Tensor) -> Any:
    return w * x, w.grad


def test_gradients_of_wrappers_that_are_not_captured() -> None:
    w, x = _both(3, 3).requires_grad_(), torch.randn(3, 3)
    with pytest.raises(bolide.Unsupported, match="grad of a Both, a subclass of Tensor, is used"):
        bolide.compile(refused_gradient, fullgraph=True)(w, x)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [both_multiplied, both_in_layers, both_across_breaks])
def test_gradients_of_plain_inputs_may_be_wrappers(fn: Any, grad: bool, dynamic: bool | None) -> None:
    """As those of a bias beside a wrapped weight are; they are added up, and given to hooks, as eager's are."""
    w, x = _both(3, 3), torch.randn(3, 3)
    compiled, gradients = bolide.compile(fn, fullgraph=fn is not both_across_breaks, dynamic=dynamic), []
    for function in (fn, compiled):
        weight, leaf, told = w.detach().requires_grad_(grad), x.clone().requires_grad_(), []
        leaf.register_hook(told.append)
        for _ in range(2):
            first = pytree.tree_leaves(function(weight, leaf))[0]
            (first * first).sum().backward()
        gradients.append((leaf.grad, told, weight.grad))
    _agree(*gradients)


def test_wrappers_that_require_grad_are_not_written_to() -> None:
    def fn(w: Any) -> Any:
        return (w * 1).add_(1), w.add_(1)

    compiled = bolide.compile(fn, backend="eager")
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        compiled(_both(3).requires_grad_())
    leaf = _both(3).requires_grad_()
    with pytest.raises(bolide.Unsupported, match="requires grad is written to"):
        bolide.compile(fn, fullgraph=True)(leaf * 1)


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
