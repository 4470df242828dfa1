"""What launches a GPU's kernels: a host function for each kernel, in machine code, ``int64_t (const int64_t *words)``,
which answers 0 or the error of a launch. It is called as kernels of the CPU are, whose entry answers nothing.

The function finds the number of blocks from the sizes (of a batch for each set of arguments), asks torch for the
current stream, and calls ``cuLaunchKernel`` once for each region, with the device's context current for the while: a
thread may be at another device, or at none.
What differs from process to process is in a table of words (`runtime.cuda.host`)."""

from __future__ import annotations

from collections.abc import Sequence

from bolide.inductor.codegen.analysis import Dependences
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.cuda.kernels import Launch
from bolide.inductor.codegen.function_values import FunctionValues
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import Target
from bolide.inductor.runtime.cuda.host import ERROR, FUNCTIONS, GET_CURRENT, TABLE
from bolide.symbolic import Expr

_TOO_MANY = 1 << 31  # blocks: the driver refuses so many


def host_text(kernel: Kernel, launches: Sequence[Launch], device: int, target: Target) -> str:
    """The module of a kernel's host function, ``@kernel``, and its table. `target`: the CPU's."""
    declarations: dict[str, str] = {}
    b = Builder(declarations, target)
    values, is_batch = FunctionValues(b, Dependences(kernel)), kernel.batch > 1
    if not is_batch:
        values.load_sizes(kernel)
    starts = b.emit(f"alloca [{kernel.batch} x i64], align 8", "ptr")
    params = _array(b, [starts, Value(b, "%args", "ptr", 1)]) if is_batch else _params(b, kernel.words)
    stream, before = _stream(b, device), _entered(b)
    answer = b.emit("alloca i32, align 4", "ptr")
    b.do(f"store i32 0, {answer}, align 4")
    for number, launch in enumerate(launches):
        blocks = _starts(b, kernel, launch, starts) if is_batch else values.scalar(_blocks(launch))
        run, after = b.new_label("run"), b.new_label("after")
        b.branch(b.compare("icmp sgt", blocks, 0), run, after)
        b.label(run)
        blocks = b.intrinsic("smin", blocks, b.const(_TOO_MANY, "i64"))
        _launch(
            b, number, b.convert("trunc", blocks, "i32"), launch.team * launch.teams_per_block, stream, params, answer
        )
        b.jump(after)
        b.label(after)
    _left(b, before)
    code = b.convert("zext", b.emit(f"load i32, {answer}, align 4", "i32"), "i64")
    b.do(f"ret {code}")
    body = "\n".join(b.lines)
    table = f"@{TABLE} = global [{FUNCTIONS + len(launches)} x i64] zeroinitializer, align 8"
    return "\n".join((table, *declarations.values(), f"define i64 @kernel(ptr %args) {{\nentry:\n{body}\n}}"))


def _blocks(launch: Launch) -> Expr:
    return launch.teams.ceildiv(launch.teams_per_block)


def _starts(b: Builder, kernel: Kernel, launch: Launch, starts: Value) -> Value:
    """Notes the first block of each set of a batch; gives the number of all blocks."""
    before, each, done = b.block, b.new_label("set"), b.new_label("sets")
    zero = b.const(0, "i64")
    b.jump(each)
    b.label(each)
    (place, next_place), (start, next_start) = b.phi("i64", 1, zero, before), b.phi("i64", 1, zero, before)
    b.do(f"store {start}, {b.emit(f'getelementptr i64, {starts}, {place}', 'ptr')}, align 8")
    values = FunctionValues(b, Dependences(kernel))
    for position, size in enumerate(kernel.sizes, kernel.batch * len(kernel.params)):
        word = b.emit(f"getelementptr i64, ptr %args, {place * len(kernel.sizes) + position}", "ptr")
        values.env[size], values.depth[size] = b.emit(f"load i64, {word}, align 8", "i64"), 0
    total, following = start + values.scalar(_blocks(launch)), place + 1
    b.close_phi(next_start, total, b.block)
    b.close_phi(next_place, following, b.block)
    b.branch(b.compare("icmp slt", following, kernel.batch), each, done)
    b.label(done)
    return total


def _word(b: Builder, place: int) -> Value:
    return b.emit(f"getelementptr i64, ptr @{TABLE}, i64 {place}", "ptr")


def _known(b: Builder, place: int) -> Value:
    """An address from the table."""
    return b.emit(f"load ptr, {_word(b, place)}, align 8", "ptr")


def _params(b: Builder, count: int) -> Value:
    """The array that a launch wants: where each argument is."""
    return _array(b, [b.emit(f"getelementptr i64, ptr %args, i64 {position}", "ptr") for position in range(count)])


def _array(b: Builder, addresses: Sequence[Value]) -> Value:
    array = b.emit(f"alloca [{max(len(addresses), 1)} x ptr], align 8", "ptr")
    for position, address in enumerate(addresses):
        place = b.emit(f"getelementptr ptr, {array}, i64 {position}", "ptr")
        b.do(f"store {address}, {place}, align 8")
    return array


def _stream(b: Builder, device: int) -> Value:
    """torch's current stream on the device."""
    place = b.emit("alloca ptr, align 8", "ptr")
    b.emit(f"call i32 {_known(b, 2).text}(i32 {device}, {place})", "i32")
    return b.emit(f"load ptr, {place}, align 8", "ptr")


def _launch(b: Builder, number: int, blocks: Value, threads: int, stream: Value, params: Value, answer: Value) -> None:
    """One launch; an error is noted, and becomes the answer."""
    function, launch = _known(b, FUNCTIONS + number), _known(b, 0)
    ones, block = "i32 1, i32 1", f"i32 {threads}, i32 1, i32 1"
    call = f"call i32 {launch.text}({function}, {blocks}, {ones}, {block}, i32 0, {stream}, {params}, ptr null)"
    code = b.emit(call, "i32")
    with b.when(b.compare("icmp ne", code, 0)):
        b.do(f"store {code}, {_known(b, ERROR)}, align 4")
        b.do(f"store {code}, {answer}, align 4")


def _entered(b: Builder) -> Value:
    """Makes the device's context current; gives the one that was, null if none."""
    place, own = b.emit("alloca ptr, align 8", "ptr"), _known(b, 3)
    b.do(f"store ptr null, {place}, align 8")
    b.emit(f"call i32 {_known(b, GET_CURRENT).text}({place})", "i32")
    before = b.emit(f"load ptr, {place}, align 8", "ptr")
    with b.when(b.compare("icmp ne", before, own)):
        b.emit(f"call i32 {_known(b, 1).text}({own})", "i32")
    return before


def _left(b: Builder, before: Value) -> None:
    """Makes the context current that was before, or none: torch would take it for the thread's device."""
    with b.when(b.compare("icmp ne", before, _known(b, 3))):
        b.emit(f"call i32 {_known(b, 1).text}({before})", "i32")
