"""What a library is made of, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from bolide.inductor.ir.loops import CPU
from bolide.inductor.plan import Plan, Ref, TensorInput
from bolide.symbolic import Expr
from bolide.symbolic.expr import Relation

Number = int | float | bool


@dataclass(frozen=True)
class Constant:
    """A tensor that a library holds, by the name that the model has for it; `kind`: of `layout`. `tensor` is on the
    CPU, `device` says where it is used."""

    name: str
    tensor: torch.Tensor
    kind: int
    device: torch.device = CPU


@dataclass(frozen=True)
class Requirement:
    """``expr relation 0`` must hold of sizes of inputs. `message`: what is told if not, with a place for `shown`."""

    expr: Expr
    relation: Relation
    message: str
    shown: Expr


@dataclass(frozen=True)
class Contents:
    """A program for a library.

    `plan`: its constants go by names of its own, `constants` has the tensors in the same order. `given`: for each input
    of the library the plan's, or None where it is not read; `inputs`, `outputs`: what messages call them. `writes`:
    the places of inputs that are written. `words`: which size of which of the plan's inputs each of its words is.
    `results`: tensors of the plan, sizes, and constants.
    `leaves`: what each leaf of the result is, "tensor", "number" or "none". `fixed`: the texts of the arguments' leaves
    that are no tensors, by their places among all: the program is for these only. `device`: the GPU of the program, or
    the CPU.
    """

    plan: Plan
    constants: tuple[Constant, ...]
    given: tuple[TensorInput | None, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    writes: tuple[int, ...]
    words: dict[str, tuple[str, int]]
    requirements: tuple[Requirement, ...]
    results: tuple[Ref | Expr | Number | None, ...]
    leaves: tuple[str, ...]
    fixed: dict[int, str]
    device: torch.device
    in_spec: str
    out_spec: str

    def facts(self) -> str:
        """What `load` has to know beyond what PyTorch's runner tells, as JSON."""
        return json.dumps({"leaves": self.leaves, "fixed": self.fixed, "device": str(self.device)})
