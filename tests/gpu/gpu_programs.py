"""Small programs that are compiled for a device, with the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

bf16, f16, f32, f64, i64 = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64


@dataclass(frozen=True)
class Maker:
    """Makes arguments: on a device, of a dtype, `n` of something; the same ones from the same seed of torch."""

    device: str
    dtype: torch.dtype
    n: int

    def x(self, *shape: int) -> Tensor:
        """Of the standard normal distribution; integers from -9 to 9."""
        if self.dtype.is_floating_point:
            return torch.randn(shape).to(self.device, self.dtype)
        return torch.randint(-9, 10, shape).to(self.device, self.dtype)

    def ints(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape).to(self.device)

    def bools(self, *shape: int) -> Tensor:
        return (torch.rand(shape) < 0.5).to(self.device)


Make = Callable[[Maker], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """`train`: floating-point arguments get gradients. `judge`: how results are compared: by distance to float64
    (near), so for each element by itself (each), or as random draws (shares: by the mean)."""

    name: str
    function: Callable[..., Any]
    make: Make
    dtype: torch.dtype = f32
    train: bool = False
    judge: str = "near"

    @property
    def title(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]}{' train' if self.train else ''}"


PROGRAMS: list[Program] = []


def program(
    name: str, make: Make, function: Callable[..., Any], *dtypes: torch.dtype, train: bool = False, **how: Any
) -> None:
    """Add a program for every dtype (float32 if none is named), and where it can be trained in float32 so, too."""
    for dtype in dtypes or (f32,):
        PROGRAMS.append(Program(name, function, make, dtype, False, **how))
    if train:
        PROGRAMS.append(Program(name, function, make, (dtypes or (f32,))[0], True, **how))


def rows(width: int) -> Make:
    return lambda m: (m.x(m.n, width),)


def pair(width: int) -> Make:
    return lambda m: (m.x(m.n, width), m.x(m.n, width))


def images(channels: int, side: int) -> Make:
    return lambda m: (m.x(max(m.n // 16, 1), channels, side, side),)


# ---- pointwise -----------------------------------------------------------------------------------------------------

program("add", pair(40), lambda x, y: x + 2 * y, f32, bf16, f16, f64, i64, train=True)
program("odd width", pair(37), lambda x, y: (x * y - 1).relu(), f32, bf16, train=True)
program("gelu", rows(128), lambda x: F.gelu(x + 1), f32, bf16, f16, f64, train=True)
program("gelu tanh", rows(128), lambda x: F.gelu(x, approximate="tanh"), f32, bf16, train=True)
program("silu", pair(96), lambda x, y: F.silu(x) * y, f32, bf16, train=True)
program("activations", rows(50), lambda x: F.softplus(x) + F.elu(x) + F.hardswish(x) + F.mish(x), train=True)
program("broadcast", lambda m: (m.x(m.n, 1, 5), m.x(7, 1), m.x(5)), lambda x, y, z: x * y + z, f32, bf16, train=True)
program("scalars", rows(9), lambda x: (x * 2.5 + 1) / 3 - x**2 + 2 / (x.abs() + 1), f32, f64, train=True)
program("a number's tensor", lambda m: (m.x(m.n, 8), torch.tensor(2.5)), lambda x, s: x * s + s)
program("0 dimensions", lambda m: (m.x(), m.x(m.n)), lambda s, x: (s * 2, x + s), f32, bf16, train=True)
program("where", lambda m: (m.bools(m.n, 1), m.x(m.n, 6), m.x(6)), torch.where, f32, bf16, i64, train=True)
program("compare", pair(20), lambda x, y: ((x > y) & ~(x == 0) | (y < 0.5), (x > y).to(f32), x.isnan()), f32, i64)
program("clamp", rows(30), lambda x: (x.clamp(-1, 1), x.clamp_min(0), torch.maximum(x, -x)), f32, bf16, i64)
program("integers", pair(11), lambda x, y: (x // 3, x % 5, x & y, x ^ 3, x << 2, x >> 1, -x, ~y, x.abs()), i64)
program(
    "small integers", pair(11), lambda x, y: (x + y, x * y, x.sum(), (x > y).sum(0), x / 2), torch.int8, torch.int32
)
program("divide", pair(11), lambda x, y: (x / y, x // y, x % y, torch.fmod(x, y), x.div(y, rounding_mode="trunc")))
program("rounding", rows(40), lambda x: ((9 * x).round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign()))
program(
    "casts", rows(40), lambda x: (x.half().float(), x.bfloat16() + 1, x.double(), (9 * x).long(), x.bool()), f32, f64
)
program(
    "casts back", lambda m: (m.ints(100, m.n, 3),), lambda i: (i.float() / 3, i.half(), i.to(torch.uint8), i.bool())
)
program(
    "long chain", rows(64), lambda x: ((x.sin() + x.cos()) * x.exp().log1p()).tanh().sigmoid(), f32, f64, train=True
)
program("lerp", lambda m: (m.x(m.n), m.x(m.n), m.x(m.n)), lambda x, y, z: torch.lerp(x, y, 0.3).addcmul(y, z, value=2))
program("complex", pair(8), lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)))
program("many inputs", lambda m: tuple(m.x(m.n, 4) for _ in range(30)), lambda *xs: sum(xs))
program("large", lambda m: (m.x(m.n * 4099),), lambda x: x * 2 + 1, f32, bf16)


def tails(m: Maker) -> tuple[Tensor]:
    """Numbers of all sizes, with special ones."""
    special = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-30, 88.5, -104.0, 3.3e38, 0.5]
    many = torch.randn(m.n, 40) * torch.exp(3 * torch.randn(m.n, 1))
    return (torch.cat([torch.tensor(special), many.flatten()]).to(m.device, m.dtype),)


UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "lgamma", "sqrt", "rsqrt", "reciprocal"),
)
for _name in UNARY:
    program(f"math {_name}", tails, getattr(torch, _name), f32, f64, judge="each")
for _name in ("pow", "atan2", "hypot", "fmod", "nextafter", "remainder", "copysign", "fmax"):
    program(f"math {_name}", lambda m: (tails(m)[0], tails(m)[0]), getattr(torch, _name), f32, f64, judge="each")
program("math half", tails, lambda x: (x.exp(), x.sin(), x.log1p(), x.tanh(), x.erf(), x.rsqrt()), bf16, f16)

# ---- reductions ----------------------------------------------------------------------------------------------------

for _width in (3, 50, 1000, 5000):
    program(f"rows of {_width}", rows(_width), lambda x: (x.sum(1), x.mean(1), x.amax(1)), f32, bf16, train=_width < 99)
    program(f"softmax {_width}", rows(_width), lambda x: torch.softmax(x, -1), f32, bf16, train=True)
    program(f"log_softmax {_width}", rows(_width), lambda x: torch.log_softmax(x, -1), train=True)
    program(f"argmax {_width}", rows(_width), lambda x: (x.argmax(1), x.max(1), x.argmin(1)), f32, i64)
program("columns", rows(77), lambda x: (x.sum(0), x.amax(0), x.float().mean(0)), f32, bf16, i64, train=True)
program("tall columns", lambda m: (m.x(m.n * 300, 8),), lambda x: (x.sum(0), x.argmax(0)), f32, bf16)
program("full", rows(999), lambda x: (x.sum(), x.float().mean(), x.amax(), x.argmax()), f32, bf16, f64, i64)
program("very long", lambda m: (m.x(3, m.n * 5000),), lambda x: (x.sum(1), x.amax(1), x.sum()), f32, bf16)
program(
    "middle", lambda m: (m.x(6, m.n, 10),), lambda x: (x.sum(1), x.amax((0, 2)), x.mean(1, keepdim=True)), train=True
)
program("variance", rows(70), lambda x: (x.var(1), x.std(0), x.var(), torch.var_mean(x, 1)), f32, f64, train=True)
program("products", rows(6), lambda x: (x.prod(1), x.any(1), x.all(0), x.count_nonzero(1)), f32, i64)
program("norms", rows(60), lambda x: (x.norm(), x.norm(dim=1), torch.linalg.vector_norm(x, 1, 0), x.logsumexp(1)))
program("sums of squares", pair(60), lambda x, y: ((x - y) ** 2).mean(), f32, bf16, train=True)
program("cumsum", rows(60), lambda x: (x.cumsum(1), x.cumsum(0)), f32, i64, train=True)
program("long cumsum", lambda m: (m.x(2, m.n * 100),), lambda x: x.cumsum(1), f32)
program("softmax of columns", rows(40), lambda x: torch.softmax(x, 0), train=True)
program(
    "masked softmax",
    lambda m: (m.x(4, m.n, m.n), m.bools(1, m.n, m.n)),
    lambda s, mask: torch.softmax(s.masked_fill(mask, float("-inf")), -1).nan_to_num(),
    f32,
    bf16,
    train=True,
)
program("cross-entropy", lambda m: (m.x(m.n, 1003), m.ints(1003, m.n)), F.cross_entropy, f32, bf16, train=True)
program(
    "ignored", lambda m: (m.x(m.n, 9), m.ints(9, m.n)), lambda x, t: F.cross_entropy(x, t, ignore_index=3), train=True
)
program("losses", pair(12), lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y), train=True)
program("bce", lambda m: (m.x(m.n), m.bools(m.n).float()), F.binary_cross_entropy_with_logits)

# ---- normalisation -------------------------------------------------------------------------------------------------

for _width in (64, 768, 5001):
    program(
        f"layer_norm {_width}",
        lambda m, w=_width: (m.x(m.n, w), m.x(w), m.x(w)),
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        f32,
        bf16,
        train=True,
    )
program(
    "rms_norm", lambda m: (m.x(m.n, 96), m.x(96)), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), f32, bf16, train=True
)
program("group_norm", lambda m: (m.x(3, 8, m.n), m.x(8), m.x(8)), lambda x, w, b: F.group_norm(x, 4, w, b), train=True)
program("instance_norm", images(6, 9), F.instance_norm, train=True)
program(
    "batch_norm",
    lambda m: (m.x(4, 6, m.n), m.x(6), m.x(6)),
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True).relu(),
    f32,
    train=True,
)
program(
    "batch_norm, running",
    lambda m: (m.x(4, 6, m.n), m.x(6), m.x(6).abs()),
    lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
)
program(
    "batch_norm, eval",
    lambda m: (m.x(4, 6, m.n), m.x(6), m.x(6).abs() + 1),
    lambda x, mean, var: F.batch_norm(x, mean, var),
)

# ---- indices -------------------------------------------------------------------------------------------------------

program("embedding", lambda m: (m.x(50, 24), m.ints(50, m.n, 3)), lambda w, i: F.embedding(i, w), f32, bf16, train=True)
program(
    "embedding of few rows",
    lambda m: (m.x(400, 24), m.ints(400, m.n, 3)),
    lambda w, i: F.embedding(i, w, padding_idx=5),
    f32,
    bf16,
    train=True,
)
program(
    "extremes of integers by index",
    lambda m: (m.ints(400, 9, 24), m.ints(9, 40, 24), m.ints(400, 40, 24)),
    lambda x, i, y: (x.scatter_reduce(0, i, y, "amax"), x.int().scatter_reduce(0, i, y.int(), "amin")),
)
program(
    "padding_idx", lambda m: (m.x(9, 24), m.ints(9, m.n)), lambda w, i: F.embedding(i, w, padding_idx=2), train=True
)
program("embedding_bag", lambda m: (m.x(9, 24), m.ints(9, m.n, 4)), lambda w, i: F.embedding_bag(i, w, mode="sum"))
program("x[i]", lambda m: (m.x(20, 5), m.ints(20, m.n) - 10), lambda x, i: (x[i], x[:, i % 5], x[i, i % 5]), train=True)
program("x[mask]", lambda m: (m.x(m.n, 3), m.bools(m.n)), lambda x, k: x[k] * 2)
program("x[mask] = ", lambda m: (m.x(m.n, 3), m.bools(m.n, 3)), lambda x, k: x.masked_fill(k, 7) + k)
program("gather", lambda m: (m.x(m.n, 30), m.ints(30, m.n, 4)), lambda x, i: x.gather(1, i), f32, bf16, i64, train=True)
program("index_select", lambda m: (m.x(30, 4), m.ints(30, m.n)), lambda x, i: x.index_select(0, i), train=True)
program(
    "scatter_add",
    lambda m: (m.x(10, 7), m.ints(10, m.n, 7), m.x(m.n, 7)),
    lambda x, i, y: x.scatter_add(0, i, y),
    f32,
    bf16,
    f64,
    i64,
    train=True,
)
program(
    "index_add of a multiple",
    lambda m: (m.x(10, 16), m.ints(10, m.n), m.x(m.n, 16)),
    lambda x, i, y: x.index_add(0, i, y, alpha=2.5),
    f32,
    bf16,
)
program(
    "index_add", lambda m: (m.x(10, 7), m.ints(10, m.n), m.x(m.n, 7)), lambda x, i, y: x.index_add(0, i, y), f32, bf16
)
program("scatter", lambda m: (m.x(m.n, 30), m.ints(30, m.n, 1)), lambda x, i: x.scatter(1, i, 3.0), train=True)
program(
    "scatter_reduce",
    lambda m: (m.x(10, 7), m.ints(10, m.n, 7), m.x(m.n, 7)),
    lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
)
program(
    "index_put",
    lambda m: (m.x(30, 4), torch.randperm(30)[:9].to(m.device), m.x(9, 4)),
    lambda x, i, y: x.index_put((i,), y).index_put((i,), y, accumulate=True),
)
program("one_hot", lambda m: (m.ints(10, m.n),), lambda i: (F.one_hot(i, 10), F.one_hot(i, 10).float().sum(0)))
program("triangles", lambda m: (m.x(m.n, m.n),), lambda x: (x.triu(1), x.tril(-2), x.diagonal()), train=True)
program("sorted", rows(20), lambda x: (x.sort(1)[0], x.topk(3)[0], x.topk(3)[1], x.median(1)[0]))
program("nonzero", rows(20), lambda x: (x > 0).nonzero().sum(0))
program("unique", lambda m: (m.ints(10, m.n),), lambda i: torch.unique(i) * 2)
program("bucketize", lambda m: (m.x(m.n, 3), torch.arange(-3.0, 3).to(m.device)), torch.bucketize)

# ---- layouts -------------------------------------------------------------------------------------------------------

program("cat", pair(20), lambda x, y: (torch.cat([x, y], 1), torch.cat([x, y * 2]), torch.stack([x, y], 1)), f32, bf16)
program("cat, trained", pair(20), lambda x, y: torch.cat([x.exp(), y], 1) * 2, train=True)
program("pad", rows(20), lambda x: (F.pad(x, (1, 2)), F.pad(x[None], (3, 1), mode="reflect")), f32, bf16, train=True)
program("transpose", rows(45), lambda x: x.t().contiguous(), f32, bf16, f64, torch.int8)
program("transposes", lambda m: (m.x(2, m.n, 70),), lambda x: (x.mT + 1, x.mT.relu().contiguous()), f32, bf16, i64)
program("transposed add", pair(45), lambda x, y: (x.t() + y.t()) * 2, train=True)
program(
    "mixed layouts", lambda m: (m.x(m.n, 40), m.x(40, m.n).t()), lambda x, y: (x + y, x * y.contiguous()), train=True
)
program("heads", lambda m: (m.x(2, m.n, 48),), lambda x: x.view(2, -1, 4, 12).transpose(1, 2).contiguous(), train=True)
program("chunks", rows(48), lambda x: (x.chunk(3, 1)[1] * 2, x[:, ::2] + 1, x[1:, -3:] * 3), train=True)
program("gaps", lambda m: (m.x(m.n, 40)[:, ::2], m.x(m.n * 2, 20)[::2]), lambda x, y: x * y + 1, f32, bf16, train=True)
program("expanded", lambda m: (m.x(m.n, 1).expand(m.n, 9), m.x(9)), lambda x, y: x * y, train=True)
program("flips", rows(20), lambda x: (x.flip(1), x.roll(3, 0), x.repeat(2, 2), x.repeat_interleave(2, 1)))
program("channels_last", images(8, 12), lambda x: x.contiguous(memory_format=torch.channels_last) * 2)
program("wide channels_last", images(40, 9), lambda x: x.contiguous(memory_format=torch.channels_last) * 2, f32, bf16)
program("from channels_last", images(8, 12), lambda x: (x.to(memory_format=torch.channels_last) + 1).contiguous())
program("unfold", rows(20), lambda x: x.unfold(1, 5, 2) * 2)
program(
    "rotary",
    lambda m: (m.x(2, 4, m.n, 16), m.x(m.n, 8)),
    lambda x, a: torch.cat(
        [x[..., :8] * a.cos() - x[..., 8:] * a.sin(), x[..., 8:] * a.cos() + x[..., :8] * a.sin()], -1
    ),
    f32,
    bf16,
    train=True,
)
program("views out", rows(20), lambda x: (x.view(-1), x.t(), x[1:], x, x * 2))
program("aliases out", rows(20), lambda x: (lambda y: (y, y.t(), y[1:]))(x * 2))
program("made", rows(20), lambda x: (x + torch.arange(20, device=x.device), torch.eye(5, device=x.device) * x[0, 0]))
program(
    "made too", rows(20), lambda x: (torch.zeros_like(x), torch.full_like(x, 3), x.new_ones(4), x.new_tensor([1, 2]))
)
program("constants", rows(3), lambda x: x * torch.tensor([1.0, 2.0, 3.0], device=x.device))
program(
    "empty",
    lambda m: (m.x(0, 5), m.x(m.n, 0)),
    lambda x, y: (x * 2, x.sum(0), x.sum(), y.sum(1), x.t().exp()),
    f32,
    bf16,
)
program("one", lambda m: (m.x(1, 1), m.x(1)), lambda x, y: (x * y, x.sum(1), torch.softmax(x, -1)), train=True)

# ---- effects -------------------------------------------------------------------------------------------------------


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y)
    x[1:, ::2] = 0
    x.t()[0].exp_()
    return x.sum(0)


def _through_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    y[:, 2].copy_(x[:, 1])
    y.view(-1)[::3].neg_()
    return y, y.t()


def _without_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x * 2
    return y, x.exp() + y


def _autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, bf16):
        return F.gelu(x @ w).float().sum(1)


def _branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def _break(x: Tensor) -> Tensor:
    y = (x * 2).sum(1)
    print(end="")
    return torch.softmax(y, 0) * float(y[0].item())


def _to_host(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 2).cpu() + 1, x.sum().cpu()


def _device_asked(x: Tensor) -> Tensor:
    return x + 1 if x.is_cuda and x.device.type == "cuda" else x - 1


def _streams(x: Tensor) -> Tensor:
    if x.is_cuda:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        return y + 1
    return x * 2 + 1


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m, v.abs().sqrt() + 1e-8, value=-0.1)


def _clipped(*gradients: Tensor) -> list[Tensor]:
    norm = torch.stack([g.norm() for g in gradients]).norm()
    return [g * (1 / (norm + 1e-6)).clamp(max=1) for g in gradients]


program("in place", pair(10), _in_place, f32, bf16, f64)
program("through views", rows(10), _through_views, train=True)
program("without gradients", rows(10), _without_gradients, train=True)
program("autocast", lambda m: (m.x(m.n, 32), m.x(32, 48)), _autocast, train=True)
program("branch", rows(10), _branch)
program("break", rows(10), _break)
program("to the host", rows(10), _to_host)
program("device asked", rows(10), _device_asked)
program("streams", rows(10), _streams)
program("optimizer", lambda m: tuple(m.x(m.n, 9) for _ in range(4)), _adam, f32, bf16)
program("clipped", lambda m: (m.x(m.n, 9), m.x(4), m.x(m.n)), _clipped)
program("item", rows(10), lambda x: x * int((x > 0).sum().item()))

# ---- random --------------------------------------------------------------------------------------------------------

program("dropout", lambda m: (m.x(m.n, 999).abs() + 1,), lambda x: (F.dropout(x, 0.3) != 0).to(f32), judge="shares")
program("rand", rows(999), lambda x: (torch.rand_like(x), torch.rand_like(x) ** 2), judge="shares")
program("randn", rows(999), lambda x: (torch.randn_like(x), torch.randn_like(x) ** 2), f32, f64, judge="shares")
program("randint", rows(999), lambda x: torch.randint(0, 2, x.shape, device=x.device).float(), judge="shares")
program("bernoulli", rows(999), lambda x: torch.bernoulli(torch.full_like(x, 0.2)), judge="shares")

# ---- libraries -----------------------------------------------------------------------------------------------------

program("mm", lambda m: (m.x(m.n, 48), m.x(48, 40)), lambda x, w: (x @ w) * 2, f32, bf16, f16, f64, train=True)
program("tiny mm", lambda m: (m.x(m.n, 3), m.x(3, 2)), lambda x, w: x @ w, train=True)
program(
    "bmm", lambda m: (m.x(3, m.n, 16), m.x(3, 16, m.n)), lambda x, y: torch.softmax(x @ y, -1), f32, bf16, train=True
)
program(
    "linear",
    lambda m: (m.x(m.n, 48), m.x(40, 48), m.x(40)),
    lambda x, w, b: F.gelu(F.linear(x, w, b)),
    f32,
    bf16,
    train=True,
)
program("matvec", lambda m: (m.x(m.n, 48), m.x(48)), lambda x, w: (x @ w).exp(), f32, train=True)
program("einsum", lambda m: (m.x(3, m.n, 8), m.x(8, 5)), lambda x, w: torch.einsum("bnk,kd->bdn", x, w), train=True)
program("integer mm", lambda m: (m.x(m.n, 8) + 0.0, m.x(8, 3) + 0.0), lambda x, w: (x @ w).sum())
program(
    "conv2d",
    lambda m: (*images(6, 12)(m), m.x(8, 6, 3, 3), m.x(8)),
    lambda x, w, b: F.conv2d(x, w, b, 1, 1).relu(),
    f32,
    bf16,
    train=True,
)
program(
    "depthwise",
    lambda m: (*images(6, 12)(m), m.x(6, 1, 3, 3)),
    lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 6),
    train=True,
)
program("conv1d", lambda m: (m.x(2, 6, m.n), m.x(8, 6, 3)), lambda x, w: F.silu(F.conv1d(x, w, padding=1)), train=True)
program(
    "conv_transpose", lambda m: (*images(6, 7)(m), m.x(6, 4, 2, 2)), lambda x, w: F.conv_transpose2d(x, w, stride=2)
)
program("max_pool", images(6, 13), lambda x: F.max_pool2d(x, 3, 2, 1), f32, bf16, train=True)
program("avg_pool", images(6, 12), lambda x: (F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), train=True)
program(
    "resize",
    images(3, 9),
    lambda x: (F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.interpolate(x, scale_factor=2)),
    train=True,
)
for _causal in (False, True):
    program(
        f"attention{' causal' * _causal}",
        lambda m: tuple(m.x(2, 4, m.n, 16) for _ in range(3)),
        lambda q, k, v, c=_causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
        f32,
        bf16,
        train=True,
    )
program(
    "attention, masked",
    lambda m: (*(m.x(2, 4, m.n, 16) for _ in range(3)), m.x(m.n, m.n)),
    lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
    f32,
    bf16,
)
program(
    "inverse",
    lambda m: (m.x(5, 5) + 9 * torch.eye(5, device=m.device, dtype=m.dtype),),
    lambda x: torch.linalg.inv(x) * 2,
)
program("fft", rows(16), lambda x: torch.fft.rfft(x).abs())


def of_own_generator(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(x.device).manual_seed(3)
    noise = torch.rand(x.shape, generator=generator, device=x.device)
    state = generator.get_state()
    first = torch.randn(x.shape, generator=generator, device=x.device)
    generator.set_state(state)
    return x * noise, first, torch.randn(x.shape, generator=generator, device=x.device), state


program("own generator", rows(16), of_own_generator, train=True)
