"""In-place reuse: a kernel's result takes the memory of an operand that dies with that kernel.

Sound only if no element is overwritten before its last read. A load of the operand is harmless if it comes

- in an earlier statement of the kernel (top-level statements have a barrier between them),
- in an earlier statement of the same iteration of the loops it shares with the store, and at the places that the store
  of this iteration covers: the indices agree when the loops below are named alike. No other iteration stores there,
  because a result stores each of its elements once,
- or in the same iteration of all loops, at the very element, not after the store: a kernel loads a value when it is
  first asked for, and remembers it until the loop's body ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bolide.inductor.ir.definitions import axis_var
from bolide.inductor.ir.loops import Access, Axis, Init, Kernel, Loop, Node, Stmt, Store
from bolide.inductor.ir.walks import nodes_below, roots_of
from bolide.inductor.plan import (
    Alloc,
    Branch,
    Call,
    Free,
    Launch,
    Repeat,
    Reuse,
    Step,
    View,
    defined_names,
    used_names,
)
from bolide.inductor.plan.schemas import overload_of
from bolide.inductor.runtime.results import gives_new_memory
from bolide.inductor.schedule.stages import Buffer
from bolide.symbolic import Expr


@dataclass(frozen=True, slots=True)
class _Use:
    """One load or store: the position of its statement in each body from the outermost inwards, and the axes of the
    loops around it. `direct`: neither masked nor at a place that data decide."""

    stores: bool
    access: Access
    positions: tuple[int, ...]
    axes: tuple[Axis, ...]
    direct: bool


def reuse_in_place(
    steps: list[Step], kernels: list[Kernel], buffers: dict[str, Buffer], kept: Container[str] = ()
) -> list[Step]:
    """The steps with every Alloc that can take the memory of an operand of its Launch replaced by a Reuse, or, where
    the operand has another shape, by a View of it, unless the new tensor or a view of it is `kept`.

    `steps` have their Free steps; `buffers` says dtype, shape and layout by name."""
    own = _memory_of_its_own(steps)
    alone = {step.base for step in steps if isinstance(step, View) and step.name in kept}  # other memory than others'
    done = list(steps)
    for position, step in enumerate(steps):
        if isinstance(step, Launch):
            following = steps[position + 1] if position + 1 < len(steps) else None
            kernel = kernels[step.kernel]
            made = {name for name, param in zip(step.arguments, kernel.launch_params) if param.role != "in"}
            freed = following.names if isinstance(following, Free) else ()
            dying = [name for name in freed if name in own and name not in made]
            if dying and kernel.batch == 1:  # a set of a batch may still read what another one writes
                told = {name: buffers[name] for name in (*made, *dying)}
                _reuse(done, position, kernel, dying, told, {name for name in made if name in kept or name in alone})
    return done


def _memory_of_its_own(steps: list[Step]) -> set[str]:
    """The tensors the plan makes whose memory nothing else looks at: no view of them is taken, and no call had them, or
    gave them, that may have kept them or given something else in their memory."""
    own: set[str] = set()
    for step in steps:
        if isinstance(step, View) or (isinstance(step, Call) and not gives_new_memory(overload_of(step.operator))):
            own.difference_update(used_names(step))
        elif isinstance(step, Repeat):  # its results may be what it began with, which nothing else uses
            own.difference_update(step.carried)
            own.update(defined_names(step))
        elif isinstance(step, (Alloc, Call, Branch)):
            own.update(defined_names(step))
    return own


def shared_memory(steps: Iterable[Step]) -> set[str]:
    """The tensors that may be in the memory of others without a step that says so: those of calls that have not
    promised to give new memory."""
    calls = [step for step in steps if isinstance(step, Call) and not gives_new_memory(overload_of(step.operator))]
    return {name for step in calls for name in (*used_names(step), *defined_names(step))}


def _reuse(
    steps: list[Step],
    position: int,
    kernel: Kernel,
    dying: list[str],
    buffers: dict[str, Buffer],
    alone: Container[str],
) -> None:
    """Replaces Allocs right before the Launch at `position`. Those that are to be `alone` become no Views."""
    launch = steps[position]
    assert isinstance(launch, Launch)
    uses: dict[str, list[_Use]] = {}
    for before in range(position - 1, -1, -1):
        step = steps[before]
        if not isinstance(step, (Alloc, Reuse)):
            return
        if isinstance(step, Alloc) and step.name in used_names(launch):
            new = buffers[step.name]
            alike = [
                name for name in dying if buffers[name] == new or (step.name not in alone and _fits(buffers[name], new))
            ]
            uses = uses or (_uses(kernel, launch.arguments) if alike else {})
            fitting = [name for name in alike if _harmless(uses.get(name, []), uses.get(step.name, []))]
            if fitting:  # what is stored before this may take the memory of what is loaded before
                chosen = max(fitting, key=lambda name: max([use.positions for use in uses.get(name, [])], default=()))
                whole = View(step.name, chosen, step.type, Expr.const(0))
                steps[before] = Reuse(step.name, chosen) if buffers[chosen] == new else whole
                dying.remove(chosen)


def _fits(old: Buffer, new: Buffer) -> bool:
    """Whether buffers of different shapes take the same memory."""
    span, begin = new.span, new.layout.offset
    same = (old.dtype, old.device, old.layout.offset, old.span) == (new.dtype, new.device, begin, span)
    return same and begin == Expr.const(0)


def overwrites_safely(kernel: Kernel, arguments: Sequence[str], homes: Mapping[str, str]) -> dict[str, bool]:
    """Whether each of the buffers `homes`, which a kernel called with `arguments` makes, may be stored in the memory of
    the other one, which has the same layout."""
    uses = _uses(kernel, arguments)
    return {new: _harmless(uses.get(old, []), uses.get(new, [])) for new, old in homes.items()}


def _harmless(old: list[_Use], new: list[_Use]) -> bool:
    """Whether the loads of one buffer never come after the store of another one to the same memory. Of several stores
    (the pieces of a loop) each has elements of its own, so that the one of an element that is loaded counts. Loads of
    the new buffer come after its stores anyway."""
    loads, stores = old, [use for use in new if use.stores]
    if not stores or not all(use.direct for use in (*loads, *stores)):
        return False
    return all(
        any(_at_its_element(load, store) for store in stores) or all(_before(load, store) for store in stores)
        for load in loads
    )


def _at_its_element(load: _Use, store: _Use) -> bool:
    """Whether in every iteration one element is loaded and then, or in the same statement, stored."""
    together = load.axes == store.axes and load.positions[:-1] == store.positions[:-1]
    return together and load.positions[-1] <= store.positions[-1] and load.access.index == store.access.index


def _before(load: _Use, store: _Use) -> bool:
    """Whether all loads of an element come before it is stored."""
    shared = 0
    while shared < min(len(load.axes), len(store.axes)) and load.positions[shared] == store.positions[shared]:
        shared += 1
    if load.positions[shared] >= store.positions[shared]:
        return False
    return shared == 0 or _same_places(load, store, shared)


def _same_places(load: _Use, store: _Use, shared: int) -> bool:
    """Whether load and store run over the same elements in one iteration of the `shared` outer loops."""
    below, named = load.axes[shared:], store.axes[shared:]
    if [axis.extent for axis in below] != [axis.extent for axis in named]:
        return False
    renamed = load.access.index.subs({a.name: axis_var(b.name, b.extent) for a, b in zip(below, named)})
    return renamed == store.access.index.subs({b.name: axis_var(b.name, b.extent) for b in named})


def _uses(kernel: Kernel, arguments: Sequence[str]) -> dict[str, list[_Use]]:
    """Stores and loads by argument. Of the loads of one node those are left out that come when it is remembered: behind
    another one in the same body or one around it."""
    uses: dict[str, list[_Use]] = {name: [] for name in arguments}
    named = {param.name: name for param, name in zip(kernel.params, arguments)}

    def visit(body: tuple[Stmt, ...], outer: tuple[int, ...], axes: tuple[Axis, ...], known: frozenset[Node]) -> None:
        for position, statement in enumerate(body):
            positions = (*outer, position)
            if isinstance(statement, Loop):
                visit(statement.body, positions, (*axes, statement.axis), known)
            elif not isinstance(statement, Init):
                loads = [node for node in nodes_below(roots_of(statement), known.__contains__) if node.op == "load"]
                known = known.union(loads)
                accesses = [(False, load.arg, not load.src) for load in loads]
                if isinstance(statement, Store):
                    direct = not statement.operands and statement.mode == "set"
                    accesses.append((True, statement.access, direct))
                for stores, access, direct in accesses:
                    if access.buffer in named:  # not scratch memory
                        uses[named[access.buffer]].append(_Use(stores, access, positions, axes, direct))

    visit(kernel.body, (), (), frozenset())
    return uses
