"""Branches on the data of tensors: what becomes a branch of the graph, with which results and gradients, and what is a
break because a graph could not do it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.dynamo.config import config

Program = Callable[..., Any]
ALL_BACKENDS = pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
WHOLE: list[Program] = []
BROKEN: list[Program] = []


def whole(fn: Program) -> Program:
    """A program that is captured without a break."""
    WHOLE.append(fn)
    return fn


def broken(fn: Program) -> Program:
    """One that is right, but breaks."""
    BROKEN.append(fn)
    return fn


@dataclasses.dataclass
class Pair:
    first: Tensor
    second: Any = None


Point = collections.namedtuple("Point", "a b")
STATE: dict[str, Any] = {}


@whole
def both_ways(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y = y.sin() * 2 if y.sum() > 0 else y.cos() * w.sum()
    return y + 1


@whole
def one_way(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    if torch.isinf(h).any() or torch.isnan(h).any() or h.sum() > 0:
        limit = torch.finfo(h.dtype).max - 1000
        h = torch.clamp(h, min=-0.1, max=limit)
    return h * w.sum(), h.exp()


@whole
def early_return(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        return x.sin() * w.sum()
    y = x @ w
    if y.max() > 0.1:
        return y.relu()
    return y.tanh()


@whole
def numbers(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    if x.detach().sum().item() > 0:
        y = y + 1
    if float(x.detach().max()) >= 0.5 and not bool(x.min() > 0.1):
        y = y * w.mean()
    return y


@whole
def operators(x: Tensor, w: Tensor) -> Any:
    y = x.sin()
    a = y * 1 if (y.sum() > 0) and not (y.max() > 0.7) else y * 2
    b = a.cos() if (x.mean() > 0 or w.sum() > 0) and x.max() < 0.9 else a.exp()
    return a + b


@whole
def nested(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    if x.sum() > 0:
        if y.sum() > 0:
            y = y.sin()
        else:
            y = y.cos() * 2
        y = y * 3
    elif y.max() > 0:
        y = y.tanh()
    return y


@whole
def nested_apart(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    if x.sum() > 0:
        if y.max() > -100:
            with torch.no_grad():
                scale = y * x.sum()
            y = y * scale
            if y.max() > -100:
                y = y * _apart(y) + (y * w.sum()).detach().sin()
        y = y * 3
    return y


@torch.no_grad()
def _apart(y: Tensor) -> Tensor:
    return y.sin() * 2 if y.sum() > 0 else y.cos()


@whole
def nested_that_meet_further_on(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        if x.max() > 0.5:
            y, extra = x @ w, (x * 2,)
        else:
            y, extra = (x @ w).sin(), ()
    elif x.min() < -0.5:
        y, extra = x @ w, (x.cos(), x)
    else:
        y, extra = x @ w, ()
    for each in extra:
        y = y * each
    return y


@broken
def nested_that_set_or_not(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        if x.max() > 0.5:
            y, extra = x @ w, x * 2
        else:
            y = (x @ w).sin()
    elif x.min() < -0.5:
        y, extra = x @ w, x.cos()
    else:
        y = x @ w
    if x.max() > 0.5 or x.min() < -0.5:
        return y * extra @ w
    extra = x * 1
    return y * extra


@whole
def in_a_loop(x: Tensor, w: Tensor) -> Any:
    h = x
    for i in range(4):
        if (h.sum() * (i - 1.5)) < 0:
            continue
        h = (h @ w).sin()
        if h.max() > 0.2:
            h = h.clamp(max=0.2)
    return h * 2


@whole
def a_flag(x: Tensor, w: Tensor) -> Any:
    h = x
    for i in range(3):
        drop = False
        if h.sum() * (i - 1) > 0:
            drop = True
        if drop:
            outputs: Any = (None, None)
        else:
            outputs = (h.sin() @ w, h)
            h = outputs[0]
    return h * 2


@whole
def objects(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        made: Any = {"a": x.sin(), "b": [x * 2, (w.sum(), None, 3)], "c": Pair(x @ w), "d": Point(x + 1, None)}
    else:
        made = {"a": x.cos(), "b": [x * 3, (w.mean(), None, 3)], "c": Pair(x - 1), "d": Point(x + 2, None)}
    return made["a"], made["b"], made["c"].first, made["d"].a


def _inner(x: Tensor, w: Tensor) -> Any:
    return x.tanh() if x.mean() > 0.1 else x @ w


@whole
def inner_calls(x: Tensor, w: Tensor) -> Any:
    if x.max() > 0.5:
        return _inner(x * 2, w), x.cos()
    return _inner(x, w * 2), x.sin()


@whole
def containers_from_before(x: Tensor, w: Tensor) -> Any:
    cache, kept, pair = {"x": x.sin(), "n": 1}, [x * 1, x * 2], Pair(x * 3)
    if x.sum() > 0:
        cache["x"] = x @ w
        kept[1] = x.cos()
    else:
        kept[1] = x.exp()
        pair.first = w.sum() * x
    return cache["x"], kept, pair.first


@whole
def closures(x: Tensor, w: Tensor) -> Any:
    kept = x * 1

    def change(by: Tensor) -> None:
        nonlocal kept
        kept = kept * by

    if x.sum() > 0:
        change(w.sum())
    else:
        change(w.mean())
    return kept


@whole
def unused_afterwards(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        count, name = 3, "positive"
        y = x.sin() * count + len(name)
    else:
        y = x.cos()
    return y


@whole
def dtypes_and_integers(x: Tensor, w: Tensor) -> Any:
    k = x.argmax()
    if x.sum() > 0:
        k = k + 1
        z = x.double() * 2
    else:
        z = x.double() / 3
    return k, z, (x > 0) if x.max() > 0.5 else (x < 0)


@whole
def without_grad(x: Tensor, w: Tensor) -> Any:
    y = x * w.sum()
    with torch.no_grad():
        scale = x.norm()
        if scale > 1:
            scale = scale / 2
    return y * scale


@whole
def detached_way(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        y = x.detach().sin() * w.sum()
    else:
        y = x.cos() * w.detach().sum()
    return y * 2


@whole
def results_that_are_not_used(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        a = (x.sin(), w * 2)
    else:
        a = (x.cos(), w * 3)
    return a[0] * 2


@whole
def in_place_on_its_own(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        y = x * 2
        y.add_(w.sum())
        y[0] = 1
    else:
        y = x.clone()
        y.mul_(3)
    y.sub_(1)
    return y


@whole
def transposed(x: Tensor, w: Tensor) -> Any:
    y = x.t().contiguous().t()
    y = y * 2 if x.sum() > 0 else y.sin()
    return y, y.t() @ x


@whole
def sizes(x: Tensor, w: Tensor) -> Any:
    n = x.shape[0]
    if x.sum() > 0:
        y = x.view(n * 4) * n
        z = torch.arange(n) * 2.0
    else:
        y = x.reshape(-1).sin()
        z = torch.ones(n) / n
    return y, z


@whole
def a_way_that_does_nothing(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        x.sin()
    return x @ w


# ---- what a graph cannot do


@whole
def numbers_that_differ(x: Tensor, w: Tensor) -> Any:
    n = 2 if x.sum() > 0 else 3
    scale = 0.5 if x.max() > 0.1 else -1.5
    return x * n * scale, n, scale, x @ w[:, :n].sum(1) if n else x.sum(1)


@whole
def flags_and_counts(x: Tensor, w: Tensor) -> Any:
    clipped, finite = 0, True
    for row in (x * 1).unbind(1):
        if row.sum() > 1:
            clipped += 1
        elif row.sum() < -1:
            clipped -= 2
    if torch.isnan(x).any() or clipped > 2:
        finite = False
    y = x.sin() if finite else x @ w
    return y + clipped, clipped, finite


@whole
def the_best(x: Tensor, w: Tensor) -> Any:
    best, patience, where = -1e9, 0, 0
    for step in range(3):
        value = (x.detach()[step % len(x)] * (step + 1)).sum()
        if value > best:
            best, patience, where = value.item(), 0, step
        else:
            patience += 1
        if patience >= 2:
            x = x * 0.5
    return x * best + w.sum(), patience, where, best


@whole
def sizes_that_differ(x: Tensor, w: Tensor) -> Any:
    n = x.shape[0] if x.sum() > 0 else x.shape[0] - 1
    STATE["n"] = n * 2
    return x.sum(0) / n, n + 1, [n, (n, 2.5 if x.sum() > 0 else n / 2)]


@whole
def by_a_number(x: Tensor, w: Tensor) -> Any:
    v = x.detach().sum().item()
    if v > 2:
        y, k = x * v, int(v * 2)
    elif v / 3 > -1.5:
        y, k = x * (v + 1), 7
    else:
        y, k = x.sin(), 0
    return y @ w, k, y / (k + 1)


@whole
def a_share(x: Tensor, w: Tensor) -> Any:
    right, rows = (x.detach() > 0.3).sum().item(), len(x)
    share = right / (rows * 4)
    grade = 2 if share > 0.7 else 1 if share > 0.1 else 0
    mean = x.sum() / max(right, 1)
    return mean * share + w.sum() * grade, share, rows / max(right, 1), grade, right / rows if right else 0.0


@broken
def numbers_of_more_than_64_bits(x: Tensor, w: Tensor) -> Any:
    n = 2**70 if x.sum() > 0 else 3
    return x * 2, n


@broken
def texts_that_differ(x: Tensor, w: Tensor) -> Any:
    name = "2" if x.sum() > 0 else "3"
    return x * 2, name


@broken
def shapes_that_differ(x: Tensor, w: Tensor) -> Any:
    y = x[1:] if x.sum() > 0 else x * 1
    return y @ w


@broken
def layouts_that_differ(x: Tensor, w: Tensor) -> Any:
    return x @ w if x.sum() > 0 else x.t().contiguous().t()


@broken
def a_list_that_grows(x: Tensor, w: Tensor) -> Any:
    found = [x * 1]
    if x.sum() > 0:
        found.append(x @ w)
    return [y * 2 for y in found]


@whole
def an_older_tensor_is_written(x: Tensor, w: Tensor) -> Any:
    c = x.detach().clone()
    if c.sum() > 0:
        c.add_(1)
    return c, x @ w


@broken
def output(x: Tensor, w: Tensor) -> Any:
    log: list[str] = STATE.setdefault("log", [])
    if x.sum() > 0:
        log.append("positive")
    return x @ w


@broken
def the_same_memory(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y.view(-1) if x.sum() > 0 else y.reshape(-1) * 1
    y.add_(1)
    return z, y


@broken
def the_same_object(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y if x.sum() > 0 else y * 2
    return (z * 2) if z is y else (z * 3)


@whole
def an_input_that_is_returned(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        x = x * 2
    return x, w * 1


@broken
def errors(x: Tensor, w: Tensor) -> Any:
    try:
        y = x @ w if x.sum() > 0 else x @ x @ w
    except RuntimeError:
        y = x * 5
    return y - y.mean() + y.amax()  # a return of a name is copied into each way by CPython 3.11 alone


@broken
def a_loop(x: Tensor, w: Tensor) -> Any:
    while x.abs().sum() > 1:
        x = x / 2
    return x @ w


@broken
def an_iterator(x: Tensor, w: Tensor) -> Any:
    numbers = iter([1, 2, 3])
    if x.sum() > 0:
        next(numbers)
    return x * next(numbers)


@broken
def histories_that_differ(x: Tensor, w: Tensor) -> Any:
    y = x @ w if x.sum() > 0 else torch.ones(x.shape[0], 4, dtype=x.dtype)
    return y * 2, x * 1


@broken
def set_and_unset(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        y = x @ w
    try:
        return y * 2
    except UnboundLocalError:
        return x * 3


# a branch in a way decides which gradients there are, the branch whether there is a history, or a way reads a number
BROKEN_IN_TRAINING = (numbers, inner_calls, histories_that_differ, by_a_number)


def inputs(size: int, sign: float, grad: bool) -> list[Tensor]:
    x = (torch.rand(size, 4, dtype=torch.float64) + 0.05) * sign
    return [x.requires_grad_(grad), (torch.rand(4, 4, dtype=torch.float64) - 0.3).requires_grad_(grad)]


def outcome(fn: Program, args: list[Tensor]) -> list[Any]:
    """Results, then gradients, of which None is kept apart from zero."""
    results = torch.utils._pytree.tree_leaves(fn(*args))
    differentiable = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    if not differentiable:
        return results
    loss = sum((r.float().square().sum() * (k + 1) for k, r in enumerate(differentiable)), torch.zeros(()))
    return [*results, "gradients", *torch.autograd.grad(loss, args, allow_unused=True)]


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    assert [type(value) for value in found] == [type(value) for value in wanted]
    results = next((place for place, value in enumerate(found) if isinstance(value, str)), len(found))
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(mine, Tensor):
            torch.testing.assert_close(mine, theirs)
            assert mine.requires_grad == theirs.requires_grad
            assert mine.stride() == theirs.stride() or place > results
        else:
            assert mine == pytest.approx(theirs) if isinstance(mine, float) else mine == theirs


@ALL_BACKENDS
@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN], ids=lambda fn: fn.__name__)
def test_both_ways_are_eagers(fn: Program, backend: str) -> None:
    for grad in (True, False):
        bolide.reset()
        compiled = bolide.compile(fn, backend=backend)
        for size in (3, 5, 6):
            for sign in (1.0, -1.0, 0.2):
                args = inputs(size, sign, grad)
                STATE.clear()
                wanted, log = outcome(fn, args), STATE.copy()
                STATE.clear()
                assert_alike(outcome(compiled, args), wanted)
                assert log == STATE


@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN], ids=lambda fn: fn.__name__)
def test_what_breaks(fn: Program) -> None:
    for grad in (False, True):
        found = bolide.explain(fn, backward=grad)(*inputs(5, 1.0, grad))
        expected = grad if fn in BROKEN_IN_TRAINING else fn in BROKEN
        assert bool(found.breaks) == expected, found.breaks


def test_the_option_turns_it_off() -> None:
    with config.patch(capture_branches=False):
        assert len(bolide.explain(one_way)(*inputs(4, 1.0, False)).breaks) >= 1


def test_the_break_says_why_it_is_no_branch() -> None:
    (broken_at,) = bolide.explain(texts_that_differ)(*inputs(4, 1.0, False)).breaks
    assert "'2' and '3'" in broken_at.reason or "'3' and '2'" in broken_at.reason


@ALL_BACKENDS
def test_passes_keep_what_ways_and_loops_compute(backend: str) -> None:
    """Attention that is fused in inference, and what is computed twice."""

    def attention(q: Tensor) -> Tensor:
        return torch.softmax(q @ q.mT * 0.05, -1) @ q

    def chosen(q: Tensor, w: Tensor) -> Tensor:
        if w > 0:
            return attention(q) * w.cos() + w.cos() * q
        return torch.softmax(q @ q.mT / 9 + (q @ q.mT).tanh() * w, -1) @ q.sigmoid() * q.sigmoid().sin()

    def looped(q: Tensor, w: Tensor) -> Tensor:
        def step(count: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, attention(value) + w.cos() * w.cos()

        return torch.while_loop(lambda count, value: count < 2, step, (torch.zeros((), dtype=torch.int64), q))[1]

    def unrolled(q: Tensor, w: Tensor) -> Tensor:
        for _ in range(2):
            q = attention(q) + w.cos() * w.cos()
        return q

    compiled, loop = (bolide.compile(fn, backend=backend, fullgraph=True) for fn in (chosen, looped))
    q = torch.randn(16, 256, 8)
    for weight in (0.5, -0.5):
        w = torch.tensor(weight)
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, w), chosen(q, w))
            torch.testing.assert_close(loop(q, w), unrolled(q, w))
        args = [torch.randn(2, 5, 4).double().requires_grad_(), w.double().requires_grad_()]
        first = [torch.autograd.grad(fn(*args).square().sum(), args, create_graph=True) for fn in (compiled, chosen)]
        torch.testing.assert_close(*first)
        torch.testing.assert_close(*[torch.autograd.grad(grads[0].sin().sum(), args) for grads in first])


def test_one_capture_serves_both_ways_and_other_sizes() -> None:
    compiled = bolide.compile(one_way, dynamic=True, fullgraph=True)
    with bolide_captures() as captures:
        for size in (5, 7, 9):
            for sign in (1.0, -1.0):
                args = inputs(size, sign, True)
                assert_alike(outcome(compiled, args), outcome(one_way, args))
    assert captures() == 1


@contextlib.contextmanager
def bolide_captures() -> Any:
    from bolide.support import events

    met: list[Any] = []
    with events.subscribed(met.append):
        yield lambda: sum(type(each) is events.Captured for each in met)


@ALL_BACKENDS
@pytest.mark.parametrize("fn", [both_ways, nested_apart], ids=lambda fn: fn.__name__)
def test_gradients_of_gradients(fn: Program, backend: str) -> None:
    def twice(fn: Program, args: list[Tensor]) -> list[Tensor]:
        first = torch.autograd.grad(fn(*args).square().sum(), args, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.sin().sum() for g in first), args)]

    compiled = bolide.compile(fn, backend=backend)
    for size in (3, 5):
        for sign in (1.0, -1.0):
            args = [value.detach().double().requires_grad_() for value in inputs(size, sign, True)]
            for mine, theirs in zip(twice(compiled, args), twice(fn, args), strict=True):
                torch.testing.assert_close(mine, theirs)


@ALL_BACKENDS
def test_layers_that_are_dropped_have_no_gradient(backend: str) -> None:
    """None rather than zero: optimizers let such parameters alone."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: Tensor, draws: Tensor) -> Tensor:
            x = self.first(x)
            for layer, draw in zip(self.layers, draws.unbind()):
                skip = self.training and draw < 0.5
                if not skip:
                    x = layer(x).tanh()
            return x

    net = Net()
    compiled = bolide.compile(net, backend=backend, fullgraph=True)
    for kept in ((1, 1), (0, 1), (1, 0), (0, 0)):
        x, draws = torch.randn(3, 4), torch.tensor(kept).float()
        grads = []
        for each in (net, compiled):
            net.zero_grad()
            each(x, draws).square().sum().backward()
            grads.append([p.grad for p in net.parameters()])
        for mine, theirs in zip(*reversed(grads), strict=True):
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(mine, theirs)
        assert sum(g is None for g in grads[0]) == 2 * kept.count(0)


def test_random_numbers_in_a_way() -> None:
    """Drawn where that way is taken; the backward sees the same ones."""

    def fn(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return torch.nn.functional.dropout(x, 0.5) * 3
        return x * 2

    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(3):
        x = (torch.rand(40) + 0.5).requires_grad_()
        y = compiled(x)
        kept = y.detach() != 0
        assert 0 < kept.sum() < 40
        torch.testing.assert_close(y, x * 6 * kept)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 6.0 * kept)
        torch.testing.assert_close(compiled(-x), -x * 2)


def test_state_of_a_module_in_a_way() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.best: Any = torch.zeros(())
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            loss = (x * self.scale).sum()
            if loss > self.best:
                self.best = loss
                self.scale = self.scale * 1.5
            return loss + self.best

    torch.manual_seed(0)
    plain, other = Net(), Net()
    compiled = bolide.compile(other)
    with torch.no_grad():
        for scale in (1.0, -1.0, 2.0, 0.5, 3.0):
            x = torch.rand(3) * scale
            torch.testing.assert_close(compiled(x), plain(x))
            torch.testing.assert_close(other.best, plain.best)
            torch.testing.assert_close(other.scale, plain.scale)


def test_autocast() -> None:
    def fn(x: Tensor, w: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w if x.sum() > 0 else (x * 2) @ w
            return y @ w

    compiled = bolide.compile(fn, fullgraph=True)
    for sign in (1.0, -1.0):
        args = inputs(4, sign, True)
        for mine, theirs in zip(outcome(compiled, args), outcome(fn, args), strict=True):
            if isinstance(mine, Tensor):
                torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_function_of_the_programs_own_keeps_its_backward() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * 7

    def fn(x: Tensor, w: Tensor) -> Any:
        return Doubled.apply(x) if x.sum() > 0 else x * w.sum()

    compiled = bolide.compile(fn)
    for sign in (1.0, -1.0):
        args = inputs(4, sign, True)
        assert_alike(outcome(compiled, args), outcome(fn, args))


def test_gradients_inside() -> None:
    def step(x: Tensor, w: Tensor) -> Any:
        a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = a.sin().sum() * 2 if a.sum() > 0 else (a @ b).sum()
        y.backward()
        return a.grad, b.grad is None

    compiled = bolide.compile(step)
    for sign in (1.0, -1.0):
        args = inputs(4, sign, False)
        assert_alike(torch.utils._pytree.tree_leaves(compiled(*args)), torch.utils._pytree.tree_leaves(step(*args)))
