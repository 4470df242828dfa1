"""Failing graphs are reduced to small ones that fail as well, with few questions; equal computations are merged."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from bolide.functorch.compile_utils import (
    fx_graph_cse,
    get_aten_target,
    get_outputs,
    get_placeholders,
    strip_overloads,
    writes,
)
from bolide.functorch.fx_minifier import dump_state, minifier

aten = torch.ops.aten


class Question:
    """A tester that counts how often it is asked."""

    def __init__(self, fails: Callable[[fx.GraphModule, list[Any]], Any]) -> None:
        self.fails = fails
        self.asked = 0

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> Any:
        self.asked += 1
        gm.graph.lint()
        return self.fails(gm, inputs)


def has(target: object) -> Question:
    return Question(lambda gm, inputs: target in calls(gm))


def calls(gm: fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def gives_nan(gm: fx.GraphModule, inputs: list[Any]) -> bool:
    return not any(value.isnan().any() for value in inputs) and bool(torch.isnan(gm(*inputs)[0]).any())


# ---- the minifier


def test_one_operation() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        y = y / 3
        x = x + 3
        x = x * y
        return x + y

    inputs = [torch.randn(3), torch.randn(3)]
    small, left = minifier(make_fx(f)(*inputs), inputs, has(aten.mul.Tensor))
    assert calls(small) == [aten.mul.Tensor] and len(get_placeholders(small.graph)) == len(left) == 2
    small(*left)


def test_values_count() -> None:
    def f(x: Tensor) -> Tensor:
        x = (x * 3 + 5).cos()
        zero = x - x
        return (zero / zero + 3) * 2

    x = torch.randn(3)
    small, left = minifier(make_fx(lambda x: (f(x),))(x), [x], gives_nan)
    assert calls(small) == [aten.div.Tensor] and len(left) == 1 and gives_nan(small, left)


def test_results_that_are_inputs_or_items_of_tuples() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> Any:
        return a.sin(), b, c, a.sin() * c.cos()

    inputs = [torch.randn(3) for _ in range(3)]

    def returns_input(gm: fx.GraphModule, inputs: list[Any]) -> bool:
        return bool(set(get_placeholders(gm.graph)) & set(get_outputs(gm.graph)))

    small, left = minifier(make_fx(f)(*inputs), inputs, returns_input)
    assert not calls(small) and len(left) == len(get_outputs(small.graph)) == 1

    def g(a: Tensor, b: Tensor) -> Any:
        both = torch.std_mean(a)
        return (both[0] + b * both[1],)

    small, left = minifier(make_fx(g)(*inputs[:2]), inputs[:2], has(aten.add.Tensor))
    assert calls(small) == [aten.add.Tensor] and len(left) == 2


def test_modules_methods_parameters_and_numbers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, n: int) -> Any:
            y = self.linear(x).view(n * 2, -1) * self.scale
            return {"y": y.relu().sum(), "rest": [y, n]}

    model, x = fx.symbolic_trace(Model()), torch.randn(6, 4, requires_grad=True)
    small, left = minifier(model, [x, 3], has("relu"))
    assert calls(small) == ["relu"] and len(left) == 1 and left[0].requires_grad and left[0].is_leaf
    small, left = minifier(model, [x, 3], has("linear"))
    assert calls(small) == ["linear"] and [value.shape[1] for value in left] == [4]
    small, left = minifier(model, [x, 3], has(operator.mul))  # two of them: n * 2, and the scale
    assert calls(small) == [operator.mul] and small(*left) is not None
    small, left = minifier(model, [x, 3], Question(lambda gm, inputs: int in map(type, inputs)))
    assert left == [3] and not calls(small)


def test_writes_stay_where_they_are_needed() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x = x + 1
        x.add_(y)
        y.mul_(2)
        return (x * 2).sin()

    inputs = [torch.randn(3), torch.randn(3)]
    gm, before = make_fx(f)(*inputs), [value.clone() for value in inputs]
    small, left = minifier(gm, inputs, has(aten.mul_.Tensor))
    assert calls(small) == [aten.mul_.Tensor] and len(left) == 1
    assert all(map(torch.equal, inputs, before)), "runs are made on copies"

    def writes_to_input(gm: fx.GraphModule, inputs: list[Any]) -> bool:
        kept = [value.clone() for value in inputs]
        gm(*inputs)
        return not all(map(torch.equal, inputs, kept))

    small, left = minifier(gm, inputs, writes_to_input)
    assert len(calls(small)) == 1 and writes_to_input(small, left)


def test_effects_that_follow_are_dropped() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        new = y + 1
        y.copy_(new)
        return x.sin() * 2

    inputs = [torch.randn(3), torch.randn(3)]
    small, _ = minifier(make_fx(f)(*inputs), inputs, has(aten.add.Tensor))
    assert calls(small) == [aten.add.Tensor]


def test_writes_without_a_value_are_dropped() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_function(operator.setitem, (x, 0, y))
    graph.output((graph.call_function(torch.add, (x, y)),))
    small, _ = minifier(fx.GraphModule({}, graph), [torch.randn(3, 2), torch.randn(2)], has(torch.add))
    assert calls(small) == [torch.add]


def test_places_stay_inside() -> None:
    gm = fx.symbolic_trace(lambda x, at: torch.take(x, at).exp())
    inputs = [torch.randn(8), torch.tensor([1, 7, 3])]
    small, left = minifier(gm, inputs, Question(lambda gm, i: gm(*i) is not None and torch.take in calls(gm)))
    assert calls(small) == [torch.take] and [value.numel() for value in left] == [1, 1] and left[1].item() == 0


def test_sizes_are_left_where_nobody_checks_them() -> None:
    layer, x = nn.LSTM(4, 8), torch.randn(5, 2, 4)
    state = torch.zeros(1, 2, 8)
    shape = (False, [], 2, 8, 1, True, False, False, True)

    def f(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.mkldnn_rnn_layer(x, *weights, state[0], state[0], *shape)[0].sum() * 2

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(layer, name).detach() for name in names]
    gm = make_fx(f)(x, *weights)
    small, left = minifier(gm, [x, *weights], has(aten.mkldnn_rnn_layer.default))
    assert calls(small)[0] is aten.mkldnn_rnn_layer.default and left[0].shape == x.shape


def test_dead_code_and_unused_inputs_stay_where_they_are_needed() -> None:
    gm = fx.symbolic_trace(lambda x, y: (x.sin(), x.cos() + 1)[1] * 2)
    for fails, dead, left in (
        (lambda gm, inputs: "sin" in calls(gm) and len(inputs) == 2, ["sin"], 2),
        (lambda gm, inputs: len(inputs) == 2 and bool(calls(gm)), None, 2),
    ):
        small, inputs = minifier(gm, [torch.randn(2), torch.randn(2)], Question(fails))
        assert len(inputs) == left and len(calls(small)) <= 2 and (dead is None or "sin" in calls(small))


def test_layout_survives_and_sizes_become_small() -> None:
    x = torch.randn(6, 4, 8).transpose(0, 2)

    def transposed(gm: fx.GraphModule, inputs: list[Any]) -> bool:
        gm(*inputs)
        return any(value.dim() == 3 and value.stride(0) < value.stride(2) for value in inputs)

    gm = fx.symbolic_trace(lambda x: (x * 2).permute(1, 0, 2).reshape(4, 48).exp().sum(1))
    small, (value,) = minifier(gm, [x], transposed)
    assert value.numel() <= 4 and transposed(small, [value])
    small, left = minifier(gm, [x], Question(lambda gm, i: gm(*i) is not None and {"reshape", "exp"} <= {*calls(gm)}))
    assert calls(small) == ["reshape", "exp"] and left[0].numel() == 1


def test_what_cannot_be_minified(tmp_path: Path) -> None:
    gm, x = fx.symbolic_trace(lambda x: x.sin() + 1), torch.randn(2)
    with pytest.raises(RuntimeError, match="Input graph did not fail the tester"):
        minifier(gm, [x], lambda gm, inputs: False)
    with pytest.raises(RuntimeError, match="max_granularity 3 not power of two"):
        minifier(gm, [x], has("sin"), max_granularity=3)
    with pytest.raises(ValueError, match="save_dir"):
        minifier(gm, [x], has("sin"), offload_to_disk=True)
    answers = iter([True, False, False, False, False, False, False, False, False, False, False, False])
    with pytest.raises(RuntimeError, match="fails no more"):
        minifier(gm, [x], lambda gm, inputs: next(answers))


def test_arguments_of_the_minifier(tmp_path: Path) -> None:
    gm = fx.symbolic_trace(lambda x: (x.sin() + 1).cos().exp().tanh().sqrt())
    x, dumped = torch.rand(4), []
    for more in (
        {},
        {"max_granularity": 1},
        {"skip_sanity": True},
        {"offload_to_disk": True, "save_dir": str(tmp_path)},
        {"offload_to_disk": True, "save_dir": str(tmp_path), "skip_offload": True},
    ):
        dumped.clear()
        question = has("exp")
        small, (value,) = minifier(gm, [x], question, lambda gm, inputs: dumped.append(len(calls(gm))), **more)
        assert calls(small) == ["exp"] and value.shape == (1,) and question.asked <= 16
        assert dumped[0] == 6 and dumped[-1] == 1 and dumped == sorted(dumped, reverse=True)
        torch.testing.assert_close(value, (x.sin() + 1).cos()[:1])
    assert len(list(tmp_path.iterdir())) == 6


def random_graph(size: int) -> fx.GraphModule:
    """A graph of so many operations on tensors of three elements, of which two are special: one reads the other."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{place}") for place in range(3)]
    special = sorted(random.sample(range(1, size), 2))
    for place in range(size):
        one, other = random.choices(nodes[-8:], k=2)
        if place == special[0]:
            first = nodes[-1] if place > 3 else nodes[0]
            nodes.append(graph.call_function(torch.sinh, (first,)))
            kept = nodes[-1]
        elif place == special[1]:
            nodes.append(graph.call_function(torch.cosh, (graph.call_function(torch.sub, (kept, one)),)))
        elif random.random() < 0.5:
            nodes.append(graph.call_function(random.choice([torch.sin, torch.tanh, torch.neg]), (one,)))
        else:
            nodes.append(graph.call_function(random.choice([torch.add, torch.mul, torch.maximum]), (one, other)))
    graph.output((nodes[-1], nodes[size // 2], [nodes[-2]], 3))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("size", [10, 40, 150])
def test_pairs_of_nodes_in_random_graphs(size: int) -> None:
    def reaches(gm: fx.GraphModule, inputs: list[Any]) -> bool:
        gm(*inputs)
        for node in gm.graph.find_nodes(op="call_function", target=torch.cosh):
            source = node.args[0]
            if isinstance(source, fx.Node) and source.target is torch.sub:
                return any(getattr(arg, "target", None) is torch.sinh for arg in source.args)
        return False

    question, inputs = Question(reaches), [torch.randn(3) for _ in range(3)]
    small, left = minifier(random_graph(size), inputs, question)
    assert calls(small) == [torch.sinh, torch.sub, torch.cosh]
    assert len(left) <= 2 and all(value.numel() == 1 for value in left)
    assert question.asked <= 30 + 12 * math.log2(size)


# ---- equal computations, and the small tools


def merged(f: Callable[..., Any], *inputs: Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The graph of f, and without equal computations."""
    gm = make_fx(f)(*inputs)
    before = str(gm.graph)
    graph = fx_graph_cse(gm.graph)
    graph.lint()
    assert str(gm.graph) == before, "a new graph"
    return gm, fx.GraphModule(gm, graph)


@pytest.mark.parametrize(
    ("f", "fewer"),
    [
        (lambda x: x.cos() + x.cos(), 1),
        (lambda x: (x.sum(0) * 2, x.sum(0) + 1), 1),
        (lambda x: (x * 2).sin() + (x * 2.0).sin(), 0),
        (lambda x: (x + 1).sin() + (x + True).sin(), 0),
        (lambda x: (x * -0.0).sin() + (x * 0.0).sin(), 0),
        (lambda x: (x.cos(), x.cos()), 0),
        (lambda x: torch.rand_like(x) + torch.rand_like(x), 0),
        (lambda x: torch.empty_like(x).fill_(1) + torch.empty_like(x).fill_(2), 0),
        (lambda x: x.mul_(2).cos() + x.mul_(2).cos(), 0),
        (lambda x: x.sin() + x.add_(1).neg() + x.sin(), 0),
        (lambda x: x.max(0)[0] + x.max(0)[0], 3),
        (lambda x: x.view(6)[2:].exp() + x.view(6)[2:].exp(), 3),
    ],
)
def test_equal_computations(f: Callable[..., Any], fewer: int) -> None:
    x = torch.randn(2, 3)
    gm, small = merged(f, x.clone())
    assert len(gm.graph.nodes) - len(small.graph.nodes) == fewer
    torch.manual_seed(0)
    expected = gm(x.clone())
    torch.manual_seed(0)
    torch.testing.assert_close(small(x.clone()), expected)


METHODS: list[tuple[Callable[[Tensor], object], int]] = [
    (lambda x: x.sin() + x.sin(), 1),
    (lambda x: x.view(-1).exp() + x.view(-1).exp(), 2),
    (lambda x: x.clone().view(-1) + x.clone().view(-1), 2),
    (lambda x: (x.clone().view(-1), x.clone().t()), 0),
    (lambda x: (x.clone().chunk(2)[0], x.clone().chunk(2)[1]), 0),
    (lambda x: (x.sin(), x.sin()), 0),
    (lambda x: x.clone().bernoulli() + x.clone().bernoulli(), 1),
    (lambda x: x.clone().add_(1) + x.clone().add_(1), 0),
]


@pytest.mark.parametrize(("f", "fewer"), METHODS)
def test_equal_calls_of_methods(f: Callable[..., Any], fewer: int) -> None:
    gm = fx.symbolic_trace(f)
    small = fx.GraphModule(gm, fx_graph_cse(gm.graph))
    assert len(gm.graph.nodes) - len(small.graph.nodes) == fewer
    x, found = torch.randn(2, 3).sigmoid(), []
    for module in (small, gm):
        torch.manual_seed(0)
        found.append(module(x.clone()))
    torch.testing.assert_close(*found)


def added(x: Tensor, how: Callable[[Tensor], Any]) -> Tensor:
    """Two equal values, of which the first is written to."""
    y, z = x.clone(), x.clone()
    how(y)
    return y * 2 + z


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda y: y.add_(1),
    "a view": lambda y: y.view(-1).mul_(3),
    "a view of a view": lambda y: y.t()[0].neg_(),
    "an item": lambda y: y.chunk(2)[1].zero_(),
    "out": lambda y: torch.add(y, 1, out=y),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "trace", [lambda f, x: make_fx(f)(x), lambda f, x: fx.symbolic_trace(f)], ids=["ATen", "torch"]
)
def test_values_that_are_written_to_are_not_merged(name: str, trace: Callable[..., fx.GraphModule]) -> None:
    x = torch.randn(4, 4)

    def f(x: Tensor) -> Tensor:
        return added(x, WRITES[name])

    gm = trace(f, x)
    small = fx.GraphModule(gm, fx_graph_cse(gm.graph))
    torch.testing.assert_close(small(x), f(x))
    assert str(fx_graph_cse(small.graph)) == str(small.graph), "once is enough"


@torch.library.custom_op("test_minifier::sines", mutates_args={"result"})
def sines(x: Tensor, result: Tensor) -> None:
    result.copy_(x.sin())


@pytest.mark.parametrize("version", ["auto_functionalized", "auto_functionalized_v2"])
def test_what_an_operator_in_functional_form_may_write_to_is_not_merged(version: str) -> None:
    functional = getattr(torch.ops.higher_order, version)
    layout = {"size": (3,), "stride": (1,), "storage_offset": 0, "base_index": 0}
    views = {f"_result_{name}": value for name, value in layout.items()} if version.endswith("v2") else {}
    graph = fx.Graph()
    value = graph.placeholder("x")
    results = []
    for _ in range(2):
        base = graph.call_function(aten.relu.default, (graph.call_function(aten.clone.default, (value,)),))
        given = {"_all_bases": [base], **views} if views else {"result": base}
        call = graph.call_function(functional, (sines._opoverload,), {"x": value, **given})
        results.append(graph.call_function(operator.getitem, (call, 1)))
    graph.output(tuple(results))
    gm = fx.GraphModule({}, graph)
    small = fx.GraphModule({}, fx_graph_cse(graph))
    assert len(small.graph.find_nodes(op="call_function", target=aten.relu.default)) == 2
    x = torch.randn(3)
    torch.testing.assert_close(small(x), gm(x))


def test_equal_computations_are_those_of_torch() -> None:
    from torch._functorch import compile_utils as theirs

    def f(x: Tensor, y: Tensor) -> Any:
        a, b = x.softmax(0) + y.softmax(0), x.softmax(0) * y.softmax(0)
        return a.sum(), (a + b).relu() * (a + b).relu(), x[:2].clone().add_(1), x.add_(1).sin() + x.sin()

    gm = make_fx(f)(torch.randn(3, 3), torch.randn(3, 3))
    assert str(fx_graph_cse(gm.graph)) == str(theirs.fx_graph_cse(gm.graph))


def test_what_writes() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = torch.nn.functional.relu
    writing = [
        graph.call_method("sin_", (x,)),
        graph.call_function(relu, (x,), {"inplace": True}),
        graph.call_function(torch.add, (x, 1), {"out": x}),
        graph.call_function(operator.setitem, (x, 0, 1)),
        graph.call_function(operator.iadd, (x, 1)),
        graph.call_function(aten.mul_, (x, 2)),
        graph.call_function(aten.copy_.default, (x, x)),
    ]
    reading = [
        x,
        graph.call_method("relu", (x,)),
        graph.call_function(relu, (x,), {"inplace": False}),
        graph.call_function(operator.add, (x, 1)),
        graph.call_function(aten.mul, (x, 2)),
        graph.call_function(torch.sub, (x, 1)),
        graph.call_function(lambda x: x, (x,)),
        graph.output(x),
    ]
    assert all(map(writes, writing)) and not any(map(writes, reading))


def test_small_tools() -> None:
    gm = make_fx(lambda x: (x.cos() + 1, {"a": x}))(torch.randn(3))
    nodes = list(gm.graph.nodes)
    assert [get_aten_target(node) for node in nodes[1:3]] == [aten.cos, aten.add]
    assert get_placeholders(gm.graph) == nodes[:1] and get_outputs(gm.graph) == [nodes[2], nodes[0]]
    strip_overloads(gm)
    assert calls(gm) == [aten.cos, aten.add] and "aten.cos(" in gm.code
    x = torch.randn(3)
    assert torch.equal(gm(x)[0], x.cos() + 1)
    with pytest.raises(AssertionError, match="No output node"):
        get_outputs(fx.Graph())


def test_states_are_printed_as_python(capsys: pytest.CaptureFixture[str]) -> None:
    graph = make_fx(lambda x: (x * 2).sin())(torch.randn(2, 3))
    dump_state(graph, [torch.randn(2, 3)])
    text = capsys.readouterr().out
    names: dict[str, Any] = {"torch": torch, "device": torch.device, "fx_pytree": fx.node}
    exec(text.replace("def forward(self, ", "def forward("), names)
    torch.testing.assert_close(names["forward"](*names["inps"]), torch.full((2, 3), 2.0).sin())
