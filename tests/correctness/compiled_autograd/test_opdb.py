"""Torch's samples of operations and modules: forward in eager, the backward pass captured, as eager's to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo import compiled_autograd
from tests.compiled_autograd_tools import captures
from tests.opdb_tools import MODULES, OPERATIONS

DTYPE = torch.float64


def name_of(operation: Any) -> str:
    return ".".join(filter(None, (operation.name, operation.variant_test_name)))


SAMPLE = [
    operation
    for operation in OPERATIONS[::12]
    if operation.supports_autograd and operation.supports_dtype(DTYPE, "cpu") and "sparse" not in operation.name
]
COUNT = 44


def gradients(call: Any, leaves: list[torch.Tensor], capture: bool) -> list[Any] | None:
    """Of the call's results, weighted at random; None where nothing requires grad."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        results = [value for value in pytree.tree_leaves(call()) if isinstance(value, torch.Tensor)]
        results = [value for value in results if value.requires_grad and value.layout is torch.strided]
        if not results:
            return None
        weights = [torch.randn(value.shape, dtype=value.dtype) for value in results]
        for each in leaves:
            each.grad = None
        if capture:
            with compiled_autograd.enable(lambda gm: gm):
                torch.autograd.backward(results, weights, retain_graph=True)
        else:
            torch.autograd.backward(results, weights, retain_graph=True)
        return [each.grad for each in leaves]


def assert_as_eager(call: Any, arguments: Any) -> int:
    """1 if there is anything to differentiate."""
    leaves = [value for value in pytree.tree_leaves(arguments) if isinstance(value, torch.Tensor)]
    leaves = [value for value in leaves if value.requires_grad and value.is_leaf]
    try:
        expected = gradients(call, leaves, False)
    except (RuntimeError, NotImplementedError):  # eager has no derivative here
        return 0
    if expected is None:
        return 0
    actual = gradients(call, leaves, True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    return 1


def test_the_sample_is_whole() -> None:
    assert len(SAMPLE) >= COUNT  # other versions of torch have other lists


@pytest.mark.parametrize("operation", SAMPLE, ids=name_of)
def test_operations(operation: Any) -> None:
    compiled_autograd.reset()
    samples = list(operation.sample_inputs("cpu", DTYPE, requires_grad=True))[:3]
    done = 0
    for sample in samples:
        process = sample.output_process_fn_grad or (lambda value: value)
        done += assert_as_eager(
            lambda sample=sample, process=process: process(operation(sample.input, *sample.args, **sample.kwargs)),
            (sample.input, sample.args, sample.kwargs),
        )
    assert captures() > 0 or not done


def assert_module(info: Any) -> int:
    done = 0
    for sample in info.module_inputs_func(info, "cpu", DTYPE, requires_grad=True, training=True)[:2]:
        made, called = sample.constructor_input, sample.forward_input
        if called is None:
            continue
        torch.manual_seed(1)
        module = info.module_cls(*made.args, **made.kwargs).to(DTYPE)
        module(*called.args, **called.kwargs)  # lazy ones make their parameters
        arguments = (called.args, called.kwargs, list(module.parameters()))
        done += assert_as_eager(lambda m=module, c=called: m(*c.args, **c.kwargs), arguments)
    return done


@pytest.mark.parametrize("info", MODULES[::7], ids=lambda info: info.name)
def test_modules(info: Any) -> None:
    compiled_autograd.reset()
    assert assert_module(info) == 0 or captures() > 0
