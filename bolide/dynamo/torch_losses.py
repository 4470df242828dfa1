"""Loss functions whose native code would go past the recording."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine

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
