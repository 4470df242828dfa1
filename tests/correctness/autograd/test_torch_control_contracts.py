"""Operators of control flow with trees, closures, views and effects: what they mean, with gradients, or a refusal."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch import cond
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import bolide

# ---- what they mean --------------------------------------------------------------------------------------------------


def stacked(trees):
    flat, specs = zip(*map(pytree.tree_flatten, trees))
    return pytree.tree_unflatten([torch.stack(leaves) for leaves in zip(*flat)], specs[0])


def slices_of(xs):
    flat, spec = pytree.tree_flatten(xs)
    return [pytree.tree_unflatten(leaves, spec) for leaves in zip(*[leaf.unbind() for leaf in flat])]


def plain_scan(step, carry, xs):
    made = []
    for item in slices_of(xs):
        carry, result = step(carry, item)
        made.append(result)
    return carry, stacked(made)


def plain_loop(goes_on, step, carried):
    result, spec = carried, pytree.tree_structure(carried)
    while goes_on(*carried):
        result = step(*carried)
        carried = pytree.tree_unflatten(pytree.tree_leaves(result), spec)
    return result


OPERATORS = types.SimpleNamespace(cond=cond, map=mapped, scan=scan, loop=while_loop)
MEANT = types.SimpleNamespace(
    cond=lambda pred, true, false, operands=(): true(*operands) if pred else false(*operands),
    map=lambda f, xs, *args: stacked([f(item, *args) for item in slices_of(xs)]),
    scan=plain_scan,
    loop=plain_loop,
)


def outcome(program, operators, given):
    """The results, how they are arranged, and the gradient, which is zero where there is none."""
    x = given.clone().requires_grad_()
    results, spec = pytree.tree_flatten(program(operators, x))
    torch.manual_seed(1)
    kept = [(result * torch.randn(result.shape)).sum() for result in results if result.requires_grad]
    gradient = torch.autograd.grad(sum(kept), x, allow_unused=True)[0] if kept else None
    return spec, results, torch.zeros_like(x) if gradient is None else gradient


def agree(program, inputs, **options):
    for dynamic in (None, True):
        compiled = bolide.compile(program, dynamic=dynamic, **options)
        for given in inputs:
            wanted, found = outcome(program, MEANT, given), outcome(compiled, OPERATORS, given)
            assert found[0] == wanted[0]
            for mine, theirs in zip(found[1], wanted[1], strict=True):
                torch.testing.assert_close(mine, theirs, check_stride=True)
            torch.testing.assert_close(found[2], wanted[2])
        bolide.reset()


def inputs_of_both_signs():
    return [(torch.rand(rows, 3) + 0.01) * sign for rows, sign in ((4, 1), (4, -1), (6, 1), (5, -1))]


def nested(o, x):
    def inside(v):
        return o.cond(v.max() > 0.5, lambda a: a * 2, lambda a: a * 3, (v,))

    return o.cond(x.sum() > 0, inside, lambda v: v - x.shape[0], (x,))


def in_a_loop(o, x):
    for step in range(3):
        x = o.cond(x.sum() > 0, lambda v, n=step: v - n, lambda v, n=step: v * 2 + n, (x,))
    return x


def computed_closure(o, x):
    y, number = x.exp(), x.shape[0] * 2
    return o.cond(x.sum() > 0, lambda v: v * y + number, lambda v: v - y * number, (x,)), y


def tree(o, x):
    given = {"a": x, "b": (x + 1, [x * 2])}
    return o.cond(
        x.sum() > 0,
        lambda d: {"r": d["a"] + d["b"][0], "q": [d["b"][1][0] * 2]},
        lambda d: {"r": d["a"] - d["b"][0], "q": [d["b"][1][0].exp()]},
        (given,),
    )


def written_inside(o, x):
    def way(v):
        own = torch.zeros_like(v)
        own.add_(v)
        own[0] = 2
        return own

    return o.cond(x.sum() > 0, way, torch.cos, (x,))


CONDITIONS = {
    "closure": lambda o, x: o.cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos()),
    "nested": nested,
    "in a loop": in_a_loop,
    "computed closure": computed_closure,
    "tree": tree,
    "written inside": written_inside,
    "several": lambda o, x: o.cond(x.sum() > 0, lambda v: (v.sin(), v.sum(0)), lambda v: (v.cos(), v[0] + 1), (x,)),
    "one operand twice": lambda o, x: o.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - 2 * b, (x, x)),
    "other memory order": lambda o, x: o.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 3, (x.t(),)),
    "sizes": lambda o, x: o.cond(
        x.sum() > 0, lambda v: v[: x.shape[0] - 1].sin(), lambda v: v[1 : x.shape[0]].cos(), (x,)
    ),
    "partial": lambda o, x: o.cond(
        x.sum() > 0, functools.partial(torch.mul, torch.tensor(2.0)), functools.partial(torch.add, 3), (x,)
    ),
    "integers": lambda o, x: o.cond(
        x.sum() > 0, lambda v: (v.sin(), v.long()), lambda v: (v.cos(), v.long() + 1), (x,)
    ),
    "one way without a gradient": lambda o, x: o.cond(x.sum() > 0, torch.sin, torch.ones_like, (x,)),
    "no way with a gradient": lambda o, x: o.cond(x.sum() > 0, lambda v: v.detach().sin(), torch.ones_like, (x,)),
    "known": lambda o, x: o.cond(x.shape[0] > 4, torch.sin, torch.cos, (x,)),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_on_data(name):
    agree(CONDITIONS[name], inputs_of_both_signs(), fullgraph=True)


def root(o, x):
    """The loop closes over a tensor that it also carries."""
    wanted = x.detach().abs() + 1

    def step(guess, _):
        better = 0.5 * (guess + wanted / guess)
        return better, (better - guess).abs()

    return o.loop(lambda guess, change: change.max() > 1e-3, step, (wanted, torch.ones_like(wanted)))


def loop_in_a_loop(o, x):
    def step(i, v):
        j, inner = o.loop(lambda j, w: j < i, lambda j, w: (j + 1, w * 0.9 + v), (torch.tensor(0), v))
        return i + 1, inner + j

    return o.loop(lambda i, v: i < 4, step, (torch.tensor(0), x.detach()))


LOOPS = {
    "loop over what it closes over": root,
    "loop in a loop": loop_in_a_loop,
    "loop over one tensor twice": lambda o, x: o.loop(
        lambda a, b: a.sum() < 30, lambda a, b: (a + 1, b * 2), (x.detach(), x.detach())
    ),
    "loop over one value twice": lambda o, x: (
        lambda v: o.loop(lambda a, b: a.sum() < 30, lambda a, b: (a + 1, b * 2), (v, v))
    )(x.detach()),
    "map over a tree": lambda o, x: o.map(
        lambda d, n: (d["a"].sin(), [[d["b"] * n]], {"z": d["a"] * d["b"]}), {"a": x, "b": x + 1}, x.shape[0]
    ),
    "map in a map": lambda o, x: o.map(lambda row: o.map(lambda item: item.sin(), row), x),
    "map with a condition": lambda o, x: o.map(lambda row: o.cond(row.sum() > 0.5, torch.sin, torch.cos, (row,)), x),
    "scan over a pair": lambda o, x: o.scan(
        lambda c, r: ({"a": c["a"] + r[0]}, {"y": c["a"] * r[1]}), {"a": torch.zeros(3)}, (x, x * 2)
    ),
    "loop over a tree": lambda o, x: o.loop(
        lambda d, v: d["i"] < 3,
        lambda d, v: ({"i": d["i"] + 1, "q": d["q"] * 2}, [v[0] + x]),
        ({"i": torch.tensor(0), "q": x.sin()}, [x.cos()]),
    ),
    "loop with one result": lambda o, x: o.loop(lambda v: v.abs().sum() < 30, lambda v: v * 2, (x,)),
    "loop in another order": lambda o, x: o.loop(
        lambda i, v: i < x.shape[0], lambda i, v: [i + 1, v * 2], (torch.tensor(0), x.detach().t())
    ),
    "loop with a condition": lambda o, x: o.loop(
        lambda i, v: i < 4,
        lambda i, v: (i + 1, o.cond(v.sum() > 1, lambda a: a * 0.5, lambda a: a + 1, (v,))),
        (torch.tensor(0), x.detach()),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    agree(LOOPS[name], inputs_of_both_signs()[::3])


def test_a_condition_for_each_of_a_batch_takes_both_ways():
    compiled = bolide.compile(
        lambda x: torch.vmap(lambda row: cond(row.sum() > 0, torch.sin, torch.cos, (row,)))(x), fullgraph=True
    )
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), torch.where(x.sum(1, keepdim=True) > 0, x.sin(), x.cos()))


def test_all_results_of_a_condition_have_a_history_if_an_operand_has_one():
    compiled = bolide.compile(lambda x, w: cond(x.sum() > 0, lambda: x * w.detach(), lambda: x + 1), fullgraph=True)
    x, w = torch.rand(3), torch.rand(3, requires_grad=True)
    for x in (torch.rand(3), -torch.rand(3)):
        assert torch.equal(torch.autograd.grad(compiled(x, w).sum(), w)[0], torch.zeros(3))


def test_a_way_may_begin_with_a_checkpoint():
    def program(x):
        again = functools.partial(checkpoint, use_reentrant=False)
        return cond(x.sum() > 0, lambda: again(torch.sin, x), lambda: again(torch.cos, x))

    compiled = bolide.compile(program, fullgraph=True)
    for sign in (1, -1):
        x = torch.rand(3) * sign
        torch.testing.assert_close(compiled(x), x.sin() if sign > 0 else x.cos())


def test_operands_may_come_from_outside():
    compiled = bolide.compile(
        lambda given: cond(given[0].sum() > 0, lambda a, b: a * b["b"], lambda a, b: b["b"] - a, given), fullgraph=True
    )
    for sign in (1, -1):
        a, b = torch.rand(3) * sign, torch.rand(3)
        for given in ([a, {"b": b}], (a, {"b": b})):
            torch.testing.assert_close(compiled(given), a * b if sign > 0 else b - a)


def test_a_loop_without_gradients_is_captured_also_where_they_are_on():
    def program(x):
        return while_loop(lambda i, v: v.sum() < 30, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))

    compiled = bolide.compile(program, fullgraph=True)
    for size in (3, 5):
        x = torch.rand(size) + 0.1
        count, value = compiled(x)
        torch.testing.assert_close(value, x * 2**count)
        assert value.sum() >= 30 > value.sum() / 2


# ---- what eager refuses ----------------------------------------------------------------------------------------------

KEPT = torch.ones(3)


def forbidden(kind):
    """A function of a tensor that operators of control flow refuse."""
    count, items, names = 0, [], {}

    def function(v):
        nonlocal count
        if kind == "counts":
            count += 1
        elif kind == "appends":
            items.append(v.sin())
        elif kind == "names":
            names.setdefault("a", []).append(1)
        elif kind == "writes its operand":
            v.add_(1)
        elif kind == "writes outside":
            KEPT.add_(1)
        elif kind == "prints":
            print("here")
        elif kind == "returns its operand":
            return v
        elif kind == "returns a view":
            return v.view(-1).view(v.shape)
        elif kind == "returns what is outside":
            return KEPT
        return v.sin()

    return function


KINDS = ["counts", "appends", "names", "writes its operand", "writes outside", "prints", "returns its operand"]
KINDS += ["returns a view", "returns what is outside"]
CALLS = {
    "cond": lambda f, x: cond(x.sum() > 0, f, torch.cos, (x[0],)),
    "map": lambda f, x: mapped(f, x),
    "scan": lambda f, x: scan(lambda c, v: (c + 1, f(v)), torch.zeros(3), x),
    "while_loop": lambda f, x: while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, f(v)), (torch.tensor(0), x[0])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operator", CALLS)
def test_functions_with_effects_are_refused_as_in_eager(operator, kind):
    def program(x):
        return CALLS[operator](forbidden(kind), x)

    before = KEPT.clone()
    x = torch.rand(3, 3)
    with pytest.raises(bolide.Unsupported):
        bolide.compile(program, fullgraph=True)(x)
    assert torch.equal(KEPT, before)


MISUSED = {
    "shapes": lambda x: cond(x.sum() > 0, lambda v: v.sum(0), lambda v: v + 1, (x,)),
    "trees": lambda x: cond(x.sum() > 0, lambda v: (v + 1, v + 2), lambda v: v + 1, (x,)),
    "types": lambda x: cond(x.sum() > 0, lambda v: v.double(), lambda v: v + 1, (x,)),
    "strides": lambda x: cond(x.sum() > 0, lambda v: v.t().contiguous().t(), lambda v: v + 1, (x,)),
    "overlapping operands": lambda x: cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x[:2], x[1:3])),
    "no tuple": lambda x: cond(x.sum() > 0, torch.sin, torch.cos, x),
    "several conditions": lambda x: cond(x.sum(0) > 0, torch.sin, torch.cos, (x,)),
    "map of nothing": lambda x: mapped(torch.sin, x[:0]),
    "map of lengths": lambda x: mapped(lambda pair: pair[0] + pair[1], (x, x[1:])),
    "map of a number": lambda x: mapped(lambda n: n, 3),
    "scan from a number": lambda x: scan(lambda c, v: (c + 1, v * c), 0, x),
    "scan from nothing": lambda x: scan(lambda c, v: (c, v * 2), [], x),
    "scan of other types": lambda x: scan(lambda c, v: ((c + v).double(), c * v), torch.zeros(3), x),
    "scan of other shapes": lambda x: scan(lambda c, v: ((c + v)[None], v * 2), torch.zeros(3), x),
    "scan over no dimension": lambda x: scan(lambda c, v: (c + v, c * v), torch.zeros(3), x, dim=-4),
    "loop of other shapes": lambda x: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, torch.cat([v, v])), (torch.tensor(0), x)
    ),
    "loop of other types": lambda x: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, v.int()), (torch.tensor(0), x)
    ),
    "loop of other strides": lambda x: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, (v * 2).contiguous()), (torch.tensor(0), x.t())
    ),
    "loop on a number": lambda x: while_loop(lambda i, v: 3 - i, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x)),
    "loop on several": lambda x: while_loop(lambda i, v: v > 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x)),
}


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_is_refused(name):
    with pytest.raises(bolide.Unsupported):
        bolide.compile(MISUSED[name], fullgraph=True)(torch.rand(4, 3))


@pytest.mark.parametrize("name", ["shapes", "scan from a number", "map of nothing", "loop on a number"])
def test_eager_says_what_it_refuses(name):
    x, texts = torch.rand(4, 3), []
    for program in (MISUSED[name], bolide.compile(MISUSED[name])):
        with pytest.raises(Exception) as error:
            program(x)
        texts.append((type(error.value), str(error.value).partition("\n")[0]))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("data", [False, True])
def test_a_condition_is_a_number_or_a_tensor(data):
    def program(pred, x):
        return cond(pred, lambda x: x + 1, lambda x: x - 1, (x,))

    def made(x, pred):
        return program(x.sum().item() > pred if data else x.size(0) > pred, x)

    for pred in ("a", "", None, [], (1,)):
        with pytest.raises(RuntimeError, match="Expected pred to be bool or tensor"):
            bolide.compile(program)(pred, torch.ones(2))
        with pytest.raises(bolide.Unsupported, match=r"the condition of torch\.cond is a"):
            bolide.compile(program, fullgraph=True)(pred, torch.ones(2))
    for pred in (True, 0, 2, 0.5, torch.tensor(False), torch.tensor([1])):
        torch.testing.assert_close(bolide.compile(program)(pred, torch.ones(2)), program(pred, torch.ones(2)))
    for rows in (1, 3, 4):
        compiled = bolide.compile(made, dynamic=True)
        for limit in (2, 3):
            torch.testing.assert_close(compiled(torch.ones(rows), limit), made(torch.ones(rows), limit))
