"""Running a captured backward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import torch

from bolide.dynamo.compiled_autograd import engine
from bolide.dynamo.compiled_autograd.calls import Context, Real
from bolide.tracing import modes


class _Region(threading.local):
    """Whether this thread runs a captured backward pass."""

    entered = 0


region = _Region()


class Running:
    """What the engine calls with the compiled graph and its arguments, each time that the backward pass fits.

    sizes, scalars: the positions of the numbers that the graph reads; contexts: where in the list of hooks the `ctx` of
    a custom Function stands; complex: the inputs that may be conjugated views.
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        scalars: Sequence[int],
        contexts: Sequence[int],
        complex: Sequence[int],
    ) -> None:
        self.name, self.sizes, self.scalars, self.contexts, self.complex = name, sizes, scalars, contexts, complex

    def __call__(
        self,
        compiled: Callable[..., Sequence[torch.Tensor | None]],
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        hooks: Sequence[object],
        packed: Sequence[object],
    ) -> list[torch.Tensor | None]:
        """The gradients that were asked for; none if they were accumulated."""
        engine.begun()
        numbers = [sizes[index] for index in self.sizes], [scalars[index] for index in self.scalars]
        called = [*hooks]
        for index in self.contexts:
            called[index] = Context(cast(Real, called[index]))
        for index in self.complex:
            if not (inputs[index].is_leaf and inputs[index].requires_grad):  # compilers want them computed
                inputs[index] = inputs[index].resolve_conj()
        region.entered += 1
        checks = torch.is_anomaly_check_nan_enabled() and torch.is_anomaly_enabled()
        leaves = [tensor for tensor in inputs if tensor.is_leaf and tensor.requires_grad] if checks else []
        try:
            with modes.uncaptured, engine.queue():
                results = list(compiled(inputs, *numbers, called, packed))
                engine.call_back()
        finally:
            region.entered -= 1
        if checks:
            self._refuse_nans([*results, *(leaf.grad for leaf in leaves)])
        return results

    def _refuse_nans(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """What anomaly mode asks for. Raises RuntimeError."""
        if any(gradient is not None and bool(torch.isnan(gradient).any()) for gradient in gradients):
            raise RuntimeError(f"{self.name}: Compiled Autograd returned NaN gradients")
