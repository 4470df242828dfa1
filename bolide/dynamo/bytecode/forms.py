"""How each instruction of CPython 3.10 to 3.13 is written in the uniform form.

A *form* takes an instruction of some versions to a list of (operation, argument) pairs. Instructions without a form
keep their name and plain argument. Where an argument is a place in the code it is a `JumpTarget` until all instructions
have indices.
"""

from __future__ import annotations

import dis
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from bolide.dynamo.bytecode.uniform import BINARY, COMPARISONS

Version = tuple[int, int]
VERSION: Version = (sys.version_info[0], sys.version_info[1])
VERSIONS: tuple[Version, ...] = ((3, 10), (3, 11), (3, 12), (3, 13))


class Raw(NamedTuple):
    """One instruction as CPython stores it. `start`: byte offset of its first EXTENDED_ARG; `after`: of what follows
    it and its caches."""

    name: str
    arg: int
    offset: int
    start: int
    after: int


class JumpTarget(NamedTuple):
    """The instruction `skip` uniform instructions after the one that stood at byte `offset`."""

    offset: int
    skip: int = 0


class Row(NamedTuple):
    """A row of an exception table: an exception at `start` ≤ place < `end` goes to `target` with the stack cut to
    `depth`; `lasti`: and the index of the instruction pushed below it. `handled`: how many handlers are still running
    there, None where the code itself ends them (from 3.11 on). Places are in bytes until all instructions have
    indices."""

    start: int
    end: int
    target: int
    depth: int
    handled: int | None
    lasti: bool


Part = tuple[str, Any]
Form = Callable[[types.CodeType, Raw], "list[Part]"]

SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "NOP", "RESUME", "POP_BLOCK", "TO_BOOL", "END_FOR"})
"""Instructions that do nothing here: what consumes the result of TO_BOOL asks for its truth anyway, FOR_ITER jumps past
END_FOR, and blocks (3.10) are a table."""

NEVER: dict[str, str] = {
    "IMPORT_STAR": "only at module level",
    "PRINT_EXPR": "only in the interactive interpreter",
    "RESERVED": "not an instruction",
    "INTERPRETER_EXIT": "only in frames made by C code",
    "ENTER_EXECUTOR": "co_code shows the instruction it replaced",
    "EXIT_INIT_CHECK": "only in frames made by C code",
    **dict.fromkeys(
        (
            *("JUMP", "JUMP_NO_INTERRUPT", "LOAD_METHOD", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "LOAD_CLOSURE"),
            *("LOAD_ZERO_SUPER_METHOD", "POP_BLOCK", "SETUP_CLEANUP", "SETUP_FINALLY", "SETUP_WITH"),
            "STORE_FAST_MAYBE_NULL",
        ),
        "only inside the compiler (pseudo-instruction)",
    ),
}
"""Names of `dis.opmap` that no code object shows, and why. From 3.12 on the pseudo-instructions are among them;
INSTRUMENTED_* are shown by `co_code` as what they stand for."""

_FORMS: dict[str, list[tuple[Version, Version, Form]]] = {}


def _form(*names: str, since: Version = (3, 10), until: Version = (3, 13)) -> Callable[[Form], Form]:
    def register(function: Form) -> Form:
        for name in names:
            _FORMS.setdefault(name, []).append((since, until, function))
        return function

    return register


def _fixed(name: str, *parts: Part, since: Version = (3, 10), until: Version = (3, 13)) -> None:
    """`name` is always these parts."""
    _form(name, since=since, until=until)(lambda code, raw: list(parts))


def _single(
    name: str,
    uniform: str,
    argument: Callable[[types.CodeType, Raw], Any] = lambda code, raw: raw.arg,
    since: Version = (3, 10),
    until: Version = (3, 13),
) -> None:
    """`name` is one operation, with this argument."""
    _form(name, since=since, until=until)(lambda code, raw: [(uniform, argument(code, raw))])


def forms(version: Version) -> dict[str, Form]:
    """The forms of one version of CPython."""
    return {
        name: function for name, rows in _FORMS.items() for since, until, function in rows if since <= version <= until
    }


# ---- jumps -----------------------------------------------------------------------------------------------------------


def destination(raw: Raw) -> int:
    """The byte offset that a jump leads to."""
    if VERSION == (3, 10):
        return 2 * raw.arg if dis.opmap[raw.name] in dis.hasjabs else raw.after + 2 * raw.arg
    return raw.after + (-2 if "BACKWARD" in raw.name else 2) * raw.arg


@_form("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD")
@_form("JUMP_BACKWARD_NO_INTERRUPT", since=(3, 12))
def _jump(code: types.CodeType, raw: Raw) -> list[Part]:
    return [("JUMP", JumpTarget(destination(raw)))]


@_form("JUMP_BACKWARD_NO_INTERRUPT", until=(3, 11))
def _jump_of_yield_from(code: types.CodeType, raw: Raw) -> list[Part]:
    return [("JUMP", JumpTarget(destination(raw))), ("END_SEND", None)]  # closes the loop of SEND, as in 3.12


_CONDITIONS = ("IF_TRUE", "IF_FALSE", "IF_NONE", "IF_NOT_NONE")


@_form(*[f"POP_JUMP_{way}{condition}" for way in ("", "FORWARD_", "BACKWARD_") for condition in _CONDITIONS])
def _pop_jump(code: types.CodeType, raw: Raw) -> list[Part]:
    return [("POP_JUMP_" + raw.name[raw.name.index("IF_") :], JumpTarget(destination(raw)))]


@_form("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", until=(3, 11))
def _jump_or_pop(code: types.CodeType, raw: Raw) -> list[Part]:
    name = "POP_JUMP_IF_TRUE" if "TRUE" in raw.name else "POP_JUMP_IF_FALSE"
    return [("COPY", 1), (name, JumpTarget(destination(raw))), ("POP_TOP", None)]


# The exhausted iterator is popped by the handler; in 3.13 the POP_TOP after END_FOR would do that.
_single("FOR_ITER", "FOR_ITER", lambda code, raw: JumpTarget(destination(raw), int(VERSION >= (3, 13))))
_single("SEND", "SEND", lambda code, raw: JumpTarget(destination(raw), -int(VERSION == (3, 11))), since=(3, 11))


@_form("YIELD_FROM", until=(3, 10))
def _yield_from(code: types.CodeType, raw: Raw) -> list[Part]:
    at = raw.start
    return [("SEND", JumpTarget(at, 3)), ("YIELD_VALUE", None), ("JUMP", JumpTarget(at)), ("END_SEND", None)]


# in 3.10 the error stands above the iterator and five more
_fixed("END_ASYNC_FOR", ("POP_TOP", None), ("END_ASYNC_FOR", 5), until=(3, 10))
_fixed("END_ASYNC_FOR", ("END_ASYNC_FOR", 1), since=(3, 11))
_fixed("GET_ANEXT", ("GET_ANEXT", None), ("GET_AWAITABLE", None))


# ---- names and constants ---------------------------------------------------------------------------------------------


@_form("LOAD_CONST", "RETURN_CONST")
@_form("KW_NAMES", since=(3, 11), until=(3, 12))
def _constant(code: types.CodeType, raw: Raw) -> list[Part]:
    loaded: Part = ("LOAD_CONST", code.co_consts[raw.arg])
    return [loaded, ("RETURN_VALUE", None)] if raw.name == "RETURN_CONST" else [loaded]


_fixed("LOAD_ASSERTION_ERROR", ("LOAD_CONST", AssertionError))


@_form("LOAD_ATTR", "LOAD_METHOD", until=(3, 11))
@_form(
    *["STORE_NAME", "DELETE_NAME", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"],
    *["LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME", "IMPORT_FROM"],
)
def _name(code: types.CodeType, raw: Raw) -> list[Part]:
    return [(raw.name, code.co_names[raw.arg])]


def _name_and_flag(bits: int) -> Callable[[types.CodeType, Raw], tuple[str, bool]]:
    """The name whose index stands above so many bits of an argument, and the lowest of these."""
    return lambda code, raw: (code.co_names[raw.arg >> bits], bool(raw.arg & 1))


_single("LOAD_GLOBAL", "LOAD_GLOBAL", lambda code, raw: (code.co_names[raw.arg], False), until=(3, 10))
_single("LOAD_GLOBAL", "LOAD_GLOBAL", _name_and_flag(1), since=(3, 11))
_single("LOAD_SUPER_ATTR", "LOAD_SUPER_ATTR", _name_and_flag(2), since=(3, 12))


@_form("LOAD_ATTR", since=(3, 12))
def _load_attr(code: types.CodeType, raw: Raw) -> list[Part]:
    return [("LOAD_METHOD" if raw.arg & 1 else "LOAD_ATTR", code.co_names[raw.arg >> 1])]


def locals_of(code: types.CodeType) -> list[str]:
    """The names of a frame's slots: variables, then cells that are not parameters, then free variables."""
    names = list(code.co_varnames)
    return [*names, *[name for name in code.co_cellvars if name not in names], *code.co_freevars]


def prologue(code: types.CodeType) -> list[Part]:
    """What 3.11 does itself at the start of a function: cells are made, a generator is returned."""
    if VERSION > (3, 10):
        return []
    names = locals_of(code)
    parts: list[Part] = [("MAKE_CELL", names.index(name)) for name in code.co_cellvars]
    if code.co_freevars:
        parts.append(("COPY_FREE_VARS", len(code.co_freevars)))
    return parts


@_form("LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF", until=(3, 10))
def _cell_old(code: types.CodeType, raw: Raw) -> list[Part]:
    slot = locals_of(code).index((code.co_cellvars + code.co_freevars)[raw.arg])
    if raw.name == "LOAD_CLASSDEREF":
        return [("LOAD_LOCALS", None), ("LOAD_FROM_DICT_OR_DEREF", slot)]
    return [("LOAD_FAST" if raw.name == "LOAD_CLOSURE" else raw.name, slot)]


@_form("LOAD_CLASSDEREF", since=(3, 11), until=(3, 11))
def _load_classderef(code: types.CodeType, raw: Raw) -> list[Part]:
    return [("LOAD_LOCALS", None), ("LOAD_FROM_DICT_OR_DEREF", raw.arg)]


_single("LOAD_CLOSURE", "LOAD_FAST", since=(3, 11), until=(3, 12))
_single("LOAD_FAST_CHECK", "LOAD_FAST", since=(3, 12))


@_form("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", since=(3, 13))
def _two_fast(code: types.CodeType, raw: Raw) -> list[Part]:
    first, second, _ = raw.name.split("_FAST")
    return [(first + "_FAST", raw.arg >> 4), (second.lstrip("_") + "_FAST", raw.arg & 15)]


# ---- the stack, operators --------------------------------------------------------------------------------------------

_fixed("UNARY_NEGATIVE", ("UNARY_OP", operator.neg))
_fixed("UNARY_POSITIVE", ("UNARY_OP", operator.pos), until=(3, 11))
_fixed("UNARY_INVERT", ("UNARY_OP", operator.invert))
_fixed("BINARY_SLICE", ("BUILD_SLICE", 2), ("BINARY_SUBSCR", None), since=(3, 12))
_fixed("STORE_SLICE", ("BUILD_SLICE", 2), ("STORE_SUBSCR", None), since=(3, 12))
_fixed("DUP_TOP", ("COPY", 1), until=(3, 10))
_fixed("DUP_TOP_TWO", ("COPY", 2), ("COPY", 2), until=(3, 10))


@_form("ROT_TWO", "ROT_THREE", "ROT_FOUR", "ROT_N", until=(3, 10))
def _rotate(code: types.CodeType, raw: Raw) -> list[Part]:
    count = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(raw.name, raw.arg)
    return [("SWAP", depth) for depth in range(count, 1, -1)]


for _instruction, _operator in BINARY.items():
    _fixed(_instruction, ("BINARY_OP", _operator), until=(3, 10))


_single("BINARY_OP", "BINARY_OP", lambda code, raw: list(BINARY.values())[raw.arg], since=(3, 11))


@_form("COMPARE_OP")
def _compare_op(code: types.CodeType, raw: Raw) -> list[Part]:
    shift = {(3, 12): 4, (3, 13): 5}.get(VERSION, 0)
    return [("COMPARE_OP", COMPARISONS[dis.cmp_op[raw.arg >> shift]])]


_fixed("FORMAT_SIMPLE", ("FORMAT_VALUE", 0), since=(3, 13))
_fixed("FORMAT_WITH_SPEC", ("FORMAT_VALUE", 4), since=(3, 13))
_single("CONVERT_VALUE", "FORMAT_VALUE", since=(3, 13))

INTRINSICS: dict[tuple[str, int], str] = {
    ("CALL_INTRINSIC_1", 3): "STOPITERATION_ERROR",
    ("CALL_INTRINSIC_1", 4): "ASYNC_GEN_WRAP",
    ("CALL_INTRINSIC_1", 5): "UNARY_OP",
    ("CALL_INTRINSIC_1", 6): "LIST_TO_TUPLE",
    ("CALL_INTRINSIC_1", 7): "TYPEVAR",
    ("CALL_INTRINSIC_1", 8): "PARAMSPEC",
    ("CALL_INTRINSIC_1", 9): "TYPEVARTUPLE",
    ("CALL_INTRINSIC_1", 10): "SUBSCRIPT_GENERIC",
    ("CALL_INTRINSIC_1", 11): "TYPEALIAS",
    ("CALL_INTRINSIC_2", 1): "PREP_RERAISE_STAR",
    ("CALL_INTRINSIC_2", 2): "TYPEVAR_WITH_BOUND",
    ("CALL_INTRINSIC_2", 3): "TYPEVAR_WITH_CONSTRAINTS",
    ("CALL_INTRINSIC_2", 4): "SET_FUNCTION_TYPE_PARAMS",
    ("CALL_INTRINSIC_2", 5): "SET_TYPEPARAM_DEFAULT",
}


@_form("CALL_INTRINSIC_1", "CALL_INTRINSIC_2", since=(3, 12))
def _intrinsic(code: types.CodeType, raw: Raw) -> list[Part]:
    name = INTRINSICS.get((raw.name, raw.arg), f"{raw.name} {raw.arg}")
    return [(name, operator.pos if name == "UNARY_OP" else None)]


# ---- patterns, calls, functions --------------------------------------------------------------------------------------

_fixed("MATCH_SEQUENCE", ("MATCH_KIND", 1 << 5))
_fixed("MATCH_MAPPING", ("MATCH_KIND", 1 << 6))
_MATCHED: list[Part] = [("COPY", 1), ("LOAD_CONST", None), ("IS_OP", 1)]


@_form("MATCH_KEYS", "MATCH_CLASS", until=(3, 10))
def _match_old(code: types.CodeType, raw: Raw) -> list[Part]:
    """3.10 pushes whether there was a match as well."""
    return [(raw.name, raw.arg), *_MATCHED]


_single("CALL_METHOD", "CALL", until=(3, 10))
_single("CALL_FUNCTION_EX", "CALL_FUNCTION_EX", lambda code, raw: (bool(raw.arg & 1), VERSION > (3, 10)))
# The qualified name is on the stack.
_single("MAKE_FUNCTION", "MAKE_FUNCTION", lambda code, raw: raw.arg | 16, until=(3, 10))

# ---- blocks and exceptions of 3.10 -----------------------------------------------------------------------------------

HANDLER: list[Part] = [("PUSH_EXC_INFO", None), *[("LOAD_CONST", None), ("SWAP", 2)] * 3, ("COPY", 1)]
"""What stands before a handler of 3.10: the exceptions that it expects as (traceback, value, type) each. The last of
the six is the exception in the place of its type."""

_fixed("SETUP_FINALLY", until=(3, 10))
_fixed("SETUP_ASYNC_WITH", until=(3, 10))
_fixed("SETUP_WITH", ("BEFORE_WITH", None), until=(3, 10))
_fixed("POP_EXCEPT", ("POP_TOP", None), ("POP_TOP", None), ("POP_EXCEPT", None), until=(3, 10))
_fixed("RERAISE", ("POP_TOP", None), ("RERAISE", None), until=(3, 10))
_fixed("WITH_EXCEPT_START", ("WITH_EXCEPT_START", (7, 2)), until=(3, 10))
_fixed("WITH_EXCEPT_START", ("WITH_EXCEPT_START", (4, 1)), since=(3, 11))
_fixed("GEN_START", ("RETURN_GENERATOR", None), ("POP_TOP", None), until=(3, 10))


@_form("JUMP_IF_NOT_EXC_MATCH", until=(3, 10))
def _jump_if_not_exc_match(code: types.CodeType, raw: Raw) -> list[Part]:
    parts = [("CHECK_EXC_MATCH", None), ("SWAP", 2), ("POP_TOP", None)]
    return [*parts, ("POP_JUMP_IF_FALSE", JumpTarget(destination(raw)))]
