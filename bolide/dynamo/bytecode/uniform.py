"""What each operation of the uniform form does: the one table for the interpreter, liveness and joins, frames that are
run for real, and hops. And the binary operators that are arguments of some: their signs and special methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Count = int | Callable[[Any], int]
"""A number of values, or what says it of the operation's argument."""

Goes = Literal["on", "jumps", "branches", "loops", "returns", "raises"]
"""To the next instruction; to another one; to either, by a truth; to either, by whether an iterator is exhausted; or
out of the frame."""

Asks = Literal["nothing", "identity", "numbers", "everything"]
"""What has to be known of the values: nothing (they are moved about, and nothing is raised); which objects they are;
what Python computes of them (no tensor is needed for Python's own numbers); how they behave."""


class Operation(NamedTuple):
    """`takes`, `gives`: values that are popped, and pushed then; `local`: what it does to the fast local that is its
    argument; `suspends`: the frame may be taken off the stack; `begins`: it sets a frame up; `calls`: a function that
    is on the stack; `finds`: it pushes a value of the outside world as it is found."""

    takes: Count = 0
    gives: Count = 0
    goes: Goes = "on"
    asks: Asks = "everything"
    local: Literal["", "reads", "writes"] = ""
    suspends: bool = False
    begins: bool = False
    calls: bool = False
    finds: bool = False

    def taken(self, arg: object) -> int:
        """How many values it pops."""
        return self.takes if isinstance(self.takes, int) else self.takes(arg)

    def given(self, arg: object) -> int:
        """How many values it pushes."""
        return self.gives if isinstance(self.gives, int) else self.gives(arg)


CALLS = frozenset({"CALL", "CALL_FUNCTION"})
"""Calls with positional arguments."""


def _plus(more: int) -> Callable[[int], int]:
    return lambda arg: arg + more


def _with_null(arg: tuple[str, bool]) -> int:
    return 1 + arg[1]


UNIFORM: dict[str, Operation] = {
    # the stack
    "POP_TOP": Operation(1, 0, asks="nothing"),
    "PUSH_NULL": Operation(0, 1, asks="nothing"),
    "COPY": Operation(0, 1, asks="nothing"),
    "SWAP": Operation(asks="nothing"),
    "LOAD_CONST": Operation(0, 1, asks="nothing"),
    # variables
    "LOAD_FAST": Operation(0, 1, local="reads", finds=True),
    "LOAD_FAST_AND_CLEAR": Operation(0, 1, local="reads"),
    "STORE_FAST": Operation(1, 0, asks="nothing", local="writes"),
    "DELETE_FAST": Operation(asks="identity", local="reads"),
    "MAKE_CELL": Operation(begins=True),
    "COPY_FREE_VARS": Operation(begins=True),
    "LOAD_DEREF": Operation(0, 1, finds=True),
    "STORE_DEREF": Operation(1, 0),
    "DELETE_DEREF": Operation(),
    "LOAD_FROM_DICT_OR_DEREF": Operation(1, 1),
    "LOAD_GLOBAL": Operation(0, _with_null, finds=True),
    "STORE_GLOBAL": Operation(1, 0),
    "DELETE_GLOBAL": Operation(),
    "LOAD_NAME": Operation(0, 1),
    "LOAD_FROM_DICT_OR_GLOBALS": Operation(1, 1),
    "LOAD_LOCALS": Operation(0, 1),
    "STORE_NAME": Operation(1, 0),
    "DELETE_NAME": Operation(),
    "SETUP_ANNOTATIONS": Operation(),
    # containers
    "BUILD_TUPLE": Operation(int, 1),
    "BUILD_LIST": Operation(int, 1),
    "BUILD_SET": Operation(int, 1),
    "BUILD_MAP": Operation(lambda arg: 2 * arg, 1),
    "BUILD_CONST_KEY_MAP": Operation(_plus(1), 1),
    "BUILD_STRING": Operation(int, 1),
    "BUILD_SLICE": Operation(int, 1),
    "LIST_APPEND": Operation(1, 0),
    "SET_ADD": Operation(1, 0),
    "MAP_ADD": Operation(2, 0),
    "LIST_EXTEND": Operation(1, 0),
    "SET_UPDATE": Operation(1, 0),
    "DICT_UPDATE": Operation(1, 0),
    "DICT_MERGE": Operation(1, 0),
    "LIST_TO_TUPLE": Operation(1, 1),
    "UNPACK_SEQUENCE": Operation(1, int),
    "UNPACK_EX": Operation(1, lambda arg: (arg & 0xFF) + 1 + (arg >> 8)),
    # attributes, items, operators
    "LOAD_ATTR": Operation(1, 1, finds=True),
    "LOAD_METHOD": Operation(1, 2),
    "LOAD_SUPER_ATTR": Operation(3, _with_null),
    "STORE_ATTR": Operation(2, 0),
    "DELETE_ATTR": Operation(1, 0),
    "BINARY_SUBSCR": Operation(2, 1, finds=True),
    "STORE_SUBSCR": Operation(3, 0),
    "DELETE_SUBSCR": Operation(2, 0),
    "BINARY_OP": Operation(2, 1, asks="numbers"),
    "COMPARE_OP": Operation(2, 1, asks="numbers"),
    "CONTAINS_OP": Operation(2, 1, asks="numbers"),
    "IS_OP": Operation(2, 1, asks="identity"),
    "UNARY_OP": Operation(1, 1, asks="numbers"),
    "UNARY_NOT": Operation(1, 1, asks="numbers"),
    "FORMAT_VALUE": Operation(lambda arg: 2 if arg & 4 else 1, 1),
    "GET_LEN": Operation(0, 1),
    "MATCH_KIND": Operation(0, 1),
    "MATCH_KEYS": Operation(0, 1),
    "MATCH_CLASS": Operation(3, 1),
    "COPY_DICT_WITHOUT_KEYS": Operation(1, 1),
    # jumps, calls
    "JUMP": Operation(goes="jumps", asks="nothing"),
    "POP_JUMP_IF_TRUE": Operation(1, 0, "branches", "numbers"),
    "POP_JUMP_IF_FALSE": Operation(1, 0, "branches", "numbers"),
    "POP_JUMP_IF_NONE": Operation(1, 0, "branches", "identity"),
    "POP_JUMP_IF_NOT_NONE": Operation(1, 0, "branches", "identity"),
    "GET_ITER": Operation(1, 1),
    "FOR_ITER": Operation(0, 1, "loops"),
    "CALL": Operation(_plus(2), 1, calls=True),
    "CALL_KW": Operation(_plus(3), 1, calls=True),
    "CALL_FUNCTION": Operation(_plus(1), 1, calls=True),
    "CALL_FUNCTION_KW": Operation(_plus(2), 1, calls=True),
    "CALL_FUNCTION_EX": Operation(lambda arg: 2 + sum(arg), 1, calls=True),
    "MAKE_FUNCTION": Operation(lambda arg: 1 + arg.bit_count(), 1),
    "RETURN_VALUE": Operation(1, 0, "returns", "identity"),
    # exceptions, `with`
    "PUSH_EXC_INFO": Operation(1, 2, asks="identity"),
    "POP_EXCEPT": Operation(1, 0, asks="identity"),
    "CHECK_EXC_MATCH": Operation(1, 1, asks="identity"),
    "CHECK_EG_MATCH": Operation(2, 2),
    "PREP_RERAISE_STAR": Operation(2, 1),
    "RERAISE": Operation(1, 0, "raises", "identity"),
    "RAISE_VARARGS": Operation(int, 0, "raises"),
    "BEFORE_WITH": Operation(1, 2),
    "BEFORE_ASYNC_WITH": Operation(1, 2),
    "WITH_EXCEPT_START": Operation(0, 1),
    # generators
    "RETURN_GENERATOR": Operation(0, 1, suspends=True, begins=True),
    "YIELD_VALUE": Operation(1, 1, suspends=True),
    "SEND": Operation(1, 1, "loops", suspends=True),
    "END_SEND": Operation(2, 1, asks="nothing"),
    "CLEANUP_THROW": Operation(3, 2),
    "STOPITERATION_ERROR": Operation(),
    "GET_YIELD_FROM_ITER": Operation(1, 1),
    "GET_AWAITABLE": Operation(1, 1),
    "GET_AITER": Operation(1, 1),
    "GET_ANEXT": Operation(0, 1),
    "END_ASYNC_FOR": Operation(_plus(1), 0),
    "ASYNC_GEN_WRAP": Operation(1, 1),
    # classes, imports, type parameters
    "LOAD_BUILD_CLASS": Operation(0, 1),
    "IMPORT_NAME": Operation(2, 1),
    "IMPORT_FROM": Operation(0, 1),
    "TYPEVAR": Operation(1, 1),
    "TYPEVAR_WITH_BOUND": Operation(2, 1),
    "TYPEVAR_WITH_CONSTRAINTS": Operation(2, 1),
    "PARAMSPEC": Operation(1, 1),
    "TYPEVARTUPLE": Operation(1, 1),
    "SET_TYPEPARAM_DEFAULT": Operation(2, 1),
    "SUBSCRIPT_GENERIC": Operation(1, 1),
    "TYPEALIAS": Operation(1, 1),
    "SET_FUNCTION_TYPE_PARAMS": Operation(2, 1),
}

# ---- binary operators ------------------------------------------------------------------------------------------------

Binary = Callable[[Any, Any], Any]


class Operator(NamedTuple):
    """`symbol`: its sign in Python; the other three: special methods of the left operand (the first: of an operator in
    place) and of the right one."""

    symbol: str
    in_place: str | None
    forward: str
    reflected: str


_ARITHMETIC = (
    ("ADD", "add", "+"),
    ("AND", "and", "&"),
    ("FLOOR_DIVIDE", "floordiv", "//"),
    ("LSHIFT", "lshift", "<<"),
    ("MATRIX_MULTIPLY", "matmul", "@"),
    ("MULTIPLY", "mul", "*"),
    ("MODULO", "mod", "%"),
    ("OR", "or", "|"),
    ("POWER", "pow", "**"),
    ("RSHIFT", "rshift", ">>"),
    ("SUBTRACT", "sub", "-"),
    ("TRUE_DIVIDE", "truediv", "/"),
    ("XOR", "xor", "^"),
)
"""What instructions call an operator, what its functions and methods are called, and its sign."""

OPERATORS: dict[Binary, Operator] = {}
"""By the functions of module `operator`."""

BINARY: dict[str, Binary] = {}
"""By the names of 3.10's instructions, in the order of the arguments that BINARY_OP has from 3.11 on."""

COMPARISONS: dict[str, Binary] = {}
"""By their signs."""

for _prefix, _letter, _equals in (("BINARY_", "", ""), ("INPLACE_", "i", "=")):
    for _instruction, _name, _symbol in _ARITHMETIC:
        _function: Binary = getattr(operator, f"__{_letter}{_name}__")
        in_place = f"__i{_name}__" if _letter else None
        OPERATORS[_function] = Operator(_symbol + _equals, in_place, f"__{_name}__", f"__r{_name}__")
        BINARY[_prefix + _instruction] = _function
for _symbol, _name, _other in (
    *(("<", "lt", "gt"), ("<=", "le", "ge"), ("==", "eq", "eq")),
    *(("!=", "ne", "ne"), (">", "gt", "lt"), (">=", "ge", "le")),
):
    COMPARISONS[_symbol] = getattr(operator, _name)
    OPERATORS[COMPARISONS[_symbol]] = Operator(_symbol, None, f"__{_name}__", f"__{_other}__")
