"""`bolide explain SCRIPT`: what was compiled in a program, as text and as a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bolide.cli import main

SCRIPT = """
import sys
import torch
import bolide

def f(x):
    y = x * 2
    if y.sum() > 0:
        y = y[1:]
    return y

bolide.compile(f)(torch.ones(3))
print("arguments", sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def test_text(script: Path) -> None:
    result = CliRunner().invoke(main, ["explain", str(script), "one", "--two"])
    assert result.exit_code == 0, result.output
    assert "arguments ['one', '--two']" in result.output
    assert "2 segments, 1 break" in result.output and "[BR0101]" in result.output and "if y.sum() > 0:" in result.output


def test_page(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(main, ["explain", "--html", str(page), str(script)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "BR0101" in text and "if y.sum() &gt; 0:" in text and "segment" in text.lower() and "Loss" not in text


def test_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "bolide", "info"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "torch" in result.stdout, result
