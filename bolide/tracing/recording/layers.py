"""Recurrent layers over any number of time steps, as one operation.

ATen's `lstm`, `gru`, `rnn_tanh` and `rnn_relu` take a time step at a time, so a trace of them is one of a fixed length.
`bolide::recurrent` is the whole layer, called when the program runs. Where it is differentiated,
`bolide::recurrent_forward` keeps what the engine has recorded of it, for `bolide::recurrent_backward`. All take time
first, or packed sequences with their batch sizes, and give results in row-major order, as ATen does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch

from bolide.support.errors import Unsupported
from bolide.symbolic import Size, hint_of
from bolide.tracing.graph import operator
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import fresh, row_major
from bolide.tracing.rules.registry import rule
from bolide.tracing.tensor import Recording, TracedTensor

_LAYERS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
_ARGUMENTS = (
    "str kind, Tensor x, Tensor? batch_sizes, Tensor[] state, Tensor[] weights, bool biases, int layers, "
    "bool bidirectional, ScalarType? autocast"
)
Tensors = Sequence[torch.Tensor]


class _Layer(NamedTuple):
    """The arguments of the operators: `weights` as ATen takes them, layer by layer, of `layers` in all; `autocast`: the
    type under which a layer runs, because casts are between its time steps."""

    kind: str
    x: torch.Tensor
    batch_sizes: torch.Tensor | None
    state: Tensors
    weights: Tensors
    biases: bool
    layers: int
    bidirectional: bool
    autocast: torch.dtype | None


def _run(layer: _Layer, train: bool = False) -> list[torch.Tensor]:
    start = list(layer.state) if layer.kind == "lstm" else layer.state[0]
    options = (start, list(layer.weights), layer.biases, layer.layers, 0.0, train, layer.bidirectional)
    run, x, batch_sizes = _LAYERS[layer.kind], layer.x, layer.batch_sizes
    given = (x, *options, False) if batch_sizes is None else (x, batch_sizes, *options)
    if layer.autocast is None:
        results = run(*given)
    else:
        with torch.autocast(x.device.type, layer.autocast):
            results = run(*given)
    return [tensor.contiguous() for tensor in results]


class _Recorded(bytearray):
    """The memory of a token: a run of a layer that the engine has recorded lives as long as the token does."""

    leaves: list[torch.Tensor]
    results: list[torch.Tensor]


_recorded: weakref.WeakValueDictionary[int, _Recorded] = weakref.WeakValueDictionary()
"""By the addresses of tokens, all of which are equal: runs that are compared have equal results."""


def _record(layer: _Layer) -> _Recorded:
    run, count = _Recorded(8), 1 + len(layer.state)
    run.leaves = leaves = [tensor.detach().requires_grad_() for tensor in (layer.x, *layer.state, *layer.weights)]
    with torch.enable_grad():
        run.results = _run(layer._replace(x=leaves[0], state=leaves[1:count], weights=leaves[count:]), train=True)
    return run


def _run_forward(layer: _Layer) -> list[torch.Tensor]:
    """The results, which the program may write to, and a token."""
    run = _record(layer)
    token = torch.frombuffer(run, dtype=torch.int64)
    _recorded[token.data_ptr()] = run
    return [*(tensor.detach().clone() for tensor in run.results), token]


def _run_backward(layer: _Layer, token: torch.Tensor, tangents: Tensors, wanted: Sequence[bool]) -> list[torch.Tensor]:
    """The gradients that are `wanted` of input, state and weights. The run is made again where the token is a copy."""
    run = _recorded.get(token.data_ptr()) or _record(layer)
    leaves = tuple(compress(run.leaves, wanted))
    engine = torch.autograd.Variable._execution_engine
    grads = engine.run_backward(tuple(run.results), tuple(tangents), True, False, leaves, True, False)
    return [torch.zeros_like(leaf) if grad is None else grad.contiguous() for leaf, grad in zip(leaves, grads)]


recurrent = operator(f"recurrent({_ARGUMENTS}) -> Tensor[]", lambda *given: _run(_Layer(*given)))
recurrent_forward = operator(
    f"recurrent_forward({_ARGUMENTS}) -> Tensor[]", lambda *given: _run_forward(_Layer(*given))
)
recurrent_backward = operator(
    f"recurrent_backward({_ARGUMENTS}, Tensor token, Tensor[] tangents, bool[] wanted) -> Tensor[]",
    lambda *given: _run_backward(_Layer(*given[:-3]), *given[-3:]),
)


@rule("bolide::recurrent")
def _results(
    kind: str,
    x: TensorMeta,
    batch_sizes: TensorMeta | None,
    state: list[TensorMeta],
    weights: list[TensorMeta],
    biases: bool,
    layers: int,
    bidirectional: bool,
    autocast: torch.dtype | None,
) -> list[TensorMeta]:
    width = state[0].shape[2] * (2 if bidirectional else 1)
    results = [row_major(x, (*x.shape[:-1], width)), *(row_major(x, part.shape) for part in state)]
    if autocast is None:
        return results
    packed = batch_sizes is not None
    if packed and kind == "lstm" and x.device.type == "cpu":  # oneDNN's, where all sequences have one length
        raise Unsupported("the type of a layer's results, which depends on the lengths of sequences", kind="operator")
    with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch(), torch.no_grad():
        lengths = torch.ones(1, dtype=torch.int64) if packed else None
        step = _zeros(x, *([1] if packed else [1, 1]), x.shape[-1])
        start = [_zeros(part, part.shape[0], 1, part.shape[2]) for part in state]
        given = [_zeros(weight, *weight.shape) for weight in weights]
        run = _run(_Layer(kind, step, lengths, start, given, biases, layers, bidirectional, autocast))
    return [result._replace(dtype=real.dtype) for result, real in zip(results, run)]


def _zeros(meta: TensorMeta, *shape: Size) -> torch.Tensor:
    """For one step of a layer, which eager's kernels make under autocast: some of these convert."""
    return torch.zeros([hint_of(size) for size in shape], dtype=meta.dtype, device=meta.device)


@rule("bolide::recurrent_forward")
def _results_and_token(*layer: Any) -> list[TensorMeta]:
    return [*_results(*layer), fresh((1,), torch.int64, torch.device("cpu"))]


@rule("bolide::recurrent_backward")
def _gradients(kind: str, x: TensorMeta, batch_sizes: TensorMeta | None, *given: Any) -> list[TensorMeta]:
    state, weights, *_, wanted = given
    return [*map(row_major, compress((x, *state, *weights), wanted))]


class _Recurrent(torch.autograd.Function):
    """Its tensors are the input, the state and the weights of a layer, which has the other arguments."""

    @staticmethod
    def forward(ctx: Any, trace: Recording, layer: _Layer, derived: bool, *tensors: TracedTensor) -> Any:
        x, *nodes = map(trace.unwrap, tensors)
        count, batch_sizes = len(layer.state), trace.unwrap(layer.batch_sizes)
        given = layer._replace(x=x, batch_sizes=batch_sizes, state=nodes[:count], weights=nodes[count:])
        if not (derived and any(ctx.needs_input_grad)):
            return trace.wrap(trace.call(recurrent, *given))
        *results, token = trace.call(recurrent_forward, *given)
        ctx.trace, ctx.operands = trace, (*given, token)
        return trace.wrap(results)

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor) -> Any:
        trace: Recording = ctx.trace
        if torch.is_grad_enabled():
            reason = "gradients of gradients of a recurrent layer with symbolic sizes"
            raise Unsupported(reason, trace.where, "compile it for fixed sizes (dynamic=False)", "operator")
        _, _, _, *wanted = ctx.needs_input_grad
        gradients = iter(trace.call(recurrent_backward, *ctx.operands, [*map(trace.unwrap, tangents)], wanted))
        return (None, None, None, *(trace.wrap(next(gradients)) if each else None for each in wanted))


def _traced(trace: Recording, layer: _Layer) -> Tensors:
    """The results of a layer of traced tensors, with a derivative if grad mode is on."""
    tensors = (layer.x, *layer.state, *layer.weights)
    return _Recurrent.apply(trace, layer, torch.is_grad_enabled(), *tensors)  # type: ignore[no-untyped-call,no-any-return]


def again(trace: Recording | None, *given: Any) -> Tensors:
    """The results of a node `bolide::recurrent` or `recurrent_forward` once more."""
    return _run(_Layer(*given), train=True) if trace is None else _traced(trace, _Layer(*given))


def layer(kind: str, theirs: Callable[..., Any], packed: bool = False) -> Callable[..., Any]:
    """The kernel of one of ATen's layers on traced tensors; `theirs` is that of others. What comes out of a layer is
    dropped between layers, so that there each is an operation."""

    def kernel(x: torch.Tensor, *given: Any) -> Any:
        if x.__class__ is not TracedTensor:
            return theirs(x, *given)
        batch_sizes = given[0] if packed else None
        state, weights, biases, layers, dropout, train, bidirectional, *batch_first = given[1:] if packed else given
        parts = list(state) if kind == "lstm" else [state]
        turned = any(batch_first)
        out = x.transpose(0, 1) if turned else x
        dropped = train and dropout and layers > 1
        count = layers if dropped else 1  # of operations
        device = x.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        states = zip(*(part.chunk(count) for part in parts)) if dropped else [parts]
        ends: list[list[torch.Tensor]] = []
        for own_state, own_weights in zip(states, _parts(weights, count)):
            if ends:
                out = torch.dropout(out, dropout, True)
            options = (biases, layers // count, bidirectional, autocast)
            out, *last = _traced(x._trace, _Layer(kind, out, batch_sizes, own_state, own_weights, *options))
            ends.append(last)
        last = [torch.cat(each) for each in zip(*ends)] if dropped else ends[0]
        return (out.transpose(0, 1) if turned else out, *last)

    return kernel


def _parts(items: Tensors, count: int) -> list[Tensors]:
    size = len(items) // count
    return [items[start : start + size] for start in range(0, len(items), size)]
