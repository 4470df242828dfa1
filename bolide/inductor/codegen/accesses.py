"""Loads and stores: an access becomes one address, a run of neighbours, or one address per lane.

Where a loop takes pairs, a run of bfloat16s is loaded as integers of 32 bits, each with two of them, of which a shift
and a mask make float32s: no bits move between lanes, as they do where 16 bits become 32. Stores join them so.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from bolide.inductor.codegen.builder import BITS, Builder, Value, llvm_type, mangle
from bolide.inductor.codegen.instructions import INSTRUCTIONS, MEMORY, cast
from bolide.inductor.codegen.scope import Scope, Term, fits
from bolide.inductor.ir.loops import ATOMIC, Access, Loop, Node, Store
from bolide.inductor.ir.scalar_ops import NARROW_FLOATS
from bolide.inductor.ir.walks import crosses, loads_of, roots_in
from bolide.symbolic import Expr

Shape = Literal["one", "run", "lanes"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Pieces of a buffer that are loaded as a whole: `length` elements each, one after the other, one of which starts
    at `start`. The elements of lanes are at these `places` from there on; None: one is loaded by itself. A piece with
    an element of the buffer in it is all inside."""

    buffer: str
    start: Expr
    places: Sequence[int | None]
    length: int


@dataclass(slots=True)
class Place:
    """Where an access goes. ``one``: `pointer` is the same in all lanes; ``run``: `pointer` is the first lane's, the
    others follow at a distance of `stride` elements (1, -1 or up to `Target.near`); ``lanes``: a vector of pointers.
    `distinct`: no two lanes share an element. `align`: bytes that the first address is a multiple of; 0: an
    element's. `offsets`: on a GPU, what the lanes' pointers are from `pointer` on: of single pointers, LLVM finds out
    what memory they are in. `windows`: what elements can be taken out of."""

    shape: Shape
    pointer: Value
    distinct: bool
    stride: int = 1
    align: int = 0
    offsets: Value | None = None
    windows: Windows | None = None


def resolve(scope: Scope, access: Access, src: tuple[Node, ...], values: tuple[Value, ...]) -> Expr:
    """The access's index with names in place of ``$0, $1 …``."""
    operands = len(src) - access.masked
    if not operands:
        return access.index
    known = access.index.variables()
    stand_ins: dict[str, Expr | int] = {}
    for position in range(operands):
        variable = known.get(f"${position}")
        if variable is not None:
            low, high = variable.bounds()
            stand_ins[f"${position}"] = Expr.var(scope.operand(src[position], values[position]), low, high)
    return access.index.subs(stand_ins)


def pointer(scope: Scope, buffer: str, terms: tuple[Term, ...], offset: int) -> Value:
    """The address of an element, the same in all lanes; the part that belongs to outer loops is an address of its
    own."""
    base = scope.buffers[buffer]
    if not terms and not offset:
        return base
    key = ("pointer", buffer, terms, offset)
    known = scope.recall(key)
    if known is not None:
        return known
    outer, inner = scope.split(terms) if terms else ((), ())
    if outer or (terms and offset):
        base, offset = pointer(scope, buffer, outer, offset), 0
    kind = MEMORY[scope.types[buffer]]
    step = scope.sum(inner, offset)
    return scope.remember(key, scope.b.emit(f"getelementptr {kind}, {base}, {step}", "ptr"))


def place(scope: Scope, buffer: str, index: Expr) -> Place:
    """How `index` runs over the lanes."""
    if (held := scope.held(buffer)) is not None:
        return Place("run", held, True)
    varying = scope.varying & index.free_vars
    if not varying:
        return Place("one", pointer(scope, buffer, index.terms, index.offset), False)
    stride = scope.step(index)
    if stride is not None and stride.is_const and _is_near(stride.value, scope):
        address = pointer(scope, buffer, index.terms, index.offset)
        align = scope.alignment(buffer, index) if stride.value == 1 else 0
        return Place("run", address, True, stride.value, align, windows=_windows(scope, buffer, index, stride.value))
    same = tuple(filter(scope.is_same, index.terms))
    rest = tuple(t for t in index.terms if t not in same)
    base = pointer(scope, buffer, same, index.offset)
    offsets = scope.lane_sum(rest, 0, "i32" if fits(rest, 0) else "i64")
    distinct = stride is not None and stride.is_const
    if scope.b.target.triple:
        return Place("lanes", base, distinct, offsets=offsets, windows=_windows(scope, buffer, index))
    kind = MEMORY[scope.types[buffer]]
    return Place("lanes", scope.b.emit(f"getelementptr {kind}, {base}, {offsets}", "ptr", scope.lanes), distinct)


def _windows(scope: Scope, buffer: str, index: Expr, stride: int | None = None) -> Windows | None:
    found = scope.windows(buffer, index, stride)
    return None if found is None else Windows(buffer, *found)


def _is_near(stride: int, scope: Scope) -> bool:
    target = scope.b.target
    return stride in (1, -1) or (1 < stride <= target.near and stride * scope.lanes <= target.span)


def prepare(scope: Scope, access: Access, changing: frozenset[str]) -> None:
    """Compute the part of a direct access's address that does not change in a loop."""
    terms = tuple(t for t in access.index.terms if all(changing.isdisjoint(atom.free_vars) for atom in t[0]))
    if terms and not any(name.startswith("$") for name in access.index.free_vars):
        outer = terms if len(terms) < len(access.index.terms) else ()
        if outer and all(map(scope.is_same, outer)):
            pointer(scope, access.buffer, outer, access.index.offset)


def _active(scope: Scope, mask: Value | None) -> Value | None:
    """The lanes that take part: those switched on in this loop and by the access's own mask."""
    if mask is None:
        return scope.mask
    mask = scope.wide(mask)
    return mask if scope.mask is None else mask & scope.mask


def _lanes_on(scope: Scope, where: Place, mask: Value | None) -> Value | None:
    """`_active`, of one lane where a GPU's thread reads or writes a run as a whole or not at all."""
    is_whole = scope.b.target.triple and where.shape == "run" and where.stride == 1 and scope.mask is None
    return mask if mask is not None and mask.lanes == 1 and is_whole else _active(scope, mask)


def _spare(b: Builder, name: str) -> Value:
    """An address for lanes that are off: of ``zeros`` to read, or ``nowhere``, which may be written to."""
    kind = "constant" if name == "zeros" else "global"
    b.declarations.setdefault(name, f"@{name} = internal {kind} [8 x i8] zeroinitializer, align 8")
    return Value(b, f"@{name}", "ptr", 1)


@contextmanager
def _where_on(scope: Scope, address: Value, on: Value | None) -> Iterator[Value]:
    """The address that code inside may write to: nowhere if a lane is not `on`. On a GPU, whose threads would meet
    there, that code is jumped over."""
    b = scope.b
    if on is None:
        yield address
    elif b.target.triple:
        with b.when(on):
            yield address
    else:
        yield b.select(on, address, _spare(b, "nowhere"))


def load(scope: Scope, node: Node, values: tuple[Value, ...]) -> Value:
    """The value of a ``load`` node, whose operands have `values`."""
    access: Access = node.arg
    b = scope.b
    mask = values[-1] if access.masked else None
    where = place(scope, access.buffer, resolve(scope, access, node.src, values))
    kind = MEMORY[scope.types[access.buffer]]
    if where.shape == "one":
        several = mask is not None and mask.lanes > 1
        result = _load_one(scope, where.pointer, _active(scope, mask) if several else mask, kind)
    elif where.shape == "lanes" and mask is None and _is_copied(scope, node):
        result = _read_by_lane(scope, where, None, kind)
    else:
        pairs = scope.paired and where.shape == "run"
        result = _read_pairs(scope, where) if pairs else _read(scope, where, _lanes_on(scope, where, mask), kind)
    return b.compare("icmp ne", result, 0) if node.dtype == torch.bool else result


def _is_copied(scope: Scope, node: Node) -> bool:
    """Whether a CPU takes elements one by one from where they are to where they belong: LLVM makes no vector of them,
    and some processors are slow to gather one."""
    return not scope.b.target.triple and scope.mask is None and node in scope.dependences.copied


def _load_one(scope: Scope, address: Value, mask: Value | None, kind: str) -> Value:
    """One element for all lanes; 0 where `mask` is off, and no access where it is off in all lanes."""
    b, align = scope.b, BITS[kind] // 8
    if mask is None:
        return b.emit(f"load {kind}, {address}, align {align}", kind)
    value = b.emit(f"load {kind}, {b.select(_some(mask), address, _spare(b, 'zeros'))}, align {align}", kind)
    if mask.lanes == 1:
        return value
    return b.select(mask, scope.wide(value), Value(b, "zeroinitializer", kind, mask.lanes))


def _some(mask: Value) -> Value:
    """Whether a mask is on in some lane."""
    if mask.lanes == 1:
        return mask
    return mask.b.call(f"llvm.vector.reduce.or.{mangle('i1', mask.lanes)}", (mask,), "i1")


def store(scope: Scope, statement: Store, value: Value, values: tuple[Value, ...]) -> None:
    """Write a `Store`; `values` are those of its operands."""
    access = statement.access
    b = scope.b
    mask = values[-1] if access.masked else None
    if access.buffer in scope.messages:
        _assert(scope, scope.messages[access.buffer], [value] if mask is None else [value, mask])
        return
    where = place(scope, access.buffer, resolve(scope, access, statement.operands, values))
    dtype = scope.types[access.buffer]
    kind = MEMORY[dtype]
    if statement.mode == "any":
        _mark(scope, where, [value] if mask is None else [value, mask])
        return
    if dtype == torch.bool:
        value = b.convert("zext", value, "i8")
    is_one = where.shape == "one" and statement.mode == "set"
    active = mask if is_one else _lanes_on(scope, where, mask)
    if statement.mode == "set" or (statement.mode not in ATOMIC.values() and where.distinct):
        if where.shape != "one":
            value = scope.wide(value)
        if scope.paired and where.shape == "run":
            _write_pairs(scope, where, cast(value, dtype, torch.float32))
            return
        if statement.mode != "set":
            value = _joined(statement.mode, _read(scope, where, active, kind), value, dtype)
        _write(scope, where, value, active, kind)
        return
    _join_by_lane(scope, where, value, active, dtype, statement.mode)


def _read(scope: Scope, where: Place, active: Value | None, kind: str) -> Value:
    """One element per lane; 0 where a lane is off."""
    b, lanes = scope.b, scope.lanes
    is_run = where.shape == "run" and where.stride == 1 and (active is None or active.lanes == 1)
    if where.windows is not None and not (is_run and where.windows.places[0] == 0):
        return _read_windows(scope, where, where.windows, active, kind)
    if is_run:
        align = where.align or BITS[kind] // 8
        load = f"load {llvm_type(kind, lanes)}, {where.pointer}, align {align}"
        return b.emit(load, kind, lanes) if active is None else _if_on(b, active, load, kind, lanes)
    if b.target.triple:
        return _read_by_lane(scope, where, active, kind)
    if where.shape == "run" and where.stride != 1:
        address, order, mask = _spread(scope, where, active, kind)
        return b.shuffle(_masked_read(address, mask, kind), order)
    return _masked_read(where.pointer, active or b.const(1, "i1", lanes), kind)


def _if_on(b: Builder, on: Value, load: str, kind: str, lanes: int) -> Value:
    """What a load gives, or zeros."""
    before = b.block
    with b.when(on):
        loaded, block = b.emit(load, kind, lanes), b.block
    return b.merge(loaded, block, Value(b, "zeroinitializer", kind, lanes), before)


def _read_by_lane(scope: Scope, where: Place, active: Value | None, kind: str) -> Value:
    """`_read`, by loads that need not wait for each other."""
    b, lanes = scope.b, scope.lanes
    result = Value(b, "poison", kind, lanes)
    for lane in range(lanes):
        mask = None if active is None else b.extract(active, lane)
        result = b.insert(result, _load_one(scope, _address(where, lane, kind), mask, kind), lane)
    return result


def _read_windows(scope: Scope, where: Place, windows: Windows, active: Value | None, kind: str) -> Value:
    """`_read_by_lane`, of elements of which several are in one piece of the buffer: it is loaded once, if it has an
    element of a lane that is on."""
    b, length, places = scope.b, windows.length, windows.places
    masks = [None if active is None else b.extract(active, lane) for lane in range(scope.lanes)]
    result = Value(b, "poison", kind, scope.lanes)
    for number in dict.fromkeys(None if place is None else place // length for place in places):
        lanes = [lane for lane, place in enumerate(places) if (None if place is None else place // length) == number]
        piece, given = None, dict[str, Value]()
        if number is not None and len({places[lane] for lane in lanes}) > 1:
            given = {mask.text: mask for lane in lanes if (mask := masks[lane]) is not None}
            on = functools.reduce(operator.or_, given.values()) if given else None
            piece = _window(scope, windows, number, on, kind)
        for lane in lanes:
            mask, place = masks[lane], places[lane]
            if piece is None or place is None:
                element = _load_one(scope, _address(where, lane, kind), mask, kind)
            else:
                element = b.extract(piece, place % length)
                element = element if mask is None or len(given) == 1 else b.select(mask, element, 0)
            result = b.insert(result, element, lane)
    return result


def _window(scope: Scope, windows: Windows, number: int, on: Value | None, kind: str) -> Value:
    """A piece of a buffer, or zeros."""
    b, index = scope.b, windows.start + number * windows.length
    key = ("window", windows.buffer, index, on and on.text)
    known = scope.recall(key)
    if known is not None:
        return known
    address = pointer(scope, windows.buffer, index.terms, index.offset)
    bytes_ = windows.length * BITS[kind] // 8
    load = f"load {llvm_type(kind, windows.length)}, {address}, align {bytes_}"
    piece = b.emit(load, kind, windows.length) if on is None else _if_on(b, on, load, kind, windows.length)
    return piece if windows.buffer in scope.dependences.written else scope.remember(key, piece)


def _address(where: Place, lane: int, kind: str) -> Value:
    """Where the element of a lane is."""
    b = where.pointer.b
    if where.offsets is not None:
        return b.emit(f"getelementptr {kind}, {where.pointer}, {b.extract(where.offsets, lane)}", "ptr")
    if where.shape == "lanes":
        return b.extract(where.pointer, lane)
    if where.shape == "one" or not lane:
        return where.pointer
    return b.emit(f"getelementptr {kind}, {where.pointer}, i64 {lane * where.stride}", "ptr")


def _read_pairs(scope: Scope, where: Place) -> Value:
    """The float32s that a run of bfloat16s is, those at even places first."""
    b, count = scope.b, scope.lanes // 2
    pairs = b.emit(f"load {llvm_type('i32', count)}, {where.pointer}, align 2", "i32", count)
    return b.bitcast(b.concat(pairs << 16, pairs & -0x10000), "float")


def _write_pairs(scope: Scope, where: Place, value: Value) -> None:
    """Stores such float32s as bfloat16s."""
    b, count = scope.b, scope.lanes // 2
    bits = b.bitcast(value, "i32")
    even, odd = b.shuffle(bits, list(range(count))), b.shuffle(bits, list(range(count, 2 * count)))
    b.do(f"store {b.binary('lshr', even, b.like(16, even)) | odd}, {where.pointer}, align 2")


def _masked_read(address: Value, mask: Value, kind: str) -> Value:
    """A masked load (one address) or gather (an address per lane)."""
    b = address.b
    arguments = (address, b.const(BITS[kind] // 8, "i32"), mask, Value(b, "zeroinitializer", kind, mask.lanes))
    return b.call(_masked_name("load", "gather", address, mask, kind), arguments, kind, mask.lanes)


def _masked_name(one: str, many: str, address: Value, mask: Value, kind: str) -> str:
    operation = one if address.lanes == 1 else many
    return f"llvm.masked.{operation}.{mangle(kind, mask.lanes)}.{mangle('ptr', address.lanes)}"


def _spread(scope: Scope, where: Place, active: Value | None, kind: str) -> tuple[Value, list[int], Value]:
    """(address of the lowest element, position of each lane from there on, mask over all elements in between)."""
    b, lanes, stride = scope.b, scope.lanes, where.stride
    if stride == -1:
        order = list(range(lanes - 1, -1, -1))
        address = b.emit(f"getelementptr {kind}, {where.pointer}, i64 {1 - lanes}", "ptr")
        return address, order, b.const(1, "i1", lanes) if active is None else b.shuffle(active, order)
    order = list(range(0, lanes * stride, stride))
    active = active or b.const(1, "i1", lanes)
    return where.pointer, order, b.apart(active, stride)


def _write(scope: Scope, where: Place, value: Value, active: Value | None, kind: str) -> None:
    b, align = scope.b, BITS[kind] // 8
    address = where.pointer
    if where.shape == "one":
        if value.lanes > 1:
            raise ValueError("a value that differs between lanes is stored to one element")
        with _where_on(scope, address, active) as address:
            b.do(f"store {value}, {address}, align {align}")
        return
    if where.shape == "run" and where.stride == 1 and (active is None or active.lanes == 1):
        with _where_on(scope, address, active) as address:
            b.do(f"store {value}, {address}, align {where.align or align}")
        return
    if b.target.triple:
        for lane in range(scope.lanes):
            one = Place("one", _address(where, lane, kind), True)
            _write(scope, one, b.extract(value, lane), None if active is None else b.extract(active, lane), kind)
        return
    mask = active or b.const(1, "i1", scope.lanes)
    if where.shape == "run" and where.stride != 1:
        address, order, mask = _spread(scope, where, active, kind)
        value = b.shuffle(value, order) if where.stride < 0 else b.apart(value, where.stride)
    b.call_void(_masked_name("store", "scatter", address, mask, kind), (value, address, b.const(align, "i32"), mask))


def _mark(scope: Scope, where: Place, conditions: list[Value]) -> None:
    """Stores True where all conditions hold. They seldom do: one element for all lanes is not touched otherwise."""
    b, true = scope.b, scope.b.const(1, "i8")
    if where.shape != "one" or any(condition.lanes > 1 for condition in conditions):
        conditions = [*map(scope.wide, conditions), *([] if scope.mask is None else [scope.mask])]
    on = functools.reduce(operator.and_, conditions)
    if where.shape != "one":
        _write(scope, where, scope.wide(true), on, "i8")
        return
    with b.when(_some(on)):
        _write(scope, where, true, None, "i8")


def _assert(scope: Scope, message: str, conditions: list[Value]) -> None:
    """Fails an assertion where all conditions hold in some lane. CUDA's function for it ends the program; as with any
    assertion of CUDA's, the host is told when it next synchronises."""
    if any(condition.lanes > 1 for condition in conditions):
        conditions = [*map(scope.wide, conditions), *([] if scope.mask is None else [scope.mask])]
    with scope.b.when(_some(functools.reduce(operator.and_, conditions))):
        told, file, function = map(scope.b.text, (message, "bolide", "kernel"))
        zero, width = scope.b.const(0, "i32"), scope.b.const(1, "i64")
        scope.b.call_void("__assertfail", (told, file, zero, function, width))


def _joined(mode: str, old: Value, new: Value, dtype: torch.dtype) -> Value:
    """What the operation `mode` gives of an element and a value."""
    if dtype in NARROW_FLOATS:
        wide = _joined(mode, cast(old, dtype, torch.float32), cast(new, dtype, torch.float32), torch.float32)
        return cast(wide, torch.float32, dtype)
    return INSTRUCTIONS["or" if dtype == torch.bool and mode == "add" else mode](dtype, old, new)


def _join_by_lane(
    scope: Scope, where: Place, value: Value, active: Value | None, dtype: torch.dtype, mode: str
) -> None:
    """Read-modify-write one lane after the other, as lanes may meet in one element. Lanes that are off change what is
    nowhere."""
    b, kind = scope.b, MEMORY[dtype]
    lanes = max(value.lanes, where.pointer.lanes, 1 if active is None else active.lanes, scope.lanes)
    align = BITS[kind] // 8
    is_row = where.shape == "run" and where.align == 16 and (active is None or active.lanes == 1)
    at_once = _ADDED_AT_ONCE.get(dtype) if mode == "atomic_add" and b.target.adds_four and is_row else None
    if at_once is not None and lanes % at_once == 0:
        with _where_on(scope, where.pointer, active) as address:
            _add_row_atomically(address, scope.wide(value), dtype)
        return
    for lane in range(lanes):
        address = _address(where, lane, kind)
        with _where_on(scope, address, None if active is None else b.extract(active, lane)) as address:
            element = b.extract(value, lane)
            if mode in ATOMIC.values():
                _join_atomically(mode.removeprefix("atomic_"), address, element, dtype)
            else:
                old = b.emit(f"load {kind}, {address}, align {align}", kind)
                b.do(f"store {_joined(mode, old, element, dtype)}, {address}, align {align}")


def _join_atomically(mode: str, address: Value, element: Value, dtype: torch.dtype) -> None:
    """Joins a value to an element that other threads change likewise. A sum of bools is their union."""
    b, scope = address.b, 'syncscope("device") ' if address.b.target.triple else ""
    align = BITS[element.scalar] // 8
    if dtype == torch.bfloat16:
        element = b.bitcast(element, "bfloat")
    operation = f"f{mode}" if dtype.is_floating_point else "or" if dtype == torch.bool else mode
    b.emit(f"atomicrmw {operation} {address}, {element} {scope}monotonic, align {align}", element.scalar)


#: How many are 128 bits, which a GPU adds to memory with one instruction.
_ADDED_AT_ONCE = {torch.float32: 4, torch.bfloat16: 8}


def _add_row_atomically(address: Value, value: Value, dtype: torch.dtype) -> None:
    """Adds to neighbours, 128 bits at once, to each as `_join_atomically`. There is no LLVM instruction for that."""
    b = value.b
    kind, register = ("v4.f32", "f") if dtype is torch.float32 else ("noftz.v4.bf16x2", "r")
    if dtype is torch.bfloat16:
        value = b.emit(f"bitcast {value} to <{value.lanes // 2} x i32>", "i32", value.lanes // 2)
    code = f"red.relaxed.gpu.global.add.{kind} [$0], {{$1, $2, $3, $4}};"
    operands = ",".join(4 * register)
    for first in range(0, value.lanes, 4):
        there = b.emit(f"getelementptr i32, {address}, i64 {first}", "ptr") if first else address
        place = b.emit(f"addrspacecast {there} to ptr addrspace(1)", "ptr")
        words = ", ".join([str(b.extract(value, first + lane)) for lane in range(4)])
        b.do(f'call void asm sideeffect "{code}", "l,{operands},~{{memory}}"(ptr addrspace(1) {place.text}, {words})')


# ---- loads that run along memory in a ``tile`` loop, across it in the vector loop around --------------------------


def turned_loads(loop: Loop, vector: str) -> list[Node]:
    """The loads in a ``tile`` loop that are taken along it and transposed."""
    return [node for node in loads_of(roots_in(loop.body)) if not node.src and _turns(node, loop, vector)]


def _turns(node: Node, loop: Loop, vector: str) -> bool:
    return crosses(node.arg.index, loop.axis.name, vector)


def turned(scope: Scope, node: Node, tile: str, first: int) -> list[Value]:
    """The values of a load in the tile's iterations `first`, first + 1, …, as many as there are lanes. Lanes that are
    off read what another lane reads."""
    b, lanes, vector = scope.b, scope.lanes, scope.vector
    assert vector is not None
    index: Expr = node.arg.index
    distance = index.coefficient(vector)
    assert distance is not None
    start = index.subs({tile: Expr.const(first)})
    base, step = pointer(scope, node.arg.buffer, start.terms, start.offset), scope.scalar(distance)
    kind = MEMORY[scope.types[node.arg.buffer]]
    rows = []
    for lane in range(lanes):
        away: Value = step * lane
        if scope.mask is not None and lane:
            away = b.select(b.extract(scope.mask, lane), away, 0)
        address = b.emit(f"getelementptr {kind}, {base}, {away}", "ptr")
        rows.append(b.emit(f"load {llvm_type(kind, lanes)}, {address}, align {BITS[kind] // 8}", kind, lanes))
    columns = transposed(b, rows)
    return [b.compare("icmp ne", column, 0) for column in columns] if node.dtype == torch.bool else columns


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """As many vectors as each has lanes (a power of two), lane j of vector i exchanged with lane i of vector j: by
    squares of 1, 2, 4 … elements. Each step is a basic block: LLVM tries to join shuffles within one, each with all
    that it comes from, which takes long and finds nothing here."""
    lanes, size = len(rows), 1
    while size < lanes:
        step = b.new_label("step")
        b.jump(step)
        b.label(step)
        left = [lane if not lane & size else lanes + lane - size for lane in range(lanes)]
        right = [lane + size if not lane & size else lanes + lane for lane in range(lanes)]
        new = list(rows)
        for i in range(lanes):
            if not i & size:
                new[i] = b.shuffle(rows[i], left, rows[i + size].text)
                new[i + size] = b.shuffle(rows[i], right, rows[i + size].text)
        rows, size = new, 2 * size
    return rows
