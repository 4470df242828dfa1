"""Object files that are put into memory by hand: they do what LLVM's own loader makes of them."""

from __future__ import annotations

import ctypes
import gc
import platform
import random
import sys
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding
import pytest

from bolide.support import artifacts, engine
from bolide.support.native import loader

HERE = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not HERE, reason="LLVM loads the code there")

MODULE = """
@table = private unnamed_addr constant [8 x i64] [{numbers}]
@functions = private constant [3 x ptr] [ptr @twice, ptr @other, ptr @entry]
@outside = private constant [2 x ptr] [ptr @labs, ptr @llabs]
declare i64 @labs(i64)
declare i64 @llabs(i64)
define internal i64 @twice(i64 %x) noinline {{ %y = shl i64 %x, 1 ret i64 %y }}
define internal i64 @other(i64 %x) noinline {{
  switch i64 %x, label %rest [{cases}]
{blocks}
rest:
  %y = call i64 @labs(i64 %x)
  %r = sub i64 {last}, %y
  ret i64 %r
}}
define i64 @entry(i64 %x, i64 %choice) {{
  %at = and i64 %x, 7
  %p = getelementptr [8 x i64], ptr @table, i64 0, i64 %at
  %n = load i64, ptr %p
  %q = getelementptr [3 x ptr], ptr @functions, i64 0, i64 %choice
  %f = load ptr, ptr %q
  %a = call i64 %f(i64 %x)
  %big = icmp sgt i64 %a, 100
  %g = select i1 %big, ptr @labs, ptr @twice
  %b = call i64 %g(i64 %a)
  %d = sitofp i64 %b to double
  %e = fmul double %d, {factor}
  %c = fptosi double %e to i64
  %r = add i64 %c, %n
  ret i64 %r
}}
"""


def module(draw: random.Random) -> tuple[str, Callable[[int, int], int]]:
    """A module with all kinds of references, and the same in Python."""
    numbers = [draw.randrange(-(10**6), 10**6) for _ in range(8)]
    values = [draw.randrange(1000) for _ in range(12)]
    factor, last = draw.choice([0.5, 3.0, 0.375]), draw.randrange(1000)
    text = MODULE.format(
        numbers=", ".join(f"i64 {number}" for number in numbers),
        cases=" ".join(f"i64 {place}, label %b{place}" for place in range(12)),
        blocks="\n".join(f"b{place}:\n  ret i64 {value}" for place, value in enumerate(values)),
        last=last,
        factor=f"{factor:e}",
    )

    def expected(x: int, choice: int) -> int:
        a = x * 2 if choice == 0 else values[x] if 0 <= x < 12 else last - abs(x)
        return int((abs(a) if a > 100 else a * 2) * factor) + numbers[x & 7]

    return text, expected


def function(library: engine.Library) -> Callable[[int, int], int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.addresses["entry"])


def test_code_does_what_llvm_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random()
    for _ in range(5):
        text, expected = module(draw)
        mine = engine.load(text, ("entry",), "", "")
        assert mine.session is None
        with monkeypatch.context() as patch:
            patch.setattr(loader, "_MAGIC", b"of another kind")
            llvms = engine.load(text, ("entry",), "", "")
        assert llvms.session is not None
        for choice in (0, 1):
            for x in range(-3, 20):
                assert function(mine)(x, choice) == function(llvms)(x, choice) == expected(x, choice)


@pytest.mark.parametrize(
    "text",
    [
        "@kept = internal global i64 5\ndefine i64 @entry(i64 %x, i64 %y) {\n  %old = load i64, ptr @kept\n"
        "  store i64 %x, ptr @kept\n  ret i64 %old\n}",
        "@kept = internal global i64 zeroinitializer\ndefine i64 @entry(i64 %x, i64 %y) {\n"
        "  %old = atomicrmw add ptr @kept, i64 5 seq_cst\n  ret i64 5\n}",
    ],
)
def test_data_that_may_be_written_is_llvms(text: str) -> None:
    library = engine.load(text, ("entry",), "", "")
    assert library.session is not None and function(library)(7, 0) == 5


def test_memory_is_released_and_never_both_writable_and_executable() -> None:
    find = ctypes.CDLL("libgcc_s.so.1")._Unwind_Find_FDE
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
    bases = (ctypes.c_void_p * 3)()
    library = engine.load(module(random.Random())[0], ("entry",), "", "")
    place = library.addresses["entry"]

    def mapped() -> str:
        """How the memory is mapped in which the function is or was."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, end = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= place < end:
                return line.split()[1]
        return ""

    assert mapped() == "r-xp" and find(place + 1, bases)
    del library
    gc.collect()
    assert mapped() != "r-xp" and not find(place + 1, bases)


def test_what_is_known_of_another_cpu_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(artifacts, "is_on", lambda: True)
    real, ask = engine._host_names(), engine.host.__wrapped__
    assert real is not None and ask() == ask()  # the second one is kept
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert ask().cpu != "another"
    for name in ("flags", "model", "library"):
        monkeypatch.setattr(engine, "_host_names", lambda name=name: {**real, name: "other"})
        assert ask().cpu == "another"
    monkeypatch.setattr(engine, "_host_names", lambda: None)
    assert ask().cpu == "another"
