"""Graphs that are found on disk run natively from the first call on; their plans are read where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.versions import Versions
from bolide.dynamo.library import marks
from bolide.inductor.plan import codec
from bolide.inductor.runtime.native.linking import Program, Surroundings, Written
from bolide.saving import environment
from bolide.support import artifacts, engine

WEIGHT = torch.randn(6, 4)


def product(x):
    return (x @ WEIGHT).relu() + x.sum(), x.shape[0], None


def in_python(x):
    return x[0] * torch.linspace(0, 1, 6).sin() + x.sum(0)


def drawn(x):
    drawn = F.dropout(torch.ones_like(x), 0.5)
    return x * ((drawn == 0) | (drawn == 2)), x.cumsum(0)


def written(x):
    x.mul_(2)
    return x.view(-1)[3:].sin()


def decided(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))


def refused(x):
    return torch.linalg.cholesky(x @ x.mT - 1e3 * (x[0, 0] > 5)) + 1


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Program]]:
    """The native programs that are made, with a cache on disk."""
    found: list[Program] = []
    real = Written.linked

    def noting(self: Written, around: Surroundings) -> Program:
        found.append(real(self, around))
        return found[-1]

    none: set[object] = set()
    monkeypatch.setattr(marks, "MARKED", none)
    monkeypatch.setattr(environment, "MARKED", none)
    monkeypatch.setenv("BOLIDE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Written, "linked", noting)
    with config.patch(force_disable_caches=False):
        bolide.reset()
        yield found
    bolide.reset()


def compared(function: Callable[..., Any], compiled: Callable[..., Any], x: torch.Tensor) -> None:
    mine, eagers = (x.clone().requires_grad_(x.requires_grad) for _ in range(2))
    outcomes = []
    for call, given in ((compiled, mine), (function, eagers)):
        torch.manual_seed(7)
        results = call(given)
        grads = None
        if x.requires_grad:
            tensors = [each for each in torch.utils._pytree.tree_leaves(results) if isinstance(each, torch.Tensor)]
            grads = torch.autograd.grad(sum(tensor.sum() for tensor in tensors), given)
        outcomes.append((results, given.detach(), grads))
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", [product, in_python, drawn, decided, written])
def test_found_graphs_are_eagers(
    linked: list[Program], monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], grad: bool, dynamic: bool
) -> None:
    sizes = (5, 9) if dynamic else (5, 5)
    grad = grad and function is not written

    def run() -> None:
        compiled = bolide.compile(function, dynamic=dynamic)
        for size in sizes:
            compared(function, compiled, torch.randn(size, 6, requires_grad=grad))

    run()
    assert not linked
    bolide.reset()  # as in another process
    monkeypatch.setattr(Versions, "_make_once", None)
    monkeypatch.setattr(codec, "decode", None) if function is product else None
    run()
    assert [program.runs for program in linked] == [2] * (1 + grad)


def test_inputs_of_other_classes_and_errors_are_as_ever(linked: list[Program]) -> None:
    class Labelled(torch.Tensor):
        pass

    for _ in range(2):
        compiled = bolide.compile(refused)
        good, bad = torch.randn(4, 4).clamp(max=4), torch.full((4, 4), 6.0)
        compared(refused, compiled, good + torch.eye(4))
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(bad)
        compared(refused, compiled, good + torch.eye(4))
        x = torch.randn(5, 6).as_subclass(Labelled)
        torch.testing.assert_close(bolide.compile(product)(x)[0].as_subclass(torch.Tensor), product(x)[0].data)
        bolide.reset()
    assert linked


def test_code_of_another_version_of_bolide_is_not_used(linked: list[Program], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def text() -> str:
        made.append(0)
        return "define i64 @seven() {\n  ret i64 7\n}"

    for _ in range(2):
        engine.load_own("seven", text, ("seven",))
        artifacts.reset()
    assert len(made) == 1
    for name, value in (("sources_digest", lambda: "another"), ("torch.__version__", "9.9")):
        owner = artifacts if name == "sources_digest" else torch
        monkeypatch.setattr(owner, name.rpartition(".")[2], value)
        engine.load_own("seven", text, ("seven",))
    assert len(made) == 3
