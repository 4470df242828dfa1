"""What kernels refuse, asked of the kernels themselves, once for each operation and kind of arguments.

- Types: a rule knows shapes, not for which types ATen has a kernel. That is asked on tensors of two elements a side (of
  one, statistics would warn). Operations that are told sizes, or have a kernel for some sizes only, are asked with the
  real ones, if those are small.
- Writes to memory that is shared: elements of the target that are one in memory, and operands of which some elements
  are elements of the target. That is asked on small tensors that overlap alike.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch._ops import OpOverload

from bolide.symbolic import is_data
from bolide.tracing import modes
from bolide.tracing.fallible import checks_data
from bolide.tracing.graph import mapped
from bolide.tracing.meta import TensorMeta, found_in, is_symbolic
from bolide.tracing.traits import traits_of

_asked: dict[object, Exception | None] = {}
_NO_SIZES = frozenset(  # integers that say something else
    ["decimals", "diagonal", "dim", "dim1", "dim2", "dims", "dtype", "ignore_index", "input_dtype", "layout"]
    + ["memory_format", "offset", "reduction", "shifts"]
)
TRUSTING = frozenset({"linalg_ldl_solve", "linalg_lu_solve", "_pdist_backward"})
"""Kernels that take numbers in a tensor, or how many elements it has, for places in memory, unchecked: they are run
neither on made-up data nor on tensors of another size."""
_FAKE_QUANTISING = (
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "_fake_quantize_learnable_per_channel_affine",
)
_CHECKING = frozenset({"_embedding_bag", "_embedding_bag_forward_only", *_FAKE_QUANTISING})
"""Private parts of operations whose kernels check for themselves that sizes fit."""
_HALVING = frozenset({"glu_backward"})
"""Kernels whose operands' sizes differ, so that none go together that have two elements a side."""
_NUMBERS = (int, float, complex, bool, str, torch.dtype)
_SMALL = 1 << 12
_MOST_DIMS = 16
_MOST_TENSORS = 4
_ABOUT_TYPES = re.compile(r"type|\blong\b")


def _failure(function: Callable[..., object], *args: object, **kwargs: object) -> Exception | None:
    """What a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _key(func: OpOverload, args: Sequence[object], kwargs: dict[str, Any], *others: object) -> tuple[object, ...]:
    return (func, *others, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))


def _kind(arg: object) -> object:
    """What counts of an argument."""
    if isinstance(arg, TensorMeta):
        return arg.dtype, tuple([is_known_zero(size) for size in arg.shape])
    if isinstance(arg, Placed):
        return arg.meta.ndim, arg.meta.dtype, arg.place
    if isinstance(arg, (list, tuple)):
        return tuple(map(_kind, arg))
    return (type(arg), arg) if type(arg) in _NUMBERS else type(arg)


def is_known_zero(size: object) -> bool:
    return size.__class__ is int and size == 0


# ---- types ---------------------------------------------------------------------------------------------------------


def refusal(func: OpOverload, args: list[Any], kwargs: dict[str, Any], ruled: bool) -> Exception | None:
    """What eager raises for tensors (given as metas) of these types, or None. `ruled`: a rule, which has checked the
    sizes, tells the results.

    A kernel that raises may as well dislike a size or value: its types are at fault if it raises for
    a 0 and for a 1, and says that it is not implemented for them or does not raise for others. Where it is neither the
    sizes nor the data, a parameter is."""
    if not _answers(func):
        return None
    args, kwargs = _present(args), _present(kwargs)
    metas = found_in([args, kwargs], TensorMeta)
    if any(meta.ndim > _MOST_DIMS for meta in metas):
        return None  # two elements a side are too many
    sizes = None
    some_empty = any(is_known_zero(size) for meta in metas for size in meta.shape)
    must = _is_told_sizes(func) or not (ruled or torch.Tag.pointwise in func.tags)
    if must or some_empty:  # nothing but a size of 1 goes with a 0
        if _are_known(metas) and sum(meta.numel for meta in metas) <= _SMALL:
            sizes = tuple(meta.shape for meta in metas)
        elif must:
            return None  # nothing is asked of sizes that are data
    key = _key(func, args, kwargs, sizes)
    if key not in _asked:
        asks = metas and all(meta.device.type == "cpu" for meta in metas)
        trusted = (
            (sizes is not None or not some_empty)
            and not _is_made_up([*args, *kwargs.values()])
            and _is_about_parameters(func)
        )
        _asked[key] = _ask(func, args, kwargs, sizes is not None, trusted) if asks else None
    return _asked[key]


def _present(value: Any) -> Any:
    """Arguments and metas with what symbols are in this run; those whose value is data stay."""

    def present(arg: Any) -> Any:
        if arg.__class__ is torch.SymInt:
            return arg if is_data(arg) else arg.node.hint
        if arg.__class__ is TensorMeta and is_symbolic(arg):
            return TensorMeta(_present(arg.shape), *arg[1:])
        return arg

    return mapped(value, present)


def _is_made_up(value: object) -> bool:
    """Whether kernels are asked with another number than that of this run, which is data."""
    return any(map(_is_made_up, value)) if type(value) in (list, tuple) else type(value) is torch.SymInt  # type: ignore


@functools.cache
def _is_about_parameters(func: OpOverload) -> bool:
    """Whether a kernel that raises for any tensors does so for its parameters' sake: no data is refused, and tensors
    of two elements a side are as good as others."""
    name = func._opname
    return not checks_data(func) and "backward" not in name and "scatter" not in name


@functools.cache
def trusts_sizes(func: OpOverload) -> bool:
    """Whether the kernel may take it for granted that its operands' sizes fit one another, and reads or writes other
    memory where they do not: the private part of an operation (`_fft_c2r`), whose public part has checked them, or a
    derivative. One that is given a tensor and no sizes (`_linalg_svd`) has nothing that could not fit."""
    kinds = [str(arg.type) for arg in func._schema.arguments]
    alone = sum("Tensor" in kind for kind in kinds) == 1 and not any("int" in kind for kind in kinds)
    private = func._opname.startswith("_") and not alone and func._opname not in _CHECKING
    return private or "backward" in func._opname


@functools.cache
def _answers(func: OpOverload) -> bool:
    """Whether a kernel can be asked: it writes nothing and draws nothing."""
    if func.namespace != "aten" or traits_of(func).seeded or func._opname in TRUSTING:
        return False
    return not any(arg.alias_info for arg in func._schema.arguments)


def is_chosen_by_size(func: OpOverload) -> bool:
    """Whether the kernel depends on the sizes."""
    return traits_of(func).product == "matrix"


@functools.cache
def _is_told_sizes(func: OpOverload) -> bool:
    """Whether what tensors of other sizes are refused says nothing of these."""
    told = (arg for arg in func._schema.arguments if "int" in str(arg.type) and arg.name not in _NO_SIZES)
    return any(told) or is_chosen_by_size(func) or func._opname in _HALVING


def _ask(func: OpOverload, args: list[Any], kwargs: dict[str, Any], whole: bool, trusted: bool) -> Exception | None:
    ask = functools.partial(_refused, func, args, kwargs, whole)
    failure = ask(0, None)
    if failure is None or ask(1, None) is None:
        return None
    if trusted or (isinstance(failure, NotImplementedError) and "not implemented for '" in str(failure)):
        return failure
    count = len(found_in([args, kwargs], TensorMeta))
    if ask(0, [torch.float32] * count) is None:
        return failure
    # Where some tensor has to be of integers, an index, the message says so.
    others = itertools.product((torch.float32, torch.int64), repeat=count) if _ABOUT_TYPES.search(str(failure)) else ()
    return failure if count <= _MOST_TENSORS and any(ask(0, dtypes) is None for dtypes in others) else None


def out_refusal(
    func: OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    out: dict[str, torch.dtype],
    wanted: dict[str, torch.dtype],
) -> Exception | None:
    """What eager raises for `out=` arguments of these types, where the results are of the `wanted` ones; or None."""
    args, kwargs = _present(args), _present(kwargs)
    key = _key(func, args, kwargs, *out.items())
    if key not in _asked:
        known = _are_known(found_in([args, kwargs], TensorMeta))
        _asked[key] = None
        for whole, value in ((False, 0), (False, 1), (True, 0), (True, 1))[: 4 if known else 2]:
            if _refused(func, args, {**kwargs, **_empty(wanted)}, whole, value) is None:
                _asked[key] = _refused(func, args, {**kwargs, **_empty(out)}, whole, value)
                break
    return _asked[key]


def _are_known(metas: Iterable[TensorMeta]) -> bool:
    return all(size.__class__ is int for meta in metas for size in meta.shape)


def _empty(dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(0, dtype=dtype) for name, dtype in dtypes.items()}


def _refused(
    func: OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    whole: bool,
    value: int,
    dtypes: Iterable[torch.dtype] | None = None,
) -> Exception | None:
    """What the kernel in C++ raises for tensors full of this value; small ones, or of their `whole` size; of other
    `dtypes` than theirs, one for each."""
    given = iter(dtypes or [meta.dtype for meta in found_in([args, kwargs], TensorMeta)])

    def filled(arg: object) -> object:
        if isinstance(arg, TensorMeta):
            sizes = arg.shape if whole else [0 if is_known_zero(size) else 2 for size in arg.shape]
            return torch.full(sizes, value, dtype=next(given))
        return 1 if isinstance(arg, torch.SymInt) else arg

    with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch():
        return _failure(func, *mapped(args, filled), **mapped(kwargs, filled))


@functools.lru_cache(1 << 10)
def filling_refusal(fill: str, dtype: torch.dtype, empty: bool, *parameters: object) -> Exception | None:
    """What eager raises where a tensor of this type is filled with random numbers (by ``uniform_``, ``normal_``, …), or
    None; where it is empty few kernels refuse its type. Parameters that are tensors are given by their types."""
    count = 0 if empty else 2
    values = [torch.zeros(count, dtype=each) if isinstance(each, torch.dtype) else each for each in parameters]
    return _failure(getattr(torch.empty(count, dtype=dtype), fill), *values, generator=torch.Generator())


# ---- writes to memory that is shared ---------------------------------------------------------------------------------


class Placed(NamedTuple):
    """A tensor, and how it lies in memory: it is written to (`repeated`: with elements that are one), or lies beside
    what is, or across it."""

    meta: TensorMeta
    place: Literal["target", "repeated", "apart", "partly"]


def overlap_refusal(func: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    """What an operation's kernel raises for tensors laid out so, or None. In tensors' places are `Placed`."""
    key = _key(func, args, kwargs)
    if key not in _asked:
        _asked[key] = _ask_overlapping(func, args, kwargs)
    return _asked[key]


def _ask_overlapping(func: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    most = max(placed.meta.ndim for placed in found_in([args, kwargs], Placed))
    if most > _MOST_DIMS:
        return None
    memory: dict[torch.dtype, torch.Tensor] = {}

    def small(arg: object) -> object:
        if not isinstance(arg, Placed):
            return arg
        ndim, dtype = arg.meta.ndim, arg.meta.dtype
        if arg.place == "repeated":
            return torch.zeros([1] * ndim, dtype=dtype).expand([2] * ndim)
        if arg.place == "apart":
            return torch.zeros([2] * ndim, dtype=dtype)
        if dtype not in memory:
            memory[dtype] = torch.zeros(2**most + 1, dtype=dtype)
        start = arg.place == "target"
        return memory[dtype][start : start + 2**ndim].view([2] * ndim)

    with modes.random_kept() if modes.may_draw(func) else contextlib.nullcontext():
        error = _failure(func, *mapped(args, small), **mapped(kwargs, small))
    return error if error is not None and "unsupported operation" in str(error) else None
