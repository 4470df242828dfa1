"""How a kernel's regions are spread over threads: the split of its body into regions, and its entry function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bolide.inductor.codegen.analysis import Dependences, cost, lanes_for
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.function_values import FunctionValues
from bolide.inductor.ir.definitions import volume
from bolide.inductor.ir.loops import Axis, Kernel, Loop, Stmt
from bolide.inductor.ir.walks import bound_nest
from bolide.inductor.machine import Machine, Target
from bolide.symbolic import Expr


@dataclass(frozen=True, slots=True)
class Region:
    """Top-level statements that become one function: the body of a nest of parallel `axes` that are bound to
    threads, or to a grid; or a `vector` loop that threads share (then body is that loop alone); or code for one thread,
    or one team."""

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    vector: Loop | None = None

    @property
    def is_spread(self) -> bool:
        """Whether it may run on several threads."""
        return bool(self.axes) or self.vector is not None


def regions_of(body: Sequence[Stmt], name: str) -> list[Region]:
    """The regions of the kernel `name`, in order."""
    regions: list[Region] = []
    for statement in body:
        label = f"{name}.{len(regions)}"
        nest = bound_nest(statement)
        if nest and nest[0].axis.kind == "vector" and nest[0].axis.bound == "threads":
            regions.append(Region(label, (), (statement,), nest[0]))
        elif nest:
            regions.append(Region(label, tuple([loop.axis for loop in nest]), nest[-1].body))
        elif regions and not regions[-1].is_spread:
            regions[-1] = replace(regions[-1], body=(*regions[-1].body, statement))
        else:
            regions.append(Region(label, (), (statement,)))
    return regions


def _elements(body: Sequence[Stmt], known: frozenset[str], machine: Machine) -> Expr:
    """Iterations of the innermost loops, all in all; `known` are the kernel's sizes."""
    total = Expr.const(0)
    for statement in body:
        if isinstance(statement, Loop):
            extent = statement.axis.extent
            if not extent.free_vars <= known:
                extent = Expr.const(extent.bounds()[1] or machine.unknown_extent)
            total = total + extent * _elements(statement.body, known, machine)
    return total if total.terms or total.offset else Expr.const(1)


def _work(region: Region, kernel: Kernel, machine: Machine) -> Expr:
    """What running a region takes, in the unit of `Machine.grain`."""
    inside = _elements(region.body, frozenset(kernel.sizes), machine)
    return inside * (1 + cost(region.body) // 8) * volume(axis.extent for axis in region.axes)


def most_work(kernel: Kernel, machine: Machine) -> int | None:
    """What running a kernel takes at most, in the unit of `Machine.grain`; None where sizes decide."""
    works = [_work(region, kernel, machine) for region in regions_of(kernel.body, kernel.name)]
    return sum(works, Expr.const(0)).bounds()[1]


def entry(kernel: Kernel, name: str, regions: Sequence[Region], machine: Machine, declarations: dict[str, str]) -> str:
    """The text of the function that a launch calls, and of what it hands to the threads."""
    target, grain = machine.target, kernel.grain or machine.grain
    b = Builder(declarations, target)
    values = FunctionValues(b, Dependences(kernel))
    values.load_sizes(kernel)
    shares = []
    for region in regions:
        work = _work(region, kernel, machine)
        total = values.scalar(volume(axis.extent for axis in region.axes))
        if region.vector is not None:
            total = values.scalar(region.vector.axis.extent.ceildiv(lanes_for(region.vector, machine)))
        if not region.is_spread or (work.bounds()[1] or 2 * grain) < 2 * grain:
            _call(b, region.name, total)
        else:
            _spread(values, region.name, total, work, grain)
            shares.append(_share(region.name, target))
    b.do("ret void")
    text = "\n".join(b.body())
    return "\n".join((*shares, f"define void @{name}(ptr %args) {target.attributes} {{\n{text}\n}}"))


def _call(b: Builder, region: str, total: Value) -> None:
    """Run a region's whole range on this thread."""
    call = f"call void @{region}(ptr %args, i64 0, {total})"
    if total.number is not None:
        if total.number:
            b.do(call)
        return
    run, after = b.new_label("run"), b.new_label("after")
    b.branch(b.compare("icmp sgt", total, 0), run, after)
    b.label(run)
    b.do(call)
    b.jump(after)
    b.label(after)


def _spread(values: FunctionValues, region: str, total: Value, work: Expr, grain: int) -> None:
    """Run a region on as many threads as its work is worth, at most torch's number.

    All of torch's threads enter, whatever the work is worth, and those that it is not worth leave at once: libgomp ends
    the threads that a smaller team does not need, and starts new ones for the next larger team, which is ATen's next
    matrix product (100 µs and more with 16 threads)."""
    b = values.b
    for text in ("void @GOMP_parallel(ptr, ptr, i32, i32)", "i32 @omp_get_thread_num()", "i32 @omp_get_num_threads()"):
        b.declarations.setdefault(text[text.index("@") + 1 : text.index("(")], f"declare {text}")
    team = b.call("_ZN2at15get_num_threadsEv", (), "i32")
    worth = b.binary("sdiv", values.scalar(work), b.const(grain, "i64"))
    threads = b.intrinsic("smin", b.intrinsic("smin", worth, b.convert("sext", team, "i64")), total)
    many, one, after = b.new_label("many"), b.new_label("one"), b.new_label("after")
    b.branch(b.compare("icmp sgt", threads, 1), many, one)
    b.label(many)
    closure = b.emit("alloca { ptr, i64, i64 }, align 8", "ptr")
    b.do(f"store ptr %args, {closure}, align 8")
    for place, value in enumerate((total, threads), 1):
        word = b.emit(f"getelementptr i64, {closure}, i64 {place}", "ptr")
        b.do(f"store {value}, {word}, align 8")
    b.do(f"call void @GOMP_parallel(ptr @{region}.share, {closure}, {team}, i32 0)")
    b.jump(after)
    b.label(one)
    _call(b, region, total)
    b.jump(after)
    b.label(after)


def _share(region: str, target: Target) -> str:
    """The function that each thread of a team runs: an even part of the range, if it is one of those that work. A team
    may be smaller than was asked for."""
    return f"""define internal void @{region}.share(ptr %closure) {target.attributes} {{
entry:
  %args = load ptr, ptr %closure, align 8
  %total.at = getelementptr i64, ptr %closure, i64 1
  %total = load i64, ptr %total.at, align 8
  %wanted.at = getelementptr i64, ptr %closure, i64 2
  %wanted = load i64, ptr %wanted.at, align 8
  %thread32 = call i32 @omp_get_thread_num()
  %team32 = call i32 @omp_get_num_threads()
  %thread = sext i32 %thread32 to i64
  %team = sext i32 %team32 to i64
  %fewer = icmp slt i64 %team, %wanted
  %threads = select i1 %fewer, i64 %team, i64 %wanted
  %next = add i64 %thread, 1
  %low = mul i64 %total, %thread
  %begin = sdiv i64 %low, %threads
  %high = mul i64 %total, %next
  %end = sdiv i64 %high, %threads
  %some = icmp slt i64 %thread, %threads
  br i1 %some, label %run, label %done
run:
  call void @{region}(ptr %args, i64 %begin, i64 %end)
  br label %done
done:
  ret void
}}"""
