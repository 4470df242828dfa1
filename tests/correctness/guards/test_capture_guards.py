"""What capture reads of the outside world is guarded: after any change the compiled function gives eager's new answer,
and without one it is not captured again."""

from __future__ import annotations

import copy
import functools
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends import mha
from torch.distributions import Distribution, Normal
from torch.nn.utils import parametrize

import bolide
from bolide.dynamo.entry.capture import capture
from bolide.support.errors import Unsupported

compiled = functools.partial(bolide.compile, backend="aot_eager", fullgraph=True)
SCALE = 2.0
TABLE: dict[str, Any] = {"a": 1.0, "rest": [1, 2]}


class Thing:
    default = 3.0
    kinds = ("x", "y")

    def __init__(self) -> None:
        self.value = 1.5
        self.items = [1.0, 2.0]
        self.inner = SimpleNamespace(weight=torch.ones(3), on=True)

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value

    @property
    def twice(self) -> float:
        return self.value * 2


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


CHANGES: dict[str, tuple[Callable[[torch.Tensor, Thing], Any], Callable[[Thing], Any]]] = {
    "attribute": (lambda x, t: x * t.value, lambda t: setattr(t, "value", 7.0)),
    "attribute type": (lambda x, t: x * t.value, lambda t: setattr(t, "value", 2)),
    "class attribute shadowed": (lambda x, t: x * t.default, lambda t: setattr(t, "default", 9.0)),
    "class attribute": (lambda x, t: x * Thing.default, lambda t: setattr(Thing, "default", 11.0)),
    "property": (lambda x, t: x * t.twice, lambda t: setattr(t, "value", 7.0)),
    "method of the class": (lambda x, t: t.method(x), lambda t: setattr(Thing, "method", lambda self, x: x - 1)),
    "list grown": (lambda x, t: x * sum(t.items), lambda t: t.items.append(4.0)),
    "list item": (lambda x, t: x * t.items[1], lambda t: t.items.__setitem__(1, 5.0)),
    "nested attribute": (lambda x, t: x if t.inner.on else -x, lambda t: setattr(t.inner, "on", False)),
    "object replaced": (
        lambda x, t: x * t.inner.weight,
        lambda t: setattr(t, "inner", SimpleNamespace(weight=torch.ones(3) * 4)),
    ),
    "tensor replaced": (lambda x, t: x * t.inner.weight, lambda t: setattr(t.inner, "weight", torch.full((3,), 5.0))),
    "tensor shape": (lambda x, t: x * t.inner.weight.shape[0], lambda t: setattr(t.inner, "weight", torch.ones(4))),
    "tensor becomes None": (
        lambda x, t: x if t.inner.weight is None else -x,
        lambda t: setattr(t.inner, "weight", None),
    ),
    "attribute appears": (lambda x, t: x if hasattr(t, "extra") else -x, lambda t: setattr(t, "extra", 1)),
    "attribute appears, getattr": (lambda x, t: x * getattr(t, "extra", 2.0), lambda t: setattr(t, "extra", 1.0)),
    "attribute appears in __dict__": (
        lambda x, t: x if "extra" in t.__dict__ else -x,
        lambda t: setattr(t, "extra", 1),
    ),
    "attribute goes": (lambda x, t: x * getattr(t, "value", 5.0), lambda t: delattr(t, "value")),
    "number of attributes": (lambda x, t: x * len(t.__dict__), lambda t: setattr(t, "another", 1)),
    "global number": (lambda x, t: x * SCALE, lambda t: set_global("SCALE", 3.0)),
    "global function": (lambda x, t: helper(x), lambda t: set_global("helper", lambda x: x - 1)),
    "global dict item": (lambda x, t: x * TABLE["a"], lambda t: TABLE.update(a=4.0)),
    "global dict key appears": (lambda x, t: x * TABLE.get("b", 2.0), lambda t: TABLE.update(b=4.0)),
    "global dict length": (lambda x, t: x * len(TABLE), lambda t: TABLE.update(c=4.0)),
    "global dict order": (lambda x, t: x if next(iter(TABLE)) == "a" else -x, lambda t: TABLE.update(a=TABLE.pop("a"))),
    "grad mode": (lambda x, t: x if torch.is_grad_enabled() else -x, lambda t: torch.set_grad_enabled(False)),
    "default dtype": (lambda x, t: torch.ones(3), lambda t: torch.set_default_dtype(torch.float64)),
}


@pytest.fixture(autouse=True)
def restore() -> Any:
    before, table = dict(globals()), dict(TABLE)
    attributes = dict(vars(Thing))
    yield
    globals().update(before)
    TABLE.clear()
    TABLE.update(table)
    for name in ("default", "method"):
        setattr(Thing, name, attributes[name])
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    function, change = CHANGES[name]
    thing, x = Thing(), torch.randn(3)
    fast = compiled(function)
    torch.testing.assert_close(fast(x, thing), function(x, thing))
    torch.testing.assert_close(fast(x, thing), function(x, thing))
    change(thing)
    torch.testing.assert_close(fast(x, thing), function(x, thing))


def test_closures_are_guarded() -> None:
    factor = 2.0

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    fast, x = compiled(function), torch.randn(3)
    torch.testing.assert_close(fast(x), x * 2)
    factor = 3.0
    torch.testing.assert_close(fast(x), x * 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Dropout(0.0))])
        self.norm = nn.BatchNorm1d(3)
        self.table = {"gain": 2.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) * self.table["gain"] + (1 if self.training else 0)


MODULE_CHANGES: dict[str, Callable[[Net], Any]] = {
    "eval": lambda m: m.eval(),
    "inner eval": lambda m: m.norm.eval(),
    "weight written": lambda m: m.layers[0].weight.data.mul_(2),
    "weight replaced": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.ones(3, 3))),
    "bias removed": lambda m: setattr(m.layers[0], "bias", None),
    "layer replaced": lambda m: m.layers.__setitem__(0, nn.Linear(3, 3, bias=False)),
    "layer added": lambda m: m.layers.append(nn.ReLU()),
    "forward hook": lambda m: m.layers[1].register_forward_hook(lambda mod, args, out: out + 1),
    "forward pre-hook": lambda m: m.norm.register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
    "global hook": lambda m: nn.modules.module.register_module_forward_hook(lambda mod, args, out: out * 1.5),
    "forward replaced": lambda m: setattr(m.layers[0], "forward", lambda x: x - 1),
    "dict": lambda m: m.table.update(gain=5.0),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
    "frozen": lambda m: m.layers[0].weight.requires_grad_(False),
    "bfloat16 weights and input": lambda m: m.double(),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_a_change_of_a_module_is_seen(name: str) -> None:
    plain = Net()
    x = torch.randn(4, 3)
    fast = compiled(plain)
    fast(x)
    result = MODULE_CHANGES[name](plain)
    if name.startswith("bfloat16"):
        x = x.double()
    try:
        state = {key: value.clone() for key, value in plain.state_dict().items()}
        expected = plain(x)
        plain.load_state_dict(state)
        torch.testing.assert_close(fast(x), expected)
        assert fast(x).requires_grad == expected.requires_grad
    finally:
        if hasattr(result, "remove"):
            result.remove()


def test_tied_weights_are_one_input_and_untying_is_seen() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    assert len(capture(model.__call__, (torch.ones(2, 3),), {}).inputs) == 4  # x, one weight, two biases
    fast, x = compiled(model), torch.randn(2, 3)
    torch.testing.assert_close(fast(x), model(x))
    second.weight = nn.Parameter(torch.randn(3, 3))
    torch.testing.assert_close(fast(x), model(x))


def test_writes_are_seen_through_every_name_of_an_object() -> None:
    def lists(x: torch.Tensor, first: list[int], second: list[int]) -> torch.Tensor:
        first.append(1)
        return x * len(second)

    def objects(x: torch.Tensor, first: Thing, second: Thing) -> torch.Tensor:
        first.value = 8.0
        return x * second.value

    x = torch.randn(3)
    for function, make in ((lists, lambda: [1]), (objects, Thing)):
        fast, shared = compiled(function), make()
        torch.testing.assert_close(fast(x, make(), make()), function(x, make(), make()))
        again = make()
        torch.testing.assert_close(fast(x, shared, shared), function(x, again, again))


def test_unread_state_is_not_guarded() -> None:
    thing = Thing()
    guards = capture(lambda x, t: x * t.value, (torch.ones(3), thing), {}).guards
    # global state, the tensor, the class of t, how it reads attributes, that it has no `value` itself, t.value, the
    # function's code and defaults, the two methods of tensors behind the operator
    assert len(guards) <= 11


def test_nothing_outside_is_changed_by_capture() -> None:
    def function(x: torch.Tensor, thing: Thing, items: list[int]) -> torch.Tensor:
        global SCALE
        thing.value = 9.0
        thing.new = x
        items.append(1)
        TABLE["q"] = 1
        SCALE = 5.0
        x.add_(1)
        raise ValueError("at the end")

    thing, items, x = Thing(), [0], torch.zeros(3)
    with pytest.raises(Unsupported, match="at the end"):
        capture(function, (x, thing, items), {})
    assert thing.value == 1.5 and not hasattr(thing, "new") and items == [0] and "q" not in TABLE and SCALE == 2.0
    assert x.eq(0).all()


def test_global_modes_are_put_back_when_capture_stops() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            time.time()
        return x

    with pytest.raises(Unsupported):
        capture(function, (torch.ones(3),), {}, breaks=False)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: print(x), "print"),
        (lambda x: x * 2 if x.item() > 0 else x.item(), "data of a tensor"),
        (lambda x: x if x.sum() > 0 else [-x], "data of a tensor"),
        (lambda x: [x, -x][random.randrange(2)], "differs from call to call"),
        (lambda x: time.time() * x, "differs from call to call"),
        (lambda x: x.data_ptr(), "data_ptr"),
        (lambda x: x.set_(x), "set_"),
        (lambda x: eval(memoryview(b"x + 1")), "eval"),
    ],
)
def test_what_is_not_captured_says_where_and_why(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(Unsupported) as raised:
        capture(function, (torch.ones(()),), {}, breaks=False)
    assert reason in str(raised.value)
    assert raised.value.where is not None and raised.value.where.file == __file__


def test_an_argument_that_is_written_to_may_not_share_memory_with_a_parameter() -> None:
    layer = torch.nn.Linear(3, 3)

    def program(m, x, y):
        x.add_(y)
        return m(y) + x

    compiled = bolide.compile(program)
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with torch.no_grad():
        for shared in (x, layer.weight.detach()):
            before, weight = shared.clone(), layer.weight.detach().clone()
            got = compiled(layer, shared, y)
            changed = before + y
            used = changed if shared is not x else weight
            torch.testing.assert_close(got, torch.nn.functional.linear(y, used, layer.bias) + changed)
            torch.testing.assert_close(shared, changed)


FLAGS: dict[str, tuple[Callable[[Any], object], Callable[[], object], tuple[object, ...]]] = {
    "fast path of attention": (mha.set_fastpath_enabled, mha.get_fastpath_enabled, (False, True)),
    "swapped parameters": (
        torch.__future__.set_swap_module_params_on_conversion,
        torch.__future__.get_swap_module_params_on_conversion,
        (True, False),
    ),
    "overwritten parameters": (
        torch.__future__.set_overwrite_module_params_on_conversion,
        torch.__future__.get_overwrite_module_params_on_conversion,
        (True, False),
    ),
    "the global behind a flag": (
        torch.__future__.set_swap_module_params_on_conversion,
        lambda: torch.__future__._swap_module_params_on_conversion,
        (True, False),
    ),
    "sharing": (
        torch.multiprocessing.set_sharing_strategy,
        lambda: torch.multiprocessing._sharing_strategy,
        ("file_system", "file_descriptor"),
    ),
    "warnings": (torch.set_warn_always, torch.is_warn_always_enabled, (True, False)),
    "checks of arguments": (
        Distribution.set_default_validate_args,
        lambda: Distribution._validate_args,
        (False, True),
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_state_that_a_library_assigns_is_no_constant(name: str) -> None:
    """What a setter of torch's changes between two calls is seen by the second one."""
    put, get, values = FLAGS[name]
    before = get()
    compiled = bolide.compile(lambda x: (x + 1, get()))
    try:
        for value in (*values, *values):
            put(value)
            assert compiled(torch.zeros(2))[1] == get() == value
    finally:
        put(before)


def test_checks_of_distributions_are_switched_off() -> None:
    """What `set_default_validate_args` says holds for the next call."""
    compiled = bolide.compile(lambda x: Normal(x, x).log_prob(x), backend="eager")
    before = Distribution._validate_args
    try:
        Distribution.set_default_validate_args(True)
        with pytest.raises(ValueError, match="scale"):
            compiled(-torch.rand(3))
        Distribution.set_default_validate_args(False)
        assert compiled(-torch.rand(3)).isnan().all()
        Distribution.set_default_validate_args(True)
        with pytest.raises(ValueError, match="scale"):
            compiled(-torch.rand(3))
    finally:
        Distribution.set_default_validate_args(before)


class Counting(nn.Module):
    """A parametrization that tells how often it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return weight * self.count


def test_parametrized_weights_that_are_cached_for_a_while() -> None:
    """`parametrize.cached` around compiled calls, and inside one: computed as often as in eager."""
    module = parametrize.register_parametrization(nn.Linear(3, 3), "weight", Counting())
    copied = copy.deepcopy(module)
    compiled = bolide.compile(copied)

    def run(call: Callable[[torch.Tensor], torch.Tensor], weights: nn.Module, x: torch.Tensor) -> object:
        with parametrize.cached():
            found = [call(x), call(x * 2), call(x[:1])]
        return [*found, call(x), weights.parametrizations.weight[0].count.clone()]  # type: ignore[index, union-attr]

    def inside(x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            return copied(x) + copied(x * 2)

    def plain(x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            return module(x) + module(x * 2)

    for size in (2, 4, 3):
        x = torch.randn(size, 3)
        torch.testing.assert_close(run(compiled, copied, x), run(module, module, x))
        torch.testing.assert_close(bolide.compile(inside)(x), plain(x))
