"""Faults of the cache on disk, many times: ``python -m benchmarks.caches [case …] [--times N]``.

Each must give what an empty cache gives. Nothing is measured but how often an entry was read whole, and in the case
`cost` what the cache takes while a program is compiled that it has not: processor time of a process with the cache,
with one that only looks (nothing is made to be kept), and without it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import bolide
from bolide.support import artifacts
from bolide.support.artifacts import Key, pack
from bolide.support.cache import disk

PROGRAM = """
import torch, bolide
torch.set_num_threads(1)
w = torch.linspace(-1, 1, 24 * 24).reshape(24, 24).requires_grad_()
x = torch.linspace(0, 1, 96).reshape(4, 24)
def f(x):
    y = torch.softmax((x @ w).sin() * 2, -1)
    print(end="")
    return y.square().sum(0)
y = bolide.compile(f)(x)
y.sum().backward()
print(y.tolist(), w.grad.tolist())
"""


def kills(times: int) -> str:
    """Writers of entries that are killed at any time."""
    keys = [Key("choices", {"place": str(place)}) for place in range(8)]
    contents = {key.digest: random.randbytes(200_000) for key in keys}
    whole = 0
    for _ in range(times):
        child = os.fork()
        if not child:
            while True:
                for key in keys:
                    disk.write(key.kind, key.digest, pack(key, contents[key.digest]))
        time.sleep(random.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        artifacts.reset()
        found = [(artifacts.find(key), contents[key.digest]) for key in keys]
        assert all(read in (None, content) for read, content in found)
        whole += sum(read is not None for read, _ in found)
    return f"{times} writers killed; {whole} of {times * len(keys)} entries were there, all of them whole"


def damage(times: int) -> str:
    """A program on a cache of which an entry was damaged."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x.sin() * 2, -1)
        bolide.graph_break()
        return y.cumsum(0)

    for _ in range(times):
        x = torch.randn(5, 16)
        bolide.reset()
        torch.testing.assert_close(bolide.compile(function)(x), function(x))
        entries = [path for path in disk.folder().rglob("*-*") if path.is_file() and path.stat().st_size]
        path = random.choice(entries)
        data = bytearray(path.read_bytes())
        if random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        else:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
    return f"{times} entries damaged; all results are eager's"


def processes(count: int) -> str:
    """A program in many processes at once on an empty cache."""
    command = [sys.executable, "-c", PROGRAM]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    told = {process.communicate()[0] for process in running}
    assert len(told) == 1 and not any(process.returncode for process in running)
    return f"{count} processes on an empty cache: one result"


def full(times: int) -> str:
    """Programs on a cache of which one entry could not be written, each in turn, `times` of them at most."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x.sin() * 2, -1)
        bolide.graph_break()
        return y.cumsum(0) * 2 if y.sum() > 0 else y

    def run() -> None:
        bolide.reset()
        artifacts.reset()
        compiled = bolide.compile(function)
        for size in (5, 6):
            x = torch.randn(size, 16, requires_grad=True)
            found, wanted = (torch.autograd.grad(call(x).square().sum(), x) for call in (compiled, function))
            torch.testing.assert_close(found, wanted)

    written = 0

    def write(kind: str, digest: str, data: bytes) -> bool:
        nonlocal written
        written += 1
        return written != missing and keep(kind, digest, data)

    keep, disk.write = disk.write, write
    try:
        for missing in range(1, times + 1):
            written = 0
            shutil.rmtree(disk.folder(), ignore_errors=True)
            run()
            if written < missing:
                break
            run()
    finally:
        disk.write = keep
    return f"{missing - 1} times an entry could not be written; all results are eager's"


COST = """
import sys, time, torch, bolide
from benchmarks.models import build
from benchmarks.worker import stepper
from bolide.support import artifacts
from bolide.support.cache import disk
mode, cache = sys.argv[1:]
bolide.dynamo.config.force_disable_caches = cache == "off"
if cache == "looks":
    from bolide.inductor import saved
    from bolide.saving.keeper import Keeper
    saved.keep, Keeper.keep, artifacts.keep = lambda *given: False, lambda *given: None, lambda *given: None
bolide.compile(lambda x: x + 1)(torch.ones(2))  # what is made once for all programs
workload = build("bert", "small12")
workload.module.train(mode == "training")
stepper(workload, workload.module, mode, "float32")()
step = stepper(workload, bolide.compile(workload.module), mode, "float32")
start = time.process_time()
step()
print(time.process_time() - start)
"""


def cost(times: int) -> str:
    """A cold compilation with the cache, with looking only, and without, each with a folder of its own."""
    told = []
    for mode in ("inference", "training"):
        least: dict[str, float] = {}
        for _ in range(times):
            for kind in ("off", "looks", "on"):
                with tempfile.TemporaryDirectory() as folder:
                    done = subprocess.run(
                        [sys.executable, "-c", COST, mode, kind],
                        env={**os.environ, "BOLIDE_CACHE_DIR": folder},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    )
                found = float(done.stdout.splitlines()[-1])
                least[kind] = min(found, least.get(kind, found))
        off, looks, on = least["off"], least["looks"], least["on"]
        told.append(f"{mode} {off:.3f} s without, looking {looks / off - 1:+.1%}, keeping {(on - looks) / off:+.1%}")
    return "; ".join(told)


CASES = {"kills": (kills, 1000), "damage": (damage, 1000), "processes": (processes, 64), "full": (full, 1000)}
CASES["cost"] = (cost, 5)


def main() -> None:
    """Runs the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar=f"{{{','.join(CASES)}}}")
    parser.add_argument("--times", type=int)
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - CASES.keys()
    if unknown:
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    for name in arguments.cases or CASES:
        case, times = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["BOLIDE_CACHE_DIR"] = str(Path(folder) / "cache")
            print(f"{name}: {case(arguments.times or times)}", flush=True)


if __name__ == "__main__":
    main()
