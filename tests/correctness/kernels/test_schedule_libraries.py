"""Library calls put in the place of ATen's give the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bolide.inductor import compiled_graph
from bolide.inductor.machine import host_machine
from bolide.inductor.runtime import externs
from bolide.tracing import libraries
from tests.schedule_tools import check


@pytest.mark.parametrize("stride,padding,dilation", [(1, 1, 1), (2, 0, 1), (1, 2, 2)])
def test_weight_gradient_as_a_product(stride: int, padding: int, dilation: int) -> None:
    x, w = torch.randn(2, 3, 9, 8, dtype=torch.float64), torch.randn(5, 3, 3, 3, dtype=torch.float64)
    shape = [[stride] * 2, [padding] * 2, [dilation] * 2]
    grad = torch.randn_like(torch.ops.aten.convolution(x, w, None, *shape, False, [0, 0], 1))
    expected = torch.ops.aten.convolution_backward(grad, x, w, None, *shape, False, [0, 0], 1, [False, True, False])[1]
    # the product itself is float32 where oneDNN makes it
    result = externs.conv_weight_gradient(grad.float(), x.float(), list(w.shape), *shape)
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-4)


def test_products_of_every_orientation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "fastest", lambda *shape, **how: "onednn")
    a, b, bias = torch.randn(80, 90), torch.randn(90, 100), torch.randn(100)

    def products(a, b, bias):
        transposed = a.t().contiguous().t()
        wide = b.t().contiguous().t()
        return a @ b, transposed @ b, a @ wide, torch.addmm(bias, a, b), b.t() @ a.t(), torch.addmm(bias, a, b, beta=2)

    graph = check(products, a, b, bias, rtol=1e-4, atol=1e-4)
    assert graph.source.count("_linear_pointwise") == 0  # functions are bound by number
    calls = [str(step.operator) for step in graph.plan.steps if hasattr(step, "operator")]
    assert calls.count("mkldnn._linear_pointwise.default") == 5, calls


def test_a_weight_with_gaps_stays_with_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "fastest", lambda *shape, **how: "onednn")
    graph = check(lambda a, b: a @ b[:, :5], torch.randn(6, 7), torch.randn(7, 9), rtol=1e-4, atol=1e-4)
    assert [str(step.operator) for step in graph.plan.steps if hasattr(step, "operator")] == ["aten.mm.default"]


@pytest.mark.parametrize("shape", [(100,), (80, 100)])
def test_a_bias_with_gaps_is_read_with_them(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(libraries, "fastest", lambda *shape, **how: "onednn")
    x, weight, wide = torch.randn(80, 90), torch.randn(100, 90), torch.randn(*shape, 3)

    def linear(x: torch.Tensor, weight: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        return torch.addmm(wide[..., 1], x, weight.t())

    check(linear, x, weight, wide, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution_backward_is_split(
    monkeypatch: pytest.MonkeyPatch, images: int, onednn: bool, memory_format: torch.memory_format, dtype: torch.dtype
) -> None:
    if not libraries.takes(dtype):
        pytest.skip("oneDNN does not compute in this type here")
    monkeypatch.setattr(libraries, "fastest", lambda *shape, **how: "onednn" if onednn else "aten")
    monkeypatch.setattr(compiled_graph, "machine_for", lambda device: replace(host_machine(), fewest_weights=1))

    def backward(grad, x, w):
        return torch.ops.aten.convolution_backward.default(
            grad, x, w, [5], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
        )

    graph = check(
        backward,
        torch.randn(images, 5, 4, 4).to(dtype, memory_format=memory_format),
        torch.randn(images, 3, 4, 4).to(dtype),
        torch.randn(5, 3, 3, 3).to(dtype),
        rtol=1e-4 if dtype is torch.float32 else 2e-2,
        atol=1e-4 if dtype is torch.float32 else 5e-2,
    )
    calls = [str(step.operator) for step in graph.plan.steps if hasattr(step, "operator")]
    assert "aten.pad.default" in calls and not [call for call in calls if call.startswith("bolide")], calls


def test_operands_stored_by_columns_and_numbers_of_threads_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    if not libraries.takes(torch.float32):
        pytest.skip("torch without oneDNN")
    asked: list[libraries.Class] = []

    def times_of(product: libraries.Class) -> dict[str, float]:
        asked.append(product)
        return {"aten": 2.0 if not product.by_columns and product.threads == 1 else 1.0, "onednn": 1.5}

    def products(a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a @ b, grad.t() @ a

    given = torch.randn(256, 64), torch.randn(64, 128), torch.randn(256, 128)
    monkeypatch.setattr(libraries, "times_of", times_of)
    before = torch.get_num_threads()
    calls = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            graph = check(products, *given, rtol=1e-4, atol=1e-4)
            calls.append(sorted(str(step.operator) for step in graph.plan.steps if hasattr(step, "operator")))
    finally:
        torch.set_num_threads(before)
    assert calls == [["aten.mm.default", "mkldnn._linear_pointwise.default"], ["aten.mm.default"] * 2]
    assert {(product.by_columns, product.threads) for product in asked} == {
        (b, n) for b in (False, True) for n in (1, 2)
    }


def test_what_is_measured_is_positive() -> None:
    for by_columns in (False, True):
        product = libraries.Class(torch.float32, 16, 256, 256, by_columns, torch.get_num_threads())
        times = libraries._measure(product)
        assert set(times) == {"aten", "onednn", "packed"} and min(times.values()) > 0, times
