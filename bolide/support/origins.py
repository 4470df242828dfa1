"""Where exceptions come from: code of bolide's, or of others."""

from __future__ import annotations

import functools
import os
import types

import torch

from bolide.support.errors import HalfwayError

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of bolide, as file names of its code begin."""

_PLUMBING = (os.path.dirname(torch.__file__) + os.sep, OURS, "<frozen ")
_STDLIB = os.path.dirname(os.__file__) + os.sep
_GENERATED = "<bolide"  # how the file names of what bolide writes begin
_OF_PYTHON = (AttributeError, NameError, KeyError, AssertionError, TypeError)


@functools.cache
def is_plumbing(path: str) -> bool:
    """Whether a file is torch's, bolide's or the standard library's: errors are better reported at its caller."""
    return path.startswith(_PLUMBING) or (path.startswith(_STDLIB) and "site-packages" not in path)


def is_ours(code: types.CodeType) -> bool:
    """Whether code is bolide's own."""
    return code.co_filename.startswith(OURS)


def innermost(error: BaseException) -> types.TracebackType | None:
    """Where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def is_mistake(error: BaseException) -> bool:
    """Whether an exception that nothing of the program's is expected to raise comes from a mistake in bolide's code, or
    in code that bolide has written: it is of a kind that torch's operations do not raise."""
    last = innermost(error)
    if last is None or not isinstance(error, _OF_PYTHON):
        return False
    code = last.tb_frame.f_code
    return is_ours(code) or code.co_filename.startswith(_GENERATED)


def refuse_mistake(doing: str, function: str, error: BaseException) -> None:
    """Raises HalfwayError for a mistake of bolide's where nothing can be done again in eager."""
    if is_mistake(error):
        raise HalfwayError(doing, function, error) from error
