"""The programs behind docs/python-coverage.md, as data.

`PRELUDE` is the module they live in. `VALUES` are the values they use, each an expression over two random tensors `x`
(3 elements) and `m` (2 by 3). `PROGRAMS` maps a topic to rows: a line at the margin is the row's name, two spaces, and
a program; indented lines continue it. The value of its last expression is its result.
"""

PRELUDE = """
import abc, bisect, cmath, collections, contextlib, contextvars, copy, dataclasses, datetime, enum, fractions, functools, heapq, inspect, io
import itertools, json, logging, math, numbers, numpy, operator, os, random, re, statistics, string, sys, textwrap, time
import types, typing, uuid, warnings, weakref
import torch


class Box:
    count = 0
    def __init__(self, v, *rest): self.v = v; self.rest = rest
    @property
    def double(self): return self.v * 2
    @double.setter
    def double(self, value): self.v = value / 2
    @classmethod
    def of(cls, v): return cls(v, 1)
    @staticmethod
    def plus(a, b=1): return a + b
    def get(self, k=0): return self.v + k
    def __eq__(self, other): return isinstance(other, Box) and self.v == other.v
    def __hash__(self): return 7
    def __lt__(self, other): return self.v < other.v
    def __add__(self, other): return Box(self.v + (other.v if isinstance(other, Box) else other))
    def __radd__(self, other): return Box(other + self.v)
    def __iadd__(self, other): self.v += other; return self
    def __neg__(self): return Box(-self.v)
    def __abs__(self): return Box(abs(self.v))
    def __invert__(self): return Box(~self.v)
    def __divmod__(self, other): return (self.v // other, self.v % other)
    def __rdivmod__(self, other): return (other // self.v, other % self.v)
    def __pow__(self, other, mod=None): return ("pow", self.v, other, mod)
    def __round__(self, digits=None): return ("round", self.v, digits)
    def __int__(self): return int(self.v)
    def __float__(self): return float(self.v)
    def __complex__(self): return complex(self.v, 1)
    def __index__(self): return self.v
    def __trunc__(self): return 41
    def __floor__(self): return 42
    def __ceil__(self): return 43
    def __len__(self): return 3
    def __length_hint__(self): return 3
    def __bool__(self): return self.v > 0
    def __contains__(self, item): return item == self.v
    def __getitem__(self, key): return (self.v, key)
    def __setitem__(self, key, value): self.rest = (*self.rest, key, value)
    def __delitem__(self, key): self.rest = (*self.rest, "del", key)
    def __iter__(self): return iter((self.v, 1, 2))
    def __reversed__(self): return iter((2, 1, self.v))
    def __call__(self, *args, **kwargs): return (self.v, args, kwargs)
    def __enter__(self): self.v += 1; return self
    def __exit__(self, kind, error, trace): self.v -= 1; return kind is KeyError
    def __repr__(self): return f"Box({self.v})"
    def __str__(self): return f"<{self.v}>"
    def __format__(self, spec): return f"[{self.v}:{spec}]"
    def __bytes__(self): return b"box"
    def __dir__(self): return ["v", "rest"]
    def __matmul__(self, other): return ("matmul", self.v, other)

class Sub(Box):
    def get(self, k=0): return super().get(k) + 10

class Plain:
    def __init__(self, v=1): self.v = v

class Slotted:
    __slots__ = ("v", "w")
    def __init__(self, v): self.v = v

class Dynamic:
    def __init__(self): self.real = 5
    def __getattr__(self, name):
        if name.startswith("no"): raise AttributeError(name)
        return name + "!"

class Watched:
    def __init__(self): object.__setattr__(self, "log", [])
    def __getattribute__(self, name): return object.__getattribute__(self, "log") if name == "log" else "got " + name
    def __setattr__(self, name, value): self.log.append((name, value))
    def __delattr__(self, name): self.log.append(name)

class Count:
    def __init__(self, n): self.n = n; self.at = 0
    def __iter__(self): return self
    def __next__(self):
        if self.at >= self.n: raise StopIteration
        self.at += 1
        return self.at

class Items:
    def __init__(self, *v): self.v = v
    def __getitem__(self, i): return self.v[i]

class Typed:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, owner, cls): return self if owner is None else getattr(owner, self.name, 0) + 1
    def __set__(self, owner, value): setattr(owner, self.name, value * 2)
    def __delete__(self, owner): delattr(owner, self.name)

class Lazy:
    def __init__(self, f): self.f = f
    def __get__(self, owner, cls): return self.f(owner)

class Described:
    t = Typed()
    @Lazy
    def lazy(self): return self.t * 10
    @functools.cached_property
    def cached(self): return [self.t]
    bound = functools.partialmethod(lambda self, a, b: (self.t, a, b), 1)
    @functools.singledispatchmethod
    def kind(self, v): return "any"
    @kind.register
    def _(self, v: int): return "int"

class Meta(type):
    def __call__(cls, *args): made = super().__call__(*args); made.meta = True; return made
    def __len__(cls): return 4
    def __iter__(cls): return iter("ab")
    def __contains__(cls, item): return item == 1
    def __getitem__(cls, key): return (cls.__name__, key)
    def __instancecheck__(cls, value): return value == 5 or type.__instancecheck__(cls, value)
    def __subclasscheck__(cls, other): return other is int or type.__subclasscheck__(cls, other)
    @property
    def label(cls): return cls.__name__.lower()
    def shout(cls): return cls.__name__.upper()

class WithMeta(metaclass=Meta):
    def __init__(self, v=0): self.v = v

class Registered:
    found = []
    def __init_subclass__(cls, tag=None, **kwargs): super().__init_subclass__(**kwargs); cls.tag = tag
    def __class_getitem__(cls, key): return (cls.__name__, key)

class Default(dict):
    def __missing__(self, key): self[key] = key * 2; return key * 2

class MyList(list):
    def total(self): return sum(self)

class MyTuple(tuple):
    def __new__(cls, *parts): return super().__new__(cls, parts)

class MyInt(int):
    def twice(self): return self * 2

class MyStr(str):
    def shout(self): return self.upper() + "!"

class MyUserDict(collections.UserDict):
    def __getitem__(self, key): return ("u", self.data[key])

@dataclasses.dataclass
class Point:
    a: typing.Any
    b: typing.Any = 2
    c: list = dataclasses.field(default_factory=list)
    def __post_init__(self): self.c.append(self.b)

@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: int = 2

@dataclasses.dataclass(slots=True)
class SlotPoint:
    a: typing.Any
    b: int = 3

@dataclasses.dataclass(kw_only=True, eq=False)
class Keyed:
    a: typing.Any
    v: dataclasses.InitVar[int] = 1
    k: typing.ClassVar[int] = 4
    def __post_init__(self, v): self.a2 = (self.a, v)

class Color(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1
    @property
    def lower(self): return self.name.lower()

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5

class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1

class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"

Pair = collections.namedtuple("Pair", "u v", defaults=[9])

class Typ(typing.NamedTuple):
    p: typing.Any
    q: int = 3
    def both(self): return (self.p, self.q)

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

class Square(Shape):
    def area(self): return 4

class Speaks(typing.Protocol):
    def get(self): ...

@functools.total_ordering
class Rank:
    def __init__(self, r): self.r = r
    def __eq__(self, other): return self.r == other.r
    def __lt__(self, other): return self.r < other.r

@functools.singledispatch
def kind_of(v): return "other"
@kind_of.register(int)
def _(v): return "int"
@kind_of.register(list)
def _(v): return "list"

@functools.lru_cache(maxsize=4)
def cached_sum(a, b=1): return a + b

@functools.cache
def cached_const(k): return k * 2

@functools.cache
def cached_list(k): return [k]

VAR = contextvars.ContextVar("VAR", default=1)
BARE = contextvars.ContextVar("BARE")

@contextlib.contextmanager
def tagged(log, name):
    log.append("+" + name)
    try:
        yield name
    except IndexError:
        log.append("!" + name)
    finally:
        log.append("-" + name)

class Label(str):
    def __new__(cls, text, tag): made = str.__new__(cls, text); made.tag = tag; return made
    def shout(self): return Label(self.upper() + "!", self.tag)

class Count2(int):
    def __add__(self, other): return Count2(int(self) + int(other) * 10)
    def __bool__(self): return False

class Reduced:
    def __init__(self, v): self.v = v
    def __reduce__(self): return (Reduced, (self.v,))

KEY = Box(77)

class Calls:
    def __init__(self, n): self.n = n; self.seen = []
    def __call__(self, v): self.seen.append(self.n); return v * self.n

def cyclic(v):
    made = Plain(v); made.me = made; made.items = [made, {"me": made}]
    return made

def closure(v, n):
    state = [n]
    def inner(k=1):
        state[0] += k
        return v * state[0]
    return inner

def with_attributes(n):
    def made(k): return k + made.n
    made.n = n; made.log = []
    return made

def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper

@traced
def decorated(a, b=2):
    "doc of decorated"
    return a + b

get_v, get_0, upper = operator.attrgetter("v"), operator.itemgetter(0), operator.methodcaller("upper")

def match_color(c):
    match c:
        case Color.GREEN: return "green"
        case Color.RED: return "red"

def filled(module):
    with torch.no_grad():
        for p in module.parameters(): p.copy_(torch.arange(p.numel()).view_as(p) / 7)
    return module

def noted(value, note):
    value.note = note
    return value

def add(a, b): return a + b
def varied(a, /, b, *c, d=4, **e): return (a, b, c, d, e)
def numbers_up_to(n):
    for i in range(n): yield i
"""

VALUES = {
    "n": "3",
    "h": "2.5",
    "z": "1 + 2j",
    "s": "'ab c'",
    "b": "b'abc'",
    "ba": "bytearray(b'abc')",
    "red": "Reduced([x])",
    "lb": "Label('ab c', x)",
    "c2": "Count2(3)",
    "third": "fractions.Fraction(1, 3)",
    "ui": "uuid.UUID(int=5)",
    "ns": "[3, 1, 2]",
    "fs": "[1.5, 2.5, 3.0]",
    "ss": "['b', 'a', 'c']",
    "xs": "[1, x, 'k']",
    "ts": "[x, x + 1, x * 2]",
    "t": "(1, x, 'k')",
    "tn": "(3, 1, 2)",
    "d": "{'a': 1, 'b': x}",
    "dn": "{'a': 1, 'b': 2}",
    "st": "{1, 2, 3}",
    "fz": "frozenset({2, 3})",
    "r": "range(2, 11, 3)",
    "sl": "slice(1, 5, 2)",
    "ds": "torch.float32",
    "dev": "torch.device('cpu')",
    "o": "Box(5, x)",
    "p": "Sub(6)",
    "plain": "Plain(x)",
    "slot": "Slotted(x)",
    "dyn": "Dynamic()",
    "watch": "Watched()",
    "desc": "Described()",
    "wm": "WithMeta(2)",
    "dq": "collections.deque([1, x, 3])",
    "dm": "collections.deque([1, 2, 3], maxlen=3)",
    "od": "collections.OrderedDict([('a', 1), ('b', x), ('c', 3)])",
    "dd": "collections.defaultdict(list, a=[x])",
    "cn": "collections.Counter('abca')",
    "cm": "collections.ChainMap({'a': x}, {'a': 1, 'b': 2})",
    "ud": "MyUserDict(a=1)",
    "miss": "Default(a=1)",
    "ml": "MyList([1, 2])",
    "mt": "MyTuple(1, x)",
    "mi": "MyInt(4)",
    "ms": "MyStr('yo')",
    "nt": "Pair(1, x)",
    "ty": "Typ(x)",
    "pt": "Point(x)",
    "fr": "Frozen(1)",
    "sp": "SlotPoint(x)",
    "ky": "Keyed(a=x)",
    "col": "Color.RED",
    "lv": "Level.HIGH",
    "pm": "Perm.R | Perm.W",
    "md": "Mode.FAST",
    "sq": "Square()",
    "rk": "Rank(2)",
    "ns_": "types.SimpleNamespace(a=1, b=x)",
    "part": "functools.partial(varied, 1, d=x)",
    "wp": "functools.update_wrapper(functools.partial(varied, 1, d=x), varied)",
    "mn": "noted(MyTuple(1, x), x)",
    "bm": "Box(5).get",
    "mod": "filled(torch.nn.Linear(3, 2))",
    "rng": "random.Random(5)",
    "pat": "re.compile('(a+)(b)?')",
    "size": "torch.Size([2, 3])",
    "mx": "torch.max(m, dim=1)",
    "err": "ValueError('bad', 3)",
    "tm": "string.Template('$a and ${b}')",
    "fm": "types.MappingProxyType({'a': x})",
    "dk": "{KEY: x, Color.RED: 1, Box: 2, (1, 'a'): 3, add: 4}",
    "so": "{KEY, Color.RED, Box}",
    "lo": "[KEY, Box(2), [Box(3), {'k': Box(4)}]]",
    "cyc": "cyclic(x)",
    "gen": "numbers_up_to(3)",
    "it": "iter([1, x, 3])",
    "ze": "zip([1, 2, 3], [4, 5, 6])",
    "wr": "weakref.ref(KEY)",
    "px": "weakref.proxy(KEY)",
    "wkd": "weakref.WeakKeyDictionary({KEY: x})",
    "ddf": "collections.defaultdict(lambda: [1], a=x)",
    "cl": "closure(x, 3)",
    "fa": "with_attributes(4)",
    "bc": "Box.of",
    "sb": "super(Sub, Sub(3)).get",
    "caller": "Calls(2)",
    "np_": "numpy.float64(1.5)",
    "deep": "{'a': [1, {'b': (x, [2])}], 'c': Plain(Plain([3]))}",
    "stack": "contextlib.ExitStack()",
    "ba2": "[bytearray(b'ab')]",
}

# Other values of the same classes, for a second call.
OTHERS = {
    **VALUES,
    "n": "2",
    "h": "-1.25",
    "z": "2 - 1j",
    "s": "'xa b'",
    "b": "b'cba'",
    "ns": "[3, 1, 2, 5]",
    "fs": "[1.5, 0.5]",
    "ss": "['q', 'b']",
    "xs": "[1, x + 1, 'k', 3]",
    "ts": "[x, x - 1]",
    "t": "(2, x, 'k')",
    "tn": "(3, 2, 1)",
    "d": "{'a': 2, 'b': x}",
    "dn": "{'b': 1, 'a': 2}",
    "st": "{1, 2, 4}",
    "fz": "frozenset({1})",
    "r": "range(1, 9, 2)",
    "sl": "slice(0, 2)",
    "ds": "torch.float64",
    "o": "Box(4, 'r')",
    "p": "Sub(2, x)",
    "plain": "Plain(x * 2)",
    "slot": "Slotted([1])",
    "wm": "WithMeta(3)",
    "dq": "collections.deque([x, 2])",
    "dm": "collections.deque([4, 2], maxlen=2)",
    "od": "collections.OrderedDict([('c', 3), ('b', x), ('a', 1)])",
    "dd": "collections.defaultdict(set, a=[x, x])",
    "cn": "collections.Counter('abbc')",
    "cm": "collections.ChainMap({'b': x}, {'a': 1, 'b': 2})",
    "ud": "MyUserDict(a=2)",
    "miss": "Default(a=2, b=3)",
    "ml": "MyList([1, 2, 4])",
    "mt": "MyTuple(2, x)",
    "mi": "MyInt(5)",
    "ms": "MyStr('ho')",
    "nt": "Pair(2, x)",
    "ty": "Typ(x, 4)",
    "pt": "Point(x, 3)",
    "fr": "Frozen(2)",
    "sp": "SlotPoint(x, 4)",
    "col": "Color.GREEN",
    "lv": "Level.LOW",
    "pm": "Perm.R | Perm.X",
    "md": "Mode.SLOW",
    "rk": "Rank(3)",
    "ns_": "types.SimpleNamespace(a=2, b=x)",
    "part": "functools.partial(varied, 2, d=x, e=1)",
    "mn": "noted(MyTuple(1, x), 3)",
    "bm": "Box(6).get",
    "pat": "re.compile('(b)(c)?')",
    "size": "torch.Size([3, 2])",
    "err": "ValueError('worse')",
    "tm": "string.Template('${a}$b')",
    "fm": "types.MappingProxyType({'a': x, 'c': 1})",
    "dk": "{KEY: x + 1, Color.GREEN: 1, Box: 5, (1, 'b'): 3}",
    "so": "{Color.RED, Box, 3}",
    "lo": "[Box(2), KEY, [Box(5), {'k': Box(4)}]]",
    "gen": "numbers_up_to(2)",
    "it": "iter([2, x])",
    "ze": "zip([1, 2], [4, 5])",
    "wkd": "weakref.WeakKeyDictionary()",
    "ddf": "collections.defaultdict(lambda: [2], b=x)",
    "cl": "closure(x, 4)",
    "fa": "with_attributes(5)",
    "sb": "super(Sub, Sub(4)).get",
    "caller": "Calls(3)",
    "np_": "numpy.float64(-1.5)",
    "deep": "{'a': [1, {'b': (x, [2, 4])}], 'c': Plain(Plain([5]))}",
}

PROGRAMS = {}

PROGRAMS["builtins: numbers"] = """
abs  abs(-n), abs(-h), abs(z), abs(x), abs(o).v, abs(True)
divmod  divmod(n, 2), divmod(-h, 2), divmod(o, 2), divmod(7, o), divmod(x, 2)
pow  pow(n, 2), pow(n, -1), pow(n, 2, 5), pow(x, 2), pow(2, x), pow(o, 3), pow(o, 3, 4)
round  round(h), round(h, 0), round(n, -1), round(-0.5), round(o), round(o, 2), round(2.675, 2)
int  int(h), int('12'), int('ff', 16), int(o), int(), int(True), int.from_bytes(b, 'big')
int, wrong text  int('x1')
float  float(n), float('1.5'), float(o), float('nan') != float('nan'), float('-inf'), float()
complex  complex(1, 2), complex('1+2j'), complex(o), complex(h), complex()
bool  bool(n), bool(''), bool(ns), bool(o), bool(None), bool(), bool(plain), bool(dq), bool(p)
bin, oct, hex  bin(n), oct(n), hex(255), bin(o), hex(-n)
chr, ord  chr(97), ord('a'), ord(b'a')
hash  hash(n) == hash(3), hash(s) == hash('ab c'), hash(o), hash((1, 2)) == hash(tn[1:]), hash(fz) == hash(fz)
hash, unhashable  hash(ns)
id  id(o) == id(o), id(ns) == id(xs), id(x) == id(x)
sum  sum(ns), sum(ns, 10), sum(ts), sum((v for v in ns)), sum([[1], [2]], []), sum(numbers_up_to(4)), sum([o, 1]).v
sum, tensors from a start  sum(ts, start=x), sum([x], 0.5)
sum, strings  sum(ss, '')
min  min(ns), min(3, n, 1), min(ss, key=lambda v: -ord(v)), min([], default=x), min(o, p).v, min(dn), min(fs)
max  max(ns), max(3, n, 7), max(ss, key=ord), max([], default=None), max(dn, key=dn.get), max(o, p).v, max(numbers_up_to(3))
min, empty  min([])
max, mixed  max([1, 'a'])
"""

PROGRAMS["builtins: iteration"] = """
len  len(ns), len(d), len(s), len(x), len(m), len(o), len(r), len(st), len(dq), len(nt), len(od), len(mod._parameters)
len, no length  len(n)
iter  list(iter(ns)), list(iter(d)), list(iter(o)), next(iter(x)), list(iter(Items(1, 2)))
iter with sentinel  c = Count(5); list(iter(c.__next__, 3))
iter with sentinel, lambda  k = [0]
  def step():
      k[0] += 1
      return k[0]
  list(iter(step, 4)), k
iter, not iterable  iter(n)
next  i = iter(ns); next(i), next(i), next(i), next(i, None), next(i, x)
next, exhausted  i = iter([]); next(i)
next, generator  g = numbers_up_to(2); next(g), next(g), next(g, 'end')
next, object  c = Count(1); next(c), next(c, 'end')
next, not an iterator  next(ns)
enumerate  list(enumerate(ns)), list(enumerate(ts, 2)), list(enumerate(o)), list(enumerate(d, start=1))
enumerate, by hand  e = enumerate(ns); next(e), list(e)
zip  list(zip(ns, ss)), list(zip(o, ts)), list(zip()), dict(zip(ss, ns)), [a * b for a, b in zip(ns, ts)]
zip strict  list(zip(ns, ts, strict=True))
zip strict, shorter  list(zip(ns, 'ab', strict=True))
zip strict, longer  list(zip('ab', ns, strict=True))
zip strict, of generators  list(zip(ns, (k for k in 'ab'), strict=True))
zip strict, of longer generators  list(zip('ab', (k for k in ns), strict=True))
zip, by hand  k = zip(ns, ts); next(k), list(k)
map  list(map(str, ns)), list(map(lambda v: v + 1, ts)), list(map(add, ns, [4, 5])), list(map(o.get, ns))
map, by hand  k = map(lambda v: v * 2, ns); next(k), list(k)
filter  list(filter(None, [0, 1, 2])), list(filter(lambda v: v > 1, ns)), list(filter(str.isalpha, s))
filter, by hand  k = filter(lambda v: v > 1, ns); next(k), list(k)
sorted  sorted(ns), sorted(ss, reverse=True), sorted(ns, key=lambda v: -v), sorted(dn), sorted(o), sorted('cab'), sorted(st)
sorted, objects  [q.v for q in sorted([p, o])], sorted(dn.items(), key=lambda kv: -kv[1]), sorted(ns, key=functools.cmp_to_key(lambda a, b: b - a))
sorted, stable  sorted([(2, 'a'), (1, 'b'), (2, 'c')], key=operator.itemgetter(0), reverse=True)
reversed  list(reversed(ns)), list(reversed(tn)), list(reversed(dn)), list(reversed(o)), list(reversed(r)), ''.join(reversed(s)), list(reversed(od)), list(reversed(dq))
any  any(ns), any([]), any(v > 2 for v in ns), any([0, o]), any(map(bool, [0, 0]))
all  all(ns), all([]), all(v > 2 for v in ns), all([1, o])
range  list(range(n)), list(range(1, n)), list(range(5, 0, -2)), range(o), len(range(n)), range(3)[-1], 2 in range(n), range(4)[1:]
range, zero step  range(1, 2, 0)
slice  slice(n), slice(1, n), ns[slice(1, None)], sl.start, sl.stop, sl.step, sl.indices(4)
aiter  aiter(ns)
"""

PROGRAMS["builtins: objects"] = """
type of a value  type(n), type(s), type(ns), type(o), type(x), type(None), type(Box), type(WithMeta), type(numbers_up_to(1)), type(mod)
type of functions  type(add), type(o.get), type(len), type(ns.append), type(lambda: 1), type(torch.relu), type(part)
type with three arguments  T = type('T', (Plain,), {'k': 3, 'get': lambda self: self.v}); v = T(x); v.k, v.get(), T.__name__, T.__mro__[1] is Plain
isinstance  isinstance(n, int), isinstance(o, (int, Box)), isinstance(True, int), isinstance(x, torch.Tensor), isinstance(n, int | str), isinstance(p, Sub)
isinstance, abstract classes  isinstance(ns, collections.abc.Sequence), isinstance(d, collections.abc.Mapping), isinstance(o, collections.abc.Iterable), isinstance(n, numbers.Number), isinstance(add, collections.abc.Callable), isinstance(o, collections.abc.Hashable)
isinstance, own metaclass  isinstance(5, WithMeta), isinstance(wm, WithMeta), isinstance(n, WithMeta)
isinstance, modules  isinstance(mod, torch.nn.Module), isinstance(mod, (torch.nn.Conv2d, torch.nn.Linear)), isinstance(mod.weight, torch.nn.Parameter), isinstance(x, torch.nn.Parameter)
isinstance, wrong argument  isinstance(n, 3)
issubclass  issubclass(Sub, Box), issubclass(bool, int), issubclass(Box, (int, str)), issubclass(int, WithMeta), issubclass(dict, collections.abc.Mapping)
issubclass, wrong argument  issubclass(n, int)
callable  callable(add), callable(o), callable(n), callable(Box), callable(len), callable(mod), callable(plain), callable(bm)
getattr  getattr(o, 'v'), getattr(o, 'double'), getattr(o, 'nope', x), getattr(dyn, 'abc'), getattr(dyn, 'no', 1), getattr(o, 'get')(1), getattr(x, 'shape'), getattr(torch, 'relu')(x)
getattr, absent  getattr(plain, 'nope')
getattr, computed name  [getattr(o, k) for k in ('v', 'dou' + 'ble')]
hasattr  hasattr(o, 'v'), hasattr(o, 'nope'), hasattr(dyn, 'abc'), hasattr(dyn, 'no'), hasattr(x, 'shape'), hasattr(n, 'real'), hasattr(Box, 'of'), hasattr(mod, 'weight'), hasattr(mod, 'nope'), hasattr(ns, '__len__')
setattr  setattr(plain, 'w', x + 1); plain.w, plain
setattr, property  setattr(o, 'double', 8); o.v
setattr, own hook  setattr(watch, 'a', 1); del watch.q; watch.log, watch.zzz
setattr, slot  slot.w = x + 1; slot.v = 2; slot.v, slot.w, hasattr(slot, 'w')
setattr, no such slot  slot.other = 1
delattr  plain.w = 1; delattr(plain, 'w'); hasattr(plain, 'w'), vars(plain)
delattr, absent  del plain.nope
vars  vars(plain), sorted(vars(ns_)), vars(plain)['v']
vars, written through  vars(plain)['k'] = 5; plain.k
dir  dir(o), 'v' in dir(plain), 'get' in dir(Box)
super  p.get(1), super(Sub, p).get(1)
object  q = object(); q is q, q == object(), isinstance(q, object)
property  Box.double.fget(o), property(lambda self: self.v).fget(plain)
classmethod, staticmethod  Box.of(n).rest, o.of(n).v, Box.plus(1), o.plus(1, b=x), Sub.of(1).__class__.__name__
__class__  o.__class__ is Box, type(p).__bases__, p.__class__.__name__, Sub.__mro__[:2], Box.__qualname__, Box.__module__, n.__class__
__class__ assigned  plain.__class__ = Count; type(plain).__name__
__dict__  plain.__dict__, sorted(o.__dict__), 'get' in Box.__dict__, plain.__dict__.get('v')
__doc__ of a number  np_.__doc__ == type(np_).__dict__['__doc__'], np_.__doc__ == type(np_).__doc__, n.__doc__ == int.__doc__
attributes of classes of numbers  [hasattr(v, k) for v in (np_, n) for k in ('__module__', '__name__', '__dict__', '__mro__', '__hash__', 'real', 'T', 'node')]
attribute of the class of a number, wrong  np_.__module__
type.__call__  type.__call__(Box, 1).v, type.__call__(Box, v=x).v, type.__call__(int, '3')
type.__call__, wrong  type.__call__(n, 1)
__doc__, __name__  decorated.__doc__, decorated.__name__, add.__name__, add.__code__.co_argcount, add.__defaults__, varied.__kwdefaults__, len.__name__, decorated.__wrapped__(1, 2)
class attribute  o.count, Box.count, p.count; Box.count + 1
class attribute written  Box.count += 1; a = o.count; Box.count -= 1; a, Box.count
bound methods  f = o.get; f(1), f.__self__ is o, f.__func__ is Box.get, bm(2), bm.__name__, o.get == o.get
exceptions  err.args, str(err), isinstance(err, ValueError), type(err).__name__, repr(err)
globals  globals()['n'] if 'n' in globals() else n
globals written  globals()['fresh'] = x + n; out = fresh; del globals()['fresh']; out, 'fresh' in globals(), globals() is globals()
locals  a = n; locals()['a'], sorted(k for k in locals() if k in ('a', 'm', 'q')), vars()['a'], 'a' in dir()
eval  eval('1 + 1'), eval('x * n'), eval('a + 1', {'a': x}), eval('[n + k for k in q]', {'n': n, 'q': ns}), eval('a', None, {'a': n})
eval, wrong  eval('1 +')
eval, undefined  eval('nothing_of_that_name')
exec  exec('q = 1')
exec into a dict  q = {'x': x, 'n': n}
  exec("def f(v):\\n    global calls\\n    calls += 1\\n    return v * n\\ncalls = 0\\nclass New:\\n    k = n\\ny = f(x)", q)
  q['y'], q['f'](2), q['calls'], q['New']().k, sorted(q)
exec among outside names  exec('fresh = 1', d)
compile  compile('1', 'f', 'eval').co_name
__import__  __import__('math').pi
input  input()
open  open('/nonexistent')
print  print(n)
memoryview  memoryview(b)[1]
ascii  ascii('\\xe9'), ascii(n), ascii(o)
repr  repr(n), repr(s), repr(ns), repr(o), repr(dn), repr((1,)), repr(col), repr(fr), repr(Pair(1, 2)), repr([p]), repr(h), repr(ds), repr(size)
str  str(n), str(o), str(h), str(ns), str(b'a', 'ascii'), str(), str(col), str(md), str(lv), str([o]), str(x.shape), str(ds), str(dev)
str, tensor  str(x)
format  format(n, '05d'), format(h, '.2f'), format(s, '>6'), format(o, 'q'), format(n), format(1234567, ','), format(lv, 'd')
f-string  f'{n:>{n}} {s!r:8} {h:.1f} {o} {o!r} {o:abc} {ns} {x.shape} {x.dim()} {ds} {col} {plain.v.shape}'
"""

PROGRAMS["int, float, complex"] = """
int methods  n.bit_length(), n.bit_count(), n.real, n.imag, n.numerator, n.denominator, n.conjugate(), n.to_bytes(2, 'big'), n.__index__(), n.__add__(1), n.__eq__(3)
int operators  n + 1, n - 1, n * 2, n / 2, n // 2, n % 2, n ** 2, n << 1, n >> 1, n & 1, n | 4, n ^ 1, -n, +n, ~n, n < 4, n == 3.0, n and 5, not n
int, division by zero  n // 0
int subclass  mi + 1, mi.twice(), type(mi).__name__, isinstance(mi, int), mi == 4, [5, 6, 7, 8, 9][mi], range(mi)
float methods  h.is_integer(), h.hex(), h.as_integer_ratio(), float.fromhex('0x1p3'), h.real, h.conjugate(), h.__mul__(2)
float operators  h + 1, h // 2, h % 2, -h % 3, h ** 2, h > 2, h == 2.5, 1e300 * 1e10, h - n
float, overflow  2.0 ** 5000
complex methods  z.real, z.imag, z.conjugate(), z * z, z + 1, abs(z), z == 1 + 2j, z ** 2
bool operators  True + True, True & False, not n, True ^ True, ~5
numbers with tensors  n * x, x * n, h - x, x / n, x ** 3, 3 ** x, x.detach() // n, x % n, n - x, -x, x == n, x > h, n < x
"""

PROGRAMS["str"] = """
case  s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), s.casefold()
search  s.find('b'), s.rfind('z'), s.index('b'), s.rindex('b'), s.count('a'), 'b' in s, s.startswith('ab'), s.endswith(('c', 'd'))
search, absent  s.index('zz')
split  s.split(), s.rsplit(' ', 1), s.partition(' '), s.rpartition('b'), 'a\\nb'.splitlines(), s.split('b')
join  '-'.join(ss), ''.join(str(k) for k in ns), ','.join(map(str, ns)), ' '.join(sorted(dn)), s.join(['1', '2'])
join, not strings  ''.join(ns)
trim  '  a '.strip(), s.lstrip('a'), s.rstrip('c'), s.removeprefix('ab'), s.removesuffix('c')
pad  s.center(9, '*'), s.ljust(7), s.rjust(7, '.'), '7'.zfill(3), 'a\\tb'.expandtabs(4)
replace  s.replace('a', 'x'), s.translate(str.maketrans('ab', 'xy')), s.translate({97: None}), str.maketrans({'a': 'b'})
test  s.isalpha(), '12'.isdigit(), 'a1'.isalnum(), s.isspace(), s.islower(), s.isupper(), s.istitle(), 'a'.isidentifier(), '1'.isdecimal(), '1'.isnumeric(), s.isascii(), s.isprintable()
format  '{} {:>4} {a!r}'.format(n, h, a=s), '{0[1]} {1.v}'.format(ns, o), '{a}'.format_map(dn), '{}'.format(x.shape)
format, absent  '{a}'.format()
percent  '%d %s %r %5.2f %x %%' % (n, s, s, h, 255), '%(a)s' % dn, '%s' % o, '%s' % x.dim(), '%s' % ds
encode  s.encode(), s.encode('ascii', 'replace'), 'é'.encode('utf-8')
index, slice  s[0], s[-1], s[::2], s[1:], s * 2, s + 'q', s[n - 3]
iterate, compare  list(s), s < 'b', s == 'ab c', [c.upper() for c in s], max(s), len(s), sorted(s)
subclass  ms.shout(), ms + '!', len(ms), type(ms).__name__, ms.upper(), f'{ms}', ms == 'yo'
"""

PROGRAMS["bytes"] = """
methods  b.decode(), b.hex(), b[0], b[1:], b.find(b'b'), b.upper(), b + b'd', list(b), b.split(b'b'), bytes.fromhex('00ff'), b.startswith(b'a'), b.replace(b'a', b'z')
construct  bytes(3), bytes([1, 2]), bytes('a', 'utf-8'), bytes(o), bytes(range(3)), bytes(numbers_up_to(3))
bytearray  ba.append(100); ba[0] = 65; bytes(ba), len(ba), ba.decode()
"""

PROGRAMS["list"] = """
append, extend, +=  ns.append(x); ns.extend([1, 2]); ns += (3,); ns
extend with program iterators  ns.extend(numbers_up_to(2)); ns.extend(o); ns.extend(v * 2 for v in tn); ns
insert, pop, remove  ns.insert(1, 9); a = ns.pop(); c = ns.pop(0); ns.remove(9); a, c, ns
pop, empty  [].pop()
remove, absent  ns.remove(77)
remove, objects  q = [Box(1), Box(2)]; q.remove(Box(2)); len(q), q.index(Box(1)), q.count(Box(1)), Box(2) in q
remove, outside objects  q = [o, p]; q.remove(p); len(q), q.index(o), o in q, p in q, q.count(p)
index, count  ns.index(1), ns.count(3), ns.index(2, 1), xs.count('k'), xs.index('k')
index, absent  ns.index(77)
sort  ns.sort(); ss.sort(reverse=True); ns, ss
sort with a key  ns.sort(key=lambda v: -v); ss.sort(key=ord, reverse=True); ns, ss
sort, objects  q = [p, o]; q.sort(); q[0] is o
reverse, copy, clear  q = ns.copy(); q.reverse(); xs.clear(); q, xs, q == ns, q is ns
get item  ns[0], ns[-1], ns[1:], ns[::-1], ns[sl], xs[1], ns[True], ns[mi - 4], ts[n - 1]
get item, out of range  ns[9]
get item, wrong type  ns['a']
set item  ns[0] = x; ns[1:] = [7, 8, 9]; ns[::2] = ['p', 'q']; ns
set item, out of range  ns[9] = 1
delete item  del ns[0]; del ts[:1]; ns, len(ts)
operators  ns + [1], ns * 2, 2 * ns, ns == [3, 1, 2], ns < [4], ns != tn, 1 in ns, [1, [2]] == [1, [2]]
in place repeat  ns *= 2; ns
unpack  a, *c = ns; (d1, (e1, f1)) = 1, (x, 3); [*ns, *tn], a, c, d1, e1, f1
unpack, wrong count  a, c = ns
unpack, object  a, c, e = o; a, c, e
construct  list(), list(s), list(r), list(o), list(numbers_up_to(3)), list(d), list(d.values()), list(x), list(dq), list(Items(1, 2)), list(map(str, ns))
comprehension  [v * 2 for v in ns if v > 1], [(a, c) for a in ns for c in ss], [t + 1 for t in ts], [[a for a in range(k)] for k in ns]
iterate while growing  out = []
  for v in ns:
      out.append(v)
      if len(ns) < 5: ns.append(v + 1)
  out, ns
iterate, outside list in a loop  total = 0
  for v in ns:
      total += v
  total
subclass  ml.append(3); ml.total(), len(ml), ml[0], type(ml + [1]), ml, isinstance(ml, list), [v for v in ml], ml == [1, 2, 3]
identity  q = [ns, ns]; q[0].append(4); q[0] is q[1], q, ns
nested  q = [[1], {'a': ns}]; q[0].append(x); q[1]['a'].append(2); q
contains itself  q = [1]; q.append(q); len(q), q[1] is q
list of tensors  torch.stack(ts), torch.cat(ts), sum(ts), len(ts), [v.shape for v in ts], ts[0] is x
tensor in a list  any(v is x for v in ts), ts.index(x)
"""

PROGRAMS["tuple"] = """
methods  tn.index(1), tn.count(3), tn + (1,), tn * 2, tn[1:], tn[-1], len(tn), 1 in tn, tn < (4,), tn == (3, 1, 2), t[1]
construct  tuple(), tuple(ns), tuple(o), tuple(numbers_up_to(3)), tuple(s), tuple(d.items()), tuple(v + 1 for v in ts)
item assigned  tn[0] = 1
subclass  mt[1], len(mt), type(mt).__name__, isinstance(mt, tuple), list(mt)[0], MyTuple(1, 2) == (1, 2)
subclass with attributes  mn.note, mn[1] is mn.note, hasattr(mn, 'other'), hasattr(mt, 'note'), mn == (1, x)
subclass, attribute written  mt.note = x; mt.note is x
namedtuple  nt.u, nt.v, nt[1], nt._replace(u=5), nt._asdict(), nt._fields, Pair._make([1, 2]), Pair(1), len(nt), Pair._field_defaults
namedtuple, unpack  a, c = nt; a, c, nt == (1, nt.v) if False else nt[0], isinstance(nt, tuple), Pair(u=1, v=x), [*nt]
namedtuple, wrong argument  Pair(1, 2, 3)
namedtuple made inside  Q = collections.namedtuple('Q', ['a', 'b']); q = Q(1, x); q.a, q.b, q._replace(a=2), Q.__name__
typing.NamedTuple  ty.both(), ty.q, Typ(1, 2), ty._replace(q=x), Typ.__annotations__['q']
"""

PROGRAMS["dict"] = """
get item  d['a'], d['b'], d.get('a'), d.get('zz'), d.get('zz', x), 'a' in d, 'zz' not in d, len(d)
get item, absent  d['zz']
get item, unhashable  d[[1]]
set item  d['c'] = x + 1; d['a'] = 5; d
delete item  del d['a']; d
delete item, absent  del d['zz']
pop, popitem  a = d.pop('a'); c = d.pop('zz', x); e = d.popitem(); a, c, e, d
pop, absent  d.pop('zz')
setdefault  d.setdefault('a', 7), d.setdefault('q', []).append(x), d
update  d.update(dn); d.update(z=x); d.update([('k', 1)]); d.update(o.__dict__); d
update with program iterators  d.update((str(k), k) for k in range(2)); d.update(zip(ss, ts)); d
|, |=  q = d | dn; d |= {'z': 1}; q, d, {**d, **dn}
keys, values, items  list(d.keys()), list(d.values()), list(d.items()), [k for k in d], 'a' in d.keys(), 1 in dn.values(), ('a', 1) in dn.items(), len(d.items())
key views as sets  d.keys() & {'a'}, d.keys() | {'q'}, d.keys() - {'a'}, d.keys() == {'a', 'b'}, dn.items() & {('a', 1)}
copy, clear  q = d.copy(); d.clear(); q, d, q is d
fromkeys  dict.fromkeys(ss), dict.fromkeys(s, x), dict.fromkeys(numbers_up_to(2), 0)
compare  dn == {'b': 2, 'a': 1}, dn != {}, d == d
construct  dict(), dict(a=1), dict(dn, c=3), dict([('a', x)]), dict(zip(ss, ns)), dict((k, v) for k, v in dn.items()), dict(od)
comprehension  {k: v * 2 for k, v in d.items()}, {v: k for k, v in dn.items()}, {k for k in d}
order kept  d['0'] = 1; d.pop('a'); d['a'] = 2; list(d), list(reversed(d))
iterate, changing values  for k in d: d[k] = d[k] + 1
  d
iterate, changing size  for k in dn: dn[k + 'x'] = 1
object keys  q = {o: 1, col: 2, Box: 3, (1, 'a'): 4, None: 5, add: 6}; q[o], q[col], q[Box], q[(1, 'a')], q[None], q[add], Box(5) in q
tensor keys  q = {x: 1}; q[x], x in q, len(q)
module keys  q = {mod: 1}; q[mod], mod in q
subclass with __missing__  miss['a'], miss['b'], miss, 'zz' in miss, miss.get('q'), type(miss).__name__
match  match d:
      case {'a': int(k), **rest}: out = (k, rest)
      case _: out = None
  out
keyword expansion  varied(1, 2, **{'q': x}), varied(*tn, **dn)
nested  q = {'a': {'b': [x]}}; q['a']['b'].append(1); q['a'].setdefault('c', {})['d'] = 2; q
mappingproxy  fm['a'], len(fm), list(fm), fm.get('zz'), 'a' in fm
"""

PROGRAMS["set, frozenset"] = """
add, discard, remove  st.add(5); st.discard(1); st.remove(2); st
remove, absent  st.remove(77)
update  st.update([7], (8,)); st |= {9}; st &= {1, 7, 9}; st ^= {1, 4}; st -= {4}; st
update with program iterators  st.update(numbers_up_to(6)); st.difference_update(v for v in ns); st.intersection_update(o); st
pop, clear  q = {1}; a = q.pop(); st.clear(); a, q, st
operators  st & fz, st | fz, st - fz, st ^ fz, st <= {1, 2, 3, 4}, st < st, st >= fz, st == {3, 2, 1}, st.isdisjoint(fz)
methods  st.union([9], o), st.intersection(ns), st.difference(numbers_up_to(3)), st.symmetric_difference([1]), st.issubset(range(9)), st.issuperset([1]), st.copy() is st
construct  set(), set(ns), set(s) == {'a', 'b', ' ', 'c'}, set(o), frozenset(ns), set(numbers_up_to(3)), frozenset(), {*ns, 4}, set(d)
comprehension  {v % 2 for v in ns}, {k for k in d}
membership  1 in st, 9 in st, 'a' in {'a', 'b'}, 2 in fz, [v in st for v in ns]
objects  q = {o, p, Box(5)}; len(q), o in q, Box(6) in q
outside objects  q = {o}; q.add(p); o in q, p in q, plain in q
modules  q = {mod}; mod in q, plain in q
unhashable  {ns}
frozenset methods  fz | {1}, fz & st, fz.union(ns), len(fz), fz == {2, 3}, sorted(fz), fz.copy() is fz
sorted over sets  sorted(st), sorted(st | {0}), max(st), min(st), sum(st), list(enumerate(sorted(st)))
"""

PROGRAMS["user-defined dunders"] = """
arithmetic  (o + 1).v, (1 + o).v, (o + p).v, (-o).v, (~o).v, abs(o).v, o @ 2
in place  o += 1; o.v
reflected, not implemented  o - 1
reflected, subclass first  (o + p).v
comparison  o == Box(5), o != p, o < p, o > p, o == 3
comparison, not defined  o <= p
truth  (1 if o else 2), not o, o and 3, bool(Box(-1))
length, items  len(o), o[1], o[1:2], o['a', x], o[...]
items written  o[1] = x; del o[2]; o.rest
membership  5 in o, 6 in o, 3 in Count(4), 2 in Items(1, 2)
iteration  [v for v in o], list(Count(3)), [v for v in Items(4, 5)], sum(o), max(o), dict(enumerate(o)), (lambda *a: a)(*o)
call  o(1, k=x), p(), o.__call__(2)
context  q = []
  with o as w: q.append(w.v)
  with o: raise KeyError('k')
  q, o.v
conversion  int(o), float(o), complex(o), [5, 6, 7, 8, 9, 10][o], round(o), math.floor(o), math.trunc(o), bytes(o), operator.index(o)
text  str(o), repr(o), f'{o}', f'{o!r:>9}', format(o, 'w'), '%s %r' % (o, o), '{} {!r}'.format(o, o), str([o]), repr({'a': o})
hash and equality  hash(o), {Box(1): 2}[Box(1)], Box(1) in [Box(1)], Box(1) in {Box(1)}, (Box(1),) == (Box(1),), [Box(1)].index(Box(1))
__getattr__  dyn.abc, dyn.real, hasattr(dyn, 'nope'), getattr(dyn, 'no', 3)
__getattr__, raising  dyn.nope
__getattribute__  watch.anything, watch.log
__setattr__  watch.a = 1; watch.b = x; watch.log
__delattr__  del watch.a; watch.log
__slots__  slot.v, hasattr(slot, 'w'), [k for k in slot.__slots__]
descriptor  desc.t = 4; desc.t, desc._t, Described.t.name, desc.lazy
descriptor deleted  desc.t = 4; del desc.t; desc.t
property  o.double, type(o).double.fget(o); o.double = 8; o.v
property without a setter  col.lower = 1
functools.cached_property  a = desc.cached; a is desc.cached, a, 'cached' in vars(desc)
metaclass call  q = WithMeta(3); q.meta, q.v
metaclass methods  len(WithMeta), list(WithMeta), 1 in WithMeta, WithMeta[2], WithMeta.label, WithMeta.shout()
__class_getitem__  Registered[3], list[int], dict[str, int], typing.Optional[int]
__init_subclass__  class New(Registered, tag=n): pass
  New.tag, New.__name__
__set_name__  class New:
      t = Typed()
  q = New(); q.t = 2; q.t, New.t.name
__instancecheck__  isinstance(5, WithMeta), issubclass(int, WithMeta), isinstance(q := wm, WithMeta)
__missing__  miss['q'], miss
__new__  class New:
      def __new__(cls, v): made = super().__new__(cls); made.w = v; return made
      def __init__(self, v): self.v = v
  q = New(x); q.v, q.w
__new__ of another class  class New:
      def __new__(cls, v): return v
  New(3), New(x)
__eq__ returning a tensor  class New:
      def __init__(self, v): self.v = v
      def __eq__(self, other): return self.v == other
  New(x) == 1.0
__torch_function__  class New:
      def __init__(self, v): self.v = v
      @classmethod
      def __torch_function__(cls, func, types, args=(), kwargs=None): return ('called', func.__name__, len(args))
  torch.add(New(x), 1), torch.relu(New(x))
__length_hint__  operator.length_hint(o), operator.length_hint(Count(2), 5)
__index__ of tensors' shapes  torch.zeros(Box(2)), x[Box(1)], torch.ones(3)[Box(0):Box(2)]
__reversed__  list(reversed(o))
__dir__  dir(o)
__del__  class New:
      def __del__(self): pass
  q = New(); del q; 1
__get__ on a class  class Seen:
      def __get__(self, owner, cls): return (owner is None, cls.__name__)
  class New:
      v = Seen()
  New.v, New().v, type(vars(New)['v']).__name__
in, without iteration  n in plain
closures in methods  class New:
      k = n
      def get(self): return self.k + n
  New().get(), New.k
inheritance  class New(Sub):
      def get(self, k=0): return super().get(k) * 2
  New(1).get(), isinstance(New(1), Box), New.__mro__[1].__name__
multiple inheritance  class A:
      def who(self): return ['A']
  class B(A):
      def who(self): return ['B', *super().who()]
  class C(A):
      def who(self): return ['C', *super().who()]
  class D(B, C): pass
  D().who(), [k.__name__ for k in D.__mro__]
"""

PROGRAMS["functools"] = """
partial  part(2), part.func is varied, part.args, part.keywords['d'].shape, functools.partial(add, b=1)(2), functools.partial(add, x)(1)
partial, nested  f = functools.partial(functools.partial(varied, 1, e=2), 3, d=4); f(), f(5, e=6), f.args
partial of methods  functools.partial(o.get, 2)(), functools.partial(Box.of, 3)().v, functools.partial(torch.sum, dim=0)(m), functools.partial(mod)(x)
partial in map  list(map(functools.partial(add, 1), ns)), sorted(ns, key=functools.partial(operator.mul, -1))
partial, attributes  wp.__name__, wp.__wrapped__ is varied, wp(2), hasattr(wp, 'note'), getattr(wp, 'note', 5), hasattr(part, '__name__')
partial, attributes of a new one  q = functools.partial(varied, x, d=3); q.note = [x]; q, q.note, functools.partial(add, b=1)
partial, attributes written  wp.note = x; wp.note is x
partial, its __dict__  sorted(vars(wp)), vars(part)
partial, state replaced  part.__setstate__((varied, (4,), {}, None)); part.args
partialmethod  desc.bound(2)
lru_cache  cached_sum(1), cached_sum(1, b=n), cached_sum(1), cached_const(n)
lru_cache over tensors  cached_sum(x, 1) + 0
cache of lists  cached_list(1) is cached_list(1), cached_list(n), cached_list(n)[0] * x
lru_cache made inside  calls = []
  @functools.lru_cache(maxsize=None)
  def f(v): calls.append(v); return v + 1
  f(1), f(1), f(n), calls
cache of recursion  @functools.cache
  def fib(k): return k if k < 2 else fib(k - 1) + fib(k - 2)
  fib(12)
cache_info  cached_const.cache_info().maxsize
cached_property  a = desc.cached; a.append(1); desc.cached
cached_property made inside  class New:
      calls = []
      @functools.cached_property
      def v(self): self.calls.append(1); return x + 1
  q = New(); q.v is q.v, New.calls
wraps  @functools.wraps(add)
  def f(*a): return add(*a)
  f(1, 2), f.__name__, f.__wrapped__ is add
wraps, outside  decorated(1), decorated(x, b=3)
update_wrapper  def f(*a): return add(*a)
  functools.update_wrapper(f, add); f.__name__, f(1, 2)
reduce  functools.reduce(add, ns), functools.reduce(lambda a, c: a * c, ts), functools.reduce(add, [], 5), functools.reduce(operator.mul, range(1, 5)), functools.reduce(add, numbers_up_to(4))
reduce, empty  functools.reduce(add, [])
singledispatch  kind_of(1), kind_of([1]), kind_of('a'), kind_of(True), kind_of(x)
singledispatch dispatch  kind_of.dispatch(int)(1)
singledispatchmethod  desc.kind(1), desc.kind('a')
singledispatch made inside  @functools.singledispatch
  def f(v): return 'any'
  @f.register
  def _(v: int): return 'int'
  f(1), f('a')
total_ordering  rk < Rank(3), rk <= Rank(2), rk > Rank(1), rk >= Rank(3), rk == Rank(2), rk != Rank(2)
cmp_to_key  sorted(ns, key=functools.cmp_to_key(lambda a, b: b - a)), max(ns, key=functools.cmp_to_key(lambda a, b: a - b))
"""

PROGRAMS["itertools"] = """
accumulate  list(itertools.accumulate(ns)), list(itertools.accumulate(ts, operator.mul)), list(itertools.accumulate(ns, lambda a, c: a - c, initial=10)), list(itertools.accumulate(numbers_up_to(4)))
batched by hand  i = iter(ns); [list(itertools.islice(i, 2)) for _ in range(2)]
chain  list(itertools.chain(ns, ts, 'ab')), list(itertools.chain(o, numbers_up_to(2))), list(itertools.chain.from_iterable([ns, tn]))
chain, lazy  i = itertools.chain.from_iterable(numbers_up_to(k) for k in ns); next(i), list(i)
combinations  list(itertools.combinations(ns, 2)), list(itertools.combinations_with_replacement('ab', 2)), list(itertools.combinations(o, 2))
compress  list(itertools.compress(ns, [1, 0, 1])), list(itertools.compress(numbers_up_to(3), o))
count  list(itertools.islice(itertools.count(), 3)), [k for k, _ in zip(itertools.count(n, 2), ns)], next(itertools.count(h))
cycle  list(itertools.islice(itertools.cycle(ns), 7)), [next(c) for c in [itertools.cycle(ts)] for _ in range(4)], list(itertools.islice(itertools.cycle(numbers_up_to(2)), 5))
dropwhile  list(itertools.dropwhile(lambda v: v > 1, ns)), list(itertools.dropwhile(lambda v: v < 2, numbers_up_to(4)))
takewhile  list(itertools.takewhile(lambda v: v > 1, ns)), list(itertools.takewhile(lambda v: v < 2, itertools.count()))
filterfalse  list(itertools.filterfalse(lambda v: v > 1, ns)), list(itertools.filterfalse(None, [0, 1, 2]))
groupby  [(k, list(g)) for k, g in itertools.groupby('aabc')], [(k, list(g)) for k, g in itertools.groupby(ns, key=lambda v: v > 1)]
islice  list(itertools.islice(ns, 2)), list(itertools.islice(ns, 1, None)), list(itertools.islice(numbers_up_to(9), 1, 6, 2)), list(itertools.islice(o, 2))
pairwise  list(itertools.pairwise(ns)), list(itertools.pairwise(numbers_up_to(3)))
permutations  list(itertools.permutations(tn, 2)), len(list(itertools.permutations(range(4)))), list(itertools.permutations(o, 1))
product  list(itertools.product(ns, 'ab')), list(itertools.product([0, 1], repeat=2)), list(itertools.product(o, numbers_up_to(2)))
repeat  list(itertools.repeat(x, 2)), list(zip(ns, itertools.repeat(1))), list(map(add, ns, itertools.repeat(n)))
starmap  list(itertools.starmap(add, [(1, 2), (3, x)])), list(itertools.starmap(pow, zip(ns, ns)))
tee  a, c = itertools.tee(ns); next(a), list(a), list(c)
tee of an iterator  a, c = itertools.tee(numbers_up_to(3)); next(a), list(c), list(a)
zip_longest  list(itertools.zip_longest(ns, 'ab')), list(itertools.zip_longest(o, [1], fillvalue=x))
order of evaluation  log = []
  def f(v): log.append(v); return v
  i = map(f, itertools.chain(ns, tn)); a = next(i); log.append('x'); c = next(i); a, c, log
infinite, with break  out = []
  for k in itertools.count(n):
      if k > 6: break
      out.append(k)
  out
"""

PROGRAMS["subclasses of str and int, other constants"] = """
str with attributes  lb.tag * 2, lb.upper(), lb + 'q', lb[1:], lb[0], len(lb), 'b' in lb, lb == 'ab c', lb.split(), list(lb)
str with attributes, text  str(lb), repr(lb), f'{lb}', f'{lb:>8}', f'{lb!r}', '%s' % lb, '{}'.format(lb), type(str(lb)) is str
str with attributes, kept  lb, lb.shout(), type(lb.shout()).__name__, lb.shout().tag is lb.tag, isinstance(lb, str), {'ab c': 1}.get(str(lb))
str with attributes, written  lb.tag = n; lb.tag
int with operators  c2 + 2, type(c2 + 2).__name__, bool(c2), 1 if c2 else 2, c2 * 2, x * c2, ns[Count2(1)], range(c2), c2 == 3, f'{c2:03d}'
Fraction  third + 1, float(third) * x, third.limit_denominator(2), math.floor(third), third > 0, str(third), round(third, 1), {third: 1}[third], third.numerator
UUID  ui.int * n, str(ui), ui == uuid.UUID(int=5), ui.hex[-1], uuid.uuid5(ui, 'a').version
UUID, random  uuid.uuid4()
"""

PROGRAMS["contextvars, warnings"] = """
get  VAR.get(), VAR.get(n), BARE.get(None), VAR.name
get, absent  BARE.get()
set and reset  a = VAR.set(n); c = BARE.set(x); out = VAR.get() * x, BARE.get(); VAR.reset(a); BARE.reset(c); out, VAR.get(), BARE.get('none')
set twice  a = VAR.set(n); c = VAR.set(x); q = VAR.get(); VAR.reset(c); w = VAR.get(); VAR.reset(a); q, w, VAR.get()
reset after an exception  a = VAR.set(5)
  try:
      VAR.get()[0]
  except TypeError:
      out = VAR.get()
  finally:
      VAR.reset(a)
  out, VAR.get()
copy_context  contextvars.copy_context().run(VAR.get)
recorded  with warnings.catch_warnings(record=True) as w:
      warnings.simplefilter('always')
      warnings.warn('one'); warnings.warn(f'two {n}', DeprecationWarning)
  [(str(q.message), q.category, q.lineno) for q in w]
ignored  with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      warnings.warn('not seen')
  x + 1
as an error  with warnings.catch_warnings():
      warnings.simplefilter('error')
      warnings.warn('now an error')
filters changed  warnings.simplefilter('ignore', BytesWarning)
"""

PROGRAMS["operator"] = """
arithmetic  operator.add(n, 1), operator.sub(x, 1), operator.mul(o.v, x), operator.truediv(n, 2), operator.floordiv(n, 2), operator.mod(n, 2), operator.pow(n, 2), operator.neg(n), operator.pos(n), operator.abs(-n), operator.inv(n), operator.matmul(o, 1)
bits  operator.and_(n, 1), operator.or_(n, 4), operator.xor(n, 1), operator.lshift(n, 1), operator.rshift(n, 1)
compare  operator.lt(n, 4), operator.le(n, 3), operator.eq(o, Box(5)), operator.ne(n, 3), operator.gt(n, 1), operator.ge(x, 0), operator.is_(o, o), operator.is_not(o, p), operator.not_(n), operator.truth(o)
with user dunders  operator.add(o, 1).v, operator.lt(p, o), operator.neg(o).v, operator.getitem(o, 1), operator.contains(o, 5), operator.truth(Box(0))
in place  operator.iadd(ns, [1]), ns, operator.iadd(n, 1), operator.imul(h, 2), operator.ior({1}, {2}), operator.iconcat([1], [2])
items  operator.getitem(d, 'a'), operator.setitem(ns, 0, 9), operator.delitem(d, 'b'), ns, d, operator.contains(ns, 1), operator.countOf(ns, 1), operator.indexOf(ns, 2), operator.concat(ns, [1])
attrgetter  operator.attrgetter('v')(o), operator.attrgetter('v', 'double')(o), operator.attrgetter('v.shape')(plain), [operator.attrgetter('v')(q) for q in (o, p)]
attrgetter as key  [q.v for q in sorted([p, o], key=operator.attrgetter('v'))]
itemgetter  operator.itemgetter(1)(ns), operator.itemgetter(0, 2)(ns), operator.itemgetter('a')(d), operator.itemgetter(slice(1, None))(ns), operator.itemgetter(1)(o), max(dn.items(), key=operator.itemgetter(1))
methodcaller  operator.methodcaller('get', 2)(o), operator.methodcaller('upper')(s), operator.methodcaller('sum')(x), list(map(operator.methodcaller('upper'), ss))
index, length_hint, call  operator.index(n), operator.index(o), operator.length_hint(ns)
made outside  get_v(o), get_0(ns), upper(s)
"""

PROGRAMS["collections"] = """
OrderedDict  od.move_to_end('a'); od['d'] = 4; a = od.popitem(last=False); od, a, list(od), od.popitem()
OrderedDict order matters  od == collections.OrderedDict(od), collections.OrderedDict(a=1, b=2) == collections.OrderedDict(b=2, a=1), list(reversed(od)), od.pop('c')
OrderedDict, move first  od.move_to_end('c', last=False); list(od), list(od.items())[0]
defaultdict  dd['z'].append(1); dd['a'].append(2); dd, dd.default_factory is list, 'q' in dd, dd.get('q')
defaultdict, program factories  q = collections.defaultdict(lambda: x + 1); q['a'] = q['a'] * 2; c = collections.defaultdict(int); c['k'] += 1; q, c['k'], len(c)
defaultdict, no factory  collections.defaultdict(None)['a']
deque  dq.append(4); dq.appendleft(0); a = dq.pop(); c = dq.popleft(); dq.rotate(1); a, c, dq, len(dq), dq[0]
deque, maxlen  dm.append(4); dm.extend([5]); dm.maxlen, dm, list(dm)
deque methods  dm.extendleft([7, 8]); dm.reverse(); dm.remove(7); dm.insert(1, 6); dm.index(6), dm.count(6), dm, dm.copy() == dm, 6 in dm, dm + collections.deque([1])
deque, made inside  q = collections.deque(numbers_up_to(5), 3); q.extend(o); q[0] = 9; del q[1]; q, list(reversed(q))
deque, cleared  dq.clear(); dq, bool(dq)
deque, empty  collections.deque().pop()
Counter  cn['a'], cn['zz'], cn.most_common(1), sorted(cn.elements()), cn.total(), cn + cn, cn - collections.Counter('a'), cn & cn, cn | cn
Counter updated  cn.update('ab'); cn.subtract(a=1); cn['q'] += 1; del cn['c']; cn, collections.Counter(ns), collections.Counter(a=2)
ChainMap  cm['a'], cm['b'], cm.get('q'), len(cm), list(cm), cm.maps[1], cm.new_child({'z': 1})['z'], cm.parents['a']
ChainMap written  cm['q'] = 1; cm.pop('a'); cm.maps
ChainMap made inside  q = collections.ChainMap({'a': x}, dn); q['c'] = 2; q['b'], dict(q), q.maps
UserDict  ud['a'], ud.data, 'a' in ud, len(ud), list(ud)
UserDict written  ud['b'] = x; ud.data, ud.get('b')[0]
UserList, UserString  q = collections.UserList([1, 2]); q.append(3); q.data, len(q), collections.UserString('ab').upper() == 'AB'
abc mixins  class New(collections.abc.Mapping):
      def __getitem__(self, k): return {'a': 1}[k]
      def __len__(self): return 1
      def __iter__(self): return iter(['a'])
  q = New(); q['a'], q.get('z', 2), list(q.items()), 'a' in q, 'b' in q, dict(q)
abc sequence mixins  class New(collections.abc.Sequence):
      def __getitem__(self, k): return ns[k]
      def __len__(self): return len(ns)
  q = New(); list(q), q.index(1), q.count(3), 2 in q, list(reversed(q))
abc mutable mapping  class New(collections.abc.MutableMapping):
      def __init__(self): self.q = {}
      def __getitem__(self, k): return self.q[k]
      def __setitem__(self, k, v): self.q[k] = v
      def __delitem__(self, k): del self.q[k]
      def __len__(self): return len(self.q)
      def __iter__(self): return iter(self.q)
  q = New(); q['a'] = x; q.update(b=1); q.setdefault('c', 2); q.pop('a'); q.q, q == {'b': 1, 'c': 2}
"""

PROGRAMS["contextlib"] = """
contextmanager  log = []
  with tagged(log, 'a') as k: log.append(k)
  log
contextmanager, raising inside  log = []
  with tagged(log, 'a'): raise IndexError
  log
contextmanager, not handled  log = ns
  with tagged(log, 'a'): raise KeyError('q')
contextmanager made inside  @contextlib.contextmanager
  def f(v):
      yield v + 1
  with f(x) as y: out = y * 2
  out
contextmanager as decorator  log = []
  @tagged(log, 'a')
  def f(v): return v + 1
  f(x), f(1), log
nullcontext  with contextlib.nullcontext(x) as y: out = y + 1
  with contextlib.nullcontext(): pass
  out
suppress  with contextlib.suppress(KeyError, IndexError): {}['a']
  with contextlib.suppress(KeyError): pass
  1
suppress, other  with contextlib.suppress(KeyError): [][0]
ExitStack  log = []
  with contextlib.ExitStack() as q:
      a = q.enter_context(tagged(log, 'a')); q.callback(log.append, 'cb'); q.enter_context(o)
      log.append(a)
  log, o.v
ExitStack, pop_all  log = []
  q = contextlib.ExitStack()
  with q:
      q.push(lambda *e: log.append('p')); k = q.pop_all()
  log.append('mid'); k.close(); log
ExitStack, suppressing  log = []
  with contextlib.ExitStack() as q:
      q.enter_context(contextlib.suppress(KeyError)); q.callback(log.append, 1); raise KeyError
  log
closing  class New:
      done = False
      def close(self): self.done = True
  q = New()
  with contextlib.closing(q) as w: a = w.done
  a, q.done
redirect_stdout  with contextlib.redirect_stdout(None): pass
ContextDecorator  class New(contextlib.ContextDecorator):
      def __enter__(self): return self
      def __exit__(self, *e): return False
  @New()
  def f(v): return v * 2
  f(x)
AbstractContextManager  class New(contextlib.AbstractContextManager):
      def __exit__(self, *e): return True
  with New() as q: raise KeyError
  type(q).__name__
grad modes  with torch.no_grad(): a = x * 2
  with torch.enable_grad(): c = x * 3
  with torch.set_grad_enabled(False): e = torch.is_grad_enabled()
  a, c, e, torch.is_grad_enabled()
"""

PROGRAMS["copy"] = """
copy of containers  copy.copy(ns), copy.copy(d), copy.copy(st), copy.copy(dq), copy.copy(tn) is tn, copy.copy(od), copy.copy(dd), copy.copy(ns) is ns
deepcopy of containers  a = copy.deepcopy([ns, {'k': ns}]); a[0].append(4); a, ns, a[0] is a[1]['k'], copy.deepcopy(dn), copy.deepcopy(st), copy.deepcopy(tn)
deepcopy of tensors  copy.deepcopy(x.detach()), copy.deepcopy([x.detach()])
copy of objects  a = copy.copy(plain); a.v = 2; plain.v, a.v, type(a) is Plain
deepcopy of objects  a = copy.deepcopy(Plain([1])); a.v.append(2); a, copy.deepcopy(o.rest[:0])
deepcopy of an object with a tensor  plain.v = plain.v.detach() + 1; copy.deepcopy(plain).v
copy of slots  copy.copy(slot).v
__copy__, __deepcopy__  class New:
      def __copy__(self): return 'c'
      def __deepcopy__(self, memo): return 'd'
  copy.copy(New()), copy.deepcopy(New()), copy.deepcopy([New()])
copy of dataclasses  a = copy.copy(pt); a.c.append(9); pt.c, a.b, copy.copy(fr) == fr, copy.deepcopy(fr) == fr
copy of dict subclasses  copy.copy(miss), type(copy.copy(miss)).__name__, copy.copy(cn), copy.copy(ml)
deepcopy by __reduce__  q = copy.deepcopy([red, red]); q[0] is q[1], q[0] is red, q[0].v[0] + 1, copy.copy(red).v is red.v
deepcopy of a module  copy.deepcopy(mod)(x)
deepcopy keeps identity  q = [1]; a = copy.deepcopy([q, q]); a[0] is a[1], a[0] is q
copy of namedtuples  copy.copy(nt).u, copy.deepcopy(Pair(1, [2]))
copy.replace by hand  dataclasses.replace(pt, a=5).a
"""

PROGRAMS["math, cmath"] = """
functions  math.sqrt(n), math.exp(h), math.log(n), math.log2(8), math.log10(n), math.log1p(h), math.expm1(h), math.sin(h), math.cos(h), math.tan(h), math.atan2(n, h), math.hypot(3, 4), math.cbrt(27.0), math.erf(h), math.gamma(n), math.degrees(h), math.radians(n), math.tanh(h), math.asinh(h)
integers  math.floor(h), math.ceil(h), math.trunc(-h), math.gcd(12, 18), math.lcm(4, 6), math.factorial(n), math.comb(5, 2), math.perm(5, 2), math.isqrt(17)
sums  math.prod(ns), math.prod(x.shape), math.fsum(fs), math.prod(numbers_up_to(3)), math.prod(m.shape, start=2), math.dist([0, 0], [3, 4]), math.prod(o)
tests  math.isnan(h), math.isinf(math.inf), math.isfinite(h), math.isclose(h, 2.5), math.copysign(1, -h), math.fabs(-n), math.fmod(n, 2), math.modf(h), math.frexp(h), math.ldexp(h, 2), math.nextafter(h, 3), math.ulp(1.0), math.remainder(n, 2)
constants  math.pi, math.e, math.tau, math.inf, math.nan != math.nan
of user objects  math.floor(o), math.ceil(o), math.trunc(o), math.sqrt(o)
of sizes  math.sqrt(x.shape[0]), math.ceil(m.shape[1] / 2), math.log(m.numel()), 1 / math.sqrt(m.size(-1))
domain error  math.sqrt(-1)
of a tensor  math.sqrt(x.sum().round() * x.sum().abs().round())
cmath  cmath.sqrt(-1), cmath.phase(z), cmath.polar(z), cmath.exp(z), cmath.isclose(z, z), cmath.rect(1, h)
"""

PROGRAMS["re, string, textwrap, json"] = """
re functions  re.match('a', s).group(), re.search('c', s).start(), re.findall('[a-c]', s), re.sub('a', 'x', s), re.split(' ', s), re.fullmatch('b', s), re.escape('a.b'), re.subn('b', '', s)
re.compile  p = re.compile('(\\\\w)(\\\\w)'); p.match(s).groups(), p.pattern, pat.match('aab').group(1), pat.match('aab').span(), pat.search('zz'), [q.group() for q in pat.finditer('a ab')]
re.sub with a function  re.sub('[ab]', lambda q: q.group().upper(), s), pat.sub(lambda q: '<' + q.group(1) + '>', 'xaab')
match objects  q = pat.match('aab'); q[0], q.groupdict(), q.lastindex, q.end(), bool(q), q.string, q.expand('\\\\1')
string constants  string.ascii_lowercase[:3], string.digits, string.punctuation[0], string.capwords(s), string.whitespace[0]
string.Template  tm.substitute(a=1, b=n), tm.safe_substitute(a=1), string.Template('$q').substitute({'q': n})
string.Formatter  string.Formatter().format('{0} {a}', 1, a=2)
textwrap  textwrap.dedent('  a\\n  b'), textwrap.indent('a', '> '), textwrap.fill('aa bb cc', 5), textwrap.shorten('aa bb cc', 6, placeholder='')
json  json.dumps(dn), json.loads('[1, {"a": 2.5}]'), json.dumps(ns, indent=1), json.dumps({'b': None, 'a': [True]}, sort_keys=True)
json, not serialisable  json.dumps(d)
"""

PROGRAMS["inspect, types, typing, abc"] = """
inspect.signature  list(inspect.signature(varied).parameters), str(inspect.signature(add)), inspect.signature(varied).parameters['d'].default, len(inspect.signature(o.get).parameters), str(inspect.signature(Box))
inspect.signature, bind  q = inspect.signature(add).bind(1, b=x); q.arguments['a'], list(q.arguments), q.args[0], q.kwargs
inspect.getfullargspec  inspect.getfullargspec(varied).args, inspect.getfullargspec(varied).kwonlydefaults, inspect.getfullargspec(add).varargs
inspect predicates  inspect.isfunction(add), inspect.isclass(Box), inspect.ismethod(o.get), inspect.isgeneratorfunction(numbers_up_to), inspect.isbuiltin(len), inspect.ismodule(math), inspect.isroutine(add), inspect.isabstract(Shape), inspect.iscoroutinefunction(add)
inspect of members  inspect.getmro(Sub)[1] is Box, inspect.getdoc(decorated), inspect.unwrap(decorated).__name__, inspect.getattr_static(o, 'double') is Box.double
inspect.getmembers  [k for k, _ in inspect.getmembers(slot) if k in ('v', 'w')]
signature, bound  q = inspect.signature(varied).bind(1, x, e=n); q.apply_defaults(); q.arguments['d'], q.args[1], q.kwargs['e']
inspect.getsource  inspect.getsource(add)
inspect.stack  len(inspect.stack()) > 0
inspect.currentframe  inspect.currentframe().f_code.co_name
types.SimpleNamespace  ns_.a, ns_.b; ns_.c = 3; ns_, types.SimpleNamespace(q=x).q, vars(ns_)['c']
types.MethodType  types.MethodType(add, 1)(2), types.MethodType(Box.get, o)(1)
types.FunctionType  isinstance(add, types.FunctionType), isinstance(o.get, types.MethodType), isinstance(len, types.BuiltinFunctionType), isinstance(lambda: 1, types.LambdaType), isinstance(numbers_up_to(1), types.GeneratorType), type(None) is types.NoneType
types.new_class, resolve_bases  types.new_class('Q', (Plain,))(x).v
types.MappingProxyType  types.MappingProxyType(d)['b'], isinstance(vars(Box), types.MappingProxyType)
types.DynamicClassAttribute  col.name, Color.RED.name
typing functions  typing.cast(int, s), typing.get_type_hints(Typ)['q'], typing.get_origin(list[int]), typing.get_args(dict[str, int]), typing.TYPE_CHECKING, typing.Optional[int] == (int | None)
typing.overload, final, no_type_check  typing.no_type_check(add)(1, 2), typing.final(Plain) is Plain
annotated locals  k: int = n; q: typing.List[int] = [k]; q
annotated functions  def f(a: int, b: 'str' = 's') -> typing.Any: return a
  f(1), f.__annotations__['a']
typing.Protocol  isinstance(o, Box), issubclass(Box, Box)
typing.TypeVar, Generic  T = typing.TypeVar('T')
  class New(typing.Generic[T]):
      def __init__(self, v): self.v = v
  New[int](x).v, New(1).v
typing.NewType  U = typing.NewType('U', int); U(3)
abc  sq.area(), isinstance(sq, Shape), issubclass(Square, Shape)
abc, abstract  Shape()
abc.register  class New(abc.ABC): pass
  New.register(Plain); isinstance(plain, New)
numbers  isinstance(n, numbers.Integral), isinstance(h, numbers.Real), isinstance(z, numbers.Complex), isinstance(n, numbers.Number)
"""

PROGRAMS["weakref"] = """
ref  r1 = weakref.ref(plain); r1() is plain, r1().v, weakref.ref(plain) == r1
ref to a tensor  weakref.ref(x)() is x
ref to a new object  q = Plain(x); r1 = weakref.ref(q); r1() is q, r1().v
ref dying  q = Plain(1); r1 = weakref.ref(q); del q; r1()
proxy  q = weakref.proxy(plain); q.v, q == plain, type(q) is Plain, isinstance(q, Plain), q.__class__ is Plain
proxy from outside  px.v, px.get(1), px == KEY, px is KEY, type(px) is Box, isinstance(px, Box), px + 1, bool(px), -px, px(x)
proxy from outside written  px.note = x; q = KEY.note; del px.note; q is x, hasattr(KEY, 'note'), hasattr(px, 'note')
proxy from outside, not hashable  {px: 1}
WeakKeyDictionary  q = weakref.WeakKeyDictionary(); q[plain] = x; q[plain], len(q), plain in q
WeakValueDictionary  q = weakref.WeakValueDictionary(); q['a'] = plain; q['a'] is plain
WeakSet  q = weakref.WeakSet(); q.add(plain); plain in q, len(q)
finalize  q = Plain(1); weakref.finalize(q, add, 1, 2).alive
WeakMethod  weakref.WeakMethod(o.get)()(1)
"""

PROGRAMS["enum"] = """
members  Color.RED, Color['GREEN'], Color(2), col.name, col.value, col is Color.RED, Color.CRIMSON is Color.RED, col.lower
iteration  list(Color), [k.name for k in Color], len(Color), Color.GREEN in Color, list(Color.__members__)
absent  Color(7)
absent by name  Color['BLUE']
compare, hash  col == Color.RED, col != Color.GREEN, {col: 1}[Color.RED], col in (Color.RED,), hash(col) == hash(Color.RED)
text  str(col), repr(col), f'{col}', f'{lv}', f'{md}', str(lv), '%s' % md
IntEnum  lv + 1, lv > Level.LOW, lv == 5, [0, 1, 2, 3, 4, 5][lv], int(lv), Level(1).name, max(Level), sorted(Level), lv * x
str mixin  md == 'fast', md.upper(), md.value, Mode('slow') is Mode.SLOW, {'fast': 1}[md]
Flag  pm & Perm.R, pm | Perm.X, pm ^ Perm.W, Perm.R in pm, bool(pm & Perm.X), ~pm, pm.value, pm.name
Flag members  [k.name for k in pm], len(pm), Perm(6) == pm
made inside  class New(enum.Enum):
      A = 1
      B = enum.auto()
  New.B.value, New(1).name, [k.name for k in New]
functional  New = enum.Enum('New', 'A B'); New.B.value, New['A'].name
as arguments and keys  varied(col, 1), dict(a=col)['a'], getattr(Color, 'RED').value, match_color(col), type(col) is Color, isinstance(lv, int)
"""

PROGRAMS["dataclasses"] = """
construct  Point(1), Point(x, b=3, c=[0]).c, pt.a, pt.b, pt.c, Point.__dataclass_fields__['b'].default
construct, wrong argument  Point()
fields  [k.name for k in dataclasses.fields(pt)], [k.name for k in dataclasses.fields(Point)], dataclasses.is_dataclass(pt), dataclasses.is_dataclass(Point), dataclasses.is_dataclass(n)
fields read by name  [getattr(pt, k.name) for k in dataclasses.fields(pt)], dataclasses.fields(pt)[1].default
replace  dataclasses.replace(pt, b=7).b, dataclasses.replace(fr, b=9), dataclasses.replace(sp, b=1).b
asdict, astuple  dataclasses.asdict(pt), dataclasses.astuple(pt), dataclasses.asdict(Point(Frozen(1), [Frozen(2)]))
compare  Frozen(1) == fr, fr < Frozen(2), Point(1) == Point(1), fr != Frozen(3), sorted([Frozen(2), fr]), hash(fr) == hash(Frozen(1)), {fr: 1}[Frozen(1)]
frozen  fr.a = 2
frozen, object.__setattr__  object.__setattr__(fr, 'a', 7); fr.a
default_factory  Point(1).c is Point(1).c, pt.c.append(x), pt.c
slots  sp.a, sp.b; sp.b = 5; sp, SlotPoint(x, 1).a
kw_only, InitVar, ClassVar  ky.a2, ky.k, Keyed.k, Keyed(a=1, v=x).a2
repr  repr(Point(1)), repr(fr), repr(Point(fr, [fr]))
made inside  @dataclasses.dataclass
  class New:
      a: int
      b: list = dataclasses.field(default_factory=list)
  q = New(n); q.b.append(x); q.a, q.b, New(1) == New(1)
made inside, fields  @dataclasses.dataclass(kw_only=True)
  class New:
      a: int
      b: list = dataclasses.field(default_factory=list)
  q = New(a=n); dataclasses.asdict(q), [f.name for f in dataclasses.fields(New)], dataclasses.replace(q, a=5).a
inheritance  @dataclasses.dataclass
  class New(Point):
      e: int = 5
  New(1).e, New(x, 2, [], 6).a
make_dataclass  New = dataclasses.make_dataclass('New', ['a', ('b', int, 3)]); New(x).a, New(1).b
"""

PROGRAMS["heapq, bisect, statistics, random"] = """
heapq  heapq.heapify(ns); heapq.heappush(ns, 0); a = heapq.heappop(ns); a, ns, heapq.nsmallest(2, ns), heapq.nlargest(2, [5, 1, 4]), list(heapq.merge([1, 3], [2])), heapq.heappushpop(ns, 9), heapq.heapreplace(ns, 7)
heapq with keys  heapq.nsmallest(1, ns, key=lambda v: -v), heapq.nlargest(1, [p, o], key=lambda q: q.v)[0].v
heapq of objects  q = [Box(3)]; heapq.heappush(q, Box(1)); heapq.heappush(q, Box(2)); [heapq.heappop(q).v for _ in range(3)]
bisect  bisect.bisect([1, 2, 4], n), bisect.bisect_left([1, 2, 4], 2), bisect.insort(ns, 2), ns, bisect.bisect_right(fs, 2.5)
bisect with keys  bisect.bisect([1, 2, 4], 5, key=lambda v: v * 2), bisect.bisect([Box(1), Box(4)], Box(2))
statistics  statistics.mean(ns), statistics.median(ns), statistics.stdev(fs), statistics.mode([1, 1, 2]), statistics.fmean(fs), statistics.pvariance(ns)
random functions  random.seed(n); random.random(), random.uniform(1, 2), random.gauss(0, 1), random.randrange(9)
random.seed, randint  random.seed(3); random.randint(0, 9)
random.Random  rng.random(), rng.randint(0, 9)
random.Random made inside  q = random.Random(7); q.random(), q.randint(0, 100), q.choice(ns), q.sample(range(10), 3), q.uniform(0, 1)
random.shuffle  random.Random(3).shuffle(ns); ns
"""

PROGRAMS["os, sys, time, io, logging, warnings"] = """
os.path  os.path.join('a', 'b'), os.path.basename('/a/b.c'), os.path.splitext('b.c'), os.path.dirname('/a/b'), os.path.normpath('a/../b'), os.path.isabs('/a')
os.path.exists  os.path.exists('/')
os.environ  os.environ.get('BOLIDE_NO_SUCH'), os.getenv('BOLIDE_NO_SUCH', 'q'), 'BOLIDE_NO_SUCH' in os.environ
os.environ, an item  os.environ['PATH'] != ''
os.getpid, os.getcwd  os.getpid() > 0, os.getcwd() != ''
os.cpu_count  os.cpu_count() > 0
os.listdir  os.listdir('/') != []
os.environ written  os.environ['BOLIDE_NO_SUCH'] = '1'
sys facts  sys.version_info >= (3, 9), sys.platform == 'linux', sys.maxsize > 0, sys.byteorder, sys.version_info[0], sys.float_info.max > 1, 'torch' in sys.modules
sys functions  sys.getrecursionlimit() > 0, sys.intern('a'), sys.getsizeof(n) > 0
sys.exc_info  try: [][0]
  except IndexError: out = sys.exc_info()[0]
  out
sys.exit  sys.exit(3)
sys._getframe  sys._getframe()
time.time  time.time()
time.perf_counter  time.perf_counter()
datetime constants  datetime.timedelta(days=1).total_seconds(), datetime.date(2020, 1, 2).isoformat(), datetime.datetime(2020, 1, 2, 3).hour
datetime.now  datetime.datetime.now()
io.StringIO  q = io.StringIO(); q.write('a'); q.getvalue()
io.StringIO, read  q = io.StringIO('one' + chr(10) + 'two'); q.readline(), list(q), q.tell(), q.seek(0), q.read(3)
io.StringIO returned  q = io.StringIO('one'); q
io.BytesIO  q = io.BytesIO(b'abc'); q.read(1), q.getvalue()
print to a file  q = io.StringIO(); print('a', n, x.shape, o, sep='-', end='!', file=q); q.getvalue()
redirect_stdout  q = io.StringIO()
  with contextlib.redirect_stdout(q):
      print('inside', n)
  q.getvalue(), x + 1
logging  logging.getLogger('bolide.test').debug('hidden %s', n)
warnings.warn  warnings.warn('quiet')
"""

PROGRAMS["tensors as Python values"] = """
facts  x.size(), x.dim(), x.ndim, x.numel(), x.nelement(), x.element_size(), x.is_contiguous(), x.is_floating_point(), x.is_complex(), x.get_device(), x.stride(), x.storage_offset(), m.size(0), m.stride(-1), x.itemsize, x.nbytes
no such attribute  x.nothing
more facts  x.dtype, x.device, x.device.type, x.device.index, x.layout, x.requires_grad, x.is_leaf, x.is_cuda, x.is_sparse, x.is_quantized, x.is_meta, x.is_signed(), x.is_nested, x.is_mkldnn, x.names, x.grad_fn, x.is_inference(), x.is_pinned()
shape  m.shape, m.shape[0], m.shape[-1], m.shape[:1], m.shape.numel(), tuple(m.shape), list(m.shape), m.shape == (2, 3), m.shape + (1,), len(m.shape), [*m.shape], m.shape.index(3), 3 in m.shape, m.shape.count(2)
shape unpacked  a, c = m.shape; a * c, m.view(c, a).shape, torch.zeros(m.shape), m.new_zeros(a, c), m.reshape(-1).shape, torch.Size([a, c]) == m.shape
torch.Size  size[0], size.numel(), len(size), torch.Size(ns), torch.zeros(size), size + size, size == m.shape, isinstance(size, tuple), repr(size), size * 2
iteration  [v + 1 for v in x], list(m)[0], len(m), [r for r in m], dict(enumerate(x)), list(zip(x, ns)), sum(x), [*m]
unpacking  a, c, e = x; (f, g) = m; first, *rest = m.unbind(1); a + c, f, first, len(rest)
reversed  list(reversed(x))
indexing  x[0], x[-1], x[1:], m[0, 1], m[:, 1], m[..., 0], m[None], m[:, None], m[0][1], m[::2], m[1:, ::2], m[(0, 1)], m[[0, 1]], m[:, [0, 2]], m[torch.tensor([1, 0])], m[sl.start - 1]
indexing with masks  torch.where(m > 0, m, 0), m.masked_fill(m > 0, 0)
index assignment  y = m.clone(); y[0] = 1; y[:, 1] = x[:2]; y[1, 2] += 3; y[torch.tensor([0])] = 5; y[..., 0] *= 2; y
mask assignment  y = m.clone(); y[y > 0] = 0; y
membership  1.0 in torch.zeros(2)
comparison with None, identity  x is None, x is x, x is not m, x is m[0], None is not x
structseq  mx.values, mx.indices, mx[0], len(mx), torch.max(m, dim=0).values, torch.sort(m).indices, torch.topk(x, 2)[0]
structseq unpacked  a, c = torch.max(m, dim=1); e, f = mx; a, c, e, f
structseq returned  torch.max(m, dim=1)
structseq returned, several  [torch.min(m, 0), torch.sort(m), torch.topk(x, 2), torch.linalg.qr(m).Q.shape]
dtype  ds.is_floating_point, ds.itemsize, ds == torch.float32, ds is torch.float32, x.to(ds).dtype, str(ds), ds.to_complex(), torch.int8.is_signed, {ds: 1}[torch.float32], torch.promote_types(ds, torch.int8)
device  dev.type, dev.index, dev == x.device, str(dev), torch.device('cpu', 0).index, x.to(dev).shape, torch.device('meta').type, x.device == torch.device('cpu'), dev == 'cpu', {dev: 1}[dev]
finfo, iinfo  torch.finfo(ds).max, torch.finfo(torch.float16).eps, torch.finfo(x.dtype).min, torch.iinfo(torch.int8).max, torch.finfo(ds).bits, torch.finfo(ds).tiny, torch.iinfo(torch.int64).min
tolist  x.tolist()
truth  1 if x.sum() > 0 else 2
format  f'{x}'
text of facts  f'{x.shape} {x.dtype} {x.device} {x.dim():03d} {m.shape[1]:>4}', str(x.shape), repr(x.dtype), '%s' % (x.shape,), '{}'.format(m.size())
methods by name  getattr(x, 'add')(1), x.__add__(1), torch.Tensor.add(x, 1), torch.Tensor.__mul__(x, 2), x.__len__(), x.__getitem__(0), type(x).add(x, 1)
attributes set  x.tag = 3; x.tag
type, isinstance  type(x) is torch.Tensor, isinstance(x, torch.Tensor), isinstance(mod.weight, torch.nn.Parameter), torch.is_tensor(x), torch.is_floating_point(x), x.type(), torch.is_tensor(n), isinstance(x, torch.FloatTensor)
hash, identity  {x: 1}[x], hash(x) == hash(x), x in [x], [x].index(x)
properties  m.T, m.mT, m.H, m.mH, x.real, x.data, torch.view_as_real(torch.complex(x, x)).shape, x.grad
global facts  torch.is_grad_enabled(), torch.get_default_dtype(), torch.cuda.is_available(), torch.__version__ > '1', torch.backends.mkldnn.is_available(), torch.get_num_threads() > 0, torch.is_inference_mode_enabled()
dtypes and factories  torch.tensor(ns), torch.tensor(h), torch.as_tensor(fs), torch.arange(n), torch.full((n,), h), torch.zeros_like(x), torch.tensor([[1, 2], [3, 4]]), torch.empty(0).shape, torch.eye(n), torch.linspace(0, 1, n)
tensor of tensors  torch.tensor([v.shape[0] for v in ts]), torch.stack([x, x]).shape
functions as values  fns = {'relu': torch.relu, 'sum': torch.sum}; fns['relu'](x), [f(x) for f in (torch.sin, torch.nn.functional.gelu)], (lambda f: f(x))(torch.Tensor.abs)
"""

PROGRAMS["objects from outside"] = """
dict keyed by objects  dk[KEY], dk[Color.RED], dk.get(Box), (1, 'a') in dk, len(dk), Box(77) in dk, dk.get(o, 0)
dict keyed by objects, iterated  [k is KEY for k in dk], list(dk.values())[0], [k for k, v in dk.items() if v is x]
dict keyed by objects, written  dk[o] = 5; dk[KEY] = 6; dk.pop(Box); dk[o], len(dk)
set of objects  KEY in so, Box in so, Color.GREEN in so, len(so), o in so
set of objects, changed  so.add(o); so.discard(KEY); o in so, KEY in so
list of objects  lo[0] is KEY, lo[1].v, lo[2][0].get(1), lo[2][1]['k'].v, [q.v for q in lo[:2]], Box(2) in lo, len(lo)
list of objects, changed  lo[1].v = 9; lo[2].append(x); lo[2][1]['z'] = lo[1]; lo[0].v
object in cycles  cyc.me is cyc, cyc.items[0] is cyc, cyc.items[1]['me'].v; cyc.me.w = 1; cyc.w
object in cycles, returned  cyc
deep structure  deep['a'][1]['b'][0] + 1, deep['c'].v.v[0], deep['a'][1]['b'][1]; deep['c'].v.v.append(x); deep['c'].w = deep['a']
identity of parts  q = deep['a'][1]; q is deep['a'][1], {'w': q, 'z': deep['a']}
generator  next(gen), list(gen)
generator in a loop  out = []
  for k in gen: out.append(k * x)
  out
iterator  next(it), list(it)
iterator, partly used  a = next(it); a
iterator over pairs  next(ze), [a + c for a, c in ze]
weak reference  wr() is KEY, wr().v
weak dictionary  KEY in wkd, len(wkd), wkd.get(KEY)
weak dictionary, written  wkd[o] = 1; wkd[o], len(wkd)
defaultdict with a function  ddf['a'] if 'a' in ddf else 0, ddf['zz'], ddf
closure with state  cl(), cl(2)
function with attributes  fa(1), fa.n; fa.log.append(2); fa.log
function attribute written  fa.n = 9; fa(1)
bound class method  bc(3).rest, bc.__self__ is Box
method of super  sb(1), sb()
callable object with state  caller(x), caller(2), caller.seen
numpy scalar  np_ + 1, float(np_), np_ * x, np_ > 0, int(np_)
class attributes written  Registered.found.append(n); Registered.found[-1], Registered.found.pop()
method replaced on an instance  o.get = lambda k=0: k * 100; o.get(2), o.get(), Box.get(o, 1)
method replaced on a class  Plain.extra = lambda self: self.v; a = plain.extra(); del Plain.extra; a, hasattr(Plain, 'extra')
attribute deleted and set  del plain.v; plain.v = 3; plain.v, hasattr(plain, 'v')
exit stack  stack.callback(ns.append, 9); stack.close(); ns
module state  mod.training, mod.eval().training, [k for k, _ in mod.named_parameters()], mod.weight.shape, mod.in_features
module attribute  mod.extra = 3; mod.extra, mod(x)
modules in containers  q = {'m': mod}; r1 = [mod, mod]; q['m'](x), r1[0] is r1[1], mod in r1
"""
