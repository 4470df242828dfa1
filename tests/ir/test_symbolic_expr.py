"""Integer expressions agree with Python's integers, and the simplifications that indexing relies on happen."""

from __future__ import annotations

import pickle
import random

import pytest

from bolide.symbolic import Expr, as_expr

X, Y = Expr.var("i", 0, 15), Expr.var("j", 0, 7)
S, T = Expr.var("s", 2), Expr.var("t", 2)


@pytest.mark.parametrize(
    ("simplified", "wanted"),
    [
        ((8 * X + Y) // 8, X),
        ((8 * X + Y) % 8, Y),
        ((X // 8) * 8 + X % 8, X),
        ((X // 4) // 2, X // 8),
        (X // 16, Expr.const(0)),
        (X % 16, X),
        ((12 * X + Y % 4) // 8, (3 * X) // 2),
        ((8 * X + Y) // 4 % 2, Y // 4),
        ((X % 8) % 4, X % 4),
        ((64 * X + 8 * Y + 3) // 8, 8 * X + Y),
        ((S * X) // S, X),
        ((S * X + Expr.var("k", 0, S - 1)) // S, X),
        ((S * T * X + T * Expr.var("k", 0, S - 1) + Expr.var("l", 0, T - 1)) // (S * T), X),
        ((S * X + Expr.var("k", 0, S - 1)) % S, Expr.var("k", 0, S - 1)),
        ((X // S) * S + X % S, X),
        (Expr.min(X, 15), X),
        (Expr.max(Y, 7), Expr.const(7)),
        ((S + 1) * (S - 1) - S * S, Expr.const(-1)),
        ((X // 64) * 64 + ((X % 64) // 8) * 8 + X % 8, X),
    ],
)
def test_simplifies(simplified: Expr, wanted: Expr) -> None:
    assert simplified is wanted


def test_large_index_splits_and_joins() -> None:
    n = Expr.var("n", 0, 2 * 3 * 5 * 7 - 1)
    assert (n // 35) * 35 + (n // 7) % 5 * 7 + n % 7 is n
    a, b = Expr.var("a", 0, 4), Expr.var("b", 0, 6)
    flat = 7 * a + b
    assert (flat // 7, flat % 7) == (a, b)


def test_conditions_fold_by_bounds() -> None:
    assert X.lt(16).value and X.ge(0).value and not X.gt(20).value and not (2 * X).eq(3).value
    assert X.ne(16).value
    assert X.lt(8).negate() == X.ge(8)
    assert S.ge(2 * X + 1).text() == "s >= 2*i + 1"
    assert (2 * X).eq(2 * Y) == Y.eq(X) or (2 * X).eq(2 * Y) == X.eq(Y)


def test_coefficients() -> None:
    index = S * 4 * X + 3 * Y + 1
    assert index.coefficient("i") is 4 * S
    assert index.coefficient("j") is as_expr(3)
    assert index.coefficient("k") is as_expr(0)
    assert (X // 2).coefficient("i") is None
    assert (X * X).coefficient("i") is None


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        _ = X // 0


def test_pickle_gives_the_same_object() -> None:
    for expr in (S * X // 3 + Expr.min(X, Y) % 5, Expr.var("k", 0, S - 1), as_expr(3)):
        assert pickle.loads(pickle.dumps(expr)) is expr


def _random_pair(rng: random.Random, depth: int, variables: dict[str, Expr]) -> tuple[Expr, str]:
    """A random expression and the Python source of what it must equal."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.4:
            value = rng.choice([-7, -2, -1, 0, 1, 2, 3, 4, 8, 16, 35])
            return as_expr(value), f"({value})"
        name = rng.choice(list(variables))
        return variables[name], name
    op = rng.choice(["+", "-", "*", "+", "-", "*", "//", "%", "//", "%", "min", "max"])
    (a, left) = _random_pair(rng, depth - 1, variables)
    if op in ("//", "%"):
        divisor = rng.choice([1, 2, 3, 4, 6, 8, 12, -3, "s", "t", "2*s", "s*t", "s+1"])
        exact = eval(str(divisor), {"s": S, "t": T})
        return (a // exact if op == "//" else a % exact), f"({left} {op} ({divisor}))"
    (b, right) = _random_pair(rng, depth - 1, variables)
    if op in ("min", "max"):
        return getattr(Expr, op)(a, b), f"{op}({left}, {right})"
    return {"+": a + b, "-": a - b, "*": a * b}[op], f"({left} {op} {right})"


def test_random_expressions_agree_with_integers() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    print("seed", seed)
    variables = {
        "i": X,
        "j": Y,
        "k": Expr.var("k", 0, S - 1),
        "n": Expr.var("n", -9, 40),
        "u": Expr.var("u", None, None),
        "s": S,
        "t": T,
    }
    for _ in range(1500):
        expr, source = _random_pair(rng, 4, variables)
        for _ in range(6):
            s = rng.randint(2, 9)
            values = {
                "i": rng.randint(0, 15),
                "j": rng.randint(0, 7),
                "k": rng.randint(0, s - 1),
                "n": rng.randint(-9, 40),
                "u": rng.randint(-99, 99),
                "s": s,
                "t": rng.randint(2, 9),
            }
            wanted = eval(source, dict(values))
            where = f"seed {seed}: {source} -> {expr.text()} at {values}"
            assert expr.evaluate(values) == wanted, where
            assert eval(expr.text(), dict(values)) == wanted, where
            assert expr.subs(values).value == wanted, where
            lo, hi = expr.bounds()
            assert (lo is None or lo <= wanted) and (hi is None or wanted <= hi), where
            for cond, truth in (
                (expr.ge(3), wanted >= 3),
                (expr.lt(X), wanted < values["i"]),
                (expr.eq(Y), wanted == values["j"]),
            ):
                assert cond.evaluate(values) == truth == (not cond.negate().evaluate(values)), where
                assert eval(cond.text(), dict(values)) == truth, where
            partial = expr.subs({"i": 3 * Y + 1, "n": S - 2 * X})
            moved = dict(values, i=3 * values["j"] + 1, n=values["s"] - 2 * values["i"])
            if moved["i"] <= 15 and -9 <= moved["n"] <= 40:
                assert partial.evaluate(values) == expr.evaluate(moved), where
