"""Shape rules: what an operation gives, from what is known of its operands. Importing the modules fills the table."""

from bolide.tracing.rules import indexing, linear, pointwise, random, reductions, views
from bolide.tracing.rules.registry import RULES, answers, infer, rule

__all__ = ["RULES", "answers", "indexing", "infer", "linear", "pointwise", "random", "reductions", "rule", "views"]
