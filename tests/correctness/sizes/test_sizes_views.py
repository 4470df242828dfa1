"""Views whose places are symbols: slices, selections and pieces at integers that change from call to call, counted from
either end, forward and backward, in front of ATen calls and of kernels."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.dynamo.config import config
from bolide.support import events

T = torch.Tensor


def outcome(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What a call returns, its strides, and the gradients of the arguments that require them; or its exception."""
    inputs = [a for a in arguments if isinstance(a, T) and a.requires_grad]
    try:
        result = function(*arguments)
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    results = [result] if isinstance(result, T) else list(result)
    shown = [(r.detach().clone(), [s for s, n in zip(r.stride(), r.shape) if n > 1]) for r in results]
    wanted = [r for r in results if r.requires_grad]
    if not wanted:
        return shown
    weights = [torch.linspace(0.5, 2, r.numel(), dtype=r.dtype).reshape(r.shape) for r in wanted]
    total = torch.stack([(r * w).sum() for r, w in zip(wanted, weights)]).sum()
    return shown, torch.autograd.grad(total, inputs, allow_unused=True)


def agree(function: Callable[..., Any], calls: Sequence[Sequence[Any]], **options: Any) -> None:
    """Assert that a compiled function does what eager does at each of several calls."""
    compiled = bolide.compile(function, **options)
    for call in calls:
        expected, found = outcome(function, copy.deepcopy(call)), outcome(compiled, copy.deepcopy(call))
        shown = [tuple(a.shape) if isinstance(a, T) else a for a in call]
        if isinstance(found, str) or isinstance(expected, str):
            assert found == expected, shown
            continue
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=partial("{}: {}".format, shown))


def matrix(*shape: int) -> T:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


PLACES: dict[str, Callable[[T, int], T]] = {
    "from": lambda x, k: x[:, k:],
    "two from": lambda x, k: x[:, k : k + 2],
    "every second": lambda x, k: x[:, k::2],
    "up to": lambda x, k: x[:, : k + 9],
    "narrow": lambda x, k: x.narrow(1, k, 1),
    "select": lambda x, k: x[:, k],
    "select twice": lambda x, k: x[1, k][None],
    "of computed": lambda x, k: x.sin()[:, k:],
    "of turned": lambda x, k: x.mT[..., k:].mT,
    "of flat": lambda x, k: x.flatten()[4 * k :].view(-1, 4)[None],
    "pieces": lambda x, k: x.split([k % 5, x.shape[1] - k % 5], 1)[1],
    "slice of slice": lambda x, k: x[:, k:][:, :1],
    "copied": lambda x, k: torch.slice_copy(x, 1, k),
    "written": lambda x, k: torch.select_scatter(x, x[:, 0].cos(), 1, k),
    "slice written": lambda x, k: torch.slice_scatter(x, x[:, :1].cos(), 1, k, k + 1 if k + 1 else None),
    "in place": lambda x, k: _set(x * 1, k),
    "added in place": lambda x, k: _add(x * 1, k),
}
READERS: dict[str, Callable[[T, T], T]] = {
    "itself": lambda v, w: v,
    "kernel": lambda v, w: v.exp() * 2,
    "linear": lambda v, w: F.linear(v, w),
    "matmul": lambda v, w: v @ w,
    "turned matmul": lambda v, w: w @ v.mT if v.dim() > 2 else w @ v.t(),
    "cumsum": lambda v, w: v.flatten().cumsum(0),
    "sort": lambda v, w: v.flatten().sort()[0],
}


def _set(x: T, k: int) -> T:
    x[:, k] = x[:, 1] * 3
    return x


def _add(x: T, k: int) -> T:
    x[:, k:] += 1
    return x


@pytest.mark.parametrize("reader", READERS)
def test_places_that_are_symbols(reader: str) -> None:
    """No view loses where it begins, whatever made it and whatever reads it, and nor does its gradient."""
    for view in PLACES.values():
        calls = [(matrix(2, n, 4), k, matrix(4, 4)) for n, k in ((7, 1), (8, 2), (9, 3), (7, -1), (12, -3), (6, -5))]
        agree(lambda x, k, w, view=view: READERS[reader](view(x, k), w), calls)


def test_a_result_that_does_not_begin_where_its_memory_does() -> None:
    """A view of what an operator made is counted from its first element."""
    with torch.library._scoped_library("bolide_test_views", "FRAGMENT") as library:
        library.define("rest(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("rest", lambda x: (x * 2)[1:], "CPU")
        library.impl("rest", lambda x: x.new_empty(x.shape[0] - 1, *x.shape[1:]), "Meta")
        rest = torch.ops.bolide_test_views.rest
        calls = [(torch.randn(n, 4), torch.randn(n - 1, 3)) for n in (5, 6, 9)]
        for dynamic in (None, True):
            agree(lambda x, w: rest(x).t() @ w, calls, dynamic=dynamic)
            agree(lambda x, w: rest(x)[1:].cumsum(0), calls, dynamic=dynamic)


def test_a_view_of_pieces_that_happen_to_lie_together() -> None:
    """Whether a view is possible depends on numbers that are equal at this call: a guard, not an error."""
    calls = [(torch.randn(2, n, 4), k) for n, k in ((7, 1), (8, 2), (6, -5), (9, 3), (7, 5), (9, 0))]
    agree(lambda x, k: x.split([k % 5, x.shape[1] - k % 5], 1)[1].flatten().cumsum(0), calls)


def test_errors_of_places_that_are_symbols() -> None:
    """Places out of range are eager's errors, with eager's message, and leave the next call alone."""
    calls = [(matrix(n, 4), k, matrix(4, 4)) for n, k in ((5, 1), (6, -2), (5, 5), (6, -7), (7, 3))]
    agree(lambda x, k, w: x[k] @ w, calls)
    agree(lambda x, k, w: x.select(0, k).exp(), calls)
    agree(lambda x, k, w: torch.select_scatter(x, w[0], 0, k), calls)
    agree(lambda x, k, w: x.narrow(0, k, 2) @ w, calls)
    agree(lambda x, k, w: x.split([k, x.shape[0] - k])[0] @ w, [*calls[:1], *calls[4:], calls[2], calls[1]])


@pytest.mark.parametrize("dynamic", [None, True])
def test_padding_of_an_embedding_that_is_a_symbol(dynamic: bool | None) -> None:
    indices = torch.tensor([0, 3, 2, 3, 1, 0])
    calls = [(matrix(n, 4), indices, k) for n, k in ((5, 1), (6, 2), (7, 3), (5, -2), (6, 0))]
    agree(lambda w, i, k: F.embedding(i, w, padding_idx=k), calls, dynamic=dynamic)


def test_weights_of_experts_whose_chunks_change() -> None:
    """Sums of matrix products of slices of one weight, forward and backward."""

    def experts(x: T, w1: T, w2: T, counts: list[int]) -> T:
        outputs, start = [], 0
        for expert, count in enumerate(counts):
            outputs.append(F.gelu(x[start : start + count] @ w1[expert]) @ w2[expert])
            start += count
        return torch.cat(outputs)

    counts = ([3, 4, 5], [4, 4, 4], [2, 5, 5], [5, 1, 6], [6, 3, 3], [0, 6, 6])
    agree(experts, [(matrix(12, 6), matrix(3, 6, 8), matrix(3, 8, 6), list(c)) for c in counts])


def test_halves_of_halves() -> None:
    """A recursion over halves of the batch, with sizes that are symbols from the first call."""

    def tree(x: T, w: T, depth: int) -> T:
        if depth == 0 or x.shape[0] < 2:
            return torch.tanh(F.linear(x, w)).sum(0)
        half = x.shape[0] // 2
        return tree(x[:half], w, depth - 1) * 0.5 + tree(x[half:], w, depth - 1).relu()

    agree(tree, [(matrix(n, 8), matrix(8, 8), 3) for n in (9, 10, 12, 13)], dynamic=True)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("form", ["reshape", "flatten", "view"])
def test_a_reshaped_piece_that_happens_to_be_all(form: str, dynamic: bool | None) -> None:
    """Whether `reshape` copies is seen where its result is written; it depends on numbers that are equal or not."""

    def written_pieces(x: T, k: int) -> tuple[T, T]:
        x = x * 1
        piece = x[:, :k]
        flat = piece[:1].view(-1) if form == "view" else piece.reshape(-1) if form == "reshape" else piece.flatten()
        flat.add_(1)
        return x, flat

    calls = [(matrix(4, n), k) for n, k in random.sample([(4, 4), (4, 3), (5, 2), (5, 5), (6, 6), (6, 4)], 5)]
    agree(written_pieces, calls, dynamic=dynamic)


# ---- layouts of what is indexed by tensors ---------------------------------------------------------------------------

INDEXED = ["z", "z, w", "z, :, w", ":, z", ":, z, w", ":, z, :, w", ":, :, z"]
INDEXED += ["None, z", "..., z", "z, None, w", ":, z, None"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("places", INDEXED)
def test_layouts_of_what_tensors_index(places: str, dynamic: bool | None) -> None:
    """For operands in any order of dimensions, some of which are 1."""
    scope: dict[str, Any] = {}
    exec(f"def program(y, z, w): return y[{places}]", scope)
    program = scope["program"]
    for _ in range(3):
        compiled = bolide.compile(program, dynamic=dynamic)
        order = random.sample(range(4), 4)
        sizes = [random.choice((1, 1, 2, 3, 4)) for _ in range(4)]
        shape = random.choice([(), (1,), (2,), (2, 1), (1, 2), (2, 2)])
        for growth in (0, 1):
            grown = [size + growth * (size > 1) for size in sizes]
            y = torch.randn(grown).permute(order).requires_grad_()
            z = torch.zeros(shape, dtype=torch.int64).mT if len(shape) == 2 else torch.zeros(shape, dtype=torch.int64)
            w = torch.zeros(random.choice([tuple(z.shape), (1,), ()]), dtype=torch.int64)
            found, expected = compiled(y, z, w), program(y, z, w)
            assert torch.equal(found, expected)
            ours, eagers = ([s for s, n in zip(t.stride(), t.shape) if n > 1] for t in (found, expected))
            assert ours == eagers, (y.shape, y.stride(), z.shape, w.shape)
            weights = torch.randn(expected.shape)
            mine, theirs = (torch.autograd.grad(each, y, weights)[0] for each in (found, expected))
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dynamic", [None, True])
def test_empty_vectors_are_joined_wherever_it_is_asked_for(dynamic: bool | None) -> None:
    compiled = bolide.compile(lambda tensors, dim: torch.cat(tensors, dim) * 2, dynamic=dynamic)
    for dim in (0, 1, 2, -3):
        empty = torch.rand(0, requires_grad=True)
        found = compiled([empty, torch.rand(0)], dim)
        assert found.shape == (0,)
        assert torch.autograd.grad(found.sum(), empty)[0].shape == (0,)


@pytest.mark.parametrize(
    "shape",
    [lambda n: (n, 1, 2, n // 2), lambda n: (1, n, n, 1), lambda n: (n, n // 2, 1, 2), lambda n: (2, n // 2, 1, n)],
)
def test_reshapes_of_columns_with_extents_of_one_are_views(shape: Callable[[int], tuple[int, ...]]) -> None:
    """Products of symbols that are equal in value only."""
    for program in (lambda x: x.T.reshape(shape(len(x))), lambda x: torch.linalg.inv(x).reshape(shape(len(x))) * 1):
        compiled = bolide.compile(program, dynamic=True)
        for size in (4, 6, 8):
            x = torch.randn(size, size)
            mine, theirs = compiled(x), program(x)
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


CUT = {
    "sum": lambda x: x[:, : x.size(1) - 3].sum(0, keepdim=True),
    "parts": lambda x: torch.cat([x[:, : x.size(1) - 3], x[:, : x.size(1) - 3]]),
    "elementwise": lambda x: x[:, : x.size(1) - 3] + 1,
    "several": lambda x: x[: x.size(0) - 2, : x.size(1) - 3, x.size(2) :] + 1,
    "new": lambda x: torch.zeros(4, x.size(1) - 3, x.size(2)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("last", [0, 3])
@pytest.mark.parametrize("name", CUT)
def test_strides_of_what_turns_out_empty(name, last, dynamic):
    """A size of 0 counts as 1 in the strides of what is made."""
    compiled = bolide.compile(CUT[name], dynamic=dynamic)
    for rows in (5, 6, 3, 4):
        x = torch.ones(2, rows, last)
        found, expected = compiled(x), CUT[name](x)
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())
        torch.testing.assert_close(found, expected)


PARTS: dict[str, Callable[[int], tuple[T, ...]]] = {
    "rows of each": lambda n: (torch.randn(4, n, 3)[:, :2],),
    "last rows of each": lambda n: (torch.randn(2, 2, n + 3, 4)[:, :, -3:],),
    "one row of each": lambda n: (torch.randn(4, n, 3)[:, n - 1],),
    "columns": lambda n: (torch.randn(4, n + 1)[:, :3],),
    "one column": lambda n: (torch.randn(4, n)[:, 0],),
    "turned": lambda n: (torch.randn(3, n + 1)[:, :4].t(),),
    "every nth": lambda n: (torch.randn(3 * n)[::n],),
    "halves": lambda n: torch.randn(2, 4, n * 2).chunk(2, -1),
    "of one element": lambda n: (torch.randn(1, n, 4)[:, :1],),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_larger_tensors_of_any_size(name: str, training: bool) -> None:
    """A version for fixed strides, one for symbolic ones, and perhaps one for other sizes serve them all."""

    def program(*xs: T) -> list[T]:
        return [y for x in xs for y in (x * x.stride(0), x.softmax(-1).transpose(0, -1), x.reshape(-1).cumsum(0))]

    def called(function: Callable[..., Any], parts: Sequence[T]) -> Any:
        return outcome(function, [part.detach().requires_grad_(training) for part in parts])

    made: list[events.Installed] = []
    compiled = bolide.compile(program)
    with events.subscribed(lambda event: isinstance(event, events.Installed) and made.append(event)):
        for n in (5, 7, 9, 4, 12, 6, 11):
            parts = PARTS[name](n)
            expected, found = called(program, parts), called(compiled, parts)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=partial("{}: {}".format, n))
    assert len(made) <= 3, made


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_other_layouts_are_other_versions(dynamic: bool | None) -> None:
    """What is whole, expanded, turned or overlaps itself never passes for a part with gaps."""

    def program(x: T, w: T) -> tuple[T, ...]:
        return x @ w, x.reshape(-1) * 2, x.transpose(0, 1).contiguous().view(-1), x.clone(), x + x.t()[0, 0]

    memory = torch.randn(90, dtype=torch.float64)
    layouts = [(3, 5, 1), (3, 7, 1), (3, 9, 1), (3, 3, 1), (3, 0, 1), (3, 1, 4), (3, 1, 9), (3, 2, 1), (3, 1, 1)]
    layouts += [(3, 3, 0), (3, 0, 0), (3, 20, 9), (3, 9, 20), (3, 18, 3), (1, 9, 1), (1, 3, 2), (4, 9, 1), (2, 3, 1)]
    for order in (layouts, random.sample(layouts, len(layouts))):
        compiled = bolide.compile(program, dynamic=dynamic)
        for rows, *strides in [*order, *order[:6]]:
            x, w = memory.as_strided((rows, 3), strides, 2), torch.randn(3, 2, dtype=torch.float64)
            with config.patch(cache_size_limit=len(layouts)):
                expected, found = program(x, w), compiled(x, w)
            torch.testing.assert_close(found, expected, msg=partial("{}: {}".format, (rows, strides)))
            assert [y.stride() for y in found] == [y.stride() for y in expected], (rows, strides)


def images(channels: int, step: int, *last: int, dtype: torch.dtype) -> list[T]:
    """Images that differ in all sizes, of which no two are equal by chance; their memory has gaps where `step` is more
    than one."""
    sizes = zip(*(random.sample(range(first, first + 8), 5) for first in (61, 2, 20)))
    made = [torch.randn(n, channels, 2 * h * step, 2 * w, *last, dtype=dtype)[:, :, ::step] for n, h, w in sizes]
    return [each.requires_grad_(dtype != torch.float32) for each in made]


OTHER_ELEMENTS: dict[str, tuple[Callable[[T], T], dict[str, Any]]] = {
    "real part": (lambda z: z.real.relu(), {"dtype": torch.complex128}),
    "imaginary part": (lambda z: z.imag.relu(), {"dtype": torch.complex128}),
    "as real": (lambda z: torch.view_as_real(z)[..., 1].relu(), {"dtype": torch.complex128}),
    "as complex": (lambda x: torch.view_as_complex(x).abs(), {"last": (2,)}),
    "larger elements": (lambda x: x.view(torch.int64) + 1, {"dtype": torch.float32}),
    "smaller elements": (lambda x: x.view(torch.int16) + 1, {"dtype": torch.float32}),
}


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OTHER_ELEMENTS)
def test_views_of_other_elements(name: str, channels: int, step: int) -> None:
    """One version for all sizes, also where a stride is a symbol of its own: that of the only channel."""
    program, options = OTHER_ELEMENTS[name]
    calls = images(channels, step, *options.get("last", ()), dtype=options.get("dtype", torch.float64))
    told: list[events.Event] = []
    with events.subscribed(told.append):
        agree(program, [(each,) for each in calls])
    assert sum(isinstance(event, events.Captured) for event in told) <= 2
    assert not [event for event in told if isinstance(event, (events.Break, events.Specialised))]
