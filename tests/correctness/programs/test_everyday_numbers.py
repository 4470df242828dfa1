"""Programs of every day about numbers, types and what native code compares: methods of numbers that vary, NumPy's types
and arrays, objects of C classes."""

from __future__ import annotations

import array
import operator
import types
from typing import Any

import numpy as np
import pytest
import torch

from tests.everyday_tools import Program, Table

table = Table()
program = table.program


# ---- methods of numbers that vary between calls ----------------------------------------------------------------------


@program(lambda n: torch.randn(n), lambda n: n / 2)
def whole_numbers_double(x: Any, scale: Any) -> Any:
    return x * 2 if scale.is_integer() else x


@program(lambda n: torch.randn(n), lambda n: n / 2, sizes=(4, 6, 8, 3, 5))
def bound_methods_of_numbers(x: Any, scale: Any) -> Any:
    ratio, is_whole = scale.as_integer_ratio, scale.is_integer
    y = x + 1
    return y * ratio()[1], is_whole(), scale.__add__(1), scale.real, scale.conjugate()


@program(lambda n: torch.randn(n), lambda n: n)
def methods_of_ints(x: Any, count: Any) -> Any:
    bits, text = count.bit_length, x.shape[0].__str__()
    return x * bits(), text, count.__mul__(2), count.to_bytes(2, "big"), count.numerator, x.shape[0].bit_count()


# ---- what native code compares ---------------------------------------------------------------------------------------

_PAIRS: list[Any] = [
    lambda: array.array("i", [1, 2]),
    lambda: memoryview(b"ab"),
    lambda: types.SimpleNamespace(rate=1),
    lambda: {1: 2}.keys(),
    lambda: {1: 2}.items(),
    lambda: np.dtype([("a", "i4")]),
    lambda: np.dtype("int16"),
]


def pair_of(place: int) -> Any:
    return _PAIRS[place % len(_PAIRS)]()


@program(lambda n: torch.randn(2), pair_of, pair_of, sizes=range(len(_PAIRS)))
def objects_of_c_classes_are_equal_by_contents(x: Any, one: Any, other: Any) -> Any:
    found = one == other, one != other, other == one, one in [other], [other].count(one), one == 3
    return x + 1, found, [1, other].index(one)


# ---- NumPy's types ---------------------------------------------------------------------------------------------------


@program(lambda n: torch.randn(n), lambda n: np.dtype(["int64", "int8", "int16", "float32"][n]), sizes=range(4))
def array_types_as_arguments(x: Any, kind: Any) -> Any:
    found = kind == np.int16, np.int8 == kind, kind != "int64", kind in (np.int16, np.float32), {kind: 1}
    return x + kind.itemsize, found, kind.name, kind.kind, np.issubdtype(kind, np.integer)


@program(grad=False)
def types_of_arrays(x: Any) -> Any:
    a = x.numpy()
    kind = a.dtype
    both = np.dtype(kind.str), kind.type(3), np.result_type(a, 1.0), np.promote_types(kind, np.int64)
    return kind, kind == np.float32, np.ones_like(a, dtype=kind), np.ones_like(x, dtype=np.float64), both


@program(grad=False)
def arrays_in_numpys_own_containers(x: Any) -> Any:
    a = x.numpy()[:, 0]
    return np.split(a[:2], 2), np.percentile(a, 50), np.median(a), np.mean(a), np.result_type(a, 1.0)


@program(grad=False)
def attributes_of_arrays(x: Any) -> Any:
    a = x.numpy()
    found = a.shape, a.ndim, a.size, a.itemsize, a.nbytes, a.strides, a.flags.writeable, a.T.shape, a.device
    return found, hasattr(a, "tofile"), hasattr(a, "no_such"), getattr(a, "no_such", 3), isinstance(a, np.ndarray)


@program(lambda n: torch.randn(n, 2))
def sizes_given_to_numpy(x: Any) -> Any:
    n, made = x.shape[0], np.array([1, 2, 3])
    kept = np.array(x.shape), np.asarray([[n, 1]]), np.array([n, 2.5]), np.full((n, 2), n), np.arange(n), np.eye(n)
    counted = np.prod(x.shape), np.prod([n, 2]), np.sum((n, 1)), np.maximum(n, 2), np.int64(3) * n, n * np.int64(3)
    return x + 1, kept, counted, made + n, n - made, made == n, made[n - 3], np.float32(n), np.linspace(0, n, 2)


@program(lambda n: torch.randn(n, 2), grad=False)
def sizes_given_to_functions_of_arrays(x: Any) -> Any:
    a, n = x.numpy(), x.shape[0]
    return np.reshape(a, (2, n)), a.reshape(n * 2), np.tile(a, (n, 1)), a * n, n / a, a[: n - 1], a[n - 1, 1], a + n


# ---- errors ----------------------------------------------------------------------------------------------------------


@program(
    lambda n: torch.randn(n),
    lambda n: [object(), 3, "text", np.dtype("i4"), types.SimpleNamespace()][n - 1],
    sizes=range(1, 6),
)
def indices_that_are_none(x: Any, key: Any) -> Any:
    messages = []
    for owner in ([1, 2], (1, 2), "ab", range(3)):
        try:
            messages.append(operator.getitem(owner, key))
        except (TypeError, IndexError) as error:
            messages.append(str(error))
    return x + 1, messages


@program(lambda n: torch.randn(n), lambda n: [3, "text", None, 2.5, {}][n - 1], sizes=range(1, 6))
def calls_of_what_cannot_be_called(x: Any, value: Any) -> Any:
    import bolide

    y = x + 1
    bolide.graph_break()
    return value(y)


@pytest.mark.parametrize(**table.params())
def test_everyday(program: Program) -> None:
    program.check()
