"""The native driver: programs of words, functions in C, and plans that run as the readable driver runs them."""

from __future__ import annotations

import gc
import random
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.inductor.plan import Operator
from bolide.inductor.runtime.native import driver, linking, shims
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native.driver import _method, handle_offset
from bolide.inductor.runtime.native.linking import Label, Program, Surroundings, Written, unpacked
from bolide.inductor.runtime.native.program import Operand, PythonStep, Writer
from bolide.support.symbols import symbol_address
from bolide.symbolic import Expr
from tests.plan_tools import native_programs
from tests.thread_tools import together

HEADERS = ("generated/c_shim_cpu.h", "c/shim_cpu.h", "c/shim.h")


@pytest.fixture(autouse=True)
def programs() -> Iterator[list[Program]]:
    """Graphs have a native driver from their second call: the programs that are made."""
    with native_programs() as made:
        yield made


# ---- functions in C --------------------------------------------------------------------------------------------------


def declared(headers: Sequence[str] = HEADERS) -> dict[str, tuple[str, ...]]:
    """The functions in torch's headers, with LLVM's types of their parameters."""
    folder = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch"
    found = {}
    for header in headers:
        for name, parameters in re.findall(r"AOTITorchError\s+(\w+)\(([^)]*)\)", (folder / header).read_text()):
            texts = [re.sub(r"//.*", "", text) for text in parameters.split(",")]
            found[name] = tuple(_llvm(" ".join(text.split())) for text in texts if text.strip())
    return found


def _llvm(parameter: str) -> str:
    if "*" in parameter or parameter.startswith("AtenTensorHandle"):
        return "ptr"
    return {"int64_t": "i64", "int32_t": "i32", "double": "double"}.get(parameter.split()[0], "other")


def test_functions_in_c_have_the_parameters_of_torchs_headers() -> None:
    known, on_gpu = declared(), declared(["generated/c_shim_cuda.h"])
    assert known[shims.EMPTY.symbol] == shims.EMPTY.parameters
    assert known[shims.VIEW.symbol] == shims.VIEW.parameters
    for name in sorted(shims.GIVING | shims.FILLING):
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        shim, own = shims.shim_of(op), shims.shim_of(op, "cuda")  # none where torch is not built for GPUs
        assert shim or own or name.startswith("aten::_scaled_dot_product"), name
        if shim is not None:
            assert known[shim.symbol] == shim.parameters, name
            symbol = shim.symbol.replace("_cpu_", "_cuda_", 1)
            assert on_gpu.get(symbol, shim.parameters) == shim.parameters, name
            assert own in (None, shim._replace(symbol=symbol)), name
        if own is not None:
            assert on_gpu[own.symbol] == own.parameters, name


# ---- words -----------------------------------------------------------------------------------------------------------


def random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([Expr.var("s0", None, None), Expr.var("s1", None, None), Expr.const(rng.randint(-9, 9))])
    left, right = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    kind = rng.choice("+*-/%<>")
    if kind == "+":
        return left + right
    if kind == "*":
        return left * right
    if kind == "-":
        return left - right
    if kind == "<":
        return Expr.min(left, right)
    if kind == ">":
        return Expr.max(left, right)
    divisor = rng.choice([Expr.const(rng.choice([-7, -2, 3, 5])), Expr.var("s1", None, None) * 2 + 1])
    return left // divisor if kind == "/" else left % divisor


def test_words_are_computed_as_expressions_are() -> None:
    rng = random.Random(int(torch.randint(1 << 30, ())))
    offset = handle_offset()
    assert offset is not None
    for _ in range(60):
        exprs = [random_expr(rng, 4) for _ in range(5)]
        writer = Writer()
        inputs: list[Operand] = [(ops.WORD, writer.named_word("s0")), (ops.WORD, writer.named_word("s1"))]
        results = [(ops.WORD, writer.word(expr)) for expr in exprs]
        written = writer.finish(inputs, results, 0)
        packed = written.packed()
        assert packed is not None
        around = Surroundings((), (), lambda number: None, lambda values: None, offset)
        program = unpacked(memoryview(packed)).linked(around)
        run = _method().bind(program.address, program)
        for _ in range(5):
            values = {"s0": rng.randint(-50, 50), "s1": rng.randint(-50, 50)}
            assert run(list(values.values())) == tuple(expr.evaluate(values) for expr in exprs), exprs
        assert program.runs == 5


def test_a_kept_program_draws_seeds_for_gpus_without_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    offset, seeds = handle_offset(), torch.randint(1 << 40, (3,))
    assert offset is not None
    monkeypatch.setattr(linking, "draw", lambda gpu: lambda: (seeds[gpu].clone(),))
    writer, slots = Writer(), dict[int, int]()
    for gpu in (2, 0):
        slots[gpu] = writer.slot(f"seed{gpu}")
        writer.python(PythonStep(Label(linking.DRAW, gpu), [], [(ops.HANDLE, slots[gpu])]))
    packed = writer.finish([], [(ops.HANDLE, slots[gpu]) for gpu in (0, 2)], 0).packed()
    assert packed is not None
    around = Surroundings((), (), lambda number: pytest.fail("a step was asked for"), lambda values: None, offset)
    program = unpacked(memoryview(packed)).linked(around)
    for _ in range(3):
        assert _method().bind(program.address, program)([]) == (seeds[0], seeds[2])


# ---- whole plans -----------------------------------------------------------------------------------------------------


def pointwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.exp() * 0.5 + 1).relu()


def products(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.nn.functional.gelu(x @ w)
    return y, torch.addmm(y.sum(0), x, w, beta=0.5, alpha=2.0), torch.bmm(x[None], w[None]).sum(-1)


def calls_in_python(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.linalg.qr(x @ w)[1]
    return y.abs() + 1, torch.sort(x.sum(-1))[0], torch.fft.rfft(x.sum(0)).real


def lists(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, positions = torch.topk(x, 2, -1)
    return torch.cumsum(torch.cat([x @ w, (x * 2) @ w], 1), 1), values, positions, x.new_zeros(0, 3)


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin() @ w
    x.mul_(2)
    return y


@pytest.mark.parametrize("function", [pointwise, products, calls_in_python, lists, written])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_eagers(function: Callable[..., Any], dynamic: bool, programs: list[Program]) -> None:
    compiled = bolide.compile(function, dynamic=dynamic)
    sizes = ((6, 5, 4), (7, 5, 9), (3, 5, 4), (9, 5, 8)) if dynamic else ((6, 5, 4),)
    for rows, inner, columns in sizes * 3:
        x, w = torch.randn(rows, inner), torch.randn(inner, columns)
        mine, eagers = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine, w), function(eagers, w), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine, eagers)
    assert sum(program.runs for program in programs) > len(sizes)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.max_pool2d(self.norm(self.convolution(x)).relu(), 2)
        return self.linear(y.mean((2, 3)))


def test_training_is_eagers(programs: list[Program]) -> None:
    eager, mine = Network(), Network()
    mine.load_state_dict(eager.state_dict())
    compiled = bolide.compile(mine)
    for _ in range(5):
        x = torch.randn(4, 3, 8, 8)
        for model, call in ((eager, eager), (mine, compiled)):
            model.zero_grad()
            call(x).square().sum().backward()
        for one, other in zip(eager.parameters(), mine.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert [program.runs for program in programs] == [4, 4]


@pytest.mark.parametrize("bias", [True, False])
def test_training_of_lstm_layers_takes_no_step_in_python(
    bias: bool, monkeypatch: pytest.MonkeyPatch, programs: list[Program]
) -> None:
    finish = Writer.finish

    def alone(self: Writer, *args: Any) -> Written:
        for step in self.steps:
            step.function = not_called
        return finish(self, *args)

    def not_called(*args: object) -> None:
        raise AssertionError("a step in Python")

    monkeypatch.setattr(Writer, "finish", alone)
    eager, mine = (torch.nn.LSTM(5, 7, 2, bias=bias, bidirectional=True) for _ in range(2))
    mine.load_state_dict(eager.state_dict())
    compiled = bolide.compile(mine, dynamic=False)
    for length, batch in ((4, 3), (6, 2)) * 4:
        given = [torch.randn(length, batch, 5), torch.randn(4, batch, 7), torch.randn(4, batch, 7)]
        found = []
        for model, call in ((eager, eager), (mine, compiled)):
            x, *states = [tensor.clone().requires_grad_() for tensor in given]
            result, last = call(x, tuple(states))
            wanted = [result, *last][: 1 + length % 4]
            torch.cat([tensor.sin().flatten() for tensor in wanted]).sum().backward()
            found.append([result, *last, *(tensor.grad for tensor in (x, *states, *model.parameters()))])
            model.zero_grad()
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert [program.runs for program in programs] == [3] * 4


def test_an_operator_that_the_dispatcher_does_not_know_is_called_in_python(
    monkeypatch: pytest.MonkeyPatch, programs: list[Program]
) -> None:
    dispatch = Writer.dispatch

    def unknown(self: Writer, operator: Operator, *args: Any) -> None:
        dispatch(self, Operator("aten::no_such_operator", ""), *args)

    monkeypatch.setattr(Writer, "dispatch", unknown)
    eager = torch.nn.LSTM(3, 4)
    compiled = bolide.compile(eager, dynamic=False)
    for _ in range(3):
        x = torch.randn(5, 2, 3)
        found = [torch.autograd.grad(call(x)[0].sum(), list(eager.parameters())) for call in (eager, compiled)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert [program.runs for program in programs] == [2, 2]


def test_inputs_of_other_classes_take_the_readable_driver() -> None:
    class Labelled(torch.Tensor):
        pass

    compiled = bolide.compile(lambda x: x * 2 + 1, backend="inductor")
    for _ in range(4):
        x = torch.randn(5).as_subclass(Labelled)
        assert torch.equal(compiled(x).as_subclass(torch.Tensor), (x * 2 + 1).as_subclass(torch.Tensor))


@pytest.mark.parametrize("symbol", [shims.EMPTY.symbol, "aoti_torch_get_data_ptr"])
def test_the_readable_driver_stays_where_torch_lacks_a_function(
    symbol: str, monkeypatch: pytest.MonkeyPatch, programs: list[Program]
) -> None:
    handle_offset.cache_clear()
    monkeypatch.setattr(driver, "symbol_address", lambda name: None if name == symbol else symbol_address(name))
    compiled = bolide.compile(lambda x: x * 2 + 1)
    try:
        for _ in range(4):
            x = torch.randn(5)
            assert torch.equal(compiled(x), x * 2 + 1)
    finally:
        handle_offset.cache_clear()
    assert not programs


def test_errors_of_calls_are_those_of_the_operation() -> None:
    compiled = bolide.compile(lambda x: torch.linalg.cholesky(x) + 1)
    good = torch.eye(3)
    for _ in range(4):
        assert torch.equal(compiled(good), torch.linalg.cholesky(good) + 1)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-good)
    assert torch.equal(compiled(good), torch.linalg.cholesky(good) + 1)


def test_nothing_is_kept_and_nothing_is_lost(programs: list[Program]) -> None:
    compiled = bolide.compile(lambda x, w: torch.cat([x @ w, x @ w + 1]).relu())
    w = torch.randn(5, 5)
    for _ in range(4):
        compiled(torch.randn(4, 5), w)
    x = torch.randn(4, 5)
    references, died = sys.getrefcount(w), weakref.ref(x)
    result = compiled(x, w)
    expected = torch.cat([x @ w, x @ w + 1]).relu()
    del x
    gc.collect()
    assert died() is None and sys.getrefcount(w) == references
    torch.testing.assert_close(result, expected)
    gone = weakref.ref(result)
    del result
    assert gone() is None and programs[0].runs == 4


def test_other_threads_run_meanwhile() -> None:
    """The interpreter lock is released while a graph runs."""
    compiled = bolide.compile(lambda x: (x @ x).relu() @ x)
    x = torch.randn(700, 700)
    for _ in range(3):
        compiled(x)
    done = threading.Event()
    seen = 0

    def count() -> None:
        nonlocal seen
        while not done.is_set():
            seen += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(5):
        compiled(x)
    done.set()
    thread.join()
    assert seen > 5


def test_threads_share_a_program() -> None:
    compiled = bolide.compile(lambda x, w: (x @ w).relu().sum(-1))
    w = torch.randn(3000, 20)
    for _ in range(3):
        compiled(torch.randn(8, 3000), w)

    def work(_: int) -> None:
        for _ in range(200):
            x = torch.randn(8, 3000)
            torch.testing.assert_close(compiled(x, w), (x @ w).relu().sum(-1), rtol=1e-5, atol=1e-4)

    together(work, 4)
