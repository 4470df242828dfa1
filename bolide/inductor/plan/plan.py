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
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Input,
    Item,
    Launch,
    Ref,
    Repeat,
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
    WordResult,
    types_of,
)
from bolide.symbolic import Expr


class DamagedBytes(ValueError):
    """Bytes that `codec.decode` cannot read: damaged, or of another version of the format."""


class CannotLeave(TypeError):
    """Something that lives in this process only, and what has it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What running a compiled graph does: steps over named tensors. `inputs` are the call's, in order; the tensors that
    `constants` name are given when the plan is loaded; `results` are tensors, integers or None."""

    inputs: tuple[Input, ...]
    constants: tuple[TensorInput, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    results: tuple[Value, ...]

    @property
    def block(self) -> Block:
        """Its steps as a block, which may also write to its inputs, give them up and give them."""
        return Block(self.inputs, self.steps, self.results)

    def words(self) -> set[str]:
        """The words that are inputs."""
        return self.block.words()

    def text(self) -> str:
        """The plan for people, one step a line; `plan.parse.parse` reads it."""
        first, *rest = _block("plan", self.block, self.kernels)
        return "\n".join([first, *(f"  constant {_input(constant)}" for constant in self.constants), *rest])

    def types(self) -> dict[str, TensorType]:
        """The type of every tensor by name."""
        return types_of((*self.inputs, *self.constants), self.steps)


# ---- text -----------------------------------------------------------------------------------------------------------


def _block(head: str, block: Block, kernels: Sequence[Kernel]) -> list[str]:
    lines = [line for step in block.steps for line in step_text(step, kernels).splitlines()]
    lines.append(f"return {_list(map(value_text, block.results))}".rstrip())
    return [f"{head}({_list(map(_input, block.inputs))})", *(f"  {line}" for line in lines)]


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
    """One step, a line; those of a step's blocks follow it, further in."""
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
    if isinstance(step, (Branch, Repeat)):
        return "\n".join(_parts(step, kernels))
    if isinstance(step, (Word, Item, Size)):
        return f"{step.name}: word = {_told(step)}"
    if isinstance(step, (Check, Require)):
        told = f"{step.flag} is {step.expected}" if isinstance(step, Check) else f"{step.expr} {step.relation} 0"
        return f"require {told} else {step.error}: {step.message!r}"
    if isinstance(step, Copy):
        return f"copy {step.target} <- {step.source}"
    assert isinstance(step, Free)
    return f"free {', '.join(step.names)}"


def _parts(step: Branch | Repeat, kernels: Sequence[Kernel]) -> list[str]:
    arguments = _list(map(value_text, step.arguments))
    if isinstance(step, Branch):
        told = f"branch {step.flag}({arguments})"
        parts = [*_block("then", step.then, kernels), *_block("else", step.otherwise, kernels)]
    else:
        told = f"repeat {_list(step.carried)}({arguments})"
        parts = [*_block("while", step.condition, kernels), *_block("do", step.body, kernels)]
    results = _list(map(_result, step.results))
    return [f"{results} = {told}" if results else told, *(f"  {line}" for line in parts)]


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
