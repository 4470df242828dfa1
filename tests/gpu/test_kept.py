"""What a GPU's kernels are made of is kept: by a driver that is played."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_driver
import gpu_emulated
import pytest
import torch
from gpu_driver import Driver, on_gpu

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import Versions
from bolide.dynamo.library import marks
from bolide.inductor import compiled_graph, saved
from bolide.inductor.codegen import compiler
from bolide.inductor.codegen.cuda import compiler as gpu_compiler
from bolide.inductor.machine import HOPPER
from bolide.saving import environment
from bolide.support import artifacts
from tests.plan_tools import plans


@pytest.fixture
def compile_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Graphs are compiled for a GPU whose memory is the CPU's; the kernels that were. There is a cache on disk."""
    made: list[Any] = []
    gpu_emulated.emulate(monkeypatch.setattr)
    places_of = compiler.places_of

    def compiled(kernels: Any, machine: Any, sizes: Any = None) -> Any:
        made.extend(gpu_compiler.compile_kernels([*map(on_gpu, kernels)], HOPPER, sizes))
        return made[len(made) - len(kernels) :]

    monkeypatch.setattr(compiled_graph, "compile_kernels", compiled)
    monkeypatch.setattr(saved, "places_of", lambda kernels, machine: places_of([*map(on_gpu, kernels)], machine))
    monkeypatch.setattr(compiled_graph, "is_on", artifacts.is_on)
    monkeypatch.setattr(saved, "_machine_of", lambda device: HOPPER)
    monkeypatch.setattr(marks, "MARKED", set())
    monkeypatch.setattr(environment, "MARKED", marks.MARKED)
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch(force_disable_caches=False):
        bolide.reset()
        yield made
    bolide.reset()


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.softmax(x * 2 + y, -1), (x - y).sum(0)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 40), torch.randn(5, 40)


@pytest.mark.parametrize("links", [True, False])
def test_a_kept_graph_makes_no_code(links: bool, compile_here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Driver(links)
    gpu_driver.play(monkeypatch, first)
    bolide.reset()
    given = arguments()
    with plans() as graphs:
        results = bolide.compile(program)(*given)
    torch.testing.assert_close(results, program(*given))
    assert first.done.count("ptx") == len(compile_here) and "launch" in first.done and graphs[-1].key

    second = Driver(links)
    gpu_driver.play(monkeypatch, second)
    bolide.reset()
    monkeypatch.setattr(Versions, "_make_once", None)  # it is not captured, either
    made = len(compile_here)
    compiled = bolide.compile(program)
    for _ in range(3):
        given = arguments()
        torch.testing.assert_close(compiled(*given), program(*given))
    assert "ptx" not in second.done and "cuLinkCreate_v2" not in second.done
    assert second.done.count("cuModuleLoadDataEx") == len(compile_here) == made
    assert saved.places_of_plan(graphs[-1].key)[-1][0] == "images"


def test_the_driver_makes_code_side_by_side(compile_here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel's code is ready before that of all has begun to be made."""
    driver, begun = Driver(), threading.Barrier(2, timeout=60)
    complete = driver._cuLinkComplete
    monkeypatch.setattr(driver, "_cuLinkComplete", lambda *args: begun.wait() * 0 or complete(*args), raising=False)
    monkeypatch.setattr(gpu_compiler.os, "cpu_count", lambda: 4)
    gpu_driver.play(monkeypatch, driver)
    given = arguments()
    torch.testing.assert_close(bolide.compile(program)(*given), program(*given))
    assert len(compile_here) == begun.parties


def test_another_driver_or_gpu_makes_its_own(compile_here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = arguments(), dataclasses.replace(HOPPER, target=dataclasses.replace(HOPPER.target, cpu="sm_80"))
    kernels: list[Any] = []  # how many kernels there are, and how many were made
    for version in (12080, 13000, 12080):
        driver = Driver(version=version)
        gpu_driver.play(monkeypatch, driver)
        bolide.reset()
        with plans() as graphs:
            torch.testing.assert_close(bolide.compile(program)(*given), program(*given))
        kernels.append((len(compile_here), driver.done.count("ptx")))
    one = kernels[0][0]
    assert [ptx for _, ptx in kernels] == [one, one, 0], kernels
    key = gpu_compiler._image_key("text", HOPPER.target)
    assert key.digest != gpu_compiler._image_key("text", other.target).digest
    assert artifacts.find_place(("plans", graphs[-1].key)) is not None


def test_code_that_the_driver_does_not_load_is_made_anew(
    compile_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments()
    gpu_driver.play(monkeypatch, Driver())
    bolide.compile(program)(*given)
    driver, made = Driver(), len(compile_here)
    refusals = iter([209])
    load = driver._cuModuleLoadDataEx
    monkeypatch.setattr(driver, "_cuModuleLoadDataEx", lambda *args: next(refusals, 0) or load(*args), raising=False)
    gpu_driver.play(monkeypatch, driver)
    bolide.reset()
    torch.testing.assert_close(bolide.compile(program)(*given), program(*given))
    assert driver.done.count("cuModuleLoadDataEx") == 1 + made
