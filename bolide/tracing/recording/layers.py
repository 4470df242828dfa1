"""Recurrent layers over any number of time steps, as one operation.

ATen's `lstm`, `gru`, `rnn_tanh` and `rnn_relu` take a time step at a time, so a trace of them is one of a fixed length.
`bolide::recurrent` is the whole layer, called when the program runs. Where it is differentiated,
`bolide::recurrent_forward` keeps what the engine has recorded of it, for `bolide::recurrent_backward`. All take time
first, or packed sequences with their batch sizes, and give results in row-major order, as ATen does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.support.errors import Unsupported
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
    "bool bidirectional"
)
Tensors = Sequence[torch.Tensor]


def _run(
    kind: str,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    state: Tensors,
    weights: Tensors,
    biases: bool,
    layers: int,
    bidirectional: bool,
    train: bool = False,
) -> list[torch.Tensor]:
    start = list(state) if kind == "lstm" else state[0]
    options = (start, list(weights), biases, layers, 0.0, train, bidirectional)
    run = _LAYERS[kind]
    results = run(x, *options, False) if batch_sizes is None else run(x, batch_sizes, *options)
    return [tensor.contiguous() for tensor in results]


class _Recorded(bytearray):
    """The memory of a token: a run of a layer that the engine has recorded lives as long as the token does."""

    leaves: list[torch.Tensor]
    results: list[torch.Tensor]


_recorded: weakref.WeakValueDictionary[int, _Recorded] = weakref.WeakValueDictionary()
"""By the addresses of tokens, all of which are equal: runs that are compared have equal results."""


def _record(
    kind: str,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    state: Tensors,
    weights: Tensors,
    biases: bool,
    layers: int,
    bidirectional: bool,
) -> _Recorded:
    run, count = _Recorded(8), 1 + len(state)
    run.leaves = leaves = [tensor.detach().requires_grad_() for tensor in (x, *state, *weights)]
    with torch.enable_grad():
        given = (leaves[0], batch_sizes, leaves[1:count], leaves[count:])
        run.results = _run(kind, *given, biases, layers, bidirectional, train=True)
    return run


def _run_forward(
    kind: str,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    state: Tensors,
    weights: Tensors,
    biases: bool,
    layers: int,
    bidirectional: bool,
) -> list[torch.Tensor]:
    """The results, which the program may write to, and a token."""
    run = _record(kind, x, batch_sizes, state, weights, biases, layers, bidirectional)
    token = torch.frombuffer(run, dtype=torch.int64)
    _recorded[token.data_ptr()] = run
    return [*(tensor.detach().clone() for tensor in run.results), token]


def _run_backward(*args: Any) -> list[torch.Tensor]:
    """The run is made again where the token is a copy."""
    *operands, token, tangents = args
    run = _recorded.get(token.data_ptr()) or _record(*operands)
    engine = torch.autograd.Variable._execution_engine
    grads = engine.run_backward(tuple(run.results), tuple(tangents), True, False, tuple(run.leaves), True, False)
    return [torch.zeros_like(leaf) if grad is None else grad.contiguous() for leaf, grad in zip(run.leaves, grads)]


recurrent = operator(f"recurrent({_ARGUMENTS}) -> Tensor[]", _run)
recurrent_forward = operator(f"recurrent_forward({_ARGUMENTS}) -> Tensor[]", _run_forward)
recurrent_backward = operator(
    f"recurrent_backward({_ARGUMENTS}, Tensor token, Tensor[] tangents) -> Tensor[]", _run_backward
)


@rule("bolide::recurrent")
def _results(
    kind: str, x: TensorMeta, batch_sizes: TensorMeta | None, state: list[TensorMeta], *options: bool
) -> list[TensorMeta]:
    width = state[0].shape[2] * (2 if options[-1] else 1)
    return [row_major(x, (*x.shape[:-1], width)), *(row_major(x, part.shape) for part in state)]


@rule("bolide::recurrent_forward")
def _results_and_token(
    kind: str, x: TensorMeta, batch_sizes: TensorMeta | None, state: list[TensorMeta], *options: bool
) -> list[TensorMeta]:
    return [*_results(kind, x, batch_sizes, state, *options), fresh((1,), torch.int64, torch.device("cpu"))]


@rule("bolide::recurrent_backward")
def _gradients(
    kind: str,
    x: TensorMeta,
    batch_sizes: TensorMeta | None,
    state: list[TensorMeta],
    weights: list[TensorMeta],
    *options: object,
) -> list[TensorMeta]:
    return [*map(row_major, (x, *state, *weights))]


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trace: Recording,
        kind: str,
        derived: bool,
        batch_sizes: torch.Tensor | None,
        options: tuple[object, ...],
        parts: int,
        *tensors: TracedTensor,
    ) -> Any:
        x, *nodes = [trace.unwrap(tensor) for tensor in tensors]
        operands = (kind, x, trace.unwrap(batch_sizes), nodes[:parts], nodes[parts:], *options)
        if not (derived and any(ctx.needs_input_grad)):
            return trace.wrap(trace.call(recurrent, *operands))
        *results, token = trace.call(recurrent_forward, *operands)
        ctx.trace, ctx.operands = trace, (*operands, token)
        return trace.wrap(results)

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor) -> Any:
        trace: Recording = ctx.trace
        if torch.is_grad_enabled():
            reason = "gradients of gradients of a recurrent layer over a symbolic number of steps"
            raise Unsupported(reason, trace.where, "use a fixed number of steps (dynamic=False)", "operator")
        gradients = trace.call(recurrent_backward, *ctx.operands, [trace.unwrap(tangent) for tangent in tangents])
        return (None, None, None, None, None, None, *map(trace.wrap, gradients))


def again(
    trace: Recording | None,
    kind: str,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    state: Tensors,
    weights: Tensors,
    biases: bool,
    layers: int,
    bidirectional: bool,
) -> Tensors:
    """The results of a node `bolide::recurrent` or `recurrent_forward` once more."""
    if trace is None:
        return _run(kind, x, batch_sizes, state, weights, biases, layers, bidirectional, train=True)
    options = (biases, layers, bidirectional)
    operands = (batch_sizes, options, len(state), x, *state, *weights)
    return _Recurrent.apply(trace, kind, torch.is_grad_enabled(), *operands)  # type: ignore[no-untyped-call,no-any-return]


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
        options = (biases, layers // count, bidirectional)
        states = zip(*(part.chunk(count) for part in parts)) if dropped else [parts]
        ends: list[Any] = []
        for own_state, own_weights in zip(states, _parts(weights, count)):
            if ends:
                out = torch.dropout(out, dropout, True)
            operands = (batch_sizes, options, len(parts), out, *own_state, *own_weights)
            out, *last = _Recurrent.apply(x._trace, kind, torch.is_grad_enabled(), *operands)  # type: ignore[no-untyped-call]
            ends.append(last)
        last = [torch.cat(each) for each in zip(*ends)] if dropped else ends[0]
        return (out.transpose(0, 1) if turned else out, *last)

    return kernel


def _parts(items: Tensors, count: int) -> list[Tensors]:
    size = len(items) // count
    return [items[start : start + size] for start in range(0, len(items), size)]
