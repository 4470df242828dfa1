"""Loops over sizes: unrolled for the first four lengths; then their bodies are segments, compiled once for all."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import bolide
from bolide.dynamo.entry import limits
from bolide.dynamo.guards import texts as guards
from bolide.support import events
from bolide.support.errors import BolideWarning
from bolide.symbolic import Expr, SymNode
from tests.model_tools import installed

LENGTHS = (3, 5, 7, 9, 4, 12, 2, 15, 6, 8, 20, 11)


def numbers(x: Any, n: int) -> Any:
    for i in range(n):
        x = torch.sin(x) + i
    return x


def rows(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for row in x.repeat(2, 1)[:n]:
        h = torch.tanh(h + row)
    return h


def steps(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
    return h + x.sum()


def stops_early(x: Any, n: int) -> Any:
    for i in range(n):
        if i == 3:
            x = x * 2
            continue
        x = x + i
        if i > 8:
            break
    else:
        x = x - 1
    return x


def nested(x: Any, n: int) -> Any:
    for i in range(n):
        for j in range(3):
            x = torch.cos(x + i * j)
    return x


def inside(x: Any, n: int) -> Any:
    def walk(y: Any, count: int) -> Any:
        for k in range(1, count):
            y = y / k + 1
        return y

    try:
        return walk(x, n) * 2
    finally:
        x.grad = None


def paired(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for a, b in zip(x, x * 2):
        h = torch.tanh(h + a) - b
    return h


def numbered(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for i, (a, b) in enumerate(zip(x.sin(), x)):
        h = h * 0.5 + a * i - b
    return h


def unbound(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for i, part in enumerate(x.unbind(0)):
        h = h * 0.5 + part * i
    for part in torch.unbind(x * 2):
        h = h + part.cos()
    return h


def backwards(x: Any, n: int) -> Any:
    for i in reversed(range(n)):
        x = torch.sin(x) + i
    return x


PROGRAMS = (numbers, rows, steps, stops_early, nested, inside, paired, numbered, unbound, backwards)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("training", [False, True])
def test_later_lengths_never_compile(program: Callable[..., Any], training: bool) -> None:
    compiled: Any = bolide.compile(program, backend="aot_eager")
    total = []
    for n in LENGTHS:
        x = torch.randn(n, 4, requires_grad=training)
        y = x.detach().clone().requires_grad_(training)
        want = program(x, n)
        got, new = installed(lambda y=y, n=n: compiled(y, n))
        total.append(new)
        torch.testing.assert_close(got, want)
        if training:
            (slope,) = torch.autograd.grad(want.sum(), x)
            torch.testing.assert_close(torch.autograd.grad(got.sum(), y)[0], slope)
    assert total[:4] == [1, 1, 1, 1] and not any(total[7:]), total


def test_without_breaks_each_length_is_unrolled() -> None:
    compiled: Any = bolide.compile(numbers, fullgraph=True, backend="eager")
    for n in LENGTHS[:5]:
        x = torch.randn(4)
        got, new = installed(lambda x=x, n=n: compiled(x, n))
        assert new == 1
        torch.testing.assert_close(got, numbers(x, n))


def test_effects_of_a_body_happen_once_for_each_item() -> None:
    seen: list[int] = []

    def program(x: Any, n: int) -> Any:
        for i in range(n):
            seen.append(i)
            x = x + i
        return x

    compiled: Any = bolide.compile(program, backend="eager")
    for n in LENGTHS:
        seen.clear()
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, n), x + n * (n - 1) / 2)
        assert seen == list(range(n))


# ---- what needs to know a size or a number of items -----------------------------------------------------------------


def dotted(x: Any) -> Any:
    return x * len("." * x.shape[0])


def transformed(x: Any) -> Any:
    return torch.fft.irfft(torch.fft.rfft(x, dim=0), n=x.size(0), dim=0) * 2


def cut(x: Any) -> Any:
    return torch.cat([part * 2 for part in x.split(2)], 0)


def cut_each(x: Any) -> Any:
    return sum(part.sum() for part in x.chunk(x.shape[0])) + torch.stack(x.unbind(0), 1).sum()


def listed(x: Any) -> Any:
    return torch.stack([x[i] * i for i in range(x.shape[0])])


def rows_listed(x: Any) -> Any:
    return torch.stack([row.sin() for row in x])


def generated(x: Any) -> Any:
    return sum(x[i] * i for i in range(x.shape[0]))


def numbered_dict(x: Any) -> Any:
    return {i: row * 2 for i, row in enumerate(x)}


def reordered(x: Any) -> Any:
    return x[list(range(x.shape[0]))[::-1]]


def collected(x: Any) -> Any:
    kept = []
    for i in range(x.shape[0]):
        row = x[i]
        if row.sum() > 0:
            kept.append(row)
        if len(kept) > 3:
            break
    return kept[-1] * len(kept) if kept else x[0]


NEEDING = (dotted, transformed, cut, cut_each, listed, rows_listed, generated, numbered_dict, reordered, collected)


@pytest.mark.parametrize("program", NEEDING, ids=lambda p: p.__name__)
def test_sizes_that_are_needed_are_compiled_for_four_times_then_break(program: Callable[..., Any]) -> None:
    compiled: Any = bolide.compile(program, backend="aot_eager")
    total = []
    for n in (*LENGTHS, *range(13, 30)):
        x = torch.randn(n, 4)
        got, new = installed(lambda x=x: compiled(x))
        torch.testing.assert_close(got, program(x))
        total.append(new)
    assert not any(total[-10:]), total


@pytest.mark.parametrize("program", [dotted, listed], ids=lambda p: p.__name__)
def test_without_breaks_each_needed_size_is_compiled_for(program: Callable[..., Any]) -> None:
    compiled: Any = bolide.compile(program, fullgraph=True, backend="eager")
    for n in LENGTHS[:6]:
        x = torch.randn(n, 4)
        got, new = installed(lambda x=x: compiled(x))
        assert new == 1
        torch.testing.assert_close(got, program(x))


def test_a_break_for_a_needed_size_names_it_and_the_line() -> None:
    compiled: Any = bolide.compile(dotted, backend="eager")
    told: list[Any] = []
    with events.subscribed(told.append):
        for n in LENGTHS[:5]:
            compiled(torch.randn(n, 4))
    breaks = [event for event in told if isinstance(event, events.Break)]
    assert {event.kind for event in breaks} == {"size_value"}
    assert "x.shape[0]" in breaks[0].reason and "len(" in breaks[0].where.text


def stacked(parts: Any) -> Any:
    return torch.stack(parts).tanh().sum(0)


def summed(w: Any, *, parts: Any) -> Any:
    total = w.cos()
    for i, part in enumerate(parts):
        total = total + part * i
    return total * 2


class Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.seen.append(x.mean(0))
        return torch.stack(self.seen).sum(0) * x


class KeepsStates(torch.nn.Module):
    """Copies all that it keeps at each call, as metrics do: breaks follow on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.total = torch.zeros(4)

    def copied(self) -> dict[str, Any]:
        kept = {}
        for name in ("seen", "total"):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                kept[name] = value.clone()
            else:
                kept[name] = [item.clone() for item in value]
        return kept

    def forward(self, x: Any) -> Any:
        before = self.copied()
        self.seen.append(x.mean(0))
        self.total = self.total + x.sum(0)
        return self.total - before["total"] + sum(before["seen"])


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_whose_length_changes(kind: Any) -> None:
    first: Any = bolide.compile(stacked, backend="aot_eager")
    second: Any = bolide.compile(summed, backend="aot_eager")
    total = []
    for n in LENGTHS:
        parts, w = kind([torch.randn(4) for _ in range(n)]), torch.randn(4)
        got, new = installed(lambda p=parts, w=w: (first(p), second(w, parts=p)))
        torch.testing.assert_close(got, (stacked(parts), summed(w, parts=parts)))
        total.append(new)
    assert total[:4] == [2, 2, 2, 2] and not any(total[-4:]), total


class Padded(torch.nn.Module):
    """Takes lists of images of any number, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, images: Any, targets: Any = None) -> Any:
        scale = self.layer.weight.mean()
        sizes = [image.shape[0] for image in images]
        whole = images[0].new_zeros(len(images), max(sizes), 6)
        for i, image in enumerate(images):
            whole[i, : image.shape[0]].copy_(image)
        return self.layer(whole).sin().sum() * scale + sum([target.sum() for target in targets])


def test_a_module_that_is_given_lists_is_compiled_behind_a_break_as_its_forward_is() -> None:
    theirs = Padded()
    hooked = copy.deepcopy(theirs)
    hooked.register_forward_pre_hook(lambda module, args: args)
    modules = [bolide.compile(copy.deepcopy(part), backend="aot_eager") for part in (theirs, theirs, hooked)]
    modules.append(bolide.compile(theirs.forward, backend="aot_eager"))
    total: list[list[int]] = [[] for _ in modules]
    for n in (1, 2, 3, 4, 5, 6, 7, 8):
        images, targets = [torch.randn(n + i, 6) for i in range(n)], [torch.randn(4) for _ in range(n)]
        for place, module in enumerate(modules):
            named = {"targets": targets} if place % 2 else {}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if place == 2 else "error", BolideWarning)  # hooks see the list at once
                got, new = installed(lambda m=module, i=images, t=targets, n=named: m(i, *([] if n else [t]), **n))
            torch.testing.assert_close(got, theirs(images, targets))
            total[place].append(new)
    assert total[0] == total[1] == total[3] and total[0][4] > 1, total


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a decorator that knows no parameters makes."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("scale", None)
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("named", [False, True])
def test_lists_that_a_decorator_passes_on_are_compiled_for_up_to_the_limit(named: bool) -> None:
    wrapped = passing_on(summed)
    if not named:
        wrapped = passing_on(lambda w, parts: summed(w, parts=parts))
    compiled: Any = bolide.compile(wrapped)
    total = []
    for n in (2, 3, 4, 5, 6, 7, 3, 8, 6):
        parts, w = [torch.randn(4) for _ in range(n)], torch.randn(4)
        given: Any = ((w,), {"parts": parts}) if named else ((w, parts), {})
        got, new = installed(lambda g=given: compiled(*g[0], **g[1]))
        torch.testing.assert_close(got, summed(w, parts=parts))
        total.append(new)
    assert total == [1, 1, 1, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("kind", [Remembers, KeepsStates])
def test_a_list_that_grows_from_call_to_call(kind: Any) -> None:
    module, other = kind(), kind()
    compiled: Any = bolide.compile(module, backend="aot_eager")
    total = []
    for _ in range(14):
        x = torch.randn(3, 4)
        got, new = installed(lambda x=x: compiled(x))
        torch.testing.assert_close(got, other(x))
        total.append(new)
    assert not any(total[-4:]), total
    assert len(module.seen) == 14


class Experts(torch.nn.Module):
    """Tokens go to experts by masks and indices, as in Mixtral."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.router = torch.nn.Linear(4, 5)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(5)])
        self.form = form

    def forward(self, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        mask = torch.nn.functional.one_hot(chosen, 5).permute(2, 1, 0)
        out = torch.zeros_like(x)
        if self.form == "hit":
            for i in (mask.sum((-1, -2)) > 0).nonzero():
                place, token = torch.where(mask[i[0]])
                out.index_add_(0, token, self.experts[i[0]](x[token]) * weights[token, place, None])
            return out
        for i, expert in enumerate(self.experts):
            place, token = torch.where(mask[i])
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


@pytest.mark.parametrize("form", ["hit", "every"])
def test_experts_with_any_number_of_tokens(form: str) -> None:
    module = Experts(form)
    compiled: Any = bolide.compile(module, backend="aot_eager")
    total = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that a limit is reached
        for training in (True, False):
            for n in (*LENGTHS, *LENGTHS):
                x = torch.randn(n, 4)
                with torch.set_grad_enabled(training):
                    got, new = installed(lambda x=x: compiled(x))
                    torch.testing.assert_close(got, module(x))
                total.append(new)
    assert sum(total[-6:]) <= 1, total  # a last combination of no, one and several tokens


def test_a_row_of_another_stride_is_no_other_program() -> None:
    def program(row: Any) -> Any:
        return row * 2, row.view(1, 1), row[None].expand(3, 1), row, torch.cat([row, row])

    compiled: Any = bolide.compile(program, fullgraph=True)
    total = []
    for steps in (3, 4, 5, 2, 9):
        row = torch.randn(steps, 1).as_strided((1,), (steps,))
        got, new = installed(lambda row=row: compiled(row))
        total.append(new)
        torch.testing.assert_close(got, program(row))
        assert [part.stride() for part in got] == [part.stride() for part in program(row)]
    assert total == [1, 1, 0, 0, 0]


def test_versions_that_a_later_one_serves_do_not_count() -> None:
    compiled: Any = bolide.compile(lambda x: x * 2, backend="eager")
    entries = []
    for shape in ((3, 4), (5, 4), (5, 6), (1, 4), (0, 7)):
        compiled(torch.randn(shape))
        entries.append(len(compiled._bolide.entries))
    assert entries == [1, 2, 3, 4, 5]
    found = [entry.guards for entry in compiled._bolide.entries]
    now = guards.global_state()
    assert limits.covers(found[1], found[0]) and limits.covers(found[2], found[1])
    assert not limits.covers(found[0], found[1]) and limits.covers(found[2], found[3])
    assert limits.counted(limits.made_under(found, now)) == 1
    with torch.no_grad():
        assert not limits.made_under(found, guards.global_state())


def _twice_used(x: Tensor, number: Any) -> Any:
    for _ in range(16):
        number = max(3, number * number % 101) % 100
    return x + number, number


@pytest.mark.parametrize("read", [lambda x: len(x), lambda x: int(x[0])], ids=["size", "data"])
def test_a_number_that_a_loop_computes_of_its_last_one_twice(read: Callable[[Tensor], int]) -> None:
    """Written out, it would double with each trip."""
    lengths: list[int] = []
    real = SymNode._int

    def kept(self: Any, expr: Expr) -> SymNode:
        made = real(self, expr)
        lengths.append(made.expr.length())
        return made

    compiled = bolide.compile(lambda x: _twice_used(x, read(x)), dynamic=True)
    with mock.patch.object(SymNode, "_int", kept):
        for size in (4, 5, 7):
            x = torch.arange(float(size)) + size
            results = compiled(x), _twice_used(x, read(x))
            assert results[0][1] == results[1][1] and torch.equal(results[0][0], results[1][0])
    assert max(lengths) < 5000


def _continued(x: Tensor, breaks: bool) -> Tensor:
    h = torch.sin(x)
    if breaks:
        bolide.graph_break()
    return h * h.shape[0] + h.sum(0)


def test_a_size_that_was_a_symbol_behind_a_break_stays_one() -> None:
    """The point's first version has it for the entry has; the second is made for another size, and keeps it."""
    compiled = bolide.compile(_continued)
    counts = []
    for rows, columns, breaks in ((3, 6, False), (4, 6, False), (5, 6, True), (5, 7, True), (6, 8, True), (9, 5, True)):
        x = torch.randn(rows, columns)
        got, count = installed(lambda x=x, breaks=breaks: compiled(x, breaks))
        torch.testing.assert_close(got, _continued(x, breaks))
        counts.append(count)
    assert counts == [1, 1, 2, 2, 0, 0]
