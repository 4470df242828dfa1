"""The programs of the suite, with the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

# Most tensors have 2^24 elements, more than caches hold.
ROWS, WIDTH = 8192, 2048
VOCABULARY, TOKENS = 16384, 16384
IMAGES, CHANNELS, SIZE = 32, 128, 64
NODES, EDGES, FEATURES = 8192, 32768, 512
SCORES, HEADS, LOGITS, SHORT_ROWS, LAYERS = 4, 16, 1024, 1 << 16, 2
LEADING = ("ROWS", "TOKENS", "IMAGES", "EDGES", "SCORES", "HEADS", "LOGITS", "SHORT_ROWS", "LAYERS")
"""The names of sizes that tensors are larger and smaller with."""

Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """A program and what makes its arguments for a dtype.

    `train`: its backward belongs to the step; arguments that are floating-point tensors get gradients. `compare`: how
    results are judged: by distance to float64, equal (indices), or as random draws. `written`: the argument from which
    on the tensors are written in place. `rows`: indexed reads of argument 0 touch as many bytes as the result has, not
    all of it."""

    name: str
    function: Function
    inputs: Callable[[torch.dtype], tuple[Tensor, ...]]
    train: bool = False
    compare: Literal["near", "equal", "random"] = "near"
    written: int | None = None
    rows: bool = False


# ---- inputs --------------------------------------------------------------------------------------------------------


def _matrix(dtype: torch.dtype) -> Tensor:
    return torch.randn(ROWS, WIDTH).to(dtype)


def _one(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (_matrix(dtype),)


def _with_vector(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _matrix(dtype), torch.randn(WIDTH).to(dtype)


def _normed(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _matrix(dtype), _matrix(dtype), (torch.rand(WIDTH) + 0.5).to(dtype), torch.randn(WIDTH).to(dtype)


def _rms_normed(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _normed(dtype)[:3]


def _two(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _matrix(dtype), _matrix(dtype)


def _scores(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(SCORES, 16, 512, 512).to(dtype), torch.rand(SCORES, 1, 512, 512) < 0.3


def _heads(dtype: torch.dtype) -> tuple[Tensor, ...]:
    angles = torch.randn(1024, 32)
    return torch.randn(HEADS, 16, 1024, 64).to(dtype), angles.cos().to(dtype), angles.sin().to(dtype)


def _logits(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(LOGITS, VOCABULARY).to(dtype), torch.randint(0, VOCABULARY, (LOGITS,))


def _images(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.randn(IMAGES, CHANNELS, SIZE, SIZE).to(dtype),)


def _images_normed(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return *_images(dtype), (torch.rand(CHANNELS) + 0.5).to(dtype), torch.randn(CHANNELS).to(dtype)


def _images_tracked(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return *_images_normed(dtype), torch.zeros(CHANNELS).to(dtype), torch.ones(CHANNELS).to(dtype)


def _table(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(VOCABULARY, 1024).to(dtype), torch.randint(0, VOCABULARY, (TOKENS,))


def _graph(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (
        torch.randn(NODES, FEATURES).to(dtype),
        torch.randint(0, NODES, (EDGES,)),
        torch.randn(EDGES, FEATURES).to(dtype),
    )


def _gathered(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _matrix(dtype), torch.randint(0, WIDTH, (ROWS, WIDTH))


def _scattered(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return _matrix(dtype), torch.randint(0, ROWS, (ROWS, 1)).expand(ROWS, WIDTH), _matrix(dtype)


def _short_rows(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.randn(SHORT_ROWS, 64).to(dtype),)


def _parameters(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Gradients, then parameters, first and second moments of the layers of a small transformer."""
    shapes = [(512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,)] * LAYERS
    gradients = [torch.randn(shape).to(dtype) for shape in shapes]
    parameters = [torch.randn(shape).to(dtype) for shape in shapes]
    return (
        *gradients,
        *parameters,
        *[torch.zeros_like(p) for p in parameters],
        *[torch.ones_like(p) for p in parameters],
    )


# ---- programs ------------------------------------------------------------------------------------------------------


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, (WIDTH,), weight, bias)


def _rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x + residual, (WIDTH,), weight, 1e-6)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)


def _swiglu(gate: Tensor, x: Tensor) -> Tensor:
    return F.silu(gate) * x


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5))


def _group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, weight, bias))


def _adamw(*tensors: Tensor) -> tuple[Tensor, ...]:
    """One step of AdamW (Loshchilov and Hutter 2019) at step 10, in place."""
    n = len(tensors) // 4
    for g, p, m, v in zip(*(tensors[k * n : (k + 1) * n] for k in range(4)), strict=True):
        p.mul_(1 - 1e-3 * 1e-2)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, (v.sqrt() / (1 - 0.999**10) ** 0.5).add_(1e-8), value=-1e-3 / (1 - 0.9**10))
    return tensors[n:]


def _embedding(weight: Tensor, tokens: Tensor) -> Tensor:
    return F.embedding(tokens, weight)


def _dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.1)


def _case(name: str, function: Function, inputs: Callable[[torch.dtype], tuple[Tensor, ...]], **how: object) -> Case:
    return Case(name, function, inputs, **how)  # type: ignore[arg-type]


CASES = (
    _case("bias + GELU", _bias_gelu, _with_vector),
    _case("bias + GELU, training", _bias_gelu, _with_vector, train=True),
    _case("residual + LayerNorm", _layer_norm, _normed),
    _case("residual + LayerNorm, training", _layer_norm, _normed, train=True),
    _case("residual + RMSNorm", _rms_norm, _rms_normed),
    _case("residual + RMSNorm, training", _rms_norm, _rms_normed, train=True),
    _case("masked softmax", _masked_softmax, _scores),
    _case("masked softmax, training", _masked_softmax, _scores, train=True),
    _case("SwiGLU", _swiglu, _two),
    _case("SwiGLU, training", _swiglu, _two, train=True),
    _case("rotary", _rotary, _heads),
    _case("cross-entropy", F.cross_entropy, _logits),
    _case("cross-entropy, training", F.cross_entropy, _logits, train=True),
    _case("BatchNorm + ReLU, training", _batch_norm, _images_tracked, train=True, written=3),
    _case("GroupNorm + SiLU", _group_norm_silu, _images_normed),
    _case("AdamW step", _adamw, _parameters, written=12),
    _case("sum of rows", lambda x: x.sum(1), _one),
    _case("sum of columns", lambda x: x.sum(0), _one),
    _case("sum", lambda x: x.sum(), _one),
    _case("maxima of rows", lambda x: x.amax(1), _one),
    _case("variance of rows", lambda x: x.var(1), _one),
    _case("argmax of rows", lambda x: x.argmax(1), _one, compare="equal"),
    _case("argmax of columns", lambda x: x.argmax(0), _one, compare="equal"),
    _case("transpose", lambda x: x.t().contiguous(), _one),
    _case("heads to the front", lambda x: x.view(-1, 512, 32, 64).transpose(1, 2).contiguous(), _one),
    _case("to channels last", lambda x: x.contiguous(memory_format=torch.channels_last), _images),
    _case("cat", lambda x, y: torch.cat([x, y], 1), _two),
    _case("pad", lambda x: F.pad(x, (1, 1, 1, 1)), _images),
    _case("embedding", _embedding, _table, rows=True),
    _case("embedding, training", _embedding, _table, train=True, rows=True),
    _case("index_add", lambda x, index, source: x.index_add(0, index, source), _graph),
    _case("gather", lambda x, index: x.gather(1, index), _gathered),
    _case("scatter_reduce", lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), _scattered),
    _case("cumsum of rows", lambda x: x.cumsum(1), _one),
    _case("cumsum of columns", lambda x: x.cumsum(0), _one),
    _case("dropout, training", _dropout, _one, train=True, compare="random"),
    _case("max pooling 3×3", lambda x: F.max_pool2d(x, 3, 2, 1), _images),
    _case("max pooling 3×3, training", lambda x: F.max_pool2d(x, 3, 2, 1), _images, train=True),
    _case("average pooling 2×2, training", lambda x: F.avg_pool2d(x, 2), _images, train=True),
    _case("bilinear resize", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), _images),
    _case(
        "bilinear resize, training", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), _images, train=True
    ),
    _case("topk 4 of 64", lambda x: x.topk(4)[0], _short_rows),
    _case("sort rows of 64", lambda x: x.sort(-1)[0], _short_rows),
)
