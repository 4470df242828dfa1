"""For every test: fresh random numbers whose seed is shown when it fails, no silent fallback to eager, and a check of
every plan."""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import crash_tools
import numpy
import pytest
import torch

from bolide.dynamo.config import config as options
from bolide.inductor.runtime import driver
from bolide.support import leaks
from tests.plan_tools import checking

SEED = "BOLIDE_TEST_SEED"
CACHED = "BOLIDE_TEST_CACHED"
"""Set, all tests use the cache on disk, a fresh one for each run: it may not change what any of them finds. Otherwise
those of the cache alone do, so that none depends on what another one has compiled."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(crash_tools)
    driver.build = checking(driver.build)
    leaks.way_to = _thawed(leaks.way_to)
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**31)))
    folder = tempfile.mkdtemp(prefix="bolide_tests_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["BOLIDE_CACHE_DIR"] = folder
    os.environ["BOLIDE_FORCE_DISABLE_CACHES"] = "" if CACHED in os.environ else "1"
    options.force_disable_caches = CACHED not in os.environ
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_report_header() -> str:
    return f"seed of this run: {os.environ[SEED]} (set {SEED} to repeat it)"


def _thawed(search: Callable[..., Any]) -> Callable[..., Any]:
    """The search of what holds a leak, which may be held by something `frozen`."""

    def searched(*args: Any) -> Any:
        gc.unfreeze()
        return search(*args)

    return searched


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """The collector leaves out what is there before the tests of a file, such as torch's samples: a million objects,
    with which a collection takes a second."""
    gc.collect(1)
    gc.freeze()


def _seed(node: str) -> int:
    """The seed of a test, or of a file while it is imported: of the run's seed and the name, so that it does not depend
    on what else runs. It seeds all generators."""
    value = zlib.crc32(f"{os.environ[SEED]} {node}".encode())
    random.seed(value)
    numpy.random.seed(value)
    torch.manual_seed(value)
    return value


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file draws when it is imported is new in each run too."""
    _seed(collector.nodeid)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    value = _seed(request.node.nodeid)
    print(f"seed {value}")
    return value


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A failure of bolide itself, or a leak, is one; that warnings are errors as well is said in pyproject.toml. After
    it torch's Python dispatcher, which recordings use, is off: it would slow whatever comes next."""
    before = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher)
    with options.patch(suppress_errors=False, detect_leaks=True):
        yield
    assert torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher) == before
