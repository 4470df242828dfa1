"""Programs of the native driver as data, which any process with the same plan can run: what is known only in a process
stands in them as a number, and is put in its place when the program is linked."""

from __future__ import annotations

import array
import ctypes
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native import shims
from bolide.inductor.runtime.native.shims import Shim, thunks
from bolide.tracing.rng import draw_seed

OWN, KERNEL, THUNK, CONSTANT, STEP, OBJECT = "own", "kernel", "thunk", "constant", "step", "object"
GENERATOR, FALLBACK, CLASS, HANDLE, DRAW = "generator", "fallback", "class", "handle", "draw"
KINDS = (OWN, KERNEL, THUNK, CONSTANT, STEP, OBJECT, GENERATOR, FALLBACK, CLASS, HANDLE, DRAW)
"""What a number is: bytes from the program's first word on; of a kernel, of a function in C, of a constant, of a step
in Python, of a result that is always the same; 0 for torch's generator, 1 for its lock; 0 for the readable driver; of
one of two classes; 0 for the offset of a handle in an object of Python's; of a GPU, for which a seed is drawn."""


@functools.cache
def draw(gpu: int) -> Callable[[], tuple[torch.Tensor]]:
    """The step in Python that draws a seed for a GPU."""
    device = torch.device("cuda", gpu)
    return lambda: (draw_seed(device),)


class Label(int):
    """A word that is known when the program is linked: the number of what it stands for."""

    kind: str

    def __new__(cls, kind: str, number: int) -> Label:
        """Of one of `KINDS`."""
        label = super().__new__(cls, number)
        label.kind = kind
        return label


@dataclass(slots=True)
class Program:
    """A program in memory, which begins with its control block. What it points to is kept in `owned`."""

    control: array.array[int]
    owned: list[object]

    @property
    def address(self) -> int:
        return self.control.buffer_info()[0]

    @property
    def runs(self) -> int:
        """How often it has run natively."""
        return self.control[ops.RUNS]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a program is linked with: the addresses of its kernels, its constants, its steps in Python, what runs the
    plan where an input is not what it should be, and the `offset` of the handle in an object of Python's. `owned`:
    what has to live as long."""

    kernels: Sequence[int]
    constants: Sequence[torch.Tensor]
    step: Callable[[int], object]
    fallback: Callable[[list[object]], object]
    offset: int
    owned: object = None


@dataclass(frozen=True, slots=True)
class Written:
    """A program that has been written. `places`: where the words of a kind are that are known when it is linked;
    `objects`: numbers and None."""

    words: array.array[int]
    places: Mapping[str, array.array[int]]
    shims: tuple[Shim, ...]
    objects: tuple[object, ...]

    def linked(self, around: Surroundings) -> Program:
        """The program in memory. Raises RuntimeError where torch has not what it calls, or draws from."""
        thunks.require(self.shims)
        generator = shims.generator() if self.places[GENERATOR] else ()
        if generator is None:
            raise RuntimeError("torch's generator is not where it was")
        words, places = self.words[:], self.places
        steps = [around.step(number) for number in range(1 + max((words[at] for at in places[STEP]), default=-1))]
        draws = [draw(gpu) for gpu in range(1 + max((words[at] for at in places[DRAW]), default=-1))]
        known: Mapping[str, Sequence[int]] = {
            KERNEL: around.kernels,
            THUNK: [thunks.addresses[shim] for shim in self.shims],
            CONSTANT: [id(constant) + around.offset for constant in around.constants],
            STEP: [*map(id, steps)],
            OBJECT: [*map(id, self.objects)],
            GENERATOR: generator,
            FALLBACK: (id(around.fallback),),
            CLASS: (id(torch.Tensor), id(torch.nn.Parameter)),
            HANDLE: (around.offset,),
            DRAW: [*map(id, draws)],
        }
        base = words.buffer_info()[0]
        for place in places[OWN]:
            words[place] += base
        for kind, values in known.items():
            for place in places[kind]:
                words[place] = values[words[place]]
        return Program(words, [around, steps, draws, self.objects])

    def packed(self) -> bytes | None:
        """As bytes; None if its results are more than numbers and None."""
        if not all(value is None or type(value) in (bool, int) for value in self.objects):
            return None
        counts = [len(self.places[kind]) for kind in KINDS]
        head = json.dumps([len(self.words), counts, self.shims, self.objects]).encode()
        parts = [self.places[kind].tobytes() for kind in KINDS]
        return b"".join((len(head).to_bytes(4, "little"), head, self.words.tobytes(), *parts))


def unpacked(data: memoryview) -> Written:
    """What `Written.packed` has given."""
    start = 4 + int.from_bytes(data[:4], "little")
    length, counts, needed, objects = json.loads(bytes(data[4:start]))
    words, start = _array("q", data, start, length)
    places = {}
    for kind, count in zip(KINDS, counts, strict=True):
        places[kind], start = _array("i", data, start, count)
    found = tuple([Shim(symbol, tuple(parameters), grad) for symbol, parameters, grad in needed])
    return Written(words, places, found, tuple(objects))


def _array(code: str, data: memoryview, start: int, count: int) -> tuple[array.array[int], int]:
    """So many numbers, and where they end."""
    found = array.array(code)
    end = start + count * found.itemsize
    found.frombytes(data[start:end])
    return found, end


def words_of(content: bytes) -> array.array[int]:
    """Bytes as words; a zero byte follows them."""
    width = ctypes.sizeof(ctypes.c_int64)
    return array.array("q", content + bytes(width - len(content) % width))
