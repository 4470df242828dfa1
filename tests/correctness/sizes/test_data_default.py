"""Numbers and sizes that are data, with the options as they are: symbols, and breaks only where they are needed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import BolideWarning


def segments_and_breaks(run: Callable[[], Any]) -> tuple[int, list[str]]:
    """How many segments `run` captures, and the kinds of the breaks that it meets."""
    met: list[Any] = []
    with events.subscribed(met.append):
        run()
    return sum(type(e) is events.Captured for e in met), [e.kind for e in met if type(e) is events.Break]


def masked(x: Tensor) -> Any:
    return x[x > 0].pow(3).sum()


def counted(x: Tensor) -> Any:
    return (x * (x > 0).sum().item()).pow(2).sum()


def averaged(x: Tensor) -> Any:
    return x.tanh().sum() * x.mean().item(), x.mean().item()


def gathered(x: Tensor) -> Any:
    places = torch.nonzero(x[:, 0] > 0).squeeze(1)
    return torch.zeros_like(x).index_add(0, places, x[places].exp())


def in_groups(x: Tensor) -> Any:
    """Bounds of slices that are tensors of one integer, as in a mixture of experts."""
    counts = torch.histc(x[:, 0], bins=3, min=-1, max=1).to(torch.int32)
    ends = torch.cat((torch.zeros(1, dtype=torch.long), torch.cumsum(counts, 0)))
    sums = [x[ends[group] : ends[group + 1], 1:].exp().sum(0) * (group + 1) for group in range(3)]
    return torch.stack(sums), x[-ends[3:] :].sum(), x[: -ends[1]].cos().sum(0)


PROGRAMS = [masked, counted, averaged, gathered, in_groups]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_version_and_no_break(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program, dynamic=True)
    captured = []
    for rows in (4, 5, 7):
        x = torch.randn(rows, 3)
        found, breaks = segments_and_breaks(lambda x=x: torch.testing.assert_close(compiled(x), program(x)))
        assert not breaks
        captured.append(found)
    assert captured == [1, 0, 0]


def test_gradients_of_slices_whose_bounds_are_tensors() -> None:
    compiled = bolide.compile(in_groups, fullgraph=True)
    for rows in (4, 4, 5, 7, 9):
        x = torch.randn(rows, 3, dtype=torch.float64)
        found = []
        for function in (compiled, in_groups):
            leaf = x.clone().requires_grad_()
            results = function(leaf)
            sum(result.sin().sum() for result in results).backward()
            found.append((*results, leaf.grad))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("program", [masked, counted, gathered], ids=lambda p: p.__name__)
def test_second_derivatives(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        both = []
        for function in (compiled, program):
            (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            both.append((first, *torch.autograd.grad(first.square().sum(), x)))
        torch.testing.assert_close(*both)


def test_the_break_is_where_the_number_has_to_be_known() -> None:
    def program(x: Tensor) -> Any:
        n = (x > 0).sum().item()
        y = x.new_zeros(n, 2) + x.sum()
        for trip in range(n):
            y = y * 2 + trip
        return y.sum() + n

    compiled = bolide.compile(program)
    x = torch.tensor([1.0, -1.0, 2.0, 3.0, -2.0])
    captured, breaks = segments_and_breaks(lambda: compiled(x))
    assert breaks[0] == "data_value" and captured >= 2
    for _ in range(5):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize(
    ("function", "bad"),
    [
        (lambda v: 1 / v, 0.0),
        (lambda v: v // v, 0.0),
        (lambda v: v**-1, 0.0),
        (lambda v: math.log(v), 0.0),
        (lambda v: math.sqrt(v), -1.0),
        (lambda v: math.exp(v), 1000.0),
    ],
)
def test_what_python_refuses_of_a_float_is_refused(function: Callable[[float], float], bad: float) -> None:
    def program(x: Tensor) -> Any:
        return x * function(x.sum().item())

    compiled = bolide.compile(program)
    for value in (1.5, 2.0, bad, 0.5):
        x = torch.tensor([value], dtype=torch.float64)
        try:
            expected = program(x)
        except (ArithmeticError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected)


def test_parts_whose_sizes_are_data() -> None:
    def program(x: Tensor, sizes: Tensor) -> Any:
        return torch.cat([part.cumsum(0) * (i + 1) for i, part in enumerate(x.split(sizes.tolist()))])

    compiled = bolide.compile(program)
    for sizes in ([3, 4, 5], [4, 4, 4], [0, 2, 10], [12, 0, 0], [5, 2, 5]):
        x, given = torch.randn(12, 3, requires_grad=True), torch.tensor(sizes)
        both = [(f(x, given), *torch.autograd.grad(f(x, given).square().sum(), x)) for f in (compiled, program)]
        torch.testing.assert_close(*both)
    with pytest.raises(RuntimeError, match="split_with_sizes expects"):
        compiled(torch.randn(12, 3), torch.tensor([5, 5, 5]))


def test_an_operator_whose_derivative_reads_data_is_no_break() -> None:
    library = torch.library.Library("bolide_test_derivative", "FRAGMENT")
    library.define("scaled(Tensor x, Tensor ends) -> Tensor")
    library.impl("scaled", lambda x, ends: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("bolide_test_derivative::scaled", lambda x, ends: torch.empty_like(x), lib=library)

    def backward(ctx: Any, gradient: Tensor) -> Any:
        result, start = torch.zeros_like(gradient), 0
        for end in ctx.ends.tolist():
            if start != end:
                result[start:end] = gradient[start:end] * 2
            start = end
        return result, None

    torch.library.register_autograd(
        "bolide_test_derivative::scaled",
        backward,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "ends", inputs[1]),
        lib=library,
    )

    def program(x: Tensor, ends: Tensor) -> Any:
        return torch.ops.bolide_test_derivative.scaled(x.sin(), ends).cos() * 2

    compiled = bolide.compile(program, fullgraph=True)
    for ends in ([2, 6], [1, 6], [6, 6]):
        x, given = torch.randn(6, requires_grad=True), torch.tensor(ends)
        both = [(f(x, given), *torch.autograd.grad(f(x, given).sum(), x)) for f in (compiled, program)]
        torch.testing.assert_close(*both)
    assert len(compiled._bolide.entries) == 1


def test_data_that_seldom_are_as_assumed_are_no_symbols_any_more() -> None:
    def program(x: Tensor) -> Any:
        n = int((x > 0).sum())
        torch._check(n <= 2)
        return x * n

    compiled = bolide.compile(program)
    compiled(-torch.ones(5))
    for _ in range(6):
        with pytest.raises(RuntimeError):
            compiled(torch.ones(5))
    torch.testing.assert_close(compiled(-torch.ones(5)), torch.zeros(5))


TENSORS_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "tensor": torch.tensor,
    "as_tensor": torch.as_tensor,
    "scalar_tensor": torch.scalar_tensor,
    "scalar_tensor of a type": lambda n: torch.scalar_tensor(n, dtype=torch.float64),
    "in a list": lambda n: torch.tensor([n, n]),
    "new_tensor": lambda n: torch.ones(2).new_tensor(n),
    "times": lambda n: torch.ones(2) * n,
    "times an integer": lambda n: torch.tensor(3, dtype=torch.int32) * n,
    "power": lambda n: torch.pow(torch.ones(2), n),
    "bound": lambda n: torch.clamp(torch.ones(2), max=n),
    "filled": lambda n: torch.full((2,), n),
    "filled anew": lambda n: torch.ones(2).fill_(n),
    "spaced": lambda n: torch.linspace(0, n, 3),
    "chosen": lambda n: torch.where(torch.ones(2) > 0, n, 2.0),
    "computed": lambda n: torch.tensor(n + 1),
    "compared": lambda n: (torch.tensor(n == 1), torch.tensor([n == 1, True]), torch.scalar_tensor(n == 1)),
    "in a larger program": lambda n: torch.rand(3).fill_(1).cumsum(0).mul(n).sum() * torch.tensor(n) + len(str(3)),
}


def numbers_given() -> list[Tensor]:
    """Numbers in tensors of every type and of other shapes than that of a number."""
    floats = [torch.tensor([[1.5]]), torch.tensor([2.5], dtype=torch.float64), torch.tensor([0.25]).half()]
    whole = [torch.tensor([[[5]]], dtype=torch.int32), torch.tensor(3)]
    return [*floats, torch.tensor(0.5), torch.tensor([[1.5]]) * 3, *whole, torch.tensor([True])]


@pytest.mark.parametrize("captures", [None, True])
@pytest.mark.parametrize("name", TENSORS_OF_NUMBERS)
def test_a_number_of_a_tensor_is_a_number_whatever_its_shape(name: str, captures: bool | None) -> None:
    make = TENSORS_OF_NUMBERS[name]

    def program(x: Tensor) -> Any:
        return make(x.item())

    with config.patch(capture_scalar_outputs=captures):
        compiled = bolide.compile(program)
        for given in numbers_given():
            found, expected = compiled(given), program(given)
            torch.testing.assert_close(found, expected)


def drawn(x: Tensor) -> list[int]:
    return [int(torch.randint(0, x.shape[-2] - 11, (1,)).item()), int(torch.randint(x.shape[-1] - 11, (2,))[1])]


def drawn_at_once(x: Tensor) -> list[int]:
    return torch.randint(1, x.shape[-1] - 11, (2, 1)).flatten().tolist()


@pytest.mark.parametrize("draw", [drawn, drawn_at_once], ids=lambda draw: draw.__name__)
def test_what_is_cropped_at_a_place_that_is_drawn_has_a_known_size(draw: Callable[[Tensor], list[int]]) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def cropped(x: Tensor, top: int, left: int) -> Tensor:
        cut = x[..., top : top + 12, left : left + 12]
        assert cut.shape[-2:] == (12, 12)
        return layers(cut)  # type: ignore[no-any-return]

    def program(x: Tensor) -> Any:
        top, left = draw(x)
        return cropped(x, top, left), top, left

    compiled = bolide.compile(program, fullgraph=True)
    for rows, size in ((2, 16), (3, 16), (4, 20)):
        x = torch.randn(rows, 3, size, size, requires_grad=True)
        found, *place = compiled(x)
        for ours, eager in zip((found, *gradients(found, x)), (cropped(x, *place), *gradients(cropped(x, *place), x))):
            torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4)


def gradients(result: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(result.pow(3).sum(), x)


@pytest.mark.parametrize("space", ["bolide_kept", "torchvision"])
@pytest.mark.parametrize("symbols", [True, False])
def test_sizes_that_a_fake_says_are_data_are_symbols(space: str, symbols: bool) -> None:
    """Also of a library whose kernels are asked with zeros; of one or two results, among sizes that are known or not;
    without symbols it is a break."""
    with torch.library._scoped_library(space, "FRAGMENT") as library:
        library.define("places(Tensor x) -> Tensor")
        library.define("apart(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor)")
        library.impl("places", lambda x: (x >= 0).nonzero()[:, 0], "CPU")
        library.impl("apart", lambda x, y: (x[x >= 0], torch.cat([x[x < 0], y])[None], x + 1), "CPU")

        def fake(x: Tensor) -> Tensor:
            return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)

        def fake_of_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            new = torch.library.get_ctx().new_dynamic_size
            return x.new_empty(new()), x.new_empty(1, new(min=2)), torch.empty_like(x)

        torch.library.register_fake(f"{space}::places", fake, lib=library)
        torch.library.register_fake(f"{space}::apart", fake_of_two, lib=library)
        ops = getattr(torch.ops, space)

        def program(x: Tensor) -> Any:
            found = ops.places(x * 2)
            left, right, more = ops.apart(x[found], x)
            return x[found] * 2, found + 1, left + 1, right.flatten() * left.shape[0], more[: len(left)]

        def run() -> None:
            compiled = bolide.compile(program)
            for n in (6, 9, 7, 20, 12):
                x = torch.randn(n)
                torch.testing.assert_close(compiled(x), program(x))
            torch.testing.assert_close(compiled(-x.abs()), program(-x.abs()))

        with config.patch(capture_dynamic_output_shape_ops=None if symbols else False), warnings.catch_warnings():
            warnings.simplefilter("error", BolideWarning)
            versions, breaks = segments_and_breaks(run)
        assert (versions, breaks) == (2, []) if symbols else "data_shape" in breaks


def test_a_fake_whose_sizes_no_result_has_is_a_break() -> None:
    with torch.library._scoped_library("bolide_kept", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x[x > 0].repeat(2), "CPU")

        def fake(x: Tensor) -> Tensor:
            return x.new_empty(2 * torch.library.get_ctx().new_dynamic_size())

        torch.library.register_fake("bolide_kept::twice", fake, lib=library)

        def program(x: Tensor) -> Tensor:
            return torch.ops.bolide_kept.twice(x * 2) + 1

        def run() -> None:
            compiled = bolide.compile(program)
            for n in (6, 9, 7):
                x = torch.randn(n)
                torch.testing.assert_close(compiled(x), program(x))

        assert set(segments_and_breaks(run)[1]) == {"data_shape"}
