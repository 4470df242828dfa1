"""`bolide.explain`: what was compiled and what was not, as text and as data, without side effects on gradients."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from markupsafe import escape
from torch import Tensor, nn

import bolide
from bolide.debug import report
from bolide.debug.explain import Collector, CompiledInfo, HostClock, KernelInfo, clock_for
from bolide.debug.report import render_report, report_of, steps
from bolide.support import events
from tests.plan_tools import plans_of


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def test_graphs_kernels_and_guards_of_a_module() -> None:
    model = small_model()
    found = bolide.explain(model)(torch.randn(3, 8))
    assert [g.kind for g in found.graphs] == ["forward", "backward"]
    assert found.captures == 1 and not found.breaks
    forward = found.graphs[0]
    assert any("native_layer_norm" in k.origins and "gelu" in k.origins for k in forward.kernels)
    assert all("define" in k.llvm_ir and k.name in k.loops for k in forward.kernels)
    assert sum(e.calls for e in forward.externs) == 2
    assert any("float32[3, 8]" in guard for guard in found.segments[0].guards)
    assert {"capture", "lower", "codegen"} <= {s.stage for s in found.stages}
    assert all(p.grad is None for p in model.parameters())


def test_text_and_plain_data_say_the_same() -> None:
    found = bolide.explain(torch.softmax)(torch.randn(4, 8), -1)
    assert "kernel" in str(found) and "softmax" in str(found) and "guards" in str(found)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["graphs"][0]["kernels"][0]["name"] == found.graphs[0].kernels[0].name


def test_names_of_torchdynamos_explanation() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        bolide.graph_break()
        return y.cos()

    e = bolide.explain(f, backend="eager")(torch.ones(2))
    assert (e.graph_count, e.graph_break_count, e.op_count) == (2, 1, 3)
    assert e.break_reasons[0].reason == "a break was asked for" and len(e.out_guards) >= 2
    assert "capture" in e.compile_times


def test_without_backward() -> None:
    found = bolide.explain(small_model(), backward=False)(torch.randn(3, 8))
    assert [g.kind for g in found.graphs] == ["forward"]


def test_segments_and_the_break_between_them() -> None:
    def branches(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum() > 0:
            return y[1:]
        return y - 1

    found = bolide.explain(branches)(torch.ones(3))
    (broken,) = found.breaks
    assert found.captures == 2 and found.segments[0].broken is broken and found.segments[1].broken is None
    assert found.segments[0].operations >= 2 and found.segments[0].guards
    assert broken.code.startswith("BR01") and broken.source == "if y.sum() > 0:" and broken.remedy
    assert __file__ in broken.where and broken.next == (found.segments[1].function,)
    text = str(found)
    assert "2 segments, 1 break" in text and broken.reason in text and f"[{broken.code}]" in text


def test_what_is_not_compiled_says_why_where_and_what_to_do() -> None:
    x = torch.randn(3, 4).to_sparse()
    with pytest.warns(bolide.BolideWarning):
        found = bolide.explain(lambda x: x.clone())(x)
    (fallback,) = found.breaks
    assert not found.segments and not fallback.between and "sparse" in fallback.reason
    assert __file__ in fallback.where and "lambda x: x.clone()" in fallback.source
    assert "runs in eager" in str(found)


def test_recompilations_name_the_guard_the_values_and_the_fix() -> None:
    def scaled(x: Tensor, name: str) -> Tensor:
        return x * (2 if name == "a" else 3)

    compiled = bolide.compile(scaled)
    collector = Collector("scaled")
    with collector.listening():
        compiled(torch.ones(3), "a")
        compiled(torch.ones(3), "b")
    (again,) = collector.explanation().recompiles
    assert "name == 'a'" in again.guard and "'b'" in again.actual and again.remedy
    assert __file__ in again.where


def test_an_already_compiled_function_is_explained_anew() -> None:
    compiled = bolide.compile(lambda x: x * 2)
    compiled(torch.ones(3))
    assert bolide.explain(compiled)(torch.ones(3)).captures == 1


def test_kernels_and_library_calls_are_timed_and_results_stay() -> None:
    model, x = small_model(), torch.randn(3, 8)
    collector = Collector("model")
    with collector.listening(), torch.no_grad():
        compiled = bolide.compile(model)
        expected = compiled(x)
    with torch.no_grad():
        collector.time_steps(lambda: torch.testing.assert_close(compiled(x), expected))
        torch.testing.assert_close(compiled(x), expected)
    (graph,) = collector.explanation().graphs
    assert all(k.microseconds is not None and k.microseconds > 0 for k in graph.kernels)
    assert all(e.microseconds is not None and e.microseconds > 0 for e in graph.externs)


def test_a_gpus_kernels_are_timed_by_events_and_compared_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made = 0

        def __init__(self, enable_timing: bool) -> None:
            Event.made += 1
            self.number = Event.made

        def record(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return 0.001 * (end.number - self.number)

    for name, value in (("Event", Event), ("_sleep", lambda cycles: None), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, value)
    (compiled,) = plans_of(torch.linalg.det, torch.randn(3, 3))
    (given,) = compiled.plan.inputs
    on_gpu = replace(given, type=replace(given.type, device=torch.device("cuda", 0)))
    assert isinstance(clock_for(compiled.plan), HostClock) and not compiled.kernels
    clock = clock_for(replace(compiled.plan, inputs=(on_gpu,)))
    for label in ("first", "second"):
        clock.start()
        clock.stop(label)
    assert clock.times() == [("first", pytest.approx(1e-6)), ("second", pytest.approx(1e-6))]
    kernel = KernelInfo("k", ("add",), "", "", "", 3000, 1000, 1, microseconds=1.0, device="cuda:0")
    monkeypatch.setattr(report, "memory_bandwidth", lambda index: 8e9)
    graph = CompiledInfo("f", "inference", "", 1, 0.1, (kernel,), (), (), "", "")
    assert [step.rate for step in steps(graph)] == ["4.0 (50 %)"]


def test_state_that_is_kept_by_parameter_is_named_shortly() -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())

    def step(x):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    step(torch.randn(4, 3))
    text = str(bolide.explain(step)(torch.randn(4, 3)))
    assert "optimizer_state_parameter_exp_avg" in text and "optimizer.state[<Parameter at 0x" in text
    assert "Parameter containing" not in text


def test_a_break_names_the_function_called_and_where_from() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        return x + os.times()[0] * 0

    def outside(x: torch.Tensor) -> torch.Tensor:
        return inside(x) * 2

    found = bolide.explain(outside, backward=False)(torch.randn(3))
    (broken,) = found.breaks
    assert broken.operation == "os.times(...)" and "differs from call to call" in broken.reason
    line = inside.__code__.co_firstlineno + 1
    assert f"line {line}, in " in broken.where and broken.source == "return x + os.times()[0] * 0"
    assert f'called from: File "{__file__}", line {line + 3}' in str(found)
    for fn, name in (
        (lambda x: open(os.devnull).close() or x, "open"),
        (lambda x: os.urandom(1)[0] * 0 + x, "urandom"),
    ):
        assert name in bolide.explain(fn, backward=False)(torch.randn(3)).breaks[0].operation


def test_recompilations_name_modes_and_flags() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    compiled = bolide.compile(module, backend="eager")
    x, collector = torch.randn(2, 3), Collector("f")
    with collector.listening():
        compiled(x)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            compiled(x)
        module.eval()
        compiled(x)
    modes, flag = collector.explanation().recompiles[:2]
    assert modes.guard == "global state: gradients on, autocast off, default dtype float32"
    assert modes.actual == "gradients off, autocast cpu bfloat16, default dtype float32" and "autocast" in modes.remedy
    assert "training is True" in flag.guard and flag.actual == "False" and "compiled each for itself" in flag.remedy


@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        ([(torch.ones(3),), (torch.ones(3).double(),)], "same dtype"),
        ([(torch.ones(3),), (torch.ones(3, 3),)], "number of dimensions"),
        ([(torch.ones(3),), (torch.ones(3, requires_grad=True),)], "with and without gradients"),
        ([(torch.ones(3),), (torch.ones(1),)], "sizes 0 and 1"),
        ([(torch.ones(3),), (torch.ones(4),)], "a symbol in the next version"),
        ([(torch.ones(2, 3),), (torch.ones(3, 2).t(),)], "same layout"),
        ([(torch.ones(3), 2), (torch.ones(3), 3)], "the number is a symbol"),
        ([(torch.ones(3), "a"), (torch.ones(3), "b")], "each value is compiled for itself"),
        ([(torch.ones(3), lambda: 1), (torch.ones(3), lambda: 2)], "define it once"),
        ([(torch.ones(3), None), (torch.ones(3), 2)], "True, False and None"),
    ],
)
def test_advice_fits_what_has_changed(calls: list[tuple[Any, ...]], advice: str) -> None:
    def body(x: Tensor, other: Any = None) -> Tensor:
        return x * (len(other) if type(other) is str else other() if callable(other) else other or 1)

    compiled = bolide.compile(body, backend="eager")
    compiled(*calls[0])
    seen: list[Any] = []
    with events.subscribed(seen.append):
        compiled(*calls[1])
    failed = [event for event in seen if isinstance(event, events.GuardFailed)]
    assert len(failed) == 1 and advice in failed[0].remedy


def test_what_a_module_holds_is_said_of_self() -> None:
    explained = bolide.explain(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    (segment,) = explained.segments
    assert any("self._parameters['weight']" in guard for guard in segment.guards)


def test_the_page_tells_what_is_saved_for_the_backward() -> None:
    found = bolide.explain(small_model())(torch.randn(3, 8))
    page = render_report(report_of(found))
    assert found.saved and page.count("Saved for the backward") == len(found.saved)
    for kept in found.saved:
        for value in kept.values:
            assert f"<code>{value.operation}</code>" in page and escape(value.why) in page
    assert "Saved for the backward" not in render_report(report_of(bolide.explain(torch.sin)(torch.randn(3))))
