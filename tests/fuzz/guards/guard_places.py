# ruff: noqa: E501
"""Places of the world that a program may read, and ways to change them: (what is made, what reads it, changes of what
is read, changes of what is not). All are Python text; ``{n}`` is the number of the place, so that one may occur twice.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """`reads` is an expression over `x`, a number or a tensor."""

    name: str
    setup: str
    reads: str
    changes: tuple[str, ...]
    others: tuple[str, ...] = ()


THING = """
class Base{n}:
    scale = 2
    def method(self, a): return a + 1
    @classmethod
    def of_class(cls, a): return a * 2 + cls.scale
    @staticmethod
    def static(a): return a - 3
    @property
    def computed(self): return 3
class Thing{n}(Base{n}):
    def __init__(self): self.own = 5; self.unread = 0
t{n} = Thing{n}()
"""

DUNDERS = """
class Thing{n}:
    def __call__(self, a): return a + 1
    def __getitem__(self, i): return (0, 2, 4, 6)[i]
    def __len__(self): return 3
    def __iter__(self): return iter((1, 2))
    def __contains__(self, a): return a == 4
    def __eq__(self, other): return True
    def __hash__(self): return 7
    def __lt__(self, other): return True
    def __bool__(self): return True
    def __add__(self, other): return 11
    def __radd__(self, other): return 12
    def __neg__(self): return 13
    def __int__(self): return 14
    def __index__(self): return 1
    def __str__(self): return 'abc'
    def __repr__(self): return 'abcd'
    def __format__(self, how): return 'abcde'
    def __enter__(self): return 15
    def __exit__(self, *error): return None
t{n} = Thing{n}()
"""


def dunder(name: str, reads: str, other: str) -> Place:
    """A special method of a class, replaced and taken away."""
    return Place(
        name,
        DUNDERS,
        reads,
        (f"Thing{{n}}.{name} = {other}", f"del Thing{{n}}.{name}", f"Thing{{n}}.{name} = lambda *a: 1"),
        ("Thing{n}.unread = lambda self: 0",),
    )


PLACES: tuple[Place, ...] = (
    # globals and closures
    Place("global int", "g{n} = 3; u{n} = 0", "g{n}", ("g{n} = 4", "g{n} = 5", "g{n} = True"), ("u{n} += 1",)),
    Place("global float", "g{n} = 3.5", "g{n}", ("g{n} = 4.5", "g{n} = -0.0", "g{n} = 4"), ("w{n} = 1",)),
    Place("global str", "g{n} = 'ab'", "len(g{n})", ("g{n} = 'abc'", "g{n} = b'a'")),
    Place("global tensor", "g{n} = torch.ones(3)", "g{n}.sum()", ("g{n} = torch.ones(4)", "g{n} = g{n} + 1")),
    Place("global gone", "g{n} = 3", "g{n}", ("del g{n}", "g{n} = 3")),
    Place("builtin", "u{n} = 1", "abs(-2) + len((1, 2))", ("abs = lambda v: 9", "len = lambda v: 8"), ("u{n} = 2",)),
    Place(
        "function",
        "def h{n}(a, b=2, *, c=3): return a * b + c",
        "h{n}(x)",
        (
            "h{n}.__defaults__ = (4,)",
            "h{n}.__kwdefaults__ = {{'c': 5}}",
            "h{n}.__kwdefaults__['c'] = 6",
            "h{n}.__code__ = (lambda a, b, *, c: a - b - c).__code__",
            "def h{n}(a): return a",
        ),
        ("h{n}.mark = 1", "h{n}.__doc__ = 'x'"),
    ),
    Place("attribute of a function", "def h{n}(): return 0\nh{n}.k = 2", "h{n}.k", ("h{n}.k = 3",), ("h{n}.u = 3",)),
    Place(
        "closure",
        "def make{n}():\n    c = 3\n    def read(a): return a + c\n    def write(v):\n        nonlocal c\n        c = v\n"
        "    return read, write\nread{n}, write{n} = make{n}()",
        "read{n}(x)",
        ("write{n}(4)", "write{n}(torch.ones(3))", "write{n}(2.5)"),
    ),
    Place(
        "partial",
        "def h{n}(a, b, c=0): return a * b + c\np{n} = functools.partial(h{n}, b=3)",
        "p{n}(x)",
        ("p{n} = functools.partial(h{n}, b=4)", "p{n} = functools.partial(h{n}, b=3, c=2)", "p{n}.keywords['b'] = 7"),
    ),
    Place("lambda in a list", "f{n} = [lambda a: a + 1]", "f{n}[0](x)", ("f{n}[0] = lambda a: a + 2",)),
    Place(
        "decorated",
        "def deco{n}(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a) * k{n}\n    return w\nk{n} = 2\n@deco{n}\n"
        "def h{n}(a): return a + 1",
        "h{n}(x)",
        ("k{n} = 3", "h{n}.__wrapped__.__code__ = (lambda a: a + 5).__code__", "h{n} = h{n}.__wrapped__"),
    ),
    # objects and classes
    Place("attribute", THING, "t{n}.own", ("t{n}.own = 6", "t{n}.own = 6.5", "del t{n}.own"), ("t{n}.unread += 1",)),
    Place(
        "method",
        THING,
        "t{n}.method(x)",
        (
            "Base{n}.method = lambda self, a: a + 2",
            "Thing{n}.method = lambda self, a: a + 3",
            "t{n}.method = lambda a: a + 4",
            "Thing{n}.method = staticmethod(lambda a: a + 5)",
            "Base{n}.method.__code__ = (lambda self, a: a + 6).__code__",
            "del Base{n}.method",
        ),
        ("t{n}.unread += 1", "Base{n}.scale = 9", "Thing{n}.fresh = 1", "Base{n}.static = None"),
    ),
    Place(
        "classmethod",
        THING,
        "t{n}.of_class(x) + Thing{n}.of_class(x)",
        (
            "Base{n}.of_class = classmethod(lambda cls, a: a * 4)",
            "Thing{n}.of_class = classmethod(lambda cls, a: a * 5)",
            "Base{n}.scale = 5",
            "Thing{n}.scale = 6",
            "t{n}.of_class = lambda a: a",
        ),
        ("t{n}.unread += 1", "Base{n}.method = 3"),
    ),
    Place(
        "static method",
        THING,
        "t{n}.static(x) + Base{n}.static(x)",
        ("Base{n}.static = staticmethod(lambda a: a)", "Thing{n}.static = lambda self, a: a", "t{n}.static = abs"),
        ("t{n}.unread += 1",),
    ),
    Place(
        "property",
        THING,
        "t{n}.computed",
        ("Base{n}.computed = property(lambda self: 4)", "Thing{n}.computed = 5", "Base{n}.computed = 6"),
        ("t{n}.unread += 1",),
    ),
    Place(
        "class attribute",
        THING,
        "t{n}.scale + Thing{n}.scale",
        ("Base{n}.scale = 4", "Thing{n}.scale = 5", "t{n}.scale = 6", "Base{n}.scale = property(lambda self: 7)"),
        ("t{n}.unread += 1", "Base{n}.static = None"),
    ),
    Place(
        "bases",
        THING + "class Other{n}:\n    scale = 8\n    def method(self, a): return a * 5\n",
        "t{n}.method(x) + t{n}.scale + isinstance(t{n}, Other{n}) + issubclass(Thing{n}, Base{n})",
        ("Thing{n}.__bases__ = (Other{n},)", "Thing{n}.__bases__ = (Base{n}, Other{n})", "t{n}.__class__ = Base{n}"),
        ("Other{n}.unread = 1",),
    ),
    Place(
        "super",
        THING + "class Last{n}(Thing{n}):\n    def method(self, a): return super().method(a) * 2\nt{n} = Last{n}()\n",
        "t{n}.method(x)",
        ("Base{n}.method = lambda self, a: a + 7", "Thing{n}.method = lambda self, a: a + 8"),
        ("Base{n}.unread = 1",),
    ),
    Place(
        "hasattr",
        THING,
        "hasattr(t{n}, 'maybe') + getattr(t{n}, 'perhaps', 4) + callable(t{n})",
        (
            "t{n}.maybe = 1",
            "Base{n}.perhaps = 6",
            "Thing{n}.__call__ = lambda self: 0",
            "Base{n}.maybe = property(len)",
        ),
        ("t{n}.unread += 1", "Base{n}.elsewhere = 1"),
    ),
    Place(
        "getattr hook",
        "class Thing{n}:\n    def __getattr__(self, name):\n        if name[0] == '_': raise AttributeError(name)\n"
        "        return 4\nt{n} = Thing{n}()",
        "t{n}.anything",
        (
            "t{n}.anything = 5",
            "Thing{n}.anything = 6",
            "Thing{n}.__getattr__ = lambda self, name: 7",
            "Thing{n}.__getattribute__ = lambda self, name: 8",
            "del Thing{n}.__getattr__",
        ),
        ("Thing{n}.unread = 1", "t{n}.unread = 1"),
    ),
    Place(
        "setattr hook",
        "class Thing{n}: pass\nt{n} = Thing{n}()\ndef put{n}():\n    t{n}.value = 3\n    return t{n}.value",
        "put{n}()",
        ("Thing{n}.__setattr__ = lambda self, k, v: object.__setattr__(self, k, v + 1)",),
    ),
    Place(
        "descriptor",
        "class Field{n}:\n    def __init__(self): self.k = 2\n    def __get__(self, o, c=None): return self.k\n"
        "class Thing{n}:\n    field = Field{n}()\nt{n} = Thing{n}()",
        "t{n}.field",
        (
            "Thing{n}.__dict__['field'].k = 3",
            "Field{n}.__get__ = lambda self, o, c=None: 9",
            "t{n}.field = 4",
            "Field{n}.__set__ = lambda self, o, v: None",
        ),
        ("Thing{n}.__dict__['field'].other = 3",),
    ),
    Place(
        "metaclass",
        "class Meta{n}(type):\n    def size(cls): return 3\n    @property\n    def wide(cls): return 4\n"
        "class Thing{n}(metaclass=Meta{n}): pass",
        "Thing{n}.size() + Thing{n}.wide",
        (
            "Meta{n}.size = lambda cls: 5",
            "Thing{n}.size = classmethod(lambda cls: 6)",
            "Meta{n}.wide = property(lambda cls: 7)",
        ),
        ("Meta{n}.unread = 1",),
    ),
    Place(
        "instancecheck",
        "class Meta{n}(type):\n    def __instancecheck__(cls, o): return True\nclass Kind{n}(metaclass=Meta{n}): pass",
        "isinstance(3, Kind{n}) + isinstance(x, Kind{n})",
        ("Meta{n}.__instancecheck__ = lambda cls, o: False", "del Meta{n}.__instancecheck__"),
    ),
    Place(
        "abstract class",
        "class Kind{n}(abc.ABC): pass\nclass Thing{n}: pass\nt{n} = Thing{n}()",
        "isinstance(t{n}, Kind{n}) * 3",
        ("Kind{n}.register(Thing{n})",),
    ),
    Place(
        "instances made inside",
        "class Thing{n}:\n    rate = 2\n    def __init__(self, a): self.a = a\n    def twice(self): return self.a * self.rate\n",
        "Thing{n}(x).twice()",
        (
            "def init(self, a): self.a = a + 1\nThing{n}.__init__ = init",
            "Thing{n}.twice = lambda self: self.a",
            "Thing{n}.rate = 5",
            "Thing{n}.__new__ = lambda cls, a: object.__new__(cls)",
            "Thing{n}.__getattribute__ = lambda self, name: object.__getattribute__(self, name) if name != 'rate' else 9",
        ),
        ("Thing{n}.unread = 1",),
    ),
    Place(
        "equality and hash of instances made inside",
        "class Thing{n}:\n    def __init__(self, a): self.a = a\n    def __eq__(self, o): return self.a == o.a\n"
        "    def __hash__(self): return hash(self.a)\n"
        "    def __lt__(self, o): return self.a < o.a\n",
        "len({{Thing{n}(1), Thing{n}(1), Thing{n}(2)}}) + [Thing{n}(1)].count(Thing{n}(1)) + "
        "{{Thing{n}(1): 5}}.get(Thing{n}(1), 0) + min(Thing{n}(3), Thing{n}(2)).a + (Thing{n}(1) in (Thing{n}(1),))",
        (
            "Thing{n}.__eq__ = lambda self, o: False",
            "Thing{n}.__lt__ = lambda self, o: self.a > o.a",
            "Thing{n}.__hash__ = lambda self: id(self)",
            "Thing{n}.__hash__ = None",
        ),
    ),
    Place(
        "dataclass",
        "@dataclasses.dataclass\nclass Data{n}:\n    a: int = 1\n    b: float = 2.5\nd{n} = Data{n}()",
        "d{n}.a + d{n}.b + Data{n}().a + len(dataclasses.fields(d{n}))",
        ("d{n}.a = 2", "d{n}.b = 3.5", "Data{n}.__init__ = lambda self: None", "d{n} = Data{n}(4, 5.0)"),
        ("d{n}.extra = 1",),
    ),
    Place(
        "slots",
        "class Slotted{n}:\n    __slots__ = ('a', 'b')\ns{n} = Slotted{n}()\ns{n}.a = 1",
        "s{n}.a + hasattr(s{n}, 'b')",
        ("s{n}.a = 2", "s{n}.b = 3", "s{n}.a = 2.5", "del s{n}.a"),
    ),
    Place(
        "named tuple",
        "Pair{n} = collections.namedtuple('Pair{n}', 'a b')\np{n} = Pair{n}(1, 2)",
        "p{n}.a + p{n}[1]",
        ("p{n} = Pair{n}(3, 4)", "p{n} = Pair{n}(1, 2.5)", "Pair{n}.a = property(lambda self: 9)"),
    ),
    Place(
        "enum",
        "class Color{n}(enum.Enum):\n    RED = 1\n    BLUE = 2\n    def twice(self): return self.value * 2\nc{n} = Color{n}.RED",
        "c{n}.value + (c{n} is Color{n}.RED) + c{n}.twice()",
        ("c{n} = Color{n}.BLUE", "Color{n}.twice = lambda self: 9"),
    ),
    Place(
        "what a member of an enumeration holds",
        "class Color{n}(enum.Enum):\n    RED = 1\n    BLUE = [1, 2]\n    def __init__(self, *a): self.log = []; self.rate = 2\n"
        "    @property\n    def twice(self): return self.rate * 2\nc{n} = Color{n}.BLUE",
        "c{n}.twice + len(c{n}.log) + hasattr(c{n}, 'mark') + len(Color{n}.BLUE.value) + len(c{n}.name)",
        (
            "c{n}.log.append(1)",
            "c{n}.rate = 3",
            "c{n}.mark = 1",
            "Color{n}.BLUE.value.append(3)",
            "Color{n}.twice = property(lambda self: 7)",
        ),
        ("c{n}.unread = 1", "Color{n}.RED.rate = 9"),
    ),
    Place("type name", THING, "len(type(t{n}).__name__)", ("Thing{n}.__name__ = 'Much'", "t{n} = Base{n}()")),
    Place("vars", THING, "len(vars(t{n}))", ("t{n}.more = 1", "del t{n}.own")),
    Place(
        "cached property",
        "class Thing{n}:\n    k = 3\n    @functools.cached_property\n    def slow(self): return self.k * 2\nt{n} = Thing{n}()",
        "t{n}.slow",
        ("t{n}.__dict__['slow'] = 8", "t{n}.__dict__.pop('slow', 0)", "Thing{n}.k = 4; t{n} = Thing{n}()"),
    ),
    Place(
        "single dispatch",
        "@functools.singledispatch\ndef pick{n}(v): return 1\nclass Thing{n}: pass\nt{n} = Thing{n}()",
        "pick{n}(3) + pick{n}(t{n})",
        ("pick{n}.register(int, lambda v: 2)", "pick{n}.register(Thing{n}, lambda v: 5)"),
    ),
    Place(
        "lru_cache",
        "k{n} = 2\n@functools.lru_cache\ndef slow{n}(a): return a * k{n}\n",
        "slow{n}(3) * 0 + slow{n}.__wrapped__(3)",
        ("k{n} = 3",),
    ),
    Place(
        "weak reference",
        "class Thing{n}: k = 2\nt{n} = Thing{n}(); r{n} = weakref.ref(t{n})",
        "7 if r{n}() is None else r{n}().k",
        ("t{n} = None", "t{n} is not None and setattr(t{n}, 'k', 5)", "t{n} = Thing{n}(); r{n} = weakref.ref(t{n})"),
    ),
    dunder("__call__", "t{n}(x)", "lambda self, a: a + 2"),
    dunder("__getitem__", "t{n}[3]", "lambda self, i: (1, 2, 3, 9)[i]"),
    dunder("__len__", "len(t{n})", "lambda self: 8"),
    dunder("__iter__", "sum([v for v in t{n}])", "lambda self: iter((4, 5))"),
    dunder("__contains__", "(4 in t{n}) + 1", "lambda self, a: a == 6"),
    dunder("__eq__", "(t{n} == 4) + 1", "lambda self, other: False"),
    dunder("__bool__", "2 if t{n} else 3", "lambda self: False"),
    dunder("__add__", "t{n} + 4", "lambda self, other: 3"),
    dunder("__radd__", "4 + t{n} + (x + t{n})", "lambda self, other: 3"),
    dunder("__neg__", "-t{n}", "lambda self: 3"),
    dunder("__int__", "int(t{n})", "lambda self: 3"),
    dunder("__index__", "(5, 6, 7)[t{n}]", "lambda self: 2"),
    dunder("__str__", "len(str(t{n}))", "lambda self: ''"),
    dunder("__repr__", "len(repr(t{n})) + len(f'{{t{n}!r}}')", "lambda self: ''"),
    dunder("__format__", "len(f'{{t{n}}}')", "lambda self, how: ''"),
    dunder("__hash__", "hash(t{n}) + {{7: 1}}.get(t{n}, 3)", "lambda self: 9"),
    dunder("__lt__", "(t{n} < 3) + 1", "lambda self, other: False"),
    # containers
    Place(
        "list",
        "l{n} = [1, 2, 3]",
        "l{n}[0] + len(l{n}) + sum(l{n})",
        ("l{n}.append(4)", "l{n}[0] = 7", "l{n}.clear()", "l{n} = [1]", "l{n}[1] = 2.5", "l{n}.reverse()"),
    ),
    Place(
        "list of objects",
        THING + "l{n} = [t{n}, Thing{n}()]",
        "sum([a.own for a in l{n}])",
        ("l{n}.append(Thing{n}())", "l{n}[0].own = 7", "l{n}.reverse()", "l{n}[1] = l{n}[0]", "l{n}.pop()"),
        ("l{n}[0].unread += 1",),
    ),
    Place(
        "dict",
        "d{n} = dict(a=1, b=2, u=0)",
        "d{n}['a'] + d{n}.get('b', 5) + ('z' in d{n}) + d{n}.get('y', 1)",
        ("d{n}['a'] = 3", "d{n}.pop('b', 0)", "d{n}['z'] = 1", "d{n}['y'] = 4", "d{n} = dict(a=1)"),
        ("d{n}['u'] += 1", "d{n}['w'] = 1"),
    ),
    Place(
        "order of a dict",
        "d{n} = dict(a=1, b=2)",
        "functools.reduce(lambda v, k: v * 3 + len(k) + d{n}[k], d{n}, 0)",
        ("d{n}['a'] = d{n}.pop('a')", "d{n}['ccc'] = 3", "d{n}['a'] = 9"),
    ),
    Place(
        "other dicts",
        "o{n} = collections.OrderedDict(a=1, b=2); f{n} = collections.defaultdict(int, a=4); c{n} = collections.Counter('aab')",
        "[*o{n}.values()][0] + f{n}['a'] + c{n}['a'] + c{n}['q'] + f{n}.get('m', 3)",
        ("o{n}.move_to_end('a')", "f{n}['a'] = 5", "c{n}['q'] = 3", "c{n}.update('a')", "f{n}['m'] = 2"),
        ("f{n}['unread'] = 1", "c{n}['unread'] = 1"),
    ),
    Place(
        "sets",
        "s{n} = {{1, 2}}; z{n} = frozenset('ab')",
        "(1 in s{n}) + len(s{n}) * 2 + ('a' in z{n})",
        ("s{n}.add(5)", "s{n}.discard(1)", "z{n} = frozenset('b')"),
    ),
    Place(
        "deque",
        "q{n} = collections.deque([1, 2, 3], maxlen=3)",
        "q{n}[0] + len(q{n})",
        ("q{n}.append(9)", "q{n}.popleft() if q{n} else 0", "q{n} = collections.deque([4])", "q{n}.rotate(1)"),
    ),
    Place("tuple", "p{n} = (1, (2, 3.5), 'a')", "p{n}[0] + p{n}[1][1] + len(p{n}[2])", ("p{n} = (1, (2, 4.5), 'ab')",)),
    Place(
        "range and slice",
        "r{n} = range(3); s{n} = slice(0, 2)",
        "sum(r{n}) + x[s{n}].sum()",
        ("r{n} = range(4)", "s{n} = slice(1)"),
    ),
    Place(
        "subclass of list",
        "class Items{n}(list):\n    def total(self): return sum(self)\nl{n} = Items{n}([1, 2])",
        "l{n}.total() + l{n}[0] + len(l{n})",
        (
            "l{n}.append(3)",
            "Items{n}.total = lambda self: 9",
            "Items{n}.__len__ = lambda self: 7",
            "Items{n}.__getitem__ = lambda self, i: 6",
            "Items{n}.__iter__ = lambda self: iter(())",
        ),
        ("l{n}.unread = 1",),
    ),
    Place(
        "subclass of dict",
        "class Table{n}(dict):\n    def __missing__(self, key): return 7\nd{n} = Table{n}(a=1)",
        "d{n}['a'] + d{n}['b'] + len(d{n}) * 0",
        ("d{n}['a'] = 2", "Table{n}.__missing__ = lambda self, key: 8", "Table{n}.__getitem__ = lambda self, key: 9"),
        ("d{n}.unread = 1",),
    ),
    # constants that are equal but not the same
    Place(
        "sign of zero",
        "g{n} = 0.0",
        "torch.copysign(torch.ones(()), torch.tensor(float(g{n})))",
        ("g{n} = -0.0", "g{n} = 0", "g{n} = numpy.float32(0)", "g{n} = numpy.float32(-0.0)", "g{n} = 0.0"),
    ),
    Place(
        "text of a constant",
        "g{n} = decimal.Decimal('1.0'); k{n} = types.SimpleNamespace(v=(1, 2.0))",
        "len(str(g{n})) + len(repr(k{n}.v))",
        (
            "g{n} = decimal.Decimal('1.000')",
            "g{n} = fractions.Fraction(1)",
            "g{n} = True",
            "g{n} = 1 + 0j",
            "g{n} = numpy.float64(1)",
            "k{n}.v = (True, 2.0)",
            "k{n}.v = (1.0, 2.0)",
            "k{n}.v = [1, 2.0]",
            "k{n}.v = (1, 2)",
        ),
    ),
    Place(
        "moment",
        "g{n} = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone.utc)",
        "g{n}.hour + g{n}.fold * 7",
        (
            "g{n} = g{n}.astimezone(datetime.timezone(datetime.timedelta(hours=2)))",
            "g{n} = g{n}.replace(fold=1 - g{n}.fold)",
            "g{n} = g{n}.replace(hour=3)",
        ),
    ),
    Place(
        "bounds of a range",
        "r{n} = range(0, 3, 2)",
        "r{n}.stop + len(r{n})",
        ("r{n} = range(0, 4, 2)", "r{n} = range(0, 3, 2)", "r{n} = range(0, 3)"),
    ),
    Place(
        "order of a set",
        "s{n} = {{*(0, 8)}}; z{n} = frozenset((0, 8))",
        "[*s{n}][0] + 2 * [*z{n}][0]",
        ("s{n} = {{*(8, 0)}}", "z{n} = frozenset((8, 0))", "s{n} = {{*(0, 8)}}", "s{n} = {{0.0, 8}}"),
    ),
    # what is replaced on purpose
    Place(
        "functions of torch",
        "m{n} = nn.ReLU()",
        "nn.functional.softplus(x).sum() + torch.sigmoid(x) + m{n}(x)",
        (
            "nn.functional.softplus = lambda a: a * 2",
            "torch.sigmoid = lambda a: a * 3",
            "nn.functional.relu = lambda a, inplace=False: a * 4",
        ),
    ),
    Place(
        "methods of torch",
        "m{n} = nn.Sequential(nn.ReLU(), nn.Identity())",
        "m{n}(x) + x.abs().sum() + (x + 2)",
        (
            "nn.Identity.forward = lambda self, a: a * 2",
            "nn.Identity.__call__ = lambda self, a: a * 3",
            "nn.Module._call_impl = lambda self, a: self.forward(a) * 2",
            "nn.Sequential.forward = lambda self, a: a * 5",
            "torch.Tensor.abs = lambda self: self * 6",
            "torch.Tensor.__radd__ = lambda self, other: self",
        ),
    ),
    Place(
        "functions of the standard library",
        "",
        "math.gcd(4, 6) + len(os.path.basename('a/b'))",
        ("math.gcd = lambda a, b: 9", "os.path.basename = lambda path: 'abcd'"),
    ),
    Place(
        "names of builtins",
        "",
        "hex(255).count('f') + divmod(7, 2)[1]",
        ("builtins.hex = lambda a: 'ffff'", "builtins.divmod = lambda a, b: (1, 5)"),
    ),
    # ordinary objects of settings
    Place(
        "settings",
        "o{n} = argparse.Namespace(rate=2, deep=types.SimpleNamespace(on=True, sizes=[1, 2]))",
        "o{n}.rate + o{n}.deep.on + sum(o{n}.deep.sizes) + getattr(o{n}, 'extra', 0)",
        (
            "o{n}.rate = 3",
            "o{n}.deep.on = False",
            "o{n}.deep.sizes[0] = 5",
            "o{n}.extra = 4",
            "o{n} = argparse.Namespace(**vars(o{n}))",
        ),
        ("o{n}.unread = 1", "o{n}.deep.unread = 2"),
    ),
    Place(
        "registry",
        "r{n} = {{'a': lambda v: v + 1, 'b': lambda v: v + 2}}; w{n} = 'a'",
        "r{n}[w{n}](x) + len(r{n})",
        (
            "w{n} = 'b'",
            "r{n}['a'] = lambda v: v * 2",
            "r{n}['c'] = abs",
            "r{n} = {{**r{n}}}",
            "r{n}['a'].__code__ = (lambda v: v - 1).__code__",
        ),
    ),
    Place(
        "attributes of wrapped functions",
        "def h{n}(a): return a + 1\n@functools.wraps(h{n})\ndef w{n}(a): return w{n}.__wrapped__(a) * w{n}.rate\nw{n}.rate = 2",
        "w{n}(x)",
        ("w{n}.rate = 3", "w{n}.__wrapped__ = lambda a: a", "h{n}.__code__ = (lambda a: a - 1).__code__"),
        ("w{n}.unread = 1",),
    ),
    Place(
        "order of bases",
        "class A{n}: k = 1\nclass B{n}: k = 2\nclass C{n}(A{n}, B{n}): pass\nt{n} = C{n}()",
        "t{n}.k + C{n}.k",
        ("A{n}.k = 5", "del A{n}.k", "C{n}.k = 7", "C{n}.__bases__ = (B{n}, A{n})", "B{n}.k = 3"),
    ),
    # modules
    Place(
        "module",
        "class Net{n}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = nn.Linear(3, 3)\n"
        "        self.register_buffer('b', torch.ones(3)); self.k = 2\n"
        "    def forward(self, a): return self.l(a) * self.k + self.b if self.training else self.l(a)\nm{n} = Net{n}()",
        "m{n}(x)",
        (
            "m{n}.eval()",
            "m{n}.train()",
            "m{n}.k = 3",
            "m{n}.l = nn.Identity()",
            "m{n}.l.weight = nn.Parameter(torch.ones(3, 3)) if hasattr(m{n}.l, 'weight') else None",
            "m{n}.l.requires_grad_(False)",
            "m{n}.b = torch.zeros(3)",
            "m{n}.b = None",
            "Net{n}.forward = lambda self, a: a * 2",
            "m{n}.forward = lambda a: a * 3",
            "m{n}.register_forward_hook(lambda m, a, o: o * 2)",
            "m{n}.register_forward_pre_hook(lambda m, a: (a[0] * 2,))",
            "m{n}.l.register_forward_hook(lambda m, a, o: o + 1)",
            "m{n}._forward_hooks.clear(); m{n}._forward_pre_hooks.clear()",
            "Net{n}.__call__ = lambda self, a: a + 9",
            "Net{n}.k = property(lambda self: 5)",
        ),
        ("m{n}.unread = 1", "m{n}.l.unread = 1", "m{n}.register_buffer('never', torch.ones(1))"),
    ),
    Place(
        "module containers",
        "s{n} = nn.Sequential(nn.ReLU(), nn.Tanh()); p{n} = nn.ParameterList([torch.ones(3)]); d{n} = nn.ModuleDict(dict(a=nn.ReLU()))",
        "s{n}(x) + p{n}[0] + len(s{n}) + ('a' in d{n}) + sum([1 for _ in s{n}.modules()])",
        (
            "s{n}.append(nn.ReLU())",
            "s{n}[0] = nn.Sigmoid()",
            "p{n}[0] = nn.Parameter(torch.zeros(3))",
            "d{n}.pop('a') if 'a' in d{n} else 0",
        ),
    ),
    # tensors
    Place(
        "properties of a tensor",
        "v{n} = torch.ones(3, requires_grad=True)",
        "v{n}.requires_grad * 2 + v{n}.is_leaf + v{n}.dim() + (v{n}.grad is None) + v{n}.stride(0) + len(v{n}) + v{n}.element_size()",
        (
            "v{n} = torch.ones(3)",
            "v{n} = torch.ones(3, requires_grad=True) * 2",
            "v{n} = torch.ones(6)[::2]",
            "v{n}.grad = torch.ones_like(v{n}) if v{n}.is_leaf and v{n}.requires_grad else None",
            "v{n} = torch.ones(3, dtype=torch.float64)",
            "v{n} = v{n}.detach().requires_grad_()",
            "v{n} = torch.ones(1, 3)",
        ),
        ("v{n}.data.add_(1)",),
    ),
    Place(
        "attribute of a tensor", "v{n} = torch.ones(3); v{n}.mark = 2", "v{n}.mark", ("v{n}.mark = 3", "del v{n}.mark")
    ),
    Place(
        "same tensor",
        "v{n} = torch.ones(3); w{n} = v{n}",
        "(v{n} is w{n}) + v{n}.sum()",
        ("w{n} = torch.ones(3)", "w{n} = v{n}"),
    ),
    # torch's state
    Place(
        "grad mode",
        "",
        "torch.is_grad_enabled() + 1",
        ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    ),
    Place("default dtype", "", "torch.ones(3) * 1.1", ("torch.set_default_dtype(torch.float64)",)),
    Place(
        "deterministic",
        "",
        "torch.are_deterministic_algorithms_enabled() + 2 * torch.is_deterministic_algorithms_warn_only_enabled()"
        " + 4 * torch.get_deterministic_debug_mode()",
        (
            "torch.use_deterministic_algorithms(True)",
            "torch.use_deterministic_algorithms(True, warn_only=True)",
            "torch.use_deterministic_algorithms(False)",
        ),
    ),
    Place("threads", "", "torch.get_num_threads()", ("torch.set_num_threads(1)", "torch.set_num_threads(2)")),
    Place(
        "matmul precision",
        "",
        "len(torch.get_float32_matmul_precision())",
        ("torch.set_float32_matmul_precision('high')", "torch.set_float32_matmul_precision('medium')"),
    ),
    Place(
        "anomaly",
        "",
        "torch.is_anomaly_enabled() + 1",
        ("torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)"),
    ),
    Place(
        "autocast",
        "",
        "torch.is_autocast_enabled('cpu') + x @ x",
        ("torch.set_autocast_enabled('cpu', True)", "torch.set_autocast_enabled('cpu', False)"),
    ),
    Place(
        "autocast dtype",
        "",
        "torch.get_autocast_dtype('cpu').itemsize",
        ("torch.set_autocast_dtype('cpu', torch.float16)", "torch.set_autocast_dtype('cpu', torch.float32)"),
    ),
    Place(
        "autocast of any dtype",
        "def cast{n}(a):\n    with torch.autocast('cpu'): return (a.view(1, 3) @ a).sum().dtype.itemsize",
        "cast{n}(x)",
        ("torch.set_autocast_dtype('cpu', torch.float16)",),
    ),
    Place(
        "sdp flags",
        "",
        "torch.backends.cuda.flash_sdp_enabled() + 1",
        ("torch.backends.cuda.enable_flash_sdp(False)", "torch.backends.cuda.enable_flash_sdp(True)"),
    ),
    Place(
        "backend flags",
        "",
        "torch.backends.cudnn.deterministic + 1 + 2 * torch.backends.mkldnn.enabled",
        ("torch._C._set_cudnn_deterministic(True)", "torch._C._set_cudnn_deterministic(False)"),
    ),
    Place(
        "global hooks",
        "m{n} = nn.ReLU()",
        "m{n}(x)",
        ("handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, o: o + 1))",),
    ),
    Place("default device", "", "torch.get_default_device().type == 'cpu'", ("torch.set_default_device('cpu')",)),
    # the standard library
    Place(
        "environment",
        "",
        "len(os.environ.get('BOLIDE_FUZZ', ''))",
        ("os.environ['BOLIDE_FUZZ'] = 'ab'", "os.environ.pop('BOLIDE_FUZZ', 0)"),
    ),
    Place(
        "recursion limit",
        "",
        "sys.getrecursionlimit() // 1000",
        ("sys.setrecursionlimit(5000)", "sys.setrecursionlimit(7000)"),
    ),
    Place(
        "loaded modules",
        "",
        "('bolide_fuzz' in sys.modules) + 1",
        ("sys.modules['bolide_fuzz'] = sys", "sys.modules.pop('bolide_fuzz', 0)"),
    ),
    Place(
        "logger",
        "log{n} = logging.getLogger('bolide.fuzz{n}')",
        "log{n}.isEnabledFor(10) + log{n}.level",
        ("log{n}.setLevel(10)", "log{n}.setLevel(40)"),
    ),
    Place(
        "user's module",
        "mod{n} = types.ModuleType('mod{n}'); mod{n}.k = 2",
        "mod{n}.k + hasattr(mod{n}, 'q')",
        ("mod{n}.k = 3", "mod{n}.q = 1", "del mod{n}.k"),
        ("mod{n}.unread = 1",),
    ),
    Place(
        "context variable",
        "v{n} = contextvars.ContextVar('v{n}', default=3)",
        "v{n}.get()",
        ("v{n}.set(4)", "v{n}.set(5)"),
    ),
    Place("thread local", "l{n} = threading.local(); l{n}.k = 2", "l{n}.k", ("l{n}.k = 3", "del l{n}.k")),
    Place(
        "context manager",
        DUNDERS + "def use{n}(a):\n    with t{n} as v:\n        return a + v\n",
        "use{n}(x)",
        ("Thing{n}.__enter__ = lambda self: 16", "def leave(self, *e): flags.append(1)\nThing{n}.__exit__ = leave"),
    ),
    Place("iterator", "i{n} = [1, 2]\ndef it{n}(): return sum([v for v in i{n}])", "it{n}()", ("i{n}.append(3)",)),
    # whether two are one
    *(
        Place(
            f"two of {name}",
            f"{make}\np{{n}}, q{{n}} = new{{n}}(), new{{n}}()",
            reads,
            ("q{n} = p{n}", "q{n} = new{n}()", "p{n} = q{n}"),
        )
        for name, make in (
            ("objects", "class new{n}: pass"),
            ("modules", "def new{n}(): return nn.Linear(2, 2)"),
            ("functions", "def new{n}(): return lambda a: a"),
            ("lists", "def new{n}(): return [object()]"),
        )
        for reads in (
            "p{n} is q{n}",
            "p{n} == q{n}",
            "[p{n}].count(q{n})",
            *(("len({{p{n}, q{n}}})", "{{p{n}: 3}}.get(q{n}, 1)") if name != "lists" else ()),
        )
    ),
    Place(
        "tensors in a set",
        "p{n}, q{n} = torch.ones(3), torch.ones(3)",
        "len({{p{n}, q{n}}})",
        ("q{n} = p{n}", "q{n} = torch.ones(3)"),
    ),
    Place(
        "tied weights",
        "m{n} = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))",
        "sum(p.numel() for p in m{n}.parameters())",
        ("m{n}[1].weight = m{n}[0].weight", "m{n}[1] = m{n}[0]", "m{n}[1] = nn.Linear(3, 3)"),
    ),
)
