"""Libraries of models: what they give is what the models give, for other batches too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
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
    shapes = {"inputs": [{0: "batch"}] * len(inputs)} if name != "gpt2" else None
    path = bolide.aot_compile(model, inputs, dynamic_shapes=_by_name(shapes, len(inputs)), path=tmp_path / "m.pt2")
    library = bolide.load(path)
    for times in (1, 2) if shapes else (1,):
        given = tuple([torch.cat([value] * times) for value in inputs])
        given = tuple([value[:, torch.randperm(value.shape[1])] if value.dim() == 2 else value for value in given])
        with torch.no_grad():
            torch.testing.assert_close(library(*given), model(*given), atol=2e-4, rtol=2e-4)


def _by_name(shapes: dict[str, list[object]] | None, count: int) -> dict[str, object] | None:
    """`dynamic_shapes` of arguments that are gathered."""
    return None if shapes is None else {f"inputs_{place}": shapes["inputs"][place] for place in range(count)}
