"""The calling convention of compiled functions: histories, aliases, writes, hooks and errors are eager's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef

import bolide
from bolide.functorch import compile_trace, interpret
from bolide.support.errors import Unsupported
from bolide.tracing import Trace
from tests.functorch_tools import (
    NON_LEAF_WRITES,
    VIEWS,
    WRITES,
    Compiled,
    assert_same,
    check,
    flat,
    fresh,
    gradients,
    underived,
)
from tests.thread_tools import together

PARTITIONS = ["default", "min_cut"]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_mlp(partition: str) -> None:
    def f(x, w, b, v):
        return F.linear(F.gelu(F.linear(x, w, b)), v)

    check(f, [torch.randn(5, 4), leaf(6, 4), leaf(6), leaf(3, 6)], partition=partition)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_conv_block_in_training_writes_its_statistics(partition: str) -> None:
    def f(x, w, scale, shift, mean, var, count):
        count.add_(1)
        return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, scale, shift, training=True))

    inputs = [leaf(2, 3, 8, 8), leaf(4, 3, 3, 3), leaf(4), leaf(4), torch.zeros(4), torch.ones(4), torch.tensor(0)]
    check(f, inputs, partition=partition)


def test_two_forwards_through_batch_norm_before_one_backward() -> None:
    def f(x, mean, var):
        return F.batch_norm(x, mean, var, training=True).sin()

    x, mean, var = leaf(4, 3), torch.zeros(3), torch.ones(3)
    g = Compiled(f, [x, mean, var])
    first, _ = g(x, mean, var), g(x, mean, var)
    expected = torch.autograd.grad(f(x, torch.zeros(3), torch.ones(3)).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x), expected)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_attention_block(partition: str) -> None:
    def f(x, qkv, out, g, b):
        h = F.layer_norm(x, (8,), g, b)
        q, k, v = F.linear(h, qkv).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = ((q @ k.transpose(-1, -2)) / 2).softmax(-1) @ v
        return x + F.linear(a.transpose(1, 2).reshape(2, 5, 8), out)

    check(f, [leaf(2, 5, 8), leaf(24, 8), leaf(8, 8), leaf(8), leaf(8)], partition=partition, atol=1e-5, rtol=1e-4)


def test_sdpa() -> None:
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [leaf(2, 2, 6, 8) for _ in range(3)])


def test_tied_weights() -> None:
    check(lambda i, w: F.linear(F.embedding(i, w), w), [torch.tensor([1, 2, 1]), leaf(7, 4)])


@pytest.mark.parametrize("partition", PARTITIONS)
def test_dropout_uses_one_mask_forward_and_backward(partition: str) -> None:
    x = leaf(1000)
    g = Compiled(lambda x: F.dropout(x * 2, 0.3, training=True), [x], partition)
    torch.manual_seed(3)
    y = g(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    torch.testing.assert_close(grad, kept * 2 / 0.7)
    assert 0.6 < kept.float().mean() < 0.8
    torch.manual_seed(3)
    assert torch.equal(g(x), y)
    assert not torch.equal(g(x), y)


# ---- outputs: identities, views, dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_outputs(name: str, grad: bool) -> None:
    check(VIEWS[name], [torch.randn(2, 4, requires_grad=grad)])


@pytest.mark.parametrize("name", VIEWS)
def test_outputs_without_grad_mode(name: str) -> None:
    with torch.no_grad():
        check(VIEWS[name], [leaf(2, 4)])
    with torch.inference_mode():
        check(VIEWS[name], [torch.randn(2, 4)])


def test_outputs_that_are_views_know_their_base() -> None:
    x = leaf(2, 4)
    g = Compiled(lambda x: (x.view(-1), y := x * 2, y.t()), [x])
    a, y, t = g(x)
    assert a._is_view() and a._base is x and t._base is y and not y._is_view()
    with torch.no_grad():
        x.zero_()
    assert a.abs().sum() == 0


def test_writing_to_an_output_as_in_eager() -> None:
    def f(x):
        return (x * 2).view(-1), x.exp()

    x = leaf(2, 4)
    g = Compiled(f, [x], "default")  # "min_cut" would compute exp again
    for h in (f, g):
        v, e = h(x)
        v.mul_(3)
        (grad,) = torch.autograd.grad(v.sum(), x, retain_graph=True)
        torch.testing.assert_close(grad, torch.full((2, 4), 6.0))
        e.add_(1)  # exp's derivative needs its result
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            e.sum().backward()


# ---- inputs: writes, kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", WRITES)
def test_writes_to_data(name: str, grad: bool) -> None:
    check(WRITES[name], [torch.randn(2, 4), torch.randn(2, 4, requires_grad=grad)])


def test_write_that_becomes_part_of_the_history() -> None:
    def f(x, w):
        x.mul_(w)
        return x.sin()

    g = Compiled(f, [torch.ones(3), torch.ones(3, requires_grad=True)])
    results = []
    for h in (f, g):
        torch.manual_seed(7)
        x, w = torch.randn(3), leaf(3)
        y = h(x, w)
        assert x.requires_grad and not x.is_leaf
        results.append((x, y, *torch.autograd.grad((x * y).sum(), w)))
    for one, other in zip(*results):
        assert_same(one, other)


@pytest.mark.parametrize("name", NON_LEAF_WRITES)
def test_writes_to_inputs_that_are_no_leaves(name: str) -> None:
    f = NON_LEAF_WRITES[name]
    start = torch.randn(2, 3)
    results = []
    for h in (f, Compiled(f, [leaf(2, 3) * 1])):
        w = start.clone().requires_grad_()
        x = w * 1
        outs = flat(h(x))
        loss = sum((out * (index + 1)).sum() for index, out in enumerate(outs)) + x.sum()
        results.append([x, *outs, torch.autograd.grad(loss, w)[0]])
    for one, other in zip(*reversed(results)):
        assert_same(one, other)


def test_parameter_written_without_grad() -> None:
    def f(w, g):
        with torch.no_grad():
            w.sub_(g * 0.1)
        return w * 2

    check(f, [leaf(4), torch.randn(4)])


def test_non_leaf_inputs_get_gradients() -> None:
    w = leaf(3, 3)
    g = Compiled(lambda x: (x * x).sum(), [w.exp()])
    torch.testing.assert_close(torch.autograd.grad(g(w.exp()), w), torch.autograd.grad((w.exp() ** 2).sum(), w))


def test_unused_inputs_have_no_gradient() -> None:
    a, b = leaf(3), leaf(3)
    Compiled(lambda a, b: a * 2, [a, b])(a, b).sum().backward()
    assert a.grad is not None and b.grad is None


def test_gradients_only_of_what_the_loss_reached() -> None:
    def f(x, a, b, c):
        return (x * a).sin(), (x * b).exp(), (x * c).sum() + (x * a).sum()

    inputs = [torch.randn(3), leaf(3), leaf(3), leaf(3)]
    g = Compiled(f, inputs)
    for used in ([0], [1], [2], [0, 2], [1, 2], [0, 1, 2]):
        ours, eager = fresh(inputs), fresh(inputs)
        actual, expected = g(*ours), f(*eager)
        sum((actual[i].sum() for i in used), torch.zeros(())).backward()
        sum((expected[i].sum() for i in used), torch.zeros(())).backward()
        for one, other in zip(ours, eager):
            assert_same(one.grad, other.grad)


def test_gradients_in_the_layout_of_their_leaves() -> None:
    x, w = torch.randn(5, 4), leaf(3, 4)
    v = torch.randn(4, 3).t().requires_grad_()
    g = Compiled(lambda x, w, v: F.linear(x, w) @ v, [x, w, v])
    g(x, w, v).sum().backward()
    assert w.grad.stride() == w.stride() and v.grad.stride() == v.stride()


# ---- backward: retain, hooks, errors ------------------------------------------------------------------------------


def test_backward_twice() -> None:
    x = leaf(3)
    g = Compiled(lambda x: x.sin().sum(), [x])
    y = g(x)
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(y, x)


def test_saved_input_modified_before_backward() -> None:
    x, w = torch.randn(3), leaf(3)
    y = Compiled(lambda x, w: (x * w).sum(), [x, w])(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_program_whose_backward_eager_refuses() -> None:
    def f(x, w):
        y = x * w
        x.add_(1)
        return y

    with pytest.raises(Unsupported, match="modified by an inplace operation"):
        Compiled(f, [torch.ones(2), leaf(2)])


def test_hooks_on_parameters_and_outputs() -> None:
    x = leaf(3)
    g = Compiled(lambda x: x * 2, [x])
    x.register_hook(lambda grad: grad * 10)
    y = g(x)
    y.register_hook(lambda grad: grad + 1)
    y.retain_grad()
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 40.0))
    torch.testing.assert_close(y.grad, torch.full((3,), 2.0))


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    x = leaf(3)
    g = Compiled(lambda x: (x.sin() * x.exp()).sum(), [x])
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = g(x)
    (grad,) = torch.autograd.grad(y, x)
    assert packed
    torch.testing.assert_close(grad, torch.autograd.grad((x.sin() * x.exp()).sum(), x)[0])


def test_create_graph_gives_gradients_that_have_gradients() -> None:
    x = leaf(3)
    y = Compiled(lambda x: x.sin().sum(), [x])(x)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(grad.detach(), x.cos().detach())
    grad.sum().backward()
    torch.testing.assert_close(x.grad, -x.sin().detach())


def test_backward_under_autocast() -> None:
    x, w = torch.randn(4, 4), leaf(4, 4)
    y = Compiled(lambda x, w: (x @ w).sum(), [x, w])(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        y.backward()
    torch.testing.assert_close(w.grad, x.t() @ torch.ones(4, 4))


def test_autocast_around_is_recorded_once() -> None:
    x, w = torch.randn(4, 4), leaf(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        check(lambda x, w: (x @ w).float().exp() @ w, [x, w])


def test_no_autograd_function_without_gradients() -> None:
    x = torch.randn(3)
    g = Compiled(lambda x: x * 2, [x])
    assert set(g.graphs) == {"inference"} and g(x).grad_fn is None
    g = Compiled(lambda x: x.argmax(), [leaf(3)])
    assert set(g.graphs) == {"inference"} and not g(leaf(3)).requires_grad


def test_backward_is_compiled_when_first_needed_by_whichever_thread() -> None:
    x = leaf(64)
    g = Compiled(lambda x: x.sin().exp().sum(), [x])
    g(x)
    assert "backward" not in g.graphs
    expected = torch.autograd.grad(x.sin().exp().sum(), x)[0]

    def work(number):
        for _ in range(10):
            torch.testing.assert_close(torch.autograd.grad(g(x), x)[0], expected)

    together(work, 4)


def test_expanded_tangent_and_odd_tangent_layouts() -> None:
    x = leaf(4, 6)
    g = Compiled(lambda x: x.sin(), [x])
    for tangent in (torch.ones(()).expand(4, 6), torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2]):
        torch.testing.assert_close(torch.autograd.grad(g(x), x, tangent)[0], x.cos().detach() * tangent)


def test_float64_gradients_against_finite_differences() -> None:
    x, w = leaf(3, 4, dtype=torch.float64), leaf(4, 4, dtype=torch.float64)
    g = Compiled(lambda x, w: F.layer_norm(F.silu(x @ w), (4,)).softmax(-1), [x, w])
    assert torch.autograd.gradcheck(g, (x, w))


def test_the_list_of_inputs_is_emptied() -> None:
    for x in (leaf(3), torch.randn(3)):
        inputs = [x]
        Compiled(lambda x: x * 2, [x]).run(inputs)
        assert inputs == []


def test_empty_and_zero_dimensional() -> None:
    check(lambda x: (x.sum(), x * 2), [torch.randn(0, 3, requires_grad=True)])
    check(lambda x: (x * x, x.view(1)), [torch.randn((), requires_grad=True)])


def test_seeds_of_gradients_helper() -> None:
    x = leaf(2)
    assert torch.equal(gradients(flat(x * 1), [x])[0], gradients(flat(x * 1), [x])[0])


def test_saved_values_die_inside_the_backward() -> None:
    """The peak of a training step must not hold all saved values until its end."""
    x = leaf(64)
    seen = []

    def compiler(module, info):
        run = interpret(module, info)

        def watched(inputs):
            if info.kind == "backward":
                saved = [StorageWeakRef(tensor.untyped_storage()) for tensor in inputs[:-1]]
                inputs.clear()
                seen.append([reference.expired() for reference in saved])
                return [torch.zeros(64)]
            return run(inputs)

        return watched

    trace = Trace()
    traced = trace.input(x, "x")
    with trace.recording():
        out = traced.sin().exp().sum()
    step = compile_trace(trace, [out], forward_compiler=compiler, backward_compiler=compiler, partition="default")
    step([x])[0].backward()
    loss = step([x])[0]
    loss.backward(retain_graph=True)
    assert sorted(seen[0]) == [False, True]  # x lives on, exp's result does not
    assert sorted(seen[1]) == [False, False]


def test_equal_results_of_one_operation_stay_two_tensors():
    def program(m):
        first, second = torch.max(m, 1).values, torch.max(m, 1).values
        first += 1
        return first, second

    m = torch.randn(3, 4)
    for mine, theirs in zip(bolide.compile(program)(m), program(m)):
        torch.testing.assert_close(mine, theirs)


def test_a_derivative_that_does_not_exist_is_missed_in_the_backward_as_in_eager():
    compiled = bolide.compile(lambda x: (x * 1.5) // 3)
    x = torch.randn(5, requires_grad=True)
    out = compiled(x)
    torch.testing.assert_close(out, (x * 1.5) // 3)
    with pytest.raises(RuntimeError, match="derivative for aten::floor_divide is not implemented"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "inductor", "aot_eager"])
def test_an_operator_without_a_formula_is_missed_in_the_backward_as_in_eager(backend):
    compiled = bolide.compile(lambda x: (underived(x * 1.5) + 1, x * 2), backend=backend, fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    out, other = compiled(x)
    torch.testing.assert_close(out, x * 4.5 + 1)
    assert out.requires_grad
    other.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 2.0))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_tensor_made_of_numbers_is_new_at_each_call(backend):
    compiled = bolide.compile(lambda x: (torch.tensor([1, 2, 3]), x + 1), backend=backend)
    x = torch.randn(3)
    first = compiled(x)[0]
    first.add_(5)
    assert compiled(x)[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_missing_tangents_with_symbolic_sizes(backend):
    """What is missing meets what is there: it is zero there, of a size that only the call knows."""

    def fn(x, w):
        y = x.exp() * 2
        return torch.cat([x, y]).sin(), y @ w, y[1:], x + 1

    compiled = bolide.compile(fn, backend=backend, dynamic=True)
    for size in (3, 5, 6):
        for wanted in ((1,), (2,), (0, 3)):
            x = torch.rand(size, 4, requires_grad=True)  # of small values: `sin` of large ones has few digits
            w = torch.randn(4, 4, requires_grad=True)
            found, expected = (
                torch.autograd.grad(sum(results[i].sum() for i in wanted), (x, w), allow_unused=True)
                for results in (compiled(x, w), fn(x, w))
            )
            for mine, theirs in zip(found, expected, strict=True):
                assert (mine is None) == (theirs is None)
                if theirs is not None:
                    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_gradients_that_are_zeros_whatever_comes_in_are_there(rows: int) -> None:
    """The derivative of an empty `as_strided` does not need its tangent; its base is no result, and gets none."""

    def body(x: torch.Tensor) -> Any:
        part = x.tanh()[:rows]
        part = part.as_strided(part.shape, part.stride())
        return part.reshape(-1), part.unfold(1, 2, 1)

    x = torch.randn(5, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parts with another history run in eager
        results = [fn(x) for fn in (bolide.compile(body), body)]
    mine, theirs = (torch.autograd.grad(sum(r.sum() for r in made), x)[0] for made in results)
    torch.testing.assert_close(mine, theirs)


def test_derivatives_divide_by_sizes_that_are_zero_as_eager_does() -> None:
    """`var` over a dimension without elements, behind one with some; no exception, as in C++."""

    def body(x: torch.Tensor, row: int, column: int) -> torch.Tensor:
        return x[row:, column : x.shape[0]].var(1, unbiased=False)

    compiled = bolide.compile(body)
    for rows, *starts in ((1, 1, 1), (5, 3, 2), (1, 2, 1)):
        x = torch.randn(rows, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degrees of freedom
            compiled(x, *starts).sum().backward()
            body(y, *starts).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
