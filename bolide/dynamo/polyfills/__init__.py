"""Behaviour of built-in operations that calls back into the program, written in Python and interpreted like the
program itself."""

from __future__ import annotations

import types

from bolide.dynamo.polyfills import generators, generic, iteration, library, statements, torch_functions

#: Code that relies on `id()`: values that the program made are others behind a break.
WHOLE = frozenset([library.copy_deep.__code__])

BY_NAME: dict[str, types.FunctionType] = {
    name: value
    for module in (generators, generic, iteration, library, statements, torch_functions)
    for name, value in vars(module).items()
    if isinstance(value, types.FunctionType)
}
