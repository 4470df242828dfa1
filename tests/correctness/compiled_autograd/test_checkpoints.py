"""Captured backward passes of checkpointed forwards: what is computed again has eager's random numbers, whether the
region is eager code, a compiled function, or both.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import bolide
from tests.compiled_autograd_tools import assert_as_eager


@bolide.compile
def compiled(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.4).sin() * x


REGIONS = {
    "draws": lambda x: F.dropout(x, 0.4).exp(),
    "compiled": lambda x: compiled(x) + 1,
    "both": lambda x: F.dropout(compiled(F.dropout(x, 0.3)), 0.3) * x,
}


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("region", REGIONS)
def test_what_is_computed_again_draws_what_the_forward_drew(region: str, reentrant: bool) -> None:
    def program(log: Any) -> list[torch.Tensor]:
        x = torch.randn(30, requires_grad=True)
        y = checkpoint(REGIONS[region], x * 2, use_reentrant=reentrant)
        (y * torch.randn(30)).sum().backward()
        return [y.detach(), x.grad]

    assert_as_eager(program, bolide.compile, times=2, rtol=1e-5, atol=1e-6)
