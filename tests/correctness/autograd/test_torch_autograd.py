"""`autograd.Function` inside compiled functions: eager's results and the user's own gradients, for every way to write
one. What the engine is given, and gradients that are assigned."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

import bolide

SCALE = 2.0
CALLS: list[int] = []


def same_as_eager(fn: Callable[..., Any], *shapes: tuple[int, ...], runs: int = 2, backend: str = "eager") -> None:
    """Results and gradients of `fn` on fresh random inputs, compiled without a break and eager; the second run is a
    hit on other numbers."""
    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for _ in range(runs):
        inputs = [torch.randn(shape) for shape in shapes]
        seed = torch.randint(2**30, ()).item()
        expected, got = (_run(function, inputs, seed) for function in (fn, compiled))
        torch.testing.assert_close(got, expected)
    assert len(compiled._bolide.entries) == 1


def _run(fn: Callable[..., Any], inputs: list[torch.Tensor], seed: int) -> Any:
    own = [tensor.clone().requires_grad_() for tensor in inputs]
    torch.manual_seed(seed)
    out = fn(*own)
    leaves = [leaf for leaf in (out if isinstance(out, (tuple, list)) else [out]) if leaf.requires_grad]
    torch.manual_seed(seed)
    weights = [torch.rand_like(leaf) for leaf in leaves]
    return out, torch.autograd.grad(leaves, own, weights, allow_unused=True) if leaves else None


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        ctx.k = k
        return x * k, y + x

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        x, _ = ctx.saved_tensors
        assert ctx.needs_input_grad[:2] == (True, False)
        return a * ctx.k * 3, None, b * x if ctx.needs_input_grad[2] else None


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, power: int = 3) -> Any:
        return x**power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.power = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0] * ctx.power * 2, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 5


class WithIndices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        index = x.argmax(1)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return x * 2, index

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, none: None) -> Any:
        assert none is None
        return grad * 7


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.nn.functional.hardtanh(grad)


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return Straight.apply(x) + SCALE

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return Scaled.apply(grad, SCALE, ctx.saved_tensors[0])[0]


def test_contexts_and_several_outputs() -> None:
    same_as_eager(lambda x, y: Scaled.apply(x, 3.0, y), (4, 5), (4, 5))


def test_tensors_that_need_no_gradient() -> None:
    same_as_eager(lambda x, y: Scaled.apply(x, 3.0, y.detach())[0], (4, 5), (4, 5))


@pytest.mark.parametrize("function", [NewStyle, Straight, Nested])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_argument(function: Any, backend: str) -> None:
    same_as_eager(lambda x: function.apply(x.sin()).exp(), (4, 5), backend=backend)


def test_default_argument_given() -> None:
    same_as_eager(lambda x: NewStyle.apply(x, 4), (4, 5))


def test_written_in_place() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 1
        InPlace.apply(y)
        return y + 1

    same_as_eager(fn, (4, 5))


def test_outputs_without_gradient() -> None:
    def fn(x: torch.Tensor) -> Any:
        values, index = WithIndices.apply(x)
        return values.gather(1, index[:, None]), index

    same_as_eager(fn, (4, 5))


def test_without_grad_mode() -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return NewStyle.apply(x, 3)

    same_as_eager(fn, (4, 5))


def test_defined_inside_with_closure() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        class Inside(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> Any:
                return x * y

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                return grad * y.cos()

        return Inside.apply(x)

    same_as_eager(fn, (4, 5), (4, 5))


class Holder(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))
        self.scale = scale


class OfHolder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, holder: Holder) -> Any:
        ctx.holder = holder
        return x * SCALE

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.holder.weight * ctx.holder.scale, None


def test_what_only_the_backward_reads_is_guarded_and_given() -> None:
    compiled = bolide.compile(lambda x, holder: OfHolder.apply(x, holder), fullgraph=True, backend="eager")
    first, second = Holder(2.0), Holder(3.0)
    for holder in (first, second, first):
        with torch.no_grad():
            holder.weight.mul_(2)
        x = torch.randn(4, 5, requires_grad=True)
        compiled(x, holder).sum().backward()
        torch.testing.assert_close(x.grad, (holder.weight * holder.scale).detach().expand(4, 5))
    assert len(compiled._bolide.entries) == 2


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        CALLS.append(1)
        return grad


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ValueError("no backward today")


def test_effects_in_the_backward_are_not_captured() -> None:
    CALLS.clear()
    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bolide.support.errors.BolideWarning)
        y = bolide.compile(lambda x: Writes.apply(x), backend="aot_eager")(x)
    assert CALLS == []
    y.sum().backward()
    assert CALLS == [1]


def test_exceptions_of_the_backward_come_when_it_runs() -> None:
    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bolide.support.errors.BolideWarning)
        y = bolide.compile(lambda x: Raises.apply(x), backend="aot_eager")(x)
    with pytest.raises(ValueError, match="no backward today"):
        y.sum().backward()


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_functions_under_decorators_of_torch_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bolide.compile(lambda x: decorated(x), fullgraph=True, backend="eager")
    x = torch.randn(3)
    for scale in (2.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert torch.equal(compiled(x), x * scale)


def test_own_gradients_are_not_replaced_by_derivatives_of_the_forward() -> None:
    def hooked(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: grad * 3)
        return y * 2

    x = torch.randn(4, requires_grad=True)
    for fn in (hooked, lambda x: NewStyle.apply(x.sin(), 3)):
        (expected,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        out = bolide.compile(fn, fullgraph=True, backend="aot_eager")(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        torch.testing.assert_close(gradient, expected)
        if fn is hooked:
            with pytest.raises(RuntimeError, match="the program's own"):
                torch.autograd.grad(gradient.sum() + x.sum(), x)
        else:
            torch.testing.assert_close(*[torch.autograd.grad(first.sum(), x) for first in (gradient, expected)])


class Kept:
    """An object that holds a tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value


@torch.no_grad()
def scale(holder: Any) -> Any:
    """Reads the tensor first where no history is recorded."""
    tensor = holder.value if isinstance(holder, Kept) else holder[0]
    return 2 if tensor.abs().max() > 0 else 3  # which breaks


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("hold", [Kept, lambda value: [value]])
def test_an_input_that_is_first_read_without_grad_keeps_its_history(backend: str, hold: Any) -> None:
    def plain(holder: Any, x: Any) -> Any:
        with torch.no_grad():
            mean = (holder.value if isinstance(holder, Kept) else holder[0]).mean()
        return (holder.value if isinstance(holder, Kept) else holder[0]) * mean * x

    def breaks(holder: Any, x: Any) -> Any:
        return x * scale(holder) * (holder.value if isinstance(holder, Kept) else holder[0])

    def twice(w: Any, x: Any) -> Any:
        return plain(hold(w * 2), x) + breaks(hold(w * 3), x)

    for program in (plain, breaks):
        compiled = bolide.compile(program, backend=backend)
        for n in (4, 5, 6):
            w, x = torch.randn(3, requires_grad=True), torch.randn(n, 3)
            expected, found = (f(hold(w * 2), x) for f in (program, compiled))
            weights = torch.randn(n, 3)
            grads = [torch.autograd.grad((r * weights).sum(), w)[0] for r in (expected, found)]
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(grads[1], grads[0])
    w, x = torch.randn(3, requires_grad=True), torch.randn(4, 3)
    results = [f(w, x) for f in (twice, bolide.compile(twice, backend=backend))]
    grads = [torch.autograd.grad(result.sum(), w)[0] for result in results]
    torch.testing.assert_close(grads[1], grads[0])


NET = nn.Linear(2, 2)
WEIGHTS = list(NET.parameters())


class Weights:
    def __iter__(self) -> Any:
        return iter(WEIGHTS)


def _itself(value: Any) -> Any:
    return value


OWN = Weights()

GIVEN_ITERABLES: dict[str, Callable[[torch.Tensor], Any]] = {
    "parameters": lambda x: torch.autograd.grad(NET(x).sum(), NET.parameters()),
    "map": lambda x: torch.autograd.grad(NET(x).sum(), map(_itself, WEIGHTS)),
    "an object": lambda x: torch.autograd.grad(NET(x).sum(), OWN),
    "a new object": lambda x: torch.autograd.grad(NET(x).sum(), Weights()),
    "outputs": lambda x: torch.autograd.grad((y for y in (NET(x).sum(), NET(x).mean())), WEIGHTS),
    "gradients": lambda x: torch.autograd.grad(NET(x), NET.parameters(), grad_outputs=(torch.ones(2) for _ in "a")),
    "backward": lambda x: NET(x).sum().backward(inputs=NET.parameters()),
    "backward of several": lambda x: torch.autograd.backward((NET(x).sum() for _ in "ab"), inputs=iter(WEIGHTS)),
}


@pytest.mark.parametrize("name", GIVEN_ITERABLES)
def test_what_the_engine_is_given_may_be_any_iterable(name: str) -> None:
    fn = GIVEN_ITERABLES[name]
    compiled = bolide.compile(fn, fullgraph=True)
    for size in (1, 1, 3):
        found = []
        for function in (compiled, fn):
            NET.zero_grad()
            found.append((function(torch.full((size, 2) if name != "gradients" else (2,), 2.0)), NET.weight.grad))
        torch.testing.assert_close(found[0], found[1])


def _refusal_of_gradient(x: torch.Tensor, value: Any) -> Any:
    x.grad = x.detach() * 2
    try:
        x.grad = x if value == "itself" else value
    except (TypeError, RuntimeError) as error:
        return type(error).__name__, str(error), x.grad
    return x.grad


@pytest.mark.parametrize(
    "value", [3, 2.5, "text", "itself", [1], NET, torch.ones(3), torch.ones(2, dtype=torch.double), torch.ones(2), None]
)
def test_gradients_that_do_not_fit_are_refused_where_they_are_assigned(value: Any) -> None:
    compiled = bolide.compile(_refusal_of_gradient, fullgraph=True)
    for factor in (1, 2, 3):
        results = []
        for function in (compiled, _refusal_of_gradient):
            x = torch.full((2,), float(factor), requires_grad=True)
            results.append((function(x, value), x.grad))
        assert str(results[0]) == str(results[1])


def test_a_gradient_has_two_names() -> None:
    def fn(x: torch.Tensor) -> Any:
        before = 0 if x._grad is None else x._grad * 2  # type: ignore[attr-defined]
        made = torch.zeros(2, requires_grad=True)
        made._grad = x.detach().clone()  # type: ignore[attr-defined]
        (made * x).sum().backward()
        x._grad.add_(1)  # type: ignore[attr-defined]
        return before, made._grad, made.grad  # type: ignore[attr-defined]

    compiled = bolide.compile(fn, fullgraph=True)
    for given in (None, torch.ones(2), torch.zeros(2)):
        results = []
        for function in (compiled, fn):
            x = torch.arange(2.0).requires_grad_()
            x.grad = None if given is None else given.clone()
            results.append((function(x), x.grad))
        assert str(results[0]) == str(results[1])


@pytest.mark.parametrize("several", [False, True])
def test_backward_to_inputs_that_other_inputs_are_made_of(several: bool) -> None:
    """The way there lies outside of what is captured."""

    def fn(y: torch.Tensor, x: torch.Tensor) -> None:
        (y * y).sum().backward(inputs=[x] if several else x)

    compiled = bolide.compile(fn)
    for rows in (2, 2, 3):
        ours, theirs = (torch.arange(rows + 0.0).requires_grad_() for _ in range(2))
        compiled(ours * 2, ours)
        fn(theirs * 2, theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)


class Mixed(torch.autograd.Function):
    """Whose gradients are none of what it computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() + 1


held = Mixed.apply


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda apply, x: apply(x),
        lambda apply, x: torch.vmap(apply)(x),
        lambda apply, x: torch.func.vjp(apply, x)[1](x.cos())[0],
        lambda apply, x: torch.stack(list(map(apply, x))),
        lambda apply, x: functools.partial(apply)(x),
        lambda apply, x: {held: x, "other": 1}[apply] + apply(x),
        lambda apply, x: x.sin() if apply == held and Mixed.apply == held else x,
    ],
    ids=["called", "vmap", "vjp", "map", "partial", "key", "compared"],
)
def test_apply_is_a_value(call, outside):
    def program(x):
        apply = held if outside else Mixed.apply
        return call(apply, x.exp()), apply

    compiled = bolide.compile(program, fullgraph=True)
    for _ in range(2):
        x = torch.rand(3, 4, requires_grad=True)  # cosines of large numbers differ by rounding
        found, apply = compiled(x)
        expected, theirs = program(x)
        assert apply == theirs == held
        torch.testing.assert_close(found, expected)
        weight = torch.randn(3, 4)
        torch.testing.assert_close(*[torch.autograd.grad((y * weight).sum(), x) for y in (found, expected)])
