"""Entries of compiled functions that another process uses: without capture where nothing has changed, never where
something has."""

from __future__ import annotations

import collections
import functools
import json
import math
import os
import platform
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import Versions
from bolide.dynamo.library import marks
from bolide.dynamo.machine.calls import INTERCEPTS
from bolide.saving import environment
from bolide.saving.keeper import Keeper
from bolide.support import artifacts
from bolide.support.cache import disk
from bolide.support.errors import BolideError
from tests.correctness.aot.saved_programs import CHANGED, PROGRAMS, Layer, scaled
from tests.thread_tools import together

ROOT = Path(__file__).resolve().parents[3]
EDITED = """import torch


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + {added}


def outer(x: torch.Tensor) -> torch.Tensor:
    return helper(x) * 3


def body(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")
    return helper(y)
"""
Told = dict[str, tuple[int, str]]


def process(folder: Path, variant: str, **env: str) -> Told:
    command = [sys.executable, "-m", "tests.correctness.aot.saved_programs", variant, str(folder)]
    settings = {
        "BOLIDE_CACHE_DIR": str(folder / "cache"),
        "BOLIDE_FORCE_DISABLE_CACHES": "0",
        "PYTHONPATH": f"{ROOT}:{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": str(len(variant)),  # sets of texts have another order in each process
    }
    done = subprocess.run(
        command, env={**os.environ, **settings, **env}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In which a process has run all programs."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "edited.py").write_text(EDITED.format(added=1, factor=2))
    told = process(folder, "first")
    assert told.pop("saved") == [0, ""]
    assert all(captures and not error for captures, error in told.values()), told
    return folder


@pytest.fixture(scope="module")
def again(folder: Path) -> Told:
    return process(folder, "again")


@pytest.fixture(scope="module")
def other(folder: Path, again: Told) -> Told:
    (folder / "edited.py").write_text(EDITED.format(added=5, factor=9))
    return process(folder, "changed")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_second_process_captures_nothing(again: Told, program: str) -> None:
    captures, error = again[program]
    assert not error and not captures


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="LLVM loads the code there")
def test_a_second_process_does_not_load_llvm(again: Told) -> None:
    assert again["LLVM"] == [0, ""]


@pytest.mark.parametrize("program", CHANGED)
def test_what_has_changed_is_captured(other: Told, program: str) -> None:
    captures, error = other[program]
    assert not error and captures


def test_a_file_needs_no_capture_no_compiler_and_no_cache(folder: Path) -> None:
    assert process(folder, "load", BOLIDE_FORCE_DISABLE_CACHES="1") == {"loaded": [0, ""]}


# ---- in one process --------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the test's own, and none of the marks that other tests have left on functions."""
    none: set[object] = set()
    monkeypatch.setattr(marks, "MARKED", none)
    monkeypatch.setattr(environment, "MARKED", none)
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch(force_disable_caches=False):
        bolide.reset()
        yield tmp_path
    bolide.reset()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was captured."""
    names: list[str] = []
    made = Versions._make_once

    def counted(self: Versions, *call: Any) -> Any:
        names.append(self.name)
        return made(self, *call)

    monkeypatch.setattr(Versions, "_make_once", counted)
    return names


def test_several_threads_use_one_entry(cache: Path, captures: list[str]) -> None:
    bolide.compile(scaled)(torch.randn(3, 8))
    bolide.reset()  # as a new process, but for the cache on disk
    captures.clear()
    compiled, found = bolide.compile(scaled), []
    inputs = [torch.randn(3, 8) for _ in range(6)]
    together(lambda number: found.append((inputs[number], compiled(inputs[number]))), len(inputs))
    assert len(found) == 6 and not captures
    for x, result in found:
        torch.testing.assert_close(result, scaled(x))


def test_records_are_tried_in_the_order_of_the_calls(
    cache: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one may import what an earlier one depends on: an optimizer's first step looks at lists of torch's."""
    inputs = [torch.randn(3, 8).to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    compiled = bolide.compile(scaled)
    for x in inputs:
        compiled(x)
    bolide.reset()
    captures.clear()
    read: list[object] = []
    unpacked = Keeper._unpacked
    monkeypatch.setattr(Keeper, "_unpacked", lambda *args: read.append(args) or unpacked(*args))
    compiled = bolide.compile(scaled)
    for x in inputs:
        torch.testing.assert_close(compiled(x), scaled(x))
    assert len(read) == len(inputs) and not captures


def test_damaged_records_are_made_anew(cache: Path, captures: list[str]) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    for damage in (
        lambda data: data[:-20],
        lambda data: data[:80] + bytes([data[80] ^ 4]) + data[81:],
        lambda data: b"",
    ):
        bolide.compile(scaled)(x).sum().backward()
        for file in (cache / "cache").rglob("functions*"):
            file.write_bytes(damage(file.read_bytes()))
        bolide.reset()
        captures.clear()
        torch.testing.assert_close(bolide.compile(scaled)(x), scaled(x))
        assert captures == ["scaled"]


def test_records_of_other_contents_are_refused(cache: Path, captures: list[str], monkeypatch: Any) -> None:
    """What is in a record makes no sense, though its checksum is right."""
    x = torch.randn(3, 8)
    bolide.compile(scaled)(x)
    unpack = artifacts.unpack

    def garbled(kind: str, digest: str, data: bytes) -> Any:
        entry = unpack(kind, digest, data)
        if entry is None or "record" not in entry.key.names:
            return entry
        return entry._replace(payload=entry.payload.replace(b'"global"', b'"local"'))

    monkeypatch.setattr(artifacts, "unpack", garbled)
    bolide.reset()  # as a new process, but for the cache on disk
    torch.testing.assert_close(bolide.compile(scaled)(x), scaled(x))
    assert captures == ["scaled", "scaled"]


def test_other_versions_are_other_entries(cache: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bolide.compile(scaled)(torch.randn(3, 8))
    bolide.reset()
    monkeypatch.setattr(torch, "__version__", f"{torch.__version__}x")
    bolide.compile(scaled)(torch.randn(3, 8))
    assert captures == ["scaled", "scaled"]


def test_marked_tensors_are_captured(cache: Path, captures: list[str]) -> None:
    bolide.compile(scaled)(torch.randn(3, 8))
    bolide.reset()  # as a new process, but for the cache on disk
    x = torch.randn(3, 8)
    bolide.mark_dynamic(x, 0)
    compiled = bolide.compile(scaled)
    compiled(x)
    compiled(torch.randn(9, 8))
    assert captures == ["scaled", "scaled"]


def called(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def calling(x: torch.Tensor) -> torch.Tensor:
    return called(x) + 1


@pytest.fixture
def marked() -> Iterator[Callable[[Callable[..., Any]], object]]:
    """Marks functions for the time of a test."""
    before = INTERCEPTS.copy()
    yield bolide.allow_in_graph
    INTERCEPTS.clear()
    INTERCEPTS.update(before)


def test_marks_of_other_functions_do_not_count(cache: Path, captures: list[str], marked: Any) -> None:
    marked(lambda x: x + 1)
    bolide.compile(calling)(x := torch.randn(3))
    bolide.reset()  # as a new process, but for the cache on disk
    torch.testing.assert_close(bolide.compile(calling)(x), calling(x))
    assert captures == ["calling"]


@pytest.mark.parametrize("function", [called, torch.nn.functional.relu, torch.sin])
def test_entries_are_not_used_while_a_function_in_them_is_marked(
    cache: Path, captures: list[str], marked: Any, function: Callable[..., Any]
) -> None:
    bolide.compile(calling)(x := torch.randn(3))
    bolide.reset()  # as a new process, but for the cache on disk
    marked(function)
    torch.testing.assert_close(bolide.compile(calling)(x), calling(x))
    assert captures == ["calling", "calling"]


@pytest.mark.parametrize("function", [torch.nn.functional.relu, torch.sin, torch.Tensor.exp, math.floor])
def test_marks_of_functions_in_c_and_of_libraries_are_part_of_the_key(
    cache: Path, captures: list[str], marked: Any, function: Callable[..., Any]
) -> None:
    x = torch.randn(3)
    told = []
    for marks_now in ([], [function], [function], [torch.cos], [torch.cos, function]):
        marks.forget([function, torch.cos])
        marked(marks_now)
        bolide.reset()  # as a new process, but for the cache on disk
        torch.testing.assert_close(bolide.compile(calling)(x), calling(x))
        told.append(len(captures))
    assert told == [1, 2, 2, 3, 4]


def through_c(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def test_entries_that_call_a_marked_function_in_c_are_not_kept(cache: Path, captures: list[str], marked: Any) -> None:
    marked(torch.sin)
    for _ in range(2):
        bolide.reset()
        torch.testing.assert_close(bolide.compile(through_c)(x := torch.randn(3)), through_c(x))
    assert captures == ["through_c", "through_c"]


def test_entries_with_a_marked_function_are_not_kept(cache: Path, marked: Any) -> None:
    marked(called)
    compiled = bolide.compile(calling)
    compiled(torch.randn(3))
    with pytest.raises(BolideError, match=r"(?s)called\(...\) is called, which is marked.*return called\(x\)"):
        bolide.save_compiled(compiled, cache / "file")


GAIN = 2.0


def reading(x: torch.Tensor) -> torch.Tensor:
    y = x * GAIN
    bolide.graph_break()
    return y + GAIN


def test_a_function_with_other_globals_is_another_one(cache: Path, captures: list[str]) -> None:
    bolide.compile(reading)(x := torch.randn(3))
    bolide.reset()  # as a new process, but for the cache on disk
    other = types.FunctionType(reading.__code__, {**globals(), "GAIN": 5.0}, "reading")
    other.__module__, other.__qualname__ = reading.__module__, reading.__qualname__
    captures.clear()
    torch.testing.assert_close(bolide.compile(other)(x), x * 5 + 5)
    assert captures == ["reading", "reading/1"]


def test_what_cannot_be_saved_is_named(cache: Path) -> None:
    class Local:
        gain = 2.0

    held = Local()
    table = {held: 2.0}

    def by_local(x: torch.Tensor, o: Any) -> torch.Tensor:
        return x * table[o]

    compiled = bolide.compile(by_local)
    with pytest.raises(
        BolideError, match=r"by_local cannot be saved: nothing of it is compiled yet\n  at: (?s:.*)remedy"
    ):
        bolide.save_compiled(compiled, cache / "file")
    compiled(torch.randn(3), held)
    match = r"(?s)by_local cannot be saved: a .*Local has no name .*at: File .*\n    return x .*remedy"
    with pytest.raises(BolideError, match=match):
        bolide.save_compiled(compiled, cache / "file")
    assert not (cache / "file").exists()
    with pytest.raises(BolideError, match="is not a compiled function"):
        bolide.save_compiled(by_local, cache / "file")
    with pytest.raises(BolideError, match=r"its backend keeps no graphs(?s:.*)remedy"):
        bolide.save_compiled(bolide.compile(by_local, backend="eager"), cache / "file")


def by_keys(x: torch.Tensor, table: dict[torch.Tensor, float], keys: list[torch.Tensor]) -> torch.Tensor:
    return x * table[keys[0]] - table[keys[1]]


def test_objects_by_identity_are_found_where_a_call_has_them(cache: Path, captures: list[str]) -> None:
    x, wanted = torch.randn(3), []
    for same in (False, False, True):
        bolide.reset()  # as a new process, but for the cache on disk
        keys: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        table = {key: float(place + 2) for place, key in enumerate(keys)}
        given = [keys[0], keys[0] if same else keys[1]]
        torch.testing.assert_close(bolide.compile(by_keys)(x, table, given), by_keys(x, table, given))
        wanted.append(len(captures))
    assert wanted == [1, 1, 2]


def by_first(x: torch.Tensor, keys: Any, table: dict[torch.Tensor, float]) -> torch.Tensor:
    return x * table[keys[0]] if keys else x + 1


@pytest.mark.parametrize("other", [None, (), [], {}, 0, "", collections.deque()])
def test_entries_for_objects_that_a_call_does_not_have_are_not_used(
    cache: Path, captures: list[str], other: object
) -> None:
    x, key = torch.randn(3), torch.nn.Parameter(torch.zeros(2))
    for keys in ([key], other, (key,), collections.deque([key]), other, [key]):
        bolide.reset()
        given = x, keys, {key: 2.0}
        torch.testing.assert_close(bolide.compile(by_first)(*given), by_first(*given))
    assert len(captures) == 4  # the last two are found


def in_order(x: torch.Tensor) -> torch.Tensor:
    for name in {"a", "b", "c"}:
        x = x * 2 + len(name)
    return x


def listed(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    return x + 1, list(frozenset(("a", "b")))


def hashed(x: torch.Tensor) -> torch.Tensor:
    return x + hash("a") % 7


def numbered(x: torch.Tensor) -> torch.Tensor:
    return x + id("a") % 7


def shown(x: torch.Tensor) -> tuple[torch.Tensor, str]:
    return x + 1, f"{listed}"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (in_order, "it goes through a set"),
        (listed, "it goes through a set"),
        (hashed, "it asks for a hash"),
        (numbered, "it asks for the id"),
        (shown, "has the address of an object"),
    ],
)
def test_what_is_of_this_process_is_not_saved(
    cache: Path, captures: list[str], function: Callable[[torch.Tensor], object], reason: str
) -> None:
    compiled = bolide.compile(function)
    x = torch.randn(3)
    compiled(x)
    with pytest.raises(BolideError, match=f"cannot be saved: .*{reason}(?s:.*)remedy"):
        bolide.save_compiled(compiled, cache / "file")
    bolide.reset()
    captures.clear()
    bolide.compile(function)(x)
    assert captures


class Called:
    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * self.gain


@pytest.mark.parametrize(
    "make", [lambda: Called(3.0), lambda: functools.partial(scaled, k=5), lambda: torch.nn.functional.pairwise_distance]
)
def test_objects_that_are_called_are_saved(cache: Path, captures: list[str], make: Callable[[], Any]) -> None:
    args = (torch.randn(3, 4), torch.randn(3, 4)) if "pairwise" in repr(make()) else (torch.randn(3, 4),)
    compiled = bolide.compile(make())
    compiled(*args)
    bolide.save_compiled(compiled, cache / "file")
    bolide.reset()  # as a new process, but for the cache on disk
    captures.clear()
    torch.testing.assert_close(bolide.load_compiled(cache / "file", make())(*args), make()(*args))
    assert not captures


def test_files_for_something_else_are_refused(cache: Path) -> None:
    compiled = bolide.compile(scaled)
    compiled(torch.randn(3, 8))
    bolide.save_compiled(compiled, cache / "file")
    with pytest.raises(BolideError, match=r"saved of scaled for something else: code .*→(?s:.*)remedy"):
        bolide.load_compiled(cache / "file", lambda x, k=2: x * k)
    with pytest.raises(BolideError, match="for something else"):
        bolide.load_compiled(cache / "file", Layer())
    with pytest.raises(FileNotFoundError):
        bolide.load_compiled(cache / "none", scaled)
    (cache / "file").write_bytes((cache / "file").read_bytes()[:-30])
    with pytest.raises(BolideError, match="save_compiled"):
        bolide.load_compiled(cache / "file", scaled)


def test_entries_without_their_backward_are_not_used(
    cache: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = artifacts.keep
    monkeypatch.setattr(artifacts, "keep", lambda key, data: key.names.get("part") or keep(key, data))
    for _ in range(2):
        x = torch.randn(3, 8, requires_grad=True)
        compiled = bolide.compile(scaled)(x)
        torch.testing.assert_close(torch.autograd.grad(compiled.sum(), x), torch.autograd.grad(scaled(x).sum(), x))
        bolide.reset()  # as a new process, but for the cache on disk
    assert captures == ["scaled", "scaled"]


def test_the_cache_may_be_full_or_gone(cache: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "write", lambda *args: None)
    bolide.compile(scaled)(torch.randn(3, 8))
    bolide.reset()  # as a new process, but for the cache on disk
    torch.testing.assert_close(bolide.compile(scaled)(x := torch.randn(3, 8)), scaled(x))
    assert captures == ["scaled", "scaled"]
