"""With `inductor.config.freezing` parameters are constants in inference, and changes of them show."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bolide
from bolide.inductor import CompiledGraph
from bolide.inductor.plan import Call
from bolide.support import events
from bolide.tracing import libraries
from bolide.tracing.libraries import POLICIES

FROZEN = {"freezing": True}


class Net(nn.Module):
    """Convolutions of all kinds with norms and branches, and linear layers of both orientations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.Conv2d(16, 32, 1)
        self.deep, self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.last = nn.Conv2d(64, 24, 3, stride=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(32, affine=False), nn.BatchNorm2d(32)])
        self.group = nn.GroupNorm(4, 32)
        self.head, self.turned = nn.Linear(24, 40), nn.Parameter(torch.randn(40, 24) / 6)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            if norm.affine:
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norms[0](self.stem(x)).relu()
        x = self.norms[1](self.wide(x))
        y = F.silu(self.norms[2](self.deep(x))) + x
        z = self.group(self.grouped(y))
        x = self.last(torch.cat([F.interpolate(F.max_pool2d(y, 2), z.shape[2:]), z], 1))
        rows = self.head(x.mean((2, 3)))
        return x, y, rows, rows.relu() @ self.turned, (rows @ self.turned) * self.turned.sum()


@pytest.fixture(autouse=True)
def everything_packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small sizes are tested: they take the way of large ones."""
    monkeypatch.setitem(POLICIES, "cpu", replace(POLICIES["cpu"], fewest_packed=1))
    monkeypatch.setattr(libraries, "fastest", lambda *_, packed=False, by_columns=False: "packed" if packed else "aten")
    monkeypatch.setattr(bolide.dynamo.config, "suppress_errors", False)
    with torch.no_grad():
        yield


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def compare(found: Any, eager: Any, exact: Any = None) -> None:
    """Strides are eager's, and numbers as good as eager's."""
    for ours, theirs, true in zip(flat(found), flat(eager), flat(eager if exact is None else exact), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride(), (ours.shape, ours.stride(), theirs.stride())
        if not true.numel():
            continue
        scale = float(true.double().abs().max())
        rounding = float((theirs.double() - true.double()).abs().max())
        error = float((ours.double() - true.double()).abs().max())
        loose = 2e-2 if theirs.dtype is torch.bfloat16 else 1e-5
        assert error <= 4 * rounding + loose * scale, (error, rounding, scale)


def operations(function: Callable[..., Any], *args: Any) -> list[str]:
    """The calls in the compiled graphs."""
    graphs: list[CompiledGraph] = []
    with events.subscribed(lambda event: graphs.append(event.artifact) if isinstance(event, events.Compiled) else None):
        function(*args)
    steps = [step for graph in graphs for step in graph.plan.steps]
    return [str(step.operator) for step in steps if isinstance(step, Call)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_results_and_strides_are_eagers(dtype: torch.dtype, dynamic: bool | None) -> None:
    net = Net().eval()
    exact = copy.deepcopy(net.to(dtype)).double()
    compiled = bolide.compile(net, options=FROZEN, dynamic=dynamic)
    for batch, height, width in ((2, 20, 24), (1, 40, 13)):
        x = torch.randn(batch, 3, height, width, dtype=dtype)
        for given in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3)):
            compare(compiled(given), net(given), exact(given.double()))


def test_norms_are_folded_and_weights_packed() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 20, 24)
    calls = operations(bolide.compile(net, options=FROZEN), x)
    assert calls.count("mkldnn._convolution_pointwise.default") == 5, calls
    assert calls.count("mkldnn._linear_pointwise.default") == 3, calls
    assert not [call for call in calls if "batch_norm" in call or "reorder" in call or "aten.convolution" in call]
    calls = operations(bolide.compile(net), x)
    assert not [call for call in calls if "reorder" in call], calls


def change_in_place(net: Net) -> None:
    net.stem.weight.mul_(1.5)


def change_buffer(net: Net) -> None:
    net.norms[2].running_mean.add_(0.5)


def replace_memory(net: Net) -> None:
    net.wide.weight.data = torch.randn_like(net.wide.weight)


def replace_parameter(net: Net) -> None:
    net.turned = nn.Parameter(torch.randn(40, 24))


def load_state(net: Net) -> None:
    net.load_state_dict(Net().state_dict())


def step(net: Net) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with torch.enable_grad():
        net(torch.randn(2, 3, 20, 24))[2].square().sum().backward()
    optimizer.step()


def change_in_inference_mode(net: Net) -> None:
    with torch.inference_mode():
        net.head.weight.mul_(2)


CHANGES = (
    change_in_place,
    change_buffer,
    replace_memory,
    replace_parameter,
    load_state,
    step,
    change_in_inference_mode,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_of_parameters_show(change: Callable[[Net], None]) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 20, 24)
    compiled = bolide.compile(net, options=FROZEN)
    for _ in range(3):
        compare(compiled(x), net(x))
        compare(compiled(x), net(x))
        change(net)
    compare(compiled(x), net(x))


def test_memory_of_old_parameters_is_not_taken_for_that_of_new_ones() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(8, 64)
    compiled = bolide.compile(layer, options=FROZEN)
    for _ in range(20):  # memory of the same size is soon given out again
        layer.weight.data = torch.randn(64, 64)
        compare(compiled(x), layer(x))

    def apply(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    compiled = bolide.compile(apply, options=FROZEN)
    for _ in range(20):
        layer = nn.Linear(64, 64)
        compare(compiled(layer, x), layer(x))
        compare(compiled(layer, x), layer(x))


def test_modules_in_turn() -> None:
    first, second, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.randn(8, 64)
    compiled = bolide.compile(lambda layer, x: layer(x), options=FROZEN)
    for layer in (first, second, first, second):
        compare(compiled(layer, x), layer(x))


def test_parameters_are_not_kept_alive() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(8, 64)
    compiled = bolide.compile(lambda layer, x: layer(x), options=FROZEN)
    compiled(layer, x)
    gone = weakref.ref(layer.weight)
    del layer
    gc.collect()
    assert gone() is None


def test_parameters_of_inference_mode_count_no_versions() -> None:
    with torch.inference_mode():
        layer, x = nn.Linear(64, 64), torch.randn(8, 64)
        compiled = bolide.compile(layer, options=FROZEN)
        for _ in range(3):
            compare(compiled(x), layer(x))
            layer.weight.mul_(2)


def test_training_is_as_without() -> None:
    net, x = Net(), torch.randn(2, 3, 20, 24)
    same = copy.deepcopy(net)
    compiled = bolide.compile(net, options=FROZEN)
    with torch.enable_grad():
        for model in (compiled, same):
            sum(value.square().mean() for value in model(x)).backward()
    for ours, theirs in zip(net.parameters(), same.parameters()):
        assert ours.grad is not None and theirs.grad is not None
        assert float((ours.grad - theirs.grad).norm()) <= 1e-3 * float(theirs.grad.norm()) + 1e-5
    for ours, theirs in zip(net.buffers(), same.buffers()):
        torch.testing.assert_close(ours, theirs)


def test_norms_in_training_mode_are_not_folded() -> None:
    net, x = Net().train(), torch.randn(2, 3, 20, 24)
    same = copy.deepcopy(net)
    compiled = bolide.compile(net, options=FROZEN)
    for _ in range(3):
        compare(compiled(x), same(x))
    for ours, theirs in zip(net.buffers(), same.buffers()):
        torch.testing.assert_close(ours, theirs)


def test_a_buffer_that_is_written_is_no_constant() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled = self.scale.exp() * 2
            self.seen.add_(x * scaled)
            return self.seen * scaled + self.seen.sum()

    net = Counts()
    same, compiled = copy.deepcopy(net), bolide.compile(net, options=FROZEN)
    for _ in range(4):
        x = torch.randn(4)
        compare(compiled(x), same(x))
    compare(net.seen, same.seen)


def test_tied_viewed_and_transposed_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 32)
            self.all = nn.Parameter(torch.randn(96, 32))

        def forward(self, ids: torch.Tensor) -> Any:
            x = self.table(ids)
            q, k, v = self.all.chunk(3)
            mixed = x @ q.t() + x @ k + F.linear(x, v[:, :32]) + x @ self.all[::3] + x @ self.all[:, ::1][:32].t()
            return mixed @ self.table.weight.t(), F.linear(mixed, self.table.weight, self.table.weight[:, 0])

    net = Tied()
    compiled = bolide.compile(net, options=FROZEN)
    for count in (7, 5, 0, 9):
        ids = torch.randint(0, 50, (2, count))
        compare(compiled(ids), net(ids))
        net.all.mul_(1.1)


def test_results_made_of_parameters_alone_are_the_callers() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    function: Callable[[torch.Tensor], Any] = lambda x: (weight * 2, (weight + 1).t(), weight.expand(3, 4, 4) * x)  # noqa: E731
    compiled = bolide.compile(function, options=FROZEN)
    x = torch.randn(3, 4, 4)
    for _ in range(3):
        results = compiled(x)
        compare(results, function(x))
        for result in results:
            result.zero_()
    assert weight.detach().abs().sum() > 0


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_norms_of_every_rank(kind: int) -> None:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[kind - 1]
    turned = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[kind - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[kind - 1]
    net = nn.Sequential(convolution(4, 8, 3), norm(8), nn.ReLU(), turned(8, 6, 3), norm(6)).eval()
    for module in net:
        if isinstance(module, norm):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    compiled = bolide.compile(net, options=FROZEN)
    for size in (6, 7):
        x = torch.randn(2, 4, *[size] * kind)
        compare(compiled(x), net(x), copy.deepcopy(net).double()(x.double()))


def test_nan_stays() -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(1, 8, 6, 6)
    x[0, 0, 2, 2] = float("nan")
    assert torch.equal(bolide.compile(net, options=FROZEN)(x).isnan(), net(x).isnan())


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 20, 24)
    with torch.backends.mkldnn.flags(enabled=False):
        monkeypatch.undo()
        compare(bolide.compile(net, options=FROZEN)(x), net(x))


def test_packed_weights_pass_through_the_native_driver() -> None:
    net = Net().eval()
    compiled = bolide.compile(net, options={**FROZEN, "native_after": 1})
    for _ in range(3):
        for _ in range(3):
            x = torch.randn(2, 3, 20, 24)
            compare(compiled(x), net(x))
        change_in_place(net)
