"""`bolide.shadow`: right programs agree, and a wrong operation is named."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import bolide
from bolide.cli import main
from bolide.debug.reference import Exactly, evaluate
from bolide.inductor.lowering import registry

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    bolide.reset()
    bolide.shadow.reports.clear()
    yield
    bolide.shadow.reports.clear()
    bolide.reset()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the lowering of an operation compute something else."""

    def planted(operation: Any, instead: Callable[..., Any]) -> None:
        right = registry.LOWERINGS[operation]
        monkeypatch.setitem(registry.LOWERINGS, operation, lambda *a, **k: instead(right, *a, **k))

    return planted


def block(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True)


def mlp(width: int) -> nn.Module:
    first = nn.Linear(width, 16, bias=False)  # the gradient of a bias that is normed away is nothing but rounding
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4))


@pytest.mark.parametrize("build", [mlp, block])
def test_right_programs_agree_in_training_with_changing_sizes(build: Callable[[int], nn.Module]) -> None:
    model = build(8)
    twin = bolide.shadow(model, on_difference="raise")
    for size in random.sample(range(2, 9), 3):
        shape = (size, 8) if build is mlp else (2, size, 8)
        x = torch.randn(shape, requires_grad=True)
        result = twin(x)
        (result * torch.randn_like(result)).sum().backward()  # squares of what is normed have no gradient but rounding
        assert x.grad is not None and all(p.grad is not None for p in model.parameters())
        model.eval()
        with torch.no_grad():
            assert torch.allclose(twin(x), model(x), atol=1e-5)
        model.train()
    assert not bolide.shadow.reports


def test_what_cancels_may_differ_by_the_rounding_of_what_it_is_made_of() -> None:
    x = torch.randn(200)
    graph = make_fx(lambda x, y: x * 0.1 - y * 0.1)(x, x.clone())
    expected = evaluate(graph, [x, x.clone()])
    *_, difference, _ = graph.graph.nodes
    contracted = (x.double() * 0.1 - (x * 0.1).double()).float()  # a multiplication and a subtraction, rounded once
    assert contracted.abs().max() > 0
    exact = Exactly(graph, [x, x.clone()], expected)
    assert not exact.disagrees(difference, contracted)
    assert exact.disagrees(difference, contracted * 1000)


def test_effects_and_buffers_happen_once() -> None:
    norm, seen = nn.BatchNorm1d(4), []

    @bolide.shadow
    def step(x: Tensor, log: list[int]) -> Tensor:
        log.append(len(x))
        seen.append(len(x))
        y = norm(x * 2)
        x.add_(1)
        return y

    x, log = torch.randn(3, 4), []
    before = x.clone()
    for _ in range(2):
        step(x, log)
    assert norm.num_batches_tracked == 2 and log == seen == [3, 3]
    assert torch.allclose(x, before + 2) and not bolide.shadow.reports


def f(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    h = F.gelu(h * 2)
    return (h + 1).sin().sum(1)


LINE = f.__code__.co_firstlineno + 2


def wrong_gelu(right: Any, ctx: Any, x: Any, approximate: str = "none") -> Any:
    return right(ctx, x, approximate="tanh")


@pytest.mark.parametrize("training", [False, True])
def test_a_wrong_operation_is_named_and_the_program_stays_right(plant: Any, training: bool) -> None:
    plant(aten.gelu.default, wrong_gelu)
    x, w = torch.randn(16, 8), torch.randn(8, 8, requires_grad=training)
    shadowed = bolide.shadow(f)
    with pytest.warns(bolide.BolideWarning, match="gelu"):
        found = shadowed(x, w)
    assert torch.equal(found, f(x, w))
    first = bolide.shadow.reports[0]
    assert first.part == ("forward" if training else "inference") and first.function == "f"
    assert first.operation == "aten.gelu.default" and "gelu" in first.kernel
    assert first.where is not None and (first.where.file, first.where.line) == (__file__, LINE)
    h = F.gelu(x @ w * 2)
    tanh = F.gelu(x @ w * 2, approximate="tanh")
    assert abs(first.expected - h[first.place].item()) < 1e-6 and abs(first.found - tanh[first.place].item()) < 1e-6
    assert abs(first.error - abs(first.expected - first.found)) < 1e-6 and "gelu" in first.code
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shadowed(x, w)  # warned of once


def test_a_wrong_operation_of_the_backward_is_named(plant: Any) -> None:
    plant(aten.gelu_backward.default, lambda right, ctx, g, x, approximate="none": right(ctx, g, x, approximate="tanh"))
    x, w = torch.randn(16, 8), torch.randn(8, 8, requires_grad=True)
    with pytest.warns(bolide.BolideWarning, match="gelu_backward"):
        found = bolide.shadow(f)(x, w)
        (slope,) = torch.autograd.grad(found.sum(), w)
    (right,) = torch.autograd.grad(f(x, w).sum(), w)
    assert torch.allclose(slope, right, atol=1e-5)
    first = bolide.shadow.reports[0]
    assert (first.part, first.operation) == ("backward", "aten.gelu_backward.default")
    assert first.where is not None and first.where.line == LINE


def test_it_raises_if_asked(plant: Any) -> None:
    plant(aten.gelu.default, wrong_gelu)
    with pytest.raises(bolide.ShadowMismatch, match="gelu") as caught:
        bolide.shadow(f, on_difference="raise")(torch.randn(16, 8), torch.randn(8, 8))
    assert caught.value.difference.operation == "aten.gelu.default"
    with pytest.raises(ValueError, match="on_difference"):
        bolide.shadow(f, on_difference="ignore")


def test_what_capture_gets_wrong_is_seen() -> None:
    def g(x: Tensor) -> Tensor:
        return x * (2.0 if torch.compiler.is_compiling() else 3.0)

    x = torch.randn(5, requires_grad=True)
    with pytest.warns(bolide.BolideWarning, match="call"):
        bolide.shadow(g)(x)
    (difference,) = bolide.shadow.reports
    assert (difference.part, difference.operation) == ("call", "result 0")


def test_a_gradient_that_is_lost_is_seen() -> None:
    def g(x: Tensor, y: Tensor) -> Tensor:
        return x * (y.detach() if torch.compiler.is_compiling() else y)

    with pytest.warns(bolide.BolideWarning, match="gradient 1"):
        bolide.shadow(g)(torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True))


def test_whole_programs(plant: Any) -> None:
    compiled = bolide.compile(f)
    x, w = torch.randn(16, 8), torch.randn(8, 8)
    compiled(x, w)
    plant(aten.gelu.default, wrong_gelu)
    with pytest.warns(bolide.BolideWarning, match="f: aten.gelu"), bolide.shadow() as reports:
        assert torch.equal(compiled(x, w), f(x, w))
    assert [r.operation for r in reports] == ["aten.gelu.default"]
    assert not torch.equal(compiled(x, w), f(x, w)), "outside, nothing is compared"


def test_on_the_command_line(plant: Any, tmp_path: Path) -> None:
    plant(aten.gelu.default, wrong_gelu)
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, bolide, warnings\nwarnings.simplefilter('ignore')\n"
        "@bolide.compile\ndef f(x):\n    return torch.nn.functional.gelu(x) + 1\nf(torch.randn(64))\n"
    )
    found = CliRunner().invoke(main, ["explain", "--shadow", str(script)])
    assert found.exit_code == 0, found.output
    assert "differs: f: aten.gelu.default (inference)" in found.output and "program.py" in found.output
