"""A slow interpreter of graphs, which compares each result with what the graph says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bolide.functorch.aot_autograd import make_boxed_compiler
from bolide.functorch.graphs import is_tuple
from bolide.symbolic import Expr
from bolide.tracing.meta import TensorMeta


class DebugInterpreter(fx.Interpreter):
    """Runs a graph node by node. Each tensor must have the dtype, the size and the significant strides (of sizes above
    1, in tensors with elements) that the graph's ``meta["val"]`` says. `symbol_mapping`: what the symbols of sizes
    are in this run; a symbol gets the value of the first size that it is.
    """

    symbol_mapping: dict[str, int]

    def run(self, *args: Any, initial_env: dict[fx.Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """As `fx.Interpreter.run`. Raises AssertionError for the first result that is not as the graph says."""
        self.symbol_mapping = {}
        for node, value in zip(self.graph.find_nodes(op="placeholder"), args):
            _bind(node.meta.get("val"), value, self.symbol_mapping)
        return super().run(*args, initial_env=initial_env, enable_io_processing=enable_io_processing)

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node. Raises AssertionError when it is not as the graph says."""
        value = super().run_node(n)
        if "val" in n.meta:
            _bind(n.meta["val"], value, self.symbol_mapping)
            _check(n, value, self.symbol_mapping)
        return value


@make_boxed_compiler
def debug_nop(fx_g: fx.GraphModule, inps: Sequence[object]) -> Callable[..., object]:
    """The graph in a `DebugInterpreter`, which checks every result."""
    return DebugInterpreter(fx_g).run


def _check(node: fx.Node, value: object, symbols: Mapping[str, int]) -> None:
    """Raises AssertionError when a result is not as the graph says."""
    traced, real = list(_leaves(node.meta["val"])), list(_leaves(value))
    if len(traced) != len(real):
        raise AssertionError(f"{node.name}: {len(traced)} != {len(real)} outputs")
    for position, (expected, actual) in enumerate(zip(traced, real)):
        if isinstance(actual, Tensor) and isinstance(expected, (Tensor, TensorMeta)):
            difference = _difference(expected, actual, symbols)
            if difference:
                mapping = ", ".join(f"{name}: {number}" for name, number in symbols.items())
                raise AssertionError(f"{node.name}: output {position} where {{{mapping}}}: {difference}")


def _difference(expected: Tensor | TensorMeta, actual: Tensor, symbols: Mapping[str, int]) -> str | None:
    """How a tensor differs from what is said of it."""
    if expected.dtype != actual.dtype:
        return f"{expected.dtype} != {actual.dtype}"
    shape = [_valued(size, symbols) for size in expected.shape]
    if len(shape) != actual.ndim or any(size not in (None, real) for size, real in zip(shape, actual.shape)):
        return f"{_text(expected.shape)} aka {_text(shape)} != {_text(actual.shape)}"
    if actual.layout is not torch.strided or actual.numel() == 0:
        return None
    strides = [_valued(stride, symbols) for stride in _strides(expected)]
    significant = [place for place, size in enumerate(actual.shape) if size > 1]
    if any(strides[place] not in (None, actual.stride(place)) for place in significant):
        return f"strides {_text(_strides(expected))} aka {_text(strides)} != {_text(actual.stride())}"
    return None


def _text(sizes: Sequence[object]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in sizes)})"


def _leaves(value: object) -> Iterator[object]:
    """What is in nested tuples, lists and dicts, in order; what describes a tensor is one thing."""
    if is_tuple(value):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _strides(value: Tensor | TensorMeta) -> Sequence[int | torch.SymInt]:
    if isinstance(value, TensorMeta):
        return value.stride
    return value.stride() if value.layout is torch.strided else ()


# ---- symbols --------------------------------------------------------------------------------------------------------


def _bind(traced: object, real: object, symbols: dict[str, int]) -> None:
    """Notes the values of symbols that are met for the first time."""
    for expected, actual in zip(_leaves(traced), _leaves(real)):
        for size, number in _sizes(expected, actual):
            if isinstance(size, torch.SymInt) and isinstance(number, int):
                name = str(size.node.expr)
                if name in _free(size):
                    symbols.setdefault(name, number)


def _sizes(expected: object, actual: object) -> list[tuple[object, object]]:
    """Pairs of a traced size and the real one."""
    if not (isinstance(expected, (Tensor, TensorMeta)) and isinstance(actual, Tensor)):
        return [(expected, actual)]
    strides = zip(_strides(expected), _strides(actual), actual.shape)
    significant = [(stride, real) for stride, real, size in strides if size > 1]
    return [*zip(expected.shape, actual.shape), *significant]


def _free(size: torch.SymInt) -> frozenset[str]:
    """The names of the symbols in a size, of ours or of torch's."""
    expr = size.node.expr
    return expr.free_vars if isinstance(expr, Expr) else frozenset(map(str, expr.free_symbols))


def _valued(size: int | torch.SymInt, symbols: Mapping[str, int]) -> int | None:
    """What a size is for these values of symbols; None: one of them is not known."""
    if not isinstance(size, torch.SymInt):
        return size
    if not _free(size) <= symbols.keys():
        return None
    expr = size.node.expr
    if isinstance(expr, Expr):
        return expr.evaluate(symbols)
    return int(expr.subs({symbol: symbols[str(symbol)] for symbol in expr.free_symbols}))
