"""Copies between devices that the host does not wait for.

A program may copy to or from pinned memory with ``non_blocking=True``, and wait by what it does next (`item`, say).
Here other steps may come in between: so a copy waits, after all, where the block itself goes on to write what it reads,
or to use what it gives. What is only given out is as eager's: the program has to wait before it looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.plan import Block, Call, Copy, Free, Launch, Reuse, Step, TensorInput, View, used_names
from bolide.inductor.plan.schemas import overload_of, signature_of
from bolide.inductor.plan.steps import blocks_of, refs_in, tensors_given, types_of, with_blocks

_OPTION = "non_blocking"


def settled(block: Block, constants: Sequence[TensorInput], kernels: Sequence[Kernel]) -> Block:
    """The block with the copies that have to wait changed. In blocks of its steps all wait."""
    if not any(_place(step) is not None or blocks_of(step) for step in block.steps):
        return block
    types = types_of((*block.inputs, *constants), block.steps)
    roots: dict[str, str] = {}
    for step in block.steps:
        if isinstance(step, (View, Reuse)):
            roots[step.name] = roots.get(step.base, step.base)
    steps: list[Step] = []
    for number, step in enumerate(block.steps, 1):
        if isinstance(step, Call) and _place(step) is not None:
            sources = [name for name in refs_in(step.arguments) if types[name].device == CPU]
            given = [result.name for result in tensors_given(step) if result.type.device == CPU]
            rest = block.steps[number:]
            uses = {name for later in rest for name in _used(later, kernels, written=False)}
            writes = {name for later in rest for name in _used(later, kernels, written=True)}
            pairs = ((sources, writes), (given, uses))
            if any(_share(names, others, roots) for names, others in pairs):
                step = _waiting(step)
        steps.append(with_blocks(step, _all_wait))
    return replace(block, steps=tuple(steps))


def _share(names: Iterable[str], others: Iterable[str], roots: Mapping[str, str]) -> bool:
    """Whether tensors of both have the same memory."""
    return not {roots.get(name, name) for name in names}.isdisjoint([roots.get(name, name) for name in others])


def _place(step: Step) -> int | None:
    """Where among its arguments a call says that it does not wait; None if it does."""
    if not isinstance(step, Call):
        return None
    names = [parameter.name for parameter in signature_of(overload_of(step.operator)).parameters]
    place = names.index(_OPTION) if _OPTION in names else None
    return place if place is not None and step.arguments[place] is True else None


def _waiting(step: Call) -> Call:
    place = _place(step)
    assert place is not None
    return replace(step, arguments=(*step.arguments[:place], False, *step.arguments[place + 1 :]))


def _all_wait(block: Block) -> Block:
    steps = [_waiting(step) if isinstance(step, Call) and _place(step) is not None else step for step in block.steps]
    return replace(block, steps=tuple([with_blocks(step, _all_wait) for step in steps]))


def _used(step: Step, kernels: Sequence[Kernel], written: bool) -> list[str]:
    """The tensors whose memory a step uses, or, if only those count, may write."""
    if isinstance(step, (View, Reuse, Free)):
        return []
    if written and isinstance(step, Launch):
        params = kernels[step.kernel].launch_params
        return [name for name, param in zip(step.arguments, params, strict=True) if param.role != "in"]
    if written and isinstance(step, Copy):
        return [step.target]
    if written and isinstance(step, Call) and not overload_of(step.operator)._schema.is_mutable:
        return []
    return used_names(step)
