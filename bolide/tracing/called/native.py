"""Control flow of torch in a program that is run on traced tensors, and not interpreted: `torch.cond` becomes
`bolide::branch`, a loop whose length is data `bolide::repeat`; operators of known length run as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.tracing.called.branches import Part, choose
from bolide.tracing.meta import TensorMeta
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.trace import Trace

Program = Callable[..., Any]  # a function of the program's
_operators = torch.ops.higher_order
_REGIONS = vars(sys.modules["torch._higher_order_ops.invoke_subgraph"])  # the package has the operator by that name
_EAGER = DispatchKey.CompositeExplicitAutograd
_COMPUTED = (_operators.while_loop, _operators.map_impl, _operators.associative_scan, _operators.flex_attention)
"""Whose eager kernel, in Python, is recorded like the program."""


def _scan(
    combine_fn: Program, init: Sequence[Tensor], xs: Sequence[Tensor], additional_inputs: Sequence[Tensor]
) -> list[Tensor]:
    """The kernel of `scan`: the last carry, and what all steps give, stacked."""
    carry, given = list(init), []
    for items in zip(*[x.unbind(0) for x in xs]):
        results = combine_fn(*carry, *items, *additional_inputs)
        carry = list(results[: len(init)])
        given.append(results[len(init) :])
    return [*carry, *map(torch.stack, zip(*given))]


_WRITTEN: dict[object, Program] = {
    _operators.scan: _scan,
    _operators.strict_mode: lambda function, operands: function(*operands),
    _operators.hints_wrapper: lambda function, args, kwargs, hints: function(*args, **kwargs),
    _operators.invoke_subgraph: lambda function, _, *operands: function(*operands),
}
"""Operators whose kernel refuses to be recorded."""


@contextmanager
def recording_control_flow(trace: Trace) -> Iterator[None]:
    """While it is active, torch's functions of control flow, called natively, are recorded in `trace`."""
    asked, region = torch.compiler.is_dynamo_compiling, _REGIONS["invoke_subgraph_placeholder"]
    torch.compiler.is_dynamo_compiling = lambda: True  # else they would call torch.compile
    _REGIONS["invoke_subgraph_placeholder"] = lambda function, *args, **kwargs: function(*args, **kwargs)
    try:
        with _Operators(trace):
            yield
    finally:
        torch.compiler.is_dynamo_compiling, _REGIONS["invoke_subgraph_placeholder"] = asked, region


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
            if func is _operators.while_loop and self.is_data(*args, **kwargs or {}):
                return self.loop(*args, **kwargs or {})
            kernel = func.py_kernels[_EAGER] if func in _COMPUTED else _WRITTEN.get(func, func)
            return kernel(*args, **kwargs or {})

    def cond(self, pred: Any, true_fn: Program, false_fn: Program, operands: Sequence[Any]) -> Any:
        """Raises Unsupported for branches that write, draw, or give other tensors each."""
        trace = self.trace
        if type(pred) is not TracedTensor or trace.known(pred) is not None:
            return (true_fn if pred else false_fn)(*operands)
        (first, spec), (second, other_spec) = [self._recorded(function, operands) for function in (true_fn, false_fn)]
        ways, specs = [first, second], [spec, other_spec]
        metas = [list(map(_carried, own)) for _, own in ways]
        if specs[0] != specs[1] or metas[0] != metas[1]:
            raise self._refused(f"the branches of torch.cond give different results: {metas[0]} and {metas[1]}")
        return pytree.tree_unflatten(choose(trace, pred, ways, always=True), specs[0])

    def is_data(
        self, cond_fn: Program, body_fn: Program, carried: Sequence[object], additional: Sequence[object]
    ) -> bool:
        """Whether data say how often a loop runs."""
        going_on = cond_fn(*carried, *additional)
        return (
            type(going_on) is TracedTensor
            and self.trace.known(going_on) is None
            and all(type(value) is TracedTensor for value in carried)
        )

    def loop(
        self,
        cond_fn: Program,
        body_fn: Program,
        carried: Sequence[TracedTensor],
        additional: Sequence[object],
    ) -> tuple[TracedTensor, ...]:
        """Raises Unsupported for functions that write or draw, and for a step that gives other tensors."""
        from bolide.tracing.called import loops  # of the few programs that have some

        inside = cast(list[TracedTensor], [value.detach() for value in carried])
        parts = [self._recorded(function, [*inside, *additional])[0] for function in (cond_fn, body_fn)]
        if list(map(_carried, carried)) != list(map(_carried, parts[1][1])):
            raise self._refused("a step of while_loop gives other tensors than it was given")
        mine = set(map(id, inside))
        others = {id(operand): operand for part, _ in parts for operand in part.operands if id(operand) not in mine}
        return tuple(loops.looped(self.trace, carried, inside, list(others.values()), parts))

    def _recorded(
        self, function: Program, operands: Sequence[object]
    ) -> tuple[tuple[Part, list[TracedTensor]], pytree.TreeSpec]:
        """The graph of a function, its results, and how they are arranged."""
        outer, part = self.trace, Part(self.trace)
        self.trace = part
        try:
            with part.alone():
                results, spec = pytree.tree_flatten(function(*operands))
        finally:
            self.trace = outer
        part.check()
        own = [part.adopt(result) for result in results]
        if not all(type(result) is TracedTensor and part.has_made(result) for result in own):
            raise self._refused("a function that an operator of control flow calls returns what is no new tensor")
        return (part, own), spec

    def _refused(self, reason: str) -> Unsupported:
        return Unsupported(reason, self.trace.where, "return new tensors of equal shapes", kind="control_flow")


def _carried(tensor: TracedTensor) -> TensorMeta:
    """What stays as it is where a value is one of several."""
    return tensor.meta._replace(offset=0, requires_grad=False)
