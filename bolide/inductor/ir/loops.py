"""Loop IR: interned scalar expressions under a few statements.

A `Kernel` is what one launch runs. Its body is a tuple of statements; scalar values are `Node`s, shared by identity
(equal nodes are the same object),
so common subexpressions are common by construction. Index arithmetic uses `symbolic.Expr`, whose variables are the
axes' names, the kernel's
size parameters, and ``$0, $1 …`` for the integer operands of an indirect access.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from weakref import WeakValueDictionary

import torch

from bolide.symbolic import Expr

# ---- scalar expressions
# ---------------------------------------------------------------------------------------------------------------------

BINARY_OPS = (
    *("add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "pow", "min", "max", "fmin", "fmax"),
    *("atan2", "copysign", "hypot", "nextafter", "and", "or", "xor", "shl", "shr"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)
ELEMENTARY_OPS = (  # of floating-point numbers
    *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "sigmoid"),
)
UNARY_OPS = (
    *("neg", "abs", "sign", "not", "recip", "erfinv", "digamma"),
    *ELEMENTARY_OPS,
    *("floor", "ceil", "round", "trunc", "isnan", "isinf", "signbit"),
)

#: op -> (number of operands, kind of `arg`). The verifier and the docs read this table.
SCALAR_OPS: dict[str, tuple[int, str]] = {
    "const": (0, "number"),  # arg: Python bool/int/float
    "index": (0, "Expr"),  # the value of an index expression, dtype int64
    # src: integer operands of an indirect access ($0, $1 …), then a bool mask if Access.masked (false: no access, 0)
    "load": (-1, "Access"),
    "acc": (0, "str"),  # the value of an accumulator after its loops; arg: name
    "cast": (1, ""),  # to this node's dtype, with torch's conversion rules
    "bitcast": (1, ""),
    "where": (3, ""),
    # Arithmetic: operands and result have one dtype (comparisons, isnan, isinf, signbit give bool). Not on bf16 and
    # f16: cast to float32 first. min and max give NaN if either operand is NaN.
    **dict.fromkeys(BINARY_OPS, (2, "")),
    **dict.fromkeys(UNARY_OPS, (1, "")),
    "fma": (3, ""),
    # src: seed (int64); arg: (counter, element index): float32, uniform in [0, 1) or standard normal
    "philox": (1, "tuple[int, Expr]"),
    "philox_normal": (1, "tuple[int, Expr]"),
}


@dataclass(frozen=True, slots=True)
class Access:
    """An element of a buffer: `index` counts elements from the buffer's start."""

    buffer: str
    index: Expr
    masked: bool = False


class Node:
    """An interned scalar expression. Compare by identity. Make with `Node.make` only."""

    __slots__ = ("__weakref__", "arg", "dtype", "op", "src")
    _table: ClassVar[WeakValueDictionary[Any, Node]] = WeakValueDictionary()
    op: str
    dtype: torch.dtype
    src: tuple[Node, ...]
    arg: Any

    @staticmethod
    def make(op: str, dtype: torch.dtype, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
        """The node with these parts. Constants are told apart by type and bits (0.0 and -0.0, 1 and True differ)."""
        key = (op, dtype, src, type(arg), repr(arg) if isinstance(arg, float) else arg)
        node = Node._table.get(key)
        if node is None:
            node = object.__new__(Node)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            Node._table[key] = node
        return node


# ---- statements ------------------------------------------------------------------------------------------------

AxisKind = Literal["parallel", "serial", "vector", "reduce", "reduce_vector"]
ReduceOp = Literal["sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "xor"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable running from 0 to `extent` - 1. ``vector`` axes are innermost among pointwise axes;
    ``reduce_vector`` is a vectorised reduction axis."""

    name: str
    extent: Expr
    kind: AxisKind


@dataclass(frozen=True, slots=True)
class Loop:
    axis: Axis
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Init:
    """Declares an accumulator, set to the identity of `op`, in the scope of the statements that follow in the same
    body.

    ``argmin``/``argmax``: the `acc` node has dtype int64 and gives the first position; NaN wins, as in torch. Sums
    accumulate in `dtype` (float32 for bf16)."""

    name: str
    op: ReduceOp
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Update:
    """acc = op(acc, value). For argmin/argmax `position` is the index value."""

    name: str
    value: Node
    position: Node | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value (mode ``set``) or += (``add``: plain read-modify-write, ``atomic_add``: safe across
    parallel iterations). `src`: operands for $0, $1 … and,
    when access.masked, a last bool mask."""

    access: Access
    value: Node
    src: tuple[Node, ...] = ()
    mode: Literal["set", "add", "atomic_add"] = "set"


Stmt = Loop | Init | Update | Store


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel argument: the address of a buffer's first element."""

    name: str
    dtype: torch.dtype
    role: Literal["in", "out", "inout"]
    numel: Expr


@dataclass(frozen=True, slots=True)
class Local:
    """Scratch memory private to one iteration of the parallel loops."""

    name: str
    dtype: torch.dtype
    numel: Expr


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. Top-level loops of kind ``parallel`` are spread over threads; top-level statements run one after the
    other with a barrier between them.
    `sizes`: names of int64 size parameters. `origins`: names of the ATen ops fused here, for people."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    sizes: tuple[str, ...] = ()
    locals: tuple[Local, ...] = ()
    origins: tuple[str, ...] = ()
