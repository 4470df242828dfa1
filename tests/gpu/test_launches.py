"""Launches that become one: which do, in what order, and that what they make is right."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gpu_emulated
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ir" / "loops"))
from gpu_emulator import launched
from test_gpu_hosts import CUDA, STREAM, Driver, Launched

import bolide
from bolide.inductor import CompiledGraph
from bolide.inductor.codegen.cuda import Launch as Entry
from bolide.inductor.codegen.cuda import gpu_module, ptx_of
from bolide.inductor.ir.interpret import interpret
from bolide.inductor.ir.loops import Axis, Flag, Init, Kernel, Loop, Node, Stmt, Update
from bolide.inductor.ir.rewrites import ANY, of_any_extent
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import HOPPER
from bolide.inductor.plan import Alloc, Copy, Launch, Plan, Ref, Reuse, Step, TensorInput, TensorType, View, all_steps
from bolide.inductor.plan.batches import Batcher, without_unused
from bolide.inductor.plan.interpret import interpret as run_plan
from bolide.inductor.plan.verify import verify as verify_plan
from bolide.symbolic import Expr
from tests.ir.kernel_tools import acc, const, f32, i64, load, op, param, store, var
from tests.plan_tools import plans

CPU = torch.device("cpu")


def pointwise(extent: int) -> Kernel:
    """y = 2 · x + z, of so many elements."""
    i = var("i", extent)
    params = (param("y", extent, role="out"), param("x", extent), param("z", extent))
    value = op("add", op("mul", load("x", i), const(2.0)), load("z", i))
    return Kernel(
        "k0_pointwise", params, (Loop(Axis("i", Expr.const(extent), "vector", "grid"), (store("y", i, value),)),)
    )


def sums(rows: int, length: int) -> Kernel:
    """The sums of rows, each by a warp."""
    i, r = var("i", rows), var("r", length)
    inside: tuple[Stmt, ...] = (
        Init("s", "sum", f32),
        Loop(Axis("r", Expr.const(length), "reduce_vector", "team"), (Update("s", load("x", i * length + r)),)),
        store("y", i, acc("s", f32)),
    )
    params = (param("y", rows, role="out"), param("x", rows * length))
    return Kernel("k0_sums", params, (Loop(Axis("i", Expr.const(rows), "parallel", "grid"), inside),), team=32)


@pytest.mark.parametrize("make", [pointwise, lambda extent: sums(extent, 70)])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
def test_each_set_is_done(make: Callable[[int], Kernel], runs: bool, shift: int, seed: int) -> None:
    """Sets of many sizes, some of them not aligned, with threads that take turns forwards and backwards."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    extents = [rng.randint(1, 40) * 16 if runs else rng.randint(1, 40) * 16 + rng.randint(1, 15) for _ in range(5)]
    kernels = [of_any_extent(make(extent)) for extent in extents]
    common = kernels[0][0]
    assert common.sizes == (ANY,) and all(kernel.body == common.body for kernel, _ in kernels)
    verify(common)
    many = replace(common, batch=len(extents))
    ptx_of(gpu_module([many], HOPPER)[0], HOPPER.target)
    for step in (1, -1):
        buffers = []
        for extent in extents:
            sized = make(extent)
            numels = [buffer.numel.value for buffer in sized.params]
            buffers.append({p.name: torch.randn(n + shift)[shift:] for p, n in zip(sized.params, numels)})
        wanted = [{name: tensor.clone() for name, tensor in some.items()} for some in buffers]
        for extent, some in zip(extents, wanted):
            interpret(make(extent), some)
        words = [some[p.name].data_ptr() for some in buffers for p in common.params]
        launched(many, [*words, *(sizes[0].value for _, sizes in kernels)], step)
        torch.testing.assert_close(buffers, wanted)


def test_sets_without_arguments_have_code() -> None:
    """What only asserts: PTX has no empty arrays."""
    i = var("i", 3)
    check = store("bad", 0, op("lt", Node.make("index", i64, (), i), const(9, i64), dtype=torch.bool), mode="any")
    kernel = Kernel("k0_check", (), (Loop(Axis("i", Expr.const(3), "vector", "grid"), (check,)),), batch=2)
    kernel = replace(kernel, flags=(Flag("bad", "bad"),))
    verify(kernel)
    code = ptx_of(gpu_module([kernel], HOPPER)[0], HOPPER.target)
    assert "[0]" not in code and "k0_0_param_0[16]" in code and "k0_0_param_1" not in code


def test_extents_are_as_they_are_where_places_depend_on_them() -> None:
    """Of what goes backwards, or is read from both ends, no other extent has the same places."""
    i = var("i", 64)
    for place in (63 - i, i * 2 % 64):
        axis = Axis("i", Expr.const(64), "vector", "grid")
        kernel = Kernel(
            "k0_other",
            (param("y", 64, role="out"), param("x", 64)),
            (Loop(axis, (store("y", i, load("x", place)),)),),
        )
        assert of_any_extent(kernel) == (kernel, ())


def random_plan(rng: random.Random) -> Plan:
    """Launches of two kernels, with tensors that are made, and written again in the memory of others that are read no
    more, views of them, and copies, at which other launches begin."""
    kernels = (pointwise(32), pointwise(48))
    inputs = [(f"x{n}", 32 if n % 2 else 48) for n in range(6)]
    given = tuple([TensorInput(name, _type(length)) for name, length in (*inputs, ("copied", 32))])
    steps: list[Step] = []
    known = list(inputs)
    views: dict[str, list[str]] = {}  # the names of the same memory, by each of them
    for n in range(rng.randint(2, 24)):
        length = rng.choice((32, 48))
        if rng.random() < 0.2:
            name, length = rng.choice(known)
            views.setdefault(name, [name]).append(f"v{n}")
            views[f"v{n}"] = views[name]
            steps.append(View(f"v{n}", name, _type(length), Expr.const(0)))
            known.append((f"v{n}", length))
        if rng.random() < 0.2:
            steps.append(Copy("copied", rng.choice([name for name, other in known if other == 32])))
        reads = [rng.choice([name for name, other in known if other == length]) for _ in range(2)]
        name = f"t{n}"
        lost = rng.choice([*reads, None])
        gone = [] if lost is None else views.get(lost, [lost])
        if gone and len([other for _, other in known if other == length]) > 1 + len(gone):
            steps.append(Reuse(name, gone[0]))
            known = [each for each in known if each[0] not in gone]
        else:
            steps.append(Alloc(name, _type(length)))
        known.append((name, length))
        steps.append(Launch(length == 48, (name, *reads)))
    return Plan(given, (), kernels, tuple(steps), tuple([Ref(name) for name, _ in known if name.startswith("t")]))


def _type(length: int) -> TensorType:
    return TensorType(torch.float32, CPU, (Expr.const(length),), (Expr.const(1),))


def test_plans_give_the_same_with_batches(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    fewer = 0
    for _ in range(40):
        plan = random_plan(rng)
        kernels = list(plan.kernels)
        results = {result.name for result in plan.results if isinstance(result, Ref)}
        batcher = Batcher(kernels, lambda kernel: True)
        steps = batcher.batched(plan.steps, results, ())
        block, places = without_unused(replace(plan.block, steps=tuple(steps)), kernels)
        batched = Plan(plan.inputs, (), tuple([kernels[place] for place in places]), block.steps, plan.results)
        verify_plan(batched)
        tensors = [torch.randn(kind.type.shape[0].value) for kind in plan.inputs if isinstance(kind, TensorInput)]
        first, second = ([tensor.clone() for tensor in tensors] for _ in range(2))
        torch.testing.assert_close(run_plan(batched, second), run_plan(plan, first))
        torch.testing.assert_close(second, first)
        fewer += len(batched.steps) < len(plan.steps)
    assert fewer


@pytest.mark.parametrize("length, counts", [(1 << 10, [2, 2]), (1 << 19, [1, 1, 1, 1])])
def test_memory_is_not_taken_much_earlier(length: int, counts: list[int]) -> None:
    """Small tensors are made together, large ones that are needed for a while only one after the other."""
    steps = [
        *(Alloc("t0", _type(length)), Launch(0, ("t0", "x0", "x0")), Alloc("y0", _type(length))),
        *(Launch(0, ("y0", "t0", "x0")), Alloc("t1", _type(length)), Launch(0, ("t1", "x1", "x1"))),
        *(Alloc("y1", _type(length)), Launch(0, ("y1", "t1", "x1"))),
    ]
    kernels = [pointwise(length)]
    batched = Batcher(kernels, lambda kernel: True).batched(steps, {"y0", "y1"}, ())
    assert [kernels[step.kernel].batch for step in batched if isinstance(step, Launch)] == counts


def test_a_host_function_finds_the_blocks_of_each_set() -> None:
    """None of the sets without elements; and one launch for each region."""
    rows = Expr.var("s0", 0)
    params = (param("out", rows, role="out"), param("x", rows * 8))
    kernel = Kernel("k0", params, (), ("s0",), device=CUDA, batch=3)
    driver = Driver(words=0)
    seen: list[tuple[list[int], list[int]]] = []

    def note(places: Sequence[int]) -> None:
        first, words = ((ctypes.c_int64 * count).from_address(places[at]) for at, count in ((0, 3), (1, 9)))
        seen.append(([*first], [*words]))

    driver.noting = note
    words = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 9, 0, 4]
    driver.run(kernel, [Entry("k0_0", rows, 32, 4), Entry("k0_1", Expr.const(1), 256, 1)], *words)
    assert driver.launched == [Launched(100, 4, 128, STREAM, ()), Launched(101, 3, 256, STREAM, ())]
    assert seen == [([0, 3, 3], words), ([0, 1, 2], words)]


# ---- programs --------------------------------------------------------------------------------------------------------

SHAPES = ((8, 8), (8,), (16, 8), (16,), (5, 7), (3,), (2, 8))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompiledGraph]]:
    """The graphs that are compiled for a GPU that this machine plays."""
    gpu_emulated.emulate(monkeypatch.setattr)
    bolide.reset()
    with plans() as found:
        yield found
    bolide.reset()


def launches(graph: CompiledGraph) -> list[int]:
    """How many sets each launch does."""
    plan = graph.plan
    return [plan.kernels[step.kernel].batch for step in all_steps(plan.steps) if isinstance(step, Launch)]


def test_a_step_of_an_optimizer_is_a_launch_for_each_kind(gpu: list[CompiledGraph]) -> None:
    """One of what can be taken 16 elements at a time, one of the rest; each has one kernel."""

    def step(gradients, parameters, moments, squares):
        torch._foreach_lerp_(moments, gradients, 0.1)
        torch._foreach_mul_(squares, 0.99)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
        torch._foreach_addcdiv_(parameters, moments, torch._foreach_add(torch._foreach_sqrt(squares), 1e-8), -0.1)

    given = [[torch.randn(shape).abs() for shape in SHAPES] for _ in range(4)]
    wanted = [[x.clone() for x in some] for some in given]
    compiled = bolide.compile(step)
    for _ in range(3):
        step(*wanted)
        compiled(*given)
        torch.testing.assert_close(given, wanted)
    (graph,) = gpu
    assert sorted(launches(graph)) == [3, 4] and len(graph.plan.kernels) == 2


def test_gradients_are_clipped_in_few_launches(gpu: list[CompiledGraph]) -> None:
    def clipped(gradients):
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        scale = (1 / (total + 1e-6)).clamp(max=1.0)
        return [g * scale for g in gradients]

    gradients = [torch.randn(shape) for shape in SHAPES * 3]
    torch.testing.assert_close(bolide.compile(clipped)(gradients), clipped(gradients))
    assert len(launches(gpu[0])) < len(gradients) < sum(launches(gpu[0]))


def test_what_needs_another_one_comes_behind_it(gpu: list[CompiledGraph]) -> None:
    def program(x, y):
        for _ in range(3):
            x = (x.softmax(-1) @ x).sin()
        return x, y.softmax(-1), y.exp().cumsum(0).softmax(-1)

    x, y = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(bolide.compile(program)(x, y), program(x, y))


def test_sizes_are_symbolic(gpu: list[CompiledGraph]) -> None:
    """Kernels for all sizes share launches, each set with its own."""

    def program(xs):
        return [x.sin() + 1 for x in xs]

    compiled = bolide.compile(program, dynamic=True)
    for length in (5, 9):
        xs = [torch.randn(length + n) for n in range(3)]
        torch.testing.assert_close(compiled(xs), program(xs))
    assert any(count > 1 for graph in gpu for count in launches(graph))
