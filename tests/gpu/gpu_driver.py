"""A driver of CUDA that is played: it loads modules whose code is LLVM's text, and what it launches runs here, on
memory of the CPU. So the host functions, what they launch, and what is kept on disk are tried without a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from gpu_emulated import CUDA
from gpu_emulator import run_entry

from bolide.inductor.codegen.cuda import compiler as gpu_compiler
from bolide.inductor.codegen.cuda import ptx_of
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.runtime.cuda import driver_api
from bolide.inductor.runtime.cuda.driver_api import Entries

CUBIN = b"\x7fELF a cubin: "
_INT, _PTR = ctypes.c_int32, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(_INT, _PTR, *[_INT] * 7, _PTR, ctypes.POINTER(_PTR), _PTR)


class Driver:
    """`done`: the names of the functions that were called. `links`: whether it makes machine code of PTX."""

    def __init__(self, links: bool = True, version: int = 12080) -> None:
        self.done: list[str] = []
        self.links, self.version = links, version
        self._handles = itertools.count(1)
        self.error = ctypes.c_int32()
        self._modules: dict[int, str] = {}
        self._functions: dict[int, tuple[str, str]] = {}
        self._linked: dict[int, Any] = {}  # by the handles of links, which run in threads
        self._known: list[Any] = [
            _LAUNCH(self._launch),
            ctypes.CFUNCTYPE(_INT, _PTR)(lambda context: 0),
            ctypes.CFUNCTYPE(_INT, ctypes.POINTER(_PTR))(self._context),
            ctypes.CFUNCTYPE(_INT, _INT, ctypes.POINTER(_PTR))(lambda device, place: 0),
        ]

    def entries(self, device: int) -> Entries:
        launch, put, get, stream = [ctypes.cast(each, _PTR).value or 0 for each in self._known]
        return Entries(launch, put, get, stream, 0xC0DE, self.error)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.done.append(name)
            answer = getattr(self, f"_{name.removesuffix('_v2')}", lambda *args: 0)(*args)
            return int(answer or 0)

        return call

    def _cuDriverGetVersion(self, place: Any) -> None:
        place._obj.value = self.version

    def _cuLinkCreate(self, *args: Any) -> int:
        if self.links:
            args[-1]._obj.value = next(self._handles)
        return 0 if self.links else 801

    def _cuLinkAddData(self, state: Any, kind: int, data: Any, length: Any, *rest: Any) -> None:
        assert kind == 1 and length.value == len(data.value) + 1
        self._linked[state.value] = ctypes.create_string_buffer(CUBIN + data.value)

    def _cuLinkComplete(self, state: Any, image: Any, size: Any) -> None:
        linked = self._linked[state.value]
        image._obj.value, size._obj.value = ctypes.addressof(linked), len(linked.raw)

    def _cuModuleLoadDataEx(self, handle: Any, text: Any, *options: Any) -> None:
        assert text.value.startswith(CUBIN) == self.links
        handle._obj.value = len(self._modules) + 1
        self._modules[handle._obj.value] = text.value.removeprefix(CUBIN).decode()

    def _cuModuleGetFunction(self, handle: Any, module: Any, name: Any) -> int:
        text = self._modules[module.value]
        if f"@{name.value.decode()}(" not in text:
            return 500
        handle._obj.value = 0x1000 + len(self._functions)
        self._functions[handle._obj.value] = text, name.value.decode()
        return 0

    def _context(self, place: Any) -> int:
        place[0] = 0xC0DE
        return 0

    def _launch(self, function, x, y, z, threads, width, depth, shared, stream, arguments, extra) -> int:
        self.done.append("launch")
        text, name = self._functions[function]
        found = re.search(rf"@{name}\(([^)]*)\)", text)
        assert found is not None
        kinds = [parameter.split()[0] for parameter in found[1].split(",")]
        words = [ctypes.c_int64.from_address(arguments[place]).value for place in range(len(kinds))]
        run_entry(text, name, kinds.count("ptr"), x, threads, words)
        return 0


def play(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """From now on, this is the driver."""

    def text_of(text: str, target: Any) -> str:
        driver.done.append("ptx")
        ptx_of(text, target)
        return text

    monkeypatch.setattr(driver_api, "libcuda", lambda: driver)
    for module in (driver_api, gpu_compiler):
        monkeypatch.setattr(module, "entries", driver.entries)
    monkeypatch.setattr(gpu_compiler, "ptx_of", text_of)
    gpu_compiler.reset()


def on_gpu(kernel: Kernel) -> Kernel:
    """The kernel, said to be on the GPU."""
    return dataclasses.replace(kernel, device=CUDA)
