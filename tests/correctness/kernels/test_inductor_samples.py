"""The samples of every lowering family through the whole of inductor: real kernels against eager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "ir"))
from lowering_samples import FAMILIES
from lowering_tools import assert_same, graph_of, has_kernel

from bolide.functorch import GraphInfo
from bolide.inductor import compile_graph

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_kernels_agree_with_eager(family, dtype):
    faults = []
    for op, args, kwargs in family(lambda *shape: torch.randn(*shape).to(dtype)):
        if not has_kernel(op, args, kwargs):
            continue
        gm, tensors, expected = graph_of(op, args, kwargs)
        several = expected if isinstance(expected, (tuple, list)) else [expected]
        compiled = compile_graph(gm, GraphInfo("inference", frozenset(), frozenset(range(len(several)))))
        try:
            assert_same(list(compiled(list(tensors))), list(several), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        except Exception as fault:
            faults.append(f"{op}: {type(fault).__name__} {str(fault)[:300]}")
    assert not faults, "\n".join(faults)
