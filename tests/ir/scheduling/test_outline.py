"""Functions that `nested_compile_region` marks are lowered and scheduled once for all calls that are alike, forward and
backward, and compute what they do in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bolide
from bolide.inductor import outline
from bolide.tracing.called.branches import region

nested = torch.compiler.nested_compile_region


class Block(nn.Module):
    """A norm, attention and an MLP. `noise`: of a dropout."""

    def __init__(self, width: int = 8, noise: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.noise = noise

    @nested
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + F.dropout(F.gelu(self.out(attended)), self.noise)


class Stack(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Counting(Block):
    """Writes to a buffer and to an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))
        self.calls = 0

    @nested
    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().sum((0, 1))
        self.calls += 1
        return self.out(self.norm(x) + self.total) * self.calls


class Shrinking(Block):
    """Each call has another shape."""

    @nested
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.out(self.norm(x[:, 1:]))) + x[:, :-1]


def tied() -> nn.Module:
    block = Block()
    other = Block()
    other.qkv.weight, other.out = block.qkv.weight, block.out
    return Stack([block, block, other, block])


@nested
def several(x: Tensor, scale: Tensor, deep: bool) -> dict[str, Any]:
    y = (x * scale).sin().exp() + x.cos()
    if deep:
        y = several(y, scale, False)["out"]
    return {"out": y - y.mean(-1, keepdim=True), "views": (y.t(), x[:1], y[-1:]), "same": x, "size": x.shape[0]}


class Structured(nn.Module):
    """Results in containers, views of them and of arguments, arguments that come back, one in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Any:
        x = x[:, 0]
        first = several(x, self.scale, True)
        second = several(first["out"], self.scale, True)
        third = several(second["out"] * 2, self.scale, False)
        return first["views"], second, third["views"][0].sum(), third["same"]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: Stack([Block() for _ in range(4)]),
    "dropout of nothing": lambda: Stack([Block(noise=1.0) for _ in range(3)]),
    "writes": lambda: Stack([Counting() for _ in range(3)]),
    "shapes": lambda: Stack([Shrinking() for _ in range(3)]),
    "tied": tied,
    "structures": Structured,
}


@contextmanager
def graphs() -> Iterator[list[int]]:
    """How many calls of regions the graphs have that are compiled inside."""
    counts: list[int] = []
    outlined = outline.outlined

    def counted(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        made = outlined(gm)
        counts.append(len(made.graph.find_nodes(op="call_function", target=region)))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "outlined", counted)
        yield counts


def run(model: nn.Module, x: Tensor, grad: bool) -> tuple[Any, list[Tensor | None]]:
    leaf = x.clone().requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        result = model(leaf)
    if not grad:
        return result, []
    tensors = [value for value in torch.utils._pytree.tree_leaves(result) if isinstance(value, Tensor)]
    wanted = [leaf, *model.parameters()]
    return result, list(torch.autograd.grad(sum(t.square().sum() for t in tensors), wanted, allow_unused=True))


@pytest.mark.parametrize("name", MODELS)
def test_regions_compute_what_they_do_in_eager(name: str) -> None:
    model = MODELS[name]().double()
    reference = copy.deepcopy(model)
    compiled = bolide.compile(model)
    for rows in (2, 3, 0):  # nobody reads what is empty
        x = torch.randn(rows, 6, 8).double()
        for grad in (False, True):
            torch.testing.assert_close(run(compiled, x, grad), run(reference, x, grad))
    torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_that_are_alike_are_one_graph(dynamic: bool) -> None:
    bolide.reset()
    with graphs() as counts:
        run(bolide.compile(Stack([Block() for _ in range(6)]), dynamic=dynamic), torch.randn(2, 6, 8), True)
    assert counts[0] == 6 and counts[1] >= 4  # the first has another operand, or no gradient of it


def test_calls_that_are_not_alike_are_graphs_of_their_own() -> None:
    bolide.reset()
    with graphs() as counts:
        run(bolide.compile(MODELS["shapes"](), dynamic=False), torch.randn(2, 6, 8), True)
    assert counts == [0, 0]


def test_zeros_of_two_signs_are_told_apart() -> None:
    @nested
    def limited(x: Tensor, zero: float) -> Tensor:
        return (x.exp() * zero).reciprocal() * 2 + 1

    def program(x: Tensor) -> list[Tensor]:
        return [limited(x.sin() + place, zero) for place, zero in enumerate((0.0, -0.0, 0.0))]

    x = torch.randn(3, 5)
    torch.testing.assert_close(bolide.compile(program)(x), program(x))


def test_libraries_have_regions(tmp_path: Path) -> None:
    model, x = MODELS["blocks"]().eval(), torch.randn(2, 6, 8)
    library = bolide.load(bolide.aot_compile(model, (x,), dynamic_shapes=({0: "batch"},), path=tmp_path / "model.pt2"))
    for rows in (2, 5):
        x = torch.randn(rows, 6, 8)
        with torch.no_grad():
            torch.testing.assert_close(library(x), model(x))
