"""The cache on disk: it gives another process what it holds, and whatever befalls its files, results are eager's."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import bolide
from benchmarks.caches import kills
from bolide.dynamo.config import config
from bolide.inductor.codegen import compiler
from bolide.inductor.lowering import LOWERINGS
from bolide.support import artifacts, engine, events
from bolide.support.artifacts import Key
from bolide.support.cache import disk

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
import torch
import bolide
from bolide.support import engine

made, compiled = [], engine._compiled
engine._compiled = lambda *args: (made.append(args), compiled(*args))[1]
torch.manual_seed(int(sys.argv[1]))
w = torch.randn(24, 24, requires_grad=True)
x = torch.randn(6, 24)
y = bolide.compile(lambda x: torch.softmax((x @ w).sin() * 2, -1).square().sum(0))(x)
y.sum().backward()
print(len(made))
print(y.tolist(), w.grad.tolist())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the test's own."""
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch(force_disable_caches=False):
        bolide.reset()
        yield tmp_path / "cache"
    bolide.reset()


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x @ w).sin() * 2, -1).square().cumsum(0)


def check() -> list[events.CacheLookup]:
    """A call in a state as of a new process gives eager's result and gradients; answers what was looked for."""
    bolide.reset()
    seen: list[events.CacheLookup] = []
    x, w = torch.randn(6, 24), torch.randn(24, 24, requires_grad=True)
    with events.subscribed(lambda event: seen.append(event) if isinstance(event, events.CacheLookup) else None):
        result = bolide.compile(program)(x, w)
        gradient = torch.autograd.grad(result.sum(), w)[0]
    expected = program(x, w)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), w)[0])
    return seen


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*-*") if path.is_file())


def start(seed: int, **environment: str) -> subprocess.Popen[str]:
    given = {**os.environ, "BOLIDE_FORCE_DISABLE_CACHES": "0", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(seed)], env=given, stdout=subprocess.PIPE, text=True)


def test_processes_fill_a_cache_together_and_the_next_compiles_nothing_whatever_it_is_called(
    cache: Path, seed: int
) -> None:
    first = [process.communicate()[0].splitlines() for process in [start(seed), start(seed)]]
    moved = cache.rename(cache.with_name("moved"))
    last = start(seed, BOLIDE_CACHE_DIR=str(moved)).communicate()[0].splitlines()
    assert last[0] == "0" and sum(int(told[0]) for told in first) >= 2
    assert [last[1]] * 2 == [told[1] for told in first]


def test_a_plan_is_found_again_and_a_miss_has_a_reason() -> None:
    assert not any(lookup.hit for lookup in check() if lookup.kind == "plans")
    again = [lookup for lookup in check() if lookup.kind == "plans"]
    assert len(again) == 2 and all(lookup.hit for lookup in again)
    with bolide.inductor.config.patch(fusion=False):
        other = [lookup for lookup in check() if lookup.kind == "plans"]
    assert {lookup.reason for lookup in other} == {"options.fusion True → False"}


def test_reasons_cost_the_same_whatever_the_folder_holds(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Few files are read, once, and no folder is looked through; the entries of the same name are compared first."""
    for number in range(random.randint(60, 90)):
        artifacts.keep(Key("plans", {"graph": str(number), "text": "x" * 50}, f"graph {number % 2}"), b"plan")
    bolide.reset()
    read: list[str] = []
    monkeypatch.setattr(disk, "read", lambda kind, digest, own=disk.read: (read.append(kind), own(kind, digest))[1])
    wanted = Key("plans", {"graph": str(number + 1), "text": "x" * 50}, f"graph {number % 2}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", None)
        assert artifacts.why(wanted) == f"graph {number} → {number + 1}"
        assert len(read) <= 20
        for _ in range(9):
            artifacts.why(wanted)
        assert len(read) <= 30
    artifacts.keep(wanted, b"plan")  # which may look for what was not used for long
    again = Key("plans", {"graph": "other", "text": "y" * 50}, wanted.label)
    assert artifacts.why(again) == f"graph {number + 1} → other, text"
    assert artifacts.why(Key("choices", {}, "")) == "the first of its kind"


@pytest.mark.parametrize("how", range(4), ids=["a bit", "cut off", "longer", "noise"])
def test_lists_of_what_was_kept_stay_short_and_may_be_damaged(cache: Path, how: int) -> None:
    """Reasons come from the whole lines of a list, and a keep writes no more than its entry and a line."""
    for number in range(300):
        artifacts.keep(Key("plans", {"graph": str(number)}, "a graph"), b"plan")
    artifacts.reset()
    (path,) = cache.rglob("list.*")
    assert path.stat().st_size <= 1 << 12
    assert artifacts.why(Key("plans", {"graph": "other"}, "a graph")) == "graph 299 → other"
    damage(path, how)
    artifacts.keep(Key("plans", {"graph": "before"}, "a graph"), b"plan")
    artifacts.keep(Key("plans", {"graph": "last"}, "a graph"), b"plan")
    artifacts.reset()
    assert artifacts.why(Key("plans", {"graph": "other"}, "a graph")) == "graph last → other"


def test_the_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a few bytes count as a block of a file system; what takes another one's place sweeps nothing."""
    monkeypatch.setenv("BOLIDE_CACHE_SIZE", str(disk.SHARDS * 40_000))
    for number in range(200):
        disk.write("plans", f"{0:02x}{number % 256:02x}{number:060x}", b"x")
    assert len(list(disk.files())) <= 10 + 8
    swept: list[Path] = []
    monkeypatch.setattr(disk, "sweep", lambda shard, most: swept.append(shard))
    for _ in range(3):
        disk.write("plans", "0" * 64, b"x")
    assert len(swept) == 1


W = torch.randn(24, 24)


def test_explain_tells_of_the_cache() -> None:
    for word in ("not found: the first of its kind", "found"):
        assert f"cache: plan in inference graph: {word}" in str(bolide.explain(program)(torch.ones(6, 24), W))


def test_other_versions_and_machines_never_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert not any(lookup.hit for lookup in check() if lookup.kind == "plans")
    for module in (engine, compiler):
        monkeypatch.setattr(module, "target_names", lambda cpu, features: {"cpu": "another", "llvm": "0"})
    assert not any(lookup.hit for lookup in check() if lookup.kind in ("kernels", "objects"))


def damage(path: Path, how: int) -> None:
    data = bytearray(path.read_bytes())
    if how == 0:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif how == 1:
        del data[random.randrange(len(data)) :]
    elif how == 2:
        data += b"more"
    path.write_bytes(random.randbytes(len(data)) if how == 3 else data)


def test_a_lowering_of_the_programs_own_is_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(9)
    function = bolide.compile(lambda x: torch.sin(x) * 3)
    with monkeypatch.context() as patch:
        patch.setitem(
            LOWERINGS, torch.ops.aten.sin.default, lambda ctx, x: LOWERINGS[torch.ops.aten.cos.default](ctx, x)
        )
        torch.testing.assert_close(function(x), torch.cos(x) * 3)
    bolide.reset()
    torch.testing.assert_close(function(x), torch.sin(x) * 3)


@pytest.mark.parametrize("how", range(4), ids=["a bit", "cut off", "longer", "noise"])
def test_damaged_entries_are_made_anew(cache: Path, how: int) -> None:
    check()
    for path in entries(cache):
        damage(path, how)
    assert not any(lookup.hit for lookup in check())
    assert {lookup.hit for lookup in check() if lookup.kind == "plans"} == {True}


def test_an_entry_in_the_place_of_another_is_none(cache: Path) -> None:
    check()
    paths = entries(cache)
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], contents[0]]):
        path.write_bytes(content)
    assert not any(lookup.hit for lookup in check())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["open", "write", "replace", "makedirs", "fstat", "read", "stat", "scandir", "utime"])
def test_any_step_may_fail(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    class Failing:
        """`os`, of which one function fails."""

        def __getattr__(self, asked: str) -> object:
            return failing if asked == name else getattr(os, asked)

    def failing(*args: object, **kwargs: object) -> object:
        raise OSError(code, "as was asked")

    monkeypatch.setattr(disk, "os", Failing())
    disk._root.cache_clear()
    key = Key("choices", {"name": name})
    artifacts.keep(key, b"1")
    artifacts.reset()
    assert artifacts.find(key) in (None, b"1")
    assert not [*cache.rglob(".*")], "nothing half written stays"


def test_a_program_runs_without_a_place_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLIDE_CACHE_DIR", "/proc/none")
    check()
    assert disk.root() is None


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_only_folders_of_ones_own_are_trusted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    for path in [cache, *cache.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(open_to_all))
    check()
    assert not [*open_to_all.iterdir()]


def test_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLIDE_CACHE_SIZE", str(disk.SHARDS * 40_000))
    digests = [f"{0:02x}{number % 256:02x}{number:060x}" for number in range(200)]
    now = time.time()
    for age, digest in enumerate(reversed(digests[:20])):
        disk.write("plans", digest, b"x" * 1000)
        path = next(iter(disk.root().rglob(f"plans-{digest}")))  # type: ignore[union-attr]
        os.utime(path, (now - 7200 * age, now - 7200 * age))
    disk.read("plans", digests[0])  # used now
    for digest in digests[20:]:
        disk.write("plans", digest, b"x" * 1000)
    kept = {digest for _, digest, *_ in disk.files()}
    assert len(kept) <= 10 + 8 and digests[-1] in kept
    assert not disk.write("plans", "1" * 64, b"x" * 40_001), "an entry larger than a share of the cache"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_killed_writers_leave_nothing_that_is_read(cache: Path) -> None:
    kills(20)
    for left in cache.rglob(".*"):
        os.utime(left, (0, 0))
        disk.sweep(left.parent, disk.limit())
        assert not left.exists()


def test_the_command_shows_packs_and_clears(cache: Path, tmp_path: Path, run_command: Callable[..., str]) -> None:
    check()
    count = len(entries(cache))
    assert "plans: 2" in run_command("cache", "show")
    assert run_command("cache", "pack", str(tmp_path / "packed")) == f"{count} entries written\n"
    assert run_command("cache", "clear") == f"{count} entries taken out\n"
    assert not [path for path in cache.rglob("*") if path.is_file()] and "empty" in run_command("cache", "show")
    assert run_command("cache", "unpack", str(tmp_path / "packed")) == f"{count} entries taken\n"
    assert all(lookup.hit for lookup in check() if lookup.kind == "plans")
    damage(entries(cache)[0], 0)
    assert run_command("cache", "pack", str(tmp_path / "packed")) == f"{count - 1} entries written\n"
    assert run_command("cache", "unpack", str(tmp_path / "packed")) == f"{count - 1} entries taken\n"
    (tmp_path / "packed").write_bytes(b"other bytes")
    assert "not what save_cache_artifacts" in run_command("cache", "unpack", str(tmp_path / "packed"))


@pytest.fixture
def run_command() -> Callable[..., str]:
    from click.testing import CliRunner

    from bolide.cli import main

    return lambda *words: CliRunner().invoke(main, words).output


# ---- the digest of our sources ---------------------------------------------------------------------------------------


def test_the_digest_of_sources_is_never_of_older_ones(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = cache / "package"
    (package / "inner").mkdir(parents=True)
    paths = [package / "one.py", package / "inner" / "two.py"]
    for path in paths:
        path.write_text("x = 1")
    monkeypatch.setattr(artifacts, "_PACKAGE", str(package))
    monkeypatch.setattr(artifacts, "_SETTLED", -1.0)  # so that all of it is kept at once

    def digest() -> str:
        artifacts.sources_digest.cache_clear()
        return artifacts.sources_digest()

    def edited(path: Path, text: str) -> None:
        """Of the same size, with the time of the older one."""
        times = path.stat()
        time.sleep(0.02)
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    try:
        known = {digest()}
        for path in paths:
            edited(path, "x = 2")
            known.add(digest())
        assert len(known) == 3
        with monkeypatch.context() as patched:
            patched.setattr(artifacts, "open", None, raising=False)  # no file is read: it is kept
            assert digest() in known
        edited(paths[0], "x = 1")
        edited(paths[1], "x = 1")
        assert digest() in known
        (package / "three.py").write_text("")
        assert digest() not in known
        monkeypatch.setattr(artifacts, "_SETTLED", 60.0)  # files that were written just now are read
        edited(paths[0], "x = 3")
        count = len(list(disk.files()))
        assert digest() not in known and len(list(disk.files())) == count
    finally:
        artifacts.sources_digest.cache_clear()
