"""torch's own samples of operations and modules (`op_db`, `module_db`).

They live among torch's tests, which need the package expecttest, but only for a base class of theirs: where it is not
installed an empty module stands in for it."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest

if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
    _stand_in = types.ModuleType("expecttest")
    _stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = _stand_in

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.opinfo.core import ErrorInput

#: those that only GPUs have are left out
OPERATIONS = [operation for operation in op_db if "jiterator" not in operation.name]

MODULES = list(module_db)

__all__ = ["MODULES", "OPERATIONS", "ErrorInput", "ModuleErrorEnum"]
