"""Layers, functions and optimizers of torch whose native code would go past the recording, or look at data. Checks of
distributions are part of the graph; where the graph cannot be left (one branch of a `torch.cond`, a backward pass) what
they find is raised after it has run, before any effect. The code of optimizers is interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nested
from torch.nn import functional
from torch.nn.utils import stateless
from torch.optim import adagrad, adam, optimizer, sgd

from bolide.dynamo.guards.texts import OF_NESTED
from bolide.dynamo.library.handlers import Args, Kwargs, answers, by_polyfill, intercept_table
from bolide.dynamo.machine.breaking import can_require, require
from bolide.dynamo.machine.calls import LATE, NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.native_calls import for_real, recorded_as
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.torch_calls.tensors import float_in
from bolide.symbolic import Size, as_expr
from bolide.tracing import TracedTensor
from bolide.tracing.numbers import data

_LENGTHS = {"input_lengths": 2, "target_lengths": 3}


@intercept(functional.ctc_loss)
def _ctc_loss(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Lengths are given as tensors: from lists the native code would make tensors past the recording."""
    for name, place in _LENGTHS.items():
        given: Any = kwargs if name in kwargs else args
        slot = name if name in kwargs else place
        if type(given[slot]) in (list, tuple, torch.Size):
            vm.trace.where = vm.where()
            given[slot] = torch.tensor(list(given[slot]))
    return NATIVE


@answers(torch._transformer_encoder_layer_fwd)
def _encoder_layer(vm: Machine, x: object, *given: object) -> object:
    """Its kernel calls operations that autocast converts, which the graph, run without autocast, would not."""
    if type(x) is not TracedTensor or not torch.is_autocast_enabled(x.device.type):
        return NATIVE
    layer: Callable[..., object] = torch._transformer_encoder_layer_fwd
    dtype = torch.get_autocast_dtype(x.device.type)

    def cast(value: object) -> object:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return recorded_as(vm, layer, [x, *given], lambda: layer(*map(cast, (x, *given))))


@answers(functional.one_hot)
def _one_hot(vm: Machine, labels: object, num_classes: int | torch.SymInt = -1) -> object:
    """Classes are in 0 … num_classes - 1: the graph checks it."""
    if type(labels) is not TracedTensor:
        return NATIVE
    if labels.dtype is not torch.int64:
        for_real(lambda: functional.one_hot(torch.zeros(1, dtype=labels.dtype)))  # raises
    if not isinstance(num_classes, (int, torch.SymInt)):
        return NATIVE
    if labels.numel() == 0:
        if num_classes <= 0:
            for_real(lambda: functional.one_hot(torch.empty(0, dtype=torch.int64), int(num_classes)))  # raises
        return NATIVE
    if not num_classes >= 0:
        return NATIVE
    known = vm.trace.known(labels)
    vm.trace.where = vm.where()
    if known is not None:
        with torch._C._DisableTorchDispatch():  # nothing of the program: not recorded
            least, most = int(known.min()), int(known.max())
        if least < 0 or most >= num_classes:
            for_real(functional.one_hot, known, int(num_classes))  # raises
    elif can_require(vm):
        require(vm, ((labels < 0) | (labels >= num_classes)).any().logical_not())
    else:
        raise vm.unsupported("one_hot looks at its classes", "data_value")

    def mark() -> torch.Tensor:
        """Its kernel takes no symbols, and what torch records instead has other strides than its kernel's result."""
        marks = labels.unsqueeze(-1) == torch.arange(num_classes)  # type: ignore[arg-type]
        return marks.to(torch.int64, memory_format=torch.contiguous_format)

    return recorded_as(vm, functional.one_hot, [labels, num_classes], mark)


@intercept(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Places that are given by a tensor are numbers that are data."""
    places = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if type(places) is not TracedTensor or places.dtype is not torch.int64 or places.dim() != 1:
        return NATIVE
    vm.trace.where = vm.where()
    if len(args) > 1:
        args[1] = places.tolist()
    else:
        kwargs["indices"] = kwargs.pop("tensor_indices_or_sections").tolist()
    return NATIVE


# ---- sequences, packed and in recurrent layers -----------------------------------------------------------------------


@intercept(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A layer over packed sequences is one operation, as with symbolic sizes: ATen's code reads the batch sizes."""
    if len(args) > 3 and type(args[3]) in (list, tuple):
        vm.trace.allow_symbols()
    return NATIVE


@answers(torch._pack_padded_sequence)
def _pack(vm: Machine, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> object:
    """What a mask of time steps selects, in order; the graph checks the lengths."""
    if type(lengths) is not TracedTensor or lengths.dim() != 1 or padded.dim() < 2 or not can_require(vm):
        return NATIVE
    steps = padded.transpose(0, 1) if batch_first else padded
    if lengths.dtype is not torch.int64 or not lengths.is_cpu or not lengths.shape[0] == steps.shape[1] > 0:
        return NATIVE
    falling = (lengths[1:] <= lengths[:-1]).all()
    require(vm, falling & (lengths[-1] > 0) & (lengths[0] <= steps.shape[0]))
    places = torch.arange(steps.shape[0]).unsqueeze(1)
    longest = _number(lengths[0])
    for known in (as_expr(longest).ge(1), as_expr(longest).le(as_expr(steps.shape[0]))):  # as was required
        vm.trace.shapes.facts.add(known)
    batch_sizes = (places[:longest] < lengths).sum(1)
    data.is_size(vm.trace, vm.trace.own(batch_sizes[0]), lengths.shape[0])
    return steps[_where(places < lengths, steps)], batch_sizes


@answers(torch._pad_packed_sequence)
def _pad(
    vm: Machine, packed: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding: float, total: Size
) -> object:
    """Written where a mask of time steps says."""
    if type(batch_sizes) is not TracedTensor or batch_sizes.dim() != 1 or not can_require(vm):
        return NATIVE
    vm.trace.where = vm.where()
    steps = batch_sizes.shape[0]
    batch = _number(batch_sizes[0])
    mask = torch.arange(batch) < batch_sizes.unsqueeze(1)
    length = total if type(total) is torch.SymInt or total > 0 else steps
    padded = packed.new_full((length, batch, *packed.shape[1:]), padding)
    padded[_where(mask, packed)] = packed
    return padded.transpose(0, 1) if batch_first else padded, mask.sum(0)


def _number(tensor: torch.Tensor) -> int:
    """The number in a tensor, mostly a symbol."""
    return tensor.item()  # type: ignore[return-value]


def _where(mask: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The places where a mask is true, for values and for their derivatives."""
    return mask.nonzero().to(values.device).unbind(1)


# ---- encoders: eager computes on nested tensors where it can, and so leaves zeros where the mask is set --------------


_FORWARD = torch.nn.TransformerEncoder.forward


by_polyfill({_FORWARD: "encode", stateless._untie_named_tensors_map: "untie"})


@intercept(torch_functions.encode_plainly)
def _encode_plainly(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.enter(_FORWARD, args, kwargs)  # type: ignore[arg-type]
    return SWITCHED


@intercept(nested.nested_tensor, nested.as_nested_tensor, nested.narrow)
def _nested(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if torch.jagged in args or kwargs.get("layout") is torch.jagged or getattr(args[0], "layout", 0) is torch.jagged:
        return NATIVE
    reason = "a nested tensor is made that is not jagged, and such nested tensors are not compiled"
    raise vm.unsupported(reason, "layout", OF_NESTED)


# ---- attention with functions of the program's own -------------------------------------------------------------------


def _load_attention() -> None:
    from bolide.dynamo.torch_calls import attention  # noqa: F401  (it registers answers)


LATE["torch.nn.attention.flex_attention"] = _load_attention


# ---- distributions: their checks of parameters and samples are part of the graph -------------------------------------


def require_valid(valid: torch.Tensor, what: str) -> None:
    """Raises ValueError, as `torch.distributions` does, if not `valid`."""
    if not valid:
        raise ValueError(f"Expected {what} to satisfy its constraint, but found invalid values")


@answers(torch._is_all_true)
def _is_all_true(vm: Machine, holds: torch.Tensor) -> object:
    frame = vm.frames[-1]
    if type(holds) is not TracedTensor or not str(frame.globals.get("__name__")).startswith("torch.distributions"):
        return NATIVE
    vm.trace.where = vm.where()
    valid = torch._is_all_true(holds)
    if vm.trace.known(valid) is not None:
        return valid
    if can_require(vm):
        require(vm, valid)
        return True
    names = frame.code.locals_names
    parameter = frame.locals[names.index("param")] if "param" in names else "a value"
    owner = frame.locals[names.index("self")]
    what = f"{f'parameter {parameter}' if 'param' in names else parameter} of distribution {type(owner).__name__}"
    vm.later.checks.append((require_valid, [valid, what], {}))
    return True


# ---- optimizers: step counts are data, so what eager computes from them in Python floats is so in the graph ----------


answers(optimizer._get_value)(lambda vm, x: float_in(vm, x) if type(x) is TracedTensor else x)
answers(optimizer._stack_if_compiling)(lambda vm, x: x)  # as in eager: what comes from `_get_value` are floats


@answers(optimizer.Optimizer._group_tensors_by_device_and_dtype)
def _group_tensors(vm: Machine, lists: Any, with_indices: bool = False) -> object:
    """As in eager, by device and type: code for compilers puts all in one group, of no type, which some ask for."""
    groups: dict[Any, Any] = {}
    for place, first in enumerate(lists[0]):
        grouped, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for mine, theirs in zip(grouped, lists):
            if theirs:
                mine.append(theirs[place])
        if with_indices:
            indices.append(place)
    return groups


_MODULES: dict[str, Any] = {"sgd": sgd, "adam": adam, "adagrad": adagrad}
_FUSED = {
    getattr(module, f"_fused_{name}"): getattr(module, f"_single_tensor_{name}") for name, module in _MODULES.items()
}


@intercept_table(_FUSED)
def _compute_fused(fused: Any, single: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A fused kernel computes what the loop over parameters does, but for the last bits: it is called itself where a
    graph of calls is wanted."""
    if vm.recorder is None:
        return Call(single, args, kwargs)
    vm.enter(fused, args, kwargs)
    return SWITCHED
