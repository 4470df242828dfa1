"""Whole models through `bolide.compile`: results, gradients and buffers against eager, with float64 as the judge of
both.

A value computed by the compiled model may be as far from the float64 one as eager's is, times a small factor.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import bolide
from benchmarks import models
from tests.model_tools import run, strides, without_dropout

NAMES = ["gpt2", "bert", "llama", "vit", "t5", "resnet18", "resnet50", "unet", "lstm", "mlp"]
FLOOR = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def build(name: str) -> models.Workload:
    """The tiny model. A ResNet gets larger images: over single pixels BatchNorm makes gradients that no float32 has."""
    if not name.startswith("resnet"):
        return models.build(name, "tiny")
    torch.manual_seed(0)
    return models.BUILDERS[name](replace(models.SCALES["tiny"], batch=4, image=96))


def check(name: str, training: bool, dtype: torch.dtype = torch.float32, autocast: bool = False) -> None:
    work = build(name)
    module = without_dropout(work.module)
    exact = run(work, copy.deepcopy(module).double(), training, torch.float64, False)
    expected = run(work, copy.deepcopy(module).to(dtype), training, dtype, autocast)
    compiled = bolide.compile(copy.deepcopy(module).to(dtype), fullgraph=True)
    found = run(work, compiled, training, dtype, autocast)
    dispatcher = compiled._bolide_call._bolide
    assert len(dispatcher.entries) == 1 and dispatcher.misfit is None
    assert len(found) == len(expected) == len(exact)
    floor = FLOOR[torch.bfloat16 if autocast else dtype]
    scale = max(float(t.double().abs().max()) for t in exact[training:] if t.is_floating_point())
    for i, (ours, eager, true) in enumerate(zip(found, expected, exact)):
        assert (ours.shape, ours.dtype, strides(ours)) == (eager.shape, eager.dtype, strides(eager)), i
        if not true.is_floating_point():
            assert torch.equal(ours, eager), i
            continue
        true = true.double()
        allowed = 4 * (eager - true).norm() + floor * (true.norm() + 0.01 * scale * true.numel() ** 0.5)
        assert (ours - true).norm() <= allowed, (i, float((ours - true).norm()), float((eager - true).norm()), allowed)


@pytest.mark.parametrize("name", NAMES)
def test_inference(name: str) -> None:
    check(name, training=False)


@pytest.mark.parametrize("name", NAMES)
def test_training(name: str) -> None:
    check(name, training=True)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name: str, training: bool) -> None:
    check(name, training, torch.bfloat16)


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet18", "mlp"])
def test_training_under_autocast(name: str) -> None:
    check(name, training=True, autocast=True)


def test_dropout_has_eagers_statistics_and_follows_the_seed() -> None:
    dropout = bolide.compile(nn.Dropout(0.3), fullgraph=True)
    x = torch.ones(200_000)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first) and not torch.equal(first, second)
    assert torch.equal(first[first != 0], torch.full_like(first[first != 0], 1 / 0.7))
    for y in (first, second):
        assert abs(float((y == 0).float().mean()) - 0.3) < 0.006  # six standard deviations


def test_training_with_dropout_steps_a_model_down() -> None:
    work = models.build("gpt2", "tiny")
    compiled = bolide.compile(work.module.train(), fullgraph=True)
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = work.loss(compiled(**work.inputs, **work.targets))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses
    assert len(compiled._bolide_call._bolide.entries) == 1
