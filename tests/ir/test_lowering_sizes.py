"""Symbolic sizes: a graph lowered once is right for every size."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.inductor.ir.definitions import Extern
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.lowering import lower
from bolide.symbolic import ShapeEnv, contiguous_strides
from bolide.tracing.meta import TensorMeta, meta_of

B, T = 5, 7  # the sizes while recording; no other dimension has them


class Recorder(TorchDispatchMode):
    """Records the ATen calls of real tensors, with the sizes made of B and T made symbolic."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        env = ShapeEnv()
        b, t = env.size(B, "b"), env.size(T, "t")
        self.sizes = {B: b, T: t, B * T: b * t, B * T - 1: b * t - 1, 2 * B: 2 * b}
        self.graph, self.nodes, self.alive = fx.Graph(), {}, []
        for size in ("b", "t"):
            self.graph.placeholder(size).meta["val"] = {"b": b, "t": t}[size]
        for place, tensor in enumerate(inputs):
            self.bind(self.graph.placeholder(f"x{place}"), tensor)

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def bind(self, node: fx.Node, tensor: torch.Tensor) -> None:
        meta = meta_of(tensor)
        shape = tuple(self.sizes.get(size, size) for size in meta.shape)
        strides = contiguous_strides(shape)
        if meta.stride != contiguous_strides(meta.shape):  # a view: its strides are not read
            strides = tuple(meta.stride)
        node.meta["val"] = TensorMeta(shape, strides, 0, meta.dtype, meta.device)
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        def convert(arg: Any) -> Any:
            if isinstance(arg, torch.Tensor):
                return self.nodes[id(arg)]
            return self.sizes.get(arg, arg) if type(arg) is int else arg

        result = func(*args, **(kwargs or {}))
        node_args, node_kwargs = pytree.tree_map(convert, (args, kwargs or {}))
        node = self.graph.create_node("call_function", func, tuple(node_args), node_kwargs)
        if isinstance(result, torch.Tensor):
            self.bind(node, result)
            return result
        metas = []
        for place, item in enumerate(result):
            part = self.graph.call_function(operator.getitem, (node, place))
            self.bind(part, item)
            metas.append(part.meta["val"])
        node.meta["val"] = tuple(metas)
        return result


def attention(x, w):
    b, t, c = x.shape
    q = (x * w).view(b, t, 2, c // 2).transpose(1, 2)
    scores = torch.matmul(q, q.transpose(-2, -1)) / 3.0
    mask = torch.tril(torch.ones(t, t, dtype=torch.bool))
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
    return torch.matmul(weights, q).transpose(1, 2).reshape(b, t, c)


def norm(x, w):
    return F.layer_norm(x, (x.shape[-1],), w, None) + x.mean((0, 1))


def rows(x, w):
    return torch.cat((x.flatten(0, 1)[1:], (x * w).flatten(0, 1)[:1]), 0).relu()


def columns(x, w):
    return x.flip(1).sum((0, 1)), x.transpose(0, 1).var(0), torch.arange(x.shape[1]).float() * x[..., 0]


@pytest.mark.filterwarnings("ignore:Raw SymInt")
@pytest.mark.parametrize("function", [attention, norm, rows, columns], ids=lambda f: f.__name__)
def test_one_lowering_serves_all_sizes(function):
    inputs = [torch.randn(B, T, 8), torch.randn(8)]
    with Recorder(inputs) as recorder, torch.no_grad():
        results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    recorder.graph.output(tuple(recorder.nodes[id(result)] for result in results))
    program = lower(fx.GraphModule(torch.nn.Module(), recorder.graph))
    check_program(program)
    assert list(program.size_vars) == ["b", "t"]
    calls = {d.op for d in program.definitions if isinstance(d, Extern)}
    assert calls <= {torch.ops.aten.bmm.default}, calls
    for b, t in ((B, T), (2, 3), (3, 16)):
        real = [torch.randn(b, t, 8), inputs[1]]
        expected = function(*real)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for mine, theirs in zip(evaluate(program, real, {"b": b, "t": t}), expected):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
