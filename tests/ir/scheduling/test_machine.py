"""Scheduling and code generation ask the machine that they are given, and no other one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bolide.inductor import compile_graph
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import _gpu, host_machine
from tests.schedule_tools import Function, graph_of

HOST = host_machine()


def kernels_on(machine, fn: Function, *inputs: torch.Tensor) -> list[Kernel]:
    """The kernels of `fn` for a machine; the results are eager's."""
    compiled = compile_graph(*graph_of(fn, inputs), machine)
    expected = fn(*inputs)
    results = compiled([*inputs])
    for mine, theirs in zip(results, [expected] if isinstance(expected, torch.Tensor) else expected):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return [report.ir for report in compiled.kernels]


def test_parts_of_a_reduction():
    x = torch.randn(1 << 16)
    assert len(kernels_on(HOST, torch.sum, x)) == 2
    assert len(kernels_on(replace(HOST, row_length=1 << 17), torch.sum, x)) == 1


def test_stages_and_arguments_of_a_kernel():
    def program(x, y, z):
        a = x.exp() + y
        return a, a.sin() * z, a.cos()

    inputs = [torch.randn(8, 8) for _ in range(3)]
    assert len(kernels_on(HOST, program, *inputs)) == 1
    assert len(kernels_on(replace(HOST, most_stages=2), program, *inputs)) == 2
    assert len(kernels_on(replace(HOST, most_buffers=2), program, *inputs)) > 1


def test_scratch_fits_the_cache():
    def softmax(x):
        return torch.softmax(x.sin(), -1)

    x = torch.randn(4, 5000)
    (kernel,) = kernels_on(replace(HOST, caches=(1 << 15,)), softmax, x)
    assert kernel.locals
    (kernel,) = kernels_on(replace(HOST, caches=(1 << 13,)), softmax, x)
    assert not kernel.locals
    (kernel,) = kernels_on(replace(HOST, caches=(1 << 15,), most_scratch=0), softmax, x)
    assert not kernel.locals
    small = replace(HOST, caches=(1 << 15,), most_local_bytes=1 << 15)
    (kernel,) = kernels_on(small, softmax, x)
    assert kernel.locals
    (kernel,) = kernels_on(small, softmax, x.double())
    assert not kernel.locals


def test_grain_decides_what_runs_on_threads():
    gm, info = graph_of(torch.sin, [torch.randn(1 << 10)])
    assert "GOMP_parallel" not in compile_graph(gm, info, HOST).kernels[0].llvm_ir
    assert "GOMP_parallel" in compile_graph(gm, info, replace(HOST, grain=1 << 4)).kernels[0].llvm_ir


def test_work_that_is_done_again():
    def program(x):
        y = torch.sin(x) * 2
        return y[1:] + y[:-1]

    x = torch.randn(8, 40)
    counts = [len(kernels_on(replace(HOST, free_work=work, cheap_work=work), program, x)) for work in (0, 1000)]
    assert counts == [2, 1]


def test_values_that_several_passes_need():
    def softmax(x):
        return torch.softmax(x * 2, -1)

    x = torch.randn(4, 500)
    locals_of = [len(kernels_on(replace(HOST, scratch_work=work), softmax, x)[0].locals) for work in (1, 1000)]
    assert locals_of[0] > locals_of[1] == 0


def test_loops_that_are_written_out():
    gm, info = graph_of(lambda x: x.sum(1), [torch.randn(8, 256)])
    loops = [
        compile_graph(gm, info, replace(HOST, written_out=most)).kernels[0].llvm_ir.count("loop") for most in (0, 100)
    ]
    assert loops[0] > loops[1]


def test_what_lowering_leaves_to_aten():
    def pooled(x):
        return torch.nn.functional.max_pool2d(x, 3, 2)

    def joined(x):
        return torch.cat([x, x + 1, x * 2])

    x = torch.randn(2, 3, 20, 20)
    assert kernels_on(HOST, pooled, x) and kernels_on(HOST, joined, x)
    assert not kernels_on(replace(HOST, most_window=8), pooled, x)
    apart = kernels_on(replace(HOST, most_joined=2), joined, x)
    assert "cat" not in {origin for kernel in apart for origin in kernel.origins}


def test_how_large_code_may_become():
    def program(x):
        y = x * 2 + 1
        return y[:, ::2] - y[:, 1::2]

    x = torch.randn(16, 64)
    assert len(kernels_on(HOST, program, x)) == 1
    assert len(kernels_on(replace(HOST, most_inlined=1), program, x)) == 2


def test_the_host():
    assert HOST.threads == torch.get_num_threads()
    assert list(HOST.caches) == sorted(HOST.caches) and HOST.longest_row * 4 <= HOST.caches[0]


def test_old_gpus_are_refused():
    """LLVM ends the process over instructions that its target has not."""
    assert _gpu((8, 0)).target.cpu == "sm_80" and _gpu((9, 0)).target.cpu == _gpu((12, 0)).target.cpu == "sm_90"
    with pytest.raises(NotImplementedError, match=r"compute capability 7\.5, only from 8\.0 on"):
        _gpu((7, 5))
