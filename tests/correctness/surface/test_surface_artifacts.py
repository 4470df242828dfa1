"""`save_cache_artifacts` and `load_cache_artifacts`: machine code for another process."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import bolide

PROGRAM = """
import sys
import torch
import bolide
from bolide.support import artifacts

generated, keep = [], artifacts.keep
artifacts.keep = lambda key, found: (generated.append(key), keep(key, found))
path, given = sys.argv[1:]
if given:
    with open(path, "rb") as file:
        print(bolide.load_cache_artifacts(file.read()).artifacts["kernels"])
    generated.clear()  # what is loaded is kept, too
x = torch.linspace(-1, 1, 40).reshape(4, 10).requires_grad_()
y = bolide.compile(lambda x: torch.softmax(x.sin() * 2, -1).square().sum(0))(x)
y.sum().backward()
print(len(generated), y.tolist(), x.grad.tolist())
if not given:
    saved, info = bolide.save_cache_artifacts()
    with open(path, "wb") as file:
        file.write(saved)
    print(info.artifacts["kernels"])
"""


def test_another_process_generates_nothing_that_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "artifacts"
    root = Path(__file__).resolve().parents[3]
    told = []
    for given in ("", "given"):
        command = [sys.executable, "-c", PROGRAM, str(path), given]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        told.append(done.stdout.splitlines())
    (first, saved), (loaded, second) = told
    assert loaded == saved
    assert int(first.split()[0]) >= 2 and int(second.split()[0]) == 0
    assert first.split(maxsplit=1)[1] == second.split(maxsplit=1)[1]


def test_nothing_is_saved_after_a_reset() -> None:
    bolide.compile(lambda x: x * 7 + 3)(torch.ones(3))
    assert bolide.save_cache_artifacts() is not None
    bolide.reset()
    assert bolide.save_cache_artifacts() is None


def test_other_bytes_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"bolide 0"
        archive.writestr("imports.json", "{}")
    for wrong in (b"", b"PK", file.getvalue()):
        with pytest.raises(bolide.BolideError, match="not what save_cache_artifacts"):
            bolide.load_cache_artifacts(wrong)
