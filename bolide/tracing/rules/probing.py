"""Shapes of results for operations without a rule, where sizes are symbolic.

torch is asked several times: for the sizes of this run and for others, in which every symbol is another prime (or, for
operations that refuse those, a multiple of what it is now; or all symbols but one are such). A size of a result is what
explains all answers: a number, a size of an operand, a simple formula of one or two of them. An operation whose results
are explained in no such way gets fixed sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bolide.symbolic import Expr, ShapeEnv, as_expr, contiguous_strides, times
from bolide.tracing.graph import mapped
from bolide.tracing.meta import TensorMeta

#: each two sizes are in both orders, and none is the same in the first two rows
_PRIMES = ((11, 13, 17, 19, 23, 29, 31), (47, 43, 41, 37, 29, 23, 19))
_MULTIPLES = ((2, 3, 5, 7, 4, 6, 9), (11, 9, 7, 5, 3, 4, 2), (5, 4, 3, 2, 9, 8, 7))
_ALONE = 53  # for one symbol
_STEPS = (1, 2, 3, 4, 5)  # of all symbols, so that there are all rests of small divisors
_SMALL = (2, 5, 3, 7, 4, 6, 8)  # sizes near the edge, which may be refused
_MOST_SIZES = 12  # of which pairs are tried
_MOST_MORE = 4  # what is added in front of a division: windows with a stride
Values = Mapping[str, int]
Ask = Callable[[Any, Any], Any]
Columns = dict[tuple[int, ...], Any]


@dataclass(frozen=True)
class Trials:
    """`values` of the symbols in each trial, and the operands' `sizes` and numbers, by what they are in each trial;
    with `strides`; and with trials in which there are none or one of something, which say little about strides:
    `edges`."""

    values: list[Values]
    sizes: Columns
    strides: Columns
    edges: Columns


def note_sizes(args: Any, kwargs: Any) -> None:
    """What is raised about these operands may be for any of their sizes, and its text may say them."""
    for size in _sizes([*args, *kwargs.values()], ("shape", "stride")):
        if type(size) is torch.SymInt:
            size.node.env.said.append(size.node.expr)


def by_probes(ask: Ask, elsewhere: Ask, args: Any, kwargs: Any) -> Any:
    """The metas of the results with symbolic sizes, or None if they cannot be told. `ask` gives those for arguments
    without symbols, of this run's sizes, and what it raises passes through; `elsewhere` those for other sizes."""
    sizes = list(_sizes([*args, *kwargs.values()], ("shape",)))
    strides = list(_sizes([*args, *kwargs.values()], ("shape", "stride")))
    symbolic = [size for size in strides if type(size) is torch.SymInt]
    if not symbolic:  # only the places where views begin
        return ask(valued(args, {}), valued(kwargs, {}))
    env: ShapeEnv = symbolic[0].node.env
    variables = {name: v for size in symbolic for name, v in size.node.expr.variables().items()}
    names = sorted(variables)
    if len(names) > len(_PRIMES[0]):
        return None
    now: Values = {name: env.hints[name] for name in names}
    try:
        first = ask(valued(args, now), valued(kwargs, now))
    except Exception:
        note_sizes(args, kwargs)
        raise
    if first is None:  # an operation without results, as what checks the errors of a factorization
        return None

    def answer(values: Values, least: int = 1) -> Any:
        """What torch says for these sizes; None if it refuses them, or if there are none of something: the strides of
        nothing say little."""
        if any(type(size) is torch.SymInt and _of(size, values) < least for size in sizes):
            return None
        try:
            return elsewhere(valued(args, values), valued(kwargs, values))
        except Exception:
            return None

    def columns(known: list[Any], trials: list[Values]) -> Columns:
        return {tuple([_of(size, values) for values in trials]): size for size in reversed(known)}

    outside = [name for name in names if not env.is_data(variables[name])]
    for held in (None, *outside) if len(names) > 1 else (None,):
        others = _tried(answer, now, [name for name in names if name != held])
        if others is not None:
            if held is not None:
                env.specialise(variables[held], now[held])
            values = [now, *(values for values, _ in others)]
            edges = [(at, said) for at in _edges(now, values, sizes) if (said := answer(at, least=0)) is not None]
            at_edges = [*values, *(at for at, _ in edges)]
            trials = Trials(values, columns(sizes, values), columns(strides, values), columns(sizes, at_edges))
            return _explained(trials, [first, *(said for _, said in (*others, *edges))])
    return None


def _edges(now: Values, values: list[Values], sizes: list[Any]) -> Iterator[Values]:
    """Trials with none or one of something, which tell symbolic sizes from numbers and from each other that are the
    same in all others: ``min(1, n)``, ``max(2, n)``."""
    alike: dict[tuple[int, ...], set[Expr]] = {}
    for size in sizes:
        column = tuple([_of(size, each) for each in values])
        alike.setdefault(column, {as_expr(column[0])} if len(set(column)) == 1 else set()).add(as_expr(size))
    unclear = {name for some in alike.values() if len(some) > 1 for expr in some for name in expr.variables()}
    for name in sorted(unclear):
        yield from ({**now, name: few} for few in (0, 1))


def _tried(answer: Callable[[Values], Any], now: Values, names: list[str]) -> list[tuple[Values, Any]] | None:
    """Other values for the symbols in `names`, and torch's answers. None if it refuses: sizes depend on one another."""
    for rows, as_factors in ((_PRIMES, False), (_MULTIPLES, True)):
        trials: list[Values] = [
            {**now, **{name: now[name] * n if as_factors else n for name, n in zip(names, row)}} for row in rows
        ]
        tried = [(values, answer(values)) for values in trials]
        if any(said is None for _, said in tried):
            continue
        more: list[Values] = [{**now, **dict(zip(names, _SMALL))}]
        more += [{**trials[0], name: _ALONE} for name in names]  # what depends on which; and must all be multiples?
        more += [{**trials[0], **{name: trials[0][name] + step for name in names}} for step in _STEPS]
        if as_factors:
            more += [{**trials[0], name: now[name] * _ALONE} for name in names]
        told = [(values, answer(values)) for values in more]
        return tried + [(values, said) for values, said in told if said is not None]
    return None


def _explained(trials: Trials, answers: list[Any]) -> Any:
    first = answers[0]
    if isinstance(first, TensorMeta):
        if any(len(answer.shape) != len(first.shape) for answer in answers):
            return None
        shape = [_formula(column, trials.edges) for column in zip(*(answer.shape for answer in answers))]
        if None in shape:
            return None
        stride = _strides(tuple(shape), answers[: len(trials.values)], trials)
        return None if stride is None else first._replace(shape=tuple(shape), stride=stride)
    if not isinstance(first, tuple):  # a number or a truth
        return first if all(answer == first for answer in answers) else None
    if any(len(answer) != len(first) for answer in answers):
        return None
    parts = [_explained(trials, [answer[i] for answer in answers]) for i in range(len(first))]
    return None if any(part is None for part in parts) else tuple(parts)


def _strides(shape: tuple[Any, ...], answers: list[Any], trials: Trials) -> tuple[Any, ...] | None:
    """Strides of dense memory, in row-major order or that of the first answer; or each by itself."""
    strides = answers[0].stride
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim), reverse=True)
    dense = contiguous_strides(tuple(shape[dim] for dim in order))
    for candidate in (contiguous_strides(shape), tuple(dense[order.index(dim)] for dim in range(len(shape)))):
        if all(
            answer.stride == tuple(_of(step, values) for step in candidate)
            for answer, values in zip(answers, trials.values)
        ):
            return candidate
    each = []
    for column in zip(*(answer.stride for answer in answers)):
        known = trials.strides.get(column)
        told = _formula(column, trials.sizes) if known is None else known
        each.append(_formula(column, trials.strides) if told is None else told)
    return None if None in each else tuple(each)


def _formula(column: tuple[int, ...], sizes: Columns) -> Any:
    """What a size of a result, in all trials, is in general."""
    if len(set(column)) == 1:
        return column[0]
    known = sizes.get(column)
    if known is not None:
        return known
    for formula in (_linear, _quotient):
        for values, size in sizes.items():
            formed = formula(column, values, size)
            if formed is not None:
                return formed
    pairs = itertools.islice(sizes.items(), _MOST_SIZES)
    for (left, a), (right, b) in itertools.combinations(pairs, 2):
        if column == tuple(map(min, left, right)):
            return torch.sym_min(a, b)  # type: ignore[no-untyped-call]
        if column == tuple(x * y for x, y in zip(left, right)):
            return times(a, b)
    return None


def _linear(column: tuple[int, ...], values: tuple[int, ...], size: Any) -> Any:
    """A multiple of a size plus a number, if that is what a size of a result is in all trials."""
    run, rise = values[1] - values[2], column[1] - column[2]
    slope = rise // run if run and rise % run == 0 else 0
    offset = column[0] - slope * values[0]
    fits = slope > 0 and all(slope * a + offset == b for a, b in zip(values, column))
    return size * slope + offset if fits else None


def _quotient(column: tuple[int, ...], values: tuple[int, ...], size: Any) -> Any:
    """A size, or a little more, divided by a number, plus a number."""
    run, rise = values[1] - values[2], column[1] - column[2]
    for k in (run // rise, run // rise + 1) if rise else ():
        rests = {a % k for a in values} if k > 1 else set()
        if len(rests) < k and rests != {0}:  # there may be others
            continue
        for more in range(min(k, _MOST_MORE) if k > 1 else 0):
            offset = column[0] - (values[0] + more) // k
            if all((a + more) // k + offset == b for a, b in zip(values, column)):
                return (size + more) // k + offset
    return None


def _sizes(value: Any, parts: tuple[str, ...]) -> Iterator[Any]:
    """The integers among arguments, and the parts of tensors."""
    if isinstance(value, TensorMeta):
        for part in parts:
            yield from getattr(value, part)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sizes(item, parts)
    elif type(value) is torch.SymInt:
        yield value


def _of(size: Any, values: Values) -> int:
    return size if type(size) is int else as_expr(size).evaluate(values)


def valued(value: Any, values: Values) -> Any:
    """Arguments with numbers for symbols. Results do not depend on where in its memory a view begins."""

    def known(arg: Any) -> Any:
        if arg.__class__ is TensorMeta:
            return TensorMeta(valued(arg.shape, values), valued(arg.stride, values), 0, *arg[3:])
        return _of(arg, values) if arg.__class__ is torch.SymInt else arg

    return mapped(value, known)
