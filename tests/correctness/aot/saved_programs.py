"""Programs for the tests of saved functions: a process runs all of them, and tells for each how often it has captured
and whether results, gradients and effects are eager's. ``python -m tests.correctness.aot.saved_programs VARIANT
FOLDER``."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import bolide
from bolide.dynamo.entry.versions import Versions
from tests.correctness.aot import saved_bodies
from tests.correctness.aot.saved_bodies import BODIES

SCALE = 2.0
TABLE = {"gain": 3.0}
LIMIT = 1.5
CAPTURES = [0]


def scaled(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    return x.sin() * k + SCALE


def by_table(x: torch.Tensor) -> torch.Tensor:
    return x * TABLE["gain"]


def activated(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) + 1


def with_default(x: torch.Tensor, k: float = LIMIT) -> torch.Tensor:
    return x.clamp(max=k)


def in_turns(x: torch.Tensor) -> torch.Tensor:
    return x * math.pi


def shared(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args) * 2

    return inner


@shared
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def closed_over(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def closed(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return closed


def written(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.add_(1)
    log.append(x.sum())
    return x.view(-1)[1:]


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    parts: tuple[Any, ...] = ()


def packed(x: torch.Tensor) -> Result:
    return Result(x.exp(), (x, {"n": x.shape[0], "c": torch.tensor([1.0, 2.0])}))


def twice(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum(0)


def own_twice(x: torch.Tensor) -> torch.Tensor:
    return saved_bodies.with_own_gradient(x).sum(0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        return {"y": self.outer(nn.functional.gelu(self.norm(self.inner(x)))) * SCALE, "x": (x, 3)}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves([*value.items()])
    elif dataclasses.is_dataclass(value):
        yield from leaves(vars(value))
    else:
        yield value


def same(wanted: Any, found: Any) -> None:
    wanted, found = [*leaves(wanted)], [*leaves(found)]
    assert len(wanted) == len(found)
    for a, b in zip(wanted, found):
        assert type(a) is type(b), (a, b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
        elif isinstance(a, torch.Generator):
            assert torch.equal(a.get_state(), b.get_state())
        else:
            assert a == b, (a, b)


def compared(fn: Any, compiled: Any, make: Callable[[], tuple[Any, ...]]) -> None:
    """A call, its results, gradients and what it has done to its arguments."""
    state = torch.get_rng_state()
    args = make()
    torch.set_rng_state(state)
    other = make()
    wanted, found = fn(*args), compiled(*other)
    same((wanted, args), (found, other))
    results = [[t for t in leaves(value) if isinstance(t, torch.Tensor) and t.grad_fn] for value in (wanted, found)]
    for outs in results:
        if outs:
            sum(out.sum() for out in outs).backward()
    same(
        [t.grad for t in leaves(args) if isinstance(t, torch.Tensor) and t.is_leaf],
        [t.grad for t in leaves(other) if isinstance(t, torch.Tensor) and t.is_leaf],
    )


def plain(*shape: int, grad: bool = False) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(shape).requires_grad_(grad),)


def of_module(train: bool) -> None:
    module = Layer()
    eager = copy.deepcopy(module)
    compiled = bolide.compile(module)
    with torch.set_grad_enabled(train):
        for _ in range(2):
            compared(eager, compiled, plain(3, 8))
    assert module.calls == eager.calls == 2
    same([p.grad for p in eager.parameters()], [p.grad for p in module.parameters()])


def of_sizes(grad: bool = False) -> None:
    compiled = bolide.compile(scaled)
    for size in (3, 5, 6, 2):
        compared(scaled, compiled, plain(size, 8, grad=grad))


def shortened(x: torch.Tensor, y: torch.Tensor, ratio: float) -> torch.Tensor:
    return x[: int(len(x) * ratio)].sum(0) * y[: round(len(y) / ratio / 3)].mean()


def of_several_numbers() -> None:
    """Sizes that are computed of sizes and floats from several places."""
    compiled = bolide.compile(shortened)
    for size in (5, 7, 4, 9):
        values = torch.randn(size, 8), torch.randn(3 * size), 3 / size
        compared(shortened, compiled, lambda values=values: copy.deepcopy(values))


def second_order(*sizes: int, program: Callable[[torch.Tensor], torch.Tensor] = twice) -> None:
    """A backward that is derived again, from its graphs."""
    compiled = bolide.compile(program)
    for size in sizes:
        x = torch.randn(size, 4, requires_grad=True)
        grads = []
        for fn in (program, compiled):
            (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
            grads.append(torch.autograd.grad(first.pow(2).sum(), x))
        same(*grads)


def missing_gradients(*sizes: int) -> None:
    """The backward for the first result alone, and for both; of sizes that change, each for others."""

    def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ w, x.sin()

    compiled = bolide.compile(two)
    for size, weights in itertools.product(sizes, ((1, 0), (1, 1))):
        grads = []
        for fn in (two, compiled):
            torch.manual_seed(5)
            x, w = torch.randn(size, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
            outs = [out.sum() for out, weight in zip(fn(x, w), weights) if weight]
            grads.append(torch.autograd.grad(sum(outs), (x, w)))
        same(*grads)


def one(fn: Any, make: Callable[[], tuple[Any, ...]], **options: Any) -> None:
    compiled = bolide.compile(fn, **options)
    compared(fn, compiled, make)
    compared(fn, compiled, make)


def with_dropout() -> None:
    """As another process has compiled it: the same numbers from the same seed."""
    compiled = bolide.compile(dropped)
    x = torch.arange(1.0, 65.0)
    torch.manual_seed(3)
    first = compiled(x)
    torch.manual_seed(3)
    same(first, compiled(x))
    assert set((first / x).round(decimals=4).tolist()) == {0.0, 2.0}


def noisy(x: torch.Tensor, generator: torch.Generator) -> tuple[Any, ...]:
    """Draws from a generator, seeds it, and makes another one."""
    own = torch.Generator().manual_seed(7)
    noise = torch.randn(x.shape, generator=generator) + torch.normal(x.detach(), 2.0, generator=own)
    state = generator.get_state()
    dropped = torch.bernoulli(torch.full(x.shape, 0.5), generator=generator)
    generator.set_state(state)
    return x * noise + dropped, torch.empty(5, device="cpu").uniform_(-1, generator=generator), own, generator


class Noise(nn.Module):
    """Has a generator of its own, from which its forward and its backward draw."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.generator = nn.Linear(4, 4), torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) + torch.randint(9, (4,), generator=self.generator)
        if y.requires_grad:
            y.register_hook(lambda grad: grad * torch.rand(grad.shape, generator=self.generator))
        return y.sin()


def seeded() -> tuple[torch.Tensor, torch.Generator]:
    seed = int(torch.randint(1 << 40, ()))
    return torch.randn(3, 4).requires_grad_(), torch.Generator().manual_seed(seed)


def with_generator_held(train: bool) -> None:
    module = Noise()
    eager = copy.deepcopy(module)
    compiled = bolide.compile(module)
    with torch.set_grad_enabled(train):
        for seed in (3, 4):
            for each in (eager, module):
                each.generator.manual_seed(seed)
            compared(eager, compiled, plain(3, 4, grad=train))
            same(eager.generator, module.generator)


def with_generator_in_closure() -> None:
    generator = torch.Generator()

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, generator=generator)

    compiled, told = bolide.compile(drawn), []
    for function in (drawn, compiled, compiled):
        told.append(function(torch.ones(4)) if generator.manual_seed(5) else None)
    same(told[:1] * 2, told[1:])


def of_optimizer(make: Callable[..., torch.optim.Optimizer], **schedule: int) -> None:
    """Whole steps of training: parameters are compared by identity, as keys of the optimizer's state."""
    told = []
    for wrap in (lambda step: step, bolide.compile):
        torch.manual_seed(3)
        module = nn.Linear(8, 4)
        optimizer = make(module.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, **schedule) if schedule else None
        step = wrap(stepping(module, optimizer))
        for x in torch.randn(3, 5, 8):
            told.append(step(x))
            if scheduler is not None:
                scheduler.step()
        told += [p.detach() for p in module.parameters()]
    same(told[: len(told) // 2], told[len(told) // 2 :])


def stepping(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    return step


def breaking(program: Callable[[torch.Tensor], Any] | type[nn.Module], train: bool) -> None:
    """A program with breaks: no part of it is captured."""
    function = program() if isinstance(program, type) else program
    compiled = bolide.compile(copy.deepcopy(function) if isinstance(function, nn.Module) else function)
    with torch.set_grad_enabled(train):
        for _ in range(2):
            compared(function, compiled, plain(3, 4, grad=train))


def dropped(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5)


PROGRAMS: dict[str, Callable[[], None]] = {
    "function": lambda: one(scaled, plain(3, 8)),
    "gradients": lambda: one(scaled, plain(3, 8, grad=True)),
    "table": lambda: one(by_table, plain(5)),
    "function of torch's": lambda: one(activated, plain(5)),
    "default": lambda: one(with_default, plain(7)),
    "constant of a library": lambda: one(in_turns, plain(6)),
    "decorated": lambda: one(decorated, plain(4)),
    "closure": lambda: one(closed_over(FACTOR[0]), plain(4)),
    "writes": lambda: one(written, lambda: (torch.randn(4, 2), [])),
    "results": lambda: one(packed, plain(3)),
    "sizes": of_sizes,
    "several numbers": of_several_numbers,
    "sizes, training": functools.partial(of_sizes, True),
    "module": functools.partial(of_module, False),
    "training": functools.partial(of_module, True),
    "second order": functools.partial(second_order, 3),
    "sizes, second order": functools.partial(second_order, 4, 5, 7),
    "second order of its own": functools.partial(second_order, 4, 5, 7, program=own_twice),
    "missing gradients": functools.partial(missing_gradients, 3),
    "sizes, missing gradients": functools.partial(missing_gradients, 5, 6),
    "dropout": with_dropout,
    "generator": lambda: one(noisy, seeded),
    "generator of a module": functools.partial(with_generator_held, False),
    "generator of a module, training": functools.partial(with_generator_held, True),
    "generator in a closure": with_generator_in_closure,
    "repeated statistics": lambda: one(nn.InstanceNorm1d(4, track_running_stats=True), plain(2, 4, 6, grad=True)),
    "momentum": functools.partial(of_optimizer, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "AdamW": functools.partial(of_optimizer, torch.optim.AdamW),
    "a schedule": functools.partial(of_optimizer, torch.optim.Adam, step_size=2),
    "edited": lambda: one(importlib.import_module("edited").body, plain(4)),
    "inlined": lambda: one(importlib.import_module("edited").outer, plain(4)),
    "behind a break": lambda: one(importlib.import_module("edited").broken, plain(4)),
}
for name, program in BODIES.items():
    PROGRAMS[name] = functools.partial(breaking, program, False)
    PROGRAMS[f"{name}, training"] = functools.partial(breaking, program, True)
FACTOR = [2.5]


@contextmanager
def changed(name: str) -> Iterator[None]:
    """What another process may find changed, by the program that it must not go unseen in."""
    functional = torch.nn.functional
    known = (SCALE, functional.silu, math.pi, with_default.__defaults__, Layer.forward)
    saved_bodies.OFFSET = 7.0 if name.startswith(("print", "stack", "branch", "operator of the")) else 1.0
    globals()["SCALE"] = 7.0 if name in ("function", "gradients", "module", "training", "sizes") else SCALE
    TABLE["gain"] = 5.0 if name == "table" else 3.0
    FACTOR[0] = 9.0 if name == "closure" else 2.5
    if name == "function of torch's":
        functional.silu = lambda x: x * 4  # type: ignore[assignment]
    if name == "constant of a library":
        math.pi = 3.0  # type: ignore[misc]
    if name == "default":
        with_default.__defaults__ = (0.25,)
    try:
        yield
    finally:
        globals()["SCALE"], functional.silu, math.pi, with_default.__defaults__, _ = known


CHANGED = ("function", "gradients", "module", "training", "sizes", "table", "closure", "function of torch's")
CHANGED += ("edited", "inlined", "behind a break", "constant of a library", "default", "print", "print, training")
CHANGED += ("operator of the program's, training",)
CHANGED += ("stack of modules, training", "branch over data", "branch over data, training")


def saved(folder: str) -> None:
    """What was compiled is saved to files."""
    module = Layer()
    compiled = bolide.compile(module)
    compiled(torch.randn(3, 8))["y"].sum().backward()
    module.calls = 0
    with torch.no_grad():
        compiled(torch.randn(3, 8))
    bolide.save_compiled(compiled, f"{folder}/module")
    function = bolide.compile(scaled)
    for size in (3, 5):
        function(torch.randn(size, 8))
    bolide.save_compiled(function, f"{folder}/function")
    for broken in (saved_bodies.in_a_callee, saved_bodies.one_after_the_other):
        compiled = bolide.compile(broken)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                compared(broken, compiled, plain(3, 4, grad=grad))
        bolide.save_compiled(compiled, f"{folder}/{broken.__name__}")


def loaded(folder: str) -> None:
    """Those files in a process that captures nothing, and that cannot make machine code: only what takes over after
    some calls is made then."""
    import llvmlite.binding

    llvmlite.binding.parse_assembly = None
    module, eager = Layer(), Layer()
    module.load_state_dict(eager.state_dict())
    compiled = bolide.load_compiled(f"{folder}/module", module)
    compared(eager, compiled, plain(3, 8))
    same([p.grad for p in eager.parameters()], [p.grad for p in module.parameters()])
    eager.calls = module.calls = 0
    with torch.no_grad():
        compared(eager, compiled, plain(3, 8))
    function = bolide.load_compiled(f"{folder}/function")
    for size in (3, 9):
        compared(scaled, function, plain(size, 8))
    for broken in (saved_bodies.in_a_callee, saved_bodies.one_after_the_other):
        compiled = bolide.load_compiled(f"{folder}/{broken.__name__}")
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                compared(broken, compiled, plain(3, 4, grad=grad))


def main(variant: str, folder: str) -> None:
    """Prints {program: [captures, error]}; `variant`: first, which saves files, too; again, which tells whether LLVM is
    loaded; changed, or load."""
    if variant == "first":
        PROGRAMS["saved"] = functools.partial(saved, folder)
    elif variant == "load":
        PROGRAMS.clear()
        PROGRAMS["loaded"] = functools.partial(loaded, folder)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "of the line that calls")
    bolide.dynamo.config.suppress_errors = False
    made = Versions._make_once

    def counted(self: Versions, *call: Any) -> Any:
        CAPTURES[0] += 1
        return made(self, *call)

    Versions._make_once = counted  # type: ignore[method-assign]
    told: dict[str, tuple[int, str]] = {}
    for name in CHANGED if variant == "changed" else PROGRAMS:
        CAPTURES[0] = 0
        error = ""
        try:
            with changed(name if variant == "changed" else ""):
                PROGRAMS[name]()
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            if os.environ.get("VERBOSE"):
                raise
        told[name] = CAPTURES[0], error
    if variant == "again":
        told["LLVM"] = int("llvmlite.binding" in sys.modules), ""
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
