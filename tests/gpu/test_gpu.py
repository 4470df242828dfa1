"""Programs and models on a GPU, against eager there. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from gpu_checks import all_checks

CHECKS = all_checks()


@pytest.mark.parametrize("name", CHECKS)
def test_as_eager(name: str, seed: int) -> None:
    CHECKS[name]("cuda", seed % 1000)
