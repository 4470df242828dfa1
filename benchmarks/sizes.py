"""What tracing with symbolic sizes costs against tracing with fixed ones: ``python -m benchmarks.sizes [model ...]``.

Times are milliseconds of processor time of one capture (no differentiation, no code generation), fixed and with all
sizes symbolic in turn: the medians of rounds after two that are not counted. Shape rules remember their answers for
fixed sizes between captures; `cold` is with these forgotten, as in the first capture of a process.
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

from benchmarks import models
from bolide.dynamo.capture import capture
from bolide.dynamo.sizes import SizeHistory
from bolide.tracing.rules import answers

MODELS = ("gpt2", "bert", "llama", "vit", "resnet18")
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


def main(arguments: list[str]) -> None:
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
