"""What `aot_function` keeps of programs that do more than compute: shapes, storages and flags that change in place,
derivatives and hooks of the program's, tensors that are no arguments, lines of the program in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bolide.functorch.aot_autograd import aot_function, aot_module, aot_module_simplified
from bolide.functorch.partitioners import default_partition, min_cut_rematerialization_partition
from bolide.support.errors import Unsupported
from tests.functorch_tools import assert_same, flat

aten = torch.ops.aten


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def nop(graph: torch.fx.GraphModule, examples: list[Any]) -> torch.fx.GraphModule:
    graph.graph.lint()
    return graph


def keeping(graphs: list[Any]) -> Callable[..., Any]:
    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(graph)
        return graph

    return compiler


def check(fn: Callable[..., Any], *shapes: tuple[int, ...], grad: bool = True, **options: Any) -> None:
    """Arguments that are no leaves: results, arguments, gradients and versions are eager's, also those of results that
    the caller writes to."""
    start = [torch.randn(shape) for shape in shapes]
    found = []
    for call in (fn, aot_function(fn, nop, **options)):
        leaves = [tensor.clone().requires_grad_(grad) for tensor in start]
        args = [tensor * 1 for tensor in leaves]
        outs = flat(call(*args))
        roots = [root for root in (*outs, *args) if root.requires_grad]
        loss = sum([(root * (place + 1)).sum() for place, root in enumerate(roots)], torch.zeros(()))
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True) if grad else ()
        versions = [arg._version > 0 for arg in args]
        outs[0].mul_(3)
        found.append(([*outs, *args], grads, versions))
    (eager, eager_grads, eager_versions), (ours, our_grads, our_versions) = found
    for one, other in zip(ours, eager, strict=True):
        assert_same(one, other)
    for one, other in zip(our_grads, eager_grads, strict=True):
        assert_same(one, other, strides=False)  # ours are laid out as the leaf is
    assert our_versions == eager_versions


# ---- what changes in place -------------------------------------------------------------------------------------------


def _transposed_and_written(a: torch.Tensor) -> torch.Tensor:
    a.t_()
    a.mul_(2)
    return a.exp()


def _part_written(a: torch.Tensor) -> torch.Tensor:
    a.t_()
    a[0].mul_(2)
    return a.view(a.shape)


def _two(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    b.transpose_(0, 1)
    a.add_(b.mT)
    b.unsqueeze_(0)
    return a.sin(), b[0], b


RESHAPED = {
    "transposed_and_written": (_transposed_and_written, (3, 4)),
    "part_written": (_part_written, (3, 3)),
    "two": (_two, (3, 3), (3, 3)),
    "one_dimension": (lambda a: (a.t_(), a * 2)[1], (4,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", RESHAPED)
def test_shapes_and_data_change_in_place(name: str, grad: bool, dynamic: bool) -> None:
    fn, *shapes = RESHAPED[name]
    check(fn, *shapes, grad=grad, dynamic=dynamic)


def test_a_view_from_before_another_shape_is_refused_where_autograd_would_take_it_anew() -> None:
    def fn(a):
        first = a[0]
        a.t_()
        a.mul_(2)
        return first * 2

    with pytest.raises(Unsupported, match="another shape in place"):
        aot_function(fn, nop)(leaf(3, 3) * 1)


def _set(a: torch.Tensor) -> torch.Tensor:
    made = a.detach().cos()
    with torch.no_grad():
        a.set_(made.t())
    return a * made


def _set_to_another(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a.set_(b)
        b.mul_(2)
    return a + b


def _set_inside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    first, second = (a * 2).detach(), (b * 2).detach()
    first.set_(second[1].view(3, 3))
    first.view(-1).mul_(2)
    return first * second[1].view(3, 3)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [_set, _set_to_another, _set_inside])
def test_storages_change(fn: Callable[..., Any], grad: bool) -> None:
    shapes = [(3, 3), (3, 9) if fn is _set_inside else (3, 3)][: fn.__code__.co_argcount]
    check(fn, *shapes, grad=grad)


def test_requires_grad_changes() -> None:
    def fn(a, b):
        a.requires_grad_()
        return (a * b).sin(), b.detach().requires_grad_()

    call = aot_function(fn, nop)
    for _ in range(2):
        (a, b), (c, d) = ((torch.randn(3), leaf(3)) for _ in range(2))
        c.data.copy_(a), d.data.copy_(b)
        for one, other in zip([*call(a, b), a], [*fn(c, d), c]):
            assert_same(one, other)
        (ours, _), (theirs, _) = (
            torch.autograd.grad(each(*args)[0].sum(), args) for each, args in ((call, (a, b)), (fn, (c, d)))
        )
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(Unsupported, match="used before"):
        aot_function(lambda a: (a.mul_(2), a.requires_grad_())[1], nop)(torch.ones(2))
    with pytest.raises(Unsupported, match="leaf of the history"):
        aot_function(lambda a: (lambda b: (b, b * 2))((a * 2).requires_grad_()), nop)(torch.ones(2))


# ---- derivatives of the program's ------------------------------------------------------------------------------------


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Same(Halved):
    @staticmethod
    def forward(ctx, x):
        return x


@pytest.mark.parametrize(
    "fn", [Halved.apply, Same.apply, lambda x: Same.apply(x).view(-1), lambda x: Same.apply(x * 2)]
)
def test_functions(fn: Callable[..., Any]) -> None:
    """The result of one may be its argument."""
    x = leaf(2, 3)
    ours, theirs = (torch.autograd.grad(each(x).sum(), x) for each in (aot_function(fn, nop), fn))
    torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError, match=r"gradients of gradients|create_graph|second"):
        call = aot_function(lambda x: Halved.apply(x.sin()), nop)
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        torch.autograd.grad(gradient.sum(), x)


def test_hooks() -> None:
    def fn(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * 3)
        return y * 2

    x = leaf(3)
    ours, theirs = (torch.autograd.grad(each(x).sum(), x) for each in (aot_function(fn, nop), fn))
    torch.testing.assert_close(ours, theirs)
    with pytest.raises(Unsupported, match="hook"):
        aot_function(lambda x: (x.register_hook(lambda grad: grad), x * 2)[1], nop)(x)


# ---- tensors that are no arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_that_the_function_reaches(dynamic: bool) -> None:
    model, scale = nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 5, batch_first=True)), leaf(5)

    def fn(x):
        return model(x)[0] * scale

    graphs: list[Any] = []
    call = aot_function(fn, keeping(graphs), dynamic=dynamic)
    wanted = [*model.parameters(), scale]
    for rows in (4, 6):
        x = torch.randn(2, rows, 3)
        ours, theirs = (torch.autograd.grad(each(x).square().sum(), wanted) for each in (call, fn))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(graphs) == (2 if dynamic else 4)


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_what_torch_has_no_symbols_for_is_compiled_for_these_sizes() -> None:
    def fn(x):
        torch.cov(x[0], fweights=torch.ones(x.shape[1], dtype=torch.long)) if x.dim() == 3 else None
        if type(x.shape[0]) is not int:
            raise TypeError("no symbols")
        return x.sin()

    graphs: list[Any] = []
    call = aot_function(fn, keeping(graphs), dynamic=True)
    for rows in (3, 4, 3):
        x = torch.randn(rows)
        torch.testing.assert_close(call(x), x.sin())
    assert len(graphs) == 2


def test_one_size_of_one_is_no_version_for_others() -> None:
    call = aot_function(lambda x: x * x.shape[0], nop, dynamic=True)
    for rows in (1, 5, 0, 3):
        torch.testing.assert_close(call(torch.ones(rows)), torch.full((rows,), float(rows)))


def test_shapes_and_symbolic_flags() -> None:
    def fn(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=q.shape[2] > 1), q.shape, q.sum().item()

    call = aot_function(fn, nop, dynamic=True)
    for rows in (4, 6):
        q = leaf(2, 3, rows, 4)
        (ours, shape, number), (theirs, wanted, expected) = call(q), fn(q)
        torch.testing.assert_close((ours, number), (theirs, expected), rtol=1e-4, atol=1e-5)
        assert type(shape) is torch.Size and shape == wanted


# ---- graphs ----------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        y = self.inner(x).relu()
        return (self.norm(y) * 2,)


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_writes_without_a_history_are_kept_in_training_graphs_too(partition: Any) -> None:
    graphs: list[Any] = []
    model = Counting()
    compiled = aot_module(model, keeping(graphs), partition_fn=partition, keep_inference_input_mutations=True)
    for calls in (1, 2):
        compiled(torch.randn(5, 4))[0].sum().backward()
        assert model.calls == calls and model.norm.num_batches_tracked == calls
    forward, backward = graphs
    names = [node.name for node in forward.graph.find_nodes(op="call_function", target=aten.copy_.default)]
    assert sorted(names) == ["copy_", "copy__1", "copy__2", "copy__3"]
    assert not backward.graph.find_nodes(op="call_function", target=aten.copy_.default)
    saved = forward.graph.output_node().args[0][1:]
    assert len(saved) == len(backward.graph.find_nodes(op="placeholder")) - 1


@pytest.mark.parametrize("traced", [False, True])
def test_nodes_know_the_users_lines(traced: bool) -> None:
    model: nn.Module = Counting()
    if traced:
        tracer = torch.fx.Tracer()
        tracer.record_stack_traces = True
        model = torch.fx.GraphModule(model, tracer.trace(model))
    graphs: list[Any] = []
    call = aot_module_simplified(model, (leaf(5, 4),), keeping(graphs), keep_inference_input_mutations=True)
    call(leaf(5, 4))[0].sum().backward()
    for graph in graphs:
        for node in graph.graph.find_nodes(op="call_function", target=aten.copy_.default):
            assert "add_(1)" in node.stack_trace or "norm(y)" in node.stack_trace
        called = [node for node in graph.graph.nodes if node.op == "call_function"]
        assert called and all(__file__ in node.stack_trace for node in called)
    lines = [node.stack_trace for node in graphs[1].graph.nodes if node.target is aten.threshold_backward.default]
    assert lines and all("self.inner(x).relu()" in line for line in lines)


def test_gradients_of_arguments_are_not_read_nor_set() -> None:
    """They are state of the outside, which graphs do not have: what read it once would be a constant."""

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.grad is None else x + x.grad

    def sets(x: torch.Tensor) -> torch.Tensor:
        x.grad = x.detach() * 3
        return x * 2

    for function in (reads, sets):
        with pytest.raises(Unsupported, match="gradient of an argument is read or set"):
            aot_function(function, nop)(torch.randn(3, requires_grad=True))

    def inside(x: torch.Tensor) -> torch.Tensor:
        y = x.detach() * 2
        y.grad = x.detach().sin()
        return x * y.grad

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(aot_function(inside, nop)(x), x * x.detach().sin())


def test_marked_regions_are_called() -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + x

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return region(region(x, w), w)

    x, w = leaf(3, 4), leaf(4, 4)
    for call in (function, aot_function(function, nop)):
        result = call(x, w)
        torch.testing.assert_close(result, function(x, w))
        expected = torch.autograd.grad(function(x, w).sum(), [x, w])
        torch.testing.assert_close(torch.autograd.grad(result.sum(), [x, w]), expected)
