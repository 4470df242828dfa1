"""Which types an operation's kernel takes. A rule knows shapes, not for which types ATen has a kernel: that is asked of
the kernel itself, once for each operation and types, on tensors of two elements a side (of one, statistics would warn).
Operations that are told sizes are asked with the real ones, if those are small.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

from bolide.symbolic import is_data
from bolide.tracing.fallible import checks_data
from bolide.tracing.meta import TensorMeta, found_in, is_symbolic
from bolide.tracing.traits import traits_of

_asked: dict[Any, Exception | None] = {}
_NO_SIZES = frozenset(  # integers that say something else
    ["decimals", "diagonal", "dim", "dim1", "dim2", "dims", "dtype", "ignore_index", "input_dtype", "layout"]
    + ["memory_format", "offset", "reduction", "shifts"]
)
TRUSTING = frozenset({"linalg_ldl_solve", "linalg_lu_solve"})
"""Kernels that take numbers in a tensor for places in memory, unchecked: they are never run on made-up data."""
_NUMBERS = (int, float, complex, bool, str, torch.dtype)
_SMALL = 1 << 12
_MOST_DIMS = 16


def refusal(func: Any, args: list[Any], kwargs: dict[str, Any], ruled: bool) -> Exception | None:
    """What eager raises for tensors (given as metas) of these types, or None. `ruled`: a rule, which has checked the
    sizes, tells the results.

    A kernel that raises may as well dislike a size or value: its types are at fault if it raises for
    a 0 and for a 1, and says that it is not implemented for them or raises for no float32. Where it is neither the
    sizes nor the data, a parameter is."""
    if not _answers(func):
        return None
    args, kwargs = _present(args), _present(kwargs)
    metas = found_in([args, kwargs], TensorMeta)
    if any(meta.ndim > _MOST_DIMS for meta in metas):
        return None  # two elements a side are too many
    sizes = None
    if _is_told_sizes(func) or not (ruled or torch.Tag.pointwise in func.tags):
        sizes = tuple(meta.shape for meta in metas)
        if not all(map(_is_known, metas)):
            return None  # nothing is asked of sizes that are data
        if sum(meta.numel for meta in metas) > _SMALL:
            return None
    key = (func, sizes, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
    if key not in _asked:
        asks = metas and all(meta.device.type == "cpu" for meta in metas)
        filled = sizes is not None or not any(map(_is_empty, metas))
        trusted = filled and not _is_made_up([*args, *kwargs.values()]) and _is_about_parameters(func)
        _asked[key] = _ask(func, args, kwargs, sizes is not None, trusted) if asks else None
    return _asked[key]


def _present(value: Any) -> Any:
    """Arguments and metas with what symbols are in this run; those whose value is data stay."""
    cls = value.__class__
    if cls is torch.SymInt:
        return value if is_data(value) else value.node.hint
    if cls is TensorMeta:
        return TensorMeta(_present(value.shape), *value[1:]) if is_symbolic(value) else value
    if cls is dict:
        return {key: _present(item) for key, item in value.items()}
    return cls(map(_present, value)) if cls is list or cls is tuple else value


def _is_made_up(value: Any) -> bool:
    """Whether kernels are asked with another number than that of this run, which is data."""
    if value.__class__ is list or value.__class__ is tuple:
        return any(map(_is_made_up, value))
    return value.__class__ is torch.SymInt


def _is_empty(meta: TensorMeta) -> bool:
    return any(size.__class__ is int and size == 0 for size in meta.shape)


@functools.cache
def _is_about_parameters(func: Any) -> bool:
    """Whether a kernel that raises for any tensors does so for its parameters' sake: no data is refused, and tensors
    of two elements a side are as good as others."""
    name = func._opname
    return not checks_data(func) and "backward" not in name and "scatter" not in name


@functools.cache
def trusts_sizes(func: Any) -> bool:
    """Whether the kernel may take it for granted that its operands' sizes fit one another, and reads or writes other
    memory where they do not: the private part of an operation (`_fft_c2r`), whose public part has checked them, or a
    derivative."""
    return func._opname.startswith("_") or "backward" in func._opname


@functools.cache
def _answers(func: Any) -> bool:
    """Whether a kernel can be asked: it writes nothing, draws nothing and is one for all sizes."""
    if func.namespace != "aten" or traits_of(func).seeded or is_chosen_by_size(func) or func._opname in TRUSTING:
        return False
    return not any(arg.alias_info for arg in func._schema.arguments)


def is_chosen_by_size(func: OpOverload) -> bool:
    """Whether the kernel depends on the sizes: what small tensors are refused says nothing of others."""
    return traits_of(func).product == "matrix"


@functools.cache
def _is_told_sizes(func: Any) -> bool:
    return any("int" in str(arg.type) and arg.name not in _NO_SIZES for arg in func._schema.arguments)


def _kind(arg: Any) -> Any:
    """What counts of an argument."""
    if isinstance(arg, TensorMeta):
        return arg.dtype, tuple([size.__class__ is int and size == 0 for size in arg.shape])
    if isinstance(arg, (list, tuple)):
        return tuple(map(_kind, arg))
    return (type(arg), arg) if type(arg) in _NUMBERS else type(arg)


def _ask(func: Any, args: list[Any], kwargs: dict[str, Any], whole: bool, trusted: bool) -> Exception | None:
    ask = functools.partial(_failure, func, args, kwargs, whole)
    failure = ask(0, None)
    if failure is None or ask(1, None) is None:
        return None
    if isinstance(failure, NotImplementedError) and "not implemented for '" in str(failure):
        return failure
    return failure if trusted or ask(0, torch.float32) is None else None


def out_refusal(
    func: Any, args: list[Any], kwargs: dict[str, Any], out: dict[str, torch.dtype], wanted: dict[str, torch.dtype]
) -> Exception | None:
    """What eager raises for `out=` arguments of these types, where the results are of the `wanted` ones; or None."""
    args, kwargs = _present(args), _present(kwargs)
    key = (func, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()), *out.items())
    if key not in _asked:
        known = all(_is_known(meta) for meta in found_in([args, kwargs], TensorMeta))
        right = {**kwargs, **_empty(wanted)}
        _asked[key] = None
        for whole, value in ((False, 0), (False, 1), (True, 0), (True, 1))[: 4 if known else 2]:
            ask = functools.partial(_failure, func, args, whole=whole, value=value, dtype=None)
            if ask(right) is None:
                _asked[key] = ask({**kwargs, **_empty(out)})
                break
    return _asked[key]


def _is_known(meta: TensorMeta) -> bool:
    return all(size.__class__ is int for size in meta.shape)


def _empty(dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(0, dtype=dtype) for name, dtype in dtypes.items()}


def _failure(
    func: Any, args: list[Any], kwargs: dict[str, Any], whole: bool, value: int, dtype: torch.dtype | None
) -> Exception | None:
    """What the kernel in C++ raises for tensors full of this value; small ones, or of their `whole` size."""

    def real(arg: Any) -> Any:
        if isinstance(arg, TensorMeta):
            sizes = arg.shape if whole else [0 if size.__class__ is int and size == 0 else 2 for size in arg.shape]
            return torch.full(sizes, value, dtype=dtype or arg.dtype)
        if isinstance(arg, (list, tuple)):
            return list(map(real, arg))
        return 1 if isinstance(arg, torch.SymInt) else arg

    try:
        with torch._C._DisablePythonDispatcher():
            func(*map(real, args), **{name: real(arg) for name, arg in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None


@functools.lru_cache(1 << 10)
def filling_refusal(fill: str, dtype: torch.dtype, *parameters: Any) -> Exception | None:
    """What eager raises where a tensor of this type is filled with random numbers (by ``uniform_``, ``normal_``, …), or
    None. Parameters that are tensors are given by their types."""
    values = [torch.zeros(2, dtype=each) if isinstance(each, torch.dtype) else each for each in parameters]
    try:
        getattr(torch.empty(2, dtype=dtype), fill)(*values, generator=torch.Generator())
    except Exception as error:
        return error.with_traceback(None)
    return None
