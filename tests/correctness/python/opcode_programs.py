"""Programs that use every instruction of CPython 3.10 to 3.13 between them, as data: (first version, text)."""

from __future__ import annotations

OPERATORS = """
def program(x, a=6, b=4):
    every = (a + b, a - b, a * b, a / b, a // b, a % b, a**b, a << b, a >> b, a & b, a | b, a ^ b, -a, +a, ~a, not a)
    c, d, w = 7, 7, torch.eye(3)
    c += 1; c -= 2; c *= 3; c /= 2; c //= 1; c %= 5; c **= 2
    d <<= 2; d >>= 1; d &= 30; d |= 1; d ^= 2
    w @= w
    compared = a < b <= 7 != 3, a is b, a is not None, a in (1, 2), a not in [3], a == b or c, a and d
    return every, x[None] @ x[:, None], c, d, w, compared
"""

CONTAINERS = """
def program(x, *rest, **words):
    items, pairs = [x, *rest, 1], {"a": x, "b": 2, **words}
    table = [[0, 1], [2, 3]]
    table[0][1] += 5
    table[1:] = [[7]]
    ends = items[0:2], items[:-1:1], items[slice(1)], (*items, 3), {*rest, 4}, {1, 2}, {"k": [1, 2]}, {a: 1 for a in "ab"}
    first, *middle, last = range(5)
    (one, two), three = (1, 2), 3
    del pairs["b"], items[0]
    one, two, three = three, one, two
    made = [i for i in range(6) if i % 2], {i for i in range(4) if not i}, {i: x for i in range(2) if i is not None}
    return items, pairs, table, ends, first, middle, last, one, two, three, made, [i for i in [None, 1] if i is None]
"""

CALLS = """
def called(*args, key=1, **words):
    return len(args), key, sorted(words)

def program(x):
    def inner(a: int, b=x, *, c=3) -> int:
        nonlocal count
        count += 1
        return a, b, c, count
    count = 0
    more, words = (1, 2), {"q": 1}
    lines = [f"{count} {count!r:>4} {count:03d} {'a'!s}", "%s" % count]
    return inner(1, c=4), called(1, key=2), called(*more, *more, key=3, **words, **{"r": 2}), x.sum().neg(), lines
"""

BRANCHES = """
def program(x):
    found, i, v = [], 0, None
    while i < 4:
        i += 1
        if i == 2 or (i == 3 and found):
            continue
        found.append(i)
    while v is None:
        v = i
    while v is not None:
        v = None
    while not v:
        v = 1
    if x is not v:
        pass
    for k in range(9):
        if k > 5: break
    else:
        found = None
    assert found, "never"
    return found, k, 1 if i else 2, (v if v is None else 3), (v if v is not None else 4)
"""

NAMES = """
spare = 1

def program(x):
    global spare
    spare = 5
    kept = spare
    del spare
    cell = x + 1
    def read():
        return cell
    value = read()
    def drop():
        nonlocal cell
        del cell
    drop()
    try:
        read()
    except NameError as error:
        kept = kept, str(error)
    if kept:
        late = 1
    try:
        del late
        late
    except UnboundLocalError as error:
        kept = *kept, str(error)
    class Holder:
        attribute = 3
    holder = Holder()
    holder.other = 2
    del holder.other
    import math
    from math import pi as circle, e
    return value, kept, hasattr(holder, "other"), math.floor(circle), e
"""

CLASSES = """
def program(x):
    free = 2
    class Base:
        number: int = 1
        again = number
        gone = 3
        del gone
        closed = free
        def value(self):
            return x * self.number
    class Derived(Base):
        def value(self):
            return super().value() + super().number
    return Derived().value(), Base.again, Base.closed, hasattr(Base, "gone"), Base.__annotations__
"""

EXCEPTIONS = """
class Manager:
    def __enter__(self): return 1
    def __exit__(self, *error): return error[0] is KeyError

def early(n):
    try:
        raise ValueError(n)
    except ValueError:
        with Manager():
            return n
    finally:
        n += 1

def program(x):
    trail = []
    for error in (KeyError, ValueError, TypeError, None):
        try:
            with Manager() as entered, Manager():
                if error is not None:
                    raise error("told") from None
                trail.append(entered)
        except (ValueError, ArithmeticError) as caught:
            trail.append(str(caught))
        except TypeError:
            trail.append("type")
        else:
            trail.append("else")
        finally:
            trail.append("finally")
    try:
        try:
            {}["a"]
        finally:
            x = x + 1
    except KeyError:
        pass
    return trail, early(3), x
"""

GENERATORS = """
def numbers(n):
    try:
        got = yield n
        yield from [got, 2]
        yield from others()
    finally:
        pass

def others():
    return (yield 3)

def program(x):
    made = numbers(x)
    return next(made), made.send(5), list(made), tuple(i * x for i in range(2)), list(numbers(1))
"""

COROUTINES = """
class Manager:
    async def __aenter__(self): return 1
    async def __aexit__(self, *error): return error[0] is KeyError

async def given(v):
    return v

class Numbers:
    def __init__(self): self.left = 2
    def __aiter__(self): return self
    async def __anext__(self):
        if not self.left: raise StopAsyncIteration
        self.left -= 1
        return self.left

async def work(x):
    found = []
    async with Manager() as entered:
        found.append(entered)
        raise KeyError
    async for number in Numbers():
        found.append(number)
    return x + await given(3), found, [number async for number in Numbers()]

def program(x):
    try:
        work(x).send(None)
    except StopIteration as done:
        return done.value
"""

ASYNCHRONOUS_GENERATORS = """
async def numbers(x):
    yield 1
    yield x * 2

async def work(x):
    return [number async for number in numbers(x)]

def program(x):
    y = x + 1
    try:
        work(y).send(None)
    except StopIteration as done:
        return done.value, y * 2
"""

PATTERNS = """
class Point:
    __match_args__ = ("a", "b", "c", "d")
    def __init__(self, *parts): self.a, self.b, self.c, self.d = parts

def kind(v):
    match v:
        case 0 | None:
            return "nothing"
        case [a, b, *rest] if a:
            return a, b, rest
        case {"k": [a, b], **rest}:
            return a, b, rest
        case Point(a, b, c=3, d=d):
            return a, b, d
        case [[a, b], [c, d]] | [[a, b, c], d]:
            return a, b, c, d
        case str() as text:
            return text
    return "other"

def program(x):
    given = [0, [1, 2, x], {"k": [1, 2], "q": x}, Point(1, x, 3, 4), "s", 5, [[], [1, 2]], [0, 1, 2]]
    return [kind(v) for v in given]
"""

LONG = "def program(x):\n    v = []\n    for i in range(2):\n" + "".join(
    f"        v.append({i}.5)\n" for i in range(300)
)
LONG += "    return v, x\n"

GROUPS = """
def program(x):
    trail = []
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        trail.append(len(group.exceptions))
    except* KeyError:
        trail.append("key")
    try:
        try:
            raise ExceptionGroup("more", [ValueError(1), TypeError(2)])
        except* ValueError:
            pass
    except ExceptionGroup as rest:
        trail.append(str(rest))
    return trail, x * 2
"""

GENERICS = """
def program(x):
    type Pairs = list[tuple[int, int]]
    class Holder[T]:
        type Inner = dict[str, T]
        limit = 3
        def kept[S: (int, str), *Ts, **P](self, value: S) -> T:
            return value
        type Limited = limit
    bound = Holder.kept.__type_params__[0].__constraints__
    return Holder().kept(x), Pairs.__name__, bound, [str(p) for p in Holder.kept.__type_params__], Holder.Limited.__value__
"""

PROGRAMS: list[tuple[tuple[int, int], str, str]] = [
    ((3, 10), "operators", OPERATORS),
    ((3, 10), "containers", CONTAINERS),
    ((3, 10), "calls", CALLS),
    ((3, 10), "branches", BRANCHES),
    ((3, 10), "names", NAMES),
    ((3, 10), "classes", CLASSES),
    ((3, 10), "exceptions", EXCEPTIONS),
    ((3, 10), "generators", GENERATORS),
    ((3, 10), "coroutines", COROUTINES),
    ((3, 10), "asynchronous generators", ASYNCHRONOUS_GENERATORS),
    ((3, 10), "patterns", PATTERNS),
    ((3, 10), "long", LONG),
    ((3, 11), "groups", GROUPS),
    ((3, 12), "generics", GENERICS),
]

# What the instructions of these do is left to eager.
BREAKING = {"asynchronous generators"}
