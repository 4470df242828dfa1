"""What classes, modules and functions hold is asked for all at once: each change is still seen, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import _all
from bolide.dynamo.guards.held import Held


class Base(nn.Module):
    scale = 2.0

    def gain(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Model(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.gain(x))


def helper(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
    return x + shift


def held_by(name: str) -> Held:
    (check,) = [entry.check for versions in _all if versions.name.endswith(name) for entry in versions.entries]
    (found,) = [value for value in check.readable.__globals__.values() if isinstance(value, Held)]
    return found


def another(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 5.0


def with_shift(x: torch.Tensor, shift: float = 3.0) -> torch.Tensor:
    return x - shift


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a method of the base": lambda patch: patch.setattr(Base, "gain", another),
    "a method in front of the base's": lambda patch: patch.setattr(Model, "gain", another, raising=False),
    "a plain value of the class": lambda patch: patch.setattr(Base, "scale", 7.0),
    "a plain value in front of it": lambda patch: patch.setattr(Model, "scale", 7.0, raising=False),
    "a plain value that becomes computed": lambda patch: patch.setattr(Base, "scale", property(lambda self: 7.0)),
    "a function of the module": lambda patch: patch.setitem(globals(), "helper", with_shift),
    "the code of a function": lambda patch: patch.setattr(helper, "__code__", with_shift.__code__),
    "the defaults of a function": lambda patch: patch.setattr(helper, "__defaults__", (9.0,)),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(change: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(), torch.randn(3, 4)
    with config.patch(enable_cpp_guard_manager=native):
        fast = bolide.compile(model, fullgraph=True)
        for _ in range(4):
            torch.testing.assert_close(fast(x), model(x))
        with monkeypatch.context() as patch:
            CHANGES[change](patch)
            for _ in range(4):
                torch.testing.assert_close(fast(x), model(x))
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("native", [True, False])
def test_other_bases_are_seen(native: bool) -> None:
    class Other(Base):
        gain = another

    model, x = Model(), torch.randn(3, 4)
    with config.patch(enable_cpp_guard_manager=native):
        fast = bolide.compile(model, fullgraph=True)
        for bases in ((Base,), (Other,), (Base,)):
            Model.__bases__ = bases
            for _ in range(4):
                torch.testing.assert_close(fast(x), model(x))


def test_what_is_asked_for_at_once_is_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Only(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return helper(self.gain(x))

    fast, x = bolide.compile(Only(), backend="eager", fullgraph=True), torch.randn(3)
    fast(x)
    held = held_by("Only")
    kinds = {guard.kind for guard in held.guards}
    assert {"class_attr", "is"} <= kinds and held()
    monkeypatch.setattr(Base, "scale", 3.0)  # a value that is guarded where it is read: only there
    assert held()
    monkeypatch.setattr(Base, "gain", another)
    assert not held()


def test_a_class_that_counts_its_instances_is_not_compiled_again() -> None:
    class Counted:
        made = 0

        def __init__(self) -> None:
            type(self).made += 1

    def run(x: torch.Tensor, item: Counted) -> torch.Tensor:
        return x + 1.0 if isinstance(item, Counted) else x

    fast, x = bolide.compile(run, fullgraph=True), torch.randn(3)
    with config.patch(error_on_recompile=True):
        for _ in range(4):
            torch.testing.assert_close(fast(x, Counted()), x + 1.0)
