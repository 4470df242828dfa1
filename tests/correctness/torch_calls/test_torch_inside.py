"""Parts of torch that users call inside compiled functions, each captured in one piece: eager's results and
gradients on inputs that the capture has not seen."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import bolide

linear = nn.Linear(5, 5)
network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
compiled_inside = bolide.compile(lambda t: t.sin() * 2)
PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def gradient_with_auxiliary(x: torch.Tensor) -> Any:
    gradients, other = grad(lambda t: ((t.sin() ** 2).sum(), t * 2), has_aux=True)(x)
    return gradients + other


@program
def vmap_with_dimensions(x: torch.Tensor) -> Any:
    return vmap(lambda a, b: a @ b, in_dims=(0, None), out_dims=1)(x, linear.weight)


@program
def transformed_modules(x: torch.Tensor) -> Any:
    return vmap(linear)(x) + jvp(linear, (x,), (x.cos(),))[1] + vmap(jacrev(linear))(x).sum(-1)


named = torch.profiler.record_function("named")


@named
def recorded_twice(x: torch.Tensor) -> Any:
    return x.sin()


@program
def regions_of_the_profiler(x: torch.Tensor) -> Any:
    with torch.profiler.record_function("outer"), named:
        y = recorded_twice(x)
    return recorded_twice(y.cos())


@program
def vmap_in_chunks(x: torch.Tensor) -> Any:
    return vmap(lambda a: a.softmax(0), chunk_size=2)(x)


@program
def vector_jacobian(x: torch.Tensor) -> Any:
    out, pull = vjp(lambda t: t.sin() * 2, x)
    return out + pull(torch.ones_like(out))[0]


@program
def jacobian_vector(x: torch.Tensor) -> Any:
    return jvp(lambda t: t.sin() * 2, (x,), (x.cos(),))[1]


@program
def hessian_vector(x: torch.Tensor) -> Any:
    return jvp(grad(lambda t: t.sin().pow(2).sum()), (x,), (x.cos(),))[1]


@program
def jacobians(x: torch.Tensor) -> Any:
    def fn(t: torch.Tensor) -> torch.Tensor:
        return t.sin() * t.sum()

    return jacrev(fn)(x[0]) + jacfwd(fn)(x[0]) + hessian(lambda t: fn(t).sum())(x[0])


@program
def jacobians_of_a_module_per_sample(x: torch.Tensor) -> Any:
    return vmap(jacrev(network))(x)


@program
def gradients_per_sample(x: torch.Tensor) -> Any:
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(parameters: Any, row: torch.Tensor) -> torch.Tensor:
        return functional_call(network, parameters, (row.unsqueeze(0),)).sum()

    return vmap(grad(loss), in_dims=(None, 0))(parameters, x)["0.weight"]


@program
def inner_loop_of_maml(x: torch.Tensor) -> Any:
    parameters = dict(network.named_parameters())

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(network, parameters, (x,)).square().mean()

    for _ in range(2):
        gradients = grad(loss)(parameters, x)
        parameters = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
    return loss(parameters, x)


@program
def forward_mode(x: torch.Tensor) -> Any:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x.cos()).sin()).tangent


@program
def functional_jacobian(x: torch.Tensor) -> Any:
    return torch.autograd.functional.jacobian(lambda t: t.sin() * t.sum(), x[0], create_graph=True)


@program
def gradient_penalty(x: torch.Tensor) -> Any:
    inner = x.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(network(inner).sum(), inner, create_graph=True)
    return ((gradients.norm(dim=1) - 1) ** 2).mean() + x.sum()


@program
def hooks(x: torch.Tensor) -> Any:
    y = x.tanh()
    handle = y.register_hook(lambda g: g * 100)
    handle.remove()
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return y * y


@program
def saved_tensors_hooks(x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return x.sin() * x


@program
def compiled_functions_inside(x: torch.Tensor) -> Any:
    fresh = bolide.compile(lambda t: t.exp())
    decorated = bolide.compile(backend="eager")(lambda t: t * 3)
    return compiled_inside(x) + decorated(fresh(x))


@program
def distributions(x: torch.Tensor) -> Any:
    from torch import distributions as d

    normal = d.Normal(x, x.exp())
    squashed = d.TransformedDistribution(normal, [d.TanhTransform()])
    kl = d.kl_divergence(normal, d.Normal(torch.zeros(4, 5), torch.ones(4, 5)))
    return squashed.log_prob(torch.full((4, 5), 0.3)) + kl + d.Categorical(logits=x).entropy().unsqueeze(1)


@program
def complex_numbers(x: torch.Tensor) -> Any:
    z = torch.complex(x, x.cos())
    return (z * z.conj()).real + z.abs() + torch.view_as_real(z).sum(-1) + torch.fft.irfft(torch.fft.rfft(x), n=5)


@program
def trees(x: torch.Tensor) -> Any:
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten({"a": x, "b": [x * 2, (x.sin(),)]})
    return pytree.tree_map(lambda t: t * 2, pytree.tree_unflatten([leaf + 1 for leaf in leaves], spec))["b"][1][0]


@program
def modes(x: torch.Tensor) -> Any:
    with torch.device("cpu"), torch.profiler.record_function("mine"):
        return x + torch.ones(5)


IN_MACHINE_CODE = ("jacobian_vector", "hessian_vector", "gradients_per_sample", "hooks", "distributions")


@pytest.mark.parametrize(
    ("name", "backend"),
    [*[(name, backend) for name in PROGRAMS for backend in ("eager", "aot_eager")]]
    + [(name, "inductor") for name in IN_MACHINE_CODE],
)
def test_program(name: str, backend: str) -> None:
    fn = PROGRAMS[name]
    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        x = torch.randn(4, 5)
        results = []
        for function in (fn, compiled):
            own = x.clone().requires_grad_()
            out = function(own)
            leaves = [own, *network.parameters(), *linear.parameters()]
            found = torch.autograd.grad(out.sum(), leaves, allow_unused=True) if out.requires_grad else ()
            results.append([out.detach(), *[torch.zeros(()) if g is None else g for g in found]])
        for got, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, expected.expand_as(got), atol=1e-5, rtol=1e-4)
    assert len(compiled._bolide.entries) == 1


@torch.library.custom_op("bolide_tests::add_in", mutates_args=("x", "rest"))
def add_in(x: torch.Tensor, y: torch.Tensor, rest: list[torch.Tensor]) -> torch.Tensor:
    x.add_(y)
    for item in rest:
        item.mul_(2)
    return x * 2


@add_in.register_fake
def _(x: torch.Tensor, y: torch.Tensor, rest: list[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_of_the_user_that_write(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        inside = y * 1
        view = inside[1:]
        out = add_in(x, y * 2, [view, inside[:1]])
        return out + x, inside

    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        x, y = torch.randn(4), torch.randn(4)
        own = x.clone()
        torch.testing.assert_close(compiled(own, y), fn(x, y))
        torch.testing.assert_close(own, x)


@torch.library.custom_op("bolide_tests::add_numbers", mutates_args=("x",))
def add_numbers(x: torch.Tensor, n: int, rest: Sequence[int], factor: float = 1.0, more: int | None = None) -> None:
    x.add_((n + sum(rest) + (more or 0)) * factor)


@torch.library.custom_op("bolide_tests::count_in", mutates_args=("x",))
def count_in(x: torch.Tensor, n: int) -> torch.Tensor:
    x.add_(n)
    return torch.arange(n, dtype=x.dtype)


@count_in.register_fake
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.new_empty(n)


def _given_sizes(x: torch.Tensor, n: int, factor: float) -> Any:
    y = x.clone()
    add_numbers(y, x.size(0), y.shape, more=x.size(0) // 2)
    return y


def _given_numbers(x: torch.Tensor, n: int, factor: float) -> Any:
    y = x.clone()
    add_numbers(y, n * 2, [n, 3], more=n - 1)
    return y


def _given_floats(x: torch.Tensor, n: int, factor: float) -> Any:
    y = x.clone()
    add_numbers(y, n, [n], factor * 2, n - 1)
    add_numbers(y, 1, [], n / 3)
    return y


def _given_data(x: torch.Tensor, n: int, factor: float) -> Any:
    y = x.clone()
    add_numbers(y, int(x.detach().sum().item()), [])
    return y


def _sizes_result(x: torch.Tensor, n: int, factor: float) -> Any:
    y = x.clone()
    return count_in(y, n + x.size(0)) * factor, y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [_given_sizes, _given_numbers, _given_floats, _given_data, _sizes_result])
def test_operators_of_the_user_that_write_are_given_symbols(
    fn: Callable[..., Any], backend: str, dynamic: bool | None
) -> None:
    compiled: Any = bolide.compile(fn, backend=backend, dynamic=dynamic)
    for n in (3, 5, 9, 4, 1):
        for requires_grad in (False, True):
            x = torch.ones(n + 2, requires_grad=requires_grad)
            torch.testing.assert_close(compiled(x, n, n / 2), fn(x, n, n / 2))
    assert len(compiled._bolide.entries) <= 6


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.first.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
        self.second.register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_backward_hooks_of_modules() -> None:
    model = Hooked()
    compiled = bolide.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 5, requires_grad=True)
    leaves = [x, *model.parameters()]
    expected = torch.autograd.grad(model(x).sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), leaves), expected)


def test_hooks_that_collect_run_in_eager() -> None:
    seen: list[torch.Tensor] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(seen.append)
        return y * 2

    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bolide.support.errors.BolideWarning)
        out = bolide.compile(fn, backend="aot_eager")(x)
    assert not seen
    out.sum().backward()
    assert torch.equal(seen[0], torch.full((3,), 2.0))


def test_capturing_these_does_not_load_torchs_compile_stack() -> None:
    """(torch.func loads it by itself, in eager as well.)"""
    text = """
import sys, torch, bolide
from torch.utils.checkpoint import checkpoint
weight = torch.nn.Parameter(torch.randn(5, 5))
optimizer = torch.optim.AdamW([weight])

def fn(x):
    y = checkpoint(lambda t: t.exp() @ weight, x, use_reentrant=False)
    y = torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t * 3, (y,))
    (gradient,) = torch.autograd.grad((x @ weight).sin().sum(), weight, create_graph=True)
    (gradient.square().sum() + y.sum()).backward()
    optimizer.step()

bolide.compile(fn, fullgraph=True, backend="aot_eager")(torch.randn(4, 5))
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_parameters_of_distributions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.compile switches this off for the whole process
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    effects: list[int] = []

    def fn(mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        effects.append(1)
        return torch.distributions.Normal(mean, scale).log_prob(mean + 1)

    compiled = bolide.compile(fn, fullgraph=True, backend="aot_eager")
    mean = torch.randn(3)
    torch.testing.assert_close(compiled(mean, torch.ones(3)), fn(mean, torch.ones(3)))
    raised = []
    for function in (fn, compiled):
        effects.clear()
        with pytest.raises(ValueError, match="parameter scale") as caught:
            function(mean, -torch.ones(3))
        raised.append((str(caught.value), list(effects)))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_failing_check_comes_before_what_the_operation_raises(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(x, -x.abs() - 1, validate_args=True).sample()

    with pytest.raises(ValueError, match="to satisfy the constraint"):
        bolide.compile(fn, fullgraph=True, backend=backend)(torch.randn(3))


def test_new_tensors_of_a_size() -> None:
    """`Tensor.new` takes a `torch.Size` for sizes, other sequences for data."""

    def fn(x: torch.Tensor) -> Any:
        return x.new(x.shape).fill_(1), x.new(torch.Size([3, 2])).zero_(), x.new((3, 2)), x.new([4]), x.new(2).zero_()

    x = torch.randn(5)
    torch.testing.assert_close(bolide.compile(fn, fullgraph=True, backend="eager")(x), fn(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_modules_of_torchscript_are_called_for_real(kind: str) -> None:
    """A break that costs only itself: what is around them is compiled, and gradients pass."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
    made: Any = torch.jit.script(model) if kind == "script" else torch.jit.trace(model, torch.randn(2, 5))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return made(x * 2).sin()

    compiled: Any = bolide.compile(fn, backend="eager")
    x = torch.randn(2, 5, requires_grad=True)
    for _ in range(2):
        found, expected = (torch.autograd.grad(function(x).sum(), x)[0] for function in (compiled, fn))
        torch.testing.assert_close(found, expected)
    assert compiled._bolide.entries


@torch.jit.script
def scripted(x, n: int):
    return x * n + 1


def test_a_scripted_function_is_the_python_function_it_was_made_from():
    compiled = bolide.compile(lambda x: scripted(x, 2) * 3, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), (x * 2 + 1) * 3)


THROUGH = torch.library.Library("bolide_through", "DEF")
THROUGH.define("twice(Tensor x) -> Tensor")
THROUGH.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_operators_in_python_without_an_autograd_kernel(backend: str) -> None:
    """Eager differentiates what they do: the graph has no derivative of them, so those that need one run for real."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.bolide_through.twice(x.sin()) + x

    x = torch.randn(3)
    torch.testing.assert_close(bolide.compile(fn, backend=backend, fullgraph=True)(x), fn(x))
    gradients = []
    for function in (bolide.compile(fn, backend=backend), fn):
        leaf = x.clone().requires_grad_()
        function(leaf).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    with pytest.raises(bolide.Unsupported, match="without an autograd kernel"):
        bolide.compile(fn, backend=backend, fullgraph=True)(leaf)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_model_without_data_gives_its_shape_to_an_ensemble(backend: str) -> None:
    members = [nn.Linear(3, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(members)
    shape = nn.Linear(3, 2, device="meta")

    def fn(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda p, b, x: functional_call(shape, (p, b), (x,)), (0, 0, None))(parameters, buffers, x)

    x = torch.randn(4, 3)
    expected = torch.stack([member(x) for member in members])
    torch.testing.assert_close(bolide.compile(fn, backend=backend, fullgraph=True)(x), expected)
