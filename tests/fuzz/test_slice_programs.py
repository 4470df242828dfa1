"""Random programs of slices and pieces, whose integers and sizes differ between the calls of one compiled function: the
results and gradients of eager, with the default backend.

By hand: `python tests/fuzz/test_slice_programs.py COUNT [SEED] [dynamic=…] [backend=…]`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from told import strides
from writers.slice_programs import GLOBALS, Writer

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import CompileError

PROGRAMS = 12  # in CI
CALLS = 4


def arguments(rng: random.Random) -> list[tuple[Any, ...]]:
    """The arguments of each call: two tensors of changing sizes, weights, indices, integers of either sign, and the
    sizes of three chunks of the first tensor."""
    calls: list[tuple[Any, ...]] = []
    rank, fixed = rng.choice([2, 2, 3]), rng.random() < 0.3
    one_sign = rng.choice([None, 1, -1])
    least, most = rng.choice([(3, 5), (4, 9), (5, 12)])
    n = rng.randint(least, most)
    for _ in range(CALLS):
        n = n if fixed else rng.randint(least, most)
        x = torch.randn(n, *[3] * (rank - 2), 4, dtype=torch.float64)
        y = torch.randn(n if rng.random() < 0.5 else rng.randint(1, most), 4, dtype=torch.float64)
        numbers = [rng.randint(1, 3) * (one_sign or rng.choice([1, -1])) for _ in range(2)]
        first = rng.randint(1, n - 2)
        second = rng.randint(1, n - first - 1)
        z = torch.randint(0, 50, (rng.randint(2, 5),))
        w = torch.randn(4, 4, dtype=torch.float64)
        calls.append((x, y, w, z, *numbers, rng.randint(0, 3), [first, second, n - first - second]))
    return calls


def in_single(source: str) -> str:
    """A program of float64 in float32; its float32 becomes float64."""
    other = {"float64": "float32", ".double()": ".float()", ".float()": ".double()"}
    return re.sub(r"float64|\.double\(\)|\.float\(\)", lambda found: other[found[0]], source)


def single(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in float32: some things are done for this type alone."""
    return tuple(
        value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in call
    )


def outcome(function: Any, call: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """What a call returns, and the gradients of its tensors."""
    own = [value.clone() if isinstance(value, torch.Tensor) else value for value in call]
    own[-1] = list(own[-1])
    leaves = [value.requires_grad_() for value in own[:3]]
    results = function(*own)
    wanted = [result for result in results if result.requires_grad]
    grads: Any = []
    if wanted:
        weights = [torch.arange(1, r.numel() + 1, dtype=r.dtype).cos().reshape(r.shape) for r in wanted]
        total = torch.stack([(result * weight).sum() for result, weight in zip(wanted, weights)]).sum()
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return results, list(grads)


def check(seed: int, dynamic: bool | None = None, backend: str = "inductor") -> Counter[str]:
    """Compare one program with eager. What is worth counting; raises AssertionError on a difference."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    calls = arguments(rng)
    source = Writer(rng, calls).program(rng.randint(2, 9))
    name = f"<slices {seed}>"
    exact, doubles = dict(GLOBALS), calls
    exec(compile(source, name, "exec"), exact)
    if random.Random(-seed).random() < 0.4:
        source, calls = in_single(source), [single(call) for call in calls]
    scopes = [dict(GLOBALS), dict(GLOBALS)]
    for scope in scopes:
        exec(compile(source, name, "exec"), scope)
    compiled = bolide.compile(scopes[0]["program"], backend=backend, dynamic=dynamic)
    counts: Counter[str] = Counter()

    def hear(event: Any) -> None:
        counts[type(event).__name__] += 1

    for number, call in enumerate(calls):
        try:
            expected = outcome(scopes[1]["program"], call)
        except RuntimeError:
            counts["eager refuses"] += 1  # a backward
            return counts
        shown = [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in call]
        text = f"seed {seed}, dynamic={dynamic}, call {number}: {shown}\n{source}"
        try:
            with events.subscribed(hear):
                found = outcome(compiled, call)
        except CompileError as error:
            raise AssertionError(f"REFUSED {text}\n{error}") from error
        try:
            wanted = outcome(exact["program"], doubles[number])
            for what, mine, theirs, best in zip(("result", "gradient"), found, expected, wanted):
                for place, (left, right, real) in enumerate(zip(mine, theirs, best, strict=True)):
                    same(left, right, real, f"{what} {place} of {text}")
        except AssertionError as error:
            raise AssertionError(f"{error}{shadowed(scopes[0]['program'], calls[: number + 1])}") from None
    return counts


def shadowed(function: Any, calls: list[tuple[Any, ...]]) -> str:
    """What `bolide.shadow` says of a program that differs: the first operation whose result does."""
    bolide.reset()
    bolide.shadow.reports.clear()
    beside = bolide.shadow(function)
    with contextlib.suppress(Exception):
        for call in calls:
            outcome(beside, call)
    said = "".join(f"\nshadow: {report}" for report in bolide.shadow.reports[:1])
    bolide.shadow.reports.clear()
    return said or "\nshadow: no operation of a graph differs"


def same(mine: Any, theirs: Any, exact: Any, text: str) -> None:
    """Assert that two tensors (or two that are not there) are the same; in float32, or as near to what is exact."""
    assert (mine is None) == (theirs is None), f"{text}\n{mine} instead of {theirs}"
    if theirs is None:
        return
    facts = [(t.shape, t.dtype, t.requires_grad) for t in (mine, theirs)]
    assert facts[0] == facts[1], f"{text}\n{facts[0]} instead of {facts[1]}"
    if text.startswith("result") and theirs.untyped_storage().nbytes() == theirs.nbytes:  # no gaps
        assert strides(mine) == strides(theirs), f"{text}\nstrides {mine.stride()} instead of {theirs.stride()}"
    difference = float((mine - theirs).detach().abs().max()) if theirs.numel() else 0.0
    largest = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    bound = 1e-9
    if theirs.dtype is torch.float32 and theirs.numel():
        bound = 1e-4 + 20 * float((theirs.double() - exact.double()).detach().abs().nan_to_num().max())
    assert difference <= bound * (1 + largest), f"{text}\ndifference {difference}\n{mine}\ninstead of\n{theirs}"


@pytest.mark.filterwarnings("ignore:.*BR0508")  # refused: outputs that share memory, with different histories
@pytest.mark.parametrize("dynamic", [None, True])
def test_random_programs_of_slices(dynamic: bool | None) -> None:
    for number in range(PROGRAMS):
        check(number + 1000 * int(os.environ["BOLIDE_TEST_SEED"]), dynamic)


def main(arguments: list[str]) -> None:
    count, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    given = dict(argument.split("=") for argument in arguments[2:])
    modes = {"None": [None], "True": [True]}.get(given.get("dynamic", ""), [None, True])
    config.suppress_errors = False
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # a run that is stopped tells what it has seen
        for seed in range(first, first + count):
            dynamic = modes[seed % len(modes)]
            try:
                counts.update(check(seed, dynamic, given.get("backend", "inductor")))
                counts["programs"] += 1
            except AssertionError as failure:
                kind = "REFUSED" if str(failure).startswith("REFUSED") else "DIFFERENT"
                counts[kind] += 1
                print(f"--- {kind} {str(failure)[:2500]}", flush=True)
            except Exception as failure:
                counts["RAISED"] += 1
                print(f"--- RAISED seed {seed} {type(failure).__name__}: {str(failure)[:2500]}", flush=True)
            bolide.reset()
    print(f"{time.perf_counter() - start:.0f} s", *(f"{kind}: {number}" for kind, number in counts.most_common(30)))


if __name__ == "__main__":
    main(sys.argv[1:])
