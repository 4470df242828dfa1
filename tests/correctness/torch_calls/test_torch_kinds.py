"""Kinds of tensors and operations that need more than a shape rule: complex numbers and their lazy views, operations
without a derivative, losses over sequences whose lengths are data, results with an old history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bolide

BACKENDS = ["eager", "aot_eager", "inductor"]


def complex_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64, requires_grad=True)


def check(function: Callable[..., Any], *args: torch.Tensor, backend: str, fullgraph: bool = True) -> None:
    """Two calls on fresh inputs like `args`: eager's results, and gradients of all that require them."""
    compiled = bolide.compile(function, backend=backend, fullgraph=fullgraph)
    for _ in range(2):
        fresh = [torch.randn_like(arg) if arg.is_floating_point() or arg.is_complex() else arg for arg in args]
        found = []
        for run in (function, compiled):
            own = [a.clone().requires_grad_(given.requires_grad) for a, given in zip(fresh, args)]
            results = run(*own)
            results = results if isinstance(results, tuple) else (results,)
            tracked = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            if tracked:
                torch.autograd.backward(
                    [(r * torch.arange(1, r.numel() + 1).view(r.shape)).abs().sum() for r in tracked]
                )
            found.append(([*results], [a.grad for a in own]))
        (want, want_gradients), (got, gradients) = found
        for a, b in zip(want, got, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b.resolve_conj(), a.resolve_conj(), rtol=1e-4, atol=1e-5)
                assert a.requires_grad == b.requires_grad
            else:
                assert a == b
        for a, b in zip(want_gradients, gradients, strict=True):
            if a is None or b is None:
                assert a is b
            else:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


def conjugates(z: torch.Tensor) -> Any:
    view = z.conj()
    return view.resolve_conj() * 2, view.is_conj(), view.imag * 3, view.mH @ z, view[0].is_conj(), view.conj().is_conj()


def written_conjugate(z: torch.Tensor) -> Any:
    y = z * 1
    y.conj()[0].mul_(2j)
    y.conj().imag.add_(1)
    return y, y.imag.is_neg(), y.conj().imag.is_neg()


def numbers(z: torch.Tensor) -> Any:
    return z * 2j - (1 + 1j), torch.view_as_real(z).sum(-1), z.abs(), z.angle()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [conjugates, written_conjugate, numbers])
def test_complex_numbers(function: Any, backend: str) -> None:
    check(function, complex_tensor(3, 3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotary_embedding_and_fourier_layers(backend: str) -> None:
    def rotary(x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.view(3, 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))
        return torch.view_as_real(turned).flatten(1)

    def fourier(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        modes = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[:, :, :3, :3], weight)
        return torch.fft.irfft2(modes, s=(8, 8))

    check(rotary, torch.randn(3, 8, requires_grad=True), backend=backend)
    check(fourier, torch.randn(2, 3, 8, 8, requires_grad=True), complex_tensor(3, 5, 3, 3), backend=backend)
    check(lambda x: torch.fft.hfft(x, norm="ortho"), torch.randn(3, 6, requires_grad=True), backend=backend)


def test_a_conjugate_cannot_be_seen_as_real() -> None:
    def fn(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z.conj())

    with pytest.raises(RuntimeError, match="unresolved conjugated"):
        bolide.compile(fn)(complex_tensor(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_without_a_derivative(backend: str) -> None:
    """Eager raises when the backward comes to them, and not before."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x // 0.5, x * 3, (x // 2).long()

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(7, requires_grad=True)
        got = compiled(x)
        for a, b in zip(got, fn(x), strict=True):
            assert torch.equal(a, b) and a.requires_grad == b.requires_grad
        got[1].sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full((7,), 3.0))
        with pytest.raises(RuntimeError, match="derivative for aten::floor_divide is not implemented"):
            got[0].sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("as_lists", [False, True])
def test_ctc_loss(backend: str, as_lists: bool) -> None:
    def fn(scores: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, wanted: torch.Tensor) -> Any:
        if as_lists:
            return F.ctc_loss(scores.log_softmax(-1), targets, (10, 9), (4, 3), zero_infinity=True)
        return F.ctc_loss(scores.log_softmax(-1), targets, lengths, wanted, reduction="none")

    lengths, wanted = torch.tensor([10, 9]), torch.tensor([4, 3])
    scores = torch.randn(10, 2, 5, requires_grad=True)
    check(fn, scores, torch.randint(1, 5, (2, 4)), lengths, wanted, backend=backend)
    if not as_lists:  # other lengths need no other version
        compiled = bolide.compile(fn, backend=backend, fullgraph=True)
        for other in (wanted, torch.tensor([2, 1])):
            args = scores.detach(), torch.randint(1, 5, (2, 4)), lengths, other
            torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-5)
        assert len(compiled._bolide.entries) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_an_attribute_with_last_calls_history_that_is_only_replaced(backend: str) -> None:
    torch.manual_seed(0)
    eager = nn.utils.weight_norm(nn.Linear(6, 4))
    torch.manual_seed(0)
    compiled = bolide.compile(nn.utils.weight_norm(nn.Linear(6, 4)), backend=backend)
    for _ in range(3):
        x = torch.randn(3, 6)
        for module in (eager, compiled):
            module(x).pow(2).sum().backward()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences_break_at_the_packing(backend: str) -> None:
    lstm = nn.LSTM(4, 5, batch_first=True)

    def fn(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0] + 1

    x, lengths = torch.randn(3, 6, 4, requires_grad=True), torch.tensor([4, 6, 2])
    check(fn, x, lengths, backend=backend, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_depends_only_on_leaves_made_inside_requires_grad(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3, requires_grad=True) * x

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3)
        result = compiled(x)
        assert torch.equal(result, x) and result.requires_grad and not result.is_leaf
        result.sum().backward()


class Ensemble(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.members = nn.ModuleList([nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters, buffers = torch.func.stack_module_state(list(self.members))

        def one(parameters: Any, buffers: Any) -> torch.Tensor:
            result: torch.Tensor = torch.func.functional_call(self.members[0], (parameters, buffers), (x,))
            return result

        return torch.vmap(one)(parameters, buffers)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ensembles(backend: str) -> None:
    model = Ensemble(3)
    compiled = bolide.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(6, 4)
        want, got = model(x), compiled(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.requires_grad == want.requires_grad


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_linearized_functions(backend: str) -> None:
    calls: list[int] = []

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        def inner(given: Any, scale: torch.Tensor) -> Any:
            calls.append(1)
            return {"product": given["x"].sin() * scale, "squares": (scale * scale).sum(0)}

        out, derive = torch.func.linearize(inner, {"x": x}, y)
        derivatives = [derive({"x": factor * x}, torch.ones_like(y)) for factor in (1.0, 2.0)]
        return out["product"], out["squares"], *(value for each in derivatives for value in each.values())

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for rows in (3, 3, 4, 5):
        x, y = torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 4)
        want, asked = fn(x, y), len(calls)
        got = compiled(x, y)
        assert len(calls) == 2 * asked
        calls.clear()
        gradients = [torch.autograd.grad(sum(each.sum() for each in results), x) for results in (got, want)]
        for a, b in zip([*got, *gradients[0]], [*want, *gradients[1]], strict=True):
            torch.testing.assert_close(a, b)


def test_what_a_linearized_function_uses_is_constant() -> None:
    weight = torch.randn(4, requires_grad=True)

    def fn(x: torch.Tensor) -> Any:
        _, derive = torch.func.linearize(lambda y: (y.sin() * weight).sum(1), x)
        return derive(x * 2) + 1

    x = torch.randn(3, 4, requires_grad=True)
    for compiled in (fn, bolide.compile(fn)):
        assert torch.autograd.grad(compiled(x).sum(), weight, allow_unused=True) == (None,)
    with pytest.raises(bolide.Unsupported, match="linearize takes tensors that require grad for constants"):
        bolide.compile(fn, fullgraph=True)(x)
