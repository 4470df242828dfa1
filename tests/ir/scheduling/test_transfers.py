"""Copies between devices that the host does not wait for: which ones have to wait after all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from bolide.inductor.ir.loops import CPU, Kernel, Param
from bolide.inductor.plan import (
    Alloc,
    Block,
    Branch,
    Call,
    Copy,
    Free,
    Item,
    Launch,
    Ref,
    Reuse,
    Step,
    TensorInput,
    TensorResult,
    TensorType,
    View,
)
from bolide.inductor.plan.schemas import arguments_of, operator_of, refuse
from bolide.inductor.schedule.calls.transfers import settled
from bolide.symbolic import Expr

CUDA, FOUR = torch.device("cuda", 0), Expr.const(4)
HERE, THERE = (TensorType(torch.float32, device, (FOUR,), (Expr.const(1),)) for device in (CPU, CUDA))
KERNEL = Kernel("k", tuple([Param(name, torch.float32, name, FOUR) for name in ("in", "out")]), ())  # type: ignore[arg-type]


def copied(name: str, source: str, device: torch.device) -> Call:
    op = torch.ops.aten._to_copy.default
    arguments = arguments_of(op, (Ref(source),), {"device": device, "non_blocking": True}, refuse)
    return Call(operator_of(op), arguments, (TensorResult(name, HERE if device == CPU else THERE),))


def doubled(name: str, source: str) -> Call:
    op = torch.ops.aten.add.Tensor
    return Call(operator_of(op), arguments_of(op, (Ref(source), Ref(source)), {}, refuse), (TensorResult(name, HERE),))


TO, FROM = copied("y", "x", CUDA), copied("z", "g", CPU)
BRANCH = Branch("f", (Ref("x"),), Block((), (), ()), Block((), (), ()), ())


@pytest.mark.parametrize(
    "steps, waits",
    [
        ([TO, Alloc("b", HERE), Launch(0, ("x", "b"), ())], False),  # is read
        ([TO, Launch(0, ("w", "x"), ())], True),
        ([TO, View("v", "x", HERE, Expr.const(0)), Launch(0, ("w", "v"), ())], True),
        ([TO, Reuse("r", "x"), Launch(0, ("w", "r"), ())], True),
        ([Launch(0, ("w", "x"), ()), TO, doubled("b", "x"), Free(("x",))], False),
        ([TO, Copy("x", "w")], True),
        ([TO, Copy("w", "x")], False),
        ([TO, BRANCH], True),
        ([FROM, Free(("g",))], False),
        ([FROM, Launch(0, ("z", "w"), ())], True),
        ([FROM, View("v", "z", HERE, Expr.const(0))], False),
        ([FROM, doubled("b", "z")], True),
        ([FROM, Item("n", "z")], True),
        ([FROM, doubled("b", "w")], False),
    ],
)
def test_what_waits(steps: Sequence[Step], waits: bool) -> None:
    given = [TensorInput(name, HERE) for name in ("x", "w")] + [TensorInput("g", THERE)]
    block = settled(Block(tuple(given), tuple(steps), ()), (), (KERNEL,))
    (copy,) = [step for step in block.steps if isinstance(step, Call) and step.operator == TO.operator]
    assert copy.arguments[-2] is not waits
    assert [type(step) for step in block.steps] == [*map(type, steps)]


def test_all_wait_in_blocks() -> None:
    inner = Block((TensorInput("x", HERE),), (TO,), (Ref("y"),))
    branch = Branch("f", (Ref("x"),), inner, inner, (TensorResult("y", THERE),))
    (changed,) = settled(Block((TensorInput("x", HERE),), (branch,), ()), (), ()).steps
    assert isinstance(changed, Branch)
    for part in (changed.then, changed.otherwise):
        assert isinstance(part.steps[0], Call) and part.steps[0].arguments[-2] is False
