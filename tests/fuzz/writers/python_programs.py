"""A writer of random Python programs: nested statements over a few typed pools of variables.

Variables of a program: integers a, b, n; a list of integers xs; a dict d; an instance box; a tensor x; the list `log`,
which notes what happened in which order. Each argument of `program` is one of these.
"""

from __future__ import annotations

import random

from writers.python_library import PRELUDE as LIBRARY
from writers.python_statements import PRELUDE as MORE
from writers.python_statements import Statements
from writers.python_topics import Library

PRELUDE = """
import torch, functools, itertools, collections, contextlib, sys, operator
import bolide

@bolide.disable
def opaque(log, a): log.append(("opaque", a))

def described(e, depth=4):
    if e is None or depth == 0: return None
    return (type(e).__name__, str(e), described(e.__cause__, depth - 1), described(e.__context__, depth - 1))

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

class Note:
    # a data descriptor and an iterator
    def __init__(self, n): self.n = n; self.i = 0
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, o, t=None): return self if o is None else o.__dict__.get("_" + self.name, self.n)
    def __set__(self, o, v): o.__dict__["_" + self.name] = v + 1
    def __iter__(self): return Note(self.n)
    def __next__(self):
        self.i += 1
        if self.i > self.n % 4: raise StopIteration
        return self.i * 2
    def __contains__(self, v): return v % 3 == self.n % 3
    def __bool__(self): return self.n % 2 == 0
    def __iadd__(self, v): self.n += v; return self
    def __radd__(self, v): return v * 2 + self.n
    def __eq__(self, o): return self.n == o if isinstance(o, int) else NotImplemented
    __hash__ = None

class Slotted:
    __slots__ = ("p", "q")
    kinds = []
    def __init__(self, p, q=0): self.p = p; self.q = q
    def __getattr__(self, name):
        if name.startswith("w"): return len(name) + self.p
        raise AttributeError(name)
    def __format__(self, spec): return f"<{self.p}{spec}>"
    def both(self): yield self.p; yield self.q

def careful(log, name, n):
    try:
        for i in range(n): yield i
    except KeyError as e:
        log.append((name, described(e))); yield -1
    finally:
        log.append(name)

STATE = {"n": 1, "items": [1, 2]}
TOTAL = 0
"""
PRELUDE += MORE + LIBRARY


class Writer(Statements, Library):
    """Writes a random program of nested statements over a few typed pools of variables."""

    def __init__(self, seed: int, breaks: bool = False) -> None:
        self.rng = random.Random(seed)
        self.breaks = breaks  # whether there are statements that end a segment
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
            f"sum(Note({left}))",
            f"({left} + Note({right}))",
            f"int({left} in Note({right}))",
            f"int(bool(Note({left})))",
            f"int(Note({left}) == {right}) + int({right} != Note({left}))",
            f"Slotted({left}).wide",
            f"sum(Slotted({left}, {right}).both())",
            f"len(f'{{Slotted(a):>{number}}}|{{b!r:>5}}|{{n:03d}}') + {left}",
            f"[*Note({left}), {right}][0]",
            f"(lambda *p, k=3, **q: len(p) + k + len(q))(*xs[:{number}], **{{'z': {left}}})",
            f"functools.partial(f, {left})({right})",
            f"operator.add({left}, {right})",
            f"sorted([{left}, {right}, n], key=lambda v: (v % 3, v))[{number} % 3]",
            f"(max(xs, key=lambda v: v % 5) if xs else {left})",
            "sum(p * q for p, q in zip(xs, reversed(xs)))",
            f"list(itertools.accumulate([{left}, {right}]))[-1]",
            f"x.numel() * {number} - {left}",
            f"tuple(x.shape)[0] % ({right} % 5 + 1)",
            f"dict(p={left}, **{{'q': {right}}})['q']",
            f"divmod({left}, {right} % 5 + 1)[{number % 2}]",
            f"(m := {left}) * m % 101",
            f"int(str({left})) + len(str({right}).zfill({number}))",
            f"len({{i % 3 for i in xs}} | {{{left}, {right}}})",
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
            f"{a} != {b} > -3",
            f"Note({a})",
            f"{a} not in Note({b})",
            f"{self.pick('a', 'box', 'd')} is not None",
            "x.shape[-1] == 4 and x.dtype is torch.float32",
            f"hasattr(Slotted({a}), {self.pick(repr('wx'), repr('p'), repr('zz'))})",
            "callable(f)",
            f"issubclass(type(box), Box) and {a} > 0",
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
            self.trap,
            self.changed_while_read,
            self.targets,
            self.aliases,
        ]
        nested = [
            self.branch,
            self.loop,
            self.attempt,
            self.manager,
            self.closure,
            self.generator,
            self.match,
            self.abandon,
            self.throwing,
            self.nested_class,
            self.early,
            self.delete,
            self.recursion,
            self.classes,
            self.group,
            self.sent,
            self.coroutine,
            self.leaving,
            self.decorated,
            self.body,
            self.closures,
        ]
        if self.breaks and self.rng.random() < 0.12:
            self.stop(indent)
            return
        if loop and self.rng.random() < 0.15:
            self.emit(indent, f"if {self.condition()}: {self.pick('break', 'continue')}")
            return
        if self.rng.random() < 0.3:
            self.library(indent)
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
        if self.rng.random() < 0.4:
            self.sized(indent)
            return
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
                f"ys = [x, x + {a} % 3]; x = ys[-1] - ys[0]",
                "x = {'u': x, 'v': x * 2}['v']",
                "x, z = (x.clamp(-9, 9), x.mean()); x = x - z",
                "x = x.clone(); x[1:3] += 1",
                "x = x.clone(); y = x[:2]; y.mul_(2)",
                "x = x.reshape(2, -1).t().reshape(-1)",
                "x = torch.tensor([float(i) for i in range(x.shape[0])]) + x",
                "x = functools.reduce(torch.add, [x, x, x]) / 3",
                "x = x.masked_fill(x > 4, 1.0)",
                "for t in x: x = x + t * 0.5",
                f"x = x * {a} if x.ndim == 1 else x",
            ),
        )

    def sized(self, indent: int) -> None:
        """Tensors, whose sizes change from call to call, go through containers, functions and loops; `x` keeps its
        size."""
        a, inner = self.integer(1), "\n" + "    " * (indent + 1)
        end = "\n" + "    " * indent
        self.emit(
            indent,
            self.pick(
                "x = torch.cat(x.chunk(2)[::-1])",
                "x = torch.cat([t * (i + 1) for i, t in enumerate(x.split(2))])",
                f"x = x.roll({a} % 3) % 50",
                f"ts = [x, x * 2]; ts.append(x + {a} % 5); x = sum(ts) % 50",
                f"kept = {{i: t for i, t in enumerate(x.split(2))}}{end}"
                "x = torch.cat([kept[k] for k in sorted(kept, reverse=True)])",
                "x = functools.reduce(operator.add, [t.sum() for t in x.chunk(2)], x) % 50",
                f"x = (lambda t, k={a} % 3: t * k - x)(x + 1)",
                "x = next(t for t in (x[1:], x * 2, x) if t.shape[0] == x.shape[0])",
                f"def twice(t, k={a} % 4):{inner}return t * 2 - k{end}x = twice(x) % 50",
                f"def pieces(t):{inner}for i in range(0, t.shape[0], 2): yield t[i : i + 2] * (i - 1){end}"
                "x = torch.cat([*pieces(x)]) % 50",
                "box.kept = x * 2; x = box.kept - x; del box.kept",
                "x = (x[:, None] * x[None] % 7).sum(1) / x.shape[0]",
                f"x = torch.stack([t * (i + {a} % 3) for i, t in enumerate(x)]) % 50",
                "half = x.shape[0] // 2; x = torch.cat([x[half:], x[:half] * 2]) % 50",
                f"i = {a} % x.shape[0]; x = torch.cat([x[i:], x[:i]]); log.append(x[i:].shape[0])",
                f"x = f(x, x * 2, *xs[:2], z={a} % 3) % 50",
                "first, *others = x.split(2); x = torch.cat([*others, first])",
                f"total = 0{end}for start in range(0, len(x), 2): total = total + x[start : start + 2].sum(){end}"
                "x = (x + total) % 50",
                f"x = x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)) * ({a} % 3 + 1) % 50",
                "x = torch.nn.functional.pad(x, (1, 1))[1:-1] - x.mean()",
                f"w = x.new_zeros(x.shape[0] + 2){end}w[1:-1] = x{end}x = w[2:] + w[:-2]",
                f"acc = {{}}{end}for t in x.unbind()[:3]: acc.setdefault('t', []).append(t){end}"
                "x = x + torch.stack(acc['t']).sum()",
                "x = torch.where(x > x.mean(), x, -x).cumsum(0) % 50",
                f"log.append(tuple(x[{a} % 3 :].shape)); log.append([t.shape[0] for t in x.split(3)])",
                f"x = x[x.shape[0] - 2 :].repeat(x.shape[0])[: x.shape[0]] - {a} % 4",
                "x = (x.view(2, -1) @ x.view(2, -1).t() % 7).sum() + x",
                "state = x[0] * 0\n" + "    " * indent + f"for t in x: state = state * 0.5 + t{end}x = x - state",
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
                "log.append([(i, j) for i in xs[:2] for j in Note(i) if i != j])",
                "log.append([(lambda: i)() for i in xs])",
                "log.append({i: [j for j in range(i % 3)] for i in xs})",
                "fs = [lambda q=i: q + a for i in xs]; log.append([g() for g in fs])",
                "log.append([y := 3, y + a])",
                "log.append(list(enumerate(Note(a), 1)))",
                "log.append([*zip(xs, careful(log, 'z', 2))])",
                "xs = [v for v in xs if v not in Note(b)] + [5, 6]",
                "log.append(any(log.append(i) for i in xs[:2]))",
            ),
        )

    def outside(self, indent: int) -> None:
        """Reads and writes of what the program shares with its surroundings."""
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
                    "raise Oops",
                    "raise KeyError(1) from None",
                    "raise IndexError from Oops(3)",
                    "int('q')",
                    "f()",
                    "f(1, 2, q=3)",
                    "box.nothing",
                    "undefined",
                    "a, b = 1, 2, 3",
                    "xs.remove(1000)",
                    "assert a == 1000, n",
                    "[].pop()",
                    "'%d' % 'x'",
                    "sorted([1, 'a'])",
                    "raise TypeError from ZeroDivisionError",
                    "torch.ones(2) + torch.ones(3)",
                ),
            )
        handlers = self.pick(
            "KeyError",
            "(IndexError, ZeroDivisionError)",
            "ValueError",
            "Exception",
            "(TypeError, Oops)",
            "LookupError",
            "",
        )
        if handlers:
            self.emit(indent, f"except {handlers} as error:")
            self.emit(
                indent + 1,
                "log.append(described(error)); log.append(getattr(error, 'code', None)); "
                "log.append(sys.exc_info()[0].__name__)",
            )
            self.block(indent + 1, 1)
            if self.rng.random() < 0.2:
                self.emit(indent + 1, self.pick("raise", "raise Oops(a)", "raise KeyError(b) from error", "del xs[50]"))
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
                "with contextlib.ExitStack() as st:\n"
                + "    " * (indent + 1)
                + "st.enter_context(noted(log, 's')); st.callback(log.append, a)",
                "with contextlib.closing(careful(log, 'cl', 3)) as cl:",
                "with Box(a) as w, noted(log, 'b'), contextlib.suppress(Oops):",
                "with contextlib.nullcontext(a) as w:",
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

    def abandon(self, indent: int) -> None:
        """A loop over a generator with cleanup that may be left early."""
        name = self.name("v")
        self.emit(indent, f"for {name} in careful(log, '{name}', {self.rng.randint(0, 4)}):")
        self.block(indent + 1, 1, loop=True)
        if self.rng.random() < 0.6:
            self.emit(indent + 1, f"if {self.condition()}: {self.pick('break', 'continue', 'raise KeyError(a)')}")

    def throwing(self, indent: int) -> None:
        """A generator that delegates, driven by hand."""
        name = self.name("o")
        self.emit(indent, f"def {name}():")
        self.emit(indent + 1, "try:")
        self.emit(indent + 2, f"r = yield from careful(log, '{name}', {self.rng.randint(1, 3)})")
        self.emit(indent + 2, self.pick("yield r", "r = yield 5; log.append(r)", "return 7"))
        self.emit(
            indent + 1, self.pick("finally: log.append('f')", "except Oops as e: log.append(described(e)); yield 9")
        )
        self.emit(indent, f"it = {name}(); log.append(next(it))")
        self.emit(indent, "try:")
        for _ in range(self.rng.randint(1, 3)):
            step = self.pick(
                "it.throw(KeyError(a))",
                "it.throw(Oops(b))",
                "it.send(None)",
                "next(it, 'none')",
                "it.close()",
                "it.send(3)",
            )
            self.emit(indent + 1, f"log.append({step})")
        self.emit(indent, "except Exception as error: log.append(described(error))")
        self.emit(indent, self.pick("del it", "it = None", "log.append(list(it))", "it.close()", "pass"))

    def nested_class(self, indent: int) -> None:
        name = self.name("C")
        base = self.pick("Box", "Small", "object", "Slotted")
        self.emit(indent, f"class {name}({base}):")
        self.emit(indent + 1, f"note = Note({self.integer(2)})")
        self.emit(indent + 1, f"k = {self.integer(2)}")
        self.emit(indent + 1, f"def __init__(self, v, w=2): {self.pick('self.v = v + w', 'self.v = self.k + v')}")
        self.emit(indent + 1, f"def get(self): return self.v + {self.pick('self.k', 'a', 'len(type(self).__name__)')}")
        if base == "Box":
            self.emit(indent + 1, "@property\n" + "    " * (indent + 1) + "def double(self): return super().double + 1")
        self.emit(indent, f"c = {name}({self.integer(1)}); c.note = a; log.append((c.note, c.get(), {name}.note.name))")
        if base == "Box":
            self.emit(indent, "log.append((c.double, c == box, isinstance(c, Box)))")

    def early(self, indent: int) -> None:
        """A function with a return, break or continue inside `try` and `with`."""
        name = self.name("e")
        self.emit(indent, f"def {name}(p):")
        self.emit(indent + 1, f"for i in {self.pick('xs[:3]', 'range(3)', 'careful(log, 1, 3)')}:")
        self.emit(indent + 2, self.pick("try:", "with noted(log, 'e'):", "with Box(i) as w:"))
        opened = self.lines[-1]
        leave = self.pick("return i", "break", "continue", "raise KeyError(i)", "1 // (i - p)", "xs[90]")
        self.emit(indent + 3, f"if i {self.pick('>', '==', '<=')} p: {leave}")
        self.emit(indent + 3, "log.append(i)")
        if "try:" in opened:
            if self.rng.random() < 0.6:
                self.emit(indent + 2, f"except {self.pick('KeyError', 'ZeroDivisionError', 'Exception')} as e:")
                self.emit(
                    indent + 3, self.pick("log.append(described(e))", "return -2", "continue", "raise Oops(i) from e")
                )
            self.emit(indent + 2, "finally:")
            self.emit(
                indent + 3,
                self.pick("log.append('fin')", "if i == 2: return 8", "p += 1", "log.append(sys.exc_info()[0])"),
            )
        if self.rng.random() < 0.4:
            self.emit(indent + 1, "else: log.append('else')")
        self.emit(indent + 1, "return p")
        self.emit(indent, "try: log.append(" + f"{name}({self.pick('a', '1', '0', 'b')}))")
        self.emit(indent, "except Exception as error: log.append(described(error))")

    def delete(self, indent: int) -> None:
        name = self.name("u")
        self.emit(indent, f"{name} = {self.integer(1)}")
        inner = self.pick("", f"def reads(): return {name}\n" + "    " * indent)
        self.emit(indent, f"{inner}del {name}")
        use = "reads()" if inner else name
        self.emit(indent, f"try: log.append({use})")
        self.emit(indent, "except NameError as error: log.append(described(error))")

    def recursion(self, indent: int) -> None:
        name = self.name("r")
        self.emit(indent, f"def {name}(p, acc):")
        self.emit(indent + 1, f"if p <= 0: return {self.pick('acc', '(acc, p)', 'acc[::-1]')}")
        self.emit(indent + 1, f"return {name}(p - {self.pick('1', '2')}, acc + [p{self.pick('', ' * a', ' + n')}])")
        self.emit(indent, f"log.append({name}({self.rng.randint(0, 4)}, []))")

    def stop(self, indent: int) -> None:
        """A statement that cannot be captured."""
        a = self.integer(2)
        self.emit(
            indent,
            self.pick(
                f"print('p', {a})",
                "n = int(x.sum().item()) % 50",
                "if x.sum() > 0: log.append('positive')",
                "log.append(round(float(x.max()), 3))",
                "xs = xs + [int(i) for i in x.tolist()][:2]",
                "while x.abs().sum() > 500: x = x / 2",
                "log.append(len(x.nonzero()))",
                "log.append(str(x.detach()))",
                f"a = max(int(x[0]), {a}) % 100",
                "x = x + 1 if bool((x < 3).all()) else x - 1",
                "print(*xs, sep='-')",
                "opaque(log, a)",
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
