"""Bools, given to a program or kept by objects, that are others in each call, in more combinations than there are
versions for: where the graph can decide by them it does, and one version serves them all."""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.support import events

Flags = list[bool]
COUNT = 5


class Layers(nn.Module):
    """Layers of which each call uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(COUNT))
        self.norm = nn.LayerNorm(6)


class Kept(Layers):
    def forward(self, x: Tensor, flags: Flags) -> Any:
        x = self.first(x)
        for keep, layer in zip(flags, self.layers):
            if keep:
                x = x + layer(x)
        return self.norm(x)


class Skipped(Layers):
    def forward(self, x: Tensor, flags: Flags) -> Any:
        x = self.first(x)
        for index, layer in enumerate(self.layers):
            if not flags[index] and self.training:
                continue
            x = layer(x)
        return self.norm(x)


class Named(Layers):
    def forward(self, x: Tensor, flags: Flags) -> Any:
        return self.some(x, **dict(zip("abcde", flags)))

    def some(self, x: Tensor, *, a: bool, b: bool, c: bool, d: bool, e: bool) -> Any:
        x = self.first(x)
        if a:
            x = self.layers[0](x)
        other = not b
        if other:
            x = x.sin()
        x = x * 2 + c
        if d:
            x = self.layers[1](x) * 2
        else:
            x = x - self.layers[2](x)
        x = self.layers[3](x) if e else x.sin()
        return self.norm(x)


class Counted(Layers):
    def forward(self, x: Tensor, flags: Flags) -> Any:
        x, kept = self.first(x), 0
        for keep, layer in zip(flags, self.layers):
            if keep:
                x, kept = x + layer(x), kept + 1
        return self.norm(x), kept, sum(flags), x.detach() * flags[0], not flags[1], flags[2]


class Gathered(Layers):
    """No graph can do what this one does."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        kept = [layer for keep, layer in zip(flags, self.layers) if keep]
        x = self.first(x)
        for layer in kept:
            x = layer(x)
        return self.norm(x), len(kept)


class Differing(Layers):
    """Tensors tell truths from numbers: the one is refused, the other not."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        y = self.norm(self.first(x))
        whole, truths = x.detach().long(), x.detach() > 0
        if flags[0]:
            y = y.sin()
        try:
            y = y - flags[1]
        except RuntimeError:
            y = y.cos()
        return y, whole * flags[2], truths * flags[3], truths + flags[4], (flags[1] + 1) * 2, -flags[3], flags[0] / 2


class Nested(Layers):
    """Which parameters have gradients is decided by branches in ways of branches."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        x = self.first(x)
        if flags[0] or flags[1]:
            x = self.layers[0](x)
        if flags[2] and not flags[3]:
            x = self.layers[1](x) * 2
        return self.norm(x)


class Asked(Layers):
    """Truths that have to be known."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        x = self.norm(self.first(x))
        names = {True: 3, False: 4}
        return (
            x.sum(1, keepdim=flags[0]),
            flags[1] is True,
            names[flags[2]],
            len(f"{flags[3]}"),
            any(flags),
            x[flags[4] :],
        )


PROGRAMS: list[tuple[type[Layers], bool]] = [(Kept, True), (Skipped, True), (Named, True), (Counted, True)]
PROGRAMS += [(Gathered, False), (Nested, False), (Differing, False), (Asked, False)]


def _results(module: nn.Module, call: Callable[..., Any], x: Tensor, flags: Flags) -> tuple[Any, ...]:
    """What a call gives, and the gradients of all parameters and of its input."""
    x = x.clone().requires_grad_()
    result = call(x, flags)
    parts = result if isinstance(result, tuple) else (result,)
    loss = sum(part.square().sum() for part in parts if isinstance(part, Tensor) and part.requires_grad)
    assert isinstance(loss, Tensor)
    given = [x, *module.parameters()]
    return result, torch.autograd.grad(loss, given, allow_unused=True)


def _inputs(calls: int = 24) -> list[tuple[Tensor, Flags]]:
    choose = random.Random(0)
    return [
        (torch.randn(3 + i % 4, 6, dtype=torch.float64), [choose.random() < 0.5 for _ in range(COUNT)])
        for i in range(calls)
    ]


@pytest.mark.parametrize(("program", "decided"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
def test_flags_are_branches_of_the_graph(program: type[Layers], decided: bool) -> None:
    torch.manual_seed(0)
    module, seen = program().double(), []
    compiled = bolide.compile(module)
    with events.subscribed(seen.append), warnings.catch_warnings():
        warnings.simplefilter("error" if decided else "ignore")
        for x, flags in _inputs():
            expected = _results(module, module, x, flags)
            torch.testing.assert_close(_results(module, compiled, x, flags), expected)
    if decided:
        assert not any(isinstance(event, (events.Break, events.Fallback)) for event in seen)
        assert sum(isinstance(event, events.Installed) for event in seen) <= 6


class Enabled(Layers):
    """Each layer knows whether it is used, and whether it is trained."""

    def hold(self, flags: Flags) -> None:
        for layer, flag in zip(self.layers, flags):
            layer.enabled = flag  # type: ignore[assignment]
            layer.train(not flag)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        for layer in self.layers:
            if layer.enabled:
                x = x + layer(x)
            x = x * 2 if layer.training else x.sin()
        return self.norm(x)


@dataclass
class Choices:
    a: bool = True
    b: bool = True
    c: bool = True


class Configured(Layers):
    """Choices in an object, in a namespace and under a property."""

    def __init__(self) -> None:
        super().__init__()
        self.choices, self.space, self._late = Choices(), types.SimpleNamespace(d=True), True

    @property
    def late(self) -> bool:
        return self._late

    def hold(self, flags: Flags) -> None:
        self.choices, self.space.d, self._late = Choices(*flags[:3]), flags[3], flags[4]

    def forward(self, x: Tensor) -> Any:
        x, choices = self.first(x), self.choices
        if choices.a:
            x = self.norm(x)
        x = self.layers[0](x) if choices.b else x.cos()
        if not choices.c:
            x = x + self.layers[1](x)
        y = x * 2 if self.space.d else x
        return (y.sin() if self.late else y), choices.a, self.late


class Once(Layers):
    """Writes the flags that it reads."""

    def hold(self, flags: Flags) -> None:
        for layer, flag in zip(self.layers, flags):
            layer.fresh = flag  # type: ignore[assignment]
        self.used: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        x, before = self.first(x), False
        for layer in self.layers:
            if layer.fresh:
                x = layer(x)
                layer.fresh = before
            self.used.append(layer.fresh)
        return self.norm(x)


class Outer(Layers):
    """Flags of a function's surroundings."""

    def __init__(self) -> None:
        super().__init__()
        a = b = c = d = True

        def use(x: Tensor) -> Tensor:
            if a:
                x = self.layers[0](x)
            if b:
                x = x.sin()
            x = x * c
            return x if d else x - self.layers[1](x)

        def hold(flags: Flags) -> None:
            nonlocal a, b, c, d
            a, b, c, d = flags[:4]

        self.use, self.hold = use, hold

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.use(self.first(x)))


@pytest.mark.parametrize("program", [Enabled, Configured, Once, Outer])
def test_flags_that_objects_keep_are_branches_of_the_graph(program: type[Any]) -> None:
    torch.manual_seed(0)
    module, seen = program().double(), []
    compiled = bolide.compile(module)

    def called(call: Callable[..., Any], x: Tensor, flags: Flags) -> Any:
        module.hold(flags)
        left = _results(module, lambda x, _: call(x), x, flags)
        return left, list(getattr(module, "used", ()))

    with events.subscribed(seen.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, flags in _inputs():
            expected = called(module, x, flags)
            torch.testing.assert_close(called(compiled, x, flags), expected)
    assert not any(isinstance(event, (events.Break, events.Fallback)) for event in seen)
    assert sum(isinstance(event, events.Installed) for event in seen) <= 7


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d])
def test_dropouts_of_which_some_are_trained(kind: type[nn.Module]) -> None:
    """What each has dropped is zero, the rest is scaled, and gradients say the same; nothing is dropped by others."""
    drops, seen = nn.ModuleList(kind(0.5) for _ in range(COUNT)), []

    def program(*inputs: Tensor) -> list[Tensor]:
        return [drop(x * 3) for drop, x in zip(drops, inputs)]

    compiled = bolide.compile(program)
    with events.subscribed(seen.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, flags in _inputs():
            for drop, trained in zip(drops, flags):
                drop.train(trained)
            rows = x.repeat(20, 1).unsqueeze(2).repeat(1, 1, 2)
            inputs = [(rows + place).requires_grad_() for place in range(COUNT)]
            torch.manual_seed(0)
            results = compiled(*inputs)
            torch.manual_seed(0)
            torch.testing.assert_close(compiled(*inputs), results)
            scales = torch.autograd.grad(sum(map(torch.sum, results)), inputs)  # type: ignore[call-overload]
            for given, result, scale, trained in zip(inputs, results, scales, flags):
                torch.testing.assert_close(result, given * scale)
                assert set(scale.unique().tolist()) == ({0.0, 6.0} if trained else {3.0})
                assert not trained or 0.3 < scale.mean() / 6 < 0.7
                if kind is nn.Dropout1d:
                    assert torch.equal(scale[..., 0], scale[..., 1])
    assert not any(isinstance(event, (events.Break, events.Fallback)) for event in seen)
    assert sum(isinstance(event, events.Installed) for event in seen) <= 7


def test_modules_that_are_trained_together_have_one_mode() -> None:
    """`training` changes in all of them at once: it has two versions, whatever other flags there are."""
    seen: list[Any] = []

    class Model(Layers):
        def forward(self, x: Tensor, flags: Flags) -> Any:
            for keep, layer in zip(flags, self.layers):
                if keep:
                    x = layer(x)
                x = x * 2 if layer.training else x + 1
            return self.norm(self.first(x))

    module = Model().double()
    compiled = bolide.compile(module)
    with events.subscribed(seen.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (x, flags) in enumerate(_inputs(32)):
            module.train(number % 3 > 0)
            expected = _results(module, module, x, flags)
            torch.testing.assert_close(_results(module, compiled, x, flags), expected)
    assert sum(isinstance(event, events.Installed) for event in seen) <= 7
    last = [event.graph for event in seen if isinstance(event, events.Graph)][-1]
    assert sum("branch" in str(node.target) for node in last.graph.nodes) <= COUNT


def test_each_flag_alone_is_one_of_many() -> None:
    """One layer more than there are versions, each called alone."""
    module, seen = nn.ModuleList(nn.Linear(6, 6) for _ in range(12)).double(), []

    def program(x: Tensor, flags: Flags) -> Tensor:
        y = x.sin()
        for flag, layer in zip(flags, module):
            if flag:
                y = y + layer(x)
        return y * 2

    compiled = bolide.compile(program)
    with events.subscribed(seen.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(12):
            x, flags = torch.randn(4, 6, dtype=torch.float64), [i == j for j in range(12)]
            torch.testing.assert_close(_results(module, compiled, x, flags), _results(module, program, x, flags))
    assert sum(isinstance(event, events.Installed) for event in seen) <= 6


@pytest.mark.parametrize("program", [Kept, Gathered, Asked])
def test_what_no_graph_decides_has_versions_with_fullgraph(program: type[Layers]) -> None:
    module = program().double()
    compiled = bolide.compile(module, fullgraph=True)
    for number in range(8):
        x, flags = torch.randn(4, 6, dtype=torch.float64), [bool(number >> bit & 1) for bit in range(COUNT)]
        torch.testing.assert_close(_results(module, compiled, x, flags), _results(module, module, x, flags))


def test_few_flags_have_versions_of_their_own() -> None:
    seen: list[Any] = []

    def program(x: Tensor, a: bool, b: bool) -> Tensor:
        if a:
            x = x.sin()
        return x.cos() if b else x

    compiled = bolide.compile(program)
    with events.subscribed(seen.append):
        for number in range(8):
            x, a, b = torch.randn(4, 6, dtype=torch.float64), bool(number & 1), bool(number & 2)
            torch.testing.assert_close(compiled(x, a, b), program(x, a, b))
    graphs = [event.graph for event in seen if isinstance(event, events.Graph)]
    assert len(graphs) == 4
    assert not any("branch" in str(node.target) for graph in graphs for node in graph.graph.nodes)


class Dropped(Layers):
    """As transformers for speech drop layers: a variable looks as if it were read before it is written."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        x, found = self.first(x), ()
        drops = x.detach().abs().amax(1)
        for index, layer in enumerate(self.layers):
            skip = self.training and drops[index % 3] < drops[2 - index % 3] + index - 2
            if not skip:
                outputs: tuple[Tensor | None, ...] = (layer(x), x)
                x = x + outputs[0]
            if skip:
                outputs = (None, None)
            if flags[0]:
                found = found + (outputs[1],)
        return self.norm(x), found


class Read(Layers):
    """A variable that differs is read, or has none at all."""

    def forward(self, x: Tensor, flags: Flags) -> Any:
        x, names = self.first(x), []
        for layer in self.layers:
            if x.detach().sum() > 0:
                name = "even"
                x = layer(x)
            if x.detach().amax() > 1:
                name = "odd"
                x = x.cos()
            if flags[0]:
                try:
                    names.append(len(name))
                except UnboundLocalError:
                    names.append(-1)
                else:
                    del name
        return self.norm(x), names


@pytest.mark.parametrize("program", [Dropped, Read])
def test_variables_that_ways_of_branches_leave_differently(program: type[Layers]) -> None:
    module, seen = program().double(), []
    compiled = bolide.compile(module)
    for read in (False, True):
        for x, _ in _inputs(16):
            flags = [read] * COUNT
            with events.subscribed(seen.append if not read else lambda _: None), warnings.catch_warnings():
                warnings.simplefilter("ignore" if read else "error")
                result = _results(module, compiled, x, flags)
            torch.testing.assert_close(result, _results(module, module, x, flags))
    assert not any(isinstance(event, (events.Break, events.Fallback)) for event in seen)
    assert sum(isinstance(event, events.Installed) for event in seen) <= 2


class Bare(Layers):
    """What it gives is its argument where no layer is used; and its states may be one and the same."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        states = [x]
        for index, layer in enumerate(self.layers):
            if kept[index] > 0:
                x = layer(x)
            states.append(x)
        return states


class Either(Layers):
    def forward(self, x: Tensor, kept: Tensor) -> Any:
        y = x * 2
        first = y if kept[0] > 0 else x
        second = first if kept[1] > 0 else self.first(x)
        return [x, y, first, second, second + 1]


class Viewed(Layers):
    """Views of what may be a tensor from before."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        y = self.first(x)
        if kept[0] > 0:
            z = y.sin()
        else:
            z = y
        return [x, y, z[1:], z]


class Sharing(Layers):
    """Two results that share their memory, or not."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        if kept[0] > 0:
            y = self.first(x)
            z = y.view(-1, 6)
        else:
            y = z = x
        return [x, y, z]


class Rewritten(Layers):
    """Written to afterwards."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        x = x * 2
        y = x * 3 if kept[0] > 0 else x
        z = y + 2 if kept[1] > 0 else y
        y += 1
        return [x, y, z]


class Forgotten(Layers):
    """The tensor from before is not there any more, a view of the result is."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        y = x * 2
        if kept[0] > 0:
            z = y.t()
        else:
            y = z = y.sin()
        return [y, y.view(-1), z.sum() * 0 + y]


def _shared(parts: list[Tensor]) -> tuple[Any, ...]:
    """Which of some tensors are the same, and which share their memory."""
    addresses = [part.untyped_storage().data_ptr() for part in parts]
    same = [[a is b for a in parts] for b in parts]
    return same, [[a == b for a in addresses] for b in addresses], [part._is_view() for part in parts]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [Bare, Either, Viewed, Sharing, Rewritten, Forgotten])
def test_results_of_branches_are_the_tensors_that_they_are_in_eager(program: type[Layers], grad: bool) -> None:
    module, seen = program().double().requires_grad_(grad), []
    compiled = bolide.compile(module)
    for number in range(12):
        kept = torch.tensor([number >> bit & 1 for bit in range(COUNT)]).double()
        found = []
        for call in (module, compiled):
            x = torch.linspace(-1, 1, 6 * (3 + number % 3), dtype=torch.float64).view(-1, 6).requires_grad_(grad)
            with events.subscribed(seen.append):
                parts = call(x, kept)
            grads: tuple[Tensor | None, ...] = ()
            if grad:
                loss = sum((part * (place + 1)).sum() for place, part in enumerate(parts))
                assert isinstance(loss, Tensor)
                grads = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)
            shared = _shared([x, *parts])
            with torch.no_grad():
                parts[-1].add_(1)  # what shares its memory changes
            found.append((parts, x.detach(), grads, shared))
        torch.testing.assert_close(found[1][:3], found[0][:3])
        assert found[1][3] == found[0][3]
    if program in (Bare, Either):
        assert not any(isinstance(event, (events.Break, events.Fallback)) for event in seen)
        assert sum(isinstance(event, events.Installed) for event in seen) <= 2
