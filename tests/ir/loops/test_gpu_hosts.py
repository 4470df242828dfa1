"""The host functions that launch a GPU's kernels, with functions of this test in place of the driver's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch

from bolide.inductor.codegen.cuda.host import host_text
from bolide.inductor.codegen.cuda.kernels import Launch
from bolide.inductor.ir.loops import Kernel, Param
from bolide.inductor.machine import host_target
from bolide.inductor.runtime.cuda.host import TABLE
from bolide.support.engine import load
from bolide.symbolic import Expr

CUDA = torch.device("cuda", 0)
OUT_OF_RESOURCES = 701
STREAM, CONTEXT, OTHER = 0x5EED, 0xC0DE, 0xCAFE


class Launched(NamedTuple):
    function: int
    blocks: int
    threads: int
    stream: int
    words: tuple[int, ...]


class Driver:
    """What a host function calls. `codes`: what launches give, in turn; then 0. `context`: the thread's."""

    def __init__(self, *codes: int, words: int, context: int | None = CONTEXT) -> None:
        self.codes, self.words, self.context = list(codes), words, context
        self.launched: list[Launched] = []
        self.contexts: list[int | None] = []
        self.noting: Callable[[Sequence[int]], None] = lambda places: None
        self.error = ctypes.c_int32()
        i32, ptr = ctypes.c_int32, ctypes.c_void_p
        self._launch = ctypes.CFUNCTYPE(i32, ptr, *[i32] * 7, ptr, ctypes.POINTER(ptr), ptr)(self.launch)
        self._set_current = ctypes.CFUNCTYPE(i32, ptr)(self.set_current)
        self._get_current = ctypes.CFUNCTYPE(i32, ctypes.POINTER(ptr))(self.get_current)
        self._stream = ctypes.CFUNCTYPE(i32, i32, ctypes.POINTER(ptr))(self.stream)

    def launch(self, function, x, y, z, threads, width, depth, shared, stream, arguments, extra) -> int:
        assert (y, z, width, depth, shared, extra) == (1, 1, 1, 1, 0, None)
        assert self.context == CONTEXT
        given = [ctypes.c_int64.from_address(arguments[place]).value for place in range(self.words)]
        self.noting(arguments)
        self.launched.append(Launched(function, x, threads, stream, tuple(given)))
        return self.codes.pop(0) if self.codes else 0

    def set_current(self, context: int | None) -> int:
        self.contexts.append(context)
        self.context = context
        return 0

    def get_current(self, place) -> int:
        place[0] = self.context
        return 0

    def stream(self, device: int, place) -> int:
        assert device == 0
        place[0] = STREAM
        return 0

    def run(self, kernel: Kernel, launches: list[Launch], *words: int) -> None:
        """Calls the kernel's host function."""
        target = host_target()
        library = load(host_text(kernel, launches, 0, target), ("kernel", TABLE), target.cpu, target.features)
        functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (self._launch, self._set_current, self._stream)]
        get_current = ctypes.cast(self._get_current, ctypes.c_void_p).value
        known = [*functions, CONTEXT, ctypes.addressof(self.error), get_current]
        row = [*known, *range(100, 100 + len(launches))]
        (ctypes.c_int64 * len(row)).from_address(library.addresses[TABLE])[:] = row
        entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.addresses["kernel"])
        entry((ctypes.c_int64 * len(words))(*words))


def kernel_of_rows() -> tuple[Kernel, list[Launch]]:
    """A kernel with two regions: a team for each of s0 rows, four in a block, and one team."""
    rows = Expr.var("s0", 0)
    params = (Param("out", torch.float32, "out", rows), Param("x", torch.float32, "in", rows * 8))
    launches = [Launch("k0_0", rows, 32, 4), Launch("k0_1", Expr.const(1), 256, 1)]
    return Kernel("k0", params, (), ("s0",), device=CUDA), launches


def test_each_region_is_launched_with_all_arguments() -> None:
    driver = Driver(words=3)
    driver.run(*kernel_of_rows(), 0x1000, 0x2000, 9)
    words = (0x1000, 0x2000, 9)
    assert driver.launched == [Launched(100, 3, 128, STREAM, words), Launched(101, 1, 256, STREAM, words)]
    assert not driver.error.value and not driver.contexts


def test_nothing_is_launched_for_no_teams() -> None:
    driver = Driver(words=3)
    driver.run(*kernel_of_rows(), 0x1000, 0x2000, 0)
    assert [launched.function for launched in driver.launched] == [101]


def test_no_more_blocks_are_launched_than_a_number_has_room_for() -> None:
    driver = Driver(words=3)
    driver.run(*kernel_of_rows(), 0x1000, 0x2000, (1 << 34) + 8)
    assert driver.launched[0].blocks & 0xFFFFFFFF == 1 << 31  # which the driver refuses


@pytest.mark.parametrize("context", [None, OTHER])
def test_a_thread_at_another_device_or_none_comes_back_to_it(context: int | None) -> None:
    driver = Driver(words=3, context=context)
    driver.run(*kernel_of_rows(), 0x1000, 0x2000, 4)
    assert driver.contexts == [CONTEXT, context] and not driver.error.value
    assert [launched.function for launched in driver.launched] == [100, 101]


def test_what_fails_is_noted() -> None:
    driver = Driver(0, OUT_OF_RESOURCES, words=3)
    driver.run(*kernel_of_rows(), 0x1000, 0x2000, 4)
    assert driver.error.value == OUT_OF_RESOURCES
