"""`torch.cond` inside of transforms, with integers and writes; higher-order operators that are called by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, vmap
from torch._higher_order_ops import associative_scan, scan, strict_mode, while_loop
from torch._higher_order_ops import map as control_flow_map
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.functorch import aot_function, nop
from bolide.support.errors import Unsupported

operators = torch.ops.higher_order
layer = nn.Linear(4, 4)


def choice(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """What `torch.cond` stands for, also where a transform has many conditions, or will derive."""
    if torch._C._functorch.is_functorch_wrapped_tensor(pred):
        return tree_map(lambda a, b: torch.where(pred, a, b), true_fn(*operands), false_fn(*operands))
    return true_fn(*operands) if pred else false_fn(*operands)


def check(fn: Callable[..., Any], calls: list[tuple[Any, ...]], versions: int = 2) -> None:
    """`fn` is told how to choose. Compiled once for all sizes but the first, against the choice in Python."""
    compiled = bolide.compile(lambda *given: fn(torch.cond, *given), fullgraph=True)
    for given in calls:
        torch.testing.assert_close(compiled(*given), fn(choice, *given), rtol=1e-4, atol=1e-5)
    assert len(compiled._bolide.entries) <= versions


def signed(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [((torch.rand(size, 4) + 0.1) * (-1) ** place,) for place, size in enumerate(sizes)]


def branching(cond: Any, x: Tensor) -> Tensor:
    return cond(x.sum() > 0, lambda x: layer(x).sin(), lambda x: x.exp() @ layer.weight, (x,))


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda cond, x: vmap(lambda row: branching(cond, row))(x),
    "vmap with one condition": lambda cond, x: vmap(
        lambda row: cond(x.sum() > 0, lambda row: row @ x.T, lambda row: row.cos() * 2 @ x.T, (row,))
    )(x),
    "vmap in vmap": lambda cond, x: vmap(
        lambda row: vmap(lambda item: cond(x.max() > 0, lambda: item * row, lambda: item - row))(row)
    )(x),
    "grad": lambda cond, x: grad(lambda x: branching(cond, x).square().sum())(x),
    "vjp": lambda cond, x: vjp(lambda x: branching(cond, x), x)[1](x)[0],
    "jvp": lambda cond, x: jvp(lambda x: branching(cond, x), (x,), (x.cos(),)),
    "jacrev": lambda cond, x: jacrev(lambda x: branching(cond, x))(x),
    "hessian": lambda cond, x: hessian(lambda x: branching(cond, x).sum())(x),
    "gradients of items": lambda cond, x: vmap(grad(lambda row: branching(cond, row).sum()))(x),
    "functional_call": lambda cond, x: functional_call(
        Chosen(cond), {"inner.weight": x[:1].expand(4, 4) * 2, "inner.bias": x[0]}, (x,)
    ),
}


class Chosen(nn.Module):
    def __init__(self, cond: Any) -> None:
        super().__init__()
        self.cond, self.inner = cond, layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cond(x.sum() > 0, self.inner, lambda x: x.cos(), (x,))
        return result


@pytest.mark.parametrize("fn", [TRANSFORMS[name] for name in TRANSFORMS], ids=TRANSFORMS)
def test_branches_inside_of_transforms(fn: Callable[..., Any]) -> None:
    if fn is TRANSFORMS["functional_call"]:
        chosen = Chosen(torch.cond)
        compiled = bolide.compile(lambda w, b, x: functional_call(chosen, {"inner.weight": w, "inner.bias": b}, (x,)))
        for (x,) in signed(3, 5, 6):
            w, b = torch.randn(4, 4), torch.randn(4)
            torch.testing.assert_close(compiled(w, b, x), x @ w.T + b if x.sum() > 0 else x.cos())
        return
    static = [TRANSFORMS[name] for name in ("jvp", "jacrev", "hessian")]  # each size has a version, in some of torch's
    check(fn, signed(3, 5, 6), versions=3 if fn in static else 2)


def test_gradients_of_the_branch_that_is_not_taken_are_not_looked_at() -> None:
    fn = bolide.compile(
        grad(lambda x: torch.cond(x.sum() > 0, lambda x: x.sqrt(), lambda x: x * 2, (x,)).sum()), fullgraph=True
    )
    assert torch.equal(fn(torch.tensor([-1.0, 0.0])), torch.tensor([2.0, 2.0]))
    each = bolide.compile(vmap(lambda x: torch.cond(x > 0, lambda x: x.sqrt(), lambda x: x * 2, (x,))), fullgraph=True)
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    assert torch.equal(torch.autograd.grad(each(x).sum(), x)[0], torch.tensor([2.0, 0.25]))


def test_branches_give_integers() -> None:
    def fn(cond: Any, x: Tensor) -> Any:
        y, steps = cond(x.sum() > 0, lambda x: (x.sin(), 3), lambda x: (x.cos(), x.shape[0]), (x,))
        return y * steps, steps

    check(fn, signed(3, 5, 6))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(()))

    def forward(self, cond: Any, x: Tensor) -> Any:
        def positive(x: Tensor) -> Tensor:
            self.count += 1
            return x.mul_(2)

        x = x.clone()
        return cond(x.sum() > 0, positive, lambda x: x[0].sub_(1).expand(x.shape) * 1, (x,)), x


def test_branches_write_without_gradients() -> None:
    models = Counting(), Counting()
    compiled = bolide.compile(models[0], fullgraph=True)
    for (x,) in signed(3, 5, 6):
        with torch.no_grad():
            for got, right in zip(compiled(torch.cond, x), models[1](choice, x)):
                torch.testing.assert_close(got, right)
        assert torch.equal(*[model.count for model in models]) and not models[0].count.requires_grad
    with pytest.raises(Unsupported, match="writes to a tensor from outside"):
        compiled(torch.cond, torch.rand(3, 4))


def test_a_branch_has_a_checkpoint() -> None:
    def fn(cond: Any, x: Tensor) -> Any:
        region = lambda x: checkpoint(lambda x: layer(x).relu(), x, use_reentrant=False)  # noqa: E731
        return cond(x.sum() > 0, region, lambda x: x * 3, (x,))

    compiled = bolide.compile(lambda x: fn(torch.cond, x), fullgraph=True)
    for (x,) in signed(3, 5, 6):
        x.requires_grad_()
        gradients = [torch.autograd.grad(out.sin().sum(), x) for out in (compiled(x), fn(choice, x))]
        torch.testing.assert_close(*gradients)


OPERATORS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "cond": (
        lambda x: operators.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x * 2,), (x,)),
        lambda x: (x.sin() if x.sum() > 0 else x * 2,),
    ),
    "while_loop": (
        lambda x: operators.while_loop(
            lambda i, x, w: i < 3, lambda i, x, w: (i + 1, x * w.sum()), (torch.tensor(0), x), (layer.bias,)
        ),
        lambda x: (torch.tensor(3), x * layer.bias.sum() ** 3),
    ),
    "map_impl": (
        lambda x: operators.map_impl(lambda x, w: (x @ w, x + 1), [x], [layer.weight]),
        lambda x: [x @ layer.weight, x + 1],
    ),
    "scan": (
        lambda x: operators.scan(lambda c, x, w: [c + x, c * w], [x[0] * 0], [x], (layer.bias,)),
        lambda x: [x.sum(0), (x.cumsum(0) - x) * layer.bias],
    ),
    "associative_scan": (
        lambda x: operators.associative_scan(lambda a, b: [a + b], [x], ()),
        lambda x: [x.cumsum(0)],
    ),
    "strict_mode": (lambda x: strict_mode(lambda x: (layer(x), x.sin()), (x,)), lambda x: (layer(x), x.sin())),
    "strict_mode itself": (lambda x: operators.strict_mode(layer, (x,)), layer),
    "hints_wrapper": (
        lambda x: operators.hints_wrapper(lambda x, y: layer(x) + y, (x, x * 2), {}, hints={"fused": True}),
        lambda x: layer(x) + x * 2,
    ),
    "invoke_subgraph": (
        lambda x: operators.invoke_subgraph(lambda x: (layer(x),), "first", x),
        lambda x: (layer(x),),
    ),
    "wrap": (lambda x: operators.wrap(lambda x: {"a": layer(x)}, x), lambda x: {"a": layer(x)}),
}


@pytest.mark.parametrize(("fn", "expected"), OPERATORS.values(), ids=OPERATORS)
def test_operators_are_called_by_themselves(fn: Callable[..., Any], expected: Callable[..., Any]) -> None:
    compiled = bolide.compile(fn, fullgraph=True)
    for (x,) in signed(3, 5, 6):
        got, right = [function(x.clone().requires_grad_()) for function in (compiled, expected)]
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_products_of_small_integers_in_a_wider_type() -> None:
    w = torch.randint(-128, 127, (8, 8), dtype=torch.int8)

    def fn(x: Tensor) -> Any:
        product = operators.out_dtype(torch.ops.aten.mm.default, torch.int32, x, w)
        return product, operators.out_dtype(torch.ops.aten.mul.Tensor, torch.int32, x, 2.0)

    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (3, 5, 6):
        x = torch.randint(-128, 127, (rows, 8), dtype=torch.int8)
        assert torch.equal(compiled(x)[0], x.int() @ w.int())
        torch.testing.assert_close(compiled(x), fn(x))
    with pytest.raises(ValueError, match="only allows the following operators"):
        bolide.compile(lambda x: operators.out_dtype(torch.ops.aten.sin.default, torch.int32, x), fullgraph=True)(x)


def test_text_is_printed_when_the_graph_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: Tensor) -> Tensor:
        torch._higher_order_ops.print("{} rows of {name}", x.shape[0], name="x")
        return x.sin()

    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (3, 5, 6):
        compiled(torch.randn(rows))
        assert capsys.readouterr().out == f"{rows} rows of x\n"


def nested(cond: Any, x: Tensor, w: Tensor) -> Tensor:
    inner = lambda x: cond(x.max() > 0.6, lambda x: x @ w, lambda x: x.exp(), (x,))  # noqa: E731
    result: Tensor = cond(x.sum() > 0, inner, lambda x: x.cos() * w.sum(), (x,))
    return result


AHEAD: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor], Any]]] = {
    "cond": (lambda x, w: nested(torch.cond, x, w), lambda x, w: nested(choice, x, w)),
    "while_loop": (
        lambda x, w: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ w), (torch.tensor(0), x))[1],
        lambda x, w: x @ w @ w @ w,
    ),
    "map": (lambda x, w: control_flow_map(lambda row: row.sin() @ w, x), lambda x, w: x.sin() @ w),
    "scan": (
        lambda x, w: scan(lambda c, row: (c + row, c @ w), x[0] * 0, x)[1],
        lambda x, w: (x.cumsum(0) - x) @ w,
    ),
    "associative_scan": (
        lambda x, w: associative_scan(lambda a, b: a * b, x @ w, 0, combine_mode="generic"),
        lambda x, w: (x @ w).cumprod(0),
    ),
    "strict_mode": (lambda x, w: strict_mode(lambda x: (x @ w,), (x,))[0], lambda x, w: x @ w),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("fn", "expected"), AHEAD.values(), ids=AHEAD)
def test_control_flow_is_compiled_ahead_of_time(
    fn: Callable[..., Any], expected: Callable[..., Any], dynamic: bool
) -> None:
    compiled = aot_function(fn, fw_compiler=nop, dynamic=dynamic)
    for (x,) in signed(3, 5, 6):
        given = x.requires_grad_(), torch.randn(4, 4, requires_grad=True)
        results = [function(*given) for function in (compiled, expected)]
        tangents = torch.randn_like(results[0])
        both = [(out, *torch.autograd.grad(out, given, tangents, allow_unused=True)) for out in results]
        for got, right in zip(*both):
            right = torch.zeros(()) if right is None else right  # of a branch that does not use an operand
            torch.testing.assert_close(got, right.expand_as(got), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        (lambda x: x[0] * 2, "different results"),
        (lambda x: x, "no new tensor"),
        (lambda x: x.add_(1), "writes"),
        (lambda x: x + torch.randperm(12).view(3, 4), "random"),
    ],
)
def test_branches_that_are_refused_ahead_of_time(branch: Callable[..., Any], reason: str) -> None:
    compiled = aot_function(lambda x: torch.cond(x.sum() > 0, branch, lambda x: x * 1, (x,)), fw_compiler=nop)
    with pytest.raises(Unsupported, match=reason):
        compiled(torch.randn(3, 4))
    assert not torch.compiler.is_dynamo_compiling()
