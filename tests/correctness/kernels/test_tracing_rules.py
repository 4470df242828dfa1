"""Shape rules against eager: whatever ATen operations torch's own samples run, forward and backward, are asked of the
rules too."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import bolide
from bolide.tracing import TensorMeta
from bolide.tracing.meta import meta_of
from bolide.tracing.rules import RULES, answers, infer
from tests.opdb_tools import OPERATIONS, rearranged

LAID_OUT_OTHERWISE = 60  # operations of a run

OPS = [
    "abs",
    "add",
    "addmm",
    "amax",
    "any",
    "arange",
    "argmax",
    "argsort",
    "as_strided",
    "atan2",
    "bmm",
    "cat",
    "chunk",
    "clamp",
    "clone",
    "constant_pad_nd",
    "cos",
    "cumsum",
    "div",
    "expand",
    "flip",
    "flatten",
    "floor_divide",
    "gather",
    "index_add",
    "index_put",
    "index_select",
    "isnan",
    "lerp",
    "logsumexp",
    "lt",
    "masked_fill",
    "matmul",
    "max",
    "mean",
    "mul",
    "narrow",
    "native_layer_norm",
    "norm",
    "permute",
    "pow",
    "remainder",
    "repeat",
    "reshape",
    "roll",
    "rsub",
    "scatter",
    "scatter_add",
    "select",
    "sigmoid",
    "slice",
    "sort",
    "split",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "t",
    "tanh",
    "to",
    "topk",
    "transpose",
    "tril",
    "unbind",
    "unfold",
    "unsqueeze",
    "var",
    "view",
    "where",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.avg_pool2d",
    "nn.functional.batch_norm",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv_transpose2d",
    "nn.functional.cross_entropy",
    "nn.functional.embedding",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.layer_norm",
    "nn.functional.leaky_relu",
    "nn.functional.linear",
    "nn.functional.max_pool2d",
    "nn.functional.mse_loss",
    "nn.functional.nll_loss",
    "nn.functional.pad",
    "nn.functional.relu",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.silu",
    "nn.functional.softmax",
    "nn.functional.softplus",
]


class _Compare(TorchDispatchMode):
    """Runs operations as they are, and collects those whose rule says something else."""

    def __init__(self, comparable: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.comparable = comparable or _comparable
        self.wrong: list[str] = []
        self.asked = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        masked = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1])
        if func.name() in RULES and not masked:
            self.asked += 1
            given, options = _known(args), {name: _known(value) for name, value in kwargs.items()}
            told, wanted = RULES[func.name()](*given, **options), _known(result)
            if self.comparable(told, wanted) != self.comparable(wanted, wanted):
                self.wrong.append(f"{func} on {given} {options}:\n  rule  {told}\n  eager {wanted}")
        return result


def _known(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return meta_of(value)._replace(requires_grad=False)
    return [_known(item) for item in value] if isinstance(value, (list, tuple)) else value


def _comparable(told: Any, wanted: Any) -> Any:
    if isinstance(told, TensorMeta):
        trivial = 0 in told.shape or all(size == 1 for size in told.shape)  # strides without meaning
        return told._replace(stride=wanted.stride if trivial else told.stride, requires_grad=False)
    if isinstance(told, (list, tuple)):
        return [_comparable(item, other) for item, other in zip(told, wanted)]
    return told


def _meaningful(told: Any, wanted: Any) -> Any:
    """Without the strides of dimensions of one element."""
    if isinstance(told, TensorMeta):
        pairs = zip(told.stride, told.shape) if 0 not in told.shape else ()
        return told._replace(stride=tuple(step for step, size in pairs if size > 1), requires_grad=False)
    if isinstance(told, (list, tuple)):
        return [_meaningful(item, other) for item, other in zip(told, wanted)]
    return told


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    wants_grad = dtype.is_floating_point and info.supports_autograd
    for position, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=wants_grad)):
        if position == 4:
            return
        yield sample
        if info.name != "as_strided":
            yield sample.noncontiguous()


def _run(info: Any, sample: Any) -> None:
    result = info(sample.input, *sample.args, **sample.kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if outputs:
        torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.filterwarnings("ignore")
def test_rules_agree_with_eager(name: str) -> None:
    infos = [info for info in OPERATIONS if info.name == name]
    if not infos:
        pytest.skip(f"torch's database of operations has no {name}")
    compare = _Compare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in infos:
            for dtype in {torch.float32, torch.int64, torch.bfloat16} & info.supported_dtypes("cpu"):
                for sample in _samples(info, dtype):
                    with compare:
                        _run(info, sample)
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.asked, f"no operation of {name} has a rule"


@pytest.mark.filterwarnings("ignore")
def test_rules_agree_with_eager_on_operands_laid_out_otherwise() -> None:
    """Random operations: operands and gradients permuted, and with gaps."""
    compare, rng = _Compare(_meaningful), random.Random(random.randrange(2**31))
    for info in random.sample(OPERATIONS, LAID_OUT_OTHERWISE):
        for dtype in {torch.float32, torch.int64, torch.complex64} & info.supported_dtypes("cpu"):
            grad = info.supports_autograd and dtype is not torch.int64
            for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), 6):
                arguments = rearranged(((sample.input, *sample.args), sample.kwargs), rng)
                with compare, contextlib.suppress(RuntimeError, ValueError, TypeError, LookupError):
                    _derived(info.op(*arguments[0], **arguments[1]), arguments, rng)
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.asked


SIZED_BY_DATA = {"masked_select", "equal", "_unique", "_unique2", "bincount", "nonzero", "_ctc_loss", "allclose"}
SIZED_BY_DATA.add("native_batch_norm")  # where statistics are given: no kernel of ATen's is called


class _CompareLarge(_Compare):
    """Operations that no rule tells are asked as they are for large tensors: of meta kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        taken = func.name() in RULES or func._opname in SIZED_BY_DATA or func.namespace != "aten"
        writes = any(argument.alias_info for argument in func._schema.arguments)
        wanted = _known(result)
        if not taken and not writes and not self.inside:
            self.inside, told = True, wanted
            with contextlib.suppress(Exception):
                told = infer(func, _known(args), {name: _known(value) for name, value in (kwargs or {}).items()})
            self.inside, self.asked = False, self.asked + 1
            given, said = ([each] if isinstance(each, TensorMeta) else each for each in (wanted, told))
            if isinstance(given, list) and self.comparable(list(said), given) != self.comparable(given, given):
                self.wrong.append(f"{func} on {_known(args)}:\n  told  {told}\n  eager {wanted}")
        return result

    inside = False


@pytest.mark.filterwarnings("ignore")
def test_meta_kernels_agree_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They speak for a GPU's, and are asked about large tensors. Random operations, and those that were wrong."""
    monkeypatch.setattr(TensorMeta, "is_small", lambda self, most: False)
    monkeypatch.setattr(answers, "remember", False)
    compare = _CompareLarge(_meaningful)
    for info in [*random.sample(OPERATIONS, LAID_OUT_OTHERWISE), *(o for o in OPERATIONS if o.name == "linalg.eig")]:
        for dtype in {torch.float32, torch.int64} & info.supported_dtypes("cpu"):
            grad = info.supports_autograd and dtype is not torch.int64
            for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), 6):
                with compare, contextlib.suppress(RuntimeError, ValueError, TypeError, LookupError):
                    _run(info, sample)
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.asked


@pytest.mark.filterwarnings("error::bolide.support.errors.BolideWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("shape", [(200, 200), (200, 130), (130, 200), (2, 120, 110)])
def test_decompositions_of_large_matrices_lie_as_in_eager(shape: tuple[int, ...], dynamic: bool | None) -> None:
    programs: list[Callable[[torch.Tensor], Any]] = [
        lambda x: torch.linalg.svd(x, full_matrices=False),
        torch.linalg.svd,
        torch.linalg.svdvals,
        lambda x: torch.linalg.eig(x[..., :110, :110]),
    ]
    for program in programs:
        x = torch.randn(shape, dtype=random.choice([torch.float32, torch.complex64]))
        pairs = zip(bolide.compile(program, dynamic=dynamic)(x), program(x), strict=True)
        assert all(mine.stride() == theirs.stride() and mine.dtype is theirs.dtype for mine, theirs in pairs)


def _derived(result: Any, arguments: Any, rng: random.Random) -> None:
    leaves, outputs = (
        [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for tree in (arguments, result)
    )
    if outputs:
        given = rearranged([torch.ones_like(output) for output in outputs], rng)
        torch.autograd.grad(outputs, leaves, given, allow_unused=True)


CHANNELS_LAST = {
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 1)),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "add a bias": lambda x: x + torch.ones(1, 4, 1, 1),
    "add rows first": lambda x: torch.ones(4, 1, 1) + x,
    "mask": lambda x: x.masked_fill(x > 0, 1.0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(())),
    "narrowed": lambda x: x[:, :2, ::2].exp() + 1,
    "avg_pool2d": lambda x: torch.nn.functional.avg_pool2d(x, 2),
    "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2),
    "mean": lambda x: x.mean((2, 3), keepdim=True) * x,
    "flatten": lambda x: x.flatten(2).transpose(1, 2).contiguous(),
    "interpolate": lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
    "cumsum": lambda x: x.cumsum(2),
    "index": lambda x: x[:, torch.tensor([0, 2, 1])],
    "index two": lambda x: x[torch.tensor([0, 1]), :, torch.tensor([1, 1])],
    "flip": lambda x: x.flip(2),
    "roll": lambda x: x.roll(1, 2),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(2, 6, 6, dtype=torch.int64)),
    "to": lambda x: x.to(torch.bfloat16) + x[:, :, ::2, ::2].to(torch.float64).sum(),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "conv_transpose2d": lambda x: torch.nn.functional.conv_transpose2d(x, torch.ones(4, 3, 2, 2), stride=2),
    "grouped conv2d": lambda x: torch.nn.functional.conv2d(x, torch.ones(8, 2, 3, 3), groups=2, padding=1),
    "instance_norm": lambda x: torch.nn.functional.instance_norm(x),
}


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last(name: str) -> None:
    compare = _Compare()
    with compare:
        x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
        result = CHANNELS_LAST[name](x)
        torch.autograd.grad(result, [x], torch.ones_like(result))
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.asked


def test_channels_last_flows_through_a_conv_net() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.SiLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.GroupNorm(2, 8),
        torch.nn.Conv2d(8, 4, 3, stride=2),
        torch.nn.AdaptiveAvgPool2d(1),
    ).to(memory_format=torch.channels_last)
    compare = _Compare()
    with compare:
        x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
        (net(x) * net(x).exp()).sum().backward()
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.asked > 20


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(3, 6, 1, 1), (3, 1, 4, 4), (3, 6, 1, 4), (1, 6, 4, 1), (3, 1, 2, 3, 4)])
def test_batch_norms_of_what_is_row_major_in_any_format(shape: tuple[int, ...], training: bool, dynamic: bool) -> None:
    """Strides of dimensions of one place decide the format of what is made of the result."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        normed = functional.batch_norm(x, torch.zeros(shape[1]), torch.ones(shape[1]), training=training)
        return functional.interpolate(normed, size=(3,) * (len(shape) - 2))

    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.empty(shape, memory_format=last).normal_()
    expected, result = resized(x), bolide.compile(resized, dynamic=dynamic)(x)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


@pytest.mark.parametrize("name", ["add", "mul", "div", "lt", "atan2", "maximum", "logical_and", "hypot", "xlogy"])
def test_strides_where_operands_of_other_types_are_converted_first(name: str) -> None:
    """A tensor that is expanded is dense when it has been converted."""
    layouts: list[Callable[[torch.dtype], torch.Tensor]] = [
        lambda dtype: torch.ones(2, 3, 4, dtype=dtype),
        lambda dtype: torch.ones((), dtype=dtype).expand(2, 3, 4),
        lambda dtype: torch.ones(2, 1, 4, dtype=dtype).expand(2, 3, 4),
        lambda dtype: torch.ones(2, 4, 3, dtype=dtype).mT,
        lambda dtype: torch.ones(2, 8, 3, dtype=dtype)[:, ::2].mT,
        lambda dtype: torch.ones(3, 1, dtype=dtype),
    ]
    packet = getattr(torch.ops.aten, name)
    overload = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    for first, second in itertools.product(layouts, layouts):
        for types in itertools.permutations((torch.float32, torch.float64, torch.int64), 2):
            x, y = first(types[0]), second(types[1])
            wanted, found = overload(x, y), infer(overload, (meta_of(x), meta_of(y)), {})
            assert (found.stride, found.dtype) == (wanted.stride(), wanted.dtype)


@pytest.mark.parametrize("value", [1 + 0j, 1 + 2j, 2j, True, 3, 0.5])
@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.float16])
def test_the_type_of_what_is_filled(value: Any, default: torch.dtype) -> None:
    def program(x: Any) -> Any:
        made = [torch.full((2,), value), torch.full((), value, dtype=torch.complex128)]
        for make in (
            lambda: torch.full((2,), value, dtype=torch.float32),
            lambda: x.new_full((2,), value),
            lambda: torch.full_like(x, value),
        ):
            try:
                made.append(make())
            except RuntimeError as error:
                made.append(torch.tensor(len(str(error))))
        return x + 1, made

    compiled = bolide.compile(program, fullgraph=True)
    try:
        torch.set_default_dtype(default)
        for size in (2, 3):
            x = torch.ones(size, dtype=torch.float32)
            torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("channels, height", [(8, 6), (32, 40)])
def test_rearranged_images_lie_as_in_eager_whatever_their_size(channels: int, height: int) -> None:
    """Of many elements no kernel is asked but a meta kernel, which may tell other strides."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = functional.conv2d(x, torch.ones(channels, 1, 3, 3), padding=1, groups=channels)
        rearranged = functional.pixel_shuffle(y, 2), functional.pixel_unshuffle(x, 2), functional.channel_shuffle(x, 4)
        return *rearranged, functional.pixel_shuffle(x, 2) + 1

    compiled = bolide.compile(program)
    for batch in random.sample(range(2, 6), 3):
        for memory_format in (torch.channels_last, torch.contiguous_format):
            x = torch.randn(batch, channels, height, 2 * height).contiguous(memory_format=memory_format)
            for requires_grad in (False, True):
                x.requires_grad_(requires_grad)
                mine, theirs = compiled(x), program(x)
                torch.testing.assert_close(mine, theirs)
                assert [part.stride() for part in mine] == [part.stride() for part in theirs]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_statistics_of_norms_on_either_device(device: str, dtype: torch.dtype) -> None:
    """A GPU's kernels keep them as they accumulate, a CPU's as the parameters are; but for group norms."""
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)

    def meta(*shape: int) -> TensorMeta:
        return meta_of(torch.empty(shape, dtype=dtype, device="meta"))._replace(device=place)

    x, vector = meta(2, 4, 6), meta(4)
    wide = torch.float32 if device == "cuda" and dtype.itemsize == 2 else dtype
    _, *stats = infer(torch.ops.aten.native_layer_norm.default, (x, [6], meta(6), meta(6), 1e-5), {})
    assert [stat.dtype for stat in stats] == [wide, wide]
    running = (x, vector, vector, vector, vector, True, 0.1, 1e-5)
    _, *stats = infer(torch.ops.aten._native_batch_norm_legit_functional.default, running, {})
    assert [stat.dtype for stat in stats] == [wide, wide, dtype, dtype]
    _, *stats = infer(torch.ops.aten.native_group_norm.default, (x, vector, vector, 2, 4, 6, 2, 1e-5), {})
    assert [stat.dtype for stat in stats] == [dtype, dtype]
