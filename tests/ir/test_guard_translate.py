"""The subset of Python that the native check is written in: what its machine code gives is what Python gives."""

from __future__ import annotations

import ctypes
import inspect
import textwrap
from array import array
from collections.abc import Callable

import pytest

from bolide.support.engine import load
from bolide.support.native.translate import translate, word


def compiled(function: Callable[..., int]) -> Callable[..., int]:
    text = translate((textwrap.dedent(inspect.getsource(function)),), (function.__name__,), {}, {})
    library = load(text, (function.__name__,), "", "")
    kinds = [ctypes.c_int64] * function.__code__.co_argcount
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(library.addresses[function.__name__])
    native.library = library  # type: ignore[attr-defined]  # it lives as long
    return native


def branches(a: int, b: int) -> int:
    x = 1
    if a < b and not (a == 3 or b == 5):
        x = 2
        if b == 4 or a == 0:
            return 100 + x
    elif a == b:
        x = 5
    else:
        x = x + b
    return x * 10 + (a if a >= b else b)


def loops(a: int, b: int) -> int:
    i = 0
    total = 0
    while i < a:
        j = 0
        while True:
            if j >= b or total == 7:
                break
            total += i + j
            j += 1
        i += 1
    return total << 1 | 1


def cases(a: int, b: int) -> int:
    answer = 0
    while a >= 0:
        match a:
            case 0:
                answer += 1
            case 2:
                if b == 1:
                    return -5
            case 3:
                break
            case _:
                answer += b * 100
        a -= 1
    return answer


@pytest.mark.parametrize("function", [branches, loops, cases])
def test_words(function: Callable[[int, int], int]) -> None:
    native = compiled(function)
    for a in range(6):
        for b in range(6):
            assert native(a, b) == function(a, b), (a, b)


def last(table: int, count: int) -> int:
    return word(table, count - 1) + word(table)


def test_memory() -> None:
    numbers = array("q", [5, -7, 40])
    native = compiled(last)
    assert [native(numbers.buffer_info()[0], count) for count in (1, 2, 3)] == [10, -2, 45]


def unknown(a: int) -> int:
    return [a][0]


def test_what_is_no_part_of_it_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        compiled(unknown)
