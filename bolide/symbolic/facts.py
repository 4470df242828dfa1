"""What is known of integers that are data: symbols without a value while tracing."""

from __future__ import annotations

from collections.abc import Sequence

from bolide.symbolic.expr import Cond, Expr


class Facts:
    """The symbols whose values are data (`names`), and the conditions on them that the program has checked."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._known: set[Cond] = set()
        self._positive: list[Expr] = []  # expressions that are at least 0
        self._least: dict[
            str, int
        ] = {}  # lower bounds of symbols, where they are better than those they were made with

    def add(self, condition: Cond) -> None:
        """Note that a condition holds."""
        if condition.is_const:
            return
        self._known.add(condition)
        if condition.op in (">=", "=="):
            self._add_positive(condition.expr)
        if condition.op == "==":
            self._add_positive(-condition.expr)

    def _add_positive(self, expr: Expr) -> None:
        self._positive.append(expr)
        if len(expr.free_vars) == 1:
            (name,) = expr.free_vars
            least = -expr.offset
            if (expr + least) is expr.variables()[name]:  # name - least >= 0
                self._least[name] = max(least, self._least.get(name, least))

    def decide(self, condition: Cond, least: int | None = None) -> bool | None:
        """Whether a condition holds for all values that are possible; None if that does not follow from the bounds of
        the symbols and one fact. `least`: as if no size among the symbols (what is at least 0, and may be that large)
        were less than that."""
        if condition in self._known or condition.negate() in self._known:
            return condition in self._known
        raised = self._raised(condition.expr, least)
        expr = condition.expr.subs(raised) if raised else condition.expr
        facts = [fact.subs(raised) if raised else fact for fact in self._positive]
        if condition.op == ">=":
            return True if is_at_least_0(expr, facts) else False if is_at_least_0(-expr - 1, facts) else None
        if is_at_least_0(expr - 1, facts) or is_at_least_0(-expr - 1, facts):
            return condition.op == "!="
        if is_at_least_0(expr, facts) and is_at_least_0(-expr, facts):
            return condition.op == "=="
        return None

    def _raised(self, expr: Expr, least: int | None) -> dict[str, Expr]:
        """The symbols in `expr` that are known to be larger than what they were made with."""
        found = {}
        for name, variable in expr.variables().items():
            lo, hi = variable.bounds()
            better = self._least.get(name, lo)
            is_size = name in self.names and better is not None and better >= 0
            if least is not None and is_size and not is_at_least_0(least - 1 - variable, self._positive):
                better = max(better or 0, least)
            if better is not None and (lo is None or better > lo):
                found[name] = Expr.var(name, better, hi if hi is None or hi >= better else None)
        return found


def is_at_least_0(expr: Expr, facts: Sequence[Expr], depth: int = 3) -> bool:
    """Whether an expression is never negative, by its bounds or because it is at least one that is not; minima and
    maxima are taken apart up to `depth` times."""
    if expr.least() >= 0 or any((expr - fact).least() >= 0 for fact in facts):
        return True
    for mono, coefficient in expr.terms if depth else ():
        if len(mono) == 1 and mono[0].kind in ("min", "max"):
            rest = expr - mono[0].as_expr() * coefficient
            either = (mono[0].kind == "max") is (coefficient > 0)  # the larger of two numbers, or of two losses
            cases = (is_at_least_0(arg * coefficient + rest, facts, depth - 1) for arg in mono[0].args)
            if any(cases) if either else all(cases):
                return True
    return False
