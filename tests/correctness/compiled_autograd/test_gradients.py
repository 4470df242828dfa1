"""Gradients of captured backward passes are eager's, whatever the program is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.dynamo import compiled_autograd
from tests.compiled_autograd_tools import assert_as_eager, captures

Log = Any


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True, **options)


class Square(torch.autograd.Function):
    """With a number, a tensor that is no input, and a missing gradient in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, y: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x, x.cos())
        return x * x * factor + y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, cosine = ctx.saved_tensors
        ctx.seen = True
        assert ctx.needs_input_grad == (True, False, True)
        return 2 * x * ctx.factor * grad + cosine, None, grad


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, materialize: bool) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(materialize)
        return x.sin(), x.exp()

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor | None, other: torch.Tensor | None) -> tuple[Any, ...]:
        assert (other is None) is not ctx.materialize_grads if hasattr(ctx, "materialize_grads") else True
        return (one if other is None else one + other * 2), None


def custom_functions(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    a = Square.apply(x * 2, 0.5, y)
    b = Square.apply(a, 3.0, x)
    b.sum().backward()
    return [x.grad, y.grad]


def missing_gradients(log: Log) -> list[Any]:
    x = leaf(3)
    one, _ = TwoResults.apply(x, False)
    two, _ = TwoResults.apply(x, True)
    (one + two).sum().backward()
    return [x.grad]


def in_place(log: Log) -> list[Any]:
    x, y = leaf(4, 3), leaf(3)
    a = x * 2
    a[1:3].mul_(y)
    a[0] = y.sin()
    a.t()[1].add_(y.sum())
    a.sigmoid_()
    a.sum().backward()
    return [x.grad, y.grad]


def custom_in_place(log: Log) -> list[Any]:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = leaf(4, 3)
    a = x * 3
    Double.apply(a[1:])
    a.sum().backward()
    return [x.grad]


def asked_for(log: Log) -> list[Any]:
    x, y, z = leaf(3), leaf(3), leaf(3)
    a = x * y
    b = a.exp() + z
    gradients = torch.autograd.grad(b.sum(), [a, x, z, y], retain_graph=True)
    unused = torch.autograd.grad(a.sum(), [z, x], allow_unused=True)
    return [*gradients, *unused, x.grad]


def several_roots(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    a, b = (x * y).sin(), (x + y).cos()
    b.register_hook(lambda grad: log("b", grad))
    a.register_hook(lambda grad: log("a", grad))
    torch.autograd.backward([a, b, a.sum()], [torch.ones(3), torch.full((3,), 2.0), None])
    return [x.grad, y.grad]


def inputs_given(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    ((x * y).exp() + y).sum().backward(inputs=[x])
    return [x.grad, y.grad]


def again(log: Log) -> list[Any]:
    x = leaf(3)
    a = x.exp().sum()
    a.backward(retain_graph=True)
    first = x.grad.clone()
    a.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        a.backward()
    return [first, x.grad]


def into_existing(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(4, 4)
    x.grad, y.grad = torch.randn(3), torch.randn(4, 4).t()
    before = x.grad, y.grad
    (x.exp().sum() + y.sin().sum()).backward()
    return [x.grad is before[0], y.grad is before[1], x.grad, y.grad, y.grad.stride()]


def sparse(log: Log) -> list[Any]:
    table = torch.nn.Embedding(6, 3, sparse=True)
    (table(torch.tensor([1, 2, 1])).sin().sum() + table(torch.tensor([0, 2])).sum()).backward()
    grad = table.weight.grad
    mixed = torch.nn.Embedding(6, 3, sparse=True)
    (mixed(torch.tensor([1, 2, 1])).sum() + mixed.weight.cos().sum()).backward()
    return [grad.is_sparse, grad.to_dense(), mixed.weight.grad.to_dense()]


def dtypes(log: Log) -> list[Any]:
    x, y = leaf(3, dtype=torch.float64), leaf(3, dtype=torch.bfloat16)
    z = leaf(3, dtype=torch.complex64)
    ((x * y).sum() + (z * z.conj()).real.sum() * x.mean()).backward()
    return [x.grad, y.grad, z.grad]


def expanded(log: Log) -> list[Any]:
    x, y = leaf(1, 3), leaf(())
    (x.expand(4, 3) * torch.randn(4, 3) + y).sum().backward()
    return [x.grad, y.grad]


def empty(log: Log) -> list[Any]:
    x, y = leaf(0, 3), leaf(3)
    (x @ y).sum().backward()
    return [x.grad, y.grad]


def a_leaf_alone(log: Log) -> list[Any]:
    x = leaf(3)
    x.backward(torch.randn(3))
    x.backward(torch.randn(3))
    return [x.grad]


def a_layout(log: Log) -> list[Any]:
    weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    (F.conv2d(torch.randn(2, 3, 6, 6), weight).sin()).sum().backward()
    return [weight.grad, weight.grad.stride()]


def layers(log: Log) -> list[Any]:
    size = int(torch.randint(2, 6, ()))
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(8 * 9, 5)),
    )
    F.cross_entropy(model(torch.randn(size, 3, 8, 8)), torch.randint(5, (size,))).backward()
    return [parameter.grad for parameter in model.parameters()]


def attention(log: Log) -> list[Any]:
    torch.manual_seed(1)
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model(torch.randn(2, int(torch.randint(3, 6, ())), 8)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def recurrent(log: Log) -> list[Any]:
    model = torch.nn.LSTM(4, 5, 2)
    model(torch.randn(3, 2, 4))[0].sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def checkpointed(log: Log) -> list[Any]:
    x = leaf(3)
    a = torch.utils.checkpoint.checkpoint(lambda t: t.sin().exp(), x * 2, use_reentrant=False)
    a.sum().backward()
    return [x.grad]


def under_inference_of_numbers(log: Log) -> list[Any]:
    x = leaf(5)
    ((x**3).clamp(-2, 2) / 3 + F.leaky_relu(x, 0.3) * 0.7 + x.pow(2.5).nan_to_num()).sum().backward()
    return [x.grad]


PROGRAMS = [
    *(custom_functions, missing_gradients, in_place, custom_in_place, asked_for, several_roots, inputs_given, again),
    *(into_existing, sparse, dtypes, expanded, empty, a_leaf_alone, a_layout, layers, attention, recurrent),
    *(checkpointed, under_inference_of_numbers),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_those_of_eager(program: Any) -> None:
    assert_as_eager(program)


def test_other_sizes_are_no_other_capture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    compiled_autograd.reset()
    for size in (4, 8, 16, 3, 1, 0):
        model.zero_grad()
        x = torch.randn(size, 3)
        expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
        with compiled_autograd.enable(lambda gm: gm):
            model(x).square().sum().backward()
        for parameter, gradient in zip(model.parameters(), expected):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)
    assert captures() == 1


def test_sizes_that_change_become_symbolic_if_they_are_not_from_the_start() -> None:
    x = leaf(8, 3)
    compiled_autograd.reset()
    with compiled_autograd.enable(lambda gm: gm, dynamic=False):
        for size in (2, 3, 4, 5, 3):
            torch.autograd.grad(x[:size].exp().sum(), x)
    assert captures() == 2


def test_gradients_of_gradients() -> None:
    def program(log: Log) -> list[Any]:
        x, y = leaf(3, dtype=torch.float64), leaf(3, dtype=torch.float64)
        (first,) = torch.autograd.grad((x.exp() * y.sin() * x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        (first.sum() + second.square().sum()).backward()
        return [x.grad, y.grad]

    assert_as_eager(program)


def _shared(enabled: bool, program: Callable[[list[torch.Tensor], list[torch.Tensor]], torch.Tensor]) -> list[Any]:
    """Which gradients, and tensors that hooks have kept, share memory, and how often a gradient was copied."""
    torch.manual_seed(len(program.__name__))
    leaves, kept = [torch.randn(4, 4, requires_grad=True) for _ in range(3)], []
    with compiled_autograd.enable(lambda graph: graph) if enabled else contextlib.nullcontext():
        for _ in range(2):
            kept.clear()
            for leaf in leaves:
                leaf.grad = None
            loss = program(leaves, kept)
            with Copies() as copies:
                loss.backward()
    tensors = [leaf.grad for leaf in leaves if leaf.grad is not None] + kept
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[addresses.index(address) for address in addresses], copies.count, [tensor.tolist() for tensor in tensors]]


class Copies(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.copy_.default, torch.ops.aten.clone.default)
        return func(*args, **(kwargs or {}))


def products(leaves: list[torch.Tensor], kept: list[torch.Tensor]) -> torch.Tensor:
    a, b, c = leaves
    return ((a @ b).sin() @ c).cos().sum()


def sums(leaves: list[torch.Tensor], kept: list[torch.Tensor]) -> torch.Tensor:
    a, b, c = leaves
    return ((a + b) * (a * 2) + c).sin().sum()


def hooked(leaves: list[torch.Tensor], kept: list[torch.Tensor]) -> torch.Tensor:
    a, b, c = leaves
    inner = a @ b
    inner.register_hook(kept.append)
    b.register_hook(kept.append)
    return (inner + c).sin().sum()


def expanded(leaves: list[torch.Tensor], kept: list[torch.Tensor]) -> torch.Tensor:
    a, b, c = leaves
    return a.sum() + b.t().sin().sum() + c.view(-1)[1:].cos().sum()


@pytest.mark.parametrize("program", [products, sums, hooked, expanded])
def test_gradients_are_taken_and_copied_as_the_engine_does(program: Any) -> None:
    """One that nobody else has becomes the leaf's, others are copied."""
    assert _shared(True, program)[:2] == _shared(False, program)[:2]
    torch.testing.assert_close(_shared(True, program)[2], _shared(False, program)[2])
