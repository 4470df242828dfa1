"""The native driver on a GPU that this machine plays: what is called how, and launches that fail."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_emulated
import pytest
import torch

import bolide
from bolide.dynamo.config import config as options
from bolide.inductor.runtime.native import assemble

OUT_OF_RESOURCES = 701


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The steps that are made in Python while all is well."""
    found: list[object] = []
    made = assemble.Writer.python

    def python(self: assemble.Writer, step: assemble.PythonStep) -> None:
        found.append(step.function._make.args[2])  # the step of the plan
        made(self, step)

    monkeypatch.setattr(assemble.Writer, "python", python)
    gpu_emulated.emulate_native(monkeypatch.setattr)
    bolide.reset()
    with options.patch(suppress_errors=False):
        yield found
    gpu_emulated.answers.clear()
    bolide.reset()


def test_a_launch_that_fails_raises() -> None:
    compiled, x = bolide.compile(lambda x: (x.sin(), x.cumsum(0).cos())), torch.randn(5)
    compiled(x)
    for before in (0, 1):
        gpu_emulated.answers[:] = [0] * before + [OUT_OF_RESOURCES]
        with pytest.raises(Exception, match="could not be launched"):
            compiled(x)
        torch.testing.assert_close(compiled(x), (x.sin(), x.cumsum(0).cos()))


def test_flags_and_numbers_are_fetched(in_python) -> None:
    def program(x, i):
        def body(k, y):
            return k + 1, y * 1.5

        count, y = torch.while_loop(lambda k, y: (k < 3) & (y.sum() < 1e6), body, (torch.zeros((), dtype=i.dtype), x))
        rows = (x > 0).nonzero()
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)), count, y, x[i] + rows.shape[0]

    compiled = bolide.compile(program)
    i = torch.tensor([0, 2])
    for _ in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, i), program(x, i))
    assert not in_python, in_python


def test_what_is_out_of_bounds_is_asserted() -> None:
    compiled, x = bolide.compile(lambda x, i: x[i] * 2), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, torch.tensor([3, 1])), x[[3, 1]] * 2)
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, torch.tensor([0, 4]))
