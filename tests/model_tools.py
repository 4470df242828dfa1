"""Models that are run in eager and compiled: what they give, and how many versions a call needs."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks import models
from bolide.support import events


def installed(call: Any) -> tuple[Any, int]:
    """The result of a call, and how many versions it has compiled."""
    seen: list[Any] = []
    events.subscribers.append(seen.append)
    try:
        return call(), sum(isinstance(event, events.Installed) for event in seen)
    finally:
        events.subscribers.remove(seen.append)


def without_dropout(module: nn.Module) -> nn.Module:
    for part in module.modules():
        for name in ("p", "dropout", "attention_dropout", "dropout_rate", "hidden_dropout"):
            if isinstance(vars(part).get(name), float):
                setattr(part, name, 0.0)
    return module


def tensors(result: Any) -> list[torch.Tensor]:
    result = dict(result) if isinstance(result, dict) else result
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that say where elements are."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1]


def run(work: models.Workload, module: Any, training: bool, dtype: torch.dtype, autocast: bool) -> list[torch.Tensor]:
    """The results of one call, or the loss, the gradients and the buffers after one training step."""
    module.train(training)
    inputs = {**work.inputs, **(work.targets if training else {})}
    inputs = {key: models.cast(value, dtype) for key, value in inputs.items()}
    context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    with torch.set_grad_enabled(training), context:
        result = module(**inputs)
    if not training:
        return tensors(result)
    loss = work.loss(result)
    loss.backward()
    return [loss, *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()]
