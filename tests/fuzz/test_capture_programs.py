"""Random Python programs: compiled with the default backend, they must agree with CPython in result, exception, effects
and gradients, with sizes that change from call to call.

Two ways: *whole* programs are captured without a break; *broken* ones have statements in random places that cannot be
captured (`print`, `.item()`, `if` on a tensor, …), and what surrounds them must not notice.

By hand: `python tests/fuzz/test_capture_programs.py COUNT [SEED] [broken]`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import re
import signal
import sys
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from writers.python_programs import PRELUDE, Writer

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.capture import capture
from bolide.support.errors import BolideWarning, Unsupported

SIZES = (4, 6, 4, 8)  # of the tensor


def arguments(seed: int, namespace: dict[str, Any]) -> list[Any]:
    rng = random.Random(seed)
    xs = [rng.randint(-5, 9) for _ in range(rng.randint(2, 6))]
    kind = namespace[rng.choice(["Box", "Small"])]
    return [
        (torch.arange(float(SIZES[seed % 4])) - 1).requires_grad_(seed % 3 > 0),
        rng.randint(-4, 9),
        rng.randint(-4, 9),
        xs,
        {"k": rng.randint(0, 5), 1: 2},
        kind(rng.randint(-3, 6)),
    ]


def plain(value: Any) -> Any:
    """A value as comparable data."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.requires_grad, value.tolist())
    if isinstance(value, dict):
        return [(plain(k), plain(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "rest"):
        return (type(value).__name__, plain(vars(value)))
    return value


def namespace_of(source: str, seed: int) -> dict[str, Any]:
    module = sys.modules["fuzzed"] = types.ModuleType("fuzzed")  # dataclasses look for it
    namespace = vars(module)
    exec(compile(source, f"<fuzz {seed}>", "exec"), namespace)
    return namespace


def outcome(namespace: dict[str, Any], function: Any, args: list[Any]) -> Any:
    """All that can be seen of one run: result or exception, what was printed, arguments and globals afterwards."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            returned = function(*args)
        gc.collect()
        result: Any = ("returns", plain(returned), gradient(returned, args[0]))
    except Unsupported:
        raise
    except Exception as error:
        result = ("raises", namespace["described"](error))
        gc.collect()
    return result, printed.getvalue(), plain(args[3:]), shared(namespace)


def gradient(returned: Any, leaf: torch.Tensor) -> Any:
    """What of the tensors that a program returns or notes comes back to its argument."""
    wanted = [t for t in found_tensors(returned) if t.requires_grad and t.is_floating_point()]
    if not wanted or not leaf.requires_grad:
        return None
    weighted = [(t * torch.arange(1.0, t.numel() + 1).view(t.shape)).sum() for t in wanted]
    try:
        (grad,) = torch.autograd.grad(sum(weighted), leaf, allow_unused=True)
    except RuntimeError as error:  # a saved value was written
        return type(error).__name__
    return plain(grad)


def found_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in found_tensors(part)]


def alike(mine: Any, theirs: Any) -> bool:
    """Whether two outcomes are the same, floats but for rounding."""
    if type(mine) is float is type(theirs):
        return mine == theirs or abs(mine - theirs) <= 1e-4 * (1 + abs(theirs)) or (mine != mine and theirs != theirs)
    if isinstance(theirs, (list, tuple)):
        same = type(mine) is type(theirs) and len(mine) == len(theirs)
        return same and all(alike(left, right) for left, right in zip(mine, theirs))
    if type(mine) is str is type(theirs):
        return mine == theirs or _comparable(mine) == _comparable(theirs)
    return bool(mine == theirs)


def _comparable(text: str) -> str:
    """A text in which sets show their items in order, as theirs depends on what has been removed, and the error for a
    piece of a tensor that is written does not say what the piece is the result of (see README)."""
    text = re.sub(r"Output \d+ of \w+ is a view", "This is a view", text)
    return re.sub(r"\{([^{}:]*)\}", lambda shown: f"{{{', '.join(sorted(shown[1].split(', ')))}}}", text)


def shadowed(function: Any, args: list[Any]) -> str:
    """What `bolide.shadow` says of a program that differs: the first operation whose result does."""
    bolide.reset()
    bolide.shadow.reports.clear()
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        gradient(bolide.shadow(function)(*args), args[0])
    said = "".join(f"\nshadow: {report}" for report in bolide.shadow.reports[:1])
    bolide.shadow.reports.clear()
    return said or "\nshadow: no operation of a graph differs"


def shared(namespace: dict[str, Any]) -> Any:
    """What a program shares with its surroundings."""
    names = ("STATE", "TOTAL")
    return [*(plain(namespace[name]) for name in names), namespace["Box"].count, namespace["summary"]()]


def raised_by_capture(namespace: dict[str, Any], args: list[Any]) -> Any:
    """The exception that a program raises while it is captured (eager would run next, and raise it again)."""
    try:
        capture(namespace["program"], tuple(args), {}, breaks=False)
    except Unsupported as error:
        if error.kind != "user_exception":
            raise
        return namespace["described"](error.__cause__)
    return None


CALLS = 3


@contextlib.contextmanager
def only_our_garbage() -> Iterator[None]:
    """The garbage collector closes the generators of cycles whenever it comes to them: here it comes after each call,
    and looks at nothing older than the program."""
    gc.disable()
    gc.collect()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    with only_our_garbage():
        yield


def check(seed: int, broken: bool = False) -> str:
    """ "agrees", or what capture does not support. Raises AssertionError on a difference.

    The compiled program is called three times, with two sets of arguments: later calls meet guards, and globals that
    the ones before have changed."""
    with config.patch(cache_size_limit=1000, accumulated_cache_size_limit=100000), warnings.catch_warnings():
        if broken:
            warnings.simplefilter("ignore", BolideWarning)  # what runs in eager is judged, too
        return _checked(seed, broken)


def _checked(seed: int, broken: bool) -> str:
    gc.freeze()
    source = Writer(seed, broken).program()
    text = f"seed {seed}\n{source[len(PRELUDE) :]}"
    plainly, captured = namespace_of(source, seed), namespace_of(source, seed)
    function = bolide.compile(captured["program"], fullgraph=not broken)
    try:
        for number in range(CALLS):
            values = seed + number % 2
            args = arguments(values, captured)
            before = plain(args[3:]), shared(captured)
            expected = outcome(plainly, plainly["program"], arguments(values, plainly))
            if not broken and expected[0][0] == "raises":
                raised = raised_by_capture(captured, args)
                assert alike(raised, expected[0][1]), f"{text}\nexpected {expected}\nraised {raised}"
                after = plain(args[3:]), shared(captured)
                assert alike(after, before), f"{text}\ncapture changed something\nbefore {before}\nafter {after}"
            actual = outcome(captured, function, args)
            if not alike(actual, expected):
                why = shadowed(captured["program"], arguments(values, captured))
                raise AssertionError(f"{text}\ncall {number}\nexpected {expected}\nactual   {actual}{why}")
    except Unsupported as error:
        return error.reason
    return "agrees"


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("number", range(40))
def test_random_programs_agree_with_cpython(number: int, broken: bool) -> None:
    seed = number + 1000 * int(os.environ["BOLIDE_TEST_SEED"])
    print("seed", seed)
    check(seed, broken)


@only_our_garbage()
def main(count: int, first: int, broken: bool) -> None:
    counts: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    if not broken:
        warnings.simplefilter("error", BolideWarning)
    config.suppress_errors = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # a run that is stopped tells what it has seen
        for seed in range(first, first + count):
            if seed % 100 == 0:  # programs that are done and refer to themselves were frozen, too
                gc.unfreeze()
                gc.collect()
            try:
                counts[check(seed, broken)] += 1
            except AssertionError as failure:
                counts["DIFFERENT"] += 1
                print(str(failure)[:5000] if counts["DIFFERENT"] < 3 else f"seed {seed}")
            except Exception as failure:
                kind = f"CRASH {type(failure).__name__}: {str(failure)[:120]}"
                counts[kind] += 1
                print(f"seed {seed} {kind}" if counts[kind] < 3 else "", end="\n" if counts[kind] < 3 else "")
    for reason, number in counts.most_common():
        print(number, reason)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, "broken" in sys.argv)
