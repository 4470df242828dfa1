"""The oracle of plans: runs one step after the other, calls by torch, kernels by their own oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.ir.interpret import interpret as run_kernel
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.plan.plan import Plan
from bolide.inductor.plan.schemas import overload_of, signature_of
from bolide.inductor.plan.steps import (
    ERRORS,
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
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
    TensorType,
    Value,
    View,
    Word,
    types_of,
)
from bolide.inductor.plan.verify import span_of
from bolide.symbolic import Cond, Expr

Words = dict[str, int]
Tensors = dict[str, torch.Tensor]


def interpret(
    plan: Plan,
    inputs: Sequence[object],
    constants: Mapping[str, torch.Tensor] | None = None,
    objects: Sequence[object] = (),
) -> tuple[object, ...]:
    """The results of a plan on `inputs`; `constants` and `objects` are what stands beside it."""
    return _run(_Loaded(plan, constants or {}, objects), plan.block, inputs)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A plan with what stands beside it."""

    plan: Plan
    constants: Mapping[str, torch.Tensor]
    objects: Sequence[object]


def _run(loaded: _Loaded, block: Block, inputs: Sequence[object]) -> tuple[object, ...]:
    tensors: Tensors = dict(loaded.constants)
    words: Words = {}
    for given, value in zip(block.inputs, inputs, strict=True):
        if isinstance(given, TensorInput):
            assert isinstance(value, torch.Tensor)
            tensors[given.name] = value
        else:
            assert isinstance(value, int)
            words[given.name] = value
    types = types_of((*block.inputs, *loaded.plan.constants), block.steps)
    for step in block.steps:
        if isinstance(step, Launch):
            _launch(loaded.plan.kernels[step.kernel], step, types, tensors, words)
        elif isinstance(step, (Branch, Repeat)):
            values = _blocks(loaded, step, tensors, words)
            tensors.update(zip([result.name for result in step.results], values, strict=True))
        else:
            _step(step, tensors, words, loaded.objects)
    return tuple([_value(result, tensors, words, loaded.objects) for result in block.results])


def _blocks(loaded: _Loaded, step: Branch | Repeat, tensors: Tensors, words: Words) -> Sequence[torch.Tensor]:
    """What a step with blocks gives."""
    given = [_value(argument, tensors, words, ()) for argument in step.arguments]
    values: Sequence[object]
    if isinstance(step, Branch):
        values = _run(loaded, step.then if tensors[step.flag] else step.otherwise, given)
    else:
        values = [tensors[name] for name in step.carried]
        while all(_run(loaded, step.condition, [*values, *given])):
            values = _run(loaded, step.body, [*values, *given])
    return values  # type: ignore[return-value]


def _sizes(exprs: Sequence[Expr], words: Words) -> list[int]:
    return [expr.evaluate(words) for expr in exprs]


def _step(step: Step, tensors: Tensors, words: Words, objects: Sequence[object]) -> None:
    if isinstance(step, Alloc):
        kind = step.type
        shape, stride = _sizes(kind.shape, words), _sizes(kind.stride, words)
        tensors[step.name] = torch.empty_strided(shape, stride, dtype=kind.dtype, device=kind.device)
    elif isinstance(step, Reuse):
        tensors[step.name] = tensors[step.base]
    elif isinstance(step, View):
        base = tensors[step.base]
        place = base.storage_offset() + step.offset.evaluate(words)
        shape, stride = _sizes(step.type.shape, words), _sizes(step.type.stride, words)
        tensors[step.name] = base.as_strided(shape, stride, place)
    elif isinstance(step, Call):
        _call(step, tensors, words, objects)
    elif isinstance(step, (Word, Item, Size)):
        words[step.name] = _told(step, tensors, words)
    elif isinstance(step, Check):
        if bool(tensors[step.flag]) != step.expected:
            raise ERRORS[step.error](step.message)
    elif isinstance(step, Require):
        if not Cond(step.relation, step.expr).evaluate(words):
            raise ERRORS[step.error](step.message)
    elif isinstance(step, Copy):
        tensors[step.target].copy_(tensors[step.source])
    elif isinstance(step, Free):
        for name in step.names:
            del tensors[name]


def _told(step: Word | Item | Size, tensors: Tensors, words: Words) -> int:
    if isinstance(step, Word):
        return step.expr.evaluate(words)
    return int(tensors[step.tensor].item()) if isinstance(step, Item) else tensors[step.tensor].shape[step.dim]


def _launch(kernel: Kernel, step: Launch, types: Mapping[str, TensorType], tensors: Tensors, words: Words) -> None:
    sizes = _sizes(step.sizes, words)
    for at in reversed(range(kernel.batch)):  # as good as any order
        flat = {}
        for name, param in zip(step.arguments[at * len(kernel.params) :], kernel.params):
            room = span_of(types[name]).evaluate(words)
            flat[param.name] = tensors[name].as_strided((max(room, 0),), (1,))
        run_kernel(kernel, flat, dict(zip(kernel.sizes, sizes[at * len(kernel.sizes) :])))


def _call(step: Call, tensors: Tensors, words: Words, objects: Sequence[object]) -> None:
    op = overload_of(step.operator)
    positional: list[object] = []
    named: dict[str, object] = {}
    for parameter, value in zip(signature_of(op).parameters, step.arguments):
        given = _value(value, tensors, words, objects)
        if parameter.keyword:
            named[parameter.name] = given
        else:
            positional.append(given)
    answer = op(*positional, **named)
    _bind(step.results, (answer,) if len(step.results) == 1 else answer or (), tensors, words)


def _bind(results: tuple[Result, ...], answers: Sequence[object], tensors: Tensors, words: Words) -> None:
    for result, answer in zip(results, answers, strict=True):
        if isinstance(result, tuple):
            assert isinstance(answer, (tuple, list))
            _bind(result, answer, tensors, words)
        elif isinstance(answer, torch.Tensor) and result is not None:
            tensors[result.name] = answer
        elif result is not None:
            assert isinstance(answer, int)
            words[result.name] = answer


def _value(value: Value, tensors: Tensors, words: Words, objects: Sequence[object]) -> object:
    if isinstance(value, tuple):
        return [_value(item, tensors, words, objects) for item in value]
    if isinstance(value, Ref):
        return tensors[value.name]
    if isinstance(value, Foreign):
        return objects[value.index]
    return value.evaluate(words) if isinstance(value, Expr) else value
