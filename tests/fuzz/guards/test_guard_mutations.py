"""Random programs that read from the world, and random changes of it between calls: the compiled function does what the
original does, with both forms of the check, and nothing is compiled again for what the program does not read.

``python tests/fuzz/guards/test_guard_mutations.py COUNT SEED`` runs more of them.
"""

from __future__ import annotations

import abc
import argparse
import builtins
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import logging
import math
import os
import random
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from guard_places import PLACES, Place
from torch import nn

import bolide
from bolide.dynamo.config import config

MODULES = (
    abc,
    argparse,
    builtins,
    collections,
    contextvars,
    dataclasses,
    datetime,
    decimal,
    enum,
    fractions,
    functools,
)
MODULES += (logging, math, numpy, os, sys, threading, types, weakref)
HOMES = ("/a.py", "/site-packages/fuzzed/__init__.py")  # of the user's own module, and of an installed one
REPLACED: list[tuple[Any, str]] = [
    (torch, "sigmoid"),
    (torch.nn.functional, "softplus"),
    (torch.nn.functional, "relu"),
    (nn.Identity, "forward"),
    (nn.Identity, "__call__"),
    (nn.Module, "_call_impl"),
    (nn.Sequential, "forward"),
    (torch.Tensor, "abs"),
    (torch.Tensor, "__radd__"),
    (math, "gcd"),
    (os.path, "basename"),
    (builtins, "hex"),
    (builtins, "divmod"),
]
CHANGES = 8  # of one world


def put_back(owner: Any, name: str, value: Any) -> None:
    """None for what a class has from its bases."""
    if value is not None:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


STATE: list[tuple[Any, tuple[Any, ...]]] = [
    (torch.set_grad_enabled, (True,)),
    (torch.set_default_dtype, (torch.float32,)),
    (torch.use_deterministic_algorithms, (False,)),
    (torch.set_float32_matmul_precision, ("highest",)),
    (torch.autograd.set_detect_anomaly, (False,)),
    (torch.set_autocast_enabled, ("cpu", False)),
    (torch.set_autocast_dtype, ("cpu", torch.bfloat16)),
    (torch.backends.cuda.enable_flash_sdp, (True,)),
    (torch._C._set_cudnn_deterministic, (False,)),
    (torch.set_default_device, (None,)),
    (torch.set_num_threads, (torch.get_num_threads(),)),
    (sys.setrecursionlimit, (sys.getrecursionlimit(),)),
    (os.environ.pop, ("BOLIDE_FUZZ", "")),
    (sys.modules.pop, ("bolide_fuzz", None)),
    *[(put_back, (owner, name, vars(owner).get(name))) for owner, name in REPLACED],
]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The process is left as it was."""
    yield
    restore()


def restore() -> None:
    for setter, args in STATE:
        setter(*args)


class Life:
    """A program over some places, in a world that has others as well."""

    def __init__(self, rng: random.Random, places: list[Place]) -> None:
        self.rng = rng
        sys.modules["fuzzed"] = types.ModuleType("fuzzed")  # dataclasses look there
        self.names = sys.modules["fuzzed"].__dict__
        self.names |= {module.__name__: module for module in MODULES}
        self.names |= {"torch": torch, "nn": nn, "handles": [], "flags": [], "__file__": rng.choice(HOMES)}
        self.places = places
        for number, place in enumerate(places):
            exec(place.setup.format(n=number), self.names)
        self.read = rng.sample(range(len(places)), rng.randrange(1, len(places) + 1))
        self.text = self.program()
        exec(self.text, self.names)
        self.log = [self.names["__file__"], self.text]

    def program(self) -> str:
        lines = ["def f(x):", "    r = x * 0"]
        for number in self.read:
            reads = self.places[number].reads.format(n=number)
            form = self.rng.choice(["r = r + ({})", "r = r + 2 * ({})", "for i in range(2): r = r + ({})"])
            lines.append(f"    {form.format(reads)}")
        return "\n".join([*lines, "    return r"])

    def change(self) -> bool:
        """Make one change; whether it is of something that the program reads."""
        number = self.rng.randrange(len(self.places))
        place = self.places[number]
        reading = number in self.read
        others = bool(place.others) and self.rng.random() < 0.4
        text = self.rng.choice(place.others if others else place.changes).format(n=number)
        try:
            exec(text, self.names)
        except (AttributeError, KeyError, IndexError, TypeError, NameError, ValueError) as error:  # after others
            text += f"  # {error}"
        self.log.append(text)
        return reading and not others


GLOBAL = frozenset(place.name for place in PLACES if "{n}" not in place.changes[0]) | {"global hooks", "builtin"}


def outcome(function: Any, x: torch.Tensor) -> Any:
    """The result and the gradient of `x`; or the class of the exception."""
    x = x.detach().requires_grad_(x.requires_grad)
    try:
        result = function(x)
        if result.requires_grad and x.requires_grad:
            result.sum().backward(inputs=[x])
        return result, x.grad
    except Exception as error:
        return type(error)


def same_tensor(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        facts = [(t.dtype, t.shape, t.requires_grad) for t in (a, b)]
        return facts[0] == facts[1] and torch.allclose(a.nan_to_num(), b.nan_to_num(), 1e-3, 1e-4)
    return a is b


def agree(a: Any, b: Any) -> bool:
    return all(map(same_tensor, a, b)) if type(a) is tuple and type(b) is tuple else a is b


def live(rng: random.Random, native: bool) -> int:
    """One program and its changes. Returns how often it was compiled."""
    restore()
    bolide.reset()
    life = Life(rng, rng.choices(PLACES, k=rng.randrange(1, 6)))
    shared = any(place.name in GLOBAL for place in life.places)
    inputs = [
        torch.randn(*shape, 3, requires_grad=rng.random() < 0.3) for shape in rng.sample([(), (1,), (2,), (4,)], 2)
    ]
    with config.patch(enable_cpp_guard_manager=native, cache_size_limit=64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = life.names["f"]
        compiled = bolide.compile(f)
        served: set[int] = set()  # the inputs for which there is a version since what is read has changed
        try:
            for _ in range(CHANGES):
                read = life.change() if rng.random() < 0.9 else False
                served = set() if read or shared else served
                # what both return is compared; what one of them writes, the other sees
                for _ in range(rng.choice([1, 3])):
                    before, which = len(compiled._bolide.entries), rng.randrange(2)
                    expected, found = outcome(f, inputs[which]), outcome(compiled, inputs[which])
                    assert agree(expected, found), (expected, found, *life.log)
                    if which in served and not isinstance(
                        expected, type
                    ):  # an exception that comes back is compiled for
                        assert len(compiled._bolide.entries) == before, ("compiled again", *life.log)
                    served |= {which} if before else set()
        finally:
            restore()
            for handle in life.names["handles"]:
                handle.remove()
        return len(compiled._bolide.entries)


@pytest.mark.parametrize("native", [True, False], ids=["native", "readable"])
def test_changes_are_seen(seed: int, native: bool) -> None:
    rng = random.Random(seed)
    made = sum(live(rng, native) for _ in range(12))
    assert made > 12, "hardly a change was seen"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_each_place(place: Place) -> None:
    """Each change of each place alone."""
    for text in place.changes:
        restore()
        life = Life(random.Random(0), [place])
        x = torch.randn(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = bolide.compile(life.names["f"], backend="eager")  # the backend does not see what is guarded
            for change in ("", text):
                exec(change.format(n=0), life.names)
                for _ in range(3):
                    expected, found = outcome(life.names["f"], x), outcome(compiled, x)
                    assert agree(expected, found), (expected, found, text)
        restore()
        for handle in life.names["handles"]:
            handle.remove()


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for number in range(first, first + count):
        try:
            live(random.Random(number), number % 2 == 0)
        except Exception as error:
            failed += 1
            print(number, type(error).__name__, *error.args, sep="\n    ")
    restore()
    print(f"{count} programs from {first}: {failed} failed")
