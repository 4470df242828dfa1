"""Arithmetic in bfloat16, two elements an instruction, where it gives what eager's float32 does once it is rounded.

float32 has as many exponents as bfloat16 and more than twice its digits: what is rounded to it first is rounded to the
same bfloat16 afterwards (Figueroa, "When is double rounding innocuous?", 1995)."""

from __future__ import annotations

import torch

from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.instructions import constant
from bolide.inductor.codegen.scope import Scope
from bolide.inductor.ir.loops import Node

_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul"}


def in_bfloat16(values: Scope, node: Node) -> Value | None:
    """The value of a cast to bfloat16 of a sum, difference or product in float32 of two bfloat16s; None for others."""
    whole = node.src[0] if node.op == "cast" and node.dtype is torch.bfloat16 else node
    if whole.op not in _OPERATIONS or whole.dtype is not torch.float32 or whole is node:
        return None
    operands = [_narrow(values, operand) for operand in whole.src]
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    if any(operand.lanes > 1 for operand in known):
        known = [values.wide(operand) for operand in known]
    b = values.b
    left, right = (b.bitcast(operand, "bfloat") for operand in known)
    return b.bitcast(b.binary(_OPERATIONS[whole.op], left, right), "i16")


def _narrow(values: Scope, node: Node) -> Value | None:
    """The bfloat16 that a float32 is made of, or a number that one holds."""
    if node.op == "const" and values.dependences.short.is_short(node):
        return constant(values.b, node.arg, torch.bfloat16)
    is_made = node.op == "cast" and node.src[0].dtype is torch.bfloat16
    return values.recall(node.src[0]) if is_made else None
