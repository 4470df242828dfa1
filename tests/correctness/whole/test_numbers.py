"""Numbers that are data, and floats that change from call to call, need neither breaks nor versions."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.ordinary_tools import check_whole, picture

STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "standardised": lambda x: (x - x.mean()) / x.std(),
    "var": lambda x: (x.var(), x.var(unbiased=False), x.std(correction=0)),
    "std_mean": lambda x: torch.std_mean(x, unbiased=False),
    "extremes": lambda x: (x.max(), x.min(), x.norm(), x.logsumexp(0), x.softmax(0)),
    "rows": lambda x: (x.view(-1, 1).var(0), x.outer(x).mean(1), x.cumsum(0)[-1]),
}


def differentiated(function: Callable[..., Any], x: Tensor, *rest: Any) -> object:
    leaf = x.clone().requires_grad_()
    results = function(leaf, *rest)
    parts = [
        part
        for part in (results if isinstance(results, tuple) else (results,))
        if isinstance(part, Tensor) and part.requires_grad
    ]
    if parts:
        sum((part * torch.linspace(1, 2, part.numel()).view(part.shape)).sum() for part in parts).backward()
    return picture(results), leaf.grad


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_what_a_mask_selects(name: str) -> None:
    """With gradients, and where so few elements are selected that the statistic is no number."""

    def program(compile: Any) -> object:
        compiled = compile(lambda x, mask: STATISTICS[name](x[mask]))
        masks = [torch.randn(n, 4) > 0.2 for n in (5, 9, 7, 6)]
        masks.append(torch.eye(3, 4).bool() & (torch.arange(4) == 1))
        return [differentiated(compiled, torch.randn(mask.shape), mask) for mask in masks]

    check_whole(program)


FILLED: dict[str, Callable[[Tensor, float], Any]] = {
    "full_like": lambda x, t: torch.cat([x, torch.full_like(x[:, :1], t)], 1),
    "full_like_of_integers": lambda x, t: torch.full_like(x.long(), t) + torch.full_like(x.T, -t, dtype=torch.double).T,
    "lerp": lambda x, t: (torch.lerp(x, x.sin(), t), x.clone().lerp_(x * 2, t)),
    "by_keyword": lambda x, t: (
        torch.lerp(x, end=x.sin(), weight=t) + torch.pow(x.square() + 1, exponent=t),
        torch.pow(input=x.square() + 1, exponent=len(x) / 2) + torch.lerp(x * 2, x, weight=len(x) / 7),
    ),
    "euler": lambda x, t: x + (t - 0.5) / 4 * torch.cat([x[:, :1], torch.full_like(x[:, 1:], (t - 0.5) / 4)], 1),
}


@pytest.mark.parametrize("name", FILLED)
def test_floats_that_change(name: str) -> None:
    def program(compile: Any) -> object:
        compiled = compile(FILLED[name])
        return [differentiated(compiled, torch.randn(n, 4), random.uniform(-2, 3)) for n in (3, 6, 5, 9)]

    check_whole(program)


def test_questions_about_the_type_of_a_number_do_not_need_its_value() -> None:
    """As decorators that check types ask them."""

    def asking(x: Tensor, n: int) -> tuple[Any, ...]:
        kinds = inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin
        asked = [[kind(value) for kind in kinds] for value in (n, x, Tensor, len, asking, x.sum, inspect)]
        return x * n, asked

    def program(compile: Any) -> object:
        compiled = compile(asking)
        return [differentiated(compiled, torch.randn(n, 4), n + 2) for n in (3, 6, 5, 9)]

    check_whole(program)


def counted(x: Tensor, w: Tensor) -> Any:
    total = 0
    for row in x:
        if row.sum() > 0:
            total += (row * w).mean()
    return total, total * 2


def collected(x: Tensor, w: Tensor) -> Any:
    losses, kept = [], {"least": 0.0, "most": 0.0}
    for row in x[:2]:
        loss = 0
        if row.mean() > 0.1:
            loss = (row @ w).cos()
        losses.append(loss)
    if x.max() > 1.5:
        kept["most"] = kept["most"] + x.max()
    return sum(losses) + x.sum(), kept


def asked(x: Tensor, w: Tensor) -> Any:
    scale = 1.0
    if x[0].sum() > 0:
        scale = w.mean()
    if isinstance(scale, Tensor):
        scale = scale.exp()
    return scaled(x, scale) + float(scale), scale is None


def scaled(x: Tensor, scale: Any) -> Tensor:
    return x * scale - torch.clamp(x, max=scale)


def clipped(x: Tensor, w: Tensor) -> Any:
    rate = w.detach().clone()
    rate.mul_(min(1.0, 1.0 / (x.detach().norm() + 1e-6)))
    return rate * x / max(x.abs().max(), 1e-3)


def either_of_two(x: Tensor, w: Tensor) -> Any:
    y, z = x * w, x.cos()
    kept = y if x.sum() > 0 else z
    return max(kept.sum(), w.sum(), 0.5) * x


LEFT: list[Callable[..., Any]] = [counted, collected, asked, clipped, either_of_two]


@pytest.mark.parametrize("function", LEFT, ids=lambda function: function.__name__)
def test_ways_of_branches_that_leave_a_tensor_or_a_number(function: Callable[..., Any]) -> None:
    """One version for all sizes. What the way taken does not use has no gradient."""

    def outcome(function: Callable[..., Any], x: Tensor, w: Tensor) -> object:
        leaves = [value.clone().requires_grad_() for value in (x, w)]
        results = function(*leaves)
        parts = [part for part in pytree.tree_leaves(results) if isinstance(part, Tensor) and part.requires_grad]
        if parts:
            sum(part.square().sum() * (k + 1) for k, part in enumerate(parts)).backward()
        return picture(results), [leaf.grad for leaf in leaves]

    def program(compile: Any) -> object:
        compiled = compile(function)
        given = [(torch.randn(3, n) + shift, torch.randn(n)) for n in (4, 7, 5) for shift in (-2, 0, 0.5, 2)]
        return [outcome(compiled, x * random.choice((0.1, 1)), w) for x, w in given]

    check_whole(program)


def _written(x: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    y = x.clone()
    y[rows] = y[rows] * 2
    y[:, columns] += 1.0
    y[rows, columns] = torch.arange(len(rows)).to(y)
    return y


LISTED: dict[str, Callable[[Tensor, list[int], list[int]], Any]] = {
    "rows": lambda x, rows, columns: x[rows] * 2,
    "columns": lambda x, rows, columns: x[:, columns].sum(1),
    "both": lambda x, rows, columns: x[rows, columns],
    "with others": lambda x, rows, columns: (x[None, rows, 1:], x[..., tuple(columns)], x[rows, torch.arange(3)]),
    "made on the way": lambda x, rows, columns: x[[row // 2 for row in rows]] + x[sorted(rows)],
    "written": _written,
    "negative": lambda x, rows, columns: x[[-1 - row for row in rows]],
    "classes": lambda x, rows, columns: (x[torch.LongTensor(rows)], torch.FloatTensor([rows, columns]) / 2),
    "floats": lambda x, rows, columns: x[:3] * torch.Tensor([row / 7 for row in rows])[:, None].to(x),
}


@pytest.mark.parametrize("name", LISTED)
def test_lists_of_numbers_name_places(name: str) -> None:
    """Numbers that are others in each call, in a list that is the index of a tensor, or of what a class makes one."""

    def program(compile: Any) -> object:
        compiled = compile(LISTED[name])
        seen = []
        for size in (9, 7, 8, 7, 6):
            rows, columns = random.sample(range(2, size), 3), random.sample(range(2, 6), 3)
            seen.append(differentiated(compiled, torch.randn(size, 6), rows, columns))
        return seen

    check_whole(program, versions=5)  # a number that happens to stay is one of a version's, once for each list


def test_numbers_of_a_list_that_happen_to_stay_are_no_versions_of_their_own() -> None:
    """Of 32 labels half are at first what they were, then a quarter of those."""

    def program(compile: Any) -> object:
        compiled = compile(lambda x, labels: torch.nn.functional.cross_entropy(x, torch.tensor(labels)))
        return [
            differentiated(compiled, torch.randn(32, 2), [random.randrange(2) for _ in range(32)]) for _ in range(20)
        ]

    check_whole(program, versions=3)


def test_lists_of_numbers_that_name_no_places_are_refused() -> None:
    def program(compile: Any) -> object:
        compiled = compile(lambda x, rows: x[rows] + 1)
        seen: list[object] = []
        for rows in ([1, 3], [2, 0], [4, 2], [1, 7], [-1, 2], [-6, 0], [3, 3]):
            try:
                seen.append(picture(compiled(torch.randn(5, 2), rows)))
            except IndexError as error:
                seen.append(str(error))
        return seen

    check_whole(program, breaks=2)
