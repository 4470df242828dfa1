"""ATen calls that torch's own samples of operators lead to, forward and backward: lowered ones agree with eager."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent.parent / "ir"))
from lowering_tools import assert_same, run_op

from bolide.inductor.lowering import LOWERINGS
from tests.opdb_tools import OPERATIONS

COUNT = 60  # operations of a run
MOST_CALLS = 12  # of one overload and dtype
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-2, torch.float64: 1e-7}
DIVISIONS = ("aten::fmod", "aten::remainder", "aten::floor_divide", "aten::div")
UNDEFINED = "empty"  # these have no values to compare


class Recorder(TorchDispatchMode):
    """Keeps the calls of ops that have a lowering."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        strided = all(tensor.layout is torch.strided for tensor in tensors)
        if func in LOWERINGS and UNDEFINED not in func.name() and strided:
            self.calls.append((func, *pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))))
        return func(*args, **kwargs)


def record(op, sample):
    """The calls of one sample, and of its derivative where it has one."""
    with Recorder() as recorder:
        try:
            result = op(sample.input, *sample.args, **sample.kwargs)
            leaves = [t for t in pytree.tree_leaves(sample.input) if isinstance(t, torch.Tensor) and t.requires_grad]
            if isinstance(result, torch.Tensor) and result.requires_grad and leaves:
                torch.autograd.grad(result, leaves, torch.randn_like(result), allow_unused=True)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            pass  # a sample that eager refuses
    return recorder.calls


def without_least_divisors(args):
    """Where torch computes vectors, its fmod gives NaN for the least divisors, and elsewhere the rest."""
    a, b = args
    return (a, torch.where(b.abs() < 1e-36, 1, b)) if isinstance(b, torch.Tensor) and b.is_floating_point() else args


def check(func, args, kwargs):
    if func.name().split(".")[0] in DIVISIONS:
        args = without_least_divisors(args)
    _, results, expected = run_op(func, *args, **kwargs)
    floats = [t.dtype for t in expected if isinstance(t, torch.Tensor) and t.is_floating_point()]
    inputs = [t.dtype for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    tolerance = max([TOLERANCE.get(dtype, 0.0) for dtype in (*floats, *inputs)], default=0.0) if floats else 0.0
    assert_same(results, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore")
def test_calls_of_opdb_samples():
    seen: Counter = Counter()
    faults: dict[str, str] = {}
    for op in random.sample(OPERATIONS, COUNT):
        for dtype in DTYPES:
            if dtype not in op.dtypes:
                continue
            grad = dtype.is_floating_point and op.supports_autograd and dtype in op.dtypes
            for _, sample in zip(range(8), op.sample_inputs("cpu", dtype, requires_grad=grad)):
                for func, args, kwargs in record(op, sample):
                    seen[func, dtype] += 1
                    if seen[func, dtype] > MOST_CALLS or str(func) in faults:
                        continue
                    try:
                        check(func, args, kwargs)
                    except Exception as fault:
                        faults[str(func)] = f"{op.name} {dtype}: {type(fault).__name__} {str(fault)[:300]}"
    print(f"{sum(seen.values())} calls of {len({func for func, _ in seen})} overloads")
    assert not faults, "\n".join(f"{name}: {fault}" for name, fault in faults.items())
