"""Layers and functions of torch whose native code would go past the recording, or look at data: losses, encoders in
evaluation, checks of distributions.

Distributions check their parameters and samples. In captured code the check is part of the graph, and where it fails
the call is made again in eager, which raises torch's own error. Where the graph cannot be left (one branch of a
`torch.cond`, a backward pass) what it finds is raised after the graph has run, before any effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bolide.dynamo.machine.breaking import can_require, require
from bolide.dynamo.machine.calls import NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.native_calls import for_real, recorded_as
from bolide.dynamo.machine.operations import polyfill
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.captured import Source
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

# ---- losses ----------------------------------------------------------------------------------------------------------


Args = list[Any]
Kwargs = dict[str, Any]
_LENGTHS = {"input_lengths": 2, "target_lengths": 3}


@intercept(functional.ctc_loss)
def _ctc_loss(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """Lengths are given as tensors: from lists the native code would make tensors past the recording."""
    for name, place in _LENGTHS.items():
        given: Any = kwargs if name in kwargs else args
        slot = name if name in kwargs else place
        if type(given[slot]) in (list, tuple):
            vm.trace.where = vm.where()
            given[slot] = torch.tensor(given[slot])
    return NATIVE


@intercept(functional.one_hot)
def _one_hot(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """Classes are in 0 … num_classes - 1: the graph checks it."""
    given = dict(zip(("tensor", "num_classes"), args)) | kwargs
    labels, classes = given.get("tensor"), given.get("num_classes", -1)
    if type(labels) is not TracedTensor or labels.dtype is not torch.int64:
        return NATIVE
    if isinstance(classes, (int, torch.SymInt)) and labels.numel() == 0 and classes <= 0:
        for_real(lambda: functional.one_hot(torch.empty(0, dtype=torch.int64), int(classes)))  # raises
    if isinstance(classes, (int, torch.SymInt)) and classes >= 0 and labels.numel() != 0:
        known = vm.trace.known(labels)
        if known is not None:
            with torch._C._DisableTorchDispatch():  # nothing of the program: not recorded
                least, most = int(known.min()), int(known.max())
            if least < 0 or most >= classes:
                for_real(functional.one_hot, known, int(classes))  # raises
            return _marked(vm, labels, classes)
        if not can_require(vm):
            raise Unsupported("one_hot looks at its classes", vm.where(), kind="data_value")
        vm.trace.where = vm.where()
        require(vm, ((labels < 0) | (labels >= classes)).any().logical_not())
        return _marked(vm, labels, classes)
    return NATIVE


@intercept(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
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


def _marked(vm: Machine, labels: torch.Tensor, classes: int | torch.SymInt) -> Any:
    """`one_hot`, whose kernel takes no symbols."""
    if isinstance(classes, int):
        return NATIVE
    vm.trace.where = vm.where()

    def mark() -> torch.Tensor:
        return (labels.unsqueeze(-1) == torch.arange(classes)).long()  # type: ignore[call-overload,no-any-return]

    return recorded_as(vm, functional.one_hot, [labels, classes], mark)


@intercept(functional.max_pool1d, torch.max_pool1d)
def _max_pool1d(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """Where no gradient is wanted eager has a kernel whose result is row-major; traced tensors take the other way."""
    x = args[0] if args else kwargs.get("input")
    if type(x) is not TracedTensor or x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
        return NATIVE
    if kwargs.get("return_indices") or len(args) > 6 or None in args[1:]:
        return NATIVE
    vm.trace.where = vm.where()
    options = {key: value for key, value in kwargs.items() if key != "return_indices" and value is not None}
    return torch.max_pool1d(*args, **options).contiguous()


# ---- encoders: eager computes on nested tensors where it can, and so leaves zeros where the mask is set --------------


_FORWARD = torch.nn.TransformerEncoder.forward


@intercept(_FORWARD)
def _encode(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Call(polyfill("encode"), args, kwargs)


@intercept(torch_functions.encode_plainly)
def _encode_plainly(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    vm.enter(_FORWARD, args, kwargs)  # type: ignore[arg-type]
    return SWITCHED


@intercept(torch.backends.mha.get_fastpath_enabled)
def _is_enabled(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    enabled = torch.backends.mha.get_fastpath_enabled()
    vm.world.guards.add(Source("apply", Source("object", None, None, torch.backends.mha), (), _ask), "equals", enabled)
    return enabled


def _ask(module: Any) -> bool:
    return bool(module.get_fastpath_enabled())


# ---- distributions: their checks of parameters and samples are part of the graph -------------------------------------


def require_valid(valid: torch.Tensor, what: str) -> None:
    """Raises ValueError, as `torch.distributions` does, if not `valid`."""
    if not valid:
        raise ValueError(f"Expected {what} to satisfy its constraint, but found invalid values")


@intercept(torch._is_all_true)
def _is_all_true(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    frame = vm.frames[-1]
    if type(args[0]) is not TracedTensor or not str(frame.globals.get("__name__")).startswith("torch.distributions"):
        return NATIVE
    vm.trace.where = vm.where()
    valid = torch._is_all_true(args[0])
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
