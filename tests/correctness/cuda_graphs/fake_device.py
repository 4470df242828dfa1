"""A device that is not there: it captures what runs on the CPU, in a pool that uses its memory again, and replays it
into the same memory.

As on the real one, capturing does not do the work (it is done and undone), a replay does it at the addresses that were
captured, and nothing stops a replay from overwriting memory whose tensors are still there.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bolide.inductor import compiled_graph, config
from bolide.inductor.cudagraphs import recorder
from bolide.inductor.cudagraphs.device import Layout
from bolide.inductor.runtime import driver
from bolide.inductor.runtime.kernels import CompiledKernel, sequence

SIZE, ALIGNED = 8 << 20, 64
_CAN_FORBID = hasattr(torch._C, "_set_storage_data_ptr_access_error_msg")


class _Thread(threading.local):
    tape: Tape | None = None  # where this thread's work is captured


_thread = _Thread()


class Tape:
    """What was captured: functions that do it again. `undo`: memory that was written outside of the pool."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.work: list[Callable[[], object]] = []
        self.undo: list[tuple[int, bytes]] = []
        self.replays = 0

    def replay(self) -> None:
        self.device.wait()
        self.replays += 1
        for each in self.work:
            each()

    def writes(self, address: int, nbytes: int) -> None:
        self.undo.append((address, ctypes.string_at(address, nbytes)))


def seen(layout: Layout) -> Tensor:
    """A tensor at an address."""
    if not layout.nbytes:
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)
    memory = (ctypes.c_char * layout.nbytes).from_address(layout.address)
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=layout.dtype).set_(storage, layout.offset, layout.size, layout.stride)


class FakePool:
    """Memory of one tree: blocks are given out first fit. `used`: sizes of the blocks in use, by address; `owners`:
    which storages (by number) own a block; `numbers`: the numbers of living storages, by their address in C++."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.memory = (ctypes.c_char * SIZE)()
        self.base = -(-ctypes.addressof(self.memory) // ALIGNED) * ALIGNED
        self.used: dict[int, int] = {}
        self.most = 0
        self.owners: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.graphs: list[weakref.ref[Tape]] = []

    # ---- memory

    def block(self, nbytes: int) -> int:
        nbytes = -(-nbytes // ALIGNED) * ALIGNED
        at = self.base
        for address, size in sorted(self.used.items()):
            if address - at >= nbytes:
                break
            at = address + size
        assert at + nbytes <= self.base + SIZE - ALIGNED, "the pool is full"
        self.used[at] = nbytes
        self.most = max(self.most, sum(self.used.values()))
        return at

    def storage(self, layout: Layout, owns: bool = False) -> UntypedStorage:
        if not layout.nbytes:
            return torch.UntypedStorage(0)
        memory = (ctypes.c_char * layout.nbytes).from_address(layout.address)
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        number = next(_numbers)
        self.numbers[storage._cdata] = number
        if owns:
            self.owners[number] = layout.address
        weakref.finalize(memory, self._died, storage._cdata, number, self.memory)
        return storage

    def _died(self, storage: int, number: int, memory: object) -> None:
        if self.numbers.get(storage) == number:
            del self.numbers[storage]
        address = self.owners.pop(number, None)
        if address is not None:
            del self.used[address]

    def new(self, like: Tensor) -> Tensor:
        """A tensor in a new block, laid out as another one."""
        layout = Layout.of(like)
        if not layout.nbytes:
            return like
        layout = replace(layout, address=self.block(layout.nbytes))
        return self.tensor(layout, self.storage(layout, owns=True))

    def tensor(self, layout: Layout, storage: UntypedStorage) -> Tensor:
        return torch.empty(0, dtype=layout.dtype).set_(storage, layout.offset, layout.size, layout.stride)

    def checkpoint(self) -> object:
        assert set(self.used) == set(self.owners.values())
        return dict(self.used)

    def restore(self, checkpoint: Any, alive: list[int], dead: list[int]) -> None:
        assert not self.used and not self.owners, "something is in use"
        self.used = dict(checkpoint)
        for storage in alive:
            address = UntypedStorage._new_with_weak_ptr(storage).data_ptr()
            assert address in self.used
            self.owners[self.numbers[storage]] = address
        for address in dead:
            del self.used[address]
        assert sorted(self.used) == sorted(self.owners.values())

    def free(self, storage: int) -> None:
        del self.used[self.owners.pop(self.numbers[storage])]

    def forbid(self, storage: int, tensor: Tensor | None, message: str) -> None:
        self.device.gone[self.numbers[storage]] = message
        if _CAN_FORBID:
            torch._C._set_storage_data_ptr_access_error_msg(storage, message)
        elif tensor is not None:
            tensor.__class__ = type("Forbidden", (Forbidden,), {"message": message})

    # ---- work

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        self.device.wait()
        with Pooling(self, None):
            yield

    @contextlib.contextmanager
    def capture(self) -> Iterator[Tape]:
        tape = Tape(self.device)
        self.graphs.append(weakref.ref(tape))
        end = max([address + size for address, size in self.used.items()], default=self.base) - self.base
        kept, state = ctypes.string_at(self.base, end), torch.get_rng_state()
        _thread.tape = tape
        try:
            with self.device.captured(), Pooling(self, tape):
                yield tape
        finally:
            _thread.tape = None
            for address, memory in reversed(tape.undo):
                ctypes.memmove(address, memory, len(memory))
            ctypes.memmove(self.base, kept, end)
            torch.set_rng_state(state)


_numbers = itertools.count()


class Forbidden(Tensor):
    """What a tensor becomes whose memory is written again."""

    message = ""

    @classmethod
    def __torch_function__(cls, *call: object, **more: object) -> Any:
        raise RuntimeError(cls.message)


class Pooling(TorchDispatchMode):
    """What is made lies in the pool; what is done is noted on the tape."""

    def __init__(self, pool: FakePool, tape: Tape | None) -> None:
        super().__init__()
        self.pool, self.tape = pool, tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.tape is not None and func._schema.name in self.pool.device.refused:
            raise RuntimeError(f"{func} is not permitted while a stream is captured")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        written = func._schema.is_mutable
        if self.tape is not None and written:
            for tensor in given:
                self.tape.writes(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        made = func(*args, **kwargs)
        fresh: list[Layout | None] = []

        def moved(value: object) -> object:
            if not isinstance(value, Tensor) or value.untyped_storage().data_ptr() in known:
                fresh.append(None)
                return value
            tensor = self.pool.new(value)
            storage = value.untyped_storage()
            ctypes.memmove(tensor.untyped_storage().data_ptr(), storage.data_ptr(), storage.nbytes())
            fresh.append(Layout.of(tensor))
            return tensor

        found = tree_map(moved, made)
        is_empty = func._schema.name in ("aten::empty", "aten::empty_strided", "aten::new_empty")
        if self.tape is not None and (written or any(fresh)) and not is_empty:
            call = tree_map(lambda x: Layout.of(x) if isinstance(x, Tensor) else x, (args, kwargs))
            self.tape.work.append(lambda: again(func, call, fresh))
        return found


def again(func: Any, call: Any, fresh: Sequence[Layout | None]) -> None:
    args, kwargs = tree_map(lambda x: seen(x) if isinstance(x, Layout) else x, call)
    with torch.no_grad():
        for value, layout in zip(tree_leaves(func(*args, **kwargs)), fresh, strict=True):
            if layout is not None:
                ctypes.memmove(layout.address, value.untyped_storage().data_ptr(), layout.nbytes)


def binder(kernels: Sequence[CompiledKernel]) -> Callable[..., Callable[..., None]]:
    """As that of the runtime; launches are captured."""

    def bind(calls: Sequence[tuple[int, tuple[int, ...]]]) -> Callable[..., None]:
        launch = sequence([(kernels[number], positions) for number, positions in calls])

        def run(*words: int) -> None:
            tape = _thread.tape
            if tape is not None:
                for number, positions in calls:
                    _note(tape, kernels[number].kernel, [words[at] for at in positions])
                tape.work.append(lambda: launch(*words))
            launch(*words)

        return run

    return bind


def _note(tape: Tape, kernel: Any, words: list[int]) -> None:
    sizes = dict(zip(kernel.sizes, words[len(kernel.params) :], strict=True))
    for param, address in zip(kernel.params, words):
        if param.role != "in":
            tape.writes(address, param.numel.evaluate(sizes) * param.dtype.itemsize)


class FakeDevice:
    """`refused`: operations that cannot be captured; `pools`: all that were made; `captor`: the thread that captures;
    `is_valid`: whether nobody has disturbed it."""

    def __init__(self) -> None:
        self.captor: int | None = None
        self.is_valid = True
        self.pools: list[FakePool] = []
        self.refused: set[str] = set()
        self.current = 0
        self.capturing = False
        self.gone: dict[int, str] = {}

    def check(self, tensor: Tensor) -> None:
        """Raises for a tensor whose memory is written again: a build of torch without CUDA cannot tell for all of
        them."""
        cdata = tensor.untyped_storage()._cdata
        for pool in self.pools:
            message = self.gone.get(pool.numbers.get(cdata, -1))
            if message is not None:
                raise RuntimeError(message)

    def wait(self) -> None:
        """Waits for all work. Other threads must not while one captures: that fails, and so does the capture."""
        if self.captor not in (None, threading.get_ident()):
            self.is_valid = False
            raise RuntimeError("operation not permitted when stream is capturing")

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        self.wait()
        self.captor, self.is_valid = threading.get_ident(), True
        time.sleep(0.002)  # others run
        try:
            yield
            time.sleep(0.002)
        finally:
            self.captor = None
        if not self.is_valid:
            raise RuntimeError("operation failed due to a previous error during capture")

    def stream(self, index: int) -> int:
        return self.current

    def is_capturing(self) -> bool:
        return self.capturing

    def pool(self, index: int) -> FakePool:
        self.pools.append(FakePool(self))
        return self.pools[-1]

    @property
    def graphs(self) -> list[Tape]:
        return [tape for pool in self.pools for made in pool.graphs if (tape := made()) is not None]

    @property
    def replays(self) -> int:
        return sum(tape.replays for tape in self.graphs)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """The CPU records graphs."""
    device = FakeDevice()
    monkeypatch.setitem(recorder.DEVICES, "cpu", lambda: device)
    monkeypatch.setattr(compiled_graph, "binder", binder)
    monkeypatch.setattr(driver, "_empty_on", lambda _: lambda *shape: torch.empty_strided(*shape[:2], dtype=shape[2]))
    recorder.forest.clear()
    with config.patch(native_after=0):
        yield device
    recorder.forest.clear()
