"""The exception table of a code object of CPython 3.10, which has instructions that push and pop blocks instead.

The blocks around an instruction, and the depth of the stack there, do not depend on the way that led to it; so one walk
over the control flow finds them.
"""

from __future__ import annotations

import dis
import inspect
import types
from typing import NamedTuple

from bolide.dynamo.bytecode.forms import Raw, Row, destination


class Block(NamedTuple):
    """A `try` or `with` (`target`: where its handler starts), or a running handler (`target` None). `depth`: the stack
    that a handler finds below the exception."""

    target: int | None
    depth: int


_SETUPS = ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH")
_ENDS = ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_ABSOLUTE")
_HANDLER_PUSHES = 6  # two exceptions of three values
_State = tuple[int, tuple[Block, ...]]  # depth of the stack, blocks from the outermost


def rows(code: types.CodeType, raw: list[Raw]) -> list[Row]:
    """The exception table of `code`, whose instructions are `raw`."""
    states = _walk(code, raw)
    table: list[Row] = []
    for instruction in raw:
        depth_blocks = states.get(instruction.offset)
        blocks = depth_blocks[1] if depth_blocks is not None else ()
        inner = next((i for i in reversed(range(len(blocks))) if blocks[i].target is not None), None)
        if inner is None:
            continue
        target, depth = blocks[inner]
        assert target is not None
        handled = sum(block.target is None for block in blocks[:inner])
        row = Row(instruction.start, instruction.after, target, depth, handled, False)
        if table and table[-1].end == row.start and table[-1][2:] == row[2:]:
            table[-1] = table[-1]._replace(end=row.end)
        else:
            table.append(row)
    return table


def _walk(code: types.CodeType, raw: list[Raw]) -> dict[int, _State]:
    """The state before each instruction that can be reached, by byte offset."""
    at = {instruction.start: i for i, instruction in enumerate(raw)}
    suspends = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    pending: list[tuple[int, _State]] = [(0, (1 if code.co_flags & suspends else 0, ()))]
    states: dict[int, _State] = {}
    while pending:
        index, state = pending.pop()
        while raw[index].offset not in states:
            instruction = raw[index]
            states[instruction.offset] = state
            jumped = _jumped(instruction, state)
            if jumped is not None:
                pending.append((at[destination(instruction)], jumped))
            if instruction.name in _ENDS:
                break
            state = _next(instruction, state)
            index += 1
    return states


def _jumped(instruction: Raw, state: _State) -> _State | None:
    """The state where an instruction jumps to, None when it does not jump."""
    depth, blocks = state
    op = dis.opmap[instruction.name]
    if instruction.name in _SETUPS:
        below = _depth_below(instruction.name, depth)
        return below + _HANDLER_PUSHES, (*blocks, Block(None, below))
    if op in dis.hasjrel or op in dis.hasjabs:
        return depth + dis.stack_effect(op, instruction.arg, jump=True), blocks
    return None


def _next(instruction: Raw, state: _State) -> _State:
    """The state after an instruction that did not jump."""
    depth, blocks = state
    name = instruction.name
    if name in _SETUPS:
        block = Block(destination(instruction), _depth_below(name, depth))
        return depth + (1 if name == "SETUP_WITH" else 0), (*blocks, block)
    if name == "POP_BLOCK":
        return depth, blocks[:-1]
    if name == "POP_EXCEPT":
        return depth - 3, blocks[:-1]
    if name == "END_ASYNC_FOR":
        blocks = blocks[:-1]
    op = dis.opmap[name]
    argument = instruction.arg if op >= dis.HAVE_ARGUMENT else None
    return depth + dis.stack_effect(op, argument, jump=False), blocks


def _depth_below(name: str, depth: int) -> int:
    """What a handler keeps of the stack before a SETUP instruction: for `async with`, all but the result of
    `__aenter__`. The context manager of `with` is replaced by its `__exit__`."""
    return depth - 1 if name == "SETUP_ASYNC_WITH" else depth
