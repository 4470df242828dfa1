"""Derivatives in Python that cannot be recorded, of operators and of `autograd.Function`s: they read data, or do more
than compute. They are called when the backward runs, in a program that is captured whole."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import bolide

numbers = itertools.count()
seen: list[Any] = []  # what derivatives tell


@dataclasses.dataclass
class Rule:
    """A differentiable operation on two matrices of the same shape, and what its derivative does."""

    compute: Callable[..., Any]
    backward: Callable[..., Any]
    schema: str = "(Tensor x, Tensor y) -> Tensor"
    setup: Callable[..., None] = lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    fake: Callable[..., Any] = lambda x, y, *rest: torch.empty_like(x)
    call: Callable[..., Any] = lambda op, x, y: op(x, y)


def _rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * number for row, number in zip(x, y[:, 0].tolist())])


def _of_rows(ctx: Any, g: torch.Tensor) -> Any:
    x, y = ctx.saved_tensors
    found = torch.zeros_like(x)
    for place, number in enumerate(y[:, 0].tolist()):
        torch.mul(g[place], number, out=found[place])
    return found, torch.zeros_like(y).index_copy(1, torch.tensor([0]), (g * x).sum(1, keepdim=True))


def _perhaps(ctx: Any, g: torch.Tensor) -> Any:
    x, y = ctx.saved_tensors
    return (g * y if y.sum() > 0 else None), (g * x if x.sum() > 0 else None)


def _pair_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])
    ctx.kept = {"inputs": [inputs[0]], "rows": inputs[0].shape[0], "size": inputs[0].shape}


def _of_pair(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
    assert ctx.kept["size"] == ctx.kept["inputs"][0].shape and type(ctx.kept["rows"]) is int
    (second,) = ctx.saved_tensors
    factor = 2.0 if second[0, 0].item() > 0 else 3.0
    return g * factor + h * ctx.kept["rows"], h * ctx.kept["inputs"][0].clamp(max=factor)


def _options_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    _, _, ctx.times, ctx.scale, ctx.mode, ctx.missing = inputs


def _with_options(ctx: Any, g: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    assert (ctx.mode, ctx.missing, x.numpy().dtype.name) == ("fast", None, "float32")
    return g * ctx.times * ctx.scale, g, None, None, None, None


def _list_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[0])
    assert inputs[1] is None


def _of_list(ctx: Any, gradients: Any) -> Any:
    assert ctx.needs_input_grad == ([True, True], False)
    factors = [max(tensor.flatten().tolist()) for tensor in ctx.saved_tensors]
    return [gradient * factor for gradient, factor in zip(gradients, factors)], None


def _in_place(ctx: Any, g: torch.Tensor) -> Any:
    x, _ = ctx.saved_tensors
    if x.sum().item() < 1e9:
        g *= 2
    return g, g


def _larger(ctx: Any, g: torch.Tensor) -> Any:
    x, _ = ctx.saved_tensors
    return torch.stack([g.double()] * int(x.flatten()[0].item() > 0) + [g.double()]), g.to(torch.bfloat16)


def _transposed(ctx: Any, g: torch.Tensor) -> Any:
    x, y = ctx.saved_tensors
    seen.append((x.stride(), y.stride(), ctx.needs_input_grad))
    return (g.t().contiguous() * float(x.t().view(-1)[0])).t(), g


def _nothing(ctx: Any, g: torch.Tensor) -> Any:
    seen.append(g.square().sum().item() > 0)  # of two of these, whichever comes last
    return None, None


RULES = {
    "reads data": Rule(_rows, _of_rows),
    "data decides whether there is a gradient": Rule(lambda x, y: x * y, _perhaps),
    "several results": Rule(
        lambda x, y: (x * 2, y + x),
        _of_pair,
        "(Tensor x, Tensor y) -> (Tensor, Tensor)",
        _pair_context,
        lambda x, y: (torch.empty_like(x), torch.empty_like(y)),
        lambda op, x, y: torch.add(*op(x, y)),
    ),
    "one of several results is used": Rule(
        lambda x, y: (x * 2, y + x),
        _of_pair,
        "(Tensor x, Tensor y) -> (Tensor, Tensor)",
        _pair_context,
        lambda x, y: (torch.empty_like(x), torch.empty_like(y)),
        lambda op, x, y: op(x, y)[1],
    ),
    "numbers and texts": Rule(
        lambda x, y, times, scale, mode, missing: x * times * scale + y,
        _with_options,
        "(Tensor x, Tensor y, SymInt times, float scale, str mode, Tensor? missing) -> Tensor",
        _options_context,
        call=lambda op, x, y: op(x, y, x.shape[0], 0.5, "fast", None),
    ),
    "writes to its tangent": Rule(lambda x, y: x + y, _in_place),
    "gradients of another shape and type": Rule(lambda x, y: x + y, _larger),
    "layouts": Rule(
        lambda x, y: x + y,
        _transposed,
        fake=lambda x, y: torch.empty_like(x) + y,
        call=lambda op, x, y: op(x.t().contiguous().t(), y),
    ),
    "no gradients": Rule(lambda x, y: x + y, _nothing),
}
OF_OPERATORS = {
    "lists": Rule(
        lambda xs, missing: [x * 2 for x in xs],
        _of_list,
        "(Tensor[] xs, Tensor? missing) -> Tensor[]",
        _list_context,
        lambda xs, missing: [torch.empty_like(x) for x in xs],
        lambda op, x, y: torch.sub(*op([x, y.tanh()], None)),
    ),
}


def operator(rule: Rule) -> Any:
    """A new operator."""
    name = f"called_derivatives::op{next(numbers)}"
    torch.library.define(name, rule.schema)
    torch.library.impl(name, "CPU", rule.compute)
    torch.library.register_fake(name, rule.fake)
    torch.library.register_autograd(name, rule.backward, setup_context=rule.setup)
    return getattr(torch.ops.called_derivatives, name.partition("::")[2])


def custom(rule: Rule) -> Any:
    """As `operator`, by `torch.library.custom_op`."""
    name = f"called_derivatives::op{next(numbers)}"
    made = torch.library.custom_op(name, rule.compute, mutates_args=(), schema=rule.schema)
    made.register_fake(rule.fake)
    made.register_autograd(rule.backward, setup_context=rule.setup)
    return made


def function(rule: Rule) -> Any:
    methods = {"forward": rule.compute, "setup_context": rule.setup, "backward": rule.backward}
    made = type("Own", (torch.autograd.Function,), {name: staticmethod(method) for name, method in methods.items()})
    return made.apply  # type: ignore[attr-defined]


def run(fn: Callable[..., Any], tensors: Sequence[torch.Tensor], weight: torch.Tensor) -> list[Any]:
    """The result, the gradients, and what derivatives tell in the end: that of an operator is tried while compiling."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    seen.clear()
    result = fn(*leaves)
    (result * weight).sum().backward()
    return [result.detach(), *[leaf.grad for leaf in leaves], seen[-1:]]


def check(fn: Callable[..., Any], *, backend: str = "inductor", dynamic: bool | None = None) -> Any:
    """Results and gradients of a program captured whole are eager's, called with several sizes."""
    compiled: Any = bolide.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for rows, columns in ((4, 3), (4, 3), (6, 3), (5, 7), (2, 2)):
        tensors = [torch.randn(rows, columns) for _ in range(2)]
        weight = torch.randn(rows, columns)
        expected, found = (run(each, tensors, weight) for each in (fn, compiled))
        torch.testing.assert_close(found[:-1], expected[:-1], rtol=1e-4, atol=1e-4)
        assert found[-1] == expected[-1]
    return compiled


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("make", [operator, custom, function])
@pytest.mark.parametrize("name", RULES)
def test_gradients(name: str, make: Callable[[Rule], Any], dynamic: bool | None) -> None:
    op, call = make(RULES[name]), RULES[name].call
    check(lambda x, y: call(op, x.sin() + 1, y * 2).cos() + x, dynamic=dynamic)


@pytest.mark.parametrize("make", [operator, custom])
@pytest.mark.parametrize("name", OF_OPERATORS)
def test_gradients_of_operators(name: str, make: Callable[[Rule], Any]) -> None:
    op, call = make(OF_OPERATORS[name]), OF_OPERATORS[name].call
    check(lambda x, y: call(op, x.sin() + 1, y * 2).cos() + x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", [operator, function])
def test_other_backends(make: Callable[[Rule], Any], backend: str) -> None:
    op = make(RULES["reads data"])
    check(lambda x, y: op(x.sin(), y).cos(), backend=backend)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int, request: pytest.FixtureRequest) -> None:
    """Several such operations in a row, next to each other, and with the same arguments twice."""
    source = random.Random(f"{torch.initial_seed()} {seed}")
    named = [source.choice([*RULES]) for _ in range(3)]
    ops = [(source.choice([operator, custom, function])(RULES[name]), RULES[name].call) for name in named]
    places = [(source.randrange(2 + at), source.randrange(2 + at)) for at in range(3)]
    pointwise = [source.choice([torch.sin, torch.tanh, torch.sigmoid, torch.relu]) for _ in range(3)]

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for (op, call), (left, right), then in zip(ops, places, pointwise):
            first, second = (values[left] + 0.5).contiguous(), (values[right] * 1.5).contiguous()
            values.append(then(call(op, first, second)) + x)
        return values[-1] + values[-2] * y

    print(named, places, pointwise)
    check(fn, dynamic=source.choice([None, True]))


def test_a_derivative_that_can_be_recorded_is() -> None:
    rule = Rule(lambda x, y: x * y, lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]))
    for make in (operator, function):
        op = make(rule)
        told = str(
            bolide.explain(lambda x, y, op=op: op(x, y))(*[torch.randn(3, requires_grad=True) for _ in range(2)])
        )
        assert "bolide.derivative" not in told and "0 breaks" in told


def test_a_called_derivative_runs_whenever_eager_runs_it() -> None:
    """It has its effects then, reads what is outside then, and raises its own error."""
    state = {"factor": 2.0}

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        seen.append(sum(g.tolist()))
        if state["factor"] < 0:
            raise KeyError("a negative factor")
        return g * state["factor"], None

    for make in (operator, function):
        op = make(Rule(lambda x, y: x + y, backward))
        compiled = bolide.compile(lambda x, y, op=op: op(x, y), fullgraph=True)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        for factor in (2.0, 3.0):
            state["factor"] = factor
            seen.clear()
            total = compiled(x, y).sum()
            total.backward(retain_graph=True)
            total.backward()
            torch.testing.assert_close(x.grad, torch.full_like(x, 2 * factor))
            assert seen == [3.0, 3.0]
            x.grad = None
        state["factor"] = -1.0
        total = compiled(x, y).sum()
        with pytest.raises(KeyError, match="a negative factor"):
            total.backward()
        compiled(x.detach(), y)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: (g,),
        lambda g: (g, None, None),
        lambda g: (g, None, g),
        lambda g: (g[:1], None),
        lambda g: (torch.cat([g, g]), None),
        lambda g: (1.0, None),
    ],
)
def test_what_the_engine_refuses_of_gradients(wrong: Callable[..., Any]) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            assert g[0].item() < 1e9
            return wrong(g)

    def text(fn: Callable[..., Any]) -> str:
        x = torch.randn(5, requires_grad=True)
        try:
            fn(x * 2, torch.randn(5)).sum().backward()
        except (RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Own.apply(x, y)  # type: ignore[no-any-return, no-untyped-call]

    assert text(bolide.compile(fn, fullgraph=True)) == text(fn)


def _of_square(ctx: Any, g: torch.Tensor) -> Any:
    return g * ctx.saved_tensors[0] * 2, None


def _of_square_by_data(ctx: Any, g: torch.Tensor) -> Any:
    x, _ = ctx.saved_tensors
    return g * (x * 2 if max(x.tolist()) < 1e9 else x), None


@pytest.mark.parametrize("derivative", [_of_square, _of_square_by_data])
def test_gradients_of_gradients_of_operators(derivative: Callable[..., Any]) -> None:
    """Those that cannot be recorded are replayed in eager. An operator is no operation that no derivative goes through,
    though the code around it turns grad mode off."""
    op = operator(Rule(lambda x, y: x * x + y, derivative))

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = op(x, y)
        return op(x.sin(), y).exp() * x + factor * x

    found = []
    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (3, 5):
        x = torch.randn(rows, dtype=torch.float64)
        for each in (fn, compiled):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(each(leaf, x).sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), leaf)
            found.append((first.detach(), second))
        torch.testing.assert_close(found[-1], found[-2])


@pytest.mark.parametrize("derivative", [_of_square, _of_square_by_data])
def test_operators_in_a_branch_that_depends_on_data(derivative: Callable[..., Any]) -> None:
    op = operator(Rule(lambda x, y: x * x + y, derivative))

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x[:, 0] * 2
        x = op(x, y[:, 0]) if x.sum() > 0 else x.cos()
        return x.unsqueeze(1) * y

    compiled = bolide.compile(fn)
    for rows in (4, 4, 5, 6, 7):
        tensors, weight = [torch.randn(rows, 2) for _ in range(2)], torch.randn(rows, 2)
        torch.testing.assert_close(run(compiled, tensors, weight), run(fn, tensors, weight))


def test_gradients_of_gradients_of_functions_are_those_of_their_code() -> None:
    op = function(RULES["reads data"])
    x, y = (torch.randn(3, 2, requires_grad=True) for _ in range(2))
    found = []
    for call in (op, bolide.compile(lambda x, y: op(x, y), fullgraph=True)):
        first = torch.autograd.grad(call(x, y).sum(), (x, y), create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, y), allow_unused=True)))
    torch.testing.assert_close(*found)


class Scale:
    factor = 3.0


def _held_by_an_object(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: Any) -> torch.Tensor:
            ctx.scale = scale
            return x + y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g * ctx.scale.factor * (g[0, 0].item() > 0), None, None

    return Held.apply(x, y, Scale())  # type: ignore[no-any-return, no-untyped-call]


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: Any) -> torch.Tensor:
        ctx.scale = scale
        return x + y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.scale.factor * (g[0, 0].item() > 0), None, None


@pytest.mark.parametrize("fn", [_held_by_an_object, lambda x, y: Outer.apply(x, y, Scale())])
def test_what_cannot_be_called_later_is_a_break(fn: Callable[..., Any]) -> None:
    """A class that the program makes, and a context that holds an object."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return fn(x.sin() + 1, y).cos()

    compiled = bolide.compile(program)
    for rows in (3, 3, 4):
        tensors, weight = [torch.randn(rows, 2) for _ in range(2)], torch.randn(rows, 2)
        torch.testing.assert_close(run(compiled, tensors, weight), run(program, tensors, weight))


def test_an_operator_without_a_fake_is_a_break() -> None:
    name = f"called_derivatives::op{next(numbers)}"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "CPU", lambda x: x * float(x.numpy().max()))
    torch.library.register_autograd(name, lambda ctx, g: g * g.sum().item())
    op = getattr(torch.ops.called_derivatives, name.partition("::")[2])

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return op(x.sin()).cos() * y

    compiled = bolide.compile(program)
    for rows in (3, 3, 4):
        tensors, weight = [torch.randn(rows, 2) for _ in range(2)], torch.randn(rows, 2)
        torch.testing.assert_close(run(compiled, tensors, weight), run(program, tensors, weight))


def test_operators_that_write_have_no_part_in_it() -> None:
    name = f"called_derivatives::op{next(numbers)}"

    @torch.library.custom_op(name, mutates_args=("out",))
    def fill(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * max(x.flatten().tolist()))

    op = operator(RULES["reads data"])

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = torch.empty_like(x)
        fill(x.detach(), kept)
        return op(x, y) * kept  # type: ignore[no-any-return]

    check(program)


def test_data_as_symbols_stay_with_a_called_derivative() -> None:
    op = operator(RULES["reads data"])
    check(lambda x, y: op(x, y) * (x > 0).nonzero().shape[0])
