"""Libraries for a GPU, as for the CPU: results, constants, streams, threads, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

import bolide
from bolide.aot import capture, gpu
from bolide.aot import library as making
from bolide.inductor.machine import HOPPER, host_target
from bolide.support.engine import emit
from tests.plan_tools import plans_of
from tests.thread_tools import together

WITH_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=WITH_GPU)])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(24, 48), nn.LayerNorm(48), nn.Linear(48, 8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(nn.functional.gelu(self.norm(self.first(x)))) + self.shift
        return y.softmax(-1)


def writing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(y.sin())
    return x.sum(), x.t() @ y, y


def mixing(x: torch.Tensor, here: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, here + 1, x.sum() + here.sum().to(x.device)


def library(path: Path, model: object, args: tuple[torch.Tensor, ...], **options: Any) -> Any:
    return bolide.load(bolide.aot_compile(model, args, path=path / "model.pt2", **options))


@DEVICES
def test_a_model_with_constants_and_sizes(device: str, tmp_path: Path) -> None:
    model, other = (Model().to(device).eval() for _ in range(2))
    x = torch.randn(5, 24, device=device)
    loaded = library(tmp_path, model, (x,), dynamic_shapes=({0: "batch"},))
    with torch.no_grad():
        for rows in (5, 2, 300, 33):
            x = torch.randn(rows, 24, device=device)
            torch.testing.assert_close(loaded(x), model(x), **CLOSE)
        loaded.load_constants(other.state_dict())
        torch.testing.assert_close(loaded(x), other(x), **CLOSE)
    with pytest.raises(RuntimeError, match="dimension 1 is 23, not 24"):
        loaded(torch.randn(5, 23, device=device))
    elsewhere = torch.empty(5, 24, device="meta" if device == "cpu" else "cpu")
    with pytest.raises(RuntimeError, match="input x is not on the"):
        loaded(elsewhere)


@DEVICES
def test_an_input_that_is_written(device: str, tmp_path: Path) -> None:
    x, y = torch.randn(7, 9, device=device), torch.randn(7, 9, device=device)
    loaded = library(tmp_path, writing, (x.clone(), y))
    ours, theirs = x.clone(), x.clone()
    torch.testing.assert_close(loaded(ours, y), writing(theirs, y), **CLOSE)
    torch.testing.assert_close(ours, theirs)


@DEVICES
def test_several_threads(device: str, tmp_path: Path) -> None:
    model = Model().to(device).eval()
    loaded = library(tmp_path, model, (torch.randn(5, 24, device=device),), dynamic_shapes=({0: "batch"},))

    def work(_: int) -> None:
        for rows in range(2, 20):
            x = torch.randn(rows, 24, device=device)
            with torch.no_grad():
                torch.testing.assert_close(loaded(x), model(x), **CLOSE)

    together(work, 4)


@WITH_GPU
def test_both_devices_and_another_stream(tmp_path: Path) -> None:
    x, here = torch.randn(65, device="cuda"), torch.randn(5)
    loaded = library(tmp_path, mixing, (x, here))
    torch.testing.assert_close(loaded(x, here), mixing(x, here), **CLOSE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results = loaded(x, here)
    stream.synchronize()
    torch.testing.assert_close(results, mixing(x, here), **CLOSE)


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("meta",)], ids=str)
def test_a_library_is_for_one_gpu_at_most(devices: tuple[str, ...]) -> None:
    graph = fx.Graph()
    for number, name in enumerate(("cpu", *devices, devices[0])):
        graph.placeholder(f"x{number}").meta["val"] = SimpleNamespace(device=torch.device(name))
    graph.output(())
    with pytest.raises(bolide.Unsupported, match=f"at most one GPU, not for {', '.join(devices)}"):
        capture._device_of(fx.GraphModule({}, graph))


def test_a_library_whose_driver_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_TORCH", ("libtorch_cpu.so", "libof_no_driver.so"))
    path = bolide.aot_compile(torch.sin, (torch.randn(3),), path=tmp_path / "model.pt2")
    with pytest.raises(RuntimeError, match=r"cannot be loaded here: libof_no_driver\.so"):
        bolide.load(path)


def test_host_functions_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the linker is given of a GPU's kernels, without a driver."""
    x, y = torch.randn(5, 40), torch.randn(5, 40)
    graphs = plans_of(lambda x, y: (torch.softmax(x * 2 + y, -1), (x - y).sum(0)), x, y)
    kernels = [replace(kernel, device=torch.device("cuda", 0)) for graph in graphs for kernel in graph.plan.kernels]
    monkeypatch.setattr(gpu, "image_of", lambda ptx, device: ptx)
    target = host_target()
    code = gpu.code_of([*kernels, *kernels], HOPPER, torch.device("cuda", 0), target, {})
    assert len(code.names) == 2 * len(kernels) and len(code.modules) == len(set(code.names)) <= len(kernels)
    for module, name in zip(code.modules, dict.fromkeys(code.names)):
        assert f"define hidden i64 @{name}(" in module
        emit(module, target.cpu, target.features)
    assert {region.table for region in code.regions} == {name.replace("kernel", "table") for name in code.names}


@pytest.mark.parametrize("with_gpu", [False, True])
def test_the_code_of_every_library_is_made(with_gpu: bool) -> None:
    """That for a GPU calls what torch and the driver have for streams, modules and errors."""
    text = making._own_code(with_gpu)
    emit(text, "", "")
    called = {"cuGetErrorName", "cuModuleLoadDataEx", "aoti_torch_create_cuda_stream_guard"}
    assert all((f"@{name}(" in text) == with_gpu for name in called)
