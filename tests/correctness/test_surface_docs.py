"""docs/breaks-and-recompilations.md shows what its programs really print."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import bolide
from bolide.dynamo.config import DynamoConfig
from bolide.support import log

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "breaks-and-recompilations.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def masked(line: str) -> str:
    """A line without places and measured numbers."""
    line = re.sub(r'File "[^"]*", line \d+', "File", line.strip())
    return re.sub(r"\d+(\.\d+)?(e-\d+)?(?= (ms|operations?|guards?)\b)", "N", line)


def test_the_page_shows_what_is_printed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = tmp_path / "step.py"
    text = "\n".join(blocks("python"))
    program.write_text(text)
    printed = io.StringIO()
    namespace: dict[str, Callable[..., object]] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(program), "exec", dont_inherit=True), namespace)
    bolide.set_logs()
    told = printed.getvalue() + "\n".join(record.getMessage() for record in caplog.records)
    lines = {masked(line) for line in told.splitlines()}
    for shown in blocks("text"):
        for line in filter(None, map(masked, shown.splitlines())):
            assert any(found.startswith(line) for found in lines), f"{line!r} is not printed:\n{told}"


def test_the_table_of_options_is_that_of_the_code() -> None:
    page = (PAGE.parent / "options.md").read_text()
    assert DynamoConfig({}).markdown() in page


def test_every_log_is_listed() -> None:
    for name, meaning in log.ARTIFACTS.items():
        assert f"| `{name}` | {meaning} |" in PAGE.read_text()
