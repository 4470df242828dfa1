"""Bad options of the command line: one line that names the option and what to do, and exit status 2."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from bolide.cli import main

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["demo", "--size", "tiny", *arguments])
    assert result.exit_code == 2, result.output
    message = result.output.strip().splitlines()[-1]
    assert message.startswith("Error: ")
    return message


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--steps", "0"), "must be at least 1"),
        (("--layers", "0"), "--layers is 0"),
        (("--batch", "-1"), "--batch is -1"),
        (("--width", "65"), "not a multiple of --heads"),
        (("--dropout", "1.0"), "below 1"),
        (("--device", "nonsense"), "Use --device cpu"),
        (("--device", "meta"), "Use --device cpu"),
        pytest.param(("--device", "cuda"), "Use --device cpu", marks=NO_GPU),
        (("--text", "/no/such/file"), "Give --text a readable file"),
        (("--size", "enormous"), "'tiny', 'small', 'base'"),
        (("--dtype", "int8"), "'float32', 'bfloat16'"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], part: str) -> None:
    assert part in refused(*arguments)


def test_bad_texts(tmp_path: Path) -> None:
    empty, short, binary, folder = (tmp_path / name for name in ("empty", "short", "binary", "folder"))
    empty.write_text("")
    short.write_text("too short")
    binary.write_bytes(bytes(range(256)) * 10)
    folder.mkdir()
    assert "no text in" in refused("--text", str(empty))
    assert "9 characters, but one context is 64" in refused("--text", str(short))
    assert "not UTF-8 text" in refused("--text", str(binary))
    assert "no text in" in refused("--text", str(folder))


def test_bad_report_paths(tmp_path: Path) -> None:
    assert "is a folder" in refused("--report", str(tmp_path))
    assert "there is no folder" in refused("--report", str(tmp_path / "missing" / "report.html"))


def test_info_names_versions() -> None:
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0
    assert torch.__version__ in result.output and "LLVM" in result.output


def test_info_of_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0 and "not installed" in result.output
