"""The check that a kernel is well formed. It costs little and runs on every kernel while the compiler is young."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch

from bolide.inductor.ir.loops import (
    ATOMIC,
    MOST_SORTED,
    VECTOR_KINDS,
    WARP,
    Access,
    Axis,
    Init,
    Kernel,
    Loop,
    Node,
    Stmt,
    Store,
    Update,
)
from bolide.inductor.ir.printer import kernel_lines
from bolide.inductor.ir.ranges import Touched, are_apart, extremes, is_within
from bolide.inductor.ir.scalar_ops import NARROW_FLOATS, fault_of
from bolide.inductor.ir.walks import bound_nest, loads_of, nodes_below, roots_of, statements
from bolide.symbolic import Expr

NONE = Expr.const(0)


class InvalidKernel(ValueError):
    """A kernel that breaks a rule of loop IR. The message shows the statement and its neighbours."""


@dataclass(slots=True)
class _State:
    kernel: Kernel
    dtypes: dict[str, torch.dtype]
    numels: dict[str, Expr]
    inputs: set[str]  # buffers that are only read
    names: set[str]
    sizes: Mapping[str, int] | None
    accumulators: dict[str, Init] = field(default_factory=dict)
    parallel_outside: set[str] = field(default_factory=set)  # accumulators declared outside the current parallel loop
    checked: set[Node] = field(default_factory=set)
    statement: Stmt | None = None
    axes: list[Axis] = field(default_factory=list)  # of the loops around the current statement, outer ones first
    nest: list[Loop] = field(default_factory=list)  # the bound loops of the current statement of the kernel's body
    in_parts: set[str] = field(default_factory=set)  # accumulators of which each thread of a team has a part

    def fail(self, reason: str) -> InvalidKernel:
        """The error, with the few lines around the statement at fault."""
        lines = kernel_lines(self.kernel)
        at = max((n for n, (statement, _) in enumerate(lines) if statement is self.statement), default=0)
        shown = [f"{'>' if n == at else ' '} {text}" for n, (_, text) in enumerate(lines) if n == 0 or abs(n - at) <= 4]
        return InvalidKernel(f"kernel {self.kernel.name}: {reason}\n" + "\n".join(shown))


def verify(kernel: Kernel, sizes: Mapping[str, int] | None = None, most_local_bytes: int | None = None) -> None:
    """Raise InvalidKernel unless `kernel` keeps the rules that `loops` states: names in scope, operand counts and
    types, kinds of loops that may contain each other, accesses within their buffers (`sizes`: those of the call
    that it is made for), scratch buffers of `most_local_bytes` each (`Machine`)."""
    state = _State(
        kernel,
        {buffer.name: buffer.dtype for buffer in kernel.buffers},
        {buffer.name: buffer.numel for buffer in kernel.buffers},
        {param.name for param in kernel.params if param.role == "in"},
        set(kernel.sizes),
        sizes,
    )
    if len(state.dtypes) != len(kernel.buffers):
        raise state.fail("two buffers have one name")
    if kernel.grain is not None and kernel.grain < 1:
        raise state.fail(f"a thread's work is {kernel.grain}")
    if kernel.team != 1 and (kernel.team % 32 or not 32 <= kernel.team <= 1024):
        raise state.fail(f"a team of {kernel.team} threads: it has one, or a multiple of 32, up to 1024")
    for name, numel in state.numels.items():
        if not numel.free_vars <= state.names:
            raise state.fail(f"the size of {name} uses {_list(numel.free_vars - state.names)}, not a size parameter")
    for local in kernel.locals:
        size = (local.numel.bounds()[1] or 0) * local.dtype.itemsize
        if most_local_bytes is not None and size > most_local_bytes:
            raise state.fail(f"scratch buffer {local.name} is larger than {most_local_bytes >> 10} KiB")
    _body(state, kernel.body)
    _flags(state, kernel)
    for statement in kernel.body:
        if nest := bound_nest(statement):
            _side_by_side(state, nest)
    for statement in statements(kernel.body):
        if isinstance(statement, Loop) and statement.axis.bound == "team":
            _side_by_side(state, [statement])


def _flags(state: _State, kernel: Kernel) -> None:
    """Checks that flags, which are no memory, are neither read nor stored to but by ``any``."""
    flags = {flag.name for flag in kernel.flags}
    for state.statement in statements(kernel.body):
        if isinstance(state.statement, (Init, Loop)) or not flags:
            continue
        touched = {node.arg.buffer for node in loads_of(roots_of(state.statement))}
        if isinstance(state.statement, Store) and state.statement.mode != "any":
            touched.add(state.statement.access.buffer)
        if flags & touched:
            raise state.fail(f"{_list(flags & touched)} is a flag: it can only be stored to, by any")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _body(state: _State, body: Sequence[Stmt]) -> None:
    declared: list[str] = []
    for statement in body:
        state.statement = statement
        if not state.axes:
            state.nest = bound_nest(statement)
        if isinstance(statement, Loop):
            _loop(state, statement)
        elif isinstance(statement, Init):
            if statement.name in state.accumulators:
                raise state.fail(f"accumulator {statement.name} is declared twice")
            state.accumulators[statement.name] = statement
            declared.append(statement.name)
        elif isinstance(statement, Update):
            _update(state, statement)
        else:
            _store(state, statement)
    for name in declared:
        del state.accumulators[name]


def _loop(state: _State, loop: Loop) -> None:
    axis = loop.axis
    kinds = [outer.kind for outer in state.axes]
    if not axis.extent.free_vars <= state.names:
        raise state.fail(f"the extent of {axis.name} uses {_list(axis.extent.free_vars - state.names)}, not in scope")
    if axis.name in state.names:
        raise state.fail(f"the name {axis.name} is already in scope")
    if axis.kind in VECTOR_KINDS and not VECTOR_KINDS.isdisjoint(kinds):
        raise state.fail(f"vector loop {axis.name} stands inside another vector loop")
    if axis.kind == "parallel" and any(kind != "parallel" for kind in kinds):
        raise state.fail(f"parallel loop {axis.name} stands inside a {kinds[-1]} loop")
    if axis.kind == "tile" and axis.extent.bounds()[1] is None:
        raise state.fail(f"tile loop {axis.name} has no bound")
    if axis.bound == "team":
        _team(state, loop)
    elif axis.bound is not None:
        _bound(state, loop)
    outside, in_parts = state.parallel_outside, state.in_parts
    if axis.bound == "team" and axis.kind != "scan":
        updated = {inner.name for inner in statements(loop.body) if isinstance(inner, Update)}
        state.in_parts = updated.intersection(state.accumulators)
    if axis.kind in ("parallel", "vector"):
        state.parallel_outside = set(state.accumulators)
    state.names.add(axis.name)
    state.axes.append(axis)
    _body(state, loop.body)
    state.axes.pop()
    state.names.discard(axis.name)
    state.parallel_outside, state.in_parts = outside, in_parts
    state.checked.clear()


def _bound(state: _State, loop: Loop) -> None:
    axis = loop.axis
    if not any(loop is bound for bound in state.nest):
        raise state.fail(f"{axis.name} is bound to {axis.bound}, but not at the top of the kernel, in a perfect nest")
    if any(outer.axis.bound != axis.bound for outer in state.nest):
        raise state.fail(f"{axis.name} is bound to {axis.bound}, a loop next to it in the nest is not")
    is_inside = axis.bound == "threads" or loop is not state.nest[-1]
    if axis.kind != "parallel" and (axis.kind != "vector" or (len(state.nest) > 1 and is_inside)):
        raise state.fail(f"{axis.kind} loop {axis.name} is bound to {axis.bound}")
    if not axis.extent.free_vars.isdisjoint(outer.name for outer in state.axes):
        raise state.fail(f"the extent of {axis.name}, which is bound to {axis.bound}, changes in the loops around it")


def _team(state: _State, loop: Loop) -> None:
    axis = loop.axis
    if axis.kind not in (*VECTOR_KINDS, "scan"):
        raise state.fail(f"{axis.kind} loop {axis.name} is bound to a team")
    if axis.kind == "scan" and not all(isinstance(inner, (Update, Store)) for inner in loop.body):
        raise state.fail(f"scan loop {axis.name}, which a team shares, has more in it than updates and stores")


def _side_by_side(state: _State, nest: Sequence[Loop]) -> None:
    """Checks that iterations of bound loops write where no other one reads or writes, but for atomic additions, and for
    flags. Scratch memory is there once for each iteration of a grid or of threads, whose team shares it."""
    state.statement = nest[0]
    shared = [loop.axis.name for loop in nest]
    private = {local.name for local in state.kernel.locals if nest[0].axis.bound != "team"}
    stored = {inner.access.buffer for inner in statements(nest[:1]) if isinstance(inner, Store)} - private
    touched: dict[str, dict[Touched, str]] = {buffer: {} for buffer in stored}
    _touched(nest[:1], (), touched)
    for buffer, ways in touched.items():
        for (one, how), (other, also) in combinations_with_replacement(ways.items(), 2):
            harmless = how == also and how in ("load", "any", *ATOMIC.values())
            if not harmless and not are_apart(one, other, shared, state.sizes):
                places = " and ".join(dict.fromkeys(f"{buffer}[{place.index}]" for place in (one, other)))
                raise state.fail(f"iterations of {', '.join(shared)} run side by side, and may meet in {places}")


def _touched(body: Iterable[Stmt], axes: tuple[Axis, ...], found: Mapping[str, dict[Touched, str]]) -> None:
    """The elements of these buffers that statements touch, and how: ``set`` stands for what is touched in two ways."""
    for statement in body:
        if isinstance(statement, Loop):
            if statement.axis.extent is not NONE:
                _touched(statement.body, (*axes, statement.axis), found)
        elif not isinstance(statement, Init):
            uses = [(node.arg, "load") for node in loads_of(roots_of(statement))]
            if isinstance(statement, Store):
                uses.append((statement.access, statement.mode))
            for access, how in uses:
                if access.buffer in found:
                    ways, place = found[access.buffer], Touched(access.index, axes)
                    ways[place] = how if ways.get(place, how) == how else "set"


def _update(state: _State, statement: Update) -> None:
    init = state.accumulators.get(statement.name)
    if init is None:
        raise state.fail(f"no accumulator {statement.name} is in scope")
    if statement.name in state.parallel_outside:
        raise state.fail(f"iterations that run side by side update one accumulator, {statement.name}")
    _values(state, statement)
    if statement.value.dtype != init.dtype:
        raise state.fail(f"{statement.name} holds {init.dtype}, the value is {statement.value.dtype}")
    if init.dtype in NARROW_FLOATS:
        raise state.fail(f"{statement.name} accumulates in {init.dtype}; use float32")
    if init.op == "sort":
        _sort(state, statement, init)
    if (init.op in ("argmin", "argmax")) != (statement.position is not None):
        raise state.fail(f"{init.op} {'needs a' if statement.position is None else 'takes no'} position")
    if statement.position is not None and statement.position.dtype != torch.int64:
        raise state.fail("a position has dtype int64")


def _sort(state: _State, statement: Update, init: Init) -> None:
    axis = state.axes[-1]
    if axis.kind != "scan" or axis.bound != "team" or state.kernel.team != WARP:
        raise state.fail(f"{statement.name} is sorted in a {axis.kind} loop that no warp shares")
    if not axis.extent.is_const or axis.extent.value > MOST_SORTED:
        raise state.fail(f"{axis.extent} elements are sorted, at most {MOST_SORTED} can be")
    if init.dtype not in (torch.int32, torch.int64):
        raise state.fail(f"{statement.name} sorts {init.dtype}")


def _store(state: _State, statement: Store) -> None:
    _values(state, statement)
    access = statement.access
    _access(state, access, statement.operands)
    if access.buffer in state.inputs:
        raise state.fail(f"{access.buffer} is an input and cannot be stored to")
    if statement.mode == "any" and statement.value.dtype != torch.bool:
        raise state.fail(f"a store by any has a bool, not {statement.value.dtype}")
    if statement.value.dtype != state.dtypes[access.buffer]:
        raise state.fail(f"{access.buffer} holds {state.dtypes[access.buffer]}, the value is {statement.value.dtype}")


def _access(state: _State, access: Access, src: tuple[Node, ...]) -> None:
    if access.buffer not in state.dtypes:
        raise state.fail(f"there is no buffer {access.buffer}")
    operands = src[:-1] if access.masked else src
    if access.masked and (not src or src[-1].dtype != torch.bool):
        raise state.fail(f"the mask of an access to {access.buffer} is not a bool")
    known = state.names | {f"${k}" for k in range(len(operands))}
    if not access.index.free_vars <= known:
        raise state.fail(f"the index into {access.buffer} uses {_list(access.index.free_vars - known)}, not in scope")
    if any(node.dtype not in (torch.int64, torch.int32) for node in operands):
        raise state.fail(f"an operand of the index into {access.buffer} is not an integer")
    if access.masked or operands or any(axis.extent.is_const and axis.extent.value == 0 for axis in state.axes):
        return
    numel = state.numels[access.buffer]
    if is_within(access.index, numel, state.axes, state.sizes) is False:  # what cannot be told is allowed
        low, high = extremes(access.index, state.axes) or access.index.bounds()
        raise state.fail(f"index {access.index} goes from {low} to {high}, {access.buffer} has {numel} elements")


def _values(state: _State, statement: Store | Update) -> None:
    """Check all nodes of a statement, once each in a loop."""
    for node in nodes_below(roots_of(statement), state.checked.__contains__):
        state.checked.add(node)
        fault = fault_of(node.op, [operand.dtype for operand in node.src], node.dtype)
        if fault is not None:
            raise state.fail(fault)
        if node.op == "load":
            _access(state, node.arg, node.src)
            if node.dtype != state.dtypes[node.arg.buffer]:
                raise state.fail(f"{node.arg.buffer} holds {state.dtypes[node.arg.buffer]}, the load is {node.dtype}")
        elif node.op == "index":
            if not node.arg.free_vars <= state.names or node.dtype != torch.int64:
                raise state.fail(f"index value {node.arg} uses names not in scope, or is not int64")
        elif node.op == "acc":
            init = state.accumulators.get(node.arg)
            if init is None:
                raise state.fail(f"no accumulator {node.arg} is in scope")
            if node.arg in state.in_parts:
                raise state.fail(f"{node.arg} is read while each thread of a team has a part of it")
            if node.dtype != (torch.int64 if init.op.startswith("arg") else init.dtype):
                raise state.fail(f"{node.arg} read as {node.dtype}")
