"""Programs that are recorded by a device that is played, with kernels, against eager."""

from __future__ import annotations

import pytest
import torch
from fake_device import FakeDevice, fake
from torch import Tensor, fx, nn
from transformers import GPT2Config, GPT2LMHeadModel

import bolide
from bolide.inductor.cudagraphs.reasons import device_in, why_not
from bolide.tracing import TensorMeta

__all__ = ["fake"]


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(config, name, 0.0)
    return GPT2LMHeadModel(config)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_training(fake: FakeDevice, name: str) -> None:
    model, other = (mlp(), mlp()) if name == "mlp" else (gpt2(), gpt2())
    other.load_state_dict(model.state_dict())
    fast = bolide.compile(model, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, other)]

    def loss_of(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (m(x) - y).square().mean() if name == "mlp" else m(input_ids=x, labels=x).loss

    kept, made = [], []
    for _ in range(6):
        x = torch.randn(5, 8) if name == "mlp" else torch.randint(64, (2, 12))
        y, losses = torch.randn(5, 4), []
        for m, optimizer in zip((fast, other), optimizers):
            loss = loss_of(m, x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        kept.append(losses)
        made.append(len(fake.graphs))
    for pair in kept:
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
    assert made[-1] == made[-3] <= 3
    assert fake.replays >= 8


@torch.no_grad()
def test_decoding(fake: FakeDevice) -> None:
    """A prompt, then tokens one by one: sizes change, and results are inputs."""
    model = gpt2().eval()
    fast = bolide.compile(model, mode="reduce-overhead")
    for _ in range(3):
        tokens, other = torch.randint(64, (2, 5)), None
        past = theirs = None
        token = other = tokens
        for _ in range(6):
            found = fast(input_ids=token, past_key_values=past, use_cache=True)
            wanted = model(input_ids=other, past_key_values=theirs, use_cache=True)
            torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-4)
            past, theirs = found.past_key_values, wanted.past_key_values
            token, other = (r.logits[:, -1:].argmax(-1) for r in (found, wanted))
    assert fake.replays > 3


@torch.no_grad()
def test_layers_that_are_compiled_one_by_one(fake: FakeDevice) -> None:
    model = nn.Sequential(*[mlp() for _ in range(1)], *[nn.Linear(4, 4) for _ in range(3)])
    layers = [bolide.compile(layer, mode="reduce-overhead") for layer in model]
    for _ in range(5):
        x = y = torch.randn(3, 8)
        hidden = []
        for layer, plain in zip(layers, model):
            x, y = layer(x), plain(y)
            hidden.append((x, y))
        for pair in hidden:
            torch.testing.assert_close(*pair)


def test_reasons_of_graphs() -> None:
    cuda, other, cpu = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")
    for second, said in ((cuda, None), (cpu, "y is on cpu"), (other, "y is on cuda:1")):
        graph = fx.Graph()
        nodes = [graph.placeholder(name) for name in "xy"]
        for node, device in zip(nodes, (cuda, second)):
            node.meta["val"] = TensorMeta((2,), (1,), 0, torch.float32, device)
        total = graph.call_function(torch.ops.aten.add.Tensor, tuple(nodes))
        total.meta["val"] = nodes[0].meta["val"]
        graph.output((total,))
        place = device_in(graph)
        assert place == cuda
        found = why_not(graph, place)
        assert (found is None) if said is None else found is not None and said in found[0]
