"""Random programs over sizes, called with sizes in random order: eager's results, strides, dtypes and gradients; and no
version is compiled beyond the second unless a line of the program asks for it, which bolide names.

By hand: `python tests/fuzz/test_shape_programs.py COUNT [SEED] [backend=…] [style=…] [sizes=…] [marks=…] [dynamic=…]`.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from told import Told, strides
from writers.shape_programs import GLOBALS, Style, Writer

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import BolideWarning, CompileError, ConstraintError, UserFrame

STYLES = {
    "plain": Style(),
    "loops": Style(loops=True),
    "branches": Style(branches=True),
    "data": Style(branches=True, data=True),
}
#: Sizes that programs are called with: any; with 0, 1, 2 and negative integers; always another.
SIZES = {"large": (6, 40), "small": (0, 6)}
MARKS = ("none", "dynamic", "maybe", "unbacked", "static", "bounds")
PROGRAMS = 4  # of each style in CI


@dataclass
class Setting:
    """How a program is written and called."""

    seed: int
    backend: str = "inductor"
    style: str = "plain"
    sizes: str = "large"
    marks: str = "none"
    dynamic: bool | None = None
    count: int = 6


def arguments(rng: random.Random, setting: Setting) -> list[tuple[Any, ...]]:
    """The arguments of each call: two matrices that share a size, indices, an integer and a float."""
    lo, hi = SIZES[setting.sizes]  # all are different: the second call has the second value of each
    rows, columns = (rng.sample(range(lo, hi + 1), setting.count) for _ in "xy")
    numbers = rng.sample(range(3, 12) if setting.sizes == "large" else range(-3, 6), setting.count)
    dtype = rng.choice([torch.float32, torch.float64])
    made: list[tuple[Any, ...]] = []
    turned = rng.random() < 0.2
    for a, b, n in zip(rows, columns, numbers):
        x, y = torch.randn(a, b, dtype=dtype), torch.randn(b, 4, dtype=dtype)
        if turned:
            x = torch.randn(b, a, dtype=dtype).t()
        made.append((x, y, torch.randint(0, 50, (a,)), n, n / 8 + rng.choice([0, 0.01])))
    return made


def prepared(call: tuple[Any, ...], setting: Setting, training: bool) -> list[Any]:
    """Copies of a call's arguments, marked and with gradients as the setting says."""
    copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in call]
    for tensor in copies[:2]:
        tensor.requires_grad_(training)
    x = copies[0]
    if setting.marks == "bounds":
        bolide.mark_dynamic(x, 0, min=0, max=4000)
    elif setting.marks != "none":
        mark = {
            "dynamic": bolide.mark_dynamic,
            "maybe": bolide.maybe_mark_dynamic,
            "unbacked": bolide.mark_unbacked,
            "static": bolide.mark_static,
        }[setting.marks]
        mark(x, 0)
    return copies


def outcome(function: Any, args: list[Any]) -> tuple[Any, list[Any]]:
    """What a call returns, and the gradients that it leaves."""
    result = function(*args)
    grads: list[Any] = []
    wanted = [r for r in result if isinstance(r, torch.Tensor) and r.requires_grad]
    if wanted:
        try:
            sum((r.double() ** 2).sum() for r in wanted).backward()
        except RuntimeError as error:  # some backward formulas refuse empty tensors
            return result, [type(error)]
        grads = [tensor.grad for tensor in args[:2]]
    return result, grads


def same(mine: Any, theirs: Any, text: str) -> None:
    """Assert that two outcomes are the same."""
    assert type(mine) is type(theirs), f"{text}\n{type(mine)} instead of {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert mine.requires_grad == theirs.requires_grad, text
        shapes = (mine.shape, mine.dtype, strides(mine)), (theirs.shape, theirs.dtype, strides(theirs))
        assert shapes[0] == shapes[1], f"{text}\n{shapes[0]}\ninstead of\n{shapes[1]}"
        largest = float(theirs.detach().double().abs().max()) if theirs.numel() else 0.0
        allowed = 1e-4 * (1 + largest)
        torch.testing.assert_close(
            mine, theirs, rtol=1e-3, atol=allowed, equal_nan=True, msg=lambda message: f"{text}\n{message}"
        )
    elif isinstance(theirs, (tuple, list)):
        assert len(mine) == len(theirs), text
        for a, b in zip(mine, theirs):
            same(a, b, text)
    elif isinstance(theirs, float):
        assert mine == pytest.approx(theirs, rel=1e-6, nan_ok=True), f"{text}\n{mine} instead of {theirs}"
    else:
        assert mine == theirs, f"{text}\n{mine} instead of {theirs}"


def unexplained(told: Told, number: int, pinned: dict[str, UserFrame]) -> str | None:
    """Why a version should not have been compiled; None if a line of the program asked for it. `pinned` are the sizes
    and numbers that lines of the program needed to know in earlier calls."""
    for event in (*told.fixed, *told.breaks):
        if event.where is None or not event.where.file.startswith("<shapes"):
            return f"no line: {event}"
    pinned |= {event.source: event.where for event in told.fixed}
    if number < 2:
        return None
    newest = {event.name: event for event in told.failed}
    for made in told.installed:
        event = newest.get(made.name)
        if event is None:
            continue  # a segment that is new, behind a break
        starts = [(f"{place} == ", f"{place.partition('.')[0]}: Tensor") for place in pinned]
        needed = [start for start in starts if event.guard.startswith(start)]
        if not needed and not is_relation(event):
            return f"{event.guard}, found {event.actual}"
    return None


def is_relation(event: Any) -> bool:
    """Whether a guard on sizes or floats failed that a line of the program has made."""
    return event.where.file.startswith("<shapes") and not event.where.text.startswith("def ")


def check(setting: Setting) -> Counter[str]:
    """Compare one program with eager. What is worth counting; raises AssertionError on a difference."""
    rng = random.Random(setting.seed)
    torch.manual_seed(setting.seed)
    calls = arguments(rng, setting)
    training = rng.random() < 0.5
    source = Writer(rng, calls, STYLES[setting.style]).program(rng.randint(3, 12))
    name = f"<shapes {setting.seed}>"
    scope, own = load(source, name), {**load(source, name), "cond": torch.cond}
    exec(compile(source, name, "exec"), own)
    text = f"{setting}\n{source}"
    counts: Counter[str] = Counter()
    pinned: dict[str, UserFrame] = {}
    compiled = bolide.compile(own["program"], backend=setting.backend, dynamic=setting.dynamic)
    data = setting.style == "data"
    settles = setting.sizes == "large" and setting.dynamic is not False and setting.marks != "static"
    with config.patch(capture_scalar_outputs=data, capture_dynamic_output_shape_ops=data, cache_size_limit=64):
        for number, call in enumerate(calls):
            expected = outcome(scope["program"], prepared(call, setting, training))
            told = Told()
            try:
                with events.subscribed(told.hear):
                    found = outcome(compiled, prepared(call, setting, training))
            except ConstraintError as error:
                assert name in str(error) and setting.marks in ("dynamic", "bounds", "unbacked"), f"{text}\n{error}"
                counts["constraint"] += 1
                break
            except (CompileError, BolideWarning) as error:  # a backward that eager refuses when it is asked for
                refused = type(error.__cause__) is RuntimeError or "the program has no backward" in str(error)
                assert expected[1] == [RuntimeError] and refused, f"{text}\n{error}"
                counts["refused"] += 1
                continue
            shown = [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in call]
            same(found, expected, f"{text}\ncall {number}: {shown}")
            tally(counts, told, number)
            reason = unexplained(told, number, pinned) if settles else None
            assert reason is None, f"{text}\ncall {number} compiles again: {reason}"
    return counts


def tally(counts: Counter[str], told: Told, number: int) -> None:
    """Count what bolide told of one call: by hand, to see what could be spared."""
    counts["versions"] += len(told.installed)
    if number > 1 and told.installed:
        counts["late"] += 1
        for event in filter(is_relation, told.failed[-1:]):
            counts[f"LATE {event.guard[:150]} at {event.where.text}"] += 1
    for event in told.fixed:
        counts[f"FIXED {event.reason} at {event.where.text}"] += 1
    for event in told.breaks:
        counts[f"BREAK {event.kind} {event.reason[:150]} at {event.where.text}"] += 1


def load(source: str, name: str) -> dict[str, Any]:
    """The globals of a program, whose lines can be shown."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = dict(GLOBALS)
    exec(compile(source, name, "exec"), scope)
    return scope


@pytest.mark.parametrize("style", STYLES)
def test_random_programs_over_sizes(style: str) -> None:
    for number in range(PROGRAMS):
        seed = number + 1000 * int(os.environ["BOLIDE_TEST_SEED"])
        rng = random.Random(seed)
        marks = rng.choice(MARKS) if rng.random() < 0.4 else "none"
        sizes, dynamic = rng.choice(list(SIZES)), rng.choice([None, None, True, False])
        check(Setting(seed, style=style, sizes=sizes, marks=marks, dynamic=dynamic))


def main(arguments: list[str]) -> None:
    count, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    given: dict[str, Any] = dict(argument.split("=") for argument in arguments[2:])
    if "dynamic" in given:
        given["dynamic"] = {"True": True, "False": False, "None": None}[given["dynamic"]]
    config.suppress_errors = False
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    shown = 0
    for seed in range(first, first + count):
        setting = Setting(seed, **given)
        try:
            found = check(setting)
            counts.update(found)
            counts["programs"] += 1
        except AssertionError as failure:
            counts["DIFFERENT"] += 1
            shown += 1
            print(
                f"--- DIFFERENT seed {seed}\n{str(failure)[:2500]}" if shown < 6 else f"--- DIFFERENT seed {seed}",
                flush=True,
            )
        except Exception as failure:
            kind = f"CRASH {type(failure).__name__}: {str(failure)[:200]}"
            counts[kind] += 1
            print(f"--- CRASH seed {seed} {kind}", flush=True)
        bolide.reset()
    for kind, number in counts.most_common(120):
        print(number, kind)


if __name__ == "__main__":
    main(sys.argv[1:])
