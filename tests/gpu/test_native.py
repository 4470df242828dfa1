"""The native driver on a GPU that this machine plays: what is called how, and launches that fail."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_emulated
import pytest
import torch

import bolide
from bolide.dynamo.config import config as options
from bolide.inductor.runtime.native import assemble
from bolide.inductor.runtime.native.linking import Label

OUT_OF_RESOURCES = 701


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The steps that are made in Python while all is well."""
    found: list[object] = []
    made = assemble.Writer.python

    def python(self: assemble.Writer, step: assemble.PythonStep) -> None:
        known = isinstance(step.function, Label)
        found.append(step.function.kind if known else step.function._make.args[2])  # the step of the plan
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


def test_the_seed_of_a_gpu_is_all_that_is_drawn_in_python(in_python) -> None:
    compiled, x = bolide.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x)), torch.ones(400)
    first, second = compiled(x), compiled(x)
    assert 100 < int((first != 0).sum()) < 300 and not torch.equal(first, second)
    assert in_python == ["draw"]


def looked_up_twice(x, i):
    return torch.cond(x.sum() > 1e9, lambda x, i: x[i + 1], lambda x, i: x[i] * 2, (x, i))


LOOKED_UP = {
    "rows": (lambda x, i: x[i] * 2, 1),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x).sin(), 1),
    "gather": (lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])), 1),
    "sums of rows": (lambda x, i: x[i].sum(1), 1),
    "a loss": (lambda x, i: torch.nn.functional.cross_entropy(x.T, i[: x.shape[1]], reduction="none"), None),
    "index_add": (lambda x, i: x.index_add(0, i, x[: i.shape[0]]), None),
    "in a branch": (looked_up_twice, None),
    "in a batch": (lambda x, i: [x[i], (x * 2)[i + 0], torch.cos(x)[i]], None),
    "checks in a batch": (lambda x, i: [x.index_add(0, j, x[: i.shape[0]]) for j in (i, i * 1, i + 0)], None),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_checks_of_indices_are_assertions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch of their own, where what reads there runs over the indices; and each call tells what was wrong."""
    program, launches = LOOKED_UP[name]
    compiled, kernels, launched = bolide.compile(program), [], gpu_emulated.launched

    def noted(kernel, *rest):
        kernels.append(kernel)
        launched(kernel, *rest)

    monkeypatch.setattr(gpu_emulated, "launched", noted)
    for rows, columns, count in ((7, 3, 5), (9, 4, 6), (12, 5, 5)):  # known sizes, then any
        x, i = torch.randn(rows, columns), torch.randint(0, rows - 1, (count,))
        kernels.clear()
        torch.testing.assert_close(compiled(x, i), program(x, i))
        assert not gpu_emulated.failures and (launches is None or len(kernels) == launches), kernels
        i[1] = rows + 1
        compiled(x, i)
        (told,) = gpu_emulated.failures
        gpu_emulated.failures.clear()
        assert "out of" in told
        assert not any(p.dtype == torch.bool for kernel in kernels for p in kernel.params if name != "in a branch")


def test_what_is_out_of_bounds_is_asserted() -> None:
    compiled, x = bolide.compile(lambda x, i: x[i] * 2), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, torch.tensor([3, 1])), x[[3, 1]] * 2)
        assert not gpu_emulated.failures
        compiled(x, torch.tensor([0, 4]))
        assert "out of" in gpu_emulated.failures.pop()
