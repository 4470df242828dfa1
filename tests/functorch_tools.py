"""Tracing a function of tensors by calling it, and comparing its compiled form with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.functorch import GraphInfo, compile_trace, interpret
from bolide.tracing import Trace

Function = Callable[..., Any]


class Compiled:
    """`fn` (tensors to a tensor or a tuple of tensors) compiled for inputs like `inputs`.

    The graphs that were compiled are kept in `graphs`, by kind.
    """

    def __init__(self, fn: Function, inputs: Sequence[torch.Tensor], partition: Any = "min_cut") -> None:
        self.graphs: dict[str, Any] = {}
        trace = Trace()
        traced = [trace.input(tensor, f"x{index}") for index, tensor in enumerate(inputs)]
        with trace.recording():
            out = fn(*traced)
        self.single = isinstance(out, torch.Tensor)
        outs = [out] if self.single else list(out)
        self.run = compile_trace(
            trace, outs, forward_compiler=self._compile, backward_compiler=self._compile, partition=partition
        )

    def _compile(self, module: Any, info: GraphInfo) -> Any:
        module.graph.lint()
        self.graphs[info.kind] = module
        return interpret(module, info)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        out = self.run(list(inputs))
        return out[0] if self.single else tuple(out)


def fresh(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same layout, as leaves."""
    return [clone_like(tensor) for tensor in tensors]


def clone_like(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.detach().as_strided((tensor.untyped_storage().size() // tensor.element_size(),), (1,), 0).clone()
    copy = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
    copy = torch.nn.Parameter(copy) if isinstance(tensor, torch.nn.Parameter) else copy
    return copy.requires_grad_(tensor.requires_grad)


def assert_same(actual: Any, expected: Any, strides: bool = True, **tolerance: Any) -> None:
    """Equal values, dtype, strides and requires_grad."""
    if expected is None:
        assert actual is None
        return
    assert actual is not None
    torch.testing.assert_close(
        actual, expected, equal_nan=True, check_stride=strides and expected.numel() > 0, **tolerance
    )
    assert actual.requires_grad == expected.requires_grad
    assert actual.is_leaf == expected.is_leaf


def flat(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else list(out)


def gradients(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], seed: int = 0) -> list[Any]:
    """Gradients of a random weighting of the differentiable outputs, for the inputs that require grad."""
    generator = torch.Generator().manual_seed(seed)
    roots = [out for out in outputs if out.grad_fn is not None or any(out is tensor for tensor in inputs)]
    roots = [out for out in roots if out.requires_grad]
    weights = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in roots]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))


def check(
    fn: Function, inputs: Sequence[torch.Tensor], *, partition: Any = "min_cut", make: Any = Compiled, **tolerance: Any
) -> Any:
    """Outputs, writes to inputs and gradients of the function that `make` compiles are eager's, twice."""
    compiled = make(fn, fresh(inputs), partition)
    for repetition in range(2):
        ours, eager = fresh(inputs), fresh(inputs)
        actual, expected = flat(compiled(*ours)), flat(fn(*eager))
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            assert_same(one, other, **tolerance)
        same_objects(actual, ours, expected, eager)
        for one, other in zip(ours, eager):
            torch.testing.assert_close(one, other, equal_nan=True, **tolerance)
            assert one.is_inference() or one._version > 0 or other._version == 0
        if torch.is_grad_enabled() and any(out.requires_grad for out in expected):
            for one, other in zip(gradients(actual, ours, repetition), gradients(expected, eager, repetition)):
                assert_same(one, other, strides=False, **tolerance)  # ours are laid out as the leaf is
    return compiled


def same_objects(actual: Sequence[Any], ours: Sequence[Any], expected: Sequence[Any], eager: Sequence[Any]) -> None:
    """Identities and shared memory among outputs and inputs are the same on both sides."""
    left, right = [*actual, *ours], [*expected, *eager]
    for i in range(len(left)):
        for j in range(i):
            assert (left[i] is left[j]) == (right[i] is right[j]), (i, j)
            assert shares(left[i], left[j]) == shares(right[i], right[j]), (i, j)


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@torch.library.custom_op("bolide_tests::underived", mutates_args=())
def underived(x: torch.Tensor) -> torch.Tensor:
    """An operator without a derivative."""
    return x * 3


@underived.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# ---- programs: what they give, and what they write ------------------------------------------------------------------

VIEWS = {
    "input_itself": lambda x: x,
    "input_and_more": lambda x: (x, x * 2, x),
    "view_of_input": lambda x: x.view(-1),
    "views_of_input": lambda x: (x.t(), x[1:], x * 3, x.t()),
    "detached_input": lambda x: (x.detach(), x * 2),
    "same_twice": lambda x: (y := x * 2, y),
    "equal_twice": lambda x: (x * 2, x * 2),
    "view_of_output": lambda x: (y := x * 2, y.view(-1)),
    "two_views_of_hidden": lambda x: ((y := x * 2).t(), y[0]),
    "split": lambda x: (x * 2).chunk(2),
    "detached_output": lambda x: (y := x * 2, y.detach()),
    "one_view": lambda x: (x * 2).t(),
    "gappy_view": lambda x: (x * 2)[:, ::2],
    "expanded": lambda x: x.sum(0).expand(3, 4),
    "clone": lambda x: x.clone(),
    "clone_view": lambda x: x.clone().view(-1),
    "integers": lambda x: (x > 0, x.argmax(), x * 2),
    "no_grad_inside": lambda x: _no_grad(x),
    "transposed_result": lambda x: x.t() * 2,
    "constant": lambda x: (torch.arange(4), x + torch.ones(4)),
    "copied_into_fresh": lambda x: torch.empty(2, 4).copy_(x),
    "only_detached": lambda x: x.detach() * 2,
    "unused": lambda x: torch.zeros(3),
    "dropped_view_write": lambda x: _write_view(x * 2),
    "alias_written": lambda x: _write_alias(x * 2),
}


def _no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y + x
        v = y.view(-1)
    return y, z, v


def _write_view(y):
    y[0].mul_(3)
    return y.sin()


def _write_alias(y):
    v = y.view(-1)
    v.add_(1)
    return y, v


WRITES = {
    "add": lambda x, w: (x.add_(1), x * w),
    "before_and_after": lambda x, w: ((x * 2).sum() * w, x.mul_(2), x.sum() * w),
    "through_view": lambda x, w: (x.view(-1)[2:].zero_(), x * w),
    "returns_input": lambda x, w: (x.copy_(w.detach()), w * 2),
    "swap": lambda x, w: (x.copy_(x.flip(0)), w * 2),
    "fill": lambda x, w: (x.fill_(3.0)[0], w * 2),
}


NON_LEAF_WRITES = {
    "with_history": lambda x: (x.mul_(2).sin(), x),
    "without": lambda x: (_without_grad(x), x.exp()),
    "through_a_view": lambda x: (x.view(-1)[1:].mul_(3), x.sum()),
}


def _without_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x.sin()
