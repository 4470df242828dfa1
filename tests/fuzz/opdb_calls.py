"""torch's own samples of operations and modules as series of calls: the sample itself, and the same call with other
sizes and other integers, as far as eager takes them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opdb_tools import OPERATIONS
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

#: the first that an operation has; with all of them the sweep takes six times as long
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float64)
#: these take an integer for a mode, which they do not check (any other one reads something), or as an exponent
UNCHECKED = ("grid_sampler_3d", "grid_sampler_2d", "combinations")
#: what eager answers with when it does not take a call
REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, AssertionError, ArithmeticError)

#: samples of random operations would set the seed themselves, so that all draws are alike
common_methods_invocations.wrapper_set_seed = lambda operation, *args, **kwargs: operation(*args, **kwargs)

#: elements of the tensors of a call: larger ones take longer than they tell
LARGEST = 1 << 21

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
SizeMap = Callable[[int], int]


@dataclass
class Series:
    """Calls of one function (or module) that differ in sizes only. `changed`: what differs from the first, for each of
    the others."""

    function: Any
    calls: list[Arguments]
    changed: list[str]


@dataclass(frozen=True)
class Subject:
    """What has samples: an operation, a form of one, or a module."""

    name: str
    kind: str  # "op" or "module"
    info: Any

    def dtypes(self, asked: Sequence[torch.dtype]) -> list[torch.dtype]:
        """The dtypes that it is swept with on the CPU: those of `asked` that it takes; by default one."""
        known = self.info.dtypes
        return [dtype for dtype in asked if dtype in known] if asked else [d for d in DTYPES if d in known][:1]

    def samples(self, dtype: torch.dtype) -> Iterator[tuple[Any, Arguments]]:
        """(function, arguments) of each sample, gradients asked for where there are any."""
        if self.kind == "module":
            yield from _module_samples(self.info, dtype)
            return
        grad = self.info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        for sample in self.info.sample_inputs("cpu", dtype, requires_grad=grad):
            yield _calling(self.info.op), ((sample.input, *sample.args), sample.kwargs)


def _calling(operation: Any) -> Any:
    """A user's function that calls an operation."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    return call


def by_name(function: Any, operation: Any, name: str, arguments: Arguments) -> Arguments | None:
    """The same call with all arguments given by name; None if eager does not take it so. `name`: ATen's."""
    args, kwargs = arguments
    for names in _parameter_names(operation, name):
        if len(names) >= len(args) and not kwargs.keys() & set(names[: len(args)]):
            named: Arguments = (), {**dict(zip(names, args)), **kwargs}
            copied = cloned(named)
            with contextlib.suppress(*REFUSALS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*copied[0], **copied[1])
                return named
    return None


def _parameter_names(operation: Any, name: str) -> Iterator[list[str]]:
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(operation).parameters.values()
        yield [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        names = [argument.name for argument in schema.arguments]
        yield ["input" if known == "self" else known for known in names]
        yield names


def _module_samples(info: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Arguments]]:
    """Each in training, then in evaluation."""
    modes = (True, False)
    samples = [
        info.module_inputs_func(info, "cpu", dtype, requires_grad=dtype.is_floating_point, training=training)
        for training in modes
    ]
    for pair in itertools.zip_longest(*samples):
        for sample, training in zip(pair, modes):
            if sample is not None and sample.forward_input is not None:
                made = sample.constructor_input
                module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
                yield module, (tuple(sample.forward_input.args), sample.forward_input.kwargs)


def subjects() -> list[Subject]:
    """All operations and modules, each under a name of its own."""
    found = [Subject(_full_name(info), "op", info) for info in OPERATIONS]
    return found + [Subject(f"nn.{info.name.removeprefix('nn.')}", "module", info) for info in module_db]


def _full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


# ---- copies ----------------------------------------------------------------------------------------------------------


def cloned(arguments: Arguments) -> Arguments:
    """The same arguments in memory of their own, tensors laid out as they were."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, _copy, arguments)
    return args, kwargs


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    memory = torch.empty(0, dtype=tensor.dtype)
    memory.set_(tensor.detach().untyped_storage().clone(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return memory.requires_grad_(tensor.requires_grad)


def own(function: Any) -> Any:
    """A module's copy, so that calls do not share state; other functions as they are."""
    return copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function


# ---- other sizes -----------------------------------------------------------------------------------------------------


def series(function: Any, first: Arguments, rng: random.Random, with_ints: bool = True) -> Series:
    """The sample, two calls with other sizes, and two with other integers, as far as eager takes such calls."""
    made = Series(function, [first], [])
    if isinstance(function, torch.nn.Module):  # the first call may make its parameters
        function = own(function)
        args, kwargs = cloned(first)
        with contextlib.suppress(*REFUSALS):
            function(*args, **kwargs)
    for kind, changes in (
        ("sizes", _size_changes(first, with_ints)),
        ("ints", _int_changes(first) if with_ints else ()),
    ):
        for name, change in changes:
            calls = [_taken(function, change, step, rng) for step in (1, 2)]
            if all(call is not None for call in calls):
                made.calls += [call for call in calls if call is not None]
                made.changed += [f"{kind}: {name}"] * 2
                break
    return made


def _taken(function: Any, change: Callable[..., Arguments | None], step: int, rng: random.Random) -> Arguments | None:
    """The changed arguments, with noise or else without it, if eager takes them."""
    for noise in (0.1, 0.0):
        arguments = change(step, noise, rng)
        if arguments is None:
            return None
        args, kwargs = cloned(arguments)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                own(function)(*args, **kwargs)
            return arguments
        except REFUSALS:
            continue
    return None


def _size_changes(first: Arguments, change_ints: bool) -> Iterator[tuple[str, Callable[..., Arguments | None]]]:
    """Ways to change sizes: all of those above 1, or one of them; integers that are sizes, or products of sizes, with
    them, or as they are. Different sizes stay different."""
    tensors = [leaf for leaf in pytree.tree_leaves(first) if isinstance(leaf, torch.Tensor)]
    known = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    if not known:
        return
    largest = known[-1]
    ways: list[tuple[str, Callable[[int, int], int], tuple[int, ...]]] = [
        ("all larger", lambda size, step: size + step, tuple(known)),
        ("all multiplied", lambda size, step: size * (step + 1), tuple(known)),
    ]
    for one in known if len(known) > 1 else ():
        ways += [
            (f"{one} larger", lambda size, step: largest + step, (one,)),
            (f"{one} multiplied", lambda size, step: size * (largest + step), (one,)),
        ]
    for (name, way, which), with_ints in itertools.product(ways, (True, False) if change_ints else (False,)):

        def change(
            step: int,
            noise: float,
            rng: random.Random,
            way: Callable[[int, int], int] = way,
            which: tuple[int, ...] = which,
            with_ints: bool = with_ints,
        ) -> Arguments | None:
            sizes = {size: way(size, step) if size in which else size for size in known}

            def changed(leaf: Any) -> Any:
                if isinstance(leaf, torch.Tensor):
                    return _grown(leaf, sizes, noise, rng)
                return _mapped(leaf, sizes) if with_ints and type(leaf) is int else leaf

            if sum(_elements(tensor, sizes) for tensor in tensors) > LARGEST:
                return None
            args, kwargs = pytree.tree_map(changed, first)
            return args, kwargs

        yield f"{name}{', ints with them' if with_ints else ''}", change


def _elements(tensor: torch.Tensor, sizes: dict[int, int]) -> int:
    return math.prod(sizes.get(size, size) for size in tensor.shape)


def _int_changes(first: Arguments) -> Iterator[tuple[str, Callable[..., Arguments | None]]]:
    """Ways to change integers: all, or one of them, larger or smaller."""
    leaves, form = pytree.tree_flatten(first)
    places = [place for place, leaf in enumerate(leaves) if type(leaf) is int]
    choices = [tuple(places)] if len(places) > 1 else []
    for which, sign in itertools.product(choices + [(place,) for place in places], (1, -1)):

        def change(
            step: int, noise: float, rng: random.Random, which: tuple[int, ...] = which, sign: int = sign
        ) -> Arguments | None:
            if not noise:
                return None
            made = [leaf + sign * step if place in which else leaf for place, leaf in enumerate(leaves)]
            args, kwargs = pytree.tree_unflatten(made, form)
            return args, kwargs

        yield f"{which} by {sign}", change


def _mapped(value: int, sizes: dict[int, int]) -> int:
    """An integer that is a size, or a product of up to three, as it is for the other sizes."""
    for count in (1, 2, 3):
        for factors in itertools.combinations_with_replacement(sizes, count):
            product = result = 1
            for factor in factors:
                product, result = product * factor, result * sizes[factor]
            if product == value:
                return result
    return value


def _grown(tensor: torch.Tensor, sizes: dict[int, int], noise: float, rng: random.Random) -> torch.Tensor:
    """A tensor with other sizes: the old elements again and again, so that indices and domains stay valid, and floats
    a little smaller, so that none are equal."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    shape = [sizes.get(size, size) for size in tensor.shape]
    if shape == list(tensor.shape):
        return tensor
    if 0 in shape:
        return _empty_like(tensor, shape).requires_grad_(tensor.requires_grad)
    found = tensor.detach()
    for dim, (old, new) in enumerate(zip(tensor.shape, shape)):
        if old != new:
            found = found.index_select(dim, torch.arange(new) % old)
    if noise and (found.is_floating_point() or found.is_complex()):
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        found = found * (1 - noise * torch.rand(shape, generator=generator)).to(found.dtype)
    if not (found.is_floating_point() or found.is_complex()) and tensor.dim() and _ascends(tensor):
        found = found.sort(-1).values  # offsets, which not every kernel checks
    repeated = [dim for dim in range(len(shape)) if not tensor.stride(dim)]
    for dim in repeated:
        found = found.narrow(dim, 0, 1)
    memory = torch.empty_strided(found.shape, _grown_strides(tensor, shape), dtype=tensor.dtype)
    return memory.copy_(found).expand(shape).requires_grad_(tensor.requires_grad)


def _empty_like(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor without elements with other sizes, in rows or in columns as before."""
    in_columns = tensor.dim() > 1 and tensor.stride() != torch.empty(tensor.shape).stride()
    sizes = [*shape[:-2], shape[-1], shape[-2]] if in_columns else shape
    made = torch.empty(sizes, dtype=tensor.dtype)
    return made.mT if in_columns else made


def _ascends(tensor: torch.Tensor) -> bool:
    return bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def _grown_strides(tensor: torch.Tensor, shape: list[int]) -> list[int]:
    """Strides in the order that they had, with the gaps that they had."""
    strides = [0] * len(shape)
    old_step = new_step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (tensor.stride(dim), -dim)):
        stride = tensor.stride(dim)
        if stride and tensor.shape[dim] != 1:
            strides[dim] = new_step * max(1, stride // old_step)
            old_step, new_step = stride * max(1, tensor.shape[dim]), strides[dim] * max(1, shape[dim])
        elif stride:
            strides[dim] = new_step if stride == old_step else stride
    return strides
