"""Operations that are given floats of the graph: recorded with tensors in the numbers' places."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.nn import functional

from bolide.symbolic import Ratio, Size
from bolide.tracing.numbers.scalars import ScalarNode, of
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import suggested_format
from bolide.tracing.traits import ROUNDS_SHRINKING

Number = Any
"""A number of Python's or of the graph; where a form is given it, its tensor."""
Answer = Any
"""Tensors, or NotImplemented where numbers have to be known."""
Formula = Callable[..., Answer]


def with_tensors(trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation on traced floats answers, recorded with tensors in their place; else NotImplemented."""
    if not any(map(_has_scalar, args)) and not any(map(_has_scalar, kwargs.values())):
        return NotImplemented
    name = func._name.removeprefix("aten::").partition(".")[0]
    if name.startswith("_foreach_"):
        return NotImplemented  # taken apart first
    form = None if "out" in kwargs else _FORMS.get(name.rstrip("_"))
    with trace.recording():
        device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), None)
        stands_for = _alone if _is_given_numbers(func, args) else partial(_tensor, device=device)
        result: Any = NotImplemented
        if form is not None:
            result = form(*map(stands_for, args), **{key: stands_for(value) for key, value in kwargs.items()})
        if result is NotImplemented:
            return func(*map(_known, args), **{key: _known(value) for key, value in kwargs.items()})
        return args[0].copy_(result) if name.endswith("_") else result


#: functions whose derivatives compare numbers, or compute with them, which C++ cannot do with symbolic ones
_DERIVED_WITH_NUMBERS = frozenset(("pow", "pow_", "ipow", "__rpow__", "lerp", "lerp_", "xlogy", "special_xlogy"))


def for_derivatives(
    function: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function that C++ is going to derive: integers of a power are numbers, of which the program
    depends, and floats are tensors."""
    name = getattr(function, "__name__", "")
    if name not in _DERIVED_WITH_NUMBERS:
        return args, kwargs
    operands = (getattr(function, "__self__", None), *args, *kwargs.values())
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    derived = forward_ad._current_level >= 0 or any(tensor.requires_grad for tensor in tensors)
    if not derived or not tensors or (tensors[0].dtype.itemsize < 4 and name.startswith("lerp")):
        return args, kwargs  # (the derivative of a `lerp` would round the weight)
    dtype = torch.result_type(tensors[0], 1.0)
    return tuple([_derivable(arg, dtype) for arg in args]), {key: _derivable(arg, dtype) for key, arg in kwargs.items()}


def _derivable(arg: object, dtype: torch.dtype) -> object:
    if isinstance(arg, torch.SymInt):
        return int(arg)
    return of(arg).tensor.to(dtype) if isinstance(arg, torch.SymFloat) else arg


_WITH_NUMBERS = {
    **dict.fromkeys(("add", "iadd", "radd"), "add"),
    **dict.fromkeys(("sub", "isub", "subtract"), "sub"),
    **dict.fromkeys(("mul", "imul", "rmul", "multiply"), "mul"),
    **dict.fromkeys(("div", "divide", "itruediv", "truediv", "true_divide"), "div"),
    **dict.fromkeys(("rdiv", "rtruediv"), "rdiv"),
}


def with_scalars(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, Any]
) -> Callable[[], object]:
    """The call of a function in a dual level: where a tensor is computed with a number, of the operation for numbers.
    That for tensors has C++ read the tangent of the number."""
    said = getattr(function, "__name__", "")
    name = _WITH_NUMBERS.get(said.strip("_"))
    owner = getattr(function, "__self__", None)
    operands = (owner, *args) if isinstance(owner, torch.Tensor) else args
    as_it_is = partial(function, *args, **kwargs)
    if name is None or len(operands) != 2 or kwargs.keys() - {"alpha"}:
        return as_it_is
    one, other = operands
    if isinstance(other, torch.Tensor) and isinstance(one, _NUMBERS) and name != "sub":
        one, other, name = other, one, "rdiv" if name == "div" else name
    if not isinstance(one, torch.Tensor) or not isinstance(other, _NUMBERS):
        return as_it_is
    if name == "rdiv":
        return lambda: torch.ops.aten.mul.Scalar(one.reciprocal(), other)
    in_place = said.strip("_").startswith("i") or (said.endswith("_") and not said.endswith("__"))
    operation = getattr(torch.ops.aten, f"{name}_" if in_place else name).Scalar
    return partial(operation, one, other * kwargs["alpha"] if kwargs else other)


_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat)


def _has_scalar(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_scalar, value))
    return isinstance(value, torch.SymFloat) and (type(value.node) is ScalarNode or type(value.node.expr) is Ratio)


def _tensor(value: Any, device: torch.device | None) -> Any:
    """The tensor of a number, beside tensors of a device: those of the CPU take none of a GPU's."""
    if not _has_scalar(value):
        return value
    number = of(value).tensor
    return number if device is None or device.type != "cpu" else number.to(device)


def _is_given_numbers(func: OpOverload, args: tuple[object, ...]) -> bool:
    """Whether all that a function of tensors is given are numbers."""
    return str(func._schema.arguments[0].type) == "Tensor" and not any(isinstance(arg, torch.Tensor) for arg in args)


def _alone(value: Any) -> Any:
    """A number that is given for a tensor, where there are only numbers, has the default type."""
    return of(value).tensor.to(torch.get_default_dtype()) if _has_scalar(value) else value


def _known(value: Any) -> Any:
    return float(of(value)) if _has_scalar(value) else value


def _like(scalar: Number, x: torch.Tensor) -> Answer:
    """A scalar's tensor in the type that the number would have next to `x`: numbers never widen it."""
    if not isinstance(scalar, torch.Tensor) or scalar.dim() or not isinstance(x, torch.Tensor):
        return scalar
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return scalar.to(x.dtype) if x.dtype.itemsize >= 4 or not x.dim() else scalar
    return scalar.to(torch.get_default_dtype())


def _is_number_beside(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the number among two operands is the first; it is in float64."""
    return not x.dim() and bool(y.dim() or (x.dtype is torch.float64 and y.dtype is not torch.float64))


def _binary(op: Callable[..., torch.Tensor], sign: int = 1) -> Callable[..., torch.Tensor]:
    def form(x: Number, y: Number, *rest: Number, alpha: Number = None, **options: Number) -> torch.Tensor:
        if isinstance(alpha, torch.Tensor):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
                kind = torch.result_type(x, y)
                if not (kind.is_floating_point or kind.is_complex):
                    return op(x, y, alpha=0.5)  # which raises
                return _computed(lambda x, y: torch.addcmul(x, y, (sign * alpha).to(kind).to(x.dtype)), kind, x, y)
            y = y * _like(alpha, y)
        elif alpha is not None:
            y = y * alpha
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            x, y = (_like(x, y), y) if _is_number_beside(x, y) else (x, _like(y, x))
        return op(x, y, *rest, **options)

    return form


def _addc(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def form(x: Number, a: Number, b: Number, value: Number = 1) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return op(x, a, b, value=value)
        if x.dtype is a.dtype is b.dtype:
            return _computed(lambda x, a, b: op(x, a * value.to(x.dtype), b), x.dtype, x, a, b)
        return op(x, a * _like(value, a), b)

    return form


def _computed(op: Callable[..., torch.Tensor], kind: torch.dtype, *operands: torch.Tensor) -> torch.Tensor:
    """An operation in the type in which eager's kernels compute results of type `kind`, rounded once. With them,
    ``x + alpha * y`` is one fused operation, as in `addcmul`, and ``alpha * a`` is the first product of three."""
    work = torch.float32 if kind.is_floating_point and kind.itemsize < 4 else kind
    return op(*(operand.to(work) for operand in operands)).to(kind)


def _lerp(x: Number, end: Number, weight: Number) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return torch.lerp(x, end, 0.5)  # says what eager does of these
    return torch.lerp(x, end, _like(weight, x))


def _full(size: Sequence[Size], value: Number, **options: Number) -> torch.Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    return value.to(dtype).expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _new_full(x: torch.Tensor, size: Number, value: Number, **options: Number) -> torch.Tensor:
    value = torch.as_tensor(value, dtype=options.get("dtype") or x.dtype, device=options.get("device") or x.device)
    return value.expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _full_like(x: torch.Tensor, value: torch.Tensor, **options: object) -> torch.Tensor:
    return torch.empty_like(x, **options).fill_(value)  # type: ignore[arg-type]


def _clamp(x: Number, low: Number = None, high: Number = None, **bounds: Number) -> torch.Tensor:
    low, high = bounds.get("min", low), bounds.get("max", high)
    for bound, op in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            x = op(x, _like(bound, x) if isinstance(bound, torch.Tensor) else torch.full((), bound, dtype=x.dtype))
    return x  # type: ignore[no-any-return]


def _padded(x: torch.Tensor, pad: Sequence[Size], value: Number) -> torch.Tensor:
    outside = torch.constant_pad_nd(torch.zeros((), dtype=torch.bool, device=x.device).expand(x.shape), pad, True)  # type: ignore[arg-type]
    return torch.constant_pad_nd(x, pad).masked_fill(outside, value.to(x.dtype))  # type: ignore[arg-type]


def _wide(form: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A form in the type in which eager's kernels compute, rounded once to that of the first operand."""

    def call(x: torch.Tensor, *operands: Number, **options: Number) -> Answer:
        if not x.is_floating_point():
            return NotImplemented
        work = _work(x)

        def wide(value: Number) -> Answer:
            return value.to(work) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        return form(*map(wide, (x, *operands)), **{name: wide(value) for name, value in options.items()}).to(x.dtype)

    return call


def _product(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`beta` times a tensor, plus `alpha` times a product."""

    def form(x: torch.Tensor, *factors: torch.Tensor, beta: Number = 1, alpha: Number = 1) -> Answer:
        if not (x.is_floating_point() or x.is_complex()):
            return NotImplemented
        product, work = op(*factors), _work(x)
        added = x.to(work) * _in(beta, work)
        if isinstance(beta, torch.Tensor):
            added = torch.where(beta == 0, torch.zeros((), dtype=work, device=x.device), added)  # not NaN times 0
        elif beta == 0:
            added = torch.zeros_like(added)
        return (added + product.to(work) * _in(alpha, work)).to(x.dtype)

    return form


def _in(number: Number, dtype: torch.dtype) -> Number:
    return number.to(dtype) if isinstance(number, torch.Tensor) else number


def _elu(x: torch.Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> torch.Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def _elu_backward(
    grad: torch.Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    below = x + alpha * scale if is_result else alpha * scale * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * below)


def _softplus(x: torch.Tensor, beta: Number = 1, threshold: Number = 20) -> torch.Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


def _softplus_backward(grad: torch.Tensor, x: torch.Tensor, beta: Number, threshold: Number) -> torch.Tensor:
    scaled = x * beta
    power = torch.exp(scaled)
    return torch.where(scaled > threshold, grad, grad * power / (power + 1))


def _softshrink(x: torch.Tensor, lambd: Number = 0.5) -> torch.Tensor:
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


def _shrunk_softly(x: torch.Tensor, lambd: Number = 0.5) -> Answer:
    rounded = ROUNDS_SHRINKING and isinstance(lambd, torch.Tensor)
    return _wide(_softshrink)(x, lambd.to(x.dtype) if rounded else lambd)


def _shrunk(grad: torch.Tensor, x: torch.Tensor, lambd: Number) -> torch.Tensor:
    """Nothing where `x` is within +-lambd, which is rounded."""
    lambd = lambd.to(x.dtype)
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, grad)


def _hardtanh_backward(grad: torch.Tensor, x: torch.Tensor, low: Number, high: Number) -> torch.Tensor:
    return torch.where((x <= low) | (x >= high), 0.0, grad)


def _scattered(x: torch.Tensor, dim: int, index: torch.Tensor, value: Number) -> torch.Tensor:
    return x.scatter(dim, index, value.to(x.dtype).expand(index.shape))


def _index_added(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, alpha: Number) -> Answer:
    return x.index_add(dim, index, source * _like(alpha, source)) if source.is_floating_point() else NotImplemented


_FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "add": _binary(torch.add),
    "sub": _binary(torch.sub, -1),
    "rsub": lambda x, y, alpha=None: _binary(torch.sub, -1)(y, x, alpha=alpha),
    "mul": _binary(torch.mul),
    "div": _binary(torch.div),
    "pow": _binary(torch.pow),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "addcmul": _addc(torch.addcmul),
    "addcdiv": _addc(torch.addcdiv),
    **{name: _binary(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod")},
    "lerp": _lerp,
    "full": _full,
    "new_full": _new_full,
    "full_like": _full_like,
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, value.to(x.dtype)),
    "scalar_tensor": lambda value, **options: _full((), value, **options),
    "fill": lambda x, value: value.to(x.dtype).expand_as(x),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "where": lambda mask, x, y: torch.where(mask, _like(x, y), _like(y, x)),
    "floor_divide": _binary(torch.floor_divide),
    "copysign": _binary(torch.copysign),
    "xlogy": _binary(torch.xlogy),
    "constant_pad_nd": _padded,
    "index_fill": lambda x, dim, index, value: x.index_fill(dim, index, value.to(x.dtype)),
    "index_add": _index_added,
    "scatter": _scattered,
    "addmm": _product(torch.mm),
    "addmv": _product(torch.mv),
    "addr": _product(torch.outer),
    "baddbmm": _product(torch.bmm),
    "addbmm": _product(lambda a, b: torch.bmm(a, b).sum(0)),
    "leaky_relu": _wide(lambda x, slope=0.01: torch.where(x > 0, x, x * slope)),
    "leaky_relu_backward": _wide(lambda grad, x, slope, is_result: torch.where(x > 0, grad, grad * slope)),
    "elu": _wide(_elu),
    "elu_backward": _wide(_elu_backward),
    "softplus": _wide(_softplus),
    "softplus_backward": _wide(_softplus_backward),
    "hardtanh": lambda x, low=-1, high=1: _clamp(x, low, high) if x.is_floating_point() else NotImplemented,
    "hardtanh_backward": _wide(_hardtanh_backward),
    "threshold": _wide(lambda x, threshold, value: torch.where(x <= threshold, value, x)),
    "threshold_backward": _wide(lambda grad, x, threshold: torch.where(x <= threshold, 0.0, grad)),
    "hardshrink": lambda x, lambd=0.5: _shrunk(x, x, lambd),
    "hardshrink_backward": _shrunk,
    "softshrink": _shrunk_softly,
    "softshrink_backward": _shrunk,
}


# ---- functions whose native code asks for the floats that they are given ---------------------------------------------


def _work(x: torch.Tensor) -> torch.dtype:
    """The type in which eager's kernels compute."""
    return torch.float32 if x.dtype.itemsize < 4 else x.dtype


def _holds(condition: bool | torch.SymBool) -> bool:
    """Whether a number is one that eager takes. Of data each call checks it, and goes on in eager, which raises."""
    if isinstance(condition, torch.SymBool):
        condition.node.env.require(condition.node.expr)
        return True
    return condition


def _reduced(loss: torch.Tensor, reduction: object) -> Answer:
    if reduction not in ("none", "mean", "sum"):
        return NotImplemented
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _dropout(x: torch.Tensor, p: Number = 0.5, training: bool = True, inplace: bool = False) -> Answer:
    return _dropped(x, x.shape, p, training, inplace)


def _dropped(x: torch.Tensor, shape: Sequence[Size], p: Number, training: bool, inplace: bool) -> Answer:
    """`shape`: of what is drawn."""
    if not training and 0 <= p <= 1:
        return x
    if inplace or not 0 < p < 1 or not x.is_floating_point():
        return NotImplemented
    if any(type(size) is int and not size for size in x.shape):
        return x
    drawn = torch.rand_like(x, dtype=torch.float32) if shape is x.shape else torch.rand(shape, device=x.device)  # type: ignore[arg-type]
    return x * (drawn < 1 - p) * (1 / (1 - p))


def _channels_dropped(dims: int) -> Formula:
    def dropout(x: torch.Tensor, p: Number = 0.5, training: bool = True, inplace: bool = False) -> Answer:
        if x.dim() != dims + 2:
            return NotImplemented
        return _dropped(x, [*x.shape[:2], *[1] * dims], p, training, inplace)

    return dropout


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: Number = 0.0,
    is_causal: bool = False,
    *,
    scale: Number = None,
    enable_gqa: bool = False,
) -> Answer:
    attend = functional.scaled_dot_product_attention
    if type(dropout_p) is float:
        return attend(query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa)
    if enable_gqa or (is_causal and attn_mask is not None) or not 0 < dropout_p < 1:
        return NotImplemented
    scores = (query * (1 / query.shape[-1] ** 0.5 if scale is None else scale)) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return _dropout(torch.ops.aten._safe_softmax(scores, -1), dropout_p) @ value


def _normalized(x: torch.Tensor, dims: tuple[int, ...], eps: Number) -> torch.Tensor:
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    scale: torch.Tensor = torch.rsqrt(var + eps)
    return (x - mean) * scale


def _scaled(x: torch.Tensor, shape: Sequence[Size], weight: torch.Tensor | None, bias: torch.Tensor | None) -> Answer:
    """Times a weight, plus a bias, which lie along some dimensions: `shape`."""
    x = x if weight is None else x * weight.to(x.dtype).view(shape)  # type: ignore[arg-type]
    return x if bias is None else x + bias.to(x.dtype).view(shape)  # type: ignore[arg-type]


def _layer_norm(
    x: torch.Tensor,
    shape: Sequence[Size],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: Number = 1e-5,
    *rest: object,
) -> Answer:
    if not _fits(x, shape, weight, bias):
        return NotImplemented
    result = _normalized(x.to(_work(x)), tuple(range(-len(shape), 0)), eps)
    return _scaled(result, shape, weight, bias).to(x.dtype).contiguous()


def _rms_norm(x: torch.Tensor, shape: Sequence[Size], weight: torch.Tensor | None = None, eps: Number = None) -> Answer:
    if not _fits(x, shape, weight):
        return NotImplemented
    wide = x.to(_work(x))
    result = wide * torch.rsqrt((wide * wide).mean(tuple(range(-len(shape), 0)), keepdim=True) + eps)
    return _scaled(result, shape, weight, None).to(x.dtype).contiguous()


def _fits(x: torch.Tensor, shape: Sequence[Size], *parameters: torch.Tensor | None) -> bool:
    own = [shape, *[each.shape for each in parameters if each is not None]]
    return x.is_floating_point() and bool(shape) and all(tuple(each) == tuple(x.shape[-len(shape) :]) for each in own)


def _along(x: torch.Tensor) -> list[Size]:
    """The shape of what lies along the channels of `x`."""
    return [1, x.shape[1], *[1] * (x.dim() - 2)]


def _group_norm(
    x: torch.Tensor,
    groups: Number,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: Number = 1e-5,
    *rest: object,
) -> Answer:
    if not x.is_floating_point() or x.dim() < 2 or not x.is_contiguous() or x.shape[1] % groups:
        return NotImplemented
    if any(each is not None and each.shape != x.shape[1:2] for each in (weight, bias)) or x.numel() <= x.shape[1]:
        return NotImplemented
    rows = x.to(_work(x)).view(x.shape[0], groups, -1)
    return _scaled(_normalized(rows, (-1,), eps).view(x.shape), _along(x), weight, bias).to(x.dtype)


def _instance_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: Number = 0.1,
    eps: Number = 1e-5,
) -> Answer:
    if not use_input_stats or running_mean is not None or x.dim() < 3 or x.numel() <= x.shape[0] * x.shape[1]:
        return NotImplemented
    return _group_norm(x, x.shape[1], weight, bias, eps)


def _batch_norm(
    x: Number,
    running_mean: Number,
    running_var: Number,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: Number = 0.1,
    eps: Number = 1e-5,
) -> Answer:
    if not x.is_floating_point() or x.dim() < 2 or not (x.is_contiguous() or suggested_format(x.meta) is not _ROWS):
        return NotImplemented
    is_whole = (running_mean is None) is (running_var is None) and (running_mean is not None or training)
    if not is_whole or not _holds(eps > 0):
        return NotImplemented
    dims, wide, mean, var = [0, *range(2, x.dim())], x.to(_work(x)), running_mean, running_var
    if training:
        count = x.numel() // x.shape[1]
        if not count > 1:
            return NotImplemented
        var, mean = torch.var_mean(wide, dims, correction=0)
        for running, now in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
            if running is not None:
                with torch.no_grad():
                    running.copy_(running.to(now.dtype) * (1 - momentum) + now.detach() * momentum)
    shape = _along(x)
    result = (wide - mean.to(wide.dtype).view(shape)) * torch.rsqrt(var.to(wide.dtype) + eps).view(shape)
    return _scaled(result, shape, weight, bias).to(x.dtype)


_ROWS = torch.contiguous_format


def _pad(x: torch.Tensor, pad: Sequence[Size], mode: str = "constant", value: Number = None) -> Answer:
    return torch.constant_pad_nd(x, pad, value) if mode == "constant" else NotImplemented  # type: ignore[arg-type]


def _are_alike(*tensors: torch.Tensor) -> bool:
    first = tensors[0]
    return first.is_floating_point() and all(x.shape == first.shape and x.dtype is first.dtype for x in tensors)


def _loss(function: Callable[..., object], elements: Formula) -> Formula:
    """One of torch's losses by the formula of its `elements`, which is given all other arguments in torch's order.
    ``size_average`` and ``reduce``, which ``reduction`` has replaced, are left to torch."""
    names = list(inspect.signature(function).parameters)
    replaced, at = [names.index(name) for name in ("size_average", "reduce") if name in names], names.index("reduction")

    def loss(*given: object) -> Answer:
        if any(given[place] is not None for place in replaced):
            return NotImplemented
        result = elements(*[value for place, value in enumerate(given) if place not in (*replaced, at)])
        return result if result is NotImplemented else _reduced(result, given[at])

    return loss


def _huber(x: torch.Tensor, y: torch.Tensor, delta: Number, weight: torch.Tensor | None) -> Answer:
    if weight is not None or not _are_alike(x, y) or not delta > 0:
        return NotImplemented
    return _bent(x, y, delta)[0].to(x.dtype)


def _bent(x: torch.Tensor, y: torch.Tensor, bound: Number) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the square of a distance up to a bound, its tangent behind; and the bound. No `where` of the two: in what
    is not chosen, derivatives at infinite distances are NaN."""
    far, bound = (x.to(_work(x)) - y.to(_work(x))).abs(), of(bound).tensor.to(_work(x))
    near = torch.minimum(far, bound)
    return near * (far - 0.5 * near), bound


def _smooth_l1(x: torch.Tensor, y: torch.Tensor, beta: Number) -> Answer:
    if not _are_alike(x, y) or not beta > 0:
        return NotImplemented
    loss, bound = _bent(x, y, beta)
    return (loss / bound).to(x.dtype)


def _margin_ranking(x: torch.Tensor, y: torch.Tensor, target: torch.Tensor, margin: Number) -> Answer:
    if not x.dim() == y.dim() == target.dim():
        return NotImplemented
    return (-target * (x - y) + margin).clamp_min(0)


def _hinge_embedding(x: torch.Tensor, target: torch.Tensor, margin: Number) -> Answer:
    other = torch.where(target != 1, (margin - x).clamp_min(0), 0.0)
    return other + torch.where(target != -1, x, 0.0)


def _cosine_embedding(x: torch.Tensor, y: torch.Tensor, target: torch.Tensor, margin: Number) -> Answer:
    if x.shape != y.shape or target.dim() != x.dim() - 1:
        return NotImplemented
    tiny = 1e-12
    cosine = (x * y).sum(-1) / (((x * x).sum(-1) + tiny) * ((y * y).sum(-1) + tiny)).sqrt()
    apart = torch.where(target == -1, (cosine - margin).clamp_min(0), 0.0)
    return torch.where(target == 1, 1 - cosine, 0.0) + apart


def _distance(x: torch.Tensor, y: torch.Tensor, p: Number = 2.0, eps: Number = 1e-6, keepdim: bool = False) -> Answer:
    if _has_scalar(p):
        return NotImplemented
    return torch.linalg.vector_norm(x - y + eps, p, -1, keepdim)


def _triplet(
    x: torch.Tensor, same: torch.Tensor, other: torch.Tensor, margin: Number, p: Number, eps: Number, swap: bool
) -> Answer:
    if _has_scalar(p) or not margin > 0 or not x.dim() == same.dim() == other.dim():
        return NotImplemented
    near, far = _distance(x, same, p, eps), _distance(x, other, p, eps)
    far = torch.minimum(far, _distance(same, other, p, eps)) if swap else far
    return (margin + near - far).clamp_min(0)


def _cosine_similarity(x: torch.Tensor, y: torch.Tensor, dim: int = 1, eps: Number = 1e-8) -> Answer:
    if not x.is_floating_point() or x.dtype is not y.dtype or not _holds(eps >= 0):
        return NotImplemented

    def unit(x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, 2, dim, True)
        return x / torch.where(norm.detach() < eps, norm - norm.detach() + eps, norm)  # its derivative is the norm's

    return (unit(x) * unit(y)).sum(dim)


def _softshrink_of(x: torch.Tensor, lambd: Number = 0.5) -> Answer:
    is_taken = not x.is_floating_point() or (_holds(lambd >= 0) and _holds(lambd <= torch.finfo(x.dtype).max))
    return torch.ops.aten.softshrink(x, lambd if is_taken else float(lambd))


def _celu(x: torch.Tensor, alpha: Number = 1.0, inplace: bool = False) -> Answer:
    if alpha == 0:
        return NotImplemented
    return (torch.ops.aten.elu_ if inplace else torch.ops.aten.elu)(x, alpha, 1.0, 1.0 / alpha)


def _cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: object = None,
    ignore_index: int = -100,
    reduce: object = None,
    reduction: str = "mean",
    label_smoothing: Number = 0.0,
) -> Answer:
    if size_average is not None or reduce is not None or not x.dim() or not 0 < label_smoothing <= 1:
        return NotImplemented
    place = 0 if x.dim() == 1 else 1
    classes = x.shape[place]
    if target.is_floating_point():
        target = target * (1 - label_smoothing) + label_smoothing / classes
        return functional.cross_entropy(x, target, weight, reduction=reduction)
    logs = functional.log_softmax(x, place)
    loss = functional.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    weighted = logs if weight is None else logs * weight.view([-1 if dim == place else 1 for dim in range(x.dim())])
    ignored = target == ignore_index
    smooth = (-weighted.sum(place)).masked_fill(ignored, 0.0)
    if reduction == "mean" and weight is None:
        smooth = smooth.sum() / ignored.logical_not().sum()
    elif reduction == "mean" and weight is not None:
        smooth = smooth.sum() / torch.where(ignored, 0.0, weight[torch.where(ignored, 0, target)]).sum()
    else:
        smooth = _reduced(smooth, reduction)
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / classes)


def _nan_to_num(x: torch.Tensor, nan: Number = None, posinf: Number = None, neginf: Number = None) -> Answer:
    if not x.is_floating_point():
        return NotImplemented
    limits = torch.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    finite = torch.where(x == -math.inf, low, torch.where(x == math.inf, high, x))
    return torch.where(x.isnan(), 0.0 if nan is None else nan, finite)


def _logit(x: torch.Tensor, eps: Number = None) -> Answer:
    if not x.is_floating_point() or not 0 < eps <= 0.5:
        return NotImplemented
    low = of(eps).tensor.to(x.dtype)
    inside = torch.where(x < low, low, torch.where(x > 1 - low, 1 - low, x)).to(_work(x))
    return torch.log(inside / (1 - inside)).to(x.dtype)


def _isclose(
    x: torch.Tensor, y: torch.Tensor, rtol: Number = 1e-5, atol: Number = 1e-8, equal_nan: bool = False
) -> Answer:
    if equal_nan or not x.is_floating_point() or x.dtype is not y.dtype or not (rtol >= 0 and atol >= 0):
        return NotImplemented
    apart = (x - y).abs()
    return (x == y) | (apart.isfinite() & (apart <= atol + (rtol * y).abs()))


def _quantile(x: torch.Tensor, q: Number, dim: int | None = None, keepdim: bool = False, **options: Number) -> Answer:
    if not 0 <= q <= 1 or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return torch.quantile(x, of(q).tensor.to(x.dtype), dim, keepdim, **options)


def _float_power(x: Number, exponent: Number) -> Answer:
    if not isinstance(x, torch.Tensor) or x.is_complex():
        return NotImplemented
    return torch.pow(x.to(torch.float64), exponent)


def _normal_(x: torch.Tensor, mean: Number = 0.0, std: Number = 1.0) -> Answer:
    return x.normal_().mul_(std).add_(mean) if x.is_floating_point() and std >= 0 else NotImplemented


def _uniform_(x: torch.Tensor, low: Number = 0.0, high: Number = 1.0, **names: Number) -> Answer:
    low, high = names.pop("from", low), names.pop("to", high)
    return NotImplemented if names or not low <= high else x.uniform_().mul_(high - low).add_(low)


def _exponential_(x: torch.Tensor, lambd: Number = 1.0) -> Answer:
    return x.exponential_().div_(lambd) if lambd > 0 else NotImplemented


def _bernoulli_(x: torch.Tensor, p: Number = 0.5) -> Answer:
    return x.copy_(torch.rand_like(x, dtype=torch.float32) < p) if 0 <= p <= 1 else NotImplemented


def _normal(mean: Number, std: Number, size: Sequence[Size] | None = None, **options: Number) -> Answer:
    if size is None or not std >= 0 or options.get("out") is not None or options.get("generator") is not None:
        return NotImplemented
    return torch.randn(size, **options) * std + mean  # type: ignore[arg-type]


def _lerped(x: torch.Tensor, end: torch.Tensor, weight: Number) -> Answer:
    """Of 16 bits, with a derivative: C++ computes that with the weight."""
    if x.dtype.itemsize > 2 or x.dtype is not end.dtype or not (x.requires_grad or end.requires_grad):
        return NotImplemented
    work = _work(x)
    return torch.lerp(x.to(work), end.to(work), of(weight).tensor.to(work)).to(x.dtype)


#: these draw numbers
DRAWING: dict[Any, Formula] = {
    **dict.fromkeys((functional.dropout, torch.dropout), _dropout),
    **{getattr(functional, f"dropout{n}d"): _channels_dropped(n) for n in (1, 2, 3)},
    torch.Tensor.normal_: _normal_,
    torch.Tensor.uniform_: _uniform_,
    torch.Tensor.exponential_: _exponential_,
    torch.Tensor.bernoulli_: _bernoulli_,
    torch.normal: _normal,
}
#: autocast makes of these what it makes of the functions that they are made of
SAFE: dict[Any, Formula] = {
    functional.scaled_dot_product_attention: _attention,
    functional.pad: _pad,
    functional.cross_entropy: _cross_entropy,
    functional.celu: _celu,
    functional.softshrink: _softshrink_of,
    **dict.fromkeys((torch.lerp, torch.Tensor.lerp), _lerped),
    **dict.fromkeys((torch.nan_to_num, torch.Tensor.nan_to_num), _nan_to_num),
}
_LOSSES: dict[Callable[..., object], Formula] = {
    functional.huber_loss: _huber,
    functional.smooth_l1_loss: _smooth_l1,
    functional.margin_ranking_loss: _margin_ranking,
    functional.hinge_embedding_loss: _hinge_embedding,
    functional.cosine_embedding_loss: _cosine_embedding,
    functional.triplet_margin_loss: _triplet,
}
#: by the function, what it computes with floats of the graph; NotImplemented where the floats have to be known
COMPUTED: dict[Any, Formula] = {
    **DRAWING,
    **SAFE,
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    **dict.fromkeys((functional.rms_norm, torch.rms_norm), _rms_norm),
    **dict.fromkeys((functional.group_norm, torch.group_norm), _group_norm),
    functional.instance_norm: _instance_norm,
    functional.batch_norm: _batch_norm,
    **{function: _loss(function, elements) for function, elements in _LOSSES.items()},
    torch.pairwise_distance: _distance,
    torch.cosine_similarity: _cosine_similarity,
    **dict.fromkeys((torch.logit, torch.Tensor.logit), _logit),
    **dict.fromkeys((torch.isclose, torch.Tensor.isclose), _isclose),
    **dict.fromkeys((torch.quantile, torch.Tensor.quantile), _quantile),
    **dict.fromkeys((torch.float_power, torch.Tensor.float_power), _float_power),
}
