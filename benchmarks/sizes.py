"""What symbolic sizes cost against fixed ones: ``python -m benchmarks.sizes [model ...]`` for tracing, and ``python -m
benchmarks.sizes run [scale=small] [model ...]`` for running the compiled code of backend inductor.

Times are milliseconds of processor time of one capture (no differentiation, no code generation), fixed and with all
sizes symbolic in turn: the medians of rounds after two that are not counted. Shape rules remember their answers for
fixed sizes between captures; `cold` is with these forgotten, as in the first capture of a process.

Running is measured on one thread, in its processor time, a call of each in turn: inference, and a training step
(forward and backward).
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import bolide
from benchmarks import models
from bolide.dynamo.entry.capture import capture
from bolide.dynamo.guards.sizes import SizeHistory
from bolide.tracing.rules import answers

MODELS = ("gpt2", "bert", "llama", "vit", "resnet18")
RUN_MODELS = (*MODELS, "mlp", "t5", "unet", "lstm")
KINDS = {"fixed": False, "symbolic": True}
SECONDS = 3.0  # of calls for one ratio
ROUNDS = 11


def once(work: models.Workload, dynamic: bool) -> float:
    """Milliseconds for one capture."""
    history = SizeHistory(dynamic=dynamic)
    gc.collect()
    gc.disable()
    try:
        start = time.thread_time()
        captured = capture(type(work.module).forward.__get__(work.module), (), work.inputs, history)
        spent = time.thread_time() - start
        captured.release()
    finally:
        gc.enable()
    return spent * 1e3


def measure(name: str, scale: str, rounds: int = ROUNDS) -> dict[str, float]:
    """Medians for fixed and symbolic sizes, with answers of shape rules remembered and forgotten."""
    work = models.build(name, scale)
    work.module.eval()
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        for turn in range(rounds + 2):
            for label, dynamic, cold in (
                ("fixed", False, False),
                ("symbolic", True, False),
                ("fixed, cold", False, True),
                ("symbolic, cold", True, True),
            ):
                if cold:
                    answers.forget()
                spent = once(work, dynamic)
                if turn > 1:
                    found.setdefault(label, []).append(spent)
    return {label: statistics.median(times) for label, times in found.items()}


def call_times(name: str, scale: str, training: bool) -> dict[str, float]:
    """Medians of milliseconds of one call, with sizes fixed and with all of them symbolic."""
    work = models.build(name, scale)
    work.module.train(training)
    calls = {label: bolide.compile(work.module, dynamic=dynamic) for label, dynamic in KINDS.items()}
    found: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(3):
        for call in calls.values():
            one_call(work, call, training)
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS or len(found["fixed"]) < 5:
        for label, call in calls.items():
            start = time.thread_time()
            one_call(work, call, training)
            found[label].append((time.thread_time() - start) * 1e3)
    return {label: statistics.median(times) for label, times in found.items()}


def one_call(work: models.Workload, call: Any, training: bool) -> None:
    """Call a model once; in training, its backward too."""
    with torch.set_grad_enabled(training):
        result = call(**work.inputs, **(work.targets if training else {}))
    if training:
        work.module.zero_grad(set_to_none=True)
        work.loss(result).backward()


def run(arguments: list[str]) -> None:
    """Print a table of the run times."""
    scale = next((a.removeprefix("scale=") for a in arguments if a.startswith("scale=")), "small")
    torch.set_num_threads(1)
    print("milliseconds    fixed  symbolic  ratio")
    for name in [a for a in arguments if "=" not in a] or RUN_MODELS:
        for training in (False, True):
            found = call_times(name, scale, training)
            label = f"{name} {'training' if training else 'inference'}"
            ratio = found["symbolic"] / found["fixed"]
            print(f"{label:18} {found['fixed']:7.2f} {found['symbolic']:9.2f} {ratio:6.3f}", flush=True)
            bolide.reset()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["run"]:
        run(arguments[1:])
        return
    print(f"{'model':10}   fixed  symbolic  ratio    fixed, cold  symbolic, cold  ratio")
    for name in arguments or MODELS:
        found: dict[str, Any] = measure(name, "small12")
        warm, cold = found["symbolic"] / found["fixed"], found["symbolic, cold"] / found["fixed, cold"]
        print(
            f"{name:10} {found['fixed']:7.1f} {found['symbolic']:9.1f} {warm:6.2f}"
            f" {found['fixed, cold']:14.1f} {found['symbolic, cold']:15.1f} {cold:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
