"""Small programs of every day about numbers, texts, containers and iteration, as data: `case` gives a program that is
called as it is, `fresh` one that is made anew for each run and keeps state (`everyday_tools.Table.program`)."""

from __future__ import annotations

TOPICS = {
    "numbers and texts": r"""
@case(lambda n: torch.randn(n), lambda n: [1.0, 1.5, 2.0][n % 3])
def is_integer(t, m):
    return 2 * t if m.is_integer() else t
@case(lambda n: torch.randn(n), lambda n: n, lambda n: n / 2)
def number_methods(t, i, f):
    return (t * i.bit_length(), i.as_integer_ratio(), i.conjugate(), f.as_integer_ratio(), f.hex(), f.conjugate(),
        i.numerator, i.denominator, i.real, f.imag, i.to_bytes(2, 'big'), f.__round__(), round(f, 1), divmod(i, 2),
        divmod(f, 2), i.bit_count())
@case()
def floats(x):
    return (torch.add(x, float('1.2') + float(1.5)), float('inf'), float('-nan'), int('12'), int('ff', 16),
        int(3.9), complex('1+2j'), bool('a'), str(1.5), float.fromhex('0x1.8p1'), int.from_bytes(b'\x01\x00',
        'big'))
@case()
def strings(a):
    s = 'foobar'
    return (a + 1, s.startswith('foo'), s.endswith(('x', 'bar')), s.upper(), s.split('o'), s.replace('o', '0'),
        s.find('b'), '-'.join(['a', 'b']), s.partition('b'), s.encode(), s.center(10, '*'), s.zfill(9), s[::-1],
        s.count('o'), s.isalpha(), '{:>5}|{x!r}'.format(3, x='q'), '%s %d %.2f' % ('a', 3, 1.5), s.title(),
        s.swapcase(), s.rjust(8), s.removeprefix('foo'), 'a,b'.rsplit(',', 1), s.translate({102: 'F'}),
        str.maketrans('a', 'b'), '\t'.expandtabs(), 'A'.casefold(), s.splitlines(), s.strip('fr'), s.format_map({}),
        ord('a'), chr(98), ascii('é'), repr('x'), f'{s!r:>10}', f'{3.14159:.2f}', f'{1000:,}', f'{5:08b}',
        s.__contains__('oo'), 'a' < 'b', s * 2, 'x' in s, min(s), max(s), sorted(s), list(enumerate('ab', 1)))
@case()
def minmax(a, b):
    c = a + b
    a = a.sum()
    b = b.sum()
    a = min(max(a, 0), 1)
    b = max(0, min(1, b))
    return (max(a, b) - min(a, b) + c, max([1, 5, 2]), min('b', 'a'), max({1: 2, 3: 0}), max([1, -7], key=abs),
        min([], default=4), max(1, 2.5))
@case()
def sums(a, b, c, d):
    return (sum([a, b, c, d]), sum([b, c, d], a), sum([b], start=a), sum([0, 1.0, 2]), sum([0, 1], -10),
        sum(map(lambda x: x + 1, [a, b])), sum((a, b)), sum([[1], [2]], []), sum({1: 2, 3: 4}),
        sum({'a': a}.values()), sum((x for x in (a, b))), sum([]))
@case(T, lambda n: n * 10)
def maths(x, a):
    return (x + math.radians(a), math.sqrt(a), math.floor(a / 7), math.ceil(a / 7), math.gcd(a, 6), math.isclose(a,
        a + 1e-12), math.log2(a), math.factorial(5), math.comb(5, 2), math.fsum([0.1] * 3), math.hypot(3, a),
        math.copysign(1, -a), math.frexp(a), math.modf(a / 3), math.trunc(a / 3), math.inf, math.isnan(math.nan),
        math.dist((0, 0), (3, 4)), math.perm(5, 2), math.lcm(4, 6), math.isqrt(a), math.exp(a / 100), math.pow(a,
        2), math.atan2(a, 3), math.prod([a, 2]), math.remainder(a, 7), math.degrees(a), math.fmod(a, 7),
        math.ldexp(1.0, 3), math.erf(0.5), math.tau)
@case(T, lambda n: n)
def powint(a, b):
    return (torch.pow(a, b), a ** b, pow(a, b), pow(b, 2), pow(b, 2, 7), b ** (-1), 2 ** b, torch.pow(2, a),
        a.pow(2.0), a ** (-1), b ** 0.5)
@case()
def cmp_const(x):
    return [op(-10, x) for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.ne, operator.eq,
        operator.is_, operator.is_not)]
@case(lambda n: [torch.ones(4), 1, -1, -1.1, True, torch.ones(4)][n], lambda n: [1, torch.ones(4), -1, 1.1, False,
    1.1][n], sizes=range(6), grad=False)
def positives(x, y):
    return operator.pos(x) * +y
@case(lambda n: [10, -100, 10, False, True][n], lambda n: torch.ones(1), sizes=range(5), grad=False)
def op_index(x, t):
    v = operator.index(x)
    return (torch.mul(t, v), v)
@case(lambda n: [1, -1.1, -1.1, True, torch.ones(1), torch.zeros(1), torch.ones(1)][n], lambda n: [100, True, 1.1,
    False, 1, 1, torch.ones(1)][n], sizes=range(7), grad=False)
def truths(x, y):
    return operator.truth(x) and bool(y)
@case(grad=False)
def folds(x):
    return ([[list(map(op, range(-3, 3)))] for op in (operator.abs, abs, operator.neg, operator.pos, operator.truth,
        operator.not_, operator.invert)], [operator.length_hint(tuple(range(i))) for i in range(3)],
        operator.concat([1], [2]), operator.contains([1], 1), operator.countOf([1, 1], 1), operator.getitem([5], 0),
        operator.attrgetter('a')(C()), operator.methodcaller('count', 'a')('aab'), operator.itemgetter(1)([1, 2]),
        operator.matmul(x, x.T), operator.iadd([1], [2]), operator.floordiv(7, 2), operator.xor(5, 3))
@case()
def ranges(x):
    acc = 1
    for k in range(5)[1::2]:
        acc *= k
    r = range(10, 20, 2)
    return (x * acc * r[2], r[1:3], len(r), 12 in r, 13 in r, r.index(14), r.count(3), r.start, r.stop, r.step,
        r == range(10, 20, 2), list(reversed(r)), r[-1], range(0) == range(2, 2), bool(range(0)),
        [*range(x.size(0))], range(x.shape[0])[-1], x.shape[0] in range(4), hash(r) == hash(range(10, 20, 2)),
        max(r), sum(r), repr(r), range(x.shape[0]))
@case(lambda n: torch.tensor([float(n)]))
def casts(x):
    x = x + 1
    return (float(x), int(x), bool(x), complex(x), x.item(), x.tolist(), round(float(x), 1), math.floor(x),
        math.ceil(x), x.__float__(), int(x.long()), operator.index(x.long()))
@case(lambda n: torch.tensor([float(n)] * 2))
def casts_bad(x):
    try:
        return float(x + 1)
    except Exception as e:
        return (type(e), str(e))
@case(lambda n: torch.tensor([float(n)] * 2))
def casts_bad2(x):
    return int(x + 1)
@case(T, lambda n: ['None', 'dynamo', 'if'][n - 3])
def keywords(x, w):
    return (torch.sin(x) if keyword.iskeyword(w) else torch.cos(x), w in keyword.kwlist)
@case(T, lambda n: n % 3)
def list_setitem(x, a):
    l = [1, 2, 3]
    l[a] = 5
    m = [1, 2, 3]
    m[a:a + 1] = [5, 6]
    q = [1, 2, 3]
    del q[a]
    return (torch.ones(l), m, q, l[a], l[-a], l[a:], l[:a], l[::a + 1], l.index(5), [0] * a, (1, 2) * a, 'ab' * a,
        list(range(a)), l.pop(a), x[a], x[:, a], x[-a:], x[a:a + 2], x.narrow(0, 0, a), l.insert(a, 7), l,
        x.roll(a), x.unbind()[a], x.select(1, a), torch.zeros(a, 3), x.repeat(a + 1, 1), x.chunk(a + 1)[0],
        x.split(a + 1)[0], F.pad(x, (a, 0)), x.diagonal(a), torch.eye(a), x.tril(a), torch.arange(a),
        torch.arange(a, 5), torch.linspace(0, 1, a + 1), x.view(-1)[a], x.transpose(0, a % 2), x.sum(a % 2),
        x.unsqueeze(a), x.flatten(0, a % 2), torch.full((a,), a), x ** a, x * a, a * x, x - a, a - x, x / (a + 1),
        x.detach() // (a + 1), x.detach() % (a + 1), torch.where(x > a, x, a), x.clamp(max=a), x > a,
        x.masked_fill(x > 0, a), x.topk(a).values, x.kthvalue(a + 1).values, x.index_select(0, torch.tensor([a])),
        x.cumsum(a % 2), torch.cat([x] * (a + 1)), torch.stack([x] * (a + 1)), x.expand(a + 1, -1, -1))
""",
    "containers": r"""
@fresh(T)
def list_attr_slice():

    class M:

        def __init__(self):
            self.e = []
            self.c = 0
    m = M()

    def run(x):
        m.e = m.e[-3:]
        m.e.append(x)
        m.c += 1
        return (torch.sin(x), list(m.e), m.c)
    return run
@case()
def deques(a, b):
    d = collections.deque([a, b], maxlen=6)
    d.append(a + 1)
    d.extend([a, b])
    d.insert(0, 'foo')
    t = d.pop()
    e = collections.deque([t])
    d.extendleft(e)
    e.clear()
    d.extend(e)
    d[2] = 'z'
    d = d.copy()
    d.append(d.popleft())
    d.rotate(2)
    d.reverse()
    return (list(d), d.maxlen, d.count('z'), d.index('z'), len(d),
        collections.deque('abc') == collections.deque('abc'))
@case()
def deque_out(a, b):
    d = collections.deque([a, b + 1], maxlen=3)
    d.appendleft(a * b)
    d.append(2)
    return d
@case()
def dict_views(x):
    d = {3: x}
    k = d.keys()
    v = d.values()
    it = d.items()
    d[4] = x + 1
    d2 = {3: 2, 4: 'aa'}
    return (3 in k, 5 in k, d2.keys() == k, len(v), len(it), list(k), d2.keys() & {3}, d2.keys() | {9},
        d2.keys() - {3}, k.isdisjoint([7]), 2 in d2.values(), (3, 2) in d2.items(), sorted(d2.keys() ^ {3, 5}))
@case()
def setdefault(x):
    d = {'a': 1, 'b': 2}
    r = [d.setdefault('a', 10), d.setdefault('c', 10), d.setdefault('z')]
    dd = collections.defaultdict.fromkeys('ab', 'b')
    dd['a'] = 1
    r += [dd.setdefault('c', 10), dd.setdefault('q'), type(dd), dd.default_factory]
    d.update(b=4)
    return (x * d['b'], r, d, dd)
@case()
def dict_kinds(x):
    return (dict(a=x + 1, o=x + 2), collections.OrderedDict(s=torch.ones(3)), Own(s=x * 2), dict([('a', x)], b=3),
        dict({'q': x}, z=1), collections.Counter('abca'), collections.ChainMap({'a': x}, {'b': 1})['b'])
@case()
def list_compare(x):
    r = []
    for a, b in [[(1, 2, 3), (1, 2, 3)], [(1, 4, 3), (1, 2, 3)], [(1, 2), (1, 2, 3)], [[1, 2, 3], [1, 2]], [(1, -1,
        3), (1, 2, 3)]]:
        r.append((a != b, a == b, a < b, a > b, a <= b, a >= b))
    return (x + 1, r)
@case()
def shared_out(x, y):
    z = [x + y, y, False]
    return {'x': x, 'z': z, 'a': x, 'b': z, 'c': x}
@case()
def pops(a, b):
    l = [a, b]
    l.append(a + 1)
    l.extend([b + 2, a + b])
    r = [l.pop(-1), l.pop(0), l.pop()]
    v1, v2 = l
    l.insert(1, a)
    l.remove(v1) if False else None
    l.reverse()
    l.sort(key=lambda t: t.dim())
    return (v1 - v2, r, l, l.copy(), l.index(l[0]))
@case()
def index_by_tensor(a, b):
    return ([a, b, a + 1, b + 1][torch.as_tensor(2)], (a, b)[torch.tensor(1)], 'abc'[torch.tensor(1)],
        range(10)[torch.tensor(3)])
@case()
def dict_ops(a, b):
    t = {'a': a + 1, 'b': b + 2}
    v = t.pop('b') + t.get('a') + t.get('missing', 3) + t.pop('missing', 4)
    t.update({'d': 3})
    t['c'] = v + t['d']
    r = [len(t), 'c' in t, t.get('zzz'), list(t), list(reversed(t)), t.popitem()]
    del t['d']
    u = {**t, 'k': 1}
    w = t | {'m': 2}
    w |= {'n': 3}
    return (t, r, u, w, t == u, bool({}), dict(zip('ab', (1, 2))))
@case(T, lambda n: {})
def size_keys(x, cachedd):
    if x.shape not in cachedd:
        cachedd[x.shape] = x
    return x + cachedd[x.shape]
@fresh(T)
def mutable_map():
    m = MM()
    m['a'] = 2.0

    def gn(x, a=1, b=0):
        return x * a + b

    def f(x):
        m['b'] = m.get('b', 0) + 1
        return (x * dict(m)['a'], gn(x, **m), len(m), list(m.items()), m.pop('zz', 5), m.setdefault('q', 7),
            'a' in m, m.keys() & {'a'}, m == {'a': 2.0})
    return f
@fresh(T)
def dd_ctor():

    def f(x):
        dd = collections.defaultdict(lambda: dict())
        dd['a'] = x + 1
        dd['c'] = x * 2
        dd.update({'b': x * 3})
        dd.update([['d', x - 2], ('e', x + 2)])
        dd.update(zip('ab', [x + 3, x + 4]))
        dd['new']['k'] = x
        return (dd['b'], dict(dd), dd.copy()['c'], len(dd | {'z': 1}))
    return f
@case()
def call_dicts(x):
    l = [('a', x), ('b', x + 1), ('c', x + 2)]
    d1 = dict(iter(l))
    d1['a'] = x + 10
    d2 = collections.OrderedDict(tuple(l))
    d2['c'] = x + 20
    d2.move_to_end('a')
    return (d1['a'] + d2['c'], d2, d2.popitem(last=False), isinstance(d2, dict), list(d2))
@case()
def fromkeys(x, y):
    l = ['a', 'b']
    d = dict.fromkeys(l)
    d1 = dict.fromkeys(d, x + 1)
    d2 = collections.defaultdict.fromkeys(iter(d1), x - 2)
    d3 = collections.OrderedDict.fromkeys(tuple(l), value=y)
    return (d1['a'] * d2['b'] + d3['a'], d, d1, d2, d3)
@case()
def sets(a, b):
    s1 = {'apple', 'banana', 'cherry'}
    s2 = {'google', 'apple'}
    r = [s1 & s2, s1 | s2, s1 - s2, s1 ^ s2, s1.intersection(s2), s1.union(s2, ['z']), s1.difference(s2),
        s1.symmetric_difference(s2), s1.isdisjoint(s2), s1.issubset(s2), s1 >= s2, {'apple'} < s1, 'apple' in s1,
        len({*s1, *s2}), set([1, 1, 2]), frozenset([1, 2]) | {3}]
    s1.add('q')
    s1.discard('zz')
    s1.update(s2, ['w'])
    s1.remove('w')
    s1.intersection_update({'apple', 'q', 'google'})
    s1.difference_update({'google'})
    s1.symmetric_difference_update({'m'})
    s1 |= {'k'}
    s1 -= {'k'}
    return (a + b, r, s1, s1.copy(), {x for x in (1, 2)})
@case()
def keysview(x):
    a = Keys([1, 2, 3, 3])
    return (len(set(a)) * x, 2 in a, sorted(a & {1, 2}), list(a))
@fresh(T)
def set_changes():
    s = {1, 2}

    def f(x):
        s.add(len(s) + 1)
        return (torch.cos(x) * len(s), set(s), s)
    return f
@case()
def tuples(a, b):
    o = (a, b)
    o += (a + b, a - b)
    p, *q = o
    *q2, r = o
    s, *t, u = o
    return (o, () + o[:1], (None,) + o, p, q, q2, r, t, o * 2, o[::-1], o.index(a), len(o), o == o, (1, 2) < (1, 3),
        tuple(reversed(o)), (1, 2).count(1))
@case()
def lists(a, b):
    t = [1, 10, 3, 0]
    y = [('john', 'A', 8), ('jane', 'B', 5), ('dave', 'B', 10)]
    l = [a + 1, a + 2]
    l.clear()
    l.append(a + b)
    m = [1, 2, 3, 4]
    m[1:] = [6] * 3
    m[::2] = [0, 0]
    del m[0]
    m += [9]
    m *= 2
    return (a, sorted(t), sorted(t, reverse=True), sorted(y, key=lambda s: s[2]), sorted(y,
        key=operator.itemgetter(1, 0)), l, not [a], m, [1] + [2], next(iter(reversed([a, b]))), t.index(3),
        t.count(1), sorted({1: 2, 0: 3}), bool([]), [1, 2] == [1, 2], list('ab'), [*range(3)],
        [[i * j for j in range(2)] for i in range(2)])
@case()
def listops(x):
    l = [1, x]
    y = x / 4.0
    l = l + [x / 2.0, 4]
    l.append(y)
    q = [1, 2, 3, x]
    return (sum(l), sum(4 * [x]), 3 in q, sum([1, 2]), [x] * 2, 6 not in [1, 2])
@case(lambda n: torch.randn(1))
def in_set(x):
    y = x + 0
    return (1 in {y}, y in [y], len({y, y, x}), len(frozenset({x})), {y: 1}[y], y in {y: 2}, y in (x,
        ) if x.numel() == 1 else 0)
@case()
def frozen_bad(x):
    r = []
    for m, a in (('add', (1,)), ('pop', ()), ('update', ({1},)), ('remove', (1,)), ('discard', (1,)), ('clear',
        ())):
        try:
            getattr(frozenset((1, 2)), m)(*a)
        except AttributeError as e:
            r.append(str(e))
    return (x + 1, r)
@case(T, lambda n: MyT([1, 2, 3]), lambda n: MyL([1, 2]), lambda n: MyD(a=1), lambda n: MyS({1}), lambda n: MyDQ([1,
    2]), lambda n: MyStr('ab'), lambda n: MyInt(n), lambda n: MyOD(z=1, y=2))
def subclasses_in(x, t, l, d, s, q, st, i, od):
    l.append(x)
    d['b'] = 2
    s.add2(5)
    q.append(x * 2)
    od['k'] = x
    od.move_to_end('z')
    l[0] = 9
    return (x * t.len2(), 3 in t, l.len2(), 3 in l, d['zz'], d['a'], q.top(), st.shout(), st + 'c', i + 1,
        type(i + 1), od.first(), l[1:], type(l[1:]), t[1:], type(t[1:]), sum(l[:1]), {**d}, list(od), l + [1],
        type(l + [1]), t + (1,), isinstance(l, list), d.get('q'), 'a' in d, len(s), {i: 1}[int(i)], {st: 1}['ab'],
        i == int(i), hash(st) == hash('ab'), [10] * 9 if i > 100 else 0, range(20)[i], '%d' % i, f'{st}{i}', str(i),
        i * 2, -i, x * i, sorted(s), l == [9, 2, x], l.copy(), type(l.copy()), d.copy(), type(d.copy()), s | {7},
        type(s | {7}), t == (1, 2, 3), MyL(l) is l, list(l), dict(d), tuple(t), set(s))
@case()
def subclasses_made(x):
    t = MyT([1, x])
    t.attr = 3
    tn = MyTN()
    l = MyL([x])
    l.at = x
    d = MyD(a=1)
    d['q'] = x
    od = MyOD([('a', x)])
    dd = MyDD(list)
    dd['k'].append(x)
    dq = MyDQ([x], maxlen=2)
    s = MyS([1])
    fs = MyFS([1])
    st = MyStr('q')
    st.tag = 1
    i = MyInt(4)
    f = MyF(2.5)
    t2 = tuple.__new__(MyT, [x])
    l2 = list.__new__(MyL)
    l2.append(x)
    return (t, tn, l, d, od, dd, dq, s, fs, st, i, f, t2, l2, d['zzz'], i + 1, x * f, x * i)
@case(T, lambda n: Cfg(lr=0.1, layers=n, name='m', nested=Cfg(p=0.5)))
def configs(x, c):
    return (x * c.lr * c.layers, c.get('zz', 5), 'lr' in c, sorted(c), {**c}['name'], (lambda **k: sorted(k))(**c),
        c.nested.p, hasattr(c, 'q'), getattr(c, 'lr'), dict(c)['layers'], vars(c)['name'])
@case()
def copies(x):
    l = [x, [x * 2]]
    m = nn.Linear(4, 4)
    return (copy.copy(l), copy.deepcopy([1, [2]]), copy.copy({'a': x}), l.copy(), l[:], copy.copy(Slots(3)).a,
        copy.copy(Child(2)).v)
def with_factory(factory):
    def make():
        table = collections.defaultdict(factory)
        weight = torch.nn.Parameter(torch.ones(2, 2))
        def f(x):
            table["a"] = x + 1
            table[weight] = 123
            table["c"] = x * 2
            return (table["b"], table, table.get("no such"))
        return f
    make.__name__ = "default_" + factory.__name__.strip("<>")
    return make
for factory in (dict, list, tuple, set, int, lambda: dict()):
    fresh(T)(with_factory(factory))
""",
    "iteration": r"""
@case()
def product(a, b):
    v = a
    for x, i in itertools.product([a, b], [1, 2]):
        v = v + x * i
    for x, y in itertools.product([a, b], repeat=2):
        v = v + x * y
    return v
@case()
def chains(a, b):
    v = a
    for x in itertools.chain([a, b], [1, 2]):
        v = v + x
    for x in itertools.chain.from_iterable([[a, b], [1, 2]]):
        v = v * x
    return v
@case()
def combos(a):
    return ([torch.ones(s) * a.size(0) for s in itertools.combinations((1, 2, 3), 2)],
        list(itertools.permutations(range(3), 2)), list(itertools.combinations_with_replacement('ab', 2)))
@case()
def tensor_of_range(a):
    return (torch.tensor(range(a.size(0))), torch.tensor([i * 1.0 for i in range(len(a))]),
        torch.as_tensor(list(range(a.size(0)))))
@case()
def range_div(x, y):
    r = x + y
    for i in range(x.size(0) + 2):
        r = r / (y.abs() + 1)
    return r
@case()
def unpack_gens(a, b):
    return torch.cat([*(x + 1 for x in (a, b)), *(x - 1 for x in (a, b))], dim=-1)
@case()
def ziplongest(x):
    return (torch.sin(x + 1), list(itertools.zip_longest([1, 2, 3], ['a', 'b'], [True, False, True, False],
        fillvalue=None)), list(zip([1, 2], [3, 4], strict=True)))
@case()
def reduces(a, b, c):
    return (functools.reduce(operator.add, [a, b, c]), functools.reduce(operator.mul, [b, c], a),
        functools.reduce(lambda a, b: (a, b), [a]), functools.reduce(lambda a, b: (a, b), [b], a),
        functools.reduce(lambda a, b: (a, b), [a], None), list(itertools.accumulate([a, b, c])),
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=2)))
@case()
def islices(a, b):
    t1 = [a + 1, a + 2]
    t2 = [a + 3, a + 4]
    a, b = list(itertools.islice(itertools.chain(t1, t2), 1, 3))
    c = next(itertools.islice(t1, 1, None))
    return a - b / c
@case(lambda n: [torch.randn(n), torch.randn(n).requires_grad_()], grad=False)
def filters(inputs):
    o = inputs[0]
    for i in filter(lambda x: x.requires_grad, inputs):
        o = o * i
    return (o.detach(), list(filter(None, [0, 1, '', 2])), list(itertools.filterfalse(lambda v: v > 1, [1, 2, 3])))
@case(lambda n: [torch.ones(n), torch.arange(n).float()])
def filter_data(inputs):
    o = inputs[0]
    for i in filter(lambda x: x[0] == 1, inputs):
        o = o * i
    return o
@case()
def rands(x):
    i = [10]
    i[random.randint(0, 0)] = random.randint(1, 8)
    return (x + random.random(), [random.randint(1, 5) + s for s in i], random.choice([1, 2, 3]), random.uniform(0,
        1), random.sample(range(10), 2), np.random.rand(), np.random.randn(2))
@case(T, lambda n: [1.0, 2.0, 3.0][:n % 3 + 1], lambda n: [2.0, 5.0, 8.0], sizes=(2, 3, 4))
def zipstrict(x, ys, zs):
    x = x.clone()
    for y, z in zip(ys, zs, strict=True):
        x = x + y * z
    return x
@case()
def itertools_all(a, b):
    r = [list(itertools.product([1, 2], zip([1, 2], [3, 4]), map(lambda x: x, [1, 2]), filter(None, [1, 2]))),
        list(itertools.permutations(zip([1, 2], [3, 4]))), list(itertools.pairwise((1, 2, 3))),
        list(itertools.compress('ABCD', [1, 0, 1, 0])), list(itertools.compress([a, b], [1, 0])),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.dropwhile(lambda v: v < 3, [1, 2,
        3, 1])), list(itertools.starmap(pow, [(2, 3), (3, 2)])), [(k, list(g)) for k,
        g in itertools.groupby('aabbc')], [(k, list(g)) for k, g in itertools.groupby([1, 3, 2, 4],
        key=lambda v: v % 2)], list(itertools.islice(itertools.cycle([1, 2]), 5)), list(itertools.repeat(3, 2)),
        list(itertools.islice(itertools.count(2, 3), 3)), list(itertools.islice(itertools.count(0.5), 2)),
        list(itertools.tee([1, 2])[1]), list(itertools.islice(range(10), 2, 8, 3)), list(itertools.zip_longest([a],
        [b, 1])), list(itertools.accumulate([1, 2, 3], max)), list(itertools.chain()),
        list(itertools.filterfalse(lambda v: v > 0, [-1, 1]))]
    return (a + b, r)
@case()
def maps(a, b):

    def f(x, y):
        return x + y
    y = [1]

    def inner(z):
        return z + y[-1]
    y.extend(map(inner, range(3)))
    m = map(lambda x: x + 1, [a, b])
    l1 = list(m)
    l2 = list(m)
    d = collections.deque([1])
    d.extendleft(map(lambda z: z + d[0], range(3)))
    it = map(lambda n: n + 1, range(6))
    acc = []
    for i in it:
        acc.append((i, next(it)))
    p, q = map(lambda x: x * 2, [a, b])
    return (f(*map(lambda x: x + 1, [a, b])), l1, l2, y, list(enumerate(map(lambda x: x - 1, [a, b]), 1)),
        list(map(f, [a, b], itertools.count(3))), d, acc, p, q, list(zip(range(3), filter(lambda y: y < 10,
        itertools.count()))), [*map(str, (1, 2))], dict(map(lambda k: (k, 1), 'ab')), tuple(map(torch.sin, [a, b])),
        ''.join(map(str, [1, 2])), max(map(abs, [-3, 2])), list(map(max, [1, 5], [3, 2])), any(map(bool, [0, 1])),
        sum(map(len, ['a', 'bb'])))
@case()
def iters_out(a):
    return (map(lambda v: v + 1, [a, 1]), filter(lambda v: v[0] < 3, zip([1, 2, 3], 'abc')), zip([a], [1]),
        enumerate([a], 3), reversed([1, a]), itertools.count(2), iter([a, 2]) if False else 0, itertools.repeat(a,
        2))
@fresh(T)
def iters_out_used():

    def f(a):
        i1 = itertools.repeat(1)
        i2 = itertools.count(2)
        for _ in range(3):
            a = a + next(i1) + next(i2)
        return (next(i2), a)
    return f
@case()
def nonlocal_map_break(a):
    a = a + 1

    def g(x):
        nonlocal a
        a = a + 1
        return x
    m = map(g, [1, 2, 3])
    a = a + next(m)
    bolide.graph_break()
    a = a + next(m)
    return (a, list(m), a)
@case()
def nonlocal_filter_break(a):
    n = 0

    def g(x):
        nonlocal n
        n += 1
        return x > 1
    m = filter(g, [1, 2, 3, 4])
    s = next(m)
    bolide.graph_break()
    s += next(m)
    return (a * s, n, list(m), n)
@case()
def custom_iters(x):
    for i, it in enumerate(It()):
        x = x + i + it
    return (x, list(Gi()), list(reversed(Gi())), 10 in Gi(), sum(It()), max(It()), dict(enumerate(It())), [*It()],
        list(zip(It(), Gi())), tuple(map(str, It())), iter(It()).__next__(), list(iter(iter([1, 2, 0, 3]).__next__,
        0)), next(iter(()), 'd'), sorted(It(), reverse=True), set(It()), ''.join((str(i) for i in It())), all(It()),
        list(itertools.chain(It(), Gi())), collections.deque(It(), maxlen=2))
@case()
def gens(x):

    def g(n):
        r = (yield n)
        while r:
            r = (yield (r * 2))
        return 'done'

    def h():
        v = (yield from g(1))
        yield v

    def k():
        try:
            yield 1
            yield 2
        except ValueError:
            yield 'caught'
        finally:
            log.append('f')
    log = []
    i = h()
    r = [next(i), i.send(3), i.send(4), i.send(None)]
    j = k()
    r += [next(j), j.throw(ValueError), list(j)]
    q = k()
    next(q)
    q.close()

    def fib(n):
        a, b = (0, 1)
        for _ in range(n):
            yield a
            a, b = (b, a + b)

    def tr(t):
        if isinstance(t, list):
            for e in t:
                yield from tr(e)
        else:
            yield t

    def acc():
        t = 0
        while True:
            v = (yield t)
            if v is None:
                return t
            t += v
    a = acc()
    next(a)
    a.send(x)
    a.send(x * 2)
    try:
        a.send(None)
    except StopIteration as s:
        fin = s.value
    return (r, log, list(fib(6)), list(tr([1, [2, [3]], []])), fin, sum((v * v for v in range(4))),
        [v for v in (w + 1 for w in [x])], next((v for v in [5])), {k: v for k, v in zip('ab', [x, 1])},
        {v % 2 for v in range(4)}, max((v for v in (3, 1)), key=lambda v: -v), any((v > 2 for v in [1, 3])),
        dict(((k, x) for k in 'ab')), i.gi_frame is None, inspect.isgenerator(i), tuple(fib(3)), [*fib(3)],
        ''.join((c for c in 'abc')), sorted((v for v in [3, 1])), list(zip(fib(3), fib(4))))
@fresh(T)
def gen_out():

    def f(x):

        def g():
            for i in range(3):
                yield (x + i)
        return (g(), (x * i for i in range(2)), [x])
    return f
@fresh(T, lambda n: (i * 2 for i in range(n)))
def gen_in():

    def f(x, g):
        return (x * next(g), sum(g), list(g))
    return f
""",
}
