"""Programs over sequences of several lengths are compiled whole, once for all batches and lengths: packed sequences,
recurrent layers with dropout between layers."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import bolide
from bolide.tracing.recording import layers
from tests.ordinary_tools import check_whole, observed

Lengths = torch.Tensor
LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "lstm_projected": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


def batches(sorted_: bool = False) -> list[tuple[torch.Tensor, Lengths]]:
    """Padded batches of other sizes, with the lengths of their sequences."""
    made = []
    for batch, longest in ((3, 6), (5, 4), (2, 7), (1, 5), (4, 6)):
        lengths = torch.randint(1, longest + 1, (batch,))
        lengths[random.randrange(batch)] = longest
        made.append((torch.randn(batch, longest, 4), lengths.sort(descending=True)[0] if sorted_ else lengths))
    return made


def trained(module: nn.Module, call: Callable[..., Any], batch: tuple[torch.Tensor, Lengths]) -> object:
    """Results and gradients, and the results without grad mode."""
    x = batch[0].clone().requires_grad_()
    module.zero_grad()
    results = call(x, batch[1])
    sum((result * torch.linspace(1, 2, result.numel()).view(result.shape)).sum() for result in results[:2]).backward()
    with torch.no_grad():
        again = call(*batch)
    return results, again, x.grad, [parameter.grad for parameter in module.parameters()]


class Packed(nn.Module):
    def __init__(self, kind: str, batch_first: bool, ordered: bool, padding: float, total: int | None) -> None:
        super().__init__()
        layers, both = random.choice((1, 2)), random.random() < 0.5
        self.layer = LAYERS[kind](4, 3, num_layers=layers, bidirectional=both, batch_first=batch_first)
        self.batch_first, self.ordered, self.options = batch_first, ordered, (padding, total)

    def forward(self, x: torch.Tensor, lengths: Any) -> object:
        x = x if self.batch_first else x.transpose(0, 1)
        packed = rnn.pack_padded_sequence(x, lengths, self.batch_first, self.ordered)
        out, last = self.layer(packed)
        padded, found = rnn.pad_packed_sequence(out, self.batch_first, *self.options)
        return padded, last[0] if isinstance(last, tuple) else last, found, out


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences(kind: str) -> None:
    """A layer over packed sequences, packed and padded inside."""
    batch_first, ordered, total = random.random() < 0.5, random.random() < 0.5, random.choice((None, 8))

    def program(compile: Any) -> object:
        module = Packed(kind, batch_first, ordered, random.choice((0.0, -2.5)), total)
        compiled = compile(module)
        return [trained(module, compiled, batch) for batch in batches(ordered)]

    check_whole(program, versions=6)  # with grad mode and without: fixed sizes, symbols, a batch of one


def test_packed_sequences_from_outside() -> None:
    """Packed sequences as arguments and results, with a state, on later layers, and as lists."""

    def program(compile: Any) -> object:
        first, second = nn.GRU(4, 3), nn.LSTM(3, 5)
        run = compile(lambda packed, state: second(first(packed, state)[0]))
        seen = []
        for x, _ in batches():
            packed = rnn.pack_sequence([row[: random.randint(1, len(row))] for row in x], enforce_sorted=False)
            out, last = run(packed, torch.randn(1, len(x), 3))
            out.data.square().sum().backward()
            seen.append((out, last, [weight.grad for weight in first.parameters()]))
        return seen

    check_whole(program, versions=5)  # fixed sizes, symbols, numbers that were the same twice, sizes of one


def test_packed_without_a_layer() -> None:
    """Sequences that are packed for what looks at each step alone."""

    def masked(x: torch.Tensor, lengths: Lengths, weight: torch.Tensor) -> object:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        computed = torch.tanh(packed.data @ weight)
        out = rnn.PackedSequence(computed, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return rnn.pad_packed_sequence(out, batch_first=True)[0], computed.mean(), len(packed.batch_sizes)

    def program(compile: Any) -> object:
        compiled, weight = compile(masked), nn.Parameter(torch.randn(4, 4))
        seen = []
        for x, lengths in batches():
            results = compiled(x, lengths, weight)
            (results[0].square().sum() + results[1]).backward()
            seen.append((results, weight.grad))
        return seen

    check_whole(program, versions=4)


def test_refused_lengths() -> None:
    """Lengths that eager refuses are refused with its words, also by a version that was made for others."""

    def program(compile: Any) -> object:
        run = compile(lambda x, lengths, ordered: rnn.pack_padded_sequence(x, lengths, True, ordered))
        seen: list[object] = [run(*batch, False) for batch in batches()]
        wrong = ((torch.tensor([2, 3]), True), (torch.tensor([2, 0]), False), (torch.tensor([9, 1]), False))
        for (lengths, ordered), width in itertools.product((*wrong, (torch.tensor([1]), False)), (4, 5)):
            try:
                seen.append(run(torch.randn(2, 5, width), lengths, ordered))
            except (RuntimeError, IndexError) as error:
                seen.append((type(error).__name__, str(error)))
        return seen

    check_whole(program, versions=16, breaks=99)


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_between_layers(kind: str) -> None:
    """A layer that drops all, or nearly nothing, between its layers is compiled once for all lengths."""
    packed = random.random() < 0.5

    def program(compile: Any) -> object:
        module = LAYERS[kind](4, 3, num_layers=3, bidirectional=True, dropout=random.choice((1.0, 1e-7)))

        def run(x: torch.Tensor, lengths: Lengths) -> object:
            given = rnn.pack_padded_sequence(x, lengths) if packed else x
            out, last = module(given)
            return out.data if packed else out, last[0] if isinstance(last, tuple) else last

        compiled = compile(run)
        seen = []
        for x, lengths in batches(sorted_=True):
            results = compiled(x.transpose(0, 1), lengths)
            module.zero_grad()
            sum(result.square().sum() for result in results).backward()
            seen.append((results, [weight.grad for weight in module.parameters()]))
        return seen

    check_whole(program, versions=3, drawn=False)


def test_dropped_elements() -> None:
    """Between layers about as many elements are dropped as was asked for, and others at each call."""

    def program(compile: Any) -> object:
        module = nn.RNN(1, 1, num_layers=2, dropout=0.4, nonlinearity="relu")
        for name, parameter in module.named_parameters():
            parameter.data.fill_(0.0 if "bias" in name or "hh" in name else 1.0)
        compiled = compile(module)
        outs = [compiled(torch.ones(steps, 50, 1))[0] for steps in (40, 50, 60)]
        kept = [float((out > 0).float().mean()) for out in outs]
        assert all(abs(part - 0.6) < 0.06 for part in kept), kept
        assert all(torch.allclose(out[out > 0], torch.tensor(1 / 0.6)) for out in outs)
        assert not torch.equal(outs[0] > 0, outs[1][:40] > 0)
        return None

    observed(program, lambda function: function)
    check_whole(program, drawn=False)


class Rotary(nn.Module):
    """Positions in a table that grows with the longest sequence so far."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        end = start + x.shape[-2]
        if end > self.longest:
            self.longest = end
            angles = torch.outer(torch.arange(end).float(), 0.1 ** torch.arange(2))
            self.register_buffer("table", torch.polar(torch.ones_like(angles), angles), persistent=False)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.table[start:end]).flatten(-2)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rotary = nn.Embedding(9, 8), Rotary()
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

    def forward(self, ids: torch.Tensor, cache: list[Any]) -> torch.Tensor:
        x = self.embedding(ids)
        start = cache[0][0].shape[-2] if cache else 0
        for place, layer in enumerate(self.layers):
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            q, k = self.rotary(q, start), self.rotary(k, start)
            if place < len(cache):
                k, v = torch.cat([cache[place][0], k], -2), torch.cat([cache[place][1], v], -2)
                cache[place] = (k, v)
            else:
                cache.append((k, v))
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
            x = x + out.transpose(1, 2).flatten(-2)
        return x @ self.embedding.weight.T


def test_a_cache_and_a_table_grow_together() -> None:
    """Decoding with a list of keys and values and a rotary table, both longer at each step."""

    def program(compile: Any) -> object:
        module = Decoder()
        compiled = compile(module)
        seen: list[object] = []
        with torch.no_grad():
            for steps in (9, 4):
                cache: list[Any] = []
                ids = torch.randint(9, (2, random.randint(2, 4)))
                for _ in range(steps):
                    out = compiled(ids, cache)
                    seen.append(out)
                    ids = out[:, -1:].argmax(-1)
                seen.append(cache)
        return seen

    check_whole(program, versions=7)  # first steps, second ones, whose cache is laid out otherwise, and later ones


@pytest.mark.parametrize("frozen", [(), ("weight_ih_l0", "bias_hh_l0"), ("x",)])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_layer_that_is_trained_runs_once(
    kind: type[nn.Module], frozen: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backward uses what the engine has recorded, twice if it is asked twice; nothing of it is left."""
    runs, record = [], layers._record
    monkeypatch.setattr(layers, "_record", lambda *given: runs.append(given) or record(*given))
    module = kind(4, 3)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    compiled = bolide.compile(copy.deepcopy(module), dynamic=True)
    for steps in (5, 7, 6):
        x, found = torch.randn(steps, 2, 4), []
        for each in (module, compiled):
            leaf = x.clone().requires_grad_("x" not in frozen)
            out = each(leaf)[0]
            out.sin().sum().backward(retain_graph=True)
            out.mul(2).sum().backward()
            found.append([None if t.grad is None else t.grad.clone() for t in (leaf, *each.parameters())])
            each.zero_grad()
            out = leaf = None
        torch.testing.assert_close(found[0], found[1])
        assert len(runs) == 1
        runs.clear()
    assert not layers._recorded


def test_a_copy_of_a_token_stands_for_no_run() -> None:
    x, state, weights = torch.randn(5, 2, 4), [torch.randn(1, 2, 3)], list(nn.GRU(4, 3).parameters())
    weights = [weight.detach() for weight in weights]
    operands = ("gru", x, None, state, weights, True, 1, False, None)
    *results, token = torch.ops.bolide.recurrent_forward(*operands)
    tangents = [torch.randn_like(result) for result in results]
    wanted = [False, True, *[True] * len(weights)]
    given, again = (torch.ops.bolide.recurrent_backward(*operands, t, tangents, wanted) for t in (token, token.clone()))
    torch.testing.assert_close(given, again)
    assert [grad.shape for grad in given] == [tensor.shape for tensor in (*state, *weights)]
