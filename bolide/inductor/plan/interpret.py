"""The oracle of plans: runs one step after the other, calls by torch, kernels by their own oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bolide.inductor.ir.interpret import interpret as run_kernel
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.plan.plan import Plan
from bolide.inductor.plan.schemas import overload_of, signature_of
from bolide.inductor.plan.steps import (
    ERRORS,
    Alloc,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Item,
    Launch,
    Ref,
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
    tensors: Tensors = dict(constants or {})
    words: Words = {}
    for given, value in zip(plan.inputs, inputs, strict=True):
        if isinstance(given, TensorInput):
            assert isinstance(value, torch.Tensor)
            tensors[given.name] = value
        else:
            assert isinstance(value, int)
            words[given.name] = value
    types = plan.types()
    for step in plan.steps:
        if isinstance(step, Launch):
            _launch(plan.kernels[step.kernel], step, types, tensors, words)
        else:
            _step(step, tensors, words, objects)
    return tuple([_value(result, tensors, words, objects) for result in plan.results])


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
    flat = {}
    for name, param in zip(step.arguments, kernel.params):
        room = span_of(types[name]).evaluate(words)
        flat[param.name] = tensors[name].as_strided((max(room, 0),), (1,))
    run_kernel(kernel, flat, dict(zip(kernel.sizes, _sizes(step.sizes, words))))


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
