"""Random calls of everything in the standard library's pure parts: captured and replayed, they agree with CPython.

The functions are found by looking into modules and built-in types, the arguments are drawn from the values of the
coverage table. `python tests/fuzz/test_library_calls.py COUNT [SEED]` runs many by hand.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import cmath
import collections
import contextlib
import copy
import enum
import functools
import heapq
import inspect
import itertools
import math
import operator
import os
import pathlib
import random
import statistics
import string
import sys
import textwrap
import types
import warnings
from collections import Counter

import pytest

import bolide
from bolide.support.errors import BolideWarning

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "correctness" / "python"))
import test_library_coverage as coverage
from library_programs import VALUES

TYPES = (
    *(int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range, slice, object, type, property),
    *(collections.deque, collections.OrderedDict, collections.defaultdict, collections.Counter, collections.ChainMap),
    *(functools.partial, types.SimpleNamespace, enum.Enum),
)
MODULES = (bisect, cmath, copy, functools, heapq, itertools, math, operator, statistics, string, textwrap)
BUILTINS = [name for name in dir(builtins) if callable(getattr(builtins, name)) and name[0] != "_"]
# Their results are of the moment, endless, or hold memory addresses.
LEFT_OUT = {"hash", "id", "count", "cycle", "repeat", "mro", "__sizeof__", "__dir__", "__subclasses__", "copy"}
LEFT_OUT |= {"breakpoint", "compile", "copyright", "credits", "eval", "exec", "exit", "globals", "help", "input"}
LEFT_OUT |= {"license", "locals", "open", "print", "quit", "aiter", "anext", "memoryview", "super", "object", "iter"}
LEFT_OUT |= {
    "KeyboardInterrupt",
    "GeneratorExit",
    "SystemExit",
    "cmp_to_key",
    "tee",
    "format_map",
    "dir",
    "__init_subclass__",
}
LEFT_OUT |= {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__class_getitem__", "__subclasshook__"}
LEFT_OUT |= {"__setattr__", "__delattr__", "__getattribute__", "property", "staticmethod", "classmethod", "keys"}
LEFT_OUT |= {
    "__mod__",
    "__new__",
    "__init__",
    "__instancecheck__",
    "__subclasscheck__",
    "__prepare__",
    "__repr__",
    "__str__",
}
LEFT_OUT |= {"length_hint", "elements", "groupby", "insort", "insort_left", "insort_right", "Error", "namedtuple"}
LEFT_OUT |= {"heappush", "heappop", "heapify", "heapreplace", "heappushpop", "cached_property", "lru_cache", "cache"}
LEFT_OUT |= {"__hash__", "recursive_repr", "__format__", "repr", "str", "ascii", "format", "Formatter", "Template"}
NAMES = (
    "'v'",
    "'get'",
    "'nope'",
    "0",
    "1",
    "-1",
    "2",
    "None",
    "True",
    "''",
    "'a'",
    "()",
    "[]",
    "lambda *a: a[0]",
    "str",
    "Box",
)


def functions() -> list[str]:
    """The text of everything that is called."""
    found = list(BUILTINS)
    for cls in TYPES:
        name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        found += [f"{name}.{method}" for method in dir(cls) if callable(getattr(cls, method, None))]
    for module in MODULES:
        found += [
            f"{module.__name__}.{name}" for name in dir(module) if name[0] != "_" and callable(vars(module)[name])
        ]
    return [name for name in found if name.rpartition(".")[2] not in LEFT_OUT]


FUNCTIONS = functions()
LAZY = ("itertools.", "map", "filter", "zip", "enumerate", "reversed", "iter")


@functools.cache
def arity(name: str) -> tuple[int, int]:
    """How many arguments a function takes at least and at most (of three)."""
    try:
        parameters = inspect.signature(eval(name, coverage.MODULE.__dict__)).parameters.values()
    except (TypeError, ValueError):
        return 1, 3
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return sum(p.default is p.empty for p in positional), 3 if many else min(3, len(positional))


def row(seed: int) -> coverage.Row:
    """One random call as a row of the coverage table. Iterators are listed as far as ten items."""
    rng = random.Random(seed)
    name = rng.choice(FUNCTIONS)
    pool = [value for value in VALUES if value not in ("gen", "it", "ze", "stack", "mod", "cyc")]
    low, high = arity(name)
    count = rng.randint(low, high) if rng.random() < 0.9 else rng.randint(0, 3)
    args = [rng.choice(pool) if rng.random() < 0.75 else rng.choice(NAMES) for _ in range(count)]
    own = [value for value in pool if _fits(value, name.rpartition(".")[0])]
    if own:
        args[:1] = [rng.choice(own)]
    call = f"{name}({', '.join(args)})"
    if name.startswith(LAZY) or name.endswith(("__iter__", "__reversed__", "merge")):
        call = f"list(itertools.islice({call}, 10))"
    body = ast.parse(call).body
    used = {node.id for node in ast.walk(body[0]) if isinstance(node, ast.Name)}
    return coverage.Row("calls", call, tuple(body), tuple(value for value in VALUES if value in used))


@functools.cache
def _classes() -> dict[str, type]:
    scope = dict(coverage.MODULE.__dict__, x=0, m=0)
    out = {}
    for name, text in VALUES.items():
        with contextlib.suppress(Exception):
            out[name] = type(eval(text, scope))
    return out


def _fits(value: str, owner: str) -> bool:
    cls = next((c for c in TYPES if owner in (c.__name__, f"{c.__module__}.{c.__qualname__}")), None)
    known = _classes().get(value)
    if cls is dict and known is collections.OrderedDict:
        return False  # the methods of dict break an OrderedDict
    return cls is not None and known is not None and issubclass(known, cls) and cls not in (object, type)


def check(seed: int) -> str:
    """ "" or why the call is not captured. Raises AssertionError when the outcome differs."""
    place = coverage.PLACES[seed % 3]
    with pytest.MonkeyPatch.context() as patch:
        # a wrong call fails at another place, with other classes in its message; eager then raises the real one
        patch.setattr(coverage, "_alike", lambda error, expected: True)
        return coverage.verdict(row(seed), place, seed)


@pytest.mark.parametrize("number", range(60))
def test_random_calls_agree_with_cpython(number: int) -> None:
    seed = number + 1000 * int(os.environ["BOLIDE_TEST_SEED"])
    print("seed", seed, row(seed).name)
    check(seed)


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    reasons: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", BolideWarning)
    bolide.dynamo.config.suppress_errors = False
    for at in range(first, first + int(sys.argv[1])):
        try:
            reasons[check(at) or "captured"] += 1
        except AssertionError as failure:
            reasons["WRONG"] += 1
            print(at, coverage.PLACES[at % 3], row(at).name, coverage._first_difference(str(failure)))
        except Exception as failure:
            reasons["CRASH"] += 1
            print(at, coverage.PLACES[at % 3], row(at).name, "CRASH", type(failure).__name__, str(failure)[:200])
    for reason, count in reasons.most_common(40):
        print(count, reason)
