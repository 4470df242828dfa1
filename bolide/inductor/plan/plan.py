"""The Plan itself, and its text for people, which `plan.parse` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.printer import dtype_text
from bolide.inductor.plan.schemas import overload_of, shown_arguments
from bolide.inductor.plan.steps import (
    Alloc,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Input,
    Item,
    Launch,
    Ref,
    Require,
    Result,
    Reuse,
    Size,
    Step,
    TensorInput,
    TensorResult,
    TensorType,
    Value,
    View,
    Word,
    WordInput,
    WordResult,
    tensors_given,
)
from bolide.symbolic import Expr


@dataclass(frozen=True, slots=True)
class Plan:
    """What running a compiled graph does: steps over named tensors. `inputs` are the call's, in order; the tensors that
    `constants` name are given when the plan is loaded; `results` are tensors, integers or None."""

    inputs: tuple[Input, ...]
    constants: tuple[TensorInput, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    results: tuple[Value, ...]

    def words(self) -> set[str]:
        """The words that are inputs."""
        return {given.name for given in self.inputs if isinstance(given, WordInput)}

    def text(self) -> str:
        """The plan for people, one step a line; `plan.parse.parse` reads it."""
        lines = [f"plan({', '.join(map(_input, self.inputs))})"]
        lines += [f"  constant {_input(constant)}" for constant in self.constants]
        lines += [f"  {step_text(step, self.kernels)}" for step in self.steps]
        return "\n".join([*lines, f"  return {', '.join(map(value_text, self.results))}".rstrip()])

    def types(self) -> dict[str, TensorType]:
        """The type of every tensor by name."""
        types = {given.name: given.type for given in (*self.inputs, *self.constants) if isinstance(given, TensorInput)}
        for step in self.steps:
            if isinstance(step, (Alloc, View)):
                types[step.name] = step.type
            elif isinstance(step, Reuse):
                types[step.name] = types[step.base]
            elif isinstance(step, Call):
                types.update({result.name: result.type for result in tensors_given(step)})
        return types


# ---- text -----------------------------------------------------------------------------------------------------------


def _input(given: Input) -> str:
    return f"{given.name}: {type_text(given.type) if isinstance(given, TensorInput) else 'word'}"


def type_text(type: TensorType) -> str:
    """``f32[8, s0] @(s0, 1)``, and the device where it is not the CPU."""
    device = "" if type.device == CPU else f" on {type.device}"
    return f"{dtype_text(type.dtype)}[{_list(type.shape)}] @({_list(type.stride)}){device}"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def value_text(value: Value) -> str:
    """An argument or a result, as Python would write it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Foreign):
        return f"foreign({value.index})"
    if isinstance(value, torch.device):
        return f"device('{value}')"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, complex):
        return f"complex({value_text(value.real)}, {value_text(value.imag)})"
    return str(value) if isinstance(value, Expr) else repr(value)


def step_text(step: Step, kernels: Sequence[Kernel]) -> str:
    """One step."""
    if isinstance(step, Alloc):
        return f"{step.name}: {type_text(step.type)} = alloc"
    if isinstance(step, Reuse):
        return f"{step.name} = reuse {step.base}"
    if isinstance(step, View):
        return f"{step.name}: {type_text(step.type)} = view {step.base} from {step.offset}"
    if isinstance(step, Launch):
        sizes = f" sizes {_list(step.sizes)}" if step.sizes else ""
        return f"launch {kernels[step.kernel].name}({', '.join(step.arguments)}){sizes}"
    if isinstance(step, Call):
        return _call(step)
    if isinstance(step, (Word, Item, Size)):
        return f"{step.name}: word = {_told(step)}"
    if isinstance(step, (Check, Require)):
        told = f"{step.flag} is {step.expected}" if isinstance(step, Check) else f"{step.expr} {step.relation} 0"
        return f"require {told} else {step.error}: {step.message!r}"
    if isinstance(step, Copy):
        return f"copy {step.target} <- {step.source}"
    assert isinstance(step, Free)
    return f"free {', '.join(step.names)}"


def _told(step: Word | Item | Size) -> str:
    if isinstance(step, Word):
        return str(step.expr)
    return f"item {step.tensor}" if isinstance(step, Item) else f"size {step.dim} of {step.tensor}"


def _call(step: Call) -> str:
    positional, named = shown_arguments(overload_of(step.operator), step.arguments)
    arguments = [*map(value_text, positional), *(f"{name}={value_text(value)}" for name, value in named.items())]
    call = f"{step.operator}({', '.join(arguments)})"
    results = ", ".join(map(_result, step.results))
    where = f"  # {step.where}" if step.where else ""
    return (f"{results} = {call}" if results else call) + where


def _result(result: Result) -> str:
    if isinstance(result, tuple):
        return f"[{', '.join(map(_result, result))}]"
    if isinstance(result, TensorResult):
        return f"{result.name}: {type_text(result.type)}"
    return f"{result.name}: word" if isinstance(result, WordResult) else "_"
