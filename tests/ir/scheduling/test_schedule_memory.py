"""Memory of a plan: results in the memory of operands that die, and an order of execution that needs less."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import bolide
from benchmarks import plain
from bolide.inductor.plan import Call, Free, Launch, Plan, Reuse, View, defined_names, used_names
from bolide.inductor.plan.steps import types_of
from bolide.support import events
from tests.plan_tools import plans
from tests.schedule_tools import check

R = torch.randn
LOOSE = {"rtol": 1e-4, "atol": 1e-5}


def reused(graph):
    return sum(isinstance(step, Reuse) for step in graph.plan.steps)


@pytest.mark.parametrize("rows, columns", [(37, 480), (1, 16001), (64, 1)])
def test_a_pointwise_result_takes_the_memory_of_the_product_it_reads(rows, columns):
    graph = check(lambda a, b: torch.sin(a @ b), R(rows, 20), R(20, columns), **LOOSE)
    assert reused(graph) == 1


def test_a_normalised_row_takes_the_memory_that_its_statistics_were_read_from():
    graph = check(lambda a, b: F.layer_norm(a @ b, (48,)), R(30, 20), R(20, 48), **LOOSE)
    assert reused(graph) == 1
    graph = check(lambda a, b: torch.softmax(a @ b, 1), R(30, 20), R(20, 48), **LOOSE)
    assert reused(graph) == 1


def taken(graph):
    """How many kernels' results are in the memory of a product, of another shape."""
    steps = graph.plan.steps
    products = {name for step in steps if isinstance(step, Call) for name in defined_names(step)}
    views = {step.name for step in steps if isinstance(step, View) and step.base in products}
    return len(views.intersection([name for step in steps if isinstance(step, Launch) for name in step.arguments]))


def test_a_result_of_another_shape_takes_the_memory_of_the_product_it_reads():
    def layers(x, w, v):
        return F.linear(F.gelu(F.linear(x, w)), v)

    given = R(5, 60, 32), R(128, 32) / 32, R(32, 128) / 128
    graph = check(layers, *given, **LOOSE)
    assert taken(graph) == 1 and most_bytes(graph.plan) < 2 * 4 * 5 * 60 * 128
    assert taken(check(lambda x, w, v: F.linear(F.layer_norm(F.linear(x, w), (128,)), v), *given, **LOOSE)) == 1


def test_so_does_one_whose_size_is_symbolic():
    def layers(x, w, v):
        return F.linear(F.gelu(F.linear(x, w)), v)

    compiled, (w, v) = bolide.compile(layers, dynamic=True), (R(128, 32) / 32, R(32, 128) / 128)
    with plans() as found:
        for length in (60, 40):
            x = R(5, length, 32)
            torch.testing.assert_close(compiled(x, w, v), layers(x, w, v), **LOOSE)
    assert [taken(graph) for graph in found] == [1]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.gelu(F.linear(x, w)),  # a result is in memory of its own
        lambda x, w: F.gelu(F.linear(x, w)).flatten(1),
        lambda x, w: (lambda y: (y[0] @ w, y.flatten(1)))(F.gelu(F.linear(x, w))),
        lambda x, w: (lambda p: F.gelu(p) + p.flip(0))(F.linear(x, w)) @ w,  # read at other places
    ],
)
def test_results_and_what_is_still_read_take_no_memory_of_another_shape(program):
    graph = check(program, R(5, 60, 128), R(128, 128) / 128, **LOOSE)
    assert taken(graph) == 0


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: (p := a @ b, torch.sin(p)),  # the operand is a result
        lambda a, b: torch.sin(p := a @ b).sum() + p.cos().max(1).values.sum() + (p.exp() @ a).sum(),  # read again
        lambda a, b: (lambda p: torch.sin(p) + p.t())(a @ b),  # read at other places
        lambda a, b: (lambda p: torch.sin(p).t().contiguous() * 2)(a @ b),  # another layout
        lambda a, b: (lambda p: torch.sin(p) + p.flip(0))(a @ b),
        lambda a, b: (lambda p: torch.sin(p).cumsum(0) - p.roll(1, 0))(a @ b),
        lambda a, b: (lambda p: p[:, torch.arange(23, -1, -1) * 0 + 3] + p)(a @ b),
        # a result of the first pass that the second one reads back, beside an operand that is read there first
        lambda a, b: (lambda t, q: (t, (t - t.sum(1, keepdim=True)) * q))((a @ b).sin().tanh(), b @ a),
    ],
)
def test_memory_that_is_still_read_is_not_taken(program):
    check(program, R(24, 24), R(24, 24), **LOOSE)


def test_an_input_is_never_overwritten():
    x = R(40, 40)
    before = x.clone()
    compiled = bolide.compile(lambda t: torch.sin(t) * 2)
    compiled(x)
    assert torch.equal(x, before)


def test_a_backward_can_run_twice_when_its_graph_is_retained():
    layer = torch.nn.Sequential(
        torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    )
    compiled = bolide.compile(layer)
    x = R(64, 32, requires_grad=True)
    out = compiled(x).square().sum()
    (first,) = torch.autograd.grad(out, x, retain_graph=True)
    (second,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_gradient_of_a_weight_comes_before_that_of_the_input():
    found = []

    def note(event):
        if isinstance(event, events.Compiled) and event.kind == "backward":
            found.append(event.artifact)

    layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 512))
    with events.subscribed(note):
        bolide.compile(layers)(R(128, 256)).sum().backward()
    reads = [" ".join(used_names(step)) for step in found[0].plan.steps if isinstance(step, Call)]
    activation = next(i for i, names in enumerate(reads) if "addmm" in names)
    weight = next(i for i, names in enumerate(reads) if "_1_weight" in names)
    assert activation < weight, reads


# ---- what lives how long --------------------------------------------------------------------------------------------


def most_bytes(plan: Plan) -> int:
    """The most that lives at one time, inputs included, in bytes."""
    types = types_of([*plan.inputs, *plan.constants], plan.steps)
    size = {name: math.prod(extent.value for extent in of.shape) * of.dtype.itemsize for name, of in types.items()}
    owner = {given.name: given.name for given in plan.inputs}
    names = {given.name: {given.name} for given in plan.inputs}
    most = 0
    for step in plan.steps:
        if isinstance(step, (View, Reuse)):
            owner[step.name] = owner[step.base]
        owner.update({name: name for name in defined_names(step) if name not in owner})
        for name in defined_names(step):
            names.setdefault(owner[name], set()).add(name)
        most = max(most, sum([size[name] for name, using in names.items() if using]))
        for name in step.names if isinstance(step, Free) else ():
            names[owner[name]].discard(name)
    return most


def trained(function, *inputs):
    """The plans of a forward and its backward, whose gradients are eager's."""
    found = []
    mine, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    with events.subscribed(lambda e: found.append(e.artifact) if isinstance(e, events.Compiled) else None):
        bolide.compile(function, dynamic=False)(*mine).sum().backward()
    function(*theirs).sum().backward()
    torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs], **LOOSE)
    return [graph.plan for graph in found]


def heat(u, diffusivity):
    for _ in range(8):
        p = F.pad(u, (1, 1, 1, 1))
        u = u + diffusivity * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4.0 * u)
    return u


def recurrent(x, w, b):
    h, c = torch.zeros(64, 16), torch.zeros(64, 16)
    for step in range(x.shape[1]):
        i, f, g, o = (x[:, step] + h @ w + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


def test_terms_of_a_sum_do_not_wait_for_the_last_one(seed: int) -> None:
    """One kernel for all of the sum would read two values for each of the eight steps."""
    torch.manual_seed(seed)
    _, backward = trained(heat, R(64, 64), R(64, 64))
    assert most_bytes(backward) < 15 * 64 * 64 * 4


def test_what_is_made_of_a_large_value_does_not_keep_it(seed: int) -> None:
    """Gates are computed again in the backward: either they or what they are made of lives on."""
    torch.manual_seed(seed)
    _, backward = trained(partial(recurrent, R(64, 16, 64)), R(16, 64) * 0.1, R(64))
    gates = 16 * 64 * 64 * 4
    assert most_bytes(backward) < 2.4 * gates


def test_what_frees_only_with_what_it_waits_for_does_not_wait_for_the_end(seed: int) -> None:
    """Critics judge two actions. What the engine computes last, the gradients of what they say of one, need not wait
    for those of the actor: then two of the critics' gradients and what they are made of live at the same time."""
    torch.manual_seed(seed)
    rows, hidden = 256, 256
    model = plain.SoftActorCritic(17, 6, hidden)
    given = [R(rows, width) for width in (17, 6, 6, 1, 17, 6)]
    found = []
    with events.subscribed(lambda e: found.append(e.artifact) if isinstance(e, events.Compiled) else None):
        bolide.compile(model, dynamic=False)(*given).backward()
    assert most_bytes(found[-1].plan) < 4 * (15.65 * rows * hidden)
