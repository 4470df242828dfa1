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
from tests.functorch_tools import Compiled, assert_same, flat, fresh, same_objects
from tests.fuzz.writers import aliasing_programs as aliasing
from tests.fuzz.writers.choices import Choices

PROGRAMS = 40
WHOLE = 12  # compiled with the default backend
REFUSALS = (
    "modified by an inplace operation",
    "is a view",
    "refer to a single memory location",
    "a leaf Variable that",
)

UNARY = [torch.sin, torch.tanh, torch.relu, lambda t: t * 0.5, lambda t: t.clone(), torch.sigmoid, lambda t: -t]
BINARY = [torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b.sin())]
VIEWS = [
    lambda t: t.transpose(0, -1),
    lambda t: t[1:],
    lambda t: t.narrow(-1, 0, 2),
    lambda t: t.unsqueeze(0).squeeze(0),
    lambda t: t[..., ::2],
    lambda t: t.detach(),
    lambda t: t.view(t.shape),
]
SHRINKING = [lambda t: t.sum(0, keepdim=True).expand(t.shape), lambda t: t.softmax(-1), lambda t: t - t.mean()]
IN_PLACE = [
    lambda t, u: t.add_(u),
    lambda t, u: t.mul_(0.7),
    lambda t, u: t.copy_(u),
    lambda t, u: t.zero_(),
    lambda t, u: t.sin_(),
    lambda t, u: t.fill_(0.3),
]


def matrices(seed: int, size: int = 4) -> list[torch.Tensor]:
    """Four square matrices, two of which require gradients."""
    torch.manual_seed(seed)
    return [torch.randn(size, size, requires_grad=index < 2) for index in range(4)]


def program(seed: int) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A random function of four matrices; it takes the same decisions whenever it is called."""
    inputs = matrices(seed)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        choose = Choices(seed)
        pool = list(tensors)
        for _ in range(3 + choose.below(11)):
            kind = choose.choice(["unary", "binary", "binary", "view", "shrink", "write", "no_grad"])
            one = choose.choice(pool)
            same = [tensor for tensor in pool if tensor.shape == one.shape]
            other = choose.choice(same)
            if kind == "unary":
                pool.append(choose.choice(UNARY)(one))
            elif kind == "binary":
                pool.append(choose.choice(BINARY)(one, other))
            elif kind == "view" and min(one.shape) > 2:
                pool.append(choose.choice(VIEWS)(one))
            elif kind == "shrink":
                pool.append(choose.choice(SHRINKING)(one))
            elif kind == "write":
                write = choose.choice(IN_PLACE)
                owned = one._base if one._base is not None else one
                if not (owned.is_leaf and owned.requires_grad) and 0 not in one.stride():
                    write(one, other)
            elif kind == "no_grad":
                with torch.no_grad():
                    pool.append(one * other)
        return tuple([choose.choice(pool) for _ in range(1 + choose.below(4))])

    return run, inputs


def backward(outputs: list[torch.Tensor], inputs: list[torch.Tensor], choose: random.Random) -> list[Any]:
    roots = [out for out in outputs if out.grad_fn is not None]
    roots = [root for root in roots if choose.random() < 0.7] or roots[:1]
    if not roots:
        return []
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(root.shape, generator=generator) for root in roots]
    wanted = [tensor for tensor in inputs if tensor.requires_grad and tensor.is_leaf]
    return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))


def outcome(fn: Callable[..., Any], inputs: list[torch.Tensor], seed: int) -> tuple[Any, ...]:
    tensors = fresh(inputs)
    outputs = flat(fn(*tensors))
    return outputs, tensors, backward(outputs, tensors, random.Random(seed))


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
