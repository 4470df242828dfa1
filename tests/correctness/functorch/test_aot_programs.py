"""What programs and models of users do when `aot_function` traces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.functorch.aot_autograd import aot_function
from bolide.functorch.compilers import debug_nop, nop
from bolide.functorch.partitioners import min_cut_rematerialization_partition


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_a_tangent_that_does_not_come_is_zeros_in_its_layout() -> None:
    """What follows may be a view that is possible in that layout only."""

    def fn(x, w, wanted):
        y = (x @ w).transpose(1, 2) * 2
        return torch.nn.functional.mse_loss(y, wanted), y

    def step(call, leaves):
        return torch.autograd.grad(call(*leaves)[0], leaves)

    for call in (aot_function(fn, nop), aot_function(fn, debug_nop), bolide.compile(fn, backend="aot_eager")):
        for rows in (2, 3):
            leaves = leaf(rows, 4, 8), leaf(8, 8), leaf(rows, 8, 4)
            torch.testing.assert_close(step(call, leaves), step(fn, leaves))


def test_models_see_that_they_are_compiled() -> None:
    """Then they leave out what depends on data; afterwards they do not."""

    def fn(x):
        if not torch.compiler.is_compiling() and bool((x > 0).all()):
            raise ValueError("seen in eager")
        return x.exp()

    call = aot_function(fn, nop)
    for rows in (2, 3):
        x = torch.ones(rows)
        torch.testing.assert_close(call(x), x.exp())
        with pytest.raises(ValueError, match="seen in eager"):
            fn(x)


def reshaped_then_saved(x, w):
    y = (x * 1).unsqueeze_(0)
    x.unsqueeze_(0)
    return x.square() @ w, y


def reshaped_then_divided(x, w):
    x.mul_(2)
    x.squeeze_()
    return x.split(2, -1)[0], x @ w


@pytest.mark.parametrize("fn", [reshaped_then_saved, reshaped_then_divided])
@pytest.mark.parametrize("dynamic", [False, True])
def test_arguments_get_their_shape_before_graphs_save_and_look_at_them(fn, dynamic: bool) -> None:
    call = aot_function(fn, nop, dynamic=dynamic)
    for rows in (4, 5):
        leaves, ours = (leaf(rows, 4), leaf(4, 4)), []
        for each in (call, fn):
            given = leaves[0] * 1, leaves[1]
            results = each(*given)
            roots = [result for result in (*results, given[0]) if result.requires_grad]
            gradients = torch.autograd.grad(sum(root.square().sum() for root in roots), leaves)
            ours.append((given[0].shape, [result.shape for result in results], *results, *gradients))
        torch.testing.assert_close(*ours)


@pytest.mark.parametrize("written", ["detached", "base"])
@pytest.mark.parametrize("grad", [True, False])
def test_an_argument_in_memory_that_autograd_sees_twice_gets_a_history(grad: bool, written: str) -> None:
    def fn(base, view, detached, other):
        target = detached if written == "detached" else base[1:]
        target[..., 1:].copy_(other[..., :-1])
        return view * 1

    found = []
    for call in (aot_function(fn, nop), fn):
        torch.manual_seed(3)
        base, other = leaf(5, 5).detach().requires_grad_(grad) * 1, leaf(4, 5)
        detached = base.detach()[1:]
        view = call(base, base.view(-1), detached, other)
        tensors = base, detached, detached._base, view
        assert [tensor.requires_grad for tensor in tensors] == [
            *(grad or written == "base", written == "detached", written == "detached"),
            grad or written == "base",
        ]
        target = detached if written == "detached" else base
        gradients = torch.autograd.grad(target.square().sum(), other, retain_graph=True)
        found.append((*tensors, *gradients))
    torch.testing.assert_close(*found)


DETACHED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "data": lambda x: x.data,
    "data of a view": lambda x: x.view(-1).data,
    "part": lambda x: x[1:].detach(),
    "view of what is detached": lambda x: x.detach().t(),
}


@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.parametrize("compiler", [bolide.compile, lambda fn: aot_function(fn, nop)])
@pytest.mark.filterwarnings("error::bolide.support.errors.BolideWarning")
def test_what_is_detached_of_an_argument_and_written_is_a_result_in_its_memory(
    compiler: Callable[..., Any], name: str
) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = DETACHED[name](x)
        return part.mul_(w.sum()).sin_()

    compiled = compiler(fn)
    for size in (4, 6):
        x, w = leaf(size, size), leaf(3)
        found = []
        for call, one in ((compiled, x), (fn, x.detach().clone().requires_grad_())):
            result = call(one, w)
            (gradient,) = torch.autograd.grad(result.square().sum(), w)
            assert result.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
            result.add_(1)  # eager allows it: autograd knows of no view
            found.append((result, gradient, one))
        torch.testing.assert_close(*found)


def test_a_piece_of_a_split_may_not_be_written_as_in_eager() -> None:
    def fn(base, piece):
        piece.mul_(2)
        return base.sin()

    for call in (aot_function(fn, nop), fn):
        base = leaf(4, 4) * 1
        call(base, base[:2])
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            call(base, base.chunk(2)[0])


@pytest.mark.parametrize("caught", [RuntimeError, Exception])
def test_what_cannot_be_traced_is_not_for_handlers_of_the_program(caught: type) -> None:
    def fn(base, view):
        try:
            view.mul_(2)
        except caught:
            return base + 1
        return base * 1

    for call in (aot_function(fn, nop), fn):
        base = torch.arange(6.0)
        torch.testing.assert_close(call(base, base[2:]), torch.tensor([0.0, 1.0, 4.0, 6.0, 8.0, 10.0]))


def test_errors_about_data_reach_handlers_of_the_program() -> None:
    """Nothing is written, drawn or reshaped twice."""

    def fn(x, at, w):
        x.t_()
        noise = torch.rand(3, dtype=x.dtype)
        try:
            y = (x @ w)[at]
        except IndexError:
            y = x.sum(0)[:3]
        return y * noise

    def refuses(x, at, w):
        with torch.enable_grad():
            return (x @ w)[at]

    call, strict = aot_function(fn, nop), aot_function(refuses, nop)
    for at in ([0, 2, 1], [0, 9, 1], [3, 2, 1]):
        found, w = [], leaf(5, 3)
        for each in (call, fn):
            torch.manual_seed(1)
            x = torch.arange(20.0, dtype=torch.float64).view(5, 4)
            y = each(x, torch.tensor(at), w)
            y = y if y.requires_grad else y + w.sum()
            found.append((x, y, torch.get_rng_state(), *torch.autograd.grad(y.sum(), w)))
        torch.testing.assert_close(*found)
    with pytest.raises(IndexError):
        strict(torch.ones(4, 5, dtype=torch.float64), torch.tensor([9]), leaf(5, 3))


def test_views_without_gradients_of_what_has_some() -> None:
    """Autograd tells them from detached ones: they say that they require grad."""

    def fn(x, w):
        with torch.enable_grad():
            y = x.sin()
            w.mul_(x)
        return y.t(), w

    for call in (aot_function(fn, nop), fn):
        with torch.no_grad():
            x, w = leaf(3, 4), torch.ones(3, 4, dtype=torch.float64)
            view, written = call(x, w)
        assert view.requires_grad and view.grad_fn is None
        assert written is w and w.grad_fn is not None
        torch.testing.assert_close(torch.autograd.grad(w.sum(), x), (torch.ones_like(x),))


@pytest.mark.parametrize("dim, size, step", [(-1, 2, 2), (0, 1, 3), (1, 3, 4)])
@pytest.mark.parametrize("compiler", ["aot", "bolide"])
def test_windows_that_do_not_overlap_may_be_written(compiler: str, dim: int, size: int, step: int) -> None:
    def fn(x, w):
        y, z = x * w, x.t().contiguous().t() + 1
        y.unfold(dim, size, step).mul_(3)
        z.unfold(dim, size, step).add_(w.unfold(dim, size, step))
        return y, z.unfold(0, 2, 2)

    call = aot_function(fn, nop, dynamic=True) if compiler == "aot" else bolide.compile(fn, dynamic=True)
    for rows in (5, 6):
        leaves = leaf(rows, 7), leaf(rows, 7)
        results, wanted = call(*leaves), fn(*leaves)
        torch.testing.assert_close(results, wanted)
        assert [result.stride() for result in results] == [result.stride() for result in wanted]
        grads = (torch.autograd.grad(sum(r.square().sum() for r in each), leaves) for each in (results, wanted))
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dim, size, step", [(-1, 2, 2), (0, 1, 2), (1, 2, 3)])
@pytest.mark.parametrize("compiler", ["aot", "bolide"])
def test_windows_of_views_may_be_written(compiler: str, dim: int, size: int, step: int) -> None:
    """Of views that begin later, have gaps or are transposed, and of arguments that are such views."""

    def fn(x, later, w):
        later.unfold(dim, size, step).mul_(3)
        y = x * w
        for view in (y[1:], y[:, ::2], y[1:].t(), y[1]):
            view.unfold(dim % view.dim(), size, step).add_(2)
        return y

    call = aot_function(fn, nop, dynamic=True) if compiler == "aot" else bolide.compile(fn, dynamic=True)
    for rows in (5, 6):
        x, w = torch.randn(rows, 7, dtype=torch.float64), leaf(rows, 7)
        found = []
        for each in (call, fn):
            base = x.clone()
            result = each(base, base[1:], w)
            found.append([base, result.detach(), *torch.autograd.grad(result.square().sum(), w)])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_normal_numbers_for_views_with_gaps_are_eagers(dynamic: bool, dtype: torch.dtype) -> None:
    """A CPU draws them one by one, blocks of them for contiguous tensors."""

    def fn(x, cube):
        few = x[:2, :3].normal_()
        columns = x[:, 1:].normal_(0.5, 2)
        cube[:, 1:, ::2].permute(2, 0, 1).normal_()
        copy = torch.ops.aten.normal_functional(x[:, 1:])
        return few, columns, copy, x[:, 0].normal_(), x[1:].normal_()

    call = aot_function(fn, nop, dynamic=dynamic)
    for rows in (17, 18):
        found = []
        for each in (call, fn):
            torch.manual_seed(rows)
            x, cube = torch.zeros(rows, 8, dtype=dtype), torch.zeros(3, rows, 6, dtype=dtype)
            found.append([x, cube, *each(x, cube), torch.get_rng_state()])
        torch.testing.assert_close(*found)


def test_views_end_where_memory_ends() -> None:
    def fn(x):
        try:
            return (x + 1).as_strided((3, 2), (2, 2), 1)
        except RuntimeError:
            return x.sum()

    for call in (aot_function(fn, nop), bolide.compile(fn)):
        for size in (6, 7, 8):
            x = torch.randn(size)
            torch.testing.assert_close(call(x), fn(x))


def test_views_of_detached_arguments_know_where_they_lie() -> None:
    def fn(base, detached):
        view = detached.transpose(0, -1).as_strided((2, 2), (2, 1))
        view.mul_(2)
        return view

    found = []
    for call in (aot_function(fn, nop), fn):
        base = torch.arange(24.0, dtype=torch.float64).view(2, 4, 3).clone().requires_grad_()
        view = call(base, base.detach()[1:])
        found.append((base, view, view.storage_offset()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("count, saved", [(2, 2), (3, 1), (4, 1)])
def test_a_sum_is_saved_where_it_is_read_faster_than_the_inputs(count: int, saved: int) -> None:
    """An input takes no memory, but is read once more: two are, in place of one value written and read."""

    def fn(*inputs):
        return sum(inputs).cos().cos()

    backwards = []

    def compiler(graph, examples):
        backwards.append(graph)
        return graph

    call = aot_function(fn, nop, compiler, min_cut_rematerialization_partition)
    leaves = [leaf(64, 8) for _ in range(count)]
    torch.testing.assert_close(*(torch.autograd.grad(each(*leaves).sum(), leaves) for each in (call, fn)))
    slots = backwards[0].graph.find_nodes(op="placeholder")
    assert sum("tangents" not in slot.name for slot in slots) == saved


def test_a_view_made_without_gradients_before_its_base_is_written() -> None:
    def fn(x):
        diagonal = x.diagonal()
        x.copy_(x.cos())
        return diagonal, x * 2

    found = []
    for call in (aot_function(fn, nop, dynamic=True), fn):
        for rows in (4, 5):
            x = torch.ones(rows, 3, requires_grad=True) * 2
            with torch.no_grad():
                results = [x, *call(x)]
            found.append([tensor.detach().clone() for tensor in results])
    torch.testing.assert_close(found[:2], found[2:])
