"""Random numbers of traced programs: the generator, its distributions, repeatability; torch._dynamo stays out."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.tracing import Trace, rng


def test_philox_known_answers() -> None:
    """The first two vectors of the authors' own test file (Random123, kat_vectors), as far as our counters reach."""
    words = [int(word[0]) for word in rng.philox_words(0, 0, 1)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def _traced(program: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.fx.GraphModule:
    trace = Trace()
    with trace.recording():
        result: Any = program(trace.input(x, "x"))
    trace.graph.output(result.node)
    meta = result.node.meta["val"]
    module = torch.fx.GraphModule(trace.constants, trace.graph)
    told, wanted = module(x), program(x)
    assert (meta.shape, meta.stride, meta.dtype) == (tuple(wanted.shape), wanted.stride(), wanted.dtype)
    assert (told.shape, told.dtype) == (wanted.shape, wanted.dtype)
    return module


#: program, expected mean and standard deviation
DISTRIBUTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(x.shape), 0.0, 1.0),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), 2.0, 3.0),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21**0.5),
    "dropout": (lambda x: F.dropout(torch.ones_like(x), 0.25), 1.0, (1 / 0.75 - 1) ** 0.5),
    "randint": (lambda x: torch.randint(2, 12, x.shape), 6.5, 8.25**0.5),
    "bfloat16": (lambda x: torch.rand_like(x, dtype=torch.bfloat16), 0.5, 12**-0.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    program, mean, deviation = DISTRIBUTIONS[name]
    x = torch.zeros(200, 300)
    values = _traced(program, x)(x).double()
    error = deviation / x.numel() ** 0.5
    assert abs(values.mean().item() - mean) < 6 * error + (2**-8 if name == "bfloat16" else 0)
    assert abs(values.std().item() - deviation) < 0.02 * deviation
    rows = values - values.mean()
    assert abs((rows[1:] * rows[:-1]).mean().item()) < 6 * deviation**2 / x.numel() ** 0.5  # neighbours are independent
    if name in ("rand_like", "bfloat16"):
        assert values.min() >= 0 and values.max() < 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("factor", [1, 100_000])
def test_ranges_that_are_symbols(factor: int, backend: str) -> None:
    def drawn(x: torch.Tensor, low: int, high: int) -> Any:
        places = torch.randint(x.size(0) * factor, (2000,)), torch.empty(2000).random_(high * factor)
        return *places, torch.randint(low, high * factor, (2000,)), torch.randint_like(places[0], low, high)

    compiled = bolide.compile(drawn, backend=backend, dynamic=True)
    for size, low, high in ((7, 2, 30), (30, 5, 8), (12, -3, 12)):
        first, second, third, fourth = compiled(torch.ones(size), low, high)
        for values, least, end in (
            (first, 0, size * factor),
            (second, 0, high * factor),
            (third, low, high * factor),
            (fourth, low, high),
        ):
            assert least <= values.min() <= least + (end - least) // 10 + 1
            assert end - 1 - (end - least) // 10 <= values.max() < end


#: complex program, the mean of each part and its standard deviation
COMPLEX: dict[str, tuple[Callable[[Any], torch.Tensor], float, float]] = {
    "rand": (lambda like: torch.rand(like.shape, dtype=like.dtype), 0.5, 12**-0.5),
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda like: torch.randn(like.shape, dtype=like.dtype), 0.0, 0.5**0.5),
    "randn_like": (torch.randn_like, 0.0, 0.5**0.5),
    "uniform_": (lambda like: torch.empty_like(like).uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "normal_": (lambda like: torch.empty_like(like).normal_(2, 3), 2.0, 4.5**0.5),
    "normal": (lambda like: torch.normal(2.0, 3.0, like.shape, dtype=like.dtype), 2.0, 4.5**0.5),
    "normal_functional": (lambda like: torch.ops.aten.normal_functional(like, 2.0, 3.0), 2.0, 4.5**0.5),
    "of a view": (lambda like: torch.empty_like(like).t().normal_(2, 3).t(), 2.0, 4.5**0.5),
    "init": (lambda like: torch.nn.init.normal_(torch.empty_like(like), 2, 3), 2.0, 4.5**0.5),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.cfloat, torch.cdouble, torch.complex32])
@pytest.mark.parametrize("name", COMPLEX)
def test_both_parts_of_complex_numbers_are_drawn(name: str, dtype: torch.dtype) -> None:
    program, mean, deviation = COMPLEX[name]
    like = torch.zeros(200, 300).to(dtype)
    compiled = bolide.compile(program, fullgraph=True)
    for values in (program(like), compiled(like), compiled(like)):  # eager's own, too
        assert (values.dtype, values.shape, values.stride()) == (dtype, like.shape, like.stride())
        parts = torch.view_as_real(values).double()
        for part in parts.unbind(-1):
            assert abs(part.mean().item() - mean) < 6 * deviation / like.numel() ** 0.5 + 1e-3
            assert abs(part.std().item() - deviation) < 0.02 * deviation
        centred = parts - parts.mean((0, 1))
        together = (centred[..., 0] * centred[..., 1]).mean().item()
        assert abs(together) < 6 * deviation**2 / like.numel() ** 0.5  # the parts are independent


def test_the_seed_of_torch_repeats_a_run() -> None:
    x = torch.ones(64)
    module = _traced(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), x)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(module(x))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert not torch.equal(module(x), module(x))


DRAWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.dropout(x.sin(), 0.4) * x,
    lambda x: x * torch.rand_like(x) + torch.randn(x.shape),
    lambda x: x + torch.bernoulli(x.detach().sigmoid()),
    lambda x: x * torch.randint(-3, 9, x.shape),
    lambda x: F.rrelu(x, training=True) + torch.randperm(x.size(1)),
    lambda x: checkpoint(lambda y: F.dropout(y.cos(), 0.3) * y, x, use_reentrant=False),
    lambda x: x.tanh() - torch.empty_like(x).exponential_(2.0),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_default_partitioner"])
def test_where_aten_runs_all_numbers_are_eagers(backend: str) -> None:
    chosen = random.choices(DRAWS, k=4)

    def program(x: torch.Tensor) -> torch.Tensor:
        for draw in chosen:
            x = draw(x)
        return x

    x, seed, told = torch.randn(5, 12), random.randrange(2**40), []
    for function in (program, bolide.compile(program, backend=backend, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(seed)
        result = function(leaf)
        result.sum().backward()
        told.append((result.detach(), leaf.grad, torch.get_rng_state()))
    for wanted, actual in zip(*told):
        torch.testing.assert_close(actual, wanted)


def test_two_draws_differ_and_share_one_seed() -> None:
    trace = Trace()
    with trace.recording():
        a, b = torch.rand(50), torch.rand(50)
    trace.graph.output([a.node, b.node])  # type: ignore[attr-defined]
    assert sum(node.target is rng.rng_seed for node in trace.graph.nodes) == 1
    first, second = torch.fx.GraphModule({}, trace.graph)()
    assert not torch.equal(first, second)


def test_optimizers_do_not_import_dynamo() -> None:
    """In a process of its own; afterwards torch.compile works as ever."""
    source = """
import sys, torch
from bolide.tracing import keep_dynamo_out
keep_dynamo_out()
net = torch.nn.Linear(3, 3)
for make in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad):
    optimizer = make(net.parameters(), lr=0.1)
    net(torch.ones(2, 3)).sum().backward()
    before = net.weight.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    assert not torch.equal(before, net.weight) and torch.is_grad_enabled()
assert "torch._dynamo" not in sys.modules, "torch._dynamo was imported"
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
optimizer.step()
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=120)


def test_a_gpu_has_a_seed_of_its_own() -> None:
    """What is drawn for a GPU has its seed, drawn there; that for the CPU another one."""
    trace, cuda = Trace(), torch.device("cuda", 0)
    with trace.recording():
        node = trace.input(torch.ones(4, 5), "x").node
        node.meta["val"] = node.meta["val"]._replace(device=cuda)
        x = trace.wrap(node)
        dropped = F.dropout(x, 0.5) + torch.rand_like(x)
        there, here = dropped.node.meta["val"], torch.rand(3).node.meta["val"]  # type: ignore[attr-defined]
    assert (there.device, here.device) == (cuda, torch.device("cpu"))
    seeds = [node for node in trace.graph.nodes if node.target is rng.rng_seed]
    assert [seed.meta["val"].device for seed in seeds] == [cuda, torch.device("cpu")]


class PlayedGenerator:
    """A generator of a GPU: a seed, and an offset that counts draws in fours."""

    def __init__(self, seed: int) -> None:
        self.seed, self.offset = seed, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % 4 == 0
        self.offset = offset


def test_seeds_that_are_made_ahead_follow_from_the_state() -> None:
    """In whatever order states come, on whatever stream, and behind what was drawn by others."""
    start, seed = random.randrange(2**40), random.randrange(2**64)
    generator, states = PlayedGenerator(seed), [4 * (start + step) for step in range(600)]
    found: list[tuple[int, int]] = []
    for offset in [*states, *random.choices(states, k=200)]:
        generator.offset, stream = offset, random.randrange(2)
        drawn = rng.seed_ahead(generator, torch.device("cpu"), (0, stream))  # type: ignore[arg-type]
        assert generator.offset == offset + 4
        assert (drawn.dtype, drawn.shape) == (torch.int64, ()) and not drawn._is_view()
        found.append((offset, int(drawn)))
    assert len({value for _, value in found}) == len(set(found)) == len(states)
    generator = PlayedGenerator(seed ^ 1)
    generator.offset = states[0]
    assert int(rng.seed_ahead(generator, torch.device("cpu"), (0, 0))) != found[0][1]  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_seed_for_a_gpu_that_is_not_there_is_eagers_error() -> None:
    device = torch.device("cuda", 0)
    with pytest.raises((AssertionError, RuntimeError)) as wanted:
        torch.randint(3, (), device=device)
    with pytest.raises(wanted.type, match=re.escape(str(wanted.value)[:40])):
        rng.draw_seed(device)


def test_seeds_that_are_made_in_inference_mode_serve_training() -> None:
    generator, device = PlayedGenerator(random.randrange(2**64)), torch.device("cpu")
    with torch.inference_mode():
        rng.seed_ahead(generator, device, (0, 0))  # type: ignore[arg-type]
    assert not rng.seed_ahead(generator, device, (0, 0)).is_inference()  # type: ignore[arg-type]
