"""Branches and loops as steps of a plan: at every level, in both drivers, with sizes that change and gradients."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import while_loop

import bolide
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.lowering import lower
from bolide.inductor.plan import Branch, Free, Plan, Ref, Repeat, all_steps
from bolide.inductor.plan.codec import decode, digest, encode
from bolide.inductor.plan.interpret import interpret
from bolide.inductor.plan.parse import BadText, parse
from bolide.inductor.plan.verify import InvalidPlan, verify
from bolide.inductor.runtime.native.linking import Program
from bolide.support import events
from tests.plan_tools import check_plan, has_foreign, native_programs, plans, plans_of

R = torch.randn


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Graphs have a native driver from their second call: the programs that are made."""
    with native_programs() as made:
        yield made


# ---- programs --------------------------------------------------------------------------------------------------------


def chosen(x, y):
    z = x * 2 + y
    if z.sum() > 0:
        z = (z.sin() @ y.t()).relu() @ y
    return z + 1


def nested(x, y):
    table = torch.tensor([1.0, -2.0, 0.5])
    return torch.cond(
        x.sum() > 0,
        lambda x, y: torch.cond(y.mean() > 0, lambda x, y: x.sin() * y, lambda x, y: (x - y).tanh() * 3, (x, y)),
        lambda x, y: F.softmax(x, -1) * table[1] + torch.tensor([0.5, 2.0])[1] * y,
        (x, y),
    )


def looped(x, y):
    def more(i, a, b):
        return i < 7

    def step(i, a, b):
        return i + 1, (b * 0.5).sin() + y.mean(), a.clone() - x

    return while_loop(more, step, (torch.zeros((), dtype=torch.int64), x.sin(), y))


def until(x, y):
    """How often, data say: never, where the sum is large."""
    return while_loop(lambda a: a.sum() < 3, lambda a: (a + y.abs() / 8 + 0.1,), (x,))[0]


def loop_with_a_branch(x, y):
    def step(i, a):
        return i + 1, torch.cond(a.sum() > 0, lambda a: a.cos() - 0.4, lambda a: (a * a).cumsum(-1) / 4, (a,))

    return while_loop(lambda i, a: i < 6, step, (torch.zeros((), dtype=torch.int64), x))[1] * y


PROGRAMS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (chosen, nested, looped, until, loop_with_a_branch)
}
LOOPS = {"looped", "until", "loop_with_a_branch"}


def given(rows: int) -> list[torch.Tensor]:
    return [R(rows, 4) + random.choice((-0.7, 0.7)), R(rows, 4) + random.choice((-0.7, 0.7))]


def leaves(values: Any) -> list[torch.Tensor]:
    return list(torch.utils._pytree.tree_leaves(values))


def with_gradients(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a function, and the gradients of its inputs."""
    own = [tensor.clone().requires_grad_() for tensor in inputs]
    results = leaves(function(*own))
    loss = sum([(result * result).sum() for result in results], torch.zeros(()))
    gradients = torch.autograd.grad(loss, own, allow_unused=True)
    return [*results, *[torch.zeros(()) if gradient is None else gradient for gradient in gradients]]


def same(mine: Any, theirs: Any) -> None:
    for one, other in zip(leaves(mine), leaves(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_level_agrees_with_eager(name: str, dynamic: bool) -> None:
    function, inputs = PROGRAMS[name], given(5)
    graphs: list[Any] = []

    def note(event: object) -> None:
        if isinstance(event, events.Graph):
            graphs.append(event.graph)

    with plans() as found, events.subscribed(note):
        compiled = bolide.compile(function, fullgraph=True, dynamic=dynamic)
        same(compiled(*inputs), function(*inputs))
    ((plan, binding), gm) = (found[0].plan, found[0].binding), graphs[0]
    assert any(isinstance(step, (Branch, Repeat)) for step in plan.steps), plan.text()
    check_plan(plan)
    read = decode(encode(plan), Plan)
    for rows in (5, 3, 6) if dynamic else (5, 5):
        inputs = given(rows)
        named = {"x": inputs[0], "y": inputs[1]}
        sizes = {slot.name: size for slot, size in zip(plan.inputs[2:], (rows, 4))}
        call = [{**named, **sizes}[slot.name] for slot in plan.inputs]
        expected = leaves(function(*inputs))
        same(interpret(read, call, binding.constants), expected)
        constants: dict[str, torch.Tensor] = {}
        program = lower(gm, (), constants)
        tensors = [{**named, **constants}[source.name] for source in program.inputs]
        same(evaluate(program, tensors, sizes), expected)
        same(compiled(*inputs), expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_native_driver_goes_the_same_ways(programs: list[Program], name: str, dynamic: bool) -> None:
    function = PROGRAMS[name]
    compiled = bolide.compile(function, fullgraph=name not in LOOPS, dynamic=dynamic)
    for rows in [random.choice((2, 3, 5)) if dynamic else 3 for _ in range(12)]:
        inputs = given(rows)
        same(compiled(*inputs), function(*inputs))
        if name not in LOOPS:
            same(with_gradients(compiled, inputs), with_gradients(function, inputs))
    assert sum(program.runs for program in programs) >= 8


def test_plans_of_gradients_leave_the_process() -> None:
    with plans() as found:
        with_gradients(bolide.compile(nested, fullgraph=True), given(4))
    assert {graph.name.split("_")[0] for graph in found} == {"forward", "backward"}
    for graph in found:
        assert not has_foreign(graph.plan)
        assert any(isinstance(step, Branch) for step in graph.plan.steps)
        assert digest(decode(encode(graph.plan), Plan)) == digest(graph.plan)


def test_ways_are_scheduled_as_graphs_are() -> None:
    (graph,) = plans_of(
        lambda x, y: torch.cond(x.sum() > 0, lambda x: (x.sin() * 2 + 1).sum(-1), lambda x: x[:, 0] + 0, (x,)),
        *given(5),
    )
    (branch,) = [step for step in graph.plan.steps if isinstance(step, Branch)]
    assert [type(step).__name__ for step in branch.then.steps] == ["Alloc", "Launch"], graph.plan.text()


# ---- what runs -------------------------------------------------------------------------------------------------------


def test_only_the_way_that_is_taken_runs(programs: list[Program]) -> None:
    def program(x, i):
        return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x.flip(0), (x, i))

    compiled = bolide.compile(program, fullgraph=True)
    good, bad = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 9])
    for _ in range(4):
        x = R(3).abs()
        same(compiled(x, good), x[good])
        same(compiled(-x, bad), (-x).flip(0))
        with pytest.raises(IndexError):
            compiled(x, bad)
        same(compiled(x, good), x[good])
    assert sum(program.runs for program in programs) >= 8


def test_a_loop_that_does_not_run_gives_copies(programs: list[Program]) -> None:
    compiled = bolide.compile(until, fullgraph=True)
    for _ in range(5):
        x = R(4, 4).abs() + 3
        result = compiled(x, x)
        assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()
        result += 1
        assert not torch.equal(result, x)
    assert programs


def test_a_loop_gives_back_its_memory(programs: list[Program]) -> None:
    def program(x):
        step = lambda i, a: (i + 1, a.roll(1, 0) * 0.5 + a)  # noqa: E731
        return while_loop(lambda i, a: i < 60, step, (torch.zeros((), dtype=torch.int64), x))[1]

    compiled, x = bolide.compile(program, fullgraph=True), R(1 << 20)
    for _ in range(2):
        compiled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        compiled(x)
    assert programs[0].runs >= 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120 << 10  # a leak: 960 MiB


def test_a_loop_can_be_interrupted(programs: list[Program]) -> None:
    def fn(x: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda a: (a < end).all(), lambda a: (a + x,), (x,))[0]

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    compiled = bolide.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3), torch.tensor(7.0)), torch.full((3,), 7.0))
    runs = programs[0].runs
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            compiled(torch.zeros(3), torch.tensor(7.0))  # without an end
    finally:
        signal.signal(signal.SIGALRM, before)
    assert programs[0].runs == runs + 1
    torch.testing.assert_close(compiled(torch.ones(3), torch.tensor(4.0)), torch.full((3,), 4.0))


def test_random_numbers_in_a_way_are_those_of_its_backward(programs: list[Program]) -> None:
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: F.dropout(x.sin(), 0.5), lambda x: F.dropout(x * 3, 0.3), (x,))

    compiled = bolide.compile(program, fullgraph=True)
    for _ in range(5):
        x = (R(40) + random.choice((-1, 1))).requires_grad_()
        y = compiled(x)
        slope = (2 * x.cos() if x.sum() > 0 else x * 0 + 3 / 0.7) * (y != 0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, slope)


# ---- what is wrong is said -------------------------------------------------------------------------------------------


def _parts() -> tuple[Plan, int, Branch]:
    (graph,) = plans_of(nested, *given(5))
    place = next(place for place, step in enumerate(graph.plan.steps) if isinstance(step, Branch))
    step = graph.plan.steps[place]
    assert isinstance(step, Branch)
    return graph.plan, place, step


def test_blocks_that_are_wrong_are_refused() -> None:
    plan, place, step = _parts()
    then = step.then
    name = next(given.name for given in then.inputs)
    wrong = {
        "tensors that it has made": replace(then, results=(Ref(name),)),
        "is given up, an input": replace(then, steps=(*then.steps, Free((name,)))),
        "arguments": replace(then, inputs=then.inputs[:-1]),
        "there is no tensor": replace(then, steps=()),
        "is not as": replace(then, inputs=(replace(then.inputs[0], type=plan.inputs[0].type), *then.inputs[1:])),
    }
    wide = plan.types()[next(ref.name for ref in step.arguments if isinstance(ref, Ref))]
    kind = replace(wide, dtype=torch.float64)
    wrong["is not as"] = replace(then, inputs=(replace(then.inputs[0], type=kind), *then.inputs[1:]))
    for message, block in wrong.items():
        steps = (*plan.steps[:place], replace(step, then=block), *plan.steps[place + 1 :])
        with pytest.raises(InvalidPlan, match=message):
            verify(replace(plan, steps=steps))
    with pytest.raises(InvalidPlan, match="single bool"):
        verify(replace(plan, steps=(*plan.steps[:place], replace(step, flag="x"), *plan.steps[place + 1 :])))


def test_a_text_without_its_blocks_is_no_plan() -> None:
    plan, _, _ = _parts()
    lines = plan.text().splitlines()
    head = next(at for at, line in enumerate(lines) if line.strip().startswith("else("))
    with pytest.raises(BadText, match=f"line {head + 1}"):
        parse("\n".join([*lines[:head], *lines[head + 1 :]]), plan.kernels)
    with pytest.raises(BadText, match="ends with"):
        parse("\n".join(lines[:-1]), plan.kernels)


def test_names_of_blocks_are_not_in_the_hash() -> None:
    (one,), (other,) = plans_of(nested, *given(5)), plans_of(lambda a, b: nested(a, b), *given(5))
    assert digest(one.plan) == digest(other.plan)
    steps = [step for step in all_steps(one.plan.steps) if isinstance(step, Branch)]
    assert len(steps) == 2
    turned = replace(steps[0], then=steps[0].otherwise, otherwise=steps[0].then)
    plan = replace(one.plan, steps=tuple([turned if step is steps[0] else step for step in one.plan.steps]))
    assert digest(plan) != digest(one.plan)
