"""Statements about the standard library and about what classes define. `TOPICS` says what to write: a set-up, and
uses of it; ``@1`` to ``@3`` stand for integers. A line that begins with a semicolon goes on with the one before.
"""

from __future__ import annotations

import random
import re
import sys
import textwrap
from typing import NamedTuple


class Topic(NamedTuple):
    """What to write about one thing: what it needs, and ways of using it."""

    setup: str
    uses: tuple[str, ...]


def _topic(setup: str, uses: str) -> Topic:
    """Uses are separated by empty lines or, where each is one line, by lines."""
    uses = re.sub(r"\n\s*; ", "; ", textwrap.dedent(uses).strip("\n"))
    return Topic(textwrap.dedent(setup).strip("\n"), tuple(re.split(r"\n(?=\S)(?!else|except|finally|elif)", uses)))


TOPICS = (
    _topic(
        "p = @P",
        """
        p.x += @1; log.append((p.x, p.total, p.norm))
        log.append(repr(p)); log.append(p == Point(@1, @2))
        log.append(dataclasses.asdict(p)); log.append(dataclasses.astuple(p))
        q = dataclasses.replace(p, y=@1); log.append((q, q is p, q.total) == (p, False, 0)); log.append(q.total)
        p.tags.append(@1); log.append(len(p.tags))
        log.append([f.name for f in dataclasses.fields(p)])
        s = Solid(@1, z=@2, kind=3); log.append((repr(s), s.total, isinstance(s, Point)))
        log.append([Cell(@1) < Cell(@2), Cell(1, 2) == Cell(1, 2, 'n'), hash(Cell(3)) == hash(Cell(3, note='o'))])
        log.append(str(sorted([Cell(@1), Cell(@2, 1), Cell(0)])))
        Cell(1).row = @1
        log.append(str(max(Cell(@1), Cell(@2))))
        log.append({Cell(1): 2, Cell(@1): 3}.get(Cell(1)))
        p.more = @1; log.append(sorted(vars(p)))
        del p.more
        log.append(str(copy.copy(p))); r = copy.deepcopy(p); r.tags.append(1)
        ; log.append((len(r.tags), len(p.tags)))
        log.append(dataclasses.is_dataclass(p))
        match p:
            case Point(x=0, y=v) | Point(x=v, y=0): log.append(v)
            case Solid(x, y): log.append((x, y))
            case Point(x, y) if x > y: log.append(x - y)
            case _: log.append('no')
        x = x * (p.total % 5)
        Point()
        """,
    ),
    _topic(
        """
        @dataclasses.dataclass
        class Local:
            u: int
            v: list = dataclasses.field(default_factory=list)
            def __post_init__(self): self.v.append(self.u)
        l = Local(@1)
        """,
        """
        log.append((repr(l), l == Local(@1)))
        l.u += 1; log.append(l.u)
        log.append(dataclasses.asdict(l))
        l.t = x * 2; x = l.t - x
        log.append(dataclasses.replace(l, u=@2).u)
        """,
    ),
    _topic(
        "t = @T",
        """
        log.append((t.left, t[1], len(t), t.both(), t.gap))
        log.append((t._replace(left=@1), t == (t.left, t.right), t._asdict()))
        left, right = t; log.append(left - right)
        log.append([*t, *Trio(@1)]); log.append(repr(Trio(1, r=@2)))
        log.append(Pair._make([@1, @2])); log.append(Pair._fields)
        log.append(sorted([Pair(@1), Pair(@2), Pair(0, @3)]))
        log.append(t + (1,)); log.append(Trio._field_defaults)
        t.left = 1
        Pair()
        match t:
            case Pair(left=1 | 2): log.append('low')
            case (u, v) if u < v: log.append(u)
            case Pair(u, v): log.append((u, v))
        log.append(isinstance(t, tuple)); log.append(hash(t) == hash(tuple(t)))
        HELD.pair = HELD.pair._replace(right=@1)
        log.append(max(t)); log.append(t.index(t.left)); log.append(@1 in t)
        """,
    ),
    _topic(
        "c = @C",
        """
        log.append((c.name, c.value, c.short, c.after().name))
        log.append(repr(c)); log.append(str(c)); log.append(f'{c}')
        log.append([m.name for m in Color]); log.append(len(Color)); log.append(list(Color.__members__))
        log.append(c is Color['RED']); log.append(c == Color.CRIMSON); log.append(c in (Color.RED, Color.BLUE))
        log.append(Color(@1).name)
        log.append({Color.RED: 1, Color.GREEN: 2}.get(c, @1))
        log.append((Level.LOW + @1, Level.HIGH > @2, Level(5).name, int(Level.LOW)))
        log.append(str(Perm.R | Perm.W)); log.append(Perm.X in Perm.ALL); log.append((Perm.ALL & ~Perm.R).value)
        log.append((Mode.FAST == 'fast', Mode('slow').name, Mode.FAST.upper(), Mode.SLOW.value + 'x'))
        HELD.color = c.after()
        match c:
            case Color.RED: log.append('r')
            case Color.GREEN | Color.BLUE: log.append('gb')
        log.append(sorted([Level.HIGH, Level.LOW])); log.append(isinstance(c, Color))
        ; log.append(Color.pick(@1).short)
        x = x + c.value; x = x * Level.HIGH
        Color.RED = 5
        log.append(c.missing)
        """,
    ),
    _topic(
        "q = @Q",
        """
        q.append(@1); q.appendleft(@2); log.append(list(q))
        q.rotate(@1 % 5 - 2); log.append(list(q)); log.append(q.maxlen)
        q.extend(xs[:2]); q.extendleft([@1]); log.append((q[0], q[-1], len(q)))
        log.append(q.popleft()); log.append(q.pop())
        log.append((q.count(1), @1 in q)); q.reverse()
        q[0] = @1; del q[-1]; log.append(repr(q))
        log.append(q.index(2)); q.remove(1)
        q.insert(1, @1)
        for v in q: log.append(v)
        for v in q: q.append(v)
        r = deque(q, maxlen=2); log.append(list(r + deque([1]))); log.append(r == q)
        q += [@1]; log.append([*reversed(q)]); q.clear()
        """,
    ),
    _topic(
        "w = @W",
        """
        w['a'] += @1; w['z'] -= 1; log.append(sorted(w.items()))
        w.update('abc'); log.append(w.most_common(2))
        ; log.append(sorted(w.elements()) if min(w.values()) < 9 else 0)
        w.subtract({'a': 2}); log.append(w['nothing']); log.append('nothing' in w)
        log.append(sorted((w + Counter(b=@1)).items())); log.append(sorted((w - Counter('a')).items()))
        log.append(sorted((w & Counter('ab')).items())); log.append(sorted((+w).items()))
        del w['a']; log.append(len(w)); log.append(sum(w.values()))
        log.append(Counter(v % 3 for v in xs).most_common(1)); log.append(w == Counter('aab'))
        """,
    ),
    _topic(
        "o = @O",
        """
        o['k'] = @1; o.move_to_end('k', last=@1 > 2); log.append(list(o.items()))
        log.append(o.popitem(last=False)); log.append(o.popitem())
        log.append(o == OrderedDict(o)); log.append(list(reversed(o))); log.append(o | {'z': @1})
        o.update(p=@1); log.append(repr(o)); log.append(o.setdefault('w', @2))
        o.move_to_end('missing')
        for k in list(o): o[k] += 1
        o |= {'v': 1}; del o['v']; log.append(o.pop('p', None)); log.append(next(iter(o), None))
        for k, v in o.items(): o['new'] = v
        """,
    ),
    _topic(
        "m = @D",
        """
        m[@1 % 3].append(@2); log.append(sorted(m.items()))
        log.append(m.get(7)); log.append(7 in m); log.append(m[7]); log.append(len(m))
        m.setdefault(1, []).append(3); log.append(m.pop(1, None)); m.default_factory = None; log.append(m[55])
        for v in xs[:3]: m[v % 2].append(v)
        e = defaultdict(lambda: @1); e['q'] += 1; log.append(dict(e)); log.append(repr(defaultdict(int, a=1)))
        log.append({k: sum(v) for k, v in m.items()}); m.clear()
        log.append(sorted((m | {9: [1]}).items())); log.append(type(copy.copy(m)).__name__)
        """,
    ),
    _topic(
        "chain = ChainMap({'p': @1}, {'p': 0, 'q': @2}, d); table = @B; stack = @K",
        """
        log.append([chain['p'], chain['q'], len(chain)]); chain['q'] = 5; log.append(chain.maps[0])
        child = chain.new_child({'z': 1}); log.append(child['z']); log.append(child.parents['p'])
        ; log.append(chain['no'])
        log.append([table['n'], table['m'], table['n'], table.get('w')]); log.append(sorted(table))
        stack.push(@1).push(@2); log.append((stack.top, len(stack), stack[0])); stack.pop()
        ; log.append(stack == [1])
        v = View(dict(u=@1, w=2))
        ; log.append([sorted(v), v.get('u'), 'w' in v, v == {'u': 1, 'w': 2}, list(v.items())])
        log.append(View({})['k'])
        r = Rows(@1, 2); r.append(@2); r.extend([1]); r += [7]; log.append((r.pop(), r.index(1), list(reversed(r))))
        r = Rows(3, 1); r.reverse(); r.remove(3); log.append((len(r), r.count(1), 1 in r, r.v))
        stack.sort(reverse=True); log.append(repr(stack)); stack += [@1]; stack *= 2; log.append(stack[::2])
        log.append(type(stack + [1]).__name__); log.append(type(table | {}).__name__)
        ; log.append(Table.fromkeys('ab', 1))
        """,
    ),
    _topic(
        "k = Extended(@1) if @2 > 0 else Plugin(v=@1)",
        """
        log.append((k.v, k.serial, type(k).label, type(k).describe(@1)))
        log.append(Plugin[@1]); log.append(len(Plugin)); log.append(7 in Plugin); log.append(list(Extended))
        log.append(Plugin + @1); log.append([v for v in Extended]); log.append(isinstance(7, Plugin))
        log.append(type(k).__name__); log.append(isinstance(k, Plugin)); log.append(issubclass(Extended, Plugin))
        log.append(k.label); log.append(k.describe())
        log.append(type(type(k)).__name__); log.append(bool(Plugin))
        ; log.append([c.__name__ for c in Extended.__mro__])
        log.append([Extended.dynamic, getattr(Plugin, 'other', @1), hasattr(Plugin, 'code')]); Plugin.code = @1
        ; log.append(Extended.describe())
        Plugin.nothing
        Registry.made += 1; log.append(Plugin.made)
        """,
    ),
    _topic(
        "both = Both(left=@1, right=2); fig = Square(@2)",
        """
        log.append((both.who(), both.seen, both.rest, both.left))
        log.append(Both.make(left=@1).right); log.append(Left.make(left=1, z=@1).rest)
        ; log.append([c.__name__ for c in Both.__mro__])
        log.append((fig.area(), fig.scaled(2).area(), fig.sides, isinstance(fig, Figure)))
        Figure()
        log.append(super(Left, both).who()); log.append(super(Both, Both).make().right)
        log.append(sorted(Figure.__abstractmethods__)); log.append(Both.__bases__[0].__name__)
        fig.__class__ = Both; log.append(type(fig).__name__)
        log.append(both.__dict__ == vars(both)); both.who = lambda: 'own'; log.append(both.who())
        """,
    ),
    _topic(
        "m1, m2 = Money(@1), @M",
        """
        log.append([m1 < m2, m1 >= m2, m1 == @2, m1 != m2, m1 > 3]); log.append(repr(sorted([m1, m2, Money(0)])))
        log.append([0, 1, 2, 3][m1]); log.append(list(range(5))[m1:Money(3)]); log.append((int(m1), float(m2)))
        log.append([round(m1), round(m2, 2), math.trunc(m1)]); log.append(repr([abs(m1), -m1, +m2, ~m1]))
        log.append(repr([m1 * 2, 3 * m2, 10 - m1])); log.append(m1 - 1)
        log.append([m1 @ 2, 3 @ m1, divmod(m2, 3), m1 ** 2, pow(m1, 2, 5), 2 ** m1, m1 >> 1, m1 & 3, 5 & m2])
        m2 |= 8; log.append(m2.v); log.append(list(reversed(m1))); log.append(operator.length_hint(m1))
        ; log.append(dir(m1))
        log.append(Money[int]); log.append(hash(m1) == hash(m1.v)); log.append(m1 * 'a')
        log.append({Money(1): 'a', Money(@1): 'b'}.get(Money(1))); log.append(str(bin(m1)))
        log.append(operator.index(m1)); log.append('ab' * m1); log.append(hex(Money(3)))
        log.append(sum([m1 * 1, m2 * 1], 0)); log.append(repr(max(m1, m2))); log.append(m1 < 'a')
        """,
    ),
    _topic(
        "g = Grid(log); cnt = Counting(@1)",
        """
        log.append(g[1:2, ..., @1]); log.append(g[:, None]); g[::2] = @1; del g[1, 2]; log.append(g[-1:])
        g[@1] += 1; log.append(g[(1, 2)] == g[1, 2]); g['k'], g[0] = 1, @2
        log.append(list(cnt)); log.append([*cnt, 1]); log.append(list(reversed(cnt))); log.append(6 in cnt)
        ; log.append(bool(cnt))
        log.append(list(zip(cnt, xs))); p, *r = cnt; log.append(r); log.append(max(cnt))
        ; log.append(sorted(cnt, reverse=True))
        log.append(dict(enumerate(cnt))); log.append(sum(cnt)); log.append(next(iter(cnt), 'empty'))
        """,
    ),
    _topic(
        "pr = Proxy(@R); wt = Watched(log)",
        """
        log.append(pr.v); pr.v = @1; log.append(pr.size); del pr.calls; log.append(hasattr(pr, 'calls'))
        ; log.append(pr.add(1))
        log.append([wt.known, wt.other, wt.failing])
        wt.value = @1; log.append(wt.value); log.append(getattr(wt, 'none', 'default')); log.append(wt.none)
        log.append(hasattr(wt, 'none')); log.append(pr.nothing); log.append(pr.twice(@1)); pr.fresh = @1
        ; log.append(pr.fresh)
        """,
    ),
    _topic(
        "rec = @R",
        """
        log.append((rec.count, Record.count)); rec.count = @1; log.append(rec.count); del rec.count
        ; log.append(rec.count)
        rec.names = @1
        rec.names = [@1]; rec.names.append(2); log.append(rec.names); del rec.names; del rec.names
        log.append([rec.lazily, rec.lazily, rec.once, rec.once, rec.calls])
        rec.size = @1; log.append(rec.size); del rec.size; log.append(rec.v)
        log.append([rec.add(1), rec.add(@1, q=2), rec.add_two(), rec.add_two(q=5)]); log.append(Record.of(@1).v)
        log.append([rec.kind(@1), rec.kind('s'), rec.kind(xs)]); log.append(rec.twice(3))
        ; log.append(Record.twice(@1))
        vars(rec)['once'] = @1; log.append(rec.once); del rec.once; log.append(rec.once)
        rec.lazily = @1; log.append(rec.lazily); log.append(sorted(rec.__dict__)); log.append(Record.once.attrname)
        f2 = rec.add; rec.v += 1; log.append(f2(1)); log.append(f2 == rec.add); log.append(f2.__self__ is rec)
        ; log.append(Record.add(rec, 2))
        setattr(rec, 'size', @1); log.append(getattr(rec, 'missing', 'd')); delattr(rec, 'size')
        ; log.append(type(rec).__dict__['size'].fset is None)
        rec.other = {'t': x}; x = rec.other['t'] * 2; del rec.other
        log.append(isinstance(Record.__dict__['of'], classmethod))
        ; log.append(operator.attrgetter('v', 'calls')(rec))
        """,
    ),
    _topic(
        "nested = {'a': [@1, [2, @2]], 'b': @P}; cp = Copied([@1])",
        """
        deep = copy.deepcopy(nested); deep['a'][1].append(1)
        ; log.append((len(nested['a'][1]), deep['b'] == nested['b'], deep['b'] is nested['b']))
        flat = copy.copy(nested); flat['a'].append(1); log.append((len(nested['a']), flat['b'] is nested['b']))
        c1, c2 = copy.copy(cp), copy.deepcopy(cp); c2.v.append(1)
        ; log.append((c1.how, c2.how, c1.v is cp.v, len(cp.v)))
        nested['self'] = nested; deep = copy.deepcopy(nested); log.append(deep['self'] is deep)
        fz = copy.copy(Frozen(@1, [2])); log.append((fz.a, fz.b)); log.append(copy.deepcopy(box).v)
        ; log.append(copy.copy(box) == box)
        y = copy.deepcopy({'t': x}); x = x + y['t']; log.append(copy.deepcopy([xs, xs])[0] == xs)
        ; ls = copy.deepcopy([xs, xs]); log.append(ls[0] is ls[1])
        log.append(copy.copy(deque([@1, 2]))); log.append(copy.deepcopy({1, @1}) == {1, @1})
        ; log.append(copy.copy((1, @1)))
        """,
    ),
    _topic(
        "en = Entered(log, (KeyError,)); step, reset = @S",
        """
        with en as v: log.append(v); d['nothing']
        with retried(log, @1) as v: log.append(v // (@2 % 3))
        with contextlib.ExitStack() as st:
            v = st.enter_context(en); st.callback(log.append, ('cb', v))
            ; st.push(lambda *e: log.append(e[0] and e[0].__name__)); kept = st.pop_all()
        kept = contextlib.ExitStack(); kept.callback(log.append, 'late'); log.append('now'); kept.close()
        log.append([step(), step(@1 % 9), step()]); reset(); log.append(step())
        decorated = en(lambda v: v // 0 if v > 3 else v); log.append(decorated(@1)); log.append(decorated(4))
        log.append(Entered(log)(lambda v: v + 1)(@1))
        with contextlib.suppress(KeyError, IndexError) as s: log.append(s); xs[77]
        with en, retried(log) as v, contextlib.suppress(Oops): raise Oops(v)
        with (en as u, contextlib.closing(careful(log, 'cls', 3)) as it): log.append(next(it)); log.append(u)
        with en: raise ValueError(@1)
        with contextlib.ExitStack() as st: st.enter_context(retried(log)); st.enter_context(en); 1 // 0
        """,
    ),
    _topic(
        "",
        """
        log.append([shown(@1), shown([1]), shown((1, 2)), shown('s', 2), shown(box), shown(True)])
        ; log.append(shown.dispatch(int).__name__)
        log.append([cached(@1 % 4), cached(1, b=@2 % 3), cached(@1 % 4)]); log.append(cached.__wrapped__(1))
        log.append(compose(lambda v: v + 1, lambda v: v * 2)(@1)); log.append(functools.partial(f, @1, z=2)(1, 2))
        pt = functools.partial(functools.partial(f, @1), 2)
        ; log.append((pt(3, z=1), pt.args, pt.keywords, pt.func is f))
        log.append(functools.reduce(operator.or_, [{1}, {2, @1}]))
        ; log.append(functools.reduce(lambda p, q: p + [q], xs, []))
        log.append(sorted(xs, key=functools.cmp_to_key(lambda p, q: (p % 3) - (q % 3) or p - q)))
        log.append(functools.wraps(f)(lambda *p: 1).__name__); log.append(functools.reduce(operator.add, []))
        log.append([cached.__name__, cached.__wrapped__.__name__, callable(cached)])
        """,
    ),
    _topic(
        "",
        """
        log.append(taking(1, @1, e=2)); log.append(taking(*xs[:3], e=@1, **{'g': 1, 'h': @2}))
        ; log.append(taking(@1, b=2, e=3, a=4))
        taking(1, 2)
        taking(a=1, b=2, e=3)
        taking(1, b=2, e=3, *[4])
        log.append(defaults(@1)); log.append(defaults(1, [@1])); log.append(defaults(2, c={}))
        log.append((lambda *p, q, **r: (p, q, r))(*xs[:2], q=@1, s=2))
        ; log.append((lambda p, /, q=@1, *, r: p + q + r)(1, r=2))
        def kw(*, k=@1, **r): return k + len(r)
        log.append(kw(**{'k': 3, 'm': @1})); kw(1)
        f(**{'p': 1}, p=2)
        f(*5)
        f(1, 2, **{1: 2})
        args = [1, @1]; log.append(f(*args, *args, **dict(z=@2))); log.append(max(*xs, 1))
        ; print(*[], sep='', end='')
        log.append(str(inspect.signature(taking))); log.append(list(inspect.signature(f).parameters))
        ; log.append(f.__code__.co_argcount)
        """,
    ),
    _topic(
        "ls = list(range(@1 % 7 + 2))",
        """
        ls[1:3] = [@1]; ls[::2] = [0] * len(ls[::2]); log.append(ls); del ls[::3]; log.append(ls[::-1])
        ls[len(ls):] = xs[:2]; ls[:0] = (7, 8); log.append(ls[-3:-1]); log.append(ls[slice(1, None, 2)])
        ls[::2] = [1]
        ls *= 2; log.append((ls.count(0), ls.index(1))); log.append(ls[@1 % 3:][:2])
        ; log.append([0] * (@1 % 4) + ls)
        log.append(slice(@1, 2).indices(5)); log.append(ls < [0, @1]); log.append(ls == list(ls))
        ; ls.extend(i for i in ls[:2]); log.append(len(ls))
        ls.sort(key=lambda v: (-v % 3, v)); log.append(ls); log.append(sorted(ls, key=str, reverse=True))
        ; log.append(sorted('bca'))
        log.append([i for i, v in enumerate(ls, @1) if v]); log.append(list(map(operator.mul, ls, xs)))
        ; ls.insert(-1, @1); log.append(ls.pop(0))
        log.append(heapq.nsmallest(2, ls)); heapq.heapify(ls); heapq.heappush(ls, @1); log.append(heapq.heappop(ls))
        ; log.append(bisect.bisect(sorted(ls), @1))
        log.append(min(ls, key=lambda v: (v % 2, -v), default=0)); log.append(list(zip(*[ls, ls[1:]])))
        ; log.append(all(ls)); log.append(ls.copy() is ls)
        log.append(tuple(ls)[1:] + (@1,)); log.append(any(v > @1 for v in ls)); log.append([*map(str, ls)])
        ; ls.remove(999)
        b1 = bytearray(b'abc'); b1[1:2] = b'xy'; b1.append(65); log.append(bytes(b1))
        ; log.append(memoryview(b'abc')[1]); HELD.bytes.append(@1 % 200)
        del ls[:]; log.append(ls); ls.append(ls); log.append(len(ls)); ls.clear()
        """,
    ),
    _topic(
        "s1, s2 = {1, 2, @1 % 9}, frozenset([2, @2 % 9])",
        """
        log.append([s1 | s2 == s2 | s1, len(s1 & s2), sorted(s1 - s2), sorted(s1 ^ s2)])
        ; log.append(s1 <= {1, 2, 3}); log.append(s1.isdisjoint(s2))
        s1.add(@1 % 5); s1.discard(1); log.append(sorted(s1)); s1 |= {7}; s1 &= {7, 2}; log.append(sorted(s1))
        ; s1 -= s2; log.append(len(s1))
        s1.update([3], (4,)); s1.remove(99)
        log.append(sorted(s1.union([5], [6]))); log.append(sorted(s1.symmetric_difference({1})))
        ; log.append(s1.issuperset({2})); log.append({s2: 1}[s2])
        log.append(sorted({v % 3 for v in xs})); log.append(sorted(set(d) & {'k', 'm'}, key=str))
        ; log.append(d.keys() >= {'k'}); log.append(sorted(d.keys() - {1}, key=str))
        HELD.kinds.add(@1 % 4); log.append(len(HELD.kinds)); HELD.kinds.discard(@2 % 4)
        ; log.append(sorted(HELD.kinds)); s1.clear(); log.append(bool(s1))
        s1.add([1])
        log.append(sorted(set('abc') ^ set('bcd'))); log.append(len({1, 1.0, True}))
        ; log.append({*xs, *s1} == set(xs) | s1); log.append(sorted(s1)[0])
        """,
    ),
    _topic(
        "",
        """
        log.append(list(itertools.chain(xs[:2], 'ab', gen(2))))
        ; log.append(list(itertools.chain.from_iterable([[1], gen(2)])))
        ; log.append(list(itertools.islice(itertools.count(@1, 2), 3)))
        log.append([(k, list(g)) for k, g in itertools.groupby(sorted(xs), lambda v: v % 2)])
        ; log.append(list(itertools.pairwise(xs)))
        log.append(list(itertools.zip_longest(xs[:3], gen(2), fillvalue=@1)))
        ; log.append(list(itertools.starmap(operator.sub, [(1, @1), (3, 4)])))
        log.append(list(itertools.takewhile(lambda v: v < @1, xs)))
        ; log.append(list(itertools.dropwhile(lambda v: v < @1, xs)))
        ; log.append(list(itertools.filterfalse(None, xs)))
        log.append(len(list(itertools.product(xs[:2], repeat=2))))
        ; log.append(list(itertools.combinations(xs[:3], 2)))
        ; log.append(list(itertools.permutations('abc', 2))[:3])
        t1, t2 = itertools.tee(gen(3)); log.append((next(t1), list(t2), list(t1)))
        ; log.append(list(itertools.accumulate(xs, max, initial=@1)))
        log.append(list(itertools.compress(xs, itertools.cycle([1, 0])))); log.append(list(itertools.repeat(@1, 2)))
        ; cy = itertools.cycle(xs[:2]); log.append([next(cy, 0) for _ in range(3)])
        it = iter(xs); log.append([next(it, None), [*it], next(it, 'end')])
        ; log.append(list(iter(iter([1, 2, 0, 3]).__next__, 0))); log.append(list(zip(gen(2), itertools.count())))
        log.append([list(v) for v in zip(*[iter(xs)] * 2)]); log.append(list(map(max, xs, gen(9))))
        ; log.append(list(filter(None, [0, @1, '']))); log.append(list(reversed(range(3))))
        for p, q in zip(xs, gen(2), strict=True): log.append(p)
        it = enumerate(gen(3), @1); log.append(next(it)); log.append(dict(it))
        ; log.append(sum(map(lambda p, q: p * q, xs, xs)))
        log.append(dict(zip(map(str, xs), itertools.count()))); log.append(''.join(itertools.chain('ab', str(@1))))
        ; it = zip(gen(2)); log.append(next(it)); del it
        """,
    ),
    _topic(
        "s = str(@1) + 'ab-c d'",
        """
        log.append(f'{s!r:>12}|{@1:+d}|{@2:05d}|{s[:2]:*^6}|{3.14159:.{@1 % 4}f}'); log.append(f'{@1 = }')
        ; log.append(f'{xs!s}{d["k"]}' if 'k' in d else f'{{}}')
        log.append([s.split('-'), s.partition('-'), s.upper(), s.title(), s.find('c'), s.replace('a', 'z', 1)])
        ; log.append(s.index('q'))
        log.append('{0}-{k:>4}-{0!r}'.format(@1, k=s)); log.append('%s %5.2f %x %%' % (s, @1 / 4, abs(@2)))
        ; log.append('%(k)s' % {'k': @1}); log.append('{.v}'.format(box))
        log.append(re.sub(r'(\\d)', r'<\\1>', s)); log.append([m.group(1) for m in re.finditer(r'([a-z])', s)])
        ; log.append(re.match(r'(?P<n>-?\\d+)', s)['n']); log.append(re.split('[- ]', s))
        log.append(s.encode().hex()); log.append(s.translate({97: 'X'})); log.append(s.strip('-0123456789'))
        ; log.append([*map(ord, s[:2])]); log.append(chr(65 + @1 % 26))
        log.append(', '.join(map(str, xs))); log.append(s in 'abc'); log.append(s < 'b'); log.append(s * 2)
        ; log.append(s[::-1]); log.append(s.isdigit()); log.append(s.count('a'))
        log.append(string.Template('$a-$b').substitute(a=@1, b=s))
        ; log.append(f'{Color.RED.name}{Level.LOW:d}{Point(1)}'); log.append(format(@1, 'x'))
        ; log.append(f'{box}{Pair(@1)!s}')
        log.append(int('12', 5)); log.append(float('1.5') + @1); log.append(int('z')); log.append(ascii('é'))
        ; log.append(repr(s).startswith("'"))
        log.append(math.gcd(@1, 12)); log.append(math.isqrt(abs(@1))); log.append(math.comb(5, 2))
        ; log.append(round(math.sqrt(abs(@2)), 3)); log.append(math.floor(@1 / 2))
        log.append((@1).bit_length()); log.append((7).to_bytes(2, 'big')); log.append(round(@1, -1))
        ; log.append(complex(1, @1).conjugate()); log.append(1 / @1)
        log.append(operator.itemgetter(1, 0)(xs)); log.append(operator.methodcaller('upper')(s))
        ; log.append(sorted(d, key=str)); log.append(isinstance(s, (int, str)))
        """,
    ),
    _topic(
        "target = @R; ref = weakref.ref(target)",
        """
        log.append(ref() is target); log.append(ref().v); log.append(HELD.near().v)
        ; log.append(ref == weakref.ref(target)); log.append(HELD.near() is HELD.record)
        wd = weakref.WeakValueDictionary(); wd['t'] = target
        ; log.append([len(wd), wd['t'] is target, 'n' in wd, wd.get('n', @1)])
        ws = weakref.WeakSet([target]); log.append([len(ws), target in ws, [v.v for v in ws]])
        wk = weakref.WeakKeyDictionary(); wk[target] = @1; log.append(wk[target]); log.append(len(HELD.weak))
        ; log.append(HELD.weak['p'].x)
        px = weakref.proxy(target); log.append(px.v)
        wm = weakref.WeakMethod(target.add); log.append(wm()(1)); log.append(type(ref).__name__)
        late = Record(@1); gone = weakref.ref(late); del late; log.append(gone() is None)
        late = Record(@1); gone = weakref.ref(late, lambda r: log.append('gone')); late = None; log.append(gone())
        """,
    ),
    _topic(
        "err = Failing(@1)",
        """
        log.append([str(err), err.args, err.b, repr(err), isinstance(err, Exception)]); raise err
        raise Failing(@1, b=3) from Oops(1)
        try: raise Failing(@1)
        except (KeyError, Failing) as e: e.b += 1; log.append(str(e)); log.append(e.__traceback__ is not None)
        else: log.append('else')
        finally: log.append('finally')
        try:
            try: 1 // 0
            finally: raise KeyError(@1)
        except KeyError as e: log.append(described(e)); raise
        try: raise StopIteration(@1)
        except StopIteration as e: log.append(e.value)
        try:
            for v in xs:
                try: log.append(10 // v)
                except ZeroDivisionError: continue
                finally: log.append('v')
                if v > 3: break
            else: log.append('all')
        except TypeError: pass
        e = OSError(2, 'no'); log.append((e.errno, e.strerror, str(e))); e = KeyError('k'); log.append(str(e))
        ; e = UnicodeDecodeError('u', b'a', 0, 1, 'r'); log.append(e.reason)
        def raises(): raise Failing(1) if @1 > 2 else Oops
        raises()
        with contextlib.suppress(Failing): raise err.with_traceback(None)
        assert @1 > 3, f'small {@1}'
        raise 5
        """,
    ),
    _topic(
        "",
        """
        globals()['TOTAL'] = @1; log.append(TOTAL); log.append('STATE' in globals())
        ; log.append(globals().get('nothing', 1))
        def outer(p):
            total = p
            def inner(q):
                nonlocal total
                total += q; return total
            return inner, lambda: total
        inner, total = outer(@1); inner(2); inner(@2); log.append(total())
        def bump(by=@1):
            global TOTAL
            TOTAL += by; return TOTAL
        bump(); log.append(TOTAL)
        log.append(sorted(locals())[:1]); log.append(eval('a + 1'))
        ; log.append([v for v in dir(Pair) if v == 'both'])
        acc = []; add = acc.append; add(@1); add(2); log.append(acc); ap = xs.append; ap(1); log.append(len(xs))
        ; log.append(type(ap).__name__)
        class Ns: total = @1; more = [total for _ in range(2)] if @2 > 100 else total; get = lambda self: self.total
        fact = lambda v: 1 if v < 2 else v * fact(v - 1)
        log.append(fact(@1 % 5)); ev = lambda v: v == 0 or od(v - 1); od = lambda v: v != 0 and ev(v - 1)
        ; log.append(ev(@1 % 6))
        bump.calls = getattr(bump, 'calls', 0) + 1 if 'bump' in dir() else 0
        """,
    ),
    _topic(
        "sc = HELD.scale if @1 > 2 else Scale(3)",
        """
        x = sc(x) % 50; x = sc(x, k=@1 % 3) % 9; log.append(sc.seen.tolist())
        log.append([n for n, _ in sc.named_children()]); log.append(len(list(sc.buffers())))
        ; log.append([n for n, _ in sc.named_modules()])
        sc.w = @1 % 4 + 1; x = sc.inner(x); log.append(sc.training); sc.eval(); log.append(sc.inner.training)
        ; sc.train()
        log.append(getattr(sc, 'broken', 'property')); log.append(hasattr(sc, 'w'))
        ; log.append(sorted(sc.state_dict()))
        sc.seen = torch.zeros(2); sc.extra = torch.nn.Identity(); log.append('extra' in dict(sc.named_children()))
        ; del sc.extra
        sc.nothing
        log.append(isinstance(sc.kept['r'], torch.nn.Module)); x = torch.nn.Sequential(sc, torch.nn.ReLU())(x) % 7
        hd = sc.register_forward_hook(lambda m, i, o: o + 1); x = sc(x) % 11; hd.remove(); x = sc(x) % 13
        """,
    ),
    _topic(
        "lk = Like(x)",
        """
        x = torch.add(lk, 1).v; log.append(type(torch.relu(lk)).__name__)
        x = torch.stack([lk.v, x]).sum(0); x = torch.where(x > 1, Like(x).v, x)
        x = torch.cat((lk.v[:2], x[2:])); log.append(x.shape); log.append(x.tolist() if @1 > 50 else len(x))
        x = torch.mul(torch.ones(x.shape[0]), lk).v
        """,
    ),
    _topic(
        "",
        """
        HELD.queue.append(@1); HELD.counts['b'] += 1; HELD.many[@1 % 2].append(2); HELD.table[@1 % 3]
        ; HELD.stack.push(@1)
        HELD.order.move_to_end('p'); HELD.order['q'] = @1; HELD.point.x = @1; HELD.point.tags = [@1]
        ; HELD.record.size = 3
        log.append([len(HELD.queue), HELD.counts['a'], HELD.point.norm, HELD.record.once, list(HELD.order)])
        ; HELD.fresh = @1; log.append(HELD.fresh)
        HELD.queue.rotate(1); HELD.queue.pop(); HELD.kinds |= {@1 % 7}; HELD.money |= 2; HELD.point.total += 1
        ; del HELD.counts['a']
        for i in range(3): HELD.many[i].append(i); HELD.stack.append(i)
        HELD.color = Color.pick(@1); HELD.pair = Pair(@1, 2); HELD.order.popitem(); HELD.table.pop('a', None)
        ; HELD.record.__dict__.pop('once', None)
        q = HELD.queue; q.clear(); q.extend([@1]); HELD.step[0](@1 % 4); log.append(HELD.step[0]())
        ; log.append(HELD.queue is q); HELD.stack[:] = [@1]
        """,
    ),
)

_GROUPS = _topic(
    "eg = ExceptionGroup('g', [KeyError(@1), ValueError(2), ExceptionGroup('h', [IndexError(3)])])",
    """
    m, r = eg.split(KeyError); log.append((len(m.exceptions), len(r.exceptions), str(eg)))
    ; log.append(eg.subgroup(TypeError))
    log.append([type(e).__name__ for e in eg.subgroup((ValueError, IndexError)).exceptions])
    ; log.append(eg.derive([Oops(1)]).message)
    try: raise eg
    except* KeyError as e: log.append(len(e.exceptions))
    except* (ValueError, IndexError) as e: log.append(described(e)); raise Oops(@1)
    log.append(eg.subgroup(lambda e: isinstance(e, KeyError)).exceptions[0].args); eg.add_note('note')
    ; log.append(eg.__notes__); raise eg
    """,
)
if sys.version_info >= (3, 11):
    TOPICS += (_GROUPS,)

# What a topic is about is made by the program, or is there before it.
_MADE = {
    "@P": ("Point(@1, @2)", "Point(y=@1, x=1, tags=[2])", "HELD.point", "Solid(@1, z=2)"),
    "@T": ("Pair(@1, @2)", "Pair(@1)", "HELD.pair", "Pair(right=@1, left=0)"),
    "@C": ("Color.RED", "HELD.color", "Color(2)", "Color['BLUE']", "Color.pick(@1)"),
    "@Q": ("deque([1, @1, 3])", "deque(xs, maxlen=4)", "HELD.queue", "deque()"),
    "@W": ("Counter('abca')", "Counter(a=@1, b=2)", "HELD.counts"),
    "@O": ("OrderedDict(p=@1, q=2, r=3)", "HELD.order", "OrderedDict.fromkeys('pq', 1)"),
    "@D": ("defaultdict(list)", "HELD.many", "defaultdict(list, {1: [@1]})"),
    "@B": ("Table(a=1)", "HELD.table"),
    "@K": ("Stack([1, @1])", "HELD.stack"),
    "@M": ("Money(@2)", "HELD.money"),
    "@R": ("Record(@1)", "HELD.record"),
    "@S": ("counter()", "HELD.step"),
}


class Library:
    """Statements about the standard library and about what classes define."""

    rng: random.Random

    def emit(self, indent: int, text: str) -> None:
        raise NotImplementedError

    def integer(self, level: int = 0) -> str:
        raise NotImplementedError

    def library(self, indent: int) -> None:
        """A topic: its set-up and some of its uses, mostly where what they raise is caught."""
        topic = self.rng.choice(TOPICS)
        self._write(indent, topic.setup)
        caught = self.rng.random() < 0.8
        for use in self.rng.sample(topic.uses, min(len(topic.uses), self.rng.randint(1, 3))):
            if not caught:
                self._write(indent, use)
                continue
            self.emit(indent, "try:")
            self._write(indent + 1, use)
            self.emit(indent, "except Exception as error: log.append(described(error))")

    def _write(self, indent: int, text: str) -> None:
        text = re.sub("@[A-Z]", lambda found: self.rng.choice(_MADE[found[0]]), text)
        text = re.sub("@[1-3]", lambda found: self.integer(3), text)
        for line in text.splitlines():
            self.emit(indent, line)
