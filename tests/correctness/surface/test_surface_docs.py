"""Pages of the documentation show what their programs really print, and programs that run."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo

import bolide
from bolide.dynamo.config import DynamoConfig
from bolide.functorch.config import FunctorchConfig
from bolide.inductor.config import InductorConfig
from bolide.inductor.machine import host_target
from bolide.support import log

PAGE = Path(__file__).resolve().parents[3] / "docs" / "breaks-and-recompilations.md"


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


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
    assert FunctorchConfig({}).markdown() in page
    assert InductorConfig({}).markdown() in page


def test_every_log_is_listed() -> None:
    for name, meaning in log.ARTIFACTS.items():
        assert f"| `{name}` | {meaning} |" in PAGE.read_text()


def test_every_public_name_of_torchs_is_here_or_listed() -> None:
    listed = set(re.findall(r"^\| `(torch\.[\w.]+)` \|", (PAGE.parent / "names.md").read_text(), re.MULTILINE))
    for module, ours in ((torch.compiler, bolide), (torch._dynamo, bolide.dynamo)):
        names = {name for name, value in vars(ours).items() if not isinstance(value, types.ModuleType)}
        missing = {f"{module.__name__}.{name}" for name in module.__all__ if name not in names}
        assert missing <= listed, missing - listed
        present = {f"{module.__name__}.{name}" for name in names} & listed
        assert not present, f"{present} are there"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own: numbers in names begin anew, and nothing registered there stays."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=PAGE.parent.parent)


def test_what_the_page_on_changes_shows_works() -> None:
    text = "\n".join(blocks("python", PAGE.parent / "how-to.md"))
    done = run("-c", text)
    assert done.returncode == 0, done.stderr


def test_the_life_of_a_function_is_what_bolide_does() -> None:
    """On the versions and the kind of machine that the page names; on others, that the script runs."""
    script = str(PAGE.parent / "examples" / "life_of_a_function.py")
    named = sys.version_info[:2] == (3, 11) and torch.__version__.startswith("2.13") and host_target().name == "avx512"
    done = run(script, "--check" if named else "--print")
    assert done.returncode == 0, done.stdout + done.stderr
