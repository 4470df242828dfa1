"""The demo's model: a character-level GPT in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a model and of its batches."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int


SIZES = {
    "tiny": Size(2, 64, 2, 64, 8),
    "small": Size(4, 192, 6, 128, 8),
    "base": Size(6, 384, 6, 256, 16),
}


class Block(nn.Module):
    """Pre-norm attention and feed-forward with residual connections; (batch, context, width) → the same."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.norm2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class CharGPT(nn.Module):
    """Predicts the next character: tokens and targets, both (batch, context) → the mean cross-entropy in nats."""

    def __init__(self, vocabulary: int, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        self.apply(initialise)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).float().flatten(0, 1), targets.flatten())


def initialise(module: nn.Module) -> None:
    """Normal weights of deviation 0.02, zero biases, as in GPT-2."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
