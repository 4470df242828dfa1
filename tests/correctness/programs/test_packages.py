"""A project behaves the same whether it is installed or not: what is changed of a package in site-packages between two
calls is seen, and what its functions write is written."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.native.check import FIRST_RECORDING

PACKAGE = """
import enum
import functools
import logging
import os
import threading
import types
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

flag, scale, count, name = False, 2.0, 0, "a"
lock = threading.Lock()
log = logging.getLogger("packaged")
log.setLevel(0)
cache, history = {}, []
options = types.SimpleNamespace(fast=False, sizes=[1, 2], nested=types.SimpleNamespace(rate=1.5))


class Kind(enum.Enum):
    PLAIN = 1
    WIDE = 2

    def __init__(self, number):
        self.rate = float(number)


class Options:
    fast = False
    table = {"rate": 2.0}


class Registry(dict):
    def register(self, name):
        def keep(function):
            self[name] = function
            return function
        return keep


plugins = Registry()


@plugins.register("double")
def double(x):
    return x * 2


@dataclass
class Settings:
    rate: float = 1.0
    names: list = field(default_factory=list)


settings = Settings()


class Base:
    made = 0

    def act(self, x):
        return x + 1


class Layer(Base):
    __slots__ = ("rate",)

    def __init__(self):
        self.rate = 3

    def forward(self, x):
        return self.act(x) * self.rate

    @property
    def twice(self):
        return self.rate * 2

    @classmethod
    def new(cls):
        cls.made += 1
        return cls()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def act(self, x):
        return F.relu(x)

    def forward(self, x):
        return self.act(self.norm(self.linear(x)))


torch.manual_seed(0)
layer, net = Layer(), Net()


def helper(x, by=1, *, plus=0.0):
    return x + by + plus


def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) + 1
    return wrapper


@wrapping
def wrapped(x):
    return x * scale


def by_globals(x):
    return (x * 100 if flag else x + 1) * scale + len(name)


def by_helper(x):
    return helper(x) + wrapped(x)


def by_options(x):
    x = x * options.nested.rate + sum(options.sizes) + Options.table["rate"]
    return x * 100 if Options.fast or options.fast else x


def by_method(x):
    return layer.forward(x) + layer.twice


def by_net(x):
    return net(x) + torch.sigmoid(x)


def by_plugin(x):
    return plugins.get("other", plugins["double"])(x)


def by_settings(x):
    return x * settings.rate + len(settings.names) + Kind.WIDE.rate + log.isEnabledFor(10)


def by_builtin(x):
    return x + max(1, 2) + ("packaged" in os.environ)


def counted(x):
    global count
    count += 1
    Layer.new()
    return x + count + Layer.made


def cached(x):
    key = x.shape
    if key not in cache:
        cache[key] = len(cache) + 1
        history.append(key)
    return x * cache[key] + len(history)


def under_lock(x):
    global count
    with lock:
        count += 1
    return x + 1
"""
CHANGES: tuple[str, ...] = (
    "p.flag = not p.flag",
    "p.scale += 1.5",
    "p.scale = -0.0",
    "p.name += 'b'",
    "p.count = 10",
    "p.helper = lambda x: x * 50",
    "p.helper.__defaults__ = (5,)",
    "p.helper.__kwdefaults__ = {'plus': 2.0}",
    "p.helper.__code__ = (lambda x, *more, **named: x - 1).__code__",
    "p.wrapped.__wrapped__.__code__ = (lambda x: x * 7).__code__",
    "p.wrapped = lambda x: x * 3",
    "p.options.fast = not p.options.fast",
    "p.options.sizes.append(3)",
    "p.options.nested.rate += 1",
    "p.options.nested = types.SimpleNamespace(rate=9.0)",
    "p.Options.fast = not p.Options.fast",
    "p.Options.table['rate'] += 1",
    "p.Layer.act = lambda self, x: x * 50",
    "p.Base.act = lambda self, x: x * 20",
    "p.layer.act = lambda x: x * 30",
    "p.layer.rate += 1",
    "p.Layer.twice = property(lambda self: 11)",
    "p.layer = p.Layer()",
    "p.Layer.made = 5",
    "p.Net.act = lambda self, x: torch.tanh(x)",
    "p.Net.forward = lambda self, x: x * 2",
    "p.net.forward = lambda x: x * 4",
    "p.net.linear.forward = lambda x: x * 5",
    "p.net.norm = torch.nn.Identity()",
    "p.net.act = torch.sin",
    "p.plugins['other'] = lambda x: x - 1",
    "p.plugins['double'] = lambda x: x * 3",
    "p.settings.rate += 1",
    "p.settings.names.append('a')",
    "p.Settings.rate = 4.0; p.settings = p.Settings()",
    "p.Kind.WIDE.rate += 1",
    "p.log.setLevel(10 if p.log.level else 40)",
    "p.max = lambda *a: 9",
    "p.cache.clear()",
    "p.history.clear()",
    "p.F = types.SimpleNamespace(relu=torch.cos)",
    "p.torch = types.SimpleNamespace(sigmoid=torch.exp)",
)


READ = {
    "by_globals": ("flag", "scale", "name "),
    "by_helper": ("helper", "wrapped"),
    "by_options": ("ptions.",),
    "by_method": ("ayer",),
    "by_net": ("et.", "p.F", "p.torch"),
    "by_plugin": ("plugins",),
    "by_settings": ("ettings", "Kind", "log"),
    "by_builtin": ("max",),
    "counted": ("count", "made"),
    "cached": ("cache", "history"),
}
"""What changes of what a function reads have in their text."""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """The package as pip installs it, imported anew."""
    folder = tmp_path / "site-packages"
    (folder / "packaged").mkdir(parents=True)
    (folder / "packaged" / "__init__.py").write_text(PACKAGE)

    def fresh() -> Any:
        sys.modules.pop("packaged", None)
        return importlib.import_module("packaged")

    sys.path.insert(0, str(folder))
    yield fresh
    sys.path.remove(str(folder))
    sys.modules.pop("packaged", None)


def life(package: Any, call: Callable[..., Any], changes: list[str], seed: int) -> list[Any]:
    """What calls give before and after each change, with gradients, of several sizes."""
    rng, found = random.Random(seed), []
    torch.manual_seed(seed)
    for change in ("", *changes):
        with contextlib.suppress(AttributeError):  # after another change
            exec(change, {"p": package, "torch": torch, "types": types})
        for _ in range(FIRST_RECORDING + 1):
            x = torch.randn(rng.choice([1, 2, 5]), 3, requires_grad=True)
            result = call(x)
            result.sum().backward()
            found += [result.detach(), x.grad]
        found += [torch.tensor([package.count, len(package.cache), len(package.history), package.Layer.made])]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READ)
def test_changes_of_an_installed_package_are_seen(name: str, package: Callable[[], Any], seed: int) -> None:
    changes = random.Random(seed).sample(CHANGES, 10)
    changes += [change for change in CHANGES if any(word in change for word in READ[name]) and change not in changes]
    print(*changes, sep="\n")
    with config.patch(cache_size_limit=64, accumulated_cache_size_limit=256):
        first = package()
        expected = life(first, getattr(first, name), changes, seed)
        second = package()
        found = life(second, bolide.compile(getattr(second, name)), changes, seed)
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4), (place // (2 * FIRST_RECORDING + 3), a, b)


def test_locks_of_an_installed_package_are_taken(package: Callable[[], Any]) -> None:
    installed = package()
    call = bolide.compile(installed.under_lock)
    call(torch.randn(3))
    with installed.lock:
        thread = threading.Thread(target=call, args=(torch.randn(3),))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and installed.count == 1
    thread.join()
    assert installed.count == 2


def test_an_installed_package_is_one_word_of_the_native_check(package: Callable[[], Any]) -> None:
    """Its globals are known by the version of their dict, until that changes often."""
    installed = package()
    compiled = bolide.compile(installed.by_globals, backend="eager")
    x = torch.randn(2, 3)
    for _ in range(FIRST_RECORDING + 1):
        compiled(x)
    (entry,) = compiled._bolide.entries
    home = next(source for source in entry.check.records[0].dicts if source.obj is vars(installed))
    for number in range(3):
        installed.unread = number
        compiled(x)
    assert home in entry.check.habits.dicts
    passes = entry.check.records[0].program.passes
    installed.unread = -1
    compiled(x)
    assert entry.check.records[0].program.passes == passes + 1, "what is not read does not matter"


LAZY = """
import types
def __getattr__(name):
    if name == "part":  # as numpy.random is imported when it is first asked for
        globals()["part"] = types.SimpleNamespace(scale=3.0)
        return globals()["part"]
    if name == "number":
        return 2.0
    raise AttributeError(f"no {name} here")
"""


def test_parts_of_a_module_that_are_loaded_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_package.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("lazy_package")

    def program(x: torch.Tensor) -> Any:
        for _ in range(2):
            x = x * package.part.scale + package.number
        try:
            return x, package.nothing
        except AttributeError as error:
            return x, str(error), hasattr(package, "nothing")

    compiled = bolide.compile(program)
    for size in (3, 4, 5):
        x = torch.randn(size)
        mine, theirs = compiled(x), program(x)
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[1:] == theirs[1:]
