"""Errors that a program catches and reads, as loaders and fall-backs do: classes and texts are eager's, with the sizes
of each call, whether these are symbols or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide

FAILING: dict[str, Callable[[Any, Any, int], Any]] = {
    "item": lambda x, y, k: x[k + 20],
    "sum": lambda x, y, k: x + y,
    "sum in place": lambda x, y, k: x.add_(y),
    "product": lambda x, y, k: x @ y,
    "linear": lambda x, y, k: F.linear(x, y),
    "view": lambda x, y, k: x.view(7, -1),
    "reshape": lambda x, y, k: x.reshape(k, k + 1, k),
    "cat": lambda x, y, k: torch.cat([x, y]),
    "stack": lambda x, y, k: torch.stack([x, y]),
    "expand": lambda x, y, k: x.expand(k, 2),
    "where": lambda x, y, k: torch.where(y > 0, x, x),
    "norm": lambda x, y, k: F.layer_norm(x, (k + 9,)),
    "inverse": lambda x, y, k: torch.linalg.inv(x),
    "decomposition": lambda x, y, k: torch.linalg.cholesky(x),
    "scatter": lambda x, y, k: x.scatter(0, torch.zeros(y.shape, dtype=torch.long), x),
    "narrow": lambda x, y, k: x.narrow(0, 0, k + 30),
    "upper part": lambda x, y, k: torch.triu(x[0]),
    "dimension": lambda x, y, k: x.mean(4),
    "classes": lambda x, y, k: F.one_hot(torch.tensor([k]), k),
    "numbers": lambda x, y, k: torch.randint(0, -k, (2,)),
    "largest": lambda x, y, k: x.topk(k + 50),
    "array": lambda x, y, k: x.numpy().reshape(7, 7),
    "list": lambda x, y, k: x.tolist()[k + 30],
}
UNNEEDED: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda x, i: x[i],
    "size": lambda x, i: x[i].shape[0],
    "rows": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(9 * i),
    "written": lambda x, i: x.clone().index_fill_(0, i, 1.0),
    "set": lambda x, i: x.clone().__setitem__(i, 1.0),
    "loss": lambda x, i: F.cross_entropy(x[:1], i),
    "quotient": lambda x, i: i // (i - i.abs()),
    "decomposition": lambda x, i: torch.linalg.cholesky((x.mT @ x) * (9 - i.abs()) - 1e-3),
}
NEGATIVE: dict[str, Callable[[int], Any]] = {
    "zeros": lambda k: torch.zeros(2, -k),
    "ones": lambda k: torch.ones(-k),
    "full": lambda k: torch.full((-k,), 1.0),
    "empty": lambda k: torch.empty(-k),
    "rand": lambda k: torch.rand(-k, 2),
    "randint": lambda k: torch.randint(3, (-k,)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", UNNEEDED)
def test_what_eager_refuses_is_refused_though_nothing_needs_it(name: str, backend: str) -> None:
    def program(x: Any, i: Any) -> Any:
        UNNEEDED[name](x, i)
        return x.sin().sum()

    compiled = bolide.compile(program, backend=backend)
    refused = 0
    for rows, place, grad in ((4, 1, False), (4, 9, False), (5, -9, True), (6, 2, True), (7, 9, True)):
        x, i = torch.randn(rows, 3, requires_grad=grad), torch.tensor([place])
        found, expected = (_caught(call)(x, i) for call in (compiled, program))
        if isinstance(expected, tuple):
            refused += 1
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    assert refused


def _caught(run: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        try:
            return run(*args)
        except Exception as error:
            return type(error), str(error)

    return program


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", FAILING)
def test_caught_errors_say_what_eager_says(name: str, dynamic: bool | None) -> None:
    program = _caught(FAILING[name])
    compiled = bolide.compile(program, dynamic=dynamic)
    for rows, k in ((4, 5), (6, 7), (5, 8), (9, 6)):
        x, y = torch.randn(rows, 3), torch.randn(rows + 1, 2)
        found, expected = compiled(x.clone(), y.clone(), k), program(x.clone(), y.clone(), k)
        assert isinstance(expected, tuple)
        assert found[0] is expected[0]
        assert found[1].removeprefix("one_hot: ") == expected[1].removeprefix("one_hot: ")


@pytest.mark.parametrize("name", NEGATIVE)
def test_negative_sizes(name: str) -> None:
    program = _caught(NEGATIVE[name])
    for k in (3, 5):
        assert bolide.compile(program, dynamic=False)(k) == program(k)


def test_conversions_of_views_with_gaps_have_the_strides_of_eager() -> None:
    program = lambda x: (x.double(), x.half(), x.to(torch.int64), x.clone())  # noqa: E731
    compiled = bolide.compile(program)
    for rows in (3, 5, 2):
        for x in (torch.randn(3, 2, rows).permute(2, 0, 1)[:, :, 1], torch.randn(rows, 6)[:, ::2].t()):
            assert [out.stride() for out in compiled(x)] == [out.stride() for out in program(x)]


@pytest.mark.parametrize("dynamic", [None, True])
def test_derivatives_that_know_no_symbols_are_compiled_for_each_size(dynamic: bool | None) -> None:
    """Their C++ asks for numbers: nothing runs in eager for that (a warning is an error here)."""

    def warped(x: Any, angles: Any) -> Any:
        grid = F.affine_grid(angles, x.shape, align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    scale, zero = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int32)
    rounded = lambda x, y: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 15) * y.sum()  # noqa: E731
    for program, shapes in ((warped, ((2, 5, 6), (2, 3))), (rounded, ((3,), (2,)))):
        compiled = bolide.compile(program, dynamic=dynamic)
        for rows in (3, 5, 2):
            made = [torch.randn(rows, *shape) for shape in shapes]
            ours, theirs = ([x.clone().requires_grad_() for x in made] for _ in range(2))
            found, expected = compiled(*ours), program(*theirs)
            torch.testing.assert_close(found, expected)
            (found**2).sum().backward()
            (expected**2).sum().backward()
            torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs], rtol=1e-4, atol=1e-4)
        assert compiled._bolide.entries, "ran in eager"  # type: ignore[attr-defined]
