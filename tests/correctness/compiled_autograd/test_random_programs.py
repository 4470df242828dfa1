"""Captured backward passes of random programs, with hooks of several kinds: gradients and the order of calls are
eager's.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo import compiled_autograd
from tests.compiled_autograd_tools import assert_same
from tests.fuzz.writers.matrix_programs import program

PROGRAMS = 60


def backward(seed: int) -> Any:
    """The gradients of a random program, or the beginning of its error, and a log of what its hooks were given."""
    fn, inputs = program(seed)
    choose = random.Random(seed)
    log: list[Any] = []

    def watch(place: int, result: torch.Tensor) -> None:
        result.register_hook(lambda grad: log.append((place, "tensor", grad.clone())))
        if choose.random() < 0.3:
            result.retain_grad()
        node = result.grad_fn
        if node is not None and choose.random() < 0.4:
            node.register_hook(
                lambda grads, _: log.append((place, "post", *[g.clone() for g in grads if g is not None]))
            )
        if node is not None and choose.random() < 0.4:
            node.register_prehook(
                lambda grads: log.append((place, "pre", *[g.clone() for g in grads if g is not None]))
            )

    try:
        results = [result for result in fn(*inputs) if result.grad_fn is not None]
        for place, result in enumerate(results):
            if choose.random() < 0.7:
                watch(place, result)
        for tensor in inputs:
            if tensor.requires_grad and tensor.is_leaf and choose.random() < 0.5:
                tensor.register_post_accumulate_grad_hook(lambda leaf: log.append(("leaf", leaf.grad.clone())))
        if results:
            torch.autograd.backward(results, [torch.full_like(r, 0.3 + place) for place, r in enumerate(results)])
    except RuntimeError as error:
        return str(error)[:60]  # eager finds it halfway, with some hooks called
    return [tensor.grad for tensor in (*inputs, *[r for r in results if r.retains_grad])], log


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_random_programs(backend: str | None, seed: int) -> None:
    tolerance = {} if backend is None else {"rtol": 1e-4, "atol": 1e-5}
    compiled_autograd.reset()
    for number in range(seed, seed + (PROGRAMS if backend is None else PROGRAMS // 10)):
        print("program", number)
        expected = backward(number)
        with compiled_autograd.enable(lambda gm: gm if backend is None else bolide.compile(gm, backend=backend)):
            actual = backward(number)
        assert_same(actual, expected, **tolerance)
