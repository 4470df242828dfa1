"""`reset` is safe at any time: with threads that call, compile and break meanwhile; and after a fork."""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.inductor.ir.loops import Node
from bolide.inductor.machine import host_target
from bolide.support.engine import Library, load
from bolide.support.native import loader
from bolide.tracing import TracedTensor


def with_break(x: Tensor, scale: int) -> Tensor:
    y = x * scale
    if y.sum() > 1e9:
        return y
    return y + 1


def test_reset_while_threads_call_and_compile() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    fast_model, fast = bolide.compile(model), bolide.compile(with_break)
    failures: list[BaseException] = []
    calls = [0]
    stop = threading.Event()

    def work(scale: int) -> None:
        try:
            x = torch.randn(3, 4)
            while not stop.is_set():
                torch.testing.assert_close(fast(x, scale), x * scale + 1)
                torch.testing.assert_close(fast_model(x), model(x))
                calls[0] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (2, 3, 5, 7)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    resets = 0
    while (resets <= 30 or calls[0] <= 4) and time.monotonic() < end and not failures:
        bolide.reset()
        resets += 1
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[0]
    assert resets > 3 and calls[0] > 4


def test_reset_inside_of_a_compiled_call_and_from_a_backend() -> None:
    def resetting(gm: torch.fx.GraphModule, examples: list[Tensor]) -> object:
        bolide.reset()
        return gm

    compiled = bolide.compile(with_break, backend=resetting)
    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, 2), x * 2 + 1)

    @bolide.disable
    def in_the_middle(x: Tensor) -> Tensor:
        bolide.reset()
        return x

    broken = bolide.compile(lambda x: in_the_middle(x * 2) + 1)
    for _ in range(3):
        torch.testing.assert_close(broken(x), x * 2 + 1)


def test_reset_gives_memory_back() -> None:
    model = nn.Linear(4, 4)
    compiled = bolide.compile(model)
    compiled(torch.randn(2, 4))
    weight = weakref.ref(model.weight)
    bolide.reset()
    del model, compiled
    gc.collect()
    assert weight() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_calls_and_compiles() -> None:
    compiled = bolide.compile(with_break)
    x = torch.randn(3)
    expected = x * 2 + 1
    torch.testing.assert_close(compiled(x, 2), expected)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            again = torch.equal(compiled(x, 2), expected)
            bolide.reset()
            fresh = torch.equal(compiled(x, 3), x * 3 + 1)
            code = 0 if again and fresh else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_reset_returns_what_compiling_took() -> None:
    """Expressions of kernels and sources of plans go with what was compiled."""

    def left() -> tuple[int, int]:
        bolide.reset()
        gc.collect()
        plans = [name for name in linecache.cache if name.startswith("<bolide driver")]
        return len(Node._table), len(plans)

    def compiled(scale: float) -> None:
        def program(x: Tensor) -> Tensor:
            return (x * scale).exp()

        x = torch.randn(3, 4)
        torch.testing.assert_close(bolide.compile(program)(x), program(x))

    before = left()  # other tests may keep what they have compiled
    compiled(2.5)
    first = left()
    compiled(3.5)
    compiled(4.5)
    assert left() == first and first[1] == before[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_reset_lets_go_of_what_was_traced(backend: str) -> None:
    """The user's code and classes, and segments that take tensors with a history."""

    def traced() -> int:
        gc.collect()
        return sum(type(value) is TracedTensor for value in gc.get_objects())

    def compiled() -> list[weakref.ref[object]]:
        scope: dict[str, object] = {"graph_break": bolide.graph_break}
        exec("class Own: gain = 2\ndef f(x, own):\n  y = x * own.gain\n  graph_break()\n  return y.exp() * y", scope)
        program: Any = scope["f"]
        x = torch.randn(3, 4, requires_grad=True)
        bolide.compile(program, backend=backend)(x, scope["Own"]()).sum().backward()  # type: ignore[operator]
        return [weakref.ref(program.__code__), weakref.ref(scope["Own"])]

    bolide.reset()
    before = traced()
    references = compiled()
    bolide.reset()
    assert traced() == before
    bolide.reset()  # code that has died by now
    assert not any(reference() for reference in references)


@pytest.mark.parametrize("by_hand", [True, False])
def test_code_is_unloaded_in_the_end(by_hand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_hand:
        monkeypatch.setattr(loader, "_MAGIC", b"of another kind")
    text = "define i64 @f(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}"
    target = host_target()

    def loaded(number: int) -> Library:
        return load(text.format(number=number), ["f"], target.cpu, target.features)

    libraries = [loaded(number) for number in range(70)]
    functions = [ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.addresses["f"]) for library in libraries]
    assert [function(5) for function in functions] == list(range(5, 75))
    codes = [weakref.ref(library.code) for library in libraries]
    sessions = [weakref.ref(library.session) for library in libraries if library.session is not None]
    kept = libraries[69]
    del libraries, functions
    gc.collect()
    assert [code() for code in codes if code() is not None] == [kept.code]
    alive = {id(session()) for session in sessions if session() is not None}
    assert not sessions or (id(kept.session) in alive and len(alive) <= 2)
