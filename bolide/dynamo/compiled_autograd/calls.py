"""What stands in the graph of a backward pass: formulas of autograd's nodes, and Python functions for the rest of what
the engine does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch

from bolide.dynamo.library.marks import allow_in_graph, disallow_in_graph
from bolide.support.errors import BolideError
from bolide.tracing.wrappers import is_made_of_parts

Grad = torch.Tensor | None
Size = int | torch.SymInt
Function = torch.autograd.Function
Gradients = Sequence[Grad]
Hook = Callable[..., object]


class Formula(Protocol):
    """What a node of autograd's graph computes, called as ``formula(grads, *saved)``: a function in C++, which capture
    calls on traced tensors.

    is_custom: it is a C++ program's own.
    """

    __name__: str
    is_custom: bool

    def __call__(self, *args: object) -> Gradients: ...


FORMULAS: dict[str, Formula] = {}
"""By name. The engine binds each of them once in a process."""


def bind(name: str, function: Callable[..., Gradients], is_custom: bool, is_traceable: bool) -> str:
    """Keep a formula. is_traceable: it may be called on traced tensors. Returns the name that it has got."""

    def formula(*args: object) -> Gradients:
        results = function(*args)
        if torch.is_anomaly_check_nan_enabled() and torch.is_anomaly_enabled():
            _refuse_nans(name, results)
        return results

    if is_custom:
        name = f"CppNode{name}{sum(each.is_custom for each in FORMULAS.values())}"
    formula.__name__ = formula.__qualname__ = name
    formula.is_custom = is_custom  # type: ignore[attr-defined]
    FORMULAS[name] = cast(Formula, formula)
    (allow_in_graph if is_traceable else disallow_in_graph)(formula)
    return name


def _refuse_nans(name: str, results: Gradients) -> None:
    for index, result in enumerate(results):
        if result is not None and bool(result.isnan().any()):
            raise RuntimeError(f"Function '{name}' returned nan values in its {index}th output.")


def validate_outputs(name: str, outputs: Gradients, metadata: object) -> Gradients:
    """Gradients in the shape, dtype and on the device of what they are gradients of. Raises what the engine raises
    where that cannot be; `name` is that of the node that has made them.
    """
    try:
        return FORMULAS["validate_outputs"](outputs, metadata)
    except BolideError:
        raise
    except RuntimeError as error:
        said = str(error).replace("[Compiled Autograd Tracing:]", f"Function {name} returned an ")
        raise RuntimeError(said) from None


def accumulate(one: Grad, other: Grad) -> Grad:
    """The sum of two gradients of one value; either may be missing."""
    if one is None or other is None:
        return other if one is None else one
    if one.layout is not torch.strided and other.layout is torch.strided:
        return other + one  # torch adds sparse tensors to dense ones, not the other way round
    return one + other


def accumulate_grad(variable: torch.Tensor, grad: Grad, has_post_hooks: bool, last: bool = False) -> Grad:
    """Add a gradient to ``variable.grad``, which is given back. Nothing happens without one. `last`: the graph has no
    other use for it."""
    if last and grad is not None and not torch.compiler.is_compiling() and _is_taken(grad, variable):
        variable.grad = grad.detach()
        return variable.grad
    return (accumulate_into_wrapper if is_made_of_parts(variable) else _accumulate)(variable, grad, has_post_hooks)


def _usual_count() -> int:
    """How many references Python counts of what the graph's code alone has, two calls further. That is otherwise while
    a frame evaluator is set, as TorchDynamo's is."""
    alone = object()
    return _counted_within(alone)


def _counted_within(value: object) -> int:
    return _counted(value)


def _counted(value: object) -> int:
    return sys.getrefcount(value)


def _is_taken(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Whether the engine would make a gradient the leaf's without a copy: nobody else has it."""
    if torch.is_grad_enabled() or type(grad) is not torch.Tensor or grad.layout is not torch.strided:
        return False
    if variable.grad is not None or sys.getrefcount(grad) > _usual_count():
        return False
    kinds = (grad.dtype, grad.device, grad.shape, grad.stride())
    if kinds != (variable.dtype, variable.device, variable.shape, variable.stride()) or not variable.is_contiguous():
        return False
    alone: bool = grad._use_count() == 1  # type: ignore[attr-defined]
    return alone


def _accumulate(variable: torch.Tensor, grad: Grad, has_post_hooks: bool) -> Grad:
    if grad is not None:
        formula = FORMULAS["AccumulateGrad"]
        (variable.grad,) = formula([grad], variable, variable.grad, has_post_hooks)
    return variable.grad


@disallow_in_graph
def accumulate_into_wrapper(variable: torch.Tensor, grad: Grad, has_post_hooks: bool) -> Grad:
    """Called with a break: in captured code wrappers from outside have no ``grad``."""
    return _accumulate(variable, grad, has_post_hooks)


def call_hook(hook: Hook, value: object, *others: object) -> object:
    """What a hook gives in place of a value; the value itself if it gives None."""
    result = hook(value, *others)
    return value if result is None else result


def call_tensor_hook(hook: Hook, grad: Grad) -> Grad:
    """As `call_hook`. Raises what the engine raises for results that cannot stand for the gradient."""
    result = hook(grad)
    if result is None or result is grad:
        return grad
    name = getattr(hook, "__name__", "<unknown>")
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    if grad is None:
        raise RuntimeError(f"can't replace a None gradient with a non-None value (hook '{name}')")
    if result.dtype is not grad.dtype or result.device != grad.device:
        raise RuntimeError(f"hook '{name}' has changed the type of value")
    if result.shape != grad.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value")
    return result


@disallow_in_graph  # nobody knows what it does
def call_cpp_tensor_hook(hook_id: int, grad: Grad) -> Grad:
    """What a hook in C++ gives in place of a gradient. torch has no way to tell it that there is none: it is not
    called, which is all the same to `retain_grad`."""
    return None if grad is None else torch._C._dynamo.compiled_autograd.call_cpp_tensor_pre_hooks(hook_id, grad)


def call_after_accumulation(hook: Hook, variable: torch.Tensor) -> torch.Tensor:
    """Call a hook on a leaf whose gradient is complete; the leaf."""
    hook(variable)
    return variable


class Real(Protocol):
    """The `ctx` of a custom Function, as autograd has it."""

    _forward_cls: type[Function]
    needs_input_grad: tuple[bool, ...]

    def maybe_clear_saved_tensors(self) -> None: ...


class Context:
    """The `ctx` of a custom Function in its backward. It shares the attributes that the program has put on the real
    one; the saved tensors are values of the graph.
    """

    __slots__ = ("__dict__", "_function", "_real", "needs_input_grad", "saved_tensors")

    def __init__(self, real: Real) -> None:
        self.__dict__ = real.__dict__
        self._real = real
        self._function = real._forward_cls
        self.needs_input_grad = real.needs_input_grad
        self.saved_tensors: tuple[Grad, ...] = ()

    def maybe_clear_saved_tensors(self) -> None:
        """Let go of the saved tensors, unless the graph is retained."""
        self.saved_tensors = ()
        _clear(self._real)

    def __getattr__(self, name: str) -> object:
        return _attribute(self._real, name)


@disallow_in_graph  # the real ctx has attributes that call the program's hooks when they are read
def _attribute(real: Real, name: str) -> object:
    return getattr(real, name)


@disallow_in_graph
def _clear(real: Real) -> None:
    real.maybe_clear_saved_tensors()


def call_backward(context: Context, saved_tensors: Gradients, count: int, *grads: Grad) -> tuple[Grad, ...]:
    """The gradients that a custom Function's backward makes of `grads`. Raises RuntimeError if they are not `count`."""
    cls = context._function
    if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
        raise RuntimeError(f"{cls.__name__} implements both 'backward' and 'vjp': only one of them is allowed")
    function = cls.backward if cls.vjp is Function.vjp else cls.vjp
    given: tuple[object, ...] = ([*grads],) if getattr(cls, "boxed_grads_call", False) else grads
    context.saved_tensors = tuple(saved_tensors)
    results = function(context, *given)
    context.saved_tensors = ()
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    while len(results) > count and results[-1] is None:
        results = results[:-1]
    if len(results) != count:
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients "
            f"(expected {count}, got {len(results)})"
        )
    for result in results:
        if not (result is None or isinstance(result, torch.Tensor)):
            raise RuntimeError(f"expected Variable or None (got {type(result).__name__})")
    return results


def copy_slices_prologue(
    grads: Sequence[torch.Tensor],
    base_sizes: Sequence[Size],
    base_strides: Sequence[Size],
    base_offset: Size,
    view_sizes: Sequence[Size],
    view_strides: Sequence[Size],
    view_offset: Size,
) -> list[torch.Tensor]:
    """Where a view was written in place: the gradient of its base, in the base's layout; the view of it; and a copy of
    that view for the function that was written.
    """
    whole = grads[0].new_empty_strided(base_sizes, base_strides)
    whole.copy_(grads[0])
    part = whole.as_strided(view_sizes, view_strides, view_offset - base_offset)
    return [whole, part, part.clone(memory_format=torch.contiguous_format)]


def copy_slices_epilogue(
    needed: Sequence[bool], whole: torch.Tensor, results: Gradients, part: torch.Tensor
) -> list[Grad]:
    """The gradients behind such a write: of the base, in which the view's has another value, and of other arguments."""
    if needed[0] and results[0] is not None:
        part.copy_(results[0])
        return [whole, *(result if need else None for need, result in zip(needed[1:], results[1:]))]
    return [None, *(result if need else None for need, result in zip(needed[1:], results[1:]))]


def release(inputs: list[torch.Tensor]) -> None:
    """Let go of the inputs: the graph has taken them apart, and forgets each after its last use."""
    inputs.clear()


EFFECTS: frozenset[object] = frozenset(
    (accumulate_grad, call_hook, call_tensor_hook, call_cpp_tensor_hook, call_after_accumulation, call_backward)
    + (copy_slices_prologue, copy_slices_epilogue, release)
)


def has_effects(target: object) -> bool:
    """Whether a call in the graph does more than compute its result."""
    return target in EFFECTS or getattr(target, "is_custom", False)
