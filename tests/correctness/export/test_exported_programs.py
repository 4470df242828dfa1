"""Programs that `torch.export` has made, as what `bolide.compile` compiles."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.unflatten import UnflattenedModule
from torch.utils import _pytree as pytree

import bolide


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.first(x).abs().mean()
        return self.second(self.norm(self.first(x)).relu()) * scale


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.mean.mul_(0.5).add_(x.detach().mean(0))
        return x * self.calls - self.mean


@dataclass
class Pair:
    first: Tensor
    second: Tensor


torch.export.register_dataclass(Pair, serialized_type_name="bolide.tests.Pair")


class Nested(nn.Module):
    def forward(self, tree: dict[str, Any], pair: Pair, *, scale: float = 2.0) -> Any:
        first = tree["a"][0] * scale + pair.first
        return {"sum": first, "pair": Pair(pair.second, first.sin()), "rest": [None, tree["a"][1].shape[0]]}


class Writes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2


class Data(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = x.abs().sum().item()
        torch._check(count >= 0)
        torch._check(count < 100)
        return torch.cat((torch.ones(count), x.nonzero().flatten() * 1.0))


def rows(count: int) -> Tensor:
    return torch.randn(count, 4)


def tree(count: int) -> tuple[Any, ...]:
    return {"a": (torch.randn(count), torch.randn(3))}, Pair(torch.randn(count), torch.randn(2))


n = Dim("n", max=64)
SHAPES: dict[str, Any] = {
    "layers": (Layers(), lambda size: (rows(size),), {"x": {0: n}}),
    "counts": (Counts(), lambda size: (rows(size),), {"x": {0: n}}),
    "nested": (Nested(), tree, {"tree": {"a": ({0: n}, None)}, "pair": [{0: n}, None]}),
    "writes": (Writes(), lambda size: (rows(size), rows(size)), {"x": {0: n}, "y": {0: n}}),
    "data": (Data(), lambda size: (torch.arange(size) % 3 - 1,), {"x": {0: Dim.AUTO}}),
}


def forms(model: nn.Module, args: tuple[Any, ...], shapes: object) -> Iterator[tuple[nn.Module, nn.Module]]:
    """What a user may make of a program that was exported, twice, with parameters and buffers of their own."""

    def program() -> ExportedProgram:
        return export(copy.deepcopy(model), args, dynamic_shapes=shapes, strict=False)

    yield program().module(), program().module()
    yield torch.export.unflatten(program()), torch.export.unflatten(program())
    yield program().run_decompositions().module(), program().run_decompositions().module()


def compiled_program(program: nn.Module) -> nn.Module:
    """An unflattened program checks its inputs in a function that torch has disabled."""
    return bolide.compile(program, fullgraph=not isinstance(program, UnflattenedModule))


def copied(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, value)


def agree(found: Any, wanted: Any) -> None:
    ours, theirs = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0]):
        torch.testing.assert_close(a, b) if b is not None else None


@pytest.mark.parametrize("name", SHAPES)
def test_programs_compute_and_write_what_they_do_in_eager(name: str) -> None:
    model, make, shapes = SHAPES[name]
    for program, reference in forms(model, make(5), shapes):
        compiled = compiled_program(program)
        for size in (5, 7):
            ours = make(size)
            theirs = copied(ours)
            agree(compiled(*ours), reference(*theirs))
            agree(ours, theirs)
        agree(dict(program.named_buffers()), dict(reference.named_buffers()))


def test_programs_are_differentiated_as_in_eager() -> None:
    model = Layers()
    program, reference = (export(copy.deepcopy(model), (rows(3),)).module() for _ in range(2))
    for x in (rows(3), rows(3)):
        for model in (compiled_program(program), reference):
            model(x).square().sum().backward()
        wanted = {name: p.grad for name, p in reference.named_parameters()}
        agree({name: p.grad for name, p in program.named_parameters()}, wanted)


class Normed(nn.Module):
    """A batch norm whose statistics are buffers of other names too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        before = self.seen * self.last.weight
        self.seen.add_(x.detach().sum(0))
        return self.last(self.norm(x)).sum() + before.sum() + (self.seen * self.last.weight).sum()


def test_graphs_that_write_buffers_have_gradients() -> None:
    model = Normed().train()
    graph = bolide.dynamo.export(model, aten_graph=True, dynamic_shapes=({0: n},))(rows(3)).graph_module
    reference = copy.deepcopy(model)
    for program in (graph, bolide.compile(graph)):
        for x in (rows(3), rows(6)):
            program(x).backward()
            seen = reference.seen.clone()  # eager writes to what its backward needs
            y = reference.last(reference.norm(x)).sum() + (seen * reference.last.weight).sum()
            (y + ((seen + x.sum(0)) * reference.last.weight).sum()).backward()
            reference.seen += x.sum(0)
            agree(dict(model.named_buffers()), dict(reference.named_buffers()))
    agree({k: p.grad for k, p in model.named_parameters()}, {k: p.grad for k, p in reference.named_parameters()})


def test_a_program_says_what_it_was_not_exported_for() -> None:
    program = export(Layers(), (rows(3),)).module()
    compiled = bolide.compile(program)
    with pytest.raises(Exception) as theirs:
        program(rows(5))
    with pytest.raises(type(theirs.value)) as ours:
        compiled(rows(5))
    assert str(ours.value) == str(theirs.value)


def test_programs_that_were_saved_are_compiled() -> None:
    file = io.BytesIO()
    torch.export.save(export(Layers(), (rows(3),), dynamic_shapes=({0: n},)), file)
    file.seek(0)
    program, x = torch.export.load(file).module(), rows(6)
    agree(bolide.compile(program, fullgraph=True)(x), program(x))


def test_programs_are_exported_again_by_either() -> None:
    model, x, fresh = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU()), rows(3), rows(6)
    program = export(model, (x,), dynamic_shapes=({0: n},)).module()
    again = bolide.dynamo.export(program)(x).graph_module
    agree(again(fresh), model(fresh))
    graph = bolide.dynamo.export(model, dynamic_shapes=({0: n},))(x).graph_module
    agree(export(graph, (x,), dynamic_shapes=({0: n},)).module()(fresh), model(fresh))


def test_a_compiled_function_leaves_decompositions_of_torch_as_they_are() -> None:
    compiled = bolide.compile(lambda x: torch.nn.functional.hardshrink(x).view(-1), dynamic=True)
    compiled(rows(3))
    model = nn.Sequential(nn.Linear(4, 4), nn.Hardshrink())
    program = export(model, (rows(3),)).run_decompositions().module()
    x = rows(3)
    agree(bolide.compile(program)(x), model(x))
