"""`set_logs`, ``BOLIDE_LOGS`` and ``BOLIDE_TRACE``: reasons reach the user."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bolide
from bolide.debug.logs import write_trace
from bolide.support import events, log


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    bolide.set_logs()
    assert not logging.getLogger("bolide").handlers


def breaks(x: Tensor, name: str) -> Tensor:
    y = x * (2 if name == "a" else 3)
    if y.sum() > 0:
        return y[1:]
    return y - 1


def messages(caplog: pytest.LogCaptureFixture, name: str) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name == f"bolide.artifacts.{name}")


def test_artifacts(caplog: pytest.LogCaptureFixture) -> None:
    bolide.set_logs(graph_breaks=True, recompiles=True, guards=True, graph_code=True, kernels=True, perf=True)
    compiled = bolide.compile(breaks)
    compiled(torch.ones(3), "a")
    compiled(torch.ones(3), "b")
    told = messages(caplog, "graph_breaks")
    assert "breaks breaks" in told and "[BR0101]" in told and "if y.sum() > 0:" in told and "torch.where" in told
    told = messages(caplog, "recompiles")
    assert "name == 'a'" in told and "'b'" in told and __file__ in told and "remedy" in told
    assert "float32[3]" in messages(caplog, "guards")
    assert "aten.mul" in messages(caplog, "graph_code")
    assert "kernel" in messages(caplog, "kernels")
    assert "captured in" in messages(caplog, "perf")
    assert not messages(caplog, "entry_code")


def test_sizes_that_are_fixed_and_functions_that_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    def unrolled(x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    def numbers() -> Iterator[int]:
        yield 1

    bolide.set_logs(dynamic=True, graph_breaks=True)
    compiled = bolide.compile(unrolled)
    for size in (3, 4):
        compiled(torch.ones(size))
    with pytest.warns(bolide.BolideWarning):
        bolide.compile(numbers)
    told = messages(caplog, "dynamic")
    assert "x.shape[0] is fixed at 4" in told and __file__ in told
    assert "numbers is not captured (it is a generator" in messages(caplog, "graph_breaks")


def test_a_file_receives_the_logs_too(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with bolide.dynamo.config.patch(log_file_name=str(path)):
        bolide.set_logs(graph_breaks=True)
    bolide.compile(breaks)(torch.ones(3), "a")
    assert "[BR0101]" in path.read_text()


def test_switched_off_again() -> None:
    before = len(events.subscribers)
    bolide.set_logs(all=True)
    assert len(events.subscribers) == before + 1
    bolide.set_logs(all=True)
    assert len(events.subscribers) == before + 1
    bolide.set_logs()
    assert len(events.subscribers) == before


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'recompiles'"):
        bolide.set_logs(recompile=True)


def test_names_of_the_environment() -> None:
    levels = log.parse("+dynamo, inductor,-functorch,guards")
    assert levels == {"dynamo": 10, "inductor": 20, "functorch": 40, "guards": True}
    assert set(log.parse("all")) == {*log.STAGES, *log.ARTIFACTS}


def test_trace_is_lines_of_json(tmp_path: Path) -> None:
    stop = write_trace(str(tmp_path))
    bolide.compile(breaks)(torch.ones(3), "a")
    stop()
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert {"Captured", "Break", "Graph", "Compiled", "Installed", "Resumed"} <= set(kinds)
    broken = lines[kinds.index("Break")]
    assert broken["kind"] == "data_branch" and broken["where"]["file"] == __file__ and broken["time"] > 1e9


def test_environment_variables(tmp_path: Path) -> None:
    script = "import torch, bolide; bolide.compile(lambda x: x + 1)(torch.ones(3))"
    env = {"BOLIDE_LOGS": "graph_code", "BOLIDE_TRACE": str(tmp_path / "t.jsonl"), "PATH": ""}
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, cwd=root, check=True)
    assert "aten.add" in done.stderr
    assert "Installed" in (tmp_path / "t.jsonl").read_text()
