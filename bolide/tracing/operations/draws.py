"""Recording random operations as pure functions of one seed.

Draws that are not worth it (permutations, multinomial samples, rare distributions) stay as they are: operations on
torch's own generator. So do all where the numbers are to be eager's (`Trace.draws_as_eager`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Size, hint_of
from bolide.tracing import rng
from bolide.tracing.meta import TensorMeta
from bolide.tracing.numbers import data
from bolide.tracing.operations.factories import dtype_and_device, refuse_negative
from bolide.tracing.operations.registry import handler
from bolide.tracing.operations.writes import refuse_overlaps
from bolide.tracing.recording.inverses import invert, memory_order
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules import kernels
from bolide.tracing.rules.common import fresh, is_dense, like_strides
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
Node = torch.fx.Node
_EXACT = 1 << 20  # a range of integers that 24 random bits cover evenly enough


def _draw(trace: Recorder, func: OpOverload, wanted: TensorMeta) -> Node:
    seed, counter = trace.seed(wanted.device)
    return trace.call(func, seed, counter, [trace.unwrap(size) for size in wanted.shape])  # type: ignore[no-any-return]


def _as_eager(trace: Recorder, wanted: TensorMeta) -> bool:
    """Whether torch's own generator draws: it does on devices that have no kernels of ours."""
    return trace.draws_as_eager or wanted.device.type not in ("cpu", "cuda")


def _eagers(trace: Recorder, func: OpOverload, wanted: TensorMeta, *parameters: object) -> Node:
    """What eager draws, by the functional form of the operation that fills memory of the wanted layout."""
    return trace.call(func, trace.filled(wanted, 0), *parameters)  # type: ignore[no-any-return]


def _require(fill: str, wanted: TensorMeta, *parameters: object) -> None:
    """Raise what eager does for numbers of this type, or with these parameters, if they are known."""
    known = all(isinstance(each, (int, float, torch.dtype)) for each in parameters)
    empty = any(kernels.is_known_zero(size) for size in wanted.shape)
    refused = kernels.filling_refusal(fill, wanted.dtype, empty, *(parameters if known else ()))
    if refused is not None:
        raise type(refused)(*refused.args)


def _uniform(trace: Recorder, wanted: TensorMeta, low: float = 0, high: float = 1) -> Node:
    """A node of the wanted shape and dtype, uniform in [low, high)."""
    _require("uniform_", wanted, low, high)
    if _as_eager(trace, wanted):
        return _eagers(trace, aten.uniform.default, wanted, low, high)
    if wanted.dtype.is_complex:
        return _both_parts(trace, wanted, lambda part: _uniform(trace, part, low, high))
    node = _draw(trace, rng.rand, wanted)
    if wanted.dtype in (torch.bfloat16, torch.float16):  # as many bits as the dtype holds: rounding must not give 1
        steps = 2**8 if wanted.dtype is torch.bfloat16 else 2**11
        node = trace.call(aten.floor.default, trace.call(aten.mul.Tensor, node, steps))
        node = trace.call(aten.mul.Tensor, node, 1 / steps)
    if high - low != 1:
        node = trace.call(aten.mul.Tensor, node, high - low)
    if low != 0:
        node = trace.call(aten.add.Tensor, node, low)
    return _converted(trace, node, wanted)


def _normal(trace: Recorder, wanted: TensorMeta, mean: float = 0, std: float = 1) -> Node:
    _require("normal_", wanted, mean, std)
    if _as_eager(trace, wanted):
        if _one_by_one(wanted):
            return _normal_one_by_one(trace, wanted, mean, std)
        return _eagers(trace, aten.normal_functional.default, wanted, mean, std)
    if wanted.dtype.is_complex:  # the two parts have the variance together, and each the mean
        return _both_parts(trace, wanted, lambda part: _normal(trace, part, mean, std * math.sqrt(0.5)))
    node = _draw(trace, rng.randn, wanted)
    if std != 1:
        node = trace.call(aten.mul.Tensor, node, std)
    if mean != 0:
        node = trace.call(aten.add.Tensor, node, mean)
    return _converted(trace, node, wanted)


def _one_by_one(wanted: TensorMeta) -> bool:
    """Whether a CPU draws normal numbers one by one for this layout: with gaps, and so many (a complex one is two) that
    it would draw blocks of 16 for a contiguous one, with other results."""
    gaps = not is_dense(wanted.shape, wanted.stride) and wanted.device.type == "cpu"
    return gaps and bool(wanted.numel >= (8 if wanted.dtype.is_complex else 16))


def _normal_one_by_one(trace: Recorder, wanted: TensorMeta, mean: float, std: float) -> Node:
    """The functional form draws one by one into what is not contiguous: two columns, and a last number if it is odd."""
    count, order = wanted.numel, memory_order(wanted.shape, wanted.stride)
    memory = trace.filled(fresh((2, count // 2), wanted.dtype, wanted.device), 0)
    columns = trace.call(aten.permute.default, memory, [1, 0])
    drawn = trace.call(aten.normal_functional.default, columns, mean, std)
    flat = trace.call(aten.permute.default, drawn, [1, 0])
    flat = trace.call(aten.reshape.default, flat, [trace.unwrap(count // 2 * 2)])
    if count % 2:
        last = _eagers(trace, aten.normal_functional.default, fresh((1,), wanted.dtype, wanted.device), mean, std)
        flat = trace.call(aten.cat.default, [flat, last])
    rows = trace.call(aten.reshape.default, flat, [trace.unwrap(wanted.shape[dim]) for dim in order])
    return trace.call(aten.permute.default, rows, invert(order))  # type: ignore[no-any-return]


def _integers(trace: Recorder, wanted: TensorMeta, low: int, high: int) -> Node:
    """Integers from `low` up to below `high`; its bounds are known of a number that is read from them."""
    node = _drawn_integers(trace, wanted, low, high)
    node.meta["within"] = (low, high - 1)
    return node


def _drawn_integers(trace: Recorder, wanted: TensorMeta, low: int, high: int) -> Node:
    _require("random_", wanted, low, high)
    if not wanted.dtype.is_floating_point and not high - 1 <= _largest(wanted.dtype):
        _require("random_", wanted, hint_of(low), hint_of(high))
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    count, first, starts_at_zero = trace.unwrap(high - low), trace.unwrap(low), low == 0
    if _as_eager(trace, wanted):
        node = _eagers(trace, aten.random.to, wanted, count)
        return node if starts_at_zero else trace.call(aten.add.Tensor, node, first)  # type: ignore[no-any-return]
    if high - low > _EXACT:
        op, end, shape = aten.randint.low, trace.unwrap(high), [trace.unwrap(size) for size in wanted.shape]
        options = {"dtype": wanted.dtype, "device": wanted.device}
        return trace.call(op, first, end, shape, **options)  # type: ignore[no-any-return]
    node = _draw(trace, rng.rand, wanted)
    node = trace.call(aten.floor.default, trace.call(aten.mul.Tensor, node, count))
    if not starts_at_zero:
        node = trace.call(aten.add.Tensor, node, first)
    return _converted(trace, node, wanted)


def _largest(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def _bernoulli(trace: Recorder, wanted: TensorMeta, p: float | Node) -> Node:
    """1 with probability `p` (a number or a node), in the wanted dtype."""
    _require("bernoulli_", wanted, p.meta["val"].dtype if isinstance(p, Node) else p)
    if _as_eager(trace, wanted):
        # Truth values, of which a backward can keep a byte each. A CPU draws the same ones for every dtype.
        drawn = wanted._replace(dtype=torch.bool) if wanted.device.type == "cpu" else wanted
        node = _eagers(trace, aten.bernoulli.Tensor, drawn, p) if isinstance(p, Node) else _trials(trace, drawn, p)
        return _cast(trace, _cast(trace, node, torch.bool), wanted.dtype)
    if isinstance(p, Node):
        low, high = trace.call(aten.ge.Scalar, p, 0), trace.call(aten.le.Scalar, p, 1)
        data.check_node(trace, trace.call(aten.all.default, trace.call(aten.logical_and.default, low, high)))
    node = _draw(trace, rng.rand, wanted)
    op = aten.lt.Tensor if isinstance(p, Node) else aten.lt.Scalar
    return _converted(trace, trace.call(op, node, p), wanted)


def _trials(trace: Recorder, wanted: TensorMeta, p: float) -> Node:
    """Eager's numbers for one probability. It draws in the order of memory, but the functional form gives contiguous
    results: the memory is drawn, and permuted."""
    memory = trace.filled(wanted, 0)
    if memory.target is not aten.permute.default:
        return trace.call(aten.bernoulli.p, memory, p)  # type: ignore[no-any-return]
    full, order = memory.args
    return trace.call(aten.permute.default, trace.call(aten.bernoulli.p, full, p), order)  # type: ignore[no-any-return]


def _both_parts(trace: Recorder, wanted: TensorMeta, drawn: Callable[[TensorMeta], Node]) -> Node:
    """Complex numbers of the wanted shape and dtype: both their parts are drawn."""
    part = fresh(wanted.shape, wanted.dtype.to_real(), wanted.device)
    real = drawn(part)
    return trace.restride(trace.call(aten.complex.default, real, drawn(part)), wanted)


def _cast(trace: Recorder, node: Node, dtype: torch.dtype) -> Node:
    same = node.meta["val"].dtype is dtype
    return node if same else trace.call(aten._to_copy.default, node, dtype=dtype)


def _converted(trace: Recorder, node: Node, wanted: TensorMeta) -> Node:
    return trace.restride(_cast(trace, node, wanted.dtype), wanted)


def _target(trace: Recorder, func: OpOverload, *args: Any) -> tuple[TracedTensor, TensorMeta]:
    """The tensor that is filled with numbers, and its meta: eager draws in the order of its memory."""
    refuse_overlaps(trace.where, func, args, {}, args[:1])
    target = trace.own(args[0])
    return target, target.meta


@handler("bernoulli_.float", "bernoulli_.Tensor")
def _bernoulli_(trace: Recorder, func: OpOverload, tensor: Tensor, p: Any = 0.5, **_: object) -> Tensor:
    target, meta = _target(trace, func, tensor, p)
    trace.write(target, _bernoulli(trace, meta, trace.unwrap(p)))
    return tensor


@handler("bernoulli", "bernoulli.p")
def _bernoulli_of(trace: Recorder, func: OpOverload, tensor: Tensor, *p: float, **_: object) -> Any:
    node = trace.unwrap(tensor)
    like = node.meta["val"]
    wanted = fresh(like.shape, like.dtype, like.device)
    return trace.wrap(_bernoulli(trace, wanted, p[0] if p else node))


@handler("uniform_", "normal_")
def _filled(trace: Recorder, func: OpOverload, tensor: Tensor, *given: float, **_: object) -> Tensor:
    target, meta = _target(trace, func, tensor, *given)
    draw = _uniform if func is aten.uniform_.default else _normal
    trace.write(target, draw(trace, meta, *_two(given)))
    return tensor


@handler("normal_functional")
def _normal_functional(trace: Recorder, func: OpOverload, tensor: Tensor, *given: float, **_: object) -> Any:
    meta: TensorMeta = trace.unwrap(tensor).meta["val"]
    return trace.wrap(_normal(trace, meta._replace(stride=like_strides(meta)), *_two(given)))  # into a dense copy


def _two(given: tuple[float, ...]) -> tuple[float, ...]:
    """The two parameters of a distribution, of which the last may be left out."""
    return *given, *(0.0, 1.0)[len(given) :]


@handler("random_", "random_.to", "random_.from")
def _random_(trace: Recorder, func: OpOverload, tensor: Tensor, *bounds: Any, **_: object) -> Tensor:
    target, meta = _target(trace, func, tensor, *bounds)
    if not bounds or bounds[-1] is None:
        reason = "Tensor.random_ over the whole range of its dtype"
        raise Unsupported(reason, trace.where, "give it an upper bound", kind="operator")
    low, high = bounds if len(bounds) > 1 else (0, *bounds)
    trace.write(target, _integers(trace, meta, low, high))
    return tensor


def _wanted(trace: Recorder, given: Any, options: dict[str, Any], dtype: torch.dtype | None = None) -> TensorMeta:
    """The meta of what is drawn in the shape of a tensor, or of these sizes (of this dtype if no other is wanted)."""
    if isinstance(given, Tensor):
        like = trace.unwrap(given).meta["val"]
        return fresh(like.shape, *dtype_and_device(options, like), like_strides(like, options.get("memory_format")))
    refuse_negative(given)
    wanted, device = dtype_and_device(options)
    return fresh(given, wanted if options.get("dtype") or dtype is None else dtype, device)


@handler("rand", "rand.generator", "rand_like", "randn", "randn.generator", "randn_like")
def _floats(trace: Recorder, func: OpOverload, given: Any, **options: Any) -> Any:
    draw = _normal if func._opname.startswith("randn") else _uniform
    return trace.wrap(draw(trace, _wanted(trace, given, options)))


@handler("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def _randint(trace: Recorder, func: OpOverload, *args: Any, **options: Any) -> Any:
    given, *bounds = args if isinstance(args[0], Tensor) else (args[-1], *args[:-1])
    low, high = bounds if len(bounds) > 1 else (0, *bounds)
    return trace.wrap(_integers(trace, _wanted(trace, given, options, torch.int64), low, high))


@handler("normal.float_float")
def _normal_of_shape(
    trace: Recorder, func: OpOverload, mean: float, std: float, shape: list[Size], **options: Any
) -> Any:
    return trace.wrap(_normal(trace, _wanted(trace, shape, options), mean, std))


@handler("native_dropout")
def _native_dropout(trace: Recorder, func: OpOverload, x: Tensor, p: float, train: bool | None) -> Any:
    node = trace.unwrap(x)
    meta = node.meta["val"]
    if train is False or p == 0:
        mask = trace.filled(meta._replace(dtype=torch.bool), True)
        return trace.wrap([trace.call(aten.clone.default, node), mask])
    mask = _bernoulli(trace, meta._replace(dtype=torch.bool), 1 - p)
    scaled = trace.call(aten.mul.Tensor, trace.call(aten.mul.Tensor, node, mask), 0.0 if p == 1 else 1 / (1 - p))
    return trace.wrap([scaled, mask])
