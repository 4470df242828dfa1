"""Ordinary Python around tensors: logging, configurations, containers, classes, decorators."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.ordinary_tools import program

R = torch.randn
NS = (4, 7, 3, 4)
log = logging.getLogger("daily")
log.setLevel(logging.DEBUG)
log.propagate = False


class H(logging.StreamHandler):
    @property
    def stream(s):
        return sys.stderr

    @stream.setter
    def stream(s, v):
        pass


log.addHandler(H())


@program
def prints(C):
    @C
    def f(x, step):
        print("x", x)
        print(f"step {step:03d} shape={tuple(x.shape)} mean={x.mean():.4f} max={x.max().item():8.3f}")
        print("%s %d %.3f" % (x.dtype, x.shape[0], x.sum()), end="|\n")
        print(f"{x.shape} {x.mean().item():.2f} {x.device!r}")
        print(x.size(), x.dim(), x.requires_grad, sep=", ", flush=True)
        return x * 2

    return [f(torch.arange(n * 2.0).view(n, 2), i) for i, n in enumerate(NS)]


@program
def prints_grad(C):
    @C
    def f(x):
        y = x * 2
        print(y.shape, y.requires_grad, float(y.detach().sum()))
        print("loss:", round(float(y.sum()), 3))
        return y.sum()

    out = []
    for n in NS:
        x = torch.ones(n, requires_grad=True)
        f(x).backward()
        out.append(x.grad)
    return out


@program
def loggings(C):
    @C
    def f(x, step):
        log.info("step %d mean %.3f", step, x.mean())
        log.debug("x=%s", x)
        log.warning(f"{x.shape=}")
        if step % 2:
            log.error("odd %s", {"step": step, "n": x.shape[0]})
        return x + 1

    return [f(torch.arange(n * 1.0), i) for i, n in enumerate(NS)]


@program
def warns(C):
    @C
    def f(x):
        if x.shape[0] > 5:
            warnings.warn(f"large batch {x.shape[0]}", stacklevel=2)
        if x.sum() > 100:
            warnings.warn("big", stacklevel=2)
        return x * 3

    return [f(torch.arange(n * 1.0)) for n in NS]


@program
def asserts(C):
    @C
    def f(x, k):
        assert x.dim() == 2, f"expected 2D got {x.dim()}D"
        assert x.shape[1] == k, ("bad", x.shape, k)
        assert (x > -100).all(), "too small"
        assert isinstance(k, int) and k > 0
        return x.sum(1)

    out = []
    for a in [
        (R(3, 2), 2),
        (R(3), 1),
        (R(4, 3), 2),
        (R(5, 3), 3),
        (torch.full((2, 2), -200.0), 2),
        (R(2, 1), 1),
        (R(2, 0), 0),
    ]:
        try:
            out.append(f(*a))
        except AssertionError as e:
            out.append(repr(e))
    return out


@program
def progress(C):
    class Bar:
        def __init__(s, it):
            s.it = it
            s.n = 0
            s.post = {}

        def __iter__(s):
            for x in s.it:
                yield x
                s.n += 1

        def set_postfix(s, **kw):
            s.post.update(kw)

        def __len__(s):
            return len(s.it)

    @C
    def f(bar):
        t = 0
        for x in bar:
            t = t + x.sum()
            bar.set_postfix(loss=f"{t.item():.3f}", n=bar.n)
        return t

    out = []
    for n in NS:
        b = Bar([R(2) for _ in range(n)])
        out.append((f(b), b.post, b.n))
    return out


@program
def writer(C):
    class Writer:
        def __init__(s):
            s.scalars = collections.defaultdict(list)
            s.hist = {}

        def add_scalar(s, tag, v, step=None):
            s.scalars[tag].append((step, float(v)))

        def add_histogram(s, tag, v, step):
            s.hist[tag, step] = np.histogram(v.detach().numpy(), bins=3)[0]

    w = Writer()

    @C
    def f(x, step):
        h = x.relu()
        w.add_scalar("mean", h.mean(), step)
        w.add_scalar("std", h.std().item(), step)
        if step % 2 == 0:
            w.add_histogram("h", h, step)
        return h * 2

    return [f(R(n, 3), i) for i, n in enumerate(NS)], dict(w.scalars), list(w.hist.values())


@program
def timer_ctx(C):
    class Timer:
        def __init__(s, name, store):
            s.name, s.store = name, store

        def __enter__(s):
            s.t = time.perf_counter()
            return s

        def __exit__(s, *a):
            s.store.setdefault(s.name, []).append(time.perf_counter() - s.t > 0)

    st = {}

    @C
    def f(x):
        with Timer("mm", st):
            y = x @ x.T
        with Timer("sm", st):
            return y.softmax(-1)

    return [f(R(n, 3)) for n in NS], st


@program
def avgmeter(C):
    class AverageMeter:
        def __init__(s, name):
            s.name = name
            s.reset()

        def reset(s):
            s.val = s.avg = s.sum = s.count = 0

        def update(s, v, n=1):
            s.val = v
            s.sum += v * n
            s.count += n
            s.avg = s.sum / s.count

        def __str__(s):
            return f"{s.name} {s.val:.3f} ({s.avg:.3f})"

    m = AverageMeter("loss")
    t = AverageMeter("t")

    @C
    def f(x):
        l = x.pow(2).mean()
        m.update(l.item(), x.size(0))
        t.update(l.detach())
        return l, str(m)

    return [f(R(n, 2)) for n in NS], m.avg, t.avg, str(m)


@program
def to_numpy(C):
    @C
    def f(x):
        a = x.detach().cpu().numpy()
        b = a * 2 + np.arange(a.shape[0])[:, None]
        c = torch.from_numpy(b.astype(np.float32))
        return c + x, a.mean(), a.shape, b.dtype

    return [f(R(n, 2)) for n in NS]


@program
def np_on_tensors(C):
    @C
    def f(x):
        return (
            np.sum(x.numpy(), axis=0),
            np.asarray(x),
            torch.as_tensor(np.argsort(x.numpy()[:, 0])),
            torch.tensor(np.mean(x.tolist())),
            np.clip(x.numpy(), 0, 1),
        )

    return [f(R(n, 2)) for n in NS]


@program
def np_inputs(C):
    @C
    def f(a, b):
        return torch.from_numpy(a).float() @ torch.tensor(b).float(), a.sum() + b.max(), np.concatenate([a, b.T])

    return [f(np.random.randn(n, 3), np.random.randn(3, n)) for n in NS]


@program
def np_stats(C):
    @C
    def f(x):
        a = x.numpy()
        p = np.percentile(a, 50)
        h = np.where(a > p, 1, 0)
        u, c = np.unique(h, return_counts=True)
        return torch.tensor(h), u, c, float(p), np.linalg.norm(a), np.dot(a[0], a[0]), a.std(ddof=1)

    return [f(R(n, 3)) for n in NS]


@program
def tolist_item(C):
    @C
    def f(x):
        l = x.tolist()
        return (
            sum(sum(r) for r in l),
            [i for i, r in enumerate(l) if r[0] > 0],
            x[0, 0].item(),
            int(x.sum()),
            float(x.mean()),
            bool((x > 0).any()),
            max(l, key=lambda r: r[1]),
        )

    return [f(R(n, 2)) for n in NS]


@program
def to_image(C):
    @C
    def f(x):
        img = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        back = torch.from_numpy(img.transpose(2, 0, 1).copy()).float().div(255)
        return img, back, (back - 0.5) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]

    return [f(torch.rand(3, n, 4)) for n in NS]


@dataclass
class Cfg:
    dim: int = 4
    act: str = "relu"
    p: float = 0.5
    layers: tuple = (1, 2)
    extra: dict = field(default_factory=dict)
    bias: float | None = None


class Act(enum.Enum):
    RELU = "relu"
    TANH = "tanh"
    GELU = "gelu"


class Mode(enum.IntEnum):
    A = 0
    B = 1


class Out(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    n: int = 0


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    meta: dict = field(default_factory=dict)

    def __post_init__(s):
        s.meta["n"] = len(s.logits)

    def to_tuple(s):
        return tuple(v for v in (s.logits, s.loss) if v is not None)


@program
def cfg_dataclass(C):
    @C
    def f(x, cfg):
        y = getattr(torch, cfg.act)(x) * cfg.p
        for l in cfg.layers:
            y = y + l
        if cfg.bias is not None:
            y = y + cfg.bias
        return y, dataclasses.asdict(cfg), dataclasses.replace(cfg, p=cfg.p * 2)

    return [
        f(R(n, 2), c)
        for n, c in zip(
            NS * 2,
            [
                Cfg(),
                Cfg(p=0.25),
                Cfg(act="tanh"),
                Cfg(bias=1.0),
                Cfg(layers=(3,)),
                Cfg(extra={"a": 1}),
                Cfg(bias=2.0),
                Cfg(),
            ],
        )
    ]


@program
def cfg_mutated(C):
    c = Cfg()
    f = C(lambda x: x * c.p + (c.bias or 0) + sum(c.layers))
    out = []
    for i, n in enumerate(NS):
        out.append(f(R(n)))
        c.p += 0.1
        c.layers += (i,)
        c.bias = i if i % 2 else None
    return out


@program
def enums(C):
    @C
    def f(x, a, m):
        if a is Act.RELU:
            y = x.relu()
        elif a == Act.TANH:
            y = x.tanh()
        else:
            y = getattr(F, a.value)(x)
        return y * (m + 1), a.name, Mode(1 - m), {Act.RELU: 1, Act.TANH: 2}.get(a, 0)

    return [
        f(R(n), a, m) for n, a, m in zip(NS, [Act.RELU, Act.TANH, Act.GELU, Act.RELU], [Mode.A, Mode.B, Mode.A, Mode.B])
    ]


@program
def namedtuples(C):
    @C
    def f(x, y=None):
        o = Out(x * 2, n=x.shape[0])
        o = o._replace(loss=(o.logits - y).pow(2).mean()) if y is not None else o
        return o, o._asdict(), o.n, Out._fields, o[0] is o.logits

    return [f(R(n, 2), *([R(n, 2)] if n != 7 else [])) for n in NS]


@program
def dc_outputs(C):
    @C
    def f(x, y=None):
        o = Output(x * 2)
        o.loss = o.logits.mean() if y else None
        return o, o.to_tuple()

    return [f(R(n, 2), n % 2) for n in NS]


@program
def dict_batches(C):
    m = nn.Linear(3, 2)

    @C
    def f(batch, **kw):
        batch = {k: v * 2 if v.is_floating_point() else v for k, v in batch.items()}
        o = m(batch["x"])
        batch["out"] = o
        kw.setdefault("scale", 1.0)
        return {**batch, "loss": F.cross_entropy(o * kw["scale"], batch["y"])}, sorted(kw)

    out = []
    for i, n in enumerate(NS):
        r = f({"x": R(n, 3), "y": torch.randint(0, 2, (n,))}, **({"scale": 0.5, "z": 1} if i % 2 else {}))
        r[0]["loss"].backward()
        out.append(r)
    return out, m.weight.grad


@program
def mutated_dict(C):
    @C
    def f(d):
        d["y"] = d.pop("x") * 2
        d["n"] = d.get("n", 0) + 1
        d.setdefault("hist", []).append(d["y"].sum())
        return d["y"] + d["n"]

    d = {}
    out = []
    for n in NS:
        d["x"] = R(n)
        out.append(f(d))
    return out, d


@program
def kwonly(C):
    @C
    def f(x, /, *args, scale=1.0, mode: str = "a", **kw):
        y = x * scale
        for a in args:
            y = y + a
        if mode == "b":
            y = -y
        for k, v in sorted(kw.items()):
            y = y * v
            print(k)
        return y

    return (
        f(R(3)),
        f(R(4), 1, 2.0),
        f(R(3), scale=2, mode="b"),
        f(R(5), R(5), z=2, a=torch.tensor(3.0)),
        f(R(2), *[1, 2, 3], q=0.5),
    )


@program
def partials(C):
    def g(x, a, b=2):
        return x * a + b

    f = C(functools.partial(g, b=3))
    h = C(lambda x, k: functools.partial(g, a=k)(x))
    return (
        [f(R(n), n) for n in NS],
        [h(R(n), n * 0.5) for n in NS],
        [C(functools.partial(g, a=q))(R(3)) for q in (1, 2.5)],
    )


@program
def decorators(C):
    calls = collections.Counter()

    def counted(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            calls[fn.__name__] += 1
            return fn(*a, **k)

        return w

    def scaled(s):
        def d(fn):
            @functools.wraps(fn)
            def w(x, *a):
                return fn(x * s, *a)

            return w

        return d

    @C
    @counted
    @scaled(2.0)
    def f(x, y):
        "doc"
        return g(x) + y

    @counted
    def g(x):
        return x.tanh()

    return [f(R(n), R(n)) for n in NS], dict(calls), f.__name__, f.__doc__


@program
def closures(C):
    state = {"n": 0}
    total = 0

    def make(k):
        c = k

        def inner(x):
            nonlocal c, total
            c += 1
            total += 1
            state["n"] += x.shape[0]
            return x * c

        return inner

    fs = [C(make(i)) for i in range(3)]
    return [[f(R(n)) for f in fs] for n in NS], state, total


COUNT = 0


@program
def globals_(C):
    global COUNT
    COUNT = 0

    def f(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    f = C(f)
    r = [f(R(n)) for n in NS]
    COUNT = 10
    return r, f(R(3)), COUNT


@program
def methods_props(C):
    class Model(nn.Module):
        scale = 2.0
        registry = {}

        def __init__(s):
            super().__init__()
            s.w = nn.Parameter(torch.ones(3))
            s._cache = {}
            s.calls = 0

        @property
        def dtype(s):
            return next(s.parameters()).dtype

        @property
        def device(s):
            return s.w.device

        @staticmethod
        def act(x):
            return x.relu()

        @classmethod
        def name(cls):
            return cls.__name__

        @functools.cached_property
        def inv(s):
            return 1.0 / (10 ** (torch.arange(3).float() / 3))

        def mask(s, n):
            if n not in s._cache:
                s._cache[n] = torch.tril(torch.ones(n, n))
            return s._cache[n]

        def forward(s, x):
            s.calls += 1
            s.registry[s.calls] = x.shape[0]
            return s.mask(x.shape[0]) @ s.act(x.to(s.dtype) * s.w * s.scale * s.inv), s.name()

    m = Model()
    f = C(m)
    r = [f(R(n, 3)) for n in NS]
    Model.scale = 3.0
    r.append(f(R(4, 3)))
    m.scale = 4.0
    r.append(f(R(4, 3)))
    return r, m.calls, sorted(m._cache), Model.registry


@program
def callables(C):
    class Comp:
        def __init__(s, *fs):
            s.fs = list(fs)

        def __call__(s, x):
            for f in s.fs:
                x = f(x)
            return x

        def __getitem__(s, i):
            return s.fs[i]

        def __len__(s):
            return len(s.fs)

        def __iter__(s):
            return iter(s.fs)

        def __contains__(s, f):
            return f in s.fs

        def __add__(s, o):
            return Comp(*s.fs, *o.fs)

    c = Comp(torch.relu, lambda x: x + 1, nn.Tanh())
    f = C(c)
    r = [f(R(n)) for n in NS]
    c.fs.append(torch.sin)
    r.append(f(R(4)))
    g = C(lambda x: (c + Comp(torch.neg))(x) * len(c) + sum(1 for _ in c) + (torch.sin in c))
    return r, g(R(3)), g(R(5)), c[0](R(2))


@program
def generators_(C):
    def windows(x, k):
        for i in range(x.shape[0] - k + 1):
            yield i, x[i : i + k]

    @C
    def f(x, k):
        return (
            torch.stack([w.mean() * i for i, w in windows(x, k)]),
            {i: w.sum() for i, w in windows(x, k) if i % 2},
            {i for i, _ in windows(x, k)},
        )

    return [f(R(n + 2), k) for n, k in zip(NS, (2, 3, 2, 2))]


@program
def comps(C):
    @C
    def f(xs, d):
        return (
            [x * i for i, x in enumerate(xs)],
            {k: v.sum() for k, v in d.items()},
            [a + b for a, b in zip(xs, reversed(xs))],
            [y for x in xs for y in x.unbind()][-1],
            any(x.shape[0] > 3 for x in xs),
            sum(x.sum() for x in xs),
            next(iter(itertools.chain(xs, d.values()))),
            sorted(d),
            functools.reduce(operator.add, xs),
        )

    return [f([R(n) for _ in range(k)], {"b": R(n), "a": R(2)}) for n, k in zip(NS, (2, 3, 3, 2))]


@program
def ctxmgrs(C):
    class Eval:
        def __init__(s, m):
            s.m = m

        def __enter__(s):
            s.was = s.m.training
            s.m.eval()
            return s.m

        def __exit__(s, *a):
            s.m.train(s.was)

    @contextlib.contextmanager
    def scaled(d, v):
        old = d["s"]
        d["s"] = v
        try:
            yield d
        finally:
            d["s"] = old

    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    d = {"s": 1.0}

    @C
    def f(x):
        with Eval(m) as e, torch.no_grad():
            a = e(x)
        with scaled(d, 2.0):
            b = m(x) * d["s"]
        with contextlib.suppress(ValueError):
            raise ValueError
        with contextlib.ExitStack() as st:
            st.enter_context(torch.no_grad())
            c = x * 2
        return a, b, c, m.training, d["s"], torch.is_grad_enabled()

    return [f(R(n, 3, requires_grad=True)) for n in NS], m


@program
def tryexcept(C):
    @C
    def f(x, y):
        try:
            z = x @ y
        except RuntimeError as e:
            z = x.sum()
            msg = str(e)[:30]
        else:
            msg = "ok"
        finally:
            z = z + 1
        try:
            k = {"a": 1}["b"]
        except (KeyError, IndexError) as e:
            k = e.args[0]
        try:
            x[10]
        except IndexError as e:
            q = str(e)
        try:
            return z, msg, k, q
        finally:
            print("bye")

    return f(R(3, 2), R(2, 4)), f(R(3, 2), R(3, 2)), f(R(5, 2), R(2, 1)), f(R(4, 2), R(3, 2))


@program
def earlyret(C):
    @C
    def f(x, k=None, flag=False):
        if k is None:
            return x
        if not flag:
            return x * k
        for i in range(k):
            if i == 3:
                break
            if i % 2:
                continue
            x = x + i
        else:
            return x, "else"
        while x.shape[0] > 2:
            x = x[::2]
        return x

    return [
        f(R(n), *a) for n, a in zip(NS * 2, [(), (2,), (2, True), (5, True), (None,), (2, True), (7, True), (0, True)])
    ]


@program
def recursion(C):
    def tree(x, d):
        return (
            x
            if d == 0 or x.shape[0] < 2
            else torch.cat([tree(x[: x.shape[0] // 2], d - 1) * 2, tree(x[x.shape[0] // 2 :], d - 1) + 1])
        )

    def walk(t):
        return (
            t * 2
            if isinstance(t, torch.Tensor)
            else type(t)(walk(v) for v in t)
            if isinstance(t, (list, tuple))
            else {k: walk(v) for k, v in t.items()}
        )

    f = C(tree)
    g = C(walk)
    return [f(R(n), 3) for n in NS], [g({"a": [R(n), (R(2),)], "b": R(n)}) for n in NS]


@program
def int_args(C):
    f = C(
        lambda x, a, b, c, d: (
            x * a if c else x + b,
            x[:a],
            x.new_full((a,), b),
            d if d is None else x * d,
            torch.arange(a),
            x.roll(a, 0),
            [a] * 2,
            a // 2,
            a % 3,
            -a,
            a**2,
            a > 2,
            float(a),
            str(a),
            b * a,
        )
    )
    return [
        f(R(8), *a)
        for a in [
            (2, 0.5, True, None),
            (3, 0.25, False, 1),
            (4, 1.5, True, 2.0),
            (5, 2.5, False, None),
            (1, 1.0, True, True),
            (0, -1.0, True, False),
            (2, 2, True, None),
        ]
    ]


@program
def str_opts(C):
    ACT = {"relu": F.relu, "gelu": F.gelu, "none": lambda x: x}

    @C
    def f(x, act="relu", red="mean", norm=None):
        y = ACT[act](x)
        y = getattr(y, red)() if red != "none" else y
        assert norm in (None, "l2")
        y = y / x.norm() if norm == "l2" else y
        match red:
            case "mean":
                y = y * 2
            case "sum" | "none":
                y = y + 1
            case _:
                raise ValueError(f"unknown {red!r}")
        return y

    out = [
        f(R(n), *a)
        for n, a in zip(
            NS * 2,
            [
                ("relu",),
                ("gelu", "sum"),
                ("none", "none"),
                ("relu", "mean", "l2"),
                ("gelu",),
                ("none", "sum", "l2"),
                ("relu",),
                ("relu",),
            ],
        )
    ]
    for bad in [("nope",), ("relu", "max")]:
        try:
            f(R(3), *bad)
        except Exception as e:
            out.append(repr(e))
    return out


@program
def cache_on_self(C):
    class Rot(nn.Module):
        def __init__(s):
            super().__init__()
            s.seq = 0
            s.cos = None
            s.hits = 0

        def forward(s, x):
            n = x.shape[0]
            if s.cos is None or n > s.seq:
                s.seq = n
                s.cos = torch.arange(n).float().cos()[:, None]
            else:
                s.hits += 1
            return x * s.cos[:n]

    m = Rot()
    f = C(m)
    return [f(R(n, 2)) for n in NS * 2], m.hits, m.seq, m.cos


@program
def history_lists(C):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(2, 2)
            s.hist = []
            s.last = None
            s.q = collections.deque(maxlen=2)
            s.stats = collections.OrderedDict()
            s.c = collections.Counter()
            s.seen = set()

        def forward(s, x):
            y = s.l(x)
            s.hist.append(y.detach().mean())
            s.last = y
            s.q.append(x.shape[0])
            s.stats[f"n{x.shape[0]}"] = len(s.hist)
            s.c[x.shape[0]] += 1
            s.seen.add(x.dim())
            return y + sum(s.q)

    m = M()
    f = C(m)
    return [f(R(n, 2)) for n in NS], m.hist, m.last, list(m.q), dict(m.stats), dict(m.c), m.seen


@program
def ops_dunder(C):
    class Vec:
        def __init__(s, d):
            s.d = d

        def __add__(s, o):
            return Vec(s.d + (o.d if isinstance(o, Vec) else o))

        __radd__ = __add__

        def __mul__(s, k):
            return Vec(s.d * k)

        def __matmul__(s, o):
            return s.d @ o.d

        def __getattr__(s, k):
            if k.startswith("_"):
                raise AttributeError(k)
            return getattr(s.d, k)

        def __eq__(s, o):
            return bool(torch.equal(s.d, o.d))

        def __hash__(s):
            return 1

        def __repr__(s):
            return f"Vec{tuple(s.d.shape)}"

        def __iter__(s):
            return iter(s.d)

        def __bool__(s):
            return s.d.numel() > 3

    @C
    def f(a, b):
        v = 1 + (Vec(a) + Vec(b)) * 2
        return (
            v,
            v @ v,
            v.shape,
            v.sum(),
            repr(v),
            v == v,
            next(iter(v)),
            bool(v),
            "y" if v else "n",
            sum([Vec(a), Vec(b)]),
        )

    return [f(R(n), R(n)) for n in NS]


@program
def fmt_numbers(C):
    @C
    def f(x, lr, step):
        s = f"{step:>5d} | {lr:.2e} | {x.shape[0]:04d} | {x.numel() / 3:.2f} | {x.dtype!s:>15} | {lr!r}"
        s += f" {step:,} {step / 7:.1%}"
        return s, x * lr, s.split("|")[0].strip(), len(s), "loss" in s, s.upper()

    return [f(R(n), 0.1 / (i + 1), 10**i) for i, n in enumerate(NS)]


@program
def varied_struct(C):
    f = C(lambda t: t["a"][0] * 2 + (t.get("b", 0)) + len(t["a"]))
    return (
        [f({"a": [R(n)]}) for n in NS],
        f({"a": (R(3), 1), "b": 2}),
        f({"b": R(3), "a": [R(3)]}),
        f(collections.OrderedDict(a=[R(2)])),
    )


@program
def singledisp(C):
    @functools.singledispatch
    def norm(x, *a):
        raise TypeError

    @norm.register
    def _(x: torch.Tensor, k=1):
        return x.norm() * k

    @norm.register(list)
    def _(x):
        return sum(norm(v) for v in x)

    f = C(lambda x: norm(x) + 1)
    return [f(R(n)) for n in NS], f([R(2), R(3)])


@program
def lru(C):
    @functools.cache
    def mask(n):
        return torch.triu(torch.full((n, n), -1.0), 1)

    f = C(lambda x: x @ mask(x.shape[-1]))
    return [f(R(2, n)) for n in NS * 2]


@program
def abstract(C):
    class Base(abc.ABC, nn.Module):
        @abc.abstractmethod
        def body(s, x): ...
        def forward(s, x):
            return s.post(s.body(s.pre(x)))

        def pre(s, x):
            return x * 2

        def post(s, x):
            return x

    class A(Base):
        def body(s, x):
            return x.relu()

        def post(s, x):
            return super().post(x) + 1

    class B(A):
        def body(s, x):
            return super().body(x) + super(A, s).pre(x)

    return [C(k())(R(n)) for k in (A, B) for n in NS]


@program
def mixin_mro(C):
    class Log:
        logs = ()

        def forward(s, x):
            s.logs = s.logs + (x.shape[0],)
            return super().forward(x)

    class Sc:
        def forward(s, x):
            return super().forward(x) * 2

    class M(Log, Sc, nn.Linear):
        pass

    m = M(2, 2)
    f = C(m)
    return [f(R(n, 2)) for n in NS], m.logs


@program
def walrus_star(C):
    @C
    def f(x):
        first, *rest = x.unbind(0)
        (a, b), c = x[:2].unbind(), x[-1]
        if (n := x.shape[0]) > 3 and (s := x.sum()) is not None:
            first = first + n + s
        a, b = b, a
        d = {"a": a, "b": b}
        l = [*rest, first]
        i, j = divmod(n, 2)
        x = z = c
        return first, len(rest), d, l[-1], x is z, i, j, a if n % 2 else b, not n, n if n > 3 else -n, 1 < n < 5

    return [f(R(n, 2)) for n in NS]


@program
def strings_keys(C):
    m = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    pd = nn.ParameterDict({"w": nn.Parameter(torch.ones(2))})
    pl = nn.ParameterList([nn.Parameter(torch.ones(2) * i) for i in range(3)])

    @C
    def f(x, key):
        for k, v in m.items():
            if k != key:
                x = v(x)
        for i, p in enumerate(pl):
            x = x + p * i
        return (
            x * pd["w"],
            list(m.keys()),
            len(pl),
            key in m,
            m[key](x),
            [n for n, _ in m.named_modules()],
            sum(p.numel() for p in m.parameters()),
        )

    return [f(R(n, 2), k) for n, k in zip(NS, "abab")]


@program
def sort_by(C):
    @C
    def f(xs):
        s = sorted(xs, key=lambda t: t.shape[0], reverse=True)
        mx = max(xs, key=len)
        pad = nn.utils.rnn.pad_sequence(s, batch_first=True)
        l = torch.tensor([len(t) for t in s])
        return pad, l, mx, pad.sum(1) / l

    return [f([R(k) for k in ks]) for ks in ((1, 3, 2), (4, 2, 5), (3, 3, 3, 1), (2, 5, 1))]


@program
def pad_hand(C):
    @C
    def f(seqs, pad=0):
        n = max(map(len, seqs))
        out = torch.full((len(seqs), n), pad)
        mask = torch.zeros(len(seqs), n, dtype=torch.bool)
        for i, s in enumerate(seqs):
            out[i, : len(s)] = torch.tensor(s)
            mask[i, : len(s)] = True
        return out, mask, out.ne(pad).sum(1)

    return [f(s) for s in ([[1, 2], [3]], [[1, 2, 3], [4], [5, 6]], [[7]], [[1, 2], [3, 3]])]


@program
def tensor_in_cond(C):
    @C
    def f(x, thr):
        if x.mean() > thr:
            x = x * 2
        elif x.min() < -1:
            x = x.abs()
        if torch.isnan(x).any():
            return torch.zeros_like(x)
        while x.norm() > 3:
            x = x / 2
        return x if x.sum() else -x

    return [f(R(n) * 3, t) for n in NS for t in (0.0, 0.5)], f(torch.tensor([float("nan")]), 0.0)
