"""CUDA graphs on a GPU, each check in turn: what the device that is played cannot prove.

    python tests/gpu/graphs.py          all of it, a line for each check; ends with 1 if one failed

The first checks call the device alone (`bolide/inductor/cudagraphs/cuda.py`), so that a wrong call of torch's is seen
before anything is built on it; then trees, whole programs against eager, and times.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from in_turn import check, run
from torch import Tensor, nn

import bolide
from bolide.inductor.cudagraphs.cuda import CudaPool
from bolide.inductor.cudagraphs.device import Layout
from bolide.inductor.cudagraphs.recorder import forest
from bolide.inductor.cudagraphs.results import Ref

recorded = bolide.compile(backend="cudagraphs")
fast = bolide.compile(mode="reduce-overhead")


def randn(*size: int) -> Tensor:
    return torch.randn(*size, device="cuda")


def in_use(pool: CudaPool) -> int:
    """Bytes of a pool that its allocator takes for in use."""
    segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool.name)]
    return sum(b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")


# ---- the device alone


@check
def a_pool_captures_and_replays() -> None:
    pool, x = CudaPool(0), randn(1000)
    with pool.capture() as graph:
        y = x * 2
    x.copy_(randn(1000))
    graph.replay()
    torch.testing.assert_close(y, x * 2)
    assert in_use(pool) > 0
    del y
    assert in_use(pool) == 0


@check
def what_is_allocated_outside_of_captures_lies_in_the_pool() -> None:
    pool = CudaPool(0)
    with pool.allocating():
        x = torch.empty(4096, device="cuda")
    assert in_use(pool) >= 4 * 4096
    del x


@check
def tensors_are_made_at_addresses() -> None:
    pool, x = CudaPool(0), randn(6, 5)[1:, 1:]
    layout = Layout.of(x)
    made = pool.tensor(layout, pool.storage(layout))
    assert torch.equal(made, x) and made.stride() == x.stride() and made.data_ptr() == x.data_ptr()
    ref = Ref(made, layout.address)
    assert ref.alive and ref.revived().data_ptr() == layout.address
    del made
    assert not ref.alive


@check
def a_checkpoint_is_restored() -> None:
    pool = CudaPool(0)
    x = randn(1000)
    with pool.capture() as graph:
        y, z = x * 2, x * 3
    layouts = [Layout.of(y), Layout.of(z)]
    saved = pool.checkpoint()
    del y, z
    assert in_use(pool) == 0
    graph.replay()
    y = pool.tensor(layouts[0], pool.storage(layouts[0]))
    ref = Ref(y, layouts[0].address)
    pool.restore(saved, [ref.storage], [layouts[1].address])
    assert 0 < in_use(pool) < 2 * 4096
    with pool.capture() as second:
        w = y + 1
    assert w.data_ptr() != y.data_ptr()
    second.replay()
    torch.testing.assert_close(w, x * 2 + 1)
    pool.free(ref.storage)
    pool.forbid(ref.storage, y, "gone")
    _raises("gone", lambda: y + 1)
    del w
    assert in_use(pool) == 0


@check
def a_capture_that_fails_leaves_nothing_behind() -> None:
    pool, x, stream = CudaPool(0), randn(1000), torch.cuda.current_stream()
    with pool.capture() as graph:
        y = x * 2
    for _ in range(2):
        _raises("capturing", lambda: _waits(pool, x))
        assert torch.cuda.current_stream() == stream
        randn(3)  # the generator is not captured any more
        x.copy_(randn(1000))
        graph.replay()
        torch.testing.assert_close(y, x * 2)
        with pool.capture() as second:
            z = x + 1
        second.replay()
        torch.testing.assert_close(z, x + 1)
        del z, second  # a graph that goes during a capture ends it


def _waits(pool: CudaPool, x: Tensor) -> None:
    with pool.capture():
        x.sin()
        torch.cuda.synchronize()


@check
def random_numbers_go_on() -> None:
    pool = CudaPool(0)
    torch.cuda.manual_seed(1)
    with pool.capture() as graph:
        x = torch.rand(100, device="cuda")
    found = [(graph.replay(), x.clone())[1] for _ in range(3)]
    torch.cuda.manual_seed(1)
    for each in found:
        torch.testing.assert_close(each, torch.rand(100, device="cuda"))


# ---- trees


def _raises(said: str, work: Callable[[], object]) -> None:
    try:
        work()
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"nothing said {said!r}")


@check
def results_of_an_earlier_step_are_gone() -> None:
    f = recorded(lambda x: x.sin())
    outputs = [f(randn(8)) for _ in range(5)]
    _raises("is gone", lambda: outputs[-2] + 1)
    _raises("is gone", lambda: outputs[-2].view(2, 4).cpu())
    outputs[-1].sum().item()


@check
def functions_in_a_row() -> None:
    f, g = fast(lambda x: (x.sin(), x * 2)), fast(lambda x, y: x.exp() + y)
    for _ in range(6):
        x, c = randn(300), randn(300)
        a, b = f(x)
        torch.testing.assert_close(g(a, c), x.sin().exp() + c)
        torch.testing.assert_close(b, x * 2)


def _trains(model: nn.Module, other: nn.Module, make: Callable[[], Tensor], how: Callable[..., Any]) -> None:
    other.load_state_dict(model.state_dict())
    compiled = how(model)
    for step in range(8):
        x = make()
        for m in (compiled, other):
            m(x).float().square().mean().backward()
        if step % 2:  # gradients of two steps are added up
            for p, q in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-2, atol=1e-3)
            model.zero_grad()
            other.zero_grad()


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64)).cuda()


@check
def training_by_aten() -> None:
    _trains(_mlp(), _mlp(), lambda: randn(32, 64), recorded)


@check
def training_by_kernels() -> None:
    _trains(_mlp(), _mlp(), lambda: randn(32, 64), fast)


@check
def training_with_convolutions_and_statistics() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda()

    _trains(make(), make(), lambda: randn(4, 3, 16, 16), fast)


@check
def pending_backward_passes() -> None:
    w = randn(64, 64).requires_grad_()
    f = fast(lambda x: (x @ w).sin() @ w)
    for _ in range(5):
        xs = randn(8, 64), randn(8, 64)
        (found,) = torch.autograd.grad(sum(f(x).sum() for x in xs), w)
        (wanted,) = torch.autograd.grad(sum(((x @ w).sin() @ w).sum() for x in xs), w)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-2)


@check
def written_inputs_and_other_sizes() -> None:
    f = fast(lambda x, cache: cache.add_(x.sum(0)).sin())
    cache, other = torch.zeros(16, device="cuda"), torch.zeros(16, device="cuda")
    for size in (3, 4, 5, 3, 4, 5, 3, 4, 5):
        x = randn(size, 16)
        torch.testing.assert_close(f(x, cache), other.add_(x.sum(0)).sin(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cache, other, rtol=1e-4, atol=1e-4)


@check
def dropout_differs_between_replays() -> None:
    f, x = fast(lambda x: nn.functional.dropout(x, 0.5)), torch.ones(4096, device="cuda")
    masks = [f(x).clone() for _ in range(5)]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(masks))
    assert all(0.9 < float(m.mean()) < 1.1 for m in masks)


@check
def seeds_that_a_program_sets_are_set_at_each_call() -> None:
    """By one that is not recorded."""

    def program(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        return x + torch.rand(4, device="cuda"), torch.rand(4, device="cuda", generator=generator)

    f, generator = fast(program), torch.Generator("cuda").manual_seed(1)
    found = [[each.clone() for each in f(torch.zeros(4, device="cuda"), generator)] for _ in range(5)]
    assert all(torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1]) for a, b in itertools.pairwise(found))


@check
def threads_and_streams() -> None:
    """While a thread records, torch lets the others not draw on the device, nor wait for all of it."""
    failed = list[BaseException]()

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                w = torch.randn(64, 64).cuda().requires_grad_()
                for _ in range(10):
                    x = torch.randn(8, 64).cuda()
                    (found,) = torch.autograd.grad(f(x, w).sum(), w)
                    (wanted,) = torch.autograd.grad(((x @ w).sin() @ w).sum(), w)
                    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-2)
        except BaseException as error:
            failed.append(error)

    f = fast(lambda x, w: (x @ w).sin() @ w)
    work()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@check
def results_outlive_a_reset() -> None:
    f = fast(lambda x: x.sin())
    for _ in range(3):
        x = randn(1000)
        y = f(x)
    bolide.reset()
    torch.cuda.empty_cache()
    others = [randn(1000) for _ in range(100)]
    torch.testing.assert_close(y, x.sin())
    del others


# ---- whole programs, and times


def _gpt2(layers: int, width: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=width // 64, n_embd=width, **options)).cuda()


@check
def gpt2_decodes() -> None:
    model = _gpt2(2, 128).eval()
    compiled = bolide.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            token = other = torch.randint(1000, (2, 5), device="cuda")
            past = theirs = None
            for _ in range(6):
                found = compiled(input_ids=token, past_key_values=past, use_cache=True)
                wanted = model(input_ids=other, past_key_values=theirs, use_cache=True)
                torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-3, atol=1e-3)
                past, theirs = found.past_key_values, wanted.past_key_values
                token, other = (r.logits[:, -1:].argmax(-1) for r in (found, wanted))


def _milliseconds(work: Callable[[], object]) -> float:
    for _ in range(20):
        work()
    least = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            work()
        torch.cuda.synchronize()
        least = min(least, (time.perf_counter() - start) / 50 * 1e3)
    return least


@check
def gpt2_of_twelve_layers_at_batch_1() -> str:
    model = _gpt2(12, 768).eval().bfloat16()
    x = torch.randint(50000, (1, 128), device="cuda")
    with torch.no_grad():
        times = []
        for m in (model, bolide.compile(model), bolide.compile(model, mode="reduce-overhead")):
            times.append(_milliseconds(lambda m=m: m(input_ids=x, use_cache=False)))
    return "ms: eager {:.3f}, default {:.3f}, reduce-overhead {:.3f} (torch.compile's was 0.87 on an H200)".format(
        *times
    )


@check
def one_small_function() -> str:
    x = randn(1000)
    f = fast(lambda x: x.sin() + 1)
    return f"{_milliseconds(lambda: f(x)) * 1e3:.1f} µs a call"


if __name__ == "__main__":
    failed = run()
    print(f"trees left: {len(forest.left)}")
    sys.exit(failed)
