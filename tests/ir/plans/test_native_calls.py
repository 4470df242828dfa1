"""Calls and views that the native driver makes without Python, and which views autograd knows."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor import compiled_graph
from bolide.inductor.config import config
from bolide.inductor.machine import host_machine
from bolide.inductor.plan import Call
from bolide.inductor.runtime.native import assemble as assembling
from bolide.inductor.runtime.results import tied_views
from tests.plan_tools import plans

R = torch.randn


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Native drivers from the second call on; the steps that are made in Python while all is well."""
    found: list[object] = []
    made = assembling.Writer.python

    def python(self: assembling.Writer, step: assembling.PythonStep) -> None:
        found.append(step.function._make.args[2])  # the step of the plan
        made(self, step)

    monkeypatch.setattr(assembling.Writer, "python", python)
    bolide.reset()
    with config.patch(native_after=2):
        yield found
    bolide.reset()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("stride, padding, dilation, kernel", [(1, 1, 1, 3), (2, 0, 1, 3), (1, 2, 2, 2), (1, 0, 1, 1)])
def test_weight_gradients_of_convolutions(
    stride: int,
    padding: int,
    dilation: int,
    kernel: int,
    channels_last: bool,
    monkeypatch: pytest.MonkeyPatch,
    in_python,
) -> None:
    monkeypatch.setattr(compiled_graph, "machine_for", lambda device: replace(host_machine(), fewest_weights=1))
    seed = random.randrange(1 << 30)
    print("seed", seed)
    torch.manual_seed(seed)
    eager = torch.nn.Conv2d(3, 5, kernel, stride, (padding, max(padding - 1, 0)), dilation, bias=False)
    mine, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    compiled = bolide.compile(mine)
    with plans() as graphs:
        for _ in range(4):
            x = R(2, 3, 7, 6).to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            for model, call in ((mine, compiled), (exact, exact)):
                model.zero_grad()
                call(x.to(model.weight.dtype)).sin().sum().backward()
            for one, other in zip(mine.parameters(), exact.parameters()):
                torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-4)
                assert one.grad.is_contiguous() and not one.grad._is_view()
    called = [str(step.operator) for step in graphs[-1].plan.steps if isinstance(step, Call)]
    assert channels_last or "aten.convolution_backward.default" not in called, called
    assert not in_python, in_python


def test_copies_are_made_without_python(in_python) -> None:
    def program(x, y):
        z = torch.cat([x, y.clone(memory_format=torch.contiguous_format)]).sort(0)[0]
        x.copy_(torch.mm(x, y))
        return z, x[0].argwhere()

    compiled = bolide.compile(program, dynamic=True)
    for size in (3, 3, 3, 5, 7):
        mine, y = R(size, size), R(size, size).t()
        eagers = mine.clone()
        torch.testing.assert_close(compiled(mine, y), program(eagers, y), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine, eagers)
    assert not in_python, in_python


def test_views_of_one_result_share_its_version(in_python) -> None:
    w = R(12, 4)

    def program(x):
        y = x @ w
        return y, y.view(2, -1), y.sum()

    compiled = bolide.compile(program)
    for _ in range(4):
        x = R(6, 12)
        with torch.no_grad():
            y, view, _ = compiled(x)
        before = y._version
        view.add_(1)
        assert y._version == before + 1
        torch.testing.assert_close(y - 1, x @ w, rtol=1e-4, atol=1e-4)
    assert not in_python, in_python


def test_a_view_alone_in_its_memory_is_tied_to_nothing() -> None:
    layer = torch.nn.Linear(6, 3)
    with plans() as graphs:
        compiled = bolide.compile(lambda x: F.linear(x, layer.weight, layer.bias))
        for _ in range(4):
            x = R(2, 5, 6)
            y = compiled(x)
            torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-4)
            y.mul_(2)  # not forbidden, as that of a view of a custom function would be
            torch.testing.assert_close(y, 2 * layer(x), rtol=1e-4, atol=1e-4)
    assert not any(tied_views(graph.plan) for graph in graphs)


def test_only_plans_that_take_longer_give_up_the_interpreter_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    natively = assembling.Writer.natively

    def noted(self: assembling.Writer) -> None:
        natively(self)
        held.append(self._held)

    monkeypatch.setattr(assembling.Writer, "natively", noted)
    programs = {"short": lambda x: x + 1, "long": lambda x: x + 1, "called": lambda x: torch.fft.rfft(x).real + 1}
    for name, extent in (("short", 16), ("long", 1 << 20), ("called", 16), ("short", 5)):
        held.clear()
        compiled, x = bolide.compile(programs[name]), R(extent)
        for _ in range(5):
            torch.testing.assert_close(compiled(x), programs[name](x))
        assert held and all(held) == (name == "short") and any(held) == (name == "short"), name
