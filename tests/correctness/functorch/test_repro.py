"""Graphs on which a compiler fails become scripts: run alone they show the failure, and reduce it."""

from __future__ import annotations

import dataclasses
import math
import operator
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, fx, nn

import bolide
from bolide.cli import main as command
from bolide.debug import repro, trials
from bolide.debug.trials import Calls, Graphs, Number, TensorSlot, failure, made
from bolide.functorch import GraphInfo, aot, interpret
from bolide.inductor import compiled_graph
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten


class Block(nn.Module):
    """A layer as GPT-2 has them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        hidden = self.up(self.second(x))
        hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return x + self.down(hidden)


class Model(nn.Module):
    """A small GPT-2."""

    def __init__(self, words: int = 40, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(10, width)
        self.blocks = nn.ModuleList([Block(width, 2) for _ in range(1)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the last layer's values."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()), x


def operations(path: Path) -> list[str]:
    """What the graph of a script calls."""
    gm = repro.traced(runpy.run_path(str(path))["Repro"]())
    return [str(node.target) for node in gm.graph.nodes if node.op not in ("placeholder", "output")]


def run(path: Path, *arguments: str) -> Exception | None:
    """What a script raises when it is run."""
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        return error
    finally:
        sys.argv = before
    return None


def scripts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.py"), key=lambda path: path.stat().st_mtime_ns)


def reporting(folder: Path, after: str = "aot", level: int = 2, **more: Any) -> Any:
    return bolide.dynamo.config.patch(repro_after=after, repro_level=level, debug_dir_root=str(folder), **more)


def minified(folder: Path) -> Path:
    """The small script that the only one in a folder makes."""
    (path,) = scripts(folder)
    assert path.name == "minifier_launcher.py"
    assert run(path) is None
    return path.with_name("repro.py")


# ---- three planted faults in a small GPT-2


def test_a_wrong_lowering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    true = LOWERINGS[aten.tanh.default]
    monkeypatch.setitem(LOWERINGS, aten.tanh.default, lambda ctx, x: LOWERINGS[aten.sigmoid.default](ctx, true(ctx, x)))
    tokens = torch.randint(40, (2, 8))
    with reporting(tmp_path, level=4), torch.no_grad(), pytest.raises(bolide.CompileError, match="accuracy"):
        bolide.compile(Model())(tokens)
    small = minified(tmp_path)
    assert "shows the failure" in capsys.readouterr().out
    assert "aten.tanh.default" in operations(small) and len(operations(small)) <= 3
    assert isinstance(error := run(small), AssertionError) and "result 0 differs" in str(error)
    monkeypatch.undo()
    assert run(small) is None, "the failure was that of the lowering"


def test_a_crash_in_code_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels = compiled_graph.compile_kernels

    def crashing(kernels: Any, *args: Any, **kwargs: Any) -> Any:
        if any("tanh(" in kernel_text(kernel) for kernel in kernels):
            raise KeyError("no such instruction")
        return compile_kernels(kernels, *args, **kwargs)

    monkeypatch.setattr(compiled_graph, "compile_kernels", crashing)
    with reporting(tmp_path), pytest.raises(bolide.CompileError, match="no such instruction"):
        bolide.compile(Model())(torch.randint(40, (2, 8)))
    small = minified(tmp_path)
    assert "aten.tanh.default" in operations(small) and len(operations(small)) <= 3
    assert isinstance(run(small), KeyError)


def test_a_wrong_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = LOWERINGS[aten._softmax_backward_data.default]
    monkeypatch.setitem(
        LOWERINGS,
        aten._softmax_backward_data.default,
        lambda ctx, gradient, output, *rest: softmax(ctx, output, gradient, *rest),
    )
    with reporting(tmp_path, level=4):
        loss, x = bolide.compile(Model())(torch.randint(40, (2, 8)))
        with pytest.raises(bolide.CompileError, match="accuracy"):
            (loss + x.pow(3).sum()).backward()
    (path,) = scripts(tmp_path)
    assert "kind='backward'" in path.read_text()
    small = minified(tmp_path)
    assert "aten._softmax_backward_data.default" in operations(small) and len(operations(small)) <= 3
    assert isinstance(run(small), AssertionError)


def mixed_up(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A partition that mixes up two saved values of one shape."""

    def partitioned(joint: Any, *more: Any) -> Any:
        parts = plain(joint, *more)
        at, places = list(parts.saved_at), {}
        for place, node in enumerate(parts.saved):
            key = str(node.meta["val"])
            if node.op != "placeholder" and (other := places.setdefault(key, place)) != place:
                at[place], at[other] = at[other], at[place]
                break
        return dataclasses.replace(parts, saved_at=tuple(at))

    return partitioned


def test_a_wrong_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of torch's functions is looked at for backends that take functional graphs, too: no functional graph
    differs from what ATen makes of it."""
    monkeypatch.setattr(aot, "partitioned", mixed_up(aot.partitioned))
    with reporting(tmp_path, "dynamo", level=4), pytest.raises(bolide.CompileError, match="the backend inductor"):
        bolide.compile(Model())(torch.randint(40, (2, 8)))
    small = minified(tmp_path)
    assert len(operations(small)) <= 3 and "Calls('inductor'" in small.read_text()
    assert isinstance(run(small), AssertionError)
    monkeypatch.undo()
    assert run(small) is None, "the failure was that of the partition"


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "aot_eager_default_partitioner"])
def test_backends_of_functional_graphs_are_watched_after_dynamo(tmp_path: Path, backend: str) -> None:
    model, tokens = Model(), torch.randint(40, (2, 8))
    expected = model(tokens)[0]
    with reporting(tmp_path, "dynamo", 4):
        loss, _ = bolide.compile(model, backend=backend, dynamic=True)(tokens)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        torch.testing.assert_close(bolide.compile(model, backend=backend)(tokens[:, :5])[0], model(tokens[:, :5])[0])
    assert not scripts(tmp_path) and model.words.weight.grad is not None


# ---- levels and options


def failing(gm: fx.GraphModule, info: GraphInfo) -> Any:
    """A graph compiler that has no code for sines."""
    if gm.graph.find_nodes(op="call_function", target=aten.sin.default):
        raise NotImplementedError("no sines today")
    return interpret(gm, info)


def failing_at_run_time(gm: fx.GraphModule, info: GraphInfo) -> Any:
    run = interpret(gm, info)
    sines = bool(gm.graph.find_nodes(op="call_function", target=aten.sin.default))

    def answer(inputs: list[Any]) -> Any:
        return run(inputs) if not sines else 1 / 0

    return answer


def program(x: Tensor, y: Tensor) -> Tensor:
    return ((x + y).exp() * (x - 1).sin()).sum(1)


def compiled(compiler: Callable[..., Any], f: Callable[..., Any] = program, **options: Any) -> Any:
    return bolide.compile(f, backend=bolide.compiling.TraceBackend("planted", compiler, "default"), **options)


def test_levels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inputs = torch.randn(3, 4), torch.randn(3, 4)
    for level, name in ((1, "repro.py"), (2, "minifier_launcher.py"), (3, "minifier_launcher.py")):
        folder = tmp_path / str(level)
        with reporting(folder, level=level), pytest.raises(bolide.CompileError, match="no sines today"):
            compiled(failing)(*inputs)
        (path,) = scripts(folder)
        assert path.name == name and str(path) in caplog.text
        assert "aten.exp.default" in path.read_text() and "aten.sum" in path.read_text()
        assert isinstance(run(path, "run"), NotImplementedError)
        assert len(operations(path)) == 6
    with reporting(tmp_path / "3", level=3):
        compiled(interpret)(*inputs)
    assert len(scripts(tmp_path / "3")) == 2, "level 3 writes of every graph"
    with reporting(tmp_path / "4", level=4), pytest.raises(bolide.CompileError):
        compiled(failing)(*inputs)
    assert not scripts(tmp_path / "4"), "an error is no wrong result"
    with bolide.dynamo.config.patch(debug_dir_root=str(tmp_path / "5")), pytest.raises(bolide.CompileError):
        compiled(failing)(*inputs)
    assert not (tmp_path / "5").exists()


def test_failures_when_a_graph_runs(tmp_path: Path) -> None:
    with reporting(tmp_path), pytest.raises(ZeroDivisionError):
        compiled(failing_at_run_time)(torch.randn(3, 4), torch.randn(3, 4))
    small = minified(tmp_path)
    assert operations(small) == ["aten.sin.default"] and isinstance(run(small), ZeroDivisionError)
    assert small.read_text().startswith('"""ZeroDivisionError: division by zero"""')


def test_errors_of_the_program_are_no_failures(tmp_path: Path) -> None:
    with reporting(tmp_path), pytest.raises(IndexError):
        compiled(interpret, lambda x, at: x[at] + 1)(torch.randn(3), torch.tensor([7]))
    assert not scripts(tmp_path)


def failing_backward(gm: fx.GraphModule, info: GraphInfo) -> Any:
    if info.kind == "backward":
        raise NotImplementedError("no backward")
    return interpret(gm, info)


@pytest.mark.parametrize(("forward_only", "count"), [(True, 1), (False, 2)])
def test_forward_only(tmp_path: Path, forward_only: bool, count: int) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with reporting(tmp_path, level=3, repro_forward_only=forward_only):
        loss = compiled(failing_backward, lambda x: x.sin().sum())(x)
        with pytest.raises(bolide.CompileError):
            loss.backward()
    kinds = ["backward" if "kind='backward'" in path.read_text() else "forward" for path in scripts(tmp_path)]
    assert kinds == ["forward", "backward"][:count]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reporting(tmp_path, level=1), pytest.raises(bolide.CompileError):
        compiled(failing)(torch.randn(3, 4), torch.randn(3, 4))
    (path,) = scripts(tmp_path)
    launcher = path.rename(path.with_name("script.py"))
    done = CliRunner().invoke(command, ["minify", str(launcher)])
    assert done.exit_code == 0, done.output
    assert operations(path) == ["aten.sin.default"] and "aten.sin.default" in done.output
    monkeypatch.setattr(
        repro.subprocess, "run", lambda words, **more: type("Done", (), {"returncode": alone(words[1])})
    )
    assert CliRunner().invoke(command, ["minify", str(launcher), "--isolate"]).exit_code == 0
    assert operations(path) == ["aten.sin.default"]


def alone(path: str) -> int:
    """The exit code of a script, which is not worth a process here."""
    return 1 if run(Path(path)) is not None else 0


def other_integers(gm: fx.GraphModule, info: GraphInfo) -> Any:
    """A graph compiler whose places of maxima are wrong."""
    run = interpret(gm, info)
    return lambda inputs: [value if value.is_floating_point() else value + 1 for value in run(inputs)]


def slightly_less(gm: fx.GraphModule, info: GraphInfo) -> Any:
    return lambda inputs: [value * 0.99 for value in interpret(gm, info)(inputs)]


@pytest.mark.parametrize(
    ("compiler", "f", "options"),
    [
        (other_integers, lambda x: (x.exp(), x.argmax(0)), {"repro_ignore_non_fp": True}),
        (slightly_less, lambda x: x.exp(), {"repro_tolerance": 0.1}),
    ],
)
def test_options_that_tell_what_is_a_failure(tmp_path: Path, compiler: Any, f: Any, options: dict[str, Any]) -> None:
    """What does not fail here does not fail when the script is run."""
    x = torch.randn(3, 4)
    with reporting(tmp_path / "none", level=4, **options):
        compiled(compiler, f)(x)
    assert not (tmp_path / "none").exists()
    with reporting(tmp_path / "found", level=4), pytest.raises(bolide.CompileError, match="accuracy"):
        compiled(compiler, f)(x)
    (path,) = scripts(tmp_path / "found")
    assert isinstance(run(path, "run"), AssertionError)
    with bolide.dynamo.config.patch(**options):
        assert run(path, "run") is None


def test_scripts_have_the_options_that_tell_what_is_a_failure(tmp_path: Path) -> None:
    strictly = reporting(tmp_path, level=4, repro_tolerance=1e-5, same_two_models_use_fp64=False)
    with strictly, pytest.raises(bolide.CompileError, match="accuracy"):
        compiled(hardly_less, lambda x: x.exp().sin())(torch.randn(3, 4))
    small = minified(tmp_path)
    assert "'repro_tolerance': 1e-05" in small.read_text() and isinstance(run(small), AssertionError)


def hardly_less(gm: fx.GraphModule, info: GraphInfo) -> Any:
    return lambda inputs: [value * 0.9999 for value in interpret(gm, info)(inputs)]


# ---- what scripts hold


def test_symbolic_sizes_numbers_constants_and_options(tmp_path: Path) -> None:
    table = torch.randn(40, 4)

    def f(x: Tensor, at: Tensor, n: int) -> Tensor:
        return (x.sin() + table[at].sum(0)) * n + torch.tensor([1.0, 2.0, 3.0, 4.0]) + x.shape[0] * n

    inputs = torch.randn(6, 4), torch.tensor([3, 39]), 5
    with reporting(tmp_path), bolide.inductor.config.patch(fusion=False), pytest.raises(bolide.CompileError):
        compiled(failing, f, dynamic=True)(*inputs)
    (path,) = scripts(tmp_path)
    text = path.read_text()
    assert "'bolide.inductor.config': {'fusion': False}}" in text and "'s0'" in text and "number(6, 's0')" in text
    assert isinstance(run(path, "run"), NotImplementedError)
    assert operations(minified(tmp_path)) == ["aten.sin.default"]


def test_inputs_are_made_as_described() -> None:
    slots = [
        Number(3, "s0"),
        TensorSlot((2, "s0"), ("s0", 1), torch.float64),
        TensorSlot((4, "2*s0"), (1, 4), torch.int64, low=5, high=7),
        TensorSlot((3, 2), (0, 1), torch.bfloat16, requires_grad=True),
        TensorSlot((0, 4), (4, 1), torch.complex64),
        TensorSlot((50,), (1,), torch.bool, high=1),
        Number(2.5),
    ]
    for seed in (0, 1):
        size, a, b, c, d, e, f = made(slots, seed)
        again = made(slots, seed)
        assert (size, f) == (3, 2.5) and all(map(torch.equal, (a, b, c, d, e), again[1:6]))
        assert a.shape == (2, 3) and a.dtype is torch.float64 and a.std() > 0
        assert b.shape == (4, 6) and b.stride() == (1, 4) and {*b.unique().tolist()} <= {5, 6, 7}
        assert c.stride() == (0, 1) and c.requires_grad and c.is_leaf and d.shape == (0, 4) and 0 < e.sum() < 50
        symbolic = [s for s in slots if isinstance(s, TensorSlot)]
        for slot, value in zip(symbolic, (a, b, c, d, e)):
            assert trials.slot_of(value, slot, {"s0": 3}).shape == slot.shape
    assert not torch.equal(made(slots, 0)[1], made(slots, 1)[1])


def test_data_is_kept_where_random_numbers_do_not_fail(tmp_path: Path) -> None:
    with reporting(tmp_path, level=4), pytest.raises(bolide.CompileError, match="accuracy"):
        compiled(wrong_for_large_numbers, lambda x, y: (x + y).sin() * 2)(torch.full((3, 4), 1e3), torch.randn(3, 4))
    small = minified(tmp_path)
    assert len(operations(small)) <= 1 and "data='inputs.pt'" in small.read_text()
    assert isinstance(run(small), AssertionError)


def wrong_for_large_numbers(gm: fx.GraphModule, info: GraphInfo) -> Any:
    run = interpret(gm, info)

    def answer(inputs: list[Any]) -> Any:
        large = any(isinstance(value, Tensor) and bool((value.abs() > 500).any()) for value in inputs)
        return [value + 1 if large else value for value in run(inputs)]

    return answer


def test_graphs_that_are_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reporting(tmp_path), pytest.raises(bolide.CompileError):
        compiled(lambda gm, info: 1 / 0)(torch.randn(3, 4), torch.randn(3, 4))
    assert "no script is written" in caplog.text and "found under no name" in caplog.text
    gm = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(repro.Unwritable, match="calls the module"):
        repro.Repro("a module", gm, [TensorSlot((2,), (1,), torch.float32)], Calls("eager")).script("run")


def test_sizes_that_are_data_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(8)
    with reporting(tmp_path, level=3):
        torch.testing.assert_close(bolide.compile(lambda x: x[x > 0].exp())(x), x[x > 0].exp())
    assert "a size, or a number, is data" in caplog.text and not scripts(tmp_path)


# ---- graphs of torch's functions


def test_sizes_that_are_data_are_in_graphs_of_torchs_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = LOWERINGS[aten.tanh.default]
    monkeypatch.setitem(LOWERINGS, aten.tanh.default, lambda ctx, x: LOWERINGS[aten.sigmoid.default](ctx, true(ctx, x)))
    x = torch.randn(12)
    x[0] = 1
    with reporting(tmp_path, "dynamo", level=4), pytest.raises(bolide.CompileError, match="backend inductor"):
        bolide.compile(lambda x: x[x > 0].exp().tanh() + 1)(x)
    small = minified(tmp_path)
    assert len(operations(small)) <= 3 and "tanh" in str(operations(small))
    assert isinstance(run(small), AssertionError)


def test_dropout_is_no_failure_of_a_backend(tmp_path: Path) -> None:
    """Its random numbers are eager's then."""
    x = torch.randn(4, 5, requires_grad=True)
    with reporting(tmp_path, "dynamo", level=4):
        bolide.compile(lambda x: F.dropout(x.exp(), 0.5).sum() + torch.rand(3).sum())(x).backward()
    assert not scripts(tmp_path) and x.grad is not None


def test_writes_in_graphs_are_the_same_in_scripts() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_function(operator.setitem, (x, 0, y))
    for function in (operator.iadd, operator.imul, operator.itruediv):
        x = graph.call_function(function, (x, y))
    full = graph.call_function(torch.full, ([2, 3], 1.0), {"device": torch.device("cpu"), "dtype": torch.float64})
    graph.call_method("add_", (x, full))
    graph.output((x, graph.call_function(torch.clone, (y,), {"memory_format": torch.preserve_format})))
    gm = fx.GraphModule({}, graph)
    slots = [TensorSlot((2, 3), (3, 1), torch.float64), TensorSlot((3,), (1,), torch.float64)]
    namespace: dict[str, Any] = {"__name__": "script"}
    exec(repro.Repro("writes", gm, slots, Calls("eager")).script("run"), namespace)
    again = repro.traced(namespace["Repro"]())
    assert [node.target for node in again.graph.nodes] == [node.target for node in graph.nodes]
    ours, theirs = made(slots, 3), made(slots, 3)
    torch.testing.assert_close(again(*ours), gm(*theirs))
    torch.testing.assert_close(ours, theirs)


def called(gm: fx.GraphModule) -> set[str]:
    """The names of the functions and methods that a graph calls."""
    calls = [node.target for node in gm.graph.nodes if node.op in ("call_function", "call_method")]
    return {target if isinstance(target, str) else target.__name__ for target in calls}


def crashing(gm: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """A backend that knows no softmax."""
    if "softmax" in called(gm):
        raise NotImplementedError("no softmax")
    return gm.forward


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def tripled(x: Tensor) -> Tensor:
    return Tripled.apply(x)  # type: ignore[no-any-return]


def wrong_gradients(gm: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """A backend in which the derivative of tanh is wrong."""
    for node in gm.graph.nodes:
        if node.op.startswith("call_") and node.target in ("tanh", torch.tanh):
            with gm.graph.inserting_after(node):
                other = gm.graph.call_function(tripled, (node,))
            node.replace_all_uses_with(other, lambda user, other=other: user is not other)
    gm.recompile()
    return gm.forward


def late(gm: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """A backend whose functions fail when they run."""

    def run(*inputs: Any) -> Any:
        if "tanh" in called(gm):
            raise ZeroDivisionError("late")
        return gm(*inputs)

    return run


@pytest.mark.parametrize(
    ("backend", "level", "kind", "name"),
    [
        (crashing, 2, NotImplementedError, "softmax"),
        (wrong_gradients, 4, AssertionError, "tanh"),
        (late, 2, ZeroDivisionError, "tanh"),
    ],
)
def test_backends(tmp_path: Path, backend: Any, level: int, kind: type[Exception], name: str) -> None:
    model, tokens = Model(), torch.randint(40, (2, 8))
    with reporting(tmp_path, "dynamo", level), pytest.raises(bolide.CompileError):
        bolide.compile(model, backend=backend)(tokens)
    small = minified(tmp_path)
    assert len(operations(small)) <= 3 and any(name in word for word in operations(small))
    assert type(run(small)) is kind


def test_errors_of_the_program_are_no_failures_of_a_backend(tmp_path: Path) -> None:
    with reporting(tmp_path, "dynamo"), pytest.raises(IndexError):
        bolide.compile(lambda x, at: x[at] + 1, backend="eager")(torch.randn(3), torch.tensor([7]))
    assert not scripts(tmp_path)


def test_backends_that_are_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, tokens = Model(), torch.randint(40, (2, 8))
    for level in (1, 2, 4):
        with reporting(tmp_path, "dynamo", level):
            loss, _ = bolide.compile(model, backend="eager")(tokens)
            loss.backward()
            assert model.words.weight.grad is not None
    with reporting(tmp_path, "dynamo", 4, repro_forward_only=True):
        bolide.compile(model, backend=wrong_gradients)(tokens)
    with reporting(tmp_path, "aot", 4):
        bolide.compile(model)(tokens)[0].backward()
        layer = nn.LSTM(4, 8)  # whose workspace is not determined
        bolide.compile(lambda x: layer(x)[0].sum())(torch.randn(5, 2, 4)).backward()
    assert not scripts(tmp_path) and "script" not in caplog.text


# ---- what counts as a failure


def off_by(error: float) -> Callable[..., Any]:
    return lambda gm, info: lambda inputs: [value * (1 + error) for value in interpret(gm, info)(inputs)]


slightly_off, off = off_by(1e-4), off_by(0.01)


def test_tolerances() -> None:
    gm = repro.traced(Cancelling())
    x = torch.full((4,), 1000.0) + torch.rand(4)
    fails = lambda name: failure(Graphs(f"{__name__}:{name}", accuracy=True), gm, [x])  # noqa: E731
    plain = fx.symbolic_trace(lambda x: (torch.ops.aten.add.Tensor(x, 1),))
    names = {name: failure(Graphs(f"{__name__}:{name}", accuracy=True), plain, [x]) for name in ("slightly_off", "off")}
    assert names["slightly_off"] is None and isinstance(names["off"], AssertionError)
    with bolide.dynamo.config.patch(repro_tolerance=1e-6):
        assert failure(Graphs(f"{__name__}:slightly_off", accuracy=True), plain, [x]) is not None
    assert fails("noisy") is None, "eager's rounding is as large"
    with bolide.dynamo.config.patch(same_two_models_use_fp64=False):
        assert fails("noisy") is not None
    assert failure(Graphs("no_such_module:name"), plain, [x]) is not None
    assert (
        failure(Graphs(f"{__name__}:off"), fx.symbolic_trace(lambda x: (torch.ops.aten.mm.default(x, x),)), [x]) is None
    )


class Cancelling(nn.Module):
    def forward(self, x: Tensor) -> Any:
        square = torch.ops.aten.mul.Tensor(x, x)
        more = torch.ops.aten.add.Tensor(square, 0.03)
        return (torch.ops.aten.sub.Tensor(more, square),)


def noisy(gm: fx.GraphModule, info: GraphInfo) -> Any:
    """Rounds otherwise than eager, in which nothing is left of the sum."""
    return lambda inputs: [interpret(gm, info)(inputs)[0] + 0.03 * torch.ones(4)]
