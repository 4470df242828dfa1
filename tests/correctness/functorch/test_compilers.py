"""Compilers of graphs that users give to `aot_function`: what each makes of a graph, and what it shows, checks or
writes on the way.
"""

from __future__ import annotations

import operator
import os
import pickle
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import bolide
from bolide.compiling import TraceBackend
from bolide.functorch import compilers
from bolide.functorch.graph_compilers.drawing import draw_graph
from bolide.functorch.graph_compilers.saved import save_graph, save_inputs
from bolide.support import events
from bolide.support.errors import BolideError, BolideWarning

aten = torch.ops.aten
same = torch.testing.assert_close


def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.nn.functional.gelu(x @ w)
    return (y.to(torch.float64) - torch.full_like(y, 2.0)).cos(), y.sum(0).clone().add_(1)


def traced(f: Callable[..., Any], *args: Any, mode: str = "real") -> fx.GraphModule:
    return make_fx(f, tracing_mode=mode)(*args)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 3), torch.randn(3, 4)


# ---- TorchScript


@pytest.mark.parametrize("name", ["ts_compile", "simple_ts_compile", "nop", "print_compile", "debug_nop"])
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_compiled_graphs_are_boxed_and_do_what_the_graph_does(name: str, mode: str) -> None:
    run = getattr(compilers, name)(traced(program, *inputs(), mode=mode), list(inputs()))
    assert run._boxed_call
    for _ in range(3):
        args = inputs()
        same(run(list(args)), program(*args), check_stride=True)
    assert getattr(bolide.functorch, name) is getattr(compilers, name)


ODD = {
    "no inputs": (lambda: (torch.ones(3), torch.full((2,), float("inf"))), ()),
    "empty": (lambda x: x.sin().sum(0), (torch.empty(0, 4),)),
    "none": (lambda x: (x.sin(), None), (torch.ones(2),)),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0]), (torch.ones(2),)),
    "result of two outputs": (lambda x: x.max(0)[1], (torch.arange(6.0).view(3, 2),)),
    "input given back": (lambda x: (x, x.view(-1), x), (torch.ones(2, 2),)),
    "cast": (lambda x: x.to(torch.int32) + x.to("cpu", torch.float64, copy=True), (torch.arange(3.0),)),
    "floats": (
        lambda x: (aten.uniform.default(x, 2, 2), aten.upsample_nearest2d.vec(x, None, [2, 2])),
        (torch.ones(1, 1, 2, 2),),
    ),
    "complex": (lambda x: (torch.view_as_complex(x) * 2).conj(), (torch.ones(3, 2),)),
}


@pytest.mark.parametrize("name", ["ts_compile", "simple_ts_compile", "debug_nop"])
@pytest.mark.parametrize("case", ODD)
def test_odd_graphs(name: str, case: str) -> None:
    f, args = ODD[case]
    run = getattr(compilers, name)(traced(f, *args), list(args))
    for _ in range(2):
        actual, expected = run(list(args)), f(*args)
        assert [x is None for x in actual] == [x is None for x in expected]
        same([x for x in actual if x is not None], [x for x in expected if x is not None])


def test_numbers_among_the_inputs_are_numbers_of_torchscript() -> None:
    graph = fx.Graph()
    x, size, factor = (graph.placeholder(name) for name in ("x", "size", "factor"))
    double = graph.call_function(operator.mul, (size, 2))
    view = graph.call_function(aten.expand.default, (x, [double, 3]))
    graph.output([graph.call_function(aten.mul.Tensor, (view, factor)), double])
    module = fx.GraphModule({}, graph)
    for compile in (compilers.ts_compile, compilers.simple_ts_compile):
        run = compile(module, [torch.ones(1, 3), 4, 0.5])
        result, number = run([torch.ones(1, 3), 5, 0.25])
        assert number == 10 and torch.equal(result, torch.full((10, 3), 0.25))


@pytest.mark.parametrize("name", ["ts_compile", "simple_ts_compile", "debug_nop"])
def test_graphs_with_symbolic_sizes_are_compiled_once(name: str) -> None:
    """Also where the backward needs nothing but sizes."""
    compiled = []

    def compiler(graph: fx.GraphModule, inps: list[Any]) -> Callable[..., Any]:
        compiled.append(graph)
        return getattr(compilers, name)(graph, inps)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
        z = torch.cat([x, y])[:, : x.shape[1] // 2 * 2].reshape(-1, 2) * x.shape[0]
        return z.cumsum(0), x.new_zeros(x.shape[0] + 1), x.shape[1] * 2

    fast = bolide.functorch.aot_function(f, compiler, dynamic=True)
    for shape in ((3, 5), (5, 7), (2, 9)):
        x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        same(fast(x, y), f(x, y))
        weights = torch.randn(f(x, y)[0].shape, dtype=torch.float64)
        actual, expected = (torch.autograd.grad(g(x, y)[0], (x, y), weights) for g in (fast, f))
        same(actual, expected)
    assert len(compiled) == 2


def test_ts_compile_brings_the_graph_into_torchscripts_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts are `to`, devices are given by type, operations have no overloads; mutation is gone from the script."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(torch.float64), torch.zeros(3, device=torch.device("cpu")).add_(x)

    seen: list[torch.jit.ScriptModule] = []
    freeze = torch.jit.freeze
    monkeypatch.setattr(torch.jit, "freeze", lambda module: seen.append(module) or freeze(module))
    module = traced(f, torch.ones(3))
    run = compilers.ts_compile(module, [torch.ones(3)])
    targets = {node.target for node in module.graph.nodes}
    assert aten.to in targets and not {t for t in targets if isinstance(t, torch._ops.OpOverload)}
    assert not [n for n in module.graph.nodes for value in n.kwargs.values() if isinstance(value, torch.device)]
    assert "device='cpu'" in module.code.replace(" ", "").replace('"', "'")
    assert "add_(" not in str(seen[0].graph)
    same(run([torch.arange(3.0)]), f(torch.arange(3.0)))


@pytest.mark.parametrize("autocast", [True, False])
def test_ts_compile_keeps_casts_of_torchscript_off_meanwhile(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch._C._jit_set_autocast_mode(autocast)
    try:
        states = []
        script = torch.jit.script

        def spying(module: fx.GraphModule) -> Any:
            states.append(torch._C._jit_set_autocast_mode(False))
            if len(states) == 2:
                raise RuntimeError("stop")
            return script(module)

        monkeypatch.setattr(torch.jit, "script", spying)
        compilers.ts_compile(traced(torch.sin, torch.ones(2)), [torch.ones(2)])
        assert torch._C._jit_set_autocast_mode(autocast) is autocast
        with pytest.raises(RuntimeError, match="stop"):
            compilers.ts_compile(traced(torch.sin, torch.ones(2)), [torch.ones(2)])
        assert states == [False, False]
        assert torch._C._jit_set_autocast_mode(autocast) is autocast, "also after an error"
    finally:
        torch._C._jit_set_autocast_mode(before)


def test_ts_compile_runs_the_graph_once_unless_an_input_has_no_data() -> None:
    library = torch.library.Library("compilers_test", "FRAGMENT")
    calls = []
    library.define("seen(Tensor x) -> Tensor")
    library.impl("seen", lambda x: calls.append(x) or x + 1, "CompositeExplicitAutograd")
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.compilers_test.seen.default, (graph.placeholder("x"),)))
    module = fx.GraphModule({}, graph)
    x = torch.randn(3)
    compilers.ts_compile(module, [x])
    assert len(calls) == 1
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    run = compilers.ts_compile(module, [fake])
    assert len(calls) == 1
    assert torch.equal(run([x]), x + 1)
    library._destroy()


# ---- what shows a graph


def test_print_compile_prints_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    module = traced(program, *inputs())
    run = compilers.print_compile(module, list(inputs()))
    assert capsys.readouterr().out.strip() == module.code.strip()
    assert "aten.gelu" in module.code and run._boxed_call


def test_draw_graph_compile_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, args = traced(program, *inputs()), inputs()
    for suffix in (".svg", ".dot", ""):
        path = tmp_path / f"graph{suffix}"
        run = compilers.draw_graph_compile(str(path))(module, list(args))
        assert module.code in capsys.readouterr().out
        same(run(list(args)), program(*args))
    names = {node.name for node in module.graph.nodes}
    picture = ElementTree.parse(tmp_path / "graph.svg")
    space = "{http://www.w3.org/2000/svg}"
    assert names <= {text.text for text in picture.iter(f"{space}text")}
    assert len(list(picture.iter(f"{space}rect"))) == len(names)
    edges = sum(len(node.all_input_nodes) for node in module.graph.nodes)
    dot = (tmp_path / "graph.dot").read_text()
    assert dot.startswith("digraph") and dot.count(" -> ") == edges
    assert all(f'"{name}"' in dot for name in names)


def test_pictures_that_need_graphviz_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = traced(program, *inputs())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BolideError, match=r"'png' needs Graphviz.*'dot' is not installed"):
        compilers.draw_graph_compile(str(tmp_path / "graph.png"))(module, [])
    program_file = tmp_path / "dot"
    program_file.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1], sys.stdin.read().splitlines()[0])\n")
    program_file.chmod(0o755)
    draw_graph(module, tmp_path / "graph.png", "a title")
    assert (tmp_path / "graph.png").read_text().strip() == '-Tpng digraph "a title" {'
    program_file.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such format')\n")
    with pytest.raises(BolideError, match="cannot draw the graph: no such format"):
        draw_graph(module, tmp_path / "graph.xyz")


def test_pictures_show_what_is_known_of_values(tmp_path: Path) -> None:
    module = traced(lambda x: x.sum(0) * float("1.5"), torch.ones(2, 7))
    draw_graph(module, tmp_path / "plain.svg")
    draw_graph(module, tmp_path / "known.svg", clear_meta=False)
    assert "float32[7]" not in (tmp_path / "plain.svg").read_text()
    assert "float32[7]" in (tmp_path / "known.svg").read_text()
    draw_graph(fx.GraphModule({}, fx.Graph()), tmp_path / "empty.svg")
    ElementTree.parse(tmp_path / "empty.svg")


# ---- what checks a graph


def wrong(change: Callable[[fx.Node], Any], mode: str = "symbolic") -> Callable[[list[Any]], Any]:
    """A graph that says of its last operation what `change` makes of the truth."""
    module = traced(lambda x: (x.t() + 1).relu(), torch.randn(3, 4), mode=mode)
    last = module.graph.find_nodes(op="call_function", target=aten.relu.default)[0]
    last.meta["val"] = change(last)
    return compilers.debug_nop(module, [])


def test_debug_nop_checks_sizes_and_strides_of_this_run() -> None:
    x = torch.randn(5, 6)
    assert wrong(lambda node: node.meta["val"])([x]).shape == (6, 5)
    message = r"relu: output 0 where \{s\d+: 5, s\d+: 6\}: \(s\d+, s\d+\) aka \(5, 6\) != \(6, 5\)"
    with pytest.raises(AssertionError, match=message):
        wrong(lambda node: node.meta["val"].t())([x])
    with pytest.raises(AssertionError, match=r"torch.float64 != torch.float32"):
        wrong(lambda node: node.meta["val"].double())([x])
    with pytest.raises(AssertionError, match=r"strides \(s\d+, 1\) aka \(5, 1\) != \(1, 6\)"):
        wrong(lambda node: node.meta["val"].contiguous())([x])
    with pytest.raises(AssertionError, match="relu: 2 != 1 outputs"):
        wrong(lambda node: (node.meta["val"], node.meta["val"]))([x])


@pytest.mark.parametrize("shape", [(1, 6), (0, 6), (6, 1)])
def test_strides_that_mean_nothing_may_differ(shape: tuple[int, int]) -> None:
    module = traced(lambda x: (x.t() + 1).relu(), torch.ones(shape))
    for node in module.graph.nodes:
        if isinstance(node.meta.get("val"), Tensor):
            value = node.meta["val"]
            strides = [
                777 if value.numel() == 0 or size == 1 else stride for size, stride in zip(value.shape, value.stride())
            ]
            node.meta["val"] = torch.empty_strided(value.shape, strides)
    compilers.debug_nop(module, [])([torch.ones(shape)])


def test_debug_nop_knows_the_symbols_of_traces() -> None:
    """Also sizes that are data, which get their value when it is computed."""
    graphs = []

    def compiler(graph: fx.GraphModule, info: object) -> Any:
        graphs.append(graph)
        return compilers.debug_nop(graph, [])

    def f(x: Tensor) -> Tensor:
        return (torch.cat([x, x]).t().reshape(-1, 2) * x.shape[0]).cumsum(0)

    fast = bolide.compile(f, backend=TraceBackend("checked", compiler, "default"), dynamic=True, fullgraph=True)
    for shape in ((3, 4), (5, 2), (7, 6)):
        x = torch.randn(shape, requires_grad=True)
        same(fast(x), f(x))
        same(torch.autograd.grad(fast(x).square().sum(), x), torch.autograd.grad(f(x).square().sum(), x))
    assert any(isinstance(node.meta["val"], torch.SymInt) for node in graphs[0].graph.nodes if "val" in node.meta)
    graph = graphs[0]
    node = graph.graph.find_nodes(op="call_function", target=aten.cumsum.default)[0]
    node.meta["val"] = node.meta["val"]._replace(shape=node.meta["val"].shape[::-1])
    with pytest.raises(
        AssertionError, match=r"cumsum: output 0 where \{s0: 5.*\}: \(2, .*\) aka \(2, 10\) != \(10, 2\)"
    ):
        interpreter = compilers.DebugInterpreter(graph)
        args = {"x": torch.randn(5, 2)}
        sizes = iter((5, 2))
        interpreter.run(*[args["x"] if hasattr(n.meta["val"], "shape") else next(sizes) for n in slots(graph)])


def slots(graph: fx.GraphModule) -> list[fx.Node]:
    return graph.graph.find_nodes(op="placeholder")


# ---- memory_efficient_fusion


def test_default_decompositions_are_those_of_the_page() -> None:
    names = {str(overload.overloadpacket).removeprefix("aten.") for overload in compilers.default_decompositions}
    backwards = [
        "gelu",
        "leaky_relu",
        "sigmoid",
        "threshold",
        "hardtanh",
        "hardsigmoid",
        "hardswish",
        "tanh",
        "silu",
        "elu",
        "cudnn_batch_norm",
    ]
    others = (
        "detach cudnn_batch_norm masked_fill elu leaky_relu hardtanh hardswish hardsigmoid conj_physical is_same_size"
    )
    assert names == {f"{name}_backward" for name in backwards} | set(others.split())
    x, grad = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    for overload, args in (
        (aten.gelu_backward.default, (grad, x)),
        (aten.tanh_backward.default, (grad, x.tanh())),
        (aten.hardswish.default, (x,)),
        (aten.masked_fill.Scalar, (x, x > 0, 2.0)),
    ):
        same(compilers.default_decompositions[overload](*args), overload(*args))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.hardswish(self.norm(self.linear(x)))
        return nn.functional.gelu(y) * torch.sigmoid(y) + torch.tanh(y)


def saved_bytes(f: Callable[..., Tensor], *args: Tensor) -> int:
    """Bytes of what is kept for the backward, besides the arguments."""
    kept: dict[int, int] = {}
    owned = {t.untyped_storage().data_ptr() for t in args}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in owned:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = f(*args)
    del result
    return sum(kept.values())


def test_memory_efficient_fusion_of_a_function_has_eagers_gradients_and_saves_less() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = nn.functional.silu(x) * torch.tanh(y)
        return nn.functional.gelu((z + 1).sigmoid() * z)

    fused = compilers.memory_efficient_fusion(f)
    for shape in ((8, 16), (8, 16)):
        x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        same(fused(x, y), f(x, y))
        grad = torch.randn(shape, dtype=torch.float64)
        same(torch.autograd.grad(fused(x, y), (x, y), grad), torch.autograd.grad(f(x, y), (x, y), grad))
    assert saved_bytes(fused, x, y) < saved_bytes(f, x, y) / 2


def test_memory_efficient_fusion_of_a_module_trains_it() -> None:
    plain = Block().double()
    fused = compilers.memory_efficient_fusion(plain)
    assert isinstance(fused, nn.Module)
    x = torch.randn(4, 6, dtype=torch.float64)
    results = []
    for module in (plain, fused):
        plain.zero_grad()
        y = module(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in plain.parameters())])
    same(results[0], results[1])


def test_memory_efficient_fusion_takes_other_compilers() -> None:
    kinds = []

    def compiler(kind: str) -> Callable[..., Any]:
        return lambda graph, inps: kinds.append(kind) or compilers.nop(graph, inps)

    fused = compilers.memory_efficient_fusion(
        torch.tanh, fw_compiler=compiler("forward"), bw_compiler=compiler("backward")
    )
    x = torch.randn(3, requires_grad=True)
    fused(x).sum().backward()
    same(x.grad, 1 - x.tanh().square())
    assert kinds == ["forward", "backward"]


CHAINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dropout and residual": lambda x, b: x + nn.functional.dropout(x + b, 0.1),
    "GELU and dropout": lambda x, b: nn.functional.dropout(nn.functional.gelu(x + b), 0.1),
    "two dropouts": lambda x, b: nn.functional.dropout(torch.tanh(nn.functional.dropout(x.sin(), 0.2) + b), 0.5),
    "trials": lambda x, b: (
        (x.exp() * torch.bernoulli(b.detach().sigmoid())).tanh() * (b + torch.zeros_like(x).bernoulli_(0.3))
    ),
    "ReLUs": lambda x, b: torch.relu(torch.relu(x + b) * b - 0.1).exp(),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chains_keep_at_most_half_of_eagers_bytes(name: str, dtype: torch.dtype) -> None:
    """Of what is drawn a byte for each element, whatever its dtype; the numbers are eager's."""
    f = CHAINS[name]
    fused = compilers.memory_efficient_fusion(f)
    x, b = (torch.randn(32, 9, dtype=dtype, requires_grad=True) for _ in range(2))
    assert 0 <= saved_bytes(fused, x, b) <= saved_bytes(f, x, b) / 2
    state, results, gradient = torch.get_rng_state(), [], torch.randn(32, 9, dtype=dtype)
    for g in (fused, f):
        torch.set_rng_state(state)
        y = g(x, b)
        results.append((y, *torch.autograd.grad(y, (x, b), gradient)))
    same(*results, check_stride=True)


def test_chains_become_one_kernel_each_way() -> None:
    """TorchScript has no code generator for this CPU: it would run what is computed again one by one."""
    seen: list[Any] = []
    fused = compilers.memory_efficient_fusion(lambda x: nn.functional.gelu(x.sin()) * torch.sigmoid(x))
    with events.subscribed(seen.append):
        fused(torch.randn(3, 4, requires_grad=True)).sum().backward()
    compiled = [event.artifact for event in seen if isinstance(event, events.Compiled)]
    assert [len(artifact.kernels) for artifact in compiled] == [1, 1]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_memory_efficient_fusion_draws_what_eager_draws(p: float) -> None:
    """Whatever the order of the memory is."""

    def f(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x.permute(2, 0, 1).exp(), p)
        return nn.functional.dropout(y.transpose(0, 1), 0.5) + torch.rand_like(y.transpose(0, 1))

    fused = compilers.memory_efficient_fusion(f)
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    fused(x)
    state, results = torch.get_rng_state(), []
    for g in (fused, f):
        torch.set_rng_state(state)
        y = g(x)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    same(*results, check_stride=True)


def test_names_are_found_at_bolide_functorch() -> None:
    """Modules and what they hold, also where nobody has imported them."""
    script = """
import bolide
functorch = bolide.functorch
assert functorch.fx_minifier.minifier is functorch.minifier
assert functorch.aot_autograd.aot_function is functorch.aot_function
assert functorch.compile_utils.strip_overloads is functorch.strip_overloads
assert functorch.compilers.default_decompositions is functorch.default_decompositions
assert functorch.partitioners.draw_graph is functorch.draw_graph
assert "ts_compile" in dir(functorch.compilers)
"""
    done = pasted(script)
    assert done.returncode == 0, done.stderr
    for module in (compilers, bolide.functorch):
        with pytest.raises(AttributeError, match="has no attribute 'no_such_compiler'"):
            module.no_such_compiler  # noqa: B018


def test_nnc_jit_compiles_forward_and_backward() -> None:
    fast = compilers.nnc_jit(lambda x: x.sin() * x)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    same(fast(x), x.sin() * x)
    same(torch.autograd.grad(fast(x).sum(), x)[0], x.cos() * x + x.sin())


# ---- graphs and inputs in files


INPUTS = [
    torch.randn(3, 4),
    torch.randn(3, 4).t(),
    torch.ones(1).expand(5),
    torch.empty(0, 3),
    torch.ones(4, dtype=torch.int64),
    torch.ones(4, dtype=torch.bool),
    torch.ones(2, dtype=torch.complex64),
    torch.ones(2, 2, dtype=torch.bfloat16),
    torch.ones(2, dtype=torch.float8_e4m3fn),
    nn.Parameter(torch.ones(2)),
]


def test_inputs_come_back_as_they_were_described(tmp_path: Path) -> None:
    save_inputs([*INPUTS, 3, 2.5, [INPUTS[0], (4, INPUTS[1])]], tmp_path / "a.input")
    *tensors, whole, number, nested = compilers.get_inputs(tmp_path / "a.input")
    assert type(whole) is int and type(number) is float
    assert type(nested) is list and type(nested[1][0]) is int and nested[1][1].stride() == INPUTS[1].stride()
    for expected, actual in zip(INPUTS, tensors, strict=True):
        described = (expected.shape, expected.stride(), expected.dtype, expected.device)
        assert (actual.shape, actual.stride(), actual.dtype, actual.device) == described
    again = compilers.get_inputs(str(tmp_path / "a.input"))
    assert not torch.equal(again[0], tensors[0]), "random"
    with open(tmp_path / "a.input", "rb") as file:
        metas = pickle.load(file)
    assert metas[1] == (Tensor, torch.Size([4, 3]), (1, 4), torch.float32, torch.device("cpu"))
    assert metas[10:12] == [(int,), (float,)] and isinstance(metas[12], list)
    with pytest.raises(TypeError, match="not str"):
        save_inputs(["text"], tmp_path / "b.input")


def test_files_of_torchs_own_dumper_can_be_read(tmp_path: Path) -> None:
    with FakeTensorMode() as mode:
        fake = type(mode.from_tensor(torch.ones(2)))
    path = tmp_path / "a.input"
    path.write_bytes(pickle.dumps([(fake, torch.Size([2, 3]), (3, 1), torch.float64, torch.device("cpu")), (int,)]))
    tensor, number = compilers.get_inputs(path)
    assert tensor.shape == (2, 3) and type(tensor) is Tensor and type(number) is int


class Evil:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "content",
    [
        [Evil(os.system, "touch pwned")],
        [(Evil(eval, "1"), torch.Size([1]), (1,), torch.float32, torch.device("cpu"))],
        [Evil(getattr, 3, "real")],
        [Evil(torch.load, "x")],
        [(operator.attrgetter("system"),)],
        {"a": (int,)},
        [("int",)],
        [3],
        [(int, 3)],
    ],
)
def test_reading_inputs_runs_no_code(content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.input"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError):
        compilers.get_inputs(path)
    assert os.listdir(tmp_path) == ["a.input"]


def test_saved_graphs_can_be_loaded(tmp_path: Path) -> None:
    """Also what makes tensors without an input, which is made anew in each run."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + torch.tensor([1.0, 2.0]), torch.rand(2).max(0)[0] + torch.full((2,), float("inf"))

    save_graph(traced(f, torch.ones(2)), tmp_path / "a" / "b")
    loaded = compilers.load_graph(tmp_path / "a" / "b")
    assert aten.rand.default in {node.target for node in loaded.graph.nodes}
    for _ in range(2):
        x = torch.randn(2)
        state = torch.get_rng_state()
        actual = loaded(x)
        torch.set_rng_state(state)
        same(actual, f(x))
    with pytest.raises(FileNotFoundError):
        compilers.load_graph(tmp_path / "nothing")


# ---- graph_dumper_aot


def test_graph_dumper_writes_all_graphs_of_a_compiled_function(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    fast = bolide.compile(model, backend=compilers.graph_dumper_aot("net", str(tmp_path), dump_example_input=True))
    x = torch.randn(2, 3)
    y = fast(x)
    same(y, model(x))
    y.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    same(grads, [p.grad for p in model.parameters()])
    names = {path.name for path in (tmp_path / "net").iterdir()}
    assert names == {f"net_{kind}_0" for kind in ("forward", "backward", "joint")}
    for name in names:
        folder = tmp_path / "net" / name
        given = compilers.get_inputs(folder / f"{name}.input")
        saved = torch.load(folder / f"{name}.pt", weights_only=True)
        assert len(given) == len(saved)
        if "joint" not in name:
            compilers.load_graph(folder)(*given)
        else:
            assert [type(part) for part in given] == [list, list]


def test_graph_dumper_counts_graphs_and_takes_several_functions(tmp_path: Path) -> None:
    dump = compilers.graph_dumper_aot("f", str(tmp_path))
    first, second = bolide.compile(torch.sin, backend=dump), bolide.compile(torch.cos, backend=dump)
    x = torch.ones(2, requires_grad=True)
    a, b = first(x), second(x)
    (a + b).sum().backward()
    with torch.no_grad():
        bolide.compile(torch.tan, backend=dump)(x)
    kinds = {*(f"f_{kind}_{n}" for kind in ("forward", "backward", "joint") for n in (0, 1)), "f_forward_2"}
    assert {path.name for path in (tmp_path / "f").iterdir()} == kinds
    assert not list(tmp_path.rglob("*_0.pt"))
    code = (tmp_path / "f" / "f_forward_1" / "module.py").read_text()
    assert "aten.cos" in code


def test_graph_dumper_leaves_out_empty_graphs_with_a_warning(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output(())
    with pytest.warns(BolideWarning, match="e_forward_0: the graph is empty"):
        compilers.graph_dumper_aot("e", str(tmp_path))(fx.GraphModule({}, graph), [])
    assert not list(tmp_path.iterdir())


# ---- debug_compile


def unscriptable() -> fx.GraphModule:
    """A graph with an operation that TorchScript does not know, among others."""
    graph = fx.Graph()
    x, size = graph.placeholder("x"), graph.placeholder("size")
    y = graph.call_function(aten.sin.default, (x,))
    n = graph.call_function(torch.sym_max, (size, 2))
    z = graph.call_function(aten.expand.default, (y, [n, -1]))
    graph.output((graph.call_function(aten.cos.default, (z,)),))
    return fx.GraphModule({}, graph)


def test_graph_fails_asks_whether_the_compiled_graph_does_the_same() -> None:
    args = [torch.randn(1, 3), 4]
    assert compilers.graph_fails(unscriptable(), args)
    assert not compilers.graph_fails(traced(program, *inputs()), list(inputs()))
    assert not compilers.graph_fails(traced(lambda x: x + torch.rand(3), torch.ones(3)), [torch.ones(3)])
    assert not compilers.graph_fails(traced(lambda x: (None, x * 2), torch.ones(3)), [torch.ones(3)])
    wrong = fx.Graph()  # TorchScript has another answer than Python
    wrong.output((wrong.call_function(torch.jit.is_scripting), wrong.placeholder("x")))
    assert compilers.graph_fails(fx.GraphModule({}, wrong), [torch.ones(2)])
    assert not compilers.graph_fails(traced(torch.mm, *inputs()), [torch.ones(3), torch.ones(3)]), "eager fails too"


def pasted(script: str) -> subprocess.CompletedProcess[str]:
    root = Path(bolide.__file__).parent.parent
    return subprocess.run(
        [sys.executable],
        input=script,
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def test_the_script_of_debug_compile_works_when_pasted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a graph that TorchScript does not compile, and for one that it does."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Exception, match="sym_max"):
        compilers.debug_compile(unscriptable(), [torch.randn(1, 3), 4])
    args = inputs()
    same(compilers.debug_compile(traced(program, *args), list(args))(list(args)), program(*args))
    done = pasted(capsys.readouterr().out)
    assert done.returncode == 0, done.stderr
    first, _, second = done.stdout.partition("nothing to minimise")
    assert "the compiled graph fails" in first
    smallest = first.partition("the smallest graph that fails:")[2]
    assert "sym_max" in smallest and "aten.sin" not in smallest and "aten.cos" not in smallest
    assert "aten.gelu" in second
