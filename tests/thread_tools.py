"""Running tests' work in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(work: Callable[[int], None], count: int) -> None:
    """Run `work(number)` in `count` threads at once; the first exception is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if failures:
        raise failures[0]
