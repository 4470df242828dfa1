"""What follows what, and what becomes of results: recorded by a device that is played, mostly of ATen calls."""

from __future__ import annotations

import operator
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from fake_device import FakeDevice, fake
from torch import Tensor, nn

import bolide
from bolide.inductor.cudagraphs.gate import Gate
from bolide.inductor.cudagraphs.reasons import why_not
from bolide.inductor.cudagraphs.recorder import forest
from bolide.inductor.cudagraphs.recording import Recording
from bolide.support import events
from bolide.tracing.rules.common import fresh

__all__ = ["fake"]

recorded = bolide.compile(backend="cudagraphs")
GONE = r"(?s)result 0 of the \w+ graph of .*made in step \d+, is gone.*step \d+ began.*clone\(\).*cudagraph_mark_step"


def recordings() -> Iterator[Recording]:
    """All recordings of this thread's trees."""
    stack = [r for tree in forest.own.trees.values() for many in tree.roots.values() for r in many]
    while stack:
        yield (one := stack.pop())
        stack += [r for many in one.children.values() for r in many]


@pytest.fixture
def reasons() -> Iterator[list[str]]:
    """Why graphs are not recorded."""
    found: list[str] = []
    with events.subscribed(lambda e: found.append(e.reason) if isinstance(e, events.NotRecorded) else None):
        yield found


def test_a_result_of_an_earlier_step_is_gone(fake: FakeDevice) -> None:
    f = recorded(lambda x: x.sin())
    xs = [torch.randn(4) for _ in range(4)]
    first, second = f(xs[0]), f(xs[1])  # not recorded; recorded
    third = f(xs[2])
    torch.testing.assert_close(first, xs[0].sin())
    with pytest.raises(RuntimeError, match=GONE):
        second + 1
    torch.testing.assert_close(third, xs[2].sin())
    kept = third.clone()
    torch.testing.assert_close(f(xs[3]), xs[3].sin())
    torch.testing.assert_close(kept, xs[2].sin())
    with pytest.raises(RuntimeError, match=GONE):
        f(third)
    assert len(fake.graphs) == 1


def test_functions_in_a_row_are_one_step(fake: FakeDevice) -> None:
    f, g = recorded(lambda x: (x.sin(), x * 2)), recorded(lambda x, y: x.exp() + y)
    for _ in range(5):
        x = torch.randn(4)
        (a, b), c = f(x), torch.randn(4)
        d = g(a, c)
        e = g(d, b)  # called again in this step: another one begins
        torch.testing.assert_close(e, (x.sin().exp() + c).exp() + x * 2)
    assert len(fake.graphs) < 5


def test_own_results_are_inputs(fake: FakeDevice) -> None:
    f = recorded(lambda x: x * 2 + 1)
    x = y = torch.ones(3)
    for _ in range(6):
        x, y = f(x), y * 2 + 1
    torch.testing.assert_close(x, y)
    assert len(fake.graphs) == 1


def test_pending_backward_passes_keep_the_step(fake: FakeDevice) -> None:
    w = torch.randn(3, 3, requires_grad=True)
    f = recorded(lambda x: (x @ w).sin().exp())
    made = []
    for _ in range(6):
        xs = torch.randn(3, 3), torch.randn(3, 3)
        found = torch.autograd.grad(f(xs[0]).sum() + f(xs[1]).sum(), w)
        wanted = torch.autograd.grad(sum((x @ w).sin().exp().sum() for x in xs), w)
        torch.testing.assert_close(found, wanted)
        made.append(len(fake.graphs))
    assert made[-1] == made[-3] <= 6


def test_gradients_are_accumulated_over_steps(fake: FakeDevice) -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.load_state_dict(model.state_dict())
    f = recorded(model)
    for _ in range(5):
        x = torch.randn(2, 4)
        f(x).square().sum().backward()
        other(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad, other.weight.grad)
    torch.testing.assert_close(model.bias.grad, other.bias.grad)
    assert len(fake.graphs) == 2


@pytest.mark.parametrize("torchs", [False, True])
def test_the_program_says_that_a_step_begins(fake: FakeDevice, torchs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(3, requires_grad=True)
    f, outputs = recorded(lambda x: (x * w).sin().exp()), []
    begin = bolide.cudagraph_mark_step_begin
    if torchs:  # it counts down in a module of torch's, which is not loaded here
        box = type("MarkStepBox", (), {"mark_step_counter": 0})
        monkeypatch.setitem(
            __import__("sys").modules, "torch._inductor.cudagraph_trees", type("m", (), {"MarkStepBox": box})
        )
        begin = lambda: setattr(box, "mark_step_counter", box.mark_step_counter - 1)  # noqa: E731
    for _ in range(5):
        begin()
        outputs.append(f(torch.randn(3)))  # no backward pass follows
    assert len(fake.graphs) == 1
    with pytest.raises(RuntimeError, match=GONE):
        fake.check(outputs[-2].sum())


def test_a_mark_in_captured_code_breaks(fake: FakeDevice) -> None:
    def f(x: Tensor) -> Tensor:
        bolide.inductor.cudagraph_mark_step_begin()
        return x.sin()

    compiled = recorded(f)
    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(fake.graphs) == 1


def test_what_inference_mode_recorded_runs_outside_of_it(fake: FakeDevice) -> None:
    f = recorded(lambda x: x.sin())
    for inference in (True, True, False, False, True, False):
        with torch.inference_mode(inference):
            x = torch.randn(3)
            y = f(x)
            torch.testing.assert_close(y, x.sin())
            assert y.is_inference() == inference


def test_without_a_mark_results_wait_for_their_backward(fake: FakeDevice) -> None:
    w, xs = torch.randn(3, requires_grad=True), [torch.randn(3) for _ in range(5)]
    f = recorded(lambda x: (x * w).sin().exp())
    outputs = [f(x) for x in xs]
    for x, y in zip(xs, outputs):
        torch.testing.assert_close(y, (x * w).sin().exp())
    (found,) = torch.autograd.grad(sum(y.sum() for y in outputs), w)
    (wanted,) = torch.autograd.grad(sum((x * w).sin().exp().sum() for x in xs), w)
    torch.testing.assert_close(found, wanted)


def test_a_graph_may_be_retained(fake: FakeDevice) -> None:
    w = torch.randn(3, requires_grad=True)
    f = recorded(lambda x: (x * w).sin().exp())
    for _ in range(4):
        x = torch.randn(3)
        y, z = f(x).sum(), (x * w).sin().exp().sum()
        for retained in (True, True, False):
            found, wanted = (torch.autograd.grad(r, w, retain_graph=retained) for r in (y, z))
            torch.testing.assert_close(found, wanted)


def test_breaks_do_not_end_a_step(fake: FakeDevice) -> None:
    def f(x: Tensor) -> list[Tensor]:
        found = []
        for _ in range(3):
            x = (x * 2).sin()
            found.append(x)
            print(end="")
        return found

    compiled = recorded(f)
    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), f(x))


def test_parameters_are_read_where_they_lie(fake: FakeDevice) -> None:
    model = nn.Linear(4, 4)
    f, x = recorded(model), torch.randn(2, 4)
    with torch.no_grad():
        for step in range(8):
            if step == 4:
                model.weight.data = torch.randn(4, 4)  # elsewhere
            model.weight.mul_(1.5)
            torch.testing.assert_close(f(x), model(x))
    assert [len(r.inputs.copied) for r in recordings()] == [0, 0]  # `x` is kept, too


def test_inputs_that_come_and_go_are_copied(fake: FakeDevice) -> None:
    f = recorded(lambda x, y: x + y)
    y = torch.randn(3, 1).expand(3, 5)
    for _ in range(4):
        x = torch.randn(5, 3).t()
        torch.testing.assert_close(f(x, y), x + y)
        y = torch.randn(3, 1).expand(3, 5)
    (recording,) = recordings()
    assert recording.inputs.copied == (0, 1)


def test_written_inputs(fake: FakeDevice, reasons: list[str]) -> None:
    def f(x: Tensor, kept: Tensor) -> Tensor:
        x.mul_(2)
        kept.add_(x)
        return kept.sin()

    options = bolide.dynamo.config
    for keep, support, mode in ((False, False, None), (True, False, None), (True, True, None), (False, False, "r")):
        bolide.reset()
        how = {"mode": "reduce-overhead"} if mode else {"backend": "cudagraphs"}
        with options.patch(
            cudagraph_backend_keep_input_mutation=keep, cudagraph_backend_support_input_mutation=support
        ):
            compiled, kept = bolide.compile(f, **how), torch.zeros(3)
            other = kept.clone()
            for _ in range(4):
                x = torch.randn(3)
                y, before = x.clone(), kept._version
                torch.testing.assert_close(compiled(x, kept), f(y, other))
                torch.testing.assert_close((x, kept), (y, other))
                assert kept._version == before + 1
        assert len(list(recordings())) == (not keep), (keep, support, mode)
    assert "the options forbid it" in reasons[0]
    assert "input 0 is written to where it lies" in reasons[1] and len(reasons) == 2


def test_statistics_are_written_where_they_lie(fake: FakeDevice) -> None:
    model, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    f = recorded(model)
    for _ in range(5):
        x = torch.randn(6, 4)
        torch.testing.assert_close(f(x), other(x))
        torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_sizes_have_recordings_of_their_own(fake: FakeDevice, reasons: list[str]) -> None:
    f = recorded(lambda x: x.sin().sum(0))
    with bolide.inductor.config.patch({"triton.cudagraph_dynamic_shape_warn_limit": 3}):
        for _ in range(3):
            for size in (4, 5, 6, 7, 8):
                x = torch.randn(size, 3)
                torch.testing.assert_close(f(x), x.sin().sum(0))
    assert len(fake.graphs) == 3
    assert len(reasons) == 1 and "other sizes 3 times" in reasons[0]


def test_recordings_are_bounded(fake: FakeDevice, reasons: list[str]) -> None:
    f, models = recorded(lambda m, x: m(x)), [nn.Linear(3, 3) for _ in range(6)]
    with bolide.inductor.config.patch({"triton.cudagraph_unexpected_rerecord_limit": 2}), torch.no_grad():
        for model in models * 2:
            x = torch.randn(2, 3)
            torch.testing.assert_close(f(model, x), model(x))
    assert len(fake.graphs) == 2
    assert len(reasons) == 1 and "it was recorded 2 times" in reasons[0]


def test_what_fails_while_it_is_captured_runs_unrecorded(fake: FakeDevice, reasons: list[str]) -> None:
    fake.refused.add("aten::cumsum")
    f, g = recorded(lambda x: x.sin()), recorded(lambda x: x.cumsum(0) * 2)
    for _ in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(g(f(x)), x.sin().cumsum(0) * 2)
    assert len(reasons) == 1 and "not permitted while a stream is captured" in reasons[0]
    assert len(list(recordings())) == 1


def test_what_failed_once_is_recorded_later(fake: FakeDevice, reasons: list[str]) -> None:
    """Something else may have been the cause."""
    f, w = recorded(lambda x: x.cumsum(0) * 2), torch.randn(4)
    f(w)
    fake.refused.add("aten::cumsum")
    torch.testing.assert_close(f(w), w.cumsum(0) * 2)
    fake.refused.clear()
    for _ in range(3):
        torch.testing.assert_close(f(w), w.cumsum(0) * 2)
    assert not reasons and len(list(recordings())) == 1 and fake.replays >= 2


def test_numbers_of_data_are_a_reason(fake: FakeDevice, reasons: list[str]) -> None:
    with bolide.dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        f = recorded(lambda x: x.nonzero().sum())
        for _ in range(3):
            x = torch.randn(4).relu()
            assert f(x) == x.nonzero().sum()
    assert (reasons and "depend on data" in reasons[0]) or "of data" in reasons[0]


def test_elements_chosen_by_numbers_are_recorded(fake: FakeDevice, reasons: list[str]) -> None:
    """torch says of indexing that its sizes depend on data, which masks alone make true."""
    f = recorded(lambda x, i: x.cumsum(0)[i] * 2)
    for _ in range(4):
        x, i = torch.randn(4), torch.randint(0, 4, (3,))
        torch.testing.assert_close(f(x, i), x.cumsum(0)[i] * 2)
    assert not reasons and len(list(recordings())) == 1


@pytest.mark.parametrize("mode", ["manual_seed", "state", "generator"])
def test_seeds_and_states_are_not_recorded(mode: str, fake: FakeDevice, reasons: list[str]) -> None:
    """A replay draws again, and does nothing else with generators."""

    def program(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if mode == "manual_seed":
            torch.manual_seed(5)
        if mode == "state":
            torch.set_rng_state(torch.get_rng_state())
        return x + torch.rand(4, generator=generator if mode == "generator" else None)

    x, found = torch.randn(4), []
    for function in (bolide.compile(program), recorded(program)):
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        found.append([function(x, generator) for _ in range(5)])
    torch.testing.assert_close(*found)
    assert len(reasons) == 1 and "generator" in reasons[0] and not fake.graphs


@pytest.mark.parametrize("used", [False, True])
def test_only_what_is_used_on_another_device_is_a_reason(used: bool) -> None:
    """Attention on a GPU gives a state of random numbers on the CPU, which is for its backward."""
    graph, device = torch.fx.Graph(), torch.device("cuda:0")
    x = graph.placeholder("x")
    x.meta["val"] = fresh((2,), torch.float32, device)
    pair = graph.call_function(torch.ops.aten.max.dim, (x, 0))
    pair.meta["val"] = x.meta["val"], fresh((), torch.int64, torch.device("cpu"))
    parts = [graph.call_function(operator.getitem, (pair, place)) for place in range(1 + used)]
    for part, meta in zip(parts, pair.meta["val"]):
        part.meta["val"] = meta
    graph.output(tuple(parts))
    found = why_not(graph, device)
    assert (found is not None and "is on cpu" in found[0]) if used else found is None


def test_symbolic_sizes_may_be_a_reason(fake: FakeDevice, reasons: list[str]) -> None:
    with bolide.inductor.config.patch({"triton.cudagraph_skip_dynamic_graphs": True}):
        f = bolide.compile(lambda x: x * 2, backend="cudagraphs", dynamic=True)
        for size in (3, 4, 3, 4):
            f(torch.randn(size))
    assert not fake.graphs and "its sizes are symbolic" in reasons[0]


def test_each_graph_may_have_memory_of_its_own(fake: FakeDevice) -> None:
    with bolide.inductor.config.patch({"triton.cudagraph_trees": False}):
        f, g = recorded(lambda x: x.sin()), recorded(lambda x: x.cos())
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(g(f(x)), x.sin().cos())
    assert len(fake.pools) == 2


def test_random_numbers(fake: FakeDevice) -> None:
    def f(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)

    compiled, x = recorded(f), torch.ones(64)
    torch.manual_seed(3)
    found = [compiled(x).clone() for _ in range(4)]
    torch.manual_seed(3)
    with bolide.set_stance("default"):
        plain = bolide.compile(f)
        wanted = [plain(x) for _ in range(4)]
    torch.testing.assert_close(found, wanted)
    assert not torch.equal(found[2], found[3])


def test_dead_memory_is_used_again_and_living_is_not(fake: FakeDevice) -> None:
    layers = [nn.Linear(64, 64) for _ in range(6)]

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x).tanh()
        return x

    compiled = recorded(f)
    for _ in range(4):
        y = compiled(torch.randn(64, 64))
        y.sum().backward()
        del y
    (pool,) = fake.pools
    activation = 64 * 64 * 4
    assert 7 * activation <= pool.most <= 16 * activation  # all saved at once, and then gradients in their place


def test_results_outlive_a_reset(fake: FakeDevice) -> None:
    f = recorded(lambda x: x.sin())
    for _ in range(3):
        x = torch.randn(4)
        y = f(x)
    before = len(forest.left)
    bolide.reset()
    torch.testing.assert_close(y, x.sin())
    assert len(forest.left) == before + 1
    del y
    f(torch.randn(4)), f(torch.randn(4))
    assert len(forest.left) == before


def test_threads_have_trees_of_their_own(fake: FakeDevice, reasons: list[str]) -> None:
    w = torch.randn(16, 16, requires_grad=True)
    f = recorded(lambda x: (x @ w).sin().exp())
    kept, failed = [], []

    def work(seed: int) -> None:
        try:
            source = torch.Generator().manual_seed(seed)
            for _ in range(8):
                x = torch.randn(16, 16, generator=source)
                y = f(x)
                torch.testing.assert_close(y, (x @ w).sin().exp())
                torch.testing.assert_close(
                    torch.autograd.grad(y.sum(), w), torch.autograd.grad((x @ w).sin().exp().sum(), w)
                )
            kept.append((x, y.detach()))
        except BaseException as error:
            failed.append(error)

    f(torch.randn(16, 16)).sum().backward()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and not reasons, (failed, reasons)
    assert len(fake.pools) >= 3
    assert all(not function.failures for _, _, tree in forest.all for function in tree.roots)
    for x, y in kept:  # though its thread has ended
        torch.testing.assert_close(y, (x @ w).sin().exp().detach())


def test_a_backward_pass_in_another_thread(fake: FakeDevice) -> None:
    w = torch.randn(4, 4, requires_grad=True)
    f = recorded(lambda x: (x @ w).sin() @ w)
    for _ in range(4):
        x = torch.randn(4, 4)
        loss, found = f(x).sum(), list[Tensor]()
        thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(loss, w)))  # noqa: B023
        thread.start()
        thread.join()
        torch.testing.assert_close(found[0], torch.autograd.grad(((x @ w).sin() @ w).sum(), w)[0])
    assert len(fake.pools) == 1


def test_streams_have_trees_of_their_own_and_captures_are_left_alone(fake: FakeDevice) -> None:
    f = recorded(lambda x: x.sin())
    for stream in (0, 0, 1, 1, 0):
        fake.current = stream
        x = torch.randn(3)
        torch.testing.assert_close(f(x), x.sin())
    assert len(fake.pools) == 2
    before, fake.capturing = fake.replays, True
    f(torch.randn(3))
    assert fake.replays == before


Kept = tuple[Tensor, Tensor]


@pytest.mark.parametrize("trains", [False, True])
def test_no_result_is_ever_silently_wrong(fake: FakeDevice, seed: int, trains: bool) -> None:
    """Calls in a random order; results are kept at random, and used by later calls: each is eager's, or gone."""
    w = torch.randn(3, 3, requires_grad=trains)
    eager: list[Callable[..., tuple[Tensor, ...]]] = [
        lambda x, y: ((x @ w).sin(), x * 2),
        lambda x, y: ((x + y).tanh().tanh(), (x + y).view(9)[:3] @ w),
        lambda x, y: (x.exp().clamp(max=2.0) - y @ w,),
    ]
    compiled = [recorded(f) for f in eager]
    kept: list[Kept] = []
    gone = 0
    choose = random.Random(seed)
    for _ in range(120):
        which, operands = choose.randrange(3), []
        for _ in range(2):
            pair = choose.choice(kept) if kept and choose.random() < 0.5 else (fresh := torch.randn(3, 3), fresh)
            operands.append(pair if pair[1].shape == (3, 3) else (fresh := torch.randn(3, 3), fresh))
        wanted = eager[which](*(o[1] for o in operands))
        try:
            found = compiled[which](*(o[0] for o in operands))
            for each in zip(found, wanted, strict=True):
                torch.testing.assert_close(*each)
            if trains and choose.random() < 0.3:
                (mine,) = torch.autograd.grad(sum(r.sum() for r in found), w, retain_graph=choose.random() < 0.5)
                (theirs,) = torch.autograd.grad(sum(r.sum() for r in wanted), w, retain_graph=True)
                torch.testing.assert_close(mine, theirs)
            kept += [pair for pair in zip(found, wanted) if choose.random() < 0.4]
        except RuntimeError as error:
            assert "is gone" in str(error) or "second time" in str(error), error
            gone += 1
        for pair in [*kept]:
            try:
                fake.check(pair[0])
                torch.testing.assert_close(*pair)
            except RuntimeError as error:
                assert "is gone" in str(error), error
                kept = [other for other in kept if other is not pair]
                gone += 1
        kept = kept[-choose.randrange(1, 6) :]
    assert fake.replays > 20
    assert gone or trains


def test_one_thread_is_alone_while_it_records() -> None:
    """All others wait until it is done, and none waits for ever."""
    gate, order = Gate(), list[str]()

    def enters() -> None:
        with gate:
            order.append("entered")

    with gate, gate, gate.alone() as is_alone:
        thread = threading.Thread(target=enters)
        thread.start()
        thread.join(0.05)
        order.append("done")
    thread.join()
    assert is_alone and order == ["done", "entered"]

    inside, leave, told = threading.Event(), threading.Event(), list[bool]()

    def stays() -> None:
        with gate:
            inside.set()
            leave.wait(10)
            with gate.alone() as is_alone:
                told.append(is_alone)

    thread = threading.Thread(target=stays)
    thread.start()
    inside.wait(10)
    with gate, gate.alone() as is_alone:
        told.append(is_alone)
    leave.set()
    thread.join()
    assert told == [False, True]
