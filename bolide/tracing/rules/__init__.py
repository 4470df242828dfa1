"""Shape rules: what an operation gives, from what is known of its operands."""

from bolide.tracing.rules import random
from bolide.tracing.rules.registry import RULES, infer, rule

__all__ = ["RULES", "infer", "random", "rule"]
