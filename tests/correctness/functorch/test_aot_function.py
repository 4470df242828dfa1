"""`bolide.functorch.aot_autograd` and the partition functions: graphs in PyTorch's conventions, eager's behaviour."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
import torch._functorch.partitioners as theirs
import torch.nn.functional as F
from torch import nn
from torch._guards import detect_fake_mode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import bolide
from bolide.functorch.aot_autograd import (
    aot_function,
    aot_module,
    aot_module_simplified,
    make_boxed_compiler,
    make_boxed_func,
)
from bolide.functorch.partitioners import (
    default_partition,
    draw_graph,
    draw_joint_graph,
    min_cut_rematerialization_partition,
)
from bolide.support import events
from bolide.support.errors import Unsupported
from tests.functorch_tools import NON_LEAF_WRITES, VIEWS, WRITES, assert_same, check, flat, fresh, same_objects
from tests.fuzz.writers.matrix_programs import REFUSALS, outcome, program

PARTITIONS = {
    "default": default_partition,
    "min_cut": min_cut_rematerialization_partition,
    "torch_default": theirs.default_partition,
    "torch_min_cut": theirs.min_cut_rematerialization_partition,
}
OURS = ("default", "min_cut")


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def nop(graph: torch.fx.GraphModule, examples: list[Any]) -> torch.fx.GraphModule:
    graph.graph.lint()
    assert len(graph.graph.find_nodes(op="placeholder")) == len(examples)
    return graph


def keeping(graphs: dict[str, Any], kind: str) -> Callable[..., Any]:
    """A compiler that puts its graph under `kind`."""

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs[kind] = graph
        return graph

    return compiler


def graphs_of(fn: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    graphs: dict[str, Any] = {}
    keep = partial(keeping, graphs)
    compiled = aot_function(fn, keep("forward"), keep("backward"), inference_compiler=keep("inference"), **options)
    compiled(*args)
    return graphs


def names(graph: torch.fx.GraphModule, op: str = "placeholder") -> list[str]:
    return [node.name for node in graph.graph.find_nodes(op=op)]


def targets(graph: torch.fx.GraphModule) -> set[str]:
    return {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}


def made(fn: Callable[..., Any], inputs: Any, partition: Any) -> Callable[..., Any]:
    return aot_function(fn, make_boxed_compiler(nop), partition_fn=PARTITIONS[partition])


check = partial(check, make=made)


# ---- what eager does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", VIEWS)
def test_outputs(name: str, partition: str) -> None:
    check(VIEWS[name], [leaf(2, 4)], partition=partition)
    check(VIEWS[name], [torch.randn(2, 4)], partition=partition)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", WRITES)
def test_writes_to_inputs(name: str, partition: str) -> None:
    check(WRITES[name], [torch.randn(2, 4), leaf(2, 4)], partition=partition)
    check(WRITES[name], [torch.randn(2, 4), torch.randn(2, 4)], partition=partition)


@pytest.mark.parametrize("name", NON_LEAF_WRITES)
def test_writes_to_inputs_that_are_no_leaves(name: str) -> None:
    start, results = torch.randn(2, 3), []
    for fn in (NON_LEAF_WRITES[name], aot_function(NON_LEAF_WRITES[name], nop)):
        w = start.clone().requires_grad_()
        x = w * 1
        outs = flat(fn(x))
        loss = sum((out * (index + 1)).sum() for index, out in enumerate(outs)) + x.sum()
        results.append([x, *outs, torch.autograd.grad(loss, w)[0]])
    for one, other in zip(*reversed(results)):
        assert_same(one, other)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_random_programs(partition: str, seed: int) -> None:
    compared = 0
    for number in range(seed, seed + 8):
        fn, inputs = program(number)
        try:
            expected, eager, expected_gradients = outcome(fn, inputs, number)
        except RuntimeError as error:
            assert any(reason in str(error) for reason in REFUSALS)
            continue
        compiled = aot_function(fn, nop, partition_fn=PARTITIONS[partition], dynamic=bool(number % 2))
        try:
            actual, ours, gradients = outcome(compiled, inputs, number)
        except Unsupported as error:
            assert error.kind == "detached_alias" or "modified by an inplace operation" in str(error)
            continue
        for one, other in zip([*actual, *ours], [*expected, *eager], strict=True):
            assert_same(one, other, rtol=1e-4, atol=1e-5)
        same_objects(actual, ours, expected, eager)
        for one, other in zip(gradients, expected_gradients, strict=True):
            one, other = (torch.zeros(4, 4) if gradient is None else gradient for gradient in (one, other))
            assert_same(one, other, strides=False, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_network(partition: str) -> None:
    def fn(x, w, scale, shift, mean, var, count):
        count.add_(1)
        return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, scale, shift, training=True))

    inputs = [leaf(2, 3, 8, 8), leaf(4, 3, 3, 3), leaf(4), leaf(4), torch.zeros(4), torch.ones(4), torch.tensor(0)]
    check(fn, inputs, partition=partition, rtol=1e-4, atol=1e-5)


def test_random_numbers_are_eagers() -> None:
    def fn(x):
        return F.dropout(x, 0.4) * torch.rand_like(x) + torch.randn(3)

    x = leaf(5, 3)
    for call in (aot_function(fn, nop), aot_function(fn, nop, partition_fn=min_cut_rematerialization_partition)):
        results = []
        for each in (fn, call):
            torch.manual_seed(3)
            y = each(x)
            results.append([y, torch.autograd.grad(y.sum(), x)[0], torch.rand(2)])
        for one, other in zip(*results):
            torch.testing.assert_close(one, other)
    kinds = set().union(*map(targets, graphs_of(fn, x).values()))
    assert not [kind for kind in kinds if not kind.startswith("aten.")]


def test_generators_among_the_arguments() -> None:
    def fn(x, generator):
        return x * torch.rand(3, generator=generator) + torch.randn(3, generator=generator)

    call, x = aot_function(fn, nop), leaf(3)
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for _ in range(2):
        torch.testing.assert_close(call(x, ours), fn(x, theirs))


def test_tangents_in_any_layout() -> None:
    x = leaf(4, 6)
    call = aot_function(lambda x: x.sin(), nop)
    for tangent in (torch.ones(()).expand(4, 6), torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2]):
        torch.testing.assert_close(torch.autograd.grad(call(x), x, tangent)[0], x.cos().detach() * tangent)


def test_autocast() -> None:
    x, w = torch.randn(4, 4), leaf(4, 4)

    def fn(x, w):
        return (x @ w).float().exp() @ w

    with torch.autocast("cpu", torch.bfloat16):
        check(fn, [x, w], partition="default", rtol=1e-2, atol=1e-2)
    call = aot_function(fn, nop)
    assert call(x, w).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, w).dtype == torch.bfloat16  # another version


def test_duplicated_arguments_are_one_input() -> None:
    seen = []

    def compiler(graph, examples):
        seen.append(len(examples))
        return graph

    call = aot_function(lambda a, b: (a.add_(1), b * 2), compiler, keep_inference_input_mutations=True)
    x = torch.randn(3)
    expected = (x + 1, (x + 1) * 2)
    assert call(x, x)[0] is x
    torch.testing.assert_close((x, call(torch.zeros(3), x)[1]), expected)
    assert seen == [1, 2]


def _no_grad_view(base: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return base[:2]


SHARING = {
    "views": lambda base: (base[0], base[1:], base.t()),
    "a_base": lambda base: (base, base[0:1], base.view(-1)),
    "a_base_later": lambda base: (base[:2], base, base),
    "detached": lambda base: (base.detach(), base.data[1:], base),
    "without_grad": lambda base: (base, _no_grad_view(base), torch.ones(3)),
}
SHARED_WRITES = {
    "first": lambda a, b, c: (a.mul_(2), b + 1, c * c),
    "none": lambda a, b, c: (a * 3, b.exp(), c.sin()),
    "view": lambda a, b, c: (a[0].zero_(), b.view(b.shape), c, a.sum()),
    "two": lambda a, b, c: (a.mul_(2), b.detach().sin_(), c.cos()),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("written", SHARED_WRITES)
def test_arguments_that_share_memory(sharing: str, written: str, grad: bool) -> None:
    if grad and sharing == "without_grad" and written != "none":
        pytest.skip("eager refuses it")
    fn, start, results = SHARED_WRITES[written], torch.randn(4, 3), []
    compiled = aot_function(fn, nop)
    for each in (fn, compiled, compiled):
        leaf_of = start.clone().requires_grad_(grad)
        args = SHARING[sharing](leaf_of * 1)
        outs = flat(each(*args))
        parts = [(out * (at + 1)).sum() for at, out in enumerate([*outs, *args]) if out.requires_grad]
        gradients = torch.autograd.grad(sum(parts), leaf_of) if parts else ()
        results.append((outs, args, gradients))
    expected = results.pop(0)
    for actual in results:
        for one, other in zip(chain(*actual), chain(*expected), strict=True):
            assert_same(one, other)
        same_objects(*actual[:2], *expected[:2])
        assert all(one._version > 0 or not other._version for one, other in zip(actual[1], expected[1]))


def test_versions_for_memory_that_is_shared_otherwise() -> None:
    memory, seen = torch.randn(12), []

    def compiler(graph, examples):
        seen.append(graph)
        return graph

    def fn(a, b):
        return a.add_(1), b * 2

    call = aot_function(fn, compiler)
    for first, second in ((0, 2), (1, 2), (0, 2), (0, 8)):
        ours, theirs = memory.clone(), memory.clone()
        actual, expected = (each(m[first:][:4], m[second:][:4]) for each, m in ((call, ours), (fn, theirs)))
        torch.testing.assert_close((*actual, ours), (*expected, theirs))
    assert len(seen) == 3
    call(torch.zeros(4), torch.zeros(4))
    assert len(seen) == 4


@pytest.mark.parametrize("grad", [True, False])
def test_arguments_change_their_shapes_in_place(grad: bool) -> None:
    def fn(a, b):
        b.mul_(2)
        b.unsqueeze_(0)
        a.t_()
        return (a * b).sin(), a, b

    call = aot_function(fn, nop, dynamic=True)
    for rows in (4, 2, 5):
        w, data, results = torch.randn(rows, 3), torch.randn(3, 2 * rows), []
        for each in (call, fn):
            own = w.clone().requires_grad_(grad)
            a, b = own * 1, data.clone()[:, ::2]
            out, first, second = each(a, b)
            assert first is a and second is b
            gradients = torch.autograd.grad((out + a * 2).sum(), own) if grad else ()
            results.append([out, a, b, *(gradient.contiguous() for gradient in gradients)])
        for one, other in zip(*results):
            assert_same(one, other)


OF_DATA = {
    "sizes": lambda x, n: (x * 2)[x > 0].sin(),
    "integer": lambda x, n: x * n.max().item(),
    "float": lambda x, n: x * x.sum().item(),
    "new": lambda x, n: x.sum() + torch.zeros(n.max().item(), 3),
}


@pytest.mark.parametrize("name", OF_DATA)
def test_numbers_and_sizes_that_are_data(name: str) -> None:
    check(OF_DATA[name], [leaf(5), torch.tensor([2, 3])], partition="default")


def test_results_that_are_numbers() -> None:
    def fn(x):
        return x, x.max().item(), x.shape[0] / 2, x.shape[0] > 3, x.shape[0] // 2, x.shape

    call = aot_function(fn, nop, dynamic=True)
    for numbers in ([1, 2], [1.0, 2.0, 3.0, 4.0], [5, 6, 7], [2.0, 3.0]):
        x = torch.tensor(numbers)
        assert call(x)[1:] == fn(x)[1:] and call(x)[0] is x


def test_grad_mode_switched_inside() -> None:
    def fn(x):
        with torch.no_grad():
            first = x * 2
        with torch.enable_grad():
            return first, x.sin()

    check(fn, [leaf(3)], partition="default")
    with torch.no_grad():
        check(fn, [leaf(3)], partition="default")


def test_inside_of_transforms_and_of_others() -> None:
    x = torch.randn(3, 2)
    inner = aot_function(lambda x: x.sin(), nop)
    torch.testing.assert_close(torch.vmap(inner)(x), x.sin())
    torch.testing.assert_close(torch.func.grad(lambda x: inner(x).sum())(x), x.cos())
    check(lambda x: inner(x) * 2, [leaf(3)], partition="default")


def test_a_program_that_asks_for_offsets() -> None:
    call = aot_function(lambda x: x + x.storage_offset(), nop)
    memory = torch.zeros(5)
    assert [call(memory[at:][:2]).tolist() for at in (0, 3, 0)] == [[0, 0], [3, 3], [0, 0]]


def test_gradients_of_gradients() -> None:
    x = leaf(3, dtype=torch.float64)
    call = aot_function(lambda x: (x.sin() * x).sum(), nop)
    assert torch.autograd.gradgradcheck(call, (x,))


def test_results_that_are_no_tensors_and_odd_arguments() -> None:
    def fn(x, *, factor, flags):
        return {"y": x * factor, "flags": flags, "rest": [None, 3, x.shape[0]]}

    call = aot_function(fn, nop)
    x = leaf(4)
    for factor in (2, 2.0, 3):
        result = call(x, factor=factor, flags={"a": True})
        torch.testing.assert_close(result["y"], x * factor)
        assert result["flags"] == {"a": True} and result["rest"] == [None, 3, 4]
    assert aot_function(lambda: torch.ones(2), nop)().tolist() == [1, 1]
    empty = torch.randn(0, 3, requires_grad=True)
    assert aot_function(lambda x: x.sum(), nop)(empty) == 0


def test_static_argnums() -> None:
    table = torch.arange(3.0)
    calls = []

    def fn(x, mode, table):
        calls.append(mode)
        return x * 2 if mode == "double" else x + table

    graphs = {}
    call = aot_function(fn, keeping(graphs, "inference"), static_argnums=(1, 2))
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(call(x, "double", table), x * 2)
        torch.testing.assert_close(call(x, "other", table), x + table)
    assert calls == ["double", "other"]
    assert len(names(graphs["inference"])) == 1


def test_versions() -> None:
    """One for each kind of arguments and modes."""
    count = []

    def compiler(graph, examples):
        count.append(examples)
        return graph

    def fn(x, w):
        return (x @ w).relu()

    call = aot_function(fn, compiler, inference_compiler=compiler)
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    for _ in range(2):
        for args in ((x, w), (x.double(), w.double()), (x[:1], w), (x, w.t().contiguous().t())):
            torch.testing.assert_close(call(*args), fn(*args))
    assert len(count) == 4
    w.requires_grad_()
    call(x, w).sum().backward()
    with torch.no_grad():
        call(x, w)
    assert len(count) == 4 + 2 + 1


@pytest.mark.parametrize("partition", PARTITIONS)
def test_symbolic_sizes(partition: str) -> None:
    graphs: dict[str, Any] = {}
    keep = partial(keeping, graphs)

    def fn(x, w):
        return (x.view(-1, 2, w.shape[0]).sum(1) @ w).exp().mean(0), x.shape[0] * 2

    call = aot_function(fn, keep("f"), keep("b"), dynamic=True, partition_fn=PARTITIONS[partition])
    first = None
    for rows in (4, 6, 10):
        x, w = leaf(rows, 3), leaf(3, 5)
        (actual, size), (expected, _) = call(x, w), fn(x, w)
        assert size == rows * 2
        torch.testing.assert_close(actual, expected)
        for one, other in zip(*(torch.autograd.grad(out.sum(), (x, w)) for out in (actual, expected))):
            torch.testing.assert_close(one, other)
        first = first or graphs["f"]
        assert graphs["f"] is first
    (slot,) = [node for node in first.graph.nodes if node.name == "primals_1"]
    rows, columns = slot.meta["val"].shape
    assert str(rows.node.expr).startswith("s") and rows.node.hint == 4 and slot.meta["val"].stride() == (columns, 1)
    for node in first.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        assert node.meta["val"].node.expr == node.args[0].meta["val"].shape[node.args[1]].node.expr
    assert names(graphs["b"])[-1] == "tangents_1" and len(graphs["b"].graph.output_node().args[0]) == 2


# ---- graphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_torchs_tools_compute_with_the_values_of_nodes(dynamic: bool) -> None:
    """They are PyTorch's tensors without data, all of one mode: what a tool computes of them is what graphs say."""
    graphs: list[Any] = []
    keep = lambda graph, examples: (graphs.append(graph), graph)[1]  # noqa: E731
    norm = torch.nn.LayerNorm(6)
    call = aot_function(lambda x: norm(x).t().log_softmax(0)[1:], keep, keep, dynamic=dynamic)
    call(leaf(5, 6)).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        known = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        mode = detect_fake_mode(known)
        assert mode is not None and (mode.shape_env is not None) == dynamic
        before = {node: node.meta["val"] for node in graph.graph.nodes if node.op != "output"}
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*known)
        for node, value in before.items():
            if isinstance(value, torch.Tensor):
                found, said = ((str(each.shape), each.dtype, each.device) for each in (node.meta["val"], value))
                assert found == said, node


def test_graphs_are_pytorchs() -> None:
    x, w = leaf(3, 4), leaf(4, 5)
    graphs = graphs_of(lambda x, w: (torch.nn.functional.gelu(x @ w), (x * 2).t()), x, w)
    assert sorted(graphs) == ["backward", "forward"]
    assert names(graphs["forward"]) == ["primals_1", "primals_2"]
    assert names(graphs["backward"])[-2:] == ["tangents_1", "tangents_2"]
    for graph in graphs.values():
        assert type(graph) is not object and isinstance(graph, torch.fx.GraphModule)
        for node in graph.graph.nodes:
            if node.op == "output":
                continue
            value, layout = node.meta["val"], node.meta["tensor_meta"]
            assert value.device.type == "cpu" and value.dtype == layout.dtype == torch.float32
            assert value.stride() == layout.stride and value.shape == layout.shape
            assert node.op != "call_function" or node.target.namespace == "aten"
    (mm,) = [node for node in graphs["forward"].graph.nodes if node.target is torch.ops.aten.mm.default]
    assert mm.meta["val"].shape == (3, 5)
    with torch.no_grad():
        graphs = graphs_of(lambda x, w: x @ w, x, w)
    assert sorted(graphs) == ["inference"] and names(graphs["inference"]) == ["arg0_1", "arg1_1"]


def test_writes_in_inference_graphs() -> None:
    for keeps in (False, True):
        x = torch.randn(3)
        graphs = graphs_of(lambda x: x.mul_(2).sin(), x, keep_inference_input_mutations=keeps)
        assert ("aten.copy_.default" in targets(graphs["inference"])) is keeps
        assert len(graphs["inference"].graph.output_node().args[0]) == 2 - keeps


def test_the_backward_is_compiled_with_the_forward() -> None:
    assert "backward" in graphs_of(lambda x: x.sin(), leaf(3))


@pytest.mark.parametrize("partition", OURS)
def test_what_is_saved(partition: str) -> None:
    graphs = graphs_of(
        lambda x, w: (x @ w).sin().exp().sum(), leaf(8, 8), leaf(8, 8), partition_fn=PARTITIONS[partition]
    )
    saved = len(graphs["forward"].graph.output_node().args[0]) - 1
    assert saved == len(names(graphs["backward"])) - 1
    assert saved == (4 if partition == "default" else 3)


def test_only_recomputable_operations_are_done_again() -> None:
    aten = torch.ops.aten
    for ops, again in (({aten.sin}, {"aten.sin.default"}), (set(), set())):
        split = partial(min_cut_rematerialization_partition, recomputable_ops=ops)
        graphs = graphs_of(lambda x: x.sin().tanh().sin().exp().mul(3).exp().sum(), leaf(64, 64), partition_fn=split)
        forward = targets(graphs["forward"])
        assert (targets(graphs["backward"]) & forward) - {"aten.mul.Tensor", "aten.mul.Scalar"} <= again


def test_a_partition_function_of_the_users() -> None:
    seen = {}

    def split(joint, inputs, *, num_fwd_outputs):
        seen["placeholders"], seen["outputs"] = names(joint), num_fwd_outputs
        primals, tangents = inputs
        seen["inputs"] = len(primals), len(tangents)
        for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.tanh.default
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    x, w = leaf(3), torch.randn(3)
    y = aot_function(lambda x, w: (x.sin(), w.add_(1)), nop, partition_fn=split)(x, w)[0]
    torch.testing.assert_close(y, x.tanh())
    assert seen == {"placeholders": ["primals_1", "primals_2", "tangents_1"], "outputs": 2, "inputs": (2, 1)}


def test_partition_functions_take_joint_graphs_of_make_fx() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def joint(primals_1, primals_2, tangents_1):
        y = (primals_1 @ primals_2).sin()
        return [y, *torch.autograd.grad(y, (primals_1, primals_2), tangents_1)]

    x, w, t = leaf(3, 4), leaf(4, 5), torch.randn(3, 5)
    graph = make_fx(joint)(x, w, t)
    for slot in graph.graph.find_nodes(op="placeholder"):
        slot.target = slot.name = slot.name.removesuffix("_1") if slot.name.endswith("_1_1") else slot.name
    graph.recompile()
    expected = joint(x, w, t)
    for split in (default_partition, min_cut_rematerialization_partition):
        forward, backward = split(graph, None, num_fwd_outputs=1)
        y, *saved = forward(x.detach(), w.detach())
        torch.testing.assert_close([y, *backward(*saved, t)], expected)


# ---- decompositions -------------------------------------------------------------------------------------------------


def test_decompositions_take_place_before_the_partition() -> None:
    aten = torch.ops.aten
    table = torch._decomp.get_decompositions([aten.silu, aten.silu_backward, aten.native_layer_norm])
    x, w = leaf(4, 6), leaf(6)

    def fn(x, w):
        return F.layer_norm(F.silu(x), (6,), w)

    joints = []

    def split(joint, inputs, *, num_fwd_outputs):
        joints.append(targets(joint))
        return min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    compiled = aot_function(fn, nop, decompositions=table, partition_fn=split)
    check(fn, [x, w], make=lambda *_: compiled, rtol=1e-4, atol=1e-5)
    assert "aten.sigmoid.default" in joints[0]
    assert not [name for name in joints[0] if "silu" in name or name.startswith(("prims", "aten.native_layer_norm.d"))]


def test_own_decompositions() -> None:
    def tanh(x):
        return 2 * torch.sigmoid(2 * x) - 1

    graphs = graphs_of(lambda x: x.tanh() * 2, leaf(5), decompositions={torch.ops.aten.tanh: tanh})
    assert "aten.tanh.default" not in targets(graphs["forward"]) and "aten.sigmoid.default" in targets(
        graphs["forward"]
    )
    check(
        lambda x: x.tanh() * 2,
        [leaf(5)],
        make=lambda fn, *_: aot_function(fn, nop, decompositions={torch.ops.aten.tanh.default: tanh}),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_all_core_decompositions(dynamic: bool) -> None:
    from torch._decomp import core_aten_decompositions

    def fn(x, w, b):
        y = F.layer_norm(F.gelu(F.linear(x, w, b)), (w.shape[0],))
        return F.cross_entropy(F.dropout(y.softmax(-1), 0.0), torch.zeros(x.shape[0], dtype=torch.long)), y.var(
            0
        ).clamp(0)

    compiled = aot_function(fn, nop, decompositions=core_aten_decompositions(), dynamic=dynamic)
    for rows in (4, 7):
        check(fn, [leaf(rows, 3), leaf(5, 3), leaf(5)], make=lambda *_: compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_backend_that_decomposes(dynamic: bool) -> None:
    def fn(x, w):
        y = F.hardswish(F.layer_norm(F.silu(x @ w), (5,)))
        y[:, 0].mul_(2)
        return F.huber_loss(y, torch.ones_like(y)), F.pad(y, (1, 1)).var(0)

    kinds: set[str] = set()
    compiled = bolide.compile(fn, backend="aot_eager_decomp_partition", dynamic=dynamic, fullgraph=True)
    with events.subscribed(lambda event: kinds.update(targets(event.graph)) if type(event) is events.Graph else None):
        for rows in (3, 4):
            check(fn, [leaf(rows, 6), leaf(6, 5)], make=lambda *_: compiled, rtol=1e-4, atol=1e-5)
    assert "aten.sigmoid.default" in kinds
    composed = ("silu", "norm_backward", "hardswish", "huber", "prims")
    assert not [kind for kind in kinds if any(name in kind for name in composed)]


# ---- modules --------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, *, scale=1.0):
        return self.norm(self.second(self.first(x))) * scale


def test_modules() -> None:
    import copy

    model = Tied()
    eager = copy.deepcopy(model)
    compiled = aot_module(model, nop, partition_fn=min_cut_rematerialization_partition)
    assert isinstance(compiled, nn.Module) and compiled.orig_module is model
    for rows in (5, 3):
        x = torch.randn(rows, 4)
        for one in (compiled, eager):
            one(x, scale=2.0).square().sum().backward()
    for (_, one), (_, other) in zip(model.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    for one, other in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    model.eval(), eager.eval()
    torch.testing.assert_close(compiled(x), eager(x))


def test_simplified_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x, y):
            return (self.inner(x) + y, y)

    compiles = []

    def compiler(graph, examples):
        compiles.append(graph)
        return graph

    net, x, y = Net(), torch.randn(4, 3), torch.randn(2)
    call = aot_module_simplified(net, (x, y), compiler)
    assert len(compiles) == 2
    first, second = call(x, y)
    torch.testing.assert_close(first, net(x, y)[0])
    assert second is y and len(compiles) == 2
    first.sum().backward()
    assert dict(call.named_parameters())["inner.weight"].grad is not None
    call.zero_grad()
    assert net.inner.weight.grad is None and not [*call.named_buffers()]


def test_simplified_modules_for_examples_without_data() -> None:
    from torch._subclasses import FakeTensorMode

    net, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(4, 3)
    call = aot_module_simplified(net, (FakeTensorMode().from_tensor(x),), nop)
    torch.testing.assert_close(call(x), net(x))


# ---- compilers ------------------------------------------------------------------------------------------------------


def test_boxed_functions_take_one_list() -> None:
    boxed = make_boxed_func(lambda x, y: x - y)
    assert boxed([5, 3]) == 2 and boxed._boxed_call
    given = []

    def compiler(graph, examples):
        def run(args):
            given.append([*args])
            values = graph(*args)
            args.clear()
            return values

        run._boxed_call = True
        return run

    x = leaf(3)
    y = aot_function(lambda x: x.exp(), compiler)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert [len(args) for args in given] == [1, 2]
    assert make_boxed_compiler(nop)(torch.fx.symbolic_trace(lambda x: x + 1), [1])([2]) == 3


def test_a_compiler_may_return_one_tensor() -> None:
    call = aot_function(lambda x: x + 1, lambda graph, examples: lambda x: graph(x)[0])
    assert call(torch.zeros(2)).tolist() == [1, 1]


def test_compilers_can_ask_for_the_name_of_their_graph() -> None:
    seen = []

    def compiler(graph, examples):
        (name,), _, count = bolide.functorch.get_aot_compilation_context()
        seen.append(name.partition("_")[2])
        assert bolide.functorch.get_graph_being_compiled() == f"model__{name}_{count}"
        return graph

    call = aot_function(lambda x: x.sin(), compiler)
    call(leaf(3)), call(torch.ones(2))
    assert seen == ["forward", "backward", "inference"]
    assert bolide.functorch.get_aot_compilation_context()[0] == []


def test_errors() -> None:
    def broken(graph, examples):
        raise ValueError("no such graph")

    with pytest.raises(ValueError, match="no such graph"):
        aot_function(lambda x: x + 1, broken)(torch.ones(1))
    with pytest.raises(Unsupported, match="data"):
        aot_function(lambda x: x if x.sum() > 0 else -x, nop)(torch.ones(2))
    with pytest.raises(Unsupported, match="layout"):
        aot_function(lambda x: x * 2, nop)(torch.eye(2).to_sparse())
    with pytest.raises(ZeroDivisionError):
        aot_function(lambda x: x / 0 if 1 / 0 else x, nop)(torch.ones(2))
    call = aot_function(lambda x: x + 1, nop)
    assert call(torch.zeros(1)).tolist() == [1]  # nothing is left of those
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(ValueError, match="meta"):
        default_partition(graph, None, num_fwd_outputs=1)


def test_pictures(tmp_path: Any) -> None:
    x = leaf(3)
    graph = graphs_of(lambda x: x.sin(), x)["forward"]
    draw_graph(graph, str(tmp_path / "one.dot"), clear_meta=False)
    text = (tmp_path / "one.dot").read_text()
    assert "digraph" in text and '"primals_1" -> "sin"' in text and "float32[3]" in text
    split = partial(draw_joint_graph, file_name=str(tmp_path / "joint.dot"))
    aot_function(lambda x: x.sin(), nop, partition_fn=split)(x)
    assert "tangents_1" in (tmp_path / "joint.dot").read_text()


def test_names_are_found_late() -> None:
    assert bolide.functorch.aot_function is bolide.functorch.compiled_function is aot_function
    assert bolide.functorch.aot_module is bolide.functorch.compiled_module is aot_module
    assert bolide.functorch.min_cut_rematerialization_partition is min_cut_rematerialization_partition
    for module in (bolide.functorch, bolide.functorch.partitioners):
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018


def test_fresh_random_choices_are_possible(seed: int) -> None:
    """A program of a random choice of operations, with symbolic sizes, for several sizes."""
    choose = random.Random(seed)
    steps = [
        choose.choice([torch.sin, torch.tanh, lambda t: t * 2, lambda t: t - t.mean(), torch.relu]) for _ in range(6)
    ]

    def fn(x):
        for step in steps:
            x = step(x)
        return x.sum(0)

    call = aot_function(fn, nop, dynamic=True)
    for rows in (2, 5, 1, 0, 3):
        x, y = fresh([leaf(rows, 3, dtype=torch.float64)] * 2)
        y = y.detach().copy_(x.detach()).requires_grad_()
        (one,), (other,) = (torch.autograd.grad(each(z).sum(), z) for each, z in ((call, x), (fn, y)))
        torch.testing.assert_close(one, other, equal_nan=True)
