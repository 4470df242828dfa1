"""Libraries of models: what they give is what the models give, for other batches too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import bolide
from benchmarks import models


class Called(nn.Module):
    """A model that is called with keywords, and gives what is a tensor of its result."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        result = self.model(**dict(zip(self.names, inputs)))
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt2", "bert"])
def test_a_model_gives_the_same_as_a_library(name: str, tmp_path: Path) -> None:
    workload = models.build(name, "tiny")
    names = [key for key, value in workload.inputs.items() if isinstance(value, torch.Tensor)]
    model = Called(workload.module.eval(), names)
    inputs = tuple([workload.inputs[key] for key in names])
    length = Dim("length", max=64)
    shapes = [{0: "batch", 1: length} if not value.is_floating_point() else {0: "batch"} for value in inputs]
    by_name = {f"inputs_{place}": shape for place, shape in enumerate(shapes)}
    path = bolide.aot_compile(model, inputs, dynamic_shapes=by_name, path=tmp_path / "m.pt2")
    library = bolide.load(path)
    least = 2 if name == "gpt2" else 1  # transformers asks there whether there is one row of positions for each example
    for batch, cut in ((inputs[0].shape[0], 0), (2 * inputs[0].shape[0], 0), (least, 1)):
        given = [torch.cat([value, value])[:batch] for value in inputs]
        given = [
            value[:, torch.randperm(value.shape[1] - cut)] if 1 in shape else value
            for value, shape in zip(given, shapes)
        ]
        with torch.no_grad():
            torch.testing.assert_close(library(*given), model(*given), atol=2e-4, rtol=2e-4)
