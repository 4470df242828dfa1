"""From units in order to the steps of a Plan: memory is taken before its first use and given back after the last
one."""

from __future__ import annotations

from bolide.inductor.ir.definitions import Extern, Result, View, WriteBack, described
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.walks import map_leaves
from bolide.inductor.plan import (
    Alloc,
    AsStrided,
    Call,
    Copy,
    Expected,
    Free,
    Launch,
    Plan,
    Ref,
    Step,
    defined_names,
    used_names,
)
from bolide.inductor.schedule.reuse import reuse_in_place
from bolide.inductor.schedule.stages import Scheduling
from bolide.symbolic import Expr, without_zeros


class StepWriter:
    """Appends the steps of one unit after the other."""

    def __init__(self, ctx: Scheduling, inputs: tuple[str, ...]) -> None:
        self.ctx = ctx
        self.inputs = inputs
        self.steps: list[Step] = []
        self.kernels: list[Kernel] = []
        self._tensors: set[str] = set()
        self._sizes: set[str] = set()
        self._views: dict[View, str] = {}

    def launch(self, kernel: Kernel) -> None:
        """Runs a kernel; buffers that it is the first to write are allocated."""
        for param in kernel.params:
            if param.role != "in" and param.name not in self._tensors:
                self._tensors.add(param.name)
                buffer = self.ctx.buffers[param.name]
                stride = without_zeros(buffer.shape, buffer.layout.stride)
                self.steps.append(Alloc(param.name, buffer.dtype, buffer.shape, stride))
        sizes = tuple([Expr.var(name) for name in kernel.sizes])
        self.steps.append(Launch(len(self.kernels), tuple([param.name for param in kernel.params]), sizes))
        self.kernels.append(kernel)

    def call(self, extern: Extern) -> None:
        """Runs a library call."""
        args, kwargs = map_leaves((extern.args, extern.kwargs), View, self.ref)
        single = extern.binds or [str(result.type) for result in extern.op._schema.returns] == ["Tensor"]
        frame = extern.origin and extern.origin.meta.get("where")
        where = "" if frame is None else str(frame)
        self.steps.append(Call(extern.op, args, kwargs, extern.names, self._expected(extern), single, where))
        if extern.binds:
            self._sizes.update(defined_names(self.steps[-1]))
        self._tensors.update(defined_names(self.steps[-1]))

    def _expected(self, extern: Extern) -> tuple[Expected | None, ...]:
        """What the results have to be; None for what is no tensor, and where a size is told by the result itself."""
        known = self._sizes.union(self.inputs)
        expected = {
            name: Expected(dtype, shape, layout.stride)
            for name, (dtype, shape, layout) in described(extern).items()
            if layout is not None and not extern.binds and all(known.issuperset(size.free_vars) for size in shape)
        }
        return tuple([None if name is None else expected.get(name) for name in extern.names])

    def write_back(self, unit: WriteBack) -> None:
        """Copies a value into an input."""
        self.steps.append(Copy(unit.target, self.ref(unit.source).name))

    def ref(self, view: View) -> Ref:
        """The tensor that a View is, made on first use."""
        layout = self.ctx.buffers[view.buffer].layout
        same = view.stride == layout.stride and view.offset in (None, layout.offset)
        if view.stride is None or (same and view.shape == self.ctx.buffers[view.buffer].shape):
            return Ref(view.buffer)
        name = self._views.get(view)
        if name is None:
            name = self._views[view] = f"{view.buffer}_v{len(self._views)}"
            offset = Expr.const(0) if view.offset is None else view.offset
            self.steps.append(AsStrided(name, view.buffer, view.shape, view.stride, offset))
        return Ref(name)

    def finish(self, results: list[Result]) -> Plan:
        """The plan, with Free steps."""
        returned = map_leaves(tuple(results), View, self.ref)
        steps = free_early(self.steps, self.inputs, {r.name for r in returned if isinstance(r, Ref)} | self._sizes)
        return Plan(self.inputs, reuse_in_place(steps, self.kernels, self.ctx.buffers), returned, self.kernels)


def free_early(steps: list[Step], inputs: tuple[str, ...], kept: set[str]) -> list[Step]:
    """The steps with every tensor that is not in `kept` dropped right after the last step that uses it."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in (*used_names(step), *defined_names(step)):
            last[name] = position
    dying: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in kept:
            dying.setdefault(position, []).append(name)
    done: list[Step] = []
    for position, step in enumerate(steps):
        done.append(step)
        if position in dying:
            done.append(Free(tuple(dying[position])))
    return done
