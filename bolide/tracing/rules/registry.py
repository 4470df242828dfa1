"""The table of shape rules, and torch's meta kernels as the fallback.

A rule takes the operation's arguments with a `TensorMeta` in place of each tensor, and returns the meta of the result
(a tuple for several results, None for a missing one). Answers are remembered: a model of twelve equal layers asks once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.immutable_collections import immutable_list

from bolide.support.errors import BolideError, Unsupported
from bolide.support.registers import register
from bolide.symbolic import ShapeEnv, contiguous_strides
from bolide.tracing import modes
from bolide.tracing.graph import Handle, mapped
from bolide.tracing.isolation import keep_dynamo_out_of_meta_kernels
from bolide.tracing.meta import DataDependent, TensorMeta, found_in
from bolide.tracing.rules import kernels
from bolide.tracing.rules.probing import by_probes, note_sizes, valued

RULES: dict[str, Callable[..., Any]] = {}  # by the name of the overload: looking up 300 overloads costs 10 ms
_MEMO_LIMIT = 1 << 14
_SOME = 5  # a size
_memo: dict[Any, Any] = {}


@dataclass
class Answers:
    """Whether `infer` gives answers again, and checks that it would still come to the same ones."""

    remember: bool = True
    crosscheck: bool = False

    @staticmethod
    def forget() -> None:
        """Drop all answers given so far."""
        _memo.clear()


answers = Answers()
_prepare = functools.cache(keep_dynamo_out_of_meta_kernels)


def qualified(name: str) -> str:
    """The name of an overload as torch gives it; ``aten::`` may be left out."""
    return name if "::" in name else f"aten::{name}"


rule = register(RULES, qualified)
"""Registers a shape rule for overloads (``add.Tensor``; the default overload is the name alone)."""


def infer(func: Any, args: Any, kwargs: Any, shapes: ShapeEnv | None = None) -> Any:
    """The metas of the results of `func` on nodes and plain values. `shapes`: the sizes of a trace that has symbolic
    ones; answers may add guards, so they are remembered for that trace only."""
    operands = [_known(arg) for arg in args]
    options = {name: _known(arg) for name, arg in kwargs.items()}
    as_key = _key if shapes is None else functools.partial(_symbolic_key, shapes.keys)
    key = (func, torch.get_default_dtype(), tuple(map(as_key, operands)), tuple(options), *map(_key, options.values()))
    memo = _memo if shapes is None else shapes.answers
    try:
        known = memo.get(key, memo)
    except TypeError:  # an argument without a hash
        return _told(func, operands, options, shapes)
    if known is memo or not answers.remember:
        if len(memo) >= _MEMO_LIMIT:
            memo.clear()
        known = memo[key] = _told(func, operands, options, shapes)
    elif answers.crosscheck and shapes is None and metas_of(func, operands, options) != known:
        raise AssertionError(
            f"the remembered answer of {func} for {operands} is {known}, asked again it is another one"
        )
    return known


def _told(func: Any, operands: list[Any], options: dict[str, Any], shapes: ShapeEnv | None) -> Any:
    asked = func, operands, options
    return metas_of(*asked) if shapes is None else _quietly(shapes, metas_of, asked)


def _quietly(shapes: ShapeEnv, function: Callable[..., Any], args: Any) -> Any:
    """What a function says that writes sizes into messages which may never be shown. One that is raised is: the program
    may read it, and goes on otherwise than for sizes that are not refused."""
    shapes.quiet, before = True, len(shapes.said)
    try:
        return function(*args)
    except BolideError:
        raise
    except Exception:
        shapes.rely_on_messages()
        raise
    finally:
        shapes.quiet = False
        del shapes.said[before:]  # what stands before is of messages of the operation that is made of this one


def remembered(shapes: ShapeEnv, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of metas and lists of sizes says, which is asked once for a trace."""
    key = (function, *(_symbolic_key(shapes.keys, arg) for arg in args))
    answer = shapes.answers.get(key)
    if answer is None:
        answer = shapes.answers[key] = _quietly(shapes, function, args)
    return answer


def infer_from(func: Any, first: TensorMeta, args: Any, kwargs: Any, shapes: ShapeEnv) -> Any:
    """As `infer`, for a first argument of which the meta is known."""
    options = {name: _known(arg) for name, arg in kwargs.items()}
    return _quietly(shapes, metas_of, (func, [first, *map(_known, args)], options))


def metas_of(func: Any, operands: list[Any], options: dict[str, Any]) -> Any:
    """As `infer`, of metas and plain values; nothing is remembered."""
    shape_rule = RULES.get(func.name())
    told = by_torch(func, operands, options) if shape_rule is None else shape_rule(*operands, **options)
    refused = kernels.refusal(func, operands, options, shape_rule is not None)
    if refused is not None:
        note_sizes(operands, options)  # kernels are asked with those of now
        raise type(refused)(*refused.args)
    return told


def _known(arg: Any) -> Any:
    cls = arg.__class__
    if cls is torch.fx.Node:
        return arg.meta["val"]
    if cls is list or cls is tuple or cls is immutable_list:
        return [_known(item) for item in arg]
    return arg


def _key(arg: Any) -> Any:
    """What counts of an argument: numbers that promote differently (1, 1.0, True) are told apart."""
    cls = arg.__class__
    if cls is list:
        return tuple(map(_key, arg))
    if cls is TensorMeta:
        for size in (*arg.shape, *arg.stride):
            if size.__class__ is not int:
                return (tuple(map(_key, arg.shape)), tuple(map(_key, arg.stride)), _key(arg.offset), *arg[3:])
        return arg if arg.offset.__class__ is int else (*arg[:2], _key(arg.offset), *arg[3:])
    if cls is torch.SymInt:
        return (cls, arg.node.expr)
    if cls is Handle:
        return int(arg)  # answers hold no graphs
    return arg if cls is int else (cls, arg)


def _symbolic_key(known: dict[int, tuple[Any, Any]], arg: Any) -> Any:
    """As `_key`; those of metas, by their ids, are kept in `known`."""
    if arg.__class__ is not TensorMeta:
        return _key(arg)
    entry = known.get(id(arg))
    if entry is None:
        entry = known[id(arg)] = arg, _key(arg)
    return entry[1]


def by_torch(func: Any, args: Any, kwargs: Any) -> Any:
    """The metas of the results by asking torch: the CPU kernel on zeros when that is little work, else the meta kernel.
    Symbolic sizes are probed (see `probing`), and fixed if that tells nothing.

    Meta kernels are often Python reference implementations, slow to run and slower to import. An operation that
    refuses zeros (the inverse of a matrix, say) is asked of its meta kernel as well.
    """
    if _is_symbolic(args) or _is_symbolic(kwargs):
        metas = by_probes(functools.partial(_ask, func), functools.partial(_ask_elsewhere, func), args, kwargs)
        if metas is not None or not func._schema.returns:
            return metas
    return _ask(func, _fixed(args), _fixed(kwargs))


def rule_of_symbols(func: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: a shape rule for symbolic sizes that probing does not find, and for strides, which meta kernels give
    otherwise than those that compute. Of numbers torch is asked first, and of sizes that the rule refuses: its text may
    say any of them."""

    def add(formula: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            told = None if _is_symbolic([args, kwargs]) else by_torch(func, args, kwargs)
            try:
                return formula(*args, **kwargs)
            except BolideError:
                raise
            except RuntimeError:
                return by_torch(func, _fixed(args), _fixed(kwargs)) if told is None else told

        rule(func._schema.name.removeprefix("aten::"))(answer)
        return formula

    return add


_LIBRARIES = frozenset({"aten", "prims", "bolide", "mkldnn", "mkl", "quantized", "torchvision", "torchaudio"})


def _within_spectrum(x: TensorMeta, dims: Any, _: Any, length: int) -> bool:
    return bool(dims) and x.shape[dims[-1]] >= length // 2 + 1


_UNCHECKED = {"_fft_c2r": _within_spectrum}
"""Kernels that read behind the memory of their operands for sizes that fit one another badly, and when they fit."""
_TRANSFORMS = ("_fft_r2c", "_fft_c2c", "_fft_c2r")
"""Kernels whose results have other strides than those of meta kernels."""


def _transformed(func: OpOverload, x: TensorMeta, dims: list[int], mode: int, last: int) -> TensorMeta:
    """The meta of a transform of much data, or of sizes that may not fit: the order in memory is that of the kernel's
    result for a small operand that lies in memory in the same way."""
    steps = sorted({step for step in x.stride if step})
    least = tuple(min(size, 3) for size in x.shape)
    small = x._replace(shape=least, stride=tuple(4 ** steps.index(step) if step else 0 for step in x.stride), offset=0)
    back, end, shape = func._opname == "_fft_c2r", dims[-1], list(x.shape)
    told: TensorMeta = by_real_kernel(func, (small, dims, mode, max(2 * (least[end] - 1), 1) if back else last), {})
    if back:
        shape[end] = last
    elif func._opname == "_fft_r2c" and last:
        shape[end] = shape[end] // 2 + 1
    order = sorted(range(x.ndim), key=lambda dim: (-told.stride[dim], dim))
    dense = dict(zip(order, contiguous_strides(tuple(shape[dim] for dim in order))))
    return told._replace(shape=tuple(shape), stride=tuple(dense[dim] for dim in range(x.ndim)))


def _ask(func: Any, args: Any, kwargs: Any) -> Any:
    fits = _UNCHECKED.get(func._opname) if func.namespace == "aten" else None
    if fits is not None and not fits(*args, **kwargs):
        raise RuntimeError(f"sizes that {func} does not check do not fit one another")
    tensors = found_in([args, kwargs], TensorMeta)
    may_do_more = func.namespace not in _LIBRARIES or func._opname in kernels.TRUSTING  # a collective, or the user's
    may_do_more |= _fake_of(func) is not None
    if may_do_more or not all(meta.device.type == "cpu" for meta in tensors):
        return by_meta_kernel(func, args, kwargs)
    if not all(meta.is_small(1 << 14) for meta in tensors):
        transforms = func.namespace == "aten" and func._opname in _TRANSFORMS
        return _transformed(func, *args) if transforms else by_meta_kernel(func, args, kwargs)
    try:
        return by_real_kernel(func, args, kwargs)
    except Unsupported:
        raise
    except Exception:
        with contextlib.suppress(Exception):  # the real kernel's message is the one that eager would give
            return by_meta_kernel(func, args, kwargs)
        raise


def _ask_elsewhere(func: Any, args: Any, kwargs: Any) -> Any:
    """As `_ask`, for sizes that are not those of this run and may not fit one another."""
    if func.namespace == "aten" and func._opname in _TRANSFORMS:
        return _transformed(func, *args)
    return _of_meta_kernel(func, args, kwargs) if kernels.trusts_sizes(func) else _ask(func, args, kwargs)


def _is_symbolic(value: object) -> bool:
    return bool(found_in(value, torch.SymInt))


def _fixed(value: Any) -> Any:
    """Arguments and metas with numbers for symbolic sizes, which are guarded: kernels see through to nothing else, and
    torch's reference implementations, which would, import sympy."""

    def fixed(arg: Any) -> Any:
        if arg.__class__ is torch.SymInt:
            return arg.node.guard_int()
        if arg.__class__ is not TensorMeta:
            return arg
        return arg._replace(shape=_fixed(arg.shape), stride=_fixed(arg.stride), offset=_fixed(arg.offset))

    return mapped(value, fixed)


def by_meta_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    """The metas of the results, found by running torch's meta kernel, or, where it has none, the real one on zeros."""
    try:
        return _of_meta_kernel(func, args, kwargs)
    except NotImplementedError:
        return by_real_kernel(func, args, kwargs)


def _of_meta_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    _prepare()
    with _unrecorded():
        try:
            result = func(*_on(args, "meta"), **_on(kwargs, "meta"))
        except BolideError:
            raise
        except RuntimeError as error:
            if "get_ctx()" in str(error) and _fake_of(func) is not None:  # it has asked for a size that is data
                raise DataDependent(str(func), None, "data_shape") from error
            raise
        return _metas(result, _device(args, kwargs))


def _fake_of(func: OpOverload) -> Callable[..., object] | None:
    """The function that was registered as fake to say what an operation gives."""
    entry = torch._library.simple_registry.singleton.find(func._name.partition(".")[0])
    fake: Callable[..., object] | None = entry.fake_impl.kernel
    return fake


class _Sizes:
    """The context of a fake, which asks it for sizes that are data: these ones, in order."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes, self.asked = iter(sizes), 0

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        self.asked += 1
        return next(self.sizes)

    create_unbacked_symint = new_dynamic_size


def told_by_fake(
    func: OpOverload,
    args: Sequence[object],
    kwargs: dict[str, object],
    shapes: ShapeEnv,
    new_size: Callable[[], torch.SymInt],
) -> tuple[object, list[torch.SymInt]]:
    """The metas of the results (None where they cannot be told), and the sizes that are data in them. What a fake says
    of the bounds of these is not relied on: it often leaves out that there may be none."""
    fake = _fake_of(func)
    assert fake is not None

    def ask(args: Sequence[object], kwargs: dict[str, object], context: _Sizes) -> object:
        with _unrecorded(), torch._library.fake_impl.set_ctx_getter(lambda: context):
            return _metas(fake(*_on(args, "meta"), **_on(kwargs, "meta")), _device(args, kwargs))

    def answer(given: Sequence[object], kwargs: dict[str, object]) -> object:
        return ask(given[:-1], kwargs, _Sizes(cast(Sequence[int], given[-1])))

    counting = _Sizes(itertools.repeat(_SOME))
    ask(valued(args, shapes.hints), valued(kwargs, shapes.hints), counting)
    sizes = [new_size() for _ in range(counting.asked)]
    return by_probes(answer, answer, [*args, sizes], kwargs), sizes


def by_real_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    """The metas of the results, found by running the CPU kernel on zeros. Symbolic sizes are fixed. Random numbers are
    drawn from a generator made for it: torch's own is every thread's."""
    args, kwargs = _fixed(args), _fixed(kwargs)
    options = _on(kwargs, "cpu")
    place = _place_of_generator(func)
    if place is not None:
        args, options["generator"] = args[:place], torch.Generator()
    with _unrecorded(), modes.random_kept() if place is None and modes.may_draw(func) else contextlib.nullcontext():
        return _metas(func(*_on(args, "cpu"), **options), _device(args, kwargs))


_unrecorded = torch._C._DisableTorchDispatch
"""While kernels are asked: the trace that is being recorded, if its mode is on, is not to hold what they do."""


@functools.cache
def _place_of_generator(func: Any) -> int | None:
    """The last parameter's number if it is a generator."""
    last = len(func._schema.arguments) - 1
    return last if last >= 0 and func._schema.arguments[last].name == "generator" else None


def _device(args: Any, kwargs: dict[str, Any]) -> torch.device:
    devices = [meta.device for meta in found_in([args, kwargs], TensorMeta)]
    default = devices[0] if devices else torch.device(kwargs.get("device") or "cpu")
    return next((device for device in devices if device.type != "cpu"), default)


def _on(value: Any, device: str) -> Any:
    """Arguments with tensors for metas, and this device for every other."""

    def placed(arg: Any) -> Any:
        if isinstance(arg, TensorMeta):
            tensor = torch.empty_strided(arg.shape, arg.stride, dtype=arg.dtype, device=device)
            return tensor if device == "meta" else tensor.zero_()
        return torch.device(device) if isinstance(arg, torch.device) else arg

    moved = mapped(value, placed)
    return {**moved, "device": torch.device(device)} if isinstance(value, dict) and "device" in value else moved


def _metas(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided or result.is_quantized:
            kind = "quantised" if result.is_quantized else str(result.layout).removeprefix("torch.")
            raise Unsupported(f"a {kind} tensor is made", kind="layout")
        return TensorMeta(tuple(result.shape), result.stride(), result.storage_offset(), result.dtype, device)
    if isinstance(result, (tuple, list)):
        return tuple(_metas(item, device) for item in result)
    return result
