"""Plans as data: their text, check, oracle, bytes and hash."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor.ir.definitions import Program
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.lowering import lower
from bolide.inductor.plan import Alloc, Call, Copy, Foreign, Free, Launch, Plan, Ref, bound_words
from bolide.inductor.plan.codec import HEADING, CannotLeave, DamagedBytes, decode, digest, encode
from bolide.inductor.plan.interpret import interpret
from bolide.inductor.plan.parse import BadText, parse
from bolide.inductor.plan.verify import InvalidPlan, verify
from bolide.symbolic import Expr
from tests.plan_tools import check_plan, has_foreign, plans, plans_of
from tests.schedule_tools import compiled, graph_of

R = torch.randn


def attention(q, k, v):
    mask = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril()
    return (q @ k.t() / 3).masked_fill(~mask, -float("inf")).softmax(-1) @ v


def indexed(x, i):
    x[i] = x[i] * 2 + 1
    return F.embedding(i, x).sum(0), x.topk(2, 1).values


def counted(x):
    return x[x > 0] * 2, x.nonzero().float().mean()


def shapes(x, w):
    rows = x.reshape(-1, 2).unfold(0, 2, 1).split(3)
    return torch.cat([F.pad(row, (1, 2), value=1.5) for row in rows]), x.to(torch.float64).var(0) @ w


def convolved(x, w):
    return F.max_pool2d(F.conv2d(x, w, padding=1, stride=2).relu(), 2), F.interpolate(x, scale_factor=2.0)


PROGRAMS = {
    "gelu": (lambda x, w: F.gelu(x @ w + 1).sum(-1), lambda: (R(8, 1), R(1, 32))),
    "attention": (attention, lambda: (R(9, 4), R(9, 4), R(9, 5))),
    "indexed": (indexed, lambda: (R(7, 6), torch.tensor([1, 3]))),
    "shapes": (shapes, lambda: (R(6, 4), R(4, dtype=torch.float64))),
    "convolved": (convolved, lambda: (R(2, 3, 8, 8), R(4, 3, 3, 3))),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x) * 2j).sum(), lambda: (R(8),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*PROGRAMS, "counted"])
def test_plans_come_back_from_text_and_bytes(name: str, dynamic: bool) -> None:
    program, inputs = PROGRAMS[name] if name != "counted" else (counted, lambda: (R(5, 3),))
    found = plans_of(program, *inputs(), dynamic=dynamic)
    assert found
    for graph in found:
        check_plan(graph.plan)


def test_plans_of_training_come_back() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Flatten()
    )
    with plans() as found:
        bolide.compile(model)(R(2, 3, 6, 6)).square().sum().backward()
    assert {graph.name.split("_")[0] for graph in found} == {"forward", "backward"}
    for graph in found:
        check_plan(graph.plan)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oracle_agrees_with_the_driver(name: str) -> None:
    program, inputs = PROGRAMS[name]
    given = inputs()
    graph = compiled(program, given)
    mine = [tensor.clone() for tensor in given]
    theirs = [tensor.clone() for tensor in given]
    expected = graph([*theirs])
    results = interpret(graph.plan, mine, graph.binding.constants, graph.binding.objects)
    for result, wanted in zip((*results, *mine), (*expected, *theirs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
        assert not isinstance(wanted, torch.Tensor) or result.stride() == wanted.stride()


def test_a_size_that_a_call_gives_is_a_word() -> None:
    (graph,) = plans_of(counted, R(5, 3))
    words = [name for step in graph.plan.steps for name in bound_words(step)]
    assert words == ["u0", "u1"] and "i64[u0, 2] @(1, u0)" in graph.plan.text(), graph.plan.text()
    x = R(5, 3)
    for result, expected in zip(interpret(graph.plan, [x]), graph([x]), strict=True):
        torch.testing.assert_close(result, expected)


# ---- what is wrong is said -------------------------------------------------------------------------------------------


def _plan() -> Plan:
    return compiled(lambda x, w: F.gelu(x @ w + 1).sum(-1), (R(8, 1), R(1, 32))).plan


def _at(plan: Plan, kind: type) -> int:
    return next(place for place, step in enumerate(plan.steps) if isinstance(step, kind))


def _with(plan: Plan, place: int, *steps: object) -> Plan:
    return replace(plan, steps=(*plan.steps[:place], *steps, *plan.steps[place + 1 :]))


FAULTS = {
    "there is no tensor": lambda plan: _with(plan, _at(plan, Alloc)),
    "after it was freed": lambda plan: _with(plan, _at(plan, Free), plan.steps[_at(plan, Free)], plan.steps[0]),
    "defined twice": lambda plan: _with(plan, _at(plan, Alloc), *[plan.steps[_at(plan, Alloc)]] * 2),
    "takes 2 tensors": lambda plan: _with(
        plan, at := _at(plan, Launch), replace(plan.steps[at], arguments=plan.steps[at].arguments[:1])
    ),
    "has 256 elements": lambda plan: _with(
        plan, at := _at(plan, Launch), replace(plan.steps[at], arguments=plan.steps[at].arguments[:1] * 2)
    ),
    "is no Tensor": lambda plan: _with(
        plan, at := _at(plan, Call), replace(plan.steps[at], arguments=(Ref("given_x0"), "w"))
    ),
    "takes 2 arguments": lambda plan: _with(
        plan, at := _at(plan, Call), replace(plan.steps[at], arguments=(Ref("given_x0"),))
    ),
    "returns 1 values": lambda plan: _with(plan, at := _at(plan, Call), replace(plan.steps[at], results=())),
    "there is no operator": lambda plan: _with(
        plan,
        at := _at(plan, Call),
        replace(plan.steps[at], operator=replace(plan.steps[at].operator, name="aten::no_such")),
    ),
    "is not an input": lambda plan: _with(plan, at := _at(plan, Launch), plan.steps[at], Copy("b1_mm", "b1_mm")),
    "no value yet": lambda plan: replace(plan, results=(Expr.var("s7", None, None),)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_breaks_a_rule_is_refused(fault: str) -> None:
    plan = _plan()
    with pytest.raises(InvalidPlan, match=fault):
        verify(FAULTS[fault](plan))


def test_damaged_bytes_are_an_error() -> None:
    plan = _plan()
    data = encode(plan)
    for place in range(0, len(data), 7):
        with pytest.raises(DamagedBytes):
            decode(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :], Plan)
    for end in range(0, len(data), 97):
        with pytest.raises(DamagedBytes):
            decode(data[:end], Plan)
    with pytest.raises(DamagedBytes, match="no Kernel"):
        decode(data, Kernel)


def test_bytes_that_are_damaged_before_their_checksum_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in them: either they are read as another plan, or they are refused."""
    data = encode(_plan())
    content = data[len(HEADING) + 32 :]
    refused = 0
    for place in range(len(content)):
        for mask in (1, 0x10, 0xFF):
            changed = content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]
            try:
                decode(HEADING + hashlib.sha256(changed).digest() + changed, Plan)
            except DamagedBytes:
                refused += 1
    assert refused > len(content)


@pytest.mark.parametrize(
    "line", ["  b = reuse", "  launch k9(x)", "  y: f32[8] = alloc", "  aten.no.default(x)", "  b: "]
)
def test_a_line_that_is_none_of_a_plan_is_an_error(line: str) -> None:
    plan = _plan()
    lines = plan.text().splitlines()
    with pytest.raises(BadText, match="line 2"):
        parse("\n".join([lines[0], line, *lines[1:]]), plan.kernels)


# ---- what cannot leave -----------------------------------------------------------------------------------------------


def test_a_plan_with_objects_of_the_process_stays_in_it() -> None:
    class Doubled(torch.autograd.Function):
        """Its backward asks for data, so that it is called."""

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * len(str(grad.sum().item()))

    with plans() as graphs:
        bolide.compile(lambda x: Doubled.apply(x.sin()))(R(5).requires_grad_()).sum().backward()
    found = [graph for graph in graphs if has_foreign(graph.plan)]
    assert found
    for graph in found:
        with pytest.raises(CannotLeave, match=r"bolide.derivative.default is given an object .* at File"):
            encode(graph.plan)
        with pytest.raises(CannotLeave):
            digest(graph.plan)
        assert "foreign(0)" in graph.plan.text() and Foreign(0) in graph.plan.steps[_at(graph.plan, Call)].arguments


# ---- hash ------------------------------------------------------------------------------------------------------------

_SCRIPT = """
import torch, torch.nn.functional as F
from bolide.symbolic import Expr
from tests.schedule_tools import compiled
from bolide.inductor.plan.codec import digest
def program(x, w, i):
    return F.gelu(x @ w + 1).sum(-1), torch.cat([x, x[i]]).softmax(0), w.var(0)
print(digest(compiled(program, (torch.randn(8, 16), torch.randn(16, 32), torch.tensor([1, 2]))).plan))
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    def of(seed: str) -> str:
        env = {"PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, env=env
        ).stdout

    assert len({of("1"), of("2"), of("77")}) == 1


def test_the_hash_is_of_what_is_done_and_not_of_names() -> None:
    def first(x, w):
        return F.gelu(x @ w + 1).sum(-1)

    def second(left, right):
        product = left @ right
        return F.gelu(product + 1).sum(-1)

    def other(x, w):
        return F.gelu(x @ w + 2).sum(-1)

    (a,), (b,), (c,) = [plans_of(program, R(8, 1), R(1, 32)) for program in (first, second, other)]
    (d,) = plans_of(first, R(8, 16), R(16, 33))
    assert a.plan.text() != b.plan.text()
    assert digest(a.plan) == digest(b.plan)
    assert len({digest(graph.plan) for graph in (a, c, d)}) == 3


# ---- the other levels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_and_programs_come_back_from_bytes(name: str) -> None:
    program, inputs = PROGRAMS[name]
    gm, info = graph_of(program, inputs())
    lowered = lower(gm, info.visible_outputs)
    read = decode(encode(lowered), Program)
    assert read == lowered and digest(read) == digest(lowered)
    for kernel in compiled(program, inputs()).plan.kernels:
        assert decode(encode(kernel), Kernel) == kernel
