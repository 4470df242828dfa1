"""One trace with symbolic sizes is right for other sizes: values, gradients, strides; and its guards say for which."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F

from bolide.symbolic import Expr, ShapeEnv
from bolide.tracing import TensorMeta, Trace
from bolide.tracing.operations import primitives
from bolide.tracing.rules import registry

Program = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]


def _gradients(result: Any, leaves: list[Any]) -> tuple[Any, ...]:
    ones = torch.ones_like(result)
    return torch.autograd.Variable._execution_engine.run_backward(  # type: ignore[no-any-return, no-untyped-call]
        (result,), (ones,), False, False, tuple(leaves), allow_unreachable=True, accumulate_grad=False
    )


def _traced(program: Program, weights: list[torch.Tensor], x: torch.Tensor, dims: list[int]) -> tuple[Trace, Any]:
    """The trace of forward and backward with these dimensions symbolic, and the module that it makes."""
    trace = Trace()
    sizes = {dim: trace.size(x.shape[dim], f"size{dim}") for dim in dims}
    traced = [trace.input(weight, f"weight{i}") for i, weight in enumerate(weights)]
    with trace.recording():
        result = program(traced, trace.input(x, "x", sizes))  # type: ignore[arg-type]
        outputs = [result, *_gradients(result, traced)]
    trace.graph.output([output.node for output in outputs])
    trace.graph.lint()
    return trace, torch.fx.GraphModule(trace.constants, trace.graph)


def _mlp(w: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w[0], w[1])), w[2]).softmax(-1)


def _conv_net(w: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = F.relu(F.batch_norm(F.conv2d(x, w[0], padding=1), None, None, w[1], w[2], True))
    return F.linear(F.adaptive_avg_pool2d(F.max_pool2d(h, 2), 1).flatten(1), w[3])


def _attention(w: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    q, k, v = F.linear(F.layer_norm(x, (16,), w[2], w[3]), w[0]).split(16, -1)
    q, k, v = (t.view(batch, length, 4, 4).transpose(1, 2) for t in (q, k, v))
    mask = torch.full((length, length), -1e9).triu(1) + torch.arange(length)[:, None] * 0
    mixed = (q @ k.transpose(-1, -2) / 2 + mask).softmax(-1) @ v
    mixed = mixed + F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + F.linear(mixed.transpose(1, 2).reshape(batch, length, width), w[1])


CASES: dict[str, tuple[Program, list[tuple[int, ...]], list[int], list[tuple[int, ...]]]] = {
    "mlp": (_mlp, [(16, 8), (16,), (4, 16)], [0], [(5, 8), (9, 8), (3, 8)]),
    "conv net": (_conv_net, [(8, 3, 3, 3), (8,), (8,), (5, 8)], [0, 2, 3], [(4, 3, 8, 8), (6, 3, 12, 10)]),
    "attention": (_attention, [(48, 16), (16, 16), (16,), (16,)], [0, 1], [(3, 7, 16), (5, 12, 16), (2, 3, 16)]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_trace_for_all_sizes(name: str) -> None:
    program, shapes, dims, inputs = CASES[name]
    weights = [torch.randn(shape, requires_grad=True) for shape in shapes]
    trace, module = _traced(program, weights, torch.randn(inputs[0]), dims)
    assert len(trace.shapes.hints) == len(dims)
    for shape in inputs:
        values = {size: shape[dim] for size, dim in zip(trace.shapes.hints, dims)}
        assert all(guard.evaluate(values) for guard in trace.shapes.guards), trace.shapes.guards
        x = torch.randn(shape)
        wanted = program(weights, x)
        expected = [wanted, *torch.autograd.grad(wanted, weights, torch.ones_like(wanted))]
        for told, real in zip(module(*weights, x, *values.values()), expected):
            torch.testing.assert_close(told, real, rtol=1e-4, atol=1e-4)
            assert told.stride() == real.stride()


def test_guards_say_what_was_assumed() -> None:
    trace = Trace()
    x = trace.input(torch.randn(6, 3), "x", {0: trace.size(6, "rows")})
    with trace.recording():
        if x.shape[0] > 4:
            x = x.view(2, -1)  # type: ignore[assignment]
    guards = {guard.text() for guard in trace.shapes.guards}
    assert "s0 >= 5" in guards
    assert all(guard.evaluate({"s0": 6}) for guard in trace.shapes.guards)


def test_zero_and_one_are_not_symbolic() -> None:
    env = ShapeEnv()
    assert env.size(0) == 0 and env.size(1) == 1 and not env.hints


def test_integer_arithmetic_of_sizes() -> None:
    env = ShapeEnv()
    a, b = env.size(6), env.size(10)
    assert (a * b // a).node.expr is b.node.expr
    assert ((a + 3) * 2 - a).node.expr is a.node.expr + 6
    assert (a % 4).node.hint == 2 and (7 - a).node.hint == 1
    assert not env.guards or all(guard.evaluate(env.hints) for guard in env.guards)
    assert a + 1 > a and a >= 2
    assert not env.guards  # both follow from the bounds
    assert a < b and [guard.text() for guard in env.guards] == ["s1 >= s0 + 1"]
    assert int(a) == 6 and a.node.expr.eq(6) in env.guards
    assert isinstance(b.node.expr, Expr)


def _operations(trace: Trace) -> list[str]:
    return [str(node.target) for node in trace.graph.nodes if node.op == "call_function"]


def _recorded(*shape: int) -> tuple[Trace, torch.Tensor]:
    """A trace, and an input of it whose sizes are all symbolic."""
    trace = Trace()
    sizes = {dim: trace.size(size, f"size{dim}") for dim, size in enumerate(shape)}
    return trace, trace.input(torch.randn(shape), "x", sizes)


def test_whole_slices_are_no_views() -> None:
    trace, x = _recorded(3, 5, 7)
    with trace.recording():
        y = x[:, :, None]
    assert _operations(trace) == ["aten.unsqueeze.default"]
    assert y.shape[:2] == x.shape[:2] and not trace.shapes.guards


def test_inferred_size_is_found_beside_a_sum_of_sizes() -> None:
    trace, x = _recorded(3, 8)
    batch, length = x.shape[0] + 1, x.shape[1]
    heads = trace.input(torch.randn(4, 8, 4, 16), "heads", {0: batch, 1: length})
    with trace.recording():
        assert heads.reshape(batch, length, -1).shape[2] == 64
        assert heads.flatten(1).view(batch, -1, 16).shape[1].node.expr is (length * 4).node.expr
    assert not trace.shapes.guards


def test_tensors_with_one_meta_change_their_shape_alone() -> None:
    trace, x = _recorded(3, 5)
    with trace.recording():
        a, b, c = x + 1, x + 1, x + 1
        b.t_()
    assert a.shape == c.shape == x.shape and b.shape == x.shape[::-1]
    assert (a + 1).shape == x.shape


_OF_ONE: list[tuple[Any, tuple[Any, ...]]] = [
    (F.batch_norm, ("w0", "w0", "w0", "w0")),
    (torch.conv2d, ("w", None, 2, 1)),
    (torch.conv2d, ("w", None, 1, "same")),
    (F.layer_norm, ((8,), "w0")),
    (F.relu, (True,)),
]
PRIMITIVE = [
    torch.cat,
    torch.Tensor.view,
    torch.Tensor.add_,
    F.gelu,
    operator.mul,
    torch.relu,
    *(f for f, _ in _OF_ONE),
]
COMPOSITE = [torch.matmul, torch.Tensor.reshape, torch.Tensor.to, torch.softmax, F.linear, operator.matmul, torch.where]


def test_functions_that_are_recorded_as_they_are() -> None:
    assert [f for f in PRIMITIVE if not primitives.is_primitive(f)] == []
    others = [*COMPOSITE, len, [].append, _mlp, torch.nn.Linear, {}.keys, "".format, torch.ones(1).__dir__]
    assert not any(map(primitives.is_primitive, others))
    _, x = _recorded(3, 5)
    assert primitives.is_primitive(x.view) and not primitives.is_primitive(x.reshape)
    assert not primitives.is_primitive(x.__dir__) and not primitives.is_primitive(x.__reduce_ex__)


@pytest.mark.parametrize("function, others", _OF_ONE)
@pytest.mark.parametrize("training", [False, True])
def test_functions_of_one_operation_record_it_for_all_sizes(function: Any, others: Any, training: bool) -> None:
    def recorded(call: Callable[..., Any]) -> tuple[list[str], list[Any]]:
        trace = Trace()
        sizes = {dim: trace.size(size, f"size{dim}") for dim, size in ((0, 3), (2, 9))}
        x = trace.input(torch.randn(3, 8, 9, 8), "x", sizes) * 1
        w = trace.input(torch.randn(8, 8, 3, 3), "w")
        given = {"w": w, "w0": w[:, 0, 0, 0].clone()}
        options = {"training": True} if training and function is F.batch_norm else {}
        with trace.recording(), torch.set_grad_enabled(training):
            y = call(function, (x, *(given[arg] if arg in ("w", "w0") else arg for arg in others)), options)
        return _operations(trace), [
            (tuple(map(str, y.shape)), tuple(map(str, y.stride()))),
            *map(str, trace.shapes.guards),
        ]

    assert recorded(primitives.call) == recorded(lambda function, args, options: function(*args, **options))


@pytest.mark.parametrize("around", [contextlib.nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_primitive_calls_are_those_of_the_dispatcher(around: Any) -> None:
    """With and without a transform around them they record what the dispatcher would have them record."""

    def program(call: Callable[..., Any]) -> list[str]:
        trace, x = _recorded(3, 8)
        w = trace.input(torch.randn(8, 8), "w")
        with trace.recording(), around():
            h = call(torch.addmm, x[0], x, w)
            h = torch.func.vmap(lambda row: call(operator.mul, call(torch.sin, row), row))(h)
            torch.func.jvp(lambda t: call(torch.mm, t, w), (h.to(w.dtype),), (x,))
        return _operations(trace)

    plain = program(lambda function, *args: function(*args))
    assert program(lambda function, *args: primitives.call(function, args, {})) == plain


def test_tensors_with_a_class_of_their_own_are_asked_with_the_dispatcher_on() -> None:
    """What they answer with may be composite."""
    found = []

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
            return args[0]

    trace, x = _recorded(3, 5)
    asked = torch.ones(1).as_subclass(Asked)
    with trace.recording():
        primitives.call(torch.mul, (asked, x), {})
        primitives.call(torch.cat, ([x, asked],), {})
    assert found == [True, True]


def test_recordings_that_end_in_another_order_leave_the_dispatcher_off() -> None:
    """A branch is recorded while a trace outside of it first meets a symbol."""
    key = torch._C.DispatchKey.PythonDispatcher
    outer, (inner, _), (last, _) = Trace(), _recorded(3, 5), _recorded(2, 4)
    with outer.recording():
        with inner.recording():
            outer.size(7, "n")
            with last.recording():
                assert torch._C._dispatch_tls_is_dispatch_key_included(key)
        assert torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)


def _linear_layers(x: Any, w: Any, b: Any) -> list[Any]:
    """Of rows that lie one after the other, and that do not; of written, negated and widened tensors."""
    written = x * 1
    written[..., 0].mul_(2.0)
    negated = torch.complex(x, x).conj().imag.contiguous()
    operands = [x, x[0], x[None], x.transpose(0, 1), written, written[..., :1] * x, negated, x[:, 1:]]
    layers = [F.linear(t, w, bias) for t in operands for bias in (None, b)]
    return [*layers, F.linear(x, torch.complex(w, w).conj().imag, b), F.linear(x, w[0]), F.linear(x, w, x[0])]


def _jvp_of_linear(x: Any, w: Any, b: Any) -> list[Any]:
    return list(torch.func.jvp(lambda t: F.linear(t, w, b), (x,), (x * 2,)))


MODES = [torch.no_grad, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)]


@pytest.mark.parametrize("program", [_linear_layers, _jvp_of_linear])
@pytest.mark.parametrize("mode", MODES)
def test_linear_layers_of_symbolic_rows(mode: Any, program: Any) -> None:
    """Where nobody asks for a derivative they are recorded at once: the nodes are those of torch's own calls."""
    shape = tuple(torch.randint(3, 9, (2,)).tolist())
    w, b = torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    trace = Trace()
    sizes = {dim: trace.size(shape[dim], f"size{dim}") for dim in (0, 1)}
    given = [trace.input(torch.randn(*shape, 8), "x", sizes), trace.input(w, "w"), trace.input(b, "b")]
    with trace.recording(), mode():
        made = program(*given)
    trace.graph.output([tensor.node for tensor in made])
    module = torch.fx.GraphModule(trace.constants, trace.graph)
    for rows, length in (shape, (shape[0] + 1, shape[1] + 2)):
        values = dict(zip(trace.shapes.hints, (rows, length)))
        if not all(guard.evaluate(values) for guard in trace.shapes.guards):
            assert program is _jvp_of_linear and (rows, length) != shape  # torch's forward derivatives ask for numbers
            continue
        x = torch.randn(rows, length, 8)
        with mode():
            expected = program(x, w, b)
            found = module(x, w, b, *values.values())
        for told, real, traced in zip(found, expected, made):
            torch.testing.assert_close(told, real, rtol=1e-2, atol=1e-2)
            assert told.stride() == real.stride() and traced.requires_grad == real.requires_grad


@pytest.mark.parametrize(
    "shape, bias", [((5, 8), True), ((5, 8), False), ((3, 5, 8), True), ((3, 5, 8), False), ((2, 3, 5, 8), False)]
)
def test_a_linear_layer_makes_the_nodes_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    """And no tensor on the way."""

    class Counted(Trace):
        asked = 0

        def dispatch(self, *call: Any) -> Any:
            self.asked += 1
            return super().dispatch(*call)

    def nodes(symbolic: bool) -> tuple[list[str], int]:
        trace = Counted()
        x = trace.input(torch.randn(shape), "x", {0: trace.size(shape[0], "size")} if symbolic else None)
        w, b = (trace.input(torch.randn(size), "w") for size in ((8, 8), (8,)))
        with trace.recording(), torch.no_grad():
            F.linear(x, w, b if bias else None)
        return sorted(name for name in _operations(trace) if name.startswith("aten")), trace.asked

    (recorded, asked), (wanted, others) = nodes(True), nodes(False)
    assert recorded == wanted and not asked and others


def test_private_kernels_are_never_run_on_sizes_that_may_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They check nothing: this one writes behind its memory unless there are `whole` // 2 + 1 columns."""
    asked: list[Any] = []
    real = registry.by_real_kernel

    def told(func: Any, args: Any, kwargs: Any) -> Any:
        asked.append((tuple(args[0].shape), args[3]))
        return real(func, args, kwargs)

    monkeypatch.setattr(registry, "by_real_kernel", told)
    trace, half = Trace(), random.randint(3, 40)
    rows, columns, whole = (
        trace.size(n, name) for n, name in ((2, "rows"), (half + 1, "columns"), (2 * half, "whole"))
    )
    meta = TensorMeta((rows, columns), (columns, 1), 0, torch.complex64, torch.device("cpu"))
    found = registry.by_torch(torch.ops.aten._fft_c2r.default, [meta, [1], 2, whole], {})
    assert found.shape == (rows, whole) and found.dtype is torch.float32
    assert ((2, half + 1), 2 * half) in asked and all(shape[1] == length // 2 + 1 for shape, length in asked)
