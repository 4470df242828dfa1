"""Recurrent layers, and parts of tensors whose number follows from a size: one version serves every length."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.support import events

LENGTHS = (3, 5, 7, 11, 4, 2, 16)


def installed(call: Any) -> tuple[Any, int]:
    """The result of a call, and how many versions it has compiled."""
    seen: list[Any] = []
    events.subscribers.append(seen.append)
    try:
        return call(), sum(isinstance(event, events.Installed) for event in seen)
    finally:
        events.subscribers.remove(seen.append)


LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"batch_first": True}),
    "lstm_projected": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "lstm_deep": (nn.LSTM, {"num_layers": 2, "bias": False}),
    "gru": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name: str, training: bool) -> None:
    kind, options = LAYERS[name]
    model = kind(4, 5, **options)
    other = copy.deepcopy(model)
    compiled: Any = bolide.compile(other, fullgraph=True)
    versions = []
    with torch.set_grad_enabled(training):
        for length in LENGTHS:
            x = torch.randn((2, length, 4) if options.get("batch_first") else (length, 2, 4), requires_grad=training)
            y = x.detach().clone().requires_grad_(training)
            (got, got_state), new = installed(lambda y=y: compiled(y))
            versions.append(new)
            want, want_state = model(x)
            assert got.stride() == want.stride()
            torch.testing.assert_close((got, got_state), (want, want_state))
            if training:
                want.square().sum().backward()
                got.square().sum().backward()
                torch.testing.assert_close(y.grad, x.grad)
                for mine, theirs in zip(other.parameters(), model.parameters()):
                    torch.testing.assert_close(mine.grad, theirs.grad)
    assert versions == [1, 1] + [0] * (len(LENGTHS) - 2)


def test_recurrent_layer_that_is_given_its_state_trains_it_too() -> None:
    model = nn.GRU(4, 5)
    other = copy.deepcopy(model)
    compiled: Any = bolide.compile(other, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        x, start = torch.randn(length, 2, 4), torch.randn(1, 2, 5, requires_grad=True)
        mine = start.detach().clone().requires_grad_()
        want, got = model(x, start)[1], compiled(x, mine)[1]
        torch.testing.assert_close(got, want)
        want.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(mine.grad, start.grad)


def test_a_diagonal_is_filled() -> None:
    def program(x: Any) -> Any:
        similar = x @ x.T * 2
        return similar.fill_diagonal_(float("-inf")).softmax(1), x.clone().fill_diagonal_(2)

    compiled: Any = bolide.compile(program, fullgraph=True)
    for length in LENGTHS:
        x = torch.randn(length, 3, requires_grad=True)
        got, count = installed(lambda x=x: compiled(x))
        want = program(x)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(out.square().sum(), x) for out in (got[0], want[0])]
        torch.testing.assert_close(*grads)
    assert count == 0


def test_dropout_in_evaluation_gives_the_tensor_itself() -> None:
    def program(x: Any, n: int) -> Any:
        y = x * 1
        torch.nn.functional.dropout(y, 0.5, training=False).add_(n)
        return y

    compiled: Any = bolide.compile(program, fullgraph=True, dynamic=True)
    x = torch.randn(6, 3)
    torch.testing.assert_close(compiled(x, 4), x + 4)
