"""What a plan does without Python: checks of indices and of conditions, words, seeds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor.plan import Call, Check, Copy, Free, Item, Launch, Require, Reuse, Size, Word
from bolide.inductor.schedule.calls.checks import _clipped, _wrapped
from bolide.symbolic import Cond, Expr
from bolide.tracing.rng import draw_seed
from tests.plan_tools import check_plan, plans, plans_of

R = torch.randn


def embedded(x, i):
    y = F.embedding(i, x).sum(0)
    return y + x[i].mean(0) + x.gather(0, i[:, None].expand(-1, x.shape[1])).amax(0)


def written(x, i):
    x[i] = x[i] * 2
    x.index_add_(0, i, torch.ones(len(i), x.shape[1]))
    return x.sum()


def dropped(x, i):
    return F.dropout(x, 0.5) + torch.rand_like(x).index_select(0, i).sum()


def sliced(x, i):
    k = i[0].item()
    return x[:k].sum() + x[k].sum() + x[-k:].mean()


PROGRAMS = (embedded, written, dropped, sliced)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_ordinary_graphs_call_no_operator_of_ours(program, dynamic: bool) -> None:
    given = R(5, 3), torch.tensor([2, 1, 4])
    with plans() as found, bolide.dynamo.config.patch(capture_scalar_outputs=True):
        bolide.compile(program, dynamic=dynamic)(*given)
    assert found
    for graph in found:
        check_plan(graph.plan)
        calls = [str(step.operator) for step in graph.plan.steps if isinstance(step, Call)]
        assert not [call for call in calls if call.startswith("bolide")], graph.plan.text()


@pytest.mark.parametrize("program", [embedded, written], ids=lambda program: program.__name__)
@pytest.mark.parametrize("index", [[2, 5], [-6, 0], [1 << 40, 1]])
def test_an_index_that_is_out_of_range_is_eagers_error(program, index: list[int]) -> None:
    x = R(5, 3)
    theirs, mine = x.clone(), x.clone()
    i = torch.tensor(index)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        program(theirs, i)
    compiled = bolide.compile(program)
    for _ in range(2):
        with pytest.raises(expected.type) as error:
            compiled(mine, i)
        assert str(error.value) == str(expected.value)
        assert torch.equal(mine, x) == torch.equal(theirs, x)
    good = torch.tensor([0, 4])
    torch.testing.assert_close(compiled(x.clone(), good), program(x.clone(), good))


def test_indices_are_checked_behind_all_kernels_and_before_anything_is_written() -> None:
    (graph,) = plans_of(written, R(5, 3), torch.tensor([2, 1]))
    plan = graph.plan
    kinds = [type(step) for step in plan.steps]
    assert Check in kinds, plan.text()
    first, last = kinds.index(Check), len(kinds) - 1 - kinds[::-1].index(Check)
    assert set(kinds[first : last + 1]) <= {Check, Free}, plan.text()
    inputs, writes = {given.name for given in plan.inputs}, []
    for place, step in enumerate(plan.steps):
        if isinstance(step, Reuse) and step.base in inputs:
            inputs.add(step.name)
        written_names = {step.target} if isinstance(step, Copy) else set()
        if isinstance(step, Launch):
            params = zip(step.arguments, plan.kernels[step.kernel].params)
            written_names = {name for name, param in params if param.role != "in"}
        writes += [place] if written_names & inputs else []
    assert writes and last < min(writes), plan.text()


def test_an_operator_of_the_programs_waits_for_the_checks_before_it() -> None:
    seen: list[torch.Tensor] = []
    name = "plan_words::seen"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "CPU", lambda x: (seen.append(x), x.clone())[1])
    torch.library.register_fake(name, torch.empty_like)

    def program(x, i):
        return torch.ops.plan_words.seen(x * 2) + F.embedding(i, x).sum()

    def later(x, i):
        y = F.embedding(i, x).sum()
        return torch.ops.plan_words.seen(x * 2) + y

    x = R(4, 3)
    compiled = bolide.compile(later)
    compiled(x, torch.tensor([1]))
    seen.clear()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert not seen
    bolide.compile(program)(x, torch.tensor([1]))


# ---- words -----------------------------------------------------------------------------------------------------------


def _meant(index: int, size: int) -> int:
    return index + size if index < 0 else index


@pytest.mark.parametrize("constant", [False, True])
def test_indices_and_bounds_that_count_from_the_end(constant: bool) -> None:
    variable = Expr.var("i", None, None)
    for size in range(5):
        length = Expr.const(size) if constant else Expr.var("n", None, None)
        *required, word = _wrapped("w", variable, length)
        bound = _clipped(variable, length)
        for index in range(-9, 10):
            values = {"i": index, "n": size}
            holds = all(
                Cond(step.relation, step.expr).evaluate(values) for step in required if isinstance(step, Require)
            )
            assert holds == (-size <= index < size)
            if holds:
                assert isinstance(word, Word) and word.expr.evaluate(values) == _meant(index, size)
            assert bound.evaluate(values) == min(max(_meant(index, size), 0), size)


def test_sizes_and_items_are_steps() -> None:
    def program(x):
        k = x.argmax().item()
        return x[:k], x[x > 0].sum(), x.nonzero() * 2

    x = R(30)
    with (
        plans() as found,
        bolide.dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True),
    ):
        results = bolide.compile(program)(x)
    kinds = {type(step) for graph in found for step in graph.plan.steps}
    assert {Item, Launch, Size} <= kinds, [graph.plan.text() for graph in found]
    for result, expected in zip(results, program(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_a_program_draws_one_seed_as_before() -> None:
    def program(x):
        return F.dropout(x, 0.5) * torch.rand_like(x)

    compiled = bolide.compile(program)
    x = torch.ones(40)
    compiled(x)
    torch.manual_seed(3)
    first = compiled(x)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    draw_seed()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)
