"""Many threads call and compile the same functions at once."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config
from bolide.support import locks
from bolide.tracing import modes
from tests.thread_tools import together

THREADS = 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.gain = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 100:
            raise ValueError("too long")
        return self.linear(x).relu() * self.gain


@pytest.fixture(autouse=True)
def fresh() -> None:
    bolide.reset()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_function_compiles_once(backend: str) -> None:
    model = Model().eval()
    fast = bolide.compile(model, backend=backend, dynamic=False)
    expected = {n: model(torch.full((n, 4), 0.5)) for n in (2, 3, 5)}

    def work(number: int) -> None:
        with torch.no_grad():
            for n in (2, 3, 5, 2, 3, 5):
                torch.testing.assert_close(fast(torch.full((n, 4), 0.5)), expected[n].detach())

    together(work, THREADS)
    from bolide.dynamo.entry.versions import _all

    (entries,) = [versions.entries for versions in _all if versions.entries]
    assert len(entries) == 3


def test_several_functions_with_states_of_their_own() -> None:
    functions = [bolide.compile(lambda x, k=k: x * k + 1, backend="eager") for k in range(3)]

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(30):
            k, x = rng.randrange(3), torch.ones(3, requires_grad=True)
            with torch.set_grad_enabled(number % 2 == 0):
                result = functions[k](x)
            assert result.requires_grad is (number % 2 == 0)
            torch.testing.assert_close(result.detach(), torch.full((3,), float(k + 1)))

    together(work, THREADS)


def test_exceptions_reach_the_thread_that_raised_them() -> None:
    model = Model()
    fast = bolide.compile(model, backend="eager")

    def work(number: int) -> None:
        for _ in range(10):
            if number % 2:
                with pytest.raises(ValueError, match="too long"):
                    fast(torch.randn(101, 4))
            else:
                x = torch.randn(2, 4)
                torch.testing.assert_close(fast(x), model(x))

    together(work, THREADS)


def test_guards_fail_while_others_call_and_reset() -> None:
    model = Model()
    fast = bolide.compile(model, backend="eager")
    x = torch.randn(2, 4)
    plain = torch.relu(model.linear(x)).detach()

    def work(number: int) -> None:
        for step in range(60):
            if number == 0:
                model.gain = float(step % 5)
            elif number == 1 and step % 10 == 0:
                bolide.reset()
            else:
                result = fast(x).detach()
                assert any(torch.allclose(result, plain * k) for k in (0.0, 1.0, 2.0, 3.0, 4.0))

    with config.patch(cache_size_limit=16), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together(work, THREADS)


def test_segments_of_a_broken_function() -> None:
    def inner(x: torch.Tensor, k: int) -> torch.Tensor:
        y = x * k
        bolide.graph_break()
        return y + 1

    def outer(x: torch.Tensor, count: int) -> torch.Tensor:
        for k in range(count):
            x = inner(x, k + 1)
        return x.relu()

    fast = bolide.compile(outer, backend="eager")

    def work(number: int) -> None:
        for step in range(12):
            x, count = torch.randn(3), (number + step) % 3 + 1
            torch.testing.assert_close(fast(x, count), outer(x, count))

    together(work, THREADS)


def _in_child(fast: Any, x: torch.Tensor, results: Any) -> None:
    results.put((fast(x).detach() - 1).sum().item())
    results.put(bolide.compile(lambda x: x + 2, backend="eager")(x).sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_calls_and_compiles() -> None:
    context = multiprocessing.get_context("fork")
    fast = bolide.compile(lambda x: x * 2 + 1, backend="eager")
    x = torch.ones(3)
    for _ in range(3):
        fast(x)
    results = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's warning about fork in a process with threads
        child = context.Process(target=_in_child, args=(fast, x, results))
        child.start()
    assert results.get(timeout=60) == 6.0
    assert results.get(timeout=60) == 9.0
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks_while_others_compile() -> None:
    """No lock is held for ever in the new process, and what is compiled there is right."""
    done = threading.Event()

    def compile_on() -> None:
        k = 0
        while not done.is_set():
            k += 1
            fast = bolide.compile(lambda x, k=k: (x * k).sum(), backend="inductor")
            fast(torch.ones(3, requires_grad=True)).backward()

    thread = threading.Thread(target=compile_on)
    thread.start()
    try:
        for _ in range(5):
            time.sleep(0.02)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                child = os.fork()
            if child == 0:
                _compile_and_leave()
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join(60)


def _compile_and_leave() -> None:
    """In the new process: leaves it with 0 when all is right, by a signal when it hangs."""
    signal.alarm(60)
    try:
        # no gradients: torch's engine refuses to work in a forked process where it had threads before
        found = bolide.compile(lambda x: x * 7 + 1, backend="inductor")(torch.ones(3))
        os._exit(0 if found.tolist() == [8.0] * 3 else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(2)


def test_a_pool_and_tasks() -> None:
    model = Model()
    fast = bolide.compile(model, backend="eager")

    def work(size: int) -> bool:
        x = torch.randn(size, 4)
        own = bolide.compile(lambda x: x * size, backend="eager")
        return torch.allclose(fast(x), model(x)) and torch.equal(own(x), x * size)

    async def task(size: int) -> bool:
        await asyncio.sleep(0)
        first = work(size)
        await asyncio.sleep(0)
        return first and await asyncio.to_thread(work, size)

    async def every() -> list[bool]:
        return await asyncio.gather(*(task(size) for size in range(2, 6)))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [2, 3, 4, 5] * 3))
    assert all(asyncio.run(every()))


def test_compiled_functions_inside_of_each_other() -> None:
    inner = bolide.compile(lambda x: x.sin(), backend="eager")
    calls: list[torch.Tensor] = []

    class Dying:
        def __del__(self) -> None:
            calls.append(inner(torch.ones(2)))

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    fast = bolide.compile(outer, backend="eager")
    x = torch.ones(3, requires_grad=True)
    hooked = fast(x)
    hooked.register_hook(lambda grad: calls.append(inner(grad)))
    kept = [Dying()]
    kept.append(kept)  # type: ignore[arg-type]
    del kept
    gc.collect()
    hooked.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())
    assert [call.shape[0] for call in calls] == [2, 3]
    for call in calls:
        torch.testing.assert_close(call, torch.ones_like(call).sin())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_that_calls_compiled_functions() -> None:
    fast = bolide.compile(lambda x: (x.sin() * 2).sum(), backend="inductor")
    other = bolide.compile(lambda x: x + 1, backend="inductor")
    results: list[torch.Tensor] = []

    def step() -> None:
        x = torch.ones(4, requires_grad=True)
        fast(x).backward()
        torch.testing.assert_close(x.grad, torch.ones(4).cos() * 2)

    step()
    for grad in (True, False):  # the signal may come inside of an autograd function: gradients are off there
        with torch.set_grad_enabled(grad):
            other(torch.ones(2))
    before = signal.signal(signal.SIGALRM, lambda number, frame: results.append(other(torch.ones(2))))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        deadline = time.monotonic() + 20
        while len(results) < 20 and time.monotonic() < deadline:
            step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert results
    assert all(torch.equal(result, torch.full((2,), 2.0)) for result in results)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_what_a_signal_handler_computes_is_no_part_of_what_is_captured() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = x.sin() + 1
        return x

    seen: list[torch.Tensor] = []
    ours = torch.ones(3, requires_grad=True)

    def handler(number: int, frame: Any) -> None:
        with torch.enable_grad():
            (ours * torch.full((3,), 2.0)).sum().backward()
        seen.append(torch.ones(3) + ours.detach())

    before = signal.signal(signal.SIGALRM, handler)
    nodes = set()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        deadline = time.monotonic() + 20
        while len(seen) < 20 and time.monotonic() < deadline:
            bolide.reset()
            explained = bolide.explain(fn, backend="eager")(torch.ones(2))
            nodes.add(sum(graph.nodes for graph in explained.graphs))
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(nodes) == 1
    assert ours.grad is not None and torch.equal(ours.grad, torch.full((3,), 2.0 * len(seen)))
    assert all(type(t) is torch.Tensor and torch.equal(t, torch.full((3,), 2.0)) for t in seen)


def _elsewhere(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_other_threads_draw_and_set_during_a_capture_stays(backend: str) -> None:
    """The captured program changes a mode itself, which is put back, and draws, which is not."""
    drawn: list[torch.Tensor] = []

    def set_and_draw() -> None:
        torch.set_anomaly_enabled(True)
        torch.backends.cuda.enable_math_sdp(False)
        drawn.append(torch.rand(3, dtype=torch.float32))

    @bolide.assume_constant_result
    def meanwhile() -> int:
        _elsewhere(set_and_draw)
        return 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        made = torch.ones(3) * meanwhile()
        torch.set_default_dtype(torch.float32)
        torch.backends.cuda.enable_flash_sdp(False)
        return x * made + torch.nn.functional.dropout(torch.ones(3), 0.0) + torch.multinomial(torch.ones(3), 3) * 0

    before = modes.settings()
    torch.manual_seed(3)
    expected = torch.rand(3)
    try:
        torch.manual_seed(3)
        result = bolide.compile(fn, backend=backend, fullgraph=True)(torch.ones(3))
        assert torch.equal(drawn[0], expected)
        assert not torch.equal(torch.rand(3), expected)
        assert torch.is_anomaly_enabled()
        assert not torch.backends.cuda.math_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        torch.testing.assert_close(result, torch.full((3,), 3.0, dtype=torch.float64))
        modes.apply(before)
        compiled = bolide.compile(fn, backend=backend, fullgraph=True)
        compiled(torch.ones(3))
        modes.apply(before)
        compiled(torch.ones(3))  # the program's own change is made by each call, the other thread's is not
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled() and not torch.is_anomaly_enabled()
    finally:
        modes.apply(before)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_another_thread_draws_while_many_functions_compile(backend: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(20000)
    torch.manual_seed(5)
    drawn: list[torch.Tensor] = []
    over = threading.Event()

    def draw() -> None:
        while not over.is_set() and len(drawn) < 20000:
            drawn.append(torch.rand(1))
            time.sleep(0.0005)

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        weights = torch.special.i1e(x).abs() + n
        return weights.cumsum(0).sort().values * torch.nn.functional.dropout(x, 0.5, training=False)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for n in range(6):
            bolide.compile(fn, backend=backend)(torch.ones(4), n)
    finally:
        over.set()
        thread.join()
    assert torch.equal(torch.cat(drawn), expected[: len(drawn)])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_some_compile_while_others_train_in_eager(backend: str) -> None:
    """Each thread has its own modes; what one records, the others do not see."""

    def work(number: int) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
        run, steps = (model, 30) if number % 2 else (bolide.compile(model, backend=backend), 3)
        dtype = torch.bfloat16 if number % 4 == 1 else torch.float32
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                out = run(torch.ones(3 + step % 2, 4))
            assert type(out) is torch.Tensor and out.dtype is dtype
            optimizer.zero_grad()
            out.float().square().sum().backward()
            optimizer.step()
            kept = nn.functional.dropout(torch.ones(100), 0.5)
            assert type(kept) is torch.Tensor and set(kept.tolist()) == {0.0, 2.0}
            with torch.no_grad():
                assert not model(torch.ones(2, 4)).requires_grad
        assert all(type(p.grad) is torch.Tensor and p.grad.isfinite().all() for p in model.parameters())

    together(work, THREADS)


@pytest.mark.parametrize(
    "operation", ["bernoulli", "multinomial", "randint", "randperm", "poisson", "rrelu", "dropout"]
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiling_draws_nothing(operation: str, backend: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "bernoulli": torch.bernoulli,
        "multinomial": lambda x: torch.multinomial(x, 2),
        "randint": lambda x: torch.randint(0, 5, (4,)) + x,
        "randperm": lambda x: torch.randperm(4) * x,
        "poisson": torch.poisson,
        "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    }
    states = []
    for captured_before in (False, True):
        compiled = bolide.compile(calls[operation], backend=backend)
        x = torch.full((4,), 0.5)
        if captured_before:
            compiled(x)
        torch.manual_seed(7)
        compiled(x)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_thread_that_holds_the_locks_compiles() -> None:
    """As in a finaliser or a signal handler that runs while its thread compiles a backward."""

    def work(number: int) -> None:
        with locks.compiling, locks.tables:
            x = torch.ones(4, requires_grad=True)
            bolide.compile(lambda x: (x.sin() * number).sum(), backend="inductor", dynamic=True)(x).backward()
            torch.testing.assert_close(x.grad, torch.ones(4).cos() * number)

    together(work, THREADS)
