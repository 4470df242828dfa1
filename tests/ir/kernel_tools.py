"""What the tests of loop IR and code generation share: short ways to write kernels, and to run them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from bolide.inductor.codegen import compile_kernels
from bolide.inductor.ir.interpret import interpret
from bolide.inductor.ir.loops import Access, Axis, AxisKind, Kernel, Loop, Node, Param, Stmt, Store
from bolide.inductor.ir.verify import verify
from bolide.symbolic import Expr, as_expr

f32, i64 = torch.float32, torch.int64


def var(name: str, extent: Expr | int) -> Expr:
    """The index variable of an axis."""
    return Expr.var(name, 0, as_expr(extent) - 1)


def const(value: float, dtype: torch.dtype = f32) -> Node:
    return Node.make("const", dtype, (), value)


def load(buffer: str, index: Expr | int, dtype: torch.dtype = f32, *src: Node, masked: bool = False) -> Node:
    return Node.make("load", dtype, src, Access(buffer, as_expr(index), masked))


def op(name: str, *src: Node, dtype: torch.dtype | None = None) -> Node:
    return Node.make(name, dtype or src[-1].dtype, src)


def acc(name: str, dtype: torch.dtype = f32) -> Node:
    return Node.make("acc", dtype, (), name)


def loop(kind: AxisKind, name: str, extent: Expr | int, *body: Stmt) -> Loop:
    return Loop(Axis(name, as_expr(extent), kind), body)


def store(buffer: str, index: Expr | int, value: Node, *src: Node, masked: bool = False, mode: str = "set") -> Store:
    return Store(Access(buffer, as_expr(index), masked), value, src, mode)  # type: ignore[arg-type]


def param(name: str, numel: Expr | int, dtype: torch.dtype = f32, role: str = "in") -> Param:
    return Param(name, dtype, role, as_expr(numel))  # type: ignore[arg-type]


def run(kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
    """Verify, compile and launch `kernel` on flat tensors, in place."""
    launch(kernel, {name: tensor.data_ptr() for name, tensor in buffers.items()}, sizes)


def launch(kernel: Kernel, places: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> None:
    """Verify, compile and launch `kernel` on what is at these addresses."""
    verify(kernel)
    (compiled,) = compile_kernels([kernel])
    compiled.launch(*(places[p.name] for p in kernel.params), *((sizes or {})[name] for name in kernel.sizes))


_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def fenced(tensors: Mapping[str, torch.Tensor], at_end: bool) -> Iterator[dict[str, int]]:
    """Addresses of copies of tensors, each with pages around it that nobody may read or write: touching an element
    behind the last one (or, unless `at_end`, before the first one) crashes."""
    page = mmap.PAGESIZE
    maps, places = [], {}
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        room = -(-size // page) * page
        area = mmap.mmap(-1, room + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        for fence in (start, start + page + room):
            assert _LIBC.mprotect(ctypes.c_void_p(fence), page, 0) == 0
        places[name] = start + page + (room - size if at_end else 0)
        ctypes.memmove(places[name], tensor.data_ptr(), size)
        maps.append((area, start, room + 2 * page))
    yield places
    for area, start, size in maps:
        _LIBC.mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ | mmap.PROT_WRITE)
        area.close()


def both(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, from machine code, from the interpreter) for each buffer that may be written. The compiled run gets every
    buffer inside a larger one, at an odd element, and the surroundings must stay untouched; and once more between pages
    that must not be read either."""
    mine = {name: tensor.clone() for name, tensor in buffers.items()}
    roomy = {name: torch.full((tensor.numel() + 70,), 77).to(tensor.dtype) for name, tensor in buffers.items()}
    for name, tensor in buffers.items():
        roomy[name][3 : 3 + tensor.numel()] = tensor
    run(kernel, {name: tensor[3:] for name, tensor in roomy.items()}, sizes)
    for at_end in (True, False):
        with fenced(buffers, at_end) as places:
            launch(kernel, places, sizes)
    interpret(kernel, mine, sizes)
    for name, tensor in buffers.items():
        border = torch.cat([roomy[name][:3], roomy[name][3 + tensor.numel() :]])
        assert bool((border == torch.tensor(77).to(tensor.dtype)).all()), f"{name}: wrote outside"
    return [
        (p.name, roomy[p.name][3 : 3 + buffers[p.name].numel()], mine[p.name]) for p in kernel.params if p.role != "in"
    ]
