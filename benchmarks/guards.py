"""What checking the guards of a Hugging Face BERT costs, by number of layers, in µs of processor time:
``python -m benchmarks.guards [layers ...]``.

The native check includes collecting the inputs of the graph. TorchDynamo's is its guard manager's `check` alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

import bolide
from bolide.dynamo.entry.versions import _all
from bolide.dynamo.native.check import Check


def cost(call: Callable[[], Any], times: int) -> float:
    """Median of seven rounds, in µs."""
    rounds = []
    for _ in range(7):
        start = time.thread_time()
        for _ in range(times):
            call()
        rounds.append((time.thread_time() - start) / times * 1e6)
    return statistics.median(rounds)


def model(layers: int) -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=100
    )
    made: torch.nn.Module = BertModel(config)
    return made.train(False)


def newest_check() -> tuple[Check, Callable[..., Any]]:
    """The check of the one compiled function, and the form of it that is installed."""
    (entry,) = [versions.entries[-1] for versions in _all if versions.entries]
    (installed,) = [f for name, f in entry.function.__globals__.items() if "check" in name]
    return entry.check, installed


def measure(layers: int) -> dict[str, float]:
    ids = torch.randint(0, 100, (1, 8))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    bolide.reset()
    torch.compiler.reset()
    ours, theirs = model(layers), model(layers)
    fast, reference = bolide.compile(ours, backend="eager"), torch.compile(theirs, backend="eager")
    with torch.no_grad():
        for _ in range(5):
            fast(**given)
            reference(**given)
        check, installed = newest_check()
        function: Any = type(theirs).forward
        (cached,) = _debug_get_cache_entry_list(function.__code__)
        scope = {"self": theirs, "args": (), "kwargs": dict(given)}
        scope |= {n: c.cell_contents for n, c in zip(function.__code__.co_freevars, function.__closure__ or ())}
        assert cached.guard_manager.check(scope) and installed(ours, (), given) is not None
        return {
            "guards": len(check.guards),
            "native": cost(lambda: installed(ours, (), given), 500),
            "readable": cost(lambda: check.readable(ours, (), given), 50),
            "TorchDynamo": cost(lambda: cached.guard_manager.check(scope), 200),
        }


def main(arguments: list[str]) -> None:
    for layers in map(int, arguments or ["12", "24"]):
        shown = ", ".join(f"{name} {value:.1f}" for name, value in measure(layers).items())
        print(f"{layers} layers: {shown}")


if __name__ == "__main__":
    main(sys.argv[1:])
