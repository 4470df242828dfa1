"""Function modes around compiled functions and in them: results, gradients, and what the modes see, are eager's."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily
from torch.utils import _pytree as pytree

import bolide
from bolide.support.errors import Unsupported

Program = Callable[[torch.Tensor], Any]


class Noting(TorchFunctionMode):
    """Notes what it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(f"{func.__name__}({', '.join(t.__name__ for t in types)})")
        return func(*args, **(kwargs or {}))


class Scaling(TorchFunctionMode):
    """Lets sums be a multiple of themselves."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func in (torch.Tensor.add, torch.add) else result


class Again(TorchFunctionMode):
    """Asks itself about other functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            with self:
                return torch.cos(*args)
        return torch.exp(*args) if func is torch.cos else func(*args, **(kwargs or {}))


class Silent(BaseTorchFunctionMode):
    pass


class Swapped(torch.Tensor):
    """A subclass that subtracts where it is to add."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.sub if func is torch.Tensor.add else func
        return super().__torch_function__(func, types, args, kwargs or {})


def layers(x: torch.Tensor) -> Any:
    y = F.relu(torch.sin(x) + 1) * x.shape[0]
    y = F.softmax(F.dropout(F.layer_norm(y, (3,)), 0.0), 1) * 2
    y[0] = 1
    return y.sum(), y.T, len(x), torch.zeros(2) + 1, x.dtype, [row.sum() for row in y[:2]]


def noted(x: torch.Tensor) -> Any:
    with Noting() as mode:
        result = layers(x)
    return result, mode.seen


def nested(x: torch.Tensor) -> Any:
    with Scaling(2.0), Noting() as mode:
        y = x + 1
        with _pop_mode_temporarily() as popped:
            z = y + 1
        return y * z, _get_current_function_mode() is mode is popped, mode.seen


def without_gradients(x: torch.Tensor) -> Any:
    with Noting() as mode, torch.no_grad():
        y = x * 2
    return y + x, mode.seen


def asks_itself(x: torch.Tensor) -> Any:
    with Again(), Silent():
        return torch.sin(x)


def mapped(x: torch.Tensor) -> Any:
    with Noting() as mode:
        return torch.vmap(lambda row: torch.sin(row) + 1)(x), mode.seen


def switched_off(x: torch.Tensor) -> Any:
    with Scaling(3.0):
        with torch._C.DisableTorchFunction():
            y = x + 1
        with torch._C.DisableTorchFunctionSubclass():
            return y, x + 1


def of_a_subclass(x: torch.Tensor) -> Any:
    with Noting() as mode:
        y = x.as_subclass(Swapped) + 1
    with torch._C.DisableTorchFunctionSubclass():
        z = x.as_subclass(Swapped) + 1
    return y.as_subclass(torch.Tensor), z.as_subclass(torch.Tensor), mode.seen


def raised(x: torch.Tensor) -> Any:
    with contextlib.suppress(ValueError), Scaling(2.0):
        y = x + 1
        raise ValueError
    return x + 1, y


def broken(x: torch.Tensor) -> Any:
    with Noting() as mode:
        y = x + 1
        bolide.graph_break()
        with Scaling(2.0):
            z = y + 1
            bolide.graph_break()
            z = z + 1
    return z + 1, mode.seen


PROGRAMS = [layers, noted, nested, without_gradients, asks_itself, mapped, switched_off, of_a_subclass, raised, broken]


def outcome(function: Program, x: torch.Tensor, around: TorchFunctionMode | None) -> list[Any]:
    """The results, the gradient, and what the mode around has seen."""
    x = x.clone().requires_grad_()
    with around or contextlib.nullcontext():
        results = pytree.tree_leaves(function(x))
    floats = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    gradient = torch.autograd.grad(sum(leaf.sum() for leaf in floats), x)[0]
    return [*results, gradient, *getattr(around, "seen", ())]


@pytest.mark.parametrize("around", [None, Noting, lambda: Scaling(2.0)], ids=["alone", "noting", "scaling"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_modes_are_captured(program: Program, around: Callable[[], TorchFunctionMode] | None) -> None:
    compiled = bolide.compile(program, fullgraph=program is not broken)
    for rows in (4, 4, 5, 6):
        x = torch.randn(rows, 3, dtype=torch.float64)  # a norm of three numbers may magnify rounding much
        want, got = (outcome(f, x, around and around()) for f in (program, compiled))
        assert len(want) == len(got) and not torch._C._len_torch_function_stack()
        for a, b in zip(got, want):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b)
            else:
                assert a == b


@contextlib.contextmanager
def entered(*around: TorchFunctionMode) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for mode in around:
            stack.enter_context(mode)
        yield


def test_modes_around_are_guarded() -> None:
    compiled = bolide.compile(lambda x: x + 1, fullgraph=True)
    x = torch.randn(3)
    stacks = [(), (Scaling(2.0),), (Scaling(3.0),), (Scaling(2.0), Silent()), (Silent(), Scaling(5.0)), (), (Silent(),)]
    for _ in range(2):
        for around in stacks:
            with entered(*around):
                got, want = compiled(x), x + 1
            assert torch.equal(got, want)
    one = Scaling(2.0)
    for factor in (2.0, 4.0, 7.0):
        one.factor = factor
        with one:
            torch.testing.assert_close(compiled(x), x + 1)


def test_a_default_device_is_where_tensors_are_made() -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            inner = torch.ones(3), torch.zeros(2, device="cpu") + 1
        return inner, torch.ones(2), x + 1, torch.get_default_device().type

    compiled = bolide.compile(fn, backend="eager", fullgraph=True)
    x = torch.randn(3)
    for device in ("cpu", "meta", "cpu"):
        with torch.device(device):
            want, got = fn(x), compiled(x)
        for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
            assert (a == b) if isinstance(a, str) else a.device == b.device and a.shape == b.shape


def test_modes_of_torchs_own_are_refused_by_name() -> None:
    class Foreign(TorchFunctionMode):
        pass

    Foreign.__torch_function__ = classmethod(lambda *given: None)  # type: ignore[assignment, method-assign]
    compiled = bolide.compile(lambda x: x + 1, fullgraph=True)
    with Foreign(), pytest.raises(Unsupported, match=r"not captured.*Foreign"):
        compiled(1)


def test_masks_of_attention_are_built_by_the_mode_of_transformers() -> None:
    """`TransformGetItemToIndex`: inside of `vmap`, `x[i]` reads by a tensor of indices."""
    tracing = "torch._dynamo._trace_wrapped_higher_order_op"
    mode = importlib.import_module(tracing).TransformGetItemToIndex

    def program(scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        def score(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            return torch.where(groups[row] == groups[column], scores[row, column] * scores[0, 1], -row)

        places = torch.arange(len(scores))
        with mode():
            return torch.vmap(torch.vmap(score, in_dims=(None, 0)), in_dims=(0, None))(places, places)

    compiled = bolide.compile(program, fullgraph=True)
    for size in (5, 7, 4, 9):
        groups = torch.randint(3, (size,))
        ours, theirs = (x.requires_grad_() for x in [torch.randn(size, size)] for x in (x.clone(), x))
        want, got = program(theirs, groups), compiled(ours, groups)
        torch.testing.assert_close(got, want)
        weights = torch.randn_like(want)
        got.backward(weights), want.backward(weights)
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(compiled._bolide.entries) <= 2
