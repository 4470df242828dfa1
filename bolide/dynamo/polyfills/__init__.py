"""Behaviour of built-in operations that calls back into the program, written in Python and interpreted like the
program itself."""

from __future__ import annotations

import types

from bolide.dynamo.polyfills import generic

BY_NAME: dict[str, types.FunctionType] = {
    name: value for name, value in vars(generic).items() if isinstance(value, types.FunctionType)
}
