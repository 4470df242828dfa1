"""Runs the LLVM text of GPU kernels on this machine: the threads of a block are contexts of one thread (`swapcontext`),
which take turns at barriers and shuffles, in an order that the caller chooses. So a missing barrier shows, always."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import torch

from bolide.inductor.codegen.cuda import Launch, gpu_module
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import HOPPER
from bolide.symbolic import Expr

CONTEXT = 1024  # bytes; glibc's ucontext_t has 968
STACK = 64 << 10
_LIBC = ctypes.CDLL(None)

#: What stands for a GPU's approximations, to which subnormal numbers are 0.
APPROXIMATIONS = """
declare float @llvm.copysign.f32(float, float)
declare float @llvm.fabs.f32(float)
declare float @llvm.exp2.f32(float)
define float @flushed(float %value) {
  %size = call float @llvm.fabs.f32(float %value)
  %tiny = fcmp olt float %size, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %value)
  %result = select i1 %tiny, float %zero, float %value
  ret float %result
}
define float @ex2(float %value) {
  %given = call float @flushed(float %value)
  %power = call float @llvm.exp2.f32(float %given)
  %result = call float @flushed(float %power)
  ret float %result
}
define float @rcp(float %value) {
  %given = call float @flushed(float %value)
  %inverse = fdiv float 1.0, %given
  %result = call float @flushed(float %inverse)
  ret float %result
}
"""
#: What stands for its registers, barriers and shuffles.
RUNTIME = """
@current = global i32 0
@block = global i32 0
@threads = global i32 0
@step = global i32 1
@contexts = global ptr null
@return = global ptr null
@arguments = global ptr null
@failed = global ptr null
@done = global [1024 x i8] zeroinitializer
@arrived = global [33 x i32] zeroinitializer
@passed = global [33 x i32] zeroinitializer
@slots = global [1024 x i32] zeroinitializer
declare i32 @swapcontext(ptr, ptr)
declare i32 @setcontext(ptr)

define i32 @next() {
entry:
  %threads = load i32, ptr @threads
  %step = load i32, ptr @step
  %mine = load i32, ptr @current
  br label %loop
loop:
  %from = phi i32 [ %mine, %entry ], [ %to, %loop ]
  %count = phi i32 [ 0, %entry ], [ %count1, %loop ]
  %count1 = add i32 %count, 1
  %sum = add i32 %from, %step
  %to = urem i32 %sum, %threads
  %flag = getelementptr i8, ptr @done, i32 %to
  %isdone = load i8, ptr %flag
  %live = icmp eq i8 %isdone, 0
  %all = icmp uge i32 %count1, %threads
  %stop = or i1 %live, %all
  br i1 %stop, label %end, label %loop
end:
  %result = select i1 %live, i32 %to, i32 -1
  ret i32 %result
}
define ptr @context(i32 %number) {
  %contexts = load ptr, ptr @contexts
  %offset = mul i32 %number, 1024
  %place = getelementptr i8, ptr %contexts, i32 %offset
  ret ptr %place
}
define void @others() {
  %mine = load i32, ptr @current
  %to = call i32 @next()
  %alone = icmp eq i32 %to, %mine
  br i1 %alone, label %end, label %switch
switch:
  store i32 %to, ptr @current
  %old = call ptr @context(i32 %mine)
  %new = call ptr @context(i32 %to)
  call i32 @swapcontext(ptr %old, ptr %new)
  br label %end
end:
  ret void
}
define void @wait(i32 %group, i32 %size) {
  %arrived = getelementptr i32, ptr @arrived, i32 %group
  %passed = getelementptr i32, ptr @passed, i32 %group
  %round = load i32, ptr %passed
  %before = load i32, ptr %arrived
  %count = add i32 %before, 1
  store i32 %count, ptr %arrived
  %last = icmp eq i32 %count, %size
  br i1 %last, label %open, label %sleep
open:
  store i32 0, ptr %arrived
  %following = add i32 %round, 1
  store i32 %following, ptr %passed
  ret void
sleep:
  call void @others()
  %now = load i32, ptr %passed
  %same = icmp eq i32 %now, %round
  br i1 %same, label %sleep, label %end
end:
  ret void
}
define void @__assertfail(ptr %message, ptr %file, i32 %line, ptr %function, i64 %width) {
  store ptr %message, ptr @failed
  ret void
}
define i32 @tid() {
  %mine = load i32, ptr @current
  ret i32 %mine
}
define i32 @ctaid() {
  %mine = load i32, ptr @block
  ret i32 %mine
}
define void @barrier(i32 %unused) {
  %threads = load i32, ptr @threads
  call void @wait(i32 32, i32 %threads)
  ret void
}
define void @warp(i32 %unused) {
  %mine = load i32, ptr @current
  %warp = lshr i32 %mine, 5
  call void @wait(i32 %warp, i32 32)
  ret void
}
define i32 @shuffled(i32 %value, i32 %from) {
  %mine = load i32, ptr @current
  %slot = getelementptr i32, ptr @slots, i32 %mine
  store i32 %value, ptr %slot
  call void @warp(i32 0)
  %there = getelementptr i32, ptr @slots, i32 %from
  %result = load i32, ptr %there
  call void @warp(i32 0)
  ret i32 %result
}
define i32 @bfly(i32 %all, i32 %value, i32 %distance, i32 %clamp) {
  %mine = load i32, ptr @current
  %from = xor i32 %mine, %distance
  %result = call i32 @shuffled(i32 %value, i32 %from)
  ret i32 %result
}
define i32 @idx(i32 %all, i32 %value, i32 %lane, i32 %clamp) {
  %mine = load i32, ptr @current
  %warp = and i32 %mine, -32
  %from = or i32 %warp, %lane
  %result = call i32 @shuffled(i32 %value, i32 %from)
  ret i32 %result
}
define void @finish() {
  %mine = load i32, ptr @current
  %flag = getelementptr i8, ptr @done, i32 %mine
  store i8 1, ptr %flag
  %to = call i32 @next()
  %none = icmp slt i32 %to, 0
  br i1 %none, label %leave, label %switch
switch:
  store i32 %to, ptr @current
  %new = call ptr @context(i32 %to)
  call i32 @setcontext(ptr %new)
  ret void
leave:
  %back = load ptr, ptr @return
  call i32 @setcontext(ptr %back)
  ret void
}
define void @red4(ptr addrspace(1) %place, float %a, float %b, float %c, float %d) {
  %v1 = insertelement <4 x float> poison, float %a, i32 0
  %v2 = insertelement <4 x float> %v1, float %b, i32 1
  %v3 = insertelement <4 x float> %v2, float %c, i32 2
  %added = insertelement <4 x float> %v3, float %d, i32 3
  %old = load <4 x float>, ptr addrspace(1) %place, align 16
  %sum = fadd <4 x float> %old, %added
  store <4 x float> %sum, ptr addrspace(1) %place, align 16
  ret void
}
define void @red8(ptr addrspace(1) %place, i32 %a, i32 %b, i32 %c, i32 %d) {
  %v1 = insertelement <4 x i32> poison, i32 %a, i32 0
  %v2 = insertelement <4 x i32> %v1, i32 %b, i32 1
  %v3 = insertelement <4 x i32> %v2, i32 %c, i32 2
  %whole = insertelement <4 x i32> %v3, i32 %d, i32 3
  %added = bitcast <4 x i32> %whole to <8 x bfloat>
  %old = load <8 x bfloat>, ptr addrspace(1) %place, align 16
  %sum = fadd <8 x bfloat> %old, %added
  store <8 x bfloat> %sum, ptr addrspace(1) %place, align 16
  ret void
}
define bfloat @__truncsfbf2(float %value) {
  %bits = bitcast float %value to i32
  %upper = lshr i32 %bits, 16
  %odd = and i32 %upper, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %short32 = lshr i32 %sum, 16
  %short = trunc i32 %short32 to i16
  %isnan = fcmp uno float %value, %value
  %result = select i1 %isnan, i16 32767, i16 %short
  %bfloat = bitcast i16 %result to bfloat
  ret bfloat %bfloat
}
"""
NAMES = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "tid",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "ctaid",
    "llvm.nvvm.shfl.sync.bfly.i32": "bfly",
    "llvm.nvvm.shfl.sync.idx.i32": "idx",
    "llvm.nvvm.bar.warp.sync": "warp",
    "llvm.nvvm.barrier.cta.sync.aligned.all": "barrier",
    "llvm.nvvm.ex2.approx.ftz.f32": "ex2",
    "llvm.nvvm.rcp.approx.ftz.f": "rcp",
    "__assertfail": "__assertfail",
}


def emulate(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None, step: int = 1
) -> None:
    """Run a kernel that is bound for a GPU on flat tensors, in place. `step`: the turn goes to the thread so many
    numbers on (-1: backwards)."""
    words = [buffers[param.name].data_ptr() for param in kernel.params]
    launched(kernel, words + [(sizes or {})[name] for name in kernel.sizes], step)


def launched(kernel: Kernel, words: Sequence[int], step: int = 1) -> None:
    """The same on raw addresses, followed by the sizes. RuntimeError for an assertion that failed."""
    text, (launches,) = gpu_module([kernel], HOPPER)
    addresses, count = kernel.batch * len(kernel.params), len(kernel.sizes)
    sets = [dict(zip(kernel.sizes, words[addresses + at * count :])) for at in range(kernel.batch)]
    batch = kernel.batch if kernel.batch > 1 else 0
    library = _library(
        _on_host(text, [launch.symbol for launch in launches], len(kernel.params), len(kernel.sizes), batch)
    )
    for launch in launches:
        blocks = [-(-launch.teams.evaluate(sizes) // launch.teams_per_block) for sizes in sets]
        starts = [sum(blocks[:at]) for at in range(batch)]
        for block in range(sum(blocks)):
            _run_block(library, launch, block, [*starts, *words], step)
    failed = ctypes.c_char_p.from_address(library["failed"])
    if failed.value is not None:
        told, failed.value = failed.value.decode(), None
        raise RuntimeError(told)


def run_entry(text: str, symbol: str, params: int, blocks: int, threads: int, words: Sequence[int]) -> None:
    """So many blocks of one of a module's entries, of which some parameters are addresses, the other ones sizes."""
    library = _library(_on_host(text, [symbol], params, len(words) - params))
    launch = Launch(symbol, Expr.const(blocks), threads, 1)
    for block in range(blocks):
        _run_block(library, launch, block, words, 1)


def _run_block(library: Any, launch: Launch, block: int, words: Sequence[int], step: int) -> None:
    threads = launch.team * launch.teams_per_block
    arguments = (ctypes.c_int64 * max(1, len(words)))(*words)
    contexts = ctypes.create_string_buffer(CONTEXT * (threads + 2))
    stacks = ctypes.create_string_buffer(STACK * threads)
    first = -(-ctypes.addressof(contexts) // 64) * 64
    back = first + CONTEXT * threads
    for name, kind, value in (
        ("current", ctypes.c_int32, 0),
        ("block", ctypes.c_int32, block),
        ("threads", ctypes.c_int32, threads),
        ("step", ctypes.c_int32, step % threads),
        ("contexts", ctypes.c_void_p, first),
        ("return", ctypes.c_void_p, back),
        ("arguments", ctypes.c_void_p, ctypes.addressof(arguments)),
    ):
        kind.from_address(library[name]).value = value
    for name, size in (("done", 1024), ("arrived", 132), ("passed", 132)):
        ctypes.memset(library[name], 0, size)
    start = ctypes.c_void_p(library[f"{launch.symbol}_start"])
    for thread in range(threads):
        context = first + CONTEXT * thread
        _LIBC.getcontext(ctypes.c_void_p(context))
        ctypes.c_void_p.from_address(context + 16).value = ctypes.addressof(stacks) + STACK * thread
        ctypes.c_size_t.from_address(context + 32).value = STACK
        _LIBC.makecontext(ctypes.c_void_p(context), start, 0)
    _LIBC.swapcontext(ctypes.c_void_p(back), ctypes.c_void_p(first))


def _on_host(text: str, symbols: Sequence[str], params: int, sizes: int, batch: int = 0) -> str:
    """The module for this machine, with functions that start each kernel's threads. `batch`: sets of arguments that an
    entry takes as arrays; 0: it takes each by itself."""
    text = re.sub(r"^target triple.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)", r"\1", text).replace("addrspace(3) ", "")
    text = text.replace("define ptx_kernel void", "define void")
    text = re.sub(r'asm sideeffect "red[^"]*v4.f32[^"]*", "[^"]*"', "@red4", named_here(text))
    text = re.sub(r'asm sideeffect "red[^"]*v4.bf16x2[^"]*", "[^"]*"', "@red8", text)
    kinds = ["ptr"] * params + ["i64"] * sizes
    loads = [
        f"  %p{n} = getelementptr i64, ptr %words, i32 {n}\n  %a{n} = load {kind}, ptr %p{n}"
        for n, kind in enumerate(kinds)
    ]
    given = ", ".join(f"{kind} %a{n}" for n, kind in enumerate(kinds))
    if batch:
        text = re.sub(r"byval\([^)]*\) align 8 ", "", text)
        loads, given = (
            [f"  %args = getelementptr i64, ptr %words, i32 {batch}"],
            "ptr %words, ptr %args" if kinds else "ptr %words",
        )
    starts = [
        "\n".join((f"define void @{symbol}_start() {{", "  %words = load ptr, ptr @arguments", *loads))
        + f"\n  call void @{symbol}({given})\n  call void @finish()\n  unreachable\n}}"
        for symbol in symbols
    ]
    return "\n".join((RUNTIME, text, *starts))


def named_here(text: str) -> str:
    """The text of a module that calls what stands for a GPU's instructions, with the approximations."""
    for name, stand_in in NAMES.items():
        text = re.sub(rf"^declare .*@{re.escape(name)}\(.*$", "", text, flags=re.MULTILINE)
        text = text.replace(f"@{name}(", f"@{stand_in}(")
    calls = ("fabs", "copysign", "exp2")
    own = re.sub(rf"^declare float @llvm.(?:{'|'.join(calls)}).f32\(.*$", "", text, flags=re.MULTILINE)
    return APPROXIMATIONS + own


@functools.lru_cache(maxsize=64)
def _library(text: str) -> dict[str, int]:
    """The addresses of what the module defines; its code stays."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    features |= dict.fromkeys(("avx512bf16", "avxneconvert"), False)  # take subnormals for 0
    target = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features.flatten(), opt=1)
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    _kept.append(engine)
    names = [function.name for function in module.functions if not function.is_declaration]
    addresses = {name: engine.get_function_address(name) for name in names}
    return addresses | {glob.name: engine.get_global_value_address(glob.name) for glob in module.global_variables}


_kept: list[Any] = []
