"""The native form of a check: when it serves, what it adapts to, and what it must not keep alive."""

from __future__ import annotations

import gc
import os
import random
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import _all
from bolide.dynamo.native.check import Check
from bolide.dynamo.native.layout import _autograd_offsets, layout
from bolide.dynamo.program.kinds import own_namespace
from bolide.support.errors import BolideWarning

pytestmark = pytest.mark.skipif(layout() is None, reason="this build keeps its objects elsewhere")


def compiled(function: Any) -> Any:
    return bolide.compile(function, backend="eager", fullgraph=True)


def checks_of(name: str) -> list[Check]:
    return [entry.check for versions in _all if versions.name.endswith(name) for entry in versions.entries]


def only_check(name: str) -> Check:
    (check,) = checks_of(name)
    return check


def readable_calls(check: Check, call: Callable[[], Any], times: int = 3) -> int:
    """How often the readable check is asked while `call` runs `times` times."""
    plain, asked = check.readable, [0]

    def counting(*values: Any) -> Any:
        asked[0] += 1
        return plain(*values)

    check.readable = counting
    try:
        for _ in range(times):
            call()
    finally:
        check.readable = plain
    return asked[0]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gain = 2.0
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.gain


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def fresh() -> None:
    bolide.reset()


def warm(call: Callable[[], Any]) -> None:
    for _ in range(3):
        call()


def test_a_model_is_checked_natively_from_the_third_call_on() -> None:
    model, x = Stack(3), torch.randn(2, 4)
    fast = compiled(model)
    warm(lambda: fast(x))
    assert readable_calls(only_check("Stack"), lambda: fast(x)) == 0
    assert not only_check("Stack").habits.values


def test_the_program_grows_little_with_the_model() -> None:
    sizes = []
    for count in (2, 12):
        bolide.reset()
        model, x = Stack(count), torch.randn(2, 4)
        fast = compiled(model)
        for _ in range(3):
            fast(x)
        sizes.append(len(only_check("Stack").records[0].program.words))
    assert (sizes[1] - sizes[0]) / 10 < 80  # two modules, two parameters: some 20 facts of two or three words


CHANGES: dict[str, Callable[[Stack], Any]] = {
    "class": lambda m: setattr(m.layers[0], "__class__", type("Layer", (Layer,), {})),
    "class of a library's": lambda m: setattr(m.layers[0].linear, "__class__", type("Linear", (nn.Linear,), {})),
    "namespace": lambda m: setattr(m.layers[0], "__dict__", {**vars(m.layers[0]), "gain": 3.0}),
    "namespace item": lambda m: vars(m.layers[0]).update(gain=3.0),
    "method shadowed": lambda m: vars(m.layers[0].linear).update(forward=lambda x: x),
    "hook": lambda m: m.layers[1].linear.register_forward_hook(lambda *_: None),
    "parameter": lambda m: setattr(m.layers[1].linear, "weight", nn.Parameter(torch.randn(4, 4).t())),
    "data": lambda m: setattr(m.layers[1].linear.weight, "data", torch.randn(4, 4).t()),
    "frozen": lambda m: m.layers[1].linear.bias.requires_grad_(False),
    "double": lambda m: m.double(),
    "layer": lambda m: m.layers.append(Layer()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_ends_the_native_verdict(name: str) -> None:
    model, x = Stack(2), torch.randn(2, 4)
    fast = compiled(model)
    warm(lambda: fast(x))
    check = only_check("Stack")
    CHANGES[name](model)
    assert check.readable(model, (x,), {}) is None
    assert check.slow(model, (x,), {}) is None
    x = x.to(next(model.parameters()).dtype)
    torch.testing.assert_close(fast(x), model(x))


def test_other_arguments_are_refused_without_the_readable_check() -> None:
    def run(x: torch.Tensor, n: int, items: list[torch.Tensor]) -> torch.Tensor:
        return x * n + items[0]

    fast, x = bolide.compile(run, backend="eager", fullgraph=True, dynamic=False), torch.randn(2, 4)
    for n in (3, 4):
        for _ in range(3):
            fast(x, n, [x])
    first = checks_of("run")[0]
    assert readable_calls(first, lambda: fast(x, 4, [x])) == 0
    for other in (
        (x, 4, [x]),
        (x, 3.0, [x]),
        (x, True, [x]),
        (x, 3, [x, x]),
        (x, 3, (x,)),
        (torch.randn(4, 2).t(), 3, [x]),
    ):
        assert first.readable(*other) is None
        torch.testing.assert_close(fast(*other), run(*other))


def test_what_changes_without_being_read_becomes_a_habit() -> None:
    model, x = Stack(2), torch.randn(2, 4)
    fast = compiled(model)

    def step() -> None:
        model.layers[0].steps += 1
        torch.testing.assert_close(fast(x), model(x))

    for _ in range(8):
        step()
    check = only_check("Stack")
    found = layout()
    assert check.habits.dicts or (found is not None and not found.instance_versions)
    assert readable_calls(check, step) == 0
    model.layers[0].gain = 5.0
    torch.testing.assert_close(fast(x), model(x))


@dataclass
class Batch:
    x: torch.Tensor
    scale: float


def test_new_objects_in_each_call_are_checked_by_value() -> None:
    def function(batch: Batch, table: dict[str, torch.Tensor], items: Sequence[torch.Tensor]) -> torch.Tensor:
        return batch.x * batch.scale + table["b"] + items[0] + len(table)

    fast = compiled(function)

    def call() -> None:
        x = torch.randn(3)
        given = Batch(x, 2.0), {"a": x, "b": x + 1}, [x, x]
        torch.testing.assert_close(fast(*given), function(*given))

    for _ in range(12):
        call()
    check = only_check("function")
    assert readable_calls(check, call) == 0
    assert len(check.records) == 1
    x = torch.randn(3)
    torch.testing.assert_close(fast(Batch(x, 4.0), {"a": x, "b": x}, [x]), x * 4 + x + x + 2)


def test_layers_that_share_a_function_have_a_program_each() -> None:
    def run(layer: Layer, x: torch.Tensor) -> torch.Tensor:
        return layer.linear(x) * layer.gain

    layers, x = [Layer() for _ in range(12)], torch.randn(2, 4)
    fast = compiled(run)

    def step() -> None:
        for layer in layers:
            fast(layer, x)

    warm(step)
    check = only_check("run")
    assert len(check.records) == 12
    assert readable_calls(check, step) == 0


def test_models_are_not_kept_alive() -> None:
    def run(model: Stack, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    fast, x = compiled(run), torch.randn(2, 4)
    for _ in range(3):
        model = Stack(2)
        gone = weakref.ref(model.layers[0].linear.weight)
        for _ in range(3):
            fast(model, x)
        del model
        gc.collect()
        assert gone() is None


def test_the_readable_form_can_be_asked_for() -> None:
    with config.patch(enable_cpp_guard_manager=False):
        fast, x = compiled(lambda x: x + 1), torch.randn(3)
        warm(lambda: fast(x))
    assert not checks_of("<lambda>")[0].records


class Reads:
    """Its own code reads attributes, so guards must not."""

    def __init__(self) -> None:
        self.gain, self.shift = random.choice([2.0, 3.0]), torch.randn(3)

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


def test_attributes_of_instances_are_read_past_their_code_at_no_more_than_they_need() -> None:
    fast, x, holder = compiled(lambda x, holder: x * holder.gain + holder.shift), torch.randn(3), Reads()
    warm(lambda: fast(x, holder))
    check = only_check("<lambda>").readable
    assert check(x, holder) is not None
    held = check.__globals__.values()
    assert object.__getattribute__ in held and own_namespace not in held
    holder.gain += 1
    assert check(x, holder) is None
    assert torch.equal(fast(x, holder), x * holder.gain + holder.shift)


def test_states_of_the_thread_are_seen() -> None:
    fast, x = bolide.compile(lambda x: x * 2 + 1, backend="eager"), torch.randn(3, requires_grad=True)
    warm(lambda: fast(x))
    with torch.no_grad():
        assert not fast(x).requires_grad
    with torch.inference_mode():
        assert fast(x).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(x).dtype is torch.float32
    assert fast(x).requires_grad
    with bolide.disable():
        assert readable_calls(checks_of("<lambda>")[0], lambda: fast(x), 1) == 1
    with pytest.warns(BolideWarning, match="torch.func transform"):
        torch.testing.assert_close(torch.func.grad(lambda x: fast(x).sum())(x), torch.full((3,), 2.0))


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3, 4, 5), (1, 2, 1, 2, 1, 2), (0, 2)])
def test_tensors_of_any_dimension(shape: tuple[int, ...]) -> None:
    fast = compiled(lambda x: x + 1)
    warm(lambda: fast(torch.randn(shape)))
    check = checks_of("<lambda>")[0]
    assert readable_calls(check, lambda: fast(torch.randn(shape))) == 0
    for other in (torch.randn(*shape, 2), torch.randn(shape).double(), torch.randn(shape, requires_grad=True)):
        assert check.slow(other) is None
        torch.testing.assert_close(fast(other), other + 1)


def test_gradients_are_followed_though_new_in_each_step() -> None:
    weights = [nn.Parameter(torch.randn(3)) for _ in range(3)]

    def step() -> None:
        with torch.no_grad():
            for weight in weights:
                if weight.grad is not None:
                    weight.sub_(weight.grad * 0.5)

    fast = compiled(step)

    def train(sizes: tuple[float, ...] = (1.0, 2.0, 3.0)) -> None:
        for weight, size in zip(weights, sizes):
            weight.grad = torch.full((3,), size)
        before = [weight.detach().clone() for weight in weights]
        fast()
        for weight, size, old in zip(weights, sizes, before):
            torch.testing.assert_close(weight.detach(), old - size * 0.5)

    for _ in range(4):
        train()
    check = checks_of("step")[0]
    assert readable_calls(check, train) == 0
    weights[1].grad = None
    assert check.slow() is None
    before = weights[1].detach().clone()
    fast()
    assert weights[1].equal(before)
    weights[1].grad = weights[0].grad
    assert check.slow() is None
    train()


def test_memory_that_is_shared_is_seen() -> None:
    def write(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return bias + y

    fast, bias = compiled(write), nn.Parameter(torch.randn(4))
    for _ in range(4):
        fast(torch.randn(4), torch.randn(4), bias)
    check = checks_of("write")[0]
    assert readable_calls(check, lambda: fast(torch.randn(4), torch.randn(4), bias)) == 0
    x, empty = torch.randn(4), torch.empty(0)
    for a, b in ((x, x), (x, x.view(2, 2).view(4)), (bias.detach(), x), (x, bias.detach())):
        assert check.readable(a, b, bias) is None
        assert check.slow(a, b, bias) is None
        assert readable_calls(check, lambda: fast(torch.randn(4), torch.randn(4), bias)) == 0
    assert check.readable(empty, empty, bias) is None  # other sizes
    torch.testing.assert_close(fast(x, torch.ones(4), bias), bias + 1)


def test_memory_is_looked_at_only_of_what_is_a_tensor() -> None:
    def write(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    fast = bolide.compile(write, backend="eager", fullgraph=True, dynamic=True)
    for size in range(3, 8):
        fast(torch.randn(size), torch.randn(size + 1))
    check = only_check("write")
    x = torch.randn(3)
    for other in (5, "text", None, [1, 2], object(), torch.nn.Linear(1, 1), torch.ones(3).to_sparse(), x):
        assert check.readable(x, other) is None
        assert check.form(x, other) is check.slow(x, other) is None
    assert check.form(x, torch.randn(5)) is not None


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_data_is_compared_natively(dtype: torch.dtype) -> None:
    def read(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * sum(n.tolist())

    data = torch.randint(2, (8,)).to(dtype)
    fast, x = compiled(read), torch.randn(3)
    warm(lambda: fast(x, data))
    check = only_check("read")
    last = torch.cat([torch.zeros(3, dtype=dtype), data])[3:]  # somewhere in its storage
    assert readable_calls(check, lambda: check.form(x, data.clone())) == 0
    assert readable_calls(check, lambda: check.form(x, last)) == 0
    for place in (0, 7):
        for given in (data.clone(), last):
            given[place] = not given[place]
            assert check.readable(x, given) is None
            assert check.form(x, given) is check.slow(x, given) is None
            given[place] = data[place]
            assert check.form(x, given) is not None


def test_what_memory_held_before_misleads_nobody() -> None:
    """Fields of torch's that it has not written yet hold what was there: whether they look like pointers is luck."""
    found = {_autograd_offsets()}
    for number in range(60):
        sizes = [size for size in range(120, 300, 4) for _ in range(4)]
        junk = [bytearray(random.randbytes(size) if number % 3 else size) for size in sizes]
        del junk
        found.add(_autograd_offsets())
    assert len(found) == 1


def test_views_made_without_gradients_require_grad_as_their_base_does() -> None:
    chance = random.Random(int(os.environ.get("BOLIDE_TEST_SEED", "0")))

    def kept() -> torch.Tensor:
        leaf = torch.randn(3, 4, requires_grad=chance.random() < 0.5)
        base = chance.choice([leaf, leaf * 2, leaf.detach(), leaf.data])
        with torch.set_grad_enabled(chance.random() < 0.3):
            view = chance.choice(
                [lambda x: x[1], lambda x: x.t()[:, 0], lambda x: x.unbind()[2], lambda x: x.detach()[0]]
            )
            return view(base)  # type: ignore[no-any-return]

    fast = bolide.compile(lambda x: x * 2)
    views = [kept() for _ in range(12)]
    for _ in range(40):
        x = chance.choice(views)
        with torch.set_grad_enabled(chance.random() < 0.7):
            assert fast(x).requires_grad is (x * 2).requires_grad


def test_no_garbage_is_collected_while_compiling_or_recording() -> None:
    layer = torch.nn.Linear(4, 4)
    compiled: Any = bolide.compile(lambda x: layer(x).sin().sum())
    at_work: set[str] = set()

    def note(phase: str, info: dict[str, int]) -> None:
        frame = sys._getframe(1)
        while phase == "start" and frame.f_back is not None:
            at_work.add(str(frame.f_globals.get("__name__")))
            frame = frame.f_back

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(10, 2, 2)
    try:
        for _ in range(8):
            torch.testing.assert_close(compiled(x := torch.randn(3, 4)), layer(x).sin().sum())
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert "bolide.dynamo.entry.versions" in at_work
    assert not at_work & {"bolide.dynamo.entry.capture", "bolide.backends", "bolide.dynamo.native.pins"}
