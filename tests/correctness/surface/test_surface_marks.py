"""What users say about functions, and the stance: `allow_in_graph`, `assume_constant_result`, `substitute_in_graph`,
`set_stance`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx

import bolide
from bolide.dynamo.library.marks import forget
from bolide.inductor import compiled_graph
from bolide.support import events


class Counter:
    """A backend that counts its graphs."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward

    def targets(self) -> list[Any]:
        return [node.target for node in self.graphs[-1].graph.nodes if node.op.startswith("call_")]


def test_allow_in_graph_writes_the_call_into_the_graph() -> None:
    seen = []

    @bolide.allow_in_graph
    def opaque(x: Tensor) -> Tensor:
        seen.append(type(x).__name__)
        return x.sin() + 1

    counter = Counter()
    x = torch.randn(4)
    compiled = bolide.compile(lambda x: opaque(x * 2), backend=counter, fullgraph=True)
    torch.testing.assert_close(compiled(x), (x * 2).sin() + 1)
    assert counter.targets()[-1] is opaque and len(counter.targets()) == 2
    before = len(seen)
    compiled(x)
    assert len(seen) == before + 1  # the backend runs the call itself
    fast = bolide.compile(lambda x: opaque(x), fullgraph=True)
    torch.testing.assert_close(fast(x), x.sin() + 1)  # and inductor traces through it
    forget([opaque])


def test_assume_constant_result_is_computed_once() -> None:
    calls = []

    @bolide.assume_constant_result
    def setting(name: str) -> Any:
        calls.append(name)
        return {"scale": 3, "table": torch.arange(3.0)}[name]

    def f(x: Tensor) -> Tensor:
        return x * setting("scale") + setting("table")

    compiled = bolide.compile(f, fullgraph=True)
    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 3 + torch.arange(3.0))
    assert calls == ["scale", "table"]
    with pytest.raises(bolide.Unsupported, match="cannot be computed twice"):
        bolide.compile(lambda x: x + setting(torch.randn(3)), fullgraph=True)(x)
    forget([setting])


def test_substitute_in_graph() -> None:
    def original(x: Tensor, n: int) -> Tensor:
        raise AssertionError("never captured")

    @bolide.substitute_in_graph(original)
    def stand_in(x: Tensor, n: int) -> Tensor:
        return x * n

    x = torch.randn(3)
    torch.testing.assert_close(bolide.compile(lambda x: original(x, 2), fullgraph=True)(x), x * 2)
    with pytest.raises(TypeError, match="signature"):
        bolide.substitute_in_graph(original)(lambda x: x)
    forget([original])


@pytest.mark.parametrize("mark", [bolide.allow_in_graph, bolide.assume_constant_result, bolide.nested_compile_region])
def test_only_functions_are_marked(mark: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="expected a function"):
        mark(3)


@pytest.mark.parametrize(
    "mark", [bolide.nested_compile_region, torch.compiler.nested_compile_region], ids=["bolide", "torch"]
)
def test_regions_are_compiled_once(mark: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many kernels for ten calls as for four, backward included."""
    kernels: list[int] = []
    compile_kernels = compiled_graph.compile_kernels

    def counted(found: Any, *rest: Any) -> Any:
        kernels.append(len(found))
        return compile_kernels(found, *rest)

    class Region(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(12), torch.nn.Linear(12, 12)

        @mark
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.nn.functional.gelu(self.linear(self.norm(x))).tanh()

    monkeypatch.setattr(compiled_graph, "compile_kernels", counted)
    counts = []
    for layers in (4, 10):
        kernels.clear()
        model = torch.nn.Sequential(*[Region() for _ in range(layers)])
        x = torch.randn(5, 12)
        expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
        actual = torch.autograd.grad(bolide.compile(model)(x).square().sum(), [*model.parameters()])
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        counts.append([*kernels])
    assert counts[0] == counts[1] and len(counts[0]) == 2


def test_is_compiling_is_true_in_captured_code_only() -> None:
    def f(x: Tensor) -> tuple[Tensor, bool, bool, bool, bool]:
        here = bolide.is_compiling(), bolide.is_dynamo_compiling()
        return x + 1, *here, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()

    x = torch.randn(2)
    assert f(x)[1:] == (False, False, False, False)
    assert bolide.compile(f, fullgraph=True)(x)[1:] == (True, True, True, True)
    assert not bolide.is_compiling()


# ---- stances ---


def compiled_calls(counter: Counter, call: Callable[[Tensor], Tensor], x: Tensor) -> int:
    torch.testing.assert_close(call(x), x * 2)
    return len(counter.graphs)


def test_stances() -> None:
    counter = Counter()
    ran: list[str] = []

    def f(x: Tensor) -> Tensor:
        if not bolide.is_compiling():
            ran.append("eager")
        return x * 2

    compiled = bolide.compile(f, backend=counter, dynamic=False)
    a, b = torch.randn(3), torch.randn(5)
    with bolide.set_stance("force_eager"):
        assert compiled_calls(counter, compiled, a) == 0 and ran == ["eager"]
    assert compiled_calls(counter, compiled, a) == 1 and ran == ["eager"]
    with bolide.set_stance("force_eager"):
        assert compiled_calls(counter, compiled, a) == 1 and len(ran) == 2
    with bolide.set_stance("eager_on_recompile"):
        assert compiled_calls(counter, compiled, a) == 1 and len(ran) == 2
        assert compiled_calls(counter, compiled, b) == 1 and len(ran) == 3
    with bolide.set_stance("fail_on_recompile"):
        assert compiled_calls(counter, compiled, a) == 1 and len(ran) == 3
        with pytest.raises(bolide.RecompileError, match=r"fail_on_recompile: expected x: Tensor float32\[3\]"):
            compiled(b)
    assert compiled_calls(counter, compiled, b) == 2 and len(ran) == 3

    @bolide.set_stance("force_eager")
    def all_eager() -> int:
        return compiled_calls(counter, compiled, a)

    assert all_eager() == 2 and len(ran) == 4
    assert compiled_calls(counter, compiled, a) == 2 and len(ran) == 4


def test_eager_then_compile() -> None:
    counter = Counter()
    compiled = bolide.compile(lambda x: x * 2, backend=counter)
    x = torch.randn(3)
    with bolide.set_stance("eager_then_compile"):
        assert [compiled_calls(counter, compiled, x) for _ in range(3)] == [0, 1, 1]


def test_another_backend_for_a_while() -> None:
    counter, other = Counter(), Counter()
    x, y = torch.randn(3), torch.randn(4)
    compiled = bolide.compile(lambda x: x * 2, backend=counter, dynamic=False)
    fast = bolide.compile(lambda x: x * 3)
    with bolide.set_stance("default", force_backend=other):
        assert torch.equal(compiled(x), x * 2) and torch.equal(fast(x), x * 3)

    @bolide.set_stance(force_backend="eager", skip_guard_eval_unsafe=True)
    def with_eager() -> Any:
        return compiled(y.double())

    assert torch.equal(with_eager(), y.double() * 2)
    assert len(counter.graphs) == 0 and len(other.graphs) == 2
    assert compiled_calls(counter, compiled, y) == 1 and compiled_calls(other, compiled, x) == 2
    with pytest.raises(ValueError, match="force_backend is for the stance default"):
        bolide.set_stance("force_eager", force_backend="eager")
    with pytest.raises(ValueError, match="unknown backend 'eagre'"):
        bolide.set_stance(force_backend="eagre")


def test_unknown_stance() -> None:
    with pytest.raises(ValueError, match="did you mean 'force_eager'"):
        bolide.set_stance("force_eagre")


def test_a_break_says_why_a_function_is_disabled() -> None:
    @bolide.disable(reason="it talks to the network")
    def told(x: Tensor) -> Tensor:
        return x + 1

    def body(x: Tensor) -> Tensor:
        return told(x) * 2

    with pytest.raises(bolide.Unsupported, match="never compiled is called: it talks to the network"):
        bolide.compile(body, backend="eager", fullgraph=True)(torch.ones(2))
    assert torch.equal(bolide.compile(body, backend="eager")(torch.ones(2)), torch.full((2,), 4.0))


def test_functions_that_graphs_must_not_hold(seed: int) -> None:
    def real(x: Tensor) -> Tensor:
        assert type(x) is Tensor
        return x + 1

    def body(x: Tensor) -> Tensor:
        return real(x * 2) * 2

    try:
        assert bolide.dynamo.disallow_in_graph([real]) == [real]
        explained = bolide.explain(body, backend="eager")(torch.ones(2))
        assert explained.captures == 2 and explained.breaks[0].operation.endswith("real(...)")
        assert bolide.dynamo.forbid_in_graph(real) is real
        with pytest.raises(bolide.Unsupported, match="forbidden in a graph") as caught:
            bolide.compile(body, backend="eager")(torch.ones(2))
        assert "return real(x * 2) * 2" in str(caught.value)
    finally:
        forget([real])
    assert torch.equal(bolide.compile(body, fullgraph=True, backend="eager")(torch.ones(2)), body(torch.ones(2)))


def test_run_uses_what_is_compiled_and_compiles_nothing() -> None:
    seen: list[Any] = []
    compiled = bolide.compile(lambda x: x * 2, backend="eager")
    with events.subscribed(seen.append):
        running = bolide.dynamo.run(compiled)
        assert torch.equal(running(torch.ones(2)), torch.full((2,), 2.0))
        assert not [event for event in seen if isinstance(event, events.Captured)]
        compiled(torch.ones(2))
        assert torch.equal(running(torch.ones(2)), torch.full((2,), 2.0))
    assert sum(isinstance(event, events.Captured) for event in seen) == 1


def test_exporting_is_told_from_compiling() -> None:
    def f(x: Tensor) -> Tensor:
        return x * (2 if bolide.is_exporting() and torch.compiler.is_exporting() else 3)

    x = torch.ones(2)
    assert not bolide.is_exporting()
    assert torch.equal(f(x), x * 3)
    assert torch.equal(bolide.compile(f, fullgraph=True)(x), x * 3)
    assert torch.equal(bolide.dynamo.export(f)(x).graph_module(x), x * 2)
    assert not bolide.is_exporting()


def test_calls_that_are_not_looked_into_take_what_the_program_has_made() -> None:
    seen: list[int] = []

    def summed(parts: dict[str, list[Tensor]]) -> Tensor:
        seen.append(len(parts))  # not interpreted: it happens while capturing
        return torch.stack(parts["all"]).sum(0)

    assert bolide.dynamo.nonstrict_trace(traceable_fn=summed) is summed

    x = torch.randn(3)
    for backend, runs in (("eager", 3), ("aot_eager", 1), ("inductor", 1)):
        seen.clear()
        compiled = bolide.compile(lambda x: summed({"all": [x, x * 2]}), backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), x * 3)
        assert len(seen) == runs


def test_whether_a_function_is_disabled_with_what_it_calls() -> None:
    def f(x: Tensor) -> Tensor:
        return x

    ask = bolide.dynamo.is_dynamo_disable_recursive
    assert ask(f) is None and ask(bolide.disable(f)) is True and ask(bolide.disable(f, recursive=False)) is False


SEEN: list[Any] = []


def _called(x: Tensor) -> Tensor:
    SEEN.append(torch.compiler.is_compiling())
    return x.sin() + 1


class _Called(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(("module", torch.compiler.is_compiling()))
        return super().forward(x)


def _alone(x: Tensor, module: Any, n: int = 2, *, k: float = 1.0) -> Tensor:
    SEEN.append(("alone", torch.compiler.is_compiling()))
    y = torch.cos(x)
    for _ in range(n):
        y = _called(y) * k
    try:
        y = module(y)
        if y.shape[0] == 3:
            raise ValueError(n)
        parts = [_called(row) for row in y]
    except ValueError as error:
        parts = [y * 2 + error.args[0]]
    finally:
        SEEN.append("end")
    return y + sum(part.sum() for part in parts)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("rows", [2, 3])
def test_a_frame_alone_is_not_compiled(rows: int, backend: str) -> None:
    """What it calls is: `disable(recursive=False)`."""
    module = _Called(4, 4)
    alone = bolide.disable(_alone, recursive=False)
    compiled = bolide.compile(lambda x: alone(x * 2, module, n=3, k=0.5) + 1, backend=backend)
    for _ in range(4):
        x = torch.randn(rows, 4)
        expected = _alone(x * 2, module, n=3, k=0.5) + 1
        SEEN.clear()
        torch.testing.assert_close(compiled(x), expected)
        assert SEEN[0] == ("alone", False) and SEEN[-1] == "end" and not any(each is False for each in SEEN)
        assert ("module", True) in SEEN and SEEN.count(True) == (3 if rows == 3 else 5)


def test_a_frame_alone_that_is_not_compiled_says_why() -> None:
    alone = bolide.disable(_called, recursive=False, reason="it is slow to compile")
    with pytest.raises(bolide.Unsupported, match=r"_called is not compiled itself.*it is slow to compile"):
        bolide.compile(lambda x: alone(x) + 1, backend="eager", fullgraph=True)(torch.ones(2))


def test_a_method_alone_is_not_compiled() -> None:
    module = _Called(4, 4)
    module.forward = bolide.disable(module.forward, recursive=False)
    compiled = bolide.compile(lambda x: module(x).relu(), backend="eager")
    x = torch.randn(2, 4)
    expected = module(x).relu()
    for _ in range(3):
        SEEN.clear()
        assert torch.equal(compiled(x), expected) and SEEN == [("module", False)]


def test_what_was_said_to_torch_holds_here() -> None:
    from torch import _dynamo

    def breaking(x: Tensor, how: Any) -> Tensor:
        y = x.sin()
        how()
        return y.cos()

    for how in (
        _dynamo.graph_break,
        _dynamo.skip_frame,
        _dynamo.step_unsupported,
        torch.compiler.disable(lambda: None),
    ):
        assert bolide.explain(breaking)(torch.ones(2), how).graph_break_count == 1

    def compiled_graphs(mark: Callable[[Tensor], None]) -> int:
        counter = Counter()
        compiled = bolide.compile(lambda x: x * x.shape[0], backend=counter)
        for size in (4, 5, 6, 7):
            x = torch.ones(size)
            mark(x)
            assert torch.equal(compiled(x), x * size)
        return len(counter.graphs)

    assert compiled_graphs(lambda x: None) == 2
    assert compiled_graphs(lambda x: _dynamo.mark_dynamic(x, 0)) == 1
    assert compiled_graphs(lambda x: _dynamo.maybe_mark_dynamic(x, 0)) == 1
    assert compiled_graphs(lambda x: _dynamo.mark_dynamic(x, 0, min=2, max=64)) == 1
    assert compiled_graphs(lambda x: _dynamo.mark_static(x, 0)) == 4
    wrapped = torch.compiler.wrap_numpy(lambda a: np.sin(a) + 1)
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(bolide.compile(lambda x: wrapped(x), fullgraph=True)(x), x.sin() + 1)
