"""Integers that no int64 holds, and floats next to them, in random programs: results and errors as eager's, whether the
numbers are constants, change from call to call, or are data.

By hand: `python tests/correctness/operations/test_numbers_of_any_size.py COUNT SEED`.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bolide
from bolide.support import events

COUNT = 10  # programs of a run
BITS = (15, 31, 32, 52, 53, 54, 61, 62, 63, 64, 100)
#: where the program finds its numbers `n` and `m`
PLACES = (
    ("n", "m"),
    ("n", "o.number"),
    ("numbers[0]", "numbers[1]"),
    ("t[0].item()", "m"),
    ("int(t[:1].sum())", "t.tolist()[1]"),
    ("t[0].item()", "t[1].item()"),
)
INTEGERS = (
    *("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} * {b}", "{a} // ({b} | 1)", "{a} % ({b} | 1)", "-{a}", "~{a}"),
    *("{a} ** ({b} % 4)", "{a} << ({b} % 70)", "{a} >> ({b} % 70)", "{a} >> 3", "{a} & {b}", "{a} | {b}", "{a} ^ {b}"),
    *("({a}) & 0xFFFF", "min({a}, {b})", "max({a}, {b})", "divmod({a}, 1009)[0]", "pow({a}, 3, 1009)", "abs({a})"),
    *("math.gcd({a}, {b})", "({a}).bit_length()", "hash({a})", "int({a} > {b})", "({a} if {a} < {b} else {b} + 1)"),
    *("{a} * 6364136223846793005 + 1442695040888963407", "{a} * 1103515245 * 12345 + 12345", "{a} * {b} * {a}") * 2,
)
FLOATS = (
    *("{a} / 7", "{a} / ({b} | 1)", "{a} * 0.5", "{a} + 0.5", "float({a})", "{a} * 0.3", "{a} // 2.0", "{a} % 2.5"),
    *("round({a} / 3, 2)", "({a} | 1) ** -2"),
)
USES = (
    *("x * {i}", "x.double() * {i}", "x + {i}", "k * {i}", "k % ({i} | 1)", "x.double() * {f}", "(x + 1, {f})[1]"),
    *("x[{i} % 3] * 2", "x[: {i} % 4].exp()", "x.new_zeros({i} % 5)", "torch.full((2,), {i})", "k.clamp(max={i})"),
    *("torch.full((2,), {i}, dtype=torch.float64)", "(x + 1 if {i} > {j} else x - 1)", "(x + 1 if {i} == {f} else x)"),
    *("(x + 1 if {i} >= {c} else x)", "x.masked_fill(x > 0, {i})", "(x + 1, {i})[1]", "k.bitwise_and({i})"),
    *("torch.arange({i} % 5) + x[0]", "torch.where(x > 0, x, {i} % 17)", "torch.full((2,), {i}, dtype=torch.int8)"),
    *("k.to(torch.int8).masked_fill(k > 0, {i})", "k.masked_fill(k > 0, {f})", "torch.tensor({f}, dtype=torch.int32)"),
    *("torch.full((2,), {f}, dtype=torch.uint8)", "k.to(torch.int16).fill_({i})", "k.to(torch.int32).clamp(max={i})"),
)
CONSTANTS = ("2**53 + 1", "2.0**60", "2**63 - 1", "2**63", "-(2.0**63)", "0.1", "float('inf')")


class Holder:
    """What has a number."""

    number = 0


def expression(draw: random.Random, forms: tuple[str, ...], depth: int) -> str:
    """Python of an integer, or a float, over `n` and `m`."""
    operands = [
        expression(draw, INTEGERS, depth - 1) if depth and draw.random() < 0.5 else draw.choice("nm") for _ in "ab"
    ]
    a, b = (operand if len(operand) == 1 else f"({operand})" for operand in operands)
    return draw.choice(forms).format(a=a, b=b)


def program(draw: random.Random) -> str:
    """The source of a function of a tensor, two numbers, a list of both, an object with one and a tensor with both."""
    n, m = draw.choice(PLACES)
    lines = ["def f(x, n, m, numbers, o, t):", "k = torch.arange(3)", f"n, m = {n}, {m}"]
    for place in range(draw.randint(1, 2)):
        parts = {name: expression(draw, INTEGERS, 2) for name in "ij"} | {"f": expression(draw, FLOATS, 1)}
        parts = {name: f"({part})" for name, part in parts.items()}
        if draw.random() < 0.6:
            parts["i"] = f"({parts['i']} % {draw.choice([7, 1009, 1000003])})"
        used = draw.choice(USES).format(**parts, c=draw.choice(CONSTANTS))
        if draw.random() < 0.2:
            lines += ["if (x > 0).any():", f"    y{place} = {used}", "else:", f"    y{place} = x + {place}"]
        else:
            lines.append(f"y{place} = {used}")
    names = ", ".join(f"y{place}" for place in range(2) if f"y{place} = " in "\n".join(lines))
    return "\n    ".join([*lines, f"return {names},"])


def number(draw: random.Random, is_data: bool) -> int:
    """A small integer, or one next to a power of two."""
    small = draw.randint(-40, 90)
    value = draw.choice([small, small, draw.choice([1, -1]) * 2 ** draw.choice(BITS) + draw.randint(-1, 1)])
    return max(min(value, 2**63 - 1), -(2**63)) if is_data else value


def outcome(function: Callable[..., Any], x: Tensor, n: int, m: int, t: Tensor) -> Any:
    """What a call returns, or the type of what it raises."""
    holder = Holder()
    holder.number = m
    try:
        return function(x.clone(), n, m, [n, m], holder, t.clone())
    except Exception as error:
        return type(error)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, tuple):
        return isinstance(ours, tuple) and all(map(same, ours, theirs))
    if isinstance(theirs, Tensor):
        facts = [(value.dtype, value.shape, value.stride()) for value in (ours, theirs)]
        return facts[0] == facts[1] and torch.allclose(ours.double(), theirs.double(), 1e-15, 0, True)
    return type(ours) is type(theirs) and repr(ours) == repr(theirs)


def check(seed: int) -> None:
    """Compile one random program and call it with five pairs of numbers."""
    draw = random.Random(seed)
    source = program(draw)
    namespace: dict[str, Any] = {"torch": torch, "math": __import__("math")}
    exec(source, namespace)
    bolide.reset()
    compiled = bolide.compile(namespace["f"], dynamic=draw.choice([None, None, True]))
    for call in range(5):
        n, m = (number(draw, "t[0]" in source or "tolist" in source) for _ in "nm")
        x = torch.tensor([-1.0, 0.5, 2.0]) * draw.choice([1, 1, -1, 0])
        t = torch.tensor([n, m]) if abs(n) < 2**63 and abs(m) < 2**63 else torch.zeros(2, dtype=torch.int64)
        found, wanted = outcome(compiled, x, n, m, t), outcome(namespace["f"], x, n, m, t)
        assert same(found, wanted), f"seed {seed}, call {call}: {n}, {m}: {found}, not {wanted}\n{source}"


def test_random_programs_with_numbers_of_any_size(seed: int) -> None:
    for place in range(COUNT):
        check(seed + place)


def test_large_numbers_share_two_versions() -> None:
    """What Python computes of them is computed by Python in each call."""

    def hashed(x: Tensor, n: int) -> Tensor:
        return x * ((n * 1103515245 * 12345 + 12345) % 1000003)

    def moved(x: Tensor, n: int) -> Tensor:
        return x[n % 3 :] + (n * 1000 + 7) // 3 * (n % 5)

    for program in (hashed, moved):
        compiled, told = bolide.compile(program), []
        with events.subscribed(told.append):
            for n in (3, 5, random.randint(10, 1 << 24), -7, random.randint(10, 1 << 24)):
                x = torch.randn(3)
                torch.testing.assert_close(compiled(x, n), program(x, n), rtol=0, atol=0)
        count = Counter(type(event).__name__ for event in told)
        assert count["Installed"] == 2 and not count["Break"] + count["Fallback"], count
    for n in (2**40 + 1, -(2**50), 2**62):
        torch.testing.assert_close(bolide.compile(hashed)(x, n), hashed(x, n), rtol=0, atol=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    bolide.dynamo.config.suppress_errors = False
    count, first = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for place in range(first, first + count):
        try:
            check(place)
        except Exception as failure:
            failed += 1
            print(repr(failure) if not isinstance(failure, AssertionError) else failure, flush=True)
    print(f"{count} programs from {first}: {failed} differ")
