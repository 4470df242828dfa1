"""Small integer inputs that the program reads: captured by value, guarded by their data, a break once it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, tensor

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import Unsupported


def seen_while(run: Callable[[], Any]) -> tuple[Any, int, int]:
    """What `run` gives, and how many segments were captured and breaks met meanwhile."""
    met: list[Any] = []
    with events.subscribed(met.append):
        result = run()
    return result, sum(type(e) is events.Captured for e in met), sum(type(e) is events.Break for e in met)


def listed(x: Any, g: Any) -> Any:
    return [part.sum() for part in x.split([h * w for h, w in g.tolist()])]


def counted(x: Any, g: Any) -> Any:
    return x[: int(g.prod(1).max())] * g.max().item()


def branched(x: Any, g: Any) -> Any:
    return x.sin() if (g[0] == g[1]).all() else x.cos()


def masked(x: Any, g: Any) -> Any:
    return x[:4][(g > 2).flatten()], x[:4].masked_select((g > 2).flatten()[:, None])


def repeated(x: Any, g: Any) -> Any:
    return x[:4].repeat_interleave(g.flatten(), 0), torch.equal(g, g.t()), g.float().mean().item(), g.nonzero() + 1


PROGRAMS = [listed, counted, branched, masked, repeated]
WITH_SYMBOLS = [listed, counted, masked]  # need nothing of other data but that they are numbers
GRIDS = [tensor([[1, 3], [2, 3]]), tensor([[3, 3], [0, 4]]), tensor([[1, 4], [1, 5]])]  # 9 in all, each
GRIDS += [tensor([[3, 2], [3, 1]]), tensor([[2, 4], [1, 1]])]
VERSIONS = 4  # that are made for data before the program breaks


def rows() -> Tensor:
    return torch.randn(9, 5)


def as_pytorch(symbols: bool) -> Any:
    """The options about data as they are (`symbols`), or as PyTorch's defaults."""
    names = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
    return config.patch({} if symbols else dict.fromkeys(names, False))


@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_data_that_stays_is_captured_and_data_that_changes_is_right(
    program: Callable[..., Any], backend: str, symbols: bool
) -> None:
    with as_pytorch(symbols):
        _stays_and_changes(program, backend, symbols and program in WITH_SYMBOLS)


def _stays_and_changes(program: Callable[..., Any], backend: str, symbols: bool) -> None:
    compiled = bolide.compile(program, backend=backend)
    x, grid = rows(), GRIDS[0].clone()

    def call() -> Any:
        result = compiled(x, grid)
        torch.testing.assert_close(result, program(x, grid))
        return result

    assert seen_while(call)[1:] == (1, 0)
    assert seen_while(call)[1:] == (0, 0)
    x = rows()
    assert seen_while(call)[1:] == (0, 0)
    whole = symbols or program is branched  # that is a branch of the graph
    for number, other in enumerate(GRIDS[1:], start=1):
        grid.view(-1).copy_(other.view(-1))  # the same tensor, written through a view of it
        _, captured, broken = seen_while(call)
        assert bool(captured) is (number == 1 or not whole) and bool(broken) is (number >= VERSIONS and not whole)
    for other in (*GRIDS, *GRIDS):
        grid = other.clone()
        call()
    assert seen_while(call)[1:] == (0, 0)
    grid = GRIDS[0]
    assert seen_while(call)[1:] == (0, 0)


def test_the_guard_names_the_data() -> None:
    found = bolide.explain(listed)(rows(), GRIDS[0])
    assert "numbers(g) == '[[1, 3], [2, 3]]'" in str(found)
    assert len(found.breaks) == 0
    (note,) = found.notes
    assert (note.kind, note.what) == ("read", "g = [[1, 3], [2, 3]]")
    assert "specialize_data" in note.reason and __file__ in note.where and "read: g = [[1, 3], [2, 3]]" in str(found)


def test_other_data_says_that_they_are_symbols_in_the_next_version() -> None:
    told: list[events.GuardFailed] = []
    compiled = bolide.compile(listed, backend="eager")
    x = rows()
    compiled(x, GRIDS[0])
    with events.subscribed(lambda event: told.append(event) if isinstance(event, events.GuardFailed) else None):
        compiled(x, GRIDS[1])
    assert "the data are symbols" in told[0].remedy


def test_where_a_break_is_an_error_each_data_is_compiled_for_itself() -> None:
    compiled = bolide.compile(listed, backend="aot_eager", fullgraph=True)
    x = rows()
    for grid in (*GRIDS, *GRIDS):
        torch.testing.assert_close(compiled(x, grid), listed(x, grid))
    with events.subscribed(lambda event: pytest.fail(str(event))):
        compiled(x, GRIDS[0].clone())


def test_where_a_break_is_an_error_data_that_may_be_symbols_are() -> None:
    """A batch norm that averages over all batches counts them."""
    norm, theirs = nn.BatchNorm1d(5, momentum=None), nn.BatchNorm1d(5, momentum=None)
    compiled = bolide.compile(norm, fullgraph=True)

    def train() -> None:
        for _ in range(6):
            x = rows()
            torch.testing.assert_close(compiled(x), theirs(x))
            torch.testing.assert_close(norm.state_dict(), theirs.state_dict())

    assert seen_while(train)[1] == 2


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (torch.ones(2, 2), {}),  # not integers
        (torch.ones(5, 13, dtype=torch.long), {}),  # too many
        (torch.ones(2, 2, dtype=torch.long), {"specialize_data": 3}),
        (torch.ones(2, 2, dtype=torch.bool), {"specialize_data": 0}),
    ],
)
def test_other_data_is_a_break(data: Tensor, options: dict[str, Any]) -> None:
    def program(g: Any) -> Any:
        return g + len(g.tolist())

    with as_pytorch(False), config.patch(**options), pytest.raises(Unsupported, match=r"Tensor.tolist depends on"):
        bolide.compile(program, backend="eager", fullgraph=True)(data)


@pytest.mark.parametrize("write", ["itself", "a view"])
def test_what_the_program_writes_is_read_as_written(write: str) -> None:
    """A counter is another number in each call."""

    def program(x: Any, n: Any) -> Any:
        (n if write == "itself" else n.view(-1)).add_(1)
        return x[: n.item()] * 2

    compiled = bolide.compile(program, backend="eager")
    counts = tensor(0), tensor(0)
    for trip in range(4):
        x = rows()
        (ours, captured, breaks), theirs = seen_while(lambda x=x: compiled(x, counts[0])), program(x, counts[1])  # type: ignore[misc]
        torch.testing.assert_close((ours, counts[0]), (theirs, counts[1]))
        assert captured == (trip < 2) and not breaks


def test_each_segment_reads_the_data_of_its_own_time() -> None:
    def program(x: Any, g: Any) -> Any:
        first = g.tolist()
        bolide.disable(lambda: g.add_(1))()
        second = g.tolist()
        return x * sum(first), x * sum(second)

    compiled = bolide.compile(program, backend="eager")
    ours, theirs = tensor([1, 2]), tensor([1, 2])
    for _ in range(4):
        x = rows()
        torch.testing.assert_close(compiled(x, ours), program(x, theirs))
        assert torch.equal(ours, theirs)


def test_buffers_are_read() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sizes", tensor([4, 5]))

        def forward(self, x: Any) -> Any:
            return [part.mean() for part in x.split(self.sizes.tolist())]

    module = Windows()
    compiled = bolide.compile(module, backend="inductor", fullgraph=True)
    for sizes in (tensor([4, 5]), tensor([4, 5]), tensor([2, 7])):
        module.sizes = sizes
        x = rows()
        torch.testing.assert_close(compiled(x), module(x))
    module.sizes[0] = 6
    module.sizes[1] = 3
    torch.testing.assert_close(compiled(x), module(x))


def test_inputs_that_share_memory() -> None:
    """What is written through one name is not read through another as it was."""

    def program(x: Any, n: Any, m: Any) -> Any:
        n.add_(1)
        return x * sum(m.tolist())

    compiled = bolide.compile(program, backend="eager")
    x = rows()
    for shared in (False, True, False, True):
        ours, theirs = tensor([1, 2]), tensor([1, 2])
        other = ours if shared else tensor([1, 2]), theirs if shared else tensor([1, 2])
        torch.testing.assert_close(compiled(x, ours, other[0]), program(x, theirs, other[1]))


def test_another_layout_or_type_of_the_same_numbers() -> None:
    def program(x: Any, n: Any) -> Any:
        return x * n.tolist()[1][0], n * 2

    compiled = bolide.compile(program, backend="eager")
    square = tensor([[1, 0], [1, 0]])
    for data in (square, square.t(), square.bool(), square.int(), square[:1].expand(2, 2), square.t().contiguous()):
        x = rows()
        found, wanted = compiled(x, data), program(x, data)
        torch.testing.assert_close(found, wanted)
        assert found[1].stride() == wanted[1].stride()


def test_with_gradients() -> None:
    def program(x: Any, g: Any) -> Any:
        return torch.stack([part.square().sum() for part in x.split(g.prod(1).tolist())])

    compiled = bolide.compile(program, backend="inductor", fullgraph=True)
    for grid in (GRIDS[0], GRIDS[2], GRIDS[0]):
        x = rows().requires_grad_()
        ours, theirs = (torch.autograd.grad(fn(x, grid).sum(), x)[0] for fn in (compiled, program))
        torch.testing.assert_close(ours, theirs)


def test_an_exported_program_is_for_all_data() -> None:
    x = rows()
    exported = bolide.dynamo.export(listed, aten_graph=True)(x, GRIDS[0]).graph_module
    for grid in GRIDS:
        torch.testing.assert_close(exported(x, grid), listed(x, grid))
    with as_pytorch(False), pytest.raises(Unsupported, match=r"Tensor.tolist depends on the data"):
        bolide.dynamo.export(listed)(x, GRIDS[0])


def test_symbols_go_before_data() -> None:
    def program(x: Any, n: Any) -> Any:
        return x * n.item()

    compiled = bolide.compile(program, backend="aot_eager", fullgraph=True)
    with config.patch(capture_scalar_outputs=True):
        captures = 0
        for count in range(3):
            x = rows()
            (ours, captured, _) = seen_while(lambda x=x, n=count: compiled(x, tensor(n)))  # type: ignore[misc]
            torch.testing.assert_close(ours, x * count)
            captures += captured
        assert captures == 1


def dropping_layers(x: torch.Tensor, probability: float) -> torch.Tensor:
    for _ in range(3):
        if torch.rand([]) < probability:
            continue
        x = x * 2
    return x if (torch.rand(3) >= 0).all() else x * 100


@pytest.mark.parametrize("probability", [0.0, -1, 1.0, 1])
def test_a_random_number_is_compared_with_one_out_of_its_range(probability: float) -> None:
    compiled = bolide.compile(dropping_layers, backend="eager", fullgraph=True)
    x = torch.randn(4)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected, state = dropping_layers(x, probability), torch.get_rng_state()
        torch.manual_seed(3)
        assert torch.equal(compiled(x, probability), expected) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("probability", [0.5, float("nan"), 1e-30])
def test_a_random_number_in_its_range_is_data(probability: float) -> None:
    """Nothing is known of it: what is returned may be x itself."""
    compiled, told = bolide.compile(dropping_layers, backend="eager", fullgraph=True), []
    x = torch.randn(4)
    with torch.random.fork_rng(), events.subscribed(told.append):
        for seed in range(8):
            torch.manual_seed(seed)
            expected, state = dropping_layers(x, probability), torch.get_rng_state()
            torch.manual_seed(seed)
            result = compiled(x, probability)
            assert torch.equal(result, expected) and torch.equal(torch.get_rng_state(), state)
            assert (result is x) == (expected is x)
    (graph,) = [event.graph.graph for event in told if isinstance(event, events.Graph)]
    assert sum(str(node.target) == "cond" for node in graph.nodes) == 3

    def program(x: torch.Tensor) -> Any:
        return [x] if torch.rand([]) < probability else x

    with pytest.raises(Unsupported, match="depends on the data"):
        bolide.compile(program, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_checks_of_small_data_are_checks_of_all_data(fullgraph: bool) -> None:
    def program(x: Any, n: Any) -> Any:
        if n.max() > 5:
            raise ValueError(f"{n} is too much")
        if int(n.min()) < 0 or n.sum().item() > 10:
            raise IndexError(f"{n} is too little")
        return x * n.sum()

    compiled = bolide.compile(program, backend="aot_eager", fullgraph=fullgraph)
    x, captures = rows(), 0
    for data in (tensor([1, 2]), tensor([0, 2]), tensor([3, 2])):
        (ours, captured, _) = seen_while(lambda n=data: compiled(x, n))  # type: ignore[misc]
        torch.testing.assert_close(ours, program(x, data))
        captures += captured
    assert captures == 1
    for data, error in ((tensor([1, 7]), ValueError), (tensor([-1, 2]), IndexError)):
        with pytest.raises(error) as wanted:
            program(x, data)
        with pytest.raises(error) as found:
            compiled(x, data)
        assert str(found.value) == str(wanted.value)
