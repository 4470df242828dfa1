"""What recording asks of a device: a pool of memory, graphs whose tensors lie in it, and what its allocator knows.

`cuda.Cuda` is the real one; tests put in one that records and replays on the CPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, UntypedStorage


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory: `address` and `nbytes` are of its storage; sizes, strides and `offset` count
    elements."""

    address: int
    nbytes: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset())
        place = storage.data_ptr(), storage.nbytes()
        return cls(*place, tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, tensor.device)


class Graph(Protocol):
    """What was captured."""

    def replay(self) -> None:
        """Does it once more, on the current stream."""


class Pool(Protocol):
    """The memory that all graphs of a tree share, on one device."""

    def allocating(self) -> AbstractContextManager[None]:
        """What this thread allocates meanwhile lies in the pool."""

    def capture(self) -> AbstractContextManager[Graph]:
        """What this thread does on the device meanwhile is not done but captured; what it allocates lies in the
        pool."""

    def checkpoint(self) -> object:
        """Which parts of the pool are in use now."""

    def restore(self, checkpoint: object, alive: list[int], dead: list[int]) -> None:
        """The allocator takes those parts for in use that were at `checkpoint`, when nothing is in use now. From now on
        the storages `alive` (``_cdata`` of weak references) own their memory; the parts at the addresses `dead` are
        free."""

    def free(self, storage: int) -> None:
        """A living storage that owns its memory gives it back to the pool."""

    def forbid(self, storage: int, tensor: Tensor | None, message: str) -> None:
        """Whoever reads a living storage from now on gets a RuntimeError that says `message`. `tensor`: the one that
        was given out, if it is still there."""

    def storage(self, layout: Layout) -> UntypedStorage:
        """A new storage at `layout`, which does not own its memory."""

    def tensor(self, layout: Layout, storage: UntypedStorage) -> Tensor:
        """A new tensor in a storage."""


class Device(Protocol):
    """A kind of device that captures graphs."""

    def stream(self, index: int) -> int:
        """Identifies the current stream of this thread."""

    def is_capturing(self) -> bool:
        """Whether the program is capturing a graph of its own now."""

    def pool(self, index: int) -> Pool:
        """A new pool on the device with this number."""
