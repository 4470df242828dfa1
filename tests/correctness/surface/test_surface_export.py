"""`bolide.dynamo.export`, `optimize`, and the functions of `bolide.inductor`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import bolide


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: Tensor, *, factor: float = 1.0, others: list[Tensor] | None = None) -> dict[str, Any]:
        y = self.linear(x) * self.scale * factor
        for other in others or []:
            y = y + other
        return {"out": y, "pair": (y.sum(), factor), "same": x}


@pytest.mark.parametrize("aten", [False, True])
def test_export_keeps_the_signature_and_the_result(aten: bool) -> None:
    block = Block()
    x, others = torch.randn(3, 4), [torch.randn(3, 4), torch.randn(4)]
    gm, guards = bolide.dynamo.export(block, aten_graph=aten, assume_static_by_default=True)(
        x, factor=2.0, others=others
    )
    assert isinstance(gm, fx.GraphModule) and any("float32[3, 4]" in guard for guard in guards)
    fresh, fresh_others = torch.randn(3, 4), [torch.randn(3, 4), torch.randn(4)]
    found, expected = gm(fresh, factor=2.0, others=fresh_others), block(fresh, factor=2.0, others=fresh_others)
    torch.testing.assert_close(found["out"], expected["out"])
    torch.testing.assert_close(found["pair"][0], expected["pair"][0])
    assert found["pair"][1] == 2.0 and found["same"] is fresh and list(found) == list(expected)
    found["out"].sum().backward()
    assert block.linear.weight.grad is not None  # the parameters are the block's own
    targets = {str(n.target) for n in gm.graph.nodes if n.op.startswith("call_")}
    assert ("aten.addmm.default" in targets or "aten.mm.default" in targets) is aten


def test_export_of_a_function_that_writes_its_argument() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    for aten in (False, True):
        gm = bolide.dynamo.export(f, aten_graph=aten)(torch.randn(3), torch.randn(3)).graph_module
        x, y = torch.randn(3), torch.randn(3)
        before = x.clone()
        torch.testing.assert_close(gm(x, y), before * 2 + y)
        assert torch.equal(x, before * 2)


@pytest.mark.parametrize("aten", [False, True])
def test_sizes_that_are_named_may_differ(aten: bool) -> None:
    def f(x: Tensor, w: Tensor, *, more: dict[str, Any] | None = None) -> dict[str, Any]:
        y = x @ w
        if more is not None:
            y = y + more["rows"][0]
        return {"y": y.view(y.shape[0] * 2, -1), "count": x.shape[0] * 2 + 1, "same": x}

    x, w = torch.randn(3, 4), torch.randn(4, 6)
    for shapes, more in (
        ({"x": {0: torch.export.Dim("rows", max=64)}}, None),
        (({0: "rows"}, None), None),
        ({"x": ("rows", None), "more": {"rows": [{0: "rows"}]}}, {"rows": [torch.randn(3, 6)]}),
    ):
        gm, guards = bolide.dynamo.export(f, aten_graph=aten, dynamic_shapes=shapes)(x, w, more=more)
        assert any("x: Tensor float32[x.shape[0], 4]" in guard for guard in guards) and not vars(x)
        gm.graph.lint()
        for rows in (2, 7):
            fresh = torch.randn(rows, 4)
            others = {"rows": [torch.randn(rows, 6)]} if more else None
            torch.testing.assert_close(gm(fresh, w, more=others), f(fresh, w, more=others))


def test_wrong_names_and_sizes_that_must_be_fixed_are_errors() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 3 else x

    x = torch.randn(3, 4)
    for shapes, error, text in (
        ({"x": {0: True}}, bolide.ConstraintError, "x.shape\\[0\\] == 3 only"),
        ({"y": {0: True}}, ValueError, "unknown argument or key in dynamic_shapes 'y'"),
        ({"x": {5: True}}, IndexError, "dimension 5"),
        (3, TypeError, "a dict or a sequence"),
    ):
        with pytest.raises(error, match=text):
            bolide.dynamo.export(f, dynamic_shapes=shapes)(x)
        assert not vars(x)


def test_what_one_graph_cannot_do_is_refused_with_the_line() -> None:
    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(bolide.Unsupported, match=r"BR0101") as error:
        bolide.dynamo.export(branches)(torch.ones(3))
    assert __file__ in str(error.value)
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(x + 1)
        return x

    with pytest.raises(bolide.Unsupported, match="effect"):
        bolide.dynamo.export(keeps)(torch.ones(3))
    assert not kept and not bolide.is_compiling()


def test_optimize_is_a_decorator() -> None:
    @bolide.dynamo.optimize("eager", nopython=True)
    def f(x: Tensor) -> Tensor:
        return x * 2

    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0)) and hasattr(f, "_bolide")
    with pytest.raises(ValueError, match="did you mean 'eager'"):
        bolide.dynamo.optimize("eagre")
    with pytest.raises(RuntimeError, match="context manager"), bolide.dynamo.optimize("eager"):
        pass
    with bolide.dynamo.config.patch(raise_on_ctx_manager_usage=False), bolide.dynamo.optimize("eager"):
        pass


def test_inductors_functions() -> None:
    options = bolide.inductor.list_mode_options()
    assert options.keys() == {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    for mode, chosen in options.items():
        assert bolide.inductor.list_mode_options(mode) == chosen
        assert bolide.compile(lambda x: x + 1, options=chosen)(torch.ones(2)).sum() == 4
    with pytest.raises(ValueError, match="did you mean 'max-autotune'"):
        bolide.inductor.list_mode_options("max-autotun")
    assert "fusion" in bolide.inductor.list_options()
    gm = fx.symbolic_trace(lambda x: torch.softmax(x, -1) + 1)
    x = torch.randn(3, 4)
    fast = bolide.inductor.compile(gm, [x], options={"fusion": False})
    torch.testing.assert_close(fast(x), gm(x))
