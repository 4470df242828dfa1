"""Shapes of results for operations without a rule, where sizes are symbolic.

torch is asked three times: for the sizes of this run and for two others, in which every symbol is another prime. A
result's size is the one among the operands' sizes that explains all three answers, or a number if they agree. An
operation whose results are explained in no such way gets fixed sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from bolide.symbolic import ShapeEnv, as_expr
from bolide.tracing.meta import TensorMeta, contiguous_strides

_PRIMES = ((11, 13, 17, 19, 23, 29, 31), (37, 7, 29, 41, 5, 13, 19))
Values = Mapping[str, int]


def by_probes(ask: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    """The metas of the results with symbolic sizes, or None if they cannot be told. `ask` gives those for arguments
    without symbols; what it raises for this run's sizes passes through."""
    sizes = list(_sizes([*args, *kwargs.values()]))
    symbolic = [size for size in sizes if type(size) is torch.SymInt]
    if not symbolic:  # only the places where views begin
        return ask(_valued(args, {}), _valued(kwargs, {}))
    env: ShapeEnv = symbolic[0].node.env
    names = sorted(set().union(*(size.node.expr.free_vars for size in symbolic)))
    if len(names) > len(_PRIMES[0]):
        return None
    trials: list[Values] = [{name: env.hints[name] for name in names}]
    trials += [dict(zip(names, primes)) for primes in _PRIMES]
    answers = [ask(_valued(args, trials[0]), _valued(kwargs, trials[0]))]
    try:
        answers += [ask(_valued(args, values), _valued(kwargs, values)) for values in trials[1:]]
    except Exception:  # sizes that depend on one another
        return None
    known = {tuple(_of(size, values) for values in trials): size for size in reversed(sizes)}
    return _explained(env, answers, known, trials)


def _explained(env: ShapeEnv, answers: list[Any], known: Mapping[tuple[int, ...], Any], trials: list[Values]) -> Any:
    first = answers[0]
    if isinstance(first, TensorMeta):
        shape = _matched(list(zip(*(answer.shape for answer in answers))), known)
        if shape is None or any(len(answer.shape) != len(first.shape) for answer in answers):
            return None
        plain = contiguous_strides(shape)
        if all(answer.stride == tuple(_of(step, values) for step in plain) for answer, values in zip(answers, trials)):
            return first._replace(shape=shape, stride=plain)
        stride = _matched(list(zip(*(answer.stride for answer in answers))), known)
        return None if stride is None else first._replace(shape=shape, stride=stride)
    if not isinstance(first, tuple):
        return None
    parts = [_explained(env, [answer[i] for answer in answers], known, trials) for i in range(len(first))]
    return None if any(part is None for part in parts) else tuple(parts)


def _matched(columns: list[tuple[int, ...]], known: Mapping[tuple[int, ...], Any]) -> tuple[Any, ...] | None:
    """For each size in all trials what it is in general."""
    found = [column[0] if len(set(column)) == 1 else known.get(column) for column in columns]
    return None if any(size is None for size in found) else tuple(found)


def _sizes(value: Any) -> Iterator[Any]:
    """All sizes and strides among arguments."""
    if isinstance(value, TensorMeta):
        yield from (*value.shape, *value.stride)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sizes(item)
    elif type(value) is torch.SymInt:
        yield value


def _of(size: Any, values: Values) -> int:
    return size if type(size) is int else as_expr(size).evaluate(values)


def _valued(value: Any, values: Values) -> Any:
    """Arguments with numbers for symbols. Results do not depend on where in its memory a view begins."""
    cls = value.__class__
    if cls is torch.SymInt:
        return _of(value, values)
    if cls is TensorMeta:
        return TensorMeta(_valued(value.shape, values), _valued(value.stride, values), 0, *value[3:])
    if cls is dict:
        return {key: _valued(item, values) for key, item in value.items()}
    return cls(_valued(item, values) for item in value) if cls is list or cls is tuple else value
