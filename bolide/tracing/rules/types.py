"""Which types an operation's kernel takes. A rule knows shapes, not for which types ATen has a kernel: that is asked of
the kernel itself, once for each operation and types, on tensors of two elements a side (of one,
statistics would warn)."""

from __future__ import annotations

from typing import Any

import torch

from bolide.tracing.meta import TensorMeta, found_in

_asked: dict[Any, Exception | None] = {}
_TAGS = frozenset({torch.Tag.pointwise, torch.Tag.core})
_OTHERS = frozenset(  # that have none of these tags
    ["hardswish", "floor_divide", "mse_loss", "smooth_l1_loss", "huber_loss", "nansum", "linalg_vector_norm", "std"]
    + ["var_mean", "std_mean", "logsumexp", "glu", "cumprod", "nll_loss_forward", "masked_fill", "max", "min", "sum"]
    + ["all", "log_sigmoid_forward", "index_add", "scatter", "index_copy"]
)
_BY_SIZE = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
)  # which kernel they choose
_NUMBERS = (int, float, complex, bool, str, torch.dtype)


def refusal(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises for tensors (given as metas) of these types, or None.

    A kernel that raises may as well dislike a size or value: its types are at fault if it raises for
    a 0 and for a 1, and says that it is not implemented for them or raises for no float32."""
    if func.namespace != "aten" or any(map(_is_empty, found_in([args, kwargs], TensorMeta))):
        return None  # of no element no kernel is asked
    key = (func, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
    if key not in _asked:
        _asked[key] = _ask(func, args, kwargs)
    return _asked[key]


def _is_empty(meta: TensorMeta) -> bool:
    return any(size.__class__ is int and size == 0 for size in meta.shape)  # nothing is asked of symbolic sizes


def _kind(arg: Any) -> Any:
    """What counts of an argument."""
    if isinstance(arg, TensorMeta):
        return arg.dtype, len(arg.shape)
    if isinstance(arg, (list, tuple)):
        return tuple(map(_kind, arg))
    return (type(arg), arg) if type(arg) in _NUMBERS else type(arg)


def _ask(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    metas = list(found_in([args, kwargs], TensorMeta))
    if not metas or any(meta.device.type != "cpu" for meta in metas) or func._opname in _BY_SIZE:
        return None
    if torch.Tag.nondeterministic_seeded in func.tags or (_TAGS.isdisjoint(func.tags) and func._opname not in _OTHERS):
        return None
    if any(arg.alias_info for arg in func._schema.arguments):
        return None
    failure = _failure(func, args, kwargs, 0, None)
    if failure is None or _failure(func, args, kwargs, 1, None) is None:
        return None
    if isinstance(failure, NotImplementedError) and "not implemented for '" in str(failure):
        return failure
    return failure if _failure(func, args, kwargs, 0, torch.float32) is None else None


def _failure(
    func: Any, args: list[Any], kwargs: dict[str, Any], value: int, dtype: torch.dtype | None
) -> Exception | None:
    """What the kernel raises for small tensors full of this value."""

    def real(arg: Any) -> Any:
        if isinstance(arg, TensorMeta):
            return torch.full([2] * len(arg.shape), value, dtype=dtype or arg.dtype)
        if isinstance(arg, (list, tuple)):
            return list(map(real, arg))
        return 1 if isinstance(arg, torch.SymInt) else arg

    try:
        func(*map(real, args), **{name: real(arg) for name, arg in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None
