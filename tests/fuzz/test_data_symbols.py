"""Random programs whose numbers and sizes are data: results and gradients as eager's, with the default backend and
sizes that change.

By hand: `python tests/fuzz/test_data_symbols.py COUNT SEED`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from told import strides
from torch import Tensor

import bolide

COUNT = 40  # programs of a run

#: what a number is read with, of `x` (rows, 3) and small integers `l`
NUMBERS = (
    "(x[:, 0] > 0).sum().item()",
    "int(l.max())",
    "l.sum().item() % 5",
    "len(torch.nonzero(x[:, 0] > 0))",
    "torch.unique(l).shape[0]",
)
#: statements; `v` is the new variable, `a` one of the tensors before, `n` a number
STATEMENTS = (
    "{v} = {a}[:{n}]",
    "{v} = {a}[{n}:]",
    "{v} = {a} * {n}",
    "{v} = torch.cat([{a}, x.new_zeros({n}, 3)])",
    "{v} = {a}[{a}[:, 0] > 0]",
    "{v} = torch.cat([{a}[{a}.sum(1) > 0], {a}[{a}.sum(1) <= 0]])",
    "{v} = {a}.repeat_interleave(torch.full(({a}.shape[0],), 2), 0)",
    "{v} = torch.tanh({a}) + {n}",
    "{v} = {a}.index_select(0, torch.arange({a}.shape[0]).flip(0))",
    "{v} = {a}.sum(0, keepdim=True).expand({n} + 1, 3) * 1.5",
    "{v} = {a} + {a}.mean().item()",
    "{v} = {a} / ({a}.square().sum().item() + 1)",
    "{v} = {a} * {a}.sum().item() if {n} > 2 else {a}",
    "{v} = {a} * ({a}.shape[0] - {n})",
    "{v} = torch.where({a} > 0, {a}, {a} * {n})",
    "{v} = torch.zeros_like({a}).index_put((torch.nonzero({a}[:, 0] > 0).squeeze(1),), {a}[{a}[:, 0] > 0])",
    "{v} = torch.arange({n} + 2, dtype=x.dtype)[:, None] * {a}.sum(0)",
    "{v} = {a}.reshape(-1)[: {n} * 3].reshape(-1, 3)",
    "{v} = {a} @ torch.eye(3, dtype=x.dtype)",
    "{v} = {a}.exp().cumsum(0)",
    "{v} = torch.nn.functional.pad({a}, (0, 0, 0, {n}))",
    "{v} = x.new_ones({n}, 3) * {a}.sum().item()",
    "{v} = torch.stack([{a}.sum(0)] * 2) if ({a} > 0).any() else {a}",
    "{v} = {a}\n    for trip in range({n} % 3):\n        {v} = {v} + trip",
    "{v} = torch.cat([part * i for i, part in enumerate({a}.split([{n}, {a}.shape[0] - {n}]))]) "
    "if {n} <= {a}.shape[0] else {a}",
)

#: what is returned beside the tensors: shapes that depend on whether a size is 0 or 1
SHAPES = (
    "{a}.squeeze(0)",
    "{a}[{a}[:, 0] > 0].squeeze()",
    "{a}.T.squeeze(-1) * 2",
    "{a}[:1][{a}[:1, 0] > 0].flatten()",
    "{a}[:1, :1][{a}[:1, 0] > 0].reshape(-1)",
    "x[x[0, 0] > 0][..., 0]",
    "{a}[{a}[:, 0] > 0][None] + x[:1]",
    "{a}.unsqueeze(1) * x[0]",
    "{a}.flatten()",
    "{a}[{a}[:, 0] > 0].sum(1).view(-1, 1)",
    "torch.atleast_2d({a}[{a}[:, 0] > 0].sum(1))",
)


def program(draw: random.Random) -> str:
    """The source of a function of `x` and `l`, which returns tensors and a number."""
    lines, tensors, numbers = [f"n = {draw.choice(NUMBERS)}"], ["x"], ["n", "(n + 1)"]
    for place in range(draw.randint(2, 6)):
        statement = draw.choice(STATEMENTS)
        lines.append(statement.format(v=f"v{place}", a=draw.choice(tensors), n=draw.choice(numbers)))
        tensors.append(f"v{place}")
    shapes = [draw.choice(SHAPES).format(a=draw.choice(tensors)) for _ in range(draw.randint(0, 2))]
    return "\n    ".join(["def f(x, l):", *lines, f"return [{', '.join([*tensors[1:], *shapes])}], n"])


def outcome(function: Callable[..., Any], x: Tensor, lengths: Tensor) -> Any:
    """What a call returns with the gradient of `x`, or what it raises."""
    x = x.clone().requires_grad_()
    try:
        values, number = function(x, lengths)
    except Exception as error:
        return error
    total = sum(value.sum() for value in values if value.requires_grad)
    return values, number, torch.autograd.grad(total, x)[0] if isinstance(total, Tensor) else None


def agree(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        assert type(ours) is type(theirs), repr(ours)
        return
    assert (type(ours[1]), ours[1]) == (type(theirs[1]), theirs[1])
    torch.testing.assert_close((ours[0], ours[2]), (theirs[0], theirs[2]), equal_nan=True)
    for mine, other in zip(ours[0], theirs[0]):
        assert (strides(mine), mine.requires_grad) == (strides(other), other.requires_grad)


def check(seed: int) -> None:
    """Compile one random program and call it with four inputs."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    source = program(draw)
    namespace: dict[str, Any] = {"torch": torch}
    exec(source, namespace)
    function = namespace["f"]
    bolide.reset()
    compiled = bolide.compile(function, dynamic=draw.choice([None, None, True]))
    for call in range(4):
        x = torch.randn(draw.choice([3, 5, 5, 8, 1]), 3, generator=numbers, dtype=torch.float64)
        x -= draw.choice([0, 0, 1.0, 3.0])  # a mask of few rows, of one, of none
        lengths = torch.randint(0, draw.choice([3, 200]), (draw.choice([2, 70]),), generator=numbers) % 7
        try:
            agree(outcome(compiled, x, lengths), outcome(function, x, lengths))
        except Exception as error:
            raise AssertionError(f"seed {seed}, call {call}: {error}\n{source}") from error


def test_random_programs_with_numbers_that_are_data(seed: int) -> None:
    for number in range(COUNT):
        check(seed + number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    bolide.dynamo.config.suppress_errors = False
    count, first = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for number in range(first, first + count):
        try:
            check(number)
        except AssertionError as failure:
            failed += 1
            print(failure, flush=True)
    print(f"{count} programs from {first}: {failed} differ")
