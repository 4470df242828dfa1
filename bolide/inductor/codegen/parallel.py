"""How a kernel's regions are spread over threads: the split of its body into regions, and its entry function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bolide.inductor.codegen.analysis import Dependences, cost, inputs_of, lanes_for, postorder, walk
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.region import Region
from bolide.inductor.codegen.target import Target
from bolide.inductor.ir.loops import Axis, Kernel, Loop, Stmt
from bolide.symbolic import Expr

#: Vector instructions' worth of work (elements × cost) that a thread must have before a second one is worth its start,
# some 5 µs.
GRAIN = 1 << 16
#: What the extent of a loop is taken for when it depends on other axes and has no bound.
UNKNOWN = 64


@dataclass(frozen=True, slots=True)
class Group:
    """Top-level statements that become one region: the body of a nest of parallel `axes`; or a parallel `vector` loop
    (then body is that loop alone); or serial code.
    """

    axes: tuple[Axis, ...]
    vector: Loop | None
    body: tuple[Stmt, ...]

    @property
    def loaded(self) -> set[str]:
        """Buffers read in it."""
        roots = [node for statement in walk(self.body) for node in inputs_of(statement)]
        return {node.arg.buffer for node in postorder(roots, lambda node: False) if node.op == "load"}


def groups(body: Sequence[Stmt]) -> list[Group]:
    """The regions of a kernel, in order."""
    result: list[Group] = []
    serial: list[Stmt] = []

    def flush() -> None:
        if serial:
            result.append(Group((), None, tuple(serial)))
            serial.clear()

    for statement in body:
        if isinstance(statement, Loop) and statement.axis.kind == "parallel":
            flush()
            result.append(_nest(statement))
        elif isinstance(statement, Loop) and statement.axis.kind == "vector":
            flush()
            result.append(Group((), statement, (statement,)))
        else:
            serial.append(statement)
    flush()
    return result


def _nest(loop: Loop) -> Group:
    """The perfect nest of parallel loops from here inwards, as long as extents do not depend on its own axes."""
    axes = [loop.axis]
    body = loop.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].axis.kind == "parallel":
        inner = body[0]
        if not inner.axis.extent.free_vars.isdisjoint(axis.name for axis in axes):
            break
        axes.append(inner.axis)
        body = inner.body
    return Group(tuple(axes), None, body)


def _elements(statements: Iterable[Stmt], known: frozenset[str]) -> Expr:
    """Iterations of the innermost loops, all in all; `known` are the kernel's sizes."""
    total = Expr.const(0)
    for statement in statements:
        if isinstance(statement, Loop):
            extent = statement.axis.extent
            if not extent.free_vars <= known:
                extent = Expr.const(extent.bounds()[1] or UNKNOWN)
            total = total + extent * _elements(statement.body, known)
    return total if total.terms or total.offset else Expr.const(1)


def entry(
    kernel: Kernel, name: str, regions: Sequence[tuple[str, Group]], target: Target, declarations: dict[str, str]
) -> str:
    """The text of the function that a launch calls, and of what it hands to the threads."""
    b = Builder(declarations, target)
    r = Region(b, Dependences(kernel))
    for position, size in enumerate(kernel.sizes, len(kernel.params)):
        word = b.emit(f"getelementptr i64, ptr %args, i64 {position}", "ptr")
        r.env[size], r.depth[size] = b.emit(f"load i64, {word}", "i64"), 0
    shares = []
    for region_name, group in regions:
        total = _total(r, group, target)
        weight = 1 + cost(group.body) // 8
        work = _elements(group.body, frozenset(kernel.sizes)) * weight
        for axis in group.axes:
            work = work * axis.extent
        if not (group.axes or group.vector) or (work.bounds()[1] or 2 * GRAIN) < 2 * GRAIN:
            _call(b, region_name, total)
        else:
            _spread(r, region_name, total, work)
            shares.append(_share(region_name, target))
    b.do("ret void")
    text = "\n".join(b.lines)
    return "\n".join((*shares, f"define void @{name}(ptr %args) {target.attributes} {{\nentry:\n{text}\n}}"))


def _total(r: Region, group: Group, target: Target) -> Value:
    """The length of a region's range: points of the parallel nest, or vectors of the vector loop."""
    if group.vector is not None:
        return r.scalar(group.vector.axis.extent.ceildiv(lanes_for(group.vector, target.vector_bits)))
    total = Expr.const(1)
    for axis in group.axes:
        total = total * axis.extent
    return r.scalar(total)


def _call(b: Builder, region: str, total: Value) -> None:
    """Run a region's whole range on this thread."""
    if total.text.isdigit():
        if int(total.text):
            b.do(f"call void @{region}(ptr %args, i64 0, {total})")
        return
    run, after = b.new_label("run"), b.new_label("after")
    b.branch(b.compare("icmp sgt", total, 0), run, after)
    b.label(run)
    b.do(f"call void @{region}(ptr %args, i64 0, {total})")
    b.jump(after)
    b.label(after)


def _spread(r: Region, region: str, total: Value, work: Expr) -> None:
    """Run a region on as many threads as its work is worth, at most torch's number."""
    b = r.b
    for text in ("void @GOMP_parallel(ptr, ptr, i32, i32)", "i32 @omp_get_thread_num()", "i32 @omp_get_num_threads()"):
        b.declarations.setdefault(text[text.index("@") + 1 : text.index("(")], f"declare {text}")
    most = b.convert("sext", b.call("_ZN2at15get_num_threadsEv", (), "i32"), "i64")
    worth = b.binary("sdiv", r.scalar(work), b.const(GRAIN, "i64"))
    threads = b.intrinsic("smin", b.intrinsic("smin", worth, most), total)
    many, one, after = b.new_label("many"), b.new_label("one"), b.new_label("after")
    b.branch(b.compare("icmp sgt", threads, 1), many, one)
    b.label(many)
    closure = b.emit("alloca { ptr, i64 }, align 8", "ptr")
    b.do(f"store ptr %args, {closure}, align 8")
    second = b.emit(f"getelementptr i64, {closure}, i64 1", "ptr")
    b.do(f"store {total}, {second}, align 8")
    b.do(f"call void @GOMP_parallel(ptr @{region}.share, {closure}, {b.convert('trunc', threads, 'i32')}, i32 0)")
    b.jump(after)
    b.label(one)
    _call(b, region, total)
    b.jump(after)
    b.label(after)


def _share(region: str, target: Target) -> str:
    """The function that each thread runs: an even part of the range."""
    return f"""define internal void @{region}.share(ptr %closure) {target.attributes} {{
entry:
  %args = load ptr, ptr %closure, align 8
  %word = getelementptr i64, ptr %closure, i64 1
  %total = load i64, ptr %word, align 8
  %thread32 = call i32 @omp_get_thread_num()
  %threads32 = call i32 @omp_get_num_threads()
  %thread = sext i32 %thread32 to i64
  %threads = sext i32 %threads32 to i64
  %next = add i64 %thread, 1
  %low = mul i64 %total, %thread
  %begin = sdiv i64 %low, %threads
  %high = mul i64 %total, %next
  %end = sdiv i64 %high, %threads
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %run, label %done
run:
  call void @{region}(ptr %args, i64 %begin, i64 %end)
  br label %done
done:
  ret void
}}"""
