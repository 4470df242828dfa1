"""The current device, streams and events: what is guarded, what breaks; without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bolide
from bolide.support.errors import Unsupported
from bolide.tracing import Trace


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the current device, of a driver that is played."""
    found = [0]
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: found[0], raising=False)
    bolide.reset()
    return found


def test_the_current_device_is_guarded(current: list[int]) -> None:
    compiled = bolide.compile(lambda x: x + torch.cuda.current_device(), fullgraph=True)
    x = torch.randn(3)
    for number in (0, 1, 1, 0, 2):
        current[0] = number
        assert torch.equal(compiled(x), x + number)


def test_a_device_without_a_number_is_the_current_one(current: list[int]) -> None:
    trace, zeros = Trace(), torch.ops.aten.zeros.default
    for number in (0, 1):
        current[0] = number
        assert trace.dispatch(zeros, ([3],), {"device": torch.device("cuda")}).device == torch.device("cuda", number)
    assert trace.dispatch(zeros, ([3],), {"device": torch.device("cuda", 5)}).device.index == 5


def test_what_names_a_gpu_without_a_number_is_guarded(current: list[int]) -> None:
    graphs: list[object] = []

    def counting(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(gm)
        return gm.forward

    compiled = bolide.compile(lambda x: x + len(torch.device("cuda").type), backend=counting, fullgraph=True)
    for number, count in ((0, 1), (1, 2), (1, 2)):
        current[0] = number
        compiled(torch.randn(3))
        assert len(graphs) == count


def synchronized(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.synchronize()
    return x + 1


def streamed(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.current_stream().synchronize()
    return x + 1


def elsewhere(x: torch.Tensor) -> torch.Tensor:
    with torch.cuda.device(0):
        return x + 1


def timed(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.Event(enable_timing=True).record()
    return x + 1


def measured(x: torch.Tensor) -> torch.Tensor:
    return x + torch.cuda.memory_allocated()


def set_elsewhere(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.set_device(0)
    return x + 1


@pytest.mark.parametrize("program", [synchronized, streamed, elsewhere, timed, measured, set_elsewhere])
def test_what_orders_or_measures_a_device_is_called_for_real(program: Callable[..., object]) -> None:
    with pytest.raises(Unsupported, match="from call to call"):
        bolide.compile(program, fullgraph=True)(torch.randn(3))
