"""Operations without a shape rule of their own, whose results' sizes are found by asking torch: one version serves all
sizes, with eager's results, strides and gradients. And numbers of operations that have become symbols."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.support import events
from bolide.tracing.meta import meta_of
from bolide.tracing.rules import registry


def lower(x: torch.Tensor) -> torch.Tensor:
    """A lower triangular matrix for each number, whose errors are looked for in an operation without results."""
    return torch.eye(3) + 0.1 * x[..., None, None].square() * torch.ones(3, 3).tril()


#: function and rank; sizes that have to be multiples of something are multiples of 6, sizes at a place may be fixed
PROBED = {
    "rfft": (torch.fft.rfft, 2, {}),
    "rfft2": (torch.fft.rfft2, 3, {}),
    "irfft": (lambda x: torch.fft.irfft(torch.complex(x, x)), 2, {}),
    "reflect": (lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"), 4, {}),
    "replicate": (lambda x: F.pad(x, (2, 1, 1, 3, 0, 1), mode="replicate"), 5, {}),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), 4, {}),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), 4, {}),
    "glu": (F.glu, 2, {}),
    "cross": (lambda x: torch.linalg.cross(x, x.sin(), dim=1), 3, {1: 3}),
    "qr": (lambda x: torch.linalg.qr(x.t() @ x)[1], 2, {}),
    "lp_pool3d": (lambda x: F.lp_pool3d(x.abs() + 0.1, 2, 3, 2), 5, {}),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), 5, {}),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), 5, {}),
    "diag_embed": (lambda x: torch.diag_embed(x, 1) * 2, 2, {}),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1)[:, :4, :1], 1), 3, {}),
    "take_along_all": (lambda x: torch.take_along_dim(x, x.flatten().argsort()[:5]), 2, {}),
    "solve": (lambda x: torch.linalg.solve(lower(x), torch.ones(3, 2) * x[..., None, None]), 3, {}),
    "inv": (lambda x: torch.linalg.inv(lower(x.t())), 2, {}),
    "cholesky": (lambda x: torch.linalg.cholesky(lower(x) @ lower(x).mT), 2, {}),
    "nuclear": (lambda x: torch.linalg.norm(torch.cat([x, torch.eye(x.shape[1])]), "nuc")[None], 2, {}),
    "embedding_bag": (lambda x: F.embedding_bag(x.detach().argsort(1), torch.ones(99, 3)) * x[:, :3], 2, {}),
    "every_row": (lambda x: x.flatten()[torch.arange(0, x.numel(), x.shape[1])], 2, {}),
    "bilinear": (lambda x: F.bilinear(x, x.sin(), torch.ones(3, 6, 6)), 2, {1: 6}),
}

#: of a few numbers, one or two or none
FEW = {
    "isin": lambda x: torch.isin(x, torch.tensor([0.0, 2.0])),
    "cdist": lambda x: torch.cdist(x[:, None], x[:, None]),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0])),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([0.0, 1.0]), x),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 1),
    "frexp": lambda x: x.frexp()[0],
    "cummax": lambda x: x.cummax(0)[0],
    "cross": lambda x: torch.linalg.cross(x[:, None].expand(-1, 3), x[:, None] + torch.arange(3)),
    "diag_embed": torch.diag_embed,
    "heaviside": lambda x: torch.heaviside(x, x.cos()),
    "longest": lambda x: torch.cdist(F.pad(x, (0, 2))[: max(len(x), 2), None], x[:, None]),
}


def installed(told: list[object]) -> int:
    return sum(type(event) is events.Installed for event in told)


@pytest.mark.parametrize("name", PROBED)
def test_results_of_operations_without_a_rule(name):
    function, rank, fixed = PROBED[name]
    factors = random.sample(range(2, 3 * rank + 4), 3 * rank)
    calls = [[fixed.get(dim, 6 * factors[n * rank + dim]) for dim in range(rank)] for n in range(3)]
    if rank > 3:
        calls = [[min(size, 6) if dim == 0 else 6 + 6 * (size % 4) for dim, size in enumerate(call)] for call in calls]
        calls[0] = [6 * (dim + 2) if dim else 2 for dim in range(rank)]  # no two alike, so that none share a symbol
    compiled, told = bolide.compile(function, dynamic=True), []
    for call in calls:
        x = torch.randn(call, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with events.subscribed(told.append):
            mine = compiled(x)
        theirs = function(y)
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride()), call
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        # smooth: where a result is near 0, its sign, and so the gradient of `abs`, is rounding
        mine, theirs = (torch.view_as_real(r) if r.is_complex() else r for r in (mine, theirs))
        weights = torch.randn(theirs.shape)
        (mine * weights).sum().backward()
        (theirs * weights).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-2, atol=1e-3)
    assert installed(told) == 1, calls


NUMBERS = {
    "tril": lambda x, k: x.tril(k) + x.triu(k - 1),
    "deviation": lambda x, k: x.std(0, correction=k - 2) + x.var(1, correction=k - 3).sum(),
    "softplus": lambda x, k: F.softplus(x, beta=k, threshold=k + 3),
    "threshold": lambda x, k: F.threshold(x, k - 3, k) + F.hardtanh(x, -k, k),
    "shrink": lambda x, k: F.hardshrink(x * 3, k) + F.softshrink(x * 3, k) + F.elu(x, k) + F.celu(x, k),
    "norm": lambda x, k: x.norm(k) + torch.linalg.vector_norm(x, k, dim=1),
    "powers": lambda x, k: x.abs() ** k + torch.pow(k, x) + torch.float_power(x.abs(), k).float(),
    "powers of integers": lambda x, k: (x + 1) ** 2 * (torch.arange(4) ** k) + torch.pow(k, torch.arange(4)),
    "power in place": lambda x, k: (x.abs() + 1).pow_(k) + 2**k,
    "arithmetic": lambda x, k: torch.add(x, x, alpha=k) - torch.sub(x, k, alpha=2) + x * k + x / k + k / (x.abs() + 1),
    "rests": lambda x, k: x % k + torch.fmod(x, k) + x.detach() // k + torch.remainder(k, x.detach().abs() + 1),
    "scaled": lambda x, k: torch.addcmul(x, x, x, value=k) + torch.addcdiv(x, x, x.abs() + 1, value=k),
    "lerp": lambda x, k: torch.lerp(x, x * 2, k) + x.clamp(-k, k),
    "padded": lambda x, k: F.pad(x, (1, 2), value=k) + F.pad(x, (2, 1), value=0.5 * k),
    "filled": lambda x, k: torch.full((3,), k).sum() + x.masked_fill(x > 0, k) + torch.where(x > 0, x, k),
    "products": lambda x, k: torch.addmm(x @ x.t(), x, x.t(), beta=k, alpha=k + 1),
    "added": lambda x, k: x.index_add(0, torch.tensor([0, 1]), x[:2], alpha=k).index_fill(0, torch.tensor([1]), k),
    "spectrum": lambda x, k: torch.fft.rfft(x[k:].flatten()).abs(),
    "blocks": lambda x, k: torch.block_diag(x[k : k + 1], x[:1]),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_that_have_become_symbols(name, dynamic):
    function = NUMBERS[name]
    compiled = bolide.compile(function, dynamic=dynamic)
    for k, rows in zip(random.sample(range(2, 6), 4), random.sample(range(7, 14), 4)):
        x = torch.randn(rows, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        mine, theirs = compiled(x, k), function(y, k)
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        mine.sin().sum().backward()
        theirs.sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_that_have_become_numbers_of_the_graph(dynamic):
    """C++ asks whether a factor is 1, and for the integer part of a scale."""

    def function(x, k):
        added = torch.add(x, x.sin(), alpha=k) + torch.sub(x, x.cos(), alpha=k)
        image = added[None, None]
        return F.interpolate(image, scale_factor=k, mode="bilinear", antialias=True).sum() + added.sum()

    compiled = bolide.compile(function, dynamic=dynamic)
    for k, rows in ((1.5, 6), (2.25, 7), (1.0, 8), (1.75, 9)):
        x = torch.randn(rows, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        mine, theirs = compiled(x, k), function(y, k)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        mine.backward()
        theirs.backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_integers_in_containers_are_symbols_from_the_start():
    def function(x, sizes, options):
        return x.view(sizes[0], *options["inner"]).sum(-1) * options["factor"]

    compiled, told = bolide.compile(function, dynamic=True), []
    for a, b, c, factor in ((3, 4, 5, 2), (6, 7, 2, 9), (5, 2, 8, -3)):
        x = torch.randn(a * b * c)
        with events.subscribed(told.append):
            mine = compiled(x, [a], {"inner": (b, c), "factor": factor})
        torch.testing.assert_close(mine, x.view(a, b, c).sum(-1) * factor)
    assert installed(told) == 1


def test_a_size_that_is_a_product_of_others():
    """The number of elements is a symbol of its own, which a guard says to be the product of two others."""
    compiled = bolide.compile(lambda x, a, b: x.view(a, b).sum(-1) * 2, dynamic=True)
    for a, b in ((3, 4), (5, 2), (7, 9)):
        x = torch.randn(a * b)
        torch.testing.assert_close(compiled(x, a, b), x.view(a, b).sum(-1) * 2)


def test_no_kernel_is_asked_about_sizes_that_it_reads_past():
    def inverse(x, n):
        return torch.fft.irfftn(x, s=(1, n), dim=(-1, 0), norm="ortho")

    with pytest.raises(RuntimeError, match="do not fit"):
        registry.by_torch(torch.ops.aten._fft_c2r.default, [meta_of(torch.ones(5, 7) + 0j), [0], 1, 100], {})
    compiled = bolide.compile(inverse, dynamic=True)
    for n in (8, 9, 12, 8):
        x = torch.randn(5, 6, 7, requires_grad=True)
        torch.testing.assert_close(compiled(x, n), inverse(x, n))


NORMS = {
    "rms": lambda: torch.nn.RMSNorm(6),
    "rms without weights": lambda: torch.nn.RMSNorm(6, eps=1e-5, elementwise_affine=False),
    "layer": lambda: torch.nn.LayerNorm(6),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_what_messages_would_say_of_sizes_is_not_assumed(name, training):
    model, told = NORMS[name](), []
    compiled = bolide.compile(model, fullgraph=True)
    with torch.set_grad_enabled(training), events.subscribed(told.append):
        for size in ((4, 5, 6), (4, 7, 6), (3, 8, 6), (5, 9, 6), (7, 3, 6)):
            mine = torch.randn(size, requires_grad=training)
            theirs = mine.detach().clone().requires_grad_(training)
            got, want = compiled(mine), model(theirs)
            torch.testing.assert_close(got, want)
            if training:
                weights = torch.randn(size)  # squares of normed numbers have no gradient but rounding
                (got * weights).sum().backward()
                (want * weights).sum().backward()
                torch.testing.assert_close(mine.grad, theirs.grad)
    assert installed(told) == 3


def test_what_messages_say_of_sizes_holds_at_each_call():
    def program(x, width):
        try:
            return F.rms_norm(x, (width,))
        except RuntimeError as error:
            return str(error)

    compiled = bolide.compile(program)
    for size in ((4, 5), (4, 6), (7, 3)):
        for width in (3, 6):
            x = torch.randn(size)
            want, got = program(x, width), compiled(x, width)
            assert got == want if type(want) is str else torch.allclose(got, want)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_sizes_that_are_rarely_less_than_a_number(name: str, most: int, seed: int) -> None:
    """The first few of what data keep: all other sizes say that a result has `most` elements."""
    torch.manual_seed(seed)
    met: list[object] = []

    def first(x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 0]
        return FEW[name](kept[: min(len(kept), most)])

    with events.subscribed(met.append):
        compiled = bolide.compile(first)
        for signs in ([1, 1, -1, 1, 1], [1, -1, -1, -1], [-1, -1], [1, 1, -1], [-1, 1, 1, 1]):
            x = (torch.rand(len(signs)) + 0.5) * torch.tensor(signs)
            torch.testing.assert_close(compiled(x), first(x))
    assert sum(isinstance(event, events.Installed) for event in met) <= 3
