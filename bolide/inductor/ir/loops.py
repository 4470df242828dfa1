"""Loop IR: interned scalar expressions under a few statements.

A `Kernel` is what one launch runs. Its body is a tuple of statements; scalar values are `Node`s, whose operations
`ir.scalar_ops` lists. Equal nodes are the same object, so common subexpressions are common by construction. Index
arithmetic uses `symbolic.Expr`, whose variables are the axes' names, the kernel's size parameters, and ``$0, $1 …`` for
the integer operands of an indirect access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from weakref import WeakValueDictionary

import torch

from bolide.symbolic import Expr

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Access:
    """An element of a buffer: `index` counts elements from the buffer's start."""

    buffer: str
    index: Expr
    masked: bool = False

    @property
    def free_vars(self) -> frozenset[str]:
        return self.index.free_vars

    def subs(self, axes: Mapping[str, Expr]) -> Access:
        """The access with index variables replaced; the same object if there are none."""
        index = self.index.subs(axes)
        return self if index is self.index else Access(self.buffer, index, self.masked)


class Node:
    """An interned scalar expression. Compare by identity. Make with `Node.make` only."""

    __slots__ = ("__weakref__", "arg", "dtype", "op", "src")
    _table: ClassVar[WeakValueDictionary[tuple[object, ...], Node]] = WeakValueDictionary()
    op: str
    dtype: torch.dtype
    src: tuple[Node, ...]
    arg: Any

    @staticmethod
    def make(op: str, dtype: torch.dtype, src: tuple[Node, ...] = (), arg: object = None) -> Node:
        """The node with these parts. Constants are told apart by type and bits (0.0 and -0.0, 1 and True differ)."""
        key = (op, dtype, src, type(arg), repr(arg) if isinstance(arg, float) else arg)
        node = Node._table.get(key)
        if node is None:
            node = object.__new__(Node)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            Node._table[key] = node
        return node


# ---- statements ------------------------------------------------------------------------------------------------

AxisKind = Literal["parallel", "serial", "vector", "tile", "reduce", "reduce_vector", "scan"]
VECTOR_KINDS: frozenset[AxisKind] = frozenset(("vector", "reduce_vector"))
#: Threads of a GPU that run in step, and so many elements that they can sort.
WARP, MOST_SORTED = 32, 256
Bound = Literal["threads", "grid", "team"]
ScatterMode = Literal["set", "add", "mul", "min", "max"]
AtomicMode = Literal["atomic_add", "atomic_min", "atomic_max"]
StoreMode = Literal["set", "add", "mul", "min", "max", "atomic_add", "atomic_min", "atomic_max", "any"]
ATOMIC: Mapping[str, AtomicMode] = {"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"}
"""The modes whose stores other threads' may meet, by what they do."""
ReduceOp = Literal["sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "xor", "sort"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable running from 0 to `extent` - 1. ``vector`` axes are innermost among pointwise axes;
    ``reduce_vector`` is a vectorised reduction axis. A ``tile`` axis is a short serial one right inside a vector
    loop: pointwise stores, whose loads along the axis are taken as vectors and transposed. A ``scan``
    axis is a serial one in which an accumulator may be read after its update: it is the reduction up to there.

    The kind says what is true of the iterations, `bound` who shares them: nobody, ``threads`` of a CPU (each takes a
    run of iterations), or, on a GPU, the teams of a ``grid`` and in them the threads of a ``team``. Axes on threads or
    on the grid are parallel or vector axes of a perfect nest at the top of a kernel, with extents that are known when
    it starts. Their iterations run in any order and side by side, so they touch elements of their own, or add by
    ``atomic_…``, or store by ``any``; what is reduced along them goes through memory, a part for each of so many
    iterations, which another loop joins in order: results do not depend on who runs what. Axes on a team are vector or
    reduce_vector axes inside, whose reductions the team joins itself, or scan axes of updates, then stores."""

    name: str
    extent: Expr
    kind: AxisKind
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    axis: Axis
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Init:
    """Declares an accumulator, set to the identity of `op`, in the scope of the statements that follow in the same
    body.

    ``sort``, of integers, in a scan that a warp shares: at place i of the axis it is number i of all, the smallest
    first. ``argmin``/``argmax``: the `acc` node has dtype int64 and gives the first position; NaN wins, as in torch.
    Sums accumulate in `dtype` (float32 for bf16)."""

    name: str
    op: ReduceOp
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Update:
    """acc = op(acc, value). For argmin/argmax `position` is the index value."""

    name: str
    value: Node
    position: Node | None = None
    operands: ClassVar[tuple[Node, ...]] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value (mode ``set``), or what an operation gives of the element and the value (``add``, ``mul``,
    ``min``, ``max``: plain read-modify-write, ``atomic_…``: safe across parallel iterations) or, of bools, True where
    the value is (``any``: safe as well, since all store the same).
    `operands`: those for $0, $1 … and, when access.masked, a last bool mask."""

    access: Access
    value: Node
    operands: tuple[Node, ...] = ()
    mode: StoreMode = "set"
    position: ClassVar[None] = None


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
class Flag:
    """What is no memory (GPU only): a store of True to it, by ``any``, is a failed assertion, of which the device
    prints `message`, and which the host sees as torch's device-side assertions."""

    name: str
    message: str
    dtype: ClassVar[torch.dtype] = torch.bool
    numel: ClassVar[Expr] = Expr.const(1)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. Top-level statements run one after the other with a barrier between them. `sizes`: names of int64
    size parameters. `origins`: names of the ATen ops fused here, for people. `device`: where it runs, and all its
    parameters are. `grain`: the work that a thread must have (`Machine.grain`); None: the machine's. `team`: the
    threads of a team (GPU only): 1, or a multiple of 32. `batch` (GPU only): a launch is given so many sets of
    arguments, the buffers of one set after the other, then their sizes, and does for each of them, in any order and
    side by side, what the body says: nothing that one set writes is in another one."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    sizes: tuple[str, ...] = ()
    locals: tuple[Local, ...] = ()
    origins: tuple[str, ...] = ()
    device: torch.device = CPU
    grain: int | None = None
    team: int = 1
    batch: int = 1
    flags: tuple[Flag, ...] = ()

    @property
    def buffers(self) -> tuple[Param | Local | Flag, ...]:
        return self.params + self.locals + self.flags

    @property
    def launch_params(self) -> tuple[Param, ...]:
        """What the buffers of a launch are, in their order."""
        return self.params * self.batch

    @property
    def words(self) -> int:
        """How many addresses and sizes a launch is given."""
        return self.batch * (len(self.params) + len(self.sizes))
