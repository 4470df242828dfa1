"""What eager refuses, compiled code refuses: the same class of exception with the same message.

By hand: `python tests/errors/test_opdb_errors.py [--made] [--jobs N] [--backend inductor] [--dynamic] [--only NAME]
[--most N] [--seed N]`: each operation in a process of its own; `--made` takes calls made from samples.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import pytest
import torch
from error_calls import OPERATIONS, Call, all_subjects, made_from_samples, with_other_types
from torch.utils import _pytree as pytree

import bolide
from bolide.dynamo.config import config
from bolide.support.errors import BolideError, BolideWarning

COUNT = 120  # operations and modules of a run
LIMIT = 120.0  # for an operation, by hand


class Raised(tuple):
    """(class, message) of an exception."""


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a call, or what it has raised."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        text = str(error).partition("\nException raised from ")[0]  # a traceback of C++ follows
        return Raised((type(error), re.sub(r"0x[0-9a-f]+", "0x", text)))


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A compiled function that calls `function`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return bolide.compile(call, **options)


def difference(call: Call, **options: Any) -> str | None:
    """How a compiled call differs from eager's, in what it raises; None if it does not."""
    torch.manual_seed(0)
    expected = outcome(call.function, *call.arguments())
    torch.manual_seed(0)
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*BR0704", BolideWarning)  # a fault of bolide's
        found = outcome(compiled(call.function, **options), *call.arguments())
    if type(found) is Raised and issubclass(found[0], (BolideError, BolideWarning)):
        return f"{found[0].__name__}: {found[1][:300]}"
    if type(found) is not type(expected) and Raised in (type(found), type(expected)):
        return f"eager {_shown(expected)}, compiled {_shown(found)}"
    if type(found) is Raised and found != expected:
        return f"eager {_shown(expected)}, compiled {_shown(found)}"
    return None


def _shown(value: Any) -> str:
    if type(value) is Raised:
        return f"{value[0].__name__} {value[1][:160]!r}"
    shapes = [(t.dtype, tuple(t.shape)) if isinstance(t, torch.Tensor) else t for t in pytree.tree_leaves(value)]
    return f"gives {str(shapes)[:100]}"


def faults(calls: Iterable[Call], **options: Any) -> Iterator[tuple[str, str | None]]:
    """(name of the call, how it differs) of each call that eager refuses."""
    for call in calls:
        bolide.reset()
        yield call.name, difference(call, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
def test_error_inputs_of_operations_and_modules(dynamic: bool | None) -> None:
    found, count = [], 0
    for _, make in random.sample(all_subjects(), COUNT):
        for name, fault in faults(make(), dynamic=dynamic):
            count += 1
            if fault is not None:
                found.append(f"{name}: {fault}")
    print(f"{count} calls")
    assert not found, "\n".join(found)


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_types() -> None:
    found, count = [], 0
    for operation in random.sample(OPERATIONS, COUNT):
        for name, fault in faults(with_other_types(operation, random.Random(random.random()))):
            count += 1
            if fault is not None:
                found.append(f"{name}: {fault}")
    print(f"{count} calls")
    assert not found, "\n".join(found)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def _work(make: Callable[[], Iterator[Call]], options: dict[str, Any], pipe: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        for name, fault in faults(make(), **options):
            pipe.send((name, fault))
    except BaseException as error:
        pipe.send(("the sweep itself", f"{type(error).__name__}: {error}"))
    pipe.send(None)


def sweep(subjects: list[tuple[str, Any]], jobs: int, options: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """(subject, call, fault) of all calls, each subject in a process of its own."""
    waiting, running = list(reversed(subjects)), {}
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            name, make = waiting.pop()
            mine, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(make, options, theirs))
            child.start()
            theirs.close()
            running[name] = child, mine, time.monotonic(), [""]
        time.sleep(0.005)
        for name, (child, pipe, start, last) in list(running.items()):
            ended = False
            try:
                while pipe.poll():
                    message = pipe.recv()
                    if message is None:
                        ended = True
                        break
                    last[0] = message[0]
                    yield name, *message
            except EOFError:
                child.join()
                yield name, f"behind {last[0]}", f"CRASH {child.exitcode}"
                ended = True
            if not ended and time.monotonic() - start > LIMIT:
                child.kill()
                yield name, f"behind {last[0]}", "TIMEOUT"
                ended = True
            if ended:
                child.join()
                del running[name]


def main() -> int:
    """Run a sweep; the status says whether there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int, default=10**9, help="samples of each type, with --made")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    given = parser.parse_args()
    print(f"torch {torch.__version__}, seed {given.seed}")
    subjects = all_subjects()
    if given.made:
        rng = random.Random(given.seed)
        subjects = [(op.formatted_name, lambda op=op: made_from_samples(op, rng, given.most)) for op in OPERATIONS]
    part, _, parts = given.shard.partition("/")
    chosen = [subject for subject in subjects if subject[0] in given.only.split(",") or not given.only]
    counts: Counter[str] = Counter()
    options = {"backend": given.backend, "dynamic": True if given.dynamic else None}
    for _, name, fault in sweep(chosen[int(part) :: int(parts)], given.jobs, options):
        counts["faults" if fault else "right"] += 1
        if fault:
            print(f"{name}: {fault}", flush=True)
    print(dict(counts))
    return int(counts["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
