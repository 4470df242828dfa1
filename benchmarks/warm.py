"""The first call of a model with an empty cache, and in a second process that finds it filled:
``python -m benchmarks.warm [MODEL ...] [--scale S] [--modes inference training] [--torch]``. The name ``all`` is every
model of the zoo: ``python -m benchmarks.warm all --scale small --rounds 1 --torch``.

Seconds of the first call alone: imports and building the model are over. Each number is the least of `--rounds`; the
processes of a round are one with an empty cache and one that follows it. A call of the same model's eager form comes
before, for what torch does once; its second call is shown as what a call takes anyway. With ``--torch`` torch.compile
is measured in the same way, with a cache of its own, and a column has how often bolide's second process fits into its.
Beyond imports and building the model, both; a process that fails or takes more than `--limit` seconds is shown as such.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.models import BUILDERS, SCALES, build
from benchmarks.worker import compiler, stepper

COMPILERS = ("bolide", "torch")


def measured(name: str, scale: str, mode: str, which: str) -> dict[str, float]:
    """Seconds of the first call in this process, by the wall and of the processor."""
    workload = build(name, scale)
    workload.module.train(mode == "training")
    call = compiler(which)(workload.module)
    eager = stepper(workload, workload.module, mode, "float32")
    eager()
    start = time.perf_counter()
    eager()
    told = {"eager": time.perf_counter() - start}
    step = stepper(workload, call, mode, "float32")
    start, used = time.perf_counter(), time.process_time()
    step()
    return {**told, "first": time.perf_counter() - start, "processor": time.process_time() - used}


def in_process(name: str, scale: str, mode: str, which: str, folder: str, limit: float) -> dict[str, float]:
    """The same in a process of its own, with the caches in a folder. Raises subprocess.SubprocessError."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    caches = {"BOLIDE_CACHE_DIR": f"{folder}/bolide", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
    command = [sys.executable, "-m", "benchmarks.warm", name, "--scale", scale, "--modes", mode, "--worker", which]
    given = {**inherited, **caches}
    done = subprocess.run(command, env=given, stdout=subprocess.PIPE, text=True, check=True, timeout=limit)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, scale: str, mode: str, which: str, rounds: int, limit: float) -> list[dict[str, float]]:
    """Seconds with an empty cache and in a second process. Raises subprocess.SubprocessError."""
    least: list[dict[str, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            pair = [in_process(name, scale, mode, which, str(Path(folder)), limit) for _ in range(2)]
        least = pair if not least else [{k: min(old[k], new[k]) for k in old} for old, new in zip(least, pair)]
    return least


def rows(name: str, scale: str, mode: str, which: Sequence[str], rounds: int, limit: float) -> Iterator[str]:
    """A row for each compiler; the last has the ratio of both second processes."""
    warm: list[float] = []
    for each in which:
        head = f"| {name} | {mode} | {each} |"
        try:
            least = measure(name, scale, mode, each, rounds, limit)
        except subprocess.SubprocessError as error:
            yield f"{head} {type(error).__name__} | | | |"
            continue
        cells = [f"{times['first']:.3f} ({times['processor']:.3f})" for times in least]
        warm.append(least[1]["first"])
        ratio = f"{warm[1] / warm[0]:.1f}" if len(warm) > 1 else ""
        yield f"{head} {' | '.join(cells)} | {least[1]['eager']:.3f} | {ratio} |"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["bert", "gpt2"])
    parser.add_argument("--scale", default="small12", choices=[*SCALES])
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--worker", choices=COMPILERS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measured(arguments.models[0], arguments.scale, arguments.modes[0], arguments.worker)))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; seconds (of the processor)\n")
    print("| model | mode | compiler | empty cache | second process | an eager call | torch / bolide |")
    print("|---|---|---|---|---|---|---|")
    which = COMPILERS if arguments.torch else COMPILERS[:1]
    names = [*BUILDERS] if arguments.models == ["all"] else arguments.models
    for name, mode in itertools.product(names, arguments.modes):
        if mode == "inference" and not build(name, "tiny").inference:
            continue
        for line in rows(name, arguments.scale, mode, which, arguments.rounds, arguments.limit):
            print(line, flush=True)


if __name__ == "__main__":
    main()
