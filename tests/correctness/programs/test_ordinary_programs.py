"""Whole programs and layers as people write them, by the hundred, with default options or all sizes symbolic: what can
be seen of a run is what eager gives. Each run takes some of them; BOLIDE_ORDINARY=all takes all."""

from __future__ import annotations

import os
import random
import zlib

import pytest

import bolide
from tests.correctness.programs import ordinary_layers, ordinary_python, ordinary_tensors, ordinary_training
from tests.ordinary_tools import PROGRAMS, difference, observed

TABLES = (ordinary_layers, ordinary_python, ordinary_tensors, ordinary_training)
TAKEN = 48  # of the programs, by seed, in each run of the suite


def _taken() -> list[str]:
    if os.environ.get("BOLIDE_ORDINARY") == "all":
        return sorted(PROGRAMS)
    seed = os.environ.get("BOLIDE_TEST_SEED", "0")
    return sorted(random.Random(f"{seed} ordinary").sample(sorted(PROGRAMS), TAKEN))


@pytest.mark.parametrize("name", _taken())
def test_ordinary_programs(name: str) -> None:
    dynamic = True if (zlib.crc32(name.encode()) + int(os.environ.get("BOLIDE_TEST_SEED", "0"))) % 2 else None
    print("dynamic", dynamic)
    expected = observed(PROGRAMS[name], lambda function: function)
    found = observed(PROGRAMS[name], lambda function: bolide.compile(function, dynamic=dynamic))
    assert difference(expected, found) is None
