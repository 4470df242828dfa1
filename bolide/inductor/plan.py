"""The Plan: what running a compiled graph does, as plain serialisable data.

A plan is a list of steps over named values. A value is a tensor (a buffer or a view of one) or an integer size; sizes
are ints or `Expr`s over the plan's size variables. `runtime.driver` makes a Python function of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.walks import map_leaves
from bolide.symbolic import Expr

Dim = int | Expr


@dataclass(frozen=True, slots=True)
class Ref:
    """A named tensor of the plan, where it stands among an Extern's arguments or the results."""

    name: str


@dataclass(frozen=True, slots=True)
class Alloc:
    """`name` is a new tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Reuse:
    """`name` is a new tensor in the memory of `base`, which has its dtype, shape and strides and is not read again."""

    name: str
    base: str


@dataclass(frozen=True, slots=True)
class AsStrided:
    """`name` is `base` seen as (shape, stride, offset), counted in elements from the first element of `base`, which
    need not be the first of its storage."""

    name: str
    base: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs ``kernels[kernel]`` on `arguments` (tensors, in the order of its params) and `sizes` (in the order of its
    sizes)."""

    kernel: int
    arguments: tuple[str, ...]
    sizes: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What a tensor that a Call gives has to be."""

    dtype: torch.dtype
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Runs a library call (an ATen overload, or what `runtime.externs` put in its place) and names its results, whose
    `expected` say what they have to be (None: no tensor, or unused).

    `args` and `kwargs` hold `Ref`s for tensors, at any depth of lists and tuples. `single`: the call returns one
    tensor, not a tuple."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str | None, ...]
    expected: tuple[Expected | None, ...]
    single: bool
    where: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """The elements of `source` are written to graph input `target`."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Free:
    """These tensors are not used again."""

    names: tuple[str, ...]


Step = Alloc | Reuse | AsStrided | Launch | Call | Copy | Free


@dataclass(slots=True)
class Plan:
    """`inputs` names the call's inputs in order (tensors and ints); `results` are Refs, ints, Exprs or None."""

    inputs: tuple[str, ...]
    steps: list[Step]
    results: tuple[Ref | Dim | None, ...]
    kernels: list[Kernel]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    def text(self) -> str:
        """The plan for people, one step a line."""
        lines = [f"plan({', '.join(self.inputs)})"]
        lines += [f"  {_step_text(step, self.kernels)}" for step in self.steps]
        return "\n".join([*lines, f"  return {', '.join(_value_text(r) for r in self.results)}"])


def used_names(step: Step) -> list[str]:
    """The tensors a step reads, writes or looks at (a Free uses nothing; results of a step are not among them)."""
    if isinstance(step, (AsStrided, Reuse)):
        return [step.base]
    if isinstance(step, Launch):
        return list(step.arguments)
    if isinstance(step, Call):
        refs: list[Ref] = []
        map_leaves((step.args, step.kwargs), Ref, refs.append)
        return [ref.name for ref in refs]
    if isinstance(step, Copy):
        return [step.target, step.source]
    return []


def defined_names(step: Step) -> list[str]:
    """The tensors a step makes."""
    if isinstance(step, (Alloc, Reuse, AsStrided)):
        return [step.name]
    if isinstance(step, Call):
        return [name for name in step.names if name is not None]
    return []


def _value_text(value: object) -> str:
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value_text(v) for v in value) + "]"
    return str(value)


def _step_text(step: Step, kernels: list[Kernel]) -> str:
    if isinstance(step, Alloc):
        return f"{step.name} = alloc {step.dtype} {_value_text(step.shape)} strides {_value_text(step.stride)}"
    if isinstance(step, Reuse):
        return f"{step.name} = reuse {step.base}"
    if isinstance(step, AsStrided):
        strides = f"{_value_text(step.shape)} strides {_value_text(step.stride)} offset {step.offset}"
        return f"{step.name} = view {step.base} {strides}"
    if isinstance(step, Launch):
        sizes = f" sizes {_value_text(step.sizes)}" if step.sizes else ""
        return f"launch {kernels[step.kernel].name}({', '.join(step.arguments)}){sizes}"
    if isinstance(step, Call):
        keywords = "".join(f", {k}={_value_text(v)}" for k, v in step.kwargs.items())
        names = ", ".join(name or "_" for name in step.names)
        return f"{names} = {step.op}({', '.join(_value_text(a) for a in step.args)}{keywords})"
    if isinstance(step, Copy):
        return f"copy {step.target} <- {step.source}"
    return f"free {', '.join(step.names)}"
