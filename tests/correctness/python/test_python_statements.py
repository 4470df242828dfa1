# ruff: noqa: B016, B018, B023, B030, B904, E731, F821, F841, PIE804, RET503, RUF059, SIM105, UP037 -- they use what they test
"""Statements of Python down to their corners: what is raised, with which text, cause and context, in which order things
happen. Captured without a break, each program must give what CPython gives. PYTEST_DONT_REWRITE: that would put calls
of `locals` into the programs."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


def described(error: Any) -> Any:
    """An exception with what led to it, as comparable data."""
    if isinstance(error, (list, tuple)):
        return type(error)([described(part) for part in error])
    if not isinstance(error, BaseException):
        return error
    chain = described(error.__cause__), described(error.__context__)
    return (type(error).__name__, described(error.args), *chain, error.__suppress_context__)


@program
def delegate_throw(x):
    log = []

    def inner():
        try:
            while True:
                try:
                    v = yield len(log)
                    log.append(("got", v))
                except KeyError as e:
                    log.append(("key", e.args, repr(e.__context__)))
                    yield "caught"
        finally:
            log.append("inner end")

    def outer():
        try:
            r = yield from inner()
            log.append(("r", r))
        except ValueError as e:
            log.append(("outer", str(e)))
            yield "o"
        finally:
            log.append("outer end")

    g = outer()
    log.append(next(g))
    log.append(g.send(5))
    log.append(g.throw(KeyError("a")))
    log.append(next(g))
    log.append(g.throw(ValueError("bad")))
    log.append(next(g, "done"))
    h = outer()
    next(h)
    h.close()
    log.append("closed")
    k = outer()
    next(k)
    del k
    log.append("dropped")
    for v in outer():
        log.append(v)
        break
    log.append("after break")
    return x + 1, log


@program
def contexts(x):
    log = []
    try:
        try:
            1 // 0
        except ZeroDivisionError as e:
            log.append(sys.exc_info()[0].__name__)
            raise KeyError("k")
    except KeyError as e:
        log.append(described(e))
    try:
        try:
            {}["q"]
        except KeyError as e:
            raise ValueError("v") from None
    except ValueError as e:
        log.append(described(e))
    try:
        try:
            {}["q"]
        except KeyError as e:
            raise ValueError from RuntimeError
    except ValueError as e:
        log.append(described(e))
    try:
        try:
            try:
                raise KeyError(1)
            finally:
                [][3]
        except IndexError as e:
            log.append(described(e))
            raise
    except LookupError as e:
        log.append(described(e))
    log.append(sys.exc_info())

    class B(BaseException):
        pass

    try:
        raise B(3)
    except B as e:
        log.append(described(e))

    def g():
        try:
            yield 1
        except KeyError as e:
            log.append(described(e))
            yield sys.exc_info()[0].__name__
            log.append(sys.exc_info()[0].__name__)

    try:
        raise TypeError("t")
    except TypeError:
        it = g()
        next(it)
        log.append(it.throw(KeyError("x")))
    log.append(sys.exc_info())
    list(it)
    try:
        raise 3
    except TypeError as e:
        log.append(str(e))
    try:
        try:
            1 // 0
        except 5:
            pass
    except TypeError as e:
        log.append(described(e))

    def si():
        yield 1
        raise StopIteration(4)

    try:
        list(si())
    except RuntimeError as e:
        log.append(described(e))
    return x, log


@program
def binding(x):
    log = []

    def a(p, q=1):
        pass

    def b(p, /, q, *, r, s=2):
        pass

    def c():
        pass

    def f(p, q, r):
        pass

    def k(*, u, v):
        pass

    class C:
        def m(self, z):
            pass

    for fn, args, kw in [
        (a, (), {}),
        (a, (1, 2, 3), {}),
        (a, (1,), {"p": 2}),
        (a, (1,), {"w": 2}),
        (b, (1, 2), {}),
        (b, (), {"p": 1, "q": 2, "r": 3}),
        (b, (1, 2, 3), {"r": 4}),
        (c, (1,), {}),
        (f, (), {}),
        (f, (1,), {}),
        (k, (), {}),
        (k, (1,), {"u": 1, "v": 2}),
        (C().m, (), {}),
        (C().m, (1, 2), {}),
        (C, (1,), {}),
        (b, (1, 2, 3, 4), {"r": 1, "s": 3}),
    ]:
        try:
            fn(*args, **kw)
            log.append("ok")
        except TypeError as e:
            log.append(str(e))
    try:
        a(1, **{"q": 2}, **{"q": 3})
    except TypeError as e:
        log.append(str(e))
    try:
        a(*5)
    except TypeError as e:
        log.append(str(e))
    try:
        a(**5)
    except TypeError as e:
        log.append(str(e))
    try:
        a(**{1: 2})
    except TypeError as e:
        log.append(str(e))
    try:
        log[99]
    except IndexError:
        try:
            a(1, **{"q": 2}, **{"q": 3})
        except (KeyError, TypeError) as e:  # a KeyError up to Python 3.11
            log.append(described(e))
    return x, log


@program
def unbound(x):
    log = []

    def f():
        try:
            zz
        except NameError as e:
            log.append((type(e).__name__, str(e), e.name))
        if x is None:
            zz = 1

    f()

    def g():
        y = 1
        del y
        try:
            y
        except NameError as e:
            log.append((type(e).__name__, str(e)))
        try:
            del y
        except NameError as e:
            log.append((type(e).__name__, str(e)))
        w = 2

        def h():
            return w

        del w
        try:
            h()
        except NameError as e:
            log.append((type(e).__name__, str(e)))
        try:
            w
        except NameError as e:
            log.append((type(e).__name__, str(e)))
        try:
            del w
        except NameError as e:
            log.append((type(e).__name__, str(e)))
        try:
            undefined_name
        except NameError as e:
            log.append((type(e).__name__, str(e), e.name))
        try:
            a, b = 1, 2, 3
        except ValueError as e:
            log.append(str(e))
        try:
            a, b = 5
        except TypeError as e:
            log.append(str(e))
        try:
            a, *b, c = [1]
        except ValueError as e:
            log.append(str(e))

    g()

    def cnt():
        n = 0
        while True:
            log.append(("n", n))
            yield n
            n += 1

    try:
        a, b = cnt()
    except ValueError as e:
        log.append(str(e))
    return x, log


@program
def withs(x):
    log = []

    class M:
        def __init__(s, n, sup=False):
            s.n = n
            s.sup = sup

        def __enter__(s):
            log.append("+" + s.n)
            return s

        def __exit__(s, t, v, tb):
            log.append(("-" + s.n, t and t.__name__, repr(v), tb is None))
            return s.sup

    with M("a"), M("b", True) as m:
        raise KeyError(m.n)
    for i in range(3):
        with M(str(i)):
            if i == 1:
                continue
            if i == 2:
                break

    def r():
        with M("r"):
            return "ret"

    log.append(r())
    try:
        with M("c"):
            1 // 0
    except ZeroDivisionError as e:
        log.append("z")
    try:
        with 5:
            pass
    except (TypeError, AttributeError) as e:
        log.append(str(e))

    class H:
        def __enter__(s):
            pass

    try:
        with H():
            pass
    except (TypeError, AttributeError) as e:
        log.append(str(e))
    with contextlib.ExitStack() as st:
        st.enter_context(M("s1"))
        st.callback(log.append, "cb")
        st.push(M("s2", True))
        raise ValueError("q")
    with contextlib.suppress(KeyError), contextlib.nullcontext(3) as n3:
        log.append(n3)
        {}[1]

    @contextlib.contextmanager
    def cm(v):
        log.append("in")
        try:
            yield v
        except KeyError as e:
            log.append(("k", str(e)))
        finally:
            log.append("out")

    with cm(4) as v:
        log.append(v)
        raise KeyError("zz")

    @cm(7)
    def deco(q):
        return q * 2

    log.append(deco(4))
    return x, log


@program
def coro(x):
    log = []

    class Fut:
        def __await__(self):
            r = yield "wait"
            return r

    async def inner(n):
        log.append("i")
        v = await Fut()
        return v + n

    class ACM:
        async def __aenter__(self):
            log.append("ae")
            return 5

        async def __aexit__(self, *a):
            log.append(("ax", a[0] and a[0].__name__))
            return True

    class AIt:
        def __init__(self):
            self.n = 0

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.n += 1
            if self.n > 3:
                raise StopAsyncIteration
            return self.n

    async def outer():
        a = await inner(1)
        async with ACM() as five:
            log.append(five)
            raise KeyError(1)
        async for k in AIt():
            log.append(k)
        return a * 2

    c = outer()
    log.append(c.send(None))
    try:
        c.send(10)
    except StopIteration as e:
        log.append(e.value)
    return x, log


@program
def generator_protocol(x):
    log = []

    def g():
        r = yield 1
        log.append(r)
        r = yield 2
        return (r, "end")

    it = g()
    try:
        it.send(3)
    except TypeError as e:
        log.append(str(e))
    log.append(next(it))
    log.append(it.send("s"))
    try:
        it.send("t")
    except StopIteration as e:
        log.append((e.value, e.args))
    try:
        next(it)
    except StopIteration as e:
        log.append((e.value, e.args))
    log.append(list(it))
    log.append(it.close())

    def stubborn():
        for _ in range(2):
            try:
                yield 1
            except GeneratorExit:
                pass

    it = stubborn()
    next(it)
    try:
        it.close()
    except RuntimeError as e:
        log.append(str(e))

    def selfish():
        try:
            next(me)
        except ValueError as e:
            log.append(str(e))
        yield 1

    me = selfish()
    next(me)
    fresh = g()
    try:
        fresh.throw(KeyError("k"))
    except KeyError as e:
        log.append(repr(e))
    log.append(next(fresh, "over"))
    try:
        g().throw(5)
    except TypeError as e:
        log.append(str(e))

    def chain():
        a = yield from [1, 2]
        b = yield from g()
        log.append((a, b))
        yield from (i for i in range(2))

    it = chain()
    log.append([next(it), next(it), next(it)])
    log.append(it.send("q"))
    log.append(list(it))

    def cleanup():
        try:
            yield 1
        finally:
            log.append("closed")

    def first():
        for v in cleanup():
            return v

    log.append(first())
    (a,) = zip([1], cleanup())
    log.append(a)

    def nested():
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "callback")
            yield from cleanup()

    for _ in nested():
        break
    log.append("end")
    return x, log


@program
def deleted_and_shadowed(x):
    log = []
    len = lambda v: "mine"
    log.append(len([1]))
    d = {"a": 1, "b": [1, 2, 3]}
    del d["a"], d["b"][1:]
    log.append(d)
    try:
        del d["none"]
    except KeyError as e:
        log.append(described(e))

    class C:
        pass

    c = C()
    c.a = 1
    del c.a
    try:
        c.a
    except AttributeError as e:
        log.append(str(e))
    try:
        del c.a
    except AttributeError as e:
        log.append(str(e))
    v = 3
    print = log.append
    print(f"{v!r:>4}|{v:03d}|{'x'!s}|{v=}|{v:{v}d}|{'é'!a}|{1.5:.2f}")
    assert v == 3, "no"
    try:
        assert v == 4, f"v is {v}"
    except AssertionError as e:
        log.append(e.args)
    try:
        assert not v
    except AssertionError as e:
        log.append(e.args)
    return x, log


@program
def operators(x):
    log = []

    class N:
        def __init__(self, v):
            self.v = v

        def __iadd__(self, o):
            log.append("iadd")
            self.v += o
            return self

        def __add__(self, o):
            log.append("add")
            return N(self.v + o)

        def __radd__(self, o):
            log.append("radd")
            return N(o + self.v)

        def __lt__(self, o):
            log.append("lt")
            return NotImplemented

        def __gt__(self, o):
            log.append("gt")
            return "truthy"

        def __bool__(self):
            log.append("bool")
            return self.v > 0

        def __contains__(self, o):
            log.append("in")
            return []

        def __getitem__(self, k):
            log.append(k)
            return k

        def __setitem__(self, k, v):
            log.append((k, v))

        def __delitem__(self, k):
            log.append(("del", k))

        def __neg__(self):
            return "neg"

        def __matmul__(self, o):
            return NotImplemented

        def __index__(self):
            return 2

    n = N(1)
    m = n
    n += 2
    log.append(n is m)
    n = n + 1
    n = 1 + n
    log.append(n.v)
    log.append(n < m)
    log.append(0 if not n else 1)
    log.append(3 in n)
    log.append(3 not in n)
    n[1:2] = 3
    n[1, ...]
    n[:]
    del n[0]
    n[1:2, ::3]
    log.append(-n)
    try:
        n @ m
    except TypeError as e:
        log.append(str(e).replace("program_", ""))
    log.append([5, 6, 7][n.__index__()])
    log.append(1 < 2 < 3 > 2 != 4)
    a = b = [1]
    a += (2,)
    log.append(b)
    t = (1,)
    u = t
    t += (2,)
    log.append((t, u))
    d = {}
    d["k"] = d.get("k", 0) + 1
    log.append(d)
    i = 0
    xs = [10, 20]
    i, xs[i] = 1, 5
    log.append((i, xs))
    log.append((w := 5, w + 1))
    log.append([y := 1, y**2])
    return x, log


@program
def arguments(x):
    log = []

    def f(a, b=2, /, c=3, *args, d, e=5, **kw):
        return (a, b, c, args, d, e, kw)

    log.append(f(1, d=4))
    log.append(f(1, 2, 3, 4, 5, d=6, e=7, a=8, z=9))
    log.append(f(*[1, 2], *(3,), **{"d": 1}, **{"q": 2}))
    default = []

    def g(v, into=default):
        into.append(v)
        return into

    g(1)
    g(2)
    log.append((default, g.__defaults__))
    g.__defaults__ = ([9],)
    log.append(g(3))

    def h(*, k=1):
        return k

    h.__kwdefaults__ = {"k": 7}
    log.append(h())
    fs = [lambda: i for i in range(3)]
    log.append([q() for q in fs])
    fs = [lambda i=i: i for i in range(3)]
    log.append([q() for q in fs])

    def counter():
        n = 0

        def inc(by=1):
            nonlocal n
            n += by
            return n

        return inc, lambda: n

    inc, get = counter()
    inc()
    inc(5)
    log.append(get())

    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    log.append(fact(10))

    def outer(v):
        def mid():
            def inner():
                return v, default

            return inner

        return mid()()

    log.append(outer(3))
    log.append((f.__name__, f.__qualname__, f.__defaults__, f.__kwdefaults__))

    def noted(a: int, b: "str" = "x") -> None:
        "doc"

    log.append((noted.__doc__, sorted(noted.__annotations__)))
    return x, log


@program
def classes(x):
    log = []

    class Meta(type):
        def __call__(cls, *a):
            log.append(("call", cls.__name__))
            return super().__call__(*a)

        @property
        def shout(cls):
            return cls.__name__.upper()

    class A(metaclass=Meta):
        k = 3
        ks = [k, k + 1]

        def __init__(self, v):
            self.v = v

        def who(self):
            return __class__.__name__

        @classmethod
        def make(cls):
            return cls(1)

        @staticmethod
        def plain():
            return "s"

        def __init_subclass__(cls, tag=None, **kw):
            super().__init_subclass__(**kw)
            cls.tag = tag

    class B(A, tag="t"):
        __slots__ = ("w",)

        def who(self):
            return "B" + super().who()

        @property
        def p(self):
            return self.v

        @p.setter
        def p(self, v):
            self.v = v * 2

    b = B(4)
    b.p = 5
    log.append((b.who(), b.p, B.tag, A.make().v, B.plain(), B.shout, A.ks, B.__mro__[1].__name__))
    log.append((b.__class__ is B, isinstance(b, A), issubclass(B, A), type(b).__name__, B.__qualname__))

    class Desc:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, o, t=None):
            return self if o is None else ("got", self.name)

        def __set__(self, o, v):
            log.append(("set", self.name, v))

    class D:
        d = Desc()

        def __getattr__(self, n):
            if n.startswith("q"):
                return n
            raise AttributeError(n)

    q = D()
    q.d = 1
    log.append((q.d, q.qq, D.d.name, hasattr(q, "zz"), getattr(q, "zz", 0)))
    return x, log


@program
def patterns(x):
    log = []

    class P:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a = a
            self.b = b

    def m(v):
        match v:
            case None:
                return "none"
            case True | False:
                return "bool"
            case 0 | -1:
                return "small"
            case int(n) if n > 5:
                return ("int", n)
            case float() as f:
                return ("float", f)
            case str("ab" | "cd" as s):
                return ("str", s)
            case []:
                return "empty"
            case [1, *rest, 9]:
                return ("list", rest)
            case (a, (b, [c])):
                return ("nested", a, b, c)
            case {"k": int(k), **rest}:
                return ("map", k, rest)
            case {}:
                return "dict"
            case P(1, b=bb):
                return ("P1", bb)
            case P(a, b):
                return ("P", a, b)
            case sys.maxsize:
                return "max"
            case _:
                return "other"

    for v in (
        None,
        True,
        0,
        -1,
        7,
        3,
        1.5,
        "ab",
        "zz",
        [],
        [1, 2, 3, 9],
        (1, (2, [3])),
        {"k": 1, "z": 2},
        {"k": "s"},
        {},
        P(1, 2),
        P(3, 4),
        sys.maxsize,
        {1},
        b"x",
    ):
        log.append(m(v))
    return x, log


@program
def classes_with_values_of_the_call(x):
    class C:
        items = [x]
        noted = []
        n = x.shape[0] * 2

        def get(self):
            return self.n + len(self.noted)

    C.noted.append(x + 1)
    C.z = 3
    C().items.append(2)
    D = type("D", (C,), {"w": [x]})
    D.w.append(1)
    del C.z
    return x, [len(C.items), hasattr(C, "z"), C().get(), len(D.w), D().n, (C.noted[0] * 2).shape]


GROUPS = """
def groups(x):
    log = []
    def run(make, *, handler=None):
        try:
            try:
                raise make()
            except* KeyError as g:
                log.append(("key", [repr(e) for e in g.exceptions]))
                if handler: raise handler
            except* (ValueError, OSError) as g:
                log.append(("value", repr(g)))
            else:
                log.append("else")
            finally:
                log.append("finally")
        except BaseException as e:
            log.append(("out", repr(e), described(e)[2:]))
    run(lambda: KeyError(1))
    run(lambda: TypeError(1))
    run(lambda: ExceptionGroup("g", [KeyError(1), ValueError(2), TypeError(3)]))
    run(lambda: ExceptionGroup("g", [KeyError(1), ExceptionGroup("h", [KeyError(2), OSError(3)])]))
    run(lambda: ExceptionGroup("g", [KeyError(1), TypeError(2)]), handler=RuntimeError("r"))
    run(lambda: KeyError(1), handler=RuntimeError("r"))
    try:
        try: raise ExceptionGroup("e", [ValueError(1), KeyError(2)])
        except* ValueError: raise
    except ExceptionGroup as e: log.append(repr(e))
    try:
        try: raise ValueError(1)
        except* 5: pass
    except BaseException as e: log.append(repr(e))
    return x, log
"""

GENERICS = """
def generics(x):
    log = []
    def first[T](xs: list[T]) -> T: return xs[0]
    log.append((first([1]), [t.__name__ for t in first.__type_params__]))
    class Box[T: int]:
        def __init__(self, v: T): self.v = v
        def get(self) -> T: return self.v
    log.append((Box(3).get(), Box.__type_params__[0].__name__))
    type Pair[A] = tuple[A, A]
    log.append(Pair.__name__)
    n = 5
    log.append([[n * j for j in range(i)] for i in range(3)])
    return x, log
"""

for _version, _source in (((3, 11), GROUPS), ((3, 12), GENERICS)):
    if sys.version_info >= _version:
        _namespace: dict[str, Any] = {"described": described}
        exec(_source, _namespace)
        PROGRAMS.append(
            next(v for k, v in _namespace.items() if isinstance(v, types.FunctionType) and k != "described")
        )


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_agrees_with_cpython(function: Callable[..., Any]) -> None:
    x = torch.rand(3)
    expected = copy.deepcopy(function(x)[1])
    result, log = bolide.compile(function, backend="eager", fullgraph=True)(x)
    for number, (wanted, got) in enumerate(zip(expected, log)):
        assert got == wanted, f"entry {number}: {got} instead of {wanted}"
    assert log == expected and torch.equal(result, function(x)[0])


def test_a_class_does_not_leave_with_values_of_the_call() -> None:
    def holds_a_tensor(x):
        class C:
            t = x * 2

        return C

    def closes_over_one(x):
        y = x * 2

        class C:
            def get(self):
                return y

        return C()

    def holds_nothing(x):
        class C:
            def __init__(self, v):
                self.v = v

        return C(x)

    x = torch.rand(3)
    for function in (holds_a_tensor, closes_over_one):
        with pytest.raises(bolide.support.errors.Unsupported, match="made in the function"):
            bolide.compile(function, backend="eager", fullgraph=True)(x)
    assert torch.equal(bolide.compile(holds_nothing, backend="eager", fullgraph=True)(x).v, x)


def test_a_traceback_shows_the_lines_of_the_program() -> None:
    def inner(x):
        print("before")
        return x.nothing

    def outer(x):
        return inner(x + 1)

    with pytest.raises(AttributeError) as caught:
        bolide.compile(outer, backend="eager")(torch.rand(3))
    names = [entry.name for entry in caught.traceback]
    assert names[-2:] == ["outer", "inner"]
    assert caught.traceback[-1].lineno == inner.__code__.co_firstlineno + 1
