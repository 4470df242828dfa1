"""Small programs of every day about functions, classes, control flow and errors, as data: `case` gives a program that
is called as it is, `fresh` one that is made anew for each run and keeps state."""

from __future__ import annotations

TOPICS = {
    "functions": r'''
@case()
def jit_marks(x):
    return (un(ig(sit(x))), sit(x, c=2.0))
@case()
def lru_with_tensor(a, b):
    return cached(a, 2, b)
@case()
def partial_clip(a, b):
    return clip01(a + b)
@case()
def inner(x):

    def f(x):
        return torch.add(x, x)
    return f(x)
@case()
def callables(x):
    return (x + 1, [callable(o) for o in (lambda: 0, torch.abs, sum, C, C(), 1, 'a', x, [1], torch.nn.ReLU(),
        functools.partial(sum), x.add, None)])
@case()
def dels(a, b):
    c = a + 1
    d = c + 2
    del c, a
    return b + d
@case()
def imports(x, y):
    import torch
    from torch import sub
    import torch.nn.functional as G, math as m
    from collections import OrderedDict as OD
    return (sub(torch.add(x, y), y), G.relu(x) * m.pi, OD(a=x))
@case()
def nonlocals(x, y):
    x = x + y + 1.0

    def inner(z):
        nonlocal x, y
        y = x + z + 20.0
        x = y + z + 10.0
    inner(2.0)
    inner(3.0)
    return (x, y)
@case()
def partials(x):
    m = functools.partial(torch.mul, other=torch.ones(1, 4) * 2)
    l = functools.partial(lambda x, y: x * y, y=3)
    p2 = functools.partial(l, x=x)
    return (m(x), l(x), p2(), l.func(1, 2), l.keywords, l.args, functools.partial(torch.mul, x)(x),
        functools.partial(functools.partial(sub, x), alpha=2)(x))
@case()
def partial_mods(x, y):
    return (functools.partial(um, mod=Small())(x=x, y=y), functools.partial(um, mod=Small().forward)(x=x, y=y))
@case()
def partial_attrs(t):
    p = functools.partial(lambda x, y: torch.sin(x) + torch.cos(y), y=t)
    p.tag = 'q'
    return (p(t), [hasattr(p, a) for a in ('__subclasshook__', '__lt__', '__hash__', '__dict__', '__doc__',
        '__new__', '__call__', 'args', 'keywords', 'func', '__code__', '__name__', '__get__', '__closure__',
        'tag')], p.tag)
@fresh(T)
def closures_out():

    def f(y):

        def a():

            def x(z):
                return y + z
            return x
        return (a()(y * 2), a())
    return lambda y: (f(y)[0], f(y)[1](y))
@case()
def rebound_lambda(x, y):
    one = lambda x, y: x + y

    def inner():
        bolide.graph_break()
        return one(x, y)
    res = inner()
    one = lambda x, y: x - y
    res += inner()
    return res
@fresh(T)
def default_tensors():

    def gd(x=torch.zeros(2, 2), *, k=torch.zeros(1, 2)):
        x.add_(1)
        k.add_(1)
        return (x.clone(), k.clone())

    def f(x):
        return (x + 1, gd(), gd.__defaults__, gd.__kwdefaults__)
    return f
@fresh(T)
def default_patched():

    def gd(x=torch.zeros(2, 2), *, k=2.0):
        return x + k
    st = [0]

    def f(x):
        return (gd(), x)

    def g(x):
        st[0] += 1
        if st[0] == 2:
            gd.__defaults__ = (torch.ones(3, 4, 5),)
        if st[0] == 3:
            gd.__kwdefaults__ = {'k': 5.0}
        return f2(x)
    f2 = f
    return f
@case()
def torchdefs(x):
    return (tdef(), x)
@fresh(T)
def reconstructed_name():
    l = []

    @bolide.disable
    def dis(g):
        l.append((g.__name__, g.__qualname__.split('.')[-1], g.__doc__, g.__defaults__))
        return g()

    def f(x):

        def g(q=3):
            """doc"""
            return ()
        return (x + 1, dis(g), list(l))
    return f
@fresh(T)
def fn_attr():

    def f(x):
        f.count += 1
        if f.pred:
            f.pred = False
            return (torch.relu(x * 2), f.count)
        return (torch.abs(x + 3), f.count)
    f.pred = True
    f.count = 0
    return f
@case()
def fn_attrs(x):

    def f(a=4, *, b=2, **k) -> int:
        """doc"""
    try:
        f.zz + 1
    except AttributeError as e:
        r = str(e)
    f.tag = x
    f.__name__ = 'other'
    return (x * len(f.__defaults__) * f.__code__.co_argcount, r, f.tag, f.__name__, f.__doc__, f.__kwdefaults__,
        f.__annotations__, f.__module__, f.__qualname__, f.__code__.co_varnames,
        inspect.signature(f).parameters['a'].default, list(inspect.signature(f).parameters),
        str(inspect.signature(f)), inspect.isfunction(f), callable(f), hasattr(f, '__call__'), f.__dict__,
        inspect.getfullargspec(f).kwonlyargs, f.__closure__, typing.get_type_hints(f))
@case(T)
def globals_(x):
    global G_NEW
    G_NEW = x.shape[0]
    return (x + G_T, G_NEW, globals()['G_NEW'], 'G_NEW' in globals())
@case()
def closures(x):

    def counter():
        c = 0

        def inc(k=1):
            nonlocal c
            c += k
            return c
        return inc
    a, b = (counter(), counter())
    a()
    a(2)
    b()
    fs = [lambda v, i=i: v + i for i in range(3)]
    gs = [lambda v: v + i for i in range(3)]

    def deco(k):

        def d(f):

            @functools.wraps(f)
            def w(*a, **kw):
                return f(*a, **kw) * k
            return w
        return d

    @deco(2)
    @deco(3)
    def h(v):
        """hdoc"""
        return v + 1

    def rec(n):
        return 1 if n <= 1 else n * rec(n - 1)
    compose = lambda *f: functools.reduce(lambda p, q: lambda v: q(p(v)), f)

    @functools.lru_cache(None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.singledispatch
    def sd(v):
        return 'obj'

    @sd.register
    def _(v: int):
        return 'int'

    @sd.register(list)
    def _(v):
        return 'list'
    return (a(), b(), [f(x) for f in fs], [g(1) for g in gs], h(x), h.__name__, h.__doc__, rec(5),
        compose(torch.sin, torch.cos)(x), fib(10), sd(1), sd([]), sd('a'), (lambda *a, k=1, **kw: (a, k, kw))(1, 2,
        k=3, z=4), (lambda a, /, b, *, c: a + b + c)(1, 2, c=3), fib.cache_info().hits)
''',
    "classes": r"""
@case()
def objeq(a):
    r = [C() == None, C() != None, C() == C(), C() != C(), C == None, C != C, C == C, C() is None, C() is C(),
        C is C]
    return (a + 1, r)
@case()
def class_dict(x):
    a = C()
    return (x + 1, 'a' in type(a).__dict__, 'b' in C.__dict__, vars(C)['a'], C.__name__, C.__module__, C.__mro__,
        C.__bases__, type(a) is C, isinstance(a, C), issubclass(C, object), a.__class__.__name__, hasattr(C, 'a'),
        hasattr(a, 'zz'), getattr(a, 'zz', 3), C.__doc__, dir(C)[-1])
@case()
def namedtuples(a, b):
    mt = collections.namedtuple('mt', 'x y xy')
    t = mt(a, b, a + b)
    u = NT(a, xy=b)
    p = Pt(a, b)
    return (tuple(mt(t.x, t[1], t.xy + b)), u, p, p.add(), p.sm(), p.cm(), p.pr, u._replace(y=5), u._asdict(),
        NT._fields, NT._make([1, 2, 3]), hasattr(p, '_asdict'), isinstance(p, tuple), Pt(a).second, p == p,
        u._fields, NT._field_defaults, p[0], *p, len(p), str(NT(1, 2, 3)), repr(Pt(1, 2)))
@case()
def dataclass_(x):
    a = Out(1)
    b = Out(5, named={'x': x})
    c = Out()
    c.scalar = 6
    c.named['x'] = x
    f = Fr(1, inner=x)
    return (c, torch.cos(x) * a.scale() + b.named['x'] + c.scalar, f, f.inner, dataclasses.replace(a, scalar=9),
        dataclasses.asdict(a), [q.name for q in dataclasses.fields(a)], dataclasses.is_dataclass(a), a == Out(1),
        repr(a), dataclasses.astuple(a), Fr(1) < Fr(2))
@case()
def dunders(x):
    a = S1()
    b = S1()
    b += x
    with a:
        1 / 0
    return (a(x), str(a), repr(a), f'{a:>3}', f'{a}', f'{a!r}', len(a), bool(a), not a, 3 in a, 4 in a, a[1],
        int(a), float(a), [10, 20, 30][a], hash(a), a == b, a != b, -a, a + 1, 1 + a, abs(a), round(a), round(a, 2),
        list(reversed(a)), a < b, a.dyn1, hasattr(a, 'zz'), dir(a), a @ 1, b.v, divmod(a, 3), math.trunc(a),
        math.floor(a), math.ceil(a), bytes(a), complex(a), list(a), operator.index(a), {a: 1}[b], range(a), hex(a),
        '%s %r %d' % (a, a, a), '{:x}'.format(a), x[a] if x.shape[0] > 2 else 0, sorted([a, b])[0] is not None,
        isinstance(a, collections.abc.Hashable), isinstance(a, collections.abc.Callable), print(a, end=''))
@case(lambda n: Pair(torch.randn(n), torch.randn(2, n)), lambda n: Pair(torch.randn(n), torch.randn(2, 1)))
def namedtuple_sub(p, q):
    s = p + q
    g = GenSub(p.a, q.a)
    g.z = 1
    g.z = p.a * 2
    return (s, s.a, type(s), g.add(), g.z, hasattr(g, 'z'), Gen(1, 2).add(), p._replace(a=1).a, NTm(1) == NTm(1, 2),
        p == p, NTm(1) < NTm(2), callable(getattr(NTm, '_make', None)), NTm._make([1, 2]), isinstance(g, Gen),
        Gen.__orig_bases__ is not None)
@fresh(T)
def module_props():
    m = PM()
    return lambda x: (m(x), m.flag, m.extra, dict(m.__dict__).get('c'))
@case(T, lambda n: [Color.RED, Color.GREEN, Color.RED][n - 3], lambda n: [IE.A, IE.B, IE.A][n - 3])
def enums(x, c, i):
    return (x * i, c.low, c is Color.RED, Color('g'), Color['RED'], list(Color), c == Color.RED, Color.default(),
        i + 1, i == 1, IE(2), FL.R | FL.W, FL.R in FL.R | FL.W, bool(FL.R & FL.W), SE.X == 'x', SE.X.value, c.name,
        c.value, isinstance(c, Color), len(Color), {c: 1}[c], str(c), repr(c), f'{i}', hash(c) == hash(c),
        Color.__members__['RED'], c in Color, [1, 2, 3][i], x[i], i.name, type(i), sorted([IE.B, IE.A]), range(i),
        SE.X + 'y', f'{SE.X}', max(IE))
@fresh(T, sizes=(3, 5, 4, 6))
def class_items():
    class Made:
        count = 0
        def __new__(cls, *args):
            cls.count += 1
            return super().__new__(cls)
        def __init__(self, v):
            self.v = v
        def __class_getitem__(cls, i):
            return cls(i * 2)
    class Sub(Made):
        pass

    def f(x):
        first = Made(1)
        return first.v, Made.count, Made[x].v, Sub[3].v, Made.count, Sub.count
    return f
@case(T)
def repeated_by_no_number(x):
    class Declines:
        def __mul__(self, other):
            return NotImplemented
        __rmul__ = __mul__
    said = []
    for a, b in ((Declines(), 'ab'), ([1], Declines()), (Declines(), (1,)), (Declines(), 2), (b'a', Declines())):
        try:
            a * b
        except TypeError as error:
            said.append(str(error))
        try:
            a *= b
        except TypeError as error:
            said.append(str(error))
    return x * 2, said
@fresh(T)
def classes():
    Base.count = 0
    Child.count = 0
    Multi.count = 0

    def f(x):
        o = Child(2)
        m = Multi(3)
        o.d = 5
        s = Slots(x)
        s.b = 3
        w = WithMeta()
        before = (Child.d.n, o.d)
        del o.d

        class Local(Base):
            z = x.shape[0]

            def get(self):
                return (self.z, __class__.__name__)
        T2 = type('T2', (Child,), {'extra': 4, 'f': lambda self: self.extra})
        return (x * o.w, o.hello(), m.hello(), before, o.d, s.a, s.b, hasattr(s, 'c'), w.made, WithMeta.attr,
            WithMeta.dynamic, len(WithMeta), 3 in WithMeta, list(WithMeta), isinstance(5, WithMeta), WithMeta[2],
            WithMeta.pp, Child.tag, Local(1).get(), T2(1).f(), T2.__mro__[1].__name__, o == Child(2),
            {o: 1}[Child(2)], sorted([m, o])[0].v, Multi.__mro__[1].__name__, isinstance(m, Base), issubclass(Multi,
            Mixin), Local.__name__, Local.tag, o.__class__, vars(o), type(o).__dict__.get('tag'),
            [c.__name__ for c in type(m).__mro__], Base.__subclasses__()[0].__name__, super(Multi, m).hello())
    return f
@fresh(T)
def del_setattr():

    class O:
        pass
    o = O()
    o.k = 1
    o.l = [1]

    def f(x):
        o.k += 1
        setattr(o, 'n' + str(o.k), x.shape[0])
        o.l.append(o.k)
        r = getattr(o, 'gone', None)
        o.gone = x.detach() * 2
        if o.k > 2:
            del o.gone
            delattr(o, 'n2') if hasattr(o, 'n2') else None
        o.__dict__['viadict'] = o.k
        vars(o)['v2'] = 3
        return (x * o.k, r, sorted((k for k in o.__dict__)), o.l, o)
    return f
""",
    "control flow and errors": r"""
@case()
def asserts(x):
    assert x.shape[1] % 2 == 0, 'bad'
    assert x.dim() == 2
    return x[:, :2] - x[:, 2:]
@case()
def matches(a):
    r = []
    for p in [(5, 8), (0, 0), (0, 3), [1, 2, 3], {'a': 0.5}, {'b': 2, 'c': 3}, C(), 'x', 3, None, Pt(a, 2)]:
        match p:
            case [0, 0]:
                r.append('zero')
            case [0, y]:
                r.append(y)
            case Pt(first=f, second=2):
                r.append(f + 1)
            case [x, y]:
                r.append(x + y)
            case [x, *rest]:
                r.append(rest)
            case {'a': q}:
                r.append(q)
            case {'b': q, **rest}:
                r.append(rest)
            case C(a=1):
                r.append('C')
            case str() as s:
                r.append(s)
            case int(i) if i > 2:
                r.append(i)
            case _:
                r.append('other')
    return (a + 1, r)
@case()
def itertools_errors(a):
    r = []
    for f in (lambda: list(itertools.product([1], fake=1)), lambda: list(itertools.permutations()),
        lambda: list(itertools.permutations([1], 1, 2)), lambda: list(itertools.combinations([1], -1)),
        lambda: itertools.islice([1], -1), lambda: list(itertools.repeat(1, 'a')), lambda: next(iter([])),
        lambda: list(zip([1], [1, 2], strict=True)), lambda: iter(3), lambda: next(3), lambda: reversed({1}),
        lambda: enumerate(3), lambda: list(map(None, [1])), lambda: sum(['a']), lambda: max([]), lambda: min(),
        lambda: len(3), lambda: abs('a'), lambda: range(1.5), lambda: range(1, 2, 0), lambda: int('x'),
        lambda: float('y'), lambda: chr(-1), lambda: ord('ab'), lambda: [1][5], lambda: {}['k'], lambda: (1,)['a'],
        lambda: 'a' + 1, lambda: 1 + 'a', lambda: [1] + (1,), lambda: {[]: 1}, lambda: None.x, lambda: a.nope,
        lambda: a + 's', lambda: isinstance(1, 2), lambda: issubclass(1, int), lambda: getattr(1, 2),
        lambda: setattr(1, 'a', 2), lambda: [].pop(), lambda: {}.popitem(), lambda: set().pop(),
        lambda: [1].remove(2), lambda: [1].index(2), lambda: 'a'.index('b'), lambda: divmod(1, 0), lambda: 1 / 0,
        lambda: 1 % 0, lambda: 1 // 0, lambda: 2 ** (-1.5j), lambda: 0 ** (-1), lambda: 1 << -1,
        lambda: math.sqrt(-1), lambda: math.log(0), lambda: math.factorial(-1),
        lambda: functools.reduce(operator.add, []), lambda: (lambda q: q)(), lambda: (lambda q: q)(1, 2),
        lambda: (lambda q: q)(z=1), lambda: (lambda *, q: q)(), lambda: (lambda q, /: q)(q=1), lambda: dict([1]),
        lambda: dict([(1, 2, 3)]), lambda: tuple(3), lambda: set(3), lambda: bytes('a'), lambda: sorted([1, 'a']),
        lambda: '%d' % 'a', '{}{}'.format, lambda: '{}{}'.format(1), lambda: '{a}'.format(), lambda: f'{1:q}',
        lambda: round('a'), lambda: hash([]), lambda: a.view(7, 7, 7), lambda: torch.cat([]),
        lambda: torch.ones(2) + torch.ones(3), lambda: torch.ones(2) @ torch.ones(3), lambda: a[100], lambda: a[:,
        :, 1], lambda: torch.stack([a, a[0]]), lambda: a.sum(5), lambda: a.reshape(-1, -1), lambda: a.expand(1, 1),
        lambda: a.squeeze(9), lambda: a.permute(0), lambda: F.linear(a, torch.ones(3, 3)), lambda: torch.zeros(-1),
        lambda: a.to('nodev'), lambda: torch.tensor('a'), lambda: int(a), lambda: bool(a), lambda: a.item(),
        lambda: torch.arange(0, 5, -1), lambda: torch.nope, lambda: a.add(1, 2, 3), lambda: a.add_(torch.ones(9, 9,
        9)), lambda: torch.einsum('ij,jk', a, a)):
        try:
            f()
            r.append('none')
        except Exception as e:
            r.append((type(e).__name__, re.sub(' \\(.*', '', str(e).split('\n')[0])))
    return (a + 1, r)
@fresh(T)
def contexts():
    n = [0]

    @contextlib.contextmanager
    def deco():
        n[0] += 1
        yield
        n[0] += 10

    @deco()
    def g(x):
        return x * 2

    def f(x):
        l = []
        with CM(l) as c, gcm(l, 3) as v:
            y = x + v
            raise_ = False
        with CM(l):
            raise ValueError('q')
        with gcm(l, 1):
            raise KeyError('k')
        try:
            with CM(l):
                raise TypeError('t')
        except TypeError as e:
            l.append(str(e))
        with contextlib.suppress(ZeroDivisionError):
            1 / 0
        with contextlib.nullcontext(5) as z:
            y = y + z
        with contextlib.ExitStack() as st:
            st.enter_context(CM(l))
            w = st.enter_context(gcm(l, 7))
            st.callback(l.append, 'cb')
            st.push(lambda *a: l.append('push'))
        for i in range(3):
            with CM(l):
                if i == 1:
                    continue
                if i == 2:
                    break
                y = y + i

        def early():
            with CM(l):
                return x * 3

        class Cl:

            def close(self):
                l.append('closed')
        with contextlib.closing(Cl()):
            pass
        with contextlib.redirect_stdout(__import__('io').StringIO()) as buf:
            print('hi')
        return (y, l, early(), g(x), n[0], w, buf.getvalue())
    return f
@case()
def excs(x):
    r = []

    class E1(Exception):

        def __init__(self, m, code=3):
            super().__init__(m)
            self.code = code

        def __str__(self):
            return 'E1:' + str(self.args)
    try:
        raise E1('a', code=5)
    except (KeyError, E1) as e:
        r.append((str(e), e.code, e.args, repr(e), type(e).__name__))
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise ValueError('v') from e
    except ValueError as e:
        r.append((repr(e.__cause__), repr(e.__context__), e.__suppress_context__))
    try:
        try:
            raise KeyError('k')
        finally:
            r.append('fin')
    except KeyError as e:
        r.append((str(e), e.args))
    else:
        r.append('else')
    try:
        pass
    except Exception:
        r.append('no')
    else:
        r.append('else')
    finally:
        r.append('finally')
    try:
        raise E1
    except TypeError as e:
        r.append('TE')

    def rr():
        try:
            raise ValueError(1)
        except ValueError:
            raise
    try:
        rr()
    except ValueError as e:
        r.append(e.args)

    def ff():
        try:
            return 1
        finally:
            r.append('ff')

    def gg():
        for i in range(3):
            try:
                if i == 1:
                    continue
                if i == 2:
                    break
            finally:
                r.append(i)
        return 2

    def hh():
        try:
            raise KeyError
        except KeyError:
            return 3
        finally:
            return 4
    r += [ff(), gg(), hh()]
    try:
        assert x.shape[0] == 99, f'size {x.shape[0]}'
    except AssertionError as e:
        r.append(str(e))
    try:
        assert False
    except AssertionError as e:
        r.append(e.args)
    e = ValueError('n')
    e.add_note('note')
    r.append(e.__notes__)
    try:
        raise e
    except ValueError as q:
        r.append(q is e)
    try:
        raise ExceptionGroup('g', [ValueError(1), TypeError(2)])
    except* ValueError as g:
        r.append(len(g.exceptions))
    except* TypeError as g:
        r.append(str(g))
    try:
        raise StopIteration(5)
    except StopIteration as s:
        r.append(s.value)
    try:
        x.nope
    except AttributeError as a:
        r.append((a.name, str(a)))
    try:
        {}['q']
    except LookupError as a:
        r.append(repr(a))
    try:
        raise ValueError('x') from None
    except ValueError as q:
        r.append((q.__cause__, q.__suppress_context__))
    import sys
    try:
        1 / 0
    except Exception:
        r.append(sys.exc_info()[0])
    r.append(sys.exc_info())
    try:
        raise (ValueError if x.shape[0] > 3 else KeyError)('c')
    except (ValueError, KeyError) as q:
        r.append(type(q))
    try:
        undefined_name
    except NameError as q:
        r.append(str(q))
    try:
        del zz
    except UnboundLocalError as q:
        r.append(str(q))
    zz = 1
    return (x.sin(), r)
@case()
def raises(x):
    y = x + 1
    raise ValueError(f'bad {x.shape[0]}', y.shape)
@case()
def exc_out(x):
    return (x + 1, ValueError('q', x * 2), [KeyError(1)], StopIteration)
@case(grad=False)
def exc_after_mutation(x):
    x.add_(1)
    l = [1]
    if x.shape[0]:
        raise RuntimeError('after')
@case()
def walrus_and_co(x):
    r = []
    if (n := x.shape[0]) > 3:
        r.append(n)
    while (n := (n - 1)) > 0:
        r.append(n)
    else:
        r.append('else')
    for i in range(2):
        pass
    else:
        r.append(i)
    a = b = [1]
    a += [2]
    c, (d, *e), f = (1, (2, 3, 4), 5)
    g, = [6]
    [h, k] = 'ab'
    x0, *_ = x
    l = [1, 2, 3]
    l[0], l[1] = (l[1], l[0])
    q = 1 if n else 2
    t = 1 < n + 2 <= 5
    u = not n
    v = n or 'or'
    w = n and 'and'
    s = {*[1], *[2]}
    dd = {**{'a': 1}, 'b': 2}
    z = [*range(2), *'a']
    r.append((a is b, b, c, d, e, f, g, h, k, l, q, t, u, v, w, s, dd, z, 1000, 31, 1000.0, -7 // 2, -7 % 3,
        2 ** 10, ~5, 5 & 3 | 4 ^ 1, 1 << 3, 'ab', b'x' + b'y', '\\n', f'n={n!r}', f'{x.shape[0]:>{5}}',
        None is None, ... is Ellipsis, __name__.split('.')[0]))
    del l[0], dd['a']
    x = x0 + 1
    x += 1
    x *= 2
    x -= 0.5
    x /= 3
    x **= 2
    x = x.detach()
    x //= 1
    return (x, r, l, dd)
""",
}
