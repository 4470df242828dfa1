"""Definitions that become two, and those that need not: a Scatter becomes an update of its base, or of a copy of that
where it is still needed; a long reduction to few results becomes partial results and their reduction, and additions of
many values to few elements partial sums and theirs, so that all threads have work.

A base can be updated where

- nothing reads it, or gives it as a result, after the scatter, and the scatter itself reads it only at the element that
  it writes;
- it is a buffer of the plan's own, or an input that is written back: what it held is lost anyway. No other input lies
  in the same memory (contract of a graph);
- no call can have kept it, or have given something in its memory;
- of an input: nothing that may raise comes later, because nothing outside may have changed when a graph raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Described,
    Element,
    Extern,
    Layout,
    Program,
    Scatter,
    View,
    WriteBack,
    axis_var,
    axis_vars,
    unravel,
    volume,
)
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.scalar_ops import JOINED_BY, identity
from bolide.inductor.ir.walks import (
    loads_of,
    map_leaves,
    may_raise,
    reads,
    rewriter,
    roots_of,
    substitute,
    viewed,
    with_roots,
    writes,
)
from bolide.inductor.machine import Machine
from bolide.inductor.runtime.results import gives_new_memory
from bolide.inductor.schedule.inline import cast, masked
from bolide.inductor.schedule.layouts import strided_views
from bolide.inductor.schedule.nest import still_axes
from bolide.inductor.schedule.order import marks_of
from bolide.inductor.schedule.stages import is_one
from bolide.symbolic import Expr

# ---- long reductions -------------------------------------------------------------------------------------------------

#: Parts and a rest are taken where these are so many times as many as parts of one length.
_FAR_MORE = 8


def split_reductions(program: Program, machine: Machine) -> Program:
    """The program with every long reduction to few results as reductions of parts, and of what these give.

    The parts are of one length, and at most the machine's `most_parts`, whatever the number of threads, so that results
    do not depend on it. Where no such number divides the extent (a prime one, or one that is known when the program
    runs), each part of a column takes one element more, or a rest is reduced by itself and joined with the others.
    Symbolic sizes count as what they were while the program was traced."""

    marks = marks_of(program)
    computed = [each for each in program.definitions if isinstance(each, Computed)]
    by_rows = [*filter(_is_of_rows, computed)] if machine.part_rows else []
    buffers = program.buffers() if by_rows else {}
    stored = {each.name for each in computed if each.reduce_op is None}
    storing = replace(machine, enough_parts=machine.parts_with_stores)

    def in_parts(definition: Definition) -> list[Definition]:
        if not isinstance(definition, Computed) or definition.name in marks:
            return [definition]
        if size := _rows_of_part(definition, by_rows, buffers, machine, program.size_vars):
            return _in_parts_of(definition, size)
        alone = stored.isdisjoint(_read(definition))
        if at := _parts(definition, machine if alone else storing, program.size_vars):
            return _split(definition, *at)
        return [definition]

    return replace(program, definitions=[*chain.from_iterable(map(in_parts, program.definitions))])


def _is_of_rows(definition: Computed) -> bool:
    return bool(definition.reduce_axes) and definition.position is None and _along_memory(definition)


def _rows_of_part(
    definition: Computed,
    by_rows: Sequence[Computed],
    buffers: Mapping[str, Described],
    machine: Machine,
    sizes: Mapping[str, int],
) -> int:
    """How many rows each part of a sum of columns has, of data that are reduced by rows as well: teams that have some
    rows each make both in one pass. 0: there are no such data, or too few rows or columns for that."""
    if not by_rows or definition.reduce_op != "sum" or definition.scan or _along_memory(definition):
        return 0
    rows, columns = volume(extent for _, extent in definition.reduce_axes), volume(definition.shape)
    (least, most), usual = machine.part_columns, rows.subs(sizes)
    if not (columns.is_const and usual.is_const and least <= columns.value <= most):
        return 0
    size = usual.value // min(machine.most_row_parts, machine.most_gathered // columns.value)
    read = {name for name in _read(definition) if volume(buffers[name][1]) is rows * columns}
    are_same = any(
        volume(each.shape) is rows
        and volume(extent for _, extent in each.reduce_axes) is columns
        and not read.isdisjoint(_read(each))
        for each in by_rows
    )
    return 1 << size.bit_length() - 1 if are_same and size >= machine.part_rows else 0


def _read(definition: Computed) -> set[str]:
    return {load.arg.buffer for load in loads_of((definition.value,))}


def _in_parts_of(definition: Computed, size: int) -> list[Definition]:
    """The definitions of the parts of a reduction, of so many elements each, and of what is reduced from them."""
    name, (reduced, lengths) = definition.name, zip(*definition.reduce_axes)
    along, extent = f"{name}_row", volume(lengths)
    count = extent.ceildiv(size)
    place = dict(zip(reduced, unravel(axis_var(along, extent), lengths)))
    axes = tuple([f"{axis}_{name}_parts" for axis in definition.axes])
    place |= dict(zip(definition.axes, axis_vars(zip(axes, definition.shape))))
    parts = replace(
        definition,
        name=f"{name}_parts",
        dtype=definition.value.dtype,
        shape=(count, *definition.shape),
        axes=(f"{name}_part", *axes),
        value=substitute(place)(definition.value),
        reduce_axes=((along, extent),),
        run=size,
        layout=None,
    )
    return [parts, _whole(definition, [definition], name, along, count)]


def _parts(definition: Computed, machine: Machine, sizes: Mapping[str, int]) -> tuple[str, Expr] | None:
    """The reduced axis to split, and the number of its parts."""
    if definition.reduce_op not in (*JOINED_BY, "argmin", "argmax"):
        return None
    results = volume(definition.shape).subs(sizes)
    length = volume(extent for _, extent in definition.reduce_axes).subs(sizes)
    if not (results.is_const and length.is_const and results.value and length.value):
        return None
    along = _along_memory(definition)
    most, least = (machine.split_rows, machine.row_length) if along else (machine.split_columns, machine.split_length)
    is_large = not along and machine.few_threads > results.value > machine.most_gathered // length.value
    if results.value >= most or length.value < (machine.steps_length if is_large else least):
        return None
    is_worth_steps = length.value >= machine.steps_length
    if definition.position is not None and length.value < machine.places_length:
        return None
    enough = max(machine.enough_parts // results.value, machine.fewest_parts)
    machine = replace(machine, most_parts=min(machine.most_parts, enough))
    even = _even_parts(definition, machine, sizes)
    uneven = _parts_and_rest(definition, machine, sizes) if is_worth_steps else None
    if even is None or (uneven is not None and uneven[0] >= _FAR_MORE * even[0]):
        return uneven and uneven[1:]
    return even[1:]


def _even_parts(definition: Computed, machine: Machine, sizes: Mapping[str, int]) -> tuple[int, str, Expr] | None:
    """The first axis that can be cut into many parts of one length, or the one with most: how many these typically are,
    the axis, and their number. Of an axis of unknown extent, each element is a part. An axis along memory is left in
    runs."""
    found: list[tuple[int, str, Expr]] = []
    for place, (name, extent) in enumerate(definition.reduce_axes):
        typical = extent.subs(sizes).value
        in_runs = place == len(definition.reduce_axes) - 1 and _along_memory(definition)
        most = min(machine.most_parts, typical // machine.shortest_run if in_runs else typical)
        if extent.is_const:
            numbers = range(most, machine.fewest_parts - 1, -1)
            found += [(n, name, Expr.const(n)) for n in numbers if extent.value % n == 0][:1]
        elif machine.fewest_parts <= typical <= most:
            found.append((typical, name, extent))
    many = [each for each in found if 2 * each[0] >= machine.most_parts]
    return many[0] if many else max(found, key=lambda each: each[0], default=None)


def _parts_and_rest(definition: Computed, machine: Machine, sizes: Mapping[str, int]) -> tuple[int, str, Expr] | None:
    """The longest axis, and a number of parts of which each has as many elements as there are parts: the rest, which
    has fewer, is little then."""
    typical, name = max((extent.subs(sizes).value, name) for name, extent in definition.reduce_axes)
    number = min(machine.most_parts, 1 << math.isqrt(typical).bit_length() - 1)
    return (number, name, Expr.const(number)) if number >= machine.least_with_rest else None


def _split(definition: Computed, axis: str, count: Expr) -> list[Definition]:
    """The definitions of the parts of this axis, and of what is reduced from them, which has the definition's name. Of
    argmin and argmax the values of the best elements are kept as well as their places."""
    extent = dict(definition.reduce_axes)[axis]
    size, rest = (Expr.const(1), Expr.const(0)) if count == extent else (extent // count, extent % count)
    forms = [definition]
    if definition.position is not None:
        best = replace(definition, reduce_op="min" if definition.reduce_op == "argmin" else "max", position=None)
        forms.append(replace(best, name=f"{definition.name}_best", dtype=best.value.dtype))
    is_even = rest.is_const and rest.value == 0
    takes_more = not is_even and definition.position is None and len(definition.reduce_axes) == 1
    takes_more = takes_more and not _along_memory(definition)
    done: list[Definition] = []
    for form in forms:
        part, within = f"{axis}{form.name}s", f"{axis}{form.name}w"
        piece = _piece(form, "some" if takes_more else "parts", axis, (within, size), axis_var(part, count) * size)
        done.append(replace(piece, shape=(count, *piece.shape), axes=(part, *piece.axes)))
    if takes_more:
        done.append(_with_one_more(definition, axis, count, size))
    if is_even or takes_more:
        return [*done, _whole(definition, forms, definition.name, axis, count)]
    for form in forms:
        done.append(_piece(form, "rest", axis, (f"{axis}{form.name}r", rest), count * size))
        whole = _whole(form, forms, f"{form.name}_whole", axis, count)
        dtype = form.dtype if form.position is not None else form.value.dtype
        done.append(replace(whole, dtype=dtype, layout=None))
    return [*done, _joined(definition, forms)]


def _piece(form: Computed, mark: str, axis: str, within: tuple[str, Expr], start: Expr) -> Computed:
    """The reduction of the elements of `axis` from `start` on, as many as `within` says."""
    others = [(name, extent) for name, extent in form.reduce_axes if name != axis]
    named = {name: f"{name}_{form.name}_{mark}" for name in (*form.axes, *(name for name, _ in others))}
    fresh = {name: axis_var(named[name], extent) for name, extent in (*zip(form.axes, form.shape), *others)}
    new = substitute({**fresh, axis: start + axis_var(*within)})
    return replace(
        form,
        name=f"{form.name}_{mark}",
        dtype=form.value.dtype if form.position is None else torch.int64,
        axes=tuple([named[name] for name in form.axes]),
        value=new(form.value),
        position=None if form.position is None else new(form.position),
        reduce_axes=(within, *((named[name], extent) for name, extent in others)),
        layout=None,
    )


def _whole(form: Computed, forms: list[Computed], name: str, axis: str, count: Expr) -> Computed:
    """The reduction of the parts' results."""
    last, axes = f"{axis}{form.name}p", tuple([f"{each}_{form.name}_p" for each in form.axes])
    coords = (axis_var(last, count), *axis_vars(zip(axes, form.shape)))
    value = _loaded(f"{forms[-1].name}_parts", form.value.dtype, coords)
    position = None if form.position is None else _loaded(f"{form.name}_parts", torch.int64, coords)
    return replace(
        form, name=name, axes=axes, value=value, position=position, reduce_axes=((last, count),), absorbed=()
    )


def _with_one_more(definition: Computed, axis: str, count: Expr, size: Expr) -> Computed:
    """The parts' results with the elements behind the last part, of which each part takes one, if there are so many.
    (The places of extremes would be out of order.)"""
    ((_, extent),) = definition.reduce_axes
    name, dtype, shape = definition.name, definition.value.dtype, (count, *definition.shape)
    axes = (f"{axis}{name}m", *(f"{each}_{name}_m" for each in definition.axes))
    part, *others = coords = axis_vars(zip(axes, shape))
    place = size * count + part
    is_there = _compared("lt", place - extent)
    some = _loaded(f"{name}_some", dtype, coords)
    more = masked(substitute({**dict(zip(definition.axes, others)), axis: place})(definition.value), is_there)
    both = Node.make(JOINED_BY[str(definition.reduce_op)], dtype, (some, more))
    value = Node.make("where", dtype, (is_there, both, some))
    plain = replace(definition, name=f"{name}_parts", dtype=dtype, shape=shape, axes=axes, value=value, layout=None)
    return replace(plain, reduce_op=None, reduce_axes=(), absorbed=())


def _joined(definition: Computed, forms: list[Computed]) -> Computed:
    """The result for the whole parts and the rest."""
    axes = tuple([f"{each}_j" for each in definition.axes])
    coords = axis_vars(zip(axes, definition.shape))
    dtype, values = definition.value.dtype, forms[-1].name
    one, other = [_loaded(f"{values}_{mark}", dtype, coords) for mark in ("whole", "rest")]
    if definition.position is None:
        value = Node.make(JOINED_BY[str(definition.reduce_op)], dtype, (one, other))
    else:
        places = [_loaded(f"{definition.name}_{mark}", torch.int64, coords) for mark in ("whole", "rest")]
        better = _better(str(definition.reduce_op), (one, places[0]), (other, places[1]))
        value = Node.make("where", torch.int64, (better, places[1], places[0]))
    value = cast(value, definition.dtype)
    return replace(definition, axes=axes, value=value, reduce_op=None, reduce_axes=(), position=None, absorbed=())


def _better(op: str, one: tuple[Node, Node], other: tuple[Node, Node]) -> Node:
    """Whether the other (value, place) is the one that argmin or argmax wants: better, or NaN against a number, or as
    good at a smaller place."""

    def of(name: str, *operands: Node) -> Node:
        return Node.make(name, torch.bool, operands)

    (a, a_place), (b, b_place) = one, other
    better, same = of("lt" if op == "argmin" else "gt", b, a), of("eq", a, b)
    if a.dtype.is_floating_point:
        a_nan, b_nan = of("ne", a, a), of("ne", b, b)
        better = of("or", better, of("and", b_nan, of("eq", a, a)))
        same = of("or", same, of("and", a_nan, b_nan))
    return of("or", better, of("and", same, of("lt", b_place, a_place)))


def _compared(op: str, index: Expr) -> Node:
    """How an index expression compares with 0."""
    zero = Node.make("const", torch.int64, (), 0)
    return Node.make(op, torch.bool, (Node.make("index", torch.int64, (), index), zero))


def _loaded(name: str, dtype: torch.dtype, coords: tuple[Expr, ...]) -> Node:
    return Node.make("load", dtype, (), Element(name, coords))


def _along_memory(definition: Computed) -> bool:
    """Whether most of what is reduced is read along its last dimension."""
    reduced = {name for name, _ in definition.reduce_axes}
    last = [node.arg.coords[-1].free_vars for node in loads_of((definition.value,)) if node.arg.coords]
    return 2 * sum(not reduced.isdisjoint(names) for names in last) >= len(last)


# ---- long scans ------------------------------------------------------------------------------------------------------


def split_scans(program: Program, machine: Machine) -> Program:
    """The program with every long scan that few threads would share in runs of its axis: first what each run gives as a
    whole, then the scan of these, then each run's scan, which begins with what comes before it."""
    if not machine.scan_threads:
        return program

    def in_runs(definition: Definition) -> list[Definition]:
        if not isinstance(definition, Computed) or definition.scan is None:
            return [definition]
        run = _run(definition, machine, program.size_vars)
        return [definition] if run is None else _in_runs(definition, definition.scan, run)

    return replace(program, definitions=[*chain.from_iterable(map(in_runs, program.definitions))])


def _run(scan: Computed, machine: Machine, sizes: Mapping[str, int]) -> int | None:
    """How long the runs of a scan are, if it is to have some: a power of two."""
    extents = {name: extent.subs(sizes) for name, extent in zip(scan.axes, scan.shape)}
    if scan.reduce_op not in JOINED_BY or not all(extent.is_const for extent in extents.values()):
        return None
    length = extents.pop(str(scan.scan)).value
    last = [node.arg.coords[-1].free_vars for node in loads_of((scan.value,)) if node.arg.coords]
    along = 2 * sum(scan.scan in names for names in last) > len(last)
    shared, shortest = (machine.teams[-1], machine.scan_row) if along else (1, machine.scan_column)
    parts = machine.scan_threads // max(shared * volume(extents.values()).value, 1)
    run = max(shortest, 1 << max(length // max(parts, 1), 1).bit_length() - 1)
    return run if length > 2 * run else None


def _in_runs(scan: Computed, axis: str, run: int) -> list[Definition]:
    """The definitions of a scan in runs of this length. Where the last one is shorter, nothing comes behind it."""
    place = scan.axes.index(axis)
    extent, op, dtype = scan.shape[place], str(scan.reduce_op), scan.value.dtype
    shape = (*scan.shape[:place], extent // run, *scan.shape[place + 1 :])

    def fresh(mark: str) -> tuple[str, ...]:
        return tuple([f"{name}_{scan.name}_{mark}" for name in scan.axes])

    names = fresh("runs")
    coords, within = axis_vars(zip(names, shape)), f"{axis}{scan.name}w"
    length = Expr.const(run)
    moved = dict(zip(scan.axes, coords)) | {axis: coords[place] * run + axis_var(within, length)}
    totals = replace(
        scan,
        name=f"{scan.name}_runs",
        dtype=dtype,
        shape=shape,
        axes=names,
        value=substitute(moved)(scan.value),
        reduce_axes=((within, length),),
        scan=None,
        layout=None,
    )
    names = fresh("ends")
    ends = replace(totals, name=f"{scan.name}_ends", axes=names, reduce_axes=(), scan=names[place], absorbed=())
    ends = replace(ends, value=_loaded(totals.name, dtype, axis_vars(zip(names, shape))))
    here = scan.coords[place]
    begins = Node.make("and", torch.bool, (_compared("eq", here % run), _compared("ge", here - run)))
    element = Element(ends.name, tuple([here // run - 1 if c is here else c for c in scan.coords]), True)
    before = Node.make("load", dtype, (begins,), element)
    nothing = Node.make("const", dtype, (), identity(op, dtype))
    before = Node.make("where", dtype, (begins, before, nothing))
    return [totals, ends, replace(scan, value=Node.make(JOINED_BY[op], dtype, (before, scan.value)), run=run)]


# ---- long scatters -------------------------------------------------------------------------------------------------

#: What a part of a sum is held in exactly as the sum is.
_ADDED = (torch.float32, torch.float64, torch.int64, torch.int32)


def split_scatters(program: Program, machine: Machine) -> Program:
    """The program with additions of many values to few elements in parts: each part adds its share to zeros of its own,
    in order, and these are added up. There are as many as the machine has threads, whoever runs them."""

    def in_parts(definition: Definition) -> list[Definition]:
        if isinstance(definition, Scatter) and (at := _scattered_parts(definition, machine, program.size_vars)):
            return _split_scatter(definition, *at)
        return [definition]

    return replace(program, definitions=[*chain.from_iterable(map(in_parts, program.definitions))])


def _scattered_parts(scatter: Scatter, machine: Machine, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """The axis to split, and the number of its parts: so that these have fewer elements all in all than are added, and
    threads do not share the columns of a row anyway."""
    if scatter.mode != "add" or not scatter.operands or scatter.dtype not in _ADDED:
        return None
    extents = {name: extent.subs(sizes) for name, extent in zip(scatter.axes, scatter.extents)}
    still = still_axes(extents, scatter.coords)
    targets = volume(scatter.shape).subs(sizes)
    if not still or not targets.is_const or not all(extent.is_const for extent in extents.values()):
        return None
    points = volume(extents.values()).value
    columns = volume(extent for name, extent in extents.items() if name not in still).value
    number = min(points // max(2 * targets.value, 1), machine.threads)
    axis = max(still, key=lambda name: extents[name].value)
    shared = columns >= machine.split_columns  # by threads, anyway
    return None if shared or number < 2 or points < machine.grain or extents[axis].value < number else (axis, number)


def _split_scatter(scatter: Scatter, axis: str, number: int) -> list[Definition]:
    """The definitions of zeros, of what is added to them by each part, of their sum, and of the rest."""
    extent = dict(zip(scatter.axes, scatter.extents))[axis]
    count, size, rest = Expr.const(number), extent // number, extent % number
    name, dtype, shape = scatter.name, scatter.dtype, scatter.shape
    part, within = f"{axis}{name}s", f"{axis}{name}w"
    zeros = _copy(replace(scatter, name=f"{name}_zeros", shape=(count, *shape), layout=None), None)
    zeros = replace(zeros, value=Node.make("const", dtype, (), 0.0 if dtype.is_floating_point else 0))
    parts = _scatter_piece(scatter, "parts", zeros.name, axis, (within, size), axis_var(part, count) * size)
    parts = replace(
        parts,
        shape=zeros.shape,
        axes=(part, *parts.axes),
        extents=(count, *parts.extents),
        coords=(axis_var(part, count), *parts.coords),
    )
    whole = _copy(scatter, None)
    coords = axis_vars(zip(whole.axes, shape))
    total = replace(
        _copy(replace(scatter, name=f"{name}_total", layout=None), None),
        reduce_op="sum",
        reduce_axes=((f"{part}p", count),),
    )
    places = (axis_var(f"{part}p", count), *axis_vars(zip(total.axes, shape)))
    total = replace(total, value=_loaded(parts.name, dtype, places))
    base, added = whole.value, _loaded(total.name, dtype, coords)
    nothing = Node.make("eq", torch.bool, (added, Node.make("const", dtype, (), 0.0 if dtype.is_floating_point else 0)))
    value = Node.make("where", dtype, (nothing, base, Node.make("add", dtype, (base, added))))  # -0.0 stays
    whole = replace(whole, value=value)
    if rest.is_const and rest.value == 0:
        return [zeros, parts, total, whole]
    whole = replace(whole, name=f"{name}_whole", layout=None)
    last = _scatter_piece(scatter, "rest", whole.name, axis, (f"{axis}{name}r", rest), count * size)
    return [zeros, parts, total, whole, replace(last, name=name, layout=scatter.layout)]


def _scatter_piece(scatter: Scatter, mark: str, base: str, axis: str, within: tuple[str, Expr], start: Expr) -> Scatter:
    """The additions of `axis` from `start` on, as many as `within` says, to this base."""
    named = {name: f"{name}_{scatter.name}_{mark}" for name in scatter.axes} | {axis: within[0]}
    fresh = {name: axis_var(named[name], extent) for name, extent in zip(scatter.axes, scatter.extents)}
    moved = {**fresh, axis: start + axis_var(*within)}
    return with_roots(
        scatter,
        substitute(moved),
        name=f"{scatter.name}_{mark}",
        base=base,
        axes=tuple([named[name] for name in scatter.axes]),
        extents=tuple([within[1] if name == axis else extent for name, extent in zip(scatter.axes, scatter.extents)]),
        coords=tuple([coord.subs(moved) for coord in scatter.coords]),
        layout=None,
    )


# ---- scatters -------------------------------------------------------------------------------------------------------


def update_in_place(program: Program) -> Program:
    """The program with every Scatter as an update of a buffer that exists: of its base, which from then on holds the
    result under its own name, or of a copy of the base."""
    if not any(isinstance(definition, Scatter) for definition in program.definitions):
        return program
    memory = _Memory(program)
    renamed: dict[str, str] = {}
    rename = _renamer(renamed)
    done: list[Definition] = []
    for at, definition in enumerate(program.definitions):
        if not isinstance(definition, Scatter):
            definition = rename(definition)
            if not (isinstance(definition, WriteBack) and _is_done(definition)):
                done.append(definition)
            continue
        target = memory.to_update(definition, at, renamed)
        updated = rename(definition)
        assert isinstance(updated, Scatter)
        if target is None:
            done += [_copy(updated, memory.numbers.get(definition.base)), replace(updated, base=updated.name)]
            continue
        renamed[definition.name] = target
        done.append(replace(updated, name=target, base=target, layout=memory.layouts[target]))
    done = [memory.laid_out(definition) for definition in done]
    results = [_renamed_view(result, renamed) if isinstance(result, View) else result for result in program.results]
    return replace(program, definitions=done, results=results)


def _is_done(write: WriteBack) -> bool:
    return write.source.buffer == write.target


class _Memory:
    """What is known of the buffers of a program: who reads them, whose memory they are, how they lie."""

    def __init__(self, program: Program) -> None:
        definitions = program.definitions
        self.results = viewed(program.results)
        self.last = {name: at for at, definition in enumerate(definitions) for name in reads(definition)}
        self.layouts = {name: layout for name, (_, _, layout) in program.buffers().items()}
        computed = [definition for definition in definitions if isinstance(definition, Computed)]
        self.numbers = {made.name: made for made in computed if made.value.op == "const"}
        self.strided = strided_views(program)
        self.own: set[str] = set()
        kept: set[str] = set()
        for definition in definitions:
            if isinstance(definition, Extern) and not gives_new_memory(definition.op):
                kept |= reads(definition)
            elif not isinstance(definition, WriteBack):
                self.own.update(writes(definition))
        self.own -= kept
        self.checks = max([at for at, definition in enumerate(definitions) if may_raise(definition)], default=-1)
        self.written = _written(definitions, kept)
        self.decided: dict[str, Layout] = {}  # of what may lie anyhow

    def to_update(self, scatter: Scatter, at: int, renamed: Mapping[str, str]) -> str | None:
        """The buffer that the `at`th definition, a scatter, can update in place; None if it needs a copy."""
        target = renamed.get(scatter.base, scatter.base)
        if scatter.base in self.results or self.last[scatter.base] > at or not _reads_what_it_writes(scatter):
            return None
        if target in self.own:
            allowed = True
        else:
            allowed = at > self.checks and scatter.name not in self.results
            allowed = allowed and self.last[scatter.name] <= self.written.get(target, {}).get(scatter.name, -1)
        return target if allowed and self._lies_as(target, scatter) else None

    def _lies_as(self, target: str, scatter: Scatter) -> bool:
        """Whether the target lies, or can lie, as the readers of the result must see it."""
        shape = scatter.shape
        wanted = scatter.layout or (Layout.row_major(shape) if scatter.name in self.strided else None)
        given = self.layouts[target] or (Layout.row_major(shape) if target in self.strided else None)
        if wanted is None or given is None:
            if wanted is not None:
                self.layouts[target] = self.decided[target] = wanted
            return True
        pairs = zip(shape, given.stride, wanted.stride)
        return given.offset == wanted.offset and all(a == b or is_one(extent) for extent, a, b in pairs)

    def laid_out(self, definition: Definition) -> Definition:
        """The definition with the layout that was decided for what it makes."""
        if isinstance(definition, (Computed, Scatter)) and definition.name in self.decided:
            return replace(definition, layout=self.decided[definition.name])
        return definition


def _written(definitions: Sequence[Definition], kept: set[str]) -> dict[str, dict[str, int]]:
    """For every input that is written back, the scatters that lead from it to its new value, and the last definition
    that may read each of them there: the new value is never overwritten, the others are when it is written. None if a
    call may have `kept` the input's memory, or if the value is written in another order of elements."""
    bases = {definition.name: definition.base for definition in definitions if isinstance(definition, Scatter)}
    written: dict[str, dict[str, int]] = {}
    for at, definition in enumerate(definitions):
        if isinstance(definition, WriteBack) and definition.source.stride is None:
            chain: dict[str, int] = {}
            name = definition.source.buffer
            while name in bases:
                chain[name] = at if chain else len(definitions)
                name = bases[name]
            if name == definition.target and kept.isdisjoint({*chain, name}):
                written[name] = chain
    return written


def _reads_what_it_writes(scatter: Scatter) -> bool:
    """Whether a scatter reads its base at the element only that it writes then, if at all."""
    loads = [load for load in loads_of(roots_of(scatter)) if load.arg.buffer == scatter.base]
    return not loads or (
        not scatter.operands and all(not load.src and load.arg.coords == scatter.coords for load in loads)
    )


def _copy(scatter: Scatter, base: Computed | None) -> Computed:
    """The copy of a base that an update needs, under the scatter's name. Of a `base` of one number nothing is read."""
    name, dtype, shape = scatter.name, scatter.dtype, scatter.shape
    axes = tuple([f"{name}_c{i}" for i in range(len(shape))])
    load = Node.make("load", dtype, (), Element(scatter.base, axis_vars(zip(axes, shape))))
    value = load if base is None else base.value
    return Computed(
        *(name, dtype, shape, axes, value), layout=scatter.layout, origin=scatter.origin, device=scatter.device
    )


def _renamer(renamed: Mapping[str, str]) -> Callable[[Definition], Definition]:
    """A function that gives definitions the new names of what they read. No name changes after its first reader."""

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op != "load" or node.arg.buffer not in renamed:
            return None
        return Node.make("load", node.dtype, src, replace(node.arg, buffer=renamed[node.arg.buffer]))

    new = rewriter(rule)

    def rename(definition: Definition) -> Definition:
        if reads(definition).isdisjoint(renamed):
            return definition
        if isinstance(definition, Scatter):
            return with_roots(definition, new, base=renamed.get(definition.base, definition.base))
        if isinstance(definition, Computed):
            return with_roots(definition, new)
        if isinstance(definition, WriteBack):
            return replace(definition, source=_renamed_view(definition.source, renamed))
        args, kwargs = map_leaves((definition.args, definition.kwargs), View, lambda view: _renamed_view(view, renamed))
        return replace(definition, args=args, kwargs=kwargs)

    return rename


def _renamed_view(view: View, renamed: Mapping[str, str]) -> View:
    return replace(view, buffer=renamed.get(view.buffer, view.buffer))
