"""Random Python programs: captured and replayed, they must agree with CPython in result, exception and effects.

Two ways: *whole* programs are captured without a break; *broken* ones have statements in random places that cannot be
captured (`print`, `.item()`, `if` on a tensor, …), and what surrounds them must not notice.

By hand: `python tests/fuzz/test_capture_programs.py COUNT [SEED] [broken]`.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from python_programs import PRELUDE, Writer

import bolide
from bolide.dynamo.capture import capture
from bolide.support.errors import BolideWarning, Unsupported


def arguments(seed: int, namespace: dict[str, Any]) -> list[Any]:
    rng = random.Random(seed)
    xs = [rng.randint(-5, 9) for _ in range(rng.randint(2, 6))]
    kind = namespace[rng.choice(["Box", "Small"])]
    return [
        torch.arange(4.0) - 1,
        rng.randint(-4, 9),
        rng.randint(-4, 9),
        xs,
        {"k": rng.randint(0, 5), 1: 2},
        kind(rng.randint(-3, 6)),
    ]


def plain(value: Any) -> Any:
    """A value as comparable data."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
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
    namespace: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(source, f"<fuzz {seed}>", "exec"), namespace)
    return namespace


def outcome(namespace: dict[str, Any], function: Any, args: list[Any]) -> Any:
    """All that can be seen of one run: result or exception, what was printed, arguments and globals afterwards."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result: Any = ("returns", plain(function(*args)))
    except Unsupported:
        raise
    except Exception as error:
        result = ("raises", namespace["described"](error))
    after = {name: plain(namespace[name]) for name in ("STATE", "TOTAL")}
    return result, printed.getvalue(), plain(args[3:]), after, namespace["Box"].count


def raised_by_capture(namespace: dict[str, Any], args: list[Any]) -> Any:
    """The exception that a program raises while it is captured (eager would run next, and raise it again)."""
    try:
        capture(namespace["program"], tuple(args), {}, breaks=False)
    except Unsupported as error:
        if error.kind != "user_exception":
            raise
        return namespace["described"](error.__cause__)
    return None


def check(seed: int, broken: bool = False) -> str:
    """ "returns", "raises", or what capture does not support. Raises AssertionError on a difference."""
    source = Writer(seed, broken).program()
    namespace = namespace_of(source, seed)
    expected = outcome(namespace, namespace["program"], arguments(seed, namespace))
    namespace = namespace_of(source, seed)
    args = arguments(seed, namespace)
    try:
        if not broken and expected[0][0] == "raises":
            actual: Any = raised_by_capture(namespace, args)
            before = namespace_of(source, seed)
            untouched = plain(args[3:]) == plain(arguments(seed, before)[3:]) and all(
                plain(namespace[name]) == plain(before[name]) for name in ("STATE", "TOTAL")
            )
            assert untouched, f"seed {seed}: capture changed something\n{source[len(PRELUDE) :]}"
            expected = expected[0][1]
        else:
            function = bolide.compile(namespace["program"], backend="aot_eager", fullgraph=not broken)
            actual = outcome(namespace, function, args)
    except Unsupported as error:
        return error.reason
    assert actual == expected, f"seed {seed}\n{source[len(PRELUDE) :]}\nexpected {expected}\nactual   {actual}"
    return "agrees"


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("number", range(40))
def test_random_programs_agree_with_cpython(number: int, broken: bool) -> None:
    seed = number + 1000 * random.SystemRandom().randrange(10**6)
    print("seed", seed)
    check(seed, broken)


def main(count: int, first: int, broken: bool) -> None:
    counts: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    if not broken:
        warnings.simplefilter("error", BolideWarning)
    bolide.dynamo.config.suppress_errors = False
    for seed in range(first, first + count):
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
