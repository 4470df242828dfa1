"""Programs that are recorded by a device that is played, against eager."""

from __future__ import annotations

import torch
from fake_device import FakeDevice, fake
from torch import Tensor, nn

import bolide

__all__ = ["fake"]


def test_training(fake: FakeDevice) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    other = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    other.load_state_dict(model.state_dict())
    fast = bolide.compile(model, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, other)]
    for _ in range(6):
        x, y = torch.randn(5, 8), torch.randn(5, 4)
        losses = []
        for m, optimizer in zip((fast, other), optimizers):
            loss = (m(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        torch.testing.assert_close(*losses)
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p, q)
    assert len(fake.graphs) == 2
    assert fake.replays == 2 * 5
