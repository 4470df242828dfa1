"""Numbers and sizes that are data, captured as symbols: one compiled version serves all data, and results, gradients,
writes and errors are eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import tensor

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import Unsupported


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def rows() -> torch.Tensor:
    return torch.randn(10, 4)


MASKS = [tensor([True, False] * 5), torch.arange(10) < 0, torch.arange(10) == 3, torch.arange(10) >= 0]
COUNTS = [tensor(k) for k in (3, 0, 1, 10, 9, 20, -2)]


# ---- programs of rows (10, 4) and a mask -----------------------------------------------------------------------------


def of_rows(x: Any, m: Any) -> Any:
    return F.softmax(x[m], -1)


def of_columns(x: Any, m: Any) -> Any:
    return x.t()[:, m] * 2


def written_back(x: Any, m: Any) -> Any:
    y = x.clone()
    y[m] = y[m] * 2
    z = torch.zeros_like(x)
    z[m] = x[m].tanh()
    return y, z


def centred(x: Any, m: Any) -> Any:
    y = x[m]
    return y - y.mean(0), y @ y.T, y.view(-1), y.unsqueeze(0).transpose(1, 2), y.shape[0] + 1


def attended(x: Any, m: Any) -> Any:
    y = x[m][None, None]
    return F.scaled_dot_product_attention(y, y, y)


def normalised(x: Any, m: Any) -> Any:
    return F.layer_norm(x[m] @ x[:4], (4,), eps=1.0).sum(0), torch.cat([x[m], x, x[~m]])


def selected(x: Any, m: Any) -> Any:
    i = m.nonzero()[:, 0]
    return x.index_select(0, i).sin(), x[i, i % 4], torch.masked_select(x[:, 0], m), torch.argwhere(m)


def broadcast(x: Any, m: Any) -> Any:
    y = x[m]
    return y.reshape(-1, 1).expand(-1, 3).contiguous(), y + x[0], y[:, None] * y[:, :, None], torch.zeros_like(y) + 1


def reduced(x: Any, m: Any) -> Any:
    y = x[m]
    return y.sum(), y.cumsum(0), y.abs().sum(1), (y * y).sum(0), torch.where(y > 0, y, -y)


OF_MASKS = (of_rows, of_columns, written_back, centred, attended, normalised, selected, broadcast, reduced)


# ---- programs of rows (10, 4) and a number ---------------------------------------------------------------------------


def first(x: Any, n: Any) -> Any:
    k = n.item()
    return x[:k] * 2, x[k:].sum(0), x[..., :k].tanh()


def checked(x: Any, n: Any) -> Any:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 10)
    return torch.cat([x[:k], x[k:] * 3]), torch.zeros(k, 4) + x[0], torch.arange(k) * 2


def asserted(x: Any, n: Any) -> Any:
    k = int(n)
    assert 0 < k < x.shape[0], "in between"
    return x[:k].mean(0) + x[k:].mean(0)


def at(x: Any, n: Any) -> Any:
    i = n.item()
    return x[i] * 2, x[i, 1], x[:, 0][i]


def written(x: Any, n: Any) -> Any:
    y = x.clone()
    k = n.item()
    y[:k] = y[:k] * 2
    y[:k].add_(1)
    return y


def masked(x: Any, n: Any) -> Any:
    torch._check_value(n.item() < 15)
    return x * (torch.arange(x.shape[0]) < n.item())[:, None], x * n.item() + n.item() // 2


def arithmetic(x: Any, n: Any) -> Any:
    k = n.item()
    return min(k, 3), max(k, 2), abs(k), -k, k % 3, k // 2, k * k, k / 2, float(k), x / 2 + k


OF_COUNTS = (first, checked, asserted, at, written, masked, arithmetic)


# ---- others ----------------------------------------------------------------------------------------------------------


def ignoring(x: Any, labels: Any) -> Any:
    keep = labels != -100
    return F.cross_entropy(x[keep], labels[keep])


def grouped(x: Any, labels: Any) -> Any:
    names, places, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    total = torch.zeros(names.shape[0], 4).index_add(0, places, x)
    return names, total / counts[:, None], torch.bincount(labels.abs()), torch.unique_consecutive(labels)


def counted(x: Any, labels: Any) -> Any:
    n = labels.abs().max().item() + 1
    torch._check(n > 0)
    return torch.zeros(n, 4).scatter_reduce(0, labels.abs()[:, None].expand_as(x), x, "amax", include_self=False)


def parts(x: Any, sizes: Any) -> Any:
    a, b = sizes.tolist()
    left, right = x.split([a, b])
    return left.sum(), right * 2


def repeated(x: Any, sizes: Any) -> Any:
    return torch.repeat_interleave(x[:2], sizes, dim=0).cumsum(0)


LABELS = [tensor([1, 2, -100, 3, 0, 0, 1, 2, 3, 3]), torch.full((10,), 2), tensor([-100] * 9 + [1])]
SPLITS = [tensor(pair) for pair in ([3, 7], [0, 10], [1, 9], [1, 1], [-1, 11])]
CASES: list[tuple[Callable[..., Any], list[torch.Tensor]]] = [
    *((program, MASKS) for program in OF_MASKS),
    *((program, COUNTS) for program in OF_COUNTS),
    *((program, LABELS) for program in (ignoring, grouped, counted)),
    (parts, SPLITS),
    (repeated, SPLITS[:3]),
]


def outcome(program: Callable[..., Any], x: torch.Tensor, data: torch.Tensor) -> Any:
    """The results and the gradient of `x`, or the error."""
    x = x.clone().requires_grad_()
    try:
        out = program(x, data)
        results = out if isinstance(out, tuple) else (out,)
        tracked = [result for result in results if isinstance(result, torch.Tensor) and result.requires_grad]
        if tracked:
            sum((result * result.detach().cos()).sum() for result in tracked).backward()
    except Unsupported:
        raise
    except Exception as error:
        return type(error)
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in results], x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("program", "inputs"), CASES, ids=[program.__name__ for program, _ in CASES])
def test_one_version_serves_all_data(program: Callable[..., Any], inputs: list[torch.Tensor], backend: str) -> None:
    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    captures: list[events.Captured] = []
    with events.subscribed(lambda event: captures.append(event) if isinstance(event, events.Captured) else None):
        for data in inputs:
            x = rows()
            expected, found = outcome(program, x, data), outcome(compiled, x, data)
            if isinstance(expected, type):
                assert found is expected, data
            else:
                torch.testing.assert_close(found, expected, equal_nan=True)
    assert len(captures) == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_cannot_be_decided_breaks_at_its_line(backend: str) -> None:
    def program(x: Any, m: Any) -> Any:
        y = x[m] * 2
        if y.shape[0] > 3:
            return y.sum()
        return y + 1

    with pytest.raises(Unsupported, match=r"u0 >= 4[\s\S]*if y.shape\[0\] > 3[\s\S]*torch._check"):
        bolide.compile(program, backend=backend, fullgraph=True)(rows(), MASKS[0])
    compiled = bolide.compile(program, backend=backend)
    for m in MASKS:
        x = rows()
        torch.testing.assert_close(compiled(x, m), program(x, m))


def test_numbers_live_across_breaks() -> None:
    def program(x: Any, n: Any) -> Any:
        k = n.item()
        half, flag = k / 2, k > 2
        bolide.graph_break()
        return x * k + half, flag, [k + 1]

    compiled = bolide.compile(program, backend="eager")
    for n in (3, 1, -4):
        x = rows()
        assert [*map(str, compiled(x, tensor(n)))] == [*map(str, program(x, tensor(n)))]


def test_a_failed_check_leaves_what_eager_leaves() -> None:
    def program(x: Any, n: Any) -> Any:
        x.mul_(2)
        torch._check(n.item() > 0, lambda: f"it is {n.item()}")
        x[: n.item()] += 1
        return x.sum()

    for backend in ("eager", "inductor"):
        compiled = bolide.compile(program, backend=backend, fullgraph=True)
        x = rows()
        kept = x.clone()
        torch.testing.assert_close(compiled(x, tensor(2)), program(kept, tensor(2)))
        torch.testing.assert_close(x, kept)
        with pytest.raises(RuntimeError, match="it is 0"):
            compiled(x, tensor(0))
        assert torch.equal(x, 2 * kept)


def test_checks_are_left_out_on_demand() -> None:
    def program(x: Any, n: Any) -> Any:
        torch._check(n.item() > 0)
        return x * n.item()

    with config.patch(do_not_emit_runtime_asserts=True):
        assert bolide.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(1), tensor(-1)) == -1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_size_marked_unbacked_is_any_size(backend: str) -> None:
    def program(x: Any, w: Any) -> Any:
        torch._check(x.shape[0] <= 5)
        y = torch.cat([x, x[: x.shape[0] // 2]]).relu() @ w
        if x.shape[0] < 7:
            y = y + x.shape[0]
        return y, x + x[:1], torch.arange(x.shape[0]), x.shape[0]

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    captures: list[events.Captured] = []
    with events.subscribed(lambda event: captures.append(event) if isinstance(event, events.Captured) else None):
        for size in (3, 1, 0, 5, 2):
            x, w = torch.randn(size, 4), torch.randn(4, 4)
            bolide.mark_unbacked(x, 0)
            torch.testing.assert_close(compiled(x, w), program(x, w))
    assert len(captures) == 1


def test_a_branch_on_a_size_marked_unbacked_is_an_error() -> None:
    def program(x: Any) -> Any:
        if x.shape[0] > 3:
            return [x * 2]
        return x

    x = rows()
    bolide.mark_unbacked(x, 0)
    with pytest.raises(bolide.ConstraintError, match=r"x\.shape\[0\] >= 4\n.*test_data_programs.*\n.*if x.shape"):
        bolide.compile(program, backend="eager")(x)


def pieces_unchecked(x: Any, n: Any) -> Any:
    first, rest = x.split([n.item(), x.shape[0] - n.item()])
    return first * 2, rest.sum(0), x.topk(n.item(), 0)[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_sizes_that_eager_checks_itself_are_checked_in_the_graph(backend: str) -> None:
    compiled = bolide.compile(pieces_unchecked, backend=backend, fullgraph=True)
    for count in (3, 0, 1, 7, 10):
        x, n = torch.randn(10, 4), torch.tensor(count)
        torch.testing.assert_close(compiled(x, n), pieces_unchecked(x, n))
    for count in (-1, 11):
        with pytest.raises(RuntimeError, match="split_sizes"):
            compiled(x, torch.tensor(count))
    assert len(compiled._bolide.entries) == 1


def by_truth(t: Any, mask: Any) -> Any:
    written = t.clone()
    written[mask] = 5.0
    other = t.clone()
    other[mask] = torch.arange(4.0)
    return t[mask] * 2, written, other, t.argsort(0, descending=mask.item())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_mask_without_dimensions_is_data(backend: str) -> None:
    compiled = bolide.compile(by_truth, backend=backend)
    for truth in (True, False, True):
        t, mask = torch.randn(3, 4), torch.tensor(truth)
        for mine, theirs in zip(compiled(t, mask), by_truth(t, mask)):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    with pytest.raises(Unsupported, match="u0"):  # not a guess that it is true
        bolide.compile(lambda t, mask: t[mask, 0], backend=backend, fullgraph=True)(t, mask)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_strides_of_tensors_that_data_makes_empty(backend: str) -> None:
    def program(x: Any, mask: Any) -> Any:
        some = x[mask]
        made = torch.zeros(3, some.shape[0], 2)
        joined = torch.cat([made, made], 1)
        return made, joined, made.stride(), joined.stride(0), mask.nonzero().stride()

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    for truths in ((True, True, False), (False, True, False), (False, False, False)):
        x, mask = torch.randn(3, 4), torch.tensor(truths)
        mine, theirs = compiled(x, mask), program(x, mask)
        assert mine[2:] == theirs[2:]
        for a, b in zip(mine[:2], theirs):
            assert (a.shape, a.stride()) == (b.shape, b.stride())


def test_without_the_options_data_breaks() -> None:
    with config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False, specialize_data=0):
        for program, data in ((at, COUNTS[0]), (of_rows, MASKS[0]), (parts, SPLITS[0])):
            with pytest.raises(Unsupported, match="data"):
                bolide.compile(program, backend="aot_eager", fullgraph=True)(rows(), data)


# ---- without the options ---------------------------------------------------------------------------------------------


def constants(x: Any) -> Any:
    sizes = torch.tensor([[2, 5]])
    lengths = F.pad(torch.tensor([3, 4, 3]).cumsum(0), (1, 0)).diff().tolist()
    places = torch.zeros(4, dtype=torch.long)
    places[1:3] += 1
    if torch.equal(torch.arange(3), torch.tensor([0, 1, 2])) and torch.all(torch.ones(3) > 0):
        x = x + torch.linspace(0, 0.5, 4).tolist()[1]
    for i in torch.arange(3):
        x = x + i.item() * x[i]
    blocks = [x.view(h, w, 4).sum(1) for h, w in sizes]
    return blocks, [part.sum() for part in x.split(lengths)], x[:, places.nonzero()[:, 0]], x[torch.unique(places)]


def masks_written(x: Any) -> Any:
    y = x.clone()
    y[y < 0] = 0.0
    y[:, :2][y[:, 0] > 1] = torch.tensor([1.0, 2.0])
    return y, y.masked_scatter(x > 1, x * 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("shape", [(), (4,), (1,)])
def test_one_value_where_a_mask_is_true_has_a_gradient(shape: tuple[int, ...], backend: str) -> None:
    """As the tokens that stand for what is masked."""

    def program(x: Any, m: Any, v: Any) -> Any:
        y = x * 2
        y[m] = v
        y[:, 0][m] = v.sum()
        return y.sin()

    with config.patch(capture_dynamic_output_shape_ops=False):
        compiled = bolide.compile(program, backend=backend, fullgraph=True)
        for mask in MASKS:
            x, v = rows().requires_grad_(), torch.randn(shape, requires_grad=True)
            ours, theirs = compiled(x, mask, v), program(x, mask, v)
            torch.testing.assert_close(ours, theirs)
            for one, other in zip(*(torch.autograd.grad(y.sum(), (x, v)) for y in (ours, theirs))):
                torch.testing.assert_close(one, other)
    with pytest.raises((RuntimeError, IndexError)):
        bolide.compile(program, backend=backend)(rows(), MASKS[0][:3], torch.randn(shape, requires_grad=True))


def lists_of_tensors(x: Any) -> Any:
    total, most = x.sum(), x.argmax()
    return (
        torch.tensor([total, 2.0]),
        torch.tensor([[most, 1], [2, 3]]),
        torch.as_tensor([most, total]),
        torch.tensor((most, True), dtype=torch.int32),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [constants, masks_written, lists_of_tensors], ids=lambda p: p.__name__)
def test_what_the_program_alone_decides_is_captured(program: Callable[..., Any], backend: str) -> None:
    with config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        compiled = bolide.compile(program, backend=backend, fullgraph=True)
        for _ in range(2):
            x = rows()
            torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "check",
    [
        lambda c: torch._assert_async(c, "negative"),
        lambda c: torch._assert(c, "negative"),
        lambda c: torch._check_tensor_all(c, lambda: "negative"),
    ],
    ids=["_assert_async", "_assert", "_check_tensor_all"],
)
def test_torchs_own_assertions(check: Callable[[Any], None], backend: str) -> None:
    def program(x: Any) -> Any:
        check((x > 0).all())
        return x.add_(1)

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    x = torch.rand(4) + 1
    torch.testing.assert_close(compiled(x.clone()), program(x.clone()))
    kept = x.neg()
    with pytest.raises((RuntimeError, AssertionError), match="negative"):
        compiled(kept)
    assert torch.equal(kept, x.neg())


# ---- together with sizes that change ---------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [attended, selected, reduced, centred], ids=lambda p: p.__name__)
def test_data_and_symbolic_sizes(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for data in MASKS:
        x = rows()
        torch.testing.assert_close(outcome(compiled, x, data), outcome(program, x, data), equal_nan=True)


def test_attention_by_products_with_a_symbolic_head_size() -> None:
    def program(x: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x)

    compiled = bolide.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (4, 6):
        x = torch.randn(2, 3, size)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_operations_on_numbers_alone(dynamic: bool) -> None:
    def program(x: Any) -> Any:
        half = int(torch.div(x.shape[0], 2, rounding_mode="trunc")) + torch.floor_divide(x.shape[0], 3).item()
        return x[:half] * 2, torch.div(x.shape[1], 3), torch.add(2, 3)

    compiled = bolide.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with config.patch(capture_scalar_outputs=False):
        for size in (8, 12, 31):
            x = torch.randn(size, 6)
            torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(7,), (5, 3)], ids=str)
def test_results_that_are_asked_for(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    for dim in (None, *range(-len(shape), len(shape))):
        for inverse, counts in itertools.product((False, True), repeat=2):
            kwargs = {"return_inverse": inverse, "return_counts": counts, "dim": dim}
            compiled = bolide.compile(lambda x, kwargs=kwargs: function(x, **kwargs), fullgraph=True)
            for _ in range(2):
                x = torch.randint(0, 3, shape)
                torch.testing.assert_close(compiled(x), function(x, **kwargs))
