"""Functions of torch that call back into the program, written anew so that they can be interpreted like the program."""

from __future__ import annotations

import warnings
from typing import Any

import torch


def begin_region(contexts: Any, same_draws: bool) -> Any:
    """Answered by an intercept (`torch_checkpoint`)."""
    raise NotImplementedError


def end_region(region: Any) -> None:
    """Answered by an intercept (`torch_checkpoint`)."""
    raise NotImplementedError


def checkpoint(function: Any, context_fn: Any, same_draws: bool, args: Any, kwargs: Any) -> Any:
    """What is computed here is computed again in the backward pass instead of being saved."""
    region = begin_region(None if context_fn is None else context_fn(), same_draws)
    try:
        return function(*args, **kwargs)
    finally:
        end_region(region)


def checkpoint_without_inputs(function: Any, args: Any) -> Any:
    """A reentrant checkpoint none of whose arguments requires grad: nothing in it gets a gradient."""
    warnings.warn("None of the inputs have requires_grad=True. Gradients will be None")  # noqa: B028
    with torch.no_grad():
        return function(*args)


def identity(value: Any) -> Any:
    return value


def torch_override(function: Any, owners: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """What torch's functions do with arguments that have a `__torch_function__`."""
    for owner in owners:
        result = owner.__torch_function__(function, classes, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{function.__name__}' on types that implement __torch_function__")
