"""What calls give is checked against what the plan expects: kernels read it by address.

Calls of torch's own operations, and draws, are checked when a graph first runs with these sizes; operators of other
makers, and ours that run graphs of the program's, every time."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.inductor.plan import Alloc, Block, Branch, Call, Plan, Ref, Repeat, Reuse, Value, View, defined_names
from bolide.inductor.plan.schemas import overload_of
from bolide.support.errors import BolideWarning, Refuted, WrongResult
from bolide.tracing.called.branches import OVER_GRAPHS
from bolide.tracing.numbers.sizes import SIZED
from bolide.tracing.operations.kinds import SPARSE
from bolide.tracing.operations.writes import ON_COPIES, operator_in
from bolide.tracing.rng import DRAWS

_TORCHS = frozenset({"aten", "prims", "mkldnn"})
_MOST_SIZES = 4096

Sizes = tuple[int, ...]


def is_torchs(op: torch._ops.OpOverload) -> bool:
    """Whether an operation is one of torch's own."""
    return op.namespace in _TORCHS


def keeps_its_word(op: torch._ops.OpOverload) -> bool:
    """Whether an operation is one of torch's own, or draws: it gives for the same sizes always the same layout, and
    results are memory of their own unless the schema says otherwise."""
    return is_torchs(op) or op in DRAWS


def gives_new_memory(op: torch._ops.OpOverload) -> bool:
    """Whether an operation has promised that its results share memory with nothing, and that it keeps none of its
    arguments."""
    return op in OVER_GRAPHS or (
        keeps_its_word(op)
        and op is not torch.ops.aten._unsafe_view.default
        and op not in SPARSE
        and not any(result.alias_info for result in op._schema.returns)
    )


def tied_views(block: Plan | Block) -> frozenset[str]:
    """The results that are views in the memory of something else that outlives the call: another result, an input, or
    what an operator may keep. Autograd must know them as views, so that writes to one are noticed by the other."""
    returned = [result.name for result in block.results if isinstance(result, Ref)]
    bases = {step.name: step.base for step in block.steps if isinstance(step, View)}
    own = {
        name
        for step in block.steps
        if isinstance(step, (Alloc, Reuse, Branch, Repeat))
        or (isinstance(step, Call) and gives_new_memory(overload_of(step.operator)))
        for name in defined_names(step)
    }
    times = Counter([bases.get(name, name) for name in dict.fromkeys(returned)])
    return frozenset(
        [name for name in returned if name in bases and (bases[name] not in own or times[bases[name]] > 1)]
    )


def asked_for(op: torch._ops.OpOverload, arguments: tuple[Value, ...]) -> torch._ops.OpOverload:
    """The operation that the program calls: `bolide::functional` stands for others."""
    return operator_in(str(arguments[2])) if op in ON_COPIES else op


@dataclass(slots=True)
class Proofs:
    """The sizes for which the calls of a graph gave what is expected of them."""

    sizes: set[Sizes] = field(default_factory=set)
    refuted: bool = False

    def add(self, sizes: Sizes) -> None:
        """Note that a run with these sizes is done; nothing is proved once a result has had to be copied."""
        if self.refuted:
            return
        if len(self.sizes) >= _MOST_SIZES:
            self.sizes.clear()
        self.sizes.add(sizes)


@dataclass(slots=True)
class ResultCheck:
    """Of the `place`th result of one call."""

    op: torch._ops.OpOverload
    place: int
    where: str
    dtype: torch.dtype
    device: torch.device
    proofs: Proofs
    warned: bool = False

    def __call__(self, value: Any, shape: Sizes, stride: Sizes) -> torch.Tensor:
        """`value`, or, of torch's own operations, whose strides bolide may know wrong, a copy with the strides that it
        should have. What differs otherwise is the operator's fault (WrongResult) or, of torch's own, bolide's; a size
        that is data (Refuted) sends the call to eager."""
        if (
            type(value) is torch.Tensor
            and value.layout is torch.strided
            and value.dtype is self.dtype
            and value.shape == shape
            and value.stride() == stride
            and value.device.type == self.device.type
            and not value.is_conj()
            and not value.is_neg()
        ):
            return value
        return self._mended(value, shape, stride)

    def _mended(self, value: Any, shape: Sizes, stride: Sizes) -> torch.Tensor:
        expected, actual = _told(shape, self.dtype, self.device), _kind_of(value)
        if actual != expected:
            if str(self.op.name()) in SIZED:  # type: ignore[no-untyped-call]
                # that it is 0 or 1 is a condition that the program checks later
                raise Refuted("a size that is data is not the one that the program was compiled for")
            raise self._fault()(self._text(expected, actual))
        if not _same_places(shape, value.stride(), stride):
            text = self._text(f"strides {list(stride)}", f"strides {list(value.stride())}")
            if not keeps_its_word(self.op) or not _is_injective(shape, stride):
                raise self._fault()(text)
            self.proofs.refuted = True
            if not self.warned:
                self.warned = True
                warnings.warn(f"{text}\n  The result is copied, in every call.", BolideWarning, stacklevel=2)
        elif not value.is_conj() and not value.is_neg():
            return value  # type: ignore[no-any-return]
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device).copy_(value)

    def _fault(self) -> type[Exception]:
        return AssertionError if keeps_its_word(self.op) else WrongResult

    def _text(self, expected: str, actual: str) -> str:
        foreign = self.op.namespace not in ("bolide", *_TORCHS)
        says = "its fake implementation says" if foreign else "bolide expects"
        remedy = "make the fake implementation (register_fake) say what the operator gives"
        lines = [f"{self.op} gave a tensor of {actual}; {says} {expected}"]
        lines += [f"  result: {self.place}"] if self.place else []
        lines += [f"  at: {self.where}"] if self.where else []
        return "\n".join([*lines, f"  remedy: {remedy if foreign else 'please report it'}"])


def _told(shape: Sizes, dtype: torch.dtype, device: torch.device) -> str:
    return f"shape {list(shape)}, {dtype}, {device.type}"


def _kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return f"layout {value.layout}"
    if not isinstance(value, torch.Tensor) or type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"type {type(value).__name__}"
    return _told(tuple(value.shape), value.dtype, value.device)


def _same_places(shape: Sizes, left: Sizes, right: Sizes) -> bool:
    """Whether two strides lead to the same elements."""
    return 0 in shape or all(a == b or size == 1 for size, a, b in zip(shape, left, right))


def _is_injective(shape: Sizes, stride: Sizes) -> bool:
    """Whether every element has a place of its own."""
    end = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape) if size != 1):
        if step < end:
            return False
        end += step * (size - 1)
    return True
