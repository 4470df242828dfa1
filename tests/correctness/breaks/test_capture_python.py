# ruff: noqa: B011, B018, C402, C408, C416, C417, E741, F821, RUF015, UP031 -- the programs use what they test
"""Small programs, one per part of the language, captured and replayed, against running them plainly.

Results, changed arguments and changed globals must be the same; nothing may fall back to eager.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


def case(*args: Any) -> Callable[[Any], Any]:
    """Register a program and its arguments."""

    def register(function: Any) -> Any:
        CASES.append((function, args))
        return function

    return register


bolide.dynamo.config.suppress_errors = False


@case(torch.ones(3))
def fn_basic(x):
    y = x + 1
    if x.shape[0] == 3:
        y = y * 2
    return (y, x.dim(), x.dtype)


@dataclasses.dataclass
class P:
    a: int
    b: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.a + len(self.b)


@case(torch.ones(3))
def fn_dataclass(x):
    p = P(3)
    p.b.append(x)
    q = P(4, [1])
    r = dataclasses.replace(q, a=9)
    return (p.total(), p, q == P(4, [1]), r, dataclasses.asdict(q))


NT = collections.namedtuple("NT", "u v")


@case(torch.ones(3))
def fn_namedtuple(x):
    n = NT(x, 2)
    m = n._replace(v=3)
    return (n, m.u + 1, m._asdict(), n.v)


class Col(enum.Enum):
    R = 1
    G = 2


@case(torch.ones(2), Col.G)
def fn_enum(x, c):
    return (x * c.value, c is Col.G, Col["R"], Col(2).name, c == Col.R)


@case(torch.ones(2))
def fn_gen(x):

    def g(n):
        try:
            for i in range(n):
                r = yield i
                if r:
                    yield (r * 10)
        finally:
            out.append("done")

    out = []
    it = g(4)
    a = next(it)
    b = it.send(7)
    c = next(it)
    it.close()

    def h():
        v = yield from g(2)
        return v

    return (a, b, c, list(h()), out, next(iter([]), 5), sum(i * i for i in range(4)), dict((k, k + 1) for k in (1, 2)))


@case(torch.ones(2))
def fn_exc(x):
    log = []

    class E(ValueError):
        z = 3

        def __init__(self, q):
            super().__init__(q)
            self.q = q + self.z

    try:
        raise E(4)
    except ValueError as e:
        log.append((e.q, str(e), type(e).__name__))
    return log


@case(torch.ones(2))
def fn_exc2(x):
    log = []
    try:
        try:
            raise KeyError("k")
        except KeyError as e:
            log.append(repr(e))
            raise ValueError("v") from e
        finally:
            log.append("f")
    except (TypeError, ValueError) as e:
        log.append((str(e), type(e.__cause__).__name__, type(e.__context__).__name__))
    else:
        log.append("no")
    for i in range(3):
        try:
            if i == 1:
                continue
            if i == 2:
                break
        finally:
            log.append(i)
    try:
        [][1]
    except IndexError as e:
        log.append(str(e))
    try:
        {}["a"]
    except LookupError:
        log.append("le")
    try:
        int("x")
    except ValueError as e:
        log.append(str(e))
    try:
        None.foo
    except AttributeError as e:
        log.append(str(e))
    return log


class MyErr(ValueError):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b


@case(torch.ones(2))
def fn_exc3(x):
    try:
        raise MyErr(1, 2)
    except ValueError as e:
        return (e.b, e.args)


@case(torch.ones(2))
def fn_comp(x):
    a = [i for i in range(5) if i % 2]
    b = {i: j for i, j in zip("ab", a)}
    c = {i % 2 for i in a}
    d = [[i * j for j in range(3)] for i in range(2)]
    (e := 3)
    *f, g = a
    h, (i, j) = (1, (2, 3))
    return (a, b, c, d, e, f, g, h, i, j, a[::-1], a[-1:], x[..., None].shape, [*a, *f], {**b, "z": 1}, (*a,))


@case(torch.ones(2))
def fn_match(x):
    out = []
    for v in [1, "a", [1, 2, 3], {"k": 5, "z": 1}, (1, 2), P(1, [2]), None, 2.5]:
        match v:
            case 1:
                out.append("one")
            case str():
                out.append("str")
            case [a, b, *r]:
                out.append((a, b, r))
            case {"k": k, **rest}:
                out.append((k, rest))
            case P(a=1, b=bb):
                out.append(bb)
            case None:
                out.append("none")
            case float(f) if f > 2:
                out.append(f)
            case _:
                out.append("?")
    return out


class Base:
    cnt = 0

    def __init__(self, v):
        self.v = v

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def st(a):
        return a + 1

    @property
    def dbl(self):
        return self.v * 2

    @dbl.setter
    def dbl(self, n):
        self.v = n // 2

    def __eq__(self, o):
        return isinstance(o, Base) and self.v == o.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, o):
        return self.v < o.v

    def __getitem__(self, i):
        return self.v * i

    def __contains__(self, i):
        return i == self.v

    def __call__(self, *a, **k):
        return (self.v, a, k)

    def __repr__(self):
        return f"B({self.v})"

    def __bool__(self):
        return self.v > 0

    def __add__(self, o):
        return type(self)(self.v + (o.v if isinstance(o, Base) else o))

    __radd__ = __add__

    def __iadd__(self, o):
        self.v += o
        return self

    def __neg__(self):
        return type(self)(-self.v)

    def __len__(self):
        return 4

    def __enter__(self):
        self.v += 100
        return self

    def __exit__(self, *a):
        self.v -= 100
        return False

    def __getattr__(self, n):
        if n.startswith("dyn"):
            return n
        raise AttributeError(n)


class Sub(Base):
    def __init__(self, v, w=0):
        super().__init__(v)
        self.w = w

    def __repr__(self):
        return "S" + super().__repr__()

    @functools.cached_property
    def cp(self):
        return self.v + 1000


@case(torch.ones(2), Sub(5), [Base(3), Base(1), Base(2)])
def fn_class(x, o, l):
    s = Sub.make(2)
    s.dbl = 10
    t = s + 1
    u = 1 + s
    t += 5
    z = -t
    with o as oo:
        inner = oo.v
    o.new = 3
    o.dbl = 40
    res = [
        s.v,
        t.v,
        u.v,
        z.v,
        inner,
        o.dbl,
        o.dynfoo,
        hasattr(o, "zzz"),
        getattr(o, "zzz", 7),
        s.st(3),
        Base.st(1),
        s == Base(5),
        s != Base(5),
        s in [Base(5)],
        3 in s,
        s[2],
        s(1, k=2),
        [b.v for b in sorted(l)],
        max(l).v,
        min(l, key=lambda b: -b.v).v,
        f"{s!r}",
        repr(s),
        bool(s),
        bool(Base(-1)),
        len(s),
        isinstance(s, Base),
        issubclass(Sub, Base),
        type(s) is Sub,
        s.cp,
        s.cp,
        o.cp,
        o.__class__.__name__,
        s.__dict__,
        not s,
        1 if o else 2,
        s and 3,
        Base(0) or 4,
    ]
    l[0].v = 99
    l.append(s)
    return res


GL = [1, 2]


GC = 0


GD = {"a": 1}


@case(torch.ones(2))
def fn_global(x):
    global GC
    GC += 1
    GL.append(3)
    GD["b"] = x
    return (GC, GL, len(GD))


@case(torch.ones(2), [3, 1, 2], {"b": 1, "a": [1]})
def fn_mut(x, l, d):
    l.sort()
    l.append(x)
    l[0] = 9
    del l[1]
    d["c"] = 3
    d["a"].append(2)
    d.pop("b")
    d.setdefault("q", []).append(1)
    d.update(z=1)
    e = d
    e["w"] = e is d
    return (l, d, list(d), d.get("nope"), d.get("c", 4), "c" in d, sorted(d, key=str))


@case(torch.ones(2))
def fn_closure(x):
    fs = []
    for i in range(3):

        def f(a, *, k=i, **kw):
            nonlocal x
            x = x + a * k
            return k

        fs.append(f)
    r = [f(1) for f in fs]

    def deco(g):

        @functools.wraps(g)
        def w(*a, **k):
            return g(*a, **k) + 1

        return w

    @deco
    def q(a, b=2):
        """doc"""
        return a * b

    p = functools.partial(q, 3, b=5)
    return (
        r,
        x,
        q(4),
        q.__name__,
        q.__doc__,
        p(),
        functools.reduce(lambda a, b: a + b, [1, 2, 3]),
        list(map(lambda a: a + 1, [1, 2])),
        list(filter(None, [0, 1])),
        list(itertools.chain([1], [2])),
        list(itertools.accumulate([1, 2, 3])),
        operator.attrgetter("__name__")(q),
        any(v > 2 for v in r),
        all([]),
        list(zip([1], [2])),
        list(enumerate("ab", 1)),
        list(reversed([1, 2])),
    )


@case(torch.ones(2))
def fn_str(x):
    a = 3.14159
    b = "hi"
    return (
        f"{a:.2f} {b!r:>6} {b} {x.shape}",
        "%s-%d" % (b, 3),
        f"{4}",
        b.upper(),
        ",".join(str(i) for i in range(3)),
        b.encode(),
        int("5"),
        float("2"),
        round(a, 1),
        abs(-3),
        divmod(7, 2),
        pow(2, 3),
        chr(65),
        ord("A"),
        hex(3),
        isinstance(True, int),
        math.sqrt(4),
        min(1, 2),
        max([3, 4]),
        hash("a") == hash("a"),
        bin(5),
        "a" in b,
        b * 2,
        b[0],
        b.split("h"),
    )


@contextlib.contextmanager
def cm(l, v):
    l.append(("in", v))
    try:
        yield v
    except ZeroDivisionError:
        l.append("zd")
    finally:
        l.append(("out", v))


@case(torch.ones(2))
def fn_with(x):
    l = []
    with cm(l, 1) as a, cm(l, 2):
        l.append(a)
    with cm(l, 3):
        1 / 0
    with contextlib.ExitStack() as st:
        st.enter_context(cm(l, 4))
        st.callback(l.append, "cb")
    with contextlib.nullcontext(5) as n:
        l.append(n)
    with torch.no_grad():
        y = x * 2
        l.append(torch.is_grad_enabled())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x.reshape(1, 2) @ x.reshape(2, 1)
    l.append(torch.is_grad_enabled())
    return (l, y, z)


@case(torch.ones(2), 1, 2)
def fn_args(x, *args, k=3, **kw):
    return (x + sum(args), k, kw, args)


@case(
    collections.OrderedDict(a=1, b=torch.ones(2)),
    collections.defaultdict(list, {1: [2]}),
    collections.deque([1, 2]),
    {1, 2},
    (1, [2], torch.ones(1)),
)
def fn_coll(o, dd, dq, s, t):
    dd[5].append(1)
    o["c"] = 3
    s.add(9)
    t[1].append(4)
    c = collections.Counter("aab")
    n = collections.defaultdict(int)
    n["q"] += 1
    od = collections.OrderedDict([(1, 2)])
    od.move_to_end(1)
    return (list(o.items())[0], dd[1], len(dq), s, t, c.most_common(1), n, od, list(dq), o["b"] + 1, t[2] * 2)


class Desc:
    def __get__(self, o, c):
        return 42 if o is not None else self

    def __set__(self, o, v):
        o.__dict__["_d"] = v


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class WD:
    d = Desc()
    z = [1]

    def m(self):
        return 1


@case(torch.ones(1), Slots(), WD())
def fn_desc(x, s, w):
    w.d = 5
    s.b = s.a + 1
    n = Slots()
    n.b = 3
    return (w.d, w._d, s.b, n.a + n.b, hasattr(n, "c"), w.m(), w.m(), callable(w.m), w.z, vars(w))


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.tag = "m"
        return o


class MM(metaclass=Meta):
    def __init__(self, a):
        self.a = a


class Sing:
    def __new__(cls, v):
        o = object.__new__(cls)
        o.n = v
        return o

    def __init__(self, v):
        self.v = v


@case(torch.ones(1))
def fn_meta(x):
    m = MM(3)
    s = Sing(4)
    return (m.a, m.tag, s.n, s.v)


class It:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Seq:
    def __getitem__(self, i):
        if i > 3:
            raise IndexError
        return i


@case(torch.ones(1), It(2))
def fn_iter(x, e):
    a = list(It(3))
    b = [v for v in Seq()]
    c, *d = It(3)
    f = dict(zip(It(2), Seq()))
    g = tuple(e)
    i = It(2)
    h = next(i)
    k = list(i)
    m = sum(It(4))
    n = 2 in Seq()
    o = sorted(It(3))
    p = [*It(2)]
    q = max(It(3))
    r = list(enumerate(It(2)))
    t = ",".join(str(v) for v in It(2))
    u = set(It(2))
    w = any(It(2))
    z = list(map(str, It(2)))
    return (a, b, c, d, f, g, h, k, m, n, o, p, q, r, t, u, w, z)


@case(torch.ones(3, requires_grad=True))
def fn_tensor(x):
    y = x.clone()
    y[0] = 5
    y += 1
    y.mul_(2)
    z = torch.stack([y, x]).sum(0)
    a, b = torch.split(z, [1, 2])
    torch.nn.functional.relu(z)
    return (
        y,
        z,
        a,
        b,
        x.requires_grad,
        z.size(0),
        x.new_zeros(2),
        torch.arange(3),
        x.tolist if False else 1,
        len(x),
        [t for t in x],
        x.T if x.dim() == 2 else x,
        x.device.type,
        isinstance(x, torch.Tensor),
        x is x,
        -x,
        x**2,
        2 - x,
        x @ x,
        ~(x > 1),
        x.float().dtype,
        torch.finfo(x.dtype).min,
        x.numel(),
        (x > 0).all(),
    )


@case(torch.ones(3))
def fn_unpack(x):

    def f(a, /, b, *c, d, e=5, **g):
        return (a, b, c, d, e, g)

    return (f(1, 2, 3, d=4, z=6), f(*[1, 2], d=1), f(1, b=2, d=3))


@case(torch.ones(3))
def fn_badcall(x):
    out = []
    for k in (dict(), dict(b=1, c=2, d=3)):
        try:
            (lambda a, b: 1)(1, **k)
        except TypeError:
            out.append("TE")
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError:
        out.append("RE")
    return out


@case(torch.ones(3))
def fn_rec(x):

    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return fib(10)


@case(torch.ones(3))
def fn_import(x):
    import math as m
    from collections import OrderedDict as OD

    import torch.nn.functional as F

    return (m.pi, OD(a=1), F.relu(x))


@case(torch.ones(3))
def fn_while(x):
    i = 0
    while True:
        i += 1
        if i > 5:
            break
    else:
        i = 100
    j = 0
    while j < 3:
        j += 1
    else:
        j = 50
    del i
    try:
        i
    except UnboundLocalError:
        j += 1
    return j


@case(torch.ones(3))
def fn_assert(x):
    assert x.shape[0] == 3, "bad"
    try:
        assert False, "m"
    except AssertionError as e:
        return str(e)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.equal(a, b) and a.requires_grad == b.requires_grad
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, Slots):
        return all(same(getattr(a, name, None), getattr(b, name, None)) for name in ("a", "b"))
    if hasattr(a, "__dict__") and not callable(a):
        return same(vars(a), vars(b))
    return bool(a == b)


def reset_globals() -> None:
    global GC
    GC = 0
    GL[:] = [1, 2]
    GD.clear()
    GD["a"] = 1


@pytest.mark.parametrize(("function", "args"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_agrees_with_cpython(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    detached = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    plain, captured = copy.deepcopy(detached), copy.deepcopy(detached)
    reset_globals()
    expected = function(*plain)
    expected_globals = copy.copy((GC, list(GL), dict(GD)))
    reset_globals()
    actual = bolide.compile(function, backend="aot_eager", fullgraph=True)(*captured)
    assert same(expected, actual), (expected, actual)
    assert same(
        [a for a in plain if not isinstance(a, torch.Tensor)], [a for a in captured if not isinstance(a, torch.Tensor)]
    )
    assert same(expected_globals, (GC, list(GL), dict(GD)))
