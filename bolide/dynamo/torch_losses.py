"""Functions of torch whose native code would go past the recording, or looks at data before it is taken apart into
operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bolide.dynamo.breaking import can_require, require
from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.native_calls import for_real, recorded_as
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

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
