"""The oracle of loop IR: runs a kernel with torch operations, statement by statement.

Loops run in Python; a vector or reduction loop without inner loops runs all its iterations at once, each value a tensor
over them.
Sums of floats are kept in float64, so that the result is what any order of summation should be near to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.ir.evaluate import Env, Memory, NodeValues, grid, index_value, joined_into
from bolide.inductor.ir.loops import VECTOR_KINDS, Access, Init, Kernel, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.scalar_ops import identity, reduced


@dataclass(slots=True)
class _Accumulator:
    init: Init
    value: torch.Tensor | None = None
    position: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        op, dtype = self.init.op, self.init.dtype
        if op in ("argmin", "argmax"):
            return torch.tensor((1 << 63) - 1) if self.position is None else self.position
        return torch.tensor(identity(op, dtype), dtype=dtype) if self.value is None else self.value.to(dtype)


def interpret(kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
    """Run `kernel` on flat tensors, which it changes in place. IndexError for an access outside a buffer, RuntimeError
    for a flag that is set."""
    env: Env = dict(sizes or {})
    own = kernel.buffers[len(kernel.params) :]
    scratch = {one.name: torch.zeros(int(index_value(one.numel, env)), dtype=one.dtype) for one in own}
    _Machine({**buffers, **scratch}, env).run(kernel.body)
    for flag in kernel.flags:
        if scratch[flag.name].item():
            raise RuntimeError(flag.message)


class _PointValues(NodeValues):
    """Values of nodes at one point, or at all points of a vector loop."""

    def __init__(self, machine: _Machine) -> None:
        super().__init__(machine.memory, machine.env)
        self.accumulators = machine.accumulators

    def compute(self, node: Node) -> torch.Tensor:
        return self.accumulators[node.arg].read() if node.op == "acc" else super().compute(node)

    def load(self, access: Access, env: Env, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        index, mask = self.place(access, env, mask)
        buffer = self.buffers[access.buffer]
        zero = torch.zeros(mask.shape, dtype=buffer.dtype)
        return torch.where(mask, buffer[torch.where(mask, index, 0)], zero) if bool(mask.any()) else zero

    def place(self, access: Access, env: Env, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The indices and where they are used."""
        index, mask = torch.broadcast_tensors(grid(index_value(access.index, env)), mask)  # type: ignore[no-untyped-call]
        used = index[mask]
        numel = self.buffers[access.buffer].numel()
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= numel):
            span = f"{int(used.min())} … {int(used.max())}"
            raise IndexError(f"{access.buffer}[{access.index}]: {span} of {numel}")
        return index, mask


class _Machine:
    def __init__(self, memory: Memory, env: Env) -> None:
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
        extent = int(index_value(loop.axis.extent, self.env))
        if any(isinstance(inner, Update) and self.accumulators[inner.name].init.op == "sort" for inner in loop.body):
            self._sort(loop, extent)
            return
        flat = all(isinstance(statement, (Store, Update)) for statement in loop.body)
        at_once = loop.axis.kind in (*VECTOR_KINDS, "reduce") and flat and extent > 0
        ordered = loop.axis.bound is None or loop.axis.kind == "scan"
        positions = range(extent) if ordered else reversed(range(extent))  # as good as any order
        for position in [torch.arange(extent)] if at_once else positions:
            self.env[loop.axis.name] = position
            self.run(loop.body)
        self.env.pop(loop.axis.name, None)

    def _sort(self, loop: Loop, extent: int) -> None:
        """A scan that sorts: all values first, then what is made of each, in order."""
        update, *stores = loop.body
        assert isinstance(update, Update)
        self.env[loop.axis.name] = torch.arange(extent)
        ordered = _PointValues(self).value(update.value).expand(extent).sort().values
        for place in range(extent):
            self.env[loop.axis.name] = place
            self.accumulators[update.name].value = ordered[place]
            self.run(stores)
        del self.env[loop.axis.name]

    def _lanes(self) -> list[int]:
        return next(([value.numel()] for value in self.env.values() if isinstance(value, torch.Tensor)), [1])

    def _update(self, statement: Update) -> None:
        accumulator = self.accumulators[statement.name]
        values = _PointValues(self)
        new = values.value(statement.value).expand(self._lanes())
        op = accumulator.init.op
        if op == "sum" and new.dtype.is_floating_point:
            new = new.double()
        if accumulator.value is not None:
            new = torch.cat([accumulator.value.reshape(1), new])
        accumulator.value = reduced(op, new)
        if statement.position is not None:
            positions = values.value(statement.position).expand(self._lanes())
            if accumulator.position is not None:
                positions = torch.cat([accumulator.position.reshape(1), positions])
            best = new[accumulator.value]
            same = (new == best) | (new.isnan() & best.isnan())
            accumulator.value, accumulator.position = best, positions[same].min()

    def _store(self, statement: Store) -> None:
        values = _PointValues(self)
        index, mask = values.place(statement.access, *values.operands(statement.operands, statement.access.masked))
        lanes = index.shape if index.ndim else self._lanes()
        index, mask = index.expand(lanes), mask.expand(lanes)
        value = values.value(statement.value).expand(lanes)[mask]
        buffer = self.memory[statement.access.buffer]
        if statement.mode == "set":
            buffer[index[mask]] = value
        elif statement.mode == "any":
            buffer[index[mask][value]] = True
        else:
            joined_into(buffer, index[mask], value, statement.mode)
