"""The functions that are written out for machines without a library: their errors, swept over bit patterns, their
special values against eager, and that LLVM makes code for GPUs of them."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_emulator import named_here

from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.functions import DOUBLE, FLOAT, inline_function
from bolide.inductor.codegen.math32 import erf_plus_1, exp_term
from bolide.inductor.codegen.math_calls import MATH_CALLS
from bolide.inductor.machine import HOPPER, Target, host_target
from bolide.support.engine import load

SEED = int(os.environ["BOLIDE_TEST_SEED"])
BINARY = ("pow", "atan2", "hypot", "fmod", "nextafter")
#: Largest errors in units in the last place; 1 unless named.
FLOAT_BOUNDS = {"exp": 1.1, "expm1": 1.6, "exp2": 1.25, "tanh": 1.7, "sigmoid": 2.8, "erf": 1.1, "sin": 1.65}
FLOAT_BOUNDS |= {"cos": 1.65, "log2": 1.1, "log10": 1.1}
DOUBLE_BOUNDS = {"acos": 1.2, "acosh": 2.2, "asin": 1.7, "asinh": 2.1, "atan": 1.6, "atan2": 1.6, "atanh": 1.8}
DOUBLE_BOUNDS |= {"cosh": 1.6, "erf": 1.1, "erfc": 3.6, "expm1": 1.2, "hypot": 1.05, "log2": 1.2, "pow": 1.25}
DOUBLE_BOUNDS |= {"sigmoid": 2.6, "sinh": 2.3, "tan": 2.4, "tanh": 1.7}
BOUNDS = {"float": FLOAT_BOUNDS, "double": DOUBLE_BOUNDS}
SPECIAL = (
    *(
        0.0,
        1.0,
        0.5,
        2.0,
        3.0,
        math.inf,
        1e-45,
        1e-38,
        3.4e38,
        5e-324,
        1e-308,
        1.7e308,
        88.72,
        89.5,
        103.97,
        104.0,
        87.4,
    ),
    *(128.0, 149.5, 150.5, 709.7, 710.5, 745.2, 746.0, 1023.5, 1075.0, 4503599627370497.0, 1e22, 2.5),
)


def text_of(op: str, kind: str, entry: str, target: Target) -> str:
    """A function that applies `op` to the elements of arrays, in LLVM's text."""
    own = {"erf_plus_1": erf_plus_1, "exp_term": exp_term}
    function = own[op] if op in own else inline_function(op, kind)
    assert function is not None
    declarations: dict[str, str] = {}
    b = Builder(declarations, target)
    n = Value(b, "%n", "i64", 1)
    b.jump("loop")
    b.label("loop")
    i, ticket = b.phi("i64", 1, b.const(0, "i64"), "entry")
    operands = []
    for name in ("%x", "%y")[: 2 if op in BINARY else 1]:
        place = b.emit(f"getelementptr {kind}, ptr {name}, {i}", "ptr")
        operands.append(b.emit(f"load {kind}, {place}", kind))
    result = function(*operands)
    place = b.emit(f"getelementptr {kind}, ptr %z, {i}", "ptr")
    b.do(f"store {result}, {place}")
    following = i + 1
    b.close_phi(ticket, following, b.block)
    b.branch(b.compare("icmp slt", following, n), "loop", "end")
    b.label("end")
    lines = [f"define {entry}(ptr %x, ptr %y, ptr %z, i64 %n) {{", "entry:", *b.lines, "  ret void", "}"]
    return "\n".join((*declarations.values(), *lines)) + "\n"


@functools.cache
def compiled(op: str, kind: str) -> Callable[..., torch.Tensor]:
    """`op` of tensors."""
    host = host_target()
    plain = replace(HOPPER.target, cpu=host.cpu, features=host.features)  # here 2^x is the C library's
    library = load(named_here(text_of(op, kind, "void @f", plain)), ["f"], host.cpu, host.features)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(library.addresses["f"])

    def apply(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        z = torch.empty_like(x)
        assert library
        call(x.data_ptr(), 0 if y is None else y.data_ptr(), z.data_ptr(), x.numel())
        return z

    return apply


def spread(kind: str, step: int, seed: int) -> torch.Tensor:
    """Numbers of all bit patterns, and as many of usual size."""
    torch.manual_seed(seed)
    if kind == "float":
        bits = torch.arange(seed % step, 1 << 32, step) - (1 << 31)
        x = bits.to(torch.int32).view(torch.float32)
        return torch.cat([x, torch.randn(1 << 16) * 3])
    x = torch.randint(-(2**63), 2**63 - 1, (1 << 16,)).view(torch.float64)
    usual = [torch.randn(1 << 16, dtype=torch.float64) * size for size in (0.3, 1, 10, 300)]
    return torch.cat([x, *usual])


NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
NUMPY |= {"atanh": "arctanh", "pow": "power", "atan2": "arctan2"}


def exact(op: str, kind: str, *args: torch.Tensor) -> np.ndarray:
    """The result with more digits than `kind` has: of float32 by torch in float64, else in the processor's 80 bits."""
    if kind == "float" and op != "nextafter":
        return getattr(torch, op)(*[arg.double() for arg in args]).numpy().astype(np.longdouble)
    with np.errstate(all="ignore"):
        wide = [arg.numpy().astype(np.longdouble) for arg in args]
        if op == "nextafter":
            return getattr(torch, op)(*args).numpy().astype(np.longdouble)
        if op == "sigmoid":
            return 1 / (1 + np.exp(-wide[0]))
        return getattr(np, NUMPY.get(op, op))(*wide)


def errors(result: torch.Tensor, want: np.ndarray) -> np.ndarray:
    """In units in the last place; infinite where one is NaN or infinite and the other is not."""
    smallest, digits = (-149, 24) if result.dtype == torch.float32 else (-1074, 53)
    got = result.numpy().astype(np.longdouble)
    with np.errstate(all="ignore"):
        rounded = want.astype(result.numpy().dtype).astype(np.longdouble)
        exponent = np.frexp(np.abs(want))[1]
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent - digits, smallest))
        found = np.where(np.isfinite(got) & np.isfinite(rounded), np.abs(got - want) / unit, np.inf)
    return np.where((got == rounded) | (np.isnan(got) & np.isnan(rounded)), 0.0, found)


def check(op: str, kind: str, args: list[torch.Tensor], bound: float) -> float:
    result = compiled(op, kind)(*args)
    error = errors(result, exact(op, kind, *args))
    worst = int(error.argmax())
    given = ", ".join(repr(arg[worst].item()) for arg in args)
    assert error[worst] <= bound, f"seed {SEED}: {op}({given}) = {result[worst].item()!r}, {error[worst]:.3f} ulp"
    return float(error[worst])


CASES = [(op, kind) for kind, table in (("float", FLOAT), ("double", DOUBLE)) for op in sorted(table)]
ONE = [case for case in CASES if case[0] not in BINARY]


def test_there_is_a_function_for_each_call() -> None:
    assert {*MATH_CALLS} - {*FLOAT} == {*MATH_CALLS} - {*DOUBLE} == {"lgamma"}


def operands(op: str, kind: str) -> list[torch.Tensor]:
    x = spread(kind, 4093, SEED)
    if op == "sigmoid":  # below, e^-x is infinite
        x = x[~(x < (-88.7 if kind == "float" else -709.0))]
    return [x, x[torch.randperm(len(x))]] if op in BINARY else [x]


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_error(op: str, kind: str) -> None:
    if kind == "double" and op in ("erf", "erfc"):
        pytest.skip("against another judge, below")
    check(op, kind, operands(op, kind), BOUNDS[kind].get(op, 1.0))


@pytest.mark.parametrize("op", ["erf", "erfc"])
def test_error_of_a_few(op: str) -> None:
    torch.manual_seed(SEED)
    near, far = torch.randn(400, dtype=torch.float64), torch.linspace(-6, 27.2, 400, dtype=torch.float64)
    x = torch.cat([near, far, near * 1e-5, torch.tensor([0.5, 0.9, 0.4, 26.5, 27.3, 30], dtype=torch.float64)])
    with mpmath.workprec(100):
        exact = [getattr(mpmath, op)(mpmath.mpf(number)) for number in x.tolist()]
        high = [float(number) for number in exact]
        want = np.array(high).astype(np.longdouble) + np.array([float(e - h) for e, h in zip(exact, high)])
    error = errors(compiled(op, "double")(x), want)
    worst = int(error.argmax())
    assert error[worst] <= BOUNDS["double"].get(op, 1.0), f"seed {SEED}: {op}({x[worst].item()!r}), {error[worst]} ulp"


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_special_values(op: str, kind: str) -> None:
    dtype = torch.float32 if kind == "float" else torch.float64
    numbers = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([numbers, -numbers, torch.tensor([math.nan], dtype=dtype)])
    args = [x] if op not in BINARY else [t.flatten().clone() for t in torch.meshgrid(x, x, indexing="ij")]
    result, eager = compiled(op, kind)(*args), getattr(torch, op)(*args)
    if op == "fmod":  # eager's divides by subnormals badly
        eager = torch.from_numpy(exact(op, kind, *args).astype(args[0].numpy().dtype))
    torch.testing.assert_close(result, eager, equal_nan=True)
    zero = (eager == 0) & (result == 0)
    assert torch.equal(result[zero].signbit(), eager[zero].signbit())


def test_one_plus_erf() -> None:
    """The factor of GELU, exact where GELU multiplies it by large numbers."""
    x = spread("float", 4093, SEED)
    y, exact = compiled("erf_plus_1", "float")(x), torch.special.erfc(-x.double())
    assert torch.equal(y.isnan(), x.isnan())
    error = (y.double() - exact).abs().nan_to_num(0)
    assert float(error.max()) <= 2.0**-22, f"seed {SEED}: {x[int(error.argmax())].item()!r} is off by {error.max()}"
    far = torch.tensor([8.0, 20.0, 1e30, math.inf])
    assert torch.equal(compiled("erf_plus_1", "float")(torch.cat([far, -far])), torch.tensor([2.0] * 4 + [0.0] * 4))


COMPILE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_90", opt=3)
for text in sys.stdin.read().split("====\\n"):
    module = llvm.parse_assembly(text)
    module.verify()
    code = machine.emit_assembly(module)
    wrong = [line for line in code.splitlines() if "call" in line or ".extern" in line or "add.f" in line]
    print(text.split("@")[1].split("(")[0] if wrong else "", *wrong[:2])
"""


def test_code_for_a_gpu() -> None:
    """LLVM makes PTX of all of them, without calls, and with additions that are not contracted later."""
    texts = [text_of(op, kind, f"ptx_kernel void @{op}_{kind}", HOPPER.target) for op, kind in CASES]
    given = "====\n".join(texts)
    done = subprocess.run([sys.executable, "-c", COMPILE], input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stdout.strip(), done.stdout


if __name__ == "__main__":
    for op, kind in CASES:
        if (len(sys.argv) == 1 or op in sys.argv[1:]) and not (op in ("erf", "erfc") and kind == "double"):
            try:
                print(kind, op, f"{check(op, kind, operands(op, kind), 99):.3f}", flush=True)
            except AssertionError as error:
                print(kind, op, error, flush=True)


def test_terms_of_softmax() -> None:
    """e^x for x <= 0, within 1.25 |x| + 3 roundings; 0 at minus infinity, NaN of NaN."""
    x = -torch.cat([torch.rand(4000) * 87, torch.logspace(-30, 1.9, 500), torch.zeros(1)])
    y, exact = compiled("exp_term", "float")(x), torch.exp(x.double())
    error = ((y.double() - exact) / exact).abs() / ((1.25 * x.double().abs() + 3) * 2.0**-24)
    assert float(error.max()) <= 1, f"seed {SEED}: {x[int(error.argmax())].item()!r}"
    ends = compiled("exp_term", "float")(torch.tensor([-math.inf, -1000.0, math.nan]))
    assert ends[:2].eq(0).all() and ends[2].isnan()
