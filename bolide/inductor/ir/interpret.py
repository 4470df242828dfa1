"""The oracle of loop IR: runs a kernel with torch operations, statement by statement.

Loops run in Python; a vector loop without inner loops runs all its iterations at once, each value a tensor over them.
Sums of floats are kept in float64, so that the result is what
any order of summation should be near to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bolide.inductor.ir.evaluate import Scalars, integer
from bolide.inductor.ir.loops import Access, Init, Kernel, Loop, Node, Stmt, Store, Update


@dataclass(slots=True)
class _Accumulator:
    init: Init
    value: torch.Tensor | None = None
    position: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        op, dtype = self.init.op, self.init.dtype
        if op in ("argmin", "argmax"):
            return torch.tensor((1 << 63) - 1) if self.position is None else self.position
        return identity(op, dtype) if self.value is None else self.value.to(dtype)


def identity(op: str, dtype: torch.dtype) -> torch.Tensor:
    """The reduction of nothing."""
    if op in ("sum", "xor", "any", "prod", "all"):
        return torch.tensor(int(op in ("prod", "all")), dtype=dtype)
    if dtype == torch.bool:
        return torch.tensor(op == "min")
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if dtype.is_floating_point:
        return torch.tensor(float("inf") if op == "min" else float("-inf"), dtype=dtype)
    return torch.tensor(limits.max if op == "min" else limits.min, dtype=dtype)


def interpret(kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
    """Run `kernel` on flat tensors, which it changes in place. IndexError for an access outside a buffer."""
    memory = dict(buffers)
    env: dict[str, Any] = dict(sizes or {})
    for local in kernel.locals:
        memory[local.name] = torch.zeros(integer(local.numel, env), dtype=local.dtype)
    _Machine(memory, env).run(kernel.body)


class _Values(Scalars):
    """Values of nodes at one point, or at all points of a vector loop."""

    def __init__(self, machine: _Machine) -> None:
        super().__init__(machine.memory, machine.env)
        self.accumulators = machine.accumulators

    def _value(self, node: Node) -> torch.Tensor:
        return self.accumulators[node.arg].read() if node.op == "acc" else super()._value(node)

    def load(self, node: Node) -> torch.Tensor:
        """Elements of a buffer."""
        index, mask = self.place(node.arg, [self.value(operand) for operand in node.src])
        values = self.buffers[node.arg.buffer][torch.where(mask, index, 0)] if bool(mask.any()) else None
        zero = torch.zeros(mask.shape, dtype=node.dtype)
        return zero if values is None else torch.where(mask, values, zero)

    def place(self, access: Access, operands: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The indices and where they are used."""
        mask = operands.pop() if access.masked else torch.tensor(True)
        env = self.env | {f"${k}": operand.long() for k, operand in enumerate(operands)}
        index, mask = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
            torch.as_tensor(integer(access.index, env)), mask
        )
        used = index[mask]
        numel = self.buffers[access.buffer].numel()
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= numel):
            span = f"{int(used.min())} … {int(used.max())}"
            raise IndexError(f"{access.buffer}[{access.index}]: {span} of {numel}")
        return index, mask


class _Machine:
    def __init__(self, memory: dict[str, torch.Tensor], env: dict[str, Any]) -> None:
        self.memory, self.env = memory, env
        self.accumulators: dict[str, _Accumulator] = {}

    def run(self, body: Sequence[Stmt]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Init):
                self.accumulators[statement.name] = _Accumulator(statement)
            elif isinstance(statement, Update):
                self._update(statement)
            else:
                self._store(statement)

    def _loop(self, loop: Loop) -> None:
        extent = integer(loop.axis.extent, self.env)
        flat = all(isinstance(statement, (Store, Update)) for statement in loop.body)
        if loop.axis.kind in ("vector", "reduce_vector") and flat:
            if extent > 0:
                self.env[loop.axis.name] = torch.arange(extent)
                self.run(loop.body)
        else:
            for position in range(extent):
                self.env[loop.axis.name] = position
                self.run(loop.body)
        self.env.pop(loop.axis.name, None)

    def _lanes(self) -> list[int]:
        grids = [value for value in self.env.values() if isinstance(value, torch.Tensor)]
        return [grids[0].numel()] if grids else [1]

    def _update(self, statement: Update) -> None:
        accumulator = self.accumulators[statement.name]
        values = _Values(self)
        new = values.value(statement.value).expand(self._lanes())
        op = accumulator.init.op
        if op == "sum" and new.dtype.is_floating_point:
            new = new.double()
        if accumulator.value is not None:
            new = torch.cat([accumulator.value.reshape(1), new])
        if statement.position is not None:
            positions = values.value(statement.position).expand(self._lanes())
            if accumulator.position is not None:
                positions = torch.cat([accumulator.position.reshape(1), positions])
            best = int(new.argmin() if op == "argmin" else new.argmax())
            same = (new == new[best]) | (new.isnan() & new[best].isnan())
            accumulator.value, accumulator.position = new[best], positions[same].min()
        else:
            accumulator.value = _reduce(op, new)

    def _store(self, statement: Store) -> None:
        values = _Values(self)
        index, mask = values.place(statement.access, [values.value(node) for node in statement.src])
        lanes = index.shape if index.ndim else self._lanes()
        index, mask = index.expand(lanes), mask.expand(lanes)
        value = values.value(statement.value).expand(lanes)[mask]
        buffer = self.memory[statement.access.buffer]
        if statement.mode == "set":
            buffer[index[mask]] = value
        else:
            buffer.index_put_((index[mask],), value, accumulate=True)


def _reduce(op: str, values: torch.Tensor) -> torch.Tensor:
    if op == "xor":
        result = values[0]
        for value in values[1:]:
            result = result ^ value
        return result
    if op in ("sum", "prod"):
        return values.sum(dtype=values.dtype) if op == "sum" else values.prod(dtype=values.dtype)
    if op in ("any", "all"):
        return values.any() if op == "any" else values.all()
    return values.amin() if op == "min" else values.amax()
