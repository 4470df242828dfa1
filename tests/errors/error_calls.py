"""Calls that eager refuses: torch's own (`error_inputs` of operations, error cases of modules), and such made from its
samples: types an operation has no kernel for, dimensions and indices out of range, `out=` of another type or shape,
writes to memory that is shared."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch.utils import _pytree as pytree

from tests.opdb_tools import MODULES, OPERATIONS, ErrorInput, ModuleErrorEnum

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
TYPES = (*DTYPES, torch.int32, torch.int8, torch.uint8, torch.float64, torch.float16)
#: these ask the machine, write files or change torch's state
LEFT_OUT = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


class Call(NamedTuple):
    """A call that eager may refuse. `arguments` makes them anew for each call: (args, kwargs)."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[list[Any], dict[str, Any]]]


def copied(value: Any) -> Any:
    """The same arguments in memory of their own; views of one tensor stay views of one."""
    bases: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.device.type != "cpu":
            return leaf
        storage = leaf.untyped_storage()
        key = storage.data_ptr()
        if key not in bases or not key:
            bases[key] = storage.clone()
        made = torch.empty(0, dtype=leaf.dtype).set_(bases[key], leaf.storage_offset(), leaf.shape, leaf.stride())
        made = torch._neg_view(made) if leaf.is_neg() else made
        made = made.conj() if leaf.is_conj() else made
        return made.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(copy, value)


def _call(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Call:
    def arguments() -> tuple[list[Any], dict[str, Any]]:
        given, named = copied(([*args], dict(kwargs)))
        return given, named

    return Call(name, function, arguments)


def of_operation(operation: Any) -> Iterator[Call]:
    """torch's own error inputs of an operation, as function, method and in place."""
    if operation.error_inputs_func is None:
        return
    for number, case in enumerate(operation.error_inputs("cpu")):
        if not isinstance(case, ErrorInput):
            continue
        sample = case.sample_input
        args = (sample.input, *sample.args)
        yield _call(f"{operation.formatted_name} {number}", operation.op, args, sample.kwargs)
        if "out" in sample.kwargs or not isinstance(sample.input, torch.Tensor):
            continue
        for form in ("method_variant", "inplace_variant"):
            variant = getattr(operation, form)
            if variant is not None:
                yield _call(f"{operation.formatted_name} {number} {form}", variant, args, sample.kwargs)


def of_module(info: Any) -> Iterator[Call]:
    """torch's own error cases of a module that are about its call."""
    if info.module_error_inputs_func is None:
        return
    for training in (False, True):
        cases = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
        for number, case in enumerate(cases):
            if case.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
                continue
            made, given = case.module_error_input.constructor_input, case.module_error_input.forward_input
            module = info.module_cls(*made.args, **made.kwargs).train(training)
            yield _call(f"{info.name} {number} {training=}", module, given.args, given.kwargs)


def made_from_samples(operation: Any, rng: random.Random, most: int = 10**9) -> Iterator[Call]:
    """Error cases made from samples of an operation; eager accepts some."""
    if operation.name in LEFT_OUT:
        return
    name = operation.formatted_name
    for dtype in DTYPES:
        if dtype not in operation.dtypes:
            sample = next(iter(_samples(operation, torch.float32 if torch.float32 in operation.dtypes else None)), None)
            if sample is not None:
                args, kwargs = [sample.input, *sample.args], sample.kwargs
                args, kwargs = pytree.tree_map_only(torch.Tensor, functools.partial(_as, dtype), (args, kwargs))
                yield _call(f"{name} of {dtype}", operation.op, args, kwargs)
            continue
        samples = _samples(operation, dtype)
        for number, sample in enumerate(rng.sample(samples, min(len(samples), most))):
            args, kwargs = [sample.input, *sample.args], sample.kwargs
            place = f"{name} {dtype} {number}"
            yield from _worse_numbers(place, operation.op, args, kwargs)
            yield from _written(place, operation, args, kwargs)
            yield from _other_types(place, operation.op, args, kwargs, rng)


def with_other_types(operation: Any, rng: random.Random) -> Iterator[Call]:
    """Calls like one of an operation's samples, each with one tensor of another type; eager accepts some."""
    samples = [] if operation.name in LEFT_OUT else _samples(operation, torch.float32)
    for sample in rng.sample(samples, min(len(samples), 1)):
        name, args = operation.formatted_name, [sample.input, *sample.args]
        yield from _other_types(name, operation.op, args, sample.kwargs, rng)


def _other_types(
    place: str, function: Any, args: list[Any], kwargs: dict[str, Any], rng: random.Random
) -> Iterator[Call]:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            dtype = rng.choice([each for each in TYPES if each is not leaf.dtype])
            given, named = pytree.tree_unflatten([*leaves[:at], leaf.to(dtype), *leaves[at + 1 :]], spec)
            yield _call(f"{place} leaf {at} of {dtype}", function, given, named)


def _as(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype)


def _samples(operation: Any, dtype: torch.dtype | None) -> list[Any]:
    if dtype is None:
        return []
    try:
        return list(operation.sample_inputs("cpu", dtype, requires_grad=False))
    except Exception:
        return []


def _worse_numbers(place: str, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Call]:
    """Each number, and each tensor of integers that is not the first argument, with values that may be out of range."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for at, leaf in enumerate(leaves):
        worse: list[Any] = []
        if type(leaf) is int:
            worse = [leaf + 40, -leaf - 40]
        elif isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64 and at and leaf.numel():
            worse = [leaf + 40, leaf - 40]
        for sign, value in zip("+-", worse):
            changed = [*leaves[:at], value, *leaves[at + 1 :]]
            given, named = pytree.tree_unflatten(changed, spec)
            yield _call(f"{place} leaf {at}{sign}", function, given, named)


def _written(place: str, operation: Any, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Call]:
    """Writes to memory that is shared, and results given elsewhere, of another type or shape."""
    first = args[0]
    if isinstance(first, torch.Tensor) and operation.inplace_variant is not None and first.numel() > 1:
        wide = torch.zeros(1, dtype=first.dtype).expand(first.shape)
        yield _call(f"{place} in place, expanded", operation.inplace_variant, [wide, *args[1:]], kwargs)
        base = torch.zeros(first.numel() + 1, dtype=first.dtype)
        base[: first.numel()] = first.detach().reshape(-1)
        if first.dim():
            left, right = base[1:].view(first.shape), base[:-1].view(first.shape)
            others = [right if isinstance(a, torch.Tensor) and a.shape == first.shape else a for a in args[1:]]
            if any(other is right for other in others):
                yield _call(f"{place} in place, overlapping", operation.inplace_variant, [left, *others], kwargs)
                if operation.supports_out:
                    given = {**kwargs, "out": left}
                    yield _call(f"{place} out=, overlapping", operation.op, [right, *others], given)
    if operation.supports_out:
        try:
            result = operation.op(*copied(args), **copied(kwargs))
        except Exception:
            return
        several = pytree.tree_leaves(result)
        if not all(isinstance(item, torch.Tensor) for item in several):
            return
        for dtype in (torch.float64, torch.int64, torch.bool):
            out = pytree.tree_map(functools.partial(torch.empty_like, dtype=dtype), result)
            yield _call(f"{place} out= of {dtype}", operation.op, args, {**kwargs, "out": _plain(out)})
        if all(item.dim() for item in several):
            out = pytree.tree_map(_expanded, result)
            yield _call(f"{place} out= expanded", operation.op, args, {**kwargs, "out": _plain(out)})


def _expanded(like: torch.Tensor) -> torch.Tensor:
    return torch.empty([1] * like.dim(), dtype=like.dtype).expand(like.shape)


def _plain(out: Any) -> Any:
    return tuple(out) if isinstance(out, (tuple, list)) else out


def all_subjects() -> list[tuple[str, Callable[[], Iterator[Call]]]]:
    """(name, what makes the calls) of torch's own error cases."""
    found: list[tuple[str, Callable[[], Iterator[Call]]]] = []
    for operation in OPERATIONS:
        if operation.error_inputs_func is not None:
            found.append((operation.formatted_name, lambda operation=operation: of_operation(operation)))
    for info in MODULES:
        if info.module_error_inputs_func is not None:
            found.append((info.name, lambda info=info: of_module(info)))
    return found
