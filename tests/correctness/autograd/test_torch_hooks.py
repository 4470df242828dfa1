"""Hooks on tensors and on nodes of autograd's graph, put there inside compiled functions: eager's gradients, results
and handles."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
SEEN: list[torch.Tensor] = []


def on_leaf(x: torch.Tensor) -> Any:
    x.register_hook(lambda g: g * 3)
    return (x.sin() * x).sum()


def on_leaf_with_closure(x: torch.Tensor) -> Any:
    scale = x.detach().exp()
    x.register_hook(lambda g: g * scale)
    return (x.sin() * x).sum()


def on_result_of_an_operation(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g.clamp(-0.5, 0.5))
    return (y.sin() * y).sum()


def taken_back(x: torch.Tensor) -> Any:
    handle = x.register_hook(lambda g: g * 3)
    y = x.sin().sum()
    handle.remove()
    return y


def while_inside(x: torch.Tensor) -> Any:
    with x.register_hook(lambda g: g * 3):
        return x.sin().sum()


def after_accumulation(x: torch.Tensor) -> Any:
    def double(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(2)  # type: ignore[union-attr]

    x.register_post_accumulate_grad_hook(double)
    return x.sin().sum()


def several(x: torch.Tensor) -> Any:
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * 2)
    return x.sin().sum()


def that_keeps_what_it_sees(x: torch.Tensor) -> Any:
    x.register_hook(SEEN.append)
    return x.sin().sum()


def on_a_node(x: torch.Tensor) -> Any:
    y = x.sin()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 2,))
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] + 1,))
    return y.exp().sum()


def written_through_data(x: torch.Tensor) -> Any:
    y = x.exp()
    y.data.mul_(2)  # what the backward has saved changes unnoticed
    return y.sum()


@BACKENDS
@pytest.mark.parametrize(
    "fn",
    [
        on_leaf,
        on_leaf_with_closure,
        on_result_of_an_operation,
        taken_back,
        while_inside,
        after_accumulation,
        several,
        that_keeps_what_it_sees,
        on_a_node,
        written_through_data,
    ],
)
def test_gradients(fn: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(5)
        found = []
        for function in (fn, compiled):
            SEEN.clear()
            own = x.clone().requires_grad_()
            out = function(own)
            out.backward()
            found.append((out, own.grad, [seen.clone() for seen in SEEN]))
        torch.testing.assert_close(found[1], found[0])
    assert len(compiled._bolide.entries) == 1


def test_an_input_with_a_history() -> None:
    """Its hook runs where the gradient leaves the compiled function."""

    def fn(y: torch.Tensor) -> torch.Tensor:
        y.register_hook(lambda g: g * 3)
        return y.sin().sum()

    compiled = bolide.compile(fn, backend="eager", fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    gradients = [torch.autograd.grad(function(x * 2), x)[0] for function in (fn, compiled)]
    assert torch.equal(*gradients)


def test_handles_that_leave() -> None:
    def fn(x: torch.Tensor) -> Any:
        handle = x.register_hook(lambda g: g * 3)
        return x.sin().sum(), handle, [handle]

    x = torch.randn(5, requires_grad=True)
    out, handle, listed = bolide.compile(fn, backend="eager", fullgraph=True)(x)
    assert listed == [handle] and len(x._backward_hooks) == 1
    handle.remove()
    assert not x._backward_hooks
    assert torch.equal(torch.autograd.grad(out, x)[0], x.cos())


@pytest.mark.parametrize("taken", [torch.Tensor.backward, torch.autograd.grad])
def test_gradients_taken_inside_call_them(taken: Any) -> None:
    """The engine does not stop at an input with hooks: a break, and eager's gradients."""

    def fn(x: torch.Tensor) -> Any:
        x.register_hook(lambda g: g * 3)
        y = x.sin().sum()
        return y.backward() or x.grad if taken is torch.Tensor.backward else torch.autograd.grad(y, x)

    compiled = bolide.compile(fn, backend="eager")
    x = torch.randn(5)
    expected, found = (function(x.clone().requires_grad_()) for function in (fn, compiled))
    torch.testing.assert_close(found, expected)
    with pytest.raises(bolide.Unsupported, match="a hook has been put on an input"):
        bolide.compile(fn, backend="eager", fullgraph=True)(x.requires_grad_())


def test_hooks_of_parameters_count_in_gradients_taken_inside() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.autograd.grad(x.sin().sum(), x)

    compiled = bolide.compile(fn, backend="eager")
    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(compiled(x), fn(x))
    x.register_hook(lambda g: g * 3)
    torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("method", ["register_hook", "register_post_accumulate_grad_hook"])
def test_tensors_that_cannot_have_one(method: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            getattr(x, method)(lambda g: None)
        except RuntimeError as error:
            return str(error)

    cases = [torch.randn(3)] + [torch.randn(3, requires_grad=True) * 2] * method.endswith("grad_hook")
    for x in cases:
        assert bolide.compile(fn, backend="eager", fullgraph=True)(x) == fn(x)


def test_hooks_for_all_modules() -> None:
    """Put there by the program, they are called in it."""

    def fn(model: Any, x: torch.Tensor) -> Any:
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2)
        try:
            y = model(x)
        finally:
            handle.remove()
        return y + model(x)

    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    expected = fn(copy.deepcopy(model), x)
    torch.testing.assert_close(bolide.compile(fn, backend="eager")(model, x), expected)
    assert not nn.modules.module._global_forward_hooks


def _keeping(seen: list[Any], before: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    if before:
        model[1].register_full_backward_pre_hook(lambda module, out: seen.append(out[0]))
    else:
        model[1].register_full_backward_hook(lambda module, into, out: seen.append((into[0], out[0])))
    return model


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_backward_hooks_of_modules_that_keep_gradients(before: bool, wanted: bool) -> None:
    """They run at every call, in eager, on real tensors: the module's call is a break."""
    seen: list[Any] = []
    model = _keeping(seen, before)
    if not wanted:
        model[0].requires_grad_(False)  # type: ignore[operator]
    x = torch.randn(2, 3)
    found = bolide.compile(model, backend="aot_eager")(x)
    with pytest.raises(bolide.Unsupported, match="written in the backward pass") as error:
        bolide.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert "a backward hook of a module" in str(error.value)
    assert not seen
    found.sum().backward()
    model(x).sum().backward()
    torch.testing.assert_close(*seen)
    assert len(seen) == 2


def test_gradients_that_are_kept() -> None:
    """They are those of all that is made of the tensor, inside and outside."""

    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        y.retain_grad()
        return y, y.sin().sum()

    x = torch.randn(3, requires_grad=True)
    kept = []
    for function in (fn, bolide.compile(fn, backend="aot_eager")):
        y, total = function(x)
        (total + y.sum()).backward()
        kept.append(y.grad)
    torch.testing.assert_close(*kept)
    with pytest.raises(bolide.Unsupported, match="a gradient is kept of a tensor made here"):
        bolide.compile(fn, backend="aot_eager", fullgraph=True)(x)


def test_tensors_whose_gradient_is_not_kept() -> None:
    def fn(x: torch.Tensor) -> Any:
        leaf = torch.ones(3, requires_grad=True)
        leaf.retain_grad()
        try:
            (x + 1).retain_grad()
        except RuntimeError as error:
            return str(error), leaf * x

    x = torch.randn(3)
    (said, found), (expected, want) = bolide.compile(fn, backend="eager")(x), fn(x)
    assert said == expected
    torch.testing.assert_close(found, want)


def _log_shape(seen: list[Any], y: torch.Tensor) -> None:
    y.register_hook(lambda gradient: seen.append(gradient.shape))


def _count(seen: list[Any], y: torch.Tensor) -> None:
    def scale(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return gradient * len(seen)

    y.register_hook(scale)


def _check(seen: list[Any], y: torch.Tensor) -> None:
    def check(gradient: torch.Tensor) -> None:
        if gradient.isnan().any():
            raise ValueError("nan")

    y.register_hook(check)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("watch", [_log_shape, _count, _check])
def test_what_writes_in_the_backward_pass_is_a_break(watch: Callable[..., Any], backend: str) -> None:
    """What leads to it is called for real, between two segments; so it runs at every call, when eager runs it."""

    def fn(seen: list[Any], x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        watch(seen, y)
        return (y * x).cos()

    compiled: Any = bolide.compile(fn, backend=backend)
    ours: list[Any] = []
    theirs: list[Any] = []
    for _ in range(3):
        x = torch.randn(3)
        gradients = []
        for function, seen in ((compiled, ours), (fn, theirs)):
            leaf = x.clone().requires_grad_()
            function(seen, leaf).sum().backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close([*map(torch.as_tensor, ours)], [*map(torch.as_tensor, theirs)])
    assert compiled._bolide.entries
    with pytest.raises(bolide.Unsupported, match="called in the backward pass"):
        bolide.compile(fn, backend="inductor", fullgraph=True)([], leaf)


def test_functions_that_saved_tensors_go_through() -> None:
    """What packing writes is an effect; what unpacking writes is none."""

    def fn(x: torch.Tensor, packed: list[Any], unpacked: list[Any] | None) -> torch.Tensor:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tuple(tensor.shape))
            return tensor.to(torch.float64)

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            if unpacked is not None:
                unpacked.append(tuple(tensor.shape))
            return tensor.to(torch.float32) * 3

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x.exp()
        return y * x

    def run(function: Any, x: torch.Tensor, *seen: Any) -> Any:
        for _ in range(2):
            leaf = x.clone().requires_grad_()
            function(leaf, *seen).sum().backward()
        return leaf.grad, *seen

    x = torch.randn(3)
    for last in (None, [1]):
        compiled: Any = bolide.compile(fn, backend="inductor")
        if last is None:
            found = run(compiled, x, [], None)
            assert compiled._bolide.entries
        else:
            with pytest.warns(bolide.BolideWarning, match="written in the backward pass"):
                found = run(compiled, x, [], [])
        expected = run(fn, x, [], None if last is None else [])
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:] and len(found[1]) == 2


def test_tensors_that_are_copied_before_they_are_written() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            y = x * 2
            z = y.sin()
            y.mul_(3)
            return torch.autograd.grad((y * z).sum(), x)[0]

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(bolide.compile(fn, backend="inductor")(x), fn(x))


@BACKENDS
def test_a_hook_where_grad_mode_is_switched_on_inside(backend: str) -> None:
    """The functional graphs of backend eager, too, run in the mode that their results need."""

    def fn(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = x @ w
            y.register_hook(lambda g: g * 2)
            return y * 1

    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)
    gradients = []
    for function in (bolide.compile(fn, backend=backend, fullgraph=True), fn):
        with torch.no_grad():
            out = function(w, x)
        gradients += torch.autograd.grad(out.sum(), [w])
    torch.testing.assert_close(*gradients)


def test_hooks_that_the_program_keeps_in_a_dict_of_its_own() -> None:
    module = torch.nn.Linear(4, 3)

    def program(x: Any) -> Any:
        module._forward_pre_hooks = collections.OrderedDict()
        plain = module(x)
        module._forward_pre_hooks[0] = lambda m, args: (args[0] * 2,)
        print(end="")
        hooked = module(x)
        module._forward_pre_hooks = collections.OrderedDict()
        return plain, hooked, module(x)

    compiled = bolide.compile(program)
    for size in (2, 3, 5):
        x = torch.randn(size, 4, requires_grad=True)
        mine, theirs = compiled(x), program(x)
        for left, right in zip(mine, theirs, strict=True):
            torch.testing.assert_close(left, right)
        gradients = [torch.autograd.grad(sum(map(torch.sum, results)), x)[0] for results in (mine, theirs)]
        torch.testing.assert_close(*gradients)
