"""torch's own samples of operations and modules (`op_db`, `module_db`).

They live among torch's tests, which need the package expecttest, but only for a base class of theirs: where it is not
installed an empty module stands in for it."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
import unittest
from typing import Any

import torch
from torch.utils import _pytree as pytree

if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
    _stand_in = types.ModuleType("expecttest")
    _stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = _stand_in

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.opinfo.core import ErrorInput

# For each sample it looks through the stack, with sources, for a `unittest.TestCase`, of which there is none here: a
# tenth of a second each time.
common_utils.extract_test_fn = lambda: None

#: those that only GPUs have are left out
OPERATIONS = [operation for operation in op_db if "jiterator" not in operation.name]

MODULES = list(module_db)


def rearranged(arguments: Any, rng: random.Random) -> Any:
    """The same arguments, tensors with their dimensions in another order in memory, with gaps, or both."""
    permuted, gaps = rng.choice(((True, False), (False, True), (True, True)))

    def change(leaf: Any) -> Any:
        plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_quantized
        if not plain or leaf.is_conj() or leaf.is_neg() or rng.random() < 0.1:
            return leaf
        order = list(range(leaf.dim()))
        if permuted:
            rng.shuffle(order)
        strides, step = [0] * leaf.dim(), 1
        for dim in reversed(order):
            strides[dim] = step * (rng.randint(1, 2) if gaps else 1)
            step = strides[dim] * max(leaf.shape[dim], 1)
        memory = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype)
        return memory.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(change, arguments)


__all__ = ["MODULES", "OPERATIONS", "ErrorInput", "ModuleErrorEnum", "rearranged"]
