"""Numbers that Python computes of sizes, and functions of torch's that take no symbols: the second size compiles once
more, later ones never, and results, gradients and errors are eager's."""

from __future__ import annotations

import collections
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure

import bolide
from bolide.support import events
from bolide.support.errors import BolideWarning
from tests.everyday_tools import difference, outcome

Pair = collections.namedtuple("Pair", "a b")


def powers(x: Any, k: int) -> Any:
    return x * 2**k, x * 3 ** (k - 1), x + (1 << k), x - (1000 >> k), pow(2, k + 1)


def bits(x: Any, k: int) -> Any:
    return x * k.bit_length(), x * (k & (k - 1)), x + (k ^ (k >> 1)), x * bin(k).count("1") if k < 0 else k.bit_count()


def rounded(x: Any, k: int) -> Any:
    return x * round(k / 3, 2), x * round(k / 3), x + round(math.sqrt(k), 1), x[: round(k**0.5)]


def whole_parts(x: Any, k: int) -> Any:
    n = x.shape[0]
    return x[: int(n**0.5)], math.ceil(math.sqrt(k)) * x, math.floor(math.log2(n)) + x, divmod(k, 2.5), k // 1.5


def rounded_by_numpy(x: Any, k: int) -> Any:
    n = x.shape[0]
    half = x.new_zeros(int(numpy.trunc(n / 3)), 2)
    return x[: int(numpy.ceil(n / 2))], x * numpy.floor(k / 3), half, float(numpy.ceil(k)) * x, type(numpy.floor(k / 2))


def strides(x: Any, k: int) -> Any:
    n, parts = x.shape[0], []
    for at in range(0, n, n):
        parts.append(x[at : at + n] * 2)
    for at in range(k, -k, -k):
        parts.append(x + at)
    for at in range(n, 0, k):
        parts.append(x - at)
    return parts


def functions_of_integers(x: Any, k: int) -> Any:
    return x * math.gcd(k, 12), x * math.isqrt(k), x + math.comb(k, 2), x * math.lcm(k, 4), abs(k - 6) * x


def next_power_of_two(x: Any, k: int) -> Any:
    rest = 2 ** math.ceil(math.log2(x.shape[0])) - x.shape[0]
    return F.pad(x, (0, 0, 0, rest)), F.pad(x, (0, 0, (1 << (k - 1).bit_length()) - k, 0))


def derived_of_derived(x: Any, k: int) -> Any:
    bits = (k + 1).bit_length()
    return x * 2**bits, torch.zeros(bits * 2, k), torch.arange(2 ** (k % 3), dtype=x.dtype) + bits


def records(x: Any, k: int) -> Any:
    pair = Pair(1, x.shape[0])._replace(a=k)
    return x * pair.a + pair.b, pair._asdict(), torch.Size([k, 3]).numel() + x


def orders(x: Any, k: int) -> Any:
    sizes = [x.shape[0] + 1, k, 7]
    low, middle, high = sorted(sizes)
    sizes.sort(reverse=True)
    parts = x.new_zeros(low, max(sizes)), x.new_zeros(middle, min(iter(sizes), default=0))
    longest = max(len(part) for part in (x, *parts))
    return parts, F.pad(x, (0, 0, 0, longest - len(x))), x * high, sizes, sorted((k, 3.5, 5 * k)), max([len(x), 2.5])


def sets(x: Any, k: int) -> Any:
    (rows,) = {part.shape[0] for part in (x, x * 2)}
    same = set(map(len, (x, x * 2)))
    same.update([k, k])
    return x * rows, len(same), same.pop() * x, len({k, rows})


def ranges(x: Any, k: int) -> Any:
    n = x.shape[0]
    between = torch.linspace(1 / n - 1, 1 - 1 / n, n)
    return x * torch.linspace(0, n, steps=n)[:, None], between + torch.linspace(-1.0, k / 2, n, dtype=torch.float64)


def more_ranges(x: Any, k: int) -> Any:
    return torch.logspace(0, 1, k), torch.arange(0, k / 2, 0.5), torch.arange(k / 3), x * torch.linspace(1, 2, 3).sum()


def windows(x: Any, k: int) -> Any:
    made = torch.hann_window(k), torch.hamming_window(k + 1, periodic=False), torch.kaiser_window(k, True, 6.0)
    return *made, torch.blackman_window(k), torch.bartlett_window(k), x * torch.hann_window(x.shape[0])[:, None]


def marks(x: Any, k: int) -> Any:
    n = x.shape[0]
    return F.one_hot(torch.arange(n), n) * x.sum(), F.one_hot(torch.tensor([1, 0]), k), F.one_hot(x.argmax(1), k + 4)


def tensors_of_sizes(x: Any, k: int) -> Any:
    n = x.shape[0]
    made = torch.tensor([[n, k], [3, n * k]]), torch.tensor(k), torch.as_tensor([k, 1]), torch.tensor([n / 2, 1 / k])
    return *made, x * torch.tensor(math.sqrt(n)), torch.tensor(x.shape), torch.tensor([k, 2], dtype=torch.int8)


def sliding(x: Any, k: int) -> Any:
    padded = F.pad(x, (0, 0, 0, 14))
    parts = padded.unfold(0, k + 1, 1), padded.unfold(0, 3, k), padded.unfold(0, k, k)
    return *[part.sum(0) for part in parts], padded.t().unfold(1, x.shape[0], 2).mean(-1), x.detach().unfold(0, k, 1)


def images(x: Any, k: int) -> Any:
    image = x.repeat(4, 4)[None, None]
    wide = image.expand(2, 8, -1, -1).to(memory_format=torch.channels_last)
    columns = F.unfold(image, (2, 4), stride=2), F.unfold(image, 3, padding=1, dilation=2)
    folded = F.fold(columns[0] * 2, image.shape[-2:], (2, 4), stride=2)
    return *columns, folded, F.pixel_shuffle(wide, 2), F.pixel_unshuffle(image, 2), F.adaptive_avg_pool1d(x.t(), k)


def pairs(x: Any, k: int) -> Any:
    n = x.shape[0]
    rows, columns = torch.triu_indices(n, n, 1)
    return (x[rows] * x[columns]).sum(-1), torch.tril_indices(k, k), torch.tril_indices(k, k, -1)


def numbers_of_numpy(x: Any, k: int) -> Any:
    n, size = x.shape[0], numpy.prod(x.shape)
    ends = numpy.clip(n - 3, 1, 9), numpy.clip(k // 2, a_min=1, a_max=n), numpy.maximum(2, n // 3), numpy.min([k, n, 7])
    scale = (
        numpy.sqrt(n) * numpy.exp(-k / 10)
        + numpy.cos(numpy.pi * k / 20)
        - numpy.log(numpy.int64(n)) / numpy.mean([n, k])
    )
    parts = [x[:end] for end in ends], x[: int(numpy.round(n * 0.3))], x[int(numpy.floor(numpy.sqrt(k))) :]
    return (
        x / numpy.sqrt(x.size(0)),
        x.reshape(size),
        parts,
        x * scale,
        numpy.power(0.9, k),
        numpy.sum(x.shape),
        numpy.float64(k) * x,
    )


def arrays_of_numpy(x: Any, k: int) -> Any:
    n = x.shape[0]
    places, made = numpy.arange(n)[:, None], numpy.zeros(x.shape, dtype=numpy.float32)
    angles = places / numpy.power(100, numpy.arange(4)[None] / 4)
    mask = torch.from_numpy(numpy.triu(numpy.ones((n, n)), k=1) == 0)
    even = (
        torch.from_numpy(numpy.linspace(0, n - 1, 5).astype(int)),
        torch.from_numpy(numpy.linspace(0, k, n, endpoint=False)),
    )
    waves = torch.from_numpy(numpy.sin(angles) * k) + x, torch.from_numpy(made + numpy.full((1, 4), 2.5) * n) * x
    listed = (
        torch.from_numpy(numpy.array([n, k / 2])),
        torch.tensor(numpy.array(x.shape)),
        numpy.array([[k, 1], [2, n]]) * n,
    )
    return mask.float() @ x, x[even[0]], even[1][:, None] * x, waves, listed, numpy.eye(k, n)


PROGRAMS = (
    *(numbers_of_numpy, arrays_of_numpy),
    *(powers, bits, rounded, whole_parts, functions_of_integers, next_power_of_two, derived_of_derived, records),
    *(
        orders,
        sets,
        rounded_by_numpy,
        strides,
        ranges,
        more_ranges,
        windows,
        marks,
        tensors_of_sizes,
        sliding,
        images,
        pairs,
    ),
)


def check(program: Callable[..., Any], compiled: Callable[..., Any], n: int, k: int) -> int:
    """How many versions a call has made; it has to be as in eager, and without breaks."""
    told: list[Any] = []
    makers: Any = (lambda n: torch.randn(n, 4), k)
    seed = random.randrange(1 << 30)
    expected = outcome(program, makers, n, True, seed)
    with events.subscribed(told.append), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = outcome(compiled, makers, n, True, seed)
    assert found == expected, difference(expected, found)
    assert not [event for event in told if type(event) in (events.Break, events.Fallback)]
    return len([event for event in told if type(event) is events.Installed])


def axes_of_numpy(x: Any, k: int) -> Any:
    n = x.shape[0]
    pairs = [[n, k], [2, 3]]
    listed = numpy.sum([n, k], -1), numpy.max((n, k), 0), numpy.prod(pairs), numpy.sum(pairs, axis=1), numpy.max(pairs)
    return listed, numpy.minimum([n, 3], k), numpy.clip([n, k], 3, 7), numpy.clip(k, 2, None), numpy.mean(pairs, 0)


def types_of_numpy(x: Any, k: int) -> Any:
    n, short = x.shape[0], numpy.int8(3)
    ratio = n / numpy.float32(3), numpy.float64(2.5) * k - numpy.int64(2), n > numpy.float32(7), k % short, short + 1
    halves = numpy.ones(2, dtype=numpy.float16) * (n / k)
    arrays = numpy.arange(3, dtype=numpy.int8) + k, halves, numpy.logspace(0, 1, n)
    total = numpy.zeros(3)
    total += k
    total[n % 3] -= n
    return ratio, arrays, total, numpy.full(2, k), numpy.add(n, k, dtype=numpy.float32), numpy.isclose(n, k)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [axes_of_numpy, types_of_numpy], ids=lambda program: program.__name__)
def test_other_calls_of_numpy_give_what_it_gives(program: Any, dynamic: bool | None) -> None:
    """Their types as well, whether or not they are of the graph."""
    compiled = bolide.compile(program, dynamic=dynamic)
    for n, k in ((5, 7), (8, 7), (9, 4), (6, 11), (5, 7)):
        x = torch.randn(n, 2)
        found, expected = map(tree_leaves, (compiled(x, k), program(x, k)))
        for ours, theirs in zip(found, expected, strict=True):
            assert type(ours) is type(theirs) and getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
            numpy.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_more_version_serves_all_sizes(program: Any, dynamic: bool | None) -> None:
    compiled = bolide.compile(program, dynamic=dynamic)
    sizes = random.sample(range(5, 14), 6)
    made = sum(check(program, compiled, n, n) for n in sizes)
    assert made <= (1 if dynamic else 2), sizes


@pytest.mark.parametrize(
    "program", [whole_parts, functions_of_integers, orders, ranges, windows], ids=lambda p: p.__name__
)
def test_sizes_and_integers_change_apart(program: Any) -> None:
    compiled = bolide.compile(program, dynamic=True)
    assert sum(check(program, compiled, *random.sample(range(5, 14), 2)) for _ in range(5)) == 1


def test_a_computed_number_may_be_fixed_when_the_size_is_not() -> None:
    def program(x: Any, k: int) -> Any:
        for i in range(k.bit_length()):
            x = x * 2 + i
        return x

    compiled = bolide.compile(program)
    assert sum(check(program, compiled, 3, k) for k in (4, 5, 6, 7)) == 2
    assert sum(check(program, compiled, 3, k) for k in (8, 15, 9, 5)) == 1


def test_numbers_too_large_for_a_symbol_and_errors_are_eagers() -> None:
    def program(x: Any, k: int) -> Any:
        return x * math.isqrt(k), 2**k

    compiled = bolide.compile(program, dynamic=True)
    for k in (5, 70, 9, -1, 4):
        if k < 0:
            with pytest.raises(ValueError, match="nonnegative"):
                compiled(torch.ones(3), k)
            continue
        assert [str(part) for part in compiled(torch.ones(3), k)] == [str(part) for part in program(torch.ones(3), k)]


def test_windows_are_views_and_refuse_what_eager_refuses() -> None:
    def program(x: Any, k: int) -> Any:
        x = x * 1
        x.unfold(0, k, k)[0].add_(1)
        return x, x.unfold(0, k, 1)

    compiled = bolide.compile(program, dynamic=True)
    for k in (3, 5, 2):
        x = torch.randn(9)
        mine, theirs = compiled(x, k), program(x, k)
        assert mine[1].stride() == theirs[1].stride() and mine[1]._base is not None
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(RuntimeError, match="maximum size for tensor at dimension 0 is 9 but size is 10"):
        compiled(torch.randn(9), 10)


def test_an_image_that_would_be_empty_is_an_error() -> None:
    def program(x: Any) -> Any:
        return F.interpolate(x, scale_factor=0.5, mode="nearest")

    compiled = bolide.compile(program, dynamic=True)
    torch.testing.assert_close(compiled(x := torch.randn(1, 2, 6, 7)), program(x))
    for run in (program, compiled):
        with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
            run(torch.randn(1, 2, 1, 4))


def test_images_that_do_not_fit_are_errors() -> None:
    for program, shape in (
        (lambda x: F.pixel_shuffle(x, 2), (1, 6, 4, 4)),
        (lambda x: F.pixel_unshuffle(x, 2), (1, 4, 5, 4)),
        (lambda x: F.unfold(x, 5), (1, 4, 4, 6)),
    ):
        compiled: Any = bolide.compile(program, dynamic=True)
        torch.testing.assert_close(compiled(x := torch.randn(2, 8, 6, 8)), program(x))
        with pytest.raises(RuntimeError) as theirs:
            program(torch.randn(shape))
        with pytest.raises(RuntimeError) as mine:
            compiled(torch.randn(shape))
        assert str(mine.value) == str(theirs.value)


class Padded(torch.nn.Module):
    """A convolution that pads its input to whole steps, with its numbers in buffers, as audio codecs have it."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, kernel, stride)
        for name, value in (("stride", stride), ("kernel", kernel), ("total", kernel - stride)):
            self.register_buffer(name, torch.tensor(value), persistent=False)

    def forward(self, x: Any) -> Any:
        steps = (x.shape[-1] - self.kernel + self.total) / self.stride + 1
        steps = torch.ceil(steps).to(torch.int64) - 1
        extra = steps * self.stride + self.kernel - self.total - x.shape[-1]
        return self.conv(F.pad(x, (self.total, extra)))


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_computed_with_tensors_are_sizes(dynamic: bool | None) -> None:
    module = torch.nn.Sequential(Padded(7, 1), Padded(4, 2), Padded(5, 3))
    compiled, made = bolide.compile(module, dynamic=dynamic), 0
    for n in random.sample(range(20, 60), 5):
        told: list[Any] = []
        x = torch.randn(2, 2, n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with events.subscribed(told.append):
            found = compiled(y)
        expected = module(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        assert not [event for event in told if type(event) in (events.Break, events.Fallback)]
        made += len([event for event in told if type(event) is events.Installed])
    assert made == (1 if dynamic else 2)


def longer_side(x: Any, h: int, w: int) -> Any:
    ratio = w / h
    return F.interpolate(x, (7, int(7 * ratio)), mode="bilinear"), x * (round(ratio, 2) + h / w)


def fitted(x: Any, h: int, w: int) -> Any:
    step = 9 / min(h, w)
    return F.interpolate(x, (int(h * step), int(w * step))), F.pad(x, (0, math.ceil(1.3 * w) - w, 0, round(h * 20 / w)))


def blurred(x: Any, h: int, w: int) -> Any:
    factors = h / 11, w / 8
    if max(factors) > 1:
        widths = [max((factor - 1.0) / 2.0, 0.001) for factor in factors]
        x = x * (widths[0] / widths[1]) + math.exp(-widths[1])
    return x[..., : h // 2, :] * (h / 3 if h / 3 > 0.1 else 0.1)


def diagonal(x: Any, h: int, w: int) -> Any:
    return x / math.sqrt(h * w), x + math.hypot(7 / w, 5 / h), x.mean() + torch.ones(math.isqrt(h * h + w * w))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [longer_side, fitted, blurred, diagonal], ids=lambda program: program.__name__)
def test_numbers_computed_of_sizes_of_an_image_are_anew_in_each_call(program: Any, dynamic: bool | None) -> None:
    compiled, made = bolide.compile(lambda x: program(x, *x.shape[-2:]), dynamic=dynamic), 0
    heights, widths = random.sample(range(12, 30), 5), random.sample(range(30, 60), 5)
    for batch, *size in zip(random.sample(range(4, 12), 5), heights, widths, strict=True):
        x = torch.randn(batch, 3, *size, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        told: list[Any] = []
        with events.subscribed(told.append):
            found = compiled(y)
        expected = program(x, *size)
        torch.testing.assert_close(found, expected)
        torch.utils._pytree.tree_map(lambda part: part.square().sum().backward(retain_graph=True), (found, expected))
        torch.testing.assert_close(y.grad, x.grad)
        assert not [event for event in told if type(event) in (events.Break, events.Fallback)]
        made += len([event for event in told if type(event) is events.Installed])
    assert made <= (1 if dynamic else 2), (heights, widths)


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_computed_of_two_sizes_are_guarded(dynamic: bool | None) -> None:
    """The names of functions in such a guard are not those of parameters."""

    def program(x: Any, max: Any) -> Any:
        rest = x[max.shape[0] // 2 :]
        return rest * math.floor(math.sqrt(len(rest))) + math.gcd(len(x), len(max))

    compiled = bolide.compile(program, dynamic=dynamic)
    calls = [(8, 4), (9, 6), (12, 3), (8, 4), (9, 6), (8, 4)]
    for n, k in calls:
        x, y = torch.randn(n, 3), torch.randn(k)
        assert torch.equal(compiled(x, y), program(x, y))
    assert len(compiled._bolide.entries) <= len(set(calls))


def kept(x: Any, y: Any, ratio: float, k: int) -> Any:
    keep = max(1, int(len(x) * ratio))
    return x[:keep].sum(0), x[keep:], x.topk(math.ceil(keep / 2), 0).values, y[: round(len(y) / k)] * keep


def scaled(x: Any, y: Any, ratio: float, k: int) -> Any:
    size = int(len(x) * ratio * 2), int(len(y) * ratio * 2)
    rows = x.new_zeros(math.floor(len(y) * ratio), 2) + x.mean()
    return F.interpolate(x[None, None], size, mode="bilinear"), rows, x * round(k / ratio, 1) + math.hypot(k, len(y))


def spread(x: Any, y: Any, ratio: float, k: int) -> Any:
    start = ratio * 3
    places = torch.arange(start, start + len(x) + 0.5, 1 + ratio / k)
    whole = torch.arange(0, k, ratio, dtype=torch.float64), torch.arange(k, 0, -ratio / 2)
    return places[:, None] * x[: len(places), :1].sum(), whole, x.new_ones(max(len(x) ** 2 % (len(y) + k), 2)) * y.sum()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [kept, scaled, spread], ids=lambda program: program.__name__)
def test_numbers_computed_of_sizes_and_floats_from_several_places(program: Any, dynamic: bool | None) -> None:
    """Found as arguments, and in what is passed on behind a break."""

    def behind(held: dict[str, Any], *rest: Any) -> Any:
        bolide.graph_break()
        return program(held["x"], held["y"], *rest)

    compiled, late, made = bolide.compile(program, dynamic=dynamic), bolide.compile(behind, dynamic=dynamic), 0
    sizes = zip(random.sample(range(12, 30), 6), random.sample(range(30, 60), 6), random.sample(range(3, 9), 6))
    for n, m, k in sizes:
        ratio = random.uniform(0.3, 0.7)
        x, y = torch.randn(n, 3, dtype=torch.float64), torch.randn(m, dtype=torch.float64)
        told: list[Any] = []
        with events.subscribed(told.append):
            seen = [_differentiated(compiled, x, y, ratio, k)]
        made += len([event for event in told if type(event) is events.Installed])
        assert not [event for event in told if type(event) in (events.Break, events.Fallback)]
        seen.append(_differentiated(lambda x, y, *rest: late({"x": x, "y": y}, *rest), x, y, ratio, k))
        for found in seen:
            torch.testing.assert_close(found, _differentiated(program, x, y, ratio, k), rtol=1e-5, atol=1e-5)
    assert made <= 2
    assert sum(len(point.entries) for point in late._bolide.points.values()) <= 3


def _differentiated(function: Callable[..., Any], x: Any, y: Any, *rest: Any) -> Any:
    x, y = (value.clone().requires_grad_() for value in (x, y))
    result = function(x, y, *rest)
    sum(part.square().sum() for part in tree_leaves(result) if part.requires_grad).backward()
    return result, x.grad, y.grad


def test_what_kernels_are_asked_is_not_in_the_graph() -> None:
    """The sizes of a range between floats are found by asking torch's kernels with other sizes."""
    graphs: list[torch.fx.Graph] = []

    def program(x: Any, h: float) -> Any:
        return torch.linspace(0, h, (x.shape[1] - x.shape[0]) * 2 + 1), torch.logspace(h, 1, x.shape[0])

    compiled = bolide.compile(program)
    with events.subscribed(lambda e: isinstance(e, events.Captured) and graphs.append(e.program.trace.graph)):
        for rows, columns, h in ((5, 6, -0.5), (4, 5, 0.5), (3, 5, 0.25)):
            x = torch.randn(rows, columns)
            torch.testing.assert_close(compiled(x, h), program(x, h), rtol=0, atol=0)
    makers = [node for node in graphs[-1].nodes if node.op == "call_function" and "size" not in node.name]
    assert len(makers) == 3, graphs[-1]  # two ranges, and the float's copy


# ---- sizes as keys of dicts and members of sets that the program makes: compared with the others, not fixed ----------


Program = Callable[[Tensor], Any]


def cached(x: Tensor) -> Any:
    """One tensor for each number, of the right type."""
    made: dict[Any, Tensor] = {}
    for number in (*x.shape, 7, x.shape[-1], -1, 0.5, True):
        key = (type(number), number, number < 0)
        if key not in made:
            made[key] = torch.full((), number, dtype=x.dtype)
    return x * torch.stack([*made.values()]).sum(), torch.ones(len(made))


def counted(x: Tensor) -> Any:
    counts: dict[int, int] = {}
    for size in (*x.shape, 9, 2):
        counts[size] = counts.get(size, 0) + 1
    return x * max(counts.values()), counts, [*counts], sum(size * count for size, count in counts.items())


def found(x: Tensor) -> Any:
    """A plain number is looked for among sizes."""
    table = {x.shape[1]: x.sum(), (x.shape[2], "b"): x * 2}
    return table.get(9), 9 in table, table.setdefault(11, x), table.pop((10, "b"), None), len(table), table


def erased(x: Tensor) -> Any:
    table = {x.shape[1]: 1, x.shape[2]: 2, 9: 3}
    del table[x.shape[1]]
    return x * sum(table.values()), table.pop(x.shape[2], 5), {size: x for size in x.shape[1:] if size}


def sets(x: Tensor) -> Any:
    sizes = {y.shape[1:] for y in (x, x + 1)}
    members = {x.shape[1]}
    members.discard(x.shape[2])
    height, width = sizes.pop()
    return x * height + width, len(sizes), members, 9 in {x.shape[1]}, x.shape[2] in {7, 10}


def ordered(x: Tensor) -> Any:
    """The order of a set comes of the values in it."""
    members = {x.shape[1], x.shape[2]}
    members.add(8)
    return x + 1, sorted(members), {size for size in x.shape if size}, sum({9, x.shape[1]})


def compared(x: Tensor) -> Any:
    """What compares keys by their hashes has to know them."""
    mine, other = {x.shape[1]: 1}, {9: 1}
    both = {x.shape[1], x.shape[2]}
    return x * 2, mine == other, mine | other, both & {9, 10}, both - {9}, {x.shape[1]: 0, **other}, [*both]


def hashed(x: Tensor) -> Any:
    return {(x.shape[1], 1): x}, hash((x.shape[1], 2)), [{x.shape[1]: 1}] == [{9: 1}], {9} in [{x.shape[1]}]


PROGRAMS = (cached, counted, found, erased, sets, ordered, compared, hashed)
FEW = {cached: 7, counted: 7, found: 8, erased: 7, sets: 7}  # versions: by which sizes are equal
SIZES = ((5, 6), (7, 9), (9, 7), (9, 10), (8, 8), (9, 9), (3, 10))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_sizes_are_keys(program: Program) -> None:
    compiled, told = bolide.compile(program), []
    order = [*SIZES, *[(random.randint(12, 60), random.randint(12, 60)) for _ in range(12)]]
    random.shuffle(order)
    with events.subscribed(told.append), warnings.catch_warnings():
        if program not in FEW:  # versions for each value end in eager, which is said
            warnings.simplefilter("ignore", BolideWarning)
        for height, width in order:
            x = torch.randn(2, height, width, dtype=torch.float64, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            want, got = program(x), compiled(y)
            parts, others = tree_leaves(want), tree_leaves(got)
            assert tree_structure(got) == tree_structure(want)
            for one, other in zip(parts, others, strict=True):
                assert type(one) is type(other)
                if isinstance(one, Tensor):
                    torch.testing.assert_close(other, one)
                else:
                    assert one == other
            for leaves in (parts, others):
                sum(part.sum() for part in leaves if isinstance(part, Tensor) and part.requires_grad).backward()
            assert torch.equal(y.grad, x.grad)
    if program in FEW:
        assert not [event for event in told if type(event) in (events.Break, events.Fallback)]
        assert sum(type(event) is events.Installed for event in told) <= FEW[program]


def test_keys_across_a_break() -> None:
    def program(x: Tensor) -> Any:
        table = {x.shape[1]: x, 9: x + 1}
        print(end="")
        bolide.graph_break()
        return table[x.shape[1]] * 2 + table[9].sum(), table

    compiled = bolide.compile(program)
    for size in random.sample(range(3, 20), 8):
        x = torch.randn(2, size)
        got, want = compiled(x), program(x)
        torch.testing.assert_close(got[0], want[0])
        assert list(got[1]) == list(want[1])


def test_keys_of_a_callers_dict() -> None:
    def fill(x: Tensor, kept: dict[Any, Tensor]) -> Tensor:
        if x.shape[0] not in kept:
            kept[x.shape[0]] = torch.arange(x.shape[0], dtype=x.dtype)
        return x * kept[x.shape[0]]

    compiled, mine, theirs = bolide.compile(fill), {}, {}
    for size in random.choices(range(2, 12), k=24):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, mine), fill(x, theirs))
        assert list(mine) == list(theirs)
