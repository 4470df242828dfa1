"""Outputs that lie in the same memory, of which autograd knows different things: a view that went through a Function of
the program's, or that has a hook, gets that derivative, however many others of its memory leave with it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from tests.object_tools import describe


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -grad


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 3


def _with_hook(x: Any, scale: float) -> Any:
    x.register_hook(lambda grad: grad * scale)
    return x


def _twice(x: Any) -> Any:
    hidden = x * 2
    once = Reversed.apply(hidden)
    return hidden, Same.apply(once), hidden.view(-1), once.t()


def _rows(x: Any) -> Any:
    hidden = Same.apply(x.reshape(-1))
    return x, hidden, hidden[2:], hidden.view(x.shape[0], -1), x[:1]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a function's view beside its owner": lambda x: ((h := x.exp()), Reversed.apply(h)),
    "the view first": lambda x: (Reversed.apply(h := x.exp()), h),
    "returned as it came": lambda x: ((h := x.exp()), Same.apply(h)),
    "of an input": lambda x: (x, Reversed.apply(x), Same.apply(x)),
    "of an input, alone": lambda x: Reversed.apply(x),
    "one after the other": _twice,
    "parts": _rows,
    "a view with a hook": lambda x: ((h := x.exp()), _with_hook(h.view_as(h), 3.0)),
    "an owner with a hook": lambda x: (_with_hook(h := x.exp(), 3.0), h.view(-1)),
    "a view of one with a hook": lambda x: ((h := x.exp()), _with_hook(h.view(-1), -1.0).view_as(h)),
}


def _gradient(outputs: Any, x: torch.Tensor) -> Any:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((place + 1) * (out**2).sum() for place, out in enumerate(outputs)).backward()
    return x.grad


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_keep_the_history_that_they_have(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = bolide.compile(program, dynamic=dynamic)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 2)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = compiled(ours), program(theirs)
        pointers = [
            [out.data_ptr() - outs[0].data_ptr() for out in outs if isinstance(out, torch.Tensor)]
            for outs in (
                (found if isinstance(found, tuple) else (found,)),
                expected if isinstance(expected, tuple) else (expected,),
            )
        ]
        assert pointers[0] == pointers[1], "they share memory as eager's do"
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(_gradient(found, ours), _gradient(expected, theirs))
    assert compiled._bolide.entries, "ran in eager"  # type: ignore[attr-defined]


def test_modules_whose_outputs_are_kept_by_one_hook_and_whose_gradients_another_sees() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def watched(model: nn.Module) -> tuple[Any, dict[str, Any], list[Any]]:
        kept: dict[str, Any] = {}
        seen: list[Any] = []
        for name, part in model.named_children():
            part.register_forward_hook(lambda part, into, out, name=name: kept.update({name: out}))
            part.register_full_backward_hook(lambda part, into, out: seen.append(out[0].norm()))
        return model, kept, seen

    ours, theirs = watched(copy.deepcopy(model)), watched(copy.deepcopy(model))
    compiled = bolide.compile(ours[0])
    for rows in (4, 7, 3):
        x = torch.randn(rows, 3)
        compiled(x.clone().requires_grad_()).sum().backward()
        theirs[0](x.clone().requires_grad_()).sum().backward()
        torch.testing.assert_close((ours[1], ours[2]), (theirs[1], theirs[2]))
    assert len(ours[2]) == 9 and describe([p.grad is None for p in model.parameters()])


def test_a_model_for_two_domains_trains_as_in_eager() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.labels, self.domain = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            features = self.features(x)
            turned = Reversed.apply(features)
            return {"features": features, "turned": turned, "y": self.labels(features), "d": self.domain(turned)}

    theirs = Adapted()
    ours = copy.deepcopy(theirs)
    compiled = bolide.compile(ours)
    for rows in (4, 6, 3):
        x = torch.randn(rows, 2)
        for run in (compiled, theirs):
            out = run(x)
            (out["y"].sum() + out["d"].square().sum() + out["turned"].mean() + out["features"].norm()).backward()
        for mine, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(mine.grad, other.grad)


# ---- memory that is detached, then written ---------------------------------------------------------------------------

DETACHED = {
    "whole": ("y.detach()", "d.mul_(x.sum())"),
    "a part": ("y.detach()[1:]", "d.mul_(x.sum())"),
    "then a part": ("y.detach()", "d[1:].mul_(x.sum()); e = d[0]"),
    "filled": ("y.detach()", "d.copy_(x.sum() * torch.ones_like(d))"),
    "of itself": ("y.detach()", "d.mul_(y.sum())"),
    "turned": ("y.detach().mT", "d.add_(x.sum())"),
    "twice": ("y.detach()", "e = d.detach(); d.mul_(x.sum()); e.mul_(x.mean())"),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", DETACHED)
def test_what_is_detached_and_then_written_has_a_history_of_its_own(kind: str, dynamic: bool | None) -> None:
    """Where that cannot be kept apart eager runs; never is it taken for the history of what it was detached from."""
    made, written = DETACHED[kind]
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, y):\n y = y * 1\n e = None\n d = {made}\n {written}\n return y, d, e", scope)
    program, gradients = scope["program"], []
    compiled = bolide.compile(program, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*BR0508")
        for size in (3, 4, 6):
            x, y = torch.randn(size, dtype=torch.float64), torch.randn(size, size, dtype=torch.float64)
            for function in (compiled, program):
                leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
                results = [each for each in function(*leaves) if each is not None]
                loss = sum((each * each).sum() for each in results if each.requires_grad)
                shown = [(each.requires_grad, each.detach().clone()) for each in results]
                gradients.append((shown, torch.autograd.grad(loss, leaves, allow_unused=True)))
            torch.testing.assert_close(*gradients[-2:])


@pytest.mark.parametrize("cut", ["split", "unbind", "chunk", "tensor_split"])
@pytest.mark.parametrize("way", ["breaks", "pieces", "part of a piece", "no_grad"])
def test_pieces_refuse_to_be_written_in_place(cut: str, way: str) -> None:
    """Pieces that come out of compiled code, or from before a break, are what eager takes them for."""

    def cut_up(y: torch.Tensor) -> Any:
        return y.unbind() if cut == "unbind" else getattr(y, cut)(2)

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        with torch.set_grad_enabled(way != "no_grad"):
            pieces = cut_up(y)
        if way == "breaks":
            print(end="")
            pieces[0].mul_(3)
        return y, pieces[0][:1] if way == "part of a piece" else pieces[0]

    compiled = bolide.compile(program)
    for size in (4, 6, 8):
        x = torch.randn(size, 3, requires_grad=True)
        met = []
        for function in (compiled, program):
            try:
                y, piece = function(x)
                piece.mul_(x.sum())
                met.append(torch.autograd.grad(y.sum(), x)[0])
            except RuntimeError as error:
                met.append(str(error).partition(" is a view")[2])
        assert type(met[0]) is type(met[1])
        if isinstance(met[1], torch.Tensor):
            torch.testing.assert_close(*met)
        else:
            assert met[0] == met[1]


def _written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return b.add_(1) * 2


def _read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 2 + b


@pytest.mark.parametrize("fn", [_written, _read])
def test_parts_of_a_split_that_were_written_to_are_given_again(fn: Any) -> None:
    """Autograd refuses to tell their history; without grad mode they may still be used."""
    outcomes = []
    for function in (fn, bolide.compile(fn)):
        parts = torch.arange(4.0, requires_grad=True).split(2)
        found: list[str] = []
        with torch.no_grad(), warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            for _ in range(3):
                found.append(str(function(*parts)))
                parts[0].mul_(3)
        try:
            function(*parts)
        except RuntimeError as error:
            found.append(str(error))
        assert all("one of several views, as of split" in str(warning.message) for warning in met)
        outcomes.append((found, [part.detach().tolist() for part in parts]))
    assert outcomes[0] == outcomes[1]


# ---- results that go back to leaves made inside only ----------------------------------------------------------------

log: list[Any] = []


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        log.append(grad.tolist())
        return grad * 2


class Stopped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None


def new_leaf(x: Any) -> Any:
    return torch.nn.Parameter(x.detach() * 2)


def hooked_leaf(x: Any) -> Any:
    leaf = new_leaf(x)
    leaf.register_hook(lambda grad: log.append(grad.tolist()))
    return leaf * 3


def two_leaves(x: Any) -> Any:
    return new_leaf(x) * 3, (x.detach() + 1).requires_grad_() * 2


def view_of_result(x: Any) -> Any:
    y = new_leaf(x) * 2
    return y[1:], y


def behind_a_break(x: Any) -> Any:
    y = new_leaf(x) * 3
    print(end="")
    return y * 2


def own_backward(x: Any) -> Any:
    leaf = new_leaf(x)
    (leaf * 3).sum().backward()
    return leaf.grad.clone(), leaf * x.detach()


def written(x: Any) -> Any:
    y = x.detach() + 1
    return y.mul_(new_leaf(x)), y * 2


INNER: dict[str, Any] = {
    "one": lambda x: new_leaf(x) * 3,
    "two": two_leaves,
    "beside one of the input": lambda x: (new_leaf(x) * 3, x * 2),
    "of both": lambda x: new_leaf(x) * x,
    "made of nothing": lambda x: x.detach() * torch.ones(4, requires_grad=True),
    "view": view_of_result,
    "break": behind_a_break,
    "own backward": own_backward,
    "written": written,
    "hook": hooked_leaf,
    "derivative": lambda x: Doubled.apply(new_leaf(x)) * 3,
    "no gradient": lambda x: Stopped.apply(x) * 3,
    "no gradient beside": lambda x: (Stopped.apply(x) * 3, x * 2),
}
INPUTS: dict[str, Any] = {
    "plain": lambda x: x,
    "leaf": lambda x: x.requires_grad_(),
    "no leaf": lambda x: x.requires_grad_() * 2,
}


def outcome_of_leaves(f: Any, make: Any, sizes: tuple[int, ...]) -> Any:
    """What can be seen of two calls: which results require grad, gradients, and what code of the program's logged."""
    log.clear()
    seen = []
    for size in sizes:
        x = make(torch.arange(1.0, size + 1))
        x.retain_grad() if x.requires_grad else None
        found = f(x)
        found = found if isinstance(found, tuple) else (found,)
        tracked = [y for y in found if y.requires_grad]
        if tracked:
            sum(y.sum() for y in tracked).backward()
        seen.append(([(y.requires_grad, y.is_leaf, y.tolist()) for y in found], None if x.grad is None else x.grad))
    return [(facts, None if grad is None else grad.tolist()) for facts, grad in seen], [*log]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", INNER)
def test_results_of_leaves_made_inside(name: str, kind: str) -> None:
    sizes = (4, 4) if name == "made of nothing" else (4, 4, 6)
    expected = outcome_of_leaves(INNER[name], INPUTS[kind], sizes)
    assert outcome_of_leaves(bolide.compile(INNER[name]), INPUTS[kind], sizes) == expected


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_a_leaf_made_inside_is_written_to_requires_grad(kind: str) -> None:
    def write(x: Any, y: Any) -> Any:
        y.mul_(new_leaf(x))
        return y * 3

    compiled = bolide.compile(write)
    for _ in range(2):
        x, y = INPUTS[kind](torch.ones(3)), torch.ones(3)
        z = compiled(x, y)
        assert y.requires_grad and z.requires_grad and not y.is_leaf
        z.sum().backward()


@pytest.mark.parametrize("name", ["beside one of the input", "one"])
def test_a_history_that_no_result_goes_back_to_is_not_run(name: str) -> None:
    x = torch.ones(4, requires_grad=True).exp()
    x.sum().backward()  # releases it
    found = bolide.compile(INNER[name])(x)
    (found[0] if isinstance(found, tuple) else found).sum().backward()


# ---- what results are views of --------------------------------------------------------------------------------------


def untracked(view: Any) -> Any:
    def viewed(x: Any) -> Any:
        with torch.no_grad():
            return view(x)

    return viewed


VIEWS: dict[str, Any] = {
    "slice": lambda x: x[1:],
    "no grad": untracked(lambda x: x[1:]),
    "detached": lambda x: x.detach(),
    "detached slice": lambda x: x[1:].detach(),
    "slice of detached": lambda x: x.detach()[1:],
    "no grad, detached": lambda x: untracked(lambda y: y[1:])(x).detach(),
    "data": lambda x: x[1:].data,
}
PLACES: dict[str, Any] = {
    "argument": lambda x, view: (view(x),),
    "twice": lambda x, view: (view(x), view(x)),
    "behind a break": lambda x, view: (print(end=""), view(x))[1:],
    "before a break": lambda x, view: (view(x), print(end=""))[:1],
    "result": lambda x, view: (lambda y: (y, view(y)))(x * 2),
    "result behind a break": lambda x, view: (lambda y: (y, print(end=""), view(y))[::2])(x * 2),
}


def bases(f: Any, view: Any, kind: str, size: int) -> Any:
    """Of each result, what it is a view of: an argument, what that is a view of, a result, or something else."""
    x = torch.ones(size, requires_grad=kind in ("leaf", "view of one with a history"))
    if kind.startswith("view"):
        x = (x * 2)[1:]
    found = f(x, view)
    known = [x, x._base, *found]
    names = [
        next((at for at, each in enumerate(known) if each is y._base), -1) if y._is_view() else None for y in found
    ]
    return [(name, y.requires_grad, y.tolist()) for name, y in zip(names, found)]


@pytest.mark.parametrize("kind", ["plain", "leaf", "view", "view of one with a history"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("view", VIEWS)
def test_results_are_views_of_what_eager_has(view: str, place: str, kind: str) -> None:
    compiled = bolide.compile(PLACES[place])
    for size in (5, 5, 7):
        assert bases(compiled, VIEWS[view], kind, size) == bases(PLACES[place], VIEWS[view], kind, size)


def test_a_lone_view_without_history_of_a_value_that_requires_grad_requires_grad() -> None:
    compiled = bolide.compile(lambda x: untracked(lambda y: y[1:])(x * 2))
    for size in (4, 4, 6):
        found = compiled(torch.ones(size, requires_grad=True))
        assert found.requires_grad and found.is_leaf and found._is_view() and found._base.shape == (size,)


def _columns(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (y.detach()[:, ::2],)


def _rest(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (y.detach()[:, 1:],)


def _both(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y.detach()[:, ::2], y.detach()[:, 1::2]


def _transposed(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (y.detach().t()[1:],)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("cut", [_columns, _rest, _both, _transposed])
def test_parts_with_gaps_that_are_detached_and_then_written(cut: Callable[..., Any], backend: str) -> None:
    """They have another history than the whole, and its memory."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x * 2
        parts = cut(whole)
        for part in parts:
            part.mul_(w.sum())
        return whole, *parts

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    for rows in (3, 4, 6):
        x, w, found = torch.randn(rows, 4).double(), torch.randn(3).double(), []
        for function in (compiled, program):
            given = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            whole, *parts = function(*given)
            loss = sum((part * part.detach()).sum() for part in parts)
            gradients = torch.autograd.grad(loss, given, allow_unused=True)
            before = [part._version for part in parts]
            with torch.no_grad():
                whole.mul_(3)
            written = [part._version - old for part, old in zip(parts, before)]
            values = [value.detach() for value in (whole, *parts)]
            found.append((values, gradients, [part.stride() for part in parts], written))
        torch.testing.assert_close(found[0], found[1])


def _seen_whole(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x[...]
    whole[1:].add_(w[1:])
    return whole, x * 2


def _written_then_seen(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(w)
    return x[...], x.view_as(x)


def _seen_then_written(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x[...]
    x.mul_(w)
    return whole, x[1:]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [_seen_whole, _written_then_seen, _seen_then_written])
def test_views_of_all_of_a_written_argument_have_its_history(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
    for size in (5, 6, 8):
        x, w, found = torch.randn(size).double(), torch.randn(size).double().requires_grad_(), []
        for function in (compiled, program):
            given = x.clone()
            results = function(given, w)
            marks = [(one._is_view(), one.requires_grad) for one in (given, *results)]
            total = sum((place + 1) * (one * one).sum() for place, one in enumerate((given, *results)))
            gradient = torch.autograd.grad(total, w)
            with torch.no_grad():
                results[0].mul_(3)  # also seen in the argument
            found.append(([one.detach() for one in (given, *results)], gradient, marks))
        torch.testing.assert_close(found[0], found[1])
