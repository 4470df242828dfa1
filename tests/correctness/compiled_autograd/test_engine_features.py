"""What torch's engine can do besides plain passes, and what it refuses, is the same while passes are captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from bolide.dynamo import compiled_autograd
from tests.compiled_autograd_tools import assert_same

Tensors = Sequence[Any]


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True, **options)


def function(backward: Callable[..., Any]) -> Any:
    """An operation that doubles, with this backward."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

    Doubled.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Doubled.apply


def derived(fn: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    x = leaf(3)
    fn(x).sum().backward()
    return [x.grad]


def gradcheck() -> Tensors:
    def fn(t: torch.Tensor) -> torch.Tensor:
        return (t.sin() * t).exp()

    x = leaf(3, dtype=torch.float64)
    return [torch.autograd.gradcheck(fn, x), torch.autograd.gradgradcheck(fn, x)]


def batched() -> Tensors:
    x = leaf(3)
    return torch.autograd.grad(x.sin() * x, x, torch.eye(3), is_grads_batched=True)


def functionals() -> Tensors:
    x = torch.randn(3)
    hessian = torch.autograd.functional.hessian(lambda t: (t**3).sum(), x)
    jacobian = torch.autograd.functional.jacobian(lambda t: t**3, x, vectorize=True)
    return [hessian, jacobian, torch.func.vmap(torch.func.grad(lambda t: (t**3).sum()))(torch.randn(4, 3))]


def forward_mode() -> Tensors:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(3), torch.randn(3))
        (gradient,) = torch.autograd.grad((x.sin() * x).sum(), x)
        return [*forward_ad.unpack_dual(gradient)]


def inner_pass() -> Tensors:
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            x.sin().backward(grad)
        return x.grad  # type: ignore[return-value]

    return derived(function(backward))


def several_hooked() -> Tensors:
    x, y, seen = leaf(3), leaf(3), []
    a, b = x * 2, y * 3
    torch.autograd.graph.register_multi_grad_hook((a, b), seen.extend)
    (a * b).sum().backward()
    return [x.grad, y.grad, seen]


def to_results() -> Tensors:
    x = leaf(3)
    y = x * 2
    y.retain_grad()
    y.exp().sum().backward(inputs=[y])
    z = x * 3
    z.exp().sum().backward(inputs=[z, x])
    return [x.grad, y.grad, torch.autograd.grad((x * x * x).sum(), [x, x])]


def mixed() -> Tensors:
    layer = torch.nn.Linear(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(torch.randn(2, 3)).sum()
    loss.backward()
    return [parameter.grad for parameter in layer.parameters()]


def nothing_comes() -> Tensors:
    nothing = function(lambda ctx, grad: None)
    return derived(lambda x: nothing(x * 3) + x)


def once() -> Tensors:
    return derived(function(torch.autograd.function.once_differentiable(lambda ctx, grad: grad * ctx.saved_tensors[0])))


def freed() -> Tensors:
    y = leaf(3).exp().sum()
    y.backward()
    y.backward()
    return []


def written_since() -> Tensors:
    y = leaf(3).exp()
    z = (y * 2).sum()
    y.add_(1)
    (z + y.sum()).backward()
    return []


def reentrant_checkpoint() -> Tensors:
    return derived(lambda x: torch.utils.checkpoint.checkpoint(lambda t: t.sin().exp(), x * 2, use_reentrant=True))


def raising(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    raise ValueError("the program's own")


PROGRAMS: dict[str, Callable[[], Tensors]] = {
    **{f.__name__: f for f in (gradcheck, batched, functionals, forward_mode, inner_pass, several_hooked, to_results)},
    **{f.__name__: f for f in (mixed, nothing_comes, once, freed, written_since, reentrant_checkpoint)},
    "too many": lambda: derived(function(lambda ctx, grad: (grad, None, 3))),
    "another shape": lambda: derived(function(lambda ctx, grad: grad[:2])),
    "another type": lambda: derived(function(lambda ctx, grad: 3)),
    "an error": lambda: derived(function(raising)),
    "no scalar": lambda: leaf(3).exp().backward() or [],
    "no gradient": lambda: torch.randn(3).sum().backward() or [],
}


def outcome(program: Callable[[], Tensors]) -> Any:
    torch.manual_seed(3)
    try:
        return program()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_engine_does_the_same(name: str) -> None:
    compiled_autograd.reset()
    expected = outcome(PROGRAMS[name])
    for _ in range(2):
        with compiled_autograd.enable(lambda gm: gm):
            actual = outcome(PROGRAMS[name])
        assert_same(actual, expected)
