"""A plugin of pytest: how and where a worker of the tests has crashed, or hung, is said at the end of the run."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

PLACE = "BOLIDE_TEST_CRASHES"  # the folder in which each worker has a file
LIMIT = "BOLIDE_TEST_LIMIT"  # the seconds that a test may take, 600 where nothing is set; then its worker ends
_folder = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
_file = pytest.StashKey[IO[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_folder] = tempfile.TemporaryDirectory()
        os.environ[PLACE] = config.stash[_folder].name


def pytest_sessionstart(session: pytest.Session) -> None:
    """By now pytest has let faulthandler write to stderr, where it is lost among the output."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        file = session.config.stash[_file] = Path(os.environ[PLACE], worker["workerid"]).open("w")  # noqa: SIM115
        faulthandler.enable(file)
        faulthandler.register(signal.SIGTERM, file, chain=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs ends its worker, with the stacks of all threads; the other tests go on in a new one."""
    file = item.config.stash.get(_file, None)
    if file is not None:
        faulthandler.dump_traceback_later(float(os.environ.get(LIMIT, 600)), exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The status of a worker that has crashed; negative, the signal that ended it: nothing else tells of a SIGKILL."""
    if error:
        status = node.gateway._io.popen.wait(timeout=60)
        with Path(os.environ[PLACE], node.gateway.id).open("a") as file:
            file.write(f"ended with status {status}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _folder not in config.stash:
        return
    for file in sorted(Path(config.stash[_folder].name).iterdir()):
        where = file.read_text()
        if where:
            terminalreporter.section(f"{file.name} crashed")
            terminalreporter.write_line(where)
    config.stash[_folder].cleanup()
