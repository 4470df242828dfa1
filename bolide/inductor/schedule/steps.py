"""From units in order to the steps of a Plan: memory is taken before its first use and given back after the last
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from bolide.inductor.ir import definitions
from bolide.inductor.ir.definitions import Extern, WriteBack, described
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.walks import is_impure, map_leaves
from bolide.inductor.plan import (
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Input,
    Launch,
    Ref,
    Repeat,
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
    defined_names,
    used_names,
)
from bolide.inductor.plan.schemas import ANY, arguments_of, operator_of, refuse, signature_of, typed
from bolide.inductor.plan.steps import all_of_words, of_words, renamed
from bolide.inductor.runtime import externs
from bolide.inductor.runtime.results import keeps_its_word
from bolide.inductor.schedule.calls.checks import steps_of
from bolide.inductor.schedule.calls.expansions import EXPANSIONS, torchs
from bolide.inductor.schedule.reuse import reuse_in_place, shared_memory
from bolide.inductor.schedule.stages import Buffer, Scheduling
from bolide.symbolic import Expr, without_zeros

if TYPE_CHECKING:
    from bolide.inductor.plan.batches import Batcher


class StepWriter:
    """Appends the steps of one unit after the other. `inputs`: the names of the call's arguments; `given`: the tensors
    that are there from the start, these and constants; `kernels` and `objects`: the plan's, so far."""

    def __init__(
        self,
        ctx: Scheduling,
        inputs: Sequence[str],
        given: Sequence[definitions.Input],
        kernels: list[Kernel],
        objects: list[object],
    ) -> None:
        self.ctx, self.kernels, self.objects = ctx, kernels, objects
        tensors = [TensorInput(tensor.name, type_of(ctx.buffers[tensor.name])) for tensor in given]
        known = {tensor.name: tensor for tensor in tensors}
        self.inputs: tuple[Input, ...] = tuple([known.get(name) or WordInput(name) for name in inputs])
        self._given = frozenset(inputs)
        self.constants = tuple([tensor for tensor in tensors if tensor.name not in self._given])
        self.steps: list[Step] = []
        self._tensors = set(known)
        self._given = frozenset(known)
        self._checks: list[Step] = []
        self._views: dict[definitions.View, str] = {}
        self._seen: dict[str, TensorType] = {}  # types of views

    def launch(self, place: int, arguments: tuple[str, ...], homes: Mapping[str, str]) -> None:
        """Runs a kernel; buffers that it is the first to write are allocated, or are in the memory of inputs."""
        kernel = self.kernels[place]
        written = [name for name, param in zip(arguments, kernel.params) if param.role != "in"]
        if any(name in self._given or name in homes for name in written):
            self._check()
        for name in written:
            if name not in self._tensors:
                self._tensors.add(name)
                if name in homes:
                    self.steps.append(Reuse(name, homes[name]))
                    continue
                buffer = self.ctx.buffers[name]
                stride = without_zeros(buffer.shape, buffer.layout.stride)
                self.steps.append(Alloc(name, type_of(buffer, stride)))
        sizes = tuple([Expr.var(size, None, None) for size in kernel.sizes])
        self.steps.append(Launch(place, arguments, sizes))

    def call(self, extern: Extern, homes: Mapping[str, str]) -> None:
        """Runs a library call, or what stands in its place. Checks that only say that an error is raised wait until
        something else than a computation of torch's follows, or an input is written."""
        extern = torchs(extern)
        steps = steps_of(extern, self.ctx.buffers, self.ref)
        if steps is not None and all(isinstance(step, Check) and not step.expected for step in steps):
            self._checks += steps
            return
        told = steps is not None and all(isinstance(step, (Size, Word)) for step in steps)
        home = next((homes[name] for name in extern.names if name is not None and name in homes), None)
        if not told and (is_impure(extern) or not keeps_its_word(extern.op) or home is not None):
            self._check()
        if steps is not None:
            self.steps += steps
        elif extern.op in EXPANSIONS:
            self._expand(extern)
        else:
            self._call(extern, home)

    def blocks(self, extern: Extern, blocks: Sequence[Block]) -> None:
        """Runs a call of programs, which have become these blocks."""
        self._check()
        *flag, operands, sizes, _ = extern.args
        given = [self.ref(view) for view in operands]
        arguments: tuple[Ref | Expr, ...] = (*given, *map(of_words, sizes))
        results = tuple([result for result in self._results(extern)[0] if isinstance(result, TensorResult)])  # type: ignore[union-attr]
        first, second = blocks
        if flag:
            self.steps.append(Branch(self.ref(flag[0]).name, arguments, first, second, results))
        else:
            carried = [self._copied(value, result) for value, result in zip(given, results)]
            self.steps.append(Repeat(tuple(carried), arguments[len(carried) :], first, second, results))
        self._tensors.update(defined_names(self.steps[-1]))

    def region(self, extern: Extern, block: Block, buffers: Mapping[str, Buffer]) -> None:
        """Writes the steps of a block, which has the `buffers`, under names of this call's."""
        self._check()
        operands, *_ = extern.args
        names = {given.name: self.ref(view).name for given, view in zip(block.inputs, operands)}
        returned = [value.name for value in block.results if isinstance(value, Ref)]
        names |= {name: wanted for name, wanted in zip(returned, extern.names) if wanted is not None}
        prefix = next((name for name in extern.names if name is not None), f"region{len(self.steps)}")
        for step in block.steps:
            for name in defined_names(step):
                names.setdefault(name, f"{prefix}_{name}")
        for name, buffer in buffers.items():
            if name in names:
                self.ctx.buffers.setdefault(names[name], buffer)
        self.steps += [renamed(step, names) for step in block.steps]
        self._tensors.update(names.values())

    def _copied(self, value: Ref, like: TensorResult) -> str:
        """A copy of a tensor, what a loop begins with."""
        copy = TensorResult(f"{like.name}_start", like.type)
        clone = torch.ops.aten.clone.default
        self.steps.append(Call(operator_of(clone), arguments_of(clone, (value,), {}, refuse), (copy,)))
        return copy.name

    def _check(self) -> None:
        """The checks that have waited."""
        self.steps += self._checks
        self._checks.clear()

    def _call(self, extern: Extern, home: str | None = None) -> None:
        """A call whose result is in memory of its own, or in that of the input `home`."""
        op, results = extern.op, self._results(extern)
        args, kwargs = map_leaves((extern.args, extern.kwargs), (definitions.View, Expr), self._argument)
        if home is not None:
            (name,) = extern.names
            assert name is not None
            self.steps.append(Reuse(name, home))
            self._tensors.add(name)
            op, kwargs, results = externs.WRITING[op], {**kwargs, "out": Ref(name)}, (None,)
        where = extern.origin.where if extern.origin else ""
        self.steps.append(Call(operator_of(op), arguments_of(op, args, kwargs, self._keep), results, where))
        self._tensors.update(defined_names(self.steps[-1]))

    def _expand(self, extern: Extern) -> None:
        args, kwargs = map_leaves((extern.args, extern.kwargs), definitions.View, self.ref)
        (name,) = extern.names
        assert name is not None
        given = [value.name for value in args if isinstance(value, Ref)]
        types = {name: self._seen.get(name) or type_of(self.ctx.buffers[name]) for name in given}
        where = extern.origin.where if extern.origin else ""
        self.steps += EXPANSIONS[extern.op](name, where, types, *args, **kwargs)
        self._tensors.add(name)

    def _argument(self, value: definitions.View | Expr) -> Ref | Expr:
        return of_words(value) if isinstance(value, Expr) else self.ref(value)

    def _keep(self, value: object) -> Foreign:
        place = next((at for at, known in enumerate(self.objects) if known is value), len(self.objects))
        if place == len(self.objects):
            self.objects.append(value)
        return Foreign(place)

    def _results(self, extern: Extern) -> tuple[Result, ...]:
        """The results, one for each value that the operator returns."""
        if extern.binds:
            (word,) = extern.names
            assert word is not None
            return (WordResult(word),)
        types = {
            name: _type(dtype, extern.device_of(name), shape, layout.stride)
            for name, (dtype, shape, layout) in described(extern).items()
            if layout is not None
        }
        flat = tuple([None if name is None else TensorResult(name, types[name]) for name in extern.names])
        returns = signature_of(extern.op).returns
        if len(returns) == 1 and returns[0].item is not None:
            return (flat,)
        return flat + (None,) * (len(returns) - len(flat))

    def write_back(self, unit: WriteBack) -> None:
        """Copies a value into an input."""
        self._check()
        self.steps.append(Copy(unit.target, self.ref(unit.source).name))

    def ref(self, view: definitions.View) -> Ref:
        """The tensor that a View is, made on first use."""
        buffer = self.ctx.buffers[view.buffer]
        same = view.stride == buffer.layout.stride and view.offset in (None, buffer.layout.offset)
        if view.stride is None or (same and view.shape == buffer.shape):
            return Ref(view.buffer)
        name = self._views.get(view)
        if name is None:
            name = self._views[view] = f"{view.buffer}_v{len(self._views)}"
            offset = Expr.const(0) if view.offset is None else of_words(view.offset)
            seen = self._seen[name] = _type(buffer.dtype, buffer.device, view.shape, view.stride)
            self.steps.append(View(name, view.buffer, seen, offset))
        return Ref(name)

    def finish(
        self, results: Sequence[definitions.Result], batcher: Batcher | None, keeps: bool = False, part: bool = False
    ) -> Block:
        """The steps, with Free steps and what `batcher` makes of launches, unless they are to become `part` of others.
        `keeps`: what is given is not given up."""
        self._check()
        returned: list[Value] = []
        for result in results:
            known = isinstance(result, (definitions.View, Expr))
            returned.append(typed(ANY, self._argument(result) if known else result, self._keep))  # type: ignore[arg-type]
        kept = {result.name for result in returned if isinstance(result, Ref)} | (self._given if keeps else set())
        if part:
            return Block(self.inputs, tuple(self.steps), tuple(returned))
        steps = self.steps
        if batcher is not None:
            steps = batcher.batched(steps, kept, shared_memory(steps))
        steps = reuse_in_place(free_early(steps, kept), self.kernels, self.ctx.buffers, kept)
        return Block(self.inputs, tuple(steps), tuple(returned))


def type_of(buffer: Buffer, stride: tuple[Expr, ...] | None = None) -> TensorType:
    """The type of the tensor that is a buffer, or has other strides."""
    return _type(buffer.dtype, buffer.device, buffer.shape, stride or buffer.layout.stride)


def _type(dtype: torch.dtype, device: torch.device, shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> TensorType:
    return TensorType(dtype, device, all_of_words(shape), all_of_words(stride))


def free_early(steps: list[Step], kept: set[str]) -> list[Step]:
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
