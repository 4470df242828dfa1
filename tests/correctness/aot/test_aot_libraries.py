"""Libraries give what eager gives: results, writes to arguments, views; arguments of other types, sizes and structure
are refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import AdditionalInputs, Dim, ShapesCollection

import bolide
from bolide.inductor import aot_compile
from tests.thread_tools import together

Program = Callable[..., object]


def made(tmp_path: Path, program: Program, args: tuple, **options: object) -> Callable[..., object]:
    """A library of a program, loaded."""
    return bolide.load(bolide.aot_compile(program, args, path=tmp_path / "model.pt2", **options))


def same(program: Program, library: Program, args: tuple) -> None:
    """What both give for the arguments, and leave in them, is the same."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    with torch.no_grad():
        expected = program(*theirs)
    torch.testing.assert_close(library(*ours), expected)
    torch.testing.assert_close(ours, theirs)


def writing(x: torch.Tensor, y: torch.Tensor) -> object:
    x.add_(y[0])
    y[1:] = 7
    return x, y.t(), x.sum()


def branching(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def repeating(x: torch.Tensor) -> object:
    return torch.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (torch.tensor(0), x))


PROGRAMS: dict[str, tuple[Program, Callable[[], tuple]]] = {
    "several results": (
        lambda x, y: (x @ y, {"sum": y.sum(), "rest": [x, 3, None, True, 2.5]}),
        lambda: (torch.randn(4, 3), torch.randn(3, 5)),
    ),
    "a result twice": (lambda x: (y := x + 1, y, x), lambda: (torch.randn(4),)),
    "writes": (writing, lambda: (torch.randn(3), torch.randn(4, 3))),
    "views of an input": (lambda x: (x.t(), x[1:], x.flatten()[2]), lambda: (torch.randn(4, 3),)),
    "views of a result": (lambda x: ((y := x.exp()).t(), y[1:], y), lambda: (torch.randn(4, 3),)),
    "a view of a part": (lambda x: x[1:] * 2, lambda: (torch.randn(9, 3)[2:7],)),
    "bfloat16": (lambda x: (x @ x.t()).softmax(-1), lambda: (torch.randn(4, 8).bfloat16(),)),
    "int64": (lambda x: (x.cumsum(0) // 3, x % 5, x.max()), lambda: (torch.randint(-99, 99, (7,)),)),
    "bool": (lambda x: (x > 0, (x > 0).any()), lambda: (torch.randn(6),)),
    "empty": (lambda x: (x + 1, x.sum(), torch.cat([x, x])), lambda: (torch.randn(0, 3),)),
    "no dimensions": (lambda x: x.sin(), lambda: (torch.randn(()),)),
    "an index that is data": (lambda x, i: x[i], lambda: (torch.randn(5, 3), torch.randint(0, 5, (4,)))),
    "a size that is data": (lambda x: x[x > 0] * 2, lambda: (torch.randn(20),)),
    "a number that is data": (lambda x: (x.abs(), x.argmax().item()), lambda: (torch.randn(20),)),
    "a branch on data": (branching, lambda: (torch.randn(3),)),
    "a loop on data": (repeating, lambda: (torch.randn(3),)),
    "a container": (lambda d: {"out": d["x"] * d["y"][0]}, lambda: ({"x": torch.randn(3), "y": [torch.randn(3)]},)),
    "an argument that is not read": (lambda x, y: x * 2, lambda: (torch.randn(3), torch.randn(2))),
    "an argument that is no tensor": (lambda x, k: x * k, lambda: (torch.randn(3), 4)),
    "a strided argument": (lambda x: x + 1, lambda: (torch.randn(5, 4).t(),)),
    "linear algebra": (lambda x: torch.linalg.inv(x @ x.t() + torch.eye(4)), lambda: (torch.randn(4, 3),)),
    "an operator that gives several": (lambda x: tuple(x.cummax(0)), lambda: (torch.randn(4, 3),)),
    "a list of numbers": (lambda x: torch.nn.functional.fold(x, (4, 4), 2), lambda: (torch.randn(1, 8, 9),)),
    "complex numbers inside": (lambda x: torch.fft.rfft(x).abs(), lambda: (torch.randn(3, 8),)),
    "a text": (lambda x, i: x.index_reduce(0, i, x, "amax"), lambda: (torch.randn(4, 3), torch.randperm(4))),
    "sizes of a result that are data": (lambda x: x.masked_select(x > 0) * 2, lambda: (torch.randn(20),)),
    "a dropped constant": (lambda x: x + torch.arange(3), lambda: (torch.randn(3),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_gives_what_the_program_gives(name: str, tmp_path: Path) -> None:
    program, example = PROGRAMS[name]
    library = made(tmp_path, program, example())
    for _ in range(3):
        same(program, library, example())


def test_results_alias_what_they_do_in_eager(tmp_path: Path) -> None:
    library = made(tmp_path, lambda x: (x, x.t(), x + 1), (torch.randn(4, 3),))
    x = torch.randn(4, 3)
    whole, view, other = library(x)
    assert whole.data_ptr() == view.data_ptr() == x.data_ptr() != other.data_ptr()
    assert view.shape == (3, 4)


def test_sizes_may_differ_where_they_are_dynamic(tmp_path: Path) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> object:
        return (x[:, None] * y).softmax(-1), x.shape[0], x.new_ones(x.shape[0] // 2)

    shapes = ({0: "batch"}, {0: Dim("width", max=40)})
    library = made(tmp_path, program, (torch.randn(4), torch.randn(6)), dynamic_shapes=shapes)
    for batch, width in ((4, 6), (9, 33), (100, 2), (1, 1), (1, 5)):
        same(program, library, (torch.randn(batch), torch.randn(width)))
    with pytest.raises(RuntimeError, match="size of input y in dimension 0 is 41, but must be at most 40"):
        library(torch.randn(4), torch.randn(41))


def _positioned(x: torch.Tensor) -> object:
    table = torch.arange(6.0).expand(1, 6)
    return x + table, (x - x.mean(0, keepdim=True)) / x.shape[0], x + torch.arange(x.shape[0])[:, None]


def _reshaped(x: torch.Tensor) -> object:
    heads = x.exp().view(x.shape[0], 2, 3).transpose(1, 2)
    return heads.reshape(x.shape[0], -1) + 1, heads.flatten(0, 1).sin(), torch.cat([x, x[:1]]), x.t() @ x


_BATCHES: dict[str, Callable[[], tuple[nn.Module | Program, Callable[[int], torch.Tensor]]]] = {
    "positions": lambda: (_positioned, lambda n: torch.randn(n, 6)),
    "shapes": lambda: (_reshaped, lambda n: torch.randn(n, 6)),
    "images": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval(),
        lambda n: torch.randn(n, 3, 7, 9),
    ),
    "attention": lambda: (
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(),
        lambda n: torch.randn(n, 5, 16),
    ),
    "attention, transposed": lambda: (
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(),
        lambda n: torch.randn(n, 16, 5).mT,
    ),
}


@pytest.mark.parametrize("size", ["n", Dim("n", min=1, max=64), Dim.DYNAMIC, Dim.AUTO], ids=["name", "Dim", "D", "A"])
@pytest.mark.parametrize("name", _BATCHES)
def test_batches_of_one(tmp_path: Path, name: str, size: object) -> None:
    """A library serves a single example as well, whatever batch it was made with."""
    program, make = _BATCHES[name]()
    for example in (5, 1):
        library = made(tmp_path, program, (make(example),), dynamic_shapes=({0: size},))
        for batch in (1, 2, 17):
            same(program, library, (make(batch),))


def test_a_program_that_asks_about_one_size_takes_any_other(tmp_path: Path) -> None:
    """As a language model does: whether there is one query, for a mask, but not whether there is one example."""

    def masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        causal = x.shape[1] > 1 and x.dim() == 3
        return torch.nn.functional.scaled_dot_product_attention(x, y, y, is_causal=causal)

    shapes = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
    given = (torch.randn(4, 7, 8), torch.randn(4, 7, 8))
    library = made(tmp_path, masked, given, dynamic_shapes=shapes)
    for batch, length in ((1, 5), (1, 2), (3, 9)):
        same(masked, library, (torch.randn(batch, length, 8), torch.randn(batch, length, 8)))
    with pytest.raises(RuntimeError, match="size of input x in dimension 1 is 1, but must be at least 2"):
        library(torch.randn(2, 1, 8), torch.randn(2, 1, 8))


def test_a_program_that_does_otherwise_with_one(tmp_path: Path) -> None:
    """Both ways are in the library, or it is for more; results of other shapes are refused."""

    def asking(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else x + 1

    library = made(tmp_path, asking, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for batch in (1, 2, 9):
        same(asking, library, (torch.randn(batch, 3),))

    def dropping(x: torch.Tensor) -> torch.Tensor:
        return x.squeeze() + 1

    library = made(tmp_path, dropping, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for batch in (2, 9):
        same(dropping, library, (torch.randn(batch, 3),))
    with pytest.raises(RuntimeError, match="does not hold"):
        library(torch.randn(1, 3))


def _collected(given: tuple[Any, ...]) -> object:
    collection = ShapesCollection()
    collection[given[0]["x"]] = (Dim("n"), 3)
    return collection


def _inferred(_: object) -> object:
    inputs = AdditionalInputs()
    inputs.add(({"x": torch.randn(7, 3)}, [torch.randn(3)], 2))
    return inputs


SHAPES: dict[str, Callable[[tuple[Any, ...]], object]] = {
    "sequences": lambda _: ({"x": (Dim("n"), 3)}, [{0: 3}], 2),
    "hints": lambda _: {"tree": {"x": {0: Dim.AUTO, 1: Dim.STATIC}}, "rest": [None], "k": Dim.AUTO},
    "dynamic": lambda _: ({"x": [Dim.DYNAMIC, None]}, None, Dim.STATIC),
    "a collection": _collected,
    "more inputs": _inferred,
}


@pytest.mark.parametrize("form", SHAPES)
def test_sizes_are_told_in_every_form_that_torch_knows(form: str, tmp_path: Path) -> None:
    def program(tree: dict[str, torch.Tensor], rest: list[torch.Tensor], k: int) -> torch.Tensor:
        return (tree["x"] * rest[0]).cumsum(0) * k

    given = ({"x": torch.randn(4, 3)}, [torch.randn(3)], 2)
    shapes = SHAPES[form](given)
    library = made(tmp_path, program, given, dynamic_shapes=shapes)
    graph = bolide.dynamo.export(program, aten_graph=True, dynamic_shapes=shapes)(*given).graph_module
    for rows in (4, 9):
        fresh = ({"x": torch.randn(rows, 3)}, [torch.randn(3)], 2)
        same(program, library, fresh)
        torch.testing.assert_close(graph(*fresh), program(*fresh))


def test_sizes_that_are_not_as_told_are_named(tmp_path: Path) -> None:
    for shapes, error in (((5, None), "is 5, but it is 2"), ((None, (4, 4)), "is 4, but it is 3")):
        with pytest.raises(ValueError, match=error):
            made(tmp_path, lambda k, x: x * k, (2, torch.randn(4, 3)), dynamic_shapes=shapes)
    with pytest.raises(bolide.Unsupported, match="an integer that changes, and a library takes tensors only"):
        made(tmp_path, lambda k, x: x * k, (2, torch.randn(4, 3)), dynamic_shapes=(Dim.DYNAMIC, None))


def test_an_exported_program_tells_sizes_that_follow_from_others(tmp_path: Path) -> None:
    class Shifted(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x[1:] + y + z[::2]

    def rows(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(n + 1, 2), torch.randn(n, 2), torch.randn(2 * n, 2)

    program = torch.export.export(Shifted(), rows(3), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO}))
    library = bolide.load(bolide.aot_compile(program, path=tmp_path / "model.pt2"))
    for n in (3, 8):
        given = rows(n)
        torch.testing.assert_close(library(*given), given[0][1:] + given[1] + given[2][::2])


def test_what_the_program_assumes_of_sizes_is_checked(tmp_path: Path) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if x.shape[0] >= y.shape[0] else x

    shapes = ({0: Dim.DYNAMIC}, {0: Dim.AUTO})
    library = made(tmp_path, program, (torch.randn(5), torch.randn(5)), dynamic_shapes=shapes)
    same(program, library, (torch.randn(8), torch.randn(8)))
    with pytest.raises(RuntimeError, match=r"input y|does not hold"):
        library(torch.randn(3), torch.randn(6))


MISFITS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "size": (lambda: torch.randn(4, 5), "input x: its size in dimension 1 is 5, not 3"),
    "dimensions": (lambda: torch.randn(4), "input x has 1 dimensions, not 2"),
    "dtype": (lambda: torch.randn(4, 3, dtype=torch.float64), "input x has dtype torch.float64, not torch.float32"),
    "layout": (lambda: torch.randn(3, 4).t(), "input x: its stride in dimension 0 is 1, not 3"),
    "a sparse tensor": (lambda: torch.randn(4, 3).to_sparse(), "input x is no dense tensor"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_an_argument_that_does_not_fit_is_named(what: str, tmp_path: Path) -> None:
    library = made(tmp_path, lambda x, y: x.add_(y), (torch.randn(4, 3), torch.randn(4, 3)))
    other, message = MISFITS[what]
    with pytest.raises(RuntimeError, match=message):
        library(other(), torch.randn(4, 3))
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    expected = x + y
    library(x, y)  # all is well afterwards
    torch.testing.assert_close(x, expected)


def test_strides_of_what_has_no_neighbours_do_not_matter(tmp_path: Path) -> None:
    library = made(tmp_path, lambda x: x * 2, (torch.randn(1, 3),))
    x = torch.randn(1, 9)[:, :3]
    torch.testing.assert_close(library(x), x * 2)


def test_errors_that_depend_on_data_are_told(tmp_path: Path) -> None:
    library = made(tmp_path, lambda x, i: x[i].exp(), (torch.randn(5), torch.tensor([1, 2])))
    with pytest.raises(RuntimeError, match=r"out of range|out of bounds"):
        library(torch.randn(5), torch.tensor([1, 9]))
    x = torch.randn(5)
    torch.testing.assert_close(library(x, torch.tensor([4, 0])), x[[4, 0]].exp())


def test_other_structures_and_constants_are_refused(tmp_path: Path) -> None:
    library = made(tmp_path, lambda x, k: x["a"] * k, ({"a": torch.randn(3)}, 2))
    with pytest.raises(ValueError, match=r"(?s)expected: .*dict.*given: .*list"):
        library([torch.randn(3)], 2)
    with pytest.raises(ValueError, match="is 3; the library is for 2"):
        library({"a": torch.randn(3)}, 3)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, *, by: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * by}


def test_a_graph_module_keeps_its_trees(tmp_path: Path) -> None:
    x, by = torch.randn(3), torch.randn(3)
    gm = torch.export.export(Scaled(), (x,), {"by": by}).module()
    path = aot_compile(gm, (x,), {"by": by}, options={"aot_inductor.output_path": str(tmp_path / "model.so")})
    torch.testing.assert_close(bolide.load(path)(x, by=by), {"y": x * by})
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)
    arguments, result = map(torch.utils._pytree.treespec_loads, runner.get_call_spec())
    assert arguments == torch.utils._pytree.tree_structure(((x,), {"by": by}))
    assert result == torch.utils._pytree.tree_structure({"y": x})
    with pytest.raises(ValueError, match=r"(?s)expected: .*by.*given: "):
        aot_compile(gm, (x, by))


def test_specs_beside_a_graph_module_are_taken(tmp_path: Path) -> None:
    def flat(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x + y, x - y]

    gm = torch.fx.symbolic_trace(flat)
    x, y = torch.randn(3), torch.randn(3)
    gm._in_spec = torch.utils._pytree.tree_structure((({"x": x, "y": y},), {}))
    gm._out_spec = torch.utils._pytree.tree_structure((x, [y]))
    library = bolide.load(aot_compile(gm, ({"x": x, "y": y},)))
    torch.testing.assert_close(library({"x": x, "y": y}), (x + y, [x - y]))


def test_training_graphs_are_refused(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(bolide.Unsupported, match="no backward pass"):
        made(tmp_path, lambda x: x * 2, (x,))
    with torch.no_grad():
        library = made(tmp_path, lambda x: x * 2, (x,))
    result = library(x)
    assert not result.requires_grad
    torch.testing.assert_close(result, (x * 2).detach())

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x.detach().requires_grad_() * 2

    with pytest.raises(bolide.Unsupported):
        made(tmp_path, inside, (torch.randn(3),))


class Prepared(nn.Module):
    """Does something once, as models do that install hooks or settle an option."""

    def __init__(self, config: SimpleNamespace, ready: bool) -> None:
        super().__init__()
        self.config, self.ready = config, ready

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.problem is None:
            self.config.problem = "regression"
        if not self.ready:
            self.ready = True
        return x * 2


@pytest.mark.parametrize(("problem", "name"), [(None, "problem"), ("regression", "ready")])
def test_what_only_the_first_call_writes_is_named(problem: str | None, name: str, tmp_path: Path) -> None:
    module, x = Prepared(SimpleNamespace(problem=problem), problem is None), torch.randn(3)
    with pytest.raises(bolide.Unsupported, match=rf"(?s)an effect .* '{name}'.*first call does needs one call before"):
        made(tmp_path, module, (x,))
    module(x)
    same(module, made(tmp_path, module, (x,)), (x,))


def test_one_tensor_as_two_arguments_is_refused(tmp_path: Path) -> None:
    x = torch.randn(3)
    with pytest.raises(ValueError, match="input y is the same tensor as input x"):
        made(tmp_path, lambda x, y: x + y, (x, x))


def test_an_argument_that_is_written_shares_memory_with_no_other(tmp_path: Path) -> None:
    library = made(tmp_path, lambda x, y: x.add_(y), (torch.randn(3), torch.randn(3)))
    memory = torch.randn(6)
    before = memory.clone()
    with pytest.raises(RuntimeError, match="input x is written, and shares memory with input y"):
        library(memory[:3], memory[2:5])
    torch.testing.assert_close(memory, before)
    y = torch.randn(3)
    torch.testing.assert_close(library(memory[:3], y), before[:3] + y)


def test_an_operator_that_needs_python_is_named(tmp_path: Path) -> None:
    @torch.library.custom_op("aottest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    with pytest.raises(bolide.Unsupported, match="aottest"):
        made(tmp_path, lambda x: twice(x) + 1, (torch.randn(3),))


def test_many_threads_run_one_library(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    library = made(tmp_path, model, (torch.randn(8, 16),), dynamic_shapes=({0: "batch"},))

    def run(number: int) -> None:
        for _ in range(50):
            x = torch.randn(2 + number, 16)
            with torch.no_grad():
                torch.testing.assert_close(library(x), model(x), rtol=1e-5, atol=1e-5)

    together(run, 8)
