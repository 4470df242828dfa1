"""Checks of a GPU's flags as assertions of the kernels that set them.

A check of a flag is a launch that clears it, one that sets it, and two that look at it. As eager's kernels do, ours
assert themselves where nothing else needs the flag: then it is no memory, and all but one launch are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bolide.inductor.ir.loops import Flag, Init, Kernel, Loop, Stmt, Store
from bolide.inductor.ir.walks import loads_of, roots_of, statements
from bolide.inductor.plan import Alloc, Block, Check, Free, Launch, Ref, Step, used_names
from bolide.inductor.plan.steps import blocks_of, with_blocks

#: What kernels assert, by their places and those of the parameters: the messages of all launches.
_Asserted = dict[int, dict[int, str]]


def asserted(block: Block, kernels: Sequence[Kernel]) -> tuple[Block, tuple[Kernel, ...]]:
    """A block and its kernels with what can be asserted."""
    messages = _messages(block, kernels)
    if not messages:
        return block, tuple(kernels)
    changed = [_asserting(kernel, messages.get(place, {})) for place, kernel in enumerate(kernels)]
    return _without_flags(block, kernels, messages), tuple(changed)


def _messages(block: Block, kernels: Sequence[Kernel]) -> _Asserted:
    """What all launches of a kernel agree on: a flag that one of them needs stays one for all."""
    found: dict[int, list[dict[int, str]]] = {}
    for one in _blocks(block):
        checks = _only_checked(one)
        for step in one.steps:
            if isinstance(step, Launch):
                sets = found.setdefault(step.kernel, [])
                for names in _sets(step, kernels[step.kernel]):
                    sets.append({at: checks[name] for at, name in enumerate(names) if name in checks})
    asserted: _Asserted = {}
    for place, launches in found.items():
        everywhere = set.intersection(*map(set, launches))
        can_be = [at for at in sorted(everywhere) if _is_only_set(kernels[place], kernels[place].params[at].name)]
        if can_be:
            asserted[place] = {at: "; ".join(dict.fromkeys(some[at] for some in launches)) for at in can_be}
    return asserted


def _sets(launch: Launch, kernel: Kernel) -> list[tuple[str, ...]]:
    """The buffers of a launch, for each set of arguments of a batch."""
    count, names = len(kernel.params), launch.arguments
    return [names[start : start + count] for start in range(0, len(names), count)]


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for step in block.steps:
        for inner in blocks_of(step):
            yield from _blocks(inner)


def _only_checked(block: Block) -> dict[str, str]:
    """The flags of a block that one launch sets and a check looks at, and nothing else uses; with its message."""
    uses: dict[str, list[Step]] = {}
    for step in block.steps:
        for name in used_names(step):
            uses.setdefault(name, []).append(step)
    made = {step.name for step in block.steps if isinstance(step, Alloc)}
    made -= {value.name for value in block.results if isinstance(value, Ref)}
    checks: dict[str, str] = {}
    for name in made:
        match uses.get(name):
            case [Launch(), Check(expected=False) as check]:
                checks[name] = check.message
    return checks


def _is_only_set(kernel: Kernel, name: str) -> bool:
    """Whether a kernel clears a flag before all else, and then sets it, and does not look at it."""
    for statement in statements(kernel.body):
        if isinstance(statement, (Init, Loop)):
            continue
        if any(load.arg.buffer == name for load in loads_of(roots_of(statement))):
            return False
        if isinstance(statement, Store) and statement.access.buffer == name:
            cleared = _clears(statement, name) and statement in kernel.body
            if statement.mode != "any" and not cleared:
                return False
    return True


def _clears(statement: Stmt, name: str) -> bool:
    if not isinstance(statement, Store) or statement.access.buffer != name or statement.mode != "set":
        return False
    return statement.value.op == "const" and not statement.value.arg


def _asserting(kernel: Kernel, messages: dict[int, str]) -> Kernel:
    """The kernel with flags in the places of these parameters."""
    flags = [Flag(kernel.params[at].name, message) for at, message in messages.items()]
    body = tuple([s for s in kernel.body if not any(_clears(s, flag.name) for flag in flags)])
    params = tuple([param for at, param in enumerate(kernel.params) if at not in messages])
    return replace(kernel, params=params, body=body, flags=(*kernel.flags, *flags))


def _without_flags(block: Block, kernels: Sequence[Kernel], messages: _Asserted) -> Block:
    gone: set[str] = set()
    for step in block.steps:
        if isinstance(step, Launch):
            places = messages.get(step.kernel, ())
            gone.update(names[at] for names in _sets(step, kernels[step.kernel]) for at in places)
    steps: list[Step] = []
    for step in block.steps:
        if isinstance(step, Launch):
            kept = [name for name in step.arguments if name not in gone]
            steps.append(replace(step, arguments=tuple(kept)))
        elif isinstance(step, Free):
            if left := tuple([name for name in step.names if name not in gone]):
                steps.append(Free(left))
        elif not ((isinstance(step, Alloc) and step.name in gone) or (isinstance(step, Check) and step.flag in gone)):
            steps.append(with_blocks(step, lambda inner: _without_flags(inner, kernels, messages)))
    return replace(block, steps=tuple(steps))
