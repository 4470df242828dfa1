"""A trace: a recorder that knows how each operation is recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention

from bolide.symbolic import Expr
from bolide.tracing.meta import found_in
from bolide.tracing.numbers import data, forms, scalars
from bolide.tracing.operations import HANDLERS, factories, generators, kinds, primitives, writes
from bolide.tracing.operations.registry import Handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.tensor import TracedTensor


class Trace(Recorder):
    """The graph of a program, or of a part of one (see `Recorder`)."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes.scalar = functools.partial(scalars.of_size, self)
        self.shapes.require = functools.partial(data.check, self)
        self.shapes.fits = functools.partial(data.fits, self)

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record what torch's dispatcher hands us: an operation, below autograd and autocast."""
        if (device := kwargs.get("device")) is not None and device.type == "cuda" and device.index is None:
            kwargs = {**kwargs, "device": torch.device("cuda", torch.cuda.current_device())}
        factories.refuse_overflow(self, func, args, kwargs)
        if self.derivation.running:
            writes.refuse_slope(func, args)
        if self.shapes.has_floats and (result := forms.with_tensors(self, func, args, kwargs)) is not NotImplemented:
            return result
        if (generator := generators.find(args, kwargs)) is not None:
            return generators.draw(self, generator, func, args, kwargs)
        if self.zeros and (result := factories.of_zeros(self, func, args, kwargs)) is not NotImplemented:
            return result
        if self.decompositions and (result := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return result
        if self.compliant_only:
            kinds.refuse_unless_compliant(self, func)
        handler = HANDLERS.get(func)
        if handler is None:
            handler = HANDLERS[func] = kinds.classify(func)
        if self.differentiates and not torch.is_grad_enabled() and not kinds.has_own_derivative(func):
            return self._cut_off(handler, func, args, kwargs)
        return handler(self, func, *args, **kwargs)

    def _cut_off(self, handler: Handler, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation that no derivative goes through (``meta["cut"]``). What is written keeps its history:
        that of another node (``meta["keeps"]``)."""
        last = self.graph._root._prev
        own = found_in((args, kwargs), TracedTensor) if func._schema.is_mutable else []
        before = {id(tensor): tensor.value for tensor in own if tensor.requires_grad}
        result = handler(self, func, *args, **kwargs)
        node, made = self.graph._root._prev, set()
        while node is not last and node.op != "root":
            if "again" not in node.meta:
                node.meta["cut"] = True
                made.add(node)
            node = node._prev
        given = found_in((args, kwargs), TracedTensor)
        for output in found_in(result, TracedTensor):
            if any(output is tensor for tensor in given):
                # written, and what it was made of goes on as if it were not
                old, value = before.get(id(output)), output.value
                if old is not None and value in made and not output.chain and output.group.source is None:
                    value.meta["keeps"] = old
                    del value.meta["cut"]  # a derivative goes through it, and none through what is detached of it
                    self.derivation.own = True
                else:
                    self.derivation.lost |= output.requires_grad
            elif any(output.group is tensor.group for tensor in given):
                output.cut = True
        return result

    def fitting(self, expr: Expr) -> Expr:
        return expr if self.shapes.closed else data.fitting(self, expr)

    def scalar(self, tensor: TracedTensor) -> scalars.TracedFloat:
        """A float of the graph, which is in a tensor of one element."""
        return scalars.of_tensor(self, tensor)

    def perform(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call one of torch's functions, or an operator, for the program."""
        args, kwargs = forms.for_derivatives(function, args, kwargs)
        if function is scaled_dot_product_attention and not torch._C._len_torch_function_stack():
            from bolide.tracing.recording import masks  # of programs with attention

            args, kwargs = masks.without_mask(self.constants, args, kwargs)
        if forward_ad._current_level >= 0:
            function, args, kwargs = forms.with_scalars(function, args, kwargs), (), {}
        if not self.shapes.hints:
            return function(*args, **kwargs)
        try:
            return primitives.call(function, args, kwargs)
        except Exception:
            self.shapes.rely_on_messages()
            raise
        finally:
            self.shapes.said.clear()


def decomposed(trace: Trace, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the trace's decomposition of an operation records; NotImplemented if it has none. PyTorch's own are written
    in primitives, too: these are recorded as the ATen operations that they are made of."""
    decomposition = trace.decompositions.get(func)
    if decomposition is not None:
        with trace.recording():
            return decomposition(*args, **kwargs)
    if getattr(func, "namespace", "") != "prims" or not hasattr(func, "impl_aten"):
        return NotImplemented
    table, trace.decompositions = trace.decompositions, {}
    try:
        with trace.recording():
            return func.impl_aten(*args, **kwargs)
    finally:
        trace.decompositions = table
