"""Control flow of torch in a program that is run on traced tensors, and not interpreted: `torch.cond` becomes
`bolide::branch`, operators of known length run as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.tracing.called.branches import Part, choose
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.trace import Trace

_operators = torch.ops.higher_order
_EAGER = DispatchKey.CompositeExplicitAutograd
_COMPUTED = (_operators.while_loop, _operators.map_impl, _operators.associative_scan, _operators.flex_attention)
"""Whose eager kernel, in Python, is recorded like the program."""


def _scan(
    combine_fn: Callable[..., Any], init: Sequence[Tensor], xs: Sequence[Tensor], additional_inputs: Sequence[Tensor]
) -> list[Tensor]:
    """The kernel of `scan`: the last carry, and what all steps give, stacked."""
    carry, given = list(init), []
    for items in zip(*[x.unbind(0) for x in xs]):
        results = combine_fn(*carry, *items, *additional_inputs)
        carry = list(results[: len(init)])
        given.append(results[len(init) :])
    return [*carry, *map(torch.stack, zip(*given))]


_WRITTEN: dict[object, Callable[..., Any]] = {
    _operators.scan: _scan,
    _operators.strict_mode: lambda function, operands: function(*operands),
    _operators.hints_wrapper: lambda function, args, kwargs, hints: function(*args, **kwargs),
    _operators.invoke_subgraph: lambda function, _, *operands: function(*operands),
}
"""Operators whose kernel refuses to be recorded."""


@contextmanager
def recording_control_flow(trace: Trace) -> Iterator[None]:
    """While it is active, torch's functions of control flow, called natively, are recorded in `trace`."""
    asked = torch.compiler.is_dynamo_compiling
    torch.compiler.is_dynamo_compiling = lambda: True  # else they would call torch.compile
    try:
        with _Operators(trace):
            yield
    finally:
        torch.compiler.is_dynamo_compiling = asked


class _Operators(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs or {})
        with self:
            if func is _operators.cond:
                return self.cond(*args, **kwargs or {})
            kernel = func.py_kernels[_EAGER] if func in _COMPUTED else _WRITTEN.get(func, func)
            return kernel(*args, **kwargs or {})

    def cond(
        self, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
    ) -> Any:
        """Raises Unsupported for branches that write, draw, or give other tensors each."""
        trace = self.trace
        if type(pred) is not TracedTensor or trace.known(pred) is not None:
            return (true_fn if pred else false_fn)(*operands)
        ways, specs = [], []
        for function in (true_fn, false_fn):
            self.trace = part = Part(trace)
            try:
                with part.alone():
                    results, spec = pytree.tree_flatten(function(*operands))
            finally:
                self.trace = trace
            part.check()
            own = [part.adopt(result) for result in results]
            if not all(type(result) is TracedTensor and part.has_made(result) for result in own):
                raise self._refused("a branch of torch.cond returns what is no new tensor")
            ways.append((part, own))
            specs.append(spec)
        metas = [[result.meta._replace(offset=0, requires_grad=False) for result in own] for _, own in ways]
        if specs[0] != specs[1] or metas[0] != metas[1]:
            raise self._refused(f"the branches of torch.cond give different results: {metas[0]} and {metas[1]}")
        return pytree.tree_unflatten(choose(trace, pred, ways, always=True), specs[0])

    def _refused(self, reason: str) -> Unsupported:
        return Unsupported(reason, self.trace.where, "return new tensors of equal shapes", kind="control_flow")
