"""Random programs whose branches leave tensors as they are: which results are the same objects, which share memory with
each other and with arguments, what writes to them change, and gradients are eager's.

By hand: `python tests/correctness/in_place/test_branch_aliases.py COUNT [SEED]`.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import bolide
from bolide.support.errors import BolideWarning

SEED = int(os.environ.get("BOLIDE_TEST_SEED", "0"))
PROGRAMS = 10
WRITTEN = "modified by an inplace operation"
RESULTS = ("v0, v1, v2", "v0, v1", "(v2,)", "v0, x, v2", "[v0, v0, v1]", "v1 * 2, v0")
VIEWED = ("v0, v0.view(-1)", "v1[0], v1", "v2, v2.t(), v0", "v0[1:], v0, v1")


def program(chance: random.Random) -> str:
    """The source of a function of tensors x and w and of three bools, given to it or kept by an object."""

    def value() -> str:
        i, k = chance.randrange(3), chance.randrange(3)
        new = (f"v{i}.cos()", f"v{i} * 2", f"v{i} + v{k}", f"v{i}.tanh()")
        old = (f"v{i}", f"v{k}", f"v{i}.view(-1, 4)", f"v{i}.reshape(v{i}.shape)", f"v{i}.t().t()", "x")
        return chance.choice((*new, *old))

    def condition() -> str:
        i = chance.randrange(3)
        return chance.choice((f"v{i}.sum() > 0", "x[0, 0] > 0", "a", "b", "not c", f"v{i}.mean() > w.mean()"))

    def write() -> str:
        i = chance.randrange(3)
        return chance.choice((f"v{i}.add_(1)", f"v{i}[0] = 0.5", f"v{i}.mul_(v{chance.randrange(3)}.detach())"))

    def statement() -> list[str]:
        name, kind = f"v{chance.randrange(3)}", chance.random()
        if kind < 0.35:
            return [f"if {condition()}:", f"    {name} = {value()}"]
        if kind < 0.5:
            other = chance.choice((name, "v0", "v1"))
            return [f"if {condition()}:", f"    {name} = {value()}", "else:", f"    {other} = {value()}"]
        if kind < 0.6:
            return [f"{name} = {value()} if {condition()} else {value()}"]
        if kind < 0.75:
            return [f"{name} = {value()}"]
        if kind < 0.85:
            return [write()]
        inner = [f"if {condition()}:", f"    if {condition()}:", f"        {name} = {value()}"]
        return [*inner, "    else:", f"        {name} = {value()}"]

    lines = ["v0 = x * 1.5", "v1 = v0.sin()", chance.choice(("v2 = w + 1", "v2 = w"))]
    for _ in range(chance.randint(3, 7)):
        lines += statement()
    body = "\n".join(f"    {line}" for line in (*lines, f"return {chance.choice(chance.choice((RESULTS, VIEWED)))}"))
    if chance.random() < 0.5:
        return f"def fn(x, w, a, b, c):\n{body}\n"
    return f"def fn(x, w, box):\n    a, b, c = box.a, box.b, box.c\n{body}\n"


def observed(fn: Callable[..., Any], x: Tensor, w: Tensor, given: list[Any], grad: bool) -> dict[str, Any]:
    """What a caller can see of a call. RuntimeError where a gradient is refused."""
    x, w = x.clone().requires_grad_(grad), w.clone()
    results = list(fn(x, w, *given))
    every = [*results, x, w]
    seen: dict[str, Any] = {
        "objects": [[a is b for b in every] for a in every],
        "memory": [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in every] for a in every],
        "kinds": [(each.requires_grad, each.is_leaf, each.stride(), each.storage_offset()) for each in every],
        "values": [each.detach().clone() for each in every],
    }
    derived = [each.square().sum() for each in results if each.requires_grad]
    if derived:
        seen["gradient"] = torch.autograd.grad(torch.stack(derived).sum(), x, allow_unused=True)
    with torch.no_grad():
        for number, each in enumerate(results):
            each.add_(1.0)
            seen[f"after writing to result {number}"] = [other.detach().clone() for other in every]
    return seen


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Tensor):
        return isinstance(found, Tensor) and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


def wrong(seed: int, calls: int = 8) -> str | None:
    """What differs from eager in the program of a seed, with its text."""
    chance = random.Random(seed)
    source, name, namespace = program(chance), f"<aliases {seed}>", dict[str, Any]()
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), namespace)
    fn, grad = namespace["fn"], chance.random() < 0.7
    bolide.reset()
    compiled, drawn = bolide.compile(fn), torch.Generator().manual_seed(seed)
    for call in range(calls):
        x, w = torch.randn(2, chance.choice((2, 3, 5)), 4, generator=drawn)
        flags = [chance.random() < 0.5 for _ in range(3)]
        given = [SimpleNamespace(**dict(zip("abc", flags)))] if "box" in source else flags
        try:
            wanted = observed(fn, x, w, given, grad)
        except RuntimeError:  # eager refuses gradients of what was saved and written to
            continue
        try:
            found = observed(compiled, x, w, given, grad)
        except RuntimeError as error:  # a graph checks all that it has saved, also for the ways that were not taken
            if WRITTEN in str(error):
                continue
            raise
        for what in wanted:
            if not same(found[what], wanted[what]):
                return f"seed {seed}, call {call}, {flags}, grad {grad}: {what}\n{source}"
    return None


def test_results_of_branches_share_what_they_share_in_eager() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BolideWarning)
        for seed in range(SEED * 1000, SEED * 1000 + PROGRAMS):
            problem = wrong(seed)
            assert problem is None, problem


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from sweep_tools import by_hand

    by_hand(wrong)
