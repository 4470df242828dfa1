"""A text with numbers of the graph in it, in every place of what Python does with strings: eager's answers, whichever
side of the operation it is on. (A text of a tensor is read behind a break; one of sizes makes a version.)"""

from __future__ import annotations

import collections
import decimal
import enum
import fractions
import functools
import io
import itertools
import json
import operator
import os
import re
import string
import textwrap
import types
from typing import Any

import pytest
import torch

import bolide


class Holder:
    a5 = 1


Color = enum.Enum("Color", {"A": "5"})
holder = Holder()
SCOPE = {
    "Color": Color,
    "holder": holder,
    **{
        module.__name__: module
        for module in (collections, decimal, fractions, functools, io, itertools, json, operator, os, re, string)
    },
    "textwrap": textwrap,
}

SEARCHES = """
t in "4, 5, 6"
t not in "45"
t in "x"
"5" in t
t in [t, "5"]
t in ("4", "5")
t in {"4", "5"}
t in {"4": 1}
(t, 1) in [("4", 1), ("5", 1)]
operator.contains("456", t)
str.__contains__("456", t)
"456".__contains__(t)
"a5b".find(t)
"a5b".index(t)
"a5b".count(t)
"5b".startswith(("x", t))
"5b".endswith((t,))
"a5b".partition(t)
"a5b".strip(t)
"a5b".removeprefix(t)
"4-5".split(t)
["4", "5"].count(t)
["4", "5", "6", t].index(t)
any(c == t for c in "456")
re.match(t, "456") is None
""".strip().splitlines()
MAKING = """
"abc".translate({97: t})
t + "a"
"a" + t
"a".__add__(t)
2 * t
"%s-%s" % (t, 1)
"%(a)s" % {"a": t}
"{:>5}{k}".format(t, k=t)
"{a[0]}".format(a=[t])
f"{t:>5}{t!r}{'abc':>{len(t) + 3}}"
"a5b".replace(t, "c")
"a5b".replace("a", t)
t.translate({53: "c"})
t.join(["a", "b"])
"-".join({t: 1})
"-".join(s for s in [t, "z"])
"".join(reversed(t))
"x".ljust(4, t[0])
re.sub("5", t, "a5b")
textwrap.dedent(t)
string.Template("$a").substitute(a=t)
os.path.join("a", t)
json.dumps({"a": t})
functools.reduce(lambda a, b: a + b, [t, "b"], "")
io.StringIO(t).read()
operator.mod("%s", t)
t.encode()
str(ValueError(t)), repr(KeyError(t))
""".strip().splitlines()
KEYS = """
type("N" + t, (), {}).__name__
{"4": 1, "5": 2}.get(t, 3)
{t: 1}["5"]
dict([(t, 1)])
dict(**{"k" + t: 1})
(lambda **k: sorted(k))(**{"k" + t: 1})
{("5", 1): 2}.get((t, 1))
collections.Counter([t, t])
collections.OrderedDict([(t, 1)])
getattr(holder, "a" + t, 3)
hasattr(holder, "a" + t)
vars(holder).get(t)
Color(t)
{"5"} & {t}
{"5"}.union([t]) == {"5"}
hash(t) == hash("5")
""".strip().splitlines()
READING = """
int(t), float(t), ord(t[0]), len(t)
t[0], t[-1:], t[::-1]
list(t), tuple(t), [c for c in t]
(lambda *a: a)(*t)
list(zip(t, "ab")), list(enumerate(t))
max(t, "3"), sorted(["9", t, "1"])
t < "5", "5" < t, "5" >= t, t == t, "5" == t, t != 5
(t, 1) == ("5", 1), [t] == ["5"], {"a": t} == {"a": "5"}
isinstance(t, str), type(t) is str, issubclass(type(t), str), callable(t)
bool(t), not t, t and 1, t is t, t is None
fractions.Fraction(t), decimal.Decimal(t)
range(int(t)), x.new_zeros(int(t), 2).shape
list(itertools.product(t, "ab"))
t.split("5"), t.isdigit(), t.zfill(4)
json.loads(t)
int(t, 16), bytes(t, "ascii")
""".strip().splitlines()
GROUPS = {"searches": SEARCHES, "making": MAKING, "keys": KEYS, "reading": READING}
TEXTS = {"size": "str(x.shape[0])", "joined": "', '.join(map(str, x.shape))", "tensor": "f'{x.sum():.1f}'"}


def program_of(lines: list[str], text: str) -> Any:
    body = [f"def program(x):\n    answers = []\n    t = {text}\n"]
    for line in lines:
        body.append(f"    try: answers.append(({line}))\n    except Exception as e: answers.append(repr(e))\n")
    module = types.ModuleType("text_operations")
    vars(module).update(SCOPE)
    exec("".join([*body, "    return x * 2, answers\n"]), vars(module))
    return vars(module)["program"]


def seen(answers: list[Any]) -> list[Any]:
    return [(type(answer), repr(answer)) for answer in answers]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_every_place(group: str, text: str) -> None:
    program = program_of(GROUPS[group], TEXTS[text])
    compiled = bolide.compile(program)
    for size in (4, 5, 6):
        x = torch.arange(float(size), requires_grad=True)
        (doubled, answers), (_, expected) = compiled(x), program(x)
        for line, mine, theirs in zip(GROUPS[group], seen(answers), seen(expected), strict=True):
            assert mine == theirs, line
        (grad,) = torch.autograd.grad(doubled.sum(), x)
        assert torch.equal(grad, torch.full_like(x, 2.0))
