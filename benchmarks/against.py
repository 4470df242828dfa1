"""What two checkouts cost side by side: ``python benchmarks/against.py OLD NEW [case or group ...] [rounds=15]
[processes=2]``, where OLD and NEW are directories with a ``bolide`` in them.

Each checkout has a process of its own, which does one measurement of one case at a time, OLD and NEW in turn, so that
noise of the machine meets both alike. Times are processor time of one thread: medians; beside their ratio stand the
median of the ratios of neighbours and the ratio of the tenth parts that are quickest, where least noise is. A case is
measured in several processes of each, one after the other.

Groups: ``hits`` (calls of compiled functions that were compiled before, backend inductor), ``guards`` (the check of a
BERT with 12 layers, native and readable), ``capture`` (the first call with backend eager less a later one, of models
with 12 layers, by mode), ``compile`` (the same with backend inductor), ``import``.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

Measure = Callable[[], float]
SECONDS, BLOCKS = 0.005, 10  # of calls for one measurement of a hit: so many blocks of so long
ROUNDS = 15
PROCESSES = 2
HITS = ("add", "mlp", "attributes", "containers", "globals", "dropout", "dropout_of_item", "views", "step", "bert")
CASES = {
    "hits": tuple(f"hit_{name}" for name in HITS),
    "guards": ("guards_native", "guards_readable"),
    "capture": tuple(f"capture_{n}_{m}" for n in ("bert", "gpt2", "llama", "vit") for m in ("inference", "train")),
    "compile": tuple(
        f"compile_{n}_{m}" for n in ("mlp", "bert", "gpt2", "resnet18", "vit") for m in ("inference", "train")
    ),
    "import": ("import",),
}


# ---- in the process of a checkout ------------------------------------------------------------------------------------


def each(call: Callable[[], Any]) -> Measure:
    """Microseconds of a warm call, from the quickest of some short blocks: whatever else runs can only add."""
    begin = time.thread_time()
    for _ in range(100):
        call()
    times = max(1, int(SECONDS * 100 / max(time.thread_time() - begin, 1e-6)))

    def block() -> float:
        begin = time.thread_time()
        for _ in range(times):
            call()
        return (time.thread_time() - begin) / times * 1e6

    return lambda: min(block() for _ in range(BLOCKS))


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The programs of the hits, and their arguments."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    x = torch.ones(16)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.options = 2.0, {"add": 1.0, "times": 3}

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale + self.options["add"] * self.options["times"]

    def containers(batch: dict[str, Tensor], pair: tuple[Tensor, int]) -> dict[str, Any]:
        return {"sum": batch["a"] + batch["b"] * pair[0], "count": pair[1]}

    def step(x: Tensor, w: Tensor) -> None:
        w.grad = None
        (x @ w).relu().sum().backward()

    yield "add", lambda x: x + 1, (x,)
    yield "mlp", nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), (x,)
    yield "attributes", Scaled(), (x,)
    yield "containers", containers, ({"a": x, "b": x}, (x, 3))
    yield "globals", lambda x: F.softmax(x * ROUNDS, 0) + PROCESSES, (x,)
    yield "dropout", lambda x: F.dropout(x, 0.5), (x,)
    yield "dropout_of_item", lambda x, i: F.dropout(x[i], 0.5), (torch.ones(4, 4), torch.tensor([0, 2]))
    yield "views", lambda x: (x.view(4, 4).t(), x[2:].unsqueeze(0)), (x,)
    yield "step", step, (torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))


def hit(name: str) -> Measure:
    """Microseconds of a call that has been compiled before."""
    import torch

    import bolide

    if name == "bert":
        model, given = bert()
        fast = bolide.compile(model)
        call: Callable[[], Any] = lambda: fast(**given)  # noqa: E731
    elif name == "step":
        program, arguments = next((f, a) for n, f, a in programs() if n == name)
        x, w = arguments
        forward = bolide.compile(lambda x, w: (x @ w).relu().sum())

        def call() -> None:
            w.grad = None
            forward(x, w).backward()
    else:
        program, arguments = next((f, a) for n, f, a in programs() if n == name)
        fast = bolide.compile(program)
        call = lambda: fast(*arguments)  # noqa: E731
    with torch.set_grad_enabled(name == "step"):
        for _ in range(50):
            call()
    measure = each(call)

    def in_mode() -> float:
        with torch.set_grad_enabled(name == "step"):
            return measure()

    return in_mode


def bert() -> tuple[Any, dict[str, Any]]:
    """A narrow BERT with 12 layers, so that the calls of its guards count."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=12, hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=100
    )
    ids = torch.randint(0, 100, (1, 8))
    return BertModel(config).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def guards(form: str) -> Measure:
    """Microseconds of the check of a BERT, in one of its two forms."""
    import torch

    import bolide

    try:
        from bolide.dynamo.entry.versions import _all
    except ModuleNotFoundError:  # an older checkout
        _all = importlib.import_module("bolide.dynamo.versions")._all

    bolide.reset()
    model, given = bert()
    fast = bolide.compile(model, backend="eager")
    with torch.no_grad():
        for _ in range(5):
            fast(**given)
        (entry,) = [versions.entries[-1] for versions in _all if versions.entries]
        check = entry.check.form if form == "native" else entry.check.readable
        assert check(model, (), given) is not None
        measure = each(lambda: check(model, (), given))

    def in_mode() -> float:
        with torch.no_grad():
            return measure()

    return in_mode


def first_call(backend: str, name: str, mode: str) -> Measure:
    """Milliseconds by which the first call after a reset is longer than the shorter of two later ones."""
    import torch

    import bolide
    from benchmarks import models

    torch.manual_seed(0)
    workload = models.BUILDERS[name](replace(models.SCALES["tiny"], layers=12))
    workload.module.train(mode == "train")
    given = {**workload.inputs, **(workload.targets if mode == "train" else {})}
    again = {"grad": mode == "train"}

    def once(call: Callable[..., Any]) -> float:
        with torch.set_grad_enabled(again["grad"]):
            begin = time.thread_time()
            result = call(**given)
            if again["grad"] and backend == "inductor":
                workload.loss(result).backward()
            return time.thread_time() - begin

    def measure() -> float:
        bolide.reset()
        call = bolide.compile(workload.module, backend=backend)
        gc.collect()
        spent = [once(call) for _ in range(3)]
        return (spent[0] - min(spent[1:])) * 1e3

    measure()
    return measure


def prepared(case: str) -> Measure:
    """What measures a case once."""
    kind, _, rest = case.partition("_")
    if kind == "hit":
        return hit(rest)
    if kind == "guards":
        return guards(rest)
    name, mode = rest.split("_")
    return first_call({"capture": "eager", "compile": "inductor"}[kind], name, mode)


def serve() -> None:
    """Answer each line, the name of a case, with a measurement; the first of a case prepares it and answers nothing."""
    import torch

    torch.set_num_threads(1)
    measures: dict[str, Measure] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in measures:
            measures.clear()
            measures[case] = prepared(case)
            print("ready", flush=True)
        else:
            print(json.dumps(measures[case]()), flush=True)


# ---- in the process that compares ------------------------------------------------------------------------------------


class Side:
    """One checkout, and its process."""

    def __init__(self, checkout: str) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve()), "HF_HUB_OFFLINE": "1"}
        self.environment |= {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        self.environment["BOLIDE_FORCE_DISABLE_CACHES"] = "1"  # what is measured is made anew
        command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", __file__, "serve"]
        self.process = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, case: str) -> str:
        """The next answer about a case."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def measure(self, case: str) -> float:
        """One measurement, after it was prepared."""
        if case == "import":
            return self.import_time()
        return float(json.loads(self.ask(case)))

    def import_time(self) -> float:
        """Milliseconds of processor time to import bolide when torch is imported, in a new process."""
        program = "import torch, time; begin = time.process_time(); import bolide; print(time.process_time() - begin)"
        found = subprocess.run(
            [sys.executable, "-c", program], env=self.environment, cwd="/", capture_output=True, text=True, check=True
        )
        return float(found.stdout) * 1e3

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(old: str, new: str, cases: list[str], rounds: int, processes: int) -> None:
    """Print the medians of each case on both sides and their ratio."""
    print(f"{'case':28} {'old':>9} {'new':>9}     ratio of medians, of neighbours, of the best tenths")
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for number in range(processes):
        sides = [Side(old), Side(new)]
        for case in cases:
            found[case] += pairs(sides, case, rounds)
            if number == processes - 1:
                print(row(case, found[case]), flush=True)
        for side in sides:
            side.close()


def pairs(sides: list[Side], case: str, rounds: int) -> list[tuple[float, float]]:
    """Measurements of a case, old and new."""
    for side in sides:
        if case != "import":
            assert side.ask(case) == "ready\n", f"{case} failed"
        else:  # bytecode is there, as where bolide is installed
            compileall.compile_dir(Path(side.environment["PYTHONPATH"], "bolide"), quiet=2)
    times = [{i: sides[i].measure(case) for i in ((0, 1), (1, 0))[turn % 2]} for turn in range(rounds)]
    return [(found[0], found[1]) for found in times]


def row(case: str, found: list[tuple[float, float]]) -> str:
    """One line of the table."""
    before, after = (statistics.median(pair[i] for pair in found) for i in (0, 1))
    neighbours = statistics.median(b / a for a, b in found)
    least = [statistics.quantiles((pair[i] for pair in found), n=10)[0] for i in (0, 1)]
    unit = "µs" if case.startswith(("hit", "guards")) else "ms"
    ratios = f"{after / before:5.3f}  {neighbours:5.3f}  {least[1] / least[0]:5.3f}"
    return f"{case:28} {before:9.2f} {after:9.2f} {unit}  {ratios}"


def main(arguments: list[str]) -> None:
    if arguments == ["serve"]:
        serve()
        return
    options = dict(a.split("=", 1) for a in arguments if "=" in a)
    old, new, *names = [a for a in arguments if "=" not in a]
    cases = [case for name in names or CASES for case in CASES.get(name, (name,))]
    compare(old, new, cases, int(options.get("rounds", ROUNDS)), int(options.get("processes", PROCESSES)))


if __name__ == "__main__":
    main(sys.argv[1:])
