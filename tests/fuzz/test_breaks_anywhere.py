"""Random programs that break at random instructions: wherever a segment ends, the program goes on as in CPython, with
the default backend, sizes that change and gradients.

`python tests/fuzz/test_breaks_anywhere.py COUNT [SEED]` runs many by hand.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from test_capture_programs import alike, arguments, namespace_of, outcome
from writers.python_programs import PRELUDE, Writer

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.machine.interpreter import Machine
from bolide.support.errors import Unsupported

CALLS = 2  # with other sizes


@contextmanager
def breaking_anywhere(seed: int, longest: int) -> Iterator[None]:
    """Inside, each segment ends after a random number of instructions."""
    rng = random.Random(seed)
    run = Machine.run

    def interrupted(self: Machine, stop: int | None = None) -> bool:
        if stop is not None:
            return run(self, stop)
        begins = len(self.frames) == 2 and self.frames[1].pc == 0
        limit = rng.randrange(1, longest) + (20 if begins else 0)  # a function that does not even begin is no test
        if run(self, limit):
            return True
        self.progress.tick = limit
        raise Unsupported("here", kind="graph_break")

    Machine.run = interrupted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Machine.run = run  # type: ignore[method-assign]


def check(seed: int) -> str:
    """ "same". Raises AssertionError on a difference."""
    source = Writer(seed).program()
    body = source[len(PRELUDE) :]
    bolide.reset()
    plain, captured = namespace_of(source, seed), namespace_of(source, seed)
    compiled = bolide.compile(captured["program"])
    with breaking_anywhere(seed, 60), config.patch(cache_size_limit=1000, accumulated_cache_size_limit=100000):
        for number in range(CALLS):
            expected = outcome(plain, plain["program"], arguments(seed + number, plain))
            actual = outcome(captured, compiled, arguments(seed + number, captured))
            assert alike(actual, expected), (
                f"seed {seed}\n{body}\ncall {number}\nexpected {expected}\nactual   {actual}"
            )
    return "same"


@pytest.mark.parametrize("number", range(8))
def test_a_segment_may_end_anywhere(number: int) -> None:
    seed = number + 1000 * int(os.environ["BOLIDE_TEST_SEED"])
    print("seed", seed)
    check(seed)


if __name__ == "__main__":
    import traceback
    import warnings
    from collections import Counter

    warnings.simplefilter("ignore")
    config.suppress_errors = False
    counts: Counter[str] = Counter()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + int(sys.argv[1])):
        try:
            counts[check(number)] += 1
        except BaseException as failure:
            counts[f"DIFFERENT {type(failure).__name__}"] += 1
            print(
                f"seed {number}",
                "".join(traceback.format_exception_only(failure))[:1500] if counts.total() < 300 else "",
            )
    for reason, count in counts.most_common():
        print(count, reason)
