"""Shape rules: what an operation gives, from what is known of its operands. Importing the modules fills the table."""

from bolide.tracing.rules import factories, indexing, linear, pointwise, reductions, views
from bolide.tracing.rules.registry import RULES, answers, infer, rule

__all__ = ["RULES", "answers", "factories", "indexing", "infer", "linear", "pointwise", "reductions", "rule", "views"]
