"""The compiled check of an entry, the search for the failed guard, and a plain reading of the guards give one verdict
on random values."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bolide.dynamo.entry.replay import make_entry
from bolide.dynamo.guards import texts as guards
from bolide.dynamo.guards.asked import first_failure
from bolide.dynamo.program.captured import GraphFacts, Guard, Recipe, Replay, Source
from bolide.dynamo.program.sources import Signature


def call(x: Any, y: Any) -> Any: ...


SIGNATURE = Signature.of(call.__code__)
X, Y = Source("local", None, "x"), Source("local", None, "y")
SCALARS = [
    0,
    1,
    True,
    False,
    None,
    1.0,
    0.0,
    -0.0,
    math.nan,
    -1,
    "a",
    "b",
    b"a",
    (1, 2),
    (1, True),
    (1.0, 2),
    slice(1),
    slice(True),
]


def make_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(["scalar", "scalar", "tensor", "tensor", "list", "dict", "object"][: 7 if depth < 3 else 4])
    if kind == "scalar":
        return rng.choice(SCALARS)
    if kind == "tensor":
        base = torch.zeros(rng.choice([(2,), (2, 3), (3, 2), (1,), ()]), dtype=rng.choice([torch.float32, torch.int64]))
        if base.dtype is torch.float32 and rng.random() < 0.3:
            base.requires_grad_()
        return base.t() if base.dim() == 2 and rng.random() < 0.3 else base
    if kind == "list":
        return [make_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == "dict":
        return {key: make_value(rng, depth + 1) for key in rng.sample(["a", "b", "c", 1, True], rng.randrange(4))}
    return SimpleNamespace(**{key: make_value(rng, depth + 1) for key in rng.sample(["a", "b"], rng.randrange(3))})


def guards_of(value: Any, source: Source, rng: random.Random) -> list[Guard]:
    """What capture would record when it reads all of `value`."""
    if isinstance(value, torch.Tensor):
        return [Guard(source, "tensor", guards.tensor_guard(value))]
    if isinstance(value, list):
        inner = [g for i, item in enumerate(value) for g in guards_of(item, Source("item", source, i), rng)]
        return [Guard(source, "type", list), Guard(source, "length", len(value)), *inner]
    if isinstance(value, dict):
        inner = [g for k, item in value.items() for g in guards_of(item, Source("dict_value", source, k), rng)]
        return [Guard(source, "type", dict), Guard(source, "dict_keys", list(value)), *inner]
    if isinstance(value, SimpleNamespace):
        inner = [g for k, item in vars(value).items() for g in guards_of(item, Source("attr", source, k), rng)]
        absent = [Guard(source, "has_attr", (k, False)) for k in ("a", "b") if not hasattr(value, k)]
        return [Guard(source, "type", SimpleNamespace), *absent, *inner]
    return [Guard(source, "equals", value)]


def alike(a: Any, b: Any) -> bool:
    """Whether a program reading everything of `a` could not tell it from `b`."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.shape, a.stride(), a.dtype, a.requires_grad, a.is_leaf or not a.requires_grad) == (
            (b.shape, b.stride(), b.dtype, b.requires_grad, b.is_leaf or not b.requires_grad)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return alike(list(a), list(b)) and alike(list(a.values()), list(b.values()))
    if isinstance(a, SimpleNamespace):
        return set(vars(a)) == set(vars(b)) and all(alike(v, vars(b)[k]) for k, v in vars(a).items())
    return repr(a) == repr(b)


@pytest.mark.parametrize("seed", range(60))
def test_verdicts_agree(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    x, y = make_value(rng), make_value(rng)
    found = [*guards_of(x, X, rng), *guards_of(y, Y, rng)]
    checks = guards.prepare(found, guards.global_state())
    facts = GraphFacts(empty=True, raises=False, refutable=False, final=False, writes=False, draws=False)
    program = Replay("call", (), facts, Recipe("constant", "hit"))
    entry = make_entry(
        SIGNATURE, program, checks, lambda _: [], 0, lambda *_: None, lambda *_: "miss", lambda *_: "eager"
    )
    others = [make_value(rng) for _ in range(30)]
    for a, b in [(x, y), *((rng.choice([x, other]), rng.choice([y, other])) for other in others)]:
        expected = alike(x, a) and alike(y, b)
        assert (entry.function(a, b) == "hit") is expected, (x, y, a, b, entry.source)
        readable = entry.check.readable(a, b)
        assert (readable is not None) is expected, (x, y, a, b, entry.source)
        failure = first_failure(checks, SIGNATURE, (a, b), {})
        assert (failure is None) is expected, (failure, a, b)
        assert all(guards.text(guard) for guard in checks)
