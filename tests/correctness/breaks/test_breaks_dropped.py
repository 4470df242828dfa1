"""Breaks that are not needed: references of bolide's own do not show the end of an object, and sizes that are data do
not make a view overlap itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import ExactWeakKeyDictionary

import bolide
from bolide.support import events


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            bolide.graph_break()
        return x


@pytest.mark.parametrize("noted", [False, True])
def test_layers_of_a_loop_that_breaks_may_be_dropped(noted: bool) -> None:
    model, notes = Layers(), ExactWeakKeyDictionary()  # as torch.compile notes all modules that are made
    for layer in model.layers if noted else ():
        notes[layer] = True
    compiled = bolide.compile(model)
    told: list[Any] = []
    with events.subscribed(told.append):
        for rows in (3, 5, 4, 6):
            compiled(torch.randn(rows, 4))
        compiled = bolide.compile(model.forward)
        for rows in (3, 5, 4, 6):
            x = torch.randn(rows, 4)
            assert torch.allclose(compiled(x), model(x), atol=1e-6)
    reasons = {event.reason for event in told if isinstance(event, events.Break)}
    assert reasons == {"a break was asked for"}


@pytest.mark.parametrize("rows", [4, 70])
def test_a_slice_whose_length_is_data_is_written(rows: int) -> None:
    def program(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        start, end = ends.tolist()
        y[:, start:end] = 0
        return y

    compiled = bolide.compile(program, fullgraph=True)
    for columns in (7, 9, 8):
        x, ends = torch.randn(rows, columns), torch.tensor([2, 5])
        with bolide.dynamo.config.patch(specialize_data=0):
            assert torch.equal(compiled(x, ends), program(x, ends))
