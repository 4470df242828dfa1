"""Checks of indices lie in the kernels that use the indices: no reduction, no kernel of their own, errors of eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import bolide
from bolide.inductor import compile_graph, config
from bolide.inductor.ir.loops import Init, Store
from bolide.inductor.ir.walks import statements
from bolide.inductor.machine import host_machine
from tests.schedule_tools import graph_of

Make = Callable[[int], list[torch.Tensor]]


def below(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(-size, size, shape)


#: The program, its arguments for a size, and the places of those that are indices.
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Make, tuple[int, ...]]] = {
    "take": (lambda x, k: x[k] * 2, lambda n: [torch.randn(50), below(50, n)], (1,)),
    "take, reduced": (
        lambda x, k, y: (x[k] + y).sum(-1),
        lambda n: [torch.randn(50), below(50, n, 33), torch.randn(n, 33)],
        (1,),
    ),
    "gather": (lambda x, k: x.gather(1, k) + 1, lambda n: [torch.randn(n, 40), below(40, n, 21).abs() % 40], (1,)),
    "places": (lambda x, i, j: x[i, j].softmax(0), lambda n: [torch.randn(9, 7), below(9, n), below(7, n)], (1, 2)),
    "doubles": (lambda x, k: x[k].exp(), lambda n: [torch.randn(50).double(), below(50, n)], (1,)),
    "short floats": (lambda x, k: x[k] * x.sum(), lambda n: [torch.randn(50).bfloat16(), below(50, n, 5)], (1,)),
    "bytes": (lambda x, k: x[k], lambda n: [torch.randint(0, 99, (50,), dtype=torch.int8), below(50, n)], (1,)),
    "index of 32 bits": (lambda x, k: x[k] - 1, lambda n: [torch.randn(50), below(50, n).int()], (1,)),
    "computed index": (lambda x, k, m: x[k + m] * 3, lambda n: [torch.randn(50), below(20, n), below(5, n)], (1, 2)),
    "rows": (lambda x, k: x[k], lambda n: [torch.randn(50, 24), below(50, n)], (1,)),
    "transposed": (lambda x, k: x[k].t().contiguous(), lambda n: [torch.randn(50), below(50, n, 40)], (1,)),
    "loss": (
        lambda x, k: torch.nn.functional.cross_entropy(x, k),
        lambda n: [torch.randn(n, 11), torch.randint(0, 11, (n,))],
        (),
    ),
}
#: Programs whose only kernel checks as well.
ALONE = ("take", "take, reduced", "gather", "doubles", "short floats", "bytes", "index of 32 bits", "computed index")


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_errors_are_eagers(name: str) -> None:
    """With changing sizes, by the readable driver and by the native one; the error of one call leaves others alone."""
    function, make, indices = PROGRAMS[name]
    compiled = bolide.compile(function, dynamic=True)
    for size in (6, 17, 70, 1):
        args = make(size)
        for _ in range(config.native_after + 2 if size == 17 else 1):
            torch.testing.assert_close(compiled(*args), function(*args))
        for place in indices:
            for bad in (1000, -1000):
                wrong = [arg.clone() for arg in args]
                flat = wrong[place].view(-1)
                flat[torch.randint(0, flat.numel(), ())] = bad
                with pytest.raises((IndexError, RuntimeError)) as wanted:
                    function(*wrong)
                with pytest.raises(wanted.type) as raised:
                    compiled(*wrong)
                assert str(raised.value) == str(wanted.value)
        torch.testing.assert_close(compiled(*args), function(*args))


@pytest.mark.parametrize("name", ALONE)
def test_the_kernel_that_uses_an_index_checks_it(name: str) -> None:
    function, make, _ = PROGRAMS[name]
    args = make(40)
    graph = compile_graph(*graph_of(function, args))
    assert len([report for report in graph.kernels if report.ir.name.startswith("k")]) == (
        2 if name == "short floats" else 1
    )
    marks = [s for report in graph.kernels for s in statements(report.ir.body) if isinstance(s, Store)]
    assert [s.mode for s in marks].count("any") == 1
    reductions = [s for report in graph.kernels for s in statements(report.ir.body) if isinstance(s, Init)]
    assert not any(init.op == "any" for init in reductions)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name][2]])
def test_threads_set_one_flag(name: str) -> None:
    """Every thread may find a bad index, and one of them is enough."""
    function, make, indices = PROGRAMS[name]
    many = replace(host_machine(), threads=4, grain=64)
    args = make(300)
    graph = compile_graph(*graph_of(function, args), many)
    for count in (0, 1, 300):
        wrong = [arg.clone() for arg in args]
        flat = wrong[indices[0]].view(-1)
        flat[torch.randperm(flat.numel())[:count]] = 77
        if count:
            with pytest.raises((IndexError, RuntimeError), match="out of"):
                graph(wrong)
        else:
            torch.testing.assert_close(graph(wrong)[0], function(*args))


def test_nothing_is_indexed() -> None:
    compiled = bolide.compile(lambda x, k: x[k] + 1, dynamic=True)
    x = torch.randn(5)
    for count in (4, 0, 3):
        k = below(5, count)
        torch.testing.assert_close(compiled(x, k), x[k] + 1)


def test_inputs_are_written_behind_checks() -> None:
    def program(x: torch.Tensor, k: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        step.add_(1)
        return x[k] * step

    compiled = bolide.compile(program)
    x, k = torch.randn(9), below(9, 30)
    step, other = torch.zeros(()), torch.zeros(())
    for _ in range(config.native_after + 2):
        torch.testing.assert_close(compiled(x, k, step), program(x, k, other))
    before = float(step)
    k[7] = 9
    with pytest.raises(IndexError):
        compiled(x, k, step)
    with pytest.raises(IndexError):
        program(x, k, other)
    assert float(step) == float(other) == before + 1
