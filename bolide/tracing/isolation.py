"""Keeping torch._dynamo out of the process.

torch decorates some of its own functions (optimizers' methods, reference implementations behind meta kernels) so that
the first call imports torch._dynamo, 2 s and 200 MB, only to switch it off inside. The decorator looks for an
attribute first; setting it spares the import. When the user does import torch._dynamo, the attributes are removed
before, so torch.compile finds everything as it expects it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch._compile
from torch._decomp import global_decomposition_table
from torch.optim.optimizer import _use_grad_for_differentiable


def _step_code(func: Callable[..., object]) -> CodeType:
    """The code that `Optimizer.step`'s wrapper gets in place of torch's, which imports torch._dynamo only to call a
    function that does nothing outside of it."""

    def step(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        try:
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step.__code__


_ATTRIBUTE = "__dynamo_disable"
_marked: list[Callable[..., object]] = []
_stepped: list[FunctionType] = []


def _inner_code(function: Any) -> CodeType:
    """The code of the one function defined inside `function` that closes over its argument."""
    return next(code for code in function.__code__.co_consts if isinstance(code, CodeType) and code.co_freevars)


_DISABLED = _inner_code(torch._compile._disable_dynamo)
_STEP = _inner_code(_use_grad_for_differentiable)
_OWN_STEP = _step_code(print)


def without_wrapper(function: FunctionType) -> FunctionType:
    """The function that torch wrapped to switch torch._dynamo off inside it; any other function as it is. Loading
    torch._dynamo wraps more of torch's functions, among them `torch.manual_seed`; its first compilation marks the
    optimizers' own as never to be compiled."""
    if function.__code__ is _DISABLED:
        return function.__wrapped__  # type: ignore[attr-defined, no-any-return]
    original: Any = function.__dict__.get("_torchdynamo_orig_callable")
    own = isinstance(original, FunctionType) and str(original.__module__).startswith("torch.")
    return original if own and function.__dict__.get("_torchdynamo_disable") else function


class _Restore:
    """An import hook that finds nothing; it undoes the marks just before torch._dynamo is loaded."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch._dynamo":
            for function in _marked:
                function.__dict__.pop(_ATTRIBUTE, None)
            for function in _stepped:
                function.__code__ = _STEP
            _marked.clear()
            _stepped.clear()


def keep_dynamo_out() -> None:
    """Mark the functions of the optimizers loaded so far, unless torch._dynamo is. Cheap; call it before tracing."""
    _mark(_optimizer_functions())


def keep_dynamo_out_of_meta_kernels() -> None:
    """Mark the Python reference implementations that serve as meta kernels."""
    _mark(function for table in global_decomposition_table.values() for function in table.values())


def _mark(roots: Iterable[object]) -> None:
    if "torch._dynamo" in sys.modules:
        return
    if _Restore not in sys.meta_path:
        sys.meta_path.insert(0, _Restore)
    for function, inside in _reachable(roots):
        if function.__code__ is _DISABLED:
            for target in inside:
                if _ATTRIBUTE not in target.__dict__:
                    setattr(target, _ATTRIBUTE, target)
                    _marked.append(target)
        elif function.__code__ is _STEP:
            function.__code__ = _OWN_STEP
            _stepped.append(function)


def _optimizer_functions() -> Iterator[FunctionType]:
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim") and isinstance(module, ModuleType):
            for value in list(vars(module).values()):
                if isinstance(value, FunctionType):
                    yield value
                elif isinstance(value, type) and value.__module__ == name:
                    yield from (member for member in vars(value).values() if isinstance(member, FunctionType))


def _reachable(roots: Iterable[object]) -> Iterator[tuple[FunctionType, list[FunctionType]]]:
    """Every function reached from `roots` through closures, and what it closes over. (Empty cells are equal.)"""
    waiting = [root for root in roots if isinstance(root, FunctionType)]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        inside = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        functions = [value for value in inside if isinstance(value, FunctionType)]
        yield function, functions
        waiting.extend(functions)
