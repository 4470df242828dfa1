"""Every module class of torch.nn, captured whole: one call against eager, forward and backward, in machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {}
# Containers and bases have no forward of their own, lazy modules run their first call in eager, the adaptive softmax
# picks rows by its targets, two run on GPUs alone; the random ones (their numbers are not eager's) are tried where they
# draw none.
LEFT_OUT = frozenset(
    ["Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Container", "AdaptiveLogSoftmaxWithLoss"]
    + ["RNNBase", "RNNCellBase", "SyncBatchNorm", "DataParallel"]
)


def names(text: str) -> list[str]:
    return text.split()


def real(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def case(name: str, arguments: Callable[[], tuple[Any, ...]], *args: Any, **kwargs: Any) -> None:
    CASES[name] = (lambda: getattr(nn, name.partition("/")[0])(*args, **kwargs)), arguments


def rows() -> tuple[Any, ...]:
    return (real(3, 6),)


SHAPES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "1d": lambda: (real(2, 4, 8),),
    "2d": lambda: (real(2, 4, 8, 8),),
    "3d": lambda: (real(2, 4, 6, 6, 6),),
}
for _name in names(
    "ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6 SELU CELU GELU Sigmoid SiLU "
    "Mish Softplus Softshrink Softsign Tanh Tanhshrink GLU Identity Flatten"
):
    case(_name, rows)
for _name in names("Softmin Softmax LogSoftmax"):
    case(_name, rows, 1)
for _dim, _make in SHAPES.items():
    case(f"Conv{_dim}", _make, 4, 6, 3, padding="same", dilation=2, groups=2)
    case(f"Conv{_dim}/circular", _make, 4, 6, 3, padding=1, padding_mode="circular", stride=2)
    case(f"ConvTranspose{_dim}", _make, 4, 6, 3, stride=2, output_padding=1)
    case(f"MaxPool{_dim}", _make, 2, return_indices=True)
    case(f"AvgPool{_dim}", _make, 3, 2, 1, count_include_pad=False)
    case(f"AdaptiveMaxPool{_dim}", _make, 3)
    case(f"AdaptiveAvgPool{_dim}", _make, 3)
    case(f"LPPool{_dim}", lambda make=_make: tuple((x.detach().abs() + 0.1).requires_grad_() for x in make()), 2, 3)
    case(f"BatchNorm{_dim}", _make, 4)
    case(f"InstanceNorm{_dim}", _make, 4, affine=True, track_running_stats=True)
    case(f"ReflectionPad{_dim}", _make, 1)
    case(f"ReplicationPad{_dim}", _make, 2)
    case(f"ConstantPad{_dim}", _make, 1, 2.0)
    case(f"ZeroPad{_dim}", _make, 1)
    case(f"CircularPad{_dim}", _make, 1)
    case(f"Dropout{_dim}", _make, 0.0)


def unpooled(dim: int) -> tuple[Any, ...]:
    pool = getattr(nn.functional, f"max_pool{dim}d")
    values, places = pool(torch.randn(2, 4, *[8] * dim), 2, return_indices=True)
    return values.requires_grad_(), places


for _size in (1, 2, 3):
    case(f"MaxUnpool{_size}d", lambda dim=_size: unpooled(dim), 2)
case("FractionalMaxPool2d", SHAPES["2d"], 2, output_size=4, _random_samples=torch.rand(2, 4, 2))
case("FractionalMaxPool3d", SHAPES["3d"], 2, output_size=3, _random_samples=torch.rand(2, 4, 3))
case("Threshold", rows, 0.1, 2.0)
case("Softmax2d", SHAPES["2d"])
case("Fold", lambda: (real(2, 16, 9),), (4, 4), 2)
case("Unfold", SHAPES["2d"], 3)
case("LayerNorm", rows, 6)
case("RMSNorm", rows, 6)
case("GroupNorm", SHAPES["2d"], 2, 4)
case("LocalResponseNorm", SHAPES["2d"], 2)
case("CrossMapLRN2d", SHAPES["2d"], 2)
case("Linear", rows, 6, 2)
case("Bilinear", lambda: (real(3, 6), real(3, 6)), 6, 6, 3)
case("PixelShuffle", SHAPES["2d"], 2)
case("PixelUnshuffle", SHAPES["2d"], 2)
case("ChannelShuffle", SHAPES["2d"], 2)
case("Unflatten", rows, 1, (2, 3))
case("Sequential", rows, nn.Linear(6, 4), nn.Tanh())
for _mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
    case(f"Upsample/{_mode}", SHAPES["2d"], scale_factor=1.5, mode=_mode)
case("Upsample/trilinear", SHAPES["3d"], size=(4, 5, 7), mode="trilinear", align_corners=True)
case("UpsamplingNearest2d", SHAPES["2d"], scale_factor=2)
case("UpsamplingBilinear2d", SHAPES["2d"], scale_factor=2)
case("Dropout", rows, 0.0)
case("AlphaDropout", rows, 0.0)
case("FeatureAlphaDropout", SHAPES["2d"], 0.0)
CASES["RReLU"] = (lambda: nn.RReLU().eval()), rows


def ids() -> tuple[Any, ...]:
    return (torch.randint(0, 10, (3, 5)),)


case("Embedding", ids, 10, 4, padding_idx=0)
case("Embedding/bounded", ids, 10, 4, max_norm=1.0, scale_grad_by_freq=True)
for _mode in ("sum", "mean", "max"):
    case(f"EmbeddingBag/{_mode}", ids, 10, 4, mode=_mode)


def classes() -> tuple[Any, ...]:
    return real(5, 4), torch.randint(0, 4, (5,))


def chances() -> tuple[Any, ...]:
    return real(5, 4), torch.rand(5, 4)


def signs() -> tuple[Any, ...]:
    return real(5, 4), torch.randn(5, 4).sign()


for _name in names("L1Loss MSELoss SmoothL1Loss HuberLoss SoftMarginLoss HingeEmbeddingLoss"):
    case(_name, signs)
for _name in names("BCEWithLogitsLoss KLDivLoss MultiLabelSoftMarginLoss"):
    case(_name, chances)
for _name in names("CrossEntropyLoss NLLLoss MultiMarginLoss"):
    case(_name, classes)
case("CrossEntropyLoss/weighted", classes, weight=torch.rand(4), label_smoothing=0.1, ignore_index=1)
case("CrossEntropyLoss/chances", lambda: (real(5, 4), torch.rand(5, 4).softmax(1)))
case("NLLLoss2d", lambda: (real(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3))))
case("BCELoss", lambda: (torch.rand(5, 4).requires_grad_(), torch.rand(5, 4)))
case("PoissonNLLLoss", chances, full=True)
case("GaussianNLLLoss", lambda: (real(5, 4), torch.randn(5, 4), torch.rand(5, 4)))
case("MultiLabelMarginLoss", lambda: (real(3, 4), torch.tensor([[0, 1, -1, 2], [1, -1, 0, 0], [3, 2, 1, 0]])))
case("CosineEmbeddingLoss", lambda: (real(5, 4), real(5, 4), torch.randn(5).sign()))
case("MarginRankingLoss", lambda: (real(5), real(5), torch.randn(5).sign()))
case("TripletMarginLoss", lambda: (real(5, 4), real(5, 4), real(5, 4)))
case("TripletMarginWithDistanceLoss", lambda: (real(5, 4), real(5, 4), real(5, 4)))
case("CTCLoss", lambda: (real(10, 2, 5), torch.randint(1, 5, (2, 4)), torch.tensor([10, 9]), torch.tensor([4, 3])))
case("LinearCrossEntropyLoss", lambda: (real(5, 6), torch.randint(0, 4, (5,))), 6, 4)
case("CosineSimilarity", lambda: (real(5, 4), real(5, 4)))
case("PairwiseDistance", lambda: (real(5, 4), real(5, 4)))
for _name in names("RNN LSTM GRU"):
    case(_name, lambda: (real(2, 3, 4),), 4, 5, 2, batch_first=True, bidirectional=True)
    case(f"{_name}Cell", lambda: (real(2, 4),), 4, 5)
case("LSTM/projected", lambda: (real(6, 2, 4),), 4, 5, proj_size=3)
case("MultiheadAttention", lambda: (real(2, 5, 8), real(2, 5, 8), real(2, 5, 8)), 8, 2, batch_first=True)
CASES["MultiheadAttention/fast"] = (
    lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False),
    lambda: (torch.randn(2, 5, 8),) * 3,
)
case("TransformerEncoderLayer", lambda: (real(5, 2, 8),), 8, 2, 16, 0.0)
CASES["TransformerEncoderLayer/fast"] = (
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False),
    lambda: (torch.randn(2, 5, 8),),
)
case("TransformerDecoderLayer", lambda: (real(5, 2, 8), real(4, 2, 8)), 8, 2, 16, 0.0)
CASES["TransformerEncoder"] = (
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2),
    lambda: (real(2, 5, 8),),
)
CASES["TransformerDecoder"] = (
    lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 1),
    lambda: (real(2, 5, 8), real(2, 4, 8)),
)
case("Transformer", lambda: (real(2, 5, 8), real(2, 4, 8)), 8, 2, 1, 1, 16, 0.0, batch_first=True)


def _classes() -> set[str]:
    return {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}


def test_the_table_is_complete() -> None:
    missing = {name for name in _classes() if not name.startswith("Lazy")} - LEFT_OUT
    assert missing == {name.partition("/")[0] for name in CASES} & missing


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_module(name: str) -> None:
    if not hasattr(nn, name.partition("/")[0]):
        pytest.skip("not in this version of torch")
    make, arguments = CASES[name]
    seed = int(torch.randint(0, 2**31, ()))
    modules = []
    for _ in range(2):
        torch.manual_seed(seed)
        modules.append(make())
    eager, module = modules
    compiled = bolide.compile(module, fullgraph=True)
    args = arguments()
    found = []
    for run in (eager, compiled):
        own = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        results = [r for r in torch.utils._pytree.tree_leaves(run(*own)) if isinstance(r, torch.Tensor)]
        tracked = [r for r in results if r.requires_grad]
        if tracked:
            torch.autograd.backward([(r * torch.linspace(0.5, 1, r.numel()).view(r.shape)).sum() for r in tracked])
        found.append([*results, *(a.grad for a in own)])
    found[0] += [*(p.grad for p in eager.parameters()), *eager.buffers()]
    found[1] += [*(p.grad for p in module.parameters()), *module.buffers()]
    for want, got in zip(*found, strict=True):
        if want is None or got is None:
            assert want is got
        else:
            scale = float(want.abs().max()) if want.is_floating_point() and want.numel() else 1.0
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5 * max(1.0, scale))
