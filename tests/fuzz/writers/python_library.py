"""Classes and functions that random programs find outside (`python_programs`): what classes may define, and what the
standard library makes of it."""

from __future__ import annotations

PRELUDE = """
import abc, bisect, copy, dataclasses, enum, heapq, inspect, math, re, string, typing, weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list, compare=False)
    def __post_init__(self): self.total = self.x + self.y
    @property
    def norm(self): return abs(self.x) + abs(self.y)

@dataclasses.dataclass
class Solid(Point):
    z: int = dataclasses.field(default=3, kw_only=True)
    kind: dataclasses.InitVar[int] = 0
    def __post_init__(self, kind): super().__post_init__(); self.total += self.z + kind

@dataclasses.dataclass(order=True, frozen=True)
class Cell:
    row: int
    col: int = 0
    note: str = dataclasses.field(default="", compare=False)

class Pair(typing.NamedTuple):
    left: int
    right: int = 1
    def both(self): return self.left + self.right
    @property
    def gap(self): return self.left - self.right

Trio = collections.namedtuple("Trio", "p q r", defaults=(4, 5))

class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3
    CRIMSON = 1
    def after(self): return Color(self.value % 3 + 1)
    @property
    def short(self): return self.name[0]
    @classmethod
    def pick(cls, i): return list(cls)[i % len(cls)]
    @classmethod
    def _missing_(cls, value): return cls.BLUE if value == 9 else None

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5

class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()
    ALL = R | W | X

class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Registry(type):
    made = 0
    def __getitem__(cls, i): return (cls.__name__, i)
    def __len__(cls): return 3
    def __contains__(cls, v): return v == cls.code
    def __iter__(cls): return iter([cls.code, len(cls)])
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs); made.serial = len(args) + len(kwargs); return made
    @property
    def label(cls): return f"<{cls.__name__}>"
    def describe(cls, v=1): return cls.code + v
    def __add__(cls, v): return cls.code + v
    def __getattr__(cls, name):
        if name.startswith("dyn"): return (cls.__name__, name)
        raise AttributeError(f"no {name}")
    def __instancecheck__(cls, v): return type.__instancecheck__(cls, v) or v == cls.code

class Plugin(metaclass=Registry):
    code = 7
    def __init__(self, v=0): self.v = v

class Extended(Plugin):
    code = 8
    def __init__(self, v, w=1): super().__init__(v + w)

class Figure(abc.ABC):
    sides = 0
    @abc.abstractmethod
    def area(self): ...
    def scaled(self, k): return type(self)(self.a * k)
    @classmethod
    def __subclasshook__(cls, c): return NotImplemented

class Square(Figure):
    sides = 4
    def __init__(self, a): self.a = a
    def area(self): return self.a ** 2

class Base1:
    def __init__(self, **k): self.seen = getattr(self, "seen", []) + ["1"]; self.rest = k
    def who(self): return ["1"]
    @classmethod
    def make(cls, *a, **k): return cls(*a, **k)
class Left(Base1):
    def __init__(self, left=0, **k): super().__init__(**k); self.left = left; self.seen.append("L")
    def who(self): return ["L", *super().who()]
class Right(Base1):
    def __init__(self, right=0, **k): super().__init__(**k); self.right = right; self.seen.append("R")
    def who(self): return ["R", *super().who()]
    @classmethod
    def make(cls, *a, **k): return super().make(*a, right=9, **k)
class Both(Left, Right):
    def who(self): return ["B", *super(Both, self).who(), *super(Left, self).who()]

@functools.total_ordering
class Money:
    def __init__(self, v): self.v = v
    def __repr__(self): return f"Money({self.v})"
    def __eq__(self, o): return self.v == getattr(o, "v", o)
    def __lt__(self, o): return self.v < getattr(o, "v", o)
    def __hash__(self): return hash(self.v)
    def __index__(self): return self.v % 4
    def __int__(self): return self.v
    def __float__(self): return self.v / 2
    def __round__(self, n=0): return ("round", n)
    def __trunc__(self): return self.v // 2
    def __abs__(self): return Money(abs(self.v))
    def __neg__(self): return Money(-self.v)
    def __pos__(self): return self
    def __invert__(self): return Money(~self.v)
    def __mul__(self, o): return Money(self.v * o) if isinstance(o, int) else NotImplemented
    __rmul__ = __mul__
    def __sub__(self, o): return NotImplemented
    def __rsub__(self, o): return Money(o - self.v)
    def __matmul__(self, o): return ("at", o)
    def __rmatmul__(self, o): return ("rat", o)
    def __divmod__(self, o): return divmod(self.v, o)
    def __pow__(self, o, m=None): return (self.v, o, m)
    def __rpow__(self, o): return ("rpow", o)
    def __rshift__(self, o): return ("shift", o)
    def __ior__(self, o): self.v |= o; return self
    def __and__(self, o): return self.v & o
    def __rand__(self, o): return self.v & o
    def __reversed__(self): return iter([3, 2, self.v])
    def __length_hint__(self): return 2
    def __dir__(self): return ["v", "w"]
    def __class_getitem__(cls, k): return (cls.__name__, k)

class Grid:
    def __init__(self, log): self.log = log
    def __getitem__(self, key): self.log.append(("grid", str(key))); return len(str(key))
    def __setitem__(self, key, v): self.log.append(("grid=", str(key), v))
    def __delitem__(self, key): self.log.append(("grid-", str(key)))

class Counting:
    # an iterable without __iter__
    def __init__(self, n): self.n = n
    def __getitem__(self, i):
        if i >= self.n % 4: raise IndexError(i)
        return i * 3
    def __len__(self): return self.n % 4

class Proxy:
    def __init__(self, target): object.__setattr__(self, "_target", target)
    def __getattr__(self, name): return getattr(self._target, name)
    def __setattr__(self, name, v): setattr(self._target, name, v)
    def __delattr__(self, name): delattr(self._target, name)

class Watched:
    def __init__(self, log): self.__dict__["notes"] = log
    def __getattribute__(self, name):
        if name[0] != "_" and name != "notes": self.notes.append(("?", name))
        return super().__getattribute__(name)
    def __getattr__(self, name):
        if name == "none": raise AttributeError("none at all")
        return name * 2
    @property
    def failing(self): return self.none
    known = 4

class Typed:
    # a data descriptor with all three methods
    def __init__(self, kind, default=None): self.kind, self.default = kind, default
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, o, t=None):
        if o is None: return (t.__name__, self.name)
        return getattr(o, self.name, self.default)
    def __set__(self, o, v):
        if not isinstance(v, self.kind): raise TypeError(f"{self.name} wants {self.kind.__name__}")
        setattr(o, self.name, v)
    def __delete__(self, o): delattr(o, self.name)

class Lazy:
    # no data descriptor: the instance's own comes first
    def __init__(self, f): self.f = f
    def __get__(self, o, t=None):
        if o is None: return self
        v = o.__dict__[self.f.__name__] = self.f(o); return v

class Record:
    count = Typed(int, 3)
    names = Typed(list)
    def __init__(self, v): self.v = v; self.calls = 0
    @Lazy
    def lazily(self): self.calls += 1; return self.v * 3
    @functools.cached_property
    def once(self): self.calls += 1; return self.v * 2
    @property
    def size(self): return self.v
    @size.setter
    def size(self, v):
        if v < 0: raise ValueError(f"negative {v}")
        self.v = v
    @size.deleter
    def size(self): self.v = 0
    def add(self, p, q=1): return self.v + p + q
    add_two = functools.partialmethod(add, 2)
    @functools.singledispatchmethod
    def kind(self, v): return "other"
    @kind.register
    def _(self, v: int): return ("int", v)
    @kind.register(list)
    def _(self, v): return ("list", len(v))
    @staticmethod
    def twice(v): return v * 2
    @classmethod
    def of(cls, v): return cls(v)

class Table(dict):
    def __missing__(self, key): self[key] = len(self); return self[key]
class Stack(list):
    def push(self, v): self.append(v); return self
    @property
    def top(self): return self[-1] if self else None
class Frozen(typing.Generic[typing.TypeVar("T")]):
    __slots__ = ("a", "b")
    def __init__(self, a, b): self.a = a; self.b = b
    def __setstate__(self, s): self.a, self.b = s
    def __getstate__(self): return (self.a, self.b)
class View(collections.abc.Mapping):
    def __init__(self, d): self.d = d
    def __getitem__(self, k): return self.d[k]
    def __iter__(self): return iter(self.d)
    def __len__(self): return len(self.d)
class Rows(collections.abc.MutableSequence):
    def __init__(self, *v): self.v = list(v)
    def __getitem__(self, i): return self.v[i]
    def __setitem__(self, i, v): self.v[i] = v
    def __delitem__(self, i): del self.v[i]
    def __len__(self): return len(self.v)
    def insert(self, i, v): self.v.insert(i, v)

class Copied:
    def __init__(self, v): self.v = v; self.how = "made"
    def __copy__(self): c = Copied(self.v); c.how = "copied"; return c
    def __deepcopy__(self, memo): c = Copied(copy.deepcopy(self.v, memo)); c.how = "deep"; return c

class Failing(Exception):
    def __init__(self, a, b=2): super().__init__(a); self.b = b
    def __str__(self): return f"failing {self.args[0]} {self.b}"

class Entered(contextlib.ContextDecorator):
    def __init__(self, log, swallow=()): self.log = log; self.swallow = swallow
    def __enter__(self): self.log.append("in"); return 5
    def __exit__(self, kind, e, tb):
        self.log.append(("out", kind and kind.__name__)); return isinstance(e, self.swallow)

@contextlib.contextmanager
def retried(log, n=1):
    try: yield n
    except ZeroDivisionError as e: log.append(described(e))
    else: log.append("fine")
    finally: log.append("left")

@functools.singledispatch
def shown(v, *rest): return ("any", rest)
@shown.register
def _(v: int, *rest): return ("int", v)
@shown.register(list)
@shown.register(tuple)
def _(v, *rest): return ("many", len(v))
@shown.register(Box)
def _(v, *rest): return ("box", v.v)

@functools.lru_cache(maxsize=3)
def cached(a, b=1): return a * 3 + b

def taking(a, /, b, *c, d=4, e, **f): return (a, b, c, d, e, sorted(f.items()))
def defaults(a, b=[], *, c={}): b.append(a); c[len(c)] = a; return (len(b), len(c))
def counter():
    n = 0
    def step(by=1):
        nonlocal n
        n += by
        return n
    def reset():
        nonlocal n
        n = 0
    return step, reset
def compose(*fs): return functools.reduce(lambda f, g: lambda v: g(f(v)), fs)

class Scale(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
        self.register_buffer("seen", torch.zeros(2))
        self.inner = torch.nn.Identity()
        self.kept = torch.nn.ModuleDict({"r": torch.nn.ReLU()})
    def forward(self, x, k=1):
        self.seen += 1
        for name, m in self.kept.items(): x = m(x) + len(name)
        return self.inner(x * self.w) + k
    @property
    def broken(self): return self.not_there

class Like:
    # has a part in torch's functions
    def __init__(self, v): self.v = v
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.v if isinstance(a, cls) else a for a in args]
        return cls(func(*args, **(kwargs or {})))

class Held: pass
HELD = Held()
HELD.queue = deque([1, 2], maxlen=5); HELD.counts = Counter("aab"); HELD.order = OrderedDict(p=1, q=2)
HELD.many = defaultdict(list, {1: [2]}); HELD.kinds = {1, 2}; HELD.point = Point(1, tags=[3]); HELD.record = Record(2)
HELD.color = Color.RED; HELD.pair = Pair(1); HELD.stack = Stack([1]); HELD.table = Table(a=1); HELD.scale = Scale(2)
HELD.bytes = bytearray(b"abc"); HELD.step = counter(); HELD.weak = weakref.WeakValueDictionary(); HELD.view = View({})
HELD.weak["p"] = HELD.point; HELD.near = weakref.ref(HELD.record); HELD.money = Money(5)

def summary():
    r = HELD.record
    parts = [HELD.queue, HELD.counts, HELD.order, HELD.many, HELD.kinds, HELD.point, sorted(vars(r).items()),
             HELD.color, HELD.pair, HELD.stack, HELD.table, HELD.scale.seen.tolist(), HELD.bytes, HELD.money,
             sorted(HELD.weak), sorted(map(str, vars(HELD))), HELD.point.total,
             defaults.__defaults__, defaults.__kwdefaults__]
    return repr(parts)
"""
