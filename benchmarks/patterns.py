"""Small programs of which the fewest possible kernels are known: what fusion must reach."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Pattern = Callable[..., Tensor]


def layer_norm_residual(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, weight.shape, weight, bias)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def rms_norm_rotary(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMSNorm over the last dimension, then a rotation of its halves (rotary position embedding, GPT-NeoX form)."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    left, right = y.chunk(2, -1)
    return y * cos + torch.cat([-right, left], -1) * sin


def patterns() -> dict[str, tuple[Pattern, tuple[Tensor, ...], int]]:
    """Name → (program, inputs, fewest kernels). Cross-entropy needs a second one for its mean over rows."""
    rows, width = 256, 512
    x = torch.randn(rows, width)
    mask = torch.rand(rows, width) < 0.3
    return {
        "LayerNorm + residual": (layer_norm_residual, (x, x + 1.0, torch.ones(width), torch.zeros(width)), 1),
        "bias + GELU": (bias_gelu, (x, torch.randn(width)), 1),
        "softmax with mask": (masked_softmax, (x, mask), 1),
        "cross-entropy": (cross_entropy, (x, torch.randint(0, width, (rows,))), 2),
        "RMSNorm + rotary": (rms_norm_rotary, (x, torch.ones(width), x.cos(), x.sin()), 1),
    }
