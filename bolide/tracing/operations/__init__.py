"""How each operation is recorded. What is imported here fills the table of handlers."""

from bolide.tracing.operations import draws, factories, generators, kinds, primitives, questions, sequences, views
from bolide.tracing.operations.registry import HANDLERS

__all__ = ["HANDLERS", "draws", "factories", "generators", "kinds", "primitives", "questions", "sequences", "views"]
