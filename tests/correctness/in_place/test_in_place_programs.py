"""Random programs that write to their arguments against eager, in float64: results, arguments, and what lies between
the elements of arguments in memory. Sizes are fixed or symbols."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

import bolide
from tests.fuzz.writers.in_place_programs import copies, program


def everything(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor lies in."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


@pytest.mark.parametrize("part", range(4))
def test_random_programs(seed: int, part: int) -> None:
    for number in range(seed, seed + 6):
        number %= 2**31
        text, given = program(number)
        print(f"program {number}\n{text}")
        name = f"<in place {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(text, name, "exec"), namespace)
        fn = namespace["f"]
        with torch.no_grad(), bolide.inductor.config.patch(native_after=2):
            compiled = bolide.compile(fn, dynamic=bool(number % 2))
            for _ in range(4):
                mine, theirs = copies(given), copies(given)
                torch.testing.assert_close(compiled(*mine), fn(*theirs), rtol=1e-9, atol=1e-9, equal_nan=True)
                for a, b in zip(mine, theirs):
                    torch.testing.assert_close(everything(a), everything(b), rtol=1e-9, atol=1e-9, equal_nan=True)
