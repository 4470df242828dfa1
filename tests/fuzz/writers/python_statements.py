"""More kinds of statements for the writer of random Python programs (`python_programs`): what Python does in an order
that a program can see.
"""

from __future__ import annotations

import random
import sys

PRELUDE = """
def noise(log, v): log.append(("noise", v)); return v

def lines(e):
    found = []; t = e.__traceback__
    while t is not None:
        if t.tb_frame.f_code.co_filename.startswith("<fuzz"):
            found.append((t.tb_frame.f_code.co_name, t.tb_lineno))
        t = t.tb_next
    return found

class Trap:
    # notes each access
    __match_args__ = ("first", "second")
    def __init__(self, log, first, second=0): self.__dict__.update(log=log, first=first, second=second, items={})
    def __getattr__(self, name):
        self.log.append(("get", name))
        if name == "nothing": raise AttributeError(name)
        return len(name)
    def __setattr__(self, name, value): self.log.append(("set", name)); self.__dict__[name] = value
    def __delattr__(self, name): self.log.append(("del", name)); del self.__dict__[name]
    def __getitem__(self, key): self.log.append(("item", key)); return self.items.get(key, 0)
    def __setitem__(self, key, value): self.log.append(("setitem", key)); self.items[key] = value
    def __delitem__(self, key): self.log.append(("delitem", key)); del self.items[key]
    def __contains__(self, key): self.log.append(("in", key)); return key in self.items
    def __lt__(self, other):
        self.log.append("lt"); return self.first < getattr(other, "__dict__", {"first": other})["first"]
    def __iadd__(self, other): self.log.append("iadd"); self.first += other; return self
    def __bool__(self): self.log.append("bool"); return self.first % 2 == 0
    def __enter__(self): self.log.append("enter"); return self
    def __exit__(self, kind, error, trace):
        self.log.append(("exit", kind and kind.__name__)); return isinstance(error, LookupError)

def traced(log):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            log.append(("call", f.__name__, len(args), sorted(kwargs)))
            try: return f(*args, **kwargs)
            finally: log.append("called")
        return inner
    return wrap

def echo(log, v):
    # a generator that is sent to
    while True:
        try: got = yield v
        except ValueError as e: log.append(described(e)); got = -1
        if got is None: return v
        v = got + 1

def delegating(log, v):
    with noted(log, "delegating"):
        r = yield from echo(log, v)
        log.append(("r", r))
        yield r
"""


class Statements:
    """Kinds of statements that a writer may choose from."""

    rng: random.Random

    def pick(self, *options: str) -> str:
        raise NotImplementedError

    def name(self, prefix: str) -> str:
        raise NotImplementedError

    def emit(self, indent: int, text: str) -> None:
        raise NotImplementedError

    def integer(self, level: int = 0) -> str:
        raise NotImplementedError

    def block(self, indent: int, count: int, loop: bool = False) -> None:
        raise NotImplementedError

    def trap(self, indent: int) -> None:
        """Operations whose order shows."""
        a, b = self.integer(2), self.integer(2)
        self.emit(indent, f"trap = Trap(log, {a}, {b})")
        for _ in range(2):
            self.emit(
                indent,
                self.pick(
                    f"trap[noise(log, {b})] += noise(log, {a})",
                    "trap.second += trap.third",
                    "trap += noise(log, 2)",
                    f"trap.new = noise(log, {a}); del trap.new",
                    f"log.append(noise(log, {a}) < noise(log, {b}) <= noise(log, a))",
                    f"log.append(Trap(log, 1) < trap < {b})",
                    "log.append(1 in trap or 2 not in trap)",
                    "log.append([getattr(trap, 'nothing', 5), hasattr(trap, 'some')])",
                    "log.append(1 if trap else noise(log, 2))",
                    f"x = x + (trap.first % 3 if trap and {a} else 1)",
                    "log.append({noise(log, 1): noise(log, 2), **{noise(log, 3): 4}})",
                    f"f(noise(log, {a}), *[noise(log, 1)], z=noise(log, 2))",
                    "trap[1], trap.second = noise(log, 4), noise(log, 5)",
                    f"(trap.first, *trap.rest), trap[2] = [{a}, 1, 2], 3",
                    "log.append(f'{noise(log, 1)} {trap.first!r:>{noise(log, 4)}}')",
                    "assert noise(log, 1), noise(log, 2)",
                ),
            )

    def classes(self, indent: int) -> None:
        """`match` with classes, mappings and sequences."""
        a = self.integer(2)
        subject = self.pick(f"Trap(log, {a}, b)", "[box, a, *xs]", "{'k': a, 'box': box, **d}", f"(a, {a})", f"{a}")
        self.emit(indent, f"match {subject}:")
        cases = [
            "case Trap(first, second) if first > second: r = (first, second)",
            "case Trap(0 | 1 | 2 as r): pass",
            "case [Small(v=p) | Box(v=p), q, *r] if q: r = (p, q, r)",
            "case [_, 1 | 2 | 3 as r, *_]: pass",
            "case {'k': int(r), **rest} if len(rest) > 1: r = (r, sorted(map(str, rest)))",
            "case {'box': Box(v=r)}: pass",
            "case (int() as p, 0 | -1 as q): r = p - q",
            "case int(r) if r % 2: pass",
        ]
        for case in sorted(self.rng.sample(cases, 4), key=cases.index):
            self.emit(indent + 1, case)
        self.emit(indent + 1, "case _: r = None")
        self.emit(indent, "log.append(r)")

    def group(self, indent: int) -> None:
        """Exception groups, notes, tracebacks."""
        name = self.name("h")
        self.emit(indent, f"def {name}(p):")
        self.emit(indent + 1, self.pick("if p > 2: raise Oops(p)", "xs[p + 90]", "d[p, p]", "raise KeyError(p)"))
        self.emit(indent + 1, "return p")
        if sys.version_info < (3, 11) or self.rng.random() < 0.5:
            self.emit(indent, "try:")
            self.emit(indent + 1, f"log.append({name}({self.integer(2)}))")
            self.emit(indent, "except Exception as error:")
            self.emit(indent + 1, "log.append(lines(error))")
            if sys.version_info >= (3, 11):
                self.emit(indent + 1, "error.add_note('n'); log.append(error.__notes__)")
            self.block(indent + 1, 1)
            return
        raised = self.pick("KeyError(1), Oops(a)", "IndexError(b)", "ValueError(1), ExceptionGroup('i', [KeyError(2)])")
        self.emit(indent, "try:")
        self.emit(indent + 1, "try:")
        self.emit(indent + 2, self.pick(f"raise ExceptionGroup('g', [{raised}])", f"{name}(a)"))
        self.emit(indent + 1, "except* KeyError as group:")
        self.emit(indent + 2, "log.append(('keys', str(group), [described(e) for e in group.exceptions]))")
        self.emit(indent + 1, f"except* {self.pick('ValueError', '(IndexError, Oops)')} as group:")
        self.emit(indent + 2, self.pick("log.append(len(group.exceptions))", "raise Oops(5)", "raise", "x = x + 1"))
        if self.rng.random() < 0.4:
            self.emit(indent + 1, "finally: log.append('group')")
        self.emit(indent, "except Exception as error:")
        self.emit(indent + 1, "log.append((described(error), lines(error)))")

    def sent(self, indent: int) -> None:
        """A generator that delegates, sent to and thrown at."""
        self.emit(indent, f"it = {self.pick('delegating', 'echo')}(log, {self.integer(2)}); log.append(next(it))")
        self.emit(indent, "try:")
        for _ in range(self.rng.randint(1, 4)):
            step = self.pick("it.send(2)", f"it.send({self.integer(2)})", "it.throw(ValueError(b))", "it.send(None)")
            self.emit(indent + 1, f"log.append({step})")
        self.emit(indent, "except StopIteration as stop: log.append(('stop', stop.value))")
        if self.rng.random() < 0.5:
            self.emit(indent, self.pick("del it", "it.close()", "log.append(it.gi_frame is None)", "it = 0"))

    def coroutine(self, indent: int) -> None:
        """A coroutine driven by hand."""
        name = self.name("w")
        self.emit(indent, f"async def {name}(p):")
        self.emit(indent + 1, "try: log.append(p); return p + 1")
        self.emit(indent + 1, f"finally: log.append('{name}')")
        self.emit(indent, f"async def {name}_outer(p): return await {name}(p) * 2 + await {name}(1)")
        self.emit(indent, f"c = {name}_outer({self.integer(2)})")
        self.emit(indent, "try: c.send(None)")
        self.emit(indent, "except StopIteration as stop: log.append(stop.value)")

    def changed_while_read(self, indent: int) -> None:
        """A container that changes while it is iterated over."""
        self.emit(indent, "try:")
        self.emit(
            indent + 1,
            self.pick(
                "for k in d: d[str(k) + 'x'] = 1",
                "for k in list(d): d.pop(k); break",
                "for k, v in d.items(): d[k] = v; log.append(str(k))",
                "s = {1, 2}\n" + "    " * (indent + 1) + "for i in s: s.add(i + 10)",
                "for i in xs: log.append(i); xs.remove(i)",
                "for i, v in enumerate(xs):\n" + "    " * (indent + 2) + "if i < 4: xs.insert(0, v)",
                "it = iter(xs); xs.append(next(it)); log.append(list(it)); log.append(next(it, 'end'))",
            ),
        )
        self.emit(indent, "except RuntimeError as error: log.append(described(error))")

    def leaving(self, indent: int) -> None:
        """`finally` that leaves: by return, break or continue."""
        name = self.name("l")
        self.emit(indent, f"def {name}(p):")
        self.emit(indent + 1, "while p < 6:")
        self.emit(indent + 2, "p += 1")
        self.emit(indent + 2, f"try: {self.pick('1 // (p - 3)', 'return p', 'raise KeyError(p)', 'log.append(p)')}")
        self.emit(indent + 2, "finally:")
        self.emit(indent + 3, "log.append(('finally', p))")
        condition = self.pick("p == 4", "p > 2", "p % 2")
        self.emit(indent + 3, f"if {condition}: {self.pick('return -p', 'break', 'continue')}")
        self.emit(indent + 1, "return p")
        self.emit(indent, f"try: log.append({name}({self.integer(2)}))")
        self.emit(indent, "except Exception as error: log.append((described(error), lines(error)))")

    def decorated(self, indent: int) -> None:
        name = self.name("k")
        self.emit(
            indent,
            self.pick(
                "@traced(log)", "@functools.lru_cache(None)", "@traced(log)\n" + "    " * indent + "@traced(log)"
            ),
        )
        self.emit(indent, f"def {name}(p, *, q=noise(log, {self.integer(2)})): return p * q")
        self.emit(indent, f"log.append([{name}(2), {name}({self.integer(2)}, q=3), {name}(2), {name}.__name__])")

    def body(self, indent: int) -> None:
        """A class statement that does things."""
        name = self.name("D")
        self.emit(indent, f"class {name}({self.pick('Box', 'object', 'Trap', 'dict')}):")
        self.emit(indent + 1, "log.append(('in', __qualname__))")
        self.emit(indent + 1, f"total = {self.integer(2)}")
        self.emit(indent + 1, self.pick("for i in range(3): total += i", "if total > 2: total = -total", "pass"))
        self.emit(indent + 1, "table = {k: k * 2 for k in range(total % 3)}")
        self.emit(indent + 1, "def __init_subclass__(cls, w=1): log.append((cls.__name__, w))")
        self.emit(indent + 1, "def read(self): return (self.total, __class__.table)")
        self.emit(indent, f"class {name}E({name}, w=noise(log, 4)): pass")
        self.emit(indent, f"log.append({name}E.read({name}E))")

    def closures(self, indent: int) -> None:
        """Functions made in a loop that share variables, or do not."""
        name = self.name("m")
        self.emit(indent, f"{name} = []; total = 0")
        self.emit(indent, f"for i in range({self.rng.randint(1, 4)}):")
        self.emit(indent + 1, "def add(p, i=i):")
        self.emit(indent + 2, "nonlocal n")
        self.emit(indent + 2, f"n += {self.pick('i', 'p', 'len(xs)')}; return n + i + p")
        self.emit(indent + 1, f"{name}.append({self.pick('add', 'lambda p: (i, p)', 'functools.partial(add, i)')})")
        self.emit(indent, f"log.append([g(2) if not isinstance(g, functools.partial) else g() for g in {name}])")

    def targets(self, indent: int) -> None:
        """Unpacking and walrus in loops and comprehensions."""
        a = self.integer(2)
        self.emit(
            indent,
            self.pick(
                "for p, *q in [(1, 2, 3), 'ab', [n]]: log.append((p, q))",
                "for d['k'], (b, *_) in zip(xs, [(1, 2), (3,)]): log.append(b)",
                f"log.append([q for i in xs if (q := i + {a}) > 2]); log.append(q if xs and 'q' in dir() else 0)",
                "log.append([w := i for i in range(3)] + [w])",
                "for xs[0] in range(3): log.append(xs[0])",
                f"while (n := n + 2) < ({a}) % 9: log.append(n)",
                "[a, [b, *xs]] = 3, [4, 5, 6]",
                "for box.v in xs[:2]: log.append(box.v)",
                "log.append({p: q for p, (q, *_) in enumerate(zip(xs, xs[1:]))})",
            ),
        )

    def aliases(self, indent: int) -> None:
        """Tensors that share memory, written to in place."""
        self.emit(indent, "x = x.clone()")
        self.emit(
            indent,
            self.pick(
                "ts = [x[:2], x[2:]]; ts[0].add_(1); ts[1][0] = 4; log.append(len(ts)); x = x + ts[0].sum()",
                "y = {'v': x.view(2, -1)}; y['v'][0] *= 2; x[1] += 1; x = x + y['v'].reshape(-1)",
                "for t in x.split(2): t.mul_(2)",
                "y = x; y += 1; x = x - y * 0.5",
                "y = x.t() if x.dim() == 2 else x.flip(0); y[0] = -1; x = x + y",
                "def grow(t): t.add_(1); return t\n" + "    " * indent + "x = grow(x[1:3]).sum() + x",
                "box.t = x[:2]; box.t.zero_(); del box.t",
                "p, *q = x.unbind(); x = torch.stack([p, *q]) + p",
            ),
        )
