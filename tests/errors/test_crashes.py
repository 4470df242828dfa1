"""A crash of a worker of the tests says where it was, and so does a test that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CRASHING = """
import ctypes
import os
import threading

def crashes():
    {crash}

def test_crashing():
    crashes()

def test_another():
    pass
"""

CONFTEST = """
import crash_tools

def pytest_configure(config):
    config.pluginmanager.register(crash_tools)
"""


@pytest.mark.parametrize(
    ("crash", "expected"),
    [
        ("ctypes.string_at(0)", ["Segmentation fault", "in crashes", "status -11"]),
        ("os.kill(os.getpid(), 15)", ["in crashes", "status -15"]),
        ("os.kill(os.getpid(), 9)", ["status -9"]),
        ("threading.Event().wait()", ["Timeout", "in crashes", "status 1"]),
    ],
)
def test_a_crash_of_a_worker_is_told_at_the_end(tmp_path: Path, crash: str, expected: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(CRASHING.format(crash=crash))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-n", "1", *plugins, str(tmp_path)]
    tools = str(Path(__file__).parent.parent)
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**known, "PYTHONPATH": tools, "BOLIDE_TEST_LIMIT": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 failed, 1 passed" in done.stdout
    told = done.stdout.partition("gw0 crashed =")[2]
    assert all(each in told for each in expected), told
