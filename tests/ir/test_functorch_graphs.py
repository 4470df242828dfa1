"""The passes and partitions of functorch, on small graphs: what must hold of them, seen in the graph."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.functorch import interpret
from bolide.functorch.cost import INFINITE
from bolide.functorch.cuts.mincut import minimum_cut
from bolide.functorch.graphs import GraphInfo, placeholders, results
from bolide.functorch.joint import finish_inference, finish_joint
from bolide.functorch.partitioners import (
    Joint,
    analyse,
    forward_nodes,
    partition,
    possible_gain,
    read_by_backward,
    saved_bytes,
)
from bolide.functorch.passes import INFERENCE_PASSES, run_passes
from bolide.functorch.passes.norms import split_norms
from bolide.functorch.runtime.memory import saved_values, table
from bolide.functorch.runtime.missing import without_tangents
from bolide.functorch.signature import describe
from bolide.inductor.lowering import LOWERINGS
from bolide.tracing import Trace
from bolide.tracing.called.branches import Part, branch, choose
from bolide.tracing.graph import graph_module, lookup
from bolide.tracing.traits import TRAITS
from tests.functorch_tools import Compiled

aten = torch.ops.aten


def traced(fn, *inputs):
    trace = Trace()
    tensors = [trace.input(tensor, f"x{index}") for index, tensor in enumerate(inputs)]
    with trace.recording():
        out = fn(*tensors)
    return trace, describe(trace, [out] if isinstance(out, torch.Tensor) else list(out))


def inference_graph(fn, *inputs):
    trace, signature = traced(fn, *inputs)
    finish_inference(trace, signature)
    return run_passes(trace.graph, "test", check=True)


def joint_graph(fn, *inputs) -> Joint:
    trace, signature = traced(fn, *inputs)
    joint = finish_joint(trace, signature)
    run_passes(joint.graph, "test", check=True)
    return joint


def ops(graph) -> Counter:
    return Counter(node.target._opname for node in graph.nodes if hasattr(node.target, "_opname"))


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


# ---- passes -------------------------------------------------------------------------------------------------------


def test_equal_computations_are_done_once() -> None:
    assert ops(inference_graph(lambda x: x.sin() + x.sin() * 2, torch.ones(3)))["sin"] == 1


def test_equal_results_stay_apart() -> None:
    assert ops(inference_graph(lambda x: (x.sin(), x.sin()), torch.ones(3)))["sin"] == 2


def test_numbers_of_different_types_are_different() -> None:
    x = torch.ones(3, dtype=torch.int64)
    assert ops(inference_graph(lambda x: (x + 1) * (x + 1.0), x))["add"] == 2


def test_ways_go_through_the_passes_of_the_graph_around() -> None:
    def attention(x):
        return torch.softmax(x @ x.mT * 0.5, -1) @ x

    def twice(x):
        return x.exp() * x.exp().sin()

    trace = Trace()
    x, pred = trace.input(torch.randn(16, 256, 8), "x"), trace.input(torch.tensor(True), "pred")
    with trace.recording():
        ways = []
        for way in (attention, twice):
            part = Part(trace)
            with part.alone():
                ways.append((part, [part.adopt(way(x))]))
        outputs = choose(trace, pred, ways)
    finish_inference(trace, describe(trace, outputs))
    (node,) = trace.graph.find_nodes(op="call_function", target=branch)
    recorded = lookup(node.args[3])
    assert [ops(graph.graph)["exp"] for graph in recorded.graphs] == [0, 2]
    run_passes(trace.graph, "test", INFERENCE_PASSES, check=True)
    fused, shared = lookup(node.args[3]).graphs
    assert ops(fused.graph)["_scaled_dot_product_flash_attention_for_cpu"] == 1 and not ops(fused.graph)["_softmax"]
    assert ops(shared.graph)["exp"] == 1
    value = torch.randn(16, 256, 8)
    torch.testing.assert_close(fused(value), (attention(value),))
    torch.testing.assert_close(shared(value), (twice(value),))
    assert [ops(graph.graph)["exp"] for graph in recorded.graphs] == [0, 2]  # gradients of gradients replay these


def test_unread_nodes_go_and_random_draws_stay() -> None:
    graph = inference_graph(lambda x: (x.sin(), x.cos(), torch.rand(3))[1], torch.ones(3))
    assert ops(graph)["sin"] == 0 and ops(graph)["rng_seed"] == 1


def test_copies_nobody_can_tell_from_their_source_go() -> None:
    assert ops(inference_graph(lambda x: x.sin().clone().cos(), torch.ones(3)))["clone"] == 0
    assert ops(inference_graph(lambda x: x.sin().view(3, 1).view(3, 1) + 1, torch.ones(3)))["view"] == 1


@pytest.mark.parametrize("fn", [lambda x: x.clone(), lambda x: x.clone().view(-1), lambda x: (y := x.sin(), y.clone())])
def test_copies_that_are_results_stay(fn) -> None:
    assert ops(inference_graph(fn, torch.ones(3)))["clone"] == 1


def test_running_statistics_are_not_read_by_a_training_backward() -> None:
    joint = joint_graph(
        lambda x, m, v: F.batch_norm(x, m, v, training=True).sin(), leaf(4, 3), torch.zeros(3), torch.ones(3)
    )
    saved = partition(joint).saved
    assert not {"x1", "x2"} & {node.name for node in saved}


# ---- partitions ---------------------------------------------------------------------------------------------------


def saved_of(fn, *inputs, strategy="min_cut"):
    return partition(joint_graph(fn, *inputs), strategy)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_without_dropout_reads_no_random_state(dropout: float) -> None:
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("grad", "q", "k", "v", "bias", "out", "sums", "seed", "offset")]
    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    node = graph.call_function(op, (*given, dropout, [True, True, True, False]))
    graph.output((node,))
    run_passes(graph, "backward", check=True)
    assert node.args[7:9] == ((None, None) if not dropout else tuple(given[7:9]))


def test_default_saves_what_eager_saves() -> None:
    parts = saved_of(lambda x: x.exp().sin().sum(), leaf(64), strategy="default")
    assert saved_bytes(parts.saved) == 2 * 64 * 4 - 64 * 4  # exp's result serves both derivatives


def test_pointwise_chains_are_computed_again() -> None:
    parts = saved_of(lambda x: (x * 2).sin().cos().sin().sum(), leaf(64))
    assert saved_bytes(parts.saved) == 0 and ops(parts.backward)["sin"] >= 1


def test_pointwise_chains_save_no_input_that_eager_does_not() -> None:
    """The program may write to it before the backward; where eager saves it, nothing else is."""
    parts = saved_of(lambda x: (x * 2).sin().cos().sin().sum(), leaf(64) / 3)
    assert saved_bytes(parts.saved) == 64 * 4 and all(node.op != "placeholder" for node in parts.saved)
    parts = saved_of(lambda x: x.sin().cos().sin().sum(), leaf(64) / 3)
    assert saved_bytes(parts.saved) == 0 and ops(parts.backward)["sin"] >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_saved_once_though_they_are_results(dtype: torch.dtype) -> None:
    def f(x, w):
        scores = x @ w
        return F.cross_entropy(scores.float(), torch.zeros(8, dtype=torch.long)), scores

    joint = joint_graph(f, torch.randn(8, 4, dtype=dtype, requires_grad=True), leaf(4, 64).to(dtype))
    split_norms(joint.graph, forward_nodes(joint))
    assert saved_bytes(partition(joint).saved) < 1.3 * 8 * 64 * dtype.itemsize


def test_matmuls_are_never_done_again() -> None:
    def f(x, a, b):
        return torch.tanh(torch.tanh(x @ a) @ b).sum()

    parts = saved_of(f, torch.randn(32, 16), leaf(16, 16), leaf(16, 16))
    assert ops(parts.forward)["mm"] == 2 and ops(parts.backward)["mm"] == 3


def test_random_draws_happen_once_and_the_seed_crosses() -> None:
    parts = saved_of(lambda x: F.dropout(x, 0.5, training=True).sum(), leaf(64, 64))
    assert ops(parts.forward)["rng_seed"] == 1 and ops(parts.backward)["rng_seed"] == 0


def test_views_are_not_saved() -> None:
    parts = saved_of(lambda x, w: ((x @ w).t().reshape(-1)[3:]).sin().sum(), torch.randn(8, 8), leaf(8, 8))
    assert not any(node.target in (aten.t.default, aten.view.default, aten.slice.Tensor) for node in parts.saved)


def test_traits_are_known_of_all_that_is_lowered() -> None:
    lowered = {(op._schema.name, op.name()) for op in LOWERINGS if isinstance(op, torch._ops.OpOverload)}
    assert [overload for name, overload in lowered if name not in TRAITS and overload not in TRAITS] == []


def test_an_input_that_is_written_is_saved_from_before() -> None:
    def f(x, w):
        y = (x * w).sum()
        with torch.no_grad():
            w.detach()
        return y

    parts = saved_of(f, torch.randn(4), leaf(4))
    assert [node.name for node in parts.saved] == ["x0"]
    joint = joint_graph(f, torch.randn(4), leaf(4))
    written = partition(Joint(joint.graph, joint.inputs, joint.outputs, frozenset([0])))
    assert ops(written.forward)["clone"] == 1 and written.saved_at[0] >= 2


def test_a_norm_is_made_again_from_its_statistics() -> None:
    x, w, b = leaf(64, 32), leaf(32), leaf(32)
    compiled = Compiled(lambda x, w, b: F.gelu(F.layer_norm(x * 2, (32,), w, b)).sum(), [x, w, b])
    compiled(x, w, b).backward()
    assert ops(compiled.graphs["backward"].graph)["native_layer_norm"] == 0
    sizes = [node.meta["val"].numel for node in placeholders(compiled.graphs["backward"].graph)]
    assert sorted(sizes)[-2:] == [64, 64 * 32]  # one big value, and statistics


@pytest.mark.parametrize("width", [8, 64])
def test_never_more_is_saved_than_by_default(width: int) -> None:
    choose = random.Random(width)
    for _ in range(10):
        kinds = choose.choices(["tanh", "gelu", "mm", "softmax", "norm", "dropout"], k=6)

        def f(x, w, kinds=kinds):
            for kind in kinds:
                if kind == "mm":
                    x = x @ w
                elif kind == "norm":
                    x = F.layer_norm(x, (width,))
                else:
                    x = F.dropout(x, 0.1) if kind == "dropout" else getattr(F, kind)(x, *[-1] * (kind == "softmax"))
            return x.sum()

        joint = joint_graph(f, leaf(16, width), leaf(width, width))
        needs = analyse(joint)
        default = saved_bytes(read_by_backward(needs))
        assert possible_gain(needs, read_by_backward(needs)) >= 0
        assert saved_bytes(partition(joint).saved) <= 1.01 * default, kinds


def test_saved_values_are_described() -> None:
    parts = saved_of(lambda x, w: (x @ w).exp().sum(), torch.randn(8, 8), leaf(8, 8))
    largest, *_, smallest = saved_values(parts.saved)
    assert largest.bytes == 256 and smallest.bytes == 0 and "MiB" in str(largest)


def test_the_table_of_saved_values_says_why() -> None:
    def f(x, w, bias):
        hidden = F.dropout((x @ w).tanh(), 0.5)
        return hidden.sum(), F.layer_norm(hidden @ w + bias, (8,)).exp()

    values = saved_values(saved_of(f, leaf(32, 8), leaf(8, 8), leaf(8)).saved)
    whys = {value.operation: value.why for value in values}
    assert whys["input"] == "an input, which lives anyway"
    assert whys["aten.mm.default"] == "costly to compute again"
    assert whys["aten.exp.default"] == "a result of the program as well"
    assert whys["aten.lt.Scalar"] == "cheap, but made of 0.00 MiB, which would have to be there instead"
    assert all(value.readers for value in values)
    first, *lines = table(values).splitlines()
    assert first.split() == ["MiB", "value", "operation", "why", "line"] and len(lines) == len(values)
    assert [float(line.split()[0]) for line in lines] == [round(value.bytes / 2**20, 2) for value in values]


def test_explain_prints_the_table_of_saved_values() -> None:
    weight = torch.randn(64, 64, requires_grad=True)

    def f(x):
        return (x @ weight).sin()

    told = bolide.explain(f)(torch.randn(128, 64))
    (saved,) = told.saved
    assert sum(value.bytes for value in saved.values) == 128 * 64 * 4
    assert "saved for the backward of " in str(told) and "0.03 MiB" in str(told)
    assert re.search(r"0\.03 +mm +aten\.mm\.default +costly to compute again +File .*test_functorch_graphs", str(told))
    assert not bolide.explain(lambda x: x.sin())(torch.randn(3)).saved


# ---- missing tangents ---------------------------------------------------------------------------------------------


def test_backwards_without_some_tangents() -> None:
    joint = joint_graph(lambda x, a, b: (x * a, (x * b).exp() + x * a), torch.randn(3), leaf(3), leaf(3))
    parts = partition(joint)
    tangents = placeholders(parts.backward)[len(parts.saved) :]
    first = without_tangents(parts.backward, tangents, [tangents[1]])
    first.lint()
    of_x, of_a, of_b = results(first)
    assert of_x is None and of_a is not None and of_b is None
    run = interpret(graph_module(first, {}, "g"), GraphInfo("backward", frozenset(), frozenset([1])))
    slots = placeholders(first)
    values = [torch.full(slot.meta["val"].shape, 2.0) for slot in slots]
    torch.testing.assert_close(run(values)[1], torch.full((3,), 4.0))
    assert all(value is None for value in results(without_tangents(parts.backward, tangents, tangents)))


# ---- minimum cuts -------------------------------------------------------------------------------------------------


def test_minimum_cuts_against_all_cuts(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(60):
        count = choose.randrange(3, 8)
        edges = [
            (one, other, choose.choice([0, 1, 2, 5, 9, INFINITE]))
            for one in range(count)
            for other in range(count)
            if one != other and choose.random() < 0.5
        ]
        if not edges:
            continue

        def price(side, edges=edges):
            return sum(capacity for one, other, capacity in edges if side[one] and not side[other])

        sides = [[True, *(bool(bits >> i & 1) for i in range(count - 2)), False] for bits in range(2 ** (count - 2))]
        best = min(map(price, sides))
        if best == INFINITE:
            with pytest.raises(ValueError, match="no finite cut"):
                minimum_cut(count, edges, 0, count - 1)
        else:
            assert price(minimum_cut(count, edges, 0, count - 1)) == best
