"""Random generators of the user's in compiled functions: eager's numbers, and eager's state afterwards, with every
backend."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bolide
from tests.thread_tools import together

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])


def fresh(g: torch.Generator, x: torch.Tensor) -> Any:
    noise = torch.randn(x.shape, generator=g), torch.rand(3, generator=g), torch.randint(0, 9, (4,), generator=g)
    return *noise, torch.randperm(5, generator=g), torch.normal(0.5, 2.0, (3,), generator=g), x * noise[0]


def from_tensors(g: torch.Generator, x: torch.Tensor) -> Any:
    p = x.detach().sigmoid()
    drawn = torch.bernoulli(p, generator=g), torch.multinomial(p, 2, generator=g), torch.poisson(p, generator=g)
    return *drawn, torch.normal(p, 1.0, generator=g), x * drawn[0]


def in_place(g: torch.Generator, x: torch.Tensor) -> Any:
    y = x * 2
    made = torch.empty(4).uniform_(generator=g), x.detach().clone().normal_(0.5, 2, generator=g)
    return *made, y.detach().bernoulli_(0.3, generator=g), y[:2].detach().exponential_(generator=g), y + made[1]


def initialised(g: torch.Generator, x: torch.Tensor) -> Any:
    weight = nn.init.xavier_uniform_(torch.empty(5, 5), generator=g)
    return x @ nn.init.kaiming_normal_(weight, generator=g)


def twice(g: torch.Generator, x: torch.Tensor) -> Any:
    """Results that look equal are not, and each is drawn once although the gradient needs both."""
    a, b = torch.rand(5, generator=g), torch.rand(5, generator=g)
    return (x * a).exp() * b, a


def unused(g: torch.Generator, x: torch.Tensor) -> Any:
    """What is drawn moves the generator on, whatever becomes of it."""
    torch.rand(3, generator=g)
    torch.empty(2).uniform_(generator=g)
    return x + 1


@BACKENDS
@pytest.mark.parametrize("fn", [fresh, from_tensors, in_place, initialised, twice, unused])
def test_numbers_and_states(fn: Callable[..., Any], backend: str) -> None:
    compiled: Any = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(3):  # another generator each time
        ours = torch.Generator().manual_seed(int(torch.randint(2**40, ())))
        theirs = ours.clone_state()
        x = torch.randn(5)
        before, found = torch.get_rng_state(), []
        for function, generator in ((compiled, ours), (fn, theirs)):
            leaf = x.clone().requires_grad_()
            out = function(generator, leaf)
            last = out if isinstance(out, torch.Tensor) else next(part for part in out if part.requires_grad)
            found.append((out, *torch.autograd.grad(last.sum(), leaf)))
        torch.testing.assert_close(*found)
        assert torch.equal(ours.get_state(), theirs.get_state())
        assert torch.equal(torch.get_rng_state(), before)
    assert len(compiled._bolide.entries) == 1


Drawn = Callable[[torch.Tensor, int, float, torch.Generator], Any]
OF_SYMBOLS: dict[str, Drawn] = {
    "randint": lambda x, n, c, g: (torch.randint(x.size(0), (3,), generator=g), torch.randint(n, (n,), generator=g)),
    "randint of a range": lambda x, n, c, g: torch.randint(n, n * x.size(0), (3,), generator=g),
    "randint out": lambda x, n, c, g: torch.randint(n, (n,), generator=g, out=torch.empty(n, dtype=torch.int64)),
    "randperm": lambda x, n, c, g: (torch.randperm(x.size(0), generator=g), x[torch.randperm(n, generator=g)]),
    "multinomial": lambda x, n, c, g: (
        torch.multinomial(x, n, generator=g),
        torch.multinomial(x, n, True, generator=g),
    ),
    "random_": lambda x, n, c, g: (x.clone().random_(n, generator=g), x.clone().random_(n, n * 8, generator=g)),
    "uniform_": lambda x, n, c, g: (x.clone().uniform_(0, n, generator=g), x.clone().uniform_(c, c + 1, generator=g)),
    "normal": lambda x, n, c, g: (x.clone().normal_(n, c, generator=g), torch.normal(c, n, (n,), generator=g)),
    "normal of tensors": lambda x, n, c, g: (torch.normal(x, c, generator=g), torch.normal(c, x * n, generator=g)),
    "bernoulli": lambda x, n, c, g: (torch.bernoulli(x, 1 / n, generator=g), torch.bernoulli(x / n, generator=g)),
    "bernoulli_": lambda x, n, c, g: (
        x.clone().bernoulli_(1 / n, generator=g),
        x.clone().bernoulli_(x / n, generator=g),
    ),
    "bernoulli of a float": lambda x, n, c, g: torch.bernoulli(x.expand(n, -1).t(), 1 / c, generator=g),
    "rand": lambda x, n, c, g: (torch.rand(n, x.size(0), generator=g), torch.randn(x.size(0), n, generator=g)),
    "rare": lambda x, n, c, g: (x.clone().exponential_(n, generator=g), x.clone().geometric_(1 / c, generator=g)),
    "rates": lambda x, n, c, g: (torch.poisson(x * n, generator=g), torch.binomial(x * n, x / 2, generator=g)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_SYMBOLS)
def test_numbers_and_sizes_that_are_symbols(name: str, dynamic: bool | None) -> None:
    function = OF_SYMBOLS[name]
    compiled: Any = bolide.compile(function, dynamic=dynamic, fullgraph=True)
    for n in (3, 40, 9, 70, 2):
        ours, theirs = torch.Generator().manual_seed(n), torch.Generator().manual_seed(n)
        mine, real = compiled(torch.ones(n + 2), n, n + 0.5, ours), function(torch.ones(n + 2), n, n + 0.5, theirs)
        torch.testing.assert_close(mine, real)
        for a, b in zip(*[drawn if type(drawn) is tuple else (drawn,) for drawn in (mine, real)]):
            assert a.stride() == b.stride()
        assert torch.equal(ours.get_state(), theirs.get_state())


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor, other: torch.Generator | None = None) -> torch.Tensor:
        x = x + torch.randn(x.shape, generator=self.generator)
        return x * torch.rand(x.shape, generator=other)


def test_attributes_and_the_default_one() -> None:
    model = Noisy()
    twin = Noisy()
    compiled = bolide.compile(model, backend="eager", fullgraph=True)
    for other in (None, torch.default_generator, model.generator):
        x = torch.randn(3)
        found = []
        for function, own in ((compiled, model), (twin, twin)):
            torch.manual_seed(3)
            found.append(function(x, own.generator if other is model.generator else other))
        torch.testing.assert_close(*found)
        assert torch.equal(model.generator.get_state(), twin.generator.get_state())


def made(x: torch.Tensor) -> Any:
    generator = torch.Generator()
    generator.manual_seed(3)
    return x + torch.rand(3, generator=generator), generator


def seeded(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(2**64 - 4)
    number = generator.initial_seed()
    state = generator.get_state()
    a = torch.rand(3, generator=generator)
    generator.set_state(state)
    return x + a, torch.rand(3, generator=generator), number


def of_torch(x: torch.Tensor) -> Any:
    torch.manual_seed(-4)
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        b = torch.rand(3)
    return x + a, b, torch.rand(3), torch.randperm(7), state


@torch.random.fork_rng(devices=[])
def forked(x: torch.Tensor) -> Any:
    return x + torch.rand(3)


def of_a_decorator(x: torch.Tensor) -> Any:
    before = torch.initial_seed()
    torch.manual_seed(4)
    seed = torch.initial_seed()
    return forked(x), torch.rand(3), before, seed


def between(x: torch.Tensor) -> Any:
    a = torch.rand(3)
    torch.manual_seed(1)
    return a, x + torch.rand(3)


STATES = pytest.mark.parametrize("fn", [made, seeded, of_torch, of_a_decorator, between])


def _plain(value: Any) -> Any:
    return value.get_state() if isinstance(value, torch.Generator) else value


@STATES
def test_seeds_and_states(fn: Callable[..., Any]) -> None:
    compiled: Any = bolide.compile(fn, backend="eager", fullgraph=True)
    for _ in range(3):
        x = torch.randn(3)
        torch.manual_seed(5)  # what `initial_seed` answers is guarded
        found: list[Any] = []
        start = torch.get_rng_state()
        for function in (compiled, fn):
            torch.set_rng_state(start)
            found.append((tuple(map(_plain, function(x))), torch.get_rng_state(), torch.rand(2)))
        torch.testing.assert_close(*found, rtol=0, atol=0)
    assert len(compiled._bolide.entries) == 1


def seeded_by(x: torch.Tensor, seed: int, generator: torch.Generator) -> Any:
    first = torch.rand(20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        a = x * torch.rand(20)
        torch.set_rng_state(state)
        b = x * torch.rand(20)
    generator.manual_seed(seed)
    return first, a, b, torch.rand(20), torch.rand(20, generator=generator)


def test_draws_follow_from_the_seed() -> None:
    """Numbers of its own keep what eager promises of them: they follow from the state."""
    compiled: Any = bolide.compile(seeded_by, fullgraph=True)
    x, g = torch.ones(20), torch.Generator()
    runs: dict[int, Any] = {}
    for number, (outer, seed) in enumerate([(1, 50), (1, 60), (1, 70), (2, 60), (1, 60)]):
        torch.manual_seed(outer)
        first, a, b, last, own = compiled(x, seed, g)
        assert torch.equal(a, b) and torch.equal(own, torch.rand(20, generator=torch.Generator().manual_seed(seed)))
        assert len({tuple(part.tolist()) for part in (first, a, last, own)}) == 4
        runs[number] = first, a, last
    for outer_too, one, other in ((True, 1, 4), (False, 1, 3)):
        same = [torch.equal(p, q) for p, q in zip(runs[one], runs[other])]
        assert same == ([True] * 3 if outer_too else [False, True, False])
    assert not torch.equal(runs[0][1], runs[1][1])
    assert len(compiled._bolide.entries) == 2  # a seed that varies is a symbol


@BACKENDS
def test_gradients_of_gradients_do_not_draw_again(backend: str) -> None:
    def fn(x: torch.Tensor, g: torch.Generator) -> Any:
        torch.manual_seed(3)
        kept = torch.dropout(x, 0.5, True)
        torch.manual_seed(3)
        return kept * torch.dropout(x, 0.5, True), (x * torch.rand(30, generator=g)) ** 3

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    x = torch.rand(30, requires_grad=True)
    g = torch.Generator().manual_seed(7)
    drawn = torch.rand(30, generator=g.clone_state())
    squared, cubed = compiled(x, g)
    state = g.get_state()
    kept = squared != 0
    torch.testing.assert_close(squared, torch.where(kept, 4 * x * x, 0))
    (first,) = torch.autograd.grad((squared + cubed).sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.where(kept, 8 * x, 0) + 3 * x**2 * drawn**3)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.where(kept, 8.0, 0.0) + 6 * x * drawn**3)
    assert torch.equal(g.get_state(), state)


def asked(x: torch.Tensor) -> Any:
    generator = torch.Generator()
    generator.set_state(torch.Generator().manual_seed(3).get_state())
    return x + 1, generator.initial_seed()


def by_data(x: torch.Tensor) -> Any:
    y = x + 1
    torch.manual_seed(x.sum().int())
    return y, torch.rand(3)


def of_the_moment(x: torch.Tensor) -> Any:
    y = x + 1
    torch.seed()
    torch.manual_seed(3)
    return y, torch.rand(3)


def copied(x: torch.Tensor) -> Any:
    g = torch.Generator().manual_seed(3)
    return x + torch.rand(3, generator=g), torch.rand(3, generator=g.clone_state())


@pytest.mark.parametrize("fn", [asked, by_data, of_the_moment, copied])
def test_what_is_done_for_real(fn: Callable[..., Any]) -> None:
    compiled = bolide.compile(fn, backend="eager")
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), fn(x))
    with pytest.raises(bolide.Unsupported) as caught:
        bolide.compile(fn, backend="eager", fullgraph=True)(x)
    assert caught.value.kind == "generator_state"


def test_branches_on_data_do_not_draw() -> None:
    def fn(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand(3, generator=g), lambda x: x - 1, (x,))

    with pytest.raises(bolide.Unsupported, match="draws from a random generator, or changes one"):
        bolide.compile(fn, backend="eager", fullgraph=True)(torch.ones(3), torch.Generator())


class Keeper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.generator = torch.Generator().manual_seed(6)
        x = x + torch.rand(3, generator=self.generator)
        bolide.graph_break()
        return x * torch.rand(3, generator=self.generator)


@BACKENDS
def test_generators_outlive_segments_and_calls(backend: str) -> None:
    model, twin = Keeper(), Keeper()
    compiled = bolide.compile(model, backend=backend)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), twin(x))
        assert torch.equal(model.generator.get_state(), twin.generator.get_state())


def test_a_refuted_call_draws_once() -> None:
    """The graph has drawn when its check fails; eager draws the same numbers."""

    def fn(g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rand(3, generator=g)
        if (y > 100).any():
            raise ValueError("too large")
        return y

    g = torch.Generator().manual_seed(3)
    compiled = bolide.compile(fn, backend="eager", fullgraph=True)
    compiled(g, torch.ones(3))
    expected = copy.deepcopy(g.get_state())
    torch.rand(3, generator=(twin := g.clone_state()))
    with pytest.raises(ValueError, match="too large"):
        compiled(g, torch.full((3,), 1e9))
    assert torch.equal(g.get_state(), twin.get_state()) and not torch.equal(g.get_state(), expected)


def test_threads_draw_from_their_own() -> None:
    def fn(g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=g)

    compiled = bolide.compile(fn, backend="aot_eager", fullgraph=True)
    x = torch.zeros(3)
    compiled(torch.Generator(), x)

    def work(seed: int) -> None:
        g, twin = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        for _ in range(50):
            assert torch.equal(compiled(g, x), torch.rand(3, generator=twin))

    together(work, 4)


def noisy(x: torch.Tensor, w: torch.Tensor, seeds: list[int], shared: torch.Generator) -> torch.Tensor:
    """A walk whose steps are drawn by seeds; later steps bridge earlier ones."""

    def drawn(seed: int) -> torch.Tensor:
        if seed % 3 == 0:
            return torch.randn(x.shape, generator=shared.manual_seed(seed))
        return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))

    t, rest = torch.tensor(0.0), drawn(0)
    for seed in seeds:
        step = rest * 0.25 + 0.5 * drawn(seed)
        rest = rest - step
        after = t + 0.25
        x = x + (x @ w).tanh() * (after - t) + (x @ w.T).sigmoid() * step
        t = after
    return x


def test_draws_stay_behind_their_seeds_however_steps_share_kernels() -> None:
    for _ in range(4):
        steps = random.randint(2, 5)
        seeds = [random.randrange(1000) for _ in range(steps) for _ in range(random.randint(1, 2))]
        compiled = bolide.compile(noisy, fullgraph=True)
        for size in (3, 5, 4):
            w = torch.randn(6, 6, dtype=torch.float64)
            x = torch.randn(size, 6, dtype=torch.float64)
            results = []
            for function in (noisy, compiled):
                leaf, g = x.clone().requires_grad_(), torch.Generator()
                out = function(leaf, w, seeds, g)
                out.sum().backward()
                results.append((out.detach(), leaf.grad, g.get_state()))
            torch.testing.assert_close(*results)


@torch.library.custom_op("bolide_tests::noise_written", mutates_args=["x"], tags=(torch.Tag.nondeterministic_seeded,))
def add_noise(x: torch.Tensor) -> None:
    x.add_(torch.rand(x.shape))


def with_noise(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    add_noise(out)
    return out


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu_": lambda x: F.rrelu(x * 1, training=True, inplace=True),
    "noise of its own": lambda x: torch.ops.aten.rrelu_with_noise(x, torch.empty_like(x), training=True),
    "an operator that writes": with_noise,
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "feature_dropout": lambda x: F.dropout1d(x[:, :, None], 0.5, training=True),
    "rand_like": torch.rand_like,
    "bernoulli": lambda x: torch.bernoulli(x.detach().sigmoid()),
    "poisson": lambda x: torch.poisson(x.detach().square() * 9),
    "multinomial": lambda x: x.detach().sigmoid().multinomial(8),
    "randperm": lambda x: torch.randperm(len(x)) + x.sum(),
    "gumbel_softmax": F.gumbel_softmax,
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.2),
    "normal": lambda x: torch.normal(x.detach(), 2.0),
}


@BACKENDS
@pytest.mark.parametrize("name", DRAWS)
def test_two_draws_are_two(name: str, backend: str) -> None:
    """From torch's generator, of the same arguments; the gradient of each is of its own numbers."""

    def program(x: torch.Tensor) -> Any:
        return DRAWS[name](x), DRAWS[name](x)

    x = -torch.rand(24, 24).add(0.5).requires_grad_()
    one, other = bolide.compile(program, backend=backend)(x)
    assert not torch.equal(one, other)
    if name.startswith("rrelu"):
        for drawn in (one, other):
            torch.testing.assert_close(torch.autograd.grad(drawn.sum(), x, retain_graph=True)[0], (drawn / x).detach())
