"""Random Python programs: captured and replayed, they must agree with CPython in result, exception and effects.

`python tests/fuzz/test_capture_programs.py COUNT [SEED]` runs many by hand.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.capture import capture
from bolide.support.errors import BolideWarning, Unsupported

PRELUDE = """
import torch, functools, itertools, collections, contextlib

class Box:
    count = 0
    def __init__(self, v, *rest, scale=1):
        self.v = v; self.rest = rest; self.scale = scale
    @property
    def double(self): return self.v * 2
    @staticmethod
    def plus(a, b=1): return a + b
    @classmethod
    def of(cls, v): return cls(v, scale=2)
    def __add__(self, other): return Box(self.v + (other.v if isinstance(other, Box) else other))
    def __eq__(self, other): return isinstance(other, Box) and self.v == other.v
    def __hash__(self): return hash(self.v)
    def __lt__(self, other): return self.v < other.v
    def __len__(self): return abs(self.v) % 5
    def __getitem__(self, i): return self.v + i
    def __call__(self, *a, **k): return self.v + len(a) + len(k)
    def __enter__(self): self.v += 1; return self
    def __exit__(self, kind, error, tb): self.v -= 1; return kind is KeyError
    def __repr__(self): return f"Box({self.v})"

class Small(Box):
    def __init__(self, v): super().__init__(v, scale=3); self.extra = [v]
    def plus(self, b=2): return super().plus(self.v, b)

class Oops(ValueError):
    def __init__(self, code): super().__init__(code); self.code = code

@contextlib.contextmanager
def noted(log, name):
    log.append("+" + name)
    try:
        yield name
    except IndexError:
        log.append("!" + name)
    finally:
        log.append("-" + name)

STATE = {"n": 1, "items": [1, 2]}
TOTAL = 0
"""


class Writer:
    """Writes a random program of nested statements over a few typed pools of variables."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.fresh = 0
        self.depth = 0

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def integer(self, level: int = 0) -> str:
        if level > 2:
            return self.pick("a", "b", "n", str(self.rng.randint(-3, 9)))
        left, right = self.integer(level + 1), self.integer(level + 1)
        number = self.rng.randint(0, 3)
        return self.pick(
            left,
            f"({left} {self.pick('+', '-', '*', '|', '&', '^')} {right})",
            f"({left} // {right})",
            f"({left} % {right})",
            f"abs({left})",
            f"len(xs[{number}:])",
            "sum(xs) % 97",
            f"xs[{left} % 4]",
            f"d.get({self.key()}, {right})",
            f"({left} if {self.condition()} else {right})",
            f"min({left}, {right})",
            f"max([{left}, {right}, 0])",
            f"(lambda p, q={right}: p - q)({left})",
            f"Box({left}).double",
            f"Box.of({left}).scale",
            f"Small({left}).plus({right})",
            f"(Box({left}) + {right}).v",
            f"len(Box({left}))",
            f"Box({left})({right}, k={number})",
            f"f({left}, {right}, *xs[:2], z={number})",
            f"next((i for i in xs if i > {left}), {right})",
            f"sum(i * {number} for i in gen({number}))",
            f"x.shape[0] + {left}",
            f"box[{left}]",
            "(n := n + 1)",
            f"functools.reduce(lambda p, q: p * {number} + q, xs, {left}) % 1009",
            f"int(bool({left} and {right})) + int(not {left})",
            f"int({left} in xs) + int({self.key()} in d)",
        )

    def key(self) -> str:
        return self.pick("'k'", "'m'", "1", "(1, 2)")

    def condition(self) -> str:
        a, b = self.integer(3), self.integer(3)
        return self.pick(
            f"{a} < {b}",
            f"{a} == {b}",
            f"{a} <= {b} < 9",
            f"not {a}",
            f"{a} and {b}",
            f"{a} or {b}",
            f"{a} in xs",
            "box",
            "xs",
            "d",
            "isinstance(box, Small)",
            f"Box({a}) == Box({b})",
            f"any(i > {a} for i in xs)",
            f"all([{a}, {b}])",
            "x.dim() == 1",
        )

    def block(self, indent: int, count: int, loop: bool = False) -> None:
        self.depth += 1
        for _ in range(count):
            self.statement(indent, loop)
        self.depth -= 1

    def statement(self, indent: int, loop: bool) -> None:
        simple = [
            self.assign,
            self.assign,
            self.mutate,
            self.tensor,
            self.log,
            self.unpack,
            self.comprehension,
            self.outside,
        ]
        nested = [self.branch, self.loop, self.attempt, self.manager, self.closure, self.generator, self.match]
        if loop and self.rng.random() < 0.15:
            self.emit(indent, f"if {self.condition()}: {self.pick('break', 'continue')}")
            return
        self.rng.choice(simple + (nested if self.depth < 4 else []))(indent)

    def assign(self, indent: int) -> None:
        target = self.pick("a", "b", "n", "xs[0]", "d['k']", "box.v")
        self.emit(
            indent,
            f"{target} {self.pick('=', '=', '+=', '-=')} {self.integer()} % 1000"
            if self.rng.random() < 0.7
            else f"{target} = {self.integer()}",
        )

    def mutate(self, indent: int) -> None:
        a = self.integer(1)
        self.emit(
            indent,
            self.pick(
                f"xs.append({a})",
                "xs.pop()",
                f"xs.insert({self.rng.randint(0, 2)}, {a})",
                "xs.reverse()",
                "xs.sort()",
                "xs.sort(key=lambda i: -i)",
                f"d[{self.key()}] = {a}",
                f"d.update(k={a})",
                f"d.setdefault('m', {a})",
                "d.pop('m', None)",
                f"xs[1:2] = [{a}, 1]",
                "xs.extend(gen(2))",
                f"del xs[{self.rng.randint(0, 3)}]",
                f"xs += [{a}]",
                "d = {**d, 'w': len(d)}",
                f"xs = sorted(xs, reverse={self.pick('True', 'False')})",
            ),
        )

    def tensor(self, indent: int) -> None:
        a = self.integer(1)
        self.emit(
            indent,
            self.pick(
                f"x = x + {a} % 7",
                "x = x * 2 - 1",
                "x = torch.relu(x)",
                "x = torch.stack([x, x]).sum(0)",
                "x = x.clone(); x[0] = 3.0",
                "x = x.clone(); x.add_(1)",
                "x = torch.cat([x, x])[: x.shape[0]]",
                "x = sum([x, x], x)",
                "x = torch.where(x > 0, x, -x) % 5",
            ),
        )

    def log(self, indent: int) -> None:
        values = ("repr(box)", "str(xs)", "sorted(map(str, d))", "tuple(xs)", "list(zip(xs, d))", "len(log)")
        self.emit(indent, f"log.append({self.pick(self.integer(1), *values)})")

    def unpack(self, indent: int) -> None:
        self.emit(
            indent,
            self.pick(
                "a, b = b, a",
                "a, *r = xs; log.append(r)",
                "(a, (b, n)) = (1, (n, a))",
                "*r, b = gen(3); log.append(r)",
                "a = b = n",
                "a, b = xs",
            ),
        )

    def comprehension(self, indent: int) -> None:
        c = self.condition()
        self.emit(
            indent,
            self.pick(
                f"xs = [i + a for i in xs if {c}] + [1, 2]",
                "d = {k: i for i, k in enumerate(d)}",
                "log.append([[i * j for j in range(i % 3)] for i in xs])",
                "log.append(sorted({i % 3 for i in xs}))",
                "xs = list(map(lambda i: i + 1, xs))",
                "xs = list(filter(lambda i: i % 2, xs)) or [4]",
                "xs = [*xs[:3], *gen(1)]",
                "log.append(dict(zip('ab', xs)))",
            ),
        )

    def outside(self, indent: int) -> None:
        a = self.integer(1)
        self.emit(
            indent,
            self.pick(
                f"STATE['n'] = {a}",
                f"STATE['items'].append({a})",
                "TOTAL += 1",
                f"box.extra_{self.rng.randint(0, 1)} = {a}",
                "a = STATE['n']",
                "log.append(len(STATE))",
                f"Box.count = {a}",
                "n = Box.count",
                "log.append(getattr(box, 'extra_0', None))",
                "log.append(hasattr(box, 'extra_1'))",
                "n = TOTAL",
                "STATE.pop('w', 0)",
            ),
        )

    def branch(self, indent: int) -> None:
        self.emit(indent, f"if {self.condition()}:")
        self.block(indent + 1, 2)
        if self.rng.random() < 0.6:
            self.emit(indent, self.pick("else:", f"elif {self.condition()}:"))
            self.block(indent + 1, 1)

    def loop(self, indent: int) -> None:
        name = self.name("i")
        kind = self.pick(
            f"for {name} in range({self.rng.randint(0, 4)}):",
            f"for {name} in gen(2):",
            f"for {name}, _v in list(d.items()):",
            f"for {name} in xs[:3]:",
            "while",
        )
        if kind == "while":
            self.emit(indent, f"{name} = 0")
            self.emit(indent, f"while {name} < 3:")
            self.emit(indent + 1, f"{name} += 1")
        else:
            self.emit(indent, kind)
        self.block(indent + 1, 2, loop=True)
        if self.rng.random() < 0.3:
            self.emit(indent, "else:")
            self.block(indent + 1, 1)

    def attempt(self, indent: int) -> None:
        self.emit(indent, "try:")
        self.block(indent + 1, 2)
        if self.rng.random() < 0.5:
            self.emit(
                indent + 1,
                self.pick(
                    "raise KeyError(a)",
                    f"if {self.condition()}: raise Oops(b)",
                    "xs[99]",
                    "d['none']",
                    "1 // 0",
                    "raise Oops(1) from KeyError(2)",
                    "next(iter([]))",
                ),
            )
        handlers = self.pick("KeyError", "(IndexError, ZeroDivisionError)", "ValueError", "Exception", "")
        if handlers:
            self.emit(indent, f"except {handlers} as error:")
            self.emit(
                indent + 1,
                "log.append((type(error).__name__, str(error), type(error.__cause__).__name__)); "
                "log.append(getattr(error, 'code', None))",
            )
            self.block(indent + 1, 1)
            if self.rng.random() < 0.15:
                self.emit(indent + 1, "raise")
            if self.rng.random() < 0.3:
                self.emit(indent, "else:")
                self.block(indent + 1, 1)
        if not handlers or self.rng.random() < 0.4:
            self.emit(indent, "finally:")
            self.block(indent + 1, 1)

    def manager(self, indent: int) -> None:
        self.emit(
            indent,
            self.pick(
                "with Box(a) as w:",
                "with noted(log, 'u') as w, noted(log, 'v'):",
                "with box as w:",
                "with contextlib.suppress(ZeroDivisionError):",
                "with torch.no_grad():",
            ),
        )
        self.block(indent + 1, 2)
        if self.rng.random() < 0.3:
            self.emit(indent + 1, self.pick("xs[50]", "raise KeyError('w')", "1 // 0"))

    def closure(self, indent: int) -> None:
        name = self.name("g")
        self.emit(indent, f"def {name}(p, q={self.integer(1)}, *r, s=1, **t):")
        self.emit(indent + 1, "nonlocal n")
        self.emit(indent + 1, "n = n + p - q + len(r) + s + len(t)")
        self.emit(indent + 1, f"if p > 20: return {self.pick('a', 'xs[0]', 'p')}")
        self.emit(indent + 1, f"return {self.pick('n', 'p * q', 'box.v', '[p, q]', 'sum(r)')}")
        self.emit(indent, f"log.append({name}({self.pick('1', 'a', '*xs[:3]', '2, s=b', '1, 2, 3, z=4', 'q=1, p=2')}))")

    def generator(self, indent: int) -> None:
        name = self.name("y")
        self.emit(indent, f"def {name}(p):")
        self.emit(indent + 1, "try:")
        self.emit(indent + 2, "for i in range(p):")
        self.emit(indent + 3, self.pick("s = yield i * 2", "s = yield from gen(i)", "yield i; s = None"))
        self.emit(indent + 3, "if s: log.append(s)")
        self.emit(indent + 2, "return a")
        self.emit(indent + 1, f"{self.pick('finally', 'except ValueError')}: log.append('end')")
        self.emit(indent, f"it = {name}({self.rng.randint(0, 4)})")
        self.emit(
            indent,
            self.pick(
                "log.append(list(it))",
                "log.append(next(it, -1)); it.close()",
                "log.append([v for v in it])",
                "log.append(sum(it))",
                "log.append(next(it, None)); log.append(list(it))",
                "log.append(tuple(zip(it, it)))",
                "log.append(max(it, default=0))",
            ),
        )

    def match(self, indent: int) -> None:
        self.emit(indent, f"match {self.pick('a', 'xs', 'd', 'box', '(a, b)')}:")
        for case in ("case 1 | 2:", "case [p, *_] if p:", "case {'k': p}:", "case Box(v=p):", "case _:"):
            self.emit(indent + 1, case)
            self.emit(
                indent + 2,
                "log.append(('case', a))" if case.startswith(("case 1", "case _")) else "log.append(('case', p))",
            )

    def program(self) -> str:
        self.emit(0, "def program(x, a, b, xs, d, box):")
        self.emit(1, "global TOTAL")
        self.emit(1, "n = 0; log = []")
        self.emit(1, "def f(p, q, *r, z=0, **k): return p - q + len(r) * z")
        self.emit(1, "def gen(p):")
        self.emit(2, "for i in range(p): yield i")
        self.block(1, self.rng.randint(3, 8))
        self.emit(1, "return x, a, b, xs, d, n, log")
        return PRELUDE + "\n".join(self.lines) + "\n"


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
    if hasattr(value, "rest"):
        return (type(value).__name__, plain(vars(value)))
    return value


def outcome(source: str, seed: int, compiled: bool) -> Any:
    """(result or exception, arguments afterwards, globals afterwards) of one run in a namespace of its own."""
    namespace: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(source, f"<fuzz {seed}>", "exec"), namespace)
    function = namespace["program"]
    args = arguments(seed, namespace)
    try:
        if compiled:
            error = captured_exception(function, args)
            if error is not None:
                return ("raises", type(error).__name__, str(error)), *untouched(args, namespace)
            function = bolide.compile(function, backend="aot_eager", fullgraph=True)
        result: Any = ("returns", plain(function(*args)))
    except Unsupported:
        raise
    except Exception as error:
        return ("raises", type(error).__name__, str(error)), *untouched(arguments(seed, namespace), namespace)
    after = {name: plain(namespace[name]) for name in ("STATE", "TOTAL")}
    return result, plain(args[3:]), after, namespace["Box"].count


def captured_exception(function: Any, args: list[Any]) -> BaseException | None:
    """The exception that the program raises under capture."""
    try:
        capture(function, tuple(args), {})
    except Unsupported as error:
        if error.kind != "user_exception":
            raise
        return error.__cause__
    return None


def untouched(args: list[Any], namespace: dict[str, Any]) -> tuple[Any, Any, int]:
    """What a program that raises under capture must leave behind: everything as it was (eager then runs it)."""
    return plain(args[3:]), {"STATE": plain({"n": 1, "items": [1, 2]}), "TOTAL": 0}, 0


def check(seed: int) -> str:
    """ "same", or what capture does not support. Raises AssertionError on a difference."""
    source = Writer(seed).program()
    expected = outcome(source, seed, False)
    try:
        actual = outcome(source, seed, True)
    except Unsupported as error:
        return error.reason
    assert actual == expected, f"seed {seed}\n{source[len(PRELUDE) :]}\nexpected {expected}\nactual   {actual}"
    return expected[0][0]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_with_cpython(seed: int) -> None:
    offset = random.SystemRandom().randrange(10**6)
    print("seed", seed + 1000 * offset)
    check(seed + 1000 * offset)


if __name__ == "__main__":
    from collections import Counter

    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", BolideWarning)
    bolide.dynamo.config.suppress_errors = False
    for number in range(first, first + int(sys.argv[1])):
        try:
            counts[check(number)] += 1
        except AssertionError as failure:
            counts["DIFFERENT"] += 1
            print(str(failure)[:3000] if counts["DIFFERENT"] < 4 else f"seed {number}")
        except Exception as failure:
            counts[f"CRASH {type(failure).__name__}: {str(failure)[:120]}"] += 1
    for reason, count in counts.most_common():
        print(count, reason)
