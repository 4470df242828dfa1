"""Behaviour of built-in operations that calls back into the program, written in Python and interpreted like the
program itself."""

from __future__ import annotations

import types

from bolide.dynamo.polyfills import generators, generic, iteration, library, torch_functions

#: Code that is not gone on with behind a break: it relies on `id()` of what is made anew, has notes of the run, or does
#: not do for real what it stands for.
WHOLE = {
    library.copy_shallow.__code__: "copy.copy",
    library.copy_deep.__code__: "copy.deepcopy",
    library.call_cached.__code__: "a function whose results are cached",
    torch_functions.linearize.__code__: "torch.func.linearize",
}

BY_NAME: dict[str, types.FunctionType] = {
    name: value
    for module in (generators, generic, iteration, library, torch_functions)
    for name, value in vars(module).items()
    if isinstance(value, types.FunctionType)
}
