"""A table of programs with backward passes: what they give, and in which order hooks are called, is the same in eager,
captured, and captured and compiled."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import bolide
from tests.compiled_autograd_tools import assert_as_eager

Log = Any


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True, **options)


def custom(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A Function of these two."""
    return type("Custom", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def mlp() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()


# ---- custom functions ------------------------------------------------------------------------------------------------


def saves_input_and_output(log: Log) -> list[Any]:
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        ctx.save_for_backward(x, y, x)
        return y

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, y, again = ctx.saved_tensors
        log(x is again, y.shape)
        return grad * y * (1 - y) + 0 * x

    x = leaf(3)
    custom(forward, backward).apply(x).sum().backward()
    return [x.grad]


def sizes_of_saved_tensors(log: Log) -> list[Any]:
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.rows = x.shape[0]
        return x.exp()

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.exp() * x.shape[0] + ctx.rows

    function, results = custom(forward, backward), []
    for size in (2, 5, 2, 7):
        x = leaf(size)
        function.apply(x).sum().backward()
        results.append(x.grad)
    return results


def state_that_changes(log: Log) -> list[Any]:
    """What a backward reads is read in each pass, and what it writes stays."""
    state = {"factor": 2.0, "calls": 0}

    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name, ctx.seen = name, []
        return x * 1

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        state["calls"] += 1
        ctx.seen.append(ctx.name)
        log(ctx.name, list(ctx.seen))
        return grad * state["factor"], None

    function, results = custom(forward, backward), []
    for factor in (2.0, 3.0, 3.0, 0.5):
        state["factor"] = factor
        x = leaf(2)
        function.apply(x, f"call {factor}").sum().backward()
        results.append(x.grad)
    return [*results, state["calls"]]


def several_outputs(log: Log) -> list[Any]:
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flag = x > 0
        ctx.mark_non_differentiable(flag)
        return x * y, y.exp(), flag

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        log([grad is None for grad in grads], *grads[:2])
        return grads[0] * 2, grads[1] * 3

    x, y = leaf(3), leaf(3)
    first, second, _ = custom(forward, backward).apply(x, y)
    first.sum().backward(retain_graph=True)
    (first * second).sum().backward()
    return [x.grad, y.grad]


def no_materialised_grads(log: Log) -> list[Any]:
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def backward(ctx: Any, one: Any, other: Any) -> Any:
        log(one is None, other is None)
        return one if other is None else other

    x = leaf(3)
    function = custom(forward, backward)
    function.apply(x)[0].sum().backward()
    function.apply(x)[1].sum().backward()
    return [x.grad]


def a_view_is_returned(log: Log) -> list[Any]:
    x = leaf(2, 3)
    function = custom(lambda ctx, x: x.view(-1), lambda ctx, grad: grad.view(2, 3) * 2)
    y = function.apply(x)
    (y * y.detach()).sum().backward()
    return [x.grad]


def the_input_is_returned(log: Log) -> list[Any]:
    x = leaf(3)
    y = custom(lambda ctx, x: x, lambda ctx, grad: grad * 5).apply(x * 2)
    (y.sin() * y).sum().backward()
    return [x.grad]


def marked_dirty(log: Log) -> list[Any]:
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    x = leaf(3)
    y = x * 1
    z = custom(forward, lambda ctx, grad: grad * 3).apply(y)
    (z.exp() + y).sum().backward()
    return [x.grad]


def fewer_gradients_needed(log: Log) -> list[Any]:
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        log(ctx.needs_input_grad)
        return grad if ctx.needs_input_grad[0] else None, grad * 2 if ctx.needs_input_grad[1] else None

    function = custom(lambda ctx, x, y: x + y, backward)
    x, y = leaf(2), torch.randn(2, dtype=torch.float64)
    function.apply(x, y).sum().backward()
    function.apply(y, x).sum().backward()
    return [x.grad]


def sparse_gradient(log: Log) -> list[Any]:
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), grad.sum() * torch.ones(2, 2).double(), (4, 2))

    x = leaf(4, 2)
    custom(lambda ctx, x: x[[0, 2]].clone(), backward).apply(x).sum().backward()
    return [x.grad.to_dense(), x.grad.is_sparse]


def vmapped_function(log: Log) -> list[Any]:
    class Square(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.saved_tensors[0] * grad

    x = leaf(3)
    Square.apply(x).sum().backward()
    return [x.grad]


def a_function_within(log: Log) -> list[Any]:
    inner = custom(lambda ctx, x: x * 2, lambda ctx, grad: (log("inner"), grad * 2)[1])

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = grad.detach().requires_grad_()
            (result,) = torch.autograd.grad(inner.apply(x).sin().sum(), x)
        log("outer")
        return grad * result

    x = leaf(3)
    custom(lambda ctx, x: x + 1, backward).apply(x).sum().backward()
    return [x.grad]


def breaks_inside(log: Log) -> list[Any]:
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        log("before", grad)
        bolide.graph_break()
        log("after")
        return grad.cos() * 2

    x = leaf(3)
    custom(lambda ctx, x: x.sin(), backward).apply(x * 3).sum().backward()
    return [x.grad]


def random_in_backward(log: Log) -> list[Any]:
    x = leaf(3)
    torch.manual_seed(7)
    custom(lambda ctx, x: x.sin(), lambda ctx, grad: grad * torch.ones(3).double().sum()).apply(x).sum().backward()
    return [x.grad, torch.rand(2)]


# ---- hooks -----------------------------------------------------------------------------------------------------------


def hooks_of_every_kind(log: Log) -> list[Any]:
    x = leaf(2)
    y = x.sin()
    z = y.exp()
    x.register_hook(lambda grad: log("leaf", grad))
    y.register_hook(lambda grad: (log("tensor", grad), grad * 2)[1])
    y.grad_fn.register_prehook(lambda grads: log("node before", *grads))
    y.grad_fn.register_hook(lambda new, old: log("node after", *new, *old))
    z.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    z.grad_fn.register_hook(lambda new, old: (new[0] + 1,))
    y.register_hook(lambda grad: log("second", grad))
    x.register_post_accumulate_grad_hook(lambda leaf: log("accumulated", leaf.grad))
    y.retain_grad()
    z.sum().backward()
    return [x.grad, y.grad]


def hooks_around_accumulation(log: Log) -> list[Any]:
    """On the node that accumulates, and with a gradient that is there already."""
    x = leaf(2)
    node = (x * 1).grad_fn.next_functions[0][0]
    node.register_prehook(lambda grads: (log("before", *grads), (grads[0] * 2,))[1])
    node.register_hook(lambda new, old: log("after", [value is None for value in new], *[grad.clone() for grad in old]))
    for _ in range(2):
        x.sin().sum().backward()
        log(x.grad.clone())
    return [x.grad]


def a_hook_that_removes_another(log: Log) -> list[Any]:
    x = leaf(2)
    y = x * 2
    y.register_hook(lambda grad: log("first"))
    second = y.register_hook(lambda grad: log("second"))
    y.sum().backward(retain_graph=True)
    second.remove()
    y.sum().backward()
    return [x.grad]


def hooks_with_state(log: Log) -> list[Any]:
    """As a data-parallel reducer: buckets that are full are reduced, and the end of the pass waits for the rest."""
    layers, buckets = mlp(), []  # type: ignore[var-annotated]
    pending: list[torch.Tensor] = []

    def reduce() -> None:
        buckets.append(len(pending))
        for parameter in pending:
            parameter.grad.div_(2)
        pending.clear()

    def hook(parameter: torch.Tensor) -> None:
        if not buckets and not pending:
            torch.autograd.Variable._execution_engine.queue_callback(reduce)
        pending.append(parameter)
        if len(pending) == 3:
            reduce()

    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    layers(torch.randn(3, 4).double()).sum().backward()
    return [*(parameter.grad for parameter in layers.parameters()), buckets]


def module_hooks(log: Log) -> list[Any]:
    layers = mlp()
    layers[1].register_full_backward_hook(lambda module, new, old: log("after", *new, *old))
    layers[2].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,))
    layers[0].register_full_backward_hook(lambda module, new, old: log([value is None for value in new]))
    layers(torch.randn(3, 4).double()).sum().backward()
    return [parameter.grad for parameter in layers.parameters()]


def multi_grad_hooks(log: Log) -> list[Any]:
    x, y = leaf(2), leaf(2)
    a, b = x * 2, y.sin()
    torch.autograd.graph.register_multi_grad_hook([a, b], lambda grads: log("all", *grads))
    torch.autograd.graph.register_multi_grad_hook([a, b], lambda grad: log("any", grad), mode="any")
    (a * b).sum().backward()
    return [x.grad, y.grad]


def hooks_in_a_checkpoint(log: Log) -> list[Any]:
    x = leaf(3)

    def part(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: log("inside", grad))
        return y.exp()

    y = checkpoint(part, x, use_reentrant=False)
    y.register_hook(lambda grad: log("outside"))
    y.sum().backward()
    return [x.grad]


def saved_tensors_on_other_memory(log: Log) -> list[Any]:
    def pack(tensor: torch.Tensor) -> Any:
        log("pack", tensor.shape)
        return (tensor.numpy(force=True), "packed")

    def unpack(packed: Any) -> torch.Tensor:
        log("unpack", packed[1])
        return torch.from_numpy(packed[0])

    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.sin() * x
    y.sum().backward()
    with torch.autograd.graph.save_on_cpu():
        (x.exp() * x).sum().backward()
    return [x.grad]


def hooks_in_compiled_code(log: Log) -> list[Any]:
    """Registered by a compiled function on what it makes."""
    factor = torch.tensor(3.0).double()

    @functools.partial(bolide.compile, backend="aot_eager")
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: grad * factor)
        z = y * 2
        z.register_hook(lambda grad: grad.cos())
        return z.exp()

    results = []
    for _ in range(2):
        x = leaf(3)
        forward(x).sum().backward()
        results.append(x.grad)
    return results


# ---- what the engine does --------------------------------------------------------------------------------------------


def grad_of_intermediates(log: Log) -> list[Any]:
    x, unused = leaf(3), leaf(3)
    y = x.sin()
    z = y.exp()
    results = torch.autograd.grad(z.sum(), [y, x, unused], allow_unused=True, retain_graph=True)
    (again,) = torch.autograd.grad([z, y], [x], [torch.ones_like(z), y.detach()])
    return [*results, again, x.grad]


def into_strided_and_shared_gradients(log: Log) -> list[Any]:
    x, y = leaf(2, 3), leaf(3, 2)
    x.grad = torch.randn(3, 2).double().t()
    y.grad = torch.randn(3, 2).double()
    kept = y.grad
    ((x * 2) @ y).sum().backward()
    return [x.grad, x.grad.stride(), y.grad, kept is y.grad, kept]


def gradients_are_stolen_or_copied(log: Log) -> list[Any]:
    x = leaf(3)
    weight = torch.randn(3).double()
    x.backward(weight)
    log(x.grad.data_ptr() == weight.data_ptr())
    y = leaf(3)
    (y + y).backward(weight)
    y.grad.mul_(2)
    return [x.grad, y.grad, weight]


def expanded_gradients(log: Log) -> list[Any]:
    x = leaf(3)
    x.sum().backward()
    x.grad.add_(1)
    y = leaf(2, 1)
    y.expand(2, 4).sum().backward()
    return [x.grad, x.grad.stride(), y.grad]


def in_place_on_views(log: Log) -> list[Any]:
    x = leaf(3, 4)
    y = x * 1
    y[:, 1].mul_(2)
    y[0].copy_(y[1])
    y.t()[2].exp_()
    parts = (y * 2).split(2, dim=1)
    (parts[0].sum() + (parts[1] * parts[0]).sum()).backward()
    return [x.grad]


def dtypes_change(log: Log) -> list[Any]:
    x = leaf(3)
    h = torch.randn(3, dtype=torch.float16, requires_grad=True)
    (x.float() * h.float()).double().sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (torch.randn(2, 3) @ h.float()[:, None]).sum()
    loss.backward()
    return [x.grad, h.grad, h.grad.dtype]


def complex_numbers(log: Log) -> list[Any]:
    x = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    torch.view_as_real(x.conj() * x.exp()).sum().backward()
    y = leaf(2)
    torch.fft.fft(y).abs().sum().backward()
    return [x.grad, y.grad]


def zero_dimensional_and_empty(log: Log) -> list[Any]:
    x, y = leaf(), leaf(0, 3)
    (x.exp() * y.sum() + x).backward()
    return [x.grad, y.grad]


def one_leaf_in_many_places(log: Log) -> list[Any]:
    x = leaf(3)
    y = x
    for _ in range(8):
        y = (y * x).sin() + y
    y.sum().backward()
    return [x.grad]


def accumulates_over_batches(log: Log) -> list[Any]:
    layers = mlp()
    for size in (3, 5, 5, 2):
        layers(torch.randn(size, 4).double()).square().mean().backward()
        log([parameter.grad.clone() for parameter in layers.parameters()])
    layers.zero_grad(set_to_none=False)
    layers(torch.randn(4, 4).double()).square().mean().backward()
    return [parameter.grad for parameter in layers.parameters()]


def a_graph_is_used_twice(log: Log) -> list[Any]:
    x = leaf(3)
    loss = (x.sin() * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return [x.grad]


def frozen_parts(log: Log) -> list[Any]:
    layers = mlp()
    layers[0].weight.requires_grad_(False)
    frozen = copy.deepcopy(layers).requires_grad_(False)
    x = torch.randn(3, 4).double()
    (layers(x) + frozen(x)).sum().backward()
    return [parameter.grad for parameter in layers.parameters()]


def callbacks_in_order(log: Log) -> list[Any]:
    x = leaf(2)
    y = x * 2

    def queue(name: str) -> Callable[..., None]:
        def again() -> None:
            log(name, x.grad)
            if name == "first":
                torch.autograd.Variable._execution_engine.queue_callback(lambda: log("later"))

        return lambda *_: torch.autograd.Variable._execution_engine.queue_callback(again)

    y.register_hook(queue("first"))
    x.register_post_accumulate_grad_hook(queue("second"))
    y.exp().sum().backward()
    log("done")
    return [x.grad]


def an_error_in_the_middle(log: Log) -> list[Any]:
    """What was accumulated before stays, and the next pass is right."""
    x, y = leaf(2), leaf(2)
    armed = [True]

    def hook(grad: torch.Tensor) -> None:
        if armed[0]:
            raise ZeroDivisionError("as asked")

    z = x * 2
    z.register_hook(hook)
    loss = (z.exp() * y).sum()
    with pytest.raises(ZeroDivisionError, match="as asked"):
        loss.backward(retain_graph=True)
    armed[0] = False
    log(x.grad is None)
    x.grad = y.grad = None
    loss.backward()
    return [x.grad, y.grad]


def memory_is_freed(log: Log) -> list[Any]:
    x = leaf(3)
    y = x.sin()
    saved = weakref.ref(y)
    z = (y.exp() * y).sum()
    del y
    z.backward()
    del z
    return [x.grad, saved() is None]


def optimizer_steps(log: Log) -> list[Any]:
    layers = mlp()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layers(torch.randn(3, 4).double()).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(layers.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach() for parameter in layers.parameters()]


def recurrent_and_normalised(log: Log) -> list[Any]:
    cell, norm = torch.nn.GRU(3, 4).double(), torch.nn.BatchNorm1d(4).double()
    x = leaf(5, 2, 3)
    out, _ = cell(x)
    norm(out.flatten(0, 1)).square().sum().backward()
    return [x.grad, norm.weight.grad, norm.running_mean, *(parameter.grad for parameter in cell.parameters())]


def embeddings(log: Log) -> list[Any]:
    table = torch.nn.Embedding(5, 3, padding_idx=1).double()
    sparse = torch.nn.Embedding(5, 3, sparse=True).double()
    where = torch.tensor([0, 1, 1, 4])
    (table(where) * sparse(where)).sum().backward()
    return [table.weight.grad, sparse.weight.grad.coalesce().values()]


def nested_structures(log: Log) -> list[Any]:
    x = leaf(4, 3)
    torch.stack([part.cumsum(0) for part in x.unbind(0)]).sort().values[1:].sum().backward()
    y = leaf(3)
    torch.cat([y, y[:2], y.flip(0)]).index_select(0, torch.tensor([0, 4, 7])).prod().backward()
    return [x.grad, y.grad]


def penalty_on_a_gradient(log: Log) -> list[Any]:
    x, w = leaf(3, 2), leaf(2, 2)
    loss = (x @ w).tanh().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient.detach(), x.grad, w.grad]


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__annotations__", {}).get("log") == "Log"]
COUNT = 43


def test_the_table_is_whole() -> None:
    assert len(PROGRAMS) == COUNT


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_captured(program: Any) -> None:
    assert_as_eager(program, times=2)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_captured_and_compiled(program: Any) -> None:
    bolide.reset()
    compiler = functools.partial(bolide.compile, backend="aot_eager")
    assert_as_eager(program, compiler, times=2, rtol=1e-9, atol=1e-9)
