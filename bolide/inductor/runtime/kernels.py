"""Kernels that can be launched, one by one or as a sequence in one foreign call.

A kernel's entry is ``void (const int64_t *words)``: the addresses of its parameters, then its sizes. A sequence is
data (an array of 64-bit words that says which argument goes where), run by one native function that all sequences
share; so no code is generated for it.
"""

from __future__ import annotations

import array
import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from bolide.inductor.ir.loops import Kernel
from bolide.support.engine import Method, load

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Place(NamedTuple):
    """Where a kernel's machine code is: the digest of a module's text, and the function there. Of a GPU's kernel that
    is the host function; `image`: the digest of the device's code, of which `regions` are launched, by names with
    spaces in between, and `device` the number of the GPU."""

    module: str
    symbol: str
    image: str = ""
    regions: str = ""
    device: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel's machine code in this process; `home`: what it lives in; `raise_error`: on a GPU, what raises the error
    of a launch."""

    place: Place
    address: int
    home: object
    raise_error: Callable[[], None] | None = None


@dataclass
class CompiledKernel:
    """A kernel that can be launched: the address of its entry, what writes its LLVM module (whose entry is ``@kernel``
    on a CPU) and its machine code as text, what it lives in, and, on a GPU, what raises the error of a launch."""

    kernel: Kernel
    address: int
    text: Callable[[], str] = field(repr=False, compare=False)
    machine_text: Callable[[], str] = field(repr=False, compare=False)
    home: object = field(repr=False)
    raise_error: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.kernel.name

    def launch(self, *words: int) -> None:
        """Run it on raw addresses, in the order of `kernel.launch_params`, followed by the values of `kernel.sizes`."""
        expected = self.kernel.words
        if len(words) != expected:
            raise TypeError(f"kernel {self.name} takes {expected} addresses and sizes, not {len(words)}")
        _ENTRY(self.address)((ctypes.c_int64 * expected)(*words))

    @cached_property
    def llvm_ir(self) -> str:
        """A module on its own; written when first asked for."""
        return self.text()

    @cached_property
    def assembly(self) -> str:
        """Its machine code as text, of a GPU's PTX; made when first asked for."""
        return self.machine_text()


# A program is: number of arguments, largest number of words of a call, number of calls, then for each call: the
# kernel's address, the number of its words, and for each word the position of the argument that it takes.
_RUNNER = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @Py_BuildValue(ptr, ...)
@empty = internal constant [1 x i8] zeroinitializer

define void @execute(ptr %program, ptr %table) {
entry:
  %most.at = getelementptr i64, ptr %program, i64 1
  %most = load i64, ptr %most.at
  %words = alloca i64, i64 %most
  %calls.at = getelementptr i64, ptr %program, i64 2
  %calls = load i64, ptr %calls.at
  %first = getelementptr i64, ptr %program, i64 3
  %any = icmp sgt i64 %calls, 0
  br i1 %any, label %call, label %done
call:
  %at = phi ptr [ %first, %entry ], [ %following, %launch ]
  %left = phi i64 [ %calls, %entry ], [ %fewer, %launch ]
  %kernel = load ptr, ptr %at
  %count.at = getelementptr i64, ptr %at, i64 1
  %count = load i64, ptr %count.at
  %positions = getelementptr i64, ptr %at, i64 2
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %word, label %launch
word:
  %i = phi i64 [ 0, %call ], [ %next, %word ]
  %position.at = getelementptr i64, ptr %positions, i64 %i
  %position = load i64, ptr %position.at
  %value.at = getelementptr i64, ptr %table, i64 %position
  %value = load i64, ptr %value.at
  %word.at = getelementptr i64, ptr %words, i64 %i
  store i64 %value, ptr %word.at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %word, label %launch
launch:
  call void %kernel(ptr %words)
  %following = getelementptr i64, ptr %positions, i64 %count
  %fewer = sub i64 %left, 1
  %again = icmp sgt i64 %fewer, 0
  br i1 %again, label %call, label %done
done:
  ret void
}

define ptr @run(ptr %self, ptr %args, i64 %count) {
entry:
  %address = call i64 @PyLong_AsLongLong(ptr %self)
  %program = inttoptr i64 %address to ptr
  %expected = load i64, ptr %program
  %fits = icmp eq i64 %count, %expected
  br i1 %fits, label %start, label %bad
bad:
  %ignored = call i32 @PyErr_BadArgument()
  ret ptr null
start:
  %table = alloca i64, i64 %count
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %convert, label %go
convert:
  %i = phi i64 [ 0, %start ], [ %next, %good ]
  %object.at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %object.at
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %good
check:
  %error = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %error, null
  br i1 %none, label %good, label %fail
fail:
  ret ptr null
good:
  %slot = getelementptr i64, ptr %table, i64 %i
  store i64 %value, ptr %slot
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %convert, label %go
go:
  %thread = call ptr @PyEval_SaveThread()
  call void @execute(ptr %program, ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  %result = call ptr (ptr, ...) @Py_BuildValue(ptr @empty)
  ret ptr %result
}
"""


@functools.cache
def _method() -> Method:
    """The native runner, which lives as long as the process."""
    return Method("run_kernels", load(_RUNNER, ("run",), "", ""), "run")


def sequence(calls: Sequence[tuple[CompiledKernel, tuple[int, ...]]]) -> Callable[..., None]:
    """A function of integers that launches these kernels one after the other, with the interpreter lock released.

    For each kernel the tuple says which positional argument goes to each of its words (addresses in the order of its
    parameters, then its sizes). A call costs some 0.1 µs and a few ns per argument; it raises TypeError for a wrong
    number of arguments or one that is not an integer."""
    arguments = 1 + max((position for _, positions in calls for position in positions), default=-1)
    most = max((len(positions) for _, positions in calls), default=0)
    words = array.array("q", (arguments, most, len(calls)))
    for kernel, positions in calls:
        expected = kernel.kernel.words
        if len(positions) != expected:
            raise ValueError(f"kernel {kernel.name} takes {expected} addresses and sizes, not {len(positions)}")
        words.extend((kernel.address, len(positions), *positions))
    launch: Callable[..., None] = _method().bind(words.buffer_info()[0], (words, tuple(calls)))
    errors = [*dict.fromkeys([kernel.raise_error for kernel, _ in calls if kernel.raise_error is not None])]
    return _watched(launch, errors) if errors else launch


def _watched(launch: Callable[..., None], errors: Sequence[Callable[[], None]]) -> Callable[..., None]:
    """A sequence, and the errors of its launches on a GPU."""

    def run(*words: int) -> None:
        launch(*words)
        for raise_error in errors:
            raise_error()

    return run


def failure(kernels: Sequence[CompiledKernel]) -> Callable[[int], None]:
    """What raises the error of one of these kernels, by number, that could not be launched."""

    def failed(number: int) -> None:
        kernel = kernels[number]
        if kernel.raise_error is not None:
            kernel.raise_error()
        raise RuntimeError(f"kernel {kernel.name} could not be launched")  # another thread has said why

    return failed


def binder(kernels: Sequence[CompiledKernel]) -> Callable[[Sequence[tuple[int, tuple[int, ...]]]], Callable[..., None]]:
    """What makes one function, as `sequence` does, of launches of these kernels, which it is given by number."""
    return lambda calls: sequence([(kernels[number], positions) for number, positions in calls])
