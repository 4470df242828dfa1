"""The first call of a model with an empty cache, and in a second process that finds it filled:
``python -m benchmarks.warm [MODEL ...] [--scale S] [--modes inference training] [--torch]``.

Seconds of the first call alone: imports and building the model are over. Each number is the least of `--rounds`; the
processes of a round are one with an empty cache and one that follows it. A call of the same model's eager form comes
before, for what torch does once; its second call is shown as what a call takes anyway. With ``--torch`` torch.compile
is measured in the same way, with a cache of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.models import SCALES, build
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


def in_process(name: str, scale: str, mode: str, which: str, folder: str) -> dict[str, float]:
    """The same in a process of its own, with the caches in a folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    caches = {"BOLIDE_CACHE_DIR": f"{folder}/bolide", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
    command = [sys.executable, "-m", "benchmarks.warm", name, "--scale", scale, "--modes", mode, "--worker", which]
    done = subprocess.run(command, env={**inherited, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, scale: str, mode: str, which: str, rounds: int) -> str:
    """Cold and warm seconds of one model."""
    least: list[dict[str, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            pair = [in_process(name, scale, mode, which, str(Path(folder))) for _ in range(2)]
        least = pair if not least else [{k: min(old[k], new[k]) for k in old} for old, new in zip(least, pair)]
    cells = [f"{times['first']:.3f} ({times['processor']:.3f})" for times in least]
    return f"| {name} | {mode} | {which} | {' | '.join(cells)} | {least[1]['eager']:.3f} |"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["bert", "gpt2"])
    parser.add_argument("--scale", default="small12", choices=[*SCALES])
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--worker", choices=COMPILERS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measured(arguments.models[0], arguments.scale, arguments.modes[0], arguments.worker)))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; seconds (of the processor)\n")
    print("| model | mode | compiler | empty cache | second process | an eager call |\n|---|---|---|---|---|---|")
    for name in arguments.models:
        for mode in arguments.modes:
            for which in COMPILERS if arguments.torch else COMPILERS[:1]:
                print(row(name, arguments.scale, mode, which, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
