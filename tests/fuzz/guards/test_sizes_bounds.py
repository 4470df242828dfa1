"""Lower bounds of random size expressions hold for random sizes."""

from __future__ import annotations

import random

import torch

from bolide.symbolic import Expr
from bolide.tracing import Trace


def _random(rng: random.Random, variables: list[Expr], depth: int = 0) -> Expr:
    kind = rng.random()
    if kind < 0.4 or depth > 2:
        return rng.choice(variables)
    if kind < 0.5:
        return Expr.const(rng.randint(-4, 4))
    a = _random(rng, variables, depth + 1)
    if kind < 0.85:
        b = _random(rng, variables, depth + 1)
        return a + b if kind < 0.65 else a - b if kind < 0.75 else a * b
    divisor = rng.randint(1, 5)
    return a // divisor if kind < 0.95 else a % divisor


def test_no_value_is_below_the_bound() -> None:
    seed = torch.randint(1 << 30, ()).item()
    print("seed", seed)
    rng = random.Random(seed)
    bounded = 0
    for _ in range(1500):
        variables = [Expr.var("a", rng.choice([0, 1, 2])), Expr.var("b", rng.choice([-3, 2])), Expr.var("c", 2, 9)]
        expr = _random(rng, variables) - _random(rng, variables)
        least = expr.least()
        bounded += least > float("-inf")
        for _ in range(10):
            values = {}
            for variable in variables:
                lo, hi = variable.bounds()
                values[variable.text()] = rng.randint(lo or 0, hi or rng.choice([3, 5, 40]))
            assert expr.evaluate(values) >= least, (expr, values)
    assert bounded > 300


def test_bounds_that_sizes_need() -> None:
    a, b = Expr.var("a", 2), Expr.var("b", 2)
    assert (a * b - b - 1).least() == 1  # a product of sizes is larger than one of them
    assert (a - a // 2).least() == 1 and (2 * ((a + 1) // 2) - a).least() == 0  # halves fit


def test_operations_without_a_rule_keep_symbolic_sizes() -> None:
    trace = Trace()
    n = trace.size(6, "n")
    x = trace.input(torch.randn(6, 4), "x", {0: n})
    with trace.recording():
        values, places = x.kthvalue(1, 0)
        assert values.shape == (4,) and places.shape == (4,)
        largest = x.cummax(0).values
        assert largest.shape[0].node.expr is n.node.expr and largest.shape[1] == 4
        assert not trace.shapes.guards
        half = torch.fft.rfft(x, dim=0)  # n // 2 + 1 is none of its sizes
    assert half.shape[0].node.expr is n.node.expr // 2 + 1 and not trace.shapes.guards
