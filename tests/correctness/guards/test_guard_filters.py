"""Guards that are left out: by options, and by a function of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import _all
from bolide.dynamo.guards.filters import GuardFilterEntry

SCALE = 2.0


@pytest.fixture(autouse=True)
def fresh() -> Any:
    bolide.reset()
    yield
    globals()["SCALE"] = 2.0


def guards_now() -> list[str]:
    return [line for versions in _all for entry in versions.entries for line in map(str, entry.guards)]


def entries() -> int:
    return sum(len(versions.entries) for versions in _all)


def test_a_filter_sees_every_guard_and_leaves_some_out() -> None:
    seen: list[GuardFilterEntry] = []

    def keep(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        seen.extend(guards)
        return [not (guard.is_global and guard.name == "SCALE") for guard in guards]

    fast = bolide.compile(lambda x: x * SCALE, backend="eager", options={"guard_filter_fn": keep})
    x = torch.randn(3)
    for _ in range(3):
        fast(x)
    globals()["SCALE"] = 3.0
    torch.testing.assert_close(fast(x), x * 2.0)
    assert entries() == 1
    (scale,) = [guard for guard in seen if guard.name == "SCALE"]
    assert scale.has_value and scale.value == 2.0 and scale.guard_type == "equals"
    assert {"tensor", "global_state"} <= {guard.guard_type for guard in seen}
    torch.testing.assert_close(fast(torch.ones(4)), torch.ones(4) * 3)


@pytest.mark.parametrize("answer", [[], [True], ["yes"] * 50])
def test_a_filter_has_to_answer_for_each_guard(answer: Any) -> None:
    fast = bolide.compile(lambda x: x * SCALE, backend="eager", options={"guard_filter_fn": lambda guards: answer})
    with pytest.raises(Exception, match="truth values, one for each guard"):
        fast(torch.randn(3))


def test_a_filter_has_to_be_a_function() -> None:
    with pytest.raises(TypeError, match="guard_filter_fn must be a function"):
        bolide.compile(lambda x: x, options={"guard_filter_fn": 3})


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.gain = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.gain


def test_modules_can_be_taken_as_unchanging() -> None:
    x = torch.randn(2, 3)
    with config.patch(guard_nn_modules=False):
        model = Model()
        fast = bolide.compile(model, backend="eager")
        fast(x)
    assert not [line for line in guards_now() if "gain" in line]
    before = model(x)
    model.gain = 5.0
    torch.testing.assert_close(fast(x), before)
    torch.testing.assert_close(fast(torch.cat([x, x])), model(torch.cat([x, x])))


def test_hooks_can_go_unnoticed() -> None:
    x = torch.randn(2, 3)
    with config.patch(skip_nnmodule_hook_guards=True):
        model = Model()
        fast = bolide.compile(model, backend="eager")
        fast(x)
    before = model(x)
    handle = model.linear.register_forward_hook(lambda module, args, out: out * 0)
    torch.testing.assert_close(fast(x), before)
    handle.remove()
    model.gain = 3.0
    torch.testing.assert_close(fast(x), model(x))


class Twice(nn.Module):
    """With an attribute that is guarded."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 2.0
        self.layer = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.times * SCALE


@pytest.mark.parametrize(
    ("keep", "unseen"),
    [
        (bolide.keep_tensor_guards_unsafe, {"times", "p", "SCALE", "mode"}),
        (bolide.keep_portable_guards_unsafe, {"times", "p", "SCALE"}),
        (bolide.skip_guard_on_globals_unsafe, {"SCALE"}),
        (bolide.skip_guard_on_all_nn_modules_unsafe, {"times", "p"}),
        (bolide.skip_guard_on_inbuilt_nn_modules_unsafe, {"p"}),
        (bolide.skip_all_guards_unsafe, {"times", "p", "SCALE", "mode", "size"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_filters_for_users(keep: Any, unseen: set[str]) -> None:
    def changes(what: str) -> bool:
        """Whether a change of one thing is seen: another version is compiled."""
        bolide.reset()
        globals()["SCALE"] = 2.0
        module, x = Twice(), torch.ones(3)
        fast = bolide.compile(module, backend="eager", dynamic=False, options={"guard_filter_fn": keep})
        fast(x)
        if what == "times":
            module.times = 3.0
        elif what == "p":
            module.layer.p = 1.0
        elif what == "SCALE":
            globals()["SCALE"] = 5.0
        with torch.set_grad_enabled(what != "mode"):
            fast(torch.ones(4) if what == "size" else x)
        return entries() == 2

    assert {what for what in ("times", "p", "SCALE", "mode", "size") if not changes(what)} == unseen
