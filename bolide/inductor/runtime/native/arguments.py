"""Arguments of calls, as operands: those of functions in C, and those of operators that are called by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import torch

from bolide.inductor.plan import Call, Ref, Value
from bolide.inductor.plan.schemas import Kind, overload_of, signature_of
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native import shims
from bolide.inductor.runtime.native.program import NOTHING, Argument, Operand, Writer
from bolide.symbolic import Expr


class NoOperand(Exception):
    """An argument that no operand stands for: the call is made in Python."""


One = TypeVar("One", Operand, Argument)


def of_call(convention: Callable[[Writer, Kind, Value], list[One]], writer: Writer, step: Call) -> list[One]:
    """What stands for all arguments of a call, by one of the two conventions below. Raises NoOperand."""
    parameters = signature_of(overload_of(step.operator)).parameters
    pairs = zip(parameters, step.arguments, strict=True)
    return [each for parameter, value in pairs for each in convention(writer, parameter.kind, value)]


def in_c(writer: Writer, kind: Kind, value: Value) -> list[Operand]:
    """The operands that stand for an argument of a function in C: see `shims.parameters_of`."""
    if kind.item is not None:
        return _list_in_c(writer, kind, value)
    if value is None:
        return [NOTHING, NOTHING] if kind.base == "Device" else [NOTHING]
    if isinstance(value, Ref):
        return [(ops.SLOT if kind.optional else ops.HANDLE, writer.slots[value.name])]
    if isinstance(value, str):
        single = writer.data(value.encode())
        return [_address_of(writer, single) if kind.optional else single]
    if isinstance(value, torch.device):
        device, index = shims.device_numbers(value)
        return [(ops.LITERAL, writer.table([device])), (ops.LITERAL, index)]
    single = _word(writer, kind.base, value)
    if not kind.optional:
        return [single]
    return [(ops.PLACE, single[1]) if single[0] == ops.WORD else (ops.LITERAL, writer.table([single[1]]))]


def _list_in_c(writer: Writer, kind: Kind, value: Value) -> list[Operand]:
    if value is None:
        return [NOTHING, NOTHING]
    assert isinstance(value, tuple) and kind.item is not None
    item, length = kind.item, (ops.LITERAL, len(value))
    if item.optional:
        if value:
            raise NoOperand
        return [NOTHING, length]
    if item.base == "bool":
        address = writer.data(struct.pack(f"{len(value)}i", *map(bool, value)))
    else:
        address = _items(writer, item, value)
    return [_address_of(writer, address) if kind.optional else address, length]


def _address_of(writer: Writer, address: Operand) -> Operand:
    """The address of an address."""
    if address[0] == ops.LITERAL:
        return ops.LITERAL, writer.table([address[1]])
    raise NoOperand


def by_name(writer: Writer, kind: Kind, value: Value) -> list[Argument]:
    """What stands for an argument of an operator that is called by name."""
    if value is None:
        return [Argument(NOTHING)]
    if kind.item is not None:
        assert isinstance(value, tuple)
        form = (
            ops.FORM_WORD
            if kind.item.base != "Tensor"
            else ops.FORM_OPTIONAL_TENSOR
            if kind.item.optional
            else ops.FORM_TENSOR
        )
        return [Argument(_items(writer, kind.item, value), ops.FORM_LIST + form, len(value), kind.optional)]
    if isinstance(value, Ref):
        return [Argument((ops.HANDLE, writer.slots[value.name]), ops.FORM_TENSOR, 0, kind.optional)]
    if isinstance(value, str):
        letters = value.encode()
        return [Argument(writer.data(letters), ops.FORM_TEXT, len(letters), kind.optional)]
    if kind.base == "number":  # which torch takes from nobody by name
        raise NoOperand
    return [Argument(_word(writer, kind.base, value), optional=kind.optional)]


def _items(writer: Writer, item: Kind, values: tuple[Value, ...]) -> Operand:
    """The address of an array of words, or of handles: 0 for a tensor that is not given."""
    if item.base == "Tensor":
        if not all(isinstance(value, Ref) or (value is None and item.optional) for value in values):
            raise NoOperand
        slots = [writer.slots[value.name] if isinstance(value, Ref) else writer.spare_slot() for value in values]
        return writer.array_of_handles(slots)
    if item.base in ("int", "SymInt"):
        return writer.integers(tuple([value for value in values if isinstance(value, Expr)]))
    words = [_word(writer, item.base, value) for value in values]
    if any(kind != ops.LITERAL for kind, _ in words):
        raise NoOperand
    return ops.LITERAL, writer.table([word for _, word in words])


def _word(writer: Writer, base: str, value: Value) -> Operand:
    """A value that is neither a tensor nor a text."""
    if base in ("int", "SymInt") and isinstance(value, Expr):
        return writer.integer(value)
    if base == "bool":
        return ops.LITERAL, int(bool(value))
    if base in ("float", "number"):
        number = value.value if isinstance(value, Expr) and value.is_const else value
        if isinstance(number, (int, float)) and shims.is_exact(number):
            return ops.LITERAL, shims.bits(float(number))
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return ops.LITERAL, shims.code_of(value)
    if isinstance(value, torch.device):
        return ops.LITERAL, shims.device_word(value)
    raise NoOperand
