"""`autograd.Function` inside compiled functions: eager's results and the user's own gradients, for every way to write
one."""

from __future__ import annotations

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
        (expected,) = torch.autograd.grad(fn(x).sum(), x)
        out = bolide.compile(fn, fullgraph=True, backend="aot_eager")(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        torch.testing.assert_close(gradient, expected)
        with pytest.raises(RuntimeError, match="the program's own"):
            torch.autograd.grad(gradient.sum() + x.sum(), x)


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
