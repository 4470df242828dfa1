"""What can be read off a kernel before any code is written: what values depend on, what they cost, how many lanes a
loop gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bolide.inductor.codegen.math32 import INLINE
from bolide.inductor.ir.loops import Access, Init, Kernel, Loop, Node, Stmt, Store, Update

#: Rough cost of an operation in vector instructions; 1 unless named here.
COSTS = {
    "const": 0,
    "index": 0,
    "acc": 0,
    **dict.fromkeys(INLINE, 20),
    **dict.fromkeys(
        ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc"), 50
    ),
    **dict.fromkeys(("pow", "atan2", "lgamma", "digamma", "erfinv", "hypot", "fmod", "mod", "floordiv"), 80),
    "div": 4,
    "sqrt": 4,
    "rsqrt": 8,
    "recip": 4,
    "philox": 80,
    "philox_normal": 150,
}

#: In the names a value depends on, stands for "reads memory".
READS = "load"


def inputs_of(statement: Stmt) -> tuple[Node, ...]:
    """The nodes a statement uses itself (not those inside its body)."""
    if isinstance(statement, Store):
        return (statement.value, *statement.src)
    if isinstance(statement, Update):
        return (statement.value,) if statement.position is None else (statement.value, statement.position)
    return ()


def walk(statements: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer before inner, in order."""
    for statement in statements:
        yield statement
        if isinstance(statement, Loop):
            yield from walk(statement.body)


def postorder(roots: Iterable[Node], known: Callable[[Node], bool]) -> Iterator[Node]:
    """Nodes under `roots`, operands first, each once; below a node that is `known` nothing is visited, nor is the node
    itself. No recursion: chains may be long.
    """
    seen: set[Node] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen and not known(node):
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.src))


class Dependences:
    """The names each node depends on: axes, ``acc:x`` (an accumulator's value), ``buf:x`` (contents of a buffer that
    the kernel writes), and `READS`.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.written = {s.access.buffer for s in walk(kernel.body) if isinstance(s, Store)}
        self._names: dict[Node, frozenset[str]] = {}

    def names(self, node: Node) -> frozenset[str]:
        """Everything `node` depends on."""
        found = self._names.get(node)
        if found is None:
            for inner in postorder((node,), self._names.__contains__):
                self._names[inner] = self._own(inner).union(*(self._names[operand] for operand in inner.src))
            found = self._names[node]
        return found

    def _own(self, node: Node) -> frozenset[str]:
        if node.op == "load":
            access: Access = node.arg
            state = {READS, f"buf:{access.buffer}"} if access.buffer in self.written else {READS}
            return access.index.free_vars.union(state)
        if node.op == "index":
            names: frozenset[str] = node.arg.free_vars
            return names
        if node.op == "acc":
            return frozenset((f"acc:{node.arg}",))
        if node.op.startswith("philox"):
            drawn: frozenset[str] = node.arg[1].free_vars
            return drawn
        return frozenset()


def defined_in(loop: Loop) -> frozenset[str]:
    """The names whose value changes while the loop runs."""
    names = {loop.axis.name}
    for statement in walk(loop.body):
        if isinstance(statement, Loop):
            names.add(statement.axis.name)
        elif isinstance(statement, (Init, Update)):
            names.add(f"acc:{statement.name}")
        else:
            names.add(f"buf:{statement.access.buffer}")
    return frozenset(names)


def updated_in(statements: Iterable[Stmt]) -> list[str]:
    """Accumulators updated there, in order of first update."""
    return list(dict.fromkeys(s.name for s in walk(statements) if isinstance(s, Update)))


def cost(statements: Iterable[Stmt]) -> int:
    """Vector instructions that one pass over `statements` takes, loops counted once."""
    used = list(walk(statements))
    nodes = postorder((node for s in used for node in inputs_of(s)), lambda node: False)
    return sum(COSTS.get(node.op, 1) for node in nodes) + len(used)


def widest_bytes(statements: Iterable[Stmt]) -> int:
    """Size of the type that most of the work is done in: 8 if everything that is stored or accumulated has eight
    bytes, else 4.
    """
    sizes = [s.value.dtype.itemsize for s in walk(statements) if isinstance(s, (Store, Update))]
    return 8 if sizes and min(sizes) == 8 else 4


def lanes_for(loop: Loop, vector_bits: int) -> int:
    """Lanes of a vector loop: the register's, times a few where little work stands between two updates of an
    accumulator (they wait for each other), and no more than a short extent can use."""
    lanes = vector_bits // 8 // widest_bytes(loop.body)
    reduces = loop.axis.kind == "reduce_vector" or any(isinstance(s, Update) for s in walk(loop.body))
    if reduces:
        work = cost(loop.body)
        lanes *= 4 if work <= 12 else 2 if work <= 24 else 1
    limit = loop.axis.extent.bounds()[1]
    while limit is not None and lanes > 1 and lanes // 2 >= limit:
        lanes //= 2
    return lanes
