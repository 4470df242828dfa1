"""The module that the small programs of every day live in, as data."""

from __future__ import annotations

PRELUDE = r"""
import abc
import bisect
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import inspect
import itertools
import json
import keyword
import logging
import math
import operator
import os
import random
import re
import statistics
import string
import textwrap
import time
import types
import typing
import warnings
import weakref
from typing import *
import numpy as np
import torch.nn.functional as F
from torch import sub
import torch.utils._pytree as pytree
import torch
import bolide
nn = torch.nn

class Own(collections.OrderedDict):
    pass
class C:
    a = 1
clip01 = functools.partial(torch.clip, min=0.0, max=1.0)
@torch.jit.script_if_tracing
def sit(x, c=1.2):
    return x + c
@torch.jit.ignore
def ig(x):
    return x + 3.4
@torch.jit.unused
def un(x):
    return x + 5
@functools.lru_cache
def cached(x, y, _=None):
    return torch.sin(x * y)
class MM(collections.abc.MutableMapping):

    def __init__(self):
        self._d = {}

    def __delitem__(self, k):
        del self._d[k]

    def __getitem__(self, k):
        return self._d[k]

    def __iter__(self):
        return iter(self._d)

    def __len__(self):
        return len(self._d)

    def __setitem__(self, k, v):
        self._d[k] = v
class Keys(collections.abc.KeysView):

    def __init__(self, k):
        self.keys = k

    def __iter__(self):
        yield from self.keys

    def __len__(self):
        return len(self.keys)

    def __contains__(self, i):
        return self.keys.__contains__(i)
NT = collections.namedtuple('NT', ['x', 'y', 'xy'], defaults=(None, 1, None))
class Pt(NamedTuple):
    first: torch.Tensor
    second: Any = 3

    def add(self):
        return self.first + self.second

    @staticmethod
    def sm():
        return 1

    @classmethod
    def cm(cls):
        return cls.__name__

    @property
    def pr(self):
        return self.first * 2
class Small(torch.nn.Module):

    def forward(self, x, y):
        return torch.relu(torch.cat((x, y), dim=1))
def um(mod, x, y):
    return mod(x, y)
def gd(x=torch.zeros(2, 2), *, k=torch.zeros(1, 2)):
    x.add_(1)
    k.add_(1)
    return (x.clone(), k.clone())
def tdef(dt=torch.float16, ds=torch.Size((1, 2, 3)), dd=torch.device('cpu')):
    return torch.ones(ds, dtype=dt, device=dd)
@dataclasses.dataclass
class Out:
    scalar: int = 2
    named: dict = dataclasses.field(default_factory=dict)
    lists: list = dataclasses.field(default_factory=list)

    def scale(self):
        return self.scalar * 2

    def __post_init__(self):
        self.extra = self.scalar + 1
@dataclasses.dataclass(order=True)
class Fr(Out):
    inner: Any = None

    def __post_init__(self):
        pass
class S1:

    def __str__(self):
        return 'ok'

    def __repr__(self):
        return 'rep'

    def __format__(self, spec):
        return 'F' + spec

    def __len__(self):
        return 3

    def __bool__(self):
        return False

    def __contains__(self, i):
        return i == 3

    def __getitem__(self, i):
        return i * 2 if i < 3 else (_ for _ in ()).throw(IndexError)

    def __call__(self, x):
        return x + 1

    def __int__(self):
        return 4

    def __float__(self):
        return 4.5

    def __index__(self):
        return 2

    def __hash__(self):
        return 7

    def __eq__(self, o):
        return isinstance(o, S1)

    def __neg__(self):
        return 'neg'

    def __add__(self, o):
        return ('add', o)

    def __radd__(self, o):
        return ('radd', o)

    def __abs__(self):
        return 'abs'

    def __round__(self, n=None):
        return ('round', n)

    def __reversed__(self):
        return iter([9])

    def __enter__(self):
        return self

    def __exit__(self, *a):
        return True

    def __lt__(self, o):
        return True

    def __getattr__(self, n):
        if n.startswith('dyn'):
            return n
        raise AttributeError(n)

    def __dir__(self):
        return ['q']

    def __matmul__(self, o):
        return 'mm'

    def __iadd__(self, o):
        self.v = o
        return self

    def __divmod__(self, o):
        return (1, o)

    def __trunc__(self):
        return 5

    def __floor__(self):
        return 6

    def __ceil__(self):
        return 8

    def __bytes__(self):
        return b'by'

    def __complex__(self):
        return 1j
nn = torch.nn
TV = TypeVar('TV')
class It:

    def __iter__(self):
        self.a = 1
        return self

    def __next__(self):
        if self.a > 3:
            raise StopIteration
        self.a += 1
        return self.a
class Gi:

    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10

    def __len__(self):
        return 3
class MyT(tuple):

    def len2(self):
        return len(self) * 2

    def __contains__(self, v):
        self.checked = True
        return super().__contains__(v)
class MyTN(tuple):

    def __new__(cls, *a, **k):
        return super().__new__(cls, [1, 2, 3])
class MyL(list):

    def len2(self):
        return len(self) * 2

    def __contains__(self, v):
        self.checked = True
        return super().__contains__(v)
class MyD(dict):

    def __missing__(self, k):
        return k * 2

    def __setitem__(self, k, v):
        super().__setitem__(k, (v, 'set'))
class MyOD(collections.OrderedDict):

    def first(self):
        return next(iter(self))
class MyS(set):

    def add2(self, v):
        self.add(v)
        self.add(v + 1)
class MyFS(frozenset):
    pass
class MyDD(collections.defaultdict):
    pass
class MyDQ(collections.deque):

    def top(self):
        return self[-1]
class MyStr(str):

    def shout(self):
        return self.upper() + '!'
class MyInt(int):

    def __add__(self, o):
        return MyInt(int(self) + int(o) + 1)
class MyF(float):
    pass
class NTm(NamedTuple):
    a: Any
    b: Any = 2
class Pair(NTm):

    def __new__(cls, a, b):
        return super().__new__(cls, a, b)

    def __add__(self, o):
        return Pair(self.a + o.a, self.b + o.b)
class Gen(NamedTuple, Generic[TV]):
    f: TV
    s: TV

    def add(self):
        return self.f + self.s
class GenSub(Gen[TV]):
    pass
def pget(o, *, delta):
    return getattr(o, 'flag', 0) + delta > 0
class PM(nn.Module):

    def __init__(self):
        super().__init__()
        self.flag = 1
    p = property(functools.partial(pget, delta=1))

    @property
    def q(self):
        return self.flag * 2

    @q.setter
    def q(self, v):
        self.flag = v + 1

    @functools.cached_property
    def c(self):
        return self.flag + 100

    @staticmethod
    def st(v):
        return v + 1

    @classmethod
    def cm(cls, v):
        return (cls.__name__, v)

    def __getattr__(self, n):
        if n == 'magic':
            return 42
        return super().__getattr__(n)

    def forward(self, x):
        self.q = x.shape[0]
        self.extra = x.sum()
        return (x + 1 if self.p else x - 1, self.q, self.c, self.st(x), self.cm(2), self.magic, hasattr(self,
            'nope'), self.flag)
class CM:

    def __init__(self, l):
        self.l = l

    def __enter__(self):
        self.l.append('in')
        return self

    def __exit__(self, t, v, tb):
        self.l.append(t.__name__ if t else None)
        return t is ValueError
@contextlib.contextmanager
def gcm(l, v):
    l.append('g' + str(v))
    try:
        yield v
    except KeyError as e:
        l.append(repr(e))
    finally:
        l.append('fin')
class DecoCM(contextlib.ContextDecorator):
    n = 0

    def __enter__(self):
        type(self).n += 1
        return self

    def __exit__(self, *a):
        return False
class Color(enum.Enum):
    RED = 1
    GREEN = 'g'

    @property
    def low(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.RED
class IE(enum.IntEnum):
    A = 1
    B = 2
class FL(enum.Flag):
    R = 1
    W = 2
class SE(str, enum.Enum):
    X = 'x'
class Meta(type):

    def __getattr__(cls, n):
        return len(n)

    def __call__(cls, *a, **k):
        o = super().__call__(*a, **k)
        o.made = True
        return o

    def __len__(cls):
        return 7

    def __contains__(cls, i):
        return i == 3

    def __iter__(cls):
        return iter([1, 2])

    def __instancecheck__(cls, i):
        return i == 5

    def __getitem__(cls, i):
        return ('item', i)

    @property
    def pp(cls):
        return 'metaprop'
class WithMeta(metaclass=Meta):
    attr = 123
class Slots:
    __slots__ = ('a', 'b')

    def __init__(self, a):
        self.a = a
class Desc:

    def __set_name__(self, o, n):
        self.n = n

    def __get__(self, o, t=None):
        return self if o is None else o.__dict__.get('_' + self.n, 'unset')

    def __set__(self, o, v):
        o.__dict__['_' + self.n] = (v, 'd')

    def __delete__(self, o):
        del o.__dict__['_' + self.n]
class Base:
    count = 0
    reg = []

    def __init_subclass__(cls, tag=None, **k):
        super().__init_subclass__(**k)
        cls.tag = tag
        Base.reg.append(cls.__name__)

    def __init__(self, v):
        self.v = v
        type(self).count += 1

    def hello(self):
        return ('base', self.v)
class Child(Base, tag='t'):
    d = Desc()

    def __init__(self, v):
        super().__init__(v)
        self.w = v + 1

    def hello(self):
        return ('child', super().hello(), super(Child, self).hello())

    def __eq__(self, o):
        return self.v == o.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, o):
        return self.v < o.v
class Mixin:

    def hello(self):
        return ('mixin', super().hello())
class Multi(Mixin, Child):
    pass
G_COUNT = 0
G_LIST = []
G_T = torch.ones(4)
class Cfg:

    def __init__(self, **k):
        self.__dict__.update(k)

    def __getattr__(self, n):
        raise AttributeError(f'no {n}')

    def get(self, n, d=None):
        return getattr(self, n, d)

    def __contains__(self, k):
        return k in self.__dict__

    def __iter__(self):
        return iter(self.__dict__)

    def keys(self):
        return self.__dict__.keys()

    def __getitem__(self, k):
        return self.__dict__[k]
def uuid_():
    import uuid
    return str(uuid.UUID(int=5))
"""
