"""Random programs with views, in-place writes and shared memory: compiled, they do what eager does, gradients too.

By hand, those over shared memory, through `aot_function`: COUNT [SEED] [--jobs N].
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import pytest
import torch
from torch.utils import _pytree as pytree

import bolide
from bolide.functorch.aot_autograd import aot_function
from bolide.functorch.partitioners import default_partition, min_cut_rematerialization_partition
from bolide.support.errors import Unsupported
from tests.functorch_tools import Compiled, assert_same, same_objects
from tests.fuzz.writers import aliasing_programs as aliasing
from tests.fuzz.writers.matrix_programs import REFUSALS, matrices, outcome, program

PROGRAMS = 40
WHOLE = 12  # compiled with the default backend


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("block", range(5))
def test_random_programs(block: int, partition: str, seed: int) -> None:
    compared = 0
    for index in range(PROGRAMS // 5):
        number = seed + index
        print("program", number)
        fn, inputs = program(number)
        try:
            expected, eager, expected_gradients = outcome(fn, inputs, number)
        except RuntimeError as error:
            if any(reason in str(error) for reason in REFUSALS):
                continue  # eager refuses this program
            raise
        try:
            compiled = Compiled(fn, inputs, partition)
        except Unsupported as error:
            # or the engine refuses the backward from all outputs, eager was asked for some of them
            assert error.kind == "detached_alias" or "modified by an inplace operation" in str(error)
            continue
        actual, ours, gradients = outcome(compiled, inputs, number)
        for one, other in zip([*actual, *ours], [*expected, *eager]):
            assert_same(one, other, rtol=1e-4, atol=1e-5)
        same_objects(actual, ours, expected, eager)
        assert len(gradients) == len(expected_gradients)
        for one, other in zip(gradients, expected_gradients):
            if (one is None) != (other is None):  # a gradient that is zero because of a fill may also be missing
                one, other = (torch.zeros(4, 4) if grad is None else grad for grad in (one, other))
            assert_same(one, other, strides=False, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared > 0


# the engine refuses the backward from all outputs, eager is asked for some of them: such a program runs in eager
@pytest.mark.filterwarnings("ignore:.*BR0508")
@pytest.mark.filterwarnings("ignore:.*modified by an inplace operation")
def test_random_programs_on_the_default_backend(seed: int) -> None:
    compared = 0
    for number in range(seed, seed + WHOLE):
        print("program", number)
        fn, _ = program(number)
        compiled = bolide.compile(fn)
        for size in (4, 6, 5):
            inputs = matrices(number + size, size)
            try:
                expected, eager, expected_gradients = outcome(fn, inputs, number)
            except RuntimeError as error:
                if any(reason in str(error) for reason in REFUSALS):
                    break  # eager refuses this program
                raise
            actual, ours, gradients = outcome(compiled, inputs, number)
            for one, other in zip([*actual, *ours], [*expected, *eager], strict=True):
                assert_same(one, other, rtol=1e-4, atol=1e-5)
            for one, other in zip(gradients, expected_gradients, strict=True):
                one, other = (torch.zeros(size, size) if grad is None else grad for grad in (one, other))
                assert_same(one, other, strides=False, rtol=1e-4, atol=1e-5)
            compared += 1
    assert compared


# ---- aot_function ----------------------------------------------------------------------------------------------------

ALIASING = 40  # programs of a run in CI


MODES = (torch.enable_grad, torch.enable_grad, torch.enable_grad, torch.enable_grad, torch.no_grad)
SIZES = (5, 5, 7, 6)
NOT_AGAIN = "bolide: this backward pass of a compiled function was asked for with create_graph=True"


def called(fn: Callable[..., Any], number: int, size: int) -> dict[str, Any]:
    """What a call of a program gives and changes, before and after the caller has used its results."""
    made = aliasing.arguments(number, size)
    torch.manual_seed(number)
    with MODES[number % len(MODES)]():
        leaves, form = pytree.tree_flatten(fn(*made.given))
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    seen = [*results, *made.given]
    now = [tensor.detach().clone() for tensor in seen]
    layouts = [
        (tensor.shape, tensor.dtype, tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg())
        + (steps(tensor), tensor.storage_offset() if index >= len(results) else 0)
        for index, tensor in enumerate(seen)
    ]
    written = [tensor._version > 0 for tensor in made.given]
    drawn = torch.get_rng_state().tolist()
    try:
        gradients = aliasing.gradients(results, made, number)
    except RuntimeError as error:
        gradients = [str(error)]
    refused = aliasing.use(results, made.given, number)
    later = [tensor.detach().clone() for tensor in seen]
    return {
        "objects": seen,
        "form": (str(form), [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]),
        "layouts": layouts,
        "drawn": drawn,
        "refused": refused is not None,
        "now": now,
        "gradients": gradients,
        "written": written,
        "later": later,
    }


def steps(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that tell where elements are."""
    return tuple([step for step, size in zip(tensor.stride(), tensor.shape) if size > 1]) if tensor.numel() else ()


Shaken = Callable[[], Sequence[dict[str, Any]]]


def compare(actual: dict[str, Any], expected: dict[str, Any], rough: bool, shaken: Shaken) -> None:
    """`shaken`: what eager does if it rounds otherwise."""
    for what in ("form", "layouts", "drawn"):
        assert actual[what] == expected[what], (what, actual[what], expected[what]) if what != "drawn" else what
    same_objects(actual["objects"], [], expected["objects"], [])
    for what in ("now", "gradients", "later"):
        assert len(actual[what]) == len(expected[what]), (what, actual[what], expected[what])
        for place, (one, other) in enumerate(zip(actual[what], expected[what])):
            if isinstance(other, str) or isinstance(one, str):
                assert isinstance(one, str), (what, one, other)
                assert isinstance(other, str) or NOT_AGAIN in one, (what, one, other)
                continue
            if (one is None) != (other is None):  # zeros may also be missing
                one = torch.zeros_like(other) if one is None else one
                other = torch.zeros_like(one) if other is None else other
            if other is not None:
                check_close(what, one, other, rough, functools.partial(_places, shaken, what, place))
    assert actual["refused"] == expected["refused"], "what the caller may write to"
    assert all(one or not other for one, other in zip(actual["written"], expected["written"])), "versions"


def _places(shaken: Shaken, what: str, place: int) -> list[Any]:
    return [each[what][place] for each in shaken()]


def check_close(
    what: str, one: torch.Tensor, other: torch.Tensor, rough: bool, shaken: Callable[[], Sequence[Any]]
) -> None:
    tolerance = {"rtol": 4e-2, "atol": 4e-2} if rough else {"rtol": 1e-4, "atol": 1e-5}
    try:
        torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text: f"{what}: {text}", **tolerance)
    except AssertionError:  # rounding may count for more here: as much as it does in eager
        moved = [(each - other).abs().max().item() for each in shaken() if isinstance(each, torch.Tensor)]
        if one.dtype not in aliasing.FLOATS or not (one - other).abs().max().item() <= 8 * max(moved, default=0.0):
            raise


def check_aliasing(number: int) -> str:
    """Compare one program; how it ended."""
    fn = aliasing.Program(number)
    partition = (default_partition, min_cut_rematerialization_partition)[number % 2]
    compiled = aot_function(fn, lambda graph, examples: graph, partition_fn=partition, dynamic=bool(number // 2 % 2))
    ended = "refused by eager"
    for size in SIZES:
        try:
            expected = called(fn, number, size)
        except aliasing.REFUSALS:
            continue
        rough = fn.rough
        try:
            actual = called(compiled, number, size)
        except Unsupported as error:
            return f"{error.kind}: {error.reason}"
        try:
            compare(actual, expected, rough, functools.partial(shaken_calls, fn, number, size))
        except AssertionError:
            if repeats(fn, number, size, expected):
                raise
            return "eager reads memory that nothing was written to"
        ended = "compared"
    return ended


def repeats(fn: Callable[..., Any], number: int, size: int, expected: dict[str, Any]) -> bool:
    """Whether eager gives the same again, whatever is in memory that is free."""
    for value in (1e30, -3.0, math.nan, 0.5):
        left = [torch.full((count,), value, dtype=dtype) for count in range(1, 200) for dtype in aliasing.FLOATS]
        del left
        try:
            compare(called(fn, number, size), expected, False, list)
        except AssertionError:
            return False
    return True


def shaken_calls(fn: Callable[..., Any], number: int, size: int) -> list[dict[str, Any]]:
    calls = []
    for seed in range(3):
        with aliasing.RoundingOtherwise(number + seed):
            calls.append(called(fn, number, size))
    return calls


def test_random_programs_over_shared_memory(seed: int) -> None:
    ended: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(seed, seed + ALIASING):
            print("program", number)
            ended[check_aliasing(number)] += 1
    assert ended["compared"] > ALIASING // 2


def ended(number: int) -> tuple[int, str, str]:
    """A program, how it ended, and what is wrong."""
    try:
        return number, check_aliasing(number), ""
    except Exception as error:
        return number, "wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def prepare() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def main() -> int:
    """Try more of them; the number of faults decides on the status."""
    parser = argparse.ArgumentParser(
        description="Random programs through aot_function; only those that differ are told."
    )
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, seed {args.seed}", flush=True)
    many: Counter[str] = Counter()
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), prepare) as pool:
        for number, how, reason in pool.map(ended, range(args.seed, args.seed + args.count), chunksize=20):
            many[how] += 1
            if reason:
                print(f"program {number}: {reason}", flush=True)
    for how, times in many.most_common():
        print(f"{times:>7} {how[:160]}")
    return int(bool(many["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
