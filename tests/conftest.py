"""For every test: fresh random numbers whose seed is shown when it fails, no silent fallback to eager, and a check of
every plan."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator

import crash_tools
import numpy
import pytest
import torch

from bolide.dynamo.config import config
from bolide.inductor.runtime import driver
from tests.plan_tools import checking

SEED = "BOLIDE_TEST_SEED"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(crash_tools)
    driver.build = checking(driver.build)
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**31)))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_report_header() -> str:
    return f"seed of this run: {os.environ[SEED]} (set {SEED} to repeat it)"


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test: of the run's seed and the test's name, so that it does not depend on which tests run."""
    value = zlib.crc32(f"{os.environ[SEED]} {request.node.nodeid}".encode())
    print(f"seed {value}")
    random.seed(value)
    numpy.random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A failure of bolide itself, or a leak, is one; that warnings are errors as well is said in pyproject.toml."""
    with config.patch(suppress_errors=False, detect_leaks=True):
        yield
